/*
 * test_codec_rows.c -- the way of most samples, row by row: m' in m's place or another, x^ in m's place, and measures
 * of a part of the rows; and rows of messages that move.
 */
#include "codec_common.h"

enum { ROWS = 150, COLUMNS = 200 };

static struct aq_codec_config config_of(uint32_t bits, enum aq_codec_precision store)
{
    struct aq_codec_config config;
    aq_codec_config_default(&config, AQ_CODEC_AQSGD, bits);
    config.store = store;
    config.keyframe = AQ_PRECISION_FP32;
    return config;
}

static struct aq_codec_result encode(struct end *end, const void *m, float *hat, void *m_out)
{
    struct aq_codec_result result;
    assert_int_equal(
        aq_codec_encode(end->codec, end->a, m, NULL, end->body, aq_codec_bound(end->codec), hat, m_out, &result, NULL),
        AQ_OK);
    end_check(end);
    return result;
}

/* m and m' of the two ends, in place with x^ in them, against m' and x^ each in a place of its own. */
static void one_place(uint32_t bits, uint32_t rows, uint32_t columns)
{
    const struct aq_codec_config config = config_of(bits, AQ_PRECISION_FP32);
    const struct aq_codec_kernels *all[4];
    const size_t count = tables(all);
    for (size_t t = 0; t < count; t++) {
        struct end one, apart;
        void *memory = NULL;
        end_open(&one, &config, rows, columns);
        end_open(&apart, &config, rows, columns);
        one.codec->kernels = apart.codec->kernels = all[t];
        const size_t message = aq_codec_message_bytes(one.codec);
        assert_int_equal(aq_alloc(2 * message, &memory), AQ_OK);
        uint8_t *other = memory, *receiver = other + message;
        for (int visit = 0; visit < 3; visit++) {
            const void *old = visit == 0 ? NULL : visit == 1 ? apart.m : (void *)other;
            void *next = visit == 1 ? other : apart.m;
            fill(one.a, one.values, SHAPE_LAPLACE, 1.0f, 40 + (uint64_t)visit);
            memcpy(apart.a, one.a, message);
            const struct aq_codec_result a =
                encode(&one, visit == 0 ? NULL : one.m, visit == 2 ? (float *)(void *)one.m : NULL, one.m);
            const struct aq_codec_result b = encode(&apart, old, apart.hat, next);
            assert_int_equal(a.body_bytes, b.body_bytes);
            assert_int_equal(a.flags, b.flags);
            assert_memory_equal(one.body, apart.body, a.body_bytes);
            assert_memory_equal(one.m, next, message);
            assert_memory_equal(one.m, apart.hat, message);
            assert_int_equal(aq_codec_decode(one.codec, one.body, a.body_bytes, a.flags, visit == 0 ? NULL : receiver,
                                             (float *)(void *)receiver, receiver, NULL),
                             AQ_OK);
            assert_memory_equal(one.m, receiver, message);
        }
        one.a[one.values / 2] = INFINITY;
        const struct aq_codec_result raw = encode(&one, one.m, (float *)(void *)one.m, one.m);
        assert_int_equal(raw.flags, AQ_CODED_RAW);
        assert_memory_equal(one.m, one.a, message); /* x^ of a raw sample */
        assert_int_equal(aq_codec_decode(one.codec, one.body, raw.body_bytes, raw.flags, NULL,
                                         (float *)(void *)receiver, receiver, NULL),
                         AQ_OK);
        assert_memory_equal(receiver, one.a, message);
        aq_free(memory);
        end_close(&one);
        end_close(&apart);
    }
}

static void test_fp32_store_may_hold_x_as_well(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits <= 8; bits++) {
        one_place(bits, ROWS, COLUMNS);
        one_place(bits, 5, 67);
        one_place(bits, 70, 64);
    }
}

static void near_to(double x, double truth, double tolerance)
{
    if (!(fabs(x - truth) <= tolerance * truth)) fail_msg("%g is not within %g of %g", x, tolerance, truth);
}

static float stored_value(const void *m, size_t e, bool half)
{
    const uint16_t bits = ((const uint16_t *)m)[e];
    return half ? aq_half_to_float(bits) : aq_float_of((uint32_t)bits << 16);
}

/* The first row is a hundred times as large as the others, as a first token's may be. */
static void measures(uint32_t rows, enum aq_codec_precision store, double tolerance)
{
    const struct aq_codec_config config = config_of(4, store);
    const bool half = store == AQ_PRECISION_FP16;
    double a2 = 0, sum = 0, delta2 = 0, error2 = 0, stored2 = 0;
    struct end end;
    float *old = NULL;
    void *memory = NULL;
    end_open(&end, &config, rows, COLUMNS);
    assert_int_equal(aq_alloc(end.values * sizeof *old, &memory), AQ_OK);
    old = memory;
    for (int visit = 0; visit < 2; visit++) {
        fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 50 + (uint64_t)visit);
        for (size_t e = 0; e < end.values; e++) {
            end.a[e] = visit == 0 ? end.a[e] + 3.0f : old[e] + 0.1f * end.a[e];
            if (e < COLUMNS && visit == 0) end.a[e] *= 100.0f;
        }
        if (visit == 1) break;
        (void)encode(&end, NULL, old, end.m);
        for (size_t e = 0; e < end.values; e++)
            old[e] = stored_value(end.m, e, half);
    }
    const struct aq_codec_result result = encode(&end, end.m, end.hat, end.m);
    for (size_t e = 0; e < end.values; e++) {
        const double a = (double)end.a[e], d = a - (double)old[e], x = a - (double)end.hat[e];
        a2 += a * a;
        sum += a;
        delta2 += d * d;
        error2 += x * x;
        const double left = a - (double)(half ? end.hat[e] : stored_value(end.m, e, half));
        stored2 += left * left;
    }
    near_to(result.sum_stored2, stored2, tolerance);
    if (!half) assert_true(result.sum_stored2 > 1.05 * result.sum_error2);
    near_to(result.sum_a2, a2, tolerance);
    near_to(result.sum_a, sum, tolerance);
    near_to(result.sum_delta2, delta2, tolerance);
    near_to(result.sum_error2, error2, tolerance);
    aq_free(memory);
    end_close(&end);
}

static void test_measures_are_near_the_truth(void **state)
{
    (void)state;
    for (uint32_t store = AQ_PRECISION_FP16; store <= AQ_PRECISION_BF16; store++) {
        measures(1, store, 1e-3);
        measures(63, store, 1e-3);
        measures(64, store, 0.2);
        measures(77, store, 0.2);
        measures(ROWS, store, 0.15);
        measures(1024, store, 0.05);
    }
}

/*
 * The error of what is stored: visited again without a change, a sample is as far from its message as the visit before
 * said. In 2 bits that is far more than the error of x^, which the loop does not continue with.
 */
static void stored_error(const struct aq_codec_config *config, uint32_t rows, uint32_t variant, double more)
{
    static float before[77 * COLUMNS];
    struct end end;
    end_open(&end, config, rows, COLUMNS);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 60 + variant);
    float *const hats[] = {NULL, end.hat, end.a};
    const struct aq_codec_result first = encode(&end, NULL, variant < 2 ? NULL : end.hat, end.m);
    for (size_t e = 0; e < end.values; e++)
        end.a[e] += 0.1f * (float)(e % 7);
    memcpy(before, end.a, end.values * sizeof *before);
    const struct aq_codec_result second = encode(&end, end.m, hats[variant / 2], end.m);
    memcpy(end.a, before, end.values * sizeof *before);
    const struct aq_codec_result third = encode(&end, end.m, end.hat, end.m);
    assert_true(first.sum_stored2 > 0 && second.sum_error2 > 0);
    near_to(second.sum_stored2, third.sum_delta2, 1e-5);
    assert_true(second.sum_stored2 > more * second.sum_error2);
    end_close(&end);
}

static void test_stored_error_is_the_distance_of_the_next_visit(void **state)
{
    (void)state;
    for (uint32_t store = AQ_PRECISION_BF16; store <= AQ_PRECISION_Q2; store++) {
        for (uint32_t variant = 0; variant < 6; variant++) {
            struct aq_codec_config config = config_of(4, (enum aq_codec_precision)store);
            config.store_group = variant % 2 ? AQ_PER_CHANNEL : AQ_PER_ROW;
            stored_error(&config, 37, variant, store == AQ_PRECISION_Q2 ? 10 : 0);
        }
    }
}

static double halves(double lanes[32])
{
    for (int width = 16; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}

/* The error of a message in bf16 by the definition: 32 partial sums per row, and of rows. */
static double measured(const float *a, const void *m, const uint32_t *rows, uint32_t count, double later)
{
    double total[32] = {0};
    for (uint32_t i = 0; i < count; i++) {
        double lanes[32] = {0};
        for (size_t c = 0; c < COLUMNS; c++) {
            const size_t e = rows[i] * COLUMNS + c;
            const double left = (double)a[e] - (double)stored_value(m, e, false);
            lanes[c % 32] += left * left;
        }
        total[i % 32] += (i < 8 ? 1.0 : later) * halves(lanes);
    }
    return halves(total);
}

/* Whatever the codec, keyframes included: all rows of a short sample, else the first eight and one in eight. */
static void test_stored_error_is_of_the_measured_rows(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {AQ_CODEC_AQSGD, AQ_CODEC_SIGN, AQ_CODEC_LOWRANK, AQ_CODEC_EC};
    static const uint32_t some[] = {0, 1, 2, 3, 4, 5, 6, 7, 12, 20, 28, 36, 44, 52, 60, 68, 76};
    static float before[77 * COLUMNS];
    uint32_t all[63];
    for (uint32_t i = 0; i < 63; i++)
        all[i] = i;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (uint32_t rows = 63; rows <= 77; rows += 14) {
            struct aq_codec_config config;
            struct end end;
            aq_codec_config_default(&config, kinds[k], kinds[k] == AQ_CODEC_SIGN ? 1 : 4);
            config.store = AQ_PRECISION_BF16;
            config.keyframe = AQ_PRECISION_FP32;
            config.rounding = AQ_ROUND_NEAREST;
            end_open(&end, &config, rows, COLUMNS);
            float *const hats[] = {NULL, end.hat, end.a};
            fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 70 + rows);
            for (uint32_t visit = 0; visit < 4; visit++) {
                memcpy(before, end.a, end.values * sizeof *before);
                const struct aq_codec_result result = encode(&end, visit ? end.m : NULL, hats[visit % 3], end.m);
                const double truth = rows < 64 ? measured(before, end.m, all, 63, 1.0)
                                               : measured(before, end.m, some, 17, 69.0 / 9.0);
                assert_true(result.flags != AQ_CODED_RAW && truth > 0.0);
                assert_memory_equal(&result.sum_stored2, &truth, sizeof truth);
                for (size_t e = 0; e < end.values; e++)
                    end.a[e] = before[e] + 0.1f * (float)((e + visit) % 7);
            }
            end_close(&end);
        }
    }
}

/* A message whose rows are moved is that of a sample whose rows are; and a row of nothing has zero bytes. */
static void test_rows_of_messages_move_in_every_store(void **state)
{
    (void)state;
    enum { FEW = 7, WIDE = 24, VALUES = FEW * WIDE };
    static const uint32_t from[FEW] = {3, 0, 6, 2, 2, 5, 1};
    for (uint32_t store = AQ_PRECISION_FP32; store <= AQ_PRECISION_Q2; store++) {
        struct aq_codec_config config;
        struct aq_codec_result result;
        struct end whole, moved;
        uint8_t message[4 * VALUES];
        aq_codec_config_default(&config, AQ_CODEC_AQSGD, 4);
        config.store = (enum aq_codec_precision)store;
        config.keyframe = AQ_PRECISION_FP32;
        assert_int_equal(aq_codec_rows_check(&config, WIDE), AQ_OK);
        end_open(&whole, &config, FEW, WIDE);
        end_open(&moved, &config, FEW, WIDE);
        fill(whole.a, VALUES, SHAPE_GAUSS, 1.0f, 31);
        for (uint32_t row = 0; row < FEW; row++)
            memcpy(moved.a + row * WIDE, whole.a + from[row] * WIDE, WIDE * sizeof(float));
        struct end *const ends[] = {&whole, &moved};
        for (int e = 0; e < 2; e++)
            assert_int_equal(aq_codec_encode(ends[e]->codec, ends[e]->a, NULL, NULL, ends[e]->body,
                                             aq_codec_bound(ends[e]->codec), NULL, ends[e]->m, &result, NULL),
                             AQ_OK);
        const size_t bytes = aq_codec_message_bytes(whole.codec);
        assert_in_range(bytes, 1, sizeof message);
        memset(message, 0xa5, sizeof message);
        for (uint32_t row = 0; row < FEW; row++)
            aq_codec_message_row(whole.codec, whole.m, from[row], message, row);
        assert_memory_equal(message, moved.m, bytes);
        for (uint32_t row = 0; row < FEW; row++)
            aq_codec_message_row(whole.codec, NULL, 0, message, row);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(message[i], 0);
        for (size_t i = bytes; i < sizeof message; i++)
            assert_int_equal(message[i], 0xa5);
        end_close(&whole);
        end_close(&moved);
    }
    struct aq_codec_config config;
    aq_codec_config_default(&config, AQ_CODEC_AQSGD, 4);
    config.store = AQ_PRECISION_Q2;
    quiet_begin();
    assert_int_equal(aq_codec_rows_check(&config, 10), AQ_INVAL); /* 20 bits */
    config.store_group = AQ_PER_CHANNEL;
    assert_int_equal(aq_codec_rows_check(&config, 24), AQ_INVAL);
    config.store = AQ_PRECISION_FP16;
    assert_int_equal(aq_codec_rows_check(&config, 10), AQ_OK);
    quiet_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32_store_may_hold_x_as_well),
        cmocka_unit_test(test_measures_are_near_the_truth),
        cmocka_unit_test(test_stored_error_is_the_distance_of_the_next_visit),
        cmocka_unit_test(test_stored_error_is_of_the_measured_rows),
        cmocka_unit_test(test_rows_of_messages_move_in_every_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
