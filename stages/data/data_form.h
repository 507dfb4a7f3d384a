/* data_form.h -- what data_record.c and the forms of files share; private to the two. */
#ifndef DATA_FORM_H
#define DATA_FORM_H

#include "data_record.h"

struct data_reader {
    const char *path;
    struct data_how how;
    const struct data_form_row *form;
    struct data_bytes *bytes;
    char *buffer; /* [at, end) of it are not taken yet */
    size_t at, end, room;
    bool ended;    /* the file has no more than these */
    uint64_t line; /* of buffer[at], from 1 on */
    bool started;  /* array: its [ was read */
    uint32_t width; /* tables: cells of every row; 0: none was read */
    uint32_t name_count;
    struct data_cell cells[DATA_FIELDS_MAX], names[DATA_FIELDS_MAX];
    char *names_text; /* what names point into */
    uint64_t quoted;
};

struct data_form_row {
    enum data_form form;
    const char *name, *endings;
    bool (*is)(const uint8_t *head, size_t bytes); /* NULL: only the ending decides */
    enum aq_status (*next)(struct data_reader *reader, struct data_record *out, bool *ends);
};

/* Have `bytes` bytes from `at` on in the buffer, or fewer at the end of the file. AQ_INVAL: a record is too long. */
enum aq_status data_reader_fill(struct data_reader *reader, size_t bytes);

/* The rows' readers. */
enum aq_status data_lines_next(struct data_reader *reader, struct data_record *out, bool *ends);
enum aq_status data_array_next(struct data_reader *reader, struct data_record *out, bool *ends);
enum aq_status data_table_next(struct data_reader *reader, struct data_record *out, bool *ends);

#endif
