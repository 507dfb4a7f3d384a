/*
 * test_link.c -- what goes wrong between two ranks, and what the link makes of it: handshakes that do not fit,
 * strangers, broken bytes, silence, death, deadlines, memory that runs out.
 */
#include "link_pair.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The last lines of the log, for tests of what is said. */
static char log_lines[64][600];
static atomic_uint log_count;

static void keep_line(int level, const char *line, void *context)
{
    (void)level;
    (void)context;
    const unsigned at = atomic_fetch_add_explicit(&log_count, 1, memory_order_relaxed);
    if (at < 64) snprintf(log_lines[at], sizeof log_lines[at], "%s", line);
}

static bool logged(const char *part)
{
    const unsigned count = atomic_load_explicit(&log_count, memory_order_relaxed);
    for (unsigned i = 0; i < count && i < 64; i++)
        if (strstr(log_lines[i], part)) return true;
    return false;
}

static int clear_log(void **state)
{
    (void)state;
    atomic_store_explicit(&log_count, 0, memory_order_relaxed);
    return 0;
}

/* ---- handshakes ---- */

/* Configs that do not fit: the connector is refused, and names both values. */
static void mismatch(void (*change)(struct link_pair *pair), const char *here, const char *there)
{
    struct link_pair pair = {0};
    pair_config(&pair);
    change(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    pair_meet_refused(&pair);
    assert_int_equal(pair.accepted, AQ_TIMEOUT);
    assert_int_equal(pair.connected, AQ_MISMATCH);
    assert_non_null(strstr(aq_error_text(), here));
    assert_non_null(strstr(aq_error_text(), there));
    assert_true(logged("refused peer=127.0.0.1"));
    pair_close(&pair);
}

static void other_job(struct link_pair *pair)
{
    pair->config[1].job_digest = 0xabc;
}
static void other_plan(struct link_pair *pair)
{
    pair->config[1].plan_hash = 0xdef;
}
static void other_rank(struct link_pair *pair)
{
    pair->config[1].peer_rank = 9;
}

static void test_handshake_other_job_refused_with_both(void **state)
{
    (void)state;
    mismatch(other_job, "0000000000000abc", "1122334455667788");
}
static void test_handshake_other_plan_refused_with_both(void **state)
{
    (void)state;
    mismatch(other_plan, "0000000000000def", "99aabbccddeeff00");
}
static void test_handshake_wrong_address_refused_with_both(void **state)
{
    (void)state;
    mismatch(other_rank, "rank 9", "rank 0");
}

/* Two peers for two accepts, in the other order: the one that came too early is kept, not refused. */
static void test_accept_other_order_keeps_the_early_peer(void **state)
{
    struct link_pair pair = {0};
    struct aq_thread *thread;
    struct aq_link_config early, late;
    struct aq_link *links[2];
    (void)state;
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    early = pair.config[0];
    late = pair.config[0];
    late.edge = 4;
    assert_int_equal(aq_thread_open("connector", pair_connect_run, &pair, &thread), AQ_OK);
    /* Edge 4 is waited for while edge 3 knocks. */
    assert_int_equal(aq_link_accept(pair.listener, &late, PAIR_SECONDS(0.2), &links[0]), AQ_TIMEOUT);
    assert_int_equal(aq_link_accept(pair.listener, &early, PAIR_SECONDS(PAIR_PATIENCE), &links[1]), AQ_OK);
    aq_thread_close(thread);
    assert_int_equal(pair.connected, AQ_OK);
    assert_int_equal(aq_link_peer_rank(links[1]), 1);
    pair_close(&pair);
}

static void late_listen_run(void *context)
{
    struct link_pair *pair = context;
    const uint32_t seen = aq_eventcount_read(pair->eventcount);
    (void)aq_eventcount_wait(pair->eventcount, seen, PAIR_SECONDS(0.15)); /* the connector is refused meanwhile */
    if (aq_link_listen(pair->net[0], pair->address, &pair->listener, NULL) != AQ_OK) return;
    pair->accepted = aq_link_accept(pair->listener, &pair->config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair->link[0]);
}

/* Says a few times that the wait is of use. */
static enum aq_status until_asked(void *context)
{
    uint32_t *times = context;
    return *times > 0 && --*times > 0 ? AQ_AGAIN : AQ_ABORTED;
}

/* Who waits for a peer that will not come need not wait to the deadline, and may come again. */
static void test_waits_that_nobody_needs_end(void **state)
{
    struct link_pair pair = {0};
    uint32_t times;
    (void)state;
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    for (int i = 0; i < 2; i++) {
        pair.config[i].meanwhile = until_asked;
        pair.config[i].context = &times;
    }
    const uint64_t deadline = PAIR_SECONDS(PAIR_PATIENCE);
    times = 3;
    assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], deadline, &pair.link[0]), AQ_ABORTED);
    times = 3; /* the listener does not answer */
    assert_int_equal(aq_link_connect(pair.net[1], pair.address, &pair.config[1], deadline, &pair.link[1]), AQ_ABORTED);
    aq_listener_close(pair.listener);
    times = 3; /* nobody listens */
    assert_int_equal(aq_link_connect(pair.net[1], pair.address, &pair.config[1], deadline, &pair.link[1]), AQ_ABORTED);
    times = UINT32_MAX;
    struct aq_thread *thread;
    pair.accepted = AQ_INVAL;
    assert_int_equal(aq_thread_open("listener", late_listen_run, &pair, &thread), AQ_OK);
    pair.config[1].meanwhile = NULL;
    pair_connect_run(&pair);
    aq_thread_close(thread);
    assert_int_equal(pair.accepted, AQ_OK);
    assert_int_equal(pair.connected, AQ_OK);
    pair_exchange(&pair, 8, PAIR_PATIENCE);
    pair_close(&pair);
}

static void test_connect_before_listen_tries_again(void **state)
{
    struct link_pair pair = {.accepted = AQ_INVAL};
    struct aq_thread *thread;
    (void)state;
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    aq_listener_close(pair.listener); /* leaves a port that is free */
    assert_int_equal(aq_thread_open("listener", late_listen_run, &pair, &thread), AQ_OK);
    pair_connect_run(&pair);
    aq_thread_close(thread);
    assert_int_equal(pair.accepted, AQ_OK);
    assert_int_equal(pair.connected, AQ_OK);
    pair_exchange(&pair, 8, PAIR_PATIENCE);
    pair_close(&pair);
}

/* ---- strangers ---- */

static int stranger(const struct link_pair *pair, const void *bytes, size_t count)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *colon = strrchr(pair->address, ':');
    to.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_not_equal(fd, -1);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    return fd;
}

/* A browser, a port scan that says nothing, and more of them, all before the real peer: it gets in all the same, beside
 * them. Floods are test_hostile's. */
static void test_accept_strangers_are_refused_and_the_peer_gets_in(void **state)
{
    enum { STRANGERS = 40 };
    static const char GET[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    struct link_pair pair = {0};
    int fds[STRANGERS];
    (void)state;
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    fds[0] = stranger(&pair, GET, sizeof GET - 1);
    fds[1] = stranger(&pair, "AQ", 2);
    for (int i = 2; i < STRANGERS; i++)
        fds[i] = stranger(&pair, "", 0);
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.accepted, AQ_OK);
    assert_int_equal(pair.connected, AQ_OK);
    assert_true(logged("another protocol: its first bytes are \"GET / HTTP/1.1..\""));
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    pair_close(&pair);
}

static void test_listen_port_in_use_names_the_address(void **state)
{
    struct link_pair pair = {0};
    struct aq_listener *second;
    (void)state;
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    assert_int_equal(aq_link_listen(pair.net[1], pair.address, &second, NULL), AQ_REFUSED);
    assert_non_null(strstr(aq_error_text(), pair.address));
    assert_non_null(strstr(aq_error_text(), "another process has this port"));
    pair_close(&pair);
}

static void test_address_malformed_is_inval(void **state)
{
    static const char *const BAD[] = {"",
                                      "localhost:1",
                                      "tcp://",
                                      "tcp://host",
                                      "tcp://host:",
                                      "tcp://host:66000",
                                      "tcp://host:12x",
                                      "tcp://:5",
                                      "udp://host:5",
                                      "magic+tcp://host:5",
                                      "sim://",
                                      "tcp://[::1:5",
                                      "tcp://[::1]x:5",
                                      "sim://a?rate_mbps=fast",
                                      "fault+sim://a?seed=-1"};
    struct link_pair pair = {0};
    struct aq_listener *listener;
    (void)state;
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "sim", "");
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        const char *text = BAD[i];
        if (strncmp(text, "fault", 5) == 0 || strchr(text, '?')) continue;
        assert_int_equal(aq_link_listen(pair.net[0], text, &listener, NULL), AQ_INVAL);
        assert_int_equal(aq_link_connect(pair.net[1], text, &pair.config[1], PAIR_SECONDS(1), &pair.link[1]), AQ_INVAL);
    }
    assert_int_equal(aq_link_listen(pair.net[0], "sim://a?rate_mbps=fast", &listener, NULL), AQ_INVAL);
    char bad_seed[PAIR_ADDRESS_BYTES + 16];
    snprintf(bad_seed, sizeof bad_seed, "fault+%s?seed=-1", pair.address);
    assert_int_equal(aq_link_connect(pair.net[1], bad_seed, &pair.config[1], PAIR_SECONDS(1), &pair.link[1]), AQ_INVAL);
    pair_close(&pair);
}

/* ---- broken bytes, silence, death ---- */

/* The connector sends bodies of 5000 bytes through a fault; both ends must end, one of them with the wanted status. */
static void broken(const char *scheme, const char *query, enum aq_status wanted, const char *text)
{
    enum { BYTES = 5000 };
    static uint8_t body[BYTES];
    struct link_pair pair = {0};
    struct aq_link_event event;
    pair_config(&pair);
    pair.config[0].silence_ns_max = wanted == AQ_TIMEOUT ? 300000000 : 0;
    pair.config[0].heartbeat_ns = pair.config[1].heartbeat_ns = 0; /* a PING or PONG would move the places */
    pair_open(&pair, scheme, query);
    for (uint32_t n = 0; n < 6; n++) {
        const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .step = n, .body_bytes = BYTES, .body = body};
        if (aq_link_send(pair.link[1], &frame, n) != AQ_OK) break; /* the other end has found the fault already */
    }
    uint32_t received = 0;
    while ((event = pair_event(&pair, 0, PAIR_PATIENCE)).kind == AQ_LINK_RECEIVED) {
        assert_int_equal(event.frame.step, received++);
        assert_memory_equal(event.frame.body, body, BYTES);
        aq_link_release(pair.link[0], event.frame.body);
    }
    assert_int_equal(event.kind, AQ_LINK_CLOSED);
    assert_int_equal(event.status, wanted);
    assert_non_null(strstr(event.text, text));
    assert_true(received < 6);
    const struct aq_frame late = {.kind = AQ_FRAME_FORWARD};
    assert_int_equal(aq_link_send(pair.link[0], &late, 0), wanted);
    assert_int_equal(aq_link_finish(pair.link[0], PAIR_SECONDS(1)), wanted);
    pair_close(&pair);
}

/* HELLO is 224 bytes and its confirmation 128: frame n begins at 352 + n * 5128. */
static void test_body_bit_flipped_is_corrupt(void **state)
{
    (void)state;
    broken("fault+tcp", "flip_after=9000", AQ_CORRUPT, "a FORWARD of 5000 bytes arrived broken");
    broken("fault+sim", "flip_after=9000", AQ_CORRUPT, "a FORWARD of 5000 bytes arrived broken");
}
static void test_header_bit_flipped_is_corrupt(void **state)
{
    (void)state;
    broken("fault+tcp", "flip_after=5500", AQ_CORRUPT, "a header arrived broken");
}
static void test_header_magic_flipped_is_proto(void **state)
{
    (void)state;
    broken("fault+tcp", "flip_after=5481", AQ_PROTO, "another protocol");
}
static void test_header_version_flipped_is_corrupt(void **state)
{
    (void)state;
    broken("fault+tcp", "flip_after=5484", AQ_CORRUPT, "of another version than its HELLO");
    broken("fault+tcp", "flip_after=5485", AQ_CORRUPT, "of another version than its HELLO");
}
static void test_stream_cut_is_io(void **state)
{
    (void)state;
    broken("fault+tcp", "cut_after=9000", AQ_IO, "without a BYE");
    broken("fault+sim", "cut_after=9000&split=100", AQ_IO, "without a BYE");
}
static void test_half_open_connection_is_timeout(void **state)
{
    (void)state;
    broken("fault+tcp", "stall_after=9000", AQ_TIMEOUT, "nothing arrived for ");
    broken("fault+sim", "stall_after=9000", AQ_TIMEOUT, "nothing arrived for ");
}

/* Random loss and flips, many seeds: whatever happens, no wrong byte is ever handed out, and both ends end or go on. */
static void test_random_faults_never_deliver_wrong_bytes(void **state)
{
    enum { BYTES = 3000, FRAMES = 6 };
    static uint8_t body[BYTES];
    (void)state;
    for (unsigned seed = 0; seed < 40; seed++) {
        pair_fill(body, BYTES, 0, seed % 3); /* two of three are packed on the way */
        struct link_pair pair = {0};
        struct aq_link_event event;
        char query[64];
        snprintf(query, sizeof query, "seed=%u&flip=0.02&drop=0.02&split=1500", seed);
        pair_config(&pair);
        pair.config[0].silence_ns_max = 200000000;
        pair.config[0].entropy = pair.config[1].entropy = AQ_LINK_ENTROPY_ZSTD;
        pair.config[0].heartbeat_ns = pair.config[1].heartbeat_ns = 50000000;
        pair_nets(&pair);
        pair_listen(&pair, "fault+sim", query);
        pair.connect_seconds = 0.3;
        pair_meet(&pair, 0.2); /* a fault may hit the handshake: both must say so in time */
        if (pair.accepted == AQ_OK && pair.connected == AQ_OK) {
            for (uint32_t n = 0; n < FRAMES; n++) {
                const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .step = n, .body_bytes = BYTES, .body = body};
                const enum aq_status status = aq_link_send(pair.link[1], &frame, n);
                if (status != AQ_OK) break;
            }
            for (uint32_t received = 0; received < FRAMES; received++) {
                event = pair_event(&pair, 0, PAIR_PATIENCE);
                if (event.kind == AQ_LINK_CLOSED) break;
                assert_int_equal(event.frame.step, received);
                assert_memory_equal(event.frame.body, body, BYTES);
                aq_link_release(pair.link[0], event.frame.body);
            }
        }
        pair_close(&pair);
    }
}

static void child_sends(uint16_t port)
{
    static uint8_t body[60000];
    struct link_pair pair = {0};
    pair_config(&pair);
    pair_nets(&pair);
    snprintf(pair.address, sizeof pair.address, "tcp://127.0.0.1:%u", port);
    pair_connect_run(&pair);
    for (uint32_t n = 0; pair.connected == AQ_OK; n++) {
        const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .step = n, .body_bytes = sizeof body, .body = body};
        struct aq_link_event event;
        const uint32_t seen = aq_eventcount_read(pair.eventcount);
        while (aq_link_poll(pair.link[1], &event) == AQ_OK)
            if (event.kind == AQ_LINK_CLOSED) _exit(1);
        if (aq_link_send(pair.link[1], &frame, n) == AQ_AGAIN)
            (void)aq_eventcount_wait(pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE));
    }
    _exit(2);
}

static void test_peer_killed_is_io(void **state)
{
    struct link_pair pair = {0};
    struct aq_link_event event;
    int port_pipe[2];
    uint16_t port = 0;
    (void)state;
    assert_int_equal(pipe(port_pipe), 0);
    const pid_t child = fork(); /* before any thread of ours */
    assert_int_not_equal(child, -1);
    if (child == 0) {
        if (read(port_pipe[0], &port, sizeof port) == sizeof port) child_sends(port);
        _exit(3);
    }
    pair_config(&pair);
    pair.config[0].silence_ns_max = 0; /* the system tells, at once */
    pair_nets(&pair);
    assert_int_equal(aq_link_listen(pair.net[0], "tcp://127.0.0.1:0", &pair.listener, &port), AQ_OK);
    assert_int_equal(write(port_pipe[1], &port, sizeof port), sizeof port);
    assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair.link[0]), AQ_OK);
    bool killed = false;
    for (uint32_t received = 0;; received++) {
        event = pair_event(&pair, 0, PAIR_PATIENCE);
        if (event.kind == AQ_LINK_CLOSED) break;
        aq_link_release(pair.link[0], event.frame.body);
        if (received != 10) continue;
        killed = true;
        assert_int_equal(kill(child, SIGKILL), 0);
    }
    assert_int_equal(event.status, AQ_IO);
    assert_true(killed);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(port_pipe[0]);
    close(port_pipe[1]);
    pair_close(&pair);
}

/* ---- limits and waits ---- */

static void test_send_body_too_large_for_either_end_is_inval(void **state)
{
    static uint8_t body[70001];
    struct link_pair pair = {0};
    (void)state;
    pair_config(&pair);
    pair.config[0].body_bytes_max = 1000;
    pair_open(&pair, "sim", "");
    struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = 70001, .body = body};
    assert_int_equal(aq_link_send(pair.link[1], &frame, 0), AQ_INVAL);
    frame.body_bytes = 1001;
    assert_int_equal(aq_link_send(pair.link[1], &frame, 0), AQ_INVAL);
    frame.body_bytes = 1000;
    assert_int_equal(aq_link_send(pair.link[1], &frame, 5), AQ_OK);
    assert_int_equal(pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.body_bytes, 1000);
    frame.kind = AQ_FRAME_BYE;
    assert_int_equal(aq_link_send(pair.link[1], &frame, 0), AQ_INVAL);
    pair_close(&pair);
}

struct lent {
    const uint8_t *base;
    size_t bytes;
};

static enum aq_status lent_take(void *context, size_t bytes, void **out)
{
    struct lent *lent = context;
    AQ_TRY(aq_map(bytes, out));
    *lent = (struct lent){.base = *out, .bytes = bytes};
    return AQ_OK;
}

static void lent_give(void *context, void *memory, size_t bytes)
{
    struct lent *lent = context;
    aq_unmap(memory, bytes);
    *lent = (struct lent){0};
}

/* What a device copies from lies where the config says, and goes back there. */
static void test_received_body_lies_in_the_pages_of_the_config(void **state)
{
    static const uint8_t body[1000] = {1, 2, 3};
    struct link_pair pair = {0};
    struct lent lent = {0};
    (void)state;
    pair_config(&pair);
    pair.config[0].pages = (struct aq_pages){.take = lent_take, .give = lent_give, .context = &lent};
    pair_open(&pair, "tcp", "");
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = sizeof body, .body = body};
    assert_int_equal(aq_link_send(pair.link[1], &frame, 0), AQ_OK);
    const uint8_t *at = pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.body;
    assert_true(at >= lent.base && at + sizeof body <= lent.base + lent.bytes);
    assert_memory_equal(at, body, sizeof body);
    pair_close(&pair);
    assert_null(lent.base);
}

/* More empty frames than there are records: the loop stops reading, and nothing is lost when the caller polls again. */
static void test_empty_frames_caller_sleeps_nothing_is_lost(void **state)
{
    enum { FRAMES = 2000 };
    static const char *const SCHEMES[] = {"tcp", "sim"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct link_pair pair = {0};
        struct aq_link_event event;
        uint32_t sent = 0, received = 0;
        pair_config(&pair);
        pair_open(&pair, SCHEMES[i], "");
        const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
        while (received < FRAMES) {
            const uint32_t seen = aq_eventcount_read(pair.eventcount);
            while (aq_link_poll(pair.link[1], &event) == AQ_OK)
                assert_int_equal(event.kind, AQ_LINK_SENT);
            const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .step = sent};
            if (sent < FRAMES && aq_link_send(pair.link[1], &frame, 0) == AQ_OK) {
                sent++;
                continue;
            }
            /* Polls only when the sender is stuck, and then a few. */
            for (int k = 0; k < 10 && aq_link_poll(pair.link[0], &event) == AQ_OK; k++)
                assert_int_equal(event.frame.step, received++);
            if (received < FRAMES && aq_eventcount_read(pair.eventcount) == seen)
                (void)aq_eventcount_wait(pair.eventcount, seen, aq_clock_after(20000000));
            assert_true(aq_clock_ns() < deadline_ns);
        }
        pair_close(&pair);
    }
}

/*
 * Two links of one pair of nets: one carries large bodies without a pause, the other small questions and answers. The
 * small ones must get their turns: a round trip takes no longer than a few chunks of the other link, not the whole
 * flow.
 */
static void test_small_frames_beside_large_ones_get_their_turn(void **state)
{
    enum { LARGE = 4 << 20, ROUNDS = 20 };
    struct link_pair pair = {0}, side = {0};
    struct aq_link_event event;
    void *body;
    uint32_t large_received = 0, rounds = 0, in_flight = 0;
    (void)state;
    assert_int_equal(aq_alloc(LARGE, &body), AQ_OK);
    pair_config(&pair);
    pair.config[0].body_bytes_max = pair.config[1].body_bytes_max = LARGE;
    pair_open(&pair, "tcp", "");
    side = pair; /* the same nets and listener, another link */
    pair_config(&side);
    side.config[0].edge = side.config[1].edge = 4;
    pair_meet(&side, PAIR_PATIENCE);
    assert_int_equal(side.accepted, AQ_OK);
    assert_int_equal(side.connected, AQ_OK);
    const struct aq_frame large = {.kind = AQ_FRAME_FORWARD, .body_bytes = LARGE, .body = body};
    const struct aq_frame small = {.kind = AQ_FRAME_CONTROL};
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    assert_int_equal(aq_link_send(side.link[1], &small, 0), AQ_OK);
    while (rounds < ROUNDS) {
        const uint32_t seen = aq_eventcount_read(pair.eventcount);
        while (aq_link_poll(pair.link[0], &event) == AQ_OK) {
            assert_int_equal(event.kind, AQ_LINK_RECEIVED);
            aq_link_release(pair.link[0], event.frame.body);
            large_received++;
        }
        while (aq_link_poll(pair.link[1], &event) == AQ_OK)
            in_flight -= event.kind == AQ_LINK_SENT;
        for (; in_flight < pair.config[1].send_frames; in_flight++)
            assert_int_equal(aq_link_send(pair.link[1], &large, 0), AQ_OK);
        for (int end = 0; end < 2; end++)
            while (aq_link_poll(side.link[end], &event) == AQ_OK) {
                if (event.kind == AQ_LINK_SENT) continue;
                assert_int_equal(event.kind, AQ_LINK_RECEIVED);
                rounds += end == 1;
                assert_int_equal(aq_link_send(side.link[end], &small, 0), AQ_OK);
            }
        (void)aq_eventcount_wait(pair.eventcount, seen, deadline_ns);
        assert_true(aq_clock_ns() < deadline_ns);
    }
    /* Both flow at once. Were the large flow served first, it would never let a small frame through. */
    assert_true(large_received < 100 * ROUNDS);
    pair_close(&pair);
    aq_free(body);
}

/* A link lives twice as long as its silence by heartbeats alone. False: it did not, or the machine was elsewhere. */
static bool lives_by_heartbeats(void)
{
    struct link_pair pair = {0};
    struct aq_link_stats stats = {0};
    pair_config(&pair);
    for (int i = 0; i < 2; i++) {
        pair.config[i].heartbeat_ns = 10000000;
        pair.config[i].silence_ns_max = 400000000;
    }
    pair_open(&pair, "sim", "latency_ms=4");
    const uint32_t seen = aq_eventcount_read(pair.eventcount);
    (void)aq_eventcount_wait(pair.eventcount, seen, PAIR_SECONDS(0.8));
    struct aq_link_event event;
    const bool alive = aq_link_poll(pair.link[0], &event) == AQ_AGAIN;
    aq_link_stats(pair.link[0], &stats);
    assert_int_equal(stats.path_ns, 8000000);
    if (alive && stats.round_trip_ns > 0) assert_true(stats.round_trip_ns >= 8000000); /* 0: no answer yet */
    pair_close(&pair);
    return alive && stats.round_trip_ns > 0 && stats.round_trip_ns < 200000000;
}

static void test_heartbeat_measures_the_round_trip(void **state)
{
    bool lives = false;
    (void)state;
    for (int i = 0; i < 20 && !lives; i++)
        lives = lives_by_heartbeats();
    assert_true(lives);
}

/* Small packets are asked for by who connects and hold both ways; what TCP counts is told where it is asked. */
static void test_path_of_small_packets_is_counted(void **state)
{
    struct link_pair pair = {0};
    static uint8_t body[70000];
    (void)state;
    pair_config(&pair);
    for (int i = 0; i < 2; i++)
        pair.config[i].path_every_ns = 1;
    pair_open(&pair, "tcp", "segment=1000");
    for (int side = 0; side < 2; side++) {
        struct aq_link_stats stats;
        const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = sizeof body, .body = body};
        assert_int_equal(aq_link_send(pair.link[side], &frame, 0), AQ_OK);
        const struct aq_link_event event = pair_event_of(&pair, !side, AQ_LINK_RECEIVED, PAIR_PATIENCE);
        aq_link_release(pair.link[!side], event.frame.body);
        const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
        do /* it is asked in the loop's next turn: a frame each makes one */
            aq_link_stats(pair.link[side], &stats);
        while (stats.path_bytes < sizeof body && aq_clock_ns() < deadline_ns &&
               aq_link_send(pair.link[side], &(struct aq_frame){.kind = AQ_FRAME_CONTROL}, 0) != AQ_INVAL &&
               aq_eventcount_wait(pair.eventcount, aq_eventcount_read(pair.eventcount), aq_clock_after(1000000)) !=
                   AQ_INVAL);
        assert_true(stats.segment_bytes > 900 && stats.segment_bytes <= 1000);
        assert_true(stats.path_bytes >= sizeof body && stats.delivered_bytes > 0 && stats.path_asked_ns > 0);
        assert_true(stats.delivered_bytes <= stats.path_bytes);
        assert_true(stats.streams == 1 && stats.congestion[0] != '\0');
    }
    pair_close(&pair);
}

static void test_finish_peer_does_not_answer_times_out(void **state)
{
    struct link_pair pair = {0};
    (void)state;
    pair_config(&pair);
    pair_open(&pair, "fault+sim", "stall_after=400");
    const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL};
    assert_int_equal(aq_link_send(pair.link[1], &frame, 0), AQ_OK);
    assert_int_equal(aq_link_finish(pair.link[1], PAIR_SECONDS(0.1)), AQ_TIMEOUT);
    pair_close(&pair);
}

/* Whoever has to free what was lent first: a halted link sends none of it, and takes back what it gave. */
static void test_halted_link_leaves_lent_bodies_alone(void **state)
{
    struct link_pair pair = {0};
    struct aq_link_stats halted, later;
    static uint8_t body[70000];
    (void)state;
    pair_config(&pair);
    pair_open(&pair, "sim", "rate_mbps=1"); /* half a second a body */
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = sizeof body, .body = body};
    assert_int_equal(aq_link_send(pair.link[1], &frame, 0), AQ_OK);
    const struct aq_link_event event = pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE);
    for (uint64_t n = 1; n < 4; n++)
        assert_int_equal(aq_link_send(pair.link[1], &frame, n), AQ_OK);
    aq_link_halt(pair.link[1]);
    aq_link_halt(pair.link[1]);
    aq_link_stats(pair.link[1], &halted);
    aq_link_release(pair.link[0], event.frame.body);
    aq_link_halt(pair.link[0]);
    const struct timespec while_it_might_go_on = {.tv_nsec = 50000000};
    nanosleep(&while_it_might_go_on, NULL);
    aq_link_stats(pair.link[1], &later);
    assert_memory_equal(&halted, &later, sizeof later);
    assert_true(later.sent_body_bytes < 4 * sizeof body);
    pair_close(&pair);
    aq_link_halt(NULL);
}

static void test_rate_sim_is_kept(void **state)
{
    struct link_pair pair = {0};
    static uint8_t body[70000];
    (void)state;
    pair_config(&pair);
    for (int i = 0; i < 2; i++)
        pair.config[i].copies = AQ_LINK_COPIES_OFF; /* one connection: each has the rate */
    pair_open(&pair, "sim", "rate_mbps=20&latency_ms=3");
    const uint64_t begin = aq_clock_ns();
    for (uint32_t n = 0; n < 6; n++) {
        const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = sizeof body, .body = body};
        assert_int_equal(aq_link_send(pair.link[1], &frame, n), AQ_OK);
    }
    for (uint32_t n = 0; n < 6; n++)
        aq_link_release(pair.link[0], pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.body);
    /* 6 bodies at 20 Mbit/s take 168 ms; no upper bound, for a test machine may be busy. */
    assert_true(aq_clock_ns() - begin >= 168000000u);
    pair_close(&pair);
}

/* The n-th allocation of opening a net and a listener fails, n = 1, 2, ... until none does: the right status, no
 * leak. */
static void test_open_memory_runs_out_anywhere_is_nomem(void **state)
{
    enum aq_status status = AQ_NOMEM;
    (void)state;
    const uint64_t used = aq_memory_used();
    for (uint64_t n = 1; status != AQ_OK; n++) {
        struct aq_net *net = NULL;
        struct aq_listener *listener = NULL;
        const struct aq_net_config config = {.links_max = 2};
        aq_memory_fail_at(n);
        status = aq_net_open(&config, &net);
        if (status == AQ_OK) status = aq_link_listen(net, "sim://nomem", &listener, NULL);
        aq_memory_fail_at(0);
        assert_true(status == AQ_OK || status == AQ_NOMEM);
        aq_net_close(net);
        assert_int_equal(aq_memory_used(), used);
        assert_true(n < 100);
    }
}

static void test_connect_memory_runs_out_anywhere_is_nomem(void **state)
{
    enum aq_status status = AQ_NOMEM;
    struct link_pair pair = {0};
    (void)state;
    pair_config(&pair);
    pair_nets(&pair);
    pair_listen(&pair, "fault+sim", "");
    for (uint64_t n = 1; status == AQ_NOMEM; n++) {
        aq_memory_fail_at(n);
        status = aq_link_connect(pair.net[1], pair.address, &pair.config[1], PAIR_SECONDS(0.03), &pair.link[1]);
        aq_memory_fail_at(0);
        assert_true(n < 100);
    }
    assert_int_equal(status, AQ_TIMEOUT); /* nobody accepts, and by now nothing failed */
    pair_close(&pair);
}

/* One end cannot have the memory of its link: it says so, the other sees the connection end, both close. Where the
 * machine was so busy that neither came so far, it is tried again. */
static void test_accept_memory_runs_out_is_nomem(void **state)
{
    bool over = false;
    (void)state;
    for (uint64_t n = 1, tries = 0; n <= 4; n += over, tries++) {
        struct link_pair pair = {.connect_seconds = 0.5};
        pair_config(&pair);
        pair.config[0].body_bytes_max = 1 << 20;
        pair.config[0].entropy = pair.config[1].entropy = AQ_LINK_ENTROPY_ZSTD; /* the coder's memory, too */
        pair_nets(&pair);
        pair_listen(&pair, "tcp", "");
        pair.config[1].receive_slots = 0;
        pair.config[0].receive_slots = 64;
        aq_memory_fail_at(n + 2); /* 2: the connector's thread and stream; then whichever end comes first */
        pair_meet(&pair, 0.5);
        aq_memory_fail_at(0);
        over = pair.accepted == AQ_NOMEM || pair.connected == AQ_NOMEM;
        assert_true(over || (pair.accepted == AQ_TIMEOUT && tries < 20));
        pair_close(&pair);
    }
}

static void test_measure_is_what_opening_takes(void **state)
{
    struct link_pair pair = {0};
    (void)state;
    pair_config(&pair);
    pair.config[0].entropy = pair.config[1].entropy = AQ_LINK_ENTROPY_AUTO;
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    const uint64_t before = aq_memory_used();
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.accepted, AQ_OK);
    const uint64_t taken = aq_memory_used() - before;
    const uint64_t planned = aq_link_measure(&pair.config[0]) + aq_link_measure(&pair.config[1]);
    assert_true(taken >= planned);
    assert_true(taken < planned + planned / 20);
    pair_close(&pair);
}

#define TEST(name) cmocka_unit_test_setup(name, clear_log)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_handshake_other_job_refused_with_both),
        TEST(test_handshake_other_plan_refused_with_both),
        TEST(test_handshake_wrong_address_refused_with_both),
        TEST(test_accept_other_order_keeps_the_early_peer),
        TEST(test_waits_that_nobody_needs_end),
        TEST(test_connect_before_listen_tries_again),
        TEST(test_accept_strangers_are_refused_and_the_peer_gets_in),
        TEST(test_listen_port_in_use_names_the_address),
        TEST(test_address_malformed_is_inval),
        TEST(test_body_bit_flipped_is_corrupt),
        TEST(test_header_bit_flipped_is_corrupt),
        TEST(test_header_magic_flipped_is_proto),
        TEST(test_header_version_flipped_is_corrupt),
        TEST(test_stream_cut_is_io),
        TEST(test_half_open_connection_is_timeout),
        TEST(test_random_faults_never_deliver_wrong_bytes),
        TEST(test_peer_killed_is_io),
        TEST(test_send_body_too_large_for_either_end_is_inval),
        TEST(test_received_body_lies_in_the_pages_of_the_config),
        TEST(test_empty_frames_caller_sleeps_nothing_is_lost),
        TEST(test_small_frames_beside_large_ones_get_their_turn),
        TEST(test_path_of_small_packets_is_counted),
        TEST(test_heartbeat_measures_the_round_trip),
        TEST(test_finish_peer_does_not_answer_times_out),
        TEST(test_halted_link_leaves_lent_bodies_alone),
        TEST(test_rate_sim_is_kept),
        TEST(test_open_memory_runs_out_anywhere_is_nomem),
        TEST(test_connect_memory_runs_out_anywhere_is_nomem),
        TEST(test_accept_memory_runs_out_is_nomem),
        TEST(test_measure_is_what_opening_takes),
    };
    aq_log_sink(keep_line, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
