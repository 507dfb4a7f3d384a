/* out.c -- see the header. */
#include "out.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "aqsgd/base.h"

bool aq_out_bytes(const char *text, size_t count)
{
    char clean[1024];
    while (count > 0) {
        const size_t done = aq_printable(text, count, true, clean, sizeof clean);
        if (fputs(clean, stdout) < 0) return false;
        text += done;
        count -= done;
    }
    return true;
}

bool aq_out_text(const char *text)
{
    return aq_out_bytes(text, strlen(text));
}

bool aq_out_raw(const char *text)
{
    return fputs(text, stdout) >= 0;
}

bool aq_out(const char *format, ...)
{
    char line[512];
    void *memory = NULL;
    va_list arguments;
    va_start(arguments, format);
    const int bytes = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (bytes < 0) return false;
    if ((size_t)bytes < sizeof line) return aq_out_bytes(line, (size_t)bytes);
    if (aq_alloc((size_t)bytes + 1, &memory) != AQ_OK) return false;
    va_start(arguments, format);
    (void)vsnprintf(memory, (size_t)bytes + 1, format, arguments);
    va_end(arguments);
    const bool good = aq_out_bytes(memory, (size_t)bytes);
    aq_free(memory);
    return good;
}

/* Bytes at the end that are the start of an incomplete character. */
static unsigned unfinished(const char *text, size_t count)
{
    for (unsigned back = 1; back <= 3 && back <= count; back++) {
        const unsigned char c = (unsigned char)text[count - back];
        const unsigned needs = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        if ((c & 0xC0) != 0x80) return needs > back ? back : 0;
    }
    return 0;
}

bool aq_out_piece(struct aq_out_pieces *pieces, const char *bytes, size_t count)
{
    char joined[256];
    if (!bytes) {
        const bool good = aq_out_bytes(pieces->held, pieces->count);
        pieces->count = 0;
        return good;
    }
    while (count > 0) {
        const size_t take = count < sizeof joined - sizeof pieces->held ? count : sizeof joined - sizeof pieces->held;
        memcpy(joined, pieces->held, pieces->count);
        memcpy(joined + pieces->count, bytes, take);
        const size_t all = pieces->count + take;
        const unsigned rest = unfinished(joined, all);
        if (!aq_out_bytes(joined, all - rest)) return false;
        memcpy(pieces->held, joined + all - rest, rest);
        pieces->count = rest;
        bytes += take;
        count -= take;
    }
    return true;
}
