/*
 * heldout.h -- the figures of an evaluation: the task's metrics, by their names, in the lines that workers and launcher
 * write: {"event": "eval", "loss": ..., "perplexity": ..., "targets": ...}.
 *
 * Locking: none; pure functions of their arguments.
 */
#ifndef RUNTIME_HELDOUT_H
#define RUNTIME_HELDOUT_H

#include <jansson.h>
#include <stdbool.h>

#include "stages/task.h"

/* Loss, metrics, targets and what the task counted ("count0" and so on, where it counts more), into the line. */
void aq_heldout_say(json_t *line, const struct aq_task *task, const struct aq_stage_loss *loss);

/* The loss of the same samples through the forward codecs of all cuts, "loss_coded"; of no targets: nothing. */
void aq_heldout_say_coded(json_t *line, const struct aq_stage_loss *loss);

/* Adds that loss from the line of a part of the samples. */
void aq_heldout_add_coded(struct aq_stage_loss *total, const json_t *line);

/* Adds the loss and counts from the line of a part of the samples. Its values are not trusted: a malformed count is
 * 0. */
void aq_heldout_add(struct aq_stage_loss *total, const json_t *line);

/* The task whose metrics the line has; without metrics the first one of tasks.def. */
const struct aq_task *aq_heldout_task(const json_t *line);

/* The first metric that the line has, of any task: its name and value, and whether more is better. False: no metric. */
bool aq_heldout_metric(const json_t *line, const char **name, double *value, bool *higher);

#endif
