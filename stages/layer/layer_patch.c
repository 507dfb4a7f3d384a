/*
 * layer_patch.c -- rows that follow each other, joined, times a matrix: a convolution whose kernel is as large as its
 * step, where rows are in Morton order (layer_images.c). No bias: a normalization follows.
 */
#include "layer.h"

#include <math.h>

struct patch_slot {
    float *dy; /* split: the gradient of the output */
};

/* Values of the rows that make one. */
static uint64_t joined(const struct layer *layer)
{
    return (uint64_t)layer->in.rows / layer->out.rows * layer->in.columns;
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    (void)config;
    layer_list_add(list, "weight", joined(layer), layer->out.columns, sqrtf(2.0f / (float)joined(layer)), 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct patch_slot *slot = to;
    const uint64_t floats = (uint64_t)config->B * layer->out.rows * layer->out.columns;
    if (what == LAYER_SLOT && config->split) slot->dy = aq_arena_take(arena, floats * sizeof(float));
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const double product = 2.0 * config->B * layer->out.rows * (double)joined(layer) * layer->out.columns;
    const double weights = layer->trained & 1 ? product : 0;
    *out = (struct layer_flops){product, weights + (layer_goes_on(layer, 0) ? product : 0), weights};
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const uint64_t K = joined(run->layer), N = run->layer->out.columns;
    const struct aq_matmul args = {.M = run->rows_out,
                                   .N = N,
                                   .K = K,
                                   .a = x,
                                   .a_stride = K,
                                   .b = run->w[0],
                                   .b_stride = N,
                                   .c = y,
                                   .c_stride = N,
                                   .compute = stage_compute(run->config->precision)};
    return aq_device_matmul(run->device, &args, run->stream);
}

static enum aq_status weight_gradient(const struct layer_run *run, const float *x, const float *dy)
{
    const uint64_t K = joined(run->layer), N = run->layer->out.columns;
    const struct aq_matmul args = {.M = K,
                                   .N = N,
                                   .K = run->rows_out,
                                   .a = x,
                                   .a_stride = K,
                                   .a_transposed = true,
                                   .b = dy,
                                   .b_stride = N,
                                   .c = run->g[0],
                                   .c_stride = N,
                                   .accumulate = true,
                                   .compute = stage_compute(run->config->precision)};
    return run->g[0] ? aq_device_matmul(run->device, &args, run->stream) : AQ_OK;
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct patch_slot *slot = run->slot;
    const uint64_t K = joined(run->layer), N = run->layer->out.columns;
    (void)below;
    if (run->split)
        AQ_TRY(aq_device_copy(run->device, slot->dy, dy, run->rows_out * N * sizeof *dy, run->stream));
    else
        AQ_TRY(weight_gradient(run, x, dy));
    if (!dx) return AQ_OK;
    const struct aq_matmul args = {.M = run->rows_out,
                                   .N = K,
                                   .K = N,
                                   .a = dy,
                                   .a_stride = N,
                                   .b = run->w[0],
                                   .b_stride = N,
                                   .b_transposed = true,
                                   .c = dx,
                                   .c_stride = K,
                                   .compute = stage_compute(run->config->precision)};
    return aq_device_matmul(run->device, &args, run->stream);
}

static enum aq_status weights(const struct layer_run *run, const void *x)
{
    const struct patch_slot *slot = run->slot;
    return weight_gradient(run, x, slot->dy);
}

const struct layer_kind layer_patch = {.name = "patch",
                                       .slot_bytes = sizeof(struct patch_slot),
                                       .tensors = tensors,
                                       .place = place,
                                       .flops = flops,
                                       .forward = forward,
                                       .backward = backward,
                                       .weights = weights};
