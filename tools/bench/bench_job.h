/*
 * bench_job.h -- the small job of bench_job.c, for other benches of whole jobs.
 *
 * Locking: one thread.
 */
#ifndef TOOLS_BENCH_JOB_H
#define TOOLS_BENCH_JOB_H

#include "bench.h"
#include "advice.h"

enum { AQ_BENCH_PATH_BYTES = 4096 };

/* A new folder below the current one (a disk, not a memory file system) with job.yaml and its text. */
enum aq_status aq_bench_job_begin(char folder[AQ_BENCH_PATH_BYTES]);
/* Removes it; answers `status`, or why it cannot be removed. */
enum aq_status aq_bench_job_end(const char *folder, enum aq_status status);

/* Run the job with these changes of its keys (NULL at the end): seconds of one step after the first epoch. */
enum aq_status aq_bench_job_run(const char *folder, const char *name, const char *const *sets, double *step_seconds);

struct aq_bench_job_figures {
    double mean_s;   /* of one step, from the end of the first epoch to the end of the run */
    double median_s; /* of the same steps                                                  */
    uint64_t losses; /* digest of every step's loss                                        */
};

/* The same, with more of its metrics. */
enum aq_status aq_bench_job_figures(const char *folder, const char *name, const char *const *sets,
                                    struct aq_bench_job_figures *out);

/* The plan's bound and prediction with costs measured now, of the job with these changes of its keys. */
enum aq_status aq_bench_job_plan(const char *folder, const char *const *sets, struct aq_plan_prediction *out);

/* The same with costs by arithmetic at so many GFLOP/s per core, on `cores` cores (aq_plan_costs_assumed): *costs. */
enum aq_status aq_bench_job_assumed(const char *folder, const char *const *sets, double gflops, uint32_t cores,
                                    struct aq_plan_costs *costs, struct aq_plan_prediction *out);

/* Run this very program with these arguments (argv, NULL at the end), quietly; AQ_ABORTED: logs its output. */
enum aq_status aq_bench_job_command(const char *folder, char *const *arguments);

/* Median step seconds of two ways to run the job, by turns: a noisy neighbour meets both. */
enum aq_status aq_bench_job_pair(const struct aq_bench_options *options, const char *folder, const char *const *one,
                                 const char *const *other, double *one_s, double *other_s);

#endif
