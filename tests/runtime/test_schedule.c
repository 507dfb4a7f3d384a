/*
 * test_schedule.c -- golden grids of schedules, and programs that the dry run must refuse, each for its reason.
 *
 * golden/grid_*.txt are made by this test where AQ_GOLDEN is set; look at them before you commit them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "log_capture.h"
#include "program.h"
#include "program_run.h"

enum { STAGES = 8, CODE_MAX = 300, GOLDEN_BYTES = 16384 };

static struct aq_instruction code[STAGES][CODE_MAX];
static struct aq_program programs[STAGES];

static void emit_all(const struct aq_schedule_request *request)
{
    for (uint32_t s = 0; s < request->stages; s++)
        assert_int_equal(aq_schedule_emit(request, s, code[s], CODE_MAX, &programs[s]), AQ_OK);
}

static void golden(const char *name, const struct aq_schedule_request *request, uint32_t columns)
{
    static char want[GOLDEN_BYTES];
    char path[512];
    struct aq_text text = {0};
    emit_all(request);
    assert_int_equal(aq_program_grid(programs, request->stages, columns, &text), AQ_OK);
    snprintf(path, sizeof path, "%s/tests/golden/grid_%s.txt", AQ_SOURCE_DIR, name);
    FILE *file = fopen(path, getenv("AQ_GOLDEN") ? "w+" : "r");
    assert_non_null(file);
    if (getenv("AQ_GOLDEN")) {
        fputs(aq_text_of(&text), file);
        rewind(file);
    }
    want[fread(want, 1, sizeof want - 1, file)] = 0;
    fclose(file);
    assert_string_equal(aq_text_of(&text), want);
    aq_text_deinit(&text);
}

static void test_grid_of_schedules_is_golden(void **state)
{
    (void)state;
    struct aq_schedule_request request = {.kind = AQ_SCHEDULE_GPIPE, .stages = 4, .micro_batches = 4};
    golden("gpipe_4x4", &request, 0);
    request.in_flight = 2;
    golden("gpipe_4x4_rounds_of_2", &request, 0);
    request = (struct aq_schedule_request){.kind = AQ_SCHEDULE_1F1B, .stages = 4, .micro_batches = 8};
    golden("1f1b_4x8", &request, 0);
    request.in_flight = AQ_IN_FLIGHT_CLASSIC;
    golden("1f1b_4x8_classic", &request, 0);
    request.window = 2;
    golden("1f1b_4x8_classic", &request, 0); /* does not show */
    request = (struct aq_schedule_request){.kind = AQ_SCHEDULE_1F1B, .stages = 8, .micro_batches = 32};
    golden("1f1b_8x32_abridged", &request, 100);
    request = (struct aq_schedule_request){.kind = AQ_SCHEDULE_1F1B, .stages = 1, .micro_batches = 3};
    golden("1f1b_1x3", &request, 0);
    request = (struct aq_schedule_request){.kind = AQ_SCHEDULE_ZB, .stages = 4, .micro_batches = 8};
    golden("zb-h1_4x8", &request, 0);
    request.in_flight = AQ_IN_FLIGHT_CLASSIC;
    golden("zb-h1_4x8_classic", &request, 0);
}

static void test_program_of_1f1b_is_as_written(void **state)
{
    (void)state;
    static const struct {
        enum aq_op op;
        uint32_t micro_batch, slot;
    } want[] = {{AQ_OP_PREFETCH, 1, 0}, {AQ_OP_RECV_FWD, 0, 0}, {AQ_OP_FORWARD, 0, 0},  {AQ_OP_BACKWARD, 0, 0},
                {AQ_OP_SEND_BWD, 0, 0}, {AQ_OP_PREFETCH, 2, 0}, {AQ_OP_RECV_FWD, 1, 0}, {AQ_OP_FORWARD, 1, 0},
                {AQ_OP_BACKWARD, 1, 0}, {AQ_OP_SEND_BWD, 1, 0}, {AQ_OP_NORM, 0, 0},     {AQ_OP_STEP, 0, 0},
                {AQ_OP_MARK, 0, 0}};
    const struct aq_schedule_request request = {.kind = AQ_SCHEDULE_1F1B, .stages = 2, .micro_batches = 2, .window = 1};
    emit_all(&request);
    assert_int_equal(programs[1].count, sizeof want / sizeof *want);
    for (uint32_t i = 0; i < programs[1].count; i++) {
        assert_int_equal(code[1][i].op, want[i].op);
        assert_int_equal(code[1][i].micro_batch, want[i].micro_batch);
        assert_int_equal(code[1][i].slot, want[i].slot);
    }
}

/* On stage 0 slot 0 is wanted again by the third forward; the last stage puts off what it can. */
static void test_program_of_zb_is_as_written(void **state)
{
    (void)state;
    static const struct {
        enum aq_op op;
        uint32_t micro_batch;
    } first[] = {{AQ_OP_FORWARD, 0},  {AQ_OP_SEND_FWD, 0}, {AQ_OP_FORWARD, 1},  {AQ_OP_SEND_FWD, 1},
                 {AQ_OP_RECV_BWD, 0}, {AQ_OP_BACKWARD, 0}, {AQ_OP_WEIGHTS, 0},  {AQ_OP_FORWARD, 2},
                 {AQ_OP_SEND_FWD, 2}, {AQ_OP_RECV_BWD, 1}, {AQ_OP_BACKWARD, 1}, {AQ_OP_RECV_BWD, 2},
                 {AQ_OP_BACKWARD, 2}, {AQ_OP_WEIGHTS, 1},  {AQ_OP_WEIGHTS, 2}},
      last[] = {{AQ_OP_RECV_FWD, 0}, {AQ_OP_FORWARD, 0},  {AQ_OP_BACKWARD, 0}, {AQ_OP_SEND_BWD, 0}, {AQ_OP_RECV_FWD, 1},
                {AQ_OP_FORWARD, 1},  {AQ_OP_BACKWARD, 1}, {AQ_OP_SEND_BWD, 1}, {AQ_OP_WEIGHTS, 0},  {AQ_OP_RECV_FWD, 2},
                {AQ_OP_FORWARD, 2},  {AQ_OP_BACKWARD, 2}, {AQ_OP_SEND_BWD, 2}, {AQ_OP_WEIGHTS, 1},  {AQ_OP_WEIGHTS, 2}};
    const struct aq_schedule_request request = {
        .kind = AQ_SCHEDULE_ZB, .stages = 2, .micro_batches = 3, .in_flight = AQ_IN_FLIGHT_CLASSIC};
    emit_all(&request);
    for (uint32_t s = 0; s < 2; s++) {
        assert_true(programs[s].split);
        assert_int_equal(programs[s].slots, 2);
        assert_int_equal(programs[s].count, sizeof first / sizeof *first + 3);
        for (uint32_t i = 0; i + 3 < programs[s].count; i++) {
            assert_int_equal(code[s][i].op, s ? last[i].op : first[i].op);
            assert_int_equal(code[s][i].micro_batch, s ? last[i].micro_batch : first[i].micro_batch);
            assert_int_equal(code[s][i].slot, code[s][i].micro_batch % 2);
        }
    }
}

/* --- a flush ---------------------------------------------------------------------------------------------------- */

/* A link that has brought so many activations, and every gradient. */
static enum aq_status arrived(void *self, const struct aq_program_item *item)
{
    const uint32_t *count = self;
    return item->op == AQ_OP_RECV_FWD && item->number >= *count ? AQ_AGAIN : AQ_OK;
}

/* Backwards of the last stage of two that run while only so many of M activations have come. */
static uint32_t backwards_early(bool flush, uint32_t M, uint32_t in_flight, uint32_t count)
{
    const struct aq_schedule_request request = {
        .kind = AQ_SCHEDULE_GPIPE, .stages = 2, .micro_batches = M, .in_flight = in_flight, .flush = flush};
    const struct aq_program_policy policy = {.begin = arrived, .self = &count};
    struct aq_program_run run;
    uint32_t lane, backwards = 0;
    emit_all(&request);
    aq_program_run_init(&run, &programs[1], AQ_LANES_CHAINS, 1);
    aq_program_run_add(&run, &programs[1], M);
    while (aq_program_run_begin(&run, &policy, &lane) == AQ_OK)
        backwards += aq_program_run_end(&run, lane) == AQ_OP_BACKWARD;
    return backwards;
}

static void test_flush_holds_backwards_until_all_forwards_are_done(void **state)
{
    (void)state;
    for (uint32_t count = 0; count <= 6; count++) {
        assert_int_equal(backwards_early(false, 6, AQ_IN_FLIGHT_DEFAULT, count), count);
        assert_int_equal(backwards_early(true, 6, AQ_IN_FLIGHT_DEFAULT, count), count < 6 ? 0 : 6);
        /* In rounds of four: the second one has only two. */
        assert_int_equal(backwards_early(true, 6, 4, count), count < 4 ? 0 : count < 6 ? 4 : 6);
    }
}

/* --- what must be refused --------------------------------------------------------------------------------------- */

static uint32_t find(uint32_t stage, enum aq_op op, uint32_t micro_batch)
{
    for (uint32_t i = 0; i < programs[stage].count; i++)
        if (code[stage][i].op == op && code[stage][i].micro_batch == micro_batch) return i;
    fail_msg("stage %u has no such instruction", stage);
    return 0;
}

static void erase(uint32_t stage, uint32_t index)
{
    memmove(&code[stage][index], &code[stage][index + 1], (programs[stage].count - index - 1) * sizeof **code);
    programs[stage].count--;
}

static void swap(uint32_t stage, uint32_t a, uint32_t b)
{
    const struct aq_instruction kept = code[stage][a];
    code[stage][a] = code[stage][b];
    code[stage][b] = kept;
}

static void fresh(enum aq_schedule_kind kind)
{
    const struct aq_schedule_request request = {.kind = kind, .stages = 3, .micro_batches = 6};
    emit_all(&request);
}

static void refused_limits(const char *words, const struct aq_program_limits *limits)
{
    struct aq_text why = {0};
    capture_begin();
    const enum aq_status status = aq_program_check(programs, 3, limits, &why);
    capture_end();
    if (!strstr(aq_text_of(&why), words)) print_error("wanted '%s', got:\n%s\n", words, aq_text_of(&why));
    assert_int_equal(status, AQ_INVAL);
    assert_non_null(strstr(aq_text_of(&why), words));
    assert_non_null(strchr(aq_text_of(&why), '>')); /* the bad step is marked in the grid */
    assert_int_equal(captured.count, 1);
    aq_text_deinit(&why);
}

static void refused(const char *words)
{
    const struct aq_program_limits limits = {.credits = 8, .send_frames = 8};
    refused_limits(words, &limits);
}

static void test_check_refuses_what_is_out_of_turn(void **state)
{
    (void)state;
    fresh(AQ_SCHEDULE_GPIPE);
    erase(0, find(0, AQ_OP_SEND_FWD, 5)); /* the last forward is never sent */
    refused("comes out of turn");
    fresh(AQ_SCHEDULE_1F1B);
    swap(2, find(2, AQ_OP_RECV_FWD, 0), find(2, AQ_OP_FORWARD, 0));
    refused("comes out of turn");
    fresh(AQ_SCHEDULE_1F1B); /* stage 0 wants its first gradient before it sent what the last stage needs for it */
    for (uint32_t i = find(0, AQ_OP_RECV_BWD, 0); i > find(0, AQ_OP_SEND_FWD, 0); i--)
        swap(0, i, i - 1);
    refused("comes out of turn");
    fresh(AQ_SCHEDULE_1F1B);
    code[0][1] = code[0][0]; /* a forward twice */
    refused("comes out of turn");
}

/* Stage 1 wants all six forwards before its first backward, stage 0 has one slot: only chains of their own bring both
 * on. */
static void test_check_allows_stages_of_different_depth(void **state)
{
    (void)state;
    const struct aq_schedule_request few = {.kind = AQ_SCHEDULE_1F1B, .stages = 3, .micro_batches = 6, .in_flight = 1};
    const struct aq_schedule_request all = {.kind = AQ_SCHEDULE_GPIPE, .stages = 3, .micro_batches = 6};
    const struct aq_program_limits limits = {.credits = 1, .send_frames = 0};
    emit_all(&few);
    assert_int_equal(aq_schedule_emit(&all, 1, code[1], CODE_MAX, &programs[1]), AQ_OK);
    assert_int_equal(aq_program_check(programs, 3, &limits, NULL), AQ_OK);
}

static void test_check_refuses_too_few_credits(void **state)
{
    (void)state;
    const struct aq_program_limits limits = {.credits = 0, .send_frames = 0};
    fresh(AQ_SCHEDULE_1F1B);
    refused_limits("deadlock", &limits);
}

static void test_check_refuses_wrong_slots(void **state)
{
    (void)state;
    fresh(AQ_SCHEDULE_1F1B);
    code[1][find(1, AQ_OP_RECV_FWD, 1)].slot = 0;
    refused("still holds micro-batch 0");
    fresh(AQ_SCHEDULE_1F1B);
    code[1][find(1, AQ_OP_FORWARD, 1)].slot = 0;
    refused("does not hold this micro-batch");
    fresh(AQ_SCHEDULE_1F1B);
    code[0][find(0, AQ_OP_FORWARD, 1)].slot = 77;
    refused("slot 77, but the stage has");
}

static void test_check_refuses_wrong_order(void **state)
{
    (void)state;
    fresh(AQ_SCHEDULE_GPIPE);
    const uint32_t a = find(2, AQ_OP_BACKWARD, 2), b = find(2, AQ_OP_BACKWARD, 3);
    swap(2, a, b);
    swap(2, a + 1, b + 1);
    refused("backwards must come in order");
    fresh(AQ_SCHEDULE_GPIPE);
    for (uint32_t i = 0; i < 3; i++)
        swap(1, find(1, AQ_OP_RECV_FWD, 2) + i, find(1, AQ_OP_RECV_FWD, 3) + i);
    refused("receives must come in order, micro-batch 2 is next");
    fresh(AQ_SCHEDULE_GPIPE);
    for (uint32_t i = 0; i < 2; i++)
        swap(0, find(0, AQ_OP_FORWARD, 4) + i, find(0, AQ_OP_FORWARD, 5) + i);
    refused("forwards must come in order, micro-batch 4 is next");
    fresh(AQ_SCHEDULE_GPIPE);
    swap(1, find(1, AQ_OP_FORWARD, 1), find(1, AQ_OP_SEND_FWD, 0));
    swap(1, find(1, AQ_OP_RECV_FWD, 1), find(1, AQ_OP_FORWARD, 1));
    swap(1, find(1, AQ_OP_SEND_FWD, 0), find(1, AQ_OP_SEND_FWD, 1));
    refused("sends must come in order, micro-batch 0 is next");
}

static void test_check_refuses_weight_halves_out_of_turn(void **state)
{
    (void)state;
    fresh(AQ_SCHEDULE_ZB);
    swap(0, find(0, AQ_OP_WEIGHTS, 0), find(0, AQ_OP_BACKWARD, 0));
    refused("comes out of turn");
    fresh(AQ_SCHEDULE_ZB);
    swap(2, find(2, AQ_OP_WEIGHTS, 4), find(2, AQ_OP_WEIGHTS, 5));
    refused("weight halves must come in order, micro-batch 4 is next");
    fresh(AQ_SCHEDULE_ZB);
    swap(1, find(1, AQ_OP_WEIGHTS, 0), find(1, AQ_OP_RECV_FWD, 5)); /* whose slot it is to free */
    refused("still holds micro-batch 0");
    fresh(AQ_SCHEDULE_ZB);
    erase(1, find(1, AQ_OP_WEIGHTS, 5));
    refused("before all weight halves");
    fresh(AQ_SCHEDULE_ZB);
    swap(1, find(1, AQ_OP_WEIGHTS, 5), find(1, AQ_OP_NORM, 0));
    refused("before all weight halves");
    fresh(AQ_SCHEDULE_1F1B);
    code[0][find(0, AQ_OP_BACKWARD, 5)].op = AQ_OP_WEIGHTS; /* of a backward that is whole */
    refused("comes out of turn");
}

static void test_check_refuses_wrong_ends(void **state)
{
    (void)state;
    fresh(AQ_SCHEDULE_1F1B);
    erase(1, find(1, AQ_OP_STEP, 0));
    refused("comes before STEP");
    fresh(AQ_SCHEDULE_1F1B);
    erase(1, find(1, AQ_OP_MARK, 0));
    refused("0 MARK");
    fresh(AQ_SCHEDULE_1F1B);
    erase(1, find(1, AQ_OP_NORM, 0));
    refused("comes after 0 NORM");
    fresh(AQ_SCHEDULE_1F1B);
    code[0][find(0, AQ_OP_STEP, 0)].op = 200;
    refused("no such instruction");
    fresh(AQ_SCHEDULE_1F1B);
    code[0][0] = (struct aq_instruction){.op = AQ_OP_STEP};
    refused("before all backwards");
    fresh(AQ_SCHEDULE_1F1B);
    code[2][find(2, AQ_OP_FORWARD, 0)].micro_batch = 4000000000u;
    refused("there is no micro-batch");
    fresh(AQ_SCHEDULE_1F1B);
    programs[2].count -= 2; /* neither STEP nor MARK */
    refused("0 STEP");
}

static void fresh_replicas(void)
{
    const struct aq_schedule_request request = {
        .kind = AQ_SCHEDULE_1F1B, .stages = 3, .micro_batches = 6, .reduce = true};
    emit_all(&request);
}

static void test_check_refuses_wrong_reductions(void **state)
{
    (void)state;
    const struct aq_program_limits two = {.credits = 8, .send_frames = 8, .replicas = 2};
    const struct aq_program_limits alone = {.credits = 8, .send_frames = 8};
    fresh_replicas();
    assert_int_equal(aq_program_check(programs, 3, &two, NULL), AQ_OK);
    refused_limits("comes after 1 REDUCE of a pipeline in 1 replicas", &alone);
    erase(1, find(1, AQ_OP_REDUCE, 0));
    refused_limits("comes after 0 REDUCE of a pipeline in 2 replicas", &two);
    fresh_replicas();
    swap(2, find(2, AQ_OP_REDUCE, 0), find(2, AQ_OP_NORM, 0));
    refused_limits("comes after NORM, which is to be that of the mean", &two);
}

static void test_emit_refuses_what_cannot_be(void **state)
{
    (void)state;
    struct aq_schedule_request request = {.kind = AQ_SCHEDULE_1F1B, .stages = 3, .micro_batches = 6};
    struct aq_program program;
    capture_begin();
    assert_int_equal(aq_schedule_emit(&request, 3, code[0], CODE_MAX, &program), AQ_INVAL);
    assert_int_equal(aq_schedule_emit(&request, 0, code[0], 10, &program), AQ_NOSPC);
    request.micro_batches = 0;
    assert_int_equal(aq_schedule_emit(&request, 0, code[0], CODE_MAX, &program), AQ_INVAL);
    request.micro_batches = AQ_JOB_MICRO_BATCHES_MAX + 1;
    assert_int_equal(aq_schedule_emit(&request, 0, code[0], CODE_MAX, &program), AQ_INVAL);
    request.micro_batches = 1;
    request.kind = 77;
    assert_int_equal(aq_schedule_emit(&request, 0, code[0], CODE_MAX, &program), AQ_INVAL);
    capture_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid_of_schedules_is_golden),
        cmocka_unit_test(test_program_of_1f1b_is_as_written),
        cmocka_unit_test(test_flush_holds_backwards_until_all_forwards_are_done),
        cmocka_unit_test(test_program_of_zb_is_as_written),
        cmocka_unit_test(test_check_refuses_what_is_out_of_turn),
        cmocka_unit_test(test_check_allows_stages_of_different_depth),
        cmocka_unit_test(test_check_refuses_too_few_credits),
        cmocka_unit_test(test_check_refuses_wrong_slots),
        cmocka_unit_test(test_check_refuses_wrong_order),
        cmocka_unit_test(test_check_refuses_weight_halves_out_of_turn),
        cmocka_unit_test(test_check_refuses_wrong_ends),
        cmocka_unit_test(test_check_refuses_wrong_reductions),
        cmocka_unit_test(test_emit_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
