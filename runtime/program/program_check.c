/*
 * program_check.c -- the dry run: the programs of all stages, each by itself in program order, then all against each
 * other by the executor's rule, tick by tick, with bounded links.
 *
 * The first pass proves each program sound: micro-batches go through their states in order, slots are free before they
 * are used, each kind of instruction comes in order of micro-batches, the end of the step is whole. The second runs all
 * stages by the rules of program_run.h, with a policy that counts ticks. A forward, a backward or half of one takes a
 * tick, everything else none; a frame can be received one tick after it was sent. If no stage moves in a whole tick,
 * none ever will: a deadlock. The same run draws the grid: at which tick each of these was. Several replicas run their
 * copies side by side; a stage's copies wait for each other at REDUCE. With staleness the second pass has several
 * steps. The ends of steps come in order, with both halves of NORM: executors wait for less.
 */
#include "program_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WHY_BYTES = 256, GRID_COLUMNS_MAX = 160 };

/* The last state that a micro-batch has reached on one stage. */
enum passed { NOTHING, RECEIVED, FORWARDED, SENT, GRADIENT, BACKWARDED, HALVED, DONE };

/* One direction of one edge: a queue of frames, in order of micro-batches, with the tick each was sent. */
struct link {
    uint32_t *tick; /* of all micro-batches */
    uint32_t head, tail;
};

/* The steps of the second pass: two that are under way, and one that meets what they leave. */
static uint32_t steps_of(const struct aq_program *program)
{
    return program->staleness ? program->staleness + 2 : 1;
}

struct rank {
    const struct aq_program *program;
    struct aq_program_run run;      /* of the second pass                              */
    uint32_t at;                    /* first pass: the next instruction; then: the bad one */
    uint32_t step;                  /* steps that are done                             */
    uint32_t *holder;               /* first pass, of each slot: micro-batch + 1, 0: free */
    uint8_t *passed;                /* the same, of each micro-batch: enum passed      */
    uint32_t done[AQ_OP_COUNT];     /* the same, by kind: the next must have this number */
    uint32_t *ticks[AQ_CHAINS];     /* of each micro-batch of all steps: when that chain computed, + 1; 0: not yet */
    uint32_t busy_tick;             /* tick + 1 of its last compute                    */
    bool partial, total, norm_sent; /* NORM: has arrived, has arrived, own partial sum passed on */
    uint32_t reduces, norms, steps, marks;
    uint32_t met; /* REDUCE and STEP that it has come to */
};

struct run {
    struct rank *ranks;              /* by rank: replica x stages + stage */
    struct link *forward, *backward; /* of the edge behind each rank */
    const struct aq_program_limits *limits;
    uint32_t stages, replicas, micro_batches, steps, tick;
    bool moved;          /* in this tick, some rank */
    char why[WHY_BYTES]; /* not empty: refused */
    uint32_t bad_rank;   /* then: whose instruction rank.at is wrong */
};

__attribute__((format(printf, 3, 4))) static void refuse(struct run *run, uint32_t rank, const char *format, ...)
{
    if (run->why[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(run->why, sizeof run->why, format, arguments);
    va_end(arguments);
    run->bad_rank = rank;
}

/* --- memory: one block, cut by an arena ------------------------------------------------------------------------- */

static void place(struct aq_arena *arena, struct run *run, const struct aq_program *programs)
{
    const uint32_t P = run->stages, count = P * run->replicas, M = run->micro_batches;
    const size_t all = (size_t)M * run->steps;
    struct rank *ranks = aq_arena_take(arena, count * sizeof *ranks);
    struct link *forward = aq_arena_take(arena, count * sizeof *forward);
    struct link *backward = aq_arena_take(arena, count * sizeof *backward);
    for (uint32_t r = 0; r < count; r++) {
        struct rank rank = {.program = &programs[r % P]};
        rank.holder = aq_arena_take(arena, (size_t)programs[r % P].slots * sizeof(uint32_t));
        rank.passed = aq_arena_take(arena, M);
        for (int chain = 0; chain < AQ_CHAINS; chain++)
            rank.ticks[chain] = aq_arena_take(arena, all * sizeof(uint32_t));
        struct link links[2] = {{0}};
        for (int k = 0; k < 2; k++)
            links[k].tick = aq_arena_take(arena, all * sizeof(uint32_t));
        if (!arena->base) continue;
        ranks[r] = rank;
        forward[r] = links[0];
        backward[r] = links[1];
    }
    run->ranks = ranks;
    run->forward = forward;
    run->backward = backward;
}

static enum aq_status run_open(struct run *run, const struct aq_program *programs, void **memory)
{
    struct aq_arena arena = {0};
    place(&arena, run, programs);
    AQ_TRY(aq_alloc(arena.used, memory));
    arena = (struct aq_arena){.base = *memory, .bytes = arena.used};
    place(&arena, run, programs);
    return AQ_OK;
}

/* --- first pass: each program by itself ------------------------------------------------------------------------- */

/* Which state an instruction needs, and leaves, on this stage; the ends of the pipeline have shorter chains. */
static void states_of(const struct run *run, uint32_t r, enum aq_op op, enum passed *before, enum passed *after)
{
    const bool first = r % run->stages == 0, last = (r + 1) % run->stages == 0;
    const enum passed end = run->ranks[r].program->split ? HALVED : DONE;
    switch (op) {
    case AQ_OP_RECV_FWD:
        *before = NOTHING, *after = RECEIVED;
        break;
    case AQ_OP_FORWARD:
        *before = first ? NOTHING : RECEIVED, *after = FORWARDED;
        break;
    case AQ_OP_SEND_FWD:
        *before = FORWARDED, *after = SENT;
        break;
    case AQ_OP_RECV_BWD:
        *before = SENT, *after = GRADIENT;
        break;
    case AQ_OP_BACKWARD:
        *before = last ? FORWARDED : GRADIENT, *after = first ? end : BACKWARDED;
        break;
    case AQ_OP_SEND_BWD:
        *before = BACKWARDED, *after = end;
        break;
    default: /* WEIGHTS */
        *before = HALVED, *after = DONE;
        break;
    }
}

/* Is the instruction allowed in its stage's state? Reports the reason if not. */
static bool allowed(struct run *run, uint32_t r, const struct aq_instruction *in)
{
    static const char *const kinds[AQ_OP_COUNT] = {
        [AQ_OP_RECV_FWD] = "receives", [AQ_OP_FORWARD] = "forwards",   [AQ_OP_SEND_FWD] = "sends",
        [AQ_OP_RECV_BWD] = "receives", [AQ_OP_BACKWARD] = "backwards", [AQ_OP_SEND_BWD] = "sends",
        [AQ_OP_WEIGHTS] = "weight halves"};
    struct rank *rank = &run->ranks[r];
    const bool first = r % run->stages == 0, last = (r + 1) % run->stages == 0;
    enum passed before, after;
    states_of(run, r, in->op, &before, &after);
    if (in->micro_batch >= run->micro_batches)
        refuse(run, r, "there is no micro-batch %u", in->micro_batch);
    else if (in->slot >= rank->program->slots)
        refuse(run, r, "slot %u, but the stage has %u", in->slot, rank->program->slots);
    else if (first && (in->op == AQ_OP_RECV_FWD || in->op == AQ_OP_SEND_BWD))
        refuse(run, r, "the first stage has no stage before it");
    else if (last && (in->op == AQ_OP_SEND_FWD || in->op == AQ_OP_RECV_BWD))
        refuse(run, r, "the last stage has no stage after it");
    else if ((enum passed)rank->passed[in->micro_batch] != before)
        refuse(run, r, "comes out of turn, or twice, for this micro-batch");
    else if (before == NOTHING && rank->holder[in->slot])
        refuse(run, r, "slot %u still holds micro-batch %u", in->slot, rank->holder[in->slot] - 1);
    else if (before != NOTHING && rank->holder[in->slot] != in->micro_batch + 1)
        refuse(run, r, "slot %u does not hold this micro-batch", in->slot);
    else if (in->micro_batch != rank->done[in->op])
        refuse(run, r, "%s must come in order, micro-batch %u is next", kinds[in->op], rank->done[in->op]);
    return !run->why[0];
}

/* Take a micro-batch one state on; slots are held from the first instruction to the last. */
static void pass_on(struct run *run, uint32_t r, const struct aq_instruction *in)
{
    struct rank *rank = &run->ranks[r];
    enum passed before, after;
    states_of(run, r, in->op, &before, &after);
    rank->holder[in->slot] = after == DONE ? 0 : in->micro_batch + 1;
    rank->passed[in->micro_batch] = (uint8_t)after;
    rank->done[in->op]++;
}

static void check_tail(struct run *run, uint32_t r, const struct aq_instruction *in)
{
    struct rank *rank = &run->ranks[r];
    if (in->op < AQ_OP_NORM || in->op > AQ_OP_MARK)
        refuse(run, r, "there is no such instruction (%u)", in->op);
    else if (rank->done[AQ_OP_BACKWARD] != run->micro_batches)
        refuse(run, r, "comes before all backwards are done");
    else if (rank->program->split && rank->done[AQ_OP_WEIGHTS] != run->micro_batches)
        refuse(run, r, "comes before all weight halves are done");
    else if (in->op == AQ_OP_REDUCE && rank->norms > 0)
        refuse(run, r, "comes after NORM, which is to be that of the mean");
    else if (in->op == AQ_OP_STEP && rank->reduces != (run->replicas > 1 || run->limits->summed))
        refuse(run, r, "comes after %u REDUCE of a pipeline in %u replicas", rank->reduces, run->replicas);
    else if (in->op == AQ_OP_STEP && rank->norms != 1)
        refuse(run, r, "comes after %u NORM, from which all stages learn whether the gradient is finite", rank->norms);
    else if (in->op == AQ_OP_MARK && rank->steps != 1)
        refuse(run, r, "comes before STEP");
    rank->reduces += in->op == AQ_OP_REDUCE;
    rank->norms += in->op == AQ_OP_NORM;
    rank->steps += in->op == AQ_OP_STEP;
    rank->marks += in->op == AQ_OP_MARK;
}

static void check_program(struct run *run, uint32_t r)
{
    struct rank *rank = &run->ranks[r];
    for (rank->at = 0; rank->at < rank->program->count; rank->at++) {
        const struct aq_instruction *in = &rank->program->code[rank->at];
        if (in->op == AQ_OP_PREFETCH) {
            if (in->micro_batch >= 2 * run->micro_batches) refuse(run, r, "looks beyond the next step");
        } else if (aq_op_chain(in->op) != AQ_CHAINS) {
            if (allowed(run, r, in)) pass_on(run, r, in);
        } else {
            check_tail(run, r, in);
        }
        if (run->why[0]) return;
    }
    for (uint32_t i = 0; i < run->micro_batches; i++)
        if (rank->passed[i] != DONE) refuse(run, r, "ends, but micro-batch %u is not finished", i);
    if (rank->steps != 1 || rank->marks != 1) refuse(run, r, "ends with %u STEP and %u MARK", rank->steps, rank->marks);
}

/* --- second pass: all against each other ------------------------------------------------------------------------ */

static bool link_send(const struct run *run, struct link *link)
{
    if (link->tail - link->head >= run->limits->credits + run->limits->send_frames) return false;
    link->tick[link->tail++] = run->tick;
    return true;
}

static bool link_receive(const struct run *run, struct link *link)
{
    if (link->head == link->tail || link->tick[link->head] >= run->tick) return false;
    link->head++;
    return true;
}

/* Whose instruction the policy is asked about. */
struct mover {
    struct run *run;
    uint32_t r;
};

/* The policy that counts: one compute per tick, and bounded links. */
static enum aq_status count(void *self, const struct aq_program_item *item)
{
    const struct mover *mover = self;
    struct run *run = mover->run;
    const uint32_t r = mover->r;
    struct rank *rank = &run->ranks[r];
    switch (item->op) {
    case AQ_OP_RECV_FWD:
        return link_receive(run, &run->forward[r - 1]) ? AQ_OK : AQ_AGAIN;
    case AQ_OP_RECV_BWD:
        return link_receive(run, &run->backward[r]) ? AQ_OK : AQ_AGAIN;
    case AQ_OP_SEND_FWD:
        return link_send(run, &run->forward[r]) ? AQ_OK : AQ_AGAIN;
    case AQ_OP_SEND_BWD:
        return link_send(run, &run->backward[r - 1]) ? AQ_OK : AQ_AGAIN;
    case AQ_OP_PREFETCH:
        return AQ_OK;
    default: /* FORWARD, BACKWARD, WEIGHTS */
        if (rank->busy_tick == run->tick + 1) return AQ_AGAIN;
        rank->busy_tick = rank->ticks[aq_op_chain(item->op)][item->number] = run->tick + 1;
        return AQ_OK;
    }
}

/* Partial sums go from the last stage to the first, the total comes back. */
static bool move_norm(struct run *run, uint32_t r)
{
    struct rank *rank = &run->ranks[r];
    const bool first = r % run->stages == 0, last = (r + 1) % run->stages == 0;
    if (!rank->norm_sent) {
        if (!last && !rank->partial) return false;
        rank->norm_sent = run->moved = true;
        if (!first) run->ranks[r - 1].partial = true;
    }
    if (!first && !rank->total) return false;
    if (!last) run->ranks[r + 1].total = true;
    return true;
}

/* The copies of a stage wait for each other: none has the mean before the last has brought its part. */
static bool move_together(struct run *run, uint32_t r, enum aq_op op)
{
    const uint32_t meeting = 2 * run->ranks[r].step + (op == AQ_OP_REDUCE ? 1 : 2);
    run->ranks[r].met = meeting;
    for (uint32_t other = r % run->stages; other < run->stages * run->replicas; other += run->stages)
        if (run->ranks[other].met < meeting) return false;
    return true;
}

static bool rank_ended(const struct run *run, const struct rank *rank)
{
    return rank->step == run->steps;
}

/* One step more may run, unless all have begun. begun: how many have. */
static void rank_add(const struct run *run, struct rank *rank, uint32_t begun)
{
    if (begun < run->steps) aq_program_run_add(&rank->run, rank->program, run->micro_batches);
}

/* An instruction of the end of the step that is due. */
static bool move_tail(struct run *run, uint32_t r)
{
    struct rank *rank = &run->ranks[r];
    const struct aq_instruction *due = aq_program_run_due(&rank->run);
    if (!due) return false;
    if ((due->op == AQ_OP_REDUCE || due->op == AQ_OP_STEP) && !move_together(run, r, due->op)) return false;
    if (due->op == AQ_OP_NORM && !move_norm(run, r)) return false;
    if (aq_program_run_pass(&rank->run)) return true;
    rank->partial = rank->total = rank->norm_sent = false;
    aq_program_run_next(&rank->run);
    rank_add(run, rank, ++rank->step + rank->program->staleness);
    return true;
}

/* One instruction: of the chains, then of the end of the step. */
static bool move(struct run *run, uint32_t r)
{
    struct mover mover = {.run = run, .r = r};
    const struct aq_program_policy policy = {.begin = count, .self = &mover};
    uint32_t lane;
    if (aq_program_run_begin(&run->ranks[r].run, &policy, &lane) != AQ_OK) return move_tail(run, r);
    (void)aq_program_run_end(&run->ranks[r].run, lane);
    return true;
}

/* Nobody moves: mark the first stage that has not ended, at what it waits for. */
static void run_deadlock(struct run *run)
{
    for (uint32_t r = 0; r < run->stages * run->replicas; r++) {
        struct rank *rank = &run->ranks[r];
        if (rank_ended(run, rank)) continue;
        rank->at = aq_program_run_at(&rank->run);
        refuse(run, r, "waits for ever: a deadlock, no stage can continue");
        return;
    }
}

/* Runs until all have ended, or none can move. Ends: every tick moves an instruction, or is the last. */
static void run_all(struct run *run)
{
    const uint32_t ranks = run->stages * run->replicas;
    for (uint32_t r = 0; r < ranks && !run->why[0]; r++)
        check_program(run, r);
    if (run->why[0]) return;
    for (uint32_t r = 0; r < ranks; r++) {
        struct rank *rank = &run->ranks[r];
        aq_program_run_init(&rank->run, rank->program, AQ_LANES_CHAINS, 0);
        for (uint32_t step = 0; step <= rank->program->staleness; step++)
            rank_add(run, rank, step);
    }
    for (run->tick = 0; !run->why[0]; run->tick++) {
        bool ended = true;
        run->moved = false;
        for (uint32_t r = 0; r < ranks; r++) {
            while (move(run, r))
                run->moved = true;
            ended = ended && rank_ended(run, &run->ranks[r]);
        }
        if (ended) return; /* each chain sent and received every micro-batch once: nothing is left on a link */
        if (!run->moved) run_deadlock(run);
    }
}

/* --- the grid --------------------------------------------------------------------------------------------------- */

static int cell_width(uint32_t micro_batches)
{
    int width = 2;
    for (uint32_t m = micro_batches - 1; m >= 10; m /= 10)
        width++;
    return width;
}

/* Column by column of one stage; columns from skip_from to skip_to are left out. cells: one row of `columns` entries.
 */
static void grid_row(const struct run *run, uint32_t s, uint32_t columns, uint32_t skip_from, uint32_t skip_to,
                     uint32_t *cells, struct aq_text *text)
{
    const struct rank *rank = &run->ranks[s];
    const int width = cell_width(run->micro_batches);
    memset(cells, 0, columns * sizeof *cells);
    const uint32_t M = run->micro_batches;
    for (uint32_t i = 0; i < M * run->steps; i++)
        for (int chain = 0; chain < AQ_CHAINS; chain++)
            if (rank->ticks[chain][i]) cells[rank->ticks[chain][i] - 1] = 1 + i % M * AQ_CHAINS + (uint32_t)chain;
    aq_text_add(text, "stage %-2u |", s);
    for (uint32_t t = 0; t < columns; t++) {
        if (t == skip_from) aq_text_add(text, " ...");
        if (t >= skip_from && t < skip_to) continue;
        char cell[16];
        if (cells[t])
            snprintf(cell, sizeof cell, "%c%u", "FBW"[(cells[t] - 1) % AQ_CHAINS], (cells[t] - 1) / AQ_CHAINS);
        else
            snprintf(cell, sizeof cell, ".");
        aq_text_add(text, " %-*s", width, cell);
    }
    while (text->used && text->bytes[text->used - 1] == ' ')
        text->bytes[--text->used] = 0;
    if (run->why[0] && s == run->bad_rank) {
        const uint32_t at = rank->at < rank->program->count ? rank->at : rank->program->count - 1;
        const struct aq_instruction *in = &rank->program->code[at];
        aq_text_add(text, " >%s %u<", aq_op_name(in->op), in->micro_batch);
    }
    aq_text_add(text, "\n");
}

static enum aq_status grid(const struct run *run, uint32_t columns_max, struct aq_text *text)
{
    uint32_t columns = 0;
    for (uint32_t s = 0; s < run->stages; s++)
        if (run->ranks[s].busy_tick > columns) columns = run->ranks[s].busy_tick;
    uint32_t skip_from = UINT32_MAX, skip_to = UINT32_MAX;
    const uint32_t cells_max = columns_max / (uint32_t)(cell_width(run->micro_batches) + 1);
    if (columns_max && columns > cells_max) {
        skip_from = (cells_max + 1) / 2;
        skip_to = columns - cells_max / 2;
    }
    void *cells = NULL;
    AQ_TRY(aq_alloc((columns + 1) * sizeof(uint32_t), &cells));
    for (uint32_t s = 0; s < run->stages; s++)
        grid_row(run, s, columns, skip_from, skip_to, cells, text);
    aq_free(cells);
    return text->status;
}

static bool shapes_agree(const struct aq_program *programs, uint32_t stages)
{
    if (stages < 1 || stages > AQ_JOB_STAGES_MAX) return false;
    for (uint32_t s = 0; s < stages; s++) {
        const struct aq_program *program = &programs[s];
        if (program->stage != s || program->stages != stages) return false;
        if (program->micro_batches != programs[0].micro_batches) return false;
        if (program->micro_batches < 1 || program->micro_batches > AQ_JOB_MICRO_BATCHES_MAX) return false;
        if (program->staleness > AQ_STALENESS_MAX || program->staleness != programs[0].staleness) return false;
        if (program->slots < 1 || program->slots > program->micro_batches * (1 + program->staleness)) return false;
    }
    return true;
}

enum aq_status aq_program_check(const struct aq_program *programs, uint32_t stages,
                                const struct aq_program_limits *limits, struct aq_text *why)
{
    if (!shapes_agree(programs, stages))
        return aq_fail(AQ_INVAL, "program", "the programs of %u stages do not belong together", stages);
    struct run run = {.limits = limits,
                      .stages = stages,
                      .replicas = limits->replicas > 1 ? limits->replicas : 1,
                      .micro_batches = programs[0].micro_batches,
                      .steps = steps_of(&programs[0])};
    void *memory = NULL;
    AQ_TRY(run_open(&run, programs, &memory));
    run_all(&run);
    enum aq_status status = AQ_OK;
    if (run.why[0]) {
        const struct rank *rank = &run.ranks[run.bad_rank];
        const bool inside = rank->at < rank->program->count;
        const struct aq_instruction *in = inside ? &rank->program->code[rank->at] : NULL;
        char line[2 * WHY_BYTES];
        snprintf(line, sizeof line, "stage %u, instruction %u%s%s%s, micro-batch %u: %s", run.bad_rank % stages,
                 rank->at, in ? " (" : "", in ? aq_op_name(in->op) : "", in ? ")" : "", in ? in->micro_batch : 0,
                 run.why);
        status = aq_fail(AQ_INVAL, "program", "%s", line);
        if (why) {
            aq_text_add(why, "%s\n", line);
            (void)grid(&run, GRID_COLUMNS_MAX, why);
        }
    }
    aq_free(memory);
    return status;
}

enum aq_status aq_program_grid(const struct aq_program *programs, uint32_t stages, uint32_t columns_max,
                               struct aq_text *text)
{
    if (!shapes_agree(programs, stages))
        return aq_fail(AQ_INVAL, "program", "the programs of %u stages do not belong together", stages);
    struct aq_program_limits limits = {.credits = programs[0].micro_batches, .send_frames = 1};
    for (uint32_t k = 0; k < programs[0].count; k++) {
        if (programs[0].code[k].op == AQ_OP_REDUCE) limits.replicas = 2;
    }
    /* Replicas run alike: the first of them shows all. */
    struct run run = {.limits = &limits,
                      .stages = stages,
                      .replicas = limits.replicas > 1 ? limits.replicas : 1,
                      .micro_batches = programs[0].micro_batches,
                      .steps = steps_of(&programs[0])};
    void *memory = NULL;
    AQ_TRY(run_open(&run, programs, &memory));
    run_all(&run);
    const enum aq_status status = grid(&run, columns_max, text);
    aq_free(memory);
    return status;
}
