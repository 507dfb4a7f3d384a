/*
 * early_stop.c -- the part of a worker for train.early_stop: after an evaluation the launcher decides for all ranks
 * whether it was the last one, because none was better for too long.
 */
#include "control.h"
#include "worker_parts.h"

struct part {
    uint64_t judged; /* step of the evaluation that the launcher has judged last */
    bool stop;       /* it was the last */
};

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    (void)rank;
    return plan->job->train.early_stop && plan->facts.heldout_samples > 0;
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    (void)self, (void)plan, (void)rank;
    return AQ_OK;
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    switch (moment) {
    case AQ_PART_MESSAGE:
        if (!aq_control_is(args->message, "op", "evaluated")) return AQ_OK;
        part->judged = aq_control_u64_or(args->message, "step", 0);
        part->stop = aq_control_bool_or(args->message, "stop", false);
        return AQ_OK;
    case AQ_PART_EVALUATED_AWAIT:
        args->awaits = "the evaluation's result";
        if (part->judged != args->step) return AQ_AGAIN;
        args->ends = part->stop;
        return AQ_OK;
    default:
        return AQ_OK;
    }
}

const struct aq_part_ops aq_part_early_stop = {
    .name = "early_stop", .bytes = sizeof(struct part), .wanted = part_wanted, .open = part_open, .on = part_on};
