/*
 * test_cut_privacy.c -- the clip against a plain truth, the noise against the normal distribution, and what is never
 * let through.
 *
 * Noise cannot be seeded, so its figures are held to 6 standard deviations of their own: a good build fails once in
 * some 10^8 runs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "cut_privacy.h"

enum { SAMPLES = 5, EACH = 1027, DRAWS = 1 << 20 };

static const double SIGMAS = 6;

/* Sample s has norm about 2^(s - 2) times sqrt(EACH / 3). */
static void fill(float values[SAMPLES][EACH])
{
    uint32_t word = 1;
    for (int s = 0; s < SAMPLES; s++)
        for (int i = 0; i < EACH; i++) {
            word = word * 1664525u + 1013904223u;
            values[s][i] = ldexpf((float)(word >> 8) * 0x1p-23f - 1, s - 2);
        }
}

static double norm_of(const float *values)
{
    long double sum = 0;
    for (int i = 0; i < EACH; i++)
        sum += (long double)values[i] * values[i];
    return (double)sqrtl(sum);
}

static void test_clip_bounds_each_sample_and_keeps_the_others(void **state)
{
    (void)state;
    static float before[SAMPLES][EACH], after[SAMPLES][EACH];
    fill(before);
    memcpy(after, before, sizeof after);
    const double clip = norm_of(before[2]) * 1.01; /* 0 to 2 are within it, 3 and 4 are not */
    struct aq_cut_privacy seen = {0};
    assert_int_equal(aq_cut_privacy(after[0], SAMPLES, EACH, clip, 0, &seen), AQ_OK);
    assert_memory_equal(after, before, 3 * sizeof after[0]);
    for (int s = 3; s < SAMPLES; s++) {
        const double norm = norm_of(before[s]);
        assert_true(norm_of(after[s]) <= clip && norm_of(after[s]) > clip * (1 - 1e-6));
        for (int i = 0; i < EACH; i++)
            assert_true(fabs(after[s][i] - before[s][i] * clip / norm) <= 4e-7 * fabs(before[s][i]));
    }
    assert_int_equal(seen.samples, SAMPLES);
    assert_int_equal(seen.clipped, 2);
    assert_true(fabs(seen.norm_max - norm_of(before[4])) < 1e-9 * seen.norm_max);
    assert_int_equal(aq_cut_privacy(after[0], SAMPLES, EACH, clip, 0, &seen), AQ_OK); /* what is clipped stays */
    assert_int_equal(seen.clipped, 2);
}

static void test_clip_lets_nothing_through_that_is_not_finite(void **state)
{
    (void)state;
    static float values[SAMPLES][EACH], before[SAMPLES][EACH];
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int b = 0; b < 3; b++) {
        struct aq_cut_privacy seen = {0};
        fill(values);
        memcpy(before, values, sizeof before);
        values[1][EACH - 1] = bad[b];
        assert_int_equal(aq_cut_privacy(values[0], SAMPLES, EACH, 1e9, 0, &seen), AQ_OK);
        for (int i = 0; i < EACH; i++)
            assert_true(isnan(values[1][i]));
        assert_memory_equal(values[0], before[0], sizeof values[0]);
        assert_memory_equal(values[2], before[2], 3 * sizeof values[0]);
        assert_true(isfinite(seen.norm_max));
    }
}

static void test_noise_is_normal_of_that_deviation(void **state)
{
    (void)state;
    static float values[DRAWS];
    struct aq_cut_privacy seen = {0};
    const double clip = 0.25, noise = 3, sigma = clip * noise;
    double sum[5] = {0}, beside = 0;
    memset(values, 0, sizeof values);
    assert_int_equal(aq_cut_privacy(values, 4, DRAWS / 4, clip, noise, &seen), AQ_OK);
    for (int i = 0; i < DRAWS; i++) {
        const double z = values[i] / sigma;
        double power = 1;
        for (int k = 1; k < 5; k++)
            sum[k] += power *= z;
        if (i > 0) beside += z * values[i - 1] / sigma;
    }
    assert_true(fabs(sum[1] / DRAWS) < SIGMAS * sqrt(1.0 / DRAWS));
    assert_true(fabs(sum[2] / DRAWS - 1) < SIGMAS * sqrt(2.0 / DRAWS));
    assert_true(fabs(sum[3] / DRAWS) < SIGMAS * sqrt(15.0 / DRAWS));
    assert_true(fabs(sum[4] / DRAWS - 3) < SIGMAS * sqrt(96.0 / DRAWS));
    assert_true(fabs(beside / DRAWS) < SIGMAS * sqrt(1.0 / DRAWS));
    assert_int_equal(seen.clipped, 0);
}

static void test_noise_is_on_every_value_and_never_the_same(void **state)
{
    (void)state;
    static float first[SAMPLES * EACH + 1], second[SAMPLES * EACH + 1];
    struct aq_cut_privacy seen = {0};
    for (uint64_t each = 1; each <= EACH; each += 342) { /* odd and even, and across a draw's end */
        memset(first, 0, sizeof first);
        memset(second, 0, sizeof second);
        assert_int_equal(aq_cut_privacy(first, SAMPLES, each, 1, 1, &seen), AQ_OK);
        assert_int_equal(aq_cut_privacy(second, SAMPLES, each, 1, 1, &seen), AQ_OK);
        uint64_t zeros = 0, equal = 0;
        for (uint64_t i = 0; i < SAMPLES * each; i++) {
            zeros += first[i] == 0;
            equal += first[i] == second[i];
        }
        assert_int_equal(zeros, 0);
        assert_true(equal <= 2); /* of 24 bits: by chance */
        assert_true(first[SAMPLES * each] == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clip_bounds_each_sample_and_keeps_the_others),
        cmocka_unit_test(test_clip_lets_nothing_through_that_is_not_finite),
        cmocka_unit_test(test_noise_is_normal_of_that_deviation),
        cmocka_unit_test(test_noise_is_on_every_value_and_never_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
