/* test_plan_replicas.c -- what a plan states of the bytes and the time that replicas take: see plan_reduce.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "plan_kit.h"

static const char manifest[] = "job: {name: replicas}\n"
                               "model: {kind: gpt2, blocks: 2, heads: 2, channels: 32, context: 32}\n"
                               "data: {tokenizer: bytes, train: text.txt, train_samples_max: 80}\n"
                               "train: {T: 32, batch: 8, micro_batch: 2, epochs: 10}\n"
                               "pipeline: {stages: 2, replicas: 2}\n"
                               "link: {rate_mbps: 10, entropy: off}\n"
                               "output: {path: run}\n";

enum { STEPS = 100 };

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

struct foretold {
    struct aq_job *job;
    struct aq_plan *plan;
    struct aq_plan_costs costs;
    struct aq_plan_prediction prediction;
    struct aq_plan_totals totals;
    struct aq_text text;
};

static struct foretold foretell(const char *const *sets)
{
    struct foretold out = {.plan = NULL};
    out.plan = plan_kit_plan(manifest, sets, &out.job);
    aq_plan_costs_assumed(out.plan, 100, 16, &out.costs);
    assert_int_equal(aq_plan_predict(out.plan, &out.costs, &out.prediction), AQ_OK);
    assert_int_equal(aq_plan_totals(out.plan, &out.costs, &out.prediction, &out.totals), AQ_OK);
    assert_int_equal(aq_plan_print(out.plan, &out.costs, &out.prediction, 0, &out.text), AQ_OK);
    assert_int_equal(out.plan->steps, STEPS);
    return out;
}

static void done(struct foretold *of)
{
    aq_text_deinit(&of->text);
    plan_kit_done(of->plan, of->job);
}

/* The paper's 1 / (w + (1 - w) / 32), of fp32: Li et al. 2022, section 6. */
static void test_warmup_counts_in_bytes_and_time(void **state)
{
    (void)state;
    static const char *const lamb[] = {"train.optimizer=lamb", NULL};
    static const char *const onebit[] = {"train.optimizer=onebit_lamb", "optimizer.warmup_steps=20", NULL};
    struct foretold whole = foretell(lamb), bits = foretell(onebit);
    const double ratio = (double)whole.totals.gradient_bytes / (double)bits.totals.gradient_bytes;
    assert_true(ratio > 4.3 && ratio < 1 / (0.2 + 0.8 / 32));
    assert_int_equal(aq_plan_warmup_steps(bits.plan), 20);
    assert_int_equal(aq_plan_warmup_bytes(bits.plan, 1), aq_plan_reduce_bytes(whole.plan, 1));
    for (uint32_t s = 0; s < 2; s++)
        assert_int_equal(aq_plan_run_bytes(bits.plan, NULL, s), 20 * aq_plan_reduce_bytes(whole.plan, s) +
                                                                    80 * aq_plan_reduce_bytes(bits.plan, s));
    /* A step of the warm-up waits for fp32 gradients at 10 Mbit/s, as LAMB's do. */
    assert_true(bits.totals.warmup_step_s > 2 * bits.prediction.step_s);
    assert_true(near(bits.totals.seconds, 20 * bits.totals.warmup_step_s + 80 * bits.prediction.step_s));
    assert_true(near(whole.totals.seconds, STEPS * whole.prediction.step_s));
    assert_non_null(strstr(aq_text_of(&bits.text), "warm-up: the first 20 of 100 steps send fp32 gradients"));
    assert_null(strstr(aq_text_of(&whole.text), "warm-up:"));
    done(&whole);
    done(&bits);
}

/* 1 / (k + 1 / H) of SLAMB's table 14, with what is sent whole and twice. */
static void test_slamb_counts_its_averages_and_dense_tensors(void **state)
{
    (void)state;
    static const char *const sets[][4] = {{"optimizer.sync_every=25", NULL},
                                          {"optimizer.sync_every=25", "optimizer.sync_gradient=true", NULL},
                                          {"optimizer.sync_every=25", "optimizer.dense_below=1000000", NULL},
                                          {"optimizer.sync_every=30", NULL}, /* at steps 30, 60, 90 and 100 */
                                          {"optimizer.sync_every=25", "optimizer.density_steps=50", NULL},
                                          {"optimizer.sync_every=25", "optimizer.density_steps=1000", NULL}};
    /* k falls from 1 to 0.1: the means of 0.1^(t / 50) for t = 1 .. 50, and of 0.1^(t / 1000) for t = 1 .. 100. */
    static const double shares[] = {
        0.1 + 1 / 25.0,   0.2 + 1 / 25.0, 1 + 1 / 25.0, 0.1 + 4 / 100.0, (0.3819 + 0.1) / 2 + 1 / 25.0,
        0.8923 + 1 / 25.0};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        const char *all[6] = {"train.optimizer=slamb"};
        for (size_t k = 0; sets[i][k]; k++)
            all[k + 1] = sets[i][k];
        struct foretold of = foretell(all);
        uint64_t fp32 = 0;
        for (uint32_t s = 0; s < 2; s++)
            fp32 += 2 * STEPS * of.plan->stages[s].size.parameters * sizeof(float); /* of two replicas */
        const double share = (double)of.totals.gradient_bytes / (double)fp32;
        if (fabs(share - shares[i]) > 0.001) fail_msg("%zu: a share of %.4f, expected %.4f", i, share, shares[i]);
        done(&of);
    }
}

/* The default of 1-bit Adam compares norms that are 1,000 updates apart. */
static void test_an_optimizer_that_never_compresses_is_named(void **state)
{
    (void)state;
    static const char *const never[] = {"train.optimizer=onebit_adam", NULL};
    static const char *const sooner[] = {"train.optimizer=onebit_adam", "train.beta2=0.95", NULL};
    static const char *const late[] = {"train.optimizer=qadam", "optimizer.warmup_steps=100", NULL};
    struct foretold of = foretell(never), early = foretell(sooner), other = foretell(late);
    assert_true(aq_plan_never_compresses(of.plan, NULL));
    assert_non_null(strstr(aq_text_of(&of.text), "warning: onebit_adam never compresses in this job. Its warm-up takes "
                                                 "at least 1002 steps, and the job has 100"));
    assert_non_null(strstr(aq_text_of(&of.text), "optimizer.freeze_ratio: 0 with optimizer.warmup_steps"));
    assert_false(aq_plan_never_compresses(early.plan, NULL));
    assert_non_null(strstr(aq_text_of(&early.text), "warm-up: at least the first 22 of 100 steps"));
    assert_true(aq_plan_never_compresses(other.plan, NULL));
    assert_non_null(strstr(aq_text_of(&other.text), "Remedy: fewer optimizer.warmup_steps"));
    assert_int_equal(aq_plan_run_bytes(of.plan, NULL, 0), STEPS * aq_plan_warmup_bytes(of.plan, 0));
    done(&of);
    done(&early);
    done(&other);
}

/* reduce.delay: of an average only what is left after the steps that it travels during. */
static uint64_t line_of(const struct aq_plan *plan, const char *name)
{
    const struct aq_plan_stage *stage = &plan->stages[0];
    for (uint32_t i = 0; i < stage->line_count; i++)
        if (strcmp(stage->lines[i].name, name) == 0) return stage->lines[i].bytes;
    fail_msg("no line %s", name);
    return 0;
}

static void test_a_delayed_average_costs_what_its_steps_leave(void **state)
{
    (void)state;
    enum { EVERY = 10, RUNS = 4 };
    static const char *const delays[RUNS] = {"reduce.delay=0", "reduce.delay=1", "reduce.delay=2", "reduce.delay=9"};
    struct foretold runs[RUNS];
    double alone_s[RUNS];
    for (int r = 0; r < RUNS; r++) {
        const char *const sets[] = {"pipeline.stages=1", "reduce.every=10", delays[r], NULL};
        runs[r] = foretell(sets);
        runs[r].costs.forward_s[0] = 0.05;
        runs[r].costs.backward_s[0] = 0.1;
        runs[r].costs.threads[0] = 2;
        runs[r].costs.pack_s[0] = 0.001;
        runs[r].costs.step_s[0] = 0.002;
        runs[r].costs.group_latency_s = 0;
        runs[r].costs.reduce_s[0] = 0; /* nobody waits for anything */
        assert_int_equal(aq_plan_predict(runs[r].plan, &runs[r].costs, &runs[r].prediction), AQ_OK);
        alone_s[r] = runs[r].prediction.step_s;
        /* A thread of its own packs: it takes half of two cores for its time. */
        assert_true(near(alone_s[r], alone_s[0] - (r == 0 ? 0 : 0.0005)));
    }
    for (int r = 0; r < RUNS; r++) {
        const double packed_s = EVERY * 0.001, steps = (double)(r < 3 ? r : 9), average_s = 5 * alone_s[r];
        runs[r].costs.reduce_s[0] = (average_s - packed_s) / EVERY; /* with packing it takes 5 steps */
        assert_int_equal(aq_plan_predict(runs[r].plan, &runs[r].costs, &runs[r].prediction), AQ_OK);
        const double waits_s = fmax(average_s - steps * alone_s[r], 0) / EVERY - (r == 0 ? packed_s / EVERY : 0);
        /* The update and packing go on meanwhile. */
        const double expected = alone_s[r] + fmax(waits_s - (r == 0 ? 0.003 : 0.0025), 0);
        if (!near(runs[r].prediction.step_s, expected))
            fail_msg("%s: a step takes %g s, must be %g", delays[r], runs[r].prediction.step_s, expected);
    }
    assert_true(runs[0].prediction.step_s > runs[1].prediction.step_s);
    assert_true(runs[1].prediction.step_s > runs[2].prediction.step_s);
    /* A checkpoint has the weights of the round's end, too, and not the movement that travels. */
    const uint64_t weights = runs[0].plan->stages[0].size.parameters * sizeof(float);
    const uint64_t more = line_of(runs[1].plan, "snapshot") - line_of(runs[0].plan, "snapshot");
    assert_in_range(more, weights, weights + 4096);
    assert_non_null(strstr(aq_text_of(&runs[2].text), "(reduce.delay 2)"));
    assert_null(strstr(aq_text_of(&runs[0].text), "reduce.delay"));
    for (int r = 0; r < RUNS; r++)
        done(&runs[r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup_counts_in_bytes_and_time),
        cmocka_unit_test(test_slamb_counts_its_averages_and_dense_tensors),
        cmocka_unit_test(test_an_optimizer_that_never_compresses_is_named),
        cmocka_unit_test(test_a_delayed_average_costs_what_its_steps_leave),
    };
    return cmocka_run_group_tests(tests, plan_kit_setup, plan_kit_teardown);
}
