/*
 * message_table.h -- the rows of messages.def as data, for the reader (message.c) and the page (message_page.c).
 *
 * Locking: constants.
 */
#ifndef RUNTIME_MESSAGE_TABLE_H
#define RUNTIME_MESSAGE_TABLE_H

#include <stddef.h>

#include "message.h"

enum aq_message_kind {
    AQ_KIND_U64 = 0,
    AQ_KIND_I64,
    AQ_KIND_NUMBER,
    AQ_KIND_BOOL,
    AQ_KIND_TEXT,
    AQ_KIND_WORD,
    AQ_KIND_LINES,
    AQ_KIND_HEX,
    AQ_KIND_OBJECT
};

struct aq_message_field {
    const char *name;
    enum aq_message_kind kind;
    bool needed;
    double min, max; /* max 0: no bound */
    enum aq_message_limit limit;
    size_t at; /* in struct aq_message */
    const char *help;
};

enum { AQ_USE_KEPT = 1, AQ_USE_GUEST = 2 };

struct aq_message_row {
    const char *key, *word;
    enum aq_message_end from, to;
    unsigned states; /* a bit for each aq_message_state; 0: any */
    unsigned use;    /* AQ_USE_... */
    const char *help;
    const struct aq_message_field *fields;
    uint32_t count;
};

const struct aq_message_row *aq_message_row(enum aq_message_id id);
/* "a whole number from 1 to 64" */
void aq_message_due(const struct aq_message_field *field, const struct aq_message_limits *limits, char *text,
                    size_t bytes);

#endif
