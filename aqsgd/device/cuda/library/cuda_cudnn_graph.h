/*
 * cuda_cudnn_graph.h -- the words in which cuda_cudnn_attention.c and cuda_cudnn_conv.c describe a graph
 * (cuda_cudnn_plan.c), and the call that runs it (cuda_cudnn.c). Used only by these files.
 *
 * The first failure stays in the plan, with cuDNN's own text; what comes after it is not called. So a graph is written
 * without a branch per call, and its maker looks at plan->failed once.
 */
#ifndef AQ_CUDA_CUDNN_GRAPH_H
#define AQ_CUDA_CUDNN_GRAPH_H

#include "cuda_cudnn.h"
#include "cuda_table.h"

enum { CUDNN_ALIGNMENT = 16 }; /* bytes: of tensors in device memory, where they lie so */

/* Sizes and strides in elements, the outermost dimension first. */
struct cudnn_shape {
    int64_t sizes[4], strides[4];
};

enum cudnn_place { CUDNN_ON_DEVICE, CUDNN_NOWHERE, CUDNN_BY_VALUE };

cudnnBackendDescriptor_t cudnn_create(struct cudnn_plan *plan, cudnnBackendDescriptorType_t type);
void cudnn_set(struct cudnn_plan *plan, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *values);
void cudnn_join(struct cudnn_plan *plan, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                cudnnBackendDescriptor_t part);
void cudnn_finish(struct cudnn_plan *plan, cudnnBackendDescriptor_t what, const char *name);
cudnnBackendDescriptor_t cudnn_tensor(struct cudnn_plan *plan, int64_t uid, cudnnDataType_t type,
                                      const struct cudnn_shape *shape, enum cudnn_place place);

/* The graph of some operations. handle: NULL for a graph inside of another, and for a GPU in words. */
cudnnBackendDescriptor_t cudnn_graph(struct cudnn_plan *plan, int64_t count, const cudnnBackendDescriptor_t *operations,
                                     cudnnHandle_t handle, const char *name);

/* A number that is not in device memory: the call gives it. */
cudnnBackendDescriptor_t cudnn_scalar(struct cudnn_plan *plan, int64_t uid, cudnnDataType_t type);

/* y of x, and of b and t (NULL: none), computed in `type`. axis: of an index; -1: none. In the order x, b, t, y. */
cudnnBackendDescriptor_t cudnn_pointwise(struct cudnn_plan *plan, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                                         int64_t axis, const cudnnBackendDescriptor_t tensors[4], const char *name);

/* bf16, fp16 or fp32 as cuDNN names it. */
cudnnDataType_t cudnn_type(uint32_t type);

/* The graphs of the plan's key. */
cudnnBackendDescriptor_t cudnn_attention_graph(struct cudnn_plan *plan, cudnnHandle_t handle);
cudnnBackendDescriptor_t cudnn_conv_graph(struct cudnn_plan *plan, cudnnHandle_t handle);

enum { CUDNN_ADDRESSES_MAX = 16 };

/* Where the tensors of a graph are when it runs, by the numbers that they have in it. Not to be copied. */
struct cudnn_addresses {
    int64_t uids[CUDNN_ADDRESSES_MAX];
    void *at[CUDNN_ADDRESSES_MAX];
    uint64_t values[CUDNN_ADDRESSES_MAX]; /* tensors of one number, which cuDNN reads on the host */
    int64_t count;
};

void cudnn_put(struct cudnn_addresses *addresses, int64_t uid, const void *at);
void cudnn_put_value(struct cudnn_addresses *addresses, int64_t uid, const void *value, size_t bytes);

/* Names the shape of a key, in the log's one line about it. */
typedef void cudnn_text(const struct cudnn_key *key, char *text, size_t bytes);

/*
 * The plan of key: one that was made before, or a further one. Its `plan` is NULL where cuDNN has none, or is not
 * asked: obstacle has the reason, or is NULL.
 */
struct cudnn_plan *cudnn_plan_of(struct cuda_cudnn *cudnn, const struct cudnn_key *key, uint64_t workspace_max,
                                 cudnn_text *text_of, const char *obstacle);

/*
 * Enqueues the plan on the stream, or lists it for a graph of launches (cuda_list.h). AQ_CUDAERR: cuDNN refused, with
 * its text; `what` names the operation.
 */
enum aq_status cudnn_execute(struct cuda_cudnn *cudnn, const struct cudnn_plan *plan,
                             const struct cudnn_addresses *addresses, void *workspace, const struct aq_stream *stream,
                             const char *what);

/* Whose kernels were asked for? */
enum cuda_way cudnn_attends(const struct cuda_cudnn *cudnn);
enum cuda_way cudnn_convolves(const struct cuda_cudnn *cudnn);

/* --- cuda_cudnn_choose.c: by the clock --- */

/* The table's path. AQ_INVAL: no folder is named; statuses of cuda_table_open: it cannot be used. Logged. */
enum aq_status cudnn_table_path(const struct cuda_device *cuda, size_t version, char **path);

struct cudnn_contest {
    cuda_timed *own, *cudnn; /* of `context` */
    void *context;
    cudnn_text *text_of;
    const char *obstacle; /* why the clock cannot be asked, so our kernels are taken; NULL: it can */
};

/*
 * Sets plan->faster, if it is not set: from the table, or by the clock, and then the table has it. The log has a line
 * with the choice and the reason. Statuses are those of cuda_cudnn_attention.
 */
enum aq_status cudnn_choose(const char *path, struct cudnn_plan *plan, const struct cudnn_contest *contest,
                            const struct aq_stream *stream);
const char *cudnn_table(const struct cuda_cudnn *cudnn);

#endif
