/* python_json.c -- see the header. */
#include "python_json.h"

#include <string.h>

/* No published text starts so; in JSON text it is "\u0001NaN". */
#define MARK       "\x01"
#define MARK_WRITE "\"\\u0001"

static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
enum { WORDS = 3, MARKED_BYTES = 20 };

const char *python_json_word(const json_t *value)
{
    const char *text = json_string_value(value);
    for (int i = 0; i < WORDS && text && text[0] == MARK[0]; i++)
        if (strcmp(text + 1, words[i]) == 0) return words[i];
    return NULL;
}

/* The word at the beginning of a text outside of quotes, or NULL. */
static const char *word_at(const char *text, size_t bytes)
{
    for (int i = 0; i < WORDS; i++)
        if (bytes >= strlen(words[i]) && memcmp(text, words[i], strlen(words[i])) == 0) return words[i];
    return NULL;
}

static size_t digits_at(const char *text, size_t bytes)
{
    size_t digits = 0;
    while (digits < bytes && text[digits] >= '0' && text[digits] <= '9')
        digits++;
    return digits;
}

/* Are these digits a whole number beyond 64 bits? */
static bool is_long(const char *text, size_t bytes, size_t digits)
{
    static const char most[] = "9223372036854775807";
    const bool real = digits < bytes && (text[digits] == '.' || (text[digits] | 0x20) == 'e');
    if (real || digits < sizeof most - 1) return false;
    return digits > sizeof most - 1 || memcmp(text, most, digits) > 0;
}

static size_t words_count(const char *text, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += (text[i] == 'N' || text[i] == 'I') && word_at(text + i, bytes - i);
    for (size_t i = 0, digits; i < bytes; i += digits + 1) {
        digits = digits_at(text + i, bytes - i);
        count += digits > 0 && is_long(text + i, bytes - i, digits);
    }
    return count;
}

/* Replaces every word outside of quotes by a text with it, and long whole numbers by floats. *count: the bytes. */
static void words_mark(const char *text, size_t bytes, char *out, size_t *count)
{
    bool quoted = false;
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        const char *word = quoted ? NULL : word_at(text + i, bytes - i);
        const size_t digits = quoted ? 0 : digits_at(text + i, bytes - i);
        if (digits > 0) {
            memcpy(out + used, text + i, digits);
            used += digits;
            if (is_long(text + i, bytes - i, digits)) {
                memcpy(out + used, ".0", 2);
                used += 2;
            }
            i += digits - 1;
            continue;
        }
        if (!word) {
            if (text[i] == '"') quoted = !quoted;
            out[used++] = text[i];
            if (quoted && text[i] == '\\' && i + 1 < bytes) out[used++] = text[++i];
            continue;
        }
        memcpy(out + used, MARK_WRITE, sizeof MARK_WRITE - 1);
        used += sizeof MARK_WRITE - 1;
        memcpy(out + used, word, strlen(word));
        used += strlen(word);
        out[used++] = '"';
        i += strlen(word) - 1;
    }
    *count = used;
}

json_t *python_json_load(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
    json_error_t other;
    void *memory;
    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    json_t *value = json_loadb(text, bytes, flags, error);
    const size_t count = value ? 0 : words_count(text, bytes);
    if (count == 0 || count > (SIZE_MAX - bytes) / MARKED_BYTES) return value;
    if (aq_alloc(bytes + count * MARKED_BYTES, &memory) != AQ_OK) return NULL;
    size_t marked;
    words_mark(text, bytes, memory, &marked);
    value = json_loadb(memory, marked, flags, &other);
    aq_free(memory);
    return value;
}

void python_json_words(char *text, size_t *bytes)
{
    const size_t mark = sizeof MARK_WRITE - 1;
    size_t used = 0;
    for (size_t i = 0; i < *bytes; i++) {
        const bool marked = *bytes - i > mark && memcmp(text + i, MARK_WRITE, mark) == 0;
        const char *word = marked ? word_at(text + i + mark, *bytes - i - mark) : NULL;
        const size_t end = word ? i + mark + strlen(word) : 0;
        if (!word || end >= *bytes || text[end] != '"') {
            text[used++] = text[i];
            continue;
        }
        memmove(text + used, text + i + mark, strlen(word));
        used += strlen(word);
        i = end;
    }
    *bytes = used;
}
