/*
 * cuda_disentangled.cu -- disentangled attention by fp32 multiply-adds, plainly: a block makes one row of scores, or
 * one column, and its results.
 *
 * Scores are recomputed wherever they are needed: by queries (dq), by keys (dk, dv) and along diagonals, because a row
 * of the positions belongs to distances (dpositions). Nothing is added by two blocks, so that results do not depend on
 * their order. Truth: cpu_disentangled.c.
 */
#include "cuda_common.cuh"

#include <math.h>

constexpr unsigned THREADS = 128, WARPS = THREADS / 32;
constexpr uint64_t T_MAX = 12u << 10; /* a row of scores is in shared memory */

/* A head of a sample, in elements of its type. */
template <typename E> struct head {
    const E *q, *k, *v, *kr, *qr, *out, *dout;
    const int32_t *index;                     /* of distance 0 */
    uint64_t sample, head, length, C, D, row; /* row: of lse and delta, the first query's */
};

template <typename E>
static __forceinline__ __device__ struct head<E> head_of(const struct aq_disentangled &args, uint64_t sample,
                                                         uint64_t h) {
    struct head<E> head;
    const uint64_t C = args.H * args.D, length = args.lengths ? args.lengths[sample] : args.T;
    head.q = static_cast<const E *>(args.qkv) + sample * args.T * 3 * C + h * args.D;
    head.k = head.q + C;
    head.v = head.k + C;
    head.qr = static_cast<const E *>(args.positions) + h * args.D;
    head.kr = head.qr + C;
    head.out = static_cast<const E *>(args.out) + sample * args.T * C + h * args.D;
    head.dout = args.dout ? static_cast<const E *>(args.dout) + sample * args.T * C + h * args.D : nullptr;
    head.index = args.index + args.T - 1;
    head.sample = sample;
    head.head = h;
    head.length = length < args.T ? length : args.T;
    head.C = C;
    head.D = args.D;
    head.row = (sample * args.H + h) * args.T;
    return head;
}

/* Of a query and a key: the row of positions; the score, not yet scaled; the gradient of the weight before its mask. */
template <typename E>
static __forceinline__ __device__ uint64_t position(const struct head<E> &head, uint64_t i, uint64_t j)
{
    return static_cast<uint64_t>(head.index[static_cast<int64_t>(i) - static_cast<int64_t>(j)]);
}

template <typename E> static __forceinline__ __device__ float score(const struct head<E> &head, uint64_t i, uint64_t j)
{
    const uint64_t r = position(head, i, j);
    const E *q = head.q + i * 3 * head.C, *k = head.k + j * 3 * head.C;
    const E *kr = head.kr + r * 2 * head.C, *qr = head.qr + r * 2 * head.C;
    float content = 0.0f, by_query = 0.0f, by_key = 0.0f;
    for (uint64_t d = 0; d < head.D; d++) {
        const float of_query = aq_load(q + d), of_key = aq_load(k + d);
        content = fmaf(of_query, of_key, content);
        by_query = fmaf(of_query, aq_load(kr + d), by_query);
        by_key = fmaf(of_key, aq_load(qr + d), by_key);
    }
    return content + by_query + by_key;
}

template <typename E>
static __forceinline__ __device__ float weight_gradient(const struct head<E> &head, uint64_t i, uint64_t j)
{
    float sum = 0.0f;
    for (uint64_t d = 0; d < head.D; d++)
        sum = fmaf(aq_load(head.dout + i * head.C + d), aq_load(head.v + j * 3 * head.C + d), sum);
    return sum;
}

template <typename E>
static __forceinline__ __device__ float mask_of(const struct aq_disentangled &args, const struct aq_cuda_mask &mask,
                                                const struct head<E> &head, uint64_t i, uint64_t j)
{
    return aq_mask_factor(mask, head.sample, (head.head * args.T_mask + i) * args.T_mask + j);
}

/* The masked weight, and the gradient of the score. delta: of the query. */
template <typename E>
static __forceinline__ __device__ float score_gradient(const struct aq_disentangled &args,
                                                       const struct aq_cuda_mask &mask, const struct head<E> &head,
                                                       uint64_t i, uint64_t j, float delta, float *masked)
{
    const float weight = expf(score(head, i, j) * args.scale - args.lse[head.row + i]);
    const float kept = mask_of(args, mask, head, i, j);
    *masked = weight * kept;
    return weight * (weight_gradient(head, i, j) * kept - delta) * args.scale;
}

/* The block's sum or largest, in every thread; `parts` has WARPS floats. */
template <bool LARGEST> static __forceinline__ __device__ float block_of(float value, float *parts)
{
    value = LARGEST ? aq_warp_max(value) : aq_warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    float all = parts[0];
    for (unsigned warp = 1; warp < WARPS; warp++)
        all = LARGEST ? fmaxf(all, parts[warp]) : all + parts[warp];
    return all;
}

template <typename E>
static __global__ void __launch_bounds__(THREADS) forward(struct aq_disentangled args, struct aq_cuda_mask mask)
{
    AQ_SHARED_DYNAMIC(float, weights);
    AQ_SHARED(float, parts, [WARPS]);
    const struct head<E> head = head_of<E>(args, blockIdx.z, blockIdx.y);
    const uint64_t i = blockIdx.x;
    E *out = static_cast<E *>(args.out) + (head.out - static_cast<const E *>(args.out)) + i * head.C;
    if (i >= head.length) {
        for (uint64_t d = threadIdx.x; d < head.D; d += THREADS)
            aq_store(out + d, 0.0f);
        if (threadIdx.x == 0) args.lse[head.row + i] = 0.0f;
        return;
    }
    float top = -INFINITY, sum = 0.0f;
    for (uint64_t j = threadIdx.x; j < head.length; j += THREADS) {
        weights[j] = score(head, i, j) * args.scale;
        top = fmaxf(top, weights[j]);
    }
    top = block_of<true>(top, parts);
    for (uint64_t j = threadIdx.x; j < head.length; j += THREADS) {
        const float weight = expf(weights[j] - top);
        sum += weight;
        weights[j] = weight * mask_of(args, mask, head, i, j);
    }
    sum = block_of<false>(sum, parts);
    __syncthreads();
    for (uint64_t d = threadIdx.x; d < head.D; d += THREADS) {
        float value = 0.0f;
        for (uint64_t j = 0; j < head.length; j++)
            value = fmaf(weights[j], aq_load(head.v + j * 3 * head.C + d), value);
        aq_store(out + d, value / sum);
    }
    if (threadIdx.x == 0) args.lse[head.row + i] = top + logf(sum);
}

/* Of a query: delta, kept for the others, and dq. */
template <typename E>
static __global__ void __launch_bounds__(THREADS)
    backward_query(struct aq_disentangled args, struct aq_cuda_mask mask, float *deltas)
{
    AQ_SHARED_DYNAMIC(float, ds);
    AQ_SHARED(float, parts, [WARPS]);
    const struct head<E> head = head_of<E>(args, blockIdx.z, blockIdx.y);
    const uint64_t i = blockIdx.x;
    float *dq = args.dqkv + (head.sample * args.T + i) * 3 * head.C + head.head * head.D, delta = 0.0f, masked;
    if (i >= head.length) {
        for (uint64_t d = threadIdx.x; d < head.D; d += THREADS)
            dq[d] = 0.0f;
        return;
    }
    for (uint64_t d = threadIdx.x; d < head.D; d += THREADS)
        delta = fmaf(aq_load(head.out + i * head.C + d), aq_load(head.dout + i * head.C + d), delta);
    delta = block_of<false>(delta, parts);
    if (threadIdx.x == 0) deltas[head.row + i] = delta;
    for (uint64_t j = threadIdx.x; j < head.length; j += THREADS)
        ds[j] = score_gradient(args, mask, head, i, j, delta, &masked);
    __syncthreads();
    for (uint64_t d = threadIdx.x; d < head.D; d += THREADS) {
        float sum = 0.0f;
        for (uint64_t j = 0; j < head.length; j++) {
            const float of =
                aq_load(head.k + j * 3 * head.C + d) + aq_load(head.kr + position(head, i, j) * 2 * head.C + d);
            sum = fmaf(ds[j], of, sum);
        }
        dq[d] = sum;
    }
}

/* Of a key: dk and dv. */
template <typename E>
static __global__ void __launch_bounds__(THREADS)
    backward_key(struct aq_disentangled args, struct aq_cuda_mask mask, const float *deltas)
{
    AQ_SHARED_DYNAMIC(float, ds);
    float *p = ds + args.T;
    const struct head<E> head = head_of<E>(args, blockIdx.z, blockIdx.y);
    const uint64_t j = blockIdx.x;
    float *dk = args.dqkv + (head.sample * args.T + j) * 3 * head.C + head.C + head.head * head.D, *dv = dk + head.C;
    const uint64_t queries = j < head.length ? head.length : 0;
    for (uint64_t i = threadIdx.x; i < queries; i += THREADS)
        ds[i] = score_gradient(args, mask, head, i, j, deltas[head.row + i], p + i);
    __syncthreads();
    for (uint64_t d = threadIdx.x; d < head.D; d += THREADS) {
        float of_key = 0.0f, of_value = 0.0f;
        for (uint64_t i = 0; i < queries; i++) {
            const float of =
                aq_load(head.q + i * 3 * head.C + d) + aq_load(head.qr + position(head, i, j) * 2 * head.C + d);
            of_key = fmaf(ds[i], of, of_key);
            of_value = fmaf(p[i], aq_load(head.dout + i * head.C + d), of_value);
        }
        dk[d] = of_key;
        dv[d] = of_value;
    }
}

/* Of a row of the positions: the diagonals of its distances, sample after sample, THREADS places at a time. */
template <typename E>
static __global__ void __launch_bounds__(THREADS)
    backward_position(struct aq_disentangled args, struct aq_cuda_mask mask, const float *deltas)
{
    AQ_SHARED(float, ds, [THREADS]);
    const uint64_t row = blockIdx.x, C = args.H * args.D, D = args.D;
    float *dqr = args.dpositions + row * 2 * C + blockIdx.y * D, *dkr = dqr + C, masked;
    for (uint64_t d = threadIdx.x; d < D; d += THREADS)
        dkr[d] = dqr[d] = 0.0f;
    for (uint64_t sample = 0; sample < args.samples; sample++) {
        const struct head<E> head = head_of<E>(args, sample, blockIdx.y);
        const int64_t length = static_cast<int64_t>(head.length);
        for (int64_t distance = 1 - length; distance < length; distance++) {
            if (static_cast<uint64_t>(head.index[distance]) != row) continue; /* alike in all threads */
            const int64_t begin = distance > 0 ? distance : 0, end = distance > 0 ? length : length + distance;
            for (int64_t first = begin; first < end; first += THREADS) {
                const int64_t i = first + threadIdx.x;
                const int64_t count = end - first < THREADS ? end - first : THREADS;
                __syncthreads();
                if (i < end)
                    ds[threadIdx.x] =
                        score_gradient(args, mask, head, static_cast<uint64_t>(i), static_cast<uint64_t>(i - distance),
                                       deltas[head.row + i], &masked);
                __syncthreads();
                for (uint64_t d = threadIdx.x; d < D; d += THREADS) {
                    float of_key = dkr[d], of_query = dqr[d];
                    for (int64_t n = 0; n < count; n++) {
                        const E *q = head.q + static_cast<uint64_t>(first + n) * 3 * C;
                        const E *k = head.k + static_cast<uint64_t>(first + n - distance) * 3 * C;
                        of_key = fmaf(ds[n], aq_load(q + d), of_key);
                        of_query = fmaf(ds[n], aq_load(k + d), of_query);
                    }
                    dkr[d] = of_key;
                    dqr[d] = of_query;
                }
            }
        }
    }
}

static enum aq_status tokens_check(const struct aq_disentangled *args)
{
    if (args->T > T_MAX / 2)
        return aq_fail(AQ_INVAL, "device", "disentangled attention over %llu tokens: at most %llu on a GPU",
                       static_cast<unsigned long long>(args->T), static_cast<unsigned long long>(T_MAX / 2));
    if (args->samples * args->H * args->T * sizeof(float) > AQ_CUDA_SCRATCH_BYTES)
        return aq_fail(AQ_INVAL, "device",
                       "disentangled attention of %llu samples of %llu tokens: take smaller "
                       "micro-batches",
                       static_cast<unsigned long long>(args->samples), static_cast<unsigned long long>(args->T));
    return AQ_OK;
}

template <typename E> static enum aq_status forward_as(const struct aq_disentangled *args, struct CUstream_st *stream)
{
    const dim3 grid(static_cast<unsigned>(args->T), static_cast<unsigned>(args->H),
                    static_cast<unsigned>(args->samples));
    return AQ_LAUNCH((forward<E>), grid, THREADS, args->T * sizeof(float), stream, *args,
                     aq_cuda_mask_of(&args->dropout));
}

enum aq_status aq_cuda_disentangled(const struct aq_disentangled *args, void *, struct CUstream_st *stream)
{
    if (args->samples == 0 || args->T == 0) return AQ_OK;
    AQ_TRY(tokens_check(args));
    return aq_by_type(args->type, [&](auto t) { return forward_as<decltype(t)>(args, stream); });
}

template <typename E>
static enum aq_status backward_as(const struct aq_disentangled *args, float *deltas, struct CUstream_st *stream)
{
    const unsigned T = static_cast<unsigned>(args->T), H = static_cast<unsigned>(args->H);
    const dim3 grid(T, H, static_cast<unsigned>(args->samples)), rows(static_cast<unsigned>(args->R), H);
    const struct aq_cuda_mask mask = aq_cuda_mask_of(&args->dropout);
    AQ_TRY(AQ_LAUNCH((backward_query<E>), grid, THREADS, T * sizeof(float), stream, *args, mask, deltas));
    AQ_TRY(AQ_LAUNCH((backward_key<E>), grid, THREADS, 2 * T * sizeof(float), stream, *args, mask, deltas));
    return AQ_LAUNCH((backward_position<E>), rows, THREADS, 0, stream, *args, mask, deltas);
}

enum aq_status aq_cuda_disentangled_backward(const struct aq_disentangled *args, void *scratch,
                                             struct CUstream_st *stream)
{
    float *deltas = static_cast<float *>(scratch);
    if (args->samples == 0 || args->T == 0) return AQ_OK;
    AQ_TRY(tokens_check(args));
    return aq_by_type(args->type, [&](auto t) { return backward_as<decltype(t)>(args, deltas, stream); });
}
