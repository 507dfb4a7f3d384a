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
 *
 * reduce.patience: a replica that is lost in the middle of a round harms no other one before its end. There each rank
 * reports that it has come (`round`) and waits. The launcher answers all with one set of members (launcher_rounds.c),
 * so that all stages average over the same replicas. If some are missing, the group is made again over the links to the
 * others. Its mean is over those who are in it. Such a round ends with a checkpoint. The weights are the same on all
 * replicas then, so the first member's ranks can write the files of the missing ones: all that differs there are the
 * inner optimizer's moments, which are this replica's. From that checkpoint all start together.
 */
#include <inttypes.h>

#include "heartbeat.h"
#include "net/collective.h"
#include "owned_folder.h"
#include "worker.h"

enum { SAYS_LAST_STEP = 1, SAYS_MARK_STEP = 4 };

#define LOOK_NS     (2ull * 1000 * 1000)           /* edges and control channel have no common event count */
#define MEET_NS_MAX (3600ull * 1000 * 1000 * 1000) /* beyond the patience; the launcher looks who does not come */

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

static bool is_member(const struct aq_worker *w, uint32_t replica)
{
    return w->replicas.rounds.members >> replica & 1;
}

enum aq_status aq_worker_rounds_told(struct aq_worker *w, const json_t *message)
{
    uint64_t step, members;
    AQ_TRY(aq_control_get_u64(message, "step", &step));
    AQ_TRY(aq_control_get_hex(message, "members", &members));
    const bool beyond = w->W < 64 && members >> w->W != 0;
    if (w->job->reduce.patience_ns == 0 || step != w->step + 1 || step == w->replicas.rounds.step || beyond ||
        !(members >> w->replica & 1))
        return aq_fail(AQ_PROTO, "worker",
                       "step %" PRIu64 ": the launcher names %" PRIx64 " as members of the round that ends with step "
                       "%" PRIu64,
                       w->step + 1, members, step);
    w->replicas.rounds.step = step;
    w->replicas.rounds.members = members;
    return AQ_OK;
}

static enum aq_status wait_for_members(struct aq_worker *w)
{
    const uint64_t silence = w->links.silence_ns, patience = w->job->reduce.patience_ns;
    const uint64_t meet = silence > MEET_NS_MAX ? silence : MEET_NS_MAX + w->links.outages_ns;
    const uint64_t end = aq_clock_after(meet > UINT64_MAX - patience ? UINT64_MAX : meet + patience);
    while (w->replicas.rounds.step != w->step + 1) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_serve(w));
        AQ_TRY(aq_worker_control_poll(w));
        if (w->replicas.rounds.step == w->step + 1) break;
        if (aq_clock_ns() > end)
            return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": the launcher did not send 'members' in time",
                           w->step + 1);
        (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(LOOK_NS));
    }
    return AQ_OK;
}

/* The group of the members; the links of the others are used by nobody from now on. */
static enum aq_status regroup(struct aq_worker *w)
{
    struct aq_link *links[AQ_GROUP_SIZE_MAX];
    uint32_t size = 0, rank = 0;
    for (uint32_t v = 0; v < w->W; v++) {
        if (!is_member(w, v)) continue;
        if (v == w->replica) rank = size;
        links[size++] = w->replicas.peers[v];
    }
    aq_group_close(w->replicas.group);
    w->replicas.group = w->replicas.reducer.sends = NULL;
    AQ_TRY(aq_worker_group_over(w, links, rank, size, NULL)); /* staleness and patience exclude each other */
    w->replicas.reducer.sends = w->replicas.group;
    return AQ_OK;
}

static enum aq_status rounds_meet(struct aq_worker *w)
{
    const uint64_t all = w->W < 64 ? (1ull << w->W) - 1 : UINT64_MAX;
    if (w->job->reduce.patience_ns == 0) return AQ_OK;
    AQ_TRY(aq_control_send(w->control, json_pack("{s:s, s:I}", "event", "round", "step", (json_int_t)(w->step + 1))));
    aq_heartbeat_phase(AQ_PHASE_REDUCE);
    AQ_TRY(wait_for_members(w));
    aq_heartbeat_phase(AQ_PHASE_UPDATE);
    if (w->replicas.rounds.members == all) return AQ_OK;
    w->replicas.rounds.without = w->step + 1;
    aq_log("worker", AQ_LOG_WARNING, "step %" PRIu64 ": the round ends with replicas %" PRIx64 " (bits) of %u",
           w->step + 1, w->replicas.rounds.members, w->W);
    return regroup(w);
}

enum aq_status aq_worker_rounds_stand_in(struct aq_worker *w)
{
    struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    if (w->replicas.rounds.without == 0 || w->step != w->replicas.rounds.without) return AQ_OK;
    for (uint32_t v = 0; v < w->replica; v++)
        if (is_member(w, v)) return AQ_OK; /* it does */
    AQ_TRY(aq_owned_check(w->checkpoints.folder, AQ_OWNED_CHECKPOINT, w->checkpoints.run_id));
    for (uint32_t v = 0; v < w->W; v++) {
        if (is_member(w, v)) continue;
        checkpoint.rank = v * w->P + w->position;
        AQ_TRY(aq_checkpoint_write(&checkpoint, w->step));
        AQ_TRY(aq_worker_serve(w));
    }
    return AQ_OK;
}

enum aq_status aq_worker_local_reduce(struct aq_worker *worker)
{
    uint64_t mine = worker->last ? SAYS_LAST_STEP : 0, all[AQ_GROUP_SIZE_MAX];
    if (aq_worker_mark_said(worker, worker->step)) mine |= SAYS_MARK_STEP;
    worker->times.squared = false;
    if (aq_worker_hears(worker, worker->step)) {
        const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(worker);
        AQ_TRY(rounds_meet(worker));
        AQ_TRY(aq_all_gather(worker->replicas.group, &mine, sizeof mine, all));
        worker->times.reduce_ns += aq_worker_own_ns(worker) - own;
        aq_trace_add(worker->trace, "compute", "agree", begin, aq_clock_ns(), (uint32_t)worker->step, 0);
        for (uint32_t v = 0; v < aq_group_size(worker->replicas.group); v++) {
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
