/*
 * lengths.h -- the lengths of a data set's samples as a text, for stages that have no data: a launcher reads the data,
 * and sends with each start the length of every sample (docs/CONTROL.md). Also the tokens of a text, if a model is
 * asked.
 *
 * A length is 1 to `most`; each takes the bits that most - 1 has, at least one. The bits follow each other, lowest
 * first, six per character:
 *
 *     0..9 A..Z a..z - _      0 to 63
 *
 * The last character's unused bits are zero. So 8,551 samples of at most 64 tokens are 8,551 characters.
 *
 * Locking: none; pure functions.
 */
#ifndef RUNTIME_LENGTHS_H
#define RUNTIME_LENGTHS_H

#include <stdint.h>

#include "aqsgd/base.h"

enum { AQ_LENGTHS_TEXT_MAX = 1 << 20 }; /* of a line of the control plane: 898,000 samples of at most 128 tokens */

/* Characters of the text of `count` lengths. */
uint64_t aq_lengths_characters(uint64_t count, uint32_t most);

/* How many samples' lengths fit AQ_LENGTHS_TEXT_MAX characters. */
uint64_t aq_lengths_count_max(uint32_t most);

/* The text, terminated: memory of aq_alloc. Lengths are in range. AQ_NOMEM. */
enum aq_status aq_lengths_write(const uint32_t *lengths, uint64_t count, uint32_t most, char **text);

/* And back: any bytes give AQ_OK or AQ_PROTO (another count of lengths, an invalid character, a length beyond most). */
enum aq_status aq_lengths_read(const char *text, uint64_t count, uint32_t most, uint32_t *lengths);

#endif
