/*
 * optimizer_qadam.c -- QuantizedAdam: Wang et al. 2022 (AQ-SGD), section 4.3, after 1-bit Adam (Tang et al. 2021).
 *
 *     warm-up   g = mean of gradients (fp32);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g
 *     later     m = reduced(b1 m + (1 - b1) own g), in 2 to 8 bits with errors kept on both sides; v is frozen
 *     always    p -= lr sqrt(1 - b2^t) / (1 - b1^t)  m / (sqrt(v) + eps);   p -= lr weight_decay p
 *
 * That is the published code's step (form "code"), in which the bias corrections of both moments continue also when v
 * is frozen: with b2 0.999 and 100 steps of warm-up, the step grows 3.2 times in the run. With form "paper" the
 * correction of v stays as it was when v was frozen, as 1-bit Adam's Algorithm 1 has it, to which the paper refers.
 * Defaults: 4 bits in buckets of 512 (the paper's setting; the code's is 8), AdamW's numbers. Differs: the grid is
 * symmetric (reduce.grid "signed" is the published one), errors are fp32 and saved. Parameters whose frozen sqrt(v) is
 * below 1e-6 of the root mean square of their tensor only decay: they have no gradient, and grids without a zero (2
 * bits, sign) give them one (aq_optimizer_noise_drop in optimizer.h).
 */
#include <math.h>
#include <string.h>

#include "optimizer.h"

enum { M, V };

static void qadam_config_default(struct aq_optimizer_config *out)
{
    out->beta1 = 0.9f;
    out->beta2 = 0.999f;
    out->epsilon = 1e-8f;
    out->weight_decay = 0.01f;
    out->warmup_steps = 100;
    aq_grad_codec_config_default(&out->reduce, "uniform");
}

static enum aq_status qadam_config_check(const struct aq_optimizer_config *config)
{
    if (config->warmup_steps == 0)
        return aq_fail(AQ_INVAL, "optimizer",
                       "warmup_steps is 0, but qadam needs warm-up steps to estimate its variance");
    if (config->form && strcmp(config->form, "code") != 0 && strcmp(config->form, "paper") != 0)
        return aq_fail(AQ_INVAL, "optimizer", "form is \"%s\", must be code or paper", config->form);
    return aq_optimizer_check_adam(config);
}

static enum aq_status qadam_place(struct aq_optimizer *optimizer)
{
    float *m, *v;
    AQ_TRY(aq_optimizer_take(optimizer, "m", optimizer->parameters, AQ_STATE_REPLICATED, &m));
    AQ_TRY(aq_optimizer_take(optimizer, "v", optimizer->parameters, AQ_STATE_REPLICATED, &v));
    AQ_TRY(aq_optimizer_noise_place(optimizer));
    return aq_optimizer_take_errors(optimizer);
}

static bool qadam_averages(const struct aq_optimizer *optimizer, uint64_t step)
{
    return step <= optimizer->config.warmup_steps;
}

static struct aq_fused kernel_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind)
{
    const struct aq_optimizer_call *call = &optimizer->call;
    const double one = 1.0 - pow((double)optimizer->config.beta1, (double)call->step);
    const bool holds = optimizer->config.form && strcmp(optimizer->config.form, "paper") == 0;
    const uint64_t warm = optimizer->config.warmup_steps, of = holds && call->step > warm ? warm : call->step;
    const double two = 1.0 - pow((double)optimizer->config.beta2, (double)of);
    struct aq_fused kernel =
        aq_optimizer_fused_moments(optimizer, kind, optimizer->states[M].values, optimizer->states[V].values);
    kernel.low = (float)((double)call->lr * sqrt(two) / one);
    return kernel;
}

/* If no reduction is needed one kernel does all of it, so that a piece stays in the cache. */
static enum aq_status qadam_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const bool frozen = optimizer->call.step > optimizer->config.warmup_steps;
    if (!frozen) aq_optimizer_noise_again(optimizer);
    if (frozen && round == 0) AQ_TRY(aq_optimizer_noise_drop(optimizer, optimizer->states[V].values));
    if (!frozen || optimizer->group.size == 1) {
        const struct aq_fused kernel = kernel_of(optimizer, frozen ? AQ_FUSED_QADAM_ALONE : AQ_FUSED_QADAM_WARM);
        return aq_optimizer_fused(optimizer, &kernel);
    }
    if (round > 0) return aq_optimizer_asked(optimizer);
    const struct aq_fused before = kernel_of(optimizer, AQ_FUSED_MOMENTUM);
    const struct aq_fused after = kernel_of(optimizer, AQ_FUSED_QADAM_FROZEN);
    return aq_optimizer_ask_along(optimizer, optimizer->states[M].values, &before, &after, out);
}

const struct aq_optimizer_kind aq_optimizer_qadam = {
    .name = "qadam",
    .config_default = qadam_config_default,
    .config_check = qadam_config_check,
    .traffic = aq_optimizer_traffic_warmup,
    .place = qadam_place,
    .averages = qadam_averages,
    .update = qadam_update,
    .absorbs = aq_optimizer_absorbs_momentum,
};
