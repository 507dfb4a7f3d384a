/*
 * layer_decoder.c -- one block of a decoder, pre-LN (Radford et al. 2019), with D as dropout:
 *
 *     n1 = LN1(x)      qkv = n1 Wqkv + b      a = attention(qkv)      x' = x + D(a Wo + b)
 *     n2 = LN2(x')     u = n2 Wfc + b         g = gelu(u)             x'' = x' + D(g Wpr + b)
 *
 * Backward works on the gradient of the residual stream in place: each branch adds its share, the MLP first, then
 * attention. A branch begins with that gradient rounded to the products' type and its sum over rows (its bias'
 * gradient): without dropout the layer norm above makes both in its own pass, which is this block's second norm for
 * attention and the layer above for the MLP (layer.h: ending). Everything is added in one fixed order. It ends where
 * nothing further down wants a gradient (layer_goes_on): the tensors are named in the order of forward.
 *
 * Split, backward keeps the gradients of its four products' outputs in the slot: those of both branches in memory that
 * the slot has for them, du and dqkv in the place of u and qkv, which nobody reads any more. These two change places
 * with memory of the layer that backward has just written: no copy, and one set more a layer, not one a slot.
 */
#include "layer.h"

#include <math.h>

enum { NORM1, NORM1_BIAS, QKV, QKV_BIAS, PROJECTION, PROJECTION_BIAS, NORM2, NORM2_BIAS, FC, FC_BIAS, MLP, MLP_BIAS };

enum { SITE_ATTENTION, SITE_PROJECTION, SITE_MLP, SITES };

/* What backward wants from forward, besides the block's input. */
struct decoder_slot {
    void *norm1, *qkv, *attention, *norm2, *before_gelu, *after_gelu; /* the stage's type */
    float *mean1, *rstd1, *mean2, *rstd2, *lse;
    float *middle;            /* x' */
    void *dprojection, *dmlp; /* split: what the branches' products gave, its gradient; the stage's type */
};

struct decoder_state {
    float *dnorm;       /* gradient of a layer norm's output              */
    void *dattention;   /* gradient of attention's output, type           */
    void *du;           /* gradient before GELU, type                     */
    void *dqkv;         /* fp32                                         */
    void *dqkv_rounded; /* the same in 16 bits, where products are of them */
};

/* The operands of the weights' gradients, the stage's type: of what the four products gave. */
struct decoder_gradients {
    const void *mlp, *u, *projection, *qkv;
};

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const uint64_t C = layer->in.columns;
    const float std = config->model.init_std, residual = std / sqrtf(2.0f * (float)config->model.blocks);
    layer_list_add(list, "ln_1.weight", 0, C, 0, 1);
    layer_list_add(list, "ln_1.bias", 0, C, 0, 0);
    layer_list_add(list, "attn.c_attn.weight", C, 3 * C, std, 0);
    layer_list_add(list, "attn.c_attn.bias", 0, 3 * C, 0, 0);
    layer_list_add(list, "attn.c_proj.weight", C, C, residual, 0);
    layer_list_add(list, "attn.c_proj.bias", 0, C, 0, 0);
    layer_list_add(list, "ln_2.weight", 0, C, 0, 1);
    layer_list_add(list, "ln_2.bias", 0, C, 0, 0);
    layer_list_add(list, "mlp.c_fc.weight", C, 4 * C, std, 0);
    layer_list_add(list, "mlp.c_fc.bias", 0, 4 * C, 0, 0);
    layer_list_add(list, "mlp.c_proj.weight", 4 * C, C, residual, 0);
    layer_list_add(list, "mlp.c_proj.bias", 0, C, 0, 0);
}

static void place_kept(uint64_t rows, uint64_t N, uint64_t H, uint64_t typed, struct aq_arena *arena,
                       struct decoder_slot *kept)
{
    kept->norm1 = aq_arena_take(arena, N * typed);
    kept->qkv = aq_arena_take(arena, 3 * N * typed);
    kept->attention = aq_arena_take(arena, N * typed);
    kept->middle = aq_arena_take(arena, N * sizeof(float));
    kept->norm2 = aq_arena_take(arena, N * typed);
    kept->before_gelu = aq_arena_take(arena, 4 * N * typed);
    kept->after_gelu = aq_arena_take(arena, 4 * N * typed);
    kept->mean1 = aq_arena_take(arena, rows * sizeof(float));
    kept->rstd1 = aq_arena_take(arena, rows * sizeof(float));
    kept->mean2 = aq_arena_take(arena, rows * sizeof(float));
    kept->rstd2 = aq_arena_take(arena, rows * sizeof(float));
    kept->lse = aq_arena_take(arena, rows * H * sizeof(float));
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t rows = (uint64_t)config->B * layer->in.rows, N = rows * layer->in.columns;
    const uint64_t typed = aq_element_bytes(type);
    const enum layer_memory swapped = config->split ? LAYER_STAGE : LAYER_WORK;
    struct decoder_slot *kept = to;
    struct decoder_state *work = to;
    if (what == LAYER_KEPT) place_kept(rows, N, config->model.heads, typed, arena, kept);
    if (what == LAYER_KEPT && config->split) {
        kept->dprojection = aq_arena_take(arena, N * typed);
        kept->dmlp = aq_arena_take(arena, N * typed);
    }
    if (config->inference || !layer_learns(layer)) return;
    if (what == LAYER_WORK) {
        work->dnorm = aq_arena_take(arena, N * sizeof(float));
        work->dattention = aq_arena_take(arena, N * typed);
    }
    if (what == swapped) work->du = aq_arena_take(arena, 4 * N * typed);
    if (what == (type == AQ_F32 ? swapped : LAYER_WORK)) work->dqkv = aq_arena_take(arena, 3 * N * sizeof(float));
    if (what == swapped && type != AQ_F32) work->dqkv_rounded = aq_arena_take(arena, 3 * N * sizeof(uint16_t));
}

/* Of each of forward's products its weights' gradient and its input's, and the scores of attention once more. */
static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    static const struct {
        uint32_t tensor;
        double squares; /* of C x C */
    } products[] = {{QKV, 3}, {PROJECTION, 1}, {FC, 4}, {MLP, 4}};
    const double rows = (double)config->B * layer->in.rows, C = layer->in.columns;
    const double attention = 2.0 * rows * config->T * C; /* half of T x T */
    *out =
        (struct layer_flops){.forward = attention, .backward = layer_goes_on(layer, PROJECTION) ? 2.5 * attention : 0};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const double product = 2.0 * products[i].squares * rows * C * C;
        const double weights = layer->trained >> products[i].tensor & 1 ? product : 0;
        out->forward += product;
        out->backward += weights + (layer_goes_on(layer, products[i].tensor) ? product : 0);
        out->weights += weights;
    }
}

static struct aq_attention attention_of(const struct layer_run *run)
{
    const struct decoder_slot *kept = run->slot;
    const uint64_t H = run->config->model.heads;
    return (struct aq_attention){.samples = run->samples,
                                 .T = run->tokens,
                                 .H = H,
                                 .D = run->layer->in.columns / H,
                                 .T_mask = run->config->T,
                                 .type = stage_type(run->config->precision),
                                 .qkv = kept->qkv,
                                 .out = kept->attention,
                                 .lse = kept->lse,
                                 .dropout = layer_dropout(run, SITE_ATTENTION)};
}

/* c = other + dropout(x W + b) */
static enum aq_status residual(const struct layer_run *run, uint64_t K, const void *x, uint32_t weight, uint32_t site,
                               const float *other, float *c)
{
    struct aq_matmul args =
        layer_product(run, run->rows_in, run->layer->in.columns, K, x, run->w[weight], c, AQ_F32, run->w[weight + 1]);
    args.after = AQ_AFTER_RESIDUAL;
    args.other = (void *)(uintptr_t)other; /* read only */
    args.dropout = layer_dropout(run, site);
    args.dropout_sample_rows = run->tokens;
    return aq_device_matmul(run->device, &args, run->stream);
}

static enum aq_status forward(const struct layer_run *run, const float *x, float *y)
{
    const struct decoder_slot *kept = run->slot;
    const uint64_t C = run->layer->in.columns, rows = run->rows_in;
    const enum aq_element type = stage_type(run->config->precision);
    float *const *w = run->w;
    AQ_TRY(layer_norm(run, rows, x, &w[NORM1], kept->norm1, kept->mean1, kept->rstd1));
    struct aq_matmul args = layer_product(run, rows, 3 * C, C, kept->norm1, w[QKV], kept->qkv, type, w[QKV_BIAS]);
    AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    const struct aq_attention attention = attention_of(run);
    AQ_TRY(aq_device_attention(run->device, &attention, run->stream));
    AQ_TRY(residual(run, C, kept->attention, PROJECTION, SITE_PROJECTION, x, kept->middle));
    AQ_TRY(layer_norm(run, rows, kept->middle, &w[NORM2], kept->norm2, kept->mean2, kept->rstd2));
    args = layer_product(run, rows, 4 * C, C, kept->norm2, w[FC], kept->after_gelu, type, w[FC_BIAS]);
    args.after = AQ_AFTER_GELU;
    args.other = kept->before_gelu;
    AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    return y ? residual(run, 4 * C, kept->after_gelu, MLP, SITE_MLP, kept->middle, y) : AQ_OK;
}

/* Where that gradient of a branch lies which its weights are multiplied by: in the slot, where that comes later. */
static void *branch_memory(const struct layer_run *run, uint32_t site)
{
    const struct decoder_slot *kept = run->slot;
    if (!run->split) return layer_rounded(run->stage);
    return site == SITE_MLP ? kept->dmlp : kept->dprojection;
}

/*
 * The gradient of what a residual added: dx itself, or dx masked or rounded; and its bias' gradient. made: a layer norm
 * has made both.
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

static struct layer_ending ending_at(const struct layer_run *run, uint32_t site, uint32_t bias)
{
    const enum aq_element type = stage_type(run->config->precision);
    return (struct layer_ending){
        .sums = run->g[bias], .rounded = type == AQ_F32 ? NULL : branch_memory(run, site), .type = type};
}

static void ending(const struct layer_run *run, struct layer_ending *out)
{
    *out = ending_at(run, SITE_MLP, MLP_BIAS);
}

static enum aq_status mlp_weights(const struct layer_run *run, const struct decoder_gradients *of)
{
    const struct decoder_slot *kept = run->slot;
    const uint64_t C = run->layer->in.columns, rows = run->rows_in;
    AQ_TRY(layer_weight_gradient(run, rows, 4 * C, C, kept->after_gelu, of->mlp, run->g[MLP]));
    AQ_TRY(layer_weight_gradient(run, rows, C, 4 * C, kept->norm2, of->u, run->g[FC]));
    return layer_column_sum(run, of->u, rows, 4 * C, run->g[FC_BIAS]);
}

static enum aq_status attention_weights(const struct layer_run *run, const struct decoder_gradients *of)
{
    const struct decoder_slot *kept = run->slot;
    const uint64_t C = run->layer->in.columns, rows = run->rows_in;
    AQ_TRY(layer_weight_gradient(run, rows, C, C, kept->attention, of->projection, run->g[PROJECTION]));
    AQ_TRY(layer_weight_gradient(run, rows, C, 3 * C, kept->norm1, of->qkv, run->g[QKV]));
    return layer_column_sum(run, of->qkv, rows, 3 * C, run->g[QKV_BIAS]);
}

static enum aq_status weights(const struct layer_run *run, const float *x)
{
    const struct decoder_slot *kept = run->slot;
    const struct decoder_gradients of = {kept->dmlp, kept->before_gelu, kept->dprojection, kept->qkv};
    (void)x;
    AQ_TRY(mlp_weights(run, &of));
    return attention_weights(run, &of);
}

static void swap(void **a, void **b)
{
    void *kept = *a;
    *a = *b;
    *b = kept;
}

static enum aq_status mlp_backward(const struct layer_run *run, float *dx)
{
    struct decoder_slot *kept = run->slot;
    struct decoder_state *work = run->state;
    const uint64_t C = run->layer->in.columns, rows = run->rows_in;
    const enum aq_element type = stage_type(run->config->precision);
    float *const *w = run->w, *const *g = run->g;
    struct decoder_gradients of = {.u = work->du};
    AQ_TRY(branch_gradient(run, SITE_MLP, dx, g[MLP_BIAS], run->made, &of.mlp));
    struct aq_matmul args = layer_input_gradient(run, rows, 4 * C, C, of.mlp, w[MLP], work->du, type);
    args.after = AQ_AFTER_GELU_BACKWARD;
    args.other = kept->before_gelu;
    if (layer_goes_on(run->layer, MLP)) AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    if (!run->split) AQ_TRY(mlp_weights(run, &of));
    if (run->split && layer_goes_on(run->layer, MLP)) swap(&work->du, &kept->before_gelu);
    if (!layer_goes_on(run->layer, FC)) return AQ_OK;
    args = layer_input_gradient(run, rows, C, 4 * C, of.u, w[FC], work->dnorm, AQ_F32);
    AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    const struct layer_ending next = ending_at(run, SITE_PROJECTION, PROJECTION_BIAS);
    return layer_norm_gradient(run, rows, work->dnorm, kept->middle, w[NORM2], kept->mean2, kept->rstd2, dx, &g[NORM2],
                               run->dropped ? NULL : &next);
}

/* Through the projection and the heads, to dqkv. */
static enum aq_status heads_backward(const struct layer_run *run, const void *dprojection)
{
    const struct decoder_state *work = run->state;
    const uint64_t C = run->layer->in.columns;
    const enum aq_element type = stage_type(run->config->precision);
    const struct aq_matmul args =
        layer_input_gradient(run, run->rows_in, C, C, dprojection, run->w[PROJECTION], work->dattention, type);
    AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    struct aq_attention attention = attention_of(run);
    attention.dout = work->dattention;
    attention.dqkv = work->dqkv;
    attention.dqkv_rounded = work->dqkv_rounded;
    return aq_device_attention_backward(run->device, &attention, run->stream);
}

static enum aq_status attention_backward(const struct layer_run *run, const float *x, float *dx,
                                         const struct layer_ending *below)
{
    struct decoder_slot *kept = run->slot;
    struct decoder_state *work = run->state;
    const uint64_t C = run->layer->in.columns, rows = run->rows_in;
    const enum aq_element type = stage_type(run->config->precision);
    float *const *w = run->w, *const *g = run->g;
    void **dqkv = type == AQ_F32 ? &work->dqkv : &work->dqkv_rounded;
    struct decoder_gradients of = {.qkv = *dqkv};
    if (!layer_goes_on(run->layer, NORM2)) return AQ_OK;
    AQ_TRY(branch_gradient(run, SITE_PROJECTION, dx, g[PROJECTION_BIAS], !run->dropped, &of.projection));
    if (layer_goes_on(run->layer, PROJECTION)) AQ_TRY(heads_backward(run, of.projection));
    if (!run->split) AQ_TRY(attention_weights(run, &of));
    if (run->split && layer_goes_on(run->layer, PROJECTION)) swap(dqkv, &kept->qkv);
    if (!layer_goes_on(run->layer, QKV)) return AQ_OK;
    const struct aq_matmul args = layer_input_gradient(run, rows, C, 3 * C, of.qkv, w[QKV], work->dnorm, AQ_F32);
    AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    return layer_norm_gradient(run, rows, work->dnorm, x, w[NORM1], kept->mean1, kept->rstd1, dx, &g[NORM1], below);
}

static enum aq_status backward(const struct layer_run *run, const float *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    AQ_ASSERT(dy == dx);
    AQ_TRY(mlp_backward(run, dx));
    return attention_backward(run, x, dx, below);
}

const struct layer_kind layer_decoder = {.name = "decoder",
                                         .in_place = true,
                                         .makes_ending = true,
                                         .sites = SITES,
                                         .state_bytes = sizeof(struct decoder_state),
                                         .slot_bytes = sizeof(struct decoder_slot),
                                         .tensors = tensors,
                                         .place = place,
                                         .flops = flops,
                                         .forward = forward,
                                         .backward = backward,
                                         .weights = weights,
                                         .ending = ending};
