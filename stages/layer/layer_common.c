/* layer_common.c -- products, layer norms and masks as layers use them. See layer.h. */
#include "layer.h"

static const float EPSILON = 1e-5f; /* of every layer norm, as published */

struct aq_dropout layer_dropout(const struct layer_run *run, uint32_t site)
{
    if (!run->dropped) return (struct aq_dropout){0};
    return (struct aq_dropout){.probability = run->config->model.dropout,
                               .keys = run->keys + (uint64_t)site * run->config->B};
}

struct aq_matmul layer_product(const struct layer_run *run, uint64_t M, uint64_t N, uint64_t K, const void *x,
                               const float *weights, void *c, enum aq_element c_type, const float *bias)
{
    enum aq_element b_type, bias_type = AQ_F32;
    const void *b = layer_operand(run, weights, &b_type);
    const void *rounded = bias && aq_element_bytes(c_type) == 2 ? layer_operand(run, bias, &bias_type) : NULL;
    return (struct aq_matmul){.M = M,
                              .N = N,
                              .K = K,
                              .a = x,
                              .a_stride = K,
                              .a_type = stage_type(run->config->precision),
                              .b = b,
                              .b_stride = N,
                              .b_type = b_type,
                              .compute = stage_compute(run->config->precision),
                              .c = c,
                              .c_stride = N,
                              .c_type = c_type,
                              .bias = bias,
                              .bias_rounded = bias_type == AQ_F32 ? NULL : rounded};
}

struct aq_matmul layer_input_gradient(const struct layer_run *run, uint64_t rows, uint64_t in, uint64_t out,
                                      const void *dy, const float *weights, void *dx, enum aq_element dx_type)
{
    enum aq_element b_type;
    const void *b = layer_operand(run, weights, &b_type);
    return (struct aq_matmul){.M = rows,
                              .N = in,
                              .K = out,
                              .a = dy,
                              .a_stride = out,
                              .a_type = stage_type(run->config->precision),
                              .b = b,
                              .b_stride = out,
                              .b_type = b_type,
                              .b_transposed = true,
                              .compute = stage_compute(run->config->precision),
                              .c = dx,
                              .c_stride = in,
                              .c_type = dx_type};
}

enum aq_status layer_weight_gradient(const struct layer_run *run, uint64_t rows, uint64_t in, uint64_t out,
                                     const void *x, const void *dy, float *dw)
{
    if (!dw) return AQ_OK;
    const enum aq_element type = stage_type(run->config->precision);
    const struct aq_matmul args = {.M = in,
                                   .N = out,
                                   .K = rows,
                                   .a = x,
                                   .a_stride = in,
                                   .a_type = type,
                                   .a_transposed = true,
                                   .b = dy,
                                   .b_stride = out,
                                   .b_type = type,
                                   .compute = stage_compute(run->config->precision),
                                   .c = dw,
                                   .c_stride = out,
                                   .c_type = AQ_F32,
                                   .accumulate = true};
    return aq_device_matmul(run->device, &args, run->stream);
}

enum aq_status layer_column_sum(const struct layer_run *run, const void *x, uint64_t rows, uint64_t columns,
                                float *sums)
{
    if (!sums) return AQ_OK;
    const struct aq_column_sum args = {.rows = rows,
                                       .C = columns,
                                       .stride = columns,
                                       .x = x,
                                       .type = stage_type(run->config->precision),
                                       .sums = sums};
    return aq_device_column_sum(run->device, &args, run->stream);
}

enum aq_status layer_norm(const struct layer_run *run, uint64_t rows, const float *x, float *const w[2], void *y,
                          float *mean, float *rstd)
{
    const struct aq_layernorm args = {.rows = rows,
                                      .C = run->layer->in.columns,
                                      .epsilon = EPSILON,
                                      .x = x,
                                      .gamma = w[0],
                                      .beta = w[1],
                                      .y = y,
                                      .y_type = stage_type(run->config->precision),
                                      .mean = mean,
                                      .rstd = rstd};
    return aq_device_layernorm(run->device, &args, run->stream);
}

enum aq_status layer_norm_gradient(const struct layer_run *run, uint64_t rows, const float *dy, const float *x,
                                   const float *gamma, const float *mean, const float *rstd, float *dx,
                                   float *const g[2], const struct layer_ending *ending)
{
    const struct aq_layernorm_backward args = {.rows = rows,
                                               .C = run->layer->in.columns,
                                               .dy = dy,
                                               .x = x,
                                               .gamma = gamma,
                                               .mean = mean,
                                               .rstd = rstd,
                                               .dx = dx,
                                               .dgamma = g[0],
                                               .dbeta = g[1],
                                               .rounded = ending ? ending->rounded : NULL,
                                               .rounded_type = stage_type(run->config->precision),
                                               .sums = ending ? ending->sums : NULL};
    return aq_device_layernorm_backward(run->device, &args, run->stream);
}

enum aq_status layer_check_field(const struct aq_batch *batch, const char *name, uint32_t count, uint32_t used,
                                 int32_t least, uint32_t bound)
{
    const int32_t *values = aq_batch_find(batch, name, AQ_FIELD_I32, count);
    if (!values) return aq_fail(AQ_INVAL, "stage", "the batch has no %s of %u values a sample", name, count);
    for (uint32_t sample = 0; sample < batch->samples; sample++)
        for (uint32_t i = 0; i < used; i++) {
            const int32_t value = values[(uint64_t)sample * count + i];
            if (value < least || value >= (int64_t)bound)
                return aq_fail(AQ_INVAL, "stage", "%s: %d at %u of sample %u: the model has %u", name, value, i, sample,
                               bound);
        }
    return AQ_OK;
}
