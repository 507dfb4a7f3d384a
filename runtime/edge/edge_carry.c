/*
 * edge_carry.c -- bodies from GPU to GPU: the frames of an edge stay on its link, their bodies go by a pair
 * (net/pair.h), by CUDA IPC or over NCCL. edge_join.c chooses.
 *
 * The body of a FORWARD, BACKWARD or EVAL frame with the flag CARRIED is only its rows (docs/FRAME.md). The coded
 * bodies, with gaps as they would follow the rows, are one move of a pair, with one pair per direction. Frames come in
 * order, each once, also over a link that heals; so the n-th frame with this flag belongs to the n-th move.
 *
 * Each way has AQ_EDGE_CARRY_SLOTS bodies of device memory at either end. A sender codes into the next, notes the move
 * when its stream has passed, then posts the frame. A receiver checks a frame against the plan before it starts the
 * pair's move, as soon as a slot is free; the frame is here when its bodies are. With IPC it then sends the count of
 * bodies that it has taken, in a separate frame: until then the sender's slot is not written.
 */
#include <assert.h>
#include <string.h>

#include "edge_carry.h"

enum { SLOT_ALIGN = 256 };
static_assert((int)AQ_EDGE_CARRY_BODIES > 2 * (int)AQ_CHANNEL_FRAMES_MAX + 1,
              "the note of a body lives as long as its frame");
static_assert((int)AQ_EDGE_CARRY_SLOTS < (int)AQ_PAIR_MOVES, "a slot is a move");
#define CAUSE_NS (500ull * 1000000) /* a link knows by then why NCCL has failed */

static size_t way_bytes(const struct aq_edge_size *size)
{
    return AQ_EDGE_CARRY_SLOTS * ((size->body_bytes_max + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN);
}

uint64_t aq_edge_carry_shared_bytes(const struct aq_edge_size *size)
{
    const uint64_t grain = AQ_DEVICE_SHARED_GRAIN;
    return (way_bytes(size) + grain - 1) / grain * grain;
}

uint64_t aq_edge_carry_bytes(const struct aq_edge_size *size)
{
    return way_bytes(size) + aq_edge_carry_shared_bytes(size);
}

enum aq_status aq_edge_carry_memory(struct aq_edge *edge)
{
    struct aq_edge_carry *carry = edge->carry;
    struct aq_device *device = edge->config.device;
    void *memory;
    if (carry->way_bytes) return AQ_OK;
    carry->way_bytes = way_bytes(&edge->size);
    carry->slot_bytes = carry->way_bytes / AQ_EDGE_CARRY_SLOTS;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_SHARED, carry->way_bytes, &memory));
    carry->out.slots = memory;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, carry->way_bytes, &memory));
    carry->in.slots = memory;
    return AQ_OK;
}

/* Waits briefly for the link's reason why the other end died or gave up; NCCL knows only that it is absent. */
static enum aq_status first_cause(struct aq_edge *edge, const struct aq_edge_way *way)
{
    const uint64_t until_ns = aq_clock_after(CAUSE_NS);
    while (aq_clock_ns() < until_ns) {
        const uint32_t seen = aq_eventcount_read(edge->config.eventcount);
        AQ_TRY(aq_edge_link_pump(edge));
        if (edge->ended == AQ_CLOSED) break;
        const enum aq_status status = aq_eventcount_wait(edge->config.eventcount, seen, until_ns);
        if (status != AQ_TIMEOUT) AQ_TRY(status);
    }
    return aq_pair_failed(way->pair);
}

static enum aq_status way_advance(struct aq_edge *edge, struct aq_edge_way *way)
{
    if (!way->pair) return AQ_OK;
    const enum aq_status status = aq_pair_poll(way->pair);
    return status == AQ_NCCLERR ? first_cause(edge, way) : status;
}

enum aq_status aq_edge_way_open(struct aq_edge *edge, struct aq_edge_way *way)
{
    for (;;) {
        const enum aq_status status = way_advance(edge, way);
        if (status != AQ_AGAIN) return status;
        AQ_TRY(aq_edge_join_wait(edge, AQ_NEVER, "open a communicator")); /* the pair has its own deadline */
    }
}

void aq_edges_abandon(struct aq_edge *first, struct aq_edge *second)
{
    struct aq_edge *const edges[2] = {first, second};
    struct aq_pair *pairs[4] = {NULL};
    for (int i = 0; i < 2; i++) {
        if (!edges[i] || !edges[i]->carry) continue;
        pairs[2 * i] = edges[i]->carry->out.pair;
        pairs[2 * i + 1] = edges[i]->carry->in.pair;
    }
    aq_pairs_abandon(pairs, 4);
}

void aq_edge_carry_close(struct aq_edge *edge)
{
    struct aq_edge_carry *carry = edge->carry;
    if (!carry) return;
    /* Forward first, at both ends: closing in good order is done together. */
    aq_pair_close(edge->config.sender ? carry->out.pair : carry->in.pair);
    aq_pair_close(edge->config.sender ? carry->in.pair : carry->out.pair);
    if (carry->in.slots) aq_device_free(edge->config.device, AQ_MEMORY_DEVICE, carry->in.slots, carry->way_bytes);
    if (carry->out.slots) aq_device_free(edge->config.device, AQ_MEMORY_SHARED, carry->out.slots, carry->way_bytes);
    aq_free(carry);
    edge->carry = NULL;
}

/* --- sending ---------------------------------------------------------------------------------------------------- */

static uint8_t *slot_of(const struct aq_edge_carry *carry, const struct aq_edge_way *way, uint64_t number)
{
    return way->slots + number % AQ_EDGE_CARRY_SLOTS * carry->slot_bytes;
}

/* Moves noted and not passed. */
static uint64_t under_way(const struct aq_edge_way *way)
{
    return way->pair ? aq_pair_noted(way->pair) - aq_pair_passed(way->pair) : 0;
}

enum aq_status aq_edge_carry_slot(struct aq_edge *edge, uint8_t **bodies)
{
    const struct aq_edge_carry *carry = edge->carry;
    *bodies = NULL;
    if (!carry) return AQ_OK;
    if (under_way(&carry->out) == AQ_EDGE_CARRY_SLOTS) return AQ_AGAIN;
    *bodies = slot_of(carry, &carry->out, aq_pair_noted(carry->out.pair) + 1);
    return AQ_OK;
}

void aq_edge_carry_out(struct aq_edge *edge, uint8_t *bodies, uint32_t head, uint32_t bytes)
{
    struct aq_edge_carry *carry = edge->carry;
    const uint32_t rows = aq_edge_body_align(head);
    AQ_ASSERT(bytes > rows && bodies == slot_of(carry, &carry->out, aq_pair_noted(carry->out.pair) + 1));
    carry->sent_bytes += bytes - rows;
    aq_pair_move(carry->out.pair, bodies + rows, bytes - rows);
}

uint64_t aq_edge_carried_bytes(const struct aq_edge *edge)
{
    return edge->carry ? edge->carry->sent_bytes : 0;
}

/* --- receiving -------------------------------------------------------------------------------------------------- */

/* The bytes of the whole body, by its rows; 0: no body that the plan knows. */
static uint32_t body_bytes(const struct aq_edge *edge, const struct aq_frame *frame)
{
    const uint64_t samples = frame->argument;
    if (samples < 1 || samples > edge->shape.micro_batch ||
        frame->body_bytes != aq_edge_head_bytes(&edge->shape, frame->flags, (uint32_t)samples))
        return 0;
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
    struct aq_edge_carry *carry = edge->carry;
    *number = 0;
    if (!(frame->flags & AQ_EDGE_CARRIED)) return AQ_OK;
    const uint32_t bytes = carry && carry->ready && frame->body ? body_bytes(edge, frame) : 0;
    if (bytes == 0 || carry->arrived - carry->released >= AQ_EDGE_CARRY_BODIES)
        return aq_fail(
            AQ_PROTO, "edge",
            "edge %u: a frame of kind %u (step %llu, micro-batch %u) announces bodies that go from GPU to GPU, but "
            "its %u bytes are not rows of such bodies",
            edge->shape.edge, frame->kind, (unsigned long long)frame->step, frame->micro_batch, frame->body_bytes);
    *number = ++carry->arrived;
    carry->landings[*number % AQ_EDGE_CARRY_BODIES] =
        (struct aq_edge_landing){.rows = aq_edge_body_align(frame->body_bytes), .bytes = bytes};
    return AQ_OK;
}

bool aq_edge_carried_here(const struct aq_edge *edge, uint64_t number)
{
    return number == 0 || aq_pair_passed(edge->carry->in.pair) >= number;
}

enum aq_status aq_edge_carried_take(const struct aq_edge *edge, struct aq_edge_received *got)
{
    const struct aq_edge_carry *carry = edge->carry;
    if (got->carried == 0) return AQ_OK;
    AQ_ASSERT(aq_edge_carried_here(edge, got->carried));
    if (got->carried != carry->released + 1)
        return aq_fail(AQ_PROTO, "edge", "edge %u: a frame of kind %u (step %llu, micro-batch %u) came before its turn",
                       edge->shape.edge, got->frame.kind, (unsigned long long)got->frame.step, got->frame.micro_batch);
    got->bodies = slot_of(carry, &carry->in, got->carried);
    got->bytes = carry->landings[got->carried % AQ_EDGE_CARRY_BODIES].bytes;
    return AQ_OK;
}

void aq_edge_carried_release(struct aq_edge *edge, uint64_t number)
{
    if (number && edge->carry) edge->carry->released++;
}

/* --- both ------------------------------------------------------------------------------------------------------- */

/* By IPC: what the other end does not know yet to be taken. */
static bool is_to_say(const struct aq_edge_carry *carry)
{
    return carry->ipc && carry->in.pair && aq_pair_passed(carry->in.pair) > carry->said_taken;
}

uint32_t aq_edge_carrying(const struct aq_edge *edge)
{
    const struct aq_edge_carry *carry = edge->carry;
    if (!carry) return 0;
    const bool in = under_way(&carry->in) > 0 || is_to_say(carry);
    return (in ? AQ_EDGE_CARRY_IN : 0) | (under_way(&carry->out) ? AQ_EDGE_CARRY_OUT : 0);
}

static enum aq_status say(struct aq_edge *edge, uint16_t flags, uint64_t argument)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .flags = flags, .argument = argument};
    return aq_channel_post(aq_edge_channel(edge, AQ_CHANNEL_ID_control), &frame, AQ_CHANNEL_BARE);
}

static enum aq_status say_taken(struct aq_edge *edge)
{
    struct aq_edge_carry *carry = edge->carry;
    if (!is_to_say(carry)) return AQ_OK;
    const uint64_t taken = aq_pair_passed(carry->in.pair);
    const enum aq_status status = say(edge, AQ_EDGE_SAYS_TAKEN, taken);
    if (status == AQ_AGAIN) return AQ_OK; /* no room on the link: later */
    AQ_TRY(status);
    carry->said_taken = taken;
    return AQ_OK;
}

/* The slot of body `number` is free: the pair may bring it. */
static void land(struct aq_edge_carry *carry, uint64_t number)
{
    const struct aq_edge_landing *landing = &carry->landings[number % AQ_EDGE_CARRY_BODIES];
    uint8_t *slot = slot_of(carry, &carry->in, number);
    aq_pair_move(carry->in.pair, slot + landing->rows, landing->bytes - landing->rows);
}

enum aq_status aq_edge_carry_advance(struct aq_edge *edge)
{
    struct aq_edge_carry *carry = edge->carry;
    if (!carry) return AQ_OK;
    while (carry->ready && aq_pair_noted(carry->in.pair) < carry->arrived &&
           aq_pair_noted(carry->in.pair) - carry->released < AQ_EDGE_CARRY_SLOTS)
        land(carry, aq_pair_noted(carry->in.pair) + 1);
    const enum aq_status status = way_advance(edge, &carry->out);
    if (status != AQ_AGAIN) AQ_TRY(status);
    const enum aq_status other = way_advance(edge, &carry->in);
    if (other != AQ_AGAIN) AQ_TRY(other);
    return say_taken(edge);
}

bool aq_edge_carry_told(struct aq_edge *edge, const struct aq_frame *frame, enum aq_status *status)
{
    struct aq_edge_carry *carry = edge->carry;
    *status = AQ_OK;
    if (!carry->ipc || carry->unmapped_there) return false;
    if (frame->flags == AQ_EDGE_SAYS_TAKEN) {
        *status = aq_pair_taken(carry->out.pair, frame->argument);
        return true;
    }
    carry->unmapped_there = frame->flags == AQ_EDGE_SAYS_UNMAPPED && under_way(&carry->out) == 0;
    return carry->unmapped_there;
}

enum aq_status aq_edge_carry_shutdown(struct aq_edge *edge)
{
    struct aq_edge_carry *carry = edge->carry;
    if (!carry || !carry->ipc) return AQ_OK;
    if (!carry->unmapped_here) {
        carry->unmapped_here = true;
        carry->ready = false;
        aq_pair_close(carry->in.pair);
        carry->in.pair = NULL;
    }
    if (!carry->unmapped_said) { /* after it is so: who hears it frees the memory */
        AQ_TRY(say(edge, AQ_EDGE_SAYS_UNMAPPED, 0));
        carry->unmapped_said = true;
    }
    return carry->unmapped_there && edge->channels->out == 0 ? AQ_OK : AQ_AGAIN;
}
