/*
 * layer_embedding.c -- tokens, and their places where heads do not turn, as rows of tables, added: the first layer of a
 * language model.
 *
 * A form may scale rows of tokens by the root of their columns, a number that is rounded as the products' operands are.
 *
 * There is nothing below it: its backward is its tables' gradients alone, and split all of it is the weight half. So a
 * head that shares the table is added first in both.
 */
#include "decoder.h"

#include <math.h>
#include <string.h>

enum { TOKEN_TABLE, POSITION_TABLE };

struct embedding_slot {
    int32_t *tokens, *host_tokens; /* device; pinned: not written again before the stream has copied it */
    float *dy;                     /* split: the gradient of the output                                  */
};

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const float std = config->model.init_std;
    layer_list_add(list, layer->form->tokens, config->model.vocabulary, layer->out.columns, std, 0);
    if (layer->form->positions)
        layer_list_add(list, layer->form->positions, config->model.context, layer->out.columns, std, 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct embedding_slot *slot = to;
    const uint64_t bytes = (uint64_t)config->B * layer->out.rows * sizeof(int32_t);
    if (what == LAYER_SLOT) slot->tokens = aq_arena_take(arena, bytes);
    if (what == LAYER_SLOT && config->split)
        slot->dy = aq_arena_take(arena, (uint64_t)config->B * layer->out.rows * layer->out.columns * sizeof(float));
    if (what == LAYER_HOST) slot->host_tokens = aq_arena_take(arena, bytes);
}

static enum aq_status check(const struct layer *layer, const struct aq_stage_config *config,
                            const struct aq_batch *batch, uint32_t tokens_used)
{
    return layer_check_field(batch, "tokens", layer->out.rows, tokens_used, 0, config->model.vocabulary);
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
    return aq_device_copy(run->device, slot->tokens, slot->host_tokens, run->rows_out * sizeof *slot->tokens,
                          run->stream);
}

static float scale_of(const struct layer_run *run)
{
    const enum aq_element type = stage_type(run->config->precision);
    float root = sqrtf((float)run->layer->out.columns);
    uint32_t bits;
    if (!run->layer->form->scaled) return 0.0f;
    if (type == AQ_F16) return aq_half_to_float(aq_half_from_float(root));
    if (type != AQ_BF16) return root;
    memcpy(&bits, &root, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000; /* to nearest, ties to even */
    memcpy(&root, &bits, sizeof root);
    return root;
}

static enum aq_status forward(const struct layer_run *run, const float *x, float *y)
{
    const struct embedding_slot *slot = run->slot;
    const uint64_t C = run->layer->out.columns;
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
                                      .x = y,
                                      .starts = run->starts,
                                      .dropout = layer_dropout(run, 0)};
    return aq_device_embedding(run->device, &args, run->stream);
}

static enum aq_status tables_gradient(const struct layer_run *run, const float *dy)
{
    const struct embedding_slot *slot = run->slot;
    const struct aq_embedding_backward args = {.samples = run->samples,
                                               .T = run->tokens,
                                               .C = run->layer->out.columns,
                                               .V = run->config->model.vocabulary,
                                               .tokens = slot->tokens,
                                               .dx = dy,
                                               .token_gradient = run->g[TOKEN_TABLE],
                                               .position_gradient =
                                                   run->layer->form->positions ? run->g[POSITION_TABLE] : NULL,
                                               .scale = scale_of(run),
                                               .starts = run->starts,
                                               .dropout = layer_dropout(run, 0)};
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
                                           .slot_bytes = sizeof(struct embedding_slot),
                                           .tensors = tensors,
                                           .place = place,
                                           .check = check,
                                           .take = take,
                                           .forward = forward,
                                           .backward = backward,
                                           .weights = weights};
