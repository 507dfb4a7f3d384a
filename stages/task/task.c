/* task.c -- the table of tasks, and what they share. See stages/task.h. */
#include <math.h>
#include <string.h>

#include "stage_task.h"

#define AQ_TASK(name) &aq_task_##name,
static const struct aq_task *const tasks[] = {
#include "stages/tasks.def"
};
#undef AQ_TASK

enum { TASKS = sizeof tasks / sizeof tasks[0] };

const struct aq_task *aq_task_find(const char *name)
{
    for (int i = 0; i < TASKS; i++)
        if (name && strcmp(tasks[i]->name, name) == 0) return tasks[i];
    return NULL;
}

const char *aq_task_name(uint32_t index)
{
    return index < TASKS ? tasks[index]->name : NULL;
}

const char *aq_task_field(const struct aq_task *task)
{
    return task->field;
}

bool aq_task_numbers(const struct aq_task *task)
{
    return task->numbers;
}

const char *aq_task_metric(const struct aq_task *task, uint32_t index, bool *higher)
{
    if (index >= AQ_TASK_METRICS_MAX || !task->metrics[index].name) return NULL;
    *higher = task->metrics[index].higher;
    return task->metrics[index].name;
}

double aq_task_value(const struct aq_task *task, uint32_t index, const struct aq_stage_loss *loss)
{
    AQ_ASSERT(index < AQ_TASK_METRICS_MAX && task->metrics[index].name);
    return loss->targets ? task->metrics[index].value(loss) : (double)NAN;
}

void aq_task_add(struct aq_stage_loss *total, const struct aq_stage_loss *part)
{
    total->sum += part->sum;
    total->targets += part->targets;
    for (int i = 0; i < AQ_TASK_COUNTS; i++)
        total->counts[i] += part->counts[i];
}

void stage_task_count_losses(const struct stage_counted *rows, struct aq_stage_loss *loss)
{
    for (uint64_t i = 0; i < rows->rows; i++) {
        loss->sum += rows->losses[i];
        loss->targets += rows->targets[i] >= 0;
    }
}
