/*
 * model_gpt2_backward.c -- from the gradient of a stage's output to that of its input, adding to the parameters'
 * gradients.
 *
 * dx, the gradient of the residual stream, is worked on in place: each branch adds its share. Order within a block:
 * MLP, then attention. A branch begins with dx rounded to its type and that one's sum over rows (its bias' gradient);
 * without dropout the layer norm before it, which makes dx, makes them in the same pass. Everything is added in one
 * fixed order, so that sums over micro-batches are the same bits in every schedule that runs backwards in order of
 * micro-batches.
 */
#include "model_gpt2.h"

/* dW += x^T dy */
static enum aq_status weight_gradient(const struct gpt2 *gpt2, uint64_t rows, uint64_t in, uint64_t out, const void *x,
                                      const void *dy, enum aq_element dy_type, float *dw, struct aq_stream *stream)
{
    const struct aq_matmul args = {.M = in,
                                   .N = out,
                                   .K = rows,
                                   .a = x,
                                   .a_stride = in,
                                   .a_type = gpt2->type,
                                   .a_transposed = true,
                                   .b = dy,
                                   .b_stride = out,
                                   .b_type = dy_type,
                                   .compute = gpt2->compute,
                                   .c = dw,
                                   .c_stride = out,
                                   .c_type = AQ_F32,
                                   .accumulate = true};
    return aq_device_matmul(gpt2->device, &args, stream);
}

/* dx = dy W^T, W (in, out); as an argument list, because what follows the product differs. */
static struct aq_matmul input_gradient(const struct gpt2 *gpt2, uint64_t rows, uint64_t in, uint64_t out,
                                       const void *dy, enum aq_element dy_type, const float *w, void *dx,
                                       enum aq_element dx_type)
{
    const struct gpt2_operand b = gpt2_operand(gpt2, w);
    return (struct aq_matmul){.M = rows,
                              .N = in,
                              .K = out,
                              .a = dy,
                              .a_stride = out,
                              .a_type = dy_type,
                              .b = b.at,
                              .b_stride = out,
                              .b_type = b.type,
                              .b_transposed = true,
                              .compute = gpt2->compute,
                              .c = dx,
                              .c_stride = in,
                              .c_type = dx_type};
}

/* next_bias: gradient of the bias of the branch that comes next, whose gradient is made here too; NULL: it is not. */
static enum aq_status norm_gradient(const struct gpt2 *gpt2, uint64_t rows, const float *x, const float *weight,
                                    const float *mean, const float *rstd, float *dx, float *dweight, float *dbias,
                                    float *next_bias, struct aq_stream *stream)
{
    const bool rounds = next_bias && gpt2->type != AQ_F32;
    const struct aq_layernorm_backward args = {.rows = rows,
                                               .C = gpt2->stage->config.model.channels,
                                               .dy = gpt2->work.dnorm,
                                               .x = x,
                                               .gamma = weight,
                                               .mean = mean,
                                               .rstd = rstd,
                                               .dx = dx,
                                               .dgamma = dweight,
                                               .dbeta = dbias,
                                               .rounded = rounds ? gpt2->work.dout : NULL,
                                               .rounded_type = gpt2->type,
                                               .sums = next_bias};
    return aq_device_layernorm_backward(gpt2->device, &args, stream);
}

/* A bias' gradient: sums += the columns of a matrix of the products' type. */
static enum aq_status column_sum(const struct gpt2 *gpt2, const void *x, uint64_t rows, uint64_t C, float *sums,
                                 struct aq_stream *stream)
{
    const struct aq_column_sum args = {.rows = rows, .C = C, .stride = C, .x = x, .type = gpt2->type, .sums = sums};
    return aq_device_column_sum(gpt2->device, &args, stream);
}

/*
 * The gradient of what a residual added: dx itself, or dx masked or rounded into work.dout; and its bias' gradient.
 * made: a layer norm has made both.
 */
static enum aq_status branch_gradient(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint32_t block,
                                      enum gpt2_site site, const float *dx, float *bias, bool made, const void **out,
                                      struct aq_stream *stream)
{
    const uint64_t C = gpt2->stage->config.model.channels, rows = (uint64_t)slot->samples * slot->T;
    const bool copied = gpt2->type != AQ_F32 || slot->dropped;
    *out = copied ? gpt2->work.dout : dx;
    if (made) return AQ_OK;
    const struct aq_dropout_apply args = {.samples = slot->samples,
                                          .sample_elements = slot->T * C,
                                          .x = dx,
                                          .y = gpt2->work.dout,
                                          .y_type = gpt2->type,
                                          .dropout = gpt2_dropout(gpt2, slot, block + 1, site)};
    if (copied) AQ_TRY(aq_device_dropout(gpt2->device, &args, stream));
    return column_sum(gpt2, *out, rows, C, bias, stream);
}

static enum aq_status mlp_backward(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint32_t block,
                                   const struct gpt2_kept *kept, float *dx, bool made, struct aq_stream *stream)
{
    const struct gpt2_block *w = &gpt2->weights.blocks[block], *g = &gpt2->gradients.blocks[block];
    const uint64_t C = gpt2->stage->config.model.channels, rows = (uint64_t)slot->samples * slot->T;
    const enum aq_element type = gpt2->type;
    const struct gpt2_work *work = &gpt2->work;
    const void *dout;
    AQ_TRY(branch_gradient(gpt2, slot, block, GPT2_SITE_MLP, dx, g->mlp_bias, made, &dout, stream));
    AQ_TRY(weight_gradient(gpt2, rows, 4 * C, C, kept->after_gelu, dout, type, g->mlp_weight, stream));
    struct aq_matmul args = input_gradient(gpt2, rows, 4 * C, C, dout, type, w->mlp_weight, work->du, type);
    args.after = AQ_AFTER_GELU_BACKWARD;
    args.other = kept->before_gelu;
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));
    AQ_TRY(weight_gradient(gpt2, rows, C, 4 * C, kept->norm2, work->du, type, g->fc_weight, stream));
    AQ_TRY(column_sum(gpt2, work->du, rows, 4 * C, g->fc_bias, stream));
    args = input_gradient(gpt2, rows, C, 4 * C, work->du, type, w->fc_weight, work->dnorm, AQ_F32);
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));
    return norm_gradient(gpt2, rows, kept->middle, w->norm2_weight, kept->mean2, kept->rstd2, dx, g->norm2_weight,
                         g->norm2_bias, slot->dropped ? NULL : g->projection_bias, stream);
}

static enum aq_status attention_backward(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint32_t block,
                                         const struct gpt2_kept *kept, const float *x, float *dx,
                                         struct aq_stream *stream)
{
    const struct aq_model_config *model = &gpt2->stage->config.model;
    const struct gpt2_block *w = &gpt2->weights.blocks[block], *g = &gpt2->gradients.blocks[block];
    const uint64_t C = model->channels, rows = (uint64_t)slot->samples * slot->T;
    const enum aq_element type = gpt2->type;
    const struct gpt2_work *work = &gpt2->work;
    const void *dout;
    AQ_TRY(branch_gradient(gpt2, slot, block, GPT2_SITE_PROJECTION, dx, g->projection_bias, !slot->dropped, &dout,
                           stream));
    AQ_TRY(weight_gradient(gpt2, rows, C, C, kept->attention, dout, type, g->projection_weight, stream));
    struct aq_matmul args = input_gradient(gpt2, rows, C, C, dout, type, w->projection_weight, work->dattention, type);
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
                                           .dropout = gpt2_dropout(gpt2, slot, block + 1, GPT2_SITE_ATTENTION),
                                           .dout = work->dattention,
                                           .dqkv = work->dqkv,
                                           .dqkv_rounded = work->dqkv_rounded};
    AQ_TRY(aq_device_attention_backward(gpt2->device, &attention, stream));
    const void *dqkv = type == AQ_F32 ? (const void *)work->dqkv : work->dqkv_rounded;
    AQ_TRY(weight_gradient(gpt2, rows, C, 3 * C, kept->norm1, dqkv, type, g->qkv_weight, stream));
    AQ_TRY(column_sum(gpt2, dqkv, rows, 3 * C, g->qkv_bias, stream));
    args = input_gradient(gpt2, rows, C, 3 * C, dqkv, type, w->qkv_weight, work->dnorm, AQ_F32);
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));
    float *next = block > 0 && !slot->dropped ? gpt2->gradients.blocks[block - 1].mlp_bias : NULL;
    return norm_gradient(gpt2, rows, x, w->norm1_weight, kept->mean1, kept->rstd1, dx, g->norm1_weight, g->norm1_bias,
                         next, stream);
}

/* Head and final norm of a chunk of rows: dx of the rows is written, not added to. */
static enum aq_status head_chunk_backward(const struct gpt2 *gpt2, const struct gpt2_slot *slot, uint64_t first,
                                          uint64_t rows, struct aq_stream *stream)
{
    const struct aq_model_config *model = &gpt2->stage->config.model;
    const uint64_t C = model->channels, V = model->vocabulary;
    uint64_t stride;
    const void *dlogits = gpt2_dlogits(gpt2, first, &stride);
    const uint8_t *norm = (const uint8_t *)slot->norm + first * C * aq_element_bytes(gpt2->type);
    const struct gpt2_operand weights = gpt2_operand(gpt2, gpt2->weights.head);
    struct aq_matmul args = {.M = rows,
                             .N = C,
                             .K = V,
                             .a = dlogits,
                             .a_stride = stride,
                             .a_type = gpt2->type,
                             .b = weights.at,
                             .b_stride = C,
                             .b_type = weights.type,
                             .compute = gpt2->compute,
                             .c = gpt2->work.dnorm + first * C,
                             .c_stride = C,
                             .c_type = AQ_F32};
    AQ_TRY(aq_device_matmul(gpt2->device, &args, stream));
    args = (struct aq_matmul){.M = V,
                              .N = C,
                              .K = rows,
                              .a = dlogits,
                              .a_stride = stride,
                              .a_type = gpt2->type,
                              .a_transposed = true,
                              .b = norm,
                              .b_stride = C,
                              .b_type = gpt2->type,
                              .compute = gpt2->compute,
                              .c = gpt2->gradients.head,
                              .c_stride = C,
                              .c_type = AQ_F32,
                              .accumulate = true};
    return aq_device_matmul(gpt2->device, &args, stream);
}

/*
 * The gradient of the logits still lies in the workspace where this slot's forward was the last to use it; else the
 * logits are made again from the final norm. Keeping them for every slot would cost more memory than all else together.
 */
static enum aq_status head_backward(struct gpt2 *gpt2, uint32_t index, float *dx, struct aq_stream *stream)
{
    const struct gpt2_slot *slot = &gpt2->slots[index];
    const uint64_t C = gpt2->stage->config.model.channels, rows = (uint64_t)slot->samples * slot->T;
    for (uint64_t first = 0; first < rows; first += gpt2->head_rows) {
        const uint64_t count = rows - first < gpt2->head_rows ? rows - first : gpt2->head_rows;
        if (gpt2->logits_slot != index) AQ_TRY(gpt2_head_chunk(gpt2, slot, first, count, true, stream));
        if (!gpt2->work.dlogits) AQ_TRY(head_chunk_backward(gpt2, slot, first, count, stream));
    }
    if (gpt2->work.dlogits) AQ_TRY(head_chunk_backward(gpt2, slot, 0, rows, stream));
    gpt2->logits_slot = UINT32_MAX;
    AQ_TRY(aq_device_zero(gpt2->device, dx, rows * C * sizeof *dx, stream));
    float *next = gpt2->blocks && !slot->dropped ? gpt2->gradients.blocks[gpt2->blocks - 1].mlp_bias : NULL;
    return norm_gradient(gpt2, rows, slot->x[gpt2->blocks], gpt2->weights.norm_weight, slot->mean, slot->rstd, dx,
                         gpt2->gradients.norm_weight, gpt2->gradients.norm_bias, next, stream);
}

static enum aq_status embedding_backward(const struct gpt2 *gpt2, const struct gpt2_slot *slot, const float *dx,
                                         struct aq_stream *stream)
{
    const struct aq_model_config *model = &gpt2->stage->config.model;
    const struct aq_embedding_backward args = {.samples = slot->samples,
                                               .T = slot->T,
                                               .C = model->channels,
                                               .V = model->vocabulary,
                                               .tokens = slot->tokens,
                                               .dx = dx,
                                               .token_gradient = gpt2->gradients.token_table,
                                               .position_gradient = gpt2->gradients.position_table,
                                               .dropout = gpt2_dropout(gpt2, slot, 0, GPT2_SITE_ATTENTION)};
    return aq_device_embedding_backward(gpt2->device, &args, stream);
}

enum aq_status gpt2_backward(void *state, uint32_t index, const float *dy, float *dx, struct aq_stream *stream)
{
    struct gpt2 *gpt2 = state;
    const struct gpt2_slot *slot = &gpt2->slots[index];
    const size_t bytes = (size_t)slot->samples * slot->T * gpt2->stage->config.model.channels * sizeof(float);
    float *flow = dx ? dx : gpt2->work.dx;
    if (gpt2->last)
        AQ_TRY(head_backward(gpt2, index, flow, stream));
    else
        AQ_TRY(aq_device_copy(gpt2->device, flow, dy, bytes, stream));
    for (uint32_t i = gpt2->blocks; i-- > 0;) {
        const struct gpt2_kept *kept = &slot->kept[i];
        if (gpt2->stage->config.recompute) AQ_TRY(gpt2_block_forward(gpt2, slot, i, slot->x[i], NULL, kept, stream));
        const bool made = !slot->dropped && (gpt2->last || i + 1 < gpt2->blocks);
        AQ_TRY(mlp_backward(gpt2, slot, i, kept, flow, made, stream));
        AQ_TRY(attention_backward(gpt2, slot, i, kept, slot->x[i], flow, stream));
    }
    return gpt2->first ? embedding_backward(gpt2, slot, flow, stream) : AQ_OK;
}
