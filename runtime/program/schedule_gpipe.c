/*
 * schedule_gpipe.c -- all forwards, then all backwards (Huang et al. 2019): in the program's order, which the chains
 * follow each by itself; with `flush` also in time (program.h).
 *
 * Differs from the paper: backwards run in order of micro-batches, not in reverse, because the order of accumulation is
 * part of the bits. With `in_flight` k below M the step is cut into rounds of k micro-batches, each flushed before the
 * next.
 */
#include "schedule.h"

static uint32_t gpipe_slots(const struct aq_schedule_request *request, uint32_t stage)
{
    (void)stage;
    const uint32_t most = aq_schedule_most(request);
    return request->in_flight == AQ_IN_FLIGHT_DEFAULT || request->in_flight > most ? most : request->in_flight;
}

static void gpipe_order(const struct aq_schedule_request *request, uint32_t stage, uint32_t slots,
                        struct aq_schedule_order *out)
{
    (void)stage;
    const uint32_t M = request->micro_batches;
    uint32_t at = 0;
    for (uint32_t begin = 0; begin < M; begin += slots) {
        const uint32_t end = M - begin < slots ? M : begin + slots;
        for (uint32_t i = begin; i < end; i++)
            out[at++] = (struct aq_schedule_order){i, AQ_OP_FORWARD};
        for (uint32_t i = begin; i < end; i++)
            out[at++] = (struct aq_schedule_order){i, AQ_OP_BACKWARD};
    }
}

const struct aq_schedule_ops schedule_gpipe = {"gpipe", false, gpipe_slots, gpipe_order, true};
