/*
 * cuda_grad_walk.cu -- an optimizer's walks on a GPU: the arithmetic of optimizer_element.h, which is the CPU's.
 *
 * A walk with sums has a block of AQ_WALK_LANES threads a piece, each with one of the piece's partial sums; one without
 * has some blocks a piece, for nothing of it depends on its cut. This file is compiled without contraction.
 */
#include "device/cuda_launch.cuh"

#define AQ_ELEMENT static __device__ __forceinline__
#include "grad/optimizer_element.h"

#include "grad/cuda_grad.h"

#ifdef AQ_CUDA_HOST
#define __grid_constant__
#endif

enum { WALK_PART = 2048, WALK_PARTS = AQ_FLAT_PIECE / WALK_PART };

static __device__ __forceinline__ void add_term(double *sum, double term, bool most)
{
    *sum = !most ? *sum + term : term > *sum ? term : *sum;
}

/* The float behind the last of this block, and its first. */
static __device__ __forceinline__ uint64_t part_of(const struct aq_walk &w, const struct aq_flat_piece &piece,
                                                   uint32_t part, uint32_t floats, uint64_t *begin)
{
    const uint64_t first = piece.first + (uint64_t)part * floats, last = piece.first + piece.count;
    const uint64_t end = first + floats < last ? first + floats : last;
    *begin = first > w.begin ? first : w.begin;
    return end < w.end ? end : w.end;
}

template <int KIND>
__global__ void __launch_bounds__(AQ_WALK_LANES) walk_elements(const __grid_constant__ struct aq_walk w)
{
    const struct aq_flat_piece piece = w.pieces[w.piece_first + blockIdx.x / WALK_PARTS];
    uint64_t begin;
    const uint64_t end = part_of(w, piece, blockIdx.x % WALK_PARTS, WALK_PART, &begin);
    for (uint64_t i = begin + threadIdx.x; i < end; i += AQ_WALK_LANES)
        element((enum aq_walk_kind)KIND, true, w, w.values + (uint64_t)AQ_WALK_VALUES * piece.tensor, i, NULL);
}

template <int KIND, int SUMS, int MAXIMA>
__global__ void __launch_bounds__(AQ_WALK_LANES) walk_sums(const __grid_constant__ struct aq_walk w)
{
    AQ_SHARED(double, lanes, [SUMS][AQ_WALK_LANES]);
    const uint32_t index = w.piece_first + blockIdx.x, lane = threadIdx.x;
    const struct aq_flat_piece piece = w.pieces[index];
    double sums[SUMS], terms[AQ_FLAT_SUMS];
    for (int k = 0; k < SUMS; k++)
        sums[k] = 0.0;
    for (uint32_t at = lane; at < piece.count; at += AQ_WALK_LANES) {
        element((enum aq_walk_kind)KIND, true, w, w.values + (uint64_t)AQ_WALK_VALUES * piece.tensor, piece.first + at,
                terms);
        AQ_UNROLL
        for (int k = 0; k < SUMS; k++)
            add_term(&sums[k], terms[k], MAXIMA >> k & 1);
    }
    for (int k = 0; k < SUMS; k++)
        lanes[k][lane] = sums[k];
    for (uint32_t width = AQ_WALK_LANES / 2; width > 0; width /= 2) {
        __syncthreads();
        for (int k = 0; k < SUMS && lane < width; k++)
            add_term(&lanes[k][lane], lanes[k][lane + width], MAXIMA >> k & 1);
    }
    if (lane < SUMS) w.sums[(uint64_t)AQ_FLAT_SUMS * index + lane] = lanes[lane][0];
}

/* SUMS of 0 has no array of lanes. */
template <int KIND, int SUMS, int MAXIMA> static enum aq_status launch(const struct aq_walk &walk, cudaStream_t stream)
{
    if constexpr (SUMS > 0)
        return AQ_LAUNCH((walk_sums<KIND, SUMS, MAXIMA>), dim3(walk.piece_count), AQ_WALK_LANES, 0, stream, walk);
    else
        return AQ_LAUNCH(walk_elements<KIND>, dim3(walk.piece_count * WALK_PARTS), AQ_WALK_LANES, 0, stream, walk);
}

extern "C" enum aq_status aq_cuda_walk(const struct aq_walk *walk, void *stream)
{
    if (walk->piece_count == 0) return AQ_OK;
    switch (walk->kind) {
#define AQ_WALK(name, sums, maxima, masks)                                                                             \
    case AQ_WALK_##name:                                                                                               \
        return launch<AQ_WALK_##name, sums, maxima>(*walk, (cudaStream_t)stream);
#include "grad/optimizer_walks.def"
#undef AQ_WALK
    default:
        return AQ_INVAL;
    }
}
