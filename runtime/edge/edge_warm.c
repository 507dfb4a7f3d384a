/*
 * edge_warm.c -- the codecs of an edge, once, before its two ends are joined.
 *
 * A GPU loads a kernel when it is first called, and may wait for all that runs there until it has (aq_edge_warm
 * explains the deadlock). Each codec, also those of a guard's higher levels, codes one sample and decodes it: as one
 * that was never seen and, where it has messages, against the message that this has made. All of it is in memory that
 * the first micro-batch overwrites; nothing is sent, and no cache changes.
 */
#include "edge_private.h"

static enum aq_status there_and_back(struct aq_edge *edge, struct aq_codec *codec, bool forward, bool against,
                                     float *values, struct aq_stream *stream)
{
    const struct aq_edge_places places = aq_edge_places_of(edge, forward);
    const struct aq_rng_key key = aq_rng_key(0, AQ_RNG_TEST, edge->shape.edge, 0);
    const bool keeps = aq_codec_message_bytes(codec) > 0;
    struct aq_codec_sample sample = {.a = values,
                                     .m = against ? places.message : NULL,
                                     .key = &key,
                                     .body = places.body,
                                     .rows = edge->shape.rows,
                                     .hat = places.hat,
                                     .m_out = keeps ? places.message : NULL};
    AQ_ASSERT(!keeps || places.message);
    AQ_TRY(aq_codec_encode_batch(codec, &sample, 1, places.result, stream));
    AQ_TRY(aq_device_stream_sync(edge->config.device, stream));
    sample.body_bytes = places.result->body_bytes;
    sample.flags = places.result->flags;
    sample.hat = values;
    AQ_TRY(aq_codec_decode_batch(codec, &sample, 1, places.corrupt, stream));
    return aq_device_stream_sync(edge->config.device, stream);
}

enum aq_status aq_edge_warm(struct aq_edge *edge, float *values, struct aq_stream *stream)
{
    AQ_ASSERT(!edge->carry);
    if (!edge->on_device) return AQ_OK;
    for (uint32_t i = 0; i < edge->forwards_by.count; i++) {
        struct aq_codec *const codec = edge->forwards_by.codecs[i];
        AQ_TRY(there_and_back(edge, codec, true, false, values, stream));
        struct aq_codec *const wide = edge->forwards_by.wide[i];
        if (aq_codec_message_bytes(codec) > 0) AQ_TRY(there_and_back(edge, codec, true, true, values, stream));
        if (wide) AQ_TRY(there_and_back(edge, wide, true, false, values, stream));
        if (wide && aq_codec_message_bytes(wide) > 0) AQ_TRY(there_and_back(edge, wide, true, true, values, stream));
    }
    for (uint32_t i = 0; i < edge->backwards_by.count; i++) {
        struct aq_codec *const wide = edge->backwards_by.wide[i];
        AQ_TRY(there_and_back(edge, edge->backwards_by.codecs[i], false, false, values, stream));
        if (wide) AQ_TRY(there_and_back(edge, wide, false, false, values, stream));
    }
    AQ_TRY(there_and_back(edge, edge->raw, true, false, values, stream));
    AQ_TRY(aq_device_zero(edge->config.device, values, edge->values * sizeof *values, stream));
    return aq_device_stream_sync(edge->config.device, stream); /* the first values come on another stream */
}
