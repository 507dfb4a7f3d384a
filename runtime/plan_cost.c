/*
 * plan_cost.c -- seconds of one forward, backward, encode, decode and update, assumed from flops and bytes.
 */
#include "aqsgd/grad.h"
#include "plan_private.h"

/* Sustained, a core; what codecs and optimizers, which stream memory, were seen to do on a server CPU. Printed as
 * assumed. */
static const double stream_bytes_s = 4e9;
static const double latency_s = 1e-4;

void aq_plan_costs_common(const struct aq_plan *plan, uint32_t cores, struct aq_plan_costs *out)
{
    *out = (struct aq_plan_costs){.cores = cores, .rate_mbps = plan->job->link.rate_mbps, .latency_s = latency_s};
    for (uint32_t s = 0; s < plan->stage_count; s++)
        out->threads[s] = aq_job_threads(plan->job, s, cores);
    for (uint32_t s = 0; s < plan->stage_count && out->rate_mbps > 0; s++)
        out->reduce_s[s] = (double)aq_plan_reduce_bytes(plan, s) * 8 / (out->rate_mbps * 1e6);
    for (uint32_t s = 0; s < plan->stage_count; s++)
        out->choice[s] = AQ_CHOICE_NONE;
}

/* Encoding reads values and errors and writes errors; decoding and adding up touch each value twice, twice. */
static void assume_packing(const struct aq_plan *plan, uint32_t threads, struct aq_plan_costs *out)
{
    const double value_s = sizeof(float) / (stream_bytes_s * threads);
    for (uint32_t c = 0; c < AQ_GRAD_CANDIDATES_MAX; c++)
        out->value_s[c] = c == 0 ? 4 * value_s : (3 * (1 + 1.0 / plan->replicas) + 4) * value_s;
}

void aq_plan_costs_assumed(const struct aq_plan *plan, double gflops, uint32_t cores, struct aq_plan_costs *out)
{
    aq_plan_costs_common(plan, cores, out);
    out->origin = "assumed";
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct aq_plan_stage *stage = &plan->stages[s];
        const uint32_t threads = out->threads[s] < cores ? out->threads[s] : cores;
        const double flops_s = gflops * 1e9 * threads;
        const uint32_t state = aq_optimizer_state_floats(&plan->job->train.optimizer);
        out->forward_s[s] = stage->size.flops_forward / flops_s;
        out->backward_s[s] = stage->size.flops_backward / flops_s;
        out->step_s[s] = (double)(2 + 2 * state + 1) * (double)stage->size.parameter_bytes / (stream_bytes_s * threads);
        if (s + 1 == plan->stage_count) continue;
        const double stream = (double)stage->size.boundary_bytes / (stream_bytes_s * threads);
        out->send_s[s] = 2 * stream; /* values and references are read, references written */
        out->receive_s[s] = stream;
        out->send_back_s[s] = stream;
        out->receive_back_s[s] = stream;
    }
    assume_packing(plan, out->threads[0] < cores ? out->threads[0] : cores, out);
    aq_plan_costs_choose(plan, out);
}
