/*
 * test_board.c -- the board of a launch: states say what they wait for and what helps, figures of ranks, findings; and
 * its texts: escaped HTML, JSON, OpenMetrics.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "board_text.h"
#include "control.h"

static struct aq_board *board;
static struct aq_board_view *view;

static int setup(void **state)
{
    void *memory;
    (void)state;
    if (aq_board_open(&board) != AQ_OK || aq_alloc(sizeof *view, &memory) != AQ_OK) return -1;
    view = memory;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    aq_board_close(board);
    aq_free(view);
    return aq_memory_used() == 0 ? 0 : -1;
}

static void line(const char *text)
{
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    aq_board_line(board, json);
    json_decref(json);
}

static const char START[] =
    "{\"event\":\"start\",\"name\":\"<script>&\\\"\\u001b[2J\",\"codec\":\"fw4 <i>\",\"stages\":2,"
    "\"replicas\":1,\"steps_planned\":10,\"resumed\":0}";
static const char STEP[] =
    "{\"event\":\"step\",\"step\":3,\"epoch\":1,\"time\":6,\"seconds\":2,\"loss\":1.5,\"lr\":0.1,\"samples\":8,"
    "\"sequences_per_second\":4,\"stage_seconds\":[2,2],\"compute_ns\":[1e9,5e8],\"link_wait_ns\":[1e8,1.4e9],"
    "\"wait_ns\":[2e8,1.5e9],\"forward_bytes\":[1000,null],\"forward_packed\":[0.5,null],\"backward_bytes\":[null,300],"
    "\"contraction\":[0.8,null]}";

static void test_states_say_what_they_wait_for(void **state)
{
    (void)state;
    struct aq_board_rank ranks[2] = {{.lives = true, .phase = AQ_PHASE_WEIGHTS},
                                     {.lives = true, .phase = AQ_PHASE_CONNECT}};
    line(START);
    aq_board_look(board, view);
    assert_int_equal(view->state, AQ_BOARD_STARTING);
    assert_true(*view->waits && strstr(view->remedy, "aqpiped"));
    aq_board_ranks(board, ranks, 2);
    aq_board_phase(board, "stage 0 loads its weights (0 of 2 ready)");
    aq_board_look(board, view);
    assert_string_equal(view->waits, "stage 0 loads its weights (0 of 2 ready)");
    assert_non_null(strstr(view->remedy, "disk")); /* of the stage that is least far */
    line("{\"event\":\"go\",\"step\":0}");
    aq_board_look(board, view);
    assert_int_equal(view->state, AQ_BOARD_RUNNING);
    line(STEP);
    aq_board_look(board, view);
    assert_string_equal(view->waits, "");
    assert_true(fabs(view->left_s - 14) < 1e-9); /* 7 steps of 2 s */
    aq_board_stopping(board);
    line(STEP); /* the last one */
    aq_board_look(board, view);
    assert_int_equal(view->state, AQ_BOARD_STOPPING);
    assert_true(*view->remedy);
    line("{\"event\":\"restart\",\"step\":0,\"restarts\":2,\"cause\":\"stage 1 was killed\"}");
    aq_board_look(board, view);
    assert_int_equal(view->state, AQ_BOARD_RESTARTING);
    assert_true(*view->waits && *view->remedy);
    line("{\"event\":\"end\",\"state\":\"failed\",\"cause\":\"no <disk>\"}");
    aq_board_look(board, view);
    assert_int_equal(view->state, AQ_BOARD_FAILED);
    assert_non_null(strstr(view->remedy, "resume"));
    assert_string_equal(view->cause, "no <disk>");
}

static void test_figures_of_ranks(void **state)
{
    (void)state;
    line(START);
    line(STEP);
    line(STEP);
    aq_board_look(board, view);
    assert_true(view->rank[0].parts[AQ_BOARD_COMPUTE] == 1 && view->rank[1].parts[AQ_BOARD_COMPUTE] == 0.5);
    assert_true(isnan(view->rank[0].parts[AQ_BOARD_REDUCE]));
    assert_true(view->rank[0].bytes[AQ_BOARD_FORWARD] == 500 && view->rank[0].bytes_all[AQ_BOARD_FORWARD] == 1000);
    assert_true(view->rank[1].bytes_all[AQ_BOARD_BACKWARD] == 600);
    assert_true(view->rank[0].gauges[AQ_BOARD_CQ] == 0.8 && isnan(view->rank[1].gauges[AQ_BOARD_CQ]));
}

/* How often a text has a word. */
static uint32_t count_of(const char *text, const char *word)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        count++;
    return count;
}

/* The page: what a job has none of has no colour; who waits for which link; the last steps; what it has cost. */
static void test_page_shows_links_steps_and_cost(void **state)
{
    (void)state;
    struct aq_text page = {0}, json = {0};
    char step[600];
    line("{\"event\":\"start\",\"name\":\"x\",\"stages\":2,\"steps_planned\":40,\"hosts\":[\"a<b\",null]}");
    for (int i = 1; i <= AQ_BOARD_STEPS + 6; i++) {
        snprintf(step, sizeof step,
                 "{\"event\":\"step\",\"step\":%d,\"seconds\":2,\"loss\":1,\"stage_seconds\":[2,2],"
                 "\"compute_ns\":[1e9,5e8],\"link_wait_ns\":[1e8,8e8],\"in_wait_ns\":[null,7e8],"
                 "\"wait_ns\":[2e8,1.2e9],\"forward_bytes\":[1000000,null],\"backward_bytes\":[null,24000]}",
                 i);
        line(step);
    }
    aq_board_look(board, view);
    assert_true(fabs(aq_board_link_wait(&view->rank[0], false) - 0.05) < 1e-9);
    assert_true(fabs(aq_board_link_wait(&view->rank[1], true) - 0.35) < 1e-9);
    assert_true(fabs(aq_board_link_wait(&view->rank[1], false) - 0.05) < 1e-9);
    assert_true(aq_board_sent(view) == 30 * 1024000.0 && aq_board_stage_hours(view) >= 0);
    view->up_s = 5400;
    assert_true(aq_board_stage_hours(view) == 3);
    aq_board_page(view, &page);
    const char *text = aq_text_of(&page);
    for (int none = 1; none <= 3; none++) { /* no codec's time, no optimizer's, no reduction */
        char colour[24];
        snprintf(colour, sizeof colour, "<rect class=\"c%d\"", none);
        assert_null(strstr(text, colour));
    }
    assert_non_null(strstr(text, "<div class=\"link busy\"><span class=\"f\">forward 4 Mbit/s</span>"));
    assert_non_null(strstr(text, "stage 1 waits for it 35 %"));
    assert_non_null(strstr(text, "<span>a&lt;b</span>"));
    assert_non_null(strstr(text, "<h2>Steps 7 to 30 "));
    assert_int_equal(count_of(text, "<path class=\"edge\""), 2 * AQ_BOARD_STEPS);
    assert_non_null(strstr(text, "<dt>sent, all links</dt><dd>29.3 MiB</dd>"));
    assert_non_null(strstr(text, "<dt>stage hours</dt><dd>3</dd>"));
    aq_board_json(view, &json);
    assert_non_null(strstr(aq_text_of(&json), "\"waits_for_link_before\":0.35"));
    assert_non_null(strstr(aq_text_of(&json), "\"stage_hours\":3.0"));
    aq_text_deinit(&page);
    aq_text_deinit(&json);
}

static void test_findings_have_remedies(void **state)
{
    (void)state;
    struct aq_board_finding found[AQ_BOARD_FINDINGS_MAX];
    line(START);
    aq_board_look(board, view);
    assert_int_equal(aq_board_findings(view, found), 0);
    line("{\"event\":\"go\",\"step\":0}");
    line(STEP);
    aq_board_look(board, view);
    assert_int_equal(aq_board_findings(view, found), 1); /* c_Q; links hold stages up 37 % of the time */
    assert_false(found[0].bad);
    assert_non_null(strstr(found[0].text, "stage 0 sends is 0.800"));
    struct aq_board_rank ranks[2] = {{.lives = true, .silent_s = 31, .pid = 7}, {.lives = false, .silent_s = 99}};
    assert_string_equal(aq_board_does(&ranks[1]), "is not there");
    aq_board_ranks(board, ranks, 2);
    aq_board_look(board, view);
    assert_int_equal(aq_board_findings(view, found), 2);
    assert_true(found[0].bad);
    assert_non_null(strstr(found[0].text, "stage 0 (pid 7) has been silent for 31 s"));
    ranks[1].away_s = 12;
    assert_string_equal(aq_board_does(&ranks[1]), "waits for its daemon, which is out of reach");
    aq_board_ranks(board, ranks, 2);
    aq_board_look(board, view);
    assert_int_equal(aq_board_findings(view, found), 3);
    assert_string_equal(found[2].text, "the daemon of stage 1 has been out of reach for 12 s");
    ranks[1].away_s = 0;
    aq_board_ranks(board, ranks, 2);
    aq_board_look(board, view);
    view->loss = (double)NAN;
    view->rank[0].parts[AQ_BOARD_LINK_WAIT] = 1.2;
    assert_int_equal(aq_board_findings(view, found), 4);
    for (int i = 0; i < 4; i++)
        assert_true(*found[i].text && *found[i].remedy);
}

/* More ranks than a table of findings has places: the first so many. */
static void test_findings_are_bounded(void **state)
{
    (void)state;
    struct aq_board_finding found[AQ_BOARD_FINDINGS_MAX];
    line("{\"event\":\"start\",\"name\":\"x\",\"stages\":64,\"replicas\":4,\"steps_planned\":10}");
    aq_board_look(board, view);
    assert_int_equal(view->ranks, 256);
    for (uint32_t r = 0; r < view->ranks; r++)
        view->rank[r].gauges[AQ_BOARD_CQ] = 2;
    assert_int_equal(aq_board_findings(view, found), AQ_BOARD_FINDINGS_MAX);
    line("{\"event\":\"start\",\"name\":\"x\",\"stages\":1e9,\"replicas\":-4,\"steps_planned\":10}"); /* not ours */
    aq_board_look(board, view);
    assert_true(view->ranks >= 1 && view->ranks <= AQ_JOB_RANKS_MAX);
}

static void test_texts_are_escaped(void **state)
{
    (void)state;
    struct aq_text page = {0}, json = {0}, metrics = {0};
    line(START);
    line(STEP);
    line("{\"event\":\"end\",\"state\":\"failed\",\"cause\":\"</main><img src=x onerror=alert(1)>\"}");
    aq_board_look(board, view);
    aq_board_page(view, &page);
    aq_board_json(view, &json);
    aq_board_metrics(view, &metrics);
    assert_null(strstr(aq_text_of(&page), "<script>&"));
    assert_null(strstr(aq_text_of(&page), "<img"));
    assert_null(strstr(aq_text_of(&page), "\x1b"));
    assert_non_null(strstr(aq_text_of(&page), "&lt;script&gt;&amp;&quot;\\x1b[2J"));
    json_t *read = json_loads(aq_text_of(&json), 0, NULL);
    assert_non_null(read);
    assert_string_equal(aq_control_text_or(read, "state", ""), "failed");
    json_decref(read);
    assert_non_null(strstr(aq_text_of(&metrics), "aqpipe_loss{job=\"<script>&\\\"\\\\x1b[2J\"} 1.5\n"));
    assert_non_null(
        strstr(aq_text_of(&metrics), "aqpipe_state{job=\"<script>&\\\"\\\\x1b[2J\",aqpipe_state=\"failed\"} 1\n"));
    assert_string_equal(aq_text_of(&metrics) + metrics.used - 6, "# EOF\n");
    aq_text_deinit(&page);
    aq_text_deinit(&json);
    aq_text_deinit(&metrics);
}

/* status.json has a host's whole name, of up to 253 characters, with its port and its certificate's name. */
static void test_long_names_of_hosts_stay_whole(void **state)
{
    (void)state;
    char host[AQ_BOARD_HOST_BYTES], start[2 * sizeof host];
    struct aq_text json = {0};
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = 0;
    snprintf(start, sizeof start, "{\"event\":\"start\",\"name\":\"x\",\"stages\":2,\"hosts\":[\"%s\",null]}", host);
    line(start);
    aq_board_look(board, view);
    assert_string_equal(view->rank[0].host, host);
    aq_board_json(view, &json);
    assert_non_null(strstr(aq_text_of(&json), host));
    aq_text_deinit(&json);
}

/* A split-server's page names the split-server, and its means are of the clients that have a figure. */
static void test_page_of_a_split_server(void **state)
{
    (void)state;
    struct aq_text page = {0};
    struct aq_board_split now = {.job = "both", .mode = "fed", .round = 1, .rounds = 2, .clients = 3};
    for (uint32_t i = 0; i < now.clients; i++) {
        struct aq_board_client *client = &now.client[i];
        *client =
            (struct aq_board_client){.bytes = NAN, .loss = 2.0 + i, .accuracy = i == 1 ? (double)NAN : 0.5 + 0.125 * i};
        client->epsilon = i == 2 ? 4.5 : (double)NAN;
        client->delta = i == 2 ? 1e-6 : (double)NAN;
        snprintf(client->name, sizeof client->name, "c%u", i);
    }
    aq_board_split(board, &now, AQ_BOARD_RUNNING, "");
    aq_board_look(board, view);
    aq_board_page(view, &page);
    assert_non_null(strstr(aq_text_of(&page), "<dt>held-out loss, mean</dt><dd>3</dd>"));
    assert_non_null(strstr(aq_text_of(&page), "<dt>accuracy, mean</dt><dd>0.625 (2 of 3 clients)</dd>"));
    assert_non_null(strstr(aq_text_of(&page), "<p id=\"gone\">The split-server has not answered since <span></span>"));
    assert_null(strstr(aq_text_of(&page), "launcher"));
    assert_non_null(strstr(aq_text_of(&page), "<th>epsilon</th>"));
    assert_non_null(strstr(aq_text_of(&page), "<td>4.5000</td></tr>"));
    aq_text_deinit(&page);
    aq_board_metrics(view, &page);
    assert_non_null(strstr(aq_text_of(&page), "aqpipe_split_client_epsilon{job=\"both\",client=\"c2\"} 4.5\n"));
    assert_non_null(strstr(aq_text_of(&page), "aqpipe_split_client_delta{job=\"both\",client=\"c2\"} 1e-06\n"));
    assert_null(strstr(aq_text_of(&page), "epsilon{job=\"both\",client=\"c1\"}"));
    aq_text_deinit(&page);
    for (uint32_t i = 0; i < now.clients; i++)
        now.client[i].epsilon = NAN; /* no client has noise: no column */
    for (uint32_t i = 0; i < now.clients; i++)
        now.client[i].accuracy = NAN;
    aq_board_split(board, &now, AQ_BOARD_RUNNING, "");
    aq_board_look(board, view);
    aq_board_page(view, &page);
    assert_non_null(strstr(aq_text_of(&page), "<dt>accuracy, mean</dt><dd>&ndash;</dd>"));
    assert_null(strstr(aq_text_of(&page), "epsilon"));
    aq_text_deinit(&page);
}

static void test_no_board_is_fine(void **state)
{
    (void)state;
    aq_board_line(NULL, NULL);
    aq_board_phase(NULL, "x");
    aq_board_stopping(NULL);
    aq_board_ranks(NULL, NULL, 0);
    aq_board_run(NULL, "x");
    aq_board_close(NULL);
}

/* A curve halves its points when it is full, and loses no extreme. */
static void test_curve_keeps_extremes(void **state)
{
    (void)state;
    void *memory;
    assert_int_equal(aq_alloc(sizeof(struct aq_curve), &memory), AQ_OK);
    struct aq_curve *curve = memory;
    for (int step = 1; step <= 10000; step++) {
        json_t *json = json_pack("{s:s, s:i, s:f, s:f}", "event", "step", "step", step, "time", (double)step, "loss",
                                 step == 5001   ? 99.0
                                 : step == 7000 ? -99.0
                                                : 1.0);
        aq_curve_add(curve, json);
        json_decref(json);
    }
    double low = 0, high = 0, sum = 0;
    uint64_t steps = 0;
    for (uint32_t i = 0; i < curve->count; i++) {
        const struct aq_curve_point *point = &curve->points[i];
        low = fmin(low, point->low[AQ_CURVE_LOSS]);
        high = fmax(high, point->high[AQ_CURVE_LOSS]);
        sum += point->mean[AQ_CURVE_LOSS] * (double)point->seen[AQ_CURVE_LOSS];
        steps += point->steps;
        assert_true(point->steps == curve->each || i + 1 == curve->count);
        assert_true(i == 0 || point->x[AQ_CURVE_STEP] > curve->points[i - 1].x[AQ_CURVE_STEP]);
    }
    assert_true(low == -99 && high == 99 && fabs(sum - 9998) < 1e-6);
    assert_int_equal(steps, 10000);
    assert_int_equal(curve->each, 8);
    assert_true(curve->points[curve->count - 1].x[AQ_CURVE_STEP] == 10000);
    aq_free(memory);
}

int main(void)
{
    aq_log_init(AQ_LOG_COMMAND);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_states_say_what_they_wait_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_figures_of_ranks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_page_shows_links_steps_and_cost, setup, teardown),
        cmocka_unit_test_setup_teardown(test_findings_have_remedies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_findings_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_texts_are_escaped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_names_of_hosts_stay_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_page_of_a_split_server, setup, teardown),
        cmocka_unit_test(test_no_board_is_fine),
        cmocka_unit_test(test_curve_keeps_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
