/*
 * worker_mark.c -- checkpoints beside the training: a snapshot between two steps, the disk meanwhile, one at a time.
 *
 * A checkpoint is one point in time: between two steps, when every message of the step before has been put and none of
 * the next, the weights are copied and the cache's mark is begun. Both become durable while training goes on; only then
 * does the launcher hear of it, and only when it has heard so from every stage is the checkpoint complete. The cache
 * keeps what its two newest marks refer to, so the next mark is not begun before the job has this one.
 *
 * While a stage waits for a checkpoint it goes on pumping its edges: a neighbour may need a message before it can come
 * to the same point.
 */
#include "worker.h"

#define WAIT_NS_MAX (600ull * 1000 * 1000 * 1000) /* for the slowest stage's disk */
#define LOOK_NS     (20ull * 1000 * 1000)         /* edges and control channel have no common bell */

struct aq_checkpoint aq_worker_checkpoint(const struct aq_worker *w)
{
    return (struct aq_checkpoint){.folder = w->checkpoint_folder,
                                  .plan = w->plan,
                                  .rank = w->rank,
                                  .device = w->device,
                                  .stage = w->stage,
                                  .optimizer = w->optimizer};
}

enum aq_status aq_worker_mark_open(struct aq_worker *w)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    /* A job that keeps checkpoints only at its end has nothing to do while they are written: it needs no copy. */
    return aq_checkpoint_writer_open(&checkpoint, w->job->checkpoint.every.count > 0, w->bell, &w->writer);
}

/* The next thing the launcher says, until the deadline (0: now). AQ_AGAIN: nothing. */
static enum aq_status control_take(struct aq_worker *w, uint64_t deadline_ns)
{
    json_t *message;
    const enum aq_status status = aq_control_receive(w->control, deadline_ns, &message);
    if (status == AQ_AGAIN || status == AQ_TIMEOUT) return AQ_AGAIN;
    if (status == AQ_CLOSED) return aq_fail(AQ_CLOSED, "worker", "the launcher is gone");
    AQ_TRY(status);
    if (aq_control_is(message, "op", "stop") && w->rank == 0) w->last_step = true;
    if (aq_control_is(message, "op", "marked") && w->marking == AQ_MARK_SAID &&
        aq_control_u64_or(message, "step", 0) == w->mark_step)
        w->marking = AQ_MARK_NONE;
    json_decref(message);
    return AQ_OK;
}

enum aq_status aq_worker_control_poll(struct aq_worker *w)
{
    for (;;) {
        const enum aq_status status = control_take(w, 0);
        if (status == AQ_AGAIN) return AQ_OK;
        AQ_TRY(status);
    }
}

enum aq_status aq_worker_mark_advance(struct aq_worker *w)
{
    if (w->marking != AQ_MARK_WRITING) return AQ_OK;
    enum aq_status status = aq_checkpoint_writer_done(w->writer);
    if (status == AQ_OK && w->cache) status = aq_cache_mark_done(w->cache);
    if (status == AQ_AGAIN) return AQ_OK;
    AQ_TRY(status);
    AQ_TRY(aq_control_send(w->control, json_pack("{s:s, s:I}", "event", "mark", "step", (json_int_t)w->mark_step)));
    w->marking = AQ_MARK_SAID;
    return AQ_OK;
}

/* A neighbour that has left in good order is at the end of the run, as this stage is. */
static enum aq_status pump_edges(struct aq_worker *w)
{
    struct aq_edge *const edges[] = {w->in, w->out};
    for (int i = 0; i < 2; i++) {
        const enum aq_status status = edges[i] ? aq_edge_pump(edges[i]) : AQ_OK;
        if (status != AQ_CLOSED) AQ_TRY(status);
    }
    return AQ_OK;
}

enum aq_status aq_worker_mark_wait(struct aq_worker *w)
{
    const uint64_t end = aq_clock_after(WAIT_NS_MAX);
    while (w->marking != AQ_MARK_NONE) {
        const uint32_t seen = aq_bell_count(w->bell);
        AQ_TRY(pump_edges(w));
        AQ_TRY(aq_worker_mark_advance(w));
        const uint64_t soon = aq_clock_after(LOOK_NS);
        if (w->marking == AQ_MARK_WRITING) {
            AQ_TRY(aq_worker_control_poll(w));
            (void)aq_bell_wait(w->bell, seen, soon);
        } else {
            const enum aq_status status = control_take(w, soon);
            if (status != AQ_AGAIN) AQ_TRY(status);
        }
        if (w->marking != AQ_MARK_NONE && aq_clock_ns() > end)
            return aq_fail(AQ_TIMEOUT, "worker", "the checkpoint of step %llu does not become complete: %s",
                           (unsigned long long)w->mark_step,
                           w->marking == AQ_MARK_SAID ? "another stage's part is missing"
                                                      : "this stage's disk takes too long");
    }
    return AQ_OK;
}

enum aq_status aq_worker_mark_begin(struct aq_worker *w)
{
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(aq_worker_control_poll(w)); /* the word that the last one is complete may be there */
    if (w->marking != AQ_MARK_NONE) {
        aq_log("worker", 2, "step %llu: the checkpoint of step %llu is still being written: waits",
               (unsigned long long)w->step, (unsigned long long)w->mark_step);
        AQ_TRY(aq_worker_mark_wait(w));
        w->mark_wait_ns += aq_clock_ns() - begin;
    }
    if (w->cache) AQ_TRY(aq_cache_mark_begin(w->cache, w->step));
    AQ_TRY(aq_checkpoint_writer_begin(w->writer, w->step));
    w->mark_step = w->step;
    w->marking = AQ_MARK_WRITING;
    w->mark_ns += aq_clock_ns() - begin;
    aq_trace_add(w->trace, "compute", "checkpoint", begin, aq_clock_ns(), (uint32_t)w->step, 0);
    return AQ_OK;
}
