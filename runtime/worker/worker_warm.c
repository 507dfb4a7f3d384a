/*
 * worker_warm.c -- once through everything on a GPU, before a neighbour waits for it.
 *
 * Kernels of CUDA, cuBLASLt's above all, are loaded when they are first called; that may wait for all that runs on the
 * GPU. A kernel of NCCL there ends when the neighbour does its part, who may be loading one himself: both wait. So the
 * stage runs forward, backward and the norm once for each size of micro-batch before links open; codecs go after the
 * edges are open and before they are joined (aq_edge_warm); the replicas reduce a piece of the gradients, which are
 * zeroes, before that. All changes are undone: gradients are cleared, statistics of norms restored. Nothing of it is
 * seen in a result.
 *
 * On a CPU nothing is loaded late, and nothing is done.
 */
#include <string.h>

#include "net/collective.h"
#include "worker.h"

enum { REDUCED = 1 << 16 }; /* floats of the first reduction: a piece of each rank */

static bool is_gpu(const struct aq_worker *w)
{
    struct aq_device_info info;
    aq_device_info(w->device, &info);
    return !info.host_memory;
}

/* The first samples of the data, as often as it takes. */
static enum aq_status batch_fill(struct aq_worker *w, uint32_t samples)
{
    const uint64_t all = w->plan->facts.train_samples;
    w->data.batch.samples = samples;
    w->data.batch.lengths = w->data.train_lengths ? w->data.lengths : NULL;
    for (uint32_t i = 0; i < samples; i++) {
        w->data.sample_ids[i] = w->job->data.skip + i % all;
        if (w->data.train_lengths) w->data.lengths[i] = w->data.train_lengths[i % all];
        if (w->data.train) AQ_TRY(aq_dataset_put(w->data.train, i % all, &w->data.batch, i));
    }
    return AQ_OK;
}

static enum aq_status pass(struct aq_worker *w, uint32_t samples)
{
    const bool first = w->position == 0, last = w->position + 1 == w->P;
    struct aq_stage_input input = {
        .x = first ? NULL : w->pipeline.x[0].at, .batch = &w->data.batch, .seed = w->job->train.seed, .loss_factor = 1};
    float *const y = last ? NULL : w->pipeline.y[0].at;
    double sum = 0;
    AQ_TRY(batch_fill(w, samples));
    AQ_TRY(aq_stage_forward(w->stage, 0, &input, y, NULL, w->stream));
    AQ_TRY(aq_stage_backward(w->stage, 0, last ? NULL : w->pipeline.dy[0].at, first ? NULL : w->pipeline.dx[0].at,
                             w->stream));
    if (w->me->config.split) AQ_TRY(aq_stage_weights(w->stage, 0, w->stream));
    AQ_TRY(aq_stage_gradient_sum2(w->stage, &sum, w->stream));
    AQ_TRY(aq_stage_zero_grads(w->stage, w->stream));
    input.evaluate = true;
    AQ_TRY(aq_stage_forward(w->stage, 0, &input, y, NULL, w->stream));
    return aq_device_stream_sync(w->device, w->stream);
}

/* Of a whole micro-batch, and of the last one of an epoch, where that is smaller. With split.mode: global they are of
 * any size, and a client may have fewer samples than one. */
static enum aq_status passes(struct aq_worker *w)
{
    const uint32_t B = w->me->config.B;
    const uint64_t samples = w->plan->facts.train_samples;
    if (aq_job_global(w->job)) return pass(w, samples < B ? (uint32_t)samples : B);
    const uint32_t rest = aq_rank_data_samples(&w->data, w->plan->steps_per_epoch - 1) % B;
    const bool ever = aq_rank_data_samples(&w->data, 0) >= B;
    if (ever) AQ_TRY(pass(w, B));
    return rest ? pass(w, rest) : AQ_OK;
}

enum aq_status aq_worker_warm(struct aq_worker *w)
{
    const uint64_t parameters = aq_stage_parameter_count(w->stage);
    const size_t bytes = (aq_stage_saved_floats(w->stage) - parameters) * sizeof(float); /* of statistics */
    float *buffers = aq_stage_parameters(w->stage) + parameters;
    const uint64_t begin = aq_clock_ns();
    void *kept = NULL;
    enum aq_status status;
    if (!is_gpu(w)) return AQ_OK;
    AQ_TRY(aq_alloc(bytes ? bytes : 1, &kept));
    AQ_TRY_GOTO(aq_device_copy(w->device, kept, buffers, bytes, w->stream), out);
    AQ_TRY_GOTO(aq_device_stream_sync(w->device, w->stream), out);
    AQ_TRY_GOTO(passes(w), out);
    AQ_TRY_GOTO(aq_device_copy(w->device, buffers, kept, bytes, w->stream), out);
    AQ_TRY_GOTO(aq_device_stream_sync(w->device, w->stream), out);
    aq_log("worker", 1, "warmed up in %.2f s", (double)(aq_clock_ns() - begin) * 1e-9);
out:
    aq_free(kept);
    return status;
}

enum aq_status aq_worker_warm_reduction(struct aq_worker *w)
{
    const uint64_t count = aq_stage_parameter_count(w->stage);
    if (!w->replicas.group || count == 0 || !is_gpu(w) || aq_worker_is_delayed(w)) return AQ_OK;
    return aq_allreduce_mean(w->replicas.group, aq_stage_gradients(w->stage), count < REDUCED ? count : REDUCED);
}

enum aq_status aq_worker_warm_edges(struct aq_worker *w)
{
    if (w->pipeline.in) AQ_TRY(aq_edge_warm(w->pipeline.in, w->pipeline.x[0].at, w->stream));
    return w->pipeline.out ? aq_edge_warm(w->pipeline.out, w->pipeline.y[0].at, w->stream) : AQ_OK;
}
