/* channel.c -- frames in and out of an edge, by kind. See channel.h. */
#include "channel.h"

#include <string.h>

static const struct aq_channel_type *const types[AQ_CHANNELS] = {
#define AQ_CHANNEL(name) &aq_channel_##name,
#include "channels.def"
};

/* A token: which channel in the upper half, which place in the lower. */
static uint64_t token_of(const struct aq_channel *channel, uint32_t place)
{
    return (uint64_t)(channel - channel->set->all) << 32 | place;
}

/* Of a ring and a state for each channel, behind the struct. */
static void channels_place(struct aq_channels *channels, struct aq_arena *arena, uint32_t bounds[AQ_CHANNELS])
{
    for (uint32_t i = 0; i < AQ_CHANNELS; i++) {
        void *items = aq_arena_take(arena, bounds[i] * sizeof(struct aq_channel_item));
        void *state = aq_arena_take(arena, types[i]->state_bytes);
        if (!channels) continue;
        channels->all[i] =
            (struct aq_channel){.type = types[i], .set = channels, .items = items, .bound = bounds[i], .state = state};
    }
}

enum aq_status aq_channels_open(const struct aq_channels_config *config, struct aq_channels **out)
{
    uint32_t bounds[AQ_CHANNELS];
    void *memory;
    for (uint32_t i = 0; i < AQ_CHANNELS; i++) {
        bounds[i] = types[i]->bound ? types[i]->bound(config) : 0;
        AQ_ASSERT(bounds[i] <= AQ_CHANNEL_FRAMES_MAX);
    }
    struct aq_arena arena = {0};
    (void)aq_arena_take(&arena, sizeof(struct aq_channels));
    channels_place(NULL, &arena, bounds);
    AQ_TRY(aq_alloc(arena.used, &memory));
    arena = (struct aq_arena){.base = memory, .bytes = arena.used};
    struct aq_channels *channels = aq_arena_take(&arena, sizeof *channels);
    channels->config = *config;
    channels->body_count = channels->free_count = config->shape->send_frames;
    for (uint32_t i = 0; i < channels->body_count; i++)
        channels->free_bodies[i] = i;
    channels_place(channels, &arena, bounds);
    for (uint32_t i = 0; i < AQ_CHANNELS; i++)
        if (types[i]->open) types[i]->open(&channels->all[i]);
    *out = channels;
    return AQ_OK;
}

void aq_channels_close(struct aq_channels *channels)
{
    if (!channels) return;
    for (uint32_t i = 0; i < AQ_CHANNELS; i++) {
        struct aq_channel *channel = &channels->all[i];
        while (channel->count > 0) {
            const struct aq_channel_item item = aq_channel_take(channel);
            aq_channel_release(channel, &item);
        }
    }
    aq_free(channels);
}

/* --- sending ---------------------------------------------------------------------------------------------------- */

enum aq_status aq_channels_body_take(struct aq_channels *channels, uint32_t *index)
{
    if (channels->free_count == 0) return AQ_AGAIN;
    *index = channels->free_bodies[--channels->free_count];
    return AQ_OK;
}

void aq_channels_body_return(struct aq_channels *channels, uint32_t index)
{
    AQ_ASSERT(index < channels->body_count && channels->free_count < channels->body_count);
    channels->free_bodies[channels->free_count++] = index;
}

enum aq_status aq_channel_post(struct aq_channel *channel, const struct aq_frame *frame, uint32_t place)
{
    struct aq_channels *set = channel->set;
    AQ_ASSERT(frame->kind == channel->type->kind);
    const enum aq_status status = aq_link_send(set->config.link, frame, token_of(channel, place));
    if (status != AQ_OK) {
        if (place != AQ_CHANNEL_BARE && !channel->type->sent) aq_channels_body_return(set, place);
        return status;
    }
    channel->out++;
    channel->bodies_out += place != AQ_CHANNEL_BARE;
    channel->posted++;
    set->out++;
    set->posted++;
    return AQ_OK;
}

void aq_channels_sent(struct aq_channels *channels, uint64_t token)
{
    const uint32_t place = (uint32_t)token;
    AQ_ASSERT(token >> 32 < AQ_CHANNELS);
    struct aq_channel *channel = &channels->all[token >> 32];
    AQ_ASSERT(channel->out > 0 && channels->out > 0);
    channels->out--;
    channel->out--;
    if (place == AQ_CHANNEL_BARE) return;
    channel->bodies_out--;
    if (channel->type->sent)
        channel->type->sent(channel, place);
    else
        aq_channels_body_return(channels, place);
}

/* --- receiving -------------------------------------------------------------------------------------------------- */

enum aq_status aq_channel_unexpected(const struct aq_channels *channels, const struct aq_frame *frame)
{
    if (frame->body) aq_link_release(channels->config.link, frame->body);
    return aq_fail(AQ_PROTO, "edge", "edge %u: unexpected frame of kind %u (step %llu, micro-batch %u, %u bytes)",
                   channels->config.shape->edge, frame->kind, (unsigned long long)frame->step, frame->micro_batch,
                   frame->body_bytes);
}

enum aq_status aq_channel_keep(struct aq_channel *channel, const struct aq_frame *frame, uint64_t note)
{
    if (channel->count == channel->bound) return aq_channel_unexpected(channel->set, frame);
    channel->count++;
    *aq_channel_at(channel, channel->count - 1) = (struct aq_channel_item){.frame = *frame, .note = note};
    return AQ_OK;
}

enum aq_status aq_channels_arrived(struct aq_channels *channels, const struct aq_frame *frame)
{
    const enum aq_channel_direction here = channels->config.sender ? AQ_CHANNEL_UP : AQ_CHANNEL_DOWN;
    for (uint32_t i = 0; i < AQ_CHANNELS; i++) {
        struct aq_channel *channel = &channels->all[i];
        const struct aq_channel_type *type = channel->type;
        if ((uint32_t)type->kind != frame->kind) continue;
        if (!(type->direction & here) || (type->bare && frame->body_bytes != 0)) break;
        return type->arrived ? type->arrived(channel, frame) : aq_channel_keep(channel, frame, 0);
    }
    return aq_channel_unexpected(channels, frame);
}

bool aq_channels_left(const struct aq_channels *channels)
{
    for (uint32_t i = 0; i < AQ_CHANNELS; i++)
        if (types[i]->left && types[i]->left(&channels->all[i])) return true;
    return false;
}

bool aq_channel_left(const struct aq_channel *channel)
{
    return channel->count > 0;
}

struct aq_channel_item aq_channel_take(struct aq_channel *channel)
{
    AQ_ASSERT(channel->count > 0);
    const struct aq_channel_item item = *aq_channel_at(channel, 0);
    channel->first = (channel->first + 1) % channel->bound;
    channel->count--;
    return item;
}

void aq_channel_release(struct aq_channel *channel, const struct aq_channel_item *item)
{
    if (item->spilled)
        aq_unmap((void *)(uintptr_t)item->frame.body, item->frame.body_bytes);
    else if (item->frame.body)
        aq_link_release(channel->set->config.link, item->frame.body);
}

enum aq_status aq_channel_spill(struct aq_channel *channel)
{
    for (uint32_t i = 0; i < channel->count; i++) {
        struct aq_channel_item *item = aq_channel_at(channel, i);
        if (item->spilled || !item->frame.body) continue;
        void *copy;
        AQ_TRY(aq_map(item->frame.body_bytes, &copy));
        memcpy(copy, item->frame.body, item->frame.body_bytes);
        aq_link_release(channel->set->config.link, item->frame.body);
        item->frame.body = copy;
        item->spilled = true;
    }
    return AQ_OK;
}
