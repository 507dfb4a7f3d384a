/* security.c -- the decisions of security.h: pure functions of the job. */
#include "security.h"

#include <stdlib.h>
#include <string.h>

#include "net/endpoint.h"
#include "ssh_host.h"

/* A text that is no address counts as outside: it must not switch anything off. */
bool aq_security_inside(const char *address)
{
    struct aq_endpoint endpoint;
    const char *why;
    return aq_endpoint_parse(address, &endpoint, &why) == AQ_OK && aq_endpoint_loopback(&endpoint);
}

bool aq_security_inside_host(const char *host)
{
    struct aq_endpoint endpoint;
    const char *why;
    return host && aq_endpoint_parse_host(host, &endpoint, &why) == AQ_OK && aq_endpoint_loopback(&endpoint);
}

const char *aq_security_outside(const struct aq_job *job)
{
    bool shared_host = false;
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        const struct aq_job_stage *stage = job->pipeline.stages ? &job->pipeline.stages[r] : NULL;
        /* Its daemon is reached within ssh, which encrypts; its links are judged by their own addresses. */
        const bool dialled = stage && stage->host && !aq_ssh_is(stage->host);
        if (dialled && !aq_security_inside(stage->host)) return stage->host;
        if (!aq_job_listens(job, r)) continue;
        if (stage && stage->dials) { /* it listens at the relay only */
            if (job->link.relay && !aq_security_inside(job->link.relay)) return job->link.relay;
            continue;
        }
        if (stage && stage->address && !aq_security_inside(stage->address)) return stage->address;
        shared_host |= !stage || !stage->address;
    }
    return shared_host && !aq_security_inside_host(job->link.host) ? job->link.host : NULL;
}

bool aq_security_on(const struct aq_job *job)
{
    if (strcmp(job->security.tls, "auto") != 0) return strcmp(job->security.tls, "on") == 0;
    return job->security.keys || aq_security_outside(job);
}

const char *aq_security_folder(const struct aq_job *job)
{
    const char *of_daemon = getenv(AQ_SECURITY_WORKER_KEYS);
    return of_daemon && of_daemon[0] ? of_daemon : job->security.keys;
}
