/*
 * link_pair.h -- two nets in one process and a link between them: what the tests of net/ begin with.
 *
 * The connector runs on a thread of its own until it has its link, because accept and connect both block. After that
 * one thread drives both ends: two net objects, each with its own loop.
 *
 * What is awaited comes soon or never: deadlines are PAIR_PATIENCE, so that a busy machine fails no test.
 */
#ifndef TESTS_LINK_PAIR_H
#define TESTS_LINK_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "net/link.h"

enum { PAIR_ADDRESS_BYTES = 256, PAIR_PATIENCE = 120 };
#define PAIR_SECONDS(s) aq_clock_after((uint64_t)((s)*1e9))

struct link_pair {
    struct aq_eventcount *eventcount;
    struct aq_net *net[2]; /* 0 listens, 1 connects */
    struct aq_link *link[2];
    struct aq_link_config config[2];
    struct aq_listener *listener;
    char address[PAIR_ADDRESS_BYTES]; /* for the connector */
    struct aq_tls *tls[2];            /* of schemes with tls */
    double connect_seconds;           /* of the connector; 0: PAIR_PATIENCE */
    enum aq_status connected, accepted;
    atomic_bool connect_over; /* `connected` says how. Release by the connector, acquire in pair_meet_refused */
};

static inline void pair_config(struct link_pair *pair)
{
    for (int i = 0; i < 2; i++) {
        aq_link_config_default(&pair->config[i]);
        pair->config[i].job_digest = 0x1122334455667788;
        pair->config[i].plan_hash = 0x99aabbccddeeff00;
        pair->config[i].rank = (uint32_t)i;
        pair->config[i].peer_rank = (uint32_t)(1 - i);
        pair->config[i].edge = 3;
        pair->config[i].body_bytes_max = 70000;
        pair->config[i].send_frames = 6;
        pair->config[i].receive_slots = 3;
    }
}

static inline void pair_nets(struct link_pair *pair)
{
    aq_error_clear(); /* no other thread runs yet: aq_error_text() is about this pair */
    assert_int_equal(aq_eventcount_open(&pair->eventcount), AQ_OK);
    for (int i = 0; i < 2; i++) {
        const struct aq_net_config config = {.eventcount = pair->eventcount, .links_max = 8, .tls = pair->tls[i]};
        assert_int_equal(aq_net_open(&config, &pair->net[i]), AQ_OK);
    }
}

/* Of the relay that pairs of the scheme "relay" meet at. */
static uint16_t pair_relay_port;

/* scheme: "tcp", "sim", each behind "fault+", "tls+" or "tls+fault+"; query: "" or "split=7&seed=1", for the connector
 * alone, as the faults are. */
static inline void pair_listen(struct link_pair *pair, const char *scheme, const char *query)
{
    static unsigned pairs; /* a name of its own for each, so that a failed test leaves no trouble to the next */
    uint16_t port = 0;
    const char *at = strrchr(scheme, '+') ? strrchr(scheme, '+') + 1 : scheme;
    const char *tls = strstr(scheme, "tls+") ? "tls+" : "";
    const bool tcp = strcmp(at, "tcp") == 0 || strcmp(at, "quic") == 0, relay = strcmp(at, "relay") == 0;
    char address[PAIR_ADDRESS_BYTES], where[80];
    snprintf(where, sizeof where, tcp ? "127.0.0.1:0" : "pair%u", ++pairs);
    if (relay) snprintf(where, sizeof where, "127.0.0.1:%u?room=%032x", pair_relay_port, pairs);
    snprintf(address, sizeof address, "%s%s://%s", tls, at, where);
    assert_int_equal(aq_link_listen(pair->net[0], address, &pair->listener, &port), AQ_OK);
    if (tcp) snprintf(where, sizeof where, "127.0.0.1:%u", port);
    snprintf(pair->address, sizeof pair->address, "%s://%s%s%s", scheme, where, *query ? (relay ? "&" : "?") : "",
             query);
}

static inline void pair_connect_run(void *context)
{
    struct link_pair *pair = context;
    const uint64_t deadline_ns = PAIR_SECONDS(pair->connect_seconds > 0 ? pair->connect_seconds : PAIR_PATIENCE);
    pair->connected = aq_link_connect(pair->net[1], pair->address, &pair->config[1], deadline_ns, &pair->link[1]);
    atomic_store_explicit(&pair->connect_over, true, memory_order_release);
}

/* Both at once; the statuses are left in the pair. */
static inline void pair_meet(struct link_pair *pair, double accept_seconds)
{
    struct aq_thread *thread;
    assert_int_equal(aq_thread_open("connector", pair_connect_run, pair, &thread), AQ_OK);
    pair->accepted = aq_link_accept(pair->listener, &pair->config[0], PAIR_SECONDS(accept_seconds), &pair->link[0]);
    aq_thread_close(thread);
}

/* The same where neither gets a link: the listener goes on listening until the connector has its answer. */
static inline void pair_meet_refused(struct link_pair *pair)
{
    struct aq_thread *thread;
    assert_int_equal(aq_thread_open("connector", pair_connect_run, pair, &thread), AQ_OK);
    do
        pair->accepted = aq_link_accept(pair->listener, &pair->config[0], PAIR_SECONDS(0.1), &pair->link[0]);
    while (pair->accepted == AQ_TIMEOUT && !atomic_load_explicit(&pair->connect_over, memory_order_acquire));
    aq_thread_close(thread);
}

static inline void pair_open(struct link_pair *pair, const char *scheme, const char *query)
{
    pair_nets(pair);
    pair_listen(pair, scheme, query);
    pair_meet(pair, PAIR_PATIENCE);
    assert_int_equal(pair->accepted, AQ_OK);
    assert_int_equal(pair->connected, AQ_OK);
}

static inline void pair_close(struct link_pair *pair)
{
    for (int i = 0; i < 2; i++)
        aq_net_close(pair->net[i]);
    aq_eventcount_close(pair->eventcount);
}

/* The next event of that link; fails the test after `seconds`. */
static inline struct aq_link_event pair_event(struct link_pair *pair, int side, double seconds)
{
    struct aq_link_event event;
    const uint64_t deadline_ns = PAIR_SECONDS(seconds);
    for (;;) {
        const uint32_t seen = aq_eventcount_read(pair->eventcount);
        if (aq_link_poll(pair->link[side], &event) == AQ_OK) return event;
        assert_int_equal(aq_eventcount_wait(pair->eventcount, seen, deadline_ns), AQ_OK);
    }
}

/* The next event of that kind; others are passed over, bodies given back. */
static inline struct aq_link_event pair_event_of(struct link_pair *pair, int side, enum aq_link_event_kind kind,
                                                 double seconds)
{
    for (;;) {
        const struct aq_link_event event = pair_event(pair, side, seconds);
        if (event.kind == kind) return event;
        if (event.kind == AQ_LINK_RECEIVED && event.frame.body) aq_link_release(pair->link[side], event.frame.body);
        assert_int_not_equal(event.kind, AQ_LINK_CLOSED);
    }
}

/* Byte i of body number n from one side: what both ends can compute. Two of three are skewed, as codes are: they pack.
 */
static inline void pair_fill(uint8_t *body, uint32_t bytes, int side, uint32_t n)
{
    const struct aq_rng_key key = aq_rng_key(7, AQ_RNG_TEST, (uint64_t)side, n);
    uint32_t block[4];
    for (uint32_t i = 0; i < bytes; i += sizeof block) {
        aq_rng_block(&key, i / sizeof block, block);
        for (uint32_t w = 0; w < 4; w++)
            block[w] &= n % 3 ? 0x03070307 : UINT32_MAX;
        memcpy(body + i, block, bytes - i < sizeof block ? bytes - i : sizeof block);
    }
}

static inline uint32_t pair_size(int side, uint32_t n, uint32_t bytes_max)
{
    const struct aq_rng_key key = aq_rng_key(8, AQ_RNG_TEST, (uint64_t)side, 0);
    switch (n % 8) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return bytes_max;
    default:
        return (uint32_t)aq_rng_below(&key, n, bytes_max + 1u);
    }
}

struct pair_flow { /* one side of an exchange */
    uint32_t sent, returned, received;
    uint8_t *bodies; /* send_frames of them */
};

/* Check what the link brings, then send what it takes: in this order, so that no SENT is left unanswered before a
 * sleep. */
static inline void pair_flow_step(struct link_pair *pair, struct pair_flow *flow, int side, uint32_t frames)
{
    const struct aq_link_config *c = &pair->config[side];
    struct aq_link_event event;
    while (aq_link_poll(pair->link[side], &event) == AQ_OK) {
        if (event.kind == AQ_LINK_SENT) {
            assert_int_equal(event.token, flow->returned + 1000ull);
            flow->returned++;
            continue;
        }
        assert_int_equal(event.kind, AQ_LINK_RECEIVED);
        const struct aq_frame *f = &event.frame;
        const uint32_t n = flow->received++;
        static uint8_t expected[1 << 20];
        assert_int_equal(f->kind, AQ_FRAME_FORWARD);
        assert_int_equal(f->flags, 1 - side);
        assert_int_equal(f->micro_batch, n);
        assert_int_equal(f->step, n * 3ull);
        assert_int_equal(f->argument, ~(uint64_t)n);
        assert_int_equal(f->body_bytes, pair_size(1 - side, n, pair->config[1 - side].body_bytes_max));
        pair_fill(expected, f->body_bytes, 1 - side, n);
        if (f->body_bytes > 0) {
            assert_memory_equal(f->body, expected, f->body_bytes);
            aq_link_release(pair->link[side], f->body);
        }
    }
    while (flow->sent < frames && flow->sent - flow->returned < c->send_frames) {
        uint8_t *body = flow->bodies + (size_t)(flow->sent % c->send_frames) * c->body_bytes_max;
        const uint32_t bytes = pair_size(side, flow->sent, c->body_bytes_max);
        pair_fill(body, bytes, side, flow->sent);
        const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD,
                                       .flags = (uint16_t)side,
                                       .micro_batch = flow->sent,
                                       .step = flow->sent * 3ull,
                                       .argument = ~(uint64_t)flow->sent,
                                       .body_bytes = bytes,
                                       .body = bytes > 0 ? body : NULL};
        assert_int_equal(aq_link_send(pair->link[side], &frame, flow->sent + 1000ull), AQ_OK);
        flow->sent++;
    }
}

/* frames both ways, of odd sizes, every byte checked; fails the test after `seconds`. */
static inline void pair_exchange(struct link_pair *pair, uint32_t frames, double seconds)
{
    struct pair_flow flows[2] = {{0}, {0}};
    const uint64_t deadline_ns = PAIR_SECONDS(seconds);
    for (int i = 0; i < 2; i++) {
        void *memory;
        assert_int_equal(aq_alloc((size_t)pair->config[i].send_frames * pair->config[i].body_bytes_max, &memory),
                         AQ_OK);
        flows[i].bodies = memory;
    }
    for (;;) {
        const uint32_t seen = aq_eventcount_read(pair->eventcount);
        bool done = true;
        for (int i = 0; i < 2; i++) {
            pair_flow_step(pair, &flows[i], i, frames);
            done &= flows[i].returned == frames && flows[i].received == frames;
        }
        if (done) break;
        assert_int_equal(aq_eventcount_wait(pair->eventcount, seen, deadline_ns), AQ_OK);
    }
    for (int i = 0; i < 2; i++)
        aq_free(flows[i].bodies);
}

#endif
