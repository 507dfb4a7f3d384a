/*
 * program.h -- what a stage does in one step: a flat array of instructions, emitted by a pure function, proved by a
 * dry run.
 *
 * A schedule (a row of schedules.def, one file schedule_*.c) is a pure function of (P stages, M micro-batches, stage,
 * micro-batches in flight). aq_program_check runs the programs of all stages against each other, symbolically, with
 * bounded link credits, and refuses a set that would deadlock, send an unexpected frame, use a slot twice, or miss a
 * micro-batch.
 *
 * How to run a program. Instructions belong to three chains:
 *
 *     forward chain   PREFETCH  RECV_FWD  FORWARD   SEND_FWD
 *     backward chain            RECV_BWD  BACKWARD  SEND_BWD
 *     weight chain                        WEIGHTS             (where the schedule splits backward)
 *
 * Each chain is run strictly in order. Between the chains only the slots bind: the first instruction that uses a slot
 * for micro-batch i (RECV_FWD, on stage 0 FORWARD) needs the slot's earlier micro-batch to have finished its last
 * (WEIGHTS where backward is split; else SEND_BWD, on stage 0 BACKWARD), BACKWARD i comes after FORWARD i, and
 * WEIGHTS i after BACKWARD i. So the interpreter (program_run.h) takes the first instruction in program order whose
 * chain has reached it and whose operands are there: no chain waits for another that is ready. Such a system is a
 * marked graph: no choice takes away what another needs. So where one order completes (that is what the dry run
 * proves), every order that timing may bring does, and with the same bits, because each kind of instruction runs in
 * order of micro-batches. NORM, REDUCE, STEP and MARK come after everything before them (barriers); PREFETCH waits for
 * nothing.
 *
 * A flush (pipeline.flush, gpipe): BACKWARD i also comes after the forwards of all micro-batches of the step, or with
 * fewer slots than M of its round of them. It binds on the last stage, where all backwards begin: no gradient is sent
 * before the last activation has arrived, as in the paper's GPipe and in AQ-SGD's runs. Without it a link carries both
 * ways at once.
 *
 * Staleness (train.staleness: 1; PipeDream-2BW, Narayanan et al. 2021). W_k are the weights after k updates, g_t the
 * gradient that step t (from 0) adds up, U_t the update rule with all its state, schedule and clipping:
 *
 *     g_t = gradient at W_max(t-1,0), of its forwards and its backwards alike;     W_t+1 = U_t(W_t, g_t)
 *
 * That is a formula, and nothing in it is timing: steps 0 and 1 are both at W_0, a void step has W_t+1 = W_t, and the
 * loss scale of fp16 is as old as the weights: step t has the one of after step t-2's update. So chains of step t+1 may
 * start as soon as STEP t-1 is done, in parallel with the backwards, NORM and STEP of step t. Chains and slots continue
 * from step to step: micro-batch i of a step uses slot (base + i) mod slots, base being the number of all micro-batches
 * before (0 without staleness, where every step starts with free slots), and slots may be up to 2M. Step t+2 waits for
 * STEP t, so that two steps are under way at most, with two versions of the weights and two buffers of gradients. A
 * step that a checkpoint or an evaluation follows is run to its end before the next starts: they see W_t+1 and no
 * message of step t+1. Evaluation and export use the newest weights, W_t+1.
 *
 * A step with fewer micro-batches than the program, down to none (split.mode: global), is run by the same program
 * without the instructions of those that are not there. No instruction waits for one of a later micro-batch, on any
 * stage (a flush waits only for those that are there): so where the whole completes, each beginning of it does.
 *
 * The instructions, for stage s of P, micro-batch i (0-based in the step), slot k:
 *   PREFETCH i   ask the caches for the messages of the samples of micro-batch i. i >= M: micro-batch i - M of the
 *                *next* step (skip it if that does not exist). The first step of a run has no predecessor: before it,
 *                the executor prefetches 0 .. window-1 itself (aq_program.window).
 *   RECV_FWD i   the frame FORWARD of micro-batch i from stage s-1, decoded into the input buffer of slot k; s > 0.
 *   FORWARD i    aq_stage_forward(slot k).
 *   SEND_FWD i   encode the output, send it to s+1; s < P-1.
 *   RECV_BWD i   the frame BACKWARD of micro-batch i from stage s+1; s < P-1.
 *   BACKWARD i   aq_stage_backward(slot k): gradients are added up in order of i. Split: its input half.
 *   SEND_BWD i   encode the gradient of the input, send it to s-1; s > 0. The slot is free after it, unless split.
 *   WEIGHTS i    aq_stage_weights(slot k): the weight half of a split backward. The slot is free after it.
 *   NORM         wait for the partial sum of squares from s+1, add one's own (aq_stage_gradient_sum2), pass it to s-1;
 *                stage 0 has the total, which goes back s -> s+1: what is clipped by, and how all stages know alike
 *                whether the gradient is finite. Frames without a body: no credits.
 *   REDUCE       (split.mode: global) average the gradients of all stages over the clients (client_sums.c). (replicas
 *                > 1) agree with the other replicas of this stage whether the step is the last one and its
 *                gradients finite, and average the gradients over them, where the optimizer averages gradients. Before
 *                NORM, which is then the norm of the mean.
 *   STEP         the optimizer. With replicas it may meet the others, too: those that average momenta or votes do so
 *                here.
 *   MARK         the end of the step; where a checkpoint or evaluation is due after this step, this is the place.
 * With staleness NORM's two halves are apart: step t+1's partial sum may leave before step t's total has come.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_PROGRAM_H
#define RUNTIME_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "job.h"
#include "runtime_text.h"

enum aq_op {
    AQ_OP_RECV_FWD = 1,
    AQ_OP_FORWARD = 2,
    AQ_OP_SEND_FWD = 3,
    AQ_OP_RECV_BWD = 4,
    AQ_OP_BACKWARD = 5,
    AQ_OP_SEND_BWD = 6,
    AQ_OP_WEIGHTS = 7,
    AQ_OP_PREFETCH = 8,
    AQ_OP_NORM = 9,
    AQ_OP_REDUCE = 10,
    AQ_OP_STEP = 11,
    AQ_OP_MARK = 12,
    AQ_OP_COUNT = 13
};

enum aq_chain { AQ_CHAIN_FORWARD = 0, AQ_CHAIN_BACKWARD = 1, AQ_CHAIN_WEIGHTS = 2, AQ_CHAINS = 3 };

/* "RECV_FWD"; never NULL. */
const char *aq_op_name(enum aq_op op);

/* AQ_CHAINS: of none. */
enum aq_chain aq_op_chain(enum aq_op op);

struct aq_instruction {
    uint8_t op; /* enum aq_op                                                        */
    uint8_t reserved;
    uint16_t slot;        /* of the stage; 0 where the instruction has none                    */
    uint32_t micro_batch; /* in the step; 0 where the instruction has none                     */
};

struct aq_program {
    const struct aq_instruction *code;
    uint32_t count;
    uint32_t stage, stages; /* s, P                                                            */
    uint32_t micro_batches; /* M                                                               */
    uint32_t slots;         /* micro-batches in flight: slots 0 .. slots-1 are used            */
    bool split;             /* backward has two halves                                         */
    bool flush;             /* backwards wait for all forwards of their round                  */
    uint32_t window;        /* PREFETCH runs this many micro-batches ahead; 0: none emitted    */
    uint32_t staleness;     /* 0 or 1: steps that may start before the update of this one      */
};

struct aq_schedule_request {
    enum aq_schedule_kind kind;
    uint32_t stages;         /* P, 1 .. AQ_JOB_STAGES_MAX                                       */
    uint32_t micro_batches;  /* M, 1 .. AQ_JOB_MICRO_BATCHES_MAX                                */
    uint32_t in_flight;      /* a count, AQ_IN_FLIGHT_DEFAULT, AQ_IN_FLIGHT_CLASSIC (job.h)     */
    uint32_t window;         /* PREFETCH this many micro-batches ahead; 0: none                 */
    bool reduce;             /* emit REDUCE (several replicas)                                  */
    uint32_t staleness;      /* 0 .. AQ_STALENESS_MAX: micro-batches of the next step are in flight, too */
    bool flush;              /* gpipe: backwards wait for all forwards of their round; others take no notice */
};

enum { AQ_STALENESS_MAX = 1 };

/* "gpipe"; never NULL. */
const char *aq_schedule_name(enum aq_schedule_kind kind);

/* Does it split backward into two halves? One that is yet to be chosen does not. */
bool aq_schedule_splits(enum aq_schedule_kind kind);

/* Micro-batches in flight (slots) of stage s under this request, of all steps that are under way. */
uint32_t aq_schedule_slots(const struct aq_schedule_request *request, uint32_t stage);

/* Most instructions that a program of M micro-batches can have. */
uint32_t aq_schedule_bound(uint32_t micro_batches);

/*
 * Emit the program of one stage into code (room for `capacity` instructions, at least aq_schedule_bound(M)). out->code
 * points at code. AQ_INVAL: a number out of range (logged). AQ_NOSPC: capacity (our caller's bug, but an answer).
 */
enum aq_status aq_schedule_emit(const struct aq_schedule_request *request, uint32_t stage, struct aq_instruction *code,
                                uint32_t capacity, struct aq_program *out);

struct aq_program_limits {
    uint32_t credits;        /* frames with a body that may be on one link in one direction: link.receive_slots */
    uint32_t send_frames;    /* frames that a sender may queue                                                  */
    uint32_t replicas;       /* as many copies run side by side, and meet at REDUCE; 0 is 1                     */
    bool summed;             /* a single one has a REDUCE, too (split.mode: global)                             */
};

/*
 * The dry run. programs: one per stage, in order. AQ_INVAL: refused; `why` (may be NULL) gets the reason and the
 * step-by-rank grid with the bad step marked; the first line of it is also logged. AQ_NOMEM.
 *
 * Proved when AQ_OK: no deadlock in any order that the rule above allows; every send is received as the
 * same micro-batch in the same order; no slot is used before it is free, none >= slots; every micro-batch has exactly
 * one forward and one backward on each stage, backwards in order, and where that is split one weight half, after it and
 * in order, too; nothing is left on a link at the end; REDUCE, NORM, STEP, MARK come once, after all that, and every
 * copy of a stage comes to its REDUCE. With staleness as many steps run as can be under way, and one more that meets
 * what they leave.
 */
enum aq_status aq_program_check(const struct aq_program *programs, uint32_t stages,
                                const struct aq_program_limits *limits, struct aq_text *why);

/*
 * The step-by-rank grid of a set of programs, a forward and a backward (or each of its halves) one column each, as when
 * all take the same time and links none: "F0 F1 F2 .. B0 W0". columns_max: longer ones are abridged in the middle
 * ("..."); 0: never.
 */
enum aq_status aq_program_grid(const struct aq_program *programs, uint32_t stages, uint32_t columns_max,
                               struct aq_text *text);

#endif
