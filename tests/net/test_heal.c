/*
 * test_heal.c -- connections that are cut hundreds of times under one link: every frame arrives once, in order, whole.
 *
 * Between the two ends stands a little proxy of this test, with a thread of its own: it passes bytes on, and on demand
 * cuts what it carries, swallows it (a black hole: both ends believe that they are connected), or takes no connection
 * at all. Or the fault transport cuts by itself (cut_every).
 */
#include "link_pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frame.h"
#include "sample.h"

enum { PROXY_PAIRS = 32, PROXY_BYTES = 1 << 16 };
enum proxy_order {
    PROXY_PASS,
    PROXY_HOLE,
    PROXY_CLOSED,
    PROXY_CALM /* as PASS, but without cuts */,
    PROXY_ONE_HOLE /* of one connection; then PASS */
};

struct proxy_pair { /* two sockets, and what is between them in either direction */
    int fd[2];
    uint8_t bytes[2][PROXY_BYTES]; /* [i]: read from fd[i], for fd[1 - i] */
    size_t begin[2], end[2];
    bool hole; /* for ever: nothing of it is passed on, and its ends hear nothing of it */
};

struct proxy {
    int acceptor;
    uint16_t port, to;
    struct proxy_pair pairs[PROXY_PAIRS];
    uint64_t cut_every; /* cut after some such many bytes; 0: not by itself */
    uint64_t passed, cut_at, number;
    struct aq_thread *thread;
    atomic_int order; /* enum proxy_order: what becomes of connections. Relaxed: it only has to be seen some time */
    atomic_bool stop;
    atomic_uint cuts, streams, holes; /* relaxed counts */
};

static int socket_to(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd == -1) return -1;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

static void proxy_drop(struct proxy_pair *pair)
{
    for (int i = 0; i < 2; i++)
        if (pair->fd[i] != -1) close(pair->fd[i]);
    pair->fd[0] = pair->fd[1] = -1;
}

static void proxy_next_cut(struct proxy *proxy)
{
    const struct aq_rng_key key = aq_rng_key(11, AQ_RNG_TEST, 0, 0);
    proxy->cut_at = proxy->passed + proxy->cut_every / 2 + aq_rng_below(&key, proxy->number++, proxy->cut_every);
}

static void proxy_accept(struct proxy *proxy)
{
    const int fd = accept4(proxy->acceptor, NULL, NULL, SOCK_CLOEXEC);
    if (fd == -1) return;
    struct proxy_pair *pair = NULL;
    for (int i = 0; i < PROXY_PAIRS; i++)
        if (proxy->pairs[i].fd[0] == -1) pair = &proxy->pairs[i];
    const bool open = pair && atomic_load_explicit(&proxy->order, memory_order_relaxed) != PROXY_CLOSED;
    const int other = open ? socket_to(proxy->to) : -1;
    if (other == -1) {
        close(fd);
        return;
    }
    memset(pair, 0, sizeof *pair);
    pair->fd[0] = fd;
    pair->fd[1] = other;
    for (int i = 0; i < 2; i++)
        assert_true(fcntl(pair->fd[i], F_SETFL, O_NONBLOCK) == 0);
    atomic_fetch_add_explicit(&proxy->streams, 1, memory_order_relaxed);
}

/* One direction; false: the connection is gone or to be cut. */
static bool proxy_move(struct proxy *proxy, struct proxy_pair *pair, int from)
{
    if (pair->end[from] < PROXY_BYTES) {
        const ssize_t n = read(pair->fd[from], pair->bytes[from] + pair->end[from], PROXY_BYTES - pair->end[from]);
        if (n == 0 || (n == -1 && errno != EAGAIN && errno != EINTR)) return false;
        if (n > 0) pair->end[from] += (size_t)n;
    }
    size_t count = pair->end[from] - pair->begin[from];
    const bool calm = atomic_load_explicit(&proxy->order, memory_order_relaxed) == PROXY_CALM;
    const bool cut = !calm && proxy->cut_every > 0 && proxy->passed + count >= proxy->cut_at;
    if (cut) count = proxy->cut_at > proxy->passed ? (size_t)(proxy->cut_at - proxy->passed) : 0;
    if (count > 0) {
        const ssize_t n = send(pair->fd[1 - from], pair->bytes[from] + pair->begin[from], count, MSG_NOSIGNAL);
        if (n == -1 && errno != EAGAIN && errno != EINTR) return false;
        if (n > 0) {
            pair->begin[from] += (size_t)n;
            proxy->passed += (size_t)n;
        }
    }
    if (pair->begin[from] == pair->end[from]) pair->begin[from] = pair->end[from] = 0;
    if (cut) proxy_next_cut(proxy);
    return !cut;
}

static void proxy_turn(struct proxy *proxy)
{
    struct pollfd fds[1 + 2 * PROXY_PAIRS] = {{.fd = proxy->acceptor, .events = POLLIN}};
    for (int i = 0; i < 2 * PROXY_PAIRS; i++) {
        const struct proxy_pair *pair = &proxy->pairs[i / 2];
        const int side = i % 2;
        fds[1 + i] = (struct pollfd){.fd = pair->hole ? -1 : pair->fd[side]};
        if (pair->end[side] < PROXY_BYTES) fds[1 + i].events |= POLLIN;
        if (pair->end[1 - side] > pair->begin[1 - side]) fds[1 + i].events |= POLLOUT;
    }
    poll(fds, 1 + 2 * PROXY_PAIRS, 5);
    if (fds[0].revents) proxy_accept(proxy);
    const int order = atomic_load_explicit(&proxy->order, memory_order_relaxed);
    for (int i = 0; i < PROXY_PAIRS; i++) {
        struct proxy_pair *pair = &proxy->pairs[i];
        if (pair->fd[0] == -1) continue;
        const bool one = order == PROXY_ONE_HOLE && atomic_load_explicit(&proxy->order, memory_order_relaxed) == order;
        if ((order == PROXY_HOLE || one) && !pair->hole) {
            pair->hole = true;
            if (one) atomic_store_explicit(&proxy->order, PROXY_PASS, memory_order_relaxed);
            atomic_fetch_add_explicit(&proxy->holes, 1, memory_order_relaxed);
        }
        if (pair->hole && order != PROXY_CLOSED) continue;
        if (order == PROXY_CLOSED || !proxy_move(proxy, pair, 0) || !proxy_move(proxy, pair, 1)) {
            atomic_fetch_add_explicit(&proxy->cuts, 1, memory_order_relaxed);
            proxy_drop(pair);
        }
    }
}

static void proxy_run(void *context)
{
    struct proxy *proxy = context;
    while (!atomic_load_explicit(&proxy->stop, memory_order_relaxed))
        proxy_turn(proxy);
    for (int i = 0; i < PROXY_PAIRS; i++)
        proxy_drop(&proxy->pairs[i]);
    close(proxy->acceptor);
}

/* Between the pair's listener and its connector, whose address becomes that of the proxy. */
static struct proxy *proxy_open(struct link_pair *pair, uint64_t cut_every)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    void *memory;
    assert_int_equal(aq_alloc(sizeof(struct proxy), &memory), AQ_OK);
    struct proxy *proxy = memory;
    proxy->to = (uint16_t)strtoul(strrchr(pair->address, ':') + 1, NULL, 10);
    proxy->acceptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(proxy->acceptor, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(proxy->acceptor, 16), 0);
    assert_int_equal(getsockname(proxy->acceptor, (struct sockaddr *)&at, &bytes), 0);
    proxy->port = ntohs(at.sin_port);
    for (int i = 0; i < PROXY_PAIRS; i++)
        proxy->pairs[i].fd[0] = proxy->pairs[i].fd[1] = -1;
    proxy->cut_every = cut_every;
    if (cut_every) proxy_next_cut(proxy);
    snprintf(pair->address, sizeof pair->address, "tcp://127.0.0.1:%u", proxy->port);
    assert_int_equal(aq_thread_open("proxy", proxy_run, proxy, &proxy->thread), AQ_OK);
    return proxy;
}

static void proxy_close(struct proxy *proxy)
{
    atomic_store_explicit(&proxy->stop, true, memory_order_relaxed);
    aq_thread_close(proxy->thread);
    aq_free(proxy);
}

static void order(struct proxy *proxy, enum proxy_order what)
{
    atomic_store_explicit(&proxy->order, what, memory_order_relaxed);
}

/* Events notify the event count: wait the whole time all the same. */
static void pass_time(const struct link_pair *pair, double seconds)
{
    const uint64_t until = PAIR_SECONDS(seconds);
    uint32_t seen;
    do
        seen = aq_eventcount_read(pair->eventcount);
    while (aq_eventcount_wait(pair->eventcount, seen, until) == AQ_OK);
}

/* The connections that stand, or one of them, become holes; later ones pass. */
static void swallow_by(const struct link_pair *pair, struct proxy *proxy, enum proxy_order what)
{
    const unsigned before = atomic_load_explicit(&proxy->holes, memory_order_relaxed);
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    order(proxy, what);
    while (atomic_load_explicit(&proxy->holes, memory_order_relaxed) == before) {
        pass_time(pair, 0.002);
        assert_true(aq_clock_ns() < deadline_ns);
    }
}

static void swallow(const struct link_pair *pair, struct proxy *proxy)
{
    swallow_by(pair, proxy, PROXY_HOLE);
}

static uint32_t streams = 1; /* connections of a link: the program's argument */

static void healing_config(struct link_pair *pair, double outage_seconds)
{
    pair_config(pair);
    for (int i = 0; i < 2; i++) {
        pair->config[i].outage_ns_max = (uint64_t)(outage_seconds * 1e9);
        pair->config[i].streams = streams;
        pair->config[i].heartbeat_ns = 50000000;
        pair->config[i].silence_ns_max = 0;
    }
}

/* For tests of holes: silence for that long is a lost connection. Elsewhere a busy machine would seem to be one. */
static void listen_closely(struct link_pair *pair)
{
    for (int i = 0; i < 2; i++)
        pair->config[i].silence_ns_max = 400000000;
}

/* Meet, and close the listener: from there on its porter has the acceptor. */
static void meet(struct link_pair *pair)
{
    pair_meet(pair, PAIR_PATIENCE);
    assert_int_equal(pair->accepted, AQ_OK);
    assert_int_equal(pair->connected, AQ_OK);
    aq_listener_close(pair->listener);
}

static struct proxy *through_proxy(struct link_pair *pair, uint64_t cut_every)
{
    pair_nets(pair);
    pair_listen(pair, "tcp", "");
    struct proxy *proxy = proxy_open(pair, cut_every);
    meet(pair);
    return proxy;
}

static uint64_t heals(const struct link_pair *pair, int side)
{
    struct aq_link_stats stats;
    aq_link_stats(pair->link[side], &stats);
    return stats.heals;
}

static void finish_run(void *context)
{
    struct link_pair *pair = context;
    pair->connected = aq_link_finish(pair->link[1], PAIR_SECONDS(PAIR_PATIENCE));
}

/* Both ends say goodbye in good order. */
static void finish(struct link_pair *pair)
{
    struct aq_thread *thread;
    assert_int_equal(aq_thread_open("finish", finish_run, pair, &thread), AQ_OK);
    assert_int_equal(aq_link_finish(pair->link[0], PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    aq_thread_close(thread);
    assert_int_equal(pair->connected, AQ_OK);
}

/* ---- cuts ---- */

static void both_engines(void (*test)(void))
{
    static const char *const ENGINES[] = {"poll", "uring"};
    for (int i = 0; i < 2; i++) {
        struct aq_net *net;
        const struct aq_net_config config = {.links_max = 1};
        setenv("AQ_NET_ENGINE", ENGINES[i], 1);
        if (aq_net_open(&config, &net) != AQ_OK) {
            print_message("  skipped over %s: the kernel does not permit it\n", ENGINES[i]);
            continue;
        }
        aq_net_close(net);
        test();
    }
    unsetenv("AQ_NET_ENGINE");
}

/* Sockets of our own, cut at any byte, hundreds of times. */
static void cut_often(void)
{
    struct link_pair pair = {0};
    healing_config(&pair, PAIR_PATIENCE);
    struct proxy *proxy = through_proxy(&pair, 150000);
    pair_exchange(&pair, 500, PAIR_PATIENCE);
    const unsigned cuts = atomic_load_explicit(&proxy->cuts, memory_order_relaxed);
    print_message("  %u cuts, %u connections, %llu heals\n", cuts,
                  atomic_load_explicit(&proxy->streams, memory_order_relaxed), (unsigned long long)heals(&pair, 1));
    assert_true(cuts >= 100);
    assert_true(heals(&pair, 1) >= 100);
    for (int i = 0; i < 2; i++) {
        struct aq_link_stats stats;
        aq_link_stats(pair.link[i], &stats);
        assert_int_equal(stats.received_frames, 500);
        assert_int_equal(stats.sent_frames, 500);
        assert_true(stats.outage_ns > 0);
    }
    order(proxy, PROXY_CALM); /* the goodbye is another test's */
    finish(&pair);
    proxy_close(proxy);
    pair_close(&pair);
}

static void test_proxy_cuts_hundreds_of_times_all_arrives_once(void **state)
{
    (void)state;
    both_engines(cut_often);
}

/* The filter cuts by itself, at places drawn from a seed, over every transport. */
static void test_fault_cuts_at_seeded_places_all_arrives_once(void **state)
{
    static const char *const SCHEMES[] = {"fault+tcp", "fault+sim"};
    (void)state;
    for (unsigned seed = 1; seed <= sample_seeds(6); seed++)
        for (int i = 0; i < 2; i++) {
            struct link_pair pair = {0};
            char query[64];
            snprintf(query, sizeof query, "seed=%u&cut_every=120000&split=9000", seed);
            healing_config(&pair, PAIR_PATIENCE);
            pair_nets(&pair);
            pair_listen(&pair, SCHEMES[i], query);
            meet(&pair);
            pair_exchange(&pair, 100, PAIR_PATIENCE);
            assert_true(heals(&pair, 0) >= 10);
            pair_close(&pair);
        }
}

/* Small frames, and cuts so near to each other that handshakes are hit, the first one's too. */
static void test_cuts_in_handshakes_all_arrives_once(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= sample_seeds(10); seed++) {
        struct link_pair pair = {0};
        char query[64];
        snprintf(query, sizeof query, "seed=%u&cut_every=900&split=300", seed);
        healing_config(&pair, PAIR_PATIENCE);
        for (int i = 0; i < 2; i++)
            pair.config[i].body_bytes_max = 40;
        pair_nets(&pair);
        pair_listen(&pair, "fault+sim", query);
        meet(&pair);
        pair_exchange(&pair, 60, PAIR_PATIENCE);
        assert_true(heals(&pair, 1) >= 10);
        pair_close(&pair);
    }
}

/* ---- holes, outages ---- */

static void send_one(struct link_pair *pair, int side, uint64_t n)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .step = n};
    assert_int_equal(aq_link_send(pair->link[side], &frame, n), AQ_OK);
}

/* Both ends believe in a connection that carries nothing: silence finds it, and what was on its way is sent again. */
static void test_black_hole_is_found_by_silence_and_healed(void **state)
{
    struct link_pair pair = {0};
    (void)state;
    healing_config(&pair, PAIR_PATIENCE);
    listen_closely(&pair);
    struct proxy *proxy = through_proxy(&pair, 0);
    for (uint64_t n = 0; n < 5; n++) {
        swallow(&pair, proxy);
        order(proxy, PROXY_PASS);
        for (int i = 0; i < 2; i++)
            send_one(&pair, i, n);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pair_event_of(&pair, i, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, n);
        assert_true(heals(&pair, 1) >= n + 1);
    }
    finish(&pair);
    proxy_close(proxy);
    pair_close(&pair);
}

/* Of several connections one carries nothing any more, while the others do: what it holds back is missed. */
static void test_one_silent_connection_is_found_and_healed(void **state)
{
    struct link_pair pair = {0};
    (void)state;
    healing_config(&pair, PAIR_PATIENCE);
    listen_closely(&pair);
    struct proxy *proxy = through_proxy(&pair, 0);
    swallow_by(&pair, proxy, PROXY_ONE_HOLE);
    pair_exchange(&pair, 40, PAIR_PATIENCE);
    assert_true(heals(&pair, 1) >= 1);
    order(proxy, PROXY_CALM);
    finish(&pair);
    proxy_close(proxy);
    pair_close(&pair);
}

/* A SENT before the peer has the frame would let the caller reuse a body that may have to go again. */
static void test_sent_means_acknowledged(void **state)
{
    struct link_pair pair = {0};
    struct aq_link_event event;
    (void)state;
    healing_config(&pair, PAIR_PATIENCE);
    listen_closely(&pair);
    struct proxy *proxy = through_proxy(&pair, 0);
    swallow(&pair, proxy);
    send_one(&pair, 1, 7);
    pass_time(&pair, 0.1);
    assert_int_equal(aq_link_poll(pair.link[1], &event), AQ_AGAIN); /* written long ago, but nobody has it */
    order(proxy, PROXY_PASS);
    assert_int_equal(pair_event(&pair, 0, PAIR_PATIENCE).frame.step, 7);
    event = pair_event(&pair, 1, PAIR_PATIENCE);
    assert_int_equal(event.kind, AQ_LINK_SENT);
    assert_int_equal(event.token, 7);
    assert_int_equal(aq_link_poll(pair.link[0], &event), AQ_AGAIN); /* once */
    proxy_close(proxy);
    pair_close(&pair);
}

static void test_outage_longer_than_permitted_is_timeout(void **state)
{
    struct link_pair pair = {0};
    (void)state;
    healing_config(&pair, 0.5);
    struct proxy *proxy = through_proxy(&pair, 0);
    order(proxy, PROXY_CLOSED);
    for (int i = 0; i < 2; i++) {
        const struct aq_link_event event = pair_event_of(&pair, i, AQ_LINK_CLOSED, PAIR_PATIENCE);
        assert_int_equal(event.status, AQ_TIMEOUT);
        assert_non_null(strstr(event.text, "longer than outage_max (0.5 s)"));
    }
    proxy_close(proxy);
    pair_close(&pair);
}

/* Connections that stand but carry no frame do not count as healed: the outage goes on, and ends. */
static void test_connections_without_progress_do_not_heal_for_ever(void **state)
{
    struct link_pair pair = {0};
    uint32_t end;
    static uint8_t body[70000];
    (void)state;
    healing_config(&pair, 1);
    pair_nets(&pair);
    pair_listen(&pair, "fault+sim", "seed=3&cut_every=2000");
    meet(&pair);
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = sizeof body, .body = body};
    assert_int_equal(aq_link_send(pair.link[1], &frame, 0), AQ_OK);
    end = (uint32_t)pair_event_of(&pair, 1, AQ_LINK_CLOSED, PAIR_PATIENCE).status;
    assert_int_equal(end, AQ_TIMEOUT);
    pair_close(&pair);
}

static void test_end_while_parked_is_at_once(void **state)
{
    struct link_pair pair = {0};
    (void)state;
    healing_config(&pair, PAIR_PATIENCE);
    struct proxy *proxy = through_proxy(&pair, 0);
    order(proxy, PROXY_CLOSED);
    pass_time(&pair, 0.1);
    const uint64_t begin = aq_clock_ns();
    assert_int_equal(aq_link_abort(pair.link[1], AQ_NOSPC, "the disk is full", PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    aq_link_close(pair.link[1]);
    aq_link_close(pair.link[0]);
    assert_true(aq_clock_ns() - begin < PAIR_PATIENCE / 2 * UINT64_C(1000000000)); /* no deadline of anything */
    proxy_close(proxy);
    pair_close(&pair);
}

static void test_goodbye_under_cuts_is_good_at_both_ends(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= sample_seeds(6); seed++) { /* up to 5 s each: the last word may be lost */
        struct link_pair pair = {0};
        char query[64];
        snprintf(query, sizeof query, "seed=%u&cut_every=1000", seed);
        healing_config(&pair, PAIR_PATIENCE);
        pair_nets(&pair);
        pair_listen(&pair, "fault+tcp", query);
        meet(&pair);
        send_one(&pair, 0, 1);
        send_one(&pair, 1, 1);
        finish(&pair);
        pair_close(&pair);
    }
}

/* ---- who may resume ---- */

static void read_all(int fd, uint8_t *bytes, size_t count)
{
    for (size_t have = 0; have < count;) {
        const ssize_t n = read(fd, bytes + have, count - have);
        assert_true(n > 0);
        have += (size_t)n;
    }
}

/* Says this HELLO to the porter, and gives the reason that it is refused with. */
static enum aq_status refused(uint16_t port, const struct aq_hello *hello, char text[AQ_TEXT_BYTES])
{
    uint8_t bytes[AQ_FRAME_HEADER_BYTES + AQ_FRAME_CONTROL_BYTES_MAX];
    struct aq_header header = {.kind = AQ_FRAME_HELLO,
                               .from = hello->rank,
                               .edge = hello->edge,
                               .plan_hash = hello->plan_hash,
                               .body_bytes = AQ_FRAME_HELLO_BYTES};
    aq_hello_encode(hello, bytes + AQ_FRAME_HEADER_BYTES);
    header.body_digest = aq_digest(bytes + AQ_FRAME_HEADER_BYTES, AQ_FRAME_HELLO_BYTES);
    aq_header_encode(&header, bytes);
    const int fd = socket_to(port);
    assert_int_not_equal(fd, -1);
    assert_int_equal(write(fd, bytes, AQ_FRAME_HEADER_BYTES + AQ_FRAME_HELLO_BYTES),
                     AQ_FRAME_HEADER_BYTES + AQ_FRAME_HELLO_BYTES);
    read_all(fd, bytes, AQ_FRAME_HEADER_BYTES);
    assert_int_equal(aq_header_decode(bytes, &header, text), AQ_OK);
    assert_int_equal(header.kind, AQ_FRAME_ABORT);
    read_all(fd, bytes, header.body_bytes);
    close(fd);
    return aq_abort_decode(bytes, header.body_bytes, text);
}

static void test_strangers_at_a_living_link_are_refused_by_name(void **state)
{
    struct link_pair pair = {0};
    char text[AQ_TEXT_BYTES];
    (void)state;
    healing_config(&pair, PAIR_PATIENCE);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    meet(&pair);
    const uint16_t port = (uint16_t)strtoul(strrchr(pair.address, ':') + 1, NULL, 10);
    struct aq_hello hello = {.job_digest = pair.config[1].job_digest,
                             .plan_hash = pair.config[1].plan_hash,
                             .rank = 1,
                             .peer_rank = 0,
                             .edge = 3,
                             .body_bytes_max = 70000,
                             .receive_slots = 3,
                             .features = AQ_FEATURE_HEAL};
    assert_int_equal(refused(port, &hello, text), AQ_MISMATCH);
    assert_non_null(strstr(text, "rank 1, edge 3) asks for a new link"));
    hello.session = 0xfeedface;
    hello.resume_sequence = 1;
    assert_int_equal(refused(port, &hello, text), AQ_MISMATCH);
    assert_non_null(strstr(text, "00000000feedface"));
    pair_exchange(&pair, 10, PAIR_PATIENCE); /* and the link has not noticed */
    assert_int_equal(heals(&pair, 0), 0);
    pair_close(&pair);
}

static void one_heals(struct link_pair *pair, struct proxy *proxy, uint64_t n)
{
    const uint64_t before = heals(pair, 1);
    swallow(pair, proxy);
    order(proxy, PROXY_PASS);
    send_one(pair, 1, n);
    assert_int_equal(pair_event_of(pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, n);
    assert_true(heals(pair, 1) > before);
}

/* Its links heal while it rests; who comes for a new link meanwhile waits for the next accept, and strangers do not. */
static void test_a_listener_that_rests_heals_and_accepts_again(void **state)
{
    struct link_pair pair = {0};
    struct aq_thread *thread;
    struct aq_link *first[2];
    char text[AQ_TEXT_BYTES];
    (void)state;
    healing_config(&pair, PAIR_PATIENCE);
    listen_closely(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    const uint16_t port = (uint16_t)strtoul(strrchr(pair.address, ':') + 1, NULL, 10);
    struct proxy *proxy = proxy_open(&pair, 0);
    pair_meet(&pair, PAIR_PATIENCE);
    assert_true(pair.accepted == AQ_OK && pair.connected == AQ_OK);
    assert_int_equal(aq_listener_rest(pair.listener), AQ_OK);
    assert_int_equal(aq_listener_rest(pair.listener), AQ_OK); /* it does already */
    one_heals(&pair, proxy, 1);
    const struct aq_hello other = {.job_digest = ~pair.config[1].job_digest, .rank = 1, .peer_rank = 0, .edge = 3};
    assert_int_equal(refused(port, &other, text), AQ_MISMATCH);
    assert_non_null(strstr(text, "is of another job"));
    memcpy(first, pair.link, sizeof first);
    pair.config[0].edge = pair.config[1].edge = 4;
    assert_int_equal(aq_thread_open("connector", pair_connect_run, &pair, &thread), AQ_OK);
    pass_time(&pair, 0.2); /* it is there, and waits */
    assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair.link[0]), AQ_OK);
    aq_thread_close(thread);
    assert_int_equal(pair.connected, AQ_OK);
    for (int rests = 0; rests < 2; rests++) {
        if (rests == 0) assert_int_equal(aq_listener_rest(pair.listener), AQ_OK);
        if (rests == 1) aq_listener_close(pair.listener);
        struct aq_link *second[2];
        memcpy(second, pair.link, sizeof second);
        one_heals(&pair, proxy, 5);
        memcpy(pair.link, first, sizeof first);
        send_one(&pair, 1, 6);
        assert_int_equal(pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, 6);
        memcpy(pair.link, second, sizeof second);
    }
    proxy_close(proxy);
    pair_close(&pair);
}

/* One end does not heal: neither does, and a cut ends the link as ever. */
static void test_one_end_does_not_heal_neither_does(void **state)
{
    (void)state;
    for (int end = 0; end < 2; end++) {
        struct link_pair pair = {0};
        healing_config(&pair, PAIR_PATIENCE);
        pair.config[end].outage_ns_max = 0;
        struct proxy *proxy = through_proxy(&pair, 0);
        order(proxy, PROXY_CLOSED);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pair_event_of(&pair, i, AQ_LINK_CLOSED, PAIR_PATIENCE).status, AQ_IO);
        proxy_close(proxy);
        pair_close(&pair);
    }
}

static void test_close_with_links_parked_leaves_no_memory(void **state)
{
    (void)state;
    const uint64_t used = aq_memory_used();
    for (int i = 0; i < 5; i++) {
        struct link_pair pair = {0};
        healing_config(&pair, PAIR_PATIENCE);
        struct proxy *proxy = through_proxy(&pair, 3000);
        send_one(&pair, 1, 1);
        if (i % 2) order(proxy, PROXY_CLOSED);
        pair_close(&pair);
        proxy_close(proxy);
    }
    assert_int_equal(aq_memory_used(), used);
}

static void quiet(int level, const char *line, void *context)
{
    (void)context;
    if (getenv("AQ_SHOW")) print_message("%d %s\n", level, line);
}

int main(int argc, char **argv)
{
    if (argc > 1) streams = (uint32_t)strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proxy_cuts_hundreds_of_times_all_arrives_once),
        cmocka_unit_test(test_fault_cuts_at_seeded_places_all_arrives_once),
        cmocka_unit_test(test_cuts_in_handshakes_all_arrives_once),
        cmocka_unit_test(test_black_hole_is_found_by_silence_and_healed),
        cmocka_unit_test(test_one_silent_connection_is_found_and_healed),
        cmocka_unit_test(test_sent_means_acknowledged),
        cmocka_unit_test(test_outage_longer_than_permitted_is_timeout),
        cmocka_unit_test(test_connections_without_progress_do_not_heal_for_ever),
        cmocka_unit_test(test_end_while_parked_is_at_once),
        cmocka_unit_test(test_goodbye_under_cuts_is_good_at_both_ends),
        cmocka_unit_test(test_strangers_at_a_living_link_are_refused_by_name),
        cmocka_unit_test(test_a_listener_that_rests_heals_and_accepts_again),
        cmocka_unit_test(test_one_end_does_not_heal_neither_does),
        cmocka_unit_test(test_close_with_links_parked_leaves_no_memory),
    };
    aq_log_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
