/*
 * cuda_grad_fused.cu -- an optimizer's fused kernels on a GPU: the arithmetic of optimizer_bodies.h, which is the
 * CPU's.
 *
 * A kernel with sums has a block of AQ_FUSED_LANES threads per piece, each with one of the piece's partial sums; one
 * without has some blocks a piece, for nothing of it depends on its cut. Counts are of integers, and exact in any
 * order. This file is compiled without contraction.
 */
#include "cuda_codec_math.cuh"

#define AQ_ELEMENT static __device__ __forceinline__
AQ_ELEMENT float element_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
AQ_ELEMENT uint16_t element_rounded(float x, bool halves)
{
    return halves ? half_from_float(x) : bfloat_from_float(x);
}
#include "optimizer_bodies.h"

#include "cuda_grad.h"

enum { FUSED_PART = 4096, FUSED_PARTS = AQ_FLAT_PIECE / FUSED_PART };

static __device__ __forceinline__ void add_term(double *sum, double term, bool most)
{
    *sum = !most ? *sum + term : term > *sum ? term : *sum;
}

/* The float behind the last of this block, and its first. */
static __device__ __forceinline__ uint64_t part_of(const struct aq_fused &w, const struct aq_flat_piece &piece,
                                                   uint32_t part, uint32_t floats, uint64_t *begin)
{
    const uint64_t first = piece.first + (uint64_t)part * floats, last = piece.first + piece.count;
    const uint64_t end = first + floats < last ? first + floats : last;
    *begin = first > w.begin ? first : w.begin;
    return end < w.end ? end : w.end;
}

/* The block's partial sums of a piece, one of each a thread. */
template <int SUMS, int MAXIMA>
static __device__ __forceinline__ void fold_lanes(double (*lanes)[AQ_FUSED_LANES], const double *sums, double *out)
{
    const uint32_t lane = threadIdx.x;
    for (int k = 0; k < SUMS; k++)
        lanes[k][lane] = sums[k];
    for (uint32_t width = AQ_FUSED_LANES / 2; width > 0; width /= 2) {
        __syncthreads();
        for (int k = 0; k < SUMS && lane < width; k++)
            add_term(&lanes[k][lane], lanes[k][lane + width], MAXIMA >> k & 1);
    }
    for (int k = 0; k < SUMS && lane == 0; k++) /* who has added the last two */
        out[k] = lanes[k][0];
}

template <int KIND>
__global__ void __launch_bounds__(AQ_FUSED_LANES) fused_elements(const __grid_constant__ struct aq_fused w)
{
    const struct aq_flat_piece piece = w.pieces[w.piece_first + blockIdx.x / FUSED_PARTS];
    uint64_t begin;
    const uint64_t end = part_of(w, piece, blockIdx.x % FUSED_PARTS, FUSED_PART, &begin);
    for (uint64_t i = begin + threadIdx.x; i < end; i += AQ_FUSED_LANES)
        element((enum aq_fused_kind)KIND, true, w, w.values + (uint64_t)AQ_FUSED_VALUES * piece.tensor, i, NULL);
}

template <int KIND, int SUMS, int MAXIMA>
__global__ void __launch_bounds__(AQ_FUSED_LANES) fused_sums(const __grid_constant__ struct aq_fused w)
{
    AQ_SHARED(double, lanes, [SUMS][AQ_FUSED_LANES]);
    const uint32_t index = w.piece_first + blockIdx.x, lane = threadIdx.x;
    const struct aq_flat_piece piece = w.pieces[index];
    double sums[SUMS], terms[AQ_FLAT_SUMS];
    for (int k = 0; k < SUMS; k++)
        sums[k] = 0.0;
    const float *values = w.values + (uint64_t)AQ_FUSED_VALUES * piece.tensor;
    for (uint32_t at = lane; at < piece.count; at += AQ_FUSED_LANES) {
        element((enum aq_fused_kind)KIND, true, w, values, piece.first + at, terms);
        AQ_UNROLL
        for (int k = 0; k < SUMS; k++)
            add_term(&sums[k], terms[k], MAXIMA >> k & 1);
    }
    fold_lanes<SUMS, MAXIMA>(lanes, sums, w.sums + (uint64_t)AQ_FLAT_SUMS * index);
}

/* Whole pieces: draws the mask, and counts how many are in it. */
template <int KIND>
__global__ void __launch_bounds__(AQ_FUSED_LANES) fused_mask(const __grid_constant__ struct aq_fused w)
{
    AQ_SHARED(uint32_t, counts, [AQ_FUSED_LANES / WARP]);
    const uint32_t index = w.piece_first + blockIdx.x, lane = threadIdx.x;
    const struct aq_flat_piece piece = w.pieces[index];
    const float *values = w.values + (uint64_t)AQ_FUSED_VALUES * piece.tensor;
    const float share = values[4];
    uint32_t count = 0;
    for (uint32_t at = 0; at < piece.count; at += AQ_FUSED_LANES) {
        const uint32_t j = at + lane;
        const bool live = j < piece.count;
        if (live) element((enum aq_fused_kind)KIND, false, w, values, piece.first + j, NULL);
        const uint32_t bits =
            __ballot_sync(WHOLE_WARP, live && (share >= 1.0f || uniform(w.key, piece.first + j) < share));
        if (lane % WARP == 0 && live)
            bytes_write(w.mask + (uint64_t)AQ_FUSED_MASK_BYTES * index + j / 8, bits, WARP / 8);
        count += (uint32_t)__popc(bits);
    }
    if (lane % WARP == 0) counts[lane / WARP] = count;
    __syncthreads();
    if (lane > 0) return;
    for (uint32_t warp = 1; warp < AQ_FUSED_LANES / WARP; warp++)
        count += counts[warp];
    w.sums[(uint64_t)AQ_FLAT_SUMS * index] = (double)count;
}

/* Whole pieces: a row of AQ_FUSED_LANES elements at a time, whose places among the masked follow on each other. */
template <int KIND, int SUMS>
__global__ void __launch_bounds__(AQ_FUSED_LANES) fused_sparse(const __grid_constant__ struct aq_fused w)
{
    AQ_SHARED(uint32_t, counts, [AQ_FUSED_LANES / WARP]);
    AQ_SHARED(double, lanes, [SUMS > 0 ? SUMS : 1][AQ_FUSED_LANES]);
    const uint32_t index = w.piece_first + blockIdx.x, lane = threadIdx.x;
    const struct aq_flat_piece piece = w.pieces[index];
    uint64_t row = w.sent_at ? w.sent_at[index] : 0;
    double sums[SUMS > 0 ? SUMS : 1], terms[AQ_FLAT_SUMS];
    for (int k = 0; k < SUMS; k++)
        sums[k] = 0.0;
    for (uint32_t at = 0; at < piece.count; at += AQ_FUSED_LANES) {
        const uint32_t j = at + lane;
        const bool in = j < piece.count && element_masked(w, index, j);
        const uint32_t bits = __ballot_sync(WHOLE_WARP, in);
        if (lane % WARP == 0) counts[lane / WARP] = (uint32_t)__popc(bits);
        __syncthreads();
        uint64_t mine = row + (uint32_t)__popc(bits & ((1u << lane % WARP) - 1u));
        for (uint32_t warp = 0; warp < AQ_FUSED_LANES / WARP; warp++) {
            row += counts[warp];
            if (warp < lane / WARP) mine += counts[warp];
        }
        __syncthreads();
        if (j >= piece.count) continue;
        const uint64_t i = piece.first + j;
        const float g = element_place((enum aq_fused_kind)KIND, w, i, in, mine);
        if (SUMS > 0)
            element_sparse((enum aq_fused_kind)KIND, w, w.values + (uint64_t)AQ_FUSED_VALUES * piece.tensor, i, in, g,
                           terms);
        AQ_UNROLL
        for (int k = 0; k < SUMS; k++)
            add_term(&sums[k], terms[k], false);
    }
    if constexpr (SUMS > 0) fold_lanes<SUMS, 0>(lanes, sums, w.sums + (uint64_t)AQ_FLAT_SUMS * index);
}

template <int KIND>
__global__ void __launch_bounds__(AQ_FUSED_LANES) fused_words(const __grid_constant__ struct aq_fused w)
{
    const uint64_t i = aq_thread_index();
    if (i < w.end) element_word((enum aq_fused_kind)KIND, w, i);
}

__global__ void __launch_bounds__(AQ_FUSED_LANES) fused_rows(const __grid_constant__ struct aq_fused w)
{
    const struct aq_flat_piece piece = w.pieces[w.piece_first + blockIdx.x / FUSED_PARTS];
    const struct aq_fused_matrix matrix = w.matrices[piece.tensor];
    uint64_t begin;
    const uint64_t end = part_of(w, piece, blockIdx.x % FUSED_PARTS, FUSED_PART, &begin);
    for (uint64_t i = begin + threadIdx.x; matrix.columns > 0 && i < end; i += AQ_FUSED_LANES) {
        const uint64_t row = (i - matrix.offset) / matrix.columns, column = (i - matrix.offset) % matrix.columns;
        const float *p = w.factor_p + matrix.p_at + row * w.rank, *q = w.factor_q + matrix.q_at + column;
        float value = p[0] * q[0];
        for (uint32_t k = 1; k < w.rank; k++)
            value += p[k] * q[k * matrix.columns];
        w.out[i] = value;
        if (w.worker_error) w.worker_error[i] -= value;
    }
}

/* ---- launchers; SUMS of 0 has no array of lanes ---- */

template <int KIND, int SUMS, int MAXIMA>
static enum aq_status launch(const struct aq_fused &kernel, cudaStream_t stream)
{
    if constexpr (SUMS > 0)
        return AQ_LAUNCH((fused_sums<KIND, SUMS, MAXIMA>), dim3(kernel.piece_count), AQ_FUSED_LANES, 0, stream, kernel);
    else
        return AQ_LAUNCH(fused_elements<KIND>, dim3(kernel.piece_count * FUSED_PARTS), AQ_FUSED_LANES, 0, stream,
                         kernel);
}

extern "C" enum aq_status aq_cuda_fused(const struct aq_fused *kernel, void *native)
{
    const cudaStream_t stream = (cudaStream_t)native;
    const dim3 pieces(kernel->piece_count), parts(kernel->piece_count * FUSED_PARTS);
    const dim3 words = aq_blocks(kernel->end, AQ_FUSED_LANES);
    if (kernel->piece_count == 0) return AQ_OK;
    switch (kernel->kind) {
#define AQ_FUSED(name, sums, maxima, masks)                                                                            \
    case AQ_FUSED_##name:                                                                                              \
        return launch<AQ_FUSED_##name, sums, maxima>(*kernel, stream);
#define AQ_FUSED_MASK(name)                                                                                            \
    case AQ_FUSED_##name:                                                                                              \
        return AQ_LAUNCH(fused_mask<AQ_FUSED_##name>, pieces, AQ_FUSED_LANES, 0, stream, *kernel);
#define AQ_FUSED_SPARSE(name, sums)                                                                                    \
    case AQ_FUSED_##name:                                                                                              \
        return AQ_LAUNCH((fused_sparse<AQ_FUSED_##name, sums>), pieces, AQ_FUSED_LANES, 0, stream, *kernel);
#define AQ_FUSED_WORDS(name)                                                                                           \
    case AQ_FUSED_##name:                                                                                              \
        return AQ_LAUNCH(fused_words<AQ_FUSED_##name>, words, AQ_FUSED_LANES, 0, stream, *kernel);
#define AQ_FUSED_ROWS(name)                                                                                            \
    case AQ_FUSED_##name:                                                                                              \
        return AQ_LAUNCH(fused_rows, parts, AQ_FUSED_LANES, 0, stream, *kernel);
#include "optimizer_fused.def"
    default:
        return AQ_INVAL;
    }
}
