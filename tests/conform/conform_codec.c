/*
 * conform_codec.c -- what every codec owes, over the whole table of configurations.
 *
 * For every configuration: every table of kernels writes the same body and the same m'; a receiver with any table gets
 * the sender's x^ and m' bit for bit, update after update; lengths are what was promised; nothing beyond them is
 * touched.
 */
#include "codec_common.h"
#include "sample.h"

/* The sender's and receiver's tables change with every update, so that each meets each. */
static void run_edge(const struct aq_codec_config *config, uint32_t rows, uint32_t columns, uint32_t updates)
{
    const struct aq_codec_kernels *all[4];
    const size_t count = tables(all);
    struct end sender, receiver;
    end_open(&sender, config, rows, columns);
    end_open(&receiver, config, rows, columns);
    const size_t values = sender.values, message = aq_codec_message_bytes(sender.codec);
    void *memory = NULL;
    assert_int_equal(aq_alloc(4 * values + 16, &memory), AQ_OK);
    float *drift = memory;
    fill(sender.a, values, SHAPE_GAUSS, 3.0f, 1);
    for (uint32_t u = 0; u < updates; u++) {
        struct aq_codec_result result;
        const struct aq_rng_key key = test_key(1000 + u);
        const bool keyframe = message > 0 && u == 0;
        sender.codec->kernels = all[u % count];
        receiver.codec->kernels = all[(u + u / count + 1) % count];
        fill(drift, values, u % 3 == 0 ? SHAPE_STUDENT3 : SHAPE_LAPLACE, 0.3f, 2 + u);
        const float common = u > 0 && config->rounding == AQ_ROUND_HALF_DITHER ? 1.0f : 0.0f;
        for (size_t e = 0; e < values; e++)
            sender.a[e] += drift[e] + common * sinf((float)(e % columns));
        memset(sender.body, 0xA5, aq_codec_bound(sender.codec));
        assert_int_equal(aq_codec_encode(sender.codec, sender.a, keyframe ? NULL : sender.m, &key, sender.body,
                                         aq_codec_bound(sender.codec), u % 2 == 0 ? sender.hat : NULL, sender.m,
                                         &result, NULL),
                         AQ_OK);
        assert_int_equal(result.flags, keyframe ? AQ_CODED_KEYFRAME : 0);
        const bool varies = aq_codec_varies(sender.codec, keyframe);
        if (varies)
            assert_in_range(result.body_bytes, 1, aq_codec_bound(sender.codec));
        else
            assert_int_equal(result.body_bytes, aq_codec_body_bytes(sender.codec, keyframe));
        for (size_t i = result.body_bytes; !varies && i < aq_codec_bound(sender.codec); i++)
            assert_int_equal(sender.body[i], 0xA5);
        assert_int_equal(aq_codec_decode(receiver.codec, sender.body, result.body_bytes, result.flags,
                                         keyframe ? NULL : receiver.m, receiver.hat, receiver.m, NULL),
                         AQ_OK);
        if (u % 2 == 0) assert_memory_equal(sender.hat, receiver.hat, 4 * values);
        if (message > 0) assert_memory_equal(sender.m, receiver.m, message);
        end_check(&sender);
        end_check(&receiver);
    }
    aq_free(memory);
    end_close(&sender);
    end_close(&receiver);
}

/* All tables make the same body out of the same (a, m, key), and the in-place hat is the other one's. */
static void run_tables(const struct aq_codec_config *config, uint32_t rows, uint32_t columns)
{
    const struct aq_codec_kernels *all[4];
    const size_t count = tables(all);
    const struct aq_rng_key key = test_key(5);
    struct end first, other;
    struct aq_codec_result result, again;
    end_open(&first, config, rows, columns);
    end_open(&other, config, rows, columns);
    first.codec->kernels = all[0];
    fill(first.a, first.values, SHAPE_LAPLACE, 1.0f, 6);
    const size_t message = aq_codec_message_bytes(first.codec), bound = aq_codec_bound(first.codec);
    void *memory = NULL;
    assert_int_equal(aq_alloc(message + 1, &memory), AQ_OK);
    for (int warm = 0; warm < 2; warm++) {
        for (size_t t = 0; t < count; t++) {
            struct end *end = t == 0 ? &first : &other;
            other.codec->kernels = all[t];
            fill(end->a, end->values, SHAPE_LAPLACE, 1.0f, 6 + (uint64_t)warm);
            if (t > 0) memcpy(other.m, memory, message);
            if (t == 0) memcpy(memory, first.m, message);
            float *hat = t == 0 ? end->hat : end->a;
            assert_int_equal(aq_codec_encode(end->codec, end->a, warm ? end->m : NULL, &key, end->body, bound, hat,
                                             end->m, t == 0 ? &result : &again, NULL),
                             AQ_OK);
            if (t == 0) continue;
            assert_int_equal(again.body_bytes, result.body_bytes);
            assert_memory_equal(first.body, other.body, result.body_bytes);
            assert_memory_equal(first.m, other.m, message);
            assert_memory_equal(first.hat, other.a, 4 * first.values);
            assert_true(fabs(again.sum_error2 - result.sum_error2) <= 1e-5 * result.sum_error2 + 1e-30);
            assert_true(fabs(again.sum_a2 - result.sum_a2) <= 1e-5 * result.sum_a2 + 1e-30);
            assert_true(again.sum_a == result.sum_a && again.sum_delta2 == result.sum_delta2);
        }
    }
    aq_free(memory);
    end_close(&first);
    end_close(&other);
}

/* How a keyframe may be coded. */
static const enum aq_codec_precision keyframes[] = {AQ_PRECISION_FP32, AQ_PRECISION_FP16, AQ_PRECISION_BF16,
                                                    AQ_PRECISION_Q8, AQ_PRECISION_EC};

static struct aq_codec_config config_of(enum aq_codec_kind kind, uint32_t bits, uint32_t number)
{
    static const uint32_t tiles[] = {32, 64, 128};
    struct aq_codec_config config;
    aq_codec_config_default(&config, kind, bits);
    config.grid = (enum aq_codec_grid)(1 + number % 3);
    config.group = (enum aq_codec_group)(1 + number / 3 % 4);
    config.tile = tiles[number / 12 % 3];
    config.hadamard = number / 36 % 2 == 1;
    /* The rest changes along, each with its own period, so that all pairs come. */
    config.scale = (enum aq_codec_scale)(1 + (number + bits) % 4);
    config.scale_format = (enum aq_codec_scale_format)(1 + (number / 5 + bits) % 4);
    config.rounding = (enum aq_codec_rounding)(1 + number / 7 % 2);
    config.prescale_log2 = (int32_t)(number % 5) * 4 - 8;
    config.keyframe = keyframes[(number / 3 + bits) % 5];
    config.store_group = (number + bits) % 2 == 0 ? AQ_PER_ROW : AQ_PER_CHANNEL;
    return config;
}

static const uint32_t shapes[][2] = {{9, 67}, {1, 1}, {3, 128}, {17, 33}, {2, 200}, {8, 16}, {1, 1000}, {70, 3}};

static void test_aqsgd_invariant_holds_for_every_config_and_store(void **state)
{
    (void)state;
    uint32_t runs = 0;
    for (uint32_t store = AQ_PRECISION_FP32; store <= AQ_PRECISION_Q2; store++) {
        for (uint32_t bits = 1; bits <= 8; bits++) {
            for (uint32_t number = 0; number < 72; number++) {
                struct aq_codec_config config = config_of(AQ_CODEC_AQSGD, bits, number);
                config.store = (enum aq_codec_precision)store;
                if (config.grid == AQ_GRID_MIDTREAD && bits == 1) continue;
                if ((number / 3 + number + bits) % sample_every(3) != 0) continue;
                const uint32_t *shape = shapes[runs % 8];
                /* One bit at random over a store of two does not contract: soon the sample is sent raw, as it should
                 * be. */
                const bool grows = bits == 1 && store == AQ_PRECISION_Q2 && config.rounding == AQ_ROUND_STOCHASTIC;
                run_edge(&config, shape[0], shape[1], grows ? 4 : number < 12 ? 30 : 6);
                runs++;
            }
        }
    }
    assert_true(runs > 3000 / sample_every(3));
}

static void test_directq_decodes_as_encoded(void **state)
{
    (void)state;
    static const float fractions[] = {0.0f, 0.2f, 0.9f, 0.03f, 0.001f};
    uint32_t runs = 0;
    for (uint32_t bits = 1; bits <= 8; bits++) {
        for (uint32_t number = 0; number < 144; number++) {
            struct aq_codec_config config = config_of(AQ_CODEC_DIRECTQ, bits, number);
            config.top_k = fractions[number / 2 % 5];
            if (config.grid == AQ_GRID_MIDTREAD && bits == 1) continue;
            if (config.hadamard || config.group == AQ_PER_CHANNEL) config.top_k = 1.0f;
            const uint32_t *shape = shapes[runs++ % 8];
            run_edge(&config, shape[0], shape[1], 4);
        }
    }
}

/* Every row of codecs.def with every store and none, as it is recommended: what a codec owes that has just come. */
static void test_every_codec_of_the_table(void **state)
{
    (void)state;
    enum aq_codec_kind kind;
    for (uint32_t i = 0; aq_codec_kind_at(i, &kind); i++) {
        const struct aq_codec_about *about = aq_codec_about(kind);
        for (uint32_t store = AQ_PRECISION_NONE; store <= AQ_PRECISION_Q2; store++) {
            struct aq_codec_config config;
            aq_codec_config_default(&config, kind, 3);
            config.prescale_log2 = 0; /* these values are no gradients */
            config.store = (enum aq_codec_precision)store;
            if (store == AQ_PRECISION_NONE && about->activations) continue;
            for (size_t s = 0; s < 8; s++) {
                config.store_group = s % 2 == 0 ? AQ_PER_ROW : AQ_PER_CHANNEL;
                run_edge(&config, shapes[s][0], shapes[s][1], 12);
                run_tables(&config, shapes[s][0], shapes[s][1]);
            }
            run_edge(&config, 203, 401, 3);
        }
        for (uint32_t keyframe = 0; keyframe < 5; keyframe++) {
            struct aq_codec_config config;
            aq_codec_config_default(&config, kind, 3);
            config.prescale_log2 = 0; /* these values are no gradients */
            config.keyframe = keyframes[keyframe];
            run_edge(&config, 17, 33, 6);
        }
    }
}

/* Rates beyond what a table alone codes, and errors, at both ends of every shape. */
static void test_every_rate_and_error_of_ec(void **state)
{
    (void)state;
    static const float rates[] = {1.0f, 3.5f, 3.75f, 5.0f, 8.0f}, errors[] = {0.3f, 0.05f, 0.004f};
    for (uint32_t number = 0; number < 24; number++)
        for (size_t s = number % sample_every(2); s < 8; s += sample_every(2)) {
            struct aq_codec_config config;
            aq_codec_config_default(&config, AQ_CODEC_EC, 3);
            config.rate = rates[number % 8 % 5];
            config.error = number % 8 < 5 ? 0.0f : errors[number % 8 - 5];
            config.rounding = (enum aq_codec_rounding)(AQ_ROUND_NEAREST + number / 8);
            config.store = s % 3 == 0 ? AQ_PRECISION_NONE : s % 3 == 1 ? AQ_PRECISION_FP16 : AQ_PRECISION_Q8;
            config.keyframe = AQ_PRECISION_EC;
            config.keyframe_rate = rates[(number + 2) % 5];
            run_edge(&config, shapes[s][0], shapes[s][1], 5);
            run_tables(&config, shapes[s][0], shapes[s][1]);
            if (s == 0) run_edge(&config, 203, 401, 3);
        }
}

/* A body of zeroes is no change, to the bit: what an edge decodes of a sample that never changes (edge_cached.c). */
static void no_change(const struct aq_codec_config *config, uint32_t rows, uint32_t columns)
{
    struct end end;
    struct aq_codec_result result;
    void *memory = NULL;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_ROUND, 2, 3);
    end_open(&end, config, rows, columns);
    const size_t bytes = aq_codec_body_bytes(end.codec, false), message = aq_codec_message_bytes(end.codec);
    assert_int_equal(aq_alloc(bytes + message, &memory), AQ_OK);
    fill(end.a, end.values, SHAPE_LAPLACE, 1.0f, 9);
    end.a[0] = -0.0f;
    assert_int_equal(
        aq_codec_encode(end.codec, end.a, NULL, &key, end.body, aq_codec_bound(end.codec), NULL, end.m, &result, NULL),
        AQ_OK);
    uint8_t *const after = (uint8_t *)memory + bytes;
    assert_int_equal(aq_codec_decode(end.codec, memory, bytes, 0, end.m, end.hat, after, NULL), AQ_OK);
    const size_t sign = config->hadamard ? 4 : 0; /* the first values: a rotation makes +0 of -0 */
    assert_memory_equal(after + sign, (const uint8_t *)end.m + sign, message - sign);
    if (config->store == AQ_PRECISION_FP32)
        assert_memory_equal((const uint8_t *)end.hat + sign, (const uint8_t *)end.m + sign, message - sign);
    aq_free(memory);
    end_close(&end);
}

static void test_body_of_zeroes_changes_nothing(void **state)
{
    (void)state;
    enum aq_codec_kind kind;
    for (uint32_t i = 0; aq_codec_kind_at(i, &kind); i++)
        for (uint32_t store = AQ_PRECISION_FP32; store <= AQ_PRECISION_BF16; store++)
            for (uint32_t number = 0; number < 8 && !aq_codec_about(kind)->stateless; number++) {
                struct aq_codec_config config, kept;
                aq_codec_config_default(&config, kind, 3);
                config.store = config.keyframe = (enum aq_codec_precision)store;
                assert_true(aq_codec_config_kept(&config, &kept));
                assert_int_equal(kept.store, store);
                no_change(&kept, shapes[number][0] + 1, shapes[number][1] + 1);
            }
}

/* Their settings tell them apart, their texts begin with their names, and none is there twice. */
static void test_codecs_of_the_table_are_told_apart(void **state)
{
    (void)state;
    enum aq_codec_kind kind, other;
    for (uint32_t i = 0; aq_codec_kind_at(i, &kind); i++) {
        char text[160];
        struct aq_codec_config config, theirs;
        const struct aq_codec_about *about = aq_codec_about(kind);
        aq_codec_config_default(&config, kind, 4);
        aq_codec_config_text(&config, text, sizeof text);
        assert_int_equal(strncmp(text, about->name, strlen(about->name)), 0);
        for (uint32_t j = 0; j < i && aq_codec_kind_at(j, &other); j++) {
            aq_codec_config_default(&theirs, other, 4);
            assert_true(aq_codec_config_digest(&config) != aq_codec_config_digest(&theirs));
            assert_true(kind != other && strcmp(about->name, aq_codec_about(other)->name) != 0);
        }
    }
    assert_false(aq_codec_about(aq_codec_kind_usual(true))->activations);
}

static void test_raw_is_the_rounding_itself(void **state)
{
    (void)state;
    for (uint32_t raw = AQ_PRECISION_FP32; raw <= AQ_PRECISION_BF16; raw++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, AQ_CODEC_RAW, 0);
        config.raw = (enum aq_codec_precision)raw;
        for (size_t s = 0; s < 8; s++) {
            run_edge(&config, shapes[s][0], shapes[s][1], 16);
            run_tables(&config, shapes[s][0], shapes[s][1]);
        }
    }
}

static void test_every_table_writes_the_same_body(void **state)
{
    (void)state;
    uint32_t runs = 0;
    for (uint32_t kind = AQ_CODEC_DIRECTQ; kind <= AQ_CODEC_AQSGD; kind++) {
        for (uint32_t bits = 1; bits <= 8; bits++) {
            for (uint32_t number = 0; number < 72; number++) {
                struct aq_codec_config config = config_of((enum aq_codec_kind)kind, bits, number);
                config.store = (enum aq_codec_precision)(1 + runs % 6);
                if (config.grid == AQ_GRID_MIDTREAD && bits == 1) continue;
                if ((number / 3 + number + bits) % sample_every(3) != 0) continue;
                const uint32_t *shape = shapes[runs++ * 5 / 3 % 8];
                run_tables(&config, shape[0], shape[1]);
            }
        }
    }
}

/* Large enough for several pieces, with rows that end inside a byte. */
static void test_pieces_join_without_a_seam(void **state)
{
    (void)state;
    for (uint32_t group = AQ_PER_TENSOR; group <= AQ_PER_TILE; group++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, AQ_CODEC_AQSGD, group == AQ_PER_ROW ? 3 : 5);
        config.group = (enum aq_codec_group)group;
        config.scale = group == AQ_PER_ROW ? AQ_SCALE_AUTO : AQ_SCALE_SEARCH;
        config.store = group == AQ_PER_TENSOR ? AQ_PRECISION_Q2 : AQ_PRECISION_FP16;
        run_edge(&config, 203, 401, 3);
        run_tables(&config, 203, 401);
    }
}

/* Pieces on the threads of a pool write what one thread writes. */
static void test_a_pool_writes_the_same_bytes(void **state)
{
    (void)state;
    const struct aq_device_config cpu = {.kind = "cpu", .threads = 4};
    struct aq_device *device;
    assert_int_equal(aq_device_open(&cpu, &device), AQ_OK);
    for (uint32_t number = 0; number < 24; number++) {
        struct aq_codec_config config = config_of(AQ_CODEC_AQSGD, 1 + number % 8, number);
        struct end alone, pooled;
        struct aq_codec *codec;
        struct aq_codec_result result[2];
        const struct aq_rng_key key = test_key(40);
        if (config.grid == AQ_GRID_MIDTREAD && config.bits == 1) continue;
        config.store = (enum aq_codec_precision)(1 + number % 6);
        end_open(&alone, &config, 257, 301);
        end_open(&pooled, &config, 257, 301);
        assert_int_equal(aq_codec_open(device, &config, 257, 301, &codec), AQ_OK);
        assert_true(codec->pieces > 1);
        const size_t bound = aq_codec_bound(codec), message = aq_codec_message_bytes(codec);
        for (int warm = 0; warm < 2; warm++) {
            fill(alone.a, alone.values, SHAPE_LAPLACE, 1.0f, 50 + (uint64_t)warm);
            assert_int_equal(aq_codec_encode(alone.codec, alone.a, warm ? alone.m : NULL, &key, alone.body, bound,
                                             alone.hat, alone.m, &result[0], NULL),
                             AQ_OK);
            assert_int_equal(aq_codec_encode(codec, alone.a, warm ? pooled.m : NULL, &key, pooled.body, bound,
                                             pooled.hat, pooled.m, &result[1], NULL),
                             AQ_OK);
            assert_memory_equal(alone.body, pooled.body, result[0].body_bytes);
            assert_memory_equal(alone.hat, pooled.hat, 4 * alone.values);
            assert_memory_equal(alone.m, pooled.m, message);
            assert_true(result[0].sum_error2 == result[1].sum_error2 && result[0].sum_a == result[1].sum_a);
        }
        assert_int_equal(
            aq_codec_decode(codec, pooled.body, result[1].body_bytes, 0, pooled.m, pooled.hat, pooled.m, NULL), AQ_OK);
        assert_int_equal(
            aq_codec_decode(alone.codec, pooled.body, result[1].body_bytes, 0, alone.m, alone.hat, alone.m, NULL),
            AQ_OK);
        assert_memory_equal(alone.hat, pooled.hat, 4 * alone.values);
        assert_memory_equal(alone.m, pooled.m, message);
        aq_codec_close(codec);
        end_close(&alone);
        end_close(&pooled);
    }
    aq_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aqsgd_invariant_holds_for_every_config_and_store),
        cmocka_unit_test(test_directq_decodes_as_encoded),
        cmocka_unit_test(test_every_codec_of_the_table),
        cmocka_unit_test(test_every_rate_and_error_of_ec),
        cmocka_unit_test(test_body_of_zeroes_changes_nothing),
        cmocka_unit_test(test_codecs_of_the_table_are_told_apart),
        cmocka_unit_test(test_raw_is_the_rounding_itself),
        cmocka_unit_test(test_every_table_writes_the_same_body),
        cmocka_unit_test(test_pieces_join_without_a_seam),
        cmocka_unit_test(test_a_pool_writes_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
