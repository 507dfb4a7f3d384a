/*
 * codec_scale.c -- how the sender chooses a scale, and how a scale is written and read.
 *
 * The default, absmax, is the rule of papers/004 and its published code (there always rounded to fp16). `search` and
 * `auto` choose by error instead: they cost no byte and cut the 2-bit error by a third. The decoder neither knows nor
 * needs the rule; only aq_quant_scale and the formats are part of the wire.
 */
#include <math.h>

#include "codec_internal.h"

/*
 * The scale, over the rms, that has the least squared error, and by which a grid of b bits is then best: for a Gaussian
 * (Max 1960 gives the mid-rise ones as step sizes) and for a Laplacian; computed by numerical integration. Row 1 of
 * mid-tread is unused.
 */
static const float best_gauss[3][8] = {
    {1.595f, 1.992f, 2.344f, 2.681f, 3.010f, 3.329f, 3.640f, 3.938f},
    {1.000f, 1.224f, 1.953f, 2.474f, 2.898f, 3.271f, 3.608f, 3.921f},
    {1.224f, 2.097f, 2.407f, 2.710f, 3.021f, 3.333f, 3.640f, 3.938f},
};
static const float best_laplace[3][8] = {
    {1.414f, 2.175f, 2.923f, 3.688f, 4.479f, 5.303f, 6.149f, 7.019f},
    {1.000f, 1.414f, 2.465f, 3.408f, 4.311f, 5.204f, 6.093f, 6.990f},
    {1.414f, 2.428f, 3.049f, 3.741f, 4.501f, 5.310f, 6.153f, 7.019f},
};

/* Mean magnitude over rms of the two. Between and a little beyond them AUTO goes along the straight line. */
static const float SHAPE_GAUSS = 0.7979f, SHAPE_LAPLACE = 0.7071f, SHAPE_LOW = 0.6f, SHAPE_HIGH = 0.87f;

/* Below this the squares of a group have underflowed and its rms means nothing. */
static const float SQUARE_MIN = 1e-30f;

void aq_quant_grid(enum aq_codec_grid grid, uint32_t bits, struct aq_quant *out)
{
    const float half = (float)(1u << (bits - 1));
    *out = (struct aq_quant){
        .low = grid == AQ_GRID_MIDTREAD ? 1.0f - half : -half,
        .high = half - 1.0f,
        .half = 1u << (bits - 1),
        .bits = bits,
        .rise = grid == AQ_GRID_MIDRISE,
    };
}

bool aq_quant_scale(enum aq_codec_grid grid, uint32_t bits, int32_t prescale_log2, float s, struct aq_quant *out)
{
    float unit, step;
    aq_quant_grid(grid, bits, out);
    switch (grid) {
    case AQ_GRID_MIDRISE:
        unit = s * aq_power_of_two(-(int)bits - prescale_log2);
        step = 2.0f * unit;
        break;
    case AQ_GRID_MIDTREAD:
        unit = s / (float)((1u << (bits - 1)) - 1u) * aq_power_of_two(-prescale_log2);
        step = unit;
        break;
    default:
        unit = s * aq_power_of_two(1 - (int)bits - prescale_log2);
        step = unit;
        break;
    }
    out->unit = unit;
    /* A step so small that its inverse overflows quantizes everything to its lowest levels; no finite value needs it.
     */
    const float inverse = 1.0f / step;
    out->inverse = isfinite(inverse) ? inverse : 0.0f;
    return isfinite(256.0f * unit);
}

float aq_scale_gauss(enum aq_codec_grid grid, uint32_t bits)
{
    return best_gauss[grid - 1][bits - 1];
}

float aq_scale_laplace(enum aq_codec_grid grid, uint32_t bits)
{
    return best_laplace[grid - 1][bits - 1];
}

float aq_scale_shrink_ratio(uint32_t bits)
{
    /* The fewer the bits, the further below absmax is the best scale (the tables above against the extremes of 256
     * to 4096 samples), and the wider the candidates are spread: the last is 0.14 of absmax at 1 and 2 bits, 0.51 at
     * 8. */
    static const float ratio[8] = {0.76f, 0.76f, 0.80f, 0.84f, 0.86f, 0.88f, 0.90f, 0.91f};
    return ratio[bits - 1];
}

/* The largest magnitude, or for stochastic rounding on a mid-rise grid the scale whose top level is the largest
 * magnitude: only where nothing is clipped is the rounding unbiased. */
static float scale_whole(const struct aq_codec_config *config, const struct aq_span *span)
{
    const float peak = aq_float_of(span->peak);
    if (config->rounding != AQ_ROUND_STOCHASTIC || config->grid == AQ_GRID_MIDTREAD) return peak;
    const float levels = (float)(1u << config->bits);
    return config->grid == AQ_GRID_MIDRISE ? peak * (levels / (levels - 1.0f)) : peak;
}

static float smaller(float x, float y)
{
    return x < y ? x : y;
}

float aq_scale_choose(const struct aq_codec_config *config, const struct aq_span *span, uint64_t n)
{
    const float whole = scale_whole(config, span);
    /* Kept values have a hole around zero: no bell, so that the tables do not speak of them. */
    const bool kept = config->top_k > 0.0f && config->top_k < 1.0f;
    if (config->scale == AQ_SCALE_ABSMAX || n == 0 || !(span->sum_square >= SQUARE_MIN)) return whole;
    const float rms = sqrtf(span->sum_square / (float)n);
    const float gauss = best_gauss[config->grid - 1][config->bits - 1];
    if (!isfinite(rms)) return whole;
    if (config->scale == AQ_SCALE_RMS) return smaller(whole, gauss * rms);
    if (config->rounding == AQ_ROUND_STOCHASTIC || kept) return whole;
    const float laplace = best_laplace[config->grid - 1][config->bits - 1];
    float shape = span->sum_abs / ((float)n * rms);
    shape = shape < SHAPE_LOW ? SHAPE_LOW : smaller(shape, SHAPE_HIGH);
    const float slope = (laplace - gauss) * (1.0f / (SHAPE_GAUSS - SHAPE_LAPLACE));
    /* The more bits, the dearer the clipping of a tail that is heavier than both: Student's t3 asks for all of absmax
     * from six bits on, for half the way (in decibels) at five. Bells lose nothing by it, their extremes are near. */
    const float bell = smaller(whole, rms * (gauss + (SHAPE_GAUSS - shape) * slope));
    return config->bits >= 6 ? whole : config->bits == 5 ? sqrtf(bell) * sqrtf(whole) : bell;
}

bool aq_scale_searches(const struct aq_codec_config *config)
{
    return config->scale == AQ_SCALE_SEARCH;
}

bool aq_scale_is_peak(const struct aq_codec_config *config)
{
    return config->scale == AQ_SCALE_ABSMAX || (config->scale == AQ_SCALE_AUTO && config->bits >= 6);
}

float aq_scale_shrink(const struct aq_codec_config *config, const struct aq_span *span, uint32_t index)
{
    const float ratio = aq_scale_shrink_ratio(config->bits);
    float s = aq_float_of(span->peak);
    for (uint32_t i = 0; i < index; i++)
        s *= ratio;
    return s;
}

bool aq_scale_write(const struct aq_codec_config *config, float s, uint8_t *out, struct aq_quant *quant)
{
    const float scaled = s * aq_power_of_two(config->prescale_log2);
    uint16_t half = 0;
    uint32_t word = 0;
    switch (config->scale_format) {
    case AQ_SCALE_FP16:
        half = aq_scale_half_from(scaled);
        memcpy(out, &half, sizeof half);
        break;
    case AQ_SCALE_BF16:
        half = aq_bfloat_from_float(scaled);
        memcpy(out, &half, sizeof half);
        break;
    case AQ_SCALE_FP32:
        memcpy(out, &scaled, sizeof scaled);
        break;
    case AQ_SCALE_POW2:
        /* Up, so as not to clip, unless the next lower power is near: within 2^(1-b) of itself, but never for absmax.
         * The more bits, the dearer is a clipped value against a coarser step. */
        word = 0x800000u >> (config->bits < 2 ? 1u : config->bits - 1u);
        word = aq_bits_of(scaled) + (config->scale == AQ_SCALE_ABSMAX ? 0x7fffffu : 0x800000u - word);
        word = aq_bits_of(scaled) == 0 ? 0 : word;
        *out = (uint8_t)(word >> 23);
        break;
    }
    return aq_scale_read(config, out, quant);
}

bool aq_scale_read(const struct aq_codec_config *config, const uint8_t *in, struct aq_quant *quant)
{
    uint16_t half;
    float s = 0.0f;
    switch (config->scale_format) {
    case AQ_SCALE_FP16:
        memcpy(&half, in, sizeof half);
        if (!aq_scale_half_to(half, &s)) return false;
        break;
    case AQ_SCALE_BF16:
        memcpy(&half, in, sizeof half);
        if (half >= 0x7f80u) return false;
        s = aq_bfloat_to_float(half);
        break;
    case AQ_SCALE_FP32:
        memcpy(&s, in, sizeof s);
        if (aq_bits_of(s) >= 0x7f800000u) return false;
        break;
    case AQ_SCALE_POW2:
        if (*in == 255) return false;
        s = aq_float_of((uint32_t)*in << 23);
        break;
    }
    return aq_quant_scale(config->grid, config->bits, config->prescale_log2, s, quant);
}
