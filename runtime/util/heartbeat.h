/*
 * heartbeat.h -- a worker's heartbeat: a page of memory in which its process counts and its daemon reads.
 *
 * The daemon makes the page before it starts a worker, which finds it at fd 4. A thread of the worker's counts beats
 * there, whatever exec computes; exec counts its work, and sets its phase. No line, no lock, nothing that could be
 * full: the daemon reads the numbers at any time and sends them to the launcher. The worker can forge them; but it
 * cannot make the page smaller or larger (seals), so that reading never faults.
 *
 * Locking: aq_heartbeat_work, aq_heartbeat_phase: any thread, no waiting. The rest: one thread.
 */
#ifndef RUNTIME_HEARTBEAT_H
#define RUNTIME_HEARTBEAT_H

#include <stdint.h>

#include "aqsgd/base.h"

enum { AQ_HEARTBEAT_FD = 4 };

/* The phase of a stage: for the one line that shows where a job is stuck. */
enum aq_phase {
    AQ_PHASE_START = 0,
    AQ_PHASE_GO,
    AQ_PHASE_COMPUTE,
    AQ_PHASE_NEIGHBOUR,
    AQ_PHASE_REDUCE,
    AQ_PHASE_UPDATE,
    AQ_PHASE_EVALUATE,
    AQ_PHASE_MARK,
    AQ_PHASE_END,
    AQ_PHASE_SUMS,   /* split.mode: global, at the server: it waits for other clients */
    AQ_PHASE_DEVICE, /* from here on: before the first step, in this order; a worker reports the start of each */
    AQ_PHASE_DATA,
    AQ_PHASE_WEIGHTS,
    AQ_PHASE_CACHE,
    AQ_PHASE_CONNECT,
    AQ_PHASE_MEASURE,
    AQ_PHASES
};

/* "waits for its neighbours"; for an unknown number, "does something". */
const char *aq_phase_text(enum aq_phase phase);

struct aq_heartbeat_page; /* opaque */

struct aq_heartbeat_reading {
    uint64_t beats, work, step;
    enum aq_phase phase;
};

/* The daemon's: a page, and a descriptor of it for the worker (close it after the fork). AQ_NOMEM, AQ_IO. */
enum aq_status aq_heartbeat_make(uint64_t interval_ns, int *fd, struct aq_heartbeat_page **out);
void aq_heartbeat_free(struct aq_heartbeat_page *page); /* NULL is fine */
void aq_heartbeat_read(const struct aq_heartbeat_page *page, struct aq_heartbeat_reading *out);

/* The worker's: take the page at fd 4 and start to beat. Without one everything here does nothing. AQ_NOMEM. */
enum aq_status aq_heartbeat_open(void);
void aq_heartbeat_close(void);

/* Notifications of this event count are work, too: the results of links and disks. NULL: no more, before it is
 * closed. */
void aq_heartbeat_eventcount(struct aq_eventcount *eventcount);

void aq_heartbeat_work(void);
void aq_heartbeat_step(uint64_t step);
void aq_heartbeat_phase(enum aq_phase phase);

#endif
