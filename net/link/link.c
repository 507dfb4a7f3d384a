/*
 * link.c -- the caller's side of a link: make, send, poll, release, finish, abort, close.
 *
 * Nothing here touches the stream: frames and slots change hands by tokens (link_state.h), and the loop does the rest.
 */
#include <stdio.h>
#include <string.h>

#include "congestion.h"
#include "heal.h"
#include "link_state.h"

static const char *const AREA = "net";

void aq_link_config_default(struct aq_link_config *out)
{
    *out = (struct aq_link_config){.peer_rank = UINT32_MAX,
                                   .edge = UINT32_MAX,
                                   .body_bytes_max = 1 << 20,
                                   .send_frames = 8,
                                   .congestion = "auto",
                                   .receive_slots = 4,
                                   .heartbeat_ns = UINT64_C(2000000000),
                                   .silence_ns_max = UINT64_C(20000000000)};
}

enum aq_status aq_link_config_check(const struct aq_link_config *config)
{
    if (config->send_frames == 0 || config->send_frames > AQ_LINK_SEND_FRAMES_MAX)
        return aq_fail(AQ_INVAL, AREA, "send_frames %u: must be 1 to %d", config->send_frames, AQ_LINK_SEND_FRAMES_MAX);
    if (config->receive_slots > AQ_LINK_RECEIVE_SLOTS_MAX)
        return aq_fail(AQ_INVAL, AREA, "receive_slots %u: at most %d", config->receive_slots,
                       AQ_LINK_RECEIVE_SLOTS_MAX);
    if (!(config->rate_mbps >= 0) || config->rate_mbps > 1e6)
        return aq_fail(AQ_INVAL, AREA, "rate_mbps %g: must be 0 (no pacing) to 1000000", config->rate_mbps);
    if (config->rate_mbps > 0 && config->rate_mbps < AQ_LINK_RATE_MBPS_MIN)
        return aq_fail(AQ_INVAL, AREA, "rate_mbps %g: the kernel cannot pace below %g", config->rate_mbps,
                       AQ_LINK_RATE_MBPS_MIN);
    if (config->streams > AQ_LINK_STREAMS_MAX)
        return aq_fail(AQ_INVAL, AREA, "streams %u: must be at most %d; 0 lets the link choose", config->streams,
                       AQ_LINK_STREAMS_MAX);
    if (config->body_bytes_max > AQ_LINK_BODY_BYTES_MAX)
        return aq_fail(AQ_INVAL, AREA, "body_bytes_max %u: at most %d", config->body_bytes_max, AQ_LINK_BODY_BYTES_MAX);
    return aq_congestion_check(config->congestion);
}

enum aq_status aq_link_congestion_check(const char *name)
{
    return aq_congestion_check(name);
}

static uint32_t power_of_two(uint32_t at_least)
{
    uint32_t value = 4;
    while (value < at_least)
        value *= 2;
    return value;
}

static uint32_t record_count(const struct aq_link_config *config)
{
    return config->receive_slots + AQ_LINK_EMPTY_FRAMES;
}

/* All memory of a link but itself and the two rings. */
static void place(struct aq_link *link, struct aq_arena *arena, const struct aq_link_config *config, bool packs)
{
    link->entries = aq_arena_take(arena, config->send_frames * sizeof *link->entries);
    link->entry_free = aq_arena_take(arena, config->send_frames * sizeof *link->entry_free);
    link->queue = aq_arena_take(arena, power_of_two(config->send_frames) * sizeof *link->queue);
    link->records = aq_arena_take(arena, record_count(config) * sizeof *link->records);
    link->record_free = aq_arena_take(arena, record_count(config) * sizeof *link->record_free);
    link->slot_lent = aq_arena_take(arena, config->receive_slots);
    if (packs) aq_packer_place(&link->packer, arena, config->body_bytes_max);
    /* The bulk: the slots. */
    aq_reader_place(&link->reader, arena, config->body_bytes_max, config->receive_slots, packs);
}

static size_t memory_bytes(const struct aq_link_config *config, bool packs)
{
    struct aq_link measured;
    struct aq_arena arena = {0};
    aq_arena_take(&arena, sizeof measured);
    place(&measured, &arena, config, packs);
    return arena.used;
}

static uint32_t ring_slots(const struct aq_link_config *config)
{
    /* to_loop: all entries, slots and records at once, FINISH and ABORT; to_caller needs less. */
    return power_of_two(config->send_frames + config->receive_slots + record_count(config) + 8);
}

uint64_t aq_link_measure(const struct aq_link_config *config)
{
    return memory_bytes(config, config->entropy != AQ_LINK_ENTROPY_OFF) +
           2 * (uint64_t)ring_slots(config) * sizeof(uint64_t);
}

/* Whole sends, so that none is cut short by a gap. */
static uint32_t part_bytes(double rate_mbps, uint32_t chunk_bytes)
{
    const double bytes = rate_mbps * 1e6 / 8 * AQ_LINK_PART_NS * 1e-9;
    const double chunks = bytes / chunk_bytes;
    return chunks < 2 ? chunk_bytes : (uint32_t)chunks * chunk_bytes;
}

static void fill(struct aq_link *link, struct aq_net *net, const struct aq_link_config *config,
                 struct aq_byte_stream *stream, const struct aq_hello *peer, struct aq_heal *heal,
                 struct aq_entropy *entropy)
{
    link->net = net;
    link->heal = heal;
    link->heard = true;
    link->config = *config;
    link->peer = *peer;
    link->stream = stream;
    link->direct = stream->ops->direct(stream);
    stream->ops->path(stream, &link->path);
    snprintf(link->name, sizeof link->name, "rank %u at %s, edge %d", peer->rank, stream->name, (int)config->edge);
    link->entry_free_count = config->send_frames;
    for (uint32_t i = 0; i < config->send_frames; i++)
        link->entry_free[i] = config->send_frames - 1 - i;
    link->record_free_count = record_count(config);
    for (uint32_t i = 0; i < link->record_free_count; i++)
        link->record_free[i] = i;
    link->queue_mask = power_of_two(config->send_frames) - 1;
    link->receive_op.owner = link->send_op.owner = link;
    link->receive_op.fd = link->send_op.fd = -1;
    link->receive_wake_ns = link->send_wake_ns = AQ_NEVER;
    const double paced_bytes = config->rate_mbps * 1e6 / 8 * 1e-3;
    link->chunk_bytes = config->rate_mbps == 0 || paced_bytes > AQ_LINK_CHUNK_BYTES ? AQ_LINK_CHUNK_BYTES
                        : paced_bytes < AQ_LINK_CHUNK_BYTES_MIN                     ? AQ_LINK_CHUNK_BYTES_MIN
                                                                                    : (uint32_t)paced_bytes;
    if (peer->features & AQ_FEATURE_PARTS) link->part_bytes = part_bytes(config->rate_mbps, link->chunk_bytes);
    link->credits = peer->receive_slots;
    link->credit_granted = config->receive_slots;
    link->received_ns = link->sent_ns = aq_clock_ns();
    link->reader.from = peer->rank;
    link->reader.edge = config->edge;
    link->reader.plan_hash = config->plan_hash;
    link->reader.body_bytes_max = config->body_bytes_max;
    aq_reader_start(&link->reader);
    link->reader.entropy = entropy;
    link->reader.parts = peer->features & AQ_FEATURE_PARTS;
    link->ahead_entry = UINT32_MAX;
    aq_packer_start(&link->packer, config, aq_byte_stream_local(stream), entropy);
}

static void free_link(struct aq_link *link)
{
    aq_ring_close(link->to_loop);
    aq_ring_close(link->to_caller);
    const struct aq_pages pages = link->config.pages; /* the link is in that memory */
    aq_pages_give(&pages, link->memory, link->memory_bytes);
}

enum aq_status aq_link_make(struct aq_net *net, const struct aq_link_config *config, struct aq_byte_stream *stream,
                            const struct aq_hello *peer, struct aq_heal *heal, struct aq_link **out)
{
    const bool packs = config->entropy != AQ_LINK_ENTROPY_OFF && (peer->features & AQ_FEATURE_PACK);
    const size_t bytes = memory_bytes(config, packs);
    enum aq_status status = AQ_OK;
    struct aq_link *link = NULL;
    void *memory;
    if (net->open_count == net->config.links_max) {
        status = aq_fail(AQ_NOSPC, AREA, "this net already has links_max = %u links and listeners", net->open_count);
        goto out;
    }
    if (packs && !net->entropy) AQ_TRY_GOTO(aq_entropy_open(&net->entropy), out);
    /* Slots and buffers hold the largest body; a small job uses the first pages of few of them. */
    AQ_TRY_GOTO(aq_pages_take_untouched(&config->pages, bytes, &memory), out);
    struct aq_arena arena = {.base = memory, .bytes = bytes};
    link = aq_arena_take(&arena, sizeof *link);
    place(link, &arena, config, packs);
    link->memory = memory;
    link->memory_bytes = bytes;
    fill(link, net, config, stream, peer, heal, packs ? net->entropy : NULL);
    AQ_TRY_GOTO(aq_ring_open(ring_slots(config), &link->to_loop), out);
    AQ_TRY_GOTO(aq_ring_open(ring_slots(config), &link->to_caller), out);
    AQ_TRY_GOTO(aq_byte_stream_trust(stream), out);
    if (config->rate_mbps > 0) AQ_TRY_GOTO(stream->ops->pace(stream, config->rate_mbps), out);
    aq_log(AREA, 2, "link=%p to=\"%s\" rate_mbps=%g slots=%u credits=%u packs=%d", (void *)link, link->name,
           config->rate_mbps, config->receive_slots, peer->receive_slots, link->packer.entropy != NULL);
    link->next = net->links;
    net->links = link;
    net->open_count++;
    aq_net_add(net, link);
    *out = link;
out:
    if (status != AQ_OK) {
        if (link) free_link(link);
        aq_byte_stream_close(stream);
    }
    return status;
}

void aq_link_halt(struct aq_link *link)
{
    if (!link || link->halted) return;
    link->halted = true;
    aq_net_detach(link->net, link);
}

void aq_link_close(struct aq_link *link)
{
    if (!link) return;
    struct aq_net *net = link->net;
    aq_link_halt(link);
    struct aq_link **at = &net->links;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    net->open_count--;
    if (link->heal && link->heal->listener)
        aq_listener_link_gone(link->heal->listener);
    else
        aq_dialler_close(link->heal);
    free_link(link);
}

uint32_t aq_link_peer_rank(const struct aq_link *link)
{
    return link->peer.rank;
}

const char *aq_link_peer_name(const struct aq_link *link)
{
    return link->name;
}

static enum aq_status ended(struct aq_link *link)
{
    return (enum aq_status)atomic_load_explicit(&link->ended, memory_order_acquire); /* pairs with the loop's end */
}

static void push(struct aq_link *link, uint64_t token)
{
    const bool pushed = aq_ring_push(link->to_loop, token);
    AQ_ASSERT(pushed); /* the ring holds one token for every entry, slot and record */
}

enum aq_status aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token)
{
    const uint32_t theirs = link->peer.body_bytes_max, mine = link->config.body_bytes_max;
    if (frame->kind < AQ_FRAME_KIND_RUNTIME || frame->kind > AQ_FRAME_KIND_LAST)
        return aq_fail(AQ_INVAL, AREA, "link to %s: frame kind %u is not one of the runtime (16 to 31)", link->name,
                       frame->kind);
    if (frame->body_bytes > mine || frame->body_bytes > theirs)
        return aq_fail(AQ_INVAL, AREA, "link to %s: a %s of %u bytes; body_bytes_max is %u here and %u there",
                       link->name, aq_frame_kind_text(frame->kind), frame->body_bytes, mine, theirs);
    if (frame->body_bytes > 0 && link->peer.receive_slots == 0)
        return aq_fail(AQ_INVAL, AREA, "link to %s: the peer has no receive slots for a body", link->name);
    AQ_TRY(ended(link));
    if (link->entry_free_count == 0) return AQ_AGAIN;
    const uint32_t index = link->entry_free[--link->entry_free_count];
    link->entries[index] = (struct aq_link_entry){.frame = *frame, .token = token};
    push(link, token_of(TOKEN_SEND, index));
    aq_net_wake(link->net);
    return AQ_OK;
}

static void take_received(struct aq_link *link, uint32_t index, struct aq_link_event *out)
{
    *out = (struct aq_link_event){.kind = AQ_LINK_RECEIVED, .frame = link->records[index].frame};
    if (out->frame.body) {
        const size_t offset = (size_t)((const uint8_t *)out->frame.body - link->reader.slots);
        link->slot_lent[offset / link->reader.slot_bytes] = 1;
    }
    push(link, token_of(TOKEN_RECORD, index));
    /* Pairs with the loop's exchange in aq_link_receive: either it sees this record, or we see that it starves. */
    if (atomic_exchange_explicit(&link->starved, false, memory_order_acq_rel)) aq_net_wake(link->net);
}

enum aq_status aq_link_poll(struct aq_link *link, struct aq_link_event *out)
{
    uint64_t token;
    if (!aq_ring_pop(link->to_caller, &token)) return AQ_AGAIN;
    const uint32_t index = (uint32_t)token;
    switch (token >> 32) {
    case TOKEN_RECEIVED:
        take_received(link, index, out);
        break;
    case TOKEN_SENT:
        *out = (struct aq_link_event){.kind = AQ_LINK_SENT, .token = link->entries[index].token};
        link->entry_free[link->entry_free_count++] = index;
        break;
    default:
        AQ_ASSERT(token >> 32 == TOKEN_CLOSED);
        link->closed_told = true;
        *out = (struct aq_link_event){.kind = AQ_LINK_CLOSED, .status = ended(link), .text = link->text};
        break;
    }
    return AQ_OK;
}

void aq_link_release(struct aq_link *link, const void *body)
{
    const uint8_t *at = body;
    AQ_ASSERT(at >= link->reader.slots);
    const size_t slot = (size_t)(at - link->reader.slots) / link->reader.slot_bytes;
    AQ_ASSERT(slot < link->reader.slot_count);
    AQ_ASSERT(link->slot_lent[slot]);
    link->slot_lent[slot] = 0;
    push(link, token_of(TOKEN_RELEASE, (uint32_t)slot));
    aq_net_wake(link->net);
}

/* Poll, throw away, sleep: until CLOSED has come. */
static enum aq_status drain(struct aq_link *link, uint64_t deadline_ns)
{
    struct aq_link_event event;
    while (!link->closed_told) {
        const uint32_t seen = aq_eventcount_read(link->net->call_eventcount);
        if (aq_link_poll(link, &event) == AQ_OK) {
            if (event.kind == AQ_LINK_RECEIVED && event.frame.body) aq_link_release(link, event.frame.body);
            continue;
        }
        AQ_TRY(aq_eventcount_wait(link->net->call_eventcount, seen, deadline_ns));
    }
    return AQ_OK;
}

enum aq_status aq_link_finish(struct aq_link *link, uint64_t deadline_ns)
{
    push(link, token_of(TOKEN_FINISH, 0));
    aq_net_wake(link->net);
    if (drain(link, deadline_ns) != AQ_OK)
        return aq_fail(AQ_TIMEOUT, AREA, "link to %s: the peer sent no BYE before the deadline", link->name);
    const enum aq_status status = ended(link);
    return status == AQ_CLOSED ? AQ_OK : status;
}

enum aq_status aq_link_abort(struct aq_link *link, enum aq_status cause, const char *text, uint64_t deadline_ns)
{
    if (link->abort_bytes > 0 || ended(link) != AQ_OK) return AQ_OK; /* reported already, or no peer to report it to */
    link->abort_bytes = aq_abort_encode(cause, text, link->abort_body);
    link->abort_cause = cause;
    link->abort_deadline_ns = deadline_ns;
    push(link, token_of(TOKEN_ABORT, 0));
    aq_net_wake(link->net);
    return drain(link, deadline_ns) == AQ_OK ? AQ_OK : AQ_TIMEOUT;
}

void aq_link_stats(const struct aq_link *link, struct aq_link_stats *out)
{
    const struct aq_link_counters *c = &link->counters;
#define COPY(name) out->name = atomic_load_explicit(&c->name, memory_order_relaxed)
    COPY(sent_frames);
    COPY(sent_body_bytes);
    COPY(sent_wire_bytes);
    COPY(received_frames);
    COPY(received_body_bytes);
    COPY(received_wire_bytes);
    COPY(sent_packed_bytes);
    for (uint32_t i = 0; i < AQ_LINK_KINDS; i++) {
        out->sent_kinds[i].body = atomic_load_explicit(&c->sent_kind_body[i], memory_order_relaxed);
        out->sent_kinds[i].packed = atomic_load_explicit(&c->sent_kind_packed[i], memory_order_relaxed);
    }
    COPY(received_packed_bytes);
    COPY(packing_ns);
    COPY(busy_ns);
    COPY(credit_wait_ns);
    COPY(round_trip_ns);
    COPY(heals);
    COPY(outage_ns);
    COPY(receive_ns);
    COPY(path_bytes);
    COPY(delivered_bytes);
    COPY(again_bytes);
    COPY(path_asked_ns);
#undef COPY
    out->path_ns = link->path.round_trip_ns;
    out->segment_bytes = link->path.segment_bytes;
    out->streams = link->path.streams ? link->path.streams : 1;
    memcpy(out->congestion, link->path.congestion, sizeof out->congestion);
    const uint64_t begun = atomic_load_explicit(&c->receive_begun_ns, memory_order_relaxed);
    if (begun > 0) out->receive_ns += aq_clock_ns() - begun;
}
