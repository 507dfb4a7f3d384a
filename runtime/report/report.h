/*
 * report.h -- a run's figures, computed only from its metrics.jsonl, and the table that compares several.
 *
 * Means over the whole run are over its training steps: samples over the sum of the steps' seconds, without evaluation
 * and checkpoints. "Warm" is after the first epoch, when every sample has been seen; a run of one epoch has no warm
 * figures.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_REPORT_H
#define RUNTIME_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "aqsgd/base.h"
#include "runtime_text.h"

struct aq_plan; /* plan.h */

/* "AQ-SGD fw4 bw8", "entropy coded fw2 bw3.5", "fp32": the codec of the first cut, as people compare it. */
void aq_report_codec(const struct aq_plan *plan, char *out, size_t bytes);

/* report_start.c: fields of a start line by which reports distinguish runs and add up by machine: "optimizer",
 * "reduce" (null: one replica), "machines" (of each rank) and "checkpoint_planned" (bytes of those kept, of each). */
void aq_report_start(const struct aq_plan *plan, json_t *line);

/* The report of one run folder, an object of report.json's "runs". AQ_NOTFOUND (logged): no metrics there.
 * AQ_CORRUPT: not ours. */
enum aq_status aq_report_run(const char *folder, json_t **out);

/* {"runs":[...]} written whole to path. Takes the reference of runs. */
enum aq_status aq_report_write(json_t *runs, const char *path);

/* One aligned table of the runs, at most `columns` wide (0: any width). */
void aq_report_table(const json_t *runs, unsigned columns, struct aq_text *text);

/* The run's curve for plotting: a head line and one line per step, tab-separated, "nan" for a missing value. All of
 * the metrics are read for it, a line at a time. AQ_IO, AQ_NOSPC: it cannot be written there. */
enum aq_status aq_report_tsv(const char *folder, FILE *file);

#endif
