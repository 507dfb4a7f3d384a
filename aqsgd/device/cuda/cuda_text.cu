/*
 * cuda_text.cu -- the mathematics of text encoders: the exact GELU, tanh, and rows next to their neighbours for a
 * convolution over tokens. Bound by memory. Truth: cpu_text.c.
 */
#include "cuda_common.cuh"

#include <math.h>

constexpr unsigned FLAT_THREADS = 256;

static __forceinline__ __device__ float normal_below(float x)
{
    return 0.5f * erfcf(-0.7071067811865476f * x);
}

template <typename E> static __global__ void __launch_bounds__(FLAT_THREADS) gelu(struct aq_gelu args)
{
    const uint64_t i = aq_thread_index();
    if (i >= args.count) return;
    const float x = aq_load(static_cast<const E *>(args.x) + i), gated = x * normal_below(x);
    if (args.other)
        static_cast<float *>(args.y)[i] = args.other[i] + gated;
    else
        aq_store(static_cast<E *>(args.y) + i, gated);
}

enum aq_status aq_cuda_gelu(const struct aq_gelu *args, void *, struct CUstream_st *stream)
{
    const dim3 grid = aq_blocks(args->count, FLAT_THREADS);
    if (args->count == 0) return AQ_OK;
    if (args->type == AQ_BF16) return AQ_LAUNCH((gelu<uint16_t>), grid, FLAT_THREADS, 0, stream, *args);
    if (args->type == AQ_F16) return AQ_LAUNCH((gelu<struct aq_half>), grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH((gelu<float>), grid, FLAT_THREADS, 0, stream, *args);
}

template <typename E> static __global__ void __launch_bounds__(FLAT_THREADS) gelu_backward(struct aq_gelu_backward args)
{
    const uint64_t i = aq_thread_index();
    if (i >= args.count) return;
    const float x = aq_load(static_cast<const E *>(args.x) + i), dy = aq_load(static_cast<const E *>(args.dy) + i);
    const float density = 0.3989422804014327f * expf(-0.5f * x * x);
    aq_store(static_cast<E *>(args.dx) + i, dy * (normal_below(x) + x * density));
}

enum aq_status aq_cuda_gelu_backward(const struct aq_gelu_backward *args, void *, struct CUstream_st *stream)
{
    const dim3 grid = aq_blocks(args->count, FLAT_THREADS);
    if (args->count == 0) return AQ_OK;
    if (args->type == AQ_BF16) return AQ_LAUNCH((gelu_backward<uint16_t>), grid, FLAT_THREADS, 0, stream, *args);
    if (args->type == AQ_F16) return AQ_LAUNCH((gelu_backward<struct aq_half>), grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH((gelu_backward<float>), grid, FLAT_THREADS, 0, stream, *args);
}

static __global__ void __launch_bounds__(FLAT_THREADS) tangent(struct aq_tanh args)
{
    const uint64_t i = aq_thread_index();
    if (i < args.count) args.y[i] = tanhf(args.x[i]);
}

enum aq_status aq_cuda_tanh(const struct aq_tanh *args, void *, struct CUstream_st *stream)
{
    if (args->count == 0) return AQ_OK;
    return AQ_LAUNCH(tangent, aq_blocks(args->count, FLAT_THREADS), FLAT_THREADS, 0, stream, *args);
}

static __global__ void __launch_bounds__(FLAT_THREADS) tangent_backward(struct aq_tanh_backward args)
{
    const uint64_t i = aq_thread_index();
    if (i < args.count) args.dx[i] = args.dy[i] * (1.0f - args.y[i] * args.y[i]);
}

enum aq_status aq_cuda_tanh_backward(const struct aq_tanh_backward *args, void *, struct CUstream_st *stream)
{
    if (args->count == 0) return AQ_OK;
    return AQ_LAUNCH(tangent_backward, aq_blocks(args->count, FLAT_THREADS), FLAT_THREADS, 0, stream, *args);
}

static __forceinline__ __device__ int64_t length_of(const uint32_t *lengths, uint64_t sample, uint64_t T)
{
    return static_cast<int64_t>(lengths && lengths[sample] < T ? lengths[sample] : T);
}

/* A thread an element of y. */
template <typename E> static __global__ void __launch_bounds__(FLAT_THREADS) unfold(struct aq_unfold args)
{
    const uint64_t at = aq_thread_index(), C = args.C, K = args.K;
    if (at >= args.samples * args.T * C * K) return;
    const uint64_t row = at / (C * K), c = at / K % C, sample = row / args.T;
    const int64_t from = static_cast<int64_t>(row % args.T + at % K) - static_cast<int64_t>(K / 2);
    const bool real = from >= 0 && from < length_of(args.lengths, sample, args.T);
    const float value = real ? args.x[(sample * args.T + static_cast<uint64_t>(from)) * C + c] : 0.0f;
    aq_store(static_cast<E *>(args.y) + at, value);
}

enum aq_status aq_cuda_unfold(const struct aq_unfold *args, void *, struct CUstream_st *stream)
{
    const uint64_t count = args->samples * args->T * args->C * args->K;
    const dim3 grid = aq_blocks(count, FLAT_THREADS);
    if (count == 0) return AQ_OK;
    if (args->y_type == AQ_BF16) return AQ_LAUNCH((unfold<uint16_t>), grid, FLAT_THREADS, 0, stream, *args);
    if (args->y_type == AQ_F16) return AQ_LAUNCH((unfold<struct aq_half>), grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH((unfold<float>), grid, FLAT_THREADS, 0, stream, *args);
}

/* A thread an element of dx. */
static __global__ void __launch_bounds__(FLAT_THREADS) unfold_backward(struct aq_unfold_backward args)
{
    const uint64_t at = aq_thread_index(), C = args.C, K = args.K;
    if (at >= args.samples * args.T * C) return;
    const uint64_t c = at % C, sample = at / C / args.T;
    const int64_t t = static_cast<int64_t>(at / C % args.T);
    if (t >= length_of(args.lengths, sample, args.T)) return;
    float sum = args.dx[at];
    for (uint64_t k = 0; k < K; k++) {
        const int64_t row = t - static_cast<int64_t>(k) + static_cast<int64_t>(K / 2);
        if (row < 0 || row >= static_cast<int64_t>(args.T)) continue;
        sum += args.dy[((sample * args.T + static_cast<uint64_t>(row)) * C + c) * K + k];
    }
    args.dx[at] = sum;
}

enum aq_status aq_cuda_unfold_backward(const struct aq_unfold_backward *args, void *, struct CUstream_st *stream)
{
    const uint64_t count = args->samples * args->T * args->C;
    if (count == 0) return AQ_OK;
    return AQ_LAUNCH(unfold_backward, aq_blocks(count, FLAT_THREADS), FLAT_THREADS, 0, stream, *args);
}
