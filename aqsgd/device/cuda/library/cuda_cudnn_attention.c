/*
 * cuda_cudnn_attention.c -- attention as cuDNN's graph: the descriptors of its tensors, of the masks on its scores, and
 * of the operation; then its addresses. SDPA_FWD and SDPA_BWD are O = softmax(mask(Q K^t scale)) V and its gradients.
 *
 * A mask is a chain of operations that keep a score or replace it by minus infinity. DIAGONAL_BAND_MASK keeps it where
 * `row + ahead >= column` (0 ahead: causal), or, with a left bound, where `column + bound > row` (a window). Parts of
 * samples are three operations: the column's number, compared with the row's first column, selects. The latter is a
 * tensor (B, 1, T, 1) in device memory: `starts` as it is. Samples of several lengths are no mask in the chain: the
 * operation has attributes for them (SEQ_LEN).
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
    UID_AHEAD,
    UID_STARTS,
    UID_LENGTHS,
    UID_SCORES = 32, /* and those after it: before a mask, and behind each; in no memory */
    UID_COLUMNS = 48,
    UID_KEPT
};

static const cudnnDataType_t NUMBER = CUDNN_DATA_INT32;

/* --- the masks -------------------------------------------------------------------------------------------------- */

enum { MASK_OPERATIONS_MAX = 5 }; /* two bands; and the three of parts */

/* The chain as it grows: `scores` have the masks so far. */
struct mask {
    cudnnBackendDescriptor_t fill, scores, operations[MASK_OPERATIONS_MAX];
    int64_t count, uid;
};

/* Of each score one value, in no memory. */
static cudnnBackendDescriptor_t scores_of(struct cudnn_plan *plan, int64_t uid, cudnnDataType_t type)
{
    const int64_t B = (int64_t)plan->key.attention.samples, H = (int64_t)plan->key.attention.H,
                  T = (int64_t)plan->key.attention.T;
    const struct cudnn_shape shape = {{B, H, T, T}, {H * T * T, T * T, T, 1}};
    return cudnn_tensor(plan, uid, type, &shape, CUDNN_NOWHERE);
}

static cudnnBackendDescriptor_t mask_next(struct cudnn_plan *plan, struct mask *mask)
{
    return scores_of(plan, ++mask->uid, CUDNN_DATA_FLOAT);
}

/* bound: UID_WINDOW, a left bound; UID_AHEAD, columns ahead of the row; 0: none ahead. */
static void mask_band(struct cudnn_plan *plan, struct mask *mask, int64_t bound)
{
    const cudnnPointwiseMode_t keeps = bound == UID_WINDOW ? CUDNN_POINTWISE_CMP_GT : CUDNN_POINTWISE_CMP_GE;
    cudnnBackendDescriptor_t kept = mask_next(plan, mask);
    cudnnBackendDescriptor_t made = cudnn_create(plan, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR);
    cudnn_join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, mask->scores);
    cudnn_join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, kept);
    cudnn_join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, mask->fill);
    if (bound)
        cudnn_join(plan, made,
                   bound == UID_WINDOW ? CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC
                                       : CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC,
                   cudnn_scalar(plan, bound, NUMBER));
    cudnn_set(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
              &keeps);
    cudnn_finish(plan, made, "a mask");
    mask->operations[mask->count++] = made;
    mask->scores = kept;
}

/* From each row's first column on. */
static void mask_parts(struct cudnn_plan *plan, struct mask *mask)
{
    const int64_t B = (int64_t)plan->key.attention.samples, T = (int64_t)plan->key.attention.T;
    const struct cudnn_shape rows = {{B, 1, T, 1}, {T, T, 1, 1}};
    cudnnBackendDescriptor_t columns = scores_of(plan, UID_COLUMNS, NUMBER);
    cudnnBackendDescriptor_t starts = cudnn_tensor(plan, UID_STARTS, NUMBER, &rows, CUDNN_ON_DEVICE);
    cudnnBackendDescriptor_t keeps = scores_of(plan, UID_KEPT, CUDNN_DATA_BOOLEAN), kept = mask_next(plan, mask);
    const cudnnBackendDescriptor_t index[] = {mask->scores, NULL, NULL, columns},
                                   compare[] = {columns, starts, NULL, keeps},
                                   select[] = {mask->scores, mask->fill, keeps, kept};
    mask->operations[mask->count++] =
        cudnn_pointwise(plan, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, index, "columns' numbers");
    mask->operations[mask->count++] =
        cudnn_pointwise(plan, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, compare, "a comparison with starts");
    mask->operations[mask->count++] =
        cudnn_pointwise(plan, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, select, "a choice of scores");
    mask->scores = kept;
}

/* All masks of the key. None: nothing is made, and count is 0. */
static struct mask mask_make(struct cudnn_plan *plan)
{
    const uint64_t masks = plan->key.attention.masks, window = plan->key.attention.window;
    struct mask mask = {.uid = UID_SCORES};
    if ((masks & CUDNN_BOTH) && !window) return mask;
    mask.fill = cudnn_scalar(plan, UID_FILL, CUDNN_DATA_FLOAT);
    mask.scores = scores_of(plan, UID_SCORES, CUDNN_DATA_FLOAT);
    mask_band(plan, &mask, masks & CUDNN_BOTH ? UID_AHEAD : 0);
    if (window) mask_band(plan, &mask, UID_WINDOW);
    if (masks & CUDNN_PARTS) mask_parts(plan, &mask);
    return mask;
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

/* Names in the operation, forward and backward. */
struct attention_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t scale, subgraph, input, output, lengths_q, lengths_kv;
};

static const struct attention_names names_of[] = {
    {CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
     CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID,
     CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC,
     CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC},
    {CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC,
     CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID,
     CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID, CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC,
     CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC}};

/* Queries and keys are of the same samples. */
static void lengths_join(struct cudnn_plan *plan, cudnnBackendDescriptor_t operation,
                         const struct attention_names *names)
{
    const struct cudnn_shape shape = {{(int64_t)plan->key.attention.samples, 1, 1, 1}, {1, 1, 1, 1}};
    cudnnBackendDescriptor_t lengths = cudnn_tensor(plan, UID_LENGTHS, NUMBER, &shape, CUDNN_ON_DEVICE);
    cudnn_join(plan, operation, names->lengths_q, lengths);
    cudnn_join(plan, operation, names->lengths_kv, lengths);
}

cudnnBackendDescriptor_t cudnn_attention_graph(struct cudnn_plan *plan, cudnnHandle_t handle)
{
    const bool backward = plan->key.operation == CUDNN_ATTENTION_BACKWARD;
    const struct attention_names *names = &names_of[backward];
    const struct attention_part *parts = backward ? parts_backward : parts_forward;
    const size_t count = backward ? sizeof parts_backward / sizeof *parts : sizeof parts_forward / sizeof *parts;
    const int64_t first = UID_SCORES;
    cudnnBackendDescriptor_t operation = cudnn_create(plan, names->type);
    for (size_t i = 0; i < count; i++)
        attention_join(plan, operation, &parts[i]);
    cudnn_join(plan, operation, names->scale, cudnn_scalar(plan, UID_SCALE, CUDNN_DATA_FLOAT));
    if (plan->key.attention.masks & CUDNN_LENGTHS) lengths_join(plan, operation, names);
    const struct mask mask = mask_make(plan);
    if (mask.count) {
        cudnn_join(plan, operation, names->subgraph,
                   cudnn_graph(plan, mask.count, mask.operations, NULL, "the masks' graph"));
        cudnn_set(plan, operation, names->input, CUDNN_TYPE_INT64, 1, &first);
        cudnn_set(plan, operation, names->output, CUDNN_TYPE_INT64, 1, &mask.uid);
    }
    cudnn_finish(plan, operation, "attention");
    return cudnn_graph(plan, 1, &operation, handle, "attention's graph");
}

/* --- a call ----------------------------------------------------------------------------------------------------- */

/* Can the graph express it? Otherwise our own kernels compute it. */
static bool attention_fits(const struct aq_attention *args, bool backward)
{
    const uintptr_t any =
        (uintptr_t)args->qkv | (uintptr_t)args->out | (uintptr_t)args->lse | (uintptr_t)args->starts |
        (uintptr_t)args->lengths |
        (backward ? (uintptr_t)args->dout | (uintptr_t)args->dqkv_rounded | (uintptr_t)args->dqkv : 0);
    return aq_element_bytes(args->type) == 2 && !(args->dropout.probability > 0.0f) && args->cap == 0.0f &&
           args->D % (CUDNN_ALIGNMENT / 2) == 0 && any % CUDNN_ALIGNMENT == 0 && args->T < 1u << 31 &&
           (!backward || args->dqkv_rounded);
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
    snprintf(text, bytes, "attention%s of %llu x %llu tokens, %llu heads (%llu of keys) of %llu, window %llu%s%s%s",
             key->operation == CUDNN_ATTENTION_BACKWARD ? " backward" : "", (unsigned long long)key->attention.samples,
             (unsigned long long)key->attention.T, (unsigned long long)key->attention.H,
             (unsigned long long)key->attention.kv_heads, (unsigned long long)key->attention.D,
             (unsigned long long)key->attention.window, key->attention.masks & CUDNN_BOTH ? ", of both sides" : "",
             key->attention.masks & CUDNN_PARTS ? ", of parts" : "",
             key->attention.masks & CUDNN_LENGTHS ? ", of several lengths" : "");
}

static struct cudnn_key attention_key(const struct aq_attention *args, bool backward)
{
    const bool whole = args->window == 0 || args->window >= args->T; /* one plan for all of them */
    return (struct cudnn_key){.operation = backward ? CUDNN_ATTENTION_BACKWARD : CUDNN_ATTENTION,
                              .alignment = CUDNN_ALIGNMENT,
                              .type = args->type,
                              .attention = {.samples = args->samples,
                                            .T = args->T,
                                            .H = args->H,
                                            .kv_heads = args->kv_heads,
                                            .D = args->D,
                                            .window = whole ? 0 : args->window,
                                            .masks = (args->both ? CUDNN_BOTH : 0u) |
                                                     (args->starts ? CUDNN_PARTS : 0u) |
                                                     (args->lengths ? CUDNN_LENGTHS : 0u)}};
}

/* One call, by either way. */
struct attention_call {
    struct cuda_cudnn *cudnn;
    const struct cudnn_plan *plan;
    const struct aq_attention *args;
    const struct aq_stream *stream;
    bool backward;
};

static enum aq_status attention_own(void *context)
{
    const struct attention_call *call = context;
    void *scratch = cuda_part(call->stream, 0);
    return call->backward ? aq_cuda_attention_backward(call->args, scratch, call->stream->at)
                          : aq_cuda_attention(call->args, scratch, call->stream->at);
}

/* No document of cuDNN's says what is in the results' rows of padding: they become 0 after it. */
static enum aq_status attention_run(void *context)
{
    const struct attention_call *call = context;
    const struct aq_attention *args = call->args;
    const float scale = args->scale > 0.0f ? args->scale : 1.0f / sqrtf((float)args->D), fill = -INFINITY;
    const int32_t window = (int32_t)call->plan->key.attention.window, ahead = window - 1;
    const bool in_dqkv = call->plan->workspace_bytes > CUDA_WORKSPACE_BYTES;
    struct cudnn_addresses addresses = {.count = 0};
    put_rows(&addresses, args, args->qkv, UID_Q);
    cudnn_put(&addresses, UID_O, args->out);
    cudnn_put(&addresses, UID_LSE, args->lse);
    cudnn_put_value(&addresses, UID_SCALE, &scale, sizeof scale);
    if (!args->both || window) cudnn_put_value(&addresses, UID_FILL, &fill, sizeof fill);
    if (window) cudnn_put_value(&addresses, UID_WINDOW, &window, sizeof window);
    if (window && args->both) cudnn_put_value(&addresses, UID_AHEAD, &ahead, sizeof ahead);
    if (args->starts) cudnn_put(&addresses, UID_STARTS, args->starts);
    if (args->lengths) cudnn_put(&addresses, UID_LENGTHS, args->lengths);
    if (call->backward) {
        cudnn_put(&addresses, UID_DO, args->dout);
        put_rows(&addresses, args, args->dqkv_rounded, UID_DQ);
    }
    AQ_TRY(cudnn_execute(call->cudnn, call->plan, &addresses, in_dqkv ? (void *)args->dqkv : call->stream->workspace,
                         call->stream, "attention"));
    return args->lengths ? aq_cuda_attention_padding(args, call->backward, call->stream->at) : AQ_OK;
}

enum aq_status cuda_cudnn_attention(struct cuda_cudnn *cudnn, const struct aq_attention *args, bool backward,
                                    const struct aq_stream *stream, bool *done)
{
    *done = false;
    if (cudnn_attends(cudnn) == CUDA_OWN || !attention_fits(args, backward)) return AQ_OK;
    const struct cudnn_key key = attention_key(args, backward);
    /* Backward in 16 bits leaves the memory of the fp32 gradients to work in. */
    const uint64_t dqkv_bytes = args->samples * args->T * (args->H + 2 * args->kv_heads) * args->D * sizeof(float);
    const bool large = backward && dqkv_bytes > CUDA_WORKSPACE_BYTES;
    const uint64_t workspace_max = large ? dqkv_bytes : CUDA_WORKSPACE_BYTES;
    struct cudnn_plan *plan = cudnn_plan_of(cudnn, &key, workspace_max, attention_text, NULL);
    if (!plan->plan) return AQ_OK;
    struct attention_call call = {.cudnn = cudnn, .plan = plan, .args = args, .stream = stream, .backward = backward};
    const struct cudnn_contest contest = {
        .own = attention_own, .cudnn = attention_run, .context = &call, .text_of = attention_text};
    if (cudnn_attends(cudnn) == CUDA_FASTEST) AQ_TRY(cudnn_choose(cudnn_table(cudnn), plan, &contest, stream));
    if (plan->faster == CUDNN_IS_SLOWER) return AQ_OK;
    AQ_TRY(attention_run(&call));
    *done = true;
    return AQ_OK;
}
