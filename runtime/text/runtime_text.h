/*
 * runtime_text.h -- a text that grows: how the runtime writes tables, grids, YAML and JSON.
 *
 * aq_text_take reports a failed growth, once: callers add without checking each call.
 *
 *     struct aq_text text = {0};
 *     aq_text_add(&text, "%s: %u\n", name, count);
 *     AQ_TRY(aq_text_take(&text, &out));      // or aq_text_deinit(&text)
 *
 * Locking: one thread per text.
 */
#ifndef RUNTIME_TEXT_H
#define RUNTIME_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

struct aq_text {
    char *bytes; /* terminated; NULL while empty */
    size_t used; /* without the terminator       */
    size_t room;
    enum aq_status status; /* the first failure */
};

void aq_text_add(struct aq_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void aq_text_bytes(struct aq_text *text, const char *bytes, size_t count);

/* A cell of a table of Markdown: "|" would end it. */
void aq_text_cell(struct aq_text *text, const char *words);

/* A word for a shell: as it is, or in single quotes. */
void aq_text_shell(struct aq_text *text, const char *word);

/* Its contents, "" if it is empty. Borrowed until the next call. */
const char *aq_text_of(const struct aq_text *text);

/* Gives the text (memory of aq_alloc, free with aq_free), or returns AQ_NOMEM; text is empty again either way. */
enum aq_status aq_text_take(struct aq_text *text, char **out);
void aq_text_deinit(struct aq_text *text);

/* The columns that a line written to fd may have: $COLUMNS if it is a number above 0, else the width of fd's
 * terminal. 0: no limit, because fd is a file or a pipe, whose reader wraps by itself. */
unsigned aq_text_columns(int fd);

/* Add `from`, its lines folded at blanks so that they have at most `columns` (0: as they are), with four blanks
 * before a continued line. A longer word stays whole. */
void aq_text_fold(struct aq_text *text, const char *from, unsigned columns);

/* For people: with `decimals` decimals; "-" if the value is not finite. */
enum { AQ_TEXT_NUMBER = 24 };
const char *aq_text_figure(double value, int decimals, char out[AQ_TEXT_NUMBER]);

/* For people: "1.50 GiB", "36.9 kB" style numbers into a small buffer, which is returned. */
const char *aq_text_size(uint64_t bytes, char out[AQ_TEXT_NUMBER]);
const char *aq_text_hours(double seconds, char out[AQ_TEXT_NUMBER]); /* of a run; "-": unknown */
const char *aq_text_seconds(double seconds, char out[AQ_TEXT_NUMBER]);

#endif
