/*
 * out.h -- what commands print on standard output. Names, texts and figures that others wrote (a model folder, a
 * manifest, a daemon, a run) reach a terminal only through here, so that none of them steers it.
 *
 *     aq_out("%s: %u tensors\n", folder, count);     every argument may be anybody's
 *     aq_out_text(aq_text_of(&table));               the same of a finished text
 *     aq_out_raw(json);                              JSON, a script, a picture: for programs, as it is
 *
 * Locking: the main thread.
 */
#ifndef RUNTIME_OUT_H
#define RUNTIME_OUT_H

#include <stdbool.h>
#include <stddef.h>

/* Printable, newlines and tabs as they are (aqsgd/base/printable.h). False: standard output does not take it. */
bool aq_out(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool aq_out_text(const char *text);
bool aq_out_bytes(const char *text, size_t count); /* of any value, zeroes too */
bool aq_out_raw(const char *text);

/* A text that comes in pieces, which may end within a character. Zeroes are a good beginning. */
struct aq_out_pieces {
    char held[4]; /* of a character that is not whole yet */
    unsigned count;
};
/* As aq_out_text; bytes NULL: it has ended, and what is held is printed. */
bool aq_out_piece(struct aq_out_pieces *pieces, const char *bytes, size_t count);

#endif
