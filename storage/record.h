/*
 * record.h -- the bytes of cache files: heads and records (docs/FORMAT.md, "Cache files").
 *
 * All numbers are little-endian, except in keys, which are big-endian so that LMDB's order is edge, side, variant,
 * sample. Everything read from a file passes through a check here before anything else looks at it. Locking: pure
 * functions.
 */
#ifndef STORAGE_RECORD_H
#define STORAGE_RECORD_H

#include "store.h"

enum {
    AQ_RECORD_FORMAT = 1, /* version of both files                               */
    AQ_RECORD_FORMAT_SEALED = 2,
    AQ_RECORD_SALT_BYTES = 16,
    AQ_RECORD_SEAL_BYTES = 28,  /* behind a message: nonce and tag (vault.h)           */
    AQ_RECORD_INDEX = 1,        /* head.kind of the index                              */
    AQ_RECORD_SLAB = 2,         /* head.kind of the slab                               */
    AQ_RECORD_NAME_BYTES = 128, /* job's name with its zero; longer names are cut      */
    AQ_RECORD_KEY_BYTES = 16
};

struct aq_record_head {
    char magic[8];
    uint32_t format;
    uint32_t kind;
    uint64_t job_digest;
    uint64_t nonce; /* the same in index and slab of one cache */
    uint64_t value_bytes_max;
    uint64_t cell_bytes;
    uint64_t mark_last;     /* 0: none; always 0 in a slab's head */
    uint64_t mark_previous; /* 0: none                            */
    uint64_t entries;       /* messages held at mark_last         */
    char name[AQ_RECORD_NAME_BYTES];
    uint8_t lost; /* index: 1 since messages were lost that a neighbour may still hold; else 0 */
    uint8_t sealed; /* 1: messages are encrypted (vault.h); else 0, and all up to `check` is zero */
    uint8_t zero[6];
    uint8_t salt[AQ_RECORD_SALT_BYTES];
    uint64_t key_check; /* another key has another one */
    uint8_t zeros[16];
    uint64_t check; /* digest of the bytes before it */
};

struct aq_record {
    uint64_t mark; /* true since this mark */
    uint64_t version;
    uint64_t digest;
    uint32_t bytes;
    uint32_t cell; /* AQ_STORE_NONE: dropped */
    uint64_t check;
};

/* The value of a key: the newest record first, and behind it the one that mark_previous may need. */
enum { AQ_RECORD_CHAIN = 2 };

struct aq_record_identity {
    uint64_t job_digest;
    const char *job_name;
    uint64_t value_bytes_max;
    bool sealed; /* then: */
    uint8_t salt[AQ_RECORD_SALT_BYTES];
    uint64_t key_check;
};

/* Bytes that a message takes in its cell, and bytes of a cell by the largest message. */
static inline uint64_t aq_record_blocks(bool sealed, uint64_t bytes)
{
    return aq_store_blocks(bytes + (sealed ? AQ_RECORD_SEAL_BYTES : 0));
}

void aq_record_head_make(struct aq_record_head *head, uint32_t kind, const struct aq_record_identity *identity,
                         uint64_t nonce);
void aq_record_head_seal(struct aq_record_head *head);
/* AQ_CORRUPT, AQ_MISMATCH (another format version); place is the file's name for the line. */
enum aq_status aq_record_head_check(const struct aq_record_head *head, uint32_t kind, const char *place);
/* AQ_MISMATCH: another job or name, another message size; the line names both. */
enum aq_status aq_record_head_match(const struct aq_record_head *head, const struct aq_record_identity *identity,
                                    const char *place);
enum aq_status aq_record_size_match(const struct aq_record_head *head, const struct aq_record_identity *identity,
                                    const char *place);

void aq_record_key(const struct aq_cache_key *key, uint8_t out[AQ_RECORD_KEY_BYTES]);
struct aq_cache_key aq_record_key_read(const uint8_t bytes[AQ_RECORD_KEY_BYTES]);
/* The index's head is under this key, which no message can have: edge 0xffffffff is refused. */
extern const uint8_t aq_record_head_key[AQ_RECORD_KEY_BYTES];

void aq_record_seal(struct aq_record *record, const uint8_t key[AQ_RECORD_KEY_BYTES]);
bool aq_record_good(const struct aq_record *record, const uint8_t key[AQ_RECORD_KEY_BYTES],
                    const struct aq_record_head *head);

/*
 * The records of one key's value, newest first, into out; how many, 0 where the value is not one or a record is broken.
 */
uint32_t aq_record_chain(const void *value, uint64_t bytes, const uint8_t key[AQ_RECORD_KEY_BYTES],
                         const struct aq_record_head *head, struct aq_record out[AQ_RECORD_CHAIN]);

/* The record that holds at `mark` (the newest that is not later), or NULL. */
const struct aq_record *aq_record_at(const struct aq_record *records, uint32_t count, uint64_t mark);

#endif
