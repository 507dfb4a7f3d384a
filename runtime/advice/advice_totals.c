/*
 * advice_totals.c -- totals of a whole run: hours, bytes that a machine sends, and bytes on its disk.
 *
 * Bytes are those on the wire of all steps, without evaluations. The first epoch's steps (those of edges.warmup_epochs)
 * send samples whole.
 */
#include <string.h>
#include <sys/stat.h>

#include "advice_private.h"

/* The machine of a rank, as the first rank on the same host. */
static uint32_t machine_of(const struct aq_plan *plan, uint32_t rank)
{
    uint32_t first = 0;
    while (first < rank && !aq_job_same_host(plan->job, first, rank))
        first++;
    return first;
}

/* Of the replicas of a machine, the first sends for all (reduce.machine_first). */
static uint64_t replica_bytes(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t rank)
{
    const uint32_t replica = rank / plan->stage_count;
    uint32_t first = 0;
    if (plan->job->reduce.machine_first) {
        while (aq_job_machine(plan->job, first) != aq_job_machine(plan->job, replica))
            first++;
        if (first < replica) return 0;
    }
    return aq_plan_run_bytes(plan, costs, rank % plan->stage_count);
}

/* Bytes that a rank sends in the run, to its neighbours and to the other replicas. */
static uint64_t sent_by(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t rank)
{
    const uint32_t s = rank % plan->stage_count;
    const uint64_t whole = (plan->job->warmup_epochs ? plan->job->warmup_epochs : 1) * plan->steps_per_epoch;
    const uint64_t first = whole < plan->steps ? whole : plan->steps, later = plan->steps - first;
    uint64_t bytes = 0;
    if (s + 1 < plan->stage_count)
        bytes += first * plan->edges[s].step_forward_cold + later * plan->edges[s].step_forward_warm;
    if (s > 0) bytes += first * plan->edges[s - 1].step_backward_first + later * plan->edges[s - 1].step_backward;
    for (uint32_t e = s > 0 ? s - 1 : 0; e <= s && e + 1 < plan->stage_count; e++) /* split.mode: global */
        bytes += plan->steps * plan->edges[e].shape.summed * sizeof(float);
    bytes += plan->steps * aq_plan_tied_sent(plan, s);
    return bytes + replica_bytes(plan, costs, rank);
}

/* The steps of the optimizer's warm-up send more, and take as long as that takes. AQ_NOMEM. */
static enum aq_status run_seconds(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                  const struct aq_plan_prediction *prediction, struct aq_plan_totals *out)
{
    struct aq_plan_costs slow;
    struct aq_plan_prediction warmup = *prediction;
    const uint64_t warm = plan->replicas > 1 ? aq_plan_warmup_steps(plan) : 0;
    if (warm > 0) {
        aq_plan_costs_warmup(plan, costs, &slow);
        AQ_TRY(aq_plan_predict(plan, &slow, &warmup));
    }
    out->warmup_step_s = warmup.step_s;
    out->seconds = warmup.step_s * (double)warm + prediction->step_s * (double)(plan->steps - warm);
    return AQ_OK;
}

static uint64_t data_bytes(const struct aq_job *job)
{
    uint64_t bytes = 0;
    struct stat about;
    for (uint32_t i = 0; i < job->data.train_count; i++)
        if (stat(job->data.train[i], &about) == 0 && about.st_size > 0) bytes += (uint64_t)about.st_size;
    return bytes;
}

enum aq_status aq_plan_totals(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                              const struct aq_plan_prediction *prediction, struct aq_plan_totals *out)
{
    uint64_t sent[AQ_JOB_RANKS_MAX] = {0}, disk[AQ_JOB_RANKS_MAX] = {0};
    *out = (struct aq_plan_totals){.data_bytes = data_bytes(plan->job)};
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const struct aq_plan_stage *stage = &plan->stages[r % plan->stage_count];
        const uint32_t machine = machine_of(plan, r);
        const bool on_disk = stage->cache.slots > 0 && strcmp(stage->cache.kind, "memory") != 0;
        const uint64_t cache = on_disk ? stage->cache_bytes : 0;
        out->cache_bytes += cache;
        out->machines += machine == r;
        sent[machine] += sent_by(plan, costs, r);
        out->gradient_bytes += replica_bytes(plan, costs, r);
        disk[machine] += cache + aq_plan_checkpoint_bytes(plan, r % plan->stage_count);
        if (sent[machine] > out->sent_bytes) out->sent_bytes = sent[machine];
        if (disk[machine] > out->disk_bytes) out->disk_bytes = disk[machine];
    }
    if (!prediction) return AQ_OK;
    AQ_TRY(run_seconds(plan, costs, prediction, out));
    for (uint32_t s = 0; s < plan->stage_count; s++)
        out->compute_seconds += prediction->compute_s[s] * (double)plan->steps * plan->replicas;
    return AQ_OK;
}
