/*
 * task.h -- what a model learns: a loss over its last layer's output, and the metrics of its quality.
 *
 *     const struct aq_task *task = aq_task_find("classification");
 *     aq_task_metric(task, 0, &name, &higher)            "accuracy", higher is better
 *     aq_task_value(task, 0, &loss)                      of what stages have counted (stages/stage.h)
 *
 * A new task is one file task_<name>.c and one line in tasks.def.
 * Locking: none; constant tables and pure functions.
 */
#ifndef STAGES_TASK_H
#define STAGES_TASK_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_TASK_COUNTS = 8, AQ_TASK_METRICS_MAX = 4 };

/* A task's sums over samples, in order: the sums of parts of the samples add up to the sums of all. */
struct aq_stage_loss {
    double sum;                    /* of the losses of all counted targets, in nats, not scaled */
    uint64_t targets;              /* how many were counted                                     */
    double counts[AQ_TASK_COUNTS]; /* what else the task's metrics are made of                  */
};

struct aq_task; /* opaque */

/* The task of that name, or NULL. */
const struct aq_task *aq_task_find(const char *name);
/* The tasks' names in order, NULL behind the last. */
const char *aq_task_name(uint32_t index);
/* The field of a batch that the output is compared with: "targets". */
const char *aq_task_field(const struct aq_task *task);
/* Is that field a number, which a row's one output is to be? Else classes, or words. */
bool aq_task_numbers(const struct aq_task *task);

/* Metric `index`: its name, or NULL behind the last; *higher: is more better? */
const char *aq_task_metric(const struct aq_task *task, uint32_t index, bool *higher);
/* Its value; NaN where nothing was counted. */
double aq_task_value(const struct aq_task *task, uint32_t index, const struct aq_stage_loss *loss);

/* total += part */
void aq_task_add(struct aq_stage_loss *total, const struct aq_stage_loss *part);

#ifdef __cplusplus
}
#endif
#endif
