/*
 * cuda_columns.cu -- both sides of a convolution that is a matrix product (cuda_conv_product.c): pixels gathered in
 * rows before it (im2col), rows summed into pixels after it (col2im), and weights turned for the gradient of inputs.
 * cuDNN's convolutions (cuda_cudnn_conv.c) have their weights turned, and the gradient of weights turned back.
 *
 * Bound by memory. Images are stored pixel by pixel with their channels side by side, and so do the rows: a thread has
 * some channels of one pixel, 16 bytes of a row where alignment allows, and neighbouring threads have the next ones. It
 * works out its pixel once, and then visits the K K places. No sum is split between threads.
 */
#include "cuda_common.cuh"

constexpr unsigned COLUMN_THREADS = 256, TILE = 32, TILE_ROWS = 8;

/* The part of the shape that a kernel needs, in 32 bits: divisions of 64 bits cost more than the copy. */
struct images {
    unsigned height, width, out_height, out_width, K, stride;
};

static struct images images_of(const struct aq_conv_shape *shape)
{
    struct images images;
    images.height = static_cast<unsigned>(shape->height);
    images.width = static_cast<unsigned>(shape->width);
    images.out_height = static_cast<unsigned>(aq_conv_out(shape->height, shape->stride));
    images.out_width = static_cast<unsigned>(aq_conv_out(shape->width, shape->stride));
    images.K = static_cast<unsigned>(shape->K);
    images.stride = static_cast<unsigned>(shape->stride);
    return images;
}

/* W values, or zeroes where they are outside of the image, rounded to Y. */
template <int W, typename Y>
static __forceinline__ __device__ void piece_copy(const float *__restrict__ x, bool inside, Y *__restrict__ y)
{
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (W == 8) {
        const float4 a = inside ? aq_load4(x) : zero, b = inside ? aq_load4(x + 4) : zero;
        *reinterpret_cast<uint4 *>(y) =
            make_uint4(aq_pack<Y>(a.x, a.y), aq_pack<Y>(a.z, a.w), aq_pack<Y>(b.x, b.y), aq_pack<Y>(b.z, b.w));
    } else if constexpr (W == 4) {
        aq_store4(y, inside ? aq_load4(x) : zero);
    } else {
        aq_store(y, inside ? *x : 0.0f);
    }
}

/* KNOWN: K, where it is known when this is compiled; else 0. */
template <typename Y, int W, int KNOWN>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    columns_gather(const float *__restrict__ x, Y *__restrict__ to, struct images of, unsigned C, unsigned first,
                   unsigned rows, unsigned stride)
{
    const unsigned at = static_cast<unsigned>(aq_thread_index()), pieces = C / W, row = at / pieces;
    if (row >= rows) return;
    const unsigned c = at % pieces * W, pixel = first + row, line = pixel / of.out_width;
    const unsigned sample = line / of.out_height, K = KNOWN ? KNOWN : of.K, half = K / 2;
    const unsigned top = line % of.out_height * of.stride, left = pixel % of.out_width * of.stride;
    x += static_cast<uint64_t>(sample) * of.height * of.width * C + c;
    to += static_cast<uint64_t>(row) * stride + c;
    AQ_UNROLL
    for (unsigned u = 0; u < K; u++) {
        const unsigned i = top + u - half; /* above the image: a large number */
        AQ_UNROLL
        for (unsigned v = 0; v < K; v++) {
            const unsigned j = left + v - half;
            const bool inside = i < of.height && j < of.width;
            piece_copy<W>(x + (inside ? static_cast<uint64_t>(i * of.width + j) * C : 0), inside, to + (u * K + v) * C);
        }
    }
}

template <typename Y, int W>
static enum aq_status columns_launch(const struct aq_cuda_columns *args, cudaStream_t stream)
{
    const struct images of = images_of(&args->shape);
    const unsigned C = static_cast<unsigned>(args->shape.C), first = static_cast<unsigned>(args->first);
    const unsigned rows = static_cast<unsigned>(args->rows), stride = static_cast<unsigned>(args->stride);
    const dim3 grid = aq_blocks(args->rows * (args->shape.C / W), COLUMN_THREADS);
    Y *to = static_cast<Y *>(args->to);
    if (args->shape.K == 1)
        return AQ_LAUNCH((columns_gather<Y, W, 1>), grid, COLUMN_THREADS, 0, stream, args->x, to, of, C, first, rows,
                         stride);
    if (args->shape.K == 3)
        return AQ_LAUNCH((columns_gather<Y, W, 3>), grid, COLUMN_THREADS, 0, stream, args->x, to, of, C, first, rows,
                         stride);
    return AQ_LAUNCH((columns_gather<Y, W, 0>), grid, COLUMN_THREADS, 0, stream, args->x, to, of, C, first, rows,
                     stride);
}

/* Values of a piece: 16 bytes of a row where they may be written and read at once. */
static unsigned piece_of(uint64_t C, uint64_t stride, const void *x, const void *row, enum aq_element type)
{
    const bool aligned = aq_aligned(x, 16) && aq_aligned(row, 16);
    if (aligned && type != AQ_F32 && C % 8 == 0 && stride % 8 == 0) return 8;
    return aligned && C % 4 == 0 && stride % 4 == 0 ? 4 : 1;
}

template <typename Y> static enum aq_status columns_half(const struct aq_cuda_columns *args, cudaStream_t stream)
{
    switch (piece_of(args->shape.C, args->stride, args->x, args->to, args->type)) {
    case 8:
        return columns_launch<Y, 8>(args, stream);
    case 4:
        return columns_launch<Y, 4>(args, stream);
    default:
        return columns_launch<Y, 1>(args, stream);
    }
}

enum aq_status aq_cuda_columns(const struct aq_cuda_columns *args, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->shape.C == 0) return AQ_OK;
    if (args->type == AQ_BF16) return columns_half<uint16_t>(args, stream);
    if (args->type == AQ_F16) return columns_half<aq_half>(args, stream);
    if (piece_of(args->shape.C, args->stride, args->x, args->to, AQ_F32) == 4)
        return columns_launch<float, 4>(args, stream);
    return columns_launch<float, 1>(args, stream);
}

/* A thread has W channels of an input pixel, and adds up the places of output pixels that read it, in their order. */
template <int W>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    columns_scatter(const float *__restrict__ from, float *__restrict__ dx, struct images of, unsigned C,
                    unsigned pixels, unsigned stride)
{
    const uint64_t at = aq_thread_index();
    const unsigned pieces = C / W, pixel = static_cast<unsigned>(at / pieces);
    if (pixel >= pixels) return;
    const unsigned c = static_cast<unsigned>(at % pieces) * W, line = pixel / of.width, sample = line / of.height,
                   half = of.K / 2;
    const unsigned row = line % of.height + half, column = pixel % of.width + half;
    float sums[W] = {};
    for (unsigned u = row % of.stride; u < of.K && u <= row; u += of.stride) {
        const unsigned i = (row - u) / of.stride;
        if (i >= of.out_height) continue;
        for (unsigned v = column % of.stride; v < of.K && v <= column; v += of.stride) {
            const unsigned j = (column - v) / of.stride;
            if (j >= of.out_width) continue;
            const uint64_t out = static_cast<uint64_t>(sample * of.out_height + i) * of.out_width + j;
            float values[W];
            aq_load_wide(from + out * stride + (u * of.K + v) * C + c, values);
            for (int w = 0; w < W; w++)
                sums[w] += values[w];
        }
    }
    aq_store_wide(dx + static_cast<uint64_t>(pixel) * C + c, sums);
}

enum aq_status aq_cuda_columns_back(const struct aq_conv_shape *shape, const float *from, uint64_t stride, float *dx,
                                    struct CUstream_st *stream)
{
    const uint64_t pixels = shape->samples * shape->height * shape->width;
    const bool fours = piece_of(shape->C, stride, from, dx, AQ_F32) == 4;
    const dim3 grid = aq_blocks(pixels * (shape->C / (fours ? 4 : 1)), COLUMN_THREADS);
    const unsigned C = static_cast<unsigned>(shape->C), count = static_cast<unsigned>(pixels);
    const unsigned wide = static_cast<unsigned>(stride);
    if (pixels == 0 || shape->C == 0) return AQ_OK;
    if (fours)
        return AQ_LAUNCH(columns_scatter<4>, grid, COLUMN_THREADS, 0, stream, from, dx, images_of(shape), C, count,
                         wide);
    return AQ_LAUNCH(columns_scatter<1>, grid, COLUMN_THREADS, 0, stream, from, dx, images_of(shape), C, count, wide);
}

/* A block has a tile of one place's C x N weights. */
template <typename Y>
static __global__ void __launch_bounds__(TILE *TILE_ROWS)
    weights_turn(const float *__restrict__ w, Y *__restrict__ to, unsigned C, unsigned N, uint64_t stride)
{
    AQ_SHARED(float, tile, [TILE][TILE + 1]);
    const unsigned x = threadIdx.x % TILE, y = threadIdx.x / TILE, n0 = blockIdx.x * TILE, c0 = blockIdx.y * TILE;
    const uint64_t place = blockIdx.z, mirrored = gridDim.z - 1 - place;
    for (unsigned i = y; i < TILE; i += TILE_ROWS)
        if (c0 + i < C && n0 + x < N) tile[i][x] = w[(place * C + c0 + i) * N + n0 + x];
    __syncthreads();
    for (unsigned i = y; i < TILE; i += TILE_ROWS)
        if (n0 + i < N && c0 + x < C) aq_store(to + (mirrored * N + n0 + i) * stride + c0 + x, tile[x][i]);
}

enum aq_status aq_cuda_weights_turn(const struct aq_conv_shape *shape, const float *w, void *to, enum aq_element type,
                                    uint64_t stride, struct CUstream_st *stream)
{
    const unsigned C = static_cast<unsigned>(shape->C), N = static_cast<unsigned>(shape->N);
    const dim3 grid((N + TILE - 1) / TILE, (C + TILE - 1) / TILE, static_cast<unsigned>(shape->K * shape->K));
    const unsigned threads = TILE * TILE_ROWS;
    if (C == 0 || N == 0) return AQ_OK;
    if (type == AQ_BF16)
        return AQ_LAUNCH(weights_turn<uint16_t>, grid, threads, 0, stream, w, static_cast<uint16_t *>(to), C, N,
                         stride);
    if (type == AQ_F16)
        return AQ_LAUNCH(weights_turn<aq_half>, grid, threads, 0, stream, w, static_cast<aq_half *>(to), C, N, stride);
    return AQ_LAUNCH(weights_turn<float>, grid, threads, 0, stream, w, static_cast<float *>(to), C, N, stride);
}

/* A block has a tile: it is read line by line, and added line by line. */
static __global__ void __launch_bounds__(TILE *TILE_ROWS)
    weights_add(const float *__restrict__ from, float *__restrict__ dw, unsigned rows, unsigned columns)
{
    AQ_SHARED(float, tile, [TILE][TILE + 1]);
    const unsigned x = threadIdx.x % TILE, y = threadIdx.x / TILE, r0 = blockIdx.x * TILE, c0 = blockIdx.y * TILE;
    for (unsigned i = y; i < TILE; i += TILE_ROWS)
        if (r0 + i < rows && c0 + x < columns) tile[i][x] = from[static_cast<uint64_t>(r0 + i) * columns + c0 + x];
    __syncthreads();
    for (unsigned i = y; i < TILE; i += TILE_ROWS)
        if (c0 + i < columns && r0 + x < rows) dw[static_cast<uint64_t>(c0 + i) * rows + r0 + x] += tile[x][i];
}

enum aq_status aq_cuda_weights_add(const float *from, uint64_t rows, uint64_t columns, float *dw,
                                   struct CUstream_st *stream)
{
    const unsigned high = static_cast<unsigned>(rows), wide = static_cast<unsigned>(columns);
    const dim3 grid((high + TILE - 1) / TILE, (wide + TILE - 1) / TILE);
    if (rows == 0 || columns == 0) return AQ_OK;
    return AQ_LAUNCH(weights_add, grid, TILE * TILE_ROWS, 0, stream, from, dw, high, wide);
}
