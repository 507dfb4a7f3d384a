/*
 * optimizer_sgd.c -- stochastic gradient descent with momentum, and the same decoupled weight decay as AdamW's.
 *
 * Differs from PyTorch's SGD: its weight decay goes through the momentum, this one does not. Without momentum there
 * is no state.
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
    const float momentum = optimizer->config.momentum;
    struct aq_fused kernel = aq_optimizer_fused_of(optimizer, momentum > 0.0f ? AQ_FUSED_SGD_MOMENTUM : AQ_FUSED_SGD);
    (void)round;
    (void)out;
    kernel.b1 = momentum;
    kernel.m = momentum > 0.0f ? optimizer->states[0].values : NULL;
    return aq_optimizer_fused(optimizer, &kernel);
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
    .unpublished = true,
    .config_default = sgd_config_default,
    .config_check = sgd_config_check,
    .place = sgd_place,
    .update = sgd_update,
    .absorbs = sgd_absorbs,
};
