/*
 * layer_encoder_pooler.c -- a sample's summary by an encoder with a norm behind its blocks, before a classifier
 * (ModernBERT's prediction head, Warner et al. 2024; EuroBERT), with D as dropout and norms without bias:
 *
 *     p = norm(x_0), or the mean of norm(x_t) over the sample's real tokens (model.pool_mean)
 *     y = D(norm(gelu(p W)))               ModernBERT
 *     y = D(gelu(p W + b))                 EuroBERT
 *     y = D(mean of gelu(norm(x_t) W + b)) EuroBERT with model.pool_late
 *
 * If only the first token counts, its row is taken out first, so that everything has one row per sample.
 */
#include "decoder.h"

enum { FINAL_NORM, DENSE, DENSE_BIAS, DENSE_NORM = DENSE_BIAS /* a form has one of both */ };

struct pooler_slot {
    float *first;         /* x_0 of each sample; NULL with means     */
    float *mean, *rstd;   /* of the final norm                       */
    float *pooled;        /* p; late: of all rows                    */
    void *rounded, *inner; /* p as products read it; p W: typed      */
    float *gated, *gated_mean, *gated_rstd; /* gelu(p W), and of its norm */
};

struct pooler_state {
    float *normed;   /* rows of the final norm, or their gradient: with means all */
    float *unwanted; /* the gradient of x, where nothing before trains: with means */
    float *a, *b;    /* a row per sample; late: b of all rows                        */
    void *dinner;    /* typed                                                      */
};

static struct linear dense_of(const struct layer *layer)
{
    return linear_of(layer->in.columns, layer->in.columns, true, DENSE,
                     layer->form->dense_bias ? DENSE_BIAS : LAYER_NO_TENSOR);
}

/* Does the final norm go over all rows, not the first of each sample? */
static bool norms_all(const struct aq_model_config *model)
{
    return model->pool_mean || model->pool_late;
}

/* Rows of the product: of each sample one, or all. */
static uint64_t dense_rows(const struct layer_run *run)
{
    return run->config->model.pool_late ? run->rows_in : run->samples;
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const uint64_t C = layer->in.columns;
    layer_list_add(list, layer->form->norm, 0, C, 0, 1);
    layer_list_add(list, layer->form->dense, C, C, config->model.init_std, 0);
    AQ_ASSERT(!layer->form->dense_bias || !layer->form->dense_norm);
    if (layer->form->dense_bias) layer_list_add(list, layer->form->dense_bias, 0, C, 0, 0);
    if (layer->form->dense_norm) layer_list_add(list, layer->form->dense_norm, 0, C, 0, 1);
}

static void place_kept(const struct layer *layer, const struct aq_stage_config *config, struct aq_arena *arena,
                       struct pooler_slot *kept)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t rows = (uint64_t)config->B * (config->model.pool_late ? layer->in.rows : 1);
    const uint64_t count = rows * layer->in.columns, typed = count * aq_element_bytes(type);
    const uint64_t normed = (uint64_t)config->B * (norms_all(&config->model) ? layer->in.rows : 1);
    if (!norms_all(&config->model)) kept->first = aq_arena_take(arena, count * sizeof(float));
    kept->mean = aq_arena_take(arena, normed * sizeof(float));
    kept->rstd = aq_arena_take(arena, normed * sizeof(float));
    kept->pooled = aq_arena_take(arena, count * sizeof(float));
    if (type != AQ_F32) kept->rounded = aq_arena_take(arena, typed);
    kept->inner = aq_arena_take(arena, typed);
    kept->gated = aq_arena_take(arena, count * sizeof(float));
    kept->gated_mean = aq_arena_take(arena, config->B * sizeof(float));
    kept->gated_rstd = aq_arena_take(arena, config->B * sizeof(float));
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t all = (uint64_t)config->B * layer->in.rows * layer->in.columns;
    const uint64_t count = config->model.pool_late ? all : (uint64_t)config->B * layer->in.columns;
    struct pooler_state *work = to;
    if (what == LAYER_KEPT) place_kept(layer, config, arena, to);
    if (what != LAYER_WORK) return;
    if (config->model.pool_mean) work->normed = aq_arena_take(arena, all * sizeof(float));
    if (norms_all(&config->model) && !layer->passes) work->unwanted = aq_arena_take(arena, all * sizeof(float));
    work->a = aq_arena_take(arena, count * sizeof(float));
    work->b = aq_arena_take(arena, count * sizeof(float));
    work->dinner = aq_arena_take(arena, count * aq_element_bytes(type));
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const struct linear dense = dense_of(layer);
    *out = (struct layer_flops){0};
    linear_flops(layer, &dense, (double)config->B * (config->model.pool_late ? layer->in.rows : 1), out);
    out->weights = 0; /* backward does all */
}

/* The final norm of a form, in fp32. */
static enum aq_status final_norm(const struct layer_run *run, uint64_t rows, const float *x, float *y)
{
    const struct pooler_slot *kept = run->slot;
    const struct decoder_norm norm = {FINAL_NORM, LAYER_NO_TENSOR, kept->mean, kept->rstd};
    return decoder_post_norm(run, &norm, rows, x, NULL, y);
}

/* dx, written. */
static enum aq_status final_norm_gradient(const struct layer_run *run, uint64_t rows, const float *dy, const float *x,
                                          float *dx)
{
    const struct pooler_slot *kept = run->slot;
    const struct decoder_norm norm = {FINAL_NORM, LAYER_NO_TENSOR, kept->mean, kept->rstd};
    AQ_TRY(aq_device_zero(run->device, dx, rows * run->layer->in.columns * sizeof *dx, run->stream));
    return decoder_norm_gradient(run, &norm, rows, dy, x, AQ_F32, dx, NULL);
}

static enum aq_status dense_norm(const struct layer_run *run, const float *x, float *y)
{
    const struct pooler_slot *kept = run->slot;
    const struct aq_layernorm args = {.rows = run->samples,
                                      .C = run->layer->in.columns,
                                      .epsilon = run->config->model.norm_eps,
                                      .x = x,
                                      .gamma = run->w[DENSE_NORM],
                                      .y = y,
                                      .mean = kept->gated_mean,
                                      .rstd = kept->gated_rstd};
    return aq_device_layernorm(run->device, &args, run->stream);
}

/* dx, written. */
static enum aq_status dense_norm_gradient(const struct layer_run *run, const float *dy, float *dx)
{
    const struct pooler_slot *kept = run->slot;
    const uint64_t C = run->layer->in.columns;
    const struct aq_layernorm_backward args = {.rows = run->samples,
                                               .C = C,
                                               .dy = dy,
                                               .x = kept->gated,
                                               .gamma = run->w[DENSE_NORM],
                                               .mean = kept->gated_mean,
                                               .rstd = kept->gated_rstd,
                                               .dx = dx,
                                               .dgamma = run->g[DENSE_NORM]};
    AQ_TRY(aq_device_zero(run->device, dx, run->samples * C * sizeof *dx, run->stream));
    return aq_device_layernorm_backward(run->device, &args, run->stream);
}

/* x as `type`: without a probability dropout is a copy. */
static enum aq_status copy(const struct layer_run *run, const float *x, void *y, enum aq_element type)
{
    const struct aq_dropout_apply args = {
        .samples = 1, .sample_elements = dense_rows(run) * run->layer->in.columns, .x = x, .y = y, .y_type = type};
    return aq_device_dropout(run->device, &args, run->stream);
}

/* y = dropout(x), of a row per sample. */
static enum aq_status drop(const struct layer_run *run, const float *x, float *y)
{
    const struct aq_dropout_apply args = {.samples = run->samples,
                                          .sample_elements = run->layer->in.columns,
                                          .x = x,
                                          .y = y,
                                          .dropout = layer_dropout(run, 0)};
    return aq_device_dropout(run->device, &args, run->stream);
}

static uint64_t length_of(const struct layer_run *run, uint64_t sample)
{
    return run->host_lengths ? run->host_lengths[sample] : run->tokens;
}

/* y = the mean of each sample's real rows of x. */
static enum aq_status means(const struct layer_run *run, const float *x, float *y)
{
    const uint64_t C = run->layer->in.columns;
    for (uint64_t i = 0; i < run->samples; i++) {
        const struct aq_row_mean args = {
            .samples = 1, .T = length_of(run, i), .C = C, .x = x + i * run->tokens * C, .y = y + i * C};
        AQ_TRY(aq_device_row_mean(run->device, &args, run->stream));
    }
    return AQ_OK;
}

/* dx, written: 0 in rows of padding. */
static enum aq_status means_gradient(const struct layer_run *run, const float *dy, float *dx)
{
    const uint64_t C = run->layer->in.columns;
    AQ_TRY(aq_device_zero(run->device, dx, run->rows_in * C * sizeof *dx, run->stream));
    for (uint64_t i = 0; i < run->samples; i++) {
        const struct aq_row_mean_backward args = {
            .samples = 1, .T = length_of(run, i), .C = C, .dy = dy + i * C, .dx = dx + i * run->tokens * C};
        AQ_TRY(aq_device_row_mean_backward(run->device, &args, run->stream));
    }
    return AQ_OK;
}

/* p, from the rows of x. */
static enum aq_status pool(const struct layer_run *run, const float *x)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    if (run->config->model.pool_late) return final_norm(run, run->rows_in, x, kept->pooled);
    if (!run->config->model.pool_mean) {
        AQ_TRY(layer_first_rows(run, (float *)(uintptr_t)x, kept->first, false)); /* read only */
        return final_norm(run, run->samples, kept->first, kept->pooled);
    }
    AQ_TRY(final_norm(run, run->rows_in, x, work->normed));
    return means(run, work->normed, kept->pooled);
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const struct linear dense = dense_of(run->layer);
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t C = run->layer->in.columns, count = dense_rows(run) * C;
    const struct linear_to to = {.c = kept->inner, .type = type};
    const struct linear_rows operand = {kept->rounded ? kept->rounded : kept->pooled, 0};
    const struct aq_gelu gelu = {.count = count, .type = type, .x = kept->inner, .other = work->a, .y = kept->gated};
    float *out = y ? y : work->b; /* made again for a backward, which needs mean and rstd */
    AQ_TRY(pool(run, x));
    if (kept->rounded) AQ_TRY(copy(run, kept->pooled, kept->rounded, type));
    AQ_TRY(linear_forward(run, &dense, dense_rows(run), operand, &to));
    AQ_TRY(aq_device_zero(run->device, work->a, count * sizeof *work->a, run->stream));
    AQ_TRY(aq_device_gelu(run->device, &gelu, run->stream));
    if (run->layer->form->dense_norm)
        AQ_TRY(dense_norm(run, kept->gated, out));
    else if (run->config->model.pool_late)
        AQ_TRY(means(run, kept->gated, out));
    else
        AQ_TRY(aq_device_copy(run->device, out, kept->gated, count * sizeof *out, run->stream));
    return y && run->dropped ? drop(run, out, out) : AQ_OK;
}

/* From the gradient of p, in work->a, to that of x. */
static enum aq_status pool_gradient(const struct layer_run *run, const float *x, float *dx)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const uint64_t all = run->rows_in * run->layer->in.columns;
    if (run->config->model.pool_late)
        return final_norm_gradient(run, run->rows_in, work->a, x, dx ? dx : work->unwanted);
    if (!run->config->model.pool_mean) {
        AQ_TRY(final_norm_gradient(run, run->samples, work->a, kept->first, work->b));
        if (!dx) return AQ_OK;
        AQ_TRY(aq_device_zero(run->device, dx, all * sizeof *dx, run->stream));
        return layer_first_rows(run, dx, work->b, true);
    }
    AQ_TRY(means_gradient(run, work->a, work->normed));
    return final_norm_gradient(run, run->rows_in, work->normed, x, dx ? dx : work->unwanted);
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const struct linear dense = dense_of(run->layer);
    const enum aq_element type = stage_type(run->config->precision);
    const bool normed = run->layer->form->dense_norm != NULL, late = run->config->model.pool_late;
    const struct aq_gelu_backward gelu = {.count = dense_rows(run) * run->layer->in.columns,
                                          .type = type,
                                          .x = kept->inner,
                                          .dy = work->dinner,
                                          .dx = work->dinner};
    const struct linear_rows operand = {kept->rounded ? kept->rounded : kept->pooled, 0}, of = {work->dinner, 0};
    const struct linear_to to = {.c = work->a, .type = AQ_F32};
    (void)below;
    AQ_TRY(drop(run, dy, work->a));
    if (normed)
        AQ_TRY(dense_norm_gradient(run, work->a, work->b));
    else if (late)
        AQ_TRY(means_gradient(run, work->a, work->b));
    AQ_TRY(copy(run, normed || late ? work->b : work->a, work->dinner, type));
    AQ_TRY(aq_device_gelu_backward(run->device, &gelu, run->stream));
    AQ_TRY(linear_gradients(run, &dense, dense_rows(run), operand, of));
    if (!linear_goes_on(run->layer, &dense)) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &dense, dense_rows(run), of, &to));
    return pool_gradient(run, x, dx);
}

const struct layer_kind layer_encoder_pooler = {.name = "encoder_pooler",
                                                .fresh = 1u << DENSE | 1u << DENSE_NORM,
                                                .sites = 1,
                                                .state_bytes = sizeof(struct pooler_state),
                                                .slot_bytes = sizeof(struct pooler_slot),
                                                .tensors = tensors,
                                                .place = place,
                                                .flops = flops,
                                                .forward = forward,
                                                .backward = backward};
