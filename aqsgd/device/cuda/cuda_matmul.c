/*
 * cuda_matmul.c -- matrix products on a GPU: cuBLASLt, one plan a shape, and what follows the product in the same pass
 * where cuBLASLt can do that.
 *
 * cuBLASLt's matrices are stored by columns, ours by rows, so that it is asked for the transposed product: with X' the
 * same memory read by columns, C' = op(b)' op(a)', and its m is our N. Epilogues then run along our columns, as a bias
 * does.
 *
 * A plan is made at the first product of its kind: descriptor, layouts, the first algorithm that cuBLASLt's heuristic
 * names with the fused ending; where it has none, the plain product, and aq_cuda_matmul_finish after it. In-place
 * reduction is not allowed: a sum must not depend on who comes first.
 *
 * Tensor cores are fed 16 bytes at a time. Where the operands' rows begin so but an extent that runs along them does
 * not end so (GPT-2's vocabulary is odd), the product is made of parts: what is whole pieces, and the rest, a sliver.
 *
 * A bias must have the type of the result to be added by the product (cublasLt.h, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE).
 *
 * Operands of another type than the product wants (never those of a model: stages round theirs once) are converted in
 * the stream's scratch memory.
 */
#include <assert.h>
#include <string.h>

#include <cublasLt.h>

#include "cuda_device.h"

enum {
    PLANS_MAX = 512, /* shapes of a process: a GPT-2 stage has about 20, twice that with a last micro-batch */
    ALIGN_MAX = 256,
    PIECE_BYTES = 16, /* what tensor cores' kernels load and store at once */
    PART_MIN = 64     /* an extent below this is not worth two products */
};

/* All that an algorithm may depend on. Compared as bytes: filled by memset and assignments. */
struct key {
    uint64_t M, N, K, a_stride, b_stride, c_stride;
    uint32_t align_a, align_b, align_c, align_other, align_bias;
    uint8_t in_type, c_type, compute, a_transposed, b_transposed, accumulate, after, bias, dropout;
    uint8_t pad[3];
};
static_assert(sizeof(struct key) == 80, "no padding: keys are compared as bytes");

struct plan {
    struct key key;
    bool made, fused;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, result; /* of cuBLASLt: our b, our a, our c */
    cublasLtMatmulAlgo_t algorithm;
};

struct cuda_matmul {
    struct cuda_device *cuda;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    uint32_t next; /* the plan that goes where a further one comes */
    struct plan plans[PLANS_MAX];
};

static enum aq_status lt_failed(cublasStatus_t status, const char *call, const struct key *key)
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

static void plan_drop(struct plan *plan)
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
    for (uint32_t i = 0; i < PLANS_MAX; i++)
        plan_drop(&matmul->plans[i]);
    if (matmul->preference) (void)cublasLtMatmulPreferenceDestroy(matmul->preference);
    if (matmul->handle) (void)cublasLtDestroy(matmul->handle);
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
    return AQ_OK;
}

enum aq_status cuda_matmul_open(struct cuda_device *cuda, struct cuda_matmul **out)
{
    void *memory = NULL;
    AQ_TRY(aq_alloc(sizeof(struct cuda_matmul), &memory));
    struct cuda_matmul *matmul = memory;
    matmul->cuda = cuda;
    const enum aq_status status = preference_make(matmul);
    if (status == AQ_OK)
        *out = matmul;
    else
        cuda_matmul_close(matmul);
    return status;
}

/* --- plans ------------------------------------------------------------------------------------------------------ */

static uint32_t align_of(const void *pointer)
{
    const uintptr_t at = (uintptr_t)pointer;
    uint32_t align = ALIGN_MAX;
    while (at % align)
        align /= 2;
    return align;
}

static cudaDataType_t type_of(uint8_t element)
{
    return element == AQ_BF16 ? CUDA_R_16BF : element == AQ_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* The ending that cuBLASLt may do itself; false: it has none of that kind. */
static bool epilogue_of(const struct key *key, cublasLtEpilogue_t *out)
{
    if (key->bias && key->bias != key->c_type + 1) return false; /* not of the result's type */
    switch ((enum aq_matmul_after)key->after) {
    case AQ_AFTER_NONE:
    case AQ_AFTER_RESIDUAL:
        *out = key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
        return !key->dropout;
    case AQ_AFTER_GELU:
        *out = key->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        return true;
    case AQ_AFTER_GELU_BACKWARD:
        *out = CUBLASLT_EPILOGUE_DGELU;
        return !key->bias;
    }
    return false;
}

/* The bias that a fused ending reads. */
static const void *bias_of(const struct aq_matmul *args)
{
    return args->bias_rounded ? (const void *)args->bias_rounded : args->bias;
}

#define SET(plan, attribute, value)                                                                                    \
    LT(cublasLtMatmulDescSetAttribute((plan)->product, attribute, &(value), sizeof(value)), &(plan)->key)

static enum aq_status epilogue_set(struct plan *plan, const struct aq_matmul *args, cublasLtEpilogue_t epilogue)
{
    const int32_t bias_type = (int32_t)type_of(args->c_type);
    const void *const bias = bias_of(args);
    const int64_t stride = (int64_t)args->c_stride;
    const bool aux = args->after == AQ_AFTER_GELU || args->after == AQ_AFTER_GELU_BACKWARD;
    SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (bias) {
        SET(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
        SET(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    if (aux) {
        SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
        SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args->other);
    }
    return AQ_OK;
}

static enum aq_status describe(struct plan *plan)
{
    const struct key *key = &plan->key;
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

static bool algorithm_find(struct cuda_matmul *matmul, struct plan *plan)
{
    const struct key *key = &plan->key;
    const bool residual = plan->fused && key->after == AQ_AFTER_RESIDUAL; /* its third operand is `other` */
    const uint32_t aligns[4] = {key->align_b, key->align_a, residual ? key->align_other : key->align_c, key->align_c};
    static const cublasLtMatmulPreferenceAttributes_t names[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    for (int i = 0; i < 4; i++)
        if (cublasLtMatmulPreferenceSetAttribute(matmul->preference, names[i], &aligns[i], sizeof aligns[i]) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(matmul->handle, plan->product, plan->first, plan->second, plan->result,
                                       plan->result, matmul->preference, 1, &result, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return false;
    plan->algorithm = result.algo;
    return true;
}

static enum aq_status plan_make(struct cuda_matmul *matmul, const struct aq_matmul *args, struct plan *plan)
{
    cublasLtEpilogue_t epilogue;
    AQ_TRY(describe(plan));
    plan->fused = epilogue_of(&plan->key, &epilogue);
    if (plan->fused) {
        AQ_TRY(epilogue_set(plan, args, epilogue));
        if (algorithm_find(matmul, plan)) return AQ_OK;
        if (epilogue == CUBLASLT_EPILOGUE_DEFAULT && args->after == AQ_AFTER_NONE)
            return lt_failed(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", &plan->key);
        epilogue = CUBLASLT_EPILOGUE_DEFAULT;
        plan->fused = false;
        SET(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    }
    if (algorithm_find(matmul, plan)) return AQ_OK;
    return lt_failed(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", &plan->key);
}

static enum aq_status plan_of(struct cuda_matmul *matmul, const struct aq_matmul *args, enum aq_element in_type,
                              enum aq_element c_type, struct plan **out)
{
    struct key key;
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
    key.align_bias = align_of(bias_of(args));
    key.in_type = (uint8_t)in_type;
    key.c_type = (uint8_t)c_type;
    key.compute = (uint8_t)args->compute;
    key.a_transposed = args->a_transposed;
    key.b_transposed = args->b_transposed;
    key.accumulate = args->accumulate;
    key.after = (uint8_t)args->after;
    /* 0: none; else one more than its type. */
    key.bias = args->bias ? (uint8_t)((args->bias_rounded ? args->c_type : AQ_F32) + 1) : 0;
    key.dropout = args->dropout.probability > 0.0f;
    for (uint32_t i = 0; i < PLANS_MAX && matmul->plans[i].made; i++) {
        *out = &matmul->plans[i];
        if (memcmp(&matmul->plans[i].key, &key, sizeof key) == 0) return AQ_OK;
    }
    struct plan *plan = &matmul->plans[matmul->next++ % PLANS_MAX];
    plan_drop(plan);
    plan->key = key;
    const enum aq_status status = plan_make(matmul, args, plan);
    plan->made = status == AQ_OK;
    if (status == AQ_OK)
        *out = plan;
    else
        matmul->next--;
    return status;
}

/* --- the product ------------------------------------------------------------------------------------------------ */

/* An operand as the product wants it: itself, or a copy in part `part` of the scratch. rows x columns as stored. */
static enum aq_status operand(const struct aq_stream *stream, uint32_t part, enum aq_element want, uint64_t rows,
                              uint64_t columns, const void **at, enum aq_element type, uint64_t *stride)
{
    if (type == want) return AQ_OK;
    const uint64_t padded = (columns + 7) / 8 * 8, bytes = rows * padded * aq_element_bytes(want);
    if (bytes > CUDA_PART_BYTES)
        return aq_fail(AQ_INVAL, "device",
                       "a product of %llu x %llu values wants them in %zu bits: %llu bytes, room is for %d",
                       (unsigned long long)rows, (unsigned long long)columns, 8 * aq_element_bytes(want),
                       (unsigned long long)bytes, CUDA_PART_BYTES);
    AQ_TRY(aq_cuda_convert(*at, type, *stride, cuda_part(stream, part), want, padded, rows, columns, stream->at));
    *at = cuda_part(stream, part);
    *stride = padded;
    return AQ_OK;
}

static enum aq_status product_run(struct cuda_matmul *matmul, struct plan *plan, const struct aq_matmul *args,
                                  const struct aq_stream *stream)
{
    const bool residual = plan->fused && args->after == AQ_AFTER_RESIDUAL;
    const float one = 1.0f, share = args->accumulate || residual ? 1.0f : 0.0f;
    const void *third = residual ? args->other : args->c;
    cublasLtEpilogue_t epilogue;
    if (plan->fused && epilogue_of(&plan->key, &epilogue)) AQ_TRY(epilogue_set(plan, args, epilogue));
    LT(cublasLtMatmul(matmul->handle, plan->product, &one, args->b, plan->first, args->a, plan->second, &share, third,
                      plan->result, args->c, plan->result, &plan->algorithm, stream->workspace, CUDA_WORKSPACE_BYTES,
                      stream->at),
       &plan->key);
    return AQ_OK;
}

/*
 * Sums that go to 16 bits of another kind than the operands' pass through the scratch, as many rows at a time as it
 * holds.
 */
static enum aq_status product_detour(struct cuda_device *cuda, const struct aq_matmul *args, enum aq_element want,
                                     const struct aq_stream *stream)
{
    const uint64_t room = CUDA_PART_BYTES / sizeof(float) / args->N;
    if (room == 0)
        return aq_fail(AQ_INVAL, "device", "a product with rows of %llu values has no room on its way to 16 bits",
                       (unsigned long long)args->N);
    for (uint64_t first = 0; first < args->M; first += room) {
        struct aq_matmul end = *args;
        struct plan *plan;
        end.M = args->M - first < room ? args->M - first : room;
        end.a = (const uint8_t *)args->a +
                (args->a_transposed ? first : first * args->a_stride) * aq_element_bytes(want);
        end.c = (uint16_t *)args->c + first * args->c_stride;
        if (args->other) end.other = (uint16_t *)args->other + first * args->c_stride;
        const struct aq_matmul sums = {.M = end.M,
                                       .N = end.N,
                                       .K = end.K,
                                       .a = end.a,
                                       .b = end.b,
                                       .a_stride = end.a_stride,
                                       .b_stride = end.b_stride,
                                       .c_stride = end.N,
                                       .compute = end.compute,
                                       .a_transposed = end.a_transposed,
                                       .b_transposed = end.b_transposed,
                                       .c = cuda_part(stream, 0)};
        AQ_TRY(plan_of(cuda->matmul, &sums, want, AQ_F32, &plan));
        AQ_TRY(product_run(cuda->matmul, plan, &sums, stream));
        AQ_TRY(aq_cuda_matmul_finish(&end, sums.c, AQ_F32, sums.c_stride, stream->at));
    }
    return cuda_check(cuda, stream, "product");
}

static enum aq_status product_whole(struct cuda_device *cuda, const struct aq_matmul *args, enum aq_element want,
                                    const struct aq_stream *stream)
{
    struct plan *plan;
    AQ_TRY(plan_of(cuda->matmul, args, want, args->c_type, &plan));
    AQ_TRY(product_run(cuda->matmul, plan, args, stream));
    if (plan->fused) return AQ_OK;
    return aq_cuda_matmul_finish(args, args->c, args->c_type, args->c_stride, stream->at);
}

/* The part of an extent that is whole pieces, where the rest is worth a product of its own; else all of it. */
static uint64_t part_of(uint64_t extent, uint64_t piece, bool matters)
{
    return matters && extent >= PART_MIN ? extent - extent % piece : extent;
}

/* Values of a piece of 16 bytes; 0 where the product needs none: without tensor cores, or its rows begin anywhere. */
static uint64_t piece_of(const struct aq_matmul *args, enum aq_element want)
{
    const uint64_t piece = PIECE_BYTES / aq_element_bytes(want);
    if (args->compute == AQ_F32 || args->after != AQ_AFTER_NONE || args->bias || args->K == 0) return 0;
    if (args->a_stride % piece || args->b_stride % piece) return 0;
    if (args->c_stride * aq_element_bytes(args->c_type) % PIECE_BYTES) return 0;
    const uintptr_t any = (uintptr_t)args->a | (uintptr_t)args->b | (uintptr_t)args->c;
    return any % PIECE_BYTES ? 0 : piece;
}

/*
 * The product in parts: each extent along which one of the three matrices lies in memory is cut where its whole pieces
 * end. N is along c and perhaps b; K along a or b, or neither; M along a, where it is transposed.
 */
static enum aq_status product_parts(struct cuda_device *cuda, const struct aq_matmul *args, enum aq_element want,
                                    const struct aq_stream *stream)
{
    const uint64_t piece = piece_of(args, want), bytes = aq_element_bytes(want);
    if (piece == 0) return product_whole(cuda, args, want, stream);
    const bool k_matters = (args->b_transposed || !args->a_transposed) && args->c_type == AQ_F32;
    const uint64_t M = part_of(args->M, piece, args->a_transposed), N = part_of(args->N, piece, true);
    const uint64_t K = part_of(args->K, piece, k_matters);
    for (uint64_t m = 0; m < args->M; m += M)
        for (uint64_t n = 0; n < args->N; n += N)
            for (uint64_t k = 0; k < args->K; k += K) {
                const uint64_t a = args->a_transposed ? k * args->a_stride + m : m * args->a_stride + k;
                const uint64_t b = args->b_transposed ? n * args->b_stride + k : k * args->b_stride + n;
                struct aq_matmul part = *args;
                part.M = m ? args->M - m : M;
                part.N = n ? args->N - n : N;
                part.K = k ? args->K - k : K;
                part.a = (const uint8_t *)args->a + a * bytes;
                part.b = (const uint8_t *)args->b + b * bytes;
                part.c = (uint8_t *)args->c + (m * args->c_stride + n) * aq_element_bytes(args->c_type);
                part.accumulate = args->accumulate || k > 0;
                AQ_TRY(product_whole(cuda, &part, want, stream));
            }
    return AQ_OK;
}

enum aq_status cuda_matmul(struct aq_device *device, const struct aq_matmul *args, struct aq_stream *stream)
{
    struct cuda_device *cuda = cuda_device_of(device);
    const enum aq_element want = aq_element_bytes(args->compute) == 2 ? args->compute : AQ_F32;
    struct aq_matmul mine = *args;
    stream = cuda_stream_of(cuda, stream);
    AQ_TRY(operand(stream, 1, want, args->a_transposed ? args->K : args->M, args->a_transposed ? args->M : args->K,
                   &mine.a, args->a_type, &mine.a_stride));
    AQ_TRY(operand(stream, 2, want, args->b_transposed ? args->N : args->K, args->b_transposed ? args->K : args->N,
                   &mine.b, args->b_type, &mine.b_stride));
    if (args->c_type != AQ_F32 && args->c_type != want) return product_detour(cuda, &mine, want, stream);
    AQ_TRY(product_parts(cuda, &mine, want, stream));
    return cuda_check(cuda, stream, "product");
}
