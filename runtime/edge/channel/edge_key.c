/* edge_key.c -- see the header. */
#include "edge_key.h"

#include <assert.h>
#include <string.h>

#include "channel.h"

enum { PART_BYTES = 16, PARTS = AQ_CACHE_KEY_BYTES / PART_BYTES };
static_assert((int)PARTS * (int)PART_BYTES == (int)AQ_CACHE_KEY_BYTES, "whole parts");

enum aq_status aq_edge_send_key(struct aq_edge *edge, const uint8_t key[AQ_CACHE_KEY_BYTES])
{
    for (uint32_t i = 0; i < PARTS; i++) {
        struct aq_frame frame = {.kind = AQ_FRAME_KEY, .flags = 1, .micro_batch = i};
        memcpy(&frame.step, key + (size_t)i * PART_BYTES, sizeof frame.step);
        memcpy(&frame.argument, key + (size_t)i * PART_BYTES + sizeof frame.step, sizeof frame.argument);
        AQ_TRY(aq_channel_post(aq_edge_channel(edge, AQ_CHANNEL_ID_key), &frame, AQ_CHANNEL_BARE));
    }
    return AQ_OK;
}

static enum aq_status part(struct aq_link *link, const struct aq_frame *frame, uint32_t number, uint8_t *at)
{
    const bool good =
        frame->kind == AQ_FRAME_KEY && frame->flags == 1 && frame->micro_batch == number && frame->body_bytes == 0;
    if (frame->body) aq_link_release(link, frame->body);
    if (!good)
        return aq_fail(AQ_PROTO, "edge",
                       "stage %u sent a frame (kind %u, %u bytes) where part %u of the key of its cache is expected",
                       aq_link_peer_rank(link), frame->kind, frame->body_bytes, number);
    memcpy(at, &frame->step, sizeof frame->step);
    memcpy(at + sizeof frame->step, &frame->argument, sizeof frame->argument);
    return AQ_OK;
}

/* All parts, one behind the other. */
static enum aq_status parts_take(struct aq_link *link, struct aq_eventcount *eventcount, uint64_t deadline_ns,
                                 uint8_t *parts)
{
    for (uint32_t here = 0; here < PARTS;) {
        struct aq_link_event event;
        const uint32_t seen = aq_eventcount_read(eventcount);
        const enum aq_status status = aq_link_poll(link, &event);
        if (status == AQ_AGAIN) {
            if (aq_clock_ns() >= deadline_ns)
                return aq_fail(AQ_TIMEOUT, "edge", "stage %u does not send the key of its cache (split.seal)",
                               aq_link_peer_rank(link));
            (void)aq_eventcount_wait(eventcount, seen, deadline_ns);
            continue;
        }
        AQ_TRY(status);
        if (event.kind == AQ_LINK_CLOSED)
            return aq_fail(event.status == AQ_OK ? AQ_CLOSED : event.status, "edge",
                           "the link to stage %u ended before the key of its cache came: %s", aq_link_peer_rank(link),
                           event.text ? event.text : "");
        if (event.kind != AQ_LINK_RECEIVED) continue;
        AQ_TRY(part(link, &event.frame, here, parts + (size_t)here * PART_BYTES));
        here++;
    }
    return AQ_OK;
}

enum aq_status aq_edge_take_key(struct aq_link *link, struct aq_eventcount *eventcount, uint64_t deadline_ns,
                                uint8_t key[AQ_CACHE_KEY_BYTES])
{
    uint8_t parts[AQ_CACHE_KEY_BYTES];
    const enum aq_status status = parts_take(link, eventcount, deadline_ns, parts);
    if (status == AQ_OK) memcpy(key, parts, sizeof parts);
    explicit_bzero(parts, sizeof parts); /* also of a key that came by half */
    return status;
}

/* The parts are the first frames of the link, and taken before there is an edge: none may come to one. */
const struct aq_channel_type aq_channel_key = {.kind = AQ_FRAME_KEY, .direction = AQ_CHANNEL_DOWN, .bare = true};
