/*
 * cache_kit.c -- folders, messages and a log that can be asked, for the cache's tests.
 */
#include "cache_kit.h"

#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kit_folder(const char *parent, char out[KIT_PATH])
{
    const char *base = parent != NULL ? parent : getenv("TMPDIR");
    snprintf(out, KIT_PATH, "%s/aqpipe-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(out) == NULL) {
        printf("skip: no folder can be made below %s: %s\n", base != NULL ? base : "/tmp", strerror(errno));
        exit(77);
    }
}

static int remove_one(const char *path, const struct stat *stat_of, int kind, struct FTW *walk)
{
    (void)stat_of;
    (void)kind;
    (void)walk;
    return remove(path);
}

void kit_remove(const char *folder)
{
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const uint8_t kit_cache_key[AQ_CACHE_KEY_BYTES] = "the key of a cache of the tests";

void kit_config(const char *folder, char path[KIT_PATH], struct aq_cache_config *out)
{
    if (path != NULL && snprintf(path, KIT_PATH, "%s/cache", folder) >= KIT_PATH) abort();
    aq_cache_config_default(out);
    out->path = path;
    out->job_digest = 0x1234567890abcdef;
    out->job_name = "kit";
    out->value_bytes_max = 10000;
    out->samples_max = 64;
    out->slots = 6;
    out->depth = 3;
    const char *sealed = getenv("AQ_KIT_SEALED");
    out->sealed = sealed && strcmp(sealed, "1") == 0;
    out->key = out->sealed ? kit_cache_key : NULL;
}

struct aq_cache_key kit_key(uint64_t sample)
{
    return (struct aq_cache_key){.sample = sample,
                                 .edge = (uint32_t)(sample % 3),
                                 .variant = (uint16_t)(sample % 2),
                                 .side = (uint16_t)(sample % 5 > 2)};
}

uint64_t kit_bytes(uint64_t sample, uint64_t version, uint64_t bytes_max)
{
    const struct aq_rng_key rng = aq_rng_key(77, AQ_RNG_TEST, sample, version);
    return 1 + aq_rng_below(&rng, 0, bytes_max);
}

void kit_fill(uint64_t sample, uint64_t version, void *out, uint64_t bytes)
{
    const struct aq_rng_key rng = aq_rng_key(78, AQ_RNG_TEST, sample, version);
    uint8_t *at = out;
    for (uint64_t i = 0; i < bytes; i += 16) {
        uint32_t words[4];
        aq_rng_block(&rng, i / 16, words);
        memcpy(at + i, words, bytes - i < 16 ? bytes - i : 16);
    }
}

uint64_t kit_deadline(void)
{
    return aq_clock_after(UINT64_C(120000000000));
}

enum aq_status kit_put(struct aq_cache *cache, uint64_t sample, uint64_t version, uint64_t bytes_max)
{
    const struct aq_cache_key key = kit_key(sample);
    const uint64_t bytes = kit_bytes(sample, version, bytes_max);
    void *slot;
    AQ_TRY(aq_cache_slot(cache, kit_deadline(), &slot));
    kit_fill(sample, version, slot, bytes);
    const enum aq_status status = aq_cache_put(cache, &key, version, aq_digest(slot, bytes), slot, bytes);
    if (status != AQ_OK) aq_cache_slot_return(cache, slot);
    return status;
}

bool kit_is(const struct aq_cache_entry *entry, uint64_t sample, uint64_t version, uint64_t bytes_max)
{
    const uint64_t bytes = kit_bytes(sample, version, bytes_max);
    uint8_t *wanted = malloc(bytes);
    if (wanted == NULL) abort();
    kit_fill(sample, version, wanted, bytes);
    const bool same = entry->version == version && entry->byte_count == bytes &&
                      memcmp(entry->bytes, wanted, bytes) == 0 && entry->digest == aq_digest(wanted, bytes);
    if (!same)
        printf("sample %" PRIu64 ": version %" PRIu64 " bytes %" PRIu64 ", wanted %" PRIu64 " and %" PRIu64 "\n",
               sample, entry->version, entry->byte_count, version, bytes);
    free(wanted);
    return same;
}

bool kit_same(struct aq_cache *cache, uint64_t sample, uint64_t version, uint64_t bytes_max)
{
    const struct aq_cache_key key = kit_key(sample);
    struct aq_cache_entry entry;
    const enum aq_status status = aq_cache_get(cache, &key, kit_deadline(), &entry);
    if (status != AQ_OK) {
        printf("sample %" PRIu64 " version %" PRIu64 ": %s\n", sample, version, aq_status_text(status));
        return false;
    }
    const bool same = kit_is(&entry, sample, version, bytes_max);
    aq_cache_release(cache, &entry);
    return same;
}

enum aq_status kit_mark(struct aq_cache *cache, uint64_t mark)
{
    enum aq_status status;
    const uint64_t deadline_ns = kit_deadline();
    AQ_TRY(aq_cache_mark_begin(cache, mark));
    while ((status = aq_cache_mark_done(cache)) == AQ_AGAIN && aq_clock_ns() < deadline_ns)
        usleep(200);
    return status;
}

static struct aq_mutex *log_mutex; /* the storage thread logs too */
static char log_text[1 << 16];
static size_t log_used;
static char log_last[1024];

static void log_take(int level, const char *line, void *context)
{
    (void)context;
    const size_t bytes = strlen(line);
    aq_mutex_lock(log_mutex);
    if (level == 0) snprintf(log_last, sizeof(log_last), "%s", line);
    if (log_used + bytes + 2 <= sizeof(log_text)) {
        memcpy(log_text + log_used, line, bytes);
        log_used += bytes;
        log_text[log_used++] = '\n';
        log_text[log_used] = 0;
    }
    aq_mutex_unlock(log_mutex);
}

void kit_log_start(void)
{
    if (log_mutex == NULL && aq_mutex_open(&log_mutex) != AQ_OK) abort();
    kit_log_clear();
    aq_log_sink(log_take, NULL);
}

void kit_log_clear(void)
{
    aq_mutex_lock(log_mutex);
    log_used = 0;
    log_text[0] = 0;
    log_last[0] = 0;
    aq_mutex_unlock(log_mutex);
}

const char *kit_log_last(void)
{
    return log_last;
}

bool kit_log_has(const char *part)
{
    aq_mutex_lock(log_mutex);
    const bool found = strstr(log_text, part) != NULL;
    aq_mutex_unlock(log_mutex);
    return found;
}
