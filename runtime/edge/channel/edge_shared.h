/*
 * edge_shared.h -- the channel of gradients that cross an edge whole (docs/FRAME.md, "SHARED"): sums of tensors that
 * several stages hold, all gradients of a client's end, and a tied table.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_EDGE_SHARED_H
#define RUNTIME_EDGE_SHARED_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

struct aq_edge; /* edge.h */

/*
 * Sums of gradients of tensors that both sides hold, shape.shared floats in host memory: one a step each way. AQ_AGAIN:
 * not all has been handed over, or has come; call again with the same. AQ_PROTO: those of another step came.
 */
enum aq_status aq_edge_send_shared(struct aq_edge *edge, uint64_t step, const float *values);
enum aq_status aq_edge_receive_shared(struct aq_edge *edge, uint64_t step, float *values);

/* What crosses whole: those, all gradients of a client's end, and what the two sides of a tied table exchange. */
enum aq_edge_whole { AQ_EDGE_SHARED, AQ_EDGE_SUMMED, AQ_EDGE_TIED, AQ_EDGE_WHOLES };

/*
 * The last two are in memory of the edge: shape.summed floats, or up to shape.tied words of 4 bytes (stages/stage.h).
 * It is the edge's, where what the other side sends comes to lie, or the caller's: from hold or receive on until
 * release or the end of a send; what comes meanwhile is refused.
 *
 *     client: hold; fill the memory; send (nothing where it had no samples); receive; use it; release
 *     server: receive (nothing where the client had no samples: hold); fill the memory; send
 *
 * words: of what crosses. SUMMED: all that the plan has, or 0: there is no sum, and the values mean nothing. TIED: 1 to
 * the plan's. AQ_AGAIN of send and receive: call again with the same. AQ_PROTO: those of another step came (receive),
 * or some before they were due (hold).
 */
float *aq_edge_whole(const struct aq_edge *edge, enum aq_edge_whole which);
enum aq_status aq_edge_whole_hold(struct aq_edge *edge, enum aq_edge_whole which);
void aq_edge_whole_release(struct aq_edge *edge, enum aq_edge_whole which);
enum aq_status aq_edge_whole_send(struct aq_edge *edge, enum aq_edge_whole which, uint64_t step, uint64_t words);
enum aq_status aq_edge_whole_receive(struct aq_edge *edge, enum aq_edge_whole which, uint64_t step, uint64_t *words);

/* The state of the channel: what crosses whole, once a step each way. */
struct aq_edge_vector {
    float *values;
    uint64_t count;            /* of them, at most; 0: this edge has no such vector                   */
    uint64_t total;            /* of what comes, or came last: how many it has                        */
    uint64_t step, here, sent; /* of what comes: its step, how many are here; of what leaves how many */
    bool none;                 /* what came is no vector: there is no sum                             */
    bool held;                 /* the values are this side's now, and nothing may come                */
};

struct aq_edge_vectors {
    struct aq_edge_vector of[AQ_EDGE_WHOLES]; /* in memory in this order; counts are the shape's */
};

#endif
