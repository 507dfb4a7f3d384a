/*
 * worker_run.h -- the worker's steps, evaluations and checkpoints: what is under way of them, and who continues it.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_RUN_H
#define RUNTIME_WORKER_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/device.h"
#include "checkpoint_writer.h"
#include "edge.h"
#include "edge_cached.h"
#include "edge_eval.h"
#include "edge_heal.h"
#include "edge_norm.h"
#include "program_run.h"
#include "seal.h"
#include "worker_parts.h"

struct aq_worker; /* worker.h */

/* A forward, a backward or the weight half of one that the device has been given. */
enum { AQ_WORKER_ISSUES = 4 };
struct aq_worker_issue {
    struct aq_instruction instruction;
    uint64_t step;
    struct aq_event *begun, *ended; /* with a time */
    uint64_t issued_ns;
};

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
    bool input_unused;   /* lost messages of the edge in are not asked for ahead (AQ_PART_JOINED)       */
};

/* How far a checkpoint is. */
enum aq_worker_snapshot {
    AQ_MARK_NONE = 0,   /* none under way: the launcher has noted the last one as complete      */
    AQ_MARK_WRITING,    /* weights and cache are on their way to the disk                       */
    AQ_MARK_AWAITED,    /* they are there; a part has more to do (AQ_PART_WRITTEN)                */
    AQ_CHECKPOINT_ACKED /* this stage's part is durable, and the launcher knows: others may not be */
};

/* This stage's checkpoints (worker_snapshot.c). */
struct aq_worker_checkpoints {
    struct aq_checkpoint_writer *writer;
    char hash[AQ_HASH_TEXT_BYTES]; /* of this stage's file of resumed_at, as the launcher has it; "": it has none */
    bool lost;                     /* this stage's file is missing or damaged: it needs a copy        */
    bool adopted;                  /* weights and states are another run's (a turn of split learning)     */
    int64_t updates_ahead;         /* updates of the optimizer's moments minus steps of this run */
    bool waiting;                  /* for a checkpoint or a start: links have nothing else to carry   */
    uint64_t unreadable;           /* the step of a checkpoint that could not be read; 0: none        */
    enum aq_worker_snapshot state;
    const char *awaits; /* AQ_MARK_AWAITED: what for, in a message */
    uint64_t step;      /* of the checkpoint that is under way                                        */
    uint64_t chosen;    /* checkpoint.every as a time: steps after which the next one is due; 0: not yet known */
    uint64_t begin_ns;
    uint64_t held_ns; /* in which checkpoints kept this stage from training, since the last report    */
    uint64_t wait_ns; /* part of it: for the previous checkpoint                                      */
    uint64_t read_ns; /* that reading the checkpoint took at the start                                */
};

/* worker_step.c: the samples of a micro-batch of a step; *samples is 1..B. Fills worker->sample_ids. */
void aq_worker_batch(struct aq_worker *worker, uint64_t step, uint32_t micro_batch, struct aq_edge_batch *batch);

/*
 * worker_step.c: run one whole step (worker->step is its number) up to and with the optimizer. With train.staleness the
 * next step may be under way when this returns (program.h), except before an evaluation, a checkpoint or the end
 * (aq_worker_is_sync_point).
 */
enum aq_status aq_worker_step(struct aq_worker *worker);

/* worker_step.c: of a group's wait: some of the next step's chains (aq_group_config.meanwhile). worker: the worker. */
enum aq_status aq_worker_meanwhile(void *worker);

/* worker_step.c: forwards, backwards and gradients belong to this step, `now` or `next`, from here on. */
void aq_worker_use(struct aq_worker *worker, uint64_t step);

/* worker_step.c: a stop that is announced in this step ends the run after the returned count of steps. */
uint64_t aq_worker_last_of(const struct aq_worker *worker, uint64_t step);

/* worker_device.c: streams, values at the cuts, events; the stage is open. Closing takes half-open ones. */
enum aq_status aq_worker_device_open(struct aq_worker *worker);
void aq_worker_device_close(struct aq_worker *worker);

/*
 * worker_warm.c: everything once, where it runs on a GPU. The stage, when it has its weights, before links open; a
 * reduction, when the group is open; the edges' codecs, before they are joined. Results do not depend on it.
 */
enum aq_status aq_worker_warm(struct aq_worker *worker);
enum aq_status aq_worker_warm_reduction(struct aq_worker *worker);
enum aq_status aq_worker_warm_edges(struct aq_worker *worker);

/* worker_device.c: wait for all streams and ignore their errors, before their memory is freed. */
void aq_worker_device_synchronize(struct aq_worker *worker);

/* worker_device.c: the step starts now. If no work is issued, the times of this step count from here. */
enum aq_status aq_worker_anchor(struct aq_worker *worker);

/*
 * worker_device.c: FORWARD, BACKWARD and WEIGHTS are issued; what they come to, losses and times, is taken up by a
 * later aq_worker_issues_advance (part of aq_worker_pump). AQ_AGAIN: as many are out as may be; nothing has happened.
 */
enum aq_status aq_worker_forward(struct aq_worker *worker, const struct aq_worker_run *run,
                                 const struct aq_instruction *instruction);
enum aq_status aq_worker_backward(struct aq_worker *worker, const struct aq_worker_run *run,
                                  const struct aq_instruction *instruction);
enum aq_status aq_worker_weights(struct aq_worker *worker, const struct aq_worker_run *run,
                                 const struct aq_instruction *instruction);
enum aq_status aq_worker_issues_advance(struct aq_worker *worker);

/*
 * worker_device.c: the activation of one sample, without a slot, if no gradients come here: from pipeline.dx[0] into
 * pipeline.dy[0]. *batch is made. self: the worker. For parts.
 */
enum aq_status aq_worker_compute(void *self, const uint64_t *id, struct aq_edge_batch *batch);

/* worker_device.c: when the oldest was issued (aq_clock_ns) that has not come back, of stage and edges; 0: none. */
uint64_t aq_worker_busy_since(const struct aq_worker *worker);

/* worker_device.c: what NCCL has on its way for the edges (aq_edge_carrying, of both). */
uint32_t aq_worker_carrying(const struct aq_worker *worker);

/* worker_device.c: sleep on the event count, briefly, while one of the two is. AQ_TIMEOUT: the device hangs. */
enum aq_status aq_worker_poll_wait(struct aq_worker *worker, uint32_t seen);

/* worker_device.c: pump until nothing is out. */
enum aq_status aq_worker_settle(struct aq_worker *worker);

/* worker_step.c: ask the caches for the first micro-batches, before the first step. */
enum aq_status aq_worker_prefetch_first(struct aq_worker *worker);

/* worker_eval.c: the held-out samples through the whole pipeline, uncompressed; the last stage reports the loss. */
enum aq_status aq_worker_evaluate(struct aq_worker *worker);

/* worker_eval.c: the next EVAL frame, which must be that of the batch, into pipeline.x; and pipeline.y as one. */
enum aq_status aq_worker_receive_eval(struct aq_worker *worker, const struct aq_edge_batch *batch);
enum aq_status aq_worker_send_eval(struct aq_worker *worker, const struct aq_edge_batch *batch);

/*
 * worker_device.c: shows the parts values at a cut, at one of AQ_PART_CUT_*. slot: the stage's. trains: a step learns
 * from the batch. Does nothing where there is no such cut. Errors: the parts'; then the values must not be sent.
 */
enum aq_status aq_worker_cut(struct aq_worker *worker, enum aq_part_moment moment, const struct aq_edge_batch *batch,
                             uint32_t slot, bool trains, const struct aq_values *values);

/* worker_snapshot.c: this stage's checkpoints. Borrows from the worker. */
struct aq_checkpoint aq_worker_checkpoint(struct aq_worker *worker);

/* worker_snapshot.c: open the writer; the stage's weights are there already. */
enum aq_status aq_worker_snapshot_open(struct aq_worker *worker);

/*
 * worker_snapshot.c: start a checkpoint of the state after worker->step steps: one point in time for weights, optimizer
 * and cache. Training continues while it is written. It first waits for an earlier one that is still under way.
 */
enum aq_status aq_worker_snapshot_begin(struct aq_worker *worker);

/* worker_snapshot.c: is a checkpoint due after `step` steps, and after worker->step? */
bool aq_worker_mark_is_due(const struct aq_worker *worker, uint64_t step);
bool aq_worker_snapshot_is_due(const struct aq_worker *worker);

/*
 * worker_snapshot.c: checkpoint.every as a time. said: does this rank know, in this step, that a checkpoint follows
 * aq_worker_last_of(step)? Then it votes for it with its numbers of the step. heard: another rank did. AQ_PROTO: the
 * job has none.
 */
bool aq_worker_mark_said(const struct aq_worker *worker, uint64_t step);
enum aq_status aq_worker_mark_heard(struct aq_worker *worker, uint64_t step);

/* worker_snapshot.c: what the disk has done meanwhile; why a checkpoint failed. Called with every pump. */
enum aq_status aq_worker_snapshot_advance(struct aq_worker *worker);

/* worker_snapshot.c: serve the neighbours while this stage waits; a neighbour that has left in good order is no
 * failure. */
enum aq_status aq_worker_serve(struct aq_worker *worker);

/* worker_snapshot.c: where this stage's file is lost, a part brings it (AQ_PART_RESTORE), and it is read. */
enum aq_status aq_worker_snapshot_restore(struct aq_worker *worker);

/* worker_snapshot.c: wait until no checkpoint is under way. */
enum aq_status aq_worker_snapshot_wait(struct aq_worker *worker);

/*
 * worker_snapshot.c: rank 0, at the latest moment at which all ranks still hear of it within this step: has the
 * launcher asked for a stop? Then aq_worker_last_of(step) becomes the last step, and this reports it to the launcher.
 * Others: nothing.
 */
enum aq_status aq_worker_stop_heard(struct aq_worker *worker);

/* Pump both edges. */
enum aq_status aq_worker_pump(struct aq_worker *worker);

#endif
