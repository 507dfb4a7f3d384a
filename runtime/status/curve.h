/*
 * curve.h -- a run's curves in memory of a fixed size; `aqpipe plot` and the status page draw them.
 *
 * A curve has at most AQ_CURVE_POINTS points. While a run has no more steps than that, each step is a point; then two
 * neighbours become one (mean, smallest, largest), and a point covers twice as many steps, and so on: a run of any
 * length costs the same. Held-out losses are kept in the same way, by leaving out every second one.
 *
 *     aq_curve_read(folder, false, curve);     what metrics.jsonl has
 *     aq_curve_add(curve, line);               one more line of it, as it is written
 *
 * Locking: one thread per curve.
 */
#ifndef RUNTIME_CURVE_H
#define RUNTIME_CURVE_H

#include <jansson.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum {
    AQ_CURVE_POINTS = 2048, /* about two for each column of a picture */
    AQ_CURVE_EVALS = 512,
    AQ_CURVE_LARGE_BYTES = 64 << 20 /* of a larger file AQ_CURVE_POINTS steps are read, evenly spread */
};

enum aq_curve_x { AQ_CURVE_STEP, AQ_CURVE_TIME, AQ_CURVE_BYTES, AQ_CURVE_XS }; /* steps; s; bytes all links carried */
enum aq_curve_y { AQ_CURVE_LOSS, AQ_CURVE_CQ, AQ_CURVE_SPEED, AQ_CURVE_YS };   /* c_Q: of the worst cut; seq/s */

struct aq_curve_point {
    double x[AQ_CURVE_XS]; /* of its last step */
    double mean[AQ_CURVE_YS], low[AQ_CURVE_YS], high[AQ_CURVE_YS];
    uint64_t steps, seen[AQ_CURVE_YS]; /* that it covers; of them, those that have the figure */
};

struct aq_curve_eval {
    double x[AQ_CURVE_XS], loss;
};

struct aq_curve {
    char name[256], codec[128];    /* of the run's folder; of its start line, "" without one: as they came */
    uint64_t steps;                /* added so far                */
    uint64_t each;                 /* steps of a point; 0: not begun */
    uint64_t eval_each, eval_turn; /* one of eval_each evaluations is kept */
    bool part;                     /* of a large file only AQ_CURVE_POINTS steps were read */
    double seconds, bytes;         /* of the newest line          */
    uint32_t count, evals;
    struct aq_curve_point points[AQ_CURVE_POINTS];
    struct aq_curve_eval heldout[AQ_CURVE_EVALS];
};

/* One line of metrics.jsonl; others than start, step and eval are skipped, and so are missing figures. */
void aq_curve_add(struct aq_curve *curve, const json_t *line);

/*
 * A new curve, of the run in `folder`. whole: read all of a large file (bytes are sums: they need every line).
 * AQ_NOTFOUND, AQ_CORRUPT (logged, with the file and the line); a file without a step gives a curve of none.
 */
enum aq_status aq_curve_read(const char *folder, bool whole, struct aq_curve *curve);

/* Bytes that links carried in a step, after packing, of all ranks. */
double aq_curve_wire_bytes(const json_t *line);

#endif
