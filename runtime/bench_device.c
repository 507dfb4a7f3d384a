/*
 * bench_device.c -- a device's copies, the codecs of whole micro-batches on it, and the way of a message from the
 * cache's disk into its memory.
 *
 * The micro-batch is that of GPT-2 1.5B: 32 samples of 1024 x 1600. A codec's figure is the bytes that it must move (a,
 * m, m' and the body once each) over its time, beside what a copy within the device's memory reaches (reads and writes
 * counted); best of some repeats.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/codec.h"
#include "aqsgd/device_math.h"
#include "run_folder.h"
#include "storage/cache.h"

enum { SAMPLES = 32, ROWS = 1024, COLUMNS = 1600, REPEATS = 10, MESSAGES = 64, CACHE_SLOTS = 24, AHEAD = 8 };

static const uint64_t VALUES = (uint64_t)ROWS * COLUMNS;

/* What a case does once; the device has nothing else to do. */
typedef enum aq_status once(void *context);

static enum aq_status best_of(struct aq_device *device, uint32_t repeats, once *run, void *context, double *seconds)
{
    *seconds = INFINITY;
    for (uint32_t i = 0; i < repeats + 2; i++) {
        AQ_TRY(aq_device_stream_sync(device, NULL));
        const uint64_t begin = aq_clock_ns();
        AQ_TRY(run(context));
        AQ_TRY(aq_device_stream_sync(device, NULL));
        const double took = (double)(aq_clock_ns() - begin) * 1e-9;
        if (i >= 2 && took < *seconds) *seconds = took;
    }
    return AQ_OK;
}

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
    const struct {
        const char *name;
        struct copy copy;
        double factor;
    } cases[] = {{"device copy", {device, b, a, bytes}, 2e-9},
                 {"device copy from host", {device, a, host, bytes}, 1e-9},
                 {"device copy to host", {device, host, a, bytes}, 1e-9}};
    for (int i = 0; i < 3; i++) {
        struct copy copy = cases[i].copy;
        AQ_TRY_GOTO(best_of(device, options->quick ? 2 : REPEATS, copy_once, &copy, &seconds), out);
        if (i == 0) *rate = (double)bytes * cases[i].factor / seconds;
        aq_bench_emit(options, cases[i].name, (double)bytes * cases[i].factor / seconds, "GB/s");
    }
out:
    aq_device_free(device, AQ_MEMORY_PINNED, host, bytes);
    aq_device_free(device, AQ_MEMORY_DEVICE, b, bytes);
    aq_device_free(device, AQ_MEMORY_DEVICE, a, bytes);
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
    char folder[64];
    void *to = NULL;
    struct aq_cache *cache = NULL;
    struct aq_cache_config config;
    enum aq_status status;
    snprintf(folder, sizeof folder, "bench-device-%d", (int)getpid());
    aq_cache_config_default(&config);
    config.path = folder;
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
    (void)aq_run_remove(folder);
    aq_device_free(device, AQ_MEMORY_DEVICE, to, bytes);
    return status;
}

enum aq_status aq_bench_device(const struct aq_bench_options *options)
{
    const struct aq_device_config config = {
        .kind = options->device, .index = options->device_index, .threads = options->threads};
    struct aq_device *device = NULL;
    double copy = 0;
    AQ_TRY(aq_device_open(&config, &device));
    enum aq_status status = copies_run(options, device, &copy);
    if (status == AQ_OK) status = messages_run(options, device);
    aq_device_close(device);
    return status;
}
