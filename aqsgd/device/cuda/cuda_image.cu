/*
 * cuda_image.cu -- what networks of images add to the mathematics beside convolutions (cuda_conv.cu): ReLU, batch
 * and group normalization, means of rows, the class of a row.
 *
 * Bound by memory. Sums of columns go in two stages: groups of rows add up in float into partial rows in the scratch, a
 * thread a column, then the partial rows are added in double in the order of the groups. How rows are grouped depends
 * on the extents alone. Truth: cpu_image.c.
 */
#include <math.h>

#include "cuda_common.cuh"
#include "cuda_sums.cuh"

constexpr unsigned FLAT_THREADS = 256, COLUMN_THREADS = 128, GROUPS = 512, ROW_WARPS = 8;

template <int W> static __global__ void __launch_bounds__(FLAT_THREADS) relu(struct aq_relu args)
{
    const uint64_t at = aq_thread_index() * W;
    if (at >= args.count) return;
    float x[W];
    aq_load_wide(args.x + at, x);
    for (int i = 0; i < W; i++)
        x[i] = x[i] < 0.0f ? 0.0f : x[i];
    aq_store_wide(args.y + at, x);
}

enum aq_status aq_cuda_relu(const struct aq_relu *args, void *, struct CUstream_st *stream)
{
    const bool fours = args->count % 4 == 0 && aq_fours(args->x, AQ_F32) && aq_fours(args->y, AQ_F32);
    const dim3 grid = aq_blocks(args->count, FLAT_THREADS * (fours ? 4 : 1));
    if (args->count == 0) return AQ_OK;
    if (fours) return AQ_LAUNCH(relu<4>, grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH(relu<1>, grid, FLAT_THREADS, 0, stream, *args);
}

template <int W> static __global__ void __launch_bounds__(FLAT_THREADS) relu_backward(struct aq_relu_backward args)
{
    const uint64_t at = aq_thread_index() * W;
    if (at >= args.count) return;
    float y[W], dy[W];
    aq_load_wide(args.y + at, y);
    aq_load_wide(args.dy + at, dy);
    for (int i = 0; i < W; i++)
        dy[i] = y[i] > 0.0f ? dy[i] : 0.0f;
    aq_store_wide(args.dx + at, dy);
}

enum aq_status aq_cuda_relu_backward(const struct aq_relu_backward *args, void *, struct CUstream_st *stream)
{
    const bool fours =
        args->count % 4 == 0 && aq_fours(args->y, AQ_F32) && aq_fours(args->dy, AQ_F32) && aq_fours(args->dx, AQ_F32);
    const dim3 grid = aq_blocks(args->count, FLAT_THREADS * (fours ? 4 : 1));
    if (args->count == 0) return AQ_OK;
    if (fours) return AQ_LAUNCH(relu_backward<4>, grid, FLAT_THREADS, 0, stream, *args);
    return AQ_LAUNCH(relu_backward<1>, grid, FLAT_THREADS, 0, stream, *args);
}

/* ---- Batch normalization. */

enum sums {
    SUMS_OF_X,      /* first = sum of x */
    SUMS_OF_SPREAD, /* first = sum of (x - mean)^2 */
    SUMS_BACKWARD   /* first = sum of dy, second = sum of dy (x - mean) rstd */
};

struct column_sums {
    uint64_t rows, C, group;
    const float *x, *dy, *mean, *rstd;
    float *partial;                     /* of each group: C firsts, C seconds    */
    const float *gamma, *beta, *add;    /* backward behind a ReLU; beta NULL: no */
};

/* What a batch norm gave before its ReLU, as forward rounds it; h: (x - mean) rstd. */
static __forceinline__ __device__ float unrectified(float h, float gamma, float beta, const float *add, uint64_t at)
{
    const float z = __fadd_rn(__fmul_rn(h, gamma), beta);
    return add ? __fadd_rn(z, add[at]) : z;
}

static __forceinline__ __device__ float normal_of(float x, float mean, float rstd)
{
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

template <enum sums KIND> static __global__ void __launch_bounds__(COLUMN_THREADS) column_sums(struct column_sums args)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * COLUMN_THREADS + threadIdx.x, C = args.C;
    if (c >= C) return;
    const uint64_t first = blockIdx.x * args.group;
    const uint64_t end = first + args.group < args.rows ? first + args.group : args.rows;
    const float mean = KIND == SUMS_OF_X ? 0.0f : args.mean[c], rstd = KIND == SUMS_BACKWARD ? args.rstd[c] : 1.0f;
    float a = 0.0f, b = 0.0f;
    for (uint64_t row = first; row < end; row++) {
        const float x = args.x[row * C + c] - mean;
        if (KIND == SUMS_OF_X) {
            a += x;
        } else if (KIND == SUMS_OF_SPREAD) {
            a = fmaf(x, x, a);
        } else {
            const float h = normal_of(args.x[row * C + c], mean, rstd);
            float dy = args.dy[row * C + c];
            if (args.beta && !(unrectified(h, args.gamma[c], args.beta[c], args.add, row * C + c) > 0.0f)) dy = 0.0f;
            a += dy;
            b = fmaf(dy, h, b);
        }
    }
    args.partial[blockIdx.x * 2 * C + c] = a;
    args.partial[(blockIdx.x * 2 + 1) * C + c] = b;
}

static __forceinline__ __device__ double groups_sum(const float *partial, uint64_t groups, uint64_t stride)
{
    double sum = 0.0;
    for (uint64_t group = 0; group < groups; group++)
        sum += static_cast<double>(partial[group * stride]);
    return sum;
}

static __global__ void __launch_bounds__(COLUMN_THREADS)
    batch_norm_mean(struct aq_batch_norm args, const float *partial, uint64_t groups)
{
    const uint64_t c = aq_thread_index();
    if (c >= args.C) return;
    args.mean[c] = static_cast<float>(groups_sum(partial + c, groups, 2 * args.C) / static_cast<double>(args.rows));
}

static __global__ void __launch_bounds__(COLUMN_THREADS)
    batch_norm_spread(struct aq_batch_norm args, const float *partial, uint64_t groups)
{
    const uint64_t c = aq_thread_index();
    if (c >= args.C) return;
    const double rows = static_cast<double>(args.rows), unbiased = args.rows > 1 ? rows / (rows - 1.0) : 1.0;
    const double variance = groups_sum(partial + c, groups, 2 * args.C) / rows;
    args.rstd[c] = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(args.epsilon)));
    if (!args.running_mean) return;
    args.running_mean[c] += args.momentum * (args.mean[c] - args.running_mean[c]);
    args.running_variance[c] += args.momentum * (static_cast<float>(variance * unbiased) - args.running_variance[c]);
}

/* A thread a column of a group of rows. */
static __global__ void __launch_bounds__(COLUMN_THREADS) batch_norm(struct aq_batch_norm args, uint64_t group)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * COLUMN_THREADS + threadIdx.x, C = args.C;
    if (c >= C) return;
    const uint64_t first = blockIdx.x * group, end = first + group < args.rows ? first + group : args.rows;
    const float mean = args.training ? args.mean[c] : args.running_mean[c];
    const float rstd = args.training ? args.rstd[c] : 1.0f / sqrtf(args.running_variance[c] + args.epsilon);
    const float gamma = args.gamma[c], beta = args.beta[c];
    for (uint64_t row = first; row < end; row++) {
        const uint64_t at = row * C + c;
        const float z = unrectified(normal_of(args.x[at], mean, rstd), gamma, beta, args.add, at);
        args.y[at] = args.relu && z < 0.0f ? 0.0f : z;
    }
}

/* Rows of a group: about GROUPS groups, and so that their partial rows fit the scratch beside `beside` floats. */
static uint64_t group_rows(uint64_t rows, uint64_t C, uint64_t beside)
{
    uint64_t group = 16;
    while (group * GROUPS < rows)
        group *= 2;
    while (((rows + group - 1) / group * 2 * C + beside) * sizeof(float) > AQ_CUDA_SCRATCH_BYTES && group < rows)
        group *= 2;
    return group;
}

static dim3 column_grid(uint64_t rows, uint64_t C, uint64_t group)
{
    return dim3(static_cast<unsigned>((rows + group - 1) / group),
                static_cast<unsigned>((C + COLUMN_THREADS - 1) / COLUMN_THREADS));
}

enum aq_status aq_cuda_batch_norm(const struct aq_batch_norm *args, void *scratch, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    float *partial = static_cast<float *>(scratch);
    const uint64_t group = group_rows(args->rows, args->C, 0);
    const dim3 grid = column_grid(args->rows, args->C, group), columns = aq_blocks(args->C, COLUMN_THREADS);
    if (args->training) {
        const struct column_sums sums = {args->rows, args->C, group,   args->x, nullptr, args->mean,
                                         nullptr,    partial, nullptr, nullptr, nullptr};
        AQ_TRY(AQ_LAUNCH(column_sums<SUMS_OF_X>, grid, COLUMN_THREADS, 0, stream, sums));
        AQ_TRY(AQ_LAUNCH(batch_norm_mean, columns, COLUMN_THREADS, 0, stream, *args, partial, grid.x));
        AQ_TRY(AQ_LAUNCH(column_sums<SUMS_OF_SPREAD>, grid, COLUMN_THREADS, 0, stream, sums));
        AQ_TRY(AQ_LAUNCH(batch_norm_spread, columns, COLUMN_THREADS, 0, stream, *args, partial, grid.x));
    }
    return AQ_LAUNCH(batch_norm, grid, COLUMN_THREADS, 0, stream, *args, group);
}

/* The gradients of gamma and beta, and the means of dy and of dy h. */
static __global__ void __launch_bounds__(COLUMN_THREADS)
    batch_norm_means(struct aq_batch_norm_backward args, const float *partial, uint64_t groups, float *means)
{
    const uint64_t c = aq_thread_index(), C = args.C;
    if (c >= C) return;
    const double rows = static_cast<double>(args.rows), first = groups_sum(partial + c, groups, 2 * C);
    const double second = groups_sum(partial + C + c, groups, 2 * C);
    if (args.dbeta) args.dbeta[c] += static_cast<float>(first);
    if (args.dgamma) args.dgamma[c] += static_cast<float>(second);
    means[c] = static_cast<float>(first / rows);
    means[C + c] = static_cast<float>(second / rows);
}

/* With h = (x - mean) rstd:  dx = gamma rstd (dy - mean(dy) - h mean(dy h)). */
static __global__ void __launch_bounds__(COLUMN_THREADS)
    batch_norm_dx(struct aq_batch_norm_backward args, uint64_t group, const float *means)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * COLUMN_THREADS + threadIdx.x, C = args.C;
    if (c >= C) return;
    const uint64_t first = blockIdx.x * group, end = first + group < args.rows ? first + group : args.rows;
    const float mean = args.mean[c], rstd = args.rstd[c], factor = args.gamma[c] * rstd;
    const float mean_dy = means[c], mean_dyh = means[C + c];
    for (uint64_t row = first; row < end; row++) {
        const uint64_t at = row * C + c;
        const float h = normal_of(args.x[at], mean, rstd);
        float dy = args.dy[at];
        if (args.relu && !(unrectified(h, args.gamma[c], args.beta[c], args.add, at) > 0.0f)) dy = 0.0f;
        args.dx[at] = factor * (dy - mean_dy - h * mean_dyh);
        if (args.dz) args.dz[at] = dy;
    }
}

enum aq_status aq_cuda_batch_norm_backward(const struct aq_batch_norm_backward *args, void *scratch,
                                           struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    /* The scratch: the two means of each column, then the groups' sums. */
    float *means = static_cast<float *>(scratch), *partial = means + 2 * args->C;
    const uint64_t group = group_rows(args->rows, args->C, 2 * args->C);
    const dim3 grid = column_grid(args->rows, args->C, group);
    const struct column_sums sums = {args->rows, args->C, group,
                                     args->x,    args->dy, args->mean,
                                     args->rstd, partial,  args->gamma,
                                     args->relu ? args->beta : nullptr, args->add};
    AQ_TRY(AQ_LAUNCH(column_sums<SUMS_BACKWARD>, grid, COLUMN_THREADS, 0, stream, sums));
    AQ_TRY(AQ_LAUNCH(batch_norm_means, aq_blocks(args->C, COLUMN_THREADS), COLUMN_THREADS, 0, stream, *args, partial,
                     grid.x, means));
    return AQ_LAUNCH(batch_norm_dx, grid, COLUMN_THREADS, 0, stream, *args, group, means);
}

/* ---- Group normalization: a warp a group of a sample, whose values lie T times C / groups side by side. */

static __forceinline__ __device__ uint64_t group_place(uint64_t T, uint64_t C, uint64_t groups, uint64_t which,
                                                       uint64_t element)
{
    const uint64_t D = C / groups;
    return (which / groups * T + element / D) * C + which % groups * D + element % D;
}

static __global__ void __launch_bounds__(32 * ROW_WARPS) group_norm(struct aq_group_norm args)
{
    const uint64_t which = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (which >= args.samples * args.groups) return;
    const uint64_t C = args.C, count = args.T * (C / args.groups);
    float sum = 0.0f, spread = 0.0f;
    for (uint64_t i = lane; i < count; i += 32)
        sum += args.x[group_place(args.T, C, args.groups, which, i)];
    const float mean = aq_warp_sum(sum) / static_cast<float>(count);
    for (uint64_t i = lane; i < count; i += 32) {
        const float apart = args.x[group_place(args.T, C, args.groups, which, i)] - mean;
        spread = fmaf(apart, apart, spread);
    }
    const double variance = static_cast<double>(aq_warp_sum(spread)) / static_cast<double>(count);
    const float rstd = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(args.epsilon)));
    if (lane == 0 && args.mean) {
        args.mean[which] = mean;
        args.rstd[which] = rstd;
    }
    for (uint64_t i = lane; i < count; i += 32) {
        const uint64_t at = group_place(args.T, C, args.groups, which, i), c = at % C;
        const float z = unrectified(normal_of(args.x[at], mean, rstd), args.gamma[c], args.beta[c], args.add, at);
        args.y[at] = args.relu && z < 0.0f ? 0.0f : z;
    }
}

enum aq_status aq_cuda_group_norm(const struct aq_group_norm *args, void *, struct CUstream_st *stream)
{
    const dim3 grid = aq_blocks(args->samples * args->groups, ROW_WARPS);
    return AQ_LAUNCH(group_norm, grid, 32 * ROW_WARPS, 0, stream, *args);
}

/* What comes of dy behind the ReLU, and h. */
static __forceinline__ __device__ float group_dy(const struct aq_group_norm_backward &args, uint64_t which, uint64_t at,
                                                 float *h)
{
    const uint64_t c = at % args.C;
    *h = normal_of(args.x[at], args.mean[which], args.rstd[which]);
    const float dy = args.dy[at];
    return args.relu && !(unrectified(*h, args.gamma[c], args.beta[c], args.add, at) > 0.0f) ? 0.0f : dy;
}

/* Of a chunk of samples C sums of dy, then C of dy h: a thread a column. */
static __global__ void __launch_bounds__(COLUMN_THREADS)
    group_norm_sums(struct aq_group_norm_backward args, uint64_t chunk, float *partial)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * COLUMN_THREADS + threadIdx.x, C = args.C;
    if (c >= C) return;
    const uint64_t first = blockIdx.x * chunk, end = first + chunk < args.samples ? first + chunk : args.samples;
    float a = 0.0f, b = 0.0f, h;
    for (uint64_t sample = first; sample < end; sample++)
        for (uint64_t t = 0; t < args.T; t++) {
            const uint64_t which = sample * args.groups + c / (C / args.groups);
            const float dy = group_dy(args, which, (sample * args.T + t) * C + c, &h);
            a += dy;
            b = fmaf(dy, h, b);
        }
    partial[blockIdx.x * 2 * C + c] = a;
    partial[(blockIdx.x * 2 + 1) * C + c] = b;
}

/* With h = (x - mean) rstd:  dx = rstd (gamma dy - mean(gamma dy) - h mean(gamma dy h)), means over a group. */
static __global__ void __launch_bounds__(32 * ROW_WARPS) group_norm_dx(struct aq_group_norm_backward args)
{
    const uint64_t which = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (which >= args.samples * args.groups) return;
    const uint64_t C = args.C, count = args.T * (C / args.groups);
    float a = 0.0f, b = 0.0f, h;
    for (uint64_t i = lane; i < count; i += 32) {
        const uint64_t at = group_place(args.T, C, args.groups, which, i);
        const float dy = group_dy(args, which, at, &h) * args.gamma[at % C];
        a += dy;
        b = fmaf(dy, h, b);
    }
    const float mean_dy = aq_warp_sum(a) / static_cast<float>(count);
    const float mean_dyh = aq_warp_sum(b) / static_cast<float>(count);
    for (uint64_t i = lane; i < count; i += 32) {
        const uint64_t at = group_place(args.T, C, args.groups, which, i);
        const float dy = group_dy(args, which, at, &h);
        args.dx[at] = args.rstd[which] * (args.gamma[at % C] * dy - mean_dy - h * mean_dyh);
        if (args.dz) args.dz[at] = dy;
    }
}

enum aq_status aq_cuda_group_norm_backward(const struct aq_group_norm_backward *args, void *scratch,
                                           struct CUstream_st *stream)
{
    struct aq_group_norm_backward own = *args;
    float *partial = static_cast<float *>(scratch);
    uint64_t chunk = 1;
    if (!own.relu) own.add = nullptr;
    while ((own.samples + chunk - 1) / chunk * 2 * own.C * sizeof(float) > AQ_CUDA_SCRATCH_BYTES && chunk < own.samples)
        chunk *= 2;
    if (own.dgamma || own.dbeta) {
        const dim3 grid = column_grid(own.samples, own.C, chunk);
        const struct aq_cuda_sums to = {{own.dbeta, own.dgamma, nullptr}};
        AQ_TRY(AQ_LAUNCH(group_norm_sums, grid, COLUMN_THREADS, 0, stream, own, chunk, partial));
        AQ_TRY(aq_cuda_reduce(partial, grid.x, own.C, 2, to, stream));
    }
    return AQ_LAUNCH(group_norm_dx, aq_blocks(own.samples * own.groups, ROW_WARPS), 32 * ROW_WARPS, 0, stream, own);
}

/* ---- Means of rows: a thread a column of a sample. */

static __global__ void __launch_bounds__(COLUMN_THREADS) row_mean(struct aq_row_mean args)
{
    const uint64_t at = aq_thread_index();
    if (at >= args.samples * args.C) return;
    const float *x = args.x + at / args.C * args.T * args.C + at % args.C;
    double sum = 0.0;
    for (uint64_t t = 0; t < args.T; t++)
        sum += static_cast<double>(x[t * args.C]);
    args.y[at] = static_cast<float>(sum / static_cast<double>(args.T));
}

enum aq_status aq_cuda_row_mean(const struct aq_row_mean *args, void *, struct CUstream_st *stream)
{
    return AQ_LAUNCH(row_mean, aq_blocks(args->samples * args->C, COLUMN_THREADS), COLUMN_THREADS, 0, stream, *args);
}

static __global__ void __launch_bounds__(FLAT_THREADS) row_mean_backward(struct aq_row_mean_backward args)
{
    const uint64_t at = aq_thread_index(), width = args.T * args.C;
    if (at >= args.samples * width) return;
    args.dx[at] = args.dy[at / width * args.C + at % args.C] / static_cast<float>(args.T);
}

enum aq_status aq_cuda_row_mean_backward(const struct aq_row_mean_backward *args, void *, struct CUstream_st *stream)
{
    const uint64_t count = args->samples * args->T * args->C;
    return AQ_LAUNCH(row_mean_backward, aq_blocks(count, FLAT_THREADS), FLAT_THREADS, 0, stream, *args);
}

/* ---- Classes: a warp a row. */

static __global__ void __launch_bounds__(32 * ROW_WARPS) argmax(struct aq_argmax args)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (row >= args.rows) return;
    const float *x = args.x + row * args.stride;
    float best = -INFINITY;
    unsigned at = 0;
    for (unsigned c = lane; c < args.C; c += 32)
        if (x[c] > best) {
            best = x[c];
            at = c;
        }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(AQ_ALL_LANES, best, lanes);
        const unsigned other_at = __shfl_xor_sync(AQ_ALL_LANES, at, lanes);
        if (other > best || (other == best && other_at < at)) {
            best = other;
            at = other_at;
        }
    }
    if (lane == 0) args.index[row] = static_cast<int32_t>(at);
}

enum aq_status aq_cuda_argmax(const struct aq_argmax *args, void *, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    return AQ_LAUNCH(argmax, aq_blocks(args->rows, ROW_WARPS), 32 * ROW_WARPS, 0, stream, *args);
}
