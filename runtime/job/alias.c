/* alias.c -- see alias.h. */
#include "alias.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *name, *key;
} aliases[] = {
#define AQ_ALIAS(name, key) {name, key},
#include "aliases.def"
};
static const struct {
    const char *word, *ours;
} words[] = {
#define AQ_ALIAS_WORD(word, ours) {word, ours},
#include "aliases.def"
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

const char *aq_alias_word(const char *word, bool *none)
{
    *none = false;
    for (size_t i = 0; i < COUNT(words); i++) {
        if (strcmp(words[i].word, word) != 0) continue;
        *none = !*words[i].ours;
        return words[i].ours;
    }
    return word;
}

static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

const char *aq_alias_key(const char *name)
{
    const char *last = last_word(name);
    if (strcmp(last, "name") == 0 || strcmp(last, "type") == 0) return NULL; /* every section could have these */
    for (size_t i = 0; i < COUNT(aliases); i++)
        if (strcmp(last_word(aliases[i].name), last) == 0) return aliases[i].key;
    return NULL;
}
