/*
 * codec_aqsgd.c -- AQ-SGD: the change since this sample's previous message on a grid (papers/004, Algorithm 1, line 7).
 */
#include "codec_member.h"

static enum aq_status check(const struct aq_codec_config *config)
{
    AQ_TRY(aq_quantizer_check(config));
    if (config->top_k != 0.0f && config->top_k != 1.0f) return aq_codec_refuse("top_k with aqsgd", "only with directq");
    if (config->store == AQ_PRECISION_NONE) return aq_codec_refuse("store", "fp32, fp16, bf16, q8, q4 or q2");
    return AQ_OK;
}

static void text(const struct aq_codec_config *config, char *out, size_t bytes)
{
    aq_quantizer_text(config, "aqsgd", out, bytes);
}

const struct aq_codec_member aq_codec_aqsgd = {
    .about = {.name = "aqsgd", .label = "AQ-SGD", .activations = true, .grid = true, .usual = {true, false}},
    .check = check,
    .layout = aq_quantizer_layout,
    .digest = aq_quantizer_digest,
    .text = text,
    .encode = aq_quantizer_encode,
    .decode = aq_quantizer_decode,
    .plan = aq_quantizer_plan};
