/*
 * restart.h -- when a launch that failed restarts by itself, and from which checkpoint.
 *
 * A failure of a process, a link or a machine (struct aq_launch_result, `transient`) is worth another try; so is a
 * checkpoint that a stage cannot read, if the one before it is kept. Failures of the job itself are not: they would
 * come again. Restarts are bounded in a row, that is, without a new checkpoint or AQ_RESTART_CALM_S of running between
 * them.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_RESTART_H
#define RUNTIME_RESTART_H

#include <stdbool.h>
#include <stdint.h>

#include "job.h"
#include "launcher.h"

enum {
    AQ_RESTARTS_DEFAULT = 3,
    AQ_RESTARTS_MAX = 1000000,
    AQ_RESTART_CALM_S = 600,      /* who has run so long does not fail at the same place again and again */
    AQ_RESTART_PAUSE_S_MAX = 30   /* the first restart in a row comes at once, later ones after 1, 2, 4, ... s */
};

struct aq_restart {
    uint32_t max;    /* in a row; 0: never                    */
    uint32_t in_row; /* so far                                */
    uint32_t total;
    uint64_t mark; /* the newest checkpoint at the last one */
};

/*
 * Is this failure worth a restart? Counts it. *step gets the start: the newest complete checkpoint or, if that one
 * cannot be read, the one before it, which is then noted in the folder `checkpoint` as the newest complete one.
 */
bool aq_restart_due(struct aq_restart *restart, const struct aq_launch_result *result, const char *checkpoint,
                    uint64_t *step);

/* Can each of the job's ranks be reached by the same stage of every other replica, also where it listens for nobody? */
bool aq_restart_reaches(const struct aq_job *job);

/*
 * How often in a row a lost replica may return by itself (launcher_return.c); 0: it does not. Others connect to it
 * then, so each of the job's ranks must be reachable. An early end is agreed on by all, so none may be on its way.
 */
uint32_t aq_restart_returns(const struct aq_restart *restart, const struct aq_job *job);

/* Wait as long as befits the restarts in a row; a signal that can be read from `signals` (or -1) ends it. */
void aq_restart_pause(const struct aq_restart *restart, int signals);

#endif
