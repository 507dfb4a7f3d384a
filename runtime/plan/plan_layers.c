/*
 * plan_layers.c -- what each layer of a model takes, as a table; by flops and bytes where nothing was measured.
 */
#include <ctype.h>

#include "aqsgd/grad.h"
#include "plan_private.h"

/* The same as in plan_costs.c; a cut depends on ratios, so that the value only matters against a link's seconds. */
static const double flops_s = 100e9;

/* Of the passes over a cut's values: as aq_plan_costs_assumed. */
enum { BEGINS_PASSES = 2, ENDS_PASSES = 3 };

static enum aq_status cuts_fill(const struct aq_plan *plan, struct aq_plan_layers *layers)
{
    struct aq_plan_edge edge = {0};
    uint32_t known = 0;
    for (uint32_t s = 0; s + 1 < plan->stage_count; s++)
        for (uint32_t l = 1; l < layers->layers; l++) {
            struct aq_plan_layer_cost *cost = &layers->of[(size_t)s * (layers->layers + 1) + l];
            AQ_TRY(aq_plan_edge_next(plan, known, s, l, &edge));
            known = s;
            cost->forward_bytes = (double)edge.step_forward_warm / plan->micro_batches;
            cost->backward_bytes = (double)edge.step_backward / plan->micro_batches;
        }
    return AQ_OK;
}

enum aq_status aq_plan_layers_open(const struct aq_plan *plan, const char *origin, struct aq_plan_layers **out)
{
    const size_t cells = (size_t)plan->stage_count * (plan->layers + 1);
    struct aq_plan_layers *layers;
    void *memory = NULL;
    AQ_TRY(aq_alloc(sizeof *layers + cells * sizeof *layers->of, &memory));
    layers = memory;
    *layers = (struct aq_plan_layers){.origin = origin, .stages = plan->stage_count, .layers = plan->layers};
    layers->of = (struct aq_plan_layer_cost *)(layers + 1);
    const enum aq_status status = cuts_fill(plan, layers);
    if (status == AQ_OK)
        *out = layers;
    else
        aq_free(memory);
    return status;
}

void aq_plan_layer_kind(const struct aq_model_config *model, uint32_t layer, char *text, size_t bytes)
{
    char name[AQ_PLAN_NAME_MAX];
    size_t at = 0;
    aq_model_layer_name(model, layer, name, sizeof name);
    for (const char *c = name; *c && at + 1 < bytes; c++)
        if (!isdigit((unsigned char)*c)) text[at++] = *c;
    while (at > 0 && text[at - 1] == ' ')
        at--;
    text[at] = 0;
}

void aq_plan_layers_close(struct aq_plan_layers *layers)
{
    aq_free(layers);
}

enum aq_status aq_plan_layers_assumed(const struct aq_plan *plan, struct aq_plan_layers **out)
{
    const uint32_t state = aq_optimizer_state_floats(&plan->job->train.optimizer), L = plan->layers;
    struct aq_plan_layers *layers;
    AQ_TRY(aq_plan_layers_open(plan, "flops and bytes", &layers));
    enum aq_status status = AQ_OK;
    for (uint32_t l = 0; l < L && status == AQ_OK; l++) {
        struct aq_stage_size size;
        status = aq_plan_layer_size(plan->job, &plan->model, l, &size);
        for (uint32_t s = 0; s < plan->stage_count && status == AQ_OK; s++) {
            struct aq_plan_layer_cost *cost = &layers->of[(size_t)s * (L + 1) + l];
            cost->forward_s = size.flops_forward / flops_s;
            cost->backward_s = size.flops_backward / flops_s;
            cost->step_s = aq_plan_stream_s((double)(2 + 2 * state + 1) * (double)size.parameters * sizeof(float));
            cost->begins_s = aq_plan_stream_s(BEGINS_PASSES * (double)size.x_bytes);
            cost->ends_s = aq_plan_stream_s(ENDS_PASSES * (double)size.x_bytes);
        }
    }
    if (status == AQ_OK)
        *out = layers;
    else
        aq_plan_layers_close(layers);
    return status;
}

void aq_plan_layers_as(struct aq_plan_layers *layers, const struct aq_plan_costs *costs, double gflops)
{
    for (uint32_t s = 0; s < layers->stages; s++) {
        const uint32_t threads = costs->threads[s] < costs->cores ? costs->threads[s] : costs->cores;
        const double flops = gflops * 1e9 / flops_s * threads;
        for (uint32_t l = 0; l <= layers->layers; l++) {
            struct aq_plan_layer_cost *cost = &layers->of[(size_t)s * (layers->layers + 1) + l];
            cost->forward_s /= flops;
            cost->backward_s /= flops;
            cost->step_s /= threads;
            cost->begins_s /= threads;
            cost->ends_s /= threads;
        }
    }
}
