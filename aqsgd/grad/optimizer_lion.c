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

static void step_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct aq_optimizer_call *call = &optimizer->call;
    const float b1 = optimizer->config.beta1, b2 = optimizer->config.beta2, c1 = 1.0f - b1, c2 = 1.0f - b2;
    const float decay = aq_optimizer_decay(optimizer, piece);
    const float *gradients = call->update_gradients + piece->first;
    float *p = call->parameters + piece->first, *m = optimizer->states[0].values + piece->first;
    (void)index;
    for (uint32_t i = 0; i < piece->count; i++) {
        const float g = gradients[i] * call->grad_scale, c = b1 * m[i] + c1 * g;
        const float sign = (float)((c > 0.0f) - (c < 0.0f));
        p[i] -= call->lr * (sign + decay * p[i]);
        m[i] = b2 * m[i] + c2 * g;
    }
}

static enum aq_status lion_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    (void)round;
    (void)out;
    aq_optimizer_each(optimizer, step_piece);
    return AQ_OK;
}

static float lion_absorbs(const struct aq_optimizer *optimizer, uint32_t t)
{
    (void)t;
    return 1.0f - optimizer->config.beta2;
}

const struct aq_optimizer_kind aq_optimizer_lion = {
    .name = "lion",
    .host = true,
    .averages_gradients = true,
    .config_default = lion_config_default,
    .config_check = lion_config_check,
    .place = lion_place,
    .update = lion_update,
    .absorbs = lion_absorbs,
};
