/* data_record.c -- the table of forms, and what their readers share. See data_record.h. */
#include "data_record.h"

#include <stdio.h>
#include <string.h>

#include "data_form.h"
#include "python_json.h"

#define AREA DATASET_AREA

enum { CHUNK_BYTES = 1 << 20, BUFFER_SLACK = 64 };

/* The first byte behind white space, or 0. */
static uint8_t first_of(const uint8_t *head, size_t bytes)
{
    size_t at = data_mark(head, bytes);
    while (at < bytes && (head[at] == ' ' || head[at] == '\t' || head[at] == '\r' || head[at] == '\n'))
        at++;
    return at < bytes ? head[at] : 0;
}

static bool is_array(const uint8_t *head, size_t bytes)
{
    return first_of(head, bytes) == '[';
}

static bool is_object(const uint8_t *head, size_t bytes)
{
    return first_of(head, bytes) == '{';
}

/* In the order in which they are tried. */
static const struct data_form_row forms[] = {
    {DATA_LINES, "JSON lines", ".jsonl .ndjson .jsonlines", NULL, data_lines_next},
    {DATA_ARRAY, "a JSON array", ".json", is_array, data_array_next},
    {DATA_LINES, "JSON lines", ".json", is_object, data_lines_next},
    {DATA_CSV, "CSV", ".csv", NULL, data_table_next},
    {DATA_TSV, "TSV", ".tsv .tab", NULL, data_table_next},
    {DATA_TEXT, "text", "", NULL, NULL},
};
enum { FORMS = sizeof forms / sizeof *forms };

static const struct data_form_row *row_of(const char *path, const uint8_t *head, size_t bytes, enum data_form fallback)
{
    const size_t name = data_name_bytes(path);
    for (size_t i = 0; i < FORMS; i++)
        if (data_name_ends(path, name, forms[i].endings) && (!forms[i].is || forms[i].is(head, bytes)))
            return &forms[i];
    for (size_t i = 0; i < FORMS; i++)
        if (forms[i].form == fallback) return &forms[i];
    return &forms[FORMS - 1];
}

enum data_form data_form_of(const char *path, const uint8_t *head, size_t bytes, enum data_form fallback)
{
    return row_of(path, head, bytes, fallback)->form;
}

const char *data_form_name(enum data_form form)
{
    for (size_t i = 0; i < FORMS; i++)
        if (forms[i].form == form) return forms[i].name;
    return "text";
}

/* ---- the buffer ---- */

/* Room for a chunk behind `end`; what is taken goes. */
static enum aq_status make_room(struct data_reader *reader, size_t bytes)
{
    void *memory;
    if (bytes > DATASET_LINE_BYTES_MAX)
        return aq_fail(AQ_INVAL, AREA, DATASET_LINE_LONG, reader->path, (unsigned long long)reader->line,
                       reader->end - reader->at, DATASET_LINE_BYTES_MAX);
    if (reader->room - reader->at >= bytes + CHUNK_BYTES) return AQ_OK;
    const size_t kept = reader->end - reader->at;
    if (reader->room >= 2 * (bytes + CHUNK_BYTES)) {
        memmove(reader->buffer, reader->buffer + reader->at, kept);
    } else {
        const size_t room = 3 * (bytes + CHUNK_BYTES);
        AQ_TRY(aq_alloc(room + BUFFER_SLACK, &memory));
        if (kept) memcpy(memory, reader->buffer + reader->at, kept);
        aq_free(reader->buffer);
        reader->buffer = memory;
        reader->room = room;
    }
    reader->at = 0;
    reader->end = kept;
    return AQ_OK;
}

enum aq_status data_reader_fill(struct data_reader *reader, size_t bytes)
{
    while (!reader->ended && reader->end - reader->at < bytes) {
        size_t got;
        AQ_TRY(make_room(reader, bytes));
        AQ_TRY(data_bytes_read(reader->bytes, (uint8_t *)reader->buffer + reader->end, reader->room - reader->end,
                               &got));
        reader->end += got;
        reader->ended = got == 0;
    }
    return AQ_OK;
}

static enum aq_status begin(struct data_reader *reader)
{
    AQ_TRY(data_bytes_open(reader->path, &reader->bytes));
    AQ_TRY(data_reader_fill(reader, DATA_HEAD_BYTES));
    const uint8_t *head = (const uint8_t *)reader->buffer;
    if (data_bytes_packed(reader->bytes)) AQ_TRY(data_check_format(reader->path, head, reader->end));
    reader->form = row_of(reader->path, head, reader->end, reader->how.fallback);
    if (reader->form->next) AQ_TRY(aq_file_check(AREA, reader->path, head, reader->end)); /* a web page */
    reader->at = data_mark(head, reader->end);
    return AQ_OK;
}

enum aq_status data_reader_open(const char *path, const struct data_how *how, struct data_reader **out)
{
    struct data_reader *reader;
    AQ_TRY(AQ_NEW(1, &reader));
    reader->path = path;
    reader->how = *how;
    reader->line = 1;
    const enum aq_status status = begin(reader);
    if (status == AQ_OK)
        *out = reader;
    else
        data_reader_close(reader);
    return status;
}

void data_reader_close(struct data_reader *reader)
{
    if (!reader) return;
    data_bytes_close(reader->bytes);
    aq_free(reader->buffer);
    aq_free(reader->names_text);
    aq_free(reader);
}

enum data_form data_reader_form(const struct data_reader *reader)
{
    return reader->form->form;
}

enum aq_status data_reader_next(struct data_reader *reader, struct data_record *out, bool *ends)
{
    *out = (struct data_record){.line = reader->line};
    *ends = false;
    if (!reader->form->next) return AQ_OK;
    const enum aq_status status = reader->form->next(reader, out, ends);
    if (status != AQ_OK && status != AQ_CORRUPT) *ends = true;
    return status;
}

const struct data_cell *data_reader_names(const struct data_reader *reader, uint32_t *count)
{
    *count = reader->name_count;
    return reader->names;
}

uint64_t data_reader_quoted(const struct data_reader *reader)
{
    return reader->quoted;
}

/* ---- objects ---- */

enum aq_status data_line_object(const char *path, uint64_t line, const char *at, size_t bytes, size_t flags,
                                json_t **out)
{
    json_error_t error;
    json_t *object = python_json_load(at, bytes, flags | JSON_ALLOW_NUL, &error);
    if (object && json_is_object(object)) {
        *out = object;
        return AQ_OK;
    }
    const size_t name = data_name_bytes(path);
    const bool split = data_name_ends(path, name, ".json") && !object;
    const enum aq_status status =
        object ? aq_fail(AQ_CORRUPT, AREA, "%s:%llu: is not a JSON object%s", path, (unsigned long long)line,
                         json_is_array(object) ? "; a file that is one array is read by the ending .json" : "")
               : aq_fail(AQ_CORRUPT, AREA, "%s:%llu: is not JSON: %s%s", path, (unsigned long long)line, error.text,
                         split ? "; a .json is one array, or an object a line (jq -c '.[]' makes lines)" : "");
    json_decref(object);
    return status;
}

static enum aq_status cells_object(const struct data_reader *reader, const struct data_record *record, json_t **out)
{
    json_t *object = json_object();
    for (uint32_t i = 0; object && i < record->cell_count && i < reader->name_count; i++) {
        json_t *text = json_stringn(record->cells[i].at, record->cells[i].bytes);
        if (!text) {
            json_decref(object);
            return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: field %u is not UTF-8", reader->path,
                           (unsigned long long)record->line, i + 1);
        }
        if (json_object_set_new(object, reader->names[i].at, text) == 0) continue;
        json_decref(object);
        return aq_fail(AQ_CORRUPT, AREA, "%s:1: the name of column %u is not UTF-8", reader->path, i + 1);
    }
    if (!object) return aq_fail(AQ_NOMEM, AREA, "%s: no memory for a row", reader->path);
    *out = object;
    return AQ_OK;
}

enum aq_status data_record_object(const struct data_reader *reader, const struct data_record *record, size_t flags,
                                  json_t **out)
{
    if (record->cells) return cells_object(reader, record, out);
    return data_line_object(reader->path, record->line, record->at, record->bytes, flags, out);
}

bool data_looks_like_lines(const uint8_t *head, size_t bytes)
{
    const size_t mark = data_mark(head, bytes);
    const uint8_t *end = bytes > mark ? memchr(head + mark, '\n', bytes - mark) : NULL;
    json_error_t error;
    if (first_of(head, bytes) != '{') return false;
    json_t *object = python_json_load((const char *)head + mark, (end ? (size_t)(end - head) : bytes) - mark,
                                      JSON_ALLOW_NUL, &error);
    const bool is = json_is_object(object);
    json_decref(object);
    return is;
}

uint32_t data_text_fields(uint32_t T, const struct aq_dataset_image *image, struct aq_field out[AQ_BATCH_FIELDS_MAX])
{
    (void)image;
    out[0] = (struct aq_field){.name = "tokens", .type = AQ_FIELD_I32, .count = T};
    out[1] = (struct aq_field){.name = "targets", .type = AQ_FIELD_I32, .count = T};
    return 2;
}
