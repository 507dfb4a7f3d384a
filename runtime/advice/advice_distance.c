/*
 * advice_distance.c -- what distance costs a step, what would help, and what a step takes by each schedule: simulated.
 */
#include <stdio.h>

#include "advice_private.h"

enum { BATCH_GROWTH_MAX = 16 };

#define NEGLIGIBLE 0.02 /* a share of a step that needs no help */

/* --- what distance costs ---------------------------------------------------------------------------------------- */

/* A step, and the share of it that would not be there were all stages side by side. */
static enum aq_status share_of(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                               const struct aq_schedule_request *request, bool automatic, double *step_s, double *share)
{
    struct aq_plan_costs beside = *costs;
    double near_s;
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        beside.latency_s[e] = 0;
    beside.group_latency_s = 0;
    AQ_TRY(aq_plan_flight_seconds(plan, costs, request, automatic, step_s));
    AQ_TRY(aq_plan_flight_seconds(plan, &beside, request, automatic, &near_s));
    *share = *step_s > near_s ? 1 - near_s / *step_s : 0;
    return AQ_OK;
}

/* A step, and the share of it that would not be there were no packet lost. */
static enum aq_status loss_share_of(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                    const struct aq_schedule_request *request, double *share)
{
    struct aq_plan_costs kept = *costs;
    double step_s, whole_s;
    bool lossy = false;
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        lossy = lossy || costs->loss[e] > 0;
        kept.loss[e] = 0;
    }
    *share = 0;
    if (!lossy) return AQ_OK;
    AQ_TRY(aq_plan_flight_seconds(plan, costs, request, false, &step_s));
    AQ_TRY(aq_plan_flight_seconds(plan, &kept, request, false, &whole_s));
    if (step_s > whole_s) *share = 1 - whole_s / step_s;
    return AQ_OK;
}

static void help_add(struct aq_plan_distance *out, double share, double step_s, const char *key, uint32_t value)
{
    AQ_ASSERT(out->help_count < AQ_PLAN_HELPS_MAX);
    out->helps[out->help_count].share = share;
    out->helps[out->help_count].step_s = step_s;
    if (value)
        snprintf(out->helps[out->help_count++].change, AQ_PLAN_HELP_BYTES, "%s %u", key, value);
    else
        snprintf(out->helps[out->help_count++].change, AQ_PLAN_HELP_BYTES, "%s", key);
}

/* If the manifest sets something else: the choice by distance. */
static enum aq_status help_automatic(const struct aq_plan *plan, const struct aq_plan_costs *costs, double step_s,
                                     struct aq_plan_distance *out)
{
    struct aq_schedule_request request;
    double seconds, share;
    if (plan->job->pipeline.flush) return AQ_OK; /* it is gpipe's alone */
    AQ_TRY(aq_plan_flight_of(plan, plan->micro_batches, AQ_SCHEDULE_AUTO, AQ_IN_FLIGHT_AUTO, true, &request));
    AQ_TRY(share_of(plan, costs, &request, true, &seconds, &share));
    if (seconds * AQ_PLAN_ALIKE < step_s) help_add(out, share, seconds, "auto in pipeline and link", 0);
    return AQ_OK;
}

/* The next step's forwards during this one's end. */
static enum aq_status help_staleness(const struct aq_plan *plan, const struct aq_plan_costs *costs, double step_s,
                                     struct aq_plan_distance *out)
{
    const struct aq_job_pipeline *pipeline = &plan->job->pipeline;
    struct aq_job job = *plan->job; /* the values alone are read */
    struct aq_plan stale = *plan;
    struct aq_schedule_request request;
    double seconds, share;
    if (job.train.staleness || pipeline->flush) return AQ_OK; /* flush takes neither */
    job.train.staleness = 1;
    stale.job = &job;
    AQ_TRY(aq_plan_flight_of(&stale, plan->micro_batches, pipeline->schedule, pipeline->in_flight, false, &request));
    AQ_TRY(share_of(&stale, costs, &request, false, &seconds, &share));
    if (seconds * AQ_PLAN_ALIKE < step_s) help_add(out, share, seconds, "train.staleness", 1);
    return AQ_OK;
}

/* A batch so much larger that round trips take half of what they do, or BATCH_GROWTH_MAX times. */
static enum aq_status help_batch(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                 struct aq_plan_distance *out)
{
    const struct aq_job_pipeline *pipeline = &plan->job->pipeline;
    double seconds = 0, share = out->share;
    uint32_t growth = 1;
    while (growth < BATCH_GROWTH_MAX && share > out->share / 2) {
        struct aq_schedule_request request;
        if (2 * growth * plan->micro_batches > AQ_PLAN_SIMULATED_MOST) break;
        growth *= 2;
        AQ_TRY(aq_plan_flight_of(plan, growth * plan->micro_batches, pipeline->schedule, pipeline->in_flight, false,
                                 &request));
        AQ_TRY(share_of(plan, costs, &request, false, &seconds, &share));
    }
    if (growth > 1) help_add(out, share, seconds, "train.batch", growth * plan->job->train.batch);
    return AQ_OK;
}

enum aq_status aq_plan_distance(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                struct aq_plan_distance *out)
{
    *out = (struct aq_plan_distance){0};
    if (!aq_plan_far(plan)) return AQ_OK;
    const struct aq_schedule_request request =
        aq_plan_flight_request(plan, plan->micro_batches, plan->schedule, plan->in_flight);
    double step_s;
    AQ_TRY(share_of(plan, costs, &request, false, &step_s, &out->share));
    AQ_TRY(loss_share_of(plan, costs, &request, &out->loss_share));
    if (out->share < NEGLIGIBLE) return AQ_OK;
    AQ_TRY(help_automatic(plan, costs, step_s, out));
    AQ_TRY(help_staleness(plan, costs, step_s, out));
    return help_batch(plan, costs, out);
}

/* --- by schedule ------------------------------------------------------------------------------------------------ */

/* Costs of the same work where backward is split, or is not: by the flops of its halves. */
static enum aq_status costs_split(const struct aq_plan *plan, bool split, struct aq_plan_costs *costs)
{
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        struct aq_stage_config config = plan->stages[s].config;
        struct aq_stage_size size;
        if (config.split == split) continue;
        config.split = split;
        AQ_TRY(aq_stage_measure(&config, &size));
        const double whole = costs->backward_s[s] + costs->weights_s[s];
        costs->weights_s[s] = size.flops_backward > 0 ? whole * size.flops_weights / size.flops_backward : 0;
        costs->backward_s[s] = whole - costs->weights_s[s];
    }
    return AQ_OK;
}

enum aq_status aq_plan_schedules(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                 struct aq_plan_schedules *out)
{
    static const enum aq_schedule_kind kinds[] = {
#define AQ_SCHEDULE(name, id, text) id,
#include "schedules.def"
    };
    *out = (struct aq_plan_schedules){0};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const bool split = aq_schedule_splits(kinds[k]);
        struct aq_plan_costs mine = *costs;
        struct aq_schedule_request request;
        if (split && plan->job->model.recompute) continue;
        AQ_ASSERT(out->count < AQ_PLAN_SCHEDULES_MAX);
        AQ_TRY(costs_split(plan, split, &mine));
        AQ_TRY(aq_plan_flight_of(plan, plan->micro_batches, kinds[k], plan->job->pipeline.in_flight, false, &request));
        AQ_TRY(aq_plan_flight_seconds(plan, &mine, &request, false, &out->of[out->count].step_s));
        out->of[out->count++].name = aq_schedule_name(kinds[k]);
    }
    return AQ_OK;
}
