/*
 * optimizer.h -- the seam behind aq_optimizer_*: a kind of optimizer is a row of optimizers.def and one file.
 *
 * Locking: as grad.h.
 */
#ifndef AQSGD_GRAD_OPTIMIZER_H
#define AQSGD_GRAD_OPTIMIZER_H

#include "aqsgd/device_math.h"
#include "aqsgd/grad.h"

enum { AQ_OPTIMIZER_STATES_MAX = 2 };

/* One update of a stretch of the flat buffer that decays as a whole. state: the stretch of each state array. */
struct aq_optimizer_update {
    float *parameters;
    const float *gradients;
    float *state[AQ_OPTIMIZER_STATES_MAX];
    uint64_t count;
    float lr, weight_decay, grad_scale;
    uint64_t step;
};

struct aq_optimizer_kind {
    const char *name;
    void (*config_default)(struct aq_optimizer_config *out); /* out is zero but for its kind */
    enum aq_status (*config_check)(const struct aq_optimizer_config *config);
    /* How many state arrays; at most AQ_OPTIMIZER_STATES_MAX. */
    uint32_t (*state_floats)(const struct aq_optimizer_config *config);
    const char *state_names[AQ_OPTIMIZER_STATES_MAX];
    enum aq_status (*update)(struct aq_device *device, const struct aq_optimizer_config *config,
                             const struct aq_optimizer_update *update, struct aq_stream *stream);
};

/* AQ_INVAL, naming the field, unless least <= value < below. */
enum aq_status aq_optimizer_check_range(const char *field, float value, float least, float below);

#define AQ_OPTIMIZER(name) extern const struct aq_optimizer_kind aq_optimizer_##name;
#include "optimizers.def"
#undef AQ_OPTIMIZER

#endif
