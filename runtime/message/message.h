/*
 * message.h -- the control messages as one table (messages.def): which line is which message, its fields as a struct,
 * and the words for what is wrong with it.
 *
 * A reader finds the row of a line by its word, and by who sends it to whom. It then reads the line into a struct of
 * typed fields: every field is there if the table says so, has its type, and is in its bounds. What no single line can
 * show (is this step the next one?) is the reader's to check. Bytes from the peer never reach an assertion.
 *
 *     enum aq_message_id id = aq_message_find(line, AQ_END_WORKER, AQ_END_LAUNCHER);
 *     struct aq_message message;
 *     if (id == AQ_MESSAGES) ...                                  it is no message of theirs
 *     if (!aq_message_read(id, line, NULL, &message, &wrong)) ... wrong.text has the fault
 *     if (id == AQ_MESSAGE_step) use(message.step.step);
 *
 * Locking: constants and pure functions.
 */
#ifndef RUNTIME_MESSAGE_H
#define RUNTIME_MESSAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum {
    AQ_MESSAGE_KEPT_FIELDS = 64, /* of a line that is kept: a step with replicas and a chosen codec has about 40 */
    AQ_MESSAGE_KEY_CHARS = 32,   /* of a name in it; the longest is gradient_error_ratio                          */
    AQ_MESSAGE_NAME_CHARS = 64,  /* of a text in it; the longest is the name of a gradient codec                  */
    AQ_MESSAGE_WRONG_BYTES = 200
};

/* Who sends or receives. */
enum aq_message_end { AQ_END_LAUNCHER = 0, AQ_END_DAEMON, AQ_END_WORKER, AQ_END_CLIENT, AQ_END_SERVER, AQ_ENDS };

enum aq_message_state {
#define AQ_STATE(name, text) AQ_STATE_##name,
#include "messages.def"
    AQ_STATES
};

enum aq_message_limit {
    AQ_LIMIT_NONE = 0,
#define AQ_LIMIT(name, text) AQ_LIMIT_##name,
#include "messages.def"
    AQ_LIMITS
};

/* The largest number that a field with that limit may be. */
struct aq_message_limits {
    uint64_t most[AQ_LIMITS];
};

enum aq_message_id {
#define AQ_MESSAGE(id, key, word, from, to, states, use, help) AQ_MESSAGE_##id,
#include "messages.def"
    AQ_MESSAGES
};

/* clang-format off */
/* The bit of `there` that is set if the line has the field. */
#define AQ_MESSAGE(id, key, word, from, to, states, use, help) enum {
#define AQ_FIELD(id, name, kind, need, min, max, limit, help) AQ_FIELD_##id##_##name,
#define AQ_END(id) AQ_FIELDS_##id };
#include "messages.def"

/* A missing field is 0, false or NULL. Texts and objects are borrowed from the line. */
#define AQ_KIND_U64_TYPE uint64_t
#define AQ_KIND_I64_TYPE int64_t
#define AQ_KIND_NUMBER_TYPE double
#define AQ_KIND_BOOL_TYPE bool
#define AQ_KIND_TEXT_TYPE const char *
#define AQ_KIND_WORD_TYPE const char *
#define AQ_KIND_LINES_TYPE const char *
#define AQ_KIND_HEX_TYPE uint64_t
#define AQ_KIND_OBJECT_TYPE const json_t *

#define AQ_MESSAGE(id, key, word, from, to, states, use, help) struct aq_message_##id { uint64_t there;
#define AQ_FIELD(id, name, kind, need, min, max, limit, help) AQ_KIND_##kind##_TYPE name;
#define AQ_END(id) };
#include "messages.def"
/* clang-format on */

struct aq_message {
    enum aq_message_id id;
    json_t *line; /* borrowed; not to be changed */
    union {
        uint64_t there; /* every struct begins with it */
#define AQ_MESSAGE(id, key, word, from, to, states, use, help) struct aq_message_##id id;
#include "messages.def"
    };
};

/* Has the line this field? */
#define AQ_MESSAGE_HAS(message, id, name) (((message)->id.there >> AQ_FIELD_##id##_##name & 1) != 0)

struct aq_message_wrong {
    char text[AQ_MESSAGE_WRONG_BYTES]; /* "sends 'ready' whose 'rtt_ms' is not a number from 0 to 3600000" */
};

/* Which message of this way is it, by its word? AQ_MESSAGES: none. */
enum aq_message_id aq_message_find(const json_t *line, enum aq_message_end from, enum aq_message_end to);

/* May it be sent in this state? */
bool aq_message_allowed(enum aq_message_id id, enum aq_message_state state);
/* May a launcher of split learning send it to a client's daemon? */
bool aq_message_guest(enum aq_message_id id);
/* "trains" */
const char *aq_message_state_text(enum aq_message_state state);
const char *aq_message_word(enum aq_message_id id);

/*
 * The line's fields. False: one is missing, of another type or out of its bounds, or a line that is kept has too much;
 * *wrong (not NULL) has the words, and *out is not to be used. limits NULL: no field of the message has one.
 */
bool aq_message_read(enum aq_message_id id, const json_t *line, const struct aq_message_limits *limits,
                     struct aq_message *out, struct aq_message_wrong *wrong);

/* docs/MESSAGES.md. Memory of aq_alloc, which the caller frees. AQ_NOMEM. */
enum aq_status aq_message_page(char **out);

#endif
