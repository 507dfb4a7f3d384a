/*
 * layer_encoder_pooler.c -- what an encoder says of a whole sample, before a classifier (ModernBERT's prediction head;
 * Warner et al. 2024), with D as dropout and norms without bias:
 *
 *     p = norm(x_0), or the mean of norm(x_t) over the sample's real tokens (model.pool_mean)
 *     y = D(norm(gelu(p W)))
 *
 * Of the first token alone its row is taken out first, so that everything is of as many rows as there are samples.
 */
#include "decoder.h"

enum { FINAL_NORM, DENSE, DENSE_NORM };

struct pooler_slot {
    float *first;         /* x_0 of each sample; NULL with means     */
    float *mean, *rstd;   /* of the final norm                       */
    float *pooled;        /* p                                       */
    void *rounded, *inner; /* p as products read it; p W: typed      */
    float *gated, *gated_mean, *gated_rstd; /* gelu(p W), and of its norm */
};

struct pooler_state {
    float *normed;   /* rows of the final norm, or their gradient: with means all */
    float *unwanted; /* the gradient of x, where nothing before trains: with means */
    float *a, *b;    /* a row a sample                                             */
    void *dinner;    /* typed                                                      */
};

static struct linear dense_of(const struct layer *layer)
{
    return linear_of(layer->in.columns, layer->in.columns, true, DENSE, LAYER_NO_TENSOR);
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const uint64_t C = layer->in.columns;
    layer_list_add(list, layer->form->norm, 0, C, 0, 1);
    layer_list_add(list, layer->form->dense, C, C, config->model.init_std, 0);
    layer_list_add(list, layer->form->dense_norm, 0, C, 0, 1);
}

static void place_kept(const struct layer *layer, const struct aq_stage_config *config, struct aq_arena *arena,
                       struct pooler_slot *kept)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t count = (uint64_t)config->B * layer->in.columns, typed = count * aq_element_bytes(type);
    const uint64_t normed = (uint64_t)config->B * (config->model.pool_mean ? layer->in.rows : 1);
    if (!config->model.pool_mean) kept->first = aq_arena_take(arena, count * sizeof(float));
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
    const uint64_t count = (uint64_t)config->B * layer->in.columns;
    struct pooler_state *work = to;
    if (what == LAYER_KEPT) place_kept(layer, config, arena, to);
    if (what != LAYER_WORK) return;
    if (config->model.pool_mean) {
        work->normed = aq_arena_take(arena, count * layer->in.rows * sizeof(float));
        if (!layer->passes) work->unwanted = aq_arena_take(arena, count * layer->in.rows * sizeof(float));
    }
    work->a = aq_arena_take(arena, count * sizeof(float));
    work->b = aq_arena_take(arena, count * sizeof(float));
    work->dinner = aq_arena_take(arena, count * aq_element_bytes(type));
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const struct linear dense = dense_of(layer);
    *out = (struct layer_flops){0};
    linear_flops(layer, &dense, config->B, out);
    out->weights = 0; /* backward does all */
}

static enum aq_status norm(const struct layer_run *run, uint64_t rows, const float *x, uint32_t weight, float *y,
                           float *mean, float *rstd)
{
    const struct aq_layernorm args = {.rows = rows,
                                      .C = run->layer->in.columns,
                                      .epsilon = run->config->model.norm_eps,
                                      .x = x,
                                      .gamma = run->w[weight],
                                      .y = y,
                                      .mean = mean,
                                      .rstd = rstd};
    return aq_device_layernorm(run->device, &args, run->stream);
}

/* dx, written. */
static enum aq_status norm_gradient(const struct layer_run *run, uint64_t rows, const float *dy, const float *x,
                                    uint32_t weight, const float *mean, const float *rstd, float *dx)
{
    const struct aq_layernorm_backward args = {.rows = rows,
                                               .C = run->layer->in.columns,
                                               .dy = dy,
                                               .x = x,
                                               .gamma = run->w[weight],
                                               .mean = mean,
                                               .rstd = rstd,
                                               .dx = dx,
                                               .dgamma = run->g[weight]};
    AQ_TRY(aq_device_zero(run->device, dx, rows * run->layer->in.columns * sizeof *dx, run->stream));
    return aq_device_layernorm_backward(run->device, &args, run->stream);
}

/* x as `type`: without a probability dropout is a copy. */
static struct aq_dropout_apply drop_of(const struct layer_run *run, const float *x, void *y, enum aq_element type,
                                       bool dropped)
{
    return (struct aq_dropout_apply){.samples = run->samples,
                                     .sample_elements = run->layer->in.columns,
                                     .x = x,
                                     .y = y,
                                     .y_type = type,
                                     .dropout = dropped ? layer_dropout(run, 0) : (struct aq_dropout){0}};
}

/* Of each sample the first row of x (back: is that row of x). */
static enum aq_status first_rows(const struct layer_run *run, float *x, float *first, bool back)
{
    const uint64_t C = run->layer->in.columns;
    for (uint64_t i = 0; i < run->samples; i++) {
        float *row = x + i * run->tokens * C, *one = first + i * C;
        AQ_TRY(aq_device_copy(run->device, back ? row : one, back ? one : row, C * sizeof *x, run->stream));
    }
    return AQ_OK;
}

static uint64_t length_of(const struct layer_run *run, uint64_t sample)
{
    return run->host_lengths ? run->host_lengths[sample] : run->tokens;
}

/* p, from the rows of x. */
static enum aq_status pool(const struct layer_run *run, const float *x)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const uint64_t C = run->layer->in.columns;
    if (!run->config->model.pool_mean) {
        AQ_TRY(first_rows(run, (float *)(uintptr_t)x, kept->first, false)); /* read only */
        return norm(run, run->samples, kept->first, FINAL_NORM, kept->pooled, kept->mean, kept->rstd);
    }
    AQ_TRY(norm(run, run->rows_in, x, FINAL_NORM, work->normed, kept->mean, kept->rstd));
    for (uint64_t i = 0; i < run->samples; i++) {
        const struct aq_row_mean args = {.samples = 1,
                                         .T = length_of(run, i),
                                         .C = C,
                                         .x = work->normed + i * run->tokens * C,
                                         .y = kept->pooled + i * C};
        AQ_TRY(aq_device_row_mean(run->device, &args, run->stream));
    }
    return AQ_OK;
}

static enum aq_status forward(const struct layer_run *run, const float *x, float *y)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const struct linear dense = dense_of(run->layer);
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t count = run->samples * run->layer->in.columns;
    const struct linear_to to = {.c = kept->inner, .type = type};
    const struct linear_rows operand = {kept->rounded ? kept->rounded : kept->pooled, 0};
    const struct aq_dropout_apply round = drop_of(run, kept->pooled, kept->rounded, type, false);
    const struct aq_gelu gelu = {.count = count, .type = type, .x = kept->inner, .other = work->a, .y = kept->gated};
    float *out = y ? y : work->b; /* made again for a backward, which wants mean and rstd */
    AQ_TRY(pool(run, x));
    if (kept->rounded) AQ_TRY(aq_device_dropout(run->device, &round, run->stream));
    AQ_TRY(linear_forward(run, &dense, run->samples, operand, &to));
    AQ_TRY(aq_device_zero(run->device, work->a, count * sizeof *work->a, run->stream));
    AQ_TRY(aq_device_gelu(run->device, &gelu, run->stream));
    AQ_TRY(norm(run, run->samples, kept->gated, DENSE_NORM, out, kept->gated_mean, kept->gated_rstd));
    const struct aq_dropout_apply drop = drop_of(run, out, out, AQ_F32, true);
    return y && run->dropped ? aq_device_dropout(run->device, &drop, run->stream) : AQ_OK;
}

/* From the gradient of p, in work->a, to that of x. */
static enum aq_status pool_gradient(const struct layer_run *run, const float *x, float *dx)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const uint64_t C = run->layer->in.columns, all = run->rows_in * C;
    if (!run->config->model.pool_mean) {
        AQ_TRY(norm_gradient(run, run->samples, work->a, kept->first, FINAL_NORM, kept->mean, kept->rstd, work->b));
        if (!dx) return AQ_OK;
        AQ_TRY(aq_device_zero(run->device, dx, all * sizeof *dx, run->stream));
        return first_rows(run, dx, work->b, true);
    }
    AQ_TRY(aq_device_zero(run->device, work->normed, all * sizeof *work->normed, run->stream));
    for (uint64_t i = 0; i < run->samples; i++) {
        const struct aq_row_mean_backward args = {.samples = 1,
                                                  .T = length_of(run, i),
                                                  .C = C,
                                                  .dy = work->a + i * C,
                                                  .dx = work->normed + i * run->tokens * C};
        AQ_TRY(aq_device_row_mean_backward(run->device, &args, run->stream));
    }
    return norm_gradient(run, run->rows_in, work->normed, x, FINAL_NORM, kept->mean, kept->rstd,
                         dx ? dx : work->unwanted);
}

static enum aq_status backward(const struct layer_run *run, const float *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const struct linear dense = dense_of(run->layer);
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t count = run->samples * run->layer->in.columns;
    const struct aq_dropout_apply drop = drop_of(run, dy, work->a, AQ_F32, true);
    const struct aq_dropout_apply round = drop_of(run, work->b, work->dinner, type, false);
    const struct aq_gelu_backward gelu = {
        .count = count, .type = type, .x = kept->inner, .dy = work->dinner, .dx = work->dinner};
    const struct linear_rows operand = {kept->rounded ? kept->rounded : kept->pooled, 0}, of = {work->dinner, 0};
    const struct linear_to to = {.c = work->a, .type = AQ_F32};
    (void)below;
    AQ_TRY(aq_device_dropout(run->device, &drop, run->stream));
    AQ_TRY(norm_gradient(run, run->samples, work->a, kept->gated, DENSE_NORM, kept->gated_mean, kept->gated_rstd,
                         work->b));
    AQ_TRY(aq_device_dropout(run->device, &round, run->stream));
    AQ_TRY(aq_device_gelu_backward(run->device, &gelu, run->stream));
    AQ_TRY(linear_weight_gradient(run, &dense, run->samples, operand, of));
    if (!linear_goes_on(run->layer, &dense)) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &dense, run->samples, of, &to));
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
