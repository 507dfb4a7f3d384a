/*
 * test_optimizer_versions.c -- train.prediction: updates are those of an optimizer without it, bit for bit; the
 * parameters lie as far ahead of the weights as the last update went; void steps, ranks that meet, looks from outside,
 * a restart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "optimizer_ranks.h"

enum { N = RANK_FLOATS, LAST = 14 };

static struct aq_optimizer_config config_of(const char *kind)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    config.total_steps = LAST;
    config.warmup_steps = 3;
    if (config.sync_every > 4) config.sync_every = 4;
    config.freeze_ratio = 0;
    config.predict = true;
    return config;
}

static const float *weights_of(const struct ranks *ranks, uint32_t w)
{
    return aq_optimizer_state(ranks->optimizers[w], ranks_state(ranks, AQ_PREDICT_STATE));
}

/* The same optimizers with and without, of the same gradients; one step in five is void. */
static void expect_formula(const struct aq_optimizer_config *config, uint32_t W)
{
    static float last[RANKS_MAX][N];
    struct aq_optimizer_config without = *config;
    struct ranks ranks, plain;
    uint32_t ahead = 0;
    without.predict = false;
    ranks_open(&ranks, config, W);
    ranks_open(&plain, &without, W);
    for (uint64_t step = 1; step <= LAST; step++) {
        const bool meets = W > 1 && aq_optimizer_config_drifts(config, step - 1) &&
                           (step == LAST || !aq_optimizer_config_drifts(config, step));
        for (uint32_t w = 0; w < W; w++)
            memcpy(last[w], plain.parameters[w], sizeof last[w]);
        ranks_gradients(&ranks, 51, step);
        ranks_gradients(&plain, 51, step);
        if (step % 5 == 0) {
            ranks_void(&ranks, step);
            ranks_void(&plain, step);
        } else {
            ranks_step(&ranks, 0.01f, 0.5f, step);
            ranks_step(&plain, 0.01f, 0.5f, step);
        }
        for (uint32_t w = 0; w < W; w++) {
            const float *kept = weights_of(&ranks, w);
            for (uint64_t i = 0; i < N; i++) {
                const float x = plain.parameters[w][i], next = meets ? x : x + (x - last[w][i]);
                if (!ranks_is_in(i)) continue;
                if (kept[i] != x || ranks.parameters[w][i] != next)
                    fail_msg("%s, W = %u, step %u, rank %u, float %u: %.9g ahead of %.9g, must be %.9g of %.9g",
                             config->kind, W, (unsigned)step, w, (unsigned)i, (double)ranks.parameters[w][i],
                             (double)kept[i], (double)next, (double)x);
                ahead += next != x;
            }
        }
        if (meets) ranks_expect_equal_parameters(&ranks);
    }
    assert_true(ahead > N);
    ranks_close(&ranks);
    ranks_close(&plain);
}

static void test_updates_are_of_the_weights(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 2, 3};
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++)
        for (int w = 0; w < 3; w++) {
            struct aq_optimizer_config config = config_of(aq_optimizer_kind_name(k));
            expect_formula(&config, widths[w]);
            if (!aq_optimizer_config_averages(&config)) continue;
            config.outer_every = 3;
            config.outer_lr = 0.7f;
            config.outer_momentum = 0.9f;
            expect_formula(&config, widths[w]);
        }
}

/* What is not trained, for it has no gradient and no decay, stays where it is. */
static void test_what_does_not_move_is_not_predicted(void **state)
{
    (void)state;
    struct aq_optimizer_config config = config_of("adamw");
    struct ranks ranks;
    float begin[N];
    config.weight_decay = 0;
    ranks_open(&ranks, &config, 1);
    memcpy(begin, ranks.parameters[0], sizeof begin);
    assert_memory_equal(weights_of(&ranks, 0), begin, sizeof begin);
    for (uint64_t step = 1; step <= 3; step++) {
        memset(ranks.gradients[0], 0, sizeof begin);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        assert_memory_equal(ranks.parameters[0], begin, sizeof begin);
    }
    ranks_close(&ranks);
}

/* Shown are the weights, of local steps the outer ones; hidden again, all is as it was. */
static void expect_shown(uint32_t every, uint64_t steps)
{
    struct aq_optimizer_config config = config_of("adamw"), without;
    struct ranks ranks, plain;
    static float own[3][N], kept[3][N];
    config.outer_every = every;
    config.outer_lr = 0.7f;
    config.outer_momentum = 0.9f;
    without = config;
    without.predict = false;
    ranks_open(&ranks, &config, 3);
    ranks_open(&plain, &without, 3);
    for (uint64_t step = 1; step <= steps; step++) {
        ranks_gradients(&ranks, 52, step);
        ranks_gradients(&plain, 52, step);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        ranks_step(&plain, 0.01f, 1.0f, step);
    }
    for (uint32_t w = 0; w < 3; w++) {
        memcpy(own[w], ranks.parameters[w], sizeof own[w]);
        memcpy(kept[w], weights_of(&ranks, w), sizeof kept[w]);
        assert_int_equal(aq_optimizer_show(ranks.optimizers[w], ranks.parameters[w], NULL), AQ_OK);
        assert_int_equal(aq_optimizer_show(plain.optimizers[w], plain.parameters[w], NULL), AQ_OK);
        for (uint64_t i = 0; i < N; i++) {
            assert_true(!ranks_is_in(i) || ranks.parameters[w][i] == plain.parameters[w][i]);
            assert_true(!ranks_is_in(i) || weights_of(&ranks, w)[i] == own[w][i]);
        }
        assert_int_equal(aq_optimizer_hide(ranks.optimizers[w], ranks.parameters[w], NULL), AQ_OK);
        assert_memory_equal(own[w], ranks.parameters[w], sizeof own[w]);
        assert_memory_equal(kept[w], weights_of(&ranks, w), sizeof kept[w]);
    }
    ranks_close(&ranks);
    ranks_close(&plain);
}

static void test_looks_from_outside_see_the_weights(void **state)
{
    (void)state;
    expect_shown(0, 5);
    expect_shown(4, 4);
    expect_shown(4, 6);
}

/* The state and the parameters are all that a restart needs. */
static void test_a_restart_goes_on_bit_for_bit(void **state)
{
    (void)state;
    const struct aq_optimizer_config config = config_of("lion");
    struct ranks whole, again;
    ranks_open(&whole, &config, 2);
    ranks_open(&again, &config, 2);
    for (uint64_t step = 1; step <= LAST; step++) {
        ranks_gradients(&whole, 53, step);
        ranks_step(&whole, 0.01f, 1.0f, step);
        if (step == 6)
            for (uint32_t w = 0; w < 2; w++) {
                memcpy(again.parameters[w], whole.parameters[w], N * sizeof(float));
                for (uint32_t i = 0; i < aq_optimizer_state_count(whole.optimizers[w]); i++) {
                    struct aq_optimizer_state_info info;
                    aq_optimizer_state_info(whole.optimizers[w], i, &info);
                    memcpy(aq_optimizer_state(again.optimizers[w], i), aq_optimizer_state(whole.optimizers[w], i),
                           info.count * sizeof(float));
                }
            }
        if (step <= 6) continue;
        ranks_gradients(&again, 53, step);
        ranks_step(&again, 0.01f, 1.0f, step);
    }
    assert_memory_equal(whole.parameters[0], again.parameters[0], N * sizeof(float));
    assert_memory_equal(whole.parameters[1], again.parameters[1], N * sizeof(float));
    ranks_close(&whole);
    ranks_close(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_are_of_the_weights),
        cmocka_unit_test(test_what_does_not_move_is_not_predicted),
        cmocka_unit_test(test_looks_from_outside_see_the_weights),
        cmocka_unit_test(test_a_restart_goes_on_bit_for_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
