/*
 * model_gpt2_forward.c -- tokens or activations in, activations or losses out; a slot keeps what backward will read.
 */
#include "model_gpt2.h"

#include <string.h>

static const float EPSILON = 1e-5f; /* of every layer norm, as published */

struct aq_dropout gpt2_dropout(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint32_t layer,
                               enum gpt2_site site)
{
    const struct aq_stage_config *config = &gpt2->stage->config;
    if (!slot->dropped) return (struct aq_dropout){0};
    const uint64_t row = (uint64_t)layer * GPT2_SITES + site;
    return (struct aq_dropout){.probability = config->model.dropout, .keys = slot->keys + row * config->B};
}

/*
 * The keys of all masks of this micro-batch. They hold seed, step, the model's layer (not the stage's), site and
 * sample, so that a mask is the same wherever the model is cut and in whatever micro-batch the sample comes.
 */
static enum aq_status keys_make(const struct gpt2 *gpt2, struct gpt2_slot *slot, const struct aq_stage_input *input,
                                struct aq_stream *stream)
{
    const uint32_t B = gpt2->stage->config.B;
    for (uint32_t layer = 0; layer <= gpt2->blocks; layer++) {
        /* Row 0 is the embedding's, the others are the blocks'. */
        const uint64_t number = layer == 0 ? 0 : gpt2->first_block + layer;
        for (uint32_t site = 0; site < GPT2_SITES; site++)
            for (uint32_t sample = 0; sample < input->samples; sample++)
                slot->host_keys[((uint64_t)layer * GPT2_SITES + site) * B + sample] = aq_rng_key(
                    input->seed, AQ_RNG_DROPOUT, input->step << 20 | number << 4 | site, input->sample_ids[sample]);
    }
    const size_t bytes = (size_t)(gpt2->blocks + 1) * GPT2_SITES * B * sizeof *slot->keys;
    return aq_device_copy(gpt2->device, slot->keys, slot->host_keys, bytes, stream);
}

static struct aq_matmul product(const struct gpt2 *gpt2, uint64_t M, uint64_t N, uint64_t K, const void *a,
                                const float *weights, void *c, enum aq_element c_type, const float *bias)
{
    const struct gpt2_operand b = gpt2_operand(gpt2, weights);
    const bool rounded = bias && gpt2->stage->rounded && aq_element_bytes(c_type) == 2;
    return (struct aq_matmul){.M = M,
                              .N = N,
                              .K = K,
                              .a = a,
                              .a_stride = K,
                              .a_type = gpt2->type,
                              .b = b.at,
                              .b_stride = N,
                              .b_type = b.type,
                              .compute = gpt2->compute,
                              .c = c,
                              .c_stride = N,
                              .c_type = c_type,
                              .bias = bias,
                              .bias_rounded = rounded ? gpt2_operand(gpt2, bias).at : NULL};
}

static enum aq_status layernorm(const struct gpt2 *gpt2, uint64_t rows, const float *x, const float *weight,
                                const float *bias, void *y, float *mean, float *rstd, struct aq_stream *stream)
{
    const struct aq_layernorm args = {.rows = rows,
                                      .C = gpt2->stage->config.model.channels,
                                      .epsilon = EPSILON,
                                      .x = x,
                                      .gamma = weight,
                                      .beta = bias,
                                      .y = y,
                                      .y_type = gpt2->type,
                                      .mean = mean,
                                      .rstd = rstd};
    return aq_device_layernorm(gpt2->device, &args, stream);
}

enum aq_status gpt2_block_forward(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint32_t block, const float *x,
                                  float *y, const struct gpt2_kept *kept, struct aq_stream *stream)
{
    const struct aq_model_config *model = &gpt2->stage->config.model;
    const struct gpt2_block *w = &gpt2->weights.blocks[block];
    const uint64_t C = model->channels, rows = (uint64_t)slot->samples * slot->T;
    const enum aq_element type = gpt2->type;

    AQ_TRY(layernorm(gpt2, rows, x, w->norm1_weight, w->norm1_bias, kept->norm1, kept->mean1, kept->rstd1, stream));
    struct aq_matmul args = product(gpt2, rows, 3 * C, C, kept->norm1, w->qkv_weight, kept->qkv, type, w->qkv_bias);
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));
    const struct aq_attention attention = {.samples = slot->samples,
                                           .T = slot->T,
                                           .H = model->heads,
                                           .D = C / model->heads,
                                           .T_mask = gpt2->stage->config.T,
                                           .type = type,
                                           .qkv = kept->qkv,
                                           .out = kept->attention,
                                           .lse = kept->lse,
                                           .dropout = gpt2_dropout(gpt2, slot, block + 1, GPT2_SITE_ATTENTION)};
    AQ_TRY(aq_device_attention(gpt2->device, &attention, stream));
    args = product(gpt2, rows, C, C, kept->attention, w->projection_weight, kept->middle, AQ_F32, w->projection_bias);
    args.after = AQ_AFTER_RESIDUAL;
    args.other = (void *)(uintptr_t)x; /* read only for a residual */
    args.dropout = gpt2_dropout(gpt2, slot, block + 1, GPT2_SITE_PROJECTION);
    args.dropout_sample_rows = slot->T;
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));

    AQ_TRY(layernorm(gpt2, rows, kept->middle, w->norm2_weight, w->norm2_bias, kept->norm2, kept->mean2, kept->rstd2,
                     stream));
    args = product(gpt2, rows, 4 * C, C, kept->norm2, w->fc_weight, kept->after_gelu, type, w->fc_bias);
    args.after = AQ_AFTER_GELU;
    args.other = kept->before_gelu;
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));
    if (!y) return AQ_OK;
    args = product(gpt2, rows, C, 4 * C, kept->after_gelu, w->mlp_weight, y, AQ_F32, w->mlp_bias);
    args.after = AQ_AFTER_RESIDUAL;
    args.other = kept->middle;
    args.dropout = gpt2_dropout(gpt2, slot, block + 1, GPT2_SITE_MLP);
    args.dropout_sample_rows = slot->T;
    return aq_device_matmul(gpt2->device, &args, stream);
}

/* tokens (samples, T of the stage) to the slot's (samples, T of this forward); those beyond `used` become 0. */
static enum aq_status tokens_take(const struct gpt2 *gpt2, struct gpt2_slot *slot, const struct aq_stage_input *input,
                                  struct aq_stream *stream)
{
    const uint32_t T = gpt2->stage->config.T, used = input->tokens_used ? input->tokens_used : T;
    for (uint32_t sample = 0; sample < slot->samples; sample++)
        for (uint32_t t = 0; t < slot->T; t++)
            slot->host_tokens[(uint64_t)sample * slot->T + t] = t < used ? input->tokens[(uint64_t)sample * T + t] : 0;
    const size_t bytes = (size_t)slot->samples * slot->T * sizeof *slot->tokens;
    return aq_device_copy(gpt2->device, slot->tokens, slot->host_tokens, bytes, stream);
}

static enum aq_status targets_take(const struct gpt2 *gpt2, struct gpt2_slot *slot, const struct aq_stage_input *input,
                                   struct aq_stream *stream)
{
    const uint32_t T = gpt2->stage->config.T, used = input->tokens_used ? input->tokens_used : T;
    for (uint32_t sample = 0; sample < slot->samples; sample++)
        for (uint32_t t = 0; t < slot->T; t++)
            slot->host_targets[(uint64_t)sample * slot->T + t] =
                t < used ? input->targets[(uint64_t)sample * T + t] : -1;
    const size_t bytes = (size_t)slot->samples * slot->T * sizeof *slot->targets;
    return aq_device_copy(gpt2->device, slot->targets, slot->host_targets, bytes, stream);
}

/* What the host knows of this micro-batch, to the device. The slot's last copies must have been made by then. */
static enum aq_status input_take(const struct gpt2 *gpt2, struct gpt2_slot *slot, const struct aq_stage_input *input,
                                 struct aq_stream *stream)
{
    enum aq_status status = aq_device_event_query(gpt2->device, slot->copied);
    if (status == AQ_AGAIN) status = aq_device_stream_sync(gpt2->device, stream);
    AQ_TRY(status);
    if (slot->dropped) AQ_TRY(keys_make(gpt2, slot, input, stream));
    if (gpt2->first) AQ_TRY(tokens_take(gpt2, slot, input, stream));
    if (gpt2->last && input->targets) AQ_TRY(targets_take(gpt2, slot, input, stream));
    return aq_device_event_record(gpt2->device, slot->copied, stream);
}

static enum aq_status embed(const struct gpt2 *gpt2, const struct gpt2_slot *slot, float *x, struct aq_stream *stream)
{
    const struct aq_model_config *model = &gpt2->stage->config.model;
    const struct aq_embedding args = {.samples = slot->samples,
                                      .T = slot->T,
                                      .C = model->channels,
                                      .V = model->vocabulary,
                                      .tokens = slot->tokens,
                                      .token_table = gpt2->weights.token_table,
                                      .position_table = gpt2->weights.position_table,
                                      .x = x,
                                      .dropout = gpt2_dropout(gpt2, slot, 0, GPT2_SITE_ATTENTION)};
    return aq_device_embedding(gpt2->device, &args, stream);
}

/* Where not all are kept, a gradient starts where its logits do. */
void *gpt2_dlogits(const struct gpt2 *gpt2, uint64_t first, uint64_t *stride)
{
    const uint64_t typed = aq_element_bytes(gpt2->type);
    *stride = gpt2->work.dlogits ? gpt2->head_stride : gpt2->head_stride * (sizeof(float) / typed);
    return gpt2->work.dlogits ? (uint8_t *)gpt2->work.dlogits + first * gpt2->head_stride * typed
                              : (void *)gpt2->work.logits;
}

enum aq_status gpt2_head_chunk(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint64_t first, uint64_t rows,
                               bool gradient, struct aq_stream *stream)
{
    const struct aq_model_config *model = &gpt2->stage->config.model;
    const uint64_t C = model->channels, V = model->vocabulary;
    const uint8_t *norm = (const uint8_t *)slot->norm + first * C * aq_element_bytes(gpt2->type);
    struct aq_matmul args = product(gpt2, rows, V, C, norm, gpt2->weights.head, gpt2->work.logits, AQ_F32, NULL);
    args.b_transposed = true;
    args.b_stride = C;
    args.c_stride = gpt2->head_stride;
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));
    uint64_t stride;
    void *dlogits = gpt2_dlogits(gpt2, first, &stride);
    const struct aq_cross_entropy loss = {.rows = rows,
                                          .V = V,
                                          .logits = gpt2->work.logits,
                                          .logits_stride = gpt2->head_stride,
                                          .targets = slot->targets + first,
                                          .losses = slot->losses + first,
                                          .gradient = gradient ? dlogits : NULL,
                                          .gradient_stride = stride,
                                          .gradient_type = gpt2->type,
                                          .scale = slot->loss_scale};
    return aq_device_cross_entropy(gpt2->device, &loss, stream);
}

/* Losses are added on the host, in order of rows, in double. */
void gpt2_loss(void *state, uint32_t index, struct aq_stage_loss *out)
{
    const struct gpt2 *gpt2 = state;
    const struct gpt2_slot *slot = &gpt2->slots[index];
    const uint64_t rows = (uint64_t)slot->samples * slot->T;
    *out = (struct aq_stage_loss){0};
    for (uint64_t i = 0; i < rows; i++) {
        out->sum += slot->host_losses[i];
        out->targets += slot->host_targets[i] >= 0;
    }
}

static enum aq_status head(struct gpt2 *gpt2, uint32_t index, const struct aq_stage_input *input, const float *x,
                           struct aq_stage_loss *loss, struct aq_stream *stream)
{
    struct gpt2_slot *slot = &gpt2->slots[index];
    const uint64_t rows = (uint64_t)slot->samples * slot->T;
    AQ_TRY(layernorm(gpt2, rows, x, gpt2->weights.norm_weight, gpt2->weights.norm_bias, slot->norm, slot->mean,
                     slot->rstd, stream));
    if (!input->targets) return AQ_OK;
    const bool train = !input->evaluate && !gpt2->stage->config.inference,
               whole = gpt2->work.dlogits || rows <= gpt2->head_rows;
    for (uint64_t first = 0; first < rows; first += gpt2->head_rows) {
        const uint64_t count = rows - first < gpt2->head_rows ? rows - first : gpt2->head_rows;
        AQ_TRY(gpt2_head_chunk(gpt2, slot, first, count, train && whole, stream));
    }
    gpt2->logits_slot = train && whole ? index : UINT32_MAX;
    AQ_TRY(aq_device_copy(gpt2->device, slot->host_losses, slot->losses, rows * sizeof *slot->losses, stream));
    if (!loss) return AQ_OK;
    AQ_TRY(aq_device_stream_sync(gpt2->device, stream));
    gpt2_loss(gpt2, index, loss);
    return AQ_OK;
}

enum aq_status gpt2_forward(void *state, uint32_t index, const struct aq_stage_input *input, float *y,
                            struct aq_stage_loss *loss, struct aq_stream *stream)
{
    struct gpt2 *gpt2 = state;
    const struct aq_stage_config *config = &gpt2->stage->config;
    struct gpt2_slot *slot = &gpt2->slots[index];
    slot->samples = input->samples;
    /* One sample cut short is a shorter sample; several keep their length, and causality keeps the rest away. */
    slot->T = input->samples == 1 && input->tokens_used ? input->tokens_used : config->T;
    slot->loss_scale = input->loss_scale;
    slot->dropped = config->model.dropout > 0.0f && !input->evaluate && !config->inference;
    AQ_TRY(input_take(gpt2, slot, input, stream));

    const size_t bytes = (size_t)slot->samples * slot->T * config->model.channels * sizeof(float);
    if (gpt2->first) {
        AQ_TRY(embed(gpt2, slot, slot->x[0], stream));
    } else {
        AQ_TRY(aq_device_copy(gpt2->device, slot->x[0], input->x, bytes, stream));
    }
    for (uint32_t i = 0; i < gpt2->blocks; i++)
        AQ_TRY(gpt2_block_forward(gpt2, slot, i, slot->x[i], slot->x[i + 1], &slot->kept[i], stream));
    if (gpt2->last) return head(gpt2, index, input, slot->x[gpt2->blocks], loss, stream);
    return aq_device_copy(gpt2->device, y, slot->x[gpt2->blocks], bytes, stream);
}

enum aq_status gpt2_logits(void *state, uint32_t index, uint32_t position, float *logits, struct aq_stream *stream)
{
    struct gpt2 *gpt2 = state;
    const struct gpt2_slot *slot = &gpt2->slots[index];
    const struct aq_model_config *model = &gpt2->stage->config.model;
    const uint64_t C = model->channels, V = model->vocabulary;
    if (position >= slot->T)
        return aq_fail(AQ_INVAL, "stage", "logits of position %u: the last forward had %u tokens", position, slot->T);
    const uint8_t *norm = (const uint8_t *)slot->norm + position * C * aq_element_bytes(gpt2->type);
    struct aq_matmul args = product(gpt2, 1, V, C, norm, gpt2->weights.head, gpt2->work.logits, AQ_F32, NULL);
    args.b_transposed = true;
    args.b_stride = C;
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));
    gpt2->logits_slot = UINT32_MAX;
    AQ_TRY(aq_device_copy(gpt2->device, logits, gpt2->work.logits, V * sizeof *logits, stream));
    return aq_device_stream_sync(gpt2->device, stream);
}
