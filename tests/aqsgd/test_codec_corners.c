/*
 * test_codec_corners.c -- codecs at exactly their limits: the largest value that a store holds and the next, flags and
 * positions that a body may not have.
 */
#include "codec_common.h"

enum { ROWS = 2, COLUMNS = 8, VALUES = ROWS * COLUMNS };

/* Rounds to 65504 at most as fp16, and is infinite from 65520 on. */
static const float LARGEST = 65504.0f, BEYOND = 65520.0f;

static void fp16_config(struct aq_codec_config *config)
{
    aq_codec_config_default(config, AQ_CODEC_AQSGD, 2);
    config->grid = AQ_GRID_MIDTREAD; /* levels -s, 0, s */
    config->scale = AQ_SCALE_ABSMAX;
    config->scale_format = AQ_SCALE_FP32;
    config->keyframe = AQ_PRECISION_FP32;
}

static void encode(struct end *end, const uint8_t *m, uint8_t *m_out, struct aq_codec_result *result)
{
    assert_int_equal(aq_codec_encode(end->codec, end->a, m, NULL, end->body, aq_codec_bound(end->codec), end->hat,
                                     m_out, result, NULL),
                     AQ_OK);
}

/* A value that the store just holds is kept; the next one sends the sample raw, as a keyframe and as a change. */
static void test_value_at_the_limit_of_the_store(void **state)
{
    static uint8_t m[256], after[256];
    struct aq_codec_config config;
    struct aq_codec_result result;
    struct end end;
    (void)state;
    fp16_config(&config);
    end_open(&end, &config, ROWS, COLUMNS);
    for (int i = 0; i < VALUES; i++)
        end.a[i] = LARGEST;
    encode(&end, NULL, m, &result);
    assert_int_equal(result.flags, AQ_CODED_KEYFRAME);
    end.a[5] = nextafterf(BEYOND, 0);
    encode(&end, NULL, after, &result);
    assert_int_equal(result.flags, AQ_CODED_KEYFRAME);
    end.a[5] = BEYOND;
    encode(&end, NULL, after, &result);
    assert_int_equal(result.flags, AQ_CODED_RAW);
    for (int i = 0; i < VALUES; i++)
        end.a[i] = LARGEST + (i % 2 ? 15.0f : 0.0f);
    encode(&end, m, after, &result);
    assert_int_equal(result.flags, 0);
    end.a[5] = BEYOND; /* 16 above its reference: one level, exactly */
    encode(&end, m, after, &result);
    assert_int_equal(result.flags, AQ_CODED_RAW);
    end_close(&end);
}

/* The receiver refuses what would be exactly at the limit: a body that a good sender codes against another reference.
 */
static void test_change_to_exactly_the_limit_is_corrupt(void **state)
{
    static uint8_t m[256], lower[256], after[256];
    struct aq_codec_config config;
    struct aq_codec_result result;
    struct end end;
    (void)state;
    fp16_config(&config);
    end_open(&end, &config, ROWS, COLUMNS);
    for (int i = 0; i < VALUES; i++)
        end.a[i] = LARGEST - 64;
    encode(&end, NULL, lower, &result);
    for (int i = 0; i < VALUES; i++)
        end.a[i] = LARGEST;
    encode(&end, NULL, m, &result);
    for (int i = 0; i < VALUES; i++)
        end.a[i] = LARGEST - 64 + (i == 3 ? 16 : 0);
    encode(&end, lower, after, &result);
    assert_int_equal(result.flags, 0);
    assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, 0, lower, end.hat, after, NULL), AQ_OK);
    assert_true(end.hat[3] == LARGEST - 48);
    quiet_begin();
    assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, 0, m, end.hat, after, NULL), AQ_CORRUPT);
    quiet_end();
    end_close(&end);
}

static void test_flag_that_a_codec_never_sets_is_corrupt(void **state)
{
    static const enum aq_codec_kind kinds[] = {AQ_CODEC_RAW, AQ_CODEC_DIRECTQ};
    static const uint32_t flags[] = {AQ_CODED_KEYFRAME, AQ_CODED_KEYFRAME | AQ_CODED_RAW, 4, 1u << 31};
    struct aq_codec_result result;
    struct end end;
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, kinds[k], 4);
        end_open(&end, &config, ROWS, COLUMNS);
        for (int i = 0; i < VALUES; i++)
            end.a[i] = (float)i - 7;
        encode(&end, NULL, NULL, &result);
        assert_int_equal(
            aq_codec_decode(end.codec, end.body, result.body_bytes, result.flags, NULL, end.hat, NULL, NULL), AQ_OK);
        quiet_begin();
        for (int i = 0; i < 4; i++) /* a raw one may always come */
            assert_int_equal(
                aq_codec_decode(end.codec, end.body, result.body_bytes, flags[i], NULL, end.hat, NULL, NULL),
                AQ_CORRUPT);
        quiet_end();
        end_close(&end);
    }
}

/* Positions of a sparse body, every byte changed in every way: none that stands still or goes back is taken. */
static void test_positions_that_do_not_rise_are_corrupt(void **state)
{
    enum { KEPT = 8 };
    struct aq_codec_config config;
    struct aq_codec_result result;
    struct end end;
    (void)state;
    aq_codec_config_default(&config, AQ_CODEC_DIRECTQ, 4);
    config.top_k = (float)KEPT / 1024;
    config.prescale_log2 = 0;
    end_open(&end, &config, 16, 64);
    const struct aq_codec_layout *layout = &end.codec->layout;
    assert_int_equal(layout->kept, KEPT);
    assert_false(layout->bitmap);
    for (int i = 0; i < 1024; i++)
        end.a[i] = i % 128 == 100 ? 2.0f : 0.5f * (float)(i % 3);
    encode(&end, NULL, NULL, &result);
    assert_int_equal(result.flags, 0);
    assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, 0, NULL, end.hat, NULL, NULL), AQ_OK);
    quiet_begin();
    for (uint64_t at = 0; at < layout->positions_bytes; at++) {
        uint8_t *byte = end.body + layout->positions_at + at;
        const uint8_t good = *byte;
        for (int value = 0; value < 256; value++) {
            struct aq_position_reader reader;
            uint64_t last = 0;
            bool rises = true;
            *byte = (uint8_t)value;
            aq_position_reader_init(&reader, layout, end.body + layout->positions_at);
            for (int j = 0; j < KEPT; j++) {
                const uint64_t element = aq_position_read(&reader);
                rises &= element < layout->values && (j == 0 || element > last);
                last = element;
            }
            const enum aq_status status =
                aq_codec_decode(end.codec, end.body, result.body_bytes, 0, NULL, end.hat, NULL, NULL);
            if (!rises) assert_int_equal(status, AQ_CORRUPT);
        }
        *byte = good;
    }
    /* Two of one place: the low bits of the second made those of the first, where both lie in one bucket. */
    for (int i = 0; i < 1024; i++)
        end.a[i] = i < KEPT ? 2.0f : 0;
    encode(&end, NULL, NULL, &result);
    for (uint32_t bit = 0; bit < layout->low_bits; bit++) {
        uint8_t *at = end.body + layout->positions_at;
        const uint32_t from = bit, to = layout->low_bits + bit;
        const bool set = at[from / 8] >> from % 8 & 1;
        at[to / 8] = (uint8_t)((at[to / 8] & ~(1u << to % 8)) | (unsigned)set << to % 8);
    }
    assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, 0, NULL, end.hat, NULL, NULL), AQ_CORRUPT);
    quiet_end();
    end_close(&end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_value_at_the_limit_of_the_store),
        cmocka_unit_test(test_change_to_exactly_the_limit_is_corrupt),
        cmocka_unit_test(test_flag_that_a_codec_never_sets_is_corrupt),
        cmocka_unit_test(test_positions_that_do_not_rise_are_corrupt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
