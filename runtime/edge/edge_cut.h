/*
 * edge_cut.h -- a cut inside one process: what the stage behind it would compute with, had an activation crossed it.
 *
 * For whoever asks a run's model instead of training it: no link and no cache, and every sample is one that was never
 * seen (a keyframe, where the codec has messages), as in an evaluation with AQ_EDGE_CODED (edge.h), bit for bit.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_EDGE_CUT_H
#define RUNTIME_EDGE_CUT_H

#include "edge.h"

struct aq_cut; /* opaque */

/* shape: copied; its rows are the most that come. AQ_INVAL as aq_codec_open, AQ_NOMEM. */
enum aq_status aq_cut_open(struct aq_device *device, const struct aq_edge_shape *shape, struct aq_cut **out);
void aq_cut_close(struct aq_cut *cut); /* NULL is fine */

/*
 * To a body and back: values, (samples, rows, columns) fp32 of the host, are replaced by what is decoded; of a sample
 * with a length that many rows, and what is behind them stays. AQ_CORRUPT: the codec cannot read its own body.
 */
enum aq_status aq_cut_pass(struct aq_cut *cut, const struct aq_edge_batch *batch, float *values);

#endif
