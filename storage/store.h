/*
 * store.h -- the seam of the message stores: what a member of stores.def fills in, and what all members share.
 *
 * cache.c checks the config and the arguments, then calls the member; a member may rely on that. A member embeds
 * struct aq_cache as its first field, so that the pointers of both are one.
 * Locking: every slot is called from the exec thread only.
 */
#ifndef STORAGE_STORE_H
#define STORAGE_STORE_H

#include "storage/cache.h"

enum {
    AQ_STORE_BLOCK = 4096,             /* O_DIRECT's alignment of memory, offsets and lengths                    */
    AQ_STORE_SLOTS_MAX = 16384,        /* the kernel registers at most 16384 buffers with one ring               */
    AQ_STORE_DEPTH_MAX = 256,          /* reads and writes in flight; beyond this no disk gains                  */
    AQ_STORE_VALUE_BYTES_MAX = 1 << 30 /* the kernel registers at most 1 GiB as one buffer                       */
};
#define AQ_STORE_SAMPLES_MAX (UINT64_C(1) << 28) /* four cells a key must be counted in 32 bits (cells.h)        */
#define AQ_STORE_NONE        UINT32_MAX          /* no slot, no cell, no entry                                   */

struct aq_store {
    const char *name;
    bool durable; /* a mark outlives the process, and the store needs a folder */
    enum aq_status (*open)(const struct aq_cache_config *config, struct aq_cache **out);
    void (*close)(struct aq_cache *cache); /* also half-built ones */
    enum aq_status (*prefetch)(struct aq_cache *cache, const struct aq_cache_key *key);
    enum aq_status (*get)(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t deadline_ns,
                          struct aq_cache_entry *out);
    void (*release)(struct aq_cache *cache, uint32_t slot);
    enum aq_status (*peek)(struct aq_cache *cache, const struct aq_cache_key *key, struct aq_cache_entry *out);
    enum aq_status (*slot)(struct aq_cache *cache, uint64_t deadline_ns, void **out);
    enum aq_status (*put)(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t version, uint64_t digest,
                          void *slot, uint64_t bytes);
    void (*slot_return)(struct aq_cache *cache, void *slot);
    enum aq_status (*drop)(struct aq_cache *cache, const struct aq_cache_key *key);
    enum aq_status (*mark_begin)(struct aq_cache *cache, uint64_t mark);
    enum aq_status (*mark_done)(struct aq_cache *cache);                     /* AQ_AGAIN until it is there */
    void (*stats)(const struct aq_cache *cache, struct aq_cache_stats *out); /* what it counts itself */
    uint64_t (*measure)(const struct aq_cache_config *config);
};

struct aq_cache {
    const struct aq_store *store;
    struct aq_cache_stats stats;
    uint64_t value_bytes_max;
    uint64_t mark;        /* the last one that was begun, or opened at        */
    uint64_t mark_before; /* the one before, where that one fails             */
    bool mark_running;    /* begun, and mark_done has not answered for it yet */
};

#define AQ_STORE(name) extern const struct aq_store aq_store_##name;
#include "stores.def"
#undef AQ_STORE

/* bytes rounded up to whole blocks. */
static inline uint64_t aq_store_blocks(uint64_t bytes)
{
    return (bytes + AQ_STORE_BLOCK - 1) / AQ_STORE_BLOCK * AQ_STORE_BLOCK;
}

#endif
