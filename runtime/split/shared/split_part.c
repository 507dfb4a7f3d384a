/* split_part.c -- see the header. */
#include "split_part.h"

#include "aqsgd/grad.h"

static enum aq_status open_optimizer(struct aq_device *device, const struct aq_plan *plan, struct aq_stage *stage,
                                     struct aq_optimizer **out)
{
    const uint32_t count = aq_stage_tensor_count(stage);
    void *memory;
    AQ_TRY(aq_alloc(count * (sizeof(struct aq_optimizer_tensor) + sizeof(struct aq_tensor_info)), &memory));
    struct aq_optimizer_tensor *tensors = memory;
    struct aq_tensor_info *infos = (struct aq_tensor_info *)(tensors + count); /* whose names are borrowed */
    for (uint32_t i = 0; i < count; i++) {
        aq_stage_tensor(stage, i, &infos[i]);
        tensors[i] = (struct aq_optimizer_tensor){.offset = infos[i].offset,
                                                  .count = infos[i].count,
                                                  .decay = infos[i].decay,
                                                  .rows = infos[i].dimensions == 2 ? infos[i].shape[0] : 0,
                                                  .name = infos[i].name,
                                                  .rate = infos[i].rate > 0 ? infos[i].rate / plan->job->train.lr : 1};
    }
    const struct aq_optimizer_group group = {.rank = 0, .size = 1};
    struct aq_optimizer_config config = plan->job->train.optimizer;
    config.seed = plan->job->train.seed;
    config.total_steps = plan->steps;
    const enum aq_status status =
        aq_optimizer_open_group(device, &config, tensors, count, aq_stage_parameter_count(stage), &group, out);
    aq_free(memory);
    return status;
}

void aq_split_part_close(struct aq_split_part *part)
{
    aq_optimizer_close(part->optimizer);
    aq_stage_close(part->stage);
    aq_device_close(part->device);
}

enum aq_status aq_split_part_open(const struct aq_plan *plan, uint32_t rank, const char *folder,
                                  struct aq_split_part *part)
{
    const struct aq_device_config device = {.kind = "cpu", .threads = 1};
    struct aq_stage_config config = plan->stages[rank].config;
    *part = (struct aq_split_part){0};
    config.slots = 1;
    AQ_TRY(aq_device_open(&device, &part->device));
    AQ_TRY(aq_stage_open(part->device, &config, &part->stage));
    AQ_TRY(open_optimizer(part->device, plan, part->stage, &part->optimizer));
    part->checkpoint =
        (struct aq_checkpoint){.folder = folder,
                               .run = {.plan_hash = aq_plan_hash(plan),
                                       .job_digest = plan->job_digest,
                                       .stages = plan->stage_count,
                                       .replicas = 1},
                               .rank = rank,
                               .device = part->device,
                               .stage = part->stage,
                               .optimizer = part->optimizer,
                               .updates_ahead = aq_job_counts_updates(plan->job) ? &part->updates_ahead : NULL};
    return AQ_OK;
}

enum aq_status aq_split_part_without_statistics(const struct aq_plan *plan, uint32_t rank, const char *from,
                                                const char *to)
{
    struct aq_split_part part;
    enum aq_status status = aq_split_part_open(plan, rank, to, &part);
    if (status == AQ_OK) status = aq_stage_init(part.stage, plan->job->train.seed);
    part.checkpoint.own_statistics = true;
    if (status == AQ_OK) status = aq_checkpoint_adopt(&part.checkpoint, from, 0);
    if (status == AQ_OK) status = aq_checkpoint_write(&part.checkpoint, 0);
    aq_split_part_close(&part);
    return status;
}

uint64_t aq_split_part_bytes_max(const struct aq_plan *plan, uint32_t rank)
{
    const struct aq_plan_stage *stage = &plan->stages[rank];
    const uint64_t copies = 5 + 2 * (uint64_t)plan->job->train.staleness;
    return copies * 4 * (stage->size.parameters + stage->size.buffers) + (4 << 20);
}
