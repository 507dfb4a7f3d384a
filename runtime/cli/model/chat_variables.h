/* chat_variables.h -- --chat-variable NAME=VALUE of generate and eval, and --field ROLE=NAME: values by names. */
#ifndef RUNTIME_CHAT_VARIABLES_H
#define RUNTIME_CHAT_VARIABLES_H

#include "options.h"
#include "runtime_text.h"

/*
 * The variables of a run (a JSON object, or NULL), overridden by the command line's, as one JSON object into out; an
 * empty text without any. A value is a JSON literal (false, 12), and else a text. AQ_INVAL: one is no NAME=VALUE.
 * AQ_NOMEM. option: "--chat-variable", for messages.
 */
enum aq_status aq_named_values(const char *option, const char *run, const struct aq_arguments *asked,
                               struct aq_text *out);

#endif
