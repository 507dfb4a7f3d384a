/*
 * worker_local.c -- reduce.every: the replicas of a stage train some steps each on its own, then meet; and which
 * version of the weights is looked at.
 *
 * Between two meetings nothing goes from one replica to another: no gradient, no norm, no word whether a step is void
 * or the last one. A replica clips by its own norm, leaves out its own void steps and moves its own loss scale. They
 * agree at the end of a round: on the weights from which all continue (the optimizer's outer step, in STEP), and on
 * whether the run ends there. So a stop takes effect only at a round's end, and a run ends with weights that all share.
 *
 * Held-out loss and checkpoints in the middle of a round use the outer weights: those of the last outer step, which all
 * replicas share. A checkpoint keeps a replica's own weights, too (AQ_OUTER_STATE). With train.prediction they use the
 * weights, and a checkpoint keeps the predicted ones, too (AQ_PREDICT_STATE).
 */
#include "net/collective.h"
#include "worker.h"

enum { SAYS_LAST_STEP = 1, SAYS_MARK_STEP = 4 };

bool aq_worker_is_local(const struct aq_worker *worker)
{
    return worker->W > 1 && aq_optimizer_config_local(&worker->job->train.optimizer);
}

/* Do all replicas have the same weights after `steps` steps? */
static bool meet_after(const struct aq_worker *worker, uint64_t steps)
{
    return steps == worker->plan->steps || !aq_optimizer_config_drifts(&worker->job->train.optimizer, steps);
}

bool aq_worker_is_apart(const struct aq_worker *worker)
{
    return aq_worker_is_local(worker) && !meet_after(worker, worker->step);
}

bool aq_worker_hears(const struct aq_worker *worker, uint64_t step)
{
    return !aq_worker_is_local(worker) || meet_after(worker, aq_worker_last_of(worker, step));
}

enum aq_status aq_worker_local_reduce(struct aq_worker *worker)
{
    uint64_t mine = worker->last ? SAYS_LAST_STEP : 0, all[AQ_GROUP_SIZE_MAX];
    if (aq_worker_mark_said(worker, worker->step)) mine |= SAYS_MARK_STEP;
    worker->times.squared = false;
    if (aq_worker_hears(worker, worker->step)) {
        const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(worker);
        AQ_TRY(aq_all_gather(worker->replicas.group, &mine, sizeof mine, all));
        worker->times.reduce_ns += aq_worker_own_ns(worker) - own;
        aq_trace_add(worker->trace, "compute", "agree", begin, aq_clock_ns(), (uint32_t)worker->step, 0);
        for (uint32_t v = 0; v < worker->W; v++) {
            if ((all[v] & SAYS_LAST_STEP) && !worker->last) worker->last = aq_worker_last_of(worker, worker->step);
            if (all[v] & SAYS_MARK_STEP) AQ_TRY(aq_worker_mark_heard(worker, worker->step));
        }
    }
    return meet_after(worker, worker->step + 1) ? aq_worker_choose(worker) : AQ_OK;
}

/* The two versions are the same at the end of a round. */
static enum aq_status change(struct aq_worker *worker,
                             enum aq_status (*to)(struct aq_optimizer *optimizer, float *parameters,
                                                  struct aq_stream *stream),
                             bool always)
{
    if (!always && !aq_worker_is_apart(worker) && !worker->job->train.optimizer.predict) return AQ_OK;
    aq_stage_use(worker->stage, &(struct aq_stage_use){.previous = false});
    AQ_TRY(to(worker->optimizer, aq_stage_parameters(worker->stage), worker->stream));
    AQ_TRY(aq_stage_parameters_changed(worker->stage, worker->stream));
    AQ_TRY(aq_device_stream_sync(worker->device, worker->stream));
    return aq_worker_tied_follow(worker);
}

enum aq_status aq_worker_swap_in(struct aq_worker *worker)
{
    return change(worker, aq_optimizer_show, false);
}

enum aq_status aq_worker_swap_out(struct aq_worker *worker)
{
    return change(worker, aq_optimizer_hide, false);
}

/* Resharded weights come from the end of a round. Weights that were read or taken over have the version of
 * checkpoints. */
enum aq_status aq_worker_versions_open(struct aq_worker *worker)
{
    if (worker->replicas.resharded) return change(worker, aq_optimizer_versions_reshard, true);
    if (worker->step > 0 || worker->checkpoints.adopted) return aq_worker_swap_out(worker);
    AQ_TRY(aq_optimizer_versions_begin(worker->optimizer, aq_stage_parameters(worker->stage), worker->stream));
    return aq_device_stream_sync(worker->device, worker->stream);
}
