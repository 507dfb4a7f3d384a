/*
 * test_tied_plan.c -- what a plan says of a tied table that a cut separates from its head: which it is, what it costs,
 * and where it cannot be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "plan_kit.h"

static const char manifest[] = "model: {blocks: 6, channels: 64, heads: 4, context: 32, tied: untied}\n"
                               "data: {train: text.txt}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2}\n"
                               "pipeline: {stages: 4}\n";

/* A tied table counts once, its bytes by hand: V x C values both ways, or 4 bits and a scale for 512, and rows back. */
static void test_plan_tells_what_a_tied_table_costs(void **state)
{
    static const char *const exact[] = {"model.tied=exact", NULL}, *const small[] = {"model.tied=compressed", NULL};
    const uint64_t V = 256, C = 64, rows = 8 * 32, header = 128;
    struct aq_job *job, *untied_job, *small_job;
    (void)state;
    struct aq_plan *plan = plan_kit_plan(manifest, exact, &job), *untied = plan_kit_plan(manifest, NULL, &untied_job);
    struct aq_plan *compressed = plan_kit_plan(manifest, small, &small_job);
    struct aq_plan_tied traffic;
    assert_true(aq_plan_ties(plan) && aq_plan_ties(compressed) && !aq_plan_ties(untied) && aq_plan_could_tie(untied));
    assert_int_equal(aq_plan_tied_rows(plan), rows);
    assert_int_equal(plan->parameters + V * C, untied->parameters);
    assert_int_equal(compressed->parameters, plan->parameters);
    assert_true(plan->hash != untied->hash && plan->hash != compressed->hash);
    assert_int_equal(plan->stages[3].size.parameters + V * C, untied->stages[3].size.parameters); /* no optimizer */
    assert_int_equal(aq_plan_tied_traffic(plan, AQ_TIED_EXACT, &traffic), AQ_OK);
    assert_true(traffic.up_words == V * C && traffic.down_words == V * C);
    assert_int_equal(aq_plan_tied_traffic(plan, AQ_TIED_COMPRESSED, &traffic), AQ_OK);
    assert_int_equal(traffic.up_words * 4, V * C / 2 + V * C / 512 * 4);
    assert_int_equal(traffic.down_words, 1 + rows * (1 + C));
    assert_int_equal(aq_plan_tied_traffic(plan, AQ_TIED_NO, &traffic), AQ_OK);
    assert_true(traffic.up_words == 0 && traffic.down_words == 0);
    assert_true(aq_plan_tied_sent(plan, 1) > 2 * (V * C * 4 + header) && aq_plan_tied_sent(untied, 1) == 0);
    assert_int_equal(2 * aq_plan_tied_sent(plan, 0), aq_plan_tied_sent(plan, 1));
    plan_kit_done(plan, job);
    plan_kit_done(untied, untied_job);
    plan_kit_done(compressed, small_job);
}

/* One line, with place, key, cause and remedy; exact goes with all of them. */
static void test_plan_refuses_what_both_ends_would_not_do_alike(void **state)
{
    static const struct {
        const char *sets[4], *says[3];
    } cases[] = {
        {{"pipeline.replicas=2", "train.optimizer=onebit_adam"}, {"train.optimizer", "model.tied: exact"}},
        {{"pipeline.replicas=2", "reduce.codec=q4"}, {"reduce.codec", "scales that depend on the stage"}},
        {{"pipeline.replicas=2", "reduce.codec=powersgd"}, {"reduce.codec", "model.tied: untied"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *sets[] = {cases[i].sets[0], cases[i].sets[1], "model.tied=compressed", NULL};
        struct aq_job *job = plan_kit_job(manifest, sets);
        struct aq_plan *plan = NULL;
        assert_int_equal(aq_plan_open(job, &plan), AQ_INVAL);
        for (int s = 0; s < 2; s++)
            assert_non_null(strstr(aq_error_text(), cases[i].says[s]));
        aq_error_clear();
        aq_job_close(job);
        sets[2] = "model.tied=exact";
        plan = plan_kit_plan(manifest, sets, &job);
        plan_kit_done(plan, job);
    }
}

/* Words of older manifests; a table that is frozen, or that adapters leave alone, costs nothing. */
static void test_plan_reads_older_words_and_ties_what_trains(void **state)
{
    static const struct {
        const char *sets[3];
        bool ties;
    } cases[] = {{{"model.tied=true"}, true},
                 {{"model.tied=false"}, false},
                 {{"model.tied=exact", "train.freeze=embedding"}, false},
                 {{"model.tied=exact", "lora.rank=4"}, false},
                 {{"model.tied=exact", "pipeline.stages=1"}, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct aq_job *job;
        struct aq_plan *plan = plan_kit_plan(manifest, cases[i].sets, &job);
        assert_int_equal(aq_plan_ties(plan), cases[i].ties);
        for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
            assert_int_equal(plan->edges[e].shape.tied > 0, cases[i].ties);
        plan_kit_done(plan, job);
    }
}

static double step_of(const char *tied, double latency_s, double mbps)
{
    const char *const sets[] = {tied, NULL};
    struct aq_plan_prediction prediction;
    struct aq_plan_costs costs = {.origin = "test", .cores = 16, .rate_mbps = mbps};
    struct aq_job *job;
    struct aq_plan *plan = plan_kit_plan(manifest, sets, &job);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        costs.threads[s] = 1;
        costs.forward_s[s] = 0.01;
        costs.backward_s[s] = 0.02;
        costs.forward_share[s] = costs.backward_share[s] = 1;
        costs.latency_s[s] = latency_s;
    }
    assert_int_equal(aq_plan_predict(plan, &costs, &prediction), AQ_OK);
    plan_kit_done(plan, job);
    return prediction.step_s;
}

/*
 * The gradient of a tied table goes up beside the last gradients, and its values come down before the next forward
 * pass, whose trips they share. So trips cost nothing with exact. Compressed, rows come down before the norm: trips of
 * their own. What fills a slow link costs its time, for the frames behind it wait.
 */
static void test_plan_counts_of_a_tied_table_what_nothing_hides(void **state)
{
    const double latency_s = 0.04, near_s = 256 * 64 * 4 * 8 / 100e6, slow_s = 100 * near_s;
    (void)state;
    const double untied = step_of("model.tied=untied", latency_s, 100),
                 exact = step_of("model.tied=exact", latency_s, 100);
    const double compressed = step_of("model.tied=compressed", latency_s, 100);
    assert_true(exact >= untied && exact < untied + 2 * near_s);
    assert_true(compressed > untied + 6 * latency_s && compressed < untied + 6 * (latency_s + near_s));
    const double more = step_of("model.tied=exact", latency_s, 1) - step_of("model.tied=untied", latency_s, 1);
    assert_true(more > 2 * slow_s && more < 6 * slow_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_counts_of_a_tied_table_what_nothing_hides),
        cmocka_unit_test(test_plan_tells_what_a_tied_table_costs),
        cmocka_unit_test(test_plan_refuses_what_both_ends_would_not_do_alike),
        cmocka_unit_test(test_plan_reads_older_words_and_ties_what_trains),
    };
    return cmocka_run_group_tests(tests, plan_kit_setup, plan_kit_teardown);
}
