/* codec_directq.c -- DirectQ: the values themselves on a grid, or the largest of them (top-k); stateless. */
#include "codec_member.h"

static void defaults(struct aq_codec_config *config)
{
    config->prescale_log2 = 16; /* gradients use it: their scales are below the range of fp16 */
}

static enum aq_status check(const struct aq_codec_config *config)
{
    const bool sparse = config->top_k > 0.0f && config->top_k < 1.0f;
    AQ_TRY(aq_quantizer_check(config));
    if (!(config->top_k >= 0.0f && config->top_k <= 1.0f)) return aq_codec_refuse("top_k", "a fraction from 0 to 1");
    if (sparse && config->hadamard) return aq_codec_refuse("top_k with hadamard", "a rotation leaves nothing sparse");
    if (sparse && config->group == AQ_PER_CHANNEL)
        return aq_codec_refuse("top_k with group channel", "tensor, row or tile");
    return AQ_OK;
}

static void text(const struct aq_codec_config *config, char *out, size_t bytes)
{
    aq_quantizer_text(config, "directq", out, bytes);
}

const struct aq_codec_member aq_codec_directq = {.about = {.name = "directq",
                                                           .label = "DirectQ",
                                                           .stateless = true,
                                                           .grid = true,
                                                           .sparse = true,
                                                           .usual = {false, true}},
                                                 .defaults = defaults,
                                                 .check = check,
                                                 .layout = aq_quantizer_layout,
                                                 .digest = aq_quantizer_digest,
                                                 .text = text,
                                                 .encode = aq_quantizer_encode,
                                                 .decode = aq_quantizer_decode,
                                                 .plan = aq_quantizer_plan};
