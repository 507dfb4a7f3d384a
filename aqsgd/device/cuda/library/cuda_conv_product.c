/*
 * cuda_conv_product.c -- convolutions on a GPU as matrix products (cuda_matmul.c), in pieces whose rows fit the
 * stream's scratch memory. Kernels around them: cuda_columns.cu. Shapes that do not fit: cuda_conv.cu. Where it was
 * asked for, cuDNN computes what it can (cuda_cudnn_conv.c).
 *
 * Images are stored pixel by pixel, so no operand and no result is transposed. With rows(x) the K K C values that an
 * output pixel reads, side by side:
 *
 *     forward              y = rows(x) w                         pieces of output pixels
 *     gradient of weights  dw += rows(x)' dy                     pieces of output pixels, added one after another
 *     gradient of inputs   stride 1: dx = rows(dy) w'            w' has its places mirrored, and N before C
 *                          else: rows = dy w (transposed), summed into pixels; pieces of samples
 *
 * A convolution of 1 x 1 with stride 1 whose operands need no rounding is just the product. How work is cut depends on
 * the shape and the size of the scratch only, so results do not depend on the GPU beyond what its products do.
 *
 * Part 0 of the scratch has rows, part 1 weights, part 2 gradients in 16 bits. cuda_matmul uses none of them here,
 * because operands have the type that the product reads.
 */
#include "cuda_device.h"
#if AQ_WITH_CUDNN
#include "cuda_cudnn.h"

/* The operation by cuDNN, where it was asked for and can: then the caller is done. */
#define CONV_BY_CUDNN(call, what)                                                                                      \
    do {                                                                                                               \
        bool conv_done = false;                                                                                        \
        if (cuda->cudnn) AQ_TRY(call(cuda, args, stream, &conv_done));                                                 \
        if (conv_done) return cuda_check(cuda, stream, what);                                                          \
    } while (0)
#else
#define CONV_BY_CUDNN(call, what) ((void)0)
#endif

/* cuda_NAME: by cuDNN, or by cuda_NAME_own. */
#define CONV_OPERATION(name, what)                                                                                     \
    enum aq_status cuda_##name(struct aq_device *device, const struct aq_##name *args, struct aq_stream *stream)       \
    {                                                                                                                  \
        struct cuda_device *cuda = cuda_device_of(device);                                                             \
        stream = cuda_stream_of(cuda, stream);                                                                         \
        CONV_BY_CUDNN(cuda_cudnn_##name, what);                                                                        \
        return cuda_##name##_own(cuda, args, stream);                                                                  \
    }
CONV_OPERATION(conv, "convolution")
CONV_OPERATION(conv_backward, "gradient of a convolution's inputs")
CONV_OPERATION(conv_weights, "gradient of a convolution's weights")

enum {
    CONV_ROWS_PART = 0,
    CONV_WEIGHTS_PART = 1,
    CONV_GRADIENT_PART = 2,
    CONV_ROUND = 128, /* a piece has a multiple of it: a tile of most products */
    CONV_INDEX_MAX = INT32_MAX
};

static uint64_t out_pixels(const struct aq_conv_shape *shape)
{
    return shape->samples * aq_conv_out(shape->height, shape->stride) * aq_conv_out(shape->width, shape->stride);
}

static uint64_t in_pixels(const struct aq_conv_shape *shape)
{
    return shape->samples * shape->height * shape->width;
}

static enum aq_element conv_type(const struct aq_conv_shape *shape)
{
    return aq_element_bytes(shape->compute) == 2 ? shape->compute : AQ_F32;
}

/* Elements from row to row: whole pieces of 16 bytes. */
static uint64_t conv_stride(uint64_t columns, enum aq_element type)
{
    const uint64_t piece = 16 / aq_element_bytes(type);
    return (columns + piece - 1) / piece * piece;
}

/* Only the product: no rows are gathered, and nothing is rounded. */
static bool is_direct(const struct aq_conv_shape *shape)
{
    return shape->K == 1 && shape->stride == 1 && conv_type(shape) == AQ_F32;
}

uint64_t cuda_conv_rows(const struct cuda_device *cuda, uint64_t rows, uint64_t bytes, uint64_t round)
{
    const uint64_t room = cuda->conv_bytes / bytes;
    if (room == 0) return 0;
    const uint64_t pieces = (rows + room - 1) / room, even = (rows + pieces - 1) / pieces;
    const uint64_t rounded = (even + round - 1) / round * round;
    return rounded <= room ? rounded : even;
}

/* The kernels count pixels and values of a piece in 32 bits, and weights have one part of the scratch. */
static bool conv_fits(const struct cuda_device *cuda, const struct aq_conv_shape *shape)
{
    const uint64_t places = shape->K * shape->K, most = shape->C > shape->N ? shape->C : shape->N;
    const uint64_t bytes = places * most * conv_stride(shape->C < shape->N ? shape->C : shape->N, conv_type(shape)) *
                           aq_element_bytes(conv_type(shape));
    const uint64_t row = conv_stride(places * most, AQ_F32) * sizeof(float);
    if (shape->K > 255 || shape->stride > CONV_INDEX_MAX / 2) return false;
    if (shape->height > 1 << 15 || shape->width > 1 << 15 || most > 1 << 20) return false;
    if (in_pixels(shape) > CONV_INDEX_MAX || shape->samples > CONV_INDEX_MAX) return false;
    return bytes + places * most * 16 <= CUDA_PART_BYTES && row <= cuda->conv_bytes;
}

/* A product of operands of the type that it reads. */
static struct aq_matmul product_of(const struct aq_conv_shape *shape)
{
    return (struct aq_matmul){
        .a_type = conv_type(shape), .b_type = conv_type(shape), .c_type = AQ_F32, .compute = shape->compute};
}

static enum aq_status rows_gather(const struct aq_conv_shape *shape, const float *x, uint64_t first, uint64_t rows,
                                  uint64_t stride, const struct aq_stream *stream)
{
    const struct aq_cuda_columns args = {.shape = *shape,
                                         .x = x,
                                         .first = first,
                                         .rows = rows,
                                         .to = cuda_part(stream, CONV_ROWS_PART),
                                         .type = conv_type(shape),
                                         .stride = stride};
    return aq_cuda_columns(&args, stream->at);
}

/* rows x columns fp32 values as the product reads them: themselves, or rounded into a part of the scratch. */
static enum aq_status conv_operand(const struct aq_conv_shape *shape, const float *x, uint64_t rows, uint64_t columns,
                                   uint32_t part, const struct aq_stream *stream, const void **at, uint64_t *stride)
{
    const enum aq_element type = conv_type(shape);
    *at = x;
    *stride = columns;
    if (type == AQ_F32) return AQ_OK;
    *at = cuda_part(stream, part);
    *stride = conv_stride(columns, type);
    return aq_cuda_convert(x, AQ_F32, columns, cuda_part(stream, part), type, *stride, rows, columns, stream->at);
}

/* y = rows(x) b, for images x of `shape` and (K K C) x N values b. */
static enum aq_status rows_product(struct cuda_device *cuda, const struct aq_conv_shape *shape, const float *x,
                                   const void *b, uint64_t b_stride, float *y, struct aq_stream *stream)
{
    const uint64_t pixels = out_pixels(shape), inner = shape->K * shape->K * shape->C;
    const uint64_t stride = conv_stride(inner, conv_type(shape)), bytes = stride * aq_element_bytes(conv_type(shape));
    const bool direct = is_direct(shape);
    const uint64_t most = direct ? pixels : cuda_conv_rows(cuda, pixels, bytes, CONV_ROUND);
    for (uint64_t first = 0; first < pixels; first += most) {
        struct aq_matmul product = product_of(shape);
        product.M = pixels - first < most ? pixels - first : most;
        product.N = shape->N;
        product.K = inner;
        product.a = direct ? (const void *)x : cuda_part(stream, CONV_ROWS_PART);
        product.a_stride = direct ? inner : stride;
        product.b = b;
        product.b_stride = b_stride;
        product.c = y + first * shape->N;
        product.c_stride = shape->N;
        if (!direct) AQ_TRY(rows_gather(shape, x, first, product.M, stride, stream));
        AQ_TRY(cuda_matmul(&cuda->base, &product, stream));
    }
    return cuda_check(cuda, stream, "convolution");
}

enum aq_status cuda_conv_own(struct cuda_device *cuda, const struct aq_conv *args, struct aq_stream *stream)
{
    const struct aq_conv_shape *shape = &args->shape;
    const void *w;
    uint64_t w_stride;
    if (!conv_fits(cuda, shape)) return aq_cuda_conv(args, cuda_part(stream, 0), stream->at);
    AQ_TRY(conv_operand(shape, args->w, shape->K * shape->K * shape->C, shape->N, CONV_WEIGHTS_PART, stream, &w,
                        &w_stride));
    return rows_product(cuda, shape, args->x, w, w_stride, args->y, stream);
}

/* dx = dy w (transposed) of all samples, or a piece of them through rows. */
static enum aq_status product_back(struct cuda_device *cuda, const struct aq_conv_backward *args, uint64_t most,
                                   struct aq_stream *stream)
{
    const struct aq_conv_shape *shape = &args->shape;
    const uint64_t each = out_pixels(shape) / shape->samples, inner = shape->K * shape->K * shape->C, N = shape->N;
    const bool direct = is_direct(shape);
    const uint64_t stride = direct ? inner : conv_stride(inner, AQ_F32);
    struct aq_matmul product = product_of(shape);
    AQ_TRY(conv_operand(shape, args->w, inner, N, CONV_WEIGHTS_PART, stream, &product.b, &product.b_stride));
    for (uint64_t first = 0; first < shape->samples; first += most) {
        struct aq_conv_shape piece = *shape;
        piece.samples = shape->samples - first < most ? shape->samples - first : most;
        float *dx = args->dx + first * shape->height * shape->width * shape->C;
        product.M = piece.samples * each;
        product.N = inner;
        product.K = N;
        product.b_transposed = true;
        product.c = direct ? dx : cuda_part(stream, CONV_ROWS_PART);
        product.c_stride = stride;
        AQ_TRY(conv_operand(shape, args->dy + first * each * N, product.M, N, CONV_GRADIENT_PART, stream, &product.a,
                            &product.a_stride));
        AQ_TRY(cuda_matmul(&cuda->base, &product, stream));
        if (!direct) AQ_TRY(aq_cuda_columns_back(&piece, product.c, stride, dx, stream->at));
    }
    return cuda_check(cuda, stream, "gradient of a convolution's inputs");
}

enum aq_status cuda_conv_backward_own(struct cuda_device *cuda, const struct aq_conv_backward *args,
                                      struct aq_stream *stream)
{
    const struct aq_conv_shape *shape = &args->shape;
    const enum aq_element type = conv_type(shape);
    const uint64_t each = out_pixels(shape) / shape->samples,
                   stride = conv_stride(shape->K * shape->K * shape->C, AQ_F32);
    /* A sample's rows, and its gradient in 16 bits. */
    const uint64_t widest = stride > conv_stride(shape->N, AQ_F32) ? stride : conv_stride(shape->N, AQ_F32);
    const uint64_t most = cuda_conv_rows(cuda, shape->samples, each * widest * sizeof(float), 1);
    if (!conv_fits(cuda, shape) || (shape->stride > 1 && most == 0))
        return aq_cuda_conv_backward(args, cuda_part(stream, 0), stream->at);
    if (is_direct(shape)) return product_back(cuda, args, shape->samples, stream);
    if (shape->stride > 1) return product_back(cuda, args, most, stream);
    const uint64_t transposed = conv_stride(shape->C, type);
    struct aq_conv_shape back = *shape;
    back.C = shape->N;
    back.N = shape->C;
    AQ_TRY(aq_cuda_weights_turn(shape, args->w, cuda_part(stream, CONV_WEIGHTS_PART), type, transposed, stream->at));
    return rows_product(cuda, &back, args->dy, cuda_part(stream, CONV_WEIGHTS_PART), transposed, args->dx, stream);
}

enum aq_status cuda_conv_weights_own(struct cuda_device *cuda, const struct aq_conv_weights *args,
                                     struct aq_stream *stream)
{
    const struct aq_conv_shape *shape = &args->shape;
    const uint64_t pixels = out_pixels(shape), inner = shape->K * shape->K * shape->C, N = shape->N;
    const enum aq_element type = conv_type(shape);
    const bool direct = is_direct(shape);
    const uint64_t stride = direct ? inner : conv_stride(inner, type);
    const uint64_t widest = stride > conv_stride(N, type) ? stride : conv_stride(N, type);
    if (!conv_fits(cuda, shape)) return aq_cuda_conv_weights(args, cuda_part(stream, 0), stream->at);
    const uint64_t most = direct ? pixels : cuda_conv_rows(cuda, pixels, widest * aq_element_bytes(type), CONV_ROUND);
    for (uint64_t first = 0; first < pixels; first += most) {
        struct aq_matmul product = product_of(shape);
        const uint64_t rows = pixels - first < most ? pixels - first : most;
        product.M = inner;
        product.N = N;
        product.K = rows;
        product.a = direct ? (const void *)args->x : cuda_part(stream, CONV_ROWS_PART);
        product.a_stride = stride;
        product.a_transposed = true;
        product.c = args->dw;
        product.c_stride = N;
        product.accumulate = true;
        if (!direct) AQ_TRY(rows_gather(shape, args->x, first, rows, stride, stream));
        AQ_TRY(conv_operand(shape, args->dy + first * N, rows, N, CONV_GRADIENT_PART, stream, &product.b,
                            &product.b_stride));
        AQ_TRY(cuda_matmul(&cuda->base, &product, stream));
    }
    return cuda_check(cuda, stream, "gradient of a convolution's weights");
}
