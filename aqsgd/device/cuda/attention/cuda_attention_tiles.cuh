/*
 * cuda_attention_tiles.cuh -- what the tensor core kernels of attention share (cuda_attention_mma.cu and
 * cuda_attention_wgmma.cu). A warp has 16 rows; a lane has rows g and g + 8 of them, with the columns of cuda_mma.cuh.
 *
 * A block owns OWN queries (or keys) and goes over the other side in tiles of TILE.
 */
#ifndef AQ_CUDA_ATTENTION_TILES_CUH
#define AQ_CUDA_ATTENTION_TILES_CUH

#include <math.h>

#include "cuda_attention.cuh"
#include "cuda_mma.cuh"

constexpr unsigned OWN = 128, TILE = 64;
constexpr float LOG2_E = 1.4426950408889634f;

struct head {
    uint64_t sample, index;
};

static __forceinline__ __device__ struct head head_of(const struct aq_cuda_attention &args)
{
    struct head head = {args.first_sample + blockIdx.z, blockIdx.y};
    return head;
}

/* The rows' scores of a tile of keys become weights below a new top; older sums shrink to it. */
template <unsigned D>
static __forceinline__ __device__ void tile_softmax(const struct aq_cuda_attention &args, uint64_t query, uint64_t key,
                                                    float (&scores)[TILE / 8][4], float (&sums)[D / 8][4],
                                                    float (&top)[2], float (&total)[2])
{
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float scale = args.scale * LOG2_E;
    /* Not all of the warp's queries see all keys: the tile on the diagonal, and at the start of windows. */
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
        const float base = above == -INFINITY ? 0.0f : above; /* the row's window starts in a later tile */
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

#endif
