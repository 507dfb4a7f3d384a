/*
 * test_hostile.c -- peers that are let in and then break a rule of docs/FRAME.md by exactly one, and peers that are not
 * let in and want to keep others out. What is right up to the limit goes through; one more is a status with a line that
 * names the peer, the frame and the limit, never an assertion.
 */
#include "raw_peer.h"

#include <errno.h>

#include "handshake.h"
#include "heal.h"
#include "link_state.h"

static uint8_t body[RAW_BODY_MAX];

/* ---- a link to a raw peer ---- */

static void listening(struct link_pair *pair, bool heals)
{
    pair_config(pair);
    for (int i = 0; i < 2; i++) {
        pair->config[i].heartbeat_ns = pair->config[i].silence_ns_max = 0; /* only what the test says goes over it */
        pair->config[i].outage_ns_max = heals ? PAIR_PATIENCE * UINT64_C(1000000000) : 0;
        pair->config[i].receive_slots = 4;
    }
    pair_nets(pair);
    pair_listen(pair, "tcp", "");
}

static void accept_raw(struct link_pair *pair, struct raw *raw, struct aq_hello *answer)
{
    raw_greet(raw, pair->address, true);
    assert_int_equal(aq_link_accept(pair->listener, &pair->config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair->link[0]),
                     AQ_OK);
    assert_int_equal(raw_answer(raw, answer), AQ_OK);
}

static struct raw open_raw(struct link_pair *pair, bool heals)
{
    struct aq_hello answer;
    *pair = (struct link_pair){0};
    listening(pair, heals);
    struct raw raw = raw_peer(pair);
    accept_raw(pair, &raw, &answer);
    return raw;
}

static void close_raw(struct link_pair *pair, struct raw *raw)
{
    close(raw->fd);
    pair_close(pair);
}

/* Until the link says something to its peer: nothing more is handed out before. */
static void wait_for_word(struct link_pair *pair, const struct raw *raw)
{
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    struct aq_link_event event;
    uint8_t byte;
    while (recv(raw->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == -1 && errno == EAGAIN) {
        const uint32_t seen = aq_eventcount_read(pair->eventcount);
        if (aq_link_poll(pair->link[0], &event) == AQ_OK) assert_int_equal(event.kind, AQ_LINK_SENT);
        (void)aq_eventcount_wait(pair->eventcount, seen, PAIR_SECONDS(0.002));
        assert_true(aq_clock_ns() < deadline_ns);
    }
}

/* Why the link gives up; AQ_OK: it has answered a PING, or hung up without a word. */
static enum aq_status last_word(struct link_pair *pair, struct raw *raw)
{
    static uint8_t text[RAW_BODY_MAX];
    struct aq_header header;
    raw->text[0] = '\0';
    for (;;) {
        wait_for_word(pair, raw);
        if (!raw_read(raw, &header, text) || header.kind == AQ_FRAME_PONG) return AQ_OK;
        if (header.kind == AQ_FRAME_ABORT) return aq_abort_decode(text, header.body_bytes, raw->text);
    }
}

/* The link has ended with this status, its peer was told so, and the text has these words. */
static void expect_refused(struct link_pair *pair, struct raw *raw, enum aq_status status, const char *words)
{
    raw_send(raw, (struct aq_header){.kind = AQ_FRAME_PING}, NULL); /* so that a link that goes on says so */
    assert_int_equal(last_word(pair, raw), status);
    if (!strstr(raw->text, words)) print_message("  said: %s\n", raw->text);
    assert_non_null(strstr(raw->text, words));
    shutdown(raw->fd, SHUT_RDWR); /* what the link waits for, 1 s at most */
    struct aq_link_event event = pair_event(pair, 0, PAIR_PATIENCE);
    while (event.kind == AQ_LINK_SENT)
        event = pair_event(pair, 0, PAIR_PATIENCE);
    assert_int_equal(event.kind, AQ_LINK_CLOSED);
    assert_int_equal(event.status, status);
    assert_non_null(strstr(event.text, words));
}

static void expect_frame(struct link_pair *pair, uint64_t step)
{
    const struct aq_link_event event = pair_event(pair, 0, PAIR_PATIENCE);
    assert_int_equal(event.kind, AQ_LINK_RECEIVED);
    assert_int_equal(event.frame.step, step);
    if (event.frame.body) aq_link_release(pair->link[0], event.frame.body);
}

/* What the caller gave back has reached the loop. */
static void settle_tokens(struct link_pair *pair)
{
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    while (aq_ring_count(pair->link[0]->to_loop) > 0) {
        const uint32_t seen = aq_eventcount_read(pair->eventcount);
        (void)aq_eventcount_wait(pair->eventcount, seen, PAIR_SECONDS(0.001));
        assert_true(aq_clock_ns() < deadline_ns);
    }
}

/* ---- frames ---- */

static void test_sequence_gap_or_repetition_is_proto(void **state)
{
    static const struct {
        uint64_t sequence;
        const char *words;
    } CASES[] = {{1, "sent frame 1 where 2 was expected"},
                 {3, "sent frame 3 where 2 was expected"},
                 {UINT64_MAX, "sent frame 18446744073709551615 where 2 was expected"}};
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct link_pair pair;
        struct raw raw = open_raw(&pair, false);
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 1}, NULL);
        expect_frame(&pair, 1);
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 2, .sequence = CASES[i].sequence}, NULL);
        expect_refused(&pair, &raw, AQ_PROTO, CASES[i].words);
        close_raw(&pair, &raw);
    }
}

static void test_body_of_body_bytes_max_is_taken_one_more_is_proto(void **state)
{
    struct link_pair pair;
    struct raw raw = open_raw(&pair, false);
    const uint32_t most = pair.config[0].body_bytes_max;
    (void)state;
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_FORWARD, .step = 1, .body_bytes = most}, body);
    expect_frame(&pair, 1);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_FORWARD, .step = 2, .body_bytes = most + 1}, body);
    expect_refused(&pair, &raw, AQ_PROTO, "a body of 70001 bytes; the limit is 70000");
    close_raw(&pair, &raw);
}

static void test_bodies_as_many_as_slots_are_taken_one_more_is_proto(void **state)
{
    struct link_pair pair;
    struct raw raw = open_raw(&pair, false);
    const uint32_t slots = pair.config[0].receive_slots;
    (void)state;
    for (uint32_t n = 1; n <= slots; n++) {
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_FORWARD, .step = n, .body_bytes = 100}, body);
        assert_int_equal(pair_event(&pair, 0, PAIR_PATIENCE).frame.step, n); /* kept */
    }
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 9}, NULL); /* wants no credit */
    expect_frame(&pair, 9);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_FORWARD, .body_bytes = 1}, body);
    expect_refused(&pair, &raw, AQ_PROTO, "sent a FORWARD (frame 6) without a credit: all 4 receive slots");
    close_raw(&pair, &raw);
}

/* A slot that is free but of which the peer has not been told is no credit: this one ended the process. */
static void test_body_for_a_slot_not_yet_given_back_is_proto(void **state)
{
    static uint8_t burst[4 * (AQ_FRAME_HEADER_BYTES + 100)];
    struct link_pair pair;
    struct raw raw = open_raw(&pair, false);
    size_t bytes = 0;
    (void)state;
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_FORWARD, .step = 1, .body_bytes = 100}, body);
    expect_frame(&pair, 1);
    settle_tokens(&pair); /* three credits are left, more than half: no frame of its own gives the fourth back */
    for (uint64_t n = 2; n <= 5; n++) {
        struct aq_header header = {.kind = AQ_FRAME_FORWARD, .step = n, .body_bytes = 100, .sequence = n};
        bytes += raw_frame(&raw, header, body, burst + bytes);
    }
    raw_bytes(&raw, burst, bytes); /* all in one read */
    for (uint64_t n = 2; n <= 4; n++)
        assert_int_equal(pair_event(&pair, 0, PAIR_PATIENCE).frame.step, n);
    expect_refused(&pair, &raw, AQ_PROTO, "sent a FORWARD (frame 5) without a credit");
    close_raw(&pair, &raw);
}

/* Half of the slots are waiting to be given back: then a CREDIT goes, not one slot later. */
static void test_credit_comes_when_half_of_the_slots_are_out(void **state)
{
    struct link_pair pair;
    struct raw raw = open_raw(&pair, false);
    struct aq_header header;
    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_FORWARD, .step = n, .body_bytes = 100}, body);
        const struct aq_link_event event = pair_event(&pair, 0, PAIR_PATIENCE);
        if (n == 2) aq_link_release(pair.link[0], event.frame.body);
    }
    settle_tokens(&pair);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_PING, .argument = 1},
             NULL); /* whatever comes, comes before its answer */
    assert_true(raw_read(&raw, &header, NULL));
    assert_int_equal(header.kind, AQ_FRAME_CREDIT);
    assert_int_equal(header.credit, 1);
    assert_true(raw_read(&raw, &header, NULL));
    assert_int_equal(header.kind, AQ_FRAME_PONG);
    assert_int_equal(header.credit, 0);
    close_raw(&pair, &raw);
}

static void send_body(struct link_pair *pair, uint64_t step)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .step = step, .body_bytes = 50, .body = body};
    assert_int_equal(aq_link_send(pair->link[0], &frame, step), AQ_OK);
}

static void test_credits_as_many_as_were_taken_are_given_back_one_more_is_proto(void **state)
{
    (void)state;
    for (uint32_t more = 0; more <= 1; more++) {
        struct link_pair pair;
        struct raw raw = open_raw(&pair, false);
        struct aq_header header;
        for (uint64_t n = 1; n <= 3; n++) {
            send_body(&pair, n);
            assert_true(raw_read(&raw, &header, NULL));
        }
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CREDIT, .credit = 3 + more}, NULL);
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 7}, NULL);
        if (more)
            expect_refused(&pair, &raw, AQ_PROTO, "gives back 4 credits, but holds only 3");
        else
            assert_int_equal(pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, 7);
        close_raw(&pair, &raw);
    }
}

static void test_acknowledge_of_what_was_sent_is_taken_one_more_is_proto(void **state)
{
    (void)state;
    for (uint64_t more = 0; more <= 1; more++) {
        struct link_pair pair;
        struct raw raw = open_raw(&pair, true);
        struct aq_header header;
        send_body(&pair, 1);
        assert_true(raw_read(&raw, &header, NULL));
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CREDIT, .credit = 1, .acknowledge = 1 + more}, NULL);
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .acknowledge = 1}, NULL);
        if (more)
            expect_refused(&pair, &raw, AQ_PROTO, "acknowledges frame 2, but only 1 were sent");
        else
            assert_int_equal(pair_event(&pair, 0, PAIR_PATIENCE).kind, AQ_LINK_SENT);
        close_raw(&pair, &raw);
    }
}

/* Kinds of the link's own, in the wrong place or with what they must not have. */
static void test_own_kinds_out_of_place_are_proto(void **state)
{
    static const struct {
        struct aq_header header;
        const char *words;
    } CASES[] = {
        {{.kind = AQ_FRAME_HELLO}, "sent a HELLO after the handshake"},
        {{.kind = AQ_FRAME_PING, .body_bytes = 1}, "a body of 1 bytes; the limit is 0"},
        {{.kind = AQ_FRAME_CREDIT, .body_bytes = 1}, "a body of 1 bytes; the limit is 0"},
        {{.kind = AQ_FRAME_BYE, .body_bytes = 1}, "a body of 1 bytes; the limit is 0"},
        {{.kind = AQ_FRAME_ABORT, .body_bytes = AQ_FRAME_CONTROL_BYTES_MAX + 1}, "1025 bytes; the limit is 1024"},
        {{.kind = 7}, "kind 7, which version 1 does not know"},
        {{.kind = 15}, "kind 15, which version 1 does not know"},
        {{.kind = AQ_FRAME_PING, .step = 1}, "reserved bytes that are not zero"},
        {{.kind = AQ_FRAME_FORWARD, .body_bytes = 5000, .part_bytes = 2000}, "did not agree to any"},
        {{.kind = AQ_FRAME_FORWARD, .body_bytes = 100, .raw_bytes = 200}, "did not agree to any"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct link_pair pair;
        struct raw raw = open_raw(&pair, false);
        raw_send(&raw, CASES[i].header, body);
        expect_refused(&pair, &raw, AQ_PROTO, CASES[i].words);
        close_raw(&pair, &raw);
    }
}

static void test_abort_of_the_longest_text_is_read(void **state)
{
    struct link_pair pair;
    struct raw raw = open_raw(&pair, false);
    static uint8_t last[AQ_FRAME_CONTROL_BYTES_MAX] = {AQ_CORRUPT};
    (void)state;
    memset(last + 4, 'x', sizeof last - 4);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_ABORT, .body_bytes = sizeof last}, last);
    const struct aq_link_event event = pair_event(&pair, 0, PAIR_PATIENCE);
    assert_int_equal(event.status, AQ_ABORTED);
    assert_non_null(strstr(event.text, "xxxx"));
    close_raw(&pair, &raw);
}

/* ---- positions ---- */

/* The link has sent frames 1 to 3, of which the peer has acknowledged the first; it comes again at `position`. */
static void resume_at(uint64_t position, uint32_t slots, bool fits)
{
    struct link_pair pair = {0};
    struct aq_hello answer;
    struct aq_header header;
    char words[96];
    listening(&pair, true);
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    aq_listener_close(pair.listener); /* the porter's from here */
    for (uint64_t n = 1; n <= 3; n++) {
        const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .step = n};
        assert_int_equal(aq_link_send(pair.link[0], &frame, n), AQ_OK);
        assert_true(raw_read(&raw, &header, NULL));
        assert_int_equal(header.sequence, n);
    }
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CREDIT, .acknowledge = 1}, NULL);
    assert_int_equal(pair_event(&pair, 0, PAIR_PATIENCE).kind, AQ_LINK_SENT); /* it has read that */
    close(raw.fd);
    raw.hello.session = answer.session;
    raw.hello.resume_sequence = position;
    raw.hello.receive_slots = slots;
    raw_greet(&raw, pair.address, true);
    assert_int_equal(raw_answer(&raw, &answer), AQ_OK);
    assert_int_equal(answer.resume_sequence, 2); /* of the CREDIT it has heard */
    raw.received = position - 1;
    if (fits) {
        for (uint64_t n = position; n <= 3; n++) {
            assert_true(raw_read(&raw, &header, NULL));
            assert_int_equal(header.sequence, n);
            assert_int_equal(header.step, n);
        }
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 8}, NULL);
        assert_int_equal(pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, 8);
    } else {
        snprintf(words, sizeof words, "resumes at frame %llu with %u slots; 2 to 4 and at most 4 were possible",
                 (unsigned long long)position, slots);
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .acknowledge = 1}, NULL);
        expect_refused(&pair, &raw, AQ_PROTO, words);
    }
    close_raw(&pair, &raw);
}

static void test_resume_from_the_first_unacknowledged_to_the_next_one(void **state)
{
    (void)state;
    resume_at(1, 4, false); /* acknowledged already: it has been given back to the caller */
    resume_at(2, 4, true);
    resume_at(3, 0, true);
    resume_at(4, 4, true);
    resume_at(5, 4, false); /* never sent */
    resume_at(UINT64_MAX, 4, false);
    resume_at(2, 5, false); /* more slots than it had */
}

/* What the third connection says goes on where the second stood, not the first. */
static void test_resume_twice_counts_from_the_last(void **state)
{
    struct link_pair pair = {0};
    struct aq_hello answer;
    struct aq_header header;
    (void)state;
    listening(&pair, true);
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    aq_listener_close(pair.listener);
    raw.hello.session = answer.session;
    for (uint64_t n = 1; n <= 3; n++) {
        const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .step = n};
        assert_int_equal(aq_link_send(pair.link[0], &frame, n), AQ_OK);
        assert_true(raw_read(&raw, &header, NULL));
        assert_int_equal(header.sequence, n);
        close(raw.fd); /* at once: the link finds out by itself, or when the peer comes again */
        raw.hello.resume_sequence = n + 1;
        raw_greet(&raw, pair.address, true);
        assert_int_equal(raw_answer(&raw, &answer), AQ_OK);
        assert_int_equal(answer.resume_sequence, 1); /* it has said nothing itself */
        raw.received = n;
        assert_int_equal(pair_event(&pair, 0, PAIR_PATIENCE).token, n); /* SENT: the position acknowledges */
    }
    close_raw(&pair, &raw);
}

/* ---- HELLO ---- */

/* Refused at a living link's acceptor, for these words. */
static void refused_hello(struct link_pair *pair, struct raw raw, enum aq_status status, const char *words)
{
    struct aq_hello answer;
    raw_greet(&raw, pair->address, true);
    assert_int_equal(raw_answer(&raw, &answer), status);
    if (!strstr(raw.text, words)) print_message("  said: %s\n", raw.text);
    assert_non_null(strstr(raw.text, words));
    close(raw.fd);
}

static void test_resume_of_anothers_session_is_refused_by_name(void **state)
{
    struct link_pair pair = {0};
    struct aq_hello answer;
    (void)state;
    listening(&pair, true);
    pair.config[0].peer_rank = UINT32_MAX; /* any rank was good enough to begin it; only that one to go on */
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    aq_listener_close(pair.listener);
    struct raw other = raw;
    other.hello.session = answer.session;
    other.hello.resume_sequence = 0;
    refused_hello(&pair, other, AQ_PROTO, "names a session, but no frame");
    other.hello.resume_sequence = 1;
    other.hello.rank = 2;
    refused_hello(&pair, other, AQ_MISMATCH, "(rank 2) resumes the link of rank 1");
    other.hello.rank = 1;
    other.hello.edge = 4;
    refused_hello(&pair, other, AQ_MISMATCH, "connects edge 4, but edge 3 is expected");
    other.hello.edge = 3;
    other.hello.session ^= 1;
    refused_hello(&pair, other, AQ_MISMATCH, "which this end does not have");
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 6}, NULL); /* the link has not noticed */
    expect_frame(&pair, 6);
    close_raw(&pair, &raw);
}

/* While links are being accepted: a session that was never promised is no new link, nor is one that goes on elsewhere.
 */
static void test_accept_unknown_session_makes_no_link(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        struct link_pair pair = {0};
        struct aq_hello answer;
        listening(&pair, true);
        struct raw liar = raw_peer(&pair);
        liar.hello.session = 0xfeedface;
        liar.hello.resume_sequence = 1;
        if (other) { /* the right session, answered and not confirmed, but frames of it were never sent */
            struct raw half = raw_peer(&pair);
            raw_greet(&half, pair.address, false);
            assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(0.05), &pair.link[0]),
                             AQ_TIMEOUT);
            assert_int_equal(raw_answer(&half, &answer), AQ_OK);
            close(half.fd);
            liar.hello.session = answer.session;
            liar.hello.resume_sequence = 2;
        }
        raw_greet(&liar, pair.address, true);
        assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(0.05), &pair.link[0]), AQ_TIMEOUT);
        struct raw raw = raw_peer(&pair);
        accept_raw(&pair, &raw, &answer); /* the liar is still at the acceptor */
        assert_true(answer.session != liar.hello.session || other);
        assert_int_equal(answer.resume_sequence, 0);
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 2}, NULL);
        expect_frame(&pair, 2);
        close(liar.fd);
        close_raw(&pair, &raw);
    }
}

/* A promised session that a connector took for a link goes on from its first frame. */
static void test_accept_promised_session_is_made(void **state)
{
    struct link_pair pair = {0};
    struct aq_hello answer;
    (void)state;
    listening(&pair, true);
    struct raw raw = raw_peer(&pair);
    raw_greet(&raw, pair.address, false);
    assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(0.05), &pair.link[0]), AQ_TIMEOUT);
    assert_int_equal(raw_answer(&raw, &answer), AQ_OK);
    close(raw.fd);
    raw.hello.session = answer.session;
    raw.hello.resume_sequence = 1;
    accept_raw(&pair, &raw, &answer);
    assert_true(answer.session == raw.hello.session);
    assert_int_equal(answer.resume_sequence, 1);
    close_raw(&pair, &raw);
}

static void test_hello_that_is_none_is_refused(void **state)
{
    struct link_pair pair = {0};
    struct aq_hello answer;
    (void)state;
    listening(&pair, false);
    static const struct {
        struct aq_header header;
        const char *words;
    } CASES[] = {{{.kind = AQ_FRAME_HELLO, .body_bytes = 95}, "a HELLO of 95 bytes where a HELLO was expected"},
                 {{.kind = AQ_FRAME_HELLO, .body_bytes = 97}, "a HELLO of 97 bytes where a HELLO was expected"},
                 {{.kind = AQ_FRAME_HELLO}, "a HELLO of 0 bytes where a HELLO was expected"},
                 {{.kind = AQ_FRAME_HELLO, .body_bytes = 96, .sequence = 1}, "where a HELLO was expected"},
                 {{.kind = AQ_FRAME_FORWARD, .body_bytes = 96}, "a FORWARD of 96 bytes where a HELLO was expected"}};
    enum { COUNT = sizeof CASES / sizeof *CASES };
    struct raw raws[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        uint8_t hello[AQ_FRAME_HELLO_BYTES + 1] = {0}, out[512];
        raws[i] = raw_peer(&pair);
        raws[i].fd = raw_socket(pair.address, 1);
        aq_hello_encode(&raws[i].hello, hello);
        raw_bytes(&raws[i], out, raw_frame(&raws[i], CASES[i].header, hello, out));
    }
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(raw_answer(&raws[i], &answer), AQ_PROTO);
        assert_non_null(strstr(raws[i].text, CASES[i].words));
        close(raws[i].fd);
    }
    close_raw(&pair, &raw);
}

/* ---- many at one acceptor ---- */

/* Their confirmations are all missing at once, which no longer ends the process: 17 did. */
static void blip(uint32_t count)
{
    static struct raw raws[64];
    static struct aq_link *links[64];
    struct link_pair pair = {0};
    struct aq_hello answer;
    struct aq_net *net;
    listening(&pair, true);
    aq_listener_close(pair.listener);
    const struct aq_net_config config = {.eventcount = pair.eventcount, .links_max = count + 1};
    aq_net_close(pair.net[0]);
    assert_int_equal(aq_net_open(&config, &net), AQ_OK);
    pair.net[0] = net;
    pair_listen(&pair, "tcp", "");
    for (uint32_t i = 0; i < count; i++) {
        pair.config[0].peer_rank = 1 + i;
        raws[i] = raw_peer(&pair);
        raws[i].hello.rank = 1 + i;
        accept_raw(&pair, &raws[i], &answer);
        links[i] = pair.link[0];
        raws[i].hello.session = answer.session;
        raws[i].hello.resume_sequence = 1;
    }
    aq_listener_close(pair.listener);
    for (uint32_t i = 0; i < count; i++)
        close(raws[i].fd);
    for (uint32_t i = 0; i < count; i++)
        raw_greet(&raws[i], pair.address, false);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(raw_answer(&raws[i], &answer), AQ_OK);
    for (uint32_t i = 0; i < count; i++) {
        raw_confirm(&raws[i]);
        raws[i].sequence = 0;
        raw_send(&raws[i], (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = i}, NULL);
    }
    for (uint32_t i = 0; i < count; i++) {
        pair.link[0] = links[i];
        expect_frame(&pair, i);
        close(raws[i].fd);
    }
    pair_close(&pair);
}

static void test_blip_of_20_and_32_links_heals_all(void **state)
{
    (void)state;
    blip(20);
    blip(32);
}

enum { STRANGERS = 300 };
static int strangers[2 * STRANGERS], stranger_count;

static void strangers_come(const struct link_pair *pair, unsigned host)
{
    for (int i = 0; i < STRANGERS; i++)
        strangers[stranger_count++] = raw_socket(pair->address, host);
}

static int strangers_inside(void)
{
    int count = 0;
    uint8_t byte;
    for (int i = 0; i < stranger_count; i++)
        count += recv(strangers[i], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN;
    return count;
}

static void strangers_go(void)
{
    while (stranger_count > 0)
        close(strangers[--stranger_count]);
}

/* Connections that say nothing, more than there are places: from elsewhere, and from the peer's own address. */
static void test_accept_among_strangers_the_peer_gets_in(void **state)
{
    (void)state;
    for (unsigned host = 1; host <= 2; host++) {
        struct link_pair pair = {0};
        pair_config(&pair);
        pair_nets(&pair);
        pair_listen(&pair, "tcp", "");
        strangers_come(&pair, host);
        for (int i = 0; i < 2; i++) /* a turn lets in as many as there are places */
            assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(0.02), &pair.link[0]),
                             AQ_TIMEOUT);
        assert_int_equal(strangers_inside(), AQ_HANDSHAKES / 2); /* the half of one source */
        pair_meet(&pair, PAIR_PATIENCE);
        assert_int_equal(pair.accepted, AQ_OK);
        assert_int_equal(pair.connected, AQ_OK);
        strangers_go();
        pair_close(&pair);
    }
}

/* A peer whose HELLO is right, and that is kept for its own accept, gives no stranger its place. */
static void test_accept_kept_peer_does_not_give_way(void **state)
{
    struct link_pair pair = {0};
    struct aq_hello answer;
    (void)state;
    listening(&pair, false);
    struct raw raw = raw_peer(&pair);
    raw_greet(&raw, pair.address, true);
    struct aq_link_config other = pair.config[0];
    other.edge = 4;
    assert_int_equal(aq_link_accept(pair.listener, &other, PAIR_SECONDS(0.02), &pair.link[0]), AQ_TIMEOUT);
    strangers_come(&pair, 1);
    assert_int_equal(aq_link_accept(pair.listener, &other, PAIR_SECONDS(1.2), &pair.link[0]), AQ_TIMEOUT);
    strangers_come(&pair, 1); /* those from before have had their time by now, and go for these */
    assert_int_equal(aq_link_accept(pair.listener, &other, PAIR_SECONDS(0.05), &pair.link[0]), AQ_TIMEOUT);
    strangers_go();
    assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair.link[0]), AQ_OK);
    assert_int_equal(raw_answer(&raw, &answer), AQ_OK); /* the connection it came with */
    close_raw(&pair, &raw);
}

/* The same for a link that was cut: its peer finds the acceptor. */
static void test_heal_among_strangers(void **state)
{
    struct link_pair pair = {0};
    struct aq_hello answer;
    (void)state;
    listening(&pair, true);
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    aq_listener_close(pair.listener);
    strangers_come(&pair, 2);
    close(raw.fd);
    raw.hello.session = answer.session;
    raw.hello.resume_sequence = 1;
    raw_greet(&raw, pair.address, true);
    assert_int_equal(raw_answer(&raw, &answer), AQ_OK);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 5}, NULL);
    expect_frame(&pair, 5);
    strangers_go();
    close_raw(&pair, &raw);
}

static atomic_uint refusals; /* relaxed: a count */

static void count_refusals(int level, const char *line, void *context)
{
    (void)level, (void)context;
    if (strstr(line, "refused peer")) atomic_fetch_add_explicit(&refusals, 1, memory_order_relaxed);
    if (getenv("AQ_SHOW")) print_message("%s\n", line);
}

static void test_refusals_are_logged_with_a_limit(void **state)
{
    struct link_pair pair = {0};
    struct aq_hello answer;
    (void)state;
    listening(&pair, false);
    atomic_store_explicit(&refusals, 0, memory_order_relaxed);
    strangers_come(&pair, 2);
    for (int i = 0; i < STRANGERS; i++)
        assert_int_equal(send(strangers[i], "GET /", 5, MSG_NOSIGNAL), 5);
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    const unsigned lines = atomic_load_explicit(&refusals, memory_order_relaxed);
    assert_in_range(lines, 1, 16); /* two windows, where the machine is slow */
    strangers_go();
    close_raw(&pair, &raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequence_gap_or_repetition_is_proto),
        cmocka_unit_test(test_body_of_body_bytes_max_is_taken_one_more_is_proto),
        cmocka_unit_test(test_bodies_as_many_as_slots_are_taken_one_more_is_proto),
        cmocka_unit_test(test_body_for_a_slot_not_yet_given_back_is_proto),
        cmocka_unit_test(test_credit_comes_when_half_of_the_slots_are_out),
        cmocka_unit_test(test_credits_as_many_as_were_taken_are_given_back_one_more_is_proto),
        cmocka_unit_test(test_acknowledge_of_what_was_sent_is_taken_one_more_is_proto),
        cmocka_unit_test(test_own_kinds_out_of_place_are_proto),
        cmocka_unit_test(test_abort_of_the_longest_text_is_read),
        cmocka_unit_test(test_resume_from_the_first_unacknowledged_to_the_next_one),
        cmocka_unit_test(test_resume_twice_counts_from_the_last),
        cmocka_unit_test(test_resume_of_anothers_session_is_refused_by_name),
        cmocka_unit_test(test_accept_unknown_session_makes_no_link),
        cmocka_unit_test(test_accept_promised_session_is_made),
        cmocka_unit_test(test_hello_that_is_none_is_refused),
        cmocka_unit_test(test_blip_of_20_and_32_links_heals_all),
        cmocka_unit_test(test_accept_among_strangers_the_peer_gets_in),
        cmocka_unit_test(test_accept_kept_peer_does_not_give_way),
        cmocka_unit_test(test_heal_among_strangers),
        cmocka_unit_test(test_refusals_are_logged_with_a_limit),
    };
    aq_log_sink(count_refusals, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
