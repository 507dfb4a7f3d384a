/*
 * advice_private.h -- what the files of this module share.
 */
#ifndef RUNTIME_ADVICE_PRIVATE_H
#define RUNTIME_ADVICE_PRIVATE_H

#include "advice.h"

/* advice_reduce.c: costs of a step of the optimizer's warm-up, which sends fp32 gradients (traffic.warmup_steps). */
void aq_plan_costs_warmup(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_costs *out);

/*
 * advice_bound.c: fills compute_s, cores_s, bound_s and binds of a prediction. Its forward_s and backward_s, the
 * seconds of a step that each link carries, are filled already.
 */
void aq_plan_bound(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_prediction *out);

/*
 * advice_measure_codec.c: the coding of one micro-batch, timed on a device: the least of several repeats, with the
 * copies between device and host that a GPU's edge makes. before, after: (B, rows, columns) of device memory; the first
 * visit is a keyframe of `before`, the later ones are `after` against what was kept. bodies: those of the second visit,
 * one after the other; the caller frees them.
 */
struct aq_plan_coding {
    struct aq_device *device;
    struct aq_stream *stream;
    const struct aq_codec_config *config;
    uint32_t B, rows, columns;
    const float *before, *after;
    double encode_s, decode_s; /* out */
    uint8_t *bodies;           /* out */
    uint32_t body_bytes;       /* out */
};
enum aq_status aq_plan_time_coding(struct aq_plan_coding *coding);

/* advice_measure_codec.c: what links leave of gradients in a codec, by some pieces of them. */
struct aq_plan_gradients {
    struct aq_device *device;
    struct aq_stream *stream;
    const float *values; /* device memory */
    uint64_t count;
    const struct aq_link_config *link;
    bool local;
};
enum aq_status aq_plan_gradients_share(const struct aq_plan_gradients *gradients,
                                       const struct aq_grad_codec_config *config, double *share);

#endif
