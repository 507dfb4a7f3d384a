/*
 * edge_mirror.h -- the channel of mirrored checkpoints (mirror.h): frames whose bodies are the caller's, either way,
 * which give way to training.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_EDGE_MIRROR_H
#define RUNTIME_EDGE_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "net/link.h"

struct aq_edge; /* edge.h */

/*
 * piece: a number below 32 by which aq_edge_mirror_sent returns the body to the caller, or AQ_EDGE_MIRROR_NO_PIECE for
 * a frame without one. AQ_PROTO: the other side asked for more than the link has room for.
 */
#define AQ_EDGE_MIRROR_NO_PIECE UINT32_MAX
enum aq_status aq_edge_send_mirror(struct aq_edge *edge, const struct aq_frame *frame, uint32_t piece);
uint32_t aq_edge_mirror_sent(struct aq_edge *edge); /* bits of the pieces that have come back since the last call */

/* The next one received; its body goes back by aq_edge_mirror_release. False: none. */
bool aq_edge_mirror_next(struct aq_edge *edge, struct aq_frame *out);
void aq_edge_mirror_release(struct aq_edge *edge, const void *body);

/* May a piece go now? When no training frame is on its way, or enough of them have gone since the last piece. */
bool aq_edge_mirror_turn(const struct aq_edge *edge);

#endif
