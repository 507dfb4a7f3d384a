/*
 * advice_slack.c -- bits that cost no time: what the link of each cut has to spare within a step.
 *
 * A step is as long as its busiest resource and the pipeline's filling make it; a link that is not on that way carries
 * more bits for nothing, and more bits are less error. The directions of all cuts are given bits in rounds, one (or
 * half a bit of an entropy coder) at a time, as long as the simulated step stays as long as it was. Bits end where a
 * manifest's do, and so does an entropy coder's rate. Coding is taken to last as long as before: its time follows the
 * values, not their bits. aq_plan_levels goes by the lists of levels of edge_guard.h instead, which a run can change.
 */
#include <string.h>

#include "advice_private.h"
#include "edge_guard.h"
#include "keys.h"

#define LONGER 1.01 /* times that differ by less are alike */

/* The plan with other codecs at its cuts: what aq_plan_predict reads. */
struct other {
    struct aq_job job;
    struct aq_job_edge job_edges[AQ_JOB_STAGES_MAX];
    struct aq_plan_edge edges[AQ_JOB_STAGES_MAX];
    struct aq_plan plan;
    const struct aq_job_edge *level_lists; /* whose codecs are the lowest levels; NULL: a bit at a time */
    uint32_t levels[2 * AQ_JOB_STAGES_MAX];
    uint64_t until_ns; /* 0: as long as it takes */
    bool hurried;      /* it took longer */
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
    other->level_lists = NULL;
    other->until_ns = 0;
    other->hurried = false;
    memset(other->levels, 0, sizeof other->levels);
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

/* The next level of direction w; false: w is at the top. */
static bool next_level(const struct other *other, uint32_t w, struct aq_codec_config *config)
{
    const struct aq_job_edge *edge = &other->level_lists[w / 2];
    struct aq_codec_config level_list[AQ_EDGE_LEVELS];
    if (other->levels[w] + 1 >= aq_edge_level_list(w % 2 == 0 ? &edge->forward : &edge->backward, level_list))
        return false;
    *config = level_list[other->levels[w] + 1];
    return true;
}

/* Directions that are tried together: first .. first + count of `ways`. */
struct group {
    uint32_t first, count;
};

/* One round: the directions that may have more, and the groups that are still to be tried. */
struct round {
    uint32_t ways[2 * AQ_JOB_STAGES_MAX], count;
    struct aq_codec_config before[2 * AQ_JOB_STAGES_MAX]; /* by direction */
    struct group groups[4 * AQ_JOB_STAGES_MAX];           /* a group of n is tried in 2n - 1 parts at most */
    bool refused[2 * AQ_JOB_STAGES_MAX];                  /* by direction */
};

static struct aq_codec_config *config_of(struct other *other, uint32_t w)
{
    struct aq_job_edge *edge = &other->job_edges[w / 2];
    return w % 2 == 0 ? &edge->forward : &edge->backward;
}

/* A group a little finer, if the step stays as long; else all of it as before. */
static enum aq_status raise(struct other *other, const struct aq_plan_costs *costs, const struct round *round,
                            struct group group, struct aq_plan_slack *out, bool *good)
{
    struct aq_plan_prediction prediction;
    for (uint32_t i = group.first; i < group.first + group.count; i++) {
        const uint32_t w = round->ways[i];
        if (other->level_lists)
            (void)next_level(other, w, config_of(other, w));
        else
            (void)more_bits(config_of(other, w));
        AQ_TRY(edge_again(other, w / 2));
    }
    AQ_TRY(aq_plan_predict(&other->plan, costs, &prediction));
    *good = prediction.step_s <= LONGER * out->before_s;
    if (*good) out->step_s = prediction.step_s;
    for (uint32_t i = group.first; i < group.first + group.count; i++) {
        const uint32_t w = round->ways[i];
        if (*good) {
            other->levels[w]++;
            continue;
        }
        *config_of(other, w) = round->before[w];
        AQ_TRY(edge_again(other, w / 2));
    }
    return AQ_OK;
}

/* The directions that have something finer, and were not refused in the round before. */
static void round_begin(struct other *other, struct round *round)
{
    const uint32_t ways = 2 * (other->plan.stage_count - 1);
    round->count = 0;
    for (uint32_t w = 0; w < ways; w++) {
        struct aq_codec_config config = *config_of(other, w);
        round->before[w] = config;
        if (round->refused[w] || other->edges[w / 2].shape.still) continue;
        if (other->level_lists ? next_level(other, w, &config) : more_bits(&config)) round->ways[round->count++] = w;
    }
}

/*
 * In rounds, so that the cuts share what there is: all directions a little finer at once, where that makes the step
 * longer each half, and so on down to single ones, the large groups first. A pipeline of 128 stages has 254 directions,
 * and a prediction takes up to a second there: whoever cannot wait (until_ns) has what was found by then.
 */
static enum aq_status raise_rounds(struct other *other, const struct aq_plan_costs *costs, struct round *round,
                                   struct aq_plan_slack *out)
{
    for (round_begin(other, round); round->count > 0; round_begin(other, round)) {
        uint32_t head = 0, tail = 0;
        round->groups[tail++] = (struct group){0, round->count};
        while (head < tail) {
            const struct group group = round->groups[head++];
            const uint32_t half = group.count / 2;
            bool good;
            other->hurried = other->until_ns > 0 && aq_clock_ns() > other->until_ns;
            if (other->hurried) return AQ_OK;
            AQ_TRY(raise(other, costs, round, group, out, &good));
            if (!good && group.count == 1) round->refused[round->ways[group.first]] = true;
            if (good || group.count == 1) continue;
            round->groups[tail++] = (struct group){group.first, half};
            round->groups[tail++] = (struct group){group.first + half, group.count - half};
        }
    }
    return AQ_OK;
}

static enum aq_status raise_all(struct other *other, const struct aq_plan_costs *costs, struct aq_plan_slack *out)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct round), &memory));
    memset(memory, 0, sizeof(struct round));
    const enum aq_status status = raise_rounds(other, costs, memory, out);
    aq_free(memory);
    return status;
}

enum aq_status aq_plan_slack(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_slack *out)
{
    struct aq_plan_prediction prediction;
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_plan_predict(plan, costs, &prediction));
    struct other *other;
    AQ_TRY(AQ_NEW(1, &other));
    other_init(plan, other);
    *out = (struct aq_plan_slack){.before_s = prediction.step_s, .step_s = prediction.step_s};
    AQ_TRY_GOTO(raise_all(other, costs, out), out);
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_job_edge *was = &plan->job->edges[e], *is = &other->job_edges[e];
        out->forward[e] = is->forward;
        out->backward[e] = is->backward;
        out->raised += aq_edge_level_bits(&was->forward) < aq_edge_level_bits(&is->forward);
        out->raised += aq_edge_level_bits(&was->backward) < aq_edge_level_bits(&is->backward);
    }
out:
    aq_free(other);
    return status;
}

enum aq_status aq_plan_levels(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_levels *out)
{
    struct aq_plan_prediction prediction;
    struct aq_plan_slack slack;
    AQ_TRY(aq_plan_predict(plan, costs, &prediction));
    struct other *other;
    AQ_TRY(AQ_NEW(1, &other));
    other_init(plan, other);
    other->level_lists = plan->job->edges;
    other->until_ns = aq_clock_after(AQ_PLAN_LEVELS_NS);
    slack = (struct aq_plan_slack){.before_s = prediction.step_s, .step_s = prediction.step_s};
    const enum aq_status status = raise_all(other, costs, &slack);
    if (status == AQ_OK) {
        memcpy(out->of, other->levels, sizeof out->of);
        out->before_s = slack.before_s;
        out->step_s = slack.step_s;
        out->hurried = other->hurried;
    }
    aq_free(other);
    return status;
}

/* {codec's key: bits}, where it is another one. */
static void add_direction(const struct aq_codec_config *was, const struct aq_codec_config *is, const char *direction,
                          struct aq_text *text)
{
    if (aq_edge_level_bits(was) == aq_edge_level_bits(is)) return;
    aq_text_add(text, ", %s: {%s: %.3g}", direction, aq_codec_about(is->kind)->varies ? "rate" : "bits",
                aq_edge_level_bits(is));
}

void aq_plan_slack_text(const struct aq_plan *plan, const struct aq_plan_slack *slack, struct aq_text *text)
{
    bool first = true;
    aq_text_add(text, "edges.list=[");
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_job_edge *was = &plan->job->edges[e];
        if (plan->edges[e].shape.still ||
            (aq_edge_level_bits(&was->forward) == aq_edge_level_bits(&slack->forward[e]) &&
             aq_edge_level_bits(&was->backward) == aq_edge_level_bits(&slack->backward[e])))
            continue;
        aq_text_add(text, "%s{edge: %u", first ? "" : ", ", e);
        add_direction(&was->forward, &slack->forward[e], "forward", text);
        add_direction(&was->backward, &slack->backward[e], "backward", text);
        aq_text_add(text, "}");
        first = false;
    }
    aq_text_add(text, "]");
}
