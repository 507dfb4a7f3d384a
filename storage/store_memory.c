/*
 * store_memory.c -- the store in memory: every message has a buffer of one pool, and a put moves the buffer, never the
 * bytes.
 *
 * A mark is a point in time only while the process lives, and nothing can be rolled back to it: it is granted at once.
 * A job with this store starts cold after a restart.
 */
#include <inttypes.h>

#include "key_table.h"

struct buffer {
    uint32_t entry; /* whose message it holds, AQ_STORE_NONE: no entry's */
    uint32_t refs;
    bool lent;
};

struct memory_store {
    struct aq_cache base;
    struct aq_pages pages;
    struct aq_key_table keys;
    struct buffer *buffers;
    uint32_t *free;
    uint8_t *memory;
    void *tables;
    uint64_t memory_bytes, tables_bytes, cell_bytes;
    uint32_t buffer_count, free_count;
    uint32_t entries_max; /* bytes_max in messages */
    bool full_said;
};

static struct memory_store *store_of(struct aq_cache *cache)
{
    return (struct memory_store *)cache;
}

static uint32_t entries_max(const struct aq_cache_config *config)
{
    const uint64_t most = config->bytes_max / aq_store_blocks(config->value_bytes_max);
    return (uint32_t)(config->bytes_max > 0 && most < config->samples_max ? most : config->samples_max);
}

static void tables_place(struct memory_store *store, struct aq_arena *arena, const struct aq_cache_config *config)
{
    store->buffer_count = entries_max(config) + config->slots;
    aq_key_table_place(&store->keys, arena, (uint32_t)config->samples_max);
    store->buffers = aq_arena_take(arena, sizeof(struct buffer) * store->buffer_count);
    store->free = aq_arena_take(arena, sizeof(uint32_t) * store->buffer_count);
}

static uint64_t memory_measure(const struct aq_cache_config *config)
{
    struct memory_store store = {.cell_bytes = 0};
    struct aq_arena arena = {.base = NULL};
    tables_place(&store, &arena, config);
    return arena.used + aq_store_blocks(config->value_bytes_max) * store.buffer_count;
}

static void memory_close(struct aq_cache *cache)
{
    struct memory_store *store = store_of(cache);
    aq_pages_give(&store->pages, store->memory, store->memory_bytes);
    aq_unmap(store->tables, store->tables_bytes);
    aq_free(store);
}

static enum aq_status memory_open(const struct aq_cache_config *config, struct aq_cache **out)
{
    enum aq_status status = AQ_OK;
    void *memory = NULL;
    struct memory_store *store;
    AQ_TRY(AQ_NEW(1, &store));
    struct aq_arena arena = {.base = NULL};
    store->base.store = &aq_store_memory;
    store->base.stats.lost = config->lost;
    store->cell_bytes = aq_store_blocks(config->value_bytes_max);
    store->entries_max = entries_max(config);
    tables_place(store, &arena, config);
    AQ_TRY_GOTO(aq_map(arena.used, &memory), out);
    store->tables = memory;
    store->tables_bytes = arena.used;
    arena = (struct aq_arena){.base = memory, .bytes = arena.used};
    tables_place(store, &arena, config);
    store->pages = config->pages;
    AQ_TRY_GOTO(aq_pages_take(&store->pages, store->cell_bytes * store->buffer_count, &memory), out);
    store->memory = memory;
    store->memory_bytes = store->cell_bytes * store->buffer_count;
    for (uint32_t i = 0; i < store->buffer_count; ++i) {
        store->buffers[i] = (struct buffer){.entry = AQ_STORE_NONE};
        store->free[store->free_count++] = store->buffer_count - 1 - i;
    }
    if (config->mark > 0) {
        aq_log("cache", 1,
               "a cache in memory does not outlive its process: checkpoint %" PRIu64 " is lost, every sample is cold",
               config->mark);
    }
    *out = &store->base;
    return AQ_OK;
out:
    memory_close(&store->base);
    return status;
}

/* Free again if no caller has it. */
static void buffer_leave(struct memory_store *store, uint32_t number)
{
    struct buffer *buffer = &store->buffers[number];
    if (buffer->entry != AQ_STORE_NONE || buffer->refs > 0 || buffer->lent) return;
    store->free[store->free_count++] = number;
}

static struct aq_key_entry *entry_find(struct memory_store *store, const struct aq_cache_key *key, uint32_t *number)
{
    *number = aq_key_table_find(&store->keys, key);
    return *number == AQ_STORE_NONE ? NULL : &store->keys.entries[*number];
}

static uint8_t *bytes_of(const struct memory_store *store, uint32_t buffer)
{
    return store->memory + store->cell_bytes * buffer;
}

static enum aq_status memory_prefetch(struct aq_cache *cache, const struct aq_cache_key *key)
{
    (void)cache;
    (void)key;
    return AQ_OK; /* it is in memory already */
}

static void entry_drop(struct memory_store *store, uint32_t number)
{
    struct aq_key_entry *entry = &store->keys.entries[number];
    store->buffers[entry->cell].entry = AQ_STORE_NONE;
    buffer_leave(store, entry->cell);
    --store->base.stats.entries;
    store->base.stats.entry_bytes -= entry->bytes;
    aq_key_table_remove(&store->keys, number);
}

static enum aq_status memory_get(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t deadline_ns,
                                 struct aq_cache_entry *out)
{
    struct memory_store *store = store_of(cache);
    uint32_t number;
    (void)deadline_ns;
    const struct aq_key_entry *entry = entry_find(store, key, &number);
    if (entry == NULL) return AQ_NOTFOUND;
    ++cache->stats.prefetched;
    const uint8_t *bytes = bytes_of(store, entry->cell);
    const uint64_t begin_ns = aq_clock_ns();
    const bool same = aq_digest(bytes, entry->bytes) == entry->digest;
    cache->stats.check_ns += aq_clock_ns() - begin_ns;
    if (!same) {
        ++cache->stats.corrupt;
        cache->stats.lost = true;
        aq_fail(AQ_CORRUPT, "cache",
                "memory: sample %" PRIu64 " edge %" PRIu32 ": its bytes have changed since they were written",
                key->sample, key->edge);
        entry_drop(store, number);
        return AQ_CORRUPT;
    }
    ++store->buffers[entry->cell].refs;
    *out = (struct aq_cache_entry){.bytes = bytes,
                                   .byte_count = entry->bytes,
                                   .version = entry->version,
                                   .digest = entry->digest,
                                   .slot = entry->cell};
    return AQ_OK;
}

static void memory_release(struct aq_cache *cache, uint32_t number)
{
    struct memory_store *store = store_of(cache);
    AQ_ASSERT(number < store->buffer_count && store->buffers[number].refs > 0);
    --store->buffers[number].refs;
    buffer_leave(store, number);
}

static enum aq_status memory_peek(struct aq_cache *cache, const struct aq_cache_key *key, struct aq_cache_entry *out)
{
    uint32_t number;
    const struct aq_key_entry *entry = entry_find(store_of(cache), key, &number);
    if (entry == NULL) return AQ_NOTFOUND;
    *out = (struct aq_cache_entry){
        .byte_count = entry->bytes, .version = entry->version, .digest = entry->digest, .slot = AQ_STORE_NONE};
    return AQ_OK;
}

static enum aq_status memory_slot(struct aq_cache *cache, uint64_t deadline_ns, void **out)
{
    struct memory_store *store = store_of(cache);
    (void)deadline_ns;
    if (store->free_count < cache->stats.slots_free_low) cache->stats.slots_free_low = store->free_count;
    if (store->free_count == 0) return AQ_AGAIN; /* the rest is the caller's: only a release brings one back */
    const uint32_t number = store->free[--store->free_count];
    store->buffers[number].lent = true;
    *out = bytes_of(store, number);
    return AQ_OK;
}

static uint32_t buffer_of(const struct memory_store *store, const void *bytes)
{
    const uint64_t offset = (uint64_t)((const uint8_t *)bytes - store->memory);
    AQ_ASSERT(offset % store->cell_bytes == 0 && offset / store->cell_bytes < store->buffer_count);
    return (uint32_t)(offset / store->cell_bytes);
}

static void memory_slot_return(struct aq_cache *cache, void *bytes)
{
    struct memory_store *store = store_of(cache);
    const uint32_t number = buffer_of(store, bytes);
    AQ_ASSERT(store->buffers[number].lent);
    store->buffers[number].lent = false;
    buffer_leave(store, number);
}

static enum aq_status memory_put(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t version,
                                 uint64_t digest, void *bytes, uint64_t byte_count)
{
    struct memory_store *store = store_of(cache);
    const uint32_t buffer = buffer_of(store, bytes);
    AQ_ASSERT(store->buffers[buffer].lent);
    uint32_t number = aq_key_table_find(&store->keys, key);
    if (number == AQ_STORE_NONE && cache->stats.entries >= store->entries_max) {
        if (store->full_said) return AQ_NOSPC;
        store->full_said = true;
        return aq_fail(AQ_NOSPC, "cache",
                       "memory: the limit (bytes_max or samples_max) is reached after %" PRIu64 " messages",
                       cache->stats.entries);
    }
    if (number != AQ_STORE_NONE) entry_drop(store, number);
    number = aq_key_table_add(&store->keys, key);
    AQ_ASSERT(number != AQ_STORE_NONE); /* entries_max <= samples_max */
    struct aq_key_entry *entry = &store->keys.entries[number];
    entry->present = true;
    entry->version = version;
    entry->digest = digest;
    entry->bytes = (uint32_t)byte_count;
    entry->cell = buffer;
    store->buffers[buffer].lent = false;
    store->buffers[buffer].entry = number;
    ++cache->stats.entries;
    cache->stats.entry_bytes += byte_count;
    store->full_said = false;
    return AQ_OK;
}

static enum aq_status memory_drop(struct aq_cache *cache, const struct aq_cache_key *key)
{
    struct memory_store *store = store_of(cache);
    uint32_t number;
    if (entry_find(store, key, &number) != NULL) entry_drop(store, number);
    return AQ_OK;
}

static enum aq_status memory_mark_begin(struct aq_cache *cache, uint64_t mark)
{
    (void)cache;
    (void)mark;
    return AQ_OK;
}

static enum aq_status memory_mark_done(struct aq_cache *cache)
{
    (void)cache;
    return AQ_OK;
}

static void memory_stats(const struct aq_cache *cache, struct aq_cache_stats *out)
{
    (void)cache;
    out->file_bytes = 0;
}

const struct aq_store aq_store_memory = {
    .name = "memory",
    .durable = false,
    .open = memory_open,
    .close = memory_close,
    .prefetch = memory_prefetch,
    .get = memory_get,
    .release = memory_release,
    .peek = memory_peek,
    .slot = memory_slot,
    .put = memory_put,
    .slot_return = memory_slot_return,
    .drop = memory_drop,
    .mark_begin = memory_mark_begin,
    .mark_done = memory_mark_done,
    .stats = memory_stats,
    .measure = memory_measure,
};
