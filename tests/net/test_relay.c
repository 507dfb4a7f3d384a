/*
 * test_relay.c -- a relay and those that lie to it, and a link and relays that lie to it.
 *
 * Clients are bytes on sockets: whatever they say costs the relay a bounded place, and no other room anything. Relays
 * that lie are a thread which joins two ends and then changes, drops, repeats or swaps what they send: under TLS a link
 * ends, or is not made, with a status; no frame arrives that was not sent.
 */
#include "link_pair.h"
#include "relay_kit.h"
#include "tls_keys.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "relay_words.h"

static char folder[KEYS_PATH_BYTES];
static struct aq_tls *identities[2];

/* ---- clients that are bytes ---- */

static int dial(uint16_t port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(port)};
    const struct timeval patience = {.tv_sec = PAIR_PATIENCE};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    return fd;
}

static int enter(uint16_t port, enum aq_relay_role role, uint8_t room)
{
    uint8_t name[AQ_RELAY_ROOM_BYTES] = {room}, hello[AQ_RELAY_HELLO_BYTES];
    const int fd = dial(port);
    aq_relay_hello_write(role, name, hello);
    assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    return fd;
}

/* 0: it was closed. */
static enum aq_relay_word hear_word(int fd)
{
    uint8_t bytes[AQ_RELAY_WORD_BYTES];
    enum aq_relay_word word = 0;
    const ssize_t got = recv(fd, bytes, sizeof bytes, MSG_WAITALL);
    assert_true(got != -1 || errno != EAGAIN); /* it neither speaks nor hangs up */
    if (got != (ssize_t)sizeof bytes) return 0;
    assert_true(aq_relay_word_read(bytes, &word));
    return word;
}

static bool is_closed(int fd)
{
    uint8_t byte;
    const ssize_t got = recv(fd, &byte, 1, 0);
    assert_true(got != -1 || errno != EAGAIN);
    return got <= 0;
}

static void join(uint16_t port, uint8_t room, int pair[2])
{
    pair[0] = enter(port, AQ_RELAY_WAITS, room);
    assert_int_equal(hear_word(pair[0]), AQ_RELAY_WAITING);
    pair[1] = enter(port, AQ_RELAY_CALLS, room);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hear_word(pair[i]), AQ_RELAY_JOINED);
}

static void close_pair(const int pair[2])
{
    close(pair[0]);
    close(pair[1]);
}

/* Bytes both ways, and the end of one direction while the other goes on. */
static void assert_carries(const int pair[2])
{
    static uint8_t out[300000], in[sizeof out];
    for (int way = 0; way < 2; way++) {
        size_t sent = 0, got = 0;
        for (size_t i = 0; i < sizeof out; i++)
            out[i] = (uint8_t)(i * 31 + (i >> 9) + (size_t)way);
        while (got < sizeof in) {
            if (sent < sizeof out) {
                const ssize_t put =
                    send(pair[way], out + sent, sizeof out - sent < 5000 ? sizeof out - sent : 5000, MSG_NOSIGNAL);
                assert_true(put > 0);
                sent += (size_t)put;
            }
            const ssize_t n = recv(pair[!way], in + got, sizeof in - got, sent < sizeof out ? MSG_DONTWAIT : 0);
            if (n == -1) continue;
            assert_true(n > 0);
            got += (size_t)n;
        }
        assert_memory_equal(in, out, sizeof in);
    }
}

static void test_two_meet_and_others_do_not(void **state)
{
    struct relay_kit kit;
    struct aq_relay_stats stats;
    int one[2], two[2];
    (void)state;
    relay_kit_open(&kit, 0, 0, 64);
    const int alone = enter(kit.port, AQ_RELAY_CALLS, 3); /* nobody waits there */
    join(kit.port, 1, one);
    join(kit.port, 2, two);
    assert_carries(one);
    assert_carries(two);
    assert_int_equal(shutdown(one[0], SHUT_WR), 0);
    assert_true(is_closed(one[1])); /* the end of one direction */
    assert_int_equal(send(one[1], "more", 4, MSG_NOSIGNAL), 4);
    char more[4];
    assert_int_equal(recv(one[0], more, sizeof more, MSG_WAITALL), 4);
    close_pair(one);
    assert_carries(two);
    assert_int_equal(hear_word(alone), AQ_RELAY_NOBODY); /* after 5 s */
    assert_true(is_closed(alone));
    close(alone);
    close_pair(two);
    relay_kit_close(&kit, &stats);
    assert_int_equal(stats.bytes, 3 * 2 * 300000 + 4);
}

/* The one that waits longest may be gone without a word. */
static void test_the_newest_that_waits_is_called_first(void **state)
{
    struct relay_kit kit;
    int waits[2], calls[2];
    (void)state;
    relay_kit_open(&kit, 0, 0, 64);
    for (int i = 0; i < 2; i++) {
        waits[i] = enter(kit.port, AQ_RELAY_WAITS, 1);
        assert_int_equal(hear_word(waits[i]), AQ_RELAY_WAITING);
    }
    for (int i = 0; i < 2; i++) {
        calls[i] = enter(kit.port, AQ_RELAY_CALLS, 1);
        assert_int_equal(hear_word(calls[i]), AQ_RELAY_JOINED);
        assert_int_equal(hear_word(waits[1 - i]), AQ_RELAY_JOINED);
        const int pair[2] = {waits[1 - i], calls[i]};
        assert_carries(pair);
    }
    close_pair(waits);
    close_pair(calls);
    relay_kit_close(&kit, NULL);
}

/* Lies, each closed by itself; the pair beside them carries on. */
static void test_lies_disturb_no_other_room(void **state)
{
    static const char PAGE[] = "GET / HTTP/1.1\r\n\r\n";
    struct relay_kit kit;
    struct aq_relay_stats stats;
    int pair[2], liars[24];
    (void)state;
    relay_kit_open(&kit, 0, 0, 128);
    join(kit.port, 1, pair);
    for (int lie = 0; lie < 5; lie++) {
        uint8_t hello[AQ_RELAY_HELLO_BYTES + 1], name[AQ_RELAY_ROOM_BYTES] = {1};
        aq_relay_hello_write(AQ_RELAY_CALLS, name, hello);
        const int fd = dial(kit.port);
        if (lie == 1) hello[8] = 3;
        if (lie == 2) hello[15] = 1;
        if (lie == 3) hello[7] = '2';
        const void *bytes = lie == 0 ? (const void *)PAGE : hello;
        const size_t count = lie == 0 ? sizeof PAGE - 1 : lie == 4 ? 0 : AQ_RELAY_HELLO_BYTES;
        assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
        if (lie == 4) assert_int_equal(shutdown(fd, SHUT_WR), 0);
        assert_int_equal(hear_word(fd), 0);
        close(fd);
    }
    const int early = enter(kit.port, AQ_RELAY_WAITS, 9);
    assert_int_equal(hear_word(early), AQ_RELAY_WAITING);
    assert_int_equal(send(early, "x", 1, MSG_NOSIGNAL), 1); /* before it is joined */
    assert_int_equal(hear_word(early), 0);
    close(early);
    int full = 0;
    for (int i = 0; i < 24; i++) { /* more than may wait in a room */
        liars[i] = enter(kit.port, AQ_RELAY_WAITS, 7);
        const enum aq_relay_word word = hear_word(liars[i]);
        assert_true(word == AQ_RELAY_WAITING || word == AQ_RELAY_FULL);
        full += word == AQ_RELAY_FULL;
    }
    assert_int_equal(full, 24 - 16);
    assert_carries(pair);
    int late[2];
    join(kit.port, 8, late);
    assert_carries(late);
    for (int i = 0; i < 24; i++)
        close(liars[i]);
    close_pair(late);
    close_pair(pair);
    relay_kit_close(&kit, &stats);
    assert_true(stats.refused >= 5 + 8);
}

/* One address has half of the places, whatever it opens. */
static void test_a_flood_is_bounded(void **state)
{
    enum { FLOOD = 40, PLACES = 16 };
    struct relay_kit kit;
    struct aq_relay_stats stats;
    int pair[2], flood[FLOOD];
    (void)state;
    relay_kit_open(&kit, 0, 0, PLACES);
    join(kit.port, 1, pair);
    const uint64_t used = aq_memory_used();
    for (int i = 0; i < FLOOD; i++)
        flood[i] = dial(kit.port);
    assert_carries(pair);
    assert_int_equal(aq_memory_used(), used);
    for (int i = 0; i < FLOOD; i++)
        close(flood[i]);
    close_pair(pair);
    relay_kit_close(&kit, &stats);
    assert_true(stats.refused >= FLOOD - PLACES / 2);
}

/* A room that is full to its rate does not slow another one. */
static void test_a_room_has_its_rate(void **state)
{
    struct relay_kit kit;
    int one[2], two[2];
    uint8_t bytes[65536];
    (void)state;
    relay_kit_open(&kit, 0, 8, 64); /* 1 MB/s, and 256 KiB at once */
    join(kit.port, 1, one);
    const uint64_t since_ns = aq_clock_ns();
    size_t got = 0, sent = 0;
    while (got < 1000000) {
        if (sent < 1000000) {
            const ssize_t put = send(one[0], bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (put > 0) sent += (size_t)put;
        }
        const ssize_t n = recv(one[1], bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0) got += (size_t)n;
        if (n == -1) (void)poll(NULL, 0, 1);
    }
    assert_true(aq_clock_ns() - since_ns > UINT64_C(650000000));
    join(kit.port, 2, two);
    const uint64_t other_ns = aq_clock_ns();
    uint8_t small[100000];
    memset(small, 7, sizeof small);
    assert_int_equal(send(two[0], small, sizeof small, MSG_NOSIGNAL), sizeof small);
    assert_int_equal(recv(two[1], small, sizeof small, MSG_WAITALL), sizeof small);
    assert_true(aq_clock_ns() - other_ns < UINT64_C(30000000000));
    close_pair(one);
    close_pair(two);
    relay_kit_close(&kit, NULL);
}

/* ---- links over a relay that tells the truth ---- */

static void begin(struct link_pair *pair, bool heals)
{
    pair_config(pair);
    memcpy(pair->tls, identities, sizeof identities);
    for (int i = 0; i < 2; i++)
        if (heals) pair->config[i].outage_ns_max = PAIR_PATIENCE * UINT64_C(1000000000);
    pair_nets(pair);
}

static void test_a_link_heals_over_a_relay_that_is_started_again(void **state)
{
    struct relay_kit kit;
    struct link_pair pair = {0};
    struct aq_link_stats stats;
    (void)state;
    relay_kit_open(&kit, 0, 0, 64);
    pair_relay_port = kit.port;
    begin(&pair, true);
    pair_listen(&pair, "tls+relay", "");
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.accepted, AQ_OK);
    assert_int_equal(pair.connected, AQ_OK);
    aq_listener_close(pair.listener);
    pair_exchange(&pair, 20, PAIR_PATIENCE);
    const uint16_t port = kit.port;
    relay_kit_close(&kit, NULL);
    (void)poll(NULL, 0, 300);
    relay_kit_open(&kit, port, 0, 64);
    pair_exchange(&pair, 20, PAIR_PATIENCE);
    aq_link_stats(pair.link[1], &stats);
    assert_true(stats.heals >= 1);
    pair_close(&pair);
    relay_kit_close(&kit, NULL);
}

static void test_no_relay_is_an_error_at_once(void **state)
{
    struct link_pair pair = {0};
    struct aq_listener *listener;
    char address[PAIR_ADDRESS_BYTES];
    (void)state;
    begin(&pair, false);
    snprintf(address, sizeof address, "tls+relay://127.0.0.1:1?room=%032x", 5);
    assert_int_equal(aq_link_listen(pair.net[0], address, &listener, NULL), AQ_REFUSED);
    assert_non_null(strstr(aq_error_text(), "start aqpiped --relay there"));
    assert_null(strstr(aq_error_text(), "room"));
    aq_error_clear();
    snprintf(address, sizeof address, "tls+relay://nowhere.invalid:1?room=%032x", 5);
    assert_int_equal(aq_link_listen(pair.net[0], address, &listener, NULL), AQ_NOTFOUND);
    assert_non_null(strstr(aq_error_text(), "'nowhere.invalid' is not known"));
    aq_error_clear();
    snprintf(address, sizeof address, "tls+relay://127.0.0.1:1?room=%031x", 5);
    assert_int_equal(aq_link_listen(pair.net[0], address, &listener, NULL), AQ_INVAL);
    snprintf(address, sizeof address, "tls+relay://127.0.0.1:1");
    assert_int_equal(aq_link_listen(pair.net[0], address, &listener, NULL), AQ_INVAL);
    aq_error_clear();
    snprintf(address, sizeof address, "tls+relay://127.0.0.1:1?segment=x&room=%032x", 5);
    assert_int_equal(aq_link_listen(pair.net[0], address, &listener, NULL), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "'segment' needs a number"));
    assert_null(strstr(aq_error_text(), "room"));
    pair_close(&pair);
}

/* The name has two addresses, ::1 and 127.0.0.1, and the relay listens at one of them. */
static void test_each_address_of_a_relay_is_tried(void **state)
{
    struct relay_kit kit;
    struct link_pair pair = {0};
    struct aq_listener *listener;
    char address[PAIR_ADDRESS_BYTES];
    (void)state;
    relay_kit_open(&kit, 0, 0, 64);
    begin(&pair, false);
    snprintf(address, sizeof address, "tls+relay://*:%u?room=%032x", kit.port, 5);
    assert_int_equal(aq_link_listen(pair.net[0], address, &listener, NULL), AQ_OK);
    aq_listener_close(listener);
    pair_close(&pair);
    relay_kit_close(&kit, NULL);
}

/* ---- relays that lie ---- */

enum lie {
    JOINS_AT_ONCE,
    CHANGES,
    DROPS,
    REPEATS,
    REORDERS,
    CUTS,
    JOINS_WITH_ITSELF,
    ANSWERS_ITSELF,
    NO_RELAY,
    REPEATS_WORDS
};

struct liar {
    enum lie lie;
    int listener, stop;
    uint16_t port;
    struct aq_thread *thread;
    int waiting[8], count;
    atomic_uint dialled;
};

static bool readable(const struct liar *l, int fd)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = l->stop, .events = POLLIN}};
    return poll(fds, 2, -1) > 0 && !fds[1].revents;
}

static void tell(int fd, enum aq_relay_word word)
{
    uint8_t bytes[AQ_RELAY_WORD_BYTES];
    aq_relay_word_write(word, bytes);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
}

/* Carries until one end has gone, with one lie behind the handshakes. */
static void carry(const struct liar *l, const int pair[2])
{
    uint8_t bytes[4096], kept[4096];
    size_t passed = 0, kept_bytes = 0;
    bool lied = false;
    for (;;) {
        struct pollfd fds[3] = {
            {.fd = pair[0], .events = POLLIN}, {.fd = pair[1], .events = POLLIN}, {.fd = l->stop, .events = POLLIN}};
        if (poll(fds, 3, -1) <= 0 || fds[2].revents) return;
        for (int way = 0; way < 2; way++) {
            if (!fds[way].revents) continue;
            const ssize_t got = recv(pair[way], bytes, sizeof bytes, MSG_DONTWAIT);
            if (got <= 0) return;
            passed += (size_t)got;
            /* A cut comes late enough that a body of the largest size passes. */
            const bool now = !lied && way == 0 && passed > (l->lie == CUTS ? 300000 : 30000);
            lied |= now;
            if (now && l->lie == CUTS) return;
            if (now && l->lie == CHANGES) bytes[got / 2] ^= 16;
            if (now && l->lie == REORDERS) { /* behind the next one */
                memcpy(kept, bytes, (size_t)got);
                kept_bytes = (size_t)got;
                continue;
            }
            const size_t count = now && l->lie == DROPS ? (size_t)got - 1 : (size_t)got;
            if (send(pair[!way], bytes, count, MSG_NOSIGNAL) == -1) return;
            if (now && l->lie == REPEATS && send(pair[!way], bytes, count, MSG_NOSIGNAL) == -1) return;
            if (way == 0 && kept_bytes > 0 && send(pair[1], kept, kept_bytes, MSG_NOSIGNAL) == -1) return;
            if (way == 0) kept_bytes = 0;
        }
    }
}

static void answer(struct liar *l, int fd, enum aq_relay_role role)
{
    if (l->lie == NO_RELAY) {
        (void)!send(fd, "SSH-2.0-OpenSSH\r\n", 17, MSG_NOSIGNAL);
        close(fd);
        return;
    }
    atomic_fetch_add_explicit(&l->dialled, 1, memory_order_relaxed);
    if (l->lie == JOINS_AT_ONCE) { /* with nobody */
        tell(fd, AQ_RELAY_WAITING);
        tell(fd, AQ_RELAY_JOINED);
        close(fd);
        return;
    }
    if (role == AQ_RELAY_WAITS) {
        tell(fd, AQ_RELAY_WAITING);
        for (int i = 0; i < 100 && l->lie == REPEATS_WORDS; i++)
            tell(fd, AQ_RELAY_WAITING);
        if (l->count < 8) l->waiting[l->count++] = fd;
        if (l->lie == JOINS_WITH_ITSELF && l->count >= 2) { /* two that both listen */
            const int pair[2] = {l->waiting[--l->count], l->waiting[--l->count]};
            tell(pair[0], AQ_RELAY_JOINED);
            tell(pair[1], AQ_RELAY_JOINED);
            carry(l, pair);
            close_pair(pair);
        }
        return;
    }
    if (l->lie == ANSWERS_ITSELF) { /* as if the relay were the peer */
        uint8_t bytes[4096];
        tell(fd, AQ_RELAY_JOINED);
        while (readable(l, fd)) {
            const ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got <= 0 || send(fd, bytes, (size_t)got, MSG_NOSIGNAL) == -1) break;
        }
    } else if (l->count > 0 && l->lie != JOINS_WITH_ITSELF) {
        const int pair[2] = {l->waiting[--l->count], fd};
        tell(pair[0], AQ_RELAY_JOINED);
        tell(pair[1], AQ_RELAY_JOINED);
        carry(l, pair);
        close(pair[0]);
    } else
        tell(fd, AQ_RELAY_NOBODY);
    close(fd);
}

static void lie_run(void *context)
{
    struct liar *l = context;
    while (readable(l, l->listener)) {
        uint8_t hello[AQ_RELAY_HELLO_BYTES], room[AQ_RELAY_ROOM_BYTES];
        enum aq_relay_role role;
        const int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC);
        const struct timeval patience = {.tv_sec = 1};
        if (fd == -1) continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (recv(fd, hello, sizeof hello, MSG_WAITALL) == (ssize_t)sizeof hello &&
            aq_relay_hello_read(hello, &role, room))
            answer(l, fd, role);
        else
            close(fd);
    }
    for (int i = 0; i < l->count; i++)
        close(l->waiting[i]);
}

static void liar_open(struct liar *l, enum lie lie)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof here;
    *l = (struct liar){.lie = lie, .stop = eventfd(0, EFD_CLOEXEC)};
    l->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(l->listener, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(l->listener, 64), 0);
    assert_int_equal(getsockname(l->listener, (struct sockaddr *)&here, &bytes), 0);
    l->port = ntohs(here.sin_port);
    assert_int_equal(aq_thread_open("liar", lie_run, l, &l->thread), AQ_OK);
}

static void liar_close(struct liar *l)
{
    const uint64_t one = 1;
    assert_int_equal(write(l->stop, &one, sizeof one), sizeof one);
    aq_thread_close(l->thread);
    close(l->listener);
    close(l->stop);
}

/* Frames both ways until both links have ended, each that comes checked. */
struct exchange {
    struct liar liar;
    struct link_pair pair;
    uint32_t sent[2], got[2];
    bool over[2];
    enum aq_status ends[2];
};

enum { EXCHANGE_BYTES = 3000, EXCHANGE_FRAMES = 200 };
static uint8_t exchanged[2][EXCHANGE_BYTES];

static void exchange_side(struct exchange *x, int side)
{
    struct aq_link_event event;
    const struct aq_frame frame = {
        .kind = AQ_FRAME_FORWARD, .step = x->sent[side], .body_bytes = EXCHANGE_BYTES, .body = exchanged[side]};
    if (x->sent[side] < EXCHANGE_FRAMES && aq_link_send(x->pair.link[side], &frame, x->sent[side]) == AQ_OK)
        x->sent[side]++;
    while (!x->over[side] && aq_link_poll(x->pair.link[side], &event) == AQ_OK) {
        if (event.kind == AQ_LINK_CLOSED) {
            x->over[side] = true;
            x->ends[side] = event.status;
        }
        if (event.kind != AQ_LINK_RECEIVED) continue;
        assert_int_equal(event.frame.step, x->got[side]++);
        assert_memory_equal(event.frame.body, exchanged[!side], EXCHANGE_BYTES);
        aq_link_release(x->pair.link[side], event.frame.body);
    }
}

/* All at once: most of the time is a link's silence. */
static void exchange_all(struct exchange *all, uint32_t count)
{
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    for (int side = 0; side < 2; side++)
        pair_fill(exchanged[side], EXCHANGE_BYTES, side, 0);
    for (uint32_t left = count; left > 0;) {
        left = 0;
        for (uint32_t i = 0; i < count; i++)
            for (int side = 0; side < 2; side++) {
                if (!all[i].over[side]) exchange_side(&all[i], side);
                left += !all[i].over[side];
            }
        if (left > 0) (void)poll(NULL, 0, 2);
        assert_true(aq_clock_ns() < deadline_ns);
    }
}

static void test_changed_bytes_end_a_link(void **state)
{
    enum { COUNT = 8 };
    static const enum lie LIES[] = {CHANGES, DROPS, REPEATS, REORDERS};
    static struct exchange all[COUNT];
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        struct exchange *x = &all[i];
        const bool heals = i >= COUNT / 2;
        liar_open(&x->liar, LIES[i % 4]);
        pair_relay_port = x->liar.port;
        begin(&x->pair, heals);
        for (int end = 0; end < 2; end++)
            x->pair.config[end].silence_ns_max = 3000000000u; /* a dropped byte may leave a record open */
        if (heals) x->pair.config[0].outage_ns_max = x->pair.config[1].outage_ns_max = 3000000000u;
        pair_listen(&x->pair, "tls+relay", "");
        pair_meet(&x->pair, PAIR_PATIENCE);
        assert_int_equal(x->pair.connected, AQ_OK);
    }
    exchange_all(all, COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_true(all[i].got[1] < EXCHANGE_FRAMES);
        for (int end = 0; end < 2; end++)
            assert_true(all[i].ends[end] == AQ_TLSERR || all[i].ends[end] == AQ_IO || all[i].ends[end] == AQ_TIMEOUT);
        pair_close(&all[i].pair);
        liar_close(&all[i].liar);
    }
}

static void test_cuts_heal(void **state)
{
    struct liar liar;
    struct link_pair pair = {0};
    struct aq_link_stats stats;
    (void)state;
    liar_open(&liar, CUTS);
    pair_relay_port = liar.port;
    begin(&pair, true);
    pair_listen(&pair, "tls+relay", "");
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.connected, AQ_OK);
    aq_listener_close(pair.listener);
    pair_exchange(&pair, 20, PAIR_PATIENCE);
    aq_link_stats(pair.link[1], &stats);
    assert_true(stats.heals >= 2);
    pair_close(&pair);
    liar_close(&liar);
}

/* A relay that joins whatever waits makes the end that listens neither spin nor keep what it is given. */
static void test_a_flood_of_joins_is_bounded(void **state)
{
    struct liar liar;
    struct link_pair pair = {0};
    (void)state;
    liar_open(&liar, JOINS_AT_ONCE);
    pair_relay_port = liar.port;
    begin(&pair, false);
    pair_listen(&pair, "tls+relay", "");
    const uint64_t since_ns = aq_clock_ns();
    double seconds;
    uint32_t dialled;
    do { /* a busy machine comes to few of them */
        assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(1.5), &pair.link[0]), AQ_TIMEOUT);
        seconds = (double)(aq_clock_ns() - since_ns) * 1e-9;
        dialled = atomic_load_explicit(&liar.dialled, memory_order_relaxed);
    } while (dialled <= 10 && seconds < PAIR_PATIENCE);
    assert_true(dialled > 10 && dialled < 64 * (seconds + 2) + 4);
    pair_close(&pair);
    liar_close(&liar);
}

/* Relays that join the wrong ends, or are none: no link, and a status that says so. */
static void test_relays_that_join_wrongly_make_no_link(void **state)
{
    static const enum lie LIES[] = {JOINS_WITH_ITSELF, ANSWERS_ITSELF, NO_RELAY, REPEATS_WORDS};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct liar liar;
        struct link_pair pair = {0};
        char address[PAIR_ADDRESS_BYTES];
        liar_open(&liar, LIES[i]);
        pair_relay_port = liar.port;
        begin(&pair, false);
        pair.connect_seconds = 2;
        if (LIES[i] == NO_RELAY || LIES[i] == REPEATS_WORDS) {
            snprintf(address, sizeof address, "tls+relay://127.0.0.1:%u?room=%032x", liar.port, 6);
            const enum aq_status status = aq_link_listen(pair.net[0], address, &pair.listener, NULL);
            assert_true(status == AQ_REFUSED || LIES[i] == REPEATS_WORDS);
            if (status == AQ_OK) aq_listener_close(pair.listener);
            aq_error_clear();
            assert_true(aq_link_connect(pair.net[1], address, &pair.config[1], PAIR_SECONDS(1), &pair.link[1]) !=
                        AQ_OK);
            if (LIES[i] == NO_RELAY) assert_non_null(strstr(aq_error_text(), "is no relay"));
        } else {
            pair_listen(&pair, "tls+relay", "");
            pair_meet_refused(&pair);
            assert_true(pair.connected == AQ_TLSERR || pair.connected == AQ_TIMEOUT);
            assert_int_equal(pair.accepted, AQ_TIMEOUT);
        }
        pair_close(&pair);
        liar_close(&liar);
    }
}

static int open_identities(void **state)
{
    (void)state;
    keys_make(folder, "relay");
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(aq_tls_open(folder, AQ_TLS_STAGE, i, &identities[i]), AQ_OK);
    return 0;
}

static int close_identities(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        aq_tls_close(identities[i]);
    keys_remove(folder);
    return 0;
}

static void quiet(int level, const char *line, void *context)
{
    (void)level, (void)line, (void)context;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_meet_and_others_do_not),
        cmocka_unit_test(test_the_newest_that_waits_is_called_first),
        cmocka_unit_test(test_lies_disturb_no_other_room),
        cmocka_unit_test(test_a_flood_is_bounded),
        cmocka_unit_test(test_a_room_has_its_rate),
        cmocka_unit_test(test_a_link_heals_over_a_relay_that_is_started_again),
        cmocka_unit_test(test_no_relay_is_an_error_at_once),
        cmocka_unit_test(test_each_address_of_a_relay_is_tried),
        cmocka_unit_test(test_changed_bytes_end_a_link),
        cmocka_unit_test(test_cuts_heal),
        cmocka_unit_test(test_a_flood_of_joins_is_bounded),
        cmocka_unit_test(test_relays_that_join_wrongly_make_no_link),
    };
    aq_log_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, open_identities, close_identities);
}
