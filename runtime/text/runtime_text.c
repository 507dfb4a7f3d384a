/*
 * runtime_text.c -- a text that grows by doubling. See runtime_text.h.
 */
#include "runtime_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TEXT_FIRST = 4096 };
static const size_t text_bytes_max = (size_t)64 << 20; /* a text of this house is a page, not a data set */

static bool text_reserve(struct aq_text *text, size_t more)
{
    if (text->status != AQ_OK) return false;
    if (text->used + more + 1 <= text->room) return true;
    size_t room = text->room ? text->room : TEXT_FIRST;
    while (room < text->used + more + 1)
        room *= 2;
    void *memory = NULL;
    text->status = room > text_bytes_max ? aq_fail(AQ_NOMEM, "text", "a text grows beyond %zu bytes", text_bytes_max)
                                         : aq_alloc(room, &memory);
    if (text->status != AQ_OK) return false;
    if (text->used) memcpy(memory, text->bytes, text->used);
    aq_free(text->bytes);
    text->bytes = memory;
    text->room = room;
    text->bytes[text->used] = 0;
    return true;
}

void aq_text_bytes(struct aq_text *text, const char *bytes, size_t count)
{
    if (!text_reserve(text, count)) return;
    memcpy(text->bytes + text->used, bytes, count);
    text->used += count;
    text->bytes[text->used] = 0;
}

void aq_text_cell(struct aq_text *text, const char *words)
{
    for (; *words; words++) {
        if (*words == '|') aq_text_bytes(text, "\\", 1);
        aq_text_bytes(text, words, 1);
    }
}

void aq_text_add(struct aq_text *text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int count = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (count >= 0 && text_reserve(text, (size_t)count)) {
        vsnprintf(text->bytes + text->used, (size_t)count + 1, format, again);
        text->used += (size_t)count;
    }
    va_end(again);
}

void aq_text_shell(struct aq_text *text, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=:,@%+-";
    if (*word && strspn(word, plain) == strlen(word)) {
        aq_text_add(text, "%s", word);
        return;
    }
    aq_text_add(text, "'");
    for (const char *at = word; *at;) {
        const size_t run = strcspn(at, "'");
        aq_text_bytes(text, at, run);
        at += run;
        if (*at) aq_text_add(text, "'\\''");
        at += *at != 0;
    }
    aq_text_add(text, "'");
}

const char *aq_text_of(const struct aq_text *text)
{
    return text->bytes ? text->bytes : "";
}

enum aq_status aq_text_take(struct aq_text *text, char **out)
{
    if (text->status == AQ_OK && !text->bytes) text_reserve(text, 0);
    const enum aq_status status = text->status;
    if (status == AQ_OK)
        *out = text->bytes;
    else
        aq_free(text->bytes);
    *text = (struct aq_text){0};
    return status;
}

void aq_text_deinit(struct aq_text *text)
{
    aq_free(text->bytes);
    *text = (struct aq_text){0};
}

unsigned aq_text_columns(int fd)
{
    enum { COLUMNS_MAX = 10000, COLUMNS_USUAL = 80 };
    struct winsize size;
    const char *told = getenv("COLUMNS");
    const long columns = told ? strtol(told, NULL, 10) : 0;
    if (columns > 0 && columns <= COLUMNS_MAX) return (unsigned)columns;
    if (isatty(fd) != 1) return 0;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS_USUAL;
}

void aq_text_fold(struct aq_text *text, const char *from, unsigned columns)
{
    enum { DEEPER = 4 };
    while (*from) {
        const char *end = strchr(from, '\n');
        size_t length = end ? (size_t)(end - from) : strlen(from), room = columns;
        while (columns > 2 * DEEPER && length > room) {
            size_t cut = room;
            while (cut > DEEPER && from[cut] != ' ')
                cut--;
            if (cut == DEEPER) { /* one long word */
                const char *blank = memchr(from + room, ' ', length - room);
                if (!blank) break;
                cut = (size_t)(blank - from);
            }
            size_t end_of_words = cut;
            while (end_of_words > 0 && from[end_of_words - 1] == ' ')
                end_of_words--;
            aq_text_bytes(text, from, end_of_words);
            aq_text_add(text, "\n%*s", DEEPER, "");
            for (; length > 0 && from[cut] == ' '; length--)
                from++;
            from += cut;
            length -= cut;
            room = columns - DEEPER;
        }
        aq_text_bytes(text, from, length + (end != NULL));
        from += length + (end != NULL);
    }
}

const char *aq_text_figure(double value, int decimals, char out[AQ_TEXT_NUMBER])
{
    if (isfinite(value))
        snprintf(out, AQ_TEXT_NUMBER, "%.*f", decimals, value);
    else
        snprintf(out, AQ_TEXT_NUMBER, "-");
    return out;
}

const char *aq_text_size(uint64_t bytes, char out[AQ_TEXT_NUMBER])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(out, AQ_TEXT_NUMBER,
             unit == 0 || value >= 100 ? "%.0f %s"
             : value >= 10             ? "%.1f %s"
                                       : "%.2f %s",
             value, units[unit]);
    return out;
}

const char *aq_text_hours(double seconds, char out[AQ_TEXT_NUMBER])
{
    if (!(seconds >= 0 && seconds < 1e12))
        snprintf(out, AQ_TEXT_NUMBER, "-");
    else if (seconds < 60)
        snprintf(out, AQ_TEXT_NUMBER, "%.1f s", seconds);
    else if (seconds < 360)
        snprintf(out, AQ_TEXT_NUMBER, "%.1f min", seconds / 60);
    else
        snprintf(out, AQ_TEXT_NUMBER, "%.2f h", seconds / 3600);
    return out;
}

const char *aq_text_seconds(double seconds, char out[AQ_TEXT_NUMBER])
{
    if (seconds < 1e-3)
        snprintf(out, AQ_TEXT_NUMBER, "%.1f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(out, AQ_TEXT_NUMBER, "%.1f ms", seconds * 1e3);
    else
        snprintf(out, AQ_TEXT_NUMBER, "%.2f s", seconds);
    return out;
}
