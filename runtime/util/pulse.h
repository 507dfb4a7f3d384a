/*
 * pulse.h -- a worker's pulse: a page of memory that its process beats into and its daemon looks at.
 *
 * The daemon makes the page before it starts a worker, which finds it at fd 4. A thread of the worker's counts beats
 * there, whatever exec computes; exec counts what it has done, and says what it does. No line, no lock, nothing that
 * could be full: the daemon reads the numbers when it likes and tells the launcher what they are. They are the worker's
 * word; the page cannot be made smaller or larger once it is there (seals), so that reading never faults.
 *
 * Locking: aq_pulse_work, aq_pulse_doing: any thread, no waiting. The rest: one thread.
 */
#ifndef RUNTIME_PULSE_H
#define RUNTIME_PULSE_H

#include <stdint.h>

#include "aqsgd/base.h"

enum { AQ_PULSE_FD = 4 };

/* What a stage does at the moment: for the one line that says where a job is stuck. */
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
    AQ_DOING_DEVICE, /* from here on: before the first step, in this order; a worker tells of each as it begins */
    AQ_DOING_DATA,
    AQ_DOING_WEIGHTS,
    AQ_DOING_CACHE,
    AQ_DOING_CONNECT,
    AQ_DOING_MEASURE,
    AQ_DOINGS
};

/* "waits for its neighbours"; for a number that is none, "does something". */
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

/* The worker's: take the page at fd 4 and begin to beat. Without one everything here does nothing. AQ_NOMEM. */
enum aq_status aq_pulse_open(void);
void aq_pulse_close(void);

/* Rings of this bell are work, too: what links and disks have brought. NULL: no more, before it is closed. */
void aq_pulse_bell(struct aq_bell *bell);

void aq_pulse_work(void);
void aq_pulse_step(uint64_t step);
void aq_pulse_doing(enum aq_doing doing);

#endif
