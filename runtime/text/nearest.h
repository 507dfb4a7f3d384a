/*
 * nearest.h -- the likely intention of a mistyped word: a command, an option, a key of a manifest.
 *
 *     struct aq_nearest nearest = {.word = "lanuch"};
 *     for (...) aq_nearest_try(&nearest, names[i]);
 *     if (aq_nearest_of(&nearest)) ... "did you mean '%s'?"
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_NEAREST_H
#define RUNTIME_NEAREST_H

#include <stdint.h>

/* Fewest edits (insert, delete, change) between two short words, at most 63 characters looked at. */
uint32_t aq_word_distance(const char *a, const char *b);

struct aq_nearest {
    const char *word; /* the caller's */
    const char *best; /* the first of those with the least distance; NULL: none yet */
    uint32_t distance;
};

void aq_nearest_try(struct aq_nearest *nearest, const char *name);

/* The nearest one, where it is near enough to be meant; or NULL. */
const char *aq_nearest_of(const struct aq_nearest *nearest);

#endif
