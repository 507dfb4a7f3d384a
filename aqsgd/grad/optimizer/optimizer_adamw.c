/*
 * optimizer_adamw.c -- AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, Algorithm 2.
 *
 * The kernel is the device's (device_math.h); here are its settings. Defaults are PyTorch's.
 */
#include "optimizer.h"

static void adamw_config_default(struct aq_optimizer_config *out)
{
    out->beta1 = 0.9f;
    out->beta2 = 0.999f;
    out->epsilon = 1e-8f;
    out->weight_decay = 0.01f;
}

static enum aq_status adamw_place(struct aq_optimizer *optimizer)
{
    float *m, *v;
    AQ_TRY(aq_optimizer_take(optimizer, "m", optimizer->parameters, AQ_STATE_REPLICATED, &m));
    return aq_optimizer_take(optimizer, "v", optimizer->parameters, AQ_STATE_REPLICATED, &v);
}

static enum aq_status adamw_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const struct aq_optimizer_config *config = &optimizer->config;
    const struct aq_optimizer_call *call = &optimizer->call;
    (void)round;
    (void)out;
    for (uint32_t i = 0; i < optimizer->stretch_count; i++) {
        const struct aq_optimizer_tensor *stretch = &optimizer->stretches[i];
        const struct aq_adamw args = {.parameters = call->parameters + stretch->offset,
                                      .gradients = call->update_gradients + stretch->offset,
                                      .m = optimizer->states[0].values + stretch->offset,
                                      .v = optimizer->states[1].values + stretch->offset,
                                      .count = stretch->count,
                                      .lr = call->lr,
                                      .beta1 = config->beta1,
                                      .beta2 = config->beta2,
                                      .epsilon = config->epsilon,
                                      .weight_decay = stretch->decay ? config->weight_decay : 0.0f,
                                      .grad_scale = call->grad_scale,
                                      .step = call->step};
        AQ_TRY(aq_device_adamw(optimizer->device, &args, call->stream));
    }
    return AQ_OK;
}

const struct aq_optimizer_kind aq_optimizer_adamw = {
    .name = "adamw",
    .averages_gradients = true,
    .config_default = adamw_config_default,
    .config_check = aq_optimizer_check_adam,
    .place = adamw_place,
    .update = adamw_update,
    .absorbs = aq_optimizer_absorbs_gradient,
};
