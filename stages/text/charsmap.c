/* charsmap.c -- see the header. */
#include "charsmap.h"

#include <string.h>

#include "unicode_forms.h"

enum { RULE_BYTES_MAX = 64, ASCII = 128 };

struct aq_charsmap {
    uint8_t *bytes; /* of aq_alloc: all of it */
    const uint8_t *units, *texts;
    bool stays[ASCII];
};

uint32_t charsmap_word(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* The base of unit i's children: the child of a label is base ^ label, the leaf is base itself. */
static size_t children_of(size_t i, uint32_t unit)
{
    return i ^ ((size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6));
}

const char *aq_charsmap_problem(const uint8_t *bytes, size_t count)
{
    if (count == 0) return NULL; /* no rules */
    const uint32_t array = count >= 4 ? charsmap_word(bytes) : 0;
    if (count < 8 || array < 1024 || array % 4 || array > count - 5) return "its length is wrong";
    const uint8_t *units = bytes + 4;
    const size_t unit_count = array / 4, texts = count - 4 - array;
    if (bytes[count - 1] != 0) return "its texts do not end";
    if (!aq_unicode_valid(bytes + 4 + (size_t)array, texts)) return "its texts are not UTF-8";
    for (size_t i = 4 + (size_t)array, start = i; i < count; i++) {
        if (bytes[i]) continue;
        if (i - start > RULE_BYTES_MAX) return "it makes more than 64 bytes of one match";
        start = i + 1;
    }
    for (size_t i = 0; i < unit_count; i++) {
        const uint32_t unit = charsmap_word(units + 4 * i);
        if (unit >> 31 && i > 0) continue; /* a leaf's value: looked at where its parent is */
        const size_t base = children_of(i, unit);
        if ((base | 255) >= unit_count) return "a unit points out of its array";
        if (!(unit >> 8 & 1)) continue;
        const size_t value = charsmap_word(units + 4 * base) & 0x7FFFFFFF;
        if (value >= texts) return "a leaf points out of its texts";
        if ((bytes[4 + (size_t)array + value] & 0xC0) == 0x80) return "a leaf points into a character";
    }
    return NULL;
}

/* ---- base64 ---- */

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* out has room for three bytes per four characters; false: it is no base64 (RFC 4648, padded). */
static bool base64_read(const char *text, size_t length, uint8_t *out, size_t *count)
{
    size_t used = 0;
    uint32_t bits = 0;
    if (length % 4) return false;
    for (unsigned i = 0; i < 2 && length && text[length - 1] == '='; i++)
        length--;
    for (size_t i = 0; i < length; i++) {
        const int value = base64_value(text[i]);
        if (value < 0) return false;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 == 0) continue;
        out[used++] = (uint8_t)(bits >> (2 * (3 - i % 4)));
    }
    *count = used;
    return true;
}

/* ---- the table ---- */

enum aq_status aq_charsmap_open(const char *place, const char *base64, struct aq_charsmap **out)
{
    const size_t length = strlen(base64);
    const char *problem = "it is not base64";
    enum aq_status status;
    size_t count = 0;
    struct aq_charsmap *map;
    AQ_TRY(AQ_NEW(1, &map));
    AQ_TRY_GOTO(AQ_NEW(length / 4 * 3 + 1, &map->bytes), out);
    if (base64_read(base64, length, map->bytes, &count))
        problem = count ? aq_charsmap_problem(map->bytes, count) : "it is empty";
    if (problem)
        AQ_TRY_GOTO(aq_fail(AQ_CORRUPT, "tokenizer",
                            "%s is damaged: %s. Save the tokenizer again, or download tokenizer.json again", place,
                            problem),
                    out);
    map->units = map->bytes + 4;
    map->texts = map->units + charsmap_word(map->bytes);
    for (unsigned i = 0; i < ASCII; i++) {
        const uint8_t byte = (uint8_t)i;
        map->stays[i] = aq_charsmap_find(map, &byte, 1, &count) == NULL;
    }
    *out = map;
out:
    if (status != AQ_OK) aq_charsmap_close(map);
    return status;
}

void aq_charsmap_close(struct aq_charsmap *map)
{
    if (!map) return;
    aq_free(map->bytes);
    aq_free(map);
}

/* The comparison includes the sign bit: no leaf's value passes as a child. The checks of open bound each index. */
const uint8_t *aq_charsmap_find(const struct aq_charsmap *map, const uint8_t *bytes, size_t count, size_t *length)
{
    size_t at = children_of(0, charsmap_word(map->units));
    for (size_t i = 0; i < count && bytes[i]; i++) {
        at ^= bytes[i];
        const uint32_t unit = charsmap_word(map->units + 4 * at);
        if ((unit & 0x800000FFu) != bytes[i]) return NULL;
        at = children_of(at, unit);
        if (!(unit >> 8 & 1)) continue;
        const uint8_t *text = map->texts + (charsmap_word(map->units + 4 * at) & 0x7FFFFFFF);
        *length = strlen((const char *)text);
        return text;
    }
    return NULL;
}

bool aq_charsmap_stays(const struct aq_charsmap *map, uint8_t ascii)
{
    return ascii < ASCII && map->stays[ascii];
}
