/*
 * conform_transport.c -- every transport of net/transport/transports.def, bare, under fault+, under tls+ and under
 * both, must carry a link in the same way.
 *
 * A new transport is one line there and is run here unasked. Each case runs for each address scheme in three ways: with
 * both engines, and over four connections a link.
 */
#include "link_pair.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine.h"
#include "relay_kit.h"
#include "sample.h"
#include "tls_keys.h"
#include "transport.h"

struct scheme {
    const char *name;
    const char *query;
};

/* Faults that a link must live with: odd pieces and pauses. */
#define AQ_TRANSPORT(scheme)                                                                                           \
    {#scheme, ""}, {"fault+" #scheme, "seed=1&split=2000&delay_ms=0.2"}, {"tls+" #scheme, ""},                         \
        {"tls+fault+" #scheme, "seed=1&split=2000&delay_ms=0.2"},                                                      \
        {"fault+tls+" #scheme, "seed=1&split=2000&delay_ms=0.2"},
static const struct scheme SCHEMES[] = {
#include "transports.def"
};
#undef AQ_TRANSPORT
enum { SCHEME_COUNT = sizeof SCHEMES / sizeof *SCHEMES };

static struct aq_tls *identities[2]; /* of rank 0 and 1 */
static uint32_t streams;

static void begin(struct link_pair *pair)
{
    pair_config(pair);
    pair->config[0].streams = pair->config[1].streams = streams;
    memcpy(pair->tls, identities, sizeof identities);
}

static void exchange_by(const struct scheme *scheme, enum aq_link_entropy entropy)
{
    struct link_pair pair = {0};
    begin(&pair);
    pair.config[0].entropy = pair.config[1].entropy = entropy;
    pair_open(&pair, scheme->name, scheme->query);
    pair_exchange(&pair, 60, PAIR_PATIENCE);
    for (int i = 0; i < 2; i++) {
        struct aq_link_stats stats;
        aq_link_stats(pair.link[i], &stats);
        assert_int_equal(stats.sent_frames, 60);
        assert_int_equal(stats.received_frames, 60);
        assert_true(stats.busy_ns > 0);
        assert_true(stats.sent_wire_bytes >= stats.sent_packed_bytes + 60 * 128);
        assert_true(entropy == AQ_LINK_ENTROPY_OFF ? stats.sent_packed_bytes == stats.sent_body_bytes
                                                   : stats.sent_packed_bytes < stats.sent_body_bytes * 3 / 4);
    }
    pair_close(&pair);
}

static void exchange(const struct scheme *scheme)
{
    exchange_by(scheme, AQ_LINK_ENTROPY_OFF);
}

/* Paced, so that bodies of more than 30 kB go in parts. */
static void exchange_in_parts(const struct scheme *scheme)
{
    struct link_pair pair = {0};
    begin(&pair);
    pair.config[0].rate_mbps = pair.config[1].rate_mbps = 50;
    pair_open(&pair, scheme->name, scheme->query);
    pair_exchange(&pair, 24, PAIR_PATIENCE);
    pair_close(&pair);
}

static void exchange_packed(const struct scheme *scheme)
{
    exchange_by(scheme, AQ_LINK_ENTROPY_ZSTD);
}

/* Under a filter that cuts: the link heals, and its user sees nothing of it. */
static void exchange_cut_by(const struct scheme *scheme, enum aq_link_entropy entropy)
{
    struct link_pair pair = {0};
    if (!strstr(scheme->name, "fault")) return;
    begin(&pair);
    for (int i = 0; i < 2; i++) {
        pair.config[i].outage_ns_max = PAIR_PATIENCE * UINT64_C(1000000000);
        pair.config[i].entropy = entropy;
        pair.config[i].rate_mbps = 100; /* the largest go in parts */
    }
    pair_nets(&pair);
    char query[64]; /* as many cuts of the link, whatever the connections; one that repairs by itself has one */
    snprintf(query, sizeof query, "seed=5&cut_every=%u", 150000 / (strstr(scheme->name, "quic") ? 1 : streams));
    pair_listen(&pair, scheme->name, query);
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.accepted, AQ_OK);
    assert_int_equal(pair.connected, AQ_OK);
    aq_listener_close(pair.listener);
    pair_exchange(&pair, 40, PAIR_PATIENCE);
    struct aq_link_stats stats;
    aq_link_stats(pair.link[1], &stats);
    assert_true(stats.heals >= 3);
    assert_true((stats.sent_packed_bytes < stats.sent_body_bytes) == (entropy != AQ_LINK_ENTROPY_OFF));
    pair_close(&pair);
}

static void exchange_cut(const struct scheme *scheme)
{
    exchange_cut_by(scheme, AQ_LINK_ENTROPY_OFF);
}

static void exchange_cut_packed(const struct scheme *scheme)
{
    exchange_cut_by(scheme, AQ_LINK_ENTROPY_ZSTD);
}

/* Another process that asks for any port must not get the one where nobody is to listen. -1: it is none of TCP's. */
static int hold_port(const struct scheme *scheme, const char *address)
{
    const char *port = strstr(address, "127.0.0.1:");
    if (!strstr(scheme->name, "tcp") || !port) return -1;
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_addr = {htonl(INADDR_LOOPBACK)},
                                   .sin_port = htons((uint16_t)strtoul(port + strlen("127.0.0.1:"), NULL, 10))};
    const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    assert_int_equal(setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    (void)bind(held, (const struct sockaddr *)&at, sizeof at); /* it may have been quicker */
    return held;
}

static void refuse(const struct scheme *scheme)
{
    struct link_pair pair = {0};
    begin(&pair);
    pair_nets(&pair);
    pair_listen(&pair, scheme->name, scheme->query);
    aq_listener_close(pair.listener); /* the address is good, but nobody is there any more */
    const int held = hold_port(scheme, pair.address);
    const enum aq_status status =
        aq_link_connect(pair.net[1], pair.address, &pair.config[1], PAIR_SECONDS(0.2), &pair.link[1]);
    assert_int_equal(status, AQ_TIMEOUT);
    if (held != -1) close(held);
    pair_close(&pair);
}

static void duplicate_listen(const struct scheme *scheme)
{
    struct link_pair pair = {0};
    struct aq_listener *second = NULL;
    if (strstr(scheme->name, "relay")) return; /* two that wait in one room share who calls */
    begin(&pair);
    pair_nets(&pair);
    pair_listen(&pair, scheme->name, "");
    assert_int_equal(aq_link_listen(pair.net[1], pair.address, &second, NULL), AQ_REFUSED);
    assert_non_null(strstr(aq_error_text(), "cannot listen at"));
    aq_listener_close(pair.listener);
    assert_int_equal(aq_link_listen(pair.net[1], pair.address, &second, NULL), AQ_OK); /* free again */
    pair_close(&pair);
}

/* One body as large as the link allows, in many reads and writes, both ways. */
static void huge(const struct scheme *scheme)
{
    struct link_pair pair = {0};
    begin(&pair);
    for (int i = 0; i < 2; i++) {
        pair.config[i].entropy = i == 0 ? AQ_LINK_ENTROPY_ZSTD : AQ_LINK_ENTROPY_AUTO;
        pair.config[i].body_bytes_max = 1000003;
        pair.config[i].receive_slots = 1;
        pair.config[i].send_frames = 1;
    }
    pair_open(&pair, scheme->name, scheme->query[0] ? "seed=2&split=60000" : "");
    pair_exchange(&pair, 6, PAIR_PATIENCE);
    pair_close(&pair);
}

/* A receiver that gives nothing back: the sender stops at the credits, nothing is lost, and all comes when it goes
 * on. */
static void stall(const struct scheme *scheme)
{
    enum { FRAMES = 20, BYTES = 5000 };
    static uint8_t bodies[FRAMES][BYTES];
    const void *held[FRAMES] = {0};
    struct link_pair pair = {0};
    begin(&pair);
    pair.config[1].send_frames = FRAMES;
    pair_open(&pair, scheme->name, scheme->query);
    for (uint32_t n = 0; n < FRAMES; n++) {
        pair_fill(bodies[n], BYTES, 1, n);
        const struct aq_frame frame = {.kind = AQ_FRAME_BACKWARD, .step = n, .body_bytes = BYTES, .body = bodies[n]};
        assert_int_equal(aq_link_send(pair.link[1], &frame, n), AQ_OK);
    }
    const struct aq_frame one_more = {.kind = AQ_FRAME_BACKWARD};
    assert_int_equal(aq_link_send(pair.link[1], &one_more, 0), AQ_AGAIN);
    for (uint32_t n = 0; n < pair.config[0].receive_slots; n++)
        held[n] = pair_event(&pair, 0, PAIR_PATIENCE).frame.body;
    struct aq_link_event event;
    uint32_t seen;
    const uint64_t enough_ns = PAIR_SECONDS(0.05); /* time in which one frame more would come, were it sent */
    do {
        seen = aq_eventcount_read(pair.eventcount);
        while (aq_link_poll(pair.link[1], &event) == AQ_OK)
            assert_int_equal(event.kind, AQ_LINK_SENT);
    } while (aq_eventcount_wait(pair.eventcount, seen, enough_ns) == AQ_OK);
    assert_int_equal(aq_link_poll(pair.link[0], &event), AQ_AGAIN);
    for (uint32_t n = 0; n < FRAMES; n++) {
        const uint32_t slots = pair.config[0].receive_slots;
        if (n >= slots) held[n] = pair_event(&pair, 0, PAIR_PATIENCE).frame.body;
        assert_memory_equal(held[n], bodies[n], BYTES);
        aq_link_release(pair.link[0], held[n]);
    }
    struct aq_link_stats stats;
    aq_link_stats(pair.link[1], &stats);
    assert_true(stats.credit_wait_ns > 0);
    pair_close(&pair);
}

static void finish_run(void *context)
{
    struct link_pair *pair = context;
    pair->connected = aq_link_finish(pair->link[1], PAIR_SECONDS(PAIR_PATIENCE));
}

/* One end finishes with frames queued; the other gets them all, then CLOSED, and its own queue goes out as well. */
static void half_close(const struct scheme *scheme)
{
    enum { FRAMES = 5, BYTES = 60000 };
    static uint8_t body[BYTES];
    struct link_pair pair = {0};
    struct aq_thread *thread;
    begin(&pair);
    pair_open(&pair, scheme->name, scheme->query);
    pair_fill(body, BYTES, 0, 0);
    for (uint32_t n = 0; n < FRAMES; n++) {
        const struct aq_frame frame = {.kind = AQ_FRAME_EVAL, .step = n, .body_bytes = BYTES, .body = body};
        assert_int_equal(aq_link_send(pair.link[0], &frame, n), AQ_OK);
        assert_int_equal(aq_link_send(pair.link[1], &frame, n), AQ_OK);
    }
    assert_int_equal(aq_thread_open("finish", finish_run, &pair, &thread), AQ_OK);
    uint32_t received = 0, sent = 0;
    struct aq_link_event event;
    for (;;) {
        event = pair_event(&pair, 0, PAIR_PATIENCE);
        if (event.kind == AQ_LINK_CLOSED) break;
        if (event.kind == AQ_LINK_SENT) sent++;
        if (event.kind != AQ_LINK_RECEIVED) continue;
        assert_int_equal(event.frame.step, received++);
        assert_memory_equal(event.frame.body, body, BYTES);
        aq_link_release(pair.link[0], event.frame.body);
    }
    assert_int_equal(event.status, AQ_CLOSED);
    assert_int_equal(received, FRAMES);
    assert_int_equal(sent, FRAMES);
    const struct aq_frame late = {.kind = AQ_FRAME_EVAL};
    assert_int_equal(aq_link_send(pair.link[0], &late, 0), AQ_CLOSED);
    assert_int_equal(aq_link_finish(pair.link[0], PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    aq_thread_close(thread);
    assert_int_equal(pair.connected, AQ_OK);
    pair_close(&pair);
}

/* A hard close in the middle of a body: the other end says so once, and never hands out half a frame. */
static void cancel(const struct scheme *scheme)
{
    enum { BYTES = 70000 };
    static uint8_t body[BYTES];
    struct link_pair pair = {0};
    begin(&pair);
    pair_open(&pair, scheme->name, scheme->query);
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = BYTES, .body = body};
    for (uint32_t n = 0; n < 6; n++)
        assert_int_equal(aq_link_send(pair.link[1], &frame, n), AQ_OK);
    aq_link_close(pair.link[1]);
    struct aq_link_event event;
    while ((event = pair_event(&pair, 0, PAIR_PATIENCE)).kind == AQ_LINK_RECEIVED) {
        assert_int_equal(event.frame.body_bytes, BYTES);
        aq_link_release(pair.link[0], event.frame.body);
    }
    assert_int_equal(event.kind, AQ_LINK_CLOSED);
    assert_int_equal(event.status, AQ_IO);
    assert_non_null(strstr(event.text, "without a BYE"));
    assert_int_equal(aq_link_poll(pair.link[0], &event), AQ_AGAIN);
    pair_close(&pair);
}

static void abort_run(void *context)
{
    struct link_pair *pair = context;
    pair->connected = aq_link_abort(pair->link[1], AQ_NOSPC, "stage 1: the disk is full", PAIR_SECONDS(PAIR_PATIENCE));
}

static void abort_reaches_peer(const struct scheme *scheme)
{
    struct link_pair pair = {0};
    struct aq_thread *thread;
    begin(&pair);
    pair_open(&pair, scheme->name, scheme->query);
    assert_int_equal(aq_thread_open("abort", abort_run, &pair, &thread), AQ_OK);
    const struct aq_link_event event = pair_event_of(&pair, 0, AQ_LINK_CLOSED, PAIR_PATIENCE);
    assert_int_equal(event.status, AQ_ABORTED);
    assert_non_null(strstr(event.text, "stage 1: the disk is full"));
    aq_thread_close(thread);
    assert_int_equal(pair.connected, AQ_OK);
    pair_close(&pair);
}

/* Is io_uring permitted here? Where it is not, that half is skipped, and said. */
static bool engine_here(const struct aq_engine_ops *ops)
{
    struct aq_engine *engine;
    if (ops->open(4, &engine) != AQ_OK) return false;
    ops->close(engine);
    return true;
}

enum { WAYS = 3 };

/* Under a sanitizer each test has every scheme in one of the ways, and the next test in the next one. AQ_TESTS=long: in
 * all. */
static void run_schemes(void (*test)(const struct scheme *scheme), uint32_t number, uint32_t way, const char *how)
{
    for (uint32_t i = 0; i < SCHEME_COUNT; i++) {
        if (sample_sanitized() && !sample_has((size_t)(i + number) * WAYS + way, WAYS, WAYS)) continue;
        print_message("  %s over %s, streams=%u\n", SCHEMES[i].name, how, streams);
        test(&SCHEMES[i]);
    }
}

static void run_all(void (*test)(const struct scheme *scheme))
{
    static const struct aq_engine_ops *const ENGINES[] = {&aq_engine_uring, &aq_engine_poll};
    static uint32_t number; /* of the test in this process */
    number++;
    for (uint32_t e = 0; e < 2; e++) {
        if (!engine_here(ENGINES[e])) {
            print_message("  skipped over %s: the kernel does not permit it\n", ENGINES[e]->name);
            continue;
        }
        setenv("AQ_NET_ENGINE", ENGINES[e]->name, 1);
        streams = 1;
        run_schemes(test, number, e, ENGINES[e]->name);
    }
    unsetenv("AQ_NET_ENGINE");
    streams = 4;
    run_schemes(test, number, 2, "the engine that is chosen");
}

#define CASE(name, function)                                                                                           \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run_all(function);                                                                                             \
    }
CASE(test_exchange_odd_sizes_arrives_whole, exchange)
CASE(test_exchange_in_parts_arrives_whole, exchange_in_parts)
CASE(test_exchange_packed_arrives_whole, exchange_packed)
CASE(test_exchange_cut_often_arrives_whole, exchange_cut)
CASE(test_exchange_packed_cut_often_arrives_whole, exchange_cut_packed)
CASE(test_connect_nobody_listens_times_out, refuse)
CASE(test_listen_twice_is_refused, duplicate_listen)
CASE(test_exchange_huge_bodies_arrives_whole, huge)
CASE(test_send_slow_receiver_waits_for_credit, stall)
CASE(test_finish_one_end_drains_both, half_close)
CASE(test_close_in_a_body_ends_the_peer, cancel)
CASE(test_abort_reaches_the_peer_with_its_text, abort_reaches_peer)

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static char folder[KEYS_PATH_BYTES];
static struct relay_kit relay;

static int open_identities(void **state)
{
    (void)state;
    keys_make(folder, "conform");
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(aq_tls_open(folder, AQ_TLS_STAGE, i, &identities[i]), AQ_OK);
    relay_kit_open(&relay, 0, 0, AQ_RELAY_CONNECTIONS_MAX);
    pair_relay_port = relay.port;
    return 0;
}

static int close_identities(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        aq_tls_close(identities[i]);
    relay_kit_close(&relay, NULL);
    keys_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange_odd_sizes_arrives_whole),
        cmocka_unit_test(test_exchange_in_parts_arrives_whole),
        cmocka_unit_test(test_exchange_packed_arrives_whole),
        cmocka_unit_test(test_exchange_cut_often_arrives_whole),
        cmocka_unit_test(test_exchange_packed_cut_often_arrives_whole),
        cmocka_unit_test(test_connect_nobody_listens_times_out),
        cmocka_unit_test(test_listen_twice_is_refused),
        cmocka_unit_test(test_exchange_huge_bodies_arrives_whole),
        cmocka_unit_test(test_send_slow_receiver_waits_for_credit),
        cmocka_unit_test(test_finish_one_end_drains_both),
        cmocka_unit_test(test_close_in_a_body_ends_the_peer),
        cmocka_unit_test(test_abort_reaches_the_peer_with_its_text),
    };
    aq_log_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, open_identities, close_identities);
}
