/*
 * key_table.h -- the table of keys: what the exec thread knows of every message, found by key in one probe or two.
 *
 * Entries live in an array of samples_max and keep their number while they live; a hash of numbers (open addressing,
 * linear probing, at most half full) finds them. All memory is placed in the caller's arena once. Locking: one thread.
 */
#ifndef STORAGE_KEY_TABLE_H
#define STORAGE_KEY_TABLE_H

#include "store.h"

struct aq_key_entry {
    struct aq_cache_key key;
    uint64_t version;
    uint64_t digest;
    uint32_t bytes;
    uint32_t cell; /* where its bytes are (the member's number), AQ_STORE_NONE while absent */
    uint32_t slot; /* the slot that holds them in memory, or AQ_STORE_NONE                  */
    bool present;  /* false: dropped, but not in a mark yet                                 */
    bool dirty;    /* changed since the last mark was begun                                 */
    bool used;
};

struct aq_key_table {
    struct aq_key_entry *entries;
    uint32_t *hash; /* numbers of entries, AQ_STORE_NONE where empty */
    uint32_t *free; /* a stack of unused numbers                     */
    uint32_t free_count;
    uint32_t capacity; /* entries                                       */
    uint32_t hash_mask;
};

/* Places and empties a table for `capacity` keys (1 to AQ_STORE_SAMPLES_MAX); with a measuring arena only adds up. */
void aq_key_table_place(struct aq_key_table *keys, struct aq_arena *arena, uint32_t capacity);

/* The number of key's entry, or AQ_STORE_NONE. */
uint32_t aq_key_table_find(const struct aq_key_table *keys, const struct aq_cache_key *key);

/* The number of key's entry, made (absent, clean) if it does not exist; AQ_STORE_NONE: the table is full. */
uint32_t aq_key_table_add(struct aq_key_table *keys, const struct aq_cache_key *key);

/* Forget an entry; its number will be given out again. */
void aq_key_table_remove(struct aq_key_table *keys, uint32_t number);

#endif
