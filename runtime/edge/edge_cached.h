/*
 * edge_cached.h -- edges that send a sample once, because its activation never changes.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_EDGE_CACHED_H
#define RUNTIME_EDGE_CACHED_H

#include "edge.h"

/*
 * A *still* edge (shape.still; edge_cached.c): nothing upstream of the cut trains and nothing is random there, so that
 * a sample's activation is the same at each visit. Its first visit is coded as any; from then on its row has the flag
 * AQ_EDGE_HELD (both ends hold the message), and there is no body. Frames of gradients have no body at all:
 * aq_edge_send_backward does not read its values, and aq_edge_receive_backward writes nothing.
 *
 * The sender's: does it hold all of these samples? Then no stage need compute them, and aq_edge_send_cached sends their
 * rows. AQ_NOTFOUND: one was lost meanwhile, nothing has happened. AQ_AGAIN as aq_edge_send_forward.
 */
bool aq_edge_is_cached(const struct aq_edge *edge, const struct aq_edge_batch *batch);
enum aq_status aq_edge_send_cached(struct aq_edge *edge, const struct aq_edge_batch *batch);

/*
 * The receiver's, if its own stage does not need the values: takes the next FORWARD frame if both ends hold all of its
 * samples. AQ_NOTFOUND: they do not, and the frame stays. If the values are needed after all, aq_edge_reload brings
 * those of a batch from the cache, or from the sender.
 */
enum aq_status aq_edge_receive_cached(struct aq_edge *edge, const struct aq_edge_batch *batch);
enum aq_status aq_edge_reload(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *x,
                              struct aq_stream *stream);

/*
 * The sender's: does the receiver wait for the message of a sample (*id) that this side has lost, too? Then compute the
 * activation of only this sample again, and hand it over. aq_edge_recompute_done: AQ_AGAIN as aq_edge_send_forward.
 */
bool aq_edge_recompute_pending(const struct aq_edge *edge, uint64_t *id);
enum aq_status aq_edge_recompute_done(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                      const struct aq_values *a, struct aq_stream *stream);

#endif
