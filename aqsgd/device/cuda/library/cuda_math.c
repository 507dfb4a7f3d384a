/*
 * cuda_math.c -- device_math.h on a GPU, except the matrix products: each row of math.def is its kernels' launcher
 * (cuda_kernels.h) with the stream's scratch memory. Initial values have a step on the host; attention may be cuDNN's.
 */
#include <string.h>

#include "cuda_device.h"
#if AQ_WITH_CUDNN
#include "cuda_cudnn.h"
#endif

#define AQ_MATH_LIBRARY(...)
#define AQ_MATH(name, type, ...)                                                                                       \
    enum aq_status cuda_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream)            \
    {                                                                                                                  \
        stream = cuda_stream_of(cuda_device_of(device), stream);                                                       \
        return aq_cuda_##name(args, cuda_part(stream, 0), stream->at);                                                 \
    }
#include "aqsgd/math.def"

static enum aq_status attention(struct cuda_device *cuda, const struct aq_attention *args, bool backward,
                                struct aq_stream *stream)
{
    bool done = false;
    stream = cuda_stream_of(cuda, stream);
#if AQ_WITH_CUDNN
    if (cuda->cudnn) AQ_TRY(cuda_cudnn_attention(cuda->cudnn, args, backward, stream, &done));
#endif
    if (done) return cuda_check(cuda, stream, "attention");
    return backward ? aq_cuda_attention_backward(args, cuda_part(stream, 0), stream->at)
                    : aq_cuda_attention(args, cuda_part(stream, 0), stream->at);
}

enum aq_status cuda_attention(struct aq_device *device, const struct aq_attention *args, struct aq_stream *stream)
{
    return attention(cuda_device_of(device), args, false, stream);
}

enum aq_status cuda_attention_backward(struct aq_device *device, const struct aq_attention *args,
                                       struct aq_stream *stream)
{
    return attention(cuda_device_of(device), args, true, stream);
}

enum aq_status cuda_squares(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                            double *sums, struct aq_stream *stream)
{
    AQ_TRY(cuda_outside_graphs("a sum that the host reads"));
    stream = cuda_stream_of(cuda_device_of(device), stream);
    double *there = cuda_part(stream, 1);
    for (uint32_t first = 0; first < count; first += CUDA_SUMS) {
        const uint32_t n = count - first < CUDA_SUMS ? count - first : CUDA_SUMS;
        AQ_TRY(aq_cuda_squares(x, spans + first, n, there, cuda_part(stream, 0), stream->at));
        AQ_CUDA(cudaMemcpyAsync(stream->sums, there, n * sizeof *there, cudaMemcpyDeviceToHost, stream->at));
        AQ_CUDA(cudaStreamSynchronize(stream->at));
        memcpy(sums + first, stream->sums, n * sizeof *sums);
    }
    return AQ_OK;
}

/* `count` values, whose elements are in `doubtful` on the device, as the host's log and cos give them. */
static enum aq_status draw_again(const struct aq_fill_normal *args, const uint64_t *doubtful, uint64_t count,
                                 const struct aq_stream *stream)
{
    double *pinned = stream->sums; /* an element's number, then its value */
    AQ_CUDA(cudaMemcpyAsync(pinned, doubtful, count * sizeof *doubtful, cudaMemcpyDeviceToHost, stream->at));
    AQ_CUDA(cudaStreamSynchronize(stream->at));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t element;
        memcpy(&element, &pinned[i], sizeof element);
        const float value = args->std * aq_rng_normal(&args->key, element);
        memcpy(&pinned[i], &value, sizeof value);
        AQ_CUDA(cudaMemcpyAsync(args->x + element, &pinned[i], sizeof value, cudaMemcpyHostToDevice, stream->at));
    }
    AQ_CUDA(cudaStreamSynchronize(stream->at));
    return AQ_OK;
}

/* The GPU draws them, and the host those again, one in 2^21, whose last bit depends on whose log and cos it was. */
enum aq_status cuda_fill_normal(struct aq_device *device, const struct aq_fill_normal *args, struct aq_stream *stream)
{
    enum { ROOM = CUDA_PART_BYTES / sizeof(uint64_t) - 1 };
    AQ_TRY(cuda_outside_graphs("a draw of initial values"));
    stream = cuda_stream_of(cuda_device_of(device), stream);
    uint64_t *doubtful = cuda_part(stream, 0), count;
    AQ_CUDA(cudaMemsetAsync(doubtful, 0, sizeof *doubtful, stream->at));
    AQ_TRY(aq_cuda_fill_normal(args, doubtful, ROOM, stream->at));
    AQ_CUDA(cudaMemcpyAsync(stream->sums, doubtful, sizeof *doubtful, cudaMemcpyDeviceToHost, stream->at));
    AQ_CUDA(cudaStreamSynchronize(stream->at));
    memcpy(&count, stream->sums, sizeof count);
    AQ_ASSERT(count <= ROOM); /* of 2^43 values */
    for (uint64_t first = 0; first < count; first += CUDA_SUMS) {
        const uint64_t some = count - first < CUDA_SUMS ? count - first : CUDA_SUMS;
        AQ_TRY(draw_again(args, doubtful + 1 + first, some, stream));
    }
    return AQ_OK;
}
