/*
 * piece_trie.c -- see the header.
 *
 * The pieces are sorted, so that the ones below a node are a range of them. A node with several children looks for a
 * base at which all of its units are free, in blocks that are not closed; a block is closed to such nodes after some
 * failures, so that building takes a time that grows with the pieces. A node with one child takes any free unit.
 */
#include "piece_trie.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256, FAILURES_MAX = 4 };

struct block {
    uint64_t used[4]; /* a bit per unit */
    uint16_t free, failures;
};

/* Pieces first..last-1 share their first `depth` bytes: node `at`. */
struct range {
    uint32_t first, last, depth, at;
};

struct builder {
    const struct aq_piece *pieces;
    struct aq_piece_trie *trie;
    struct block *blocks;
    uint32_t block_count, block_room;
    uint32_t open, single; /* no block before these takes several children, or one */
    struct range *ranges;  /* that wait; they share no piece, so that there are never more than pieces */
    uint32_t waiting;
};

static int by_bytes(const void *a, const void *b)
{
    const struct aq_piece *left = a, *right = b;
    const uint32_t least = left->count < right->count ? left->count : right->count;
    const int order = memcmp(left->bytes, right->bytes, least);
    return order ? order : (left->count > right->count) - (left->count < right->count);
}

static bool is_used(const struct builder *b, uint32_t unit)
{
    return b->blocks[unit / BLOCK].used[unit % BLOCK / 64] >> (unit % 64) & 1;
}

static void use(struct builder *b, uint32_t unit)
{
    AQ_ASSERT(!is_used(b, unit));
    b->blocks[unit / BLOCK].used[unit % BLOCK / 64] |= UINT64_C(1) << (unit % 64);
    b->blocks[unit / BLOCK].free--;
}

static enum aq_status grow(void **at, size_t used_bytes, size_t bytes)
{
    void *memory;
    AQ_TRY(aq_alloc(bytes, &memory));
    if (used_bytes) memcpy(memory, *at, used_bytes);
    aq_free(*at);
    *at = memory;
    return AQ_OK;
}

static enum aq_status add_block(struct builder *b)
{
    struct aq_piece_trie *trie = b->trie;
    if (b->block_count >= AQ_PIECE_UNITS_MAX / BLOCK)
        return aq_fail(AQ_INVAL, "tokenizer",
                       "the pieces of the vocabulary are too long together: their trie needs more than %d units. "
                       "Remove the longest pieces from model.vocab",
                       (int)AQ_PIECE_UNITS_MAX);
    if (b->block_count == b->block_room) {
        const uint32_t room = b->block_room ? 2 * b->block_room : 16;
        void *blocks = b->blocks, *units = trie->units;
        enum aq_status status = grow(&blocks, b->block_count * sizeof *b->blocks, room * sizeof *b->blocks);
        b->blocks = blocks;
        if (status == AQ_OK)
            status = grow(&units, trie->count * sizeof *trie->units, (size_t)room * BLOCK * sizeof *trie->units);
        trie->units = units;
        AQ_TRY(status);
        b->block_room = room;
    }
    b->blocks[b->block_count++] = (struct block){.free = BLOCK};
    for (uint32_t i = trie->count; i < trie->count + BLOCK; i++)
        trie->units[i] = (struct aq_piece_unit){.base = 0, .parent = AQ_PIECE_NONE, .token = AQ_PIECE_NONE};
    trie->count += BLOCK;
    return AQ_OK;
}

/* The first free unit of a block at or behind `from`; 256: none. */
static unsigned free_unit(const struct block *block, unsigned from)
{
    for (unsigned i = from; i < BLOCK; i = (i / 64 + 1) * 64) {
        const uint64_t free = ~block->used[i / 64] >> (i % 64);
        if (free) return i + (unsigned)__builtin_ctzll(free);
    }
    return BLOCK;
}

/* A base in this block at which the units of all labels are free; false: no such base. */
static bool base_in(const struct builder *b, uint32_t block, const uint8_t *labels, unsigned count, uint32_t *base)
{
    for (unsigned i = free_unit(&b->blocks[block], 0); i < BLOCK; i = free_unit(&b->blocks[block], i + 1)) {
        unsigned k = 1;
        *base = (block * BLOCK + i) ^ labels[0];
        while (k < count && !is_used(b, *base ^ labels[k]))
            k++;
        if (k == count) return true;
    }
    return false;
}

static enum aq_status find_base(struct builder *b, const uint8_t *labels, unsigned count, uint32_t *base)
{
    uint32_t *from = count > 1 ? &b->open : &b->single;
    for (uint32_t block = *from; block < b->block_count; block++) {
        struct block *one = &b->blocks[block];
        const bool closed = one->free == 0 || (count > 1 && one->failures >= FAILURES_MAX);
        if (closed && block == *from) ++*from;
        if (closed) continue;
        if (one->free >= count && base_in(b, block, labels, count, base)) return AQ_OK;
        one->failures++;
    }
    AQ_TRY(add_block(b));
    *base = (b->block_count - 1) * BLOCK;
    return AQ_OK;
}

/* The children of a node: their units, and their ranges to wait. */
static enum aq_status put_children(struct builder *b, struct range of)
{
    uint8_t labels[BLOCK];
    unsigned count = 0;
    uint32_t base;
    struct aq_piece_unit *unit = &b->trie->units[of.at];
    if (b->pieces[of.first].count == of.depth) unit->token = b->pieces[of.first++].token;
    const uint32_t first_waiting = b->waiting;
    for (uint32_t i = of.first; i < of.last; i++) {
        const uint8_t label = b->pieces[i].bytes[of.depth];
        if (count == 0 || label != labels[count - 1]) {
            labels[count++] = label;
            b->ranges[b->waiting++] = (struct range){.first = i, .depth = of.depth + 1};
        }
        b->ranges[b->waiting - 1].last = i + 1;
    }
    if (count == 0) return AQ_OK;
    AQ_TRY(find_base(b, labels, count, &base));
    b->trie->units[of.at].base = base;
    for (unsigned k = 0; k < count; k++) {
        const uint32_t child = base ^ labels[k];
        use(b, child);
        b->trie->units[child].parent = of.at;
        b->ranges[first_waiting + k].at = child;
    }
    return AQ_OK;
}

static enum aq_status build(struct builder *b, uint32_t count)
{
    AQ_TRY(add_block(b));
    use(b, 0); /* the root */
    b->ranges[b->waiting++] = (struct range){.last = count};
    while (b->waiting)
        AQ_TRY(put_children(b, b->ranges[--b->waiting]));
    return AQ_OK;
}

enum aq_status aq_piece_trie_open(struct aq_piece *pieces, uint32_t count, struct aq_piece_trie **out)
{
    struct builder b = {.pieces = pieces};
    enum aq_status status;
    AQ_ASSERT(count > 0);
    qsort(pieces, count, sizeof *pieces, by_bytes);
    for (uint32_t i = 0; i < count; i++)
        AQ_ASSERT(pieces[i].count > 0 && (i == 0 || by_bytes(&pieces[i - 1], &pieces[i]) < 0));
    AQ_TRY(AQ_NEW(1, &b.trie));
    AQ_TRY_GOTO(AQ_NEW((size_t)count + 1, &b.ranges), out);
    AQ_TRY_GOTO(build(&b, count), out);
    *out = b.trie;
out:
    aq_free(b.ranges);
    aq_free(b.blocks);
    if (status != AQ_OK) aq_piece_trie_close(b.trie);
    return status;
}

void aq_piece_trie_close(struct aq_piece_trie *trie)
{
    if (!trie) return;
    aq_free(trie->units);
    aq_free(trie);
}
