/* report_start.c -- facts of the plan in the start line of metrics.jsonl; reports read them; see report.h. */
#include "control.h"
#include "plan.h"
#include "report.h"

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
