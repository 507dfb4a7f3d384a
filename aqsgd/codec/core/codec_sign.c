/*
 * codec_sign.c -- the sign of each value, and one scale per row: the mean of its magnitudes. One bit per value.
 *
 * Of deltas against the sample's message, or, with store none, of the values themselves (gradients). The scale is the
 * one of least squared error for given signs (Bernstein et al. 2018, signSGD; Karimireddy et al. 2019 with its memory),
 * so that |d - Q(d)|^2 = |d|^2 - |d|_1^2 / C per row: it never grows, and a constant delta is sent in the end.
 *
 * It is not unbiased value by value: a small value comes back as large as the mean. Its mean over symmetric data is
 * zero, because the levels are +s and -s and the scale does not depend on signs (test_codec_quality measures it); exact
 * zeros come back as +s, so that a row of them is a matter of its scale, 0. A common offset of a row keeps its sign, as
 * the signed grid's would not. The error stays in the next delta; gradients lose it.
 */
#include <stdio.h>

#include "codec_member.h"

enum { SCALE_BYTES = 2 }; /* fp16 */

static void defaults(struct aq_codec_config *config)
{
    config->bits = 1;
}

static enum aq_status check(const struct aq_codec_config *config)
{
    if (config->bits != 1) return aq_codec_refuse("bits", "sign has 1");
    if (config->grid != AQ_GRID_MIDRISE) return aq_codec_refuse("grid", "sign has two levels");
    if (config->group != AQ_PER_ROW) return aq_codec_refuse("group", "sign has one scale per row");
    if (config->scale_format != AQ_SCALE_FP16) return aq_codec_refuse("scale_format", "sign has fp16");
    if (config->rounding != AQ_ROUND_NEAREST) return aq_codec_refuse("rounding", "sign rounds to nearest");
    if (config->hadamard) return aq_codec_refuse("hadamard", "sign does not rotate");
    if (config->top_k != 0.0f && config->top_k != 1.0f) return aq_codec_refuse("top_k", "sign sends every value");
    if (config->prescale_log2 < -AQ_CODEC_PRESCALE_MAX || config->prescale_log2 > AQ_CODEC_PRESCALE_MAX)
        return aq_codec_refuse("prescale_log2", "-64 to 64");
    return AQ_OK;
}

static void layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns, struct aq_codec_layout *out)
{
    (void)config, (void)columns;
    out->groups = rows;
    out->scale_bytes = SCALE_BYTES;
    out->positions_at = out->codes_at = (uint64_t)rows * SCALE_BYTES;
    out->body_bytes = out->codes_at + (out->values + 7) / 8;
}

static void digest(const struct aq_codec_config *config, uint32_t words[AQ_CODEC_WORDS])
{
    words[9] = (uint32_t)config->prescale_log2;
}

static void text(const struct aq_codec_config *config, char *out, size_t bytes)
{
    char prescale[32] = "", messages[64];
    if (config->prescale_log2 != 0) snprintf(prescale, sizeof prescale, " prescale 2^%d", config->prescale_log2);
    aq_codec_messages_text(config, messages, sizeof messages);
    snprintf(out, bytes, "sign row fp16 mean%s%s", prescale, messages);
}

/* The quantizer of a written scale s: levels -s and +s, which the grid has for 2s. */
static bool scale_read(const struct aq_codec *codec, const uint8_t *in, struct aq_quant *quant)
{
    uint16_t half;
    float s;
    memcpy(&half, in, sizeof half);
    return aq_scale_half_to(half, &s) &&
           aq_quant_scale(AQ_GRID_MIDRISE, 1, codec->config.prescale_log2, 2.0f * s, quant);
}

static bool scale_choose(struct aq_codec_encoder *job, uint32_t piece, uint32_t row, const struct aq_span *span,
                         const struct aq_quant **quants)
{
    const struct aq_codec *codec = job->codec;
    uint8_t *out = job->body + (size_t)row * SCALE_BYTES;
    const float mean = span->sum_abs / (float)codec->columns;
    const uint16_t half = aq_scale_half_from(mean * aq_power_of_two(codec->config.prescale_log2));
    memcpy(out, &half, sizeof half);
    *quants = codec->scratch[piece].quants;
    return scale_read(codec, out, codec->scratch[piece].quants);
}

static bool encode(struct aq_codec_encoder *job)
{
    return aq_codec_encode_rows(job, scale_choose);
}

static bool scale_take(const struct aq_codec_decoder *job, uint32_t piece, uint32_t row, const struct aq_quant **quants)
{
    const struct aq_codec *codec = job->codec;
    *quants = codec->scratch[piece].quants;
    return scale_read(codec, job->body + (size_t)row * SCALE_BYTES, codec->scratch[piece].quants);
}

static enum aq_status decode(struct aq_codec_decoder *job)
{
    struct aq_quant unused;
    for (uint32_t row = 0; row < job->codec->rows; row++)
        if (!scale_read(job->codec, job->body + (size_t)row * SCALE_BYTES, &unused))
            return aq_fail(AQ_CORRUPT, "codec", "a body is corrupt: a scale is negative, infinite or not a number");
    return aq_codec_decode_rows(job, scale_take);
}

static void plan(const struct aq_codec *codec, struct aq_cuda_codec_plan *out)
{
    aq_quantizer_plan(codec, out);
    out->measure_part = false;
}

const struct aq_codec_member aq_codec_sign = {.about = {.name = "sign", .label = "sign"},
                                              .defaults = defaults,
                                              .check = check,
                                              .layout = layout,
                                              .digest = digest,
                                              .text = text,
                                              .encode = encode,
                                              .decode = decode,
                                              .plan = plan};
