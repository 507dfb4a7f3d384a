/*
 * cuda_host.h -- CUDA's kernel language for a plain C++17 compiler: kernels run on the CPU, in tests.
 *
 * Caveats first. This runs what a kernel *computes*, thread by thread; it knows nothing of speed, of memory coherence
 * between blocks that run at once, of caches or of occupancy. Blocks run one after another, in a shuffled order, so a
 * block that waits for another one never ends. Threads of a block take turns only at the points below; between two of
 * them a thread runs alone. A missing barrier therefore shows as a result that depends on the seed: run a kernel under
 * several seeds (cuda_host_test.h) and compare bits.
 *
 * How to use it. A kernel file includes device/cuda_launch.cuh and nothing of CUDA itself. With AQ_CUDA_HOST defined
 * that header includes this one, and the file compiles as C++ (g++ -x c++); tests/cuda.cmake does so for every
 * aqsgd/device/cuda_*.cu and aqsgd/codec/cuda_*.cu and links them as aq_cuda_host.
 *
 * What there is:
 *   threadIdx, blockIdx, blockDim, gridDim, warpSize; __global__, __device__, __host__, __forceinline__,
 *   __launch_bounds__, __align__, __constant__; AQ_SHARED and AQ_SHARED_DYNAMIC (cuda_launch.cuh) for shared memory;
 *   __syncthreads, __syncthreads_count/_and/_or, __syncwarp, __shfl_sync/_up/_down/_xor, __ballot_sync, __any_sync,
 *   __all_sync, __match_any_sync, __reduce_{add,min,max,and,or,xor}_sync; __threadfence, __threadfence_block;
 *   atomicAdd, Sub, Min, Max, And, Or, Xor, Exch, CAS; the arithmetic with a rounding in its name, bit casts, integer
 *   intrinsics; __half and __nv_bfloat16 with their conversions; vectors char2..double2; min, max, __ldg and the other
 *   loads and stores with a cache hint; cudaMemsetAsync and cudaMemcpyAsync; the warp's matrix products and loads that
 *   cuda_mma.cuh names. Anything else is one definition away: add it here, with a case in test_cuda_host.c.
 *
 * What is an error (the launch ends, cuda_host_error() says where, the launcher returns AQ_CUDAERR):
 *   a barrier or warp function that not every thread named reaches, or that they reach at different lines; a lane that
 *   is not in its own mask; a thread that returns while others wait for it; a write past either end of dynamic shared
 *   memory; more than 48 KiB of static or 227 KiB of any shared memory; an empty or too large grid or block; a stack
 *   that runs over. Shared memory starts each block as NaN bytes (0xff). What a lane outside the mask would give
 *   to a shuffle is 0xff too. Reads past the end of shared or global memory are AddressSanitizer's (preset asan).
 *
 * Locking: one thread of the process launches at a time.
 */
#ifndef AQ_CUDA_HOST_H
#define AQ_CUDA_HOST_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <math.h>
#include <type_traits>

#include "cuda_host_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct CUstream_st;
using cudaStream_t = struct CUstream_st *;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9, cudaErrorLaunchFailure = 719 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };

namespace cuda_host
{

/* Where the running thread is. */
struct place {
    uint3 thread, block;
    dim3 block_size, grid_size;
};
/* A kernel's thread never sees it change, and the compiler tells the watcher of no read of a constant. */
#ifdef AQ_CUDA_HOST
extern const place here;
#else
extern place here;
#endif

/* The line of the kernel at which a thread waits. */
struct site {
    const char *what, *file;
    int line;
};

/* What a lane brings to a warp function, and what it takes away; a shuffle's is in one line of the cache. */
struct alignas(64) lane {
    int source;
    uint64_t out[4], in[5];
};

/* Gives every lane of `mask` its `out`; run by the last one to arrive. */
using resolve_lanes = void (*)(lane *lanes, uint32_t mask);

lane &mine();
void meet_warp(const site &at, uint32_t mask, resolve_lanes resolve);                                 /* `at` stays */
uint64_t exchange(const site &at, uint32_t mask, resolve_lanes resolve, uint64_t in, int source = 0); /* out[0] */
int meet_block(const site &at, int value); /* how many of the block brought a value other than 0 */
void *shared_dynamic(size_t align);
void *shared_static(const void *key, const char *name, size_t bytes, size_t align); /* one place for each key */
void watch_read(const void *from, size_t bytes);                                    /* cuda_host_watch.h */
void watch_write(const void *to, size_t bytes);
void complain(const site &at, const char *what); /* ends the launch */
cudaError_t run(const char *kernel, dim3 grid, dim3 block, size_t shared, const std::function<void()> &body);
cudaError_t enqueue(void *stream, const std::function<cudaError_t()> &work); /* at once, or when the stream is there */
cudaError_t enqueue_set(void *stream, void *to, int value, size_t bytes);
cudaError_t enqueue_copy(void *stream, void *to, const void *from, size_t bytes);

void resolve_shuffle(lane *lanes, uint32_t mask);
void resolve_ballot(lane *lanes, uint32_t mask);
void resolve_match(lane *lanes, uint32_t mask);
void resolve_nothing(lane *lanes, uint32_t mask);

/* What cuda_mma.cuh names. A copy happens when it is waited for; from NULL it is zeroes. */
void mma(const site &at, bool fp16, float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
void matrices(const site &at, unsigned (&words)[4], const void *row, bool transposed);
void copy_later(void *to, const void *from, size_t bytes);
void copies_wait();
bool hopper(); /* the GPU that is emulated has warpgroup products: its capability (CUDA_HOST_CAPABILITY) is 9.0 */

inline uint32_t lane_index()
{
    return (here.thread.x + here.block_size.x * (here.thread.y + here.block_size.y * here.thread.z)) % 32;
}

/* Any value of at most 8 bytes as a word and back. */
template <class T> inline uint64_t word_of(T value)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "a warp function takes values of at most 8 bytes");
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    return word;
}

template <class T> inline T value_of(uint64_t word)
{
    T value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

template <class T> inline T shuffle(const site &at, uint32_t mask, T value, int source)
{
    return value_of<T>(exchange(at, mask, resolve_shuffle, word_of(value), source));
}

template <class T> inline T shuffle_to(const site &at, uint32_t mask, T value, int source, int width = 32)
{
    const int self = (int)lane_index();
    return shuffle(at, mask, value, (self & ~(width - 1)) + (source & (width - 1)));
}

template <class T> inline T shuffle_up(const site &at, uint32_t mask, T value, unsigned delta, int width = 32)
{
    const int self = (int)lane_index(), source = self - (int)delta;
    return shuffle(at, mask, value, source < (self & ~(width - 1)) ? self : source);
}

template <class T> inline T shuffle_down(const site &at, uint32_t mask, T value, unsigned delta, int width = 32)
{
    const int self = (int)lane_index(), source = self + (int)delta;
    return shuffle(at, mask, value, source > (self | (width - 1)) ? self : source);
}

template <class T> inline T shuffle_xor(const site &at, uint32_t mask, T value, int lanes, int width = 32)
{
    const int self = (int)lane_index(), source = self ^ lanes;
    return shuffle(at, mask, value, source > (self | (width - 1)) ? self : source);
}

inline unsigned ballot(const site &at, uint32_t mask, int predicate)
{
    return (unsigned)exchange(at, mask, resolve_ballot, predicate != 0);
}

template <class T> inline unsigned match_any(const site &at, uint32_t mask, T value)
{
    return (unsigned)exchange(at, mask, resolve_match, word_of(value));
}

template <class T, class Join> inline void resolve_reduce(lane *lanes, uint32_t mask)
{
    bool first = true;
    T sum{};
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        const T value = value_of<T>(lanes[i].in[0]);
        sum = first ? value : Join()(sum, value);
        first = false;
    }
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) lanes[i].out[0] = word_of(sum);
}

template <class Join, class T> inline T reduce(const site &at, uint32_t mask, T value)
{
    static_assert(sizeof(T) == 4, "__reduce_*_sync takes int and unsigned");
    return value_of<T>(exchange(at, mask, resolve_reduce<T, Join>, word_of(value)));
}

struct sync_warp {
    const site &at;
    void operator()(uint32_t mask = 0xffffffffu) const
    {
        meet_warp(at, mask, resolve_nothing);
    }
};

struct join_min {
    template <class T> T operator()(T x, T y) const
    {
        return y < x ? y : x;
    }
};

struct join_max {
    template <class T> T operator()(T x, T y) const
    {
        return x < y ? y : x;
    }
};

template <class... P, class... A>
inline cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, void *stream,
                          A... args)
{
    return enqueue(stream, [=]() {
        return run(name, grid, block, shared, [&]() __attribute__((no_sanitize("thread"))) {
            kernel(static_cast<P>(args)...);
        });
    });
}

} // namespace cuda_host

#define threadIdx (cuda_host::here.thread)
#define blockIdx  (cuda_host::here.block)
#define blockDim  (cuda_host::here.block_size)
#define gridDim   (cuda_host::here.grid_size)

#define CUDA_HOST_AT(what)                                                                                             \
    ([]() -> const cuda_host::site & {                                                                                 \
        static constexpr cuda_host::site at{what, __FILE__, __LINE__};                                                 \
        return at;                                                                                                     \
    }())
#define __syncthreads()                    ((void)cuda_host::meet_block(CUDA_HOST_AT("__syncthreads"), 0))
#define __syncthreads_count(p)             cuda_host::meet_block(CUDA_HOST_AT("__syncthreads_count"), (p) != 0)
#define __syncthreads_or(p)                (cuda_host::meet_block(CUDA_HOST_AT("__syncthreads_or"), (p) != 0) != 0)
#define __syncthreads_and(p)               (cuda_host::meet_block(CUDA_HOST_AT("__syncthreads_and"), (p) == 0) == 0)
#define __syncwarp(...)                    (cuda_host::sync_warp{CUDA_HOST_AT("__syncwarp")}(__VA_ARGS__))
#define __shfl_sync(...)                   cuda_host::shuffle_to(CUDA_HOST_AT("__shfl_sync"), __VA_ARGS__)
#define __shfl_up_sync(...)                cuda_host::shuffle_up(CUDA_HOST_AT("__shfl_up_sync"), __VA_ARGS__)
#define __shfl_down_sync(...)              cuda_host::shuffle_down(CUDA_HOST_AT("__shfl_down_sync"), __VA_ARGS__)
#define __shfl_xor_sync(...)               cuda_host::shuffle_xor(CUDA_HOST_AT("__shfl_xor_sync"), __VA_ARGS__)
#define __ballot_sync(m, p)                cuda_host::ballot(CUDA_HOST_AT("__ballot_sync"), m, p)
#define __any_sync(m, p)                   (cuda_host::ballot(CUDA_HOST_AT("__any_sync"), m, p) != 0)
#define __all_sync(m, p)                   (cuda_host::ballot(CUDA_HOST_AT("__all_sync"), m, !(p)) == 0)
#define __match_any_sync(m, x)             cuda_host::match_any(CUDA_HOST_AT("__match_any_sync"), m, x)
#define CUDA_HOST_REDUCE(name, join, m, x) cuda_host::reduce<join>(CUDA_HOST_AT(name), m, x)
#define __reduce_add_sync(m, x)            CUDA_HOST_REDUCE("__reduce_add_sync", std::plus<>, m, x)
#define __reduce_min_sync(m, x)            CUDA_HOST_REDUCE("__reduce_min_sync", cuda_host::join_min, m, x)
#define __reduce_max_sync(m, x)            CUDA_HOST_REDUCE("__reduce_max_sync", cuda_host::join_max, m, x)
#define __reduce_and_sync(m, x)            CUDA_HOST_REDUCE("__reduce_and_sync", std::bit_and<>, m, x)
#define __reduce_or_sync(m, x)             CUDA_HOST_REDUCE("__reduce_or_sync", std::bit_or<>, m, x)
#define __reduce_xor_sync(m, x)            CUDA_HOST_REDUCE("__reduce_xor_sync", std::bit_xor<>, m, x)

static constexpr int warpSize = 32;

inline void __threadfence()
{
}

inline void __threadfence_block()
{
}

inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream = nullptr)
{
    return cuda_host::enqueue_set(stream, to, value, bytes);
}

inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream = nullptr)
{
    return cuda_host::enqueue_copy(stream, to, from, bytes);
}

inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "the launch emulation found an error";
}

#include "cuda_host_math.h"

namespace cuda_host
{

/* The compiler tells of loads and stores, and of copies that it makes one of; not of others. */
__attribute__((always_inline)) inline void *copy_watched(void *to, const void *from, size_t bytes)
{
    if (!__builtin_constant_p(bytes) || (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)) {
        watch_read(from, bytes);
        watch_write(to, bytes);
    }
    return __builtin_memcpy(to, from, bytes);
}

__attribute__((always_inline)) inline void *set_watched(void *to, int value, size_t bytes)
{
    watch_write(to, bytes);
    return __builtin_memset(to, value, bytes);
}

} // namespace cuda_host

#define memcpy(to, from, bytes)  cuda_host::copy_watched(to, from, bytes)
#define memset(to, value, bytes) cuda_host::set_watched(to, value, bytes)

#endif
