/*
 * loss_scale.h -- the factor that keeps gradients within fp16's range (Micikevicius et al. 2018, section 3.2).
 *
 * The last stage multiplies the gradient of the loss by it, so that every gradient on its way through the pipeline has
 * it; after the last backward each stage divides its own gradients, in fp32, before anything else sees them. So
 * reduction, clipping, metrics, optimizers and their codecs use unscaled gradients. Quantized backward edges carry
 * scaled gradients: they have one scale per row.
 *
 * Its default starts at 2^16, halves whenever a step was void because a gradient was not finite, and doubles after a
 * number of good steps. All ranks see the same void steps, so that all hold the same factor; a checkpoint keeps it.
 * Only fp16 needs one: elsewhere it stays 1.
 *
 * Locking: none; the exec thread's.
 */
#ifndef RUNTIME_LOSS_SCALE_H
#define RUNTIME_LOSS_SCALE_H

#include "job.h"

#define AQ_LOSS_SCALE_FIRST 65536.0f
#define AQ_LOSS_SCALE_MIN   1.0f
#define AQ_LOSS_SCALE_MAX   16777216.0f /* 2^24: gradients that underflow even then do not matter */

enum {
    AQ_LOSS_SCALE_STATE = 2, /* floats of a checkpoint: the factor, and how many good steps it has seen   */
    AQ_LOSS_SCALE_STALE = 3  /* with train.staleness: and the factor that the next step has, one update old */
};

struct aq_loss_scale {
    float state[AQ_LOSS_SCALE_STALE];
    uint32_t window; /* good steps until it doubles; 0: it never moves */
};

/* As the job says. */
struct aq_loss_scale aq_loss_scale_of(const struct aq_job *job);

static inline float aq_loss_scale_now(const struct aq_loss_scale *scale)
{
    return scale->state[0];
}

/* With staleness, once a step, before its update: the step's factor; the newest is the next one's. */
static inline float aq_loss_scale_take(struct aq_loss_scale *scale)
{
    const float taken = scale->state[2];
    scale->state[2] = scale->state[0];
    return taken;
}

/* Does it move? Then a checkpoint keeps its state. */
static inline bool aq_loss_scale_moves(const struct aq_loss_scale *scale)
{
    return scale->window > 0;
}

/* After a step that was taken. */
void aq_loss_scale_good(struct aq_loss_scale *scale);

/* After a void step. True: the factor may have been the reason, and is halved; false: it cannot be less. */
bool aq_loss_scale_halve(struct aq_loss_scale *scale);

/* Checks state from a file, of `floats` floats. AQ_CORRUPT: the factor is impossible. */
enum aq_status aq_loss_scale_check(const float *state, uint32_t floats);

#endif
