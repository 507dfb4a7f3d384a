/*
 * stage_freeze.c -- the list of what is not trained, adapted, or trained at another rate (stage.h): does a pattern name
 * a layer, or a tensor?
 *
 *     list     = pattern {"," pattern}          blanks around a pattern are nothing
 *     pattern  = ["!"] (layer | tensor)         of rates: (layer | tensor) "=" number
 *     layer    = word [" " number]              word: that of the layer's name, or its plural
 *     tensor   = part {"." part}                some parts of the tensor's name that follow each other
 *     number   = digits | digits "-" digits | "*"
 *     part     = digits "-" digits | text with "*" for anything
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stage_model.h"

/* Not terminated. */
struct span {
    const char *at;
    size_t bytes;
};

struct pattern {
    struct span text; /* behind the "!" */
    bool trains;      /* "!"            */
};

static const char PUBLISHED[] = "transformer.";

/* The next pattern of a list from *at on; empty ones are passed over. */
static bool pattern_next(const char **at, struct pattern *out)
{
    for (;;) {
        *at += strspn(*at, " \t,");
        if (**at == 0) return false;
        const bool trains = **at == '!';
        if (trains) *at += 1 + strspn(*at + 1, " \t");
        size_t bytes = strcspn(*at, ",");
        *out = (struct pattern){.text = {*at, bytes}, .trains = trains};
        *at += bytes;
        while (out->text.bytes > 0 && strchr(" \t", out->text.at[out->text.bytes - 1]))
            out->text.bytes--;
        if (out->text.bytes > 0 || trains) return true;
    }
}

/* Takes the text before the separator off *rest; false: nothing is left. */
static bool split(struct span *rest, char separator, struct span *out)
{
    if (!rest->at) return false;
    const char *end = memchr(rest->at, separator, rest->bytes);
    *out = (struct span){rest->at, end ? (size_t)(end - rest->at) : rest->bytes};
    *rest = end ? (struct span){end + 1, rest->bytes - out->bytes - 1} : (struct span){NULL, 0};
    return true;
}

static bool span_is(struct span span, const char *text, size_t bytes)
{
    return span.bytes == bytes && memcmp(span.at, text, bytes) == 0;
}

/* At most nine digits. */
static bool number(struct span span, uint32_t *out)
{
    uint32_t value = 0;
    for (size_t i = 0; i < span.bytes; i++) {
        if (span.at[i] < '0' || span.at[i] > '9') return false;
        value = 10 * value + (uint32_t)(span.at[i] - '0');
    }
    *out = value;
    return span.bytes > 0 && span.bytes <= 9;
}

/* "0-5" has 3. False: no range. */
static bool range_has(struct span range, struct span of, bool *has)
{
    struct span first;
    uint32_t low, high, value;
    if (!split(&range, '-', &first) || !range.at || !number(first, &low) || !number(range, &high)) return false;
    *has = number(of, &value) && value >= low && value <= high;
    return true;
}

/* "*" is anything, none of it too. */
static bool glob(struct span pattern, struct span text)
{
    size_t p = 0, t = 0, star = SIZE_MAX, from = 0;
    while (t < text.bytes) {
        if (p < pattern.bytes && pattern.at[p] == '*') {
            star = p++;
            from = t;
        } else if (p < pattern.bytes && pattern.at[p] == text.at[t]) {
            p++;
            t++;
        } else if (star != SIZE_MAX) { /* let the last one have one more */
            p = star + 1;
            t = ++from;
        } else {
            return false;
        }
    }
    while (p < pattern.bytes && pattern.at[p] == '*')
        p++;
    return p == pattern.bytes;
}

static bool part_matches(struct span pattern, struct span part)
{
    bool has;
    return range_has(pattern, part, &has) ? has : glob(pattern, part);
}

static bool word_matches(struct span pattern, struct span word)
{
    const bool begins = pattern.bytes >= word.bytes && memcmp(pattern.at, word.at, word.bytes) == 0;
    const char *ending = pattern.at + word.bytes;
    return begins &&
           (pattern.bytes == word.bytes || span_is((struct span){ending, pattern.bytes - word.bytes}, "s", 1) ||
            span_is((struct span){ending, pattern.bytes - word.bytes}, "es", 2));
}

static struct span span_of(const char *text)
{
    return (struct span){text, strlen(text)};
}

static bool names_layer(struct span pattern, const char *name)
{
    struct span rest = span_of(name), word = rest, wanted = pattern;
    (void)split(&rest, ' ', &word);
    (void)split(&pattern, ' ', &wanted);
    if (!word_matches(wanted, word)) return false;
    return !pattern.at || (rest.at && part_matches(pattern, rest));
}

/* Does the name have the pattern's parts, one after another? As published, or as it is. */
static bool names_tensor(struct span pattern, const char *name)
{
    const size_t published = sizeof PUBLISHED - 1;
    if (pattern.bytes > published && memcmp(pattern.at, PUBLISHED, published) == 0)
        pattern = (struct span){pattern.at + published, pattern.bytes - published};
    struct span from = span_of(name), first = from, part = from, wanted = pattern;
    while (from.at) {
        struct span left = from, parts = pattern;
        bool all = true;
        while (all && split(&parts, '.', &wanted))
            all = split(&left, '.', &part) && part_matches(wanted, part);
        if (all) return true;
        (void)split(&from, '.', &first);
    }
    return false;
}

static bool names(struct span pattern, const char *layer, const char *tensor)
{
    return pattern.bytes > 0 && (names_layer(pattern, layer) || names_tensor(pattern, tensor));
}

bool stage_named(const char *list, const char *layer, const char *tensor)
{
    struct pattern pattern;
    bool named = false;
    for (const char *at = list; at && pattern_next(&at, &pattern);)
        if (names(pattern.text, layer, tensor)) named = !pattern.trains;
    return named;
}

/* Takes "= number" off the end of a pattern. The number; 0: there is none above 0. */
static float rate_take(struct span *text)
{
    const char *equals = text->at ? memchr(text->at, '=', text->bytes) : NULL;
    char number[32], *end;
    if (!equals) return 0.0f;
    const size_t bytes = text->bytes - (size_t)(equals + 1 - text->at);
    text->bytes = (size_t)(equals - text->at);
    while (text->bytes > 0 && strchr(" \t", text->at[text->bytes - 1]))
        text->bytes--;
    if (bytes == 0 || bytes >= sizeof number) return 0.0f;
    memcpy(number, equals + 1, bytes);
    number[bytes] = 0;
    const float rate = strtof(number, &end);
    return *end == 0 && rate > 0.0f && isfinite(rate) ? rate : 0.0f;
}

float stage_rate(const char *list, const char *layer, const char *tensor)
{
    struct pattern pattern;
    float rate = 0.0f;
    for (const char *at = list; at && pattern_next(&at, &pattern);) {
        const float own = rate_take(&pattern.text);
        if (names(pattern.text, layer, tensor)) rate = own;
    }
    return rate;
}

/* ---- for those who read a list ---- */

static void copy(struct span span, char *text, size_t bytes)
{
    snprintf(text, bytes, "%.*s", (int)(span.bytes < bytes ? span.bytes : bytes), span.at);
}

/* Does any name of the model have that word? A number or a range is no word. */
static bool known(const struct aq_model_config *model, uint32_t T, struct span word)
{
    char words[STAGE_WORDS_BYTES];
    struct span part;
    for (uint32_t l = 0; l < aq_model_layers(model); l++) {
        aq_model_freeze_words(model, T, l, words, sizeof words);
        for (struct span rest = span_of(words); split(&rest, ' ', &part);)
            if (part_matches(word, part) || word_matches(word, part)) return true;
    }
    return false;
}

static void find_unknown(const struct aq_model_config *model, uint32_t T, struct aq_freeze_pattern *out)
{
    struct span rest = span_of(out->text), word = rest;
    const char separator = strchr(out->text, ' ') ? ' ' : '.';
    if (*rest.at == '!') rest = (struct span){rest.at + 1, rest.bytes - 1};
    while (split(&rest, separator, &word)) {
        if (known(model, T, word)) continue;
        copy(word, out->unknown, sizeof out->unknown);
        return;
    }
}

enum list_of { FROZEN_ONES, LINEARS, RATES };

/* LINEARS: only tensors that may have adapters count. */
static bool pattern_find(const struct aq_model_config *model, uint32_t T, const char *list, uint32_t index,
                         enum list_of of, struct aq_freeze_pattern *out)
{
    struct pattern pattern;
    const bool linears = of == LINEARS;
    *out = (struct aq_freeze_pattern){0};
    for (uint32_t i = 0; i <= index; i++)
        if (!pattern_next(&list, &pattern)) return false;
    if (of == RATES) out->rate = rate_take(&pattern.text);
    out->text[0] = '!';
    copy(pattern.text, out->text + pattern.trains, sizeof out->text - pattern.trains);
    for (uint32_t l = 0; l < aq_model_layers(model); l++) {
        struct stage_layer_names layer;
        stage_layer_names(model, T, l, &layer);
        for (uint32_t i = 0; i < layer.count; i++) {
            if (!names(pattern.text, layer.name, layer.tensors[i])) continue;
            out->named++;
            if (linears && !layer.linears[i]) continue;
            out->tensors += !layer.copies[i];
            out->copy = out->copy || layer.copies[i];
        }
    }
    if (out->named == 0) find_unknown(model, T, out);
    return true;
}

bool aq_model_freeze_pattern(const struct aq_model_config *model, uint32_t T, const char *freeze, uint32_t index,
                             struct aq_freeze_pattern *out)
{
    return pattern_find(model, T, freeze, index, FROZEN_ONES, out);
}

bool aq_model_lora_pattern(const struct aq_model_config *model, uint32_t T, const char *targets, uint32_t index,
                           struct aq_freeze_pattern *out)
{
    return pattern_find(model, T, targets, index, LINEARS, out);
}

bool aq_model_rate_pattern(const struct aq_model_config *model, uint32_t T, const char *rates, uint32_t index,
                           struct aq_freeze_pattern *out)
{
    return pattern_find(model, T, rates, index, RATES, out);
}

void aq_model_freeze_words(const struct aq_model_config *model, uint32_t T, uint32_t layer, char *text, size_t bytes)
{
    struct stage_layer_names names_of;
    stage_layer_names(model, T, layer, &names_of);
    size_t used = (size_t)snprintf(text, bytes, "%s", names_of.name);
    for (uint32_t i = 0; i < names_of.count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, " %s", names_of.tensors[i]);
    for (char *at = text; *at; at++)
        if (*at == '.') *at = ' ';
}
