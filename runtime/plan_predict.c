/*
 * plan_predict.c -- how long a step takes: an event simulation of the very programs that the workers run.
 *
 * Every stage is one thread of control that takes the first instruction in program order whose chain has reached it
 * (program.h), and works on it without a break. The stages of one host share its cores: when more threads work than
 * there are cores, each advances by cores / threads. Every link is two resources, one each way, that carry frames one
 * after another, with credits (receive slots) and a bounded queue of the sender. Steps follow each other; the last of
 * them is the answer, for pipelines overlap at their ends.
 */
#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan_private.h"

enum { STEPS = 3, NOBODY = -1 };

/* One direction of one edge. Frames are numbered over all steps: queued >= begun >= arrived >= taken. */
struct pipe {
    double seconds; /* a frame on the wire                              */
    uint64_t queued, begun, arrived, taken;
    double done_at;  /* the frame on the wire leaves it; DBL_MAX: none   */
    double *arrives; /* of the last receive_slots + 1 frames: when       */
};

struct actor {
    const struct aq_program *program;
    uint32_t *chain[2]; /* instruction numbers of the forward and the backward chain */
    uint32_t length[2], at[2];
    uint64_t *holder;   /* of each slot: step * M + micro-batch + 1 that holds it    */
    uint32_t step;      /* of STEPS                                                  */
    uint32_t backwards; /* done in this step                                         */
    enum { CHAINS, REDUCE, NORM_UP, NORM_DOWN, UPDATE } phase;
    double reduced_at;           /* REDUCE: when its links have carried everything; DBL_MAX: not begun */
    double partial_at, total_at; /* NORM frames: when they are here; DBL_MAX: not sent yet */
    double left;                 /* seconds of work left, alone on its cores; < 0: none       */
    int doing;                   /* chain 0 or 1, 2: update                                   */
    double ended[STEPS];
};

struct simulation {
    const struct aq_plan *plan;
    const struct aq_plan_costs *costs;
    uint32_t P, M, credits, send_frames;
    double now;
    struct actor *actors;
    struct pipe *forward, *backward;
};

static void place(struct aq_arena *arena, struct simulation *sim)
{
    const uint32_t P = sim->P, M = sim->M;
    sim->actors = aq_arena_take(arena, P * sizeof *sim->actors);
    sim->forward = aq_arena_take(arena, P * sizeof *sim->forward);
    sim->backward = aq_arena_take(arena, P * sizeof *sim->backward);
    for (uint32_t s = 0; s < P; s++) {
        uint32_t *chains[2];
        double *arrives[2];
        for (int k = 0; k < 2; k++) {
            chains[k] = aq_arena_take(arena, 3 * (size_t)M * sizeof(uint32_t));
            arrives[k] = aq_arena_take(arena, ((size_t)sim->credits + 1) * sizeof(double));
        }
        uint64_t *holder = aq_arena_take(arena, sim->plan->stages[s].program.slots * sizeof *holder);
        if (!arena->base) continue;
        sim->actors[s].chain[0] = chains[0];
        sim->actors[s].chain[1] = chains[1];
        sim->actors[s].holder = holder;
        sim->forward[s].arrives = arrives[0];
        sim->backward[s].arrives = arrives[1];
    }
}

static double frame_seconds(const struct simulation *sim, uint64_t step_bytes)
{
    const double rate = sim->costs->rate_mbps;
    return rate > 0 ? (double)step_bytes / sim->M * 8 / (rate * 1e6) : 0;
}

static enum aq_status simulation_open(struct simulation *sim, void **memory)
{
    struct aq_arena arena = {0};
    place(&arena, sim);
    AQ_TRY(aq_alloc(arena.used, memory));
    arena = (struct aq_arena){.base = *memory, .bytes = arena.used};
    place(&arena, sim);
    for (uint32_t s = 0; s < sim->P; s++) {
        struct actor *actor = &sim->actors[s];
        actor->program = &sim->plan->stages[s].program;
        actor->left = -1;
        actor->partial_at = actor->total_at = actor->reduced_at = DBL_MAX;
        for (uint32_t i = 0; i < actor->program->count; i++) {
            const uint8_t op = actor->program->code[i].op;
            const int chain = op >= AQ_OP_RECV_BWD;
            if (op < AQ_OP_RECV_FWD || op > AQ_OP_SEND_BWD) continue;
            actor->chain[chain][actor->length[chain]++] = i;
        }
        sim->forward[s].done_at = sim->backward[s].done_at = DBL_MAX;
        if (s + 1 == sim->P) continue;
        const struct aq_plan_edge *edge = &sim->plan->edges[s];
        sim->forward[s].seconds =
            frame_seconds(sim, sim->costs->cold ? edge->step_forward_cold : edge->step_forward_warm);
        sim->backward[s].seconds = frame_seconds(sim, edge->step_backward);
    }
    return AQ_OK;
}

/* --- links ------------------------------------------------------------------------------------------------------ */

static bool pipe_start(const struct simulation *sim, struct pipe *pipe)
{
    if (pipe->done_at != DBL_MAX || pipe->queued == pipe->begun) return false;
    if (pipe->begun - pipe->taken >= sim->credits) return false;
    pipe->begun++;
    pipe->done_at = sim->now + pipe->seconds;
    return true;
}

static bool pipe_finish(const struct simulation *sim, struct pipe *pipe)
{
    if (pipe->done_at > sim->now) return false;
    pipe->arrives[pipe->arrived++ % (sim->credits + 1)] = pipe->done_at + sim->costs->latency_s;
    pipe->done_at = DBL_MAX;
    return true;
}

static double pipe_arrival(const struct simulation *sim, const struct pipe *pipe)
{
    return pipe->arrived > pipe->taken ? pipe->arrives[pipe->taken % (sim->credits + 1)] : DBL_MAX;
}

/* --- stages ----------------------------------------------------------------------------------------------------- */

static const struct aq_instruction *chain_next(const struct actor *actor, int chain, uint32_t *index)
{
    if (actor->at[chain] == actor->length[chain]) return NULL;
    *index = actor->chain[chain][actor->at[chain]];
    return &actor->program->code[*index];
}

static double seconds_of(const struct simulation *sim, uint32_t s, enum aq_op op)
{
    const struct aq_plan_costs *costs = sim->costs;
    switch (op) {
    case AQ_OP_RECV_FWD:
        return costs->receive_s[s - 1];
    case AQ_OP_FORWARD:
        return costs->forward_s[s];
    case AQ_OP_SEND_FWD:
        return costs->send_s[s];
    case AQ_OP_RECV_BWD:
        return costs->receive_back_s[s];
    case AQ_OP_BACKWARD:
        return costs->backward_s[s];
    default:
        return costs->send_back_s[s - 1];
    }
}

/* Are the operands of this instruction here, now? */
static bool ready(const struct simulation *sim, uint32_t s, const struct aq_instruction *in)
{
    const struct actor *actor = &sim->actors[s];
    const bool opens = in->op == AQ_OP_RECV_FWD || (in->op == AQ_OP_FORWARD && s == 0);
    if (opens && actor->holder[in->slot]) return false;
    switch (in->op) {
    case AQ_OP_RECV_FWD:
        return pipe_arrival(sim, &sim->forward[s - 1]) <= sim->now;
    case AQ_OP_RECV_BWD:
        return pipe_arrival(sim, &sim->backward[s]) <= sim->now;
    case AQ_OP_SEND_FWD:
        return sim->forward[s].queued - sim->forward[s].begun < sim->send_frames;
    case AQ_OP_SEND_BWD:
        return sim->backward[s - 1].queued - sim->backward[s - 1].begun < sim->send_frames;
    case AQ_OP_BACKWARD: /* after the forward of its own micro-batch */
        return actor->holder[in->slot] == 2 * ((uint64_t)actor->step * sim->M + in->micro_batch) + 2;
    default:
        return true;
    }
}

static bool actor_start(struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    if (actor->left >= 0 || actor->step == STEPS || actor->phase != CHAINS) return false;
    uint32_t index[2] = {UINT32_MAX, UINT32_MAX};
    int best = NOBODY;
    for (int chain = 0; chain < 2; chain++) {
        const struct aq_instruction *in = chain_next(actor, chain, &index[chain]);
        if (in && ready(sim, s, in) && (best == NOBODY || index[chain] < index[best])) best = chain;
    }
    if (best == NOBODY) return false;
    const struct aq_instruction *in = &actor->program->code[index[best]];
    if (in->op == AQ_OP_RECV_FWD || (in->op == AQ_OP_FORWARD && s == 0))
        actor->holder[in->slot] = 2 * ((uint64_t)actor->step * sim->M + in->micro_batch) + 1;
    actor->doing = best;
    actor->left = seconds_of(sim, s, in->op);
    return true;
}

static void instruction_done(struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    uint32_t index;
    const struct aq_instruction *in = chain_next(actor, actor->doing, &index);
    actor->at[actor->doing]++;
    if (in->op == AQ_OP_RECV_FWD) sim->forward[s - 1].taken++;
    if (in->op == AQ_OP_RECV_BWD) sim->backward[s].taken++;
    if (in->op == AQ_OP_SEND_FWD) sim->forward[s].queued++;
    if (in->op == AQ_OP_SEND_BWD) sim->backward[s - 1].queued++;
    if (in->op == AQ_OP_FORWARD) actor->holder[in->slot]++; /* even: forwarded */
    if (in->op == AQ_OP_BACKWARD) actor->backwards++;
    if (in->op == (s == 0 ? AQ_OP_BACKWARD : AQ_OP_SEND_BWD)) actor->holder[in->slot] = 0;
    if (actor->at[0] < actor->length[0] || actor->at[1] < actor->length[1]) return;
    actor->phase = NORM_UP;
    if (sim->plan->replicas == 1) return;
    actor->phase = REDUCE;
    actor->reduced_at = sim->now + sim->costs->reduce_s[s];
}

static void update_done(struct simulation *sim, struct actor *actor)
{
    actor->ended[actor->step++] = sim->now;
    actor->phase = CHAINS;
    actor->at[0] = actor->at[1] = 0;
    actor->backwards = 0;
}

static bool actor_finish(struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    if (actor->left != 0) return false;
    actor->left = -1;
    if (actor->doing == 2)
        update_done(sim, actor);
    else
        instruction_done(sim, s);
    return true;
}

/* The end of a step: replicas average, the sum of squares goes up to stage 0, the total comes back, then the optimizer.
 */
static bool actor_end(struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    if (actor->left >= 0 || actor->step == STEPS) return false;
    if (actor->phase == REDUCE) {
        if (actor->reduced_at > sim->now) return false;
        actor->reduced_at = DBL_MAX;
        actor->phase = NORM_UP;
        return true;
    }
    if (actor->phase == NORM_UP) {
        if (s + 1 < sim->P && actor->partial_at > sim->now) return false;
        actor->partial_at = DBL_MAX;
        if (s > 0) sim->actors[s - 1].partial_at = sim->now + sim->costs->latency_s;
        actor->phase = NORM_DOWN;
        return true;
    }
    if (actor->phase == NORM_DOWN) {
        if (s > 0 && actor->total_at > sim->now) return false;
        actor->total_at = DBL_MAX;
        if (s + 1 < sim->P) sim->actors[s + 1].total_at = sim->now + sim->costs->latency_s;
        actor->phase = UPDATE;
        return true;
    }
    if (actor->phase != UPDATE) return false;
    actor->doing = 2;
    actor->left = sim->costs->step_s[s];
    return true;
}

/* --- time ------------------------------------------------------------------------------------------------------- */

/* By how much of its own time stage s advances a second: its host's cores, shared by the threads at work there. */
static double speed_of(const struct simulation *sim, uint32_t s)
{
    double threads = 0;
    for (uint32_t r = 0; r < sim->plan->ranks; r++) /* all replicas do the same at the same time */
        if (sim->actors[r % sim->P].left > 0 && aq_job_same_host(sim->plan->job, s, r))
            threads += sim->costs->threads[r % sim->P];
    return threads > sim->costs->cores ? sim->costs->cores / threads : 1;
}

static void settle(struct simulation *sim)
{
    for (bool moved = true; moved;) { /* ends: every move is one of finitely many instructions and frames */
        moved = false;
        for (uint32_t s = 0; s < sim->P; s++) {
            moved |= actor_finish(sim, s);
            moved |= actor_start(sim, s);
            moved |= actor_end(sim, s);
            moved |= pipe_finish(sim, &sim->forward[s]) || pipe_finish(sim, &sim->backward[s]);
            moved |= pipe_start(sim, &sim->forward[s]);
            moved |= pipe_start(sim, &sim->backward[s]);
        }
    }
}

static void earlier(double at, double now, double *next)
{
    if (at > now && at < *next) *next = at;
}

/* Go to the next moment at which something can change. False: nothing ever will. */
static bool advance(struct simulation *sim)
{
    double speeds[AQ_JOB_STAGES_MAX], next = DBL_MAX;
    for (uint32_t s = 0; s < sim->P; s++) {
        struct actor *actor = &sim->actors[s];
        speeds[s] = actor->left > 0 ? speed_of(sim, s) : 1;
        if (actor->left > 0) earlier(sim->now + actor->left / speeds[s], sim->now, &next);
        earlier(sim->forward[s].done_at, sim->now, &next);
        earlier(sim->backward[s].done_at, sim->now, &next);
        earlier(pipe_arrival(sim, &sim->forward[s]), sim->now, &next);
        earlier(pipe_arrival(sim, &sim->backward[s]), sim->now, &next);
        earlier(actor->partial_at, sim->now, &next);
        earlier(actor->total_at, sim->now, &next);
        earlier(actor->reduced_at, sim->now, &next);
    }
    if (next == DBL_MAX) return false;
    for (uint32_t s = 0; s < sim->P; s++) {
        struct actor *actor = &sim->actors[s];
        if (actor->left <= 0) continue;
        const double ends = sim->now + actor->left / speeds[s];
        actor->left -= (next - sim->now) * speeds[s];
        if (ends <= next || actor->left < 0) actor->left = 0; /* rounding leaves no crumbs */
    }
    sim->now = next;
    return true;
}

static bool running(const struct simulation *sim)
{
    for (uint32_t s = 0; s < sim->P; s++)
        if (sim->actors[s].step < STEPS) return true;
    return false;
}

static double step_end(const struct simulation *sim, uint32_t step)
{
    double end = 0;
    for (uint32_t s = 0; s < sim->P; s++)
        if (sim->actors[s].ended[step] > end) end = sim->actors[s].ended[step];
    return end;
}

/* --- the bound -------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void bound_by(struct aq_plan_prediction *out, double seconds,
                                                           const char *format, ...)
{
    if (seconds <= out->bound_s) return;
    out->bound_s = seconds;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->binds, sizeof out->binds, format, arguments);
    va_end(arguments);
}

static double stage_busy(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s)
{
    double seconds = costs->forward_s[s] + costs->backward_s[s];
    if (s > 0) seconds += costs->receive_s[s - 1] + costs->send_back_s[s - 1];
    if (s + 1 < plan->stage_count) seconds += costs->send_s[s] + costs->receive_back_s[s];
    return seconds * plan->micro_batches + costs->step_s[s];
}

/* Bytes that the store of stage s reads and writes in a step. */
static double cache_traffic(const struct aq_plan *plan, uint32_t s)
{
    double bytes = 0;
    if (s > 0) bytes += (double)plan->edges[s - 1].message_bytes;
    if (s + 1 < plan->stage_count) bytes += (double)plan->edges[s].message_bytes;
    return strcmp(plan->job->cache.kind, "memory") == 0 ? 0 : 2 * bytes * plan->batch;
}

static void bound_fill(const struct simulation *sim, struct aq_plan_prediction *out)
{
    const struct aq_plan *plan = sim->plan;
    const struct aq_plan_costs *costs = sim->costs;
    for (uint32_t s = 0; s < sim->P; s++) {
        out->compute_s[s] = stage_busy(plan, costs, s);
        bound_by(out, out->compute_s[s], "stage %u compute", s);
        if (plan->replicas > 1) bound_by(out, costs->reduce_s[s], "gradients of stage %u", s);
        out->forward_s[s] = sim->forward[s].seconds * sim->M;
        out->backward_s[s] = sim->backward[s].seconds * sim->M;
        bound_by(out, out->forward_s[s], "link %u-%u forward", s, s + 1);
        bound_by(out, out->backward_s[s], "link %u-%u backward", s, s + 1);
    }
    for (uint32_t s = 0; s < sim->P; s++) {
        double work = 0, traffic = 0;
        for (uint32_t r = 0; r < plan->ranks; r++)
            if (aq_job_same_host(plan->job, s, r)) {
                const uint32_t other = r % sim->P;
                const uint32_t threads = costs->threads[other] < costs->cores ? costs->threads[other] : costs->cores;
                work += out->compute_s[other] * threads;
                traffic += cache_traffic(plan, other);
            }
        const char *host = plan->job->pipeline.stages[s].host;
        if (work / costs->cores > out->cores_s) out->cores_s = work / costs->cores;
        bound_by(out, work / costs->cores, "cores of %.40s", host ? host : "this machine");
        if (costs->cache_mbps > 0)
            bound_by(out, traffic / (costs->cache_mbps * 1e6), "store of %.40s", host ? host : "this machine");
    }
}

enum aq_status aq_plan_predict(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                               struct aq_plan_prediction *out)
{
    struct simulation sim = {.plan = plan,
                             .costs = costs,
                             .P = plan->stage_count,
                             .M = plan->micro_batches,
                             .credits = plan->job->link.receive_slots,
                             .send_frames = plan->job->link.send_frames};
    struct aq_plan_prediction prediction = {0};
    void *memory = NULL;
    AQ_TRY(simulation_open(&sim, &memory));
    enum aq_status status = AQ_OK;
    for (settle(&sim); running(&sim) && status == AQ_OK; settle(&sim))
        if (!advance(&sim)) status = aq_fail(AQ_INVAL, "plan", "the simulated step stands still at %g s", sim.now);
    prediction.step_s = step_end(&sim, STEPS - 1) - step_end(&sim, STEPS - 2);
    bound_fill(&sim, &prediction);
    aq_free(memory);
    if (status == AQ_OK) *out = prediction;
    return status;
}
