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

static const struct {
    const char *name;
    uint16_t flags;
} wholes[AQ_EDGE_WHOLES] = {
    [AQ_EDGE_SHARED] = {"shared", 0}, [AQ_EDGE_SUMMED] = {"summed", FLAG_SUMMED}, [AQ_EDGE_TIED] = {"tied", FLAG_TIED}};

static struct aq_channel *shared_channel(const struct aq_edge *edge)
{
    return aq_edge_channel(edge, AQ_CHANNEL_ID_shared);
}

static struct aq_edge_vector *vector_of(const struct aq_edge *edge, enum aq_edge_whole which)
{
    struct aq_edge_vectors *vectors = shared_channel(edge)->state;
    return &vectors->of[which];
}

/* Floats of the next frame, if `left` are left. */
static uint64_t piece_of(const struct aq_channel *channel, uint64_t left)
{
    const uint64_t most = channel->set->config.body_bytes / sizeof(float);
    return left < most ? left : most;
}

/* Sends `total` of them; frames of the tied table carry this count. */
static enum aq_status vector_send(struct aq_edge *edge, enum aq_edge_whole which, uint64_t step, const float *values,
                                  uint64_t total)
{
    struct aq_channel *channel = shared_channel(edge);
    struct aq_edge_vector *vector = vector_of(edge, which);
    struct aq_channels *set = channel->set;
    while (vector->sent < total) {
        const uint64_t count = piece_of(channel, total - vector->sent);
        uint32_t index;
        AQ_TRY(aq_channels_body_take(set, &index));
        memcpy(aq_channels_body(set, index), values + vector->sent, count * sizeof *values);
        const struct aq_frame frame = {.kind = AQ_FRAME_SHARED,
                                       .flags = wholes[which].flags,
                                       .step = step,
                                       .micro_batch = which == AQ_EDGE_TIED ? (uint32_t)total : 0,
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
    const enum aq_edge_whole which = frame->flags == FLAG_TIED    ? AQ_EDGE_TIED
                                     : frame->flags & FLAG_SUMMED ? AQ_EDGE_SUMMED
                                                                  : AQ_EDGE_SHARED;
    struct aq_edge_vector *vector = &vectors->of[which];
    const bool known = frame->flags == wholes[which].flags || frame->flags == (FLAG_SUMMED | FLAG_VOID);
    const bool wanted = known && piece_due(channel, vector, frame);
    const uint64_t here = vector->here;
    if (wanted) {
        vector->none = frame->body_bytes == 0;
        vector->total = which == AQ_EDGE_TIED ? frame->micro_batch : vector->count;
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
        channel->set->config.shape->edge, frame->body_bytes, wholes[which].name, frame->flags,
        (unsigned long long)frame->argument, (unsigned long long)frame->step, (unsigned long long)here,
        (unsigned long long)vector->count, vector->held ? " and it is not the other side's turn" : "");
}

/* All of it is here, and of this step. AQ_AGAIN: not yet. */
static enum aq_status vector_here(const struct aq_edge *edge, enum aq_edge_whole which, uint64_t step)
{
    const struct aq_edge_vector *vector = vector_of(edge, which);
    if (vector->here == 0 || vector->here < vector->total) return AQ_AGAIN;
    if (vector->step == step) return AQ_OK;
    return aq_fail(AQ_PROTO, "edge", "edge %u: %s gradients of step %llu arrived in step %llu",
                   shared_channel(edge)->set->config.shape->edge, wholes[which].name, (unsigned long long)vector->step,
                   (unsigned long long)step);
}

enum aq_status aq_edge_send_shared(struct aq_edge *edge, uint64_t step, const float *values)
{
    return vector_send(edge, AQ_EDGE_SHARED, step, values, vector_of(edge, AQ_EDGE_SHARED)->count);
}

enum aq_status aq_edge_receive_shared(struct aq_edge *edge, uint64_t step, float *values)
{
    struct aq_edge_vector *vector = vector_of(edge, AQ_EDGE_SHARED);
    if (vector->count == 0) return AQ_OK;
    AQ_TRY(vector_here(edge, AQ_EDGE_SHARED, step));
    memcpy(values, vector->values, vector->count * sizeof *values);
    vector->here = 0;
    return AQ_OK;
}

float *aq_edge_whole(const struct aq_edge *edge, enum aq_edge_whole which)
{
    return vector_of(edge, which)->values;
}

enum aq_status aq_edge_whole_hold(struct aq_edge *edge, enum aq_edge_whole which)
{
    struct aq_edge_vector *vector = vector_of(edge, which);
    if (!vector->held && vector->here > 0)
        return aq_fail(AQ_PROTO, "edge", "edge %u: gradients of step %llu arrived too early",
                       shared_channel(edge)->set->config.shape->edge, (unsigned long long)vector->step);
    vector->held = true;
    return AQ_OK;
}

void aq_edge_whole_release(struct aq_edge *edge, enum aq_edge_whole which)
{
    struct aq_edge_vector *vector = vector_of(edge, which);
    AQ_ASSERT(vector->held && vector->sent == 0);
    vector->held = false;
}

enum aq_status aq_edge_whole_send(struct aq_edge *edge, enum aq_edge_whole which, uint64_t step, uint64_t words)
{
    struct aq_edge_vector *vector = vector_of(edge, which);
    const struct aq_frame none = {.kind = AQ_FRAME_SHARED, .flags = FLAG_SUMMED | FLAG_VOID, .step = step};
    AQ_ASSERT(vector->held && words <= vector->count);
    AQ_ASSERT(which == AQ_EDGE_TIED ? words > 0 : words == 0 || words == vector->count);
    AQ_TRY(words == 0 ? aq_channel_post(shared_channel(edge), &none, AQ_CHANNEL_BARE)
                      : vector_send(edge, which, step, vector->values, words));
    aq_edge_whole_release(edge, which);
    return AQ_OK;
}

enum aq_status aq_edge_whole_receive(struct aq_edge *edge, enum aq_edge_whole which, uint64_t step, uint64_t *words)
{
    struct aq_edge_vector *vector = vector_of(edge, which);
    AQ_ASSERT(!vector->held && vector->count > 0);
    AQ_TRY(vector_here(edge, which, step));
    vector->here = 0;
    vector->held = true;
    *words = vector->none ? 0 : vector->total;
    return AQ_OK;
}

/* A part of one will never be more behind a goodbye. */
static bool vectors_left(const struct aq_channel *channel)
{
    const struct aq_edge_vectors *vectors = channel->state;
    bool whole = false;
    for (int i = 0; i < AQ_EDGE_WHOLES; i++)
        whole = whole || (vectors->of[i].here > 0 && vectors->of[i].here == vectors->of[i].total);
    return whole;
}

static void vectors_open(struct aq_channel *channel)
{
    const struct aq_edge_shape *shape = channel->set->config.shape;
    const uint64_t counts[AQ_EDGE_WHOLES] = {shape->shared, shape->summed, shape->tied};
    struct aq_edge_vectors *vectors = channel->state;
    float *at = channel->set->config.vectors;
    for (int i = 0; i < AQ_EDGE_WHOLES; i++) {
        vectors->of[i] = (struct aq_edge_vector){.values = at, .count = counts[i], .total = counts[i]};
        at += counts[i];
    }
}

const struct aq_channel_type aq_channel_shared = {.kind = AQ_FRAME_SHARED,
                                                  .direction = AQ_CHANNEL_BOTH,
                                                  .state_bytes = sizeof(struct aq_edge_vectors),
                                                  .open = vectors_open,
                                                  .arrived = piece_arrived,
                                                  .left = vectors_left};
