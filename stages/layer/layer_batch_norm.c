/*
 * layer_batch_norm.c -- batch normalization of columns over the rows of a micro-batch (Ioffe and Szegedy 2015), with
 * running statistics as PyTorch keeps them: buffers, which a checkpoint has and which do not train. Training takes the
 * statistics of the micro-batch; evaluation takes the running ones.
 */
#include "layer.h"

enum { WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VARIANCE };

static const float EPSILON = 1e-5f, MOMENTUM = 0.1f; /* PyTorch's */

struct norm_slot {
    float *mean, *rstd;
};

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    (void)config;
    layer_list_add(list, "weight", 0, layer->in.columns, 0, 1);
    layer_list_add(list, "bias", 0, layer->in.columns, 0, 0);
    layer_list_buffer(list, "running_mean", layer->in.columns, 0);
    layer_list_buffer(list, "running_var", layer->in.columns, 1);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct norm_slot *slot = to;
    if (what != LAYER_SLOT || config->inference) return;
    slot->mean = aq_arena_take(arena, layer->in.columns * sizeof(float));
    slot->rstd = aq_arena_take(arena, layer->in.columns * sizeof(float));
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct norm_slot *slot = run->slot;
    const struct aq_batch_norm args = {.rows = run->rows_in,
                                       .C = run->layer->in.columns,
                                       .training = run->train,
                                       .epsilon = EPSILON,
                                       .momentum = MOMENTUM,
                                       .x = x,
                                       .gamma = run->w[WEIGHT],
                                       .beta = run->w[BIAS],
                                       .y = y,
                                       .mean = slot->mean,
                                       .rstd = slot->rstd,
                                       .running_mean = run->w[RUNNING_MEAN],
                                       .running_variance = run->w[RUNNING_VARIANCE]};
    return aq_device_batch_norm(run->device, &args, run->stream);
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct norm_slot *slot = run->slot;
    (void)below;
    const struct aq_batch_norm_backward args = {.rows = run->rows_in,
                                                .C = run->layer->in.columns,
                                                .x = x,
                                                .dy = dy,
                                                .gamma = run->w[WEIGHT],
                                                .mean = slot->mean,
                                                .rstd = slot->rstd,
                                                .dx = dx,
                                                .dgamma = run->g[WEIGHT],
                                                .dbeta = run->g[BIAS]};
    return aq_device_batch_norm_backward(run->device, &args, run->stream);
}

const struct layer_kind layer_batch_norm = {.name = "batch_norm",
                                            .in_place = true,
                                            .slot_bytes = sizeof(struct norm_slot),
                                            .tensors = tensors,
                                            .place = place,
                                            .forward = forward,
                                            .backward = backward};
