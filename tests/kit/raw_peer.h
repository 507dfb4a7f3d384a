/*
 * raw_peer.h -- the other end of a link as bytes on a socket: a peer that says what a test wants it to, right or wrong.
 *
 * It keeps the numbers that a good peer would (sequence, acknowledge) and lets a test change each before it goes out.
 * What it says may be said before it is asked: TCP keeps it until the link reads, so that one thread is enough.
 */
#ifndef TESTS_RAW_PEER_H
#define TESTS_RAW_PEER_H

#include "link_pair.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frame.h"

enum { RAW_BODY_MAX = 1 << 17 };

struct raw {
    int fd;
    struct aq_hello hello;     /* its own                                             */
    uint64_t sequence;         /* of its last frame                                   */
    uint64_t received, credit; /* the link's last sequence, and credits that it gave back */
    char text[AQ_TEXT_BYTES];  /* of the link's ABORT                                 */
};

/* From 127.0.0.`host`. */
static inline int raw_socket(const char *address, unsigned host)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from = to;
    const struct timeval patience = {.tv_sec = PAIR_PATIENCE};
    to.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    from.sin_addr.s_addr = htonl((127u << 24) + host);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_not_equal(fd, -1);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    if (host != 1) assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static inline void raw_bytes(const struct raw *raw, const void *bytes, size_t count)
{
    for (size_t sent = 0; sent < count;) {
        const ssize_t n = send(raw->fd, (const uint8_t *)bytes + sent, count - sent, MSG_NOSIGNAL);
        if (n <= 0) return; /* the link has hung up: what it said is read elsewhere */
        sent += (size_t)n;
    }
}

/* A header and body as they are; what a header says of its body is filled in. Returns their bytes. */
static inline size_t raw_frame(const struct raw *raw, struct aq_header header, const void *body, uint8_t *out)
{
    header.from = raw->hello.rank;
    header.edge = raw->hello.edge;
    header.plan_hash = raw->hello.plan_hash;
    if (!body) header.body_bytes = 0;
    if (header.body_bytes > 0) header.body_digest = aq_digest(body, header.body_bytes);
    aq_header_encode(&header, out);
    if (body && header.body_bytes > 0) memcpy(out + AQ_FRAME_HEADER_BYTES, body, header.body_bytes);
    return AQ_FRAME_HEADER_BYTES + header.body_bytes;
}

/* The next frame of a good peer, but for what the header already says: sequence 0 is the next one. */
static inline void raw_send(struct raw *raw, struct aq_header header, const void *body)
{
    static uint8_t out[AQ_FRAME_HEADER_BYTES + RAW_BODY_MAX];
    if (header.sequence == 0) header.sequence = ++raw->sequence;
    if (header.acknowledge == 0) header.acknowledge = raw->received;
    raw_bytes(raw, out, raw_frame(raw, header, body, out));
}

static inline void raw_confirm(const struct raw *raw)
{
    uint8_t out[AQ_FRAME_HEADER_BYTES];
    raw_bytes(raw, out, raw_frame(raw, (struct aq_header){.kind = AQ_FRAME_HELLO}, NULL, out));
}

/* HELLO and its confirmation in one go; the answer is left to raw_answer. */
static inline void raw_greet(struct raw *raw, const char *address, bool confirm)
{
    uint8_t body[AQ_FRAME_HELLO_BYTES], out[AQ_FRAME_HEADER_BYTES + AQ_FRAME_HELLO_BYTES];
    raw->fd = raw_socket(address, 1);
    aq_hello_encode(&raw->hello, body);
    raw_bytes(raw, out,
              raw_frame(raw, (struct aq_header){.kind = AQ_FRAME_HELLO, .body_bytes = sizeof body}, body, out));
    if (confirm) raw_confirm(raw);
}

static inline bool raw_take(const struct raw *raw, void *to, size_t count)
{
    for (size_t got = 0; got < count;) {
        const ssize_t n = recv(raw->fd, (uint8_t *)to + got, count - got, 0);
        if (n <= 0) return false;
        got += (size_t)n;
    }
    return true;
}

/* One frame of the link's, whole and checked. False: it has hung up. */
static inline bool raw_read(struct raw *raw, struct aq_header *header, uint8_t *body)
{
    static uint8_t bytes[RAW_BODY_MAX];
    uint8_t head[AQ_FRAME_HEADER_BYTES];
    if (!raw_take(raw, head, sizeof head)) return false;
    assert_int_equal(aq_header_decode(head, header, raw->text), AQ_OK);
    assert_true(header->body_bytes <= RAW_BODY_MAX && header->part_bytes == 0);
    if (!body) body = bytes;
    if (header->body_bytes > 0) {
        if (!raw_take(raw, body, header->body_bytes)) return false;
        assert_true(aq_digest(body, header->body_bytes) == header->body_digest);
    }
    if (header->kind != AQ_FRAME_HELLO && header->kind != AQ_FRAME_ABORT)
        assert_int_equal(header->sequence, raw->received + 1);
    raw->received = header->sequence;
    raw->credit += header->credit;
    return true;
}

/* The answer to its HELLO: AQ_OK, or why it is refused. */
static inline enum aq_status raw_answer(struct raw *raw, struct aq_hello *out)
{
    uint8_t body[2048];
    struct aq_header header;
    raw->received = 0;
    if (!raw_read(raw, &header, body)) return AQ_CLOSED;
    if (header.kind == AQ_FRAME_ABORT) return aq_abort_decode(body, header.body_bytes, raw->text);
    assert_int_equal(header.kind, AQ_FRAME_HELLO);
    assert_int_equal(aq_hello_decode(body, out, raw->text), AQ_OK);
    return AQ_OK;
}

static inline struct raw raw_peer(const struct link_pair *pair)
{
    const struct aq_link_config *c = &pair->config[1];
    return (struct raw){.fd = -1,
                        .hello = {.job_digest = c->job_digest,
                                  .plan_hash = c->plan_hash,
                                  .rank = c->rank,
                                  .peer_rank = c->peer_rank,
                                  .edge = c->edge,
                                  .body_bytes_max = c->body_bytes_max,
                                  .receive_slots = c->receive_slots,
                                  .features = c->outage_ns_max > 0 ? AQ_FEATURE_HEAL : 0}};
}

#endif
