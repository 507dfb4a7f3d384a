/*
 * test_codec_quality.c -- what a quantizer is worth: its error for its bits, and its bias.
 *
 * The figures are those of published tables and of numerical integration (Max 1960 for a Gaussian): relative RMS error
 * per group of N values, each group with its own scale.
 */
#include "codec_common.h"

enum { ROWS = 96, COLUMNS = 1024 };

static struct aq_codec_config direct(uint32_t bits, enum aq_codec_grid grid, enum aq_codec_scale scale)
{
    struct aq_codec_config config;
    aq_codec_config_default(&config, AQ_CODEC_DIRECTQ, bits);
    config.prescale_log2 = 0;
    config.grid = grid;
    config.scale = scale;
    return config;
}

static double error_of(const struct aq_codec_config *config, enum shape shape, uint32_t rows, uint32_t columns)
{
    struct end end;
    struct aq_codec_result result;
    const struct aq_rng_key key = test_key(9);
    end_open(&end, config, rows, columns);
    fill(end.a, end.values, shape, 1.0f, 10);
    assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), end.hat, NULL,
                                     &result, NULL),
                     AQ_OK);
    double error2 = 0, signal2 = 0;
    for (size_t e = 0; e < end.values; e++) {
        error2 += pow((double)end.a[e] - (double)end.hat[e], 2);
        signal2 += pow((double)end.a[e], 2);
    }
    /* The live measures say the same. */
    assert_true(fabs(result.sum_error2 / error2 - 1) < 1e-3);
    assert_true(fabs(result.sum_a2 / signal2 - 1) < 1e-3);
    assert_true(result.sum_delta2 == result.sum_a2 || fabs(result.sum_delta2 / signal2 - 1) < 1e-3);
    end_close(&end);
    return relative(error2, signal2);
}

static void near(const char *what, double measured, double wanted, double tolerance)
{
    if (!(fabs(measured / wanted - 1) <= tolerance)) {
        print_error("%s: %.4f, wanted %.4f within %.0f %%\n", what, measured, wanted, 100 * tolerance);
        fail();
    }
}

static void test_error_of_the_published_grid_is_the_published_one(void **state)
{
    (void)state;
    static const double gauss[] = {0.505, 0.252, 0.126}, laplace[] = {0.646, 0.370, 0.191};
    for (uint32_t b = 2; b <= 4; b++) {
        const struct aq_codec_config config = direct(b, AQ_GRID_SIGNED, AQ_SCALE_ABSMAX);
        near("signed absmax gauss", error_of(&config, SHAPE_GAUSS, ROWS, COLUMNS), gauss[b - 2], 0.03);
        near("signed absmax laplace", error_of(&config, SHAPE_LAPLACE, ROWS, COLUMNS), laplace[b - 2], 0.05);
    }
    struct aq_codec_config config = direct(2, AQ_GRID_SIGNED, AQ_SCALE_ABSMAX);
    config.rounding = AQ_ROUND_STOCHASTIC;
    near("signed stochastic", error_of(&config, SHAPE_GAUSS, ROWS, COLUMNS), 0.704, 0.03);
}

static void test_error_of_the_searched_scale_is_the_published_one(void **state)
{
    (void)state;
    static const double gauss[] = {0.344, 0.193, 0.107}, laplace[] = {0.443, 0.266, 0.156};
    for (uint32_t b = 2; b <= 4; b++) {
        const struct aq_codec_config config = direct(b, AQ_GRID_MIDRISE, AQ_SCALE_SEARCH);
        near("searched gauss", error_of(&config, SHAPE_GAUSS, ROWS, COLUMNS), gauss[b - 2], 0.03);
        near("searched laplace", error_of(&config, SHAPE_LAPLACE, ROWS, COLUMNS), laplace[b - 2], 0.04);
    }
}

static void test_error_of_the_default_scale_is_near_the_best(void **state)
{
    (void)state;
    static const double gauss[] = {0.603, 0.345, 0.1935, 0.1074, 0.0591, 0.0322, 0.0174, 0.0094};
    static const double laplace[] = {0.707, 0.443, 0.268, 0.159, 0.0933, 0.0540, 0.0308, 0.0174};
    for (uint32_t b = 1; b <= 8; b++) {
        const struct aq_codec_config bell = direct(b, AQ_GRID_MIDRISE, AQ_SCALE_AUTO);
        const struct aq_codec_config rms = direct(b, AQ_GRID_MIDRISE, AQ_SCALE_RMS);
        /* The tables are for endless bells; the extremes of 1024 values end sooner, so that many bits do better. */
        assert_true(error_of(&bell, SHAPE_GAUSS, ROWS, COLUMNS) < 1.03 * gauss[b - 1]);
        assert_true(error_of(&rms, SHAPE_GAUSS, ROWS, COLUMNS) < 1.03 * gauss[b - 1]);
        assert_true(error_of(&bell, SHAPE_LAPLACE, ROWS, COLUMNS) < 1.03 * laplace[b - 1]);
        const struct aq_codec_config search = direct(b, AQ_GRID_MIDRISE, AQ_SCALE_SEARCH);
        const double heavy = error_of(&bell, SHAPE_STUDENT3, ROWS, COLUMNS);
        const double searched = error_of(&search, SHAPE_STUDENT3, ROWS, COLUMNS);
        const struct aq_codec_config whole = direct(b, AQ_GRID_MIDRISE, AQ_SCALE_ABSMAX);
        assert_true(heavy < 1.15 * searched);
        assert_true(searched < 1.01 * error_of(&whole, SHAPE_STUDENT3, ROWS, COLUMNS));
    }
}

static void test_hadamard_spreads_an_outlier_channel(void **state)
{
    (void)state;
    struct aq_codec_config config = direct(4, AQ_GRID_MIDRISE, AQ_SCALE_SEARCH);
    config.tile = 128;
    double error[2];
    for (int rotated = 0; rotated < 2; rotated++) {
        struct end end;
        struct aq_codec_result result;
        config.hadamard = rotated == 1;
        end_open(&end, &config, 8, 200); /* 128 and a tail of 64 and 8 */
        fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 11);
        for (size_t row = 0; row < 8; row++)
            end.a[row * 200 + 17] = 40.0f;
        assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, NULL, end.body, aq_codec_bound(end.codec), end.hat,
                                         NULL, &result, NULL),
                         AQ_OK);
        error[rotated] = 0;
        for (size_t e = 0; e < end.values; e++)
            error[rotated] += pow((double)end.a[e] - (double)end.hat[e], 2);
        assert_true(fabs(result.sum_error2 / error[rotated] - 1) < 1e-3); /* a rotation keeps lengths */
        end_close(&end);
    }
    assert_true(error[1] < 0.25 * error[0]);
}

/* The mean error over its own standard error. */
static double bias_of(const struct aq_codec_config *config)
{
    struct end end;
    struct aq_codec_result result;
    const struct aq_rng_key key = test_key(12);
    end_open(&end, config, 128, 1024);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 13);
    assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), end.hat, NULL,
                                     &result, NULL),
                     AQ_OK);
    double sum = 0, square = 0;
    for (size_t e = 0; e < end.values; e++) {
        const double error = (double)end.hat[e] - (double)end.a[e];
        sum += error;
        square += error * error;
    }
    const double n = (double)end.values, mean = sum / n;
    end_close(&end);
    return mean / sqrt((square / n - mean * mean) / n);
}

static void test_bias_is_zero_but_for_the_signed_grid(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits <= 8; bits++) {
        for (uint32_t rounding = AQ_ROUND_NEAREST; rounding <= AQ_ROUND_STOCHASTIC; rounding++) {
            for (uint32_t grid = AQ_GRID_MIDRISE; grid <= AQ_GRID_SIGNED; grid++) {
                struct aq_codec_config config = direct(bits, (enum aq_codec_grid)grid, AQ_SCALE_ABSMAX);
                config.rounding = (enum aq_codec_rounding)rounding;
                config.group = AQ_PER_TILE; /* short groups, so that their extremes weigh */
                config.tile = 32;
                if (grid == AQ_GRID_MIDTREAD && bits == 1) continue;
                const double bias = bias_of(&config);
                const bool biased = fabs(bias) > 4.5;
                if (biased != (grid == AQ_GRID_SIGNED)) {
                    print_error("bits %u grid %u rounding %u: bias of %.1f standard errors\n", bits, grid, rounding,
                                bias);
                    fail();
                }
                if (grid == AQ_GRID_SIGNED) assert_true(bias < 0);
            }
        }
    }
    enum aq_codec_kind kind;
    for (uint32_t i = 0; aq_codec_kind_at(i, &kind); i++) { /* every codec that gradients may go through */
        struct aq_codec_config config;
        aq_codec_config_default(&config, kind, 4);
        if (aq_codec_about(kind)->activations || aq_codec_about(kind)->plain) continue;
        config.store = AQ_PRECISION_NONE;
        config.prescale_log2 = 0;
        assert_true(fabs(bias_of(&config)) < 4.5);
    }
    for (uint32_t bits = 1; bits <= 8; bits++) { /* and with the default rule, row by row */
        const struct aq_codec_config config = direct(bits, AQ_GRID_MIDRISE, AQ_SCALE_AUTO);
        assert_true(fabs(bias_of(&config)) < 4.5);
    }
}

/* Sums of errors over many keys: of all values or, with top_k, of those that are kept; over their own spread. */
static double spread_of_sums(float top_k)
{
    enum { KEYS = 400, N = 1024 };
    struct aq_codec_config config = direct(2, AQ_GRID_MIDRISE, AQ_SCALE_ABSMAX);
    struct end end;
    double sum[N] = {0}, square = 0, spread = 0;
    uint32_t kept = 0;
    config.rounding = AQ_ROUND_STOCHASTIC;
    config.scale_format = AQ_SCALE_FP32;
    config.top_k = top_k;
    end_open(&end, &config, 1, N);
    fill(end.a, N, SHAPE_LAPLACE, 1.0f, 14);
    for (uint64_t k = 0; k < KEYS; k++) {
        struct aq_codec_result result;
        const struct aq_rng_key key = test_key(100 + k);
        assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), end.hat,
                                         NULL, &result, NULL),
                         AQ_OK);
        kept = 0;
        for (size_t e = 0; e < N; e++) {
            const double error = (double)end.hat[e] - (double)end.a[e];
            if (end.hat[e] == 0.0f) continue; /* left out: no level of mid-rise is 0 */
            sum[e] += error;
            square += error * error;
            kept++;
        }
    }
    assert_int_equal(kept, top_k > 0 ? ceil((double)top_k * N) : N);
    for (size_t e = 0; e < N; e++)
        spread += sum[e] * sum[e];
    end_close(&end);
    return spread / square;
}

/*
 * Stochastic rounding gives each value its own mean: over many keys the error of every value goes to zero. With top-k,
 * what is left out is lost, always, and that is a bias by nature; what is kept has none.
 */
static void test_stochastic_rounding_is_unbiased_value_by_value(void **state)
{
    (void)state;
    /* Independent errors: squares of sums add up to the sum of squares, 1 +- sqrt(2 / kept), which is 0.1 at most. */
    near("sum of errors squared", spread_of_sums(0), 1.0, 0.4);
    near("sum of errors squared, of the kept", spread_of_sums(0.2f), 1.0, 0.4);
}

/* What is sent of the largest is neither too large nor too small, at the bits of bw8[0.2] and at fewer. */
static void test_kept_values_are_not_made_smaller(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits++) {
        struct aq_codec_config config = direct(bits, AQ_GRID_MIDRISE, AQ_SCALE_ABSMAX);
        const struct aq_rng_key key = test_key(12);
        struct aq_codec_result result;
        struct end end;
        double sum = 0, square = 0, n = 0;
        config.rounding = AQ_ROUND_STOCHASTIC;
        config.scale_format = AQ_SCALE_FP32;
        config.top_k = 0.2f;
        end_open(&end, &config, 128, 1024);
        fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 13);
        assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), end.hat,
                                         NULL, &result, NULL),
                         AQ_OK);
        for (size_t e = 0; e < end.values; e++) {
            if (end.hat[e] == 0.0f) continue;
            const double error = ((double)end.hat[e] - (double)end.a[e]) * (end.a[e] < 0 ? -1 : 1);
            sum += error;
            square += error * error;
            n++;
        }
        assert_int_equal(n, ceil((double)config.top_k * (double)end.values));
        if (!(fabs(sum / sqrt(square)) < 4.5)) {
            print_error("bits %u: bias of the kept, %.1f standard errors\n", bits, sum / sqrt(square));
            fail();
        }
        end_close(&end);
    }
}

/* papers/004: delta coding beats direct coding where samples move little; 2 bits, the default config. */
static void test_delta_error_shrinks_with_the_delta(void **state)
{
    (void)state;
    struct aq_codec_config config;
    struct end end;
    aq_codec_config_default(&config, AQ_CODEC_AQSGD, 2);
    end_open(&end, &config, 16, 512);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 15);
    double last = 0;
    void *memory = NULL;
    assert_int_equal(aq_alloc(4 * end.values, &memory), AQ_OK);
    float *drift = memory;
    for (uint32_t epoch = 0; epoch < 10; epoch++) {
        struct aq_codec_result result;
        fill(drift, end.values, SHAPE_GAUSS, 0.1f / (float)(epoch + 1), 200 + epoch);
        for (size_t e = 0; e < end.values; e++)
            end.a[e] += drift[e];
        assert_int_equal(aq_codec_encode(end.codec, end.a, epoch == 0 ? NULL : end.m, NULL, end.body,
                                         aq_codec_bound(end.codec), NULL, end.m, &result, NULL),
                         AQ_OK);
        last = relative(result.sum_error2, result.sum_a2);
        if (epoch > 0) assert_true(result.sum_delta2 < 0.05 * result.sum_a2);
    }
    assert_true(last < 0.015); /* direct coding: 0.345 */
    aq_free(memory);
    end_close(&end);
}

/* ||x^ - a|| / ||a|| of the eighth visit of samples that move a little less each time; two channels `loud` times the
 * rest. */
static double error_after_visits(enum aq_codec_precision store, enum aq_codec_group group, enum aq_codec_group of_m,
                                 float loud)
{
    struct aq_codec_config config;
    struct end end;
    double last = 0;
    void *memory = NULL;
    aq_codec_config_default(&config, AQ_CODEC_AQSGD, 4);
    config.store = store;
    config.group = group;
    config.store_group = of_m;
    end_open(&end, &config, 16, 512);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 15);
    assert_int_equal(aq_alloc(4 * end.values, &memory), AQ_OK);
    float *drift = memory;
    for (uint32_t visit = 0; visit < 8; visit++) {
        struct aq_codec_result result;
        fill(drift, end.values, SHAPE_GAUSS, 0.02f / (float)(visit + 1), 300 + visit);
        for (size_t e = 0; e < end.values; e++) {
            const bool loudly = e % 512 == 7 || e % 512 == 300;
            if (visit == 0 && loudly) end.a[e] *= loud;
            end.a[e] += loudly ? loud * drift[e] : drift[e];
        }
        assert_int_equal(aq_codec_encode(end.codec, end.a, visit == 0 ? NULL : end.m, NULL, end.body,
                                         aq_codec_bound(end.codec), NULL, end.m, &result, NULL),
                         AQ_OK);
        last = relative(result.sum_error2, result.sum_a2);
    }
    aq_free(memory);
    end_close(&end);
    return last;
}

/* A store that clips hands what it lost of the largest values on to every delta to come. */
static void test_stores_of_few_bits_do_not_clip(void **state)
{
    (void)state;
    const double q4 = error_after_visits(AQ_PRECISION_Q4, AQ_PER_ROW, AQ_PER_ROW, 1.0f),
                 q2 = error_after_visits(AQ_PRECISION_Q2, AQ_PER_ROW, AQ_PER_ROW, 1.0f),
                 q4_loud = error_after_visits(AQ_PRECISION_Q4, AQ_PER_ROW, AQ_PER_ROW, 50.0f),
                 whole = error_after_visits(AQ_PRECISION_FP16, AQ_PER_ROW, AQ_PER_ROW, 1.0f);
    printf("relative error after 8 visits, 4 bits: fp16 %.4f, q4 %.4f, q2 %.4f; two loud channels: q4 %.4f\n", whole,
           q4, q2, q4_loud);
    assert_true(q4 < 0.015 && q4_loud < 0.06 && q2 < 0.05);
}

/* As published: deltas and messages with a scale a channel. What a loud channel's message loses then makes nobody
 * else's delta coarse. */
static void test_stores_with_a_scale_a_channel_bear_loud_channels(void **state)
{
    (void)state;
    static const enum aq_codec_precision stores[] = {AQ_PRECISION_Q8, AQ_PRECISION_Q4, AQ_PRECISION_Q2};
    for (int i = 0; i < 3; i++) {
        const double row = error_after_visits(stores[i], AQ_PER_ROW, AQ_PER_ROW, 50.0f),
                     channel = error_after_visits(stores[i], AQ_PER_CHANNEL, AQ_PER_CHANNEL, 50.0f);
        printf("two loud channels, store q%d: a scale a row %.4f, a channel %.4f\n", 8 >> i, row, channel);
        assert_true(channel < row / 5.0 && channel < (i == 2 ? 0.03 : 0.007));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_of_the_published_grid_is_the_published_one),
        cmocka_unit_test(test_error_of_the_searched_scale_is_the_published_one),
        cmocka_unit_test(test_error_of_the_default_scale_is_near_the_best),
        cmocka_unit_test(test_hadamard_spreads_an_outlier_channel),
        cmocka_unit_test(test_bias_is_zero_but_for_the_signed_grid),
        cmocka_unit_test(test_stochastic_rounding_is_unbiased_value_by_value),
        cmocka_unit_test(test_kept_values_are_not_made_smaller),
        cmocka_unit_test(test_delta_error_shrinks_with_the_delta),
        cmocka_unit_test(test_stores_of_few_bits_do_not_clip),
        cmocka_unit_test(test_stores_with_a_scale_a_channel_bear_loud_channels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
