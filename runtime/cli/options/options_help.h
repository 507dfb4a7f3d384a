/*
 * options_help.h -- the help of a command line, made from its table: one screen of 40 lines and 100 columns
 * (tests/test_help).
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_OPTIONS_HELP_H
#define RUNTIME_OPTIONS_HELP_H

#include "options.h"
#include "runtime_text.h"

enum { AQ_HELP_COLUMNS = 100 };

/* The row of the sub-command `name`, or NULL. */
const struct aq_option *aq_options_verb(const struct aq_command_line *line, const char *name);

/* Is the option one of this sub-command? verb NULL: of all of them. */
bool aq_option_is_of(const struct aq_option *option, const char *verb);

/* The output of --help; verb: of this sub-command (a WORD row), or NULL: of the whole command. */
void aq_options_help(const struct aq_command_line *line, const struct aq_option *verb, struct aq_text *out);

/* The output of --usage: the same without explanations. */
void aq_options_usage(const struct aq_command_line *line, const struct aq_option *verb, struct aq_text *out);

/* A paragraph, folded at blanks to AQ_HELP_COLUMNS: its first line continues one that has `used` columns, the others
 * start with `indent` blanks. Newlines of `words` stay. */
void aq_help_fold(struct aq_text *out, const char *words, size_t used, size_t indent);

/* The names of command_aliases.def, for `aqpipe help aliases`. */
void aq_options_aliases(struct aq_text *out);

#endif
