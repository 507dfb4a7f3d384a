/*
 * alias.h -- other names of keys and values (aliases.def).
 *
 * Locking: pure functions over constant tables.
 */
#ifndef RUNTIME_ALIAS_H
#define RUNTIME_ALIAS_H

#include <stdbool.h>

/* "true" for "True": ours for a plain word, or the word itself. *none: it is YAML's null. */
const char *aq_alias_word(const char *word, bool *none);

/* The key that a name of any section, or of none, means ("learning_rate": "train.lr"), by its last word; or NULL. */
const char *aq_alias_key(const char *name);

#endif
