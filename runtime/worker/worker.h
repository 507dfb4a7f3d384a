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
 * checkpoints; with reduce.delay a fifth, which averages. The CPU pool belongs to exec.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_H
#define RUNTIME_WORKER_H

#include <jansson.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "control.h"
#include "heartbeat.h"
#include "plan.h"
#include "rank_data.h"
#include "worker_checkpoints.h"
#include "worker_links.h"
#include "worker_parts.h"
#include "worker_pipeline.h"
#include "worker_replicas.h"
#include "worker_steps.h"

struct aq_worker {
    struct aq_control *control; /* borrowed */
    struct aq_job *job;
    struct aq_plan *plan;
    const struct aq_plan_stage *me; /* the plan's, or where a text is asked for pipeline.asked */
    uint32_t rank;                  /* of all workers: replica x P + position */
    uint32_t position, P;           /* the stage in its pipeline, of P stages */
    uint32_t replica, W;            /* the copy of the pipeline, of W copies  */
    struct aq_device *device;
    struct aq_stream *stream; /* compute: stage and optimizer */
    struct aq_stage *stage;
    struct aq_optimizer *optimizer;
    struct aq_eventcount *eventcount;
    struct aq_trace *trace;
    uint64_t step; /* steps done */
    uint64_t last; /* steps after which a stop ends the run: all ranks learn it in the same step; 0: no stop */
    struct aq_worker_times times; /* of steps.now */
    struct aq_worker_steps steps;
    struct aq_rank_data data;
    struct aq_worker_links links;
    struct aq_worker_pipeline pipeline;
    struct aq_worker_replicas replicas;
    struct aq_worker_checkpoints checkpoints;
    struct aq_worker_parts worker_parts;
};

static inline uint64_t aq_worker_seconds_ns(uint64_t seconds)
{
    return seconds * 1000000000u;
}

static inline uint64_t aq_worker_after_s(uint64_t seconds)
{
    return aq_clock_after(aq_worker_seconds_ns(seconds));
}

/*
 * The step that this run's own step is for all clients (split.mode: global; else the same): what learning rates,
 * augmentation and dropout go by. Own steps are counted in frames, caches, checkpoints and reports. And how
 * many own steps there are at most.
 */
static inline uint64_t aq_worker_global(const struct aq_worker *worker, uint64_t step)
{
    return step + worker->steps.shift;
}
/* The number of this step's update among those that the optimizer's moments have had: what bias corrections go by. */
static inline uint64_t aq_worker_update(const struct aq_worker *worker)
{
    return worker->step + (uint64_t)worker->checkpoints.updates_ahead + 1;
}
static inline uint64_t aq_worker_steps_end(const struct aq_worker *worker)
{
    return worker->plan->steps - worker->steps.shift;
}

/* A clock that leaves out the time of aq_worker_meanwhile: it measures the end of a step by itself. */
static inline uint64_t aq_worker_own_ns(const struct aq_worker *worker)
{
    return aq_clock_ns() - worker->steps.overlap_ns;
}

/* A stop that is announced in this step ends the run after the returned count of steps. */
static inline uint64_t aq_worker_last_of(const struct aq_worker *worker, uint64_t step)
{
    const uint64_t last = step + 1 + worker->job->train.staleness; /* the next one may be under way */
    return last < aq_worker_steps_end(worker) ? last : aq_worker_steps_end(worker);
}

/* ---- what the launcher says ---- */

/* worker_control.c: the launcher's next message with this op; a stop before go is kept, anything else is ignored. */
enum aq_status aq_worker_await(struct aq_worker *worker, const char *op, uint64_t deadline, json_t **out);

/* worker_control.c: the job and this rank's part of it, from the launcher's `start`. AQ_MISMATCH: this machine plans
 * otherwise. */
enum aq_status aq_worker_plan_open(struct aq_worker *worker, const json_t *start);

/* worker_control.c: what is done before the first step, in this order: for heartbeat, log, and whoever waits. */
enum aq_status aq_worker_set_phase(const struct aq_worker *worker, enum aq_phase phase);

/*
 * worker_control.c: take one message of the launcher, until the deadline (0: now; AQ_AGAIN: there is none), or all that
 * are there: a stop (rank 0 passes it on in band), a complete checkpoint, what parts await.
 */
enum aq_status aq_worker_control_take(struct aq_worker *worker, uint64_t deadline_ns);
enum aq_status aq_worker_control_poll(struct aq_worker *worker);

/* worker_control.c: AQ_PART_JOINED. And a moment, until no part awaits a message: neighbours are served meanwhile. */
enum aq_status aq_worker_parts_join(struct aq_worker *worker);
enum aq_status aq_worker_parts_await(struct aq_worker *worker, enum aq_part_moment moment, struct aq_part_args *args);

/* ---- while something is waited for ---- */

/* worker_wait.c: take up what edges, device, parts and disk have done meanwhile. AQ_CLOSED: a neighbour has left. */
enum aq_status aq_worker_pump(struct aq_worker *worker);

/* worker_wait.c: serve the neighbours while this stage waits; a neighbour that has left in good order is no
 * failure. */
enum aq_status aq_worker_serve(struct aq_worker *worker);

/* worker_wait.c: when the oldest was issued (aq_clock_ns) that has not come back, of stage and edges; 0: none. */
uint64_t aq_worker_busy_since(const struct aq_worker *worker);

/* worker_wait.c: what NCCL has on its way for the edges (aq_edge_carrying, of both). */
uint32_t aq_worker_carrying(const struct aq_worker *worker);

/* worker_wait.c: sleep on the event count, briefly, while one of the two is. AQ_TIMEOUT: the device hangs. */
enum aq_status aq_worker_poll_wait(struct aq_worker *worker, uint32_t seen);

/* worker_wait.c: pump until nothing is out. */
enum aq_status aq_worker_settle(struct aq_worker *worker);

/* ---- above a step ---- */

/* worker_eval.c: the held-out samples through the whole pipeline, uncompressed; the last stage reports the loss.
 * There are some. */
enum aq_status aq_worker_evaluate(struct aq_worker *worker);

/* worker_eval.c: the next EVAL frame, which must be that of the batch, into pipeline.x; and pipeline.y as one. */
enum aq_status aq_worker_receive_eval(struct aq_worker *worker, const struct aq_edge_batch *batch);
enum aq_status aq_worker_send_eval(struct aq_worker *worker, const struct aq_edge_batch *batch);

/*
 * worker_warm.c: everything once, where it runs on a GPU. The stage, when it has its weights, before links open; a
 * reduction, when the group is open; the edges' codecs, before they are joined. Results do not depend on it.
 */
enum aq_status aq_worker_warm(struct aq_worker *worker);
enum aq_status aq_worker_warm_reduction(struct aq_worker *worker);
enum aq_status aq_worker_warm_edges(struct aq_worker *worker);

/* worker_probe.c: nothing is trained: the links of this rank are measured as the launcher asks (docs/CONTROL.md section
 * 9), until its channel closes. The worker is closed as after training. */
enum aq_status aq_worker_probe(struct aq_worker *worker, const json_t *start);

/* worker_answer.c: nothing is trained: this stage computes a text as it is asked (docs/CONTROL.md section 10). The
 * worker is closed as after training. */
enum aq_status aq_worker_answer(struct aq_worker *worker, const json_t *start);

/* worker_report.c: lines over the control channel. */
enum aq_status aq_worker_report_step(struct aq_worker *worker);
enum aq_status aq_worker_report_done(struct aq_worker *worker);
void aq_worker_report_failed(const struct aq_worker *worker, enum aq_status status);

/*
 * Runs everything from the start message to the end of the run and reports "done" or "failed" over the control channel.
 * Returns the run's status; the text of a failure is aq_error_text().
 */
enum aq_status aq_worker_run(struct aq_control *control);

/* `aqpipe worker`: for the daemon, not for people. */
int aq_command_worker(int argc, char **argv);

#endif
