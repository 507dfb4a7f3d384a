/*
 * optimizer_sgd.c -- stochastic gradient descent with momentum, and the same decoupled weight decay as AdamW's.
 *
 * Differs from PyTorch's SGD: its weight decay goes through the momentum, this one does not. Without momentum there
 * is no state. The kernel is the device's (device_math.h).
 */
#include "optimizer.h"

static void sgd_config_default(struct aq_optimizer_config *out)
{
    out->momentum = 0.9f;
}

static enum aq_status sgd_config_check(const struct aq_optimizer_config *config)
{
    return aq_optimizer_check_range("momentum", config->momentum, 0.0f, 1.0f);
}

static enum aq_status sgd_place(struct aq_optimizer *optimizer)
{
    float *velocity;
    if (optimizer->config.momentum == 0.0f) return AQ_OK;
    return aq_optimizer_take(optimizer, "velocity", optimizer->parameters, AQ_STATE_REPLICATED, &velocity);
}

static enum aq_status sgd_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const struct aq_optimizer_call *call = &optimizer->call;
    float *velocity = optimizer->config.momentum > 0.0f ? optimizer->states[0].values : NULL;
    (void)round;
    (void)out;
    for (uint32_t i = 0; i < optimizer->stretch_count; i++) {
        const struct aq_optimizer_tensor *stretch = &optimizer->stretches[i];
        const struct aq_sgd args = {.parameters = call->parameters + stretch->offset,
                                    .gradients = call->update_gradients + stretch->offset,
                                    .velocity = velocity ? velocity + stretch->offset : NULL,
                                    .count = stretch->count,
                                    .lr = call->lr,
                                    .momentum = optimizer->config.momentum,
                                    .weight_decay = stretch->decay ? optimizer->config.weight_decay : 0.0f,
                                    .grad_scale = call->grad_scale};
        AQ_TRY(aq_device_sgd(optimizer->device, &args, call->stream));
    }
    return AQ_OK;
}

/* The velocity adds up gradients as they are; without one there is nothing that could take them. */
static float sgd_absorbs(const struct aq_optimizer *optimizer, uint32_t t)
{
    (void)t;
    return optimizer->config.momentum > 0.0f ? 1.0f : 0.0f;
}

const struct aq_optimizer_kind aq_optimizer_sgd = {
    .name = "sgd",
    .averages_gradients = true,
    .config_default = sgd_config_default,
    .config_check = sgd_config_check,
    .place = sgd_place,
    .update = sgd_update,
    .absorbs = sgd_absorbs,
};
