/*
 * report_sums.h -- what the report needs of metrics.jsonl, added up line by line: of a file of any size it is this
 * much.
 *
 * The sums of the first lines of a file can be kept (metrics_index.h) and the rest added to them later: the same
 * additions in the same order, and so the same report to the last bit.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_REPORT_SUMS_H
#define RUNTIME_REPORT_SUMS_H

#include <jansson.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "job.h"
#include "runtime_text.h"
#include "step_figures.h"

struct aq_report_part { /* of the run: its first epoch, or what came later */
    uint64_t steps;
    double samples, seconds;
    double forward[AQ_JOB_STAGES_MAX], backward[AQ_JOB_STAGES_MAX], keyframes; /* link e: between stage e and e+1 */
    double gradient;                                                           /* between replicas, of all ranks */
    double forward_wire, backward_wire, gradient_wire;                         /* packed: what links carried */
};

/* The quantities of AQ-SGD's theorem, per cut, in this order; keys of a step's line. */
enum { AQ_REPORT_GAUGES = 4 };
#define AQ_REPORT_GAUGE_KEYS "delta_ratio", "contraction", "gradient_error_ratio", "common_mode"

struct aq_report_gauge { /* of the steps of the last epoch, over replicas */
    double sum, most;
    uint64_t count;
};

struct aq_report_curve { /* a mean over an epoch */
    double sum;
    uint64_t count;
};

/* Only words of 64 bits, without padding: stored as they are in memory. */
struct aq_report_numbers {
    uint64_t stages, replicas;
    uint64_t step, restarts, skipped;
    double fetched;
    double figures[AQ_STEP_FIGURES]; /* of the last step; 0: the job has none */
    int64_t epoch_first, epoch_last; /* -1: none yet */
    struct aq_report_part cold, warm;
    double sent[AQ_JOB_RANKS_MAX]; /* bodies that each rank sent, as links carried them */
    double compute_ns, packing_ns, link_wait_ns, wait_ns, reduce_ns, optimizer_ns, stage_seconds;
    double time, loss_first, loss_last;
    struct aq_report_curve first_epoch, last_epoch;
    struct aq_report_gauge gauges[AQ_JOB_STAGES_MAX][AQ_REPORT_GAUGES]; /* cut e: between stage e and e+1 */
    double bits[AQ_JOB_STAGES_MAX]; /* of a cut whose bits may change, the most of its replicas; 0: they may not */
    double afresh;                  /* samples whose messages a guard forgot */
};

struct aq_report_sums {
    json_t *notices;                     /* of cut_judge.h, each once; NULL: none */
    json_t *start, *eval, *end, *choice; /* the last of each; choice: codec of the reductions by rank, where chosen */
    struct aq_report_numbers n;
};

/* Nothing has been added yet. */
void aq_report_sums_init(struct aq_report_sums *sums);
void aq_report_sums_deinit(struct aq_report_sums *sums);

/* One line of metrics.jsonl; `sums` is a struct aq_report_sums (a visitor of run_lines.h). Always AQ_OK. */
enum aq_status aq_report_sums_add(const json_t *line, void *sums);

/* A line `notice` joins a list of them (made where it is NULL), unless the same of its cut or stage is there. */
void aq_report_notice_add(json_t **list, const json_t *line);

/* As a JSON object, and back. False: it is malformed; *sums is unchanged. */
json_t *aq_report_sums_json(const struct aq_report_sums *sums);
bool aq_report_sums_take(struct aq_report_sums *sums, const json_t *from);

#endif
