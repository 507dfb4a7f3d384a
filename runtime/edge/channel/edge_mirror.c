/* edge_mirror.c -- see the header. */
#include "edge_mirror.h"

#include <assert.h>

#include "channel.h"

enum {
    FRAMES_MAX = 32, /* that wait for the worker: a window and its answers                        */
    SHARE = 8        /* a busy link sends one piece of a checkpoint after this many training frames */
};
static_assert(AQ_EDGE_MIRROR_NO_PIECE == AQ_CHANNEL_BARE, "a piece is a place");

struct mirror {
    uint32_t back;    /* bits of the pieces whose bodies are back            */
    uint64_t trained; /* training frames posted when the last piece was, ever */
};

static struct aq_channel *mirror_channel(const struct aq_edge *edge)
{
    return aq_edge_channel(edge, AQ_CHANNEL_ID_mirror);
}

/* Training frames posted, ever. */
static uint64_t trained(const struct aq_channel *channel)
{
    return channel->set->posted - channel->posted;
}

enum aq_status aq_edge_send_mirror(struct aq_edge *edge, const struct aq_frame *frame, uint32_t piece)
{
    struct aq_channel *channel = mirror_channel(edge);
    struct mirror *mirror = channel->state;
    AQ_ASSERT(piece < 32 || piece == AQ_EDGE_MIRROR_NO_PIECE);
    const enum aq_status status = aq_channel_post(channel, frame, piece);
    /* The link has room for all that the window allows: more is the other side's doing. */
    if (status == AQ_AGAIN)
        return aq_fail(AQ_PROTO, "edge", "edge %u: the other side asks for more than the window of a checkpoint",
                       channel->set->config.shape->edge);
    AQ_TRY(status);
    if (frame->body) mirror->trained = trained(channel);
    return AQ_OK;
}

static void piece_sent(struct aq_channel *channel, uint32_t piece)
{
    struct mirror *mirror = channel->state;
    mirror->back |= 1u << piece;
}

uint32_t aq_edge_mirror_sent(struct aq_edge *edge)
{
    struct mirror *mirror = mirror_channel(edge)->state;
    const uint32_t back = mirror->back;
    mirror->back = 0;
    return back;
}

bool aq_edge_mirror_next(struct aq_edge *edge, struct aq_frame *out)
{
    struct aq_channel *channel = mirror_channel(edge);
    if (!aq_channel_ready(channel)) return false;
    *out = aq_channel_take(channel).frame;
    return true;
}

void aq_edge_mirror_release(struct aq_edge *edge, const void *body)
{
    aq_link_release(mirror_channel(edge)->set->config.link, body);
}

bool aq_edge_mirror_turn(const struct aq_edge *edge)
{
    const struct aq_channel *channel = mirror_channel(edge);
    const struct mirror *mirror = channel->state;
    return channel->set->out == channel->out || trained(channel) - mirror->trained >= SHARE;
}

static uint32_t frames_most(const struct aq_channels_config *config)
{
    return config->mirror ? FRAMES_MAX : 0;
}

const struct aq_channel_type aq_channel_mirror = {.kind = AQ_FRAME_MIRROR,
                                                  .direction = AQ_CHANNEL_BOTH,
                                                  .state_bytes = sizeof(struct mirror),
                                                  .bound = frames_most,
                                                  .sent = piece_sent};
