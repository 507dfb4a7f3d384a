/*
 * plan_costs.c -- what costs of a step have in common, however they came about.
 */
#include <string.h>

#include "aqsgd/grad.h"
#include "plan_private.h"

static const double near_latency_s = 1e-4;

double aq_plan_stream_s(double bytes)
{
    return bytes / AQ_PLAN_STREAM_BYTES_S;
}

static double latency_of(float rtt_ms)
{
    return rtt_ms > 0 ? (double)rtt_ms * 0.5e-3 : near_latency_s;
}

void aq_plan_costs_common(const struct aq_plan *plan, uint32_t cores, struct aq_plan_costs *out)
{
    *out = (struct aq_plan_costs){.cores = cores, .rate_mbps = plan->job->link.rate_mbps};
    out->group_latency_s = latency_of(plan->job->link.rtt_ms);
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        out->latency_s[e] = latency_of(plan->job->edges[e].rtt_ms);
        out->loss[e] = (double)plan->job->edges[e].loss;
    }
    for (uint32_t s = 0; s < plan->stage_count; s++)
        out->threads[s] = aq_job_threads(plan->job, s, cores);
    out->reduce_in_step = plan->replicas > 1 && !aq_optimizer_config_averages(&plan->job->train.optimizer);
    out->packed = plan->job->link.entropy == AQ_LINK_ENTROPY_OFF;
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        out->forward_share[s] = out->backward_share[s] = 1;
        out->choice[s] = AQ_CHOICE_NONE;
    }
    for (uint32_t c = 0; c < AQ_GRAD_CANDIDATES_MAX; c++)
        out->value_share[c] = 1;
}

double aq_plan_packing_s(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s)
{
    if (aq_plan_reduce_delay(plan) == 0) return costs->pack_s[s];
    return aq_plan_on_gpu(plan, s) ? 0 : costs->pack_s[s] / (costs->threads[s] > 0 ? costs->threads[s] : 1);
}

bool aq_plan_line_shared(const struct aq_plan *plan)
{
    return plan->job->split.clients > 0 && plan->stage_count == 3;
}

bool aq_plan_on_gpu(const struct aq_plan *plan, uint32_t s)
{
    const struct aq_job_stage *place = &plan->job->pipeline.stages[s];
    return aq_device_gpu_here(place->device, place->device_index);
}

bool aq_plan_same_gpu(const struct aq_plan *plan, uint32_t s, uint32_t r)
{
    const struct aq_job_stage *a = &plan->job->pipeline.stages[s], *b = &plan->job->pipeline.stages[r];
    return aq_plan_on_gpu(plan, s) && aq_plan_on_gpu(plan, r) && a->device_index == b->device_index &&
           aq_job_same_host(plan->job, s, r);
}

bool aq_plan_wants_gpu(const struct aq_plan *plan)
{
    for (uint32_t r = 0; r < plan->ranks; r++)
        if (aq_plan_on_gpu(plan, r)) return true;
    return false;
}

void aq_plan_costs_backward(const struct aq_plan *plan, uint32_t s, double seconds, struct aq_plan_costs *costs)
{
    const struct aq_stage_size *size = &plan->stages[s].size;
    const double weights = size->flops_backward > 0 ? size->flops_weights / size->flops_backward : 0;
    costs->backward_s[s] = seconds * (1 - weights);
    costs->weights_s[s] = seconds * weights;
}

void aq_plan_costs_speed(const struct aq_plan *plan, struct aq_plan_costs *costs)
{
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const double mine = aq_job_speed(plan->job, s);
        costs->forward_s[s] /= mine;
        costs->backward_s[s] /= mine;
        costs->weights_s[s] /= mine;
        costs->step_s[s] /= mine;
        if (s + 1 == plan->stage_count) continue;
        const double next = aq_job_speed(plan->job, s + 1);
        costs->send_s[s] /= mine;
        costs->receive_back_s[s] /= mine;
        costs->receive_s[s] /= next;
        costs->send_back_s[s] /= next;
    }
}

void aq_plan_costs_cached(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_costs *out)
{
    *out = *costs;
    for (uint32_t s = 0; s + 1 < plan->stage_count; s++) {
        if (!plan->edges[s].shape.still) continue;
        out->backward_s[s] = out->weights_s[s] = out->send_back_s[s] = out->receive_back_s[s] = 0;
        if (costs->cold) continue;
        out->forward_s[s] = out->send_s[s] = 0;
        if (s > 0) out->receive_s[s - 1] = 0;
    }
}
