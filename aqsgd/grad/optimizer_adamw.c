/*
 * optimizer_adamw.c -- AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, Algorithm 2.
 *
 * The kernel is the device's (device_math.h); here are its settings. Defaults are PyTorch's.
 */
#include <math.h>

#include "optimizer.h"

static void adamw_config_default(struct aq_optimizer_config *out)
{
    out->beta1 = 0.9f;
    out->beta2 = 0.999f;
    out->epsilon = 1e-8f;
    out->weight_decay = 0.01f;
}

static enum aq_status adamw_config_check(const struct aq_optimizer_config *config)
{
    AQ_TRY(aq_optimizer_check_range("beta1", config->beta1, 0.0f, 1.0f));
    AQ_TRY(aq_optimizer_check_range("beta2", config->beta2, 0.0f, 1.0f));
    /* Zero would divide zero by zero where a parameter never had a gradient. */
    return aq_optimizer_check_range("epsilon", config->epsilon, 1e-30f, INFINITY);
}

static uint32_t adamw_state_floats(const struct aq_optimizer_config *config)
{
    (void)config;
    return 2;
}

static enum aq_status adamw_update(struct aq_device *device, const struct aq_optimizer_config *config,
                                   const struct aq_optimizer_update *update, struct aq_stream *stream)
{
    const struct aq_adamw args = {.parameters = update->parameters,
                                  .gradients = update->gradients,
                                  .m = update->state[0],
                                  .v = update->state[1],
                                  .count = update->count,
                                  .lr = update->lr,
                                  .beta1 = config->beta1,
                                  .beta2 = config->beta2,
                                  .epsilon = config->epsilon,
                                  .weight_decay = update->weight_decay,
                                  .grad_scale = update->grad_scale,
                                  .step = update->step};
    return aq_device_adamw(device, &args, stream);
}

const struct aq_optimizer_kind aq_optimizer_adamw = {
    .name = "adamw",
    .config_default = adamw_config_default,
    .config_check = adamw_config_check,
    .state_floats = adamw_state_floats,
    .state_names = {"m", "v"},
    .update = adamw_update,
};
