/*
 * layer_deberta_block.c -- one block of DeBERTa v2 and v3, post-LN, with D as dropout and P the rows of the positions:
 *
 *     P = D(LNp(table))   pq, pk = P Wq + bq, P Wk + bk      q, k, v = x Wq + bq, x Wk + bk, x Wv + bv
 *     a = disentangled(q, k, v, pq, pk)                      h = LN1(x + D(a Wo + bo))
 *     u = h Wi + bi   g = gelu(u)                            y = LN2(h + D(g Wd + bd))
 *
 * and in v2's first block also a convolution over tokens: y' = LN3(y + gelu(D(conv(x)))).
 *
 * Queries and keys of positions are made with the weights of those of the content (share_att_key). No token attends to
 * padding, and no convolution reads it; its rows may have any values, and its gradients are 0.
 *
 * The table and its norm are the first layer's tensors. A tied model has them once, and copies in stages without the
 * first layer; an untied one has them in each block.
 *
 * Backward alternates between two arrays: a layer norm's gradient is written to the other one, a product's is added in
 * place. It ends where nothing further down needs a gradient: tensors are named in forward's order.
 */
#include "deberta.h"

#include <math.h>
#include <stdio.h>

enum {
    TABLE = DEBERTA_TABLE,
    TABLE_NORM = DEBERTA_TABLE_NORM,
    TABLE_NORM_BIAS = DEBERTA_TABLE_NORM_BIAS,
    QUERY,
    KEY,
    VALUE,
    QUERY_BIAS,
    KEY_BIAS,
    VALUE_BIAS,
    PROJECTION,
    PROJECTION_BIAS,
    NORM1,
    NORM1_BIAS,
    INNER,
    INNER_BIAS,
    MLP,
    MLP_BIAS,
    NORM2,
    NORM2_BIAS,
    KERNEL,
    KERNEL_BIAS,
    NORM3,
    NORM3_BIAS
};

enum { SITE_POSITIONS, SITE_ATTENTION, SITE_PROJECTION, SITE_MLP, SITE_KERNEL, SITES };

/* Values of forward that backward needs, besides the block's input. typed: the stage's type. */
struct block_slot {
    void *x;                 /* typed; NULL: the input itself */
    void *qkv, *attention;   /* typed                         */
    void *table, *positions; /* typed: P, and (pq, pk)        */
    float *lse, *table_mean, *table_rstd;
    float *middle, *mean1, *rstd1; /* before LN1                    */
    void *norm1, *inner, *gated;   /* typed: h, u, g                */
    float *end, *mean2, *rstd2;    /* before LN2                    */
    void *kernel;                  /* typed: D(conv(x))             */
    float *beside, *mean3, *rstd3; /* before LN3                    */
};

struct block_state {
    int32_t *index;   /* of distances -(T - 1) .. T - 1: rows behind the first that is used */
    float *rows;      /* fp32, as the input: forward's h, backward's other array            */
    float *table;     /* fp32, as P                                                         */
    void *branch;     /* typed: the gradient of what a residual added                       */
    void *dinner;     /* typed                                                              */
    void *dattention; /* typed                                                              */
    float *dqkv, *dpositions;
    void *dqkv_rounded, *dpositions_rounded;
    void *unfolded, *dkernel; /* typed */
    float *dunfolded;
};

/* --- relative positions ----------------------------------------------------------------------------------------- */

uint32_t deberta_row(const struct aq_model_config *model, int32_t distance)
{
    const int32_t span = (int32_t)deberta_span(model), middle = span / 2, size = distance < 0 ? -distance : distance;
    int32_t bucket = size;
    if (model->own[DEBERTA_BUCKETS] && size > middle) {
        const float far = logf((float)size / (float)middle);
        const float most = logf((float)((double)(model->context - 1) / middle));
        bucket = (int32_t)ceilf(far / most * (float)(middle - 1)) + middle;
    }
    const int32_t row = span + (distance < 0 ? -bucket : bucket);
    return (uint32_t)(row < 0 ? 0 : row > 2 * span - 1 ? 2 * span - 1 : row);
}

struct deberta_used deberta_used(const struct aq_stage_config *config)
{
    const int32_t last = (int32_t)config->T - 1;
    const uint32_t first = deberta_row(&config->model, -last);
    return (struct deberta_used){first, deberta_row(&config->model, last) - first + 1};
}

static enum aq_status open(const struct layer_run *run)
{
    const struct block_state *work = run->state;
    const int32_t last = (int32_t)run->config->T - 1;
    const struct deberta_used used = deberta_used(run->config);
    const size_t bytes = (2 * (size_t)last + 1) * sizeof(int32_t);
    void *memory;
    AQ_TRY(aq_alloc(bytes, &memory));
    for (int32_t distance = -last; distance <= last; distance++)
        ((int32_t *)memory)[distance + last] = (int32_t)(deberta_row(&run->config->model, distance) - used.first);
    enum aq_status status = aq_device_copy(run->device, work->index, memory, bytes, run->stream);
    if (status == AQ_OK) status = aq_device_stream_sync(run->device, run->stream);
    aq_free(memory);
    return status;
}

/* --- tensors and memory ----------------------------------------------------------------------------------------- */

static bool has_kernel(const struct layer *layer, const struct aq_stage_config *config)
{
    return layer->number == 1 && config->model.own[DEBERTA_KERNEL] > 0;
}

/*
 * An untied model has them in each block. A tied one has the first layer's. A stage without that layer has copies,
 * which belong to its first block.
 */
static void shared_tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    struct deberta_shared shared[DEBERTA_SHARED];
    char name[AQ_TENSOR_NAME_MAX];
    deberta_shared(config, shared);
    for (uint32_t i = 0; i < DEBERTA_SHARED; i++) {
        const struct deberta_shared *of = &shared[i];
        const bool copy = config->layer_first == layer->number;
        if (config->model.tied && !copy) {
            layer_list_alias(list, NULL, of->name, NULL);
            continue;
        }
        snprintf(name, sizeof name, "encoder.layer.%u.%s", layer->number - 1, of->own);
        layer_list_shared(list, of->first, of->count);
        layer_list_add_as(list, config->model.tied ? of->name : name, of->name, of->rows, layer->in.columns, of->std,
                          of->value);
    }
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const uint64_t C = layer->in.columns, I = deberta_inner(&config->model), K = config->model.own[DEBERTA_KERNEL];
    const float std = config->model.init_std;
    const struct {
        const char *name;
        uint64_t rows, columns; /* rows 0: a vector */
        float value;
    } own[] = {{"attention.self.query_proj.weight", C, C, 0},
               {"attention.self.key_proj.weight", C, C, 0},
               {"attention.self.value_proj.weight", C, C, 0},
               {"attention.self.query_proj.bias", 0, C, 0},
               {"attention.self.key_proj.bias", 0, C, 0},
               {"attention.self.value_proj.bias", 0, C, 0},
               {"attention.output.dense.weight", C, C, 0},
               {"attention.output.dense.bias", 0, C, 0},
               {"attention.output.LayerNorm.weight", 0, C, 1},
               {"attention.output.LayerNorm.bias", 0, C, 0},
               {"intermediate.dense.weight", I, C, 0},
               {"intermediate.dense.bias", 0, I, 0},
               {"output.dense.weight", C, I, 0},
               {"output.dense.bias", 0, C, 0},
               {"output.LayerNorm.weight", 0, C, 1},
               {"output.LayerNorm.bias", 0, C, 0}};
    char name[AQ_TENSOR_NAME_MAX];
    shared_tensors(layer, config, list);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        snprintf(name, sizeof name, "encoder.layer.%u.%s", layer->number - 1, own[i].name);
        layer_list_add(list, name, own[i].rows, own[i].columns, own[i].rows ? std : 0, own[i].value);
    }
    if (!has_kernel(layer, config)) return;
    const uint64_t shape[3] = {C, C, K};
    layer_list_add_cube(list, "encoder.conv.conv.weight", shape, std);
    layer_list_add(list, "encoder.conv.conv.bias", 0, C, 0, 0);
    layer_list_add(list, "encoder.conv.LayerNorm.weight", 0, C, 0, 1);
    layer_list_add(list, "encoder.conv.LayerNorm.bias", 0, C, 0, 0);
}

static struct linear heads_of(const struct layer *layer, uint32_t count)
{
    const uint64_t C = layer->in.columns;
    return (struct linear){.in = C,
                           .out_in = true,
                           .count = count,
                           .parts = {{QUERY, QUERY_BIAS, C}, {KEY, KEY_BIAS, C}, {VALUE, VALUE_BIAS, C}}};
}

/* Of positions: the table's rows, which are of no sample. */
static struct linear positions_of(const struct layer *layer, const struct aq_stage_config *config)
{
    struct linear linear = heads_of(layer, 2);
    linear.rows = deberta_used(config).count;
    return linear;
}

static struct linear projection_of(const struct layer *layer)
{
    return linear_of(layer->in.columns, layer->in.columns, true, PROJECTION, PROJECTION_BIAS);
}

static struct linear inner_of(const struct layer *layer, const struct aq_stage_config *config)
{
    return linear_of(layer->in.columns, deberta_inner(&config->model), true, INNER, INNER_BIAS);
}

static struct linear mlp_of(const struct layer *layer, const struct aq_stage_config *config)
{
    return linear_of(deberta_inner(&config->model), layer->in.columns, true, MLP, MLP_BIAS);
}

static struct linear kernel_of(const struct layer *layer, const struct aq_stage_config *config)
{
    const uint64_t C = layer->in.columns;
    return linear_of(C * config->model.own[DEBERTA_KERNEL], C, true, KERNEL, KERNEL_BIAS);
}

/* The convolution has none: PEFT adapts only linear layers. */
static uint32_t linears(const struct layer *layer, const struct aq_stage_config *config, struct linear *out)
{
    out[0] = heads_of(layer, 3);
    out[1] = projection_of(layer);
    out[2] = inner_of(layer, config);
    out[3] = mlp_of(layer, config);
    out[4] = positions_of(layer, config);
    return 5;
}

struct extents {
    uint64_t rows, N, inner, R, used, unfolded; /* elements of: the input, u, P; rows of P; of conv's input, 0: none */
    size_t typed;
};

static struct extents extents_of(const struct layer *layer, const struct aq_stage_config *config)
{
    const uint64_t rows = (uint64_t)config->B * layer->in.rows, N = rows * layer->in.columns;
    const uint64_t R = deberta_used(config).count;
    return (struct extents){.rows = rows,
                            .N = N,
                            .inner = rows * deberta_inner(&config->model),
                            .R = R,
                            .used = R * layer->in.columns,
                            .unfolded = has_kernel(layer, config) ? N * config->model.own[DEBERTA_KERNEL] : 0,
                            .typed = aq_element_bytes(stage_type(config->precision))};
}

static void place_kept(const struct layer *layer, const struct aq_stage_config *config, struct aq_arena *arena,
                       struct block_slot *kept)
{
    const struct extents of = extents_of(layer, config);
    const uint64_t row = of.rows * sizeof(float);
    if (of.typed != sizeof(float)) kept->x = aq_arena_take(arena, of.N * of.typed);
    kept->qkv = aq_arena_take(arena, 3 * of.N * of.typed);
    kept->attention = aq_arena_take(arena, of.N * of.typed);
    kept->table = aq_arena_take(arena, of.used * of.typed);
    kept->positions = aq_arena_take(arena, 2 * of.used * of.typed);
    kept->lse = aq_arena_take(arena, row * config->model.heads);
    kept->table_mean = aq_arena_take(arena, of.R * sizeof(float));
    kept->table_rstd = aq_arena_take(arena, of.R * sizeof(float));
    kept->middle = aq_arena_take(arena, of.N * sizeof(float));
    kept->mean1 = aq_arena_take(arena, row);
    kept->rstd1 = aq_arena_take(arena, row);
    kept->norm1 = aq_arena_take(arena, of.N * of.typed);
    kept->inner = aq_arena_take(arena, of.inner * of.typed);
    kept->gated = aq_arena_take(arena, of.inner * of.typed);
    kept->end = aq_arena_take(arena, of.N * sizeof(float));
    kept->mean2 = aq_arena_take(arena, row);
    kept->rstd2 = aq_arena_take(arena, row);
    if (!of.unfolded) return;
    kept->kernel = aq_arena_take(arena, of.N * of.typed);
    kept->beside = aq_arena_take(arena, of.N * sizeof(float));
    kept->mean3 = aq_arena_take(arena, row);
    kept->rstd3 = aq_arena_take(arena, row);
}

static void place_work(const struct layer *layer, const struct aq_stage_config *config, struct aq_arena *arena,
                       struct block_state *work)
{
    const struct extents of = extents_of(layer, config);
    work->rows = aq_arena_take(arena, of.N * sizeof(float));
    work->table = aq_arena_take(arena, of.used * sizeof(float));
    work->branch = aq_arena_take(arena, of.N * of.typed);
    if (of.unfolded) work->unfolded = aq_arena_take(arena, of.unfolded * of.typed);
    if (config->inference || !layer_learns(layer)) return;
    work->dinner = aq_arena_take(arena, of.inner * of.typed);
    work->dattention = aq_arena_take(arena, of.N * of.typed);
    work->dqkv = aq_arena_take(arena, 3 * of.N * sizeof(float));
    work->dpositions = aq_arena_take(arena, 2 * of.used * sizeof(float));
    if (of.typed != sizeof(float)) work->dqkv_rounded = aq_arena_take(arena, 3 * of.N * of.typed);
    if (of.typed != sizeof(float)) work->dpositions_rounded = aq_arena_take(arena, 2 * of.used * of.typed);
    if (!of.unfolded) return;
    work->dkernel = aq_arena_take(arena, of.N * of.typed);
    work->dunfolded = aq_arena_take(arena, of.unfolded * sizeof(float));
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct block_state *work = to;
    if (what == LAYER_KEPT) place_kept(layer, config, arena, to);
    if (what == LAYER_WORK) place_work(layer, config, arena, work);
    if (what == LAYER_STAGE) work->index = aq_arena_take(arena, (2 * (uint64_t)config->T - 1) * sizeof(int32_t));
}

/* Of attention: scores, two relative terms, the sum of values; in backward the scores again and the gradients. */
static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const double rows = (double)config->B * layer->in.rows, C = layer->in.columns;
    const double attention = 2.0 * rows * config->T * C * 4.0;
    const struct linear linears[] = {projection_of(layer), inner_of(layer, config), mlp_of(layer, config)};
    const struct linear content = heads_of(layer, 3), positions = positions_of(layer, config);
    *out =
        (struct layer_flops){.forward = attention, .backward = layer_goes_on(layer, PROJECTION) ? 2.5 * attention : 0};
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++)
        linear_flops(layer, &linears[i], rows, out);
    linear_flops(layer, &content, rows, out);
    linear_flops(layer, &positions, deberta_used(config).count, out);
    const struct linear kernel = kernel_of(layer, config);
    if (has_kernel(layer, config)) linear_flops(layer, &kernel, rows, out);
    out->weights = 0; /* backward does all */
}

/* --- parts that other layers of the model have, too ------------------------------------------------------------- */

enum aq_status deberta_operand(const struct layer_run *run, uint64_t count, const float *x, void *rounded,
                               const void **out)
{
    const enum aq_element type = stage_type(run->config->precision);
    const struct aq_dropout_apply args = {.samples = 1, .sample_elements = count, .x = x, .y = rounded, .y_type = type};
    *out = type == AQ_F32 ? (const void *)x : rounded;
    return type == AQ_F32 ? AQ_OK : aq_device_dropout(run->device, &args, run->stream);
}

enum aq_status deberta_norm(const struct layer_run *run, uint64_t rows, const float *x, uint32_t weight, void *y,
                            enum aq_element type, float *mean, float *rstd)
{
    const struct aq_layernorm args = {.rows = rows,
                                      .C = run->layer->out.columns,
                                      .epsilon = DEBERTA_EPSILON,
                                      .x = x,
                                      .gamma = run->w[weight],
                                      .beta = run->w[weight + 1],
                                      .y = y,
                                      .y_type = type,
                                      .mean = mean,
                                      .rstd = rstd};
    return aq_device_layernorm(run->device, &args, run->stream);
}

static enum aq_status norm_gradient(const struct layer_run *run, uint64_t rows, const float *dy, const float *x,
                                    uint32_t weight, const float *mean, const float *rstd, float *dx)
{
    const struct aq_layernorm_backward args = {.rows = rows,
                                               .C = run->layer->out.columns,
                                               .dy = dy,
                                               .x = x,
                                               .gamma = run->w[weight],
                                               .mean = mean,
                                               .rstd = rstd,
                                               .dx = dx,
                                               .dgamma = run->g[weight],
                                               .dbeta = run->g[weight + 1]};
    return aq_device_layernorm_backward(run->device, &args, run->stream);
}

enum aq_status deberta_norm_gradient(const struct layer_run *run, uint64_t rows, const float *dy, const float *x,
                                     uint32_t weight, const float *mean, const float *rstd, float *dx)
{
    AQ_TRY(aq_device_zero(run->device, dx, rows * run->layer->out.columns * sizeof *dx, run->stream));
    return norm_gradient(run, rows, dy, x, weight, mean, rstd, dx);
}

/* --- forward ---------------------------------------------------------------------------------------------------- */

/* c = other + dropout(x W + b) */
static enum aq_status residual(const struct layer_run *run, const struct linear *linear, const void *x, uint32_t site,
                               const float *other, float *c)
{
    const struct linear_to to = {.c = c,
                                 .type = AQ_F32,
                                 .after = AQ_AFTER_RESIDUAL,
                                 .other = (void *)(uintptr_t)other, /* read only */
                                 .dropout = layer_dropout(run, site)};
    return linear_forward(run, linear, run->rows_in, (struct linear_rows){x, 0}, &to);
}

/*
 * P and its products. Its mask is drawn by the micro-batch's first sample: all samples read the same rows.
 */
static enum aq_status positions_make(const struct layer_run *run)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const struct deberta_used used = deberta_used(run->config);
    const uint64_t C = run->layer->in.columns;
    const enum aq_element type = stage_type(run->config->precision);
    const float *table = run->w[TABLE] + used.first * C;
    const struct linear heads = positions_of(run->layer, run->config);
    const struct linear_to to = {.c = kept->positions, .type = type};
    const struct aq_dropout_apply drop = {.samples = 1,
                                          .sample_elements = used.count * C,
                                          .x = work->table,
                                          .y = kept->table,
                                          .y_type = type,
                                          .dropout = layer_dropout(run, SITE_POSITIONS)};
    void *normed = run->dropped ? work->table : kept->table;
    AQ_TRY(deberta_norm(run, used.count, table, TABLE_NORM, normed, run->dropped ? AQ_F32 : type, kept->table_mean,
                        kept->table_rstd));
    if (run->dropped) AQ_TRY(aq_device_dropout(run->device, &drop, run->stream));
    return linear_forward(run, &heads, used.count, (struct linear_rows){kept->table, 0}, &to);
}

static struct aq_disentangled attention_of(const struct layer_run *run)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const uint64_t H = run->config->model.heads, D = run->layer->in.columns / H;
    return (struct aq_disentangled){.samples = run->samples,
                                    .T = run->tokens,
                                    .H = H,
                                    .D = D,
                                    .T_mask = run->config->T,
                                    .R = deberta_used(run->config).count,
                                    .scale = 1.0f / sqrtf(3.0f * (float)D),
                                    .type = stage_type(run->config->precision),
                                    .qkv = kept->qkv,
                                    .positions = kept->positions,
                                    .index = work->index + (run->config->T - run->tokens),
                                    .lengths = run->lengths,
                                    .out = kept->attention,
                                    .lse = kept->lse,
                                    .dropout = layer_dropout(run, SITE_ATTENTION),
                                    .dqkv = work->dqkv,
                                    .dout = work->dattention,
                                    .dpositions = work->dpositions};
}

static enum aq_status unfold(const struct layer_run *run, const float *x)
{
    const struct block_state *work = run->state;
    const struct aq_unfold args = {.samples = run->samples,
                                   .T = run->tokens,
                                   .C = run->layer->in.columns,
                                   .K = run->config->model.own[DEBERTA_KERNEL],
                                   .lengths = run->lengths,
                                   .x = x,
                                   .y = work->unfolded,
                                   .y_type = stage_type(run->config->precision)};
    return aq_device_unfold(run->device, &args, run->stream);
}

/* y += gelu(D(conv(x))), and its norm. */
static enum aq_status kernel_forward(const struct layer_run *run, const float *x, float *y)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const struct linear kernel = kernel_of(run->layer, run->config);
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t N = run->rows_in * run->layer->in.columns;
    const struct linear_to to = {.c = kept->beside, .type = AQ_F32};
    const struct aq_dropout_apply drop = {.samples = run->samples,
                                          .sample_elements = N / run->samples,
                                          .x = kept->beside,
                                          .y = kept->kernel,
                                          .y_type = type,
                                          .dropout = layer_dropout(run, SITE_KERNEL)};
    const struct aq_gelu gelu = {.count = N, .type = type, .x = kept->kernel, .other = work->rows, .y = kept->beside};
    AQ_TRY(unfold(run, x));
    AQ_TRY(linear_forward(run, &kernel, run->rows_in, (struct linear_rows){work->unfolded, 0}, &to));
    AQ_TRY(aq_device_dropout(run->device, &drop, run->stream));
    AQ_TRY(aq_device_gelu(run->device, &gelu, run->stream));
    return deberta_norm(run, run->rows_in, kept->beside, NORM3, y, AQ_F32, kept->mean3, kept->rstd3);
}

/* From h on: typed in kept->norm1, fp32 in `middle`. */
static enum aq_status mlp_forward(const struct layer_run *run, const float *middle)
{
    const struct block_slot *kept = run->slot;
    const enum aq_element type = stage_type(run->config->precision);
    const struct linear inner = inner_of(run->layer, run->config), mlp = mlp_of(run->layer, run->config);
    const struct linear_to to = {.c = kept->inner, .type = type};
    const struct aq_gelu gelu = {
        .count = run->rows_in * linear_out(&inner), .type = type, .x = kept->inner, .y = kept->gated};
    AQ_TRY(linear_forward(run, &inner, run->rows_in, (struct linear_rows){kept->norm1, 0}, &to));
    AQ_TRY(aq_device_gelu(run->device, &gelu, run->stream));
    return residual(run, &mlp, kept->gated, SITE_MLP, middle, kept->end);
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const uint64_t rows = run->rows_in, N = rows * run->layer->in.columns;
    const enum aq_element type = stage_type(run->config->precision);
    const struct linear heads = heads_of(run->layer, 3), projection = projection_of(run->layer);
    const struct linear_to to = {.c = kept->qkv, .type = type};
    const bool kernel = has_kernel(run->layer, run->config);
    float *middle = type == AQ_F32 ? kept->norm1 : work->rows;
    struct linear_rows operand = {0};
    const void *rounded;
    AQ_TRY(deberta_operand(run, N, x, kept->x, &operand.at));
    AQ_TRY(linear_forward(run, &heads, rows, operand, &to));
    AQ_TRY(positions_make(run));
    const struct aq_disentangled attention = attention_of(run);
    AQ_TRY(aq_device_disentangled(run->device, &attention, run->stream));
    AQ_TRY(residual(run, &projection, kept->attention, SITE_PROJECTION, x, kept->middle));
    AQ_TRY(deberta_norm(run, rows, kept->middle, NORM1, middle, AQ_F32, kept->mean1, kept->rstd1));
    AQ_TRY(deberta_operand(run, N, middle, kept->norm1, &rounded));
    AQ_TRY(mlp_forward(run, middle));
    /* In a forward for a backward, only the means of the rest are needed. */
    float *end = kernel || !y ? work->rows : y;
    AQ_TRY(deberta_norm(run, rows, kept->end, NORM2, end, AQ_F32, kept->mean2, kept->rstd2));
    return kernel ? kernel_forward(run, x, y ? y : work->rows) : AQ_OK;
}

/* --- backward --------------------------------------------------------------------------------------------------- */

/* The gradient of what a residual added, typed: `gradient` itself, or masked or rounded. */
static enum aq_status branch_gradient(const struct layer_run *run, uint32_t site, const float *gradient, void *branch,
                                      const void **out)
{
    const enum aq_element type = stage_type(run->config->precision);
    const struct aq_dropout_apply args = {.samples = run->samples,
                                          .sample_elements = run->tokens * run->layer->in.columns,
                                          .x = gradient,
                                          .y = branch,
                                          .y_type = type,
                                          .dropout = layer_dropout(run, site)};
    const bool copied = type != AQ_F32 || run->dropped;
    *out = copied ? branch : (const void *)gradient;
    return copied ? aq_device_dropout(run->device, &args, run->stream) : AQ_OK;
}

static enum aq_status product_gradients(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                        const void *x, const void *dy)
{
    return linear_gradients(run, linear, rows, (struct linear_rows){x, 0}, (struct linear_rows){dy, 0});
}

/* gradient: of the sum before LN3. Of the convolution's weights; work->dkernel is left for its input. */
static enum aq_status kernel_backward(const struct layer_run *run, const float *x, const float *gradient)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const struct linear kernel = kernel_of(run->layer, run->config);
    const enum aq_element type = stage_type(run->config->precision);
    const struct aq_dropout_apply drop = {.samples = run->samples,
                                          .sample_elements = run->tokens * run->layer->in.columns,
                                          .x = gradient,
                                          .y = work->dkernel,
                                          .y_type = type,
                                          .dropout = layer_dropout(run, SITE_KERNEL)};
    const struct aq_gelu_backward gelu = {.count = run->rows_in * run->layer->in.columns,
                                          .type = type,
                                          .x = kept->kernel,
                                          .dy = work->dkernel,
                                          .dx = work->dkernel};
    AQ_TRY(aq_device_dropout(run->device, &drop, run->stream)); /* a mask's factor and a slope in either order */
    AQ_TRY(aq_device_gelu_backward(run->device, &gelu, run->stream));
    AQ_TRY(unfold(run, x));
    return product_gradients(run, &kernel, run->rows_in, work->unfolded, work->dkernel);
}

static enum aq_status kernel_input_gradient(const struct layer_run *run, float *dx)
{
    const struct block_state *work = run->state;
    const struct linear kernel = kernel_of(run->layer, run->config);
    const struct linear_to to = {.c = work->dunfolded, .type = AQ_F32};
    const struct aq_unfold_backward args = {.samples = run->samples,
                                            .T = run->tokens,
                                            .C = run->layer->in.columns,
                                            .K = run->config->model.own[DEBERTA_KERNEL],
                                            .lengths = run->lengths,
                                            .dy = work->dunfolded,
                                            .dx = dx};
    AQ_TRY(linear_input_gradient(run, &kernel, run->rows_in, (struct linear_rows){work->dkernel, 0}, &to));
    return aq_device_unfold_backward(run->device, &args, run->stream);
}

/* gradient: of the sum before LN2, then that of h. */
static enum aq_status mlp_backward(const struct layer_run *run, float *gradient)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const enum aq_element type = stage_type(run->config->precision);
    const struct linear inner = inner_of(run->layer, run->config), mlp = mlp_of(run->layer, run->config);
    const struct linear_to dgated = {.c = work->dinner, .type = type};
    const struct linear_to dnorm = {.c = gradient, .type = AQ_F32, .add = true};
    const struct aq_gelu_backward gelu = {
        .count = run->rows_in * mlp.in, .type = type, .x = kept->inner, .dy = work->dinner, .dx = work->dinner};
    struct linear_rows branch = {0};
    AQ_TRY(branch_gradient(run, SITE_MLP, gradient, work->branch, &branch.at));
    AQ_TRY(product_gradients(run, &mlp, run->rows_in, kept->gated, branch.at));
    if (!linear_goes_on(run->layer, &mlp)) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &mlp, run->rows_in, branch, &dgated));
    AQ_TRY(aq_device_gelu_backward(run->device, &gelu, run->stream));
    AQ_TRY(product_gradients(run, &inner, run->rows_in, kept->norm1, work->dinner));
    if (!linear_goes_on(run->layer, &inner)) return AQ_OK;
    return linear_input_gradient(run, &inner, run->rows_in, (struct linear_rows){work->dinner, 0}, &dnorm);
}

/* From the gradient of (pq, pk) to the table's rows and their norm. */
static enum aq_status positions_backward(const struct layer_run *run)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const struct deberta_used used = deberta_used(run->config);
    const uint64_t C = run->layer->in.columns, at = used.first * C;
    const struct linear heads = positions_of(run->layer, run->config);
    const struct linear_to to = {.c = work->table, .type = AQ_F32};
    const struct aq_dropout_apply drop = {.samples = 1,
                                          .sample_elements = used.count * C,
                                          .x = work->table,
                                          .y = work->table,
                                          .dropout = layer_dropout(run, SITE_POSITIONS)};
    struct linear_rows dpositions = {0};
    AQ_TRY(deberta_operand(run, 2 * used.count * C, work->dpositions, work->dpositions_rounded, &dpositions.at));
    AQ_TRY(product_gradients(run, &heads, used.count, kept->table, dpositions.at));
    if (!(run->layer->trained & (1u << TABLE | 1u << TABLE_NORM | 1u << TABLE_NORM_BIAS))) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &heads, used.count, dpositions, &to));
    if (run->dropped) AQ_TRY(aq_device_dropout(run->device, &drop, run->stream));
    /* A frozen table's own gradient goes nowhere. */
    float *dtable = run->g[TABLE] ? run->g[TABLE] + at : work->dpositions;
    return norm_gradient(run, used.count, work->table, run->w[TABLE] + at, TABLE_NORM, kept->table_mean,
                         kept->table_rstd, dtable);
}

/* gradient: of the sum before LN1, then that of the input without the convolution's share. */
static enum aq_status attention_backward(const struct layer_run *run, const float *x, float *gradient)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const struct linear heads = heads_of(run->layer, 3), projection = projection_of(run->layer);
    const struct linear_to dattention = {.c = work->dattention, .type = stage_type(run->config->precision)};
    const struct linear_to dx = {.c = gradient, .type = AQ_F32, .add = true};
    const void *operand = kept->x ? kept->x : (const void *)x;
    struct linear_rows branch = {0}, dqkv = {0};
    AQ_TRY(branch_gradient(run, SITE_PROJECTION, gradient, work->branch, &branch.at));
    AQ_TRY(product_gradients(run, &projection, run->rows_in, kept->attention, branch.at));
    if (!linear_goes_on(run->layer, &projection)) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &projection, run->rows_in, branch, &dattention));
    const struct aq_disentangled attention = attention_of(run);
    AQ_TRY(aq_device_disentangled_backward(run->device, &attention, run->stream));
    AQ_TRY(deberta_operand(run, 3 * run->rows_in * heads.in, work->dqkv, work->dqkv_rounded, &dqkv.at));
    AQ_TRY(product_gradients(run, &heads, run->rows_in, operand, dqkv.at));
    AQ_TRY(positions_backward(run));
    return run->layer->passes ? linear_input_gradient(run, &heads, run->rows_in, dqkv, &dx) : AQ_OK;
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct block_slot *kept = run->slot;
    const struct block_state *work = run->state;
    const struct layer *layer = run->layer;
    const uint64_t rows = run->rows_in;
    const bool kernel = has_kernel(layer, run->config);
    float *one = dx, *other = work->rows;
    AQ_ASSERT(dy == dx);
    (void)below;
    if (kernel) {
        AQ_TRY(deberta_norm_gradient(run, rows, one, kept->beside, NORM3, kept->mean3, kept->rstd3, other));
        AQ_TRY(kernel_backward(run, x, other));
        one = work->rows;
        other = dx;
    }
    if (kernel && !layer_goes_on(layer, KERNEL)) return AQ_OK;
    AQ_TRY(deberta_norm_gradient(run, rows, one, kept->end, NORM2, kept->mean2, kept->rstd2, other));
    if (!layer_goes_on(layer, NORM2)) return AQ_OK;
    AQ_TRY(mlp_backward(run, other));
    if (!layer_goes_on(layer, INNER)) return AQ_OK;
    AQ_TRY(deberta_norm_gradient(run, rows, other, kept->middle, NORM1, kept->mean1, kept->rstd1, one));
    if (!layer_goes_on(layer, NORM1)) return AQ_OK;
    AQ_TRY(attention_backward(run, x, one));
    if (!layer->passes) return AQ_OK;
    if (kernel) AQ_TRY(kernel_input_gradient(run, one));
    return one == dx ? AQ_OK : aq_device_copy(run->device, dx, one, rows * layer->in.columns * sizeof *dx, run->stream);
}

const struct layer_kind layer_deberta_block = {.name = "deberta_block",
                                               .in_place = true,
                                               .sites = SITES,
                                               .state_bytes = sizeof(struct block_state),
                                               .slot_bytes = sizeof(struct block_slot),
                                               .tensors = tensors,
                                               .linears = linears,
                                               .place = place,
                                               .open = open,
                                               .flops = flops,
                                               .forward = forward,
                                               .backward = backward};
