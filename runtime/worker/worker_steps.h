/*
 * worker_steps.h -- the steps of a run: what is under way of them, and how they end.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_STEPS_H
#define RUNTIME_WORKER_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "program_run.h"

struct aq_worker; /* worker.h */

/* Times and sums of one step of this stage, in nanoseconds. */
struct aq_worker_times {
    uint64_t begin_ns;
    uint64_t compute_ns;   /* forward and backward: the device's    */
    uint64_t optimizer_ns; /* norm of one's own gradients, update   */
    uint64_t wait_ns;      /* nothing could run, and the device had nothing either */
    uint64_t link_wait_ns; /* of it, while a link was carrying what this stage waits for; else a neighbour works */
    uint64_t in_wait_ns;   /* of that, the link to the stage before; the rest: to the stage behind  */
    uint64_t reduce_ns;    /* averaging with the other replicas     */
    uint64_t reduce_bytes; /* sent to them                          */
    uint64_t tied_bytes;   /* of a tied table, sent to neighbours   */
    uint64_t loss_targets;
    double loss_sum;
    double gradient_norm;
    double own_norm;   /* of the gradient of this stage's tensors; below 0: it has none */
    float loss_factor; /* of the gradient of the loss, divided out after the last backward: the parts' */
    bool skipped;      /* the gradient was not finite, on some replica */
    bool squared;      /* replicas.squares belong to the current gradients */
    bool cleared;      /* the gradients are zero again: that went along with a reduction */
};

/* A step that is under way: what aq_program_run does not know of it (worker_step.c). */
struct aq_worker_run {
    uint64_t step;
    uint64_t base;      /* micro-batches before it, as slots are counted (program.h)                        */
    bool ended;         /* the device is done with both chains, and gradients have no loss scale any more   */
    bool gathered;      /* NORM: shared gradients are in aq_stage_shared                                    */
    bool partial;       /* NORM: the partial sums have gone to the stage before                             */
    uint32_t sums_here; /* of them, how many have come: partial ones, then totals                           */
    double sums[2];     /* the norm's, and what the optimizer gauges                                        */
};

/* The steps under way: that of worker->step, and with train.staleness the next one. */
struct aq_worker_steps {
    struct aq_program_run program; /* which of their instructions may begin                                 */
    struct aq_worker_run now, next;
    bool kept;           /* the weights of `next` are the previous ones by now: the update of `now` has begun */
    bool sending;        /* a send had no buffer                                                              */
    uint64_t overlap_ns; /* spent on `next` while `now` was averaged with the other replicas            */
    struct aq_worker_times times_next; /* of `next`; those of `now` are the worker's times */
    uint64_t shift;                    /* the plan's step minus the run's, modulo 2^64; 0 unless a part moves it */
    uint64_t go_ns;                    /* when training began                                                    */
    uint32_t skipped_in_row;           /* void steps                                                             */
    bool stop_asked;                   /* rank 0: the launcher asked for a stop                                  */
    bool final;                        /* the last step is done: its checkpoint is the last                      */
    bool stopped;                      /* because a stop was asked for                                           */
    bool input_unused;                 /* lost messages of the edge in are not asked for ahead (AQ_PART_JOINED)  */
};

/*
 * worker_step.c: run one whole step (worker->step is its number) up to and with the optimizer. With train.staleness the
 * next step may be under way when this returns (program.h), except before an evaluation, a checkpoint or the end
 * (aq_worker_is_sync_point).
 */
enum aq_status aq_worker_step(struct aq_worker *worker);

/* worker_step.c: of a group's wait: some of the next step's chains (aq_group_config.meanwhile). worker: the worker. */
enum aq_status aq_worker_meanwhile(void *worker);

/* worker_step.c: ask the caches for the first micro-batches, before the first step. */
enum aq_status aq_worker_prefetch_first(struct aq_worker *worker);

#endif
