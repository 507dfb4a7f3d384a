/*
 * cuda_embedding.cu -- token and position embedding, forward and backward.
 *
 * Backward adds rows that share a token. Atomic additions would come in any order; here the first row that names a
 * token owns it: its block finds the token's other rows and adds them in ascending order, so that the gradients are
 * the CPU's bits (cpu_pieces.c). A block finds out whether it owns its token by looking back until it meets the token
 * again; that is rows^2 / 2 comparisons of a word at most, in the cache, a small part of what the rows themselves cost.
 */
#include "cuda_common.cuh"

constexpr unsigned EMBED_THREADS = 256, EMBED_WARPS = EMBED_THREADS / 32;

template <int W>
static __global__ void __launch_bounds__(EMBED_THREADS) embedding(struct aq_embedding args, struct aq_cuda_mask mask)
{
    const uint64_t row = blockIdx.x, C = args.C, position = row % args.T;
    const float *token = args.token_table + static_cast<uint64_t>(args.tokens[row]) * C;
    const float *place = args.position_table ? args.position_table + aq_place(args.starts, row, args.T) * C : nullptr;
    float *x = args.x + row * C;
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

enum aq_status aq_cuda_embedding(const struct aq_embedding *args, void *, struct CUstream_st *stream)
{
    const uint64_t rows = args->samples * args->T;
    if (rows == 0 || args->C == 0) return AQ_OK;
    const bool fours = args->C % 4 == 0 && aq_fours(args->token_table, AQ_F32) &&
                       aq_fours(args->position_table, AQ_F32) && aq_fours(args->x, AQ_F32);
    const struct aq_cuda_mask mask = aq_cuda_mask_of(&args->dropout);
    const unsigned threads = aq_row_grid_of(1, args->C, fours ? 4 : 1).threads;
    if (fours) return AQ_LAUNCH(embedding<4>, aq_blocks(rows, 1), threads, 0, stream, *args, mask);
    return AQ_LAUNCH(embedding<1>, aq_blocks(rows, 1), threads, 0, stream, *args, mask);
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

/* Does an earlier row name the token? The same answer in every thread. */
static __forceinline__ __device__ bool named_before(const int32_t *tokens, uint64_t row, int32_t token)
{
    for (uint64_t end = row; end > 0;) {
        const uint64_t first = end > 4 * EMBED_THREADS ? end - 4 * EMBED_THREADS : 0;
        int found = 0;
        for (uint64_t i = first + threadIdx.x; i < end; i += EMBED_THREADS)
            found |= __ldg(tokens + i) == token;
        if (__syncthreads_or(found)) return true;
        end = first;
    }
    return false;
}

/* Those rows of first .. first + EMBED_THREADS - 1 that name the token, ascending; how many. */
static __forceinline__ __device__ unsigned rows_of(const int32_t *tokens, uint64_t rows, uint64_t first, int32_t token,
                                                   unsigned *list)
{
    AQ_SHARED(unsigned, counts, [EMBED_WARPS]);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint64_t row = first + threadIdx.x;
    const bool named = row < rows && __ldg(tokens + row) == token;
    const unsigned lanes = __ballot_sync(AQ_ALL_LANES, named);
    if (lane == 0) counts[warp] = static_cast<unsigned>(__popc(lanes));
    __syncthreads();
    unsigned before = 0, total = 0;
    for (unsigned i = 0; i < EMBED_WARPS; i++) {
        before += i < warp ? counts[i] : 0;
        total += counts[i];
    }
    if (named) list[before + static_cast<unsigned>(__popc(lanes & ((1u << lane) - 1)))] = threadIdx.x;
    __syncthreads();
    return total;
}

template <int W>
static __global__ void __launch_bounds__(EMBED_THREADS)
    token_backward(struct aq_embedding_backward args, struct aq_cuda_mask mask)
{
    AQ_SHARED(unsigned, list, [EMBED_THREADS]);
    const uint64_t row = blockIdx.x, rows = gridDim.x;
    const int32_t token = args.tokens[row];
    if (named_before(args.tokens, row, token)) return;
    float *gradient = args.token_gradient + static_cast<uint64_t>(token) * args.C;
    for (uint64_t first = row; first < rows; first += EMBED_THREADS) {
        const unsigned count = rows_of(args.tokens, rows, first, token, list);
        if (count == 0) continue;
        for (uint64_t c = threadIdx.x * W; c < args.C; c += EMBED_THREADS * W) {
            float sums[W];
            aq_load_wide(gradient + c, sums);
            for (unsigned i = 0; i < count; i++)
                add_row(args, mask, first + list[i], c, sums);
            aq_store_wide(gradient + c, sums);
        }
        __syncthreads();
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
                       aq_fours(args->position_gradient, AQ_F32);
    return fours ? embedding_backward_wide<4>(args, stream) : embedding_backward_wide<1>(args, stream);
}
