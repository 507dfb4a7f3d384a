/*
 * cuda_attention_wgmma.cu -- causal attention of bf16 or fp16 by Hopper's warpgroup products, D of 64 or 128.
 *
 * The mathematics and the order of work are as in cuda_attention_mma.cu; operands come from shared memory by descriptor
 * (cuda_wgmma.cuh), so that a product of 64 rows costs one instruction and no loads into registers. A block has two
 * warpgroups with 64 rows each. While one of them makes weights, the other's products run; within one, the product that
 * is not needed yet overlaps the arithmetic of the one before.
 *
 * A tile's products are waited for before the barrier that lets the next copy overwrite the tile, in the block of code
 * that issued them: across a branch ptxas would wait for each product by itself. Dropout is left to
 * cuda_attention_mma.cu.
 */
#include "cuda_attention_tiles.cuh"
#include "cuda_wgmma.cuh"

constexpr unsigned GROUPS = OWN / 64, THREADS = 128 * GROUPS;

/*
 * Starts the copy of ROWS rows of D, `stride` elements apart, from `token` on; rows past T become 0. A thread has one
 * piece of every STEP-th row. STEP is a multiple of 8, so that its pieces are swapped alike.
 */
template <unsigned ROWS, unsigned D>
static __forceinline__ __device__ void panels_copy(uint16_t *tile, const uint16_t *from, uint64_t stride,
                                                   uint64_t token, uint64_t T)
{
    constexpr unsigned PIECES = D / 8, STEP = THREADS / PIECES;
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "pieces of one thread lie alike");
    const unsigned row = threadIdx.x / PIECES, column = threadIdx.x % PIECES * 8;
    const unsigned left = token >= T ? 0 : T - token < ROWS ? static_cast<unsigned>(T - token) : ROWS;
    uint16_t *const to = tile + aq_panel_at(ROWS, row, column);
    const uint16_t *const at = from + row * stride + column;
    AQ_UNROLL
    for (unsigned i = 0; i < ROWS / STEP; i++) {
        const bool there = row + i * STEP < left;
        aq_copy(to + i * STEP * AQ_PANEL, there ? at + i * STEP * stride : from, there);
    }
}

/* Copies have arrived, of all threads, and products may read them. */
static __forceinline__ __device__ void tiles_arrive()
{
    aq_copies_wait();
    aq_wgmma_shared();
    __syncthreads();
}

/* products = the warpgroup's 64 rows of a tile of OWN rows times the TILE rows of another tile. */
template <typename T, unsigned D>
static __forceinline__ __device__ void dots(float (&products)[TILE / 8][4], const uint16_t *own, const uint16_t *other)
{
    AQ_UNROLL
    for (unsigned k = 0; k < D; k += 16)
        aq_wgmma_rows<T>(products, own, OWN, other, TILE, k, k > 0);
    aq_wgmma_commit();
}

/* sums += 64 x TILE values, as 16-bit operands, times a tile of TILE rows. */
template <typename T, unsigned D>
static __forceinline__ __device__ void add(float (&sums)[D / 8][4], const unsigned (&values)[TILE / 16][4],
                                           const uint16_t *tile)
{
    aq_wgmma_fence();
    AQ_UNROLL
    for (unsigned n = 0; n < TILE / 16; n++)
        aq_wgmma_columns<T, D>(sums, values[n], tile, TILE, 16 * n);
    aq_wgmma_commit();
}

template <typename T>
static __forceinline__ __device__ void operands(unsigned (&values)[TILE / 16][4], const float (&tile)[TILE / 8][4])
{
    AQ_UNROLL
    for (unsigned n = 0; n < TILE / 16; n++)
        aq_fragment_of_sums<T>(values[n], tile[2 * n], tile[2 * n + 1]);
}

template <unsigned N> static __forceinline__ __device__ void zero(float (&sums)[N][4])
{
    AQ_UNROLL
    for (unsigned n = 0; n < N; n++)
        for (unsigned i = 0; i < 4; i++)
            sums[n][i] = 0.0f;
}

/* ---- Forward. The grid is (tiles of queries, heads, samples); the longest tiles come first. */

template <typename T, unsigned D>
static __global__ void __launch_bounds__(THREADS, D == 64 ? 2 : 1) wgmma_forward(struct aq_cuda_attention args)
{
    AQ_SHARED_DYNAMIC(uint16_t, shared);
    uint16_t *const own = aq_panels_begin(shared), *const tiles = own + OWN * D; /* two of (k, v) */
    const struct head head = head_of(args);
    const unsigned group = threadIdx.x / 128;
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * OWN;
    const uint64_t query = first + threadIdx.x / 32 * 16, rows = first + group * 64; /* the warp's, the warpgroup's */
    const uint64_t stride = aq_qkv_stride(args), end = first + OWN < args.T ? first + OWN : args.T;
    const uint64_t begin = aq_first_key(args, first) / TILE * TILE, seen = aq_first_key(args, rows);
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv);
    const uint16_t *k = qkv + aq_qkv_at(args, head.sample, head.index, 1, 0), *v = k + args.kv_heads * D;
    float sums[D / 8][4], top[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    zero(sums);
    panels_copy<OWN, D>(own, qkv + aq_qkv_at(args, head.sample, head.index, 0, first), stride, first, args.T);
    panels_copy<TILE, D>(tiles, k + begin * stride, stride, begin, args.T);
    panels_copy<TILE, D>(tiles + TILE * D, v + begin * stride, stride, begin, args.T);
    unsigned now = 0;
    for (uint64_t key = begin; key < end; key += TILE, now = 1 - now) {
        const uint16_t *const here = tiles + now * 2 * TILE * D;
        tiles_arrive();
        if (key + TILE < end) {
            uint16_t *const there = tiles + (1 - now) * 2 * TILE * D;
            panels_copy<TILE, D>(there, k + (key + TILE) * stride, stride, key + TILE, args.T);
            panels_copy<TILE, D>(there + TILE * D, v + (key + TILE) * stride, stride, key + TILE, args.T);
        }
        if (key >= rows + 64 || key + TILE <= seen) continue;
        float scores[TILE / 8][4];
        unsigned weights[TILE / 16][4];
        aq_wgmma_settle(scores);
        aq_wgmma_fence();
        dots<T, D>(scores, own + group * 64 * AQ_PANEL, here);
        aq_wgmma_wait<0>();
        aq_wgmma_settle(scores);
        tile_softmax<D>(args, query, key, scores, sums, top, total);
        operands<T>(weights, scores);
        aq_wgmma_settle(sums);
        add<T, D>(sums, weights, here + TILE * D);
        aq_wgmma_wait<0>();
        aq_wgmma_settle(sums);
    }
    forward_store<T, D>(args, head, query, sums, top, total);
}

/* ---- Backward. */

/* Scores become minus infinity where the row and column do not see each other: key and query are `ahead` apart. */
template <bool ROWS_ARE_KEYS>
static __forceinline__ __device__ void hide(const struct aq_cuda_attention &args, int ahead,
                                            float (&scores)[TILE / 8][4])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    AQ_UNROLL
    for (unsigned n = 0; n < TILE / 8; n++)
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = g + (i < 2 ? 0 : 8), column = 8 * n + 2 * t + i % 2;
            const unsigned before = static_cast<unsigned>(ahead) + (ROWS_ARE_KEYS ? column - row : row - column);
            if (before >= args.window) scores[n][i] = -INFINITY;
        }
}

/* The first query of a tile less the first key of a warp, or the reverse: do all of their pairs see each other? */
template <bool ROWS_ARE_KEYS>
static __forceinline__ __device__ bool partly(const struct aq_cuda_attention &args, int ahead)
{
    constexpr int ROWS = 15, COLUMNS = static_cast<int>(TILE) - 1;
    return ahead < (ROWS_ARE_KEYS ? ROWS : COLUMNS) ||
           static_cast<unsigned>(ahead + (ROWS_ARE_KEYS ? COLUMNS : ROWS)) >= args.window;
}

/*
 * dk and dv of the block's keys. The grid is (tiles of keys, heads of keys, samples): the first keys are seen by most
 * queries. A step is a tile of queries of one of the heads that share the keys.
 */
template <typename T, unsigned D>
static __global__ void __launch_bounds__(THREADS, 1) wgmma_backward_keys(struct aq_cuda_attention args)
{
    AQ_SHARED(float, stats, [2][2][TILE]); /* lse and delta, twice */
    AQ_SHARED_DYNAMIC(uint16_t, shared);   /* k and v of the block's own keys, then two of (q, dout) */
    uint16_t *const own = aq_panels_begin(shared), *const tiles = own + 2 * OWN * D;
    const unsigned share = args.H / args.kv_heads, group = threadIdx.x / 128, t = threadIdx.x % 4;
    const struct head own_head = {args.first_sample + blockIdx.z, static_cast<uint64_t>(blockIdx.y) * share};
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * OWN, C = static_cast<uint64_t>(args.H) * D;
    const uint64_t key = first + threadIdx.x / 32 * 16, rows = first + group * 64, stride = aq_qkv_stride(args);
    const unsigned end = static_cast<unsigned>(aq_queries_end(args, first + OWN - 1));
    const unsigned tiles_each = (end - static_cast<unsigned>(first) + TILE - 1) / TILE, steps = share * tiles_each;
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv), *douts = static_cast<const uint16_t *>(args.dout);
    const uint16_t *k = qkv + aq_qkv_at(args, own_head.sample, own_head.index, 1, first);
    float dk[D / 8][4], dv[D / 8][4];
    zero(dk);
    zero(dv);
    panels_copy<OWN, D>(own, k, stride, first, args.T);
    panels_copy<OWN, D>(own + OWN * D, k + args.kv_heads * D, stride, first, args.T);
    const uint16_t *q = qkv + aq_qkv_at(args, own_head.sample, own_head.index, 0, first);
    const uint16_t *dout = douts + aq_out_at(args, own_head.sample, own_head.index, first);
    panels_copy<TILE, D>(tiles, q, stride, first, args.T);
    panels_copy<TILE, D>(tiles + TILE * D, dout, C, first, args.T);
    stats_load(args, own_head, first, stats[0][0], stats[0][1]);
    for (unsigned step = 0; step < steps; step++) {
        const uint64_t tile = first + static_cast<uint64_t>(step % tiles_each) * TILE;
        const unsigned now = step % 2, next = 1 - now;
        const uint16_t *const here = tiles + now * 2 * TILE * D;
        tiles_arrive();
        if (step + 1 < steps) {
            uint16_t *const there = tiles + next * 2 * TILE * D;
            const struct head then = {own_head.sample, own_head.index + (step + 1) / tiles_each};
            const uint64_t after = first + static_cast<uint64_t>((step + 1) % tiles_each) * TILE;
            q = qkv + aq_qkv_at(args, then.sample, then.index, 0, after);
            dout = douts + aq_out_at(args, then.sample, then.index, after);
            panels_copy<TILE, D>(there, q, stride, after, args.T);
            panels_copy<TILE, D>(there + TILE * D, dout, C, after, args.T);
            stats_load(args, then, after, stats[next][0], stats[next][1]);
        }
        if (tile + TILE <= rows || tile >= aq_queries_end(args, rows + 63)) continue;
        const int ahead = static_cast<int>(tile - key);
        float scores[TILE / 8][4], products[TILE / 8][4];
        unsigned weights[TILE / 16][4], slopes[TILE / 16][4];
        aq_wgmma_settle(scores);
        aq_wgmma_settle(products);
        aq_wgmma_fence();
        dots<T, D>(scores, own + group * 64 * AQ_PANEL, here);
        dots<T, D>(products, own + OWN * D + group * 64 * AQ_PANEL, here + TILE * D);
        aq_wgmma_wait<1>();
        aq_wgmma_settle(scores);
        if (partly<true>(args, ahead)) hide<true>(args, ahead, scores);
        AQ_UNROLL
        for (unsigned n = 0; n < TILE / 8; n++)
            for (unsigned i = 0; i < 4; i++)
                scores[n][i] =
                    aq_exp2(fmaf(scores[n][i], args.scale * LOG2_E, -stats[now][0][8 * n + 2 * t + i % 2]));
        operands<T>(weights, scores);
        aq_wgmma_settle(dv);
        add<T, D>(dv, weights, here + TILE * D);
        aq_wgmma_wait<1>();
        aq_wgmma_settle(products);
        AQ_UNROLL
        for (unsigned n = 0; n < TILE / 8; n++)
            for (unsigned i = 0; i < 4; i++)
                products[n][i] =
                    scores[n][i] * (products[n][i] - stats[now][1][8 * n + 2 * t + i % 2]) * args.scale;
        operands<T>(slopes, products);
        aq_wgmma_settle(dk);
        add<T, D>(dk, slopes, here);
        aq_wgmma_wait<0>();
        aq_wgmma_settle(dk);
        aq_wgmma_settle(dv);
    }
    gradient_store<T, D>(args, own_head, 1, key, dk);
    gradient_store<T, D>(args, own_head, 2, key, dv);
}

/* dq of the block's queries. The grid is forward's. */
template <typename T, unsigned D>
static __global__ void __launch_bounds__(THREADS, D == 64 ? 2 : 1) wgmma_backward_queries(struct aq_cuda_attention args)
{
    AQ_SHARED_DYNAMIC(uint16_t, shared); /* q and dout of the block's own queries, then two of (k, v) */
    uint16_t *const own = aq_panels_begin(shared), *const tiles = own + 2 * OWN * D;
    const struct head head = head_of(args);
    const unsigned group = threadIdx.x / 128, g = threadIdx.x % 32 / 4;
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * OWN;
    const uint64_t query = first + threadIdx.x / 32 * 16, rows = first + group * 64;
    const uint64_t C = static_cast<uint64_t>(args.H) * D, end = first + OWN < args.T ? first + OWN : args.T;
    const uint64_t stride = aq_qkv_stride(args), begin = aq_first_key(args, first) / TILE * TILE;
    const uint64_t seen = aq_first_key(args, rows);
    const uint16_t *qkv = static_cast<const uint16_t *>(args.qkv);
    const uint16_t *k = qkv + aq_qkv_at(args, head.sample, head.index, 1, 0), *v = k + args.kv_heads * D;
    const uint16_t *dout = static_cast<const uint16_t *>(args.dout) + aq_out_at(args, head.sample, head.index, first);
    float dq[D / 8][4], lse2[2], delta[2];
    zero(dq);
    AQ_UNROLL
    for (unsigned half = 0; half < 2; half++) {
        const uint64_t row = query + g + 8 * half;
        const bool there = row < args.T;
        lse2[half] = there ? args.lse[(head.sample * args.H + head.index) * args.T + row] * LOG2_E : INFINITY;
        delta[half] = there ? args.delta[(blockIdx.z * args.H + head.index) * args.T + row] : 0.0f;
    }
    panels_copy<OWN, D>(own, qkv + aq_qkv_at(args, head.sample, head.index, 0, first), stride, first, args.T);
    panels_copy<OWN, D>(own + OWN * D, dout, C, first, args.T);
    panels_copy<TILE, D>(tiles, k + begin * stride, stride, begin, args.T);
    panels_copy<TILE, D>(tiles + TILE * D, v + begin * stride, stride, begin, args.T);
    unsigned now = 0;
    for (uint64_t tile = begin; tile < end; tile += TILE, now = 1 - now) {
        const uint16_t *const here = tiles + now * 2 * TILE * D;
        tiles_arrive();
        if (tile + TILE < end) {
            uint16_t *const there = tiles + (1 - now) * 2 * TILE * D;
            panels_copy<TILE, D>(there, k + (tile + TILE) * stride, stride, tile + TILE, args.T);
            panels_copy<TILE, D>(there + TILE * D, v + (tile + TILE) * stride, stride, tile + TILE, args.T);
        }
        if (tile >= rows + 64 || tile + TILE <= seen) continue;
        const int ahead = static_cast<int>(query - tile);
        float scores[TILE / 8][4], products[TILE / 8][4];
        unsigned slopes[TILE / 16][4];
        aq_wgmma_settle(scores);
        aq_wgmma_settle(products);
        aq_wgmma_fence();
        dots<T, D>(scores, own + group * 64 * AQ_PANEL, here);
        dots<T, D>(products, own + OWN * D + group * 64 * AQ_PANEL, here + TILE * D);
        aq_wgmma_wait<1>();
        aq_wgmma_settle(scores);
        if (partly<false>(args, ahead)) hide<false>(args, ahead, scores);
        AQ_UNROLL
        for (unsigned n = 0; n < TILE / 8; n++)
            for (unsigned i = 0; i < 4; i++)
                scores[n][i] = aq_exp2(fmaf(scores[n][i], args.scale * LOG2_E, -lse2[i / 2]));
        aq_wgmma_wait<0>();
        aq_wgmma_settle(products);
        AQ_UNROLL
        for (unsigned n = 0; n < TILE / 8; n++)
            for (unsigned i = 0; i < 4; i++)
                products[n][i] = scores[n][i] * (products[n][i] - delta[i / 2]) * args.scale;
        operands<T>(slopes, products);
        aq_wgmma_settle(dq);
        add<T, D>(dq, slopes, here);
        aq_wgmma_wait<0>();
        aq_wgmma_settle(dq);
    }
    gradient_store<T, D>(args, head, 0, query, dq);
}

/* ---- Launchers, called by cuda_attention.cu. */

bool aq_attention_wgmma_can(const struct aq_attention *args)
{
    return aq_attention_mma_can(args) && !args->dropout.keys && aq_wgmma_here();
}

/* Bytes of `own` tiles of the block's own rows and of two pairs of tiles of the others. */
static size_t shared_bytes(unsigned D, unsigned own)
{
    return sizeof(uint16_t) * D * (own * OWN + 4 * TILE) + AQ_PANEL_SLACK;
}

static dim3 grid_of(const struct aq_cuda_attention *args, unsigned heads, uint64_t samples)
{
    return dim3(static_cast<unsigned>((args->T + OWN - 1) / OWN), heads, static_cast<unsigned>(samples));
}

template <typename T, unsigned D>
static enum aq_status forward_run(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    return AQ_LAUNCH((wgmma_forward<T, D>), grid_of(args, args->H, samples), THREADS, shared_bytes(D, 1), stream,
                     *args);
}

template <typename T, unsigned D>
static enum aq_status backward_run(const struct aq_cuda_attention *args, uint64_t samples, cudaStream_t stream)
{
    const dim3 keys = grid_of(args, args->kv_heads, samples), queries = grid_of(args, args->H, samples);
    AQ_TRY(AQ_LAUNCH((wgmma_backward_keys<T, D>), keys, THREADS, shared_bytes(D, 2), stream, *args));
    return AQ_LAUNCH((wgmma_backward_queries<T, D>), queries, THREADS, shared_bytes(D, 2), stream, *args);
}

enum aq_status aq_attention_wgmma(const struct aq_cuda_attention *args, enum aq_element type, uint64_t samples,
                                  cudaStream_t stream)
{
    if (args->D == 64)
        return type == AQ_F16 ? forward_run<aq_half, 64>(args, samples, stream)
                              : forward_run<uint16_t, 64>(args, samples, stream);
    return type == AQ_F16 ? forward_run<aq_half, 128>(args, samples, stream)
                          : forward_run<uint16_t, 128>(args, samples, stream);
}

enum aq_status aq_attention_wgmma_backward(const struct aq_cuda_attention *args, enum aq_element type,
                                           uint64_t samples, cudaStream_t stream)
{
    if (args->D == 64)
        return type == AQ_F16 ? backward_run<aq_half, 64>(args, samples, stream)
                              : backward_run<uint16_t, 64>(args, samples, stream);
    return type == AQ_F16 ? backward_run<aq_half, 128>(args, samples, stream)
                          : backward_run<uint16_t, 128>(args, samples, stream);
}
