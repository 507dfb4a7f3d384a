/*
 * json_text.h -- JSON out: the one way in which a document becomes text, or a file of one line.
 *
 * jansson quotes and counts; flags are its own (JSON_COMPACT, JSON_INDENT, JSON_REAL_PRECISION), and what is not ASCII
 * is escaped always. A figure that may not be finite goes in by aq_control_number (control.h): null.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_JSON_TEXT_H
#define RUNTIME_JSON_TEXT_H

#include <jansson.h>

#include "runtime_text.h"

/* Adds the document to text. AQ_NOMEM: also if json is NULL, as jansson returns it then. */
enum aq_status aq_json_text(const json_t *json, size_t flags, struct aq_text *text);

/* Replaces the whole file (aq_file_replace) by the document and a newline. Takes json, also on failure. */
enum aq_status aq_json_replace(const char *path, json_t *json, size_t flags);

#endif
