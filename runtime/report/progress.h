/*
 * progress.h -- the progress line of a job: one live line on a terminal, a plain line every few seconds elsewhere. It
 * shows how far the run is, and the phase between steps: starting, evaluating, writing.
 *
 * The line fits into the terminal (aq_text_columns): where it is narrow the lesser fields go first, and never the step,
 * what is being done, and the time that is left.
 *
 *     aq_progress_begin(&progress);
 *     aq_progress_phase(&progress, "stage %u loads its weights", s);   whenever it may have changed
 *     aq_progress_tick(&progress);                                     several times a second
 *     aq_progress_step(&progress, joined);                             ends the phase
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_PROGRESS_H
#define RUNTIME_PROGRESS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "board.h"

enum { AQ_PROGRESS_LINE_BYTES = 512, AQ_PROGRESS_PHASE_BYTES = 160 };

struct aq_progress {
    bool off;       /* --no-progress */
    bool json;      /* --json: metrics lines on standard output instead */
    bool terminal;  /* standard error is one; set by aq_progress_begin  */
    uint64_t steps; /* of the whole run */
    uint64_t stages;
    uint64_t step;     /* the last one that is done; 0: none yet */
    uint64_t shown_ns; /* when a line was last shown             */
    bool live;         /* a live line is shown, unfinished       */
    double rate;       /* smoothed steps per second              */
    double loss;
    const char *metric;          /* of the last evaluation: the task's first */
    double heldout;              /* its value; NaN: none yet */
    double sequences, link_wait; /* a second; share: of the last step  */
    char phase[AQ_PROGRESS_PHASE_BYTES];
    uint64_t phase_ns;      /* since when */
    struct aq_board *board; /* hears of phases; NULL: none */
};

/* Fill `steps`, `stages`, `off` and `json` before. */
void aq_progress_begin(struct aq_progress *progress);
void aq_progress_step(struct aq_progress *progress, const json_t *joined);
void aq_progress_eval(struct aq_progress *progress, const json_t *line);

/* Sets the phase from now on, until the next step. The same text again continues the phase. */
void aq_progress_phase(struct aq_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Show the line again, if it is time to and something is being done for long enough. */
void aq_progress_tick(struct aq_progress *progress);

/* The line as it is now, in at most `columns` (0: any number). */
void aq_progress_line(const struct aq_progress *progress, uint64_t now_ns, unsigned columns,
                      char out[AQ_PROGRESS_LINE_BYTES]);

/* A sentence for the user, on its own line, with the prefix "aqpipe: ". */
void aq_progress_say(struct aq_progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A line of metrics for --json; nothing without it. */
void aq_progress_json(struct aq_progress *progress, const json_t *line);

/* Finish the live line: whatever else writes to the terminal comes after it. */
void aq_progress_end(struct aq_progress *progress);

/* The share of the stages' time that was spent waiting for links, of a joined step line. */
double aq_progress_link_wait(const json_t *joined);

#endif
