/*
 * grad_codec_lp.c -- Lion Cub's quantizer (Ishikawa et al., equation 1): the step comes from the mean of |x|^p, not
 * from the largest value, so that one outlier does not round all others to zero.
 *
 *     Q(x) = clamp(round(K x / (2 M)), +-K),   M = (mean |x|^p)^(1/p),   K = 2^(b-1) - 1,   decoded Q 2 M / K
 *
 * p = 1 is the paper's choice. p to 0 is its L0: M is then the geometric mean, exp(mean log |x|), of the values that
 * are not zero, because one zero would make it zero. p = infinity is the absmax grid Q_inf of section 2, without the
 * factor 2. Differs from it: rounds to nearest there too, as in equation 1; the paper has stochastic rounding only for
 * Q_inf.
 */
#include <math.h>

#define AQ_ELEMENT static inline
#include "cuda_grad.h"
#include "grad_internal.h"
#include "grad_power.h"

static void lp_config_default(struct aq_grad_codec_config *out)
{
    out->bits = 8;
    out->norm = 1.0f;
}

static enum aq_status lp_config_check(const struct aq_grad_codec_config *config)
{
    AQ_TRY(aq_grad_check_bits(config));
    AQ_TRY(aq_grad_check_bucket(config));
    if (config->norm >= 0.001f || config->norm == AQ_GRAD_NORM_L0) return AQ_OK; /* false for NaN */
    return aq_fail(AQ_INVAL, "grad", "norm is %g, must be 0, at least 0.001, or inf", (double)config->norm);
}

static enum aq_codec_grid lp_grid(const struct aq_grad_codec_config *config)
{
    (void)config;
    return AQ_GRID_MIDTREAD;
}

/* The terms of up to AQ_GRAD_ROW values, added up as a warp does: 32 partial sums, folded by halves. */
static double row_terms(const float *y, uint64_t n, float norm, float peak)
{
    double lanes[AQ_LANES] = {0.0};
    for (uint64_t i = 0; i < n; i++)
        lanes[i % AQ_LANES] += element_norm_term(y[i], norm, peak);
    for (uint32_t width = AQ_LANES / 2; width > 0; width /= 2)
        for (uint32_t lane = 0; lane < width; lane++)
            lanes[lane] += lanes[lane + width];
    return lanes[0];
}

/* The mean of that norm, in double; not all of y is zero, and all of it is finite. */
static double norm_mean(const float *y, uint64_t n, float norm, float peak)
{
    double sum = 0.0;
    uint64_t zeros = 0;
    for (uint64_t at = 0; at < n; at += AQ_GRAD_ROW)
        sum += row_terms(y + at, n - at < AQ_GRAD_ROW ? n - at : AQ_GRAD_ROW, norm, peak);
    for (uint64_t i = 0; i < n && norm == AQ_GRAD_NORM_L0; i++)
        zeros += y[i] == 0.0f;
    return element_norm_mean(sum, (double)(n - zeros), norm, peak);
}

static bool choose(const struct aq_grad_codec *codec, const float *y, uint64_t n, float *scale)
{
    struct aq_span span, part;
    double sum_abs = 0.0;
    span.peak = 0;
    for (uint64_t at = 0; at < n; at += AQ_GRAD_ROW) {
        codec->rows->span(y + at, (size_t)(n - at < AQ_GRAD_ROW ? n - at : AQ_GRAD_ROW), &part);
        if (part.peak > span.peak) span.peak = part.peak;
        sum_abs += (double)part.sum_abs;
    }
    const float peak = aq_float_of(span.peak), p = codec->config.norm;
    *scale = peak;
    if (!aq_grad_scale_valid(peak)) return false;
    if (peak == 0.0f || isinf(p)) return true;
    /* A row of enormous values may have no finite sum. */
    const double mean = p == 1.0f && isfinite(sum_abs) ? sum_abs / (double)n : norm_mean(y, n, p, peak);
    *scale = (float)(2.0 * mean);
    return aq_grad_scale_valid(*scale);
}

static bool quantizer(const struct aq_grad_codec *codec, float scale, struct aq_quant *quant)
{
    return aq_quant_scale(AQ_GRID_MIDTREAD, codec->config.bits, 0, scale, quant);
}

const struct aq_grad_kind aq_grad_codec_kind_lp = {
    .name = "lp",
    .has = AQ_GRAD_HAS_BUCKET | AQ_GRAD_HAS_NORM,
    .gpu = AQ_CUDA_GRAD_LP,
    .lossy = true,
    .config_default = lp_config_default,
    .config_check = lp_config_check,
    .grid = lp_grid,
    .scales = aq_grad_scales_bucket,
    .choose = choose,
    .quantizer = quantizer,
    .encode = aq_grad_rows_encode,
    .decode = aq_grad_rows_decode,
};
