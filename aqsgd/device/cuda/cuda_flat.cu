/*
 * cuda_flat.cu -- mathematics of one element at a time: the epilogue of a matrix product, dropout, conversions, initial
 * values, optimizers, and sums of squares. Bound by memory: four elements a thread where alignment lets it.
 *
 * The optimizers and dropout give the CPU's bits (cpu_rows_plain.c): the same operations in the same order, none
 * contracted.
 */
#include <math.h>

#include "cuda_common.cuh"

constexpr unsigned FLAT_THREADS = 256;

/* ---- The epilogue of a matrix product. */

static __forceinline__ __device__ float gelu_tanh(float x)
{
    return tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x));
}

/* x/2 (1 + tanh(z)), z = sqrt(2/pi) (x + 0.044715 x^3). Hendrycks and Gimpel 2016. */
static __forceinline__ __device__ float gelu(float x)
{
    return 0.5f * x * (1.0f + gelu_tanh(x));
}

static __forceinline__ __device__ float gelu_slope(float x)
{
    const float t = gelu_tanh(x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
}

struct finish {
    const void *sums;
    uint64_t sums_stride, N, stride;
    void *c, *other;
    const float *bias;
    uint64_t bias_stride;
    struct aq_cuda_mask mask;
    uint64_t sample_rows, first; /* first: rows before row 0, for the mask */
    enum aq_matmul_after after;
};

template <typename S, typename T, int W>
static __global__ void __launch_bounds__(FLAT_THREADS) matmul_finish(struct finish args)
{
    const uint64_t row = blockIdx.x, step = static_cast<uint64_t>(gridDim.y) * blockDim.x * W;
    const S *sums = static_cast<const S *>(args.sums) + row * args.sums_stride;
    T *c = static_cast<T *>(args.c) + row * args.stride;
    T *other = args.other ? static_cast<T *>(args.other) + row * args.stride : nullptr;
    for (uint64_t n = (static_cast<uint64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W; n < args.N; n += step) {
        float x[W], y[W];
        aq_load_wide(sums + n, x);
        if (args.bias) {
            aq_load_wide(args.bias + row * args.bias_stride + n, y);
            for (int i = 0; i < W; i++)
                x[i] += y[i];
        }
        if (args.after == AQ_AFTER_GELU) {
            aq_store_wide(other + n, x);
            for (int i = 0; i < W; i++)
                x[i] = gelu(x[i]);
        } else if (args.after == AQ_AFTER_GELU_BACKWARD) {
            aq_load_wide(other + n, y);
            for (int i = 0; i < W; i++)
                x[i] *= gelu_slope(y[i]);
        } else if (args.after == AQ_AFTER_RESIDUAL) {
            const uint64_t of = args.first + row, sample = args.mask.keys ? of / args.sample_rows : 0;
            const uint64_t element = args.mask.keys ? of % args.sample_rows * args.N + n : 0;
            aq_mask_wide(args.mask, sample, element, y);
            for (int i = 0; i < W; i++)
                x[i] *= y[i];
            aq_load_wide(other + n, y);
            for (int i = 0; i < W; i++)
                x[i] += y[i];
        }
        aq_store_wide(c + n, x);
    }
}

template <typename S, typename T>
static enum aq_status finish_typed(const struct finish *args, uint64_t M, bool fours, cudaStream_t stream)
{
    const struct aq_row_grid grid = aq_row_grid_of(M, args->N, fours ? 4 : 1);
    if (fours) return AQ_LAUNCH((matmul_finish<S, T, 4>), grid.grid, grid.threads, 0, stream, *args);
    return AQ_LAUNCH((matmul_finish<S, T, 1>), grid.grid, grid.threads, 0, stream, *args);
}

enum aq_status aq_cuda_matmul_finish(const struct aq_matmul *args, const void *sums, enum aq_element sums_type,
                                     uint64_t sums_stride, uint64_t first, struct CUstream_st *stream)
{
    if (args->M == 0 || args->N == 0) return AQ_OK;
    struct finish finish = {};
    finish.sums = sums;
    finish.sums_stride = sums_stride;
    finish.N = args->N;
    finish.stride = args->c_stride;
    finish.c = args->c;
    finish.other = args->after == AQ_AFTER_NONE ? nullptr : args->other;
    finish.bias = args->bias;
    finish.bias_stride = args->bias_stride;
    if (args->after == AQ_AFTER_RESIDUAL) finish.mask = aq_cuda_mask_of(&args->dropout);
    finish.sample_rows = args->dropout_sample_rows;
    finish.first = first;
    finish.after = args->after;
    const bool fours = args->N % 4 == 0 && sums_stride % 4 == 0 && args->c_stride % 4 == 0 &&
                       args->bias_stride % 4 == 0 && aq_fours(sums, sums_type) && aq_fours(args->c, args->c_type) &&
                       aq_fours(args->bias, AQ_F32) && aq_fours(finish.other, args->c_type);
    const bool wide = sums_type == AQ_F32;
    if (args->c_type == AQ_BF16)
        return wide ? finish_typed<float, uint16_t>(&finish, args->M, fours, stream)
                    : finish_typed<uint16_t, uint16_t>(&finish, args->M, fours, stream);
    if (args->c_type == AQ_F16)
        return wide ? finish_typed<float, aq_half>(&finish, args->M, fours, stream)
                    : finish_typed<aq_half, aq_half>(&finish, args->M, fours, stream);
    return finish_typed<float, float>(&finish, args->M, fours, stream);
}

/* ---- Dropout and conversions. */

template <typename X, typename Y, int W>
static __global__ void __launch_bounds__(FLAT_THREADS)
    dropout(const X *x, Y *y, uint64_t elements, bool add, struct aq_cuda_mask mask)
{
    const uint64_t sample = blockIdx.x, step = static_cast<uint64_t>(gridDim.y) * blockDim.x * W;
    x += sample * elements;
    y += sample * elements;
    for (uint64_t i = (static_cast<uint64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W; i < elements; i += step) {
        float values[W], factors[W];
        aq_load_wide(x + i, values);
        aq_mask_wide(mask, sample, i, factors);
        for (int k = 0; k < W; k++)
            values[k] *= factors[k];
        if (add) {
            aq_load_wide(y + i, factors);
            for (int k = 0; k < W; k++)
                values[k] += factors[k];
        }
        aq_store_wide(y + i, values);
    }
}

template <typename X, typename Y>
static enum aq_status dropout_typed(const struct aq_dropout_apply *args, cudaStream_t stream)
{
    const bool fours =
        args->sample_elements % 4 == 0 && aq_fours(args->x, args->x_type) && aq_fours(args->y, args->y_type);
    const struct aq_row_grid grid = aq_row_grid_of(args->samples, args->sample_elements, fours ? 4 : 1);
    const struct aq_cuda_mask mask = aq_cuda_mask_of(&args->dropout);
    const uint64_t elements = args->sample_elements;
    const X *x = static_cast<const X *>(args->x);
    Y *y = static_cast<Y *>(args->y);
    if (fours)
        return AQ_LAUNCH((dropout<X, Y, 4>), grid.grid, grid.threads, 0, stream, x, y, elements, args->add, mask);
    return AQ_LAUNCH((dropout<X, Y, 1>), grid.grid, grid.threads, 0, stream, x, y, elements, args->add, mask);
}

template <typename X> static enum aq_status dropout_from(const struct aq_dropout_apply *args, cudaStream_t stream)
{
    return aq_by_type(args->y_type, [&](auto t) { return dropout_typed<X, decltype(t)>(args, stream); });
}

enum aq_status aq_cuda_dropout(const struct aq_dropout_apply *args, void *, struct CUstream_st *stream)
{
    if (args->samples == 0 || args->sample_elements == 0) return AQ_OK;
    return aq_by_type(args->x_type, [&](auto t) { return dropout_from<decltype(t)>(args, stream); });
}

template <typename X, typename Y, int W>
static __global__ void __launch_bounds__(FLAT_THREADS)
    convert(const X *x, uint64_t x_stride, Y *y, uint64_t y_stride, uint64_t columns)
{
    const uint64_t row = blockIdx.x, step = static_cast<uint64_t>(gridDim.y) * blockDim.x * W;
    x += row * x_stride;
    y += row * y_stride;
    for (uint64_t i = (static_cast<uint64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W; i < columns; i += step) {
        float values[W];
        aq_load_wide(x + i, values);
        aq_store_wide(y + i, values);
    }
}

template <typename X, typename Y>
static enum aq_status convert_typed(const void *x, uint64_t x_stride, void *y, uint64_t y_stride, uint64_t rows,
                                    uint64_t columns, bool fours, cudaStream_t stream)
{
    const struct aq_row_grid grid = aq_row_grid_of(rows, columns, fours ? 4 : 1);
    const X *from = static_cast<const X *>(x);
    Y *to = static_cast<Y *>(y);
    if (fours)
        return AQ_LAUNCH((convert<X, Y, 4>), grid.grid, grid.threads, 0, stream, from, x_stride, to, y_stride, columns);
    return AQ_LAUNCH((convert<X, Y, 1>), grid.grid, grid.threads, 0, stream, from, x_stride, to, y_stride, columns);
}

template <typename X>
static enum aq_status convert_to(const void *x, uint64_t x_stride, void *y, enum aq_element y_type, uint64_t y_stride,
                                 uint64_t rows, uint64_t columns, bool fours, cudaStream_t stream)
{
    return aq_by_type(y_type, [&](auto t) {
        return convert_typed<X, decltype(t)>(x, x_stride, y, y_stride, rows, columns, fours, stream);
    });
}

enum aq_status aq_cuda_convert(const void *x, enum aq_element x_type, uint64_t x_stride, void *y,
                               enum aq_element y_type, uint64_t y_stride, uint64_t rows, uint64_t columns,
                               struct CUstream_st *stream)
{
    if (rows == 0 || columns == 0) return AQ_OK;
    if (x_stride == columns && y_stride == columns) { /* short rows would be short blocks */
        columns *= rows;
        rows = 1;
        x_stride = y_stride = columns;
    }
    const bool fours =
        columns % 4 == 0 && x_stride % 4 == 0 && y_stride % 4 == 0 && aq_fours(x, x_type) && aq_fours(y, y_type);
    return aq_by_type(x_type, [&](auto t) {
        return convert_to<decltype(t)>(x, x_stride, y, y_type, y_stride, rows, columns, fours, stream);
    });
}

/* ---- Initial values. */

/* The most that another library's log and cos may together differ from the host's: 6 units of 2^-52, with some room. */
constexpr double NORMAL_DOUBT = 0x1p-46;

/* The emulation's library is the host's, so it errs on purpose: the test must see what a GPU's may do. */
static __forceinline__ __device__ double normal_of(double radius, double angle)
{
#ifdef AQ_CUDA_HOST
    return radius * cos(angle) * (1.0 + 0x1p-49);
#else
    return radius * cos(angle);
#endif
}

/*
 * Box-Muller in double, as aq_rng_normal (aqsgd/base/rng.c). If another log or cos could round to another float, one
 * value in a few millions, its index goes into the list: their number, then the indices, in any order.
 */
static __global__ void __launch_bounds__(FLAT_THREADS)
    fill_normal(struct aq_fill_normal args, unsigned long long *doubtful, unsigned long long room)
{
    const uint64_t i = aq_thread_index();
    if (i >= args.count) return;
    if (args.std == 0.0f) {
        args.x[i] = args.value;
        return;
    }
    const uint4 block = aq_philox(args.key, i / 2);
    const uint32_t first = i % 2 ? block.z : block.x, second = i % 2 ? block.w : block.y;
    const double radius = sqrt(-2.0 * log((static_cast<double>(first) + 0.5) * (1.0 / 4294967296.0)));
    const double angle = 6.283185307179586476925 * static_cast<double>(second) * (1.0 / 4294967296.0);
    const double value = normal_of(radius, angle);
    args.x[i] = args.std * static_cast<float>(value);
    if (static_cast<float>(value * (1.0 - NORMAL_DOUBT)) == static_cast<float>(value * (1.0 + NORMAL_DOUBT))) return;
    const unsigned long long at = atomicAdd(doubtful, 1ull);
    if (at < room) doubtful[1 + at] = i;
}

enum aq_status aq_cuda_fill_normal(const struct aq_fill_normal *args, uint64_t *doubtful, uint64_t room,
                                   struct CUstream_st *stream)
{
    if (args->count == 0) return AQ_OK;
    return AQ_LAUNCH(fill_normal, aq_blocks(args->count, FLAT_THREADS), FLAT_THREADS, 0, stream, *args,
                     reinterpret_cast<unsigned long long *>(doubtful), room);
}

/* ---- Scaling. */

template <int W> static __global__ void __launch_bounds__(FLAT_THREADS) scale(struct aq_scale args)
{
    const uint64_t at = aq_thread_index() * W;
    if (at >= args.count) return;
    float values[W];
    aq_load_wide(args.x + at, values);
    for (int i = 0; i < W; i++)
        values[i] *= args.factor;
    aq_store_wide(args.x + at, values);
}

enum aq_status aq_cuda_scale(const struct aq_scale *args, void *, struct CUstream_st *stream)
{
    if (args->count == 0) return AQ_OK;
    const bool fours = args->count % 4 == 0 && aq_fours(args->x, AQ_F32);
    const dim3 grid = aq_blocks(args->count, FLAT_THREADS * (fours ? 4 : 1));
    if (fours) return AQ_LAUNCH(scale<4>, grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH(scale<1>, grid, FLAT_THREADS, 0, stream, *args);
}

template <int W> static __global__ void __launch_bounds__(FLAT_THREADS) cap(struct aq_cap args)
{
    const uint64_t at = aq_thread_index() * W;
    if (at >= args.count) return;
    float values[W];
    aq_load_wide(args.x + at, values);
    for (int i = 0; i < W; i++)
        values[i] = args.cap * tanhf(values[i] / args.cap);
    aq_store_wide(args.x + at, values);
}

enum aq_status aq_cuda_cap(const struct aq_cap *args, void *, struct CUstream_st *stream)
{
    if (args->count == 0) return AQ_OK;
    const bool fours = args->count % 4 == 0 && aq_fours(args->x, AQ_F32);
    const dim3 grid = aq_blocks(args->count, FLAT_THREADS * (fours ? 4 : 1));
    if (fours) return AQ_LAUNCH(cap<4>, grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH(cap<1>, grid, FLAT_THREADS, 0, stream, *args);
}

/* ---- Weights of 8 bits. */

template <typename Y, int W> static __global__ void __launch_bounds__(FLAT_THREADS) unpack(struct aq_unpack args)
{
    const uint64_t at = aq_thread_index() * W;
    if (at >= args.count) return;
    const float scale = args.scales[at / AQ_UNPACK_GROUP];
    float values[W];
    for (int i = 0; i < W; i++)
        values[i] = __fmul_rn(static_cast<float>(args.x[at + i]), scale);
    aq_store_wide(static_cast<Y *>(args.y) + at, values);
}

template <typename Y> static enum aq_status unpack_to(const struct aq_unpack *args, cudaStream_t stream)
{
    const bool fours = args->count % 4 == 0 && aq_fours(args->y, args->y_type);
    const dim3 grid = aq_blocks(args->count, FLAT_THREADS * (fours ? 4 : 1));
    if (fours) return AQ_LAUNCH((unpack<Y, 4>), grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH((unpack<Y, 1>), grid, FLAT_THREADS, 0, stream, *args);
}

enum aq_status aq_cuda_unpack(const struct aq_unpack *args, void *, struct CUstream_st *stream)
{
    if (args->count == 0) return AQ_OK;
    return aq_by_type(args->y_type, [&](auto t) { return unpack_to<decltype(t)>(args, stream); });
}

/* ---- Weights of 4 bits. */

static __forceinline__ __device__ float nf4_scale(const struct aq_unpack_nf4 &args, uint64_t group)
{
    if (!args.scale_codes) return args.scales[group];
    const float scale = __fmul_rn(args.map[args.scale_codes[group]], args.scales[group / AQ_NF4_SCALES]);
    return __fadd_rn(scale, args.map[AQ_NF4_MAP - 1]);
}

/* The table is in shared memory: threads of a warp have different codes, which constant memory would serialize. */
template <typename Y, int W>
static __global__ void __launch_bounds__(FLAT_THREADS) unpack_nf4(struct aq_unpack_nf4 args)
{
    const float VALUES[] = {AQ_NF4_VALUES};
    AQ_SHARED(float, table, [16]);
    for (uint32_t i = threadIdx.x; i < 16; i += blockDim.x)
        table[i] = VALUES[i];
    __syncthreads();
    const uint64_t at = aq_thread_index() * W;
    if (at >= args.count) return;
    const float scale = nf4_scale(args, at / AQ_UNPACK_GROUP);
    float values[W];
    for (int i = 0; i < W; i++) {
        const uint8_t both = args.x[(at + i) / 2];
        values[i] = __fmul_rn(table[(at + i) % 2 ? both & 0xf : both >> 4], scale);
    }
    aq_store_wide(static_cast<Y *>(args.y) + at, values);
}

template <typename Y> static enum aq_status unpack_nf4_to(const struct aq_unpack_nf4 *args, cudaStream_t stream)
{
    const bool fours = args->count % 4 == 0 && aq_fours(args->y, args->y_type);
    const dim3 grid = aq_blocks(args->count, FLAT_THREADS * (fours ? 4 : 1));
    if (fours) return AQ_LAUNCH((unpack_nf4<Y, 4>), grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH((unpack_nf4<Y, 1>), grid, FLAT_THREADS, 0, stream, *args);
}

enum aq_status aq_cuda_unpack_nf4(const struct aq_unpack_nf4 *args, void *, struct CUstream_st *stream)
{
    if (args->count == 0) return AQ_OK;
    return aq_by_type(args->y_type, [&](auto t) { return unpack_nf4_to<decltype(t)>(args, stream); });
}

/* ---- The sum of squares. */

/* The block's sum in the order of its threads' tree; valid in thread 0. */
static __forceinline__ __device__ double block_sum(double value)
{
    AQ_SHARED(double, sums, [FLAT_THREADS]);
    sums[threadIdx.x] = value;
    __syncthreads();
    for (unsigned width = FLAT_THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
        __syncthreads();
    }
    return sums[0];
}

/*
 * Spans travel in the kernel's parameters. A piece is a block's, and within one span. For every alignment of a span,
 * thread t adds elements 4 t to 4 t + 3 of each row of 4 * FLAT_THREADS, so that a sum's bits depend only on its count.
 */
constexpr uint64_t SQUARES_PIECE = 64 * FLAT_THREADS;
constexpr unsigned SQUARES_SPANS = 128;

struct squares {
    const float *x;
    unsigned spans;
    struct {
        uint64_t first, count;
        unsigned piece; /* the first of the span's */
    } span[SQUARES_SPANS + 1];
};

template <int W> static __forceinline__ __device__ double squares_of(const float *x, uint64_t count)
{
    double sums[4] = {};
    for (uint64_t i = threadIdx.x * 4; i + 4 <= count; i += 4 * FLAT_THREADS) {
        float values[4];
        if constexpr (W == 4)
            aq_load_wide(x + i, values);
        else
            for (int k = 0; k < 4; k++)
                values[k] = x[i + k];
        for (int k = 0; k < 4; k++)
            sums[k] += static_cast<double>(values[k]) * values[k];
    }
    const uint64_t rest = count / 4 * 4 + threadIdx.x;
    if (rest < count) sums[0] += static_cast<double>(x[rest]) * x[rest];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static __global__ void __launch_bounds__(FLAT_THREADS) squares_piece(struct squares args, double *partial)
{
    unsigned low = 0, high = args.spans; /* the span whose pieces this one is among */
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (args.span[middle].piece <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    const uint64_t at = (blockIdx.x - args.span[low].piece) * SQUARES_PIECE, left = args.span[low].count - at;
    const float *x = args.x + args.span[low].first + at;
    const uint64_t count = left < SQUARES_PIECE ? left : SQUARES_PIECE;
    const bool fours = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    const double sum = block_sum(fours ? squares_of<4>(x, count) : squares_of<1>(x, count));
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* A block a span: its partial sums in order. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    squares_total(struct squares args, const double *partial, double *totals)
{
    double sum = 0.0;
    for (unsigned i = args.span[blockIdx.x].piece + threadIdx.x; i < args.span[blockIdx.x + 1].piece; i += FLAT_THREADS)
        sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) totals[blockIdx.x] = sum;
}

/* The scratch holds a partial sum for each 16384 values: 64 G of them. */
enum aq_status aq_cuda_squares(const float *x, const struct aq_range *spans, uint32_t count, double *sums,
                               void *scratch, struct CUstream_st *stream)
{
    double *partial = static_cast<double *>(scratch);
    struct squares args = {};
    args.x = x;
    for (uint32_t first = 0; first < count; first += SQUARES_SPANS) {
        args.spans = count - first < SQUARES_SPANS ? count - first : SQUARES_SPANS;
        uint64_t pieces = 0;
        for (unsigned i = 0; i < args.spans; i++) {
            args.span[i].first = spans[first + i].first;
            args.span[i].count = spans[first + i].count;
            args.span[i].piece = static_cast<unsigned>(pieces);
            pieces += (spans[first + i].count + SQUARES_PIECE - 1) / SQUARES_PIECE;
        }
        if (pieces > AQ_CUDA_SCRATCH_BYTES / sizeof(double))
            return aq_fail(AQ_INVAL, "device", "squares of %llu pieces of values: the scratch holds %llu",
                           static_cast<unsigned long long>(pieces),
                           static_cast<unsigned long long>(AQ_CUDA_SCRATCH_BYTES / sizeof(double)));
        args.span[args.spans].piece = static_cast<unsigned>(pieces);
        const dim3 grid(static_cast<unsigned>(pieces));
        if (pieces) AQ_TRY(AQ_LAUNCH(squares_piece, grid, FLAT_THREADS, 0, stream, args, partial));
        AQ_TRY(AQ_LAUNCH(squares_total, args.spans, FLAT_THREADS, 0, stream, args, partial, sums + first));
    }
    return AQ_OK;
}
