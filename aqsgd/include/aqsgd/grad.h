/*
 * grad.h -- optimizers over one flat buffer, and (with data parallelism) the compressors of what is averaged.
 *
 * An optimizer is a row of optimizers.def: how many floats of state it needs a parameter, and one step. State is
 * plain memory that a checkpoint saves as it is. Every step is a pure function of (parameters, gradients, state, step
 * number).
 *
 * Locking: one thread.
 */
#ifndef AQSGD_GRAD_H
#define AQSGD_GRAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_optimizer_config {
    const char *kind; /* "adamw", "sgd"                                                        */
    float beta1, beta2, epsilon;
    float weight_decay; /* decoupled: p -= lr * weight_decay * p, where the tensor decays       */
    float momentum;     /* sgd                                                                  */
};
void aq_optimizer_config_default(struct aq_optimizer_config *out, const char *kind);
enum aq_status aq_optimizer_config_check(const struct aq_optimizer_config *config); /* AQ_INVAL names the field */

/* One tensor of the flat buffer; tensors lie in order and without overlap. */
struct aq_optimizer_tensor {
    uint64_t offset, count;
    bool decay;
};

struct aq_optimizer; /* opaque: config, tensors, state */

/* parameters: floats of the flat buffer. The state is zero. */
enum aq_status aq_optimizer_open(struct aq_device *device, const struct aq_optimizer_config *config,
                                 const struct aq_optimizer_tensor *tensors, uint32_t tensor_count, uint64_t parameters,
                                 struct aq_optimizer **out);
void aq_optimizer_close(struct aq_optimizer *optimizer); /* NULL is fine */

/* Floats of state a parameter (2 for adamw); what plan prints. */
uint32_t aq_optimizer_state_floats(const struct aq_optimizer_config *config);

/* The state, for checkpoints: `count` arrays of `parameters` floats, device memory, borrowed. */
uint32_t aq_optimizer_state_count(const struct aq_optimizer *optimizer);
float *aq_optimizer_state(struct aq_optimizer *optimizer, uint32_t index);
const char *aq_optimizer_state_name(const struct aq_optimizer *optimizer, uint32_t index); /* "m", "v" */

/*
 * One update. step counts from 1 (bias correction). Gradients are multiplied by grad_scale first (clipping); they are
 * not cleared. lr: this step's.
 */
enum aq_status aq_optimizer_step(struct aq_optimizer *optimizer, float *parameters, const float *gradients, float lr,
                                 float grad_scale, uint64_t step, struct aq_stream *stream);

/*
 * Linear warm-up: peak * step / warmup, peak at step `warmup`. Then from peak at step warmup + 1 down to 0 after step
 * `total`, linearly or by half a cosine, so that no step of 1..total is wasted on a rate of 0; or constant. step from
 * 1; beyond `total` the rate is 0 unless constant.
 */
enum aq_lr_decay { AQ_DECAY_CONSTANT = 1, AQ_DECAY_LINEAR = 2, AQ_DECAY_COSINE = 3 };
float aq_learning_rate(float peak, uint64_t step, uint64_t warmup, uint64_t total, enum aq_lr_decay decay);

#ifdef __cplusplus
}
#endif
#endif
