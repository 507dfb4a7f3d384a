/*
 * layer_deberta_pooler.c -- a sample's summary from its first token: y = D(gelu(x_0 W + b)), before a classifier.
 */
#include "deberta.h"

enum { WEIGHT, BIAS };

struct pooler_slot {
    float *first;  /* x_0 of each sample                 */
    void *rounded; /* the same as products read it       */
    void *inner;   /* before GELU, the stage's type      */
};

struct pooler_state {
    float *gated; /* fp32: gelu(..), or a gradient */
    void *dinner;
};

static struct linear dense_of(const struct layer *layer)
{
    return linear_of(layer->in.columns, layer->in.columns, true, WEIGHT, BIAS);
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const uint64_t C = layer->in.columns;
    layer_list_add(list, "weight", C, C, config->model.init_std, 0);
    layer_list_add(list, "bias", 0, C, 0, 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t count = (uint64_t)config->B * layer->in.columns, typed = count * aq_element_bytes(type);
    struct pooler_slot *kept = to;
    struct pooler_state *work = to;
    if (what == LAYER_KEPT) {
        kept->first = aq_arena_take(arena, count * sizeof(float));
        if (type != AQ_F32) kept->rounded = aq_arena_take(arena, typed);
        kept->inner = aq_arena_take(arena, typed);
    }
    if (what != LAYER_WORK) return;
    work->gated = aq_arena_take(arena, count * sizeof(float));
    work->dinner = aq_arena_take(arena, typed);
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const struct linear dense = dense_of(layer);
    *out = (struct layer_flops){0};
    linear_flops(layer, &dense, config->B, out);
    out->weights = 0; /* backward does all */
}

static struct aq_dropout_apply drop_of(const struct layer_run *run, const float *x, void *y, enum aq_element type)
{
    return (struct aq_dropout_apply){.samples = run->samples,
                                     .sample_elements = run->layer->in.columns,
                                     .x = x,
                                     .y = y,
                                     .y_type = type,
                                     .dropout = layer_dropout(run, 0)};
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const struct linear dense = dense_of(run->layer);
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t count = run->samples * run->layer->in.columns;
    const struct linear_to to = {.c = kept->inner, .type = type};
    struct linear_rows operand = {0};
    AQ_TRY(layer_first_rows(run, (float *)(uintptr_t)x, kept->first, false)); /* read only */
    AQ_TRY(deberta_operand(run, count, kept->first, kept->rounded, &operand.at));
    AQ_TRY(linear_forward(run, &dense, run->samples, operand, &to));
    if (!y) return AQ_OK;
    AQ_TRY(aq_device_zero(run->device, work->gated, count * sizeof *work->gated, run->stream));
    const struct aq_gelu gelu = {.count = count, .type = type, .x = kept->inner, .other = work->gated, .y = y};
    AQ_TRY(aq_device_gelu(run->device, &gelu, run->stream));
    const struct aq_dropout_apply drop = drop_of(run, y, y, AQ_F32);
    return run->dropped ? aq_device_dropout(run->device, &drop, run->stream) : AQ_OK;
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const struct linear dense = dense_of(run->layer);
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t count = run->samples * run->layer->in.columns;
    const struct aq_dropout_apply drop = drop_of(run, dy, work->dinner, type);
    const struct aq_gelu_backward gelu = {
        .count = count, .type = type, .x = kept->inner, .dy = work->dinner, .dx = work->dinner};
    const struct linear_rows operand = {kept->rounded ? kept->rounded : kept->first, 0}, of = {work->dinner, 0};
    const struct linear_to to = {.c = work->gated, .type = AQ_F32};
    (void)x;
    (void)below;
    AQ_TRY(aq_device_dropout(run->device, &drop, run->stream));
    AQ_TRY(aq_device_gelu_backward(run->device, &gelu, run->stream));
    AQ_TRY(linear_gradients(run, &dense, run->samples, operand, of));
    if (!dx) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &dense, run->samples, of, &to));
    AQ_TRY(aq_device_zero(run->device, dx, run->rows_in * run->layer->in.columns * sizeof *dx, run->stream));
    return layer_first_rows(run, dx, work->gated, true);
}

const struct layer_kind layer_deberta_pooler = {.name = "deberta_pooler",
                                                .fresh = 1u << WEIGHT | 1u << BIAS,
                                                .sites = 1,
                                                .state_bytes = sizeof(struct pooler_state),
                                                .slot_bytes = sizeof(struct pooler_slot),
                                                .tensors = tensors,
                                                .place = place,
                                                .flops = flops,
                                                .forward = forward,
                                                .backward = backward};
