/*
 * stopper.c -- lets a text out as its tokens come, as far as it is certain.
 *
 *     held:  [ certain: goes out now | may start a stop word, or is half a character: stays ]
 *
 * Stop words are searched in bytes, across the borders of tokens: the one that is complete first ends the text, so that
 * the shown text does not depend on its tokens. The held text is shorter than the longest word and one character, so
 * that a search from its start is cheap.
 */
#include <string.h>

#include "stages/sampling.h"

#define AREA "sampling"

struct word {
    char *text;
    size_t bytes;
};

struct aq_stopper {
    struct word *words;
    uint32_t count;
    char *held, *shown;
    size_t held_bytes, held_room, shown_bytes, shown_room;
    bool stopped;
};

enum aq_status aq_stopper_open(const char *const *words, uint32_t count, struct aq_stopper **out)
{
    enum aq_status status;
    for (uint32_t i = 0; i < count; i++)
        if (!words[i][0]) return aq_fail(AQ_INVAL, AREA, "a stop word is empty: the text would end at once");
    struct aq_stopper *s;
    AQ_TRY(AQ_NEW(1, &s));
    AQ_TRY_GOTO(AQ_NEW(count, &s->words), out);
    for (; s->count < count; s->count++) {
        AQ_TRY_GOTO(aq_alloc_text(words[s->count], &s->words[s->count].text), out);
        s->words[s->count].bytes = strlen(words[s->count]);
    }
    *out = s;
    return AQ_OK;
out:
    aq_stopper_close(s);
    return status;
}

void aq_stopper_close(struct aq_stopper *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->count; i++)
        aq_free(s->words[i].text);
    aq_free(s->words);
    aq_free(s->held);
    aq_free(s->shown);
    aq_free(s);
}

/* Room for `bytes` bytes; keeps the first `used`. */
static enum aq_status reserve(char **at, size_t used, size_t *room, size_t bytes)
{
    void *memory;
    if (bytes <= *room) return AQ_OK;
    const size_t more = bytes > 2 * *room ? bytes : 2 * *room;
    AQ_TRY(aq_alloc(more, &memory));
    if (used) memcpy(memory, *at, used);
    aq_free(*at);
    *at = memory;
    *room = more;
    return AQ_OK;
}

/* The start of the stop word that ends first, of several the longest; held_bytes: none. */
static size_t first_word(const struct aq_stopper *s)
{
    size_t first = s->held_bytes, end = SIZE_MAX;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct word *word = &s->words[i];
        const char *found = memmem(s->held, s->held_bytes, word->text, word->bytes);
        if (!found) continue;
        const size_t begin = (size_t)(found - s->held);
        if (begin + word->bytes > end || (begin + word->bytes == end && begin > first)) continue;
        first = begin;
        end = begin + word->bytes;
    }
    return first;
}

/* The start of the longest suffix of the held text that is a prefix of a stop word; held_bytes: none. */
static size_t maybe_word(const struct aq_stopper *s)
{
    size_t first = s->held_bytes;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct word *word = &s->words[i];
        size_t at = s->held_bytes >= word->bytes ? s->held_bytes - word->bytes + 1 : 0;
        while (at < first && memcmp(s->held + at, word->text, s->held_bytes - at) != 0)
            at++;
        if (at < first) first = at;
    }
    return first;
}

/*
 * The character at `at`: its bytes in *length if it is whole (true); else how many bytes are a valid prefix of one, at
 * least 1, and *open: more bytes could complete it.
 */
static bool character(const uint8_t *at, size_t bytes, size_t *length, bool *open)
{
    const uint8_t lead = at[0];
    const size_t wanted = lead < 0x80                    ? 1
                          : lead >= 0xC2 && lead <= 0xDF ? 2
                          : lead >= 0xE0 && lead <= 0xEF ? 3
                          : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                         : 0;
    const uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80; /* of the second: no overlong form, */
    const uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;  /* surrogate or beyond U+10FFFF     */
    *open = false;
    *length = 1;
    if (wanted == 0) return false;
    for (; *length < wanted; (*length)++) {
        if (*length == bytes) {
            *open = true;
            return false;
        }
        const uint8_t next = at[*length];
        if (next < (*length == 1 ? least : 0x80) || next > (*length == 1 ? most : 0xBF)) return false;
    }
    return true;
}

/* Moves the first `bytes` of what is held to what is shown, a half character at their end only where `all`. */
static enum aq_status release(struct aq_stopper *s, size_t bytes, bool all)
{
    size_t at = 0, length;
    AQ_TRY(reserve(&s->shown, 0, &s->shown_room, 3 * bytes));
    s->shown_bytes = 0;
    for (bool open; at < bytes; at += length) {
        const bool whole = character((const uint8_t *)s->held + at, bytes - at, &length, &open);
        if (open && !all) break;
        const char *text = whole ? s->held + at : "\xEF\xBF\xBD";
        const size_t count = whole ? length : 3;
        memcpy(s->shown + s->shown_bytes, text, count);
        s->shown_bytes += count;
    }
    if (at) memmove(s->held, s->held + at, s->held_bytes - at);
    s->held_bytes -= at;
    return AQ_OK;
}

static void tell(const struct aq_stopper *s, struct aq_stopper_text *out)
{
    *out = (struct aq_stopper_text){s->shown_bytes ? s->shown : "", s->shown_bytes, s->stopped};
}

enum aq_status aq_stopper_put(struct aq_stopper *s, const void *bytes, size_t count, struct aq_stopper_text *out)
{
    s->shown_bytes = 0;
    if (!s->stopped && count > 0) {
        AQ_TRY(reserve(&s->held, s->held_bytes, &s->held_room, s->held_bytes + count));
        memcpy(s->held + s->held_bytes, bytes, count);
        s->held_bytes += count;
        const size_t word = first_word(s);
        s->stopped = word < s->held_bytes;
        AQ_TRY(release(s, s->stopped ? word : maybe_word(s), s->stopped));
        if (s->stopped) s->held_bytes = 0;
    }
    tell(s, out);
    return AQ_OK;
}

enum aq_status aq_stopper_end(struct aq_stopper *s, struct aq_stopper_text *out)
{
    AQ_TRY(release(s, s->held_bytes, true));
    tell(s, out);
    return AQ_OK;
}
