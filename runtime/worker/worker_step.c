/*
 * worker_step.c -- one step: the program's chains, the gradient norm, the optimizer.
 *
 * The interpreter (program_run.h) decides which instruction of the program may begin; this is its policy that executes.
 * A late frame of one direction never holds up the other. Backwards and weight halves stay in order of micro-batches,
 * and with them every bit of the sums. Instructions are issued: one has ended when it was issued, and on a GPU the
 * chains run ahead of the device by some of them (worker_device.c).
 *
 * With train.staleness the chains run into the next step while this one's gradients, norm and update are under way.
 * While this step waits, it runs what can run of the next (next_advance).
 */
#include <math.h>
#include <string.h>

#include "aqsgd/device_math.h"
#include "edge_heal.h"
#include "edge_norm.h"
#include "edge_shared.h"
#include "heartbeat.h"
#include "worker.h"

static void run_begin(struct aq_worker *worker, uint64_t step, struct aq_worker_run *run)
{
    const uint32_t M = aq_rank_data_micro_batches(&worker->data, step);
    const bool part = aq_job_global(worker->job), whole = part || M == worker->plan->micro_batches;
    const struct aq_program *program = whole ? &worker->me->program : &worker->me->program_last;
    AQ_ASSERT(part ? program->micro_batches >= M : program->micro_batches == M);
    aq_program_run_add(&worker->steps.program, program, M);
    *run = (struct aq_worker_run){.step = step, .base = worker->steps.program.steps[run == &worker->steps.next].base};
}

/* Is the next step under way, too? */
static bool next_is_open(const struct aq_worker *worker)
{
    return worker->steps.program.steps[1].program != NULL;
}

/* *done: a part has done it, or there is nothing to do. */
static enum aq_status parts_execute(struct aq_worker *worker, const struct aq_part_instruction *turn, bool *done)
{
    struct aq_part_args args = {.turn = turn};
    *done = false;
    if (!worker->worker_parts.use_chains) return AQ_OK;
    const enum aq_status status = aq_worker_parts_on(&worker->worker_parts, AQ_PART_INSTRUCTION, &args);
    *done = args.done;
    return status;
}

static enum aq_status prefetch(struct aq_worker *worker, uint64_t step, uint32_t micro_batch)
{
    const uint64_t each = worker->plan->steps_per_epoch, last = aq_worker_steps_end(worker);
    const uint64_t ahead = worker->steps.shift - worker->data.idle;   /* the sampler's step less the run's */
    const uint64_t kept = ((step + ahead) / each + 2) * each - ahead; /* orders of two */
    const uint64_t end = kept < last ? kept : last;
    for (uint32_t count; (count = aq_rank_data_micro_batches(&worker->data, step)) <= micro_batch; micro_batch -= count)
        if (++step >= end) return AQ_OK;
    struct aq_edge_batch batch;
    aq_rank_data_batch(&worker->data, step, micro_batch, &batch);
    const struct aq_part_instruction turn = {.op = AQ_OP_PREFETCH, .batch = &batch};
    bool done;
    AQ_TRY(parts_execute(worker, &turn, &done));
    if (done) return AQ_OK;
    if (worker->pipeline.in) AQ_TRY(aq_edge_prefetch(worker->pipeline.in, &batch));
    return worker->pipeline.out ? aq_edge_prefetch(worker->pipeline.out, &batch) : AQ_OK;
}

enum aq_status aq_worker_prefetch_first(struct aq_worker *worker)
{
    if (worker->step >= aq_worker_steps_end(worker)) return AQ_OK;
    for (uint32_t i = 0; i < worker->me->program.window; i++)
        AQ_TRY(prefetch(worker, worker->step, i));
    return AQ_OK;
}

/* Is what it needs of others there, as far as can be known without trying? */
static bool ready(const struct aq_worker *worker, enum aq_op op)
{
    switch (op) {
    case AQ_OP_RECV_FWD:
        return aq_edge_forward_here(worker->pipeline.in, NULL);
    case AQ_OP_RECV_BWD:
        return aq_edge_backward_here(worker->pipeline.out);
    case AQ_OP_WEIGHTS: /* what a neighbour waits for goes first: on a GPU it never queues behind these */
        return worker->pipeline.issue_count <= 1;
    default:
        return true;
    }
}

/* What a part's call of the stage's forward is of. */
struct forward_of {
    struct aq_worker *worker;
    const struct aq_worker_run *run;
    const struct aq_instruction *instruction;
};

static enum aq_status forward_here(void *of)
{
    const struct forward_of *forward = of;
    return aq_worker_forward(forward->worker, forward->run, forward->instruction);
}

/* Issue one instruction of a chain; AQ_AGAIN: it has to wait (a send buffer, the device), nothing has happened. */
static enum aq_status execute(struct aq_worker *worker, struct aq_worker_run *run,
                              const struct aq_instruction *instruction)
{
    struct aq_edge_batch batch;
    if (instruction->op == AQ_OP_PREFETCH) return prefetch(worker, run->step, instruction->micro_batch);
    aq_rank_data_batch(&worker->data, run->step, instruction->micro_batch, &batch);
    batch.base = run->base;
    const uint32_t copy = (uint32_t)((run->base + instruction->micro_batch) % worker->pipeline.copies);
    struct forward_of of = {worker, run, instruction};
    const struct aq_part_instruction turn = {.op = instruction->op,
                                             .slot = instruction->slot,
                                             .batch = &batch,
                                             .x = &worker->pipeline.x[copy],
                                             .forward = forward_here,
                                             .of = &of};
    bool done;
    AQ_TRY(parts_execute(worker, &turn, &done));
    if (done) return AQ_OK;
    switch (instruction->op) {
    case AQ_OP_RECV_FWD:
        return aq_edge_receive_forward(worker->pipeline.in, &batch, &worker->pipeline.x[copy],
                                       worker->pipeline.receive_stream);
    case AQ_OP_FORWARD:
        return aq_worker_forward(worker, run, instruction);
    case AQ_OP_SEND_FWD:
        return aq_edge_send_forward(worker->pipeline.out, &batch, &worker->pipeline.y[copy],
                                    worker->pipeline.send_stream);
    case AQ_OP_RECV_BWD:
        return aq_edge_receive_backward(worker->pipeline.out, &batch, &worker->pipeline.dy[copy],
                                        worker->pipeline.receive_stream);
    case AQ_OP_BACKWARD:
        return aq_worker_backward(worker, run, instruction);
    case AQ_OP_SEND_BWD:
        return aq_edge_send_backward(worker->pipeline.in, &batch, &worker->pipeline.dx[copy],
                                     worker->pipeline.send_stream);
    case AQ_OP_WEIGHTS:
        return aq_worker_weights(worker, run, instruction);
    default:
        AQ_ASSERT(!"an instruction of no chain");
        return AQ_INVAL;
    }
}

/* The policy that executes. */
static enum aq_status instruction_begin(void *self, const struct aq_program_item *item)
{
    struct aq_worker *worker = self;
    struct aq_worker_steps *steps = &worker->steps;
    const struct aq_instruction instruction = {.op = (uint8_t)item->op,
                                               .slot = (uint16_t)aq_program_run_slot(&steps->program, item->number),
                                               .micro_batch = item->micro_batch};
    if (!ready(worker, item->op)) return AQ_AGAIN;
    const enum aq_status status = execute(worker, item->step ? &steps->next : &steps->now, &instruction);
    if (status == AQ_AGAIN) steps->sending = true;
    return status;
}

/* One instruction, of this step or the next one. AQ_AGAIN: none can run now. */
static enum aq_status chains_advance(struct aq_worker *worker)
{
    const struct aq_program_policy policy = {.begin = instruction_begin, .self = worker};
    uint32_t lane;
    worker->steps.sending = false;
    AQ_TRY(aq_program_run_begin(&worker->steps.program, &policy, &lane));
    aq_heartbeat_work();
    (void)aq_program_run_end(&worker->steps.program, lane);
    return AQ_OK;
}

/*
 * Time that the busier of the two links has carried what comes here, or what keeps this stage's send buffers. *in: it
 * is the link to the stage before.
 */
static uint64_t carried_ns(const struct aq_worker *worker, const struct aq_link_stats before[2], bool sending, bool *in)
{
    struct aq_link *const links[] = {worker->pipeline.link_in, worker->pipeline.link_out};
    uint64_t most = 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct aq_link_stats now;
        if (!links[i]) continue;
        aq_link_stats(links[i], &now);
        const uint64_t received = now.receive_ns > before[i].receive_ns ? now.receive_ns - before[i].receive_ns : 0;
        const uint64_t sent = sending ? now.busy_ns - before[i].busy_ns : 0;
        if (received > most || sent > most) *in = i == 0;
        if (received > most) most = received;
        if (sent > most) most = sent;
    }
    return most;
}

/* Until the event count changes; meanwhile an average that travels may need a look now and then. */
static enum aq_status wait_event(struct aq_worker *worker, uint32_t seen, uint64_t until)
{
    for (;;) {
        const uint64_t look = aq_worker_delay_looks_ns(worker), end = look < until ? look : until;
        const enum aq_status status = aq_eventcount_wait(worker->eventcount, seen, end);
        if (status != AQ_TIMEOUT || end == until) return status;
        AQ_TRY(aq_worker_delay_look(worker));
    }
}

/* sending: what could run next waits for a send buffer. */
static enum aq_status wait(struct aq_worker *worker, uint32_t seen, bool sending, const char *what)
{
    struct aq_link_stats before[2] = {{0}, {0}};
    if (aq_worker_busy_since(worker)) return aq_worker_poll_wait(worker, seen);
    const uint32_t carrying = aq_worker_carrying(worker);
    const uint64_t begin = aq_clock_ns();
    if (worker->pipeline.link_in) aq_link_stats(worker->pipeline.link_in, &before[0]);
    if (worker->pipeline.link_out) aq_link_stats(worker->pipeline.link_out, &before[1]);
    aq_heartbeat_phase(AQ_PHASE_NEIGHBOUR);
    const enum aq_status status =
        wait_event(worker, seen, aq_clock_after(carrying ? AQ_EDGE_POLL_NS : worker->links.silence_ns));
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    const uint64_t waited = aq_clock_ns() - begin;
    const bool by_nccl = carrying & AQ_EDGE_CARRY_IN || (sending && carrying);
    bool in = carrying & AQ_EDGE_CARRY_IN;
    const uint64_t carried = by_nccl ? waited : carried_ns(worker, before, sending, &in);
    worker->times.wait_ns += waited;
    worker->times.link_wait_ns += carried < waited ? carried : waited;
    if (in) worker->times.in_wait_ns += carried < waited ? carried : waited;
    if (status == AQ_TIMEOUT && carrying) return AQ_OK; /* NCCL has its own deadline */
    if (status == AQ_TIMEOUT)
        return aq_fail(AQ_TIMEOUT, "worker", "step %llu: nothing came for %.0f s while waiting for %s",
                       (unsigned long long)worker->step, (double)worker->links.silence_ns * 1e-9, what);
    return status;
}

/* Lost messages of one epoch's samples, in the order in which these come, as far ahead as the edge lets us ask. */
static enum aq_status refill(struct aq_worker *worker, struct aq_edge *edge, struct aq_worker_refill *at)
{
    if (at->end == 0) { /* the first turn */
        at->step = worker->step;
        at->end = worker->step + worker->plan->steps_per_epoch;
    }
    if (at->end > aq_worker_steps_end(worker)) at->end = aq_worker_steps_end(worker);
    if (at->step < worker->step) *at = (struct aq_worker_refill){.step = worker->step, .end = at->end};
    for (; at->step < at->end; at->step++, at->micro_batch = 0) {
        for (; at->micro_batch < aq_rank_data_micro_batches(&worker->data, at->step); at->micro_batch++) {
            struct aq_edge_batch batch;
            aq_rank_data_batch(&worker->data, at->step, at->micro_batch, &batch);
            const enum aq_status status = aq_edge_refill(edge, &batch);
            if (status != AQ_OK) return status == AQ_AGAIN ? AQ_OK : status;
        }
    }
    return AQ_OK;
}

static enum aq_status refills(struct aq_worker *worker)
{
    struct aq_edge *const edges[] = {worker->pipeline.in, worker->pipeline.out};
    for (uint32_t i = worker->steps.input_unused; i < 2; i++)
        if (edges[i] && aq_edge_refills(edges[i])) AQ_TRY(refill(worker, edges[i], &worker->pipeline.refills[i]));
    return AQ_OK;
}

/* Divides by the factor of the loss: what is reduced, clipped, measured and kept has none. */
static enum aq_status unscale(struct aq_worker *worker, const struct aq_worker_run *run, struct aq_worker_times *times)
{
    if (times->loss_factor == 1.0f) return AQ_OK;
    const uint64_t begin = aq_clock_ns();
    aq_worker_use(worker, run->step);
    const struct aq_scale scale = {.x = aq_stage_gradients(worker->stage),
                                   .count = aq_stage_parameter_count(worker->stage),
                                   .factor = 1.0f / times->loss_factor};
    AQ_TRY(aq_device_scale(worker->device, &scale, worker->stream));
    AQ_TRY(aq_stage_tied_scale(worker->stage, scale.factor, worker->stream));
    times->optimizer_ns += aq_clock_ns() - begin;
    return AQ_OK;
}

/* A step whose chains are done: what the device had of it has come back, too. */
static enum aq_status chains_end(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times)
{
    if (run->ended) return AQ_OK;
    AQ_TRY(aq_worker_settle(worker));
    run->ended = true;
    AQ_TRY(unscale(worker, run, times));
    if (worker->P > 1) return AQ_OK; /* the head's part may be elsewhere: worker_tied.c */
    aq_worker_use(worker, run->step);
    return aq_stage_tied_fold(worker->stage, worker->stream);
}

static enum aq_status run_chains(struct aq_worker *worker)
{
    while (!aq_program_run_past(&worker->steps.program, 0)) {
        const uint32_t seen = aq_eventcount_read(worker->eventcount);
        AQ_TRY(aq_worker_pump(worker));
        AQ_TRY(refills(worker));
        const enum aq_status status = chains_advance(worker);
        if (status == AQ_AGAIN)
            AQ_TRY(wait(worker, seen, worker->steps.sending, "activations or gradients"));
        else
            AQ_TRY(status);
    }
    return chains_end(worker, &worker->steps.now, &worker->times);
}

/*
 * Numbers of a step from a neighbour: [0] the norm's, [1] what the optimizer gauges, where it does (on all stages
 * alike). AQ_AGAIN: not all are here.
 */
static enum aq_status numbers_receive(struct aq_worker *worker, struct aq_worker_run *run, struct aq_edge *edge,
                                      uint32_t count)
{
    uint16_t flags;
    for (; run->sums_here < count; run->sums_here++) {
        AQ_TRY(aq_edge_receive_norm(edge, run->step, &run->sums[run->sums_here], &flags));
        if ((flags & AQ_EDGE_LAST_STEP) && !worker->last) worker->last = aq_worker_last_of(worker, run->step);
        if (flags & AQ_EDGE_MARK_STEP) AQ_TRY(aq_worker_mark_heard(worker, run->step));
    }
    run->sums_here = 0;
    return AQ_OK;
}

static enum aq_status numbers_send(struct aq_worker *worker, const struct aq_worker_run *run, struct aq_edge *edge,
                                   uint32_t count)
{
    uint16_t flags = worker->last ? AQ_EDGE_LAST_STEP : 0;
    if (aq_worker_mark_said(worker, run->step)) flags |= AQ_EDGE_MARK_STEP;
    for (uint32_t i = 0; i < count; i++)
        AQ_TRY(aq_edge_send_norm(edge, run->step, run->sums[i], flags));
    return AQ_OK;
}

/* Floats of shared gradients that cross an edge of this stage; 0: none do. */
static uint64_t shared_across(const struct aq_worker *worker, const struct aq_edge *edge, uint32_t e)
{
    return edge ? worker->plan->edges[e].shape.shared : 0;
}

/*
 * Gradients of tensors that stages hold copies of (stage.h): from the last stage to the first each adds its own, and
 * the first keeps the sum. The norm counts only the sum.
 */
static enum aq_status shared_up(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times)
{
    const uint64_t in = shared_across(worker, worker->pipeline.in, worker->position - 1);
    const uint64_t out = shared_across(worker, worker->pipeline.out, worker->position);
    float *values = aq_stage_shared(worker->stage);
    if (!in && !out) return AQ_OK;
    if (!run->gathered) {
        if (out) AQ_TRY(aq_edge_receive_shared(worker->pipeline.out, run->step, values));
        if (!out) memset(values, 0, in * sizeof *values);
        const uint64_t begin = aq_clock_ns();
        AQ_TRY(aq_stage_shared_gather(worker->stage, worker->stream));
        if (!in) AQ_TRY(aq_stage_shared_scatter(worker->stage, worker->stream));
        times->optimizer_ns += aq_clock_ns() - begin;
        run->gathered = true;
    }
    if (in) AQ_TRY(aq_edge_send_shared(worker->pipeline.in, run->step, values));
    run->gathered = !in;
    return AQ_OK;
}

/* And back: all stages have the first one's. */
static enum aq_status shared_down(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times)
{
    const uint64_t in = shared_across(worker, worker->pipeline.in, worker->position - 1);
    const uint64_t out = shared_across(worker, worker->pipeline.out, worker->position);
    float *values = aq_stage_shared(worker->stage);
    if (in && !run->gathered) {
        AQ_TRY(aq_edge_receive_shared(worker->pipeline.in, run->step, values));
        const uint64_t begin = aq_clock_ns();
        AQ_TRY(aq_stage_shared_scatter(worker->stage, worker->stream));
        times->optimizer_ns += aq_clock_ns() - begin;
        run->gathered = true;
    }
    return out ? aq_edge_send_shared(worker->pipeline.out, run->step, values) : AQ_OK;
}

/* |g|^2 of this stage's tensors, added from last to first. */
static enum aq_status add_squares(struct aq_worker *worker, const struct aq_worker_times *times, double *sum)
{
    if (!times->squared) return aq_stage_gradient_sum2(worker->stage, sum, worker->stream);
    for (uint32_t i = aq_stage_tensor_count(worker->stage); i-- > 0;)
        *sum += worker->replicas.squares[i]; /* REDUCE had to know them */
    return AQ_OK;
}

/* Norm of what this stage added to the sum; computed by itself if it is too small to change the sum. */
static enum aq_status own_norm(struct aq_worker *worker, struct aq_worker_times *times, double before, double after)
{
    double own = after - before;
    times->own_norm = -1;
    if (aq_stage_tensor_count(worker->stage) == 0) return AQ_OK;
    if (own == 0) AQ_TRY(add_squares(worker, times, &own));
    times->own_norm = sqrt(own);
    return AQ_OK;
}

/*
 * The global norm: partial sums of squares go from the last stage to the first, each adding its own tensors from last
 * to first, so that the sum has the bits of a single stage's; the total comes back. The optimizer's gauge over the
 * whole model goes along, and the total carries the vote to end the run. AQ_AGAIN: the sum of the stage behind has not
 * come.
 */
static enum aq_status norm_up(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times)
{
    const uint32_t count = aq_optimizer_gauges(worker->optimizer) ? 2 : 1;
    if (worker->pipeline.out) AQ_TRY(numbers_receive(worker, run, worker->pipeline.out, count));
    const uint64_t begin = aq_clock_ns();
    double *sum = &run->sums[0];
    const double before = *sum;
    aq_worker_use(worker, run->step);
    AQ_TRY(add_squares(worker, times, sum));
    AQ_TRY(own_norm(worker, times, before, *sum));
    if (count > 1) AQ_TRY(aq_optimizer_gauge(worker->optimizer, &run->sums[1]));
    times->optimizer_ns += aq_clock_ns() - begin;
    if (times->skipped) *sum = (double)NAN; /* on another replica: all stages of all replicas hear of it */
    run->partial = true;
    return worker->pipeline.in ? numbers_send(worker, run, worker->pipeline.in, count) : AQ_OK;
}

static enum aq_status norm_down(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times)
{
    const uint32_t count = aq_optimizer_gauges(worker->optimizer) ? 2 : 1;
    if (worker->pipeline.in)
        AQ_TRY(numbers_receive(worker, run, worker->pipeline.in, count));
    else if (worker->W == 1)
        AQ_TRY(aq_worker_stop_heard(worker));
    if (worker->pipeline.out) AQ_TRY(numbers_send(worker, run, worker->pipeline.out, count));
    if (count > 1) aq_optimizer_gauged(worker->optimizer, run->sums[1]);
    times->gradient_norm = sqrt(run->sums[0]);
    return AQ_OK;
}

/*
 * While this step waits: the next one's chains, and its partial sums, so that a stage's own part is never what the
 * others wait for. Replicas and a tied table meet step by step, and a gauge is of the state after this step's update:
 * then not before.
 */
static enum aq_status next_advance(struct aq_worker *worker)
{
    struct aq_worker_run *next = &worker->steps.next;
    const enum aq_status status = chains_advance(worker);
    if (status != AQ_AGAIN || !aq_program_run_past(&worker->steps.program, 1) || next->partial) return status;
    if (worker->W > 1 || aq_optimizer_gauges(worker->optimizer) || aq_worker_is_tied(worker)) return AQ_AGAIN;
    AQ_TRY(chains_end(worker, next, &worker->steps.times_next));
    return norm_up(worker, next, &worker->steps.times_next);
}

enum aq_status aq_worker_meanwhile(void *context)
{
    struct aq_worker *worker = context;
    const uint64_t begin = aq_clock_ns();
    const uint32_t seen = aq_eventcount_read(worker->eventcount);
    if (!next_is_open(worker)) return AQ_AGAIN;
    AQ_TRY(aq_worker_pump(worker));
    enum aq_status status = chains_advance(worker);
    if (status == AQ_AGAIN && aq_worker_busy_since(worker)) status = aq_worker_poll_wait(worker, seen);
    worker->steps.overlap_ns += aq_clock_ns() - begin;
    return status;
}

/* Until one half of NORM, or of what a tied table needs, has what it waits for. */
static enum aq_status norm_half(struct aq_worker *worker,
                                enum aq_status (*half)(struct aq_worker *worker, struct aq_worker_run *run,
                                                       struct aq_worker_times *times),
                                const char *what)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(worker->eventcount);
        AQ_TRY(aq_worker_pump(worker));
        enum aq_status status = half(worker, &worker->steps.now, &worker->times);
        if (status != AQ_AGAIN) return status;
        status = next_advance(worker);
        if (status == AQ_AGAIN)
            AQ_TRY(wait(worker, seen, worker->steps.sending, what));
        else
            AQ_TRY(status);
    }
}

static enum aq_status norm(struct aq_worker *worker)
{
    AQ_TRY(norm_half(worker, shared_up, "shared gradients"));
    if (!worker->steps.now.partial) AQ_TRY(norm_half(worker, norm_up, "the gradient norm"));
    AQ_TRY(norm_half(worker, norm_down, "the gradient norm"));
    return norm_half(worker, shared_down, "shared gradients");
}

/* A void step: a part may change its cause (the loss scale), but many in a row without a change end the run. */
static enum aq_status skip(struct aq_worker *worker)
{
    const struct aq_job_train *train = &worker->job->train;
    worker->times.skipped = true;
    if (aq_job_global(worker->job)) { /* the server's stage names the client with such gradients (client_sums.c) */
        aq_log("worker", AQ_LOG_WARNING,
               "step %llu: no client's part of it has a finite gradient, so the step is skipped",
               (unsigned long long)worker->step);
        return AQ_OK;
    }
    struct aq_part_args args = {0};
    AQ_TRY(aq_worker_parts_on(&worker->worker_parts, AQ_PART_STEP_VOID, &args));
    aq_log("worker", AQ_LOG_WARNING, "step %llu: the gradient is not finite, the step is skipped%s",
           (unsigned long long)worker->step, args.note);
    if (args.mended || ++worker->steps.skipped_in_row < train->skips_max) return AQ_OK;
    return aq_fail(AQ_INVAL, "worker",
                   "%u steps in a row without a finite gradient (train.skips_max): lower %strain.lr (%g)",
                   train->skips_max, args.remedy, (double)train->lr);
}

/* An update, with what follows on it: where the optimizer can, its kernels clear gradients and round weights, too. */
static enum aq_status update(struct aq_worker *worker, float scale)
{
    struct aq_stage *stage = worker->stage;
    const float lr = aq_plan_learning_rate(worker->plan, aq_worker_global(worker, worker->step) + 1);
    struct aq_optimizer_ending ending = {.gradients = aq_stage_gradients(stage)};
    ending.rounded = aq_stage_rounded(stage, &ending.type);
    AQ_TRY(aq_optimizer_begin(worker->optimizer, aq_stage_parameters(stage), ending.gradients, lr, scale,
                              aq_worker_update(worker), worker->stream));
    const bool ends = aq_optimizer_ends(worker->optimizer, &ending);
    AQ_TRY(aq_worker_rounds(worker));
    worker->times.cleared = worker->times.cleared || ends;
    return ends ? AQ_OK : aq_stage_parameters_changed(stage, worker->stream);
}

/* The optimizer; a step whose norm is not finite is skipped, on every rank alike because all have the same total. */
static enum aq_status optimize(struct aq_worker *worker)
{
    const struct aq_job_train *train = &worker->job->train;
    const double gradient_norm = worker->times.gradient_norm;
    const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(worker), reduced = worker->times.reduce_ns;
    aq_worker_use(worker, worker->step);
    if (train->staleness) {
        AQ_TRY(aq_stage_keep(worker->stage, worker->stream));
        worker->steps.kept = true;
    }
    if (!isfinite(gradient_norm)) {
        AQ_TRY(skip(worker));
        AQ_TRY(aq_optimizer_begin_void(worker->optimizer, aq_stage_parameters(worker->stage), aq_worker_update(worker),
                                       worker->stream));
        AQ_TRY(aq_worker_rounds(worker));
        AQ_TRY(aq_stage_parameters_changed(worker->stage, worker->stream));
    } else {
        float scale = 1;
        if (train->clip > 0 && gradient_norm > (double)train->clip)
            scale = (float)((double)train->clip / gradient_norm);
        AQ_TRY(update(worker, scale));
        worker->steps.skipped_in_row = 0;
        struct aq_part_args args = {0};
        AQ_TRY(aq_worker_parts_on(&worker->worker_parts, AQ_PART_STEP_GOOD, &args));
    }
    aq_worker_use(worker, worker->step);
    if (!worker->times.cleared) AQ_TRY(aq_stage_zero_grads(worker->stage, worker->stream));
    AQ_TRY(aq_device_stream_sync(worker->device, worker->stream));
    const uint64_t end = aq_clock_ns();
    worker->times.optimizer_ns += aq_worker_own_ns(worker) - own - (worker->times.reduce_ns - reduced);
    aq_trace_add(worker->trace, "compute", "optimizer", begin, end, (uint32_t)worker->step, 0);
    return AQ_OK;
}

/* Starts this step's run, unless the step before started it, and the next one's, if it may start. */
static enum aq_status runs_begin(struct aq_worker *worker)
{
    struct aq_worker_steps *steps = &worker->steps;
    const uint64_t step = worker->step, begin = aq_clock_ns();
    const bool stale = worker->job->train.staleness > 0;
    const bool begun = next_is_open(worker);
    if (steps->program.steps[0].program) aq_program_run_next(&steps->program);
    if (begun) {
        steps->now = steps->next;
        worker->times = worker->steps.times_next;
    } else {
        run_begin(worker, step, &steps->now);
        worker->times = (struct aq_worker_times){.own_norm = -1};
    }
    steps->next = (struct aq_worker_run){0};
    steps->kept = false;
    worker->times.begin_ns = begin;
    struct aq_part_args args = {.stale = stale};
    AQ_TRY(aq_worker_parts_on(&worker->worker_parts, AQ_PART_STEP_BEGIN, &args));
    worker->times.loss_factor = args.factor;
    worker->steps.times_next = (struct aq_worker_times){.loss_factor = args.factor_next, .own_norm = -1};
    if (!stale || aq_worker_is_sync_point(worker, step + 1)) return AQ_OK;
    run_begin(worker, step + 1, &steps->next);
    return AQ_OK;
}

enum aq_status aq_worker_step(struct aq_worker *worker)
{
    AQ_TRY(runs_begin(worker));
    AQ_TRY(aq_worker_anchor(worker));
    AQ_TRY(run_chains(worker));
    AQ_TRY(norm_half(worker, aq_worker_tied_up, "the gradient of the tied table"));
    const struct aq_worker_run *run = &worker->steps.now;
    const struct aq_instruction *due;
    for (; (due = aq_program_run_due(&worker->steps.program)); (void)aq_program_run_pass(&worker->steps.program)) {
        switch (due->op) {
        case AQ_OP_REDUCE:
            if (worker->W > 1 && aq_worker_hears(worker, run->step) && !aq_worker_votes_travel(worker))
                AQ_TRY(aq_worker_stop_heard(worker));
            aq_heartbeat_phase(AQ_PHASE_REDUCE);
            aq_worker_use(worker, run->step);
            AQ_TRY(worker->replicas.reducer.reduce(worker));
            aq_heartbeat_phase(AQ_PHASE_COMPUTE);
            break;
        case AQ_OP_NORM:
            AQ_TRY(norm(worker));
            break;
        case AQ_OP_STEP:
            aq_heartbeat_phase(AQ_PHASE_UPDATE);
            AQ_TRY(optimize(worker));
            AQ_TRY(norm_half(worker, aq_worker_tied_down, "the tied table"));
            aq_heartbeat_phase(AQ_PHASE_COMPUTE);
            break;
        case AQ_OP_MARK:
        case AQ_OP_PREFETCH:
            break; /* marks are due at steps, not in every program: worker.c */
        default:
            return aq_fail(AQ_INVAL, "worker", "instruction %s after the chains", aq_op_name(due->op));
        }
    }
    return worker->plan->ranks == 1 ? aq_worker_stop_heard(worker) : AQ_OK; /* no other rank needs it earlier */
}
