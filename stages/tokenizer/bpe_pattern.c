/*
 * bpe_pattern.c -- the regular expressions of tokenizer.json, by PCRE2.
 *
 * They are written for Oniguruma (Ruby's writing, Unicode 14 or later), and rewritten here where PCRE2 means something
 * else by the same letters:
 *
 *     \s \S    Unicode's White_Space; PCRE2's own \s takes U+180E as well
 *     \w \W    letters, marks, decimal digits, connectors, and what else is alphabetic; outside a class also the six
 *              numbers of Latin-1 (superscripts and fractions), as Oniguruma has it
 *     \h \H    hexadecimal digits
 *
 * Other constructs that the two read differently are refused with their place: \b, \K, \G, \R, \X, \N, \p{^..}, && and
 * brackets in a class, options but (?i), callouts, recursion. ^ and $ match at every line.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "bpe.h"

const char aq_bpe_pattern_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

enum { REGEX_BYTES_MAX = 1 << 16, STACK_BYTES_MIN = 32 << 10, STACK_BYTES_MAX = 32 << 20, SHOWN_BYTES = 80 };

/* Behind a place that took too many steps, one call of PCRE2 tries 1, 2, 4 .. places; beyond this number, all again. */
enum { PLACES_MAX = 1 << 16 };

struct aq_bpe_pattern {
    char *literal; /* looked for as it is; NULL: by `code` */
    size_t literal_bytes;
    pcre2_code *code;    /* tries all places that are left                             */
    pcre2_code *limited; /* the same, within the matcher's offset limit (slower)   */
    bool compiled_to_machine_code;
    char *place, *shown; /* for messages: where it is, and its first part */
};

void aq_bpe_library(char version[AQ_BPE_LIBRARY_BYTES])
{
    version[0] = 0;
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) <= AQ_BPE_LIBRARY_BYTES)
        (void)pcre2_config(PCRE2_CONFIG_VERSION, version);
}

struct aq_bpe_matcher {
    struct aq_bpe_text made[AQ_BPE_STEPS_MAX]; /* what steps make of pieces: a step has one at a time */
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint32_t places; /* that the next call tries: few behind one that took too many steps */
    struct aq_bpe_budget budget;
};

/* ---- from one writing to the other ---- */

struct writer {
    const char *place, *regex;
    size_t bytes, at;
    struct aq_bpe_text out;
    bool in_class;
};

static enum aq_status refuse(const struct writer *w, const char *what)
{
    return aq_fail(AQ_INVAL, AQ_BPE_AREA, "%s: the pattern has %s at byte %zu, which is not supported: \"%.80s\"",
                   w->place, what, w->at, w->regex);
}

static enum aq_status add(struct writer *w, const char *text)
{
    return aq_bpe_text_add(&w->out, text, strlen(text));
}

/* As a new class, or within one. */
static enum aq_status add_set(struct writer *w, const char *set, bool negated)
{
    if (negated && w->in_class) return refuse(w, "a negated set in a class");
    if (!w->in_class) AQ_TRY(add(w, negated ? "[^" : "["));
    AQ_TRY(add(w, set));
    return w->in_class ? AQ_OK : add(w, "]");
}

/* \p{Lu} \P{L} \p{Han}: a name of more than two letters is a script, by itself and not by its extensions. */
static enum aq_status property(struct writer *w)
{
    const char *at = w->regex + w->at, *close = memchr(at, '}', w->bytes - w->at);
    char text[80];
    if (w->bytes - w->at < 4 || at[2] != '{' || !close || close - at > 40)
        return refuse(w, "a property without its name");
    const int length = (int)(close - at) - 3;
    if (at[3] == '^') return refuse(w, "a negated property");
    snprintf(text, sizeof text, "\\%c{%s%.*s}", at[1], length > 2 && memcmp(at + 3, "Any", 3) != 0 ? "sc:" : "", length,
             at + 3);
    w->at += (size_t)length + 4;
    return add(w, text);
}

/* A backslash and what belongs to it. */
static enum aq_status escape(struct writer *w)
{
    const char c = w->at + 1 < w->bytes ? w->regex[w->at + 1] : 0;
    enum aq_status status = AQ_OK;
    if (c == 's')
        status = w->in_class ? add(w, "\\t-\\r\\x{85}\\p{Z}") : add(w, "[\\t-\\r\\x{85}\\p{Z}]");
    else if (c == 'S')
        status = w->in_class ? add(w, "\\P{White_Space}") : add(w, "[^\\t-\\r\\x{85}\\p{Z}]");
    else if (c == 'w' || c == 'W')
        status = add_set(w, w->in_class ? WORD : WORD "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}", c == 'W');
    else if (c == 'h' || c == 'H')
        status = add_set(w, "0-9A-Fa-f", c == 'H');
    else if (c == 0 || strchr("bBKGRXNkgcCMuQEoOyY0123456789", c))
        return refuse(w, "such an escape");
    else if (c == 'v')
        status = add(w, "\\x{0B}");
    else if (c == 'x' && (w->at + 2 >= w->bytes || w->regex[w->at + 2] != '{'))
        return refuse(w, "a byte by its number");
    else if (c == 'p' || c == 'P')
        return property(w);
    else if (c == 'Z')
        status = add(w, "(?=\\n?\\z)");
    else
        status = aq_bpe_text_add(&w->out, w->regex + w->at, 2);
    w->at += 2;
    return status;
}

/* The start of a group: (?: (?= (?! (?<= (?<! (?> (?i: (?-i: (?i) */
static enum aq_status group(struct writer *w)
{
    static const char *const plain[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:", "(?i)"};
    const char *at = w->regex + w->at;
    const size_t left = w->bytes - w->at;
    if (left < 2 || (at[1] != '?' && at[1] != '*')) {
        w->at++;
        return add(w, "(");
    }
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        const size_t length = strlen(plain[i]);
        if (left < length || memcmp(at, plain[i], length) != 0) continue;
        if (plain[i][length - 1] == ')' && w->at > 0) break; /* how far it reaches differs */
        w->at += length;
        return add(w, plain[i]);
    }
    return refuse(w, "such a group");
}

static enum aq_status class_character(struct writer *w, char c, size_t opened)
{
    const char *at = w->regex + w->at;
    if (c == '[') return refuse(w, "a bracket in a class");
    if (c == '&' && w->at + 1 < w->bytes && at[1] == '&') return refuse(w, "&& in a class");
    if (c == ']' && w->at == opened) return refuse(w, "an empty class");
    w->in_class = c != ']';
    w->at++;
    return aq_bpe_text_add(&w->out, at, 1);
}

static enum aq_status translate(struct writer *w)
{
    size_t opened = 0; /* place of a class's first member */
    while (w->at < w->bytes) {
        const char c = w->regex[w->at];
        if (c == 0) return refuse(w, "a zero");
        if (c == '\\') {
            AQ_TRY(escape(w));
        } else if (w->in_class) {
            AQ_TRY(class_character(w, c, opened));
        } else if (c == '(') {
            AQ_TRY(group(w));
        } else {
            AQ_TRY(aq_bpe_text_add(&w->out, &c, 1));
            w->at++;
            if (c != '[') continue;
            w->in_class = true;
            if (w->at < w->bytes && w->regex[w->at] == '^') {
                AQ_TRY(aq_bpe_text_add(&w->out, "^", 1));
                w->at++;
            }
            opened = w->at;
        }
    }
    return AQ_OK;
}

/* ---- compiling ---- */

static enum aq_status compile(const char *place, const struct aq_bpe_text *regex, struct aq_bpe_pattern *pattern)
{
    int error;
    PCRE2_SIZE offset;
    const uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return aq_fail(AQ_NOMEM, AQ_BPE_AREA, "no memory for PCRE2");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pattern->code = pcre2_compile(regex->at, regex->count, options, &error, &offset, context);
    if (pattern->code)
        pattern->limited =
            pcre2_compile(regex->at, regex->count, options | PCRE2_USE_OFFSET_LIMIT, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (!pattern->code || !pattern->limited) {
        PCRE2_UCHAR text[160];
        if (error == PCRE2_ERROR_HEAP_FAILED) return aq_fail(AQ_NOMEM, AQ_BPE_AREA, "no memory for PCRE2");
        pcre2_get_error_message(error, text, sizeof text);
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: is not a regular expression: %s (after \"%.*s\")", place,
                       (const char *)text, offset > 200 ? 200 : (int)offset, (const char *)regex->at);
    }
    /* If the system forbids executable memory, PCRE2 interprets: slower, with the same words. */
    pattern->compiled_to_machine_code = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0 &&
                                        pcre2_jit_compile(pattern->limited, PCRE2_JIT_COMPLETE) == 0;
    return AQ_OK;
}

/* The file is valid UTF-8 where it is JSON: jansson has seen to it. */
enum aq_status aq_bpe_pattern_open(const char *place, const char *regex, size_t bytes, bool literal,
                                   struct aq_bpe_pattern **out)
{
    struct writer w = {.place = place, .regex = regex, .bytes = bytes};
    struct aq_bpe_pattern *pattern = NULL;
    enum aq_status status;
    if (bytes == 0 || bytes > REGEX_BYTES_MAX)
        return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "%s: the pattern has %zu bytes, must have 1 to %d", place, bytes,
                       (int)REGEX_BYTES_MAX);
    if (!literal) AQ_TRY_GOTO(translate(&w), out);
    AQ_TRY_GOTO(AQ_NEW(1, &pattern), out);
    char shown[SHOWN_BYTES];
    snprintf(shown, sizeof shown, "%s", regex);
    AQ_TRY_GOTO(aq_alloc_text(place, &pattern->place), out);
    AQ_TRY_GOTO(aq_alloc_text(shown, &pattern->shown), out);
    pattern->literal_bytes = bytes;
    AQ_TRY_GOTO(literal ? aq_alloc_text(regex, &pattern->literal) : compile(place, &w.out, pattern), out);
    *out = pattern;
out:
    if (status != AQ_OK) aq_bpe_pattern_close(pattern);
    aq_bpe_text_free(&w.out);
    return status;
}

void aq_bpe_pattern_close(struct aq_bpe_pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    pcre2_code_free(pattern->limited);
    aq_free(pattern->place);
    aq_free(pattern->shown);
    aq_free(pattern->literal);
    aq_free(pattern);
}

/* ---- matching ---- */

enum aq_status aq_bpe_matcher_open(struct aq_bpe_matcher **out)
{
    struct aq_bpe_matcher *matcher;
    AQ_TRY(AQ_NEW(1, &matcher));
    matcher->match = pcre2_match_data_create(1, NULL); /* one pair of offsets: only the whole match is needed */
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(STACK_BYTES_MIN, STACK_BYTES_MAX, NULL);
    if (!matcher->match || !matcher->context || !matcher->stack) {
        aq_bpe_matcher_close(matcher);
        return aq_fail(AQ_NOMEM, AQ_BPE_AREA, "no memory for PCRE2");
    }
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    aq_bpe_matcher_rest(matcher);
    *out = matcher;
    return AQ_OK;
}

void aq_bpe_matcher_rest(struct aq_bpe_matcher *matcher)
{
    matcher->places = PLACES_MAX;
    aq_bpe_budget_begin(&matcher->budget, 0);
    for (uint32_t i = 0; i < AQ_BPE_STEPS_MAX; i++)
        aq_bpe_text_free(&matcher->made[i]);
}

void aq_bpe_matcher_close(struct aq_bpe_matcher *matcher)
{
    if (!matcher) return;
    pcre2_match_data_free(matcher->match);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    for (uint32_t i = 0; i < AQ_BPE_STEPS_MAX; i++)
        aq_bpe_text_free(&matcher->made[i]);
    aq_free(matcher);
}

struct aq_bpe_text *aq_bpe_matcher_text(struct aq_bpe_matcher *matcher, uint32_t step, const char *place)
{
    AQ_ASSERT(step < AQ_BPE_STEPS_MAX);
    struct aq_bpe_text *text = &matcher->made[step];
    text->count = 0;
    text->bytes_max = matcher->budget.grown_max;
    text->place = place;
    return text;
}

struct aq_bpe_budget *aq_bpe_matcher_budget(struct aq_bpe_matcher *matcher)
{
    return &matcher->budget;
}

/* Finds a literal text: linear in the text, so it takes nothing from the budget. */
static enum aq_status find_literal(const struct aq_bpe_pattern *pattern, const uint8_t *text, size_t bytes, size_t from,
                                   size_t *start, size_t *end)
{
    const size_t length = pattern->literal_bytes;
    while (bytes - from >= length) { /* most texts are words: memmem prepares too much for them */
        const uint8_t *at = memchr(text + from, pattern->literal[0], bytes - from - length + 1);
        if (!at) break;
        *start = (size_t)(at - text);
        *end = *start + length;
        if (memcmp(at, pattern->literal, length) == 0) return AQ_OK;
        from = *start + 1;
    }
    return AQ_NOTFOUND;
}

/* One call of PCRE2: matches that start at from..last, at most `steps` at each place. PCRE2's result. */
static int match_within(const struct aq_bpe_pattern *pattern, struct aq_bpe_matcher *matcher, const uint8_t *text,
                        size_t bytes, size_t from, size_t last, uint64_t steps)
{
    const pcre2_code *code = last == bytes ? pattern->code : pattern->limited;
    pcre2_set_match_limit(matcher->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    (void)pcre2_set_offset_limit(matcher->context, last == bytes ? PCRE2_UNSET : last);
    return pattern->compiled_to_machine_code
               ? pcre2_jit_match(code, text, bytes, from, 0, matcher->match, matcher->context)
               : pcre2_match(code, text, bytes, from, PCRE2_NO_UTF_CHECK, matcher->match, matcher->context);
}

static enum aq_status refuse_match(const struct aq_bpe_pattern *pattern, size_t bytes, size_t from, int found)
{
    PCRE2_UCHAR why[160] = "its budget is used up";
    if (found != PCRE2_ERROR_MATCHLIMIT) pcre2_get_error_message(found, why, sizeof why);
    return aq_fail(AQ_INVAL, AQ_BPE_AREA,
                   "%s: the pattern \"%s\" takes too much time or memory on this text, at byte %zu of a part of %zu "
                   "bytes (%s). Use another tokenizer, or a pattern that does not try the same bytes in many ways",
                   pattern->place, pattern->shown, from, bytes, (const char *)why);
}

/*
 * PCRE2 counts steps for each place where a match may start, and does not report how many a match took. So most matches
 * have a small limit that costs no budget. If it does not suffice, that one place is tried with limits that double, and
 * each try is taken from the budget.
 */
enum aq_status aq_bpe_match(const struct aq_bpe_pattern *pattern, struct aq_bpe_matcher *matcher, const uint8_t *text,
                            size_t bytes, size_t from, size_t *start, size_t *end)
{
    uint64_t steps = AQ_BPE_STEPS_FREE;
    if (pattern->literal) return find_literal(pattern, text, bytes, from, start, end);
    for (;;) {
        const bool few = matcher->places < PLACES_MAX && bytes - from >= matcher->places;
        const size_t last = few ? from + matcher->places - 1 : bytes;
        const int found = match_within(pattern, matcher, text, bytes, from, last, steps);
        const bool limited = found == PCRE2_ERROR_MATCHLIMIT;
        if (found < 0 && !limited && found != PCRE2_ERROR_NOMATCH) return refuse_match(pattern, bytes, from, found);
        if (!aq_bpe_budget_take(&matcher->budget, limited ? steps : 0))
            return refuse_match(pattern, bytes, from, PCRE2_ERROR_MATCHLIMIT);
        if (limited) {
            if (matcher->places == 1) steps *= 2;
            matcher->places = 1;
            continue;
        }
        if (matcher->places < PLACES_MAX) matcher->places *= 2;
        steps = AQ_BPE_STEPS_FREE;
        if (found >= 0) break;
        if (last == bytes) return AQ_NOTFOUND;
        for (from = last + 1; from < bytes && (text[from] & 0xC0) == 0x80;)
            from++;
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(matcher->match);
    AQ_ASSERT(place[0] >= from && place[1] >= place[0] && place[1] <= bytes);
    *start = place[0];
    *end = place[1];
    return AQ_OK;
}
