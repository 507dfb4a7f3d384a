/* best.c -- the best evaluation of a run. See the header. */
#include "best.h"

#include <math.h>
#include <string.h>

#include "control.h"
#include "job.h"
#include "run_lines.h"
#include "stages/task.h"

const char *aq_best_figure(const struct aq_job *job)
{
    return job->checkpoint.best ? job->checkpoint.best : job->train.early_stop ? "loss" : NULL;
}

enum aq_status aq_best_open(const char *figure, struct aq_best *out)
{
    const char *task, *name;
    *out = (struct aq_best){.figure = figure};
    if (!figure || strcmp(figure, "loss") == 0) return AQ_OK;
    for (uint32_t t = 0; (task = aq_task_name(t)) != NULL; t++)
        for (uint32_t i = 0; (name = aq_task_metric(aq_task_find(task), i, &out->higher)) != NULL; i++)
            if (strcmp(name, figure) == 0) return AQ_OK;
    return aq_fail(AQ_INVAL, "best", "no task has a figure %.40s: use loss, or one of the task's (docs/TASKS.md)",
                   figure);
}

bool aq_best_take(struct aq_best *best, const json_t *line)
{
    if (!best->figure) return false;
    const double value = aq_control_number_or(line, best->figure, (double)NAN);
    best->last = aq_control_u64_or(line, "step", best->last);
    best->since++;
    if (!isfinite(value)) return false;
    if (best->step && !(best->higher ? value > best->value : value < best->value)) return false;
    best->step = best->last;
    best->value = value;
    best->since = 0;
    return true;
}

static enum aq_status take_line(const json_t *line, void *context)
{
    if (aq_control_is(line, "event", "eval")) (void)aq_best_take(context, line);
    return AQ_OK;
}

enum aq_status aq_best_read(struct aq_best *best, const char *metrics)
{
    if (!best->figure) return AQ_OK;
    const enum aq_status status = aq_run_lines(metrics, take_line, best);
    return status == AQ_NOTFOUND ? AQ_OK : status;
}
