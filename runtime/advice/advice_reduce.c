/*
 * advice_reduce.c -- what reductions between replicas take by costs, and the codec that stages will choose.
 */
#include "advice_private.h"

uint64_t aq_plan_run_bytes(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s)
{
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const struct aq_optimizer_config *config = &plan->job->train.optimizer;
    const uint32_t choice = costs ? costs->choice[s] : AQ_CHOICE_NONE;
    const uint64_t times = aq_plan_reductions(plan);
    if (times == 0) return 0;
    if (config->reduce_automatic && choice != AQ_CHOICE_NONE) {
        (void)aq_grad_candidates(config, candidates);
        return times * aq_plan_coded_bytes(plan, s, &candidates[choice].config);
    }
    return aq_plan_reductions_bytes(plan, s, times);
}

uint32_t aq_plan_reduce_candidates(const struct aq_plan *plan, struct aq_grad_candidate out[AQ_GRAD_CANDIDATES_MAX])
{
    const struct aq_optimizer_config *config = &plan->job->train.optimizer;
    if (plan->replicas == 1 || !aq_optimizer_config_codes(config)) return 0;
    if (config->reduce_automatic) return aq_grad_candidates(config, out);
    out[0] = (struct aq_grad_candidate){.config = config->reduce};
    if (!out[0].config.kind) out[0].config.kind = "fp32";
    return 1;
}

/* Each pair of replicas has its own link: a rank sends at the rate of all its links. */
static double rank_rate(const struct aq_plan *plan, const struct aq_plan_costs *costs)
{
    return costs->rate_mbps * 1e6 / 8 * (aq_job_reducers(plan->job) - 1);
}

/* The one that a stage will choose, as its workers do: by bytes before packing. */
static uint32_t choose(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s,
                       const struct aq_grad_candidate *candidates, uint32_t count)
{
    struct aq_grad_cost each[AQ_GRAD_CANDIDATES_MAX];
    const struct aq_grad_scene scene = {.rate = rank_rate(plan, costs),
                                        .latency_s = costs->group_latency_s,
                                        .compute_s =
                                            (costs->forward_s[s] + costs->backward_s[s] + costs->weights_s[s]) *
                                            plan->micro_batches * aq_plan_reduce_every(plan)};
    for (uint32_t c = 0; c < count; c++)
        each[c] = (struct aq_grad_cost){.bytes = aq_plan_coded_bytes(plan, s, &candidates[c].config),
                                        .pack_s = costs->value_s[c] * (double)plan->stages[s].size.parameters};
    return aq_grad_choose(each, count, &scene);
}

void aq_plan_costs_reduce(const struct aq_plan *plan, struct aq_plan_costs *costs)
{
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t count = aq_plan_reduce_candidates(plan, candidates);
    const bool automatic = plan->job->train.optimizer.reduce_automatic;
    const uint32_t every = aq_plan_reduce_every(plan);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        double bytes = (double)aq_plan_reduce_bytes(plan, s);
        uint32_t c = 0;
        costs->choice[s] = AQ_CHOICE_NONE;
        costs->reduce_s[s] = costs->pack_s[s] = 0;
        if (plan->replicas == 1 || (automatic && !(costs->rate_mbps > 0))) continue;
        if (automatic) {
            c = costs->choice[s] = choose(plan, costs, s, candidates, count);
            bytes = (double)aq_plan_coded_bytes(plan, s, &candidates[c].config);
        }
        if (count > 0) bytes *= costs->value_share[c];
        if (count > 0) costs->pack_s[s] = costs->value_s[c] * (double)plan->stages[s].size.parameters;
        if (bytes > 0 && costs->rate_mbps > 0) costs->reduce_s[s] = bytes / rank_rate(plan, costs);
        costs->reduce_s[s] /= every; /* a step's share of what is taken once a round */
        costs->pack_s[s] /= every;
    }
}

void aq_plan_costs_warmup(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_costs *out)
{
    *out = *costs;
    out->reduce_in_step = false; /* the mean of gradients is made before the update */
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const double bytes = (double)aq_plan_warmup_bytes(plan, s);
        out->pack_s[s] = 0;
        out->reduce_s[s] = bytes > 0 && costs->rate_mbps > 0 ? bytes / rank_rate(plan, costs) : 0;
    }
}
