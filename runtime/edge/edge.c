/*
 * edge.c -- frames in and out of an edge. Samples are coded in edge_work.c, lost messages fetched in edge_heal.c.
 *
 * Send buffers are lent to the link and come back as AQ_LINK_SENT events; received bodies stay in the link's slots
 * until they are decoded, so that a stage that falls behind holds its neighbour back by credits, not by memory.
 */
#include "edge.h"

#include <string.h>

#include "edge_private.h"

static enum aq_status open_levels(struct aq_edge *edge, const struct aq_codec_config *config, bool whole, bool wide,
                                  struct aq_edge_levels *out)
{
    struct aq_codec_config levels[AQ_EDGE_LEVELS] = {*config};
    out->count = whole ? aq_edge_level_list(config, levels) : 1;
    const uint32_t rows = edge->shape.rows, columns = edge->shape.columns;
    for (uint32_t i = 0; i < out->count; i++) {
        struct aq_codec_config more;
        AQ_TRY(aq_codec_open(edge->config.device, &levels[i], rows, columns, &out->codecs[i]));
        if (wide && aq_edge_wide(&levels[i], &more))
            AQ_TRY(aq_codec_open(edge->config.device, &more, rows, columns, &out->wide[i]));
    }
    return AQ_OK;
}

static enum aq_status open_codecs(struct aq_edge *edge)
{
    const struct aq_edge_shape *shape = &edge->shape;
    struct aq_codec_config raw;
    aq_codec_config_plain(&raw);
    AQ_TRY(open_levels(edge, &shape->forward, shape->guard || shape->level_lists, shape->wide, &edge->forwards_by));
    AQ_TRY(open_levels(edge, &shape->backward, shape->guard_back || shape->level_lists, shape->wide_back,
                       &edge->backwards_by));
    edge->forward = edge->forwards_by.codecs[0];
    edge->backward = edge->backwards_by.codecs[0];
    return aq_codec_open(edge->config.device, &raw, shape->rows, shape->columns, &edge->raw);
}

static enum aq_status open_held(struct aq_edge *edge)
{
    const uint32_t slots = edge->shape.slots, B = edge->shape.micro_batch;
    if (!edge->config.sender || !edge->config.cache || slots == 0) return AQ_OK;
    struct aq_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        struct aq_edge_held *held = aq_arena_take(&arena, slots * sizeof *held);
        struct aq_cache_entry *entries = aq_arena_take(&arena, (size_t)slots * B * sizeof *entries);
        struct aq_cache_key *keys = aq_arena_take(&arena, (size_t)slots * B * sizeof *keys);
        if (pass == 0) {
            AQ_TRY(aq_alloc(arena.used, &edge->held_memory));
            arena = (struct aq_arena){.base = edge->held_memory, .bytes = arena.used};
            continue;
        }
        for (uint32_t i = 0; i < slots; i++) {
            held[i].entries = entries + (size_t)i * B;
            held[i].keys = keys + (size_t)i * B;
        }
        edge->held = held;
    }
    return AQ_OK;
}

enum aq_status aq_edge_open(const struct aq_edge_config *config, struct aq_edge **out)
{
    const struct aq_edge_shape *shape = config->shape;
    struct aq_edge_size size;
    if (shape->send_frames == 0 || shape->send_frames > AQ_EDGE_BODIES_MAX)
        return aq_fail(AQ_INVAL, "edge", "link.send_frames is %u: from 1 to %d", shape->send_frames,
                       AQ_EDGE_BODIES_MAX);
    if (shape->receive_slots > AQ_EDGE_QUEUE_MAX)
        return aq_fail(AQ_INVAL, "edge", "link.receive_slots is %u: at most %d", shape->receive_slots,
                       AQ_EDGE_QUEUE_MAX);
    AQ_TRY(aq_edge_size_of(shape, &size));
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_edge), &memory));
    struct aq_edge *edge = memory;
    edge->config = *config;
    edge->shape = *shape;
    edge->config.shape = &edge->shape;
    edge->size = size;
    edge->values = (uint64_t)shape->rows * shape->columns;
    edge->body_count = shape->send_frames;
    edge->asks_left = shape->messages + shape->batch;
    enum aq_status status;
    AQ_TRY_GOTO(open_codecs(edge), out);
    AQ_TRY_GOTO(open_held(edge), out);
    AQ_TRY_GOTO(aq_edge_works_open(edge), out);
    edge->pages = aq_device_pages(config->device);
    AQ_TRY_GOTO(aq_pages_take(&edge->pages, edge->size.buffer_bytes, (void **)&edge->bodies), out);
    float *behind = (float *)(void *)aq_edge_body(edge, edge->body_count);
    edge->shared = (struct aq_edge_vector){.values = behind, .count = shape->shared, .total = shape->shared};
    edge->summed =
        (struct aq_edge_vector){.values = behind + shape->shared, .count = shape->summed, .total = shape->summed};
    edge->tied = (struct aq_edge_vector){.values = edge->summed.values + shape->summed, .count = shape->tied};
    edge->cached_body = (uint8_t *)(edge->tied.values + shape->tied);
    if (edge->size.cached_bytes) memset(edge->cached_body, 0, edge->size.cached_bytes);
    for (uint32_t i = 0; i < edge->body_count; i++)
        edge->free_bodies[i] = i;
    edge->free_count = edge->body_count;
    *out = edge;
    return AQ_OK;
out:
    aq_edge_close(edge);
    return status;
}

void aq_edge_close(struct aq_edge *edge)
{
    if (!edge) return;
    /* Freeing memory waits for all work on the device. */
    if (aq_edge_carrying(edge)) aq_edges_abandon(edge, NULL);
    if (edge->held)
        for (uint32_t i = 0; i < edge->shape.slots; i++)
            aq_edge_unhold(edge, i);
    aq_edge_queue_release(edge, &edge->forwards);
    aq_edge_queue_release(edge, &edge->backwards);
    aq_edge_queue_release(edge, &edge->evals);
    aq_edge_works_close(edge);
    aq_edge_carry_close(edge);
    for (uint32_t i = 0; i < AQ_EDGE_LEVELS; i++) {
        aq_codec_close(edge->forwards_by.codecs[i]);
        aq_codec_close(edge->backwards_by.codecs[i]);
        aq_codec_close(edge->forwards_by.wide[i]);
        aq_codec_close(edge->backwards_by.wide[i]);
    }
    aq_codec_close(edge->raw);
    aq_pages_give(&edge->pages, edge->bodies, edge->size.buffer_bytes);
    aq_free(edge->held_memory);
    aq_free(edge);
}

enum aq_status aq_edge_body_take(struct aq_edge *edge, uint32_t *index)
{
    if (edge->free_count == 0) return AQ_AGAIN;
    *index = edge->free_bodies[--edge->free_count];
    return AQ_OK;
}

void aq_edge_body_return(struct aq_edge *edge, uint32_t index)
{
    AQ_ASSERT(index < edge->body_count && edge->free_count < edge->body_count);
    edge->answers_out -= edge->answering[index];
    edge->answering[index] = false;
    edge->free_bodies[edge->free_count++] = index;
}

enum aq_status aq_edge_post(struct aq_edge *edge, const struct aq_frame *frame, uint64_t body_index)
{
    const enum aq_status status = aq_link_send(edge->config.link, frame, body_index);
    if (status != AQ_OK) {
        if (body_index < AQ_EDGE_REQUEST) aq_edge_body_return(edge, (uint32_t)body_index);
        return status;
    }
    edge->sends_out++;
    edge->requests_out += body_index == AQ_EDGE_REQUEST;
    edge->mirror_credit++;
    return AQ_OK;
}

enum aq_status aq_edge_send_mirror(struct aq_edge *edge, const struct aq_frame *frame, uint32_t piece)
{
    AQ_ASSERT(piece < 32 || piece == AQ_EDGE_MIRROR_NO_PIECE);
    const enum aq_status status = aq_link_send(edge->config.link, frame, AQ_EDGE_MIRROR_TOKEN | piece);
    /* The link has room for all that the window allows: more is the other side's doing. */
    if (status == AQ_AGAIN)
        return aq_fail(AQ_PROTO, "edge", "edge %u: the other side asks for more than the window of a checkpoint",
                       edge->shape.edge);
    AQ_TRY(status);
    edge->sends_out++;
    edge->mirrors_out++;
    if (frame->body) edge->mirror_credit = 0;
    return AQ_OK;
}

uint32_t aq_edge_mirror_sent(struct aq_edge *edge)
{
    const uint32_t back = edge->mirrors_back;
    edge->mirrors_back = 0;
    return back;
}

bool aq_edge_mirror_next(struct aq_edge *edge, struct aq_frame *out)
{
    if (edge->mirror_count == 0) return false;
    *out = edge->mirrors[edge->mirror_first];
    edge->mirror_first = (edge->mirror_first + 1) % AQ_EDGE_MIRRORS_MAX;
    edge->mirror_count--;
    return true;
}

void aq_edge_mirror_release(struct aq_edge *edge, const void *body)
{
    aq_link_release(edge->config.link, body);
}

bool aq_edge_mirror_turn(const struct aq_edge *edge)
{
    return edge->sends_out == edge->mirrors_out || edge->mirror_credit >= AQ_EDGE_MIRROR_SHARE;
}

/* The link has let go of a frame. */
static void frame_out(struct aq_edge *edge, uint64_t token)
{
    AQ_ASSERT(edge->sends_out > 0);
    edge->sends_out--;
    if (token == AQ_EDGE_REQUEST) edge->requests_out--;
    if (token >= AQ_EDGE_REQUEST) return;
    if (token < AQ_EDGE_MIRROR_TOKEN) {
        aq_edge_body_return(edge, (uint32_t)token);
        return;
    }
    edge->mirrors_out--;
    if ((uint32_t)token != AQ_EDGE_MIRROR_NO_PIECE) edge->mirrors_back |= 1u << (uint32_t)token;
}

/*
 * Maximum of frames of this kind that may wait here, by the plan: a sender of activations has no more micro-batches in
 * flight than slots, and each is in flight until its gradient is back. So the frames that a stage takes out of the
 * link's slots while it waits for a lost message (edge_heal.c) are bounded, too. Evaluation is bounded only by credits,
 * and never taken out.
 */
static uint32_t queue_max(const struct aq_edge *edge, uint16_t kind)
{
    const uint32_t slots = edge->shape.slots;
    return kind == AQ_FRAME_EVAL || slots > AQ_EDGE_QUEUE_MAX ? AQ_EDGE_QUEUE_MAX : slots;
}

static enum aq_status queue_add(struct aq_edge *edge, struct aq_edge_queue *queue, const struct aq_frame *frame)
{
    uint64_t number;
    AQ_TRY(aq_edge_carried_in(edge, frame, &number));
    if (queue->count >= queue_max(edge, frame->kind))
        return aq_fail(
            AQ_PROTO, "edge",
            "edge %u: the other side sends step %llu micro-batch %u while %u frames of kind %u wait, as many as "
            "can be in flight",
            edge->shape.edge, (unsigned long long)frame->step, frame->micro_batch, queue->count, frame->kind);
    edge->asks_left += edge->shape.micro_batch;
    const uint32_t at = (queue->first + queue->count++) % AQ_EDGE_QUEUE_MAX;
    queue->frames[at] = *frame;
    queue->spilled[at] = false;
    queue->carried[at] = number;
    return AQ_OK;
}

static struct aq_edge_received queue_take(struct aq_edge_queue *queue)
{
    AQ_ASSERT(queue->count > 0);
    const uint32_t at = queue->first;
    queue->first = (at + 1) % AQ_EDGE_QUEUE_MAX;
    queue->count--;
    return (struct aq_edge_received){.frame = queue->frames[at],
                                     .spilled = queue->spilled[at],
                                     .carried = queue->carried[at],
                                     .bodies = queue->frames[at].body,
                                     .bytes = queue->frames[at].body_bytes};
}

/* Is there a next one, with all that belongs to it? */
static bool queue_here(const struct aq_edge *edge, const struct aq_edge_queue *queue)
{
    return queue->count > 0 && aq_edge_carried_here(edge, queue->carried[queue->first]);
}

void aq_edge_received_release(struct aq_edge *edge, const struct aq_edge_received *got)
{
    aq_edge_carried_release(edge, got->carried);
    if (got->spilled)
        aq_unmap((void *)(uintptr_t)got->frame.body, got->frame.body_bytes);
    else if (got->frame.body)
        aq_link_release(edge->config.link, got->frame.body);
}

void aq_edge_queue_release(struct aq_edge *edge, struct aq_edge_queue *queue)
{
    while (queue->count > 0) {
        const struct aq_edge_received got = queue_take(queue);
        aq_edge_received_release(edge, &got);
    }
}

/* One frame from the other side. An unexpected frame is the peer's fault. */
static enum aq_status frame_in(struct aq_edge *edge, const struct aq_frame *frame)
{
    const bool sender = edge->config.sender;
    switch (frame->kind) {
    case AQ_FRAME_FORWARD:
        if (!sender) return queue_add(edge, &edge->forwards, frame);
        break;
    case AQ_FRAME_EVAL:
        if (!sender) return queue_add(edge, &edge->evals, frame);
        break;
    case AQ_FRAME_BACKWARD:
        if (sender) return queue_add(edge, &edge->backwards, frame);
        break;
    case AQ_FRAME_NORM:
        if (frame->body_bytes != 0 || edge->norm_count == AQ_EDGE_NORMS_MAX) break;
        memcpy(&edge->norms[edge->norm_count], &frame->argument, sizeof(double));
        edge->norm_flags[edge->norm_count] = frame->flags;
        edge->norm_steps[edge->norm_count++] = frame->step;
        return AQ_OK;
    case AQ_FRAME_SHARED:
        return aq_edge_shared_in(edge, frame);
    case AQ_FRAME_FETCH:
        if (frame->body_bytes == 0) return aq_edge_fetch_asked(edge, frame);
        break;
    case AQ_FRAME_MESSAGE:
        if (edge->asking.count > 0) return aq_edge_fetch_answered(edge, frame);
        break;
    case AQ_FRAME_CONTROL:
        return aq_edge_join_told(edge, frame);
    case AQ_FRAME_MIRROR:
        if (!edge->config.mirror || edge->mirror_count == AQ_EDGE_MIRRORS_MAX) break;
        edge->mirrors[(edge->mirror_first + edge->mirror_count++) % AQ_EDGE_MIRRORS_MAX] = *frame;
        return AQ_OK;
    default:
        break;
    }
    if (frame->body) aq_link_release(edge->config.link, frame->body);
    return aq_fail(AQ_PROTO, "edge", "edge %u: unexpected frame of kind %u (step %llu, micro-batch %u, %u bytes)",
                   edge->shape.edge, frame->kind, (unsigned long long)frame->step, frame->micro_batch,
                   frame->body_bytes);
}

static enum aq_status link_ended(struct aq_edge *edge, const struct aq_link_event *event)
{
    const uint32_t peer = edge->config.sender ? edge->shape.edge + 1 : edge->shape.edge;
    edge->ended = event->status == AQ_OK ? AQ_CLOSED : event->status;
    if (edge->ended == AQ_CLOSED) return AQ_OK; /* in good order: reported when nothing is left to hand out */
    return aq_fail(edge->ended, "edge", "the link to stage %u ended: %s", peer, event->text ? event->text : "");
}

enum aq_status aq_edge_link_pump(struct aq_edge *edge)
{
    struct aq_link_event event;
    for (;;) {
        const enum aq_status status = aq_link_poll(edge->config.link, &event);
        if (status == AQ_AGAIN) return AQ_OK;
        AQ_TRY(status);
        if (event.kind == AQ_LINK_RECEIVED) {
            AQ_TRY(frame_in(edge, &event.frame));
        } else if (event.kind == AQ_LINK_SENT) {
            frame_out(edge, event.token);
        } else {
            AQ_TRY(link_ended(edge, &event));
        }
    }
}

/* A part of one will never be more behind a goodbye. */
static bool vector_whole(const struct aq_edge_vector *vector)
{
    return vector->count > 0 && vector->here > 0 && vector->here == vector->total;
}

enum aq_status aq_edge_pump(struct aq_edge *edge)
{
    AQ_TRY(aq_edge_link_pump(edge));
    AQ_TRY(aq_edge_carry_advance(edge));
    AQ_TRY(aq_edge_works_advance(edge));
    AQ_TRY(aq_edge_fetches_serve(edge));
    /* Frames that came before the end of the link are still handed out; then the end counts. */
    const bool left = edge->forwards.count || edge->backwards.count || edge->evals.count || edge->norm_count ||
                      vector_whole(&edge->shared) || vector_whole(&edge->summed) || vector_whole(&edge->tied) ||
                      aq_edge_decoding(edge);
    return edge->ended == AQ_CLOSED && left ? AQ_OK : edge->ended;
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
    AQ_TRY(aq_edge_post(edge, &frame, body_index));
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
    struct aq_edge_queue *queue = &edge->forwards;
    const struct aq_frame *frame = &queue->frames[queue->first];
    const uint32_t rows = batch->samples * AQ_EDGE_ROW_BYTES;
    AQ_ASSERT(edge->shape.still && !edge->config.sender && queue->count > 0);
    if (aq_edge_decoding(edge)) return AQ_AGAIN;
    AQ_TRY(received_check(edge, frame, batch));
    if (frame->body_bytes != rows || queue->carried[queue->first]) return AQ_NOTFOUND;
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_edge_row row;
        aq_edge_row_read((const uint8_t *)frame->body + (size_t)i * AQ_EDGE_ROW_BYTES, &row);
        AQ_TRY(aq_edge_row_check(edge, batch, i, edge->forward, &row, rows, rows, edge->config.cache));
        if (!(row.flags & AQ_EDGE_HELD)) return AQ_NOTFOUND;
    }
    const struct aq_edge_received got = queue_take(queue);
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

static enum aq_status receive_batch(struct aq_edge *edge, struct aq_edge_queue *queue, struct aq_codec *codec,
                                    const struct aq_edge_batch *batch, const struct aq_values *values,
                                    struct aq_stream *stream)
{
    if (aq_edge_decoding(edge)) return AQ_AGAIN;
    struct aq_edge_received got = queue_take(queue);
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
    if (!queue_here(edge, &edge->forwards)) return false;
    if (flags) *flags = edge->forwards.frames[edge->forwards.first].flags;
    return true;
}

enum aq_status aq_edge_receive_forward(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                       const struct aq_values *x, struct aq_stream *stream)
{
    return receive_batch(edge, &edge->forwards, edge->forward, batch, x, stream);
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
    return queue_here(edge, &edge->backwards);
}

enum aq_status aq_edge_receive_backward(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                        const struct aq_values *g, struct aq_stream *stream)
{
    if (edge->shape.still) {
        const struct aq_edge_received got = queue_take(&edge->backwards);
        const enum aq_status status = received_check(edge, &got.frame, batch);
        aq_edge_received_release(edge, &got);
        AQ_TRY(status);
    } else {
        AQ_TRY(receive_batch(edge, &edge->backwards, edge->backward, batch, g, stream));
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
    return queue_here(edge, &edge->evals);
}

enum aq_status aq_edge_receive_eval(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *x,
                                    struct aq_stream *stream)
{
    return receive_batch(edge, &edge->evals, codec_of_eval(edge, batch), batch, x, stream);
}

enum aq_status aq_edge_send_norm(struct aq_edge *edge, uint64_t step, double value, uint16_t flags)
{
    struct aq_frame frame = {.kind = AQ_FRAME_NORM, .flags = flags, .step = step};
    memcpy(&frame.argument, &value, sizeof value);
    return aq_edge_post(edge, &frame, AQ_EDGE_NO_BODY);
}

enum aq_status aq_edge_receive_norm(struct aq_edge *edge, uint64_t step, double *value, uint16_t *flags)
{
    if (edge->norm_count == 0) return AQ_AGAIN;
    if (edge->norm_steps[0] != step)
        return aq_fail(AQ_PROTO, "edge", "edge %u: a norm of step %llu arrived in step %llu", edge->shape.edge,
                       (unsigned long long)edge->norm_steps[0], (unsigned long long)step);
    *value = edge->norms[0];
    *flags = edge->norm_flags[0];
    edge->norm_count--;
    memmove(edge->norms, edge->norms + 1, edge->norm_count * sizeof edge->norms[0]);
    memmove(edge->norm_steps, edge->norm_steps + 1, edge->norm_count * sizeof edge->norm_steps[0]);
    memmove(edge->norm_flags, edge->norm_flags + 1, edge->norm_count * sizeof edge->norm_flags[0]);
    return AQ_OK;
}

uint16_t aq_edge_norm_told(const struct aq_edge *edge, uint64_t step)
{
    uint16_t flags = 0;
    for (uint32_t i = 0; i < edge->norm_count; i++)
        if (edge->norm_steps[i] == step) flags |= edge->norm_flags[i];
    return flags;
}

enum aq_status aq_edge_wait(struct aq_edge *edge, uint32_t seen, uint64_t deadline_ns)
{
    const enum aq_status waited = aq_eventcount_wait(edge->config.eventcount, seen, deadline_ns);
    AQ_TRY(aq_edge_pump(edge));
    return waited;
}

enum aq_status aq_edge_drain(struct aq_edge *edge, uint64_t deadline_ns)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(edge->config.eventcount);
        const enum aq_status status = aq_edge_pump(edge);
        if (status == AQ_CLOSED) return AQ_OK; /* the other side has everything and has ended the link */
        AQ_TRY(status);
        const bool busy = aq_edge_busy_since(edge) || aq_edge_carrying(edge);
        if (edge->sends_out == 0 && edge->asking.count == 0 && !edge->remaking && !busy) {
            const enum aq_status farewell = aq_edge_carry_shutdown(edge);
            if (farewell != AQ_AGAIN) return farewell;
        }
        const uint64_t soon = busy ? aq_clock_after(AQ_EDGE_POLL_NS) : deadline_ns;
        const enum aq_status waited =
            aq_eventcount_wait(edge->config.eventcount, seen, soon < deadline_ns ? soon : deadline_ns);
        if (waited != AQ_TIMEOUT || soon >= deadline_ns) AQ_TRY(waited);
    }
}

void aq_edge_measures(struct aq_edge *edge, struct aq_edge_measures *out)
{
    *out = edge->measures;
    out->bits = aq_edge_level_bits(aq_codec_config_of(edge->forwards_by.codecs[level_sent(edge, &edge->forwards_by)]));
    const uint32_t back = level_sent(edge, &edge->backwards_by);
    out->bits_back = aq_edge_level_bits(aq_codec_config_of(edge->backwards_by.codecs[back]));
    memset(&edge->measures, 0, sizeof edge->measures);
}
