/*
 * codec_staged.c -- the CPU's codec for a device whose memory the host cannot reach: activations pass through pinned
 * memory.
 *
 * The way of every codec that has no kernels on such a device; bodies and messages are the same bits either way. One
 * sample costs a copy over the bus and a wait for the stream.
 */
#include "codec_internal.h"

enum aq_status aq_codec_encode_staged(struct aq_codec *codec, const float *a, const void *m,
                                      const struct aq_rng_key *key, void *body, size_t capacity, float *hat,
                                      void *m_out, struct aq_codec_result *result, struct aq_stream *stream)
{
    AQ_TRY(aq_device_copy(codec->device, codec->staging, a, aq_codec_values_bytes(codec), stream));
    AQ_TRY(aq_device_stream_sync(codec->device, stream));
    float *staged = hat ? codec->staging : NULL;
    AQ_TRY(aq_codec_encode_here(codec, codec->staging, m, key, body, capacity, staged, m_out, result));
    if (!hat) return AQ_OK;
    AQ_TRY(aq_device_copy(codec->device, hat, codec->staging, aq_codec_values_bytes(codec), stream));
    return aq_device_stream_sync(codec->device, stream); /* the next sample takes the same memory */
}

enum aq_status aq_codec_decode_staged(struct aq_codec *codec, const void *body, size_t body_bytes, uint32_t flags,
                                      const void *m, float *hat, void *m_out, struct aq_stream *stream)
{
    float *staged = hat ? codec->staging : NULL;
    AQ_TRY(aq_codec_decode_here(codec, body, body_bytes, flags, m, staged, m_out));
    if (!hat) return AQ_OK;
    AQ_TRY(aq_device_copy(codec->device, hat, codec->staging, aq_codec_values_bytes(codec), stream));
    return aq_device_stream_sync(codec->device, stream); /* the next sample takes the same memory */
}
