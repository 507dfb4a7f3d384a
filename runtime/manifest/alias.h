/*
 * alias.h -- other names of keys and values (aliases.def), and what is done about them in a manifest's tree.
 *
 * Locking: pure functions over constant tables.
 */
#ifndef RUNTIME_ALIAS_H
#define RUNTIME_ALIAS_H

#include <stdbool.h>

struct aq_manifest;

/* "true" for "True": ours for a plain word, or the word itself. *none: it is YAML's null. */
const char *aq_alias_word(const char *word, bool *none);

/* The key that a name of any section, or of none, means ("learning_rate": "train.lr"), by its last word; or NULL. */
const char *aq_alias_key(const char *name);

/*
 * Before the sections are read: nulls are dropped, other programs' names of keys and values become ours, and names
 * without an exact equivalent are errors. A value of --set wins over the file, by any of the names. Errors go to the
 * manifest's.
 */
void aq_manifest_aliases(struct aq_manifest *manifest);

#endif
