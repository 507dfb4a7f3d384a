/*
 * edge_norm.h -- the channel of numbers: one double per frame, sums of the gradient norm and of what the optimizer
 * decides by, either way.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_EDGE_NORM_H
#define RUNTIME_EDGE_NORM_H

#include <stdint.h>

#include "aqsgd/base.h"

struct aq_edge; /* edge.h */

/* Flags of a number. */
enum aq_edge_norm_flag {
    AQ_EDGE_LAST_STEP = 1, /* stop after this step: travels with the totals, from the first stage on    */
    AQ_EDGE_MARK_STEP = 2  /* a checkpoint after this step: as LAST_STEP, where checkpoint.every is a time */
};

/* One number with flags to the other side. AQ_AGAIN: the link has no room. */
enum aq_status aq_edge_send_norm(struct aq_edge *edge, uint64_t step, double value, uint16_t flags);
/* The next one. AQ_AGAIN: none is here; AQ_PROTO: it is of another step. */
enum aq_status aq_edge_receive_norm(struct aq_edge *edge, uint64_t step, double *value, uint16_t *flags);

/* Flags of the numbers of this step that have come and were not received yet. */
uint16_t aq_edge_norm_told(const struct aq_edge *edge, uint64_t step);

#endif
