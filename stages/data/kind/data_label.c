/* data_label.c -- labels by names and by numbers. See data_label.h. */
#include "data_label.h"

#include <string.h>

#define AREA DATASET_AREA

enum { SHOWN = 40, LABELS_MAX = 1 << 20 };

/* The number of a label by the list of names, -1: none. */
static int32_t label_named(const char *names, const struct data_cell *cell)
{
    int32_t number = 0;
    for (const char *at = names; *at; number++) {
        at += strspn(at, " ");
        const char *end = at + strcspn(at, ",");
        const char *last = end;
        while (last > at && last[-1] == ' ')
            last--;
        if ((size_t)(last - at) == cell->bytes && memcmp(at, cell->at, cell->bytes) == 0) return number;
        at = *end ? end + 1 : end;
    }
    return -1;
}

enum aq_status data_labels_check(const char *names)
{
    int32_t number = 0;
    for (const char *at = names; at; number++) {
        const char *comma = strchr(at, ',');
        at += strspn(at, " ");
        size_t bytes = comma ? (size_t)(comma > at ? comma - at : 0) : strlen(at);
        while (bytes > 0 && at[bytes - 1] == ' ')
            bytes--;
        const struct data_cell cell = {.at = at, .bytes = bytes};
        if (bytes == 0)
            return aq_fail(AQ_INVAL, AREA, "data.labels: name %d is empty: names between commas", number + 1);
        if (label_named(names, &cell) != number)
            return aq_fail(AQ_INVAL, AREA, "data.labels: \"%.*s\" comes twice", bytes < SHOWN ? (int)bytes : SHOWN, at);
        at = comma ? comma + 1 : NULL;
    }
    return AQ_OK;
}

uint32_t data_labels_count(const char *names)
{
    uint32_t count = names != NULL;
    for (const char *comma = names ? strchr(names, ',') : NULL; comma; comma = strchr(comma + 1, ','))
        count++;
    return count;
}

enum aq_status data_label_refuse(const char *path, uint64_t line, const struct data_cell *cell, const char *problem)
{
    const int shown = cell->bytes < SHOWN ? (int)cell->bytes : SHOWN;
    return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: the label \"%.*s\" is %s", path, (unsigned long long)line, shown,
                   cell->at, problem);
}

enum aq_status data_label_read(const char *path, uint64_t line, const struct data_cell *cell, const char *names,
                               int32_t *out)
{
    int64_t number = 0;
    if (names) {
        *out = label_named(names, cell);
        return *out >= 0 ? AQ_OK : data_label_refuse(path, line, cell, "not in data.labels");
    }
    for (size_t i = 0; i < cell->bytes && number < LABELS_MAX; i++) {
        if (cell->at[i] < '0' || cell->at[i] > '9')
            return data_label_refuse(path, line, cell, "not a number from 0; name the labels in data.labels");
        number = number * 10 + (cell->at[i] - '0');
    }
    if (cell->bytes == 0 || number >= LABELS_MAX)
        return data_label_refuse(path, line, cell, "not a number from 0 to 1048575");
    *out = (int32_t)number;
    return AQ_OK;
}
