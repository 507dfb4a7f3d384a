/*
 * cuda_cudnn.h -- attention by cuDNN, an alternative to our own kernels: the same operation of device_math.h, to
 * compare with, and to take where it is the faster. Used only by cuda_math.c and device_cuda.c.
 *
 * Off unless AQ_GPU_ATTENTION=cudnn, as two implementations round differently: all stages and all restarts of a job
 * must have made one choice (a checkpoint has it: the device's `rounding`). cuDNN 9.21 or newer, found by its header
 * when aqpipe is built and by its library when it runs. Our own kernels compute what cuDNN cannot do as required (fp32,
 * dropout, parts of samples, gradients in fp32, or no algorithm that cuDNN itself calls deterministic), and the log has
 * one line about it for each shape.
 *
 * Locking: none; calls of one device's `struct cuda_cudnn` come from one thread at a time, as those of its products.
 */
#ifndef AQ_CUDA_CUDNN_H
#define AQ_CUDA_CUDNN_H

#include <cudnn.h>

#include "cuda_device.h"

enum {
    CUDNN_PLANS_MAX = 32,        /* shapes of a process, forward and backward each: two, four with a last micro-batch */
    CUDNN_DESCRIPTORS_MAX = 128, /* of a plan: 30, and up to four for each algorithm that is tried */
    CUDNN_CONFIGS_MAX = 16,      /* algorithms that are asked for */
    CUDNN_VERSION_MIN = 92100    /* attention with a mask as one operation of its graph */
};

/* The functions of the library that are called, by name. */
#define CUDNN_CALLS(X)                                                                                                 \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnGetLastErrorString)                                                                                         \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

struct cudnn_calls {
#define CUDNN_MEMBER(name) __typeof__(name) *name;
    CUDNN_CALLS(CUDNN_MEMBER)
#undef CUDNN_MEMBER
};

/* All that a plan depends on. Compared as bytes: no padding. */
struct cudnn_key {
    uint64_t samples, T, H, kv_heads, D, window;
    uint32_t type;     /* AQ_BF16 or AQ_F16 */
    uint32_t backward; /* 0 or 1 */
};

/* An algorithm for one shape; plan is NULL where cuDNN has none, and `why` has the reason. */
struct cudnn_plan {
    struct cudnn_key key;
    const struct cudnn_calls *calls;
    cudnnBackendDescriptor_t plan;
    uint64_t workspace_bytes;
    uint32_t count; /* descriptors */
    cudnnBackendDescriptor_t descriptors[CUDNN_DESCRIPTORS_MAX];
    cudnnStatus_t failed; /* the first call that did */
    char why[CUDA_TEXT_BYTES];
};

/*
 * Makes the plan of key: the graph, the algorithms that cuDNN's heuristics name for it, the first of them that is
 * deterministic by its own notes, needs at most workspace_max bytes and can be made. handle: of the GPU that will run
 * it; or NULL, with `target`, a descriptor of the GPU's properties: for tests without a GPU. Without such an algorithm
 * plan->plan is NULL. cudnn_plan_drop frees what was made, and empties the plan.
 */
void cudnn_plan_make(const struct cudnn_calls *calls, const struct cudnn_key *key, cudnnHandle_t handle,
                     cudnnBackendDescriptor_t target, uint64_t workspace_max, struct cudnn_plan *plan);
void cudnn_plan_drop(struct cudnn_plan *plan);

struct cuda_cudnn;

/*
 * *out is NULL where AQ_GPU_ATTENTION is unset or "own". AQ_INVAL: it is something else than "own" or "cudnn";
 * AQ_NODEV: no library, or one that is too old; each logged in one line with its remedy.
 */
enum aq_status cuda_cudnn_open(struct cuda_cudnn **out);
void cuda_cudnn_close(struct cuda_cudnn *cudnn); /* NULL is fine */
size_t cuda_cudnn_version(const struct cuda_cudnn *cudnn);

/*
 * Enqueues attention, or its backward, on the stream; *done is false where it is left to our own kernels. lse is what
 * those write, to rounding: either may follow the other. AQ_CUDAERR: cuDNN refused to run its own plan.
 */
enum aq_status cuda_cudnn_attention(struct cuda_cudnn *cudnn, const struct aq_attention *args, bool backward,
                                    const struct aq_stream *stream, bool *done);

#endif
