/*
 * worker_checkpoints.h -- this stage's checkpoints: where they are, which one is under way, and when the next is due.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_CHECKPOINTS_H
#define RUNTIME_WORKER_CHECKPOINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "checkpoint_writer.h"
#include "seal.h"

struct aq_worker; /* worker.h */

/* How far a checkpoint is. */
enum aq_worker_snapshot {
    AQ_MARK_NONE = 0,   /* none under way: the launcher has noted the last one as complete      */
    AQ_MARK_WRITING,    /* weights and cache are on their way to the disk                       */
    AQ_MARK_AWAITED,    /* they are there; a part has more to do (AQ_PART_WRITTEN)                */
    AQ_CHECKPOINT_ACKED /* this stage's part is durable, and the launcher knows: others may not be */
};

/* This stage's checkpoints (worker_snapshot.c). */
struct aq_worker_checkpoints {
    char *run_folder, *folder; /* of the run, and of all its checkpoints */
    uint64_t run_id;           /* whose they are: owned_folder.h         */
    uint64_t resumed_at;
    uint64_t frozen_digest; /* of what never changes; 0: nothing is frozen */
    bool frozen_due;        /* its file is to be written                   */
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

/* worker_marks.c: this stage's checkpoints. Borrows from the worker. */
struct aq_checkpoint aq_worker_checkpoint(struct aq_worker *worker);

/* worker_snapshot.c: open the writer; the stage's weights are there already. */
enum aq_status aq_worker_snapshot_open(struct aq_worker *worker);

/*
 * worker_snapshot.c: start a checkpoint of the state after worker->step steps: one point in time for weights, optimizer
 * and cache. Training continues while it is written. It first waits for an earlier one that is still under way.
 */
enum aq_status aq_worker_snapshot_begin(struct aq_worker *worker);

/* worker_marks.c: is a checkpoint due after `step` steps, and after worker->step? */
bool aq_worker_mark_is_due(const struct aq_worker *worker, uint64_t step);
bool aq_worker_snapshot_is_due(const struct aq_worker *worker);

/* worker_marks.c: is an evaluation due after `step` steps? Or one, a checkpoint or the end? */
bool aq_worker_evaluation_is_due(const struct aq_worker *worker, uint64_t step);
bool aq_worker_is_sync_point(const struct aq_worker *worker, uint64_t steps);

/*
 * worker_marks.c: checkpoint.every as a time. time: is it over? choose: the first rank looks at its clock. said: does
 * this rank know, in this step, that a checkpoint follows aq_worker_last_of(step)? Then it votes for it with its
 * numbers of the step. heard: another rank did. AQ_PROTO: the job has none.
 */
bool aq_worker_mark_time(const struct aq_worker *worker);
void aq_worker_mark_choose(struct aq_worker *worker);
bool aq_worker_mark_said(const struct aq_worker *worker, uint64_t step);
enum aq_status aq_worker_mark_heard(struct aq_worker *worker, uint64_t step);

/* worker_marks.c: what the disk has done meanwhile; why a checkpoint failed. Called with every pump. */
enum aq_status aq_worker_snapshot_advance(struct aq_worker *worker);

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

#endif
