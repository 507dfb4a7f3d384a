/*
 * python_json.h -- JSON as Python's `json` writes it: with the words NaN, Infinity and -Infinity, which are no JSON,
 * and with whole numbers of any length.
 *
 * Such a word becomes a text with it (python_json_word), so that a key that is not read may have one, and a key that is
 * read finds no number there. A whole number beyond 64 bits becomes a float.
 */
#ifndef PYTHON_JSON_H
#define PYTHON_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "aqsgd/base.h"

/*
 * As json_loadb, which is tried first. NULL: no JSON either way; *error is of the text as it was given. A UTF-8 byte
 * order mark at the beginning is skipped.
 */
json_t *python_json_load(const char *text, size_t bytes, size_t flags, json_error_t *error);

/* "Infinity", if the value is such a text; else NULL. */
const char *python_json_word(const json_t *value);

/* A text that json_dumpb made, with the words as Python writes them; in place, *bytes becomes less. */
void python_json_words(char *text, size_t *bytes);

#endif
