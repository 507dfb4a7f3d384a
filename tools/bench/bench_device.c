/*
 * bench_device.c -- a device's copies and its largest product, which are the ceilings of all else; the codecs of whole
 * micro-batches on it; and the way of a message from the cache's disk into its memory.
 *
 * The micro-batch is GPT-2 1.5B's: 32 samples of 1024 x 1600. A codec's figure is the bytes that it must move (a, m, m'
 * and the body once each) over its time, compared with a copy within the device's memory (reads and writes counted).
 * Values are random, each array is larger than a GPU's cache, times are medians between events (aq_bench_median).
 */
#include "bench.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/codec.h"
#include "aqsgd/device_math.h"
#include "owned_folder.h"
#include "storage/cache.h"

enum { SAMPLES = 32, ROWS = 1024, COLUMNS = 1600, REPEATS = 10, MESSAGES = 64, CACHE_SLOTS = 24, AHEAD = 8 };

static const uint64_t VALUES = (uint64_t)ROWS * COLUMNS;

struct copy {
    struct aq_device *device;
    void *to;
    const void *from;
    size_t bytes;
};

static enum aq_status copy_once(void *context)
{
    const struct copy *copy = context;
    return aq_device_copy(copy->device, copy->to, copy->from, copy->bytes, NULL);
}

static enum aq_status copies_run(const struct aq_bench_options *options, struct aq_device *device, double *rate)
{
    const size_t bytes = (size_t)SAMPLES * VALUES * sizeof(float);
    void *a = NULL, *b = NULL, *host = NULL;
    double seconds;
    enum aq_status status;
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &a), out);
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &b), out);
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_PINNED, bytes, &host), out);
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 4, 0);
    const struct aq_fill_normal fill = {.x = a, .count = SAMPLES * VALUES, .key = key, .std = 1.0f};
    AQ_TRY_GOTO(aq_device_fill_normal(device, &fill, NULL), out);
    AQ_TRY_GOTO(aq_device_copy(device, host, a, bytes, NULL), out);
    const struct {
        const char *name;
        struct copy copy;
        double factor;
    } cases[] = {{"device copy", {device, b, a, bytes}, 2e-9},
                 {"device copy from host", {device, a, host, bytes}, 1e-9},
                 {"device copy to host", {device, host, a, bytes}, 1e-9}};
    for (int i = 0; i < 3; i++) {
        struct copy copy = cases[i].copy;
        const struct aq_bench_case one = {
            copy_once, &copy, REPEATS, device, .amount = (double)bytes * cases[i].factor, .unit = "GB/s"};
        AQ_TRY_GOTO(aq_bench_case(options, &one, &seconds, "%s", cases[i].name), out);
        if (i == 0 && seconds > 0) *rate = 2.0 * (double)bytes / seconds;
    }
out:
    aq_device_free(device, AQ_MEMORY_PINNED, host, bytes);
    aq_device_free(device, AQ_MEMORY_DEVICE, b, bytes);
    aq_device_free(device, AQ_MEMORY_DEVICE, a, bytes);
    return status;
}

struct coding {
    const char *name;
    struct aq_device *device;
    struct aq_stream *stream;
    struct aq_codec *codec;
    uint8_t *a, *bodies, *messages;
    size_t body_stride, message_stride;
    struct aq_codec_result *results; /* pinned */
    uint32_t *corrupt;               /* pinned */
    struct aq_rng_key keys[SAMPLES]; /* for codecs that round at random */
    struct aq_codec_sample samples[SAMPLES];
};

static enum aq_status encode_once(void *context)
{
    struct coding *coding = context;
    return aq_codec_encode_batch(coding->codec, coding->samples, SAMPLES, coding->results, coding->stream);
}

static enum aq_status decode_once(void *context)
{
    struct coding *coding = context;
    return aq_codec_decode_batch(coding->codec, coding->samples, SAMPLES, coding->corrupt, coding->stream);
}

/* One way: its rate, and what that is of a copy's, where that has been measured. */
static enum aq_status coding_case(const struct aq_bench_options *options, struct coding *coding, const char *verb,
                                  double bytes, double copy, enum aq_status (*run)(void *context))
{
    const struct aq_bench_case one = {
        run, coding, options->quick ? 1 : REPEATS, coding->device, coding->stream, 1e-9 * bytes, 0, "GB/s", true};
    double seconds;
    char name[64];
    AQ_TRY(aq_bench_case(options, &one, &seconds, "device %s %s", verb, coding->name));
    snprintf(name, sizeof name, "device %s %s of copy", verb, coding->name);
    if (seconds > 0 && copy > 0) aq_bench_emit(options, name, 100.0 * bytes / seconds / copy, "%");
    snprintf(name, sizeof name, "device %s %s of fp32", verb, coding->name);
    if (seconds > 0) aq_bench_emit(options, name, 4e-9 * (double)SAMPLES * (double)VALUES / seconds, "GB/s");
    return aq_device_stream_sync(coding->device, coding->stream);
}

/* a, m and m' (which is m) and the body, each once; decode has x^ in a's place. */
static enum aq_status coding_run(const struct aq_bench_options *options, struct coding *coding, double copy)
{
    const double bytes =
        (double)SAMPLES * ((double)VALUES * (4 + 2 + 2) + (double)aq_codec_body_bytes(coding->codec, false));
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 3, 0);
    const struct aq_fill_normal fill = {
        .x = (float *)(void *)coding->a, .count = SAMPLES * VALUES, .key = key, .std = 1.0f};
    AQ_TRY(aq_device_fill_normal(coding->device, &fill, coding->stream));
    AQ_TRY(coding_case(options, coding, "encode", bytes, copy, encode_once));
    for (uint32_t i = 0; i < SAMPLES; i++) {
        coding->samples[i].body_bytes = coding->results[i].body_bytes;
        coding->samples[i].flags = coding->results[i].flags;
        coding->samples[i].hat = (float *)(void *)(coding->a + i * VALUES * sizeof(float));
    }
    AQ_TRY(coding_case(options, coding, "decode", bytes, copy, decode_once));
    for (uint32_t i = 0; i < SAMPLES; i++)
        if (coding->corrupt[i])
            return aq_fail(AQ_CORRUPT, "bench", "the device reports its own encoding of sample %u as corrupt", i);
    return AQ_OK;
}

struct coded {
    const char *name;
    enum aq_codec_kind kind;
    uint32_t bits;
    float rate; /* EC: bits per value */
};

static const struct coded codecs[] = {{"aqsgd2", AQ_CODEC_AQSGD, 2, 0.0f}, {"aqsgd4", AQ_CODEC_AQSGD, 4, 0.0f},
                                      {"aqsgd8", AQ_CODEC_AQSGD, 8, 0.0f}, {"ec2", AQ_CODEC_EC, 2, 2.0f},
                                      {"ec2.5", AQ_CODEC_EC, 2, 2.5f},     {"ec4", AQ_CODEC_EC, 4, 4.0f}};

/* Bodies and messages lie in the device's memory if it has kernels for the codec, else in pinned memory. */
static enum aq_status codec_run(const struct aq_bench_options *options, struct aq_device *device,
                                const struct coded *coded, double copy)
{
    struct coding coding = {.device = device, .name = coded->name};
    struct aq_codec_config config;
    enum aq_memory_kind kind = AQ_MEMORY_PINNED;
    void *a = NULL, *rest = NULL, *told = NULL;
    const size_t a_bytes = SAMPLES * VALUES * sizeof(float), told_bytes = SAMPLES * (sizeof *coding.results + 4);
    size_t rest_bytes = 0;
    enum aq_status status;
    aq_codec_config_default(&config, coded->kind, coded->bits);
    if (coded->rate > 0.0f) config.rate = coded->rate;
    AQ_TRY(aq_device_stream_open(device, &coding.stream));
    AQ_TRY_GOTO(aq_codec_open(device, &config, ROWS, COLUMNS, &coding.codec), out);
    AQ_TRY_GOTO(aq_codec_take_device(coding.codec), out);
    if (aq_codec_on_device(coding.codec)) kind = AQ_MEMORY_DEVICE;
    coding.body_stride = (aq_codec_bound(coding.codec) + 255) / 256 * 256;
    coding.message_stride = (aq_codec_message_bytes(coding.codec) + 255) / 256 * 256;
    rest_bytes = SAMPLES * (coding.body_stride + coding.message_stride);
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_DEVICE, a_bytes, &a), out);
    AQ_TRY_GOTO(aq_device_alloc(device, kind, rest_bytes, &rest), out);
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_PINNED, told_bytes, &told), out);
    coding.a = a;
    coding.bodies = rest;
    coding.messages = coding.bodies + SAMPLES * coding.body_stride;
    coding.results = told;
    coding.corrupt = (uint32_t *)(void *)(coding.results + SAMPLES);
    for (uint32_t i = 0; i < SAMPLES; i++)
        coding.keys[i] = aq_rng_key(1, AQ_RNG_TEST, 5, i);
    for (uint32_t i = 0; i < SAMPLES; i++)
        coding.samples[i] = (struct aq_codec_sample){.a = (float *)(void *)(coding.a + i * VALUES * sizeof(float)),
                                                     .key = &coding.keys[i],
                                                     .m = coding.messages + i * coding.message_stride,
                                                     .body = coding.bodies + i * coding.body_stride,
                                                     .m_out = coding.messages + i * coding.message_stride};
    status = coding_run(options, &coding, copy);
out:
    aq_device_free(device, AQ_MEMORY_PINNED, told, told_bytes);
    aq_device_free(device, kind, rest, rest_bytes);
    aq_device_free(device, AQ_MEMORY_DEVICE, a, a_bytes);
    aq_codec_close(coding.codec);
    aq_device_stream_close(device, coding.stream);
    return status;
}

/* Messages from the disk through the cache's slots into device memory, AHEAD read ahead. */
static enum aq_status messages_move(struct aq_device *device, struct aq_cache *cache, uint8_t *to, size_t bytes)
{
    struct aq_cache_entry entry;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        for (uint32_t k = i ? i + AHEAD : 0; k <= i + AHEAD && k < MESSAGES; k++) {
            const struct aq_cache_key ahead = {.sample = k};
            const enum aq_status status = aq_cache_prefetch(cache, &ahead);
            if (status != AQ_AGAIN) AQ_TRY(status);
        }
        const struct aq_cache_key key = {.sample = i};
        AQ_TRY(aq_cache_get(cache, &key, aq_clock_after(UINT64_C(60000000000)), &entry));
        enum aq_status status = aq_device_copy(device, to, entry.bytes, bytes, NULL);
        if (status == AQ_OK) status = aq_device_stream_sync(device, NULL);
        aq_cache_release(cache, &entry);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static enum aq_status messages_write(struct aq_cache *cache, size_t bytes)
{
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const struct aq_cache_key key = {.sample = i};
        void *slot;
        AQ_TRY(aq_cache_slot(cache, aq_clock_after(UINT64_C(60000000000)), &slot));
        for (size_t at = 0; at < bytes / 8; at++)
            ((uint64_t *)slot)[at] = (at + i) * UINT64_C(0x9e3779b97f4a7c15);
        AQ_TRY(aq_cache_put(cache, &key, 1, aq_digest(slot, bytes), slot, bytes));
    }
    AQ_TRY(aq_cache_mark_begin(cache, 1));
    enum aq_status status;
    while ((status = aq_cache_mark_done(cache)) == AQ_AGAIN)
        usleep(1000);
    return status;
}

static enum aq_status messages_run(const struct aq_bench_options *options, struct aq_device *device)
{
    const size_t bytes = (size_t)VALUES * sizeof(uint16_t);
    char folder[64], path[80];
    void *to = NULL;
    struct aq_cache *cache = NULL;
    struct aq_cache_config config;
    enum aq_status status;
    snprintf(folder, sizeof folder, "aqpipe-bench-device-XXXXXX");
    AQ_TRY(aq_owned_scratch_make(folder));
    snprintf(path, sizeof path, "%s/cache", folder);
    aq_cache_config_default(&config);
    config.path = path;
    config.job_name = "bench";
    config.slots = CACHE_SLOTS;
    config.samples_max = MESSAGES;
    config.value_bytes_max = bytes;
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &to), out);
    AQ_TRY_GOTO(aq_cache_open(&config, &cache), out);
    AQ_TRY_GOTO(messages_write(cache, bytes), out);
    for (int i = 0; i < (options->quick ? 1 : 3); i++) {
        const uint64_t begin = aq_clock_ns();
        AQ_TRY_GOTO(messages_move(device, cache, to, bytes), out);
        const double seconds = (double)(aq_clock_ns() - begin) * 1e-9;
        aq_bench_emit(options, "device messages from disk", 1e-9 * (double)bytes * MESSAGES / seconds, "GB/s");
    }
out:
    aq_cache_close(cache);
    (void)aq_owned_scratch_remove(folder, NULL);
    aq_device_free(device, AQ_MEMORY_DEVICE, to, bytes);
    return status;
}

/* On a GPU: what bf16 products reach at most. */
static enum aq_status product_run(const struct aq_bench_options *options, struct aq_device *device)
{
    double rate;
    if (aq_device_gpu(options->device) != AQ_GPU_YES) return AQ_OK;
    AQ_TRY(aq_bench_product(device, AQ_BF16, AQ_BF16, 8192, 8192, 8192, &rate));
    aq_bench_emit(options, "device product bf16 8192", 1e-12 * rate, "TFLOP/s");
    return AQ_OK;
}

enum aq_status aq_bench_device(const struct aq_bench_options *options)
{
    const struct aq_device_config config = {
        .kind = options->device, .index = options->device_index, .threads = options->threads};
    struct aq_device *device = NULL;
    double copy = 0;
    AQ_TRY(aq_device_open(&config, &device));
    enum aq_status status = copies_run(options, device, &copy);
    if (status == AQ_OK && aq_bench_wanted(options, "device product bf16 8192")) status = product_run(options, device);
    for (size_t i = 0; status == AQ_OK && i < sizeof codecs / sizeof codecs[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "device encode decode %s of copy fp32", codecs[i].name);
        if (aq_bench_wanted(options, name)) status = codec_run(options, device, &codecs[i], copy);
    }
    if (status == AQ_OK && aq_bench_wanted(options, "device messages from disk"))
        status = messages_run(options, device);
    aq_device_close(device);
    return status;
}
