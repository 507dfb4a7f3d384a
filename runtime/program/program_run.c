/*
 * program_run.c -- the rules by which instructions begin, once for all that run programs. See program_run.h.
 *
 * lanes_of states the lane of each kind of instruction; needs_fill states what a kind waits for within its stage. A new
 * kind is a row of both, and its action in each policy.
 */
#include "program_run.h"

#include <string.h>

enum { NO_LANE = AQ_PROGRAM_LANES };

static const uint8_t lanes_of[][AQ_OP_COUNT] = {
    [AQ_LANES_CHAINS] = {NO_LANE, AQ_CHAIN_FORWARD, AQ_CHAIN_FORWARD, AQ_CHAIN_FORWARD, AQ_CHAIN_BACKWARD,
                         AQ_CHAIN_BACKWARD, AQ_CHAIN_BACKWARD, AQ_CHAIN_WEIGHTS, AQ_CHAIN_FORWARD, NO_LANE, NO_LANE,
                         NO_LANE, NO_LANE},
    [AQ_LANES_TIMED] = {NO_LANE, AQ_CHAIN_FORWARD, AQ_CHAIN_FORWARD, AQ_CHAIN_FORWARD, AQ_CHAIN_BACKWARD,
                        AQ_CHAIN_BACKWARD, AQ_CHAIN_BACKWARD, AQ_CHAIN_WEIGHTS, NO_LANE, NO_LANE, NO_LANE, NO_LANE,
                        NO_LANE},
    [AQ_LANES_KINDS] = {NO_LANE, 0, 1, 2, 3, 4, 5, 6, NO_LANE, NO_LANE, NO_LANE, NO_LANE, NO_LANE}};

/* Every micro-batch has passed this kind: what is no condition. */
enum { ALWAYS = 0 };

/* What micro-batch n waits for: another kind has ended with n, or with n - ahead. */
static void needs_fill(struct aq_program_run *run, const struct aq_program *program, uint32_t copies)
{
    const bool first = program->stage == 0, last = program->stage + 1 == program->stages;
    const enum aq_op frees = program->split ? AQ_OP_WEIGHTS : first ? AQ_OP_BACKWARD : AQ_OP_SEND_BWD;
    const struct aq_program_need none = {.op = ALWAYS}, slot = {.op = frees, .ahead = program->slots};
    const struct aq_program_need needs[AQ_OP_COUNT][AQ_PROGRAM_NEEDS] = {
        [AQ_OP_RECV_FWD] = {slot, {AQ_OP_FORWARD, copies}},
        [AQ_OP_FORWARD] = {first ? slot : (struct aq_program_need){.op = AQ_OP_RECV_FWD},
                           last ? none : (struct aq_program_need){AQ_OP_SEND_FWD, copies}},
        [AQ_OP_SEND_FWD] = {{.op = AQ_OP_FORWARD}},
        [AQ_OP_RECV_BWD] = {{AQ_OP_BACKWARD, copies}},
        [AQ_OP_BACKWARD] = {{.op = AQ_OP_FORWARD},
                            last ? none : (struct aq_program_need){.op = AQ_OP_RECV_BWD},
                            first ? none : (struct aq_program_need){AQ_OP_SEND_BWD, copies}},
        [AQ_OP_SEND_BWD] = {{.op = AQ_OP_BACKWARD}},
        [AQ_OP_WEIGHTS] = {{.op = AQ_OP_BACKWARD}}};
    memcpy(run->needs, needs, sizeof needs);
}

void aq_program_run_init(struct aq_program_run *run, const struct aq_program *program, enum aq_lanes lanes,
                         uint32_t copies)
{
    *run = (struct aq_program_run){.lane_of = lanes_of[lanes],
                                   .lane_count = lanes == AQ_LANES_KINDS ? AQ_PROGRAM_LANES : AQ_CHAINS,
                                   .slots = program->slots};
    needs_fill(run, program, lanes == AQ_LANES_KINDS ? copies : UINT32_MAX);
}

/* --- lanes ------------------------------------------------------------------------------------------------------ */

/* The first instruction of a lane from `at` on that this step has; the tail: none. */
static uint32_t lane_find(const struct aq_program_run *run, const struct aq_program_step *step, uint32_t lane,
                          uint32_t at)
{
    const struct aq_instruction *const code = step->program->code;
    for (; at < step->tail; at++) {
        if (run->lane_of[code[at].op] != lane) continue;
        const uint32_t ahead = code[at].op == AQ_OP_PREFETCH ? step->program->window : 0;
        if (code[at].micro_batch < step->micro_batches + ahead) break;
    }
    return at;
}

/* When a lane's turn is: the earliest in the programs of all steps, the next step's sends before all. */
static uint64_t turn_of(const struct aq_program_lane *lane)
{
    if (lane->step > 0 && (lane->op == AQ_OP_SEND_FWD || lane->op == AQ_OP_SEND_BWD)) return 0;
    return 1 + ((uint64_t)lane->step << 32 | lane->at);
}

/* A lane comes to its first instruction from `at` on; at the end of the present step it continues in the next one. */
static void lane_move(struct aq_program_run *run, uint32_t l, uint32_t step, uint32_t at)
{
    struct aq_program_lane *lane = &run->lanes[l];
    at = lane_find(run, &run->steps[step], l, at);
    if (step == 0 && at == run->steps[0].tail && run->steps[1].program)
        at = lane_find(run, &run->steps[step = 1], l, 0);
    *lane = (struct aq_program_lane){.step = step, .at = at, .turn = UINT64_MAX};
    if (at == run->steps[step].tail) return;
    const struct aq_instruction *in = &run->steps[step].program->code[at];
    lane->op = in->op;
    lane->number = run->steps[step].base + in->micro_batch;
    lane->turn = turn_of(lane);
}

static uint32_t tail_of(const struct aq_program *program)
{
    uint32_t at = 0;
    while (at < program->count && aq_op_chain(program->code[at].op) != AQ_CHAINS)
        at++;
    return at;
}

void aq_program_run_add(struct aq_program_run *run, const struct aq_program *program, uint32_t micro_batches)
{
    struct aq_program_step *const steps = run->steps;
    const bool present = !steps[0].program;
    AQ_ASSERT(present || !steps[1].program);
    struct aq_program_step *step = &steps[present ? 0 : 1];
    *step = (struct aq_program_step){.program = program,
                                     .micro_batches = micro_batches,
                                     .tail = !present && steps[0].program == program ? steps[0].tail : tail_of(program),
                                     .base = present ? 0 : steps[0].base + steps[0].micro_batches};
    if (present) {
        for (int op = 0; op < AQ_OP_COUNT; op++)
            run->ended[op] = op == ALWAYS ? UINT64_MAX : 0;
        run->due = step->tail;
    }
    for (uint32_t l = 0; l < run->lane_count; l++)
        if (present || run->lanes[l].at == steps[0].tail) lane_move(run, l, 0, present ? 0 : steps[0].tail);
}

void aq_program_run_next(struct aq_program_run *run)
{
    struct aq_program_step *const steps = run->steps;
    AQ_ASSERT(aq_program_run_past(run, 0));
    for (uint32_t l = 0; l < run->lane_count; l++) {
        struct aq_program_lane *lane = &run->lanes[l];
        lane->step = 0;
        if (lane->turn != UINT64_MAX) lane->turn = turn_of(lane);
    }
    steps[0] = steps[1];
    steps[1] = (struct aq_program_step){0};
    run->due = steps[0].tail;
}

/* --- one instruction -------------------------------------------------------------------------------------------- */

/* Has it what it needs of its own stage? */
static bool allowed(const struct aq_program_run *run, const struct aq_program_lane *lane)
{
    const struct aq_program_need *const needs = run->needs[lane->op];
    bool all = true;
    for (int k = 0; k < AQ_PROGRAM_NEEDS; k++)
        all &= run->ended[needs[k].op] + needs[k].ahead > lane->number;
    return all;
}

enum aq_status aq_program_run_begin(struct aq_program_run *run, const struct aq_program_policy *policy, uint32_t *lane)
{
    for (uint32_t asked = policy->busy;;) {
        uint64_t turn = UINT64_MAX;
        uint32_t best = 0;
        for (uint32_t l = 0; l < run->lane_count; l++) {
            const struct aq_program_lane *at = &run->lanes[l];
            if (at->turn >= turn || asked >> l & 1 || !allowed(run, at)) continue;
            turn = at->turn;
            best = l;
        }
        if (turn == UINT64_MAX) return AQ_AGAIN;
        struct aq_program_lane *at = &run->lanes[best];
        const struct aq_program_item item = {.op = at->op,
                                             .lane = best,
                                             .step = at->step,
                                             .micro_batch = (uint32_t)(at->number - run->steps[at->step].base),
                                             .number = at->number};
        const enum aq_status status = policy->begin(policy->self, &item);
        if (status == AQ_OK) {
            at->busy = true;
            at->turn = UINT64_MAX;
            *lane = best;
        }
        if (status != AQ_AGAIN) return status;
        asked |= 1u << best;
    }
}

enum aq_op aq_program_run_end(struct aq_program_run *run, uint32_t lane)
{
    const struct aq_program_lane *at = &run->lanes[lane];
    const enum aq_op op = at->op;
    AQ_ASSERT(at->busy);
    run->ended[op]++;
    lane_move(run, lane, at->step, at->at + 1);
    return op;
}

/* --- the end of a step ------------------------------------------------------------------------------------------ */

bool aq_program_run_past(const struct aq_program_run *run, uint32_t step)
{
    if (!run->steps[step].program) return false;
    for (uint32_t lane = 0; lane < run->lane_count; lane++) {
        const struct aq_program_lane *at = &run->lanes[lane];
        if (at->step < step || (at->step == step && at->at < run->steps[step].tail)) return false;
    }
    return true;
}

const struct aq_instruction *aq_program_run_due(const struct aq_program_run *run)
{
    const struct aq_program *program = run->steps[0].program;
    return program && run->due < program->count && aq_program_run_past(run, 0) ? &program->code[run->due] : NULL;
}

bool aq_program_run_pass(struct aq_program_run *run)
{
    AQ_ASSERT(run->due < run->steps[0].program->count);
    return ++run->due < run->steps[0].program->count;
}

uint32_t aq_program_run_at(const struct aq_program_run *run)
{
    uint32_t at = UINT32_MAX;
    for (uint32_t lane = 0; lane < run->lane_count; lane++) {
        const struct aq_program_lane *here = &run->lanes[lane];
        if (here->at < run->steps[here->step].tail && here->at < at) at = here->at;
    }
    return at == UINT32_MAX ? run->due : at;
}
