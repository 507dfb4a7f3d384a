/*
 * codec_batch.c -- the samples of a micro-batch at once: on a CPU one by one, on a GPU by its launchers (cuda_codec.h).
 *
 * A codec whose device has its own kernels is *remote*: it has a plan and scratch on that device. Bodies and messages
 * are the same bits either way.
 */
#include "codec_member.h"
#include "device_ops.h"

struct aq_codec_remote {
    const struct aq_codec_launchers *launchers;
    struct aq_cuda_codec_plan plan;
    struct aq_cuda_codec_scratch scratch;
    void *memory; /* of scratch */
    size_t memory_bytes;
};

static void plan_layout(const struct aq_codec *codec, struct aq_cuda_codec_plan *out)
{
    const struct aq_codec_layout *layout = &codec->layout;
    out->values = layout->values;
    out->kept = layout->kept;
    out->positions_at = layout->positions_at;
    out->positions_bytes = layout->positions_bytes;
    out->codes_at = layout->codes_at;
    out->body_bytes = layout->body_bytes;
    out->groups = layout->groups;
    out->groups_row = layout->groups_row;
    out->scale_bytes = layout->scale_bytes;
    out->low_bits = layout->low_bits;
    out->bitmap = layout->bitmap;
    out->sparse = layout->positions_bytes > 0;
    out->rows = codec->rows;
    out->columns = codec->columns;
    out->pieces = codec->pieces;
    out->piece_rows = codec->piece_rows;
}

void aq_codec_plan_of(const struct aq_codec *codec, struct aq_cuda_codec_plan *out)
{
    const struct aq_codec_config *config = &codec->config;
    const bool warm = aq_codec_keeps(codec);
    *out = (struct aq_cuda_codec_plan){.kind = (uint32_t)config->kind, .warm = warm};
    plan_layout(codec, out);
    if (codec->member->plan != NULL) codec->member->plan(codec, out);
    out->plain = (uint32_t)(warm ? config->keyframe : config->raw);
    out->plain_bytes = warm ? codec->layout.keyframe_bytes : codec->layout.body_bytes;
    out->limit = aq_store_limit(warm ? codec->store : AQ_PRECISION_FP32);
    out->raw_limit = aq_codec_raw_limit(codec, codec->member->encode == NULL);
    out->raw_limit_plain = aq_codec_raw_limit(codec, true);
    if (warm) out->store = (uint32_t)codec->store;
    if (aq_store_is_q(codec)) out->packed = (uint32_t)config->store;
    out->varies = aq_codec_varies(codec, false);
    out->plain_varies = warm && aq_codec_varies(codec, true);
    out->rate = config->rate;
    out->error = config->error;
    out->keyframe_rate = config->keyframe_rate;
    out->packed_channel = config->store_group == AQ_PER_CHANNEL;
}

enum aq_status aq_codec_remote_open(struct aq_codec *codec, const struct aq_codec_launchers *launchers)
{
    enum aq_status status;
    struct aq_codec_remote *remote;
    AQ_TRY(AQ_NEW(1, &remote));
    codec->remote = remote;
    remote->launchers = launchers;
    aq_codec_plan_of(codec, &remote->plan);
    remote->memory_bytes = aq_cuda_codec_place(&remote->plan, NULL, &remote->scratch);
    AQ_TRY_GOTO(aq_device_alloc(codec->device, AQ_MEMORY_DEVICE, remote->memory_bytes, &remote->memory), out);
    (void)aq_cuda_codec_place(&remote->plan, remote->memory, &remote->scratch);
    return AQ_OK;
out:
    aq_codec_remote_close(codec);
    return status;
}

void aq_codec_remote_close(struct aq_codec *codec)
{
    struct aq_codec_remote *remote = codec->remote;
    if (remote == NULL) return;
    aq_device_free(codec->device, AQ_MEMORY_DEVICE, remote->memory, remote->memory_bytes);
    aq_free(remote);
    codec->remote = NULL;
}

/* NULL: the device has no kernels for codecs. */
static const struct aq_codec_launchers *launchers_of(const struct aq_codec *codec)
{
    return codec->device == NULL || codec->member->on_host ? NULL : codec->device->ops->codec;
}

enum aq_status aq_codec_take_device(struct aq_codec *codec)
{
    if (codec->remote != NULL || launchers_of(codec) == NULL) return AQ_OK;
    return aq_codec_remote_open(codec, launchers_of(codec));
}

uint64_t aq_codec_device_bytes(const struct aq_codec *codec)
{
    return launchers_of(codec) == NULL ? 0 : aq_codec_kernel_bytes(codec);
}

uint64_t aq_codec_kernel_bytes(const struct aq_codec *codec)
{
    struct aq_cuda_codec_plan plan;
    struct aq_cuda_codec_scratch scratch;
    if (codec->member->on_host) return 0;
    aq_codec_plan_of(codec, &plan);
    return aq_cuda_codec_place(&plan, NULL, &scratch);
}

bool aq_codec_on_device(const struct aq_codec *codec)
{
    return codec->remote != NULL;
}

static struct aq_cuda_codec_job job_of(const struct aq_codec *codec, const struct aq_codec_sample *sample,
                                       uint32_t index, bool plain)
{
    const bool warm = aq_codec_keeps(codec);
    struct aq_cuda_codec_job job = {.a = sample->a,
                                    .m = warm && !plain ? sample->m : NULL,
                                    .body = sample->body,
                                    .hat = sample->hat,
                                    .m_out = warm ? sample->m_out : NULL,
                                    .index = index,
                                    .body_bytes = sample->body_bytes,
                                    .plain = plain};
    if (sample->key != NULL) job.key = *sample->key;
    return job;
}

/* Does anything of hat lie in a? A GPU writes rows of x^ while other rows of a are still to be read. */
static bool overlaps(const struct aq_codec *codec, const struct aq_codec_sample *sample)
{
    const uintptr_t a = (uintptr_t)sample->a, hat = (uintptr_t)sample->hat;
    const uintptr_t bytes = (uintptr_t)(4 * codec->layout.values);
    return hat != 0 && (hat < a ? a - hat < bytes : hat - a < bytes);
}

/* The plan of samples of `rows` rows, and the codec's own with it. Scratch is for the most. */
static void remote_rows_use(struct aq_codec *codec, uint32_t rows)
{
    struct aq_codec_remote *remote = codec->remote;
    aq_codec_rows_use(codec, rows);
    if (remote->plan.rows != codec->rows) aq_codec_plan_of(codec, &remote->plan);
}

/* Does the sample after `i` go in another launch? */
static bool launch_ends(const struct aq_codec_sample *samples, uint32_t count, uint32_t i, uint32_t held)
{
    return held == AQ_CUDA_CODEC_JOBS || i + 1 == count || samples[i + 1].rows != samples[i].rows;
}

static enum aq_status remote_encode(struct aq_codec *codec, const struct aq_codec_sample *samples, uint32_t count,
                                    struct aq_codec_result *results, struct aq_stream *stream)
{
    const struct aq_codec_remote *remote = codec->remote;
    struct aq_cuda_codec_job jobs[AQ_CUDA_CODEC_JOBS];
    void *at = remote->launchers->stream_of(codec->device, stream);
    uint32_t held = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_codec_sample *sample = &samples[i];
        remote_rows_use(codec, sample->rows);
        const bool plain = codec->member->encode == NULL || (aq_codec_keeps(codec) && sample->m == NULL);
        if (!plain && codec->config.rounding != AQ_ROUND_NEAREST && sample->key == NULL)
            return aq_fail(AQ_INVAL, "codec", "stochastic rounding needs a random key");
        if (overlaps(codec, sample))
            return aq_fail(AQ_INVAL, "codec", "sample %u of %u: on a GPU x^ must not overlap a", i, count);
        jobs[held++] = job_of(codec, sample, i, plain);
        if (!launch_ends(samples, count, i, held)) continue;
        AQ_TRY(remote->launchers->encode(&remote->plan, &remote->scratch, jobs, held, results, at));
        held = 0;
    }
    return AQ_OK;
}

/* Checks the frame's fields for a body, before the GPU sees it; false: corrupt. */
static bool frame_fits(const struct aq_codec *codec, const struct aq_codec_sample *sample)
{
    const bool keeps = aq_codec_keeps(codec);
    if (sample->flags == AQ_CODED_RAW) return sample->body_bytes == 4 * codec->layout.values;
    if (sample->flags != 0 && !(keeps && sample->flags == AQ_CODED_KEYFRAME)) return false;
    if (aq_codec_varies(codec, sample->flags != 0)) return sample->body_bytes <= codec->layout.bound;
    return sample->body_bytes == aq_codec_body_bytes(codec, sample->flags != 0);
}

/* A sample that needs no kernel: refused here, or copied. *done: was it one? */
static enum aq_status decode_at_once(struct aq_codec *codec, const struct aq_codec_sample *sample, uint32_t *corrupt,
                                     bool *done, struct aq_stream *stream)
{
    const bool fits = frame_fits(codec, sample), raw = sample->flags == AQ_CODED_RAW;
    *done = !fits || raw;
    if (*done) *corrupt = !fits;
    if (!fits || !raw || sample->hat == NULL) return AQ_OK;
    return aq_device_copy(codec->device, sample->hat, sample->body, sample->body_bytes, stream);
}

static enum aq_status remote_decode(struct aq_codec *codec, const struct aq_codec_sample *samples, uint32_t count,
                                    uint32_t *corrupt, struct aq_stream *stream)
{
    const struct aq_codec_remote *remote = codec->remote;
    struct aq_cuda_codec_job jobs[AQ_CUDA_CODEC_JOBS];
    void *at = remote->launchers->stream_of(codec->device, stream);
    uint32_t held = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_codec_sample *sample = &samples[i];
        remote_rows_use(codec, sample->rows);
        const bool plain = codec->member->decode == NULL || sample->flags == AQ_CODED_KEYFRAME;
        bool done;
        AQ_TRY(decode_at_once(codec, sample, &corrupt[i], &done, stream));
        if (!done && !plain && aq_codec_keeps(codec) && sample->m == NULL)
            return aq_fail(AQ_INVAL, "codec", "a delta came for a sample without a reference");
        if (!done) jobs[held++] = job_of(codec, sample, i, plain);
        if (held == 0 || !launch_ends(samples, count, i, held)) continue;
        AQ_TRY(remote->launchers->decode(&remote->plan, &remote->scratch, jobs, held, corrupt, at));
        held = 0;
    }
    return AQ_OK;
}

static enum aq_status encode_here(struct aq_codec *codec, const struct aq_codec_sample *samples, uint32_t count,
                                  struct aq_codec_result *results, struct aq_stream *stream)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_codec_sample *s = &samples[i];
        aq_codec_rows_use(codec, s->rows);
        AQ_TRY(aq_codec_encode(codec, s->a, s->m, s->key, s->body, aq_codec_bound(codec), s->hat, s->m_out, &results[i],
                               stream));
    }
    return AQ_OK;
}

static enum aq_status decode_here(struct aq_codec *codec, const struct aq_codec_sample *samples, uint32_t count,
                                  uint32_t *corrupt, struct aq_stream *stream)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_codec_sample *s = &samples[i];
        aq_codec_rows_use(codec, s->rows);
        const enum aq_status status =
            aq_codec_decode(codec, s->body, s->body_bytes, s->flags, s->m, s->hat, s->m_out, stream);
        corrupt[i] = status == AQ_CORRUPT;
        if (status != AQ_CORRUPT) AQ_TRY(status);
    }
    return AQ_OK;
}

enum aq_status aq_codec_encode_batch(struct aq_codec *codec, const struct aq_codec_sample *samples, uint32_t count,
                                     struct aq_codec_result *results, struct aq_stream *stream)
{
    const enum aq_status status = codec->remote ? remote_encode(codec, samples, count, results, stream)
                                                : encode_here(codec, samples, count, results, stream);
    aq_codec_rows_use(codec, 0);
    return status;
}

enum aq_status aq_codec_decode_batch(struct aq_codec *codec, const struct aq_codec_sample *samples, uint32_t count,
                                     uint32_t *corrupt, struct aq_stream *stream)
{
    const enum aq_status status = codec->remote ? remote_decode(codec, samples, count, corrupt, stream)
                                                : decode_here(codec, samples, count, corrupt, stream);
    aq_codec_rows_use(codec, 0);
    return status;
}
