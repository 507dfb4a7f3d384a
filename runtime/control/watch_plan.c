/*
 * watch_plan.c -- time limits from the plan, with the slowest machines and links.
 *
 * A floor for the deadline of progress, not a forecast: nothing is known of the machines yet. One forward or backward
 * is counted at a thousandth of a core's usual rate (100 GFLOP/s), as it is on a machine that swaps; one message
 * between stages at 1 Mbit/s, or the declared rate where that is lower, and twice as long.
 */
#include "plan.h"
#include "watch.h"

static const double flops_s_min = 1e8, bytes_s_min = 125e3;
enum { BACKWARD_FORWARDS = 3 }; /* with model.recompute a backward is a forward and twice as much again */

static double slowest_work_s(const struct aq_plan *plan)
{
    const double declared = plan->job->link.rate_mbps * 125e3;
    const double rate = declared > 0 && declared < bytes_s_min ? declared : bytes_s_min;
    double most = 0;
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const double work = BACKWARD_FORWARDS * plan->stages[s].size.flops_forward / flops_s_min;
        if (work > most) most = work;
    }
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const double message = 2 * (double)plan->edges[e].size.body_bytes_max / rate;
        if (message > most) most = message;
    }
    return most;
}

struct aq_watch_config aq_watch_of_plan(const struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    const struct aq_job_link *link = &job->link;
    const uint64_t links = plan->ranks > 1 ? plan->stage_count - 1 + (plan->replicas > 1) : 0;
    return (struct aq_watch_config){.silence_ns = job->control.silence_ns_max,
                                    .stall_ns = job->control.stall_ns_max,
                                    .first_ns = (uint64_t)(slowest_work_s(plan) * 1e9),
                                    .outage_ns =
                                        links * (link->outage_ns_max ? link->outage_ns_max + link->silence_ns_max : 0),
                                    .mark_ns = aq_plan_checkpoint_ns_max(plan),
                                    .server = aq_job_global(job) ? 1 : 0};
}
