/*
 * launch_slurm.h -- `aqpipe launch --on slurm`: the job as a batch script of Slurm's, written from the manifest.
 *
 * One task per rank (stages x replicas). In the allocation the script makes the job's keys, starts a daemon in each
 * task (aqpiped at a port of the system's choice), and the launcher on the first node, with their addresses. Slurm's
 * warning before a time limit (SIGUSR1) and its preemption (SIGTERM) make a checkpoint; the job is put back into the
 * queue, and resumes from the checkpoint when it runs again. All of a run's paths must be on a file system that the
 * nodes share. docs/CLUSTERS.md.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_LAUNCH_SLURM_H
#define RUNTIME_LAUNCH_SLURM_H

#include <stdbool.h>

#include "job.h"
#include "options.h"
#include "runtime_text.h"

struct aq_slurm {
    const struct aq_job *job;
    const struct aq_plan *plan;        /* of the job: the memory of its stages                                */
    const char *manifest;              /* its path                                                            */
    const struct aq_arguments *sets;   /* "key=value", for the launcher                                       */
    const struct aq_arguments *wishes; /* options of sbatch, each a line: "--partition=gpu"                   */
    uint32_t restarts, warning_s;      /* of the launcher; how long before its limit Slurm warns the script   */
    bool print;                        /* the script goes to standard output, and nothing is submitted        */
};

/* The script. AQ_INVAL: a wish that is no option of sbatch. */
enum aq_status aq_slurm_script(const struct aq_slurm *slurm, struct aq_text *out);

/* Lines of bash: they set the arrays sets and resume from $stages, $ranks, $listed, $run and the files in $work
 * (launch_mpi.c). */
extern const char aq_slurm_places[];

/* Write it next to the run folder (RUN.sbatch) and exec sbatch; returns an exit status if that fails, or if it only
 * prints. */
int aq_slurm_submit(const struct aq_slurm *slurm);

#endif
