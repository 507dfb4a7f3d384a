/*
 * worker_tied.c -- a head that is the embedding's table, where a cut separates the two (model.tied).
 *
 * exact. The table is a parameter of the first stage, and the last stage has a copy of it (stages/stage.h). When a
 * step's chains are done, the copy's gradient goes from the last stage to the first, which adds the embedding's part:
 * all else of the step knows one tensor, on one stage. After the update the table's values go from the first stage to
 * the last. So each optimizer, reduction, norm and schedule is right as it is, and the copy has the table's bits.
 *
 * compressed. Both stages have the table as a parameter. When the chains are done, the last stage quantizes the head's
 * gradient with its residual, and both stages take what was decoded; then the first stage sends the rows of the
 * embedding's gradient, and both add them. So both update by the same bits. A gradient that is not finite is not
 * quantized: one word marks it, and the step is void on all stages.
 *
 * Stages in between pass all on. The edges' memory holds what is in transit. In split learning both ends are workers of
 * the client, and exchange it directly (worker_ends.c).
 */
#include <math.h>
#include <string.h>

#include "edge_norm.h"
#include "edge_shared.h"
#include "worker.h"

bool aq_worker_is_tied(const struct aq_worker *w)
{
    return w->P > 1 && (w->pipeline.tied.local || w->plan->edges[0].shape.tied > 0);
}

static bool is_compressed(const struct aq_worker *w)
{
    return w->plan->model.tied == AQ_TIED_COMPRESSED;
}

static bool is_end(const struct aq_worker *w)
{
    return w->position == 0 || w->position + 1 == w->P;
}

/* --- compressed -------------------------------------------------------------------------------------------------- */

/* On the host two arrays of the table's size: gradient and residual, where the stage's own lie on a GPU. */
struct sides {
    float *gradient, *residual;
};

static struct sides sides_of(const struct aq_worker *w)
{
    const uint64_t floats = aq_stage_tied_floats(w->stage);
    if (w->pipeline.tied.host) return (struct sides){w->pipeline.tied.host, w->pipeline.tied.host + floats};
    return (struct sides){aq_stage_tied_gradient(w->stage), aq_stage_tied_residual(w->stage)};
}

static enum aq_status copy_floats(struct aq_worker *w, void *to, const void *from, uint64_t count)
{
    if (to == from || count == 0) return AQ_OK;
    AQ_TRY(aq_device_copy(w->device, to, from, count * sizeof(float), w->stream));
    return aq_device_stream_sync(w->device, w->stream);
}

static bool all_finite(const float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i])) return false;
    return true;
}

/* Decodes the gradient from the wire. One word: it is not finite. */
static enum aq_status decode(struct aq_worker *w, const void *wire, uint64_t words)
{
    const uint64_t floats = aq_stage_tied_floats(w->stage);
    const struct sides sides = sides_of(w);
    const uint8_t *at = wire;
    const bool whole = words == w->pipeline.tied.traffic.up_words;
    if (!whole && words > 1)
        return aq_fail(AQ_PROTO, "worker", "%llu words of a tied table's gradient arrived, but %llu were expected",
                       (unsigned long long)words, (unsigned long long)w->pipeline.tied.traffic.up_words);
    for (uint64_t first = 0, count; whole && first < floats; first += count) {
        count = floats - first < AQ_GRAD_PIECE ? floats - first : AQ_GRAD_PIECE;
        const size_t bytes = aq_grad_codec_bytes(w->pipeline.tied.codec, first, count);
        AQ_TRY(aq_grad_decode(w->pipeline.tied.codec, first, count, at, bytes, 1.0f, false, sides.gradient + first));
        at += bytes;
    }
    if (!whole) sides.gradient[0] = NAN;
    return copy_floats(w, aq_stage_tied_gradient(w->stage), sides.gradient, whole ? floats : 1);
}

/* The last stage's gradient, with its residual, onto the wire; then it is what the first stage will have. */
static enum aq_status encode(struct aq_worker *w, void *wire, uint64_t *words)
{
    const uint64_t floats = aq_stage_tied_floats(w->stage);
    const struct sides sides = sides_of(w);
    uint8_t *at = wire;
    AQ_TRY(copy_floats(w, sides.gradient, aq_stage_tied_gradient(w->stage), floats));
    AQ_TRY(copy_floats(w, sides.residual, aq_stage_tied_residual(w->stage), floats));
    *words = all_finite(sides.gradient, floats) ? w->pipeline.tied.traffic.up_words : 1;
    memset((float *)wire + *words - 1, 0, sizeof(float));
    for (uint64_t first = 0, count; *words > 1 && first < floats; first += count) {
        count = floats - first < AQ_GRAD_PIECE ? floats - first : AQ_GRAD_PIECE;
        AQ_TRY(aq_grad_encode(w->pipeline.tied.codec, first, count, sides.gradient + first, sides.residual + first,
                              w->step, at));
        at += aq_grad_codec_bytes(w->pipeline.tied.codec, first, count);
    }
    AQ_TRY(copy_floats(w, aq_stage_tied_residual(w->stage), sides.residual, floats));
    return decode(w, wire, *words);
}

/* The number of rows, their tokens, and the rows. */
static enum aq_status take_rows(struct aq_worker *w, void *wire, uint64_t *words)
{
    const uint64_t columns = w->plan->model.channels;
    int32_t *at = wire;
    const uint32_t count = aq_stage_tied_count(w->stage);
    memcpy(at, &count, sizeof count);
    AQ_TRY(aq_stage_tied_get(w->stage, at + 1, (float *)(at + 1 + count), w->stream));
    *words = 1 + count * (1 + columns);
    return aq_stage_tied_fold(w->stage, w->stream);
}

static enum aq_status put_rows(struct aq_worker *w, const void *wire, uint64_t words)
{
    const uint64_t columns = w->plan->model.channels;
    const int32_t *at = wire;
    uint32_t count;
    memcpy(&count, at, sizeof count);
    if (words != 1 + count * (1 + columns))
        return aq_fail(AQ_PROTO, "worker", "%llu words came for %u rows of a tied table", (unsigned long long)words,
                       count);
    AQ_TRY(aq_stage_tied_put(w->stage, at + 1, (const float *)(at + 1 + count), count, w->stream));
    return aq_stage_tied_fold(w->stage, w->stream);
}

/* --- exact ------------------------------------------------------------------------------------------------------- */

/* The head's gradient is in the edge's memory from here on. */
static enum aq_status take_gradient(struct aq_worker *w, void *wire, uint64_t *words)
{
    float *gradient = aq_stage_tied_gradient(w->stage);
    *words = aq_stage_tied_floats(w->stage);
    AQ_TRY(copy_floats(w, wire, gradient, *words));
    return aq_device_zero(w->device, gradient, *words * sizeof *gradient, w->stream);
}

static enum aq_status put_gradient(struct aq_worker *w, const void *wire, uint64_t words)
{
    if (words != aq_stage_tied_floats(w->stage))
        return aq_fail(AQ_PROTO, "worker", "%llu values of a tied table's gradient came", (unsigned long long)words);
    AQ_TRY(copy_floats(w, aq_stage_tied_gradient(w->stage), wire, words));
    return aq_stage_tied_fold(w->stage, w->stream);
}

static enum aq_status take_values(struct aq_worker *w, void *wire, uint64_t *words)
{
    *words = aq_stage_tied_floats(w->stage);
    return copy_floats(w, wire, aq_stage_tied_values(w->stage, w->pipeline.tied.previous), *words);
}

static enum aq_status put_values(struct aq_worker *w, const void *wire, uint64_t words)
{
    if (words != aq_stage_tied_floats(w->stage))
        return aq_fail(AQ_PROTO, "worker", "%llu values of a tied table came", (unsigned long long)words);
    AQ_TRY(copy_floats(w, aq_stage_tied_values(w->stage, w->pipeline.tied.previous), wire, words));
    return w->pipeline.tied.previous ? aq_stage_previous_changed(w->stage, w->stream)
                                     : aq_stage_parameters_changed(w->stage, w->stream);
}

/* --- along the pipeline ------------------------------------------------------------------------------------------ */

/* One end takes the data and the other puts it; the stages between copy it from edge to edge. */
struct passage {
    enum aq_status (*take)(struct aq_worker *w, void *wire, uint64_t *words);
    enum aq_status (*put)(struct aq_worker *w, const void *wire, uint64_t words);
};

/* The same between the ends of a client, whichever edge this one has. */
static enum aq_status pass_locally(struct aq_worker *w, bool takes, const struct passage *passage)
{
    uint64_t words;
    if (takes) {
        AQ_TRY(passage->take(w, w->pipeline.tied.host, &words));
        return aq_worker_ends_send(w, words);
    }
    AQ_TRY(aq_worker_ends_receive(w, &words));
    return passage->put(w, w->pipeline.tied.host, words);
}

/* From `from`, or taken here, to `to`, or put here. AQ_AGAIN: call again. */
static enum aq_status pass(struct aq_worker *w, struct aq_edge *from, struct aq_edge *to, const struct passage *passage)
{
    uint64_t *words = &w->pipeline.tied.words;
    if (w->pipeline.tied.local) return pass_locally(w, !from, passage);
    if (!w->pipeline.tied.ready) {
        if (from) AQ_TRY(aq_edge_whole_receive(from, AQ_EDGE_TIED, w->step, words));
        if (to) AQ_TRY(aq_edge_whole_hold(to, AQ_EDGE_TIED));
        if (!from) AQ_TRY(passage->take(w, aq_edge_whole(to, AQ_EDGE_TIED), words));
        if (!to) AQ_TRY(passage->put(w, aq_edge_whole(from, AQ_EDGE_TIED), *words));
        if (from && to)
            memcpy(aq_edge_whole(to, AQ_EDGE_TIED), aq_edge_whole(from, AQ_EDGE_TIED), *words * sizeof(float));
        if (from) aq_edge_whole_release(from, AQ_EDGE_TIED);
        w->pipeline.tied.ready = true;
    }
    if (to) {
        AQ_TRY(aq_edge_whole_send(to, AQ_EDGE_TIED, w->step, *words));
        w->times.tied_bytes += *words * sizeof(float);
    }
    w->pipeline.tied.ready = false;
    return AQ_OK;
}

static enum aq_status up_some(struct aq_worker *w)
{
    static const struct passage exact = {take_gradient, put_gradient}, compressed = {encode, decode},
                                rows = {take_rows, put_rows};
    struct aq_edge *in = w->pipeline.in, *out = w->pipeline.out;
    aq_worker_use(w, w->step);
    if (!is_compressed(w)) return pass(w, out, in, &exact);
    if (!w->pipeline.tied.decoded) AQ_TRY(pass(w, out, in, &compressed));
    w->pipeline.tied.decoded = true;
    AQ_TRY(pass(w, in, out, &rows));
    w->pipeline.tied.decoded = false;
    return AQ_OK;
}

enum aq_status aq_worker_tied_up(struct aq_worker *w, struct aq_worker_run *run, struct aq_worker_times *times)
{
    const uint64_t begin = aq_clock_ns();
    AQ_ASSERT(run->step == w->step);
    if (!aq_worker_is_tied(w)) return AQ_OK;
    const enum aq_status status = up_some(w);
    times->optimizer_ns += aq_clock_ns() - begin;
    return status;
}

static enum aq_status values_down(struct aq_worker *w)
{
    static const struct passage values = {take_values, put_values};
    return pass(w, w->pipeline.in, w->pipeline.out, &values);
}

enum aq_status aq_worker_tied_down(struct aq_worker *w, struct aq_worker_run *run, struct aq_worker_times *times)
{
    const uint64_t begin = aq_clock_ns();
    (void)run;
    if (!aq_worker_is_tied(w) || is_compressed(w)) return AQ_OK;
    const enum aq_status status = values_down(w);
    times->optimizer_ns += aq_clock_ns() - begin;
    return status;
}

/* --- exact, outside of steps ------------------------------------------------------------------------------------- */

/* Signals the stage before, by a number, that the edge no longer has the previous values. */
static enum aq_status ask_values(struct aq_worker *w)
{
    return w->pipeline.in ? aq_edge_send_norm(w->pipeline.in, w->step, 0, 0) : AQ_OK;
}

static enum aq_status hear_asked(struct aq_worker *w)
{
    double value;
    uint16_t flags;
    return w->pipeline.out ? aq_edge_receive_norm(w->pipeline.out, w->step, &value, &flags) : AQ_OK;
}

/* Each part when the one before is done. */
static enum aq_status follow_some(struct aq_worker *w, uint32_t *part)
{
    if (w->pipeline.tied.local) return values_down(w);
    static enum aq_status (*const parts[])(struct aq_worker * w) = {ask_values, hear_asked, values_down};
    for (; *part < sizeof parts / sizeof *parts; ++*part)
        AQ_TRY(parts[*part](w));
    return AQ_OK;
}

static enum aq_status values_follow(struct aq_worker *w)
{
    for (uint32_t part = 0;;) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_pump(w));
        enum aq_status status = follow_some(w, &part);
        if (status != AQ_AGAIN) return status;
        status = aq_eventcount_wait(w->eventcount, seen, aq_clock_after(w->links.silence_ns));
        if (status == AQ_TIMEOUT)
            return aq_fail(AQ_TIMEOUT, "worker", "step %llu: nothing came for %.0f s while waiting for the tied table",
                           (unsigned long long)w->step, (double)w->links.silence_ns * 1e-9);
        AQ_TRY(status);
    }
}

enum aq_status aq_worker_tied_follow(struct aq_worker *w)
{
    return aq_worker_is_tied(w) && !is_compressed(w) ? values_follow(w) : AQ_OK;
}

/* A checkpoint has the previous parameters (train.staleness), but not those of a copy. */
static enum aq_status previous_follow(struct aq_worker *w)
{
    const bool began = w->step > 0 || w->checkpoints.adopted;
    if (is_compressed(w) || !began || !w->job->train.staleness) return AQ_OK;
    w->pipeline.tied.previous = true;
    const enum aq_status status = values_follow(w);
    w->pipeline.tied.previous = false;
    return status;
}

enum aq_status aq_worker_tied_open(struct aq_worker *w)
{
    struct aq_device_info info;
    AQ_TRY(aq_worker_ends_open(w));
    if (!aq_worker_is_tied(w)) return AQ_OK;
    if (w->pipeline.tied.local) AQ_TRY(values_follow(w)); /* a turn starts with weights of others */
    if (is_compressed(w) && is_end(w)) {
        aq_device_info(w->device, &info);
        AQ_TRY(aq_plan_tied_traffic(w->plan, AQ_TIED_COMPRESSED, &w->pipeline.tied.traffic));
        AQ_TRY(aq_plan_tied_codec(w->plan, &w->pipeline.tied.codec));
        const uint64_t bytes = aq_plan_tied_host_bytes(w->plan);
        if (!info.host_memory)
            AQ_TRY(aq_device_alloc(w->device, AQ_MEMORY_PINNED, bytes, (void **)&w->pipeline.tied.host));
    }
    return previous_follow(w);
}

void aq_worker_tied_close(struct aq_worker *w)
{
    aq_worker_ends_close(w);
    aq_grad_codec_close(w->pipeline.tied.codec);
    if (w->pipeline.tied.host)
        aq_device_free(w->device, AQ_MEMORY_PINNED, w->pipeline.tied.host, aq_plan_tied_host_bytes(w->plan));
}
