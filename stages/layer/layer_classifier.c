/*
 * layer_classifier.c -- all values of a sample times a matrix, one output per class, and the task's loss: the last
 * layer of a network with one result per sample.
 */
#include "layer.h"

#include <math.h>

enum { WEIGHT, BIAS };

struct classifier_slot {
    struct layer_verdict verdict; /* the first member: layer.h */
    float *logits;                /* their gradient, once the loss is made */
};

static uint64_t values_of(const struct layer *layer)
{
    return (uint64_t)layer->in.rows * layer->in.columns;
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const float std = sqrtf(1.0f / (float)values_of(layer));
    (void)config;
    if (layer->transposed)
        layer_list_add_linear(list, "weight", values_of(layer), layer->out.columns, 0, std);
    else
        layer_list_add(list, "weight", values_of(layer), layer->out.columns, std, 0);
    layer_list_add(list, "bias", 0, layer->out.columns, 0, 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct classifier_slot *slot = to;
    const uint64_t each = config->B * sizeof(float);
    if (what == LAYER_SLOT) {
        slot->logits = aq_arena_take(arena, each * layer->out.columns);
    }
    if (what == LAYER_SLOT || what == LAYER_HOST) layer_verdict_place(config, what, arena, &slot->verdict);
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const double product = 2.0 * config->B * (double)values_of(layer) * layer->out.columns;
    const double weights = layer->trained >> WEIGHT & 1 ? product : 0;
    *out = (struct layer_flops){product, weights + (layer_goes_on(layer, 0) ? product : 0), weights};
}

static struct aq_matmul product(const struct layer_run *run, uint64_t M, uint64_t N, uint64_t K, const float *a,
                                const float *b, float *c)
{
    return (struct aq_matmul){.M = M,
                              .N = N,
                              .K = K,
                              .a = a,
                              .a_stride = K,
                              .b = b,
                              .b_stride = N,
                              .c = c,
                              .c_stride = N,
                              .compute = stage_compute(run->config->precision)};
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct classifier_slot *slot = run->slot;
    const uint64_t classes = run->layer->out.columns;
    (void)y;
    struct aq_matmul args = product(run, run->samples, classes, values_of(run->layer), x, run->w[WEIGHT], slot->logits);
    args.bias = run->w[BIAS];
    AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    if (!run->compares) return AQ_OK;
    return layer_verdict_make(run, slot->logits, run->train ? slot->logits : NULL, AQ_F32);
}

/* Of sample 0, where no loss has used them up. */
static enum aq_status output(const struct layer_run *run, uint32_t row, float *values)
{
    const struct classifier_slot *slot = run->slot;
    const size_t bytes = run->layer->out.columns * sizeof *values;
    if (row > 0 || run->compares) return aq_fail(AQ_INVAL, "stage", "logits of a sample: one row, without a label");
    return aq_device_copy(run->device, values, slot->logits, bytes, run->stream);
}

/* The slot has what it multiplies in any case. */
static enum aq_status weights(const struct layer_run *run, const void *x)
{
    const struct classifier_slot *slot = run->slot;
    const uint64_t K = values_of(run->layer), classes = run->layer->out.columns;
    struct aq_matmul args = product(run, K, classes, run->samples, x, slot->logits, run->g[WEIGHT]);
    args.a_transposed = args.accumulate = true;
    args.a_stride = K;
    if (run->g[WEIGHT]) AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    const struct aq_column_sum bias = {
        .rows = run->samples, .C = classes, .stride = classes, .x = slot->logits, .sums = run->g[BIAS]};
    return run->g[BIAS] ? aq_device_column_sum(run->device, &bias, run->stream) : AQ_OK;
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct classifier_slot *slot = run->slot;
    const uint64_t K = values_of(run->layer), classes = run->layer->out.columns;
    (void)dy;
    (void)below;
    if (!run->split) AQ_TRY(weights(run, x));
    if (!dx) return AQ_OK;
    struct aq_matmul args = product(run, run->samples, K, classes, slot->logits, run->w[WEIGHT], dx);
    args.b_transposed = true;
    args.b_stride = classes;
    return aq_device_matmul(run->device, &args, run->stream);
}

const struct layer_kind layer_classifier = {.name = "classifier",
                                            .fresh = 1u << WEIGHT | 1u << BIAS,
                                            .slot_bytes = sizeof(struct classifier_slot),
                                            .tensors = tensors,
                                            .place = place,
                                            .flops = flops,
                                            .check = layer_verdict_check,
                                            .take = layer_verdict_take,
                                            .forward = forward,
                                            .backward = backward,
                                            .weights = weights,
                                            .count = layer_verdict_count,
                                            .output = output};
