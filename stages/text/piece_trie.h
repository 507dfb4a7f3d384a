/*
 * piece_trie.h -- the pieces of a vocabulary as a trie of bytes: finds those at a place of a text.
 *
 * A double array: the child of a node for a byte is one lookup. Nodes are numbers; 0 is the root, and also the answer
 * "no such child", because the root is never a child.
 *
 *     for (uint32_t at = 0, i = 0; i < bytes && (at = aq_piece_trie_next(trie, at, text[i])) != 0; i++)
 *         if (trie->units[at].token != AQ_PIECE_NONE) found(i + 1, trie->units[at].token);
 *
 * Locking: a trie does not change after open; any thread.
 */
#ifndef STAGES_PIECE_TRIE_H
#define STAGES_PIECE_TRIE_H

#include <stdint.h>

#include "aqsgd/base.h"

#define AQ_PIECE_NONE UINT32_MAX

/* Units of a trie at most: 768 MiB. 250,000 pieces of eight bytes need about two million. */
enum { AQ_PIECE_UNITS_MAX = 1 << 26 };

struct aq_piece {
    const uint8_t *bytes; /* borrowed until open returns */
    uint32_t count, token;
};

struct aq_piece_unit {
    uint32_t base;   /* the child for a byte is the unit base ^ byte, if its parent is this one */
    uint32_t parent; /* AQ_PIECE_NONE: the unit is free, or the root */
    uint32_t token;  /* of the piece that ends here, or AQ_PIECE_NONE */
};

struct aq_piece_trie {
    struct aq_piece_unit *units;
    uint32_t count; /* a multiple of 256 */
};

/* pieces: no two alike, none empty; they are sorted. AQ_INVAL: more than AQ_PIECE_UNITS_MAX units. AQ_NOMEM. */
enum aq_status aq_piece_trie_open(struct aq_piece *pieces, uint32_t count, struct aq_piece_trie **out);
void aq_piece_trie_close(struct aq_piece_trie *trie); /* NULL is fine */

/* The node behind `byte`, or 0. Bases stay within the array in blocks of 256, so that any byte has a unit. */
static inline uint32_t aq_piece_trie_next(const struct aq_piece_trie *trie, uint32_t at, uint8_t byte)
{
    const uint32_t child = trie->units[at].base ^ byte;
    return trie->units[child].parent == at ? child : 0;
}

#endif
