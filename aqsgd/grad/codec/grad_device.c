/* grad_device.c -- gradient codecs on devices: find the backend's, check what callers must get right, pass on. */
#include "aqsgd/grad_device.h"

#include "device_ops.h"
#include "cuda_grad.h"
#include "grad_internal.h"
#include "grad_launchers.h"

static const struct aq_grad_launchers *launchers_of(const struct aq_grad_coder *coder)
{
    return coder->device->ops->grad;
}

enum aq_status aq_grad_device_check(const struct aq_device *device, const struct aq_grad_codec_config *config)
{
    struct aq_device_info info;
    aq_device_info(device, &info);
    if (!device->ops->grad) return aq_fail(AQ_NODEV, "grad", "%s has no kernels for gradient codecs", info.name);
    return device->ops->grad->check_config(config);
}

enum aq_status aq_grad_coder_open(struct aq_device *device, const struct aq_grad_codec *codec,
                                  const struct aq_grad_span *spans, uint32_t span_count, struct aq_grad_coder **out)
{
    AQ_TRY(aq_grad_device_check(device, &codec->config));
    for (uint32_t i = 0; i < span_count; i++)
        if (spans[i].first > codec->parameters || spans[i].count > codec->parameters - spans[i].first)
            return aq_fail(AQ_INVAL, "grad", "floats %llu + %llu exceed a buffer of %llu",
                           (unsigned long long)spans[i].first, (unsigned long long)spans[i].count,
                           (unsigned long long)codec->parameters);
    return device->ops->grad->open(device, codec, spans, span_count, out);
}

void aq_grad_coder_close(struct aq_grad_coder *coder)
{
    if (coder) launchers_of(coder)->close(coder);
}

uint64_t aq_grad_coder_measure(const struct aq_grad_codec_config *config, uint64_t count, uint32_t tensors)
{
    const uint64_t pieces = count / AQ_GRAD_PIECE + 2 * AQ_SUM_RANKS_MAX;
    const uint64_t scale = sizeof(struct aq_cuda_grad_bucket) + 2 * sizeof(float);
    /* A tensor's part of a piece has its own scales, and so has the padding next to it. */
    const uint64_t scales = (config->bucket ? count / config->bucket : 0) + 2 * (pieces + tensors);
    return pieces * sizeof(struct aq_cuda_grad_piece) + (aq_grad_codec_config_lossy(config) ? scales * scale : 0);
}

enum aq_status aq_grad_coder_encode(struct aq_grad_coder *coder, uint32_t span, const float *x, float *error,
                                    uint64_t step, void *wire, struct aq_stream *stream)
{
    AQ_ASSERT(span < coder->span_count);
    return launchers_of(coder)->encode(coder, span, x, error, step, wire, stream);
}

enum aq_status aq_grad_coder_decode(struct aq_grad_coder *coder, uint32_t span, const void *wire, float weight,
                                    bool add, float *sum, struct aq_stream *stream)
{
    AQ_ASSERT(span < coder->span_count);
    return launchers_of(coder)->decode(coder, span, wire, weight, add, sum, stream);
}

enum aq_status aq_grad_coder_check(struct aq_grad_coder *coder, struct aq_stream *stream)
{
    return launchers_of(coder)->check(coder, stream);
}

enum aq_status aq_device_sum_ranks(struct aq_device *device, const struct aq_sum_ranks *args, struct aq_stream *stream)
{
    AQ_ASSERT(device->ops->grad && args->size <= AQ_SUM_RANKS_MAX && args->rank < args->size);
    return args->count ? device->ops->grad->sum_ranks(device, args, stream) : AQ_OK;
}
