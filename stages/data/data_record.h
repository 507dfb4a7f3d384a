/*
 * data_record.h -- a data file as records, one after the other: the one reader of every kind of data set.
 *
 *     AQ_TRY(data_reader_open(path, &how, &reader));
 *     while ((status = data_reader_next(reader, &record, &ends)) == AQ_OK) {
 *         if (!record.at) break;                                  the end
 *         status = data_record_object(reader, &record, 0, &object);   whatever the form
 *         ...
 *     }
 *     data_reader_close(reader);
 *
 * A form of files is one row of the table in data_record.c: its name, the endings of its names, how its first bytes are
 * recognised, and its reader. The ending decides (behind that of a packing: a.jsonl.gz); a file whose ending no row has
 * is of the form that the caller names.
 *
 *     form    endings                 a record is
 *     lines   .jsonl .ndjson .json    a line: a JSON object
 *     array   .json that starts with [   an element of the array: a JSON object
 *     csv     .csv                    a row, RFC 4180: commas, quotes, line feeds within quotes
 *     tsv     .tsv .tab               a row: tabs, no quotes unless asked for
 *     text    any other               (no records)
 *
 * Memory: three times the longest record, which has DATASET_LINE_BYTES_MAX bytes at most, and 3 MiB; the file is
 * streamed.
 *
 * Locking: one thread a reader.
 */
#ifndef DATA_RECORD_H
#define DATA_RECORD_H

#include <jansson.h>

#include "data_bytes.h"
#include "data_label.h"
#include "dataset_kind.h"

enum data_form { DATA_TEXT, DATA_LINES, DATA_ARRAY, DATA_CSV, DATA_TSV };

enum { DATA_FIELDS_MAX = 256 };

/* A caller's settings for the files that it reads. */
struct data_how {
    enum data_form fallback; /* of files with another ending                                       */
    bool quotes;             /* tsv: quotes are read as those of csv are                           */
    bool named;              /* csv, tsv: the first row has the names of the columns               */
};

struct data_record {
    uint64_t line;  /* its first line, from 1 on */
    const char *at; /* its bytes, valid until the next one is read; NULL: the end */
    size_t bytes;
    const struct data_cell *cells; /* csv, tsv; else NULL */
    uint32_t cell_count;
};

struct data_reader; /* opaque outside of data_record.c */

/* The form of a file by its name and first bytes (as unpacked). */
enum data_form data_form_of(const char *path, const uint8_t *head, size_t bytes, enum data_form fallback);
const char *data_form_name(enum data_form form);

/* Statuses of data_bytes_open. path is borrowed. DATA_TEXT opens, and has no records. */
enum aq_status data_reader_open(const char *path, const struct data_how *how, struct data_reader **out);
void data_reader_close(struct data_reader *reader); /* NULL is fine */
enum data_form data_reader_form(const struct data_reader *reader);

/*
 * The next record that is not blank. AQ_CORRUPT: this record is wrong; names file, line and cause. The next call reads
 * on behind it, unless *ends. AQ_INVAL, AQ_IO, AQ_NOMEM and AQ_CORRUPT with *ends: nothing more can be read.
 */
enum aq_status data_reader_next(struct data_reader *reader, struct data_record *out, bool *ends);

/* The cells of a table's first row, zero-terminated, where how.named; *count 0: it was not read yet. */
const struct data_cell *data_reader_names(const struct data_reader *reader, uint32_t *count);

/* Cells that start and end with a quote and were taken as they are (tsv). */
uint64_t data_reader_quoted(const struct data_reader *reader);

/*
 * The record as an object, which is the caller's: a table's cells are texts by the names of their columns. NaN,
 * Infinity and whole numbers of any length are read (python_json.h). AQ_CORRUPT: no JSON object; file, line, cause.
 */
enum aq_status data_record_object(const struct data_reader *reader, const struct data_record *record, size_t flags,
                                  json_t **out);

/* The same of a line of a .jsonl that is mapped. */
enum aq_status data_line_object(const char *path, uint64_t line, const char *at, size_t bytes, size_t flags,
                                json_t **out);

/* Does a text start with a line that is a JSON object? */
bool data_looks_like_lines(const uint8_t *head, size_t bytes);

/* The fields of samples of text: tokens and targets, T of each. */
uint32_t data_text_fields(uint32_t T, const struct aq_dataset_image *image, struct aq_field out[AQ_BATCH_FIELDS_MAX]);

#endif
