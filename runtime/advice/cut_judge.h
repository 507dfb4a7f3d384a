/*
 * cut_judge.h -- silent losses of a run, found in the lines of its steps: gradients with an error as large as they are,
 * samples sent as 32-bit floats, stages that train nothing.
 *
 * Findings, each at most once for a cut, direction and cause:
 * - raw: more than 1 % of the samples of a direction went raw fp32 because their values demanded it;
 * - wide: samples are coded in bf16, because they have values that fp16 cannot hold;
 * - error: the error of a cut's gradients (gradient_error_ratio) was above 0.5 in 8 steps in a row;
 * - activations: over five epochs, and at least 16 steps in a row, the loss of all cuts together on the activations of
 *   samples that were seen before was above 0.15 of their size (root of the sum of squares over the cuts). Samples
 *   change so much between visits that the codec's error of the change matters; it names the cut that loses most;
 * - idle: for 20 consecutive steps a stage's own gradient was 0 while the loss was not. By train.idle_stage the run
 *   ends, or a notice is printed.
 *
 * The launcher prints a finding on the run's output and writes it as a line `notice` of metrics.jsonl. From there it
 * comes to the report, `top` and the status page.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_CUT_JUDGE_H
#define RUNTIME_CUT_JUDGE_H

#include <jansson.h>

#include "plan.h"

enum { AQ_NOTICE_TEXT = 256, AQ_NOTICES_AT_ONCE = 8 };

struct aq_notice {
    const char *cause; /* "raw", "wide", "error", "activations" or "idle"            */
    uint32_t at;       /* the cut; of "idle" the stage                               */
    bool backward;
    bool ends;                   /* the run: nothing good comes of it                          */
    char text[AQ_NOTICE_TEXT];   /* what was seen                                              */
    char remedy[AQ_NOTICE_TEXT]; /* what to change                                             */
};

struct aq_cut_judge; /* opaque */

/* plan: borrowed. AQ_NOMEM. */
enum aq_status aq_cut_judge_open(const struct aq_plan *plan, struct aq_cut_judge **out);
void aq_cut_judge_close(struct aq_cut_judge *judge); /* NULL is fine */

/* A run starts or restarts: counts are reset, notices already printed are not repeated. */
void aq_cut_judge_begin(struct aq_cut_judge *judge);

/* A step's line as it is in metrics.jsonl, of all ranks. How many findings are new, in `out`; judge NULL: none. */
uint32_t aq_cut_judge_step(struct aq_cut_judge *judge, const json_t *line, struct aq_notice out[AQ_NOTICES_AT_ONCE]);

/* The line of metrics.jsonl: the caller's reference, or NULL where there is no memory. */
json_t *aq_notice_line(const struct aq_notice *notice, uint64_t step);

#endif
