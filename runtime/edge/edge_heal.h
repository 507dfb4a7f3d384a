/*
 * edge_heal.h -- asking the other end for messages that this one may have lost, before their samples are due.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_EDGE_HEAL_H
#define RUNTIME_EDGE_HEAL_H

#include "edge.h"

/*
 * Ask the other side for those messages of these samples that this side may have lost, without waiting: they come to
 * the cache, before their samples if all goes well (else these wait for them, one by one). AQ_AGAIN: as many are asked
 * for as may be: try the same batch later. Of a cache that has lost nothing there is nothing to ask: aq_edge_refills.
 */
enum aq_status aq_edge_refill(struct aq_edge *edge, const struct aq_edge_batch *batch);
bool aq_edge_refills(const struct aq_edge *edge);

#endif
