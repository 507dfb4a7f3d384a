/* codec_raw.c -- fp32, fp16 or bf16 as they are; stateless. */
#include <stdio.h>

#include "codec_member.h"

static enum aq_status check(const struct aq_codec_config *config)
{
    return aq_precision_row(config->raw) == AQ_ROW_NONE ? aq_codec_refuse("raw", "fp32, fp16 or bf16") : AQ_OK;
}

static void layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns, struct aq_codec_layout *out)
{
    (void)rows, (void)columns;
    out->body_bytes = aq_precision_bytes(config->raw, out->values, 0);
}

static void digest(const struct aq_codec_config *config, uint32_t words[AQ_CODEC_WORDS])
{
    words[2] = (uint32_t)config->raw;
}

static void text(const struct aq_codec_config *config, char *out, size_t bytes)
{
    snprintf(out, bytes, "raw %s", aq_codec_precision_word(config->raw));
}

const struct aq_codec_member aq_codec_raw = {.about = {.name = "raw", .label = "raw", .plain = true, .stateless = true},
                                             .check = check,
                                             .layout = layout,
                                             .digest = digest,
                                             .text = text};
