/*
 * cuda_runtime_api.h -- what device_cuda.c uses of CUDA's runtime, on the host: for tests of the CUDA backend without a
 * GPU. cuda_runtime_host.c does it, kernels run under the launch emulation (cuda_host.h), memory is the host's and
 * streams run as late as they may (cuda_streams_host.c). That the same calls compile against CUDA itself is shown by
 * preset cuda.
 *
 * One GPU, sm_90, whose memory is as large as the test says (cuda_runtime_host_memory), or as many as it or
 * CUDA_HOST_GPUS in the environment say. Each thread may use its own, with streams of its own. The environment may also
 * say CUDA_HOST_DRIVER (13000; 0: none), CUDA_HOST_CAPABILITY (90) and CUDA_HOST_MIB of memory, for whole programs.
 * CUDA_HOST_LAZY=1: a kind of product that is asked for first while NCCL waits for another rank ends the program, as
 * loading its kernel may wait for NCCL on a GPU. CUDA_HOST_IPC=0: no process can map another's memory. CUDA_HOST_SEED:
 * the order of blocks and threads (0: ascending; 1 where it is absent). CUDA_HOST_FRESH=poison: cuda_memory_host.c.
 */
#ifndef CUDA_RUNTIME_API_ON_HOST_H
#define CUDA_RUNTIME_API_ON_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDART_VERSION 13000

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorNoDevice = 100,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorMapBufferObjectFailed = 205,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorIllegalState = 401,
    cudaErrorNotReady = 600,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorCapturedEvent = 907,
    cudaErrorStreamCaptureWrongThread = 908
} cudaError_t;
typedef enum { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 } cudaDataType_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDefault = 4 };
enum { cudaComputeModeDefault = 0, cudaComputeModeProhibited = 2 };
typedef struct {
    char reserved[64];
} cudaIpcMemHandle_t;
enum { cudaIpcMemLazyEnablePeerAccess = 1 };
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2, cudaHostAllocPortable = 1 };
enum cudaDeviceAttr { cudaDevAttrComputeMode = 20 };

struct cudaDeviceProp {
    char name[256];
    struct {
        char bytes[16];
    } uuid;
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int index);
cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int index);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory);
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *memory);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemGetInfo(size_t *free, size_t *all);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t last);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

/* For tests: what the driver says of itself (0: there is none), how many GPUs there are, their compute capability. */
void cuda_runtime_host_driver(int version, int count, int major, int minor);
/* Bytes of device memory, and how many are out. */
void cuda_runtime_host_memory(size_t bytes);
size_t cuda_runtime_host_used(void);
size_t cuda_runtime_host_all(void);

/* cuda_ipc_host.c: for cudaFree; nothing but whole pieces of 2 MiB is exported. False: it was not, or is mapped. */
bool cuda_ipc_host_export_ends(void *memory);
/* Is it memory of another process? */
bool cuda_ipc_host_is_mapped(const void *memory);

/* The runtime's own: run(a copy of `bytes` of context, which it frees) when the stream gets there; everything, now. */
cudaError_t cuda_runtime_host_later(cudaStream_t stream, int (*run)(void *context), const void *context, size_t bytes);
cudaError_t cuda_runtime_host_finish(void);
/* What runs now takes so much longer, by the clock of timed events: nobody waits for it. */
void cuda_runtime_host_longer(uint64_t ns);
/* The same without a copy. Work that answers cudaErrorNotReady is asked again when the stream is looked at again. */
cudaError_t cuda_runtime_host_pending(cudaStream_t stream, int (*run)(void *context), void *context);
/* Is anything of the latter kind under way on this thread's streams? */
bool cuda_runtime_host_waits(void);
/* cuda_memory_host.c: how large an allocation is, and what a stream's work does, so that the watcher knows of it. */
size_t cuda_runtime_host_size(const void *memory);
void cuda_runtime_host_copy(void *to, const void *from, size_t bytes);
void cuda_runtime_host_set(void *to, int value, size_t bytes);
void cuda_runtime_host_wrote(void *memory, size_t bytes);
/* The GPU of this thread. */
int cuda_runtime_host_current(void);
/* cuda_memory_host.c: memory of cudaHostAlloc. */
bool cuda_runtime_host_pinned(const void *memory);
/*
 * Before a call that CUDA does not allow to a thread while a stream records its work (cudaStreamBeginCapture): its
 * error, and the recording is invalid.
 */
cudaError_t cuda_runtime_host_unsafe(void);
/* For tests: launches of graphs since the start, and what was in them; the next instantiation lacks memory. */
uint64_t cuda_runtime_host_graph_launches(void);
uint64_t cuda_runtime_host_graph_works(void);
void cuda_runtime_host_graph_fails(void);

#endif
