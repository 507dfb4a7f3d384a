/*
 * schedule_zb.c -- 1f1b with backward split: the gradient of a stage's input is sent on at once, those of its weights
 * fill waits (Qi et al. 2024, Zero Bubble Pipeline Parallelism, ZB-H1).
 *
 * Stage s runs as many forwards ahead as with 1f1b; every stage has the slots that 1f1b has on stage 0, so that the
 * largest stage takes no more of them. A weight half keeps its slot and is in the program where that slot is needed
 * again, or at the end: so frames for neighbours go first, and the executor, which takes the earliest that can run,
 * comes to a weight half when nothing else can run or no slot is left. The last stages put most of theirs off to the
 * end, while the gradients of the last micro-batches make their way to stage 0.
 *
 * Differs from the paper: its orders are fixed by measured times; here links decide when a stage waits, and the order
 * follows the arrivals.
 */
#include "schedule.h"

extern const struct aq_schedule_ops schedule_1f1b, schedule_zb;

static uint32_t zb_slots(const struct aq_schedule_request *request, uint32_t stage)
{
    (void)stage;
    return schedule_1f1b.slots(request, 0);
}

static void zb_order(const struct aq_schedule_request *request, uint32_t stage, uint32_t slots,
                     struct aq_schedule_order *out)
{
    const uint32_t M = request->micro_batches, ahead = schedule_1f1b.slots(request, stage);
    uint32_t at = 0, halves = 0;
    for (uint32_t i = 0; i < ahead; i++)
        out[at++] = (struct aq_schedule_order){i, AQ_OP_FORWARD};
    for (uint32_t i = 0; i < M; i++) {
        out[at++] = (struct aq_schedule_order){i, AQ_OP_BACKWARD};
        if (i + ahead >= M) continue;
        if (i + ahead >= slots) out[at++] = (struct aq_schedule_order){halves++, AQ_OP_WEIGHTS};
        out[at++] = (struct aq_schedule_order){i + ahead, AQ_OP_FORWARD};
    }
    while (halves < M)
        out[at++] = (struct aq_schedule_order){halves++, AQ_OP_WEIGHTS};
}

const struct aq_schedule_ops schedule_zb = {"zb-h1", true, zb_slots, zb_order, false};
