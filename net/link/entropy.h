/*
 * entropy.h -- one body smaller, and back: the lossless coder behind link.entropy.
 *
 * Codes are already dense; what is left in them is that some are more frequent than others. The coder is Zstandard with
 * its search for repetitions reduced to nothing that costs time: what remains is its Huffman stage. Only
 * entropy_zstd.c knows the library.
 *
 * The working memory is the library's own, taken at open (0.6 MB) and shared by all links of a loop.
 * Locking: one thread at a time: the net loop's.
 */
#ifndef NET_ENTROPY_H
#define NET_ENTROPY_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

struct aq_entropy; /* opaque */

enum aq_status aq_entropy_open(struct aq_entropy **out); /* AQ_NOMEM */
void aq_entropy_close(struct aq_entropy *entropy);       /* NULL is fine */

/* The bytes that were put to `out`; 0: they would be more than out_bytes. The same input gives the same bytes. */
uint32_t aq_entropy_pack(struct aq_entropy *entropy, const void *body, uint32_t body_bytes, void *out,
                         uint32_t out_bytes);

/* Any bytes from outside: true where they are one packed body of exactly raw_bytes, now in `out`. Never writes past
 * that; takes time by the sum of both sizes. */
bool aq_entropy_unpack(struct aq_entropy *entropy, const void *packed, uint32_t packed_bytes, void *out,
                       uint32_t raw_bytes);

#endif
