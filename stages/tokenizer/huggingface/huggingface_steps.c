/*
 * huggingface_steps.c -- normalizer and pre_tokenizer of tokenizer.json, each an object with a `type`, or a Sequence of
 * such.
 */
#include <stdio.h>
#include <string.h>

#include "huggingface.h"
#include "unicode_forms.h"

enum { DEPTH_MAX = 8 };

struct huggingface_reader {
    struct aq_bpe *bpe;
    bool bytes; /* ByteLevel has been read */
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
        if (!json_is_array(all)) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.%s is not a list", place, list);
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

enum aq_status huggingface_pattern(const char *place, json_t *one, struct aq_bpe_pattern **out)
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
    if (!json_is_string(content)) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.%s is not a string", place, name);
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
    return huggingface_pattern(place, one, &normal->pattern);
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

static enum aq_status read_precompiled(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_normal *normal = NULL;
    char inner[HUGGINGFACE_PLACE_BYTES + 32];
    const json_t *map = json_object_get(one, "precompiled_charsmap");
    AQ_TRY(add_normal(place, AQ_BPE_CHARSMAP, reader, &normal));
    snprintf(inner, sizeof inner, "%s.precompiled_charsmap", place);
    if (!json_is_string(map))
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s is not a string. Save the tokenizer again", inner);
    return aq_charsmap_open(inner, json_string_value(map), &normal->charsmap);
}

/* clean_text, handle_chinese_chars, strip_accents (null: as lowercase), lowercase: each is one step. */
static enum aq_status read_bert_normalizer(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const json_t *given = json_object_get(one, "strip_accents");
    const bool lower = !json_is_false(json_object_get(one, "lowercase"));
    const bool unmark = json_is_boolean(given) ? json_is_true(given) : lower;
    const struct {
        enum aq_bpe_normal_kind kind;
        bool wanted;
    } steps[] = {{AQ_BPE_CLEAN, !json_is_false(json_object_get(one, "clean_text"))},
                 {AQ_BPE_IDEOGRAPH, !json_is_false(json_object_get(one, "handle_chinese_chars"))},
                 {AQ_BPE_NFD, unmark},
                 {AQ_BPE_UNMARK, unmark},
                 {AQ_BPE_LOWERCASE, lower}};
    struct aq_bpe_normal *normal = NULL;
    if (unmark && !reader->bpe->forms) AQ_TRY(aq_unicode_forms_open(&reader->bpe->forms));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i].wanted) AQ_TRY(add_normal(place, steps[i].kind, reader, &normal));
    return AQ_OK;
}

static enum aq_status read_nmt(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_normal *normal = NULL;
    (void)one;
    return add_normal(place, AQ_BPE_NMT, reader, &normal);
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
                                                      {"Precompiled", read_precompiled},
                                                      {"BertNormalizer", read_bert_normalizer},
                                                      {"Nmt", read_nmt},
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
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.behavior is unknown: %.40s", place,
                       behaviour ? behaviour : "not set");
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

/* The package has the punctuation of Unicode 8: not what came later, and two characters that are none any more. */
#define PUNCTUATION_LATER                                                                                              \
    "\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B4E}\\x{1B4F}\\x{1B7D}-\\x{1B7F}\\x{2E43}-\\x{2E4F}"                 \
    "\\x{2E52}-\\x{2E5D}\\x{10D6E}\\x{10EAD}\\x{10F55}-\\x{10F59}\\x{10F86}-\\x{10F89}\\x{113D4}-\\x{113D8}"           \
    "\\x{1144B}-\\x{1144F}\\x{1145A}\\x{1145B}\\x{1145D}\\x{11660}-\\x{1166C}\\x{116B9}\\x{1183B}"                     \
    "\\x{11944}-\\x{11946}\\x{119E2}\\x{11A3F}-\\x{11A46}\\x{11A9A}-\\x{11A9C}\\x{11A9E}-\\x{11AA2}"                   \
    "\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11C41}-\\x{11C45}\\x{11C70}\\x{11C71}\\x{11EF7}\\x{11EF8}"                     \
    "\\x{11F43}-\\x{11F4F}\\x{11FFF}\\x{12FF1}\\x{12FF2}\\x{16D6D}-\\x{16D6F}\\x{16E97}-\\x{16E9A}\\x{16FE2}"          \
    "\\x{1E5FF}\\x{1E95E}\\x{1E95F}"

static const char punctuation[] = "[\\p{P}$+<=>^`|~\\x{166D}\\x{111C9}](?<![" PUNCTUATION_LATER "])";
static const char white_space[] = "\\s";

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
    /* Not Oniguruma's \w: joiners are words, too. */
    return add_cut(place, "[\\w\\x{200C}\\x{200D}]+|[^\\w\\s\\x{200C}\\x{200D}]+", AQ_BPE_REMOVED, true, reader);
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

enum aq_status huggingface_scheme(const char *place, json_t *one, enum aq_bpe_scheme *out)
{
    static const char *const words[] = {[AQ_BPE_ALWAYS] = "always", [AQ_BPE_FIRST] = "first", [AQ_BPE_NEVER] = "never"};
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
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.replacement is not a single character", place);
    step->makes = AQ_BPE_METASPACE;
    memcpy(step->space, space, bytes + 1);
    AQ_TRY(huggingface_scheme(place, one, &step->scheme));
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
    return huggingface_pattern(place, one, &step->pattern);
}

static enum aq_status read_digits(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_step *step = NULL;
    AQ_TRY(add_step(place, reader, &step));
    step->behaviour = json_is_true(json_object_get(one, "individual_digits")) ? AQ_BPE_ISOLATED : AQ_BPE_CONTIGUOUS;
    return aq_bpe_pattern_open(place, "\\p{N}", 5, false, &step->pattern);
}

static enum aq_status read_delimiter(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const char *delimiter = json_string_value(json_object_get(one, "delimiter"));
    const size_t bytes = delimiter ? strlen(delimiter) : 0;
    struct aq_bpe_step *step = NULL;
    AQ_TRY(add_step(place, reader, &step));
    if (bytes == 0 || aq_bpe_character((const uint8_t *)delimiter, bytes) != bytes)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.delimiter is not a single character. Set it to one", place);
    step->behaviour = AQ_BPE_REMOVED;
    return aq_bpe_pattern_open(place, delimiter, bytes, true, &step->pattern);
}

enum { FIXED_LENGTH_MAX = 65535 }; /* of a repeat in a pattern */

static enum aq_status read_fixed_length(const char *place, json_t *one, struct huggingface_reader *reader)
{
    const json_t *length = json_object_get(one, "length");
    const json_int_t characters = length ? json_integer_value(length) : 5;
    char pattern[32];
    if ((length && !json_is_integer(length)) || characters < 1 || characters > FIXED_LENGTH_MAX)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s.length is not in 1..%d. Set it to a number of characters", place,
                       (int)FIXED_LENGTH_MAX);
    snprintf(pattern, sizeof pattern, "(?:.|\\n){1,%d}", (int)characters);
    return add_cut(place, pattern, AQ_BPE_ISOLATED, false, reader);
}

static enum aq_status read_scripts(const char *place, json_t *one, struct huggingface_reader *reader)
{
    struct aq_bpe_text runs = {0};
    (void)one;
    AQ_TRY(add_cut(place, huggingface_script_any, AQ_BPE_REMOVED, false, reader));
    enum aq_status status = huggingface_script_runs(&runs);
    if (status == AQ_OK) status = add_cut(place, (const char *)runs.at, AQ_BPE_ISOLATED, false, reader);
    aq_bpe_text_free(&runs);
    return status;
}

static const struct huggingface_type pre_tokenizers[] = {{"ByteLevel", read_byte_level},
                                                         {"Split", read_split},
                                                         {"Digits", read_digits},
                                                         {"Punctuation", read_punctuation},
                                                         {"Whitespace", read_whitespace},
                                                         {"WhitespaceSplit", read_whitespace_split},
                                                         {"BertPreTokenizer", read_bert},
                                                         {"Metaspace", read_metaspace},
                                                         {"UnicodeScripts", read_scripts},
                                                         {"CharDelimiterSplit", read_delimiter},
                                                         {"FixedLength", read_fixed_length},
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
