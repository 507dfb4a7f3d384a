/*
 * data_roles.h -- which member of a JSON object, or column of a table, is the prompt, the answer, the text: one table
 * of roles with the names that published data sets have, and data.fields for any other.
 *
 *     role           its names
 *     text           text
 *     prompt         prompt
 *     response       response, completion                      (TRL)
 *     instruction    instruction                               (Alpaca)
 *     input          input
 *     output         output
 *     messages       messages, conversations                   (OpenAI, ShareGPT)
 *     role           role, from        of a message
 *     content        content, value    of a message
 *     system         system
 *
 * A layout is a row of roles that an object must have: messages; prompt and response; instruction and output.
 *
 * Locking: pure functions; roles do not change after data_roles_open.
 */
#ifndef DATA_ROLES_H
#define DATA_ROLES_H

#include <jansson.h>

#include "aqsgd/base.h"

enum data_role {
    DATA_ROLE_TEXT,
    DATA_ROLE_PROMPT,
    DATA_ROLE_RESPONSE,
    DATA_ROLE_INSTRUCTION,
    DATA_ROLE_INPUT,
    DATA_ROLE_OUTPUT,
    DATA_ROLE_MESSAGES,
    DATA_ROLE_ROLE,
    DATA_ROLE_CONTENT,
    DATA_ROLE_SYSTEM,
    DATA_ROLES
};

enum data_layout { DATA_LAYOUT_MESSAGES, DATA_LAYOUT_PAIR, DATA_LAYOUT_ALPACA, DATA_LAYOUTS };

struct data_roles {
    json_t *fields; /* data.fields, or NULL */
    const char *names[DATA_ROLES]; /* of data.fields; NULL: those of the table */
};

/* fields: the JSON object of data.fields, or NULL. AQ_INVAL: an unknown role, or one without a name; names it. */
enum aq_status data_roles_open(const char *fields, struct data_roles *out);
void data_roles_close(struct data_roles *roles);

/* The role's member of an object, or NULL. */
json_t *data_role_of(const struct data_roles *roles, enum data_role role, const json_t *object);
/* The name that a message should have for it: that of data.fields, or the first of the table. */
const char *data_role_name(const struct data_roles *roles, enum data_role role);

/* The layout of an object; DATA_LAYOUTS: none. */
enum data_layout data_layout_of(const struct data_roles *roles, const json_t *object);
const char *data_layout_name(enum data_layout layout);
/* Why an object has no layout: 'has no "response"; its fields are "q", "a": ...' into text. */
void data_layout_missing(const struct data_roles *roles, const json_t *object, char *text, size_t bytes);

/* The same of a text: 'has no "text" that is a string; ...'. */
void data_text_missing(const struct data_roles *roles, const json_t *object, char *text, size_t bytes);

/* The name of a message's role in chat templates: "user" for "human"; by default the same. */
const char *data_speaker(const char *role);

#endif
