/*
 * test_quic.c -- links over QUIC on a way that loses, repeats, reorders, damages and forges packets.
 *
 * A thread stands between connector and listener as a router does, and mistreats what passes by its number, so that
 * each run is alike. Whatever it does, all frames arrive whole: what it forges is no packet of the connection.
 */
#include "link_pair.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#if AQ_QUIC

enum { PACKET_BYTES = 2048, QUIET_MS = 20 };

struct router {
    int in, out; /* sockets: of the connector, and to the listener */
    struct sockaddr_in listener, connector;
    atomic_bool stop;
    atomic_uint dropped;
    uint32_t number;
    uint32_t drop_every; /* 0: none */
    bool hostile;        /* repeats, reorders, damages and forges, too */
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

static void route(void *context)
{
    struct router *r = context;
    uint8_t bytes[PACKET_BYTES];
    while (!atomic_load_explicit(&r->stop, memory_order_acquire)) { /* pairs with close_router */
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
    snprintf(pair->address, sizeof pair->address, "quic://127.0.0.1:%u", ntohs(own.sin_port));
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
