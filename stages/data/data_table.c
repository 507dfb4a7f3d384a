/*
 * data_table.c -- the forms "csv" (RFC 4180) and "tsv": rows of cells.
 *
 * A cell of a csv may be quoted: then commas, line feeds and doubled quotes within it are text. Rows end with a line
 * feed, or a carriage return and one. A tsv has tabs in place of commas, and its quotes are text, as GLUE's are, unless
 * how.quotes is set. Blank lines are passed over. All rows have as many cells as the first.
 */
#include <string.h>

#include "data_form.h"

#define AREA DATASET_AREA

/* A row's end: its bytes without the line end, those with it, line feeds in it, and whether its quotes close. */
struct row {
    size_t bytes, all;
    uint64_t feeds;
    bool closed;
};

static enum aq_status row_find(struct data_reader *reader, char between, bool quotes, struct row *out)
{
    bool quoted = false, begins = true, cell = false; /* begins: at a cell's start; cell: it is quoted */
    *out = (struct row){.closed = true};
    for (size_t i = 0;; i++) { /* ends: a row is bounded */
        if (reader->end - reader->at == i) AQ_TRY(data_reader_fill(reader, i + 1));
        out->bytes = out->all = i;
        out->closed = !quoted;
        if (reader->end - reader->at == i) break;
        const char c = reader->buffer[reader->at + i];
        out->feeds += c == '\n';
        if (quoted) {
            quoted = c != '"'; /* of "" the second one opens it again */
            begins = false;
            continue;
        }
        if (c == '\n') {
            out->all = i + 1;
            break;
        }
        const bool again = cell && c == '"' && reader->buffer[reader->at + i - 1] == '"';
        if (begins) cell = quotes && c == '"';
        quoted = (begins && cell) || again;
        begins = c == between;
    }
    if (out->bytes > DATASET_LINE_BYTES_MAX)
        return aq_fail(AQ_INVAL, AREA, DATASET_LINE_LONG, reader->path, (unsigned long long)reader->line, out->bytes,
                       DATASET_LINE_BYTES_MAX);
    if (out->bytes > 0 && reader->buffer[reader->at + out->bytes - 1] == '\r') out->bytes--;
    return AQ_OK;
}

static enum aq_status row_fail(const struct data_reader *reader, const char *what)
{
    return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s", reader->path, (unsigned long long)reader->line, what);
}

/* A cell in quotes at `from`, unquoted in place; *next: behind it. */
static enum aq_status cell_quoted(const struct data_reader *reader, char *from, const char *end, char between,
                                  struct data_cell *out, char **next)
{
    char *to = from, *at = from + 1;
    for (; at < end; at++) {
        if (*at == '"') {
            if (at + 1 == end || at[1] != '"') break;
            at++;
        }
        *to++ = *at;
    }
    if (at == end) return row_fail(reader, "a quote is opened and not closed");
    if (at + 1 < end && at[1] != between)
        return row_fail(reader, "text follows a field's closing quote; write a quote within quotes twice");
    *out = (struct data_cell){.at = from, .bytes = (size_t)(to - from)};
    *next = at + 1;
    return AQ_OK;
}

static enum aq_status row_split(struct data_reader *reader, char *at, const char *end, char between, bool quotes,
                                uint32_t *count)
{
    *count = 0;
    if (memchr(at, 0, (size_t)(end - at))) return row_fail(reader, "has a zero byte, so it is not text");
    for (bool more = true; more; (*count)++) {
        struct data_cell *cell = &reader->cells[*count];
        char *next = memchr(at, between, (size_t)(end - at));
        if (*count == DATA_FIELDS_MAX)
            return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: more than %d fields", reader->path,
                           (unsigned long long)reader->line, DATA_FIELDS_MAX);
        if (quotes && at < end && *at == '"') {
            AQ_TRY(cell_quoted(reader, at, end, between, cell, &next));
            if (next == end) next = NULL;
        } else {
            *cell = (struct data_cell){.at = at, .bytes = (size_t)((next ? next : end) - at)};
            reader->quoted += cell->bytes > 1 && at[0] == '"' && at[cell->bytes - 1] == '"';
        }
        more = next != NULL;
        if (next) at = next + 1;
    }
    return AQ_OK;
}

/* The names of the first row, each with a zero behind it. */
static enum aq_status names_keep(struct data_reader *reader, uint32_t count)
{
    size_t bytes = 1;
    void *memory;
    for (uint32_t i = 0; i < count; i++)
        bytes += reader->cells[i].bytes + 1;
    AQ_TRY(aq_alloc(bytes, &memory));
    char *at = reader->names_text = memory;
    for (uint32_t i = 0; i < count; i++) {
        const size_t length = reader->cells[i].bytes;
        if (length) memcpy(at, reader->cells[i].at, length);
        reader->names[i] = (struct data_cell){.at = at, .bytes = length};
        at += length + 1;
    }
    reader->name_count = count;
    return AQ_OK;
}

/* The row at `at`, which was found, into `out`; also where it is refused it is taken. */
static enum aq_status row_take(struct data_reader *reader, const struct row *row, struct data_record *out)
{
    const bool csv = reader->form->form == DATA_CSV;
    const char between = csv ? ',' : '\t';
    uint32_t count = 0;
    char *at = reader->buffer + reader->at;
    const enum aq_status status = row_split(reader, at, at + row->bytes, between, csv || reader->how.quotes, &count);
    enum aq_status width = AQ_OK;
    if (status == AQ_OK && reader->width == 0) reader->width = count;
    if (status == AQ_OK && count != reader->width)
        width = aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %u fields between %s, the lines before have %u", reader->path,
                        (unsigned long long)reader->line, count, csv ? "commas" : "tabs", reader->width);
    *out = (struct data_record){
        .line = reader->line, .at = at, .bytes = row->bytes, .cells = reader->cells, .cell_count = count};
    reader->at += row->all;
    reader->line += row->feeds;
    return status == AQ_OK ? width : status;
}

enum aq_status data_table_next(struct data_reader *reader, struct data_record *out, bool *ends)
{
    const bool csv = reader->form->form == DATA_CSV;
    for (;;) { /* ends: each turn takes a row */
        struct row row;
        AQ_TRY(row_find(reader, csv ? ',' : '\t', csv || reader->how.quotes, &row));
        if (row.all == 0) {
            out->at = NULL;
            return AQ_OK;
        }
        if (!row.closed) {
            *ends = true;
            return row_fail(reader, "a quote is opened and not closed up to the end of the file");
        }
        if (row.bytes == 0) {
            reader->at += row.all;
            reader->line += row.feeds;
            continue;
        }
        const bool first = reader->how.named && reader->width == 0;
        const enum aq_status status = row_take(reader, &row, out);
        if (first) *ends = status != AQ_OK;
        if (!first || status != AQ_OK) return status;
        AQ_TRY(names_keep(reader, out->cell_count));
    }
}
