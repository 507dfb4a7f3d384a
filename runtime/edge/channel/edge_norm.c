/* edge_norm.c -- see the header. The argument of a frame is the number. */
#include "edge_norm.h"

#include <string.h>

#include "channel.h"

enum { NORMS_MAX = 4 }; /* a step has at most two: the norm, and what an optimizer decides by */

enum aq_status aq_edge_send_norm(struct aq_edge *edge, uint64_t step, double value, uint16_t flags)
{
    struct aq_frame frame = {.kind = AQ_FRAME_NORM, .flags = flags, .step = step};
    memcpy(&frame.argument, &value, sizeof value);
    return aq_channel_post(aq_edge_channel(edge, AQ_CHANNEL_ID_norm), &frame, AQ_CHANNEL_BARE);
}

enum aq_status aq_edge_receive_norm(struct aq_edge *edge, uint64_t step, double *value, uint16_t *flags)
{
    struct aq_channel *channel = aq_edge_channel(edge, AQ_CHANNEL_ID_norm);
    const struct aq_frame *next = aq_channel_ready(channel);
    if (!next) return AQ_AGAIN;
    if (next->step != step)
        return aq_fail(AQ_PROTO, "edge", "edge %u: a norm of step %llu arrived in step %llu",
                       channel->set->config.shape->edge, (unsigned long long)next->step, (unsigned long long)step);
    memcpy(value, &next->argument, sizeof *value);
    *flags = next->flags;
    (void)aq_channel_take(channel); /* it has no body */
    return AQ_OK;
}

uint16_t aq_edge_norm_told(const struct aq_edge *edge, uint64_t step)
{
    const struct aq_channel *channel = aq_edge_channel(edge, AQ_CHANNEL_ID_norm);
    uint16_t flags = 0;
    for (uint32_t i = 0; i < channel->count; i++) {
        const struct aq_frame *frame = &aq_channel_at(channel, i)->frame;
        if (frame->step == step) flags |= frame->flags;
    }
    return flags;
}

static uint32_t norms_most(const struct aq_channels_config *config)
{
    (void)config;
    return NORMS_MAX;
}

const struct aq_channel_type aq_channel_norm = {
    .kind = AQ_FRAME_NORM, .direction = AQ_CHANNEL_BOTH, .bare = true, .bound = norms_most, .left = aq_channel_left};
