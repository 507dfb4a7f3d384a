/*
 * split_check.c -- what a turn has trained, before another client is to begin with it.
 *
 * The ends that the client sent, and the middle: a step whose gradient is no number is void, but the statistics of a
 * batch norm have taken its activations.
 *
 * They are read as a worker would: into the stages of the plan, of which every tensor must be there, with its size, and
 * every value finite. What that does not find is what was trained honestly by form and badly by content.
 */
#include <stdio.h>
#include <string.h>

#include "aqsgd/grad.h"
#include "checkpoint.h"
#include "split_private.h"

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
                                                  .name = infos[i].name};
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

static enum aq_status check_one(struct aq_device *device, const struct aq_plan *plan, uint32_t rank, const char *folder)
{
    struct aq_stage_config config = plan->stages[rank].config;
    struct aq_stage *stage = NULL;
    struct aq_optimizer *optimizer = NULL;
    config.slots = 1; /* nothing is computed */
    enum aq_status status = aq_stage_open(device, &config, &stage);
    if (status == AQ_OK) status = open_optimizer(device, plan, stage, &optimizer);
    const struct aq_checkpoint checkpoint = {
        .folder = folder, .rank = rank, .device = device, .stage = stage, .optimizer = optimizer};
    if (status == AQ_OK) status = aq_checkpoint_adopt(&checkpoint, folder);
    aq_optimizer_close(optimizer);
    aq_stage_close(stage);
    return status;
}

/* The reason without our paths: it goes to the client. */
static void its_fault(const char *text, char why[AQ_SPLIT_TEXT_BYTES])
{
    const char *file = strstr(text, "stage-");
    snprintf(why, AQ_SPLIT_TEXT_BYTES, "the weights of its turn are refused: %.300s", file ? file : text);
}

enum aq_status turn_check(const struct site *site, const char *ends, const char *middle, char why[AQ_SPLIT_TEXT_BYTES])
{
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    struct aq_device *device;
    struct aq_error_hold hold;
    AQ_TRY(aq_device_open(&config, &device));
    enum aq_status status = AQ_OK;
    aq_error_hold(&hold);
    for (uint32_t rank = 0; rank < AQ_SPLIT_STAGES && status == AQ_OK; rank++)
        status = check_one(device, site->job.plan, rank, rank == AQ_SPLIT_MIDDLE ? middle : ends);
    aq_error_release(&hold);
    if (status != AQ_OK) its_fault(hold.text, why);
    aq_device_close(device);
    return status;
}
