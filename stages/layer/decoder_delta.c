/*
 * decoder_delta.c -- the gated delta rule in the place of attention (Yang et al. 2025, "Gated Delta Networks"; Qwen3.5,
 * 2026), and attention with a gate for each head of queries. n is the norm that the branch reads:
 *
 *     heads = n Wqkv        qkv = silu(convolution of heads along the tokens)        gates = n Wb, n Wa        z = n Wz
 *     s = delta rule(qkv, gates)        opened = norm of each head of s, times silu(z)        branch = opened Wo
 *
 * The convolution and the rule start with zeroes at each part of a sample. For generation the slot keeps the
 * convolution's inputs of the last tokens, and the states behind the last token: the next forward resumes there.
 *
 * Backward writes gradients over what it has read: those of z and of the gates stay in the slot, that of heads is in
 * work->dheads, which the block's backward may change with the slot's memory.
 */
#include "decoder_block.h"

static float *tensor_of(float *const *of, const struct decoder_shape *shape, enum decoder_tensor tensor)
{
    return of[shape->tensor[tensor]];
}

void decoder_delta_kept(const struct decoder_shape *shape, const struct aq_stage_config *config, struct aq_arena *arena,
                        struct decoder_slot *kept)
{
    const struct decoder_delta *delta = &shape->delta;
    const uint64_t rows = (uint64_t)config->B * config->T, typed = aq_element_bytes(stage_type(config->precision));
    const uint64_t states = config->inference ? 0 : config->B * aq_delta_states(config->T);
    kept->z = aq_arena_take(arena, rows * shape->mixed * typed);
    kept->gates = aq_arena_take(arena, rows * 2 * delta->values * sizeof(float));
    kept->summed = aq_arena_take(arena, rows * shape->mixed * sizeof(float));
    kept->states = states ? aq_arena_take(arena, states * delta->values * delta->Dk * delta->Dv * sizeof(float)) : NULL;
}

/* Rows of the convolution's cache. */
static uint64_t cache_rows(const struct decoder_delta *delta)
{
    return delta->taps > 1 ? delta->taps - 1 : 1;
}

void decoder_delta_slot(const struct decoder_shape *shape, const struct aq_stage_config *config, struct aq_arena *arena,
                        struct decoder_slot *kept)
{
    const struct decoder_delta *delta = &shape->delta;
    const uint64_t typed = aq_element_bytes(stage_type(config->precision));
    kept->cache = aq_arena_take(arena, config->B * delta->values * delta->Dk * delta->Dv * sizeof(float));
    kept->taps = aq_arena_take(arena, config->B * cache_rows(delta) * shape->qkv * typed);
}

void decoder_delta_work(const struct decoder_shape *shape, uint64_t rows, struct aq_arena *arena,
                        struct decoder_state *work)
{
    work->dsummed = aq_arena_take(arena, rows * shape->mixed * sizeof(float));
    work->dnormed = aq_arena_take(arena, rows * shape->mixed * sizeof(float));
    work->dgates = aq_arena_take(arena, rows * 2 * shape->delta.values * sizeof(float));
    work->drates = aq_arena_take(arena, rows * shape->delta.values * sizeof(float));
}

static struct aq_causal_conv conv_of(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const bool extends = run->config->extends;
    return (struct aq_causal_conv){.samples = run->samples,
                                   .T = run->tokens,
                                   .C = shape->qkv,
                                   .K = shape->delta.taps,
                                   .silu = true,
                                   .type = stage_type(run->config->precision),
                                   .stride = shape->qkv,
                                   .x = kept->heads,
                                   .w = tensor_of(run->w, shape, DELTA_TAPS),
                                   .starts = run->starts,
                                   .first = run->first,
                                   .rows = extends ? cache_rows(&shape->delta) : 0,
                                   .cache = extends ? kept->taps : NULL,
                                   .y = kept->qkv};
}

static struct aq_delta rule_of(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    return (struct aq_delta){.samples = run->samples,
                             .T = run->tokens,
                             .K = shape->delta.keys,
                             .H = shape->delta.values,
                             .Dk = shape->delta.Dk,
                             .Dv = shape->delta.Dv,
                             .epsilon = 1e-6f,
                             .type = stage_type(run->config->precision),
                             .qkv = kept->qkv,
                             .gates = kept->gates,
                             .rate = tensor_of(run->w, shape, DELTA_RATE),
                             .shift = tensor_of(run->w, shape, DELTA_SHIFT),
                             .starts = run->starts,
                             .out = kept->summed,
                             .states = aq_delta_states(run->tokens) ? kept->states : NULL};
}

/* Heads of what the rule gave, as rows. */
static uint64_t head_rows(const struct layer_run *run, const struct decoder_shape *shape)
{
    return run->rows_in * shape->delta.values;
}

static enum aq_status products(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const enum aq_element type = stage_type(run->config->precision);
    const struct linear_to heads = {.c = kept->heads, .type = type}, z = {.c = kept->z, .type = type};
    const struct linear_to gates = {.c = kept->gates, .type = AQ_F32};
    const struct linear_rows n = decoder_rows(kept->norm1);
    AQ_TRY(linear_forward(run, &shape->delta.qkv, run->rows_in, n, &heads));
    AQ_TRY(linear_forward(run, &shape->delta.gates, run->rows_in, n, &gates));
    return linear_forward(run, &shape->delta.z, run->rows_in, n, &z);
}

/* opened = attention's or the rule's heads, times gates that lie in g. */
static struct aq_gating gating_of(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const uint64_t D = shape->D, typed = aq_element_bytes(stage_type(run->config->precision));
    struct aq_gating gating = {.rows = run->rows_in,
                               .H = shape->H,
                               .D = D,
                               .g_row = shape->heads,
                               .g_head = 2 * D,
                               .kind = AQ_GATING_SIGMOID,
                               .type = stage_type(run->config->precision),
                               .g = (const uint8_t *)kept->heads + D * typed,
                               .x = kept->attention,
                               .y = kept->opened};
    if (!shape->has_delta) return gating;
    gating.H = shape->delta.values;
    gating.D = gating.g_head = shape->delta.Dv;
    gating.g_row = shape->mixed;
    gating.kind = AQ_GATING_SILU;
    gating.g = kept->z;
    return gating;
}

enum aq_status decoder_delta_forward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct aq_causal_conv conv = conv_of(run, shape);
    struct aq_delta rule = rule_of(run, shape);
    const struct aq_rmsnorm norm = {.rows = head_rows(run, shape),
                                    .C = shape->delta.Dv,
                                    .epsilon = run->config->model.norm_eps,
                                    .x = kept->summed,
                                    .gamma = tensor_of(run->w, shape, DELTA_NORM),
                                    .y = kept->attention,
                                    .y_type = stage_type(run->config->precision),
                                    .rstd = kept->rstd_heads};
    if (run->config->extends) {
        rule.carried = kept->cache;
        rule.continues = run->first > 0;
    }
    AQ_TRY(products(run, shape));
    AQ_TRY(aq_device_causal_conv(run->device, &conv, run->stream));
    AQ_TRY(aq_device_delta(run->device, &rule, run->stream));
    AQ_TRY(aq_device_rmsnorm(run->device, &norm, run->stream));
    return decoder_open(run, shape);
}

enum aq_status decoder_open(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct aq_gating gating = gating_of(run, shape);
    return aq_device_gating(run->device, &gating, run->stream);
}

/* ---- Backward. */

/* dg: laid out as the gates; dx: of dx_type. */
static enum aq_status open_backward(const struct layer_run *run, const struct decoder_shape *shape, void *dg, void *dx,
                                    enum aq_element dx_type)
{
    const struct decoder_state *work = run->state;
    const struct aq_gating gating = gating_of(run, shape);
    const struct aq_gating_backward back = {.rows = gating.rows,
                                            .H = gating.H,
                                            .D = gating.D,
                                            .g_row = gating.g_row,
                                            .g_head = gating.g_head,
                                            .kind = gating.kind,
                                            .type = gating.type,
                                            .dx_type = dx_type,
                                            .g = gating.g,
                                            .x = gating.x,
                                            .dy = work->dattention,
                                            .dg = dg,
                                            .dx = dx};
    return aq_device_gating_backward(run->device, &back, run->stream);
}

enum aq_status decoder_open_backward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    uint8_t *gates = (uint8_t *)work->dheads + shape->D * aq_element_bytes(type);
    return open_backward(run, shape, gates, work->dattention, type);
}

/* Through the gate and the norm, to work->dsummed. */
static enum aq_status norm_backward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    const struct aq_rmsnorm_backward norm = {.rows = head_rows(run, shape),
                                             .C = shape->delta.Dv,
                                             .dy = work->dnormed,
                                             .x = kept->summed,
                                             .gamma = tensor_of(run->w, shape, DELTA_NORM),
                                             .rstd = kept->rstd_heads,
                                             .dx = work->dsummed,
                                             .dgamma = tensor_of(run->g, shape, DELTA_NORM)};
    AQ_TRY(open_backward(run, shape, kept->z, work->dnormed, AQ_F32));
    AQ_TRY(aq_device_zero(run->device, work->dsummed, run->rows_in * shape->mixed * sizeof(float), run->stream));
    return aq_device_rmsnorm_backward(run->device, &norm, run->stream);
}

/* The gradients of rates and shifts; and those of the gates, in the stage's type, to the gates' place. */
static enum aq_status gates_backward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    const uint64_t H = shape->delta.values;
    const struct aq_column_sum rates = {
        .rows = run->rows_in, .C = H, .stride = H, .x = work->drates, .sums = tensor_of(run->g, shape, DELTA_RATE)};
    const struct aq_column_sum shifts = {.rows = run->rows_in,
                                         .C = H,
                                         .stride = 2 * H,
                                         .x = work->dgates + H,
                                         .sums = tensor_of(run->g, shape, DELTA_SHIFT)};
    const struct aq_dropout_apply round = {.samples = 1,
                                           .sample_elements = run->rows_in * 2 * H,
                                           .x = work->dgates,
                                           .y = kept->gates,
                                           .y_type = stage_type(run->config->precision)};
    if (rates.sums) AQ_TRY(aq_device_column_sum(run->device, &rates, run->stream));
    if (shifts.sums) AQ_TRY(aq_device_column_sum(run->device, &shifts, run->stream));
    return aq_device_dropout(run->device, &round, run->stream);
}

enum aq_status decoder_delta_backward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_state *work = run->state;
    struct aq_delta rule = rule_of(run, shape);
    struct aq_causal_conv conv = conv_of(run, shape);
    rule.dout = work->dsummed;
    rule.dqkv = work->dqkv;
    rule.dgates = work->dgates;
    rule.drates = work->drates;
    conv.dy = work->dqkv;
    conv.dx = work->dheads;
    conv.dw = tensor_of(run->g, shape, DELTA_TAPS);
    AQ_TRY(norm_backward(run, shape));
    AQ_TRY(aq_device_delta_backward(run->device, &rule, run->stream));
    AQ_TRY(gates_backward(run, shape));
    return aq_device_causal_conv_backward(run->device, &conv, run->stream);
}

enum aq_status decoder_delta_weights(const struct layer_run *run, const struct decoder_shape *shape,
                                     const void *dheads)
{
    const struct decoder_slot *kept = run->slot;
    const struct linear_rows n = decoder_rows(kept->norm1);
    const struct decoder_delta *delta = &shape->delta;
    AQ_TRY(linear_weight_gradient(run, &delta->qkv, run->rows_in, n, decoder_rows(dheads)));
    AQ_TRY(linear_weight_gradient(run, &delta->gates, run->rows_in, n, decoder_rows(kept->gates)));
    return linear_weight_gradient(run, &delta->z, run->rows_in, n, decoder_rows(kept->z));
}

enum aq_status decoder_delta_input(const struct layer_run *run, const struct decoder_shape *shape, const void *dheads,
                                   float *dnorm)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_delta *delta = &shape->delta;
    const struct linear_to first = {.c = dnorm, .type = AQ_F32}, more = {.c = dnorm, .type = AQ_F32, .add = true};
    AQ_TRY(linear_input_gradient(run, &delta->qkv, run->rows_in, decoder_rows(dheads), &first));
    AQ_TRY(linear_input_gradient(run, &delta->gates, run->rows_in, decoder_rows(kept->gates), &more));
    return linear_input_gradient(run, &delta->z, run->rows_in, decoder_rows(kept->z), &more);
}

/* The rule in chunks of n tokens (aqsgd/device/cpu/sequence/cpu_delta_chunked.c), and the convolution. */
void decoder_delta_flops(const struct layer *layer, const struct decoder_shape *shape, double rows,
                         struct layer_flops *out)
{
    const struct decoder_delta *delta = &shape->delta;
    const double n = AQ_DELTA_CHUNK, Dk = (double)delta->Dk, Dv = (double)delta->Dv;
    const double rule = 2.0 * rows * (double)delta->values * (n * (2.0 * Dk + 1.5 * Dv) + 3.0 * Dk * Dv);
    const double taps = 2.0 * rows * (double)(shape->qkv * delta->taps);
    *out = (struct layer_flops){.forward = rule + taps,
                                .backward = linear_goes_on(layer, &shape->projection) ? 2.5 * rule + 2.0 * taps : 0};
    linear_flops(layer, &delta->qkv, rows, out);
    linear_flops(layer, &delta->gates, rows, out);
    linear_flops(layer, &delta->z, rows, out);
}
