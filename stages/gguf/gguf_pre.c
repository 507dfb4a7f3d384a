/*
 * gguf_pre.c -- the pre-tokenizer of a tokenizer.json by the name that llama.cpp has for it.
 *
 * llama.cpp has the regular expressions in its program, and a file names one of them. The table has the expressions as
 * published files have them, one after another with a line break behind each; ByteLevel's own is GPT-2's. Other
 * pre-tokenizers are refused with their expressions: a wrong name would cut texts at other places than in training.
 *
 * A BPE of characters has no such name. There llama.cpp makes U+2581 of every space, and puts one before a text if
 * add_space_prefix is set; the normalizers and pre-tokenizers of Llama 2 and of Gemma do the same.
 */
#include <string.h>

#include "bpe.h"
#include "gguf_private.h"

#define SPACE "\xE2\x96\x81" /* U+2581 */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2         "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+\n"
#define WORDS(digits)                                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\n"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASES(ends, digits)                                                                                            \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ends "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" ends               \
    "|\\p{N}" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\n"
#define MARKED                                                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "                                                                   \
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+\n"

static const struct {
    const char *name, *patterns;
    bool whole_words; /* ignore_merges */
} pres[] = {{"gpt-2", GPT2, false},
            {"llama-bpe", CONTRACTIONS "|" WORDS("{1,3}"), true},
            {"dbrx", CONTRACTIONS "|" WORDS("{1,3}"), false},
            {"qwen2", CONTRACTIONS "|" WORDS(""), false},
            {"qwen35", CONTRACTIONS "|" MARKED, false},
            {"smollm", "\\p{N}\n" GPT2, false},
            {"tekken", CASES("", ""), true},
            {"gpt-4o", CASES(CONTRACTIONS "?", "{1,3}"), false}};

enum { PRES = sizeof pres / sizeof pres[0], DEPTH_MAX = 4 };

/* The result of reading a file's steps. */
struct steps {
    const char *path;
    struct aq_bpe_text patterns; /* of a byte-level BPE, with a line break behind each */
    bool bytes, space_before, replaces;
};

static bool is(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value && strcmp(value, text) == 0;
}

static enum aq_status refuse(const struct steps *steps, const char *what, const json_t *one)
{
    const char *type = json_string_value(json_object_get(one, "type"));
    return aq_fail(AQ_INVAL, GGUF_AREA,
                   "%s: the tokenizer cannot be written as GGUF: llama.cpp has no %s %.40s like this one. Export it "
                   "without --gguf",
                   steps->path, what, type ? type : "");
}

static enum aq_status add_pattern(struct steps *steps, const char *pattern)
{
    AQ_TRY(aq_bpe_text_add(&steps->patterns, pattern, strlen(pattern)));
    return aq_bpe_text_add(&steps->patterns, "\n", 1);
}

/* A cut by a regular expression; or Gemma's by spaces, of which the normalizer has left none. */
static enum aq_status take_split(struct steps *steps, const json_t *one)
{
    const json_t *pattern = json_object_get(one, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const bool spaces = is(pattern, "String", " ") && steps->replaces;
    if (spaces) return AQ_OK;
    if (!regex || !is(one, "behavior", "Isolated") || json_is_true(json_object_get(one, "invert")))
        return refuse(steps, "pre-tokenizer", one);
    return add_pattern(steps, regex);
}

static enum aq_status take_metaspace(struct steps *steps, const json_t *one)
{
    const json_t *given = json_object_get(one, "add_prefix_space");
    const char *scheme = json_string_value(json_object_get(one, "prepend_scheme"));
    if (!is(one, "replacement", SPACE)) return refuse(steps, "pre-tokenizer", one);
    steps->replaces = true;
    steps->space_before = scheme ? strcmp(scheme, "never") != 0 : !json_is_false(given);
    return AQ_OK;
}

/* Steps of a list are a flat row here. */
static enum aq_status take_pre(struct steps *steps, const json_t *one, int depth)
{
    size_t i;
    json_t *inner;
    if (!one || json_is_null(one)) return AQ_OK;
    if (is(one, "type", "Sequence") && depth < DEPTH_MAX) {
        json_array_foreach(json_object_get(one, "pretokenizers"), i, inner) AQ_TRY(take_pre(steps, inner, depth + 1));
        return AQ_OK;
    }
    if (is(one, "type", "Split")) return take_split(steps, one);
    if (is(one, "type", "Metaspace")) return take_metaspace(steps, one);
    if (is(one, "type", "Digits") && json_is_true(json_object_get(one, "individual_digits")))
        return add_pattern(steps, "\\p{N}");
    if (!is(one, "type", "ByteLevel") || json_is_true(json_object_get(one, "add_prefix_space")))
        return refuse(steps, "pre-tokenizer", one);
    steps->bytes = true;
    return json_is_false(json_object_get(one, "use_regex")) ? AQ_OK : add_pattern(steps, aq_bpe_pattern_gpt2);
}

/* NFC changes only texts that are not in that form, and llama.cpp has none: its own conversion leaves it out, too. */
static enum aq_status take_normal(struct steps *steps, const json_t *one, int depth)
{
    size_t i;
    json_t *inner;
    if (!one || json_is_null(one) || is(one, "type", "NFC")) return AQ_OK;
    if (is(one, "type", "Sequence") && depth < DEPTH_MAX) {
        json_array_foreach(json_object_get(one, "normalizers"), i, inner) AQ_TRY(take_normal(steps, inner, depth + 1));
        return AQ_OK;
    }
    if (is(one, "type", "Prepend") && is(one, "prepend", SPACE)) {
        steps->space_before = true;
        return AQ_OK;
    }
    const bool spaces = is(one, "content", SPACE) && is(json_object_get(one, "pattern"), "String", " ");
    if (!is(one, "type", "Replace") || !spaces) return refuse(steps, "normalizer", one);
    steps->replaces = true;
    return AQ_OK;
}

static enum aq_status find_bytes(const struct steps *steps, const json_t *root, struct gguf_pre *out)
{
    const bool whole = json_is_true(json_object_get(json_object_get(root, "model"), "ignore_merges"));
    if (steps->replaces || steps->space_before)
        return aq_fail(AQ_INVAL, GGUF_AREA, "%s: the tokenizer cannot be written as GGUF: ByteLevel behind %s",
                       steps->path, SPACE);
    for (size_t i = 0; i < PRES; i++)
        if (pres[i].whole_words == whole && strlen(pres[i].patterns) == steps->patterns.count &&
            memcmp(pres[i].patterns, steps->patterns.at, steps->patterns.count) == 0) {
            out->name = pres[i].name;
            return AQ_OK;
        }
    const int end = steps->patterns.count > 0 ? (int)steps->patterns.count - 1 : 0;
    return aq_fail(AQ_INVAL, GGUF_AREA,
                   "%s: the tokenizer cannot be written as GGUF: llama.cpp has no name for a pre-tokenizer by \"%.*s\" "
                   "with ignore_merges %s (docs/GGUF.md has the table). Export it without --gguf",
                   steps->path, end < 200 ? end : 200, end ? (const char *)steps->patterns.at : "",
                   whole ? "true" : "false");
}

static enum aq_status find_characters(const struct steps *steps, const json_t *root, struct gguf_pre *out)
{
    const json_t *model = json_object_get(root, "model");
    const bool plain = !json_is_true(json_object_get(model, "ignore_merges")) && steps->patterns.count == 0;
    if (!steps->replaces || !plain || !json_is_true(json_object_get(model, "byte_fallback")))
        return aq_fail(AQ_INVAL, GGUF_AREA,
                       "%s: the tokenizer cannot be written as GGUF: of a BPE of characters llama.cpp needs %s for "
                       "spaces, byte_fallback, no ignore_merges and no patterns. Export it without --gguf",
                       steps->path, SPACE);
    *out = (struct gguf_pre){.space_before = steps->space_before};
    return AQ_OK;
}

enum aq_status gguf_pre_find(const char *path, const json_t *root, struct gguf_pre *out)
{
    struct steps steps = {.path = path};
    *out = (struct gguf_pre){.name = NULL};
    enum aq_status status = take_normal(&steps, json_object_get(root, "normalizer"), 0);
    if (status == AQ_OK) status = take_pre(&steps, json_object_get(root, "pre_tokenizer"), 0);
    if (status == AQ_OK) status = steps.bytes ? find_bytes(&steps, root, out) : find_characters(&steps, root, out);
    aq_bpe_text_free(&steps.patterns);
    return status;
}
