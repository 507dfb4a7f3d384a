/* security.c -- the decisions of security.h: pure functions of the job. */
#include "security.h"

#include <stdlib.h>
#include <string.h>

static bool inside(const char *address)
{
    static const char *const own[] = {"127.", "localhost:", "[::1]"};
    if (strncmp(address, "tcp://", 6) == 0) address += 6;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(address, own[i], strlen(own[i])) == 0) return true;
    return strcmp(address, "localhost") == 0 || strcmp(address, "::1") == 0;
}

const char *aq_security_outside(const struct aq_job *job)
{
    bool shared_host = false;
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        const struct aq_job_stage *stage = job->pipeline.stages ? &job->pipeline.stages[r] : NULL;
        if (stage && stage->host && !inside(stage->host)) return stage->host;
        if (!aq_job_listens(job, r)) continue;
        if (stage && stage->address && !inside(stage->address)) return stage->address;
        shared_host |= !stage || !stage->address;
    }
    return shared_host && !inside(job->link.host) ? job->link.host : NULL;
}

bool aq_security_on(const struct aq_job *job)
{
    if (strcmp(job->security.tls, "auto") != 0) return strcmp(job->security.tls, "on") == 0;
    return aq_security_outside(job) != NULL;
}

const char *aq_security_folder(const struct aq_job *job)
{
    const char *of_daemon = getenv(AQ_SECURITY_WORKER_KEYS);
    return of_daemon && of_daemon[0] ? of_daemon : job->security.keys;
}
