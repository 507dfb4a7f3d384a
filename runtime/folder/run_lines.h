/*
 * run_lines.h -- files of JSON lines (metrics.jsonl), read as a stream: memory for one line, whatever the file's size.
 *
 * A line counts once its newline is there. Bytes behind the last newline were torn by a crash, or are still being
 * written: they are left out. Only regular files are opened, and no symbolic links.
 *
 *     AQ_TRY(aq_run_lines_open(path, 0, &lines));
 *     while ((status = aq_run_lines_next(lines, &text, &count)) == AQ_OK) ...
 *     aq_run_lines_close(lines);
 *
 * Locking: one thread. The file may grow meanwhile.
 */
#ifndef RUNTIME_RUN_LINES_H
#define RUNTIME_RUN_LINES_H

#include <jansson.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum { AQ_RUN_LINE_BYTES_MAX = 64 << 20 }; /* 256 ranks with some hundred figures each have less than 1 MiB */

struct aq_run_lines; /* opaque */

/* Reads from the byte `offset` on, the start of a line. AQ_NOTFOUND (not logged), AQ_REFUSED (no regular file),
 * AQ_IO. */
enum aq_status aq_run_lines_open(const char *path, uint64_t offset, struct aq_run_lines **out);
void aq_run_lines_close(struct aq_run_lines *lines); /* NULL is fine */

/* The next line, without its newline; borrowed until the next call. One that is too long comes as an empty one.
 * AQ_NOTFOUND (not logged): there are no more. AQ_IO, AQ_NOMEM. */
enum aq_status aq_run_lines_next(struct aq_run_lines *lines, const char **text, size_t *count);

/* The byte behind the line that came last. */
uint64_t aq_run_lines_at(const struct aq_run_lines *lines);

/*
 * The whole line before the byte `end` (UINT64_MAX: the last one of the file): memory of aq_alloc, without its newline;
 * *begin gets its first byte. AQ_NOTFOUND (not logged): none, or no such file. AQ_CORRUPT: no line ends at `end`, or it
 * is too long.
 */
enum aq_status aq_run_line_before(const char *path, uint64_t end, char **text, size_t *count, uint64_t *begin);

/*
 * Walk over the lines: each object is lent to `visit`, which may return a status to stop (passed up). An unreadable
 * line is skipped when it is the last one, else AQ_CORRUPT with its number. AQ_NOTFOUND is not logged.
 */
enum aq_status aq_run_lines(const char *path, enum aq_status (*visit)(const json_t *line, void *context),
                            void *context);

/* The same from the byte `offset` on, the start of a line. */
enum aq_status aq_run_lines_from(const char *path, uint64_t offset,
                                 enum aq_status (*visit)(const json_t *line, void *context), void *context);

#endif
