/*
 * worker_reduce.c -- REDUCE: what the gradients of a step, or what the optimizer makes of them, are averaged over. One
 * reducer is chosen when the run opens.
 *
 *     none       one replica
 *     server     split.mode: global: the clients of a split-server (a part has the sum)
 *     local      reduce.every: the replicas, in the last step of a round (worker_local.c)
 *     machine    reduce.machine_first: the replicas of this machine, then one of each (machine_groups.h)
 *     group      all replicas of the stage (worker_group.c)
 *     patient    the same with reduce.patience: the members that the launcher names (worker_local.c)
 *
 * The last stage of a pipeline has its gradients first and averages them while the stages before it still compute:
 * nothing orders the stages but their own programs.
 */
#include <math.h>

#include "heartbeat.h"
#include "machine_groups.h"
#include "net/collective.h"
#include "worker.h"

/* Bits of a replica's vote at REDUCE. */
enum { SAYS_LAST_STEP = 1, SAYS_NOT_FINITE = 2, SAYS_MARK_STEP = 4 };

/*
 * The replica that got the launcher's stop has passed it to its own pipeline; here the others get it, in the same step.
 * And one gradient that is not finite makes the step void for all, so that no codec's residual ever has a part of it.
 */
static enum aq_status vote_choose(struct aq_worker *worker)
{
    uint64_t mine = worker->last ? SAYS_LAST_STEP : 0;
    double sum = 0;
    if (aq_worker_mark_said(worker, worker->step)) mine |= SAYS_MARK_STEP;
    AQ_ASSERT(worker->W <= AQ_GROUP_SIZE_MAX);
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(aq_stage_gradient_squares(worker->stage, worker->replicas.squares, worker->stream));
    aq_trace_add(worker->trace, "compute", "squares", begin, aq_clock_ns(), (uint32_t)worker->step, 0);
    for (uint32_t i = 0; i < aq_stage_tensor_count(worker->stage); i++)
        sum += worker->replicas.squares[i];
    if (!isfinite(sum)) mine |= SAYS_NOT_FINITE;
    worker->replicas.vote = mine;
    worker->replicas.vote_pending = true;
    return AQ_OK;
}

static enum aq_status vote_send(struct aq_worker *worker)
{
    return aq_group_say(worker->replicas.group, worker->replicas.vote, SAYS_NOT_FINITE);
}

static enum aq_status vote_receive(struct aq_worker *worker)
{
    uint64_t any;
    if (!worker->replicas.vote_pending) return AQ_OK;
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(aq_group_hear(worker->replicas.group, &any));
    aq_trace_add(worker->trace, "compute", "agree", begin, aq_clock_ns(), (uint32_t)worker->step, 0);
    worker->replicas.vote_pending = false;
    if ((any & SAYS_LAST_STEP) && !worker->last) worker->last = aq_worker_last_of(worker, worker->step);
    if (any & SAYS_MARK_STEP) AQ_TRY(aq_worker_mark_heard(worker, worker->step));
    if (any & SAYS_NOT_FINITE) worker->times.skipped = true;
    return AQ_OK;
}

/*
 * Is the vote of a step piggybacked on the reduction of its gradients? Not if something is computed from them first
 * that a void step must not change (a codec to choose, PowerSGD's error, a machine's mean), nor if nothing is reduced
 * before the norm.
 */
static bool vote_is_piggybacked(const struct aq_worker *worker)
{
    return !worker->replicas.choice.due && !worker->replicas.reducer.average &&
           worker->job->train.optimizer.low_rank == 0 && aq_optimizer_averages(worker->optimizer, worker->step + 1);
}

/* To other replicas. No group: a replica that sends nothing to other machines, or has not met the others. */
static uint64_t sent_bytes(const struct aq_worker *worker)
{
    struct aq_group_stats stats = {0};
    if (worker->replicas.reducer.sends) aq_group_stats(worker->replicas.reducer.sends, &stats);
    return worker->replicas.ended_sent_bytes + stats.sent_bytes;
}

/* reduce.patience: a stage that trains nothing averages nothing, and the others wait for its word. */
static enum aq_status rounds_close(struct aq_worker *worker)
{
    const struct aq_worker_members *rounds = &worker->replicas.rounds;
    if (rounds->step == rounds->over) return AQ_OK;
    if (aq_worker_is_delayed(worker)) {
        const uint64_t due = rounds->step + worker->job->train.optimizer.outer_delay;
        if (worker->replicas.delay.of != rounds->step) return aq_worker_delay_begin(worker, NULL);
        return worker->step + 1 < due ? AQ_OK : aq_worker_delay_await(worker);
    }
    const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(worker);
    aq_heartbeat_phase(AQ_PHASE_REDUCE);
    AQ_TRY(aq_worker_rounds_perform(worker, NULL));
    aq_heartbeat_phase(AQ_PHASE_UPDATE);
    worker->times.reduce_ns += aq_worker_own_ns(worker) - own;
    aq_trace_add(worker->trace, "compute", "reduce", begin, aq_clock_ns(), (uint32_t)worker->step, 0);
    return AQ_OK;
}

enum aq_status aq_worker_rounds(struct aq_worker *worker)
{
    struct aq_reduce asked;
    AQ_TRY(aq_optimizer_round(worker->optimizer, &asked));
    while (asked.kind != AQ_REDUCE_NONE) {
        if (asked.later || asked.kind == AQ_REDUCE_WAIT) { /* reduce.delay */
            if (asked.later) AQ_TRY(aq_worker_delay_begin(worker, &asked));
            if (!asked.later) AQ_TRY(aq_worker_delay_await(worker));
            AQ_TRY(aq_optimizer_round(worker->optimizer, &asked));
            continue;
        }
        const uint64_t sent = sent_bytes(worker);
        const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(worker);
        aq_worker_use(worker, worker->step);
        aq_heartbeat_phase(AQ_PHASE_REDUCE);
        const bool first = worker->replicas.vote_pending;
        AQ_TRY(worker->replicas.reducer.perform(worker, &asked));
        aq_heartbeat_phase(AQ_PHASE_UPDATE);
        AQ_TRY(vote_receive(worker));
        const uint64_t end = aq_clock_ns();
        worker->times.reduce_ns += aq_worker_own_ns(worker) - own;
        worker->times.reduce_bytes += sent_bytes(worker) - sent;
        aq_trace_add(worker->trace, "compute", "reduce", begin, end, (uint32_t)worker->step, 0);
        if (first && worker->times.skipped) return AQ_OK; /* it was void: nothing is left to do */
        AQ_TRY(aq_optimizer_round(worker->optimizer, &asked));
    }
    return rounds_close(worker);
}

static enum aq_status group_reduce(struct aq_worker *worker)
{
    const uint64_t begin = aq_worker_own_ns(worker);
    AQ_TRY(vote_choose(worker));
    AQ_TRY(vote_send(worker));
    if (!vote_is_piggybacked(worker)) AQ_TRY(vote_receive(worker));
    worker->times.reduce_ns += aq_worker_own_ns(worker) - begin;
    worker->times.squared = !aq_optimizer_averages(worker->optimizer, worker->step + 1);
    if (worker->times.skipped) return AQ_OK;
    AQ_TRY(aq_worker_choose(worker));
    aq_worker_use(worker, worker->step); /* another step's gradients may have been in use meanwhile */
    if (worker->replicas.reducer.average) AQ_TRY(worker->replicas.reducer.average(worker));
    aq_worker_use(worker, worker->step);
    AQ_TRY(
        aq_optimizer_average(worker->optimizer, aq_stage_gradients(worker->stage), worker->step + 1, worker->stream));
    AQ_TRY(aq_worker_rounds(worker));
    return vote_receive(worker); /* a stage that trains nothing has reduced nothing */
}

/*
 * reduce.patience with reduce.every: 1: each step is a round. The launcher names the members, and which step is the
 * last one; only whether the step is void is voted by the group, in each attempt.
 */
static enum aq_status patient_reduce(struct aq_worker *worker)
{
    const uint64_t begin = aq_worker_own_ns(worker);
    AQ_TRY(vote_choose(worker));
    worker->replicas.vote &= SAYS_NOT_FINITE;
    AQ_TRY(aq_worker_rounds_meet(worker));
    worker->times.reduce_ns += aq_worker_own_ns(worker) - begin;
    worker->times.squared = false; /* of the gradients as they were */
    AQ_TRY(
        aq_optimizer_average(worker->optimizer, aq_stage_gradients(worker->stage), worker->step + 1, worker->stream));
    AQ_TRY(aq_worker_rounds(worker));
    worker->replicas.vote_pending = false; /* a stage that trains nothing has no vote */
    return AQ_OK;
}

enum aq_status aq_worker_perform_voted(struct aq_worker *worker, const struct aq_reduce *asked)
{
    uint64_t any; /* it counts when all have the mean: aq_worker_rounds */
    if (!worker->replicas.vote_pending) return aq_worker_group_perform(worker, asked);
    AQ_TRY(vote_send(worker));
    AQ_TRY(aq_worker_group_perform(worker, asked));
    return aq_group_hear(worker->replicas.group, &any);
}

/* split.mode: global: a part has the sum over the clients. */
static enum aq_status server_reduce(struct aq_worker *worker)
{
    struct aq_part_args args = {.step = worker->step};
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(aq_worker_parts_on(&worker->worker_parts, AQ_PART_REDUCE, &args));
    const uint64_t end = aq_clock_ns();
    worker->times.skipped = args.reduced.is_void;
    worker->times.reduce_bytes += args.reduced.bytes;
    worker->times.reduce_ns += end - begin;
    aq_trace_add(worker->trace, "compute", "reduce", begin, end, (uint32_t)worker->step, 0);
    return AQ_OK;
}

/* --- reducers --------------------------------------------------------------------------------------------------- */

/* REDUCE is in no program of one replica. */
static enum aq_status none_reduce(struct aq_worker *worker)
{
    (void)worker;
    return AQ_OK;
}

static enum aq_status machine_average(struct aq_worker *worker)
{
    AQ_TRY(aq_device_stream_sync(worker->device, worker->stream));
    const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(worker);
    worker->times.squared = false; /* of the gradients as they were */
    AQ_TRY(aq_machine_groups_average(worker->replicas.machine, aq_stage_gradients(worker->stage),
                                     aq_stage_parameter_count(worker->stage)));
    const uint64_t end = aq_clock_ns();
    worker->times.reduce_ns += aq_worker_own_ns(worker) - own;
    aq_trace_add(worker->trace, "compute", "average", begin, end, (uint32_t)worker->step, 0);
    return AQ_OK;
}

static enum aq_status machine_perform(struct aq_worker *worker, const struct aq_reduce *asked)
{
    return aq_machine_groups_perform(worker->replicas.machine, asked);
}

static enum aq_status machine_open(struct aq_worker *worker)
{
    struct aq_worker_replicas *replicas = &worker->replicas;
    AQ_TRY(aq_machine_groups_open(replicas->group, worker->job, worker->replica, &replicas->machine));
    replicas->reducer = (struct aq_worker_reducer){.reduce = group_reduce,
                                                   .average = machine_average,
                                                   .perform = machine_perform,
                                                   .sends = aq_machine_groups_leaders(replicas->machine),
                                                   .alike = aq_machine_groups_local(replicas->machine)};
    return AQ_OK;
}

enum aq_status aq_worker_reducer_open(struct aq_worker *worker)
{
    struct aq_worker_reducer *reducer = &worker->replicas.reducer;
    const bool server = aq_job_global(worker->job);
    if (worker->W > 1 && worker->job->reduce.machine_first) return machine_open(worker);
    if (worker->W == 1)
        *reducer = (struct aq_worker_reducer){.reduce = server ? server_reduce : none_reduce};
    else
        *reducer = (struct aq_worker_reducer){.reduce = aq_worker_is_local(worker)            ? aq_worker_local_reduce
                                                        : worker->job->reduce.patience_ns > 0 ? patient_reduce
                                                                                              : group_reduce,
                                              .perform = worker->job->reduce.patience_ns ? aq_worker_rounds_perform
                                                                                         : aq_worker_group_perform,
                                              .sends = worker->replicas.group};
    return AQ_OK;
}

void aq_worker_reducer_close(struct aq_worker *worker)
{
    aq_machine_groups_close(worker->replicas.machine);
}
