/*
 * schedule.h -- the schedule seam: a row sets the order of a stage's forwards and backwards, and how many are in
 * flight.
 *
 * A new schedule is one file schedule_<name>.c with the const struct schedule_<name>, and one line in schedules.def;
 * schedule.c adds receives, sends, prefetches and the end of the step, so that all schedules agree on those.
 *
 * Rules, checked for all P <= 8, M <= 16: backwards come in order of micro-batches, and so do weight halves, each after
 * its backward, where the schedule splits backward; micro-batch i has slot i mod slots;
 * slots never grow from one stage to the next (more than the stage before has would never be filled).
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_SCHEDULE_H
#define RUNTIME_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "program.h"

struct aq_schedule_order {
    uint32_t micro_batch;
    enum aq_op op; /* FORWARD, BACKWARD or WEIGHTS */
};

/* Most micro-batches that can be in flight: of every step that is under way all. */
static inline uint32_t aq_schedule_most(const struct aq_schedule_request *request)
{
    return request->micro_batches * (1 + request->staleness);
}

struct aq_schedule_ops {
    const char *name;
    bool split; /* backward in two halves */
    /* Micro-batches from forward to backward (its weight half) at once on stage s, 1 .. aq_schedule_most. The request
     * is in range. */
    uint32_t (*slots)(const struct aq_schedule_request *request, uint32_t stage);
    /* Write 2M entries (split: 3M): every micro-batch's forward and, later, its backward (and its weight half). slots:
     * 1 .. M; the request is of staleness 0. */
    void (*order)(const struct aq_schedule_request *request, uint32_t stage, uint32_t slots,
                  struct aq_schedule_order *out);
    bool flushes; /* obeys the request's flush: all stages have as many slots */
};

#define AQ_SCHEDULE(name, id, text) extern const struct aq_schedule_ops schedule_##name;
#include "schedules.def"

#endif
