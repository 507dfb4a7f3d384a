/*
 * advice_bound.c -- what a step waits for at least: the busiest stage, link, host, GPU or store, and the round trips of
 * the links before it. plan_simulate.c simulates the rest.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "advice_private.h"

#define LATENCY_TOLD 1e-3 /* seconds of round trips from which on a bound names them */

__attribute__((format(printf, 3, 4))) static void bound_by(struct aq_plan_prediction *out, double seconds,
                                                           const char *format, ...)
{
    if (seconds <= out->bound_s) return;
    out->bound_s = seconds;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->binds, sizeof out->binds, format, arguments);
    va_end(arguments);
}

/* Update and packing: work between two steps' micro-batches. */
static double stage_end(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s)
{
    return costs->step_s[s] + (plan->replicas > 1 ? aq_plan_packing_s(plan, costs, s) : 0);
}

/* A stage's busy time in a step: of all streams together on a CPU, of its busiest stream on a GPU. */
static double stage_busy(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s)
{
    const double end = stage_end(plan, costs, s);
    const double micro_batch = costs->forward_s[s] + costs->backward_s[s] + costs->weights_s[s];
    const double compute = micro_batch * plan->micro_batches + end;
    double send = 0, receive = 0;
    if (s > 0) {
        receive += costs->receive_s[s - 1] * plan->micro_batches;
        send += costs->send_back_s[s - 1] * plan->micro_batches;
    }
    if (s + 1 < plan->stage_count) {
        receive += costs->receive_back_s[s] * plan->micro_batches;
        send += costs->send_s[s] * plan->micro_batches;
    }
    if (!aq_plan_on_gpu(plan, s)) return compute + send + receive;
    return fmax(compute, fmax(send, receive));
}

/* Bytes that the store of stage s reads and writes in a step; messages that never change are only read, and only where
 * they are needed. */
static double cache_traffic(const struct aq_plan *plan, uint32_t s)
{
    const bool last = s + 1 == plan->stage_count, still = !last && plan->edges[s].shape.still;
    double bytes = 0;
    const struct aq_plan_edge *in = s > 0 ? &plan->edges[s - 1] : NULL, *out = last ? NULL : &plan->edges[s];
    if (in && !still) bytes += (in->shape.still ? 1 : 2) * (double)in->size.message_bytes;
    if (out && !still) bytes += 2 * (double)out->size.message_bytes;
    return strcmp(plan->job->cache.kind, "memory") == 0 ? 0 : bytes * plan->batch;
}

/*
 * A step starts and ends at the first stage: stages behind links wait once for the round trips of them all, and a
 * link's last frame goes to the last stage and comes back.
 */
static void bound_trips(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_prediction *out)
{
    double trips = 0;
    const uint32_t P = plan->stage_count;
    const double at_once = 1 + plan->stages[0].program.staleness; /* steps that are under way */
    for (uint32_t s = 0; s < P; s++) {
        const double chains = out->compute_s[s] - stage_end(plan, costs, s);
        bound_by(out, (chains + trips) / at_once, "stage %u compute%s", s,
                 trips > LATENCY_TOLD ? " and round trips" : "");
        if (s + 1 < P) trips += 2 * costs->latency_s[s];
    }
    const char *also = trips > LATENCY_TOLD ? " and round trips" : "";
    for (uint32_t s = 0; s + 1 < P; s++) {
        bound_by(out, (out->forward_s[s] + trips) / at_once, "link %u-%u forward%s", s, s + 1, also);
        bound_by(out, (out->backward_s[s] + trips) / at_once, "link %u-%u backward%s", s, s + 1, also);
    }
}

/*
 * What goes up a client's line starts with the step, and its last frame is a gradient of the second cut, whose answer
 * comes down the first; what goes down starts when the first frame is up, and ends the step.
 */
static void bound_line(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_prediction *out)
{
    if (!aq_plan_line_shared(plan)) return;
    const double at_once = 1 + plan->stages[0].program.staleness;
    const double up_s = out->forward_s[0] + out->backward_s[1], down_s = out->backward_s[0] + out->forward_s[1];
    const double up_trip_s = costs->latency_s[0] + costs->latency_s[1], down_trip_s = 2 * costs->latency_s[0];
    const char *also = down_trip_s > LATENCY_TOLD ? " and a round trip" : "";
    bound_by(out, fmax(up_s, (up_s + up_trip_s) / at_once), "the client's line up%s", also);
    bound_by(out, fmax(down_s, (down_s + down_trip_s) / at_once), "the client's line down%s", also);
}

void aq_plan_bound(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_prediction *out)
{
    const uint32_t P = plan->stage_count;
    for (uint32_t s = 0; s < P; s++) {
        out->compute_s[s] = stage_busy(plan, costs, s);
        bound_by(out, out->compute_s[s], "stage %u compute", s);
        if (plan->replicas > 1) bound_by(out, costs->reduce_s[s], "gradients of stage %u", s);
        bound_by(out, out->forward_s[s], "link %u-%u forward", s, s + 1);
        bound_by(out, out->backward_s[s], "link %u-%u backward", s, s + 1);
    }
    bound_trips(plan, costs, out);
    bound_line(plan, costs, out);
    for (uint32_t s = 0; s < P; s++) {
        double work = 0, traffic = 0, gpu = 0;
        for (uint32_t r = 0; r < plan->ranks; r++)
            if (aq_job_same_host(plan->job, s, r)) {
                const uint32_t other = r % P;
                if (aq_plan_same_gpu(plan, s, r)) gpu += out->compute_s[other];
                traffic += cache_traffic(plan, other);
                if (aq_plan_on_gpu(plan, other)) continue;
                const uint32_t threads = costs->threads[other] < costs->cores ? costs->threads[other] : costs->cores;
                work += out->compute_s[other] * threads;
            }
        const char *host = plan->job->pipeline.stages[s].host;
        if (work / costs->cores > out->cores_s) out->cores_s = work / costs->cores;
        bound_by(out, work / costs->cores, "cores of %.40s", host ? host : "this machine");
        bound_by(out, gpu, "the GPU of stage %u", s);
        if (costs->cache_mbps > 0)
            bound_by(out, traffic / (costs->cache_mbps * 1e6), "store of %.40s", host ? host : "this machine");
    }
}
