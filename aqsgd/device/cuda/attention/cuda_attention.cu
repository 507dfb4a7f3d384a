/*
 * cuda_attention.cu -- attention, causal or of both sides, in tiles, by fp32 multiply-adds: any type, any D up to 512;
 * and the launchers. Rows of padding are read as zeroes.
 *
 * Forward is Dao et al. 2022 ("FlashAttention"), Algorithm 1, with the loops exchanged as in Dao 2023: a block owns a
 * tile of queries and goes over the tiles of keys, keeping for each query the largest score so far, the sum of
 * exponentials below it and the weighted sum of values. Backward makes the weights again from lse. It is two kernels,
 * one that owns keys (dk, dv) and one that owns queries (dq), so that nothing is added by two blocks and results do not
 * depend on their order; the cost is that the scores are made twice.
 *
 * With S = scale q k^T, P = softmax(S), M the dropout mask with its factor, O = (P M) v and delta = rowsum(O dO):
 *     dv = (P M)^T dO,   dP = (dO v^T) M,   dS = P (dP - delta) scale,   dq = dS k,   dk = dS^T q.
 * With a cap S = cap tanh(scale q k^T / cap), and dS has the factor 1 - (S / cap)^2, too.
 *
 * A tile is 16 R rows of D values in shared memory, 256 threads are a square of 16 x 16, and each has R x R scores:
 * those of rows y + 16 i and keys x + 16 j. Rows of a tile are one word longer than D, so that 16 rows are in 16 banks.
 */
#include "cuda_attention.cuh"

#include <math.h>

constexpr unsigned SIDE = 16, THREADS = SIDE * SIDE;
constexpr unsigned D_MAX = 512;

/* A tile of rows of D floats in shared memory. */
struct tile {
    float *at;
    unsigned stride;
};

template <int R> static __forceinline__ __device__ struct tile tile_cut(float **memory, unsigned columns)
{
    struct tile tile = {*memory, columns + 1};
    *memory += R * SIDE * tile.stride;
    return tile;
}

/* Fills a tile with `rows` rows, `stride` elements apart; the rows past them are 0. */
template <int R, typename T>
static __forceinline__ __device__ void tile_load(struct tile tile, const T *from, uint64_t stride, uint64_t rows,
                                                 unsigned D)
{
    for (unsigned i = threadIdx.x; i < R * SIDE * D; i += THREADS) {
        const unsigned row = i / D, d = i % D;
        tile.at[row * tile.stride + d] = row < rows ? aq_load(from + row * stride + d) : 0.0f;
    }
}

template <int R> static __forceinline__ __device__ void tile_zero(struct tile tile, unsigned columns)
{
    for (unsigned i = threadIdx.x; i < R * SIDE * columns; i += THREADS)
        tile.at[i / columns * tile.stride + i % columns] = 0.0f;
}

/* products[i][j] = row (y + 16 i) of a times row (x + 16 j) of b. */
template <int R>
static __forceinline__ __device__ void tile_dots(struct tile a, struct tile b, unsigned D, float (&products)[R][R])
{
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++)
            products[i][j] = 0.0f;
    for (unsigned d = 0; d < D; d++) {
        float left[R], right[R];
        for (int i = 0; i < R; i++)
            left[i] = a.at[(y + SIDE * i) * a.stride + d];
        for (int j = 0; j < R; j++)
            right[j] = b.at[(x + SIDE * j) * b.stride + d];
        for (int i = 0; i < R; i++)
            for (int j = 0; j < R; j++)
                products[i][j] = fmaf(left[i], right[j], products[i][j]);
    }
}

/* sums[row] = sums[row] factor[row] + weights[row] times b, the rows y + 16 i; a thread has the columns x + 16 j. */
template <int R>
static __forceinline__ __device__ void tile_add(struct tile sums, const float (&factor)[R], struct tile weights,
                                                struct tile b, unsigned D)
{
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    for (unsigned d = x; d < D; d += SIDE) {
        float row[R];
        for (int i = 0; i < R; i++)
            row[i] = sums.at[(y + SIDE * i) * sums.stride + d] * factor[i];
        for (unsigned k = 0; k < R * SIDE; k++) {
            const float value = b.at[k * b.stride + d];
            for (int i = 0; i < R; i++)
                row[i] = fmaf(weights.at[(y + SIDE * i) * weights.stride + k], value, row[i]);
        }
        for (int i = 0; i < R; i++)
            sums.at[(y + SIDE * i) * sums.stride + d] = row[i];
    }
}

/* As tile_add, with the weights transposed: sums[row] += sum over k of weights[k][row] b[k]. */
template <int R>
static __forceinline__ __device__ void tile_add_transposed(struct tile sums, struct tile weights, struct tile b,
                                                           unsigned D)
{
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    for (unsigned d = x; d < D; d += SIDE) {
        float row[R];
        for (int i = 0; i < R; i++)
            row[i] = sums.at[(y + SIDE * i) * sums.stride + d];
        for (unsigned k = 0; k < R * SIDE; k++) {
            const float value = b.at[k * b.stride + d];
            for (int i = 0; i < R; i++)
                row[i] = fmaf(weights.at[k * weights.stride + y + SIDE * i], value, row[i]);
        }
        for (int i = 0; i < R; i++)
            sums.at[(y + SIDE * i) * sums.stride + d] = row[i];
    }
}

template <int R, typename T>
static __forceinline__ __device__ void tile_store(struct tile tile, T *to, uint64_t stride, uint64_t rows, unsigned D)
{
    for (unsigned i = threadIdx.x; i < R * SIDE * D; i += THREADS) {
        const unsigned row = i / D, d = i % D;
        if (row < rows) aq_store(to + row * stride + d, tile.at[row * tile.stride + d]);
    }
}

/* Stores a tile of dq, dk or dv at the start of its rows: in T where that is asked for. */
template <int R, typename T>
static __forceinline__ __device__ void gradient_store(const struct aq_cuda_attention &args, struct tile tile,
                                                      uint64_t at, uint64_t rows)
{
    const uint64_t stride = aq_qkv_stride(args);
    if (args.dqkv_rounded)
        tile_store<R>(tile, reinterpret_cast<T *>(args.dqkv_rounded) + at, stride, rows, args.D);
    else
        tile_store<R>(tile, args.dqkv + at, stride, rows, args.D);
}

/* Tokens of a sample that are real. */
static __forceinline__ __device__ uint64_t length_of(const struct aq_cuda_attention &args, uint64_t sample)
{
    return args.lengths && args.lengths[sample] < args.T ? args.lengths[sample] : args.T;
}

/*
 * As aq_sees, of keys before `end`, and of those behind the query, too. window + ahead is below 2^32, and a key that is
 * further away than either is further than both.
 */
static __forceinline__ __device__ bool sees(const struct aq_cuda_attention &args, uint64_t query, uint64_t key,
                                            uint64_t end)
{
    return static_cast<unsigned>(query - key + args.ahead) < args.window + args.ahead && key < end;
}

/* The end of the keys that any query up to `last` sees, of `all`. */
static __forceinline__ __device__ uint64_t keys_end(const struct aq_cuda_attention &args, uint64_t last, uint64_t all)
{
    const uint64_t end = last + args.ahead + 1;
    return end < all ? end : all;
}

/* The first query that sees a key or one behind it. */
static __forceinline__ __device__ uint64_t first_query_of(const struct aq_cuda_attention &args, uint64_t key)
{
    return key > args.ahead ? key - args.ahead : 0;
}

/* The first key that any query from this one on sees. */
static __forceinline__ __device__ uint64_t first_key_of(const struct aq_cuda_attention &args, uint64_t sample,
                                                        uint64_t query)
{
    const uint64_t seen = aq_first_key(args, query), begin = aq_part_begin(args, sample, query);
    return seen > begin ? seen : begin;
}

/* Over the 16 threads of a row. */
static __forceinline__ __device__ float side_max(float value)
{
    for (int lanes = SIDE / 2; lanes > 0; lanes /= 2)
        value = fmaxf(value, __shfl_xor_sync(AQ_ALL_LANES, value, lanes));
    return value;
}

static __forceinline__ __device__ float side_sum(float value)
{
    for (int lanes = SIDE / 2; lanes > 0; lanes /= 2)
        value += __shfl_xor_sync(AQ_ALL_LANES, value, lanes);
    return value;
}

static __forceinline__ __device__ uint64_t rows_left(uint64_t T, uint64_t first)
{
    return T > first ? T - first : 0;
}

/*
 * One row's scores of a tile of keys, added to what the row has seen: `top` and `sum` of all keys so far. Leaves the
 * masked weights below the top in the tile of weights; the factor is what older sums are worth now.
 */
template <int R>
static __forceinline__ __device__ float row_softmax(const struct aq_cuda_attention &args, uint64_t query,
                                                    uint64_t first_key, float (&scores)[R], float *weights, float *top,
                                                    float *sum)
{
    const unsigned x = threadIdx.x % SIDE;
    const uint64_t sample = args.first_sample + blockIdx.z, begin = aq_part_begin(args, sample, query);
    const uint64_t length = length_of(args, sample);
    float tile_top = -INFINITY;
    for (int j = 0; j < R; j++) {
        const uint64_t key = first_key + x + SIDE * j;
        const bool seen = sees(args, query, key, length) && key >= begin;
        const float score = scores[j] * args.scale;
        scores[j] = !seen ? -INFINITY : args.cap > 0.0f ? args.cap * tanhf(score / args.cap) : score;
        tile_top = fmaxf(tile_top, scores[j]);
    }
    tile_top = fmaxf(side_max(tile_top), *top);
    const float base = tile_top == -INFINITY ? 0.0f : tile_top; /* the row's window starts in a later tile */
    const float factor = expf(*top - base);
    float tile_sum = 0.0f;
    for (int j = 0; j < R; j++) {
        const uint64_t key = first_key + x + SIDE * j;
        const float weight = expf(scores[j] - base);
        tile_sum += weight;
        const float kept = args.mask.keys && sees(args, query, key, length) && query < args.T
                               ? aq_mask_factor(args.mask, sample, aq_weight_at(args, blockIdx.y, query, key))
                               : 1.0f;
        weights[x + SIDE * j] = weight * kept;
    }
    *sum = fmaf(*sum, factor, side_sum(tile_sum));
    *top = tile_top;
    return factor;
}

/* The grid is (tiles of queries, heads, samples); the longest tiles come first. */
template <typename T, int R>
static __global__ void __launch_bounds__(THREADS) attention_forward(struct aq_cuda_attention args)
{
    constexpr unsigned ROWS = R * SIDE;
    AQ_SHARED_DYNAMIC(float, shared);
    float *memory = shared;
    const struct tile q = tile_cut<R>(&memory, args.D), k = tile_cut<R>(&memory, args.D);
    const struct tile v = tile_cut<R>(&memory, args.D), sums = tile_cut<R>(&memory, args.D);
    const struct tile weights = tile_cut<R>(&memory, ROWS);
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE, head = blockIdx.y;
    const uint64_t sample = args.first_sample + blockIdx.z, stride = aq_qkv_stride(args);
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * ROWS, length = length_of(args, sample);
    const T *qkv = static_cast<const T *>(args.qkv);
    float top[R], sum[R], factor[R], scores[R][R];
    for (int i = 0; i < R; i++) {
        top[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    tile_load<R>(q, qkv + aq_qkv_at(args, sample, head, 0, first), stride, rows_left(length, first), args.D);
    tile_zero<R>(sums, args.D);
    const uint64_t end = keys_end(args, first + ROWS - 1, length);
    for (uint64_t key = first_key_of(args, sample, first) / ROWS * ROWS; key < end; key += ROWS) {
        const uint64_t keys = rows_left(length, key);
        __syncthreads();
        tile_load<R>(k, qkv + aq_qkv_at(args, sample, head, 1, key), stride, keys, args.D);
        tile_load<R>(v, qkv + aq_qkv_at(args, sample, head, 2, key), stride, keys, args.D);
        __syncthreads();
        tile_dots<R>(q, k, args.D, scores);
        for (int i = 0; i < R; i++)
            factor[i] = row_softmax<R>(args, first + y + SIDE * i, key, scores[i],
                                       weights.at + (y + SIDE * i) * weights.stride, &top[i], &sum[i]);
        __syncthreads();
        tile_add<R>(sums, factor, weights, v, args.D);
    }
    __syncthreads(); /* a tile past the sample's length sees no key: other threads have zeroed its sums just now */
    for (int i = 0; i < R; i++) {
        const uint64_t query = first + y + SIDE * i;
        for (unsigned d = x; d < args.D; d += SIDE)
            sums.at[(y + SIDE * i) * sums.stride + d] *= query < length ? 1.0f / sum[i] : 0.0f;
        if (x == 0 && query < args.T)
            args.lse[(sample * args.H + head) * args.T + query] = query < length ? top[i] + logf(sum[i]) : 0.0f;
    }
    __syncthreads();
    tile_store<R>(sums, static_cast<T *>(args.out) + aq_out_at(args, sample, head, first),
                  static_cast<uint64_t>(args.H) * args.D, rows_left(args.T, first), args.D);
}

/* delta = rowsum(out dout): a warp per row of (sample, head, token). */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    attention_delta(struct aq_cuda_attention args, uint64_t rows, float *delta)
{
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    if (row >= rows) return;
    const uint64_t token = row % args.T, head = row / args.T % args.H, sample = row / args.T / args.H;
    const uint64_t at = aq_out_at(args, args.first_sample + sample, head, token);
    const T *out = static_cast<const T *>(args.out) + at, *dout = static_cast<const T *>(args.dout) + at;
    float sum = 0.0f;
    for (unsigned d = lane; d < args.D; d += 32)
        sum = fmaf(aq_load(out + d), aq_load(dout + d), sum);
    sum = aq_warp_sum(sum);
    if (lane == 0) delta[row] = sum;
}

constexpr unsigned DELTA_AT_ONCE = 4, DELTA_TOKENS = 8; /* tokens: whose loads go together, and of a block */

/*
 * The same, 16 bytes at a time: `lanes` neighbouring lanes have W columns each of one head, and keep it for all tokens
 * of the block.
 */
template <typename T, int W>
static __global__ void __launch_bounds__(THREADS)
    attention_delta_wide(struct aq_cuda_attention args, unsigned lanes, float *delta)
{
    const unsigned slot = threadIdx.x / lanes, c = (threadIdx.x - slot * lanes) * W;
    const unsigned head = blockIdx.y * (blockDim.x / lanes) + slot;
    const bool there = head < args.H && c < args.D;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * DELTA_TOKENS;
    const uint64_t at = aq_out_at(args, args.first_sample + blockIdx.z, head, first) + c;
    const T *out = static_cast<const T *>(args.out) + at, *dout = static_cast<const T *>(args.dout) + at;
    const unsigned width = args.H * args.D;
    const unsigned tokens = args.T - first < DELTA_TOKENS ? static_cast<unsigned>(args.T - first) : DELTA_TOKENS;
    delta += (static_cast<uint64_t>(blockIdx.z) * args.H + head) * args.T + first;
    for (unsigned token = 0; token < tokens; token += DELTA_AT_ONCE) {
        aq_words<T, W> words[DELTA_AT_ONCE][2] = {};
        AQ_UNROLL
        for (unsigned i = 0; i < DELTA_AT_ONCE; i++)
            if (there && token + i < tokens) {
                aq_words_load<T, W>(out + static_cast<uint64_t>(token + i) * width, &words[i][0]);
                aq_words_load<T, W>(dout + static_cast<uint64_t>(token + i) * width, &words[i][1]);
            }
        float sums[DELTA_AT_ONCE] = {};
        AQ_UNROLL
        for (unsigned i = 0; i < DELTA_AT_ONCE; i++) {
            float a[W], b[W];
            aq_unpack<T, W>(words[i][0], a);
            aq_unpack<T, W>(words[i][1], b);
            AQ_UNROLL
            for (int j = 0; j < W; j++)
                sums[i] = fmaf(a[j], b[j], sums[i]);
        }
        for (unsigned lane = lanes / 2; lane > 0; lane /= 2) {
            AQ_UNROLL
            for (unsigned i = 0; i < DELTA_AT_ONCE; i++)
                sums[i] += __shfl_xor_sync(AQ_ALL_LANES, sums[i], lane);
        }
        AQ_UNROLL
        for (unsigned i = 0; i < DELTA_AT_ONCE; i++)
            if (there && c == 0 && token + i < tokens) delta[token + i] = sums[i];
    }
}

/*
 * Turns scores and products of dout with the values into masked weights (left in `weights`, where one is given) and the
 * gradient of the scores (in `slopes`), of queries from `first` and keys from `key` on.
 */
template <int R>
static __forceinline__ __device__ void tile_slopes(const struct aq_cuda_attention &args, unsigned head, uint64_t first,
                                                   uint64_t key, const float (&scores)[R][R],
                                                   const float (&products)[R][R], float *weights, struct tile slopes)
{
    const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
    const uint64_t sample = args.first_sample + blockIdx.z, length = length_of(args, sample);
    for (int i = 0; i < R; i++) {
        const uint64_t query = first + y + SIDE * i;
        const bool there = query < length;
        const uint64_t begin = aq_part_begin(args, sample, query);
        const float lse = there ? args.lse[(sample * args.H + head) * args.T + query] : 0.0f;
        const float delta = there ? args.delta[(blockIdx.z * args.H + head) * args.T + query] : 0.0f;
        for (int j = 0; j < R; j++) {
            const uint64_t column = key + x + SIDE * j;
            const unsigned at = (y + SIDE * i) * slopes.stride + x + SIDE * j;
            float weight = 0.0f, kept = 1.0f, slope = args.scale;
            if (there && sees(args, query, column, length) && column >= begin) {
                if (args.cap > 0.0f) {
                    const float t = tanhf(scores[i][j] * args.scale / args.cap);
                    weight = expf(fmaf(args.cap, t, -lse));
                    slope *= 1.0f - t * t;
                } else {
                    weight = expf(fmaf(scores[i][j], args.scale, -lse));
                }
                if (args.mask.keys) kept = aq_mask_factor(args.mask, sample, aq_weight_at(args, head, query, column));
            }
            if (weights) weights[at] = weight * kept;
            slopes.at[at] = weight * fmaf(products[i][j], kept, -delta) * slope;
        }
    }
}

/* dk and dv of a tile of keys, over the heads that share it and the tiles of queries that see it. */
template <typename T, int R>
static __global__ void __launch_bounds__(THREADS) attention_backward_keys(struct aq_cuda_attention args)
{
    constexpr unsigned ROWS = R * SIDE;
    AQ_SHARED_DYNAMIC(float, shared);
    float *memory = shared;
    const struct tile k = tile_cut<R>(&memory, args.D), v = tile_cut<R>(&memory, args.D);
    const struct tile q = tile_cut<R>(&memory, args.D), dout = tile_cut<R>(&memory, args.D);
    const struct tile dk = tile_cut<R>(&memory, args.D), dv = tile_cut<R>(&memory, args.D);
    const struct tile weights = tile_cut<R>(&memory, ROWS), slopes = tile_cut<R>(&memory, ROWS);
    const unsigned group = args.H / args.kv_heads, own = blockIdx.y * group;
    const uint64_t sample = args.first_sample + blockIdx.z, first = static_cast<uint64_t>(blockIdx.x) * ROWS;
    const uint64_t C = static_cast<uint64_t>(args.H) * args.D, length = length_of(args, sample);
    const uint64_t stride = aq_qkv_stride(args);
    const T *qkv = static_cast<const T *>(args.qkv), *douts = static_cast<const T *>(args.dout);
    float scores[R][R], products[R][R];
    tile_load<R>(k, qkv + aq_qkv_at(args, sample, own, 1, first), stride, rows_left(length, first), args.D);
    tile_load<R>(v, qkv + aq_qkv_at(args, sample, own, 2, first), stride, rows_left(length, first), args.D);
    tile_zero<R>(dk, args.D);
    tile_zero<R>(dv, args.D);
    for (unsigned head = own; head < own + group; head++)
        for (uint64_t query = first_query_of(args, first) / ROWS * ROWS; query < aq_queries_end(args, first + ROWS - 1);
             query += ROWS) {
            const uint64_t rows = rows_left(length, query);
            __syncthreads();
            tile_load<R>(q, qkv + aq_qkv_at(args, sample, head, 0, query), stride, rows, args.D);
            tile_load<R>(dout, douts + aq_out_at(args, sample, head, query), C, rows, args.D);
            __syncthreads();
            tile_dots<R>(q, k, args.D, scores);
            tile_dots<R>(dout, v, args.D, products);
            tile_slopes<R>(args, head, query, first, scores, products, weights.at, slopes);
            __syncthreads();
            tile_add_transposed<R>(dv, weights, dout, args.D);
            tile_add_transposed<R>(dk, slopes, q, args.D);
        }
    __syncthreads();
    gradient_store<R, T>(args, dk, aq_qkv_at(args, sample, own, 1, first), rows_left(args.T, first));
    gradient_store<R, T>(args, dv, aq_qkv_at(args, sample, own, 2, first), rows_left(args.T, first));
}

/* dq of a tile of queries, over the tiles of keys that it sees. */
template <typename T, int R>
static __global__ void __launch_bounds__(THREADS) attention_backward_queries(struct aq_cuda_attention args)
{
    constexpr unsigned ROWS = R * SIDE;
    AQ_SHARED_DYNAMIC(float, shared);
    float *memory = shared;
    const struct tile q = tile_cut<R>(&memory, args.D), dout = tile_cut<R>(&memory, args.D);
    const struct tile k = tile_cut<R>(&memory, args.D), v = tile_cut<R>(&memory, args.D);
    const struct tile dq = tile_cut<R>(&memory, args.D), slopes = tile_cut<R>(&memory, ROWS);
    const unsigned head = blockIdx.y;
    const uint64_t sample = args.first_sample + blockIdx.z;
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * ROWS, length = length_of(args, sample);
    const uint64_t C = static_cast<uint64_t>(args.H) * args.D, rows = rows_left(length, first);
    const uint64_t stride = aq_qkv_stride(args);
    const T *qkv = static_cast<const T *>(args.qkv), *douts = static_cast<const T *>(args.dout);
    float scores[R][R], products[R][R], factor[R];
    for (int i = 0; i < R; i++)
        factor[i] = 1.0f;
    tile_load<R>(q, qkv + aq_qkv_at(args, sample, head, 0, first), stride, rows, args.D);
    tile_load<R>(dout, douts + aq_out_at(args, sample, head, first), C, rows, args.D);
    tile_zero<R>(dq, args.D);
    const uint64_t end = keys_end(args, first + ROWS - 1, length);
    for (uint64_t key = first_key_of(args, sample, first) / ROWS * ROWS; key < end; key += ROWS) {
        const uint64_t keys = rows_left(length, key);
        __syncthreads();
        tile_load<R>(k, qkv + aq_qkv_at(args, sample, head, 1, key), stride, keys, args.D);
        tile_load<R>(v, qkv + aq_qkv_at(args, sample, head, 2, key), stride, keys, args.D);
        __syncthreads();
        tile_dots<R>(q, k, args.D, scores);
        tile_dots<R>(dout, v, args.D, products);
        tile_slopes<R>(args, head, first, key, scores, products, nullptr, slopes);
        __syncthreads();
        tile_add<R>(dq, factor, slopes, k, args.D);
    }
    __syncthreads();
    gradient_store<R, T>(args, dq, aq_qkv_at(args, sample, head, 0, first), rows_left(args.T, first));
}

/* ---- Launchers. */

/* Bytes of `tiles` tiles of D columns and `squares` of scores. */
template <int R> static size_t shared_bytes(unsigned D, unsigned tiles, unsigned squares)
{
    return sizeof(float) * R * SIDE * (tiles * (D + 1) + squares * (R * SIDE + 1));
}

template <int R> static dim3 grid_of(const struct aq_cuda_attention *args, unsigned heads, uint64_t samples)
{
    const uint64_t tiles = (args->T + R * SIDE - 1) / (R * SIDE);
    return dim3(static_cast<unsigned>(tiles), heads, static_cast<unsigned>(samples));
}

template <typename T, int R>
static enum aq_status forward_run(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    return AQ_LAUNCH((attention_forward<T, R>), grid_of<R>(args, args->H, samples), THREADS,
                     shared_bytes<R>(args->D, 4, 1), stream, *args);
}

template <typename T, int R>
static enum aq_status backward_run(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    const dim3 keys = grid_of<R>(args, args->kv_heads, samples), queries = grid_of<R>(args, args->H, samples);
    AQ_TRY(AQ_LAUNCH((attention_backward_keys<T, R>), keys, THREADS, shared_bytes<R>(args->D, 6, 2), stream, *args));
    return AQ_LAUNCH((attention_backward_queries<T, R>), queries, THREADS, shared_bytes<R>(args->D, 5, 1), stream,
                     *args);
}

/* Tiles as large as 227 KiB of shared memory let them be. */
template <typename T>
static enum aq_status forward_typed(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    if (args->D <= 160) return forward_run<T, 4>(args, samples, stream);
    if (args->D <= 384) return forward_run<T, 2>(args, samples, stream);
    return forward_run<T, 1>(args, samples, stream);
}

template <typename T>
static enum aq_status backward_typed(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    if (args->D <= 96) return backward_run<T, 4>(args, samples, stream);
    if (args->D <= 256) return backward_run<T, 2>(args, samples, stream);
    return backward_run<T, 1>(args, samples, stream);
}

static enum aq_status attention_check(const struct aq_attention *args)
{
    if (args->D > D_MAX)
        return aq_fail(AQ_INVAL, "device", "attention with %llu channels a head: at most %u on a GPU",
                       static_cast<unsigned long long>(args->D), D_MAX);
    if (args->H > 65535 || args->H * args->T > AQ_CUDA_SCRATCH_BYTES / sizeof(float))
        return aq_fail(AQ_INVAL, "device", "attention of %llu heads over %llu tokens: at most %zu in all on a GPU",
                       static_cast<unsigned long long>(args->H), static_cast<unsigned long long>(args->T),
                       AQ_CUDA_SCRATCH_BYTES / sizeof(float));
    return AQ_OK;
}

static uint64_t least(uint64_t x, uint64_t y)
{
    return x < y ? x : y;
}

enum aq_status aq_cuda_attention(const struct aq_attention *args, void *, struct CUstream_st *stream)
{
    AQ_TRY(attention_check(args));
    if (args->T == 0) return AQ_OK;
    struct aq_cuda_attention kernel = aq_cuda_attention_of(args);
    const uint64_t at_once = aq_attention_samples(args, sizeof(float));
    for (uint64_t first = 0; first < args->samples; first += at_once) {
        const uint64_t samples = least(args->samples - first, at_once);
        kernel.first_sample = first;
        if (aq_attention_wgmma_can(args))
            AQ_TRY(aq_attention_wgmma(&kernel, args->type, samples, stream));
        else if (aq_attention_mma_can(args))
            AQ_TRY(aq_attention_mma(&kernel, args->type, samples, stream));
        else if (args->type == AQ_BF16)
            AQ_TRY(forward_typed<uint16_t>(&kernel, samples, stream));
        else if (args->type == AQ_F16)
            AQ_TRY(forward_typed<aq_half>(&kernel, samples, stream));
        else
            AQ_TRY(forward_typed<float>(&kernel, samples, stream));
    }
    return AQ_OK;
}

template <typename T>
static enum aq_status delta_typed(const struct aq_cuda_attention *args, uint64_t samples, float *delta,
                                  cudaStream_t stream)
{
    constexpr unsigned W = 16 / sizeof(T);
    const uint64_t rows = samples * args->H * args->T;
    if (args->D % W != 0 || args->D > 32 * W || !aq_aligned(args->out, 16) || !aq_aligned(args->dout, 16))
        return AQ_LAUNCH(attention_delta<T>, aq_blocks(rows, THREADS / 32), THREADS, 0, stream, *args, rows, delta);
    const unsigned lanes = aq_head_lanes(args->D / W);
    unsigned blocks;
    const unsigned threads = aq_head_threads(args->H, lanes, &blocks);
    const dim3 grid(aq_blocks(args->T, DELTA_TOKENS).x, blocks, static_cast<unsigned>(samples));
    return AQ_LAUNCH((attention_delta_wide<T, W>), grid, threads, 0, stream, *args, lanes, delta);
}

static enum aq_status delta_run(const struct aq_cuda_attention *args, enum aq_element type, uint64_t samples,
                                float *delta, cudaStream_t stream)
{
    return aq_by_type(type, [&](auto t) { return delta_typed<decltype(t)>(args, samples, delta, stream); });
}

enum aq_status aq_cuda_attention_backward(const struct aq_attention *args, void *scratch, struct CUstream_st *stream)
{
    AQ_TRY(attention_check(args));
    if (args->T == 0) return AQ_OK;
    struct aq_cuda_attention kernel = aq_cuda_attention_of(args);
    float *delta = static_cast<float *>(scratch);
    kernel.delta = delta;
    const uint64_t at_once = aq_attention_samples(args, sizeof(float));
    for (uint64_t first = 0; first < args->samples; first += at_once) {
        const uint64_t samples = least(args->samples - first, at_once);
        kernel.first_sample = first;
        AQ_TRY(delta_run(&kernel, args->type, samples, delta, stream));
        if (aq_attention_wgmma_can(args))
            AQ_TRY(aq_attention_wgmma_backward(&kernel, args->type, samples, stream));
        else if (aq_attention_mma_can(args))
            AQ_TRY(aq_attention_mma_backward(&kernel, args->type, samples, stream));
        else if (args->type == AQ_BF16)
            AQ_TRY(backward_typed<uint16_t>(&kernel, samples, stream));
        else if (args->type == AQ_F16)
            AQ_TRY(backward_typed<aq_half>(&kernel, samples, stream));
        else
            AQ_TRY(backward_typed<float>(&kernel, samples, stream));
    }
    return AQ_OK;
}

/* A block per token: rows of padding, `width` values of 16 bits each, become 0; and their lse, if there is one. */
static __global__ void __launch_bounds__(THREADS)
    attention_padding(struct aq_cuda_attention args, uint16_t *rows, uint64_t width, float *lse)
{
    const uint64_t token = blockIdx.x, sample = blockIdx.y;
    if (token < length_of(args, sample)) return;
    uint16_t *row = rows + (sample * args.T + token) * width;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        row[i] = 0;
    for (uint64_t head = threadIdx.x; lse && head < args.H; head += THREADS)
        lse[(sample * args.H + head) * args.T + token] = 0.0f;
}

enum aq_status aq_cuda_attention_padding(const struct aq_attention *args, bool backward, struct CUstream_st *stream)
{
    constexpr uint64_t SAMPLES_AT_ONCE = 65535; /* a grid's y */
    if (args->T == 0 || !args->lengths) return AQ_OK;
    const uint64_t width = (backward ? args->H + 2 * args->kv_heads : args->H) * args->D;
    uint16_t *rows = backward ? args->dqkv_rounded : static_cast<uint16_t *>(args->out);
    for (uint64_t first = 0; first < args->samples; first += SAMPLES_AT_ONCE) {
        const uint64_t samples = least(args->samples - first, SAMPLES_AT_ONCE);
        struct aq_attention some = *args;
        some.lengths += first;
        const struct aq_cuda_attention kernel = aq_cuda_attention_of(&some);
        const dim3 grid(static_cast<unsigned>(args->T), static_cast<unsigned>(samples));
        AQ_TRY(AQ_LAUNCH(attention_padding, grid, THREADS, 0, stream, kernel, rows + first * args->T * width, width,
                         backward ? nullptr : args->lse + first * args->H * args->T));
    }
    return AQ_OK;
}
