/*
 * optimizer_lamb.c -- LAMB: You et al., "Large batch optimization for deep learning", ICLR 2020, Algorithm 2, with the
 * whole ratio clipped as 1-bit LAMB's equation 1 has it (Li et al. 2022, footnote 3).
 *
 *     m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g g
 *     u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay x
 *     x -= lr c u,   c = clip(||x|| / ||u||, coefficient_min, coefficient_max), by tensor; 1 where a norm is 0
 *
 * bias_correction false leaves the corrections out, as equation 1 does. Norms are of one tensor, padding apart.
 *
 * form "norm" clips the norm instead of the ratio, as LAMB's own algorithm has it (and SLAMB's equation 1):
 *
 *     c = clip(||x||, coefficient_min, coefficient_max) / ||u||; 1 where ||u|| is 0, which moves nothing
 *
 * form "printed" is 1-bit LAMB's equation 1 to the letter, with bias_correction: false: u = m / sqrt(v + eps), and c of
 * ||x|| = 0 is coefficient_min.
 */
#include "optimizer_lamb.h"

#include <math.h>
#include <string.h>

void aq_lamb_config_default(struct aq_optimizer_config *out)
{
    out->beta1 = 0.9f;
    out->beta2 = 0.999f;
    out->epsilon = 1e-6f;
    out->weight_decay = 0.01f;
}

enum aq_status aq_lamb_config_check(const struct aq_optimizer_config *config)
{
    AQ_TRY(aq_optimizer_check_range("coefficient_max", config->coefficient_max, 1e-30f, INFINITY));
    if (!(config->coefficient_min >= 0.0f && config->coefficient_min <= config->coefficient_max))
        return aq_fail(AQ_INVAL, "optimizer", "coefficient_min is %g, must be 0 to coefficient_max, %g",
                       (double)config->coefficient_min, (double)config->coefficient_max);
    return aq_optimizer_check_adam(config);
}

static void lamb_config_default(struct aq_optimizer_config *out)
{
    aq_lamb_config_default(out);
    out->coefficient_min = 0.01f;
    out->coefficient_max = 10.0f;
    out->bias_correction = true;
}

bool aq_lamb_printed(const struct aq_optimizer_config *config)
{
    return config->form && strcmp(config->form, "printed") == 0;
}

float aq_lamb_clip(double x2, double u2, float least, float most)
{
    if (!(x2 > 0.0 && u2 > 0.0)) return 1.0f;
    const float ratio = (float)(sqrt(x2) / sqrt(u2));
    return ratio < least ? least : ratio > most ? most : ratio;
}

void aq_lamb_inside(struct aq_fused *kernel)
{
    kernel->inside = kernel->eps;
    kernel->eps = 0.0f;
}

/* Form norm. */
static float norm_clip(double x2, double u2, float least, float most)
{
    const double x = sqrt(x2), clipped = x < (double)least ? (double)least : x > (double)most ? (double)most : x;
    return u2 > 0.0 ? (float)(clipped / sqrt(u2)) : 1.0f;
}

/* The mean of c over tensors. */
static void state_figure(struct aq_optimizer *optimizer, const struct aq_lamb *lamb)
{
    double sum = 0.0;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        sum += (double)lamb->coefficient[t];
    aq_optimizer_figure_set(optimizer, "lamb_c", sum / optimizer->tensor_count);
}

enum aq_status aq_lamb_step(struct aq_optimizer *optimizer, struct aq_lamb *lamb)
{
    const struct aq_optimizer_config *config = &optimizer->config;
    const uint64_t step = optimizer->call.step - optimizer->missed;
    const bool printed = aq_lamb_printed(config);
    struct aq_fused kernel = aq_optimizer_fused_moments(optimizer, AQ_FUSED_LAMB_MOMENTS, lamb->m, lamb->v);
    if (printed) aq_lamb_inside(&kernel);
    kernel.k1 = aq_optimizer_correct(optimizer, config->beta1, step);
    kernel.k2 = aq_optimizer_correct(optimizer, config->beta2, step);
    AQ_TRY(aq_optimizer_fused(optimizer, &kernel));
    aq_optimizer_fold(optimizer, 0, lamb->x2);
    aq_optimizer_fold(optimizer, 1, lamb->u2);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        lamb->coefficient[t] = (lamb->norm ? norm_clip : aq_lamb_clip)(
            lamb->x2[t], lamb->u2[t], config->coefficient_min, config->coefficient_max);
        if (printed && lamb->x2[t] == 0.0) lamb->coefficient[t] = config->coefficient_min;
    }
    state_figure(optimizer, lamb);
    AQ_TRY(aq_optimizer_values(optimizer, 1, lamb->coefficient));
    kernel.kind = AQ_FUSED_LAMB_STEP;
    return aq_optimizer_fused(optimizer, &kernel);
}

enum aq_status aq_lamb_place(struct aq_optimizer *optimizer, struct aq_lamb *lamb)
{
    void *memory;
    const size_t tensors = optimizer->tensor_count;
    AQ_TRY(aq_optimizer_take(optimizer, "m", optimizer->parameters, AQ_STATE_REPLICATED, &lamb->m));
    AQ_TRY(aq_optimizer_take(optimizer, "v", optimizer->parameters, AQ_STATE_REPLICATED, &lamb->v));
    AQ_TRY(aq_optimizer_scratch(optimizer, tensors * (2 * sizeof(double) + sizeof(float)), &memory));
    if (!memory) return AQ_OK;
    lamb->x2 = memory;
    lamb->u2 = lamb->x2 + tensors;
    lamb->coefficient = (float *)(lamb->u2 + tensors);
    return AQ_OK;
}

static bool is_norm(const struct aq_optimizer_config *config)
{
    return config->form && strcmp(config->form, "norm") == 0;
}

static enum aq_status lamb_config_check(const struct aq_optimizer_config *config)
{
    if (config->form && strcmp(config->form, "ratio") != 0 && !is_norm(config) && !aq_lamb_printed(config))
        return aq_fail(AQ_INVAL, "optimizer", "form is \"%s\", must be ratio, norm or printed", config->form);
    return aq_lamb_config_check(config);
}

static enum aq_status lamb_place(struct aq_optimizer *optimizer)
{
    struct aq_lamb unplaced = {.m = NULL};
    void *memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, sizeof unplaced, &memory));
    optimizer->own = memory;
    if (memory) ((struct aq_lamb *)memory)->norm = is_norm(&optimizer->config);
    return aq_lamb_place(optimizer, memory ? memory : &unplaced);
}

static enum aq_status lamb_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    (void)round;
    (void)out;
    return aq_lamb_step(optimizer, optimizer->own);
}

const struct aq_optimizer_kind aq_optimizer_lamb = {
    .name = "lamb",
    .averages_gradients = true,
    .config_default = lamb_config_default,
    .config_check = lamb_config_check,
    .place = lamb_place,
    .update = lamb_update,
    .absorbs = aq_optimizer_absorbs_gradient,
};
