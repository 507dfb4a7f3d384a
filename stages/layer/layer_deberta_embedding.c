/*
 * layer_deberta_embedding.c -- words, and token types where the model has them, as rows of tables, projected where the
 * tables are narrower than the model, normalized, dropped: DeBERTa's first layer. There are no absolute positions.
 *
 * The table of relative positions and its layer norm are this layer's tensors, too: the blocks read them.
 *
 * A batch may have the field "types", one for each token; without it all are of type 0.
 */
#include "deberta.h"

#include <string.h>

enum { SHARED = DEBERTA_SHARED, WORDS = SHARED, TYPES }; /* TYPES only where there are some */

struct embedding_slot {
    int32_t *tokens, *host_tokens; /* device; pinned: not written again before the stream has copied it */
    int32_t *types, *host_types;
    float *words;  /* rows of the tables, added            */
    void *rounded; /* the same as products read them       */
    float *x;      /* projected; `words` where it is not   */
    float *mean, *rstd;
};

struct embedding_state {
    float *dy, *dx, *dwords;
    void *drounded;
};

/* Tensors behind the words. */
struct numbers {
    uint32_t types, projection, norm;
};

static struct numbers numbers_of(const struct aq_stage_config *config)
{
    const bool types = config->model.types > 0;
    const bool projected = deberta_embedding(&config->model) != config->model.channels;
    const uint32_t first = WORDS + 1;
    return (struct numbers){.types = types ? first : LAYER_NO_TENSOR,
                            .projection = projected ? first + types : LAYER_NO_TENSOR,
                            .norm = first + types + projected};
}

void deberta_shared(const struct aq_stage_config *config, struct deberta_shared out[DEBERTA_SHARED])
{
    const struct aq_model_config *model = &config->model;
    const struct deberta_used used = deberta_used(config);
    const uint64_t C = model->channels;
    out[DEBERTA_TABLE] = (struct deberta_shared){.name = "encoder.rel_embeddings.weight",
                                                 .own = "rel_embeddings.weight",
                                                 .rows = 2 * (uint64_t)deberta_span(model),
                                                 .std = model->init_std,
                                                 .first = used.first * C,
                                                 .count = used.count * C};
    out[DEBERTA_TABLE_NORM] = (struct deberta_shared){.name = "encoder.LayerNorm.weight",
                                                      .own = "rel_embeddings.LayerNorm.weight",
                                                      .value = 1,
                                                      .count = C};
    out[DEBERTA_TABLE_NORM_BIAS] = (struct deberta_shared){
        .name = "encoder.LayerNorm.bias", .own = "rel_embeddings.LayerNorm.bias", .count = C};
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const uint64_t C = layer->out.columns, E = deberta_embedding(&config->model);
    const float std = config->model.init_std;
    struct deberta_shared shared[DEBERTA_SHARED];
    deberta_shared(config, shared);
    for (uint32_t i = 0; i < DEBERTA_SHARED; i++) {
        layer_list_shared(list, shared[i].first, shared[i].count);
        layer_list_add(list, shared[i].name, shared[i].rows, C, shared[i].std, shared[i].value);
    }
    layer_list_add(list, "embeddings.word_embeddings.weight", config->model.vocabulary, E, std, 0);
    if (config->model.types)
        layer_list_add(list, "embeddings.token_type_embeddings.weight", config->model.types, E, std, 0);
    if (E != C) layer_list_add(list, "embeddings.embed_proj.weight", C, E, std, 0);
    layer_list_add(list, "embeddings.LayerNorm.weight", 0, C, 0, 1);
    layer_list_add(list, "embeddings.LayerNorm.bias", 0, C, 0, 0);
}

static struct linear projection_of(const struct layer *layer, const struct aq_stage_config *config)
{
    return linear_of(deberta_embedding(&config->model), layer->out.columns, true, numbers_of(config).projection,
                     LAYER_NO_TENSOR);
}

static void place_kept(const struct layer *layer, const struct aq_stage_config *config, struct aq_arena *arena,
                       struct embedding_slot *slot)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t rows = (uint64_t)config->B * layer->out.rows, C = layer->out.columns;
    const uint64_t E = deberta_embedding(&config->model);
    slot->words = aq_arena_take(arena, rows * E * sizeof(float));
    slot->x = slot->words;
    if (E != C && type != AQ_F32) slot->rounded = aq_arena_take(arena, rows * E * aq_element_bytes(type));
    if (E != C) slot->x = aq_arena_take(arena, rows * C * sizeof(float));
    slot->mean = aq_arena_take(arena, rows * sizeof(float));
    slot->rstd = aq_arena_take(arena, rows * sizeof(float));
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t rows = (uint64_t)config->B * layer->out.rows, C = layer->out.columns;
    const uint64_t E = deberta_embedding(&config->model), bytes = rows * sizeof(int32_t);
    struct embedding_slot *slot = to;
    struct embedding_state *work = to;
    if (what == LAYER_KEPT) place_kept(layer, config, arena, slot);
    if (what == LAYER_SLOT) {
        slot->tokens = aq_arena_take(arena, bytes);
        slot->types = aq_arena_take(arena, config->model.types ? bytes : 0);
    }
    if (what == LAYER_HOST) {
        slot->host_tokens = aq_arena_take(arena, bytes);
        slot->host_types = aq_arena_take(arena, config->model.types ? bytes : 0);
    }
    if (what != LAYER_WORK || config->inference || !layer_learns(layer)) return;
    work->dy = aq_arena_take(arena, rows * C * sizeof(float));
    work->dx = aq_arena_take(arena, rows * C * sizeof(float));
    work->dwords = work->dx;
    if (E == C) return;
    work->dwords = aq_arena_take(arena, rows * E * sizeof(float));
    if (type != AQ_F32) work->drounded = aq_arena_take(arena, rows * C * aq_element_bytes(type));
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const struct linear projection = projection_of(layer, config);
    *out = (struct layer_flops){0};
    if (projection.parts[0].weight != LAYER_NO_TENSOR)
        linear_flops(layer, &projection, (double)config->B * layer->out.rows, out);
}

static enum aq_status check(const struct layer *layer, const struct aq_stage_config *config,
                            const struct aq_batch *batch, uint32_t used)
{
    const uint32_t T = layer->out.rows, types = config->model.types;
    AQ_TRY(layer_check_field(batch, "tokens", T, used, 0, config->model.vocabulary));
    if (!types || !aq_batch_find(batch, "types", AQ_FIELD_I32, T)) return AQ_OK;
    return layer_check_field(batch, "types", T, used, 0, types);
}

/* (samples, T of the stage) to (samples, T of this forward); beyond `used`, and without values, 0. */
static enum aq_status field_take(const struct layer_run *run, const int32_t *values, uint32_t used, int32_t *host,
                                 int32_t *to)
{
    const uint32_t T = run->config->T;
    for (uint32_t sample = 0; sample < run->samples; sample++)
        for (uint32_t t = 0; t < run->tokens; t++)
            host[(uint64_t)sample * run->tokens + t] = values && t < used ? values[(uint64_t)sample * T + t] : 0;
    return aq_device_copy(run->device, to, host, run->rows_out * sizeof *to, run->stream);
}

static enum aq_status take(const struct layer_run *run, const struct aq_batch *batch, uint32_t used)
{
    const struct embedding_slot *slot = run->slot;
    const uint32_t T = run->config->T;
    const int32_t *tokens = aq_batch_find(batch, "tokens", AQ_FIELD_I32, T);
    AQ_TRY(field_take(run, tokens, used, slot->host_tokens, slot->tokens));
    if (!run->config->model.types) return AQ_OK;
    const int32_t *types = aq_batch_find(batch, "types", AQ_FIELD_I32, T);
    return field_take(run, types, used, slot->host_types, slot->types);
}

static enum aq_status rows_take(const struct layer_run *run, const int32_t *numbers, uint64_t V, uint32_t table,
                                bool add)
{
    const struct embedding_slot *slot = run->slot;
    const struct aq_embedding args = {.samples = run->samples,
                                      .T = run->tokens,
                                      .C = deberta_embedding(&run->config->model),
                                      .V = V,
                                      .add = add,
                                      .tokens = numbers,
                                      .token_table = run->w[table],
                                      .x = slot->words};
    return aq_device_embedding(run->device, &args, run->stream);
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct embedding_slot *slot = run->slot;
    const struct aq_model_config *model = &run->config->model;
    const struct numbers numbers = numbers_of(run->config);
    const uint64_t rows = run->rows_out, C = run->layer->out.columns;
    (void)x;
    AQ_TRY(rows_take(run, slot->tokens, model->vocabulary, WORDS, false));
    if (numbers.types != LAYER_NO_TENSOR)
        AQ_TRY(rows_take(run, slot->types, model->types, numbers.types, true));
    if (numbers.projection != LAYER_NO_TENSOR) {
        const struct linear projection = projection_of(run->layer, run->config);
        const struct linear_to to = {.c = slot->x, .type = AQ_F32};
        struct linear_rows from = {0};
        AQ_TRY(deberta_operand(run, rows * projection.in, slot->words, slot->rounded, &from.at));
        AQ_TRY(linear_forward(run, &projection, rows, from, &to));
    }
    const struct embedding_state *work = run->state;
    float *normed = y ? y : work->dx; /* made again for a backward, which needs mean and rstd */
    AQ_TRY(deberta_norm(run, rows, slot->x, numbers.norm, normed, AQ_F32, slot->mean, slot->rstd));
    const struct aq_dropout_apply drop = {
        .samples = run->samples, .sample_elements = run->tokens * C, .x = y, .y = y, .dropout = layer_dropout(run, 0)};
    return y && run->dropped ? aq_device_dropout(run->device, &drop, run->stream) : AQ_OK;
}

static enum aq_status table_gradient(const struct layer_run *run, const int32_t *numbers, uint64_t V, uint32_t table)
{
    const struct embedding_state *work = run->state;
    const struct aq_embedding_backward args = {.samples = run->samples,
                                               .T = run->tokens,
                                               .C = deberta_embedding(&run->config->model),
                                               .V = V,
                                               .tokens = numbers,
                                               .dx = work->dwords,
                                               .token_gradient = run->g[table]};
    return run->g[table] ? aq_device_embedding_backward(run->device, &args, run->stream) : AQ_OK;
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct embedding_slot *slot = run->slot;
    const struct embedding_state *work = run->state;
    const struct numbers numbers = numbers_of(run->config);
    const uint64_t rows = run->rows_out, C = run->layer->out.columns;
    const struct aq_dropout_apply drop = {.samples = run->samples,
                                          .sample_elements = run->tokens * C,
                                          .x = dy,
                                          .y = work->dy,
                                          .dropout = layer_dropout(run, 0)};
    (void)x;
    (void)dx;
    (void)below;
    if (run->dropped) AQ_TRY(aq_device_dropout(run->device, &drop, run->stream));
    AQ_TRY(deberta_norm_gradient(run, rows, run->dropped ? work->dy : dy, slot->x, numbers.norm, slot->mean, slot->rstd,
                                 work->dx));
    if (numbers.projection != LAYER_NO_TENSOR) {
        const struct linear projection = projection_of(run->layer, run->config);
        const struct linear_to to = {.c = work->dwords, .type = AQ_F32};
        struct linear_rows of = {0};
        const struct linear_rows from = {slot->rounded ? slot->rounded : slot->words, 0};
        AQ_TRY(deberta_operand(run, rows * C, work->dx, work->drounded, &of.at));
        AQ_TRY(linear_weight_gradient(run, &projection, rows, from, of));
        AQ_TRY(linear_input_gradient(run, &projection, rows, of, &to));
    }
    if (numbers.types != LAYER_NO_TENSOR)
        AQ_TRY(table_gradient(run, slot->types, run->config->model.types, numbers.types));
    return table_gradient(run, slot->tokens, run->config->model.vocabulary, WORDS);
}

const struct layer_kind layer_deberta_embedding = {.name = "deberta_embedding",
                                                   .sites = 1,
                                                   .state_bytes = sizeof(struct embedding_state),
                                                   .slot_bytes = sizeof(struct embedding_slot),
                                                   .tensors = tensors,
                                                   .place = place,
                                                   .flops = flops,
                                                   .check = check,
                                                   .take = take,
                                                   .forward = forward,
                                                   .backward = backward};
