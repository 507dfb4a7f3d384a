/* loss_scale.c -- see the header. */
#include "loss_scale.h"

#include <math.h>

struct aq_loss_scale aq_loss_scale_of(const struct aq_job *job)
{
    const bool fp16 = job->model.precision == AQ_STAGE_FP16, fixed = job->train.loss_scale > 0.0f;
    const float first = !fp16 ? 1.0f : fixed ? job->train.loss_scale : AQ_LOSS_SCALE_FIRST;
    return (struct aq_loss_scale){.state = {first, 0.0f, first},
                                  .window = fp16 && !fixed ? job->train.loss_scale_window : 0};
}

void aq_loss_scale_good(struct aq_loss_scale *scale)
{
    if (!aq_loss_scale_moves(scale)) return;
    scale->state[1] += 1.0f;
    if (scale->state[1] < (float)scale->window) return;
    scale->state[1] = 0.0f;
    if (scale->state[0] < AQ_LOSS_SCALE_MAX) scale->state[0] *= 2.0f;
}

bool aq_loss_scale_halve(struct aq_loss_scale *scale)
{
    if (!aq_loss_scale_moves(scale)) return false;
    scale->state[1] = 0.0f;
    if (scale->state[0] <= AQ_LOSS_SCALE_MIN) return false;
    scale->state[0] *= 0.5f;
    return true;
}

static bool is_factor(float factor)
{
    int exponent;
    return factor >= AQ_LOSS_SCALE_MIN && factor <= AQ_LOSS_SCALE_MAX && frexpf(factor, &exponent) == 0.5f;
}

enum aq_status aq_loss_scale_check(const float *state, uint32_t floats)
{
    const float now = state[0], good = state[1], next = floats == AQ_LOSS_SCALE_STALE ? state[2] : now;
    if (is_factor(now) && is_factor(next) && good >= 0.0f && good < 0x1p24f && good == floorf(good)) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "checkpoint", "a loss scale of %g, then %g after %g good steps is not possible",
                   (double)next, (double)now, (double)good);
}
