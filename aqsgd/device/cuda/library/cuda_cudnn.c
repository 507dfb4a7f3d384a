/*
 * cuda_cudnn.c -- cuDNN in a stream: the library, the plans that were made, and the call that runs one.
 */
#include "cuda_cudnn.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aqsgd/gpu_library.h"
#include "cuda_cudnn_graph.h"
#include "cuda_list.h"

struct cuda_cudnn {
    struct cudnn_calls calls;
    cudnnHandle_t handle;
    enum cuda_way attention, convolution; /* what it was asked for */
    char *table;                          /* the file of choices by the clock; NULL: none is made */
    uint64_t made;                        /* plans */
    uint32_t next;                        /* the plan that goes where a further one comes */
    struct cudnn_plan plans[CUDNN_PLANS_MAX];
};

static_assert(sizeof(struct cudnn_key) == 64, "no padding: keys are compared as bytes");

static const char *const ways[] = {[CUDA_OWN] = "own", [CUDA_CUDNN] = "cudnn", [CUDA_FASTEST] = "fastest"};

/* What the user has set, for errors. */
static const char *variable_of(const struct cuda_cudnn *cudnn)
{
    return cudnn->attention == CUDA_OWN ? "AQ_GPU_CONVOLUTION" : "AQ_GPU_ATTENTION";
}

static const char *way_of(const struct cuda_cudnn *cudnn)
{
    return ways[cudnn->attention == CUDA_OWN ? cudnn->convolution : cudnn->attention];
}

/* What cuDNN computes; by the clock: where it is the faster. */
static const char *work_of(const struct cuda_cudnn *cudnn)
{
    if (cudnn->attention == CUDA_OWN) return "convolutions";
    return cudnn->convolution == CUDA_OWN ? "attention" : "attention and convolutions";
}

#ifdef AQ_CUDNN_LINKED
static enum aq_status library_open(struct cuda_cudnn *cudnn)
{
#define CUDNN_TAKE(name) cudnn->calls.name = name;
    CUDNN_CALLS(CUDNN_TAKE)
#undef CUDNN_TAKE
    return AQ_OK;
}
#else
static enum aq_status library_open(struct cuda_cudnn *cudnn)
{
#define CUDNN_NAME(name) #name,
    static const char *const names[] = {CUDNN_CALLS(CUDNN_NAME)};
#undef CUDNN_NAME
    enum { COUNT = sizeof names / sizeof *names };
    void *addresses[COUNT];
    uint32_t at = 0;
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    const enum aq_status status = aq_gpu_library_open(AQ_GPU_CUDNN, names, addresses, COUNT);
    aq_error_release(&hold);
    if (status != AQ_OK) return aq_fail(status, "device", "%s=%s: %s", variable_of(cudnn), way_of(cudnn), hold.text);
#define CUDNN_TAKE(name) *(void **)&cudnn->calls.name = addresses[at++];
    CUDNN_CALLS(CUDNN_TAKE)
#undef CUDNN_TAKE
    return AQ_OK;
}
#endif

static enum aq_status handle_open(struct cuda_cudnn *cudnn)
{
    const size_t version = cudnn->calls.cudnnGetVersion();
    if (version < CUDNN_VERSION_MIN)
        return aq_fail(AQ_NODEV, "device", "%s=%s: cuDNN %zu is installed, but %d or later is needed",
                       variable_of(cudnn), way_of(cudnn), version, CUDNN_VERSION_MIN);
    const cudnnStatus_t status = cudnn->calls.cudnnCreate(&cudnn->handle);
    if (status == CUDNN_STATUS_SUCCESS) return AQ_OK;
    return aq_fail(AQ_NODEV, "device", "%s=%s: cuDNN does not start: %s", variable_of(cudnn), way_of(cudnn),
                   cudnn->calls.cudnnGetErrorString(status));
}

enum aq_status cuda_cudnn_open(const struct cuda_device *cuda, enum cuda_way attention, enum cuda_way convolution,
                               struct cuda_cudnn **out)
{
    struct cuda_cudnn *cudnn;
    *out = NULL;
    if (attention == CUDA_OWN && convolution == CUDA_OWN) return AQ_OK;
    AQ_TRY(AQ_NEW(1, &cudnn));
    cudnn->attention = attention;
    cudnn->convolution = convolution;
    enum aq_status status = library_open(cudnn);
    if (status == AQ_OK) status = handle_open(cudnn);
    if (status == AQ_OK && (attention == CUDA_FASTEST || convolution == CUDA_FASTEST))
        status = cudnn_table_path(cuda, cudnn->calls.cudnnGetVersion(), &cudnn->table);
    if (status != AQ_OK) {
        cuda_cudnn_close(cudnn);
        return status;
    }
    aq_log("device", 1, "%s by cuDNN %zu%s", work_of(cudnn), cudnn->calls.cudnnGetVersion(),
           cudnn->table ? ", by the clock where AQ_GPU_ATTENTION or AQ_GPU_CONVOLUTION is fastest" : "");
    *out = cudnn;
    return AQ_OK;
}

void cuda_cudnn_close(struct cuda_cudnn *cudnn)
{
    if (!cudnn) return;
    for (uint32_t i = 0; i < CUDNN_PLANS_MAX; i++)
        cudnn_plan_drop(&cudnn->plans[i]);
    if (cudnn->handle) (void)cudnn->calls.cudnnDestroy(cudnn->handle);
    aq_free(cudnn->table);
    aq_free(cudnn);
}

/* For attention that is always cuDNN's, older checkpoints named only cuDNN's version: so does this. */
void cuda_cudnn_rounding(const struct cuda_cudnn *cudnn, char *text, size_t bytes)
{
    static const char *const texts[][3] = {
        [CUDA_OWN] = {"", ": convolutions", ": convolutions by the table"},
        [CUDA_CUDNN] = {"", ": attention and convolutions", ": attention, convolutions by the table"},
        [CUDA_FASTEST] = {": attention by the table", ": convolutions, attention by the table",
                          ": attention and convolutions by the table"}};
    const size_t used = strlen(text);
    snprintf(text + used, bytes - used, ", cuDNN %zu%s", cudnn->calls.cudnnGetVersion(),
             texts[cudnn->attention][cudnn->convolution]);
}

enum cuda_way cudnn_attends(const struct cuda_cudnn *cudnn)
{
    return cudnn->attention;
}

enum cuda_way cudnn_convolves(const struct cuda_cudnn *cudnn)
{
    return cudnn->convolution;
}

const char *cudnn_table(const struct cuda_cudnn *cudnn)
{
    return cudnn->table;
}

/* --- plans ------------------------------------------------------------------------------------------------------ */

struct cudnn_plan *cudnn_plan_of(struct cuda_cudnn *cudnn, const struct cudnn_key *key, uint64_t workspace_max,
                                 cudnn_text *text_of, const char *obstacle)
{
    for (uint32_t i = 0; i < CUDNN_PLANS_MAX; i++)
        if (cudnn->plans[i].calls && memcmp(&cudnn->plans[i].key, key, sizeof *key) == 0) return &cudnn->plans[i];
    char text[CUDA_TEXT_BYTES];
    struct cudnn_plan *plan = &cudnn->plans[cudnn->next];
    cudnn->next = (cudnn->next + 1) % CUDNN_PLANS_MAX;
    cudnn_plan_drop(plan);
    if (obstacle) {
        *plan = (struct cudnn_plan){.key = *key, .calls = &cudnn->calls};
        snprintf(plan->why, sizeof plan->why, "%s", obstacle);
    } else {
        cudnn_plan_make(&cudnn->calls, key, cudnn->handle, NULL, workspace_max, plan);
    }
    plan->number = ++cudnn->made;
    text_of(key, text, sizeof text);
    if (plan->plan)
        aq_log("device", 2, "%s: cuDNN, %llu bytes to work in", text, (unsigned long long)plan->workspace_bytes);
    else
        aq_log("device", 1, "%s: not cuDNN (%s)", text, plan->why);
    return plan;
}

/* --- a call ----------------------------------------------------------------------------------------------------- */

/* The graph's tensors that are read are not const either. */
void cudnn_put(struct cudnn_addresses *addresses, int64_t uid, const void *at)
{
    union {
        const void *given;
        void *taken;
    } address = {.given = at};
    addresses->uids[addresses->count] = uid;
    addresses->at[addresses->count++] = address.taken;
}

void cudnn_put_value(struct cudnn_addresses *addresses, int64_t uid, const void *value, size_t bytes)
{
    uint64_t *to = &addresses->values[addresses->count];
    AQ_ASSERT(bytes <= sizeof *to);
    *to = 0;
    memcpy(to, value, bytes);
    cudnn_put(addresses, uid, to);
}

/*
 * All that a call gives to cuDNN. A graph has the kernels of its plan, which may be gone with it: a plan that is made
 * again has another number. Compared as bytes: memset and assignments fill it.
 */
struct execute_call {
    uint64_t plan;
    const void *workspace;
    uint64_t uids[CUDNN_ADDRESSES_MAX], at[CUDNN_ADDRESSES_MAX]; /* of a number its value */
};
static_assert(sizeof(struct execute_call) == 8 + 8 + 16 * CUDNN_ADDRESSES_MAX,
              "no padding: calls are compared as bytes");

static enum aq_status execute_list(const struct cudnn_plan *plan, const struct cudnn_addresses *addresses,
                                   const void *workspace, const struct aq_stream *stream, const char *what, bool *only)
{
    struct execute_call call;
    memset(&call, 0, sizeof call);
    call.plan = plan->number;
    call.workspace = workspace;
    for (int64_t i = 0; i < addresses->count; i++) {
        const bool number = addresses->at[i] == &addresses->values[i];
        call.uids[i] = (uint64_t)addresses->uids[i];
        call.at[i] = number ? addresses->values[i] : (uintptr_t)addresses->at[i];
    }
    return aq_cuda_list_call(what, &call, sizeof call, stream->at, only);
}

enum aq_status cudnn_execute(struct cuda_cudnn *cudnn, const struct cudnn_plan *plan,
                             const struct cudnn_addresses *addresses, void *workspace, const struct aq_stream *stream,
                             const char *what)
{
    bool only;
    AQ_TRY(execute_list(plan, addresses, workspace, stream, what, &only));
    if (only) return AQ_OK;
    cudnnBackendDescriptor_t pack = NULL;
    const struct cudnn_calls *calls = &cudnn->calls;
    cudnnStatus_t status = calls->cudnnSetStream(cudnn->handle, stream->at);
    if (status == CUDNN_STATUS_SUCCESS)
        status = calls->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = calls->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                                 addresses->count, addresses->uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = calls->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                                 addresses->count, addresses->at);
    if (status == CUDNN_STATUS_SUCCESS)
        status = calls->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                                 &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = calls->cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS) status = calls->cudnnBackendExecute(cudnn->handle, plan->plan, pack);
    if (pack) (void)calls->cudnnBackendDestroyDescriptor(pack);
    if (status == CUDNN_STATUS_SUCCESS) return AQ_OK;
    return aq_fail(AQ_CUDAERR, "device", "cuDNN's %s: %s", what, calls->cudnnGetErrorString(status));
}
