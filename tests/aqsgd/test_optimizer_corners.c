/*
 * test_optimizer_corners.c -- optimizers where they are easily wrong: parameters that never have a gradient inside
 * tensors that do, a norm that falls, the step at which a variance is frozen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "optimizer_ranks.h"

static struct ranks ranks;

static bool dead(uint64_t i)
{
    return i % 7 == 3;
}

static void gradients(uint64_t step, float scale)
{
    ranks_gradients(&ranks, 23, step);
    for (uint32_t w = 0; w < ranks.W; w++)
        for (uint64_t i = 0; i < RANK_FLOATS; i++)
            ranks.gradients[w][i] *= dead(i) ? 0 : scale;
}

/* What its neighbours' codes leave in the momentum and errors of a dead parameter is wiped off before it moves it. */
static void test_dead_parameters_among_living_ones_stay(void **state)
{
    static const char *const kinds[] = {"qadam", "onebit_adam", "onebit_lamb"};
    static float before[RANK_FLOATS];
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, kinds[k]);
        config.warmup_steps = 2;
        config.freeze_ratio = 0;
        config.weight_decay = 0;
        ranks_open(&ranks, &config, 3);
        memcpy(before, ranks.parameters[0], sizeof before);
        for (uint64_t step = 1; step <= 12; step++) {
            gradients(step, 1);
            ranks_step(&ranks, 0.01f, 1.0f, step);
        }
        uint64_t moved = 0;
        for (uint64_t i = 0; i < RANK_FLOATS; i++) {
            if (!ranks_is_in(i)) continue;
            moved += ranks.parameters[1][i] != before[i];
            if (!dead(i)) continue;
            assert_true(ranks.parameters[1][i] == before[i]);
            for (uint32_t w = 0; w < 3; w++) {
                assert_true(aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, "m"))[i] == 0);
                assert_true(aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, "worker_error"))[i] == 0);
            }
        }
        assert_true(moved > RANK_FLOATS / 2);
        ranks_close(&ranks);
    }
}

static uint64_t frozen_at(void)
{
    return (uint64_t)aq_optimizer_state(ranks.optimizers[0], ranks_state(&ranks, "frozen_at"))[0];
}

/* ||v|| that falls by a tenth a step has not settled. */
static void test_variance_that_falls_is_not_frozen(void **state)
{
    struct aq_optimizer_config config;
    (void)state;
    aq_optimizer_config_default(&config, "onebit_adam");
    config.beta2 = 0.9f; /* over 10 steps */
    ranks_open(&ranks, &config, 1);
    for (uint64_t step = 1; step <= 30; step++) {
        gradients(step, step <= 8 ? 1.0f : 0.0f);
        ranks_step(&ranks, 0.001f, 1.0f, step);
        assert_int_equal(frozen_at(), 0);
    }
    ranks_close(&ranks);
}

static void test_variance_is_frozen_at_the_last_step_of_the_warm_up(void **state)
{
    struct aq_optimizer_config config;
    (void)state;
    for (uint32_t W = 1; W <= 2; W++) {
        aq_optimizer_config_default(&config, "onebit_adam");
        config.warmup_steps = 4;
        config.freeze_ratio = 0;
        ranks_open(&ranks, &config, W);
        for (uint64_t step = 1; step <= 6; step++) {
            assert_int_equal(aq_optimizer_averages(ranks.optimizers[0], step), W > 1 && step <= 4);
            gradients(step, 1);
            ranks_step(&ranks, 0.001f, 1.0f, step);
        }
        ranks_close(&ranks);
    }
}

/* What makes levels of L0's mean is not finite here: times a zero it would be no number, and a full vote. */
static void test_dead_parameters_stay_among_tiny_ones(void **state)
{
    static float before[RANK_FLOATS];
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "lioncub");
    aq_grad_codec_config_default(&config.reduce, "lp");
    config.reduce.norm = AQ_GRAD_NORM_L0;
    config.lane_bits = 8;
    config.weight_decay = 0;
    ranks_open(&ranks, &config, 3);
    memcpy(before, ranks.parameters[0], sizeof before);
    for (uint64_t step = 1; step <= 3; step++) {
        gradients(step, 1e-40f);
        ranks_step(&ranks, 0.01f, 1.0f, step);
    }
    for (uint64_t i = 0; i < RANK_FLOATS; i++)
        if (ranks_is_in(i) && dead(i)) assert_true(ranks.parameters[1][i] == before[i]);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dead_parameters_among_living_ones_stay),
        cmocka_unit_test(test_dead_parameters_stay_among_tiny_ones),
        cmocka_unit_test(test_variance_that_falls_is_not_frozen),
        cmocka_unit_test(test_variance_is_frozen_at_the_last_step_of_the_warm_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
