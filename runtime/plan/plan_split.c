/* plan_split.c -- split learning: what no client could start is refused here, before a server waits for it. */
#include "plan_private.h"

enum { PLACE_BYTES = 512 };

/* The gradients of a tensor that both ends hold go through the server as they are. */
static enum aq_status shared_check(const struct aq_plan *plan)
{
    const struct aq_job_privacy *privacy = &plan->job->split.privacy;
    const char *key = privacy->clip > 0 ? "split.privacy.clip" : "split.privacy.gradient_clip";
    char place[PLACE_BYTES];
    if (plan->stages[0].size.shared == 0 || !(privacy->clip > 0 || privacy->gradient_clip > 0)) return AQ_OK;
    aq_job_place(plan->job, key, place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest",
                   "%s: %s: not possible with a tensor that the first and the last stage share: its gradients pass the "
                   "server unclipped; set model.tied: untied",
                   place, key);
}

/* SplitFed v2 averages the ends and not the middle, so that copies of one tensor in both would part. */
static enum aq_status parts_check(const struct aq_plan *plan)
{
    char place[PLACE_BYTES];
    uint32_t copies = 0;
    for (uint32_t s = 0; s < plan->stage_count; s++)
        copies += plan->stages[s].size.shared > 0;
    if (copies < 2 || plan->job->split.mode != AQ_SPLIT_FED2) return AQ_OK;
    aq_job_place(plan->job, "split.mode", place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest",
                   "%s: split.mode: splitfed2 averages the ends, and not the middle, and both have a copy of one "
                   "tensor (model.tied: exact); write splitfed1, or model.tied: untied",
                   place);
}

/* The distance correlation needs parameters in the first stage, which use its gradient. */
static enum aq_status correlation_check(const struct aq_plan *plan)
{
    static const char *const key = "split.privacy.distance_correlation";
    char place[PLACE_BYTES];
    if (!(plan->job->split.privacy.distance_correlation > 0) || plan->stages[0].size.parameters > 0) return AQ_OK;
    aq_job_place(plan->job, key, place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest",
                   "%s: %s: nothing trains before the first cut (train.freeze, lora.rank, or layers without weights), "
                   "so no loss can change what leaves there",
                   place, key);
}

/* The coded padding of one text must be as large as the text of another. */
static enum aq_status pad_check(const struct aq_plan *plan)
{
    char place[PLACE_BYTES];
    if (!plan->job->split.pad) return AQ_OK;
    aq_job_place(plan->job, "split.pad", place, sizeof place);
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_edge_shape *shape = &plan->edges[e].shape;
        const bool varies =
            aq_codec_about(shape->forward.kind)->varies || shape->forward.keyframe == AQ_PRECISION_EC;
        if (varies || aq_codec_about(shape->backward.kind)->varies)
            return aq_fail(AQ_INVAL, "manifest",
                           "%s: split.pad: the codec of edges.%s makes bodies whose size follows their values, and so "
                           "the length of a text; write edges: {forward: {codec: aqsgd, bits: 4}, backward: {codec: "
                           "directq, bits: 8}}, or codec: raw",
                           place, varies ? "forward" : "backward");
    }
    return AQ_OK;
}

enum aq_status aq_plan_split_check(const struct aq_plan *plan)
{
    if (plan->job->split.clients == 0 || plan->stage_count < 2) return AQ_OK;
    AQ_TRY(shared_check(plan));
    AQ_TRY(pad_check(plan));
    AQ_TRY(parts_check(plan));
    return correlation_check(plan);
}
