/*
 * cuda_launch.cu -- what a launch came to, in one place. See cuda_launch.cuh.
 */
#include "cuda_launch.cuh"

#include <stdlib.h>

#ifdef AQ_CUDA_HOST
#include "cuda_host_test.h"
#endif

static bool sync_wanted()
{
    static const char *const wish = getenv("AQ_SYNC");
    return wish && wish[0] == '1';
}

static const char *text_of(cudaError_t error)
{
#ifdef AQ_CUDA_HOST
    (void)error;
    return cuda_host_error();
#else
    return cudaGetErrorString(error);
#endif
}

uint64_t aq_cuda_shared_max(void)
{
#ifdef AQ_CUDA_HOST
    return 227 << 10;
#else
    int device = 0, bytes = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess) return static_cast<uint64_t>(bytes);
    (void)cudaGetLastError(); /* dealt with here: the next launch starts clean */
    return 48 << 10;
#endif
}

enum aq_status aq_cuda_launched(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaError_t error,
                                cudaStream_t stream)
{
#ifdef AQ_CUDA_HOST
    (void)stream;
    (void)sync_wanted;
#else
    if (error != cudaSuccess) (void)cudaGetLastError(); /* dealt with here: the next launch starts clean */
    if (error == cudaSuccess && sync_wanted()) error = cudaStreamSynchronize(stream);
#endif
    if (error == cudaSuccess) return AQ_OK;
    return aq_fail(AQ_CUDAERR, "device", "kernel %s, grid %u x %u x %u, block %u x %u x %u, %zu bytes shared: %s",
                   kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, text_of(error));
}
