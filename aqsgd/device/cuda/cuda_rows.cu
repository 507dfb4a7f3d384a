/*
 * cuda_rows.cu -- mathematics of rows: layer norm and RMS norm, softmax with cross-entropy, sums of columns.
 *
 * A warp or a block takes a row. Sums over rows (gradients of biases and of layer norm) go in two stages: groups of
 * rows add up into partial rows in the scratch, then the partial rows are added in the order of the groups. The
 * grouping depends only on the extents. Truth: cpu_rows_plain.c and cpu_pieces.c.
 *
 * All of it is bound by memory. Rows of usual widths (layer norm: up to 2048 columns forward, 4096 backward) are read
 * once and stay in registers until they are done with.
 */
#include <math.h>

#include "cuda_sums.cuh"

constexpr unsigned ROW_WARPS = 8, ROW_THREADS = 32 * ROW_WARPS;

/* ---- Layer norm: a warp per row. */

struct layernorm_out {
    float *mean, *rstd;
};

template <typename X, typename Y, int W>
static __global__ void __launch_bounds__(ROW_THREADS)
    layernorm(const X *x, const float *gamma, const float *beta, uint64_t rows, uint64_t C, float epsilon, Y *y,
              struct layernorm_out out)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += row * C;
    float values[W], g[W], b[W] = {}, sum = 0.0f, sum2 = 0.0f;
    for (uint64_t c = lane * W; c < C; c += 32 * W) {
        aq_load_wide(x + c, values);
        for (int i = 0; i < W; i++)
            sum += values[i];
    }
    const float mean = aq_warp_sum(sum) / static_cast<float>(C);
    for (uint64_t c = lane * W; c < C; c += 32 * W) {
        aq_load_wide(x + c, values);
        for (int i = 0; i < W; i++)
            sum2 = fmaf(values[i] - mean, values[i] - mean, sum2);
    }
    const float rstd = 1.0f / sqrtf(aq_warp_sum(sum2) / static_cast<float>(C) + epsilon);
    for (uint64_t c = lane * W; c < C; c += 32 * W) {
        aq_load_wide(x + c, values);
        aq_load_wide(gamma + c, g);
        if (beta) aq_load_wide(beta + c, b);
        for (int i = 0; i < W; i++)
            values[i] = fmaf((values[i] - mean) * rstd, g[i], b[i]);
        aq_store_wide(y + row * C + c, values);
    }
    if (lane == 0) {
        out.mean[row] = mean;
        out.rstd[row] = rstd;
    }
}

/* The same with the row in registers: PIECES times four columns a lane, so that it is read once. */
template <typename X, typename Y, unsigned PIECES>
static __global__ void __launch_bounds__(ROW_THREADS)
    layernorm_kept(const X *x, const float *gamma, const float *beta, uint64_t rows, uint64_t C, float epsilon,
                   Y *y, struct layernorm_out out)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32, columns = static_cast<unsigned>(C);
    if (row >= rows) return;
    x += row * C;
    float kept[PIECES][4], g[4], b[4] = {}, values[4], sum = 0.0f, sum2 = 0.0f;
    AQ_UNROLL
    for (unsigned p = 0; p < PIECES; p++) {
        const unsigned c = (p * 32 + lane) * 4;
        if (c < columns) aq_load_wide(x + c, kept[p]);
    }
    AQ_UNROLL
    for (unsigned p = 0; p < PIECES; p++)
        for (unsigned i = 0; i < 4; i++)
            if ((p * 32 + lane) * 4 < columns) sum += kept[p][i];
    const float mean = aq_warp_sum(sum) / static_cast<float>(C);
    AQ_UNROLL
    for (unsigned p = 0; p < PIECES; p++)
        for (unsigned i = 0; i < 4; i++)
            if ((p * 32 + lane) * 4 < columns) sum2 = fmaf(kept[p][i] - mean, kept[p][i] - mean, sum2);
    const float rstd = 1.0f / sqrtf(aq_warp_sum(sum2) / static_cast<float>(C) + epsilon);
    AQ_UNROLL
    for (unsigned p = 0; p < PIECES; p++) {
        const unsigned c = (p * 32 + lane) * 4;
        if (c >= columns) continue;
        aq_load_wide(gamma + c, g);
        if (beta) aq_load_wide(beta + c, b);
        for (unsigned i = 0; i < 4; i++)
            values[i] = fmaf((kept[p][i] - mean) * rstd, g[i], b[i]);
        aq_store_wide(y + row * C + c, values);
    }
    if (lane == 0) {
        out.mean[row] = mean;
        out.rstd[row] = rstd;
    }
}

template <typename X, typename Y>
static enum aq_status layernorm_typed(const struct aq_layernorm *args, cudaStream_t stream)
{
    const X *x = static_cast<const X *>(args->x);
    const dim3 grid = aq_blocks(args->rows, ROW_WARPS);
    Y *y = static_cast<Y *>(args->y);
    const struct layernorm_out out = {args->mean, args->rstd};
    const bool fours = args->C % 4 == 0 && aq_fours(args->x, args->x_type) && aq_fours(args->gamma, AQ_F32) &&
                       (!args->beta || aq_fours(args->beta, AQ_F32)) && aq_fours(y, args->y_type);
    if (fours && args->C <= 1024)
        return AQ_LAUNCH((layernorm_kept<X, Y, 8>), grid, ROW_THREADS, 0, stream, x, args->gamma, args->beta,
                         args->rows, args->C, args->epsilon, y, out);
    if (fours && args->C <= 2048)
        return AQ_LAUNCH((layernorm_kept<X, Y, 16>), grid, ROW_THREADS, 0, stream, x, args->gamma, args->beta,
                         args->rows, args->C, args->epsilon, y, out);
    if (fours)
        return AQ_LAUNCH((layernorm<X, Y, 4>), grid, ROW_THREADS, 0, stream, x, args->gamma, args->beta, args->rows,
                         args->C, args->epsilon, y, out);
    return AQ_LAUNCH((layernorm<X, Y, 1>), grid, ROW_THREADS, 0, stream, x, args->gamma, args->beta, args->rows,
                     args->C, args->epsilon, y, out);
}

enum aq_status aq_cuda_layernorm(const struct aq_layernorm *args, void *, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    return aq_by_type(args->y_type, [&](auto t) {
        return args->x_type == AQ_BF16 ? layernorm_typed<uint16_t, decltype(t)>(args, stream)
                                       : layernorm_typed<float, decltype(t)>(args, stream);
    });
}

/* The gradient of rows of any width: see layernorm_backward. RMS: an RMS norm's, with mean NULL. */
template <typename X, bool RMS>
static __global__ void __launch_bounds__(ROW_THREADS) layernorm_dx(struct aq_layernorm_backward args, float plus)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32, C = args.C;
    const unsigned lane = threadIdx.x % 32;
    if (row >= args.rows) return;
    const X *x = static_cast<const X *>(args.x) + row * C;
    const float *dy = args.dy + row * C;
    float *dx = args.dx + row * C;
    const float mean = RMS ? 0.0f : args.mean[row], rstd = args.rstd[row];
    float sum_g = 0.0f, sum_gh = 0.0f;
    for (uint64_t c = lane; c < C; c += 32) {
        const float g = dy[c] * (RMS ? plus + args.gamma[c] : args.gamma[c]);
        sum_g += g;
        sum_gh = fmaf(g, (aq_load(x + c) - mean) * rstd, sum_gh);
    }
    const float mean_g = RMS ? 0.0f : aq_warp_sum(sum_g) / static_cast<float>(C);
    const float mean_gh = aq_warp_sum(sum_gh) / static_cast<float>(C);
    for (uint64_t c = lane; c < C; c += 32) {
        const float h = (aq_load(x + c) - mean) * rstd, gamma = RMS ? plus + args.gamma[c] : args.gamma[c];
        dx[c] = fmaf(rstd, fmaf(dy[c], gamma, -mean_g) - h * mean_gh, dx[c]);
    }
}

/* ---- Sums over rows. */

constexpr unsigned COLUMN_THREADS = 128, REDUCE_COLUMNS = 32, REDUCE_SLICES = 32, GROUPS = 512;

uint64_t aq_cuda_group_rows(uint64_t rows, uint64_t width)
{
    uint64_t group = 8;
    while (group * GROUPS < rows)
        group *= 2;
    while ((rows + group - 1) / group * width * sizeof(float) > AQ_CUDA_SCRATCH_BYTES)
        group *= 2;
    return group;
}

/* partial[group][0..C-1] = sum of dy h, partial[group][C..2C-1] = sum of dy. */
template <typename X, bool RMS>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    layernorm_partial(struct aq_layernorm_backward args, uint64_t group, float *partial)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * COLUMN_THREADS + threadIdx.x, C = args.C;
    if (c >= C) return;
    const uint64_t first = blockIdx.x * group, end = first + group < args.rows ? first + group : args.rows;
    const X *x = static_cast<const X *>(args.x) + c;
    float dgamma = 0.0f, dbeta = 0.0f;
    for (uint64_t row = first; row < end; row++) {
        const float dy = args.dy[row * C + c];
        const float mean = RMS ? 0.0f : args.mean[row];
        dgamma = fmaf(dy, (aq_load(x + row * C) - mean) * args.rstd[row], dgamma);
        dbeta += dy;
    }
    partial += blockIdx.x * 2 * C + c;
    partial[0] = dgamma;
    partial[C] = dbeta;
}

constexpr unsigned AT_ONCE = 8; /* rows whose loads are on their way together */

template <typename T, int W>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    column_partial(const T *x, uint64_t rows, uint64_t C, uint64_t stride, uint64_t group, float *partial)
{
    const uint64_t c = (static_cast<uint64_t>(blockIdx.y) * COLUMN_THREADS + threadIdx.x) * W;
    if (c >= C) return;
    const uint64_t first = blockIdx.x * group, end = first + group < rows ? first + group : rows;
    float sums[W] = {};
    for (uint64_t row = first; row < end; row += AT_ONCE) {
        float values[AT_ONCE][W] = {};
        AQ_UNROLL
        for (unsigned r = 0; r < AT_ONCE; r++)
            if (row + r < end) aq_load_wide(x + (row + r) * stride + c, values[r]);
        AQ_UNROLL
        for (unsigned r = 0; r < AT_ONCE; r++)
            for (int i = 0; i < W; i++)
                sums[i] += values[r][i];
    }
    for (int i = 0; i < W; i++)
        partial[blockIdx.x * C + c + i] = sums[i];
}

/* sums[c] += the groups' partial sums: slices of every 32nd group, then the slices in order; none where it is NULL. */
static __global__ void __launch_bounds__(REDUCE_COLUMNS *REDUCE_SLICES)
    reduce_partial(const float *partial, uint64_t groups, uint64_t columns, unsigned count, struct aq_cuda_sums to)
{
    AQ_SHARED(float, slices, [REDUCE_SLICES][REDUCE_COLUMNS]);
    const unsigned slice = threadIdx.x / REDUCE_COLUMNS, column = threadIdx.x % REDUCE_COLUMNS;
    const uint64_t c = static_cast<uint64_t>(blockIdx.x) * REDUCE_COLUMNS + column, width = columns * count;
    float sum = 0.0f;
    for (uint64_t group = slice; c < width && group < groups; group += AT_ONCE * REDUCE_SLICES) {
        float values[AT_ONCE] = {};
        AQ_UNROLL
        for (unsigned i = 0; i < AT_ONCE; i++)
            if (group + i * REDUCE_SLICES < groups) values[i] = partial[(group + i * REDUCE_SLICES) * width + c];
        AQ_UNROLL
        for (unsigned i = 0; i < AT_ONCE; i++)
            sum += values[i];
    }
    slices[slice][column] = sum;
    __syncthreads();
    if (slice > 0 || c >= width) return;
    for (unsigned i = 1; i < REDUCE_SLICES; i++)
        sum += slices[i][column];
    float *const sums = c < columns ? to.sums[0] : c < 2 * columns ? to.sums[1] : to.sums[2];
    if (sums) sums[c % columns] += sum;
}

enum aq_status aq_cuda_reduce(const float *partial, uint64_t groups, uint64_t columns, unsigned count,
                              struct aq_cuda_sums to, cudaStream_t stream)
{
    return AQ_LAUNCH(reduce_partial, aq_blocks(columns * count, REDUCE_COLUMNS), REDUCE_COLUMNS * REDUCE_SLICES, 0,
                     stream, partial, groups, columns, count, to);
}

/* ---- Layer norm backward in one pass: a block per group of rows, a thread four columns of all of them. */

constexpr unsigned NORM_ROWS = 2, NORM_THREADS = 1024, NORM_WARPS = NORM_THREADS / 32;

static __forceinline__ __device__ float aq_rounded(float x, const float *)
{
    return x;
}

static __forceinline__ __device__ float aq_rounded(float x, const uint16_t *)
{
    return __uint_as_float(static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(x))) << 16);
}

static __forceinline__ __device__ float aq_rounded(float x, const aq_half *)
{
    return __half2float(__float2half_rn(x));
}

/*
 * With h = (x - mean) rstd and g = dy gamma: dx += rstd (g - mean(g) - h mean(g h)). Y: of `rounded`, or float without
 * it. A group's partial row: dgamma, dbeta and, where SUMS, the sums of the new dx. RMS: mean and mean(g) are 0, and
 * `plus` is added to gamma.
 */
template <typename X, typename Y, bool SUMS, bool RMS>
static __global__ void __launch_bounds__(NORM_THREADS)
    layernorm_backward(struct aq_layernorm_backward args, float plus, uint64_t group, float *partial)
{
    AQ_SHARED(float, shared, [2][2 * NORM_ROWS][NORM_WARPS]); /* of rows in turn: one barrier for each is enough */
    const uint64_t first = blockIdx.x * group, end = first + group < args.rows ? first + group : args.rows, C = args.C;
    const unsigned c = threadIdx.x * 4, warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const bool mine = c < C;
    float gamma[4] = {}, dgamma[4] = {}, dbeta[4] = {}, sums[4] = {};
    unsigned turn = 0;
    if (mine) aq_load_wide(args.gamma + c, gamma);
    if constexpr (RMS)
        for (unsigned i = 0; i < 4; i++)
            gamma[i] += plus;
    for (uint64_t row = first; row < end; row += NORM_ROWS, turn ^= 1) {
        float h[NORM_ROWS][4] = {}, dy[NORM_ROWS][4] = {}, dx[NORM_ROWS][4] = {}, rstd[NORM_ROWS] = {};
        AQ_UNROLL
        for (unsigned r = 0; r < NORM_ROWS; r++)
            if (mine && row + r < end) {
                aq_load_wide(static_cast<const X *>(args.x) + (row + r) * C + c, h[r]);
                aq_load_wide(args.dy + (row + r) * C + c, dy[r]);
                aq_load_wide(args.dx + (row + r) * C + c, dx[r]);
            }
        AQ_UNROLL
        for (unsigned r = 0; r < NORM_ROWS; r++) {
            float sum_g = 0.0f, sum_gh = 0.0f;
            if (row + r < end) {
                const float mean = RMS ? 0.0f : args.mean[row + r];
                rstd[r] = args.rstd[row + r];
                for (unsigned i = 0; i < 4; i++) {
                    const float g = dy[r][i] * gamma[i];
                    h[r][i] = (h[r][i] - mean) * rstd[r];
                    sum_g += g;
                    sum_gh = fmaf(g, h[r][i], sum_gh);
                    dgamma[i] = fmaf(dy[r][i], h[r][i], dgamma[i]);
                    dbeta[i] += dy[r][i];
                }
            }
            sum_g = aq_warp_sum(sum_g);
            sum_gh = aq_warp_sum(sum_gh);
            if (lane == 0) {
                shared[turn][2 * r][warp] = sum_g;
                shared[turn][2 * r + 1][warp] = sum_gh;
            }
        }
        __syncthreads();
        AQ_UNROLL
        for (unsigned r = 0; r < NORM_ROWS; r++) {
            float mean_g = 0.0f, mean_gh = 0.0f;
            for (unsigned i = 0; i < warps; i++) {
                mean_g += shared[turn][2 * r][i];
                mean_gh += shared[turn][2 * r + 1][i];
            }
            if (!mine || row + r >= end) continue;
            mean_g = RMS ? 0.0f : mean_g / static_cast<float>(C);
            mean_gh /= static_cast<float>(C);
            for (unsigned i = 0; i < 4; i++)
                dx[r][i] = fmaf(rstd[r], fmaf(dy[r][i], gamma[i], -mean_g) - h[r][i] * mean_gh, dx[r][i]);
            aq_store_wide(args.dx + (row + r) * C + c, dx[r]);
            Y *const rounded = reinterpret_cast<Y *>(args.rounded);
            if constexpr (!std::is_same_v<Y, float>) aq_store_wide(rounded + (row + r) * C + c, dx[r]);
            if constexpr (SUMS)
                for (unsigned i = 0; i < 4; i++)
                    sums[i] += aq_rounded(dx[r][i], rounded);
        }
    }
    if (!mine) return;
    partial += blockIdx.x * (SUMS ? 3 : 2) * C + c;
    aq_store_wide(partial, dgamma);
    aq_store_wide(partial + C, dbeta);
    if constexpr (SUMS) aq_store_wide(partial + 2 * C, sums);
}

template <typename X, typename Y, bool SUMS>
static enum aq_status layernorm_backward_run(const struct aq_layernorm_backward *args, float plus, float *partial,
                                             cudaStream_t stream)
{
    const unsigned count = SUMS ? 3 : 2;
    const uint64_t group = aq_cuda_group_rows(args->rows, count * args->C), groups = (args->rows + group - 1) / group;
    const unsigned threads = static_cast<unsigned>((args->C / 4 + 31) / 32 * 32);
    const dim3 grid(static_cast<unsigned>(groups));
    const struct aq_cuda_sums to = {{args->dgamma, args->dbeta, args->sums}};
    if (args->mean)
        AQ_TRY(AQ_LAUNCH((layernorm_backward<X, Y, SUMS, false>), grid, threads, 0, stream, *args, plus, group,
                         partial));
    else
        AQ_TRY(AQ_LAUNCH((layernorm_backward<X, Y, SUMS, true>), grid, threads, 0, stream, *args, plus, group,
                         partial));
    return aq_cuda_reduce(partial, groups, args->C, count, to, stream);
}

template <typename X, typename Y>
static enum aq_status layernorm_backward_typed(const struct aq_layernorm_backward *args, float plus, float *partial,
                                               cudaStream_t stream)
{
    return args->sums ? layernorm_backward_run<X, Y, true>(args, plus, partial, stream)
                      : layernorm_backward_run<X, Y, false>(args, plus, partial, stream);
}

/* Rows of any width and alignment, in a pass for each of what is asked for. */
template <typename X>
static enum aq_status layernorm_backward_any(const struct aq_layernorm_backward *args, float plus, float *partial,
                                             cudaStream_t stream)
{
    const uint64_t C = args->C, group = aq_cuda_group_rows(args->rows, 2 * C),
                   groups = (args->rows + group - 1) / group;
    const dim3 columns(static_cast<unsigned>(groups), static_cast<unsigned>((C + COLUMN_THREADS - 1) / COLUMN_THREADS));
    const struct aq_cuda_sums to = {{args->dgamma, args->dbeta, nullptr}};
    const dim3 rows = aq_blocks(args->rows, ROW_WARPS);
    if (args->mean) {
        AQ_TRY(AQ_LAUNCH((layernorm_dx<X, false>), rows, ROW_THREADS, 0, stream, *args, plus));
        AQ_TRY(AQ_LAUNCH((layernorm_partial<X, false>), columns, COLUMN_THREADS, 0, stream, *args, group, partial));
    } else {
        AQ_TRY(AQ_LAUNCH((layernorm_dx<X, true>), rows, ROW_THREADS, 0, stream, *args, plus));
        AQ_TRY(AQ_LAUNCH((layernorm_partial<X, true>), columns, COLUMN_THREADS, 0, stream, *args, group, partial));
    }
    AQ_TRY(aq_cuda_reduce(partial, groups, C, 2, to, stream));
    const struct aq_dropout_apply round = {1,  args->rows * C, args->dx, args->rounded, args->rounded_type,
                                           {}, AQ_F32,         false};
    if (args->rounded) AQ_TRY(aq_cuda_dropout(&round, partial, stream));
    if (!args->sums) return AQ_OK;
    const void *summed = args->rounded ? static_cast<const void *>(args->rounded) : args->dx;
    const enum aq_element type = args->rounded ? args->rounded_type : AQ_F32;
    const struct aq_column_sum sum = {args->rows, C, C, summed, type, args->sums};
    return aq_cuda_column_sum(&sum, partial, stream);
}

/* mean NULL: of an RMS norm, with `plus`. */
template <typename X>
static enum aq_status norm_backward_of(const struct aq_layernorm_backward *args, float plus, float *partial,
                                       cudaStream_t stream)
{
    const bool fours = args->C % 4 == 0 && aq_fours(args->x, args->x_type) && aq_fours(args->dy, AQ_F32) &&
                       aq_fours(args->gamma, AQ_F32) && aq_fours(args->dx, AQ_F32) && aq_fours(args->rounded, AQ_BF16);
    if (!fours || args->C > 4 * NORM_THREADS) return layernorm_backward_any<X>(args, plus, partial, stream);
    if (!args->rounded) return layernorm_backward_typed<X, float>(args, plus, partial, stream);
    return args->rounded_type == AQ_BF16 ? layernorm_backward_typed<X, uint16_t>(args, plus, partial, stream)
                                         : layernorm_backward_typed<X, aq_half>(args, plus, partial, stream);
}

static enum aq_status norm_backward(const struct aq_layernorm_backward *args, float plus, void *scratch,
                                    struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    float *partial = static_cast<float *>(scratch);
    return args->x_type == AQ_BF16 ? norm_backward_of<uint16_t>(args, plus, partial, stream)
                                   : norm_backward_of<float>(args, plus, partial, stream);
}

enum aq_status aq_cuda_layernorm_backward(const struct aq_layernorm_backward *args, void *scratch,
                                          struct CUstream_st *stream)
{
    return norm_backward(args, 0.0f, scratch, stream);
}

enum aq_status aq_cuda_rmsnorm_backward(const struct aq_rmsnorm_backward *args, void *scratch,
                                        struct CUstream_st *stream)
{
    struct aq_layernorm_backward norm = {};
    norm.rows = args->rows;
    norm.C = args->C;
    norm.dy = args->dy;
    norm.x = args->x;
    norm.x_type = args->x_type;
    norm.gamma = args->gamma;
    norm.rstd = args->rstd;
    norm.dx = args->dx;
    norm.dgamma = args->dgamma;
    norm.rounded = args->rounded;
    norm.rounded_type = args->rounded_type;
    norm.sums = args->sums;
    return norm_backward(&norm, args->plus, scratch, stream);
}

template <typename T>
static enum aq_status column_sum_typed(const struct aq_column_sum *args, float *partial, cudaStream_t stream)
{
    const T *x = static_cast<const T *>(args->x);
    const uint64_t rows = args->rows, C = args->C, stride = args->stride;
    const bool fours = C % 4 == 0 && stride % 4 == 0 && aq_fours(x, args->type);
    const uint64_t group = aq_cuda_group_rows(rows, C), groups = (rows + group - 1) / group;
    const uint64_t wide = COLUMN_THREADS * (fours ? 4 : 1);
    const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>((C + wide - 1) / wide));
    if (fours)
        AQ_TRY(AQ_LAUNCH((column_partial<T, 4>), grid, COLUMN_THREADS, 0, stream, x, rows, C, stride, group, partial));
    else
        AQ_TRY(AQ_LAUNCH((column_partial<T, 1>), grid, COLUMN_THREADS, 0, stream, x, rows, C, stride, group, partial));
    return aq_cuda_reduce(partial, groups, C, 1, {{args->sums, nullptr, nullptr}}, stream);
}

enum aq_status aq_cuda_column_sum(const struct aq_column_sum *args, void *scratch, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    float *partial = static_cast<float *>(scratch);
    return aq_by_type(args->type, [&](auto t) { return column_sum_typed<decltype(t)>(args, partial, stream); });
}

enum aq_status aq_cuda_sums_add(const float *x, uint64_t count, float *sums, struct CUstream_st *stream)
{
    return aq_cuda_reduce(x, 1, count, 1, {{sums, nullptr, nullptr}}, stream);
}
