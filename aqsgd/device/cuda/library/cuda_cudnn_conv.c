/*
 * cuda_cudnn_conv.c -- convolutions as cuDNN's graphs: y of x and w, dx of dy and w, dw of x and dy; then their calls.
 *
 * Images are as they lie, channels side by side (NHWC), which is what tensor cores read. cuDNN has the weights of an
 * output channel side by side (N, K, K, C), and device_math.h those of an input channel (K K C, N): weights are turned
 * into scratch before, and their gradient is turned back and added behind.
 *
 * In 16 bits operands are rounded into scratch, in pieces of the batch that fit there. No algorithm of cuDNN writes
 * fp32 from 16 bits by itself; one that is compiled for the graph does, if the graph has a second operation that copies
 * the sums (an identity), which are in no memory. So results are not rounded, as those of our own products.
 */
#include <stdio.h>

#include "cuda_cudnn_graph.h"

/* The three tensors in the order of UID_X, and the sums that become the result. */
enum { CONV_TENSORS = 3, CONV_UID_X = 1, CONV_UID_SUMS = CONV_UID_X + CONV_TENSORS };

/* Of the scratch; the gradient of weights comes out where weights go in. */
enum { CUDNN_X_PART, CUDNN_W_PART, CUDNN_DY_PART };

enum { WEIGHTS_HIGH_MAX = 65535 * 32 }; /* K K C: a grid's second extent in tiles of cuda_columns.cu */

/* The names of x, w and y in one of the three operations, and which of them is its result. */
struct conv_form {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t tensors[CONV_TENSORS], convolution, alpha, beta;
    int result;
    const char *text;
};

static const struct conv_form conv_forms[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
     2,
     "convolution"},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
     0,
     "gradient of a convolution's inputs"},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
     1,
     "gradient of a convolution's weights"}};

/* --- the graph -------------------------------------------------------------------------------------------------- */

static void conv_shapes(const struct cudnn_key *key, struct cudnn_shape shapes[CONV_TENSORS])
{
    const int64_t S = (int64_t)key->conv.samples, H = (int64_t)key->conv.height, W = (int64_t)key->conv.width;
    const int64_t C = (int64_t)key->conv.C, N = (int64_t)key->conv.N, K = (int64_t)key->conv.K;
    const int64_t I = (int64_t)aq_conv_out(key->conv.height, key->conv.stride);
    const int64_t J = (int64_t)aq_conv_out(key->conv.width, key->conv.stride);
    shapes[0] = (struct cudnn_shape){{S, C, H, W}, {H * W * C, 1, W * C, C}};
    shapes[1] = (struct cudnn_shape){{N, C, K, K}, {K * K * C, 1, K * C, C}};
    shapes[2] = (struct cudnn_shape){{S, N, I, J}, {I * J * N, 1, J * N, N}};
}

/* With a stride the last pixels may need fewer zeroes than there are: cuDNN does not mind. */
static cudnnBackendDescriptor_t conv_descriptor(struct cudnn_plan *plan)
{
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t dimensions = 2, half = (int64_t)plan->key.conv.K / 2, step = (int64_t)plan->key.conv.stride;
    const int64_t zeroes[] = {half, half}, steps[] = {step, step}, dilations[] = {1, 1};
    cudnnBackendDescriptor_t made = cudnn_create(plan, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnn_set(plan, made, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    cudnn_set(plan, made, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    cudnn_set(plan, made, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions);
    cudnn_set(plan, made, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, zeroes);
    cudnn_set(plan, made, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, zeroes);
    cudnn_set(plan, made, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, steps);
    cudnn_set(plan, made, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    cudnn_finish(plan, made, "a convolution's form");
    return made;
}

static cudnnBackendDescriptor_t identity(struct cudnn_plan *plan, cudnnBackendDescriptor_t from,
                                         cudnnBackendDescriptor_t to)
{
    const cudnnBackendDescriptor_t tensors[] = {from, NULL, NULL, to};
    return cudnn_pointwise(plan, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, tensors, "an identity");
}

cudnnBackendDescriptor_t cudnn_conv_graph(struct cudnn_plan *plan, cudnnHandle_t handle)
{
    const struct conv_form *form = &conv_forms[plan->key.operation - CUDNN_CONV];
    const cudnnDataType_t type = cudnn_type(plan->key.type);
    const bool copies = type != CUDNN_DATA_FLOAT;
    const float one = 1.0f, zero = 0.0f;
    struct cudnn_shape shapes[CONV_TENSORS];
    cudnnBackendDescriptor_t operations[2], tensors[CONV_TENSORS];
    conv_shapes(&plan->key, shapes);
    operations[0] = cudnn_create(plan, form->type);
    for (int i = 0; i < CONV_TENSORS; i++) {
        const bool sums = copies && i == form->result;
        tensors[i] = cudnn_tensor(plan, sums ? CONV_UID_SUMS : CONV_UID_X + i, sums ? CUDNN_DATA_FLOAT : type,
                                  &shapes[i], sums ? CUDNN_NOWHERE : CUDNN_ON_DEVICE);
        cudnn_join(plan, operations[0], form->tensors[i], tensors[i]);
    }
    cudnn_join(plan, operations[0], form->convolution, conv_descriptor(plan));
    cudnn_set(plan, operations[0], form->alpha, CUDNN_TYPE_FLOAT, 1, &one);
    cudnn_set(plan, operations[0], form->beta, CUDNN_TYPE_FLOAT, 1, &zero);
    cudnn_finish(plan, operations[0], form->text);
    if (copies)
        operations[1] = identity(
            plan, tensors[form->result],
            cudnn_tensor(plan, CONV_UID_X + form->result, CUDNN_DATA_FLOAT, &shapes[form->result], CUDNN_ON_DEVICE));
    return cudnn_graph(plan, copies ? 2 : 1, operations, handle, "a convolution's graph");
}

/* --- a call ----------------------------------------------------------------------------------------------------- */

/* x, w and y, or their gradients: fp32, as device_math.h has them. */
struct conv_call {
    struct cuda_device *cuda;
    struct aq_stream *stream;
    enum cudnn_operation operation;
    const void *args; /* of the operation */
    struct aq_conv_shape shape;
    const float *x, *w, *y;
    float *dw;
    uint64_t in, out, weights; /* values of a sample, of its result, and of the weights */
    uint64_t most;             /* samples at once; 0: not even one */
    bool rounds;
    struct cudnn_plan *plan, *last; /* of `most` samples, and of the rest */
};

static struct conv_call conv_call_of(struct cuda_device *cuda, enum cudnn_operation operation, const void *args,
                                     const struct aq_conv_shape *shape, struct aq_stream *stream)
{
    struct conv_call call = {.cuda = cuda,
                             .args = args,
                             .stream = stream,
                             .operation = operation,
                             .shape = *shape,
                             .in = shape->height * shape->width * shape->C,
                             .out = aq_conv_out(shape->height, shape->stride) *
                                    aq_conv_out(shape->width, shape->stride) * shape->N,
                             .weights = shape->K * shape->K * shape->C * shape->N,
                             .rounds = aq_element_bytes(shape->compute) == 2};
    const uint64_t widest = call.in > call.out ? call.in : call.out;
    if (call.rounds)
        call.most = cuda_conv_rows(cuda, shape->samples, widest * sizeof(uint16_t), 1);
    else
        call.most = widest <= INT32_MAX / shape->samples ? shape->samples : 0;
    return call;
}

/* Why cuDNN is not even asked; NULL: it is. */
static const char *conv_obstacle(const struct conv_call *call)
{
    if (call->most == 0)
        return call->rounds ? "a sample's values exceed the scratch memory" : "a batch has more than 2^31 values";
    const bool fits = call->weights * sizeof(float) <= CUDA_PART_BYTES;
    return fits && call->weights / call->shape.N <= WEIGHTS_HIGH_MAX ? NULL : "the weights exceed the scratch memory";
}

static void conv_text(const struct cudnn_key *key, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s, %llu images of %llu x %llu, %llu to %llu channels, %llu x %llu, stride %llu",
             conv_forms[key->operation - CUDNN_CONV].text, (unsigned long long)key->conv.samples,
             (unsigned long long)key->conv.height, (unsigned long long)key->conv.width, (unsigned long long)key->conv.C,
             (unsigned long long)key->conv.N, (unsigned long long)key->conv.K, (unsigned long long)key->conv.K,
             (unsigned long long)key->conv.stride);
}

static struct cudnn_plan *conv_plan(const struct conv_call *call, uint64_t samples)
{
    const struct aq_conv_shape *s = &call->shape;
    const uintptr_t any = (uintptr_t)call->x | (uintptr_t)call->y; /* w and its gradient are in scratch */
    const bool pieces = call->most && call->most < s->samples;
    const bool even = !pieces || (call->in % 4 == 0 && call->out % 4 == 0);
    const struct cudnn_key key = {.operation = call->operation,
                                  .alignment = even && any % CUDNN_ALIGNMENT == 0 ? CUDNN_ALIGNMENT : sizeof(float),
                                  .type = s->compute,
                                  .conv = {samples, s->height, s->width, s->C, s->N, s->K, s->stride}};
    return cudnn_plan_of(call->cuda->cudnn, &key, CUDA_WORKSPACE_BYTES, conv_text, conv_obstacle(call));
}

/* Images as the graph reads them: themselves, or rounded into a part of the scratch. */
static enum aq_status conv_image(const struct conv_call *call, const float *x, uint64_t count, uint32_t part,
                                 const void **at)
{
    *at = x;
    if (!call->rounds) return AQ_OK;
    *at = cuda_part(call->stream, part);
    return aq_cuda_convert(x, AQ_F32, count, cuda_part(call->stream, part), call->shape.compute, count, 1, count,
                           call->stream->at);
}

/* A matrix of all weights, turned: (K K C, N) to (N, K K C). */
static enum aq_status conv_weights_in(const struct conv_call *call, const void **at)
{
    const struct aq_conv_shape *s = &call->shape;
    const struct aq_conv_shape matrix = {.K = 1, .C = s->K * s->K * s->C, .N = s->N};
    void *to = cuda_part(call->stream, CUDNN_W_PART);
    *at = to;
    return aq_cuda_weights_turn(&matrix, call->w, to, call->rounds ? s->compute : AQ_F32, matrix.C, call->stream->at);
}

static enum aq_status conv_piece(const struct conv_call *call, const struct cudnn_plan *plan, uint64_t first,
                                 uint64_t samples, const void *w)
{
    const struct aq_conv_shape *s = &call->shape;
    const void *x = call->x + first * call->in, *y = call->y + first * call->out;
    struct cudnn_addresses addresses = {.count = 0};
    if (call->operation != CUDNN_CONV_BACKWARD) AQ_TRY(conv_image(call, x, samples * call->in, CUDNN_X_PART, &x));
    if (call->operation != CUDNN_CONV) AQ_TRY(conv_image(call, y, samples * call->out, CUDNN_DY_PART, &y));
    cudnn_put(&addresses, CONV_UID_X, x);
    cudnn_put(&addresses, CONV_UID_X + 1, w);
    cudnn_put(&addresses, CONV_UID_X + 2, y);
    AQ_TRY(cudnn_execute(call->cuda->cudnn, plan, &addresses, call->stream->workspace, call->stream,
                         conv_forms[call->operation - CUDNN_CONV].text));
    if (call->operation != CUDNN_CONV_WEIGHTS) return AQ_OK;
    return aq_cuda_weights_add(w, s->N, s->K * s->K * s->C, call->dw, call->stream->at);
}

/* Both plans are there before anything runs: dw is added to. False: one is missing. */
static bool conv_plans(struct conv_call *call)
{
    const uint64_t samples = call->shape.samples, most = call->most ? call->most : samples, rest = samples % most;
    call->plan = conv_plan(call, most);
    if (!call->plan->plan || !rest) return call->plan->plan;
    call->last = conv_plan(call, rest);
    if (!call->last->plan) return false;
    call->plan = conv_plan(call, most); /* that of the rest may have taken its place */
    return call->plan->plan;            /* and it could not be made once more */
}

static enum aq_status conv_run(void *context)
{
    const struct conv_call *call = context;
    const uint64_t samples = call->shape.samples, most = call->most;
    const void *w = cuda_part(call->stream, CUDNN_W_PART);
    if (call->operation != CUDNN_CONV_WEIGHTS) AQ_TRY(conv_weights_in(call, &w));
    for (uint64_t first = 0; first < samples; first += most) {
        const bool whole = first + most <= samples;
        AQ_TRY(conv_piece(call, whole ? call->plan : call->last, first, whole ? most : samples - first, w));
    }
    return AQ_OK;
}

static enum aq_status conv_run_own(void *context)
{
    const struct conv_call *call = context;
    if (call->operation == CUDNN_CONV) return cuda_conv_own(call->cuda, call->args, call->stream);
    if (call->operation == CUDNN_CONV_BACKWARD) return cuda_conv_backward_own(call->cuda, call->args, call->stream);
    struct aq_conv_weights args = *(const struct aq_conv_weights *)call->args;
    args.dw = call->dw;
    return cuda_conv_weights_own(call->cuda, &args, call->stream);
}

/* By the clock: a gradient of weights is added to memory that nobody reads. */
static enum aq_status conv_choose(const struct conv_call *call)
{
    const uint64_t half = CUDA_PART_BYTES / 2;
    struct conv_call timed = *call;
    struct cudnn_contest contest = {
        .own = conv_run_own, .cudnn = conv_run, .context = &timed, .text_of = conv_text};
    if (call->operation == CUDNN_CONV_WEIGHTS) {
        timed.dw = (float *)cuda_part(call->stream, CUDNN_W_PART) + half / sizeof(float);
        if (call->weights * sizeof(float) > half) contest.obstacle = "too large for the clock";
    }
    return cudnn_choose(cudnn_table(call->cuda->cudnn), call->plan, &contest, call->stream);
}

static enum aq_status conv_by_cudnn(struct conv_call *call, bool *done)
{
    const enum cuda_way way = cudnn_convolves(call->cuda->cudnn);
    *done = false;
    if (way == CUDA_OWN) return AQ_OK;
    if (!conv_plans(call)) return AQ_OK;
    if (way == CUDA_FASTEST) AQ_TRY(conv_choose(call));
    if (call->plan->faster == CUDNN_IS_SLOWER) return AQ_OK;
    AQ_TRY(conv_run(call));
    *done = true;
    return AQ_OK;
}

enum aq_status cuda_cudnn_conv(struct cuda_device *cuda, const struct aq_conv *args, struct aq_stream *stream,
                               bool *done)
{
    struct conv_call call = conv_call_of(cuda, CUDNN_CONV, args, &args->shape, stream);
    call.x = args->x;
    call.w = args->w;
    call.y = args->y;
    return conv_by_cudnn(&call, done);
}

enum aq_status cuda_cudnn_conv_backward(struct cuda_device *cuda, const struct aq_conv_backward *args,
                                        struct aq_stream *stream, bool *done)
{
    struct conv_call call = conv_call_of(cuda, CUDNN_CONV_BACKWARD, args, &args->shape, stream);
    call.x = args->dx;
    call.w = args->w;
    call.y = args->dy;
    return conv_by_cudnn(&call, done);
}

enum aq_status cuda_cudnn_conv_weights(struct cuda_device *cuda, const struct aq_conv_weights *args,
                                       struct aq_stream *stream, bool *done)
{
    struct conv_call call = conv_call_of(cuda, CUDNN_CONV_WEIGHTS, args, &args->shape, stream);
    call.x = args->x;
    call.dw = args->dw;
    call.y = args->dy;
    return conv_by_cudnn(&call, done);
}
