/*
 * fuzz_cache.c -- any bytes as the files of a cache: read offline, then opened, written to, marked and compacted.
 *
 * An input is an index, which begins with a zero; the slab's head is made from the head found in it, so that mutations
 * of an index reach the walk. Where the first byte is odd, 256 bytes behind it are the head of a slab without an index.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "storage/cache.h"

enum { BYTES_MAX = 1 << 20, HEAD_BYTES = 256, CHECKED_BYTES = 248, SLAB_BYTES = 4096 + 16 * 4096 };

static const char *path;

static void file_write(const char *name, const void *bytes, size_t count, size_t file_bytes)
{
    fuzz_write(name, bytes, count);
    if (truncate(fuzz_path(name), (off_t)file_bytes) == -1) abort();
}

static void head_seal(uint8_t *head)
{
    const uint64_t check = aq_digest_seeded(head, CHECKED_BYTES, 0x4151434143484531);
    memcpy(head + CHECKED_BYTES, &check, sizeof(check));
}

/* Heads in an index's bytes are sealed anew, so that what lies behind their check is reached; the last makes the
 * slab's. */
static void index_write(uint8_t *bytes, size_t count)
{
    uint8_t head[HEAD_BYTES] = {0};
    for (size_t at = 0; at + HEAD_BYTES <= count; at += 2) {
        if (memcmp(bytes + at, "AQCACHE\n", 8) != 0) continue;
        head_seal(bytes + at);
        memcpy(head, bytes + at, HEAD_BYTES);
    }
    file_write("cache/index.mdb", bytes, count, count);
    head[12] = 2;             /* kind: slab */
    memset(head + 48, 0, 24);  /* marks and entries */
    memset(head + 200, 0, 48); /* lost, and what has no meaning yet */
    head_seal(head);
    file_write("cache/slab", head, sizeof(head), SLAB_BYTES);
}

static void cache_use(const struct aq_cache_info *info)
{
    struct aq_cache_config config;
    struct aq_cache *cache;
    aq_cache_config_default(&config);
    if (info->value_bytes_max > 1 << 16) return;
    config.path = path;
    config.job_name = info->job_name;
    config.job_digest = info->job_digest;
    config.value_bytes_max = info->value_bytes_max;
    config.samples_max = 64;
    config.slots = 4;
    config.depth = 2;
    config.bytes_max = UINT64_C(16) * 4096;
    config.mark = info->mark_last;
    if (aq_cache_open(&config, &cache) != AQ_OK) return;
    for (uint64_t sample = 0; sample < 4; ++sample) {
        const struct aq_cache_key key = {.sample = sample};
        struct aq_cache_entry entry;
        void *slot;
        const uint64_t deadline_ns = aq_clock_after(UINT64_C(10000000000));
        if (aq_cache_get(cache, &key, deadline_ns, &entry) == AQ_OK) aq_cache_release(cache, &entry);
        if (aq_cache_slot(cache, deadline_ns, &slot) != AQ_OK) break;
        memset(slot, 1, 1);
        if (aq_cache_put(cache, &key, 1, aq_digest(slot, 1), slot, 1) != AQ_OK) aq_cache_slot_return(cache, slot);
    }
    if (aq_cache_mark_begin(cache, info->mark_last + 1) == AQ_OK) {
        while (aq_cache_mark_done(cache) == AQ_AGAIN)
            usleep(10);
    }
    aq_cache_close(cache);
}

static void start(void)
{
    if (path) return;
    fuzz_quiet();
    fuzz_make_folder("cache");
    static char kept[512];
    snprintf(kept, sizeof(kept), "%s", fuzz_path("cache"));
    path = kept;
    file_write("cache/lock", "", 0, 0);
}

/* Opening must refuse the slab, or make a cache of it whose making had been cut short. */
static void slab_only(const uint8_t *bytes)
{
    struct aq_cache_info info = {.value_bytes_max = 5000};
    uint8_t head[HEAD_BYTES];
    memcpy(head, bytes, sizeof(head));
    head_seal(head);
    file_write("cache/slab", head, sizeof(head), SLAB_BYTES);
    memcpy(&info.job_digest, head + 16, sizeof(info.job_digest));
    memcpy(info.job_name, head + 72, sizeof(info.job_name) - 1);
    (void)unlink(fuzz_path("cache/index.mdb"));
    cache_use(&info);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_cache_walk *walk;
    struct aq_cache_visit visit;
    struct aq_cache_info info;
    static uint8_t bytes[BYTES_MAX];
    uint64_t freed;
    start();
    if (size < 1 || size > BYTES_MAX) return 0;
    if (data[0] % 2 == 1 && size > HEAD_BYTES) {
        slab_only(data + 1);
        return 0;
    }
    memcpy(bytes, data, size);
    index_write(bytes, size);
    const enum aq_status status = aq_cache_walk_open(path, 0, true, &walk);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) return 0;
    aq_cache_walk_info(walk, &info);
    for (uint32_t i = 0; i < 4096 && aq_cache_walk_next(walk, &visit) == AQ_OK;)
        ++i;
    aq_cache_walk_close(walk);
    cache_use(&info);
    aq_cache_compact(path, &freed);
    return 0;
}
