/*
 * tls_talk.h -- for tests of TLS: files of a folder of keys, and two sessions that talk over a pair of sockets, by
 * turns in one thread.
 */
#ifndef TESTS_TLS_TALK_H
#define TESTS_TLS_TALK_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tls_keys.h"

static inline const char *file_in(const char *folder, const char *name)
{
    static char path[KEYS_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline size_t slurp(const char *path, char *out, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(out, 1, bytes, file);
    fclose(file);
    return count;
}

static inline void spill(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

struct talk {
    struct aq_tls_session *end[2]; /* the client, the server */
    int fd[2];
    enum aq_status status[2];
};

static inline void talk_begin(struct talk *talk, struct aq_tls *client, const struct aq_tls_name *server_is,
                              struct aq_tls *server, const struct aq_tls_name *client_is)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk->fd), 0);
    assert_int_equal(aq_tls_session_open(client, talk->fd[0], false, server_is, "server", &talk->end[0]), AQ_OK);
    assert_int_equal(aq_tls_session_open(server, talk->fd[1], true, client_is, "client", &talk->end[1]), AQ_OK);
    talk->status[0] = talk->status[1] = AQ_AGAIN;
}

/* One byte there and one back; or how each end failed. */
static inline void talk_once(struct talk *talk)
{
    char byte = 'x';
    const struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    bool sent[2] = {false, false}, got[2] = {false, false};
    for (int turn = 0; turn < 100; turn++)
        for (int i = 0; i < 2; i++) {
            size_t done;
            if (!sent[i]) {
                talk->status[i] = aq_tls_session_write(talk->end[i], &iov, 1, &done);
                sent[i] = talk->status[i] == AQ_OK;
            } else if (!got[i]) {
                talk->status[i] = aq_tls_session_read(talk->end[i], &iov, 1, &done);
                got[i] = talk->status[i] == AQ_OK;
            }
        }
}

static inline void talk_end(struct talk *talk)
{
    for (int i = 0; i < 2; i++) {
        aq_tls_session_close(talk->end[i]);
        close(talk->fd[i]);
    }
}

#endif
