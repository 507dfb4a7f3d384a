/*
 * charsmap.h -- SentencePiece's precompiled table of characters: which bytes at a place of a text become which text.
 *
 * The file is four bytes of length (little-endian), a double array of that many bytes (Darts-clone), and the texts that
 * its leaves point to, each with a zero at its end. A unit of the array has, from the lowest bit on: 8 bits of label,
 * a bit "a leaf is below", a bit "the offset is in blocks of 256", 22 bits of offset; of a leaf 31 bits are its value.
 *
 * Caveat: as in the package `tokenizers`, the *shortest* entry at a place counts, not the longest.
 *
 * Locking: a table does not change after open; any thread.
 */
#ifndef STAGES_CHARSMAP_H
#define STAGES_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

/*
 * Why a table is not one, or NULL; an empty one has no rules. Of a good one every block of 256 units that a unit points
 * to is within the array, every leaf within the texts, and each text is UTF-8 of at most 64 bytes (nmt_nfkc's longest
 * has 33).
 */
const char *aq_charsmap_problem(const uint8_t *bytes, size_t count);

struct aq_charsmap;
/* From the base64 of a table. place: for messages. AQ_CORRUPT: why it is no table. AQ_NOMEM. */
enum aq_status aq_charsmap_open(const char *place, const char *base64, struct aq_charsmap **out);
void aq_charsmap_close(struct aq_charsmap *map); /* NULL is fine */

/* The replacement for the first of these bytes (borrowed from the table, *length bytes); NULL: no entry matches. */
const uint8_t *aq_charsmap_find(const struct aq_charsmap *map, const uint8_t *bytes, size_t count, size_t *length);
/* Does this ASCII character stay as it is? */
bool aq_charsmap_stays(const struct aq_charsmap *map, uint8_t ascii);

/* The little-endian word of 4 bytes. */
uint32_t charsmap_word(const uint8_t *bytes);

#endif
