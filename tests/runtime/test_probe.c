/*
 * test_probe.c -- measuring a network: two honest ends agree; one that lies, or sends what is not due, is found out;
 * and the launcher takes no line from a worker that it did not ask for, or whose figures cannot be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "launcher_private.h"
#include "link_pair.h"
#include "message.h"
#include "probe_session.h"

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static int setup(void **state)
{
    (void)state;
    aq_log_sink(quiet, NULL);
    return 0;
}

/* ---- figures ---- */

static const struct aq_probe_figures GOOD = {.connected = true,
                                             .trips = 20,
                                             .rtt_min_ms = 80,
                                             .rtt_ms = 81,
                                             .jitter_ms = 0.5,
                                             .rtt_after_ms = 82,
                                             .sent_bytes = 50000000,
                                             .received_bytes = 40000000,
                                             .sent_seconds = 4.2,
                                             .received_seconds = 4.1,
                                             .rate_mbps = 95,
                                             .wire_bytes = 1000000,
                                             .again_bytes = 1000,
                                             .full_wire_bytes = 2000000,
                                             .full_again_bytes = 4000,
                                             .segment = 1448,
                                             .streams = 1,
                                             .congestion = "bbr"};

/* As a launcher reads them. */
static enum aq_status figures_read(const json_t *line, struct aq_probe_figures *out)
{
    struct aq_message message;
    struct aq_message_wrong wrong;
    if (!aq_message_read(AQ_MESSAGE_probed, line, NULL, &message, &wrong)) return AQ_PROTO;
    return aq_probe_figures_take(&message, true, out);
}

static void test_figures_that_were_told_are_read(void **state)
{
    struct aq_probe_figures read;
    (void)state;
    json_t *line = aq_probe_figures_line(&GOOD, 3);
    assert_non_null(line);
    assert_int_equal(aq_control_u64_or(line, "peer", 0), 3);
    assert_int_equal(figures_read(line, &read), AQ_OK);
    json_t *again = aq_probe_figures_line(&read, 3); /* has every figure */
    assert_true(json_equal(again, line) && read.connected);
    json_decref(again);
    assert_true(aq_probe_loss(&read) == 0.001 && aq_probe_loss_full(&read) == 0.002);
    json_decref(line);
}

static void test_figures_out_of_range_are_refused(void **state)
{
    static const struct {
        const char *key, *json;
    } rows[] = {{"trips", "0"},
                {"trips", "65"},
                {"trips", "2.5"},
                {"rtt_min_ms", "82"},
                {"rtt_ms", "null"},
                {"rtt_ms", "-1"},
                {"rtt_ms", "60001"},
                {"jitter_ms", "\"few\""},
                {"rtt_after_ms", "1e300"},
                {"sent_bytes", "-1"},
                {"sent_bytes", "1099511627777"},
                {"received_bytes", "1e9"},
                {"sent_seconds", "61"},
                {"received_seconds", "null"},
                {"rate_mbps", "1000001"},
                {"rate_mbps", "0"},
                {"again_bytes", "1000001"},
                {"full_again_bytes", "2000001"},
                {"segment", "0"},
                {"segment", "65536"},
                {"streams", "17"},
                {"congestion", "\"\""},
                {"congestion", "\"0123456789abcdef\""},
                {"congestion", "\"b\\u001bb\""}};
    struct aq_probe_figures read;
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        json_t *line = aq_probe_figures_line(&GOOD, 1);
        const char *key = rows[i / 2].key;
        if (i % 2)
            json_object_del(line, key);
        else
            json_object_set_new(line, key, json_loads(rows[i / 2].json, JSON_DECODE_ANY, NULL));
        if (figures_read(line, &read) != AQ_PROTO) fail_msg("%s %s is taken", key, rows[i / 2].json);
        json_decref(line);
    }
}

static void test_figures_of_two_ends_that_differ_are_told(void **state)
{
    (void)state;
    struct aq_probe_figures a = GOOD, b = GOOD;
    b.connected = false;
    b.sent_bytes = a.received_bytes;
    b.received_bytes = a.sent_bytes;
    assert_null(aq_probe_figures_differ(&a, &b));
    b.received_bytes++;
    assert_non_null(aq_probe_figures_differ(&a, &b));
    b.received_bytes--;
    b.received_seconds = 20;
    assert_non_null(aq_probe_figures_differ(&a, &b));
    b.received_seconds = 4;
    a.rate_mbps = 900000; /* of 50 MB in 4 s */
    assert_non_null(aq_probe_figures_differ(&a, &b));
    assert_non_null(aq_probe_figures_differ(&b, &a));
}

/* ---- sessions ---- */

struct party {
    struct link_pair *pair;
    struct aq_eventcount *eventcount;
    struct aq_probe_figures figures;
    enum aq_probe_phase phase;
    enum aq_status status;
    const struct aq_frame *says; /* of a liar: in answer to the first frame; kind 0 ends it */
};

/* Each end has a net, an event count and a thread of its own, as in two processes. */
static void meet(struct link_pair *pair, struct aq_eventcount *eventcounts[2], const char *query)
{
    pair_config(pair);
    aq_error_clear();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(aq_eventcount_open(&eventcounts[i]), AQ_OK);
        const struct aq_net_config config = {.eventcount = eventcounts[i], .links_max = 4};
        assert_int_equal(aq_net_open(&config, &pair->net[i]), AQ_OK);
        aq_probe_link_config(&pair->config[i]);
    }
    pair_listen(pair, "sim", query);
    pair_meet(pair, PAIR_PATIENCE);
    assert_int_equal(pair->accepted, AQ_OK);
    assert_int_equal(pair->connected, AQ_OK);
}

static void part(struct link_pair *pair, struct aq_eventcount *eventcounts[2])
{
    for (int i = 0; i < 2; i++) {
        aq_net_close(pair->net[i]);
        aq_eventcount_close(eventcounts[i]);
    }
}

static void answer(void *context)
{
    struct party *party = context;
    party->status = aq_probe_session(party->pair->link[0], party->eventcount, false, &party->figures, &party->phase);
}

static void test_session_of_honest_ends_agrees(void **state)
{
    struct link_pair pair = {0};
    struct aq_eventcount *eventcounts[2];
    struct aq_thread *thread;
    (void)state;
    meet(&pair, eventcounts, "latency_ms=3");
    struct party far = {.pair = &pair, .eventcount = eventcounts[0]}, near = {0};
    assert_int_equal(aq_thread_open("answers", answer, &far, &thread), AQ_OK);
    near.status = aq_probe_session(pair.link[1], eventcounts[1], true, &near.figures, &near.phase);
    aq_thread_close(thread);
    if (near.status != AQ_OK || far.status != AQ_OK) fail_msg("%s", aq_error_text());
    assert_int_equal(near.phase, AQ_PROBE_LOAD);
    assert_int_equal(near.figures.trips, AQ_PROBE_TRIPS);
    assert_true(near.figures.rtt_min_ms >= 6 && near.figures.rtt_ms >= near.figures.rtt_min_ms);
    assert_true(near.figures.rtt_after_ms >= 6 && near.figures.rate_mbps > 0 && far.figures.rate_mbps > 0);
    assert_null(aq_probe_figures_differ(&near.figures, &far.figures));
    part(&pair, eventcounts);
}

/* Says its lines after the first frame that comes, and then nothing. */
static void lie(void *context)
{
    struct party *party = context;
    struct link_pair *pair = party->pair;
    const int side = party->status == AQ_OK ? 0 : 1; /* of a liar: which end it is */
    struct aq_link_event event;
    bool begun = side == 1; /* who connected speaks first */
    for (;;) {
        const uint32_t seen = aq_eventcount_read(party->eventcount);
        const enum aq_status status = aq_link_poll(pair->link[side], &event);
        if (status == AQ_OK && event.kind == AQ_LINK_CLOSED) return;
        if (status == AQ_OK && event.kind == AQ_LINK_RECEIVED) {
            if (event.frame.body_bytes) aq_link_release(pair->link[side], event.frame.body);
            begun = true;
        }
        for (; begun && party->says->kind; party->says++)
            if (aq_link_send(pair->link[side], party->says, 0) != AQ_OK) return;
        if (status == AQ_AGAIN) (void)aq_eventcount_wait(party->eventcount, seen, aq_clock_after(100000000));
    }
}

static uint8_t body[8192];
#define FRAME(...)                                                                                                     \
    {                                                                                                                  \
        .kind = AQ_FRAME_PROBE, __VA_ARGS__                                                                            \
    }
#define ENDS                                                                                                           \
    {                                                                                                                  \
        .kind = 0                                                                                                      \
    }

static enum aq_status against(const struct aq_frame *says, int liar)
{
    struct link_pair pair = {0};
    struct aq_eventcount *eventcounts[2];
    struct aq_thread *thread;
    struct aq_probe_figures figures;
    enum aq_probe_phase phase;
    meet(&pair, eventcounts, "");
    struct party party = {.pair = &pair, .eventcount = eventcounts[liar], .says = says, .status = liar ? AQ_IO : AQ_OK};
    assert_int_equal(aq_thread_open("lies", lie, &party, &thread), AQ_OK);
    const enum aq_status status = aq_probe_session(pair.link[!liar], eventcounts[!liar], !liar, &figures, &phase);
    aq_link_close(pair.link[!liar]);
    aq_thread_close(thread);
    aq_link_close(pair.link[liar]);
    part(&pair, eventcounts);
    return status;
}

static void test_session_what_is_not_due_is_refused(void **state)
{
    /* What who listens says to the first PING, ... */
    static const struct aq_frame answers[][3] = {
        {FRAME(.flags = 1), ENDS},                                          /* a PING            */
        {FRAME(.flags = 2, .micro_batch = 1), ENDS},                        /* to another        */
        {FRAME(.flags = 2, .argument = 1), ENDS},                           /* with an argument  */
        {FRAME(.flags = 2, .step = 1), ENDS},                               /* with a step       */
        {FRAME(.flags = 2, .body_bytes = 64, .body = body), ENDS},          /* with a body       */
        {FRAME(.flags = 3, .body_bytes = 8192, .body = body), ENDS},        /* load              */
        {FRAME(.flags = 5, .argument = 9), ENDS},                           /* of no load        */
        {FRAME(.flags = 77), ENDS},                                         /* nothing known     */
        {{.kind = AQ_FRAME_FORWARD, .body_bytes = 64, .body = body}, ENDS}, /* a job's           */
        {FRAME(.flags = 2), FRAME(.flags = 2), ENDS}};                      /* before it was asked */
    /* ... and what who connected says at once. */
    static const struct aq_frame asks[][3] = {
        {FRAME(.flags = 2), ENDS},
        {FRAME(.flags = 1, .micro_batch = 7), ENDS},
        {FRAME(.flags = 1, .body_bytes = 8192, .body = body), ENDS}, /* large ones come later */
        {FRAME(.flags = 3, .body_bytes = 8192, .body = body), ENDS},
        {FRAME(.flags = 6, .argument = UINT64_MAX), ENDS},
        {FRAME(.flags = 1), FRAME(.flags = 4, .argument = 0), ENDS},
        {{.kind = AQ_FRAME_MIRROR, .flags = 1, .body_bytes = 64, .body = body}, ENDS}};
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (against(answers[i], 0) != AQ_PROTO) fail_msg("answer %zu is taken: %s", i, aq_error_text());
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++)
        if (against(asks[i], 1) != AQ_PROTO) fail_msg("question %zu is taken: %s", i, aq_error_text());
}

/* ---- the launcher ---- */

static struct probe probe;
static struct aq_launch launch = {.stages = 3, .replicas = 1, .probe = true};
static struct aq_launch_result result;
static struct aq_probe_pair pair_01;

/* Three ranks of one daemon; 1 listens for 0, and both are asked. */
static void begin(void)
{
    memset(&probe, 0, sizeof probe);
    memset(&result, 0, sizeof result);
    pair_01 = (struct aq_probe_pair){.from = 0, .to = 1, .listener = 1};
    probe.launcher.launch = &launch;
    probe.launcher.result = &result;
    probe.launcher.ranks = 3;
    probe.launcher.host_count = 1;
    probe.pair = &pair_01;
    probe.answers[0].asked = probe.answers[1].asked = true;
}

static bool hears(const char *text)
{
    json_t *message = json_loads(text, 0, NULL);
    assert_non_null(message);
    const bool fine = probe_event(&probe, &probe.launcher.hosts[0], message);
    json_decref(message);
    assert_true(fine == (probe.launcher.cause == CAUSE_NONE));
    return fine;
}

static bool hears_figures(uint32_t rank, uint32_t peer, const char *without)
{
    json_t *line = aq_probe_figures_line(&GOOD, peer);
    json_object_set_new(line, "rank", json_integer(rank));
    if (without) json_object_del(line, without);
    const bool fine = probe_event(&probe, &probe.launcher.hosts[0], line);
    json_decref(line);
    return fine;
}

static void test_launcher_takes_what_it_asked_for(void **state)
{
    (void)state;
    begin();
    assert_true(hears("{\"event\":\"listening\",\"rank\":1,\"address\":\"10.0.0.1:77\",\"peer\":0}"));
    assert_true(hears("{\"event\":\"ready\",\"rank\":1}"));
    assert_true(hears_figures(0, 1, NULL));
    assert_true(
        hears("{\"event\":\"unprobed\",\"rank\":1,\"peer\":0,\"status\":\"timed out\",\"text\":\"no\",\"phase\":2}"));
    assert_true(probe.answers[0].measured && probe.answers[1].come && !probe.answers[1].measured);
    assert_true(hears("{\"event\":\"exited\",\"rank\":2,\"code\":1,\"last\":\"bad key\"}"));
    assert_true(probe.ranks[2].failed && strcmp(probe.ranks[2].why, "bad key") == 0);
}

static void test_launcher_refuses_what_it_did_not_ask_for(void **state)
{
    static const char *const lines[] = {
        "{\"event\":\"step\",\"rank\":0,\"step\":1}",
        "{\"event\":\"done\",\"rank\":0}",
        "{\"event\":\"\",\"rank\":0}",
        "{\"event\":\"ready\",\"rank\":9}",
        "{\"event\":\"ready\"}",
        "{\"event\":\"listening\",\"rank\":0,\"address\":\"\",\"peer\":1}",
        "{\"event\":\"listening\",\"rank\":0,\"address\":\"10.0.0.1:7 \\u001b[2J\",\"peer\":1}",
        "{\"event\":\"probed\",\"rank\":2,\"peer\":1}",
        "{\"event\":\"probed\",\"rank\":0,\"peer\":1}",
        "{\"event\":\"unprobed\",\"rank\":0,\"peer\":2,\"status\":\"x\",\"text\":\"\",\"phase\":0}",
        "{\"event\":\"unprobed\",\"rank\":0,\"peer\":1,\"status\":\"x\",\"text\":\"\",\"phase\":4}",
        "{\"event\":\"unprobed\",\"rank\":0,\"peer\":1,\"status\":\"x\",\"text\":\"\"}"};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        begin();
        if (hears(lines[i])) fail_msg("%s is taken", lines[i]);
        assert_true(strlen(result.cause) > 0 && !strchr(result.cause, 27));
    }
    begin();
    assert_true(hears("{\"event\":\"ready\",\"rank\":1}"));
    assert_false(hears("{\"event\":\"ready\",\"rank\":1}"));
    begin();
    assert_true(hears_figures(0, 1, NULL));
    assert_false(hears_figures(0, 1, NULL)); /* twice */
    begin();
    assert_false(hears_figures(0, 1, "trips")); /* who connects has them */
    begin();
    assert_true(hears_figures(1, 0, "trips")); /* who listens has not */
    begin();
    probe.pair = NULL;
    assert_false(hears_figures(0, 1, NULL));
}

/* An answer that comes after its pair was given up ends nothing, and is not taken for another's. */
static void test_launcher_drops_what_comes_too_late(void **state)
{
    (void)state;
    struct aq_probe_pair pair_12 = {.from = 1, .to = 2, .listener = 2};
    begin();
    assert_true(hears_figures(0, 1, NULL));
    probe_give_up(&probe);
    probe.pair = &pair_12;
    memset(probe.answers, 0, sizeof probe.answers);
    probe.answers[0].asked = probe.answers[1].asked = true;
    assert_true(hears_figures(1, 0, "trips")); /* of the pair before */
    assert_false(probe.answers[0].come);
    assert_true(hears_figures(1, 2, NULL));
    assert_true(probe.answers[0].measured);
    assert_false(hears_figures(0, 1, NULL)); /* has answered, and owes nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(test_figures_that_were_told_are_read, setup),
                                       cmocka_unit_test_setup(test_figures_out_of_range_are_refused, setup),
                                       cmocka_unit_test_setup(test_figures_of_two_ends_that_differ_are_told, setup),
                                       cmocka_unit_test_setup(test_session_of_honest_ends_agrees, setup),
                                       cmocka_unit_test_setup(test_session_what_is_not_due_is_refused, setup),
                                       cmocka_unit_test_setup(test_launcher_takes_what_it_asked_for, setup),
                                       cmocka_unit_test_setup(test_launcher_refuses_what_it_did_not_ask_for, setup),
                                       cmocka_unit_test_setup(test_launcher_drops_what_comes_too_late, setup)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
