/*
 * cuda_image.cu -- the mathematics of image networks, except convolutions (cuda_conv.cu): ReLU, batch and group
 * normalization, means of rows, the class of a row.
 *
 * Bound by memory. Sums of columns go in two stages: groups of rows are summed in float into partial rows in the
 * scratch, a thread per column, then the partial rows are added in double in the order of the groups. The grouping
 * depends only on the extents. Truth: cpu_image.c.
 */
#include <math.h>

#include "cuda_common.cuh"
#include "cuda_sums.cuh"

constexpr unsigned FLAT_THREADS = 256, COLUMN_THREADS = 128, GROUPS = 512, ROW_WARPS = 8;
constexpr unsigned NORM_LANES = 16, NORM_ROWS = 16, NORM_THREADS = NORM_LANES * NORM_ROWS;
constexpr unsigned FOLD_COLUMNS = 32, FOLD_ROWS = 32, FOLD_THREADS = FOLD_COLUMNS * FOLD_ROWS;

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
    float *partial;                  /* of each group: C firsts, C seconds    */
    const float *gamma, *beta, *add; /* backward behind a ReLU; beta NULL: no */
};

/* The result of a batch norm before its ReLU, as forward rounds it; h: (x - mean) rstd. */
static __forceinline__ __device__ float unrectified(float h, float gamma, float beta, const float *add, uint64_t at)
{
    const float z = __fadd_rn(__fmul_rn(h, gamma), beta);
    return add ? __fadd_rn(z, add[at]) : z;
}

static __forceinline__ __device__ float normal_of(float x, float mean, float rstd)
{
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

/*
 * A block has NORM_LANES pieces of W columns side by side and NORM_ROWS rows at a time. A thread's columns, and the
 * rows of its group: first + its own, and so on.
 */
template <int W> struct norm_place {
    uint64_t c, row, end;
    bool inside;

    __device__ norm_place(uint64_t rows, uint64_t C, uint64_t group)
        : c((static_cast<uint64_t>(blockIdx.y) * NORM_LANES + threadIdx.x % NORM_LANES) * W),
          row(blockIdx.x * group + threadIdx.x / NORM_LANES), end((blockIdx.x + 1) * group), inside(c < C)
    {
        if (end > rows) end = rows;
    }
};

template <int W>
static __forceinline__ __device__ void columns_load(const float *from, const struct norm_place<W> &at, float fill,
                                                    float (&values)[W])
{
    for (int w = 0; w < W; w++)
        values[w] = from && at.inside ? from[at.c + w] : fill;
}

/* dy behind the ReLU, and h of W values. */
template <int W> struct norm_values {
    float mean[W], rstd[W], gamma[W], beta[W];
    bool relu;

    __device__ void read(const float *x, const float *dy, const float *add, uint64_t at, float (&h)[W],
                         float (&d)[W]) const
    {
        float x_[W], add_[W];
        aq_load_wide(x + at, x_);
        aq_load_wide(dy + at, d);
        if (relu && add) aq_load_wide(add + at, add_);
        for (int w = 0; w < W; w++) {
            h[w] = normal_of(x_[w], mean[w], rstd[w]);
            if (relu && !(unrectified(h[w], gamma[w], beta[w], add ? add_ + w : nullptr, 0) > 0.0f)) d[w] = 0.0f;
        }
    }
};

template <enum sums KIND, int W>
static __global__ void __launch_bounds__(NORM_THREADS) column_sums(struct column_sums args)
{
    AQ_SHARED(float, parts, [NORM_ROWS][2 * NORM_LANES * W]);
    const struct norm_place<W> at(args.rows, args.C, args.group);
    const unsigned lane = threadIdx.x % NORM_LANES, mine = threadIdx.x / NORM_LANES;
    struct norm_values<W> norm;
    float a[W] = {}, b[W] = {};
    columns_load(KIND == SUMS_OF_X ? nullptr : args.mean, at, 0.0f, norm.mean);
    columns_load(KIND == SUMS_BACKWARD ? args.rstd : nullptr, at, 1.0f, norm.rstd);
    columns_load(KIND == SUMS_BACKWARD ? args.gamma : nullptr, at, 1.0f, norm.gamma);
    columns_load(KIND == SUMS_BACKWARD ? args.beta : nullptr, at, 0.0f, norm.beta);
    norm.relu = KIND == SUMS_BACKWARD && args.beta;
    if (at.inside)
        for (uint64_t row = at.row; row < at.end; row += NORM_ROWS) {
            float x[W], dy[W];
            if (KIND == SUMS_BACKWARD)
                norm.read(args.x, args.dy, args.add, row * args.C + at.c, x, dy);
            else
                aq_load_wide(args.x + row * args.C + at.c, x);
            for (int w = 0; w < W; w++) {
                const float apart = x[w] - norm.mean[w];
                if (KIND == SUMS_OF_X) a[w] += x[w];
                if (KIND == SUMS_OF_SPREAD) a[w] = fmaf(apart, apart, a[w]);
                if (KIND == SUMS_BACKWARD) a[w] += dy[w];
                if (KIND == SUMS_BACKWARD) b[w] = fmaf(dy[w], x[w], b[w]);
            }
        }
    for (int w = 0; w < W; w++) {
        parts[mine][lane * W + w] = a[w];
        parts[mine][(NORM_LANES + lane) * W + w] = b[w];
    }
    __syncthreads();
    const unsigned column = threadIdx.x % (NORM_LANES * W), second = threadIdx.x / (NORM_LANES * W);
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * NORM_LANES * W + column;
    if (second > (KIND == SUMS_BACKWARD ? 1 : 0) || c >= args.C) return;
    float sum = 0.0f;
    for (unsigned row = 0; row < NORM_ROWS; row++)
        sum += parts[row][threadIdx.x];
    args.partial[(blockIdx.x * 2 + second) * args.C + c] = sum;
}

/* A block adds the groups of FOLD_COLUMNS columns, a row of threads every FOLD_ROWS-th group, then those rows. */
struct fold {
    double rows[FOLD_ROWS][FOLD_COLUMNS];
};

static __forceinline__ __device__ double groups_sum(const float *partial, uint64_t groups, uint64_t stride, bool inside,
                                                    struct fold *fold)
{
    const unsigned lane = threadIdx.x % FOLD_COLUMNS, mine = threadIdx.x / FOLD_COLUMNS;
    double sum = 0.0;
    for (uint64_t group = mine; inside && group < groups; group += FOLD_ROWS)
        sum += static_cast<double>(partial[group * stride]);
    fold->rows[mine][lane] = sum;
    __syncthreads();
    sum = 0.0;
    for (unsigned row = 0; row < FOLD_ROWS; row++)
        sum += fold->rows[row][lane];
    return sum;
}

static __forceinline__ __device__ uint64_t fold_column()
{
    return static_cast<uint64_t>(blockIdx.x) * FOLD_COLUMNS + threadIdx.x % FOLD_COLUMNS;
}

static __global__ void __launch_bounds__(FOLD_THREADS)
    batch_norm_mean(struct aq_batch_norm args, const float *partial, uint64_t groups)
{
    AQ_SHARED(struct fold, fold, [1]);
    const uint64_t c = fold_column();
    const double sum = groups_sum(partial + c, groups, 2 * args.C, c < args.C, fold);
    if (c < args.C && threadIdx.x < FOLD_COLUMNS)
        args.mean[c] = static_cast<float>(sum / static_cast<double>(args.rows));
}

static __global__ void __launch_bounds__(FOLD_THREADS)
    batch_norm_spread(struct aq_batch_norm args, const float *partial, uint64_t groups)
{
    AQ_SHARED(struct fold, fold, [1]);
    const uint64_t c = fold_column();
    const double rows = static_cast<double>(args.rows), unbiased = args.rows > 1 ? rows / (rows - 1.0) : 1.0;
    const double variance = groups_sum(partial + c, groups, 2 * args.C, c < args.C, fold) / rows;
    if (c >= args.C || threadIdx.x >= FOLD_COLUMNS) return;
    args.rstd[c] = static_cast<float>(1.0 / sqrt(variance + static_cast<double>(args.epsilon)));
    if (!args.running_mean) return;
    args.running_mean[c] += args.momentum * (args.mean[c] - args.running_mean[c]);
    args.running_variance[c] += args.momentum * (static_cast<float>(variance * unbiased) - args.running_variance[c]);
}

template <int W>
static __global__ void __launch_bounds__(NORM_THREADS) batch_norm(struct aq_batch_norm args, uint64_t group)
{
    const struct norm_place<W> at(args.rows, args.C, group);
    float mean[W], rstd[W], gamma[W], beta[W];
    if (!at.inside) return;
    columns_load(args.training ? args.mean : args.running_mean, at, 0.0f, mean);
    columns_load(args.training ? args.rstd : args.running_variance, at, 1.0f, rstd);
    columns_load(args.gamma, at, 1.0f, gamma);
    columns_load(args.beta, at, 0.0f, beta);
    for (int w = 0; w < W && !args.training; w++)
        rstd[w] = 1.0f / sqrtf(rstd[w] + args.epsilon);
    for (uint64_t row = at.row; row < at.end; row += NORM_ROWS) {
        float x[W], add[W];
        aq_load_wide(args.x + row * args.C + at.c, x);
        if (args.add) aq_load_wide(args.add + row * args.C + at.c, add);
        for (int w = 0; w < W; w++) {
            const float h = normal_of(x[w], mean[w], rstd[w]);
            const float z = unrectified(h, gamma[w], beta[w], args.add ? add + w : nullptr, 0);
            x[w] = args.relu && z < 0.0f ? 0.0f : z;
        }
        aq_store_wide(args.y + row * args.C + at.c, x);
    }
}

/* Rows of a group: about GROUPS groups, and so that their partial rows fit the scratch along with `beside` floats. */
static uint64_t group_rows(uint64_t rows, uint64_t C, uint64_t beside)
{
    uint64_t group = NORM_ROWS;
    while (group * GROUPS < rows)
        group *= 2;
    while (((rows + group - 1) / group * 2 * C + beside) * sizeof(float) > AQ_CUDA_SCRATCH_BYTES && group < rows)
        group *= 2;
    return group;
}

static dim3 norm_grid(uint64_t rows, uint64_t C, uint64_t group, bool fours)
{
    const uint64_t wide = NORM_LANES * (fours ? 4 : 1);
    return dim3(static_cast<unsigned>((rows + group - 1) / group), static_cast<unsigned>((C + wide - 1) / wide));
}

template <enum sums KIND>
static enum aq_status column_sums_launch(const struct column_sums *sums, bool fours, cudaStream_t stream)
{
    const dim3 grid = norm_grid(sums->rows, sums->C, sums->group, fours);
    if (fours) return AQ_LAUNCH((column_sums<KIND, 4>), grid, NORM_THREADS, 0, stream, *sums);
    return AQ_LAUNCH((column_sums<KIND, 1>), grid, NORM_THREADS, 0, stream, *sums);
}

enum aq_status aq_cuda_batch_norm(const struct aq_batch_norm *args, void *scratch, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    float *partial = static_cast<float *>(scratch);
    const uint64_t group = group_rows(args->rows, args->C, 0), groups = (args->rows + group - 1) / group;
    const bool fours =
        args->C % 4 == 0 && aq_fours(args->x, AQ_F32) && aq_fours(args->y, AQ_F32) && aq_fours(args->add, AQ_F32);
    const dim3 grid = norm_grid(args->rows, args->C, group, fours), columns = aq_blocks(args->C, FOLD_COLUMNS);
    if (args->training) {
        const struct column_sums sums = {args->rows, args->C, group,   args->x, nullptr, args->mean,
                                         nullptr,    partial, nullptr, nullptr, nullptr};
        AQ_TRY(column_sums_launch<SUMS_OF_X>(&sums, fours, stream));
        AQ_TRY(AQ_LAUNCH(batch_norm_mean, columns, FOLD_THREADS, 0, stream, *args, partial, groups));
        AQ_TRY(column_sums_launch<SUMS_OF_SPREAD>(&sums, fours, stream));
        AQ_TRY(AQ_LAUNCH(batch_norm_spread, columns, FOLD_THREADS, 0, stream, *args, partial, groups));
    }
    if (fours) return AQ_LAUNCH(batch_norm<4>, grid, NORM_THREADS, 0, stream, *args, group);
    return AQ_LAUNCH(batch_norm<1>, grid, NORM_THREADS, 0, stream, *args, group);
}

/* The gradients of gamma and beta, and the means of dy and of dy h. */
static __global__ void __launch_bounds__(FOLD_THREADS)
    batch_norm_means(struct aq_batch_norm_backward args, const float *partial, uint64_t groups, float *means)
{
    AQ_SHARED(struct fold, fold, [2]);
    const uint64_t c = fold_column(), C = args.C;
    const double rows = static_cast<double>(args.rows);
    const double first = groups_sum(partial + c, groups, 2 * C, c < C, fold);
    const double second = groups_sum(partial + C + c, groups, 2 * C, c < C, fold + 1);
    if (c >= C || threadIdx.x >= FOLD_COLUMNS) return;
    if (args.dbeta) args.dbeta[c] += static_cast<float>(first);
    if (args.dgamma) args.dgamma[c] += static_cast<float>(second);
    means[c] = static_cast<float>(first / rows);
    means[C + c] = static_cast<float>(second / rows);
}

/* With h = (x - mean) rstd:  dx = gamma rstd (dy - mean(dy) - h mean(dy h)). */
template <int W>
static __global__ void __launch_bounds__(NORM_THREADS)
    batch_norm_dx(struct aq_batch_norm_backward args, uint64_t group, const float *means)
{
    const struct norm_place<W> at(args.rows, args.C, group);
    struct norm_values<W> norm;
    float mean_dy[W], mean_dyh[W];
    if (!at.inside) return;
    columns_load(args.mean, at, 0.0f, norm.mean);
    columns_load(args.rstd, at, 1.0f, norm.rstd);
    columns_load(args.gamma, at, 1.0f, norm.gamma);
    columns_load(args.relu ? args.beta : nullptr, at, 0.0f, norm.beta);
    columns_load(means, at, 0.0f, mean_dy);
    columns_load(means + args.C, at, 0.0f, mean_dyh);
    norm.relu = args.relu;
    for (uint64_t row = at.row; row < at.end; row += NORM_ROWS) {
        const uint64_t place = row * args.C + at.c;
        float h[W], dy[W];
        norm.read(args.x, args.dy, args.add, place, h, dy);
        for (int w = 0; w < W; w++)
            h[w] = norm.gamma[w] * norm.rstd[w] * (dy[w] - mean_dy[w] - h[w] * mean_dyh[w]);
        aq_store_wide(args.dx + place, h);
        if (args.dz) aq_store_wide(args.dz + place, dy);
    }
}

enum aq_status aq_cuda_batch_norm_backward(const struct aq_batch_norm_backward *args, void *scratch,
                                           struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    /* The scratch: the two means of each column, then the groups' sums. */
    float *means = static_cast<float *>(scratch), *partial = means + 2 * args->C;
    const uint64_t group = group_rows(args->rows, args->C, 2 * args->C), groups = (args->rows + group - 1) / group;
    const bool fours = args->C % 4 == 0 && aq_fours(args->x, AQ_F32) && aq_fours(args->dy, AQ_F32) &&
                       aq_fours(args->add, AQ_F32) && aq_fours(args->dx, AQ_F32) && aq_fours(args->dz, AQ_F32);
    const dim3 grid = norm_grid(args->rows, args->C, group, fours);
    const struct column_sums sums = {args->rows, args->C,    group,   args->x,     args->dy,
                                     args->mean, args->rstd, partial, args->gamma, args->relu ? args->beta : nullptr,
                                     args->add};
    AQ_TRY(column_sums_launch<SUMS_BACKWARD>(&sums, fours, stream));
    AQ_TRY(AQ_LAUNCH(batch_norm_means, aq_blocks(args->C, FOLD_COLUMNS), FOLD_THREADS, 0, stream, *args, partial,
                     groups, means));
    if (fours) return AQ_LAUNCH(batch_norm_dx<4>, grid, NORM_THREADS, 0, stream, *args, group, means);
    return AQ_LAUNCH(batch_norm_dx<1>, grid, NORM_THREADS, 0, stream, *args, group, means);
}

static dim3 column_grid(uint64_t rows, uint64_t C, uint64_t group)
{
    return dim3(static_cast<unsigned>((rows + group - 1) / group),
                static_cast<unsigned>((C + COLUMN_THREADS - 1) / COLUMN_THREADS));
}

/* ---- Group normalization: a warp per group of a sample, whose values are T runs of C / groups adjacent ones. */

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

/* dy behind the ReLU, and h. */
static __forceinline__ __device__ float group_dy(const struct aq_group_norm_backward &args, uint64_t which, uint64_t at,
                                                 float *h)
{
    const uint64_t c = at % args.C;
    *h = normal_of(args.x[at], args.mean[which], args.rstd[which]);
    const float dy = args.dy[at];
    return args.relu && !(unrectified(*h, args.gamma[c], args.beta[c], args.add, at) > 0.0f) ? 0.0f : dy;
}

/* Of a chunk of samples C sums of dy, then C of dy h: a thread per column. */
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

/* ---- Means of rows: a thread per column of a sample. */

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

/* ---- Classes: a warp per row. */

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
