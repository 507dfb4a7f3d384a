/*
 * test_guard.c -- the guard of a cut: when it raises bits and when not, that it decides the same whether or not it was
 * written and read in between, that its levels end where codecs do, and that it refuses state that is none.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "edge_guard.h"

enum { EPOCH = 10 };

/* One step of two samples with that drift and that c_Q; how many were forgotten. */
static uint32_t step(struct aq_edge_guard *guard, uint64_t number, float rate, double drift, double ratio,
                     uint32_t *level)
{
    uint32_t forgotten = 0;
    *level = aq_edge_guard_level(guard, number, rate);
    for (int i = 0; i < 2; i++) {
        const double a2 = 100 + i, delta2 = drift * drift * a2;
        const struct aq_codec_result result = {
            .sum_a2 = a2, .sum_delta2 = delta2, .sum_error2 = ratio * ratio * delta2};
        forgotten += aq_edge_guard_add(guard, &result);
    }
    return forgotten;
}

static void test_guard_contracts_stays(void **state)
{
    (void)state;
    struct aq_edge_guard guard;
    uint32_t level = 9;
    aq_edge_guard_init(&guard, 0, 4, EPOCH);
    for (uint64_t s = 0; s < 5 * EPOCH; s++)
        assert_int_equal(step(&guard, s, 1e-4f, 0.2 / (1 + (double)(s / EPOCH)), 0.69, &level), 0);
    assert_int_equal(level, 0);
}

static void test_guard_above_limit_raises_to_the_end(void **state)
{
    (void)state;
    struct aq_edge_guard guard;
    uint32_t level, seen[4] = {0};
    aq_edge_guard_init(&guard, 0, 3, EPOCH);
    for (uint64_t s = 0; s < 40; s++) {
        step(&guard, s, 1e-4f, 0.2, 0.72, &level);
        seen[level]++;
    }
    assert_int_equal(seen[0], 8); /* eight steps of each, and no level beyond the last */
    assert_int_equal(seen[1], 8);
    assert_int_equal(seen[2], 24);
}

/* The learning rate of an epoch, and the drift that grows: raised where the rate falls, and only there. */
static uint32_t level_after(float first, float later, double grows, double ratio)
{
    struct aq_edge_guard guard;
    uint32_t level = 9;
    aq_edge_guard_init(&guard, 0, 4, EPOCH);
    for (uint64_t s = 0; s < 3 * EPOCH + 1; s++)
        step(&guard, s, s < EPOCH ? first : later, s < EPOCH ? 0.1 : 0.1 * grows, ratio, &level);
    return level;
}

static void test_guard_drift_grows_raises(void **state)
{
    (void)state;
    assert_int_equal(level_after(2e-4f, 1e-4f, 1.3, 0.5), 1);
    assert_int_equal(level_after(2e-4f, 1e-4f, 1.3, 0.3), 0); /* errors are too small to be the cause */
    assert_int_equal(level_after(2e-4f, 1e-4f, 1.02, 0.5), 0);
    assert_int_equal(level_after(1e-4f, 2e-4f, 1.3, 0.5), 0);
}

static void test_guard_runaway_sample_forgotten(void **state)
{
    (void)state;
    struct aq_edge_guard guard;
    uint32_t level;
    aq_edge_guard_init(&guard, 0, 4, EPOCH);
    assert_int_equal(step(&guard, 0, 1e-4f, 1.0, 0.70, &level), 0);
    assert_int_equal(step(&guard, 1, 1e-4f, 1.0, 0.72, &level), 2);
    const struct aq_codec_result raw = {.flags = AQ_CODED_RAW, .sum_a2 = 1, .sum_error2 = 9};
    assert_false(aq_edge_guard_add(&guard, &raw)); /* it has no message */
}

static void test_guard_written_and_read_decides_alike(void **state)
{
    (void)state;
    for (uint64_t cut = 0; cut < 45; cut++) {
        struct aq_edge_guard whole, parts;
        uint32_t a, b;
        aq_edge_guard_init(&whole, 1, 4, EPOCH);
        aq_edge_guard_init(&parts, 1, 4, EPOCH);
        for (uint64_t s = 0; s < 45; s++) {
            const double drift = 0.1 + 0.05 * sin((double)s), ratio = 0.5 + (double)s / 100;
            const float rate = 1e-4f / (1.0f + (float)s);
            step(&whole, s, rate, drift, ratio, &a);
            step(&parts, s, rate, drift, ratio, &b);
            assert_int_equal(a, b);
            if (s != cut) continue;
            float kept[AQ_EDGE_GUARD_STATE];
            aq_edge_guard_settle(&parts); /* a checkpoint, and a process that begins with it */
            memcpy(kept, parts.state, sizeof kept);
            aq_edge_guard_init(&parts, 1, 4, EPOCH);
            memcpy(parts.state, kept, sizeof kept);
            assert_int_equal(aq_edge_guard_check(parts.state), AQ_OK);
        }
        aq_edge_guard_settle(&whole);
        aq_edge_guard_settle(&parts);
        assert_memory_equal(whole.state, parts.state, sizeof whole.state);
        assert_true(whole.state[AQ_GUARD_LEVEL] > 0);
    }
}

static void test_guard_not_finite_is_no_measure(void **state)
{
    (void)state;
    struct aq_edge_guard guard;
    aq_edge_guard_init(&guard, 0, 4, EPOCH);
    for (uint64_t s = 0; s < 20; s++) {
        const struct aq_codec_result result = {.sum_a2 = 1, .sum_delta2 = (double)INFINITY, .sum_error2 = (double)NAN};
        assert_int_equal(aq_edge_guard_level(&guard, s, 1e-4f), 0);
        (void)aq_edge_guard_add(&guard, &result);
    }
    aq_edge_guard_settle(&guard);
    assert_int_equal(aq_edge_guard_check(guard.state), AQ_OK);
}

static void test_guard_state_that_is_none_refused(void **state)
{
    (void)state;
    static const struct {
        int at;
        float value;
    } wrong[] = {{AQ_GUARD_LEVEL, 4}, {AQ_GUARD_LEVEL, 0.5f},     {AQ_GUARD_LEVEL, -1},        {AQ_GUARD_RATIO, NAN},
                 {AQ_GUARD_STEPS, 9}, {AQ_GUARD_EPOCH, INFINITY}, {AQ_GUARD_DRIFT_STEPS, 1e9f}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        float words[AQ_EDGE_GUARD_STATE] = {0};
        assert_int_equal(aq_edge_guard_check(words), AQ_OK);
        words[wrong[i].at] = wrong[i].value;
        assert_int_equal(aq_edge_guard_check(words), AQ_CORRUPT);
    }
}

static uint32_t levels_of(enum aq_codec_kind kind, uint32_t bits, double out[AQ_EDGE_LEVELS])
{
    struct aq_codec_config config, levels[AQ_EDGE_LEVELS];
    aq_codec_config_default(&config, kind, bits);
    const uint32_t count = aq_edge_level_list(&config, levels);
    for (uint32_t i = 0; i < count; i++)
        out[i] = aq_edge_level_bits(&levels[i]);
    return count;
}

static void test_ladder_ends_where_the_codec_does(void **state)
{
    (void)state;
    double bits[AQ_EDGE_LEVELS];
    assert_int_equal(levels_of(AQ_CODEC_AQSGD, 2, bits), 4);
    assert_true(bits[0] == 2 && bits[1] == 3 && bits[2] == 4 && bits[3] == 6);
    assert_int_equal(levels_of(AQ_CODEC_AQSGD, 5, bits), 4);
    assert_true(bits[1] == 6 && bits[2] == 7 && bits[3] == 8);
    assert_int_equal(levels_of(AQ_CODEC_AQSGD, 7, bits), 2);
    assert_int_equal(levels_of(AQ_CODEC_AQSGD, 8, bits), 1);
    assert_int_equal(levels_of(AQ_CODEC_DIRECTQ, 2, bits), 4); /* of gradients */
    assert_int_equal(levels_of(AQ_CODEC_RAW, 2, bits), 1);
    assert_int_equal(levels_of(AQ_CODEC_EC, 2, bits), 4);
    assert_true(bits[0] == 2 && bits[1] == 2.5 && bits[2] == 3 && bits[3] == 4);

    struct aq_codec_config config, levels[AQ_EDGE_LEVELS];
    aq_codec_config_default(&config, AQ_CODEC_EC, 2);
    config.rate = 7.25f;
    assert_int_equal(aq_edge_level_list(&config, levels), 3);
    assert_true(levels[1].rate == 7.75f && levels[2].rate == 8);
    config.error = 0.05f;
    assert_int_equal(aq_edge_level_list(&config, levels), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard_contracts_stays),
        cmocka_unit_test(test_guard_above_limit_raises_to_the_end),
        cmocka_unit_test(test_guard_drift_grows_raises),
        cmocka_unit_test(test_guard_runaway_sample_forgotten),
        cmocka_unit_test(test_guard_written_and_read_decides_alike),
        cmocka_unit_test(test_guard_not_finite_is_no_measure),
        cmocka_unit_test(test_guard_state_that_is_none_refused),
        cmocka_unit_test(test_ladder_ends_where_the_codec_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
