/*
 * worker_machine.c -- reduce.machine_first: the replicas of a stage that share a machine average their gradients among
 * themselves before anything is made of them, and one of them, the leader, reduces with the leaders of the other
 * machines (SLAMB, appendix E).
 *
 * The replicas of a machine then have the same gradients, so that their optimizers do the same, bit for bit, and ask
 * for the same reductions; the optimizer's group is one of machines. The leader's result goes to the others as it is.
 */
#include "net/collective.h"
#include "worker.h"

enum aq_status aq_worker_machine_open(struct aq_worker *worker)
{
    struct aq_worker_machine *machine = &worker->replicas.machine;
    uint32_t local[AQ_GROUP_SIZE_MAX], leaders[AQ_GROUP_SIZE_MAX], mates = 0, machines = 0;
    if (!worker->job->reduce.machine_first || worker->W == 1) return AQ_OK;
    for (uint32_t v = 0; v < worker->W; v++) {
        const uint32_t index = aq_job_machine(worker->job, v);
        if (index == aq_job_machine(worker->job, worker->replica)) local[mates++] = v;
        if (index == machines) leaders[machines++] = v; /* the first replica of the next machine */
    }
    AQ_TRY(aq_group_open_part(worker->replicas.group, local, mates, &machine->local));
    if (local[0] != worker->replica || machines == 1) return AQ_OK;
    return aq_group_open_part(worker->replicas.group, leaders, machines, &machine->leaders);
}

void aq_worker_machine_close(struct aq_worker *worker)
{
    aq_group_close(worker->replicas.machine.local);
    aq_group_close(worker->replicas.machine.leaders);
}

enum aq_status aq_worker_machine_average(struct aq_worker *worker)
{
    if (!worker->replicas.machine.local) return AQ_OK;
    AQ_TRY(aq_device_stream_sync(worker->device, worker->stream));
    const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(worker);
    worker->times.squared = false; /* of the gradients as they were */
    AQ_TRY(aq_allreduce_mean(worker->replicas.machine.local, aq_stage_gradients(worker->stage),
                             aq_stage_parameter_count(worker->stage)));
    const uint64_t end = aq_clock_ns();
    worker->times.reduce_ns += aq_worker_own_ns(worker) - own;
    aq_trace_add(worker->trace, "compute", "average", begin, end, (uint32_t)worker->step, 0);
    return AQ_OK;
}

enum aq_status aq_worker_machine_perform(struct aq_worker *worker, const struct aq_reduce *asked)
{
    const struct aq_worker_machine *machine = &worker->replicas.machine;
    const struct aq_compressed coded = {
        .worker = asked->worker, .server = asked->server, .x = asked->x, .count = asked->count, .step = asked->step};
    /* Slamb's, to which manifests are held: values in 32 or 16 bits, without errors. */
    AQ_ASSERT(asked->kind == AQ_REDUCE_MEAN || (asked->kind == AQ_REDUCE_COMPRESSED && !asked->worker_error));
    if (machine->leaders && asked->kind == AQ_REDUCE_MEAN)
        AQ_TRY(aq_allreduce_mean(machine->leaders, asked->x, asked->count));
    else if (machine->leaders)
        AQ_TRY(aq_compressed_allreduce(machine->leaders, &coded));
    return aq_broadcast(machine->local, 0, asked->x, asked->count * sizeof *asked->x);
}
