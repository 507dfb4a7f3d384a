/*
 * printable.c -- see the header.
 *
 * The walk is over UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. A byte that
 * starts no whole character is escaped by itself, and the walk continues with the next one.
 */
#include "aqsgd/base/printable.h"

#include <stdint.h>
#include <string.h>

#include "aqsgd/base/status.h"

/* Characters that are not shown, or that change how others are: first and last. */
static const uint32_t hidden[][2] = {
    {0x0000, 0x001f},   {0x007f, 0x009f},   /* C0, DEL, C1                                       */
    {0x00ad, 0x00ad},   {0x061c, 0x061c},   /* soft hyphen, Arabic letter mark                   */
    {0x115f, 0x1160},   {0x180e, 0x180e},   /* fillers, Mongolian vowel separator                */
    {0x200b, 0x200b},   {0x200e, 0x200f},   /* zero width space, left-to-right and right-to-left */
    {0x2028, 0x202e},                       /* line and paragraph separator, bidi embeddings     */
    {0x2060, 0x206f},                       /* word joiner, invisible operators, bidi isolates   */
    {0x3164, 0x3164},   {0xfeff, 0xfeff},   /* filler, byte order mark                           */
    {0xfff0, 0xfffb},   {0xfffe, 0xffff},   /* annotations, no characters                        */
    {0x1fffe, 0x1ffff}, {0xe0000, 0xe0fff}, /* no characters, tags                             */
};

/* The character at text, of at most `left` bytes; *bytes gets its length. UINT32_MAX: no character. */
static uint32_t decode(const unsigned char *text, size_t left, size_t *bytes)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char first = text[0];
    const size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
    if (length == 0 || length > left) return UINT32_MAX;
    uint32_t value = length == 1 ? first : first & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (text[i] >> 6 != 2) return UINT32_MAX;
        value = value << 6 | (text[i] & 0x3f);
    }
    if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return UINT32_MAX;
    *bytes = length;
    return value;
}

static bool shown(uint32_t value, bool lines)
{
    if (lines && (value == '\n' || value == '\t')) return true;
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (value >= hidden[i][0] && value <= hidden[i][1]) return false;
    return value <= 0x10ffff;
}

static const char digits[] = "0123456789abcdef";

size_t aq_printable(const char *text, size_t count, bool lines, char *out, size_t bytes)
{
    AQ_ASSERT(bytes >= AQ_PRINTABLE_BYTES_MIN);
    const unsigned char *in = (const void *)text;
    size_t at = 0, to = 0;
    while (at < count) {
        size_t length = 1;
        const uint32_t value = decode(in + at, count - at, &length);
        const bool plain = shown(value, lines);
        if (to + (plain ? length : 4 * length) >= bytes) break;
        if (plain) {
            memcpy(out + to, in + at, length);
            to += length;
        } else {
            for (size_t i = 0; i < length; i++) {
                const char escape[4] = {'\\', 'x', digits[in[at + i] >> 4], digits[in[at + i] & 15]};
                memcpy(out + to, escape, sizeof escape);
                to += sizeof escape;
            }
        }
        at += length;
    }
    out[to] = 0;
    return at;
}

const char *aq_printable_text(const char *text, char *out, size_t bytes)
{
    (void)aq_printable(text ? text : "", text ? strlen(text) : 0, false, out, bytes);
    return out;
}

const char *aq_hex(const void *bytes, size_t count, char *out)
{
    const unsigned char *in = bytes;
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * count] = 0;
    return out;
}

bool aq_is_hex(const char *text, size_t count)
{
    return strlen(text) == count && strspn(text, digits) == count;
}

static uint8_t digit_of(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

bool aq_hex_read(const char *text, size_t count, void *out)
{
    uint8_t *bytes = out;
    if (!aq_is_hex(text, 2 * count)) return false;
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(digit_of(text[2 * i]) << 4 | digit_of(text[2 * i + 1]));
    return true;
}
