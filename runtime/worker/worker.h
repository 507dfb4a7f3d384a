/*
 * worker.h -- a stage worker: one process that owns one stage and runs its program, step after step.
 *
 * Started by the daemon with the control channel at fd 3 (docs/CONTROL.md). It makes the plan again from the manifest
 * that the launcher sent, refuses where its hash differs, opens everything that the plan names, joins its neighbours,
 * and trains until the last step, a stop, or a failure. Its last line over the control channel reports how it ended.
 *
 * A device does what it is given on three streams (compute, send, receive) that wait for each other by events; nothing
 * waits for the device but NORM, STEP and evaluation (worker_device.c).
 *
 * Four threads: this one (exec: stage, codecs, program), the net loop, the storage thread, and the one that writes
 * checkpoints. The CPU pool belongs to exec.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_H
#define RUNTIME_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "control.h"
#include "heartbeat.h"
#include "net/link.h"
#include "plan.h"
#include "stages/dataset.h"
#include "stages/stage.h"
#include "values.h"
#include "worker_parts.h"
#include "worker_replicas.h"
#include "worker_run.h"

/* Bytes that links have packed (link.entropy) up to the last line of metrics. */
struct aq_worker_packing {
    struct aq_link_bytes forward, backward, gradient;
    double forward_left, backward_left, gradient_left; /* of the bodies between the last two lines: packed / given */
    uint64_t ns;
};

/* Edges, links and values between this stage and the stages before and behind it. */
struct aq_worker_pipeline {
    struct aq_stream *send_stream, *receive_stream;
    /* At the cuts, of micro-batch i in [i % copies]. */
    struct aq_values x[AQ_PLAN_COPIES_MAX], y[AQ_PLAN_COPIES_MAX], dx[AQ_PLAN_COPIES_MAX], dy[AQ_PLAN_COPIES_MAX];
    uint32_t copies;
    /* Forwards and backwards that the device has not done, oldest first (worker_device.c). */
    struct aq_worker_issue issues[AQ_WORKER_ISSUES];
    uint32_t issue_first, issue_count;
    struct aq_event *anchor; /* start of the step, at anchor_ns */
    uint64_t anchor_ns;
    struct aq_link *link_in, *link_out;
    struct aq_edge *in, *out;
    struct aq_cache *cache;
    struct aq_worker_refill {
        uint64_t step, end; /* from the first to behind the last, an epoch later: each sample once */
        uint32_t micro_batch;
    } refills[2]; /* how far lost messages of the edges in and out were asked for ahead */
};

struct aq_worker {
    struct aq_control *control; /* borrowed */
    struct aq_job *job;
    struct aq_plan *plan;
    const struct aq_plan_stage *me; /* the plan's, or where a model is asked: */
    struct aq_plan_stage mine;
    uint32_t rank;        /* of all workers: replica x P + position                */
    uint32_t position, P; /* the stage in its pipeline, of P stages                */
    uint32_t replica, W;  /* the copy of the pipeline, of W copies                 */
    char *run_folder, *checkpoint_folder;
    uint64_t frozen_digest; /* of what never changes; 0: nothing is frozen */
    bool frozen_due;        /* its file is to be written                   */
    uint64_t run_id;        /* whose they are: owned_folder.h */
    struct aq_worker_pipeline pipeline;
    struct aq_worker_replicas replicas;
    struct aq_worker_checkpoints checkpoints;
    struct aq_worker_sums sums;
    struct aq_worker_rounds rounds;
    /* The stage. */
    struct aq_device *device;
    struct aq_stream *stream; /* compute: stage and optimizer */
    struct aq_stage *stage;
    struct aq_optimizer *optimizer;
    /* Data. */
    struct aq_dataset *train, *heldout; /* first and last stage only */
    struct aq_sampler *sampler;
    struct aq_batch batch; /* room for B samples with all fields of the data set; a middle stage has only ids */
    uint64_t *sample_ids;  /* B */
    uint32_t *lengths;     /* B: tokens of these samples that are real */
    uint16_t *variants;    /* B: and which of its messages each has, and */
    struct aq_view *views; /* how its image is seen: data.augment      */
    const uint32_t *train_lengths, *heldout_lengths; /* of all; NULL: all are T */
    const uint32_t *parts;                           /* of all training samples, then of held-out ones; or NULL */
    uint32_t *part_first;                            /* then, of each of these and the end: its first one       */
    uint32_t *starts;                                /* (B + 1, T): of a batch, and of a sample that is made again */
    struct aq_worker_targets {
        struct aq_sampler **samplers; /* of each replica: where samples have fewer targets than places; else NULL */
        uint64_t step;                /* of which `all` is known, plus one                                         */
        double all;                   /* counted targets of the step, over all replicas                            */
    } targets;
    void *host_memory, *lengths_memory;
    /* What links stand on. */
    struct aq_eventcount *eventcount;
    struct aq_trace *trace;
    struct aq_tls *tls; /* NULL: links are not under TLS */
    struct aq_net *net;
    /* The run. */
    uint64_t step; /* steps done */
    uint64_t resumed_at;
    uint64_t go_ns;
    uint64_t silence_ns; /* longest wait for a neighbour */
    uint64_t outages_ns; /* all links, one after the other: how long outages may last */
    bool stop_asked;     /* rank 0: the launcher asked for a stop         */
    uint64_t last;       /* steps after which a stop ends the run: all ranks learn it in the same step; 0: no stop */
    bool final;          /* the last step is done: its checkpoint is the last */
    bool stopped;
    struct aq_worker_parts worker_parts;
    uint32_t skipped_in_row;
    struct aq_worker_steps steps;
    struct aq_worker_times times;      /* of steps.now  */
    struct aq_worker_times times_next; /* of steps.next */
    struct aq_worker_tied tied;
    struct aq_worker_packing packing;
};

/*
 * Runs everything from the start message to the end of the run and reports "done" or "failed" over the control channel.
 * Returns the run's status; the text of a failure is aq_error_text().
 */
enum aq_status aq_worker_run(struct aq_control *control);

/*
 * The step that this run's own step is for all clients (split.mode: global; else the same): what learning rates,
 * augmentation and dropout go by. Own steps are counted in frames, caches, checkpoints and reports. And how
 * many own steps there are at most.
 */
static inline uint64_t aq_worker_global(const struct aq_worker *worker, uint64_t step)
{
    return step + worker->sums.shift;
}
/* The number of this step's update among those that the optimizer's moments have had: what bias corrections go by. */
static inline uint64_t aq_worker_update(const struct aq_worker *worker)
{
    return worker->step + (uint64_t)worker->checkpoints.updates_ahead + 1;
}
static inline uint64_t aq_worker_steps_end(const struct aq_worker *worker)
{
    return worker->plan->steps - worker->sums.shift;
}

/* A clock that leaves out the time of aq_worker_meanwhile: it measures the end of a step by itself. */
static inline uint64_t aq_worker_own_ns(const struct aq_worker *worker)
{
    return aq_clock_ns() - worker->steps.overlap_ns;
}

/* worker.c: is there an evaluation, a checkpoint or the end after `steps` steps? Then nothing else is under way. */
bool aq_worker_is_sync_point(const struct aq_worker *worker, uint64_t steps);

/* worker.c: the launcher's next message with this op; a stop before go is kept, anything else is ignored. */
enum aq_status aq_worker_await(struct aq_worker *worker, const char *op, uint64_t deadline, json_t **out);

/* worker.c: the job and this rank's part of it, from the launcher's `start`. AQ_MISMATCH: this machine plans
 * otherwise. */
enum aq_status aq_worker_plan_open(struct aq_worker *worker, const json_t *start);

/* worker.c: what is done before the first step, in this order: for the heartbeat, the log, and whoever waits. */
enum aq_status aq_worker_set_phase(const struct aq_worker *worker, enum aq_phase phase);

/* worker.c: finish all links in good order, by the deadline, and flush the control channel. */
enum aq_status aq_worker_drain(struct aq_worker *worker, uint64_t deadline);
enum aq_status aq_worker_leave(struct aq_worker *worker, uint64_t deadline);

/* worker_links.c: who we are under TLS, the loop, and a link to each neighbour. */
enum aq_status aq_worker_links_open(struct aq_worker *worker);
/* Its parts: our identity and the loop; one port for all neighbours that connect, reported to the launcher; is this
 * peer one of them? */
enum aq_status aq_worker_net_open(struct aq_worker *worker);
enum aq_status aq_worker_listen(struct aq_worker *worker, struct aq_listener **listener);
bool aq_worker_listens_for(const struct aq_worker *worker, uint32_t peer);

/* worker_probe.c: nothing is trained: the links of this rank are measured as the launcher asks (docs/CONTROL.md section
 * 9), until its channel closes. The worker is closed as after training. */
enum aq_status aq_worker_probe(struct aq_worker *worker, const json_t *start);

/* worker_answer.c: nothing is trained: this stage computes a text as it is asked (docs/CONTROL.md section 10). The
 * worker is closed as after training. */
enum aq_status aq_worker_answer(struct aq_worker *worker, const json_t *start);

/* worker_links.c: the round trip to the next stage, where it is far and the plan does not know of so much; else 0. */
double aq_worker_distance_ms(const struct aq_worker *worker);

/* worker.c: first tokens of a sample's parts, as row `row` of worker->starts; NULL: samples have no parts. */
const uint32_t *aq_worker_starts(const struct aq_worker *worker, bool heldout, uint64_t sample, uint32_t row);

/* worker_report.c: lines over the control channel. */
enum aq_status aq_worker_report_step(struct aq_worker *worker);
enum aq_status aq_worker_report_done(struct aq_worker *worker);
void aq_worker_report_failed(const struct aq_worker *worker, enum aq_status status);

/* `aqpipe worker`: for the daemon, not for people. */
int aq_command_worker(int argc, char **argv);

#endif
