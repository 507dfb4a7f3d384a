/*
 * data_faults.h -- the bad lines of a data set: all are reported at once, and up to data.skip_invalid are skipped.
 *
 *     struct data_faults faults = {.allowed = config->skip_invalid};
 *     ...  data_faults_note(&faults, path, line, why)           for each line that cannot be used
 *     ...  if (data_faults_over(&faults)) break;                no line read now would be reported
 *     AQ_TRY(data_faults_end(&faults));
 *
 * Lines next to each other with the same cause are one entry. At most DATA_FAULTS_SHOWN entries are kept.
 *
 * Locking: one thread; threads have their own, which data_faults_join puts behind each other.
 */
#ifndef DATA_FAULTS_H
#define DATA_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum { DATA_FAULTS_SHOWN = 20, DATA_FAULTS_MAX = 1000, DATA_FAULT_BYTES = 400 };

struct data_faults {
    uint64_t allowed; /* that are skipped */
    uint64_t count;
    uint32_t shown;
    struct data_fault {
        const char *path; /* borrowed */
        uint64_t first, last;
        char cause[DATA_FAULT_BYTES];
    } list[DATA_FAULTS_SHOWN];
};

/* Does it concern only this record, so that others may be read: not memory, a device or a file that cannot be read? */
bool data_fault_is(enum aq_status status);

/* why: a text of aq_fail; "path:line: " in front of it is left out. */
void data_faults_note(struct data_faults *faults, const char *path, uint64_t line, const char *why);
/* Those of `more` behind the others. */
void data_faults_join(struct data_faults *faults, const struct data_faults *more);
bool data_faults_over(const struct data_faults *faults);
/* AQ_OK: no bad lines, or no more than may be skipped, which is logged. AQ_CORRUPT: logs all entries. */
enum aq_status data_faults_end(const struct data_faults *faults);

#endif
