/*
 * cuda_device.h -- what the files of the CUDA backend share: which GPU it is, and how CUDA's errors become ours.
 *
 * Map: cuda_probe.c which GPU, and why not.
 */
#ifndef AQ_CUDA_DEVICE_H
#define AQ_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "device_ops.h"

enum {
    CUDA_TEXT_BYTES = 512,
    CUDA_MAJOR_MIN = 8 /* compute capability: bf16 products and asynchronous copies to shared memory begin there */
};

/* A GPU that this build can run on. */
struct cuda_probe {
    int index;
    int major, minor; /* compute capability */
    int processors;   /* streaming multiprocessors */
    uint64_t memory_bytes;
    char name[80];
    char uuid[40]; /* as nvidia-smi writes it, without "GPU-" */
};

/*
 * Look at GPU `index` without making a context on it. AQ_NODEV: no driver, a driver older than the toolkit, no such
 * GPU, one that this build has no machine code for, or one that no process may use; `why` (CUDA_TEXT_BYTES) is then the
 * one line that says which and what to do. Nothing is logged.
 */
enum aq_status cuda_probe(uint32_t index, struct cuda_probe *out, char *why);

/* A CUDA call that failed: logs the call, where, and CUDA's own words; AQ_NOMEM for want of memory, else AQ_CUDAERR. */
enum aq_status cuda_failed(cudaError_t error, const char *call, const char *file, int line);

/* Pass a failure of CUDA up. */
#define AQ_CUDA(call)                                                                                                  \
    do {                                                                                                               \
        const cudaError_t aq_cuda_ = (call);                                                                           \
        if (aq_cuda_ != cudaSuccess) return cuda_failed(aq_cuda_, #call, __FILE__, __LINE__);                          \
    } while (0)

#endif
