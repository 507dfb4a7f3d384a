/*
 * test_balance.c -- the cut of stages that are not alike: brute force over all cuts finds none that is better, memory
 * and links bind where they must, what is planned is what the workers plan again, and equal inputs give equal cuts.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "log_capture.h"
#include "plan_kit.h"

enum { SETS_MAX = 8 };

/* The head is of 50,000 words: some blocks' worth of computing. */
static const char manifest[] = "model: {blocks: 24, channels: 512, heads: 4, context: 256, vocabulary: 50000}\n"
                               "data: {train: text.txt}\n"
                               "train: {T: 256, batch: 8, micro_batch: 2, epochs: 3}\n"
                               "pipeline: {stages: [{speed: 1}, {speed: 0.4}, {speed: 1}]}\n"
                               "edges: {forward: {codec: aqsgd, bits: 4}, backward: {codec: directq, bits: 8}}\n";

static enum aq_status open_with(const char *const *sets, struct aq_job **job, struct aq_plan **plan)
{
    uint32_t count = 0;
    while (sets && sets[count])
        count++;
    *plan = NULL;
    assert_int_equal(aq_job_parse(manifest, sizeof manifest - 1, "job.yaml", plan_kit_folder, sets, count, job), AQ_OK);
    return aq_plan_open(*job, plan);
}

static void done(struct aq_plan *plan, struct aq_job *job)
{
    aq_plan_close(plan);
    aq_job_close(job);
}

/* Does the plan of this very cut keep within the limits? The plan itself is asked, not what the search goes by. */
static bool fits(const struct aq_plan *like, const struct aq_plan_cut *cut)
{
    struct aq_plan *plan = NULL;
    bool limited = false;
    for (uint32_t s = 0; s < like->stage_count; s++)
        limited = limited || aq_job_memory(like->job, s) > 0;
    if (!limited) return true;
    capture_begin();
    const enum aq_status status = aq_plan_open_cut(like, cut, &plan);
    capture_end();
    aq_error_clear();
    aq_plan_close(plan);
    return status == AQ_OK;
}

/* The best of all cuts into three: least slowest, then least sum of squares; how many can be. */
static uint32_t brute_force(const struct aq_plan *plan, const struct aq_plan_layers *layers, struct aq_plan_cut *best,
                            double *slowest, double *squares)
{
    uint32_t count = 0;
    *slowest = *squares = DBL_MAX;
    assert_int_equal(plan->stage_count, 3);
    for (uint32_t a = 1; a < plan->layers - 1; a++)
        for (uint32_t b = a + 1; b < plan->layers; b++) {
            const struct aq_plan_cut cut = {{a, b, plan->layers}};
            struct aq_plan_cut_times times;
            double sum = 0;
            if (!fits(plan, &cut)) continue;
            count++;
            assert_int_equal(aq_plan_cut_times(plan, layers, &cut, &times), AQ_OK);
            for (uint32_t s = 0; s < 3; s++)
                sum += times.stage_s[s] * times.stage_s[s];
            if (times.slowest_s > *slowest || (times.slowest_s == *slowest && sum >= *squares)) continue;
            *slowest = times.slowest_s;
            *squares = sum;
            *best = cut;
        }
    return count;
}

static void check_best(const struct aq_plan *plan, const struct aq_plan_layers *layers, uint32_t cuts_least)
{
    struct aq_plan_cut best = {{0}}, found;
    double slowest, squares;
    const uint32_t cuts = brute_force(plan, layers, &best, &slowest, &squares);
    assert_true(cuts >= cuts_least);
    assert_int_equal(aq_plan_balance(plan, layers, &found), AQ_OK);
    for (uint32_t s = 0; s < 3; s++)
        assert_int_equal(found.end[s], best.end[s]);
}

/* The line of the cut and the table of stages come from one account of threads and gflops. */
static void test_layers_as_costs_have_their_threads(void **state)
{
    (void)state;
    static const char *const sets[] = {"pipeline.threads=4", NULL};
    struct aq_job *job;
    struct aq_plan *plan;
    struct aq_plan_layers *layers;
    struct aq_plan_costs costs;
    assert_int_equal(open_with(sets, &job, &plan), AQ_OK);
    for (uint32_t cores = 1; cores <= 8; cores *= 2) {
        assert_int_equal(aq_plan_layers_assumed(plan, &layers), AQ_OK);
        aq_plan_costs_assumed(plan, 50, cores, &costs);
        aq_plan_layers_as(layers, &costs, 50);
        for (uint32_t s = 0; s < plan->stage_count; s++) {
            double forward = 0, step = 0;
            for (uint32_t l = plan->stages[s].layer_first; l < plan->stages[s].layer_end; l++) {
                forward += layers->of[s * (layers->layers + 1) + l].forward_s;
                step += layers->of[s * (layers->layers + 1) + l].step_s;
            }
            const double speed = (double)job->pipeline.stages[s].speed; /* costs have it, layers do not */
            assert_true(fabs(forward / speed - costs.forward_s[s]) < 1e-9 * forward);
            assert_true(fabs(step / speed - costs.step_s[s]) < 1e-9 * step);
        }
        aq_plan_layers_close(layers);
    }
    done(plan, job);
}

static void test_balance_heavy_head_and_slow_machine_as_brute_force(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan, *alike;
    struct aq_plan_layers *layers;
    struct aq_plan_cut_times mine, even;
    assert_int_equal(open_with(NULL, &job, &plan), AQ_OK);
    assert_int_equal(aq_plan_layers_assumed(plan, &layers), AQ_OK);
    check_best(plan, layers, 45);
    const struct aq_plan_cut cut = aq_plan_cut_of(plan);
    assert_int_equal(aq_plan_cut_times(plan, layers, &cut, &mine), AQ_OK);
    /* The slow one in the middle has fewer blocks than the first, and the head stands nearly alone. */
    assert_true(cut.end[1] - cut.end[0] < cut.end[0] - 1);
    assert_true(cut.end[2] - cut.end[1] < cut.end[0]);
    static const char *const sets[] = {"pipeline.stages=3", NULL};
    struct aq_job *same;
    assert_int_equal(open_with(sets, &same, &alike), AQ_OK);
    const struct aq_plan_cut other = aq_plan_cut_of(alike);
    assert_int_equal(aq_plan_cut_times(plan, layers, &other, &even), AQ_OK);
    assert_true(even.slowest_s > 1.2 * mine.slowest_s);
    /* And so does the simulated step, which knows nothing of the search. */
    struct aq_plan_costs costs;
    struct aq_plan_prediction by_mine, by_even;
    struct aq_plan *cut_even;
    assert_int_equal(aq_plan_open_cut(plan, &other, &cut_even), AQ_OK);
    aq_plan_costs_assumed(plan, 100, 3, &costs);
    assert_int_equal(aq_plan_predict(plan, &costs, &by_mine), AQ_OK);
    aq_plan_costs_assumed(cut_even, 100, 3, &costs);
    assert_int_equal(aq_plan_predict(cut_even, &costs, &by_even), AQ_OK);
    assert_true(by_even.step_s > 1.1 * by_mine.step_s);
    aq_plan_close(cut_even);
    done(alike, same);
    aq_plan_layers_close(layers);
    done(plan, job);
}

/* Times at random, of each layer at each stage, and a rate that binds now and then. */
static void test_balance_random_times_as_brute_force(void **state)
{
    (void)state;
    static const char *const sets[] = {"model.blocks=7", "model.vocabulary=256", "link.rate_mbps=30", NULL};
    struct aq_job *job;
    struct aq_plan *plan;
    struct aq_plan_layers *layers;
    assert_int_equal(open_with(sets, &job, &plan), AQ_OK);
    assert_int_equal(aq_plan_layers_assumed(plan, &layers), AQ_OK);
    for (uint32_t round = 0; round < 200; round++) {
        const struct aq_rng_key key = aq_rng_key(round, AQ_RNG_TEST, 0, 0);
        const uint32_t cells = layers->stages * (layers->layers + 1);
        for (uint32_t i = 0; i < cells; i++) {
            struct aq_plan_layer_cost *cost = &layers->of[i];
            cost->forward_s = (double)aq_rng_below(&key, 7 * i, 4) * 1e-3; /* few values: many equal cuts */
            cost->backward_s = (double)aq_rng_below(&key, 7 * i + 1, 4) * 1e-3;
            cost->step_s = (double)aq_rng_below(&key, 7 * i + 2, 4) * 1e-3;
            cost->begins_s = (double)aq_rng_below(&key, 7 * i + 3, 2) * 1e-3;
            cost->ends_s = (double)aq_rng_below(&key, 7 * i + 4, 2) * 1e-3;
            cost->forward_bytes = aq_rng_below(&key, 7 * i + 5, 40000);
            cost->backward_bytes = aq_rng_below(&key, 7 * i + 6, 40000);
        }
        struct aq_plan_cut best = {{0}}, found;
        struct aq_plan_cut_times times;
        double slowest, squares, sum = 0;
        brute_force(plan, layers, &best, &slowest, &squares);
        assert_int_equal(aq_plan_balance(plan, layers, &found), AQ_OK);
        assert_int_equal(aq_plan_cut_times(plan, layers, &found, &times), AQ_OK);
        for (uint32_t s = 0; s < 3; s++)
            sum += times.stage_s[s] * times.stage_s[s];
        assert_true(times.slowest_s == slowest);
        assert_true(sum <= squares * (1 + 1e-12));
    }
    aq_plan_layers_close(layers);
    done(plan, job);
}

static void test_balance_memory_binds_and_is_kept(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan, *free_plan;
    struct aq_plan_layers *layers;
    struct aq_job *free_job;
    char limit[96];
    static const char *const none[] = {"pipeline.stages=[{speed: 1}, {speed: 1}, {speed: 0.2}]", "model.vocabulary=256",
                                       NULL};
    assert_int_equal(open_with(none, &free_job, &free_plan), AQ_OK);
    /* Stage 0 would like most of the blocks: it may not have two of them. */
    const uint64_t wants = free_plan->stages[0].memory_bytes;
    uint64_t fewer;
    assert_int_equal(aq_plan_stage_bytes(free_plan, 0, 0, free_plan->stages[0].layer_end, &fewer), AQ_OK);
    assert_int_equal(fewer, wants); /* the search sees what the plan has */
    for (uint32_t s = 1; s < 3; s++) {
        uint64_t bytes;
        const struct aq_plan_stage *stage = &free_plan->stages[s];
        assert_int_equal(aq_plan_stage_bytes(free_plan, s, stage->layer_first, stage->layer_end, &bytes), AQ_OK);
        assert_int_equal(bytes, stage->memory_bytes);
    }
    assert_int_equal(aq_plan_stage_bytes(free_plan, 0, 0, free_plan->stages[0].layer_end - 2, &fewer), AQ_OK);
    assert_true(fewer < wants);
    snprintf(limit, sizeof limit, "pipeline.stages=[{memory: %llu}, {speed: 1}, {speed: 0.2}]",
             (unsigned long long)fewer);
    const char *const sets[] = {limit, "model.vocabulary=256", NULL};
    assert_int_equal(open_with(sets, &job, &plan), AQ_OK);
    assert_true(plan->stages[0].memory_bytes <= fewer);
    assert_int_equal(plan->stages[0].layer_end, free_plan->stages[0].layer_end - 2);
    assert_int_equal(aq_plan_layers_assumed(plan, &layers), AQ_OK);
    check_best(plan, layers, 5);
    aq_plan_layers_close(layers);
    done(plan, job);
    done(free_plan, free_job);
}

static void test_balance_memory_that_nothing_fits_is_refused(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan;
    static const char *const sets[] = {"pipeline.stages=[{memory: 1MiB}, {speed: 1}, {speed: 1}]", NULL};
    capture_begin();
    assert_int_equal(open_with(sets, &job, &plan), AQ_INVAL);
    capture_end();
    assert_non_null(strstr(aq_error_text(), "no cut of 26 layers into 3 stages fits pipeline.stages.*.memory"));
    aq_error_clear();
    aq_job_close(job);
    static const char *const said[] = {"pipeline.stages=[{layers: 0-3, memory: 1MiB}, {layers: 4-7}, {layers: 8-25}]",
                                       NULL};
    capture_begin();
    assert_int_equal(open_with(said, &job, &plan), AQ_INVAL);
    capture_end();
    assert_non_null(strstr(aq_error_text(), "pipeline.stages.0.memory: stage 0 with layers 0-3 needs "));
    aq_error_clear();
    aq_job_close(job);
}

/* What workers are told has the cut in it, and they plan to the same hash. */
static void test_balance_workers_plan_the_same(void **state)
{
    (void)state;
    struct aq_job *job, *told;
    struct aq_plan *plan, *again;
    char *text;
    assert_int_equal(open_with(NULL, &job, &plan), AQ_OK);
    const struct aq_plan_cut cut = {{2, 5, 26}}; /* any: as a measurement may find */
    struct aq_plan *other;
    assert_int_equal(aq_plan_open_cut(plan, &cut, &other), AQ_OK);
    assert_true(aq_plan_hash(other) != aq_plan_hash(plan));
    assert_int_equal(aq_plan_manifest(other, &text), AQ_OK);
    assert_non_null(strstr(text, "- layers: 2-4\n"));
    assert_int_equal(aq_job_parse(text, strlen(text), "worker", plan_kit_folder, NULL, 0, &told), AQ_OK);
    assert_int_equal(aq_plan_open(told, &again), AQ_OK);
    assert_true(aq_plan_hash(again) == aq_plan_hash(other));
    assert_int_equal(again->stages[1].layer_end, 5);
    aq_free(text);
    done(again, told);
    aq_plan_close(other);
    /* Speeds and limits are no part of what is computed: the same cut is the same plan. */
    static const char *const sets[] = {"pipeline.stages.0.speed=0.9", "pipeline.stages.0.memory=16GiB", NULL};
    struct aq_job *speedier;
    assert_int_equal(open_with(sets, &speedier, &other), AQ_OK);
    const struct aq_plan_cut mine = aq_plan_cut_of(plan);
    assert_int_equal(aq_plan_open_cut(other, &mine, &again), AQ_OK);
    assert_true(aq_plan_hash(again) == aq_plan_hash(plan));
    aq_plan_close(again);
    done(other, speedier);
    done(plan, job);
}

/* Cuts in a row are measured once where they are alike; those of an edge with other codecs are not. */
static void test_layers_of_edges_that_differ_have_their_own_bytes(void **state)
{
    (void)state;
    struct aq_job *job;
    struct aq_plan *plan;
    struct aq_plan_layers *layers;
    const char *const sets[] = {"edges.list=[{edge: 1, forward: {bits: 8}}]", NULL};
    assert_int_equal(open_with(sets, &job, &plan), AQ_OK);
    assert_int_equal(aq_plan_layers_assumed(plan, &layers), AQ_OK);
    for (uint32_t e = 0; e < 2; e++) {
        const struct aq_plan_layer_cost *row = &layers->of[(size_t)e * (layers->layers + 1)];
        const double bytes = (double)plan->edges[e].step_forward_warm / plan->micro_batches;
        for (uint32_t l = 1; l < layers->layers; l++)
            assert_float_equal(row[l].forward_bytes, bytes, 1e-9);
    }
    assert_true(plan->edges[1].step_forward_warm > plan->edges[0].step_forward_warm * 3 / 2);
    aq_plan_layers_close(layers);
    done(plan, job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_as_costs_have_their_threads),
        cmocka_unit_test(test_balance_heavy_head_and_slow_machine_as_brute_force),
        cmocka_unit_test(test_balance_random_times_as_brute_force),
        cmocka_unit_test(test_balance_memory_binds_and_is_kept),
        cmocka_unit_test(test_balance_memory_that_nothing_fits_is_refused),
        cmocka_unit_test(test_balance_workers_plan_the_same),
        cmocka_unit_test(test_layers_of_edges_that_differ_have_their_own_bytes),
    };
    return cmocka_run_group_tests(tests, plan_kit_setup, plan_kit_teardown);
}
