/*
 * optimizer_adamw.c -- AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, Algorithm 2.
 *
 *     m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g g
 *     x = x - lr weight_decay x - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
 *
 * Defaults are PyTorch's.
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
    const struct aq_optimizer_ending *ending = &optimizer->call.ending;
    const enum aq_fused_kind kind = !ending->gradients ? AQ_FUSED_ADAMW
                                    : ending->rounded  ? AQ_FUSED_ADAMW_ROUNDS
                                                       : AQ_FUSED_ADAMW_CLEARS;
    struct aq_fused kernel =
        aq_optimizer_fused_moments(optimizer, kind, optimizer->states[0].values, optimizer->states[1].values);
    (void)round;
    (void)out;
    kernel.cleared = ending->gradients;
    kernel.rounded = ending->rounded;
    kernel.halves = ending->type == AQ_F16;
    kernel.k1 = aq_optimizer_corrected(optimizer->config.beta1, optimizer->call.step - optimizer->missed);
    kernel.k2 = aq_optimizer_corrected(optimizer->config.beta2, optimizer->call.step - optimizer->missed);
    return aq_optimizer_fused(optimizer, &kernel);
}

const struct aq_optimizer_kind aq_optimizer_adamw = {
    .name = "adamw",
    .averages_gradients = true,
    .unpublished = true,
    .ends = true,
    .config_default = adamw_config_default,
    .config_check = aq_optimizer_check_adam,
    .place = adamw_place,
    .update = adamw_update,
    .absorbs = aq_optimizer_absorbs_gradient,
};
