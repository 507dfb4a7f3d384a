/*
 * optimizer_onebit_lamb.c -- 1-bit LAMB: Li et al., "1-bit LAMB", HiPC 2022, Algorithm 1, A.5.1 and A.5.2.
 *
 *     line 2       LAMB for warmup_steps, by tensor c_avg = b3 c_avg + (1 - b3) c
 *     line 3       v_Tw = v; c_avg stops
 *     A.5.2        by tensor a fixed scale: mean of all tensors' rms of m over its own, so that the fused momentum
 *                  (A.5.1: it is one flat buffer here anyway) has one size everywhere
 *     line 6-13    m = reduced(scale (b1 m + (1 - b1) own g)) / scale, in 1 bit, errors kept on both sides
 *     line 15, 16  g = (m - b1 m_last) / (1 - b1);  v = b2 v + (1 - b2) g g
 *     line 17      r = max(v_Tw / v)
 *     line 18, 19  r clipped to (1 +- ratio_threshold) r_last, then to [ratio_min, ratio_max]
 *     line 20, 21  x -= lr r c_avg (m / (sqrt(v_Tw) + eps) + weight_decay x)
 *
 * Differs from the paper: where ||x|| or ||u|| of a tensor is 0, c is 1 and not clipped, as in the published code
 * (equation 1 would clip 0 to c_min: a bias that starts as zeros would hardly move); eps added to the root (equation 1:
 * to the variance), and the decay, which the algorithm does not have. form "printed" has clip and eps as equation 1.
 * form "analysis" multiplies the errors of both sides by c(t-2) / c(t-1) first, where c = r c_avg: A.9.1, which
 * Algorithm 1 has not. form "sqrt" is DeepSpeed's: r = max((sqrt(v_Tw) + eps) / (sqrt(v) + eps)), blended with 1 by
 * ||u|| / ||u + decay||, clipped to [ratio_min, ratio_max] first and to the threshold then. No bias corrections, as
 * equation 1. Parameters whose sqrt(v_Tw) is below 1e-6 of the root mean square of their tensor have no
 * gradient: they only decay, and have no part in r (aq_optimizer_noise_drop in optimizer.h has the reason). Defaults:
 * the paper's for BERT (c in [0.01, 0.3], r in [0.5, 4], threshold 0.1, b3 0.9).
 */
#include <math.h>
#include <string.h>

#include "optimizer_lamb.h"

struct onebit_lamb {
    struct aq_lamb lamb;
    float *frozen_v, *frozen;         /* v_Tw; its step */
    float *average, *ratio, *scale;   /* by tensor: c_avg, r, momentum scale */
    float *last;                      /* m of the step before */
    double *most, *plain2, *decayed2; /* by tensor */
    float *number;                    /* by tensor, for a kernel */
    float *before;                    /* form analysis: r of the step before the last; else NULL */
    bool root;
};

static void onebit_lamb_config_default(struct aq_optimizer_config *out)
{
    aq_lamb_config_default(out);
    out->beta3 = 0.9f;
    out->coefficient_min = 0.01f;
    out->coefficient_max = 0.3f;
    out->ratio_min = 0.5f;
    out->ratio_max = 4.0f;
    out->ratio_threshold = 0.1f;
    out->warmup_steps = 1000;
    out->form = "paper";
    aq_grad_codec_config_default(&out->reduce, "sign");
    out->reduce.scale = "l2";
}

static bool analysed(const struct aq_optimizer_config *config)
{
    return config->form && strcmp(config->form, "analysis") == 0;
}

static enum aq_status onebit_lamb_config_check(const struct aq_optimizer_config *config)
{
    AQ_TRY(aq_lamb_config_check(config));
    AQ_TRY(aq_optimizer_check_range("beta3", config->beta3, 0.0f, 1.0f));
    AQ_TRY(aq_optimizer_check_range("ratio_min", config->ratio_min, 1e-30f, 1.0000001f));
    AQ_TRY(aq_optimizer_check_range("ratio_max", config->ratio_max, 1.0f, INFINITY));
    AQ_TRY(aq_optimizer_check_range("ratio_threshold", config->ratio_threshold, 0.0f, 1.0f));
    if (config->warmup_steps == 0)
        return aq_fail(AQ_INVAL, "optimizer",
                       "warmup_steps is 0, but onebit_lamb needs warm-up steps to estimate its variance");
    if (config->freeze_ratio != 0.0f || config->bias_correction)
        return aq_fail(AQ_INVAL, "optimizer", "onebit_lamb has neither freeze_ratio nor bias_correction");
    if (config->form && (strcmp(config->form, "paper") == 0 || strcmp(config->form, "sqrt") == 0)) return AQ_OK;
    if (aq_lamb_printed(config) || analysed(config)) return AQ_OK;
    return aq_fail(AQ_INVAL, "optimizer", "form is \"%s\", must be paper, printed, analysis or sqrt",
                   config->form ? config->form : "(none)");
}

static enum aq_status onebit_lamb_place(struct aq_optimizer *optimizer)
{
    struct onebit_lamb unplaced = {.frozen = NULL}, *own;
    const uint64_t n = optimizer->parameters;
    const size_t tensors = optimizer->tensor_count;
    void *memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, sizeof *own, &memory));
    optimizer->own = memory;
    own = memory ? memory : &unplaced;
    AQ_TRY(aq_lamb_place(optimizer, &own->lamb));
    AQ_TRY(aq_optimizer_take(optimizer, "v_frozen", n, AQ_STATE_REPLICATED, &own->frozen_v));
    AQ_TRY(aq_optimizer_take_few(optimizer, "frozen_at", 2, AQ_STATE_REPLICATED, &own->frozen));
    AQ_TRY(aq_optimizer_take_few(optimizer, "coefficient", tensors, AQ_STATE_REPLICATED, &own->average));
    AQ_TRY(aq_optimizer_take_few(optimizer, "ratio", tensors, AQ_STATE_REPLICATED, &own->ratio));
    AQ_TRY(aq_optimizer_take_few(optimizer, "momentum_scale", tensors, AQ_STATE_REPLICATED, &own->scale));
    if (analysed(&optimizer->config))
        AQ_TRY(aq_optimizer_take_few(optimizer, "ratio_before", tensors, AQ_STATE_REPLICATED, &own->before));
    AQ_TRY(aq_optimizer_noise_place(optimizer));
    AQ_TRY(aq_optimizer_scratch_device(optimizer, (size_t)n * sizeof(float), &memory));
    own->last = memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, tensors * (3 * sizeof(double) + sizeof(float)), &memory));
    if (memory) {
        own->most = memory;
        own->plain2 = own->most + tensors;
        own->decayed2 = own->plain2 + tensors;
        own->number = (float *)(own->decayed2 + tensors);
        own->root = strcmp(optimizer->config.form, "sqrt") == 0;
        for (size_t t = 0; t < tensors; t++)
            own->ratio[t] = 1.0f;
        for (size_t t = 0; t < tensors && own->before; t++)
            own->before[t] = 1.0f;
    }
    return aq_optimizer_take_errors(optimizer);
}

static bool onebit_lamb_averages(const struct aq_optimizer *optimizer, uint64_t step)
{
    const struct onebit_lamb *own = optimizer->own;
    (void)step;
    return aq_optimizer_step_read(own->frozen) == 0;
}

static struct aq_fused kernel_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind)
{
    const struct onebit_lamb *own = optimizer->own;
    struct aq_fused kernel = aq_optimizer_fused_moments(optimizer, kind, own->lamb.m, own->lamb.v);
    if (aq_lamb_printed(&optimizer->config)) aq_lamb_inside(&kernel);
    kernel.frozen = own->frozen_v;
    kernel.last = own->last;
    return kernel;
}

/* Line 3 and A.5.2, at the end of the last step of the warm-up. */
static enum aq_status freeze(struct aq_optimizer *optimizer)
{
    struct onebit_lamb *own = optimizer->own;
    const struct aq_fused kernel = kernel_of(optimizer, AQ_FUSED_SQUARES);
    double mean = 0.0;
    AQ_TRY(aq_device_copy(optimizer->device, own->frozen_v, own->lamb.v, (size_t)optimizer->parameters * sizeof(float),
                          optimizer->call.stream));
    AQ_TRY(aq_optimizer_fused(optimizer, &kernel));
    aq_optimizer_fold(optimizer, 0, own->most);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        own->most[t] = sqrt(own->most[t] / (double)optimizer->tensors[t].count);
        mean += own->most[t] / (double)optimizer->tensor_count;
    }
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        own->scale[t] = own->most[t] > 0.0 ? (float)(mean / own->most[t]) : 1.0f;
    aq_optimizer_step_write(own->frozen, optimizer->call.step);
    aq_log("optimizer", 2, "1-bit LAMB: the variance is frozen after step %llu",
           (unsigned long long)optimizer->call.step);
    return AQ_OK;
}

static enum aq_status warm_up(struct aq_optimizer *optimizer)
{
    struct onebit_lamb *own = optimizer->own;
    const float b3 = optimizer->config.beta3;
    aq_optimizer_noise_again(optimizer);
    AQ_TRY(aq_lamb_step(optimizer, &own->lamb));
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        own->average[t] = b3 * own->average[t] + (1.0f - b3) * own->lamb.coefficient[t];
    return optimizer->call.step >= optimizer->config.warmup_steps ? freeze(optimizer) : AQ_OK;
}

/* The momentum's scale and its inverse, for the kernels; a single replica sends nothing, and needs no scale. */
static enum aq_status set_scales(struct aq_optimizer *optimizer)
{
    struct onebit_lamb *own = optimizer->own;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        own->number[t] = optimizer->group.size > 1 ? own->scale[t] : 1.0f;
    AQ_TRY(aq_optimizer_values(optimizer, 2, own->number));
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        own->number[t] = 1.0f / own->number[t];
    return aq_optimizer_values(optimizer, 3, own->number);
}

/* A.9.1: errors as large as the steps that they were made for. c_avg, which is fixed now, cancels out. */
static enum aq_status scale_errors(struct aq_optimizer *optimizer)
{
    struct onebit_lamb *own = optimizer->own;
    const struct aq_fused errors = kernel_of(optimizer, AQ_FUSED_ONEBIT_LAMB_ERRORS);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        own->number[t] = own->before[t] / own->ratio[t];
    AQ_TRY(aq_optimizer_values(optimizer, 4, own->number));
    return aq_optimizer_fused(optimizer, &errors);
}

static float clip(float value, float least, float most)
{
    return value < least ? least : value > most ? most : value;
}

/* Lines 18 and 19, or DeepSpeed's order. */
static float next_ratio(const struct aq_optimizer *optimizer, uint32_t t)
{
    const struct onebit_lamb *own = optimizer->own;
    const struct aq_optimizer_config *config = &optimizer->config;
    const float last = own->ratio[t];
    const float low = (1.0f - config->ratio_threshold) * last, high = (1.0f + config->ratio_threshold) * last;
    if (own->most[t] == 0.0) return last; /* nothing in it is alive */
    float r = own->most[t] < 1e30 ? (float)own->most[t] : 1e30f;
    if (!own->root) return clip(clip(r, low, high), config->ratio_min, config->ratio_max);
    const bool decays = optimizer->tensors[t].decay && config->weight_decay > 0.0f && own->decayed2[t] > 0.0;
    if (decays) {
        const float share = (float)fmin(1.0, sqrt(own->plain2[t]) / sqrt(own->decayed2[t]));
        r = r * share + (1.0f - share);
    }
    return clip(clip(r, config->ratio_min, config->ratio_max), low, high);
}

/* Lines 15 to 21. */
static enum aq_status step_with_ratio(struct aq_optimizer *optimizer)
{
    struct onebit_lamb *own = optimizer->own;
    const struct aq_fused rebuild =
        kernel_of(optimizer, own->root ? AQ_FUSED_ONEBIT_LAMB_REBUILD_ROOT : AQ_FUSED_ONEBIT_LAMB_REBUILD);
    const struct aq_fused step = kernel_of(optimizer, AQ_FUSED_ONEBIT_LAMB_STEP);
    AQ_TRY(aq_optimizer_fused(optimizer, &rebuild));
    aq_optimizer_fold_max(optimizer, 0, own->most);
    if (own->root) aq_optimizer_fold(optimizer, 1, own->plain2);
    if (own->root) aq_optimizer_fold(optimizer, 2, own->decayed2);
    double ratios = 0.0, numbers = 0.0;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        if (own->before) own->before[t] = own->ratio[t];
        own->ratio[t] = next_ratio(optimizer, t);
        own->number[t] = own->ratio[t] * own->average[t];
        ratios += (double)own->ratio[t];
        numbers += (double)own->number[t];
    }
    aq_optimizer_figure_set(optimizer, "lamb_c", numbers / optimizer->tensor_count);
    aq_optimizer_figure_set(optimizer, "lamb_r", ratios / optimizer->tensor_count);
    AQ_TRY(aq_optimizer_values(optimizer, 1, own->number));
    return aq_optimizer_fused(optimizer, &step);
}

static enum aq_status onebit_lamb_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    struct onebit_lamb *own = optimizer->own;
    if (round > 0) return step_with_ratio(optimizer);
    if (aq_optimizer_step_read(own->frozen) == 0) return warm_up(optimizer);
    AQ_TRY(aq_optimizer_noise_drop(optimizer, own->frozen_v));
    AQ_TRY(set_scales(optimizer));
    if (own->before && optimizer->group.size > 1) AQ_TRY(scale_errors(optimizer));
    const struct aq_fused scale = kernel_of(optimizer, AQ_FUSED_ONEBIT_LAMB_SCALE), none = {.kind = AQ_FUSED_NONE};
    if (optimizer->group.size > 1) return aq_optimizer_ask_along(optimizer, own->lamb.m, &scale, &none, out);
    AQ_TRY(aq_optimizer_fused(optimizer, &scale));
    return step_with_ratio(optimizer);
}

/* Errors are of the scaled momentum. */
static float onebit_lamb_absorbs(const struct aq_optimizer *optimizer, uint32_t t)
{
    const struct onebit_lamb *own = optimizer->own;
    return aq_optimizer_step_read(own->frozen) ? 1.0f / own->scale[t] : 0.0f;
}

const struct aq_optimizer_kind aq_optimizer_onebit_lamb = {
    .name = "onebit_lamb",
    .config_default = onebit_lamb_config_default,
    .config_check = onebit_lamb_config_check,
    .traffic = aq_optimizer_traffic_warmup,
    .place = onebit_lamb_place,
    .averages = onebit_lamb_averages,
    .update = onebit_lamb_update,
    .absorbs = onebit_lamb_absorbs,
};
