/*
 * group_links.c -- a group over links: one frame of kind CHUNK a message.
 *
 * Everything that comes is taken from all links whenever one is waited for, and queued in the link's own receive slots,
 * so that the end of any link is noticed at once. A slot is given back when its message has been used.
 */
#include <stdio.h>
#include <string.h>

#include "group.h"
#include "link_state.h"

static const char *const AREA = "group";

struct peer {
    struct aq_link *link;
    struct aq_frame queue[AQ_GROUP_FRAMES]; /* received, not yet taken */
    uint32_t head, tail;                    /* counts                  */
    uint64_t sent;                          /* messages out of our hands */
    bool left;                              /* said BYE                */
    bool ended;                             /* the link has, somehow   */
};

struct links {
    struct aq_group group;
    struct aq_eventcount *eventcount;
    struct peer *peers;
    enum aq_status (*meanwhile)(void *context);
    void *context;
    uint64_t look_ns, first; /* aq_group_config */
};

static enum aq_status handle(struct links *links, uint32_t rank, const struct aq_link_event *event)
{
    struct peer *peer = &links->peers[rank];
    switch (event->kind) {
    case AQ_LINK_SENT:
        peer->sent++;
        return AQ_OK;
    case AQ_LINK_CLOSED:
        peer->ended = true;
        if (event->status != AQ_CLOSED) return event->status; /* the link has said why */
        peer->left = true;
        return AQ_OK;
    default:
        break;
    }
    const struct aq_frame *frame = &event->frame;
    /* Of the group before; where there was none, a frame before the first is wrong like any other. */
    if (frame->kind == AQ_FRAME_CHUNK && frame->body && links->first > 0 && frame->step <= links->first) {
        aq_link_release(peer->link, frame->body);
        return AQ_OK;
    }
    if (frame->kind == AQ_FRAME_CHUNK && frame->body && peer->tail - peer->head < AQ_GROUP_FRAMES) {
        peer->queue[peer->tail++ % AQ_GROUP_FRAMES] = *frame;
        return AQ_OK;
    }
    if (frame->body) aq_link_release(peer->link, frame->body);
    return aq_fail(AQ_PROTO, AREA,
                   "rank %u sent a %s frame of %u bytes over a link of the group, where only CHUNK frames are allowed",
                   rank, aq_frame_kind_text(frame->kind), frame->body_bytes);
}

/* Everything that has happened on all links. */
static enum aq_status pump(struct links *links)
{
    struct aq_link_event event;
    for (uint32_t rank = 0; rank < links->group.size; rank++) {
        if (rank == links->group.rank) continue;
        while (aq_link_poll(links->peers[rank].link, &event) == AQ_OK)
            AQ_TRY(handle(links, rank, &event));
    }
    return AQ_OK;
}

enum aq_status aq_group_links_watch(struct aq_group *group)
{
    return pump((struct links *)group);
}

enum aq_status aq_group_leave(struct aq_group *group, uint64_t *ended)
{
    struct links *links = (struct links *)group;
    struct aq_link_event event;
    enum aq_status status = AQ_OK;
    *ended = 0;
    for (uint32_t rank = 0; rank < group->size; rank++) {
        struct peer *peer = &links->peers[rank];
        if (rank == group->rank) continue;
        if (peer->link->halted) peer->ended = true;
        while (!peer->ended && aq_link_poll(peer->link, &event) == AQ_OK)
            if (handle(links, rank, &event) != AQ_OK) peer->ended = true; /* it was logged */
        if (peer->ended)
            *ended |= UINT64_C(1) << rank;
        else if (peer->sent < group->posted[rank])
            status = AQ_AGAIN;
    }
    return status;
}

/* Sleep until something happens that this rank did, or do something else. */
static enum aq_status sleep_on(struct links *links, uint32_t seen, uint32_t rank, uint64_t deadline_ns)
{
    if (links->peers[rank].left)
        return aq_fail(AQ_CLOSED, AREA,
                       "rank %u ended normally in the middle of collective %llu: does it run another plan?", rank,
                       (unsigned long long)links->group.number);
    const enum aq_status done = links->meanwhile ? links->meanwhile(links->context) : AQ_AGAIN;
    if (done != AQ_AGAIN) return done;
    const uint64_t begin_ns = aq_clock_ns(), look_ns = links->look_ns ? begin_ns + links->look_ns : AQ_NEVER;
    const enum aq_status status =
        aq_eventcount_wait(links->eventcount, seen, look_ns < deadline_ns ? look_ns : deadline_ns);
    aq_group_count_wait(&links->group, begin_ns);
    return status == AQ_OK || aq_clock_ns() < deadline_ns ? AQ_OK : aq_group_silent(&links->group, rank);
}

static enum aq_status links_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body)
{
    struct links *links = (struct links *)group;
    const uint64_t deadline_ns = aq_clock_after(group->silence_ns);
    const struct aq_frame frame = {.kind = AQ_FRAME_CHUNK,
                                   .flags = (uint16_t)(chunk->collective | chunk->phase << 8),
                                   .micro_batch = chunk->piece,
                                   .step = chunk->number,
                                   .argument = chunk->argument,
                                   .body_bytes = chunk->bytes,
                                   .body = body};
    for (;;) {
        const uint32_t seen = aq_eventcount_read(links->eventcount);
        const enum aq_status status = aq_link_send(links->peers[to].link, &frame, 0);
        if (status == AQ_CLOSED)
            return aq_fail(AQ_CLOSED, AREA,
                           "rank %u ended normally, but collective %llu needs it: does it run another plan?", to,
                           (unsigned long long)group->number);
        if (status != AQ_AGAIN) return status;
        const uint64_t sent = links->peers[to].sent;
        AQ_TRY(pump(links));
        if (links->peers[to].sent == sent) AQ_TRY(sleep_on(links, seen, to, deadline_ns));
    }
}

static enum aq_status links_settle(struct aq_group *group, uint32_t to, uint64_t count)
{
    struct links *links = (struct links *)group;
    const uint64_t deadline_ns = aq_clock_after(group->silence_ns);
    for (;;) {
        if (links->peers[to].sent >= count) return AQ_OK;
        const uint32_t seen = aq_eventcount_read(links->eventcount);
        AQ_TRY(pump(links));
        if (links->peers[to].sent < count) AQ_TRY(sleep_on(links, seen, to, deadline_ns));
    }
}

static enum aq_status links_take(struct aq_group *group, uint32_t from, struct aq_chunk *chunk, const void **body)
{
    struct links *links = (struct links *)group;
    struct peer *peer = &links->peers[from];
    const uint64_t deadline_ns = aq_clock_after(group->silence_ns);
    while (peer->head == peer->tail) {
        const uint32_t seen = aq_eventcount_read(links->eventcount);
        AQ_TRY(pump(links));
        if (peer->head == peer->tail) AQ_TRY(sleep_on(links, seen, from, deadline_ns));
    }
    const struct aq_frame *frame = &peer->queue[peer->head++ % AQ_GROUP_FRAMES];
    *chunk = (struct aq_chunk){.number = frame->step,
                               .argument = frame->argument,
                               .piece = frame->micro_batch,
                               .bytes = frame->body_bytes,
                               .collective = (uint8_t)frame->flags,
                               .phase = (uint8_t)(frame->flags >> 8)};
    *body = frame->body;
    return AQ_OK;
}

static void links_give(struct aq_group *group, uint32_t from, const void *body)
{
    aq_link_release(((struct links *)group)->peers[from].link, body);
}

static void links_close(struct aq_group *group)
{
    struct links *links = (struct links *)group;
    for (uint32_t rank = 0; links->peers && rank < group->size; rank++) {
        struct peer *peer = &links->peers[rank];
        for (; peer->head != peer->tail; peer->head++)
            aq_link_release(peer->link, peer->queue[peer->head % AQ_GROUP_FRAMES].body);
    }
    aq_group_deinit(group);
    aq_free(links->peers);
    aq_free(links);
}

static const struct aq_group_ops LINKS_OPS = {
    .name = "links",
    .post = links_post,
    .settle = links_settle,
    .take = links_take,
    .give = links_give,
    .close = links_close,
};

void aq_group_link_config(uint32_t piece_bytes, struct aq_link_config *config)
{
    config->body_bytes_max = piece_bytes;
    config->send_frames = AQ_GROUP_FRAMES;
    config->receive_slots = AQ_GROUP_FRAMES;
}

static enum aq_status check_link(const struct aq_group_config *config, uint32_t rank)
{
    const struct aq_link *link = config->links ? config->links[rank] : NULL;
    if (!link) return aq_fail(AQ_INVAL, AREA, "rank %u of the group has no link to rank %u", config->rank, rank);
    /* In a job the links' ranks are those of all workers, in the group's order; the handshake proved them. */
    if ((aq_link_peer_rank(link) < link->config.rank) != (rank < config->rank))
        return aq_fail(AQ_INVAL, AREA, "the link to rank %u of the group leads to %s", rank, aq_link_peer_name(link));
    const uint32_t slots = link->config.receive_slots, theirs = link->peer.receive_slots;
    if (link->config.send_frames < AQ_GROUP_FRAMES || slots != AQ_GROUP_FRAMES || theirs < AQ_GROUP_FRAMES)
        return aq_fail(AQ_INVAL, AREA,
                       "the link to %s has %u send_frames and %u receive_slots, %u at the other end; a group needs %d "
                       "of each (aq_group_link_config)",
                       link->name, link->config.send_frames, slots, theirs, AQ_GROUP_FRAMES);
    if (link->config.body_bytes_max < config->piece_bytes || link->peer.body_bytes_max < config->piece_bytes)
        return aq_fail(AQ_INVAL, AREA,
                       "pieces of %u bytes do not fit the link to %s: body_bytes_max is %u here and %u there",
                       config->piece_bytes, link->name, link->config.body_bytes_max, link->peer.body_bytes_max);
    return AQ_OK;
}

enum aq_status aq_group_open_links(const struct aq_group_config *config, struct aq_group **out)
{
    struct links *links;
    AQ_TRY(AQ_NEW(1, &links));
    enum aq_status status;
    AQ_TRY_GOTO(aq_group_init(&links->group, &LINKS_OPS, false, config), out);
    AQ_TRY_GOTO(AQ_NEW(config->size, &links->peers), out);
    links->eventcount = config->eventcount;
    links->meanwhile = config->meanwhile;
    links->context = config->context;
    links->look_ns = config->look_ns;
    links->first = config->first;
    for (uint32_t rank = 0; rank < config->size; rank++) {
        if (rank == config->rank) continue;
        AQ_TRY_GOTO(check_link(config, rank), out);
        links->peers[rank].link = config->links[rank];
    }
    if (config->size > 1 && !config->eventcount)
        status = aq_fail(AQ_INVAL, AREA, "a group of links needs an event to signal");
out:
    if (status != AQ_OK)
        links_close(&links->group);
    else
        *out = &links->group;
    return status;
}
