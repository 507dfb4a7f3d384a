/*
 * learning_rate.c -- the learning rate of a step, as a pure function: any rank knows it after any restart.
 */
#include <math.h>

#include "aqsgd/grad.h"

float aq_learning_rate(float peak, uint64_t step, uint64_t warmup, uint64_t total, enum aq_lr_decay decay)
{
    AQ_ASSERT(step >= 1);
    if (step <= warmup) return (float)((double)peak * (double)step / (double)warmup);
    if (decay == AQ_DECAY_CONSTANT) return peak;
    if (step > total) return 0.0f;
    /* 0 at the first step after the warm-up, near 1 at the last step; 1 is the first step not taken. */
    double gone = (double)(step - 1 - warmup) / (double)(total - warmup);
    if (decay == AQ_DECAY_LINEAR) return (float)((double)peak * (1.0 - gone));
    const double pi = 3.14159265358979323846;
    return (float)((double)peak * 0.5 * (1.0 + cos(pi * gone)));
}
