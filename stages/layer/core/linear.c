/* linear.c -- products of rows with a layer's weights, whole or part by part. See linear.h. */
#include "linear.h"

uint64_t linear_out(const struct linear *linear)
{
    uint64_t out = 0;
    for (uint32_t i = 0; i < linear->count; i++)
        out += linear->parts[i].out;
    return out;
}

/*
 * Does tensor b lie behind the `count` values of tensor a, and train like it? So its copies and gradients do. Tensors
 * that are unpacked before they are read are unpacked next to each other.
 */
static bool follows(const struct layer_run *run, uint32_t a, uint32_t b, uint64_t count)
{
    if (a == LAYER_NO_TENSOR || b == LAYER_NO_TENSOR) return a == b;
    const uint64_t trained = run->layer->trained;
    if (!run->w[a] || !run->w[b]) {
        const uint8_t *one = run->packed[a].parts[0], *next = run->packed[b].parts[0];
        if (!one || !next) return false;
        return !layer_packs_bf16(run) || next == one + count * sizeof(uint16_t);
    }
    return run->w[b] == run->w[a] + count && (trained >> a & 1) == (trained >> b & 1);
}

/* The next span: as many parts behind this one as are contiguous; false: no more parts. */
static bool span_next(const struct layer_run *run, const struct linear *linear, struct linear_span *span)
{
    const uint32_t first = span->first + span->count;
    if (first == linear->count) return false;
    const struct linear_part *part = &linear->parts[first];
    *span = (struct linear_span){first, 1, span->column + span->out, part->out, part->weight, part->bias};
    for (uint32_t i = first + 1; i < linear->count; i++) {
        const struct linear_part *last = &linear->parts[i - 1], *next = &linear->parts[i];
        if (!follows(run, last->weight, next->weight, linear->in * last->out)) break;
        if (!follows(run, last->bias, next->bias, last->out)) break;
        if (linear_adapted(run->layer, last) != linear_adapted(run->layer, next)) break;
        if (linear_magnified(run, last)) break; /* made one by one */
        span->count++;
        span->out += next->out;
    }
    return true;
}

/*
 * The weights of a span as its product reads them. Packed ones in bf16 follow each other (stage_packed.c), like those
 * of fp32. If a product needs another type, and in any other store, they are unpacked into memory that all products of
 * a stage share.
 */
static enum aq_status weights_kept(const struct layer_run *run, const struct linear *linear,
                                   const struct linear_span *span, struct linear_weights *w)
{
    uint8_t *to = layer_unpacked(run->stage);
    w->out_in = linear->out_in;
    if (run->w[span->weight]) {
        w->at = layer_operand(run, run->w[span->weight], &w->type);
        return AQ_OK;
    }
    w->type = AQ_BF16;
    w->at = run->packed[span->weight].parts[0];
    if (layer_packs_bf16(run) && layer_reads_bf16(run)) return AQ_OK;
    w->type = stage_type(run->config->precision);
    w->at = to;
    for (uint32_t i = span->first; i < span->first + span->count; i++) {
        const uint64_t count = linear->in * linear->parts[i].out;
        AQ_TRY(layer_unpack(run, &run->packed[linear->parts[i].weight], count, to, w->type));
        to += count * aq_element_bytes(w->type);
    }
    return AQ_OK;
}

/* And as they are multiplied by. */
static enum aq_status weights_of(const struct layer_run *run, const struct linear *linear,
                                 const struct linear_span *span, struct linear_weights *w)
{
    const struct linear_part *part = &linear->parts[span->first];
    AQ_TRY(weights_kept(run, linear, span, w));
    return linear_magnified(run, part) ? linear_magnify(run, linear, part, w) : AQ_OK;
}

static uint64_t stride_of(uint64_t stride, uint64_t columns)
{
    return stride ? stride : columns;
}

static const void *columns_from(const void *at, enum aq_element type, uint64_t column)
{
    return (const uint8_t *)at + column * aq_element_bytes(type);
}

enum aq_status linear_forward(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                              struct linear_rows x, const struct linear_to *y)
{
    const uint64_t stride = stride_of(y->stride, linear_out(linear)), at = aq_element_bytes(y->type);
    const enum aq_element type = stage_type(run->config->precision);
    AQ_ASSERT(linear->out_in || linear->count == 1);
    for (struct linear_span span = {0}; span_next(run, linear, &span);) {
        AQ_ASSERT(span.count == linear->count || y->dropout.probability == 0.0f);
        const float *bias = span.bias == LAYER_NO_TENSOR ? NULL : run->w[span.bias];
        enum aq_element bias_type = AQ_F32;
        struct linear_weights w;
        AQ_TRY(weights_of(run, linear, &span, &w));
        const void *rounded = bias && at == 2 ? layer_operand(run, bias, &bias_type) : NULL;
        struct aq_matmul args = {.M = rows,
                                 .N = span.out,
                                 .K = linear->in,
                                 .a = x.at,
                                 .a_stride = stride_of(x.stride, linear->in),
                                 .a_type = type,
                                 .b = w.at,
                                 .b_stride = w.out_in ? linear->in : span.out,
                                 .b_type = w.type,
                                 .b_transposed = w.out_in,
                                 .compute = stage_compute(run->config->precision),
                                 .c = (uint8_t *)y->c + span.column * at,
                                 .c_stride = stride,
                                 .c_type = y->type,
                                 .bias = bias,
                                 .bias_rounded = bias_type == AQ_F32 ? NULL : rounded,
                                 .after = y->after,
                                 .other = y->other ? (uint8_t *)y->other + span.column * at : NULL,
                                 .dropout = y->dropout,
                                 .dropout_sample_rows = run->tokens};
        AQ_TRY(linear_adapter_forward(run, linear, &span, rows, x, &args));
        AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    }
    return AQ_OK;
}

enum aq_status linear_input_gradient(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                     struct linear_rows dy, const struct linear_to *dx)
{
    const enum aq_element type = stage_type(run->config->precision);
    for (struct linear_span span = {0}; span_next(run, linear, &span);) {
        AQ_ASSERT(span.count == linear->count || (dx->type == AQ_F32 && dx->after == AQ_AFTER_NONE));
        struct linear_weights w;
        AQ_TRY(weights_of(run, linear, &span, &w));
        struct aq_matmul args = {.M = rows,
                                 .N = linear->in,
                                 .K = span.out,
                                 .a = columns_from(dy.at, type, span.column),
                                 .a_stride = stride_of(dy.stride, linear_out(linear)),
                                 .a_type = type,
                                 .b = w.at,
                                 .b_stride = w.out_in ? linear->in : span.out,
                                 .b_type = w.type,
                                 .b_transposed = !w.out_in,
                                 .compute = stage_compute(run->config->precision),
                                 .accumulate = span.first > 0 || dx->add,
                                 .c = dx->c,
                                 .c_stride = stride_of(dx->stride, linear->in),
                                 .c_type = dx->type,
                                 .after = dx->after,
                                 .other = dx->other};
        if (span.first == 0) AQ_TRY(linear_adapter_input_gradient(run, linear, rows, dy, &args));
        AQ_TRY(aq_device_matmul(run->device, &args, run->stream));
    }
    return AQ_OK;
}

static enum aq_status bias_gradient(const struct layer_run *run, const struct linear_span *span, uint64_t rows,
                                    struct linear_rows dy, float *sums)
{
    const struct aq_column_sum args = {.rows = rows,
                                       .C = span->out,
                                       .stride = dy.stride,
                                       .x = dy.at,
                                       .type = stage_type(run->config->precision),
                                       .sums = sums};
    return sums ? aq_device_column_sum(run->device, &args, run->stream) : AQ_OK;
}

/* dy: the span's columns. bias: its gradient, or NULL. Strides are not 0. */
static enum aq_status span_gradients(const struct layer_run *run, const struct linear *linear,
                                     const struct linear_span *span, uint64_t rows, struct linear_rows x,
                                     struct linear_rows dy, float *bias)
{
    const enum aq_element type = stage_type(run->config->precision);
    const struct linear_rows a = linear->out_in ? dy : x, b = linear->out_in ? x : dy;
    const uint64_t M = linear->out_in ? span->out : linear->in, N = linear->out_in ? linear->in : span->out;
    const struct aq_matmul args = {.M = M,
                                   .N = N,
                                   .K = rows,
                                   .a = a.at,
                                   .a_stride = a.stride,
                                   .a_type = type,
                                   .a_transposed = true,
                                   .b = b.at,
                                   .b_stride = b.stride,
                                   .b_type = type,
                                   .compute = stage_compute(run->config->precision),
                                   .c = run->g[span->weight],
                                   .c_stride = N,
                                   .c_type = AQ_F32,
                                   .accumulate = true,
                                   .sums_a = linear->out_in ? bias : NULL,
                                   .sums_b = linear->out_in ? NULL : bias};
    return run->g[span->weight] ? aq_device_matmul(run->device, &args, run->stream)
                                : bias_gradient(run, span, rows, dy, bias);
}

static enum aq_status gradients(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                struct linear_rows x, struct linear_rows dy, bool biases)
{
    const enum aq_element type = stage_type(run->config->precision);
    x.stride = stride_of(x.stride, linear->in);
    dy.stride = stride_of(dy.stride, linear_out(linear));
    for (struct linear_span span = {0}; span_next(run, linear, &span);) {
        const struct linear_rows of = {columns_from(dy.at, type, span.column), dy.stride};
        float *bias = biases && span.bias != LAYER_NO_TENSOR ? run->g[span.bias] : NULL;
        AQ_TRY(span_gradients(run, linear, &span, rows, x, of, bias));
        if (!linear_magnified(run, &linear->parts[span.first])) continue;
        struct linear_weights w;
        AQ_TRY(weights_kept(run, linear, &span, &w));
        AQ_TRY(linear_magnitude_gradients(run, linear, &linear->parts[span.first], &w, rows, x, of));
    }
    return linear_adapter_weight_gradient(run, linear, rows, x, dy);
}

enum aq_status linear_weight_gradient(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                      struct linear_rows x, struct linear_rows dy)
{
    return gradients(run, linear, rows, x, dy, false);
}

enum aq_status linear_gradients(const struct layer_run *run, const struct linear *linear, uint64_t rows,
                                struct linear_rows x, struct linear_rows dy)
{
    return gradients(run, linear, rows, x, dy, true);
}

void linear_flops(const struct layer *layer, const struct linear *linear, double rows, struct layer_flops *out)
{
    for (uint32_t i = 0; i < linear->count; i++) {
        const double product = 2.0 * rows * (double)linear->in * (double)linear->parts[i].out;
        const double weights = layer->trained >> linear->parts[i].weight & 1 ? product : 0;
        out->forward += product;
        out->backward += weights + (linear_goes_on(layer, linear) ? product : 0);
        out->weights += weights;
    }
}
