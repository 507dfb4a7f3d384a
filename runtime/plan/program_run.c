/*
 * program_run.c -- the rules by which instructions begin, once for all that run programs. See program_run.h.
 *
 * lane_of says which lane an instruction runs in; allowed says what it waits for within its stage. A kind of
 * instruction that is new is a row of each table here, and its action in each policy.
 */
#include "program_run.h"

enum { NO_LANE = AQ_PROGRAM_LANES };

static const uint8_t lanes_of[][AQ_OP_COUNT] = {
    [AQ_LANES_CHAINS] = {NO_LANE, AQ_CHAIN_FORWARD, AQ_CHAIN_FORWARD, AQ_CHAIN_FORWARD, AQ_CHAIN_BACKWARD,
                         AQ_CHAIN_BACKWARD, AQ_CHAIN_BACKWARD, AQ_CHAIN_WEIGHTS, AQ_CHAIN_FORWARD, NO_LANE, NO_LANE,
                         NO_LANE, NO_LANE},
    [AQ_LANES_TIMED] = {NO_LANE, AQ_CHAIN_FORWARD, AQ_CHAIN_FORWARD, AQ_CHAIN_FORWARD, AQ_CHAIN_BACKWARD,
                        AQ_CHAIN_BACKWARD, AQ_CHAIN_BACKWARD, AQ_CHAIN_WEIGHTS, NO_LANE, NO_LANE, NO_LANE, NO_LANE,
                        NO_LANE},
    [AQ_LANES_KINDS] = {NO_LANE, 0, 1, 2, 3, 4, 5, 6, NO_LANE, NO_LANE, NO_LANE, NO_LANE, NO_LANE}};

void aq_program_run_init(struct aq_program_run *run, const struct aq_program *program, enum aq_lanes lanes,
                         uint32_t copies)
{
    *run = (struct aq_program_run){.lane_of = lanes_of[lanes],
                                   .lane_count = lanes == AQ_LANES_KINDS ? AQ_PROGRAM_LANES : AQ_CHAINS,
                                   .slots = program->slots,
                                   .copies = lanes == AQ_LANES_KINDS ? copies : UINT32_MAX,
                                   .first = program->stage == 0,
                                   .last = program->stage + 1 == program->stages,
                                   .split = program->split};
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

/* A lane at the end of the present step continues in the next one. */
static void lane_continue(struct aq_program_run *run, uint32_t lane)
{
    struct aq_program_lane *at = &run->lanes[lane];
    if (at->step > 0 || at->at < run->steps[0].tail || !run->steps[1].program) return;
    *at = (struct aq_program_lane){.step = 1, .at = lane_find(run, &run->steps[1], lane, 0)};
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
            run->ended[op] = 0;
        run->due = step->tail;
    }
    for (uint32_t lane = 0; lane < run->lane_count; lane++) {
        if (present) run->lanes[lane] = (struct aq_program_lane){.at = lane_find(run, step, lane, 0)};
        lane_continue(run, lane);
    }
}

void aq_program_run_next(struct aq_program_run *run)
{
    struct aq_program_step *const steps = run->steps;
    AQ_ASSERT(aq_program_run_past(run, 0));
    for (uint32_t lane = 0; lane < run->lane_count; lane++)
        run->lanes[lane].step = 0;
    steps[0] = steps[1];
    steps[1] = (struct aq_program_step){0};
    run->due = steps[0].tail;
}

/* --- one instruction -------------------------------------------------------------------------------------------- */

/* The instruction after which a slot is free. */
static enum aq_op frees(const struct aq_program_run *run)
{
    return run->split ? AQ_OP_WEIGHTS : run->first ? AQ_OP_BACKWARD : AQ_OP_SEND_BWD;
}

/* Has micro-batch n passed this kind of instruction; has the one so many before it? */
static bool passed(const struct aq_program_run *run, enum aq_op op, uint64_t n)
{
    return run->ended[op] > n;
}
static bool passed_before(const struct aq_program_run *run, enum aq_op op, uint64_t n, uint32_t before)
{
    return run->ended[op] + before > n;
}

/* Has it what it needs of its own stage? */
static bool allowed(const struct aq_program_run *run, enum aq_op op, uint64_t n)
{
    switch (op) {
    case AQ_OP_RECV_FWD:
        return passed_before(run, frees(run), n, run->slots) && passed_before(run, AQ_OP_FORWARD, n, run->copies);
    case AQ_OP_FORWARD:
        return (run->first ? passed_before(run, frees(run), n, run->slots) : passed(run, AQ_OP_RECV_FWD, n)) &&
               (run->last || passed_before(run, AQ_OP_SEND_FWD, n, run->copies));
    case AQ_OP_SEND_FWD:
        return passed(run, AQ_OP_FORWARD, n);
    case AQ_OP_RECV_BWD:
        return passed_before(run, AQ_OP_BACKWARD, n, run->copies);
    case AQ_OP_BACKWARD:
        return passed(run, AQ_OP_FORWARD, n) && (run->last || passed(run, AQ_OP_RECV_BWD, n)) &&
               (run->first || passed_before(run, AQ_OP_SEND_BWD, n, run->copies));
    case AQ_OP_SEND_BWD:
    case AQ_OP_WEIGHTS:
        return passed(run, AQ_OP_BACKWARD, n);
    default:
        return true;
    }
}

/* When a lane's turn is: the earliest in the programs of all steps, the next step's sends before all. */
static uint64_t turn_of(const struct aq_program_run *run, uint32_t lane)
{
    const struct aq_program_lane *at = &run->lanes[lane];
    const struct aq_program_step *step = &run->steps[at->step];
    if (at->busy || at->at == step->tail) return UINT64_MAX;
    const struct aq_instruction *in = &step->program->code[at->at];
    if (!allowed(run, in->op, step->base + in->micro_batch)) return UINT64_MAX;
    if (at->step > 0 && (in->op == AQ_OP_SEND_FWD || in->op == AQ_OP_SEND_BWD)) return 0;
    return 1 + ((uint64_t)at->step << 32 | at->at);
}

static struct aq_program_item item_of(const struct aq_program_run *run, uint32_t lane)
{
    const struct aq_program_lane *at = &run->lanes[lane];
    const struct aq_program_step *step = &run->steps[at->step];
    const struct aq_instruction *in = &step->program->code[at->at];
    const uint64_t number = step->base + in->micro_batch;
    return (struct aq_program_item){.op = in->op,
                                    .lane = lane,
                                    .step = at->step,
                                    .micro_batch = in->micro_batch,
                                    .slot = (uint32_t)(number % run->slots),
                                    .number = number};
}

enum aq_status aq_program_run_begin(struct aq_program_run *run, const struct aq_program_policy *policy, uint32_t *lane)
{
    uint64_t turns[AQ_PROGRAM_LANES];
    if (!run->steps[0].program) return AQ_AGAIN;
    for (uint32_t l = 0; l < run->lane_count; l++)
        turns[l] = turn_of(run, l);
    for (;;) {
        uint32_t best = 0;
        for (uint32_t l = 1; l < run->lane_count; l++)
            if (turns[l] < turns[best]) best = l;
        if (turns[best] == UINT64_MAX) return AQ_AGAIN;
        const struct aq_program_item item = item_of(run, best);
        const enum aq_status status = policy->begin(policy->self, &item);
        if (status == AQ_OK) {
            run->lanes[best].busy = true;
            *lane = best;
        }
        if (status != AQ_AGAIN) return status;
        turns[best] = UINT64_MAX;
    }
}

enum aq_op aq_program_run_end(struct aq_program_run *run, uint32_t lane)
{
    struct aq_program_lane *at = &run->lanes[lane];
    const struct aq_program_step *step = &run->steps[at->step];
    AQ_ASSERT(at->busy);
    const enum aq_op op = step->program->code[at->at].op;
    run->ended[op]++;
    at->busy = false;
    at->at = lane_find(run, step, lane, at->at + 1);
    lane_continue(run, lane);
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
