/*
 * optimizer_lion.c -- Lion: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, Program 1.
 *
 *     c = b1 m + (1 - b1) g;   x -= lr (sign(c) + weight_decay x);   m = b2 m + (1 - b2) g
 *
 * sign(0) = 0.
 */
#include "optimizer.h"

static void lion_config_default(struct aq_optimizer_config *out)
{
    out->beta1 = 0.9f;
    out->beta2 = 0.99f;
    out->weight_decay = 1.0f;
}

static enum aq_status lion_config_check(const struct aq_optimizer_config *config)
{
    AQ_TRY(aq_optimizer_check_range("beta1", config->beta1, 0.0f, 1.0f));
    return aq_optimizer_check_range("beta2", config->beta2, 0.0f, 1.0f);
}

static enum aq_status lion_place(struct aq_optimizer *optimizer)
{
    float *m;
    return aq_optimizer_take(optimizer, "m", optimizer->parameters, AQ_STATE_REPLICATED, &m);
}

static enum aq_status lion_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    struct aq_fused kernel = aq_optimizer_fused_of(optimizer, AQ_FUSED_LION);
    (void)round;
    (void)out;
    kernel.m = optimizer->states[0].values;
    return aq_optimizer_fused(optimizer, &kernel);
}

static float lion_absorbs(const struct aq_optimizer *optimizer, uint32_t t)
{
    (void)t;
    return 1.0f - optimizer->config.beta2;
}

const struct aq_optimizer_kind aq_optimizer_lion = {
    .name = "lion",
    .averages_gradients = true,
    .config_default = lion_config_default,
    .config_check = lion_config_check,
    .place = lion_place,
    .update = lion_update,
    .absorbs = lion_absorbs,
};
