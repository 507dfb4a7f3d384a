/*
 * huggingface_frame.c -- post_processor of tokenizer.json as tokens before, between and after: struct
 * aq_tokenizer_frame.
 *
 *     TemplateProcessing   single: specials, $A, specials; pair: those before, $A, between, $B, those after
 *     BertProcessing       cls A sep, cls A sep B sep
 *     RobertaProcessing    cls A sep, cls A sep sep B sep
 */
#include <stdio.h>
#include <string.h>

#include "huggingface.h"

struct huggingface_reader {
    uint32_t vocabulary;
    struct aq_tokenizer_frame *frame;
};

static enum aq_status add(const char *place, json_t *id, const struct huggingface_reader *reader, int32_t *tokens,
                          uint32_t *count)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)reader->vocabulary)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s has an id that no token has (there are %u tokens)", place,
                       (unsigned)reader->vocabulary);
    if (*count == AQ_TOKENIZER_FRAME_MAX)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s: more than %d tokens at one place are not supported", place,
                       (int)AQ_TOKENIZER_FRAME_MAX);
    tokens[(*count)++] = (int32_t)json_integer_value(id);
    return AQ_OK;
}

/* A template's tokens before $A, between $A and $B, and at the end. */
static enum aq_status read_template(const char *place, json_t *pieces, json_t *specials, bool pair,
                                    const struct huggingface_reader *reader, struct aq_tokenizer_frame *out)
{
    static const char *const texts[] = {"A", "B"};
    size_t i, k, seen = 0;
    json_t *piece, *id;
    if (!json_is_array(pieces)) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s is not a list", place);
    json_array_foreach(pieces, i, piece)
    {
        const char *text = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        const char *special = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        const bool in_order = text && seen < 1 + (size_t)pair && strcmp(text, texts[seen]) == 0;
        if (!special && !in_order)
            return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s[%zu] is neither a special token nor the next text", place, i);
        seen += in_order;
        const json_t *type = json_object_get(json_object_get(piece, text ? "Sequence" : "SpecialToken"), "type_id");
        if (pair && seen == 2) *(text ? &out->second_type : &out->last_type) = (int32_t)json_integer_value(type);
        json_t *ids = special ? json_object_get(json_object_get(specials, special), "ids") : NULL;
        if (special && !json_is_array(ids))
            return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s[%zu]: \"%.64s\" has no ids", place, i, special);
        json_array_foreach(ids, k, id)
        {
            if (seen == 0)
                AQ_TRY(add(place, id, reader, out->before, &out->before_count));
            else if (pair && seen == 1)
                AQ_TRY(add(place, id, reader, out->between, &out->between_count));
            else
                AQ_TRY(add(place, id, reader, out->after, &out->after_count));
        }
    }
    if (seen != 1 + (size_t)pair) return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s lacks a text", place);
    return AQ_OK;
}

static enum aq_status read_processing(const char *place, json_t *one, struct huggingface_reader *reader)
{
    char inner[HUGGINGFACE_PLACE_BYTES + 8];
    struct aq_tokenizer_frame single = {.before_count = 0}, both = {.before_count = 0};
    json_t *specials = json_object_get(one, "special_tokens"), *pair = json_object_get(one, "pair");
    snprintf(inner, sizeof inner, "%s.single", place);
    AQ_TRY(read_template(inner, json_object_get(one, "single"), specials, false, reader, &single));
    *reader->frame = single;
    if (!pair || json_is_null(pair)) return AQ_OK;
    snprintf(inner, sizeof inner, "%s.pair", place);
    AQ_TRY(read_template(inner, pair, specials, true, reader, &both));
    if (both.before_count != single.before_count || both.after_count != single.after_count ||
        memcmp(both.before, single.before, sizeof both.before) != 0 ||
        memcmp(both.after, single.after, sizeof both.after) != 0)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s puts other tokens around a pair than around one text", place);
    *reader->frame = both;
    return AQ_OK;
}

/* cls and sep are ["[CLS]", 101]. */
static enum aq_status read_cls_sep(const char *place, json_t *one, uint32_t between, struct huggingface_reader *reader)
{
    struct aq_tokenizer_frame *frame = reader->frame;
    json_t *cls = json_array_get(json_object_get(one, "cls"), 1), *sep = json_array_get(json_object_get(one, "sep"), 1);
    *frame = (struct aq_tokenizer_frame){.before_count = 0};
    AQ_TRY(add(place, cls, reader, frame->before, &frame->before_count));
    AQ_TRY(add(place, sep, reader, frame->after, &frame->after_count));
    for (uint32_t i = 0; i < between; i++)
        AQ_TRY(add(place, sep, reader, frame->between, &frame->between_count));
    return AQ_OK;
}

static enum aq_status read_bert(const char *place, json_t *one, struct huggingface_reader *reader)
{
    AQ_TRY(read_cls_sep(place, one, 1, reader));
    reader->frame->second_type = reader->frame->last_type = 1;
    return AQ_OK;
}

static enum aq_status read_roberta(const char *place, json_t *one, struct huggingface_reader *reader)
{
    return read_cls_sep(place, one, 2, reader);
}

/* It only changes offsets into the text, which are not used here. */
static enum aq_status read_byte_level(const char *place, json_t *one, struct huggingface_reader *reader)
{
    (void)place, (void)one, (void)reader;
    return AQ_OK;
}

enum aq_status huggingface_frame(const char *path, json_t *post_processor, uint32_t vocabulary,
                                 struct aq_tokenizer_frame *frame)
{
    static const struct huggingface_type types[] = {{"TemplateProcessing", read_processing},
                                                    {"BertProcessing", read_bert},
                                                    {"RobertaProcessing", read_roberta},
                                                    {"ByteLevel", read_byte_level},
                                                    {NULL, NULL}};
    struct huggingface_reader reader = {.vocabulary = vocabulary, .frame = frame};
    char place[HUGGINGFACE_PLACE_BYTES];
    snprintf(place, sizeof place, "%s: post_processor", path);
    return huggingface_types(place, post_processor, "processors", types, 0, &reader);
}
