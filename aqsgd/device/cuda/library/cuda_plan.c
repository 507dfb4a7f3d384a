/*
 * cuda_plan.c -- the request to cuBLASLt for each kind of product, and which algorithm runs. See cuda_plan.h.
 *
 * A plan is made at the first product of its kind: descriptor, layouts, the first algorithms that cuBLASLt's heuristic
 * names with the fused epilogue; without such an algorithm the plain product, and aq_cuda_matmul_finish after it.
 * In-place reduction is not allowed: a sum must not depend on who comes first. The heuristic gets only the alignment in
 * the key, so that it cannot prefer an algorithm that an accident of placement allows.
 *
 * A bias must have the type of the result to be added by the product (cublasLt.h, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE).
 * GELU is fused where results have 16 bits: in fp32 cuBLASLt's is close to ours, and not exact.
 *
 * The gradient of a bias is the sum over k of an operand, which cuBLASLt makes while it reads it (BGRADA, BGRADB). It
 * writes the sums, in the result's type, and does not add them to what is there: they pass through scratch memory.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "cuda_cublaslt.h"
#include "cuda_plan.h"

static enum aq_status lt_failed(cublasStatus_t status, const char *call, const struct cuda_key *key)
{
    return aq_fail(AQ_CUDAERR, "device", "%s for M %llu N %llu K %llu: %s", call,
                   (unsigned long long)(key ? key->M : 0), (unsigned long long)(key ? key->N : 0),
                   (unsigned long long)(key ? key->K : 0), cublasLtGetStatusName(status));
}

#define LT(call, key)                                                                                                  \
    do {                                                                                                               \
        const cublasStatus_t lt_ = (call);                                                                             \
        if (lt_ != CUBLAS_STATUS_SUCCESS) return lt_failed(lt_, #call, key);                                           \
    } while (0)

static void plan_drop(struct cuda_plan *plan)
{
    if (plan->product) (void)cublasLtMatmulDescDestroy(plan->product);
    if (plan->first) (void)cublasLtMatrixLayoutDestroy(plan->first);
    if (plan->second) (void)cublasLtMatrixLayoutDestroy(plan->second);
    if (plan->result) (void)cublasLtMatrixLayoutDestroy(plan->result);
    memset(plan, 0, sizeof *plan);
}

void cuda_matmul_close(struct cuda_matmul *matmul)
{
    if (!matmul) return;
    for (uint32_t i = 0; i < CUDA_PLANS_MAX; i++)
        plan_drop(&matmul->plans[i]);
    if (matmul->preference) (void)cublasLtMatmulPreferenceDestroy(matmul->preference);
    if (matmul->handle) (void)cublasLtDestroy(matmul->handle);
    aq_free(matmul->table);
    aq_free(matmul);
}

static enum aq_status preference_make(struct cuda_matmul *matmul)
{
    const uint64_t workspace = CUDA_WORKSPACE_BYTES;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    LT(cublasLtCreate(&matmul->handle), NULL);
    LT(cublasLtMatmulPreferenceCreate(&matmul->preference), NULL);
    LT(cublasLtMatmulPreferenceSetAttribute(matmul->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                            sizeof workspace),
       NULL);
    LT(cublasLtMatmulPreferenceSetAttribute(matmul->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                            sizeof reductions),
       NULL);
    return cuda_products_path(matmul->cuda, &matmul->table);
}

enum aq_status cuda_matmul_open(struct cuda_device *cuda, struct cuda_matmul **out)
{
    AQ_TRY(cuda_cublaslt_open());
    struct cuda_matmul *matmul;
    AQ_TRY(AQ_NEW(1, &matmul));
    matmul->cuda = cuda;
    const enum aq_status status = preference_make(matmul);
    if (status == AQ_OK)
        *out = matmul;
    else
        cuda_matmul_close(matmul);
    return status;
}

/* --- what is asked ---------------------------------------------------------------------------------------------- */

static uint32_t align_of(const void *pointer)
{
    const uintptr_t at = (uintptr_t)pointer;
    uint32_t align = CUDA_ALIGN_MAX;
    while (at % align)
        align /= 2;
    return align;
}

/* The key's type of a bias with a row for each row of the product: no type that an epilogue knows. */
enum { BIAS_ROWS = 0xff };

static cudaDataType_t type_of(uint8_t element)
{
    return element == AQ_BF16 ? CUDA_R_16BF : element == AQ_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* The ending that cuBLASLt may do itself; false: it has none of that kind. */
static bool epilogue_of(const struct cuda_key *key, cublasLtEpilogue_t *out)
{
    if (key->bias && key->bias != key->c_type + 1) return false; /* not of the result's type, or a row each */
    if (key->sums) {                                             /* our a is its B */
        *out = key->sums == CUDA_SUMS_OF_A ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
        return true;
    }
    switch ((enum aq_matmul_after)key->after) {
    case AQ_AFTER_NONE:
    case AQ_AFTER_RESIDUAL:
        *out = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
        return !key->dropout;
    case AQ_AFTER_GELU:
        *out = key->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        return key->c_type != AQ_F32;
    case AQ_AFTER_GELU_BACKWARD:
        *out = CUBLASLT_EPILOGUE_DGELU;
        return !key->bias && key->c_type != AQ_F32;
    }
    return false;
}

#define SET(plan, attribute, value)                                                                                    \
    LT(cublasLtMatmulDescSetAttribute((plan)->product, attribute, &(value), sizeof(value)), &(plan)->key)

static enum aq_status epilogue_set(struct cuda_plan *plan, const void *bias, const void *other)
{
    const struct cuda_key *key = &plan->key;
    const int32_t bias_type = (int32_t)type_of(key->c_type);
    const int64_t stride = (int64_t)key->c_stride;
    cublasLtEpilogue_t epilogue;
    const bool aux = key->after == AQ_AFTER_GELU || key->after == AQ_AFTER_GELU_BACKWARD;
    if (!epilogue_of(key, &epilogue)) return AQ_OK;
    SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (key->bias || key->sums) {
        SET(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
        SET(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    if (aux) {
        SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
        SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, other);
    }
    return AQ_OK;
}

static enum aq_status describe(struct cuda_plan *plan)
{
    const struct cuda_key *key = &plan->key;
    const cublasComputeType_t compute = key->compute == AQ_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const cublasOperation_t first = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t b_rows = key->b_transposed ? key->N : key->K, b_columns = key->b_transposed ? key->K : key->N;
    const uint64_t a_rows = key->a_transposed ? key->K : key->M, a_columns = key->a_transposed ? key->M : key->K;
    LT(cublasLtMatmulDescCreate(&plan->product, compute, CUDA_R_32F), key);
    SET(plan, CUBLASLT_MATMUL_DESC_TRANSA, first);
    SET(plan, CUBLASLT_MATMUL_DESC_TRANSB, second);
    LT(cublasLtMatrixLayoutCreate(&plan->first, type_of(key->in_type), b_columns, b_rows, (int64_t)key->b_stride), key);
    LT(cublasLtMatrixLayoutCreate(&plan->second, type_of(key->in_type), a_columns, a_rows, (int64_t)key->a_stride),
       key);
    LT(cublasLtMatrixLayoutCreate(&plan->result, type_of(key->c_type), key->N, key->M, (int64_t)key->c_stride), key);
    return AQ_OK;
}

/* As many as the heuristic knows. False: none. */
static bool algorithms_find(struct cuda_matmul *matmul, struct cuda_plan *plan)
{
    const struct cuda_key *key = &plan->key;
    const bool residual = plan->fused && key->after == AQ_AFTER_RESIDUAL; /* its third operand is `other` */
    const uint32_t aligns[4] = {key->align_b, key->align_a, residual ? key->align_other : key->align_c, key->align_c};
    static const cublasLtMatmulPreferenceAttributes_t names[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulHeuristicResult_t results[CUDA_ALGORITHMS_MAX];
    int found = 0;
    for (int i = 0; i < 4; i++)
        if (cublasLtMatmulPreferenceSetAttribute(matmul->preference, names[i], &aligns[i], sizeof aligns[i]) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(matmul->handle, plan->product, plan->first, plan->second, plan->result,
                                       plan->result, matmul->preference, CUDA_ALGORITHMS_MAX, results, &found);
    plan->found = plan->at = 0;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found && i < CUDA_ALGORITHMS_MAX; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) plan->algorithms[plan->found++] = results[i].algo;
    return plan->found > 0;
}

bool cuda_plan_unfuse(struct cuda_matmul *matmul, struct cuda_plan *plan)
{
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const bool same = plan->key.after == AQ_AFTER_NONE && !plan->key.bias && !plan->key.sums;
    if (!plan->fused || same) return false;
    plan->fused = false;
    return cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ==
               CUBLAS_STATUS_SUCCESS &&
           algorithms_find(matmul, plan);
}

static enum aq_status plan_make(struct cuda_matmul *matmul, struct cuda_plan *plan)
{
    const struct cuda_key *key = &plan->key;
    const uint8_t *any = matmul->cuda->own->workspace; /* at a multiple of AQ_DEVICE_ALIGN */
    cublasLtEpilogue_t epilogue;
    AQ_TRY(describe(plan));
    plan->fused = epilogue_of(key, &epilogue);
    if (plan->fused) AQ_TRY(epilogue_set(plan, any + key->align_bias, any + key->align_other));
    if (algorithms_find(matmul, plan) || cuda_plan_unfuse(matmul, plan)) return AQ_OK;
    return lt_failed(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", key);
}

enum aq_status cuda_plan_remake(struct cuda_matmul *matmul, struct cuda_plan *plan)
{
    const struct cuda_key key = plan->key;
    plan_drop(plan);
    plan->key = key;
    const enum aq_status status = plan_make(matmul, plan);
    plan->made = status == AQ_OK;
    return status;
}

/* The bias that a fused ending reads, or where one leaves sums. */
static const void *bias_of(const struct aq_matmul *args, const struct aq_stream *stream)
{
    if (args->sums_a || args->sums_b) return cuda_plan_sums(stream);
    return args->bias_rounded ? (const void *)args->bias_rounded : args->bias;
}

enum aq_status cuda_plan_of(struct cuda_matmul *matmul, const struct aq_matmul *args, enum aq_element in_type,
                            const struct aq_stream *stream, struct cuda_plan **out)
{
    struct cuda_key key;
    memset(&key, 0, sizeof key);
    key.M = args->M;
    key.N = args->N;
    key.K = args->K;
    key.a_stride = args->a_stride;
    key.b_stride = args->b_stride;
    key.c_stride = args->c_stride;
    key.align_a = align_of(args->a);
    key.align_b = align_of(args->b);
    key.align_c = align_of(args->c);
    key.align_other = align_of(args->other);
    key.align_bias = align_of(bias_of(args, stream));
    key.in_type = (uint8_t)in_type;
    key.c_type = (uint8_t)args->c_type;
    key.compute = (uint8_t)args->compute;
    key.a_transposed = args->a_transposed;
    key.b_transposed = args->b_transposed;
    key.accumulate = args->accumulate;
    key.after = (uint8_t)args->after;
    /* 0: none; else one more than its type, or BIAS_ROWS. */
    key.bias = args->bias ? (uint8_t)((args->bias_rounded ? args->c_type : AQ_F32) + 1) : 0;
    if (args->bias_stride) key.bias = BIAS_ROWS;
    key.dropout = args->dropout.probability > 0.0f;
    key.sums = args->sums_a ? CUDA_SUMS_OF_A : args->sums_b ? CUDA_SUMS_OF_B : 0;
    for (uint32_t i = 0; i < CUDA_PLANS_MAX && matmul->plans[i].made; i++) {
        *out = &matmul->plans[i];
        if (memcmp(&matmul->plans[i].key, &key, sizeof key) == 0) return AQ_OK;
    }
    struct aq_cuda_list *const list = aq_cuda_list();
    if (list && !list->enqueues) { /* it may be timed, with operands that the work before it has still to write */
        list->unmade = true;
        return AQ_AGAIN;
    }
    struct cuda_plan *plan = &matmul->plans[matmul->next++ % CUDA_PLANS_MAX];
    plan->key = key;
    enum aq_status status = cuda_plan_remake(matmul, plan);
    if (status == AQ_OK && matmul->table) cuda_products_choose(matmul, plan, args, stream);
    if (status == AQ_OK && !plan->made) status = cuda_plan_remake(matmul, plan);
    if (status == AQ_OK)
        *out = plan;
    else
        matmul->next--;
    return status;
}

/* --- the product ------------------------------------------------------------------------------------------------ */

static int32_t config_of(const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute)
{
    int32_t value = 0;
    size_t written = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, &value, sizeof value, &written);
    return status == CUBLAS_STATUS_SUCCESS && written == sizeof value ? value : -1;
}

void cuda_plan_text(const struct cuda_plan *plan, char *text)
{
    static const char *const endings[] = {[AQ_AFTER_NONE] = "no ending",
                                          [AQ_AFTER_GELU] = "GELU",
                                          [AQ_AFTER_GELU_BACKWARD] = "GELU backward",
                                          [AQ_AFTER_RESIDUAL] = "residual"};
    static const char *const types[] = {[AQ_F32] = "fp32", [AQ_BF16] = "bf16", [AQ_F16] = "fp16"};
    const struct cuda_key *key = &plan->key;
    const cublasLtMatmulAlgo_t *algorithm = &plan->algorithms[plan->at];
    snprintf(
        text, CUDA_TEXT_BYTES,
        "product M %llu N %llu K %llu, %s%s x %s%s, %s%s to %s%s, %s%s: algorithm %d, tile %d, stages %d, split-K %d "
        "(%u of %u)",
        (unsigned long long)key->M, (unsigned long long)key->N, (unsigned long long)key->K,
        key->a_transposed ? "a'" : "a", key->align_a < CUDA_ALIGN_MAX ? " anywhere" : "",
        key->b_transposed ? "b'" : "b", key->align_b < CUDA_ALIGN_MAX ? " anywhere" : "", types[key->in_type],
        key->compute == AQ_TF32 ? " as tf32" : "", types[key->c_type], key->accumulate ? ", added" : "",
        key->bias ? "bias and " : "", key->sums ? "sums of an operand" : endings[key->after],
        config_of(algorithm, CUBLASLT_ALGO_CONFIG_ID), config_of(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
        config_of(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID), config_of(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
        plan->at + 1, plan->found);
}

cublasStatus_t cuda_plan_call(struct cuda_matmul *matmul, struct cuda_plan *plan, uint32_t at,
                              const struct aq_matmul *args, const struct aq_stream *stream)
{
    const bool residual = plan->fused && args->after == AQ_AFTER_RESIDUAL;
    const float one = 1.0f, share = args->accumulate || residual ? 1.0f : 0.0f;
    if (plan->fused && epilogue_set(plan, bias_of(args, stream), args->other) != AQ_OK)
        return CUBLAS_STATUS_INVALID_VALUE;
    return cublasLtMatmul(matmul->handle, plan->product, &one, args->b, plan->first, args->a, plan->second, &share,
                          residual ? args->other : args->c, plan->result, args->c, plan->result, &plan->algorithms[at],
                          stream->workspace, CUDA_WORKSPACE_BYTES, stream->at);
}

/* All that cuda_plan_call gives to cuBLASLt. Compared as bytes: filled by memset and assignments. */
struct product_call {
    struct cuda_key key;
    cublasLtMatmulAlgo_t algorithm;
    const void *a, *b, *bias, *other;
    void *c, *workspace;
    uint64_t fused;
};
static_assert(sizeof(struct product_call) == sizeof(struct cuda_key) + sizeof(cublasLtMatmulAlgo_t) + 7 * 8,
              "no padding: calls are compared as bytes");

static enum aq_status product_list(const struct cuda_plan *plan, const struct aq_matmul *args,
                                   const struct aq_stream *stream, bool *only)
{
    struct product_call call;
    memset(&call, 0, sizeof call);
    call.key = plan->key;
    call.algorithm = plan->algorithms[plan->at];
    call.a = args->a;
    call.b = args->b;
    call.bias = bias_of(args, stream);
    call.other = args->other;
    call.c = args->c;
    call.workspace = stream->workspace;
    call.fused = plan->fused;
    return aq_cuda_list_call("product", &call, sizeof call, stream->at, only);
}

enum aq_status cuda_plan_run(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                             const struct aq_stream *stream)
{
    char text[CUDA_TEXT_BYTES];
    bool only;
    AQ_TRY(product_list(plan, args, stream, &only));
    if (only) return AQ_OK;
    for (uint32_t tried = 1;; tried++) {
        const cublasStatus_t status = cuda_plan_call(matmul, plan, plan->at, args, stream);
        if (status != CUBLAS_STATUS_SUCCESS || !plan->chosen) cuda_plan_text(plan, text);
        if (status == CUBLAS_STATUS_SUCCESS) {
            if (!plan->chosen) aq_log("device", 2, "%s, %s", text, plan->fused ? "fused" : "ending apart");
            plan->chosen = true;
            return AQ_OK;
        }
        (void)cudaGetLastError(); /* dealt with here */
        aq_log("device", AQ_LOG_WARNING, "%s: %s", text, cublasLtGetStatusName(status));
        plan->chosen = false;
        if (tried < CUDA_ALGORITHMS_TRIED && plan->at + 1 < plan->found)
            plan->at++;
        else if (cuda_plan_unfuse(matmul, plan))
            tried = 0;
        else
            return lt_failed(status, "cublasLtMatmul", &plan->key);
    }
}
