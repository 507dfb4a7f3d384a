/*
 * sample.h -- long tables of cases: a part of each in CI, all of it with AQ_TESTS=long in the environment.
 *
 * A table has sizes, and each size comes in `variants`: case s is size s / variants in variant s % variants. The short
 * form has every size, in one of `one_of` variants; the next size has the next ones, so that each variant comes as
 * well. It is a fixed choice: the same cases in every run.
 */
#ifndef KIT_SAMPLE_H
#define KIT_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Is this the long form? */
static inline bool sample_all(void)
{
    const char *tests = getenv("AQ_TESTS");
    return tests && strcmp(tests, "long") == 0;
}

/* Is this a program of AddressSanitizer or ThreadSanitizer? It takes up to ten times as long, and looks for other
 * faults than wrong values. */
static inline bool sample_sanitized(void)
{
#if defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#endif
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    return true;
#endif
    return false;
}

/* Is case s in the form that runs? Each size is: of a size with fewer variants than one_of one runs. */
static inline bool sample_has(size_t s, size_t variants, size_t one_of)
{
    const size_t step = one_of < variants ? one_of : variants;
    return (s % variants + s / variants) % step == 0 || sample_all();
}

/* So many of `count` seeds: under a sanitizer a third of them. */
static inline unsigned sample_seeds(unsigned count)
{
    return sample_sanitized() && !sample_all() ? (count + 2) / 3 : count;
}

/* Of a table that the other builds run in full: under a sanitizer every count-th case, elsewhere all of them. */
static inline size_t sample_every(size_t count)
{
    return sample_sanitized() && !sample_all() ? count : 1;
}

#endif
