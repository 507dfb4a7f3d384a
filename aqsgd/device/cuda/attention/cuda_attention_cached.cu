/*
 * cuda_attention_cached.cu -- attention of new tokens over keys and values that are kept. Truth:
 * cpu_attention_cached.c.
 *
 * A block has one head of one new token. Its warps take the keys in turn, each with the largest score, the sum of
 * exponentials and the weighted sum of values of its own keys; the block then sums over the warps in order.
 */
#include <math.h>

#include "cuda_common.cuh"

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS;
constexpr unsigned D_MAX = 512, EACH = D_MAX / 32; /* channels of a lane */

/* Bits of any type: keys and values of the new tokens, to the cache. */
template <typename T> static __global__ void __launch_bounds__(THREADS) keep(struct aq_attention_cached args)
{
    const uint64_t width = 2 * args.kv_heads * args.D, own = args.H * args.D;
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x, row = i / width, column = i % width;
    if (row >= args.samples * args.T) return;
    const uint64_t to = row / args.T * args.rows + args.first + row % args.T;
    static_cast<T *>(args.cache)[to * width + column] =
        static_cast<const T *>(args.qkv)[row * (own + width) + own + column];
}

/* The state of a warp over the keys that it has seen. */
struct seen {
    float top, sum, values[EACH];
};

/* One more key: its score times its value, and all before it, below the new top. */
template <typename T> static __forceinline__ __device__ void see(struct seen *seen, float score, const T *v, unsigned D)
{
    const float top = fmaxf(seen->top, score), factor = expf(seen->top - top), weight = expf(score - top);
    seen->top = top;
    seen->sum = fmaf(seen->sum, factor, weight);
    for (unsigned i = 0, d = threadIdx.x % 32; d < D; i++, d += 32)
        seen->values[i] = fmaf(seen->values[i], factor, weight * aq_load(v + d));
}

/* The grid is (heads, new tokens of all samples). */
template <typename T>
static __global__ void __launch_bounds__(THREADS) attention_cached(struct aq_attention_cached args, float scale)
{
    AQ_SHARED(float, tops, [WARPS]);
    AQ_SHARED(float, totals, [WARPS]);
    AQ_SHARED(float, values, [WARPS][D_MAX]);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, D = static_cast<unsigned>(args.D);
    const uint64_t head = blockIdx.x, row = blockIdx.y, width = 2 * args.kv_heads * args.D;
    const uint64_t end = args.first + row % args.T + 1;
    const uint64_t begin = args.window && end > args.window ? end - args.window : 0;
    const T *q = static_cast<const T *>(args.qkv) + row * (args.H * D + width) + head * D;
    const T *keys =
        static_cast<const T *>(args.cache) + row / args.T * args.rows * width + head / (args.H / args.kv_heads) * D;
    struct seen seen = {-INFINITY, 0.0f, {}};
    for (uint64_t key = begin + warp; key < end; key += WARPS) {
        const T *k = keys + key * width;
        float score = 0.0f;
        for (unsigned d = lane; d < D; d += 32)
            score = fmaf(aq_load(q + d), aq_load(k + d), score);
        score = aq_warp_sum(score) * scale;
        if (args.cap > 0.0f) score = args.cap * tanhf(score / args.cap);
        see(&seen, score, k + args.kv_heads * D, D);
    }
    for (unsigned i = 0, d = lane; d < D; i++, d += 32)
        values[warp][d] = seen.values[i];
    if (lane == 0) {
        tops[warp] = seen.top;
        totals[warp] = seen.sum;
    }
    __syncthreads();
    float top = tops[0], sum = 0.0f;
    for (unsigned w = 1; w < WARPS; w++)
        top = fmaxf(top, tops[w]);
    for (unsigned w = 0; w < WARPS; w++)
        sum = fmaf(totals[w], expf(tops[w] - top), sum);
    T *out = static_cast<T *>(args.out) + (row * args.H + head) * D;
    for (unsigned d = threadIdx.x; d < D; d += THREADS) {
        float value = 0.0f;
        for (unsigned w = 0; w < WARPS; w++)
            value = fmaf(values[w][d], expf(tops[w] - top), value);
        aq_store(out + d, value / sum);
    }
}

template <typename T> static enum aq_status cached_typed(const struct aq_attention_cached *args, cudaStream_t stream)
{
    const uint64_t rows = args->samples * args->T;
    const dim3 kept = aq_blocks(rows * 2 * args->kv_heads * args->D, THREADS);
    const dim3 grid(static_cast<unsigned>(args->H), static_cast<unsigned>(rows));
    AQ_TRY(AQ_LAUNCH(keep<T>, kept, THREADS, 0, stream, *args));
    if (!args->out) return AQ_OK;
    const float scale = args->scale != 0.0f ? args->scale : 1.0f / sqrtf(static_cast<float>(args->D));
    return AQ_LAUNCH(attention_cached<T>, grid, THREADS, 0, stream, *args, scale);
}

enum aq_status aq_cuda_attention_cached(const struct aq_attention_cached *args, void *, struct CUstream_st *stream)
{
    const uint64_t rows = args->samples * args->T;
    if (rows == 0) return AQ_OK;
    if (args->D > D_MAX || (args->out && rows > 65535))
        return aq_fail(AQ_INVAL, "device",
                       "%llu tokens over kept ones, %llu channels a head: at most 65535, %u on a GPU",
                       static_cast<unsigned long long>(rows), static_cast<unsigned long long>(args->D), D_MAX);
    return aq_by_type(args->type, [&](auto t) { return cached_typed<decltype(t)>(args, stream); });
}
