/* chat_private.h -- what chat_template.c and chat_answers.c share. */
#ifndef STAGES_CHAT_PRIVATE_H
#define STAGES_CHAT_PRIVATE_H

#include "jinja.h"

struct aq_chat_template {
    struct jinja_program *program;
    json_t *variables; /* an object: special tokens by their names */
};

/* A JSON object of these bytes, or AQ_CORRUPT with `called`. */
enum aq_status aq_chat_object(const char *called, const char *text, size_t bytes, json_t **out);

#endif
