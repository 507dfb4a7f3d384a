/*
 * record.c -- makes, seals and checks heads and records. The offset table is in docs/FORMAT.md, "Cache files".
 */
#include "record.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static_assert(sizeof(struct aq_record_head) == 256 && offsetof(struct aq_record_head, check) == 248, "no padding");
static_assert(offsetof(struct aq_record_head, name) == 72, "no padding");
static_assert(offsetof(struct aq_record_head, salt) == 208, "no padding");
static_assert(offsetof(struct aq_record_head, key_check) == 224, "no padding");
static_assert(sizeof(struct aq_record) == 40 && offsetof(struct aq_record, check) == 32, "no padding");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are copied as they lie in memory");

static const char magic[8] = {'A', 'Q', 'C', 'A', 'C', 'H', 'E', '\n'};
static const uint64_t check_seed = 0x4151434143484531; /* "AQCACHE1": record checks are no message digests */

const uint8_t aq_record_head_key[AQ_RECORD_KEY_BYTES] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                                         0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

static void name_cut(const char *name, char out[AQ_RECORD_NAME_BYTES])
{
    memset(out, 0, AQ_RECORD_NAME_BYTES);
    if (name != NULL) memcpy(out, name, strnlen(name, AQ_RECORD_NAME_BYTES - 1));
}

void aq_record_head_make(struct aq_record_head *head, uint32_t kind, const struct aq_record_identity *identity,
                         uint64_t nonce)
{
    *head = (struct aq_record_head){.format = identity->sealed ? AQ_RECORD_FORMAT_SEALED : AQ_RECORD_FORMAT,
                                    .kind = kind,
                                    .job_digest = identity->job_digest,
                                    .nonce = nonce,
                                    .value_bytes_max = identity->value_bytes_max,
                                    .cell_bytes = aq_record_blocks(identity->sealed, identity->value_bytes_max),
                                    .sealed = identity->sealed};
    if (identity->sealed) {
        memcpy(head->salt, identity->salt, sizeof(head->salt));
        head->key_check = identity->key_check;
    }
    memcpy(head->magic, magic, sizeof(magic));
    name_cut(identity->job_name, head->name);
    aq_record_head_seal(head);
}

void aq_record_head_seal(struct aq_record_head *head)
{
    head->check = aq_digest_seeded(head, offsetof(struct aq_record_head, check), check_seed);
}

enum aq_status aq_record_head_check(const struct aq_record_head *head, uint32_t kind, const char *place)
{
    if (memcmp(head->magic, magic, sizeof(magic)) != 0) {
        return aq_fail(AQ_CORRUPT, "cache", "%s is not a cache file: its first bytes are not AQCACHE", place);
    }
    if (head->format != AQ_RECORD_FORMAT && head->format != AQ_RECORD_FORMAT_SEALED) {
        return aq_fail(AQ_MISMATCH, "cache", "%s has cache format %" PRIu32 ", this program reads %d and %d", place,
                       head->format, AQ_RECORD_FORMAT, AQ_RECORD_FORMAT_SEALED);
    }
    if (head->check != aq_digest_seeded(head, offsetof(struct aq_record_head, check), check_seed)) {
        return aq_fail(AQ_CORRUPT, "cache", "%s: the head's checksum is wrong", place);
    }
    if (head->kind != kind || head->value_bytes_max == 0 || head->value_bytes_max > AQ_STORE_VALUE_BYTES_MAX ||
        head->sealed != (head->format == AQ_RECORD_FORMAT_SEALED) ||
        head->cell_bytes != aq_record_blocks(head->sealed, head->value_bytes_max) ||
        head->mark_previous > head->mark_last || head->entries > AQ_STORE_SAMPLES_MAX || head->lost > 1 ||
        head->name[AQ_RECORD_NAME_BYTES - 1] != 0) {
        return aq_fail(AQ_CORRUPT, "cache", "%s: the head's numbers contradict each other", place);
    }
    return AQ_OK;
}

enum aq_status aq_record_head_match(const struct aq_record_head *head, const struct aq_record_identity *identity,
                                    const char *place)
{
    char name[AQ_RECORD_NAME_BYTES];
    name_cut(identity->job_name, name);
    if (head->job_digest != identity->job_digest || memcmp(head->name, name, sizeof(name)) != 0) {
        return aq_fail(AQ_MISMATCH, "cache",
                       "%s is the cache of job \"%s\" (%016" PRIx64 "), not of \"%s\" (%016" PRIx64
                       "): name another folder, or remove this one",
                       place, head->name, head->job_digest, name, identity->job_digest);
    }
    return AQ_OK;
}

enum aq_status aq_record_size_match(const struct aq_record_head *head, const struct aq_record_identity *identity,
                                    const char *place)
{
    if (head->value_bytes_max == identity->value_bytes_max) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "cache", "%s holds messages of at most %" PRIu64 " bytes, job \"%s\" has %" PRIu64,
                   place, head->value_bytes_max, identity->job_name, identity->value_bytes_max);
}

void aq_record_key(const struct aq_cache_key *key, uint8_t out[AQ_RECORD_KEY_BYTES])
{
    for (int i = 0; i < 4; ++i)
        out[i] = (uint8_t)(key->edge >> (24 - 8 * i));
    for (int i = 0; i < 2; ++i)
        out[4 + i] = (uint8_t)(key->side >> (8 - 8 * i));
    for (int i = 0; i < 2; ++i)
        out[6 + i] = (uint8_t)(key->variant >> (8 - 8 * i));
    for (int i = 0; i < 8; ++i)
        out[8 + i] = (uint8_t)(key->sample >> (56 - 8 * i));
}

struct aq_cache_key aq_record_key_read(const uint8_t bytes[AQ_RECORD_KEY_BYTES])
{
    struct aq_cache_key key = {0};
    for (int i = 0; i < 4; ++i)
        key.edge = key.edge << 8 | bytes[i];
    for (int i = 0; i < 2; ++i)
        key.side = (uint16_t)(key.side << 8 | bytes[4 + i]);
    for (int i = 0; i < 2; ++i)
        key.variant = (uint16_t)(key.variant << 8 | bytes[6 + i]);
    for (int i = 0; i < 8; ++i)
        key.sample = key.sample << 8 | bytes[8 + i];
    return key;
}

static uint64_t record_check(const struct aq_record *record, const uint8_t key[AQ_RECORD_KEY_BYTES])
{
    /* The key is part of the check: a record that strayed to another key is broken there. */
    uint8_t bytes[AQ_RECORD_KEY_BYTES + offsetof(struct aq_record, check)];
    memcpy(bytes, key, AQ_RECORD_KEY_BYTES);
    memcpy(bytes + AQ_RECORD_KEY_BYTES, record, offsetof(struct aq_record, check));
    return aq_digest_seeded(bytes, sizeof(bytes), check_seed);
}

void aq_record_seal(struct aq_record *record, const uint8_t key[AQ_RECORD_KEY_BYTES])
{
    record->check = record_check(record, key);
}

bool aq_record_good(const struct aq_record *record, const uint8_t key[AQ_RECORD_KEY_BYTES],
                    const struct aq_record_head *head)
{
    if (record->check != record_check(record, key)) return false;
    if (record->mark == 0 || record->mark > head->mark_last) return false;
    return record->cell == AQ_STORE_NONE || (record->bytes > 0 && record->bytes <= head->value_bytes_max);
}

uint32_t aq_record_chain(const void *value, uint64_t bytes, const uint8_t key[AQ_RECORD_KEY_BYTES],
                         const struct aq_record_head *head, struct aq_record out[AQ_RECORD_CHAIN])
{
    const uint64_t count = bytes / sizeof(struct aq_record);
    if (count < 1 || count > AQ_RECORD_CHAIN || bytes % sizeof(struct aq_record) != 0) return 0;
    memcpy(out, value, bytes); /* LMDB's values have no alignment */
    for (uint64_t i = 0; i < count; ++i) {
        if (!aq_record_good(&out[i], key, head)) return 0;
        if (i > 0 && out[i].mark >= out[i - 1].mark) return 0;
    }
    return (uint32_t)count;
}

const struct aq_record *aq_record_at(const struct aq_record *records, uint32_t count, uint64_t mark)
{
    for (uint32_t i = 0; i < count; ++i) {
        if (records[i].mark <= mark) return &records[i];
    }
    return NULL;
}
