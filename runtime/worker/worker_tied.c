/*
 * worker_tied.c -- a head that is the embedding's table, where a cut separates the two (model.tied: exact).
 *
 * The table is a parameter of the first stage, and the last stage has a copy of it (stages/stage.h). When a step's
 * chains are done, the copy's gradient goes from the last stage to the first, which adds the embedding's part: all else
 * of the step knows one tensor, on one stage. After the update the table's values go from the first stage to the last.
 * So each optimizer, reduction, norm and schedule is right as it is, and the copy has the table's bits.
 *
 * Stages in between pass both on. The values lie in the edges' memory on their way.
 */
#include <string.h>

#include "worker.h"

bool aq_worker_is_tied(const struct aq_worker *w)
{
    return w->P > 1 && w->plan->edges[0].shape.tied > 0;
}

static enum aq_status copy(struct aq_worker *w, void *to, const void *from)
{
    const uint64_t bytes = w->plan->edges[0].shape.tied * sizeof(float);
    AQ_TRY(aq_device_copy(w->device, to, from, bytes, w->stream));
    return aq_device_stream_sync(w->device, w->stream);
}

/* The head's gradient is in the edge's memory from here on. */
static enum aq_status take_gradient(struct aq_worker *w)
{
    float *gradient = aq_stage_tied_gradient(w->stage);
    AQ_TRY(copy(w, aq_edge_tied(w->pipeline.in), gradient));
    return aq_device_zero(w->device, gradient, aq_stage_tied_floats(w->stage) * sizeof *gradient, w->stream);
}

static enum aq_status put_gradient(struct aq_worker *w)
{
    AQ_TRY(copy(w, aq_stage_tied_gradient(w->stage), aq_edge_tied(w->pipeline.out)));
    return aq_stage_tied_fold(w->stage, w->stream);
}

enum aq_status aq_worker_tied_up(struct aq_worker *w, struct aq_worker_run *run, struct aq_worker_times *times)
{
    struct aq_edge *in = w->pipeline.in, *out = w->pipeline.out;
    if (!aq_worker_is_tied(w)) return AQ_OK;
    if (!w->tied.ready) {
        if (out) AQ_TRY(aq_edge_receive_tied(out, run->step));
        if (in) AQ_TRY(aq_edge_hold_tied(in));
        const uint64_t begin = aq_clock_ns();
        aq_worker_use(w, run->step);
        if (!in) AQ_TRY(put_gradient(w));
        if (!out) AQ_TRY(take_gradient(w));
        if (in && out) {
            memcpy(aq_edge_tied(in), aq_edge_tied(out), w->plan->edges[0].shape.tied * sizeof(float));
            aq_edge_release_tied(out);
        }
        times->optimizer_ns += aq_clock_ns() - begin;
        w->tied.ready = true;
    }
    if (in) AQ_TRY(aq_edge_send_tied(in, run->step));
    w->tied.ready = false;
    return AQ_OK;
}

/* The newest values, or those before the last update, from the first stage to the last. AQ_AGAIN: call again. */
static enum aq_status values_down(struct aq_worker *w, bool previous)
{
    struct aq_edge *in = w->pipeline.in, *out = w->pipeline.out;
    if (!w->tied.ready) {
        if (in) AQ_TRY(aq_edge_receive_tied(in, w->step));
        if (out) AQ_TRY(aq_edge_hold_tied(out));
        if (!in) AQ_TRY(copy(w, aq_edge_tied(out), aq_stage_tied_values(w->stage, previous)));
        if (in && out) memcpy(aq_edge_tied(out), aq_edge_tied(in), w->plan->edges[0].shape.tied * sizeof(float));
        if (!out) {
            AQ_TRY(copy(w, aq_stage_tied_values(w->stage, previous), aq_edge_tied(in)));
            AQ_TRY(previous ? aq_stage_previous_changed(w->stage, w->stream)
                            : aq_stage_parameters_changed(w->stage, w->stream));
        }
        if (in) aq_edge_release_tied(in);
        w->tied.ready = true;
    }
    if (out) AQ_TRY(aq_edge_send_tied(out, w->step));
    w->tied.ready = false;
    return AQ_OK;
}

enum aq_status aq_worker_tied_down(struct aq_worker *w, struct aq_worker_run *run, struct aq_worker_times *times)
{
    (void)run;
    const uint64_t begin = aq_clock_ns();
    if (!aq_worker_is_tied(w)) return AQ_OK;
    AQ_TRY(values_down(w, false));
    times->optimizer_ns += aq_clock_ns() - begin;
    return AQ_OK;
}

/* A number to the stage before says that the values of before are not in the edge any more. */
static enum aq_status ask_values(struct aq_worker *w, bool previous)
{
    (void)previous;
    return w->pipeline.in ? aq_edge_send_norm(w->pipeline.in, w->step, 0, 0) : AQ_OK;
}

static enum aq_status hear_asked(struct aq_worker *w, bool previous)
{
    double value;
    uint16_t flags;
    (void)previous;
    return w->pipeline.out ? aq_edge_receive_norm(w->pipeline.out, w->step, &value, &flags) : AQ_OK;
}

/* Each part when the one before is done. */
static enum aq_status follow_some(struct aq_worker *w, bool previous, uint32_t *part)
{
    static enum aq_status (*const parts[])(struct aq_worker *w, bool previous) = {ask_values, hear_asked, values_down};
    for (; *part < sizeof parts / sizeof *parts; ++*part)
        AQ_TRY(parts[*part](w, previous));
    return AQ_OK;
}

static enum aq_status values_follow(struct aq_worker *w, bool previous)
{
    for (uint32_t part = 0;;) {
        const uint32_t seen = aq_bell_count(w->bell);
        AQ_TRY(aq_worker_pump(w));
        enum aq_status status = follow_some(w, previous, &part);
        if (status != AQ_AGAIN) return status;
        status = aq_bell_wait(w->bell, seen, aq_clock_after(w->silence_ns));
        if (status == AQ_TIMEOUT)
            return aq_fail(AQ_TIMEOUT, "worker", "step %llu: nothing came for %.0f s while waiting for the tied table",
                           (unsigned long long)w->step, (double)w->silence_ns * 1e-9);
        AQ_TRY(status);
    }
}

enum aq_status aq_worker_tied_follow(struct aq_worker *w)
{
    return aq_worker_is_tied(w) ? values_follow(w, false) : AQ_OK;
}

enum aq_status aq_worker_tied_open(struct aq_worker *w)
{
    const bool began = w->step > 0 || w->checkpoints.adopted;
    if (!aq_worker_is_tied(w) || !began || !w->job->train.staleness) return AQ_OK;
    return values_follow(w, true); /* a checkpoint has the previous parameters, and a copy is none */
}
