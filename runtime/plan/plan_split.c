/*
 * plan_split.c -- split learning: what no client could start is refused here, before a server waits for it; and the
 * epsilon of a job (plan_epsilon.h).
 */
#include <math.h>
#include <string.h>

#include "epsilon.h"
#include "plan_epsilon.h"
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
        const bool varies = aq_codec_about(shape->forward.kind)->varies || shape->forward.keyframe == AQ_PRECISION_EC;
        if (varies || aq_codec_about(shape->backward.kind)->varies)
            return aq_fail(AQ_INVAL, "manifest",
                           "%s: split.pad: the codec of edges.%s makes bodies whose size follows their values, and so "
                           "the length of a text; write edges: {forward: {codec: aqsgd, bits: 4}, backward: {codec: "
                           "directq, bits: 8}}, or codec: raw",
                           place, varies ? "forward" : "backward");
    }
    return AQ_OK;
}

/* ---- epsilon ---- */

static bool gradients_leave(const struct aq_plan *plan)
{
    return plan->job->split.labels == AQ_SPLIT_LABELS_CLIENT;
}

bool aq_plan_epsilon_counts(const struct aq_plan *plan)
{
    const struct aq_job_privacy *privacy = &plan->job->split.privacy;
    if (plan->job->split.clients == 0 || plan->stage_count < 2) return false;
    return privacy->noise > 0 && (!gradients_leave(plan) || privacy->gradient_noise > 0);
}

/* A stage with statistics has a batch norm. */
static bool mixes(const struct aq_stage_size *size)
{
    return size->buffers > size->copied;
}

double aq_plan_epsilon_visit(const struct aq_plan *plan, bool gradients, bool trains, uint32_t samples)
{
    const struct aq_job_privacy *privacy = &plan->job->split.privacy;
    const struct aq_stage_size *size = &plan->stages[gradients ? plan->stage_count - 1 : 0].size;
    if (gradients && !(trains && gradients_leave(plan))) return 0;
    return aq_epsilon_visit(gradients ? (double)privacy->gradient_noise : (double)privacy->noise,
                            trains && mixes(size) ? samples : 1);
}

uint64_t aq_plan_epsilon_data(const struct aq_plan *plan, bool heldout)
{
    const uint64_t digest = heldout ? plan->facts.heldout_digest : plan->facts.train_digest;
    const uint32_t places = aq_plan_places(plan);
    if (strcmp(plan->job->data.kind, "text") != 0) return digest; /* of samples, not of one row of tokens */
    return aq_digest_seeded(&places, sizeof places, digest);
}

uint64_t aq_plan_epsilon_shared(const struct aq_plan *plan)
{
    const struct aq_job_facts *facts = &plan->facts;
    const uint64_t skip = plan->job->data.skip;
    if (aq_plan_epsilon_data(plan, false) != aq_plan_epsilon_data(plan, true) || facts->heldout_samples <= skip)
        return 0;
    const uint64_t count = facts->heldout_samples - skip;
    return count < facts->train_samples ? count : facts->train_samples;
}

bool aq_plan_epsilon_sends(const struct aq_plan *plan, uint64_t step)
{
    return !plan->edges[0].shape.still || step < plan->steps_per_epoch;
}

double aq_plan_epsilon_most(const struct aq_plan *plan)
{
    const struct aq_job_privacy *privacy = &plan->job->split.privacy;
    if (!(privacy->epsilon_max > 0)) return (double)INFINITY;
    const double mu = aq_epsilon_mu_max((double)privacy->epsilon_max, (double)privacy->delta);
    return mu * mu;
}

bool aq_plan_evaluates_coded(const struct aq_plan *plan)
{
    bool codes = false;
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_codec_config *forward = &plan->edges[e].shape.forward;
        codes = codes || !aq_codec_about(forward->kind)->plain || forward->raw != AQ_PRECISION_FP32;
    }
    return codes;
}

uint64_t aq_plan_epsilon_passes(const struct aq_plan *plan, uint64_t from, uint64_t to, bool last)
{
    const uint64_t every = aq_job_every_steps(&plan->job->train.evaluate_every, plan->steps_per_epoch);
    if (plan->facts.heldout_samples == 0 || to <= from) return 0;
    const bool due = every > 0 && to % every == 0, final = due || last;
    return (every > 0 ? to / every - from / every : 0) + (last && !due) + (final && aq_plan_evaluates_coded(plan));
}

static bool leaves(const struct aq_stage_size *size)
{
    return size->parameters > 0 || size->buffers > size->copied;
}

void aq_plan_epsilon_job(const struct aq_plan *plan, struct aq_plan_epsilon_job *out)
{
    const struct aq_job_split *split = &plan->job->split;
    const double delta = (double)split->privacy.delta, most = aq_plan_epsilon_most(plan);
    const uint32_t B = plan->stages[0].config.B;
    const double visit = aq_plan_epsilon_visit(plan, false, true, B), back = aq_plan_epsilon_visit(plan, true, true, B);
    const double pass = aq_plan_epsilon_visit(plan, false, false, B);
    const uint64_t turn = split->epochs * plan->steps_per_epoch;
    const bool shared = aq_plan_epsilon_shared(plan) > 0;
    double training = 0, heldout = 0; /* mu^2 */
    *out = (struct aq_plan_epsilon_job){.ends_leave = leaves(&plan->stages[0].size)};
    if (gradients_leave(plan)) out->ends_leave |= leaves(&plan->stages[plan->stage_count - 1].size);
    for (uint32_t round = 1; round <= split->rounds; round++) {
        out->visits += split->epochs;
        out->passes += aq_plan_epsilon_passes(plan, (round - 1) * turn, round * turn, round == split->rounds);
        training = (double)out->visits * back + (plan->edges[0].shape.still ? 1 : (double)out->visits) * visit;
        heldout = (double)out->passes * pass;
        if (shared) heldout = training += heldout;
        const double larger = training > heldout ? training : heldout;
        if (round == 1) out->first = aq_epsilon(sqrt(larger), delta);
        if (larger > most && out->stops == 0) out->stops = round;
    }
    out->training = aq_epsilon(sqrt(training), delta);
    out->heldout = aq_epsilon(sqrt(heldout), delta);
}

/* A limit that cannot be counted, or that the first round would pass. */
static enum aq_status epsilon_check(const struct aq_plan *plan)
{
    static const char *const key = "split.privacy.epsilon_max";
    const struct aq_job_privacy *privacy = &plan->job->split.privacy;
    struct aq_plan_epsilon_job job;
    char place[PLACE_BYTES];
    if (!(privacy->epsilon_max > 0)) return AQ_OK;
    aq_job_place(plan->job, key, place, sizeof place);
    if (!aq_plan_epsilon_counts(plan))
        return aq_fail(AQ_INVAL, "manifest",
                       "%s: %s: the gradients at a client's second cut have no noise, so there is no epsilon: set "
                       "split.privacy.gradient_clip and .gradient_noise, too, or split.labels: server",
                       place, key);
    aq_plan_epsilon_job(plan, &job);
    if (job.stops != 1) return AQ_OK;
    return aq_fail(AQ_INVAL, "manifest",
                   "%s: %s: %g is passed in the first round, after which epsilon would be %.4g (delta %g): set more "
                   "noise (split.privacy.noise%s), fewer split.epochs, or fewer evaluations (train.evaluate_every)",
                   place, key, (double)privacy->epsilon_max, job.first, (double)privacy->delta,
                   gradients_leave(plan) ? ", .gradient_noise" : "");
}

enum aq_status aq_plan_split_check(const struct aq_plan *plan, bool given)
{
    if (plan->job->split.clients == 0 || plan->stage_count < 2) return AQ_OK;
    AQ_TRY(shared_check(plan));
    AQ_TRY(pad_check(plan));
    AQ_TRY(parts_check(plan));
    if (given) AQ_TRY(epsilon_check(plan));
    return correlation_check(plan);
}
