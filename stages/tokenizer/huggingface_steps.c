/*
 * huggingface_steps.c -- normalizer, pre_tokenizer and decoder of tokenizer.json, each an object with a `type`, or a
 * Sequence of such.
 */
#include <stdio.h>
#include <string.h>

#include "huggingface.h"
#include "unicode_forms.h"

enum { DEPTH_MAX = 8 };

struct huggingface_reader {
    struct aq_bpe *bpe;
    struct aq_bpe_vocabulary *vocabulary; /* of a decoder */
    bool bytes;                           /* ByteLevel has been read */
};

enum aq_status huggingface_types(const char *place, json_t *value, const char *list,
                                 const struct huggingface_type *types, int depth, struct huggingface_reader *reader)
{
    const char *name = json_string_value(json_object_get(value, "type"));
    if (!value || json_is_null(value)) return AQ_OK;
    if (!name) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s has no type", place);
    if (strcmp(name, "Sequence") == 0 && depth < DEPTH_MAX) {
        json_t *all = json_object_get(value, list), *one;
        size_t i;
        if (!json_is_array(all)) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.%s is no list", place, list);
        json_array_foreach(all, i, one)
        {
            char inner[HUGGINGFACE_PLACE_BYTES];
            snprintf(inner, sizeof inner, "%s.%s[%zu]", place, list, i);
            AQ_TRY(huggingface_types(inner, one, list, types, depth + 1, reader));
        }
        return AQ_OK;
    }
    for (const struct huggingface_type *type = types; type->name; type++)
        if (strcmp(type->name, name) == 0) return type->read(place, value, reader);
    char known[256] = "";
    for (const struct huggingface_type *type = types; type->name; type++)
        snprintf(known + strlen(known), sizeof known - strlen(known), " %s", type->name);
    return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s is %.40s, which is not supported; these are:%s Sequence", place, name,
                   known);
}

/* {"Regex": "..."} or {"String": "..."} */
static enum aq_status read_pattern(const char *place, json_t *one, struct aq_bpe_pattern **out)
{
    const json_t *pattern = json_object_get(one, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    const json_t *text = json_is_string(regex) ? regex : string;
    if (!json_is_string(text))
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.pattern has neither a Regex nor a String", place);
    return aq_bpe_pattern_open(place, json_string_value(text), json_string_length(text), text == string, out);
}

/* ---- normalizers ---- */

static enum aq_status add_normal(const char *place, enum aq_bpe_normal_kind kind, struct huggingface_reader *reader,
                                 struct aq_bpe_normal **out)
{
    struct aq_bpe *bpe = reader->bpe;
    if (bpe->normal_count == AQ_BPE_STEPS_MAX)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s: more than %d normalizers are not supported", place,
                       (int)AQ_BPE_STEPS_MAX);
    *out = &bpe->normals[bpe->normal_count++];
    (*out)->kind = kind;
    return aq_alloc_text(place, &(*out)->place);
}

static enum aq_status read_form(const char *place, json_t *one, struct huggingface_reader *reader)
{
    static const struct {
        const char *name;
        enum aq_bpe_normal_kind kind;
    } kinds[] = {{"NFC", AQ_BPE_NFC}, {"NFD", AQ_BPE_NFD}, {"NFKC", AQ_BPE_NFKC}, {"NFKD", AQ_BPE_NFKD}};
    const char *name = json_string_value(json_object_get(one, "type"));
    struct aq_bpe_normal *normal = NULL;
    size_t i = 0;
    while (strcmp(kinds[i].name, name) != 0)
        i++;
    if (!reader->bpe->forms) AQ_TRY(aq_unicode_forms_open(&reader->bpe->forms));
    return add_normal(place, kinds[i].kind, reader, &normal);
}

static enum aq_status read_lowercase(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_normal *normal = NULL;
    (void)one;
    return add_normal(place, AQ_BPE_LOWERCASE, reader, &normal);
}

static enum aq_status take_content(const char *place, json_t *one, const char *name, struct aq_bpe_normal *normal)
{
    const json_t *content = json_object_get(one, name);
    if (!json_is_string(content)) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.%s is no string", place, name);
    normal->bytes = json_string_length(content);
    return aq_alloc_text(json_string_value(content), &normal->content);
}

static enum aq_status read_prepend(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_normal *normal = NULL;
    AQ_TRY(add_normal(place, AQ_BPE_PREPEND, reader, &normal));
    return take_content(place, one, "prepend", normal);
}

static enum aq_status read_replace(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_normal *normal = NULL;
    AQ_TRY(add_normal(place, AQ_BPE_REPLACE, reader, &normal));
    AQ_TRY(take_content(place, one, "content", normal));
    return read_pattern(place, one, &normal->pattern);
}

static enum aq_status read_strip(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_normal *normal = NULL;
    AQ_TRY(add_normal(place, AQ_BPE_STRIP, reader, &normal));
    normal->left = json_is_true(json_object_get(one, "strip_left"));
    normal->right = json_is_true(json_object_get(one, "strip_right"));
    return AQ_OK;
}

/* Marks of all kinds go; NFD before it takes accents off letters. */
static enum aq_status read_strip_accents(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_normal *normal = NULL;
    (void)one;
    AQ_TRY(add_normal(place, AQ_BPE_REPLACE, reader, &normal));
    AQ_TRY(aq_alloc_text("", &normal->content));
    return aq_bpe_pattern_open(place, "\\p{M}", 5, false, &normal->pattern);
}

static const struct huggingface_type normalizers[] = {{"NFC", read_form},
                                                      {"NFD", read_form},
                                                      {"NFKC", read_form},
                                                      {"NFKD", read_form},
                                                      {"Lowercase", read_lowercase},
                                                      {"Prepend", read_prepend},
                                                      {"Strip", read_strip},
                                                      {"StripAccents", read_strip_accents},
                                                      {"Replace", read_replace},
                                                      {NULL, NULL}};

/* ---- pre-tokenizers ---- */

static enum aq_status add_step(const char *place, struct huggingface_reader *reader, struct aq_bpe_step **out)
{
    struct aq_bpe *bpe = reader->bpe;
    if (bpe->step_count + (reader->bytes && !bpe->writes) >= AQ_BPE_STEPS_MAX)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s: more than %d steps are not supported", place, (int)AQ_BPE_STEPS_MAX);
    if (reader->bytes && !bpe->writes) { /* it sees the text as ByteLevel has written it */
        bpe->steps[bpe->step_count++].makes = AQ_BPE_WRITE;
        bpe->writes = true;
    }
    *out = &bpe->steps[bpe->step_count++];
    return AQ_OK;
}

static enum aq_status read_byte_level(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const json_t *use_regex = json_object_get(one, "use_regex"), *space = json_object_get(one, "add_prefix_space");
    struct aq_bpe_step *step = NULL;
    if (reader->bytes) return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s is the second ByteLevel", place);
    if (!json_is_boolean(space))
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.add_prefix_space is neither true nor false", place);
    if (json_is_true(space)) AQ_TRY(add_step(place, reader, &step)); /* a step without a pattern */
    if (!json_is_false(use_regex)) {
        AQ_TRY(add_step(place, reader, &step));
        AQ_TRY(aq_bpe_pattern_open(place, aq_bpe_pattern_gpt2, strlen(aq_bpe_pattern_gpt2), false, &step->pattern));
    }
    reader->bytes = true;
    return AQ_OK;
}

static enum aq_status read_behaviour(const char *place, json_t *one, struct aq_bpe_step *step)
{
    static const char *const names[] = {[AQ_BPE_ISOLATED] = "Isolated",
                                        [AQ_BPE_REMOVED] = "Removed",
                                        [AQ_BPE_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [AQ_BPE_WITH_NEXT] = "MergedWithNext",
                                        [AQ_BPE_CONTIGUOUS] = "Contiguous"};
    const char *behaviour = json_string_value(json_object_get(one, "behavior"));
    size_t i = 0;
    while (i < sizeof names / sizeof names[0] && (!behaviour || strcmp(names[i], behaviour) != 0))
        i++;
    if (i == sizeof names / sizeof names[0])
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.behavior is %.40s, which is none", place,
                       behaviour ? behaviour : "not said");
    step->behaviour = (enum aq_bpe_behaviour)i;
    return AQ_OK;
}

/* A step of a pattern that its type fixes. */
static enum aq_status add_cut(const char *place, const char *pattern, enum aq_bpe_behaviour behaviour, bool invert,
                              struct huggingface_reader *reader)
{
    struct aq_bpe_step *step = NULL;
    AQ_TRY(add_step(place, reader, &step));
    step->behaviour = behaviour;
    step->invert = invert;
    return aq_bpe_pattern_open(place, pattern, strlen(pattern), false, &step->pattern);
}

static const char punctuation[] = "[\\p{P}$+<=>^`|~]", white_space[] = "\\s";

static enum aq_status read_punctuation(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_step *step = NULL;
    AQ_TRY(add_step(place, reader, &step));
    if (json_object_get(one, "behavior")) AQ_TRY(read_behaviour(place, one, step));
    return aq_bpe_pattern_open(place, punctuation, strlen(punctuation), false, &step->pattern);
}

static enum aq_status read_whitespace(const char *place, json_t *one, struct huggingface_reader *reader)
{
    (void)one;
    return add_cut(place, "\\w+|[^\\w\\s]+", AQ_BPE_REMOVED, true, reader);
}

static enum aq_status read_whitespace_split(const char *place, json_t *one, struct huggingface_reader *reader)
{
    (void)one;
    return add_cut(place, white_space, AQ_BPE_REMOVED, false, reader);
}

static enum aq_status read_bert(const char *place, json_t *one, struct huggingface_reader *reader)
{
    AQ_TRY(read_whitespace_split(place, one, reader));
    return add_cut(place, punctuation, AQ_BPE_ISOLATED, false, reader);
}

/* prepend_scheme, or add_prefix_space before there was one. */
static enum aq_status read_scheme(const char *place, json_t *one, enum aq_bpe_scheme *out)
{
    static const char *const words[] = {
        [AQ_BPE_ALWAYS] = "always", [AQ_BPE_FIRST] = "first", [AQ_BPE_NEVER] = "never"};
    const char *scheme = json_string_value(json_object_get(one, "prepend_scheme"));
    *out = json_is_false(json_object_get(one, "add_prefix_space")) ? AQ_BPE_NEVER : AQ_BPE_ALWAYS;
    for (int i = 0; scheme && i < 3; i++)
        if (strcmp(words[i], scheme) == 0) {
            if (*out != AQ_BPE_NEVER) *out = (enum aq_bpe_scheme)i;
            return AQ_OK;
        }
    if (!scheme) return AQ_OK;
    return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.prepend_scheme is not always, first or never", place);
}

static enum aq_status read_metaspace(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const json_t *given = json_object_get(one, "replacement");
    const char *space = json_is_string(given) ? json_string_value(given) : "\xE2\x96\x81";
    const size_t bytes = strlen(space);
    struct aq_bpe_step *step = NULL;
    AQ_TRY(add_step(place, reader, &step));
    if (bytes == 0 || aq_bpe_character((const uint8_t *)space, bytes) != bytes)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.replacement is no single character", place);
    step->makes = AQ_BPE_METASPACE;
    memcpy(step->space, space, bytes + 1);
    AQ_TRY(read_scheme(place, one, &step->scheme));
    if (json_is_false(json_object_get(one, "split"))) return AQ_OK;
    AQ_TRY(add_step(place, reader, &step));
    step->behaviour = AQ_BPE_WITH_NEXT;
    return aq_bpe_pattern_open(place, space, bytes, true, &step->pattern);
}

static enum aq_status read_split(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_step *step = NULL;
    AQ_TRY(add_step(place, reader, &step));
    AQ_TRY(read_behaviour(place, one, step));
    step->invert = json_is_true(json_object_get(one, "invert"));
    return read_pattern(place, one, &step->pattern);
}

static enum aq_status read_digits(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_step *step = NULL;
    AQ_TRY(add_step(place, reader, &step));
    step->behaviour = json_is_true(json_object_get(one, "individual_digits")) ? AQ_BPE_ISOLATED : AQ_BPE_CONTIGUOUS;
    return aq_bpe_pattern_open(place, "\\p{N}", 5, false, &step->pattern);
}

static const struct huggingface_type pre_tokenizers[] = {{"ByteLevel", read_byte_level},
                                                         {"Split", read_split},
                                                         {"Digits", read_digits},
                                                         {"Punctuation", read_punctuation},
                                                         {"Whitespace", read_whitespace},
                                                         {"WhitespaceSplit", read_whitespace_split},
                                                         {"BertPreTokenizer", read_bert},
                                                         {"Metaspace", read_metaspace},
                                                         {NULL, NULL}};

enum aq_status huggingface_steps(const char *path, json_t *root, struct aq_bpe *bpe, bool *bytes)
{
    struct huggingface_reader reader = {.bpe = bpe};
    char place[HUGGINGFACE_PLACE_BYTES];
    snprintf(place, sizeof place, "%s: normalizer", path);
    AQ_TRY(huggingface_types(place, json_object_get(root, "normalizer"), "normalizers", normalizers, 0, &reader));
    snprintf(place, sizeof place, "%s: pre_tokenizer", path);
    AQ_TRY(
        huggingface_types(place, json_object_get(root, "pre_tokenizer"), "pretokenizers", pre_tokenizers, 0, &reader));
    *bytes = reader.bytes;
    return AQ_OK;
}

/* ---- decoders ---- */

/* Replace as SentencePiece's converted files have it: "\xE2\x96\x81" (U+2581) becomes a space. */
static enum aq_status read_spaces(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const json_t *from = json_object_get(json_object_get(one, "pattern"), "String");
    const json_t *to = json_object_get(one, "content");
    if (!json_is_string(from) || strcmp(json_string_value(from), "\xE2\x96\x81") != 0 || !json_is_string(to) ||
        strcmp(json_string_value(to), " ") != 0)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s replaces something else than U+2581 by a space", place);
    return aq_bpe_vocabulary_say(reader->vocabulary, true, false);
}

/* Of another character than U+2581 the tokens stay as they are. */
static enum aq_status read_spaces_of(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const char *space = json_string_value(json_object_get(one, "replacement"));
    if (space && strcmp(space, "\xE2\x96\x81") != 0)
        return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s replaces something else than U+2581 by a space", place);
    return aq_bpe_vocabulary_say(reader->vocabulary, true, false);
}

static enum aq_status read_byte_fallback(const char *place, json_t *one, struct huggingface_reader *reader)
{
    (void)place, (void)one;
    return aq_bpe_vocabulary_say(reader->vocabulary, false, true);
}

/* Fuse joins what is joined here anyway; Strip takes the space off that Prepend put before the text: it stays here. */
static enum aq_status read_nothing(const char *place, json_t *one, struct huggingface_reader *reader)
{
    (void)place, (void)one, (void)reader;
    return AQ_OK;
}

static const struct huggingface_type decoders[] = {{"Replace", read_spaces},
                                                   {"Metaspace", read_spaces_of},
                                                   {"ByteFallback", read_byte_fallback},
                                                   {"Fuse", read_nothing},
                                                   {"Strip", read_nothing},
                                                   {NULL, NULL}};

enum aq_status huggingface_decoder(const char *path, json_t *decoder, struct aq_bpe_vocabulary *vocabulary)
{
    struct huggingface_reader reader = {.vocabulary = vocabulary};
    char place[HUGGINGFACE_PLACE_BYTES];
    snprintf(place, sizeof place, "%s: decoder", path);
    return huggingface_types(place, decoder, "decoders", decoders, 0, &reader);
}
