/*
 * step_figures.h -- the table of step_figures.def: for whoever reads, sums up or shows lines of steps.
 *
 * Locking: constants.
 */
#ifndef RUNTIME_STEP_FIGURES_H
#define RUNTIME_STEP_FIGURES_H

enum {
#define AQ_STEP_FIGURE(name, note) AQ_STEP_FIGURE_##name,
#include "step_figures.def"
    AQ_STEP_FIGURES
};

struct aq_step_figure {
    const char *name; /* of the field                                      */
    const char *note; /* for people, a format of one double; NULL: no note */
};

/* i below AQ_STEP_FIGURES. */
const struct aq_step_figure *aq_step_figure(int i);

#endif
