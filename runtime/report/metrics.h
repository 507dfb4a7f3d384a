/*
 * metrics.h -- RUN/metrics.jsonl: the ranks' step lines joined into one line per step, in order, with the run's other
 * events.
 *
 * The lines of P ranks come in any order; a step is written when all P have it. The file is the only source of the
 * report.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_METRICS_H
#define RUNTIME_METRICS_H

#include <jansson.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "board.h"

/*
 * How many steps one rank's lines may be ahead of another's. Ranks train in step, but their lines come by different
 * channels: while one is slow (a daemon out of reach for up to 30 s, a worker that gets no CPU), the others' keep
 * coming. 30 s of steps of half a millisecond are 60,000.
 */
enum { AQ_METRICS_AHEAD = 1 << 16 };

struct aq_metrics; /* opaque */

struct aq_metrics_config {
    const char *path; /* appended to; NULL: written nowhere                          */
    uint32_t stages;
    uint64_t step;          /* the last one done before: lines start with step + 1          */
    double seconds;         /* of the run before this start ("time" continues from here)   */
    uint64_t mark_every;    /* steps between two checkpoints; 0: at no fixed step         */
    bool mark_timed;        /* a checkpoint may come at any step                          */
    uint64_t index_every;   /* bytes between two entries of the index; 0: the default     */
    struct aq_board *board; /* gets every line, too; NULL: none */
};

enum aq_status aq_metrics_open(const struct aq_metrics_config *config, struct aq_metrics **out);
void aq_metrics_close(struct aq_metrics *metrics); /* NULL is fine */

/* Training starts now: "time" counts from here. */
void aq_metrics_go(struct aq_metrics *metrics);

/* Seconds of training so far, over all starts. */
double aq_metrics_seconds(const struct aq_metrics *metrics);

/*
 * Take one rank's step line (its reference is taken). When a step is whole, *joined gets a borrowed line, valid until
 * the next call, else NULL. Call again with line NULL for further whole steps until *joined is NULL. AQ_PROTO: no step,
 * a rank that reports a step twice or is too far ahead. AQ_NOSPC, AQ_IO: the file.
 */
enum aq_status aq_metrics_step(struct aq_metrics *metrics, uint32_t rank, json_t *line, const json_t **joined);

/* After the step `after` up to this step the rank's lines may be missing: a step that lacks only such lines is whole,
 * with null in their place. UINT64_MAX: from there on, until the next call. */
void aq_metrics_without(struct aq_metrics *metrics, uint32_t rank, uint64_t after, uint64_t step);

/* Write any other line ("start", "eval", "end"); "time" is added. Takes the reference. An evaluation that comes before
 * its step is whole is written behind that, at once when it is. */
enum aq_status aq_metrics_line(struct aq_metrics *metrics, json_t *line);

/*
 * Bytes of the file up to this step: the next step's line starts there. The step is the newest one, one of the last
 * with a checkpoint due (mark_every), or one of the last AQ_METRICS_AHEAD (mark_timed). 0: not known.
 */
uint64_t aq_metrics_bytes_after(const struct aq_metrics *metrics, uint64_t step);

/* Every line so far is on disk. AQ_NOSPC, AQ_IO; where a line could not be written its error again, which is not logged
 * twice. */
enum aq_status aq_metrics_sync(struct aq_metrics *metrics);

#endif
