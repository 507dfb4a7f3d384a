/* report_start.c -- facts of the plan in the start line of metrics.jsonl; reports read them; see report.h. */
#include <stdio.h>

#include "control.h"
#include "plan.h"
#include "report.h"

/* Bits of a value: "4", "2.5"; or the error that it is coded to: " error 0.05". */
static void rate_text(const struct aq_codec_config *config, char out[24])
{
    const bool varies = aq_codec_about(config->kind)->varies;
    if (varies && config->error > 0.0f)
        snprintf(out, 24, " error %.3g", (double)config->error);
    else
        snprintf(out, 24, "%.3g", varies ? (double)config->rate : (double)config->bits);
}

void aq_report_codec(const struct aq_plan *plan, char *out, size_t bytes)
{
    static const char *const raw[] = {"?", "fp32", "fp16", "bf16"};
    if (plan->stage_count < 2) {
        snprintf(out, bytes, "none");
        return;
    }
    const struct aq_codec_config *forward = &plan->edges[0].shape.forward, *backward = &plan->edges[0].shape.backward;
    char back[32], rate[24];
    rate_text(backward, rate);
    if (aq_codec_about(backward->kind)->plain)
        snprintf(back, sizeof back, "bw %s", raw[backward->raw < 4 ? backward->raw : 0]);
    else
        snprintf(back, sizeof back, "bw%s", rate);
    rate_text(forward, rate);
    if (aq_codec_about(forward->kind)->plain && aq_codec_about(backward->kind)->plain && forward->raw == backward->raw)
        snprintf(out, bytes, "%s", raw[forward->raw < 4 ? forward->raw : 0]);
    else if (aq_codec_about(forward->kind)->plain)
        snprintf(out, bytes, "fw %s %s", raw[forward->raw < 4 ? forward->raw : 0], back);
    else
        snprintf(out, bytes, "%s fw%s %s", aq_codec_about(forward->kind)->label, rate, back);
}

/* Machines by number, in the order of the ranks that are first on them. */
static json_t *machines(const struct aq_plan *plan)
{
    uint32_t number[AQ_JOB_RANKS_MAX], count = 0;
    json_t *list = json_array();
    for (uint32_t r = 0; r < plan->ranks; r++) {
        uint32_t first = 0;
        while (first < r && !aq_job_same_host(plan->job, first, r))
            first++;
        number[r] = first < r ? number[first] : count++;
        json_array_append_new(list, json_integer(number[r]));
    }
    return list;
}

/* Of each rank, as the manifest has them: hosts, null: this machine; devices. */
static void hosts(const struct aq_plan *plan, json_t *line)
{
    json_t *list = json_array(), *devices = json_array();
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const struct aq_job_stage *stage = &plan->job->pipeline.stages[r];
        json_t *text = stage->host ? json_string(stage->host) : NULL;
        json_array_append_new(list, text ? text : json_null());
        text = stage->device ? json_string(stage->device) : NULL;
        json_array_append_new(devices, text ? text : json_null());
    }
    json_object_set_new(line, "hosts", list);
    json_object_set_new(line, "devices", devices);
}

void aq_report_start(const struct aq_plan *plan, json_t *line)
{
    const struct aq_job *job = plan->job;
    const struct aq_optimizer_config *config = &job->train.optimizer;
    const char *reduce = job->reduce.codec ? job->reduce.codec : config->reduce.kind;
    const uint32_t every = aq_plan_reduce_every(plan);
    char text[48];
    json_t *written = json_array();
    if (every > 1) {
        snprintf(text, sizeof text, "%s every %u", reduce, every);
        reduce = text;
    }
    for (uint32_t r = 0; r < plan->ranks; r++)
        json_array_append_new(written, json_integer((json_int_t)aq_plan_checkpoint_bytes(plan, r % plan->stage_count)));
    json_object_set_new(line, "optimizer", json_string(config->kind));
    json_object_set_new(line, "reduce", plan->replicas > 1 ? json_string(reduce) : json_null());
    json_object_set_new(line, "machines", machines(plan));
    hosts(plan, line);
    json_object_set_new(line, "checkpoint_planned", written);
    if (job->checkpoint.every.ns > 0)
        json_object_set_new(line, "checkpoint_seconds",
                            aq_control_number((double)job->checkpoint.every.ns * 1e-9));
}
