/*
 * program_run.h -- the one interpreter of a program: which instruction of a stage may begin, and what follows its end.
 *
 * Caveats first. This holds the rules of program.h and nothing of the world: no frames, no buffers, no time. A policy
 * brings those. There are three: the worker executes (worker_step.c), the dry run counts ticks (program_check.c), and
 * the prediction keeps a clock (plan_simulate.c). A run trusts its program: aq_program_check has proved it.
 *
 * The rules. A lane is a sequence of instructions that begin in program order; it continues from step to step. An
 * instruction of micro-batch n may begin when all of these hold (n counts the micro-batches of all steps, from `base`):
 *
 *     its step is under way, and the one before it in its lane has ended
 *     its slot is free:       micro-batch n - slots has ended its last instruction (RECV_FWD; FORWARD on stage 0)
 *     its operands are there: RECV_FWD before FORWARD, FORWARD before SEND_FWD and BACKWARD, RECV_BWD before BACKWARD,
 *                             BACKWARD before SEND_BWD and WEIGHTS
 *     a copy is free:         micro-batch n - copies has left the values at the cut (AQ_LANES_KINDS)
 *     the policy begins it:   what comes from outside the stage is there
 *
 * Every kind of instruction runs in order of micro-batches. So the state of all slots is a count per kind. Of the
 * instructions that may begin, the earliest in the program of the earliest step is first. A send of the next step comes
 * before all others, because another stage waits for it.
 *
 * The end of a step (REDUCE, NORM, STEP, MARK) comes in order when all lanes have passed it: aq_program_run_due.
 *
 * Usage:
 *     aq_program_run_init(&run, program, AQ_LANES_CHAINS, 0);
 *     aq_program_run_add(&run, program, micro_batches);                 // with staleness: twice
 *     while (!aq_program_run_past(&run, 0)) {
 *         status = aq_program_run_begin(&run, &policy, &lane);          // calls policy.begin
 *         if (status == AQ_AGAIN) wait for the world;
 *         else aq_program_run_end(&run, lane);                          // at once, or when its time is over
 *     }
 *     for (; (due = aq_program_run_due(&run)) != NULL; aq_program_run_pass(&run)) do it;
 *     aq_program_run_next(&run);
 *
 * Locking: none; a run belongs to one thread. It holds no memory of its own.
 */
#ifndef RUNTIME_PROGRAM_RUN_H
#define RUNTIME_PROGRAM_RUN_H

#include "program.h"

enum aq_lanes {
    AQ_LANES_CHAINS = 0, /* the three chains: one instruction of a chain at a time                              */
    AQ_LANES_TIMED = 1,  /* the same without PREFETCH, which takes no time                                      */
    AQ_LANES_KINDS = 2   /* one lane per kind, without PREFETCH: a GPU receives, computes and sends in parallel */
};
enum { AQ_PROGRAM_LANES = 7 };

/* A step that is under way. */
struct aq_program_step {
    const struct aq_program *program; /* borrowed; NULL: there is none                     */
    uint32_t micro_batches;           /* of it: the program's, or fewer (split.mode: global) */
    uint32_t tail;                    /* first instruction of the end of the step          */
    uint64_t base;                    /* micro-batches of the steps before                 */
};

struct aq_program_lane {
    uint32_t step;   /* 0: the present one, 1: the next one                                        */
    uint32_t at;     /* the next instruction, or the one that is under way; the tail: it has ended */
    bool busy;       /* it is under way                                                            */
    uint8_t op;      /* of it                                                                      */
    uint64_t number; /* of its micro-batch                                                         */
    uint64_t turn;   /* the lane with the least begins; UINT64_MAX: nothing can begin              */
};

/* An instruction of micro-batch n waits until more than n - ahead micro-batches have ended this kind. */
struct aq_program_need {
    uint8_t op;
    uint32_t ahead;
};
enum { AQ_PROGRAM_NEEDS = 3 };

struct aq_program_run {
    struct aq_program_step steps[1 + AQ_STALENESS_MAX]; /* the present one, the next one     */
    struct aq_program_lane lanes[AQ_PROGRAM_LANES];
    const uint8_t *lane_of;       /* of each enum aq_op                                      */
    uint32_t lane_count;
    uint32_t due;                 /* of the present step's end: the next instruction         */
    uint32_t slots;
    struct aq_program_need needs[AQ_OP_COUNT][AQ_PROGRAM_NEEDS];
    uint64_t ended[AQ_OP_COUNT];  /* micro-batches of all steps since base 0, by kind        */
};

/* An instruction that may begin, as far as the stage knows. */
struct aq_program_item {
    enum aq_op op;
    uint32_t lane;        /* for AQ_LANES_KINDS op - AQ_OP_RECV_FWD, else its chain */
    uint32_t step;        /* 0: the present one, 1: the next one                  */
    uint32_t micro_batch; /* in its step; PREFETCH: may be of the step behind it  */
    uint64_t number;      /* base + micro_batch                                   */
};

/*
 * What begins an instruction. AQ_OK: it is under way, or done. AQ_AGAIN: it has to wait for something outside the
 * stage, and nothing has happened; the next one is asked. Anything else ends aq_program_run_begin with that status.
 */
struct aq_program_policy {
    enum aq_status (*begin)(void *self, const struct aq_program_item *item);
    void *self;
    uint32_t busy; /* lanes that are not asked, a bit each */
};

/*
 * A run without a step. program: gives the slots, the stage and `split`, which all steps share. copies: of the values
 * at a cut, for AQ_LANES_KINDS; the other lanes never hold two.
 */
void aq_program_run_init(struct aq_program_run *run, const struct aq_program *program, enum aq_lanes lanes,
                         uint32_t copies);

/*
 * One step more may run: the present one (then all slots are free, and base is 0), or the next one, behind it. program
 * and micro_batches: of this step. Our bug: two are under way.
 */
void aq_program_run_add(struct aq_program_run *run, const struct aq_program *program, uint32_t micro_batches);

/*
 * Begin the first instruction that may begin. *lane: its lane, whose end the caller reports. AQ_AGAIN: none may now. Or
 * the policy's status.
 */
enum aq_status aq_program_run_begin(struct aq_program_run *run, const struct aq_program_policy *policy, uint32_t *lane);

/* What is under way in a lane has ended: its operands are there for others, its slot may be free. Returns its kind. */
enum aq_op aq_program_run_end(struct aq_program_run *run, uint32_t lane);

/* Have all lanes passed this step (0: the present one, 1: the next one)? A step that was not added: no. */
bool aq_program_run_past(const struct aq_program_run *run, uint32_t step);

/* The instruction of the present step's end that is due; NULL: lanes have not passed the step, or it is over. */
const struct aq_instruction *aq_program_run_due(const struct aq_program_run *run);

/* It is done. False: it was the last one of the step. */
bool aq_program_run_pass(struct aq_program_run *run);

/* The slot of a micro-batch, by its number. */
static inline uint32_t aq_program_run_slot(const struct aq_program_run *run, uint64_t number)
{
    return (uint32_t)(number % run->slots);
}

/* The present step is over; the next one, where it was added, is the present one. */
void aq_program_run_next(struct aq_program_run *run);

/* Index of the first instruction in the program that a lane has not ended; past all lanes, what is due. For reports. */
uint32_t aq_program_run_at(const struct aq_program_run *run);

#endif
