/*
 * test_cut_correlation.c -- the distance correlation of a cut: values that are known, and its gradient against finite
 * differences.
 *
 * With "values" it reads n, each, n x each inputs and as many activations from its standard input, and prints the
 * correlation and its gradient: what tests/test_correlation_torch compares with PyTorch.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cut_correlation.h"

enum { N = 7, IN = 5, OUT = 11, SCRATCH = 64 * 129 };

static float x[N * IN], z[N * OUT], gradient[N * OUT];
static double inputs[64 * 64], scratch[SCRATCH];

static void fill(uint64_t seed)
{
    const struct aq_rng_key rng = aq_rng_key(seed, AQ_RNG_TEST, 1, 2);
    for (uint64_t i = 0; i < N * IN; i++)
        x[i] = aq_rng_uniform(&rng, i) * 4 - 2;
    for (uint64_t i = 0; i < N * OUT; i++)
        z[i] = aq_rng_uniform(&rng, 1000 + i) * 4 - 2;
}

static double value(const uint64_t *counts)
{
    aq_cut_distances(x, N, IN, NULL, inputs);
    return aq_cut_correlation(inputs, z, N, OUT, counts, 1, scratch, gradient);
}

static void check_gradient(const uint64_t *counts)
{
    const float step = 0x1p-9f;
    float wanted[N * OUT], by[N * OUT];
    (void)value(counts);
    memcpy(by, gradient, sizeof by);
    for (int i = 0; i < N * OUT; i++) {
        const float at = z[i];
        z[i] = at + step;
        const double above = value(counts);
        z[i] = at - step;
        wanted[i] = (float)((above - value(counts)) / (2.0 * step));
        z[i] = at;
        const bool real = !counts || (uint64_t)i % OUT < counts[i / OUT];
        assert_true(fabsf(by[i] - (real ? wanted[i] : 0)) < 2e-5f); /* gradients are of some hundredths */
    }
}

static void test_gradient_is_that_of_finite_differences(void **state)
{
    (void)state;
    const uint64_t counts[N] = {OUT, 3, 5, 5, 1, OUT, 8};
    for (uint64_t seed = 1; seed < 6; seed++) {
        fill(seed);
        assert_true(value(NULL) > 0.1 && value(NULL) < 1);
        check_gradient(NULL);
        check_gradient(counts);
    }
}

static void test_copy_is_one_and_weight_scales(void **state)
{
    (void)state;
    float once[N * OUT];
    fill(3);
    aq_cut_distances(z, N, OUT, NULL, inputs);
    assert_true(fabs(aq_cut_correlation(inputs, z, N, OUT, NULL, 1, scratch, gradient) - 1) < 1e-12);
    (void)value(NULL);
    memcpy(once, gradient, sizeof once);
    aq_cut_distances(x, N, IN, NULL, inputs);
    (void)aq_cut_correlation(inputs, z, N, OUT, NULL, 0.25, scratch, gradient);
    for (int i = 0; i < N * OUT; i++)
        assert_true(fabsf(gradient[i] - once[i] / 4) < 1e-7f);
}

/* Nothing is divided by nothing: one sample, one point, two samples on one point. */
static void test_nothing_to_correlate_is_zero(void **state)
{
    (void)state;
    fill(4);
    aq_cut_distances(x, 1, IN, NULL, inputs);
    assert_true(aq_cut_correlation(inputs, z, 1, OUT, NULL, 1, scratch, gradient) == 0);
    for (int i = 0; i < N * OUT; i++)
        z[i] = 1.5f;
    assert_true(value(NULL) == 0);
    for (int i = 0; i < N * OUT; i++)
        assert_true(gradient[i] == 0);
    fill(4);
    memcpy(z + OUT, z, OUT * sizeof *z);
    assert_true(value(NULL) > 0);
    for (int i = 0; i < N * OUT; i++)
        assert_true(isfinite(gradient[i]));
}

static void test_texts_are_far_by_places_that_differ(void **state)
{
    (void)state;
    const int32_t tokens[3 * 4] = {5, 6, 7, 8, 5, 9, 7, 8, 5, 6, 3, 3};
    const uint32_t lengths[3] = {4, 4, 2};
    aq_cut_distances_text(tokens, 3, 4, NULL, inputs);
    assert_true(inputs[1] == sqrt(2.0) && inputs[2] == 2 && inputs[5] == sqrt(6.0) && inputs[4] == 0);
    aq_cut_distances_text(tokens, 3, 4, lengths, inputs);
    assert_true(inputs[2] == 2 && inputs[6] == 2 && inputs[5] == sqrt(6.0));
}

static int print_values(void)
{
    static float in[4096], out[4096], by[4096];
    unsigned n, each;
    if (scanf("%u %u", &n, &each) != 2 || n > 64 || n * each > 4096) return 2;
    for (unsigned i = 0; i < n * each; i++)
        if (scanf("%f", &in[i]) != 1) return 2;
    for (unsigned i = 0; i < n * each; i++)
        if (scanf("%f", &out[i]) != 1) return 2;
    aq_cut_distances(in, n, each, NULL, inputs);
    printf("%.17g\n", aq_cut_correlation(inputs, out, n, each, NULL, 1, scratch, by));
    for (unsigned i = 0; i < n * each; i++)
        printf("%.9g\n", (double)by[i]);
    return 0;
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient_is_that_of_finite_differences),
        cmocka_unit_test(test_copy_is_one_and_weight_scales),
        cmocka_unit_test(test_nothing_to_correlate_is_zero),
        cmocka_unit_test(test_texts_are_far_by_places_that_differ),
    };
    if (count == 2 && strcmp(arguments[1], "values") == 0) return print_values();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
