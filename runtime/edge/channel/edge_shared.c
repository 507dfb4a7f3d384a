/*
 * edge_shared.c -- vectors of gradients that cross an edge whole: fp32, in frames of the edge's own length, once a step
 * each way (docs/FRAME.md, "SHARED"). One is of tensors that several stages hold copies of, summed along the pipeline;
 * the second is all that a client's end has, summed by the server over its clients (split.mode: global); the third is
 * a tied table: the gradient of its copy one way, its values the other.
 *
 * A received piece is copied at once and its slot given back: these frames never hold a slot that training waits for.
 */
#include "edge_shared.h"

#include <string.h>

#include "channel.h"

/* Flags of a frame: whose vector it is a piece of, and that there is no sum of it. */
enum { FLAG_SUMMED = 1, FLAG_VOID = 2, FLAG_TIED = 4 };

static struct aq_channel *shared_channel(const struct aq_edge *edge)
{
    return aq_edge_channel(edge, AQ_CHANNEL_ID_shared);
}

static struct aq_edge_vectors *vectors_of(const struct aq_edge *edge)
{
    return shared_channel(edge)->state;
}

/* Floats of the next frame, if `left` are left. */
static uint64_t piece_of(const struct aq_channel *channel, uint64_t left)
{
    const uint64_t most = channel->set->config.body_bytes / sizeof(float);
    return left < most ? left : most;
}

/* Sends `total` of them; frames of the tied table carry this count. */
static enum aq_status vector_send(struct aq_channel *channel, struct aq_edge_vector *vector, uint16_t flags,
                                  uint64_t step, const float *values, uint64_t total)
{
    struct aq_channels *set = channel->set;
    while (vector->sent < total) {
        const uint64_t count = piece_of(channel, total - vector->sent);
        uint32_t index;
        AQ_TRY(aq_channels_body_take(set, &index));
        memcpy(aq_channels_body(set, index), values + vector->sent, count * sizeof *values);
        const struct aq_frame frame = {.kind = AQ_FRAME_SHARED,
                                       .flags = flags,
                                       .step = step,
                                       .micro_batch = flags & FLAG_TIED ? (uint32_t)total : 0,
                                       .argument = vector->sent,
                                       .body_bytes = (uint32_t)(count * sizeof *values),
                                       .body = aq_channels_body(set, index)};
        AQ_TRY(aq_channel_post(channel, &frame, index));
        vector->sent += count;
    }
    vector->sent = 0;
    return AQ_OK;
}

/* Is it the piece that is due? */
static bool piece_due(const struct aq_channel *channel, const struct aq_edge_vector *vector,
                      const struct aq_frame *frame)
{
    const uint64_t here = vector->here, total = frame->flags & FLAG_TIED ? frame->micro_batch : vector->count;
    if (vector->count == 0 || vector->held || total > vector->count || frame->argument != here) return false;
    if (here > 0 && here == vector->total) return false; /* the one before was not taken yet */
    if (frame->flags & FLAG_VOID) return here == 0 && frame->body_bytes == 0;
    return frame->body_bytes > 0 && here < total &&
           frame->body_bytes == piece_of(channel, total - here) * sizeof(float) &&
           (here == 0 || (frame->step == vector->step && total == vector->total));
}

static enum aq_status piece_arrived(struct aq_channel *channel, const struct aq_frame *frame)
{
    struct aq_edge_vectors *vectors = channel->state;
    const bool summed = frame->flags & FLAG_SUMMED, tied = frame->flags == FLAG_TIED;
    struct aq_edge_vector *vector = tied ? &vectors->tied : summed ? &vectors->summed : &vectors->shared;
    const bool known = frame->flags == 0 || frame->flags == FLAG_SUMMED || frame->flags == (FLAG_SUMMED | FLAG_VOID) ||
                       frame->flags == FLAG_TIED;
    const bool wanted = known && piece_due(channel, vector, frame);
    const uint64_t here = vector->here;
    if (wanted) {
        vector->none = frame->body_bytes == 0;
        vector->total = tied ? frame->micro_batch : vector->count;
        if (!vector->none) memcpy(vector->values + here, frame->body, frame->body_bytes);
        vector->here = vector->none ? vector->count : here + frame->body_bytes / sizeof(float);
        vector->step = frame->step;
    }
    if (frame->body) aq_link_release(channel->set->config.link, frame->body);
    if (wanted) return AQ_OK;
    return aq_fail(
        AQ_PROTO, "edge",
        "edge %u: %u bytes of %s gradients (flags %u) from value %llu on in step %llu, while %llu of %llu are "
        "here%s",
        channel->set->config.shape->edge, frame->body_bytes,
        tied     ? "tied"
        : summed ? "summed"
                 : "shared",
        frame->flags, (unsigned long long)frame->argument, (unsigned long long)frame->step, (unsigned long long)here,
        (unsigned long long)vector->count, vector->held ? " and it is not the other side's turn" : "");
}

/* All of it is here, and of this step. AQ_AGAIN: not yet. */
static enum aq_status vector_here(const struct aq_channel *channel, const struct aq_edge_vector *vector, uint64_t step)
{
    const struct aq_edge_vectors *vectors = channel->state;
    if (vector->here == 0 || vector->here < vector->total) return AQ_AGAIN;
    if (vector->step == step) return AQ_OK;
    return aq_fail(AQ_PROTO, "edge", "edge %u: %s gradients of step %llu arrived in step %llu",
                   channel->set->config.shape->edge,
                   vector == &vectors->summed ? "summed"
                   : vector == &vectors->tied ? "tied"
                                              : "shared",
                   (unsigned long long)vector->step, (unsigned long long)step);
}

enum aq_status aq_edge_send_shared(struct aq_edge *edge, uint64_t step, const float *values)
{
    struct aq_edge_vector *vector = &vectors_of(edge)->shared;
    return vector_send(shared_channel(edge), vector, 0, step, values, vector->count);
}

enum aq_status aq_edge_receive_shared(struct aq_edge *edge, uint64_t step, float *values)
{
    struct aq_edge_vector *vector = &vectors_of(edge)->shared;
    if (vector->count == 0) return AQ_OK;
    AQ_TRY(vector_here(shared_channel(edge), vector, step));
    memcpy(values, vector->values, vector->count * sizeof *values);
    vector->here = 0;
    return AQ_OK;
}

float *aq_edge_summed(const struct aq_edge *edge)
{
    return vectors_of(edge)->summed.values;
}

static enum aq_status vector_hold(const struct aq_channel *channel, struct aq_edge_vector *vector)
{
    if (!vector->held && vector->here > 0)
        return aq_fail(AQ_PROTO, "edge", "edge %u: gradients of step %llu arrived too early",
                       channel->set->config.shape->edge, (unsigned long long)vector->step);
    vector->held = true;
    return AQ_OK;
}

static void vector_release(struct aq_edge_vector *vector)
{
    AQ_ASSERT(vector->held && vector->sent == 0);
    vector->held = false;
}

static enum aq_status vector_receive(const struct aq_channel *channel, struct aq_edge_vector *vector, uint64_t step)
{
    AQ_ASSERT(!vector->held && vector->count > 0);
    AQ_TRY(vector_here(channel, vector, step));
    vector->here = 0;
    vector->held = true;
    return AQ_OK;
}

enum aq_status aq_edge_hold_summed(struct aq_edge *edge)
{
    return vector_hold(shared_channel(edge), &vectors_of(edge)->summed);
}

void aq_edge_release_summed(struct aq_edge *edge)
{
    vector_release(&vectors_of(edge)->summed);
}

enum aq_status aq_edge_send_summed(struct aq_edge *edge, uint64_t step, bool none)
{
    struct aq_edge_vector *vector = &vectors_of(edge)->summed;
    const struct aq_frame frame = {.kind = AQ_FRAME_SHARED, .flags = FLAG_SUMMED | FLAG_VOID, .step = step};
    AQ_ASSERT(vector->held && vector->count > 0);
    if (none)
        AQ_TRY(aq_channel_post(shared_channel(edge), &frame, AQ_CHANNEL_BARE));
    else
        AQ_TRY(vector_send(shared_channel(edge), vector, FLAG_SUMMED, step, vector->values, vector->count));
    aq_edge_release_summed(edge);
    return AQ_OK;
}

enum aq_status aq_edge_receive_summed(struct aq_edge *edge, uint64_t step, bool *none)
{
    struct aq_edge_vector *vector = &vectors_of(edge)->summed;
    AQ_TRY(vector_receive(shared_channel(edge), vector, step));
    *none = vector->none;
    return AQ_OK;
}

float *aq_edge_tied(const struct aq_edge *edge)
{
    return vectors_of(edge)->tied.values;
}

enum aq_status aq_edge_hold_tied(struct aq_edge *edge)
{
    return vector_hold(shared_channel(edge), &vectors_of(edge)->tied);
}

void aq_edge_release_tied(struct aq_edge *edge)
{
    vector_release(&vectors_of(edge)->tied);
}

enum aq_status aq_edge_send_tied(struct aq_edge *edge, uint64_t step, uint64_t words)
{
    struct aq_edge_vector *vector = &vectors_of(edge)->tied;
    AQ_ASSERT(vector->held && words > 0 && words <= vector->count);
    AQ_TRY(vector_send(shared_channel(edge), vector, FLAG_TIED, step, vector->values, words));
    vector_release(vector);
    return AQ_OK;
}

enum aq_status aq_edge_receive_tied(struct aq_edge *edge, uint64_t step, uint64_t *words)
{
    struct aq_edge_vector *vector = &vectors_of(edge)->tied;
    AQ_TRY(vector_receive(shared_channel(edge), vector, step));
    *words = vector->total;
    return AQ_OK;
}

static bool vector_whole(const struct aq_edge_vector *vector)
{
    return vector->count > 0 && vector->here > 0 && vector->here == vector->total;
}

/* A part of one will never be more behind a goodbye. */
static bool vectors_left(const struct aq_channel *channel)
{
    const struct aq_edge_vectors *vectors = channel->state;
    return vector_whole(&vectors->shared) || vector_whole(&vectors->summed) || vector_whole(&vectors->tied);
}

static void vectors_open(struct aq_channel *channel)
{
    const struct aq_edge_shape *shape = channel->set->config.shape;
    float *at = channel->set->config.vectors;
    struct aq_edge_vectors *vectors = channel->state;
    vectors->shared = (struct aq_edge_vector){.values = at, .count = shape->shared, .total = shape->shared};
    at += shape->shared;
    vectors->summed = (struct aq_edge_vector){.values = at, .count = shape->summed, .total = shape->summed};
    vectors->tied = (struct aq_edge_vector){.values = at + shape->summed, .count = shape->tied};
}

extern const struct aq_channel_type aq_channel_shared;
const struct aq_channel_type aq_channel_shared = {.kind = AQ_FRAME_SHARED,
                                                  .direction = AQ_CHANNEL_BOTH,
                                                  .state_bytes = sizeof(struct aq_edge_vectors),
                                                  .open = vectors_open,
                                                  .arrived = piece_arrived,
                                                  .left = vectors_left};
