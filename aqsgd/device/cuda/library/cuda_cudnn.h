/*
 * cuda_cudnn.h -- attention and convolutions by cuDNN, an alternative to our own kernels: the same operations of
 * device_math.h, to compare with, and to take where they are the faster. Used only by the files of this folder.
 *
 * Off unless AQ_GPU_ATTENTION=cudnn, or AQ_GPU_CONVOLUTION=cudnn, as two implementations round differently: all stages
 * and all restarts of a job must have made one choice (a checkpoint has it: the device's `rounding`). With `fastest`
 * instead, the clock chooses for each shape, and the table keeps what it chose (cuda_table.h). cuDNN 9.21 or newer,
 * found by its header when aqpipe is built and by its library when it runs. It is not asked for attention in fp32, with
 * dropout or with a cap, nor for gradients in fp32. Our own kernels also compute each shape for which it has no
 * algorithm that it calls deterministic, or for which they are faster: the log has one line for each, with the reason.
 *
 * Map: cuda_cudnn.c the library, the plans that were made, and a call; cuda_cudnn_plan.c the descriptors that all
 * graphs have, and the algorithm for a graph; cuda_cudnn_attention.c and cuda_cudnn_conv.c one graph each, with its
 * addresses; cuda_cudnn_choose.c the choice by the clock.
 *
 * Locking: none; calls of one device's `struct cuda_cudnn` come from one thread at a time, as those of its products.
 */
#ifndef AQ_CUDA_CUDNN_H
#define AQ_CUDA_CUDNN_H

#include <cudnn.h>

#include "cuda_device.h"

enum {
    CUDNN_PLANS_MAX = 512,       /* ResNet-50: 23 shapes, 3 operations, twice in pieces and with a last micro-batch */
    CUDNN_DESCRIPTORS_MAX = 192, /* of a plan: 30, and up to four for each algorithm that is tried */
    CUDNN_CONFIGS_MAX = 16,      /* algorithms that are asked for, of each kind of heuristics */
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

enum cudnn_operation {
    CUDNN_ATTENTION,
    CUDNN_ATTENTION_BACKWARD,
    CUDNN_CONV,          /* y of x and w   */
    CUDNN_CONV_BACKWARD, /* dx of dy and w */
    CUDNN_CONV_WEIGHTS   /* dw of x and dy */
};

enum cudnn_masks {
    CUDNN_BOTH = 1,   /* not causal: of both sides                    */
    CUDNN_PARTS = 2,  /* a row's first key is given (starts)          */
    CUDNN_LENGTHS = 4 /* a sample's number of real tokens is (lengths) */
};

/* All that a plan depends on. Compared as bytes: no padding, and what an operation does not use is 0. */
struct cudnn_key {
    uint16_t operation, alignment; /* bytes: of the tensors in device memory */
    uint32_t type;                 /* attention: AQ_BF16 or AQ_F16; a convolution: its compute */
    union {
        struct {
            uint64_t samples, T, H, kv_heads, D, window;
            uint64_t masks; /* bits of cudnn_masks */
        } attention;
        struct {
            uint64_t samples, height, width, C, N, K, stride;
        } conv;
    };
};

/* By the clock: not asked yet, or its answer. */
enum cudnn_faster { CUDNN_NOT_ASKED, CUDNN_IS_FASTER, CUDNN_IS_SLOWER };

/* An algorithm for one shape; plan is NULL where cuDNN has none, and `why` has the reason. */
struct cudnn_plan {
    struct cudnn_key key;
    const struct cudnn_calls *calls;
    cudnnBackendDescriptor_t plan;
    uint64_t workspace_bytes;
    enum cudnn_faster faster; /* only with `fastest` */
    uint64_t number;          /* of all plans of the device, from 1 */
    uint32_t count;           /* descriptors */
    cudnnBackendDescriptor_t descriptors[CUDNN_DESCRIPTORS_MAX];
    cudnnStatus_t failed; /* the first call that did */
    char why[CUDA_TEXT_BYTES];
};

/*
 * Makes the plan of key: the graph, the algorithms that cuDNN's heuristics name for it, the first of them that is
 * deterministic and exact by its own notes, needs at most workspace_max bytes and can be made. handle: of the GPU that
 * will run it; or NULL, with `target`, a descriptor of the GPU's properties: for tests without a GPU. Without such an
 * algorithm plan->plan is NULL. cudnn_plan_drop frees what was made, and empties the plan.
 */
void cudnn_plan_make(const struct cudnn_calls *calls, const struct cudnn_key *key, cudnnHandle_t handle,
                     cudnnBackendDescriptor_t target, uint64_t workspace_max, struct cudnn_plan *plan);
void cudnn_plan_drop(struct cudnn_plan *plan);

struct cuda_cudnn;

/*
 * For attention, for convolutions, or both: what device_cuda.c has read in AQ_GPU_ATTENTION and AQ_GPU_CONVOLUTION.
 * *out is NULL where it is for neither. AQ_NODEV: no library, or one that is too old. AQ_NOMEM. With CUDA_FASTEST also
 * AQ_INVAL: AQ_GPU_TABLE names no folder; and those of cuda_table_open (cuda_table.h): the table there cannot be used.
 * Logged in one line.
 */
enum aq_status cuda_cudnn_open(const struct cuda_device *cuda, enum cuda_way attention, enum cuda_way convolution,
                               struct cuda_cudnn **out);
void cuda_cudnn_close(struct cuda_cudnn *cudnn); /* NULL is fine */

/* What a checkpoint has to name, behind the device's own: the version, and what it computes. Appended to text. */
void cuda_cudnn_rounding(const struct cuda_cudnn *cudnn, char *text, size_t bytes);

/*
 * Enqueues attention, or its backward, on the stream; *done is false where it is left to our own kernels. lse is what
 * those write, to rounding: either may follow the other. AQ_CUDAERR: cuDNN refused to run its own plan. With
 * `fastest`, the first call of a shape runs both ways several times. Each run writes the same results, and the way that
 * is chosen writes them last. AQ_IO, AQ_CORRUPT, AQ_NOTFOUND, AQ_NOSPC, AQ_NOMEM: the choice cannot be kept. AQ_AGAIN
 * (not logged): work is only being listed (aq_cuda_list), and the clock has not been asked yet.
 */
enum aq_status cuda_cudnn_attention(struct cuda_cudnn *cudnn, const struct aq_attention *args, bool backward,
                                    const struct aq_stream *stream, bool *done);

/*
 * The same of a convolution. Results differ from those of cuda_conv_product.c in the order of sums only: operands are
 * rounded alike, sums and results are fp32. Scratch: x in part 0, weights in part 1, dy in part 2, each only where it
 * is rounded or stored in another order. A gradient of weights is added to, so the clock gives both ways other memory:
 * the second half of part 1. One of more than half a part stays ours by the clock.
 */
enum aq_status cuda_cudnn_conv(struct cuda_device *cuda, const struct aq_conv *args, struct aq_stream *stream,
                               bool *done);
enum aq_status cuda_cudnn_conv_backward(struct cuda_device *cuda, const struct aq_conv_backward *args,
                                        struct aq_stream *stream, bool *done);
enum aq_status cuda_cudnn_conv_weights(struct cuda_device *cuda, const struct aq_conv_weights *args,
                                       struct aq_stream *stream, bool *done);

#endif
