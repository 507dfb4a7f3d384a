/*
 * progress.h -- what a person sees while a job runs: one live line on a terminal, a plain line every few seconds
 * elsewhere.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_PROGRESS_H
#define RUNTIME_PROGRESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct aq_progress {
    bool off;       /* --no-progress */
    bool json;      /* --json: metrics lines on standard output instead */
    bool terminal;  /* standard error is one; set by aq_progress_begin  */
    uint64_t steps; /* of the whole run */
    uint64_t stages;
    uint64_t shown_ns; /* when a line was last shown            */
    bool live;         /* a live line stands there, unfinished  */
    double rate;       /* smoothed steps per second             */
    double loss;
    const char *metric; /* of the last evaluation: the task's first */
    double heldout;     /* its value; NaN: none yet */
};

/* Fill `steps`, `stages`, `off` and `json` before. */
void aq_progress_begin(struct aq_progress *progress);
void aq_progress_step(struct aq_progress *progress, const json_t *joined);
void aq_progress_eval(struct aq_progress *progress, const json_t *line);

/* A sentence for the person, on a line of its own; "aqpipe: " stands before it. */
void aq_progress_say(struct aq_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A line of metrics for --json; nothing without it. */
void aq_progress_json(struct aq_progress *progress, const json_t *line);

/* Finish the live line: whatever else writes to the terminal comes after it. */
void aq_progress_end(struct aq_progress *progress);

/* The share of the stages' time that was spent waiting for links, of a joined step line. */
double aq_progress_link_wait(const json_t *joined);

#endif
