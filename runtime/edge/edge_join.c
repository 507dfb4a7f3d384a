/*
 * edge_join.c -- both ends of an edge choose, over its link, what carries bodies between them.
 *
 * If the manifest leaves it open, or asks for a transport of GPUs (aq_job_edge_transport), both ends exchange their
 * facts, which determine what to try. CUDA IPC comes first, if both are on GPUs of one machine: each end offers the
 * memory that its bodies leave from, maps the other's, and reports whether it could; both must. Next is NCCL, if each
 * has its own GPU: the end of stage e makes an id for each way, and both open their pairs. Else bodies stay on the
 * link.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "edge_carry.h"

enum { PIECE_BYTES = 16, PIECES = AQ_NCCL_ID_BYTES / PIECE_BYTES, NAME_BYTES = 64 };
static_assert((int)AQ_PAIR_OFFER_BYTES == (int)AQ_NCCL_ID_BYTES, "ids and offers travel alike");
#define JOIN_NS (600ull * 1000000000) /* the neighbour may be loading, or joining others */

static uint32_t peer_stage(const struct aq_edge *edge)
{
    return edge->shape.edge + (edge->config.sender ? 1 : 0);
}

/* --- what is told ----------------------------------------------------------------------------------------------- */

/* Both ends compute it from the facts that they exchanged. */
static bool tries_ipc(const struct aq_edge_carry *carry)
{
    const bool wanted = carry->asked == AQ_TRANSPORT_AUTO || carry->asked == AQ_TRANSPORT_IPC;
    return wanted && carry->mine.gpu && carry->theirs.gpu && carry->mine.machine == carry->theirs.machine;
}

static bool told_joining(struct aq_edge_carry *carry, bool sender, const struct aq_frame *frame)
{
    if (frame->flags == AQ_EDGE_SAYS_FACTS && !carry->told) {
        carry->theirs =
            (struct aq_nccl_rank){.gpu = frame->argument, .machine = frame->step, .built = frame->micro_batch};
        return carry->told = true;
    }
    if (!carry->told) return false;
    if (frame->flags == AQ_EDGE_SAYS_MAPPED && tries_ipc(carry) && !carry->answered && frame->argument <= 1) {
        carry->mapped_there = frame->argument == 1;
        return carry->answered = true;
    }
    const bool comes = !sender || (tries_ipc(carry) && !carry->answered); /* an id, or an offer */
    if (frame->flags != AQ_EDGE_SAYS_PIECE || !comes || carry->piece_count == PIECES ||
        frame->micro_batch != carry->piece_count)
        return false;
    uint8_t *at = carry->pieces + (size_t)carry->piece_count++ * PIECE_BYTES;
    memcpy(at, &frame->step, sizeof frame->step);
    memcpy(at + sizeof frame->step, &frame->argument, sizeof frame->argument);
    return true;
}

static enum aq_status control_arrived(struct aq_channel *channel, const struct aq_frame *frame)
{
    struct aq_edge *edge = channel->set->config.edge;
    struct aq_edge_carry *carry = edge->carry;
    enum aq_status status = AQ_OK;
    const bool good = carry && frame->body_bytes == 0 &&
                      (carry->ready || carry->unmapped_here ? aq_edge_carry_told(edge, frame, &status)
                                                            : told_joining(carry, edge->config.sender, frame));
    if (good) return status;
    if (frame->body) aq_link_release(edge->config.link, frame->body);
    return aq_fail(AQ_PROTO, "edge",
                   "edge %u: stage %u answers a question about the transport of bodies (%u) that was not asked",
                   edge->shape.edge, peer_stage(edge), frame->flags);
}

const struct aq_channel_type aq_channel_control = {
    .kind = AQ_FRAME_CONTROL, .direction = AQ_CHANNEL_BOTH, .arrived = control_arrived};

enum aq_status aq_edge_join_wait(struct aq_edge *edge, uint64_t deadline_ns, const char *what)
{
    const uint32_t seen = aq_eventcount_read(edge->config.eventcount);
    AQ_TRY(aq_edge_pump(edge));
    if (aq_clock_ns() >= deadline_ns)
        return aq_fail(AQ_TIMEOUT, "edge", "edge %u: waited %llu s for stage %u to %s", edge->shape.edge,
                       JOIN_NS / 1000000000, peer_stage(edge), what);
    const enum aq_status status = aq_eventcount_wait(edge->config.eventcount, seen, aq_clock_after(AQ_EDGE_POLL_NS));
    return status == AQ_TIMEOUT ? AQ_OK : status;
}

static enum aq_status say(struct aq_edge *edge, const struct aq_frame *frame, uint64_t deadline_ns)
{
    struct aq_channel *channel = aq_edge_channel(edge, AQ_CHANNEL_ID_control);
    for (;;) {
        const enum aq_status status = aq_channel_post(channel, frame, AQ_CHANNEL_BARE);
        if (status != AQ_AGAIN) return status;
        AQ_TRY(aq_edge_join_wait(edge, deadline_ns, "take what it is told"));
    }
}

/* Nobody goes before the other has heard: else it hears of an end that left instead. */
static enum aq_status exchange_facts(struct aq_edge *edge, uint64_t deadline_ns)
{
    const struct aq_nccl_rank *mine = &edge->carry->mine;
    const struct aq_frame facts = {.kind = AQ_FRAME_CONTROL,
                                   .flags = AQ_EDGE_SAYS_FACTS,
                                   .argument = mine->gpu,
                                   .step = mine->machine,
                                   .micro_batch = mine->built};
    AQ_TRY(say(edge, &facts, deadline_ns));
    while (!edge->carry->told || edge->channels->out > 0)
        AQ_TRY(aq_edge_join_wait(edge, deadline_ns, "say which GPU it is on"));
    return AQ_OK;
}

static enum aq_status say_pieces(struct aq_edge *edge, const uint8_t *bytes, uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < PIECES; i++) {
        struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .flags = AQ_EDGE_SAYS_PIECE, .micro_batch = i};
        const uint8_t *at = bytes + (size_t)i * PIECE_BYTES;
        memcpy(&frame.step, at, sizeof frame.step);
        memcpy(&frame.argument, at + sizeof frame.step, sizeof frame.argument);
        AQ_TRY(say(edge, &frame, deadline_ns));
    }
    return AQ_OK;
}

static enum aq_status hear_pieces(struct aq_edge *edge, uint8_t *bytes, uint64_t deadline_ns, const char *what)
{
    struct aq_edge_carry *carry = edge->carry;
    while (carry->piece_count < PIECES)
        AQ_TRY(aq_edge_join_wait(edge, deadline_ns, what));
    memcpy(bytes, carry->pieces, sizeof carry->pieces);
    carry->piece_count = 0; /* of the next */
    return AQ_OK;
}

static void name_of(const struct aq_edge *edge, bool forward, char *name)
{
    snprintf(name, NAME_BYTES, "edge %u %s, stage %u", edge->shape.edge, forward ? "forward" : "backward",
             edge->shape.edge + (edge->config.sender ? 0 : 1));
}

/* --- CUDA IPC --------------------------------------------------------------------------------------------------- */

/* Opens the way; *good: it could. A failure is no error, because there are other ways. */
static enum aq_status open_mapped(struct aq_edge *edge, bool sends, const struct aq_pair_offer *offer, bool *good)
{
    struct aq_edge_carry *carry = edge->carry;
    struct aq_edge_way *way = sends ? &carry->out : &carry->in;
    char name[NAME_BYTES];
    name_of(edge, sends == edge->config.sender, name);
    const struct aq_pair_config config = {.offer = offer,
                                          .memory = way->slots,
                                          .memory_bytes = carry->way_bytes,
                                          .name = name,
                                          .sends = sends,
                                          .silence_ns = edge->config.silence_ns};
    const enum aq_status status = aq_pair_open(&config, &way->pair);
    *good = status == AQ_OK;
    if (status != AQ_NODEV) return status;
    aq_log("edge", 1, "edge %u: not by CUDA IPC: %s", edge->shape.edge, aq_error_text());
    aq_error_clear(); /* dealt with */
    return AQ_OK;
}

static enum aq_status join_ipc(struct aq_edge *edge, uint64_t deadline_ns, bool *joined)
{
    struct aq_edge_carry *carry = edge->carry;
    struct aq_pair_offer mine, theirs;
    bool good;
    AQ_TRY(aq_edge_carry_memory(edge));
    if (aq_pair_offer(carry->out.slots, carry->way_bytes, &mine) != AQ_OK) {
        aq_log("edge", 1, "edge %u: not by CUDA IPC: %s", edge->shape.edge, aq_error_text());
        aq_error_clear(); /* the other end finds that nothing is offered */
    }
    AQ_TRY(say_pieces(edge, mine.bytes, deadline_ns));
    AQ_TRY(hear_pieces(edge, theirs.bytes, deadline_ns, "offer its memory"));
    AQ_TRY(open_mapped(edge, false, &theirs, &good));
    const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .flags = AQ_EDGE_SAYS_MAPPED, .argument = good};
    AQ_TRY(say(edge, &frame, deadline_ns));
    while (!carry->answered)
        AQ_TRY(aq_edge_join_wait(edge, deadline_ns, "map memory"));
    *joined = good && carry->mapped_there;
    if (*joined) return open_mapped(edge, true, &mine, &good);
    aq_pair_close(carry->in.pair);
    carry->in.pair = NULL;
    return AQ_OK;
}

/* --- NCCL ------------------------------------------------------------------------------------------------------- */

static enum aq_status open_way(struct aq_edge *edge, bool forward, uint64_t deadline_ns)
{
    struct aq_edge_carry *carry = edge->carry;
    const bool sends = forward == edge->config.sender;
    struct aq_edge_way *way = sends ? &carry->out : &carry->in;
    struct aq_nccl_id id;
    char name[NAME_BYTES];
    name_of(edge, forward, name);
    if (edge->config.sender) {
        AQ_TRY(aq_nccl_id(&id));
        AQ_TRY(say_pieces(edge, id.bytes, deadline_ns));
    } else {
        AQ_TRY(hear_pieces(edge, id.bytes, deadline_ns, "start NCCL"));
    }
    const struct aq_pair_config config = {
        .id = &id, .name = name, .first = edge->config.sender, .sends = sends, .silence_ns = edge->config.silence_ns};
    AQ_TRY(aq_pair_open(&config, &way->pair));
    return aq_edge_way_open(edge, way);
}

static enum aq_status join_nccl(struct aq_edge *edge, uint64_t deadline_ns, bool *joined)
{
    const struct aq_edge_carry *carry = edge->carry;
    const bool sender = edge->config.sender;
    const struct aq_nccl_rank all[2] = {sender ? carry->mine : carry->theirs, sender ? carry->theirs : carry->mine};
    struct aq_nccl_facts facts;
    aq_nccl_judge(all, 2, &facts);
    *joined = carry->asked == AQ_TRANSPORT_NCCL || (facts.built && facts.distinct_gpus && facts.one_machine);
    if (!*joined) return AQ_OK;
    AQ_TRY(aq_nccl_refuse(all, 2, "stage", edge->shape.edge, "set link.transport: links"));
    if (!facts.one_machine && sender)
        aq_log("edge", AQ_LOG_WARNING, "edge %u goes by NCCL between machines, on connections that are not encrypted",
               edge->shape.edge);
    AQ_TRY(aq_edge_carry_memory(edge));
    AQ_TRY(open_way(edge, true, deadline_ns));
    return open_way(edge, false, deadline_ns);
}

/* --- both ------------------------------------------------------------------------------------------------------- */

/* The same line at both ends. */
static enum aq_status ipc_refused(const struct aq_edge *edge)
{
    const struct aq_edge_carry *carry = edge->carry;
    const char *why = !carry->mine.gpu || !carry->theirs.gpu ? "are not both on GPUs"
                      : carry->mine.machine != carry->theirs.machine
                          ? "are on two machines"
                          : "cannot map each other's memory (see their logs)";
    return aq_fail(AQ_NODEV, "edge", "link.transport: ipc: stages %u and %u %s: set auto", edge->shape.edge,
                   edge->shape.edge + 1, why);
}

static enum aq_status join(struct aq_edge *edge, bool *joined)
{
    struct aq_edge_carry *carry = edge->carry;
    const uint64_t deadline_ns = aq_clock_after(JOIN_NS);
    aq_nccl_rank_here(edge->on_device ? edge->config.device : NULL, &carry->mine);
    AQ_TRY(exchange_facts(edge, deadline_ns));
    if (tries_ipc(carry)) AQ_TRY(join_ipc(edge, deadline_ns, joined));
    carry->ipc = *joined;
    if (!*joined && carry->asked == AQ_TRANSPORT_IPC) return ipc_refused(edge);
    if (!*joined) AQ_TRY(join_nccl(edge, deadline_ns, joined));
    carry->ready = *joined;
    if (*joined && edge->config.sender)
        aq_log("edge", 1, "edge %u goes by %s, from GPU to GPU", edge->shape.edge, carry->ipc ? "CUDA IPC" : "NCCL");
    return AQ_OK;
}

enum aq_status aq_edge_join(struct aq_edge *edge, enum aq_transport_kind asked)
{
    bool joined = false;
    if (asked == AQ_TRANSPORT_LINKS) return AQ_OK;
    AQ_TRY(AQ_NEW(1, &edge->carry));
    edge->carry->asked = asked;
    AQ_TRY(join(edge, &joined));
    if (!joined) aq_edge_carry_close(edge);
    return AQ_OK;
}
