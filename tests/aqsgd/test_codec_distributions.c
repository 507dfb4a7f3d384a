/*
 * test_codec_distributions.c -- the entropy-coded codec over whatever a sample may look like: few values that are not
 * zero, rows of unlike size, heavy tails, one spike. Its error is compared with that of the best uniform quantizer at
 * the same rate, and no sample is raw.
 */
#include <stdlib.h>

#include "codec_common.h"

enum { HISTOGRAM = 1 << 18, VALUES_MAX = 131072 };

/* ---- what samples look like ---- */

struct place {
    uint32_t row, rows;
    size_t at, values;
    double chance, row_chance; /* of the value and of its row, in 0..1 */
};

typedef float maker(float gauss, const struct place *at, float p);

static float share(float gauss, const struct place *at, float p)
{
    return at->chance < (double)p ? gauss : 0.0f;
}

static float last_rows(float gauss, const struct place *at, float p)
{
    return (float)at->row >= (float)at->rows * (1.0f - p) ? gauss : 0.0f;
}

static float first_rows(float gauss, const struct place *at, float p)
{
    return (float)at->row < (float)at->rows * p ? gauss : 0.0f;
}

/* Sizes of rows are even in their logarithm. */
static float rows_over(float gauss, const struct place *at, float p)
{
    return gauss * (float)pow((double)p, at->row_chance);
}

static float rows_fall(float gauss, const struct place *at, float p)
{
    return gauss * powf((float)(at->row + 1), -p);
}

static float large_rows(float gauss, const struct place *at, float p)
{
    return at->row_chance < 0.3 / (double)p ? gauss * p : gauss;
}

static float spike(float gauss, const struct place *at, float p)
{
    return at->at == at->values / 3 ? p : gauss;
}

static float alone(float gauss, const struct place *at, float p)
{
    (void)gauss;
    return at->at == at->values * 2 / 3 ? p : 0.0f;
}

static float two_sizes(float gauss, const struct place *at, float p)
{
    return at->chance < 0.05 ? gauss : gauss * p;
}

static float positive(float gauss, const struct place *at, float p)
{
    (void)at, (void)p;
    return gauss > 0.0f ? gauss : 0.0f;
}

static float signs(float gauss, const struct place *at, float p)
{
    (void)at;
    return gauss < 0.0f ? -p : p;
}

static float cauchy(float gauss, const struct place *at, float p)
{
    (void)gauss;
    return (float)tan(3.14159265 * (at->chance - 0.5)) * p;
}

static float last_row(float gauss, const struct place *at, float p)
{
    return at->row + 1 == at->rows ? gauss * p : gauss;
}

static const struct distribution {
    const char *name;
    maker *make;
    float p;
} distributions[] = {
    {"all", share, 1.0f},          {"one value", alone, 3.0f},         {"0.1 %", share, 0.001f},
    {"1 %", share, 0.01f},         {"5 %", share, 0.05f},              {"8 %", share, 0.08f},
    {"12 %", share, 0.12f},        {"15 %", share, 0.15f},             {"20 %", share, 0.2f},
    {"30 %", share, 0.3f},         {"40 %", share, 0.4f},              {"50 %", share, 0.5f},
    {"70 %", share, 0.7f},         {"90 %", share, 0.9f},              {"5 % of rows", last_rows, 0.05f},
    {"18 % of rows", last_rows, 0.18f}, {"25 % of rows", last_rows, 0.25f}, {"35 % of rows", last_rows, 0.35f},
    {"50 % of rows", last_rows, 0.5f},  {"the first rows", first_rows, 0.06f}, {"rows over 10^4", rows_over, 1e4f},
    {"rows over e^4", rows_over, 55.0f}, {"rows fall", rows_fall, 0.5f}, {"10 % of rows 3 times", large_rows, 3.0f},
    {"3 % of rows 10 times", large_rows, 10.0f}, {"a spike of 10^4", spike, 1e4f}, {"a spike of 10^8", spike, 1e8f},
    {"two sizes", two_sizes, 1e-7f}, {"positive", positive, 0.0f},     {"signs", signs, 0.3f},
    {"cauchy", cauchy, 1e-3f},     {"a last row of 10^6", last_row, 1e6f}, {"small", share, 1e-15f}};
enum { DISTRIBUTIONS = sizeof distributions / sizeof distributions[0] };

static const uint32_t shapes[][2] = {{128, 256}, {512, 256}, {2048, 48}, {3, 30011}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void make(const struct distribution *what, uint32_t rows, uint32_t columns, float *out)
{
    const struct aq_rng_key key = test_key(700);
    struct place at = {.rows = rows, .values = (size_t)rows * columns};
    fill(out, at.values, SHAPE_GAUSS, 1.0f, 701);
    for (at.row = 0; at.row < rows; at.row++) {
        at.row_chance = (double)aq_rng_uniform(&key, at.values + at.row);
        for (uint32_t c = 0; c < columns; c++) {
            at.at = (size_t)at.row * columns + c;
            at.chance = ((double)aq_rng_u32(&key, at.at) + 0.5) * 0x1p-32;
            out[at.at] = what->p < 1e-10f ? out[at.at] * what->p : what->make(out[at.at], &at, what->p);
        }
    }
}

/* ---- the best uniform quantizer: the smallest step whose ideal code keeps to the rate ---- */

static double entropy(const float *x, size_t n, double step, uint32_t *counts)
{
    double bits = 0;
    memset(counts, 0, 2 * HISTOGRAM * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[HISTOGRAM + (long)rint((double)x[i] / step)]++;
    for (size_t k = 0; k < 2 * HISTOGRAM; k++)
        if (counts[k] > 0) bits += (double)counts[k] * log2((double)n / (double)counts[k]);
    return bits / (double)n;
}

static double uniform_error(const float *x, size_t n, double rate)
{
    static uint32_t counts[2 * HISTOGRAM];
    double peak = 0, signal2 = 0, error2 = 0;
    for (size_t i = 0; i < n; i++) {
        peak = fmax(peak, fabs((double)x[i]));
        signal2 += (double)x[i] * (double)x[i];
    }
    double low = peak / (HISTOGRAM - 2), high = 2 * peak;
    for (int i = 0; i < 12; i++) {
        const double middle = sqrt(low * high);
        if (entropy(x, n, middle, counts) <= rate)
            high = middle;
        else
            low = middle;
    }
    for (size_t i = 0; i < n; i++)
        error2 += pow((double)x[i] - high * rint((double)x[i] / high), 2);
    return signal2 > 0 ? sqrt(error2 / signal2) : 0.0;
}

/* ---- coded ---- */

enum way { NEAREST, STOCHASTIC, KEYFRAME, CHANGE, WAYS };

static const char *const way_names[WAYS] = {"nearest", "stochastic", "keyframe", "change"};

static struct aq_codec_config config_of(enum way way, float rate)
{
    static const enum aq_codec_rounding roundings[WAYS] = {AQ_ROUND_NEAREST, AQ_ROUND_STOCHASTIC, AQ_ROUND_STOCHASTIC,
                                                           AQ_ROUND_HALF_DITHER};
    struct aq_codec_config config;
    aq_codec_config_default(&config, AQ_CODEC_EC, 4);
    config.rate = config.keyframe_rate = rate;
    config.rounding = roundings[way];
    config.store = way < KEYFRAME ? AQ_PRECISION_NONE : AQ_PRECISION_FP32;
    config.keyframe = AQ_PRECISION_EC;
    return config;
}

struct coded {
    double bits, error;
};

/* At a sender, and the same at a receiver. */
static struct coded code(const float *x, uint32_t rows, uint32_t columns, enum way way, float rate)
{
    const struct aq_codec_config config = config_of(way, rate);
    const struct aq_rng_key key = test_key(702);
    struct aq_codec_result result;
    struct end end;
    float *hat = NULL;
    void *memory = NULL;
    double error2 = 0, signal2 = 0;
    end_open(&end, &config, rows, columns);
    memcpy(end.a, x, 4 * end.values);
    assert_int_equal(aq_alloc(8 * end.values, &memory), AQ_OK);
    hat = memory;
    float *const m = way == CHANGE ? hat + end.values : NULL;
    if (m != NULL) memset(m, 0, 4 * end.values);
    assert_int_equal(aq_codec_encode(end.codec, end.a, m, &key, end.body, aq_codec_bound(end.codec), end.hat,
                                     way < KEYFRAME ? NULL : end.m, &result, NULL),
                     AQ_OK);
    assert_int_equal(result.flags & AQ_CODED_RAW, 0);
    assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, result.flags, m, hat,
                                     way < KEYFRAME ? NULL : end.m, NULL),
                     AQ_OK);
    assert_memory_equal(hat, end.hat, 4 * end.values);
    for (size_t i = 0; i < end.values; i++) {
        error2 += pow((double)x[i] - (double)hat[i], 2);
        signal2 += pow((double)x[i], 2);
    }
    if (!(fabs(result.sum_error2 - error2) <= 2e-3 * error2 + 1e-6 * signal2 + 1e-40 * (double)end.values))
        print_message("%u x %u, %s: squared error %g, said to be %g, of %g\n", rows, columns, way_names[way], error2,
                      result.sum_error2, signal2);
    assert_true(fabs(result.sum_error2 - error2) <= 2e-3 * error2 + 1e-6 * signal2 + 1e-40 * (double)end.values);
    assert_true(fabs(result.sum_delta2 - signal2) <= 1e-3 * signal2);
    const struct coded coded = {8.0 * result.body_bytes / (double)end.values,
                                signal2 > 0 ? sqrt(error2 / signal2) : 0.0};
    aq_free(memory);
    end_close(&end);
    return coded;
}

/* Where zeros are many, bits go where values are, and what the table costs beside an ideal code is this much. */
static double error_most(double uniform, float rate)
{
    return hypot(1.5 * uniform, 0.07 * pow(2.0, 4.0 - (double)rate));
}

static void test_no_distribution_loses_much_more_than_a_uniform_quantizer(void **state)
{
    (void)state;
    static const float rates[] = {4.0f, 2.5f};
    static float x[VALUES_MAX];
    for (uint32_t d = 0; d < DISTRIBUTIONS; d++) {
        const uint32_t *shape = shapes[d % SHAPES];
        const size_t values = (size_t)shape[0] * shape[1];
        make(&distributions[d], shape[0], shape[1], x);
        for (int r = 0; r < 2; r++) {
            const double uniform = uniform_error(x, values, (double)rates[r]);
            for (enum way way = 0; way < WAYS; way++) {
                const struct coded coded = code(x, shape[0], shape[1], way, rates[r]);
                print_message("%-20s %4u x %-5u %-10s rate %.1f: %.3f bits, error %.4f, uniform %.4f\n",
                              distributions[d].name, shape[0], shape[1], way_names[way], (double)rates[r], coded.bits,
                              coded.error, uniform);
                assert_true(coded.error <= error_most(uniform, rates[r]));
            }
        }
    }
}

/* Of every share, and in every shape: at rate 4 no more than a dense sample loses. With nearest rounding a zero lies at
 * the edge of its cell, and few zeros cost 0.005 more. A change is coded once, so that it may be longer than its rate
 * where its rows are unlike (docs/LIMITS.md). */
static void test_rate_4_keeps_every_distribution_within_8_percent(void **state)
{
    (void)state;
    static float x[VALUES_MAX];
    double worst = 0, bits = 0;
    for (uint32_t d = 0; d < DISTRIBUTIONS; d++)
        for (uint32_t s = 0; s < SHAPES; s++) {
            make(&distributions[d], shapes[s][0], shapes[s][1], x);
            for (enum way way = 0; way < WAYS; way++) {
                const struct coded coded = code(x, shapes[s][0], shapes[s][1], way, 4.0f);
                const double error = coded.error * (way == NEAREST ? 0.08 / 0.086 : 1.0);
                worst = error > worst ? error : worst;
                bits = way != CHANGE && coded.bits > bits ? coded.bits : bits;
                if (error > 0.08 || coded.bits > (way == CHANGE ? 5.0 : 4.1))
                    print_message("%s, %u x %u, %s: %.3f bits, error %.4f\n", distributions[d].name, shapes[s][0],
                                  shapes[s][1], way_names[way], coded.bits, coded.error);
                assert_true(error <= 0.08);
                assert_true(coded.bits <= (way == CHANGE ? 5.0 : 4.1));
            }
        }
    print_message("the worst error at 4 bits is %.4f, the most bits %.3f\n", worst, bits);
}

/* A sample whose values are few costs little: zeros are cheap. */
static void test_zeros_are_cheap_and_stay_zero(void **state)
{
    (void)state;
    static const struct {
        float share;
        double bits;
    } cases[] = {{0.001f, 0.1}, {0.01f, 0.35}, {0.05f, 1.2}, {0.1f, 2.1}};
    static float x[VALUES_MAX];
    for (int i = 0; i < 4; i++) {
        const struct distribution what = {"", share, cases[i].share};
        const struct aq_codec_config config = config_of(STOCHASTIC, 2.5f);
        const struct aq_rng_key key = test_key(703);
        struct aq_codec_result result;
        struct end end;
        make(&what, 128, 256, x);
        end_open(&end, &config, 128, 256);
        memcpy(end.a, x, 4 * end.values);
        assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), end.hat,
                                         NULL, &result, NULL),
                         AQ_OK);
        assert_true(8.0 * result.body_bytes / (double)end.values < cases[i].bits);
        assert_true(result.sum_error2 < 1.5e-4 * result.sum_delta2);
        for (size_t e = 0; e < end.values; e++)
            if (x[e] == 0.0f) assert_true(end.hat[e] == 0.0f);
        end_close(&end);
    }
}

/* What is rounded stochastically has no bias where zeros stay zero, either: in standard errors, over keys. */
static void test_sparse_values_have_no_bias(void **state)
{
    (void)state;
    enum { KEYS = 60, ROWS = 64, COLUMNS = 64 };
    static float x[ROWS * COLUMNS];
    const struct distribution what = {"", share, 0.3f};
    const struct aq_codec_config config = config_of(STOCHASTIC, 1.5f);
    double sum = 0, square = 0;
    struct end end;
    make(&what, ROWS, COLUMNS, x);
    end_open(&end, &config, ROWS, COLUMNS);
    for (uint64_t k = 0; k < KEYS; k++) {
        const struct aq_rng_key key = test_key(800 + k);
        struct aq_codec_result result;
        memcpy(end.a, x, 4 * end.values);
        assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), end.hat,
                                         NULL, &result, NULL),
                         AQ_OK);
        assert_int_equal(end.body[AQ_EC_MARKS], 0);
        for (size_t e = 0; e < end.values; e++) {
            if (!(x[e] > 0.05f && x[e] < 0.4f)) continue;
            sum += (double)end.hat[e] - (double)x[e];
            square += pow((double)end.hat[e] - (double)x[e], 2);
        }
    }
    end_close(&end);
    print_message("bias of small values among zeros: %.2f standard errors\n", sum / sqrt(square));
    assert_true(fabs(sum) < 4 * sqrt(square));
}

/* At the least rates a dither would leave more than the change. There it is left out, and both ends settle. */
static void test_every_rate_settles(void **state)
{
    (void)state;
    static const float rates[] = {1.0f, 1.1f, 1.25f, 1.4f, 1.5f};
    for (int i = 0; i < 10; i++) {
        struct aq_codec_config config = config_of(CHANGE, rates[i / 2]);
        struct aq_codec_result result;
        struct end end;
        float drift[4096];
        if (i % 2 == 1) config.rounding = AQ_ROUND_STOCHASTIC;
        config.keyframe = AQ_PRECISION_FP32;
        end_open(&end, &config, 64, 64);
        fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 900);
        double error2 = 0;
        for (uint64_t visit = 0; visit < 30; visit++) {
            const struct aq_rng_key key = test_key(910 + visit);
            fill(drift, end.values, SHAPE_GAUSS, 0.03f, 920 + visit);
            for (size_t e = 0; e < end.values; e++)
                end.a[e] += drift[e];
            assert_int_equal(aq_codec_encode(end.codec, end.a, visit == 0 ? NULL : end.m, &key, end.body,
                                             aq_codec_bound(end.codec), end.hat, end.m, &result, NULL),
                             AQ_OK);
            error2 = result.sum_error2;
        }
        print_message("rate %.2f, %s: error %.4f after 30 visits that drift by 0.03\n", (double)rates[i / 2],
                      i % 2 == 0 ? "half dither" : "stochastic", sqrt(error2 / (double)end.values));
        assert_true(sqrt(error2 / (double)end.values) < 0.06);
        end_close(&end);
    }
}

/* ---- what is raw, and why ---- */

static struct aq_codec_result result_of(const struct aq_codec_config *config, float value)
{
    const struct aq_rng_key key = test_key(704);
    struct aq_codec_result result;
    struct end end;
    end_open(&end, config, 8, 64);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 705);
    end.a[100] = value;
    assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), end.hat, end.m,
                                     &result, NULL),
                     AQ_OK);
    end_close(&end);
    return result;
}

static void test_a_raw_sample_has_its_reason(void **state)
{
    (void)state;
    struct aq_codec_config config;
    aq_codec_config_default(&config, AQ_CODEC_EC, 4);
    struct aq_codec_result result = result_of(&config, NAN);
    assert_int_equal(result.raw_reason, AQ_RAW_NOT_FINITE);
    assert_true(isinf(result.raw_peak));
    result = result_of(&config, -7e4f);
    assert_int_equal(result.raw_reason, AQ_RAW_STORE);
    assert_true(result.raw_peak == 7e4f);
    config.store = config.keyframe = AQ_PRECISION_BF16;
    result = result_of(&config, -7e4f);
    assert_int_equal(result.raw_reason, AQ_RAW_NOT);
    assert_true(result.raw_peak == 0.0f);
    aq_codec_config_default(&config, AQ_CODEC_RAW, 0);
    config.raw = AQ_PRECISION_FP16;
    assert_int_equal(result_of(&config, 65519.0f).flags, 0);
    assert_int_equal(result_of(&config, 65520.0f).raw_reason, AQ_RAW_STORE);
    aq_codec_config_default(&config, AQ_CODEC_DIRECTQ, 4);
    assert_int_equal(result_of(&config, 1e5f).raw_reason, AQ_RAW_SCALE);
}

/* Rows that the first look leaves out are a hundred million times as large: its step fits none of them, and all rows
 * are looked at before a sample goes raw. */
static void test_rows_that_were_not_looked_at_are_coded(void **state)
{
    (void)state;
    static float hat[256 * 512];
    const struct aq_rng_key key = test_key(707);
    struct aq_codec_config config;
    struct aq_codec_result result;
    struct end end;
    aq_codec_config_default(&config, AQ_CODEC_EC, 4);
    config.store = AQ_PRECISION_NONE;
    end_open(&end, &config, 256, 512);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 706);
    for (size_t e = 0; e < end.values; e++)
        end.a[e] *= e / 512 % 2 == 0 ? 1e-4f : 1e4f;
    assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), end.hat, NULL,
                                     &result, NULL),
                     AQ_OK);
    assert_int_equal(result.raw_reason, AQ_RAW_NOT);
    assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, result.flags, NULL, hat, NULL, NULL),
                     AQ_OK);
    assert_memory_equal(hat, end.hat, sizeof hat);
    end_close(&end);
}

/* Scales of f16 go on beyond 65504: a gradient of 1 with the default prescale of 2^16 is none that has to be raw. */
static void test_a_scale_goes_beyond_the_end_of_f16(void **state)
{
    (void)state;
    static const float values[] = {0.99f, 0.9996f, 0.99976f, 1.0f, 5.0f, 300.0f, 65000.0f};
    for (int i = 0; i < 14; i++) {
        struct aq_codec_config config;
        struct aq_codec_result result;
        struct end end;
        float hat[512];
        aq_codec_config_default(&config, i < 7 ? AQ_CODEC_DIRECTQ : AQ_CODEC_SIGN, 4);
        config.prescale_log2 = 16;
        config.store = AQ_PRECISION_NONE;
        end_open(&end, &config, 8, 64);
        for (size_t e = 0; e < end.values; e++)
            end.a[e] = (e % 2 == 0 ? -1.0f : 1.0f) * values[i % 7];
        assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, NULL, end.body, aq_codec_bound(end.codec), end.hat,
                                         NULL, &result, NULL),
                         AQ_OK);
        assert_int_equal(result.flags, 0);
        assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, 0, NULL, hat, NULL, NULL), AQ_OK);
        assert_memory_equal(hat, end.hat, sizeof hat);
        for (size_t e = 0; e < end.values; e++)
            assert_true(fabsf(hat[e] - end.a[e]) <= 0.07f * values[i % 7]);
        end_close(&end);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_distribution_loses_much_more_than_a_uniform_quantizer),
        cmocka_unit_test(test_rate_4_keeps_every_distribution_within_8_percent),
        cmocka_unit_test(test_zeros_are_cheap_and_stay_zero),
        cmocka_unit_test(test_sparse_values_have_no_bias),
        cmocka_unit_test(test_every_rate_settles),
        cmocka_unit_test(test_a_raw_sample_has_its_reason),
        cmocka_unit_test(test_rows_that_were_not_looked_at_are_coded),
        cmocka_unit_test(test_a_scale_goes_beyond_the_end_of_f16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
