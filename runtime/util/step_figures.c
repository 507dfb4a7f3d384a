/* step_figures.c -- the table: see the header. */
#include "step_figures.h"

static const struct aq_step_figure figures[] = {
#define AQ_STEP_FIGURE(name, note) {#name, note},
#include "step_figures.def"
};

const struct aq_step_figure *aq_step_figure(int i)
{
    return &figures[i];
}
