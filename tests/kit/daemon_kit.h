/*
 * daemon_kit.h -- a daemon in this process, without a loop, and clients that speak to it byte by byte: what the tests
 * of its door begin with. The loop's calls are made by hand, so that nothing depends on time.
 */
#ifndef TESTS_DAEMON_KIT_H
#define TESTS_DAEMON_KIT_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon_private.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
static struct aq_daemon_config config;
static struct daemon *daemon_;
static char address[64];
static uint32_t lines_logged;

static inline void count_line(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
    lines_logged++;
}

static inline int setup(void **state)
{
    (void)state;
    void *memory;
    uint16_t port;
    aq_log_sink(count_line, NULL);
    if (aq_alloc(sizeof(struct daemon), &memory) != AQ_OK) return -1;
    daemon_ = memory;
    config = (struct aq_daemon_config){.token = {.bytes = 24, .secret = "what only friends know.."}};
    daemon_->config = &config;
    daemon_->signals = -1;
    if (aq_control_listen("127.0.0.1:0", true, &daemon_->listener, &port) != AQ_OK) return -1;
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++)
        daemon_->workers[i].output = daemon_->workers[i].log = -1;
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        if (daemon_->connections[i].control) connection_close(daemon_, &daemon_->connections[i]);
    close(daemon_->listener);
    aq_free(daemon_);
    aq_log_sink(NULL, NULL);
    return aq_memory_used() == 0 ? 0 : -1;
}

/* A client of the daemon, byte by byte, and the daemon's end of it. */
struct client {
    int fd;
    struct connection *connection;
    char nonce[AQ_NONCE_CHARS + 1];
};

/* The next line the daemon has sent, or "" where the connection has ended. */
static inline const char *line_of(struct client *client, char *out, size_t bytes)
{
    size_t at = 0;
    while (at + 1 < bytes) {
        const ssize_t got = recv(client->fd, out + at, 1, 0);
        if (got <= 0) break;
        if (out[at++] == '\n') break;
    }
    out[at] = 0;
    return out;
}

static inline void come(struct client *client)
{
    char line[1024];
    assert_int_equal(aq_control_connect(address, aq_clock_after(120 * second_ns), &client->fd), AQ_OK);
    struct timeval patience = {.tv_sec = 120};
    assert_int_equal(setsockopt(client->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_int_equal(fcntl(client->fd, F_SETFL, 0), 0); /* our end blocks */
    client->connection = NULL;
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        if (daemon_->connections[i].state == CONNECTION_FREE) {
            client->connection = &daemon_->connections[i];
            break;
        }
    connection_accept(daemon_);
    assert_non_null(client->connection);
    assert_int_equal(client->connection->state, CONNECTION_GREETING);
    json_t *hello = json_loads(line_of(client, line, sizeof line), 0, NULL);
    assert_true(aq_control_is(hello, "event", "hello"));
    assert_int_equal(strlen(aq_control_text_or(hello, "nonce", "")), AQ_NONCE_CHARS);
    memcpy(client->nonce, aq_control_text_or(hello, "nonce", ""), sizeof client->nonce);
    json_decref(hello);
}

static inline void say(struct client *client, const char *line)
{
    assert_int_equal(send(client->fd, line, strlen(line), MSG_NOSIGNAL), (ssize_t)strlen(line));
    /* What loopback has been given it delivers before send returns. */
    connection_serve(daemon_, client->connection);
}

#endif
