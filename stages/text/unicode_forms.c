/* unicode_forms.c -- see the header. */
#include "unicode_forms.h"

#include <string.h>
#include <utf8proc.h>

enum { CHARACTERS = 0x110000, DECOMPOSED_MAX = 32 };

struct aq_unicode_forms {
    uint8_t stays[CHARACTERS / 8]; /* in form C, whatever its neighbours */
};

const char *aq_unicode_library(void)
{
    return utf8proc_version(); /* one of its versions knows one Unicode */
}

static void mark(uint8_t *bits, uint32_t character, bool value)
{
    if (value)
        bits[character / 8] |= (uint8_t)(1u << (character % 8));
    else
        bits[character / 8] &= (uint8_t) ~(1u << (character % 8));
}

/*
 * A character stays where its combining class is 0, its form C is itself, and it is no later part of a composition:
 * those are found in the decompositions of the composed ones, Hangul's syllables among them.
 */
enum aq_status aq_unicode_forms_open(struct aq_unicode_forms **out)
{
    struct aq_unicode_forms *forms;
    AQ_TRY(AQ_NEW(1, &forms));
    for (uint32_t c = 0; c < CHARACTERS; c++)
        mark(forms->stays, c, utf8proc_get_property((int32_t)c)->combining_class == 0);
    for (uint32_t c = 0x80; c < CHARACTERS; c++) {
        utf8proc_int32_t parts[DECOMPOSED_MAX], composed[DECOMPOSED_MAX];
        int bound = 0;
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        const utf8proc_ssize_t count =
            utf8proc_decompose_char((int32_t)c, parts, DECOMPOSED_MAX, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &bound);
        AQ_ASSERT(count >= 1 && count <= DECOMPOSED_MAX);
        if (count == 1 && parts[0] == (int32_t)c) continue;
        memcpy(composed, parts, (size_t)count * sizeof parts[0]);
        const utf8proc_ssize_t left = utf8proc_normalize_utf32(composed, count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        const bool same = left == 1 && composed[0] == (int32_t)c;
        if (!same) mark(forms->stays, c, false);
        for (utf8proc_ssize_t i = 1; same && i < count; i++)
            mark(forms->stays, (uint32_t)parts[i], false);
    }
    *out = forms;
    return AQ_OK;
}

void aq_unicode_forms_close(struct aq_unicode_forms *forms)
{
    aq_free(forms);
}

size_t aq_unicode_read(const uint8_t *text, uint32_t *character)
{
    const uint32_t lead = text[0];
    if (lead < 0x80) {
        *character = lead;
        return 1;
    }
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t value = lead & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++)
        value = value << 6 | (text[i] & 0x3F);
    *character = value;
    return length;
}

static bool stays(const struct aq_unicode_forms *forms, enum aq_unicode_form form, uint32_t character)
{
    if (form != AQ_UNICODE_NFC) return character < 0x80; /* rare: everything else is looked at */
    return forms->stays[character / 8] >> (character % 8) & 1;
}

bool aq_unicode_segment(const struct aq_unicode_forms *forms, enum aq_unicode_form form, const uint8_t *text,
                        size_t bytes, size_t from, size_t *start, size_t *end)
{
    size_t at = from, before = from; /* the last character that stays: what follows may join it */
    uint32_t character;
    for (;;) {
        uint64_t eight;
        while (bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (eight & UINT64_C(0x8080808080808080)) break;
            at += sizeof eight;
            before = at - 1;
        }
        if (at == bytes) return false;
        const size_t length = aq_unicode_read(text + at, &character);
        if (!stays(forms, form, character)) break;
        before = at;
        at += length;
    }
    *start = before;
    while (at < bytes) {
        const size_t length = aq_unicode_read(text + at, &character);
        if (stays(forms, form, character)) break;
        at += length;
    }
    *end = at;
    return true;
}

/* Marks in a row by their classes, equal ones as they stood. utf8proc_decompose takes the square of their count. */
static enum aq_status sort_marks(utf8proc_int32_t *marks, size_t count)
{
    size_t at[257] = {0};
    utf8proc_int32_t *sorted;
    AQ_TRY(AQ_NEW(count, &sorted));
    for (size_t i = 0; i < count; i++)
        at[1 + (utf8proc_get_property(marks[i])->combining_class & 255)]++;
    for (size_t i = 1; i < 257; i++)
        at[i] += at[i - 1];
    for (size_t i = 0; i < count; i++)
        sorted[at[utf8proc_get_property(marks[i])->combining_class & 255]++] = marks[i];
    memcpy(marks, sorted, count * sizeof *marks);
    aq_free(sorted);
    return AQ_OK;
}

static enum aq_status order_marks(utf8proc_int32_t *characters, size_t count)
{
    for (size_t start = 0, end; start < count; start = end) {
        bool ordered = true;
        utf8proc_propval_t class = 0;
        for (end = start; end < count; end++) {
            const utf8proc_propval_t next = utf8proc_get_property(characters[end])->combining_class;
            if (next == 0) break;
            ordered = ordered && next >= class;
            class = next;
        }
        if (!ordered) AQ_TRY(sort_marks(characters + start, end - start));
        if (end == start) end++;
    }
    return AQ_OK;
}

/* Characters decomposed one by one, as utf8proc_decompose has them before it orders marks. out NULL: the count. */
static utf8proc_ssize_t decompose(const uint8_t *text, size_t bytes, utf8proc_option_t option, utf8proc_int32_t *out,
                                  utf8proc_ssize_t room)
{
    utf8proc_ssize_t used = 0;
    int boundary = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t character;
        at += aq_unicode_read(text + at, &character);
        const utf8proc_ssize_t more = utf8proc_decompose_char((utf8proc_int32_t)character, out ? out + used : NULL,
                                                              room > used ? room - used : 0, option, &boundary);
        if (more < 0) return more;
        used += more;
    }
    return used;
}

enum aq_status aq_unicode_form(enum aq_unicode_form form, const uint8_t *text, size_t bytes, uint8_t **out,
                               size_t *count)
{
    static const int options[] = {[AQ_UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
                                  [AQ_UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
                                  [AQ_UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                  [AQ_UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    const utf8proc_option_t option = (utf8proc_option_t)options[form];
    const utf8proc_ssize_t wanted = decompose(text, bytes, option, NULL, 0);
    void *memory;
    if (wanted < 0) return aq_fail(AQ_NOMEM, "tokenizer", "utf8proc: %s", utf8proc_errmsg(wanted));
    AQ_TRY(aq_alloc(((size_t)wanted + 1) * sizeof(utf8proc_int32_t), &memory));
    utf8proc_ssize_t got = decompose(text, bytes, option, memory, wanted);
    const enum aq_status status = got == wanted ? order_marks(memory, (size_t)wanted) : AQ_OK;
    if (status == AQ_OK && got == wanted) got = utf8proc_reencode(memory, got, option); /* in place; a zero behind it */
    if (status != AQ_OK || got < 0) {
        aq_free(memory);
        return status != AQ_OK ? status : aq_fail(AQ_NOMEM, "tokenizer", "utf8proc: %s", utf8proc_errmsg(got));
    }
    *out = memory;
    *count = (size_t)got;
    return AQ_OK;
}

size_t aq_unicode_lower(uint32_t character, uint8_t out[8])
{
    if (character == 0x130) { /* the one character whose full lower case is two: i and a dot above */
        memcpy(out, "i\xCC\x87", 3);
        return 3;
    }
    return (size_t)utf8proc_encode_char(utf8proc_tolower((int32_t)character), out);
}

bool aq_unicode_is_word(uint32_t c)
{
    if (c == 0x200C || c == 0x200D) return true;                                     /* Join_Control              */
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149)) return true; /* Other_Alphabetic symbols  */
    if ((c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) return true;
    const utf8proc_category_t category = utf8proc_category((int32_t)c);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC;
}

bool aq_unicode_is_space(uint32_t c)
{
    if ((c >= 9 && c <= 13) || c == 0x85) return true;
    const utf8proc_category_t category = utf8proc_category((int32_t)c);
    return category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
}

bool aq_unicode_is_control(uint32_t c)
{
    const utf8proc_category_t category = utf8proc_category((int32_t)c);
    return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
}

bool aq_unicode_is_nonspacing_mark(uint32_t c)
{
    return utf8proc_category((int32_t)c) == UTF8PROC_CATEGORY_MN;
}

bool aq_unicode_valid(const uint8_t *text, size_t bytes)
{
    utf8proc_int32_t character;
    for (size_t at = 0; at < bytes;) {
        const utf8proc_ssize_t length = utf8proc_iterate(text + at, (utf8proc_ssize_t)(bytes - at), &character);
        if (length <= 0) return false;
        at += (size_t)length;
    }
    return true;
}

size_t aq_unicode_cluster(const uint8_t *text, size_t bytes, size_t at)
{
    uint32_t before, next;
    utf8proc_int32_t state = 0;
    at += aq_unicode_read(text + at, &before);
    while (at < bytes) {
        const size_t length = aq_unicode_read(text + at, &next);
        if (utf8proc_grapheme_break_stateful((int32_t)before, (int32_t)next, &state)) break;
        before = next;
        at += length;
    }
    return at;
}
