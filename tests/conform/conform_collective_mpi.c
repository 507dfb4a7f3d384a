/*
 * conform_collective_mpi.c -- the cases of collective_cases.c over MPI: one process a rank, started by mpirun.
 *
 * Without AQ_MPI, or where it was not started by mpirun, it is skipped and says so.
 */
#include <stdio.h>

#include "collective_cases.h"

int main(void)
{
    const struct aq_group_config config = {.silence_ns = UINT64_C(60000000000), .piece_bytes = CASE_CODED_BYTES};
    struct aq_group *group;
    aq_log_init(-1);
    const enum aq_status opened = aq_group_open_mpi(&config, &group);
    if (opened == AQ_NODEV) {
        printf("skipped: %s\n", aq_error_text());
        return 77;
    }
    if (opened != AQ_OK) return 1;
    const bool first = aq_group_rank(group) == 0;
    const uint32_t size = aq_group_size(group);
    const enum aq_status status = collective_cases_run(group);
    aq_group_close(group);
    if (first && status == AQ_OK) printf("every collective over MPI, W = %u\n", size);
    return status == AQ_OK ? 0 : 1;
}
