/*
 * plan_json.c -- a plan as one JSON object: `aqpipe plan --json`. Numbers are in bytes and seconds.
 */
#include <stdio.h>

#include "keys.h"
#include "plan_private.h"

static void json_text(const char *text, struct aq_text *out)
{
    aq_text_bytes(out, "\"", 1);
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\')
            aq_text_add(out, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f)
            aq_text_add(out, "\\u%04x", *at);
        else
            aq_text_bytes(out, (const char *)at, 1);
    }
    aq_text_bytes(out, "\"", 1);
}

/* What a stage is expected to choose, and bytes in that; null: unknown, or (no key) nothing is chosen. */
static void json_choice(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s, struct aq_text *text)
{
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t choice = costs ? costs->choice[s] : AQ_CHOICE_NONE;
    (void)aq_grad_candidates(&plan->job->train.optimizer, candidates);
    if (!plan->job->train.optimizer.reduce_automatic || plan->replicas == 1) {
        aq_text_add(text, "\"step_bytes_gradient\": %llu, ", (unsigned long long)aq_plan_reduce_bytes(plan, s));
    } else if (choice == AQ_CHOICE_NONE) {
        aq_text_add(text, "\"step_bytes_gradient\": null, \"reduce_codec\": null, ");
    } else {
        aq_text_add(text, "\"step_bytes_gradient\": %llu, \"reduce_codec\": ",
                    (unsigned long long)aq_plan_coded_bytes(plan, s, &candidates[choice].config));
        json_text(candidates[choice].name, text);
        aq_text_add(text, ", ");
    }
}

static void json_stage(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s, struct aq_text *text)
{
    const struct aq_plan_stage *stage = &plan->stages[s];
    aq_text_add(text,
                "%s{\"stage\": %u, \"layer_first\": %u, \"layer_last\": %u, \"parameters\": %llu, \"slots\": %u, ",
                s ? ", " : "", s, stage->layer_first, stage->layer_end - 1, (unsigned long long)stage->size.parameters,
                stage->config.slots);
    aq_text_add(text, "\"memory\": {");
    for (uint32_t i = 0; i < stage->line_count; i++) {
        aq_text_add(text, "%s", i ? ", " : "");
        json_text(stage->lines[i].name, text);
        aq_text_add(text, ": %llu", (unsigned long long)stage->lines[i].bytes);
    }
    aq_text_add(text, "}, \"memory_bytes\": %llu, \"cache_bytes\": %llu, ", (unsigned long long)stage->memory_bytes,
                (unsigned long long)stage->cache_bytes);
    json_choice(plan, costs, s, text);
    aq_text_add(text, "\"flops_forward\": %.17g, \"flops_backward\": %.17g}", stage->size.flops_forward,
                stage->size.flops_backward);
}

static const char *carrier_name(enum aq_carrier carrier)
{
    return carrier == AQ_CARRIER_LINKS ? "links" : carrier == AQ_CARRIER_NCCL ? "nccl" : "auto";
}

static void json_edge(const struct aq_plan *plan, uint32_t e, struct aq_text *text)
{
    const struct aq_plan_edge *edge = &plan->edges[e];
    aq_text_add(text,
                "%s{\"edge\": %u, \"step_bytes_forward_first\": %llu, \"step_bytes_forward\": %llu, "
                "\"step_bytes_backward_first\": %llu, \"step_bytes_backward\": %llu, \"message_bytes\": %llu, "
                "\"transport\": \"%s\"}",
                e ? ", " : "", e, (unsigned long long)edge->step_forward_cold,
                (unsigned long long)edge->step_forward_warm, (unsigned long long)edge->step_backward_first,
                (unsigned long long)edge->step_backward, (unsigned long long)edge->size.message_bytes,
                carrier_name(aq_plan_edge_carrier(plan, e)));
}

static void json_numbers(const char *name, const double *values, uint32_t count, struct aq_text *text)
{
    aq_text_add(text, ", \"%s\": [", name);
    for (uint32_t i = 0; i < count; i++)
        aq_text_add(text, "%s%.9g", i ? ", " : "", values[i]);
    aq_text_add(text, "]");
}

static void json_time(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                      const struct aq_plan_prediction *prediction, struct aq_text *text)
{
    aq_text_add(text, ", \"time\": {\"origin\": ");
    json_text(costs->origin, text);
    aq_text_add(text,
                ", \"cores\": %u, \"rate_mbps\": %.9g, \"step_s\": %.9g, \"bound_s\": %.9g, \"binds\": ", costs->cores,
                costs->rate_mbps, prediction->step_s, prediction->bound_s);
    json_text(prediction->binds, text);
    json_numbers("forward_s", costs->forward_s, plan->stage_count, text);
    json_numbers("backward_s", costs->backward_s, plan->stage_count, text);
    json_numbers("stage_s", prediction->compute_s, plan->stage_count, text);
    json_numbers("link_forward_s", prediction->forward_s, plan->stage_count - 1, text);
    json_numbers("link_backward_s", prediction->backward_s, plan->stage_count - 1, text);
    aq_text_add(text, ", \"packed\": %s", costs->packed ? "true" : "false");
    json_numbers("packed_forward", costs->forward_share, plan->stage_count - 1, text);
    json_numbers("packed_backward", costs->backward_share, plan->stage_count - 1, text);
    if (plan->replicas > 1) {
        const uint32_t c = costs->choice[0] == AQ_CHOICE_NONE ? 0 : costs->choice[0];
        json_numbers("reduce_links_s", costs->reduce_s, plan->stage_count, text);
        json_numbers("reduce_compute_s", costs->pack_s, plan->stage_count, text);
        json_numbers("packed_gradient", &costs->value_share[c], 1, text);
    }
    aq_text_add(text, "}");
}

enum aq_status aq_plan_print_json(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                  const struct aq_plan_prediction *prediction, struct aq_text *text)
{
    aq_text_add(text, "{\"job\": ");
    json_text(plan->job->name, text);
    aq_text_add(text,
                ", \"plan_hash\": \"%016llx\", \"job_digest\": \"%016llx\", \"parameters\": %llu, "
                "\"train_samples\": %llu, \"samples_dropped\": %llu, "
                "\"heldout_samples\": %llu, \"steps_per_epoch\": %llu, \"steps\": %llu, "
                "\"replicas\": %u, \"reduce_transport\": \"%s\", \"micro_batches\": %u, \"stages\": [",
                (unsigned long long)plan->hash, (unsigned long long)plan->job_digest,
                (unsigned long long)plan->parameters, (unsigned long long)plan->facts.train_samples,
                (unsigned long long)plan->samples_dropped,
                (unsigned long long)plan->facts.heldout_samples, (unsigned long long)plan->steps_per_epoch,
                (unsigned long long)plan->steps, plan->replicas, carrier_name(aq_plan_reduce_carrier(plan)),
                plan->micro_batches);
    for (uint32_t s = 0; s < plan->stage_count; s++)
        json_stage(plan, costs, s, text);
    aq_text_add(text, "], \"edges\": [");
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        json_edge(plan, e, text);
    aq_text_add(text, "]");
    if (costs && prediction)
        json_time(plan, costs, prediction, text);
    else
        aq_text_add(text, ", \"time\": null");
    aq_text_add(text, "}\n");
    return text->status;
}
