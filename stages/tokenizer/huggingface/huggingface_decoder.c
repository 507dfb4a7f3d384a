/*
 * huggingface_decoder.c -- decoder of tokenizer.json: the text of each token, and what is cut off the whole text.
 *
 *     Replace       each match of a pattern becomes the content
 *     Metaspace     the replacement becomes a space; in a text's first token it goes, unless the scheme is never
 *     ByteFallback  "<0x0A>" is its byte
 *     WordPiece     a space before each token but the first, none before a "##"; cleanup takes it before punctuation
 *     Strip         takes a character off each token or, behind Fuse, off the whole text
 *     Fuse          joins the tokens, which are joined here anyway
 *
 * Decoders of bytes (ByteLevel) are not needed here: such a vocabulary has its tokens as bytes.
 */
#include <stdio.h>
#include <string.h>

#include "huggingface.h"

struct huggingface_reader {
    struct aq_bpe_vocabulary *vocabulary;
    bool fused;
};

/* No decoder but Strip sees a whole text here. */
static enum aq_status say(const char *place, struct huggingface_reader *reader, bool differs, aq_bpe_say *one,
                          void *context)
{
    if (reader->fused)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s is behind Fuse, which is not supported. Put it before Fuse", place);
    return aq_bpe_vocabulary_say(reader->vocabulary, place, differs, one, context);
}

/* ---- Replace ---- */

struct replacing {
    struct aq_bpe bpe; /* whose only normalizer it is */
    struct aq_bpe_matcher *matcher;
};

static enum aq_status say_replaced(void *context, const uint8_t *text, uint32_t bytes, bool first,
                                   struct aq_bpe_text *out)
{
    struct replacing *self = context;
    struct aq_bpe_text made = {0};
    bool changed = false;
    (void)first;
    if (aq_bpe_run_end(text, bytes, 0, true) < bytes) return aq_bpe_text_add(out, text, bytes); /* a single byte */
    enum aq_status status = aq_bpe_normalize(&self->bpe, self->matcher, text, bytes, &made, &changed);
    if (status == AQ_OK) status = aq_bpe_text_add(out, changed ? made.at : text, changed ? made.count : bytes);
    aq_bpe_text_free(&made);
    return status;
}

static enum aq_status read_replace(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const json_t *content = json_object_get(one, "content");
    const struct aq_bpe_vocabulary *v = reader->vocabulary;
    struct replacing self = {.bpe.normal_count = 1};
    struct aq_bpe_normal *normal = &self.bpe.normals[0];
    enum aq_status status;
    if (!json_is_string(content)) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.content is not a string", place);
    normal->kind = AQ_BPE_REPLACE;
    normal->bytes = json_string_length(content);
    AQ_TRY_GOTO(aq_alloc_text(json_string_value(content), &normal->content), out);
    AQ_TRY_GOTO(aq_alloc_text(place, &normal->place), out);
    AQ_TRY_GOTO(huggingface_pattern(place, one, &normal->pattern), out);
    AQ_TRY_GOTO(aq_bpe_matcher_open(&self.matcher), out);
    aq_bpe_budget_begin(aq_bpe_matcher_budget(self.matcher), v->start[v->count]);
    status = say(place, reader, false, say_replaced, &self);
out:
    aq_bpe_matcher_close(self.matcher);
    aq_bpe_close(&self.bpe);
    return status;
}

/* ---- Metaspace ---- */

struct metaspace {
    const char *space;
    bool prepended; /* the first token of a text has one that the text had not */
};

static enum aq_status say_metaspace(void *context, const uint8_t *text, uint32_t bytes, bool first,
                                    struct aq_bpe_text *out)
{
    const struct metaspace *self = context;
    const size_t length = strlen(self->space);
    for (size_t at = 0, end; at < bytes; at = end) {
        const bool space = bytes - at >= length && memcmp(text + at, self->space, length) == 0;
        end = at + (space ? length : 1);
        if (!space)
            AQ_TRY(aq_bpe_text_add(out, text + at, 1));
        else if (!first || !self->prepended)
            AQ_TRY(aq_bpe_text_add(out, " ", 1));
    }
    return AQ_OK;
}

static enum aq_status read_metaspace(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const char *space = json_string_value(json_object_get(one, "replacement"));
    struct metaspace self = {.space = space && *space ? space : "\xE2\x96\x81"};
    enum aq_bpe_scheme scheme = AQ_BPE_ALWAYS;
    AQ_TRY(huggingface_scheme(place, one, &scheme));
    self.prepended = scheme != AQ_BPE_NEVER;
    return say(place, reader, self.prepended, say_metaspace, &self);
}

/* ---- ByteFallback ---- */

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum aq_status say_byte(void *context, const uint8_t *text, uint32_t bytes, bool first, struct aq_bpe_text *out)
{
    (void)context, (void)first;
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return aq_bpe_text_add(out, text, bytes);
    const int high = hex_value(text[3]), low = hex_value(text[4]);
    const uint8_t byte = (uint8_t)(16 * high + low);
    return high < 0 || low < 0 ? aq_bpe_text_add(out, text, bytes) : aq_bpe_text_add(out, &byte, 1);
}

static enum aq_status read_byte_fallback(const char *place, json_t *one, struct huggingface_reader *reader)
{
    (void)one;
    return say(place, reader, false, say_byte, NULL);
}

/* ---- WordPiece ---- */

struct wordpiece {
    const char *prefix;
    struct aq_bpe_text token; /* the one in hand */
    bool cleanup;
};

/* All places of `from` in the token become `to`, which is no longer. */
static void clean_token(struct aq_bpe_text *token, const char *from, const char *to)
{
    const size_t length = strlen(from), made = strlen(to);
    size_t used = 0;
    for (size_t at = 0; at < token->count;) {
        if (token->count - at >= length && memcmp(token->at + at, from, length) == 0) {
            memcpy(token->at + used, to, made);
            used += made;
            at += length;
        } else
            token->at[used++] = token->at[at++];
    }
    token->count = used;
}

static enum aq_status say_wordpiece(void *context, const uint8_t *text, uint32_t bytes, bool first,
                                    struct aq_bpe_text *out)
{
    static const char *const cleaned[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                             {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                             {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    struct wordpiece *self = context;
    const size_t prefix = strlen(self->prefix);
    const bool joins = bytes >= prefix && memcmp(text, self->prefix, prefix) == 0;
    self->token.count = 0;
    if (!first && !joins) AQ_TRY(aq_bpe_text_add(&self->token, " ", 1));
    const size_t skip = !first && joins ? prefix : 0;
    AQ_TRY(aq_bpe_text_add(&self->token, text + skip, bytes - skip));
    for (size_t i = 0; self->cleanup && i < sizeof cleaned / sizeof cleaned[0]; i++)
        clean_token(&self->token, cleaned[i][0], cleaned[i][1]);
    return aq_bpe_text_add(out, self->token.at, self->token.count);
}

static enum aq_status read_wordpiece(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const json_t *prefix = json_object_get(one, "prefix");
    struct wordpiece self = {.prefix = json_is_string(prefix) ? json_string_value(prefix) : "##",
                             .cleanup = !json_is_false(json_object_get(one, "cleanup"))};
    const enum aq_status status = say(place, reader, true, say_wordpiece, &self);
    aq_bpe_text_free(&self.token);
    return status;
}

/* ---- Fuse, Strip ---- */

static enum aq_status read_fuse(const char *place, json_t *one, struct huggingface_reader *reader)
{
    (void)place, (void)one;
    reader->fused = true;
    return AQ_OK;
}

static enum aq_status say_cut(void *context, const uint8_t *text, uint32_t bytes, bool first, struct aq_bpe_text *out)
{
    const struct aq_bpe_cut *cut = context;
    size_t start, end;
    (void)first;
    aq_bpe_cut_text(cut, (const char *)text, bytes, &start, &end);
    return aq_bpe_text_add(out, text + start, end - start);
}

static enum aq_status read_strip(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const char *character = json_string_value(json_object_get(one, "content"));
    const json_t *start = json_object_get(one, "start"), *end = json_object_get(one, "stop");
    const size_t bytes = character ? strlen(character) : 0;
    struct aq_bpe_cut cut = {.start = 0};
    if (bytes == 0 || aq_bpe_character((const uint8_t *)character, bytes) != bytes || !json_is_integer(start) ||
        !json_is_integer(end) || json_integer_value(start) < 0 || json_integer_value(end) < 0 ||
        json_integer_value(start) > INT32_MAX || json_integer_value(end) > INT32_MAX)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA,
                       "%s has no single character as its content, or no counts as start and stop", place);
    memcpy(cut.character, character, bytes + 1);
    cut.start = (uint32_t)json_integer_value(start);
    cut.end = (uint32_t)json_integer_value(end);
    if (!reader->fused) return say(place, reader, false, say_cut, &cut);
    reader->vocabulary->cut = cut;
    return AQ_OK;
}

/* ---- all of them ---- */

static const struct huggingface_type decoders[] = {{"Replace", read_replace},
                                                   {"Metaspace", read_metaspace},
                                                   {"ByteFallback", read_byte_fallback},
                                                   {"WordPiece", read_wordpiece},
                                                   {"Fuse", read_fuse},
                                                   {"Strip", read_strip},
                                                   {NULL, NULL}};

enum aq_status huggingface_decoder(const char *path, json_t *decoder, struct aq_bpe_vocabulary *vocabulary)
{
    struct huggingface_reader reader = {.vocabulary = vocabulary};
    char place[HUGGINGFACE_PLACE_BYTES];
    snprintf(place, sizeof place, "%s: decoder", path);
    return huggingface_types(place, decoder, "decoders", decoders, 0, &reader);
}
