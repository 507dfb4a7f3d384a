/*
 * layer_classifier.c -- all values of a sample times a matrix, one output a class, and the task's loss: the last layer
 * of a network that says one thing of a sample.
 */
#include "layer.h"

#include <math.h>

enum { WEIGHT, BIAS };

struct classifier_slot {
    float *logits, *losses; /* logits: their gradient, once the loss is made */
    int32_t *targets, *guesses;
    float *host_losses;
    int32_t *host_targets, *host_guesses;
};

static uint64_t values_of(const struct layer *layer)
{
    return (uint64_t)layer->in.rows * layer->in.columns;
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    (void)config;
    layer_list_add(list, "weight", values_of(layer), layer->out.columns, sqrtf(1.0f / (float)values_of(layer)), 0);
    layer_list_add(list, "bias", 0, layer->out.columns, 0, 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct classifier_slot *slot = to;
    const uint64_t each = config->B * sizeof(float);
    if (what == LAYER_SLOT) {
        slot->logits = aq_arena_take(arena, each * layer->out.columns);
        slot->losses = aq_arena_take(arena, each);
        slot->targets = aq_arena_take(arena, each);
        slot->guesses = aq_arena_take(arena, each);
    }
    if (what == LAYER_HOST) {
        slot->host_losses = aq_arena_take(arena, each);
        slot->host_targets = aq_arena_take(arena, each);
        slot->host_guesses = aq_arena_take(arena, each);
    }
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const double product = 2.0 * config->B * (double)values_of(layer) * layer->out.columns;
    const double weights = layer->trained >> WEIGHT & 1 ? product : 0;
    *out = (struct layer_flops){product, weights + (layer_goes_on(layer, 0) ? product : 0), weights};
}

static enum aq_status check(const struct layer *layer, const struct aq_stage_config *config,
                            const struct aq_batch *batch, uint32_t tokens_used)
{
    (void)tokens_used;
    return layer_check_field(batch, aq_task_field(aq_task_find(config->task)), 1, 1, -1, layer->out.columns);
}

static enum aq_status take(const struct layer_run *run, const struct aq_batch *batch, uint32_t used)
{
    const struct classifier_slot *slot = run->slot;
    const int32_t *targets = aq_batch_find(batch, run->task->field, AQ_FIELD_I32, 1);
    (void)used;
    for (uint32_t i = 0; i < run->samples; i++)
        slot->host_targets[i] = targets[i];
    return aq_device_copy(run->device, slot->targets, slot->host_targets, run->samples * sizeof *targets, run->stream);
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

static enum aq_status forward(const struct layer_run *run, const float *x, float *y)
{
    const struct classifier_slot *slot = run->slot;
    const uint64_t classes = run->layer->out.columns;
    const size_t bytes = run->samples * sizeof(float);
    (void)y;
    struct aq_matmul args = product(run, run->samples, classes, values_of(run->layer), x, run->w[WEIGHT], slot->logits);
    args.bias = run->w[BIAS];
    AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    if (!run->compares) return AQ_OK;
    const struct aq_argmax guess = {
        .rows = run->samples, .C = classes, .stride = classes, .x = slot->logits, .index = slot->guesses};
    if (run->task->wants_guesses) AQ_TRY(aq_device_argmax(run->device, &guess, run->stream));
    const struct aq_cross_entropy loss = {.rows = run->samples,
                                          .V = classes,
                                          .logits = slot->logits,
                                          .logits_stride = classes,
                                          .targets = slot->targets,
                                          .losses = slot->losses,
                                          .gradient = run->train ? slot->logits : NULL,
                                          .gradient_stride = classes,
                                          .scale = run->loss_scale};
    AQ_TRY(run->task->loss(run->device, &loss, run->stream));
    if (run->task->wants_guesses)
        AQ_TRY(aq_device_copy(run->device, slot->host_guesses, slot->guesses, bytes, run->stream));
    return aq_device_copy(run->device, slot->host_losses, slot->losses, bytes, run->stream);
}

static void count(const struct layer_run *run, struct aq_stage_loss *out)
{
    const struct classifier_slot *slot = run->slot;
    const struct stage_counted rows = {.rows = run->samples,
                                       .losses = slot->host_losses,
                                       .targets = slot->host_targets,
                                       .guesses = slot->host_guesses};
    run->task->count(&rows, out);
}

/* The slot has what it multiplies in any case. */
static enum aq_status weights(const struct layer_run *run, const float *x)
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

static enum aq_status backward(const struct layer_run *run, const float *x, const float *dy, float *dx,
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
                                            .slot_bytes = sizeof(struct classifier_slot),
                                            .tensors = tensors,
                                            .place = place,
                                            .flops = flops,
                                            .check = check,
                                            .take = take,
                                            .forward = forward,
                                            .backward = backward,
                                            .weights = weights,
                                            .count = count};
