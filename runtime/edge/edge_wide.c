/*
 * edge_wide.c -- samples with values that fp16 cannot hold: beyond 65504, as some published models' activations are.
 *
 * Messages, keyframes and scales are fp16 by default. A sample that does not fit is coded again, at once, by the *wide*
 * codec of its edge: the same with bf16 in place of fp16, which has the range of fp32 and as many bytes. It is then a
 * keyframe, its row has the flag AQ_EDGE_WIDE, and its message and all later ones are bf16: bit 63 of their versions
 * marks this, in rows, caches, checkpoints of them and requests for lost ones. A sample becomes narrow again only if
 * its message is lost at both ends. So the choice is each sample's own, follows only from its values and versions, and
 * needs no agreement and no state; the other samples of the cut keep the precision of fp16.
 *
 * A sample that does not fit even then (no finite numbers, or a precision that the manifest names) goes raw, as fp32.
 */
#include "edge_private.h"

bool aq_edge_wide(const struct aq_codec_config *config, struct aq_codec_config *out)
{
    const struct aq_codec_about *about = aq_codec_about(config->kind);
    const bool keeps = !about->stateless && config->store != AQ_PRECISION_NONE;
    *out = *config;
    if (about->plain) {
        if (config->raw == AQ_PRECISION_FP16) out->raw = AQ_PRECISION_BF16;
        return out->raw != config->raw;
    }
    if (keeps && config->store == AQ_PRECISION_FP16) out->store = AQ_PRECISION_BF16;
    if (keeps && config->keyframe == AQ_PRECISION_FP16) out->keyframe = AQ_PRECISION_BF16;
    if (about->grid && config->scale_format == AQ_SCALE_FP16) out->scale_format = AQ_SCALE_BF16;
    return out->store != config->store || out->keyframe != config->keyframe ||
           out->scale_format != config->scale_format;
}

struct aq_codec *aq_edge_wide_of(const struct aq_edge *edge, const struct aq_codec *codec)
{
    for (uint32_t i = 0; i < AQ_EDGE_LEVELS; i++) {
        if (edge->forwards_by.codecs[i] == codec) return edge->forwards_by.wide[i];
        if (edge->backwards_by.codecs[i] == codec) return edge->backwards_by.wide[i];
    }
    return NULL;
}
