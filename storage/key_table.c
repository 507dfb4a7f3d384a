/*
 * key_table.c -- open addressing with linear probing; removal shifts the followers back, so that no tombstones pile up.
 */
#include "key_table.h"

#include <assert.h>
#include <string.h>

static uint32_t home_of(const struct aq_key_table *keys, const struct aq_cache_key *key)
{
    return (uint32_t)aq_digest(key, sizeof(*key)) & keys->hash_mask;
}

static_assert(sizeof(struct aq_cache_key) == 16, "a key has no padding: it is hashed and compared as bytes");

void aq_key_table_place(struct aq_key_table *keys, struct aq_arena *arena, uint32_t capacity)
{
    AQ_ASSERT(capacity > 0 && capacity <= AQ_STORE_SAMPLES_MAX);
    uint32_t hash_count = 4;
    while (hash_count < 2 * (uint64_t)capacity)
        hash_count *= 2;
    *keys = (struct aq_key_table){.capacity = capacity, .hash_mask = hash_count - 1};
    keys->entries = aq_arena_take(arena, sizeof(struct aq_key_entry) * capacity);
    keys->hash = aq_arena_take(arena, sizeof(uint32_t) * hash_count);
    keys->free = aq_arena_take(arena, sizeof(uint32_t) * capacity);
    if (arena->base == NULL) return;
    memset(keys->hash, 0xff, sizeof(uint32_t) * hash_count);
    for (uint32_t i = 0; i < capacity; ++i) {
        keys->entries[i] = (struct aq_key_entry){.cell = AQ_STORE_NONE, .slot = AQ_STORE_NONE};
        keys->free[i] = capacity - 1 - i;
    }
    keys->free_count = capacity;
}

uint32_t aq_key_table_find(const struct aq_key_table *keys, const struct aq_cache_key *key)
{
    for (uint32_t at = home_of(keys, key);; at = (at + 1) & keys->hash_mask) {
        const uint32_t number = keys->hash[at];
        if (number == AQ_STORE_NONE || memcmp(&keys->entries[number].key, key, sizeof(*key)) == 0) return number;
    }
}

uint32_t aq_key_table_add(struct aq_key_table *keys, const struct aq_cache_key *key)
{
    uint32_t number = aq_key_table_find(keys, key);
    if (number != AQ_STORE_NONE || keys->free_count == 0) return number;
    number = keys->free[--keys->free_count];
    keys->entries[number] =
        (struct aq_key_entry){.key = *key, .cell = AQ_STORE_NONE, .slot = AQ_STORE_NONE, .used = true};
    uint32_t at = home_of(keys, key);
    while (keys->hash[at] != AQ_STORE_NONE)
        at = (at + 1) & keys->hash_mask;
    keys->hash[at] = number;
    return number;
}

void aq_key_table_remove(struct aq_key_table *keys, uint32_t number)
{
    AQ_ASSERT(number < keys->capacity && keys->entries[number].used);
    const uint32_t mask = keys->hash_mask;
    uint32_t hole = home_of(keys, &keys->entries[number].key);
    while (keys->hash[hole] != number)
        hole = (hole + 1) & mask;
    for (uint32_t at = (hole + 1) & mask; keys->hash[at] != AQ_STORE_NONE; at = (at + 1) & mask) {
        /* A follower may fill the hole unless its home is after the hole, on its way from home to here. */
        const uint32_t home = home_of(keys, &keys->entries[keys->hash[at]].key);
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        keys->hash[hole] = keys->hash[at];
        hole = at;
    }
    keys->hash[hole] = AQ_STORE_NONE;
    keys->entries[number] = (struct aq_key_entry){.cell = AQ_STORE_NONE, .slot = AQ_STORE_NONE};
    keys->free[keys->free_count++] = number;
}
