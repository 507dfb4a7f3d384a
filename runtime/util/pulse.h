/*
 * pulse.h -- a worker's pulse: a page of memory in which its process counts and its daemon reads.
 *
 * The daemon makes the page before it starts a worker, which finds it at fd 4. A thread of the worker's counts beats
 * there, whatever exec computes; exec counts its work, and sets its phase. No line, no lock, nothing that could be
 * full: the daemon reads the numbers at any time and sends them to the launcher. The worker can forge them; but it
 * cannot make the page smaller or larger (seals), so that reading never faults.
 *
 * Locking: aq_pulse_work, aq_pulse_doing: any thread, no waiting. The rest: one thread.
 */
#ifndef RUNTIME_PULSE_H
#define RUNTIME_PULSE_H

#include <stdint.h>

#include "aqsgd/base.h"

enum { AQ_PULSE_FD = 4 };

/* The phase of a stage: for the one line that shows where a job is stuck. */
enum aq_doing {
    AQ_DOING_START = 0,
    AQ_DOING_GO,
    AQ_DOING_COMPUTE,
    AQ_DOING_NEIGHBOUR,
    AQ_DOING_REDUCE,
    AQ_DOING_UPDATE,
    AQ_DOING_EVALUATE,
    AQ_DOING_MARK,
    AQ_DOING_END,
    AQ_DOING_SUMS,   /* split.mode: global, at the server: it waits for other clients */
    AQ_DOING_DEVICE, /* from here on: before the first step, in this order; a worker reports the start of each */
    AQ_DOING_DATA,
    AQ_DOING_WEIGHTS,
    AQ_DOING_CACHE,
    AQ_DOING_CONNECT,
    AQ_DOING_MEASURE,
    AQ_DOINGS
};

/* "waits for its neighbours"; for an unknown number, "does something". */
const char *aq_doing_text(enum aq_doing doing);

struct aq_pulse_page; /* opaque */

struct aq_pulse_reading {
    uint64_t beats, work, step;
    enum aq_doing doing;
};

/* The daemon's: a page, and a descriptor of it for the worker (close it after the fork). AQ_NOMEM, AQ_IO. */
enum aq_status aq_pulse_make(uint64_t interval_ns, int *fd, struct aq_pulse_page **out);
void aq_pulse_free(struct aq_pulse_page *page); /* NULL is fine */
void aq_pulse_read(const struct aq_pulse_page *page, struct aq_pulse_reading *out);

/* The worker's: take the page at fd 4 and start to beat. Without one everything here does nothing. AQ_NOMEM. */
enum aq_status aq_pulse_open(void);
void aq_pulse_close(void);

/* Notifications of this event count are work, too: the results of links and disks. NULL: no more, before it is
 * closed. */
void aq_pulse_bell(struct aq_bell *bell);

void aq_pulse_work(void);
void aq_pulse_step(uint64_t step);
void aq_pulse_doing(enum aq_doing doing);

#endif
