/*
 * cudnn_host.c -- cuDNN's attention and convolutions on the host. See its header.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aqsgd/base.h"
#include "cudnn.h"

enum { ATTRIBUTES_MAX = 16, VALUES_MAX = 16, ALGORITHMS = 4, FALLBACK = 3, TENSORS = 10 };

struct cudnn_host {
    cudaStream_t stream;
};

struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    union {
        int64_t numbers[VALUES_MAX];
        void *pointers[VALUES_MAX];
    } values;
};

struct cudnn_host_descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    int count, algorithm; /* of a configuration, an engine and a plan */
    cudnnBackendDescriptor_t graph;
    struct attribute attributes[ATTRIBUTES_MAX];
};

static struct cudnn_host_say known = {.version = 92801, .workspace = 4096};
static int out_now, ran, ran_with;
static char last_error[64];

void cudnn_host_say(struct cudnn_host_say say)
{
    known = say;
}

int cudnn_host_ran(int *algorithm)
{
    const int count = ran;
    *algorithm = ran_with;
    ran = 0;
    return count;
}

int cudnn_host_open(void)
{
    return out_now;
}

size_t cudnnGetVersion(void)
{
    return known.version;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? "no error" : status == CUDNN_STATUS_BAD_PARAM ? "bad parameter" : "refused";
}

void cudnnGetLastErrorString(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", last_error);
}

static cudnnStatus_t bad(const char *what)
{
    snprintf(last_error, sizeof last_error, "%s", what);
    return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    *out = calloc(1, sizeof **out);
    return *out ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* --- descriptors ------------------------------------------------------------------------------------------------ */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return CUDNN_STATUS_NOT_INITIALIZED;
    (*out)->type = type;
    out_now++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    free(descriptor);
    out_now--;
    return CUDNN_STATUS_SUCCESS;
}

static bool is_slow(void)
{
    const char *slow = getenv("CUDA_HOST_SLOW");
    return slow && strcmp(slow, "cudnn") == 0;
}

static const struct attribute *find(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name)
{
    for (int i = 0; of && i < of->count; i++)
        if (of->attributes[i].name == name) return &of->attributes[i];
    return NULL;
}

static cudnnBackendDescriptor_t part(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name)
{
    const struct attribute *attribute = find(of, name);
    return attribute && attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR ? attribute->values.pointers[0] : NULL;
}

static int64_t number(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name)
{
    const struct attribute *attribute = find(of, name);
    return attribute ? attribute->values.numbers[0] : 0;
}

static size_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_FLOAT:
        return sizeof(float);
    case CUDNN_TYPE_CONVOLUTION_MODE:
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_NUMERICAL_NOTE:
    case CUDNN_TYPE_POINTWISE_MODE:
        return sizeof(int);
    default:
        return sizeof(void *);
    }
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (of->final) return bad("it is final");
    if (count < 1 || count > VALUES_MAX || of->count == ATTRIBUTES_MAX || find(of, name)) return bad("so many");
    struct attribute *attribute = &of->attributes[of->count];
    *attribute = (struct attribute){.name = name, .type = type, .count = count};
    for (int64_t i = 0; i < count; i++)
        memcpy(&attribute->values.numbers[i], (const char *)values + (size_t)i * bytes_of(type), bytes_of(type));
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        const struct cudnn_host_descriptor *given = attribute->values.pointers[i];
        if (!given->final && given->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) return bad("a part is not final");
    }
    of->count++;
    return CUDNN_STATUS_SUCCESS;
}

/* --- what a convolution is -------------------------------------------------------------------------------------- */

enum { X, W, Y, CONV_TENSORS };
struct conv_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t tensors[CONV_TENSORS], convolution, alpha, beta;
    int result;
};

static const struct conv_names *conv_names_of(cudnnBackendDescriptor_t operation)
{
    static const struct conv_names all[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
         Y},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
         X},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
         W}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (operation->type == all[i].type) return &all[i];
    return NULL;
}

static bool tensor_whole(cudnnBackendDescriptor_t tensor)
{
    const struct attribute *sizes = find(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct attribute *strides = find(tensor, CUDNN_ATTR_TENSOR_STRIDES);
    return sizes && strides && sizes->count == strides->count && find(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID) &&
           find(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE) && find(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
}

static int64_t value_of(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name, int64_t which)
{
    const struct attribute *attribute = find(of, name);
    return attribute && which < attribute->count ? attribute->values.numbers[which] : 0;
}

/* The attributes that an operation must have, and the sizes that follow from each other. */
static bool conv_agrees(cudnnBackendDescriptor_t operation)
{
    const struct conv_names *names = conv_names_of(operation);
    cudnnBackendDescriptor_t form = part(operation, names->convolution), tensors[CONV_TENSORS];
    if (!form || form->type != CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR) return false;
    if (number(form, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2 || !find(form, CUDNN_ATTR_CONVOLUTION_CONV_MODE) ||
        !find(form, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) || !find(operation, names->alpha) ||
        !find(operation, names->beta))
        return false;
    for (int i = 0; i < CONV_TENSORS; i++)
        if (!(tensors[i] = part(operation, names->tensors[i]))) return false;
    const cudnnBackendAttributeName_t sizes = CUDNN_ATTR_TENSOR_DIMENSIONS;
    for (int64_t i = 0; i < 2; i++) {
        const int64_t step = value_of(form, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i);
        const int64_t around = value_of(form, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i) +
                               value_of(form, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, i);
        const int64_t window =
            value_of(form, CUDNN_ATTR_CONVOLUTION_DILATIONS, i) * (value_of(tensors[W], sizes, 2 + i) - 1) + 1;
        if (step < 1 || find(form, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)->count != 2) return false;
        if (value_of(tensors[Y], sizes, 2 + i) != (value_of(tensors[X], sizes, 2 + i) + around - window) / step + 1)
            return false;
    }
    return value_of(tensors[X], sizes, 0) == value_of(tensors[Y], sizes, 0) &&
           value_of(tensors[X], sizes, 1) == value_of(tensors[W], sizes, 1) &&
           value_of(tensors[Y], sizes, 1) == value_of(tensors[W], sizes, 0);
}

static bool channels_lie_together(cudnnBackendDescriptor_t tensor)
{
    int64_t next = value_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, 1);
    if (value_of(tensor, CUDNN_ATTR_TENSOR_STRIDES, 1) != 1) return false;
    for (int64_t i = 3; i != 1; i = i == 3 ? 2 : i == 2 ? 0 : 1) {
        if (value_of(tensor, CUDNN_ATTR_TENSOR_STRIDES, i) != next) return false;
        next *= value_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, i);
    }
    return true;
}

/*
 * Has cuDNN 9.28 an algorithm for it? Attention, always. A convolution with the channels of each tensor side by side:
 * alone, if all three tensors have one type; of 16 bits with sums that an identity copies to fp32.
 */
static bool conv_known(cudnnBackendDescriptor_t graph)
{
    const struct attribute *operations = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    cudnnBackendDescriptor_t operation = operations->values.pointers[0], last = operation, types[CONV_TENSORS];
    const struct conv_names *names = conv_names_of(operation);
    if (!names) return true;
    for (int i = 0; i < CONV_TENSORS; i++)
        if (!channels_lie_together(types[i] = part(operation, names->tensors[i]))) return false;
    if (operations->count == 2) {
        last = operations->values.pointers[1];
        cudnnBackendDescriptor_t form = part(last, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        cudnnBackendDescriptor_t to = part(last, CUDNN_ATTR_OPERATION_POINTWISE_YDESC), sums = types[names->result];
        if (number(form, CUDNN_ATTR_POINTWISE_MODE) != CUDNN_POINTWISE_IDENTITY || !to ||
            part(last, CUDNN_ATTR_OPERATION_POINTWISE_XDESC) != sums || !find(sums, CUDNN_ATTR_TENSOR_IS_VIRTUAL) ||
            find(to, CUDNN_ATTR_TENSOR_IS_VIRTUAL) || number(sums, CUDNN_ATTR_TENSOR_DATA_TYPE) != CUDNN_DATA_FLOAT)
            return false;
        types[names->result] = types[names->result == X ? Y : X]; /* of any type */
    }
    const int64_t type = number(types[X], CUDNN_ATTR_TENSOR_DATA_TYPE);
    return number(types[W], CUDNN_ATTR_TENSOR_DATA_TYPE) == type &&
           number(types[Y], CUDNN_ATTR_TENSOR_DATA_TYPE) == type;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values)
{
    (void)type;
    *count = 1;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        cudnnBackendDescriptor_t graph = part(of, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        const bool fast = number(of, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_A;
        const int first = fast ? 0 : FALLBACK, last = fast ? FALLBACK : ALGORITHMS;
        *count = conv_known(graph) ? last - first : 0;
        for (int i = 0; i < room && i < *count; i++) {
            cudnnBackendDescriptor_t config = ((cudnnBackendDescriptor_t *)values)[i];
            config->algorithm = first + i;
            config->graph = graph;
        }
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
        (*(cudnnBackendDescriptor_t *)values)->algorithm = of->algorithm;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        *(cudnnBackendNumericalNote_t *)values =
            of->algorithm == 0 ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        *count = of->algorithm != FALLBACK;
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && of->final) {
        *(int64_t *)values = (int64_t)known.workspace;
    } else {
        return bad("a question");
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor->final) return bad("it is final already");
    if (descriptor->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const struct cudnn_host_descriptor *config = part(descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        if (!config || !config->graph || !find(descriptor, CUDNN_ATTR_EXECUTION_PLAN_HANDLE))
            return bad("a plan of nothing");
        descriptor->algorithm = config->algorithm;
        descriptor->graph = config->graph;
        if (known.failing >> config->algorithm & 1) return CUDNN_STATUS_NOT_SUPPORTED;
    }
    if (descriptor->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !tensor_whole(descriptor)) return bad("half a tensor");
    if (conv_names_of(descriptor) && !conv_agrees(descriptor)) return bad("a convolution's sizes");
    descriptor->final = true;
    return CUDNN_STATUS_SUCCESS;
}

/* --- attention -------------------------------------------------------------------------------------------------- */

/* A tensor of the operation, and where it lies; absent where sizes[0] is 0. */
struct tensor {
    int64_t sizes[4], strides[4];
    int64_t type;
    void *at;
};

/* In the order of `attention_names`: those that both have, then backward's. */
enum { Q, K, V, O, LSE, SCALE, DO, DQ, DK, DV };
static const cudnnBackendAttributeName_t attention_names[2][TENSORS] = {
    {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC,
     CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC,
     CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC,
     CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC, CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC,
     CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC,
     CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC}};

enum { LENGTHS_Q = TENSORS, LENGTHS_KV, STARTS, ALL_TENSORS };
static const cudnnBackendAttributeName_t lengths_names[2][2] = {
    {CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC},
    {CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_QDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_SEQ_LEN_KVDESC}};

struct attention {
    bool backward, slow;
    bool right;            /* a band: no columns but `ahead` ahead of the row */
    int64_t ahead, window; /* the left bound of another band; 0: none         */
    float scale;
    struct tensor tensors[ALL_TENSORS];
    void *workspace;
    size_t workspace_bytes;
};

static bool has(const struct tensor *x)
{
    return x->sizes[0] != 0;
}

static int64_t number_at(const struct tensor *x, int64_t b, int64_t t)
{
    return ((const int32_t *)x->at)[b * x->strides[0] + t * x->strides[2]];
}

static double load(const struct tensor *x, int64_t b, int64_t h, int64_t t, int64_t d)
{
    const int64_t at = b * x->strides[0] + h * x->strides[1] + t * x->strides[2] + d * x->strides[3];
    if (x->type == CUDNN_DATA_FLOAT) return ((const float *)x->at)[at];
    const uint16_t bits = ((const uint16_t *)x->at)[at];
    return x->type == CUDNN_DATA_BFLOAT16 ? aq_bfloat_to_float(bits) : aq_half_to_float(bits);
}

static void store(const struct tensor *x, int64_t b, int64_t h, int64_t t, int64_t d, double value)
{
    const int64_t at = b * x->strides[0] + h * x->strides[1] + t * x->strides[2] + d * x->strides[3];
    const int64_t bytes = x->type == CUDNN_DATA_FLOAT ? 4 : 2;
    cuda_runtime_host_wrote((char *)x->at + at * bytes, (size_t)bytes);
    if (x->type == CUDNN_DATA_FLOAT)
        ((float *)x->at)[at] = (float)value;
    else
        ((uint16_t *)x->at)[at] =
            x->type == CUDNN_DATA_BFLOAT16 ? aq_bfloat_from_float((float)value) : aq_half_from_float((float)value);
}

/* Is a row real? Of the others results are written with anything. */
static bool is_real(const struct attention *x, int64_t b, int64_t row)
{
    return !has(&x->tensors[LENGTHS_Q]) || row < number_at(&x->tensors[LENGTHS_Q], b, 0);
}

static bool sees(const struct attention *x, int64_t b, int64_t row, int64_t column)
{
    if (x->right && row + x->ahead < column) return false;
    if (x->window && column + x->window <= row) return false;
    if (has(&x->tensors[LENGTHS_KV]) && column >= number_at(&x->tensors[LENGTHS_KV], b, 0)) return false;
    return !has(&x->tensors[STARTS]) || column >= number_at(&x->tensors[STARTS], b, row);
}

/* A row of a result whose content cuDNN does not define. */
static void store_anything(const struct tensor *x, int64_t b, int64_t h, int64_t t)
{
    for (int64_t d = 0; d < x->sizes[3]; d++)
        store(x, b, h, t, d, NAN);
}

static double score(const struct attention *x, int64_t b, int64_t h, int64_t row, int64_t column)
{
    const int64_t of_keys = h / (x->tensors[Q].sizes[1] / x->tensors[K].sizes[1]);
    double sum = 0;
    for (int64_t d = 0; d < x->tensors[Q].sizes[3]; d++)
        sum += load(&x->tensors[Q], b, h, row, d) * load(&x->tensors[K], b, of_keys, column, d);
    return sum * (double)x->scale;
}

static void forward_head(const struct attention *x, int64_t b, int64_t h)
{
    const int64_t T = x->tensors[Q].sizes[2], D = x->tensors[Q].sizes[3];
    const int64_t of_keys = h / (x->tensors[Q].sizes[1] / x->tensors[K].sizes[1]);
    double *weights = calloc((size_t)T, sizeof *weights);
    assert(weights);
    for (int64_t row = 0; row < T; row++) {
        double most = -INFINITY, sum = 0;
        if (!is_real(x, b, row)) {
            store_anything(&x->tensors[LSE], b, h, row);
            store_anything(&x->tensors[O], b, h, row);
            continue;
        }
        for (int64_t column = 0; column < T; column++)
            if (sees(x, b, row, column)) most = fmax(most, weights[column] = score(x, b, h, row, column));
        for (int64_t column = 0; column < T; column++)
            sum += weights[column] = sees(x, b, row, column) ? exp(weights[column] - most) : 0;
        store(&x->tensors[LSE], b, h, row, 0, most + log(sum));
        for (int64_t d = 0; d < D; d++) {
            double value = 0;
            for (int64_t column = 0; column < T; column++)
                value += weights[column] * load(&x->tensors[V], b, of_keys, column, d);
            store(&x->tensors[O], b, h, row, d, value / sum);
        }
    }
    free(weights);
}

/* The gradients of one head's queries, and what it adds to those of its keys and values, (T, D) each. */
static void backward_head(const struct attention *x, int64_t b, int64_t h, double *dk, double *dv)
{
    const int64_t T = x->tensors[Q].sizes[2], D = x->tensors[Q].sizes[3];
    const int64_t of_keys = h / (x->tensors[Q].sizes[1] / x->tensors[K].sizes[1]);
    double *dq = calloc((size_t)D, sizeof *dq);
    assert(dq);
    for (int64_t row = 0; row < T; row++) {
        double delta = 0;
        if (!is_real(x, b, row)) {
            store_anything(&x->tensors[DQ], b, h, row);
            continue;
        }
        memset(dq, 0, (size_t)D * sizeof *dq);
        for (int64_t d = 0; d < D; d++)
            delta += load(&x->tensors[DO], b, h, row, d) * load(&x->tensors[O], b, h, row, d);
        for (int64_t column = 0; column < T; column++) {
            if (!sees(x, b, row, column)) continue;
            const double weight = exp(score(x, b, h, row, column) - load(&x->tensors[LSE], b, h, row, 0));
            double product = 0;
            for (int64_t d = 0; d < D; d++) {
                product += load(&x->tensors[DO], b, h, row, d) * load(&x->tensors[V], b, of_keys, column, d);
                dv[column * D + d] += weight * load(&x->tensors[DO], b, h, row, d);
            }
            const double slope = weight * (product - delta) * (double)x->scale;
            for (int64_t d = 0; d < D; d++) {
                dq[d] += slope * load(&x->tensors[K], b, of_keys, column, d);
                dk[column * D + d] += slope * load(&x->tensors[Q], b, h, row, d);
            }
        }
        for (int64_t d = 0; d < D; d++)
            store(&x->tensors[DQ], b, h, row, d, dq[d]);
    }
    free(dq);
}

static void backward_keys(const struct attention *x, int64_t b, int64_t of_keys)
{
    const int64_t T = x->tensors[K].sizes[2], D = x->tensors[K].sizes[3];
    const int64_t share = x->tensors[Q].sizes[1] / x->tensors[K].sizes[1];
    double *dk = calloc((size_t)(2 * T * D), sizeof *dk), *dv = dk + T * D;
    assert(dk);
    for (int64_t h = of_keys * share; h < (of_keys + 1) * share; h++)
        backward_head(x, b, h, dk, dv);
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) {
            const bool real = is_real(x, b, t);
            store(&x->tensors[DK], b, of_keys, t, d, real ? dk[t * D + d] : NAN);
            store(&x->tensors[DV], b, of_keys, t, d, real ? dv[t * D + d] : NAN);
        }
    free(dk);
}

static int attention_run(void *context)
{
    const struct attention *x = context;
    memset(x->workspace, 0xa5, x->workspace_bytes); /* it is ours, all of it */
    for (int64_t b = 0; b < x->tensors[Q].sizes[0]; b++)
        for (int64_t h = 0; h < x->tensors[x->backward ? K : Q].sizes[1]; h++)
            x->backward ? backward_keys(x, b, h) : forward_head(x, b, h);
    if (x->slow) cuda_runtime_host_longer(1000000000);
    free(context);
    return cudaSuccess;
}

static void *address(cudnnBackendDescriptor_t pack, int64_t uid)
{
    const struct attribute *uids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (int64_t i = 0; uids && pointers && i < uids->count && i < pointers->count; i++)
        if (uids->values.numbers[i] == uid) return pointers->values.pointers[i];
    return NULL;
}

/* False: it has no address, or one that is aligned less than was promised. */
static bool tensor_at(cudnnBackendDescriptor_t tensor, cudnnBackendDescriptor_t pack, struct tensor *x)
{
    const struct attribute *sizes = find(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct attribute *strides = find(tensor, CUDNN_ATTR_TENSOR_STRIDES);
    if (!sizes || !strides || sizes->count != 4 || strides->count != 4) return false;
    memcpy(x->sizes, sizes->values.numbers, sizeof x->sizes);
    memcpy(x->strides, strides->values.numbers, sizeof x->strides);
    x->type = number(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
    x->at = address(pack, number(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID));
    return x->at && (uintptr_t)x->at % (uintptr_t)number(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) == 0;
}

/* The chain of masks while it is read: the scores that the next one must take, and what parts have so far. */
struct chain {
    cudnnBackendDescriptor_t pack;
    int64_t scores, columns, keeps;
    struct attention *out;
};

static int64_t uid_of(cudnnBackendDescriptor_t of, cudnnBackendAttributeName_t name)
{
    return number(part(of, name), CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

/* A tensor of scores, or of a value for each, in no memory. */
static bool is_virtual(cudnnBackendDescriptor_t tensor, cudnnDataType_t type)
{
    return tensor && find(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL) &&
           number(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE) == (int64_t)type;
}

static bool is_fill(const struct chain *chain, cudnnBackendDescriptor_t fill)
{
    const float *value = address(chain->pack, number(fill, CUDNN_ATTR_TENSOR_UNIQUE_ID));
    return find(fill, CUDNN_ATTR_TENSOR_IS_BY_VALUE) && value && isinf(*value) && *value < 0;
}

static bool band_read(struct chain *chain, cudnnBackendDescriptor_t band)
{
    const int64_t keeps = number(band, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE);
    cudnnBackendDescriptor_t left = part(band, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_LEFT_BOUND_DESC);
    cudnnBackendDescriptor_t right = part(band, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC);
    cudnnBackendDescriptor_t y = part(band, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC), bound = left ? left : right;
    const int32_t *value = bound ? address(chain->pack, number(bound, CUDNN_ATTR_TENSOR_UNIQUE_ID)) : NULL;
    if (uid_of(band, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC) != chain->scores ||
        !is_virtual(y, CUDNN_DATA_FLOAT) ||
        !is_fill(chain, part(band, CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC)) || (left && right) ||
        keeps != (left ? CUDNN_POINTWISE_CMP_GT : CUDNN_POINTWISE_CMP_GE) || (bound && !value))
        return false;
    if (left ? chain->out->window != 0 || *value <= 0 : chain->out->right) return false;
    if (left)
        chain->out->window = *value;
    else
        chain->out->right = true, chain->out->ahead = value ? *value : 0;
    chain->scores = number(y, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    return true;
}

static bool pointwise_read(struct chain *chain, cudnnBackendDescriptor_t operation)
{
    cudnnBackendDescriptor_t form = part(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    cudnnBackendDescriptor_t y = part(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    cudnnBackendDescriptor_t b = part(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const int64_t x = uid_of(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const int64_t to = number(y, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    switch (number(form, CUDNN_ATTR_POINTWISE_MODE)) {
    case CUDNN_POINTWISE_GEN_INDEX:
        chain->columns = to;
        return x == chain->scores && number(form, CUDNN_ATTR_POINTWISE_AXIS) == 3 && is_virtual(y, CUDNN_DATA_INT32);
    case CUDNN_POINTWISE_CMP_GE:
        chain->keeps = to;
        return x == chain->columns && b && number(b, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_INT32 &&
               is_virtual(y, CUDNN_DATA_BOOLEAN) && !has(&chain->out->tensors[STARTS]) &&
               tensor_at(b, chain->pack, &chain->out->tensors[STARTS]);
    case CUDNN_POINTWISE_BINARY_SELECT:
        if (x != chain->scores || !is_fill(chain, b) || !is_virtual(y, CUDNN_DATA_FLOAT) || !chain->keeps ||
            uid_of(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC) != chain->keeps)
            return false;
        chain->scores = to;
        return true;
    default:
        return false;
    }
}

/* Each operation must take the scores of the one before; without a subgraph there are none. */
static bool masks_of(cudnnBackendDescriptor_t subgraph, int64_t first, int64_t last, cudnnBackendDescriptor_t pack,
                     struct attention *out)
{
    const struct attribute *operations = find(subgraph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct chain chain = {.pack = pack, .scores = first, .out = out};
    if (!subgraph) return first == 0 && last == 0;
    for (int64_t i = 0; operations && i < operations->count; i++) {
        cudnnBackendDescriptor_t operation = operations->values.pointers[i];
        const bool band = operation->type == CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR;
        if (!(band ? band_read(&chain, operation) : pointwise_read(&chain, operation))) return false;
    }
    return operations && chain.scores == last && last != first;
}

/* Both, of (B, 1, 1, 1) numbers; or none. */
static bool lengths_of(cudnnBackendDescriptor_t operation, cudnnBackendDescriptor_t pack, struct attention *out)
{
    for (int i = 0; i < 2; i++) {
        cudnnBackendDescriptor_t tensor = part(operation, lengths_names[out->backward][i]);
        struct tensor *x = &out->tensors[LENGTHS_Q + i];
        if (tensor && (!tensor_at(tensor, pack, x) || x->type != CUDNN_DATA_INT32 ||
                       x->sizes[0] != out->tensors[Q].sizes[0] || x->sizes[1] * x->sizes[2] * x->sizes[3] != 1))
            return false;
    }
    return has(&out->tensors[LENGTHS_Q]) == has(&out->tensors[LENGTHS_KV]);
}

/* --- convolutions ----------------------------------------------------------------------------------------------- */

struct conv {
    struct tensor tensors[CONV_TENSORS];
    int64_t zeroes[2], steps[2], dilations[2];
    bool mirrored, tensor_cores, slow;
    int result;
    float alpha, beta;
    void *workspace;
    size_t workspace_bytes;
};

/* As a product reads it: a tensor core takes the first 10 bits of an fp32 value's mantissa. */
static double conv_operand(const struct conv *x, int which, const int64_t at[4])
{
    union {
        float value;
        uint32_t bits;
    } u = {.value = (float)load(&x->tensors[which], at[0], at[1], at[2], at[3])};
    if (x->tensor_cores && x->tensors[which].type == CUDNN_DATA_FLOAT) u.bits = (u.bits + 0x1000) & ~UINT32_C(0x1fff);
    return u.value;
}

/* The values of x, w and y that meet, in the order of sums: all pixels of y, then the places that read them. */
static void conv_pixel(const struct conv *x, const int64_t at[4], double *sums)
{
    const struct tensor *t = x->tensors, *result = &t[x->result];
    for (int64_t c = 0; c < t[W].sizes[1]; c++)
        for (int64_t u = 0; u < t[W].sizes[2]; u++)
            for (int64_t v = 0; v < t[W].sizes[3]; v++) {
                const int64_t i = at[2] * x->steps[0] - x->zeroes[0] + u * x->dilations[0];
                const int64_t j = at[3] * x->steps[1] - x->zeroes[1] + v * x->dilations[1];
                const int64_t p = x->mirrored ? t[W].sizes[2] - 1 - u : u, q = x->mirrored ? t[W].sizes[3] - 1 - v : v;
                if (i < 0 || i >= t[X].sizes[2] || j < 0 || j >= t[X].sizes[3]) continue;
                const int64_t places[CONV_TENSORS][4] = {
                    {at[0], c, i, j}, {at[1], c, p, q}, {at[0], at[1], at[2], at[3]}};
                const int64_t *to = places[x->result];
                double product = 1;
                for (int k = 0; k < CONV_TENSORS; k++)
                    if (k != x->result) product *= conv_operand(x, k, places[k]);
                sums[((to[0] * result->sizes[1] + to[1]) * result->sizes[2] + to[2]) * result->sizes[3] + to[3]] +=
                    product;
            }
}

static int conv_run(void *context)
{
    const struct conv *x = context;
    const struct tensor *result = &x->tensors[x->result];
    const int64_t *in = x->tensors[Y].sizes, *out = result->sizes;
    double *sums = calloc((size_t)(out[0] * out[1] * out[2] * out[3]), sizeof *sums);
    int64_t at[4];
    assert(sums);
    memset(x->workspace, 0xa5, x->workspace_bytes); /* it is ours, all of it */
    for (at[0] = 0; at[0] < in[0]; at[0]++)
        for (at[1] = 0; at[1] < in[1]; at[1]++)
            for (at[2] = 0; at[2] < in[2]; at[2]++)
                for (at[3] = 0; at[3] < in[3]; at[3]++)
                    conv_pixel(x, at, sums);
    const double *sum = sums;
    for (at[0] = 0; at[0] < out[0]; at[0]++)
        for (at[1] = 0; at[1] < out[1]; at[1]++)
            for (at[2] = 0; at[2] < out[2]; at[2]++)
                for (at[3] = 0; at[3] < out[3]; at[3]++, sum++) {
                    const double before = x->beta == 0 ? 0 : (double)x->beta * load(result, at[0], at[1], at[2], at[3]);
                    store(result, at[0], at[1], at[2], at[3], (double)x->alpha * *sum + before);
                }
    if (x->slow) cuda_runtime_host_longer(1000000000);
    free(sums);
    free(context);
    return cudaSuccess;
}

static cudnnStatus_t conv_execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack,
                                  void *workspace)
{
    const struct attribute *operations = find(plan->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    cudnnBackendDescriptor_t operation = operations->values.pointers[0];
    const struct conv_names *names = conv_names_of(operation);
    cudnnBackendDescriptor_t form = part(operation, names->convolution);
    struct conv call = {.result = names->result,
                        .tensor_cores = plan->algorithm != FALLBACK,
                        .slow = is_slow(),
                        .workspace = workspace,
                        .workspace_bytes = known.workspace};
    for (int i = 0; i < CONV_TENSORS; i++) {
        cudnnBackendDescriptor_t tensor = part(operation, names->tensors[i]);
        if (i == names->result && operations->count == 2)
            tensor = part(operations->values.pointers[1], CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        if (!tensor_at(tensor, pack, &call.tensors[i])) return bad("a tensor");
    }
    for (int64_t i = 0; i < 2; i++) {
        call.zeroes[i] = value_of(form, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i);
        call.steps[i] = value_of(form, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i);
        call.dilations[i] = value_of(form, CUDNN_ATTR_CONVOLUTION_DILATIONS, i);
    }
    call.mirrored = number(form, CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CONVOLUTION;
    memcpy(&call.alpha, find(operation, names->alpha)->values.numbers, sizeof call.alpha);
    memcpy(&call.beta, find(operation, names->beta)->values.numbers, sizeof call.beta);
    ran++;
    ran_with = plan->algorithm;
    return cuda_runtime_host_later(handle->stream, conv_run, &call, sizeof call) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    if (!plan->final || !pack->final) return bad("not final");
    cudnnBackendDescriptor_t operation = part(plan->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const bool backward = operation->type == CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR;
    const struct attribute *workspace = find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    struct attention call = {.backward = backward, .slow = is_slow(), .workspace_bytes = known.workspace};
    if (!workspace || !workspace->values.pointers[0]) return bad("nothing to work in");
    if (conv_names_of(operation)) return conv_execute(handle, plan, pack, workspace->values.pointers[0]);
    call.workspace = workspace->values.pointers[0];
    for (int i = 0; i < (backward ? TENSORS : DO); i++)
        if (!tensor_at(part(operation, attention_names[backward][i]), pack, &call.tensors[i])) return bad("a tensor");
    memcpy(&call.scale, call.tensors[SCALE].at, sizeof call.scale);
    if (!masks_of(
            part(operation, backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH),
            number(operation, backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID
                                       : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID),
            number(operation, backward ? CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID
                                       : CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID),
            pack, &call))
        return bad("a mask");
    if (!lengths_of(operation, pack, &call)) return bad("lengths");
    ran++;
    ran_with = plan->algorithm;
    return cuda_runtime_host_later(handle->stream, attention_run, &call, sizeof call) == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
}
