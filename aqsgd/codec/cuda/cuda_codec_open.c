/*
 * cuda_codec_open.c -- the codec kernels as the CUDA backend offers them: its streams on the one side, cuda_codec.h's
 * launchers on the other.
 */
#include "codec_internal.h"
#include "cuda_device.h"

static void *stream_of(struct aq_device *device, struct aq_stream *stream)
{
    return cuda_stream_of(cuda_device_of(device), stream)->at;
}

const struct aq_codec_launchers aq_codec_launchers_cuda = {
    .encode = aq_cuda_codec_encode, .decode = aq_cuda_codec_decode, .stream_of = stream_of};
