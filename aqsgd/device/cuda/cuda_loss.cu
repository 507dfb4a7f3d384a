/*
 * cuda_loss.cu -- the loss of rows of output, and its gradient: softmax with cross-entropy, and squared error.
 *
 * Cross-entropy gives a block one row. The first pass reads the row 16 bytes at a time, keeps in shared memory as much
 * of it as fits, and finds the largest value and the sum of exponentials. The second pass writes the gradient from
 * shared memory, so that a row that fits is read once. The rest of a longer row is read again: with one block on each
 * processor these rests are a few MB, which the L2 cache holds.
 *
 * The number of threads on a row depends only on the row's bytes, and a thread has the same values in the same order
 * whether they come from shared memory or not. So the bits are the same on every GPU.
 *
 * Source of the running maximum: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
 */
#include "cuda_common.cuh"

constexpr unsigned LOSS_WARPS_MAX = 32, LOSS_AT_ONCE = 4; /* loads of a thread that are under way together */
constexpr unsigned LOSS_THREADS_WIDE = 1024, LOSS_THREADS = 512, LOSS_THREADS_FEW = 64;
/* Two blocks of 113 KiB fit the 228 KiB of a processor of compute capability 9.0; a block has 1 KiB of CUDA's own. */
constexpr uint64_t LOSS_PAIR_BYTES = 113 << 10, LOSS_STATIC_BYTES = 1 << 10;
constexpr float LOG2E = 1.4426950408889634f;

/* W neighbouring values as stored: 16 bytes, or one value where rows are not aligned. */
template <typename L, int W> struct loss_piece {
    using raw = std::conditional_t<W == 1, L, uint4>;
};

static __forceinline__ __device__ void loss_unpack(float x, float (&values)[1])
{
    values[0] = x;
}

static __forceinline__ __device__ void loss_unpack(uint16_t x, float (&values)[1])
{
    values[0] = aq_load(&x);
}

static __forceinline__ __device__ void loss_unpack(aq_half x, float (&values)[1])
{
    values[0] = aq_load(&x);
}

static __forceinline__ __device__ void loss_unpack(uint4 x, float (&values)[4])
{
    values[0] = __uint_as_float(x.x);
    values[1] = __uint_as_float(x.y);
    values[2] = __uint_as_float(x.z);
    values[3] = __uint_as_float(x.w);
}

template <typename L> static __forceinline__ __device__ float loss_low(unsigned word)
{
    if constexpr (std::is_same_v<L, aq_half>)
        return aq_half_of(word);
    else
        return __uint_as_float(word << 16);
}

template <typename L> static __forceinline__ __device__ float loss_high(unsigned word)
{
    if constexpr (std::is_same_v<L, aq_half>)
        return aq_half_of(word >> 16);
    else
        return __uint_as_float(word & 0xffff0000u);
}

template <typename L, int W, typename R> static __forceinline__ __device__ void loss_values(R x, float (&values)[W])
{
    if constexpr (W == 8) {
        values[0] = loss_low<L>(x.x);
        values[1] = loss_high<L>(x.x);
        values[2] = loss_low<L>(x.y);
        values[3] = loss_high<L>(x.y);
        values[4] = loss_low<L>(x.z);
        values[5] = loss_high<L>(x.z);
        values[6] = loss_low<L>(x.w);
        values[7] = loss_high<L>(x.w);
    } else {
        loss_unpack(x, values);
    }
}

/* Values that are T's already, as stored. */
template <typename T, int W>
static __forceinline__ __device__ typename loss_piece<T, W>::raw loss_pack(const float (&values)[W])
{
    if constexpr (W == 1) {
        T one;
        aq_store(&one, values[0]);
        return one;
    } else if constexpr (W == 4) {
        return make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                          __float_as_uint(values[3]));
    } else {
        return make_uint4(aq_pack<T>(values[0], values[1]), aq_pack<T>(values[2], values[3]),
                          aq_pack<T>(values[4], values[5]), aq_pack<T>(values[6], values[7]));
    }
}

/* The values from v on, which is a multiple of W; -inf past the end, where nothing is read. */
template <typename L, int W>
static __forceinline__ __device__ typename loss_piece<L, W>::raw loss_read(const L *row, uint64_t v, uint64_t V)
{
    if (v + W <= V) return *reinterpret_cast<const typename loss_piece<L, W>::raw *>(row + v);
    float values[W];
    AQ_UNROLL
    for (int i = 0; i < W; i++)
        values[i] = v + i < V ? aq_load(row + v + i) : -INFINITY;
    return loss_pack<L, W>(values);
}

template <int W, typename G> static __forceinline__ __device__ void loss_store(G *gradient, const float (&values)[W])
{
    if constexpr (W == 8)
        *reinterpret_cast<uint4 *>(gradient) = loss_pack<G, W>(values);
    else
        aq_store_wide(gradient, values);
}

/* The block's largest value and its sum of exponentials below it, the same bits in every thread. */
static __forceinline__ __device__ void block_softmax(float *top, float *sum)
{
    AQ_SHARED(float, tops, [LOSS_WARPS_MAX]);
    AQ_SHARED(float, sums, [LOSS_WARPS_MAX]);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const float warp_top = aq_warp_max(*top);
    if (lane == 0) tops[warp] = warp_top;
    __syncthreads();
    float block_top = tops[0];
    for (unsigned i = 1; i < warps; i++)
        block_top = fmaxf(block_top, tops[i]);
    /* A thread without values has the sum 0; one whose sum is not a number must not hide it. */
    const float warp_sum = aq_warp_sum(*sum == 0.0f ? 0.0f : *sum * aq_exp2((*top - block_top) * LOG2E));
    if (lane == 0) sums[warp] = warp_sum;
    __syncthreads();
    float block_sum = 0.0f;
    for (unsigned i = 0; i < warps; i++)
        block_sum += sums[i];
    *top = block_top;
    *sum = block_sum;
}

/* A thread's first pass over the row: its largest value, its sum, and copies of its values below `kept`. */
template <typename L, int W, unsigned THREADS, typename R>
static __forceinline__ __device__ void loss_first_pass(const L *row, uint64_t V, uint64_t kept, R *copies, float *top,
                                                       float *sum)
{
    constexpr uint64_t PIECE = static_cast<uint64_t>(THREADS) * LOSS_AT_ONCE * W;
    for (uint64_t first = 0; first < V; first += PIECE) {
        R raw[LOSS_AT_ONCE];
        AQ_UNROLL
        for (unsigned a = 0; a < LOSS_AT_ONCE; a++)
            raw[a] = loss_read<L, W>(row, first + (a * THREADS + threadIdx.x) * W, V);
        AQ_UNROLL
        for (unsigned a = 0; a < LOSS_AT_ONCE; a++) {
            const uint64_t v = first + (a * THREADS + threadIdx.x) * W;
            float values[W], most = *top;
            if (v < kept) copies[v / W] = raw[a];
            loss_values<L, W>(raw[a], values);
            AQ_UNROLL
            for (int i = 0; i < W; i++)
                most = fmaxf(most, values[i]);
            const float below = most == -INFINITY ? 0.0f : most;
            *sum = *sum == 0.0f ? 0.0f : *sum * aq_exp2((*top - below) * LOG2E);
            *top = most;
            AQ_UNROLL
            for (int i = 0; i < W; i++)
                *sum += aq_exp2((values[i] - below) * LOG2E);
        }
    }
}

/*
 * Its second pass: the gradient. It may overwrite the logits, also as 16 bits in the first half of the bytes of a row
 * of fp32: then all threads read a piece of the row again before any of its gradient, which is at the same elements or
 * before them, is written.
 */
template <typename L, typename G, int W, unsigned THREADS, typename R>
static __forceinline__ __device__ void loss_second_pass(const L *row, uint64_t V, uint64_t kept, const R *copies,
                                                        uint64_t target, float top, float sum, float scale, float cap,
                                                        G *gradient)
{
    constexpr uint64_t PIECE = static_cast<uint64_t>(THREADS) * LOSS_AT_ONCE * W;
    const float factor = scale / sum;
    for (uint64_t first = 0; first < V; first += PIECE) {
        R raw[LOSS_AT_ONCE];
        AQ_UNROLL
        for (unsigned a = 0; a < LOSS_AT_ONCE; a++) {
            const uint64_t v = first + (a * THREADS + threadIdx.x) * W;
            raw[a] = v < kept ? copies[v / W] : loss_read<L, W>(row, v, V);
        }
        if (sizeof(G) < sizeof(L) && first + PIECE > kept) __syncthreads();
        AQ_UNROLL
        for (unsigned a = 0; a < LOSS_AT_ONCE; a++) {
            const uint64_t v = first + (a * THREADS + threadIdx.x) * W;
            float values[W];
            loss_values<L, W>(raw[a], values);
            AQ_UNROLL
            for (int i = 0; i < W; i++) {
                const float e = aq_exp2((values[i] - top) * LOG2E), t = cap > 0.0f ? values[i] / cap : 0.0f;
                values[i] = v + i == target ? (e / sum - 1.0f) * scale : e * factor;
                if (cap > 0.0f && v + i < V) values[i] *= 1.0f - t * t;
            }
            if (v + W <= V)
                loss_store<W>(gradient + v, values);
            else
                for (int i = 0; i < W; i++)
                    if (v + i < V) aq_store(gradient + v + i, values[i]);
        }
    }
}

/* kept: values of a row that dynamic shared memory holds, a multiple of W. Of 512 threads, two blocks a processor. */
template <typename L, typename G, int W, unsigned THREADS>
static __global__ void __launch_bounds__(THREADS, THREADS == LOSS_THREADS ? 2 : 1)
    cross_entropy(struct aq_cross_entropy args, uint64_t kept)
{
    using raw = typename loss_piece<L, W>::raw;
    AQ_SHARED_DYNAMIC(raw, copies);
    const uint64_t row = blockIdx.x, V = args.V;
    const L *logits = static_cast<const L *>(args.logits) + row * args.logits_stride;
    const int32_t target = args.targets[row];
    G *gradient = args.gradient ? static_cast<G *>(args.gradient) + row * args.gradient_stride : nullptr;
    if (target < 0) {
        if (threadIdx.x == 0) args.losses[row] = 0.0f;
        if (gradient)
            for (uint64_t v = threadIdx.x; v < args.gradient_stride; v += THREADS)
                aq_store(gradient + v, 0.0f);
        return;
    }
    const float at_target = aq_load(logits + target);
    float top = -INFINITY, sum = 0.0f;
    loss_first_pass<L, W, THREADS>(logits, V, gradient ? kept : 0, copies, &top, &sum);
    block_softmax(&top, &sum);
    if (threadIdx.x == 0) args.losses[row] = logf(sum) - (at_target - top);
    if (!gradient) return;
    loss_second_pass<L, G, W, THREADS>(logits, V, kept, copies, static_cast<uint64_t>(target), top, sum, args.scale,
                                       args.cap, gradient);
    for (uint64_t v = V + threadIdx.x; v < args.gradient_stride; v += THREADS)
        aq_store(gradient + v, 0.0f);
}

template <typename L, typename G, int W>
static enum aq_status cross_entropy_wide(const struct aq_cross_entropy *args, cudaStream_t stream)
{
    const dim3 grid = aq_blocks(args->rows, 1);
    const uint64_t bytes = (args->V + W - 1) / W * W * sizeof(L), room = aq_cuda_shared_max() - LOSS_STATIC_BYTES;
    const uint64_t whole = bytes < room ? bytes : room / 16 * 16, shared = args->gradient ? whole : 0;
    /* A row that few threads read in LOSS_AT_ONCE loads each: most of 512 would only wait for the others. */
    if (args->V <= static_cast<uint64_t>(LOSS_THREADS_FEW) * LOSS_AT_ONCE * W)
        return AQ_LAUNCH((cross_entropy<L, G, W, LOSS_THREADS_FEW>), grid, LOSS_THREADS_FEW, shared, stream, *args,
                         shared / sizeof(L));
    if (bytes <= LOSS_PAIR_BYTES - LOSS_STATIC_BYTES)
        return AQ_LAUNCH((cross_entropy<L, G, W, LOSS_THREADS>), grid, LOSS_THREADS, shared, stream, *args,
                         shared / sizeof(L));
    return AQ_LAUNCH((cross_entropy<L, G, W, LOSS_THREADS_WIDE>), grid, LOSS_THREADS_WIDE, shared, stream, *args,
                     shared / sizeof(L));
}

template <typename L, typename G>
static enum aq_status cross_entropy_typed(const struct aq_cross_entropy *args, cudaStream_t stream)
{
    constexpr int W = 16 / sizeof(L);
    const bool wide = args->logits_stride % W == 0 && aq_aligned(args->logits, 16) && args->gradient_stride % W == 0 &&
                      aq_aligned(args->gradient, W * sizeof(G));
    return wide ? cross_entropy_wide<L, G, W>(args, stream) : cross_entropy_wide<L, G, 1>(args, stream);
}

enum aq_status aq_cuda_cross_entropy(const struct aq_cross_entropy *args, void *, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->V == 0) return AQ_OK;
    if (args->logits_type == AQ_BF16) return cross_entropy_typed<uint16_t, uint16_t>(args, stream);
    if (args->logits_type == AQ_F16) return cross_entropy_typed<aq_half, aq_half>(args, stream);
    return aq_by_type(args->gradient_type,
                      [&](auto t) { return cross_entropy_typed<float, decltype(t)>(args, stream); });
}

/* A thread per row: its gradient may overwrite its output. */
template <typename G> static __global__ void __launch_bounds__(LOSS_THREADS) squared_error(struct aq_squared_error args)
{
    const uint64_t row = aq_thread_index();
    if (row >= args.rows) return;
    const float target = args.targets[row];
    const float off = isnan(target) ? 0.0f : args.outputs[row * args.outputs_stride] - target;
    args.losses[row] = off * off;
    if (!args.gradient) return;
    G *gradient = static_cast<G *>(args.gradient) + row * args.gradient_stride;
    aq_store(gradient, args.scale * (2.0f * off));
    for (uint64_t v = 1; v < args.gradient_stride; v++)
        aq_store(gradient + v, 0.0f);
}

enum aq_status aq_cuda_squared_error(const struct aq_squared_error *args, void *, struct CUstream_st *stream)
{
    const dim3 grid = aq_blocks(args->rows, LOSS_THREADS);
    if (args->rows == 0) return AQ_OK;
    if (args->gradient_type == AQ_BF16)
        return AQ_LAUNCH((squared_error<uint16_t>), grid, LOSS_THREADS, 0, stream, *args);
    if (args->gradient_type == AQ_F16) return AQ_LAUNCH((squared_error<aq_half>), grid, LOSS_THREADS, 0, stream, *args);
    return AQ_LAUNCH((squared_error<float>), grid, LOSS_THREADS, 0, stream, *args);
}
