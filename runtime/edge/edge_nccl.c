/*
 * edge_nccl.c -- bodies from GPU to GPU: the frames of an edge stay on its link, what is in them goes over NCCL.
 *
 * A FORWARD, BACKWARD or EVAL frame with the flag CARRIED has its rows alone for a body (docs/FRAME.md). The coded
 * bodies, as they would lie behind the rows, gaps and all, are one move of a pair (net/pair.h), one pair a direction.
 * Frames come in order, each once, also over a link that heals; so the n-th frame that says so is of the n-th move.
 *
 * Each way has AQ_EDGE_CARRY_SLOTS bodies of device memory at either end. A sender codes into the next, notes the move
 * when its stream has passed, then posts the frame. A receiver checks what a frame says against the plan before it
 * tells NCCL of it, as soon as a slot is free; the frame is here when its bodies are.
 *
 * Joining. Where the manifest leaves it open (aq_job_edge_transport) both ends tell each other who they are, and know
 * the answer from the two. Where it is NCCL, the end of stage e makes an id for each way, and both open their pairs.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "edge_private.h"
#include "net/pair.h"

enum {
    SAYS_FACTS = 1, /* flags of a CONTROL frame: argument the GPU, step the machine, micro_batch NCCL's version */
    SAYS_ID = 2,    /* micro_batch the piece, of 8, step and argument its bytes                                 */
    ID_PIECE_BYTES = 16,
    ID_PIECES = AQ_NCCL_ID_BYTES / ID_PIECE_BYTES,
    BODIES_MAX = 1024, /* frames in both queues, and one that is being decoded */
    SLOT_ALIGN = 256,
    NAME_BYTES = 64
};
static_assert((int)BODIES_MAX > 2 * (int)AQ_EDGE_QUEUE_MAX + 1, "what is said of a body is kept while its frame is");
static_assert((int)AQ_EDGE_CARRY_SLOTS < (int)AQ_PAIR_MOVES, "a slot is a move");
#define JOIN_NS  (600ull * 1000000000) /* the neighbour may be loading, or joining others */
#define CAUSE_NS (500ull * 1000000)    /* a link knows by then why NCCL has failed       */

struct aq_edge_landing { /* where the bodies begin, and the end of the last */
    uint32_t rows, bytes;
};

struct way {
    struct aq_pair *pair;
    uint8_t *slots;
};

struct aq_edge_nccl {
    bool ready; /* bodies go here; false: joining */
    struct way out, in;
    size_t slot_bytes, memory_bytes;
    void *memory;
    uint64_t sent_bytes;
    /* Bodies that come, by number from 1 on. */
    uint64_t arrived, released;
    struct aq_edge_landing landings[BODIES_MAX]; /* of number n: [n % BODIES_MAX] */
    /* What the other end has told. */
    bool told;
    struct aq_nccl_rank theirs;
    struct aq_nccl_id id;
    uint32_t id_pieces;
};

static size_t slot_bytes(uint64_t body_bytes_max)
{
    return (body_bytes_max + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

uint64_t aq_edge_nccl_bytes(const struct aq_edge_size *size)
{
    return 2 * AQ_EDGE_CARRY_SLOTS * slot_bytes(size->body_bytes_max);
}

static uint32_t peer_stage(const struct aq_edge *edge)
{
    return edge->shape.edge + (edge->config.sender ? 1 : 0);
}

/* Where the other end has died or given up, the link knows why, and says so soon; NCCL knows only that it is gone. */
static enum aq_status first_cause(struct aq_edge *edge, const struct way *way)
{
    const uint64_t until_ns = aq_clock_after(CAUSE_NS);
    while (aq_clock_ns() < until_ns) {
        const uint32_t seen = aq_bell_count(edge->config.bell);
        AQ_TRY(aq_edge_link_pump(edge));
        if (edge->ended == AQ_CLOSED) break;
        const enum aq_status status = aq_bell_wait(edge->config.bell, seen, until_ns);
        if (status != AQ_TIMEOUT) AQ_TRY(status);
    }
    return aq_pair_failed(way->pair);
}

static enum aq_status way_advance(struct aq_edge *edge, struct way *way)
{
    if (!way->pair) return AQ_OK;
    const enum aq_status status = aq_pair_poll(way->pair);
    return status == AQ_NCCLERR ? first_cause(edge, way) : status;
}

/* --- joining ---------------------------------------------------------------------------------------------------- */

enum aq_status aq_edge_nccl_told(struct aq_edge *edge, const struct aq_frame *frame)
{
    struct aq_edge_nccl *nccl = edge->nccl;
    if (nccl && !nccl->ready && frame->body_bytes == 0) {
        if (frame->flags == SAYS_FACTS && !nccl->told) {
            nccl->theirs =
                (struct aq_nccl_rank){.gpu = frame->argument, .machine = frame->step, .built = frame->micro_batch};
            nccl->told = true;
            return AQ_OK;
        }
        if (frame->flags == SAYS_ID && !edge->config.sender && nccl->id_pieces < ID_PIECES &&
            frame->micro_batch == nccl->id_pieces) {
            uint8_t *at = nccl->id.bytes + (size_t)nccl->id_pieces++ * ID_PIECE_BYTES;
            memcpy(at, &frame->step, sizeof frame->step);
            memcpy(at + sizeof frame->step, &frame->argument, sizeof frame->argument);
            return AQ_OK;
        }
    }
    if (frame->body) aq_link_release(edge->config.link, frame->body);
    return aq_fail(AQ_PROTO, "edge", "edge %u: stage %u says something of NCCL (%u) that was not asked",
                   edge->shape.edge, peer_stage(edge), frame->flags);
}

/* One turn of a wait for the other end. */
static enum aq_status await_peer(struct aq_edge *edge, uint64_t deadline_ns, const char *what)
{
    const uint32_t seen = aq_bell_count(edge->config.bell);
    AQ_TRY(aq_edge_pump(edge));
    if (aq_clock_ns() >= deadline_ns)
        return aq_fail(AQ_TIMEOUT, "edge", "edge %u: waited %llu s for stage %u to %s", edge->shape.edge,
                       JOIN_NS / 1000000000, peer_stage(edge), what);
    const enum aq_status status = aq_bell_wait(edge->config.bell, seen, aq_clock_after(AQ_EDGE_POLL_NS));
    return status == AQ_TIMEOUT ? AQ_OK : status;
}

static enum aq_status say(struct aq_edge *edge, const struct aq_frame *frame, uint64_t deadline_ns)
{
    for (;;) {
        const enum aq_status status = aq_edge_post(edge, frame, AQ_EDGE_NO_BODY);
        if (status != AQ_AGAIN) return status;
        AQ_TRY(await_peer(edge, deadline_ns, "take what it is told"));
    }
}

/* Nobody goes before the other has heard: else it hears of an end that left instead. */
static enum aq_status exchange(struct aq_edge *edge, const struct aq_nccl_rank *mine, uint64_t deadline_ns)
{
    const struct aq_frame facts = {.kind = AQ_FRAME_CONTROL,
                                   .flags = SAYS_FACTS,
                                   .argument = mine->gpu,
                                   .step = mine->machine,
                                   .micro_batch = mine->built};
    AQ_TRY(say(edge, &facts, deadline_ns));
    while (!edge->nccl->told || edge->sends_out > 0)
        AQ_TRY(await_peer(edge, deadline_ns, "say which GPU it is on"));
    return AQ_OK;
}

static enum aq_status exchange_id(struct aq_edge *edge, uint64_t deadline_ns)
{
    struct aq_edge_nccl *nccl = edge->nccl;
    if (edge->config.sender) AQ_TRY(aq_nccl_id(&nccl->id));
    for (uint32_t i = 0; edge->config.sender && i < ID_PIECES; i++) {
        struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .flags = SAYS_ID, .micro_batch = i};
        const uint8_t *at = nccl->id.bytes + (size_t)i * ID_PIECE_BYTES;
        memcpy(&frame.step, at, sizeof frame.step);
        memcpy(&frame.argument, at + sizeof frame.step, sizeof frame.argument);
        AQ_TRY(say(edge, &frame, deadline_ns));
    }
    while (!edge->config.sender && nccl->id_pieces < ID_PIECES)
        AQ_TRY(await_peer(edge, deadline_ns, "begin with NCCL"));
    nccl->id_pieces = 0; /* of the next */
    return AQ_OK;
}

static enum aq_status open_way(struct aq_edge *edge, bool forward, uint64_t deadline_ns)
{
    struct aq_edge_nccl *nccl = edge->nccl;
    const bool sends = forward == edge->config.sender;
    struct way *way = sends ? &nccl->out : &nccl->in;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "edge %u %s, stage %u", edge->shape.edge, forward ? "forward" : "backward",
             edge->shape.edge + (edge->config.sender ? 0 : 1));
    AQ_TRY(exchange_id(edge, deadline_ns));
    const struct aq_pair_config config = {.id = &nccl->id,
                                          .name = name,
                                          .first = edge->config.sender,
                                          .sends = sends,
                                          .silence_ns = edge->config.silence_ns};
    way->slots = (uint8_t *)nccl->memory + (sends ? 0 : AQ_EDGE_CARRY_SLOTS * nccl->slot_bytes);
    AQ_TRY(aq_pair_open(&config, &way->pair));
    for (;;) {
        const enum aq_status status = way_advance(edge, way);
        if (status != AQ_AGAIN) return status;
        AQ_TRY(await_peer(edge, AQ_NEVER, "open a communicator")); /* the pair has a deadline of its own */
    }
}

static enum aq_status open_ways(struct aq_edge *edge, uint64_t deadline_ns)
{
    struct aq_edge_nccl *nccl = edge->nccl;
    nccl->slot_bytes = slot_bytes(edge->size.body_bytes_max);
    nccl->memory_bytes = 2 * AQ_EDGE_CARRY_SLOTS * nccl->slot_bytes;
    AQ_TRY(aq_device_alloc(edge->config.device, AQ_MEMORY_DEVICE, nccl->memory_bytes, &nccl->memory));
    AQ_TRY(open_way(edge, true, deadline_ns));
    AQ_TRY(open_way(edge, false, deadline_ns));
    nccl->ready = true;
    return AQ_OK;
}

static enum aq_status join(struct aq_edge *edge, enum aq_transport_kind asked, bool *nccl)
{
    const uint64_t deadline_ns = aq_clock_after(JOIN_NS);
    const bool sender = edge->config.sender;
    struct aq_nccl_facts facts;
    struct aq_nccl_rank all[2];
    aq_nccl_rank_here(edge->on_device ? edge->config.device : NULL, &all[sender ? 0 : 1]);
    AQ_TRY(exchange(edge, &all[sender ? 0 : 1], deadline_ns));
    all[sender ? 1 : 0] = edge->nccl->theirs;
    aq_nccl_judge(all, 2, &facts);
    *nccl = asked == AQ_TRANSPORT_NCCL || (facts.built && facts.distinct_gpus && facts.one_machine);
    if (!*nccl) return AQ_OK;
    AQ_TRY(aq_nccl_refuse(all, 2, "stage", edge->shape.edge, "say link.transport: links"));
    if (!facts.one_machine && sender)
        aq_log("edge", AQ_LOG_WARNING, "edge %u goes by NCCL between machines, on connections that are not encrypted",
               edge->shape.edge);
    AQ_TRY(open_ways(edge, deadline_ns));
    if (sender) aq_log("edge", 1, "edge %u goes by NCCL, from GPU to GPU", edge->shape.edge);
    return AQ_OK;
}

enum aq_status aq_edge_join(struct aq_edge *edge, enum aq_transport_kind asked)
{
    void *memory;
    bool nccl = false;
    if (asked == AQ_TRANSPORT_LINKS) return AQ_OK;
    AQ_TRY(aq_alloc(sizeof(struct aq_edge_nccl), &memory));
    edge->nccl = memory;
    AQ_TRY(join(edge, asked, &nccl));
    if (!nccl) aq_edge_nccl_close(edge);
    return AQ_OK;
}

void aq_edges_abandon(struct aq_edge *first, struct aq_edge *second)
{
    struct aq_edge *const edges[2] = {first, second};
    struct aq_pair *pairs[4] = {NULL};
    for (int i = 0; i < 2; i++) {
        if (!edges[i] || !edges[i]->nccl) continue;
        pairs[2 * i] = edges[i]->nccl->out.pair;
        pairs[2 * i + 1] = edges[i]->nccl->in.pair;
    }
    aq_pairs_abandon(pairs, 4);
}

void aq_edge_nccl_close(struct aq_edge *edge)
{
    struct aq_edge_nccl *nccl = edge->nccl;
    if (!nccl) return;
    /* Forward first, at both ends: closing in good order is done together. */
    aq_pair_close(edge->config.sender ? nccl->out.pair : nccl->in.pair);
    aq_pair_close(edge->config.sender ? nccl->in.pair : nccl->out.pair);
    if (nccl->memory) aq_device_free(edge->config.device, AQ_MEMORY_DEVICE, nccl->memory, nccl->memory_bytes);
    aq_free(nccl);
    edge->nccl = NULL;
}

/* --- sending ---------------------------------------------------------------------------------------------------- */

static uint8_t *slot_of(const struct aq_edge_nccl *nccl, const struct way *way, uint64_t number)
{
    return way->slots + number % AQ_EDGE_CARRY_SLOTS * nccl->slot_bytes;
}

/* Moves noted and not passed. */
static uint64_t under_way(const struct way *way)
{
    return way->pair ? aq_pair_noted(way->pair) - aq_pair_passed(way->pair) : 0;
}

enum aq_status aq_edge_carry_slot(struct aq_edge *edge, uint8_t **bodies)
{
    const struct aq_edge_nccl *nccl = edge->nccl;
    *bodies = NULL;
    if (!nccl) return AQ_OK;
    if (under_way(&nccl->out) == AQ_EDGE_CARRY_SLOTS) return AQ_AGAIN;
    *bodies = slot_of(nccl, &nccl->out, aq_pair_noted(nccl->out.pair) + 1);
    return AQ_OK;
}

void aq_edge_carry_out(struct aq_edge *edge, uint8_t *bodies, uint32_t samples, uint32_t bytes)
{
    struct aq_edge_nccl *nccl = edge->nccl;
    const uint32_t rows = aq_edge_body_align(samples * AQ_EDGE_ROW_BYTES);
    AQ_ASSERT(bytes > rows && bodies == slot_of(nccl, &nccl->out, aq_pair_noted(nccl->out.pair) + 1));
    nccl->sent_bytes += bytes - rows;
    aq_pair_move(nccl->out.pair, bodies + rows, bytes - rows);
}

uint64_t aq_edge_carried_bytes(const struct aq_edge *edge)
{
    return edge->nccl ? edge->nccl->sent_bytes : 0;
}

/* --- receiving -------------------------------------------------------------------------------------------------- */

/* The bytes of the whole body, by its rows; 0: no body that the plan knows. */
static uint32_t body_bytes(const struct aq_edge *edge, const struct aq_frame *frame)
{
    const uint64_t samples = frame->argument;
    if (samples < 1 || samples > edge->shape.micro_batch || frame->body_bytes != samples * AQ_EDGE_ROW_BYTES) return 0;
    const uint32_t rows = aq_edge_body_align(frame->body_bytes);
    uint64_t end = frame->body_bytes;
    for (uint32_t i = 0; i < samples; i++) {
        struct aq_edge_row row;
        aq_edge_row_read((const uint8_t *)frame->body + (size_t)i * AQ_EDGE_ROW_BYTES, &row);
        end = (uint64_t)aq_edge_body_align((uint32_t)end) + row.body_bytes;
        if (end > edge->size.body_bytes_max) return 0;
    }
    return end > rows ? (uint32_t)end : 0;
}

enum aq_status aq_edge_carried_in(struct aq_edge *edge, const struct aq_frame *frame, uint64_t *number)
{
    struct aq_edge_nccl *nccl = edge->nccl;
    *number = 0;
    if (!(frame->flags & AQ_EDGE_CARRIED)) return AQ_OK;
    const uint32_t bytes = nccl && nccl->ready && frame->body ? body_bytes(edge, frame) : 0;
    if (bytes == 0 || nccl->arrived - nccl->released >= BODIES_MAX)
        return aq_fail(AQ_PROTO, "edge",
                       "edge %u: a frame of kind %u (step %llu, micro-batch %u) says that NCCL carries its bodies, and "
                       "its %u bytes are no rows of such",
                       edge->shape.edge, frame->kind, (unsigned long long)frame->step, frame->micro_batch,
                       frame->body_bytes);
    *number = ++nccl->arrived;
    nccl->landings[*number % BODIES_MAX] =
        (struct aq_edge_landing){.rows = aq_edge_body_align(frame->body_bytes), .bytes = bytes};
    return AQ_OK;
}

bool aq_edge_carried_here(const struct aq_edge *edge, uint64_t number)
{
    return number == 0 || aq_pair_passed(edge->nccl->in.pair) >= number;
}

enum aq_status aq_edge_carried_take(const struct aq_edge *edge, struct aq_edge_received *got)
{
    const struct aq_edge_nccl *nccl = edge->nccl;
    if (got->carried == 0) return AQ_OK;
    AQ_ASSERT(aq_edge_carried_here(edge, got->carried));
    if (got->carried != nccl->released + 1)
        return aq_fail(AQ_PROTO, "edge", "edge %u: a frame of kind %u (step %llu, micro-batch %u) came before its turn",
                       edge->shape.edge, got->frame.kind, (unsigned long long)got->frame.step, got->frame.micro_batch);
    got->bodies = slot_of(nccl, &nccl->in, got->carried);
    got->bytes = nccl->landings[got->carried % BODIES_MAX].bytes;
    return AQ_OK;
}

void aq_edge_carried_release(struct aq_edge *edge, uint64_t number)
{
    if (number && edge->nccl) edge->nccl->released++;
}

/* --- both ------------------------------------------------------------------------------------------------------- */

uint32_t aq_edge_carrying(const struct aq_edge *edge)
{
    const struct aq_edge_nccl *nccl = edge->nccl;
    if (!nccl) return 0;
    return (under_way(&nccl->in) ? AQ_EDGE_CARRY_IN : 0) | (under_way(&nccl->out) ? AQ_EDGE_CARRY_OUT : 0);
}

/* The slot of body `number` is free: NCCL may bring it. */
static void land(struct aq_edge_nccl *nccl, uint64_t number)
{
    const struct aq_edge_landing *landing = &nccl->landings[number % BODIES_MAX];
    uint8_t *slot = slot_of(nccl, &nccl->in, number);
    aq_pair_move(nccl->in.pair, slot + landing->rows, landing->bytes - landing->rows);
}

enum aq_status aq_edge_nccl_advance(struct aq_edge *edge)
{
    struct aq_edge_nccl *nccl = edge->nccl;
    if (!nccl) return AQ_OK;
    while (nccl->ready && aq_pair_noted(nccl->in.pair) < nccl->arrived &&
           aq_pair_noted(nccl->in.pair) - nccl->released < AQ_EDGE_CARRY_SLOTS)
        land(nccl, aq_pair_noted(nccl->in.pair) + 1);
    const enum aq_status status = way_advance(edge, &nccl->out);
    if (status != AQ_AGAIN) AQ_TRY(status);
    const enum aq_status other = way_advance(edge, &nccl->in);
    return other == AQ_AGAIN ? AQ_OK : other;
}
