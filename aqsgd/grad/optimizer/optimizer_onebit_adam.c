/*
 * optimizer_onebit_adam.c -- 1-bit Adam: Tang et al., "1-bit Adam", ICML 2021, Algorithm 1.
 *
 *     line 2      Adam on the mean gradient until v is frozen, at step Tw
 *     line 6      m = b1 m + (1 - b1) own g
 *     lines 7-13  m = C[mean of C[m + worker error] + server error], errors kept  (the compressed allreduce)
 *     line 13     x -= lr m / sqrt(v_Tw)
 *
 * Tw: warmup_steps; or, with freeze_ratio > 0, the first step from there on where ||v(t - D)||_1 / ||v(t)||_1 >=
 * freeze_ratio, D = 1 / (1 - b2) (section 7's rule, 0.96; the smaller over the larger here, so that a norm that falls
 * counts as moving too). The norm is over the whole model, all stages (aq_optimizer_gauge), so that Tw is one decision
 * of the whole job: stages that froze by their own norms would average different things in one step, and replicas would
 * clip by norms that differ. It is the norm before the step's update, which all stages know at the start of the step; a
 * step that is skipped does not count. The norms of the last D updates are state.
 *
 * Differs from the paper and DeepSpeed: bias corrections as in Adam (bias_correction false leaves them out as DeepSpeed
 * does); after Tw the correction of v stays as it was at Tw, so that the step does not jump. eps is added to the root
 * as in Adam. Decoupled weight decay. The first gradient counts. Parameters without a gradient are found and only decay
 * (DeepSpeed: a mask that the user writes): those whose sqrt(v) at Tw is below 1e-6 of the root mean square of their
 * tensor. aq_optimizer_noise_drop in optimizer.h has the reason.
 */
#include <math.h>

#include "optimizer.h"

enum { M, V };

struct onebit_adam {
    float *frozen;  /* 2 */
    float *updates; /* 2, with freeze_ratio > 0: how many there were      */
    float *history; /* ||v||_1 after update u at u % D                    */
    uint64_t interval;
};

static uint64_t interval_of(const struct aq_optimizer_config *config)
{
    const double steps = 1.0 / (1.0 - (double)config->beta2);
    return steps < 1.5 ? 1 : (uint64_t)(steps + 0.5);
}

static void onebit_adam_config_default(struct aq_optimizer_config *out)
{
    out->beta1 = 0.9f;
    out->beta2 = 0.999f;
    out->epsilon = 1e-8f;
    out->freeze_ratio = 0.96f;
    out->bias_correction = true;
    aq_grad_codec_config_default(&out->reduce, "sign");
    out->reduce.scale = "l2";
}

static enum aq_status onebit_adam_config_check(const struct aq_optimizer_config *config)
{
    if (config->warmup_steps == 0 && config->freeze_ratio == 0.0f)
        return aq_fail(AQ_INVAL, "optimizer",
                       "warmup_steps and freeze_ratio are both 0: set one of them, to freeze the variance");
    AQ_TRY(aq_optimizer_check_range("freeze_ratio", config->freeze_ratio, 0.0f, 1.0f));
    AQ_TRY(aq_optimizer_check_adam(config));
    if (config->freeze_ratio > 0.0f && interval_of(config) > 1 << 20)
        return aq_fail(AQ_INVAL, "optimizer", "beta2 is %.9g: the variance moves over more than %d steps",
                       (double)config->beta2, 1 << 20);
    return AQ_OK;
}

/* The norm is known before an update, and is compared with the one of `interval` updates earlier: see settled. */
static void onebit_adam_traffic(const struct aq_optimizer_sent *sent, struct aq_optimizer_traffic *out)
{
    const struct aq_optimizer_config *config = sent->config;
    const uint64_t earliest = config->freeze_ratio > 0.0f ? interval_of(config) + 2 : 0;
    out->warmup_least = config->freeze_ratio > 0.0f;
    out->warmup_steps = config->warmup_steps > earliest ? config->warmup_steps : earliest;
}

static enum aq_status onebit_adam_place(struct aq_optimizer *optimizer)
{
    float *m, *v, *frozen, *history = NULL;
    void *memory;
    const uint64_t interval = optimizer->config.freeze_ratio > 0.0f ? interval_of(&optimizer->config) : 0;
    AQ_TRY(aq_optimizer_take(optimizer, "m", optimizer->parameters, AQ_STATE_REPLICATED, &m));
    AQ_TRY(aq_optimizer_take(optimizer, "v", optimizer->parameters, AQ_STATE_REPLICATED, &v));
    AQ_TRY(aq_optimizer_take_few(optimizer, "frozen_at", 2, AQ_STATE_REPLICATED, &frozen));
    if (interval) AQ_TRY(aq_optimizer_take_few(optimizer, "norms", 2 + interval, AQ_STATE_REPLICATED, &history));
    AQ_TRY(aq_optimizer_noise_place(optimizer));
    AQ_TRY(aq_optimizer_scratch(optimizer, sizeof(struct onebit_adam), &memory));
    optimizer->own = memory;
    if (memory)
        *(struct onebit_adam *)memory =
            (struct onebit_adam){.frozen = frozen, .updates = history, .interval = interval};
    if (memory && history) ((struct onebit_adam *)memory)->history = history + 2;
    return aq_optimizer_take_errors(optimizer);
}

static bool onebit_adam_averages(const struct aq_optimizer *optimizer, uint64_t step)
{
    const struct onebit_adam *own = optimizer->own;
    (void)step;
    return aq_optimizer_step_read(own->frozen) == 0;
}

static struct aq_fused kernel_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind)
{
    const struct onebit_adam *own = optimizer->own;
    const uint64_t step = optimizer->call.step, frozen_at = aq_optimizer_step_read(own->frozen);
    struct aq_fused kernel =
        aq_optimizer_fused_moments(optimizer, kind, optimizer->states[M].values, optimizer->states[V].values);
    kernel.k1 = aq_optimizer_correct(optimizer, optimizer->config.beta1, step);
    kernel.k2 = aq_optimizer_correct(optimizer, optimizer->config.beta2, frozen_at ? frozen_at : step);
    return kernel;
}

static bool onebit_adam_gauges(const struct aq_optimizer *optimizer)
{
    const struct onebit_adam *own = optimizer->own;
    return own->history && aq_optimizer_step_read(own->frozen) == 0;
}

static enum aq_status onebit_adam_gauge(struct aq_optimizer *optimizer, double *sum)
{
    return aq_optimizer_norm1(optimizer, optimizer->states[V].values, sum);
}

/* Has ||v||_1 of the whole model, as it is before this update, settled? Notes it. */
static enum aq_status settled(struct aq_optimizer *optimizer, bool *out)
{
    const struct onebit_adam *own = optimizer->own;
    const uint64_t done = aq_optimizer_step_read(own->updates);
    double now;
    AQ_TRY(aq_optimizer_gauge_taken(optimizer, &now));
    float *slot = &own->history[done % own->interval];
    const double before = (double)*slot;
    const double ratio = before < now ? before / now : now / before;
    *slot = (float)now;
    aq_optimizer_step_write(own->updates, done + 1);
    if (done > own->interval) aq_optimizer_figure_set(optimizer, "adam_v_ratio", ratio);
    *out = done > own->interval && ratio >= (double)optimizer->config.freeze_ratio;
    return AQ_OK;
}

/* A step of the warm-up: is it the last? */
static enum aq_status warm(struct aq_optimizer *optimizer)
{
    const struct onebit_adam *own = optimizer->own;
    const uint64_t step = optimizer->call.step;
    const struct aq_fused kernel = kernel_of(optimizer, AQ_FUSED_ONEBIT_ADAM_WARM);
    bool freeze = true;
    aq_optimizer_noise_again(optimizer);
    if (own->history) AQ_TRY(settled(optimizer, &freeze));
    AQ_TRY(aq_optimizer_fused(optimizer, &kernel));
    if (!freeze || step < optimizer->config.warmup_steps) return AQ_OK;
    aq_optimizer_step_write(own->frozen, step);
    aq_log("optimizer", 2, "1-bit Adam: the variance is frozen after step %llu", (unsigned long long)step);
    return AQ_OK;
}

/* If no reduction is needed one kernel does all of it, so that a piece stays in the cache. */
static enum aq_status onebit_adam_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const struct onebit_adam *own = optimizer->own;
    if (aq_optimizer_step_read(own->frozen) == 0) return warm(optimizer);
    if (round == 0) AQ_TRY(aq_optimizer_noise_drop(optimizer, optimizer->states[V].values));
    if (optimizer->group.size == 1) {
        const struct aq_fused kernel = kernel_of(optimizer, AQ_FUSED_ONEBIT_ADAM_ALONE);
        return aq_optimizer_fused(optimizer, &kernel);
    }
    if (round > 0) return aq_optimizer_asked(optimizer);
    const struct aq_fused before = kernel_of(optimizer, AQ_FUSED_MOMENTUM);
    const struct aq_fused after = kernel_of(optimizer, AQ_FUSED_ONEBIT_ADAM_FROZEN);
    return aq_optimizer_ask_along(optimizer, optimizer->states[M].values, &before, &after, out);
}

const struct aq_optimizer_kind aq_optimizer_onebit_adam = {
    .name = "onebit_adam",
    .config_default = onebit_adam_config_default,
    .config_check = onebit_adam_config_check,
    .traffic = onebit_adam_traffic,
    .place = onebit_adam_place,
    .averages = onebit_adam_averages,
    .gauges = onebit_adam_gauges,
    .gauge = onebit_adam_gauge,
    .update = onebit_adam_update,
    .absorbs = aq_optimizer_absorbs_momentum,
};
