/*
 * conform_grad.c -- what every optimizer of optimizers.def owes, walked over the whole table and every gradient codec
 * that fits it, with W = 1 to 8 ranks.
 *
 * A new optimizer is walked unasked. Where its defaults need more (a warm-up that ends within the test), short_config
 * says so.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "optimizer_ranks.h"

enum { STEPS = 14 };

/* The kind's defaults, with phases short enough that all of them come within STEPS. */
static struct aq_optimizer_config short_config(const char *kind)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    if (config.warmup_steps > 0 || config.freeze_ratio > 0.0f) config.warmup_steps = 3;
    config.freeze_ratio = 0.0f;
    if (config.sync_every > 0) config.sync_every = 5;
    config.total_steps = STEPS;
    return config;
}

/* A codec's defaults; of one that sends a few values so many that most parameters move within STEPS. */
static void take_codec(struct aq_optimizer_config *config, uint32_t kind)
{
    aq_grad_codec_config_default(&config->reduce, aq_grad_codec_kind(kind));
    if (config->reduce.density > 0) config->reduce.density = 0.5f;
}

static bool apart(const struct aq_optimizer_config *config, uint64_t step)
{
    return step != STEPS && aq_optimizer_config_drifts(config, step);
}

static void expect_finite(const struct ranks *ranks)
{
    for (uint32_t w = 0; w < ranks->W; w++) {
        for (uint64_t i = 0; i < RANK_FLOATS; i++)
            assert_true(isfinite(ranks->parameters[w][i]));
    }
}

/* STEPS steps; ranks agree bit for bit wherever they have to; padding and a rate of zero move nothing. */
static void run(const struct aq_optimizer_config *config, uint32_t W)
{
    struct ranks ranks;
    float first[RANK_FLOATS];
    ranks_open(&ranks, config, W);
    memcpy(first, ranks.parameters[0], sizeof first);
    for (uint64_t step = 1; step <= STEPS; step++) {
        ranks_gradients(&ranks, 5, step);
        ranks_step(&ranks, 0.01f, step % 3 ? 1.0f : 0.5f, step);
        if (W == 1) assert_int_equal(ranks.asked, 0);
        if (W == 1 || !apart(config, step)) ranks_expect_equal_parameters(&ranks);
    }
    expect_finite(&ranks);
    uint64_t moved = 0;
    for (uint64_t i = 0; i < RANK_FLOATS; i++) {
        /* The mean of W equal floats is that float but for a rounding, where W is no power of two. A codec of movements
         * leaves nothing between tensors. */
        if (!ranks_is_in(i) && !config->outer_every)
            assert_true(fabsf(ranks.parameters[0][i] - first[i]) <= 1e-6f * fabsf(first[i]));
        moved += ranks.parameters[0][i] != first[i];
    }
    assert_true(moved > RANK_FLOATS / 2);
    ranks_close(&ranks);
}

static void test_every_optimizer_ranks_agree_bit_for_bit(void **state)
{
    (void)state;
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++) {
        const struct aq_optimizer_config config = short_config(aq_optimizer_kind_name(k));
        for (uint32_t W = 1; W <= RANKS_MAX; W++)
            run(&config, W);
    }
}

static bool fits(const struct aq_optimizer_config *config)
{
    aq_error_clear();
    return aq_optimizer_config_check(config) == AQ_OK;
}

static void test_every_optimizer_with_every_codec_that_fits(void **state)
{
    (void)state;
    uint32_t pairs = 0;
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++) {
        for (uint32_t c = 0; aq_grad_codec_kind(c); c++) {
            struct aq_optimizer_config config = short_config(aq_optimizer_kind_name(k));
            take_codec(&config, c);
            if (!fits(&config)) continue;
            pairs++;
            run(&config, 2);
            run(&config, 3);
            config.error_feedback = false;
            run(&config, 4);
        }
    }
    assert_true(pairs >= 40);
}

/* Local steps with whatever takes them. */
static void test_every_optimizer_and_codec_with_local_steps(void **state)
{
    (void)state;
    uint32_t pairs = 0;
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++) {
        for (uint32_t c = 0; aq_grad_codec_kind(c); c++) {
            struct aq_optimizer_config config = short_config(aq_optimizer_kind_name(k));
            take_codec(&config, c);
            config.outer_every = 4;
            config.outer_lr = 0.7f;
            config.outer_momentum = 0.9f;
            if (!fits(&config)) continue;
            pairs++;
            run(&config, 2);
            run(&config, 3);
            run(&config, 6);
            config.outer_momentum = 0;
            config.error_feedback = c % 2;
            run(&config, 4);
        }
    }
    assert_true(pairs >= 4 * 6);
}

static void test_low_rank_and_lanes_agree_too(void **state)
{
    (void)state;
    static const char *const averaging[] = {"adamw", "sgd", "lamb", "lion"};
    for (int k = 0; k < 4; k++) {
        struct aq_optimizer_config config = short_config(averaging[k]);
        config.low_rank = 2;
        config.low_rank_start = 2;
        run(&config, 1);
        run(&config, 3);
        config.error_feedback = false;
        run(&config, 2);
    }
    for (uint32_t bits = 4; bits <= 16; bits *= 2) {
        struct aq_optimizer_config config = short_config("lioncub");
        config.lane_bits = bits;
        aq_grad_codec_config_default(&config.reduce, "lp");
        config.momentum_every = 4;
        config.momentum_names = "wte,head";
        for (uint32_t W = 1; W <= RANKS_MAX; W++)
            run(&config, W);
    }
}

/* A run that is broken off after any step and taken up by new optimizers from the saved state is the same run. */
static void expect_resumes(const struct aq_optimizer_config *config, uint32_t W, uint64_t at)
{
    struct ranks whole, first, second;
    ranks_open(&whole, config, W);
    ranks_open(&first, config, W);
    ranks_open(&second, config, W);
    for (uint64_t step = 1; step <= STEPS; step++) {
        ranks_gradients(&whole, 6, step);
        ranks_step(&whole, 0.01f, 1.0f, step);
        struct ranks *half = step <= at ? &first : &second;
        ranks_gradients(half, 6, step);
        ranks_step(half, 0.01f, 1.0f, step);
        for (uint32_t w = 0; w < W && step == at; w++) {
            memcpy(second.parameters[w], first.parameters[w], RANK_FLOATS * sizeof(float));
            for (uint32_t i = 0; i < aq_optimizer_state_count(first.optimizers[w]); i++) {
                struct aq_optimizer_state_info info;
                aq_optimizer_state_info(first.optimizers[w], i, &info);
                memcpy(aq_optimizer_state(second.optimizers[w], i), aq_optimizer_state(first.optimizers[w], i),
                       (size_t)info.count * sizeof(float));
            }
        }
    }
    for (uint32_t w = 0; w < W; w++) {
        assert_memory_equal(whole.parameters[w], second.parameters[w], RANK_FLOATS * sizeof(float));
        for (uint32_t i = 0; i < aq_optimizer_state_count(whole.optimizers[w]); i++) {
            struct aq_optimizer_state_info info;
            aq_optimizer_state_info(whole.optimizers[w], i, &info);
            assert_memory_equal(aq_optimizer_state(whole.optimizers[w], i), aq_optimizer_state(second.optimizers[w], i),
                                (size_t)info.count * sizeof(float));
        }
    }
    ranks_close(&whole);
    ranks_close(&first);
    ranks_close(&second);
}

static void test_every_optimizer_resumes_from_its_state_bit_for_bit(void **state)
{
    (void)state;
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++) {
        struct aq_optimizer_config config = short_config(aq_optimizer_kind_name(k));
        for (uint64_t at = 2; at <= 8; at += 3) {
            expect_resumes(&config, 1, at);
            expect_resumes(&config, 3, at);
        }
        config.low_rank = 1;
        if (fits(&config)) expect_resumes(&config, 2, 4);
        config.low_rank = 0;
        aq_grad_codec_config_default(&config.reduce, "uniform");
        if (fits(&config)) expect_resumes(&config, 2, 4);
        config.outer_every = 5;
        config.outer_lr = 0.7f;
        config.outer_momentum = 0.9f;
        for (uint64_t at = 4; at <= 6 && fits(&config); at++)
            expect_resumes(&config, 3, at);
    }
    struct aq_optimizer_config config = short_config("onebit_lamb");
    config.form = "analysis"; /* the ratio of the step before is state */
    for (uint64_t at = 4; at <= 6; at++)
        expect_resumes(&config, 2, at);
    config = short_config("onebit_adam");
    config.freeze_ratio = 0.9f; /* norms of the past are state */
    config.beta2 = 0.8f;
    expect_resumes(&config, 2, 4);
}

/* Nothing is changed by average and begin alone: a step can be dropped. */
static void test_every_optimizer_begin_alone_changes_nothing(void **state)
{
    (void)state;
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++) {
        const struct aq_optimizer_config config = short_config(aq_optimizer_kind_name(k));
        struct ranks with, without;
        ranks_open(&with, &config, 2);
        ranks_open(&without, &config, 2);
        for (uint64_t step = 1; step <= 6; step++) {
            ranks_gradients(&with, 7, step);
            ranks_gradients(&without, 7, step);
            for (uint32_t w = 0; w < 2; w++) {
                float bad[RANK_FLOATS];
                for (int i = 0; i < RANK_FLOATS; i++)
                    bad[i] = NAN;
                assert_int_equal(aq_optimizer_average(with.optimizers[w], bad, step, NULL), AQ_OK);
                assert_int_equal(
                    aq_optimizer_begin(with.optimizers[w], with.parameters[w], bad, 0.1f, 1.0f, step, NULL), AQ_OK);
            }
            ranks_step(&with, 0.01f, 1.0f, step);
            ranks_step(&without, 0.01f, 1.0f, step);
        }
        assert_memory_equal(with.parameters[0], without.parameters[0], RANK_FLOATS * sizeof(float));
        ranks_close(&with);
        ranks_close(&without);
    }
}

static void test_every_optimizer_measures_what_it_takes(void **state)
{
    (void)state;
    const struct aq_device_config cpu = {.kind = "cpu", .threads = 1};
    struct aq_device *device;
    assert_int_equal(aq_device_open(&cpu, &device), AQ_OK);
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++) {
        const struct aq_optimizer_config config = short_config(aq_optimizer_kind_name(k));
        for (uint32_t W = 1; W <= 4; W += 3) {
            const struct aq_optimizer_group group = {.rank = W - 1, .size = W};
            const uint64_t bytes = aq_optimizer_measure(&config, rank_tensors, RANK_TENSORS, RANK_FLOATS, &group);
            const uint64_t before = aq_memory_used();
            struct aq_optimizer *optimizer;
            assert_int_equal(
                aq_optimizer_open_group(device, &config, rank_tensors, RANK_TENSORS, RANK_FLOATS, &group, &optimizer),
                AQ_OK);
            const uint64_t taken = aq_memory_used() - before;
            uint64_t floats = 0;
            for (uint32_t i = 0; i < aq_optimizer_state_count(optimizer); i++) {
                struct aq_optimizer_state_info info;
                aq_optimizer_state_info(optimizer, i, &info);
                assert_true(info.count <= info.of && info.of <= RANK_FLOATS);
                floats += info.count;
            }
            assert_true(bytes >= floats * sizeof(float) && bytes <= taken);
            if (W == 1) assert_true(aq_optimizer_state_floats(&config) >= 1 && aq_optimizer_state_floats(&config) <= 4);
            aq_optimizer_close(optimizer);
            assert_int_equal(aq_memory_used(), before);
        }
    }
    aq_device_close(device);
}

/* No memory, at any moment: AQ_NOMEM, and nothing is left behind. */
static void test_every_optimizer_open_without_memory_fails_clean(void **state)
{
    (void)state;
    const struct aq_device_config cpu = {.kind = "cpu", .threads = 1};
    const struct aq_optimizer_group group = {.rank = 0, .size = 2};
    struct aq_device *device;
    assert_int_equal(aq_device_open(&cpu, &device), AQ_OK);
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++) {
        const struct aq_optimizer_config config = short_config(aq_optimizer_kind_name(k));
        const uint64_t before = aq_memory_used();
        enum aq_status status = AQ_NOMEM;
        for (uint64_t n = 1; status != AQ_OK; n++) {
            struct aq_optimizer *optimizer = NULL;
            aq_memory_fail_at(n);
            status =
                aq_optimizer_open_group(device, &config, rank_tensors, RANK_TENSORS, RANK_FLOATS, &group, &optimizer);
            aq_memory_fail_at(0);
            assert_true(status == AQ_OK || status == AQ_NOMEM);
            if (status == AQ_OK) aq_optimizer_close(optimizer);
            assert_int_equal(aq_memory_used(), before);
            assert_true(n < 100);
        }
    }
    aq_device_close(device);
}

/* Bytes one way against fp32's, at the published settings. */
static uint64_t bytes_at(const struct aq_optimizer_config *config, uint32_t W, uint64_t step)
{
    struct ranks ranks;
    uint64_t sent = 0;
    ranks_open(&ranks, config, W);
    for (uint64_t s = 1; s <= step; s++) {
        ranks_gradients(&ranks, 8, s);
        ranks_step(&ranks, 0.01f, 1.0f, s);
        sent = ranks.sent;
    }
    ranks_close(&ranks);
    return sent;
}

static void test_volumes_are_as_published(void **state)
{
    (void)state;
    const uint64_t raw = 4 * RANK_FLOATS, scales = 4 * 5; /* of five tensors that are not empty */
    struct aq_optimizer_config config = short_config("onebit_adam");
    assert_int_equal(bytes_at(&config, 4, 3), raw);               /* warm-up */
    assert_int_equal(bytes_at(&config, 4, 5), raw / 32 + scales); /* 32 times less but for the scales */
    config = short_config("onebit_lamb");
    assert_int_equal(bytes_at(&config, 4, 5), raw / 32 + scales);
    config = short_config("qadam");
    assert_int_equal(bytes_at(&config, 2, 5), raw / 8 + 4 * (3 + 1 + 2 + 1 + 2)); /* 4 bits, buckets of 512 */
    config = short_config("lioncub");
    assert_int_equal(bytes_at(&config, 4, 1), raw / 32);
    aq_grad_codec_config_default(&config.reduce, "lp");
    config.lane_bits = 4;
    assert_int_equal(bytes_at(&config, 4, 1), (raw / 8 + 7) / 8 * 8);
    config.lane_bits = 8;
    assert_int_equal(bytes_at(&config, 4, 1), raw / 4);
    /* SLAMB, k = 0.1 and H = 100: 1 / (k + 1 / H) = 9.1 over a hundred steps. */
    aq_optimizer_config_default(&config, "slamb");
    struct ranks ranks;
    uint64_t sent = 0;
    ranks_open(&ranks, &config, 2);
    for (uint64_t step = 1; step <= 100; step++) {
        ranks_gradients(&ranks, 9, step);
        ranks_step(&ranks, 0.001f, 1.0f, step);
        sent += ranks.sent;
    }
    const double times = 100.0 * (double)raw / (double)sent;
    assert_true(times > 8.9 && times < 9.3);
    ranks_close(&ranks);
}

static void test_what_does_not_fit_is_refused_by_name(void **state)
{
    (void)state;
    struct aq_optimizer_config config = short_config("lioncub");
    aq_grad_codec_config_default(&config.reduce, "sign");
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    config = short_config("adamw");
    aq_grad_codec_config_default(&config.reduce, "vote");
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    config = short_config("slamb");
    aq_grad_codec_config_default(&config.reduce, "uniform");
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    config = short_config("qadam");
    config.low_rank = 1;
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    config = short_config("adamw");
    config.low_rank = 1;
    aq_grad_codec_config_default(&config.reduce, "uniform");
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    /* The votes of eight ranks do not fit in lanes of two bits. */
    config = short_config("lioncub");
    aq_grad_codec_config_default(&config.reduce, "lp");
    config.lane_bits = 2;
    const struct aq_optimizer_group eight = {.rank = 0, .size = 8}, three = {.rank = 0, .size = 3};
    assert_int_equal(aq_optimizer_measure(&config, rank_tensors, RANK_TENSORS, RANK_FLOATS, &eight), 0);
    assert_true(aq_optimizer_measure(&config, rank_tensors, RANK_TENSORS, RANK_FLOATS, &three) > 0);
    struct ranks ranks;
    config = short_config("adamw");
    ranks_open(&ranks, &config, 2);
    assert_int_equal(
        aq_optimizer_step(ranks.optimizers[0], ranks.parameters[0], ranks.gradients[0], 0.1f, 1.0f, 1, NULL), AQ_INVAL);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_optimizer_ranks_agree_bit_for_bit),
        cmocka_unit_test(test_every_optimizer_with_every_codec_that_fits),
        cmocka_unit_test(test_every_optimizer_and_codec_with_local_steps),
        cmocka_unit_test(test_low_rank_and_lanes_agree_too),
        cmocka_unit_test(test_every_optimizer_resumes_from_its_state_bit_for_bit),
        cmocka_unit_test(test_every_optimizer_begin_alone_changes_nothing),
        cmocka_unit_test(test_every_optimizer_measures_what_it_takes),
        cmocka_unit_test(test_every_optimizer_open_without_memory_fails_clean),
        cmocka_unit_test(test_volumes_are_as_published),
        cmocka_unit_test(test_what_does_not_fit_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
