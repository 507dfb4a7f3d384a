/*
 * cuda_launch.cu -- what a launch came to, and the list of what is launched, in one place. See cuda_launch.cuh.
 */
#include "cuda_launch.cuh"

#include <stdlib.h>
#include <string.h>

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

/* --- the list of a graph ---------------------------------------------------------------------------------------- */

static thread_local struct aq_cuda_list *listing;

struct aq_cuda_list *aq_cuda_list(void)
{
    return listing;
}

void aq_cuda_list_use(struct aq_cuda_list *list)
{
    listing = list;
}

void aq_cuda_list_put(struct aq_cuda_list *list, const void *bytes, size_t count)
{
    if (list->room - list->used < count) {
        list->full = true;
        return;
    }
    memcpy(list->bytes + list->used, bytes, count);
    list->used += count;
}

static enum aq_status list_enter(struct aq_cuda_list *list, const char *name, cudaStream_t stream)
{
    if (stream != list->stream)
        return aq_fail(AQ_INVAL, "device", "%s goes to another stream than the graph's; unset AQ_GPU_GRAPHS", name);
    list->launches++;
    return AQ_OK;
}

enum aq_status aq_cuda_list_launch(struct aq_cuda_list *list, const char *name, const void *kernel, dim3 grid,
                                   dim3 block, size_t shared, cudaStream_t stream)
{
    const uint64_t extents[8] = {
        reinterpret_cast<uintptr_t>(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared};
    const enum aq_status status = list_enter(list, name, stream);
    if (status == AQ_OK) aq_cuda_list_put(list, extents, sizeof extents);
    return status;
}

enum aq_status aq_cuda_list_call(const char *name, const void *bytes, size_t count, cudaStream_t stream, bool *only)
{
    struct aq_cuda_list *const list = listing;
    *only = list && !list->enqueues;
    if (!list) return AQ_OK;
    const enum aq_status status = list_enter(list, name, stream);
    if (status != AQ_OK) return status;
    aq_cuda_list_put(list, name, strlen(name) + 1);
    aq_cuda_list_put(list, bytes, count);
    return AQ_OK;
}
