/*
 * optimizer_lamb.h -- what LAMB lends to 1-bit LAMB, whose warm-up it is.
 *
 * Locking: as grad.h.
 */
#ifndef AQSGD_GRAD_OPTIMIZER_LAMB_H
#define AQSGD_GRAD_OPTIMIZER_LAMB_H

#include "optimizer.h"

struct aq_lamb {
    float *m, *v;
    double *x2, *u2;    /* by tensor */
    float *coefficient; /* by tensor: c of the last step */
    bool norm;          /* form norm                     */
};

void aq_lamb_config_default(struct aq_optimizer_config *out); /* what all of the family share */
enum aq_status aq_lamb_config_check(const struct aq_optimizer_config *config);
/* Arrays m and v, and scratch. */
enum aq_status aq_lamb_place(struct aq_optimizer *optimizer, struct aq_lamb *lamb);
/* One step of LAMB on the call's gradients; leaves c behind. */
enum aq_status aq_lamb_step(struct aq_optimizer *optimizer, struct aq_lamb *lamb);
/* Is it form "printed"? Its kernels have eps inside the root: eps then moves there. */
bool aq_lamb_printed(const struct aq_optimizer_config *config);
void aq_lamb_inside(struct aq_fused *kernel);
/* ||x|| / ||u|| clipped; 1 where one is 0. */
float aq_lamb_clip(double x2, double u2, float least, float most);

#endif
