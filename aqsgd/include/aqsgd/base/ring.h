/*
 * ring.h -- a bounded queue of fixed tokens from one thread to one other, and the bell that wakes a sleeper.
 *
 * Each thread owns its data and passes 64-bit tokens (an index, a pointer) over rings. A full ring is back-pressure:
 * push answers false and the caller keeps its token; nothing is dropped and no thread waits under a lock.
 *
 * A bell lets one thread sleep on several rings: producers ring it after a push. The sleeper reads the count *before*
 * it looks at its rings, and waits for that count to change, so that no ring of the bell is ever missed:
 *
 *     uint32_t seen = aq_bell_count(bell);
 *     if (nothing_ready()) aq_bell_wait(bell, seen, deadline_ns);
 *
 * Locking: push from one thread, pop from one thread; a bell from any.
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

struct aq_bell; /* opaque */

enum aq_status aq_bell_open(struct aq_bell **out); /* AQ_NOMEM */
void aq_bell_close(struct aq_bell *bell);          /* NULL is fine */
void aq_bell_ring(struct aq_bell *bell);           /* NULL is fine: no sleeper */
uint32_t aq_bell_count(const struct aq_bell *bell);
/* Sleep until the count is not `seen`, or until the absolute time (aq_clock_ns): AQ_OK or AQ_TIMEOUT. Never spins. */
enum aq_status aq_bell_wait(struct aq_bell *bell, uint32_t seen, uint64_t deadline_ns);

#ifdef __cplusplus
}
#endif
#endif
