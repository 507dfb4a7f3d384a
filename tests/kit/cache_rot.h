/* cache_rot.h -- a message of a cache in memory loses a bit: the next get finds it, and answers AQ_CORRUPT. */
#ifndef TESTS_CACHE_ROT_H
#define TESTS_CACHE_ROT_H

#include "storage/cache.h"

static inline enum aq_status cache_rot(struct aq_cache *cache, const struct aq_cache_key *key)
{
    struct aq_cache_entry entry;
    AQ_TRY(aq_cache_get(cache, key, aq_clock_after(UINT64_C(120000000000)), &entry));
    *(uint8_t *)(uintptr_t)entry.bytes ^= 1;
    aq_cache_release(cache, &entry);
    return AQ_OK;
}

#endif
