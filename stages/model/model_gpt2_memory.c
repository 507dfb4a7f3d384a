/*
 * model_gpt2_memory.c -- where every buffer of a GPT-2 stage lies: measured and placed by the same code.
 *
 * A slot keeps, for each block, its input and what its backward reads. With recomputation, and for inference, one such
 * set in the workspace serves all blocks; with recomputation a slot keeps the blocks' inputs, for inference two buffers
 * in turn. Logits exist for a chunk of rows at a time and belong to the workspace: the gradient of the last chunk made
 * is used where backward follows at once; else backward makes them again (model_gpt2_backward.c). Of several chunks all
 * gradients are kept, in the products' type: the logits' product, a tenth of a small model's work, is then not made
 * twice, and the head's weights get theirs in one. With recomputation memory counts more than that.
 */
#include "model_gpt2.h"

/* Logits of a chunk take at most this much; a micro-batch of 1024 tokens of GPT-2's vocabulary is one chunk. */
enum { LOGITS_BYTES_MAX = 256 << 20 };

struct gpt2_shape gpt2_shape(const struct aq_stage_config *config)
{
    const struct aq_model_config *model = &config->model;
    struct gpt2_shape shape = {.first = config->layer_first == 0,
                               .last = config->layer_end == model->blocks + 2,
                               .inference = config->inference,
                               .shared = config->recompute || config->inference,
                               .B = config->B,
                               .T = config->T,
                               .C = model->channels,
                               .H = model->heads,
                               .V = model->vocabulary,
                               .rows = (uint64_t)config->B * config->T,
                               .type = stage_type(config->precision)};
    const uint32_t first = shape.first ? 1 : config->layer_first;
    const uint32_t end = shape.last ? config->layer_end - 1 : config->layer_end;
    shape.first_block = first - 1;
    shape.blocks = end > first ? end - first : 0;
    /* Rows of logits start on cache lines; a chunk is a multiple of 64 rows where it is not all of them. */
    shape.head_stride = (shape.V + 31) / 32 * 32;
    shape.head_rows = LOGITS_BYTES_MAX / (shape.head_stride * sizeof(float)) / 64 * 64;
    if (shape.head_rows == 0) shape.head_rows = 64;
    if (config->logits_rows) shape.head_rows = config->logits_rows;
    if (shape.head_rows > shape.rows) shape.head_rows = shape.rows;
    shape.keeps_gradient = shape.last && !shape.shared && shape.rows > shape.head_rows;
    return shape;
}

static void place_kept(const struct gpt2_shape *shape, struct aq_arena *arena, struct gpt2_kept *kept)
{
    const uint64_t N = shape->rows * shape->C, typed = aq_element_bytes(shape->type);
    kept->norm1 = aq_arena_take(arena, N * typed);
    kept->qkv = aq_arena_take(arena, 3 * N * typed);
    kept->attention = aq_arena_take(arena, N * typed);
    kept->middle = aq_arena_take(arena, N * sizeof(float));
    kept->norm2 = aq_arena_take(arena, N * typed);
    kept->before_gelu = aq_arena_take(arena, 4 * N * typed);
    kept->after_gelu = aq_arena_take(arena, 4 * N * typed);
    kept->mean1 = aq_arena_take(arena, shape->rows * sizeof(float));
    kept->rstd1 = aq_arena_take(arena, shape->rows * sizeof(float));
    kept->mean2 = aq_arena_take(arena, shape->rows * sizeof(float));
    kept->rstd2 = aq_arena_take(arena, shape->rows * sizeof(float));
    kept->lse = aq_arena_take(arena, shape->rows * shape->H * sizeof(float));
}

static uint64_t line_bytes(uint64_t bytes)
{
    return (bytes + AQ_ALIGN - 1) / AQ_ALIGN * AQ_ALIGN;
}

void gpt2_place_slot(const struct gpt2_shape *shape, struct aq_arena *arena, struct gpt2_slot *slot,
                     const struct gpt2_kept *shared)
{
    struct gpt2_slot nowhere = {0};
    struct gpt2_slot *to = slot ? slot : &nowhere;
    const uint64_t bytes = shape->rows * shape->C * sizeof(float);
    for (uint32_t i = 0; i <= shape->blocks; i++) {
        float *x = shape->inference && i >= 2 ? (slot ? slot->x[i - 2] : NULL) : aq_arena_take(arena, bytes);
        if (slot) slot->x[i] = x;
    }
    for (uint32_t i = 0; i < shape->blocks; i++) {
        struct gpt2_kept kept = {0};
        if (shape->shared) {
            if (shared) kept = *shared;
        } else {
            place_kept(shape, arena, &kept);
        }
        if (slot) slot->kept[i] = kept;
    }
    const uint64_t sites = (uint64_t)(shape->blocks + 1) * GPT2_SITES;
    to->keys = aq_arena_take(arena, sites * shape->B * sizeof *to->keys);
    if (shape->first) to->tokens = aq_arena_take(arena, shape->rows * sizeof *to->tokens);
    if (shape->last) {
        to->norm = aq_arena_take(arena, shape->rows * shape->C * aq_element_bytes(shape->type));
        to->mean = aq_arena_take(arena, shape->rows * sizeof(float));
        to->rstd = aq_arena_take(arena, shape->rows * sizeof(float));
        to->losses = aq_arena_take(arena, shape->rows * sizeof(float));
        to->targets = aq_arena_take(arena, shape->rows * sizeof *to->targets);
    }
}

void gpt2_place_host(const struct gpt2_shape *shape, struct aq_arena *arena, struct gpt2_slot *slot)
{
    struct gpt2_slot nowhere = {0};
    struct gpt2_slot *to = slot ? slot : &nowhere;
    const uint64_t sites = (uint64_t)(shape->blocks + 1) * GPT2_SITES;
    to->host_keys = aq_arena_take(arena, sites * shape->B * sizeof *to->host_keys);
    if (shape->first) to->host_tokens = aq_arena_take(arena, shape->rows * sizeof *to->host_tokens);
    if (!shape->last) return;
    to->host_targets = aq_arena_take(arena, shape->rows * sizeof *to->host_targets);
    to->host_losses = aq_arena_take(arena, shape->rows * sizeof *to->host_losses);
}

void gpt2_place_work(const struct gpt2_shape *shape, struct aq_arena *arena, struct gpt2_work *work,
                     struct gpt2_kept *shared)
{
    const uint64_t N = shape->rows * shape->C, typed = aq_element_bytes(shape->type);
    if (shape->shared && shape->blocks) place_kept(shape, arena, shared);
    if (shape->last) work->logits = aq_arena_take(arena, shape->head_rows * shape->head_stride * sizeof(float));
    if (shape->inference) return;
    work->dlogits = shape->keeps_gradient ? aq_arena_take(arena, shape->rows * shape->head_stride * typed) : NULL;
    work->dx = aq_arena_take(arena, N * sizeof(float));
    if (shape->last || shape->blocks) work->dnorm = aq_arena_take(arena, N * sizeof(float));
    if (shape->blocks == 0) return;
    work->dout = aq_arena_take(arena, N * typed);
    work->dattention = aq_arena_take(arena, N * typed);
    work->du = aq_arena_take(arena, 4 * N * typed);
    work->dqkv = aq_arena_take(arena, 3 * N * sizeof(float));
    if (shape->type != AQ_F32) work->dqkv_rounded = aq_arena_take(arena, 3 * N * sizeof *work->dqkv_rounded);
}

void gpt2_measure(const struct aq_stage_config *config, struct stage_memory *out)
{
    const struct gpt2_shape shape = gpt2_shape(config);
    struct gpt2_work work;
    struct gpt2_kept shared = {0};
    struct aq_arena slot = {0}, workspace = {0};
    gpt2_place_slot(&shape, &slot, NULL, &shared);
    gpt2_place_work(&shape, &workspace, &work, &shared);
    const double rows = (double)shape.rows, C = (double)shape.C;
    const double products = 24.0 * rows * C * C, attention = 2.0 * rows * (double)shape.T * C; /* half of T x T */
    double forward = (double)shape.blocks * (products + attention);
    const double head = shape.last ? 2.0 * rows * C * (double)shape.V : 0.0;
    *out = (struct stage_memory){.slot_bytes = line_bytes(slot.used),
                                 .workspace_bytes = line_bytes(workspace.used),
                                 .flops_forward = forward + head};
    if (config->inference) return;
    /*
     * Two products for each of forward's, the scores of attention once more, and forward again where it was not kept.
     */
    out->flops_backward = (double)shape.blocks * (2.0 * products + 2.5 * attention) + 2.0 * head;
    if (config->recompute) out->flops_backward += forward;
}
