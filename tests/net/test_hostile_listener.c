/*
 * test_hostile_listener.c -- listeners that lie to who dials them: when a link is made, and when it heals. Each lie
 * ends in a status and a line, or the dialler comes again as docs/FRAME.md says; never in an assertion.
 *
 * The listener is bytes on a socket (raw_peer.h), the connector a link. A lie is an answer that is wrong in one thing.
 */
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include "handshake.h"
#include "heal.h"
#include "link_state.h"
#include "raw_peer.h"

#include <assert.h>

enum lie {
    NONE,
    OTHER_RANK,
    OTHER_PEER_RANK,
    OTHER_EDGE,
    OTHER_JOB,
    OTHER_PLAN,
    OTHER_VERSION,
    OTHER_SESSION,
    NO_SESSION,
    NO_POSITION,
    HEADER_DIFFERS,
    SHORT,
    LONG,
    NUMBERED,
    OTHER_KIND,
    BROKEN,
    RESERVED,
    FEATURES,
    GARBAGE,
    HALF,
    HANGS_UP,
    SAYS_CORRUPT,
    SAYS_TLSERR,
    SAYS_NOTHING, /* an ABORT without a text */
    LIES
};

/* What becomes of a link that is being made (PROTO where it says so), and of one that heals: it ends, or dials again.
 */
static const struct {
    enum lie lie;
    enum aq_status made;
    bool ends; /* a link that heals, as AQ_MISMATCH */
    const char *words;
} CASES[] = {
    {OTHER_RANK, AQ_MISMATCH, true, "is rank 5, but rank 0 is expected"},
    {OTHER_PEER_RANK, AQ_MISMATCH, true,
     "(rank 0) expects rank 7 at this address, but this is rank 1: correct the address"},
    {OTHER_EDGE, AQ_MISMATCH, true, "(rank 0) connects edge 4, but edge 3 is expected"},
    {OTHER_JOB, AQ_MISMATCH, true,
     "is of another job: 1122334455667789 there (rank 0), 1122334455667788 here (rank 1)"},
    {OTHER_PLAN, AQ_MISMATCH, true, "has another plan: 99aabbccddeeff01 there (rank 0)"},
    {OTHER_VERSION, AQ_MISMATCH, true, "version"},
    {OTHER_SESSION, AQ_OK, false, "answers with session 000000000000004e frame 1 where session 000000000000004d"},
    {NO_SESSION, AQ_OK, false, "answers with session 0000000000000000 frame 0 where session 000000000000004d"},
    {NO_POSITION, AQ_OK, false, "answers with session 000000000000004d frame 0 where session 000000000000004d"},
    {HEADER_DIFFERS, AQ_PROTO, false, "sent a HELLO whose header and body differ"},
    {SHORT, AQ_PROTO, false, "sent a HELLO of 95 bytes where a HELLO was expected"},
    {LONG, AQ_PROTO, false, "sent a HELLO of 97 bytes where a HELLO was expected"},
    {NUMBERED, AQ_PROTO, false, "sent a HELLO of 96 bytes where a HELLO was expected"},
    {OTHER_KIND, AQ_PROTO, false, "sent a FORWARD of 96 bytes where a HELLO was expected"},
    {BROKEN, AQ_CORRUPT, false, "a HELLO arrived broken"},
    {RESERVED, AQ_PROTO, false, "features that version 1 does not have"},
    {FEATURES, AQ_PROTO, false, "features that version 1 does not have"},
    {GARBAGE, AQ_PROTO, false, "HTTP"},
    {HALF, AQ_TIMEOUT, false, "hung up before its HELLO"},
    {HANGS_UP, AQ_TIMEOUT, false, "hung up before its HELLO"},
    {SAYS_CORRUPT, AQ_CORRUPT, false, "the disk is on fire"},
    {SAYS_TLSERR, AQ_TLSERR, false, "the disk is on fire"},
    {SAYS_NOTHING, AQ_INVAL, false, "gave no reason"},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES, SESSION = 77 };
static_assert(CASE_COUNT == LIES - 1, "a case for each lie");

/* ---- what is logged ---- */

static atomic_flag lines_lock = ATOMIC_FLAG_INIT; /* acquire and release: any thread logs */
static char lines[1 << 16];

static void lines_hold(void)
{
    while (atomic_flag_test_and_set_explicit(&lines_lock, memory_order_acquire))
        ;
}

static void keep(int level, const char *line, void *context)
{
    (void)level, (void)context;
    lines_hold();
    const size_t have = strlen(lines);
    snprintf(lines + have, sizeof lines - have, "%s\n", line);
    atomic_flag_clear_explicit(&lines_lock, memory_order_release);
}

static void lines_begin(void)
{
    lines_hold();
    lines[0] = '\0';
    atomic_flag_clear_explicit(&lines_lock, memory_order_release);
}

static bool is_said(const char *words)
{
    lines_hold();
    const bool said = strstr(lines, words) != NULL;
    atomic_flag_clear_explicit(&lines_lock, memory_order_release);
    return said;
}

static void assert_said(const char *words)
{
    if (!is_said(words)) fail_msg("no line says \"%s\" in:\n%s", words, lines);
}

/* ---- the listener ---- */

static int acceptor_open(char address[PAIR_ADDRESS_BYTES])
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = PAIR_PATIENCE};
    socklen_t bytes = sizeof here;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_not_equal(fd, -1);
    assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&here, &bytes), 0);
    snprintf(address, PAIR_ADDRESS_BYTES, "tcp://127.0.0.1:%u", ntohs(here.sin_port));
    return fd;
}

static struct raw raw_listener(const struct link_pair *pair)
{
    struct raw raw = raw_peer(pair);
    raw.hello.rank = 0;
    raw.hello.peer_rank = 1;
    return raw;
}

/* The next connector at the acceptor, and its HELLO. */
static void let_in(struct raw *raw, int acceptor, struct aq_hello *asked)
{
    const struct timeval patience = {.tv_sec = PAIR_PATIENCE};
    uint8_t hello[AQ_FRAME_HELLO_BYTES];
    struct aq_header header;
    raw->fd = accept(acceptor, NULL, NULL);
    assert_int_not_equal(raw->fd, -1);
    assert_int_equal(setsockopt(raw->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_true(raw_read(raw, &header, hello));
    assert_int_equal(header.kind, AQ_FRAME_HELLO);
    assert_int_equal(aq_hello_decode(hello, asked, raw->text), AQ_OK);
    raw->hello.features &= asked->features;
}

static void say_abort(const struct raw *raw, enum aq_status cause, const char *text)
{
    uint8_t why[AQ_FRAME_CONTROL_BYTES_MAX], out[AQ_FRAME_HEADER_BYTES + AQ_FRAME_CONTROL_BYTES_MAX];
    const uint32_t bytes = aq_abort_encode(cause, text, why);
    raw_bytes(raw, out, raw_frame(raw, (struct aq_header){.kind = AQ_FRAME_ABORT, .body_bytes = bytes}, why, out));
}

/* The HELLO that lies. */
static struct aq_hello hello_that_lies(const struct raw *raw, enum lie lie)
{
    struct aq_hello hello = raw->hello;
    if (lie == OTHER_RANK) hello.rank = 5;
    if (lie == OTHER_PEER_RANK) hello.peer_rank = 7;
    if (lie == OTHER_EDGE) hello.edge = 4;
    if (lie == OTHER_JOB) hello.job_digest ^= 1;
    if (lie == OTHER_PLAN) hello.plan_hash ^= 1;
    if (lie == OTHER_SESSION) hello.session++;
    if (lie == NO_SESSION) hello.session = hello.resume_sequence = 0;
    if (lie == NO_POSITION) hello.resume_sequence = 0;
    if (lie == FEATURES) hello.features |= 1u << 31;
    return hello;
}

static void answer(const struct raw *raw, enum lie lie)
{
    static const char PAGE[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    uint8_t hello[AQ_FRAME_HELLO_BYTES + 1] = {0}, out[AQ_FRAME_HEADER_BYTES + sizeof hello];
    struct aq_header header = {.kind = AQ_FRAME_HELLO, .body_bytes = AQ_FRAME_HELLO_BYTES};
    struct raw said = *raw;
    said.hello = hello_that_lies(raw, lie);
    if (lie == SAYS_CORRUPT) say_abort(raw, AQ_CORRUPT, "the disk is on fire");
    if (lie == SAYS_TLSERR) say_abort(raw, AQ_TLSERR, "the disk is on fire");
    if (lie == SAYS_NOTHING) say_abort(raw, AQ_INVAL, "");
    if (lie == GARBAGE) raw_bytes(raw, PAGE, sizeof PAGE - 1);
    if (lie >= SAYS_CORRUPT || lie == GARBAGE || lie == HANGS_UP) return;
    aq_hello_encode(&said.hello, hello);
    if (lie == RESERVED) hello[AQ_FRAME_HELLO_BYTES - 1] = 1;
    if (lie == HEADER_DIFFERS) said.hello.rank = 5;
    if (lie == SHORT) header.body_bytes--;
    if (lie == LONG) header.body_bytes++;
    if (lie == NUMBERED) header.sequence = 1;
    if (lie == OTHER_KIND) header.kind = AQ_FRAME_FORWARD;
    const size_t bytes = raw_frame(&said, header, hello, out);
    if (lie == BROKEN) out[AQ_FRAME_HEADER_BYTES + 28] ^= 1;
    if (lie == OTHER_VERSION) out[4] = 2;
    raw_bytes(raw, out, lie == HALF ? bytes - 1 : bytes);
}

/* The connector hangs up; the status that its ABORT names, or AQ_OK where it says nothing. */
static enum aq_status farewell(struct raw *raw)
{
    uint8_t why[RAW_BODY_MAX];
    struct aq_header header;
    enum aq_status status = AQ_OK;
    if (raw->fd != -1) shutdown(raw->fd, SHUT_WR);
    while (raw_read(raw, &header, why)) {
        assert_int_equal(header.kind, AQ_FRAME_ABORT);
        status = aq_abort_decode(why, header.body_bytes, raw->text);
    }
    close(raw->fd);
    return status;
}

/* ---- a connector ---- */

static int dialling(struct link_pair *pair, double outage_seconds)
{
    *pair = (struct link_pair){0};
    pair_config(pair);
    for (int i = 0; i < 2; i++) {
        pair->config[i].heartbeat_ns = pair->config[i].silence_ns_max = 0;
        pair->config[i].outage_ns_max = (uint64_t)(outage_seconds * 1e9);
        pair->config[i].receive_slots = 4;
    }
    pair_nets(pair);
    lines_begin();
    return acceptor_open(pair->address);
}

/* A link to the raw listener: session 77 where it heals. */
static struct raw connected(struct link_pair *pair, int acceptor)
{
    struct aq_thread *thread;
    struct aq_hello asked;
    struct aq_header header;
    struct raw raw = raw_listener(pair);
    assert_int_equal(aq_thread_open("connector", pair_connect_run, pair, &thread), AQ_OK);
    let_in(&raw, acceptor, &asked);
    assert_true(asked.session == 0 && asked.resume_sequence == 0);
    raw.hello.session = raw.hello.features & AQ_FEATURE_HEAL ? SESSION : 0;
    answer(&raw, NONE);
    assert_true(raw_read(&raw, &header, NULL)); /* its confirmation */
    aq_thread_close(thread);
    assert_int_equal(pair->connected, AQ_OK);
    raw.received = 0;
    return raw;
}

/* It dials again, is answered as it should be, and the link stands. */
static void heal(struct link_pair *pair, struct raw *raw, int acceptor, uint64_t step)
{
    struct aq_hello asked;
    struct aq_header header;
    let_in(raw, acceptor, &asked);
    assert_int_equal(asked.session, SESSION);
    assert_int_equal(asked.resume_sequence, raw->sequence + 1);
    answer(raw, NONE);
    assert_true(raw_read(raw, &header, NULL));
    assert_int_equal(header.kind, AQ_FRAME_HELLO);
    raw->received = raw->hello.resume_sequence - 1;
    raw_send(raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = step}, NULL);
    assert_int_equal(pair_event_of(pair, 1, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, step);
}

static void expect_closed(struct link_pair *pair, enum aq_status status, const char *words)
{
    struct aq_link_event event = pair_event(pair, 1, PAIR_PATIENCE);
    while (event.kind == AQ_LINK_SENT)
        event = pair_event(pair, 1, PAIR_PATIENCE);
    assert_int_equal(event.kind, AQ_LINK_CLOSED);
    if (!strstr(event.text, words)) fail_msg("it is said: %s", event.text);
    assert_int_equal(event.status, status);
    assert_said(words);
}

/* ---- when a link is made ---- */

static void lie_to_connector(enum lie lie, enum aq_status status, const char *words)
{
    struct link_pair pair;
    struct aq_thread *thread;
    struct aq_hello asked;
    const int acceptor = dialling(&pair, PAIR_PATIENCE);
    struct raw raw = raw_listener(&pair);
    raw.hello.session = SESSION;
    if (status == AQ_TIMEOUT) pair.connect_seconds = 0.1; /* it would come again */
    assert_int_equal(aq_thread_open("connector", pair_connect_run, &pair, &thread), AQ_OK);
    let_in(&raw, acceptor, &asked);
    answer(&raw, lie);
    const enum aq_status told = farewell(&raw);
    close(acceptor);
    aq_thread_close(thread);
    assert_int_equal(pair.connected, status);
    if (!strstr(aq_error_text(), words)) fail_msg("lie %d: it is said: %s", lie, aq_error_text());
    assert_non_null(strstr(aq_error_text(), "as rank 1"));
    if (status == AQ_MISMATCH && lie != OTHER_VERSION) { /* it is told why */
        assert_int_equal(told, AQ_MISMATCH);
        assert_non_null(strstr(raw.text, words));
    }
    pair_close(&pair);
}

static void test_answer_that_lies_makes_no_link(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++)
        if (CASES[i].made != AQ_OK && CASES[i].made != AQ_TIMEOUT)
            lie_to_connector(CASES[i].lie, CASES[i].made, CASES[i].words);
}

/* A session that was not asked for, and a frame of a link that is new. */
static void test_answer_with_what_was_not_asked_makes_no_link(void **state)
{
    static const struct {
        double outage_seconds;
        uint64_t session, position;
    } CASES_OF[] = {{0, SESSION, 0}, {PAIR_PATIENCE, SESSION, 1}, {PAIR_PATIENCE, SESSION, UINT64_MAX}};
    (void)state;
    for (size_t i = 0; i < sizeof CASES_OF / sizeof *CASES_OF; i++) {
        struct link_pair pair;
        struct aq_thread *thread;
        struct aq_hello asked;
        const int acceptor = dialling(&pair, CASES_OF[i].outage_seconds);
        struct raw raw = raw_listener(&pair);
        assert_int_equal(aq_thread_open("connector", pair_connect_run, &pair, &thread), AQ_OK);
        let_in(&raw, acceptor, &asked);
        raw.hello.features |= AQ_FEATURE_HEAL;
        raw.hello.session = CASES_OF[i].session;
        raw.hello.resume_sequence = CASES_OF[i].position;
        answer(&raw, NONE);
        assert_int_equal(farewell(&raw), AQ_PROTO);
        aq_thread_close(thread);
        close(acceptor);
        assert_int_equal(pair.connected, AQ_PROTO);
        assert_non_null(strstr(aq_error_text(), "answers with session 000000000000004d frame "));
        pair_close(&pair);
    }
}

/* What the listener says that it takes is what it gets; nothing of it sizes memory here. */
static void test_answer_with_odd_limits_is_kept_to(void **state)
{
    static const uint8_t body[1001];
    static const uint32_t limits[][2] = {{1000, 4}, {0, 4}, {1000, 0}, {UINT32_MAX, UINT32_MAX}};
    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct link_pair pair;
        struct aq_thread *thread;
        struct aq_hello asked;
        struct aq_header header;
        const int acceptor = dialling(&pair, 0);
        struct raw raw = raw_listener(&pair);
        raw.hello.body_bytes_max = limits[i][0];
        raw.hello.receive_slots = limits[i][1];
        assert_int_equal(aq_thread_open("connector", pair_connect_run, &pair, &thread), AQ_OK);
        let_in(&raw, acceptor, &asked);
        answer(&raw, NONE);
        assert_true(raw_read(&raw, &header, NULL));
        aq_thread_close(thread);
        assert_int_equal(pair.connected, AQ_OK);
        const bool takes = limits[i][0] > 0 && limits[i][1] > 0;
        struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body = body, .body_bytes = 1000};
        assert_int_equal(aq_link_send(pair.link[1], &frame, 1), takes ? AQ_OK : AQ_INVAL);
        frame.body_bytes = 1001;
        assert_int_equal(aq_link_send(pair.link[1], &frame, 2), limits[i][0] > 1000 ? AQ_OK : AQ_INVAL);
        raw.received = 0;
        if (takes) assert_true(raw_read(&raw, &header, NULL) && header.body_bytes == 1000);
        close(raw.fd);
        close(acceptor);
        pair_close(&pair);
    }
}

/* ---- when a link heals ---- */

static void test_heal_answer_of_another_ends_the_link(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (!CASES[i].ends) continue;
        struct link_pair pair;
        struct aq_hello asked;
        const int acceptor = dialling(&pair, PAIR_PATIENCE);
        struct raw raw = connected(&pair, acceptor);
        close(raw.fd);
        let_in(&raw, acceptor, &asked);
        raw.hello.resume_sequence = 1;
        answer(&raw, CASES[i].lie);
        expect_closed(&pair, AQ_MISMATCH, CASES[i].words);
        close(raw.fd);
        close(acceptor);
        pair_close(&pair);
    }
}

/* The connection is hung up on, and dialled again: a listener that comes to its senses has its link. */
static void test_heal_answer_that_is_none_is_dialled_again(void **state)
{
    struct link_pair pair;
    struct aq_hello asked;
    (void)state;
    const int acceptor = dialling(&pair, PAIR_PATIENCE);
    struct raw raw = connected(&pair, acceptor);
    raw.hello.resume_sequence = 1;
    for (size_t i = 0; i < CASE_COUNT; i++) {
        if (CASES[i].ends) continue;
        lines_begin();
        close(raw.fd);
        let_in(&raw, acceptor, &asked);
        assert_int_equal(asked.session, SESSION);
        answer(&raw, CASES[i].lie);
        assert_int_equal(farewell(&raw), AQ_OK); /* nothing but a hang-up */
        heal(&pair, &raw, acceptor, i);
        assert_said(CASES[i].words);
    }
    close(raw.fd);
    close(acceptor);
    pair_close(&pair);
}

/* The link has sent frames 1 to 3, of which the first is acknowledged; the listener goes on at `position`. */
static void resume_at(uint64_t position, uint32_t slots, bool fits)
{
    struct link_pair pair;
    struct aq_hello asked;
    struct aq_header header;
    uint8_t why[RAW_BODY_MAX];
    char words[96];
    const int acceptor = dialling(&pair, PAIR_PATIENCE);
    struct raw raw = connected(&pair, acceptor);
    for (uint64_t n = 1; n <= 3; n++) {
        const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .step = n};
        assert_int_equal(aq_link_send(pair.link[1], &frame, n), AQ_OK);
        assert_true(raw_read(&raw, &header, NULL));
    }
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CREDIT, .acknowledge = 1}, NULL);
    assert_int_equal(pair_event(&pair, 1, PAIR_PATIENCE).kind, AQ_LINK_SENT); /* it has read that */
    close(raw.fd);
    raw.hello.resume_sequence = position;
    raw.hello.receive_slots = slots;
    if (fits) {
        raw.received = position - 1;
        heal(&pair, &raw, acceptor, 9);
        for (uint64_t n = position; n <= 3; n++) {
            assert_true(raw_read(&raw, &header, NULL));
            assert_true(header.sequence == n && header.step == n);
        }
    } else {
        let_in(&raw, acceptor, &asked);
        answer(&raw, NONE);
        assert_true(raw_read(&raw, &header, NULL)); /* it confirms, and then it looks */
        assert_true(raw_read(&raw, &header, why));
        assert_int_equal(header.kind, AQ_FRAME_ABORT);
        assert_int_equal(header.sequence, position); /* the frame that the listener waits for */
        assert_int_equal(aq_abort_decode(why, header.body_bytes, raw.text), AQ_PROTO);
        snprintf(words, sizeof words, "resumes at frame %llu with %u slots; 2 to 4 and at most 4 were possible",
                 (unsigned long long)position, slots);
        assert_non_null(strstr(raw.text, words));
        shutdown(raw.fd, SHUT_RDWR);
        expect_closed(&pair, AQ_PROTO, words);
    }
    close(raw.fd);
    close(acceptor);
    pair_close(&pair);
}

static void test_heal_from_the_first_unacknowledged_to_the_next_one(void **state)
{
    (void)state;
    resume_at(1, 4, false); /* acknowledged already: it has been given back to the caller */
    resume_at(2, 4, true);
    resume_at(3, 0, true);
    resume_at(4, 4, true);
    resume_at(5, 4, false); /* never sent */
    resume_at(UINT64_MAX, 4, false);
    resume_at(2, 5, false); /* more slots than it had */
    resume_at(2, UINT32_MAX, false);
}

/* Both have said BYE, and the connection goes: ours comes again where it was not heard, and not where it was. */
static void test_heal_bye_is_said_again_until_it_is_heard(void **state)
{
    (void)state;
    for (int heard = 0; heard < 2; heard++) {
        struct link_pair pair;
        struct aq_hello asked;
        struct aq_header header;
        const int acceptor = dialling(&pair, PAIR_PATIENCE);
        struct raw raw = connected(&pair, acceptor);
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_BYE}, NULL);
        assert_true(raw_read(&raw, &header, NULL));
        assert_true(header.kind == AQ_FRAME_BYE && header.sequence == 1);
        close(raw.fd);
        let_in(&raw, acceptor, &asked);
        assert_int_equal(asked.resume_sequence, 2);
        raw.hello.resume_sequence = heard ? 2 : 1;
        answer(&raw, NONE);
        assert_true(raw_read(&raw, &header, NULL)); /* its confirmation */
        if (!heard) {
            assert_true(raw_read(&raw, &header, NULL));
            assert_true(header.kind == AQ_FRAME_BYE && header.sequence == 1);
            raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CREDIT}, NULL);
        }
        shutdown(raw.fd, SHUT_WR);
        assert_int_equal(pair_event(&pair, 1, PAIR_PATIENCE).status, AQ_CLOSED);
        assert_false(raw_read(&raw, &header, NULL));
        close(raw.fd);
        close(acceptor);
        pair_close(&pair);
    }
}

/* The limits are those that the link was made with, whatever is said when it heals. */
static void test_heal_does_not_change_the_limits(void **state)
{
    static uint8_t body[70000];
    static const uint32_t limits[] = {0, 69999, UINT32_MAX};
    struct link_pair pair;
    struct aq_header header;
    (void)state;
    const int acceptor = dialling(&pair, PAIR_PATIENCE);
    struct raw raw = connected(&pair, acceptor);
    for (uint64_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        close(raw.fd);
        raw.hello.body_bytes_max = limits[i];
        raw.hello.resume_sequence = raw.received + 1;
        heal(&pair, &raw, acceptor, i);
        struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .step = i, .body = body, .body_bytes = 70001};
        assert_int_equal(aq_link_send(pair.link[1], &frame, i), AQ_INVAL);
        frame.body_bytes = 1000;
        assert_int_equal(aq_link_send(pair.link[1], &frame, i), AQ_OK);
        do
            assert_true(raw_read(&raw, &header, NULL));
        while (header.kind != AQ_FRAME_CONTROL);
        assert_int_equal(header.body_bytes, 1000);
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CREDIT, .credit = 1}, NULL);
        assert_int_equal(pair_event_of(&pair, 1, AQ_LINK_SENT, PAIR_PATIENCE).token, i);
    }
    close(raw.fd);
    close(acceptor);
    pair_close(&pair);
}

/* The loop's ring may come when the dialler has begun already: it goes on with the connection that it has. */
static void test_heal_goes_on_when_it_is_rung(void **state)
{
    struct link_pair pair;
    struct aq_hello asked;
    struct aq_header header;
    (void)state;
    const int acceptor = dialling(&pair, PAIR_PATIENCE);
    struct raw raw = connected(&pair, acceptor);
    close(raw.fd);
    raw.hello.resume_sequence = raw.received + 1;
    let_in(&raw, acceptor, &asked);
    for (int ring = 0; ring < 20; ring++) { /* one or the other finds it asleep */
        struct pollfd fd = {.fd = pair.link[1]->heal->wake_fd, .events = POLLIN};
        aq_heal_wake(fd.fd);
        while (poll(&fd, 1, 0) > 0) /* until the dialler has heard it */
            sched_yield();
    }
    answer(&raw, NONE);
    assert_true(raw_read(&raw, &header, NULL));
    assert_int_equal(header.kind, AQ_FRAME_HELLO);
    close(raw.fd);
    close(acceptor);
    pair_close(&pair);
}

/* The link is closed while its dialler waits for an answer: no try has failed, and no back-off is slept. */
static void test_heal_ends_when_the_link_is_closed_while_it_dials(void **state)
{
    struct link_pair pair;
    struct aq_hello asked;
    (void)state;
    const int acceptor = dialling(&pair, PAIR_PATIENCE);
    struct raw raw = connected(&pair, acceptor);
    close(raw.fd);
    let_in(&raw, acceptor, &asked);
    lines_begin();
    pair_close(&pair); /* the dialler is gone */
    if (is_said("attempt=")) fail_msg("a try counts as failed:\n%s", lines);
    close(raw.fd);
    close(acceptor);
}

/* ---- when is a caller with a wake_fd asked? ---- */

enum { ASKED_MAX = 4, FILLERS = 4 };

static enum aq_status count_asked(void *context)
{
    ++*(unsigned *)context;
    return AQ_AGAIN;
}

/* An acceptor with one place, which is taken: who connects now waits. */
static int acceptor_full(char address[PAIR_ADDRESS_BYTES], int fillers[FILLERS])
{
    struct pollfd fds[FILLERS];
    struct sockaddr_in to;
    socklen_t bytes = sizeof to;
    const int acceptor = acceptor_open(address);
    assert_int_equal(listen(acceptor, 0), 0);
    assert_int_equal(getsockname(acceptor, (struct sockaddr *)&to, &bytes), 0);
    for (int i = 0; i < FILLERS; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_not_equal(fillers[i], -1);
        (void)connect(fillers[i], (const struct sockaddr *)&to, sizeof to);
        fds[i] = (struct pollfd){.fd = fillers[i], .events = POLLOUT};
    }
    assert_true(poll(fds, FILLERS, PAIR_PATIENCE * 1000) > 0);
    return acceptor;
}

/* Events ask, no clock: a listener that stays silent until the deadline leaves the caller asked as often as anything
 * happened. A polling wait would ask every AQ_MEANWHILE_NS. */
static void test_try_with_a_wake_fd_asks_when_something_happens(void **state)
{
    struct link_pair pair;
    struct aq_handshake h;
    unsigned asked = 0;
    (void)state;
    const int acceptor = dialling(&pair, PAIR_PATIENCE), wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pair.config[1].meanwhile = count_asked;
    pair.config[1].context = &asked;
    const struct aq_hello hello = aq_hello_of(&pair.config[1]);
    const uint64_t deadline_ns = aq_clock_after(20 * AQ_MEANWHILE_NS);
    assert_int_equal(
        aq_handshake_try(pair.net[1], &h, pair.address, 0, &pair.config[1], &hello, wake_fd, deadline_ns), AQ_TIMEOUT);
    aq_handshake_drop(&h);
    assert_in_range(asked, 1, ASKED_MAX);
    close(wake_fd);
    close(acceptor);
    pair_close(&pair);
}

static void test_streams_with_a_wake_fd_ask_when_something_happens(void **state)
{
    struct link_pair pair;
    struct aq_handshake h = {.hello = {.streams = 2}};
    int fillers[FILLERS];
    unsigned asked = 0;
    (void)state;
    close(dialling(&pair, PAIR_PATIENCE));
    const int acceptor = acceptor_full(pair.address, fillers), wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pair.config[1].meanwhile = count_asked;
    pair.config[1].context = &asked;
    h.deadline_ns = aq_clock_after(20 * AQ_MEANWHILE_NS);
    assert_int_equal(aq_streams_dial(pair.net[1], &h, pair.address, 0, &pair.config[1], wake_fd), AQ_TIMEOUT);
    aq_handshake_drop(&h);
    assert_in_range(asked, 1, ASKED_MAX);
    for (int i = 0; i < FILLERS; i++)
        close(fillers[i]);
    close(wake_fd);
    close(acceptor);
    pair_close(&pair);
}

/* Nobody says a word: the outage is as long as it may be, and that is said. */
static void test_heal_silent_listener_ends_with_the_outage(void **state)
{
    struct link_pair pair;
    (void)state;
    const int acceptor = dialling(&pair, 0.3);
    struct raw raw = connected(&pair, acceptor);
    close(raw.fd); /* who dials now is in the acceptor's backlog, connected and unheard */
    expect_closed(&pair, AQ_TIMEOUT, "longer than outage_max (0.3 s)");
    close(acceptor);
    pair_close(&pair);
}

struct slammer { /* accepts, and hangs up */
    int acceptor;
    atomic_uint slams; /* relaxed: a count */
};

static void slam(void *context)
{
    struct slammer *slammer = context;
    for (int fd; (fd = accept(slammer->acceptor, NULL, NULL)) != -1; close(fd))
        atomic_fetch_add_explicit(&slammer->slams, 1, memory_order_relaxed);
}

/* The dialler backs off: 10 ms, doubling. */
static void test_heal_listener_that_slams_the_door_is_not_hammered(void **state)
{
    struct link_pair pair;
    struct aq_thread *thread;
    struct slammer slammer = {.acceptor = dialling(&pair, 0.4)};
    (void)state;
    struct raw raw = connected(&pair, slammer.acceptor);
    assert_int_equal(aq_thread_open("slammer", slam, &slammer, &thread), AQ_OK);
    close(raw.fd);
    expect_closed(&pair, AQ_TIMEOUT, "longer than outage_max (0.4 s)");
    pair_close(&pair); /* the dialler is gone */
    shutdown(slammer.acceptor, SHUT_RDWR);
    aq_thread_close(thread);
    close(slammer.acceptor);
    /* After 0, 10, 30, 70, 150 and 310 ms, and some more where the machine is slow to end the link. */
    assert_in_range(atomic_load_explicit(&slammer.slams, memory_order_relaxed), 1, 12);
}

/* A listener that is gone dials nobody's patience away: once it is there again, the link is. */
static void test_heal_after_many_slams(void **state)
{
    struct link_pair pair;
    (void)state;
    const int acceptor = dialling(&pair, PAIR_PATIENCE);
    struct raw raw = connected(&pair, acceptor);
    raw.hello.resume_sequence = 1;
    close(raw.fd);
    for (int i = 0; i < 5; i++) {
        const int fd = accept(acceptor, NULL, NULL);
        assert_int_not_equal(fd, -1);
        close(fd);
    }
    heal(&pair, &raw, acceptor, 4);
    close(raw.fd);
    close(acceptor);
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer_that_lies_makes_no_link),
        cmocka_unit_test(test_answer_with_what_was_not_asked_makes_no_link),
        cmocka_unit_test(test_answer_with_odd_limits_is_kept_to),
        cmocka_unit_test(test_heal_answer_of_another_ends_the_link),
        cmocka_unit_test(test_heal_answer_that_is_none_is_dialled_again),
        cmocka_unit_test(test_heal_from_the_first_unacknowledged_to_the_next_one),
        cmocka_unit_test(test_heal_bye_is_said_again_until_it_is_heard),
        cmocka_unit_test(test_heal_does_not_change_the_limits),
        cmocka_unit_test(test_heal_goes_on_when_it_is_rung),
        cmocka_unit_test(test_heal_ends_when_the_link_is_closed_while_it_dials),
        cmocka_unit_test(test_try_with_a_wake_fd_asks_when_something_happens),
        cmocka_unit_test(test_streams_with_a_wake_fd_ask_when_something_happens),
        cmocka_unit_test(test_heal_silent_listener_ends_with_the_outage),
        cmocka_unit_test(test_heal_listener_that_slams_the_door_is_not_hammered),
        cmocka_unit_test(test_heal_after_many_slams),
    };
    setenv("AQ_LOG", "net:2", 1);
    aq_log_init(-1);
    aq_log_sink(keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
