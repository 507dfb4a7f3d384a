/*
 * jinja_text.c -- what Python's str does, over valid UTF-8: characters, white space, case, search.
 *
 * Case is Unicode's simple mapping (utf8proc). If Python's differs (one character becomes several, or depends on its
 * neighbours) the text is refused, except for the sharp s, so that no text silently differs.
 */
#include "jinja.h"

#include <string.h>
#include <utf8proc.h>

uint32_t jinja_decode(const char *at, uint32_t *length)
{
    const uint8_t *b = (const uint8_t *)at;
    if (b[0] < 0x80) {
        *length = 1;
        return b[0];
    }
    if (b[0] < 0xE0) {
        *length = 2;
        return (uint32_t)(b[0] & 0x1F) << 6 | (b[1] & 0x3F);
    }
    if (b[0] < 0xF0) {
        *length = 3;
        return (uint32_t)(b[0] & 0x0F) << 12 | (uint32_t)(b[1] & 0x3F) << 6 | (b[2] & 0x3F);
    }
    *length = 4;
    return (uint32_t)(b[0] & 0x07) << 18 | (uint32_t)(b[1] & 0x3F) << 12 | (uint32_t)(b[2] & 0x3F) << 6 | (b[3] & 0x3F);
}

uint32_t jinja_encode(uint32_t character, char out[4])
{
    return (uint32_t)utf8proc_encode_char((utf8proc_int32_t)character, (utf8proc_uint8_t *)out);
}

static bool continues(char byte)
{
    return ((uint8_t)byte & 0xC0) == 0x80;
}

int64_t jinja_characters(struct jinja_value string)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < string.bytes; i++)
        count += !continues(string.text[i]);
    return count;
}

uint32_t jinja_offset(struct jinja_value string, int64_t index)
{
    uint32_t at = 0;
    for (; at < string.bytes; at++)
        if (!continues(string.text[at]) && index-- == 0) break;
    return at;
}

bool jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static utf8proc_category_t category(uint32_t character)
{
    return utf8proc_category((utf8proc_int32_t)character);
}

bool jinja_is_printable(uint32_t character)
{
    switch (category(character)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return character == ' ';
    default:
        return true;
    }
}

static bool in_set(struct jinja_value set, const char *at, uint32_t length)
{
    if (set.kind != JINJA_STRING) {
        uint32_t unused;
        return jinja_is_space(jinja_decode(at, &unused));
    }
    for (uint32_t i = 0; i < set.bytes;) {
        uint32_t bytes;
        jinja_decode(set.text + i, &bytes);
        if (bytes == length && memcmp(set.text + i, at, bytes) == 0) return true;
        i += bytes;
    }
    return false;
}

struct jinja_value jinja_strip(struct jinja_value string, struct jinja_value characters, bool left, bool right)
{
    uint32_t length;
    while (left && string.bytes > 0) {
        jinja_decode(string.text, &length);
        if (!in_set(characters, string.text, length)) break;
        string.text += length;
        string.bytes -= length;
    }
    while (right && string.bytes > 0) {
        length = 1;
        while (continues(string.text[string.bytes - length]))
            length++;
        if (!in_set(characters, string.text + string.bytes - length, length)) break;
        string.bytes -= length;
    }
    return string;
}

int64_t jinja_find(struct jinja_value text, uint32_t from, struct jinja_value what)
{
    if (from > text.bytes) return -1;
    if (what.bytes == 0) return from;
    const char *found = memmem(text.text + from, text.bytes - from, what.text, what.bytes);
    return found ? found - text.text : -1;
}

/* ---- case ---- */

static bool is_upper(uint32_t c)
{
    return c < 0x80
               ? c >= 'A' && c <= 'Z'
               : category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) || (c >= 0x24B6 && c <= 0x24CF);
}

static bool is_lower(uint32_t c)
{
    return c < 0x80 ? c >= 'a' && c <= 'z'
                    : category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA || (c >= 0x2170 && c <= 0x217F) ||
                          (c >= 0x24D0 && c <= 0x24E9);
}

static bool is_cased(uint32_t c)
{
    return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}

/* Characters whose full mapping is more than another character: SpecialCasing.txt, and the sigma. */
static bool is_special(uint32_t c)
{
    return c == 0x130 || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 || c == 0x3A3 || c == 0x587 ||
           (c >= 0x1E96 && c <= 0x1E9E) || (c >= 0x1F50 && c <= 0x1FFC) || (c >= 0xFB00 && c <= 0xFB17) ||
           category(c) == UTF8PROC_CATEGORY_LT || (c >= 0x1C4 && c <= 0x1CC) || (c >= 0x1F1 && c <= 0x1F3) ||
           (c >= 0x10D0 && c <= 0x10FF); /* Georgian: its title case is not its upper case */
}

static bool begins_word(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || jinja_is_space(c);
}

enum aq_status jinja_case(struct jinja_run *run, struct jinja_value string, enum jinja_case how,
                          struct jinja_value *out)
{
    void *memory;
    AQ_TRY(jinja_heap(run, 2 * (size_t)string.bytes + 4, &memory)); /* the longest: two bytes become three */
    char *to = memory;
    uint32_t used = 0, before = ' ', length;
    for (uint32_t i = 0; i < string.bytes; i += length) {
        const uint32_t c = jinja_decode(string.text + i, &length);
        const bool first = how == JINJA_CAPITALIZE ? i == 0
                           : how == JINJA_TITLE    ? !is_cased(before)
                                                   : begins_word(before);
        const bool up = how == JINJA_UPPER || (how == JINJA_SWAP && is_lower(c)) ||
                        ((how == JINJA_CAPITALIZE || how == JINJA_TITLE || how == JINJA_TITLE_WORDS) && first);
        const bool down = !up && !(how == JINJA_SWAP && !is_upper(c));
        before = c;
        if (c == 0xDF && how == JINJA_UPPER) {
            memcpy(to + used, "SS", 2);
            used += 2;
        } else if (c >= 0x80 && (is_special(c) || (c == 0xDF && up))) {
            return jinja_fail(run, AQ_INVAL, "upper and lower case of U+%04X are not supported", (unsigned)c);
        } else {
            const utf8proc_int32_t point = (utf8proc_int32_t)c;
            used += jinja_encode((uint32_t)(up     ? utf8proc_toupper(point)
                                            : down ? utf8proc_tolower(point)
                                                   : point),
                                 to + used);
        }
    }
    *out = jinja_borrow(to, used);
    return AQ_OK;
}

bool jinja_all_of(struct jinja_value string, enum jinja_class class_)
{
    bool cased = false;
    uint32_t length;
    for (uint32_t i = 0; i < string.bytes; i += length) {
        const uint32_t c = jinja_decode(string.text + i, &length);
        const utf8proc_category_t of = category(c);
        const bool letter = of >= UTF8PROC_CATEGORY_LU && of <= UTF8PROC_CATEGORY_LO;
        const bool digit = of == UTF8PROC_CATEGORY_ND,
                   number = of >= UTF8PROC_CATEGORY_ND && of <= UTF8PROC_CATEGORY_NO;
        switch (class_) {
        case JINJA_ALPHA:
            if (!letter) return false;
            break;
        case JINJA_DIGIT:
            if (!digit) return false;
            break;
        case JINJA_ALNUM:
            if (!letter && !number) return false;
            break;
        case JINJA_SPACE:
            if (!jinja_is_space(c)) return false;
            break;
        case JINJA_IS_UPPER:
        case JINJA_IS_LOWER:
            if (is_cased(c) && (class_ == JINJA_IS_UPPER ? !is_upper(c) : !is_lower(c))) return false;
            cased = cased || is_cased(c);
        }
    }
    return class_ == JINJA_IS_UPPER || class_ == JINJA_IS_LOWER ? cased : string.bytes > 0;
}

/* ---- pieces ---- */

/* Writes text with `old` as `with`, count times at most; out NULL: only adds up. An empty `old` stands everywhere. */
static size_t replaced(struct jinja_value text, struct jinja_value old, struct jinja_value with, int64_t count,
                       char *out)
{
    size_t used = 0;
    uint32_t at = 0;
    while (count-- != 0) {
        const int64_t found = jinja_find(text, at, old);
        if (found < 0) break;
        uint32_t end = (uint32_t)found;
        if (out) memcpy(out + used, text.text + at, end - at);
        used += end - at;
        if (out) memcpy(out + used, with.text, with.bytes);
        used += with.bytes;
        if (old.bytes == 0) {
            uint32_t length = 0;
            if (end == text.bytes) return used;
            jinja_decode(text.text + end, &length);
            if (out) memcpy(out + used, text.text + end, length);
            used += length;
            end += length;
        }
        at = end + old.bytes;
    }
    if (out) memcpy(out + used, text.text + at, text.bytes - at);
    return used + text.bytes - at;
}

enum aq_status jinja_replace(struct jinja_run *run, struct jinja_value text, struct jinja_value old,
                             struct jinja_value with, int64_t count, struct jinja_value *out)
{
    void *memory;
    AQ_TRY(jinja_charge(run, 2 * (uint64_t)text.bytes));
    const size_t bytes = replaced(text, old, with, count, NULL);
    AQ_TRY(jinja_heap(run, bytes, &memory));
    replaced(text, old, with, count, memory);
    *out = jinja_borrow(memory, bytes);
    return AQ_OK;
}

enum aq_status jinja_escape(struct jinja_run *run, struct jinja_value text, struct jinja_value *out)
{
    static const char special[] = "&<>'\"";
    static const char *const written[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t bytes = 0;
    void *memory;
    for (uint32_t i = 0; i < text.bytes; i++) {
        const char *found = text.text[i] ? strchr(special, text.text[i]) : NULL;
        bytes += found ? strlen(written[found - special]) : 1;
    }
    AQ_TRY(jinja_heap(run, bytes, &memory));
    char *to = memory;
    for (uint32_t i = 0; i < text.bytes; i++) {
        const char *found = text.text[i] ? strchr(special, text.text[i]) : NULL;
        const size_t length = found ? strlen(written[found - special]) : 1;
        memcpy(to, found ? written[found - special] : text.text + i, length);
        to += length;
    }
    *out = jinja_borrow(memory, bytes);
    out->form = 1;
    return AQ_OK;
}

static bool ends_line(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

enum aq_status jinja_lines(struct jinja_run *run, struct jinja_value text, bool keep, struct jinja_value *out)
{
    uint32_t begin = 0, length;
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, 4, out));
    for (uint32_t i = 0; i < text.bytes; i += length) {
        const uint32_t c = jinja_decode(text.text + i, &length);
        if (!ends_line(c)) continue;
        if (c == '\r' && i + 1 < text.bytes && text.text[i + 1] == '\n') length = 2;
        const struct jinja_value line = jinja_borrow(text.text + begin, i - begin + (keep ? length : 0));
        AQ_TRY(jinja_list_add(run, out->list, line));
        begin = i + length;
    }
    if (begin == text.bytes) return AQ_OK;
    return jinja_list_add(run, out->list, jinja_borrow(text.text + begin, text.bytes - begin));
}
