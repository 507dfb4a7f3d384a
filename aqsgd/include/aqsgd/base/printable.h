/*
 * printable.h -- text that others wrote, made fit for a terminal and a log.
 *
 * A sender of bytes may send escape sequences: ESC and C1 controls steer a terminal (also where C1 comes as UTF-8,
 * U+0080 to U+009F), bidi controls show a line in another order than it has, invisible characters hide in names. Here
 * printable UTF-8 stays as it is, and every byte of anything else becomes \xNN. aq_log and aq_fail do it to each line
 * by themselves; all other code that prints text of a peer, a file or a certificate calls one of these.
 *
 *     char name[128];
 *     printf("job '%s'\n", aq_printable_text(job, name, sizeof name));
 *
 * Caveats: a backslash stays one, so that a text that holds "\x1b" in letters looks like an escape; both are harmless.
 * The joiners U+200C and U+200D stay, which scripts need.
 *
 * Locking: pure functions.
 */
#ifndef AQSGD_BASE_PRINTABLE_H
#define AQSGD_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_PRINTABLE_BYTES_MIN = 17 }; /* room for any one character, escaped, and the 0 */

/*
 * As much of text (`count` bytes of any value) as fits into out, with a 0 behind it; cut between characters. Answers
 * how many bytes of text that was: long texts go in pieces. `lines`: newline and tab stay; without it they are escaped.
 * bytes is at least AQ_PRINTABLE_BYTES_MIN.
 */
size_t aq_printable(const char *text, size_t count, bool lines, char *out, size_t bytes);

/* A whole text in one line, cut where it does not fit; answers out. NULL is "". */
const char *aq_printable_text(const char *text, char *out, size_t bytes);

/* Two small hexadecimal digits a byte into out, which has 2 * count + 1 bytes; answers out. */
const char *aq_hex(const void *bytes, size_t count, char *out);
/* Is text exactly `digits` small hexadecimal digits? */
bool aq_is_hex(const char *text, size_t digits);
/* The `count` bytes that aq_hex wrote. False: text is not 2 * count small hexadecimal digits; out is as it was. */
bool aq_hex_read(const char *text, size_t count, void *out);

#ifdef __cplusplus
}
#endif
#endif
