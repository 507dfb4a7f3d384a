/*
 * cuda_runtime_host.c -- CUDA's runtime and cuBLASLt on the host. See the two headers. Streams: cuda_streams_host.c;
 * memory: cuda_memory_host.c.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "aqsgd/base.h"
#include "cublasLt.h"
#include "cuda_cublaslt.h"

enum { CONTEXT_BYTES = 1 << 20 }; /* a GPU with less can hold no context; it takes nothing of the rest */

static int driver_version = 13000, gpu_count = 1, gpu_major = 9, gpu_minor = 0;
static _Thread_local int current_gpu;

enum aq_status cuda_cublaslt_open(void)
{
    return AQ_OK; /* it is linked */
}

/* --- the device ------------------------------------------------------------------------------------------------- */

void cuda_runtime_host_driver(int version, int count, int major, int minor)
{
    driver_version = version;
    gpu_count = count;
    gpu_major = major;
    gpu_minor = minor;
}

/* What the environment says instead, for tests of whole programs. */
static long wish(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

static int driver(void)
{
    return (int)wish("CUDA_HOST_DRIVER", driver_version);
}

static int gpus(void)
{
    return (int)wish("CUDA_HOST_GPUS", gpu_count);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = gpus();
    if (driver() < CUDART_VERSION) return cudaErrorInsufficientDriver;
    return gpus() ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int index)
{
    const int capability = (int)wish("CUDA_HOST_CAPABILITY", 10 * gpu_major + gpu_minor);
    *out = (struct cudaDeviceProp){.name = "the host",
                                   .uuid = {.bytes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, (char)index}},
                                   .totalGlobalMem = cuda_runtime_host_all(),
                                   .major = capability / 10,
                                   .minor = capability % 10,
                                   .multiProcessorCount = 4};
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int index)
{
    (void)attribute;
    (void)index;
    *out = cudaComputeModeDefault;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    if (index < 0 || index >= gpus()) return cudaErrorInvalidValue;
    if (cuda_runtime_host_all() < CONTEXT_BYTES) return cudaErrorMemoryAllocation;
    current_gpu = index;
    return cudaSuccess;
}

int cuda_runtime_host_current(void)
{
    return current_gpu;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess                         ? "no error"
           : error == cudaErrorStreamCaptureUnsupported ? "operation not permitted when stream is capturing"
           : error == cudaErrorStreamCaptureInvalidated ? "operation failed due to a previous error during capture"
                                                        : "an error";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

/* --- cuBLASLt --------------------------------------------------------------------------------------------------- */

struct lt_product {
    cublasComputeType_t compute;
    cublasOperation_t a, b;
    cublasLtEpilogue_t epilogue;
    void *bias; /* or where sums go */
    int32_t bias_type;
    void *aux;
    int64_t aux_stride;
};

struct lt_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t stride;
};

struct lt_preference {
    uint64_t workspace;
    uint32_t aligns[4]; /* of a, b, c, d */
};

/* What an algorithm was found for: cublasLtMatmulAlgo_t holds it. */
struct lt_algorithm {
    uint64_t workspace;
    uint32_t aligns[4], bias_align, aux_align;
    cublasLtEpilogue_t epilogue;
    cublasComputeType_t compute;
    int32_t number; /* first of the heuristic's: 0 */
};
static_assert(sizeof(struct lt_algorithm) <= sizeof(cublasLtMatmulAlgo_t), "it fits");

struct cublasLtContext {
    int opened;
};

static struct cublaslt_host_algorithms known = {.count = 3};
static int last = -1;

void cublaslt_host_say(struct cublaslt_host_algorithms algorithms)
{
    known = algorithms;
}

int cublaslt_host_last(void)
{
    return last;
}

static int bit_of(const struct lt_algorithm *algorithm)
{
    return algorithm->number + (algorithm->epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 8 : 0);
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = calloc(1, sizeof **out);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    *out = calloc(1, sizeof **out);
    (*out)->compute = compute;
    (*out)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    (*out)->bias_type = -1; /* the result's */
    return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
    free(product);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    void *to = attribute == CUBLASLT_MATMUL_DESC_TRANSA                 ? (void *)&product->a
               : attribute == CUBLASLT_MATMUL_DESC_TRANSB               ? (void *)&product->b
               : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE             ? (void *)&product->epilogue
               : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER         ? (void *)&product->bias
               : attribute == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE       ? (void *)&product->bias_type
               : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ? (void *)&product->aux
                                                                        : (void *)&product->aux_stride;
    const bool eight = attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ||
                       attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER ||
                       attribute == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD;
    if (bytes != (eight ? 8 : 4)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t stride)
{
    if (stride < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    **out = (struct lt_layout){type, rows, columns, stride};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = calloc(1, sizeof **out);
    for (int i = 0; i < 4; i++)
        (*out)->aligns[i] = 256;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    const bool eight = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (bytes != (eight ? 8 : 4)) return CUBLAS_STATUS_INVALID_VALUE;
    if (eight) memcpy(&preference->workspace, value, bytes);
    if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
        memcpy(&preference->aligns[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

enum { PRODUCT_KINDS = 4 }; /* the backend knows no more */
static struct {
    cublasComputeType_t compute;
    cudaDataType_t type;
    uint64_t count;
} products[PRODUCT_KINDS];

uint64_t cublaslt_host_products(cublasComputeType_t compute, cudaDataType_t type)
{
    for (size_t i = 0; i < PRODUCT_KINDS; i++)
        if (products[i].count && products[i].compute == compute && products[i].type == type) return products[i].count;
    return 0;
}

static struct cublaslt_host_counts counts;

struct cublaslt_host_counts cublaslt_host_counted(void)
{
    return counts;
}

static uint64_t type_bytes(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

/* Do the rows of a matrix, as it lies in memory, begin and end at multiples of 16 bytes? */
static bool in_pieces(const struct lt_layout *layout, const void *at)
{
    const uint64_t bytes = type_bytes(layout->type);
    return layout->rows * bytes % 16 == 0 && (uint64_t)layout->stride * bytes % 16 == 0 && (uintptr_t)at % 16 == 0;
}

static void products_count(const struct lt_product *product, const struct lt_layout *a, bool pieces, double work)
{
    size_t i = 0;
    if (a->type != CUDA_R_32F || product->compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
        counts.tensor += work;
        if (!pieces) counts.slow += work;
    }
    counts.fused += product->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    while (i + 1 < PRODUCT_KINDS && products[i].count &&
           (products[i].compute != product->compute || products[i].type != a->type))
        i++;
    products[i].compute = product->compute;
    products[i].type = a->type;
    products[i].count++;
}

static bool aligned(const void *at, uint32_t align)
{
    return (uintptr_t)at % align == 0;
}

static uint32_t align_of(const void *at)
{
    uint32_t align = 256;
    while (!aligned(at, align))
        align /= 2;
    return align;
}

/* Sums over k of an operand go where a bias comes from. */
static bool has_sums(cublasLtEpilogue_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_bias(cublasLtEpilogue_t epilogue)
{
    return (epilogue & CUBLASLT_EPILOGUE_BIAS) || has_sums(epilogue);
}

static bool has_aux(cublasLtEpilogue_t epilogue)
{
    return (epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* What cuBLASLt's table of supported types says, as far as we go: both operands alike, results no wider than sums. */
static bool supported(const struct lt_product *product, const struct lt_layout *a, const struct lt_layout *b,
                      const struct lt_layout *c, const struct lt_layout *d)
{
    const uint64_t m = product->a == CUBLAS_OP_N ? a->rows : a->columns;
    const uint64_t k = product->a == CUBLAS_OP_N ? a->columns : a->rows;
    const uint64_t k2 = product->b == CUBLAS_OP_N ? b->rows : b->columns;
    const uint64_t n = product->b == CUBLAS_OP_N ? b->columns : b->rows;
    if (m != d->rows || n != d->columns || k != k2 || a->type != b->type) return false;
    if (d->type != CUDA_R_32F && d->type != a->type) return false;
    if (c->type != d->type || c->rows != d->rows || c->columns != d->columns) return false;
    if (product->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R_32F) return false;
    const bool aux = has_aux(product->epilogue);
    if (aux && (product->aux_stride % 8 || product->aux_stride < (int64_t)m || !product->aux)) return false;
    const bool bias = has_bias(product->epilogue);
    if (bias && (!product->bias || (product->bias_type != -1 && product->bias_type != (int32_t)d->type))) return false;
    const char *wish = getenv("CUBLASLT_HOST_FUSES"); /* 0: the heuristic knows no algorithm with an ending */
    return !wish || strcmp(wish, "0") != 0 || product->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    (void)handle;
    *found = 0;
    if (wish("CUDA_HOST_LAZY", 0) && cuda_runtime_host_waits()) {
        fprintf(stderr, "a product of %llu x %llu is new, and its kernel is loaded while NCCL waits\n",
                (unsigned long long)d->columns, (unsigned long long)d->rows);
        abort();
    }
    if (!preference || wanted < 1 || !supported(product, a, b, c, d)) return CUBLAS_STATUS_NOT_SUPPORTED;
    struct lt_algorithm algorithm = {
        .workspace = preference->workspace,
        .aligns = {preference->aligns[0], preference->aligns[1], preference->aligns[2], preference->aligns[3]},
        .bias_align = align_of(product->bias),
        .aux_align = align_of(product->aux),
        .epilogue = product->epilogue,
        .compute = product->compute};
    for (; *found < wanted && *found < known.count; ++*found) {
        algorithm.number = *found;
        results[*found] = (cublasLtMatmulHeuristicResult_t){.workspaceSize = algorithm.workspace};
        memcpy(&results[*found].algo, &algorithm, sizeof algorithm);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result)
{
    struct lt_algorithm found;
    memcpy(&found, algorithm, sizeof found);
    *result = (cublasLtMatmulHeuristicResult_t){.algo = *algorithm, .workspaceSize = found.workspace};
    const bool fits = handle && supported(product, a, b, c, d) && found.compute == product->compute &&
                      found.epilogue == product->epilogue && found.number >= 0 && found.number < known.count;
    return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written)
{
    struct lt_algorithm found;
    memcpy(&found, algorithm, sizeof found);
    const int32_t answer = attribute == CUBLASLT_ALGO_CONFIG_ID ? found.number : 1;
    if (bytes != sizeof answer) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &answer, sizeof answer);
    *written = sizeof answer;
    return CUBLAS_STATUS_SUCCESS;
}

static float load(const void *at, cudaDataType_t type, uint64_t i)
{
    if (type == CUDA_R_16BF) return aq_bfloat_to_float(((const uint16_t *)at)[i]);
    if (type == CUDA_R_16F) return aq_half_to_float(((const uint16_t *)at)[i]);
    return ((const float *)at)[i];
}

/* As a product reads it: a tensor core takes the first 10 bits of an fp32 value's mantissa where TF32 is asked for. */
static float operand(const void *at, cudaDataType_t type, uint64_t i, bool tf32)
{
    union {
        float value;
        uint32_t bits;
    } u = {.value = load(at, type, i)};
    if (tf32) u.bits = (u.bits + 0x1000) & ~UINT32_C(0x1fff);
    return u.value;
}

static void store(void *at, cudaDataType_t type, uint64_t i, float value)
{
    cuda_runtime_host_wrote((char *)at + i * type_bytes(type), type_bytes(type));
    if (type == CUDA_R_16BF)
        ((uint16_t *)at)[i] = aq_bfloat_from_float(value);
    else if (type == CUDA_R_16F)
        ((uint16_t *)at)[i] = aq_half_from_float(value);
    else
        ((float *)at)[i] = value;
}

static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    const float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
}

/* A product that waits in its stream: what was said of it may be destroyed meanwhile. */
struct lt_call {
    struct lt_product product;
    struct lt_layout a_layout, b_layout, c_layout, d_layout;
    const void *a, *b, *c;
    void *d;
    float scale, share;
    bool slow;
};

/* Written over what is there, in the result's type: one for each row of the first operand, or column of the second. */
static void sums_run(const struct lt_call *call, bool of_a, uint64_t k_count)
{
    const struct lt_product *product = &call->product;
    const struct lt_layout *layout = of_a ? &call->a_layout : &call->b_layout;
    const uint64_t count = of_a ? call->d_layout.rows : call->d_layout.columns, stride = (uint64_t)layout->stride;
    const bool k_runs_far = of_a ? product->a == CUBLAS_OP_N : product->b == CUBLAS_OP_T;
    for (uint64_t i = 0; i < count; i++) {
        double exact = 0;
        for (uint64_t k = 0; k < k_count; k++)
            exact += load(of_a ? call->a : call->b, layout->type, k_runs_far ? k * stride + i : i * stride + k);
        store(product->bias, call->d_layout.type, i, (float)exact);
    }
}

/* operands[k][i]: what a product reads of one side, `count` values for each k. free()d by the caller. */
static double *operands_of(const void *at, const struct lt_layout *layout, bool k_runs_far, uint64_t count,
                           uint64_t k_count, bool tf32)
{
    const uint64_t stride = (uint64_t)layout->stride;
    double *operands = malloc((count * k_count + 1) * sizeof *operands);
    if (!operands) abort();
    for (uint64_t far = 0; far < (k_runs_far ? k_count : count); far++)
        for (uint64_t near = 0; near < (k_runs_far ? count : k_count); near++) {
            const uint64_t k = k_runs_far ? far : near, i = k_runs_far ? near : far;
            operands[k * count + i] = operand(at, layout->type, far * stride + near, tf32);
        }
    return operands;
}

/* Column n of the exact product: each value is a sum in order of k. */
static void column_run(const double *a, const double *b, uint64_t n, uint64_t rows, uint64_t columns, uint64_t k_count,
                       double *exact)
{
    memset(exact, 0, rows * sizeof *exact);
    for (uint64_t k = 0; k < k_count; k++) {
        const double factor = b[k * columns + n];
        for (uint64_t m = 0; m < rows; m++)
            exact[m] += a[k * rows + m] * factor;
    }
}

static int product_run(void *context)
{
    const struct lt_call *call = context;
    const struct lt_product *product = &call->product;
    const struct lt_layout *a_layout = &call->a_layout, *b_layout = &call->b_layout, *c_layout = &call->c_layout;
    const struct lt_layout *d_layout = &call->d_layout;
    const void *c = call->c;
    void *d = call->d;
    const float scale = call->scale, share = call->share;
    const bool a_plain = product->a == CUBLAS_OP_N, b_plain = product->b == CUBLAS_OP_N;
    const uint64_t k_count = a_plain ? a_layout->columns : a_layout->rows;
    const bool tf32 = product->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const uint64_t ds = (uint64_t)d_layout->stride, rows = d_layout->rows, columns = d_layout->columns;
    double *a = operands_of(call->a, a_layout, a_plain, rows, k_count, tf32);
    double *b = operands_of(call->b, b_layout, !b_plain, columns, k_count, tf32);
    double *exact = malloc(rows * sizeof *exact);
    if (!exact) abort();
    for (uint64_t n = 0; n < columns; n++) {
        column_run(a, b, n, rows, columns, k_count, exact);
        for (uint64_t m = 0; m < rows; m++) {
            float sum = (float)exact[m] * scale;
            if (share != 0.0f) sum += share * load(c, c_layout->type, n * (uint64_t)c_layout->stride + m);
            if (product->epilogue & CUBLASLT_EPILOGUE_BIAS) sum += load(product->bias, d_layout->type, m);
            const uint64_t at = n * (uint64_t)product->aux_stride + m;
            if ((product->epilogue & ~(unsigned)CUBLASLT_EPILOGUE_BIAS) == CUBLASLT_EPILOGUE_GELU_AUX) {
                store(product->aux, d_layout->type, at, sum);
                sum = gelu(sum);
            }
            if (product->epilogue == CUBLASLT_EPILOGUE_DGELU) sum *= gelu_slope(load(product->aux, d_layout->type, at));
            store(d, d_layout->type, n * ds + m, sum);
        }
    }
    free(a);
    free(b);
    free(exact);
    if (has_sums(product->epilogue)) sums_run(call, product->epilogue == CUBLASLT_EPILOGUE_BGRADA, k_count);
    if (call->slow) cuda_runtime_host_longer(1000000000);
    free(context);
    return cudaSuccess;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    struct lt_algorithm found;
    if (!handle || !algorithm || !stream || !supported(product, a_layout, b_layout, c_layout, d_layout))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&found, algorithm, sizeof found);
    if (!workspace || !aligned(workspace, 256) || workspace_bytes < found.workspace) return CUBLAS_STATUS_INVALID_VALUE;
    if (found.compute != product->compute || found.epilogue != product->epilogue) return CUBLAS_STATUS_INVALID_VALUE;
    if (known.failing >> bit_of(&found) & 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    const void *const given[4] = {a, b, *(const float *)beta != 0.0f ? c : d, d};
    for (int i = 0; i < 4; i++)
        if (!aligned(given[i], found.aligns[i])) return CUBLAS_STATUS_INVALID_VALUE;
    const bool bias = has_bias(product->epilogue), aux = has_aux(product->epilogue);
    if (bias && !aligned(product->bias, found.bias_align)) return CUBLAS_STATUS_INVALID_VALUE;
    if (aux && !aligned(product->aux, found.aux_align)) return CUBLAS_STATUS_INVALID_VALUE;
    last = bit_of(&found);
    const uint64_t k = product->a == CUBLAS_OP_N ? a_layout->columns : a_layout->rows;
    products_count(product, a_layout, in_pieces(a_layout, a) && in_pieces(b_layout, b) && in_pieces(d_layout, d),
                   (double)d_layout->rows * (double)d_layout->columns * (double)k);
    const struct lt_call call = {.product = *product,
                                 .a_layout = *a_layout,
                                 .b_layout = *b_layout,
                                 .c_layout = *c_layout,
                                 .d_layout = *d_layout,
                                 .a = a,
                                 .b = b,
                                 .c = c,
                                 .d = d,
                                 .scale = *(const float *)alpha,
                                 .share = *(const float *)beta,
                                 .slow = known.slow >> bit_of(&found) & 1};
    const cudaError_t error = cuda_runtime_host_later(stream, product_run, &call, sizeof call);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
