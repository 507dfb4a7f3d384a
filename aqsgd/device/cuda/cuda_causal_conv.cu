/*
 * cuda_causal_conv.cu -- causal convolutions along tokens, every column for itself (struct aq_causal_conv): a thread
 * has a column of a group of rows, and the inputs of the last taps in registers. Bound by memory. Truth:
 * cpu_causal_conv.c.
 */
#include "cuda_sums.cuh"

#include <math.h>

constexpr unsigned CONV_THREADS = 128, KEEP_THREADS = 256;
constexpr int CONV_TAPS = AQ_CAUSAL_CONV_TAPS;

/* Kernels for any number of taps have CONV_TAPS places for them, and use the last K. */
template <int TAPS> static __forceinline__ __device__ int conv_taps(const struct aq_causal_conv &args)
{
    return TAPS == CONV_TAPS ? static_cast<int>(args.K) : TAPS;
}

/* Rows of its part, or sample, that lie before a row. */
static __forceinline__ __device__ uint64_t conv_place(const struct aq_causal_conv &args, uint64_t row)
{
    return args.cache ? args.first + row % args.T : aq_place(args.starts, row, args.T);
}

template <typename E>
static __forceinline__ __device__ float conv_input(const struct aq_causal_conv &args, uint64_t row, uint64_t c)
{
    const E *x = static_cast<const E *>(args.x) + row * args.stride + c;
    return args.gates ? aq_load(x) * aq_load(x + 2 * args.C) : aq_load(x);
}

static __forceinline__ __device__ uint64_t cache_at(const struct aq_causal_conv &args, uint64_t sample, uint64_t token)
{
    return (sample * args.rows + token % args.rows) * args.C;
}

/* u of the rows before `row`, the last in u[TAPS - 1]: 0 beyond its part and beyond K. */
template <typename E, int TAPS>
static __forceinline__ __device__ void conv_window(const struct aq_causal_conv &args, uint64_t row, uint64_t c,
                                                   float (&u)[TAPS])
{
    const uint64_t place = conv_place(args, row), t = row % args.T;
    AQ_UNROLL
    for (int j = 1; j <= TAPS; j++) {
        const uint64_t back = static_cast<uint64_t>(j);
        u[TAPS - j] = 0.0f;
        if (back > place || back >= args.K) continue;
        u[TAPS - j] =
            back <= t
                ? conv_input<E>(args, row - back, c)
                : aq_load(static_cast<const E *>(args.cache) + cache_at(args, row / args.T, args.first + t - back) + c);
    }
}

/* Goes on to `row`: the sum of its taps. Rows come one after another; anew: this is the first. */
template <typename E, int TAPS>
static __forceinline__ __device__ float conv_sum(const struct aq_causal_conv &args, uint64_t row, uint64_t c, bool anew,
                                                 const float (&w)[TAPS], float bias, float (&u)[TAPS])
{
    if (anew || row % args.T == 0 || conv_place(args, row) == 0) conv_window<E, TAPS>(args, row, c, u);
    AQ_UNROLL
    for (int k = 0; k + 1 < TAPS; k++)
        u[k] = u[k + 1];
    u[TAPS - 1] = conv_input<E>(args, row, c);
    float z = bias;
    AQ_UNROLL
    for (int k = 0; k < TAPS; k++)
        if (k >= TAPS - conv_taps<TAPS>(args)) z = fmaf(w[k], u[k], z);
    return z;
}

/* The column's weights, the own token's last; of fewer taps the first are 0. */
template <int TAPS>
static __forceinline__ __device__ void conv_weights(const struct aq_causal_conv &args, uint64_t c, float (&w)[TAPS])
{
    const int K = conv_taps<TAPS>(args);
    AQ_UNROLL
    for (int k = 0; k < TAPS; k++)
        w[k] = k < TAPS - K ? 0.0f : args.w[c * args.K + static_cast<uint64_t>(k - (TAPS - K))];
}

static __forceinline__ __device__ float conv_open(bool silu, float z)
{
    return silu ? z / (1.0f + expf(-z)) : z;
}

static __forceinline__ __device__ float conv_slope(bool silu, float z)
{
    const float s = 1.0f / (1.0f + expf(-z));
    return silu ? s * (1.0f + z * (1.0f - s)) : 1.0f;
}

template <typename E, int TAPS>
static __global__ void __launch_bounds__(CONV_THREADS) causal_conv(struct aq_causal_conv args, uint64_t group)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * CONV_THREADS + threadIdx.x, all = args.samples * args.T;
    if (c >= args.C) return;
    const uint64_t first = blockIdx.x * group, end = first + group < all ? first + group : all;
    const float bias = args.bias ? args.bias[c] : 0.0f;
    float w[TAPS], u[TAPS] = {};
    conv_weights<TAPS>(args, c, w);
    for (uint64_t row = first; row < end; row++) {
        const float y = conv_open(args.silu, conv_sum<E, TAPS>(args, row, c, row == first, w, bias, u));
        const E *gate = static_cast<const E *>(args.x) + row * args.stride + args.C + c;
        aq_store(static_cast<E *>(args.y) + row * args.C + c, args.gates ? y * aq_load(gate) : y);
    }
}

/* Of each sample the last rows that the cache holds. */
template <typename E>
static __global__ void __launch_bounds__(KEEP_THREADS) causal_conv_keep(struct aq_causal_conv args)
{
    const uint64_t kept = args.T < args.rows ? args.T : args.rows, at = aq_thread_index();
    if (at >= args.samples * kept * args.C) return;
    const uint64_t c = at % args.C, sample = at / args.C / kept, t = args.T - kept + at / args.C % kept;
    aq_store(static_cast<E *>(args.cache) + cache_at(args, sample, args.first + t) + c,
             conv_input<E>(args, sample * args.T + t, c));
}

template <typename E> static enum aq_status conv_typed(const struct aq_causal_conv *args, cudaStream_t stream)
{
    const uint64_t rows = args->samples * args->T, group = rows < 4096 ? 8 : 32;
    const uint64_t kept = args->T < args->rows ? args->T : args->rows;
    const dim3 grid(static_cast<unsigned>((rows + group - 1) / group),
                    static_cast<unsigned>((args->C + CONV_THREADS - 1) / CONV_THREADS));
    if (args->K == 3)
        AQ_TRY(AQ_LAUNCH((causal_conv<E, 3>), grid, CONV_THREADS, 0, stream, *args, group));
    else if (args->K == 4)
        AQ_TRY(AQ_LAUNCH((causal_conv<E, 4>), grid, CONV_THREADS, 0, stream, *args, group));
    else
        AQ_TRY(AQ_LAUNCH((causal_conv<E, CONV_TAPS>), grid, CONV_THREADS, 0, stream, *args, group));
    if (!args->cache) return AQ_OK;
    const dim3 blocks = aq_blocks(args->samples * kept * args->C, KEEP_THREADS);
    return AQ_LAUNCH((causal_conv_keep<E>), blocks, KEEP_THREADS, 0, stream, *args);
}

enum aq_status aq_cuda_causal_conv(const struct aq_causal_conv *args, void *, struct CUstream_st *stream)
{
    return aq_by_type(args->type, [&](auto t) { return conv_typed<decltype(t)>(args, stream); });
}

/* What a row's dx is, from the gradient of its u. */
template <typename E>
static __forceinline__ __device__ void conv_store(const struct aq_causal_conv &args, uint64_t row, uint64_t c, float du)
{
    const uint64_t at = row * args.stride + c, other = at + 2 * args.C;
    const E *x = static_cast<const E *>(args.x);
    E *dx = static_cast<E *>(args.dx);
    aq_store(dx + at, args.gates ? du * aq_load(x + other) : du);
    if (args.gates) aq_store(dx + other, du * aq_load(x + at));
}

/*
 * du[j] is the gradient of u of the row j before this one, so far. It is whole where it leaves the last place. The rows
 * behind the group's end, and what lies behind the last row, only add to those. sums: of weights (groups, C, K), then
 * of the bias (groups, C).
 */
template <typename E, int TAPS>
static __global__ void __launch_bounds__(CONV_THREADS)
    causal_conv_backward(struct aq_causal_conv args, uint64_t group, float *sums)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * CONV_THREADS + threadIdx.x, all = args.samples * args.T;
    if (c >= args.C) return;
    const uint64_t first = blockIdx.x * group, end = first + group < all ? first + group : all;
    const float bias = args.bias ? args.bias[c] : 0.0f;
    const int K = conv_taps<TAPS>(args);
    float w[TAPS], u[TAPS] = {}, du[TAPS] = {}, dw[TAPS] = {}, dbias = 0.0f;
    conv_weights<TAPS>(args, c, w);
    for (uint64_t row = first; row < end + TAPS - 1; row++) {
        AQ_UNROLL
        for (int j = TAPS - 1; j > 0; j--)
            du[j] = du[j - 1];
        du[0] = 0.0f;
        if (row < all && row < end + args.K - 1) {
            const float z = conv_sum<E, TAPS>(args, row, c, row == first, w, bias, u);
            const uint64_t at = row * args.stride + args.C + c, place = conv_place(args, row);
            const float d = aq_load(static_cast<const E *>(args.dy) + row * args.C + c);
            const float gate = args.gates ? aq_load(static_cast<const E *>(args.x) + at) : 1.0f;
            const float dz = d * gate * conv_slope(args.silu, z);
            AQ_UNROLL
            for (int j = 0; j < TAPS; j++)
                if (static_cast<uint64_t>(j) <= place && j < K) du[j] = fmaf(w[TAPS - 1 - j], dz, du[j]);
            if (row < end) {
                AQ_UNROLL
                for (int k = 0; k < TAPS; k++)
                    dw[k] = fmaf(dz, u[k], dw[k]);
                dbias += dz;
                if (args.gates) aq_store(static_cast<E *>(args.dx) + at, d * conv_open(args.silu, z));
            }
        }
        if (row >= first + TAPS - 1) conv_store<E>(args, row - (TAPS - 1), c, du[TAPS - 1]);
    }
    if (!sums) return;
    AQ_UNROLL
    for (int k = 0; k < TAPS; k++)
        if (k >= TAPS - K) sums[(blockIdx.x * args.C + c) * args.K + static_cast<uint64_t>(k - (TAPS - K))] = dw[k];
    sums[gridDim.x * args.C * args.K + blockIdx.x * args.C + c] = dbias;
}

template <typename E>
static enum aq_status conv_backward_typed(const struct aq_causal_conv *args, float *scratch, cudaStream_t stream)
{
    const uint64_t rows = args->samples * args->T, C = args->C, K = args->K;
    const uint64_t group = aq_cuda_group_rows(rows, (K + 1) * C), groups = (rows + group - 1) / group;
    float *sums = args->dw || args->dbias ? scratch : nullptr;
    const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>((C + CONV_THREADS - 1) / CONV_THREADS));
    if (K == 3)
        AQ_TRY(AQ_LAUNCH((causal_conv_backward<E, 3>), grid, CONV_THREADS, 0, stream, *args, group, sums));
    else if (K == 4)
        AQ_TRY(AQ_LAUNCH((causal_conv_backward<E, 4>), grid, CONV_THREADS, 0, stream, *args, group, sums));
    else
        AQ_TRY(AQ_LAUNCH((causal_conv_backward<E, CONV_TAPS>), grid, CONV_THREADS, 0, stream, *args, group, sums));
    if (args->dw) AQ_TRY(aq_cuda_reduce(sums, groups, C * K, 1, {{args->dw, nullptr, nullptr}}, stream));
    if (!args->dbias) return AQ_OK;
    return aq_cuda_reduce(sums + groups * C * K, groups, C, 1, {{args->dbias, nullptr, nullptr}}, stream);
}

enum aq_status aq_cuda_causal_conv_backward(const struct aq_causal_conv *args, void *scratch,
                                            struct CUstream_st *stream)
{
    float *sums = static_cast<float *>(scratch);
    if ((args->K + 1) * args->C * sizeof(float) > AQ_CUDA_SCRATCH_BYTES)
        return aq_fail(AQ_INVAL, "device", "a convolution of %llu columns and %llu taps exceeds the limit of %d sums",
                       (unsigned long long)args->C, (unsigned long long)args->K,
                       AQ_CUDA_SCRATCH_BYTES / static_cast<int>(sizeof(float)));
    return aq_by_type(args->type, [&](auto t) { return conv_backward_typed<decltype(t)>(args, sums, stream); });
}
