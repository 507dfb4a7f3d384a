/*
 * worker_cached.c -- a stage behind which the edge is still (edge.h): nothing trains in it or before it, so that it
 * computes a sample once.
 *
 * A micro-batch of which both ends of the edge out hold all is sent as rows. Then this stage needs no input: the frame
 * that comes in is taken as it is if it has only rows, too, and no cache is read. If an input is needed later (the edge
 * out turns out to have lost a sample), aq_edge_reload brings it, from this stage's cache or from the stage before,
 * which does the same.
 *
 * Gradients do not come here: the buffers for those of the cuts are free, and serve to compute a lost sample again
 * (aq_worker_cached_advance).
 */
#include "worker.h"

bool aq_worker_is_cached(const struct aq_worker *worker)
{
    return worker->pipeline.out && worker->plan->edges[worker->position].shape.still;
}

static uint32_t copy_of(const struct aq_worker *worker, const struct aq_edge_batch *batch)
{
    return (uint32_t)((batch->base + batch->micro_batch) % worker->pipeline.copies);
}

enum aq_status aq_worker_cached_receive(struct aq_worker *worker, const struct aq_edge_batch *batch, uint16_t slot)
{
    bool *unread = &worker->steps.unread[slot];
    *unread = false;
    if (aq_edge_is_cached(worker->pipeline.out, batch)) {
        const enum aq_status status = aq_edge_receive_cached(worker->pipeline.in, batch);
        *unread = status == AQ_OK;
        if (status != AQ_NOTFOUND) return status;
    }
    return aq_edge_receive_forward(worker->pipeline.in, batch, &worker->pipeline.x[copy_of(worker, batch)],
                                   worker->pipeline.receive_stream);
}

/* Computes the stage after all; first recalls the input if it was not read. */
static enum aq_status compute(struct aq_worker *worker, const struct aq_worker_run *run,
                              const struct aq_edge_batch *batch, const struct aq_instruction *instruction)
{
    bool *unread = &worker->steps.unread[instruction->slot];
    if (worker->position > 0 && *unread) {
        AQ_TRY(aq_edge_reload(worker->pipeline.in, batch, &worker->pipeline.x[copy_of(worker, batch)],
                              worker->pipeline.receive_stream));
        *unread = false;
    }
    return aq_worker_forward(worker, run, instruction);
}

enum aq_status aq_worker_cached_forward(struct aq_worker *worker, const struct aq_worker_run *run,
                                        const struct aq_edge_batch *batch, const struct aq_instruction *instruction)
{
    bool *skipped = &worker->steps.skipped[instruction->slot];
    *skipped = aq_edge_is_cached(worker->pipeline.out, batch);
    return *skipped ? AQ_OK : compute(worker, run, batch, instruction);
}

enum aq_status aq_worker_cached_send(struct aq_worker *worker, const struct aq_worker_run *run,
                                     const struct aq_edge_batch *batch, const struct aq_instruction *instruction)
{
    bool *skipped = &worker->steps.skipped[instruction->slot];
    if (*skipped) {
        const enum aq_status status = aq_edge_send_cached(worker->pipeline.out, batch);
        if (status != AQ_NOTFOUND) return status;
        AQ_TRY(compute(worker, run, batch, instruction)); /* a message was found damaged meanwhile */
        *skipped = false;
    }
    return aq_edge_send_forward(worker->pipeline.out, batch, &worker->pipeline.y[copy_of(worker, batch)],
                                worker->pipeline.send_stream);
}

/* --- a sample again ---------------------------------------------------------------------------------------------- */

static enum aq_status forward_alone(struct aq_worker *worker, const struct aq_edge_batch *batch)
{
    const bool first = worker->position == 0;
    const struct aq_values *x = &worker->pipeline.dx[0], *y = &worker->pipeline.dy[0];
    worker->batch.samples = 1;
    worker->batch.lengths = batch->lengths;
    worker->batch.starts =
        aq_worker_starts(worker, false, batch->sample_ids[0] - worker->job->data.skip, worker->me->config.B);
    if (worker->train)
        AQ_TRY(aq_dataset_put(worker->train, batch->sample_ids[0] - worker->job->data.skip, &worker->batch, 0));
    const struct aq_stage_input input = {
        .x = first ? NULL : x->at, .batch = &worker->batch, .seed = worker->job->train.seed, .evaluate = true};
    if (!first) AQ_TRY(aq_edge_reload(worker->pipeline.in, batch, x, worker->pipeline.receive_stream));
    if (!first) AQ_TRY(aq_values_read_begin(worker->device, x, worker->stream));
    AQ_TRY(aq_values_write_begin(worker->device, y, worker->stream));
    AQ_TRY(aq_stage_forward(worker->stage, 0, &input, y->at, NULL, worker->stream));
    AQ_TRY(aq_worker_cut(worker, AQ_PART_CUT_OUTPUT, batch, 0, false, y));
    if (!first) AQ_TRY(aq_values_read_end(worker->device, x, worker->stream));
    return aq_values_write_end(worker->device, y, worker->stream);
}

enum aq_status aq_worker_cached_advance(struct aq_worker *worker)
{
    uint64_t id;
    uint32_t rows;
    if (!aq_worker_is_cached(worker) || !aq_edge_recompute_pending(worker->pipeline.out, &id)) return AQ_OK;
    if (aq_worker_busy_since(worker)) return AQ_OK; /* the stage's slots are in use: a later pump */
    struct aq_edge_batch batch = {.step = worker->step, .samples = 1, .sample_ids = &id};
    if (worker->train_lengths && !worker->job->split.pad) {
        rows = worker->train_lengths[id - worker->job->data.skip];
        batch.lengths = &rows;
    }
    const uint32_t samples = worker->batch.samples; /* an evaluation may be between taking and using its own */
    const uint32_t *lengths = worker->batch.lengths, *starts = worker->batch.starts;
    enum aq_status status = forward_alone(worker, &batch);
    worker->batch.samples = samples;
    worker->batch.lengths = lengths;
    worker->batch.starts = starts;
    AQ_TRY(status);
    status =
        aq_edge_recompute_done(worker->pipeline.out, &batch, &worker->pipeline.dy[0], worker->pipeline.send_stream);
    return status == AQ_AGAIN ? AQ_OK : status;
}
