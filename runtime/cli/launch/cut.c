/*
 * cut.c -- see the header.
 */
#include "cut.h"

#include <string.h>

#include "run_folder.h"

#define FASTER 1.01 /* times that differ by less are alike */

static void no_line(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static void tell_measured(const struct aq_plan *plan, const struct aq_plan_layers *layers, struct aq_text *told)
{
    aq_text_add(told, "layers %s on %s", layers->measured ? "measured" : "known", layers->device);
    if (layers->file[0]) aq_text_add(told, " (%s)", layers->file);
    aq_text_add(told, ": ");
    aq_plan_layers_text(plan, layers, told);
    aq_text_add(told, " a micro-batch");
}

enum aq_status aq_cut_measured(struct aq_plan **plan, uint32_t cores, struct aq_text *told)
{
    const struct aq_job_pipeline *pipeline = &(*plan)->job->pipeline;
    const struct aq_plan_cut before = aq_plan_cut_of(*plan);
    struct aq_plan_layers *layers = NULL;
    struct aq_plan_cut cut;
    struct aq_plan_cut_times was, is;
    struct aq_plan *other;
    char number[AQ_TEXT_NUMBER];
    enum aq_status status;
    if (!pipeline->automatic || pipeline->cut != AQ_CUT_MEASURED || pipeline->stage_count < 2) return AQ_OK;
    AQ_TRY(aq_plan_layers_measured(*plan, cores, &layers));
    AQ_TRY_GOTO(aq_plan_balance(*plan, layers, &cut), out);
    AQ_TRY_GOTO(aq_plan_cut_times(*plan, layers, &before, &was), out);
    AQ_TRY_GOTO(aq_plan_cut_times(*plan, layers, &cut, &is), out);
    AQ_TRY_GOTO(aq_plan_open_cut(*plan, &cut, &other), out);
    tell_measured(*plan, layers, told);
    aq_text_add(told, "; cut at ");
    aq_plan_cut_text(*plan, &cut, told);
    aq_text_add(told, ": slowest stage or link %s of a step", aq_text_seconds(is.slowest_s, number));
    aq_text_add(told, " (cut by flops %s)", aq_text_seconds(was.slowest_s, number));
    aq_plan_close(*plan);
    *plan = other;
out:
    aq_plan_layers_close(layers);
    return status;
}

/* The cut of the run's manifest.yaml; end[] of 0: none that can be read. */
static struct aq_plan_cut cut_before(const char *run, uint32_t stages, uint32_t layers)
{
    struct aq_plan_cut cut = {{0}};
    struct aq_job *job = NULL;
    char path[AQ_RUN_PATH_BYTES];
    if (aq_run_path(run, "manifest.yaml", path) != AQ_OK) return cut;
    aq_log_sink(no_line, NULL); /* what is wrong with it is no error of this launch */
    const bool read = aq_job_load(path, NULL, 0, &job) == AQ_OK;
    aq_log_sink(NULL, NULL);
    aq_error_clear();
    const struct aq_job_pipeline *pipeline = read ? &job->pipeline : NULL;
    if (read && !pipeline->automatic && pipeline->stage_count == stages &&
        pipeline->stages[stages - 1].layer_end == layers)
        for (uint32_t s = 0; s < stages; s++)
            cut.end[s] = pipeline->stages[s].layer_end;
    if (read) aq_job_close(job);
    return cut;
}

bool aq_cut_of_run(struct aq_plan **plan, const char *run)
{
    const struct aq_job_pipeline *pipeline = &(*plan)->job->pipeline;
    struct aq_plan *other;
    if (!pipeline->automatic || pipeline->stage_count < 2) return false;
    const struct aq_plan_cut cut = cut_before(run, pipeline->stage_count, (*plan)->layers);
    if (cut.end[0] == 0 || aq_plan_open_cut(*plan, &cut, &other) != AQ_OK) return false;
    aq_plan_close(*plan);
    *plan = other;
    return true;
}

enum aq_status aq_cut_compare(const struct aq_plan *plan, uint32_t cores, struct aq_text *told)
{
    const struct aq_plan_cut here = aq_plan_cut_of(plan);
    struct aq_plan_layers *layers = NULL;
    struct aq_plan_cut cut;
    struct aq_plan_cut_times was, is;
    char number[AQ_TEXT_NUMBER];
    enum aq_status status;
    if (plan->job->pipeline.cut != AQ_CUT_MEASURED || plan->stage_count < 2) return AQ_OK;
    AQ_TRY(aq_plan_layers_measured(plan, cores, &layers));
    AQ_TRY_GOTO(aq_plan_balance(plan, layers, &cut), out);
    AQ_TRY_GOTO(aq_plan_cut_times(plan, layers, &here, &was), out);
    AQ_TRY_GOTO(aq_plan_cut_times(plan, layers, &cut, &is), out);
    if (was.slowest_s <= FASTER * is.slowest_s) goto out;
    tell_measured(plan, layers, told);
    aq_text_add(told, "; a new run would be cut at ");
    aq_plan_cut_text(plan, &cut, told);
    aq_text_add(told, " (slowest stage or link %s of a step", aq_text_seconds(is.slowest_s, number));
    aq_text_add(told, ", here %s): this one keeps its cut ", aq_text_seconds(was.slowest_s, number));
    aq_plan_cut_text(plan, &here, told);
out:
    aq_plan_layers_close(layers);
    return status;
}
