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

#define LOOK_NS (20ull * 1000 * 1000) /* edges and control channel have no common event count */

enum aq_status aq_worker_snapshot_open(struct aq_worker *w)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    /* A job that keeps checkpoints only at its end has nothing to do while they are written: it needs no copy. */
    const struct aq_job_every *every = &w->job->checkpoint.every;
    return aq_checkpoint_writer_open(&checkpoint, every->count > 0 || every->ns > 0, w->eventcount,
                                     &w->checkpoints.writer);
}

enum aq_status aq_worker_stop_heard(struct aq_worker *w)
{
    if (w->rank != 0 || w->last) return AQ_OK;
    AQ_TRY(aq_worker_control_poll(w));
    if (!w->steps.stop_asked) {
        aq_worker_mark_choose(w);
        return AQ_OK;
    }
    w->last = aq_worker_last_of(w, w->step);
    return aq_control_send(w->control, json_pack("{s:s, s:I}", "event", "stopping", "step", (json_int_t)w->last));
}

static enum aq_status mark_late(const struct aq_worker *w)
{
    static const char *const reasons[] = {[AQ_MARK_WRITING] = "this stage's disk takes too long",
                                          [AQ_CHECKPOINT_ACKED] = "another stage's part is missing"};
    return aq_fail(AQ_TIMEOUT, "worker", "the checkpoint of step %llu does not become complete: %s",
                   (unsigned long long)w->checkpoints.step,
                   w->checkpoints.state == AQ_MARK_AWAITED ? w->checkpoints.awaits : reasons[w->checkpoints.state]);
}

static enum aq_status mark_wait(struct aq_worker *w)
{
    const uint64_t end = aq_clock_after(aq_plan_checkpoint_ns_max(w->plan));
    while (w->checkpoints.state != AQ_MARK_NONE) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_serve(w));
        if (w->checkpoints.state == AQ_CHECKPOINT_ACKED && !w->worker_parts.serve) {
            const enum aq_status status = aq_worker_control_take(w, aq_clock_after(LOOK_NS));
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

/* As often as a part needs until it has brought the file, while the neighbours are served. */
static enum aq_status restore_await(struct aq_worker *w, struct aq_part_args *args)
{
    enum aq_status status = aq_worker_parts_on(&w->worker_parts, AQ_PART_RESTORE, args);
    while (status == AQ_AGAIN) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        const enum aq_status served = aq_worker_serve(w);
        status = aq_worker_parts_on(&w->worker_parts, AQ_PART_RESTORE, args); /* of a damaged copy, too: unreadable */
        AQ_TRY(served);
        if (status == AQ_AGAIN) (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(LOOK_NS));
    }
    return status;
}

enum aq_status aq_worker_snapshot_restore(struct aq_worker *w)
{
    struct aq_part_args args = {.step = w->step};
    w->checkpoints.waiting = w->worker_parts.serve; /* until the first step */
    if (!w->checkpoints.lost) return AQ_OK;
    const uint64_t begin = aq_clock_ns();
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    enum aq_status status = restore_await(w, &args);
    if (args.unreadable) w->checkpoints.unreadable = w->step;
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
    AQ_TRY(aq_owned_check(w->checkpoints.folder, AQ_OWNED_CHECKPOINT, w->checkpoints.run_id));
    if (w->pipeline.cache) AQ_TRY(aq_cache_mark_begin(w->pipeline.cache, w->step));
    struct aq_part_args args = {0};
    AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_SNAPSHOT, &args));
    AQ_TRY(aq_checkpoint_writer_begin(w->checkpoints.writer, w->step));
    w->checkpoints.step = w->step;
    w->replicas.rounds.marked = w->replicas.rounds.digest;
    if (w->checkpoints.chosen <= w->step) w->checkpoints.chosen = 0;
    w->checkpoints.begin_ns = begin;
    w->checkpoints.state = AQ_MARK_WRITING;
    w->checkpoints.held_ns += aq_clock_ns() - begin;
    aq_trace_add(w->trace, "compute", "checkpoint", begin, aq_clock_ns(), (uint32_t)w->step, 0);
    return AQ_OK;
}
