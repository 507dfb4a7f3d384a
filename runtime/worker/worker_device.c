/*
 * worker_device.c -- what exec gives its device and what comes back: streams, the values at the cuts, forwards and
 * backwards on their way.
 *
 * Forward and backward are *issued* on the compute stream, between two timed events, and exec continues: edges code and
 * decode on their own streams meanwhile, each waiting for the others' events where values pass from one to the other
 * (values.h). Each pump of exec polls the events. While work is issued, exec sleeps at most AQ_EDGE_POLL_NS at a time,
 * because a device notifies no event count. Some few are out at once: enough that the device always has the next one,
 * and few enough that nothing is late in the order of the program.
 *
 * On a CPU streams are drained at all times: what is issued has happened, and exec never polls.
 */
#include "worker.h"

#include <string.h>

/* Of x, dx, y, dy: 0 where there is no such cut. */
static uint64_t cut_bytes(const struct aq_worker *w, int i)
{
    return i < 2 ? w->me->size.x_bytes : w->me->size.y_bytes;
}

/* Who answers has no gradients. */
static bool wants(const struct aq_worker *w, int i)
{
    return cut_bytes(w, i) > 0 && (i % 2 == 0 || !w->me->config.inference);
}

static enum aq_status values_open(struct aq_worker *w)
{
    struct aq_values *const all[] = {w->pipeline.x, w->pipeline.dx, w->pipeline.y, w->pipeline.dy};
    w->pipeline.copies = w->me->boundary_copies;
    AQ_ASSERT(w->pipeline.copies >= 1 && w->pipeline.copies <= AQ_PLAN_COPIES_MAX);
    for (int i = 0; i < 4; i++)
        for (uint32_t k = 0; wants(w, i) && k < w->pipeline.copies; k++)
            AQ_TRY(aq_values_open(w->device, cut_bytes(w, i), &all[i][k]));
    return AQ_OK;
}

enum aq_status aq_worker_device_open(struct aq_worker *w)
{
    AQ_TRY(aq_device_stream_open(w->device, &w->stream));
    AQ_TRY(aq_device_stream_open_light(w->device, &w->pipeline.send_stream));
    AQ_TRY(aq_device_stream_open_light(w->device, &w->pipeline.receive_stream));
    for (uint32_t i = 0; i < AQ_WORKER_ISSUES; i++) {
        AQ_TRY(aq_device_event_open_timed(w->device, &w->pipeline.issues[i].begun));
        AQ_TRY(aq_device_event_open_timed(w->device, &w->pipeline.issues[i].ended));
    }
    AQ_TRY(aq_device_event_open_timed(w->device, &w->pipeline.anchor));
    AQ_TRY(aq_cut_host_open(w->device, w->stream, aq_plan_cut_bytes(w->plan, w->position), &w->worker_parts.host));
    return values_open(w);
}

void aq_worker_device_synchronize(struct aq_worker *w)
{
    struct aq_stream *const streams[] = {w->stream, w->pipeline.send_stream, w->pipeline.receive_stream};
    for (int i = 0; i < 3; i++)
        if (streams[i]) (void)aq_device_stream_sync(w->device, streams[i]);
}

void aq_worker_device_close(struct aq_worker *w)
{
    struct aq_values *const all[] = {w->pipeline.x, w->pipeline.dx, w->pipeline.y, w->pipeline.dy};
    aq_cut_host_close(&w->worker_parts.host);
    for (int i = 0; i < 4; i++)
        for (uint32_t k = 0; k < AQ_PLAN_COPIES_MAX; k++)
            aq_values_close(w->device, cut_bytes(w, i), &all[i][k]);
    for (uint32_t i = 0; i < AQ_WORKER_ISSUES; i++) {
        aq_device_event_close(w->device, w->pipeline.issues[i].begun);
        aq_device_event_close(w->device, w->pipeline.issues[i].ended);
    }
    aq_device_event_close(w->device, w->pipeline.anchor);
    aq_device_stream_close(w->device, w->pipeline.receive_stream);
    aq_device_stream_close(w->device, w->pipeline.send_stream);
    aq_device_stream_close(w->device, w->stream);
}

enum aq_status aq_worker_anchor(struct aq_worker *w)
{
    if (w->pipeline.issue_count > 0) return AQ_OK; /* of the next step: they count from the one before */
    AQ_TRY(aq_device_event_record(w->device, w->pipeline.anchor, w->stream));
    w->pipeline.anchor_ns = aq_clock_ns();
    return AQ_OK;
}

/* --- forwards and backwards on their way ------------------------------------------------------------------------ */

void aq_worker_use(struct aq_worker *worker, uint64_t step)
{
    const bool stale = worker->job->train.staleness > 0;
    const struct aq_stage_use use = {.previous = stale && step == worker->step + worker->steps.kept,
                                     .gradients = stale ? step % 2 : 0};
    aq_stage_use(worker->stage, &use);
}

/* Which copy of the values at the cuts a micro-batch has. */
static uint32_t copy_of(const struct aq_worker *w, const struct aq_worker_run *run, uint32_t micro_batch)
{
    return (uint32_t)((run->base + micro_batch) % w->pipeline.copies);
}

static struct aq_worker_times *times_of(struct aq_worker *w, uint64_t step)
{
    return step == w->step ? &w->times : &w->steps.times_next;
}

/* The next one's place, its first event recorded. AQ_AGAIN: as many are out as may be. */
static enum aq_status issue_begin(struct aq_worker *w, const struct aq_worker_run *run,
                                  const struct aq_instruction *instruction, struct aq_worker_issue **out)
{
    if (w->pipeline.issue_count == AQ_WORKER_ISSUES) return AQ_AGAIN;
    struct aq_worker_issue *issue =
        &w->pipeline.issues[(w->pipeline.issue_first + w->pipeline.issue_count) % AQ_WORKER_ISSUES];
    issue->instruction = *instruction;
    issue->step = run->step;
    *out = issue;
    return AQ_OK;
}

static enum aq_status issue_end(struct aq_worker *w, struct aq_worker_issue *issue)
{
    AQ_TRY(aq_device_event_record(w->device, issue->ended, w->stream));
    issue->issued_ns = aq_clock_ns();
    w->pipeline.issue_count++;
    return aq_worker_issues_advance(w); /* on a CPU it is done */
}

static bool forward_is_out(const struct aq_worker *w, uint16_t slot)
{
    for (uint32_t i = 0; i < w->pipeline.issue_count; i++) {
        const struct aq_instruction *it =
            &w->pipeline.issues[(w->pipeline.issue_first + i) % AQ_WORKER_ISSUES].instruction;
        if (it->op == AQ_OP_FORWARD && it->slot == slot) return true;
    }
    return false;
}

enum aq_status aq_worker_cut(struct aq_worker *w, enum aq_part_moment moment, const struct aq_edge_batch *batch,
                             uint32_t slot, enum aq_part_samples kind, const struct aq_values *values)
{
    const bool before = moment == AQ_PART_CUT_INPUT || moment == AQ_PART_CUT_GRADIENT_BACK;
    const bool trains = kind == AQ_PART_TRAINED;
    if (!w->worker_parts.use_cuts || (before ? w->position == 0 : w->position + 1 == w->P)) return AQ_OK;
    const struct aq_part_cut cut = {.edge = &w->plan->edges[before ? w->position - 1 : w->position],
                                    .batch = batch,
                                    .inputs = &w->data.batch,
                                    .values = values,
                                    .host = &w->worker_parts.host,
                                    .slot = slot,
                                    .kind = kind,
                                    .trains = trains,
                                    .step_samples = trains ? aq_rank_data_samples(&w->data, batch->step) : 0,
                                    .loss_factor = trains ? times_of(w, batch->step)->loss_factor : 1};
    struct aq_part_args args = {.cut = &cut};
    return aq_worker_parts_on(&w->worker_parts, moment, &args);
}

enum aq_status aq_worker_forward(struct aq_worker *w, const struct aq_worker_run *run,
                                 const struct aq_instruction *instruction)
{
    const uint32_t copy = copy_of(w, run, instruction->micro_batch);
    const bool first = w->position == 0, last = w->position + 1 == w->P;
    struct aq_worker_issue *issue;
    struct aq_edge_batch batch;
    if (forward_is_out(w, instruction->slot)) return AQ_AGAIN; /* its losses and tokens lie in the slot */
    AQ_TRY(issue_begin(w, run, instruction, &issue));
    aq_worker_use(w, run->step);
    aq_rank_data_batch(&w->data, run->step, instruction->micro_batch, &batch);
    AQ_TRY(aq_rank_data_put(&w->data, &batch, false));
    const double targets = aq_rank_data_targets(&w->data, aq_stage_task(w->stage), run->step);
    const struct aq_stage_input input = {.x = first ? NULL : w->pipeline.x[copy].at,
                                         .batch = &w->data.batch,
                                         .seed = w->job->train.seed,
                                         .step = aq_worker_global(w, run->step),
                                         .loss_factor = (float)((double)times_of(w, run->step)->loss_factor / targets)};
    if (!first) AQ_TRY(aq_values_read_begin(w->device, &w->pipeline.x[copy], w->stream));
    AQ_TRY(aq_worker_cut(w, AQ_PART_CUT_INPUT, &batch, instruction->slot, AQ_PART_TRAINED, &w->pipeline.x[copy]));
    if (!last) AQ_TRY(aq_values_write_begin(w->device, &w->pipeline.y[copy], w->stream));
    AQ_TRY(aq_device_event_record(w->device, issue->begun, w->stream));
    AQ_TRY(
        aq_stage_forward(w->stage, instruction->slot, &input, last ? NULL : w->pipeline.y[copy].at, NULL, w->stream));
    AQ_TRY(aq_worker_cut(w, AQ_PART_CUT_OUTPUT, &batch, instruction->slot, AQ_PART_TRAINED, &w->pipeline.y[copy]));
    if (!first) AQ_TRY(aq_values_read_end(w->device, &w->pipeline.x[copy], w->stream));
    if (!last) AQ_TRY(aq_values_write_end(w->device, &w->pipeline.y[copy], w->stream));
    return issue_end(w, issue);
}

void aq_worker_sample(const void *self, const uint64_t *id, struct aq_edge_batch *batch)
{
    const struct aq_worker *w = self;
    const uint32_t *all = w->data.train_lengths, *mine = all ? &all[*id - w->job->data.skip] : NULL;
    *batch = (struct aq_edge_batch){
        .step = w->step, .samples = 1, .sample_ids = id, .lengths = aq_rank_data_cut_lengths(&w->data, mine)};
}

static enum aq_status compute(struct aq_worker *w, const struct aq_edge_batch *batch)
{
    const bool first = w->position == 0;
    const struct aq_values *x = &w->pipeline.dx[0], *y = &w->pipeline.dy[0];
    AQ_TRY(aq_rank_data_put_alone(&w->data, batch));
    const struct aq_stage_input input = {
        .x = first ? NULL : x->at, .batch = &w->data.batch, .seed = w->job->train.seed, .evaluate = true};
    if (!first) AQ_TRY(aq_values_read_begin(w->device, x, w->stream));
    AQ_TRY(aq_values_write_begin(w->device, y, w->stream));
    AQ_TRY(aq_stage_forward(w->stage, 0, &input, y->at, NULL, w->stream));
    AQ_TRY(aq_worker_cut(w, AQ_PART_CUT_OUTPUT, batch, 0, AQ_PART_REMADE, y));
    if (!first) AQ_TRY(aq_values_read_end(w->device, x, w->stream));
    return aq_values_write_end(w->device, y, w->stream);
}

enum aq_status aq_worker_compute(void *self, const struct aq_edge_batch *batch)
{
    struct aq_worker *w = self;
    struct aq_batch *mine = &w->data.batch; /* an evaluation may be between taking and using its own */
    const uint32_t samples = mine->samples, *lengths = mine->lengths, *starts = mine->starts;
    const enum aq_status status = compute(w, batch);
    mine->samples = samples;
    mine->lengths = lengths;
    mine->starts = starts;
    return status;
}

enum aq_status aq_worker_backward(struct aq_worker *w, const struct aq_worker_run *run,
                                  const struct aq_instruction *instruction)
{
    const uint32_t copy = copy_of(w, run, instruction->micro_batch);
    const bool first = w->position == 0, last = w->position + 1 == w->P;
    struct aq_worker_issue *issue;
    struct aq_edge_batch batch;
    AQ_TRY(issue_begin(w, run, instruction, &issue));
    aq_worker_use(w, run->step);
    if (!last) AQ_TRY(aq_values_read_begin(w->device, &w->pipeline.dy[copy], w->stream));
    if (w->worker_parts.use_cuts) aq_rank_data_batch(&w->data, run->step, instruction->micro_batch, &batch);
    AQ_TRY(aq_worker_cut(w, AQ_PART_CUT_GRADIENT, &batch, instruction->slot, AQ_PART_TRAINED, &w->pipeline.dy[copy]));
    if (!first) AQ_TRY(aq_values_write_begin(w->device, &w->pipeline.dx[copy], w->stream));
    AQ_TRY(aq_device_event_record(w->device, issue->begun, w->stream));
    AQ_TRY(aq_stage_backward(w->stage, instruction->slot, last ? NULL : w->pipeline.dy[copy].at,
                             first ? NULL : w->pipeline.dx[copy].at, w->stream));
    AQ_TRY(
        aq_worker_cut(w, AQ_PART_CUT_GRADIENT_BACK, &batch, instruction->slot, AQ_PART_TRAINED, &w->pipeline.dx[copy]));
    if (!last) AQ_TRY(aq_values_read_end(w->device, &w->pipeline.dy[copy], w->stream));
    if (!first) AQ_TRY(aq_values_write_end(w->device, &w->pipeline.dx[copy], w->stream));
    return issue_end(w, issue);
}

enum aq_status aq_worker_weights(struct aq_worker *w, const struct aq_worker_run *run,
                                 const struct aq_instruction *instruction)
{
    struct aq_worker_issue *issue;
    AQ_TRY(issue_begin(w, run, instruction, &issue));
    aq_worker_use(w, run->step);
    AQ_TRY(aq_device_event_record(w->device, issue->begun, w->stream));
    AQ_TRY(aq_stage_weights(w->stage, instruction->slot, w->stream));
    return issue_end(w, issue);
}

/* It has come back: what it took, by the device's own clock, and the loss that it brings. */
static enum aq_status issue_done(struct aq_worker *w, const struct aq_worker_issue *issue)
{
    const enum aq_op op = issue->instruction.op;
    const char *name = op == AQ_OP_FORWARD ? "forward" : op == AQ_OP_BACKWARD ? "backward" : "weights";
    struct aq_worker_times *times = times_of(w, issue->step);
    uint64_t before = 0, took = 0;
    AQ_TRY(aq_device_event_elapsed(w->device, w->pipeline.anchor, issue->begun, &before));
    AQ_TRY(aq_device_event_elapsed(w->device, issue->begun, issue->ended, &took));
    times->compute_ns += took;
    const uint64_t begin = w->pipeline.anchor_ns + before;
    aq_trace_add(w->trace, "compute", name, begin, begin + took, (uint32_t)issue->step, issue->instruction.micro_batch);
    if (op != AQ_OP_FORWARD || w->position + 1 < w->P) return AQ_OK;
    struct aq_stage_loss loss;
    AQ_TRY(aq_stage_loss(w->stage, issue->instruction.slot, &loss));
    times->loss_sum += loss.sum;
    times->loss_targets += loss.targets;
    return AQ_OK;
}

enum aq_status aq_worker_issues_advance(struct aq_worker *w)
{
    while (w->pipeline.issue_count > 0) {
        const struct aq_worker_issue *issue = &w->pipeline.issues[w->pipeline.issue_first];
        const enum aq_status status = aq_device_event_query(w->device, issue->ended);
        if (status == AQ_AGAIN) return AQ_OK;
        AQ_TRY(status);
        AQ_TRY(issue_done(w, issue));
        w->pipeline.issue_first = (w->pipeline.issue_first + 1) % AQ_WORKER_ISSUES;
        w->pipeline.issue_count--;
    }
    return AQ_OK;
}
