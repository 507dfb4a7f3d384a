/*
 * edge_work.c -- a micro-batch's samples to a body and back.
 *
 * Each direction has one *work*: its samples go through reference (edge_reference.c), codec and cache in groups. A
 * group is issued: references, kernels and copies are enqueued, with an event after them. When the stream has passed
 * the event, the group is completed and the next one issued. If the device has kernels for codecs, a group is a whole
 * micro-batch, which takes a few launches, and whoever pumps the edge completes it. The host is a device whose event
 * has always passed, so that all is done when the call returns. Its groups are single samples: one slot of the cache,
 * one window and one sample's memory for checks serve them all, and it codes to where the body and the message belong.
 *
 * Bodies go straight to their places in the frame, because their lengths are known, except for samples whose values
 * force them to be raw: where one was, the group's are placed a second time, after it has been coded again where the
 * edge has a wide codec (edge_wide.c). Only host memory that is pinned, or stays in slots until the work is done, is
 * copied to or from a device. One micro-batch of each direction is in work at a time; until it is done, the next one
 * gets AQ_AGAIN.
 */
#include <string.h>

#include "edge_cached.h"
#include "edge_work.h"

/* Takes the micro-batch; its arrays may change under us. */
static void work_begin(struct aq_edge *edge, struct aq_edge_work *work, struct aq_codec *codec, enum aq_frame_kind kind,
                       const struct aq_edge_batch *batch, const struct aq_values *values, struct aq_stream *stream)
{
    const uint32_t count = batch->samples;
    AQ_ASSERT(!work->pending && count <= edge->shape.micro_batch);
    work->codec = codec;
    work->kind = kind;
    work->checks = aq_edge_checks_of(&edge->shape, batch->flags, count);
    work->forward = kind == AQ_FRAME_FORWARD;
    work->remembered = work->forward && edge->config.cache;
    work->stream = stream;
    work->values = *values;
    work->since_ns = aq_clock_ns();
    work->host_ns = 0;
    work->first = work->end = 0;
    work->batch = *batch;
    work->batch.sample_ids = work->sample_ids;
    work->batch.lengths = work->lengths;
    work->batch.views = work->views;
    memcpy(work->sample_ids, batch->sample_ids, count * sizeof *work->sample_ids);
    for (uint32_t i = 0; i < count; i++) {
        work->lengths[i] = aq_edge_rows(edge, batch, i);
        work->views[i] = aq_edge_view_of(edge, batch, i, work->remembered);
    }
    memset(work->references, 0, count * sizeof *work->references);
    memset(work->samples, 0, count * sizeof *work->samples);
    memset(work->wide, 0, count * sizeof *work->wide);
    work->coded = 0;
}

enum aq_status aq_edge_work_end(struct aq_edge *edge, struct aq_edge_work *work, enum aq_status status)
{
    if (status != AQ_OK) (void)aq_device_stream_sync(edge->config.device, work->stream);
    for (uint32_t i = 0; i < work->batch.samples; i++)
        aq_edge_reference_close(edge, &work->references[i]);
    work->pending = false;
    return status;
}

/*
 * To the next samples that go together; false: none are left. Nothing is pending while they are issued, because a lost
 * message may be waited for meanwhile, and who waits pumps.
 */
static bool group_next(const struct aq_edge *edge, struct aq_edge_work *work)
{
    if (work->end == work->batch.samples) return false;
    work->pending = false;
    work->first = work->end;
    work->end = edge->on_device ? work->batch.samples : work->first + 1;
    work->begin_bytes = work->body_bytes;
    work->settled = work->widened = false;
    return true;
}

/* All that the group needs is enqueued. */
static enum aq_status group_issued(struct aq_edge *edge, struct aq_edge_work *work)
{
    if (work->ended) AQ_TRY(aq_device_event_record(edge->config.device, work->ended, work->stream));
    work->pending = true;
    work->issued_ns = aq_clock_ns();
    return AQ_OK;
}

/* Has the stream passed it? AQ_AGAIN: not yet. */
static enum aq_status group_passed(struct aq_edge *edge, struct aq_edge_work *work)
{
    if (work->ended) return aq_device_event_query(edge->config.device, work->ended);
    return aq_device_stream_sync(edge->config.device, work->stream);
}

/* Completes a group; issues the next one, or ends the work. */
typedef enum aq_status group_done(struct aq_edge *edge, struct aq_edge_work *work);

/* Completes what the stream has passed. This thread is at it since since_ns. */
static enum aq_status work_advance(struct aq_edge *edge, struct aq_edge_work *work, group_done *done)
{
    while (work->pending) {
        const enum aq_status passed = group_passed(edge, work);
        if (passed == AQ_AGAIN) {
            work->host_ns += aq_clock_ns() - work->since_ns;
            return AQ_OK;
        }
        AQ_TRY(passed);
        AQ_TRY(done(edge, work));
    }
    return AQ_OK;
}

/* The same, later. What fails here fails for good: samples before the wrong one have gone to the cache already. */
static enum aq_status work_poll(struct aq_edge *edge, struct aq_edge_work *work, group_done *done)
{
    if (!work->pending || group_passed(edge, work) == AQ_AGAIN) return AQ_OK;
    work->since_ns = aq_clock_ns();
    const enum aq_status status = work_advance(edge, work, done);
    if (status == AQ_OK) return AQ_OK;
    if (edge->ended == AQ_OK || edge->ended == AQ_CLOSED) edge->ended = status;
    return aq_edge_work_end(edge, work, status);
}

/* How long this thread took, and the device, up to now. */
static enum aq_status measure(struct aq_edge *edge, struct aq_edge_work *work, const char *what)
{
    const uint64_t now = aq_clock_ns();
    uint64_t device_ns = 0;
    work->host_ns += now - work->since_ns;
    if (work->ended) AQ_TRY(aq_device_event_elapsed(edge->config.device, work->begun, work->ended, &device_ns));
    aq_trace_add(edge->config.trace, "codec", what, now - (work->ended ? device_ns : work->host_ns), now,
                 (uint32_t)work->batch.step, work->batch.micro_batch);
    edge->measures.codec_ns += device_ns + work->host_ns;
    return AQ_OK;
}

/* The window of sample i's message that this visit sees; NULL: all of it is seen, or none is kept. */
static uint8_t *crop_at(const struct aq_edge_work *work, uint32_t i)
{
    if (!work->references[i].slot || !aq_edge_view_moves(&work->views[i])) return NULL;
    return work->crops + i * work->crop_stride;
}

/* Host address of sample i's reference, and of the message after. */
static const void *host_before(const struct aq_edge_work *work, uint32_t i)
{
    const uint8_t *crop = crop_at(work, i);
    return crop ? crop : work->references[i].entry.bytes;
}

static void *host_after(const struct aq_edge_work *work, uint32_t i)
{
    uint8_t *crop = crop_at(work, i);
    return crop ? crop : work->references[i].slot;
}

static void crop_begin(const struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    uint8_t *crop = crop_at(work, i);
    if (crop) aq_edge_view_begin(edge, &work->views[i], &work->references[i], crop);
}

static void crop_end(const struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    const uint8_t *crop = crop_at(work, i);
    if (crop) aq_edge_view_end(edge, &work->views[i], crop, work->references[i].slot);
}

/* Address from which the codec reads sample i's reference (NULL: a keyframe), and to which it writes the message after
 * (NULL: it is not kept). */
static const void *message_before(const struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    if (!work->references[i].warm) return NULL;
    return edge->on_device ? aq_edge_message_at(work, i) : host_before(work, i);
}

static void *message_after(const struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    void *after = host_after(work, i);
    return after && edge->on_device ? aq_edge_message_at(work, i) : after;
}

/*
 * The reference of sample i to the device. A fetched message occupies a slot of the link, which others need: the slot
 * is released as soon as the message has been copied.
 */
static enum aq_status reference_up(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i)
{
    struct aq_device *device = edge->config.device;
    struct aq_edge_reference *reference = &work->references[i];
    if (!edge->on_device || !reference->warm) return AQ_OK;
    const uint32_t bytes = aq_edge_message_bytes(edge, &work->batch, i);
    AQ_TRY(aq_device_copy(device, aq_edge_message_at(work, i), host_before(work, i), bytes, work->stream));
    if (!reference->fetched) return AQ_OK;
    AQ_TRY(aq_device_stream_sync(device, work->stream));
    aq_edge_message_release(edge, &reference->message);
    return AQ_OK;
}

/* What codes sample i. */
static struct aq_codec *codec_at(const struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    return work->wide[i] ? aq_edge_wide_of(edge, work->codec) : work->codec;
}

/* The end of the run of the group's samples from i on that one codec codes. */
static uint32_t alike_until(const struct aq_edge_work *work, uint32_t i)
{
    uint32_t end = i + 1;
    while (end < work->end && work->wide[end] == work->wide[i])
        end++;
    return end;
}

/* Bytes of the rows and checks of its frame. */
static uint32_t head_bytes(const struct aq_edge_work *work)
{
    return work->batch.samples * AQ_EDGE_ROW_BYTES + work->checks * AQ_EDGE_CHECK_BYTES;
}

/* Bytes of the values of sample i. */
static size_t sample_bytes(const struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    return (size_t)work->lengths[i] * edge->shape.columns * sizeof(float);
}

/* Enqueues: the values of sample i, if it is checked, come to where the host reads them. */
static enum aq_status check_down(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i, const float *values)
{
    if (i >= work->checks) return AQ_OK;
    return aq_edge_check_down(edge->config.device, &work->check, i, values, sample_bytes(edge, work, i), work->stream);
}

/* Enqueues a copy, unless it is there: the host codes to where bytes belong. */
static enum aq_status move_down(struct aq_edge *edge, struct aq_edge_work *work, void *to, const void *from,
                                uint32_t bytes)
{
    return to == from ? AQ_OK : aq_device_copy(edge->config.device, to, from, bytes, work->stream);
}

static enum aq_status message_down(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i)
{
    return move_down(edge, work, host_after(work, i), message_after(edge, work, i),
                     aq_edge_message_bytes(edge, &work->batch, i));
}

/* --- sending ---------------------------------------------------------------------------------------------------- */

static enum aq_status encode_reference(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i)
{
    if (!work->remembered) return AQ_OK;
    const struct aq_edge_reference *reference = &work->references[i];
    AQ_TRY(aq_edge_reference_send(edge, &work->batch, i, &work->references[i]));
    work->wide[i] = reference->warm && reference->entry.version & AQ_EDGE_WIDE_VERSION;
    crop_begin(edge, work, i);
    return reference_up(edge, work, i);
}

/* Sets the codec's input for sample i, whose values are at a. */
static void encode_sample(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i, const float *a, uint8_t *body)
{
    float *hat = i < work->checks ? aq_edge_check_hat(&work->check, i) : NULL;
    work->keys[i] = aq_edge_round_key(edge, &work->batch, i, work->forward);
    work->samples[work->place[i]] = (struct aq_codec_sample){.a = a,
                                                             .m = message_before(edge, work, i),
                                                             .key = &work->keys[i],
                                                             .body = body,
                                                             .rows = work->lengths[i],
                                                             .hat = hat,
                                                             .m_out = message_after(edge, work, i)};
}

/* Where sample i is coded to. */
static uint8_t *coded_at(struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    if (edge->on_device) return aq_edge_body_at(work, i);
    return aq_edge_body(edge, work->body) + aq_edge_body_align(work->begin_bytes);
}

/* Is sample i, which is coded, to be coded again by the wide codec? Then it has no reference from here on. */
static bool widens(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i)
{
    const bool raw = !work->references[i].held && work->results[work->place[i]].flags & AQ_CODED_RAW;
    if (!raw || work->wide[i] || !aq_edge_wide_of(edge, work->codec)) return false;
    aq_edge_reference_release(edge, &work->references[i]);
    work->wide[i] = true;
    crop_begin(edge, work, i);
    return true;
}

/* Sample i is coded: its row, at the head of the frame. body: where the host has its body; NULL: nowhere. */
static enum aq_status encode_row(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i, uint8_t *frame,
                                 const uint8_t *body)
{
    struct aq_edge_reference *reference = work->remembered ? &work->references[i] : NULL;
    crop_end(edge, work, i);
    if (reference && reference->held)
        aq_edge_cached_sent(edge, &work->batch, i, reference, &work->rows[i]);
    else
        AQ_TRY(aq_edge_sent(edge, work->codec, work->forward, work->wide[i], &work->batch, i,
                            &work->results[work->place[i]], body, reference, &work->rows[i]));
    aq_edge_row_write(&work->rows[i], frame + (size_t)i * AQ_EDGE_ROW_BYTES);
    if (i >= work->checks) return AQ_OK;
    const float *hat = aq_edge_check_hat(&work->check, i);
    aq_edge_check_write(aq_edge_check_digest(&work->check, i, hat, sample_bytes(edge, work, i)),
                        frame + aq_edge_check_at(work->batch.samples, i));
    return AQ_OK;
}

/* Length of sample i's body: the planned one, or, when the kernels are done, the actual one. */
static uint32_t body_length(const struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    if (work->references[i].held) return 0;
    if (work->settled) return work->results[work->place[i]].body_bytes;
    const bool cold = !work->references[i].warm; /* of a codec without messages no difference */
    return (uint32_t)aq_codec_body_bytes_of(codec_at(edge, work, i), work->lengths[i], cold);
}

/* Zeros between two bodies. */
static enum aq_status encode_gap(struct aq_edge *edge, struct aq_edge_work *work, uint8_t *at, uint32_t bytes)
{
    if (work->bodies && bytes) return aq_device_zero(edge->config.device, at, bytes, work->stream);
    memset(at, 0, bytes);
    return AQ_OK;
}

/* Bodies of the group to their places in the frame, messages to their slots. */
static enum aq_status encode_down(struct aq_edge *edge, struct aq_edge_work *work)
{
    uint8_t *const body = work->bodies ? work->bodies : aq_edge_body(edge, work->body);
    uint32_t place = work->begin_bytes;
    for (uint32_t i = work->first; i < work->end; i++) {
        const uint32_t at = aq_edge_body_align(place), bytes = body_length(edge, work, i);
        AQ_ASSERT(at + (uint64_t)bytes <= edge->size.body_bytes_max);
        AQ_TRY(encode_gap(edge, work, body + place, at - place));
        place = at + bytes;
        if (work->references[i].held) continue;
        AQ_TRY(move_down(edge, work, body + at, coded_at(edge, work, i), bytes));
        if (work->remembered && (!work->settled || work->widened)) AQ_TRY(message_down(edge, work, i));
    }
    work->body_bytes = place;
    return group_issued(edge, work);
}

/* Neighbours that one codec codes go together; held ones are no samples, and have no codec. */
static enum aq_status encode_batches(struct aq_edge *edge, struct aq_edge_work *work)
{
    for (uint32_t i = work->first, end; i < work->end; i = end) {
        uint32_t first = UINT32_MAX, count = 0;
        end = alike_until(work, i);
        for (uint32_t s = i; s < end; s++) {
            if (work->references[s].held) continue;
            if (count++ == 0) first = work->place[s];
        }
        if (count == 0) continue;
        AQ_TRY(aq_codec_encode_batch(codec_at(edge, work, i), work->samples + first, count, work->results + first,
                                     work->stream));
    }
    return AQ_OK;
}

/* Issues the group. */
static enum aq_status encode_group(struct aq_edge *edge, struct aq_edge_work *work)
{
    struct aq_device *device = edge->config.device;
    for (uint32_t i = work->first; i < work->end; i++) {
        AQ_TRY(encode_reference(edge, work, i));
        if (work->references[i].held) continue;
        work->place[i] = work->coded++;
        encode_sample(edge, work, i, work->values.at + i * edge->values, coded_at(edge, work, i));
    }
    if (work->first == 0) {
        AQ_TRY(aq_values_read_begin(device, &work->values, work->stream));
        if (work->begun) AQ_TRY(aq_device_event_record(device, work->begun, work->stream));
    }
    AQ_TRY(encode_batches(edge, work));
    for (uint32_t i = work->first; i < work->end; i++)
        AQ_TRY(check_down(edge, work, i, aq_edge_check_hat(&work->check, i)));
    if (work->end == work->batch.samples) AQ_TRY(aq_values_read_end(device, &work->values, work->stream));
    return encode_down(edge, work);
}

/*
 * Codes samples of the group again that fp16 could not hold. A device may have let go of their values: it codes from a
 * copy of their raw bodies. *again: there was such a sample; the stream has to pass once more.
 */
static enum aq_status encode_wide(struct aq_edge *edge, struct aq_edge_work *work, bool *again)
{
    *again = false;
    if (work->widened) return AQ_OK;
    for (uint32_t i = work->first; i < work->end; i++) {
        const uint32_t j = work->place[i];
        const float *a = work->values.at + i * edge->values;
        if (!widens(edge, work, i)) continue;
        if (work->spare) {
            a = (const float *)(const void *)work->spare;
            AQ_TRY(aq_device_copy(edge->config.device, work->spare, coded_at(edge, work, i),
                                  sample_bytes(edge, work, i), work->stream));
        }
        encode_sample(edge, work, i, a, coded_at(edge, work, i));
        AQ_TRY(aq_codec_encode_batch(codec_at(edge, work, i), &work->samples[j], 1, &work->results[j], work->stream));
        AQ_TRY(check_down(edge, work, i, aq_edge_check_hat(&work->check, i)));
        *again = true;
    }
    work->widened = *again;
    return *again ? group_issued(edge, work) : AQ_OK;
}

/* Are the lengths of the group's bodies those that were planned, and the messages, too? */
static bool foreseen(const struct aq_edge *edge, const struct aq_edge_work *work)
{
    if (work->settled) return true;
    for (uint32_t i = work->first; i < work->end; i++)
        if (!work->references[i].held && work->results[work->place[i]].body_bytes != body_length(edge, work, i))
            return false;
    return !work->widened;
}

/* All groups are done: the frame goes, and its bodies. */
static enum aq_status encode_end(struct aq_edge *edge, struct aq_edge_work *work)
{
    const uint32_t head = head_bytes(work), body = work->body;
    AQ_TRY(measure(edge, work, "encode"));
    (void)aq_edge_work_end(edge, work, AQ_OK);
    if (work->bodies && work->body_bytes > aq_edge_body_align(head)) {
        aq_edge_carry_out(edge, work->bodies, head, work->body_bytes);
        work->batch.flags |= AQ_EDGE_CARRIED;
    }
    work->body = AQ_CHANNEL_BARE; /* it is taken, also on failure */
    return aq_edge_post_batch(edge, work->kind, &work->batch, body, work->body_bytes);
}

/* The stream has passed the group. */
static enum aq_status encode_done(struct aq_edge *edge, struct aq_edge_work *work)
{
    bool again = false;
    if (!work->settled) AQ_TRY(encode_wide(edge, work, &again));
    if (again) return AQ_OK;
    const bool placed = foreseen(edge, work);
    work->settled = true;
    if (!placed) return encode_down(edge, work);
    uint8_t *const frame = aq_edge_body(edge, work->body);
    for (uint32_t i = work->first, place = work->begin_bytes; i < work->end; i++) {
        const uint32_t at = aq_edge_body_align(place);
        AQ_TRY(encode_row(edge, work, i, frame, work->bodies ? NULL : frame + at));
        place = at + body_length(edge, work, i);
        aq_edge_reference_close(edge, &work->references[i]);
    }
    return group_next(edge, work) ? encode_group(edge, work) : encode_end(edge, work);
}

enum aq_status aq_edge_encode_issue(struct aq_edge *edge, struct aq_codec *codec, enum aq_frame_kind kind,
                                    const struct aq_edge_batch *batch, const struct aq_values *values, uint32_t body,
                                    uint8_t *bodies, struct aq_stream *stream)
{
    struct aq_edge_work *work = &edge->works->encode;
    work_begin(edge, work, codec, kind, batch, values, stream);
    work->body = body;
    work->bodies = bodies;
    work->body_bytes = head_bytes(work);
    (void)group_next(edge, work);
    enum aq_status status = encode_group(edge, work);
    if (status == AQ_OK) status = work_advance(edge, work, encode_done);
    if (status == AQ_OK) return AQ_OK;
    (void)aq_edge_work_end(edge, work, status); /* the stream has let go of the buffer */
    if (work->body != AQ_CHANNEL_BARE) aq_edge_body_return(edge, body);
    return status;
}

enum aq_status aq_edge_encode_alone(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                    const struct aq_values *values, bool wide, uint8_t *body, void *message,
                                    uint32_t *flags, struct aq_stream *stream)
{
    struct aq_codec *const codec = wide ? aq_edge_wide_of(edge, edge->forward) : edge->forward;
    struct aq_edge_work *work = &edge->works->encode;
    struct aq_device *device = edge->config.device;
    const bool there = edge->on_device;
    AQ_ASSERT(!work->pending && batch->samples == 1);
    const struct aq_rng_key key = aq_edge_round_key(edge, batch, 0, true);
    const struct aq_codec_sample sample = {.a = values->at,
                                           .key = &key,
                                           .body = there ? aq_edge_body_at(work, 0) : body,
                                           .rows = aq_edge_rows(edge, batch, 0),
                                           .m_out = there ? aq_edge_message_at(work, 0) : message};
    AQ_TRY(aq_values_read_begin(device, values, stream));
    AQ_TRY(aq_codec_encode_batch(codec, &sample, 1, work->results, stream));
    if (there)
        AQ_TRY(aq_device_copy(device, message, aq_edge_message_at(work, 0), aq_edge_message_bytes(edge, batch, 0),
                              stream));
    AQ_TRY(aq_values_read_end(device, values, stream));
    AQ_TRY(aq_device_stream_sync(device, stream));
    *flags = work->results[0].flags;
    return AQ_OK;
}

/* --- receiving -------------------------------------------------------------------------------------------------- */

/* Sample i to those that are decoded: its reference is there, and here is its body. */
static enum aq_status decode_body(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i, const uint8_t *body,
                                  uint32_t body_bytes, uint32_t flags, float *x)
{
    crop_begin(edge, work, i);
    AQ_TRY(reference_up(edge, work, i));
    if (edge->on_device && body_bytes <= work->body_stride)
        AQ_TRY(aq_device_copy(edge->config.device, aq_edge_body_at(work, i), body, body_bytes, work->stream));
    work->samples[i] =
        (struct aq_codec_sample){.m = message_before(edge, work, i),
                                 .body = edge->on_device ? aq_edge_body_at(work, i) : (void *)(uintptr_t)body,
                                 .body_bytes = body_bytes,
                                 .flags = flags,
                                 .rows = work->lengths[i],
                                 .hat = x + i * edge->values,
                                 .m_out = message_after(edge, work, i)};
    return AQ_OK;
}

/* One that both ends hold: its message as it is. */
static enum aq_status decode_held(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i, float *x)
{
    work->wide[i] = work->references[i].entry.version & AQ_EDGE_WIDE_VERSION;
    if (work->wide[i] && !aq_edge_wide_of(edge, work->codec))
        return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the stored message is not one of its codec",
                       edge->shape.edge, (unsigned long long)work->sample_ids[i]);
    const uint32_t bytes = (uint32_t)aq_codec_body_bytes_of(codec_at(edge, work, i), work->lengths[i], false);
    return decode_body(edge, work, i, edge->cached_body, bytes, 0, x);
}

/* Reads and checks row i of the frame, its reference, and the address of its body. */
static enum aq_status decode_ready(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i)
{
    const struct aq_edge_received *got = &work->got;
    float *const x = work->values.at;
    struct aq_edge_row *row = &work->rows[i];
    const uint8_t *const rows = got->frame.body, *const body = got->bodies + work->body_bytes;
    aq_edge_row_read(rows + (size_t)i * AQ_EDGE_ROW_BYTES, row);
    AQ_TRY(aq_edge_row_check(edge, &work->batch, i, work->codec, row, work->body_bytes, got->bytes, work->remembered));
    work->wide[i] = row->flags & AQ_EDGE_WIDE;
    work->body_bytes = aq_edge_body_align(work->body_bytes + row->body_bytes);
    if (work->remembered) AQ_TRY(aq_edge_reference_receive(edge, &work->batch, i, row, &work->references[i]));
    if (row->flags & AQ_EDGE_HELD) return decode_held(edge, work, i, x);
    return decode_body(edge, work, i, body, row->body_bytes, row->flags & ~(uint32_t)AQ_EDGE_WIDE, x);
}

/* Clears the rows that a sample has fewer than the cut. */
static enum aq_status padding_clear(struct aq_edge *edge, const struct aq_edge_work *work)
{
    float *const x = work->values.at;
    const uint32_t rows = edge->shape.rows, columns = edge->shape.columns;
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        const uint64_t real = (uint64_t)work->lengths[i] * columns;
        if (work->lengths[i] == rows) continue;
        AQ_TRY(aq_device_zero(edge->config.device, x + i * edge->values + real, (edge->values - real) * sizeof *x,
                              work->stream));
    }
    return AQ_OK;
}

/* Checks the decoded values of sample i against the sender's digest. */
static enum aq_status check_row(const struct aq_edge *edge, const struct aq_edge_work *work, uint32_t i)
{
    const float *const x = work->values.at;
    const uint8_t *const frame = work->got.frame.body;
    const uint64_t said = aq_edge_check_read(frame + aq_edge_check_at(work->batch.samples, i));
    const uint64_t seen = aq_edge_check_digest(&work->check, i, x + i * edge->values, sample_bytes(edge, work, i));
    if (seen == said) return AQ_OK;
    const enum aq_codec_kind kind = aq_codec_config_of(work->codec)->kind;
    return aq_edge_check_failed(&edge->shape, edge->config.sender, &work->batch, i, aq_codec_about(kind)->name);
}

/* Sample i is decoded. */
static enum aq_status decode_row(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i)
{
    if (work->corrupt[i])
        return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: its body of %u bytes is not a body of its codec",
                       edge->shape.edge, (unsigned long long)work->rows[i].sample, work->rows[i].body_bytes);
    if (i < work->checks) AQ_TRY(check_row(edge, work, i));
    crop_end(edge, work, i);
    return aq_edge_received(edge, work->forward, &work->batch, i, &work->rows[i],
                            work->remembered ? &work->references[i] : NULL);
}

/* All of them from messages, which the sender has, too; the caller waits. */
static enum aq_status recall(struct aq_edge *edge, struct aq_edge_work *work)
{
    struct aq_device *device = edge->config.device;
    AQ_TRY(aq_values_write_begin(device, &work->values, work->stream));
    AQ_TRY(padding_clear(edge, work));
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        AQ_TRY(aq_edge_cached_held(edge, &work->batch, i, NULL, &work->references[i]));
        AQ_TRY(decode_held(edge, work, i, work->values.at));
        AQ_TRY(aq_codec_decode_batch(codec_at(edge, work, i), &work->samples[i], 1, &work->corrupt[i], work->stream));
        AQ_TRY(aq_device_stream_sync(device, work->stream));
        if (work->corrupt[i])
            return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the stored message is not one of its codec",
                           edge->shape.edge, (unsigned long long)work->sample_ids[i]);
        aq_edge_reference_close(edge, &work->references[i]);
    }
    return aq_values_write_end(device, &work->values, work->stream);
}

enum aq_status aq_edge_reload(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *x,
                              struct aq_stream *stream)
{
    struct aq_edge_work *work = &edge->works->decode;
    AQ_ASSERT(edge->shape.still && !edge->config.sender);
    if (work->pending) return AQ_AGAIN;
    work_begin(edge, work, edge->forward, AQ_FRAME_FORWARD, batch, x, stream);
    return aq_edge_work_end(edge, work, recall(edge, work));
}

/* Issues the group. */
static enum aq_status decode_group(struct aq_edge *edge, struct aq_edge_work *work)
{
    struct aq_device *device = edge->config.device;
    if (work->first == 0 && work->begun) AQ_TRY(aq_device_event_record(device, work->begun, work->stream));
    for (uint32_t i = work->first; i < work->end; i++)
        AQ_TRY(decode_ready(edge, work, i));
    if (work->first == 0) {
        AQ_TRY(aq_values_write_begin(device, &work->values, work->stream));
        AQ_TRY(padding_clear(edge, work));
    }
    for (uint32_t i = work->first, end; i < work->end; i = end) {
        end = alike_until(work, i);
        AQ_TRY(aq_codec_decode_batch(codec_at(edge, work, i), work->samples + i, end - i, work->corrupt + i,
                                     work->stream));
    }
    for (uint32_t i = work->first; i < work->end; i++) /* whoever has the values next may change them */
        AQ_TRY(check_down(edge, work, i, work->values.at + i * edge->values));
    if (work->end == work->batch.samples) AQ_TRY(aq_values_write_end(device, &work->values, work->stream));
    for (uint32_t i = work->first; i < work->end; i++)
        AQ_TRY(message_down(edge, work, i));
    return group_issued(edge, work);
}

/* The stream has passed the group. */
static enum aq_status decode_done(struct aq_edge *edge, struct aq_edge_work *work)
{
    for (uint32_t i = work->first; i < work->end; i++) {
        AQ_TRY(decode_row(edge, work, i));
        aq_edge_reference_close(edge, &work->references[i]);
    }
    if (group_next(edge, work)) return decode_group(edge, work);
    AQ_TRY(measure(edge, work, "decode"));
    (void)aq_edge_work_end(edge, work, AQ_OK);
    aq_edge_received_release(edge, &work->got);
    return AQ_OK;
}

enum aq_status aq_edge_decode_issue(struct aq_edge *edge, struct aq_codec *codec, const struct aq_edge_batch *batch,
                                    const struct aq_edge_received *got, const struct aq_values *values,
                                    struct aq_stream *stream)
{
    struct aq_edge_work *work = &edge->works->decode;
    work_begin(edge, work, codec, got->frame.kind, batch, values, stream);
    work->checks = aq_edge_checks_of(&edge->shape, got->frame.flags, batch->samples);
    work->got = *got;
    work->body_bytes = aq_edge_body_align(head_bytes(work));
    (void)group_next(edge, work);
    enum aq_status status = decode_group(edge, work);
    if (status == AQ_OK) status = work_advance(edge, work, decode_done);
    if (status == AQ_OK) return AQ_OK;
    (void)aq_edge_work_end(edge, work, status); /* the stream has let go of the body */
    aq_edge_received_release(edge, got);
    return status;
}

/* --- both ways -------------------------------------------------------------------------------------------------- */

uint64_t aq_edge_busy_since(const struct aq_edge *edge)
{
    const uint64_t encode = aq_edge_encoding(edge) ? edge->works->encode.issued_ns : 0;
    const uint64_t decode = aq_edge_decoding(edge) ? edge->works->decode.issued_ns : 0;
    if (!encode || !decode) return encode + decode;
    return encode < decode ? encode : decode;
}

bool aq_edge_encoding(const struct aq_edge *edge)
{
    return edge->works->encode.pending;
}

bool aq_edge_decoding(const struct aq_edge *edge)
{
    return edge->works->decode.pending;
}

enum aq_status aq_edge_works_advance(struct aq_edge *edge)
{
    AQ_TRY(work_poll(edge, &edge->works->encode, encode_done));
    return work_poll(edge, &edge->works->decode, decode_done);
}
