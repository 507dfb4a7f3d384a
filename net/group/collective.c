/*
 * collective.c -- what all collectives share (life, checks, counters), and those that only move bytes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "group.h"

static const char *const AREA = "group";

enum { COUNT_BITS = 48, CHUNK_TEXT_BYTES = 128 };

/* ---- life ---- */

static size_t slots_bytes(const struct aq_group_config *config)
{
    return (size_t)(config->size + 1) * AQ_GROUP_SLOTS * config->piece_bytes;
}

static size_t landing_bytes(const struct aq_group *group)
{
    return (size_t)group->size * group->piece_bytes;
}

uint64_t aq_group_measure(const struct aq_group_config *config)
{
    return config->size > 1 ? slots_bytes(config) : 0;
}

/* Packed ones of all ranks and of the result, and those that come from all others. */
static uint32_t nccl_messages(uint32_t size)
{
    return (size + 1) * AQ_GROUP_SLOTS + (size - 1) * AQ_GROUP_COMING;
}

uint32_t aq_group_nccl_piece(uint32_t size, uint64_t values)
{
    const uint64_t least = AQ_GROUP_PIECE_BYTES, share = AQ_GROUP_NCCL_BYTES / nccl_messages(size) / least * least;
    const uint64_t wanted = values * sizeof(float) / size / AQ_GROUP_NCCL_MESSAGES_MIN / least * least;
    uint64_t bytes = wanted < share ? wanted : share;
    if (bytes > AQ_GROUP_NCCL_BYTES_MAX) bytes = AQ_GROUP_NCCL_BYTES_MAX;
    return bytes < least ? (uint32_t)least : (uint32_t)bytes;
}

uint64_t aq_group_nccl_bytes(uint32_t size, uint64_t values)
{
    return (uint64_t)nccl_messages(size) * aq_group_nccl_piece(size, values);
}

uint64_t aq_group_measure_device(const struct aq_group_config *config)
{
    const uint64_t links = (uint64_t)config->size * config->piece_bytes;
    /* Errors of a message while it is packed: a chunk has AQ_GROUP_MESSAGES_MIN, or two pieces are one. */
    const uint64_t message = config->values / config->size / AQ_GROUP_MESSAGES_MIN, least = 2 * AQ_GRAD_PIECE;
    const uint64_t errors = (message > least ? message : least) * sizeof(float);
    return config->size == 1 ? 0 : links + errors + aq_group_nccl_bytes(config->size, config->values);
}

static enum aq_status take_memory(struct aq_group *group, const struct aq_group_config *config)
{
    const enum aq_memory_kind kind = group->wires_isolated ? AQ_MEMORY_DEVICE : AQ_MEMORY_PINNED;
    void *memory;
    if (group->isolated)
        AQ_TRY(aq_device_alloc(group->device, kind, slots_bytes(config), &memory));
    else
        AQ_TRY(aq_map_untouched(slots_bytes(config), &memory)); /* a small model's pieces fill little of a slot */
    group->slots = memory;
    group->slots_bytes = slots_bytes(config);
    if (!group->isolated || group->wires_isolated) return AQ_OK;
    AQ_TRY(aq_device_alloc(group->device, AQ_MEMORY_DEVICE, landing_bytes(group), &memory));
    group->landing = memory;
    return AQ_OK;
}

enum aq_status aq_group_init(struct aq_group *group, const struct aq_group_ops *ops, bool wires_isolated,
                             const struct aq_group_config *config)
{
    struct aq_device_info info = {.host_memory = true};
    group->ops = ops;
    if (config->size == 0 || config->size > AQ_GROUP_SIZE_MAX || config->rank >= config->size)
        return aq_fail(AQ_INVAL, AREA,
                       "rank %u of a group of %u: a group has 1 to %d ranks, and each is below their number",
                       config->rank, config->size, AQ_GROUP_SIZE_MAX);
    if (config->piece_bytes < AQ_GROUP_MESSAGE_BYTES_MIN || config->piece_bytes % AQ_ALIGN != 0)
        return aq_fail(AQ_INVAL, AREA, "piece_bytes %u: must be at least %d and a multiple of %d", config->piece_bytes,
                       AQ_GROUP_MESSAGE_BYTES_MIN, AQ_ALIGN);
    if (config->silence_ns == 0) return aq_fail(AQ_INVAL, AREA, "silence_ns 0: a group must not wait for ever");
    group->rank = config->rank;
    group->size = config->size;
    group->device = config->device;
    group->silence_ns = config->silence_ns;
    group->piece_bytes = config->piece_bytes;
    group->values = config->values;
    group->stream = config->stream;
    group->number = config->first;
    if (config->device) aq_device_info(config->device, &info);
    group->isolated = !info.host_memory;
    group->wires_isolated = group->isolated && wires_isolated;
    return config->size > 1 ? take_memory(group, config) : AQ_OK;
}

void aq_group_deinit(struct aq_group *group)
{
    const enum aq_memory_kind kind = group->wires_isolated ? AQ_MEMORY_DEVICE : AQ_MEMORY_PINNED;
    aq_device_coding_close(group, group->coding);
    if (!group->isolated) {
        aq_unmap(group->slots, group->slots_bytes);
        return;
    }
    aq_device_free(group->device, kind, group->slots, group->slots_bytes);
    aq_device_free(group->device, AQ_MEMORY_DEVICE, group->landing, landing_bytes(group));
}

void aq_group_close(struct aq_group *group)
{
    if (group) group->ops->close(group);
}

uint32_t aq_group_rank(const struct aq_group *group)
{
    return group->rank;
}

uint32_t aq_group_size(const struct aq_group *group)
{
    return group->size;
}

uint64_t aq_group_number(const struct aq_group *group)
{
    return group->number;
}

bool aq_group_is_nccl(const struct aq_group *group)
{
    return group->host != NULL;
}

void aq_group_stats(const struct aq_group *group, struct aq_group_stats *out)
{
    *out = group->stats;
    if (!group->host) return;
    out->wait_ns += group->host->stats.wait_ns; /* its messages are some words: agreements */
}

void *aq_group_slot(const struct aq_group *group, uint32_t to, uint64_t m)
{
    return group->slots + (to * (size_t)AQ_GROUP_SLOTS + m % AQ_GROUP_SLOTS) * group->piece_bytes;
}

/* ---- messages, checked ---- */

static bool reduces(enum aq_collective collective)
{
    return collective == AQ_COLLECTIVE_ALLREDUCE || collective == AQ_COLLECTIVE_REDUCE_SCATTER ||
           collective == AQ_COLLECTIVE_LANES || collective == AQ_COLLECTIVE_COMPRESSED;
}

static const char *collective_text(uint8_t collective)
{
    static const char *const NAMES[] = {"",           "allreduce", "reduce-scatter",  "all-gather",
                                        "all-to-all", "broadcast", "lanes allreduce", "compressed allreduce",
                                        "agreement"};
    return collective > 0 && collective < sizeof NAMES / sizeof *NAMES ? NAMES[collective] : "unknown";
}

static void chunk_text(const struct aq_chunk *chunk, char out[CHUNK_TEXT_BYTES])
{
    const uint64_t count = chunk->argument & ((UINT64_C(1) << COUNT_BITS) - 1);
    snprintf(out, CHUNK_TEXT_BYTES,
             "collective %" PRIu64 " (%s of %" PRIu64 ", detail %u), phase %u piece %u of %u bytes", chunk->number,
             collective_text(chunk->collective), count, (unsigned)(chunk->argument >> COUNT_BITS), chunk->phase,
             chunk->piece, chunk->bytes);
}

enum aq_status aq_group_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body)
{
    AQ_ASSERT(to != group->rank && to < group->size);
    AQ_ASSERT(chunk->bytes > 0 && chunk->bytes <= group->piece_bytes);
    group->posted[to]++;
    group->stats.sent_bytes += chunk->bytes;
    const enum aq_status status = group->ops->post(group, to, chunk, body);
    if (status != AQ_OK) group->posted[to]--; /* nothing is lent */
    return status;
}

enum aq_status aq_group_elsewhere(const struct aq_group *group, uint32_t peer, const struct aq_chunk *theirs,
                                  const struct aq_chunk *mine)
{
    char at[CHUNK_TEXT_BYTES], here[CHUNK_TEXT_BYTES];
    chunk_text(theirs, at);
    chunk_text(mine, here);
    return aq_fail(AQ_MISMATCH, AREA, "rank %u is at %s; this rank %u expects %s: do they run the same plan?", peer, at,
                   group->rank, here);
}

enum aq_status aq_group_take(struct aq_group *group, uint32_t from, const struct aq_chunk *expected, const void **body)
{
    struct aq_chunk came;
    AQ_TRY(group->ops->take(group, from, &came, body));
    if (came.number == expected->number && came.collective == expected->collective && came.phase == expected->phase &&
        came.argument == expected->argument && came.piece == expected->piece && came.bytes == expected->bytes) {
        group->stats.received_bytes += came.bytes;
        return AQ_OK;
    }
    aq_group_give(group, from, *body);
    return aq_group_elsewhere(group, from, &came, expected);
}

void aq_group_give(struct aq_group *group, uint32_t from, const void *body)
{
    group->ops->give(group, from, body);
}

void aq_group_count_wait(struct aq_group *group, uint64_t begin_ns)
{
    group->stats.wait_ns += aq_clock_ns() - begin_ns;
}

enum aq_status aq_group_silent(const struct aq_group *group, uint32_t peer)
{
    return aq_fail(AQ_TIMEOUT, AREA,
                   "rank %u waited %.1f s for rank %u in collective %" PRIu64 ": it is stuck, or does not take part",
                   group->rank, (double)group->silence_ns * 1e-9, peer, group->number);
}

enum aq_status aq_group_begin(struct aq_group *group, enum aq_collective collective, uint64_t detail, uint64_t count,
                              struct aq_chunk *out)
{
    if (group->broken != AQ_OK) return group->broken;
    if (group->whole && group->whole->broken != AQ_OK) return group->whole->broken;
    AQ_ASSERT(!group->word.said || reduces(collective));
    if (count >> COUNT_BITS || detail >> (64 - COUNT_BITS))
        return aq_fail(AQ_INVAL, AREA, "%s of %" PRIu64 ", detail %" PRIu64 ": too many",
                       collective_text((uint8_t)collective), count, detail);
    *out = (struct aq_chunk){
        .number = ++group->number, .argument = detail << COUNT_BITS | count, .collective = (uint8_t)collective};
    group->stats.collectives++;
    return AQ_OK;
}

enum aq_status aq_group_end(struct aq_group *group, enum aq_status status)
{
    for (uint32_t to = 0; to < group->size && status == AQ_OK; to++)
        if (to != group->rank) status = group->ops->settle(group, to, group->posted[to]);
    group->broken = status;
    if (status != AQ_OK && group->ops->abandon) group->ops->abandon(group);
    if (group->whole && status != AQ_OK) group->whole->broken = status;
    return status;
}

void aq_group_parallel(const struct aq_group *group, uint32_t pieces, void (*run)(uint32_t piece, void *context),
                       void *context)
{
    if (group->device && pieces > 1) {
        aq_device_parallel(group->device, pieces, run, context);
        return;
    }
    for (uint32_t piece = 0; piece < pieces; piece++)
        run(piece, context);
}

/* ---- bytes that only move: host memory ---- */

/* The links below a group of another kind move them. A group that is broken moves nothing. */
static struct aq_group *mover(struct aq_group *group)
{
    if (!group->host) return group;
    if (group->broken != AQ_OK) group->host->broken = group->broken;
    return group->host;
}

/* Piece p of a block of `bytes`; false: it does not exist. */
static bool piece_of(const struct aq_group *group, size_t bytes, uint64_t p, size_t *first, uint32_t *count)
{
    *first = (size_t)p * group->piece_bytes;
    if (*first >= bytes) return false;
    const size_t left = bytes - *first;
    *count = left < group->piece_bytes ? (uint32_t)left : group->piece_bytes;
    return true;
}

static uint64_t piece_count(const struct aq_group *group, size_t bytes)
{
    return (bytes + group->piece_bytes - 1) / group->piece_bytes;
}

static enum aq_status take_into(struct aq_group *group, uint32_t from, const struct aq_chunk *expected, void *to)
{
    const void *body;
    AQ_TRY(aq_group_take(group, from, expected, &body));
    memcpy(to, body, expected->bytes);
    aq_group_give(group, from, body);
    return AQ_OK;
}

/*
 * Each rank's blocks to the others, as all of send or as its part for each: a step posts piece p to every rank and
 * takes what came AQ_GROUP_LAG pieces before.
 */
static enum aq_status exchange_blocks(struct aq_group *group, struct aq_chunk head, const uint8_t *send, size_t stride,
                                      size_t bytes, uint8_t *received)
{
    const uint64_t pieces = piece_count(group, bytes);
    size_t first;
    for (uint64_t step = 0; step < pieces + AQ_GROUP_LAG; step++) {
        for (uint32_t i = 1; i < group->size; i++) {
            const uint32_t to = (group->rank + i) % group->size;
            if (!piece_of(group, bytes, step, &first, &head.bytes)) break;
            head.piece = (uint32_t)step;
            AQ_TRY(aq_group_post(group, to, &head, send + to * stride + first));
        }
        if (step < AQ_GROUP_LAG) continue;
        for (uint32_t i = 1; i < group->size; i++) {
            const uint32_t from = (group->rank + group->size - i) % group->size;
            if (!piece_of(group, bytes, step - AQ_GROUP_LAG, &first, &head.bytes)) break;
            head.piece = (uint32_t)(step - AQ_GROUP_LAG);
            AQ_TRY(take_into(group, from, &head, received + from * bytes + first));
        }
    }
    return AQ_OK;
}

/* Message n of the ring is piece n % pieces of the block that has come n / pieces ranks far. */
static enum aq_status ring(struct aq_group *group, struct aq_chunk head, size_t bytes, uint8_t *all)
{
    const uint32_t size = group->size, right = (group->rank + 1) % size, left = (group->rank + size - 1) % size;
    const uint64_t pieces = piece_count(group, bytes), messages = pieces * (size - 1);
    uint64_t taken = 0;
    size_t first = 0;
    for (uint64_t n = 0; n < messages + AQ_GROUP_LAG; n++) {
        /* A message must have arrived before it is passed on; at most LAG messages are left in the link. */
        const uint64_t needed = n >= pieces ? n - pieces + 1 : 0, lag = n >= AQ_GROUP_LAG ? n - AQ_GROUP_LAG + 1 : 0;
        for (; taken < messages && (taken < lag || (taken < needed && n < messages)); taken++) {
            const uint32_t owner = (uint32_t)((left + size - taken / pieces) % size);
            (void)piece_of(group, bytes, taken % pieces, &first, &head.bytes);
            head.piece = (uint32_t)taken;
            AQ_TRY(take_into(group, left, &head, all + owner * bytes + first));
        }
        if (n >= messages) continue;
        const uint32_t owner = (uint32_t)((group->rank + size - n / pieces) % size);
        (void)piece_of(group, bytes, n % pieces, &first, &head.bytes);
        head.piece = (uint32_t)n;
        AQ_TRY(aq_group_post(group, right, &head, all + owner * bytes + first));
    }
    return AQ_OK;
}

/* To everybody directly: one hop instead of W - 1. */
static enum aq_status gather_small(struct aq_group *group, struct aq_chunk head, size_t bytes, uint8_t *all)
{
    return exchange_blocks(group, head, all + group->rank * bytes, 0, bytes, all);
}

static enum aq_status gather(struct aq_group *group, enum aq_collective kind, const void *mine, size_t bytes, void *all)
{
    struct aq_chunk head;
    uint8_t *own = (uint8_t *)all + group->rank * bytes;
    group = mover(group);
    AQ_TRY(aq_group_begin(group, kind, 0, bytes, &head));
    if (own != mine && bytes > 0) memmove(own, mine, bytes);
    if (group->size == 1 || bytes == 0) return AQ_OK;
    return aq_group_end(group, bytes <= group->piece_bytes ? gather_small(group, head, bytes, all)
                                                           : ring(group, head, bytes, all));
}

enum aq_status aq_all_gather(struct aq_group *group, const void *mine, size_t bytes, void *all)
{
    return gather(group, AQ_COLLECTIVE_ALL_GATHER, mine, bytes, all);
}

enum aq_status aq_all_to_all(struct aq_group *group, const void *send, void *received, size_t block_bytes)
{
    struct aq_chunk head;
    const uint8_t *from = send;
    uint8_t *to = received;
    group = mover(group);
    AQ_TRY(aq_group_begin(group, AQ_COLLECTIVE_ALL_TO_ALL, 0, block_bytes, &head));
    if (block_bytes == 0) return AQ_OK;
    memcpy(to + group->rank * block_bytes, from + group->rank * block_bytes, block_bytes);
    return aq_group_end(group, exchange_blocks(group, head, from, block_bytes, block_bytes, to));
}

static enum aq_status chain(struct aq_group *group, struct aq_chunk head, uint32_t root, uint8_t *bytes, size_t count)
{
    const uint32_t place = (group->rank + group->size - root) % group->size; /* in the chain */
    const uint32_t before = (group->rank + group->size - 1) % group->size, after = (group->rank + 1) % group->size;
    size_t first;
    for (uint64_t p = 0; piece_of(group, count, p, &first, &head.bytes); p++) {
        head.piece = (uint32_t)p;
        if (place > 0) AQ_TRY(take_into(group, before, &head, bytes + first));
        if (place + 1 < group->size) AQ_TRY(aq_group_post(group, after, &head, bytes + first));
    }
    return AQ_OK;
}

enum aq_status aq_broadcast(struct aq_group *group, uint32_t root, void *bytes, size_t count)
{
    struct aq_chunk head;
    if (root >= group->size)
        return aq_fail(AQ_INVAL, AREA, "broadcast from rank %u of a group of %u", root, group->size);
    group = mover(group);
    AQ_TRY(aq_group_begin(group, AQ_COLLECTIVE_BROADCAST, root, count, &head));
    return group->size == 1 ? AQ_OK : aq_group_end(group, chain(group, head, root, bytes, count));
}

enum aq_status aq_group_agree(struct aq_group *group, uint64_t digest, const char *what)
{
    uint64_t all[AQ_GROUP_SIZE_MAX];
    char ranks[256] = "";
    size_t used = 0;
    AQ_TRY(gather(group, AQ_COLLECTIVE_AGREE, &digest, sizeof digest, all));
    for (uint32_t rank = 1; rank < group->size; rank++)
        if (all[rank] != all[0] && used < sizeof ranks - 40)
            used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%u (%016" PRIx64 ")", used ? ", " : "", rank,
                                     all[rank]);
    if (used == 0) return AQ_OK;
    return aq_fail(AQ_MISMATCH, AREA, "%s of rank 0 (%016" PRIx64 ") is not that of rank %s", what, all[0], ranks);
}
