/*
 * tokenizer_gpt2_merge.c -- the merges of one word, lowest rank first, leftmost first among equals.
 *
 * The word is a list of nodes, at first one a byte. A heap holds (rank, node) of every pair of neighbours that may
 * merge; the lowest is taken, the right node joins the left one, and the two pairs around it are looked up anew.
 * Entries whose pair is gone are not searched for: a node remembers the rank of the pair it starts, and an entry of
 * another rank is stale. A word of n bytes takes O(n log n), however long it is.
 */
#include "tokenizer_gpt2.h"

#define NONE UINT32_MAX

struct aq_gpt2_node {
    uint32_t token;
    uint32_t rank; /* of the merge with the next node; NONE: they do not merge, or this node is gone */
    uint32_t previous, next;
};

void aq_gpt2_scratch_free(struct aq_gpt2_scratch *scratch)
{
    aq_free(scratch->nodes);
    aq_free(scratch->heap);
    *scratch = (struct aq_gpt2_scratch){0};
}

static enum aq_status scratch_reserve(struct aq_gpt2_scratch *scratch, size_t bytes)
{
    if (bytes <= scratch->bytes_max) return AQ_OK;
    size_t room = 256;
    while (room < bytes) room *= 2;
    aq_gpt2_scratch_free(scratch);
    void *memory;
    AQ_TRY(aq_alloc(room * sizeof(struct aq_gpt2_node), &memory));
    scratch->nodes = memory;
    /* At most n-1 pairs at first; each merge takes one entry out and puts two in: never more than 2n. */
    AQ_TRY(aq_alloc(2 * room * sizeof(uint64_t), &memory));
    scratch->heap = memory;
    scratch->bytes_max = room;
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
static void offer(const struct aq_gpt2_vocabulary *vocabulary, struct aq_gpt2_node *nodes, uint32_t at, uint64_t *heap,
                  size_t *count)
{
    const struct aq_gpt2_merge *merge = NULL;
    if (nodes[at].next != NONE) merge = aq_gpt2_merge_find(vocabulary, nodes[at].token, nodes[nodes[at].next].token);
    nodes[at].rank = merge ? merge->rank : NONE;
    if (merge) heap_push(heap, count, (uint64_t)merge->rank << 32 | at);
}

enum aq_status aq_gpt2_merge_word(const struct aq_gpt2_vocabulary *vocabulary, struct aq_gpt2_scratch *scratch,
                                  const uint8_t *word, size_t bytes, struct aq_token_list *list)
{
    AQ_ASSERT(bytes > 0 && bytes <= AQ_GPT2_WORD_BYTES_MAX);
    AQ_TRY(scratch_reserve(scratch, bytes));
    struct aq_gpt2_node *nodes = scratch->nodes;
    size_t waiting = 0, left = bytes;
    for (uint32_t i = 0; i < bytes; i++) {
        nodes[i] = (struct aq_gpt2_node){.token = vocabulary->byte_token[word[i]],
                                         .previous = i ? i - 1 : NONE,
                                         .next = i + 1 < bytes ? i + 1 : NONE};
    }
    for (uint32_t i = 0; i < bytes; i++) offer(vocabulary, nodes, i, scratch->heap, &waiting);
    while (waiting) {
        uint64_t entry = heap_pop(scratch->heap, &waiting);
        uint32_t at = (uint32_t)entry, gone = nodes[at].next;
        if (nodes[at].rank != (uint32_t)(entry >> 32)) continue;
        nodes[at].token = aq_gpt2_merge_find(vocabulary, nodes[at].token, nodes[gone].token)->token;
        nodes[at].next = nodes[gone].next;
        if (nodes[at].next != NONE) nodes[nodes[at].next].previous = at;
        nodes[gone].rank = NONE;
        left--;
        offer(vocabulary, nodes, at, scratch->heap, &waiting);
        if (nodes[at].previous != NONE) offer(vocabulary, nodes, nodes[at].previous, scratch->heap, &waiting);
    }
    AQ_TRY(aq_token_list_reserve(list, left));
    for (uint32_t at = 0; at != NONE; at = nodes[at].next) list->at[list->count++] = (int32_t)nodes[at].token;
    return AQ_OK;
}
