/*
 * cuda_cudnn_plan.c -- from a key to a plan: the descriptors that all graphs are made of, and the algorithm for one.
 * Names and meanings are as in NVIDIA's cudnn_graph.h.
 */
#include <stdio.h>
#include <string.h>

#include "cuda_cudnn_graph.h"

static bool failed(struct cudnn_plan *plan, cudnnStatus_t status, const char *what)
{
    char text[CUDA_TEXT_BYTES / 2] = "";
    if (status == CUDNN_STATUS_SUCCESS) return false;
    plan->calls->cudnnGetLastErrorString(text, sizeof text);
    snprintf(plan->why, sizeof plan->why, "%s: %s: %s", what, plan->calls->cudnnGetErrorString(status), text);
    plan->failed = status;
    return true;
}

cudnnBackendDescriptor_t cudnn_create(struct cudnn_plan *plan, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (plan->failed != CUDNN_STATUS_SUCCESS) return NULL;
    AQ_ASSERT(plan->count < CUDNN_DESCRIPTORS_MAX);
    if (failed(plan, plan->calls->cudnnBackendCreateDescriptor(type, &made), "a descriptor")) return NULL;
    return plan->descriptors[plan->count++] = made;
}

void cudnn_set(struct cudnn_plan *plan, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (plan->failed == CUDNN_STATUS_SUCCESS)
        failed(plan, plan->calls->cudnnBackendSetAttribute(of, name, type, count, values), "an attribute");
}

void cudnn_join(struct cudnn_plan *plan, cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                cudnnBackendDescriptor_t part)
{
    cudnn_set(plan, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

void cudnn_finish(struct cudnn_plan *plan, cudnnBackendDescriptor_t what, const char *name)
{
    if (plan->failed == CUDNN_STATUS_SUCCESS) failed(plan, plan->calls->cudnnBackendFinalize(what), name);
}

cudnnBackendDescriptor_t cudnn_tensor(struct cudnn_plan *plan, int64_t uid, cudnnDataType_t type,
                                      const struct cudnn_shape *shape, enum cudnn_place place)
{
    const int64_t alignment = place == CUDNN_ON_DEVICE ? plan->key.alignment : sizeof(float);
    const bool yes = true;
    cudnnBackendDescriptor_t made = cudnn_create(plan, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnn_set(plan, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    cudnn_set(plan, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnn_set(plan, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    cudnn_set(plan, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->sizes);
    cudnn_set(plan, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->strides);
    if (place == CUDNN_NOWHERE) cudnn_set(plan, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (place == CUDNN_BY_VALUE) cudnn_set(plan, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    cudnn_finish(plan, made, "a tensor");
    return made;
}

cudnnBackendDescriptor_t cudnn_scalar(struct cudnn_plan *plan, int64_t uid, cudnnDataType_t type)
{
    const struct cudnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return cudnn_tensor(plan, uid, type, &one, CUDNN_BY_VALUE);
}

cudnnBackendDescriptor_t cudnn_pointwise(struct cudnn_plan *plan, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                                         int64_t axis, const cudnnBackendDescriptor_t tensors[4], const char *name)
{
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC};
    cudnnBackendDescriptor_t form = cudnn_create(plan, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_set(plan, form, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    cudnn_set(plan, form, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0) cudnn_set(plan, form, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    cudnn_finish(plan, form, name);
    cudnnBackendDescriptor_t made = cudnn_create(plan, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    cudnn_join(plan, made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, form);
    for (int i = 0; i < 4; i++)
        if (tensors[i]) cudnn_join(plan, made, names[i], tensors[i]);
    cudnn_finish(plan, made, name);
    return made;
}

cudnnBackendDescriptor_t cudnn_graph(struct cudnn_plan *plan, int64_t count, const cudnnBackendDescriptor_t *operations,
                                     cudnnHandle_t handle, const char *name)
{
    cudnnBackendDescriptor_t graph = cudnn_create(plan, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_set(plan, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, operations);
    if (handle) cudnn_set(plan, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    cudnn_finish(plan, graph, name);
    return graph;
}

cudnnDataType_t cudnn_type(uint32_t type)
{
    return type == AQ_BF16 ? CUDNN_DATA_BFLOAT16 : type == AQ_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
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
static int64_t configs_of(struct cudnn_plan *plan, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                          cudnnBackendDescriptor_t target, int64_t room, cudnnBackendDescriptor_t *configs)
{
    cudnnBackendDescriptor_t heuristics = cudnn_create(plan, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnn_join(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    cudnn_set(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (target) cudnn_join(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target);
    cudnn_finish(plan, heuristics, "the heuristics");
    int64_t count = get(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    if (count > room) count = room;
    for (int64_t i = 0; i < count; i++)
        configs[i] = cudnn_create(plan, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    return count ? get(plan, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, configs)
                 : 0;
}

static bool attends(const struct cudnn_key *key)
{
    return key->operation == CUDNN_ATTENTION || key->operation == CUDNN_ATTENTION_BACKWARD;
}

/*
 * The notes of algorithms that a plan may not have, as bits: no two runs with other bits; sums of a convolution in fp32
 * and without Winograd's large tiles, which lose digits; in fp32 no tensor core, as that one rounds to tf32.
 */
static uint32_t notes_refused(const struct cudnn_key *key)
{
    uint32_t notes = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    if (attends(key)) return notes;
    notes |= 1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
             1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    if (key->type == AQ_F32)
        notes |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    return notes;
}

static bool allowed(struct cudnn_plan *plan, cudnnBackendDescriptor_t config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine = cudnn_create(plan, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    get(plan, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    const int64_t count = get(plan, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                              CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < count; i++)
        if (notes_refused(&plan->key) >> notes[i] & 1) return false;
    return plan->failed == CUDNN_STATUS_SUCCESS;
}

/* An algorithm that cannot be made is no failure of the plan: the next is tried; `why` keeps its error. */
static bool config_try(struct cudnn_plan *plan, cudnnBackendDescriptor_t config, cudnnHandle_t handle,
                       cudnnBackendDescriptor_t target, uint64_t workspace_max)
{
    int64_t workspace = 0;
    cudnnBackendDescriptor_t made = cudnn_create(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (handle) cudnn_set(plan, made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    if (target) cudnn_join(plan, made, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target);
    cudnn_join(plan, made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (plan->failed != CUDNN_STATUS_SUCCESS) return false;
    cudnn_finish(plan, made, "an algorithm");
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

/* The first algorithm of these heuristics that may be taken and can be made; *last: the failure of one that cannot. */
static void heuristics_try(struct cudnn_plan *plan, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                           cudnnHandle_t handle, cudnnBackendDescriptor_t target, uint64_t workspace_max,
                           cudnnStatus_t *last)
{
    cudnnBackendDescriptor_t configs[CUDNN_CONFIGS_MAX];
    const int64_t count = configs_of(plan, graph, mode, target, CUDNN_CONFIGS_MAX, configs);
    if (count && !plan->why[0])
        snprintf(plan->why, sizeof plan->why, "no algorithm is deterministic and as exact as the precision requires");
    if (plan->failed != CUDNN_STATUS_SUCCESS) *last = plan->failed;
    plan->failed = CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; i < count && !plan->plan; i++) {
        if (allowed(plan, configs[i]) && config_try(plan, configs[i], handle, target, workspace_max)) plan->why[0] = 0;
        if (plan->failed != CUDNN_STATUS_SUCCESS) *last = plan->failed;
        if (target && plan->failed == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER) return; /* so would all others */
        plan->failed = CUDNN_STATUS_SUCCESS;
    }
}

void cudnn_plan_make(const struct cudnn_calls *calls, const struct cudnn_key *key, cudnnHandle_t handle,
                     cudnnBackendDescriptor_t target, uint64_t workspace_max, struct cudnn_plan *plan)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    *plan = (struct cudnn_plan){.key = *key, .calls = calls};
    cudnnBackendDescriptor_t graph =
        attends(key) ? cudnn_attention_graph(plan, handle) : cudnn_conv_graph(plan, handle);
    if (plan->failed != CUDNN_STATUS_SUCCESS) return;
    cudnnStatus_t last = CUDNN_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof modes / sizeof *modes && !plan->plan && plan->failed == CUDNN_STATUS_SUCCESS; i++)
        heuristics_try(plan, graph, modes[i], handle, target, workspace_max, &last);
    if (plan->plan) return;
    plan->failed = last;
    if (!plan->why[0]) snprintf(plan->why, sizeof plan->why, "no algorithm is known for it");
}

void cudnn_plan_drop(struct cudnn_plan *plan)
{
    while (plan->count)
        plan->calls->cudnnBackendDestroyDescriptor(plan->descriptors[--plan->count]);
    *plan = (struct cudnn_plan){.calls = plan->calls};
}
