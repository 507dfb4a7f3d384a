/*
 * test_codec_ec.c -- the entropy-coded codec: the rate or the error that was asked for, keyframes against channels'
 * means, samples that are odd, heads that no sender writes.
 */
#include <stdlib.h>

#include "codec_common.h"

enum { ROWS = 128, COLUMNS = 768, VALUES = ROWS * COLUMNS };

struct coded {
    double bits, error; /* a value; |a - x^| of |a| */
    struct aq_codec_result result;
};

/* a as the sender has it, decoded by a receiver of its own and compared. */
static struct coded code_with(struct end *sender, const struct aq_codec_config *config, bool warm, uint64_t number)
{
    const struct aq_rng_key key = test_key(number);
    struct end receiver;
    struct coded coded;
    double error2 = 0, signal2 = 0;
    end_open(&receiver, config, ROWS, COLUMNS);
    const size_t message = aq_codec_message_bytes(sender->codec);
    memcpy(receiver.m, sender->m, message);
    assert_int_equal(aq_codec_encode(sender->codec, sender->a, warm ? sender->m : NULL, &key, sender->body,
                                     aq_codec_bound(sender->codec), sender->hat, sender->m, &coded.result, NULL),
                     AQ_OK);
    assert_int_equal(aq_codec_decode(receiver.codec, sender->body, coded.result.body_bytes, coded.result.flags,
                                     warm ? receiver.m : NULL, receiver.hat, receiver.m, NULL),
                     AQ_OK);
    assert_memory_equal(sender->hat, receiver.hat, 4 * sender->values);
    if (coded.result.flags != AQ_CODED_RAW) assert_memory_equal(sender->m, receiver.m, message);
    for (size_t e = 0; e < sender->values; e++) {
        error2 += pow((double)sender->a[e] - (double)sender->hat[e], 2);
        signal2 += pow((double)sender->a[e], 2);
    }
    coded.bits = 8.0 * coded.result.body_bytes / VALUES;
    coded.error = relative(error2, signal2);
    if (config->kind == AQ_CODEC_EC && coded.result.flags != AQ_CODED_RAW)
        assert_true(fabs(coded.result.sum_error2 - error2) <= 1e-3 * error2);
    end_check(sender);
    end_close(&receiver);
    return coded;
}

static struct coded code(struct end *sender, const struct aq_codec_config *config, bool warm)
{
    return code_with(sender, config, warm, 1);
}

static struct aq_codec_config ec(float rate, float error, enum aq_codec_precision store)
{
    struct aq_codec_config config;
    aq_codec_config_default(&config, AQ_CODEC_EC, 4);
    config.rate = rate;
    config.error = error;
    config.store = store;
    config.rounding = AQ_ROUND_NEAREST;
    return config;
}

/* A uniform quantizer with ideal coding has 0.255 bits more than rate and distortion say: 2^-(R - 0.255) of a Gauss at
 * high rates, a little less below. */
static void test_a_rate_is_kept_and_worth_its_bits(void **state)
{
    (void)state;
    static const float rates[] = {1.0f, 1.5f, 2.0f, 3.5f, 3.6f, 4.0f, 4.5f, 5.0f, 6.0f, 8.0f};
    for (int i = 0; i < 10; i++) {
        const struct aq_codec_config config = ec(rates[i], 0.0f, AQ_PRECISION_NONE);
        struct end end;
        end_open(&end, &config, ROWS, COLUMNS);
        fill(end.a, VALUES, SHAPE_GAUSS, 1.0f, 60);
        const struct coded coded = code(&end, &config, false);
        const double ideal = pow(2.0, 0.255 - (double)rates[i]);
        print_message("rate %.1f: %.3f bits, error %.5f (%.3f of a uniform quantizer's at high rates)\n",
                      (double)rates[i], coded.bits, coded.error, coded.error / ideal);
        assert_true(coded.bits <= (double)rates[i] + 0.1 && coded.bits >= (double)rates[i] - 0.1);
        assert_true(coded.error < 1.08 * ideal);
        end_close(&end);
    }
}

/* Of d and what is known of it, with an error that is uniform within half a step: I(X; X + N), D = step^2 / 12. */
static double dithered_error(double rate)
{
    return 1.0 / sqrt(pow(2.0, 2.0 * (rate - 0.25)) - 1.0);
}

static void test_a_dithered_rate_is_kept_and_worth_its_bits(void **state)
{
    (void)state;
    static const float rates[] = {1.5f, 2.0f, 3.0f, 3.5f, 3.6f, 4.0f, 5.0f, 8.0f};
    for (int i = 0; i < 8; i++) {
        struct aq_codec_config config = ec(rates[i], 0.0f, AQ_PRECISION_NONE);
        struct end end;
        config.rounding = AQ_ROUND_STOCHASTIC;
        end_open(&end, &config, ROWS, COLUMNS);
        fill(end.a, VALUES, SHAPE_GAUSS, 1.0f, 60);
        const struct coded coded = code(&end, &config, false);
        const double ideal = dithered_error((double)rates[i]);
        print_message("dithered, rate %.1f: %.3f bits, error %.5f (%.3f of its own at that rate)\n", (double)rates[i],
                      coded.bits, coded.error, coded.error / ideal);
        assert_true(coded.bits <= (double)rates[i] + 0.1 && coded.bits >= (double)rates[i] - 0.1);
        assert_true(coded.error < 1.2 * ideal);
        assert_int_equal(end.body[AQ_EC_MARKS], AQ_EC_DITHERED);
        end_close(&end);
    }
}

/* In standard errors: the mean error of values in a narrow range, over keys. */
static double bias_between(float low, float high, const struct aq_codec_config *config)
{
    enum { KEYS = 40 };
    struct end end;
    double sum = 0, square = 0;
    size_t count = 0;
    end_open(&end, config, ROWS, COLUMNS);
    for (uint64_t key = 0; key < KEYS; key++) {
        fill(end.a, VALUES, SHAPE_LAPLACE, 1.0f, 66);
        (void)code_with(&end, config, false, key);
        for (size_t e = 0; e < VALUES; e++) {
            if (!(end.a[e] >= low && end.a[e] < high)) continue;
            const double error = (double)end.hat[e] - (double)end.a[e];
            sum += error;
            square += error * error;
            count++;
        }
    }
    end_close(&end);
    assert_true(count > 1000);
    return sum / sqrt(square);
}

/* Nearest rounding draws every small value to zero, and all between two levels to one of them; with a dither a value's
 * error has mean zero, wherever it lies. At 1.5, 2 and 3 bits, and with cells. */
static void test_dither_has_no_bias_anywhere(void **state)
{
    (void)state;
    static const float rates[] = {1.5f, 2.0f, 3.0f, 4.0f};
    static const float ranges[][2] = {{0.02f, 0.04f}, {0.1f, 0.12f}, {-0.45f, -0.4f}, {1.0f, 1.05f}, {3.0f, 9.0f}};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 5; k++) {
            struct aq_codec_config config = ec(rates[i], 0.0f, AQ_PRECISION_NONE);
            config.rounding = AQ_ROUND_STOCHASTIC;
            const double dithered = bias_between(ranges[k][0], ranges[k][1], &config);
            if (fabs(dithered) > 4.5)
                print_error("rate %.1f, values of %.2f: %.1f standard errors\n", (double)rates[i],
                            (double)ranges[k][0], dithered);
            assert_true(fabs(dithered) <= 4.5);
            if (i > 1 || k > 1) continue;
            config.rounding = AQ_ROUND_NEAREST;
            assert_true(bias_between(ranges[k][0], ranges[k][1], &config) < -50.0);
        }
}

/* ---- half a dither, and what all rows have in common ---- */

static struct aq_codec_config half_dither(float rate)
{
    struct aq_codec_config config = ec(rate, 0.0f, AQ_PRECISION_FP32);
    config.rounding = AQ_ROUND_HALF_DITHER;
    return config;
}

/* A sample whose change is of a Gauss, and in each channel besides `common` times its own number. */
static void change(struct end *end, float common, uint64_t seed)
{
    float *const m = (float *)(void *)end->m;
    fill(end->a, VALUES, SHAPE_GAUSS, 3.0f, seed);
    fill(m, VALUES, SHAPE_GAUSS, 1.0f, seed + 1);
    for (size_t e = 0; e < VALUES; e++)
        m[e] = end->a[e] - m[e] - common * sinf((float)(e % COLUMNS));
}

/* Of a delta: the rate is kept, the error smaller than a whole dither's; of what has no reference the bytes are those
 * of stochastic. */
static void test_half_a_dither_is_worth_more(void **state)
{
    (void)state;
    static const float rates[] = {1.5f, 2.0f, 3.0f};
    for (int i = 0; i < 3; i++) {
        double error[2];
        for (int half = 0; half < 2; half++) {
            struct aq_codec_config config = half_dither(rates[i]);
            struct end end;
            if (half == 0) config.rounding = AQ_ROUND_STOCHASTIC;
            end_open(&end, &config, ROWS, COLUMNS);
            change(&end, 0.0f, 70);
            const struct coded coded = code(&end, &config, true);
            assert_true(fabs(coded.bits - (double)rates[i]) <= 0.1);
            assert_int_equal(end.body[AQ_EC_MARKS], AQ_EC_DITHERED | (half ? AQ_EC_HALF : 0));
            error[half] = sqrt(coded.result.sum_error2 / VALUES);
            end_close(&end);
        }
        print_message("rate %.1f: error %.4f with half a dither, %.4f with a whole one\n", (double)rates[i], error[1],
                      error[0]);
        assert_true(error[1] < (i < 2 ? 0.95 : 1.0) * error[0]);
    }
    struct aq_codec_config config = half_dither(4.5f);
    struct end end;
    end_open(&end, &config, ROWS, COLUMNS);
    change(&end, 0.0f, 70);
    (void)code(&end, &config, true);
    assert_int_equal(end.body[AQ_EC_MARKS], AQ_EC_DITHERED); /* cells: a whole one costs nothing */
    end_close(&end);
    struct end other;
    config = half_dither(2.0f);
    config.store = AQ_PRECISION_NONE;
    end_open(&end, &config, ROWS, COLUMNS);
    config.rounding = AQ_ROUND_STOCHASTIC;
    end_open(&other, &config, ROWS, COLUMNS);
    fill(end.a, VALUES, SHAPE_GAUSS, 1.0f, 71);
    memcpy(other.a, end.a, 4 * (size_t)VALUES);
    const struct coded one = code(&end, &config, false), two = code(&other, &config, false);
    assert_int_equal(one.result.body_bytes, two.result.body_bytes);
    assert_memory_equal(end.body, other.body, one.result.body_bytes);
    assert_true(aq_codec_config_digest(aq_codec_config_of(end.codec)) == aq_codec_config_digest(&config));
    end_close(&end);
    end_close(&other);
}

/* The mean error of each channel over its rows, in standard errors: the root of their mean square. About 1 where errors
 * have nothing in common. */
static double bias_of_channels(const struct end *end)
{
    double all = 0;
    for (size_t c = 0; c < COLUMNS; c++) {
        double sum = 0, square = 0;
        for (size_t t = 0; t < ROWS; t++) {
            const double error = (double)end->hat[t * COLUMNS + c] - (double)end->a[t * COLUMNS + c];
            sum += error;
            square += error * error;
        }
        all += sum * sum / square;
    }
    return sqrt(all / COLUMNS);
}

/* What all rows have in common is sent, at 2 bits, without bias, and costs the values nothing: their error is that of a
 * sample without it, but for what the means' bits take. */
static void test_what_rows_have_in_common_has_no_bias(void **state)
{
    (void)state;
    double error[2], bias[3];
    for (int run = 0; run < 3; run++) { /* nothing in common; something; the same without half a dither's means */
        struct aq_codec_config config = half_dither(2.0f);
        struct end end;
        if (run == 2) config.rounding = AQ_ROUND_NEAREST;
        end_open(&end, &config, ROWS, COLUMNS);
        change(&end, run > 0 ? 0.7f : 0.0f, 72);
        const struct coded coded = code(&end, &config, true);
        assert_true(fabs(coded.bits - 2.0) <= 0.05);
        if (run < 2) assert_int_equal(end.body[AQ_EC_MARKS] & AQ_EC_COMMON, run == 1 ? AQ_EC_COMMON : 0);
        if (run < 2) error[run] = sqrt(coded.result.sum_error2 / VALUES);
        bias[run] = bias_of_channels(&end);
        end_close(&end);
    }
    print_message("errors %.4f and %.4f; bias of channels %.2f, %.2f, of nearest %.2f standard errors\n", error[0],
                  error[1], bias[0], bias[1], bias[2]);
    assert_true(error[1] < 1.04 * error[0]);
    assert_true(bias[1] < 1.2 && bias[2] > 1.5);
}

/* One channel far above the others does not take their codes from them. */
static void test_a_channel_that_runs_away_leaves_the_others_theirs(void **state)
{
    (void)state;
    const struct aq_codec_config config = half_dither(2.0f);
    struct end end;
    end_open(&end, &config, ROWS, COLUMNS);
    change(&end, 0.7f, 73);
    float *const m = (float *)(void *)end.m;
    for (size_t t = 0; t < ROWS; t++)
        m[t * COLUMNS + 5] -= 40.0f;
    (void)code(&end, &config, true);
    assert_int_equal(end.body[AQ_EC_MARKS] & AQ_EC_COMMON, AQ_EC_COMMON);
    const float unit = aq_ec_float_at(end.body + aq_ec_centre_from(ROWS, COLUMNS, AQ_EC_DITHERED));
    assert_true(unit > 0.02f && unit < 0.3f);
    end_close(&end);
}

static void test_marks_and_means_that_no_sender_writes_are_corrupt(void **state)
{
    (void)state;
    enum { ODD = 37 };
    const struct aq_codec_config config = half_dither(2.0f);
    struct aq_codec_result result;
    const struct aq_rng_key key = test_key(3);
    struct end end;
    end_open(&end, &config, ROWS, ODD);
    float *const m = (float *)(void *)end.m;
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 74);
    for (size_t e = 0; e < end.values; e++)
        m[e] = 0.5f * end.a[e] + 2.0f * sinf((float)(e % ODD));
    void *memory = NULL;
    assert_int_equal(aq_alloc(4 * end.values, &memory), AQ_OK);
    memcpy(memory, m, 4 * end.values);
    assert_int_equal(aq_codec_encode(end.codec, end.a, m, &key, end.body, aq_codec_bound(end.codec), end.hat, end.m,
                                     &result, NULL),
                     AQ_OK);
    const uint32_t marks = AQ_EC_DITHERED | AQ_EC_HALF | AQ_EC_COMMON;
    const uint64_t unit = aq_ec_centre_from(ROWS, ODD, marks), codes = unit + 4;
    assert_int_equal(end.body[AQ_EC_MARKS], marks);
    const struct {
        uint64_t at;
        uint8_t value;
    } wrong[] = {{AQ_EC_MARKS, AQ_EC_DITHERED | AQ_EC_HALF}, /* its length is another */
                 {AQ_EC_MARKS, AQ_EC_HALF | AQ_EC_COMMON},
                 {AQ_EC_MARKS, AQ_EC_DITHERED | AQ_EC_CENTRED},
                 {AQ_EC_MARKS, marks | AQ_EC_CENTRED},
                 {AQ_EC_MARKS, marks | 32},
                 {unit + 3, 0xff},
                 {unit + 3, 0x7f},
                 {codes + ODD / 2, 0x1f}};
    quiet_begin();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const uint8_t right = end.body[wrong[i].at];
        end.body[wrong[i].at] = wrong[i].value;
        assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, result.flags, memory, end.hat, end.m,
                                         NULL),
                         AQ_CORRUPT);
        end.body[wrong[i].at] = right;
    }
    quiet_end();
    assert_int_equal(
        aq_codec_decode(end.codec, end.body, result.body_bytes, result.flags, memory, end.hat, end.m, NULL), AQ_OK);
    aq_free(memory);
    end_close(&end);
}

/* ---- the dither's numbers ---- */

enum { NOISE_ROWS = 512, NOISE_COLUMNS = 1600 };

/* Bytes of a body whose key is that of a test's stream `stream`; stream 0: a key of zeros. */
static void noise_fill(uint64_t stream, uint8_t *bytes)
{
    struct aq_rng_key key = {{0, 0}, {0, 0}};
    struct aq_ec_dither dither;
    if (stream > 0) key = aq_rng_key(7, AQ_RNG_ROUND, stream, 3);
    aq_rng_block(&key, 0, dither.words);
    for (uint32_t t = 0; t < NOISE_ROWS; t++) {
        const struct aq_ec_dither_row row = aq_ec_dither_of(&dither, t);
        for (uint32_t c = 0; c < NOISE_COLUMNS; c++)
            bytes[t * NOISE_COLUMNS + c] = (uint8_t)aq_ec_dither_byte(row, c);
    }
}

/* Of 256 cells that are to be even: chi square's distance from its mean of 255, in standard deviations. */
static double unevenness(const uint32_t cells[256])
{
    double all = 0, sum = 0;
    for (int i = 0; i < 256; i++)
        all += (double)cells[i];
    for (int i = 0; i < 256; i++)
        sum += ((double)cells[i] - all / 256) * ((double)cells[i] - all / 256) / (all / 256);
    return (sum - 255) / sqrt(2 * 255.0);
}

/* Bytes of one and of the other: their upper and their lower halves against each other, and their
 * correlation, the worst of the three in standard deviations. */
static double likeness(const uint8_t *one, const uint8_t *other, size_t count)
{
    uint32_t upper[256] = {0}, lower[256] = {0};
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        upper[(one[i] & 0xf0) | other[i] >> 4]++;
        lower[(one[i] & 15) << 4 | (other[i] & 15)]++;
        sum += ((double)one[i] - 127.5) * ((double)other[i] - 127.5);
    }
    const double correlation = sum / sqrt((double)count) / ((256.0 * 256 - 1) / 12);
    return fmax(fmax(unevenness(upper), unevenness(lower)), fabs(correlation));
}

/* Each byte as often as any other, in all, in each column and in each row; and none says anything of its neighbours in
 * its row, in its word, in the next row, or of the next step's. Of some 4,000 figures the largest of a true source
 * would be about 3.8 (of a chi square, which is skewed, a little more). */
static void test_dither_is_even_and_nobodys_neighbour(void **state)
{
    (void)state;
    static uint8_t bytes[NOISE_ROWS * NOISE_COLUMNS], next[NOISE_ROWS * NOISE_COLUMNS];
    static const size_t distances[] = {1, 2, 16, 32, 48, 64, NOISE_COLUMNS, 16 * NOISE_COLUMNS};
    const size_t count = sizeof bytes;
    const double spread = sqrt((256.0 * 256 - 1) / 12);
    double worst = 0;
    noise_fill(3, next);
    for (uint64_t stream = 0; stream < 3; stream++) {
        uint32_t cells[256] = {0};
        noise_fill(stream, bytes);
        for (size_t i = 0; i < count; i++)
            cells[bytes[i]]++;
        worst = fmax(worst, unevenness(cells));
        for (int i = 0; i < 8; i++)
            worst = fmax(worst, likeness(bytes, bytes + distances[i], count - distances[i]));
        worst = fmax(worst, likeness(bytes, next, count));
        for (size_t c = 0; c < NOISE_COLUMNS; c++) {
            double sum = 0;
            for (size_t t = 0; t < NOISE_ROWS; t++)
                sum += (double)bytes[t * NOISE_COLUMNS + c] - 127.5;
            worst = fmax(worst, fabs(sum) / spread / sqrt(NOISE_ROWS));
        }
        for (size_t t = 0; t < NOISE_ROWS; t++) {
            double sum = 0;
            for (size_t c = 0; c < NOISE_COLUMNS; c++)
                sum += (double)bytes[t * NOISE_COLUMNS + c] - 127.5;
            worst = fmax(worst, fabs(sum) / spread / sqrt(NOISE_COLUMNS));
        }
        memcpy(next, bytes, sizeof next);
    }
    print_message("the dither's worst figure: %.2f standard deviations\n", worst);
    assert_true(worst < 5.0);
}

/* The same sample, key and reference give the same bytes: a run that goes on sends what it would have sent. */
static void test_dither_is_the_keys_alone(void **state)
{
    (void)state;
    struct aq_codec_config config = ec(2.0f, 0.0f, AQ_PRECISION_NONE);
    struct end one, other;
    config.rounding = AQ_ROUND_STOCHASTIC;
    end_open(&one, &config, ROWS, COLUMNS);
    end_open(&other, &config, ROWS, COLUMNS);
    fill(one.a, VALUES, SHAPE_GAUSS, 1.0f, 67);
    fill(other.a, VALUES, SHAPE_LAPLACE, 3.0f, 68);
    (void)code_with(&other, &config, false, 9); /* what went before leaves nothing */
    memcpy(other.a, one.a, 4 * (size_t)VALUES);
    const struct coded first = code_with(&one, &config, false, 5), second = code_with(&other, &config, false, 5);
    assert_int_equal(first.result.body_bytes, second.result.body_bytes);
    assert_memory_equal(one.body, other.body, first.result.body_bytes);
    (void)code_with(&other, &config, false, 6);
    assert_memory_not_equal(one.body, other.body, first.result.body_bytes);
    end_close(&one);
    end_close(&other);
}

static void test_an_error_is_kept_whatever_the_delta(void **state)
{
    (void)state;
    static const float errors[] = {0.3f, 0.05f, 0.01f, 0.004f}, drifts[] = {1.0f, 0.2f, 0.02f};
    for (int i = 0; i < 8; i++) {
        double bits = 100.0;
        for (int k = 0; k < 3; k++) {
            struct aq_codec_config config = ec(2.5f, errors[i % 4], AQ_PRECISION_FP32);
            config.rounding = i < 4 ? AQ_ROUND_NEAREST : AQ_ROUND_STOCHASTIC;
            struct end end;
            end_open(&end, &config, ROWS, COLUMNS);
            float *const m = (float *)(void *)end.m;
            fill(end.a, VALUES, SHAPE_GAUSS, 1.0f, 61);
            fill(m, VALUES, SHAPE_LAPLACE, drifts[k], 62);
            for (size_t e = 0; e < VALUES; e++)
                m[e] += end.a[e];
            const struct coded coded = code(&end, &config, true);
            print_message("%s, error %.3f, drift %.2f: %.3f bits, error %.4f\n", i < 4 ? "nearest" : "dithered",
                          (double)errors[i % 4], (double)drifts[k], coded.bits, coded.error);
            assert_true(coded.error < 1.05 * (double)errors[i % 4]);
            /* Or it was near enough already. */
            assert_true(i >= 4 || coded.error > 0.9 * (double)errors[i % 4] || coded.bits < 0.1);
            assert_true(coded.bits < bits + 0.01);
            bits = coded.bits;
            end_close(&end);
        }
    }
}

/* Channels with means of their own: a keyframe, or a body without messages, costs what is left of it. */
static void test_channels_means_cost_nothing(void **state)
{
    (void)state;
    for (int keeps = 0; keeps < 2; keeps++) {
        double error[2];
        for (int shifted = 0; shifted < 2; shifted++) {
            struct aq_codec_config config = ec(4.0f, 0.0f, keeps ? AQ_PRECISION_FP16 : AQ_PRECISION_NONE);
            struct end end;
            config.keyframe = AQ_PRECISION_EC;
            end_open(&end, &config, ROWS, COLUMNS);
            fill(end.a, VALUES, SHAPE_GAUSS, 1.0f, 63);
            for (size_t e = 0; shifted && e < VALUES; e++)
                end.a[e] += 30.0f * sinf((float)(e % COLUMNS));
            const struct coded coded = code(&end, &config, false);
            assert_int_equal(coded.result.flags, keeps ? AQ_CODED_KEYFRAME : 0);
            assert_int_equal(end.body[AQ_EC_MARKS], shifted);
            assert_true(coded.bits < 4.0 + (shifted ? 16.0 / ROWS : 0.0) + 0.1);
            error[shifted] = sqrt(coded.result.sum_error2);
            end_close(&end);
        }
        assert_true(error[1] < 1.1 * error[0]);
    }
}

static enum aq_codec_kind keeper(uint32_t i)
{
    static const enum aq_codec_kind kinds[] = {AQ_CODEC_AQSGD, AQ_CODEC_SIGN, AQ_CODEC_EC};
    return kinds[i];
}

/* Of every codec that keeps messages: the keyframe's error, and what the next visit makes of it. */
static void test_a_coded_keyframe_is_refined(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct aq_codec_config config;
        struct end end;
        double last = 1.0;
        aq_codec_config_default(&config, keeper(i), 4);
        config.keyframe = AQ_PRECISION_EC;
        config.keyframe_rate = 3.0f;
        end_open(&end, &config, ROWS, COLUMNS);
        fill(end.a, VALUES, SHAPE_GAUSS, 1.0f, 64);
        for (int visit = 0; visit < 3; visit++) {
            const struct coded coded = code(&end, &config, visit > 0);
            if (visit == 0) assert_true(coded.bits < 3.1);
            assert_true(coded.error < 0.7 * last);
            last = coded.error;
        }
        end_close(&end);
    }
}

static void test_odd_samples_come_back(void **state)
{
    (void)state;
    static const float rates[] = {2.0f, 5.0f};
    for (int i = 0; i < 12; i++) {
        struct aq_codec_config config = ec(rates[i % 2], i / 2 % 2 ? 0.01f : 0.0f, AQ_PRECISION_FP32);
        struct end end;
        config.keyframe = AQ_PRECISION_EC;
        config.keyframe_rate = rates[i % 2];
        end_open(&end, &config, ROWS, COLUMNS);
        memset(end.a, 0, 4 * (size_t)VALUES);
        if (i / 4 == 1)
            for (size_t e = 0; e < VALUES; e++)
                end.a[e] = -3.25f;
        if (i / 4 == 2) end.a[12345] = INFINITY;
        struct coded coded = code(&end, &config, false);
        assert_int_equal(coded.result.flags, i / 4 == 2 ? AQ_CODED_RAW : AQ_CODED_KEYFRAME);
        if (i / 4 < 2) assert_true(coded.result.sum_error2 <= 1e-3 * coded.result.sum_a2);
        if (i / 4 < 2) assert_true(coded.bits < 6.0);
        end_close(&end);
    }
}

static enum aq_status verdict(struct end *end, uint32_t bytes, const struct aq_codec_result *result)
{
    quiet_begin();
    const enum aq_status status =
        aq_codec_decode(end->codec, end->body, bytes, result->flags, NULL, end->hat, end->m, NULL);
    quiet_end();
    return status;
}

static void test_heads_that_no_sender_writes_are_corrupt(void **state)
{
    (void)state;
    struct aq_codec_config config = ec(4.0f, 0.0f, AQ_PRECISION_FP16);
    struct aq_codec_result result;
    struct end end;
    config.keyframe = AQ_PRECISION_EC;
    end_open(&end, &config, ROWS, COLUMNS);
    fill(end.a, VALUES, SHAPE_GAUSS, 1.0f, 65);
    for (size_t e = 0; e < VALUES; e++)
        end.a[e] += (float)(e % COLUMNS);
    assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, NULL, end.body, aq_codec_bound(end.codec), end.hat, end.m,
                                     &result, NULL),
                     AQ_OK);
    static const struct {
        uint32_t at;
        uint8_t value;
    } wrong[] = {{AQ_EC_REFINE, 6}, {AQ_EC_REFINE, 0},     {AQ_EC_MARKS, 4},       {AQ_EC_MARKS, 0},
                 {AQ_EC_STEP + 3, 0xff}, {AQ_EC_ESCAPES + 1, 0xff},
                 {AQ_EC_HEAD_BYTES, 1}, {AQ_EC_HEAD_BYTES + 17, 0x7c}};
    assert_int_equal(end.body[AQ_EC_MARKS], 1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const uint8_t right = end.body[wrong[i].at];
        end.body[wrong[i].at] = wrong[i].value;
        assert_int_equal(verdict(&end, result.body_bytes, &result), AQ_CORRUPT);
        end.body[wrong[i].at] = right;
    }
    for (uint32_t bytes = 0; bytes < result.body_bytes; bytes += bytes < 2000 ? 1 : 977)
        assert_int_equal(verdict(&end, bytes, &result), AQ_CORRUPT);
    assert_int_equal(verdict(&end, result.body_bytes, &result), AQ_OK);
    end_close(&end);
}

static void test_settings_are_checked(void **state)
{
    (void)state;
    struct aq_codec_config config = ec(8.1f, 0.0f, AQ_PRECISION_FP16), kept;
    quiet_begin();
    assert_int_equal(aq_codec_config_check(&config, 4, 4), AQ_INVAL);
    config = ec(2.0f, 1.0f, AQ_PRECISION_FP16);
    assert_int_equal(aq_codec_config_check(&config, 4, 4), AQ_INVAL);
    config = ec(2.0f, 0.0f, AQ_PRECISION_FP16);
    config.keyframe = AQ_PRECISION_EC;
    config.keyframe_rate = 0.5f;
    assert_int_equal(aq_codec_config_check(&config, 4, 4), AQ_INVAL);
    quiet_end();
    config.keyframe_rate = 4.0f;
    assert_int_equal(aq_codec_config_check(&config, 4, 4), AQ_OK);
    assert_true(aq_codec_config_kept(&config, &kept)); /* what is sent once and never refined */
    assert_int_equal(kept.keyframe, AQ_PRECISION_FP16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rate_is_kept_and_worth_its_bits),
        cmocka_unit_test(test_a_dithered_rate_is_kept_and_worth_its_bits),
        cmocka_unit_test(test_dither_has_no_bias_anywhere),
        cmocka_unit_test(test_half_a_dither_is_worth_more),
        cmocka_unit_test(test_what_rows_have_in_common_has_no_bias),
        cmocka_unit_test(test_a_channel_that_runs_away_leaves_the_others_theirs),
        cmocka_unit_test(test_marks_and_means_that_no_sender_writes_are_corrupt),
        cmocka_unit_test(test_dither_is_even_and_nobodys_neighbour),
        cmocka_unit_test(test_dither_is_the_keys_alone),
        cmocka_unit_test(test_an_error_is_kept_whatever_the_delta),
        cmocka_unit_test(test_channels_means_cost_nothing),
        cmocka_unit_test(test_a_coded_keyframe_is_refined),
        cmocka_unit_test(test_odd_samples_come_back),
        cmocka_unit_test(test_heads_that_no_sender_writes_are_corrupt),
        cmocka_unit_test(test_settings_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
