/*
 * frozen_prefix.c -- the part of a worker for train.frozen_prefix: a stage behind which the edge is still (edge.h).
 * Nothing trains in it or before it, so that it computes a sample once.
 *
 * A micro-batch of which both ends of the edge out hold all is sent as rows. Then this stage needs no input: the frame
 * that comes in is taken as it is if it has only rows, too, and no cache is read. If an input is needed later (the edge
 * out turns out to have lost a sample), aq_edge_reload brings it, from this stage's cache or from the stage before,
 * which does the same.
 *
 * Gradients do not come here: the buffers for those of the cuts are free, and serve to compute a lost sample again
 * (advance).
 */
#include "edge_cached.h"
#include "worker_parts.h"

enum { SLOTS = AQ_JOB_MICRO_BATCHES_MAX * (1 + AQ_STALENESS_MAX) };

struct part {
    const struct aq_part_worker *worker;
    bool unread[SLOTS];  /* by slot: the input was not decoded  */
    bool skipped[SLOTS]; /* by slot: the output was not computed */
};

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    const uint32_t position = rank % plan->stage_count;
    return position + 1 < plan->stage_count && plan->edges[position].shape.still;
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    (void)self, (void)plan, (void)rank;
    return AQ_OK;
}

static enum aq_status prefetch(const struct aq_part_worker *worker, const struct aq_edge_batch *batch)
{
    if (!worker->in || aq_edge_is_cached(worker->out, batch)) return AQ_OK; /* nothing is read */
    return aq_edge_prefetch(worker->in, batch);
}

/* False: the values come, as to any stage. */
static enum aq_status receive(struct part *part, const struct aq_part_instruction *turn, bool *done)
{
    bool *unread = &part->unread[turn->slot];
    *unread = false;
    if (!aq_edge_is_cached(part->worker->out, turn->batch)) return AQ_OK;
    const enum aq_status status = aq_edge_receive_cached(part->worker->in, turn->batch);
    *unread = status == AQ_OK;
    *done = status != AQ_NOTFOUND;
    return *done ? status : AQ_OK;
}

/* Computes the stage after all; first recalls the input if it was not read. */
static enum aq_status compute(struct part *part, const struct aq_part_instruction *turn)
{
    bool *unread = &part->unread[turn->slot];
    if (part->worker->in && *unread) {
        AQ_TRY(aq_edge_reload(part->worker->in, turn->batch, turn->x, part->worker->receive));
        *unread = false;
    }
    return turn->forward(turn->of);
}

static enum aq_status forward(struct part *part, const struct aq_part_instruction *turn)
{
    bool *skipped = &part->skipped[turn->slot];
    *skipped = aq_edge_is_cached(part->worker->out, turn->batch);
    return *skipped ? AQ_OK : compute(part, turn);
}

/* False: the values go, as from any stage. */
static enum aq_status send(struct part *part, const struct aq_part_instruction *turn, bool *done)
{
    bool *skipped = &part->skipped[turn->slot];
    if (!*skipped) return AQ_OK;
    const enum aq_status status = aq_edge_send_cached(part->worker->out, turn->batch);
    *done = status != AQ_NOTFOUND;
    if (*done) return status;
    AQ_TRY(compute(part, turn)); /* a message was found damaged meanwhile */
    *skipped = false;
    return AQ_OK;
}

static enum aq_status execute(struct part *part, const struct aq_part_instruction *turn, bool *done)
{
    switch (turn->op) {
    case AQ_OP_PREFETCH:
        *done = true;
        return prefetch(part->worker, turn->batch);
    case AQ_OP_RECV_FWD:
        return receive(part, turn, done);
    case AQ_OP_FORWARD:
        *done = true;
        return forward(part, turn);
    case AQ_OP_SEND_FWD:
        return send(part, turn, done);
    case AQ_OP_BACKWARD:
    case AQ_OP_WEIGHTS:
        *done = true;
        return AQ_OK;
    default:
        return AQ_OK;
    }
}

/* An activation that the next stage waits for, and that this one has lost, too. */
static enum aq_status advance(const struct aq_part_worker *worker)
{
    uint64_t id;
    struct aq_edge_batch batch;
    if (!aq_edge_recompute_pending(worker->out, &id)) return AQ_OK;
    if (worker->is_busy(worker->self)) return AQ_OK; /* the stage's slots are in use: a later pump */
    worker->sample(worker->self, &id, &batch);
    if (worker->in) AQ_TRY(aq_edge_reload(worker->in, &batch, worker->spare_x, worker->receive));
    AQ_TRY(worker->compute_alone(worker->self, &batch));
    const enum aq_status status = aq_edge_recompute_done(worker->out, &batch, worker->spare_y, worker->send);
    return status == AQ_AGAIN ? AQ_OK : status;
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    switch (moment) {
    case AQ_PART_JOINED:
        part->worker = args->worker;
        args->input_unused = true;
        return AQ_OK;
    case AQ_PART_INSTRUCTION:
        return execute(part, args->turn, &args->done);
    case AQ_PART_PUMP:
        return part->worker ? advance(part->worker) : AQ_OK;
    default:
        return AQ_OK;
    }
}

const struct aq_part_ops aq_part_frozen_prefix = {.name = "frozen_prefix",
                                                  .bytes = sizeof(struct part),
                                                  .uses_chains = true,
                                                  .wanted = part_wanted,
                                                  .open = part_open,
                                                  .on = part_on};
