/* chat_variables.h -- --chat-variable NAME=VALUE of generate and eval: variables of a chat template. */
#ifndef RUNTIME_CHAT_VARIABLES_H
#define RUNTIME_CHAT_VARIABLES_H

#include "options.h"
#include "runtime_text.h"

/*
 * Those of a run (a JSON object, or NULL) and over them those that are asked for, as one JSON object into out; an empty
 * text where there are none. A value is what JSON has by that name (false, 12), and else a text. AQ_INVAL: one is no
 * NAME=VALUE. AQ_NOMEM.
 */
enum aq_status aq_chat_variables(const char *run, const struct aq_arguments *asked, struct aq_text *out);

#endif
