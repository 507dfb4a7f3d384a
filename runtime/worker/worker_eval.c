/*
 * worker_eval.c -- the held-out loss: forward only, through all stages, edges raw fp32, dropout off.
 *
 * The figure describes the model as trained, without the edges' compression: any program that computes the exported
 * weights' loss in fp32 on the same text finds it. After the last step there is a second pass, whose activations cross
 * each cut by its forward codec, as samples that were never seen: the loss that such a pipeline serves. Replicas take a
 * part of the samples each; the launcher adds up the reports of their last stages.
 */
#include <math.h>

#include "edge_eval.h"
#include "heartbeat.h"
#include "heldout.h"
#include "plan_epsilon.h"
#include "worker.h"

static enum aq_status wait_for(struct aq_worker *worker, uint32_t seen)
{
    if (aq_worker_busy_since(worker) || aq_worker_carrying(worker)) return aq_worker_poll_wait(worker, seen);
    aq_heartbeat_phase(AQ_PHASE_NEIGHBOUR);
    const enum aq_status status =
        aq_eventcount_wait(worker->eventcount, seen, aq_clock_after(worker->links.silence_ns));
    aq_heartbeat_phase(AQ_PHASE_EVALUATE);
    if (status == AQ_TIMEOUT) return aq_fail(AQ_TIMEOUT, "worker", "evaluation: nothing came from the neighbours");
    return status;
}

static const struct aq_values *values_of(const struct aq_worker *worker, const struct aq_values *copies,
                                         const struct aq_edge_batch *batch)
{
    return &copies[batch->micro_batch % worker->pipeline.copies];
}

enum aq_status aq_worker_receive_eval(struct aq_worker *worker, const struct aq_edge_batch *batch)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(worker->eventcount);
        AQ_TRY(aq_worker_pump(worker));
        const enum aq_status status =
            aq_edge_eval_here(worker->pipeline.in)
                ? aq_edge_receive_eval(worker->pipeline.in, batch, values_of(worker, worker->pipeline.x, batch),
                                       worker->pipeline.receive_stream)
                : AQ_AGAIN;
        if (status != AQ_AGAIN) return status;
        AQ_TRY(wait_for(worker, seen));
    }
}

enum aq_status aq_worker_send_eval(struct aq_worker *worker, const struct aq_edge_batch *batch)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(worker->eventcount);
        AQ_TRY(aq_worker_pump(worker));
        const enum aq_status status = aq_edge_send_eval(
            worker->pipeline.out, batch, values_of(worker, worker->pipeline.y, batch), worker->pipeline.send_stream);
        if (status != AQ_AGAIN) return status;
        AQ_TRY(wait_for(worker, seen));
    }
}

static enum aq_status evaluate_batch(struct aq_worker *worker, uint32_t micro_batch, uint64_t first, uint32_t samples,
                                     uint16_t flags, struct aq_stage_loss *total)
{
    const bool is_first = worker->position == 0, is_last = worker->position + 1 == worker->P;
    const uint32_t *lengths = worker->data.heldout_lengths ? worker->data.heldout_lengths + first : NULL;
    for (uint32_t i = 0; i < samples; i++)
        worker->data.sample_ids[i] = first + i;
    const struct aq_edge_batch batch = {.step = worker->step,
                                        .micro_batch = micro_batch,
                                        .samples = samples,
                                        .sample_ids = worker->data.sample_ids,
                                        .lengths = aq_rank_data_cut_lengths(&worker->data, lengths),
                                        .flags = flags};
    AQ_TRY(aq_rank_data_put(&worker->data, &batch, true));
    if (!is_first) AQ_TRY(aq_worker_receive_eval(worker, &batch));
    const struct aq_values *x = values_of(worker, worker->pipeline.x, &batch),
                           *y = values_of(worker, worker->pipeline.y, &batch);
    const struct aq_stage_input input = {.x = is_first ? NULL : x->at,
                                         .batch = &worker->data.batch,
                                         .seed = worker->job->train.seed,
                                         .step = worker->step,
                                         .evaluate = true,
                                         .loss_factor = 1};
    struct aq_stage_loss loss = {0};
    aq_stage_use(worker->stage, &(struct aq_stage_use){.previous = false});
    if (!is_first) AQ_TRY(aq_values_read_begin(worker->device, x, worker->stream));
    AQ_TRY(aq_worker_cut(worker, AQ_PART_CUT_INPUT, &batch, 0, AQ_PART_HELDOUT, x));
    if (!is_last) AQ_TRY(aq_values_write_begin(worker->device, y, worker->stream));
    AQ_TRY(aq_stage_forward(worker->stage, 0, &input, is_last ? NULL : y->at, is_last ? &loss : NULL, worker->stream));
    AQ_TRY(aq_worker_cut(worker, AQ_PART_CUT_OUTPUT, &batch, 0, AQ_PART_HELDOUT, y));
    if (!is_first) AQ_TRY(aq_values_read_end(worker->device, x, worker->stream));
    if (!is_last) AQ_TRY(aq_values_write_end(worker->device, y, worker->stream));
    aq_task_add(total, &loss);
    return is_last ? AQ_OK : aq_worker_send_eval(worker, &batch);
}

/* Once through this replica's part. */
static enum aq_status pass(struct aq_worker *worker, uint16_t flags, struct aq_stage_loss *total)
{
    const uint64_t all = worker->plan->facts.heldout_samples;
    const uint64_t from = all * worker->replica / worker->W, end = all * (worker->replica + 1) / worker->W;
    const uint32_t B = worker->me->config.B;
    uint32_t micro_batch = 0;
    for (uint64_t first = from; first < end; first += B, micro_batch++) {
        const uint32_t samples = end - first < B ? (uint32_t)(end - first) : B;
        AQ_TRY(evaluate_batch(worker, micro_batch, first, samples, flags, total));
        aq_heartbeat_work();
    }
    return aq_worker_settle(worker);
}

enum aq_status aq_worker_evaluate(struct aq_worker *worker)
{
    struct aq_stage_loss total = {0}, coded = {0};
    const uint64_t begin = aq_clock_ns();
    aq_heartbeat_phase(AQ_PHASE_EVALUATE);
    AQ_TRY(pass(worker, 0, &total));
    if (worker->steps.final && aq_plan_evaluates_coded(worker->plan)) AQ_TRY(pass(worker, AQ_EDGE_CODED, &coded));
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    aq_trace_add(worker->trace, "compute", "evaluate", begin, aq_clock_ns(), (uint32_t)worker->step, 0);
    const double seconds = (double)(aq_clock_ns() - begin) * 1e-9;
    if (worker->position + 1 != worker->P) {
        aq_log("worker", 1, "step %llu: evaluated in %.2f s", (unsigned long long)worker->step, seconds);
        return AQ_OK;
    }
    json_t *line = json_pack("{s:s, s:I}", "event", "eval", "step", (json_int_t)worker->step);
    if (!line) return aq_fail(AQ_NOMEM, "worker", "no memory for a line of metrics");
    aq_heldout_say(line, aq_stage_task(worker->stage), &total);
    aq_heldout_say_coded(line, &coded);
    if (worker->job->split.pad && aq_dataset_masks(worker->data.heldout))
        json_object_del(line, "targets"); /* the server reads it, and it counts the tokens of all answers */
    const char *metric = "no metric";
    double value = (double)NAN;
    bool higher;
    (void)aq_heldout_metric(line, &metric, &value, &higher);
    aq_log("worker", 1, "step %llu: evaluated in %.2f s: held-out loss %.4f, %s %.3f, %llu targets",
           (unsigned long long)worker->step, seconds, aq_control_number_or(line, "loss", (double)NAN), metric, value,
           (unsigned long long)total.targets);
    json_object_set_new(line, "seconds", aq_control_number((double)(aq_clock_ns() - worker->steps.go_ns) * 1e-9));
    return aq_control_send(worker->control, line);
}
