/*
 * test_grad_codec.c -- the gradient codecs against their published formulas in double, their lengths, their bias, what
 * error feedback keeps, and one table of kernels against another.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define AQ_ELEMENT static inline
#include "grad_internal.h"
#include "grad_power.h"

/* Tensors that begin and end anywhere, a gap between two of them and one behind the last. */
enum { FLOATS = 9000, GAP = 1003, GAP_END = 1017, END = 8990 };
static const struct aq_optimizer_tensor tensors[] = {
    {.offset = 0, .count = 1000},
    {.offset = 1000, .count = 3},
    {.offset = GAP_END, .count = 4109},
    {.offset = GAP_END + 4109, .count = 0},
    {.offset = GAP_END + 4109, .count = END - GAP_END - 4109},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

static float x[FLOATS], decoded[FLOATS], error[FLOATS];
static uint8_t wire[8 * FLOATS];

static struct aq_grad_codec *open_codec(const struct aq_grad_codec_config *config)
{
    struct aq_grad_codec *codec = NULL;
    assert_int_equal(aq_grad_codec_open(config, tensors, TENSORS, FLOATS, &codec), AQ_OK);
    return codec;
}

static struct aq_grad_codec_config config_of(const char *kind, uint32_t bits, const char *grid)
{
    struct aq_grad_codec_config config;
    aq_grad_codec_config_default(&config, kind);
    if (bits) config.bits = bits;
    if (grid) config.grid = grid;
    return config;
}

static void fill(uint64_t seed)
{
    const struct aq_rng_key key = aq_rng_key(seed, AQ_RNG_TEST, 0, 0);
    for (uint64_t i = 0; i < FLOATS; i++)
        x[i] = ldexpf(aq_rng_normal(&key, i), -(int)(i / 1000));
    for (uint64_t i = 0; i < FLOATS; i += 101)
        x[i] = 0.0f;
}

static bool in_gap(uint64_t i)
{
    return (i >= GAP && i < GAP_END) || i >= END;
}

static const char *const kinds[] = {"fp32", "fp16", "bf16", "uniform",   "sign",
                                    "vote", "lp",   "topk", "topk_fp32", "randomk"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void test_the_table_has_these_kinds(void **state)
{
    (void)state;
    uint32_t i = 0;
    for (; i < KINDS; i++)
        assert_string_equal(aq_grad_codec_kind(i), kinds[i]);
    assert_null(aq_grad_codec_kind(i));
}

static void test_bytes_are_scales_and_codes(void **state)
{
    (void)state;
    static const struct {
        const char *kind;
        uint32_t bits;
        size_t bytes; /* of the whole buffer: four tensors' parts of 1000, 3, 4109 and 3864 floats */
    } rows[] = {{"fp32", 0, 4 * FLOATS},
                {"fp16", 0, 2 * FLOATS},
                {"bf16", 0, 2 * FLOATS},
                {"vote", 0, FLOATS / 8},
                {"sign", 0, 4 * 4 + FLOATS / 8},
                {"uniform", 4, 4 * (2 + 1 + 9 + 8) + FLOATS / 2},
                {"uniform", 3, 4 * (2 + 1 + 9 + 8) + FLOATS * 3 / 8},
                {"lp", 5, 4 * 4 + FLOATS * 5 / 8},
                /* Five chunks; 16 of 1000 at 10 + 2 bits, 1 of 3, 64 of 4096, 1 of 13, 61 of 3864. */
                {"topk", 0, 8 * 5 + (16 * 12 + 4 + 64 * 14 + 6 + 61 * 14 + 7) / 8},
                {"topk_fp32", 0, (16 * 42 + 34 + 64 * 44 + 36 + 61 * 44 + 7) / 8},
                {"randomk", 0, 4 * 5 + 4 * (16 + 1 + 64 + 1 + 61)}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct aq_grad_codec_config config = config_of(rows[i].kind, rows[i].bits, NULL);
        struct aq_grad_codec *codec = open_codec(&config);
        assert_int_equal(aq_grad_codec_bytes(codec, 0, FLOATS), rows[i].bytes);
        assert_int_equal(aq_grad_codec_bytes_pieces(codec, 0, FLOATS), rows[i].bytes);
        assert_int_equal(aq_grad_codec_bytes(codec, FLOATS, 0), 0);
        aq_grad_codec_close(codec);
    }
}

/* One range through the codec: exactly so many bytes are written, and the error is what decode says is missing. */
static void check_range(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, bool with_error)
{
    const size_t bytes = aq_grad_codec_bytes(codec, first, count);
    static float before[FLOATS];
    memset(wire, 0xA5, sizeof wire);
    for (uint64_t i = 0; i < count; i++)
        before[i] = error[i] = 0.25f * x[(first + 7 * i) % FLOATS];
    assert_int_equal(aq_grad_encode(codec, first, count, x + first, with_error ? error : NULL, 3, wire), AQ_OK);
    for (size_t i = bytes; i < bytes + 64; i++)
        assert_int_equal(wire[i], 0xA5);
    assert_int_equal(aq_grad_decode(codec, first, count, wire, bytes, 1.0f, false, decoded), AQ_OK);
    for (uint64_t i = 0; i < count; i++) {
        if (in_gap(first + i) && aq_grad_codec_config_lossy(aq_grad_codec_config_of(codec))) {
            assert_true(decoded[i] == 0.0f && error[i] == before[i]);
            continue;
        }
        if (!with_error) continue;
        const float y = x[first + i] + before[i];
        assert_true(error[i] == y - decoded[i]);
    }
    /* Adding with a weight: one rounding for the product, one for the sum. */
    static float sum[FLOATS];
    for (uint64_t i = 0; i < count; i++)
        sum[i] = x[first + i];
    assert_int_equal(aq_grad_decode(codec, first, count, wire, bytes, 0.3f, true, sum), AQ_OK);
    for (uint64_t i = 0; i < count; i++) {
        const volatile float product = 0.3f * decoded[i];
        assert_true(sum[i] == x[first + i] + product);
    }
    if (count == 0) return;
    assert_int_equal(aq_grad_decode(codec, first, count, wire, bytes - 1, 1.0f, false, decoded), AQ_CORRUPT);
    assert_int_equal(aq_grad_decode(codec, first, count, wire, bytes + 1, 1.0f, false, decoded), AQ_CORRUPT);
}

static const uint64_t ranges[][2] = {{0, FLOATS}, {0, 1},       {5, 700},     {999, 5},   {1003, 14}, {1001, 4200},
                                     {8900, 100}, {1015, 1025}, {4000, 4999}, {64, 0},    {1, 7},     {3000, 64},
                                     {129, 127},  {8995, 5},    {1016, 5},    {517, 8000}};
enum { RANGES = sizeof ranges / sizeof ranges[0] };

static void test_every_kind_any_range_comes_back_with_its_error(void **state)
{
    (void)state;
    fill(1);
    for (size_t k = 0; k < KINDS; k++) {
        for (uint32_t bits = 2; bits <= 8; bits++) {
            static const char *const grids[] = {NULL, "tread", "rise", "signed"};
            for (int g = 0; g < (strcmp(kinds[k], "uniform") == 0 ? 4 : 1); g++) {
                struct aq_grad_codec_config config = config_of(kinds[k], bits, grids[g]);
                struct aq_grad_codec *codec = open_codec(&config);
                for (int r = 0; r < RANGES; r++) {
                    check_range(codec, ranges[r][0], ranges[r][1], true);
                    check_range(codec, ranges[r][0], ranges[r][1], false);
                }
                aq_grad_codec_close(codec);
            }
            if (strcmp(kinds[k], "uniform") != 0 && strcmp(kinds[k], "lp") != 0) break;
        }
    }
}

/* Every table of kernels writes the same bytes and errors, and reads the same floats. */
static void test_every_kind_the_same_bits_in_every_table(void **state)
{
    (void)state;
    static const char *const tables[] = {"plain", "avx2", "avx512"};
    static float first_error[FLOATS], first_decoded[FLOATS];
    static uint8_t first_wire[8 * FLOATS];
    fill(2);
    for (size_t k = 0; k < KINDS; k++) {
        for (int form = 0; form < 4; form++) {
            struct aq_grad_codec_config config = config_of(kinds[k], form == 3 ? 5 : 0, NULL);
            if (form == 1 && strcmp(kinds[k], "sign") == 0) config.scale = "l2";
            if (form == 2 && aq_grad_codec_config_lossy(&config)) config.bucket = 192;
            struct aq_grad_codec *codec = open_codec(&config);
            for (int r = 0; r < RANGES; r++) {
                const uint64_t first = ranges[r][0], count = ranges[r][1];
                const size_t bytes = aq_grad_codec_bytes(codec, first, count);
                for (int t = 0; t < 3; t++) {
                    if (!aq_grad_kernels_named(tables[t])) continue;
                    codec->kernels = aq_grad_kernels_named(tables[t]);
                    codec->rows = aq_codec_kernels_named(tables[t]);
                    for (uint64_t i = 0; i < count; i++) {
                        error[i] = x[i] * 0.5f;
                        decoded[i] = x[i];
                    }
                    assert_int_equal(aq_grad_encode(codec, first, count, x + first, error, 2, wire), AQ_OK);
                    assert_int_equal(aq_grad_decode(codec, first, count, wire, bytes, 0.7f, true, decoded), AQ_OK);
                    if (t == 0) {
                        memcpy(first_wire, wire, bytes);
                        memcpy(first_error, error, sizeof error);
                        memcpy(first_decoded, decoded, sizeof decoded);
                    }
                    assert_memory_equal(first_wire, wire, bytes);
                    assert_memory_equal(first_error, error, count * sizeof error[0]);
                    assert_memory_equal(first_decoded, decoded, count * sizeof decoded[0]);
                }
            }
            aq_grad_codec_close(codec);
        }
    }
}

/* The published formulas, in double, for the tensor at GAP_END. */
static void expect_formula(const struct aq_grad_codec_config *config,
                           double (*formula)(const float *y, uint64_t n, uint64_t i))
{
    const uint64_t first = GAP_END, n = tensors[2].count;
    struct aq_grad_codec *codec = open_codec(config);
    assert_int_equal(aq_grad_encode(codec, first, n, x + first, NULL, 1, wire), AQ_OK);
    assert_int_equal(aq_grad_decode(codec, first, n, wire, aq_grad_codec_bytes(codec, first, n), 1.0f, false, decoded),
                     AQ_OK);
    uint64_t off = 0;
    for (uint64_t i = 0; i < n; i++) {
        const double expected = formula(x + first, n, i);
        if (fabs((double)decoded[i] - expected) > 1e-5 * fabs(expected)) off++;
    }
    /* A value half way between two levels may go either way: fp32 and double round the product differently. */
    assert_true(off <= n / 1000);
    aq_grad_codec_close(codec);
}

static double mean_power(const float *y, uint64_t n, double p)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += pow(fabs((double)y[i]), p);
    return pow(sum / (double)n, 1 / p);
}

static double sign_l1(const float *y, uint64_t n, uint64_t i)
{
    return (y[i] >= 0 ? 1 : -1) * mean_power(y, n, 1);
}

static double sign_l2(const float *y, uint64_t n, uint64_t i)
{
    return (y[i] >= 0 ? 1 : -1) * mean_power(y, n, 2);
}

/* Of what is not zero: the limit of mean_power for p to 0, where nothing is zero. */
static double mean_geometric(const float *y, uint64_t n)
{
    double sum = 0, count = 0;
    for (uint64_t j = 0; j < n; j++) {
        if (y[j] != 0) sum += log(fabs((double)y[j]));
        count += y[j] != 0;
    }
    return exp(sum / count);
}

static double lion_cub(const float *y, uint64_t n, uint64_t i, double p)
{
    const double M = p > 0 ? mean_power(y, n, p) : mean_geometric(y, n), K = 15; /* 5 bits */
    const double code = rint(K / (2 * M) * (double)y[i]);
    return (code > K ? K : code < -K ? -K : code) * 2 * M / K;
}

static double lion_cub_1(const float *y, uint64_t n, uint64_t i)
{
    return lion_cub(y, n, i, 1);
}

static double lion_cub_half(const float *y, uint64_t n, uint64_t i)
{
    return lion_cub(y, n, i, 0.5);
}

static double lion_cub_2(const float *y, uint64_t n, uint64_t i)
{
    return lion_cub(y, n, i, 2);
}

static double lion_cub_3(const float *y, uint64_t n, uint64_t i)
{
    return lion_cub(y, n, i, 3);
}

static double lion_cub_0(const float *y, uint64_t n, uint64_t i)
{
    return lion_cub(y, n, i, 0);
}

static double absmax_of(const float *y, uint64_t n, uint64_t i)
{
    double peak = 0;
    for (uint64_t j = i / 512 * 512; j < n && j < i / 512 * 512 + 512; j++)
        if (fabs((double)y[j]) > peak) peak = fabs((double)y[j]);
    return peak;
}

/* AC-SGD's: codes -8..7 times absmax / 8. */
static double quantized_adam(const float *y, uint64_t n, uint64_t i)
{
    const double s = absmax_of(y, n, i) / 8, code = rint((double)y[i] / s);
    return (code > 7 ? 7 : code) * s;
}

static double tread(const float *y, uint64_t n, uint64_t i)
{
    const double s = absmax_of(y, n, i) / 7;
    return rint((double)y[i] / s) * s;
}

static double rise(const float *y, uint64_t n, uint64_t i)
{
    const double s = absmax_of(y, n, i) / 16, code = floor((double)y[i] / (2 * s));
    return (2 * (code > 7 ? 7 : code) + 1) * s;
}

static void test_quantizers_as_published(void **state)
{
    (void)state;
    fill(3);
    struct aq_grad_codec_config config = config_of("sign", 0, NULL);
    expect_formula(&config, sign_l1);
    config.scale = "l2";
    expect_formula(&config, sign_l2);
    config = config_of("lp", 5, NULL);
    expect_formula(&config, lion_cub_1);
    config.norm = 0.5f;
    expect_formula(&config, lion_cub_half);
    config.norm = 2.0f;
    expect_formula(&config, lion_cub_2);
    config.norm = 3.0f;
    expect_formula(&config, lion_cub_3);
    config.norm = AQ_GRAD_NORM_L0;
    expect_formula(&config, lion_cub_0);
    config = config_of("uniform", 4, "signed");
    expect_formula(&config, quantized_adam);
    config.grid = "tread";
    expect_formula(&config, tread);
    config.grid = "rise";
    expect_formula(&config, rise);
}

/* Within 4e-16 of the C library's, relatively: logarithms, exponentials, and powers by |p log x| times that. */
static void test_powers_are_near_the_c_library(void **state)
{
    (void)state;
    static const double powers[] = {1.0, 2.0, 0.5, 0.001, 0.7, 3.25, 40.0};
    const struct aq_rng_key key = aq_rng_key(3, AQ_RNG_TEST, 0, 0);
    for (uint64_t i = 0; i < 20000; i++) {
        const double at = 2.0 * (double)aq_rng_uniform(&key, i) - 1.0;
        const double value = exp(100.0 * at), wanted = exp(700.0 * at), root = log(value);
        assert_true(fabs(element_exp(700.0 * at) - wanted) <= 4e-16 * wanted);
        assert_true(fabs(element_log(value) - root) <= 4e-16 * fabs(root) + 1e-16);
        for (size_t p = 0; p < sizeof powers / sizeof *powers; p++) {
            const double power = pow(value, powers[p]), got = element_power(value, powers[p]);
            if (isfinite(power) && power > 1e-300)
                assert_true(fabs(got - power) <= 4e-16 * (2.0 + fabs(powers[p] * root)) * power);
            else
                assert_true(got == power || got == 0.0 || fabs(got / power - 1.0) < 1e-12);
        }
    }
    assert_true(element_power(0.0, 0.7) == 0.0 && element_exp(710.0) == (double)INFINITY && element_exp(-800.0) == 0.0);
    assert_true(element_exp(0.0) == 1.0 && element_log(1.0) == 0.0 && element_power(9.0, 0.5) == 3.0);
}

/*
 * Symmetric data, many of them: the mean error is zero within five of its own standard errors. The signed grid is the
 * counter-example that proves the test: at 2 bits its error has a mean.
 */
static double bias_in_errors(const struct aq_grad_codec_config *config)
{
    double sum = 0, square = 0, count = 0;
    struct aq_grad_codec *codec = open_codec(config);
    for (uint64_t round = 0; round < 40; round++) {
        const struct aq_rng_key key = aq_rng_key(77, AQ_RNG_TEST, round, 0);
        for (uint64_t i = 0; i < FLOATS; i++)
            x[i] = aq_rng_normal(&key, i);
        memset(error, 0, sizeof error);
        assert_int_equal(aq_grad_encode(codec, 0, FLOATS, x, error, round, wire), AQ_OK);
        for (uint64_t i = 0; i < FLOATS; i++) {
            if (in_gap(i)) continue;
            sum += (double)error[i];
            square += (double)error[i] * (double)error[i];
            count++;
        }
    }
    aq_grad_codec_close(codec);
    return fabs(sum) / sqrt(square);
}

static void test_no_quantizer_has_a_bias_on_symmetric_data(void **state)
{
    (void)state;
    struct aq_grad_codec_config config = config_of("sign", 0, NULL);
    assert_true(bias_in_errors(&config) < 5);
    config.scale = "l2";
    assert_true(bias_in_errors(&config) < 5);
    config = config_of("vote", 0, NULL);
    assert_true(bias_in_errors(&config) < 5);
    config = config_of("fp16", 0, NULL);
    assert_true(bias_in_errors(&config) < 5);
    for (uint32_t bits = 2; bits <= 8; bits++) {
        config = config_of("uniform", bits, NULL);
        assert_true(bias_in_errors(&config) < 5);
        config = config_of("uniform", bits, "tread");
        assert_true(bias_in_errors(&config) < 5);
        config = config_of("uniform", bits, "rise");
        assert_true(bias_in_errors(&config) < 5);
        config = config_of("lp", bits, NULL);
        assert_true(bias_in_errors(&config) < 5);
    }
    for (float density = 0.01f; density <= 1.0f; density *= 4) {
        config = config_of("topk", 0, NULL);
        config.density = density;
        assert_true(bias_in_errors(&config) < 5);
    }
    config = config_of("uniform", 2, "signed");
    assert_true(bias_in_errors(&config) > 8);
}

/* Over many steps, what was decoded and what is left is what went in, and what is left does not grow. */
static void test_error_feedback_telescopes(void **state)
{
    (void)state;
    static double in[FLOATS], out[FLOATS];
    for (size_t k = 0; k < KINDS; k++) {
        struct aq_grad_codec_config config = config_of(kinds[k], 0, NULL);
        if (!aq_grad_codec_config_lossy(&config)) continue;
        if (config.density > 0) config.density = 0.125f; /* each value's turn comes within the steps */
        struct aq_grad_codec *codec = open_codec(&config);
        memset(in, 0, sizeof in);
        memset(out, 0, sizeof out);
        memset(error, 0, sizeof error);
        double early = 0, late = 0;
        for (uint64_t step = 1; step <= 200; step++) {
            const struct aq_rng_key key = aq_rng_key(78, AQ_RNG_TEST, step, 0);
            for (uint64_t i = 0; i < FLOATS; i++)
                x[i] = in_gap(i) ? 0.0f : aq_rng_normal(&key, i) + 0.5f;
            assert_int_equal(aq_grad_encode(codec, 0, FLOATS, x, error, step, wire), AQ_OK);
            assert_int_equal(
                aq_grad_decode(codec, 0, FLOATS, wire, aq_grad_codec_bytes(codec, 0, FLOATS), 1.0f, false, decoded),
                AQ_OK);
            for (uint64_t i = 0; i < FLOATS; i++) {
                in[i] += (double)x[i];
                out[i] += (double)decoded[i];
                const double square = (double)error[i] * (double)error[i];
                *(step <= 100 ? &early : &late) += step % 100 >= 50 ? square : 0.0;
            }
        }
        for (uint64_t i = 0; i < FLOATS; i++)
            assert_true(fabs(in[i] - out[i] - (double)error[i]) < 2e-4);
        assert_true(late < 2 * early + 1e-6);
        aq_grad_codec_close(codec);
    }
}

/* The k largest of each chunk and no others, of equal ones the first, each with its sign and the mean of its half. */
static void test_the_largest_travel(void **state)
{
    (void)state;
    enum { CHUNK = 128, SENT = 16 };
    struct aq_grad_codec_config config = config_of("topk", 0, NULL);
    config.bucket = CHUNK;
    config.density = (float)SENT / CHUNK;
    struct aq_grad_codec *codec = open_codec(&config);
    for (int ties = 0; ties < 2; ties++) {
        fill(5);
        for (uint64_t i = 0; i < FLOATS && ties; i++)
            x[i] = rintf(2 * x[i]); /* many are equal, and zero */
        const uint64_t first = GAP_END, n = 4 * CHUNK;
        const size_t bytes = aq_grad_codec_bytes(codec, first, n);
        assert_int_equal(bytes, 4 * (8 + SENT * (7 + 2) / 8));
        assert_int_equal(aq_grad_encode(codec, first, n, x + first, NULL, 1, wire), AQ_OK);
        assert_int_equal(aq_grad_decode(codec, first, n, wire, bytes, 1.0f, false, decoded), AQ_OK);
        for (uint64_t c = 0; c < n; c += CHUNK) {
            const float *y = x + first + c;
            double least = INFINITY, peak = 0, sums[2] = {0};
            uint32_t counts[2] = {0};
            bool sent[CHUNK];
            for (int i = 0; i < CHUNK; i++) {
                int larger = 0;
                for (int j = 0; j < CHUNK; j++)
                    larger += fabsf(y[j]) > fabsf(y[i]) || (fabsf(y[j]) == fabsf(y[i]) && j < i);
                sent[i] = larger < SENT;
                if (sent[i]) least = fmin(least, fabs((double)y[i]));
                if (sent[i]) peak = fmax(peak, fabs((double)y[i]));
            }
            const double middle = 0.5 * least + 0.5 * peak;
            for (int i = 0; i < CHUNK; i++) {
                const int half = fabs((double)y[i]) > middle;
                if (sent[i]) sums[half] += fabs((double)y[i]);
                counts[half] += sent[i];
            }
            for (int i = 0; i < CHUNK; i++) {
                const int half = fabs((double)y[i]) > middle;
                const double level = sent[i] ? sums[half] / counts[half] : 0;
                assert_true(fabs((double)decoded[c + (uint64_t)i] - copysign(level, (double)y[i])) <= 1e-6 * level);
            }
        }
    }
    aq_grad_codec_close(codec);
}

/* Of topk_fp32 and randomk: so many values of each chunk come back bit for bit, and the others are the error. */
static void test_values_travel_as_they_are(void **state)
{
    (void)state;
    enum { CHUNK = 128, SENT = 16, N = 4 * CHUNK - 5 /* the last chunk has 123: 16 of them */, STEPS = 400 };
    static const char *const names[] = {"topk_fp32", "randomk"};
    for (int kind = 0; kind < 2; kind++) {
        struct aq_grad_codec_config config = config_of(names[kind], 0, NULL);
        config.bucket = CHUNK;
        config.density = (float)SENT / CHUNK;
        struct aq_grad_codec *codec = open_codec(&config);
        const size_t bytes = aq_grad_codec_bytes(codec, GAP_END, N);
        uint32_t counts[N] = {0}, moved = 0;
        static float other[N];
        for (uint64_t step = 1; step <= STEPS; step++) {
            const struct aq_rng_key key = aq_rng_key(5, AQ_RNG_TEST, step, 0);
            for (uint64_t i = 0; i < FLOATS; i++)
                x[i] = aq_rng_normal(&key, i);
            memset(error, 0, sizeof error);
            const float *y = x + GAP_END;
            assert_int_equal(aq_grad_encode(codec, GAP_END, N, y, error, step, wire), AQ_OK);
            assert_int_equal(aq_grad_decode(codec, GAP_END, N, wire, bytes, 1.0f, false, decoded), AQ_OK);
            float least = INFINITY, left = 0;
            for (uint64_t i = 0; i < N; i++) {
                const bool sent = decoded[i] != 0.0f;
                assert_true(sent ? decoded[i] == y[i] && error[i] == 0.0f : error[i] == y[i]);
                counts[i] += sent;
                moved += sent && other[i] == 0.0f;
                if (i < CHUNK && sent) least = fminf(least, fabsf(y[i]));
                if (i < CHUNK && !sent) left = fmaxf(left, fabsf(y[i]));
            }
            assert_true(kind == 1 || least >= left);
            memcpy(other, decoded, sizeof other);
        }
        uint32_t all = 0;
        for (uint64_t i = 0; i < N; i++) { /* 50 each, 6.6 the deviation */
            assert_in_range(counts[i], 15, 90);
            all += counts[i];
        }
        assert_int_equal(all, 4 * SENT * STEPS);
        assert_true(moved > all / 2);
        aq_grad_codec_close(codec);
    }
}

/* All ranks' values are at the same places, so that the mean of two comes back without a loss. */
static void test_random_places_are_those_of_the_step_for_all(void **state)
{
    (void)state;
    static float mean[FLOATS], none[FLOATS];
    const struct aq_grad_codec_config config = config_of("randomk", 0, NULL);
    struct aq_grad_codec *codec = open_codec(&config);
    const size_t bytes = aq_grad_codec_bytes(codec, 0, FLOATS);
    for (uint64_t step = 1; step <= 3; step++) {
        for (uint64_t rank = 0; rank < 2; rank++) {
            fill(20 + rank);
            assert_int_equal(aq_grad_encode(codec, 0, FLOATS, x, NULL, step, wire), AQ_OK);
            assert_int_equal(aq_grad_decode(codec, 0, FLOATS, wire, bytes, 0.5f, rank > 0, mean), AQ_OK);
        }
        memset(none, 0, sizeof none);
        assert_int_equal(aq_grad_encode(codec, 0, FLOATS, mean, none, step, wire), AQ_OK);
        assert_int_equal(aq_grad_decode(codec, 0, FLOATS, wire, bytes, 1.0f, false, decoded), AQ_OK);
        assert_memory_equal(decoded, mean, sizeof mean);
        for (uint64_t i = 0; i < FLOATS; i++)
            assert_true(none[i] == 0.0f);
    }
    aq_grad_codec_close(codec);
}

/* Places come in their order and lie in their chunk, or the body is none of ours. */
static void test_places_out_of_order_are_corrupt(void **state)
{
    (void)state;
    struct aq_grad_codec_config config = config_of("topk", 0, NULL);
    config.bucket = 192; /* 8 bits of a place: some lie beyond */
    config.density = 4.0f / 192;
    struct aq_grad_codec *codec = open_codec(&config);
    const size_t bytes = aq_grad_codec_bytes(codec, GAP_END, 192);
    static const uint32_t places[][4] = {{0, 1, 2, 191}, {5, 5, 6, 7}, {9, 3, 10, 11}, {0, 1, 2, 192}, {255, 1, 2, 3}};
    assert_int_equal(bytes, 8 + 5);
    for (int p = 0; p < 5; p++) {
        uint64_t codes = 0;
        for (int i = 0; i < 4; i++)
            codes |= (uint64_t)places[p][i] << 10 * i;
        memset(wire, 0, 8);
        memcpy(wire + 8, &codes, 5);
        assert_int_equal(aq_grad_decode(codec, GAP_END, 192, wire, bytes, 1.0f, false, decoded),
                         p == 0 ? AQ_OK : AQ_CORRUPT);
    }
    aq_grad_codec_close(codec);
    config.kind = "topk_fp32"; /* 5 bytes each: a place, a value */
    codec = open_codec(&config);
    assert_int_equal(aq_grad_codec_bytes(codec, GAP_END, 192), 20);
    for (int p = 0; p < 5; p++) {
        for (int i = 0; i < 4; i++) {
            wire[5 * i] = (uint8_t)places[p][i];
            memcpy(wire + 5 * i + 1, &(float){0.5f}, 4);
        }
        assert_int_equal(aq_grad_decode(codec, GAP_END, 192, wire, 20, 1.0f, false, decoded),
                         p == 0 ? AQ_OK : AQ_CORRUPT);
    }
    aq_grad_codec_close(codec);
}

static void test_votes_of_nothing_alternate(void **state)
{
    (void)state;
    const struct aq_grad_codec_config config = config_of("vote", 0, NULL);
    struct aq_grad_codec *codec = open_codec(&config);
    memset(x, 0, sizeof x);
    x[17] = -1e-30f;
    x[18] = 1e-30f;
    for (uint64_t step = 1; step <= 4; step++) {
        assert_int_equal(aq_grad_encode(codec, 0, 200, x, NULL, step, wire), AQ_OK);
        assert_int_equal(aq_grad_decode(codec, 0, 200, wire, 25, 1.0f, false, decoded), AQ_OK);
        for (int i = 0; i < 200; i++) {
            const float expected = i == 17 ? -1.0f : i == 18 || step % 2 == 1 ? 1.0f : -1.0f;
            assert_true(decoded[i] == expected);
        }
    }
    aq_grad_codec_close(codec);
}

static void test_scales_no_encoder_writes_are_corrupt(void **state)
{
    (void)state;
    static const float bad[] = {-1.0f, INFINITY, NAN, -0.0f, -INFINITY};
    static const char *const scaled[] = {"sign", "uniform", "lp", "topk"};
    for (int k = 0; k < 4; k++) {
        const struct aq_grad_codec_config config = config_of(scaled[k], 0, NULL);
        struct aq_grad_codec *codec = open_codec(&config);
        const size_t bytes = aq_grad_codec_bytes(codec, 0, FLOATS);
        fill(4);
        for (int b = 0; b < 5; b++) {
            assert_int_equal(aq_grad_encode(codec, 0, FLOATS, x, NULL, 1, wire), AQ_OK);
            memcpy(wire + 4, &bad[b], 4);
            assert_int_equal(aq_grad_decode(codec, 0, FLOATS, wire, bytes, 1.0f, true, decoded), AQ_CORRUPT);
        }
        x[700] = INFINITY; /* and what no sender may send is refused where it arrives */
        assert_int_equal(aq_grad_encode(codec, 0, FLOATS, x, NULL, 1, wire), AQ_OK);
        assert_int_equal(aq_grad_decode(codec, 0, FLOATS, wire, bytes, 1.0f, true, decoded), AQ_CORRUPT);
        aq_grad_codec_close(codec);
    }
    static const char *const plain[] = {"topk_fp32", "randomk"};
    for (int k = 0; k < 2; k++) {
        const struct aq_grad_codec_config config = config_of(plain[k], 0, NULL);
        struct aq_grad_codec *codec = open_codec(&config);
        const size_t bytes = aq_grad_codec_bytes(codec, 0, FLOATS);
        for (int b = 0; b < 3; b++) {
            static const float values[] = {INFINITY, NAN, -INFINITY};
            fill(4);
            x[700] = values[b];
            assert_int_equal(aq_grad_encode(codec, 0, FLOATS, x, NULL, 1, wire), AQ_OK);
            assert_int_equal(aq_grad_decode(codec, 0, FLOATS, wire, bytes, 1.0f, true, decoded), AQ_CORRUPT);
        }
        aq_grad_codec_close(codec);
    }
}

static void expect_inval(struct aq_grad_codec_config config, const char *field)
{
    aq_error_clear();
    assert_int_equal(aq_grad_codec_config_check(&config), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), field));
}

static void test_config_bad_value_names_the_field(void **state)
{
    (void)state;
    struct aq_grad_codec_config config = config_of("uniform", 9, NULL);
    expect_inval(config, "bits");
    expect_inval(config_of("lp", 1, NULL), "bits");
    expect_inval(config_of("uniform", 4, "round"), "grid");
    expect_inval(config_of("top", 0, NULL), "kind");
    config = config_of("sign", 0, NULL);
    config.scale = "linf";
    expect_inval(config, "scale");
    config.scale = NULL;
    expect_inval(config, "scale");
    config = config_of("uniform", 4, NULL);
    config.bucket = 100;
    expect_inval(config, "bucket");
    config = config_of("lp", 4, NULL);
    config.norm = NAN;
    expect_inval(config, "norm");
    for (int i = 0; i < 4; i++) {
        static const float densities[] = {0, -1, 1.01f, NAN};
        config = config_of("topk", 0, NULL);
        config.density = densities[i];
        expect_inval(config, "density");
        config.density = 1;
        config.bucket = i < 2 ? 0 : 65536 + 64;
        expect_inval(config, "bucket");
    }
    config = config_of("randomk", 0, NULL);
    config.density = 0.51f;
    expect_inval(config, "density");
    struct aq_grad_codec *codec;
    static const struct aq_optimizer_tensor over[] = {{.offset = 10, .count = 91}};
    config = config_of("sign", 0, NULL);
    assert_int_equal(aq_grad_codec_open(&config, over, 1, 100, &codec), AQ_INVAL);
    codec = open_codec(&config);
    assert_int_equal(aq_grad_encode(codec, FLOATS - 1, 2, x, NULL, 1, wire), AQ_INVAL);
    aq_grad_codec_close(codec);
    aq_grad_codec_close(NULL);
}

static void test_chunks_cover_the_buffer_once(void **state)
{
    (void)state;
    static const uint64_t counts[] = {0, 1, 63, 64, 65, 1000, 124439808, 7};
    for (int c = 0; c < 8; c++) {
        for (uint32_t W = 1; W <= 9; W++) {
            uint64_t end = 0;
            for (uint32_t w = 0; w < W; w++) {
                uint64_t first, chunk;
                aq_grad_chunk(counts[c], W, w, &first, &chunk);
                assert_true(first == end && (first % 64 == 0 || chunk == 0));
                end = first + chunk;
            }
            assert_true(end == counts[c]);
        }
    }
}

static void test_lanes_add_each_for_itself(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 16; bits *= 2) {
        uint8_t a[48] = {0}, b[48] = {0};
        enum { LANES = 19 };
        const size_t bytes = aq_lanes_bytes(LANES, bits);
        assert_true(bytes % 8 == 0 && bytes >= (LANES * bits + 7) / 8 && bytes <= sizeof a);
        for (uint32_t i = 0; i < LANES; i++) {
            const uint32_t most = (1u << bits) - 1, at = i * bits;
            const uint32_t left = i * 7919 % (most + 1), right = most - left;
            a[at / 8] = (uint8_t)(a[at / 8] | left << at % 8);
            b[at / 8] = (uint8_t)(b[at / 8] | right << at % 8);
            if (bits == 16) a[at / 8 + 1] = (uint8_t)(left >> 8), b[at / 8 + 1] = (uint8_t)(right >> 8);
        }
        aq_lanes_add(a, b, bytes);
        for (uint32_t i = 0; i < LANES * bits; i++)
            assert_int_equal(a[i / 8] >> i % 8 & 1, 1);
    }
}

/* What manifests call them, and the settings that a kind takes over. */
static void test_names_of_manifests_are_kinds_with_their_bits(void **state)
{
    static const char *const wrong[] = {"q", "q1", "q9", "q44", "lp", "lp1", "uniform", "fp3", "fp322", ""};
    const struct aq_grad_codec_config wished = {.bucket = 128, .grid = "rise", .scale = "l2", .norm = 0.5f,
                                                .density = 0.25f};
    struct aq_grad_codec_config config;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(aq_grad_codec_config_named(&config, wrong[i]));
    assert_true(aq_grad_codec_config_named(&config, "q4"));
    assert_string_equal(config.kind, "uniform");
    assert_int_equal(config.bits, 4);
    aq_grad_codec_config_take(&config, &wished);
    assert_true(config.bucket == 128 && config.grid == wished.grid && !config.scale && config.norm == 0.0f);
    assert_true(aq_grad_codec_config_named(&config, "lp8"));
    assert_true(config.bits == 8 && config.norm == 1.0f);
    aq_grad_codec_config_take(&config, &wished);
    assert_true(config.bucket == 128 && !config.grid && config.norm == 0.5f);
    assert_int_equal(aq_grad_codec_config_check_device(&config), AQ_OK);
    assert_true(aq_grad_codec_config_named(&config, "topk"));
    aq_grad_codec_config_take(&config, &wished);
    assert_true(config.bucket == 128 && config.density == 0.25f && !config.grid);
    assert_false(aq_grad_codec_config_on_gpu(&config));
    assert_int_equal(aq_grad_codec_config_check_device(&config), AQ_NODEV);
    assert_true(aq_grad_codec_config_named(&config, "sign") && aq_grad_codec_config_on_gpu(&config));
    aq_grad_codec_config_take(&config, &wished);
    assert_true(config.scale == wished.scale && !config.grid && aq_grad_codec_config_needs_errors(&config));
    assert_true(aq_grad_codec_config_named(&config, "vote") && aq_grad_codec_config_signs(&config));
    assert_true(aq_grad_codec_config_named(&config, "fp32") && aq_grad_codec_config_plain(&config));
    aq_grad_codec_config_take(&config, &wished);
    assert_true(config.bucket == 0 && !config.scale);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_manifests_are_kinds_with_their_bits),
        cmocka_unit_test(test_the_table_has_these_kinds),
        cmocka_unit_test(test_bytes_are_scales_and_codes),
        cmocka_unit_test(test_every_kind_any_range_comes_back_with_its_error),
        cmocka_unit_test(test_every_kind_the_same_bits_in_every_table),
        cmocka_unit_test(test_quantizers_as_published),
        cmocka_unit_test(test_powers_are_near_the_c_library),
        cmocka_unit_test(test_no_quantizer_has_a_bias_on_symmetric_data),
        cmocka_unit_test(test_error_feedback_telescopes),
        cmocka_unit_test(test_the_largest_travel),
        cmocka_unit_test(test_values_travel_as_they_are),
        cmocka_unit_test(test_random_places_are_those_of_the_step_for_all),
        cmocka_unit_test(test_places_out_of_order_are_corrupt),
        cmocka_unit_test(test_votes_of_nothing_alternate),
        cmocka_unit_test(test_scales_no_encoder_writes_are_corrupt),
        cmocka_unit_test(test_config_bad_value_names_the_field),
        cmocka_unit_test(test_chunks_cover_the_buffer_once),
        cmocka_unit_test(test_lanes_add_each_for_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
