/*
 * cuda_embedding.cu -- token and position embedding, forward and backward.
 *
 * Backward adds rows that share a token. Atomic additions would come in any order; here the first row that names a
 * token owns it: its block finds the token's other rows and adds them in ascending order, so that the gradients are
 * the CPU's bits (cpu_pieces.c). A block finds out whether it owns its token by looking back until it meets the token
 * again, 4,096 rows in one go: rows^2 comparisons of a word at most, in the cache.
 */
#include "cuda_common.cuh"

constexpr unsigned EMBED_THREADS = 256, EMBED_WARPS = EMBED_THREADS / 32;

template <typename X, int W>
static __global__ void __launch_bounds__(EMBED_THREADS) embedding(struct aq_embedding args, struct aq_cuda_mask mask)
{
    const uint64_t row = blockIdx.x, C = args.C, position = row % args.T;
    const float *token = args.token_table + static_cast<uint64_t>(args.tokens[row]) * C;
    const float *place = args.position_table ? args.position_table + aq_place(args.starts, row, args.T) * C : nullptr;
    X *x = static_cast<X *>(args.x) + row * C;
    for (uint64_t c = threadIdx.x * W; c < C; c += blockDim.x * W) {
        float values[W], places[W] = {0.0f}, before[W] = {0.0f}, factors[W];
        aq_load_wide(token + c, values);
        if (place) aq_load_wide(place + c, places);
        if (args.add) aq_load_wide(x + c, before);
        aq_mask_wide(mask, row / args.T, position * C + c, factors);
        for (int i = 0; i < W; i++)
            values[i] = (args.scale != 0.0f ? values[i] * args.scale : before[i] + values[i] + places[i]) * factors[i];
        aq_store_wide(x + c, values);
    }
}

template <typename X> static enum aq_status embedding_typed(const struct aq_embedding *args, cudaStream_t stream)
{
    const uint64_t rows = args->samples * args->T;
    const bool fours = args->C % 4 == 0 && aq_fours(args->token_table, AQ_F32) &&
                       aq_fours(args->position_table, AQ_F32) && aq_fours(args->x, args->x_type);
    const struct aq_cuda_mask mask = aq_cuda_mask_of(&args->dropout);
    const unsigned threads = aq_row_grid_of(1, args->C, fours ? 4 : 1).threads;
    if (fours) return AQ_LAUNCH((embedding<X, 4>), aq_blocks(rows, 1), threads, 0, stream, *args, mask);
    return AQ_LAUNCH((embedding<X, 1>), aq_blocks(rows, 1), threads, 0, stream, *args, mask);
}

enum aq_status aq_cuda_embedding(const struct aq_embedding *args, void *, struct CUstream_st *stream)
{
    if (args->samples * args->T == 0 || args->C == 0) return AQ_OK;
    return args->x_type == AQ_BF16 ? embedding_typed<uint16_t>(args, stream) : embedding_typed<float>(args, stream);
}

/* sums[c] += dropout'(dx[row][c]) for this thread's columns. */
template <int W>
static __forceinline__ __device__ void add_row(const struct aq_embedding_backward &args,
                                               const struct aq_cuda_mask &mask, uint64_t row, uint64_t c,
                                               float (&sums)[W])
{
    float values[W], factors[W];
    aq_load_wide(args.dx + row * args.C + c, values);
    aq_mask_wide(mask, row / args.T, row % args.T * args.C + c, factors);
    for (int i = 0; i < W; i++)
        sums[i] += args.scale != 0.0f ? values[i] * factors[i] * args.scale : values[i] * factors[i];
}

constexpr unsigned SCAN_LOADS = 4, ROWS_AT_ONCE = 8; /* loads of a thread that are on their way together */

/* Rows that a block looks at in one go. */
template <int W> constexpr unsigned SCAN_ROWS = W *EMBED_THREADS *SCAN_LOADS;

/*
 * Which of the rows `first` .. first + SCAN_ROWS - 1, within [begin, end), name the token: bit i of
 * found[p] is row (p EMBED_THREADS + thread) W + i of them. first is a multiple of W, and end at most `rows`.
 */
template <int W>
static __forceinline__ __device__ void scan_rows(const int32_t *tokens, unsigned rows, unsigned first, unsigned begin,
                                                 unsigned end, int32_t token, unsigned (&found)[SCAN_LOADS])
{
    int32_t named[SCAN_LOADS][W] = {};
    AQ_UNROLL
    for (unsigned p = 0; p < SCAN_LOADS; p++) {
        const unsigned at = first + (p * EMBED_THREADS + threadIdx.x) * W;
        if constexpr (W == 4) {
            if (at + W <= rows) {
                const int4 four = __ldg(reinterpret_cast<const int4 *>(tokens + at));
                named[p][0] = four.x;
                named[p][1] = four.y;
                named[p][2] = four.z;
                named[p][3] = four.w;
            } else {
                AQ_UNROLL
                for (unsigned i = 0; i < W; i++)
                    if (at + i < rows) named[p][i] = __ldg(tokens + at + i);
            }
        } else if (at < rows) {
            named[p][0] = __ldg(tokens + at);
        }
    }
    AQ_UNROLL
    for (unsigned p = 0; p < SCAN_LOADS; p++) {
        const unsigned at = first + (p * EMBED_THREADS + threadIdx.x) * W;
        found[p] = 0;
        AQ_UNROLL
        for (unsigned i = 0; i < W; i++)
            found[p] |= (at + i - begin < end - begin && named[p][i] == token) ? 1u << i : 0;
    }
}

/* Does an earlier row name the token? The same answer in every thread. */
template <int W>
static __forceinline__ __device__ bool named_before(const int32_t *tokens, unsigned rows, unsigned row, int32_t token)
{
    for (unsigned first = row / SCAN_ROWS<W> * SCAN_ROWS<W>;; first -= SCAN_ROWS<W>) {
        unsigned found[SCAN_LOADS], any = 0;
        scan_rows<W>(tokens, rows, first, 0, row, token, found);
        for (unsigned p = 0; p < SCAN_LOADS; p++)
            any |= found[p];
        if (__syncthreads_or(static_cast<int>(any))) return true;
        if (first == 0) return false;
    }
}

/* Those rows of first .. first + SCAN_ROWS - 1, from `row` on, that name the token, ascending; how many. */
template <int W>
static __forceinline__ __device__ unsigned rows_of(const int32_t *tokens, unsigned rows, unsigned first, unsigned row,
                                                   int32_t token, uint16_t *list)
{
    AQ_SHARED(unsigned, counts, [SCAN_LOADS * EMBED_WARPS]);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, below = (1u << lane) - 1;
    unsigned found[SCAN_LOADS], before[SCAN_LOADS] = {}, any = 0, total = 0;
    scan_rows<W>(tokens, rows, first, row, rows, token, found);
    for (unsigned p = 0; p < SCAN_LOADS; p++)
        any |= found[p];
    if (!__syncthreads_or(static_cast<int>(any))) return 0;
    for (unsigned p = 0; p < SCAN_LOADS; p++) {
        unsigned count = 0;
        for (unsigned i = 0; i < W; i++) {
            const unsigned lanes = __ballot_sync(AQ_ALL_LANES, found[p] >> i & 1);
            before[p] += static_cast<unsigned>(__popc(lanes & below));
            count += static_cast<unsigned>(__popc(lanes));
        }
        if (lane == 0) counts[p * EMBED_WARPS + warp] = count;
    }
    __syncthreads();
    for (unsigned i = 0; i < SCAN_LOADS * EMBED_WARPS; i++) {
        if (i % EMBED_WARPS == warp) before[i / EMBED_WARPS] += total;
        total += counts[i];
    }
    for (unsigned p = 0; p < SCAN_LOADS; p++)
        for (unsigned i = 0; i < W; i++)
            if (found[p] >> i & 1) list[before[p]++] = static_cast<uint16_t>((p * EMBED_THREADS + threadIdx.x) * W + i);
    __syncthreads();
    return total;
}

/* The same without dropout for the rows of a list, which are added in its order. */
template <int W>
static __forceinline__ __device__ void add_rows(const struct aq_embedding_backward &args, unsigned first,
                                                const uint16_t *list, unsigned count, uint64_t c, float (&sums)[W])
{
    const float scale = args.scale != 0.0f ? args.scale : 1.0f;
    for (unsigned i = 0; i < count; i += ROWS_AT_ONCE) {
        float values[ROWS_AT_ONCE][W];
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++)
            if (i + r < count) aq_load_wide(args.dx + (first + list[i + r]) * args.C + c, values[r]);
        AQ_UNROLL
        for (unsigned r = 0; r < ROWS_AT_ONCE; r++)
            for (int j = 0; i + r < count && j < W; j++)
                sums[j] += values[r][j] * scale;
    }
}

template <int W>
static __global__ void __launch_bounds__(EMBED_THREADS, 3)
    token_backward(struct aq_embedding_backward args, struct aq_cuda_mask mask)
{
    AQ_SHARED(uint16_t, list, [SCAN_ROWS<W>]);
    const unsigned row = blockIdx.x, rows = gridDim.x;
    const int32_t token = args.tokens[row];
    if (named_before<W>(args.tokens, rows, row, token)) return;
    float *gradient = args.token_gradient + static_cast<uint64_t>(token) * args.C;
    for (unsigned first = row / SCAN_ROWS<W> * SCAN_ROWS<W>; first < rows; first += SCAN_ROWS<W>) {
        const unsigned count = rows_of<W>(args.tokens, rows, first, row, token, list);
        for (uint64_t c = threadIdx.x * W; count > 0 && c < args.C; c += EMBED_THREADS * W) {
            float sums[W];
            aq_load_wide(gradient + c, sums);
            if (!mask.keys) add_rows(args, first, list, count, c, sums);
            for (unsigned i = 0; mask.keys && i < count; i++)
                add_row(args, mask, first + list[i], c, sums);
            aq_store_wide(gradient + c, sums);
        }
    }
}

template <int W>
static __global__ void __launch_bounds__(EMBED_THREADS)
    position_backward(struct aq_embedding_backward args, struct aq_cuda_mask mask)
{
    const uint64_t position = blockIdx.x;
    float *gradient = args.position_gradient + position * args.C;
    for (uint64_t c = threadIdx.x * W; c < args.C; c += blockDim.x * W) {
        float sums[W];
        aq_load_wide(gradient + c, sums);
        for (uint64_t sample = 0; sample < args.samples; sample++) {
            const uint64_t first = sample * args.T, end = args.starts ? args.T : position + 1;
            for (uint64_t t = position; t < end; t++) /* of samples with parts: wherever one has that place */
                if (aq_place(args.starts, first + t, args.T) == position) add_row(args, mask, first + t, c, sums);
        }
        aq_store_wide(gradient + c, sums);
    }
}

template <int W>
static enum aq_status embedding_backward_wide(const struct aq_embedding_backward *args, cudaStream_t stream)
{
    const struct aq_cuda_mask mask = aq_cuda_mask_of(&args->dropout);
    const unsigned threads = aq_row_grid_of(1, args->C, W).threads;
    if (args->token_gradient)
        AQ_TRY(
            AQ_LAUNCH(token_backward<W>, aq_blocks(args->samples * args->T, 1), EMBED_THREADS, 0, stream, *args, mask));
    if (!args->position_gradient) return AQ_OK;
    return AQ_LAUNCH(position_backward<W>, aq_blocks(args->T, 1), threads, 0, stream, *args, mask);
}

enum aq_status aq_cuda_embedding_backward(const struct aq_embedding_backward *args, void *, struct CUstream_st *stream)
{
    const uint64_t rows = args->samples * args->T;
    if (rows == 0 || args->C == 0) return AQ_OK;
    if (rows > 0x7fffffffu)
        return aq_fail(AQ_INVAL, "device", "embedding of %llu tokens: at most 2147483647; take smaller micro-batches",
                       static_cast<unsigned long long>(rows));
    const bool fours = args->C % 4 == 0 && aq_fours(args->dx, AQ_F32) && aq_fours(args->token_gradient, AQ_F32) &&
                       aq_fours(args->position_gradient, AQ_F32) && aq_aligned(args->tokens, 4 * sizeof *args->tokens);
    return fours ? embedding_backward_wide<4>(args, stream) : embedding_backward_wide<1>(args, stream);
}
