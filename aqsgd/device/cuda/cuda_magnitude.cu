/*
 * cuda_magnitude.cu -- rows with a learnt length (struct aq_magnitude): a block per row, which it reads twice. Of a
 * turned w neighbouring blocks read neighbouring values.
 */
#include "cuda_common.cuh"

constexpr unsigned THREADS = 256;

/* The block's sum in the order of its threads' tree, in every thread. */
static __forceinline__ __device__ double block_sum(double value)
{
    AQ_SHARED(double, sums, [THREADS]);
    __syncthreads();
    sums[threadIdx.x] = value;
    __syncthreads();
    for (unsigned width = THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
        __syncthreads();
    }
    return sums[0];
}

/* d becomes V; the row's length. */
template <typename W, typename Args> static __forceinline__ __device__ float length_of(const Args &args, uint64_t row)
{
    const W *w = static_cast<const W *>(args.w);
    float *v = args.d + row * args.C;
    double sum = 0;
    for (uint64_t c = threadIdx.x; c < args.C; c += THREADS) {
        v[c] = __fadd_rn(v[c], aq_load(args.w_transposed ? w + c * args.rows + row : w + row * args.C + c));
        sum += static_cast<double>(v[c]) * static_cast<double>(v[c]);
    }
    return static_cast<float>(sqrt(block_sum(sum)));
}

template <typename W, typename Y> static __global__ void __launch_bounds__(THREADS) magnitude(struct aq_magnitude args)
{
    const uint64_t row = blockIdx.x;
    const float n = length_of<W>(args, row), factor = n > 0 ? args.m[row] / n : 0.0f;
    const float *v = args.d + row * args.C;
    Y *y = static_cast<Y *>(args.y) + row * args.C;
    for (uint64_t c = threadIdx.x; c < args.C; c += THREADS)
        aq_store(y + c, factor * v[c]);
}

template <typename W>
static __global__ void __launch_bounds__(THREADS) magnitude_backward(struct aq_magnitude_backward args)
{
    const uint64_t row = blockIdx.x;
    const float n = length_of<W>(args, row), factor = n > 0 ? args.m[row] / n : 0.0f;
    const float *v = args.d + row * args.C;
    float *g = args.g + row * args.C;
    double along = 0;
    for (uint64_t c = threadIdx.x; c < args.C; c += THREADS) {
        along += static_cast<double>(g[c]) * static_cast<double>(v[c]);
        g[c] *= args.scale * factor;
    }
    along = block_sum(along);
    if (threadIdx.x == 0 && n > 0) args.dm[row] += static_cast<float>(along / static_cast<double>(n));
}

template <typename W> static enum aq_status magnitude_to(const struct aq_magnitude *args, cudaStream_t stream)
{
    const unsigned rows = static_cast<unsigned>(args->rows);
    if (args->y_type == AQ_BF16) return AQ_LAUNCH((magnitude<W, uint16_t>), rows, THREADS, 0, stream, *args);
    if (args->y_type == AQ_F16) return AQ_LAUNCH((magnitude<W, aq_half>), rows, THREADS, 0, stream, *args);
    return AQ_LAUNCH((magnitude<W, float>), rows, THREADS, 0, stream, *args);
}

enum aq_status aq_cuda_magnitude(const struct aq_magnitude *args, void *, struct CUstream_st *stream)
{
    return aq_by_type(args->w_type, [&](auto t) { return magnitude_to<decltype(t)>(args, stream); });
}

enum aq_status aq_cuda_magnitude_backward(const struct aq_magnitude_backward *args, void *, struct CUstream_st *stream)
{
    const unsigned rows = static_cast<unsigned>(args->rows);
    if (args->w_type == AQ_BF16) return AQ_LAUNCH(magnitude_backward<uint16_t>, rows, THREADS, 0, stream, *args);
    if (args->w_type == AQ_F16) return AQ_LAUNCH(magnitude_backward<aq_half>, rows, THREADS, 0, stream, *args);
    return AQ_LAUNCH(magnitude_backward<float>, rows, THREADS, 0, stream, *args);
}
