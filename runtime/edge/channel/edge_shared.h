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

/*
 * All gradients of a client's end, shape.summed floats (not 0) in memory of the edge, to the server and the sum over
 * clients back. The memory is the edge's, where what the other side sends comes to lie, or the caller's: from hold or
 * receive on until release or the end of a send; what comes meanwhile is refused.
 *
 *     client: hold; fill aq_edge_summed; send (nothing where it had no samples); receive; use it; release
 *     server: receive (nothing where the client had no samples: hold); fill aq_edge_summed; send
 *
 * none: there is no sum, and the values mean nothing. AQ_AGAIN of send and receive: call again with the same. AQ_PROTO:
 * those of another step came (receive), or some before they were due (hold).
 */
float *aq_edge_summed(const struct aq_edge *edge);
enum aq_status aq_edge_hold_summed(struct aq_edge *edge);
void aq_edge_release_summed(struct aq_edge *edge);
enum aq_status aq_edge_send_summed(struct aq_edge *edge, uint64_t step, bool none);
enum aq_status aq_edge_receive_summed(struct aq_edge *edge, uint64_t step, bool *none);

/*
 * Data that the two sides of a tied table exchange (stages/stage.h), up to shape.tied words of 4 bytes in memory of the
 * edge: the gradient of the copy behind the cut, towards the first stage, and values or rows back. Holding, sending and
 * receiving are as above: the memory is the caller's from hold or receive on, until a send has ended or release.
 */
float *aq_edge_tied(const struct aq_edge *edge);
enum aq_status aq_edge_hold_tied(struct aq_edge *edge);
void aq_edge_release_tied(struct aq_edge *edge);
enum aq_status aq_edge_send_tied(struct aq_edge *edge, uint64_t step, uint64_t words);
enum aq_status aq_edge_receive_tied(struct aq_edge *edge, uint64_t step, uint64_t *words);

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
    struct aq_edge_vector shared, summed, tied; /* in memory in this order; counts are the shape's */
};

#endif
