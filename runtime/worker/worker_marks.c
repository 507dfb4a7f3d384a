/*
 * worker_marks.c -- when a checkpoint is due, and how far the one under way is (worker_snapshot.c has the rest).
 *
 * checkpoint.every as a time counts since the last checkpoint or since training began. The first rank looks at its
 * clock and names the step; the others hear of it as they hear of the last step. No other rank's clock counts.
 */
#include "edge_norm.h"
#include "worker.h"

struct aq_checkpoint aq_worker_checkpoint(struct aq_worker *w)
{
    struct aq_checkpoint_run run;
    aq_plan_checkpoint_run(w->plan, &run);
    struct aq_checkpoint checkpoint = {.folder = w->checkpoints.folder,
                                       .run = run,
                                       .rank = w->rank,
                                       .device = w->device,
                                       .stage = w->stage,
                                       .optimizer = w->optimizer,
                                       .frozen_digest = w->checkpoints.frozen_digest,
                                       .updates_ahead =
                                           aq_job_counts_updates(w->job) ? &w->checkpoints.updates_ahead : NULL,
                                       .pending = aq_optimizer_config_pending(&w->job->train.optimizer)};
    aq_worker_parts_state(&w->worker_parts, checkpoint.states, &checkpoint.state_count);
    return checkpoint;
}

static bool due(const struct aq_job_every *every, uint64_t step, uint64_t steps_per_epoch)
{
    const uint64_t steps = aq_job_every_steps(every, steps_per_epoch);
    return steps > 0 && step % steps == 0;
}

bool aq_worker_evaluation_is_due(const struct aq_worker *w, uint64_t step)
{
    return due(&w->job->train.evaluate_every, aq_worker_global(w, step), w->plan->steps_per_epoch);
}

bool aq_worker_mark_is_due(const struct aq_worker *w, uint64_t step)
{
    const struct aq_job_every *every = &w->job->checkpoint.every;
    const uint64_t steps = every->epochs ? every->count * w->plan->steps_per_epoch : every->count;
    return step == aq_worker_steps_end(w) || (steps > 0 && step % steps == 0) ||
           (w->checkpoints.chosen && step == w->checkpoints.chosen) ||
           (w->replicas.rounds.mark && step == w->replicas.rounds.mark);
}

bool aq_worker_snapshot_is_due(const struct aq_worker *w)
{
    return w->steps.final || aq_worker_mark_is_due(w, w->step);
}

bool aq_worker_is_sync_point(const struct aq_worker *w, uint64_t steps)
{
    const bool end = steps == aq_worker_steps_end(w) || steps == w->last;
    const bool evaluates = w->plan->facts.heldout_samples > 0 && aq_worker_evaluation_is_due(w, steps);
    return end || evaluates || aq_worker_mark_is_due(w, steps);
}

bool aq_worker_mark_time(const struct aq_worker *w)
{
    const uint64_t every_ns = w->job->checkpoint.every.ns;
    const uint64_t since = w->checkpoints.begin_ns > w->steps.go_ns ? w->checkpoints.begin_ns : w->steps.go_ns;
    if (every_ns == 0 || w->checkpoints.chosen || w->checkpoints.state != AQ_MARK_NONE) return false;
    return aq_clock_ns() - since >= every_ns;
}

void aq_worker_mark_choose(struct aq_worker *w)
{
    const uint64_t step = aq_worker_last_of(w, w->step);
    if (aq_worker_mark_time(w) && step < aq_worker_steps_end(w)) w->checkpoints.chosen = step;
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

/*
 * The checkpoint that a neighbour may start before this stage does: of the step that has just ended here, or of the one
 * under way, or with staleness the one after that, which may be done there before this stage has the totals of both.
 * The neighbour may have announced the last step, or the chosen one, in a NORM that came just before and is not handled
 * yet.
 */
static uint64_t mark_next(const struct aq_worker *w)
{
    const uint64_t newest =
        w->checkpoints.step > w->checkpoints.resumed_at ? w->checkpoints.step : w->checkpoints.resumed_at;
    if (w->step > newest && aq_worker_snapshot_is_due(w)) return w->step;
    if (w->steps.final) return 0;
    const uint16_t told = w->pipeline.in ? aq_edge_norm_told(w->pipeline.in, w->step) : 0;
    const uint64_t now = aq_worker_last_of(w, w->step);
    const uint64_t last = !w->last && (told & AQ_EDGE_LAST_STEP) ? now : w->last;
    const uint64_t chosen = (told & AQ_EDGE_MARK_STEP) ? now : 0; /* if it is not taken up */
    for (uint64_t step = w->step + 1; step <= w->step + 1 + w->job->train.staleness; step++)
        if (step == last || step == chosen || aq_worker_mark_is_due(w, step)) return step;
    return 0;
}

/* hash: SHA-256 of the file; NULL: no part has it. */
static enum aq_status say_mark(struct aq_worker *w, const char *hash)
{
    w->checkpoints.state = AQ_CHECKPOINT_ACKED;
    aq_log("worker", 1, "step %llu: its checkpoint is on disk after %.2f s", (unsigned long long)w->checkpoints.step,
           (double)(aq_clock_ns() - w->checkpoints.begin_ns) * 1e-9);
    json_t *line = json_pack("{s:s, s:I}", "event", "mark", "step", (json_int_t)w->checkpoints.step);
    if (hash) json_object_set_new(line, "sha256", json_string(hash));
    if (w->replicas.rounds.marked) json_object_set_new(line, "weights", aq_control_hex(w->replicas.rounds.marked));
    return aq_control_send(w->control, line);
}

enum aq_status aq_worker_snapshot_advance(struct aq_worker *w)
{
    struct aq_part_args args = {.step = w->checkpoints.step, .waits = w->checkpoints.waiting};
    enum aq_status status;
    if (w->worker_parts.serve) {
        args.mark_now = w->checkpoints.step;
        args.mark_next = w->steps.go_ns ? mark_next(w) : 0;
        AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_SERVE, &args));
    }
    if (w->checkpoints.state == AQ_MARK_WRITING) {
        status = aq_checkpoint_writer_done(w->checkpoints.writer);
        if (status == AQ_OK && w->pipeline.cache) status = aq_cache_mark_done(w->pipeline.cache);
        if (status == AQ_AGAIN) return AQ_OK;
        AQ_TRY(status);
        w->checkpoints.state = AQ_MARK_AWAITED;
    }
    if (w->checkpoints.state != AQ_MARK_AWAITED) return AQ_OK;
    status = aq_worker_parts_on(&w->worker_parts, AQ_PART_WRITTEN, &args);
    w->checkpoints.awaits = args.awaits;
    if (status == AQ_AGAIN) return AQ_OK;
    AQ_TRY(status);
    return say_mark(w, args.hash);
}
