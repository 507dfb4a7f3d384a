/*
 * cuda_cudnn_attention.c -- attention as cuDNN's graph: the descriptors of its tensors, of the mask on its scores, and
 * of the operation; then its addresses. SDPA_FWD and SDPA_BWD are O = softmax(mask(Q K^t scale)) V and its gradients,
 * DIAGONAL_BAND_MASK keeps a score where `row >= column` (causal) or, with a left bound, where
 * `column + bound > row` (a window).
 */
#include <math.h>
#include <stdio.h>

#include "cuda_cudnn_graph.h"

enum {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_LSE,
    UID_SCALE,
    UID_FILL,
    UID_WINDOW,
    UID_DO,
    UID_DQ,
    UID_DK,
    UID_DV,
    UID_SCORES = 32 /* and the two after it: before a mask, and behind each; in no memory */
};

static cudnnBackendDescriptor_t scalar(struct cudnn_plan *plan, int64_t uid, cudnnDataType_t type)
{
    const struct cudnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return cudnn_tensor(plan, uid, type, &one, CUDNN_BY_VALUE);
}

/* --- the mask --------------------------------------------------------------------------------------------------- */

static cudnnBackendDescriptor_t scores(struct cudnn_plan *plan, int64_t uid)
{
    const int64_t B = (int64_t)plan->key.attention.samples, H = (int64_t)plan->key.attention.H,
                  T = (int64_t)plan->key.attention.T;
    const struct cudnn_shape shape = {{B, H, T, T}, {H * T * T, T * T, T, 1}};
    return cudnn_tensor(plan, uid, CUDNN_DATA_FLOAT, &shape, CUDNN_NOWHERE);
}

static cudnnBackendDescriptor_t band(struct cudnn_plan *plan, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y,
                                     cudnnBackendDescriptor_t fill, cudnnBackendDescriptor_t window)
{
    const cudnnPointwiseMode_t keeps = window ? CUDNN_POINTWISE_CMP_GT : CUDNN_POINTWISE_CMP_GE;
    cudnnBackendDescriptor_t made = cudnn_create(plan, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR);
    cudnn_join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, x);
    cudnn_join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, y);
    cudnn_join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, fill);
    if (window) cudnn_join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC, window);
    cudnn_set(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
              &keeps);
    cudnn_finish(plan, made, "a mask");
    return made;
}

/* Causal, and the window behind it; *last is the number of the scores that come out. */
static cudnnBackendDescriptor_t mask(struct cudnn_plan *plan, int64_t *last)
{
    cudnnBackendDescriptor_t bands[2], at[3];
    const int64_t count = plan->key.attention.window ? 2 : 1;
    cudnnBackendDescriptor_t fill = scalar(plan, UID_FILL, CUDNN_DATA_FLOAT);
    for (int64_t i = 0; i <= count; i++)
        at[i] = scores(plan, UID_SCORES + i);
    bands[0] = band(plan, at[0], at[1], fill, NULL);
    if (count == 2) bands[1] = band(plan, at[1], at[2], fill, scalar(plan, UID_WINDOW, CUDNN_DATA_INT32));
    *last = UID_SCORES + count;
    return cudnn_graph(plan, count, bands, NULL, "the mask's graph");
}

/* --- the operation ---------------------------------------------------------------------------------------------- */

/* A tensor of an attribute: queries' heads or keys'; a row of qkv or of out; or one number a row of scores. */
struct attention_part {
    cudnnBackendAttributeName_t name;
    int64_t uid;
    enum { OF_QUERIES, OF_KEYS, OF_OUT, OF_LSE } kind;
};

static void attention_join(struct cudnn_plan *plan, cudnnBackendDescriptor_t operation,
                           const struct attention_part *part)
{
    const int64_t B = (int64_t)plan->key.attention.samples, H = (int64_t)plan->key.attention.H,
                  K = (int64_t)plan->key.attention.kv_heads;
    const int64_t T = (int64_t)plan->key.attention.T, D = (int64_t)plan->key.attention.D, row = (H + 2 * K) * D;
    const struct cudnn_shape shapes[] = {{{B, H, T, D}, {T * row, D, row, 1}},
                                         {{B, K, T, D}, {T * row, D, row, 1}},
                                         {{B, H, T, D}, {T * H * D, D, H * D, 1}},
                                         {{B, H, T, 1}, {H * T, T, 1, 1}}};
    const cudnnDataType_t type = part->kind == OF_LSE ? CUDNN_DATA_FLOAT : cudnn_type(plan->key.type);
    cudnn_join(plan, operation, part->name, cudnn_tensor(plan, part->uid, type, &shapes[part->kind], CUDNN_ON_DEVICE));
}

static const struct attention_part parts_forward[] = {{CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, UID_Q, OF_QUERIES},
                                                      {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, UID_K, OF_KEYS},
                                                      {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, UID_V, OF_KEYS},
                                                      {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, UID_O, OF_OUT},
                                                      {CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, UID_LSE, OF_LSE}};

static const struct attention_part parts_backward[] = {
    {CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC, UID_Q, OF_QUERIES},   {CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC, UID_K, OF_KEYS},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC, UID_V, OF_KEYS},      {CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC, UID_O, OF_OUT},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC, UID_LSE, OF_LSE}, {CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC, UID_DO, OF_OUT},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC, UID_DQ, OF_QUERIES}, {CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC, UID_DK, OF_KEYS},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC, UID_DV, OF_KEYS}};

cudnnBackendDescriptor_t cudnn_attention_graph(struct cudnn_plan *plan, cudnnHandle_t handle)
{
    const bool backward = plan->key.operation == CUDNN_ATTENTION_BACKWARD;
    const struct attention_part *parts = backward ? parts_backward : parts_forward;
    const size_t count = backward ? sizeof parts_backward / sizeof *parts : sizeof parts_forward / sizeof *parts;
    const int64_t first = UID_SCORES;
    int64_t last = first;
    cudnnBackendDescriptor_t operation = cudnn_create(plan, backward ? CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR
                                                                     : CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    for (size_t i = 0; i < count; i++)
        attention_join(plan, operation, &parts[i]);
    cudnn_join(plan, operation,
               backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC : CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
               scalar(plan, UID_SCALE, CUDNN_DATA_FLOAT));
    cudnn_join(plan, operation,
               backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH,
               mask(plan, &last));
    cudnn_set(plan, operation,
              backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID
                       : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID,
              CUDNN_TYPE_INT64, 1, &first);
    cudnn_set(plan, operation,
              backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID
                       : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID,
              CUDNN_TYPE_INT64, 1, &last);
    cudnn_finish(plan, operation, "attention");
    return cudnn_graph(plan, 1, &operation, handle, "attention's graph");
}

/* --- a call ----------------------------------------------------------------------------------------------------- */

/* Can the graph express it? Otherwise our own kernels compute it. */
static bool attention_fits(const struct aq_attention *args, bool backward)
{
    const uintptr_t any =
        (uintptr_t)args->qkv | (uintptr_t)args->out |
        (backward ? (uintptr_t)args->dout | (uintptr_t)args->dqkv_rounded | (uintptr_t)args->dqkv : 0);
    return aq_element_bytes(args->type) == 2 && !(args->dropout.probability > 0.0f) && !args->starts && !args->both &&
           args->cap == 0.0f && args->D % (CUDNN_ALIGNMENT / 2) == 0 && any % CUDNN_ALIGNMENT == 0 &&
           args->T < 1u << 31 && (!backward || args->dqkv_rounded);
}

/* The three parts of a row of qkv, or of its gradient. */
static void put_rows(struct cudnn_addresses *addresses, const struct aq_attention *args, const uint16_t *rows,
                     int64_t first)
{
    cudnn_put(addresses, first, rows);
    cudnn_put(addresses, first + 1, rows + args->H * args->D);
    cudnn_put(addresses, first + 2, rows + (args->H + args->kv_heads) * args->D);
}

static void attention_text(const struct cudnn_key *key, char *text, size_t bytes)
{
    snprintf(text, bytes, "attention%s of %llu x %llu tokens, %llu heads (%llu of keys) of %llu, window %llu",
             key->operation == CUDNN_ATTENTION_BACKWARD ? " backward" : "", (unsigned long long)key->attention.samples,
             (unsigned long long)key->attention.T, (unsigned long long)key->attention.H,
             (unsigned long long)key->attention.kv_heads, (unsigned long long)key->attention.D,
             (unsigned long long)key->attention.window);
}

enum aq_status cuda_cudnn_attention(struct cuda_cudnn *cudnn, const struct aq_attention *args, bool backward,
                                    const struct aq_stream *stream, bool *done)
{
    *done = false;
    if (!cudnn_attends(cudnn) || !attention_fits(args, backward)) return AQ_OK;
    const bool whole = args->window == 0 || args->window >= args->T; /* one plan for all of them */
    const struct cudnn_key key = {.operation = backward ? CUDNN_ATTENTION_BACKWARD : CUDNN_ATTENTION,
                                  .alignment = CUDNN_ALIGNMENT,
                                  .type = args->type,
                                  .attention = {.samples = args->samples,
                                                .T = args->T,
                                                .H = args->H,
                                                .kv_heads = args->kv_heads,
                                                .D = args->D,
                                                .window = whole ? 0 : args->window}};
    /* Backward in 16 bits leaves the memory of the fp32 gradients to work in. */
    const uint64_t dqkv_bytes = args->samples * args->T * (args->H + 2 * args->kv_heads) * args->D * sizeof(float);
    const bool large = backward && dqkv_bytes > CUDA_WORKSPACE_BYTES;
    const uint64_t workspace_max = large ? dqkv_bytes : CUDA_WORKSPACE_BYTES;
    const struct cudnn_plan *plan = cudnn_plan_of(cudnn, &key, workspace_max, attention_text, NULL);
    if (!plan->plan) return AQ_OK;
    struct cudnn_addresses addresses = {.count = 0};
    const float scale = args->scale > 0.0f ? args->scale : 1.0f / sqrtf((float)args->D), fill = -INFINITY;
    const int32_t window = (int32_t)key.attention.window;
    put_rows(&addresses, args, args->qkv, UID_Q);
    cudnn_put(&addresses, UID_O, args->out);
    cudnn_put(&addresses, UID_LSE, args->lse);
    cudnn_put_value(&addresses, UID_SCALE, &scale, sizeof scale);
    cudnn_put_value(&addresses, UID_FILL, &fill, sizeof fill);
    if (window) cudnn_put_value(&addresses, UID_WINDOW, &window, sizeof window);
    if (backward) {
        cudnn_put(&addresses, UID_DO, args->dout);
        put_rows(&addresses, args, args->dqkv_rounded, UID_DQ);
    }
    const bool in_dqkv = plan->workspace_bytes > CUDA_WORKSPACE_BYTES;
    void *workspace = in_dqkv ? (void *)args->dqkv : stream->workspace;
    AQ_TRY(cudnn_execute(cudnn, plan, &addresses, workspace, stream, "attention"));
    *done = true;
    return AQ_OK;
}
