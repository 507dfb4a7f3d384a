/*
 * launch_mpi.h -- `mpirun aqpipe launch JOB --on mpi`: this process is one of many ranks that an MPI launcher has
 * started.
 *
 * Under mpirun (Open MPI, MPICH) or `srun --mpi=pmix` each rank finds in its environment which one it is, of how many,
 * and of which start (docs/CLUSTERS.md has the table). No MPI library is used. Rank r runs the daemon of worker r; rank
 * 0 also makes the job's keys and runs the launcher. They meet in RUN.mpi/START, on a file system that all share, as
 * the tasks of Slurm's batch script do (launch_slurm.h): addresses, ports, and the keys.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_LAUNCH_MPI_H
#define RUNTIME_LAUNCH_MPI_H

#include "job.h"
#include "options.h"

struct aq_mpi {
    const struct aq_job *job;
    const char *manifest;            /* its path                    */
    const struct aq_arguments *sets; /* "key=value", for the launcher */
    uint32_t restarts;
};

/* Become this rank. Answers an exit status where that fails: not started by mpirun, or not as many as workers. */
int aq_mpi_become(const struct aq_mpi *mpi);

#endif
