/*
 * bpe_wordpiece.c -- WordPiece: from the left the longest piece that fits; a piece within a word has a prefix ("##") in
 * the vocabulary. A word that is not made of pieces in this way, or is too long, is one unknown token.
 */
#include "bpe.h"

static size_t characters_of(const uint8_t *word, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += (word[i] & 0xC0) != 0x80;
    return count;
}

enum aq_status aq_bpe_pieces_open(struct aq_bpe *bpe)
{
    const struct aq_bpe_vocabulary *v = &bpe->vocabulary;
    uint32_t count = 0;
    struct aq_piece *pieces;
    AQ_TRY(AQ_NEW(v->name_slots, &pieces));
    for (uint64_t i = 0; i < v->name_slots; i++) {
        if (v->names[i] == 0) continue;
        const uint32_t token = v->names[i] - 1;
        pieces[count++] = (struct aq_piece){v->bytes + v->start[token], v->start[token + 1] - v->start[token], token};
    }
    const enum aq_status status =
        count ? aq_piece_trie_open(pieces, count, &bpe->pieces.trie)
              : aq_fail(AQ_CORRUPT, AQ_BPE_AREA,
                        "model.vocab: no piece is written in the characters of ByteLevel. Remove ByteLevel from "
                        "pre_tokenizer, or save the tokenizer again");
    aq_free(pieces);
    return status;
}

void aq_bpe_pieces_close(struct aq_bpe_pieces *pieces)
{
    aq_piece_trie_close(pieces->trie);
    aq_free(pieces->scores);
}

/* The longest piece from node `at` of the trie on: its token, or NONE. *end: behind it; *steps: of the trie. */
static uint32_t longest_piece(const struct aq_piece_trie *trie, uint32_t at, const uint8_t *word, size_t bytes,
                              size_t *end, uint64_t *steps)
{
    uint32_t token = AQ_PIECE_NONE;
    for (size_t i = *end; i < bytes && (at = aq_piece_trie_next(trie, at, word[i])) != 0; i++) {
        ++*steps;
        if (trie->units[at].token == AQ_PIECE_NONE) continue;
        token = trie->units[at].token;
        *end = i + 1;
    }
    return token;
}

enum aq_status aq_bpe_wordpiece_word(const struct aq_bpe *bpe, struct aq_bpe_budget *budget, const uint8_t *word,
                                     size_t bytes, struct aq_token_list *list)
{
    const size_t first = list->count;
    uint64_t steps = 0;
    AQ_TRY(aq_token_list_reserve(list, bytes));
    bool known = (bpe->vocabulary.characters ? characters_of(word, bytes) : bytes) <= bpe->pieces.characters_max;
    for (size_t at = 0; known && at < bytes;) {
        const uint32_t node = at ? bpe->pieces.continuing : 0;
        const uint32_t token =
            node == AQ_PIECE_NONE ? AQ_PIECE_NONE : longest_piece(bpe->pieces.trie, node, word, bytes, &at, &steps);
        if (!aq_bpe_budget_take(budget, steps > 64 ? steps : 0))
            return aq_fail(AQ_INVAL, AQ_BPE_AREA,
                           "model: WordPiece takes too much time on this text, at byte %zu of a word of %zu bytes. "
                           "Remove the longest pieces from model.vocab, or set model.max_input_chars_per_word to 100",
                           at, bytes);
        steps = 0;
        known = token != AQ_PIECE_NONE;
        if (known) list->at[list->count++] = (int32_t)token;
    }
    if (known) return AQ_OK;
    list->count = first;
    list->at[list->count++] = (int32_t)bpe->vocabulary.unknown;
    return AQ_OK;
}
