/*
 * bpe_encode.c -- a text to tokens: added tokens, valid runs, normalizers, words, merges; most words out of a cache.
 *
 * A call takes the cache and PCRE2's memory of the last one: for each line of a table both would take longer to make
 * than to use. An entry holds a word of up to 32 bytes and its tokens, up to 7 of them, in one cache line,
 * so that a word seen again costs a hash, one line and a copy. Other words are merged again.
 */
#include "bpe.h"

#include <stdatomic.h>
#include <string.h>

#include "unicode_forms.h"

/* 32768 entries hold most words of an English text: 2 MiB, a core's second-level cache. */
enum { CACHE_SLOTS_MAX = 1 << 15, CACHE_SLOTS_MIN = 1 << 8, CACHED_BYTES_MAX = 32, CACHED_TOKENS_MAX = 7 };

struct seen_word {
    uint64_t key[4];
    int32_t tokens[CACHED_TOKENS_MAX];
    uint8_t bytes; /* 0: the slot is free */
    uint8_t count;
    uint8_t zero[2];
};
static_assert(sizeof(struct seen_word) == 64, "an entry is a cache line");

struct aq_bpe_call {
    const struct aq_bpe *bpe;
    struct aq_token_list *list;
    struct aq_bpe_scratch scratch;
    struct aq_bpe_matcher *matcher;
    struct seen_word *seen;
    unsigned slot_bits;
};

/* What a call leaves for the next one. */
struct aq_bpe_kept {
    struct aq_bpe_matcher *matcher;
    struct seen_word *seen;
    size_t slots; /* a power of two */
};

static void kept_close(struct aq_bpe_kept *kept)
{
    if (!kept) return;
    aq_bpe_matcher_close(kept->matcher);
    aq_free(kept->seen);
    aq_free(kept);
}

/* The last call's, with at least so many slots, or new. Calls at the same time each have their own. */
static enum aq_status kept_take(struct aq_bpe *bpe, size_t slots, struct aq_bpe_kept **out)
{
    enum aq_status status = AQ_OK;
    struct aq_bpe_kept *kept = atomic_exchange(&bpe->kept, NULL);
    if (!kept) {
        AQ_TRY(AQ_NEW(1, &kept));
        AQ_TRY_GOTO(aq_bpe_matcher_open(&kept->matcher), out);
    }
    if (kept->slots < slots) {
        aq_free(kept->seen);
        kept->seen = NULL;
        kept->slots = slots;
        AQ_TRY_GOTO(AQ_NEW(slots, &kept->seen), out);
    }
    *out = kept;
out:
    if (status != AQ_OK) kept_close(kept);
    return status;
}

void aq_bpe_close(struct aq_bpe *bpe)
{
    kept_close(atomic_load(&bpe->kept));
    for (uint32_t i = 0; i < bpe->normal_count; i++) {
        aq_bpe_pattern_close(bpe->normals[i].pattern);
        aq_free(bpe->normals[i].content);
        aq_free(bpe->normals[i].place);
        aq_charsmap_close(bpe->normals[i].charsmap);
    }
    for (uint32_t i = 0; i < bpe->step_count; i++)
        aq_bpe_pattern_close(bpe->steps[i].pattern);
    aq_bpe_finder_close(bpe->raw);
    aq_bpe_finder_close(bpe->normalized);
    aq_unicode_forms_close(bpe->forms);
    aq_bpe_pieces_close(&bpe->pieces);
    aq_bpe_vocabulary_close(&bpe->vocabulary);
}

/* ---- words ---- */

static uint64_t load(const uint8_t *at, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    return value;
}

/* Words of one length have one key only if they are alike: it holds all their bytes, some of them twice. */
static uint64_t word_key(const uint8_t *word, size_t bytes, uint64_t key[4])
{
    const uint64_t odd = UINT64_C(0x9E3779B97F4A7C15), other = UINT64_C(0xC2B2AE3D27D4EB4F);
    key[1] = key[2] = key[3] = 0;
    if (bytes >= 16) {
        key[0] = load(word, 8);
        key[1] = load(word + 8, 8);
        key[2] = load(word + bytes - 16, 8);
        key[3] = load(word + bytes - 8, 8);
    } else if (bytes >= 8) {
        key[0] = load(word, 8);
        key[1] = load(word + bytes - 8, 8);
    } else if (bytes >= 4)
        key[0] = load(word, 4) | load(word + bytes - 4, 4) << 32;
    else
        key[0] = word[0] | (uint64_t)word[bytes / 2] << 8 | (uint64_t)word[bytes - 1] << 16;
    uint64_t hash = (key[0] + bytes) * odd;
    hash = ((hash ^ hash >> 32) + key[1]) * other;
    if (bytes >= 16) hash = ((hash ^ hash >> 32) + key[2] + (key[3] << 7 | key[3] >> 57)) * odd;
    return (hash ^ hash >> 29) * other;
}

static enum aq_status add_token(struct aq_token_list *list, uint32_t token)
{
    AQ_TRY(aq_token_list_reserve(list, 1));
    list->at[list->count++] = (int32_t)token;
    return AQ_OK;
}

static enum aq_status whole_word(const struct aq_bpe_vocabulary *v, const uint8_t *word, size_t bytes,
                                 struct aq_token_list *list)
{
    const uint32_t token = aq_bpe_vocabulary_find(v, word, bytes);
    return add_token(list, token == AQ_BPE_NONE ? v->unknown : token);
}

static enum aq_status model_word(struct aq_bpe_call *call, const uint8_t *word, size_t bytes)
{
    const struct aq_bpe *bpe = call->bpe;
    switch (bpe->model) {
    case AQ_BPE_MERGES:
        return aq_bpe_merge_word(&bpe->vocabulary, &call->scratch, word, bytes, call->list);
    case AQ_BPE_UNIGRAM:
        return aq_bpe_unigram_word(bpe, &call->scratch, aq_bpe_matcher_budget(call->matcher), word, bytes, call->list);
    case AQ_BPE_WORDPIECE:
        return aq_bpe_wordpiece_word(bpe, aq_bpe_matcher_budget(call->matcher), word, bytes, call->list);
    case AQ_BPE_WORDS:
        return whole_word(&bpe->vocabulary, word, bytes, call->list);
    }
    return aq_fail(AQ_INVAL, AQ_BPE_AREA, "there is no such model");
}

/* A word of any length; one beyond the bound is taken in pieces. */
static enum aq_status take_pieces(struct aq_bpe_call *call, const uint8_t *word, size_t bytes)
{
    const struct aq_bpe_vocabulary *v = &call->bpe->vocabulary;
    for (size_t start = 0; start < bytes;) {
        size_t piece = bytes - start < AQ_BPE_WORD_BYTES_MAX ? bytes - start : AQ_BPE_WORD_BYTES_MAX;
        for (int back = 0; v->characters && start + piece < bytes && back < 4 && (word[start + piece] & 0xC0) == 0x80;
             back++)
            piece--;
        AQ_TRY(model_word(call, word + start, piece));
        start += piece;
    }
    return AQ_OK;
}

static enum aq_status word_tokens(struct aq_bpe_call *call, const uint8_t *word, size_t bytes)
{
    if (call->bpe->whole_words) {
        const uint32_t token = aq_bpe_vocabulary_find(&call->bpe->vocabulary, word, bytes);
        if (token != AQ_BPE_NONE) return add_token(call->list, token);
    }
    return take_pieces(call, word, bytes);
}

static enum aq_status encode_word(struct aq_bpe_call *call, const uint8_t *word, size_t bytes)
{
    uint64_t key[4];
    struct aq_token_list *list = call->list;
    if (bytes > CACHED_BYTES_MAX) return word_tokens(call, word, bytes);
    struct seen_word *seen = &call->seen[word_key(word, bytes, key) >> (64 - call->slot_bits)];
    if (seen->bytes == bytes && seen->key[0] == key[0] && seen->key[1] == key[1] && seen->key[2] == key[2] &&
        seen->key[3] == key[3]) {
        AQ_TRY(aq_token_list_reserve(list, CACHED_TOKENS_MAX)); /* all are copied: a fixed count is quicker */
        memcpy(list->at + list->count, seen->tokens, sizeof seen->tokens);
        list->count += seen->count;
        return AQ_OK;
    }
    const size_t first = list->count;
    AQ_TRY(word_tokens(call, word, bytes));
    const size_t count = list->count - first;
    if (count > CACHED_TOKENS_MAX) return AQ_OK;
    memcpy(seen->key, key, sizeof key);
    if (count) memcpy(seen->tokens, list->at + first, count * sizeof(int32_t));
    seen->bytes = (uint8_t)bytes;
    seen->count = (uint8_t)count;
    return AQ_OK;
}

/* ---- texts ---- */

typedef enum aq_status encode_part(struct aq_bpe_call *call, const uint8_t *text, size_t bytes);

/* All parts in order, with the added tokens between them. */
static enum aq_status between(struct aq_bpe_call *call, const struct aq_bpe_finder *finder, const uint8_t *text,
                              size_t bytes, encode_part *part)
{
    struct aq_bpe_place place = {0};
    struct aq_bpe_budget *budget = aq_bpe_matcher_budget(call->matcher);
    const bool first = budget->first;
    size_t done = 0, next = 0;
    while (finder && aq_bpe_finder_next(finder, text, bytes, &next, &place)) {
        budget->first = first && done == 0;
        if (place.start > done) AQ_TRY(part(call, text + done, place.start - done));
        AQ_TRY(add_token(call->list, place.token));
        done = place.end;
    }
    budget->first = first && done == 0;
    return done < bytes ? part(call, text + done, bytes - done) : AQ_OK;
}

static enum aq_status words_of(struct aq_bpe_call *call, const uint8_t *text, size_t bytes)
{
    return aq_bpe_split(call->bpe, 0, call->matcher, text, bytes, encode_word, call);
}

static enum aq_status normalized(struct aq_bpe_call *call, const uint8_t *text, size_t bytes)
{
    struct aq_bpe_text normal = {0};
    bool changed;
    enum aq_status status = aq_bpe_normalize(call->bpe, call->matcher, text, bytes, &normal, &changed);
    if (status == AQ_OK)
        status =
            between(call, call->bpe->normalized, changed ? normal.at : text, changed ? normal.count : bytes, words_of);
    aq_bpe_text_free(&normal);
    return status;
}

/* Runs of valid text and of invalid bytes; each of the latter is one word. */
static enum aq_status runs(struct aq_bpe_call *call, const uint8_t *text, size_t bytes)
{
    const bool first = aq_bpe_matcher_budget(call->matcher)->first;
    for (size_t at = 0; at < bytes;) {
        const bool valid = aq_bpe_character(text + at, bytes - at) > 0;
        const size_t end = aq_bpe_run_end(text, bytes, at, valid);
        aq_bpe_matcher_budget(call->matcher)->first = first && at == 0;
        AQ_TRY((valid ? normalized : encode_word)(call, text + at, end - at));
        at = end;
    }
    return AQ_OK;
}

enum aq_status aq_bpe_encode(const struct aq_tokenizer *tokenizer, const uint8_t *text, size_t bytes,
                             struct aq_token_list *list)
{
    struct aq_bpe *bpe = tokenizer->state;
    struct aq_bpe_kept *kept;
    size_t slots = CACHE_SLOTS_MIN;
    while (slots < CACHE_SLOTS_MAX && slots < bytes / 8)
        slots *= 2;
    AQ_TRY(kept_take(bpe, slots, &kept));
    struct aq_bpe_call call = {.bpe = bpe, .list = list, .matcher = kept->matcher, .seen = kept->seen};
    call.slot_bits = (unsigned)__builtin_ctzll(kept->slots);
    aq_bpe_budget_begin(aq_bpe_matcher_budget(call.matcher), bytes);
    const enum aq_status status = between(&call, bpe->raw, text, bytes, runs);
    aq_bpe_scratch_free(&call.scratch);
    aq_bpe_matcher_rest(kept->matcher);
    kept_close(atomic_exchange(&bpe->kept, kept));
    return status;
}
