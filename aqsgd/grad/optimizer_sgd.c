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

static uint32_t sgd_state_floats(const struct aq_optimizer_config *config)
{
    return config->momentum > 0.0f ? 1 : 0;
}

static enum aq_status sgd_update(struct aq_device *device, const struct aq_optimizer_config *config,
                                 const struct aq_optimizer_update *update, struct aq_stream *stream)
{
    const struct aq_sgd args = {.parameters = update->parameters,
                                .gradients = update->gradients,
                                .velocity = update->state[0],
                                .count = update->count,
                                .lr = update->lr,
                                .momentum = config->momentum,
                                .weight_decay = update->weight_decay,
                                .grad_scale = update->grad_scale};
    return aq_device_sgd(device, &args, stream);
}

const struct aq_optimizer_kind aq_optimizer_sgd = {
    .name = "sgd",
    .config_default = sgd_config_default,
    .config_check = sgd_config_check,
    .state_floats = sgd_state_floats,
    .state_names = {"velocity"},
    .update = sgd_update,
};
