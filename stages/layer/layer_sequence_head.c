/*
 * layer_sequence_head.c -- final norm and a matrix without bias over the last real token of each sample, and the task's
 * loss: the last layer of a decoder with one result per sequence (Hugging Face's ...ForSequenceClassification).
 *
 * Only the last token has seen all others. Its row is taken out of each sample first, so that norm and product have one
 * row per sample; the gradient of all other rows is zero.
 */
#include "decoder.h"

struct sequence_slot {
    struct layer_verdict verdict; /* the first member: layer.h */
    void *last, *norm;            /* (B, C): the rows, of the stream's type, and normalized, of the stage's */
    float *mean, *rstd;
    float *outputs, *gradient; /* (B, outputs) */
};

struct sequence_state {
    float *dnorm, *dlast; /* WORK: (B, C) */
};

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    decoder_final_norm(layer, list);
    layer_list_add(list, layer->form->score, layer->out.columns, layer->in.columns, config->model.init_std, 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct sequence_slot *slot = to;
    struct sequence_state *state = to;
    const uint64_t each = config->B * sizeof(float), row = each * layer->in.columns, out = each * layer->out.columns;
    if (what == LAYER_SLOT) {
        slot->last = aq_arena_take(arena, row / sizeof(float) * aq_element_bytes(layer_stream(config)));
        slot->norm = aq_arena_take(arena, row);
        if (!layer->form->rms) slot->mean = aq_arena_take(arena, each);
        slot->rstd = aq_arena_take(arena, each);
        slot->outputs = aq_arena_take(arena, out);
        slot->gradient = aq_arena_take(arena, out);
    }
    if (what == LAYER_SLOT || what == LAYER_HOST) layer_verdict_place(config, what, arena, &slot->verdict);
    if (what == LAYER_WORK && !config->inference) {
        state->dnorm = aq_arena_take(arena, row);
        state->dlast = aq_arena_take(arena, row);
    }
}

static struct linear linear_of_head(const struct layer *layer)
{
    return linear_of(layer->in.columns, layer->out.columns, true, DECODER_HEAD, LAYER_NO_TENSOR);
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const struct linear linear = linear_of_head(layer);
    linear_flops(layer, &linear, config->B, out);
}

/* Offset of the last real row of sample i. */
static uint64_t last_of(const struct layer_run *run, uint32_t i)
{
    const uint32_t tokens = run->host_lengths ? run->host_lengths[i] : run->tokens;
    return ((uint64_t)i * run->tokens + tokens - 1) * run->layer->in.columns;
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct sequence_slot *slot = run->slot;
    const uint64_t each = aq_element_bytes(layer_stream(run->config)), row = run->layer->in.columns * each;
    (void)y;
    for (uint32_t i = 0; i < run->samples; i++)
        AQ_TRY(aq_device_copy(run->device, (uint8_t *)slot->last + i * row, (const uint8_t *)x + last_of(run, i) * each,
                              row, run->stream));
    const struct decoder_norm norm = decoder_final_norm_of(slot->mean, slot->rstd);
    AQ_TRY(decoder_norm(run, &norm, run->samples, slot->last, slot->norm));
    const struct linear linear = linear_of_head(run->layer);
    const struct linear_to to = {.c = slot->outputs, .type = AQ_F32};
    AQ_TRY(linear_forward(run, &linear, run->samples, (struct linear_rows){slot->norm, 0}, &to));
    if (!run->compares) return AQ_OK;
    return layer_verdict_make(run, slot->outputs, run->train ? slot->gradient : NULL,
                              stage_type(run->config->precision));
}

/* The slot has what it multiplies in any case. */
static enum aq_status weights(const struct layer_run *run, const void *x)
{
    const struct sequence_slot *slot = run->slot;
    const struct linear linear = linear_of_head(run->layer);
    (void)x;
    return linear_weight_gradient(run, &linear, run->samples, (struct linear_rows){slot->norm, 0},
                                  (struct linear_rows){slot->gradient, 0});
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct sequence_slot *slot = run->slot;
    const struct sequence_state *state = run->state;
    const uint64_t C = run->layer->in.columns;
    const size_t row = C * sizeof(float);
    (void)x;
    (void)dy;
    (void)below;
    if (!run->split) AQ_TRY(weights(run, x));
    const struct linear linear = linear_of_head(run->layer);
    const struct linear_to to = {.c = state->dnorm, .type = AQ_F32};
    if (!linear_goes_on(run->layer, &linear)) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &linear, run->samples, (struct linear_rows){slot->gradient, 0}, &to));
    AQ_TRY(aq_device_zero(run->device, state->dlast, run->samples * row, run->stream));
    const struct decoder_norm norm = decoder_final_norm_of(slot->mean, slot->rstd);
    AQ_TRY(decoder_norm_gradient(run, &norm, run->samples, state->dnorm, slot->last, layer_stream(run->config),
                                 state->dlast, NULL));
    if (!dx) return AQ_OK;
    AQ_TRY(aq_device_zero(run->device, dx, run->rows_in * row, run->stream));
    for (uint32_t i = 0; i < run->samples; i++)
        AQ_TRY(aq_device_copy(run->device, dx + last_of(run, i), state->dlast + i * C, row, run->stream));
    return AQ_OK;
}

/* Sample 0's only output, whatever the row. */
static enum aq_status output(const struct layer_run *run, uint32_t row, float *values)
{
    const struct sequence_slot *slot = run->slot;
    (void)row;
    return aq_device_copy(run->device, values, slot->outputs, run->layer->out.columns * sizeof *values, run->stream);
}

const struct layer_kind layer_sequence_head = {.name = "sequence_head",
                                               .state_bytes = sizeof(struct sequence_state),
                                               .slot_bytes = sizeof(struct sequence_slot),
                                               .bf16_stream = true,
                                               .fresh = 1u << DECODER_HEAD,
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
