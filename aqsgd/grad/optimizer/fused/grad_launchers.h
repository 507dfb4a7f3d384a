/*
 * grad_launchers.h -- the kernels of replicas that a backend offers (the slot `grad` of device_ops.h); what they mean
 * is in aqsgd/grad_device.h. Private to this folder.
 */
#ifndef AQSGD_GRAD_LAUNCHERS_H
#define AQSGD_GRAD_LAUNCHERS_H

#include "aqsgd/grad_device.h"
#include "optimizer_fused.h"

/* The first member of a backend's coder. */
struct aq_grad_coder {
    struct aq_device *device;
    const struct aq_grad_codec *codec;
    uint32_t span_count;
};

struct aq_grad_launchers {
    enum aq_status (*check_config)(const struct aq_grad_codec_config *config);
    enum aq_status (*open)(struct aq_device *device, const struct aq_grad_codec *codec,
                           const struct aq_grad_span *spans, uint32_t span_count, struct aq_grad_coder **out);
    void (*close)(struct aq_grad_coder *coder);
    enum aq_status (*encode)(struct aq_grad_coder *coder, uint32_t span, const float *x, float *error, uint64_t step,
                             void *wire, struct aq_stream *stream);
    enum aq_status (*decode)(struct aq_grad_coder *coder, uint32_t span, const void *wire, float weight, bool add,
                             float *sum, struct aq_stream *stream);
    enum aq_status (*check)(struct aq_grad_coder *coder, struct aq_stream *stream);
    enum aq_status (*sum_ranks)(struct aq_device *device, const struct aq_sum_ranks *args, struct aq_stream *stream);
    /* As aq_fused_piece of each of its pieces: everything in device memory. */
    enum aq_status (*fused)(struct aq_device *device, const struct aq_fused *kernel, struct aq_stream *stream);
};

#endif
