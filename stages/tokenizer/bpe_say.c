/*
 * bpe_say.c -- the text of each token: its bytes, or what the decoders of its file make of them.
 *
 * Decoders are run once, over all tokens, when a file is opened. Some make something else of the first token of a text
 * (WordPiece puts no space before it), so that there is a second table for those.
 */
#include "bpe.h"

#include <string.h>

void aq_bpe_said_close(struct aq_bpe_said *said)
{
    aq_free(said->start);
    aq_free(said->bytes);
    *said = (struct aq_bpe_said){0};
}

const uint8_t *aq_bpe_vocabulary_text(const struct aq_bpe_vocabulary *v, uint32_t token, bool first, uint32_t *bytes)
{
    const struct aq_bpe_said *said = first && v->said_first.start ? &v->said_first : &v->said;
    const uint32_t *start = said->start ? said->start : v->start;
    *bytes = start[token + 1] - start[token];
    return (said->start ? said->bytes : v->bytes) + start[token];
}

/* A new table: the decoder's output for each text of the present one. */
static enum aq_status say_all(const struct aq_bpe_vocabulary *v, const char *place, bool first, aq_bpe_say *say,
                              void *context, struct aq_bpe_said *out)
{
    struct aq_bpe_budget budget;
    uint32_t bytes;
    enum aq_status status = AQ_OK;
    aq_bpe_budget_begin(&budget, v->start[v->count]);
    struct aq_bpe_text text = aq_bpe_text_within(&budget, place);
    uint32_t *start;
    AQ_TRY(AQ_NEW((size_t)v->count + 1, &start));
    for (uint32_t token = 0; token < v->count && status == AQ_OK; token++) {
        const uint8_t *from = aq_bpe_vocabulary_text(v, token, first, &bytes);
        status = bytes ? say(context, from, bytes, first, &text) : AQ_OK; /* a hole has no text */
        start[token + 1] = (uint32_t)text.count;
    }
    if (status == AQ_OK && !text.at) status = aq_bpe_text_add(&text, "", 0);
    if (status != AQ_OK) {
        aq_bpe_text_free(&text);
        aq_free(start);
        return status;
    }
    *out = (struct aq_bpe_said){.start = start, .bytes = text.at};
    return AQ_OK;
}

enum aq_status aq_bpe_vocabulary_say(struct aq_bpe_vocabulary *v, const char *place, bool differs, aq_bpe_say *say,
                                     void *context)
{
    struct aq_bpe_said first = {0}, others = {0};
    AQ_TRY(say_all(v, place, false, say, context, &others));
    const enum aq_status status =
        differs || v->said_first.start ? say_all(v, place, true, say, context, &first) : AQ_OK;
    if (status != AQ_OK) {
        aq_bpe_said_close(&others);
        return status;
    }
    aq_bpe_said_close(&v->said);
    aq_bpe_said_close(&v->said_first);
    v->said = others;
    v->said_first = first;
    return AQ_OK;
}

const uint8_t *aq_bpe_token(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes)
{
    const struct aq_bpe *bpe = tokenizer->state;
    return aq_bpe_vocabulary_text(&bpe->vocabulary, token, false, bytes);
}

const uint8_t *aq_bpe_first_token(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes)
{
    const struct aq_bpe *bpe = tokenizer->state;
    return aq_bpe_vocabulary_text(&bpe->vocabulary, token, true, bytes);
}

void aq_bpe_cut_text(const struct aq_bpe_cut *cut, const char *text, size_t bytes, size_t *start, size_t *end)
{
    const size_t length = strlen(cut->character);
    *start = 0;
    *end = bytes;
    for (uint32_t i = 0; i < cut->start && *end - *start >= length; i++) {
        if (memcmp(text + *start, cut->character, length) != 0) break;
        *start += length;
    }
    for (uint32_t i = 0; i < cut->end && *end - *start >= length; i++) {
        if (memcmp(text + *end - length, cut->character, length) != 0) break;
        *end -= length;
    }
}

void aq_bpe_cut_whole(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes, size_t *start, size_t *end)
{
    const struct aq_bpe *bpe = tokenizer->state;
    aq_bpe_cut_text(&bpe->vocabulary.cut, text, bytes, start, end);
}
