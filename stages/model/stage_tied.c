/*
 * stage_tied.c -- a head that is the embedding's table: the embedding's part of the table's gradient, kept as the rows
 * that the batches of a step name, until the head's part is complete. See aq_stage_tied_floats in stages/stage.h.
 *
 * One stage and several do the same additions in the same order: all micro-batches of the head, then one row for each
 * token that the step's batches name, itself the sum over all micro-batches of the embedding.
 */
#include <string.h>

#include "stage_model.h"

void stage_tied_work(const struct stage_tied_place *of, struct aq_arena *arena, struct stage_tied *tied)
{
    for (uint32_t v = 0; v < of->versions; v++) {
        float *rows = aq_arena_take(arena, of->rows * of->columns * sizeof *rows);
        if (tied) tied->rows[v] = rows;
    }
    int32_t *named = aq_arena_take(arena, of->rows * sizeof *named);
    if (tied) tied->named = named;
}

void stage_tied_host(const struct stage_tied_place *of, struct aq_arena *arena, struct stage_tied *tied)
{
    for (uint32_t v = 0; v < of->versions; v++) {
        int32_t *tokens = aq_arena_take(arena, of->rows * sizeof *tokens);
        uint32_t *row_of = aq_arena_take(arena, of->vocabulary * sizeof *row_of);
        if (!tied) continue;
        tied->tokens[v] = tokens;
        tied->row_of[v] = row_of;
        memset(row_of, 0, of->vocabulary * sizeof *row_of);
    }
}

uint32_t layer_tied_row(struct aq_stage *stage, int32_t token)
{
    struct stage_tied *tied = &stage->tied;
    uint32_t *row = &tied->row_of[stage->gradient][token], *count = &tied->count[stage->gradient];
    if (*row == 0) {
        if (*count == stage->config.tied_rows) return UINT32_MAX;
        tied->tokens[stage->gradient][*count] = token;
        *row = ++*count;
    }
    return *row - 1;
}

float *layer_tied_rows(const struct aq_stage *stage)
{
    return stage->tied.rows[stage->gradient];
}

static uint64_t columns_of(const struct aq_stage *stage)
{
    return stage->size.tied / stage->config.model.vocabulary;
}

enum aq_status stage_tied_clear(struct aq_stage *stage, struct aq_stream *stream)
{
    struct stage_tied *tied = &stage->tied;
    const uint32_t set = stage->gradient, count = tied->count[set];
    if (count == 0) return AQ_OK;
    for (uint32_t i = 0; i < count; i++)
        tied->row_of[set][tied->tokens[set][i]] = 0;
    tied->count[set] = 0;
    return aq_device_zero(stage->device, tied->rows[set], count * columns_of(stage) * sizeof(float), stream);
}

uint64_t aq_stage_tied_floats(const struct aq_stage *stage)
{
    return stage->size.tied;
}

float *aq_stage_tied_values(struct aq_stage *stage, bool previous)
{
    return previous ? stage->previous + (stage->tied.table - stage->parameters) : stage->tied.table;
}

float *aq_stage_tied_gradient(struct aq_stage *stage)
{
    return stage->tied.gradient[stage->gradient];
}

float *aq_stage_tied_residual(struct aq_stage *stage)
{
    return stage->tied.residual;
}

uint32_t aq_stage_tied_count(const struct aq_stage *stage)
{
    return stage->tied.count[stage->gradient];
}

enum aq_status aq_stage_tied_get(struct aq_stage *stage, int32_t *tokens, float *rows, struct aq_stream *stream)
{
    const struct stage_tied *tied = &stage->tied;
    const uint32_t set = stage->gradient, count = tied->count[set];
    memcpy(tokens, tied->tokens[set], count * sizeof *tokens);
    AQ_TRY(aq_device_copy(stage->device, rows, tied->rows[set], count * columns_of(stage) * sizeof *rows, stream));
    return aq_device_stream_sync(stage->device, stream);
}

enum aq_status aq_stage_tied_put(struct aq_stage *stage, const int32_t *tokens, const float *rows, uint32_t count,
                                 struct aq_stream *stream)
{
    struct stage_tied *tied = &stage->tied;
    const uint32_t set = stage->gradient;
    bool right = count <= stage->config.tied_rows;
    for (uint32_t i = 0; right && i < count; i++)
        right = tokens[i] >= 0 && (uint32_t)tokens[i] < stage->config.model.vocabulary;
    if (!right)
        return aq_fail(AQ_PROTO, "stage", "%u rows of a tied table came: at most %u, of tokens below %u", count,
                       stage->config.tied_rows, stage->config.model.vocabulary);
    memcpy(tied->tokens[set], tokens, count * sizeof *tokens);
    tied->count[set] = count;
    AQ_TRY(aq_device_copy(stage->device, tied->rows[set], rows, count * columns_of(stage) * sizeof *rows, stream));
    return aq_device_stream_sync(stage->device, stream);
}

enum aq_status aq_stage_tied_scale(struct aq_stage *stage, float factor, struct aq_stream *stream)
{
    const struct stage_tied *tied = &stage->tied;
    const struct aq_scale rows = {
        .x = layer_tied_rows(stage), .count = tied->count[stage->gradient] * columns_of(stage), .factor = factor};
    const struct aq_scale copy = {
        .x = aq_stage_tied_gradient(stage), .count = stage->size.copied, .factor = factor}; /* none of a mirror */
    if (stage->size.tied == 0) return AQ_OK;
    if (rows.count > 0) AQ_TRY(aq_device_scale(stage->device, &rows, stream));
    return copy.count ? aq_device_scale(stage->device, &copy, stream) : AQ_OK;
}

enum aq_status aq_stage_tied_fold(struct aq_stage *stage, struct aq_stream *stream)
{
    const struct stage_tied *tied = &stage->tied;
    const uint32_t set = stage->gradient, count = tied->count[set];
    if (count == 0) return AQ_OK;
    const struct aq_embedding_backward add = {.samples = 1,
                                              .T = count,
                                              .C = columns_of(stage),
                                              .V = stage->config.model.vocabulary,
                                              .tokens = tied->named,
                                              .dx = tied->rows[set],
                                              .token_gradient = tied->gradient[set]};
    AQ_TRY(aq_device_copy(stage->device, tied->named, tied->tokens[set], count * sizeof *tied->named, stream));
    AQ_TRY(aq_device_embedding_backward(stage->device, &add, stream));
    AQ_TRY(stage_tied_clear(stage, stream));
    return aq_device_stream_sync(stage->device, stream);
}

enum aq_status stage_tied_open(struct aq_stage *stage)
{
    struct stage_tied *tied = &stage->tied;
    char table[AQ_TENSOR_NAME_MAX];
    const struct aq_tensor_info *found = NULL;
    if (stage->size.tied == 0) return AQ_OK;
    AQ_ASSERT(aq_model_ties(&stage->config.model, stage->config.T, stage->config.freeze, &stage->config.lora, table));
    for (uint32_t i = 0; i < stage->saved_count && !found; i++) {
        const struct aq_tensor_info *info = &stage->tensors[i].info;
        if (info->copy || info->mirror || strcmp(info->name, table) == 0) found = info;
    }
    for (uint32_t i = 0; i < stage->saved_count; i++)
        if (strcmp(stage->tensors[i].info.name, STAGE_RESIDUAL) == 0)
            tied->residual = stage->parameters + stage->tensors[i].info.offset;
    AQ_ASSERT(found && found->count == stage->size.tied);
    AQ_ASSERT(!found->copy || found->offset == stage->size.parameters); /* gradients and versions reach so far */
    tied->table = stage->parameters + found->offset;
    for (uint32_t v = 0; v < STAGE_VERSIONS && stage->gradients[v]; v++)
        tied->gradient[v] = stage->gradients[v] + found->offset;
    for (uint32_t v = 0; v < STAGE_VERSIONS && tied->rows[v]; v++)
        AQ_TRY(aq_device_zero(stage->device, tied->rows[v],
                              stage->config.tied_rows * columns_of(stage) * sizeof(float), NULL));
    return aq_device_stream_sync(stage->device, NULL);
}
