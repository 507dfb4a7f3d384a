/*
 * tokenizer_gpt2.c -- GPT-2's byte-level BPE: words from the pre-tokenizer, merged by rank, most of them out of a
 * cache.
 *
 * The cache is of one call and holds no copies: an entry says where in the text a word was seen and where in the list
 * of tokens its own stand. A word seen again costs a hash, a comparison and a copy of one or two tokens.
 *
 * "<|endoftext|>" in a text is the one token of that name, where the vocabulary has it: what stands before it and
 * behind it is cut into words apart.
 */
#include "tokenizer_gpt2.h"

#include <string.h>

struct gpt2 {
    struct aq_gpt2_vocabulary vocabulary;
    struct aq_gpt2_pattern *pattern;
};

/* 65536 entries hold most words of an English text and fit a core's second-level cache. */
enum { CACHE_SLOTS_MAX = 1 << 16, CACHE_SLOTS_MIN = 1 << 8, CACHED_BYTES_MAX = 255 };

struct seen_word {
    uint64_t text, tokens; /* where it was: the word, and its tokens */
    uint32_t hash;
    uint16_t bytes; /* 0: the slot is free */
    uint16_t count;
};

struct encoding {
    const struct aq_gpt2_vocabulary *vocabulary;
    const uint8_t *text;
    struct aq_token_list *list;
    struct aq_gpt2_scratch scratch;
    struct seen_word *seen;
    uint64_t slots;
};

static void gpt2_close(struct aq_tokenizer *tokenizer)
{
    struct gpt2 *state = tokenizer->state;
    aq_gpt2_pattern_close(state->pattern);
    aq_gpt2_vocabulary_close(&state->vocabulary);
    aq_free(state);
}

static enum aq_status gpt2_open(struct aq_tokenizer *tokenizer, const char *path)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct gpt2), &memory));
    struct gpt2 *state = tokenizer->state = memory;
    enum aq_status status = aq_gpt2_vocabulary_open(path, &state->vocabulary);
    if (status == AQ_OK) status = aq_gpt2_pattern_open(&state->pattern);
    if (status != AQ_OK) {
        gpt2_close(tokenizer);
        return status;
    }
    tokenizer->vocabulary = state->vocabulary.count;
    tokenizer->end_of_text = state->vocabulary.end_of_text;
    return AQ_OK;
}

/* A word of any length; beyond the bound it is merged in pieces. */
static enum aq_status merge_pieces(struct encoding *e, size_t start, size_t end)
{
    while (start < end) {
        size_t bytes = end - start < AQ_GPT2_WORD_BYTES_MAX ? end - start : AQ_GPT2_WORD_BYTES_MAX;
        AQ_TRY(aq_gpt2_merge_word(e->vocabulary, &e->scratch, e->text + start, bytes, e->list));
        start += bytes;
    }
    return AQ_OK;
}

static enum aq_status encode_word(struct encoding *e, size_t start, size_t end)
{
    const uint8_t *word = e->text + start;
    size_t bytes = end - start;
    if (bytes > CACHED_BYTES_MAX) return merge_pieces(e, start, end);
    uint64_t hash = aq_digest(word, bytes);
    struct seen_word *seen = &e->seen[hash & (e->slots - 1)];
    struct aq_token_list *list = e->list;
    if (seen->bytes == bytes && seen->hash == hash >> 32 && memcmp(e->text + seen->text, word, bytes) == 0) {
        AQ_TRY(aq_token_list_reserve(list, seen->count));
        for (uint32_t i = 0; i < seen->count; i++)
            list->at[list->count + i] = list->at[seen->tokens + i];
        list->count += seen->count;
        return AQ_OK;
    }
    size_t first = list->count;
    AQ_TRY(merge_pieces(e, start, end));
    *seen = (struct seen_word){.text = start,
                               .tokens = first,
                               .hash = (uint32_t)(hash >> 32),
                               .bytes = (uint16_t)bytes,
                               .count = (uint16_t)(list->count - first)};
    return AQ_OK;
}

/* The words of text[first .. end). */
static enum aq_status encode_part(struct encoding *e, const struct aq_gpt2_pattern *pattern, size_t first, size_t end)
{
    struct aq_gpt2_words *words = NULL;
    enum aq_status status;
    if (first == end) return AQ_OK;
    AQ_TRY(aq_gpt2_words_open(pattern, e->text + first, end - first, &words));
    for (size_t from, to;;) {
        status = aq_gpt2_words_next(words, &from, &to);
        if (status != AQ_OK) break;
        AQ_TRY_GOTO(encode_word(e, first + from, first + to), out);
    }
    if (status == AQ_NOTFOUND) status = AQ_OK; /* the end of the part */
out:
    aq_gpt2_words_close(words);
    return status;
}

/* Part after part, with the end-of-text token between them. */
static enum aq_status encode_parts(struct encoding *e, const struct gpt2 *state, size_t bytes)
{
    const struct aq_gpt2_vocabulary *v = &state->vocabulary;
    const int32_t end = v->end_of_text;
    const uint8_t *special = end >= 0 ? v->bytes + v->start[end] : NULL;
    const size_t special_bytes = end >= 0 ? v->start[end + 1] - v->start[end] : 0;
    for (size_t at = 0;;) {
        const uint8_t *found = special_bytes ? memmem(e->text + at, bytes - at, special, special_bytes) : NULL;
        const size_t until = found ? (size_t)(found - e->text) : bytes;
        AQ_TRY(encode_part(e, state->pattern, at, until));
        if (!found) return AQ_OK;
        AQ_TRY(aq_token_list_reserve(e->list, 1));
        e->list->at[e->list->count++] = end;
        at = until + special_bytes;
    }
}

static enum aq_status gpt2_encode(const struct aq_tokenizer *tokenizer, const uint8_t *text, size_t bytes,
                                  struct aq_token_list *list)
{
    const struct gpt2 *state = tokenizer->state;
    struct encoding e = {.vocabulary = &state->vocabulary, .text = text, .list = list, .slots = CACHE_SLOTS_MIN};
    AQ_ASSERT(list->count == 0); /* seen words point into this list */
    while (e.slots < CACHE_SLOTS_MAX && e.slots < bytes / 8)
        e.slots *= 2;
    void *memory;
    AQ_TRY(aq_alloc(e.slots * sizeof(struct seen_word), &memory));
    e.seen = memory;
    const enum aq_status status = encode_parts(&e, state, bytes);
    aq_gpt2_scratch_free(&e.scratch);
    aq_free(e.seen);
    return status;
}

static const uint8_t *gpt2_token(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes)
{
    const struct gpt2 *state = tokenizer->state;
    const struct aq_gpt2_vocabulary *vocabulary = &state->vocabulary;
    *bytes = vocabulary->start[token + 1] - vocabulary->start[token];
    return vocabulary->bytes + vocabulary->start[token];
}

const struct aq_tokenizer_kind aq_tokenizer_gpt2 = {
    .about = {.name = "gpt2", .files = "vocab.json and merges.txt"},
    .open = gpt2_open,
    .close = gpt2_close,
    .encode = gpt2_encode,
    .token = gpt2_token,
    .published = aq_gpt2_published,
    .published_class = "GPT2Tokenizer",
};
