/*
 * advice_predict.c -- how long a step takes, and what no schedule can beat.
 */
#include <math.h>
#include <string.h>

#include "advice_private.h"

double aq_plan_idle(const struct aq_plan_prediction *prediction, uint32_t s)
{
    return fmax(0, 1 - prediction->compute_s[s] / prediction->step_s);
}

enum aq_status aq_plan_predict(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                               struct aq_plan_prediction *out)
{
    struct aq_plan_scene scene;
    struct aq_plan_costs seen;
    struct aq_plan_simulated simulated;
    struct aq_plan_prediction prediction = {0};
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        scene.programs[s] = plan->stages[s].program;
        scene.windows[s] = plan->edges[s].window;
    }
    AQ_TRY(aq_plan_simulate(plan, costs, &scene, &simulated));
    prediction.step_s = simulated.step_s;
    memcpy(prediction.forward_s, simulated.forward_s, sizeof simulated.forward_s);
    memcpy(prediction.backward_s, simulated.backward_s, sizeof simulated.backward_s);
    aq_plan_costs_cached(plan, costs, &seen);
    aq_plan_bound(plan, &seen, &prediction);
    *out = prediction;
    return AQ_OK;
}
