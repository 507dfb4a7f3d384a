/*
 * chat_tokens.c -- from bytes of a conversation's text that are answers to tokens that are.
 *
 * Mostly the tokens' bytes, one behind the other, are the text: then a token's place is known. Otherwise (the tokenizer
 * normalises, or drops blanks next to a special token) the text up to an answer's start and end is tokenized
 * separately: as long as both lists of tokens agree they are of the same bytes, and the first that differs has bytes of
 * both sides.
 */
#include <string.h>

#include "chat_private.h"
#include "tokenizer.h"

void aq_chat_tokens_free(struct aq_chat_tokens *tokens)
{
    aq_free(tokens->tokens);
    aq_free(tokens->answer);
    *tokens = (struct aq_chat_tokens){0};
}

static void mark(struct aq_chat_tokens *out, size_t begin, size_t end)
{
    for (size_t i = begin; i < end && i < out->count; i++) {
        out->answer_tokens += !out->answer[i];
        out->answer[i] = 1;
    }
}

/* False: the tokens' bytes are not the text; nothing is marked. */
static bool mark_by_bytes(const struct aq_tokenizer *tokenizer, const struct aq_chat_text *text,
                          struct aq_chat_tokens *out)
{
    uint32_t bytes, answer = 0;
    size_t at = 0;
    for (size_t i = 0; i < out->count; i++, at += bytes) {
        const uint8_t *token = tokenizer->kind->token(tokenizer, (uint32_t)out->tokens[i], &bytes);
        if (bytes > text->bytes - at || (bytes && memcmp(token, text->text + at, bytes) != 0)) return false;
    }
    if (at != text->bytes) return false;
    at = 0;
    for (size_t i = 0; i < out->count; i++, at += bytes) {
        tokenizer->kind->token(tokenizer, (uint32_t)out->tokens[i], &bytes);
        while (answer < text->answer_count && text->answers[answer].end <= at)
            answer++;
        if (answer < text->answer_count && text->answers[answer].begin < at + bytes) mark(out, i, i + 1);
    }
    return true;
}

/* A place in the text that is known to be one between two of its tokens. */
struct known {
    size_t bytes, tokens;
};

/* How many tokens bytes [from, bytes) have alike with what is behind `from`; *length: they have by themselves. */
static enum aq_status alike_from(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes,
                                 const struct known *from, const struct aq_chat_tokens *all, size_t *same,
                                 size_t *length)
{
    int32_t *tokens = NULL;
    const int32_t *to = all->tokens + from->tokens;
    size_t count = 0;
    AQ_TRY(aq_tokenizer_encode(tokenizer, text + from->bytes, bytes - from->bytes, &tokens, length));
    while (count < *length && from->tokens + count < all->count && tokens[count] == to[count])
        count++;
    aq_free(tokens);
    *same = count;
    return AQ_OK;
}

/*
 * How many tokens the text's first bytes have alike with all of it; *whole: all that these bytes have by themselves.
 * The text is tokenized from the last known place on; if even the first token differs then (the tokenizer puts
 * something before a text), from its start.
 */
static enum aq_status alike(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes,
                            const struct aq_chat_tokens *all, struct known *known, size_t *count, bool *whole)
{
    size_t same, length;
    if (bytes > known->bytes) AQ_TRY(alike_from(tokenizer, text, bytes, known, all, &same, &length));
    if (bytes <= known->bytes || same == 0) {
        *known = (struct known){.bytes = 0};
        AQ_TRY(alike_from(tokenizer, text, bytes, known, all, &same, &length));
    }
    *count = known->tokens + same;
    *whole = same == length;
    if (*whole) *known = (struct known){.bytes = bytes, .tokens = *count};
    return AQ_OK;
}

static enum aq_status mark_by_parts(const struct aq_tokenizer *tokenizer, const struct aq_chat_text *text,
                                    struct aq_chat_tokens *out)
{
    struct known known = {.bytes = 0};
    for (uint32_t i = 0; i < text->answer_count; i++) {
        size_t begin, end;
        bool whole;
        AQ_TRY(alike(tokenizer, text->text, text->answers[i].begin, out, &known, &begin, &whole));
        AQ_TRY(alike(tokenizer, text->text, text->answers[i].end, out, &known, &end, &whole));
        mark(out, begin, whole ? end : end + 1);
    }
    return AQ_OK;
}

static enum aq_status tokenize(const struct aq_tokenizer *tokenizer, const struct aq_chat_text *text,
                               struct aq_chat_tokens *out)
{
    AQ_TRY(aq_tokenizer_encode(tokenizer, text->text, text->bytes, &out->tokens, &out->count));
    AQ_TRY(AQ_NEW(out->count, &out->answer));
    return mark_by_bytes(tokenizer, text, out) ? AQ_OK : mark_by_parts(tokenizer, text, out);
}

enum aq_status aq_chat_tokenize(const struct aq_chat_template *template_, const struct aq_tokenizer *tokenizer,
                                const char *line, size_t bytes, const struct aq_chat_config *config,
                                struct aq_chat_tokens *out)
{
    struct aq_chat_text text;
    struct aq_chat_tokens made = {0};
    AQ_TRY(aq_chat_answers(template_, line, bytes, config, &text));
    const enum aq_status status = tokenize(tokenizer, &text, &made);
    aq_chat_text_free(&text);
    if (status != AQ_OK)
        aq_chat_tokens_free(&made);
    else
        *out = made;
    return status;
}
