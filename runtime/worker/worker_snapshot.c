/*
 * worker_snapshot.c -- checkpoints during training: a snapshot between two steps, written meanwhile, one at a time.
 *
 * A checkpoint is one point in time: between two steps, when every message of the step before has been put and none of
 * the next, the weights are copied and the cache's mark is begun. Both become durable while training continues; only
 * then does the stage report it, and only after the reports of all stages is the checkpoint complete. The cache keeps
 * what its two newest marks refer to, so the next mark is not begun before the job has this one.
 *
 * While a stage waits for a checkpoint it pumps its edges: a neighbour may need a message before it can come to the
 * same point.
 */
#include <string.h>

#include "heartbeat.h"
#include "owned_folder.h"
#include "worker.h"

#define WAIT_NS_MAX      (600ull * 1000 * 1000 * 1000) /* for the slowest stage's disk */
#define COPY_BYTES_S_MIN (1u << 17)                    /* a link of 1 Mbit/s */
#define LOOK_NS          (20ull * 1000 * 1000)         /* edges and control channel have no common event count */

struct aq_checkpoint aq_worker_checkpoint(struct aq_worker *w)
{
    struct aq_checkpoint_run run;
    aq_plan_checkpoint_run(w->plan, &run);
    struct aq_checkpoint checkpoint = {.folder = w->checkpoint_folder,
                                       .run = run,
                                       .rank = w->rank,
                                       .device = w->device,
                                       .stage = w->stage,
                                       .optimizer = w->optimizer,
                                       .frozen_digest = w->frozen_digest,
                                       .updates_ahead =
                                           aq_job_counts_updates(w->job) ? &w->checkpoints.updates_ahead : NULL,
                                       .pending = aq_optimizer_config_pending(&w->job->train.optimizer)};
    aq_worker_parts_state(&w->worker_parts, checkpoint.states, &checkpoint.state_count);
    return checkpoint;
}

enum aq_status aq_worker_snapshot_open(struct aq_worker *w)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    /* A job that keeps checkpoints only at its end has nothing to do while they are written: it needs no copy. */
    const struct aq_job_every *every = &w->job->checkpoint.every;
    return aq_checkpoint_writer_open(&checkpoint, every->count > 0 || every->ns > 0, w->eventcount,
                                     &w->checkpoints.writer);
}

/* Handles the launcher's next message, until the deadline (0: now). AQ_AGAIN: nothing. */
static enum aq_status control_take(struct aq_worker *w, uint64_t deadline_ns)
{
    json_t *message;
    const enum aq_status status = aq_control_receive(w->control, deadline_ns, &message);
    if (status == AQ_AGAIN || status == AQ_TIMEOUT) return AQ_AGAIN;
    if (status == AQ_CLOSED) return aq_fail(AQ_CLOSED, "worker", "the launcher has ended");
    AQ_TRY(status);
    if (aq_control_is(message, "op", "stop") && w->rank == 0) w->stop_asked = true;
    if (aq_control_is(message, "op", "marked") && w->checkpoints.state == AQ_CHECKPOINT_ACKED &&
        aq_control_u64_or(message, "step", 0) == w->checkpoints.step)
        w->checkpoints.state = AQ_MARK_NONE;
    struct aq_part_args args = {.message = message};
    enum aq_status taken = aq_worker_parts_on(&w->worker_parts, AQ_PART_MESSAGE, &args);
    if (taken == AQ_OK && aq_control_is(message, "op", "members")) taken = aq_worker_rounds_told(w, message);
    json_decref(message);
    return taken;
}

enum aq_status aq_worker_control_poll(struct aq_worker *w)
{
    for (;;) {
        const enum aq_status status = control_take(w, 0);
        if (status == AQ_AGAIN) return AQ_OK;
        AQ_TRY(status);
    }
}

/*
 * checkpoint.every as a time, since the last checkpoint or since training began. The first rank looks at its clock and
 * names the step; the others hear of it as they hear of the last step. No rank's own clock counts but this one.
 */
static void mark_choose(struct aq_worker *w)
{
    const uint64_t every_ns = w->job->checkpoint.every.ns;
    const uint64_t since = w->checkpoints.begin_ns > w->go_ns ? w->checkpoints.begin_ns : w->go_ns;
    if (every_ns == 0 || w->checkpoints.chosen || w->checkpoints.state != AQ_MARK_NONE) return;
    if (aq_clock_ns() - since < every_ns) return;
    const uint64_t step = aq_worker_last_of(w, w->step);
    if (step < aq_worker_steps_end(w)) w->checkpoints.chosen = step;
}

bool aq_worker_mark_said(const struct aq_worker *w, uint64_t step)
{
    return w->checkpoints.chosen && w->checkpoints.chosen == aq_worker_last_of(w, step);
}

enum aq_status aq_worker_mark_heard(struct aq_worker *w, uint64_t step)
{
    if (w->job->checkpoint.every.ns == 0)
        return aq_fail(AQ_PROTO, "worker",
                       "step %llu: another rank asks for a checkpoint; checkpoint.every is not a time",
                       (unsigned long long)step);
    if (!w->checkpoints.chosen) w->checkpoints.chosen = aq_worker_last_of(w, step);
    return AQ_OK;
}

enum aq_status aq_worker_stop_heard(struct aq_worker *w)
{
    if (w->rank != 0 || w->last) return AQ_OK;
    AQ_TRY(aq_worker_control_poll(w));
    if (!w->stop_asked) {
        mark_choose(w);
        return AQ_OK;
    }
    w->last = aq_worker_last_of(w, w->step);
    return aq_control_send(w->control, json_pack("{s:s, s:I}", "event", "stopping", "step", (json_int_t)w->last));
}

static enum aq_status say_mark(struct aq_worker *w)
{
    w->checkpoints.state = AQ_CHECKPOINT_ACKED;
    aq_log("worker", 1, "step %llu: its checkpoint is on disk after %.2f s", (unsigned long long)w->checkpoints.step,
           (double)(aq_clock_ns() - w->checkpoints.begin_ns) * 1e-9);
    json_t *line = json_pack("{s:s, s:I}", "event", "mark", "step", (json_int_t)w->checkpoints.step);
    if (w->checkpoints.mirror) json_object_set_new(line, "sha256", json_string(aq_mirror_hash(w->checkpoints.mirror)));
    return aq_control_send(w->control, line);
}

bool aq_worker_mark_is_due(const struct aq_worker *w, uint64_t step)
{
    const struct aq_job_every *every = &w->job->checkpoint.every;
    const uint64_t steps = every->epochs ? every->count * w->plan->steps_per_epoch : every->count;
    return step == aq_worker_steps_end(w) || (steps > 0 && step % steps == 0) ||
           (w->checkpoints.chosen && step == w->checkpoints.chosen) || (w->rounds.without && step == w->rounds.without);
}

bool aq_worker_snapshot_is_due(const struct aq_worker *w)
{
    return w->final || aq_worker_mark_is_due(w, w->step);
}

/*
 * The checkpoint that a neighbour may start before this stage does: of the step that has just ended here, or of the one
 * under way, or with staleness the one after that, which may be done there before this stage has the totals of both.
 * The neighbour may have announced the last step, or the chosen one, in a NORM that came just before and is not handled
 * yet.
 */
static uint64_t mark_next(const struct aq_worker *w)
{
    const uint64_t newest = w->checkpoints.step > w->resumed_at ? w->checkpoints.step : w->resumed_at;
    if (w->step > newest && aq_worker_snapshot_is_due(w)) return w->step;
    if (w->final) return 0;
    const uint16_t told = w->pipeline.in ? aq_edge_norm_told(w->pipeline.in, w->step) : 0;
    const uint64_t now = aq_worker_last_of(w, w->step);
    const uint64_t last = !w->last && (told & AQ_EDGE_LAST_STEP) ? now : w->last;
    const uint64_t chosen = (told & AQ_EDGE_MARK_STEP) ? now : 0; /* if it is not taken up */
    for (uint64_t step = w->step + 1; step <= w->step + 1 + w->job->train.staleness; step++)
        if (step == last || step == chosen || aq_worker_mark_is_due(w, step)) return step;
    return 0;
}

enum aq_status aq_worker_snapshot_advance(struct aq_worker *w)
{
    if (w->checkpoints.mirror) {
        aq_mirror_due(w->checkpoints.mirror, w->checkpoints.step, w->go_ns ? mark_next(w) : 0);
        AQ_TRY(aq_mirror_pump(w->checkpoints.mirror, w->checkpoints.waiting));
    }
    if (w->checkpoints.state == AQ_MARK_WRITING) {
        enum aq_status status = aq_checkpoint_writer_done(w->checkpoints.writer);
        if (status == AQ_OK && w->pipeline.cache) status = aq_cache_mark_done(w->pipeline.cache);
        if (status == AQ_AGAIN) return AQ_OK;
        AQ_TRY(status);
        if (!w->checkpoints.mirror) return say_mark(w);
        w->checkpoints.state = AQ_MARK_MIRRORING;
        aq_mirror_send(w->checkpoints.mirror, w->checkpoints.step);
        AQ_TRY(aq_mirror_pump(w->checkpoints.mirror, w->checkpoints.waiting));
    }
    if (w->checkpoints.state != AQ_MARK_MIRRORING) return AQ_OK;
    const enum aq_status status = aq_mirror_done(w->checkpoints.mirror);
    if (status == AQ_AGAIN) return AQ_OK;
    AQ_TRY(status);
    return say_mark(w);
}

/* A neighbour that has left in good order is at the end of the run, as this stage is. */
static enum aq_status pump_edges(struct aq_worker *w)
{
    struct aq_edge *const edges[] = {w->pipeline.in, w->pipeline.out};
    for (int i = 0; i < 2; i++) {
        const enum aq_status status = edges[i] ? aq_edge_pump(edges[i]) : AQ_OK;
        if (status != AQ_CLOSED) AQ_TRY(status);
    }
    return AQ_OK;
}

enum aq_status aq_worker_serve(struct aq_worker *w)
{
    AQ_TRY(pump_edges(w));
    return aq_worker_snapshot_advance(w);
}

static enum aq_status mark_late(const struct aq_worker *w)
{
    static const char *const reasons[] = {[AQ_MARK_WRITING] = "this stage's disk takes too long",
                                          [AQ_MARK_MIRRORING] = "the copy at the neighbour takes too long",
                                          [AQ_CHECKPOINT_ACKED] = "another stage's part is missing"};
    return aq_fail(AQ_TIMEOUT, "worker", "the checkpoint of step %llu does not become complete: %s",
                   (unsigned long long)w->checkpoints.step, reasons[w->checkpoints.state]);
}

uint64_t aq_worker_snapshot_ns_max(const struct aq_plan *plan)
{
    const uint64_t parameters = plan->parameters,
                   bytes = parameters * sizeof(float) + aq_plan_optimizer_bytes(plan, parameters);
    return WAIT_NS_MAX + (plan->job->checkpoint.mirror ? bytes / COPY_BYTES_S_MIN * 1000000000u : 0);
}

static enum aq_status mark_wait(struct aq_worker *w)
{
    const uint64_t end = aq_clock_after(aq_worker_snapshot_ns_max(w->plan));
    while (w->checkpoints.state != AQ_MARK_NONE) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_serve(w));
        if (w->checkpoints.state == AQ_CHECKPOINT_ACKED && !w->checkpoints.mirror) {
            const enum aq_status status = control_take(w, aq_clock_after(LOOK_NS));
            if (status != AQ_AGAIN) AQ_TRY(status);
        } else { /* the disk, or a neighbour's copy, notifies the event count */
            AQ_TRY(aq_worker_control_poll(w));
            if (w->checkpoints.state == AQ_MARK_NONE) break;
            (void)aq_eventcount_wait(
                w->eventcount, seen,
                aq_clock_after(w->checkpoints.state == AQ_CHECKPOINT_ACKED ? LOOK_NS / 10 : LOOK_NS));
        }
        if (w->checkpoints.state != AQ_MARK_NONE && aq_clock_ns() > end) return mark_late(w);
    }
    return AQ_OK;
}

enum aq_status aq_worker_snapshot_wait(struct aq_worker *w)
{
    w->checkpoints.waiting = true;
    aq_heartbeat_phase(AQ_PHASE_MARK);
    const enum aq_status status = mark_wait(w);
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    w->checkpoints.waiting = false;
    return status;
}

/* This stage's file from its keeper, into its place. */
static enum aq_status fetch_copy(struct aq_worker *w)
{
    const uint64_t end = aq_clock_after(aq_worker_snapshot_ns_max(w->plan));
    const uint32_t keeper = aq_mirror_keeper(w->rank, w->P);
    aq_log("worker", AQ_LOG_WARNING,
           "stage %u has lost its checkpoint of step %llu: it comes from the copy at stage %u", w->rank,
           (unsigned long long)w->step, keeper);
    enum aq_status status;
    if (!w->checkpoints.hash[0])
        return aq_fail(
            AQ_NOTFOUND, "worker",
            "the checkpoint of step %llu of stage %u is missing or damaged, and the launcher has no SHA-256 of it to "
            "recognize a true copy",
            (unsigned long long)w->step, w->rank);
    AQ_TRY(aq_mirror_fetch(w->checkpoints.mirror, w->step));
    while ((status = aq_mirror_done(w->checkpoints.mirror)) == AQ_AGAIN) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_serve(w));
        if (aq_mirror_done(w->checkpoints.mirror) == AQ_AGAIN)
            (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(LOOK_NS));
        if (aq_clock_ns() > end)
            return aq_fail(AQ_TIMEOUT, "worker", "stage %u does not send the copy of this stage's checkpoint", keeper);
    }
    if (status == AQ_NOTFOUND)
        return aq_fail(
            AQ_NOTFOUND, "worker",
            "the checkpoint of step %llu of stage %u is missing or damaged, and stage %u holds no copy of it",
            (unsigned long long)w->step, w->rank, keeper);
    return status;
}

/* The room that moves copies, with this stage's own key where it has one. */
static enum aq_status open_mirror(struct aq_worker *w)
{
    uint8_t key[AQ_SEAL_KEY_BYTES];
    const char *path = w->job->checkpoint.mirror_key;
    if (path) AQ_TRY(aq_seal_key_load(path, key));
    struct aq_mirror_config config = {.folder = w->checkpoint_folder,
                                      .in = w->pipeline.in,
                                      .out = w->pipeline.out,
                                      .eventcount = w->eventcount,
                                      .resumed = w->resumed_at,
                                      .key = path ? key : NULL,
                                      .hash = w->checkpoints.hash[0] ? w->checkpoints.hash : NULL};
    aq_plan_mirror_shape(w->plan, w->rank, &config.shape);
    const enum aq_status status = aq_mirror_open(&config, &w->checkpoints.mirror);
    if (path) explicit_bzero(key, sizeof key);
    return status;
}

enum aq_status aq_worker_mirror_open(struct aq_worker *w)
{
    if (!w->job->checkpoint.mirror) return AQ_OK;
    AQ_TRY(open_mirror(w));
    w->checkpoints.waiting = true; /* until the first step */
    if (!w->checkpoints.lost) return AQ_OK;
    const uint64_t begin = aq_clock_ns();
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    enum aq_status status = fetch_copy(w);
    /* No copy, or one that is not this stage's file: an older one may be whole. */
    if (status == AQ_NOTFOUND || aq_mirror_done(w->checkpoints.mirror) == AQ_CORRUPT)
        w->checkpoints.unreadable = w->step;
    AQ_TRY(status);
    status = aq_checkpoint_read(&checkpoint, w->step);
    if (status != AQ_OK && status != AQ_NOMEM && status != AQ_MISMATCH) w->checkpoints.unreadable = w->step;
    w->checkpoints.read_ns += aq_clock_ns() - begin;
    return status;
}

enum aq_status aq_worker_snapshot_begin(struct aq_worker *w)
{
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(aq_worker_control_poll(w)); /* the word that the last one is complete may be there */
    if (w->checkpoints.state != AQ_MARK_NONE) {
        aq_log("worker", 2, "step %llu: the checkpoint of step %llu is still being written: waits",
               (unsigned long long)w->step, (unsigned long long)w->checkpoints.step);
        AQ_TRY(aq_worker_snapshot_wait(w));
        w->checkpoints.wait_ns += aq_clock_ns() - begin;
    }
    /* A disk that has gone since must not get a checkpoint where it was mounted. */
    AQ_TRY(aq_owned_check(w->checkpoint_folder, AQ_OWNED_CHECKPOINT, w->run_id));
    if (w->pipeline.cache) AQ_TRY(aq_cache_mark_begin(w->pipeline.cache, w->step));
    struct aq_part_args args = {0};
    AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_SNAPSHOT, &args));
    AQ_TRY(aq_checkpoint_writer_begin(w->checkpoints.writer, w->step));
    w->checkpoints.step = w->step;
    if (w->checkpoints.chosen <= w->step) w->checkpoints.chosen = 0;
    w->checkpoints.begin_ns = begin;
    w->checkpoints.state = AQ_MARK_WRITING;
    w->checkpoints.held_ns += aq_clock_ns() - begin;
    aq_trace_add(w->trace, "compute", "checkpoint", begin, aq_clock_ns(), (uint32_t)w->step, 0);
    return AQ_OK;
}
