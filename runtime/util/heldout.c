/* heldout.c -- a task's metrics in lines of JSON. See the header. */
#include "heldout.h"

#include <math.h>

#include "control.h"

static const char *const count_names[AQ_TASK_COUNTS] = {"count0", "count1", "count2", "count3",
                                                          "count4", "count5", "count6", "count7"};

void aq_heldout_say(json_t *line, const struct aq_task *task, const struct aq_stage_loss *loss)
{
    const char *name;
    bool higher;
    const double mean = loss->targets ? loss->sum / (double)loss->targets : (double)NAN;
    json_object_set_new(line, "loss", aq_control_number(mean));
    for (uint32_t i = 0; (name = aq_task_metric(task, i, &higher)) != NULL; i++)
        json_object_set_new(line, name, aq_control_number(aq_task_value(task, i, loss)));
    json_object_set_new(line, "targets", json_integer((json_int_t)loss->targets));
    for (int i = 0; i < AQ_TASK_COUNTS; i++)
        if (loss->counts[i] != 0) json_object_set_new(line, count_names[i], aq_control_number(loss->counts[i]));
}

void aq_heldout_say_coded(json_t *line, const struct aq_stage_loss *loss)
{
    if (loss->targets) json_object_set_new(line, "loss_coded", aq_control_number(loss->sum / (double)loss->targets));
}

void aq_heldout_add_coded(struct aq_stage_loss *total, const json_t *line)
{
    const double targets = aq_control_number_or(line, "targets", 0);
    if (!(targets > 0) || !json_object_get(line, "loss_coded")) return;
    total->sum += targets * aq_control_number_or(line, "loss_coded", (double)NAN);
    total->targets += (uint64_t)targets;
}

void aq_heldout_add(struct aq_stage_loss *total, const json_t *line)
{
    const double targets = aq_control_number_or(line, "targets", 0);
    if (!(targets > 0)) return;
    total->sum += targets * aq_control_number_or(line, "loss", (double)NAN);
    total->targets += (uint64_t)targets;
    for (int i = 0; i < AQ_TASK_COUNTS; i++)
        total->counts[i] += aq_control_number_or(line, count_names[i], 0);
}

const struct aq_task *aq_heldout_task(const json_t *line)
{
    const char *task, *name;
    bool higher;
    for (uint32_t t = 0; (task = aq_task_name(t)) != NULL; t++)
        for (uint32_t i = 0; (name = aq_task_metric(aq_task_find(task), i, &higher)) != NULL; i++)
            if (json_object_get(line, name)) return aq_task_find(task);
    return aq_task_find(aq_task_name(0));
}

bool aq_heldout_metric(const json_t *line, const char **name, double *value, bool *higher)
{
    const char *task;
    for (uint32_t t = 0; (task = aq_task_name(t)) != NULL; t++)
        for (uint32_t i = 0; (*name = aq_task_metric(aq_task_find(task), i, higher)) != NULL; i++) {
            *value = aq_control_number_or(line, *name, (double)NAN);
            if (isfinite(*value)) return true;
        }
    return false;
}
