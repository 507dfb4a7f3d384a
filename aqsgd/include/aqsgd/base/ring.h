/*
 * ring.h -- a bounded queue of fixed tokens from one thread to one other, and the event count that wakes a sleeper.
 *
 * Each thread owns its data and passes 64-bit tokens (an index, a pointer) over rings. A full ring is back-pressure:
 * push answers false and the caller keeps its token; nothing is dropped and no thread waits under a lock.
 *
 * An event count lets one thread sleep on several rings: producers notify it after a push. The sleeper reads the count
 * *before* it looks at its rings, and waits for that count to change, so that no notification is ever missed:
 *
 *     uint32_t seen = aq_eventcount_read(eventcount);
 *     if (nothing_ready()) aq_eventcount_wait(eventcount, seen, deadline_ns);
 *
 * Locking: push from one thread, pop from one thread; an event count from any.
 */
#ifndef AQSGD_BASE_RING_H
#define AQSGD_BASE_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_ring; /* opaque */

/* slots: how many tokens fit, a power of two of at most 65536. AQ_INVAL, AQ_NOMEM. */
enum aq_status aq_ring_open(uint32_t slots, struct aq_ring **out);
void aq_ring_close(struct aq_ring *ring); /* NULL is fine; no thread may still use it */
bool aq_ring_push(struct aq_ring *ring, uint64_t token);
bool aq_ring_pop(struct aq_ring *ring, uint64_t *token);
uint32_t aq_ring_count(const struct aq_ring *ring); /* a snapshot */

struct aq_eventcount; /* opaque */

enum aq_status aq_eventcount_open(struct aq_eventcount **out); /* AQ_NOMEM */
void aq_eventcount_close(struct aq_eventcount *eventcount);    /* NULL is fine */
void aq_eventcount_notify(struct aq_eventcount *eventcount);   /* NULL is fine: no sleeper */
uint32_t aq_eventcount_read(const struct aq_eventcount *eventcount);
/* Sleep until the count is not `seen`, or until the absolute time (aq_clock_ns): AQ_OK or AQ_TIMEOUT. Never spins. */
enum aq_status aq_eventcount_wait(struct aq_eventcount *eventcount, uint32_t seen, uint64_t deadline_ns);

#ifdef __cplusplus
}
#endif
#endif
