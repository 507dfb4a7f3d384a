/*
 * grad_codec_uniform.c -- b = 2..8 bits on a uniform grid, nearest, one absmax scale per bucket.
 *
 * QuantizedAdam's setting is 4 bits (Wang et al. 2022, section 4.3), buckets of 512, the signed grid. Differs from its
 * published code: the default grid is symmetric. The signed one clips what is near +max and no -max, so that its error
 * has a mean, which the momentum of thousands of steps adds up; it stays as `grid: signed`.
 *
 * tread has a zero, so that rows of an embedding without gradient stay still; at 2 bits it has three levels for four
 * codes, and rise is better by a factor of 1.6 in error.
 */
#include "cuda_grad.h"
#include "grad_internal.h"

static enum aq_codec_grid uniform_grid(const struct aq_grad_codec_config *config)
{
    if (config->grid == NULL) return config->bits == 2 ? AQ_GRID_MIDRISE : AQ_GRID_MIDTREAD;
    if (strcmp(config->grid, "rise") == 0) return AQ_GRID_MIDRISE;
    return strcmp(config->grid, "tread") == 0 ? AQ_GRID_MIDTREAD : AQ_GRID_SIGNED;
}

static void uniform_config_default(struct aq_grad_codec_config *out)
{
    out->bits = 4;
    out->bucket = 512;
}

static enum aq_status uniform_config_check(const struct aq_grad_codec_config *config)
{
    AQ_TRY(aq_grad_check_bits(config));
    AQ_TRY(aq_grad_check_bucket(config));
    if (config->grid == NULL || strcmp(config->grid, "tread") == 0 || strcmp(config->grid, "rise") == 0 ||
        strcmp(config->grid, "signed") == 0)
        return AQ_OK;
    return aq_fail(AQ_INVAL, "grad", "grid is \"%s\", must be tread, rise or signed", config->grid);
}

static bool choose(const struct aq_grad_codec *codec, const float *y, uint64_t n, float *scale)
{
    struct aq_span span;
    codec->rows->span(y, (size_t)n, &span);
    *scale = aq_float_of(span.peak);
    return aq_grad_scale_valid(*scale);
}

static bool quantizer(const struct aq_grad_codec *codec, float scale, struct aq_quant *quant)
{
    return aq_quant_scale(uniform_grid(&codec->config), codec->config.bits, 0, scale, quant);
}

const struct aq_grad_kind aq_grad_codec_kind_uniform = {
    .name = "uniform",
    .has = AQ_GRAD_HAS_BUCKET | AQ_GRAD_HAS_GRID,
    .gpu = AQ_CUDA_GRAD_UNIFORM,
    .lossy = true,
    .config_default = uniform_config_default,
    .config_check = uniform_config_check,
    .grid = uniform_grid,
    .scales = aq_grad_scales_bucket,
    .choose = choose,
    .quantizer = quantizer,
    .encode = aq_grad_rows_encode,
    .decode = aq_grad_rows_decode,
};
