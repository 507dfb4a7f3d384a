/*
 * cuda_attention_mma.cu -- causal attention of bf16 or fp16 on tensor cores, D of 64 or 128.
 *
 * The same mathematics as cuda_attention.cu, laid out as Dao 2023 ("FlashAttention-2") does: a block owns 128 queries
 * (or keys) and goes over the other side in tiles of 64 that are copied into shared memory while the one before is
 * worked on. Scores never leave the registers: the sums of one product, rounded to 16 bits, are the left operand of the
 * next (cuda_mma.cuh). The kernel that owns keys makes the scores transposed, so that this holds there too.
 *
 * A warp owns SETS times 16 rows: its loads of the other side's tile are operands of all its sets, so that two of them
 * read shared memory half as often for a product. How many there is room for in registers differs by kernel and D. A
 * row's arithmetic does not depend on it.
 *
 * Rows of a tile are D + 8 elements apart: 8 rows are in 8 different groups of banks.
 */
#include <math.h>

#include "cuda_attention_tiles.cuh"

constexpr unsigned PAD = 8;

/* Threads of a block whose warps own `sets` sets of rows, and the rows of a warp. */
constexpr unsigned threads_of(unsigned sets)
{
    return 32 * OWN / (16 * sets);
}
/* Starts the copy of ROWS rows of D, `stride` elements apart, from `token` on; rows past T become 0. */
template <unsigned ROWS, unsigned D>
static __forceinline__ __device__ void rows_copy(uint16_t *tile, const uint16_t *from, uint64_t stride, uint64_t token,
                                                 uint64_t T)
{
    constexpr unsigned PIECES = D / 8;
    for (unsigned i = threadIdx.x; i < ROWS * PIECES; i += blockDim.x) {
        const unsigned row = i / PIECES, piece = i % PIECES;
        const bool there = token + row < T;
        aq_copy(tile + row * (D + PAD) + piece * 8, there ? from + row * stride + piece * 8 : from, there);
    }
}

template <unsigned SETS, unsigned N> static __forceinline__ __device__ void zero(float (&sums)[SETS][N][4])
{
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++)
        for (unsigned n = 0; n < N; n++)
            for (unsigned i = 0; i < 4; i++)
                sums[set][n][i] = 0.0f;
}

/* products[set][n] = each set's 16 rows of a times 16 rows of the tile, as two tiles of 8 columns. */
template <typename T, unsigned D, unsigned SETS>
static __forceinline__ __device__ void dots16(float (&products)[SETS][2][4], const unsigned (&a)[SETS][D / 16][4],
                                              const uint16_t *tile)
{
    const uint16_t *at = tile + aq_lane_b_rows(D + PAD);
    zero(products);
    AQ_UNROLL
    for (unsigned k = 0; k < D / 16; k++) {
        unsigned b[4];
        aq_matrices(b, at + 16 * k);
        AQ_UNROLL
        for (unsigned set = 0; set < SETS; set++) {
            aq_mma<T>(products[set][0], a[set][k], b[0], b[1]);
            aq_mma<T>(products[set][1], a[set][k], b[2], b[3]);
        }
    }
}

/* sums += each set's a (16 x 16) times 16 rows of the tile. */
template <typename T, unsigned D, unsigned SETS>
static __forceinline__ __device__ void add16(float (&sums)[SETS][D / 8][4], const unsigned (&a)[SETS][4],
                                             const uint16_t *tile)
{
    const uint16_t *at = tile + aq_lane_b_columns(D + PAD);
    AQ_UNROLL
    for (unsigned d = 0; d < D / 16; d++) {
        unsigned b[4];
        aq_matrices_transposed(b, at + 16 * d);
        AQ_UNROLL
        for (unsigned set = 0; set < SETS; set++) {
            aq_mma<T>(sums[set][2 * d], a[set], b[0], b[1]);
            aq_mma<T>(sums[set][2 * d + 1], a[set], b[2], b[3]);
        }
    }
}

template <unsigned D, unsigned SETS>
static __forceinline__ __device__ void fragments(unsigned (&a)[SETS][D / 16][4], const uint16_t *tile)
{
    const uint16_t *at = tile + aq_lane_a(D + PAD);
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++)
        for (unsigned k = 0; k < D / 16; k++)
            aq_matrices(a[set][k], at + 16 * set * (D + PAD) + 16 * k);
}

/*
 * The block's own two tiles as left operands of a warp. With D of 64 they stay in registers: loading them again for
 * every 16 rows of the other side would cost half as much as the products. With D of 128 there is no room.
 */
template <typename T, unsigned D, unsigned SETS> struct own_rows {
    static constexpr bool KEPT = D <= 64;
    unsigned kept[2][SETS][KEPT ? D / 16 : 1][4];
    const uint16_t *tile;

    __forceinline__ __device__ void load()
    {
        if constexpr (KEPT) {
            fragments<D>(kept[0], tile);
            fragments<D>(kept[1], tile + OWN * (D + PAD));
        }
    }

    /* products = own tile `which` times 16 rows of another tile. */
    __forceinline__ __device__ void dots(float (&products)[SETS][2][4], unsigned which, const uint16_t *other) const
    {
        if constexpr (KEPT) {
            dots16<T, D>(products, kept[which], other);
        } else {
            unsigned a[SETS][D / 16][4];
            fragments<D>(a, tile + which * OWN * (D + PAD));
            dots16<T, D>(products, a, other);
        }
    }
};

/* The mask factors of two tiles of scores whose rows are queries and whose columns are keys, in the layout of sums. */
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

/* ---- Forward: a lane has the rows g and g + 8 of each set of 16 queries. */

/*
 * A warp's queries as left operands: in registers with D of 64; with D of 128, where sums and scores leave no room, in
 * shared memory, loaded once for all keys of a tile.
 */
template <typename T, unsigned D, unsigned SETS> struct forward_queries {
    static constexpr bool KEPT = D <= 64;
    unsigned kept[SETS][KEPT ? D / 16 : 1][4];
    const uint16_t *tile;

    __forceinline__ __device__ void load()
    {
        if constexpr (KEPT) fragments<D>(kept, tile);
    }

    /* scores = the queries times the keys of a tile. */
    __forceinline__ __device__ void scores(float (&scores)[SETS][TILE / 8][4], const uint16_t *keys) const
    {
        zero(scores);
        AQ_UNROLL
        for (unsigned k = 0; k < D / 16; k++) {
            unsigned a[SETS][4];
            AQ_UNROLL
            for (unsigned set = 0; set < SETS; set++)
                if constexpr (KEPT)
                    for (unsigned i = 0; i < 4; i++)
                        a[set][i] = kept[set][k][i];
                else
                    aq_matrices(a[set], tile + aq_lane_a(D + PAD) + 16 * set * (D + PAD) + 16 * k);
            AQ_UNROLL
            for (unsigned n = 0; n < TILE / 16; n++) {
                unsigned b[4];
                aq_matrices(b, keys + aq_lane_b_rows(D + PAD) + 16 * n * (D + PAD) + 16 * k);
                AQ_UNROLL
                for (unsigned set = 0; set < SETS; set++) {
                    aq_mma<T>(scores[set][2 * n], a[set], b[0], b[1]);
                    aq_mma<T>(scores[set][2 * n + 1], a[set], b[2], b[3]);
                }
            }
        }
    }
};

/* The state of a forward warp for its queries: sums of values, and of each row the top score and the sum of weights. */
template <unsigned D, unsigned SETS> struct forward_rows {
    float sums[SETS][D / 8][4], top[SETS][2], total[SETS][2];
};

/* The sets' weights of 16 keys, masked, as left operands. */
template <typename T, unsigned SETS, bool MASKED>
static __forceinline__ __device__ void forward_weights(const struct aq_cuda_attention &args, struct head head,
                                                       uint64_t query, uint64_t key, unsigned n,
                                                       float (&scores)[SETS][TILE / 8][4], unsigned (&weights)[SETS][4])
{
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++) {
        if constexpr (MASKED) {
            float factors[2][4];
            factors_of_queries(args, head, query + 16 * set, key + 16 * n, factors);
            AQ_UNROLL
            for (unsigned i = 0; i < 4; i++) {
                scores[set][2 * n][i] *= factors[0][i];
                scores[set][2 * n + 1][i] *= factors[1][i];
            }
        }
        aq_fragment_of_sums<T>(weights[set], scores[set][2 * n], scores[set][2 * n + 1]);
    }
}

template <typename T, unsigned D, unsigned SETS, bool MASKED>
static __forceinline__ __device__ void
forward_tile(const struct aq_cuda_attention &args, struct head head, uint64_t query, uint64_t key,
             const struct forward_queries<T, D, SETS> &q, const uint16_t *k, const uint16_t *v,
             struct forward_rows<D, SETS> &rows)
{
    float scores[SETS][TILE / 8][4];
    q.scores(scores, k);
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++)
        tile_softmax<D>(args, query + 16 * set, key, scores[set], rows.sums[set], rows.top[set], rows.total[set]);
    AQ_UNROLL
    for (unsigned n = 0; n < TILE / 16; n++) {
        unsigned weights[SETS][4];
        forward_weights<T, SETS, MASKED>(args, head, query, key, n, scores, weights);
        add16<T, D>(rows.sums, weights, v + 16 * n * (D + PAD));
    }
}

/* The grid is (tiles of queries, heads, samples); the longest tiles come first. */
template <typename T, unsigned D, unsigned SETS, bool MASKED>
static __global__ void __launch_bounds__(threads_of(SETS), D == 64 ? 2 : 1) mma_forward(struct aq_cuda_attention args)
{
    constexpr unsigned STRIDE = D + PAD, ROWS = 16 * SETS;
    AQ_SHARED_DYNAMIC(uint16_t, shared);
    uint16_t *const tiles = shared + OWN * STRIDE; /* two of (k, v) */
    const struct head head = head_of(args);
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * OWN,
                   query = first + threadIdx.x / 32 * ROWS;
    const uint64_t stride = aq_qkv_stride(args), end = first + OWN < args.T ? first + OWN : args.T;
    const uint64_t begin = aq_first_key(args, first) / TILE * TILE, seen = aq_first_key(args, query);
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv);
    const uint16_t *k = qkv + aq_qkv_at(args, head.sample, head.index, 1, 0), *v = k + args.kv_heads * D;
    struct forward_queries<T, D, SETS> q;
    q.tile = shared + threadIdx.x / 32 * ROWS * STRIDE;
    struct forward_rows<D, SETS> rows;
    zero(rows.sums);
    AQ_UNROLL
    for (unsigned i = 0; i < 2 * SETS; i++) {
        rows.top[i / 2][i % 2] = -INFINITY;
        rows.total[i / 2][i % 2] = 0.0f;
    }
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
        if (key == begin) q.load();
        if (key < query + ROWS && key + TILE > seen)
            forward_tile<T, D, SETS, MASKED>(args, head, query, key, q, now, now + TILE * STRIDE, rows);
    }
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++)
        forward_store<T, D>(args, head, query + 16 * set, rows.sums[set], rows.top[set], rows.total[set]);
}

/* ---- Backward. */

/*
 * Scores and products of dout with values become masked weights and the gradient of the scores, as left operands.
 * `lse2` (in powers of two) and `delta` of each, and the factors, define the rows and columns; scores of keys that a
 * query does not see are minus infinity.
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

/* dk and dv of the warp's keys from 16 queries; a lane has the keys g and g + 8 of each set. */
template <typename T, unsigned D, unsigned SETS, bool MASKED>
static __forceinline__ __device__ void
backward_keys16(const struct aq_cuda_attention &args, struct head head, uint64_t query, uint64_t key,
                const struct own_rows<T, D, SETS> &own, const uint16_t *q, const uint16_t *dout, const float *lse2s,
                const float *deltas, float (&dk)[SETS][D / 8][4], float (&dv)[SETS][D / 8][4])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scores[SETS][2][4], products[SETS][2][4];
    unsigned weights[SETS][4], slopes[SETS][4];
    own.dots(scores, 0, q);
    own.dots(products, 1, dout);
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++) {
        const int ahead = static_cast<int>(query - key) - static_cast<int>(16 * set);
        float factors[2][4], lse2[2][4], delta[2][4];
        if (ahead < 15 || static_cast<unsigned>(ahead + 15) >= args.window) { /* the diagonal; the start of windows */
            AQ_UNROLL
            for (unsigned n = 0; n < 2; n++)
                for (unsigned i = 0; i < 4; i++)
                    if (static_cast<unsigned>(ahead) + 8 * n + 2 * t + i % 2 - (g + (i < 2 ? 0 : 8)) >= args.window)
                        scores[set][n][i] = -INFINITY;
        }
        if constexpr (MASKED)
            factors_of_keys(args, head, query, key + 16 * set, factors);
        else
            factors_one(factors);
        AQ_UNROLL
        for (unsigned n = 0; n < 2; n++)
            for (unsigned i = 0; i < 4; i++) {
                const unsigned column = 8 * n + 2 * t + i % 2;
                lse2[n][i] = lse2s[column];
                delta[n][i] = deltas[column];
            }
        slopes16<T>(args, scores[set], products[set], lse2, delta, factors, weights[set], slopes[set]);
    }
    add16<T, D>(dv, weights, dout);
    add16<T, D>(dk, slopes, q);
}

/*
 * The grid is (tiles of keys, heads of keys, samples): the first keys are seen by most queries. A step is a tile of
 * queries of one of the heads that share the keys.
 */
template <typename T, unsigned D, unsigned SETS, bool MASKED>
static __global__ void __launch_bounds__(threads_of(SETS), D == 64 ? 2 : 1)
    mma_backward_keys(struct aq_cuda_attention args)
{
    constexpr unsigned STRIDE = D + PAD, ROWS = 16 * SETS;
    AQ_SHARED(float, stats, [2][2][TILE]); /* lse and delta, twice */
    AQ_SHARED_DYNAMIC(uint16_t, shared);   /* k and v of the block's own keys, then two of (q, dout) */
    uint16_t *const tiles = shared + 2 * OWN * STRIDE;
    const unsigned group = args.H / args.kv_heads;
    const struct head own_head = {args.first_sample + blockIdx.z, static_cast<uint64_t>(blockIdx.y) * group};
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * OWN, C = static_cast<uint64_t>(args.H) * D;
    const uint64_t key = first + threadIdx.x / 32 * ROWS, stride = aq_qkv_stride(args);
    const unsigned end = static_cast<unsigned>(aq_queries_end(args, first + OWN - 1));
    const unsigned tiles_each = (end - static_cast<unsigned>(first) + TILE - 1) / TILE, steps = group * tiles_each;
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv), *douts = static_cast<const uint16_t *>(args.dout);
    const uint16_t *k = qkv + aq_qkv_at(args, own_head.sample, own_head.index, 1, first);
    struct own_rows<T, D, SETS> own;
    own.tile = shared + threadIdx.x / 32 * ROWS * STRIDE;
    float dk[SETS][D / 8][4], dv[SETS][D / 8][4];
    zero(dk);
    zero(dv);
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
            if (tile + i >= key && tile + i < aq_queries_end(args, key + ROWS - 1))
                backward_keys16<T, D, SETS, MASKED>(args, head, tile + i, key, own, here + i * STRIDE,
                                              here + (TILE + i) * STRIDE, &stats[now][0][i], &stats[now][1][i], dk, dv);
    }
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++) {
        gradient_store<T, D>(args, own_head, 1, key + 16 * set, dk[set]);
        gradient_store<T, D>(args, own_head, 2, key + 16 * set, dv[set]);
    }
}

/* dq of the warp's queries from 16 keys; a lane has the queries g and g + 8 of each set. */
template <typename T, unsigned D, unsigned SETS, bool MASKED>
static __forceinline__ __device__ void
backward_queries16(const struct aq_cuda_attention &args, struct head head, uint64_t query, uint64_t key,
                   const struct own_rows<T, D, SETS> &own, const uint16_t *k, const uint16_t *v,
                   const float (&row_lse2)[SETS][2], const float (&row_delta)[SETS][2], float (&dq)[SETS][D / 8][4])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scores[SETS][2][4], products[SETS][2][4];
    unsigned weights[SETS][4], slopes[SETS][4];
    own.dots(scores, 0, k);
    own.dots(products, 1, v);
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++) {
        const int ahead = static_cast<int>(query - key) + static_cast<int>(16 * set);
        float factors[2][4], lse2[2][4], delta[2][4];
        AQ_UNROLL
        for (unsigned n = 0; n < 2; n++)
            for (unsigned i = 0; i < 4; i++) {
                lse2[n][i] = row_lse2[set][i / 2];
                delta[n][i] = row_delta[set][i / 2];
            }
        if (ahead < 15 || static_cast<unsigned>(ahead + 15) >= args.window) { /* the diagonal; the start of windows */
            AQ_UNROLL
            for (unsigned n = 0; n < 2; n++)
                for (unsigned i = 0; i < 4; i++)
                    if (static_cast<unsigned>(ahead) + g + (i < 2 ? 0 : 8) - (8 * n + 2 * t + i % 2) >= args.window)
                        scores[set][n][i] = -INFINITY;
        }
        if constexpr (MASKED)
            factors_of_queries(args, head, query + 16 * set, key, factors);
        else
            factors_one(factors);
        slopes16<T>(args, scores[set], products[set], lse2, delta, factors, weights[set], slopes[set]);
    }
    add16<T, D>(dq, slopes, k);
}

template <typename T, unsigned D, unsigned SETS, bool MASKED>
static __global__ void __launch_bounds__(threads_of(SETS), D == 64 ? 2 : 1)
    mma_backward_queries(struct aq_cuda_attention args)
{
    constexpr unsigned STRIDE = D + PAD, ROWS = 16 * SETS;
    AQ_SHARED_DYNAMIC(uint16_t, shared); /* q and dout of the block's own queries, then two of (k, v) */
    uint16_t *const tiles = shared + 2 * OWN * STRIDE;
    const struct head head = head_of(args);
    const unsigned g = threadIdx.x % 32 / 4;
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * OWN,
                   query = first + threadIdx.x / 32 * ROWS;
    const uint64_t C = static_cast<uint64_t>(args.H) * D, end = first + OWN < args.T ? first + OWN : args.T;
    const uint64_t stride = aq_qkv_stride(args), begin = aq_first_key(args, first) / TILE * TILE;
    const uint64_t seen = aq_first_key(args, query);
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv);
    const uint16_t *k = qkv + aq_qkv_at(args, head.sample, head.index, 1, 0), *v = k + args.kv_heads * D;
    const uint16_t *dout = static_cast<const uint16_t *>(args.dout) + aq_out_at(args, head.sample, head.index, first);
    struct own_rows<T, D, SETS> own;
    own.tile = shared + threadIdx.x / 32 * ROWS * STRIDE;
    float dq[SETS][D / 8][4], lse2[SETS][2], delta[SETS][2];
    zero(dq);
    AQ_UNROLL
    for (unsigned half = 0; half < 2 * SETS; half++) { /* of a set, and of the next */
        const uint64_t row = query + g + 8 * half;
        const bool there = row < args.T;
        lse2[half / 2][half % 2] =
            there ? args.lse[(head.sample * args.H + head.index) * args.T + row] * LOG2_E : INFINITY;
        delta[half / 2][half % 2] = there ? args.delta[(blockIdx.z * args.H + head.index) * args.T + row] : 0.0f;
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
            if (tile + i < query + ROWS && tile + i + 15 >= seen)
                backward_queries16<T, D, SETS, MASKED>(args, head, query, tile + i, own, here + i * STRIDE,
                                                 here + (TILE + i) * STRIDE, lse2, delta, dq);
    }
    AQ_UNROLL
    for (unsigned set = 0; set < SETS; set++)
        gradient_store<T, D>(args, head, 0, query + 16 * set, dq[set]);
}

/* ---- Launchers, called by cuda_attention.cu. */

bool aq_attention_mma_can(const struct aq_attention *args)
{
    return !args->starts && !args->both && args->cap == 0.0f && (args->type == AQ_BF16 || args->type == AQ_F16) &&
           (args->D == 64 || args->D == 128) && aq_aligned(args->qkv, 16) && aq_aligned(args->out, 16) &&
           (!args->dout || aq_aligned(args->dout, 16)) && (!args->dqkv || aq_aligned(args->dqkv, 8)) &&
           (!args->dqkv_rounded || aq_aligned(args->dqkv_rounded, 4));
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

/*
 * Sets of a warp, as registers allow on sm_90 (255 a thread; docs/RESULTS.md, "On a GPU"): two, but one in backward
 * with D of 128. There two spill 800 bytes for keys; queries have room, but a processor's shared memory holds only one
 * block, of four warps.
 */
constexpr unsigned FORWARD_SETS = 2;

constexpr unsigned backward_sets(unsigned D)
{
    return D == 64 ? 2 : 1;
}

template <typename T, unsigned D, bool MASKED>
static enum aq_status forward_run(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    return AQ_LAUNCH((mma_forward<T, D, FORWARD_SETS, MASKED>), grid_of(args, args->H, samples),
                     threads_of(FORWARD_SETS), shared_bytes(D, 1), stream, *args);
}

template <typename T, unsigned D, bool MASKED>
static enum aq_status backward_run(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    const dim3 keys = grid_of(args, args->kv_heads, samples), queries = grid_of(args, args->H, samples);
    constexpr unsigned SETS = backward_sets(D);
    AQ_TRY(AQ_LAUNCH((mma_backward_keys<T, D, SETS, MASKED>), keys, threads_of(SETS), shared_bytes(D, 2), stream,
                     *args));
    return AQ_LAUNCH((mma_backward_queries<T, D, SETS, MASKED>), queries, threads_of(SETS), shared_bytes(D, 2), stream,
                     *args);
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
