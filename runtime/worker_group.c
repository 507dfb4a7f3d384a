/*
 * worker_group.c -- the replicas of one stage: their links, and REDUCE.
 *
 * Every worker has a link to each other replica of its stage. The last stage of a pipeline has its gradients first and
 * averages them while the stages before it still compute: nothing orders the stages but their own programs.
 */
#include <string.h>

#include "net/collective.h"
#include "worker.h"

enum { SAYS_LAST_STEP = 1 }; /* bits of what replicas tell each other at REDUCE */

enum aq_status aq_worker_group_open(struct aq_worker *worker)
{
    if (worker->W == 1) return AQ_OK;
    const struct aq_group_config config = {.rank = worker->replica,
                                           .size = worker->W,
                                           .links = worker->peers,
                                           .bell = worker->bell,
                                           .device = worker->device,
                                           .silence_ns = worker->silence_ns,
                                           .piece_bytes = AQ_PLAN_PIECE_BYTES};
    return aq_group_open_links(&config, &worker->group);
}

/* The replica that the launcher told to stop has told its own pipeline; here the others hear of it, in the same step.
 */
static enum aq_status agree_on_the_end(struct aq_worker *worker)
{
    uint64_t mine = worker->last_step ? SAYS_LAST_STEP : 0, all[AQ_GROUP_SIZE_MAX];
    AQ_ASSERT(worker->W <= AQ_GROUP_SIZE_MAX);
    AQ_TRY(aq_all_gather(worker->group, &mine, sizeof mine, all));
    for (uint32_t v = 0; v < worker->W; v++)
        if (all[v] & SAYS_LAST_STEP) worker->last_step = true;
    return AQ_OK;
}

static enum aq_status mean(struct aq_worker *worker, float *x, uint64_t count)
{
    const float share = 1.0f / (float)worker->W;
    AQ_TRY(aq_allreduce(worker->group, x, count));
    for (uint64_t i = 0; i < count; i++)
        x[i] *= share;
    return AQ_OK;
}

enum aq_status aq_worker_reduce(struct aq_worker *worker)
{
    struct aq_group_stats before, after;
    const uint64_t begin = aq_clock_ns();
    aq_group_stats(worker->group, &before);
    AQ_TRY(agree_on_the_end(worker));
    AQ_TRY(mean(worker, aq_stage_gradients(worker->stage), aq_stage_parameter_count(worker->stage)));
    const uint64_t end = aq_clock_ns();
    aq_group_stats(worker->group, &after);
    worker->times.reduce_ns += end - begin;
    worker->times.reduce_bytes += after.sent_bytes - before.sent_bytes;
    aq_trace_add(worker->trace, "compute", "reduce", begin, end, (uint32_t)worker->step, 0);
    return AQ_OK;
}

enum aq_status aq_worker_agree(struct aq_worker *worker)
{
    if (worker->W == 1) return AQ_OK;
    const uint64_t bytes = aq_stage_parameter_count(worker->stage) * sizeof(float);
    return aq_group_agree(worker->group, aq_digest(aq_stage_parameters(worker->stage), bytes), "the weights");
}
