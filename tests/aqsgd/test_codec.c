/*
 * test_codec.c -- configuration, lengths, raw fallback, underflow, top-k, and bytes from outside.
 */
#include "codec_common.h"

static struct aq_codec_config default_of(enum aq_codec_kind kind, uint32_t bits)
{
    struct aq_codec_config config;
    aq_codec_config_default(&config, kind, bits);
    return config;
}

static struct aq_codec_result encode(struct end *end, const void *m, float *hat)
{
    struct aq_codec_result result;
    const struct aq_rng_key key = test_key(3);
    assert_int_equal(
        aq_codec_encode(end->codec, end->a, m, &key, end->body, aq_codec_bound(end->codec), hat, end->m, &result, NULL),
        AQ_OK);
    return result;
}

static void test_defaults_are_the_recommended(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits <= 8; bits++) {
        const struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, bits);
        assert_int_equal(aq_codec_config_check(&config, 4, 5), AQ_OK);
        assert_int_equal(config.grid, AQ_GRID_MIDRISE);
        assert_int_equal(config.group, AQ_PER_ROW);
        assert_int_equal(config.scale_format, AQ_SCALE_FP16);
        assert_int_equal(config.rounding, AQ_ROUND_NEAREST);
        assert_int_equal(config.store, AQ_PRECISION_FP16);
    }
    assert_int_equal(default_of(AQ_CODEC_DIRECTQ, 8).prescale_log2, 16);
    char text[160];
    struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, 4);
    aq_codec_config_text(&config, text, sizeof text);
    assert_string_equal(text, "aqsgd 4 bits mid-rise row fp16 absmax nearest store fp16 keyframe fp16");
    aq_codec_config_text(&config, text, 6);
    assert_string_equal(text, "aqsgd");
    config = default_of(AQ_CODEC_DIRECTQ, 8);
    config.top_k = 0.2f;
    aq_codec_config_text(&config, text, sizeof text);
    assert_string_equal(text, "directq 8 bits mid-rise row fp16 absmax nearest prescale 2^16 top 0.2");
}

static void test_check_names_the_field(void **state)
{
    (void)state;
    struct aq_codec_config bad[16];
    const char *names[16];
    size_t count = 0;
#define BAD(kind, field, value, name)                                                                                  \
    (bad[count] = default_of(kind, 4), bad[count].field = (value), names[count++] = (name))
    BAD(AQ_CODEC_AQSGD, kind, (enum aq_codec_kind)9, "kind");
    BAD(AQ_CODEC_AQSGD, bits, 9, "bits");
    BAD(AQ_CODEC_AQSGD, bits, 0, "bits");
    BAD(AQ_CODEC_AQSGD, grid, (enum aq_codec_grid)0, "grid");
    BAD(AQ_CODEC_AQSGD, group, (enum aq_codec_group)5, "group");
    BAD(AQ_CODEC_AQSGD, scale, (enum aq_codec_scale)5, "scale");
    BAD(AQ_CODEC_AQSGD, scale_format, (enum aq_codec_scale_format)0, "scale_format");
    BAD(AQ_CODEC_AQSGD, rounding, (enum aq_codec_rounding)0, "rounding");
    BAD(AQ_CODEC_AQSGD, prescale_log2, 65, "prescale_log2");
    BAD(AQ_CODEC_AQSGD, store, (enum aq_codec_precision)7, "store");
    BAD(AQ_CODEC_AQSGD, store_group, AQ_PER_TILE, "store_group");
    BAD(AQ_CODEC_AQSGD, keyframe, AQ_PRECISION_Q4, "keyframe");
    BAD(AQ_CODEC_AQSGD, top_k, 0.5f, "top_k");
    BAD(AQ_CODEC_DIRECTQ, top_k, 1.5f, "top_k");
    BAD(AQ_CODEC_DIRECTQ, top_k, NAN, "top_k");
    BAD(AQ_CODEC_RAW, raw, AQ_PRECISION_Q8, "raw");
#undef BAD
    quiet_begin();
    for (size_t i = 0; i < count; i++) {
        struct aq_codec *codec;
        aq_error_clear();
        assert_int_equal(aq_codec_open(NULL, &bad[i], 8, 8, &codec), AQ_INVAL);
        assert_non_null(strstr(aq_error_text(), names[i]));
    }
    struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, 1);
    config.grid = AQ_GRID_MIDTREAD;
    assert_int_equal(aq_codec_config_check(&config, 8, 8), AQ_INVAL);
    config = default_of(AQ_CODEC_AQSGD, 2);
    config.hadamard = true;
    config.tile = 48;
    assert_int_equal(aq_codec_config_check(&config, 8, 8), AQ_INVAL);
    config.tile = 32;
    assert_int_equal(aq_codec_config_check(&config, 8, 8), AQ_OK);
    assert_int_equal(aq_codec_config_check(&config, 0, 8), AQ_INVAL);
    assert_int_equal(aq_codec_config_check(&config, 8, 0), AQ_INVAL);
    assert_int_equal(aq_codec_config_check(&config, 1 << 20, 1 << 20), AQ_INVAL);
    quiet_end();
}

static void test_digest_covers_what_decode_reads_and_nothing_else(void **state)
{
    (void)state;
    struct aq_codec_config variants[16];
    size_t count = 0;
    variants[count++] = default_of(AQ_CODEC_AQSGD, 4);
#define OTHER(field, value) (variants[count] = variants[0], variants[count++].field = (value))
    OTHER(bits, 3);
    OTHER(grid, AQ_GRID_MIDTREAD);
    OTHER(group, AQ_PER_TENSOR);
    OTHER(group, AQ_PER_TILE);
    OTHER(scale_format, AQ_SCALE_BF16);
    OTHER(hadamard, true);
    OTHER(prescale_log2, 1);
    OTHER(store, AQ_PRECISION_Q8);
    OTHER(keyframe, AQ_PRECISION_FP32);
    OTHER(kind, AQ_CODEC_DIRECTQ);
    variants[count] = default_of(AQ_CODEC_DIRECTQ, 4);
    variants[count++].top_k = 0.2f;
    variants[count] = variants[4]; /* tiles of another size */
    variants[count++].tile = 128;
    variants[count] = default_of(AQ_CODEC_RAW, 0);
    count++;
    variants[count] = variants[8]; /* a store of another kind of scale */
    assert_int_equal(variants[count].store, AQ_PRECISION_Q8);
    variants[count++].store_group = AQ_PER_CHANNEL;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++)
            assert_true(aq_codec_config_digest(&variants[i]) != aq_codec_config_digest(&variants[j]));
    }
    struct aq_codec_config same = variants[0];
    same.scale = AQ_SCALE_SEARCH;
    same.rounding = AQ_ROUND_STOCHASTIC;
    same.tile = 32; /* unused by row groups */
    same.raw = AQ_PRECISION_BF16;
    same.store_group = AQ_PER_CHANNEL; /* unused by fp16 */
    assert_true(aq_codec_config_digest(&same) == aq_codec_config_digest(&variants[0]));
#undef OTHER
}

static void test_lengths_are_the_formula(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 1}, {3, 5}, {7, 129}, {4, 64}, {1024, 1600}};
    static const uint32_t tiles[] = {32, 64, 128};
    for (size_t s = 0; s < 5; s++) {
        const uint32_t rows = shapes[s][0], columns = shapes[s][1];
        const uint64_t n = (uint64_t)rows * columns;
        for (uint32_t bits = 1; bits <= 8; bits++) {
            for (uint32_t format = AQ_SCALE_FP16; format <= AQ_SCALE_POW2; format++) {
                for (uint32_t group = AQ_PER_TENSOR; group <= AQ_PER_TILE + 2; group++) {
                    struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, bits);
                    struct aq_codec_layout layout;
                    const uint32_t tile = group >= AQ_PER_TILE ? tiles[group - AQ_PER_TILE] : 32;
                    config.group = (enum aq_codec_group)(group > AQ_PER_TILE ? AQ_PER_TILE : group);
                    config.tile = tile;
                    config.scale_format = (enum aq_codec_scale_format)format;
                    const uint64_t groups[] = {0, 1, rows, columns, (uint64_t)rows * ((columns + tile - 1) / tile)};
                    const uint64_t scale[] = {0, 2, 2, 4, 1};
                    aq_codec_layout_of(&config, rows, columns, &layout);
                    assert_int_equal(layout.body_bytes, groups[config.group] * scale[format] + (n * bits + 7) / 8);
                    assert_int_equal(layout.keyframe_bytes, 2 * n);
                    assert_int_equal(layout.message_bytes, 2 * n);
                    assert_true(layout.bound >= layout.body_bytes && layout.bound >= 4 * n);
                }
            }
        }
    }
    struct aq_codec_layout layout;
    struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, 4);
    config.store = AQ_PRECISION_Q2;
    aq_codec_layout_of(&config, 3, 5, &layout);
    assert_int_equal(layout.message_bytes, 12 + 4);
    config.store_group = AQ_PER_CHANNEL;
    aq_codec_layout_of(&config, 3, 5, &layout);
    assert_int_equal(layout.message_bytes, 20 + 4);
    config = default_of(AQ_CODEC_DIRECTQ, 8);
    config.top_k = 0.2f;
    aq_codec_layout_of(&config, 10, 100, &layout);
    assert_int_equal(layout.kept, 201); /* 0.2f is a little more than a fifth */
    assert_false(layout.bitmap);
    assert_int_equal(layout.body_bytes, 20 + (201 * 2 + 7) / 8 + (201 + (1000 >> 2) + 1 + 7) / 8 + 201);
    config.top_k = 0.5f;
    aq_codec_layout_of(&config, 10, 100, &layout);
    assert_true(layout.bitmap);
    assert_int_equal(layout.body_bytes, 20 + 125 + 500);
    config.top_k = 0.01f;
    aq_codec_layout_of(&config, 10, 100, &layout);
    assert_false(layout.bitmap);
    assert_int_equal(layout.kept, 10);
    assert_int_equal(layout.body_bytes, 20 + (10 * 6 + 7) / 8 + (10 + (1000 >> 6) + 1 + 7) / 8 + 10);
}

static void test_encode_asks_for_room_and_key(void **state)
{
    (void)state;
    struct end end;
    struct aq_codec_result result;
    struct aq_codec_config config = default_of(AQ_CODEC_DIRECTQ, 3);
    config.rounding = AQ_ROUND_STOCHASTIC;
    end_open(&end, &config, 4, 33);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 4);
    const struct aq_rng_key key = test_key(3);
    const size_t bound = aq_codec_bound(end.codec);
    quiet_begin();
    assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, &key, end.body, bound - 1, NULL, NULL, &result, NULL),
                     AQ_NOSPC);
    assert_int_equal(aq_codec_encode(end.codec, end.a, NULL, NULL, end.body, bound, NULL, NULL, &result, NULL),
                     AQ_INVAL);
    quiet_end();
    end_close(&end);
}

static void test_open_fails_whole(void **state)
{
    (void)state;
    const struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, 4);
    const uint64_t before = aq_memory_used();
    quiet_begin();
    for (uint64_t n = 1; n <= 2; n++) {
        struct aq_codec *codec = NULL;
        aq_memory_fail_at(n);
        assert_int_equal(aq_codec_open(NULL, &config, 8, 8, &codec), AQ_NOMEM);
        assert_null(codec);
        assert_int_equal(aq_memory_used(), before);
    }
    aq_memory_fail_at(0);
    quiet_end();
    aq_codec_close(NULL);
}

/* ---- raw fallback ---- */

/* Where m_out is m, nothing is said of its bytes after a raw sample. */
static void spoil(struct aq_codec_config config, float poison, uint32_t place, bool raw_wanted)
{
    enum { ROWS = 40, COLUMNS = 1000 }; /* two pieces */
    const size_t at = place == 0 ? 0 : place == 1 ? (size_t)ROWS * COLUMNS - 1 : (size_t)ROWS * COLUMNS / 2 + 7;
    const struct aq_codec_kernels *all[4];
    const size_t count = tables(all);
    for (size_t t = 0; t < count; t++) {
        for (int warm = 0; warm < 2; warm++) {
            for (int way = 0; way < 3; way++) {
                const bool in_place = way == 1, apart = way == 2;
                struct end end;
                void *old = NULL, *other = NULL;
                end_open(&end, &config, ROWS, COLUMNS);
                end.codec->kernels = all[t];
                const size_t message = aq_codec_message_bytes(end.codec);
                assert_int_equal(aq_alloc(message + 1, &old), AQ_OK);
                assert_int_equal(aq_alloc(message + 1, &other), AQ_OK);
                fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 5);
                if (warm) (void)encode(&end, NULL, NULL);
                memcpy(old, end.m, message);
                end.a[at] = poison;
                float *hat = in_place ? end.a : end.hat;
                struct aq_codec_result result;
                assert_int_equal(aq_codec_encode(end.codec, end.a, warm ? end.m : NULL, NULL, end.body,
                                                 aq_codec_bound(end.codec), hat, apart ? other : end.m, &result, NULL),
                                 AQ_OK);
                assert_int_equal(result.flags & AQ_CODED_RAW, raw_wanted ? AQ_CODED_RAW : 0);
                if (raw_wanted) {
                    assert_int_equal(result.flags, AQ_CODED_RAW);
                    assert_int_equal(result.body_bytes, 4 * end.values);
                    assert_memory_equal(end.body, end.a, 4 * end.values);
                    assert_memory_equal(hat, end.a, 4 * end.values);
                    if (apart) assert_memory_equal(old, end.m, message);
                    memcpy(old, end.m, message);
                    memset(end.hat, 0, 4 * end.values);
                    assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, result.flags, end.m,
                                                     end.hat, end.m, NULL),
                                     AQ_OK);
                    assert_memory_equal(end.body, end.hat, 4 * end.values);
                    assert_memory_equal(old, end.m, message);
                }
                aq_free(old);
                aq_free(other);
                end_close(&end);
            }
        }
    }
}

static void test_what_cannot_be_stored_is_sent_raw_and_m_apart_is_untouched(void **state)
{
    (void)state;
    for (uint32_t store = AQ_PRECISION_FP32; store <= AQ_PRECISION_Q2; store++) {
        for (uint32_t group = AQ_PER_TENSOR; group <= AQ_PER_TILE; group++) {
            struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, 1 + (store + group) % 8);
            config.store = (enum aq_codec_precision)store;
            config.group = (enum aq_codec_group)group;
            config.scale = AQ_SCALE_ABSMAX;
            config.scale_format = AQ_SCALE_FP32;
            config.keyframe = AQ_PRECISION_FP32;
            config.hadamard = group == AQ_PER_ROW && store % 2 == 0;
            spoil(config, NAN, group % 3, true);
            spoil(config, INFINITY, (group + 1) % 3, true);
            spoil(config, -INFINITY, (group + 2) % 3, true);
        }
    }
    struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, 8);
    config.scale = AQ_SCALE_ABSMAX;
    config.scale_format = AQ_SCALE_BF16;
    config.keyframe = AQ_PRECISION_FP32;
    for (uint32_t place = 0; place < 3; place++) {
        spoil(config, 80000.0f, place, true); /* beyond the store's fp16 */
        spoil(config, -60000.0f, place, false);
    }
    config.store = AQ_PRECISION_BF16;
    config.keyframe = AQ_PRECISION_BF16;
    spoil(config, 80000.0f, 1, false);
    spoil(config, 3.4e38f, 1, true);
    config.store = AQ_PRECISION_FP32;
    config.keyframe = AQ_PRECISION_FP16; /* the keyframe's own limit; warm, fp32 and a bf16 scale hold it */
    struct end end;
    end_open(&end, &config, 2, 3);
    fill(end.a, end.values, SHAPE_GAUSS, 1e5f, 6);
    assert_int_equal(encode(&end, NULL, NULL).flags, AQ_CODED_RAW);
    assert_int_equal(encode(&end, end.m, NULL).flags, 0);
    end_close(&end);
    config.scale_format = AQ_SCALE_FP16; /* a scale beyond its format */
    end_open(&end, &config, 2, 3);
    fill(end.a, end.values, SHAPE_GAUSS, 1e6f, 6);
    assert_int_equal(encode(&end, end.m, NULL).flags, 0);
    fill(end.a, end.values, SHAPE_GAUSS, 1e11f, 6);
    assert_int_equal(encode(&end, end.m, NULL).flags, AQ_CODED_RAW);
    end_close(&end);
}

static void test_stateless_kinds_send_raw_too(void **state)
{
    (void)state;
    for (uint32_t raw = AQ_PRECISION_FP32; raw <= AQ_PRECISION_BF16; raw++) {
        struct aq_codec_config config = default_of(AQ_CODEC_RAW, 0);
        config.raw = (enum aq_codec_precision)raw;
        spoil(config, NAN, 2, true);
        spoil(config, 70000.0f, 1, raw == AQ_PRECISION_FP16);
    }
    struct aq_codec_config config = default_of(AQ_CODEC_DIRECTQ, 6);
    config.top_k = 0.1f;
    spoil(config, NAN, 1, true);
    config.top_k = 0.0f;
    spoil(config, INFINITY, 0, true);
    spoil(config, 2.0f, 2, false); /* times 2^16 is beyond fp16, but its sign bit means 2^16 more */
    spoil(config, 1e5f, 2, true);  /* beyond that, too */
    config.scale_format = AQ_SCALE_BF16;
    spoil(config, 1e5f, 2, false);
}

/* ---- small values ---- */

static double relative_error(const struct aq_codec_config *config, float size)
{
    struct end end;
    end_open(&end, config, 16, 512);
    fill(end.a, end.values, SHAPE_GAUSS, size, 7);
    double error2 = 0, signal2 = 0;
    (void)encode(&end, NULL, end.hat);
    for (size_t e = 0; e < end.values; e++) {
        error2 += pow((double)end.hat[e] - (double)end.a[e], 2);
        signal2 += pow((double)end.a[e], 2);
    }
    end_close(&end);
    return relative(error2, signal2);
}

static void test_small_gradients_survive_sixteen_bit_scales(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits++) {
        struct aq_codec_config config = default_of(AQ_CODEC_DIRECTQ, bits);
        const double wanted = relative_error(&config, 0.01f);
        assert_true(fabs(relative_error(&config, 1e-7f) / wanted - 1) < 0.02);
        config.prescale_log2 = 0; /* what the prescale is for: fp16 has no such scale */
        assert_true(relative_error(&config, 1e-9f) == 1.0 || relative_error(&config, 1e-9f) > 0.9);
        config.scale_format = AQ_SCALE_BF16;
        assert_true(fabs(relative_error(&config, 1e-9f) / wanted - 1) < 0.03);
        config.scale_format = AQ_SCALE_FP32;
        assert_true(fabs(relative_error(&config, 1e-9f) / wanted - 1) < 0.02);
        assert_true(relative_error(&config, 1e-20f) < 2 * wanted); /* squares underflow: absmax */
        config.scale_format = AQ_SCALE_POW2;
        assert_true(relative_error(&config, 1e-9f) < 1.9 * wanted);
    }
}

static void test_zeros_and_tiniest_values_pass(void **state)
{
    (void)state;
    for (uint32_t format = AQ_SCALE_FP16; format <= AQ_SCALE_POW2; format++) {
        for (uint32_t grid = AQ_GRID_MIDRISE; grid <= AQ_GRID_SIGNED; grid++) {
            struct aq_codec_config config = default_of(AQ_CODEC_DIRECTQ, 5);
            struct end end;
            config.grid = (enum aq_codec_grid)grid;
            config.scale_format = (enum aq_codec_scale_format)format;
            config.scale = AQ_SCALE_AUTO; /* absmax never rounds a power of two down */
            end_open(&end, &config, 3, 65);
            for (float tiny = 0.0f;; tiny = 1e-45f) {
                for (size_t e = 0; e < end.values; e++)
                    end.a[e] = e % 2 ? tiny : -tiny;
                const struct aq_codec_result result = encode(&end, NULL, end.hat);
                assert_int_equal(result.flags, 0);
                for (size_t e = 0; e < end.values; e++)
                    assert_true(fabsf(end.hat[e]) <= 2e-45f);
                if (tiny > 0) break;
            }
            end_close(&end);
        }
    }
}

/* ---- random numbers, top-k ---- */

static void test_noise_is_the_generators_own_in_every_table(void **state)
{
    (void)state;
    static float u[700];
    const struct aq_codec_kernels *all[4];
    const size_t count = tables(all);
    const struct aq_rng_key key = test_key(8);
    static const uint64_t firsts[] = {0, 3, 1024, 4 * UINT64_C(0xfffffff8), (UINT64_C(1) << 40) + 1};
    for (size_t t = 0; t < count; t++) {
        for (size_t f = 0; f < 5; f++) {
            for (size_t n = 1; n < 600; n = n * 3 + 1) {
                all[t]->noise(&key, firsts[f], n, u);
                for (size_t i = 0; i < n; i++)
                    assert_true(u[i] == aq_rng_uniform(&key, firsts[f] + i));
            }
        }
    }
}

static void test_topk_keeps_the_largest_and_no_more(void **state)
{
    (void)state;
    static const float fractions[] = {0.5f, 0.2f, 0.05f, 0.004f, 1e-9f};
    for (size_t f = 0; f < 5; f++) {
        for (int ties = 0; ties < 2; ties++) {
            struct aq_codec_config config = default_of(AQ_CODEC_DIRECTQ, 8);
            struct end end;
            config.top_k = fractions[f];
            config.scale_format = AQ_SCALE_FP32;
            end_open(&end, &config, 11, 123);
            fill(end.a, end.values, SHAPE_LAPLACE, 1.0f, 9);
            if (ties) {
                for (size_t e = 0; e < end.values; e++)
                    end.a[e] = (float)(1 + (e * 7) % 3) * (e % 2 ? 1.0f : -1.0f);
            }
            const struct aq_codec_result result = encode(&end, NULL, end.hat);
            assert_int_equal(result.flags, 0);
            uint64_t kept = 0;
            float least = INFINITY, most = 0;
            for (size_t e = 0; e < end.values; e++) {
                const float size = fabsf(end.a[e]);
                if (end.hat[e] != 0.0f) {
                    kept++;
                    least = size < least ? size : least;
                    assert_true(fabsf(end.hat[e] - end.a[e]) <= 0.03f * 8);
                } else {
                    most = size > most ? size : most;
                }
            }
            assert_int_equal(kept, end.codec->layout.kept);
            assert_true(least >= most);
            end_close(&end);
        }
    }
}

/* ---- bytes from outside ---- */

static enum aq_status decode(struct end *end, size_t bytes, uint32_t flags)
{
    return aq_codec_decode(end->codec, end->body, bytes, flags, end->m, end->hat, end->m, NULL);
}

static void test_bad_frames_are_corrupt(void **state)
{
    (void)state;
    struct end end;
    struct aq_codec_config config = default_of(AQ_CODEC_AQSGD, 3);
    end_open(&end, &config, 5, 40);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 10);
    (void)encode(&end, NULL, NULL);
    fill(end.a, end.values, SHAPE_GAUSS, 1.0f, 11);
    const struct aq_codec_result result = encode(&end, end.m, NULL);
    quiet_begin();
    assert_int_equal(decode(&end, result.body_bytes - 1, 0), AQ_CORRUPT);
    assert_int_equal(decode(&end, result.body_bytes + 1, 0), AQ_CORRUPT);
    assert_int_equal(decode(&end, result.body_bytes, AQ_CODED_KEYFRAME), AQ_CORRUPT);
    assert_int_equal(decode(&end, result.body_bytes, AQ_CODED_RAW), AQ_CORRUPT);
    assert_int_equal(decode(&end, 4 * end.values, AQ_CODED_RAW | AQ_CODED_KEYFRAME), AQ_CORRUPT);
    assert_int_equal(decode(&end, result.body_bytes, 4), AQ_CORRUPT);
    assert_int_equal(aq_codec_decode(end.codec, end.body, result.body_bytes, 0, NULL, end.hat, end.m, NULL), AQ_INVAL);
    assert_int_equal(decode(&end, result.body_bytes, 0), AQ_OK);
    static const uint16_t bad_scales[] = {0x7c00, 0x7e00, 0x8000, 0xbbff, 0xfc00, 0xffff};
    for (size_t i = 0; i < 5; i++) {
        for (size_t row = 0; row < 5; row++) {
            uint8_t keep[2];
            memcpy(keep, end.body + 2 * row, 2);
            memcpy(end.body + 2 * row, &bad_scales[i], 2);
            assert_int_equal(decode(&end, result.body_bytes, 0), AQ_CORRUPT);
            memcpy(end.body + 2 * row, keep, 2);
        }
    }
    const uint16_t largest = 0x7bff, nothing = 0x7c00; /* 65504 added to 65504 is beyond fp16; so is an infinite m */
    for (size_t row = 0; row < 5; row++)
        memcpy(end.body + 2 * row, &largest, 2);
    for (size_t e = 0; e < end.values; e++)
        memcpy(end.m + 2 * e, &largest, 2);
    assert_int_equal(decode(&end, result.body_bytes, 0), AQ_CORRUPT);
    memset(end.body, 0, result.body_bytes);
    memcpy(end.m + 20, &nothing, 2);
    assert_int_equal(decode(&end, result.body_bytes, 0), AQ_CORRUPT);
    quiet_end();
    end_close(&end);
}

/* A fuzzer of the poor: bodies with bytes changed, and bodies of noise, for every kind of body. */
static void test_any_bytes_give_ok_or_corrupt(void **state)
{
    (void)state;
    const struct aq_rng_key key = test_key(20);
    uint64_t at = 0, corrupt = 0, good = 0;
    const struct aq_codec_kernels *all[4];
    const size_t count = tables(all);
    quiet_begin();
    for (uint32_t number = 0; number < 240; number++) {
        struct aq_codec_config config = default_of(number % 2 ? AQ_CODEC_AQSGD : AQ_CODEC_DIRECTQ, 1 + number / 2 % 8);
        config.grid = (enum aq_codec_grid)(1 + number % 3);
        if (config.grid == AQ_GRID_MIDTREAD && config.bits == 1) config.bits = 2;
        config.group = (enum aq_codec_group)(1 + number / 3 % 4);
        config.scale_format = (enum aq_codec_scale_format)(1 + number / 5 % 4);
        config.prescale_log2 = (int32_t)(number % 9) * 16 - 64;
        config.store = (enum aq_codec_precision)(1 + number / 2 % 6);
        config.keyframe = (enum aq_codec_precision)(1 + number / 7 % 4);
        if (config.kind == AQ_CODEC_DIRECTQ && config.group != AQ_PER_CHANNEL) config.top_k = number % 4 ? 0.02f : 0.5f;
        struct end end;
        end_open(&end, &config, 5, 37);
        end.codec->kernels = all[number % count];
        fill(end.a, end.values, SHAPE_GAUSS, 1e-3f, 12);
        const struct aq_codec_result cold = encode(&end, NULL, NULL);
        for (uint32_t trial = 0; trial < 100; trial++) {
            fill(end.a, end.values, SHAPE_GAUSS, 1e-3f, 13);
            struct aq_codec_result result =
                trial % 4 == 0 || config.kind != AQ_CODEC_AQSGD || cold.flags == AQ_CODED_RAW
                    ? encode(&end, NULL, NULL)
                    : encode(&end, end.m, NULL);
            const uint32_t changes = trial % 10 == 0 ? result.body_bytes : 1 + aq_rng_u32(&key, at++) % 4;
            for (uint32_t c = 0; c < changes; c++) {
                const uint32_t where = aq_rng_u32(&key, at++) % result.body_bytes;
                end.body[trial % 10 == 0 ? c : where] = (uint8_t)aq_rng_u32(&key, at++);
            }
            const enum aq_status status = decode(&end, result.body_bytes, result.flags);
            assert_true(status == AQ_OK || status == AQ_CORRUPT);
            corrupt += status == AQ_CORRUPT;
            good += status == AQ_OK;
            end_check(&end);
            if (status == AQ_CORRUPT) (void)encode(&end, NULL, NULL);
        }
        end_close(&end);
    }
    quiet_end();
    assert_true(corrupt > 1000 && good > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_the_recommended),
        cmocka_unit_test(test_check_names_the_field),
        cmocka_unit_test(test_digest_covers_what_decode_reads_and_nothing_else),
        cmocka_unit_test(test_lengths_are_the_formula),
        cmocka_unit_test(test_encode_asks_for_room_and_key),
        cmocka_unit_test(test_open_fails_whole),
        cmocka_unit_test(test_what_cannot_be_stored_is_sent_raw_and_m_apart_is_untouched),
        cmocka_unit_test(test_stateless_kinds_send_raw_too),
        cmocka_unit_test(test_small_gradients_survive_sixteen_bit_scales),
        cmocka_unit_test(test_zeros_and_tiniest_values_pass),
        cmocka_unit_test(test_noise_is_the_generators_own_in_every_table),
        cmocka_unit_test(test_topk_keeps_the_largest_and_no_more),
        cmocka_unit_test(test_bad_frames_are_corrupt),
        cmocka_unit_test(test_any_bytes_give_ok_or_corrupt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
