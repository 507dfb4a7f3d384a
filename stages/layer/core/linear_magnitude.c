/*
 * linear_magnitude.c -- adapters whose rows have trained lengths (Liu et al. 2024, DoRA), wrapped around linear.c. A is
 * (rank, in), B (out, rank), s = alpha / rank:
 *
 *     V = W + s B A        W'_j = m_j V_j / |V_j|        y = x W'^T + b        dx = dy W'
 *     G = dy^T x           dm_j += G_j . V_j / |V_j|     G'_j = (s m_j / |V_j|) G_j      dB += G' A^T      dA += B^T G'
 *
 * W' is made again for every product, in memory that all products of a stage share: it costs rank / rows of the
 * product, and nothing is kept. G is one more product in backward, as if the matrix itself trained; it is in fp32,
 * whatever the products' type, and so are the gradients of A and B.
 */
#include "linear.h"

/* v = s B A, (out, in) */
static enum aq_status delta(const struct layer_run *run, const struct linear *linear, const struct linear_part *part)
{
    const uint32_t a = linear_a_of(run, part), rank = linear_rank(run->layer, part);
    float *v = layer_adapter_memory(run->stage).v;
    const struct aq_matmul product = {.M = part->out,
                                      .N = linear->in,
                                      .K = rank,
                                      .a = run->w[a + 1],
                                      .a_stride = rank,
                                      .b = run->w[a],
                                      .b_stride = linear->in,
                                      .compute = AQ_F32,
                                      .c = v,
                                      .c_stride = linear->in,
                                      .c_type = AQ_F32};
    AQ_TRY(aq_device_matmul(run->device, &product, run->stream));
    const struct aq_scale scale = {.x = v, .count = part->out * linear->in, .factor = linear_scale(run->layer, part)};
    return scale.factor == 1.0f ? AQ_OK : aq_device_scale(run->device, &scale, run->stream);
}

enum aq_status linear_magnify(const struct layer_run *run, const struct linear *linear, const struct linear_part *part,
                              struct linear_weights *w)
{
    const struct layer_adapter_memory memory = layer_adapter_memory(run->stage);
    const struct aq_magnitude args = {.rows = part->out,
                                      .C = linear->in,
                                      .w = w->at,
                                      .w_type = w->type,
                                      .w_transposed = !w->out_in,
                                      .d = memory.v,
                                      .m = run->w[linear_a_of(run, part) + 2],
                                      .y = memory.own,
                                      .y_type = stage_type(run->config->precision)};
    AQ_TRY(delta(run, linear, part));
    *w = (struct linear_weights){.at = memory.own, .type = args.y_type, .out_in = true};
    return aq_device_magnitude(run->device, &args, run->stream);
}

/* to (rows, columns) += a^T b or a b^T, fp32 */
static enum aq_status add_product(const struct layer_run *run, struct aq_matmul args)
{
    args.compute = AQ_F32;
    args.accumulate = true;
    args.c_stride = args.N;
    args.c_type = AQ_F32;
    return aq_device_matmul(run->device, &args, run->stream);
}

enum aq_status linear_magnitude_gradients(const struct layer_run *run, const struct linear *linear,
                                          const struct linear_part *part, const struct linear_weights *w, uint64_t rows,
                                          struct linear_rows x, struct linear_rows dy)
{
    const struct layer_adapter_memory memory = layer_adapter_memory(run->stage);
    const enum aq_element type = stage_type(run->config->precision);
    const uint32_t a = linear_a_of(run, part), rank = linear_rank(run->layer, part);
    const uint64_t in = linear->in, out = part->out;
    const struct aq_matmul whole = {.M = out,
                                    .N = in,
                                    .K = rows,
                                    .a = dy.at,
                                    .a_stride = dy.stride,
                                    .a_type = type,
                                    .a_transposed = true,
                                    .b = x.at,
                                    .b_stride = x.stride,
                                    .b_type = type,
                                    .compute = stage_compute(run->config->precision),
                                    .c = memory.own,
                                    .c_stride = in,
                                    .c_type = AQ_F32};
    const struct aq_magnitude_backward args = {.rows = out,
                                               .C = in,
                                               .w = w->at,
                                               .w_type = w->type,
                                               .w_transposed = !w->out_in,
                                               .d = memory.v,
                                               .m = run->w[a + 2],
                                               .g = memory.own,
                                               .dm = run->g[a + 2],
                                               .scale = linear_scale(run->layer, part)};
    AQ_TRY(delta(run, linear, part));
    AQ_TRY(aq_device_matmul(run->device, &whole, run->stream));
    AQ_TRY(aq_device_magnitude_backward(run->device, &args, run->stream));
    AQ_TRY(add_product(run, (struct aq_matmul){.M = out,
                                               .N = rank,
                                               .K = in,
                                               .a = memory.own,
                                               .a_stride = in,
                                               .b = run->w[a],
                                               .b_stride = in,
                                               .b_transposed = true,
                                               .c = run->g[a + 1]}));
    return add_product(run, (struct aq_matmul){.M = rank,
                                               .N = in,
                                               .K = out,
                                               .a = run->w[a + 1],
                                               .a_stride = rank,
                                               .a_transposed = true,
                                               .b = memory.own,
                                               .b_stride = in,
                                               .c = run->g[a]});
}
