/*
 * jinja_lexer.c -- a template's source as tokens: texts between tags, and the contents of tags.
 *
 * White space follows trim_blocks and lstrip_blocks: a newline right behind a block's or comment's end is removed, and
 * so are blanks between the start of a line and such a tag; "-" next to a bracket removes all white space on its side,
 * "+" none. As in Jinja, a line also starts behind a tag that has just removed its newline.
 *
 * Texts are pieces of the source; strings without their escapes are in program->strings, each behind the one before, so
 * that neighbours ("a" "b") are one text.
 */
#include "jinja.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BRACKETS_MAX = JINJA_NESTING_MAX };

struct lexer {
    struct jinja_program *program;
    struct jinja_tokens *out;
    const char *source;
    uint32_t at, end;
    bool line_begins;
    char brackets[BRACKETS_MAX];
    uint32_t bracket_count;
};

static enum aq_status add(struct lexer *l, enum jinja_token_kind kind, uint32_t at, const char *text, size_t bytes)
{
    struct jinja_tokens *out = l->out;
    if (out->count == out->capacity) {
        const uint32_t capacity = out->capacity ? out->capacity * 2 : 512;
        void *memory;
        AQ_TRY(aq_alloc(capacity * sizeof *out->at, &memory));
        if (out->count) memcpy(memory, out->at, out->count * sizeof *out->at);
        aq_free(out->at);
        out->at = memory;
        out->capacity = capacity;
    }
    out->at[out->count++] =
        (struct jinja_token){.kind = (uint8_t)kind, .at = at, .bytes = (uint32_t)bytes, .text = text};
    return AQ_OK;
}

static enum aq_status fail(const struct lexer *l, uint32_t at, const char *what)
{
    return jinja_program_fail(l->program, NULL, at, AQ_CORRUPT, "%s", what);
}

static uint32_t space_at(const struct lexer *l, uint32_t at)
{
    uint32_t length;
    return at < l->end && jinja_is_space(jinja_decode(l->source + at, &length)) ? length : 0;
}

static void skip_spaces(struct lexer *l)
{
    for (uint32_t length; (length = space_at(l, l->at)) > 0;)
        l->at += length;
}

static bool here(const struct lexer *l, uint32_t at, const char *text)
{
    const size_t bytes = strlen(text);
    return l->end - at >= bytes && memcmp(l->source + at, text, bytes) == 0;
}

/* Goes behind a tag's end of these two brackets; newline: of a block's or comment's. False: it does not end here. */
static bool skip_end(struct lexer *l, const char *end, bool plus, bool newline)
{
    const char sign = l->at < l->end ? l->source[l->at] : 0;
    const uint32_t signs = sign == '-' || (plus && sign == '+');
    if (!here(l, l->at + signs, end)) return false;
    l->at += signs + 2;
    if (sign == '-' && signs)
        skip_spaces(l);
    else if (!signs && newline && here(l, l->at, "\n"))
        l->at++;
    l->line_begins = l->source[l->at - 1] == '\n';
    return true;
}

/* The text before a tag, as its sign and the rules of lines leave it. */
static enum aq_status text_before(struct lexer *l, uint32_t begin, uint32_t end, char sign, bool variable)
{
    struct jinja_value text = jinja_borrow(l->source + begin, end - begin);
    if (sign == '-') {
        text = jinja_strip(text, (struct jinja_value){0}, false, true);
    } else if (sign != '+' && !variable) {
        uint32_t line = text.bytes;
        while (line > 0 && text.text[line - 1] != '\n')
            line--;
        if (line > 0 || l->line_begins) {
            const struct jinja_value rest = jinja_borrow(text.text + line, text.bytes - line);
            if (jinja_strip(rest, (struct jinja_value){0}, true, true).bytes == 0) text.bytes = line;
        }
    }
    return text.bytes ? add(l, JINJA_T_TEXT, begin, text.text, text.bytes) : AQ_OK;
}

static enum aq_status skip_comment(struct lexer *l, uint32_t begin)
{
    for (l->at = begin; l->at < l->end; l->at++) {
        const char c = l->source[l->at];
        if ((c == '#' || c == '-' || c == '+') && skip_end(l, "#}", true, true)) return AQ_OK;
    }
    return fail(l, begin - 2, "this comment is not closed (#})");
}

/* Behind "{%" and its sign: skips "raw %}" and returns true, or stays. */
static bool raw_begins(struct lexer *l)
{
    const uint32_t from = l->at;
    skip_spaces(l);
    if (here(l, l->at, "raw")) {
        l->at += 3;
        skip_spaces(l);
        if (skip_end(l, "%}", false, false)) return true;
    }
    l->at = from;
    return false;
}

/* The text up to {% endraw %}, unchanged. */
static enum aq_status raw(struct lexer *l, uint32_t tag)
{
    const uint32_t begin = l->at;
    for (uint32_t at = begin; at < l->end; at++) {
        if (!here(l, at, "{%")) continue;
        const char sign = at + 2 < l->end ? l->source[at + 2] : 0;
        l->at = at + 2 + (sign == '-' || sign == '+');
        skip_spaces(l);
        if (!here(l, l->at, "endraw")) continue;
        l->at += 6;
        skip_spaces(l);
        const bool line_begins = l->line_begins;
        if (!skip_end(l, "%}", true, true)) continue;
        const bool line_begins_then = l->line_begins;
        l->line_begins = line_begins;
        AQ_TRY(text_before(l, begin, at, sign, false));
        l->line_begins = line_begins_then;
        return AQ_OK;
    }
    return fail(l, tag, "{% raw %} has no {% endraw %}");
}

static uint32_t digits(const struct lexer *l, uint32_t at, unsigned base)
{
    uint32_t from = at;
    for (; at < l->end; at++) {
        const char c = l->source[at];
        const int value = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : 99;
        if (c == '_' && at > from && at + 1 < l->end && l->source[at + 1] != '_') continue;
        if (value >= (int)base) break;
    }
    if (at > from && l->source[at - 1] == '_') at--;
    return at - from;
}

static enum aq_status number(struct lexer *l)
{
    enum { LONGEST = 64 };
    char text[LONGEST + 1];
    const uint32_t at = l->at;
    const char second = at + 1 < l->end ? (char)(l->source[at + 1] | 0x20) : 0;
    const unsigned base = l->source[at] != '0' ? 10 : second == 'x' ? 16 : second == 'o' ? 8 : second == 'b' ? 2 : 10;
    uint32_t end = at + (base == 10 ? 0 : 2), count = 0;
    bool real = false;
    end += digits(l, end, base);
    if (base == 10 && (at == 0 || l->source[at - 1] != '.')) {
        if (here(l, end, ".") && digits(l, end + 1, 10)) {
            end += 1 + digits(l, end + 1, 10);
            real = true;
        }
        if (here(l, end, "e") || here(l, end, "E")) {
            const uint32_t sign = end + 1 < l->end && strchr("+-", l->source[end + 1]) ? 1 : 0;
            if (digits(l, end + 1 + sign, 10)) {
                end += 1 + sign + digits(l, end + 1 + sign, 10);
                real = true;
            }
        }
    }
    for (uint32_t i = at + (base == 10 ? 0 : 2); i < end; i++) {
        if (l->source[i] == '_') continue;
        if (count == LONGEST) return fail(l, at, "this number is too long");
        text[count++] = l->source[i];
    }
    text[count] = 0;
    if (count == 0) return fail(l, at, "this is not a number");
    AQ_TRY(add(l, real ? JINJA_T_FLOAT : JINJA_T_INT, at, NULL, end - at));
    errno = 0;
    if (real) {
        l->out->at[l->out->count - 1].real = strtod(text, NULL);
    } else {
        if (base == 10 && count > 1 && text[0] == '0' && strspn(text, "0") != count)
            return fail(l, at, "a number cannot start with 0");
        l->out->at[l->out->count - 1].integer = strtoll(text, NULL, (int)base);
        if (errno == ERANGE) return fail(l, at, "a whole number has at most 63 bits here");
    }
    l->at = end;
    return AQ_OK;
}

/* An escape: that many digits behind a backslash and a letter. False: they are not there, or no character. */
static bool escape_digits(struct lexer *l, uint32_t count, unsigned base, uint32_t *character)
{
    uint32_t value = 0, done = 0;
    for (; done < count && l->at < l->end; done++, l->at++) {
        const char c = l->source[l->at];
        if (c == '_' || digits(l, l->at, base) == 0) break;
        value = value * base + (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    *character = value;
    return (base == 8 ? done > 0 : done == count) && value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
}

/* One escape, l->at behind its backslash: written to out, its bytes in *count. */
static enum aq_status escape(struct lexer *l, char out[4], uint32_t *count)
{
    static const char letters[] = "nrtabfv\\'\"", meant[] = "\n\r\t\a\b\f\v\\'\"";
    const uint32_t at = l->at - 1;
    const char c = l->source[l->at];
    const char *letter = c ? strchr(letters, c) : NULL;
    uint32_t character;
    *count = 0;
    if (c == '\n') {
        l->at++;
    } else if (letter) {
        out[0] = meant[letter - letters];
        *count = 1;
        l->at++;
    } else if (c == 'x' || c == 'u' || c == 'U') {
        l->at++;
        if (!escape_digits(l, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, &character))
            return fail(l, at, "this escape is not a character");
        *count = jinja_encode(character, out);
    } else if (c >= '0' && c <= '7') {
        if (!escape_digits(l, 3, 8, &character)) return fail(l, at, "this escape is not a character");
        *count = jinja_encode(character, out);
    } else if (c == 'N') {
        return fail(l, at, "characters by their name (\\N) are not supported: write \\u and their number");
    } else {
        out[0] = '\\'; /* as Python: what is no escape stays */
        *count = 1;
    }
    return AQ_OK;
}

static enum aq_status string(struct lexer *l)
{
    const uint32_t begin = l->at;
    const char quote = l->source[l->at++];
    char *strings = l->program->strings;
    const size_t from = l->program->string_bytes;
    size_t used = from;
    while (l->at < l->end && l->source[l->at] != quote) {
        if (l->source[l->at] != '\\') {
            strings[used++] = l->source[l->at++];
            continue;
        }
        char written[4];
        uint32_t count;
        if (++l->at == l->end) break;
        AQ_TRY(escape(l, written, &count));
        memcpy(strings + used, written, count);
        used += count;
    }
    if (l->at == l->end) return fail(l, begin, "this string is not closed");
    l->at++;
    l->program->string_bytes = used;
    return add(l, JINJA_T_STRING, begin, strings + from, used - from);
}

static bool is_name(char c, bool first)
{
    return c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (!first && c >= '0' && c <= '9');
}

static enum aq_status operator_(struct lexer *l)
{
    static const struct {
        const char *text;
        enum jinja_token_kind kind;
    } operators[] = {
        {"//", JINJA_T_FLOORDIV}, {"**", JINJA_T_POW},     {"==", JINJA_T_EQ},      {"!=", JINJA_T_NE},
        {"<=", JINJA_T_LE},       {">=", JINJA_T_GE},      {"+", JINJA_T_ADD},      {"-", JINJA_T_SUB},
        {"*", JINJA_T_MUL},       {"/", JINJA_T_DIV},      {"%", JINJA_T_MOD},      {"~", JINJA_T_TILDE},
        {"<", JINJA_T_LT},        {">", JINJA_T_GT},       {"=", JINJA_T_ASSIGN},   {".", JINJA_T_DOT},
        {",", JINJA_T_COMMA},     {":", JINJA_T_COLON},    {"|", JINJA_T_PIPE},     {"(", JINJA_T_LPAREN},
        {")", JINJA_T_RPAREN},    {"[", JINJA_T_LBRACKET}, {"]", JINJA_T_RBRACKET}, {"{", JINJA_T_LBRACE},
        {"}", JINJA_T_RBRACE},
    };
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!here(l, l->at, operators[i].text)) continue;
        const char c = operators[i].text[0];
        if (strchr("([{", c)) {
            if (l->bracket_count == BRACKETS_MAX) return fail(l, l->at, "brackets are nested too deep");
            l->brackets[l->bracket_count++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (strchr(")]}", c)) {
            if (l->bracket_count == 0 || l->brackets[--l->bracket_count] != c)
                return fail(l, l->at, "a closing bracket without an opening one");
        }
        const uint32_t at = l->at;
        l->at += (uint32_t)strlen(operators[i].text);
        return add(l, operators[i].kind, at, l->source + at, l->at - at);
    }
    return fail(l, l->at,
                (uint8_t)l->source[l->at] < 0x80 ? "this character means nothing in a tag"
                                                 : "names can have only ASCII characters here");
}

/* From behind "{{" or "{%" and its sign to behind the tag's end. */
static enum aq_status tag(struct lexer *l, bool variable, uint32_t begin)
{
    AQ_TRY(add(l, variable ? JINJA_T_VARIABLE_BEGIN : JINJA_T_BLOCK_BEGIN, begin, NULL, 0));
    l->bracket_count = 0;
    for (;;) {
        skip_spaces(l);
        if (l->at == l->end) return fail(l, begin, variable ? "{{ has no }}" : "{% has no %}");
        const uint32_t at = l->at;
        if (l->bracket_count == 0 && skip_end(l, variable ? "}}" : "%}", !variable, !variable))
            return add(l, variable ? JINJA_T_VARIABLE_END : JINJA_T_BLOCK_END, at, NULL, 0);
        const char c = l->source[l->at];
        if (c >= '0' && c <= '9') {
            AQ_TRY(number(l));
        } else if (is_name(c, true)) {
            while (l->at < l->end && is_name(l->source[l->at], false))
                l->at++;
            AQ_TRY(add(l, JINJA_T_NAME, at, l->source + at, l->at - at));
        } else if (c == '\'' || c == '"') {
            AQ_TRY(string(l));
        } else {
            AQ_TRY(operator_(l));
        }
    }
}

enum aq_status jinja_tokenize(struct jinja_program *program, struct jinja_tokens *out)
{
    struct lexer l = {.program = program,
                      .out = out,
                      .source = program->source,
                      .end = (uint32_t)program->source_bytes,
                      .line_begins = true};
    while (l.at < l.end) {
        const uint32_t begin = l.at;
        uint32_t at = begin;
        while (at < l.end && !here(&l, at, "{{") && !here(&l, at, "{%") && !here(&l, at, "{#"))
            at++;
        if (at == l.end) {
            AQ_TRY(add(&l, JINJA_T_TEXT, begin, l.source + begin, at - begin));
            break;
        }
        const char what = l.source[at + 1], sign = at + 2 < l.end ? l.source[at + 2] : 0;
        const bool is_sign = sign == '-' || sign == '+';
        AQ_TRY(text_before(&l, begin, at, sign, what == '{'));
        l.at = at + 2 + is_sign;
        l.line_begins = false;
        if (what == '#')
            AQ_TRY(skip_comment(&l, l.at));
        else if (what == '%' && raw_begins(&l))
            AQ_TRY(raw(&l, at));
        else
            AQ_TRY(tag(&l, what == '{', at));
    }
    return add(&l, JINJA_T_END, l.end, NULL, 0);
}
