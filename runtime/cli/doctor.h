/*
 * doctor.h -- what `aqpipe doctor` finds, line by line: doctor_machine.c of this machine, doctor_job.c of a job.
 *
 * Each finding has a state, what was found, and where it is not well the remedy. Nothing is changed but one file of a
 * few MiB that is written, read and removed where a job's caches will be.
 */
#ifndef RUNTIME_DOCTOR_H
#define RUNTIME_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>

struct aq_job;
struct aq_plan;

enum doctor_state { DOCTOR_WELL, DOCTOR_DOUBTFUL, DOCTOR_BAD };

struct doctor {
    bool json;
    uint32_t counts[3]; /* by state */
    const char *token_file;
};

/* One finding, printed. check: a word or two, the same in every run. remedy: NULL where there is nothing to do. */
void doctor_found(struct doctor *doctor, enum doctor_state state, const char *check, const char *remedy,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The text of the last failure (aq_error_text) is the finding. */
void doctor_failed(struct doctor *doctor, const char *check, const char *remedy);

void doctor_machine(struct doctor *doctor);
void doctor_job(struct doctor *doctor, const struct aq_job *job, const struct aq_plan *plan);

#endif
