/*
 * cuda_cudnn_plan.c -- attention as cuDNN's graph: the descriptors of its tensors, of the mask on its scores, and of
 * the operation; then an algorithm for it. Names and meanings are as in NVIDIA's cudnn_graph.h: SDPA_FWD and SDPA_BWD
 * are O = softmax(mask(Q K^t scale)) V and its gradients, DIAGONAL_BAND_MASK keeps a score where `row >= column`
 * (causal) or, with a left bound, where `column + bound > row` (a window).
 */
#include <stdio.h>
#include <string.h>

#include "cuda_cudnn_uids.h"

struct shape {
    int64_t sizes[4], strides[4];
};

/* The first failure stays, with cuDNN's own words; what comes after it is not called. */
static bool failed(struct cudnn_plan *plan, cudnnStatus_t status, const char *what)
{
    char text[CUDA_TEXT_BYTES / 2] = "";
    if (status == CUDNN_STATUS_SUCCESS) return false;
    plan->calls->cudnnGetLastErrorString(text, sizeof text);
    snprintf(plan->why, sizeof plan->why, "%s: %s: %s", what, plan->calls->cudnnGetErrorString(status), text);
    plan->failed = status;
    return true;
}

static cudnnBackendDescriptor_t create(struct cudnn_plan *plan, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (plan->failed != CUDNN_STATUS_SUCCESS) return NULL;
    AQ_ASSERT(plan->count < CUDNN_DESCRIPTORS_MAX);
    if (failed(plan, plan->calls->cudnnBackendCreateDescriptor(type, &made), "a descriptor")) return NULL;
    return plan->descriptors[plan->count++] = made;
}

static void set(struct cudnn_plan *plan, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (plan->failed == CUDNN_STATUS_SUCCESS)
        failed(plan, plan->calls->cudnnBackendSetAttribute(of, name, type, count, values), "an attribute");
}

static void join(struct cudnn_plan *plan, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                 cudnnBackendDescriptor_t part)
{
    set(plan, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static void finish(struct cudnn_plan *plan, cudnnBackendDescriptor_t what, const char *name)
{
    if (plan->failed == CUDNN_STATUS_SUCCESS) failed(plan, plan->calls->cudnnBackendFinalize(what), name);
}

enum place { ON_DEVICE, NOWHERE, BY_VALUE };

static cudnnBackendDescriptor_t tensor(struct cudnn_plan *plan, int64_t uid, cudnnDataType_t type,
                                       const struct shape *shape, enum place place)
{
    const int64_t alignment = place == ON_DEVICE ? CUDNN_ALIGNMENT : sizeof(float);
    const bool yes = true;
    cudnnBackendDescriptor_t made = create(plan, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(plan, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(plan, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(plan, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(plan, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->sizes);
    set(plan, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->strides);
    if (place == NOWHERE) set(plan, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (place == BY_VALUE) set(plan, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    finish(plan, made, "a tensor");
    return made;
}

static cudnnBackendDescriptor_t scalar(struct cudnn_plan *plan, int64_t uid, cudnnDataType_t type)
{
    const struct shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return tensor(plan, uid, type, &one, BY_VALUE);
}

/* --- the mask --------------------------------------------------------------------------------------------------- */

static cudnnBackendDescriptor_t scores(struct cudnn_plan *plan, int64_t uid)
{
    const int64_t B = (int64_t)plan->key.samples, H = (int64_t)plan->key.H, T = (int64_t)plan->key.T;
    const struct shape shape = {{B, H, T, T}, {H * T * T, T * T, T, 1}};
    return tensor(plan, uid, CUDNN_DATA_FLOAT, &shape, NOWHERE);
}

static cudnnBackendDescriptor_t band(struct cudnn_plan *plan, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y,
                                     cudnnBackendDescriptor_t fill, cudnnBackendDescriptor_t window)
{
    const cudnnPointwiseMode_t keeps = window ? CUDNN_POINTWISE_CMP_GT : CUDNN_POINTWISE_CMP_GE;
    cudnnBackendDescriptor_t made = create(plan, CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR);
    join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, x);
    join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, y);
    join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC, fill);
    if (window) join(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC, window);
    set(plan, made, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &keeps);
    finish(plan, made, "a mask");
    return made;
}

/* Causal, and the window behind it; *last is the number of the scores that come out. */
static cudnnBackendDescriptor_t mask(struct cudnn_plan *plan, int64_t *last)
{
    cudnnBackendDescriptor_t bands[2], at[3];
    const int64_t count = plan->key.window ? 2 : 1;
    cudnnBackendDescriptor_t fill = scalar(plan, UID_FILL, CUDNN_DATA_FLOAT);
    for (int64_t i = 0; i <= count; i++)
        at[i] = scores(plan, UID_SCORES + i);
    bands[0] = band(plan, at[0], at[1], fill, NULL);
    if (count == 2) bands[1] = band(plan, at[1], at[2], fill, scalar(plan, UID_WINDOW, CUDNN_DATA_INT32));
    cudnnBackendDescriptor_t graph = create(plan, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(plan, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, bands);
    finish(plan, graph, "the mask's graph");
    *last = UID_SCORES + count;
    return graph;
}

/* --- the operation ---------------------------------------------------------------------------------------------- */

/* A tensor of an attribute: queries' heads or keys'; a row of qkv or of out; or one number a row of scores. */
struct part {
    cudnnBackendAttributeName_t name;
    int64_t uid;
    enum { OF_QUERIES, OF_KEYS, OF_OUT, OF_LSE } kind;
};

static void part_join(struct cudnn_plan *plan, cudnnBackendDescriptor_t operation, const struct part *part)
{
    const int64_t B = (int64_t)plan->key.samples, H = (int64_t)plan->key.H, K = (int64_t)plan->key.kv_heads;
    const int64_t T = (int64_t)plan->key.T, D = (int64_t)plan->key.D, row = (H + 2 * K) * D;
    const struct shape shapes[] = {{{B, H, T, D}, {T * row, D, row, 1}},
                                   {{B, K, T, D}, {T * row, D, row, 1}},
                                   {{B, H, T, D}, {T * H * D, D, H * D, 1}},
                                   {{B, H, T, 1}, {H * T, T, 1, 1}}};
    const cudnnDataType_t of_rows = plan->key.type == AQ_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const cudnnDataType_t type = part->kind == OF_LSE ? CUDNN_DATA_FLOAT : of_rows;
    join(plan, operation, part->name, tensor(plan, part->uid, type, &shapes[part->kind], ON_DEVICE));
}

static const struct part parts_forward[] = {{CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, UID_Q, OF_QUERIES},
                                            {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, UID_K, OF_KEYS},
                                            {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, UID_V, OF_KEYS},
                                            {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, UID_O, OF_OUT},
                                            {CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, UID_LSE, OF_LSE}};

static const struct part parts_backward[] = {
    {CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC, UID_Q, OF_QUERIES},   {CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC, UID_K, OF_KEYS},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC, UID_V, OF_KEYS},      {CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC, UID_O, OF_OUT},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC, UID_LSE, OF_LSE}, {CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC, UID_DO, OF_OUT},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC, UID_DQ, OF_QUERIES}, {CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC, UID_DK, OF_KEYS},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC, UID_DV, OF_KEYS}};

static cudnnBackendDescriptor_t graph_of(struct cudnn_plan *plan, cudnnHandle_t handle)
{
    const bool backward = plan->key.backward;
    const struct part *parts = backward ? parts_backward : parts_forward;
    const size_t count = backward ? sizeof parts_backward / sizeof *parts : sizeof parts_forward / sizeof *parts;
    const int64_t first = UID_SCORES;
    int64_t last = first;
    cudnnBackendDescriptor_t operation = create(plan, backward ? CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR
                                                               : CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
    for (size_t i = 0; i < count; i++)
        part_join(plan, operation, &parts[i]);
    join(plan, operation, backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC : CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC,
         scalar(plan, UID_SCALE, CUDNN_DATA_FLOAT));
    join(plan, operation, backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH,
         mask(plan, &last));
    set(plan, operation,
        backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID,
        CUDNN_TYPE_INT64, 1, &first);
    set(plan, operation,
        backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID
                 : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID,
        CUDNN_TYPE_INT64, 1, &last);
    finish(plan, operation, "attention");
    cudnnBackendDescriptor_t graph = create(plan, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(plan, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation);
    if (handle) set(plan, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finish(plan, graph, "attention's graph");
    return graph;
}

/* --- an algorithm ----------------------------------------------------------------------------------------------- */

static int64_t get(struct cudnn_plan *plan, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, int64_t room, void *values)
{
    int64_t count = 0;
    if (plan->failed != CUDNN_STATUS_SUCCESS) return 0;
    if (failed(plan, plan->calls->cudnnBackendGetAttribute(of, name, type, room, &count, values), "an answer"))
        return 0;
    return count < room || room == 0 ? count : room;
}

/* The first `room` of what the heuristics name, the fastest first. */
static int64_t configs_of(struct cudnn_plan *plan, cudnnBackendDescriptor_t graph, cudnnBackendDescriptor_t target,
                          int64_t room, cudnnBackendDescriptor_t *configs)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t heuristics = create(plan, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    join(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (target) join(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target);
    finish(plan, heuristics, "the heuristics");
    int64_t count = get(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    if (count > room) count = room;
    for (int64_t i = 0; i < count; i++)
        configs[i] = create(plan, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    return count ? get(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, configs)
                 : 0;
}

/* According to cuDNN's notes on the algorithm. */
static bool deterministic(struct cudnn_plan *plan, cudnnBackendDescriptor_t config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine = create(plan, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    get(plan, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    const int64_t count = get(plan, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                              CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
    return plan->failed == CUDNN_STATUS_SUCCESS;
}

/* An algorithm that cannot be made is no failure of the plan: the next is tried; `why` keeps its error. */
static bool config_try(struct cudnn_plan *plan, cudnnBackendDescriptor_t config, cudnnHandle_t handle,
                       cudnnBackendDescriptor_t target, uint64_t workspace_max)
{
    int64_t workspace = 0;
    cudnnBackendDescriptor_t made = create(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (handle) set(plan, made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    if (target) join(plan, made, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target);
    join(plan, made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (plan->failed != CUDNN_STATUS_SUCCESS) return false;
    finish(plan, made, "an algorithm");
    if (plan->failed != CUDNN_STATUS_SUCCESS) return false;
    get(plan, made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
    if (plan->failed != CUDNN_STATUS_SUCCESS) return false;
    if ((uint64_t)workspace > workspace_max) {
        snprintf(plan->why, sizeof plan->why, "an algorithm needs a workspace of %lld bytes, there are %llu",
                 (long long)workspace, (unsigned long long)workspace_max);
        return false;
    }
    plan->plan = made;
    plan->workspace_bytes = (uint64_t)workspace;
    return true;
}

void cudnn_plan_make(const struct cudnn_calls *calls, const struct cudnn_key *key, cudnnHandle_t handle,
                     cudnnBackendDescriptor_t target, uint64_t workspace_max, struct cudnn_plan *plan)
{
    cudnnBackendDescriptor_t configs[CUDNN_CONFIGS_MAX];
    *plan = (struct cudnn_plan){.key = *key, .calls = calls};
    cudnnBackendDescriptor_t graph = graph_of(plan, handle);
    const int64_t count = configs_of(plan, graph, target, CUDNN_CONFIGS_MAX, configs);
    if (plan->failed != CUDNN_STATUS_SUCCESS) return;
    snprintf(plan->why, sizeof plan->why, "%s",
             count ? "no algorithm is deterministic" : "no algorithm is known for it");
    cudnnStatus_t last = CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; i < count && !plan->plan; i++) {
        if (deterministic(plan, configs[i]) && config_try(plan, configs[i], handle, target, workspace_max))
            plan->why[0] = 0;
        if (plan->failed != CUDNN_STATUS_SUCCESS) last = plan->failed;
        plan->failed = CUDNN_STATUS_SUCCESS;
    }
    if (!plan->plan) plan->failed = last;
}

void cudnn_plan_drop(struct cudnn_plan *plan)
{
    while (plan->count)
        plan->calls->cudnnBackendDestroyDescriptor(plan->descriptors[--plan->count]);
    *plan = (struct cudnn_plan){.calls = plan->calls};
}
