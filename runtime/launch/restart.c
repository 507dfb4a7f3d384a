/* restart.c -- see the header. */
#include "restart.h"

#include <poll.h>

#include "run_folder.h"
#include "security.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;

/* The newest checkpoint cannot be read: the one before it takes its place, on disk too, before anybody opens it. */
static bool fall_back(const char *checkpoint, uint64_t *step)
{
    struct aq_run_mark mark;
    if (aq_run_mark_read(checkpoint, &mark) != AQ_OK || mark.older == 0 || mark.older >= mark.step) return false;
    mark.step = mark.older;
    mark.older = 0;
    mark.metrics = mark.older_metrics;
    mark.older_metrics = 0;
    if (aq_run_mark_write(checkpoint, &mark) != AQ_OK) return false;
    *step = mark.step;
    return true;
}

bool aq_restart_due(struct aq_restart *restart, const struct aq_launch_result *result, const char *checkpoint,
                    uint64_t *step)
{
    if (result->outcome != AQ_LAUNCH_FAILED || !result->transient || restart->max == 0) return false;
    /* Of running: who has waited so long for a machine that does not come back has not run. */
    const bool calm = result->go_ns && aq_clock_ns() - result->go_ns > AQ_RESTART_CALM_S * second_ns;
    if (result->mark > restart->mark || calm) restart->in_row = 0;
    if (restart->in_row >= restart->max) return false;
    *step = result->mark;
    if (result->unreadable && !fall_back(checkpoint, step)) return false;
    restart->mark = *step;
    restart->in_row++;
    restart->total++;
    return true;
}

/* Can the same stage of every other replica reach the rank? One that returns listens for all of them. */
static bool is_reachable(const struct aq_job *job, uint32_t rank)
{
    const char *address = job->pipeline.stages[rank].address;
    const uint32_t P = job->pipeline.stage_count;
    if (address ? !aq_security_inside(address) : !aq_security_inside_host(job->link.host)) return true;
    for (uint32_t r = rank % P; r < aq_job_ranks(job); r += P)
        if (aq_job_apart(job, rank, r)) return false;
    return true;
}

bool aq_restart_reaches(const struct aq_job *job)
{
    for (uint32_t r = 0; r < aq_job_ranks(job); r++)
        if (job->pipeline.stages[r].dials || !is_reachable(job, r)) return false;
    return true;
}

uint32_t aq_restart_returns(const struct aq_restart *restart, const struct aq_job *job)
{
    return job->train.early_stop || !aq_restart_reaches(job) ? 0 : restart->max;
}

void aq_restart_pause(const struct aq_restart *restart, int signals)
{
    uint64_t seconds = 0;
    for (uint32_t i = 1; i < restart->in_row && seconds < AQ_RESTART_PAUSE_S_MAX; i++)
        seconds = seconds ? 2 * seconds : 1;
    if (seconds > AQ_RESTART_PAUSE_S_MAX) seconds = AQ_RESTART_PAUSE_S_MAX;
    struct pollfd fd = {.fd = signals, .events = POLLIN}; /* a negative one is ignored */
    if (seconds > 0) (void)poll(&fd, 1, (int)(seconds * 1000));
}
