/*
 * test_grad_choice.c -- reduce.codec auto: the rule as a table, and an optimizer that takes a choice over.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aqsgd/grad_choice.h"
#include "optimizer_ranks.h"

enum { STEPS = 5, W = 3 };

static uint32_t candidates_of(const char *kind, bool error_feedback, struct aq_grad_candidate *out)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    config.error_feedback = error_feedback;
    return aq_grad_candidates(&config, out);
}

/* 124 million values of two replicas: bytes of each candidate, and packing of so many ns a value each. */
static void costs_of(const double *pack_ns, struct aq_grad_cost *out)
{
    static const double bits[AQ_GRAD_CANDIDATES_MAX] = {32, 16, 8.0625, 4.0625, 1.0005};
    for (uint32_t c = 0; c < AQ_GRAD_CANDIDATES_MAX; c++)
        out[c] = (struct aq_grad_cost){.bytes = (uint64_t)(124e6 * bits[c] / 8), .pack_s = 124e6 * pack_ns[c] * 1e-9};
}

static void test_rule_rates_and_costs_name_the_codec(void **state)
{
    static const double core[] = {0.5, 1.2, 2.0, 2.0, 1.6}, free_of_cost[] = {0, 0, 0, 0, 0},
                        dear[] = {0.5, 20, 40, 40, 400};
    static const struct {
        double mbps, latency_s, compute_s;
        const double *pack_ns;
        const char *name;
    } table[] = {
        {10, 0, 0, core, "sign"},      /* 400 s in fp32, 12.5 in signs                                     */
        {100, 0.05, 10, core, "sign"}, /* 40, 20, 10, 5, 1.2 s: none is within a tenth of 10 s, the least wins */
        {100, 0, 60, core, "q4"},      /* 5 s are within a tenth of 60 s, 10 are not                        */
        {100, 0, 110, core, "q8"},     /* 10 s are                                                          */
        {100, 0, 210, core, "bf16"},   {100, 0, 400, core, "fp32"},
        {1000, 0, 0, core, "sign"}, /* packing 0.2 s bounds it; 4 bits take 0.5 s                        */
        {1000, 0, 6, core, "q4"},      {10000, 0, 0, core, "bf16"}, /* 0.2 s, as packing signs takes  */
        {10000, 0, 2.6, core, "bf16"},   {10000, 0, 4, core, "fp32"},
        {100000, 0, 0, core, "fp32"}, /* packing costs more than the wire                                  */
        {0, 0, 0, core, "fp32"},       {0, 0, 0, free_of_cost, "fp32"},
        {1000, 0, 0, dear, "bf16"},   /* 3.97 s, 2.5 s, 5 s, 5 s, 50 s: fewer bits are slower           */
        {10000, 10, 0, core, "fp32"}, /* the latency is what takes long                                   */
        {10, 0, 1e9, core, "fp32"},    {1e-3, 0, 1, core, "sign"},
    };
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    struct aq_grad_cost costs[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t count = candidates_of("adamw", true, candidates);
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct aq_grad_scene scene = {
            .rate = table[i].mbps * 1e6 / 8, .latency_s = table[i].latency_s, .compute_s = table[i].compute_s};
        costs_of(table[i].pack_ns, costs);
        const char *name = candidates[aq_grad_choose(costs, count, &scene)].name;
        if (strcmp(name, table[i].name) != 0)
            fail_msg("%g Mbit/s, step of %g s: %s, wanted %s", table[i].mbps, table[i].compute_s, name, table[i].name);
    }
}

/* Slower links or a shorter step never make the choice more exact. */
static void test_rule_is_monotone(void **state)
{
    static const double core[] = {0.5, 1.2, 2.0, 2.0, 1.6};
    struct aq_grad_cost costs[AQ_GRAD_CANDIDATES_MAX];
    (void)state;
    costs_of(core, costs);
    for (double compute_s = 0; compute_s < 50; compute_s = compute_s * 2 + 0.1) {
        uint32_t before = AQ_GRAD_CANDIDATES_MAX;
        for (double rate = 1e4; rate < 1e10; rate *= 1.3) {
            const struct aq_grad_scene slow = {.rate = rate, .compute_s = compute_s},
                                       busy = {.rate = rate, .compute_s = compute_s / 2};
            const uint32_t now = aq_grad_choose(costs, AQ_GRAD_CANDIDATES_MAX, &slow);
            assert_true(now <= before);
            assert_true(aq_grad_choose(costs, AQ_GRAD_CANDIDATES_MAX, &busy) >= now);
            before = now;
        }
    }
}

static void test_candidates_have_the_settings_of_the_job(void **state)
{
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    struct aq_optimizer_config config;
    (void)state;
    assert_int_equal(candidates_of("adamw", true, candidates), 5);
    assert_string_equal(candidates[0].name, "fp32");
    assert_string_equal(candidates[4].name, "sign");
    assert_string_equal(candidates[4].config.scale, "l1");
    assert_int_equal(candidates_of("adamw", false, candidates), 4);
    aq_optimizer_config_default(&config, "onebit_adam");
    config.reduce.bucket = 1024;
    config.reduce.grid = "signed";
    assert_int_equal(aq_grad_candidates(&config, candidates), 5);
    assert_string_equal(candidates[4].config.scale, "l2");
    assert_int_equal(candidates[2].config.bits, 8);
    assert_int_equal(candidates[3].config.bucket, 1024);
    assert_string_equal(candidates[3].config.grid, "signed");
    for (uint32_t c = 0; c < 5; c++)
        assert_int_equal(aq_grad_codec_config_check(&candidates[c].config), AQ_OK);
}

static struct aq_optimizer_config config_of(const char *kind, const struct aq_grad_codec_config *reduce)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    if (config.warmup_steps > 0 || config.freeze_ratio > 0.0f) config.warmup_steps = 2;
    config.freeze_ratio = 0.0f;
    if (reduce) config.reduce = *reduce;
    return config;
}

static void run(struct ranks *ranks)
{
    for (uint64_t step = 1; step <= STEPS; step++) {
        ranks_gradients(ranks, 5, step);
        ranks_step(ranks, 1e-2f, 1.0f, step);
    }
}

/* Who has chosen a codec is who was opened with it, bit for bit. */
static void test_chosen_is_as_if_named(void **state)
{
    static const char *const kinds[] = {"adamw", "sgd", "lamb", "lion", "qadam", "onebit_adam", "onebit_lamb"};
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct aq_optimizer_config config = config_of(kinds[k], NULL);
        aq_grad_codec_config_default(&config.reduce, "sign");
        config.reduce_automatic = true;
        const uint32_t count = aq_grad_candidates(&config, candidates);
        for (uint32_t c = 0; c < count; c++) {
            struct aq_optimizer_config named = config_of(kinds[k], &candidates[c].config);
            struct ranks a, b;
            uint32_t index;
            ranks_open(&a, &config, W);
            ranks_open(&b, &named, W);
            for (uint32_t w = 0; w < W; w++) {
                assert_int_equal(aq_optimizer_chosen(a.optimizers[w], &index), AQ_OK);
                assert_int_equal(index, AQ_CHOICE_NONE);
                assert_int_equal(aq_optimizer_choose(a.optimizers[w], c), AQ_OK);
                assert_int_equal(aq_optimizer_chosen(a.optimizers[w], &index), AQ_OK);
                assert_int_equal(index, c);
            }
            run(&a);
            run(&b);
            for (uint32_t w = 0; w < W; w++)
                assert_memory_equal(a.parameters[w], b.parameters[w], RANK_FLOATS * sizeof(float));
            assert_int_equal(a.sent, b.sent);
            ranks_close(&a);
            ranks_close(&b);
        }
    }
}

static void test_choice_of_what_there_is_not_is_refused(void **state)
{
    struct aq_optimizer_config config = config_of("adamw", NULL);
    struct ranks ranks;
    uint32_t index;
    (void)state;
    ranks_open(&ranks, &config, 2);
    assert_int_equal(aq_optimizer_choose(ranks.optimizers[0], 0), AQ_INVAL);
    assert_int_equal(aq_optimizer_chosen(ranks.optimizers[0], &index), AQ_OK);
    assert_int_equal(index, AQ_CHOICE_NONE);
    ranks_close(&ranks);
    aq_grad_codec_config_default(&config.reduce, "sign");
    config.reduce_automatic = true;
    ranks_open(&ranks, &config, 2);
    assert_int_equal(aq_optimizer_choose(ranks.optimizers[0], 5), AQ_INVAL);
    /* A checkpoint that somebody else wrote. */
    static const float wrong[] = {6, -1, 0.5f, NAN, INFINITY};
    float *choice = aq_optimizer_state(ranks.optimizers[0], ranks_state(&ranks, "reduce_choice"));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        *choice = wrong[i];
        assert_int_equal(aq_optimizer_chosen(ranks.optimizers[0], &index), AQ_CORRUPT);
    }
    ranks_close(&ranks);
    ranks_open(&ranks, &config, 1); /* alone there is nothing to send */
    assert_false(ranks_has_state(&ranks, "reduce_choice"));
    assert_int_equal(aq_optimizer_choose(ranks.optimizers[0], 0), AQ_INVAL);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule_rates_and_costs_name_the_codec),     cmocka_unit_test(test_rule_is_monotone),
        cmocka_unit_test(test_candidates_have_the_settings_of_the_job), cmocka_unit_test(test_chosen_is_as_if_named),
        cmocka_unit_test(test_choice_of_what_there_is_not_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
