/*
 * best.h -- the best evaluation of a run by one of its figures, and the count of evaluations since.
 *
 *     struct aq_best best;
 *     AQ_TRY(aq_best_open("matthews", &best));
 *     AQ_TRY(aq_best_read(&best, "run/metrics.jsonl"));      what a resumed run knew
 *     if (aq_best_take(&best, line)) ...                      a new best
 *
 * It depends only on the lines of the evaluations, so a resumed run has the same result as one without a break.
 *
 * Locking: plain data.
 */
#ifndef RUNTIME_BEST_H
#define RUNTIME_BEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

struct aq_best {
    const char *figure; /* "loss", or a metric of a task: borrowed; NULL: not used */
    bool higher;        /* is better                                                  */
    uint64_t step;      /* of the best; 0: none yet                                   */
    double value;
    uint32_t since;     /* evaluations after it                                       */
    uint64_t last;      /* step of the newest                                         */
};

/* By which figure a job's evaluations are judged; NULL: by none. */
struct aq_job;
const char *aq_best_figure(const struct aq_job *job);

/* NULL is fine, and asks for nothing. AQ_INVAL: no figure of any task; the line names some. */
enum aq_status aq_best_open(const char *figure, struct aq_best *out);

/* A line of an evaluation. True: it is better than all before; of equal ones the first is the best, NaN never is. */
bool aq_best_take(struct aq_best *best, const json_t *line);

/* The evaluations of a file of metrics. A missing file has none. Statuses of run_lines.h. */
enum aq_status aq_best_read(struct aq_best *best, const char *metrics);

#endif
