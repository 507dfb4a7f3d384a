/*
 * bench_job.h -- the small job of bench_job.c, for other benches of whole jobs.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_BENCH_JOB_H
#define RUNTIME_BENCH_JOB_H

#include "bench.h"

enum { AQ_BENCH_PATH_BYTES = 4096 };

/* A new folder below the current one (a disk, not a memory file system) with job.yaml and its text. */
enum aq_status aq_bench_job_begin(char folder[AQ_BENCH_PATH_BYTES]);
/* Removes it; answers `status`, or why it cannot be removed. */
enum aq_status aq_bench_job_end(const char *folder, enum aq_status status);

/* Run the job with these changes of its keys (NULL at the end): seconds of one step after the first epoch. */
enum aq_status aq_bench_job_run(const char *folder, const char *name, const char *const *sets, double *step_seconds);

/* Median step seconds of two ways to run the job, by turns: a noisy neighbour meets both. */
enum aq_status aq_bench_job_pair(const struct aq_bench_options *options, const char *folder, const char *const *one,
                                 const char *const *other, double *one_s, double *other_s);

#endif
