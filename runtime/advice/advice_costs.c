/*
 * advice_costs.c -- seconds of a forward, backward, encode, decode, update and reduction, assumed by flops and bytes.
 */
#include "advice_private.h"

/* Encoding reads values and errors and writes errors; decoding and adding up touch each value twice, twice. */
static void assume_packing(const struct aq_plan *plan, uint32_t threads, struct aq_plan_costs *out)
{
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t count = aq_plan_reduce_candidates(plan, candidates);
    const uint32_t packs = aq_plan_reduce_delay(plan) > 0 ? 1 : threads;
    const double value_s = sizeof(float) / (AQ_PLAN_STREAM_BYTES_S * packs);
    for (uint32_t c = 0; c < count; c++)
        out->value_s[c] = aq_grad_codec_config_plain(&candidates[c].config)
                              ? 4 * value_s
                              : (3 * (1 + 1.0 / plan->replicas) + 4) * value_s;
}

void aq_plan_costs_assumed(const struct aq_plan *plan, double gflops, uint32_t cores, struct aq_plan_costs *out)
{
    aq_plan_costs_common(plan, cores, out);
    out->origin = "assumed";
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct aq_plan_stage *stage = &plan->stages[s];
        if (aq_plan_on_gpu(plan, s)) continue;
        const uint32_t threads = out->threads[s] < cores ? out->threads[s] : cores;
        const double flops_s = gflops * 1e9 * threads;
        const uint32_t state = aq_optimizer_state_floats(&plan->job->train.optimizer);
        out->forward_s[s] = stage->size.flops_forward / flops_s;
        aq_plan_costs_backward(plan, s, stage->size.flops_backward / flops_s, out);
        out->step_s[s] =
            (double)(2 + 2 * state + 1) * (double)stage->size.parameter_bytes / (AQ_PLAN_STREAM_BYTES_S * threads);
        if (s + 1 == plan->stage_count) continue;
        const double stream = (double)stage->size.y_bytes / (AQ_PLAN_STREAM_BYTES_S * threads);
        out->send_s[s] = 2 * stream; /* values and references are read, references written */
        out->receive_s[s] = stream;
        out->send_back_s[s] = stream;
        out->receive_back_s[s] = stream;
    }
    aq_plan_costs_speed(plan, out);
    if (!aq_plan_on_gpu(plan, 0)) assume_packing(plan, out->threads[0] < cores ? out->threads[0] : cores, out);
    aq_plan_costs_reduce(plan, out);
}
