/*
 * run_enter.h -- a launch enters its run folder: may it, where does it resume, and what is deleted first?
 *
 * The folder is locked, and its folders become the run's (owned_folder.h). Its content decides the rest:
 * - nothing that was trained: the launch starts, whatever was planned there before;
 * - a run of this plan: --resume continues it, --fresh deletes it, else the launch is refused;
 * - a run of another plan: --resume continues it if it differs only in its length, evaluations, checkpoints, or in the
 * count of replicas; --fresh deletes it if it has the same job.name; else it is refused by the keys that differ.
 *
 * Locking: one thread; between processes the locks of run_folder.h, held until aq_run_leave.
 */
#ifndef RUNTIME_RUN_ENTER_H
#define RUNTIME_RUN_ENTER_H

#include <stdbool.h>
#include <stdint.h>

#include "best.h"
#include "owned_folder.h"
#include "plan.h"
#include "run_folder.h"

struct aq_run_entry {
    /* The caller's: */
    const struct aq_plan *plan; /* borrowed; its job has the run folder, and what aq_plan_manifest made of it here: */
    const char *manifest;
    bool resume;
    bool fresh; /* start again; set, too, if a run that made no step is replaced */
    char checkpoint[AQ_RUN_PATH_BYTES];
    /* Filled in: */
    char cache[AQ_RUN_PATH_BYTES];
    struct aq_owned_folders folders;
    struct aq_owner owner;
    bool finished; /* the run in the folder has come to its end: nothing was changed */
    bool early;    /* it ended at resume_step by train.early_stop, and `best` is its best evaluation: where it
                              has not finished (killed), what is left to do is to leave its model */
    struct aq_best best;
    uint64_t shift;        /* global sampling: the plan's steps less the run's (modulo 2^64) */
    uint64_t resume_step;  /* 0: from the start */
    uint64_t resume_bytes; /* of metrics.jsonl, at that step; 0: not known */
    double seconds;        /* of the run before this start */
    char extended[800];    /* the run goes further than it was to, or less far: what that means; else "" */
    int lock, checkpoint_lock;
    bool marked, checkpointed; /* the run folder had its marker, and the marker records a checkpoint */
    bool rewinds;              /* the metrics are cut to the step that the run resumes from              */
};

/*
 * AQ_MISMATCH, AQ_REFUSED: not this launch in this folder; the line has the cause and the remedy. AQ_NOTFOUND:
 * --resume, and no such folder. AQ_CORRUPT, AQ_NOSPC, AQ_IO. The caller always calls aq_run_leave.
 */
enum aq_status aq_run_enter(struct aq_run_entry *entry);

/* Give the locks back. */
void aq_run_leave(struct aq_run_entry *entry);

#endif
