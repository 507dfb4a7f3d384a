/*
 * advice_judge.c -- a plan's cut compared with the best one that is known, and both in words.
 *
 * Steps are simulated from one table of layers for both cuts, so that they differ only in the cut; times measured for
 * whole stages are not used.
 */
#include <stdio.h>
#include <string.h>

#include "advice_private.h"

#define FASTER 1.01 /* times that differ by less are alike */

enum { KIND_BYTES = 64 };

void aq_plan_cut_text(const struct aq_plan *plan, const struct aq_plan_cut *cut, struct aq_text *text)
{
    for (uint32_t s = 0; s < plan->stage_count; s++)
        aq_text_add(text, "%s%u-%u", s ? " | " : "", s ? cut->end[s - 1] : 0, cut->end[s] - 1);
}

void aq_plan_layers_text(const struct aq_plan *plan, const struct aq_plan_layers *layers, struct aq_text *text)
{
    for (uint32_t l = 0; l < layers->layers;) {
        const struct aq_plan_layer_cost *cost = &layers->of[l];
        char kind[KIND_BYTES], other[KIND_BYTES], number[AQ_TEXT_NUMBER];
        uint32_t count = 1;
        aq_plan_layer_kind(&plan->model, l, kind, sizeof kind);
        for (; l + count < layers->layers; count++) {
            aq_plan_layer_kind(&plan->model, l + count, other, sizeof other);
            if (strcmp(kind, other) != 0 || cost[count].forward_s != cost->forward_s) break;
        }
        aq_text_add(text, l ? ", " : "");
        if (count > 1) aq_text_add(text, "%u x ", count);
        aq_text_add(text, "%s %s", kind, aq_text_seconds(cost->forward_s + cost->backward_s, number));
        l += count;
    }
}

/* Costs of a plan by the table, on machines of its stages' speeds. Costs that are not in the table stay. */
static void costs_by_layers(const struct aq_plan *plan, const struct aq_plan_layers *layers,
                            struct aq_plan_costs *costs)
{
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct aq_plan_stage *stage = &plan->stages[s];
        const struct aq_plan_layer_cost *of = &layers->of[(size_t)s * (layers->layers + 1)];
        double forward = 0, backward = 0, step = 0;
        for (uint32_t l = stage->layer_first; l < stage->layer_end; l++) {
            forward += of[l].forward_s;
            backward += of[l].backward_s;
            step += of[l].step_s;
        }
        costs->forward_s[s] = forward;
        aq_plan_costs_backward(plan, s, backward, costs);
        costs->step_s[s] = step;
        if (s > 0) costs->receive_s[s - 1] = costs->send_back_s[s - 1] = of[stage->layer_first].begins_s / 2;
        if (s + 1 < plan->stage_count) costs->send_s[s] = costs->receive_back_s[s] = of[stage->layer_end].ends_s / 2;
    }
    aq_plan_costs_speed(plan, costs);
}

static enum aq_status step_of(const struct aq_plan *plan, const struct aq_plan_costs *like, double *step_s)
{
    struct aq_plan_costs costs = *like;
    struct aq_plan_prediction prediction;
    costs_by_layers(plan, like->layers, &costs);
    aq_plan_costs_reduce(plan, &costs);
    AQ_TRY(aq_plan_predict(plan, &costs, &prediction));
    *step_s = prediction.step_s;
    return AQ_OK;
}

enum aq_status aq_plan_judge(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_judged *out)
{
    const struct aq_plan_layers *layers = costs->layers;
    const struct aq_plan_cut here = aq_plan_cut_of(plan);
    struct aq_plan *other;
    *out = (struct aq_plan_judged){.best = true};
    AQ_TRY(aq_plan_balance(plan, layers, &out->cut));
    AQ_TRY(aq_plan_cut_times(plan, layers, &here, &out->here));
    AQ_TRY(aq_plan_cut_times(plan, layers, &out->cut, &out->then));
    AQ_TRY(step_of(plan, costs, &out->step_here_s));
    out->step_then_s = out->step_here_s;
    if (out->here.slowest_s > FASTER * out->then.slowest_s) {
        AQ_TRY(aq_plan_open_cut(plan, &out->cut, &other));
        const enum aq_status status = step_of(other, costs, &out->step_then_s);
        aq_plan_close(other);
        AQ_TRY(status);
        out->best = out->step_then_s * FASTER >= out->step_here_s; /* as fast in a step that fills and drains */
    }
    if (!out->best) return AQ_OK;
    out->cut = here;
    out->then = out->here;
    out->step_then_s = out->step_here_s;
    return AQ_OK;
}
