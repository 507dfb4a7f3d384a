/*
 * plan_slack.c -- bits that cost no time: what the link of each cut has to spare within a step.
 *
 * A step is as long as its busiest resource and the pipeline's filling make it; a link that is not on that way carries
 * more bits for nothing, and more bits are less error. The directions of all cuts are given bits in turns, one (or half
 * a bit of an entropy coder) at a time, as long as the simulated step stays as long as it was. Bits end where a
 * manifest's do, and so does an entropy coder's rate. Coding is taken to last as long as before: its time follows the
 * values, not their bits. aq_plan_rungs goes by the ladders of edge_guard.h instead, which a run can change.
 */
#include <string.h>

#include "edge_guard.h"
#include "keys.h"
#include "plan_private.h"

#define LONGER 1.01 /* times that differ by less are alike */

/* The plan with other codecs at its cuts: what aq_plan_predict reads. */
struct other {
    struct aq_job job;
    struct aq_job_edge job_edges[AQ_JOB_STAGES_MAX];
    struct aq_plan_edge edges[AQ_JOB_STAGES_MAX];
    struct aq_plan plan;
    const struct aq_job_edge *ladders; /* whose codecs are the lowest rungs; NULL: a bit at a time */
    uint32_t rungs[2 * AQ_JOB_STAGES_MAX];
};

static void other_init(const struct aq_plan *plan, struct other *other)
{
    const uint32_t edges = plan->stage_count - 1;
    memcpy(other->job_edges, plan->job->edges, edges * sizeof *other->job_edges);
    memcpy(other->edges, plan->edges, edges * sizeof *other->edges);
    other->job = *plan->job;
    other->job.edges = other->job_edges;
    other->plan = *plan;
    other->plan.job = &other->job;
    other->plan.edges = other->edges;
    other->ladders = NULL;
    memset(other->rungs, 0, sizeof other->rungs);
}

/* Edge e's bytes, by the codecs that it has now; slots and windows stay. */
static enum aq_status edge_again(struct other *other, uint32_t e)
{
    struct aq_plan_edge edge, *to = &other->edges[e];
    AQ_TRY(aq_plan_edge_at(&other->plan, e, other->plan.stages[e].layer_end, &edge));
    to->shape.forward = edge.shape.forward;
    to->shape.backward = edge.shape.backward;
    to->step_forward_warm = edge.step_forward_warm;
    to->step_forward_cold = edge.step_forward_cold;
    to->step_backward = edge.step_backward;
    to->step_backward_first = edge.step_backward_first;
    return AQ_OK;
}

/* One bit more, or half a bit of an entropy coder; false: the codec has none to give. */
static bool more_bits(struct aq_codec_config *config)
{
    const struct aq_codec_about *about = aq_codec_about(config->kind);
    if (about->grid) return ++config->bits <= aq_key_find(aq_keys_codec(), "bits")->max;
    if (config->error > 0) return false;
    config->rate += 0.5f;
    return about->varies && (double)config->rate <= aq_key_find(aq_keys_codec(), "rate")->max;
}

/* The next rung of direction w; false: there is none. */
static bool next_rung(const struct other *other, uint32_t w, struct aq_codec_config *config)
{
    const struct aq_job_edge *edge = &other->ladders[w / 2];
    struct aq_codec_config ladder[AQ_EDGE_RUNGS];
    if (other->rungs[w] + 1 >= aq_edge_ladder(w % 2 == 0 ? &edge->forward : &edge->backward, ladder)) return false;
    *config = ladder[other->rungs[w] + 1];
    return true;
}

/* One direction of edge e a little finer, if the step stays as long; *done: it does not, or there is no finer. */
static enum aq_status raise(struct other *other, const struct aq_plan_costs *costs, uint32_t w,
                            struct aq_plan_slack *out, bool *done)
{
    const uint32_t e = w / 2;
    struct aq_codec_config *config = w % 2 == 0 ? &other->job_edges[e].forward : &other->job_edges[e].backward;
    const struct aq_codec_config before = *config;
    struct aq_plan_prediction prediction;
    *done = !(other->ladders ? next_rung(other, w, config) : more_bits(config));
    if (!*done) {
        AQ_TRY(edge_again(other, e));
        AQ_TRY(aq_plan_predict(&other->plan, costs, &prediction));
        *done = prediction.step_s > LONGER * out->before_s;
        if (!*done) out->step_s = prediction.step_s;
    }
    if (!*done) {
        other->rungs[w]++;
        return AQ_OK;
    }
    *config = before;
    return edge_again(other, e);
}

/* In turns, so that the cuts share what there is. */
static enum aq_status raise_all(struct other *other, const struct aq_plan_costs *costs, struct aq_plan_slack *out)
{
    const uint32_t ways = 2 * (other->plan.stage_count - 1);
    bool done[2 * AQ_JOB_STAGES_MAX] = {false};
    for (bool any = true; any;) {
        any = false;
        for (uint32_t w = 0; w < ways; w++) {
            if (done[w] || other->edges[w / 2].shape.still) continue;
            AQ_TRY(raise(other, costs, w, out, &done[w]));
            any = any || !done[w];
        }
    }
    return AQ_OK;
}

enum aq_status aq_plan_slack(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_slack *out)
{
    struct aq_plan_prediction prediction;
    void *memory;
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_plan_predict(plan, costs, &prediction));
    AQ_TRY(aq_alloc(sizeof(struct other), &memory));
    struct other *other = memory;
    other_init(plan, other);
    *out = (struct aq_plan_slack){.before_s = prediction.step_s, .step_s = prediction.step_s};
    AQ_TRY_GOTO(raise_all(other, costs, out), out);
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_job_edge *was = &plan->job->edges[e], *is = &other->job_edges[e];
        out->forward[e] = is->forward;
        out->backward[e] = is->backward;
        out->raised += aq_edge_rung_bits(&was->forward) < aq_edge_rung_bits(&is->forward);
        out->raised += aq_edge_rung_bits(&was->backward) < aq_edge_rung_bits(&is->backward);
    }
out:
    aq_free(other);
    return status;
}

enum aq_status aq_plan_rungs(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_rungs *out)
{
    struct aq_plan_prediction prediction;
    struct aq_plan_slack slack;
    void *memory;
    AQ_TRY(aq_plan_predict(plan, costs, &prediction));
    AQ_TRY(aq_alloc(sizeof(struct other), &memory));
    struct other *other = memory;
    other_init(plan, other);
    other->ladders = plan->job->edges;
    slack = (struct aq_plan_slack){.before_s = prediction.step_s, .step_s = prediction.step_s};
    const enum aq_status status = raise_all(other, costs, &slack);
    if (status == AQ_OK) {
        memcpy(out->of, other->rungs, sizeof out->of);
        out->before_s = slack.before_s;
        out->step_s = slack.step_s;
    }
    aq_free(other);
    return status;
}

/* {codec's key: bits}, where it is another one. */
static void add_direction(const struct aq_codec_config *was, const struct aq_codec_config *is, const char *direction,
                          struct aq_text *text)
{
    if (aq_edge_rung_bits(was) == aq_edge_rung_bits(is)) return;
    aq_text_add(text, ", %s: {%s: %.3g}", direction, aq_codec_about(is->kind)->varies ? "rate" : "bits",
                aq_edge_rung_bits(is));
}

void aq_plan_slack_text(const struct aq_plan *plan, const struct aq_plan_slack *slack, struct aq_text *text)
{
    bool first = true;
    aq_text_add(text, "edges.list=[");
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_job_edge *was = &plan->job->edges[e];
        if (plan->edges[e].shape.still || (aq_edge_rung_bits(&was->forward) == aq_edge_rung_bits(&slack->forward[e]) &&
                                           aq_edge_rung_bits(&was->backward) == aq_edge_rung_bits(&slack->backward[e])))
            continue;
        aq_text_add(text, "%s{edge: %u", first ? "" : ", ", e);
        add_direction(&was->forward, &slack->forward[e], "forward", text);
        add_direction(&was->backward, &slack->backward[e], "backward", text);
        aq_text_add(text, "}");
        first = false;
    }
    aq_text_add(text, "]");
}
