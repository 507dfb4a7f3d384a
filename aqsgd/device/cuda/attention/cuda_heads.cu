/*
 * cuda_heads.cu -- the mathematics of decoders, except layer norm and GELU: root mean square norms, normalization and
 * rotary embedding of heads, gated activations. Truth: cpu_rows_plain.c and cpu_heads.c; the RMS norm's backward is in
 * cuda_rows.cu.
 *
 * All of it is bound by memory. A warp takes a row of a norm or a head of a row.
 */
#include <math.h>

#include "cuda_sums.cuh"

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS;

/* ---- RMS norm. */

template <typename X, typename Y, int W>
static __global__ void __launch_bounds__(THREADS) rmsnorm(struct aq_rmsnorm args)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * WARPS + threadIdx.x / 32, C = args.C;
    const unsigned lane = threadIdx.x % 32;
    if (row >= args.rows) return;
    const X *x = static_cast<const X *>(args.x) + row * C;
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

template <typename X, typename Y>
static enum aq_status rmsnorm_typed(const struct aq_rmsnorm *args, cudaStream_t stream)
{
    const dim3 grid = aq_blocks(args->rows, WARPS);
    const bool fours = args->C % 4 == 0 && aq_fours(args->x, args->x_type) && aq_fours(args->gamma, AQ_F32) &&
                       aq_fours(args->y, args->y_type) && aq_fours(args->other, AQ_F32);
    if (fours) return AQ_LAUNCH((rmsnorm<X, Y, 4>), grid, THREADS, 0, stream, *args);
    return AQ_LAUNCH((rmsnorm<X, Y, 1>), grid, THREADS, 0, stream, *args);
}

enum aq_status aq_cuda_rmsnorm(const struct aq_rmsnorm *args, void *, struct CUstream_st *stream)
{
    if (args->rows == 0 || args->C == 0) return AQ_OK;
    return aq_by_type(args->y_type, [&](auto t) {
        return args->x_type == AQ_BF16 ? rmsnorm_typed<uint16_t, decltype(t)>(args, stream)
                                       : rmsnorm_typed<float, decltype(t)>(args, stream);
    });
}

/*
 * ---- Heads. rope_wide and rope_backward_wide read each value once, 16 bytes at a time (values of 16 bits in backward:
 * 8 bytes). They need extents and addresses that allow it (rope_can); rope_any, rope_gammas_any and rope_backward_any
 * take all others, and rows with gates.
 *
 * A thread keeps one head and two pieces of its columns for all rows of its block. The weights of the head's norm and
 * the sums of their gradients stay in registers. The loop over rows divides nothing: a warp for each head, with two
 * divisions by 64-bit extents and a load for each value of 16 bits, was bound by its instructions.
 */
constexpr unsigned ROWS_AT_ONCE = 2; /* rows whose loads are on their way together */

/* How a launch is cut: a block has `group` rows and the heads of its piece, `lanes` neighbouring lanes a head. */
struct rope_cut {
    unsigned lanes; /* of a head: a power of two, at most 32 */
    unsigned heads; /* the first ones of a row, which are written */
    uint64_t group;
};

/* Can lanes that have two pieces of W columns each, 16 bytes aligned, cover heads of D columns of which R turn? */
static bool rope_can(uint64_t T, uint64_t D, uint64_t R, unsigned W, const void *x, const void *y, const float *table,
                     const float *q_gamma, const float *k_gamma)
{
    return T <= 0x7fffffffu && D > 0 && D % (2 * W) == 0 && R % (2 * W) == 0 && D <= 64 * W && aq_aligned(x, 16) &&
           aq_aligned(y, 16) && aq_aligned(table, 16) && aq_aligned(q_gamma, 16) && aq_aligned(k_gamma, 16);
}

/* A lane's two pieces of W columns: those from `low` turn with those from `high`; beyond R they only share a lane. */
struct rope_lane {
    unsigned head, low, high;
    bool there, turns, first; /* first: of its head */
};

template <int W>
static __forceinline__ __device__ struct rope_lane rope_lane_of(const struct rope_cut &cut, unsigned turned_heads,
                                                                unsigned D, unsigned R)
{
    const unsigned slot = threadIdx.x / cut.lanes, index = threadIdx.x - slot * cut.lanes;
    struct rope_lane lane;
    lane.head = blockIdx.y * (blockDim.x / cut.lanes) + slot;
    const unsigned turned = lane.head < turned_heads ? R : 0, c = index * W;
    lane.there = lane.head < cut.heads && c < D / 2;
    lane.turns = lane.there && c < turned / 2;
    lane.low = lane.turns ? c : turned / 2 + c;
    lane.high = lane.low + (lane.turns ? turned / 2 : (D - turned) / 2);
    lane.first = lane.there && index == 0;
    return lane;
}

/* plus + gamma of the lane's columns. */
template <int W>
static __forceinline__ __device__ void lane_weights(const float *gamma, float plus, const struct rope_lane &lane,
                                                    float (&weights)[2][W])
{
    aq_load_wide(gamma + lane.low, weights[0]);
    aq_load_wide(gamma + lane.high, weights[1]);
    AQ_UNROLL
    for (int i = 0; i < W; i++) {
        weights[0][i] += plus;
        weights[1][i] += plus;
    }
}

/* angles: R/2 cosines, then R/2 sines; sign -1 turns back. */
template <int W>
static __forceinline__ __device__ void lane_turn(const float (&angles)[2][W], float sign, float (&x)[2][W])
{
    AQ_UNROLL
    for (int i = 0; i < W; i++) {
        const float low = x[0][i], high = x[1][i], sine = sign * angles[1][i];
        x[0][i] = fmaf(low, angles[0][i], -(high * sine));
        x[1][i] = fmaf(high, angles[0][i], low * sine);
    }
}

/* The sums over the lanes of a head, of a value for each row: the same bits in each of them. */
static __forceinline__ __device__ void lanes_sum(float (&values)[ROWS_AT_ONCE], unsigned lanes)
{
    for (unsigned i = lanes / 2; i > 0; i /= 2) {
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++)
            values[r] += __shfl_xor_sync(AQ_ALL_LANES, values[r], i);
    }
}

/* The rows of a block; t: the place of the next one in its sample. */
struct rope_rows {
    uint64_t first;
    unsigned count, t, T;
};

static __forceinline__ __device__ struct rope_rows rope_rows_of(uint64_t rows, uint64_t T, uint64_t group)
{
    const uint64_t first = blockIdx.x * group, count = rows - first < group ? rows - first : group;
    return {first, static_cast<unsigned>(count), static_cast<unsigned>(first % T), static_cast<unsigned>(T)};
}

/* Loads the angles of ROWS_AT_ONCE rows from the block's row `row` on. */
template <int W>
static __forceinline__ __device__ void lane_angles(const float *table, const uint32_t *starts, unsigned R,
                                                   const struct rope_lane &lane, struct rope_rows *rows, unsigned row,
                                                   float (&angles)[ROWS_AT_ONCE][2][W])
{
    unsigned place[ROWS_AT_ONCE];
    AQ_UNROLL
    for (unsigned r = 0; r < ROWS_AT_ONCE; r++) {
        place[r] = rows->t;
        rows->t = rows->t + 1 == rows->T ? 0 : rows->t + 1;
    }
    if (starts) {
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++)
            if (row + r < rows->count) place[r] -= starts[rows->first + row + r];
    }
    AQ_UNROLL
    for (unsigned r = 0; r < ROWS_AT_ONCE; r++) {
        if (!lane.turns || row + r >= rows->count) continue;
        const float *at = table + static_cast<uint64_t>(place[r]) * R + lane.low;
        aq_load_wide(at, angles[r][0]);
        aq_load_wide(at + R / 2, angles[r][1]);
    }
}

/* y may be x: a lane reads all that it writes before it writes it. */
template <typename T, int W>
static __global__ void __launch_bounds__(THREADS) rope_wide(struct aq_rope args, struct rope_cut cut)
{
    const unsigned D = static_cast<unsigned>(args.D), R = static_cast<unsigned>(args.R);
    const unsigned normed = static_cast<unsigned>(args.H + args.kv_heads);
    const unsigned width = (normed + static_cast<unsigned>(args.kv_heads)) * D;
    const struct rope_lane lane = rope_lane_of<W>(cut, normed, D, R);
    struct rope_rows rows = rope_rows_of(args.samples * args.T, args.T, cut.group);
    const T *x = static_cast<const T *>(args.x) + rows.first * width + lane.head * D;
    T *y = static_cast<T *>(args.y) + rows.first * width + lane.head * D;
    float *rstd_of = args.rstd ? args.rstd + rows.first * normed + lane.head : nullptr;
    const bool weighed = lane.there && args.q_gamma && lane.head < normed;
    const float part = 1.0f / static_cast<float>(D);
    float weights[2][W] = {};
    if (weighed) lane_weights(lane.head < args.H ? args.q_gamma : args.k_gamma, args.plus, lane, weights);
    for (unsigned row = 0; row < rows.count; row += ROWS_AT_ONCE) {
        aq_words<T, W> words[ROWS_AT_ONCE][2] = {};
        float values[ROWS_AT_ONCE][2][W], angles[ROWS_AT_ONCE][2][W], sum2[ROWS_AT_ONCE] = {};
        lane_angles(args.table, args.starts, R, lane, &rows, row, angles);
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++)
            if (lane.there && row + r < rows.count) {
                aq_words_load<T, W>(x + r * width + lane.low, &words[r][0]);
                aq_words_load<T, W>(x + r * width + lane.high, &words[r][1]);
            }
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++) {
            aq_unpack<T, W>(words[r][0], values[r][0]);
            aq_unpack<T, W>(words[r][1], values[r][1]);
            AQ_UNROLL
            for (int i = 0; i < 2 * W; i++)
                sum2[r] = fmaf(values[r][i / W][i % W], values[r][i / W][i % W], sum2[r]);
        }
        if (args.q_gamma) lanes_sum(sum2, cut.lanes);
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++) {
            if (!lane.there || row + r >= rows.count) continue;
            if (weighed) {
                const float rstd = rsqrtf(fmaf(sum2[r], part, args.epsilon));
                AQ_UNROLL
                for (int i = 0; i < 2 * W; i++)
                    values[r][i / W][i % W] *= rstd * weights[i / W][i % W];
                if (lane.first) rstd_of[(row + r) * normed] = rstd;
            }
            if (lane.turns) lane_turn(angles[r], 1.0f, values[r]);
            aq_store_wide(y + r * width + lane.low, values[r][0]);
            aq_store_wide(y + r * width + lane.high, values[r][1]);
        }
        x += ROWS_AT_ONCE * width;
        y += ROWS_AT_ONCE * width;
    }
}

/* A block's sums, of its heads in their order, into its row of partial sums: D of queries, then D of keys. */
template <int W>
static __forceinline__ __device__ void rope_sums(const struct rope_lane &lane, bool weighed, unsigned before,
                                                 unsigned slots, unsigned H, unsigned normed, unsigned D,
                                                 const float (&sums)[2][W], float *shared, float *partial)
{
    if (weighed) {
        aq_store_wide(shared + (lane.head - before) * D + lane.low, sums[0]);
        aq_store_wide(shared + (lane.head - before) * D + lane.high, sums[1]);
    }
    __syncthreads();
    for (unsigned c = threadIdx.x; c < 2 * D; c += blockDim.x) {
        const bool key = c >= D;
        const unsigned head = key && H > before ? H : before, last = key ? normed : H;
        float sum = 0.0f;
        for (unsigned i = head; i < last && i < before + slots; i++)
            sum += shared[(i - before) * D + (key ? c - D : c)];
        partial[c] = sum;
    }
}

/*
 * With h = x rstd, d = dy turned back and g = d (plus + gamma):  dx = rstd (g - h mean(g h)). dx may be dy. partial, or
 * NULL: for each block that has queries or keys, the sums of d h over its rows and heads.
 */
template <typename T, int W>
static __global__ void __launch_bounds__(THREADS)
    rope_backward_wide(struct aq_rope_backward args, struct rope_cut cut, float *partial)
{
    AQ_SHARED(float4, shared, [THREADS * 2 * W / 4]); /* a block's heads, D each */
    const unsigned D = static_cast<unsigned>(args.D), R = static_cast<unsigned>(args.R);
    const unsigned H = static_cast<unsigned>(args.H), normed = H + static_cast<unsigned>(args.kv_heads);
    const unsigned width = (normed + static_cast<unsigned>(args.kv_heads)) * D;
    const struct rope_lane lane = rope_lane_of<W>(cut, normed, D, R);
    struct rope_rows rows = rope_rows_of(args.samples * args.T, args.T, cut.group);
    uint64_t at = rows.first * width + lane.head * D; /* the head's first element in `row` */
    const T *x = static_cast<const T *>(args.x);
    T *dx = static_cast<T *>(args.dx);
    const float *rstd_of = args.rstd ? args.rstd + rows.first * normed + lane.head : nullptr;
    const bool weighed = lane.there && args.q_gamma && lane.head < normed;
    const float part = 1.0f / static_cast<float>(D);
    float weights[2][W] = {}, sums[2][W] = {};
    if (weighed) lane_weights(lane.head < H ? args.q_gamma : args.k_gamma, args.plus, lane, weights);
    for (unsigned row = 0; row < rows.count; row += ROWS_AT_ONCE, at += ROWS_AT_ONCE * width) {
        aq_words<T, W> words[ROWS_AT_ONCE][2] = {};
        float d[ROWS_AT_ONCE][2][W] = {}, h[ROWS_AT_ONCE][2][W], angles[ROWS_AT_ONCE][2][W];
        float rstd[ROWS_AT_ONCE] = {}, mean[ROWS_AT_ONCE] = {};
        lane_angles(args.table, args.starts, R, lane, &rows, row, angles);
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++)
            if (lane.there && row + r < rows.count) {
                aq_load_wide(args.dy + at + r * width + lane.low, d[r][0]);
                aq_load_wide(args.dy + at + r * width + lane.high, d[r][1]);
            }
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++)
            if (weighed && row + r < rows.count) {
                aq_words_load<T, W>(x + at + r * width + lane.low, &words[r][0]);
                aq_words_load<T, W>(x + at + r * width + lane.high, &words[r][1]);
                rstd[r] = rstd_of[(row + r) * normed];
            }
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++) {
            aq_unpack<T, W>(words[r][0], h[r][0]);
            aq_unpack<T, W>(words[r][1], h[r][1]);
            if (lane.turns && row + r < rows.count) lane_turn(angles[r], -1.0f, d[r]);
            if (!weighed) continue;
            AQ_UNROLL
            for (int i = 0; i < 2 * W; i++) {
                h[r][i / W][i % W] *= rstd[r];
                sums[i / W][i % W] = fmaf(d[r][i / W][i % W], h[r][i / W][i % W], sums[i / W][i % W]);
                d[r][i / W][i % W] *= weights[i / W][i % W];
                mean[r] = fmaf(d[r][i / W][i % W], h[r][i / W][i % W], mean[r]);
            }
        }
        if (args.q_gamma) lanes_sum(mean, cut.lanes);
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++) {
            if (!lane.there || row + r >= rows.count) continue;
            if (weighed) {
                AQ_UNROLL
                for (int i = 0; i < 2 * W; i++)
                    d[r][i / W][i % W] = rstd[r] * fmaf(h[r][i / W][i % W], -(mean[r] * part), d[r][i / W][i % W]);
            }
            aq_store_wide(dx + at + r * width + lane.low, d[r][0]);
            aq_store_wide(dx + at + r * width + lane.high, d[r][1]);
        }
    }
    const unsigned slots = blockDim.x / cut.lanes, before = blockIdx.y * slots;
    if (!partial || before >= normed) return;
    rope_sums(lane, weighed, before, slots, H, normed, D, sums, &shared[0].x,
              partial + (static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * 2 * D);
}

/* ---- Heads of any extents and at any address: a warp for each, or a thread for a column. */

/* Which head of which row a warp has; heads of values come last. */
struct head_place {
    uint64_t row, head, at; /* at: its first element                            */
    uint64_t gated_at;      /* the same in rows with a gate behind each query, where there are such rows */
    bool there;
};

/* gates: H, or 0 where rows have none. */
static __forceinline__ __device__ uint64_t gated_column(uint64_t gates, uint64_t D, uint64_t head)
{
    return (head + (head < gates ? head : gates)) * D;
}

static __forceinline__ __device__ struct head_place place_of(uint64_t rows, uint64_t H, uint64_t kv_heads, uint64_t D,
                                                             bool gated)
{
    const uint64_t gates = gated ? H : 0;
    const uint64_t heads = H + 2 * kv_heads, index = static_cast<uint64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const uint64_t row = index / heads, head = index % heads;
    const struct head_place place = {row, head, index * D,
                                     row * (heads + gates) * D + gated_column(gates, D, head), index < rows * heads};
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
template <typename T> static __global__ void __launch_bounds__(THREADS) rope_any(struct aq_rope args)
{
    const struct head_place place = place_of(args.samples * args.T, args.H, args.kv_heads, args.D, args.gated);
    const unsigned lane = threadIdx.x % 32;
    if (!place.there) return;
    const T *x = static_cast<const T *>(args.x) + place.gated_at;
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

template <typename T> static enum aq_status rope_typed(const struct aq_rope *args, cudaStream_t stream)
{
    constexpr unsigned W = 16 / sizeof(T);
    const uint64_t rows = args->samples * args->T, heads = args->H + 2 * args->kv_heads;
    if (args->gated ||
        !rope_can(args->T, args->D, args->R, W, args->x, args->y, args->table, args->q_gamma, args->k_gamma))
        return AQ_LAUNCH(rope_any<T>, aq_blocks(rows * heads, WARPS), THREADS, 0, stream, *args);
    struct rope_cut cut = {aq_head_lanes(args->D / (2 * W)), static_cast<unsigned>(heads), ROWS_AT_ONCE};
    unsigned pieces;
    if (args->y == args->x) cut.heads -= static_cast<unsigned>(args->kv_heads);
    while (cut.group < 8 && rows / cut.group >= 2048)
        cut.group *= 2;
    const unsigned threads = aq_head_threads(cut.heads, cut.lanes, &pieces);
    const dim3 grid(static_cast<unsigned>((rows + cut.group - 1) / cut.group), pieces);
    return AQ_LAUNCH((rope_wide<T, W>), grid, threads, 0, stream, *args, cut);
}

enum aq_status aq_cuda_rope(const struct aq_rope *args, void *, struct CUstream_st *stream)
{
    if (args->samples == 0 || args->T == 0) return AQ_OK;
    return aq_by_type(args->type, [&](auto t) { return rope_typed<decltype(t)>(args, stream); });
}

/* As rope_backward_wide, without sums. */
template <typename T> static __global__ void __launch_bounds__(THREADS) rope_backward_any(struct aq_rope_backward args)
{
    const struct head_place place = place_of(args.samples * args.T, args.H, args.kv_heads, args.D, args.gated);
    const unsigned lane = threadIdx.x % 32;
    if (!place.there) return;
    const float *dy = args.dy + place.at;
    T *dx = static_cast<T *>(args.dx) + place.gated_at;
    const bool value = place.head >= args.H + args.kv_heads;
    const float *gamma = value ? nullptr : place.head < args.H ? args.q_gamma : args.k_gamma;
    const uint64_t R = value ? 0 : args.R, half = R / 2;
    const float *angles = R ? args.table + aq_place(args.starts, place.row, args.T) * R : nullptr;
    const T *x = gamma ? static_cast<const T *>(args.x) + place.gated_at : nullptr;
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
    rope_gammas_any(struct aq_rope_backward args, uint64_t group, float *partial)
{
    const uint64_t c = static_cast<uint64_t>(blockIdx.y) * THREADS + threadIdx.x, D = args.D;
    if (c >= 2 * D) return;
    const uint64_t rows = args.samples * args.T, width = (args.H + 2 * args.kv_heads) * D;
    const uint64_t gates = args.gated ? args.H : 0;
    const uint64_t first = blockIdx.x * group, end = first + group < rows ? first + group : rows;
    const uint64_t head_first = c < D ? 0 : args.H, head_end = c < D ? args.H : args.H + args.kv_heads, d = c % D;
    float sum = 0.0f;
    for (uint64_t row = first; row < end; row++)
        for (uint64_t head = head_first; head < head_end; head++) {
            const float *dy = args.dy + row * width + head * D;
            const T *x = static_cast<const T *>(args.x) + row * (width + gates * D) + gated_column(gates, D, head);
            const float rstd = args.rstd[row * (args.H + args.kv_heads) + head];
            const auto at = [&](uint64_t column) { return dy[column]; };
            const float *angles = args.R ? args.table + aq_place(args.starts, row, args.T) * args.R : nullptr;
            sum = fmaf(turned(at, angles, args.R, d, -1.0f), aq_load(x + d) * rstd, sum);
        }
    partial[blockIdx.x * 2 * D + c] = sum;
}

/* The gammas first: dx may be dy. */
template <typename T>
static enum aq_status rope_backward_of_any(const struct aq_rope_backward *args, float *partial, cudaStream_t stream)
{
    const uint64_t rows = args->samples * args->T, D = args->D;
    const uint64_t group = aq_cuda_group_rows(rows, 2 * D), groups = (rows + group - 1) / group;
    if (args->q_gamma && (args->dq_gamma || args->dk_gamma)) {
        const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>((2 * D + THREADS - 1) / THREADS));
        AQ_TRY(AQ_LAUNCH(rope_gammas_any<T>, grid, THREADS, 0, stream, *args, group, partial));
        AQ_TRY(aq_cuda_reduce(partial, groups, D, 2, {{args->dq_gamma, args->dk_gamma, nullptr}}, stream));
    }
    const dim3 grid = aq_blocks(rows * (args->H + 2 * args->kv_heads), WARPS);
    return AQ_LAUNCH(rope_backward_any<T>, grid, THREADS, 0, stream, *args);
}

template <typename T>
static enum aq_status rope_backward_typed(const struct aq_rope_backward *args, float *partial, cudaStream_t stream)
{
    constexpr unsigned W = 4;
    const uint64_t rows = args->samples * args->T, normed = args->H + args->kv_heads;
    if (args->gated ||
        !rope_can(args->T, args->D, args->R, W, args->dy, args->dx, args->table, args->q_gamma, args->k_gamma) ||
        !aq_aligned(args->x, 16))
        return rope_backward_of_any<T>(args, partial, stream);
    const bool gammas = args->q_gamma && (args->dq_gamma || args->dk_gamma), in_place = args->dx == args->dy;
    const unsigned heads = static_cast<unsigned>(in_place ? normed : normed + args->kv_heads);
    struct rope_cut cut = {aq_head_lanes(args->D / (2 * W)), heads, 0};
    unsigned pieces;
    const unsigned threads = aq_head_threads(cut.heads, cut.lanes, &pieces), slots = threads / cut.lanes;
    const uint64_t summed = (normed + slots - 1) / slots; /* pieces that have queries or keys */
    cut.group = aq_cuda_group_rows(rows, summed * 2 * args->D);
    const uint64_t groups = (rows + cut.group - 1) / cut.group;
    AQ_TRY(AQ_LAUNCH((rope_backward_wide<T, W>), dim3(static_cast<unsigned>(groups), pieces), threads, 0, stream, *args,
                     cut, gammas ? partial : nullptr));
    if (!gammas) return AQ_OK;
    return aq_cuda_reduce(partial, groups * summed, args->D, 2, {{args->dq_gamma, args->dk_gamma, nullptr}}, stream);
}

enum aq_status aq_cuda_rope_backward(const struct aq_rope_backward *args, void *scratch, struct CUstream_st *stream)
{
    if (args->samples == 0 || args->T == 0) return AQ_OK;
    float *partial = static_cast<float *>(scratch);
    return aq_by_type(args->type, [&](auto t) { return rope_backward_typed<decltype(t)>(args, partial, stream); });
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
    return aq_by_type(args->type, [&](auto t) { return gated_typed<decltype(t)>(args, stream); });
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
    return aq_by_type(args->type, [&](auto t) { return gated_backward_typed<decltype(t)>(args, stream); });
}
