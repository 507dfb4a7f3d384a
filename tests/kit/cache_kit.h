/*
 * cache_kit.h -- what the cache's tests share: a folder of their own, and messages whose bytes follow from key and
 * version.
 */
#ifndef TESTS_CACHE_KIT_H
#define TESTS_CACHE_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "aqsgd/base.h"
#include "storage/cache.h"

enum { KIT_PATH = 512 };

/* A new empty folder below $TMPDIR (or /tmp), or below `parent`. Ends the test program with 77 where there can be none.
 */
void kit_folder(const char *parent, char out[KIT_PATH]);
void kit_remove(const char *folder);

/*
 * A small config: messages of up to 10000 bytes, 64 of them, 6 slots, depth 3; kind lmdb at folder/cache. With
 * AQ_KIT_SEALED=1 in the environment it is sealed under kit_cache_key.
 */
extern const uint8_t kit_cache_key[AQ_CACHE_KEY_BYTES];
void kit_config(const char *folder, char path[KIT_PATH], struct aq_cache_config *out);

struct aq_cache_key kit_key(uint64_t sample);

/* The message of a sample's version: its length (1 to bytes_max) and bytes follow from the two. */
uint64_t kit_bytes(uint64_t sample, uint64_t version, uint64_t bytes_max);
void kit_fill(uint64_t sample, uint64_t version, void *out, uint64_t bytes);

/* Put this version of the sample. */
enum aq_status kit_put(struct aq_cache *cache, uint64_t sample, uint64_t version, uint64_t bytes_max);

/* Compare with what kit_put put; false (with a line) where anything differs. kit_same: get it before. */
bool kit_is(const struct aq_cache_entry *entry, uint64_t sample, uint64_t version, uint64_t bytes_max);
bool kit_same(struct aq_cache *cache, uint64_t sample, uint64_t version, uint64_t bytes_max);

/* Make a mark and wait for it. */
enum aq_status kit_mark(struct aq_cache *cache, uint64_t mark);

uint64_t kit_deadline(void); /* 120 s from now */

/* Log lines go to a buffer; the last error line is text. */
const char *kit_log_last(void);
bool kit_log_has(const char *part); /* did any line since kit_log_clear contain it? */
void kit_log_start(void);
void kit_log_clear(void);

#endif
