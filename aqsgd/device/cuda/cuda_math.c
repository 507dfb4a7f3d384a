/*
 * cuda_math.c -- device_math.h on a GPU, but for the matrix products: each row of math.def is its kernels' launcher
 * (cuda_kernels.h) with the stream's scratch memory.
 */
#include <string.h>

#include "cuda_device.h"

#define AQ_MATH_LIBRARY(...)
#define AQ_MATH(name, type, ...)                                                                                       \
    enum aq_status cuda_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream)            \
    {                                                                                                                  \
        stream = cuda_stream_of(cuda_device_of(device), stream);                                                       \
        return aq_cuda_##name(args, cuda_part(stream, 0), stream->at);                                                 \
    }
#include "aqsgd/math.def"

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
