/* data_lines.c -- the forms "lines" and "array": JSON objects, one per line, or all in one array. */
#include <string.h>

#include "data_form.h"

#define AREA DATASET_AREA

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void take(struct data_reader *reader, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        reader->line += reader->buffer[reader->at + i] == '\n';
    reader->at += bytes;
}

/* The bytes of the line at `at`, without its line feed, all of them in the buffer. */
static enum aq_status line_bytes(struct data_reader *reader, size_t *bytes)
{
    for (size_t seen = 0;;) { /* ends: a line is bounded */
        const size_t have = reader->end - reader->at;
        const char *feed = have > seen ? memchr(reader->buffer + reader->at + seen, '\n', have - seen) : NULL;
        *bytes = feed ? (size_t)(feed - reader->buffer) - reader->at : have;
        if (feed || reader->ended) break;
        seen = have;
        AQ_TRY(data_reader_fill(reader, have + 1));
    }
    if (*bytes <= DATASET_LINE_BYTES_MAX) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA, DATASET_LINE_LONG, reader->path, (unsigned long long)reader->line, *bytes,
                   DATASET_LINE_BYTES_MAX);
}

enum aq_status data_lines_next(struct data_reader *reader, struct data_record *out, bool *ends)
{
    (void)ends;
    for (;;) { /* ends: each turn takes a line */
        size_t bytes, blank = 0;
        AQ_TRY(line_bytes(reader, &bytes));
        if (bytes == 0 && reader->ended && reader->at == reader->end) {
            out->at = NULL;
            return AQ_OK;
        }
        const char *line = reader->buffer + reader->at;
        while (blank < bytes && is_blank(line[blank]))
            blank++;
        *out = (struct data_record){.line = reader->line, .at = line, .bytes = bytes};
        reader->at += bytes + (reader->at + bytes < reader->end);
        reader->line++;
        if (blank < bytes) return AQ_OK;
    }
}

static enum aq_status array_fail(const struct data_reader *reader, const char *what, bool *ends)
{
    *ends = true;
    return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s", reader->path, (unsigned long long)reader->line, what);
}

/* The next byte that is not blank, which stays; 0: the end. */
static enum aq_status peek(struct data_reader *reader, char *out)
{
    for (;;) { /* ends: each turn takes a byte, or is at the end */
        *out = 0;
        AQ_TRY(data_reader_fill(reader, 1));
        if (reader->at == reader->end) return AQ_OK;
        *out = reader->buffer[reader->at];
        if (!is_blank(*out)) return AQ_OK;
        take(reader, 1);
    }
}

/* The bytes of the element at `at`: up to the comma or bracket that is not within it. *whole false: the file ends. */
static enum aq_status element_bytes(struct data_reader *reader, size_t *bytes, bool *whole)
{
    uint64_t depth = 0;
    bool quoted = false;
    *whole = false;
    for (size_t i = 0;; i++) { /* ends: an element is bounded */
        if (reader->end - reader->at == i) AQ_TRY(data_reader_fill(reader, i + 1));
        *bytes = i;
        if (reader->end - reader->at == i) return AQ_OK;
        const char c = reader->buffer[reader->at + i];
        if (quoted) {
            if (c == '\\') {
                AQ_TRY(data_reader_fill(reader, i + 2));
                i += reader->end - reader->at > i + 1;
            }
            quoted = c != '"';
        } else if (depth == 0 && (c == ',' || c == ']' || c == '}')) {
            *whole = c != '}';
            return AQ_OK;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
}

enum aq_status data_array_next(struct data_reader *reader, struct data_record *out, bool *ends)
{
    size_t bytes;
    bool whole;
    char c;
    AQ_TRY(peek(reader, &c));
    if (!reader->started && c != '[') return array_fail(reader, "an array must begin with [", ends);
    if (!reader->started || c == ',') {
        const bool first = !reader->started;
        take(reader, 1);
        AQ_TRY(peek(reader, &c));
        if (!first && c == ']') return array_fail(reader, "an element is missing between , and ]", ends);
    }
    reader->started = true;
    if (c == ']') {
        take(reader, 1);
        AQ_TRY(peek(reader, &c));
        reader->at = reader->end;
        if (c) return array_fail(reader, "text follows the array's closing ]", ends);
        out->at = NULL;
        return AQ_OK;
    }
    AQ_TRY(element_bytes(reader, &bytes, &whole));
    if (!whole) return array_fail(reader, "this element of the array has no end: the file is cut short", ends);
    *out = (struct data_record){.line = reader->line, .at = reader->buffer + reader->at, .bytes = bytes};
    take(reader, bytes);
    return AQ_OK;
}
