/* plan_files.c -- sizes of the checkpoint files that go over links: copies at a neighbour, and those for replicas. */
#include "mirror.h"
#include "plan.h"

uint64_t aq_plan_file_bytes_max(const struct aq_plan *plan, uint32_t s)
{
    const struct aq_plan_stage *stage = &plan->stages[s];
    const uint64_t parameters = stage->size.parameters, more = stage->size.buffers;
    const uint64_t values = (1 + plan->job->train.staleness) * parameters + more;
    return aq_mirror_file_bytes(values * sizeof(float) + aq_plan_optimizer_bytes(plan, parameters),
                                stage->layer_end - stage->layer_first);
}

void aq_plan_mirror_shape(const struct aq_plan *plan, uint32_t rank, struct aq_mirror_shape *out)
{
    const uint32_t stages = plan->stage_count, position = rank % stages;
    *out = (struct aq_mirror_shape){
        .resume_hash = plan->resume_hash, .rank = rank, .stages = stages, .rate_mbps = plan->job->link.rate_mbps};
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t s = position + i - 1; /* before the first stage: beyond the last */
        if (s >= stages) continue;
        out->file_bytes_max[i] = aq_plan_file_bytes_max(plan, s);
    }
    if (position > 0) out->body_bytes_max[0] = (uint32_t)plan->edges[position - 1].size.body_bytes_max;
    if (position + 1 < stages) out->body_bytes_max[1] = (uint32_t)plan->edges[position].size.body_bytes_max;
}
