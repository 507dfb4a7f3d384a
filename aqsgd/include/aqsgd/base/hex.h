/*
 * hex.h -- bytes that a text has as hexadecimal digits, as aq_hex (printable.h) writes them.
 *
 * Locking: none; pure.
 */
#ifndef AQSGD_BASE_HEX_H
#define AQSGD_BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `count` bytes to out; text is exactly 2 * count small digits. False: it is not, and out is as it was. */
bool aq_hex_read(const char *text, size_t count, void *out);

#ifdef __cplusplus
}
#endif
#endif
