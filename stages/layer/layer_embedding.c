/*
 * layer_embedding.c -- tokens, their places if heads do not turn, and their types if the form has some, as rows of
 * tables, added: the first layer of a language model or an encoder.
 *
 * A form may normalize the rows (a layer norm, before dropout), or scale rows of tokens by the root of their columns, a
 * number that is rounded as the products' operands are. The first token has row model.position_first of the
 * table of places.
 *
 * A batch may have the field "types", one for each token; without it all are of type 0.
 *
 * It has no layer below: its backward makes only its tables' gradients, all in the weight half if backward is split. If
 * a head shares the table, tokens' gradients go to separate rows, which are added when the head's gradient is complete
 * (stage_tied.c).
 */
#include "decoder.h"

#include <math.h>
#include <string.h>

enum { TOKEN_TABLE };

/* The tensors behind the first. */
struct embedding_numbers {
    uint32_t positions, types, norm, norm_bias;
};

struct embedding_slot {
    int32_t *tokens, *host_tokens; /* device; pinned: not written again before the stream has copied it */
    float *dy;                     /* split: the gradient of the output                                  */
    float *rows, *mean, *rstd;     /* before the norm                                                    */
    int32_t *places, *host_places; /* tied: the row of each token's gradient                             */
    int32_t *types, *host_types;   /* if the form has some                                               */
};

struct embedding_state {
    float *masked, *drows; /* WORK, with a norm: the gradient behind it, and before it */
};

static struct embedding_numbers numbers_of(const struct decoder_form *form)
{
    uint32_t next = TOKEN_TABLE + 1;
    struct embedding_numbers numbers;
    numbers.positions = form->positions ? next++ : LAYER_NO_TENSOR;
    numbers.types = form->types ? next++ : LAYER_NO_TENSOR;
    numbers.norm = form->rows ? next++ : LAYER_NO_TENSOR;
    numbers.norm_bias = form->rows_bias ? next : LAYER_NO_TENSOR;
    return numbers;
}

static uint64_t position_first(const struct layer_run *run)
{
    return decoder_position_first(run->layer->form, &run->config->model);
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const struct decoder_form *form = layer->form;
    const struct aq_model_config *model = &config->model;
    const float std = model->init_std;
    const uint64_t C = layer->out.columns, places = (uint64_t)model->context + decoder_position_first(form, model);
    layer_list_add(list, form->tokens, model->vocabulary, C, std, 0);
    if (form->positions) layer_list_add(list, form->positions, places, C, std, 0);
    if (form->types) layer_list_add(list, form->types, decoder_types(form, model), C, std, 0);
    if (form->rows) layer_list_add(list, form->rows, 0, C, 0, 1);
    if (form->rows_bias) layer_list_add(list, form->rows_bias, 0, C, 0, 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct embedding_slot *slot = to;
    struct embedding_state *work = to;
    const uint64_t bytes = (uint64_t)config->B * layer->out.rows * sizeof(int32_t);
    const uint64_t all = bytes * layer->out.columns;
    _Static_assert(sizeof(int32_t) == sizeof(float), "rows of both");
    if (what == LAYER_SLOT) slot->tokens = aq_arena_take(arena, bytes);
    if (what == LAYER_SLOT && config->split)
        slot->dy = aq_arena_take(arena, all);
    if (what == LAYER_HOST) slot->host_tokens = aq_arena_take(arena, bytes);
    if (what == LAYER_SLOT && config->tied_rows) slot->places = aq_arena_take(arena, bytes);
    if (what == LAYER_HOST && config->tied_rows) slot->host_places = aq_arena_take(arena, bytes);
    if (what == LAYER_SLOT && layer->form->types) slot->types = aq_arena_take(arena, bytes);
    if (what == LAYER_HOST && layer->form->types) slot->host_types = aq_arena_take(arena, bytes);
    if (!layer->form->rows) return;
    if (what == LAYER_SLOT) {
        slot->rows = aq_arena_take(arena, all);
        slot->mean = aq_arena_take(arena, bytes);
        slot->rstd = aq_arena_take(arena, bytes);
    }
    if (what != LAYER_WORK || config->inference || !layer_learns(layer)) return;
    work->masked = aq_arena_take(arena, all);
    work->drows = aq_arena_take(arena, all);
}

static enum aq_status check(const struct layer *layer, const struct aq_stage_config *config,
                            const struct aq_batch *batch, uint32_t tokens_used)
{
    const uint32_t T = layer->out.rows;
    AQ_TRY(layer_check_field(batch, "tokens", T, tokens_used, 0, config->model.vocabulary));
    if (!layer->form->types || !aq_batch_find(batch, "types", AQ_FIELD_I32, T)) return AQ_OK;
    return layer_check_field(batch, "types", T, tokens_used, 0, decoder_types(layer->form, &config->model));
}

/* Finds the rows to which a backward of these tokens will add their gradients. */
static enum aq_status take_places(const struct layer_run *run)
{
    const struct embedding_slot *slot = run->slot;
    if (!run->train || !layer_tied_rows(run->stage)) return AQ_OK;
    for (uint64_t r = 0; r < run->rows_out; r++) {
        const uint32_t place = layer_tied_row(run->stage, slot->host_tokens[r]);
        if (place == UINT32_MAX)
            return aq_fail(AQ_INVAL, "stage", "a step's batches name more than %u rows of a tied table",
                           run->config->tied_rows);
        slot->host_places[r] = (int32_t)place;
    }
    return aq_device_copy(run->device, slot->places, slot->host_places, run->rows_out * sizeof *slot->places,
                          run->stream);
}

/* (samples, T of the stage) to (samples, T of this forward); beyond `used`, and if there are no values, 0. */
static enum aq_status take_field(const struct layer_run *run, const int32_t *values, uint32_t used, int32_t *host,
                                 int32_t *to)
{
    const uint32_t T = run->config->T;
    for (uint32_t sample = 0; sample < run->samples; sample++)
        for (uint32_t t = 0; t < run->tokens; t++)
            host[(uint64_t)sample * run->tokens + t] =
                values && run->first + t < used ? values[(uint64_t)sample * T + run->first + t] : 0;
    return aq_device_copy(run->device, to, host, run->rows_out * sizeof *to, run->stream);
}

static enum aq_status take(const struct layer_run *run, const struct aq_batch *batch, uint32_t used)
{
    const struct embedding_slot *slot = run->slot;
    const uint32_t T = run->config->T;
    AQ_TRY(take_field(run, aq_batch_find(batch, "tokens", AQ_FIELD_I32, T), used, slot->host_tokens, slot->tokens));
    if (slot->types)
        AQ_TRY(take_field(run, aq_batch_find(batch, "types", AQ_FIELD_I32, T), used, slot->host_types, slot->types));
    return take_places(run);
}

static float scale_of(const struct layer_run *run)
{
    const enum aq_element type = stage_type(run->config->precision);
    const float times = run->config->model.embedding_scale;
    const bool scaled = run->layer->form->scaled;
    float root = scaled ? sqrtf((float)run->layer->out.columns) : times;
    uint32_t bits;
    if (!scaled && (times <= 0.0f || times == 1.0f)) return 0.0f;
    if (type == AQ_F16) return aq_half_to_float(aq_half_from_float(root));
    if (type != AQ_BF16) return root;
    memcpy(&bits, &root, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000; /* to nearest, ties to even */
    memcpy(&root, &bits, sizeof root);
    return root;
}

/* y = dropout(norm(rows)) */
static enum aq_status rows_norm(const struct layer_run *run, float *y)
{
    const struct embedding_slot *slot = run->slot;
    const struct embedding_numbers numbers = numbers_of(run->layer->form);
    const uint64_t C = run->layer->out.columns;
    const struct aq_layernorm norm = {.rows = run->rows_out,
                                      .C = C,
                                      .epsilon = run->config->model.norm_eps,
                                      .x = slot->rows,
                                      .gamma = run->w[numbers.norm],
                                      .beta = run->layer->form->rows_bias ? run->w[numbers.norm_bias] : NULL,
                                      .y = y,
                                      .mean = slot->mean,
                                      .rstd = slot->rstd};
    const struct aq_dropout_apply drop = {
        .samples = run->samples, .sample_elements = run->tokens * C, .x = y, .y = y, .dropout = layer_dropout(run, 0)};
    AQ_TRY(aq_device_layernorm(run->device, &norm, run->stream));
    return run->dropped ? aq_device_dropout(run->device, &drop, run->stream) : AQ_OK;
}

/* rows += those of the types */
static enum aq_status types_add(const struct layer_run *run, uint32_t table, void *rows)
{
    const struct embedding_slot *slot = run->slot;
    const struct aq_embedding args = {.samples = run->samples,
                                      .T = run->tokens,
                                      .C = run->layer->out.columns,
                                      .V = decoder_types(run->layer->form, &run->config->model),
                                      .add = true,
                                      .tokens = slot->types,
                                      .token_table = run->w[table],
                                      .x = rows};
    return aq_device_embedding(run->device, &args, run->stream);
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct embedding_slot *slot = run->slot;
    const struct embedding_numbers numbers = numbers_of(run->layer->form);
    const uint64_t C = run->layer->out.columns, first = run->first + position_first(run);
    const bool normed = run->layer->form->rows != NULL;
    const float *positions = run->layer->form->positions ? run->w[numbers.positions] + first * C : NULL;
    (void)x;
    const struct aq_embedding args = {.samples = run->samples,
                                      .T = run->tokens,
                                      .C = C,
                                      .V = run->config->model.vocabulary,
                                      .tokens = slot->tokens,
                                      .token_table = run->w[TOKEN_TABLE],
                                      .position_table = positions,
                                      .scale = scale_of(run),
                                      .x = normed ? slot->rows : y,
                                      .x_type = normed ? AQ_F32 : layer_stream(run->config),
                                      .starts = run->starts,
                                      .dropout = normed ? (struct aq_dropout){0} : layer_dropout(run, 0)};
    AQ_TRY(aq_device_embedding(run->device, &args, run->stream));
    if (run->layer->form->types) AQ_TRY(types_add(run, numbers.types, args.x));
    return normed ? rows_norm(run, y) : AQ_OK;
}

/* The gradient of the rows before their norm, and the norm's own. */
static enum aq_status rows_gradient(const struct layer_run *run, const float *dy, const float **out)
{
    const struct embedding_slot *slot = run->slot;
    const struct embedding_state *work = run->state;
    const struct embedding_numbers numbers = numbers_of(run->layer->form);
    const uint64_t C = run->layer->out.columns;
    const struct aq_dropout_apply drop = {.samples = run->samples,
                                          .sample_elements = run->tokens * C,
                                          .x = dy,
                                          .y = work->masked,
                                          .dropout = layer_dropout(run, 0)};
    const struct aq_layernorm_backward norm = {.rows = run->rows_out,
                                               .C = C,
                                               .dy = run->dropped ? work->masked : dy,
                                               .x = slot->rows,
                                               .gamma = run->w[numbers.norm],
                                               .mean = slot->mean,
                                               .rstd = slot->rstd,
                                               .dx = work->drows,
                                               .dgamma = run->g[numbers.norm],
                                               .dbeta =
                                                   run->layer->form->rows_bias ? run->g[numbers.norm_bias] : NULL};
    *out = work->drows;
    if (run->dropped) AQ_TRY(aq_device_dropout(run->device, &drop, run->stream));
    AQ_TRY(aq_device_zero(run->device, work->drows, run->rows_out * C * sizeof *dy, run->stream));
    return aq_device_layernorm_backward(run->device, &norm, run->stream);
}

/* Of the types' table: dx is the gradient of the rows before their norm. */
static enum aq_status types_gradient(const struct layer_run *run, const float *dx)
{
    const struct embedding_slot *slot = run->slot;
    const uint32_t table = numbers_of(run->layer->form).types;
    const struct aq_embedding_backward args = {.samples = run->samples,
                                               .T = run->tokens,
                                               .C = run->layer->out.columns,
                                               .V = decoder_types(run->layer->form, &run->config->model),
                                               .tokens = slot->types,
                                               .dx = dx,
                                               .token_gradient = run->g[table]};
    return run->g[table] ? aq_device_embedding_backward(run->device, &args, run->stream) : AQ_OK;
}

static enum aq_status tables_gradient(const struct layer_run *run, const float *dy)
{
    const struct embedding_slot *slot = run->slot;
    const bool normed = run->layer->form->rows != NULL;
    const uint64_t first = position_first(run) * run->layer->out.columns;
    float *tied = layer_tied_rows(run->stage), *places = NULL;
    if (run->layer->form->positions) places = run->g[numbers_of(run->layer->form).positions];
    if (normed) AQ_TRY(rows_gradient(run, dy, &dy));
    if (run->layer->form->types) AQ_TRY(types_gradient(run, dy));
    const struct aq_embedding_backward args = {.samples = run->samples,
                                               .T = run->tokens,
                                               .C = run->layer->out.columns,
                                               .V = run->config->model.vocabulary,
                                               .tokens = tied ? slot->places : slot->tokens,
                                               .dx = dy,
                                               .token_gradient = tied ? tied : run->g[TOKEN_TABLE],
                                               .position_gradient = places ? places + first : NULL,
                                               .scale = scale_of(run),
                                               .starts = run->starts,
                                               .dropout =
                                                   normed ? (struct aq_dropout){0} : layer_dropout(run, 0)};
    return aq_device_embedding_backward(run->device, &args, run->stream);
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct embedding_slot *slot = run->slot;
    const size_t bytes = run->rows_out * run->layer->out.columns * sizeof *dy;
    (void)x;
    (void)dx;
    (void)below;
    return run->split ? aq_device_copy(run->device, slot->dy, dy, bytes, run->stream) : tables_gradient(run, dy);
}

static enum aq_status weights(const struct layer_run *run, const void *x)
{
    const struct embedding_slot *slot = run->slot;
    (void)x;
    return tables_gradient(run, slot->dy);
}

const struct layer_kind layer_embedding = {.name = "embedding",
                                           .extends = true,
                                           .parts = true,
                                           .bf16_stream = true,
                                           .sites = 1,
                                           .state_bytes = sizeof(struct embedding_state),
                                           .slot_bytes = sizeof(struct embedding_slot),
                                           .tensors = tensors,
                                           .place = place,
                                           .check = check,
                                           .take = take,
                                           .forward = forward,
                                           .backward = backward,
                                           .weights = weights};
