/*
 * test_cuda_codec.c -- the GPU's codec against the CPU's truth, its kernels under the launch emulation; or, as
 * test_codec_gpu.c, on a device of kind cuda.
 *
 * One edge, four ends: a sender and a receiver of each kind. The two senders must write the same body, and all four
 * must hold the same x^ and the same message, epoch after epoch, whatever the order in which blocks and threads run.
 */
#include <stdlib.h>

#include "codec_common.h"
#include "codec_member.h"
#include "device_ops.h"

enum { SAMPLES = 3, CANARY_BYTES = 64 };

static struct aq_device *device;

#ifdef AQ_CODEC_ON_GPU
static const char KIND[] = "cuda";

static enum aq_status kernels_take(struct aq_codec *codec)
{
    return aq_codec_take_device(codec);
}

/* Threads of a GPU come in an order of their own. */
static void order(uint64_t seed)
{
    (void)seed;
}

static void allocate_untouched(void)
{
}
#else
#include "cuda_host_test.h"

static const char KIND[] = "cpu";

static void *no_stream(struct aq_device *of, struct aq_stream *stream)
{
    (void)of;
    return stream;
}

static const struct aq_codec_launchers emulated = {
    .encode = aq_cuda_codec_encode, .decode = aq_cuda_codec_decode, .stream_of = no_stream};

static enum aq_status kernels_take(struct aq_codec *codec)
{
    return aq_codec_remote_open(codec, &emulated);
}

static void order(uint64_t seed)
{
    assert_string_equal(cuda_host_error(), "");
    cuda_host_seed(seed);
}

static enum aq_status map_untouched(struct aq_device *of, enum aq_memory_kind kind, size_t bytes, void **out)
{
    (void)of;
    (void)kind;
    return aq_map_untouched(bytes, out);
}

/* A codec's scratch memory is 12 MiB and more, of which few samples touch little. */
static void allocate_untouched(void)
{
    static struct aq_device_ops ops;
    ops = *device->ops;
    ops.alloc = map_untouched;
    device->ops = &ops;
}
#endif

/* Memory that host and kernels see, with nothing in it. */
static void *shared(size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_PINNED, bytes, &memory), AQ_OK);
    return memory;
}

/* Memory for the samples of one end; `shift` bytes off the alignment of aq_alloc where bodies are, and canaries. */
struct side {
    struct aq_codec *codec;
    size_t values, bound, message;
    float *a[SAMPLES], *hat[SAMPLES];
    uint8_t *body[SAMPLES], *m[SAMPLES], *m_next[SAMPLES];
    struct aq_codec_result *results;
    uint32_t *corrupt;
    void *memory;
    size_t memory_bytes;
};

static uint8_t *take(uint8_t **at, size_t bytes, size_t shift)
{
    uint8_t *out = *at + shift;
    *at += (bytes + shift + CANARY_BYTES + 63) / 64 * 64;
    return out;
}

static void side_open(struct side *side, const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                      bool gpu, size_t shift)
{
    assert_int_equal(aq_codec_open(gpu ? device : NULL, config, rows, columns, &side->codec), AQ_OK);
    if (gpu) assert_int_equal(kernels_take(side->codec), AQ_OK);
    side->codec->kernels = aq_codec_kernels_named("plain");
    side->values = (size_t)rows * columns;
    side->bound = aq_codec_bound(side->codec);
    side->message = aq_codec_message_bytes(side->codec);
    const size_t each = 8 * side->values + side->bound + 2 * side->message + 5 * (2 * CANARY_BYTES + 64);
    side->memory_bytes = SAMPLES * (each + sizeof *side->results + sizeof *side->corrupt) + 4 * CANARY_BYTES;
    side->memory = shared(side->memory_bytes);
    memset(side->memory, 0xA5, side->memory_bytes);
    uint8_t *at = side->memory;
    side->results = (struct aq_codec_result *)(void *)take(&at, SAMPLES * sizeof *side->results, 0);
    side->corrupt = (uint32_t *)(void *)take(&at, SAMPLES * sizeof *side->corrupt, 0);
    for (int i = 0; i < SAMPLES; i++) {
        side->a[i] = (float *)(void *)take(&at, 4 * side->values, 0);
        side->hat[i] = (float *)(void *)take(&at, 4 * side->values, 0);
        side->body[i] = take(&at, side->bound, shift);
        side->m[i] = take(&at, side->message, 0);
        side->m_next[i] = take(&at, side->message, 0);
    }
}

static void side_close(struct side *side)
{
    aq_codec_close(side->codec);
    aq_device_free(device, AQ_MEMORY_PINNED, side->memory, side->memory_bytes);
}

static void alive(const void *memory, size_t bytes)
{
    for (size_t i = 0; i < CANARY_BYTES / 2; i++)
        assert_int_equal(((const uint8_t *)memory)[bytes + i], 0xA5);
}

static void side_check(const struct side *side)
{
    for (int i = 0; i < SAMPLES; i++) {
        alive(side->a[i], 4 * side->values);
        alive(side->hat[i], 4 * side->values);
        alive(side->body[i], side->bound);
        alive(side->m[i], side->message);
        alive(side->m_next[i], side->message);
    }
}

/* m_next becomes m. */
static void side_turn(struct side *side)
{
    for (int i = 0; i < SAMPLES; i++) {
        uint8_t *m = side->m[i];
        side->m[i] = side->m_next[i];
        side->m_next[i] = m;
    }
}

static void near(double x, double y, double scale)
{
    assert_true(fabs(x - y) <= 2e-5 * scale + 1e-30);
}

static void same_result(const struct aq_codec_result *cpu, const struct aq_codec_result *gpu)
{
    assert_int_equal(cpu->body_bytes, gpu->body_bytes);
    assert_int_equal(cpu->flags, gpu->flags);
    assert_int_equal(cpu->raw_reason, gpu->raw_reason);
    assert_memory_equal(&cpu->raw_peak, &gpu->raw_peak, sizeof cpu->raw_peak);
    if (cpu->flags == AQ_CODED_RAW) return;
    near(cpu->sum_a, gpu->sum_a, sqrt(cpu->sum_a2 * 1e6) + fabs(cpu->sum_a));
    near(cpu->sum_a2, gpu->sum_a2, cpu->sum_a2);
    near(cpu->sum_delta2, gpu->sum_delta2, cpu->sum_delta2);
    near(cpu->sum_error2, gpu->sum_error2, cpu->sum_error2);
    if (cpu->sum_stored2 == cpu->sum_error2) /* nothing is rounded after it */
        near(cpu->sum_stored2, gpu->sum_stored2, cpu->sum_stored2);
    else
        assert_memory_equal(&cpu->sum_stored2, &gpu->sum_stored2, sizeof cpu->sum_stored2);
}

/* What one epoch asks of the codec; in_place: m' where m was. */
struct epoch {
    bool cold[SAMPLES];
    bool in_place, hat;
    struct aq_rng_key keys[SAMPLES];
};

static void encode(struct side *side, const struct epoch *epoch, struct aq_codec_result *results)
{
    struct aq_codec_sample samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        memset(side->body[i], 0xA5, side->bound);
        samples[i] = (struct aq_codec_sample){.a = side->a[i],
                                              .m = epoch->cold[i] ? NULL : side->m[i],
                                              .key = &epoch->keys[i],
                                              .body = side->body[i],
                                              .hat = epoch->hat ? side->hat[i] : NULL,
                                              .m_out = epoch->in_place ? side->m[i] : side->m_next[i]};
    }
    assert_int_equal(aq_codec_encode_batch(side->codec, samples, SAMPLES, side->results, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    memcpy(results, side->results, SAMPLES * sizeof *results);
}

static void decode(struct side *side, uint8_t *const bodies[], const struct epoch *epoch,
                   const struct aq_codec_result *results)
{
    struct aq_codec_sample samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        samples[i] = (struct aq_codec_sample){.m = epoch->cold[i] ? NULL : side->m[i],
                                              .body = bodies[i],
                                              .body_bytes = results[i].body_bytes,
                                              .flags = results[i].flags,
                                              .hat = side->hat[i],
                                              .m_out = epoch->in_place ? side->m[i] : side->m_next[i]};
    assert_int_equal(aq_codec_decode_batch(side->codec, samples, SAMPLES, side->corrupt, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    for (int i = 0; i < SAMPLES; i++)
        assert_int_equal(side->corrupt[i], 0);
}

enum { CPU_SENDER, GPU_SENDER, CPU_RECEIVER, GPU_RECEIVER, ENDS };

/* The activations of an epoch, the same at both senders. */
/* `common`: what all rows have of it beside. */
static void drift(struct side ends[ENDS], uint32_t u, float scale, float common, uint32_t columns)
{
    struct side *cpu = &ends[CPU_SENDER];
    for (uint32_t i = 0; i < SAMPLES; i++) {
        float *change = ends[GPU_SENDER].a[i]; /* scratch for a moment */
        fill(change, cpu->values, u % 3 == 0 ? SHAPE_STUDENT3 : SHAPE_LAPLACE, scale, 100 * u + i);
        for (size_t e = 0; e < cpu->values; e++)
            cpu->a[i][e] = u == 0 ? 10.0f * change[e]
                                  : cpu->a[i][e] + change[e] + common * sinf((float)(e % columns));
        memcpy(ends[GPU_SENDER].a[i], cpu->a[i], 4 * cpu->values);
    }
}

static void compare(const struct side ends[ENDS], const struct epoch *epoch, const struct aq_codec_result *results)
{
    const struct side *truth = &ends[CPU_SENDER];
    for (int i = 0; i < SAMPLES; i++) {
        const bool varies = aq_codec_varies(truth->codec, epoch->cold[i]); /* what is behind is nobody's, then */
        assert_memory_equal(truth->body[i], ends[GPU_SENDER].body[i], varies ? results[i].body_bytes : truth->bound);
        for (int end = GPU_SENDER; end < ENDS; end++) {
            const uint8_t *m = epoch->in_place ? ends[end].m[i] : ends[end].m_next[i];
            assert_memory_equal(epoch->in_place ? truth->m[i] : truth->m_next[i], m, truth->message);
        }
        assert_memory_equal(ends[CPU_RECEIVER].hat[i], ends[GPU_RECEIVER].hat[i], 4 * truth->values);
        if (epoch->hat && results[i].flags != AQ_CODED_RAW) {
            assert_memory_equal(truth->hat[i], ends[GPU_SENDER].hat[i], 4 * truth->values);
            assert_memory_equal(truth->hat[i], ends[CPU_RECEIVER].hat[i], 4 * truth->values);
        }
    }
    for (int end = 0; end < ENDS; end++)
        side_check(&ends[end]);
}

static void run_edge(const struct aq_codec_config *config, uint32_t rows, uint32_t columns, uint32_t epochs,
                     size_t shift)
{
    struct side ends[ENDS];
    struct aq_codec_result cpu[SAMPLES], gpu[SAMPLES];
    for (int end = 0; end < ENDS; end++)
        side_open(&ends[end], config, rows, columns, end == GPU_SENDER || end == GPU_RECEIVER, shift);
    for (uint32_t u = 0; u < epochs; u++) {
        struct epoch epoch = {.in_place = u % 2 == 0, .hat = u % 3 != 1};
        for (uint32_t i = 0; i < SAMPLES; i++) {
            epoch.keys[i] = test_key(1000 + 10 * u + i);
            epoch.cold[i] = u == 0 || (u == 2 && i == 1); /* a cold one among warm ones */
        }
        order(u);
        drift(ends, u, config->prescale_log2 > 8 ? 3e-5f : 0.3f,
              config->rounding == AQ_ROUND_HALF_DITHER ? 1.0f : 0.0f, columns);
        encode(&ends[CPU_SENDER], &epoch, cpu);
        encode(&ends[GPU_SENDER], &epoch, gpu);
        for (int i = 0; i < SAMPLES; i++) {
            same_result(&cpu[i], &gpu[i]);
            assert_int_equal(cpu[i].flags & AQ_CODED_RAW, 0);
        }
        decode(&ends[CPU_RECEIVER], ends[GPU_SENDER].body, &epoch, gpu);
        decode(&ends[GPU_RECEIVER], ends[CPU_SENDER].body, &epoch, cpu);
        compare(ends, &epoch, cpu);
        for (int end = 0; end < ENDS && !epoch.in_place; end++)
            side_turn(&ends[end]);
    }
    for (int end = 0; end < ENDS; end++)
        side_close(&ends[end]);
    order(0);
}

/* As conform_codec.c walks them: each setting with a period of its own, so that all pairs come. */
static struct aq_codec_config config_of(enum aq_codec_kind kind, uint32_t bits, uint32_t number)
{
    static const uint32_t tiles[] = {32, 64, 128};
    struct aq_codec_config config;
    aq_codec_config_default(&config, kind, bits);
    config.grid = (enum aq_codec_grid)(1 + number % 3);
    if (bits == 1 && config.grid == AQ_GRID_MIDTREAD) config.grid = AQ_GRID_MIDRISE;
    config.group = (enum aq_codec_group)(1 + number / 3 % 4);
    config.tile = tiles[number / 12 % 3];
    config.hadamard = number / 36 % 2 == 1;
    config.scale = (enum aq_codec_scale)(1 + (number + bits) % 4);
    config.scale_format = (enum aq_codec_scale_format)(1 + (number / 5 + bits) % 4);
    config.rounding = (enum aq_codec_rounding)(1 + number / 7 % 2);
    config.prescale_log2 = (int32_t)(number % 5) * 4 - 8;
    config.keyframe = (enum aq_codec_precision)(1 + (number / 3 + bits) % 4);
    config.store_group = (number + bits) % 2 == 0 ? AQ_PER_ROW : AQ_PER_CHANNEL;
    return config;
}

/* Rows and columns: whole units and not, one warp a row and several, one unit a thread and seven. */
static const uint32_t shapes[][2] = {{9, 64}, {9, 67},  {1, 1},  {3, 128}, {17, 33},  {2, 200},  {8, 16},   {5, 264},
                                     {70, 3}, {4, 520}, {6, 40}, {2, 776}, {1, 1000}, {2, 1608}, {1, 2056}, {3, 8}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Of the configurations one in so many; coprime to the periods above, so that every value of every setting comes. */
static uint32_t stride = 47;

static const uint32_t *shape_of(uint32_t run)
{
    return shapes[(run / stride / 8 + run / 576) % SHAPES];
}

static void test_aqsgd_has_the_bits_of_the_cpu_in_every_config(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 8 * 72 * 6; run += stride) {
        struct aq_codec_config config = config_of(AQ_CODEC_AQSGD, 1 + run % 8, run / 8 % 72);
        config.store = (enum aq_codec_precision)(1 + run / 576);
        run_edge(&config, shape_of(run)[0], shape_of(run)[1], 4, run % 5 == 0 ? 3 : 0);
    }
}

/* Every row of codecs.def, with every store and none, as it is recommended. */
static void test_every_codec_of_the_table_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    enum aq_codec_kind kind;
    for (uint32_t i = 0; aq_codec_kind_at(i, &kind); i++)
        for (uint32_t store = AQ_PRECISION_NONE; store <= AQ_PRECISION_Q2; store++) {
            struct aq_codec_config config;
            aq_codec_config_default(&config, kind, 3);
            config.prescale_log2 = 0;
            config.store = (enum aq_codec_precision)store;
            if (store == AQ_PRECISION_NONE && aq_codec_about(kind)->activations) continue;
            if (aq_codec_member_of(kind)->on_host) continue; /* no kernels: codec_staged.c */
            const uint32_t *shape = shapes[(i + 2 * store) % SHAPES];
            run_edge(&config, shape[0], shape[1], 3, store % 2);
            config.keyframe = AQ_PRECISION_EC;
            run_edge(&config, 11, 40, 3, 1);
            config.store_group = AQ_PER_CHANNEL;
            run_edge(&config, 5, 40, 2, 0);
            run_edge(&config, 11, 33, 2, 0);
        }
}

/* Rates with and without cells, errors, means of channels, more than one chunk, rows that are not looked at. */
static void test_every_rate_and_error_of_ec_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const float rates[] = {1.0f, 2.5f, 3.5f, 4.0f, 8.0f}, errors[] = {0.3f, 0.05f, 0.004f};
    for (uint32_t number = 0; number < 24; number++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, AQ_CODEC_EC, 3);
        config.rate = rates[number % 8 % 5];
        config.error = number % 8 < 5 ? 0.0f : errors[number % 8 - 5];
        config.rounding = (enum aq_codec_rounding)(AQ_ROUND_NEAREST + number / 8);
        config.store = number % 3 == 2 ? AQ_PRECISION_NONE : number % 3 == 1 ? AQ_PRECISION_FP32 : AQ_PRECISION_FP16;
        config.keyframe = AQ_PRECISION_EC;
        config.keyframe_rate = rates[(number + 2) % 5];
        run_edge(&config, shapes[number % 8][0], shapes[number % 8][1], 3, number % 4);
        if (number % 3 == 0) run_edge(&config, 211, 329, 2, 0);
    }
}

/* Few values that are not zero, rows of unlike size (coded twice), and a row beyond 2^24 steps that no look sees. */
static void unlike(float *x, uint32_t rows, uint32_t columns, uint32_t number)
{
    const size_t values = (size_t)rows * columns;
    fill(x, values, SHAPE_GAUSS, 1.0f, 300 + number);
    for (size_t e = 0; e < values; e++) {
        const uint32_t row = (uint32_t)(e / columns);
        if (number == 0 && e != values / 2) x[e] = 0.0f;
        if (number == 1 && e % 17 != 5) x[e] = 0.0f;
        if (number == 2 && e % 3 != 0) x[e] = 0.0f;
        if (number == 3 && row % 4 != 1) x[e] = 0.0f;
        if (number == 4) x[e] *= expf(0.4f * (float)(row * 7 % 11));
        if (number == 5 && row == 1) x[e] *= 1e10f;
        if (number == 6 && e % 11 == 0) x[e] = 0.0f;
    }
}

static void test_ec_of_unlike_values_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const float rates[] = {1.0f, 2.5f, 4.0f};
    static const uint32_t of[][2] = {{9, 67}, {24, 96}, {258, 256}};
    uint32_t ways = 0;
    for (uint32_t run = 0; run < 63; run += run < 42 ? 1 : 5) {
        const uint32_t number = run % 7, *shape = of[run / 21], rounding = run / 7 % 3;
        struct aq_codec_config config;
        struct aq_codec_result results[2][SAMPLES];
        struct side ends[2];
        struct epoch epoch = {.hat = true};
        aq_codec_config_default(&config, AQ_CODEC_EC, 3);
        config.rate = config.keyframe_rate = rates[(run + run / 21) % 3];
        config.rounding = (enum aq_codec_rounding)(AQ_ROUND_NEAREST + rounding);
        config.store = run % 2 == 0 ? AQ_PRECISION_NONE : AQ_PRECISION_FP32;
        config.keyframe = AQ_PRECISION_EC;
        order(run);
        for (int end = 0; end < 2; end++) {
            side_open(&ends[end], &config, shape[0], shape[1], end == GPU_SENDER, 0);
            for (uint32_t i = 0; i < SAMPLES; i++) {
                unlike(ends[end].a[i], shape[0], shape[1], (number + i) % 7);
                epoch.keys[i] = test_key(400 + run);
                epoch.cold[i] = true;
            }
            encode(&ends[end], &epoch, results[end]);
            side_check(&ends[end]);
        }
        for (int i = 0; i < SAMPLES; i++) {
            same_result(&results[0][i], &results[1][i]);
            assert_int_equal(results[0][i].flags & AQ_CODED_RAW, 0);
            assert_memory_equal(ends[0].body[i], ends[1].body[i], results[0][i].body_bytes);
            assert_memory_equal(ends[0].hat[i], ends[1].hat[i], 4 * ends[0].values);
            assert_true(results[0][i].sum_error2 < 0.81 * results[0][i].sum_delta2);
            ways |= 1u << (ends[0].body[i][AQ_EC_MARKS] & AQ_EC_DITHERED);
        }
        decode(&ends[GPU_SENDER], ends[CPU_SENDER].body, &epoch, results[0]);
        for (int i = 0; i < SAMPLES; i++)
            assert_memory_equal(ends[0].hat[i], ends[1].hat[i], 4 * ends[0].values);
        side_close(&ends[0]);
        side_close(&ends[1]);
    }
    assert_int_equal(ways, 1u | 1u << AQ_EC_DITHERED);
    order(0);
}

/* What users run, over all bits, and enough rows for the live measures to look at a part of them. */
static void test_the_defaults_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const enum aq_codec_precision stores[] = {AQ_PRECISION_FP32, AQ_PRECISION_FP16, AQ_PRECISION_BF16};
    for (uint32_t bits = 1; bits <= 8; bits++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, AQ_CODEC_AQSGD, bits);
        config.store = stores[bits % 3];
        run_edge(&config, 70, 64, 3, 0);
        run_edge(&config, 4, 768, 3, bits % 2);
        config.group = AQ_PER_TENSOR;
        run_edge(&config, 5, 136, 3, 0);
        aq_codec_config_default(&config, AQ_CODEC_DIRECTQ, bits);
        run_edge(&config, 6, 264, 2, 0);
    }
}

/* Long samples, of which a part of the rows is measured, and short ones; a warp's row does not end with its lanes. */
static void test_the_error_of_rounded_stores_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {AQ_CODEC_AQSGD, AQ_CODEC_EC};
    for (uint32_t i = 0; i < 8; i++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, kinds[i % 2], 3);
        config.store = (enum aq_codec_precision)(AQ_PRECISION_BF16 + i / 2);
        config.store_group = i < 6 ? AQ_PER_ROW : AQ_PER_CHANNEL;
        run_edge(&config, 77, 72, 2, 0);
        run_edge(&config, 63, 40, 2, 0);
    }
}

static void test_directq_and_top_k_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const float fractions[] = {0.0f, 0.2f, 0.9f, 0.03f, 0.001f};
    for (uint32_t run = 0; run < 8 * 144; run += stride) {
        const uint32_t number = run / 8;
        struct aq_codec_config config = config_of(AQ_CODEC_DIRECTQ, 1 + run % 8, number);
        config.top_k = fractions[number / 2 % 5];
        if (config.hadamard || config.group == AQ_PER_CHANNEL) config.top_k = 1.0f;
        run_edge(&config, shape_of(run)[0], shape_of(run)[1], 2, run % 5 == 0 ? 1 : 0);
    }
}

/* Many equal magnitudes at the threshold: the first ones are kept, across rows. */
static void test_top_k_keeps_the_first_of_equals(void **state)
{
    (void)state;
    struct aq_codec_config config;
    struct side ends[2];
    struct epoch epoch = {.hat = true};
    struct aq_codec_result results[2][SAMPLES];
    aq_codec_config_default(&config, AQ_CODEC_DIRECTQ, 4);
    config.top_k = 0.3f;
    for (int end = 0; end < 2; end++) {
        side_open(&ends[end], &config, 9, 67, end == GPU_SENDER, 0);
        for (int i = 0; i < SAMPLES; i++) {
            for (size_t e = 0; e < ends[end].values; e++)
                ends[end].a[i][e] = (float)(e * 7 % (3 + (size_t)i)) - 1.0f;
        }
        encode(&ends[end], &epoch, results[end]);
    }
    for (int i = 0; i < SAMPLES; i++) {
        same_result(&results[0][i], &results[1][i]);
        assert_memory_equal(ends[0].body[i], ends[1].body[i], ends[0].bound);
        assert_memory_equal(ends[0].hat[i], ends[1].hat[i], 4 * ends[0].values);
    }
    side_close(&ends[0]);
    side_close(&ends[1]);
}

static void test_raw_bodies_and_keyframes_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    for (uint32_t raw = AQ_PRECISION_FP32; raw <= AQ_PRECISION_BF16; raw++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, AQ_CODEC_RAW, 0);
        config.raw = (enum aq_codec_precision)raw;
        for (size_t s = 0; s < SHAPES; s++)
            run_edge(&config, shapes[s][0], shapes[s][1], 1, s % 2);
    }
}

/* Several of the CPU's pieces, so that the order of sums over rows shows. */
static void test_sums_over_rows_go_in_the_order_of_the_cpu(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 6; run++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, AQ_CODEC_AQSGD, run < 4 ? 2 : 5);
        config.group = run % 2 == 0 ? AQ_PER_TENSOR : AQ_PER_CHANNEL;
        config.scale = run < 2 ? AQ_SCALE_RMS : run < 4 ? AQ_SCALE_SEARCH : AQ_SCALE_AUTO;
        config.hadamard = run == 3;
        run_edge(&config, 163, run % 2 == 0 ? 401 : 264, 2, 0);
    }
}

/* One value of one sample that nothing but raw can hold; its neighbours are coded as ever. */
static void test_a_value_that_does_not_fit_sends_its_sample_raw(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY, 70000.0f, 3e38f};
    for (uint32_t run = 0; run < 60; run++) {
        struct aq_codec_config config = config_of(run % 5 == 4 ? AQ_CODEC_DIRECTQ : AQ_CODEC_AQSGD, 1 + run % 8, run);
        struct aq_codec_result results[2][SAMPLES];
        struct side ends[2];
        struct epoch epoch = {.hat = true};
        config.store = (enum aq_codec_precision)(1 + run % 6);
        config.top_k = config.kind == AQ_CODEC_DIRECTQ && !config.hadamard && config.group != AQ_PER_CHANNEL ? 0.1f : 0;
        for (int i = 0; i < SAMPLES; i++) {
            epoch.keys[i] = test_key((uint64_t)i);
            epoch.cold[i] = run % 3 == 0;
        }
        for (int end = 0; end < 2; end++)
            side_open(&ends[end], &config, 5, run % 2 == 0 ? 72 : 35, end == GPU_SENDER, 0);
        for (int end = 0; end < 2; end++) {
            for (int i = 0; i < SAMPLES; i++)
                memset(ends[end].m[i], 0, ends[end].message);
            for (int i = 0; i < SAMPLES; i++)
                fill(ends[end].a[i], ends[end].values, SHAPE_GAUSS, 1.0f, (uint64_t)i);
            ends[end].a[1][ends[end].values * (run % 7) / 7] = values[run % 5];
            encode(&ends[end], &epoch, results[end]);
            side_check(&ends[end]);
        }
        for (int i = 0; i < SAMPLES; i++) {
            same_result(&results[0][i], &results[1][i]);
            if (i != 1) assert_int_equal(results[1][i].flags & AQ_CODED_RAW, 0);
            assert_memory_equal(ends[0].body[i], ends[1].body[i], results[0][i].body_bytes);
            assert_memory_equal(ends[0].hat[i], ends[1].hat[i], 4 * ends[0].values);
        }
        if (!isfinite(values[run % 5])) assert_int_equal(results[1][1].flags, AQ_CODED_RAW);
        side_close(&ends[0]);
        side_close(&ends[1]);
    }
}

/* Any bytes: the CPU's verdict, and nothing touched beyond what is the sample's. */
static void test_any_body_gets_the_verdict_of_the_cpu(void **state)
{
    (void)state;
    quiet_begin();
    uint32_t refused = 0, taken = 0;
    for (uint32_t run = 0; run < 120; run++) {
        struct aq_codec_config config = config_of(run % 3 == 0 ? AQ_CODEC_DIRECTQ : AQ_CODEC_AQSGD, 1 + run % 8, run);
        struct side ends[2];
        struct epoch epoch = {.hat = true};
        struct aq_codec_result results[SAMPLES];
        config.store = (enum aq_codec_precision)(1 + run % 6);
        config.top_k = config.kind == AQ_CODEC_DIRECTQ && !config.hadamard && config.group != AQ_PER_CHANNEL ? 0.1f : 0;
        for (int end = 0; end < 2; end++)
            side_open(&ends[end], &config, 5, run % 2 == 0 ? 72 : 35, end == GPU_SENDER, 0);
        for (int i = 0; i < SAMPLES; i++) {
            epoch.keys[i] = test_key((uint64_t)i);
            fill(ends[0].a[i], ends[0].values, SHAPE_GAUSS, 1.0f, (uint64_t)i);
            memset(ends[0].m[i], 0, ends[0].message);
            memset(ends[1].m[i], 0, ends[1].message);
        }
        encode(&ends[0], &epoch, results);
        for (uint32_t i = 0; i < SAMPLES; i++) {
            const struct aq_rng_key key = test_key(77000 + 10 * run + i);
            const uint32_t bytes = results[i].body_bytes;
            for (uint32_t k = 0; k < (i == 0 ? 1u : i == 1 ? 3u : bytes); k++) {
                const uint32_t at = i == 2 ? k : aq_rng_u32(&key, 2 * k) % (i == 0 ? bytes / 4 + 1 : bytes);
                ends[0].body[i][at] = (uint8_t)aq_rng_u32(&key, 2 * k + 1);
            }
            struct aq_codec_sample sample = {.body_bytes = bytes + (run % 50 == 7), .flags = run % 40 == 11 ? 4 : 0};
            for (int end = 0; end < 2; end++) {
                sample.m = ends[end].m[i];
                sample.body = ends[0].body[i];
                sample.hat = ends[end].hat[i];
                sample.m_out = ends[end].m_next[i];
                const struct aq_codec_sample one = sample;
                assert_int_equal(aq_codec_decode_batch(ends[end].codec, &one, 1, ends[end].corrupt, NULL), AQ_OK);
                assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
                side_check(&ends[end]);
            }
            const bool corrupt = ends[0].corrupt[0];
            assert_int_equal(corrupt, ends[1].corrupt[0]);
            refused += corrupt;
            taken += !corrupt;
            if (corrupt) continue;
            assert_memory_equal(ends[0].hat[i], ends[1].hat[i], 4 * ends[0].values);
            assert_memory_equal(ends[0].m_next[i], ends[1].m_next[i], ends[0].message);
        }
        side_close(&ends[0]);
        side_close(&ends[1]);
    }
    quiet_end();
    assert_true(refused > 30 && taken > 30);
}

/* More samples than a launch takes, each with the CPU's bits; what cannot be is said. */
static void test_a_long_batch_is_cut_into_launches(void **state)
{
    (void)state;
    enum { MANY = AQ_CUDA_CODEC_JOBS + 5, ROWS = 3, COLUMNS = 40, VALUES = ROWS * COLUMNS };
    struct {
        float a[MANY][VALUES], hat[MANY][VALUES];
        uint8_t body[MANY][4 * VALUES];
        struct aq_codec_result results[MANY];
        uint32_t corrupt[MANY];
    } *at = shared(sizeof *at);
    static float expected[VALUES];
    static uint8_t single[4 * VALUES];
    struct aq_codec_config config;
    struct aq_codec *codec;
    struct aq_codec_sample samples[MANY];
    struct aq_codec_result result;
    aq_codec_config_default(&config, AQ_CODEC_DIRECTQ, 3);
    assert_int_equal(aq_codec_open(device, &config, ROWS, COLUMNS, &codec), AQ_OK);
    assert_false(aq_codec_on_device(codec));
    assert_int_equal(kernels_take(codec), AQ_OK);
    assert_true(aq_codec_on_device(codec));
    for (uint32_t i = 0; i < MANY; i++) {
        fill(at->a[i], VALUES, SHAPE_GAUSS, 1e-3f, i);
        samples[i] = (struct aq_codec_sample){.a = at->a[i], .body = at->body[i]};
    }
    assert_int_equal(aq_codec_encode_batch(codec, samples, MANY, at->results, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    for (uint32_t i = 0; i < MANY; i++)
        samples[i] =
            (struct aq_codec_sample){.body = at->body[i], .body_bytes = at->results[i].body_bytes, .hat = at->hat[i]};
    assert_int_equal(aq_codec_decode_batch(codec, samples, MANY, at->corrupt, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(
            aq_codec_encode(codec, at->a[i], NULL, NULL, single, sizeof single, expected, NULL, &result, NULL), AQ_OK);
        same_result(&result, &at->results[i]);
        assert_memory_equal(single, at->body[i], result.body_bytes);
        assert_memory_equal(expected, at->hat[i], sizeof expected);
        assert_int_equal(at->corrupt[i], 0);
    }
    quiet_begin();
    samples[0] = (struct aq_codec_sample){.a = at->a[0], .body = at->body[0], .hat = at->a[0] + 1};
    assert_int_equal(aq_codec_encode_batch(codec, samples, 1, at->results, NULL), AQ_INVAL);
    quiet_end();
    aq_codec_close(codec);
    aq_device_free(device, AQ_MEMORY_PINNED, at, sizeof *at);
}

static int open_device(void **state)
{
    (void)state;
    const struct aq_device_config config = {.kind = KIND, .threads = 1};
    if (aq_device_open(&config, &device) != AQ_OK) return -1;
    allocate_untouched();
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    aq_device_close(device);
    return 0;
}

#ifdef AQ_CODEC_ON_GPU
/* 77: there is no GPU, and nobody says that there must be one. */
static int missing(void)
{
    const char *wish = getenv("AQ_GPU");
    const struct aq_device_config config = {.kind = KIND};
    const enum aq_status status = aq_device_open(&config, &device);
    if (status == AQ_OK) aq_device_close(device);
    if (status != AQ_NODEV || (wish && strcmp(wish, "required") == 0)) return 0;
    print_message("skip: no GPU on this machine\n");
    return 77;
}
#else
static int missing(void)
{
    return 0;
}
#endif

/* The first argument is the stride, ctest's cuda_codec_more; the second a pattern of the tests to run. */
int main(int argc, char **argv)
{
    if (argc > 1) stride = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    if (missing()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aqsgd_has_the_bits_of_the_cpu_in_every_config),
        cmocka_unit_test(test_every_codec_of_the_table_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_every_rate_and_error_of_ec_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_ec_of_unlike_values_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_the_defaults_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_the_error_of_rounded_stores_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_directq_and_top_k_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_top_k_keeps_the_first_of_equals),
        cmocka_unit_test(test_raw_bodies_and_keyframes_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_sums_over_rows_go_in_the_order_of_the_cpu),
        cmocka_unit_test(test_a_value_that_does_not_fit_sends_its_sample_raw),
        cmocka_unit_test(test_any_body_gets_the_verdict_of_the_cpu),
        cmocka_unit_test(test_a_long_batch_is_cut_into_launches),
    };
    return cmocka_run_group_tests_name("cuda codec", tests, open_device, close_device);
}
