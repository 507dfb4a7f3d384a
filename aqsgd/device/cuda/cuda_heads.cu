/*
 * cuda_heads.cu -- what decoders have beside layer norm and GELU: root mean square norms, heads that are normalized and
 * turned, gated activations. Truth: cpu_rows_plain.c and cpu_heads.c; the RMS norm's backward is in cuda_rows.cu.
 *
 * All of it is bound by memory. A warp takes a row of a norm or a head of a row.
 */
#include <math.h>

#include "cuda_sums.cuh"

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS;

/* ---- RMS norm. */

template <typename Y, int W> static __global__ void __launch_bounds__(THREADS) rmsnorm(struct aq_rmsnorm args)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * WARPS + threadIdx.x / 32, C = args.C;
    const unsigned lane = threadIdx.x % 32;
    if (row >= args.rows) return;
    const float *x = args.x + row * C;
    Y *y = static_cast<Y *>(args.y) + row * C;
    float values[W], gamma[W], sum2 = 0.0f;
    for (uint64_t c = lane * W; c < C; c += 32 * W) {
        aq_load_wide(x + c, values);
        for (int i = 0; i < W; i++)
            sum2 = fmaf(values[i], values[i], sum2);
    }
    const float rstd = 1.0f / sqrtf(aq_warp_sum(sum2) / static_cast<float>(C) + args.epsilon);
    for (uint64_t c = lane * W; c < C; c += 32 * W) {
        aq_load_wide(x + c, values);
        aq_load_wide(args.gamma + c, gamma);
        for (int i = 0; i < W; i++)
            values[i] = values[i] * rstd * (args.plus + gamma[i]);
        if (args.other) {
            aq_load_wide(args.other + row * C + c, gamma);
            for (int i = 0; i < W; i++)
                values[i] += gamma[i];
        }
        aq_store_wide(y + c, values);
    }
    if (lane == 0) args.rstd[row] = rstd;
}

template <typename Y> static enum aq_status rmsnorm_typed(const struct aq_rmsnorm *args, cudaStream_t stream)
{
    const dim3 grid = aq_blocks(args->rows, WARPS);
    const bool fours = args->C % 4 == 0 && aq_fours(args->x, AQ_F32) && aq_fours(args->gamma, AQ_F32) &&
                       aq_fours(args->y, args->y_type) && aq_fours(args->other, AQ_F32);
    if (fours) return AQ_LAUNCH((rmsnorm<Y, 4>), grid, THREADS, 0, stream, *args);
    return AQ_LAUNCH((rmsnorm<Y, 1>), grid, THREADS, 0, stream, *args);
}

enum aq_status aq_cuda_rmsnorm(const struct aq_rmsnorm *args, void *, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    if (args->y_type == AQ_BF16) return rmsnorm_typed<uint16_t>(args, stream);
    if (args->y_type == AQ_F16) return rmsnorm_typed<aq_half>(args, stream);
    return rmsnorm_typed<float>(args, stream);
}

/* ---- Heads. */

/* Which head of which row a warp has; heads of values come last. */
struct head_place {
    uint64_t row, head, at; /* at: its first element */
    bool there;
};

static __forceinline__ __device__ struct head_place place_of(uint64_t rows, uint64_t H, uint64_t kv_heads, uint64_t D)
{
    const uint64_t heads = H + 2 * kv_heads, index = static_cast<uint64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const struct head_place place = {index / heads, index % heads, index * D, index < rows * heads};
    return place;
}

/* Column c of a head whose first R columns turn; `at(c)` gives a column as it was. sign: -1 turns back. */
template <typename F>
static __forceinline__ __device__ float turned(F at, const float *angles, uint64_t R, uint64_t c, float sign)
{
    const uint64_t half = R / 2;
    if (c >= R) return at(c);
    if (c < half) return at(c) * angles[c] - at(c + half) * (sign * angles[half + c]);
    return at(c) * angles[c - half] + at(c - half) * (sign * angles[c]);
}

/*
 * y may be x: a lane has both columns of a pair, and reads them before it writes. A lane's columns beyond R are its
 * own, too.
 */
template <typename T> static __global__ void __launch_bounds__(THREADS) rope(struct aq_rope args)
{
    const struct head_place place = place_of(args.samples * args.T, args.H, args.kv_heads, args.D);
    const unsigned lane = threadIdx.x % 32;
    if (!place.there) return;
    const T *x = static_cast<const T *>(args.x) + place.at;
    T *y = static_cast<T *>(args.y) + place.at;
    const bool value = place.head >= args.H + args.kv_heads;
    const float *gamma = value ? nullptr : place.head < args.H ? args.q_gamma : args.k_gamma;
    const uint64_t R = value ? 0 : args.R, half = R / 2;
    const float *angles = R ? args.table + aq_place(args.starts, place.row, args.T) * R : nullptr;
    float rstd = 1.0f;
    if (gamma) {
        float sum2 = 0.0f;
        for (uint64_t c = lane; c < args.D; c += 32)
            sum2 = fmaf(aq_load(x + c), aq_load(x + c), sum2);
        rstd = 1.0f / sqrtf(aq_warp_sum(sum2) / static_cast<float>(args.D) + args.epsilon);
        if (lane == 0) args.rstd[place.row * (args.H + args.kv_heads) + place.head] = rstd;
    }
    const auto at = [&](uint64_t c) { return gamma ? aq_load(x + c) * rstd * (args.plus + gamma[c]) : aq_load(x + c); };
    for (uint64_t c = lane; c < half; c += 32) {
        const float low = turned(at, angles, R, c, 1.0f), high = turned(at, angles, R, c + half, 1.0f);
        aq_store(y + c, low);
        aq_store(y + c + half, high);
    }
    for (uint64_t c = R + lane; c < args.D; c += 32)
        aq_store(y + c, at(c));
}

enum aq_status aq_cuda_rope(const struct aq_rope *args, void *, struct CUstream_st *stream)
{
    if (args->samples == 0 || args->T == 0) return AQ_OK;
    const dim3 grid = aq_blocks(args->samples * args->T * (args->H + 2 * args->kv_heads), WARPS);
    if (args->type == AQ_BF16) return AQ_LAUNCH(rope<uint16_t>, grid, THREADS, 0, stream, *args);
    if (args->type == AQ_F16) return AQ_LAUNCH(rope<aq_half>, grid, THREADS, 0, stream, *args);
    return AQ_LAUNCH(rope<float>, grid, THREADS, 0, stream, *args);
}

/* With h = x rstd, d = dy turned back and g = d (plus + gamma):  dx = rstd (g - h mean(g h)). dx may be dy. */
template <typename T> static __global__ void __launch_bounds__(THREADS) rope_backward(struct aq_rope_backward args)
{
    const struct head_place place = place_of(args.samples * args.T, args.H, args.kv_heads, args.D);
    const unsigned lane = threadIdx.x % 32;
    if (!place.there) return;
    const float *dy = args.dy + place.at;
    T *dx = static_cast<T *>(args.dx) + place.at;
    const bool value = place.head >= args.H + args.kv_heads;
    const float *gamma = value ? nullptr : place.head < args.H ? args.q_gamma : args.k_gamma;
    const uint64_t R = value ? 0 : args.R, half = R / 2;
    const float *angles = R ? args.table + aq_place(args.starts, place.row, args.T) * R : nullptr;
    const T *x = gamma ? static_cast<const T *>(args.x) + place.at : nullptr;
    const float rstd = gamma ? args.rstd[place.row * (args.H + args.kv_heads) + place.head] : 1.0f;
    const auto at = [&](uint64_t c) { return dy[c]; };
    float mean_gh = 0.0f;
    if (gamma) {
        float sum = 0.0f;
        for (uint64_t c = lane; c < args.D; c += 32)
            sum = fmaf(turned(at, angles, R, c, -1.0f) * (args.plus + gamma[c]), aq_load(x + c) * rstd, sum);
        mean_gh = aq_warp_sum(sum) / static_cast<float>(args.D);
    }
    const auto slope = [&](uint64_t c, float d) {
        return gamma ? rstd * (d * (args.plus + gamma[c]) - aq_load(x + c) * rstd * mean_gh) : d;
    };
    for (uint64_t c = lane; c < half; c += 32) {
        const float low = turned(at, angles, R, c, -1.0f), high = turned(at, angles, R, c + half, -1.0f);
        aq_store(dx + c, slope(c, low));
        aq_store(dx + c + half, slope(c + half, high));
    }
    for (uint64_t c = R + lane; c < args.D; c += 32)
        aq_store(dx + c, slope(c, dy[c]));
}

/* partial[group] = the sums over a group's rows and heads of d h: D of queries, then D of keys. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    rope_gammas(struct aq_rope_backward args, uint64_t group, float *partial)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * THREADS + threadIdx.x, D = args.D;
    if (c >= 2 * D) return;
    const uint64_t rows = args.samples * args.T, width = (args.H + 2 * args.kv_heads) * D;
    const uint64_t first = blockIdx.x * group, end = first + group < rows ? first + group : rows;
    const uint64_t head_first = c < D ? 0 : args.H, head_end = c < D ? args.H : args.H + args.kv_heads, d = c % D;
    float sum = 0.0f;
    for (uint64_t row = first; row < end; row++)
        for (uint64_t head = head_first; head < head_end; head++) {
            const float *dy = args.dy + row * width + head * D;
            const T *x = static_cast<const T *>(args.x) + row * width + head * D;
            const float rstd = args.rstd[row * (args.H + args.kv_heads) + head];
            const auto at = [&](uint64_t column) { return dy[column]; };
            const float *angles = args.R ? args.table + aq_place(args.starts, row, args.T) * args.R : nullptr;
            sum = fmaf(turned(at, angles, args.R, d, -1.0f), aq_load(x + d) * rstd, sum);
        }
    partial[blockIdx.x * 2 * D + c] = sum;
}

/* The gammas first: dx may be dy. */
template <typename T>
static enum aq_status rope_backward_typed(const struct aq_rope_backward *args, float *partial, cudaStream_t stream)
{
    const uint64_t rows = args->samples * args->T, D = args->D;
    const uint64_t group = aq_cuda_group_rows(rows, 2 * D), groups = (rows + group - 1) / group;
    if (args->q_gamma && (args->dq_gamma || args->dk_gamma)) {
        const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>((2 * D + THREADS - 1) / THREADS));
        AQ_TRY(AQ_LAUNCH(rope_gammas<T>, grid, THREADS, 0, stream, *args, group, partial));
        AQ_TRY(aq_cuda_reduce(partial, groups, D, 2, {{args->dq_gamma, args->dk_gamma, nullptr}}, stream));
    }
    const dim3 grid = aq_blocks(rows * (args->H + 2 * args->kv_heads), WARPS);
    return AQ_LAUNCH(rope_backward<T>, grid, THREADS, 0, stream, *args);
}

enum aq_status aq_cuda_rope_backward(const struct aq_rope_backward *args, void *scratch, struct CUstream_st *stream)
{
    if (args->samples == 0 || args->T == 0) return AQ_OK;
    float *partial = static_cast<float *>(scratch);
    if (args->type == AQ_BF16) return rope_backward_typed<uint16_t>(args, partial, stream);
    if (args->type == AQ_F16) return rope_backward_typed<aq_half>(args, partial, stream);
    return rope_backward_typed<float>(args, partial, stream);
}

/* ---- Gates. */

static __forceinline__ __device__ float normal_below(float x)
{
    return 0.5f * erfcf(-0.7071067811865476f * x);
}

/* tanh in the CPU's formula of GELU: x/2 (1 + tanh(z)), z = sqrt(2/pi) (x + 0.044715 x^3). */
static __forceinline__ __device__ float gate_value(enum aq_gate gate, float x)
{
    if (gate == AQ_GATE_SILU) return x / (1.0f + expf(-x));
    if (gate == AQ_GATE_GELU_EXACT) return x * normal_below(x);
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static __forceinline__ __device__ float gate_slope(enum aq_gate gate, float x)
{
    if (gate == AQ_GATE_SILU) {
        const float s = 1.0f / (1.0f + expf(-x));
        return s * (1.0f + x * (1.0f - s));
    }
    if (gate == AQ_GATE_GELU_EXACT) return normal_below(x) + x * 0.3989422804014327f * expf(-0.5f * x * x);
    const float t = tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 0.134145f * x * x);
}

template <typename T, int W> static __global__ void gated(struct aq_gated args)
{
    const uint64_t row = blockIdx.x, F = args.F;
    const T *g = static_cast<const T *>(args.x) + 2 * row * F, *u = g + F;
    T *y = static_cast<T *>(args.y) + row * F;
    for (uint64_t c = (blockIdx.y * blockDim.x + threadIdx.x) * W; c < F;
         c += static_cast<uint64_t>(gridDim.y) * blockDim.x * W) {
        float gates[W], ups[W];
        aq_load_wide(g + c, gates);
        aq_load_wide(u + c, ups);
        for (int i = 0; i < W; i++)
            ups[i] *= gate_value(args.gate, gates[i]);
        aq_store_wide(y + c, ups);
    }
}

template <typename T, int W> static __global__ void gated_backward(struct aq_gated_backward args)
{
    const uint64_t row = blockIdx.x, F = args.F;
    const T *g = static_cast<const T *>(args.x) + 2 * row * F, *u = g + F;
    const T *dy = static_cast<const T *>(args.dy) + row * F;
    T *dg = static_cast<T *>(args.dx) + 2 * row * F, *du = dg + F;
    for (uint64_t c = (blockIdx.y * blockDim.x + threadIdx.x) * W; c < F;
         c += static_cast<uint64_t>(gridDim.y) * blockDim.x * W) {
        float gates[W], ups[W], d[W];
        aq_load_wide(g + c, gates);
        aq_load_wide(u + c, ups);
        aq_load_wide(dy + c, d);
        for (int i = 0; i < W; i++) {
            const float x = gates[i];
            gates[i] = d[i] * ups[i] * gate_slope(args.gate, x);
            ups[i] = d[i] * gate_value(args.gate, x);
        }
        aq_store_wide(dg + c, gates);
        aq_store_wide(du + c, ups);
    }
}

template <typename T> static enum aq_status gated_typed(const struct aq_gated *args, cudaStream_t stream)
{
    const bool fours = args->F % 4 == 0 && aq_fours(args->x, args->type) && aq_fours(args->y, args->type);
    const struct aq_row_grid grid = aq_row_grid_of(args->rows, args->F, fours ? 4 : 1);
    if (fours) return AQ_LAUNCH((gated<T, 4>), grid.grid, grid.threads, 0, stream, *args);
    return AQ_LAUNCH((gated<T, 1>), grid.grid, grid.threads, 0, stream, *args);
}

enum aq_status aq_cuda_gated(const struct aq_gated *args, void *, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->F == 0) return AQ_OK;
    if (args->type == AQ_BF16) return gated_typed<uint16_t>(args, stream);
    if (args->type == AQ_F16) return gated_typed<aq_half>(args, stream);
    return gated_typed<float>(args, stream);
}

template <typename T>
static enum aq_status gated_backward_typed(const struct aq_gated_backward *args, cudaStream_t stream)
{
    const bool fours = args->F % 4 == 0 && aq_fours(args->x, args->type) && aq_fours(args->dy, args->type) &&
                       aq_fours(args->dx, args->type);
    const struct aq_row_grid grid = aq_row_grid_of(args->rows, args->F, fours ? 4 : 1);
    if (fours) return AQ_LAUNCH((gated_backward<T, 4>), grid.grid, grid.threads, 0, stream, *args);
    return AQ_LAUNCH((gated_backward<T, 1>), grid.grid, grid.threads, 0, stream, *args);
}

enum aq_status aq_cuda_gated_backward(const struct aq_gated_backward *args, void *, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->F == 0) return AQ_OK;
    if (args->type == AQ_BF16) return gated_backward_typed<uint16_t>(args, stream);
    if (args->type == AQ_F16) return gated_backward_typed<aq_half>(args, stream);
    return gated_backward_typed<float>(args, stream);
}
