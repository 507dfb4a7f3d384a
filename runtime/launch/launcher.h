/*
 * launcher.h -- one job from start to end: daemons, workers, the join of their reports, and for certain no worker left.
 *
 * The caller has made the plan and holds the run folder; the launcher knows neither manifest nor plan, only what it
 * sends. It finds the first cause of a failure (docs/CONTROL.md section 6).
 *
 * Locking: one thread, which blocks SIGINT, SIGTERM and SIGHUP (aq_launch_signals) before it calls.
 */
#ifndef RUNTIME_LAUNCHER_H
#define RUNTIME_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "best.h"
#include "board.h"
#include "control_token.h"
#include "metrics.h"
#include "progress.h"
#include "trackers.h"
#include "watch.h"

struct aq_tls; /* net/tls.h */

/* Bounds of a worker's lines, by the plan: a line beyond them ends the run (launcher_bounds.c). */
struct aq_launch_bounds {
    uint64_t steps;          /* of the whole run                                   */
    uint64_t shift;          /* evaluations are due by the plan's steps: own steps + shift, modulo 2^64  */
    uint64_t mark_every;     /* steps between checkpoints; 0: only at the end      */
    bool mark_timed;         /* after a time: at any step that rank 0 chooses      */
    uint64_t evaluate_every; /* steps between evaluations; 0: only at the end      */
    bool evaluates;          /* there are held-out samples                         */
    uint32_t round_steps;    /* of which a run stops after the last one; 0 or 1: after each */
    bool votes_travel;       /* reduce.delay alone: it stops after the last one of the next round */
    uint64_t patience_ns;    /* reduce.patience; 0: none                           */
    uint32_t delay;          /* reduce.delay; 0: none                              */
    bool by_speed;           /* reduce.steps: speed                                */
    uint64_t trace_bytes;    /* that each rank's trace may have; 0: no trace       */
};

struct aq_launch {
    const char *name;
    uint32_t stages;          /* P                                                                        */
    uint32_t replicas;        /* W; rank = replica x P + stage                                            */
    const char *const *hosts; /* of each rank: the address of its daemon, AQ_LAUNCH_GUEST, or NULL: this machine */
    int guest;                /* the daemon that came here: a connected socket, taken; of AQ_LAUNCH_GUEST  */
    const char *manifest;
    const char *lengths; /* of the samples, for each worker (util/lengths.h); NULL: all are alike         */
    uint64_t plan_hash;
    uint64_t resume_hash;   /* plan.h                                                                   */
    uint64_t resume;        /* the checkpoint to resume from; 0: from the start                         */
    uint64_t until;         /* stop after this step, with a checkpoint; 0: at the end of the plan         */
    const char *sums;       /* absolute: where gradients are summed over clients (sum_line.h); NULL: nowhere */
    uint64_t shift;         /* the plan's steps less the run's own, modulo 2^64                               */
    uint64_t updates;       /* updates of the optimizer's moments less the run's own steps                    */
    uint32_t returns;       /* a lost replica is started so often in a row without its others (reduce.patience) */
    bool fetches;           /* each rank can be reached by the same stage of the other replicas: files are fetched    */
    const char *rounds;     /* metrics.jsonl of a run whose rounds without some replicas are repeated; NULL: none */
    const char *adopt;      /* absolute: folder with the initial weights (checkpoint.h); NULL: none        */
    uint64_t resume_bytes;  /* of metrics.jsonl, at that mark; 0: not known                             */
    const char *run;        /* absolute                                                                 */
    const char *checkpoint; /* absolute                                                                 */
    const char *cache;      /* absolute, of all stages' caches; NULL: none on disk                      */
    uint64_t id;            /* the run's (owned_folder.h); the caller has claimed run and checkpoint here */
    bool resumed;           /* no folder is made above the run's own                                    */
    bool fresh;             /* the checkpoints of this run that the daemons' machines have are to go    */
    const char *trace;      /* join the ranks' traces into this file; NULL: they send none              */
    const char *daemon;     /* program of the private daemon                                            */
    uint32_t keep;          /* complete checkpoints                                                     */
    const char *best;       /* the figure that evaluations are judged by (best.h); NULL: none           */
    uint64_t time_end_ns;   /* aq_clock_ns: then it stops as if asked to, with a checkpoint; 0: never   */
    uint32_t early_stop;    /* evaluations no better than the best, in a row: then it ends; 0: never    */
    struct aq_launch_bounds bounds;
    uint64_t ready_ns_max; /* from the start to the last `ready`                                       */
    uint64_t begin_ns;     /* start of the command: the time until training counts from here */
    bool probe;            /* nothing is trained: no folders, workers that measure (launcher_probe.h)    */
    json_t *ask;           /* then: workers that answer instead (launcher_ask.h); borrowed; NULL: none   */
    uint32_t vocabulary;   /* then: of the model, what a token is below                                   */
    bool again;            /* a restart: a daemon that is not back yet is worth another one            */
    const struct aq_token *token;
    struct aq_tls *tls;           /* to daemons that listen; NULL: in the clear */
    struct aq_watch_config watch; /* zeroes: nobody is watched */
    struct aq_bits *bits;         /* edges.bits: auto (bits_auto.h), in epochs of epoch_steps; NULL: fixed */
    uint64_t epoch_steps;
    struct aq_cut_judge *judge; /* finds silent losses (cut_judge.h); NULL: not used */
    struct aq_metrics *metrics;
    struct aq_progress *progress;
    struct aq_board *board;       /* NULL: nobody looks */
    struct aq_trackers *trackers; /* NULL: none */
    int signals;                  /* signalfd; -1: none */
};

/* The host of stages whose daemon is at the other end of aq_launch.guest. */
#define AQ_LAUNCH_GUEST "the client"

enum aq_launch_outcome { AQ_LAUNCH_DONE = 0, AQ_LAUNCH_FAILED = 1, AQ_LAUNCH_STOPPED = 3 };

struct aq_launch_result {
    enum aq_launch_outcome outcome;
    enum aq_status status; /* of a failure */
    char cause[1024];      /* of a failure: one line, without "aqpipe: " */
    uint64_t mark;         /* the newest complete checkpoint; 0: none    */
    uint64_t go_ns;        /* since when all stages have run; 0: they never did                          */
    struct aq_best best;   /* of the run up to its end                                                  */
    uint64_t early_step;   /* after which it ended because no evaluation was better; 0: it did not      */
    bool transient;        /* of a failure: caused by a process, a link or a machine: a restart may help */
    bool unreadable;       /* of a failure: a stage cannot read the checkpoint to resume from               */
    json_t *stages;        /* array of the `done` lines (null where none came); the caller's reference */
};

/* Block the signals that stop a job; they come by *fd from now on. */
enum aq_status aq_launch_signals(int *fd);

/* Always fills *result; when it returns no worker of the job runs any more, as far as daemons can be reached. */
void aq_launch_run(const struct aq_launch *launch, struct aq_launch_result *result);

#endif
