/*
 * cuda_attention_mma.cu -- causal attention of bf16 or fp16 on tensor cores, D of 64 or 128.
 *
 * The same mathematics as cuda_attention.cu, laid out as Dao 2023 ("FlashAttention-2") does: a block of 8 warps owns
 * 128 queries (or keys), 16 a warp, and goes over the other side in tiles of 64 that are copied into shared memory
 * while the one before is worked on. Scores never leave the registers: the sums of one product, rounded to 16 bits, are
 * the left operand of the next (cuda_mma.cuh). The kernel that owns keys makes the scores transposed, so that this
 * holds there too.
 *
 * Rows of a tile are D + 8 elements apart: 8 rows lie in 8 different groups of banks.
 */
#include <math.h>

#include "cuda_attention.cuh"
#include "cuda_mma.cuh"

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS, OWN = 16 * WARPS, TILE = 64, PAD = 8;
constexpr float LOG2_E = 1.4426950408889634f;

struct head {
    uint64_t sample, index;
};

static __forceinline__ __device__ struct head head_of(const struct aq_cuda_attention &args)
{
    struct head head = {args.first_sample + blockIdx.z, blockIdx.y};
    return head;
}

/* Starts the copy of ROWS rows of D, `stride` elements apart, from `token` on; what is past T becomes 0. */
template <unsigned ROWS, unsigned D>
static __forceinline__ __device__ void rows_copy(uint16_t *tile, const uint16_t *from, uint64_t stride, uint64_t token,
                                                 uint64_t T)
{
    constexpr unsigned PIECES = D / 8;
    for (unsigned i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        const unsigned row = i / PIECES, piece = i % PIECES;
        const bool there = token + row < T;
        aq_copy(tile + row * (D + PAD) + piece * 8, there ? from + row * stride + piece * 8 : from, there);
    }
}

/* products[n] = 16 rows of a times 16 rows of the tile, as two tiles of 8 columns. */
template <typename T, unsigned D>
static __forceinline__ __device__ void dots16(float (&products)[2][4], const unsigned (&a)[D / 16][4],
                                              const uint16_t *tile)
{
    const uint16_t *at = tile + aq_lane_b_rows(D + PAD);
    AQ_UNROLL
    for (unsigned n = 0; n < 2; n++)
        for (unsigned i = 0; i < 4; i++)
            products[n][i] = 0.0f;
    AQ_UNROLL
    for (unsigned k = 0; k < D / 16; k++) {
        unsigned b[4];
        aq_matrices(b, at + 16 * k);
        aq_mma<T>(products[0], a[k], b[0], b[1]);
        aq_mma<T>(products[1], a[k], b[2], b[3]);
    }
}

/* sums += a (16 x 16) times 16 rows of the tile. */
template <typename T, unsigned D>
static __forceinline__ __device__ void add16(float (&sums)[D / 8][4], const unsigned (&a)[4], const uint16_t *tile)
{
    const uint16_t *at = tile + aq_lane_b_columns(D + PAD);
    AQ_UNROLL
    for (unsigned d = 0; d < D / 16; d++) {
        unsigned b[4];
        aq_matrices_transposed(b, at + 16 * d);
        aq_mma<T>(sums[2 * d], a, b[0], b[1]);
        aq_mma<T>(sums[2 * d + 1], a, b[2], b[3]);
    }
}

template <unsigned D> static __forceinline__ __device__ void fragments(unsigned (&a)[D / 16][4], const uint16_t *tile)
{
    const uint16_t *at = tile + aq_lane_a(D + PAD);
    AQ_UNROLL
    for (unsigned k = 0; k < D / 16; k++)
        aq_matrices(a[k], at + 16 * k);
}

/*
 * The block's own two tiles as left operands of a warp. With D of 64 they stay in registers: loading them again for
 * every 16 rows of the other side would cost half as much as the products. With D of 128 there is no room.
 */
template <typename T, unsigned D> struct own_rows {
    static constexpr bool KEPT = D <= 64;
    unsigned kept[2][KEPT ? D / 16 : 1][4];
    const uint16_t *tile;

    __forceinline__ __device__ void load()
    {
        if constexpr (KEPT) {
            fragments<D>(kept[0], tile);
            fragments<D>(kept[1], tile + OWN * (D + PAD));
        }
    }

    /* products = own tile `which` times 16 rows of another tile. */
    __forceinline__ __device__ void dots(float (&products)[2][4], unsigned which, const uint16_t *other) const
    {
        if constexpr (KEPT) {
            dots16<T, D>(products, kept[which], other);
        } else {
            unsigned a[D / 16][4];
            fragments<D>(a, tile + which * OWN * (D + PAD));
            dots16<T, D>(products, a, other);
        }
    }
};

template <unsigned D> static __forceinline__ __device__ void sums_zero(float (&sums)[D / 8][4])
{
    AQ_UNROLL
    for (unsigned n = 0; n < D / 8; n++)
        for (unsigned i = 0; i < 4; i++)
            sums[n][i] = 0.0f;
}

/* The mask factors of two tiles of scores whose rows are queries and whose columns are keys, as sums lie. */
static __forceinline__ __device__ void factors_of_queries(const struct aq_cuda_attention &args, struct head head,
                                                          uint64_t query, uint64_t key, float (&factors)[2][4])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const struct aq_rng_key stream = args.mask.keys[head.sample];
    const uint64_t upper = aq_weight_at(args, head.index, query + g, key);
    const uint64_t lower = aq_weight_at(args, head.index, query + g + 8, key);
    if (args.T_mask % 4) {
        AQ_UNROLL
        for (unsigned n = 0; n < 2; n++)
            for (unsigned i = 0; i < 4; i++)
                factors[n][i] =
                    aq_mask_word(args.mask, aq_philox_word(stream, (i < 2 ? upper : lower) + 8 * n + 2 * t + i % 2));
        return;
    }
    /* Two lanes share the four words of a block: one makes the upper row's, the other the lower row's. */
    AQ_UNROLL
    for (unsigned n = 0; n < 2; n++) {
        const uint4 words = aq_philox(stream, ((t % 2 ? lower : upper) + 8 * n + t / 2 * 4) / 4);
        const unsigned first = __shfl_xor_sync(AQ_ALL_LANES, t % 2 ? words.x : words.z, 1);
        const unsigned second = __shfl_xor_sync(AQ_ALL_LANES, t % 2 ? words.y : words.w, 1);
        factors[n][0] = aq_mask_word(args.mask, t % 2 ? first : words.x);
        factors[n][1] = aq_mask_word(args.mask, t % 2 ? second : words.y);
        factors[n][2] = aq_mask_word(args.mask, t % 2 ? words.z : first);
        factors[n][3] = aq_mask_word(args.mask, t % 2 ? words.w : second);
    }
}

/* As factors_of_queries, of tiles whose rows are keys and whose columns are queries. */
static __forceinline__ __device__ void factors_of_keys(const struct aq_cuda_attention &args, struct head head,
                                                       uint64_t query, uint64_t key, float (&factors)[2][4])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, own = g % 4;
    const struct aq_rng_key stream = args.mask.keys[head.sample];
    if (args.T_mask % 4) {
        AQ_UNROLL
        for (unsigned n = 0; n < 2; n++)
            for (unsigned i = 0; i < 4; i++)
                factors[n][i] = aq_mask_word(
                    args.mask, aq_philox_word(stream, aq_weight_at(args, head.index, query + 8 * n + 2 * t + i % 2,
                                                                   key + g + (i < 2 ? 0 : 8))));
        return;
    }
    /*
     * Four lanes with neighbouring keys share a block's words, and each has four queries: each makes the block of one
     * query, and then the lanes change words for queries.
     */
    const uint64_t mine = query + own / 2 * 8 + 2 * t + own % 2;
    AQ_UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const uint4 words = aq_philox(stream, aq_weight_at(args, head.index, mine, key + 8 * half + g / 4 * 4) / 4);
        AQ_UNROLL
        for (unsigned other = 0; other < 4; other++) {
            /* To the lane `other` steps away its own key's word; from it, this lane's key's word of its query. */
            const unsigned theirs = own ^ other;
            const unsigned word = theirs < 2 ? (theirs == 0 ? words.x : words.y) : (theirs == 2 ? words.z : words.w);
            const float factor = aq_mask_word(args.mask, __shfl_xor_sync(AQ_ALL_LANES, word, 4 * other));
            AQ_UNROLL
            for (unsigned q = 0; q < 4; q++)
                if (q == theirs) factors[q / 2][2 * half + q % 2] = factor;
        }
    }
}

/* ---- Forward: a warp has 16 queries, a lane the rows g and g + 8 of them. */

/* The rows' scores of a tile of keys become weights below a new top; older sums shrink to it. */
template <unsigned D>
static __forceinline__ __device__ void tile_softmax(const struct aq_cuda_attention &args, uint64_t query, uint64_t key,
                                                    float (&scores)[TILE / 8][4], float (&sums)[D / 8][4],
                                                    float (&top)[2], float (&total)[2])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float scale = args.scale * LOG2_E;
    /* Not all of the warp's queries see all keys: the tile on the diagonal, and where windows begin. */
    const bool partly = query < key + TILE - 1 || query + 15 >= key + args.window;
    AQ_UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const unsigned row = static_cast<unsigned>(query - key) + g + 8 * half; /* the last key of the tile it sees */
        float above = top[half], sum = 0.0f;
        if (partly) {
            AQ_UNROLL
            for (unsigned n = 0; n < TILE / 8; n++)
                for (unsigned i = 2 * half; i < 2 * half + 2; i++)
                    if (row - (8 * n + 2 * t + i % 2) >= args.window) scores[n][i] = -INFINITY;
        }
        AQ_UNROLL
        for (unsigned n = 0; n < TILE / 8; n++)
            for (unsigned i = 2 * half; i < 2 * half + 2; i++)
                above = fmaxf(above, scores[n][i]);
        above = fmaxf(above, __shfl_xor_sync(AQ_ALL_LANES, above, 1));
        above = fmaxf(above, __shfl_xor_sync(AQ_ALL_LANES, above, 2));
        const float base = above == -INFINITY ? 0.0f : above; /* the row's window begins in a later tile */
        const float factor = aq_exp2((top[half] - base) * scale);
        AQ_UNROLL
        for (unsigned n = 0; n < TILE / 8; n++)
            for (unsigned i = 2 * half; i < 2 * half + 2; i++) {
                scores[n][i] = aq_exp2(fmaf(scores[n][i], scale, -base * scale));
                sum += scores[n][i];
            }
        top[half] = above;
        total[half] = fmaf(total[half], factor, sum);
        AQ_UNROLL
        for (unsigned n = 0; n < D / 8; n++) {
            sums[n][2 * half] *= factor;
            sums[n][2 * half + 1] *= factor;
        }
    }
}

template <typename T, unsigned D, bool MASKED>
static __forceinline__ __device__ void forward_tile(const struct aq_cuda_attention &args, struct head head,
                                                    uint64_t query, uint64_t key, const unsigned (&q)[D / 16][4],
                                                    const uint16_t *k, const uint16_t *v, float (&sums)[D / 8][4],
                                                    float (&top)[2], float (&total)[2])
{
    float scores[TILE / 8][4];
    AQ_UNROLL
    for (unsigned n = 0; n < TILE / 16; n++) {
        float products[2][4];
        dots16<T, D>(products, q, k + 16 * n * (D + PAD));
        AQ_UNROLL
        for (unsigned i = 0; i < 4; i++) {
            scores[2 * n][i] = products[0][i];
            scores[2 * n + 1][i] = products[1][i];
        }
    }
    tile_softmax<D>(args, query, key, scores, sums, top, total);
    AQ_UNROLL
    for (unsigned n = 0; n < TILE / 16; n++) {
        unsigned weights[4];
        if constexpr (MASKED) {
            float factors[2][4];
            factors_of_queries(args, head, query, key + 16 * n, factors);
            AQ_UNROLL
            for (unsigned i = 0; i < 4; i++) {
                scores[2 * n][i] *= factors[0][i];
                scores[2 * n + 1][i] *= factors[1][i];
            }
        }
        aq_fragment_of_sums<T>(weights, scores[2 * n], scores[2 * n + 1]);
        add16<T, D>(sums, weights, v + 16 * n * (D + PAD));
    }
}

template <typename T, unsigned D>
static __forceinline__ __device__ void forward_store(const struct aq_cuda_attention &args, struct head head,
                                                     uint64_t query, const float (&sums)[D / 8][4],
                                                     const float (&top)[2], const float (&total)[2])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    AQ_UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const uint64_t row = query + g + 8 * half;
        float sum = total[half];
        sum += __shfl_xor_sync(AQ_ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(AQ_ALL_LANES, sum, 2);
        if (row >= args.T) continue;
        if (t == 0)
            args.lse[(head.sample * args.H + head.index) * args.T + row] = fmaf(top[half], args.scale, logf(sum));
        uint16_t *out = static_cast<uint16_t *>(args.out) + aq_out_at(args, head.sample, head.index, row) + 2 * t;
        const float factor = 1.0f / sum;
        AQ_UNROLL
        for (unsigned n = 0; n < D / 8; n++)
            *reinterpret_cast<unsigned *>(out + 8 * n) =
                aq_pack<T>(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor);
    }
}

/* The grid is (tiles of queries, heads, samples); the longest tiles come first. */
template <typename T, unsigned D, bool MASKED>
static __global__ void __launch_bounds__(THREADS, D == 64 ? 2 : 1) mma_forward(struct aq_cuda_attention args)
{
    constexpr unsigned STRIDE = D + PAD;
    AQ_SHARED_DYNAMIC(uint16_t, shared);
    uint16_t *const tiles = shared + OWN * STRIDE; /* two of (k, v) */
    const struct head head = head_of(args);
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * OWN,
                   query = first + threadIdx.x / 32 * 16;
    const uint64_t stride = aq_qkv_stride(args), end = first + OWN < args.T ? first + OWN : args.T;
    const uint64_t begin = aq_first_key(args, first) / TILE * TILE, seen = aq_first_key(args, query);
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv);
    const uint16_t *k = qkv + aq_qkv_at(args, head.sample, head.index, 1, 0), *v = k + args.kv_heads * D;
    unsigned q[D / 16][4];
    float sums[D / 8][4], top[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    sums_zero<D>(sums);
    rows_copy<OWN, D>(shared, qkv + aq_qkv_at(args, head.sample, head.index, 0, first), stride, first, args.T);
    rows_copy<TILE, D>(tiles + begin / TILE % 2 * 2 * TILE * STRIDE, k + begin * stride, stride, begin, args.T);
    rows_copy<TILE, D>(tiles + (begin / TILE % 2 * 2 + 1) * TILE * STRIDE, v + begin * stride, stride, begin, args.T);
    for (uint64_t key = begin; key < end; key += TILE) {
        uint16_t *const now = tiles + key / TILE % 2 * 2 * TILE * STRIDE;
        uint16_t *const next = tiles + (key / TILE + 1) % 2 * 2 * TILE * STRIDE;
        aq_copies_wait();
        __syncthreads();
        if (key + TILE < end) {
            rows_copy<TILE, D>(next, k + (key + TILE) * stride, stride, key + TILE, args.T);
            rows_copy<TILE, D>(next + TILE * STRIDE, v + (key + TILE) * stride, stride, key + TILE, args.T);
        }
        if (key == begin) fragments<D>(q, shared + threadIdx.x / 32 * 16 * STRIDE);
        if (key <= query && key + TILE > seen)
            forward_tile<T, D, MASKED>(args, head, query, key, q, now, now + TILE * STRIDE, sums, top, total);
    }
    forward_store<T, D>(args, head, query, sums, top, total);
}

/* ---- Backward. */

/*
 * Scores and products of dout with values become masked weights and the gradient of the scores, as left operands. What
 * a row and a column are is said by `lse2` (in powers of two) and `delta` of each and by the factors; scores of keys
 * that a query does not see are minus infinity.
 */
template <typename T>
static __forceinline__ __device__ void slopes16(const struct aq_cuda_attention &args, const float (&scores)[2][4],
                                                const float (&products)[2][4], const float (&lse2)[2][4],
                                                const float (&delta)[2][4], const float (&factors)[2][4],
                                                unsigned (&weights)[4], unsigned (&slopes)[4])
{
    float p[2][4], ds[2][4];
    AQ_UNROLL
    for (unsigned n = 0; n < 2; n++)
        for (unsigned i = 0; i < 4; i++) {
            const float weight = aq_exp2(fmaf(scores[n][i], args.scale * LOG2_E, -lse2[n][i]));
            p[n][i] = weight * factors[n][i];
            ds[n][i] = weight * fmaf(products[n][i], factors[n][i], -delta[n][i]) * args.scale;
        }
    aq_fragment_of_sums<T>(weights, p[0], p[1]);
    aq_fragment_of_sums<T>(slopes, ds[0], ds[1]);
}

static __forceinline__ __device__ void factors_one(float (&factors)[2][4])
{
    AQ_UNROLL
    for (unsigned n = 0; n < 2; n++)
        for (unsigned i = 0; i < 4; i++)
            factors[n][i] = 1.0f;
}

template <typename T, unsigned D>
static __forceinline__ __device__ void gradient_store(const struct aq_cuda_attention &args, struct head head,
                                                      uint64_t part, uint64_t token, const float (&sums)[D / 8][4])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    AQ_UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const uint64_t row = token + g + 8 * half;
        if (row >= args.T) continue;
        const uint64_t at = aq_qkv_at(args, head.sample, head.index, part, row) + 2 * t;
        AQ_UNROLL
        for (unsigned n = 0; n < D / 8; n++)
            if (args.dqkv_rounded)
                *reinterpret_cast<unsigned *>(args.dqkv_rounded + at + 8 * n) =
                    aq_pack<T>(sums[n][2 * half], sums[n][2 * half + 1]);
            else
                *reinterpret_cast<float2 *>(args.dqkv + at + 8 * n) =
                    make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
    }
}

/* lse in powers of two and delta of a tile of queries; a query past T has weights of 0. */
static __forceinline__ __device__ void stats_load(const struct aq_cuda_attention &args, struct head head,
                                                  uint64_t query, float *lse2, float *delta)
{
    if (threadIdx.x >= TILE) return;
    const uint64_t row = query + threadIdx.x;
    const bool there = row < args.T;
    lse2[threadIdx.x] = there ? args.lse[(head.sample * args.H + head.index) * args.T + row] * LOG2_E : INFINITY;
    delta[threadIdx.x] = there ? args.delta[(blockIdx.z * args.H + head.index) * args.T + row] : 0.0f;
}

/* dk and dv of the warp's 16 keys from 16 queries; a lane has the keys g and g + 8. */
template <typename T, unsigned D, bool MASKED>
static __forceinline__ __device__ void
backward_keys16(const struct aq_cuda_attention &args, struct head head, uint64_t query, uint64_t key,
                const struct own_rows<T, D> &own, const uint16_t *q, const uint16_t *dout, const float *lse2s,
                const float *deltas, float (&dk)[D / 8][4], float (&dv)[D / 8][4])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scores[2][4], products[2][4], factors[2][4], lse2[2][4], delta[2][4];
    const int ahead = static_cast<int>(query - key);
    unsigned weights[4], slopes[4];
    own.dots(scores, 0, q);
    own.dots(products, 1, dout);
    AQ_UNROLL
    for (unsigned n = 0; n < 2; n++)
        for (unsigned i = 0; i < 4; i++) {
            const unsigned column = 8 * n + 2 * t + i % 2;
            lse2[n][i] = lse2s[column];
            delta[n][i] = deltas[column];
        }
    if (ahead < 15 || static_cast<unsigned>(ahead + 15) >= args.window) { /* on the diagonal; where windows begin */
        AQ_UNROLL
        for (unsigned n = 0; n < 2; n++)
            for (unsigned i = 0; i < 4; i++)
                if (static_cast<unsigned>(ahead) + 8 * n + 2 * t + i % 2 - (g + (i < 2 ? 0 : 8)) >= args.window)
                    scores[n][i] = -INFINITY;
    }
    if constexpr (MASKED)
        factors_of_keys(args, head, query, key, factors);
    else
        factors_one(factors);
    slopes16<T>(args, scores, products, lse2, delta, factors, weights, slopes);
    add16<T, D>(dv, weights, dout);
    add16<T, D>(dk, slopes, q);
}

/*
 * The grid is (tiles of keys, heads of keys, samples): the first keys are seen by most queries. A step is a tile of
 * queries of one of the heads that share the keys.
 */
template <typename T, unsigned D, bool MASKED>
static __global__ void __launch_bounds__(THREADS, D == 64 ? 2 : 1) mma_backward_keys(struct aq_cuda_attention args)
{
    constexpr unsigned STRIDE = D + PAD;
    AQ_SHARED(float, stats, [2][2][TILE]); /* lse and delta, twice */
    AQ_SHARED_DYNAMIC(uint16_t, shared);   /* k and v of the block's own keys, then two of (q, dout) */
    uint16_t *const tiles = shared + 2 * OWN * STRIDE;
    const unsigned group = args.H / args.kv_heads;
    const struct head own_head = {args.first_sample + blockIdx.z, static_cast<uint64_t>(blockIdx.y) * group};
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * OWN, C = static_cast<uint64_t>(args.H) * D;
    const uint64_t key = first + threadIdx.x / 32 * 16, stride = aq_qkv_stride(args);
    const unsigned end = static_cast<unsigned>(aq_queries_end(args, first + OWN - 1));
    const unsigned tiles_each = (end - static_cast<unsigned>(first) + TILE - 1) / TILE, steps = group * tiles_each;
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv), *douts = static_cast<const uint16_t *>(args.dout);
    const uint16_t *k = qkv + aq_qkv_at(args, own_head.sample, own_head.index, 1, first);
    struct own_rows<T, D> own;
    own.tile = shared + threadIdx.x / 32 * 16 * STRIDE;
    float dk[D / 8][4], dv[D / 8][4];
    sums_zero<D>(dk);
    sums_zero<D>(dv);
    rows_copy<OWN, D>(shared, k, stride, first, args.T);
    rows_copy<OWN, D>(shared + OWN * STRIDE, k + args.kv_heads * D, stride, first, args.T);
    const uint16_t *q = qkv + aq_qkv_at(args, own_head.sample, own_head.index, 0, first);
    const uint16_t *dout = douts + aq_out_at(args, own_head.sample, own_head.index, first);
    rows_copy<TILE, D>(tiles, q, stride, first, args.T);
    rows_copy<TILE, D>(tiles + TILE * STRIDE, dout, C, first, args.T);
    stats_load(args, own_head, first, stats[0][0], stats[0][1]);
    for (unsigned step = 0; step < steps; step++) {
        const struct head head = {own_head.sample, own_head.index + step / tiles_each};
        const uint64_t tile = first + static_cast<uint64_t>(step % tiles_each) * TILE;
        const unsigned now = step % 2, next = 1 - now;
        const uint16_t *const here = tiles + now * 2 * TILE * STRIDE;
        aq_copies_wait();
        __syncthreads();
        if (step + 1 < steps) {
            uint16_t *const there = tiles + next * 2 * TILE * STRIDE;
            const struct head then = {own_head.sample, own_head.index + (step + 1) / tiles_each};
            const uint64_t after = first + static_cast<uint64_t>((step + 1) % tiles_each) * TILE;
            q = qkv + aq_qkv_at(args, then.sample, then.index, 0, after);
            dout = douts + aq_out_at(args, then.sample, then.index, after);
            rows_copy<TILE, D>(there, q, stride, after, args.T);
            rows_copy<TILE, D>(there + TILE * STRIDE, dout, C, after, args.T);
            stats_load(args, then, after, stats[next][0], stats[next][1]);
        }
        if (step == 0) own.load();
        for (unsigned i = 0; i < TILE; i += 16)
            if (tile + i >= key && tile + i < aq_queries_end(args, key + 15))
                backward_keys16<T, D, MASKED>(args, head, tile + i, key, own, here + i * STRIDE,
                                              here + (TILE + i) * STRIDE, &stats[now][0][i], &stats[now][1][i], dk, dv);
    }
    gradient_store<T, D>(args, own_head, 1, key, dk);
    gradient_store<T, D>(args, own_head, 2, key, dv);
}

/* dq of the warp's 16 queries from 16 keys; a lane has the queries g and g + 8. */
template <typename T, unsigned D, bool MASKED>
static __forceinline__ __device__ void
backward_queries16(const struct aq_cuda_attention &args, struct head head, uint64_t query, uint64_t key,
                   const struct own_rows<T, D> &own, const uint16_t *k, const uint16_t *v, const float (&row_lse2)[2],
                   const float (&row_delta)[2], float (&dq)[D / 8][4])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scores[2][4], products[2][4], factors[2][4], lse2[2][4], delta[2][4];
    const int ahead = static_cast<int>(query - key);
    unsigned weights[4], slopes[4];
    own.dots(scores, 0, k);
    own.dots(products, 1, v);
    AQ_UNROLL
    for (unsigned n = 0; n < 2; n++)
        for (unsigned i = 0; i < 4; i++) {
            lse2[n][i] = row_lse2[i / 2];
            delta[n][i] = row_delta[i / 2];
        }
    if (ahead < 15 || static_cast<unsigned>(ahead + 15) >= args.window) { /* on the diagonal; where windows begin */
        AQ_UNROLL
        for (unsigned n = 0; n < 2; n++)
            for (unsigned i = 0; i < 4; i++)
                if (static_cast<unsigned>(ahead) + g + (i < 2 ? 0 : 8) - (8 * n + 2 * t + i % 2) >= args.window)
                    scores[n][i] = -INFINITY;
    }
    if constexpr (MASKED)
        factors_of_queries(args, head, query, key, factors);
    else
        factors_one(factors);
    slopes16<T>(args, scores, products, lse2, delta, factors, weights, slopes);
    add16<T, D>(dq, slopes, k);
}

template <typename T, unsigned D, bool MASKED>
static __global__ void __launch_bounds__(THREADS, D == 64 ? 2 : 1) mma_backward_queries(struct aq_cuda_attention args)
{
    constexpr unsigned STRIDE = D + PAD;
    AQ_SHARED_DYNAMIC(uint16_t, shared); /* q and dout of the block's own queries, then two of (k, v) */
    uint16_t *const tiles = shared + 2 * OWN * STRIDE;
    const struct head head = head_of(args);
    const unsigned g = threadIdx.x % 32 / 4;
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * OWN,
                   query = first + threadIdx.x / 32 * 16;
    const uint64_t C = static_cast<uint64_t>(args.H) * D, end = first + OWN < args.T ? first + OWN : args.T;
    const uint64_t stride = aq_qkv_stride(args), begin = aq_first_key(args, first) / TILE * TILE;
    const uint64_t seen = aq_first_key(args, query);
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv);
    const uint16_t *k = qkv + aq_qkv_at(args, head.sample, head.index, 1, 0), *v = k + args.kv_heads * D;
    const uint16_t *dout = static_cast<const uint16_t *>(args.dout) + aq_out_at(args, head.sample, head.index, first);
    struct own_rows<T, D> own;
    own.tile = shared + threadIdx.x / 32 * 16 * STRIDE;
    float dq[D / 8][4], lse2[2], delta[2];
    sums_zero<D>(dq);
    for (unsigned half = 0; half < 2; half++) {
        const uint64_t row = query + g + 8 * half;
        const bool there = row < args.T;
        lse2[half] = there ? args.lse[(head.sample * args.H + head.index) * args.T + row] * LOG2_E : INFINITY;
        delta[half] = there ? args.delta[(blockIdx.z * args.H + head.index) * args.T + row] : 0.0f;
    }
    rows_copy<OWN, D>(shared, qkv + aq_qkv_at(args, head.sample, head.index, 0, first), stride, first, args.T);
    rows_copy<OWN, D>(shared + OWN * STRIDE, dout, C, first, args.T);
    rows_copy<TILE, D>(tiles + begin / TILE % 2 * 2 * TILE * STRIDE, k + begin * stride, stride, begin, args.T);
    rows_copy<TILE, D>(tiles + (begin / TILE % 2 * 2 + 1) * TILE * STRIDE, v + begin * stride, stride, begin, args.T);
    for (uint64_t tile = begin; tile < end; tile += TILE) {
        const unsigned now = static_cast<unsigned>(tile / TILE % 2), next = 1 - now;
        const uint16_t *const here = tiles + now * 2 * TILE * STRIDE;
        aq_copies_wait();
        __syncthreads();
        if (tile + TILE < end) {
            uint16_t *const there = tiles + next * 2 * TILE * STRIDE;
            rows_copy<TILE, D>(there, k + (tile + TILE) * stride, stride, tile + TILE, args.T);
            rows_copy<TILE, D>(there + TILE * STRIDE, v + (tile + TILE) * stride, stride, tile + TILE, args.T);
        }
        if (tile == begin) own.load();
        for (unsigned i = 0; i < TILE; i += 16)
            if (tile + i <= query && tile + i + 15 >= seen)
                backward_queries16<T, D, MASKED>(args, head, query, tile + i, own, here + i * STRIDE,
                                                 here + (TILE + i) * STRIDE, lse2, delta, dq);
    }
    gradient_store<T, D>(args, head, 0, query, dq);
}

/* ---- Launchers, called by cuda_attention.cu. */

bool aq_attention_mma_can(const struct aq_attention *args)
{
    return !args->starts && (args->type == AQ_BF16 || args->type == AQ_F16) && (args->D == 64 || args->D == 128) &&
           aq_aligned(args->qkv, 16) && aq_aligned(args->out, 16) && (!args->dout || aq_aligned(args->dout, 16)) &&
           (!args->dqkv || aq_aligned(args->dqkv, 8)) && (!args->dqkv_rounded || aq_aligned(args->dqkv_rounded, 4));
}

/* Bytes of `own` tiles of the block's own rows and of two pairs of tiles of the others. */
static size_t shared_bytes(unsigned D, unsigned own)
{
    return sizeof(uint16_t) * (D + PAD) * (own * OWN + 4 * TILE);
}

static dim3 grid_of(const struct aq_cuda_attention *args, unsigned heads, uint64_t samples)
{
    return dim3(static_cast<unsigned>((args->T + OWN - 1) / OWN), heads, static_cast<unsigned>(samples));
}

template <typename T, unsigned D, bool MASKED>
static enum aq_status forward_run(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    return AQ_LAUNCH((mma_forward<T, D, MASKED>), grid_of(args, args->H, samples), THREADS, shared_bytes(D, 1), stream,
                     *args);
}

template <typename T, unsigned D, bool MASKED>
static enum aq_status backward_run(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    const dim3 keys = grid_of(args, args->kv_heads, samples), queries = grid_of(args, args->H, samples);
    AQ_TRY(AQ_LAUNCH((mma_backward_keys<T, D, MASKED>), keys, THREADS, shared_bytes(D, 2), stream, *args));
    return AQ_LAUNCH((mma_backward_queries<T, D, MASKED>), queries, THREADS, shared_bytes(D, 2), stream, *args);
}

template <typename T>
static enum aq_status forward_typed(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    if (args->D == 64)
        return args->mask.keys ? forward_run<T, 64, true>(args, samples, stream)
                               : forward_run<T, 64, false>(args, samples, stream);
    return args->mask.keys ? forward_run<T, 128, true>(args, samples, stream)
                           : forward_run<T, 128, false>(args, samples, stream);
}

template <typename T>
static enum aq_status backward_typed(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    if (args->D == 64)
        return args->mask.keys ? backward_run<T, 64, true>(args, samples, stream)
                               : backward_run<T, 64, false>(args, samples, stream);
    return args->mask.keys ? backward_run<T, 128, true>(args, samples, stream)
                           : backward_run<T, 128, false>(args, samples, stream);
}

enum aq_status aq_attention_mma(const struct aq_cuda_attention *args, enum aq_element type, uint64_t samples,
                                cudaStream_t stream)
{
    return type == AQ_F16 ? forward_typed<aq_half>(args, samples, stream)
                          : forward_typed<uint16_t>(args, samples, stream);
}

enum aq_status aq_attention_mma_backward(const struct aq_cuda_attention *args, enum aq_element type, uint64_t samples,
                                         cudaStream_t stream)
{
    return type == AQ_F16 ? backward_typed<aq_half>(args, samples, stream)
                          : backward_typed<uint16_t>(args, samples, stream);
}
