/* data_faults.c -- see data_faults.h. */
#include "data_faults.h"

#include <stdio.h>
#include <string.h>

#include "dataset_kind.h"

#define AREA DATASET_AREA

enum { PLACE_BYTES = 64 };

bool data_fault_is(enum aq_status status)
{
    return status == AQ_CORRUPT || status == AQ_INVAL || status == AQ_MISMATCH || status == AQ_REFUSED ||
           status == AQ_NOSPC;
}

static void entry_add(struct data_faults *faults, const char *path, uint64_t first, uint64_t last, const char *cause)
{
    struct data_fault *entry = faults->shown ? &faults->list[faults->shown - 1] : NULL;
    if (entry && entry->path == path && strcmp(entry->cause, cause) == 0 && first == entry->last + 1) {
        entry->last = last;
        return;
    }
    if (faults->shown == DATA_FAULTS_SHOWN) return;
    entry = &faults->list[faults->shown++];
    *entry = (struct data_fault){.path = path, .first = first, .last = last};
    snprintf(entry->cause, sizeof entry->cause, "%s", cause);
}

void data_faults_note(struct data_faults *faults, const char *path, uint64_t line, const char *why)
{
    char place[PLACE_BYTES], cause[DATA_FAULT_BYTES];
    const size_t name = strlen(path);
    const int bytes = snprintf(place, sizeof place, ":%llu: ", (unsigned long long)line);
    if (strncmp(why, path, name) == 0 && strncmp(why + name, place, (size_t)bytes) == 0) why += name + (size_t)bytes;
    snprintf(cause, sizeof cause, "%s", why);
    faults->count++;
    entry_add(faults, path, line, line, cause);
}

void data_faults_join(struct data_faults *faults, const struct data_faults *more)
{
    faults->count += more->count;
    for (uint32_t i = 0; i < more->shown; i++)
        entry_add(faults, more->list[i].path, more->list[i].first, more->list[i].last, more->list[i].cause);
}

bool data_faults_over(const struct data_faults *faults)
{
    return faults->count > faults->allowed && (faults->shown == DATA_FAULTS_SHOWN || faults->count >= DATA_FAULTS_MAX);
}

/* ":4", or ":4 to 9" of several lines. */
static const char *place_of(const struct data_fault *entry, char place[PLACE_BYTES])
{
    if (entry->first == entry->last)
        snprintf(place, PLACE_BYTES, "%llu", (unsigned long long)entry->first);
    else
        snprintf(place, PLACE_BYTES, "%llu to %llu", (unsigned long long)entry->first,
                 (unsigned long long)entry->last);
    return place;
}

enum aq_status data_faults_end(const struct data_faults *faults)
{
    char place[PLACE_BYTES];
    const struct data_fault *first = &faults->list[0];
    const bool over = faults->count > faults->allowed;
    const char *more = data_faults_over(faults) ? " or more" : "";
    if (faults->count == 0) return AQ_OK;
    for (uint32_t i = 0; i < faults->shown && (!over || faults->shown > 1); i++)
        aq_log(AREA, over ? AQ_LOG_ERROR : 1, "%s%s:%s: %s", over ? "" : "skipped ", faults->list[i].path,
               place_of(&faults->list[i], place), faults->list[i].cause);
    if (!over) {
        aq_log(AREA, 1, "skipped %llu bad lines; data.skip_invalid is %llu", (unsigned long long)faults->count,
               (unsigned long long)faults->allowed);
        return AQ_OK;
    }
    if (faults->count == 1)
        return aq_fail(AQ_CORRUPT, AREA, "%s:%llu: %s (correct it, or skip it: data.skip_invalid: 1)", first->path,
                       (unsigned long long)first->first, first->cause);
    return aq_fail(AQ_CORRUPT, AREA,
                   "%s:%llu: %s (the first of %llu%s bad lines: correct them, or data.skip_invalid: %llu)", first->path,
                   (unsigned long long)first->first, first->cause, (unsigned long long)faults->count,
                   more, (unsigned long long)faults->count);
}
