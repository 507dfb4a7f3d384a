/*
 * edge_key.h -- the key of a sealed cache, from the client's stage to the server's (docs/FRAME.md, KEY).
 *
 * It goes over the link of the two stages, and nowhere else: neither launcher nor daemon nor the server's own process
 * ever has it. Two frames without a body, the first of the link: the stage that takes them opens its cache by them,
 * before there is an edge.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_EDGE_KEY_H
#define RUNTIME_EDGE_KEY_H

#include <stdint.h>

#include "aqsgd/base.h"
#include "net/link.h"
#include "storage/cache.h"

struct aq_edge; /* edge.h */

/* After aq_edge_open and before anything else of this edge. The key is copied. */
enum aq_status aq_edge_send_key(struct aq_edge *edge, const uint8_t key[AQ_CACHE_KEY_BYTES]);

/* Waits for it; key is written only on success. AQ_PROTO: something else came; AQ_TIMEOUT; why the link ended. */
enum aq_status aq_edge_take_key(struct aq_link *link, struct aq_eventcount *eventcount, uint64_t deadline_ns,
                                uint8_t key[AQ_CACHE_KEY_BYTES]);

#endif
