/*
 * edge_row.h -- the table at the head of a micro-batch's body: one row per sample (docs/FORMAT.md, "Body of a
 * micro-batch").
 *
 * The body of a FORWARD, BACKWARD or EVAL frame is `samples` rows, then the samples' coded bodies in the same order,
 * each at a multiple of 16 from the start of the body; the gaps are zero. Little-endian. In a frame with the flag
 * AQ_EDGE_CHECKED, digests of decoded values follow the rows, 8 bytes each (edge_check.h).
 *
 *     offset bytes
 *          0     8  sample id
 *          8     8  version of m that it was coded against; 0: none (a keyframe, raw, or a stateless codec)
 *         16     8  version of m after; 0: nothing is stored
 *         24     8  digest of m before; 0 where version before is 0
 *         32     8  digest of m after; 0 where version after is 0
 *         40     4  bytes of the coded body
 *         44     2  flags: enum aq_coded_flag, AQ_EDGE_HELD, AQ_EDGE_WIDE
 *         46     2  variant
 */
#ifndef RUNTIME_EDGE_ROW_H
#define RUNTIME_EDGE_ROW_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum {
    AQ_EDGE_ROW_BYTES = 48,
    AQ_EDGE_CHECK_BYTES = 8,
    AQ_EDGE_BODY_ALIGN = 16,
    AQ_EDGE_HELD = 4,         /* no body: both ends hold this very message, and it is the activation */
    AQ_EDGE_WIDE = 8,         /* by the codec of what fp16 cannot hold (aq_edge_wide)                */
    AQ_EDGE_SAMPLE_BYTES = 64 /* room in the body of a frame for one sample's row and the gap behind its body */
};

static_assert(AQ_EDGE_ROW_BYTES + AQ_EDGE_BODY_ALIGN <= AQ_EDGE_SAMPLE_BYTES,
              "there must be room for a row and its gap");

/* Of a version: the message is one of the wide codec, whose bytes the other codec would read as other values. */
#define AQ_EDGE_WIDE_VERSION (1ull << 63)

struct aq_edge_row {
    uint64_t sample;
    uint64_t version_before, version_after;
    uint64_t digest_before, digest_after;
    uint32_t body_bytes;
    uint16_t flags;
    uint16_t variant;
};

/* Write and read one row; `bytes` has AQ_EDGE_ROW_BYTES. */
void aq_edge_row_write(const struct aq_edge_row *row, uint8_t *bytes);
void aq_edge_row_read(const uint8_t *bytes, struct aq_edge_row *row);

/* The same of a digest behind the rows, of AQ_EDGE_CHECK_BYTES. */
void aq_edge_check_write(uint64_t digest, uint8_t *bytes);
uint64_t aq_edge_check_read(const uint8_t *bytes);

/* Rounds an offset up to the start of a body. */
static inline uint32_t aq_edge_body_align(uint32_t at)
{
    return (at + AQ_EDGE_BODY_ALIGN - 1) / AQ_EDGE_BODY_ALIGN * AQ_EDGE_BODY_ALIGN;
}

#endif
