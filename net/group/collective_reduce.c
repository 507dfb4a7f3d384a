/*
 * collective_reduce.c -- the program of everything that reduces, and the sums of floats and of lanes over it.
 *
 * A buffer is cut into W chunks, a chunk into messages of `unit` values. In step q a rank
 *
 *   packs message q of every chunk and posts each to its owner;
 *   takes all parts of message q - LAG of its own chunk, reduces them in the order of ranks, posts the result to all;
 *   takes the results of message q - 2 LAG of all other chunks, and unpacks them.
 *
 * While a message is summed, the next LAG are on their way. Words that were sent before (group_word.c) are received
 * before the first message is taken. All ranks run the same program, so that the order of messages between two ranks is
 * known to both (docs/FRAME.md, "Chunks"). Each of the two phases sends (W - 1) / W of the buffer, which is the least
 * there is.
 *
 * Differs from the ring of Patarasuk and Yuan 2009, which sends as much: there the order of a sum depends on the chunk,
 * so that cutting a buffer elsewhere changes bits, and a part passes W - 1 ranks (docs/DECISIONS.md 0038).
 */
#include <stdatomic.h>
#include <string.h>

#include "group.h"

static const char *const AREA = "group";

/* ---- the cut ---- */

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Of rank 0: no other is longer. */
static uint64_t chunk_values(uint64_t count, uint32_t size)
{
    uint64_t first, chunk;
    aq_grad_chunk(count, size, 0, &first, &chunk);
    return chunk;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

bool aq_exchange_span(const struct aq_exchange *exchange, uint32_t owner, uint64_t m, uint64_t *first, uint64_t *count)
{
    uint64_t begin, chunk;
    aq_grad_chunk(exchange->count, exchange->group->size, owner, &begin, &chunk);
    const uint64_t at = m * exchange->unit;
    if (at >= chunk) return false;
    *first = begin + at;
    *count = least(exchange->unit, chunk - at);
    return true;
}

/* ---- the program ---- */

enum { MARKS = 2 * AQ_GROUP_LAG + 2 }; /* messages whose memory may still be lent */

struct program {
    struct aq_exchange *exchange;
    uint64_t parts[MARKS][AQ_GROUP_SIZE_MAX];   /* posts to each rank, up to and with the part of message m */
    uint64_t results[MARKS][AQ_GROUP_SIZE_MAX]; /* the same with the result                                 */
};

static struct aq_chunk chunk_of(const struct aq_exchange *exchange, int phase, uint64_t m, uint64_t first,
                                uint64_t count)
{
    struct aq_chunk chunk = exchange->head;
    chunk.phase = (uint8_t)phase;
    chunk.piece = (uint32_t)m;
    chunk.bytes = exchange->ops->bytes(exchange, phase, first, count);
    return chunk;
}

/* Until message m's memory is ours again; marks: of its phase. */
static enum aq_status settle(struct aq_group *group, uint64_t marks[MARKS][AQ_GROUP_SIZE_MAX], uint64_t m)
{
    for (uint32_t to = 0; to < group->size; to++)
        if (to != group->rank) AQ_TRY(group->ops->settle(group, to, marks[m % MARKS][to]));
    return AQ_OK;
}

/* Tells a member that asks for it which messages come: parts of message m to their owner, or its results. */
static enum aq_status announce(struct aq_exchange *exchange, int phase, uint64_t m)
{
    struct aq_group *group = exchange->group;
    uint64_t first, count;
    if (!group->ops->expect) return AQ_OK;
    for (uint32_t i = 1; i < group->size; i++) {
        const uint32_t from = (group->rank + group->size - i) % group->size;
        if (!aq_exchange_span(exchange, phase == 0 ? group->rank : from, m, &first, &count)) continue;
        const struct aq_chunk chunk = chunk_of(exchange, phase, m, first, count);
        AQ_TRY(group->ops->expect(group, from, &chunk,
                                  phase == 1 && exchange->results ? exchange->results + first : NULL));
    }
    return group->ops->flush(group);
}

static enum aq_status send_parts(struct program *program, uint64_t m)
{
    struct aq_exchange *exchange = program->exchange;
    struct aq_group *group = exchange->group;
    uint64_t first, count;
    if (m >= AQ_GROUP_SLOTS) AQ_TRY(settle(group, program->parts, m - AQ_GROUP_SLOTS));
    const uint64_t begin_ns = aq_clock_ns();
    AQ_TRY(exchange->ops->pack(exchange, m));
    group->stats.pack_ns += aq_clock_ns() - begin_ns;
    for (uint32_t i = 1; i < group->size; i++) {
        const uint32_t to = (group->rank + i) % group->size;
        if (aq_exchange_span(exchange, to, m, &first, &count)) {
            const struct aq_chunk chunk = chunk_of(exchange, 0, m, first, count);
            AQ_TRY(aq_group_post(group, to, &chunk, exchange->wires[to]));
        }
        program->parts[m % MARKS][to] = group->posted[to];
    }
    return announce(exchange, 0, m);
}

static void give_all(struct aq_exchange *exchange)
{
    for (uint32_t from = 0; from < exchange->group->size; from++)
        if (exchange->wires[from]) aq_group_give(exchange->group, from, exchange->wires[from]);
}

static enum aq_status reduce_own(struct program *program, uint64_t m)
{
    struct aq_exchange *exchange = program->exchange;
    struct aq_group *group = exchange->group;
    uint64_t first, count;
    memcpy(program->results[m % MARKS], group->posted, sizeof group->posted);
    if (!aq_exchange_span(exchange, group->rank, m, &first, &count)) return AQ_OK;
    if (m >= AQ_GROUP_SLOTS) AQ_TRY(settle(group, program->results, m - AQ_GROUP_SLOTS));
    const struct aq_chunk part = chunk_of(exchange, 0, m, first, count);
    exchange->wires[group->rank] = NULL;
    for (uint32_t i = 1; i < group->size; i++) {
        const uint32_t from = (group->rank + group->size - i) % group->size;
        AQ_TRY(aq_group_take(group, from, &part, &exchange->wires[from]));
    }
    const uint64_t begin_ns = aq_clock_ns();
    AQ_TRY(exchange->ops->reduce(exchange, m, first, count));
    group->stats.sum_ns += aq_clock_ns() - begin_ns;
    give_all(exchange);
    if (!exchange->gather) return AQ_OK;
    const struct aq_chunk result = chunk_of(exchange, 1, m, first, count);
    for (uint32_t i = 1; i < group->size; i++)
        AQ_TRY(aq_group_post(group, (group->rank + i) % group->size, &result, exchange->result));
    memcpy(program->results[m % MARKS], group->posted, sizeof group->posted);
    return AQ_OK;
}

static enum aq_status reduce(struct program *program, uint64_t m)
{
    AQ_TRY(reduce_own(program, m));
    return program->exchange->gather ? announce(program->exchange, 1, m) : AQ_OK;
}

static enum aq_status take_results(struct program *program, uint64_t m)
{
    struct aq_exchange *exchange = program->exchange;
    struct aq_group *group = exchange->group;
    uint64_t first, count;
    for (uint32_t from = 0; from < group->size; from++) {
        exchange->wires[from] = NULL;
        if (from == group->rank || !aq_exchange_span(exchange, from, m, &first, &count)) continue;
        const struct aq_chunk result = chunk_of(exchange, 1, m, first, count);
        AQ_TRY(aq_group_take(group, from, &result, &exchange->wires[from]));
    }
    /* The parts of these places that were sent to be reduced may be overwritten now. */
    AQ_TRY(settle(group, program->parts, m));
    const uint64_t begin_ns = aq_clock_ns();
    AQ_TRY(exchange->ops->unpack(exchange, m));
    group->stats.unpack_ns += aq_clock_ns() - begin_ns;
    give_all(exchange);
    return AQ_OK;
}

static enum aq_status run(struct aq_exchange *exchange)
{
    struct program program = {.exchange = exchange};
    const uint64_t chunk = chunk_values(exchange->count, exchange->group->size);
    const uint64_t messages = (chunk + exchange->unit - 1) / exchange->unit;
    const uint64_t lag = exchange->gather ? 2 * AQ_GROUP_LAG : AQ_GROUP_LAG;
    for (uint64_t step = 0; step < messages + lag; step++) {
        if (step < messages) AQ_TRY(send_parts(&program, step));
        if (step == AQ_GROUP_LAG && exchange->unsure) {
            AQ_TRY(aq_group_words_hear(exchange, &exchange->undo));
            if (exchange->undo) return AQ_OK;
            exchange->unsure = false;
        }
        if (step >= AQ_GROUP_LAG && step - AQ_GROUP_LAG < messages) AQ_TRY(reduce(&program, step - AQ_GROUP_LAG));
        if (exchange->gather && step >= lag) AQ_TRY(take_results(&program, step - lag));
    }
    return AQ_OK;
}

enum aq_status aq_exchange_run(struct aq_exchange *exchange, enum aq_collective collective, uint64_t detail)
{
    AQ_ASSERT(exchange->unit > 0 && exchange->unit % AQ_GROUP_CUT == 0);
    AQ_TRY(aq_group_begin(exchange->group, collective, detail, exchange->count, &exchange->head));
    struct aq_group *group = exchange->group;
    bool stop;
    if (group->size == 1) return AQ_OK;
    enum aq_status status = aq_group_words_begin(exchange, &exchange->unsure, &stop);
    if (status == AQ_OK && !stop && group->ops->meet) status = group->ops->meet(group, &exchange->head);
    if (status == AQ_OK && !stop) status = run(exchange);
    return aq_group_end(group, status);
}

/* ---- sums: floats and lanes lie in the caller's buffer as they do on the wire ---- */

struct sum {
    uint8_t *values;
    uint32_t value_bytes;
    float scale;          /* floats: what a sum is multiplied by; 1: it is not */
    uint64_t top;         /* lanes: the highest bit of each; 0: floats */
    atomic_bool ran_over; /* set by any thread of the pool, read after it has been waited for: relaxed */
};

struct sum_task {
    struct aq_exchange *exchange;
    struct sum *sum;
    uint64_t first, count;
};

static uint32_t sum_bytes(const struct aq_exchange *exchange, int phase, uint64_t first, uint64_t count)
{
    const struct sum *sum = exchange->context;
    (void)phase;
    (void)first;
    return (uint32_t)(count * sum->value_bytes);
}

/* Nothing to pack: the caller's memory is lent. */
static enum aq_status sum_pack(struct aq_exchange *exchange, uint64_t m)
{
    const struct sum *sum = exchange->context;
    uint64_t first, count;
    for (uint32_t owner = 0; owner < exchange->group->size; owner++)
        exchange->wires[owner] =
            aq_exchange_span(exchange, owner, m, &first, &count) ? sum->values + first * sum->value_bytes : NULL;
    return AQ_OK;
}

static void add_floats(float *to, const float *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void scale_floats(float *x, float scale, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] *= scale;
}

/* In the order of ranks: those before this one first, whose sum this one's is added to. */
static void sum_floats(uint32_t piece, void *context)
{
    enum { BLOCK = 1024 };
    const struct sum_task *task = context;
    const struct aq_group *group = task->exchange->group;
    const uint64_t begin = (uint64_t)piece * AQ_GROUP_TASK_VALUES;
    const uint64_t end = least(begin + AQ_GROUP_TASK_VALUES, task->count);
    float *own = (float *)(void *)task->sum->values + task->first;
    float sum[BLOCK];
    for (uint64_t at = begin; at < end; at += BLOCK) {
        const uint64_t count = least(BLOCK, end - at);
        for (uint32_t rank = 0; rank < group->size; rank++) {
            const float *part = rank == group->rank ? own : (const float *)task->exchange->wires[rank];
            if (rank == 0)
                memcpy(sum, part + at, count * sizeof *sum);
            else
                add_floats(sum, part + at, count);
        }
        if (task->sum->scale != 1.0f) scale_floats(sum, task->sum->scale, count);
        memcpy(own + at, sum, count * sizeof *sum);
    }
}

/* Carries out of the highest bit of a lane are collected: there must be none. */
static void sum_lanes(uint32_t piece, void *context)
{
    const struct sum_task *task = context;
    const struct aq_group *group = task->exchange->group;
    const uint64_t begin = (uint64_t)piece * AQ_GROUP_TASK_VALUES;
    const uint64_t end = least(begin + AQ_GROUP_TASK_VALUES, task->count);
    uint64_t *own = (uint64_t *)(void *)task->sum->values + task->first, carried = 0;
    for (uint32_t rank = 0; rank < group->size; rank++) {
        const uint64_t *part = task->exchange->wires[rank];
        if (rank == group->rank) continue;
        for (uint64_t i = begin; i < end; i++) {
            const uint64_t a = own[i], b = part[i], sum = a + b;
            carried |= (a & b) | ((a | b) & ~sum);
            own[i] = sum;
        }
    }
    if (carried & task->sum->top) atomic_store_explicit(&task->sum->ran_over, true, memory_order_relaxed);
}

static enum aq_status sum_reduce(struct aq_exchange *exchange, uint64_t m, uint64_t first, uint64_t count)
{
    struct sum *sum = exchange->context;
    struct sum_task task = {.exchange = exchange, .sum = sum, .first = first, .count = count};
    const uint32_t pieces = (uint32_t)((count + AQ_GROUP_TASK_VALUES - 1) / AQ_GROUP_TASK_VALUES);
    (void)m;
    aq_group_parallel(exchange->group, pieces, sum->top ? sum_lanes : sum_floats, &task);
    exchange->result = sum->values + first * sum->value_bytes;
    if (atomic_load_explicit(&sum->ran_over, memory_order_relaxed))
        return aq_fail(AQ_INVAL, AREA, "a sum of %u ranks overflows its lane: use fewer levels or wider lanes",
                       exchange->group->size);
    return AQ_OK;
}

static enum aq_status sum_unpack(struct aq_exchange *exchange, uint64_t m)
{
    struct sum *sum = exchange->context;
    uint64_t first, count;
    for (uint32_t owner = 0; owner < exchange->group->size; owner++)
        if (exchange->wires[owner] && aq_exchange_span(exchange, owner, m, &first, &count))
            memcpy(sum->values + first * sum->value_bytes, exchange->wires[owner], count * sum->value_bytes);
    return AQ_OK;
}

static const struct aq_exchange_ops SUM_OPS = {
    .bytes = sum_bytes, .pack = sum_pack, .reduce = sum_reduce, .unpack = sum_unpack};

/* Values of a message: as many as fit, but so that a chunk has some messages to overlap. */
static uint64_t sum_unit(const struct aq_group *group, uint64_t count, uint32_t value_bytes)
{
    const uint64_t most = group->piece_bytes / value_bytes / AQ_GROUP_CUT * AQ_GROUP_CUT;
    const uint64_t few = AQ_GROUP_MESSAGE_BYTES_MIN / value_bytes / AQ_GROUP_CUT * AQ_GROUP_CUT;
    const uint64_t even = round_up(chunk_values(count, group->size) / aq_group_messages_min(group), AQ_GROUP_CUT);
    return even > most ? most : even < few ? few : even;
}

static struct aq_exchange exchange_of(struct aq_group *group, uint64_t count, uint32_t value_bytes, bool gather)
{
    return (struct aq_exchange){
        .group = group, .count = count, .unit = sum_unit(group, count, value_bytes), .gather = gather};
}

static enum aq_status sum_run(struct aq_group *group, struct sum *sum, uint64_t count, bool gather,
                              enum aq_collective collective, uint64_t detail)
{
    struct aq_exchange exchange = exchange_of(group, count, sum->value_bytes, gather);
    exchange.ops = &SUM_OPS;
    exchange.context = sum;
    return aq_exchange_run(&exchange, collective, detail);
}

static enum aq_status floats_run(struct aq_group *group, float *x, uint64_t count, float scale, bool gather,
                                 enum aq_collective collective)
{
    if (group->isolated) {
        struct aq_exchange exchange = exchange_of(group, count, sizeof *x, gather);
        struct aq_device_sum sum = {.x = x, .scale = scale};
        return aq_device_sum_run(&exchange, &sum, collective);
    }
    struct sum sum = {.values = (uint8_t *)x, .value_bytes = sizeof *x, .scale = scale};
    return sum_run(group, &sum, count, gather, collective, 0);
}

enum aq_status aq_allreduce(struct aq_group *group, float *x, uint64_t count)
{
    return floats_run(group, x, count, 1.0f, true, AQ_COLLECTIVE_ALLREDUCE);
}

enum aq_status aq_allreduce_mean(struct aq_group *group, float *x, uint64_t count)
{
    return floats_run(group, x, count, 1.0f / (float)group->size, true, AQ_COLLECTIVE_ALLREDUCE);
}

enum aq_status aq_reduce_scatter(struct aq_group *group, float *x, uint64_t count, uint64_t *first, uint64_t *mine)
{
    uint64_t begin, values;
    AQ_TRY(floats_run(group, x, count, 1.0f, false, AQ_COLLECTIVE_REDUCE_SCATTER));
    aq_grad_chunk(count, group->size, group->rank, &begin, &values);
    if (first) *first = begin;
    if (mine) *mine = values;
    return AQ_OK;
}

uint64_t aq_lane_words(uint64_t count, uint32_t lane_bits)
{
    const uint64_t lanes = 64 / lane_bits;
    return (count + lanes - 1) / lanes;
}

enum aq_status aq_allreduce_lanes(struct aq_group *group, uint64_t *lanes, uint64_t count, uint32_t lane_bits)
{
    if (lane_bits == 0 || (lane_bits > 8 && lane_bits != 16))
        return aq_fail(AQ_INVAL, AREA, "lanes of %u bits are not possible: use 1 to 8, or 16", lane_bits);
    struct sum sum = {.values = (uint8_t *)lanes, .value_bytes = sizeof *lanes};
    for (uint32_t bit = lane_bits - 1; bit < 64; bit += lane_bits)
        sum.top |= UINT64_C(1) << bit;
    return sum_run(group->host ? group->host : group, &sum, aq_lane_words(count, lane_bits), true, AQ_COLLECTIVE_LANES,
                   lane_bits);
}
