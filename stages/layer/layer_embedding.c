/*
 * layer_embedding.c -- tokens, and their places where heads do not turn, as rows of tables, added: the first layer of a
 * language model.
 *
 * A form may normalize the rows (a layer norm without bias, before dropout), or scale rows of tokens by the root of
 * their columns, a number that is rounded as the products' operands are.
 *
 * There is nothing below it: its backward is its tables' gradients alone, and split all of it is the weight half. Where
 * a head shares the table, tokens' gradients go to rows of their own, which are added when the head's gradient is
 * complete (stage_tied.c).
 */
#include "decoder.h"

#include <math.h>
#include <string.h>

enum { TOKEN_TABLE, POSITION_TABLE, ROWS_NORM = POSITION_TABLE /* a form has one of both */ };

struct embedding_slot {
    int32_t *tokens, *host_tokens; /* device; pinned: not written again before the stream has copied it */
    float *dy;                     /* split: the gradient of the output                                  */
    float *rows, *mean, *rstd;     /* before the norm                                                    */
    int32_t *places, *host_places; /* tied: the row of each token's gradient                             */
};

struct embedding_state {
    float *masked, *drows; /* WORK, with a norm: the gradient behind it, and before it */
};

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const float std = config->model.init_std;
    layer_list_add(list, layer->form->tokens, config->model.vocabulary, layer->out.columns, std, 0);
    AQ_ASSERT(!layer->form->positions || !layer->form->rows);
    if (layer->form->positions)
        layer_list_add(list, layer->form->positions, config->model.context, layer->out.columns, std, 0);
    if (layer->form->rows) layer_list_add(list, layer->form->rows, 0, layer->out.columns, 0, 1);
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
    return layer_check_field(batch, "tokens", layer->out.rows, tokens_used, 0, config->model.vocabulary);
}

/* Where a backward of these tokens will add their gradients. */
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

/* (samples, T of the stage) to (samples, T of this forward); tokens beyond `used` become 0. */
static enum aq_status take(const struct layer_run *run, const struct aq_batch *batch, uint32_t used)
{
    const struct embedding_slot *slot = run->slot;
    const uint32_t T = run->config->T;
    const int32_t *tokens = aq_batch_find(batch, "tokens", AQ_FIELD_I32, T);
    for (uint32_t sample = 0; sample < run->samples; sample++)
        for (uint32_t t = 0; t < run->tokens; t++)
            slot->host_tokens[(uint64_t)sample * run->tokens + t] =
                run->first + t < used ? tokens[(uint64_t)sample * T + run->first + t] : 0;
    AQ_TRY(aq_device_copy(run->device, slot->tokens, slot->host_tokens, run->rows_out * sizeof *slot->tokens,
                          run->stream));
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
    const uint64_t C = run->layer->out.columns;
    const struct aq_layernorm norm = {.rows = run->rows_out,
                                      .C = C,
                                      .epsilon = run->config->model.norm_eps,
                                      .x = slot->rows,
                                      .gamma = run->w[ROWS_NORM],
                                      .y = y,
                                      .mean = slot->mean,
                                      .rstd = slot->rstd};
    const struct aq_dropout_apply drop = {
        .samples = run->samples, .sample_elements = run->tokens * C, .x = y, .y = y, .dropout = layer_dropout(run, 0)};
    AQ_TRY(aq_device_layernorm(run->device, &norm, run->stream));
    return run->dropped ? aq_device_dropout(run->device, &drop, run->stream) : AQ_OK;
}

static enum aq_status forward(const struct layer_run *run, const float *x, float *y)
{
    const struct embedding_slot *slot = run->slot;
    const uint64_t C = run->layer->out.columns;
    const bool normed = run->layer->form->rows != NULL;
    const float *positions = run->layer->form->positions ? run->w[POSITION_TABLE] + run->first * C : NULL;
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
                                      .starts = run->starts,
                                      .dropout = normed ? (struct aq_dropout){0} : layer_dropout(run, 0)};
    AQ_TRY(aq_device_embedding(run->device, &args, run->stream));
    return normed ? rows_norm(run, y) : AQ_OK;
}

/* The gradient of the rows before their norm, and the norm's own. */
static enum aq_status rows_gradient(const struct layer_run *run, const float *dy, const float **out)
{
    const struct embedding_slot *slot = run->slot;
    const struct embedding_state *work = run->state;
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
                                               .gamma = run->w[ROWS_NORM],
                                               .mean = slot->mean,
                                               .rstd = slot->rstd,
                                               .dx = work->drows,
                                               .dgamma = run->g[ROWS_NORM]};
    *out = work->drows;
    if (run->dropped) AQ_TRY(aq_device_dropout(run->device, &drop, run->stream));
    AQ_TRY(aq_device_zero(run->device, work->drows, run->rows_out * C * sizeof *dy, run->stream));
    return aq_device_layernorm_backward(run->device, &norm, run->stream);
}

static enum aq_status tables_gradient(const struct layer_run *run, const float *dy)
{
    const struct embedding_slot *slot = run->slot;
    const bool normed = run->layer->form->rows != NULL;
    float *tied = layer_tied_rows(run->stage);
    if (normed) AQ_TRY(rows_gradient(run, dy, &dy));
    const struct aq_embedding_backward args = {.samples = run->samples,
                                               .T = run->tokens,
                                               .C = run->layer->out.columns,
                                               .V = run->config->model.vocabulary,
                                               .tokens = tied ? slot->places : slot->tokens,
                                               .dx = dy,
                                               .token_gradient = tied ? tied : run->g[TOKEN_TABLE],
                                               .position_gradient =
                                                   run->layer->form->positions ? run->g[POSITION_TABLE] : NULL,
                                               .scale = scale_of(run),
                                               .starts = run->starts,
                                               .dropout =
                                                   normed ? (struct aq_dropout){0} : layer_dropout(run, 0)};
    return aq_device_embedding_backward(run->device, &args, run->stream);
}

static enum aq_status backward(const struct layer_run *run, const float *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct embedding_slot *slot = run->slot;
    const size_t bytes = run->rows_out * run->layer->out.columns * sizeof *dy;
    (void)x;
    (void)dx;
    (void)below;
    return run->split ? aq_device_copy(run->device, slot->dy, dy, bytes, run->stream) : tables_gradient(run, dy);
}

static enum aq_status weights(const struct layer_run *run, const float *x)
{
    const struct embedding_slot *slot = run->slot;
    (void)x;
    return tables_gradient(run, slot->dy);
}

const struct layer_kind layer_embedding = {.name = "embedding",
                                           .extends = true,
                                           .parts = true,
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
