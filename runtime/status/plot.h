/*
 * plot.h -- curves of runs as a picture: SVG text, made here, for files (`aqpipe plot`) and for the status page.
 *
 * Single steps are a thin line (or, if a point covers several, the band between the smallest and the largest), their
 * mean over neighbours a thick one, held-out losses rings. Colours are Okabe and Ito's, which colour-blind readers can
 * distinguish; texts and lines take the surrounding colour, so that a page may be dark. Every text is escaped.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_PLOT_H
#define RUNTIME_PLOT_H

#include <stdbool.h>

#include "curve.h"
#include "runtime_text.h"

enum { AQ_PLOT_RUNS_MAX = 8 }; /* as many as there are colours */

struct aq_plot {
    enum aq_curve_x x;
    enum aq_curve_y y;
    const char *title; /* NULL: said by the axes */
    uint32_t smooth;   /* points of the mean; 0: a twentieth of the shortest curve */
    uint32_t width, height;
    bool inside; /* within a page: no background, no file header */
};

/* Has the run such a figure yet? */
bool aq_plot_has(const struct aq_curve *run, enum aq_curve_y y);

/* AQ_INVAL (logged): a run has no such figure yet, and which. AQ_NOMEM. */
enum aq_status aq_plot_svg(const struct aq_plot *plot, const struct aq_curve *const *runs, uint32_t count,
                           struct aq_text *out);

/* "loss", "c_q", "speed"; "step", "time", "bytes": as options have them. */
const char *aq_plot_x_name(enum aq_curve_x x);
const char *aq_plot_y_name(enum aq_curve_y y);

#endif
