/* loss_scale.c -- see the header. */
#include "loss_scale.h"

#include <stdio.h>

#include "control.h"
#include "worker_parts.h"

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

/* ---- the part of a worker ---- */

struct part {
    struct aq_loss_scale scale;
    float used;  /* of the step that runs */
    float fixed; /* the manifest's; 0: it moves */
    bool stale;
};

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    (void)rank;
    return plan->job->model.precision == AQ_STAGE_FP16;
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    struct part *part = self;
    (void)rank;
    *part = (struct part){.scale = aq_loss_scale_of(plan->job),
                          .fixed = plan->job->train.loss_scale,
                          .stale = plan->job->train.staleness > 0};
    return AQ_OK;
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    switch (moment) {
    case AQ_PART_STEP_BEGIN:
        part->used = args->stale ? aq_loss_scale_take(&part->scale) : aq_loss_scale_now(&part->scale);
        args->factor *= part->used;
        args->factor_next *= aq_loss_scale_now(&part->scale);
        return AQ_OK;
    case AQ_PART_STEP_GOOD:
        aq_loss_scale_good(&part->scale);
        return AQ_OK;
    case AQ_PART_STEP_VOID:
        if (aq_loss_scale_halve(&part->scale)) {
            args->mended = true;
            snprintf(args->note, sizeof args->note, "; the loss scale is %g now",
                     (double)aq_loss_scale_now(&part->scale));
        } else if (part->fixed > 1.0f) {
            snprintf(args->remedy, sizeof args->remedy, "train.loss_scale (%g) or ", (double)part->fixed);
        }
        return AQ_OK;
    default:
        return AQ_OK;
    }
}

static void part_state(void *self, struct aq_checkpoint_state *states, uint32_t *count)
{
    struct part *part = self;
    if (!aq_loss_scale_moves(&part->scale)) return;
    states[(*count)++] = (struct aq_checkpoint_state){.name = "optimizer.loss_scale",
                                                      .values = part->scale.state,
                                                      .count = part->stale ? AQ_LOSS_SCALE_STALE : AQ_LOSS_SCALE_STATE,
                                                      .check = aq_loss_scale_check};
}

static void part_report(void *self, const struct aq_part_step *step, json_t *line)
{
    const struct part *part = self;
    (void)step;
    json_object_set_new(line, "loss_scale", aq_control_number((double)part->used));
}

const struct aq_part_ops aq_part_loss_scale = {.name = "loss_scale",
                                               .bytes = sizeof(struct part),
                                               .wanted = part_wanted,
                                               .open = part_open,
                                               .on = part_on,
                                               .state = part_state,
                                               .report = part_report};
