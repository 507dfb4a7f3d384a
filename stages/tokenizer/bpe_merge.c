/*
 * bpe_merge.c -- the merges of one word, lowest rank first, leftmost first among equals.
 *
 * A short word is an array of symbols: the lowest pair is found and merged, and its two new neighbour pairs are looked
 * up. A long one is a list of nodes, and a heap holds (rank, node) of every pair of neighbours that may merge; the
 * lowest is taken, the right node joins the left one, and the two new pairs around it are looked up. Stale entries stay
 * on the heap: a node stores the rank of the pair it starts, and an entry of another rank is stale. A word of n symbols
 * takes O(n log n), however long it is.
 */
#include "bpe.h"

#include <string.h>

#define NONE AQ_BPE_NONE

/* Up to here the array is quicker than the heap. */
enum { FEW = 24 };

struct aq_bpe_node {
    uint32_t token;
    uint32_t rank; /* of the merge with the next node; NONE: they do not merge, or this node was removed */
    uint32_t previous, next;
};

void aq_bpe_scratch_free(struct aq_bpe_scratch *scratch)
{
    aq_free(scratch->nodes);
    aq_free(scratch->heap);
    aq_free(scratch->path);
    *scratch = (struct aq_bpe_scratch){0};
}

static enum aq_status scratch_reserve(struct aq_bpe_scratch *scratch, size_t symbols)
{
    if (symbols <= scratch->symbols_max) return AQ_OK;
    size_t room = 256;
    while (room < symbols)
        room *= 2;
    aq_bpe_scratch_free(scratch);
    AQ_TRY(AQ_NEW(room, &scratch->nodes));
    /* At most n-1 pairs at first; each merge takes one entry out and puts two in: never more than 2n. */
    AQ_TRY(AQ_NEW(2 * room, &scratch->heap));
    scratch->symbols_max = room;
    return AQ_OK;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t entry)
{
    size_t i = (*count)++;
    while (i > 0 && heap[(i - 1) / 2] > entry) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    uint64_t lowest = heap[0], last = heap[--*count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *count; i = child) {
        if (child + 1 < *count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return lowest;
}

/* Looks the pair that starts at node `at` up, and puts it on the heap where it merges. */
static void offer(const struct aq_bpe_vocabulary *vocabulary, struct aq_bpe_node *nodes, uint32_t at, uint64_t *heap,
                  size_t *count)
{
    const struct aq_bpe_merge *merge = NULL;
    if (nodes[at].next != NONE) merge = aq_bpe_merge_find(vocabulary, nodes[at].token, nodes[nodes[at].next].token);
    nodes[at].rank = merge ? merge->rank : NONE;
    if (merge) heap_push(heap, count, (uint64_t)merge->rank << 32 | at);
}

/* nodes[0 .. count) have their tokens. */
static enum aq_status merge_many(const struct aq_bpe_vocabulary *vocabulary, struct aq_bpe_scratch *scratch,
                                 size_t count, struct aq_token_list *list)
{
    struct aq_bpe_node *nodes = scratch->nodes;
    size_t waiting = 0, left = count;
    for (uint32_t i = 0; i < count; i++) {
        nodes[i].previous = i ? i - 1 : NONE;
        nodes[i].next = i + 1 < count ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i < count; i++)
        offer(vocabulary, nodes, i, scratch->heap, &waiting);
    while (waiting) {
        uint64_t entry = heap_pop(scratch->heap, &waiting);
        uint32_t at = (uint32_t)entry, gone = nodes[at].next;
        if (nodes[at].rank != (uint32_t)(entry >> 32)) continue;
        nodes[at].token = aq_bpe_merge_find(vocabulary, nodes[at].token, nodes[gone].token)->token;
        nodes[at].next = nodes[gone].next;
        if (nodes[at].next != NONE) nodes[nodes[at].next].previous = at;
        nodes[gone].rank = NONE;
        left--;
        offer(vocabulary, nodes, at, scratch->heap, &waiting);
        if (nodes[at].previous != NONE) offer(vocabulary, nodes, nodes[at].previous, scratch->heap, &waiting);
    }
    AQ_TRY(aq_token_list_reserve(list, left));
    for (uint32_t at = 0; at != NONE; at = nodes[at].next)
        list->at[list->count++] = (int32_t)nodes[at].token;
    return AQ_OK;
}

/* The array of a short word: a symbol, and the merge with the next one. */
struct symbol {
    uint32_t token, rank, joined;
};

static void look_up(const struct aq_bpe_vocabulary *vocabulary, struct symbol *symbols, size_t at, size_t count)
{
    const struct aq_bpe_merge *merge = NULL;
    if (at + 1 < count) merge = aq_bpe_merge_find(vocabulary, symbols[at].token, symbols[at + 1].token);
    symbols[at].rank = merge ? merge->rank : NONE;
    symbols[at].joined = merge ? merge->token : NONE;
}

static enum aq_status merge_few(const struct aq_bpe_vocabulary *vocabulary, const struct aq_bpe_node *nodes,
                                size_t count, struct aq_token_list *list)
{
    struct symbol symbols[FEW];
    for (size_t i = 0; i < count; i++)
        symbols[i].token = nodes[i].token;
    for (size_t i = 0; i < count; i++)
        look_up(vocabulary, symbols, i, count);
    for (;;) {
        size_t lowest = 0;
        for (size_t i = 1; i < count; i++)
            if (symbols[i].rank < symbols[lowest].rank) lowest = i;
        if (count == 0 || symbols[lowest].rank == NONE) break;
        symbols[lowest].token = symbols[lowest].joined;
        count--;
        memmove(&symbols[lowest + 1], &symbols[lowest + 2], (count - lowest - 1) * sizeof symbols[0]);
        look_up(vocabulary, symbols, lowest, count);
        if (lowest > 0) look_up(vocabulary, symbols, lowest - 1, count);
    }
    AQ_TRY(aq_token_list_reserve(list, count));
    for (size_t i = 0; i < count; i++)
        list->at[list->count++] = (int32_t)symbols[i].token;
    return AQ_OK;
}

/* One character that is no token: its bytes' tokens, where all are there, else the unknown one. */
static size_t add_unknown(const struct aq_bpe_vocabulary *v, const uint8_t *character, size_t length,
                          struct aq_bpe_node *nodes, size_t count, bool *unknown_before)
{
    bool fallback = v->fallback;
    for (size_t i = 0; i < length; i++)
        fallback = fallback && v->byte_token[character[i]] != NONE;
    for (size_t i = 0; fallback && i < length; i++)
        nodes[count++].token = v->byte_token[character[i]];
    if (fallback || v->unknown == NONE) {
        if (fallback) *unknown_before = false;
        return count;
    }
    if (!(*unknown_before && v->fuse_unknown)) nodes[count++].token = v->unknown;
    *unknown_before = true;
    return count;
}

static size_t first_symbols(const struct aq_bpe_vocabulary *v, struct aq_bpe_node *nodes, const uint8_t *word,
                            size_t bytes)
{
    size_t count = 0;
    bool unknown_before = false;
    if (!v->characters) {
        for (size_t i = 0; i < bytes; i++)
            nodes[i].token = v->byte_token[word[i]];
        return bytes;
    }
    for (size_t at = 0, length; at < bytes; at += length) {
        length = aq_bpe_character(word + at, bytes - at);
        const bool valid = length > 0;
        if (!valid) length = 1;
        const uint32_t token = valid ? aq_bpe_vocabulary_find(v, word + at, length) : NONE;
        if (token == NONE) {
            count = add_unknown(v, word + at, length, nodes, count, &unknown_before);
            continue;
        }
        nodes[count++].token = token;
        unknown_before = false;
    }
    return count;
}

enum aq_status aq_bpe_merge_word(const struct aq_bpe_vocabulary *vocabulary, struct aq_bpe_scratch *scratch,
                                 const uint8_t *word, size_t bytes, struct aq_token_list *list)
{
    AQ_ASSERT(bytes > 0 && bytes <= AQ_BPE_WORD_BYTES_MAX);
    AQ_TRY(scratch_reserve(scratch, bytes));
    const size_t count = first_symbols(vocabulary, scratch->nodes, word, bytes);
    if (count == 0) return AQ_OK; /* all of it unknown, and there is no token for that */
    return count <= FEW ? merge_few(vocabulary, scratch->nodes, count, list)
                        : merge_many(vocabulary, scratch, count, list);
}
