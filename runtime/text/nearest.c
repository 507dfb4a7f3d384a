/* nearest.c -- see the header. Levenshtein's distance, one row at a time. */
#include "nearest.h"

#include <stddef.h>
#include <string.h>

uint32_t aq_word_distance(const char *a, const char *b)
{
    enum { WORD_MAX = 63 };
    size_t rows = strlen(a), columns = strlen(b);
    if (rows > WORD_MAX) rows = WORD_MAX;
    if (columns > WORD_MAX) columns = WORD_MAX;
    uint32_t line[WORD_MAX + 1];
    for (size_t j = 0; j <= columns; j++)
        line[j] = (uint32_t)j;
    for (size_t i = 1; i <= rows; i++) {
        uint32_t diagonal = line[0];
        line[0] = (uint32_t)i;
        for (size_t j = 1; j <= columns; j++) {
            const uint32_t above = line[j];
            uint32_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best) best = above + 1;
            if (line[j - 1] + 1 < best) best = line[j - 1] + 1;
            line[j] = best;
            diagonal = above;
        }
    }
    return line[columns];
}

void aq_nearest_try(struct aq_nearest *nearest, const char *name)
{
    const uint32_t distance = aq_word_distance(nearest->word, name);
    if (nearest->best && distance >= nearest->distance) return;
    nearest->best = name;
    nearest->distance = distance;
}

const char *aq_nearest_of(const struct aq_nearest *nearest)
{
    const size_t count = strlen(nearest->word);
    return nearest->best && nearest->distance <= count / 3 + (count > 3) ? nearest->best : NULL;
}
