/*
 * cuda_math.c -- device_math.h on a GPU, but for the matrix products: each function is its kernels' launcher
 * (cuda_kernels.h) with the stream's scratch memory.
 */
#include <string.h>

#include "cuda_device.h"

enum aq_status cuda_layernorm(struct aq_device *device, const struct aq_layernorm *args, struct aq_stream *stream)
{
    return aq_cuda_layernorm(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_layernorm_backward(struct aq_device *device, const struct aq_layernorm_backward *args,
                                       struct aq_stream *stream)
{
    stream = cuda_stream_of(cuda_device_of(device), stream);
    return aq_cuda_layernorm_backward(args, cuda_part(stream, 0), stream->at);
}

enum aq_status cuda_attention(struct aq_device *device, const struct aq_attention *args, struct aq_stream *stream)
{
    return aq_cuda_attention(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_attention_backward(struct aq_device *device, const struct aq_attention *args,
                                       struct aq_stream *stream)
{
    stream = cuda_stream_of(cuda_device_of(device), stream);
    return aq_cuda_attention_backward(args, cuda_part(stream, 0), stream->at);
}

enum aq_status cuda_embedding(struct aq_device *device, const struct aq_embedding *args, struct aq_stream *stream)
{
    return aq_cuda_embedding(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_embedding_backward(struct aq_device *device, const struct aq_embedding_backward *args,
                                       struct aq_stream *stream)
{
    return aq_cuda_embedding_backward(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_cross_entropy(struct aq_device *device, const struct aq_cross_entropy *args,
                                  struct aq_stream *stream)
{
    return aq_cuda_cross_entropy(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_column_sum(struct aq_device *device, const void *x, enum aq_element type, uint64_t rows, uint64_t C,
                               uint64_t stride, float *sums, struct aq_stream *stream)
{
    stream = cuda_stream_of(cuda_device_of(device), stream);
    return aq_cuda_column_sum(x, type, rows, C, stride, sums, cuda_part(stream, 0), stream->at);
}

enum aq_status cuda_dropout(struct aq_device *device, const struct aq_dropout_apply *args, struct aq_stream *stream)
{
    return aq_cuda_dropout(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_fill_normal(struct aq_device *device, float *x, uint64_t count, struct aq_rng_key key, float std,
                                float value, struct aq_stream *stream)
{
    return aq_cuda_fill_normal(x, count, key, std, value, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_adamw(struct aq_device *device, const struct aq_adamw *args, struct aq_stream *stream)
{
    return aq_cuda_adamw(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_sgd(struct aq_device *device, const struct aq_sgd *args, struct aq_stream *stream)
{
    return aq_cuda_sgd(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_lion(struct aq_device *device, const struct aq_lion *args, struct aq_stream *stream)
{
    return aq_cuda_lion(args, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_lamb(struct aq_device *device, const struct aq_lamb_tensor *args, struct aq_stream *stream)
{
    stream = cuda_stream_of(cuda_device_of(device), stream);
    return aq_cuda_lamb(args, cuda_part(stream, 0), stream->at);
}

enum aq_status cuda_scale(struct aq_device *device, float *x, uint64_t count, float factor, struct aq_stream *stream)
{
    return aq_cuda_scale(x, count, factor, cuda_stream_of(cuda_device_of(device), stream)->at);
}

enum aq_status cuda_squares(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                            double *sums, struct aq_stream *stream)
{
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
