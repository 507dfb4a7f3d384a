/*
 * test_stripes_sockets.c -- several connections as one (stripes.h), over sockets of the kernel that are full.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "stripes.h"
#include "transport.h"

enum {
    BUNDLE = 77,
    CONNECTIONS = 4,
    HEARD = 4096,
    PERIOD = 251,
    SOCKET_BYTES = 1 << 14,
    SOCKET_WAIT_MS = 60000,
    LATE_MS = 20, /* that an acknowledgement over loopback may take */
    MBPS = 100000
};

static void set_buffer(struct aq_byte_stream *stream, int which)
{
    const int bytes = SOCKET_BYTES;
    assert_int_equal(setsockopt(stream->ops->direct(stream), SOL_SOCKET, which, &bytes, sizeof bytes), 0);
}

static void sockets_open(struct aq_byte_stream *stripes[2], enum aq_link_copies sums)
{
    struct aq_byte_stream *parts[2][CONNECTIONS];
    const struct aq_stripes_config config = {.bundle = BUNDLE, .copies = sums};
    struct aq_acceptor acceptor;
    char address[64];
    assert_int_equal(aq_acceptor_open("tcp://127.0.0.1:0", NULL, &acceptor), AQ_OK);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", acceptor.port);
    for (int n = 0; n < CONNECTIONS; n++) {
        enum aq_status status;
        assert_int_equal(aq_byte_stream_connect(address, NULL, 0, true, &parts[0][n]), AQ_OK);
        while ((status = aq_acceptor_accept(&acceptor, &parts[1][n])) == AQ_AGAIN)
            assert_int_equal(poll(&(struct pollfd){.fd = acceptor.fd, .events = POLLIN}, 1, SOCKET_WAIT_MS), 1);
        assert_int_equal(status, AQ_OK);
        assert_int_equal(parts[0][n]->ops->connected(parts[0][n]), AQ_OK);
        for (int i = 0; i < 2; i++)
            set_buffer(parts[i][n], i == 0 ? SO_SNDBUF : SO_RCVBUF);
    }
    aq_acceptor_close(&acceptor);
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_stripes_open(parts[i], CONNECTIONS, &config, &stripes[i]), AQ_OK);
    /* A socket of the kernel adds a few bytes to its last packet, however full it is; one that is paced does not. */
    assert_int_equal(stripes[0]->ops->pace(stripes[0], MBPS), AQ_OK);
}

/* Writes the pattern until no connection has room, because nobody reads. Answers how much was taken. */
static uint64_t fill(struct aq_byte_stream *stream, const uint8_t *pattern, size_t bytes)
{
    uint64_t taken = 0;
    for (;;) {
        struct aq_byte_stream_wait wait;
        size_t put;
        const struct iovec iov = {(uint8_t *)pattern + taken % PERIOD, bytes - PERIOD};
        const enum aq_status status = stream->ops->write(stream, &iov, 1, &put);
        if (status == AQ_OK) {
            taken += put;
            continue;
        }
        assert_int_equal(status, AQ_AGAIN);
        stream->ops->wait(stream, true, &wait);
        if (wait.wake_ns != AQ_NEVER) continue; /* the pace: soon */
        if (poll(&(struct pollfd){.fd = wait.fd, .events = wait.events}, 1, LATE_MS) == 0) return taken;
    }
}

/* Reads what is there, which continues the pattern at *at. */
static enum aq_status hear_pattern(struct aq_byte_stream *stream, uint64_t *at)
{
    for (;;) {
        uint8_t heard[HEARD];
        size_t got;
        const struct iovec iov = {heard, sizeof heard};
        const enum aq_status status = stream->ops->read(stream, &iov, 1, &got);
        if (status != AQ_OK) return status;
        for (size_t i = 0; i < got; i++)
            assert_int_equal(heard[i], (uint8_t)((*at + i) % PERIOD));
        *at += got;
    }
}

/* Until one end can do something. */
static void await_either(struct aq_byte_stream *stripes[2])
{
    struct aq_byte_stream_wait reads, writes;
    stripes[1]->ops->wait(stripes[1], false, &reads);
    stripes[0]->ops->wait(stripes[0], true, &writes);
    struct pollfd fds[] = {{.fd = reads.fd, .events = reads.events}, {.fd = writes.fd, .events = writes.events}};
    assert_true(poll(fds, 2, SOCKET_WAIT_MS) > 0);
}

/* All connections are full when the stream is shut, and the marks of the end wait in each: all comes, then the end. */
static void test_stripes_shut_on_full_sockets_lose_nothing(void **state)
{
    static const enum aq_link_copies sums[] = {AQ_LINK_COPIES_OFF, AQ_LINK_COPIES_ON};
    static uint8_t pattern[PERIOD * 200];
    (void)state;
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(i % PERIOD);
    for (size_t k = 0; k < sizeof sums / sizeof *sums; k++) {
        struct aq_byte_stream *stripes[2];
        uint64_t at = 0;
        size_t put;
        enum aq_status status;
        sockets_open(stripes, sums[k]);
        const uint64_t put_bytes = fill(stripes[0], pattern, sizeof pattern);
        assert_true(put_bytes > (uint64_t)CONNECTIONS * SOCKET_BYTES / 2);
        stripes[0]->ops->shut(stripes[0]);
        assert_true(stripes[0]->unsent);
        while ((status = hear_pattern(stripes[1], &at)) == AQ_AGAIN) {
            if (stripes[0]->unsent) status = stripes[0]->ops->write(stripes[0], NULL, 0, &put);
            assert_true(status == AQ_OK || status == AQ_AGAIN);
            await_either(stripes);
        }
        assert_int_equal(status, AQ_CLOSED);
        assert_false(stripes[0]->unsent);
        assert_true(at == put_bytes);
        aq_byte_stream_close(stripes[0]);
        aq_byte_stream_close(stripes[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stripes_shut_on_full_sockets_lose_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
