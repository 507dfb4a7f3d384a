/*
 * edge_batch.h -- the samples of one frame that crosses a cut, and the flags of such frames.
 *
 * Locking: plain data.
 */
#ifndef RUNTIME_EDGE_BATCH_H
#define RUNTIME_EDGE_BATCH_H

#include <stdint.h>

#include "stages/augment.h"

/* The samples of a frame. */
struct aq_edge_batch {
    uint64_t step;
    uint32_t micro_batch;
    uint64_t base;              /* micro-batches before this step's, as slots are counted (program.h) */
    uint32_t samples;           /* 1..B                                   */
    const uint64_t *sample_ids; /* samples of them                        */
    const uint32_t *lengths;    /* rows of each that are real, 1 to the shape's: only they are coded, sent and
                                   cached; the receiver sets the others to zero. The count of a sample never
                                   changes. NULL: all */
    const struct aq_view *views; /* how each image is seen: cropped, in pixels of it, and flipped; NULL: none is */
    uint16_t flags;             /* of the frame: enum aq_edge_flag        */
    float rate;                 /* the step's learning rate; a guard uses it */
};

/* Which augmentation sample i is: each has its own m. */
static inline uint16_t aq_edge_variant(const struct aq_edge_batch *batch, uint32_t i)
{
    return batch->views ? batch->views[i].flipped : 0;
}

enum aq_edge_flag {
    AQ_EDGE_REMADE = 1,    /* of a MESSAGE: made again, so that its digest may be another one */
    AQ_EDGE_CARRIED = 2,   /* the edge's own: the frame has only rows, their bodies go from GPU to GPU */
    AQ_EDGE_CHECKED = 8,   /* the edge's own: digests of the decoded values follow the rows (edge_check.h) */
    AQ_EDGE_CODED = 4      /* of evaluation: the forward codec, and not raw; both ends set it */
};
enum { AQ_EDGE_LEVEL_SHIFT = 8, AQ_EDGE_LEVEL_MASK = 15 }; /* and bits 8 to 11, the edge's own: the bit level */

#endif
