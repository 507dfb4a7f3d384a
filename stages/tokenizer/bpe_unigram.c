/*
 * bpe_unigram.c -- Unigram: of all ways to cut a word into pieces, the one with the largest sum of their scores
 * (logarithms of probabilities).
 *
 * At each end of a character the best way so far is kept: its sum, where its last piece starts, which token that is. A
 * character that is no piece is the unknown token, with the least score of all and 10 less. Then, as in the package:
 * unknown characters in a row are one text, and that is a piece of the vocabulary, or the tokens of its bytes
 * (byte_fallback), or one unknown token. Of two ways with one sum the one that is found first is taken: the one whose
 * last piece is longer.
 *
 * Pieces may be long and a text repetitive, so that each step in the trie is taken from the budget of the text.
 */
#include "bpe.h"

#include <string.h>

enum { PATH_NONE = -1, STEPS_AT_ONCE = 4096 };

struct aq_bpe_path {
    double score;
    int32_t start; /* of the last piece; PATH_NONE: no way ends here yet */
    uint32_t token;
};

/* The bytes of a word are at most 2^20, so that a start fits its field. */
static_assert(AQ_BPE_WORD_BYTES_MAX < INT32_MAX, "a start of a piece fits 32 bits");

static enum aq_status path_reserve(struct aq_bpe_scratch *scratch, size_t bytes)
{
    size_t room = 256;
    if (bytes <= scratch->path_max) return AQ_OK;
    while (room < bytes)
        room *= 2;
    aq_free(scratch->path);
    scratch->path = NULL;
    scratch->path_max = 0;
    AQ_TRY(AQ_NEW(room + 1, &scratch->path));
    scratch->path_max = room;
    return AQ_OK;
}

static void offer_path(struct aq_bpe_path *path, size_t start, size_t end, double score, uint32_t token)
{
    if (path[end].start != PATH_NONE && !(score > path[end].score)) return;
    path[end] = (struct aq_bpe_path){.score = score, .start = (int32_t)start, .token = token};
}

/* All pieces that start at `start`; how many bytes the trie was followed. *single: one of them is the character. */
static size_t offer_pieces(const struct aq_bpe_pieces *pieces, struct aq_bpe_path *path, const uint8_t *word,
                           size_t bytes, size_t start, size_t character, bool *single)
{
    const double before = path[start].score;
    size_t end = start;
    for (uint32_t at = 0; end < bytes && (at = aq_piece_trie_next(pieces->trie, at, word[end])) != 0;) {
        const uint32_t token = pieces->trie->units[at].token;
        end++;
        if (token == AQ_PIECE_NONE) continue;
        offer_path(path, start, end, pieces->scores[token] + before, token);
        *single = *single || end - start == character;
    }
    return end - start;
}

static enum aq_status find_path(const struct aq_bpe *bpe, struct aq_bpe_budget *budget, struct aq_bpe_path *path,
                                const uint8_t *word, size_t bytes)
{
    size_t steps = 0, length;
    for (size_t i = 0; i <= bytes; i++)
        path[i] = (struct aq_bpe_path){.start = PATH_NONE};
    for (size_t start = 0; start < bytes; start += length) {
        bool single = false;
        length = bpe->vocabulary.characters ? aq_bpe_character(word + start, bytes - start) : 1;
        if (length == 0) length = 1;
        steps += offer_pieces(&bpe->pieces, path, word, bytes, start, length, &single);
        if (steps >= STEPS_AT_ONCE) {
            if (!aq_bpe_budget_take(budget, steps))
                return aq_fail(AQ_INVAL, AQ_BPE_AREA,
                               "model: Unigram takes too much time on this text, at byte %zu of a word of %zu bytes. "
                               "Remove the longest pieces from model.vocab, or use another tokenizer",
                               start, bytes);
            steps = 0;
        }
        if (single) continue;
        if (bpe->vocabulary.unknown == AQ_BPE_NONE)
            return aq_fail(
                AQ_INVAL, AQ_BPE_AREA,
                "model: the text has a character that is not a piece of model.vocab, at byte %zu of a word of %zu "
                "bytes, and model.unk_id names no unknown token. Add the character to model.vocab, or set model.unk_id",
                start, bytes);
        offer_path(path, start, start + length, bpe->pieces.unknown_score + path[start].score, bpe->vocabulary.unknown);
    }
    return AQ_OK;
}

/* Unknown characters in a row; tokens are written from the last to the first. */
static void put_unknown(const struct aq_bpe_vocabulary *v, const uint8_t *text, size_t bytes,
                        struct aq_token_list *list)
{
    const uint32_t token = aq_bpe_vocabulary_find(v, text, bytes);
    bool fallback = v->fallback;
    for (size_t i = 0; token == AQ_BPE_NONE && i < bytes; i++)
        fallback = fallback && v->byte_token[text[i]] != AQ_BPE_NONE;
    if (token != AQ_BPE_NONE || !fallback)
        list->at[list->count++] = (int32_t)(token != AQ_BPE_NONE ? token : v->unknown);
    else
        for (size_t i = bytes; i-- > 0;)
            list->at[list->count++] = (int32_t)v->byte_token[text[i]];
}

static void put_path(const struct aq_bpe_vocabulary *v, const struct aq_bpe_path *path, const uint8_t *word,
                     size_t bytes, struct aq_token_list *list)
{
    const size_t first = list->count;
    for (size_t end = bytes, start; end > 0; end = start) {
        start = (size_t)path[end].start;
        if (path[end].token != v->unknown) {
            list->at[list->count++] = (int32_t)path[end].token;
            continue;
        }
        while (start > 0 && path[start].token == v->unknown)
            start = (size_t)path[start].start;
        put_unknown(v, word + start, end - start, list);
    }
    for (size_t a = first, b = list->count; a + 1 < b; a++) {
        const int32_t token = list->at[--b];
        list->at[b] = list->at[a];
        list->at[a] = token;
    }
}

enum aq_status aq_bpe_unigram_word(const struct aq_bpe *bpe, struct aq_bpe_scratch *scratch,
                                   struct aq_bpe_budget *budget, const uint8_t *word, size_t bytes,
                                   struct aq_token_list *list)
{
    AQ_ASSERT(bytes > 0 && bytes <= AQ_BPE_WORD_BYTES_MAX);
    AQ_TRY(path_reserve(scratch, bytes));
    AQ_TRY(find_path(bpe, budget, scratch->path, word, bytes));
    AQ_TRY(aq_token_list_reserve(list, bytes));
    put_path(&bpe->vocabulary, scratch->path, word, bytes, list);
    return AQ_OK;
}
