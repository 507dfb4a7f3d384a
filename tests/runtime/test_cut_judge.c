/*
 * test_cut_judge.c -- what is lost without failing is found once, with what to change, and from metrics.jsonl it comes
 * to the report and the board.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "board.h"
#include "control.h"
#include "cut_judge.h"
#include "report_sums.h"

static const char manifest[] = "model: {blocks: 6, channels: 64, heads: 4, context: 32, vocabulary: 256}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2, clip: 1, epochs: 3}\n"
                               "pipeline: {stages: 3, replicas: 2}\n"
                               "facts: {vocabulary: 256, train_samples: 160, train_digest: 1, heldout_samples: 0}\n";

static struct aq_job *job;
static struct aq_plan *plan;
static struct aq_cut_judge *judge;

static void begin(const char *const *sets)
{
    uint32_t count = 0;
    while (sets[count])
        count++;
    assert_int_equal(aq_job_parse(manifest, sizeof manifest - 1, "job.yaml", "/", sets, count, &job), AQ_OK);
    assert_int_equal(aq_plan_open(job, &plan), AQ_OK);
    assert_int_equal(aq_cut_judge_open(plan, &judge), AQ_OK);
    aq_cut_judge_begin(judge);
}

static void end(void)
{
    aq_cut_judge_close(judge);
    aq_plan_close(plan);
    aq_job_close(job);
}

/* Two replicas of three stages, whose steps have 16 samples; `more` is what they report beside the loss. */
static uint32_t step(const char *more, struct aq_notice *out)
{
    char text[600];
    snprintf(text, sizeof text, "{\"event\":\"step\",\"step\":1,\"samples\":16,\"loss\":2.5,%s}", more);
    json_t *line = json_loads(text, 0, NULL);
    assert_non_null(line);
    const uint32_t count = aq_cut_judge_step(judge, line, out);
    json_decref(line);
    return count;
}

static const char *const as_is[] = {NULL};

static void test_judge_finds_raw_samples_of_both_directions_once(void **state)
{
    (void)state;
    static const char *const named[] = {"edges.forward={codec: aqsgd, store: fp16}", "edges.backward={codec: directq}",
                                        NULL};
    struct aq_notice out[AQ_NOTICES_AT_ONCE];
    begin(named);
    /* 1 of 16 samples of cut 0 and, the other way, of cut 1, on one replica: not before 32 samples were seen. */
    const char *const raw = "\"raws\":[0,0,null,1,0,null],\"raw_peak\":[null,null,null,71000,null,null],"
                            "\"backward_raws\":[0,0,1,0,0,0],\"backward_raw_peak\":[null,null,1.5,null,null,null]";
    assert_int_equal(step(raw, out), 0);
    assert_int_equal(step(raw, out), 2);
    assert_string_equal(out[0].cause, "raw");
    assert_int_equal(out[0].at, 0);
    assert_false(out[0].backward || out[0].ends);
    assert_non_null(strstr(out[0].text, "cut 0 forward: 2 of 32 samples went as 32-bit floats"));
    assert_non_null(strstr(out[0].text, "the largest is 7.1e+04, fp16 ends at 6.55e+04"));
    assert_string_equal(out[0].remedy, "edges.forward: {store: bf16, keyframe: bf16, scale_format: bf16}");
    assert_int_equal(out[1].at, 1);
    assert_true(out[1].backward);
    assert_non_null(strstr(out[1].text, "cut 1 backward: 2 of 32 samples"));
    assert_non_null(strstr(out[1].text, "the largest is 1.5, fp16 ends at 1"));
    assert_string_equal(out[1].remedy, "edges.backward: {scale_format: bf16}");
    for (int i = 0; i < 50; i++)
        assert_int_equal(step(raw, out), 0);
    aq_cut_judge_begin(judge); /* the run begins again: it was said */
    for (int i = 0; i < 50; i++)
        assert_int_equal(step(raw, out), 0);
    end();
    begin(named); /* 1 in 128 is less than a hundredth */
    assert_int_equal(step("\"raws\":[0,0,null,0,0,null]", out), 0);
    for (int i = 0; i < 64; i++)
        assert_int_equal(step(i % 8 == 7 ? "\"raws\":[0,0,null,1,0,null]" : "\"raws\":[0,0,null,0,0,null]", out), 0);
    end();
}

static void test_judge_finds_gradients_that_are_lost(void **state)
{
    (void)state;
    static const char *const guarded[] = {"edges.guard=true", NULL};
    struct aq_notice out[AQ_NOTICES_AT_ONCE];
    const char *const lost = "\"gradient_error_ratio\":[null,0.1,0.6,null,0.1,0.2]";
    const char *const well = "\"gradient_error_ratio\":[null,0.1,0.4,null,0.1,0.2]";
    for (int guard = 0; guard < 2; guard++) {
        const int due = guard ? 32 : 8; /* a guard has three more levels */
        begin(guard ? guarded : as_is);
        for (int i = 0; i < 40; i++)
            assert_int_equal(step(i % 8 == 7 ? well : lost, out), 0);
        for (int i = 1; i < due; i++)
            assert_int_equal(step(lost, out), 0);
        assert_int_equal(step(lost, out), 1);
        assert_string_equal(out[0].cause, "error");
        assert_int_equal(out[0].at, 1);
        assert_non_null(strstr(out[0].text, "cut 1 backward: "));
        assert_non_null(strstr(out[0].text, "error 0.60 of their size"));
        assert_int_equal(strstr(out[0].remedy, "edges.guard") == NULL, guard);
        for (int i = 0; i < 40; i++)
            assert_int_equal(step(lost, out), 0);
        end();
    }
}

/* 12 % at each of two cuts is 16 or 17 % in all. */
static void test_judge_finds_activations_that_are_lost(void **state)
{
    (void)state;
    static const struct {
        const char *set, *remedy;
    } codecs[] = {{"job.name=defaults", "rate: 3.5 in place of 2.5"},
                  {"edges.forward={codec: aqsgd, bits: 4}", "bits: 5 in place of 4"},
                  {"edges.forward={codec: ec, rate: 8}", "a codec with less error than ec"},
                  {"edges.forward={codec: ec, error: 0.2}", "a smaller error than 0.2"},
                  {"edges.forward={codec: sign}", "a codec with less error than sign"}};
    struct aq_notice out[AQ_NOTICES_AT_ONCE];
    const char *const lost =
        "\"delta_ratio\":[0.4,0.4,null,0.1,0.2,null],\"error_ratio\":[0.28,0.3,null,0.25,0.3,null]";
    const char *const well =
        "\"delta_ratio\":[0.4,0.3,null,0.1,0.2,null],\"error_ratio\":[0.28,0.3,null,0.25,0.3,null]";
    const char *const cold = "\"delta_ratio\":[null,null,null,null,null,null]";
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        const char *const sets[] = {codecs[c].set, NULL};
        begin(sets);
        const uint64_t due = 5 * plan->steps_per_epoch;
        assert_int_equal(due, 100);
        for (int i = 0; i < 400; i++)
            assert_int_equal(step(i % 64 == 63 ? i % 128 == 63 ? well : cold : lost, out), 0);
        assert_int_equal(step(well, out), 0);
        for (uint64_t i = 1; i < due; i++)
            assert_int_equal(step(lost, out), 0);
        assert_int_equal(step(lost, out), 1);
        assert_string_equal(out[0].cause, "activations");
        assert_int_equal(out[0].at, 1);
        assert_false(out[0].backward || out[0].ends);
        assert_non_null(
            strstr(out[0].text, "100 steps in a row the cuts lost 16 % of the activations (most at cut 1)"));
        assert_non_null(strstr(out[0].remedy, codecs[c].remedy));
        aq_cut_judge_begin(judge); /* it was said */
        for (uint64_t i = 0; i < 3 * due; i++)
            assert_int_equal(step(lost, out), 0);
        end();
    }
}

static void test_judge_finds_stages_that_train_nothing(void **state)
{
    (void)state;
    static const char *const ways[3][2] = {{NULL}, {"train.idle_stage=warn", NULL}, {"train.idle_stage=ignore", NULL}};
    struct aq_notice out[AQ_NOTICES_AT_ONCE];
    const char *const idle = "\"stage_grad_norm\":[0,0,0.5,0,0,0.5]";
    for (int way = 0; way < 3; way++) {
        begin(ways[way]);
        for (int i = 0; i < 19; i++)
            assert_int_equal(step(idle, out), 0);
        assert_int_equal(step("\"stage_grad_norm\":[0,1e-9,0.5,0,0,0.5]", out), way < 2); /* stage 0 alone by now */
        if (way < 2) {
            assert_string_equal(out[0].cause, "idle");
            assert_int_equal(out[0].ends, way == 0);
            assert_non_null(strstr(out[0].text, "stage 0 has trained nothing in 20 steps"));
            assert_non_null(strstr(out[0].remedy, "does cut 0 lose the gradients?"));
        }
        for (int i = 0; i < 19; i++)
            assert_int_equal(step(idle, out), 0);
        assert_int_equal(step(idle, out), way < 2);
        if (way < 2) assert_non_null(strstr(out[0].text, "stages 0 to 1 have trained nothing"));
        assert_int_equal(step(idle, out), 0);
        end();
    }
    begin(as_is); /* nothing to train, no loss, a loss of 0, a step that was skipped */
    for (int i = 0; i < 60; i++) {
        assert_int_equal(step("\"stage_grad_norm\":[null,1,1,null,1,1]", out), 0);
        assert_int_equal(
            step(i % 3 ? "\"stage_grad_norm\":[0,1,1,0,1,1]" : "\"stage_grad_norm\":[null,1,1,0.1,1,1]", out), 0);
    }
    for (int i = 0; i < 60; i++)
        assert_int_equal(step("\"stage_grad_norm\":[0,1,1,0,1,1],\"loss\":0", out), 0);
    end();
}

/* A line of metrics.jsonl comes to the report and the page once, also where a run that began again wrote it twice. */
static void test_notice_comes_to_report_and_board(void **state)
{
    (void)state;
    struct aq_notice notice = {.cause = "raw", .at = 1, .backward = true, .text = "what <was> seen", .remedy = "that"};
    struct aq_report_sums sums, again;
    struct aq_board *board;
    struct aq_board_finding findings[AQ_BOARD_FINDINGS_MAX];
    aq_report_sums_init(&sums);
    assert_int_equal(aq_board_open(&board), AQ_OK);
    for (uint64_t i = 0; i < 4; i++) {
        notice.backward = i < 3;
        json_t *line = aq_notice_line(&notice, i);
        assert_non_null(line);
        (void)aq_report_sums_add(line, &sums);
        aq_board_line(board, line);
        json_decref(line);
    }
    assert_int_equal(json_array_size(sums.notices), 2); /* backward and forward */
    json_t *kept = aq_report_sums_json(&sums);
    assert_true(aq_report_sums_take(&again, kept));
    assert_true(json_equal(again.notices, sums.notices));
    json_decref(kept);
    aq_report_sums_deinit(&again);
    aq_report_sums_deinit(&sums);
    void *memory;
    assert_int_equal(aq_alloc(sizeof(struct aq_board_view), &memory), AQ_OK);
    struct aq_board_view *view = memory;
    aq_board_look(board, view);
    assert_int_equal(aq_board_findings(view, findings), 1);
    assert_string_equal(findings[0].text, "what <was> seen");
    assert_string_equal(findings[0].remedy, "that");
    aq_free(view);
    aq_board_close(board);
}

static int no_memory_left(void **state)
{
    (void)state;
    return aq_memory_used() == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_judge_finds_raw_samples_of_both_directions_once, no_memory_left),
        cmocka_unit_test_teardown(test_judge_finds_gradients_that_are_lost, no_memory_left),
        cmocka_unit_test_teardown(test_judge_finds_activations_that_are_lost, no_memory_left),
        cmocka_unit_test_teardown(test_judge_finds_stages_that_train_nothing, no_memory_left),
        cmocka_unit_test_teardown(test_notice_comes_to_report_and_board, no_memory_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
