/*
 * cuda_cudnn.c -- cuDNN's attention in a stream: the library, the plans that were made, and their addresses.
 */
#include "cuda_cudnn.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aqsgd/gpu_library.h"
#include "cuda_cudnn_uids.h"

struct cuda_cudnn {
    struct cudnn_calls calls;
    cudnnHandle_t handle;
    uint32_t next; /* the plan that goes where a further one comes */
    struct cudnn_plan plans[CUDNN_PLANS_MAX];
};

static_assert(sizeof(struct cudnn_key) == 56, "no padding: keys are compared as bytes");

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
    if (status != AQ_OK) return aq_fail(status, "device", "AQ_GPU_ATTENTION=cudnn: %s", hold.text);
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
        return aq_fail(AQ_NODEV, "device", "AQ_GPU_ATTENTION=cudnn: cuDNN %zu is installed, but %d or later is needed",
                       version, CUDNN_VERSION_MIN);
    const cudnnStatus_t status = cudnn->calls.cudnnCreate(&cudnn->handle);
    if (status == CUDNN_STATUS_SUCCESS) return AQ_OK;
    return aq_fail(AQ_NODEV, "device", "AQ_GPU_ATTENTION=cudnn: cuDNN does not start: %s",
                   cudnn->calls.cudnnGetErrorString(status));
}

enum aq_status cuda_cudnn_open(struct cuda_cudnn **out)
{
    const char *way = getenv("AQ_GPU_ATTENTION");
    *out = NULL;
    if (!way || !*way || strcmp(way, "own") == 0) return AQ_OK;
    if (strcmp(way, "cudnn") != 0)
        return aq_fail(AQ_INVAL, "device", "AQ_GPU_ATTENTION is \"%.40s\"; it must be own or cudnn", way);
    struct cuda_cudnn *cudnn;
    AQ_TRY(AQ_NEW(1, &cudnn));
    enum aq_status status = library_open(cudnn);
    if (status == AQ_OK) status = handle_open(cudnn);
    if (status != AQ_OK) {
        cuda_cudnn_close(cudnn);
        return status;
    }
    aq_log("device", 1, "attention by cuDNN %zu", cudnn->calls.cudnnGetVersion());
    *out = cudnn;
    return AQ_OK;
}

void cuda_cudnn_close(struct cuda_cudnn *cudnn)
{
    if (!cudnn) return;
    for (uint32_t i = 0; i < CUDNN_PLANS_MAX; i++)
        cudnn_plan_drop(&cudnn->plans[i]);
    if (cudnn->handle) (void)cudnn->calls.cudnnDestroy(cudnn->handle);
    aq_free(cudnn);
}

size_t cuda_cudnn_version(const struct cuda_cudnn *cudnn)
{
    return cudnn->calls.cudnnGetVersion();
}

/* --- plans ------------------------------------------------------------------------------------------------------ */

static struct cudnn_plan *plan_of(struct cuda_cudnn *cudnn, const struct cudnn_key *key, uint64_t workspace_max)
{
    for (uint32_t i = 0; i < CUDNN_PLANS_MAX; i++)
        if (memcmp(&cudnn->plans[i].key, key, sizeof *key) == 0) return &cudnn->plans[i];
    struct cudnn_plan *plan = &cudnn->plans[cudnn->next];
    cudnn->next = (cudnn->next + 1) % CUDNN_PLANS_MAX;
    cudnn_plan_drop(plan);
    cudnn_plan_make(&cudnn->calls, key, cudnn->handle, NULL, workspace_max, plan);
    char text[CUDA_TEXT_BYTES];
    snprintf(text, sizeof text, "attention%s of %llu x %llu tokens, %llu heads (%llu of keys) of %llu, window %llu",
             key->backward ? " backward" : "", (unsigned long long)key->samples, (unsigned long long)key->T,
             (unsigned long long)key->H, (unsigned long long)key->kv_heads, (unsigned long long)key->D,
             (unsigned long long)key->window);
    if (plan->plan)
        aq_log("device", 2, "%s: cuDNN, %llu bytes to work in", text, (unsigned long long)plan->workspace_bytes);
    else
        aq_log("device", 1, "%s: not cuDNN (%s)", text, plan->why);
    return plan;
}

/* --- a call ----------------------------------------------------------------------------------------------------- */

/* Can the graph express it? Otherwise our own kernels compute it. */
static bool can(const struct aq_attention *args, bool backward)
{
    const uintptr_t any =
        (uintptr_t)args->qkv | (uintptr_t)args->out |
        (backward ? (uintptr_t)args->dout | (uintptr_t)args->dqkv_rounded | (uintptr_t)args->dqkv : 0);
    return aq_element_bytes(args->type) == 2 && !(args->dropout.probability > 0.0f) && !args->starts && !args->both &&
           args->cap == 0.0f && args->D % (CUDNN_ALIGNMENT / 2) == 0 && any % CUDNN_ALIGNMENT == 0 &&
           args->T < 1u << 31 &&
           (!backward || args->dqkv_rounded);
}

struct addresses {
    int64_t uids[16];
    void *at[16];
    int64_t count;
};

/* The graph's tensors that are read are not const either. */
static void put(struct addresses *addresses, int64_t uid, const void *at)
{
    union {
        const void *given;
        void *taken;
    } address = {.given = at};
    addresses->uids[addresses->count] = uid;
    addresses->at[addresses->count++] = address.taken;
}

/* The three parts of a row of qkv, or of its gradient. */
static void put_rows(struct addresses *addresses, const struct aq_attention *args, const uint16_t *rows, int64_t first)
{
    put(addresses, first, rows);
    put(addresses, first + 1, rows + args->H * args->D);
    put(addresses, first + 2, rows + (args->H + args->kv_heads) * args->D);
}

static cudnnStatus_t execute(struct cuda_cudnn *cudnn, const struct cudnn_plan *plan, const struct addresses *addresses,
                             void *workspace, const struct aq_stream *stream)
{
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
    return status;
}

/* All that cuda_cudnn_attention gives to cuDNN, whose plan follows from the key. *only: it is not to be made. */
static enum aq_status attention_list(const struct aq_attention *args, const struct cudnn_key *key,
                                     const struct aq_stream *stream, bool *only)
{
    struct {
        struct cudnn_key key;
        const void *qkv, *out, *lse, *dout, *dqkv, *dqkv_rounded, *workspace;
        double scale;
    } call;
    static_assert(sizeof call == sizeof(struct cudnn_key) + 8 * 8, "no padding: calls are compared as bytes");
    memset(&call, 0, sizeof call);
    call.key = *key;
    call.qkv = args->qkv;
    call.out = args->out;
    call.lse = args->lse;
    call.dout = args->dout;
    call.dqkv = args->dqkv;
    call.dqkv_rounded = args->dqkv_rounded;
    call.workspace = stream->workspace;
    call.scale = (double)args->scale;
    return aq_cuda_list_call("cuDNN's attention", &call, sizeof call, stream->at, only);
}

enum aq_status cuda_cudnn_attention(struct cuda_cudnn *cudnn, const struct aq_attention *args, bool backward,
                                    const struct aq_stream *stream, bool *done)
{
    *done = false;
    if (!can(args, backward)) return AQ_OK;
    const bool whole = args->window == 0 || args->window >= args->T; /* one plan for all of them */
    const struct cudnn_key key = {.samples = args->samples,
                                  .T = args->T,
                                  .H = args->H,
                                  .kv_heads = args->kv_heads,
                                  .D = args->D,
                                  .window = whole ? 0 : args->window,
                                  .type = args->type,
                                  .backward = backward};
    /* Backward in 16 bits leaves the memory of the fp32 gradients to work in. */
    const uint64_t dqkv_bytes = args->samples * args->T * (args->H + 2 * args->kv_heads) * args->D * sizeof(float);
    const bool large = backward && dqkv_bytes > CUDA_WORKSPACE_BYTES;
    const struct cudnn_plan *plan = plan_of(cudnn, &key, large ? dqkv_bytes : CUDA_WORKSPACE_BYTES);
    if (!plan->plan) return AQ_OK;
    AQ_TRY(attention_list(args, &key, stream, done));
    if (*done) return AQ_OK;
    struct addresses addresses = {.count = 0};
    const float scale = args->scale > 0.0f ? args->scale : 1.0f / sqrtf((float)args->D), fill = -INFINITY;
    const int32_t window = (int32_t)key.window;
    put_rows(&addresses, args, args->qkv, UID_Q);
    put(&addresses, UID_O, args->out);
    put(&addresses, UID_LSE, args->lse);
    put(&addresses, UID_SCALE, &scale);
    put(&addresses, UID_FILL, &fill);
    if (window) put(&addresses, UID_WINDOW, &window);
    if (backward) {
        put(&addresses, UID_DO, args->dout);
        put_rows(&addresses, args, args->dqkv_rounded, UID_DQ);
    }
    const bool in_dqkv = plan->workspace_bytes > CUDA_WORKSPACE_BYTES;
    const cudnnStatus_t status =
        execute(cudnn, plan, &addresses, in_dqkv ? (void *)args->dqkv : stream->workspace, stream);
    if (status != CUDNN_STATUS_SUCCESS)
        return aq_fail(AQ_CUDAERR, "device", "cuDNN's attention: %s", cudnn->calls.cudnnGetErrorString(status));
    *done = true;
    return AQ_OK;
}
