/*
 * test_quic.c -- links over QUIC on a way that loses, repeats, reorders, damages and forges packets.
 *
 * A thread stands between connector and listener as a router does, and mistreats what passes by its number, so that
 * each run is alike. Whatever it does, all frames arrive whole: what it forges is no packet of the connection.
 */
#include "link_pair.h"

#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "transport.h"
#include "virtual_clock.h"

#if AQ_QUIC

enum { PACKET_BYTES = 2048, QUIET_MS = 20, GONE_MS = 300 };

struct router {
    int in, out; /* sockets: of the connector, and to the listener */
    struct sockaddr_in listener, connector;
    atomic_bool stop;
    atomic_int gone;  /* 1: asked to leave its port for GONE_MS; 2: it has been away. Release and acquire */
    atomic_bool mute; /* nothing passes */
    atomic_uint dropped;
    uint32_t number;
    uint32_t drop_every; /* 0: none */
    bool hostile;        /* repeats, reorders, damages and forges, too */
    const char *query;   /* of the connector's address */
    uint8_t kept[PACKET_BYTES];
    ssize_t kept_bytes;
    struct aq_thread *thread;
};

static void forward(struct router *r, bool back, const uint8_t *bytes, size_t count)
{
    if (back)
        (void)sendto(r->in, bytes, count, 0, (struct sockaddr *)&r->connector, sizeof r->connector);
    else
        (void)send(r->out, bytes, count, 0);
}

static void mistreat(struct router *r, bool back, uint8_t *bytes, size_t count)
{
    uint8_t forged[PACKET_BYTES];
    const uint32_t number = ++r->number;
    if (atomic_load_explicit(&r->mute, memory_order_relaxed)) return;
    if (r->drop_every && number > 40 && number % r->drop_every == 0) { /* behind the handshake */
        atomic_fetch_add_explicit(&r->dropped, 1, memory_order_relaxed);
        return;
    }
    if (!r->hostile) {
        forward(r, back, bytes, count);
        return;
    }
    memcpy(forged, bytes, count);
    forged[number % count] ^= 1 << (number & 7);
    if (number % 5 == 0) forward(r, back, forged, count);     /* damaged, before the right one */
    if (number % 9 == 0) forward(r, back, forged, count / 2); /* cut */
    if (number % 13 == 0) {                                   /* late: behind the next one */
        memcpy(r->kept, bytes, count);
        r->kept_bytes = (ssize_t)count;
        return;
    }
    forward(r, back, bytes, count);
    if (number % 7 == 0) forward(r, back, bytes, count); /* twice */
    if (r->kept_bytes > 0) forward(r, back, r->kept, (size_t)r->kept_bytes);
    r->kept_bytes = 0;
}

/* Its port is free for a while: the kernel answers packets to it with the ICMP error that a stranger would forge. */
static void leave_port(struct router *r)
{
    struct sockaddr_in own;
    socklen_t size = sizeof own;
    AQ_ASSERT(getsockname(r->in, (struct sockaddr *)&own, &size) == 0);
    close(r->in);
    (void)poll(NULL, 0, GONE_MS);
    r->in = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    AQ_ASSERT(bind(r->in, (struct sockaddr *)&own, sizeof own) == 0);
    atomic_store_explicit(&r->gone, 2, memory_order_release);
}

static void route(void *context)
{
    struct router *r = context;
    uint8_t bytes[PACKET_BYTES];
    while (!atomic_load_explicit(&r->stop, memory_order_acquire)) { /* pairs with close_router */
        if (atomic_load_explicit(&r->gone, memory_order_acquire) == 1) leave_port(r);
        struct pollfd fds[2] = {{.fd = r->in, .events = POLLIN}, {.fd = r->out, .events = POLLIN}};
        if (poll(fds, 2, QUIET_MS) <= 0) continue;
        socklen_t size = sizeof r->connector;
        ssize_t count =
            fds[0].revents ? recvfrom(r->in, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&r->connector, &size)
                           : -1;
        if (count > 0) mistreat(r, false, bytes, (size_t)count);
        count = fds[1].revents ? recv(r->out, bytes, sizeof bytes, MSG_DONTWAIT) : -1;
        if (count > 0) mistreat(r, true, bytes, (size_t)count);
    }
}

/* Between the pair's connector, whose address changes to the router's, and its listener. */
static void open_router(struct router *r, struct link_pair *pair)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof own;
    unsigned port;
    assert_int_equal(sscanf(strstr(pair->address, "127.0.0.1:"), "127.0.0.1:%u", &port), 1);
    r->listener = own;
    r->listener.sin_port = htons((uint16_t)port);
    r->in = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    r->out = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(r->in, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(getsockname(r->in, (struct sockaddr *)&own, &size), 0);
    assert_int_equal(connect(r->out, (struct sockaddr *)&r->listener, sizeof r->listener), 0);
    snprintf(pair->address, sizeof pair->address, "quic://127.0.0.1:%u%s", ntohs(own.sin_port),
             r->query ? r->query : "");
    assert_int_equal(aq_thread_open("router", route, r, &r->thread), AQ_OK);
}

static void close_router(struct router *r)
{
    atomic_store_explicit(&r->stop, true, memory_order_release);
    aq_thread_close(r->thread);
    close(r->in);
    close(r->out);
}

static void exchange_through(struct router *r, struct aq_link_stats stats[2])
{
    struct link_pair pair = {0};
    pair_config(&pair);
    pair.config[0].path_every_ns = pair.config[1].path_every_ns = 1000000;
    pair_nets(&pair);
    pair_listen(&pair, "quic", "");
    open_router(r, &pair);
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.accepted, AQ_OK);
    assert_int_equal(pair.connected, AQ_OK);
    pair_exchange(&pair, 120, PAIR_PATIENCE);
    for (int i = 0; i < 2; i++)
        aq_link_stats(pair.link[i], &stats[i]);
    pair_close(&pair);
    close_router(r);
}

static void test_lost_packets_arrive_whole(void **state)
{
    struct router router = {.drop_every = 23};
    struct aq_link_stats stats[2];
    (void)state;
    exchange_through(&router, stats);
    assert_true(atomic_load(&router.dropped) > 20);
    assert_true(stats[0].again_bytes + stats[1].again_bytes > 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(stats[i].heals, 0);
        assert_int_equal(stats[i].streams, 1);
        assert_string_equal(stats[i].congestion, "bbr");
    }
}

static void test_a_hostile_way_changes_nothing(void **state)
{
    struct router router = {.drop_every = 50, .hostile = true};
    struct aq_link_stats stats[2];
    (void)state;
    exchange_through(&router, stats);
    assert_int_equal(stats[0].heals, 0);
}

/* A pair through the router, whose connector has `query`, with heartbeats of that distance and no other clock. */
static void open_pair_through(struct router *r, struct link_pair *pair, uint64_t heartbeat_ns)
{
    pair_config(pair);
    for (int i = 0; i < 2; i++) {
        pair->config[i].heartbeat_ns = heartbeat_ns;
        pair->config[i].silence_ns_max = 0;
    }
    pair_nets(pair);
    pair_listen(pair, "quic", "");
    open_router(r, pair);
    pair_meet(pair, PAIR_PATIENCE);
    assert_int_equal(pair->accepted, AQ_OK);
    assert_int_equal(pair->connected, AQ_OK);
}

/* The link does not heal, so that the first cut ends it. */
static void test_icmp_errors_cut_nothing(void **state)
{
    struct router router = {.query = "?idle=60"};
    struct link_pair pair = {0};
    (void)state;
    open_pair_through(&router, &pair, 10000000);
    atomic_store_explicit(&router.gone, 1, memory_order_release);
    while (atomic_load_explicit(&router.gone, memory_order_acquire) != 2)
        (void)poll(NULL, 0, 10);
    pair_exchange(&pair, 12, PAIR_PATIENCE);
    pair_close(&pair);
    close_router(&router);
}

static enum aq_status how_it_ends(struct link_pair *pair, int end)
{
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    while (aq_clock_ns() < deadline_ns) {
        struct aq_link_event event;
        if (aq_link_poll(pair->link[end], &event) == AQ_OK && event.kind == AQ_LINK_CLOSED) return event.status;
        (void)poll(NULL, 0, 10);
    }
    return AQ_OK;
}

/* Neither heartbeats nor silences are counted above: QUIC itself notices it, at both ends. */
static void test_a_dead_path_is_noticed(void **state)
{
    struct router router = {.query = "?idle=2"};
    struct link_pair pair = {0};
    (void)state;
    open_pair_through(&router, &pair, 0);
    atomic_store_explicit(&router.mute, true, memory_order_relaxed);
    for (int i = 0; i < 2; i++)
        assert_int_equal(how_it_ends(&pair, i), AQ_IO);
    pair_close(&pair);
    close_router(&router);
}

/* A pause of training is longer than the idle time: the ends keep the connection. */
static void test_a_pause_cuts_nothing(void **state)
{
    struct router router = {.query = "?idle=2"};
    struct link_pair pair = {0};
    (void)state;
    open_pair_through(&router, &pair, 0);
    (void)poll(NULL, 0, 5000);
    pair_exchange(&pair, 12, PAIR_PATIENCE);
    pair_close(&pair);
    close_router(&router);
}

/* The port is gone for good: an error that is true ends it, sooner than the idle time. */
static void test_a_peer_that_is_gone_is_noticed(void **state)
{
    struct router router = {.query = "?idle=24"};
    struct link_pair pair = {0};
    (void)state;
    open_pair_through(&router, &pair, 10000000);
    close_router(&router);
    const uint64_t since_ns = aq_clock_ns();
    assert_int_equal(how_it_ends(&pair, 1), AQ_IO);
    assert_true(aq_clock_ns() - since_ns < UINT64_C(22000000000));
    pair_close(&pair);
}

enum { STRANGERS = 140, STRANGERS_MAX = 128 /* half of a listener's places: one address */, SLOWER = 8 };

/* A clock that runs slower, so that a busy machine has time for all handshakes within the 10 s of each. */
static uint64_t slow_ns(void *context)
{
    struct timespec now;
    (void)context;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return ((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec) / SLOWER;
}

/* Strangers with real addresses, who finish QUIC's handshake and stay silent. How many are let stay. */
static int stay_silent(struct link_pair *pair, struct aq_byte_stream *streams[STRANGERS])
{
    struct aq_link *none = NULL;
    uint8_t byte;
    const struct iovec room = {&byte, 1};
    size_t got;
    int there = 0;
    for (int i = 0; i < STRANGERS; i++)
        assert_int_equal(aq_byte_stream_connect(pair->address, NULL, 0, false, &streams[i]), AQ_OK);
    for (int turn = 0; turn < 20 || (there <= STRANGERS / 2 && turn < 1000); turn++) {
        assert_int_equal(aq_link_accept(pair->listener, &pair->config[0], PAIR_SECONDS(0.05 / SLOWER), &none),
                         AQ_TIMEOUT);
        there = 0;
        for (int i = 0; i < STRANGERS; i++)
            there += streams[i]->ops->connected(streams[i]) == AQ_OK &&
                     streams[i]->ops->read(streams[i], &room, 1, &got) == AQ_AGAIN;
    }
    return there;
}

static size_t heap_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* Both ends of a stranger's connection are in this process. */
static void test_strangers_that_stay_silent_cost_little(void **state)
{
    struct aq_byte_stream *streams[STRANGERS];
    struct link_pair pair = {0};
    (void)state;
    virtual_clock(slow_ns, NULL);
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "quic", "");
    const size_t before = heap_bytes();
    const int there = stay_silent(&pair, streams);
    const size_t each = (heap_bytes() - before) / (STRANGERS + (size_t)there);
    print_message("%d of %d strangers stay, %zu KB each\n", there, STRANGERS, each >> 10);
    assert_true(there > STRANGERS / 2 && there <= STRANGERS_MAX);
    assert_true(each < 500000);
    for (int i = 0; i < STRANGERS; i++)
        aq_byte_stream_close(streams[i]);
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.connected, AQ_OK);
    pair_exchange(&pair, 6, PAIR_PATIENCE);
    pair_close(&pair);
    virtual_clock(NULL, NULL);
}

/* Strangers' packets keep no memory: a peer must first show that its address is real. */
static void test_strangers_packets_keep_nothing(void **state)
{
    struct link_pair pair = {0};
    uint8_t packet[1200] = {0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x44, 0x80};
    uint8_t answer[PACKET_BYTES];
    unsigned port;
    (void)state;
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "quic", "");
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(sscanf(strstr(pair.address, "127.0.0.1:"), "127.0.0.1:%u", &port), 1);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons((uint16_t)port)};
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    const uint64_t used = aq_memory_used();
    for (int i = 0; i < 100; i++) {
        packet[6] = (uint8_t)i; /* another connection each */
        (void)send(fd, packet, sizeof packet, 0);
        (void)send(fd, packet + 5, 30 + (size_t)i, 0);
    }
    struct aq_link *none = NULL;
    assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(0.3), &none), AQ_TIMEOUT);
    assert_int_equal(aq_memory_used(), used);
    const ssize_t bytes = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
    assert_true(bytes > 0 && bytes < 1200);   /* shorter than what asked for it */
    assert_int_equal(answer[0] & 0xf0, 0xf0); /* a Retry */
    close(fd);
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.connected, AQ_OK);
    pair_exchange(&pair, 6, PAIR_PATIENCE);
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_packets_arrive_whole),
        cmocka_unit_test(test_a_hostile_way_changes_nothing),
        cmocka_unit_test(test_strangers_packets_keep_nothing),
        cmocka_unit_test(test_strangers_that_stay_silent_cost_little),
        cmocka_unit_test(test_icmp_errors_cut_nothing),
        cmocka_unit_test(test_a_dead_path_is_noticed),
        cmocka_unit_test(test_a_pause_cuts_nothing),
        cmocka_unit_test(test_a_peer_that_is_gone_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    printf("skipped: built without QUIC\n");
    return 77;
}

#endif
