/*
 * edge_frames.c -- the channels of micro-batches: activations forward, gradients backward, and held-out activations.
 *
 * Send buffers are lent to the link and come back when it has sent them; received bodies stay in the link's slots until
 * they are decoded, so that a stage that falls behind holds its neighbour back by credits, not by memory. Samples are
 * coded in edge_work.c.
 */
#include <string.h>

#include "edge_cached.h"
#include "edge_eval.h"
#include "edge_private.h"

/*
 * Maximum of frames of this kind that may wait here, by the plan: a sender of activations has no more micro-batches in
 * flight than slots, and each is in flight until its gradient is back. So the frames that a stage takes out of the
 * link's slots while it waits for a lost message (edge_heal.c) are bounded, too. Evaluation is bounded only by credits,
 * and never taken out.
 */
static uint32_t in_flight_most(const struct aq_channels_config *config)
{
    const uint32_t slots = config->shape->slots;
    return slots > AQ_CHANNEL_FRAMES_MAX ? AQ_CHANNEL_FRAMES_MAX : slots;
}

static uint32_t evals_most(const struct aq_channels_config *config)
{
    (void)config;
    return AQ_CHANNEL_FRAMES_MAX;
}

static enum aq_status frame_arrived(struct aq_channel *channel, const struct aq_frame *frame)
{
    struct aq_edge *edge = channel->set->config.edge;
    uint64_t number;
    AQ_TRY(aq_edge_carried_in(edge, frame, &number));
    if (channel->count >= channel->bound)
        return aq_fail(
            AQ_PROTO, "edge",
            "edge %u: the other side sends step %llu micro-batch %u while %u frames of kind %u wait, as many as "
            "can be in flight",
            edge->shape.edge, (unsigned long long)frame->step, frame->micro_batch, channel->count, frame->kind);
    edge->asks_left += edge->shape.micro_batch;
    return aq_channel_keep(channel, frame, number);
}

extern const struct aq_channel_type aq_channel_forward, aq_channel_backward, aq_channel_eval;
const struct aq_channel_type aq_channel_forward = {.kind = AQ_FRAME_FORWARD,
                                                   .direction = AQ_CHANNEL_DOWN,
                                                   .bound = in_flight_most,
                                                   .arrived = frame_arrived,
                                                   .left = aq_channel_left};
const struct aq_channel_type aq_channel_backward = {.kind = AQ_FRAME_BACKWARD,
                                                    .direction = AQ_CHANNEL_UP,
                                                    .bound = in_flight_most,
                                                    .arrived = frame_arrived,
                                                    .left = aq_channel_left};
const struct aq_channel_type aq_channel_eval = {.kind = AQ_FRAME_EVAL,
                                                .direction = AQ_CHANNEL_DOWN,
                                                .bound = evals_most,
                                                .arrived = frame_arrived,
                                                .left = aq_channel_left};

static struct aq_edge_received frame_take(struct aq_channel *channel)
{
    const struct aq_channel_item item = aq_channel_take(channel);
    return (struct aq_edge_received){.frame = item.frame,
                                     .spilled = item.spilled,
                                     .carried = item.note,
                                     .bodies = item.frame.body,
                                     .bytes = item.frame.body_bytes};
}

/* Is there a next one, with all that belongs to it? */
static bool frame_here(const struct aq_edge *edge, enum aq_channel_id id)
{
    const struct aq_channel *channel = aq_edge_channel(edge, id);
    return aq_channel_ready(channel) && aq_edge_carried_here(edge, aq_channel_at(channel, 0)->note);
}

void aq_edge_received_release(struct aq_edge *edge, const struct aq_edge_received *got)
{
    const struct aq_channel_item item = {.frame = got->frame, .spilled = got->spilled};
    aq_edge_carried_release(edge, got->carried);
    aq_channel_release(aq_edge_channel(edge, AQ_CHANNEL_ID_forward), &item);
}

static enum aq_channel_id channel_of(enum aq_frame_kind kind)
{
    return kind == AQ_FRAME_FORWARD    ? AQ_CHANNEL_ID_forward
           : kind == AQ_FRAME_BACKWARD ? AQ_CHANNEL_ID_backward
                                       : AQ_CHANNEL_ID_eval;
}

enum aq_status aq_edge_post_batch(struct aq_edge *edge, enum aq_frame_kind kind, const struct aq_edge_batch *batch,
                                  uint32_t body_index, uint32_t body_bytes)
{
    const bool carried = batch->flags & AQ_EDGE_CARRIED;
    const uint32_t head = aq_edge_head_bytes(&edge->shape, batch->flags, batch->samples);
    const struct aq_frame frame = {.kind = (uint16_t)kind,
                                   .flags = batch->flags,
                                   .step = batch->step,
                                   .micro_batch = batch->micro_batch,
                                   .argument = batch->samples,
                                   .body_bytes = carried ? head : body_bytes,
                                   .body = aq_edge_body(edge, body_index)};
    AQ_TRY(aq_channel_post(aq_edge_channel(edge, channel_of(kind)), &frame, body_index));
    if (kind != AQ_FRAME_EVAL) edge->measures.sent_bytes += body_bytes;
    return AQ_OK;
}

/* Does this frame carry a check? All do, or the first one of its step that this end sends. */
static bool check_due(const struct aq_edge *edge, enum aq_frame_kind kind, const struct aq_edge_batch *batch)
{
    if (kind == AQ_FRAME_EVAL || aq_edge_checks_most(&edge->shape) == 0) return false;
    return edge->shape.check == AQ_CHECK_ALL || edge->checked != batch->step + 1;
}

static enum aq_status send_batch(struct aq_edge *edge, enum aq_frame_kind kind, struct aq_codec *codec,
                                 const struct aq_edge_batch *batch, const struct aq_values *values,
                                 struct aq_stream *stream)
{
    uint32_t index;
    uint8_t *bodies;
    AQ_ASSERT(batch->samples >= 1 && batch->samples <= edge->shape.micro_batch);
    if (aq_edge_encoding(edge)) return AQ_AGAIN;
    AQ_TRY(aq_edge_carry_slot(edge, &bodies));
    AQ_TRY(aq_edge_body_take(edge, &index));
    struct aq_edge_batch at = *batch;
    if (check_due(edge, kind, batch)) at.flags |= AQ_EDGE_CHECKED;
    AQ_TRY(aq_edge_encode_issue(edge, codec, kind, &at, values, index, bodies, stream));
    if (at.flags & AQ_EDGE_CHECKED) edge->checked = batch->step + 1;
    return AQ_OK;
}

/* Is it the frame that is due? */
static enum aq_status received_check(const struct aq_edge *edge, const struct aq_frame *frame,
                                     const struct aq_edge_batch *batch)
{
    if (frame->step != batch->step || frame->micro_batch != batch->micro_batch || frame->argument != batch->samples)
        return aq_fail(AQ_PROTO, "edge",
                       "edge %u: got step %llu micro-batch %u of %llu samples, expected step %llu micro-batch %u of %u",
                       edge->shape.edge, (unsigned long long)frame->step, frame->micro_batch,
                       (unsigned long long)frame->argument, (unsigned long long)batch->step, batch->micro_batch,
                       batch->samples);
    if ((frame->flags ^ batch->flags) & AQ_EDGE_CODED)
        return aq_fail(AQ_PROTO, "edge", "edge %u: step %llu micro-batch %u is %scoded, which was not asked for",
                       edge->shape.edge, (unsigned long long)frame->step, frame->micro_batch,
                       frame->flags & AQ_EDGE_CODED ? "" : "not ");
    if (frame->flags & AQ_EDGE_CHECKED && (aq_edge_checks_most(&edge->shape) == 0 || frame->kind == AQ_FRAME_EVAL))
        return aq_fail(AQ_PROTO, "edge",
                       "edge %u: step %llu micro-batch %u carries digests, which the plan does not have",
                       edge->shape.edge, (unsigned long long)frame->step, frame->micro_batch);
    const bool bare = edge->shape.still && frame->kind == AQ_FRAME_BACKWARD;
    if (bare && frame->body_bytes == 0) return AQ_OK;
    if (bare || frame->body_bytes < aq_edge_head_bytes(&edge->shape, frame->flags, batch->samples))
        return aq_fail(AQ_PROTO, "edge", "edge %u: a body of %u bytes has no room for %u rows", edge->shape.edge,
                       frame->body_bytes, batch->samples);
    return AQ_OK;
}

/* The frame before any other, which is of these samples, if none of its rows has a body. */
enum aq_status aq_edge_receive_cached(struct aq_edge *edge, const struct aq_edge_batch *batch)
{
    struct aq_channel *forwards = aq_edge_channel(edge, AQ_CHANNEL_ID_forward);
    const struct aq_frame *frame = aq_channel_ready(forwards);
    const uint32_t rows = batch->samples * AQ_EDGE_ROW_BYTES;
    AQ_ASSERT(edge->shape.still && !edge->config.sender && frame);
    if (aq_edge_decoding(edge)) return AQ_AGAIN;
    AQ_TRY(received_check(edge, frame, batch));
    if (frame->body_bytes != rows || aq_channel_at(forwards, 0)->note) return AQ_NOTFOUND;
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_edge_row row;
        aq_edge_row_read((const uint8_t *)frame->body + (size_t)i * AQ_EDGE_ROW_BYTES, &row);
        AQ_TRY(aq_edge_row_check(edge, batch, i, edge->forward, &row, rows, rows, edge->config.cache));
        if (!(row.flags & AQ_EDGE_HELD)) return AQ_NOTFOUND;
    }
    const struct aq_edge_received got = frame_take(forwards);
    aq_edge_received_release(edge, &got);
    edge->measures.samples += batch->samples;
    edge->measures.held += batch->samples;
    return AQ_OK;
}

/* The codec of the level that the frame names. */
static enum aq_status level_take(const struct aq_edge *edge, const struct aq_frame *frame, struct aq_codec **codec)
{
    const uint32_t level = frame->flags >> AQ_EDGE_LEVEL_SHIFT & AQ_EDGE_LEVEL_MASK;
    const struct aq_edge_levels *by = *codec == edge->backward ? &edge->backwards_by : &edge->forwards_by;
    const uint32_t count = *codec == edge->raw ? 1 : by->count;
    if (level == 0) return AQ_OK;
    if (level >= count)
        return aq_fail(AQ_PROTO, "edge", "edge %u: step %llu micro-batch %u has bit level %u of %u", edge->shape.edge,
                       (unsigned long long)frame->step, frame->micro_batch, level, count);
    *codec = by->codecs[level];
    return AQ_OK;
}

enum aq_status aq_edge_levels(struct aq_edge *edge, uint32_t forward, uint32_t backward)
{
    if (forward >= edge->forwards_by.count || backward >= edge->backwards_by.count)
        return aq_fail(AQ_PROTO, "edge",
                       "edge %u: bit levels %u forward and %u back are out of range: its codecs have %u and %u",
                       edge->shape.edge, forward, backward, edge->forwards_by.count, edge->backwards_by.count);
    edge->forwards_by.now = forward;
    edge->backwards_by.now = backward;
    return AQ_OK;
}

/* The one that holds for what this end sends: of what the guard has come to and what was asked for the higher. */
static uint32_t level_sent(const struct aq_edge *edge, const struct aq_edge_levels *by)
{
    const bool ours = edge->config.guard && edge->config.sender == (by == &edge->forwards_by);
    const uint32_t guarded = ours ? (uint32_t)edge->config.guard->state[AQ_GUARD_LEVEL] : 0;
    return guarded > by->now ? guarded : by->now;
}

static enum aq_status receive_batch(struct aq_edge *edge, enum aq_channel_id id, struct aq_codec *codec,
                                    const struct aq_edge_batch *batch, const struct aq_values *values,
                                    struct aq_stream *stream)
{
    if (aq_edge_decoding(edge)) return AQ_AGAIN;
    struct aq_edge_received got = frame_take(aq_edge_channel(edge, id));
    enum aq_status status = received_check(edge, &got.frame, batch);
    if (status == AQ_OK) status = level_take(edge, &got.frame, &codec);
    if (status == AQ_OK) status = aq_edge_carried_take(edge, &got);
    if (status == AQ_OK) return aq_edge_decode_issue(edge, codec, batch, &got, values, stream);
    aq_edge_received_release(edge, &got);
    return status;
}

enum aq_status aq_edge_prefetch(struct aq_edge *edge, const struct aq_edge_batch *batch)
{
    if (!edge->config.cache) return AQ_OK;
    for (uint32_t i = 0; i < batch->samples; i++) {
        const struct aq_cache_key key = aq_edge_key_of(edge, batch, i);
        const enum aq_status status = aq_cache_prefetch(edge->config.cache, &key);
        if (status == AQ_AGAIN) return AQ_OK; /* no slot now: get will read it itself */
        AQ_TRY(status);
    }
    return AQ_OK;
}

/* Uncompressed epochs: fp32, flagged as what every codec reads; one with messages makes keyframes, to have them. */
static struct aq_codec *codec_now(struct aq_edge *edge, struct aq_codec *codec, const struct aq_edge_batch *batch)
{
    const bool keeps = aq_codec_message_bytes(codec) > 0;
    return aq_edge_warms_up(edge, batch->step) && !keeps ? edge->raw : codec;
}

enum aq_status aq_edge_send_forward(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *a,
                                    struct aq_stream *stream)
{
    AQ_ASSERT(edge->config.sender);
    struct aq_edge_batch at = *batch;
    if (aq_edge_encoding(edge)) return AQ_AGAIN; /* its samples belong to what the guard has seen */
    if (edge->config.guard) (void)aq_edge_guard_level(edge->config.guard, batch->step, batch->rate);
    const uint32_t level = level_sent(edge, &edge->forwards_by);
    AQ_ASSERT(level < edge->forwards_by.count);
    at.flags |= (uint16_t)(level << AQ_EDGE_LEVEL_SHIFT);
    return send_batch(edge, AQ_FRAME_FORWARD, codec_now(edge, edge->forwards_by.codecs[level], batch), &at, a, stream);
}

bool aq_edge_forward_here(const struct aq_edge *edge, uint16_t *flags)
{
    if (!frame_here(edge, AQ_CHANNEL_ID_forward)) return false;
    if (flags) *flags = aq_channel_ready(aq_edge_channel(edge, AQ_CHANNEL_ID_forward))->flags;
    return true;
}

enum aq_status aq_edge_receive_forward(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                       const struct aq_values *x, struct aq_stream *stream)
{
    return receive_batch(edge, AQ_CHANNEL_ID_forward, edge->forward, batch, x, stream);
}

enum aq_status aq_edge_send_backward(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *g,
                                     struct aq_stream *stream)
{
    AQ_ASSERT(!edge->config.sender);
    if (edge->shape.still) return aq_edge_cached_back(edge, batch);
    if (aq_edge_encoding(edge)) return AQ_AGAIN; /* its samples belong to what the guard has seen */
    if (edge->config.guard) (void)aq_edge_guard_level(edge->config.guard, batch->step, batch->rate);
    const uint32_t level = level_sent(edge, &edge->backwards_by);
    AQ_ASSERT(level < edge->backwards_by.count);
    struct aq_codec *const codec = codec_now(edge, edge->backwards_by.codecs[level], batch);
    struct aq_edge_batch at = *batch;
    if (codec != edge->raw) at.flags |= (uint16_t)(level << AQ_EDGE_LEVEL_SHIFT);
    return send_batch(edge, AQ_FRAME_BACKWARD, codec, &at, g, stream);
}

bool aq_edge_backward_here(const struct aq_edge *edge)
{
    return frame_here(edge, AQ_CHANNEL_ID_backward);
}

enum aq_status aq_edge_receive_backward(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                        const struct aq_values *g, struct aq_stream *stream)
{
    if (edge->shape.still) {
        const struct aq_edge_received got = frame_take(aq_edge_channel(edge, AQ_CHANNEL_ID_backward));
        const enum aq_status status = received_check(edge, &got.frame, batch);
        aq_edge_received_release(edge, &got);
        AQ_TRY(status);
    } else {
        AQ_TRY(receive_batch(edge, AQ_CHANNEL_ID_backward, edge->backward, batch, g, stream));
    }
    aq_edge_unhold(edge, aq_edge_number(batch)); /* its gradient proves that the receiver has decoded it */
    return AQ_OK;
}

static struct aq_codec *codec_of_eval(struct aq_edge *edge, const struct aq_edge_batch *batch)
{
    return batch->flags & AQ_EDGE_CODED ? edge->forward : edge->raw;
}

enum aq_status aq_edge_send_eval(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *a,
                                 struct aq_stream *stream)
{
    struct aq_edge_batch at = *batch;
    struct aq_codec *codec = codec_of_eval(edge, batch);
    if (codec == edge->forward) {
        const uint32_t level = level_sent(edge, &edge->forwards_by);
        codec = edge->forwards_by.codecs[level];
        at.flags |= (uint16_t)(level << AQ_EDGE_LEVEL_SHIFT);
    }
    return send_batch(edge, AQ_FRAME_EVAL, codec, &at, a, stream);
}

bool aq_edge_eval_here(const struct aq_edge *edge)
{
    return frame_here(edge, AQ_CHANNEL_ID_eval);
}

enum aq_status aq_edge_receive_eval(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *x,
                                    struct aq_stream *stream)
{
    return receive_batch(edge, AQ_CHANNEL_ID_eval, codec_of_eval(edge, batch), batch, x, stream);
}

void aq_edge_measures(struct aq_edge *edge, struct aq_edge_measures *out)
{
    *out = edge->measures;
    out->bits = aq_edge_level_bits(aq_codec_config_of(edge->forwards_by.codecs[level_sent(edge, &edge->forwards_by)]));
    const uint32_t back = level_sent(edge, &edge->backwards_by);
    out->bits_back = aq_edge_level_bits(aq_codec_config_of(edge->backwards_by.codecs[back]));
    memset(&edge->measures, 0, sizeof edge->measures);
}
