/*
 * plan_simulate.c -- how long a step takes: an event simulation of the programs that the workers run, by the same
 * interpreter (program_run.h), with a policy that keeps a clock.
 *
 * Caveats first. Times that were never measured are not in it: digests, tables of rows, the copies of sockets, the
 * coder of packed bodies where it takes cores (it does delay frames). On a GPU kernels of one stage do not slow each
 * other; stages that share a GPU take turns by equal parts.
 *
 * On a CPU a stage is one thread of control that works on one instruction without a break. The stages of one host share
 * its cores: when more threads work than there are cores, each advances by cores / threads. On a GPU a stage has three
 * streams (docs/DECISIONS.md 0058): one computes, one codes what is sent, one decodes what came. An instruction starts
 * when its stream is free and its operands are present, in order of its kind; the plan sets the count of copies of a
 * cut's values, so that one is coded while the next is computed.
 *
 * Every link is two resources, one each way, that carry frames one after another and hand each over half a round trip
 * after it has left. The two links of a split job's client share its line: while both carry, each has half of its rate.
 * A frame needs a credit: that of a frame before is back half a round trip after it was decoded. A send buffer is free
 * half a round trip after its frame was there (links that heal keep it until then), else when it has left. Replicas
 * reduce over their own links while they pack and unpack: the longer counts. Optimizers that average gradients do so
 * before the norm; the others in their update, piece by piece (0056). The gradient of a tied table goes up when the
 * chains are done. Its values come down after the update (plan_tied.c); with model.tied: compressed, rows come down
 * before the norm. Steps follow each other; the last of them is the answer, because steps overlap at their ends (with
 * lost packets, plan_loss.c, the mean of many). With train.staleness the chains of a step start when the update before
 * the last is done, and the answer is the mean of the last two.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "plan_private.h"
#include "program_run.h"

enum {
    STEPS = 3,
    STEPS_STALE = 8,
    STEPS_MAX = 66,
    LOSSY_FRAMES = 4096,
    LOSSY_LEAST = 16,
    STREAMS = 3,
    END_OF_STEP = AQ_PROGRAM_LANES /* a stream's work that is no lane's: a reduction or the update */
};

/* A stage's streams; on a CPU all work is in one. */
enum { RECEIVE = 0, COMPUTE = 1, SEND = 2 };

/*
 * One direction of one edge. Frames are numbered over all steps: queued >= begun >= arrived >= taken >= credited, and
 * arrived >= acknowledged.
 */
struct pipe {
    struct aq_plan_window window;
    double seconds;      /* a frame on the wire                                                             */
    struct pipe *beside; /* shares its line: each has half of the rate while both carry; NULL: none    */
    double frame_bytes;
    double tied_s;     /* what a tied table needs of a step, on the wire          */
    double tied_until; /* it leaves the wire then; frames from tied_behind on wait */
    uint64_t tied_behind;
    uint32_t edge;
    bool forward;
    double delay; /* from leaving the wire to being there: latency, and packing where bodies go packed */
    double back;  /* of a credit, to the sender                                                      */
    double held;  /* from being there to the sender's buffer being free; < 0: it was before           */
    uint64_t queued, begun, arrived, taken, credited, acknowledged;
    double done_at;  /* the frame on the wire leaves it; DBL_MAX: none   */
    double *arrives; /* by frame: when it is there                       */
    double *returns; /* by frame: when its credit is back                */
};

/* Work in order, one item at a time: a stage has one stream on a CPU, three on a GPU. */
struct stream {
    double left; /* seconds of work left, at full speed, at the time `since`; < 0: none */
    double since;
    double ends;   /* at the stage's speed; while left > 0 */
    uint32_t lane; /* whose instruction, or END_OF_STEP */
};

struct actor {
    const struct aq_program *program;
    struct aq_program_run run;
    struct stream streams[STREAMS];
    double speed; /* seconds of work done per second: less than 1 if others share its cores or GPU */
    bool gpu;
    bool works;        /* a stream had work left when hosts were last counted */
    uint32_t step;     /* of the simulation's: updates that are done                   */
    uint32_t partials; /* NORM: steps whose partial sum has been sent                 */
    enum { CHAINS, TIED_UP, TIED_ROWS, REDUCE_DUE, REDUCE, NORM_UP, NORM_DOWN, UPDATE, UPDATING, TIED_DOWN } phase;
    double reduced_at;                                 /* when its links have carried everything; DBL_MAX: not begun */
    double partial_at[STEPS_MAX], total_at[STEPS_MAX]; /* NORM frames: when they are here; DBL_MAX: not sent yet */
    double tied_up_at[STEPS_MAX], tied_down_at[STEPS_MAX]; /* the same of what a tied table needs                   */
    double ended[STEPS_MAX];
};

/* Of stages: most are at rest at most moments. */
struct set {
    uint64_t words[(AQ_JOB_STAGES_MAX + 63) / 64];
};

struct simulation {
    const struct aq_plan *plan;
    const struct aq_plan_costs *costs;
    const struct aq_plan_scene *scene;
    uint32_t P, M, steps, staleness;
    double carried_s[AQ_JOB_STAGES_MAX]; /* a step's share of what it waits for the links of replicas in its update */
    enum aq_tied tied;                   /* AQ_TIED_NO also where nothing crosses a link */
    struct aq_plan_tied tied_words;
    double now;
    uint32_t over; /* stages that have done all steps */
    struct actor *actors;
    struct pipe *forward, *backward;
    struct set dirty;                  /* stages where something may happen now, or on the link behind */
    struct set changed;                /* where something has happened since `here` was set            */
    double here[AQ_JOB_STAGES_MAX];    /* the next moment at which something can happen there           */
    double working[AQ_JOB_STAGES_MAX]; /* threads at work on the cores of the host of stage s, or stages on its GPU */
    uint32_t host[AQ_JOB_STAGES_MAX];  /* the first stage that shares a stage's */
    /* Of all replicas, workers of stage t on the host of stage s, and on its GPU. */
    uint32_t colocated_first[AQ_JOB_STAGES_MAX], near_end[AQ_JOB_STAGES_MAX]; /* of stage t: no others share with it */
    uint16_t beside[AQ_JOB_STAGES_MAX][AQ_JOB_STAGES_MAX], sharing[AQ_JOB_STAGES_MAX][AQ_JOB_STAGES_MAX];
};

static void set_add(struct set *set, uint32_t s)
{
    set->words[s / 64] |= 1ull << s % 64;
}

/* Removes and returns the first member from `s` on; P: the set has no more. */
static uint32_t set_take(struct set *set, uint32_t s, uint32_t P)
{
    for (uint32_t w = s / 64; s < P; s = ++w * 64) {
        const uint64_t rest = set->words[w] >> s % 64 << s % 64;
        if (!rest) continue;
        set->words[w] &= ~(rest & -rest);
        return w * 64 + (uint32_t)__builtin_ctzll(rest);
    }
    return P;
}

static void place(struct aq_arena *arena, struct simulation *sim)
{
    const uint32_t P = sim->P, M = sim->M;
    sim->actors = aq_arena_take(arena, P * sizeof *sim->actors);
    sim->forward = aq_arena_take(arena, P * sizeof *sim->forward);
    sim->backward = aq_arena_take(arena, P * sizeof *sim->backward);
    for (uint32_t s = 0; s < P; s++) {
        double *times[4];
        for (int k = 0; k < 4; k++)
            times[k] = aq_arena_take(arena, sim->steps * (size_t)M * sizeof(double));
        if (!arena->base) continue;
        sim->forward[s].arrives = times[0];
        sim->forward[s].returns = times[1];
        sim->backward[s].arrives = times[2];
        sim->backward[s].returns = times[3];
    }
}

/*
 * Headers go as they are; they are few, and the share of a body is taken for that of the whole frame. Bytes that are
 * sure to go from GPU to GPU are neither paced nor packed.
 */
static void pipe_open(const struct simulation *sim, uint32_t edge, struct pipe *pipe, uint64_t step_bytes, double share)
{
    const bool carried = aq_plan_carries(sim->plan, edge);
    const double rate = carried ? 0 : aq_plan_lossy_rate(sim->plan, sim->costs, edge);
    const double frame = carried ? 0 : (double)step_bytes / sim->plan->micro_batches;
    const bool forward = pipe == &sim->forward[edge];
    pipe->window = sim->scene->windows[edge];
    pipe->done_at = DBL_MAX;
    pipe->seconds = rate > 0 ? frame * share * 8 / (rate * 1e6) : 0;
    if (sim->tied != AQ_TIED_NO && rate > 0) {
        const struct aq_plan_tied *words = &sim->tied_words;
        const uint64_t bytes = aq_plan_tied_bytes(sim->plan, edge, forward ? words->down_words : words->up_words);
        pipe->tied_s = (double)bytes * 8 / (rate * 1e6);
    }
    pipe->edge = edge;
    pipe->forward = forward;
    pipe->frame_bytes = frame * share;
    pipe->back = sim->costs->latency_s[edge];
    pipe->delay = pipe->back + (share < 1 ? frame * AQ_LINK_PACK_BYTE_NS * 1e-9 : 0);
    pipe->held = sim->plan->job->link.outage_ns_max ? pipe->back : -pipe->delay;
}

static void line_share(struct pipe *pipe, struct pipe *other)
{
    pipe->beside = other;
    other->beside = pipe;
}

/* Frames on a shared line take this many times longer from now on than they did. */
static void line_slow(const struct simulation *sim, struct pipe *pipe, double times)
{
    if (pipe && pipe->done_at != DBL_MAX) pipe->done_at = sim->now + times * fmax(pipe->done_at - sim->now, 0);
}

/* One step more may run, unless all have begun. begun: how many have. */
static void actor_add(const struct simulation *sim, struct actor *actor, uint32_t begun)
{
    if (begun < sim->steps) aq_program_run_add(&actor->run, actor->program, sim->M);
}

static void actor_open(const struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    actor->program = &sim->scene->programs[s];
    actor->gpu = aq_plan_on_gpu(sim->plan, s);
    aq_program_run_init(&actor->run, actor->program, actor->gpu ? AQ_LANES_KINDS : AQ_LANES_TIMED,
                        sim->plan->stages[s].boundary_copies);
    for (uint32_t step = 0; step <= sim->staleness; step++)
        actor_add(sim, actor, step);
    actor->reduced_at = DBL_MAX;
    for (uint32_t step = 0; step < STEPS_MAX; step++)
        actor->partial_at[step] = actor->total_at[step] = actor->tied_up_at[step] = actor->tied_down_at[step] = DBL_MAX;
    for (int i = 0; i < STREAMS; i++)
        actor->streams[i].left = -1;
}

static void tied_fill(struct simulation *sim)
{
    const struct aq_plan *plan = sim->plan;
    sim->tied = AQ_TIED_NO;
    if (!aq_plan_ties(plan) || aq_plan_tied_local(plan)) return;
    if (aq_plan_tied_traffic(plan, plan->model.tied, &sim->tied_words) == AQ_OK) sim->tied = plan->model.tied;
}

static enum aq_status simulation_open(struct simulation *sim, void **memory)
{
    const struct aq_plan_costs *costs = sim->costs;
    struct aq_arena arena = {0};
    place(&arena, sim);
    tied_fill(sim);
    AQ_TRY(aq_alloc(arena.used, memory));
    arena = (struct aq_arena){.base = *memory, .bytes = arena.used};
    place(&arena, sim);
    for (uint32_t s = 0; s < sim->P; s++) {
        actor_open(sim, s);
        set_add(&sim->dirty, s);
        set_add(&sim->changed, s);
        sim->actors[s].speed = 1;
        while (!aq_job_same_host(sim->plan->job, sim->host[s], s))
            sim->host[s]++;
        for (uint32_t r = 0; r < sim->plan->ranks; r++) {
            sim->beside[s][r % sim->P] += aq_job_same_host(sim->plan->job, s, r);
            sim->sharing[s][r % sim->P] += aq_plan_same_gpu(sim->plan, s, r);
        }
        for (uint32_t t = 0; t < sim->P; t++) {
            if (!sim->beside[s][t]) continue;
            if (sim->near_end[t] == 0) sim->colocated_first[t] = s;
            sim->near_end[t] = s + 1;
        }
        sim->forward[s].done_at = sim->backward[s].done_at = DBL_MAX;
        if (s + 1 == sim->P) continue;
        const struct aq_plan_edge *edge = &sim->plan->edges[s];
        pipe_open(sim, s, &sim->forward[s], costs->cold ? edge->step_forward_cold : edge->step_forward_warm,
                  costs->forward_share[s]);
        pipe_open(sim, s, &sim->backward[s], costs->cold ? edge->step_backward_first : edge->step_backward,
                  costs->backward_share[s]);
    }
    if (aq_plan_line_shared(sim->plan)) {
        line_share(&sim->forward[0], &sim->backward[1]); /* up */
        line_share(&sim->backward[0], &sim->forward[1]);
    }
    return AQ_OK;
}

/* --- links ------------------------------------------------------------------------------------------------------ */

static bool pipe_start(const struct simulation *sim, struct pipe *pipe)
{
    if (pipe->done_at != DBL_MAX || pipe->queued == pipe->begun) return false;
    if (pipe->begun - pipe->credited >= pipe->window.receive_slots) return false;
    if (pipe->begun >= pipe->tied_behind && pipe->tied_until > sim->now) return false;
    pipe->begun++;
    line_slow(sim, pipe->beside, 2);
    pipe->done_at = sim->now + pipe->seconds * (pipe->beside && pipe->beside->done_at != DBL_MAX ? 2 : 1);
    return true;
}

static bool pipe_finish(const struct simulation *sim, struct pipe *pipe)
{
    if (pipe->done_at > sim->now) return false;
    const uint64_t number = pipe->arrived++;
    const double late = aq_plan_lost_s(sim->plan, sim->costs, pipe->edge, pipe->forward, pipe->frame_bytes, number);
    const double before = number ? pipe->arrives[number - 1] : 0; /* in order */
    pipe->arrives[number] = fmax(pipe->done_at + pipe->delay + late, before);
    pipe->done_at = DBL_MAX;
    line_slow(sim, pipe->beside, 0.5);
    return true;
}

/* When the next frame to be taken is there. */
static double pipe_arrival(const struct pipe *pipe)
{
    return pipe->arrived > pipe->taken ? pipe->arrives[pipe->taken] : DBL_MAX;
}

/* When the next credit is back, and the next send buffer. */
static double pipe_credit(const struct pipe *pipe)
{
    return pipe->taken > pipe->credited ? pipe->returns[pipe->credited] : DBL_MAX;
}

static double pipe_buffer(const struct pipe *pipe)
{
    return pipe->arrived > pipe->acknowledged ? pipe->arrives[pipe->acknowledged] + pipe->held : DBL_MAX;
}

static void pipe_take(const struct simulation *sim, struct pipe *pipe)
{
    pipe->returns[pipe->taken++] = sim->now + pipe->back;
}

static bool pipe_return(const struct simulation *sim, struct pipe *pipe)
{
    const bool credit = pipe_credit(pipe) <= sim->now, buffer = pipe_buffer(pipe) <= sim->now;
    pipe->credited += credit;
    pipe->acknowledged += buffer;
    return credit || buffer;
}

/* A tied table's values queue behind the present frames, and later frames wait for them. Returns when they are at
 * the other end. */
static double pipe_tied(const struct simulation *sim, struct pipe *pipe)
{
    const double free_at = pipe->done_at == DBL_MAX ? sim->now : pipe->done_at;
    pipe->tied_until = free_at + (double)(pipe->queued - pipe->begun) * pipe->seconds + pipe->tied_s;
    pipe->tied_behind = pipe->queued;
    return pipe->tied_until + sim->costs->latency_s[pipe->edge];
}

static bool pipe_has_buffer(const struct pipe *pipe)
{
    return pipe->queued - pipe->acknowledged < pipe->window.send_frames;
}

/* --- stages ----------------------------------------------------------------------------------------------------- */

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
        return costs->backward_s[s] + (sim->scene->programs[s].split ? 0 : costs->weights_s[s]);
    case AQ_OP_WEIGHTS:
        return costs->weights_s[s];
    default:
        return costs->send_back_s[s - 1];
    }
}

/* The stream of a GPU's lane, which is one kind of instruction, and the lanes of a stream, a bit each. */
static const uint8_t stream_of[AQ_PROGRAM_LANES] = {RECEIVE, COMPUTE, SEND, RECEIVE, COMPUTE, SEND, COMPUTE};
static const uint32_t lanes_of[STREAMS] = {[RECEIVE] = 1 | 8, [COMPUTE] = 2 | 16 | 64, [SEND] = 4 | 32};

/* Lanes whose stream is at work. */
static uint32_t lanes_busy(const struct actor *actor)
{
    uint32_t busy = 0;
    for (int i = 0; i < STREAMS; i++)
        if (actor->streams[i].left >= 0) busy |= lanes_of[i];
    return busy;
}

static void stream_begin(const struct simulation *sim, const struct actor *actor, struct stream *stream, uint32_t lane,
                         double seconds)
{
    *stream =
        (struct stream){.left = seconds, .since = sim->now, .ends = sim->now + seconds / actor->speed, .lane = lane};
}

/* Has what it needs of the links come? */
static bool link_allows(const struct simulation *sim, uint32_t s, enum aq_op op)
{
    switch (op) {
    case AQ_OP_RECV_FWD:
        return pipe_arrival(&sim->forward[s - 1]) <= sim->now;
    case AQ_OP_RECV_BWD:
        return pipe_arrival(&sim->backward[s]) <= sim->now;
    case AQ_OP_SEND_FWD:
        return pipe_has_buffer(&sim->forward[s]);
    case AQ_OP_SEND_BWD:
        return pipe_has_buffer(&sim->backward[s - 1]);
    default:
        return true;
    }
}

/* Whose instruction the policy is asked about. */
struct asked {
    struct simulation *sim;
    uint32_t s;
};

/* The policy that keeps a clock: an instruction takes its seconds of its stream. */
static enum aq_status clock_begin(void *self, const struct aq_program_item *item)
{
    const struct asked *asked = self;
    struct actor *actor = &asked->sim->actors[asked->s];
    struct stream *stream = &actor->streams[actor->gpu ? stream_of[item->lane] : COMPUTE];
    if (!link_allows(asked->sim, asked->s, item->op)) return AQ_AGAIN;
    stream_begin(asked->sim, actor, stream, item->lane, seconds_of(asked->sim, asked->s, item->op));
    return AQ_OK;
}

/* Begin one instruction, if one can. */
static bool actor_start(struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    struct asked asked = {.sim = sim, .s = s};
    const struct aq_program_policy policy = {
        .begin = clock_begin, .self = &asked, .busy = actor->gpu ? lanes_busy(actor) : 0};
    uint32_t lane;
    if (!actor->gpu && actor->streams[COMPUTE].left >= 0) return false;
    return aq_program_run_begin(&actor->run, &policy, &lane) == AQ_OK;
}

/* Work of a reduction or an update, in parallel with its links. */
static void work_begin(const struct simulation *sim, struct actor *actor, double seconds, double carried_s)
{
    stream_begin(sim, actor, &actor->streams[COMPUTE], END_OF_STEP, seconds);
    actor->reduced_at = sim->now + carried_s;
}

/*
 * The phase of the next instruction of the end of a step; CHAINS: the step is over. Sums over the clients (split.mode:
 * global) take no time here.
 */
static int phase_next(const struct simulation *sim, struct actor *actor)
{
    const struct aq_instruction *due;
    for (; (due = aq_program_run_due(&actor->run)) != NULL; (void)aq_program_run_pass(&actor->run)) {
        if (due->op == AQ_OP_REDUCE && sim->plan->replicas > 1) return REDUCE_DUE;
        if (due->op == AQ_OP_NORM) return NORM_UP;
        if (due->op == AQ_OP_STEP) return UPDATE;
    }
    return CHAINS;
}

/* The instruction of the end of a step that is due has been done. */
static int phase_passed(const struct simulation *sim, struct actor *actor)
{
    (void)aq_program_run_pass(&actor->run);
    return phase_next(sim, actor);
}

static void chains_look(const struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    if (actor->phase != CHAINS || !aq_program_run_past(&actor->run, 0)) return;
    actor->phase = sim->tied != AQ_TIED_NO ? TIED_UP : phase_next(sim, actor);
}

static void instruction_done(struct simulation *sim, uint32_t s, uint32_t lane)
{
    const enum aq_op op = aq_program_run_end(&sim->actors[s].run, lane);
    if (op == AQ_OP_RECV_FWD) pipe_take(sim, &sim->forward[s - 1]);
    if (op == AQ_OP_RECV_BWD) pipe_take(sim, &sim->backward[s]);
    if (op == AQ_OP_SEND_FWD) sim->forward[s].queued++;
    if (op == AQ_OP_SEND_BWD) sim->backward[s - 1].queued++;
    chains_look(sim, s);
}

static bool actor_finish(struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    bool any = false;
    for (int i = 0; i < STREAMS; i++) {
        if (actor->streams[i].left != 0) continue;
        actor->streams[i].left = -1;
        any = true;
        if (actor->streams[i].lane < AQ_PROGRAM_LANES) instruction_done(sim, s, actor->streams[i].lane);
    }
    return any;
}

/* Is what work_begin began done, on the cores and on the links? */
static bool work_done(const struct simulation *sim, struct actor *actor)
{
    if (actor->streams[COMPUTE].left >= 0 || actor->reduced_at > sim->now) return false;
    actor->reduced_at = DBL_MAX;
    return true;
}

static void update_done(struct simulation *sim, uint32_t s)
{
    struct actor *actor = &sim->actors[s];
    actor->ended[actor->step++] = sim->now;
    sim->over += actor->step == sim->steps;
    actor->phase = CHAINS;
    aq_program_run_next(&actor->run);
    actor_add(sim, actor, actor->step + sim->staleness);
    chains_look(sim, s);
}

/* A step's partial sum goes to the stage before, once the one behind has sent its own. */
static bool partial_send(struct simulation *sim, uint32_t s, uint32_t step)
{
    struct actor *actor = &sim->actors[s];
    if (s + 1 < sim->P && actor->partial_at[step] > sim->now) return false;
    actor->partials = step + 1;
    if (s > 0) sim->actors[s - 1].partial_at[step] = sim->now + sim->costs->latency_s[s - 1];
    return true;
}

/* The same of the next step, while this one waits for its total. */
static bool partial_early(struct simulation *sim, uint32_t s)
{
    const struct actor *actor = &sim->actors[s];
    const uint32_t next = actor->step + 1;
    if (!sim->staleness || sim->plan->replicas > 1 || sim->tied != AQ_TIED_NO) return false;
    if (next == sim->steps || actor->partials > next) return false;
    return aq_program_run_past(&actor->run, 1) && partial_send(sim, s, next);
}

/* The trip by which replicas agree on a step, where it does not ride on their reduction (worker_group.c). */
static double agreement_s(const struct simulation *sim)
{
    const struct aq_optimizer_config *config = &sim->plan->job->train.optimizer;
    const uint32_t every = aq_plan_reduce_every(sim->plan); /* a step has its share of what a round has */
    const bool patient = sim->plan->job->reduce.patience_ns > 0;
    if (aq_plan_reduce_delay(sim->plan) > 0 && !patient) return 0; /* the votes travel with the average */
    const bool rides =
        every == 1 && !sim->costs->reduce_in_step && config->low_rank == 0 && !sim->plan->job->reduce.machine_first;
    return rides ? 0 : sim->costs->group_latency_s / every;
}

/* A tied table's values go from stage to stage, towards the embedding or away from it. False: they are not here yet. */
static bool tied_up(struct simulation *sim, uint32_t s)
{
    const uint32_t step = sim->actors[s].step;
    if (s + 1 < sim->P && sim->actors[s].tied_up_at[step] > sim->now) return false;
    if (s > 0) sim->actors[s - 1].tied_up_at[step] = pipe_tied(sim, &sim->backward[s - 1]);
    return true;
}

static bool tied_down(struct simulation *sim, uint32_t s)
{
    const uint32_t step = sim->actors[s].step;
    if (s > 0 && sim->actors[s].tied_down_at[step] > sim->now) return false;
    if (s + 1 < sim->P) sim->actors[s + 1].tied_down_at[step] = pipe_tied(sim, &sim->forward[s]);
    return true;
}

/* The end of a step: replicas average, the sum of squares goes up to stage 0, the total comes back, then the optimizer.
 */
static bool actor_end(struct simulation *sim, uint32_t s)
{
    const struct aq_plan_costs *costs = sim->costs;
    struct actor *actor = &sim->actors[s];
    if (actor->step == sim->steps) return false;
    switch (actor->phase) {
    case TIED_UP:
        if (!tied_up(sim, s)) return false;
        actor->phase = sim->tied == AQ_TIED_COMPRESSED ? TIED_ROWS : phase_next(sim, actor);
        return true;
    case TIED_ROWS:
        if (!tied_down(sim, s)) return false;
        actor->phase = phase_next(sim, actor);
        return true;
    case REDUCE_DUE:
        if (actor->streams[COMPUTE].left >= 0) return false;
        work_begin(sim, actor, costs->reduce_in_step ? 0 : costs->pack_s[s],
                   agreement_s(sim) + (costs->reduce_in_step ? 0 : 2 * costs->group_latency_s + costs->reduce_s[s]));
        actor->phase = REDUCE;
        return true;
    case REDUCE:
        if (!work_done(sim, actor)) return false;
        actor->phase = phase_passed(sim, actor);
        return true;
    case NORM_UP:
        if (actor->partials <= actor->step && !partial_send(sim, s, actor->step)) return false;
        actor->phase = NORM_DOWN;
        return true;
    case NORM_DOWN:
        if (s > 0 && actor->total_at[actor->step] > sim->now) return partial_early(sim, s);
        if (s + 1 < sim->P) sim->actors[s + 1].total_at[actor->step] = sim->now + costs->latency_s[s];
        actor->phase = phase_passed(sim, actor);
        return true;
    case UPDATE:
        if (actor->streams[COMPUTE].left >= 0) return false;
        if (sim->plan->replicas > 1 && costs->reduce_in_step)
            work_begin(sim, actor, aq_plan_packing_s(sim->plan, costs, s) + costs->step_s[s], sim->carried_s[s]);
        else
            work_begin(sim, actor, costs->step_s[s], 0);
        actor->phase = UPDATING;
        return true;
    case UPDATING:
        if (!work_done(sim, actor)) return false;
        actor->phase = TIED_DOWN;
        return true;
    case TIED_DOWN:
        if (sim->tied == AQ_TIED_EXACT && !tied_down(sim, s)) return false;
        (void)phase_passed(sim, actor); /* MARK takes no time */
        update_done(sim, s);
        return true;
    default:
        return false;
    }
}

/* --- time ------------------------------------------------------------------------------------------------------- */

static bool busy(const struct actor *actor)
{
    for (int i = 0; i < STREAMS; i++)
        if (actor->streams[i].left > 0) return true;
    return false;
}

/* Stage t starts or stops working, on the hosts and GPUs of its replicas. */
static void working_count(struct simulation *sim, uint32_t t, double sign)
{
    for (uint32_t s = sim->colocated_first[t]; s < sim->near_end[t]; s++) {
        const uint16_t beside = sim->actors[t].gpu ? sim->sharing[s][t] : sim->beside[s][t];
        if (!beside || sim->actors[s].gpu != sim->actors[t].gpu) continue;
        sim->working[s] += sign * (sim->actors[t].gpu ? 1 : (double)sim->costs->threads[t]) * beside;
        set_add(&sim->changed, s);
    }
}

/* From now on the stage advances at this speed. */
static void speed_set(const struct simulation *sim, struct actor *actor, double speed)
{
    for (int i = 0; i < STREAMS; i++) {
        struct stream *stream = &actor->streams[i];
        if (stream->left <= 0) continue;
        stream->left = fmax(stream->left - (sim->now - stream->since) * actor->speed, DBL_MIN);
        stream->since = sim->now;
        stream->ends = sim->now + stream->left / speed;
    }
    actor->speed = speed;
}

/* A host's cores are shared by the threads at work there, a GPU by the stages at work on it. All replicas do the same
 * at once. */
static void speeds_fill(struct simulation *sim)
{
    struct set asked = sim->changed; /* counting adds those that share with them */
    for (uint32_t s = 0; (s = set_take(&asked, s, sim->P)) < sim->P;) {
        struct actor *actor = &sim->actors[s];
        if (busy(actor) == actor->works) continue;
        actor->works = !actor->works;
        working_count(sim, s, actor->works ? 1 : -1);
    }
    asked = sim->changed;
    for (uint32_t s = 0; (s = set_take(&asked, s, sim->P)) < sim->P;) {
        struct actor *actor = &sim->actors[s];
        const double most = actor->gpu ? 1 : sim->costs->cores, at_work = sim->working[s];
        const double speed = actor->works && at_work > most ? most / at_work : 1;
        if (speed != actor->speed) speed_set(sim, actor, speed);
    }
}

/* An event at a stage, or on the link behind it, may unblock its neighbours. */
static void stir(struct simulation *sim, uint32_t s)
{
    for (uint32_t t = s > 0 ? s - 1 : 0; t <= s + 1 && t < sim->P; t++)
        set_add(&sim->dirty, t);
}

static void settle(struct simulation *sim)
{
    for (bool moved = true; moved;) { /* ends: every move is one of finitely many instructions and frames */
        moved = false;
        for (uint32_t s = 0; (s = set_take(&sim->dirty, s, sim->P)) < sim->P; s++) {
            set_add(&sim->changed, s);
            bool here = actor_finish(sim, s);
            while (actor_end(sim, s))
                here = true;
            here |= actor_start(sim, s);
            struct pipe *const pipes[] = {&sim->forward[s], &sim->backward[s]};
            for (int k = 0; k < 2; k++) {
                here |= pipe_finish(sim, pipes[k]);
                here |= pipe_return(sim, pipes[k]);
                here |= pipe_start(sim, pipes[k]);
            }
            if (here) stir(sim, s);
            moved |= here;
        }
    }
}

static void earlier(double at, double now, double *next)
{
    if (at > now && at < *next) *next = at;
}

/* The next moment at which something can change at a stage or on the link behind it; DBL_MAX: nothing ever will. */
static double next_here(const struct simulation *sim, uint32_t s)
{
    const struct actor *actor = &sim->actors[s];
    const struct pipe *const pipes[] = {&sim->forward[s], &sim->backward[s]};
    double next = DBL_MAX;
    for (int i = 0; i < STREAMS; i++)
        if (actor->streams[i].left > 0) next = fmin(next, actor->streams[i].ends);
    for (int k = 0; k < 2; k++) {
        const double moments[] = {pipes[k]->done_at, pipe_arrival(pipes[k]), pipe_credit(pipes[k]),
                                  pipe_buffer(pipes[k]), pipes[k]->tied_until};
        for (int i = 0; i < 5; i++)
            earlier(moments[i], sim->now, &next);
    }
    for (uint32_t step = actor->step; step < sim->steps; step++) {
        earlier(actor->partial_at[step], sim->now, &next);
        earlier(actor->total_at[step], sim->now, &next);
        earlier(actor->tied_up_at[step], sim->now, &next);
        earlier(actor->tied_down_at[step], sim->now, &next);
    }
    earlier(actor->reduced_at, sim->now, &next);
    return next;
}

/* Four at a time: one after the other each comparison would wait for the one before. */
static double least_of(const double *values, uint32_t count)
{
    double least[4] = {DBL_MAX, DBL_MAX, DBL_MAX, DBL_MAX};
    uint32_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (uint32_t k = 0; k < 4; k++)
            least[k] = values[i + k] < least[k] ? values[i + k] : least[k];
    for (; i < count; i++)
        least[0] = values[i] < least[0] ? values[i] : least[0];
    return fmin(fmin(least[0], least[1]), fmin(least[2], least[3]));
}

/* Advances to the next event; only stages with an event since then are asked again. False: nothing ever will. */
static bool advance(struct simulation *sim)
{
    speeds_fill(sim);
    for (uint32_t s = 0; (s = set_take(&sim->changed, s, sim->P)) < sim->P;)
        sim->here[s] = next_here(sim, s);
    const double next = least_of(sim->here, sim->P);
    if (next == DBL_MAX) return false;
    sim->now = fmax(next, sim->now);
    for (uint32_t s = 0; s < sim->P; s++) {
        if (sim->here[s] > next) continue;
        for (int i = 0; i < STREAMS; i++)
            if (sim->actors[s].streams[i].left > 0 && sim->actors[s].streams[i].ends <= next)
                sim->actors[s].streams[i].left = 0;
        stir(sim, s);
    }
    return true;
}

static double step_end(const struct simulation *sim, uint32_t step)
{
    double end = 0;
    const uint32_t stages = sim->staleness ? 1 : sim->P; /* others may take a step's total up when they have time */
    for (uint32_t s = 0; s < stages; s++)
        if (sim->actors[s].ended[step] > end) end = sim->actors[s].ended[step];
    return end;
}

/* --- all steps --------------------------------------------------------------------------------------------------- */

static enum aq_status simulate(struct simulation *sim, double *step_s)
{
    enum aq_status status = AQ_OK;
    for (settle(sim); sim->over < sim->P && status == AQ_OK; settle(sim))
        if (!advance(sim)) status = aq_fail(AQ_INVAL, "plan", "the simulated step stops at %g s", sim->now);
    const uint32_t last = sim->steps - 1; /* two steps that overlap may take turns; all but two, where losses do */
    const uint32_t mean = sim->steps > STEPS_STALE ? last - 1 : 1 + sim->staleness;
    *step_s = (step_end(sim, last) - step_end(sim, last - mean)) / mean;
    return status;
}

/* Losses are random: enough steps for a mean of a few thousand frames. */
static uint32_t steps_of(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t M, uint32_t staleness)
{
    const uint32_t steps = LOSSY_FRAMES / (M * plan->stage_count) + 2;
    bool lossy = false;
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        lossy = lossy || costs->loss[e] > 0;
    if (!lossy) return staleness ? STEPS_STALE : STEPS;
    return steps < LOSSY_LEAST ? LOSSY_LEAST : steps > STEPS_MAX ? STEPS_MAX : steps;
}

static struct simulation simulation_of(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                       const struct aq_plan_scene *scene)
{
    const uint32_t staleness = scene->programs[0].staleness;
    return (struct simulation){.plan = plan,
                               .costs = costs,
                               .scene = scene,
                               .P = plan->stage_count,
                               .M = scene->programs[0].micro_batches,
                               .steps = steps_of(plan, costs, scene->programs[0].micro_batches, staleness),
                               .staleness = staleness};
}

/*
 * A step's share of the links' time for an average of stage s. reduce.delay: only of what is left when the steps that
 * it travels during, of step_s each, are over.
 */
static double carried_of(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s, double step_s)
{
    const uint32_t every = aq_plan_reduce_every(plan), delay = aq_plan_reduce_delay(plan);
    if (delay == 0) return 2 * costs->group_latency_s / every + costs->reduce_s[s];
    const double average_s = 3 * costs->group_latency_s + (costs->reduce_s[s] + costs->pack_s[s]) * every;
    return fmax(average_s - delay * step_s, 0) / every;
}

/* step_s: of the steps during an average. */
static enum aq_status simulate_with(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                    const struct aq_plan_scene *scene, double step_s, struct aq_plan_simulated *out)
{
    struct simulation sim = simulation_of(plan, costs, scene);
    void *memory = NULL;
    *out = (struct aq_plan_simulated){0};
    for (uint32_t s = 0; s < sim.P; s++)
        sim.carried_s[s] = carried_of(plan, costs, s, step_s);
    AQ_TRY(simulation_open(&sim, &memory));
    const enum aq_status status = simulate(&sim, &out->step_s);
    for (uint32_t s = 0; s < sim.P; s++) {
        out->forward_s[s] = sim.forward[s].seconds * sim.M;
        out->backward_s[s] = sim.backward[s].seconds * sim.M;
    }
    aq_free(memory);
    return status;
}

enum aq_status aq_plan_simulate(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                const struct aq_plan_scene *scene, struct aq_plan_simulated *out)
{
    struct aq_plan_costs seen;
    bool waits = false;
    aq_plan_costs_cached(plan, costs, &seen);
    AQ_TRY(simulate_with(plan, &seen, scene, DBL_MAX, out)); /* reduce.delay: steps that wait for no average */
    if (aq_plan_reduce_delay(plan) == 0) return AQ_OK;
    const double step_s = out->step_s;
    for (uint32_t s = 0; s < plan->stage_count; s++)
        waits = waits || carried_of(plan, &seen, s, step_s) > 0;
    return waits ? simulate_with(plan, &seen, scene, step_s, out) : AQ_OK;
}
