/*
 * split_job.h -- the job of one client's turns: the manifest that server and client both have, and that client's own
 * values.
 *
 * Each end makes it, and their plans' hashes must be equal. The client sends the facts that only it has (count and
 * digest of samples), and the server plans with them: it never sees the data. train.epochs is the total of all rounds.
 *
 * Locking: pure functions of files.
 */
#ifndef RUNTIME_SPLIT_JOB_H
#define RUNTIME_SPLIT_JOB_H

#include "job.h"
#include "plan.h"

/* Of global sampling: where a client's samples lie among those of all (job.h), now and in its first round. */
struct aq_split_share {
    uint64_t all, first;
    uint64_t began_all, began_first; /* began_all 0: the same as now */
};

struct aq_split_asked {
    const char *manifest; /* file */
    const char *const *sets;
    uint32_t set_count;
    const char *client;                 /* NULL: the job that is everybody's, without a plan                */
    const char *run;                    /* output.path of it                                                */
    const char *data, *heldout;         /* of a client: its files; NULL: as the manifest has them           */
    const char *labels;                 /* of a server that has them: the folder of this client's; or NULL  */
    const struct aq_job_facts *facts;   /* of a server: the client's facts; NULL: the data is read          */
    const struct aq_split_share *share; /* of a client with global sampling; NULL: not known yet             */
};

struct aq_split_job {
    struct aq_job *job;
    struct aq_plan *plan; /* NULL where there is no client */
};

/* AQ_INVAL: the manifest is no split job, or is wrong; as aq_job_load and aq_plan_open. */
enum aq_status aq_split_job_open(const struct aq_split_asked *asked, struct aq_split_job *out);
void aq_split_job_close(struct aq_split_job *job); /* zeroes are fine */

#endif
