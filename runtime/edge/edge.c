/*
 * edge.c -- opening, pumping and draining an edge. Its frames go through channels (channel.h): those of micro-batches
 * in edge_frames.c, which edge_work.c codes; lost messages are fetched in edge_heal.c.
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

/* In one piece of memory: send buffers, vectors, and the body of zeroes. */
static enum aq_status open_channels(struct aq_edge *edge)
{
    const struct aq_edge_shape *shape = &edge->shape;
    void *memory;
    edge->pages = aq_device_pages(edge->config.device);
    AQ_TRY(aq_pages_take(&edge->pages, edge->size.buffer_bytes, &memory));
    edge->bodies = memory;
    float *vectors = (float *)(void *)(edge->bodies + shape->send_frames * edge->size.body_bytes_max);
    edge->cached_body = (uint8_t *)(vectors + shape->shared + shape->summed + shape->tied);
    if (edge->size.cached_bytes) memset(edge->cached_body, 0, edge->size.cached_bytes);
    const struct aq_channels_config config = {.edge = edge,
                                              .shape = shape,
                                              .sender = edge->config.sender,
                                              .link = edge->config.link,
                                              .mirror = edge->config.mirror,
                                              .bodies = edge->bodies,
                                              .body_bytes = edge->size.body_bytes_max,
                                              .vectors = vectors};
    return aq_channels_open(&config, &edge->channels);
}

struct aq_channel *aq_edge_channel(const struct aq_edge *edge, enum aq_channel_id id)
{
    return &edge->channels->all[id];
}

enum aq_status aq_edge_open(const struct aq_edge_config *config, struct aq_edge **out)
{
    const struct aq_edge_shape *shape = config->shape;
    struct aq_edge_size size;
    if (shape->send_frames == 0 || shape->send_frames > AQ_CHANNEL_BODIES_MAX)
        return aq_fail(AQ_INVAL, "edge", "link.send_frames is %u: from 1 to %d", shape->send_frames,
                       AQ_CHANNEL_BODIES_MAX);
    if (shape->receive_slots > AQ_CHANNEL_FRAMES_MAX)
        return aq_fail(AQ_INVAL, "edge", "link.receive_slots is %u: at most %d", shape->receive_slots,
                       AQ_CHANNEL_FRAMES_MAX);
    AQ_TRY(aq_edge_size_of(shape, &size));
    struct aq_edge *edge;
    AQ_TRY(AQ_NEW(1, &edge));
    edge->config = *config;
    edge->shape = *shape;
    edge->config.shape = &edge->shape;
    edge->size = size;
    edge->values = (uint64_t)shape->rows * shape->columns;
    edge->asks_left = shape->messages + shape->batch;
    enum aq_status status;
    AQ_TRY_GOTO(open_codecs(edge), out);
    AQ_TRY_GOTO(open_held(edge), out);
    AQ_TRY_GOTO(aq_edge_works_open(edge), out);
    AQ_TRY_GOTO(open_channels(edge), out);
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
    aq_edge_works_close(edge);
    aq_channels_close(edge->channels);
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
            AQ_TRY(aq_channels_arrived(edge->channels, &event.frame));
        } else if (event.kind == AQ_LINK_SENT) {
            aq_channels_sent(edge->channels, event.token);
        } else {
            AQ_TRY(link_ended(edge, &event));
        }
    }
}

enum aq_status aq_edge_pump(struct aq_edge *edge)
{
    AQ_TRY(aq_edge_link_pump(edge));
    AQ_TRY(aq_edge_carry_advance(edge));
    AQ_TRY(aq_edge_works_advance(edge));
    AQ_TRY(aq_edge_fetches_serve(edge));
    /* Frames that came before the end of the link are still handed out; then the end counts. */
    const bool left = aq_channels_left(edge->channels) || aq_edge_decoding(edge);
    return edge->ended == AQ_CLOSED && left ? AQ_OK : edge->ended;
}

enum aq_status aq_edge_drain(struct aq_edge *edge, uint64_t deadline_ns)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(edge->config.eventcount);
        const enum aq_status status = aq_edge_pump(edge);
        if (status == AQ_CLOSED) return AQ_OK; /* the other side has everything and has ended the link */
        AQ_TRY(status);
        const bool busy = aq_edge_busy_since(edge) || aq_edge_carrying(edge);
        if (edge->channels->out == 0 && edge->asking.count == 0 && !edge->remaking && !busy) {
            const enum aq_status farewell = aq_edge_carry_shutdown(edge);
            if (farewell != AQ_AGAIN) return farewell;
        }
        const uint64_t soon = busy ? aq_clock_after(AQ_EDGE_POLL_NS) : deadline_ns;
        const enum aq_status waited =
            aq_eventcount_wait(edge->config.eventcount, seen, soon < deadline_ns ? soon : deadline_ns);
        if (waited != AQ_TIMEOUT || soon >= deadline_ns) AQ_TRY(waited);
    }
}
