/* launch_ssh.c -- see the header. */
#include "launch_ssh.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "places.h"
#include "ssh_host.h"

enum { HOST_TEXT_BYTES = AQ_SSH_USER_BYTES + AQ_ENDPOINT_TEXT_BYTES };

/* The host of each rank, checked. */
static enum aq_status read_hosts(const struct aq_job *job, const char *hosts, struct aq_ssh_host of[AQ_JOB_RANKS_MAX])
{
    const uint32_t ranks = aq_job_ranks(job);
    uint32_t count = 0;
    for (const char *at = hosts; at; count++) {
        const char *comma = strchr(at, ','), *why = "it is too long";
        const size_t bytes = comma ? (size_t)(comma - at) : strlen(at);
        char text[HOST_TEXT_BYTES];
        if (bytes < sizeof text) {
            memcpy(text, at, bytes);
            text[bytes] = 0;
        }
        if (bytes >= sizeof text || aq_ssh_parse(text, &of[count % AQ_JOB_RANKS_MAX], &why) != AQ_OK)
            return aq_fail(AQ_INVAL, "launch", "--hosts: '%.*s' is not a host: %s", bytes < 80 ? (int)bytes : 80, at,
                           why);
        at = comma ? comma + 1 : NULL;
    }
    if (count == ranks) return AQ_OK;
    return aq_fail(AQ_INVAL, "launch",
                   "%u hosts are given (--host, --hosts), but the job has %u workers (%u stages x %u replicas): name "
                   "one for each worker; a host may be named several times",
                   count, ranks, job->pipeline.stage_count, job->pipeline.replicas);
}

struct places {
    struct aq_ssh_host of[AQ_JOB_RANKS_MAX];
    bool here[AQ_JOB_RANKS_MAX]; /* no agent: this machine */
};

/* Is it an address that a socket of this machine can have? */
static bool is_here(const struct aq_ssh_host *host)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    bool here = false;
    if (host->user[0] || host->port || getaddrinfo(host->host.host, NULL, &hints, &found) != 0) return false;
    for (struct addrinfo *at = found; at && !here; at = at->ai_next) {
        const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        here = fd != -1 && bind(fd, at->ai_addr, at->ai_addrlen) == 0;
        if (fd != -1) close(fd);
    }
    freeaddrinfo(found);
    return here;
}

/* "ssh://user@host:22", or "" here; or "host:0". */
static void add_one(const void *context, uint32_t rank, bool address, struct aq_text *out)
{
    const struct places *places = context;
    const struct aq_ssh_host *of = &places->of[rank];
    const char *open = of->host.v6 ? "[" : "", *close = of->host.v6 ? "]" : "";
    if (address) {
        aq_text_add(out, "%s%s%s:0", open, of->host.host, close);
        return;
    }
    if (places->here[rank]) return;
    aq_text_add(out, "ssh://%s%s%s%s%s", of->user, of->user[0] ? "@" : "", open, of->host.host, close);
    if (of->port) aq_text_add(out, ":%u", of->port);
}

enum aq_status aq_ssh_settings(const struct aq_job *job, const char *hosts, bool local, struct aq_text *out)
{
    struct places *places;
    AQ_TRY(AQ_NEW(1, &places));
    enum aq_status status = read_hosts(job, hosts, places->of);
    for (uint32_t r = 0; status == AQ_OK && local && r < aq_job_ranks(job); r++)
        places->here[r] = is_here(&places->of[r]);
    if (status == AQ_OK) status = aq_places_settings(job, add_one, places, out);
    aq_free(places);
    return status;
}

enum aq_status aq_ssh_check(const struct aq_job *job)
{
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        const char *host = job->pipeline.stages[r].host;
        if (!aq_ssh_is(host))
            return aq_fail(AQ_INVAL, "launch",
                           "--on ssh: stage %u has %s%.80s: name the hosts, as in --hosts A,B, or write "
                           "host: ssh://HOST in pipeline.stages",
                           r % job->pipeline.stage_count, host ? "the host " : "no host", host ? host : "");
    }
    return AQ_OK;
}
