/*
 * cuda_launch.cuh -- how our kernels are written and launched: one source for nvcc and for the launch emulation.
 *
 * Caveats first. A kernel file (.cu) includes this header and no header of CUDA; whatever kernels may use is listed in
 * tests/cuda_host/cuda_host.h, which takes CUDA's place where AQ_CUDA_HOST is defined (tests without a GPU). Rules that
 * keep one source true on both sides:
 *
 *   shared memory   only by AQ_SHARED and AQ_SHARED_DYNAMIC, at the top of a kernel;
 *   launches        only by AQ_LAUNCH, in a launcher that is extern "C" and takes raw pointers, extents and, last, the
 *                   stream;
 *   blocks          are independent: none waits for another; results must not depend on their order, on how many run
 *                   at once or on the number of processors. No float atomics;
 *   barriers        every thread of the block comes to each __syncthreads, and every lane of the mask to each warp
 *                   function: return early only where all of them do;
 *   block sizes     multiples of 32, where warp functions are used.
 *
 *     __global__ void scale(float *x, uint64_t count, float factor)
 *     {
 *         AQ_SHARED(float, tile, [256]);
 *         const uint64_t i = aq_thread_index();
 *         ...
 *     }
 *     extern "C" enum aq_status aq_cuda_scale(float *x, uint64_t count, float factor, struct CUstream_st *stream)
 *     {
 *         return AQ_LAUNCH(scale, aq_blocks(count, 256), 256, 0, stream, x, count, factor);
 *     }
 *
 * A kernel that is a template is named in parentheses: AQ_LAUNCH((scale<float, true>), ...).
 *
 * Locking: none; a launch only enqueues on its stream.
 */
#ifndef AQ_CUDA_LAUNCH_CUH
#define AQ_CUDA_LAUNCH_CUH

#include "aqsgd/base/status.h"
#include "cuda_list.h"

#ifdef AQ_CUDA_HOST
#include "cuda_host.h"
#else
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

/* Shared memory of fixed size: AQ_SHARED(float, tile, [32][33]). Unwritten at the start of a block. */
#ifdef AQ_CUDA_HOST
#define AQ_SHARED(type, name, extents)                                                                                 \
    using name##_shared = type extents;                                                                                \
    static const char name##_key = 0;                                                                                  \
    name##_shared &name = *static_cast<name##_shared *>(                                                               \
        cuda_host::shared_static(&name##_key, #name, sizeof(name##_shared), alignof(name##_shared)))
#else
#define AQ_SHARED(type, name, extents) __shared__ type name extents
#endif

/* The launch's `shared` bytes, as type *name, aligned to 16 bytes; once a kernel, cut by hand. */
#ifdef AQ_CUDA_HOST
#define AQ_SHARED_DYNAMIC(type, name) type *const name = static_cast<type *>(cuda_host::shared_dynamic(16))
#else
#define AQ_SHARED_DYNAMIC(type, name)                                                                                  \
    extern __shared__ __align__(16) unsigned char aq_shared_dynamic_[];                                                \
    type *const name = reinterpret_cast<type *>(aq_shared_dynamic_)
#endif

/* Before a loop whose arrays must be in registers. */
#ifdef AQ_CUDA_HOST
#define AQ_UNROLL
#else
#define AQ_UNROLL _Pragma("unroll")
#endif

/*
 * The result of a launch: AQ_OK, or AQ_CUDAERR, logged with the kernel's name, its grid and CUDA's text. With AQ_SYNC=1
 * in the environment the stream is waited for after each launch, so that the line names the guilty kernel.
 */
enum aq_status aq_cuda_launched(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaError_t error,
                                cudaStream_t stream);

/*
 * Bytes of shared memory that one block may have on the current GPU, static and dynamic together: 227 KiB on compute
 * capability 9.0 and under emulation. 48 KiB, which every GPU has, where CUDA does not answer.
 */
uint64_t aq_cuda_shared_max(void);

/* Into the thread's list, without the arguments. AQ_INVAL: the stream is not the list's. */
enum aq_status aq_cuda_list_launch(struct aq_cuda_list *list, const char *name, const void *kernel, dim3 grid,
                                   dim3 block, size_t shared, cudaStream_t stream);

/* An argument, whose padding is made zero: bytes that nobody reads must not make two lists differ. */
template <class V> inline void aq_cuda_list_value(struct aq_cuda_list *list, V value)
{
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&value);
#endif
#endif
    aq_cuda_list_put(list, &value, sizeof value);
}

/* AQ_LAUNCH's function. */
template <class... P, class... A>
inline enum aq_status aq_cuda_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                     cudaStream_t stream, A... args)
{
    struct aq_cuda_list *const list = aq_cuda_list();
    if (list) {
        const enum aq_status status = aq_cuda_list_launch(list, name, reinterpret_cast<const void *>(kernel), grid,
                                                          block, shared, stream);
        if (status != AQ_OK) return status;
        (aq_cuda_list_value(list, static_cast<P>(args)), ...);
        if (!list->enqueues) return AQ_OK;
    }
#ifdef AQ_CUDA_HOST
    const cudaError_t error = cuda_host::launch(name, kernel, grid, block, shared, stream, static_cast<P>(args)...);
#else
    cudaError_t error = cudaSuccess;
    if (shared > 48u << 10)
        error = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error == cudaSuccess) {
        cudaLaunchConfig_t config = {};
        config.gridDim = grid;
        config.blockDim = block;
        config.dynamicSmemBytes = shared;
        config.stream = stream;
        error = cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
    }
#endif
    return aq_cuda_launched(name, grid, block, shared, error, stream);
}

/* Enqueues `kernel` on `stream`, `shared` bytes of dynamic shared memory a block; an enum aq_status. */
#define AQ_LAUNCH(kernel, grid, block, shared, stream, ...)                                                            \
    aq_cuda_launch(#kernel, kernel, grid, block, shared, stream, __VA_ARGS__)

/* A grid of one dimension for `count` elements, `block` an element each. */
static inline dim3 aq_blocks(uint64_t count, uint64_t block)
{
    const uint64_t blocks = (count + block - 1) / block;
    return dim3(static_cast<unsigned>(blocks));
}

/* The thread's index in a grid of one dimension. */
static __forceinline__ __device__ uint64_t aq_thread_index()
{
    return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

#endif
