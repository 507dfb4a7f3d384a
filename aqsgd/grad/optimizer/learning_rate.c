/*
 * learning_rate.c -- the learning rate of a step, as a pure function: any rank knows it after any restart.
 *
 * A decay is a function that returns the remaining share of the peak, in [0, 1], and a row of the table below.
 */
#include <math.h>

#include "aqsgd/grad.h"

/* done: steps since the warm-up, 0 at the first; span: how many there are in all, at least 1. */
typedef double decay_left(const struct aq_lr_schedule *schedule, uint64_t done, uint64_t span);

static double left_constant(const struct aq_lr_schedule *schedule, uint64_t done, uint64_t span)
{
    (void)schedule, (void)done, (void)span;
    return 1.0;
}

static double left_linear(const struct aq_lr_schedule *schedule, uint64_t done, uint64_t span)
{
    (void)schedule;
    return 1.0 - (double)done / (double)span;
}

static double left_cosine(const struct aq_lr_schedule *schedule, uint64_t done, uint64_t span)
{
    const double pi = 3.14159265358979323846;
    (void)schedule;
    return 0.5 * (1.0 + cos(pi * ((double)done / (double)span)));
}

/* SLAMB, appendix: degree 0.5 for BERT. */
static double left_polynomial(const struct aq_lr_schedule *schedule, uint64_t done, uint64_t span)
{
    return pow(1.0 - (double)done / (double)span, (double)schedule->power);
}

/* 1-bit Adam: 0.99 every 520 steps; 1-bit LAMB: 0.9 every 250; AQ-SGD's split learning: 0.1 every 20 rounds. */
static double left_step(const struct aq_lr_schedule *schedule, uint64_t done, uint64_t span)
{
    (void)span;
    return pow((double)schedule->rate, (double)(done / schedule->every));
}

static double left_exponential(const struct aq_lr_schedule *schedule, uint64_t done, uint64_t span)
{
    (void)span;
    return pow((double)schedule->rate, (double)done / (double)schedule->every);
}

static const struct decay {
    bool ends;  /* at 0 after step `total`  */
    bool paces; /* by `every` and `rate`    */
    decay_left *left;
} decays[] = {
    [AQ_DECAY_CONSTANT] = {.left = left_constant},
    [AQ_DECAY_LINEAR] = {.left = left_linear, .ends = true},
    [AQ_DECAY_COSINE] = {.left = left_cosine, .ends = true},
    [AQ_DECAY_POLYNOMIAL] = {.left = left_polynomial, .ends = true},
    [AQ_DECAY_STEP] = {.left = left_step, .paces = true},
    [AQ_DECAY_EXPONENTIAL] = {.left = left_exponential, .paces = true},
};

bool aq_lr_decay_paces(enum aq_lr_decay decay)
{
    return decays[decay].paces;
}

/* The rate when this share of the warm-up is done. 1-bit LAMB: exponentially from 1e-3 to 12e-3 in 450 steps. */
static double warming(const struct aq_lr_schedule *schedule, double done)
{
    const double peak = (double)schedule->peak, from = (double)schedule->from;
    return from > 0.0 ? from * pow(peak / from, done) : peak * done;
}

float aq_learning_rate(const struct aq_lr_schedule *schedule, uint64_t step)
{
    const double peak = (double)schedule->peak, least = (double)schedule->least;
    AQ_ASSERT(step >= 1);
    if (step <= schedule->warmup) return (float)warming(schedule, (double)step / (double)schedule->warmup);
    const struct decay *decay = &decays[schedule->decay];
    if (decay->ends && step > schedule->total) return schedule->least;
    /* left is 1 at the first step after the warm-up; 0 would be that of the first step not taken. */
    const uint64_t done = step - 1 - schedule->warmup, span = decay->ends ? schedule->total - schedule->warmup : 1;
    return (float)(least + (peak - least) * decay->left(schedule, done, span));
}
