/*
 * layer_decoder.c -- one block of a decoder or, with attention of both sides, of an encoder, with norms before its
 * branches (Radford et al. 2019; Touvron et al. 2023; Warner et al. 2024) and D as dropout:
 *
 *     n1 = norm(x)     qkv = n1 Wqkv (+ b)    a = attention(turn(qkv))    x' = x + D(a Wo (+ b))
 *     n2 = norm(x')    u = n2 Wu (+ b)        g = act(u)                  x'' = x' + D(g Wd (+ b))
 *
 * act is one of both GELUs, or a gate: u is then twice as wide as g. The form and the configuration (decoder.h) decide
 * which of these exist. A block may have a gated convolution over the last tokens in the place of attention, with (b,
 * g, x) in the place of qkv (Liquid AI 2025): a = g conv(b x). With norms behind the branches (Gemma 2024), p the
 * product:
 *
 *     p1 = a Wo        x' = x + norm(p1)          p2 = g Wd        x'' = x' + norm(p2)
 *
 * In the place of attention some forms have the gated delta rule (decoder_delta.c); heads of queries may have gates,
 * which multiply the output of attention.
 *
 * With norms of the sums (Devlin et al. 2019) the branches read x and x' themselves:
 *
 *     x' = norm(x + D(a Wo + b))                  x'' = norm(x' + D(g Wd + b))
 *
 * Backward works on the gradient of the residual stream in place: each branch adds its share, the MLP first, then
 * attention. A branch starts with that gradient rounded to the products' type and its sum over rows (its bias'
 * gradient): without dropout the norm above makes both in its own pass, which is this block's second norm for attention
 * and the layer above for the MLP (layer.h: ending). Everything is added in one fixed order. Backward ends where
 * nothing further down needs a gradient (layer_goes_on): the tensors are named in the order of forward.
 *
 * Split, backward keeps the gradients of its products' outputs in the slot: those of both branches in memory that the
 * slot has for them, du and dqkv in the place of u and qkv, which are not read any more. These two change places with
 * memory of the layer that backward has just written: no copy, and one set more a layer, not one a slot. A gate's
 * gradient is made in the place of u at once.
 */
#include "decoder_block.h"

#include <math.h>

enum { SITE_ATTENTION, SITE_PROJECTION, SITE_MLP, SITES };

/* The operands of the weights' gradients, the stage's type: of what the four products gave. */
struct decoder_gradients {
    const void *mlp, *u, *projection, *qkv;
};

/* The initial values of each tensor of a block. */
static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const float std = config->model.init_std, residual = std / sqrtf(2.0f * (float)config->model.blocks);
    struct decoder_shape shape;
    decoder_shape(layer, &config->model, &shape);
    const float one = 1 - shape.form->plus;
    const struct {
        uint64_t in, out; /* in 0: a vector */
        float std, value;
    } sizes[DECODER_TENSORS] = {[NORM1] = {0, shape.C, 0, one},
                                [NORM1_BIAS] = {0, shape.C, 0, 0},
                                [QUERY] = {shape.C, shape.in.parts[0].out, std, 0},
                                [KEY] = {shape.C, shape.in.parts[1].out, std, 0},
                                [VALUE] = {shape.C, shape.in.parts[2].out, std, 0},
                                [QUERY_BIAS] = {0, shape.in.parts[0].out, 0, 0},
                                [KEY_BIAS] = {0, shape.in.parts[1].out, 0, 0},
                                [VALUE_BIAS] = {0, shape.in.parts[2].out, 0, 0},
                                [DELTA_QKV] = {shape.C, shape.qkv, std, 0},
                                [DELTA_B] = {shape.C, shape.delta.values, std, 0},
                                [DELTA_A] = {shape.C, shape.delta.values, std, 0},
                                [DELTA_SHIFT] = {0, shape.delta.values, 0, 1},
                                [DELTA_RATE] = {0, shape.delta.values, 1, 0},
                                [DELTA_Z] = {shape.C, shape.mixed, std, 0},
                                [DELTA_NORM] = {0, shape.delta.Dv, 0, 1},
                                [DELTA_PROJECTION] = {shape.mixed, shape.C, residual, 0},
                                [QUERY_NORM] = {0, shape.D * (shape.form->heads_whole ? shape.H : 1), 0, one},
                                [KEY_NORM] = {0, shape.D * (shape.form->heads_whole ? shape.kv_heads : 1), 0, one},
                                [CONV] = {shape.C, shape.taps, std, 0},
                                [CONV_BIAS] = {0, shape.C, 0, 0},
                                [PROJECTION] = {shape.H * shape.D, shape.C, residual, 0},
                                [PROJECTION_BIAS] = {0, shape.C, 0, 0},
                                [POST1] = {0, shape.C, 0, one},
                                [POST1_BIAS] = {0, shape.C, 0, 0},
                                [NORM2] = {0, shape.C, 0, one},
                                [NORM2_BIAS] = {0, shape.C, 0, 0},
                                [GATE] = {shape.C, shape.up.parts[0].out, std, 0},
                                [UP] = {shape.C, shape.F, std, 0},
                                [GATE_BIAS] = {0, shape.F, 0, 0},
                                [UP_BIAS] = {0, shape.F, 0, 0},
                                [MLP] = {shape.F, shape.C, residual, 0},
                                [MLP_BIAS] = {0, shape.C, 0, 0},
                                [POST2] = {0, shape.C, 0, one},
                                [POST2_BIAS] = {0, shape.C, 0, 0}};
    for (uint32_t i = 0; i < DECODER_TENSORS; i++) {
        const bool turned = sizes[i].in && shape.form->out_in;
        const uint64_t taps[3] = {i == CONV ? shape.C : shape.qkv, 1, i == CONV ? shape.taps : shape.delta.taps};
        if (shape.tensor[i] == LAYER_NO_TENSOR) continue;
        if (i == DELTA_TAPS || i == CONV) { /* as nn.Conv1d has it, of a column in each group */
            layer_list_add_cube(list, shape.names[i], taps, std);
            continue;
        }
        layer_list_add(list, shape.names[i], turned ? sizes[i].out : sizes[i].in, turned ? sizes[i].in : sizes[i].out,
                       sizes[i].std, sizes[i].value);
    }
}

static void place_kept(const struct decoder_shape *shape, uint64_t rows, uint64_t typed, enum aq_element stream,
                       struct aq_arena *arena, struct decoder_slot *kept)
{
    const uint64_t N = rows * shape->C;
    kept->norm1 = aq_arena_take(arena, N * typed);
    kept->qkv = aq_arena_take(arena, rows * shape->qkv * typed);
    kept->attention = aq_arena_take(arena, rows * shape->mixed * typed);
    kept->middle = aq_arena_take(arena, N * aq_element_bytes(stream));
    kept->norm2 = aq_arena_take(arena, N * typed);
    kept->before = aq_arena_take(arena, rows * linear_out(&shape->up) * typed);
    kept->after = aq_arena_take(arena, rows * shape->F * typed);
    if (!shape->form->rms) kept->mean1 = aq_arena_take(arena, rows * sizeof(float));
    kept->rstd1 = aq_arena_take(arena, rows * sizeof(float));
    if (!shape->form->rms) kept->mean2 = aq_arena_take(arena, rows * sizeof(float));
    kept->rstd2 = aq_arena_take(arena, rows * sizeof(float));
    if (!shape->taps) kept->lse = aq_arena_take(arena, rows * shape->H * sizeof(float));
    if (shape->form->posts || shape->form->sums) {
        kept->post1 = aq_arena_take(arena, N * sizeof(float));
        kept->post2 = aq_arena_take(arena, N * sizeof(float));
    }
    if (shape->form->posts) {
        kept->rstd_post1 = aq_arena_take(arena, rows * sizeof(float));
        kept->rstd_post2 = aq_arena_take(arena, rows * sizeof(float));
    }
    if (!shape->heads_normed) return;
    kept->heads = aq_arena_take(arena, rows * shape->heads * typed);
    kept->rstd_heads = aq_arena_take(arena, rows * (shape->H + shape->kv_heads + shape->delta.values) * sizeof(float));
    if (shape->opens) kept->opened = aq_arena_take(arena, rows * shape->mixed * typed);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t rows = (uint64_t)config->B * layer->in.rows, typed = aq_element_bytes(type);
    const enum layer_memory swapped = config->split ? LAYER_STAGE : LAYER_WORK;
    struct decoder_slot *kept = to;
    struct decoder_state *work = to;
    struct decoder_shape shape;
    decoder_shape(layer, &config->model, &shape);
    const uint64_t N = rows * shape.C;
    if (what == LAYER_KEPT) place_kept(&shape, rows, typed, layer_stream(config), arena, kept);
    if (what == LAYER_KEPT && shape.has_delta) decoder_delta_kept(&shape, config, arena, kept);
    if (what == LAYER_SLOT && config->extends && shape.has_delta) decoder_delta_slot(&shape, config, arena, kept);
    if (what == LAYER_SLOT && config->extends && !shape.has_delta)
        kept->cache = aq_arena_take(arena, rows * (shape.taps ? shape.C : 2 * shape.kv_heads * shape.D) * typed);
    if (what == LAYER_KEPT && config->split) {
        kept->dprojection = aq_arena_take(arena, N * typed);
        kept->dmlp = aq_arena_take(arena, N * typed);
    }
    if (what == LAYER_STAGE && shape.R) work->angles = aq_arena_take(arena, config->T * shape.R * sizeof(float));
    if (config->inference || !layer_learns(layer)) return;
    if (what == LAYER_WORK) {
        work->dnorm = aq_arena_take(arena, N * sizeof(float));
        work->dattention = aq_arena_take(arena, rows * shape.mixed * typed);
        if (shape.has_delta) decoder_delta_work(&shape, rows, arena, work);
        if (shape.form->gated) work->dafter = aq_arena_take(arena, rows * shape.F * typed);
    }
    if (what == swapped && shape.opens) work->dheads = aq_arena_take(arena, rows * shape.heads * typed);
    if (what == swapped && !shape.form->gated) work->du = aq_arena_take(arena, rows * shape.F * typed);
    if (what == (type == AQ_F32 && !shape.opens ? swapped : LAYER_WORK) && (type == AQ_F32 || !shape.taps))
        work->dqkv = aq_arena_take(arena, rows * shape.qkv * sizeof(float));
    if (what == swapped && type != AQ_F32 && !shape.opens)
        work->dqkv_rounded = aq_arena_take(arena, rows * shape.qkv * sizeof(uint16_t));
}

static enum aq_status open(const struct layer_run *run)
{
    const struct decoder_state *work = run->state;
    const struct aq_stage_config *config = run->config;
    struct decoder_shape shape;
    void *table;
    decoder_shape(run->layer, &config->model, &shape);
    if (config->model.query_beta > 0.0f && config->T > config->model.rope_original)
        return aq_fail(AQ_INVAL, "stage", "%u tokens: this model's queries are scaled beyond %u, which is not computed",
                       config->T, config->model.rope_original);
    if (!shape.R) return AQ_OK;
    const uint64_t bytes = config->T * shape.R * sizeof(float);
    AQ_TRY(aq_alloc(bytes, &table));
    decoder_angles(&config->model, shape.window > 0 && shape.form->local, config->T, table);
    enum aq_status status = aq_device_copy(run->device, work->angles, table, bytes, NULL);
    if (status == AQ_OK) status = aq_device_stream_sync(run->device, NULL);
    aq_free(table);
    return status;
}

static uint32_t linears(const struct layer *layer, const struct aq_stage_config *config, struct linear *out)
{
    struct decoder_shape shape;
    decoder_shape(layer, &config->model, &shape);
    out[0] = shape.has_delta ? shape.delta.qkv : shape.in;
    out[1] = shape.projection;
    out[2] = shape.up;
    out[3] = shape.mlp;
    if (!shape.has_delta) return 4;
    out[4] = shape.delta.z;
    out[5] = shape.delta.gates;
    return 6;
}

/* Of each of forward's products its weights' gradient and its input's, and the scores of attention once more. */
static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    struct decoder_shape shape;
    decoder_shape(layer, &config->model, &shape);
    const double rows = (double)config->B * layer->in.rows;
    const double T = config->T, W = (double)shape.window;
    const double keys = shape.window && W < T ? W * (2.0 - W / T) : T; /* twice those up to its own that a query sees */
    const double attention = (shape.form->both ? 4.0 : 2.0) * rows * keys * (double)(shape.H * shape.D);
    const double conv = rows * (double)(shape.C * (2 * shape.taps + 2)); /* backward: sums again, inputs, weights */
    const bool on = linear_goes_on(layer, &shape.projection);
    *out = (struct layer_flops){.forward = shape.taps ? conv : attention,
                                .backward = !on          ? 0
                                            : shape.taps ? 3.0 * conv
                                                         : 2.5 * attention};
    if (shape.has_delta)
        decoder_delta_flops(layer, &shape, rows, out);
    else
        linear_flops(layer, &shape.in, rows, out);
    linear_flops(layer, &shape.projection, rows, out);
    linear_flops(layer, &shape.up, rows, out);
    linear_flops(layer, &shape.mlp, rows, out);
}

static struct aq_attention attention_of(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    return (struct aq_attention){.samples = run->samples,
                                 .T = run->tokens,
                                 .H = shape->H,
                                 .kv_heads = shape->kv_heads,
                                 .D = shape->D,
                                 .T_mask = run->config->T,
                                 .window = shape->window,
                                 .both = shape->form->both,
                                 .lengths = shape->form->both ? run->lengths : NULL,
                                 .scale = shape->score_scale,
                                 .cap = shape->score_cap,
                                 .type = stage_type(run->config->precision),
                                 .qkv = kept->qkv,
                                 .out = kept->attention,
                                 .lse = kept->lse,
                                 .starts = run->starts,
                                 .dropout = layer_dropout(run, SITE_ATTENTION)};
}

/* The first tokens attend only to each other; later ones also to the cache of earlier tokens. */
static enum aq_status attend(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct aq_attention attention = attention_of(run, shape);
    const struct aq_attention_cached cached = {.samples = run->samples,
                                               .T = run->tokens,
                                               .first = run->first,
                                               .rows = run->config->T,
                                               .H = shape->H,
                                               .kv_heads = shape->kv_heads,
                                               .D = shape->D,
                                               .window = shape->window,
                                               .scale = shape->score_scale,
                                               .cap = shape->score_cap,
                                               .type = stage_type(run->config->precision),
                                               .qkv = kept->qkv,
                                               .cache = kept->cache,
                                               .out = run->first ? kept->attention : NULL};
    if (attention.both && (run->starts || run->config->extends))
        return aq_fail(AQ_INVAL, "stage",
                       "%s attends to both sides: it takes no samples with parts, and does not generate",
                       run->layer->name);
    if (run->config->extends) AQ_TRY(aq_device_attention_cached(run->device, &cached, run->stream));
    return run->first ? AQ_OK : aq_device_attention(run->device, &attention, run->stream);
}

static struct decoder_norm norm1_of(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    return (struct decoder_norm){shape->tensor[NORM1], shape->tensor[NORM1_BIAS], kept->mean1, kept->rstd1};
}

static struct decoder_norm norm2_of(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    return (struct decoder_norm){shape->tensor[NORM2], shape->tensor[NORM2_BIAS], kept->mean2, kept->rstd2};
}

static struct decoder_norm post_of(const struct layer_run *run, const struct decoder_shape *shape, uint32_t site)
{
    const struct decoder_slot *kept = run->slot;
    const bool mlp = site == SITE_MLP, sums = shape->form->sums; /* these have the places of norms before branches */
    return (struct decoder_norm){.gamma = shape->tensor[mlp ? POST2 : POST1],
                                 .beta = shape->tensor[mlp ? POST2_BIAS : POST1_BIAS],
                                 .mean = mlp ? kept->mean2 : kept->mean1,
                                 .rstd = sums  ? (mlp ? kept->rstd2 : kept->rstd1)
                                         : mlp ? kept->rstd_post2
                                               : kept->rstd_post1};
}

/* A tensor of the block or its gradient, or NULL. */
static float *tensor_of(float *const *of, const struct decoder_shape *shape, enum decoder_tensor tensor)
{
    return shape->tensor[tensor] == LAYER_NO_TENSOR ? NULL : of[shape->tensor[tensor]];
}

/* ---- Forward. */

/* The input of a branch: the norm of x, or x itself if the form has no such norm, as products read it. */
static enum aq_status branch_input(const struct layer_run *run, const struct decoder_shape *shape,
                                   const struct decoder_norm *norm, const void *x, void *y)
{
    if (norm->gamma != LAYER_NO_TENSOR) return decoder_norm(run, norm, run->rows_in, x, y);
    const struct aq_dropout_apply args = {.samples = 1,
                                          .sample_elements = run->rows_in * shape->C,
                                          .x = x,
                                          .x_type = layer_stream(run->config),
                                          .y = y,
                                          .y_type = stage_type(run->config->precision)};
    return aq_device_dropout(run->device, &args, run->stream); /* of no probability: a copy of that type */
}

/* c = other + norm(x W); c NULL: what backward reads, and no more. */
static enum aq_status residual_normed(const struct layer_run *run, const struct decoder_shape *shape,
                                      const struct linear *linear, const void *x, uint32_t site, const float *other,
                                      float *c)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    const struct decoder_norm norm = post_of(run, shape, site);
    float *product = site == SITE_MLP ? kept->post2 : kept->post1;
    const struct linear_to to = {.c = product, .type = AQ_F32};
    AQ_TRY(linear_forward(run, linear, run->rows_in, decoder_rows(x), &to));
    return decoder_post_norm(run, &norm, run->rows_in, product, c ? other : NULL, c ? c : work->dnorm);
}

/* c = norm(other + dropout(x W + b)) */
static enum aq_status residual_summed(const struct layer_run *run, const struct decoder_shape *shape,
                                      const struct linear *linear, const void *x, uint32_t site, const float *other,
                                      float *c)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    const struct decoder_norm norm = post_of(run, shape, site);
    float *sum = site == SITE_MLP ? kept->post2 : kept->post1;
    const struct linear_to to = {.c = sum,
                                 .type = AQ_F32,
                                 .after = AQ_AFTER_RESIDUAL,
                                 .other = (void *)(uintptr_t)other, /* read only */
                                 .dropout = layer_dropout(run, site)};
    AQ_TRY(linear_forward(run, linear, run->rows_in, decoder_rows(x), &to));
    return decoder_post_norm(run, &norm, run->rows_in, sum, NULL, c ? c : work->dnorm);
}

/* c = other + r (x W + b) */
static enum aq_status residual_scaled(const struct layer_run *run, const struct decoder_shape *shape,
                                      const struct linear *linear, const void *x, const float *other, float *c)
{
    const uint64_t N = run->rows_in * shape->C;
    const struct linear_to to = {.c = c, .type = AQ_F32};
    const struct aq_scale scale = {.x = c, .count = N, .factor = shape->residual_scale};
    const struct aq_dropout_apply add = {
        .samples = 1, .sample_elements = N, .x = other, .y = c, .y_type = AQ_F32, .add = true};
    AQ_TRY(linear_forward(run, linear, run->rows_in, decoder_rows(x), &to));
    AQ_TRY(aq_device_scale(run->device, &scale, run->stream));
    return aq_device_dropout(run->device, &add, run->stream);
}

/* c = other + dropout(x W + b), or as one of the three above, which are of an fp32 stream. */
static enum aq_status residual(const struct layer_run *run, const struct decoder_shape *shape,
                               const struct linear *linear, const void *x, uint32_t site, const void *other, void *c)
{
    if (shape->form->posts) return residual_normed(run, shape, linear, x, site, other, c);
    if (shape->form->sums) return residual_summed(run, shape, linear, x, site, other, c);
    if (!c) return AQ_OK;
    if (shape->residual_scale > 0.0f) return residual_scaled(run, shape, linear, x, other, c);
    const struct linear_to to = {.c = c,
                                 .type = layer_stream(run->config),
                                 .after = AQ_AFTER_RESIDUAL,
                                 .other = (void *)(uintptr_t)other, /* read only */
                                 .dropout = layer_dropout(run, site)};
    return linear_forward(run, linear, run->rows_in, decoder_rows(x), &to);
}

/* The norms of all queries and of all keys, each as of one head. */
static enum aq_status heads_norm(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct aq_rope args = {.samples = run->samples,
                                 .T = run->tokens,
                                 .H = 1,
                                 .kv_heads = 1,
                                 .D = shape->H * shape->D,
                                 .type = stage_type(run->config->precision),
                                 .x = kept->heads,
                                 .y = kept->qkv,
                                 .q_gamma = tensor_of(run->w, shape, QUERY_NORM),
                                 .k_gamma = tensor_of(run->w, shape, KEY_NORM),
                                 .plus = shape->form->plus,
                                 .epsilon = run->config->model.norm_eps,
                                 .rstd = kept->rstd_heads};
    return aq_device_rope(run->device, &args, run->stream);
}

/* Queries, keys and values as attention reads them. */
static enum aq_status heads_forward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *state = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const bool whole = shape->heads_normed && shape->form->heads_whole;
    void *product = shape->heads_normed ? kept->heads : kept->qkv;
    const struct linear_to to = {.c = product, .type = type};
    AQ_TRY(linear_forward(run, &shape->in, run->rows_in, decoder_rows(kept->norm1), &to));
    if (whole) AQ_TRY(heads_norm(run, shape));
    const struct aq_rope args = {.samples = run->samples,
                                 .T = run->tokens,
                                 .H = shape->H,
                                 .kv_heads = shape->kv_heads,
                                 .D = shape->D,
                                 .R = shape->R,
                                 .gated = shape->form->head_gates,
                                 .type = type,
                                 .x = whole ? kept->qkv : product,
                                 .y = kept->qkv,
                                 .table = shape->R ? state->angles + run->first * shape->R : NULL,
                                 .q_gamma = whole ? NULL : tensor_of(run->w, shape, QUERY_NORM),
                                 .k_gamma = whole ? NULL : tensor_of(run->w, shape, KEY_NORM),
                                 .plus = shape->form->plus,
                                 .epsilon = run->config->model.norm_eps,
                                 .rstd = kept->rstd_heads,
                                 .starts = run->starts};
    return shape->R || (shape->heads_normed && !whole) ? aq_device_rope(run->device, &args, run->stream) : AQ_OK;
}

/* Is the activation without a gate x Phi(x), not its tanh approximation? */
static bool exact_gelu(const struct decoder_shape *shape)
{
    return !shape->form->gated && shape->form->gate == AQ_GATE_GELU_EXACT;
}

/* The activation of what an MLP's first product gives. */
static enum aq_status up_forward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const enum aq_element type = stage_type(run->config->precision);
    const struct linear_to gelu = {.c = kept->after, .type = type, .after = AQ_AFTER_GELU, .other = kept->before};
    const struct linear_to plain = {.c = kept->before, .type = type};
    const bool gated = shape->form->gated, exact = exact_gelu(shape);
    AQ_TRY(linear_forward(run, &shape->up, run->rows_in, decoder_rows(kept->norm2), gated || exact ? &plain : &gelu));
    const struct aq_gelu own = {.count = run->rows_in * shape->F, .type = type, .x = kept->before, .y = kept->after};
    if (exact) return aq_device_gelu(run->device, &own, run->stream);
    const struct aq_gated args = {.rows = run->rows_in,
                                  .F = shape->F,
                                  .gate = shape->form->gate,
                                  .type = type,
                                  .x = kept->before,
                                  .y = kept->after};
    return gated ? aq_device_gated(run->device, &args, run->stream) : AQ_OK;
}

/* What the projection reads. */
static const void *mixed_of(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    return shape->opens ? kept->opened : kept->attention;
}

/* A convolution in the place of attention. */
static enum aq_status conv_forward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct linear_to to = {.c = kept->qkv, .type = stage_type(run->config->precision)};
    void *cache = run->config->extends ? kept->cache : NULL;
    const struct aq_causal_conv conv = decoder_conv(run, shape, kept->qkv, kept->attention, cache);
    AQ_TRY(linear_forward(run, &shape->in, run->rows_in, decoder_rows(kept->norm1), &to));
    return aq_device_causal_conv(run->device, &conv, run->stream);
}

/* Mixes tokens, from kept->norm1: attention or the delta rule, with their gates. */
static enum aq_status mix(const struct layer_run *run, const struct decoder_shape *shape)
{
    if (shape->has_delta) return decoder_delta_forward(run, shape);
    if (shape->taps) return conv_forward(run, shape);
    AQ_TRY(heads_forward(run, shape));
    AQ_TRY(attend(run, shape));
    return shape->form->head_gates ? decoder_open(run, shape) : AQ_OK;
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct decoder_slot *kept = run->slot;
    struct decoder_shape shape;
    decoder_shape(run->layer, &run->config->model, &shape);
    const struct decoder_norm norm1 = norm1_of(run, &shape), norm2 = norm2_of(run, &shape);
    AQ_TRY(branch_input(run, &shape, &norm1, x, kept->norm1));
    AQ_TRY(mix(run, &shape));
    AQ_TRY(residual(run, &shape, &shape.projection, mixed_of(run, &shape), SITE_PROJECTION, x, kept->middle));
    AQ_TRY(branch_input(run, &shape, &norm2, kept->middle, kept->norm2));
    AQ_TRY(up_forward(run, &shape));
    return residual(run, &shape, &shape.mlp, kept->after, SITE_MLP, kept->middle, y);
}

/* ---- Backward. */

/* Memory of a branch's output gradient, an operand of its weights' gradients: in the slot if backward is split. */
static void *branch_memory(const struct layer_run *run, uint32_t site)
{
    const struct decoder_slot *kept = run->slot;
    if (!run->split) return layer_rounded(run->stage);
    return site == SITE_MLP ? kept->dmlp : kept->dprojection;
}

/*
 * The gradient of what a residual added: dx itself, or dx masked or rounded; and its bias' gradient. made: a norm has
 * made both.
 */
static enum aq_status branch_gradient(const struct layer_run *run, uint32_t site, const float *dx, float *bias,
                                      bool made, const void **out)
{
    const uint64_t C = run->layer->in.columns;
    const enum aq_element type = stage_type(run->config->precision);
    const bool copied = type != AQ_F32 || run->dropped;
    void *rounded = branch_memory(run, site);
    *out = copied ? rounded : dx;
    if (run->split && !copied)
        AQ_TRY(aq_device_copy(run->device, rounded, dx, run->rows_in * C * sizeof *dx, run->stream));
    if (made) return AQ_OK;
    const struct aq_dropout_apply args = {.samples = run->samples,
                                          .sample_elements = run->tokens * C,
                                          .x = dx,
                                          .y = rounded,
                                          .y_type = type,
                                          .dropout = layer_dropout(run, site)};
    if (copied) AQ_TRY(aq_device_dropout(run->device, &args, run->stream));
    return layer_column_sum(run, *out, run->rows_in, C, bias);
}

/* The same through the norm behind a branch: that of dx is added to what is in the norm's memory of work, zeroes. */
static enum aq_status post_gradient(const struct layer_run *run, const struct decoder_shape *shape, uint32_t site,
                                    const float *dx, const void **out)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const struct decoder_norm norm = post_of(run, shape, site);
    const struct layer_ending rounded = {.rounded = type == AQ_F32 ? NULL : branch_memory(run, site), .type = type};
    float *to = run->split && type == AQ_F32 ? branch_memory(run, site) : work->dnorm;
    AQ_TRY(aq_device_zero(run->device, to, run->rows_in * shape->C * sizeof *to, run->stream));
    *out = type == AQ_F32 ? (const void *)to : rounded.rounded;
    return decoder_norm_gradient(run, &norm, run->rows_in, dx, site == SITE_MLP ? kept->post2 : kept->post1,
                                 AQ_F32, to, &rounded);
}

/* The same through the norm of a sum, whose gradient takes the place of its norm's in dx; and its bias' gradient. */
static enum aq_status summed_gradient(const struct layer_run *run, const struct decoder_shape *shape, uint32_t site,
                                      float *dx, float *bias, const void **out)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const struct decoder_norm norm = post_of(run, shape, site);
    const struct layer_ending made = {
        .sums = bias, .rounded = type == AQ_F32 ? NULL : branch_memory(run, site), .type = type};
    const size_t bytes = run->rows_in * shape->C * sizeof *dx;
    AQ_TRY(aq_device_copy(run->device, work->dnorm, dx, bytes, run->stream));
    AQ_TRY(aq_device_zero(run->device, dx, bytes, run->stream));
    AQ_TRY(decoder_norm_gradient(run, &norm, run->rows_in, work->dnorm, site == SITE_MLP ? kept->post2 : kept->post1,
                                 AQ_F32, dx, run->dropped ? NULL : &made));
    return branch_gradient(run, site, dx, bias, !run->dropped, out);
}

/* The same through the scale of a branch, in the same memory; and its bias' gradient. */
static enum aq_status scaled_gradient(const struct layer_run *run, const struct decoder_shape *shape, uint32_t site,
                                      const float *dx, float *bias, const void **out)
{
    const struct decoder_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t N = run->rows_in * shape->C;
    float *to = run->split && type == AQ_F32 ? branch_memory(run, site) : work->dnorm;
    const struct aq_scale scale = {.x = to, .count = N, .factor = shape->residual_scale};
    const struct aq_dropout_apply round = {.samples = 1, .sample_elements = N, .x = to, .y_type = type};
    struct aq_dropout_apply rounded = round;
    *out = rounded.y = type == AQ_F32 ? to : branch_memory(run, site);
    AQ_TRY(aq_device_copy(run->device, to, dx, N * sizeof *to, run->stream));
    AQ_TRY(aq_device_scale(run->device, &scale, run->stream));
    if (type != AQ_F32) AQ_TRY(aq_device_dropout(run->device, &rounded, run->stream));
    return layer_column_sum(run, *out, run->rows_in, shape->C, bias);
}

/* The gradient of what a branch adds, and its bias', as the form and the configuration have it. */
static enum aq_status added_gradient(const struct layer_run *run, const struct decoder_shape *shape, uint32_t site,
                                     float *dx, bool made, const void **out)
{
    float *bias = tensor_of(run->g, shape, site == SITE_MLP ? MLP_BIAS : PROJECTION_BIAS);
    if (shape->form->posts) return post_gradient(run, shape, site, dx, out);
    if (shape->form->sums) return summed_gradient(run, shape, site, dx, bias, out);
    if (shape->residual_scale > 0.0f) return scaled_gradient(run, shape, site, dx, bias, out);
    return branch_gradient(run, site, dx, bias, made, out);
}

static struct layer_ending ending_at(const struct layer_run *run, const struct decoder_shape *shape, uint32_t site,
                                     float *bias)
{
    const enum aq_element type = stage_type(run->config->precision);
    if (shape->form->posts || shape->form->sums || shape->residual_scale > 0.0f) /* what makes it comes behind */
        return (struct layer_ending){.type = type};
    return (struct layer_ending){
        .sums = bias, .rounded = type == AQ_F32 ? NULL : branch_memory(run, site), .type = type};
}

static void ending(const struct layer_run *run, struct layer_ending *out)
{
    struct decoder_shape shape;
    decoder_shape(run->layer, &run->config->model, &shape);
    *out = ending_at(run, &shape, SITE_MLP, tensor_of(run->g, &shape, MLP_BIAS));
}

static enum aq_status mlp_weights(const struct layer_run *run, const struct decoder_shape *shape,
                                  const struct decoder_gradients *of)
{
    const struct decoder_slot *kept = run->slot;
    AQ_TRY(linear_weight_gradient(run, &shape->mlp, run->rows_in, decoder_rows(kept->after), decoder_rows(of->mlp)));
    return linear_gradients(run, &shape->up, run->rows_in, decoder_rows(kept->norm2), decoder_rows(of->u));
}

static enum aq_status attention_weights(const struct layer_run *run, const struct decoder_shape *shape,
                                        const struct decoder_gradients *of)
{
    const struct decoder_slot *kept = run->slot;
    const struct linear *projection = &shape->projection;
    AQ_TRY(linear_weight_gradient(run, projection, run->rows_in, decoder_rows(mixed_of(run, shape)),
                                  decoder_rows(of->projection)));
    if (shape->has_delta) return decoder_delta_weights(run, shape, of->qkv);
    return linear_gradients(run, &shape->in, run->rows_in, decoder_rows(kept->norm1), decoder_rows(of->qkv));
}

static enum aq_status weights(const struct layer_run *run, const void *x)
{
    const struct decoder_slot *kept = run->slot;
    struct decoder_gradients of = {kept->dmlp, kept->before, kept->dprojection, kept->qkv};
    struct decoder_shape shape;
    (void)x;
    decoder_shape(run->layer, &run->config->model, &shape);
    if (shape.opens) of.qkv = kept->heads;
    AQ_TRY(mlp_weights(run, &shape, &of));
    return attention_weights(run, &shape, &of);
}

static void swap(void **a, void **b)
{
    void *kept = *a;
    *a = *b;
    *b = kept;
}

/* Through the MLP's second product and its activation, to *du. */
static enum aq_status up_backward(const struct layer_run *run, const struct decoder_shape *shape, const void *dmlp,
                                  const void **du)
{
    struct decoder_slot *kept = run->slot;
    struct decoder_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const struct linear_to gelu = {.c = work->du, .type = type, .after = AQ_AFTER_GELU_BACKWARD, .other = kept->before};
    const bool gated = shape->form->gated, exact = exact_gelu(shape);
    const struct linear_to plain = {.c = exact ? work->du : work->dafter, .type = type};
    *du = gated ? kept->before : work->du;
    if (!linear_goes_on(run->layer, &shape->mlp)) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &shape->mlp, run->rows_in, decoder_rows(dmlp), gated || exact ? &plain : &gelu));
    const struct aq_gelu_backward own = {
        .count = run->rows_in * shape->F, .type = type, .x = kept->before, .dy = work->du, .dx = work->du};
    if (exact) return aq_device_gelu_backward(run->device, &own, run->stream);
    const struct aq_gated_backward args = {.rows = run->rows_in,
                                           .F = shape->F,
                                           .gate = shape->form->gate,
                                           .type = type,
                                           .x = kept->before,
                                           .dy = work->dafter,
                                           .dx = kept->before};
    return gated ? aq_device_gated_backward(run->device, &args, run->stream) : AQ_OK;
}

/* The gradient of what a branch without a norm reads goes into the residual stream's. */
static enum aq_status added_to(const struct layer_run *run, const struct linear *linear, const void *dy, float *dx)
{
    const struct linear_to sum = {.c = dx, .type = AQ_F32, .add = true};
    return linear_input_gradient(run, linear, run->rows_in, decoder_rows(dy), &sum);
}

static enum aq_status mlp_backward(const struct layer_run *run, const struct decoder_shape *shape, float *dx)
{
    struct decoder_slot *kept = run->slot;
    struct decoder_state *work = run->state;
    const struct linear_to dnorm = {.c = work->dnorm, .type = AQ_F32};
    struct decoder_gradients of = {0};
    AQ_TRY(added_gradient(run, shape, SITE_MLP, dx, run->made, &of.mlp));
    AQ_TRY(up_backward(run, shape, of.mlp, &of.u));
    if (!run->split) AQ_TRY(mlp_weights(run, shape, &of));
    if (run->split && of.u == work->du && linear_goes_on(run->layer, &shape->mlp)) swap(&work->du, &kept->before);
    if (!linear_goes_on(run->layer, &shape->up)) return AQ_OK;
    if (shape->tensor[NORM2] == LAYER_NO_TENSOR) return added_to(run, &shape->up, of.u, dx);
    AQ_TRY(linear_input_gradient(run, &shape->up, run->rows_in, decoder_rows(of.u), &dnorm));
    const struct layer_ending next = ending_at(run, shape, SITE_PROJECTION, tensor_of(run->g, shape, PROJECTION_BIAS));
    const struct decoder_norm norm2 = norm2_of(run, shape);
    return decoder_norm_gradient(run, &norm2, run->rows_in, work->dnorm, kept->middle, layer_stream(run->config), dx,
                                 run->dropped ? NULL : &next);
}

/* Back through heads_norm: of dqkv, which the rotation has left in fp32. */
static enum aq_status heads_norm_backward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const struct aq_rope_backward args = {.samples = run->samples,
                                          .T = run->tokens,
                                          .H = 1,
                                          .kv_heads = 1,
                                          .D = shape->H * shape->D,
                                          .type = type,
                                          .dy = work->dqkv,
                                          .dx = type == AQ_F32 ? work->dqkv : work->dqkv_rounded,
                                          .x = kept->heads,
                                          .q_gamma = tensor_of(run->w, shape, QUERY_NORM),
                                          .k_gamma = tensor_of(run->w, shape, KEY_NORM),
                                          .rstd = kept->rstd_heads,
                                          .plus = shape->form->plus,
                                          .dq_gamma = tensor_of(run->g, shape, QUERY_NORM),
                                          .dk_gamma = tensor_of(run->g, shape, KEY_NORM)};
    return aq_device_rope_backward(run->device, &args, run->stream);
}

/* Back through the rotation and the norms of heads, from dqkv in fp32. */
static enum aq_status rope_backward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const bool whole = shape->heads_normed && shape->form->heads_whole, stays = whole || type == AQ_F32;
    void *dx = stays ? work->dqkv : work->dqkv_rounded;
    const struct aq_rope_backward args = {.samples = run->samples,
                                          .T = run->tokens,
                                          .H = shape->H,
                                          .kv_heads = shape->kv_heads,
                                          .D = shape->D,
                                          .R = shape->R,
                                          .gated = shape->form->head_gates,
                                          .type = whole ? AQ_F32 : type,
                                          .dy = work->dqkv,
                                          .dx = shape->opens ? work->dheads : dx,
                                          .table = work->angles,
                                          .x = kept->heads,
                                          .q_gamma = whole ? NULL : tensor_of(run->w, shape, QUERY_NORM),
                                          .k_gamma = whole ? NULL : tensor_of(run->w, shape, KEY_NORM),
                                          .rstd = kept->rstd_heads,
                                          .plus = shape->form->plus,
                                          .dq_gamma = whole ? NULL : tensor_of(run->g, shape, QUERY_NORM),
                                          .dk_gamma = whole ? NULL : tensor_of(run->g, shape, KEY_NORM),
                                          .starts = run->starts};
    if (shape->R || (shape->heads_normed && !whole)) AQ_TRY(aq_device_rope_backward(run->device, &args, run->stream));
    return whole ? heads_norm_backward(run, shape) : AQ_OK;
}

/* Through the convolution, to the gradient of what the first product gave. */
static enum aq_status conv_backward(const struct layer_run *run, const struct decoder_shape *shape)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_state *work = run->state;
    struct aq_causal_conv conv = decoder_conv(run, shape, kept->qkv, NULL, NULL);
    conv.dy = work->dattention;
    conv.dx = conv.type == AQ_F32 ? work->dqkv : work->dqkv_rounded;
    conv.dw = run->g[shape->tensor[CONV]];
    conv.dbias = tensor_of(run->g, shape, CONV_BIAS);
    return aq_device_causal_conv_backward(run->device, &conv, run->stream);
}

/* Through the projection and the heads, to the gradient of what the first product gave. */
static enum aq_status heads_backward(const struct layer_run *run, const struct decoder_shape *shape,
                                     const void *dprojection)
{
    const struct decoder_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const struct linear_to to = {.c = work->dattention, .type = type};
    const bool turned = shape->R || shape->heads_normed;
    AQ_TRY(linear_input_gradient(run, &shape->projection, run->rows_in, decoder_rows(dprojection), &to));
    if (shape->has_delta) return decoder_delta_backward(run, shape);
    if (shape->taps) return conv_backward(run, shape);
    if (shape->form->head_gates) AQ_TRY(decoder_open_backward(run, shape));
    struct aq_attention attention = attention_of(run, shape);
    attention.dout = work->dattention;
    attention.dqkv = work->dqkv;
    attention.dqkv_rounded = turned ? NULL : work->dqkv_rounded;
    AQ_TRY(aq_device_attention_backward(run->device, &attention, run->stream));
    return turned ? rope_backward(run, shape) : AQ_OK;
}

static enum aq_status attention_backward(const struct layer_run *run, const struct decoder_shape *shape, const void *x,
                                         float *dx, const struct layer_ending *below)
{
    struct decoder_slot *kept = run->slot;
    struct decoder_state *work = run->state;
    const struct linear_to dnorm = {.c = work->dnorm, .type = AQ_F32};
    void **typed = stage_type(run->config->precision) == AQ_F32 ? &work->dqkv : &work->dqkv_rounded;
    void **dqkv = shape->opens ? &work->dheads : typed, **place = shape->opens ? &kept->heads : &kept->qkv;
    const struct linear *projection = &shape->projection;
    struct decoder_gradients of = {.qkv = *dqkv};
    const bool plain = shape->tensor[NORM2] == LAYER_NO_TENSOR;
    if (!layer_goes_on(run->layer, plain ? shape->up.parts[0].weight : shape->tensor[NORM2])) return AQ_OK;
    AQ_TRY(added_gradient(run, shape, SITE_PROJECTION, dx, !run->dropped, &of.projection));
    if (linear_goes_on(run->layer, projection)) AQ_TRY(heads_backward(run, shape, of.projection));
    if (!run->split) AQ_TRY(attention_weights(run, shape, &of));
    if (run->split && linear_goes_on(run->layer, projection)) swap(dqkv, place);
    if (!linear_goes_on(run->layer, shape->has_delta ? &shape->delta.qkv : &shape->in)) return AQ_OK;
    if (shape->tensor[NORM1] == LAYER_NO_TENSOR) {
        AQ_ASSERT(!below || (!below->sums && !below->rounded)); /* such blocks have none */
        return added_to(run, &shape->in, of.qkv, dx);
    }
    if (shape->has_delta)
        AQ_TRY(decoder_delta_input(run, shape, of.qkv, work->dnorm));
    else
        AQ_TRY(linear_input_gradient(run, &shape->in, run->rows_in, decoder_rows(of.qkv), &dnorm));
    const struct decoder_norm norm1 = norm1_of(run, shape);
    return decoder_norm_gradient(run, &norm1, run->rows_in, work->dnorm, x, layer_stream(run->config), dx, below);
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    struct decoder_shape shape;
    AQ_ASSERT(dy == dx);
    decoder_shape(run->layer, &run->config->model, &shape);
    AQ_TRY(mlp_backward(run, &shape, dx));
    return attention_backward(run, &shape, x, dx, below);
}

const struct layer_kind layer_decoder = {.name = "decoder",
                                         .in_place = true,
                                         .makes_ending = true,
                                         .extends = true,
                                         .parts = true,
                                         .bf16_stream = true,
                                         .sites = SITES,
                                         .state_bytes = sizeof(struct decoder_state),
                                         .slot_bytes = sizeof(struct decoder_slot),
                                         .tensors = tensors,
                                         .linears = linears,
                                         .place = place,
                                         .open = open,
                                         .flops = flops,
                                         .forward = forward,
                                         .backward = backward,
                                         .weights = weights,
                                         .ending = ending};
