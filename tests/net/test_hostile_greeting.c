/*
 * test_hostile_greeting.c -- greetings that contradict themselves or promise too much, from either end, and what is
 * said behind the last word. Peers are bytes on a socket (raw_peer.h); after each the right one gets in.
 */
#include "raw_peer.h"

#include <errno.h>

static void listening(struct link_pair *pair, bool heals)
{
    *pair = (struct link_pair){0};
    pair_config(pair);
    for (int i = 0; i < 2; i++) {
        pair->config[i].heartbeat_ns = pair->config[i].silence_ns_max = 0;
        pair->config[i].outage_ns_max = heals ? PAIR_PATIENCE * UINT64_C(1000000000) : 0;
    }
    pair_nets(pair);
    pair_listen(pair, "tcp", "");
}

static enum aq_status accept_for(struct link_pair *pair, double seconds)
{
    return aq_link_accept(pair->listener, &pair->config[0], PAIR_SECONDS(seconds), &pair->link[0]);
}

static void accept_raw(struct link_pair *pair, struct raw *raw, struct aq_hello *answer)
{
    raw_greet(raw, pair->address, true);
    assert_int_equal(accept_for(pair, PAIR_PATIENCE), AQ_OK);
    assert_int_equal(raw_answer(raw, answer), AQ_OK);
}

static void refused(struct raw *raw, enum aq_status status, const char *words)
{
    struct aq_hello answer;
    assert_int_equal(raw_answer(raw, &answer), status);
    if (!strstr(raw->text, words)) fail_msg("said: %s", raw->text);
    close(raw->fd);
}

static void test_greeting_that_contradicts_itself_is_refused(void **state)
{
    enum { BROKEN, OTHER_PLAN, OTHER_RANK, OTHER_EDGE, COUNT };
    static const char *const words[COUNT] = {"a HELLO arrived broken", "header and body differ",
                                             "header and body differ", "header and body differ"};
    struct link_pair pair;
    struct aq_hello answer;
    struct raw raws[COUNT];
    (void)state;
    listening(&pair, false);
    for (int i = 0; i < COUNT; i++) {
        uint8_t hello[AQ_FRAME_HELLO_BYTES], out[AQ_FRAME_HEADER_BYTES + AQ_FRAME_HELLO_BYTES];
        struct raw said = raw_peer(&pair);
        aq_hello_encode(&said.hello, hello);
        if (i == OTHER_PLAN) said.hello.plan_hash ^= 1;
        if (i == OTHER_RANK) said.hello.rank ^= 2;
        if (i == OTHER_EDGE) said.hello.edge ^= 1;
        said.fd = raw_socket(pair.address, 1);
        const struct aq_header header = {.kind = AQ_FRAME_HELLO, .body_bytes = sizeof hello};
        const size_t bytes = raw_frame(&said, header, hello, out);
        if (i == BROKEN) out[AQ_FRAME_HEADER_BYTES + 28] ^= 1; /* a longer body than it means */
        raw_bytes(&said, out, bytes);
        raws[i] = said;
    }
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    for (int i = 0; i < COUNT; i++)
        refused(&raws[i], i == BROKEN ? AQ_CORRUPT : AQ_PROTO, words[i]);
    close(raw.fd);
    pair_close(&pair);
}

static void test_who_looks_for_another_rank_is_at_the_wrong_address(void **state)
{
    struct link_pair pair;
    struct aq_hello answer;
    (void)state;
    listening(&pair, false);
    pair.config[0].rank = 5;
    pair.config[1].peer_rank = 5;
    struct raw lower = raw_peer(&pair), higher = raw_peer(&pair), raw = raw_peer(&pair);
    lower.hello.peer_rank = 4;
    higher.hello.peer_rank = 6;
    raw_greet(&lower, pair.address, true);
    raw_greet(&higher, pair.address, true);
    accept_raw(&pair, &raw, &answer);
    refused(&lower, AQ_MISMATCH, "expects rank 4 at this address, but this is rank 5");
    refused(&higher, AQ_MISMATCH, "expects rank 6 at this address, but this is rank 5");
    close(raw.fd);
    pair_close(&pair);
}

/* Two links between the same two ranks: whoever resumes one does not get the other. */
static void test_two_links_of_one_peer_have_two_sessions(void **state)
{
    struct link_pair pair;
    struct aq_hello answers[2];
    (void)state;
    listening(&pair, true);
    struct raw raws[2] = {raw_peer(&pair), raw_peer(&pair)};
    for (int i = 0; i < 2; i++)
        accept_raw(&pair, &raws[i], &answers[i]);
    assert_true(answers[0].session != 0 && answers[1].session != 0 && answers[0].session != answers[1].session);
    for (int i = 0; i < 2; i++)
        close(raws[i].fd);
    pair_close(&pair);
}

/* An answer is a promise: of two that fit, one has it. */
static void test_one_peer_at_a_time_is_promised_the_link(void **state)
{
    struct link_pair pair;
    int answered = 0;
    (void)state;
    listening(&pair, true);
    struct raw raws[3] = {raw_peer(&pair), raw_peer(&pair), raw_peer(&pair)};
    for (int i = 0; i < 3; i++)
        raw_greet(&raws[i], pair.address, false);
    assert_int_equal(accept_for(&pair, 0.2), AQ_TIMEOUT);
    for (int i = 0; i < 3; i++) {
        uint8_t byte;
        answered += recv(raws[i].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
        close(raws[i].fd);
    }
    assert_int_equal(answered, 1);
    pair_close(&pair);
}

static void test_frame_behind_a_bye_reaches_nobody_and_is_proto(void **state)
{
    static const struct {
        struct aq_header header;
        const char *words;
    } CASES[] = {{{.kind = AQ_FRAME_CONTROL}, "a frame arrived after the BYE"},
                 {{.kind = AQ_FRAME_CONTROL, .body_bytes = 1}, "a frame arrived after the BYE"},
                 {{.kind = AQ_FRAME_BYE}, "a second BYE came"},
                 {{.kind = AQ_FRAME_CREDIT, .sequence = 9}, "sent frame 9 where 2 was expected"}};
    struct link_pair pair;
    struct aq_hello answer;
    struct aq_header header;
    uint8_t why[RAW_BODY_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        listening(&pair, false);
        struct raw raw = raw_peer(&pair);
        raw.hello.receive_slots = 1;
        accept_raw(&pair, &raw, &answer);
        for (uint64_t n = 0; n < 2; n++) { /* the second waits for a credit: our BYE is behind it, and the link open */
            const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .step = n, .body = "b", .body_bytes = 1};
            assert_int_equal(aq_link_send(pair.link[0], &frame, n), AQ_OK);
        }
        raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_BYE}, NULL);
        raw_send(&raw, CASES[i].header, "b");
        do
            assert_true(raw_read(&raw, &header, why)); /* our first frame, and then why we give up */
        while (header.kind != AQ_FRAME_ABORT);
        assert_int_equal(aq_abort_decode(why, header.body_bytes, raw.text), AQ_PROTO);
        assert_non_null(strstr(raw.text, CASES[i].words));
        close(raw.fd);
        struct aq_link_event event = {0};
        while (event.kind != AQ_LINK_CLOSED) { /* the link ends, and nobody gets it */
            event = pair_event(&pair, 0, PAIR_PATIENCE);
            assert_int_not_equal(event.kind, AQ_LINK_RECEIVED);
        }
        assert_int_equal(event.status, AQ_PROTO);
        assert_non_null(strstr(event.text, CASES[i].words));
        pair_close(&pair);
    }
}

/* A round trip is not negative, whatever the peer says of when it was asked. */
static void test_pong_of_the_future_measures_nothing(void **state)
{
    struct link_pair pair;
    struct aq_hello answer;
    struct aq_link_stats stats;
    (void)state;
    listening(&pair, false);
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_PONG, .argument = UINT64_MAX}, NULL);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 4}, NULL);
    assert_int_equal(pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, 4);
    aq_link_stats(pair.link[0], &stats);
    assert_int_equal(stats.round_trip_ns, 0);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_PONG, .argument = aq_clock_ns() - 1000000}, NULL);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 5}, NULL);
    assert_int_equal(pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, 5);
    aq_link_stats(pair.link[0], &stats);
    assert_true(stats.round_trip_ns >= 1000000);
    close(raw.fd);
    pair_close(&pair);
}

/* A peer that comes again has given up what it tried before. */
static void test_peer_that_comes_again_ends_its_earlier_try(void **state)
{
    struct link_pair pair;
    struct aq_hello answer;
    uint8_t byte;
    (void)state;
    listening(&pair, true);
    struct raw raw = raw_peer(&pair);
    accept_raw(&pair, &raw, &answer);
    aq_listener_close(pair.listener); /* the porter's from here */
    close(raw.fd);
    struct raw first = raw_peer(&pair), second = raw_peer(&pair);
    first.hello.session = second.hello.session = answer.session;
    first.hello.resume_sequence = second.hello.resume_sequence = 1;
    raw_greet(&first, pair.address, false);
    assert_int_equal(raw_answer(&first, &answer), AQ_OK);
    raw_greet(&second, pair.address, true);
    assert_int_equal(raw_answer(&second, &answer), AQ_OK);
    assert_true(recv(first.fd, &byte, 1, 0) <= 0);
    raw_send(&second, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 9}, NULL);
    assert_int_equal(pair_event_of(&pair, 0, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, 9);
    close(first.fd);
    close(second.fd);
    pair_close(&pair);
}

/* ---- a listener that misbehaves ---- */

static int acceptor_open(char address[PAIR_ADDRESS_BYTES])
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof here;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_not_equal(fd, -1);
    assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&here, &bytes), 0);
    snprintf(address, PAIR_ADDRESS_BYTES, "tcp://127.0.0.1:%u", ntohs(here.sin_port));
    return fd;
}

/* The next connector, its HELLO in *asked; answered with this session and position. */
static struct raw answer_with(const struct link_pair *pair, int acceptor, uint64_t session, uint64_t position,
                              struct aq_hello *asked)
{
    const struct timeval patience = {.tv_sec = PAIR_PATIENCE};
    uint8_t body[AQ_FRAME_HELLO_BYTES], out[AQ_FRAME_HEADER_BYTES + AQ_FRAME_HELLO_BYTES];
    struct aq_header header;
    struct raw raw = raw_peer(pair);
    raw.hello.rank = 0;
    raw.hello.peer_rank = 1;
    raw.fd = accept(acceptor, NULL, NULL);
    assert_int_not_equal(raw.fd, -1);
    assert_int_equal(setsockopt(raw.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_true(raw_read(&raw, &header, body));
    assert_int_equal(aq_hello_decode(body, asked, raw.text), AQ_OK);
    raw.hello.features &= asked->features;
    raw.hello.session = session;
    raw.hello.resume_sequence = position;
    aq_hello_encode(&raw.hello, body);
    raw_bytes(&raw, out,
              raw_frame(&raw, (struct aq_header){.kind = AQ_FRAME_HELLO, .body_bytes = sizeof body}, body, out));
    return raw;
}

/* It resumes its own session and no other, and none that was not asked for where it begins. */
static void test_answer_with_another_session_is_not_taken(void **state)
{
    struct link_pair pair = {0};
    struct aq_thread *thread;
    struct aq_hello asked;
    struct aq_header header;
    (void)state;
    pair_config(&pair);
    for (int i = 0; i < 2; i++) {
        pair.config[i].heartbeat_ns = pair.config[i].silence_ns_max = 0;
        pair.config[i].outage_ns_max = PAIR_PATIENCE * UINT64_C(1000000000);
    }
    pair_nets(&pair);
    const int acceptor = acceptor_open(pair.address);
    assert_int_equal(aq_thread_open("connector", pair_connect_run, &pair, &thread), AQ_OK);
    struct raw raw = answer_with(&pair, acceptor, 77, 0, &asked);
    assert_int_equal(asked.session, 0);
    assert_true(raw_read(&raw, &header, NULL)); /* its confirmation */
    aq_thread_close(thread);
    assert_int_equal(pair.connected, AQ_OK);
    close(raw.fd);
    static const uint64_t wrong[][2] = {{78, 1}, {0, 0}, {77, 0}};
    for (int i = 0; i < 3; i++) {
        raw = answer_with(&pair, acceptor, wrong[i][0], wrong[i][1], &asked);
        assert_int_equal(asked.session, 77);
        assert_false(raw_read(&raw, &header, NULL)); /* it hangs up */
        close(raw.fd);
    }
    raw = answer_with(&pair, acceptor, 77, 1, &asked);
    assert_true(raw_read(&raw, &header, NULL));
    assert_int_equal(header.kind, AQ_FRAME_HELLO);
    raw_send(&raw, (struct aq_header){.kind = AQ_FRAME_CONTROL, .step = 3}, NULL);
    assert_int_equal(pair_event_of(&pair, 1, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.step, 3);
    close(raw.fd);
    close(acceptor);
    pair_close(&pair);
}

static void test_abort_with_a_cause_that_is_none_is_aborted(void **state)
{
    static const uint32_t none[] = {0, AQ_STATUS_COUNT, UINT32_MAX};
    char text[AQ_TEXT_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        uint8_t body[5] = {(uint8_t)none[i], (uint8_t)(none[i] >> 8), (uint8_t)(none[i] >> 16),
                           (uint8_t)(none[i] >> 24), 'x'};
        assert_int_equal(aq_abort_decode(body, sizeof body, text), AQ_ABORTED);
        assert_string_equal(text, "x");
    }
}

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greeting_that_contradicts_itself_is_refused),
        cmocka_unit_test(test_who_looks_for_another_rank_is_at_the_wrong_address),
        cmocka_unit_test(test_two_links_of_one_peer_have_two_sessions),
        cmocka_unit_test(test_one_peer_at_a_time_is_promised_the_link),
        cmocka_unit_test(test_frame_behind_a_bye_reaches_nobody_and_is_proto),
        cmocka_unit_test(test_pong_of_the_future_measures_nothing),
        cmocka_unit_test(test_peer_that_comes_again_ends_its_earlier_try),
        cmocka_unit_test(test_answer_with_another_session_is_not_taken),
        cmocka_unit_test(test_abort_with_a_cause_that_is_none_is_aborted),
    };
    aq_log_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
