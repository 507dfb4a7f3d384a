/*
 * schedule_1f1b.c -- after a warm-up, one forward and one backward in turn (Narayanan et al. 2019, PipeDream-flush).
 *
 * How long the warm-up is decides what is hidden. As published, stage s runs P - s forwards first: enough when links
 * take no time. A slow link is one more stage of the pipeline in each direction, so the default at stage s is 2(P-1-s)
 * + 1: the links of the stages behind it are filled, too. A count k means k at stage 0, falling evenly to 1 at the last
 * stage; P gives the classic one, 2P - 1 the default, more where links and compute take the same time and memory is
 * there (up to 3P - 2).
 */
#include "schedule.h"

static uint32_t schedule_1f1b_slots(const struct aq_schedule_request *request, uint32_t stage)
{
    const uint32_t behind = request->stages - 1 - stage; /* stages behind this one */
    const uint32_t most = aq_schedule_most(request);
    uint64_t slots;
    if (behind == 0)
        slots = 1;
    else if (request->in_flight == AQ_IN_FLIGHT_CLASSIC)
        slots = behind + 1;
    else if (request->in_flight == AQ_IN_FLIGHT_DEFAULT)
        slots = 2 * behind + 1;
    else {
        const uint64_t hops = request->stages - 1;
        slots = 1 + ((uint64_t)(request->in_flight - 1) * behind + hops - 1) / hops;
    }
    return slots < most ? (uint32_t)slots : most;
}

static void schedule_1f1b_order(const struct aq_schedule_request *request, uint32_t stage, uint32_t slots,
                                struct aq_schedule_order *out)
{
    (void)stage;
    const uint32_t M = request->micro_batches;
    uint32_t at = 0;
    for (uint32_t i = 0; i < slots; i++)
        out[at++] = (struct aq_schedule_order){i, AQ_OP_FORWARD};
    for (uint32_t i = 0; i < M; i++) {
        out[at++] = (struct aq_schedule_order){i, AQ_OP_BACKWARD};
        if (i + slots < M) out[at++] = (struct aq_schedule_order){i + slots, AQ_OP_FORWARD};
    }
}

const struct aq_schedule_ops schedule_1f1b = {"1f1b", false, schedule_1f1b_slots, schedule_1f1b_order, false};
