/*
 * test_cuda_host.cu -- kernels that test_cuda_host.c runs under the launch emulation: right ones and wrong ones.
 */
#include "cuda_launch.cuh"

/* Sums of rows of 256 by a tree in shared memory, then by shuffles; dynamic shared memory for the tail. */
static __global__ void __launch_bounds__(256) tree_sum(const float *x, float *sums)
{
    AQ_SHARED(float, tile, [256]);
    AQ_SHARED_DYNAMIC(float, tail);
    const unsigned t = threadIdx.x;
    tile[t] = __ldg(x + aq_thread_index());
    __syncthreads();
    for (unsigned width = 128; width >= 32; width /= 2) {
        if (t < width) tile[t] = __fadd_rn(tile[t], tile[t + width]);
        __syncthreads();
    }
    if (t < 32) {
        float sum = tile[t];
        for (int lanes = 16; lanes > 0; lanes /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        tail[t] = sum;
        __syncwarp();
        if (t == 0) sums[blockIdx.x] = tail[31];
    }
}

extern "C" enum aq_status cuda_host_tree_sum(const float *x, uint64_t rows, float *sums)
{
    return AQ_LAUNCH(tree_sum, aq_blocks(rows, 1), 256, 32 * sizeof(float), nullptr, x, sums);
}

/* Each warp function once; lane i of the one warp writes its row of 16 results. */
static __global__ void warp_functions(uint32_t *out)
{
    const int lane = (int)threadIdx.x;
    const uint32_t all = 0xffffffffu;
    uint32_t *row = out + 16 * lane;
    row[0] = (uint32_t)__shfl_sync(all, lane * 10, 5);
    row[1] = (uint32_t)__shfl_sync(all, lane * 10, 3, 8);
    row[2] = (uint32_t)__shfl_up_sync(all, lane, 3);
    row[3] = (uint32_t)__shfl_up_sync(all, lane, 3, 8);
    row[4] = (uint32_t)__shfl_down_sync(all, lane, 5);
    row[5] = (uint32_t)__shfl_xor_sync(all, lane, 21);
    row[6] = __ballot_sync(all, lane % 3 == 0);
    row[7] = (uint32_t)__any_sync(all, lane == 7) * 2 + (uint32_t)__any_sync(all, lane == 32);
    row[8] = (uint32_t)__all_sync(all, lane < 32) * 2 + (uint32_t)__all_sync(all, lane < 31);
    row[9] = __match_any_sync(all, lane / 5);
    row[10] = __reduce_add_sync(all, (unsigned)lane);
    row[11] = (uint32_t)__reduce_min_sync(all, lane - 20);
    row[12] = __reduce_max_sync(all, (unsigned)lane ^ 13u);
    row[13] = lane < 16 ? (uint32_t)__shfl_xor_sync(0xffffu, lane, 1) : 0;
    row[14] = (uint32_t)__double_as_longlong(__shfl_sync(all, (double)lane, 1));
    row[15] = (uint32_t)(__double_as_longlong(__shfl_sync(all, (double)lane, 1)) >> 32);
}

extern "C" enum aq_status cuda_host_warp_functions(uint32_t *out)
{
    return AQ_LAUNCH(warp_functions, 1, 32, 0, nullptr, out);
}

/* Coordinates of every thread of a grid of three dimensions, and a count of each by atomics. */
static __global__ void coordinates(uint32_t *counts, uint32_t *order)
{
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned size = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(counts + block * size + thread, 1u);
    if (thread == 0) order[block] = atomicAdd(counts + gridDim.x * gridDim.y * gridDim.z * size, 1u);
    const int votes = __syncthreads_count(thread % 3 == 0);
    if ((unsigned)votes != (size + 2) / 3) atomicExch(counts, 99u);
    if (__syncthreads_or(thread == size) || !__syncthreads_and(thread < size)) atomicMax(counts, 98u);
}

extern "C" enum aq_status cuda_host_coordinates(uint32_t *counts, uint32_t *order)
{
    return AQ_LAUNCH(coordinates, dim3(3, 4, 2), dim3(5, 2, 3), 0, nullptr, counts, order);
}

/* A sum in shared memory without the barrier that it needs: its result depends on the order of threads. */
static __global__ void forgets_barrier(float *out)
{
    AQ_SHARED(float, tile, [64]);
    tile[threadIdx.x] = (float)threadIdx.x;
    out[threadIdx.x] = tile[63 - threadIdx.x];
}

extern "C" enum aq_status cuda_host_forgets_barrier(float *out)
{
    return AQ_LAUNCH(forgets_barrier, 1, 64, 0, nullptr, out);
}

/* A little more than a thread's stack. */
static __device__ __attribute__((noinline)) float deep(int last)
{
    volatile char room[64 << 10];
    for (int i = 0; i <= last; i++)
        room[i] = (char)i;
    return (float)room[last];
}

/* What each kind of mistake looks like; 0 is none. */
static __global__ void mistake(int kind, float *out)
{
    AQ_SHARED_DYNAMIC(float, tile);
    const unsigned t = threadIdx.x, all = 0xffffffffu;
    float value = 0.0f;
    if (kind == 1) {
        if (t < 32) __syncthreads();
    } else if (kind == 2) {
        if (t % 2)
            __syncthreads();
        else
            __syncthreads();
    } else if (kind == 3) {
        if (t % 32 < 16) value = __shfl_down_sync(all, 1.0f, 1);
    } else if (kind == 4) {
        value = __shfl_sync(0xffffu, 1.0f, 0);
    } else if (kind == 5) {
        tile[blockDim.x + t] = 1.0f;
    } else if (kind == 6) {
        if (t < 8) return;
        __syncwarp();
    } else if (kind == 7) {
        if (t % 2)
            value = __shfl_xor_sync(all, 1.0f, 1);
        else
            value = __shfl_xor_sync(all, 2.0f, 1);
    } else if (kind == 8) {
        if (t == 9) value = deep((64 << 10) - 1);
    }
    __syncthreads();
    out[t] = value;
}

/* Shared memory between threads: 0 to 2 are right; each of the others lacks a fence, or reads what nobody wrote. */
static __global__ void fences(int kind, float *out)
{
    AQ_SHARED(float, tile, [64]);
    AQ_SHARED(unsigned, votes, [1]);
    const unsigned t = threadIdx.x, lane = t % 32, next = t - lane + (lane + 1) % 32,
                   half = lane < 16 ? 0xffffu : ~0xffffu;
    if (t == 0) votes[0] = 0;
    if (kind != 7) tile[t] = (float)t;
    __syncthreads();
    float value = tile[t];
    if (kind == 0) { /* neighbours of a warp, fenced */
        value = tile[next];
        __syncwarp();
        tile[t] = value;
        __syncwarp();
        value += tile[next];
    } else if (kind == 1) { /* neighbours of half a warp, fenced by that half; then the whole warp */
        const unsigned partner = t ^ 1u;
        tile[t] = 2.0f;
        __syncwarp(half);
        value = tile[partner];
        __syncwarp();
        value += tile[t ^ 16u];
    } else if (kind == 2) { /* atomics of all, then a barrier */
        atomicAdd(&votes[0], 1u);
        __syncthreads();
        value = (float)votes[0];
    } else if (kind == 3) { /* a vote orders no memory */
        tile[t] = 1.0f;
        value = __all_sync(0xffffffffu, true) ? tile[next] : 0.0f;
    } else if (kind == 4) { /* a warp's fence orders nothing between warps */
        tile[t] = 1.0f;
        __syncwarp();
        value = tile[t ^ 32u];
    } else if (kind == 5) { /* written where another may still read */
        value = tile[next];
        tile[t] = value;
    } else if (kind == 6) { /* half a warp's fence orders nothing between halves */
        tile[t] = 1.0f;
        __syncwarp(half);
        value = tile[t ^ 16u];
    } else if (kind == 8) { /* two writers */
        tile[t / 2] = value;
    } else if (kind == 9) { /* an atomic beside a read */
        if (t == 0) value = (float)votes[0];
        if (t != 0) atomicAdd(&votes[0], 1u);
    } else if (kind == 10) { /* of a shorter array than it thinks */
        value = tile[t + 1];
    }
    __syncthreads();
    out[t] = value;
}

extern "C" enum aq_status cuda_host_fences(int kind, float *out)
{
    return AQ_LAUNCH(fences, 2, 64, 0, nullptr, kind, out);
}

extern "C" enum aq_status cuda_host_mistake(int kind, unsigned threads, float *out)
{
    return AQ_LAUNCH(mistake, 2, threads, threads * sizeof(float), nullptr, kind, out);
}
