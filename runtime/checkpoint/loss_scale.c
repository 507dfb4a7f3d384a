/* loss_scale.c -- see the header. */
#include "loss_scale.h"

#include <math.h>

struct aq_loss_scale aq_loss_scale_of(const struct aq_job *job)
{
    struct aq_loss_scale scale = {.state = {1.0f, 0.0f}};
    if (job->model.precision != AQ_STAGE_FP16) return scale;
    if (job->train.loss_scale > 0.0f) {
        scale.state[0] = job->train.loss_scale;
        return scale;
    }
    scale.state[0] = AQ_LOSS_SCALE_FIRST;
    scale.window = job->train.loss_scale_window;
    return scale;
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

enum aq_status aq_loss_scale_check(const float state[AQ_LOSS_SCALE_STATE])
{
    int exponent;
    const float now = state[0], good = state[1];
    const bool power = now >= AQ_LOSS_SCALE_MIN && now <= AQ_LOSS_SCALE_MAX && frexpf(now, &exponent) == 0.5f;
    if (power && good >= 0.0f && good < 0x1p24f && good == floorf(good)) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "checkpoint", "a loss scale of %g after %g good steps is none", (double)now,
                   (double)good);
}
