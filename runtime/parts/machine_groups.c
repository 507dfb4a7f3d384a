/* machine_groups.c -- see the header. */
#include "machine_groups.h"

#include "net/collective.h"

struct aq_machine_groups {
    struct aq_group *local, *leaders;
};

enum aq_status aq_machine_groups_open(struct aq_group *all, const struct aq_job *job, uint32_t replica,
                                      struct aq_machine_groups **out)
{
    uint32_t local[AQ_GROUP_SIZE_MAX], leaders[AQ_GROUP_SIZE_MAX], mates = 0, machines = 0;
    struct aq_machine_groups *groups;
    AQ_TRY(AQ_NEW(1, &groups));
    for (uint32_t v = 0; v < aq_group_size(all); v++) {
        const uint32_t index = aq_job_machine(job, v);
        if (index == aq_job_machine(job, replica)) local[mates++] = v;
        if (index == machines) leaders[machines++] = v; /* the first replica of the next machine */
    }
    enum aq_status status = aq_group_open_part(all, local, mates, &groups->local);
    if (status == AQ_OK && local[0] == replica && machines > 1)
        status = aq_group_open_part(all, leaders, machines, &groups->leaders);
    if (status == AQ_OK)
        *out = groups;
    else
        aq_machine_groups_close(groups);
    return status;
}

void aq_machine_groups_close(struct aq_machine_groups *groups)
{
    if (!groups) return;
    aq_group_close(groups->local);
    aq_group_close(groups->leaders);
    aq_free(groups);
}

enum aq_status aq_machine_groups_average(struct aq_machine_groups *groups, float *x, uint64_t count)
{
    return aq_allreduce_mean(groups->local, x, count);
}

enum aq_status aq_machine_groups_perform(struct aq_machine_groups *groups, const struct aq_reduce *asked)
{
    const struct aq_compressed coded = {.worker = asked->worker,
                                        .server = asked->server,
                                        .x = asked->x,
                                        .count = asked->count,
                                        .step = asked->step};
    /* Slamb's, to which manifests are held: values in 32 or 16 bits, without errors. */
    AQ_ASSERT(asked->kind == AQ_REDUCE_MEAN || (asked->kind == AQ_REDUCE_COMPRESSED && !asked->worker_error));
    if (groups->leaders && asked->kind == AQ_REDUCE_MEAN)
        AQ_TRY(aq_allreduce_mean(groups->leaders, asked->x, asked->count));
    else if (groups->leaders)
        AQ_TRY(aq_compressed_allreduce(groups->leaders, &coded));
    return aq_broadcast(groups->local, 0, asked->x, asked->count * sizeof *asked->x);
}

struct aq_group *aq_machine_groups_local(const struct aq_machine_groups *groups)
{
    return groups->local;
}

struct aq_group *aq_machine_groups_leaders(const struct aq_machine_groups *groups)
{
    return groups->leaders;
}
