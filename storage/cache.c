/*
 * cache.c -- the public face: checks the config and arguments, counts, and calls the store.
 */
#include "storage/cache.h"

#include <inttypes.h>
#include <string.h>

#include "store.h"

static const struct aq_store *const stores[] = {
#define AQ_STORE(name) &aq_store_##name,
#include "stores.def"
#undef AQ_STORE
};
enum { STORE_COUNT = sizeof(stores) / sizeof(stores[0]) };

void aq_cache_config_default(struct aq_cache_config *out)
{
    *out = (struct aq_cache_config){.kind = "lmdb", .slots = 16, .depth = 8, .direct = true};
}

uint32_t aq_cache_kind_count(void)
{
    return STORE_COUNT;
}

const char *aq_cache_kind(uint32_t number)
{
    return number < STORE_COUNT ? stores[number]->name : NULL;
}

static const struct aq_store *store_find(const char *kind)
{
    for (uint32_t i = 0; kind != NULL && i < STORE_COUNT; ++i) {
        if (strcmp(stores[i]->name, kind) == 0) return stores[i];
    }
    return NULL;
}

static enum aq_status config_check(const struct aq_cache_config *config)
{
    const struct aq_store *store = store_find(config->kind);
    if (store == NULL) {
        return aq_fail(AQ_INVAL, "cache", "the kind of cache \"%s\" is unknown: use lmdb or memory",
                       config->kind == NULL ? "" : config->kind);
    }
    if (config->value_bytes_max == 0 || config->value_bytes_max > AQ_STORE_VALUE_BYTES_MAX) {
        return aq_fail(AQ_INVAL, "cache", "messages of %" PRIu64 " bytes: must be 1 to %d", config->value_bytes_max,
                       AQ_STORE_VALUE_BYTES_MAX);
    }
    if (config->samples_max == 0 || config->samples_max > AQ_STORE_SAMPLES_MAX) {
        return aq_fail(AQ_INVAL, "cache", "samples_max %" PRIu64 ": must be 1 to %" PRIu64, config->samples_max,
                       AQ_STORE_SAMPLES_MAX);
    }
    if (config->slots < 2 || config->slots > AQ_STORE_SLOTS_MAX || config->depth == 0 ||
        config->depth > config->slots || config->depth > AQ_STORE_DEPTH_MAX) {
        return aq_fail(AQ_INVAL, "cache",
                       "%" PRIu32 " slots and depth %" PRIu32 ": 2 to %d slots, depth 1 to %d and <= slots",
                       config->slots, config->depth, AQ_STORE_SLOTS_MAX, AQ_STORE_DEPTH_MAX);
    }
    if (config->fresh && config->mark > 0) {
        return aq_fail(AQ_INVAL, "cache", "a fresh cache has no mark %" PRIu64, config->mark);
    }
    return AQ_OK;
}

enum aq_status aq_cache_open(const struct aq_cache_config *config, struct aq_cache **out)
{
    struct aq_cache *cache = NULL;
    AQ_TRY(config_check(config));
    if (store_find(config->kind)->durable && (!config->path || config->path[0] == 0 || !config->job_name))
        return aq_fail(AQ_INVAL, "cache", "a cache of kind \"%s\" needs a folder and the job's name", config->kind);
    if (store_find(config->kind)->durable && config->sealed && !config->key)
        return aq_fail(AQ_INVAL, "cache", "a sealed cache needs its key");
    AQ_TRY(store_find(config->kind)->open(config, &cache));
    cache->value_bytes_max = config->value_bytes_max;
    cache->mark = config->mark;
    cache->stats.slots_free_low = config->slots;
    aq_log("cache", 2, "open kind=%s mark=%" PRIu64 " entries=%" PRIu64 " bytes=%" PRIu64, config->kind, config->mark,
           cache->stats.entries, cache->stats.entry_bytes);
    *out = cache;
    return AQ_OK;
}

void aq_cache_close(struct aq_cache *cache)
{
    if (cache != NULL) cache->store->close(cache);
}

enum aq_status aq_cache_prefetch(struct aq_cache *cache, const struct aq_cache_key *key)
{
    return cache->store->prefetch(cache, key);
}

enum aq_status aq_cache_get(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t deadline_ns,
                            struct aq_cache_entry *out)
{
    const enum aq_status status = cache->store->get(cache, key, deadline_ns, out);
    if (status == AQ_OK || status == AQ_NOTFOUND || status == AQ_CORRUPT) ++cache->stats.gets;
    if (status == AQ_OK) ++cache->stats.hits;
    if (status == AQ_NOTFOUND) ++cache->stats.colds;
    return status;
}

void aq_cache_release(struct aq_cache *cache, struct aq_cache_entry *entry)
{
    cache->store->release(cache, entry->slot);
    *entry = (struct aq_cache_entry){.slot = AQ_STORE_NONE};
}

enum aq_status aq_cache_peek(struct aq_cache *cache, const struct aq_cache_key *key, struct aq_cache_entry *out)
{
    return cache->store->peek(cache, key, out);
}

enum aq_status aq_cache_slot(struct aq_cache *cache, uint64_t deadline_ns, void **out)
{
    return cache->store->slot(cache, deadline_ns, out);
}

enum aq_status aq_cache_put(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t version, uint64_t digest,
                            void *slot, uint64_t bytes)
{
    if (bytes == 0 || bytes > cache->value_bytes_max || key->edge == UINT32_MAX) {
        return aq_fail(AQ_INVAL, "cache", "put of %" PRIu64 " bytes for edge %" PRIu32 ": 1 to %" PRIu64 " bytes",
                       bytes, key->edge, cache->value_bytes_max);
    }
    AQ_TRY(cache->store->put(cache, key, version, digest, slot, bytes));
    ++cache->stats.puts;
    return AQ_OK;
}

void aq_cache_slot_return(struct aq_cache *cache, void *slot)
{
    cache->store->slot_return(cache, slot);
}

enum aq_status aq_cache_drop(struct aq_cache *cache, const struct aq_cache_key *key)
{
    AQ_TRY(cache->store->drop(cache, key));
    ++cache->stats.drops;
    return AQ_OK;
}

enum aq_status aq_cache_mark_begin(struct aq_cache *cache, uint64_t mark)
{
    if (mark <= cache->mark || cache->mark_running) {
        return aq_fail(AQ_INVAL, "cache", "mark %" PRIu64 " while mark %" PRIu64 " %s", mark, cache->mark,
                       cache->mark_running ? "is being made" : "exists: a new mark must be higher");
    }
    AQ_TRY(cache->store->mark_begin(cache, mark));
    cache->mark_before = cache->mark;
    cache->mark = mark;
    cache->mark_running = true;
    return AQ_OK;
}

enum aq_status aq_cache_mark_done(struct aq_cache *cache)
{
    if (!cache->mark_running) return AQ_OK;
    const enum aq_status status = cache->store->mark_done(cache);
    if (status == AQ_AGAIN) return status;
    cache->mark_running = false;
    if (status != AQ_OK) cache->mark = cache->mark_before;
    return status;
}

void aq_cache_stats(const struct aq_cache *cache, struct aq_cache_stats *out)
{
    *out = cache->stats;
    cache->store->stats(cache, out);
}

uint64_t aq_cache_measure(const struct aq_cache_config *config)
{
    return config_check(config) == AQ_OK ? store_find(config->kind)->measure(config) : 0;
}
