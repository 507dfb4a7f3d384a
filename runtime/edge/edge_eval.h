/*
 * edge_eval.h -- the channel of held-out samples.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_EDGE_EVAL_H
#define RUNTIME_EDGE_EVAL_H

#include "edge.h"

/*
 * Held-out samples, sender to receiver, without a cache: raw fp32; with AQ_EDGE_CODED in batch->flags by the forward
 * codec, each as a sample that was never seen (a keyframe, where the codec has messages). AQ_PROTO: the other side does
 * not do the same.
 */
enum aq_status aq_edge_send_eval(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *a,
                                 struct aq_stream *stream);
bool aq_edge_eval_here(const struct aq_edge *edge);
enum aq_status aq_edge_receive_eval(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *x,
                                    struct aq_stream *stream);

#endif
