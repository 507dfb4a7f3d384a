/*
 * worker_privacy.c -- split.privacy: what a client's worker does to values before they leave it (cut_privacy.h), and
 * split.capture: what the server's writes down of those that it got (seen.h).
 *
 * This happens between the stage's work and the end of their writing, so that edges, caches and codecs only ever see
 * what may be seen. A send that returned AQ_AGAIN sends the same values again. Activations: those that the first stage
 * makes, also of held-out samples and of those that were lost and are made again. Gradients: those that the last stage
 * gives back. It is plain C, on a GPU's values, too (worker_hosted.c).
 */
#include "worker.h"

enum aq_status aq_worker_private_forward(struct aq_worker *w, const struct aq_worker_run *run, uint32_t slot,
                                         const struct aq_values *y)
{
    const struct aq_job_privacy *asked = &w->job->split.privacy;
    const bool clips = asked->clip > 0, correlates = run && w->correlation.scratch;
    if (w->position != 0 || !aq_job_at_client(w->job, w->rank) || (!clips && !correlates)) return AQ_OK;
    const struct aq_edge_shape *shape = &w->plan->edges[0].shape;
    const uint32_t samples = w->batch.samples;
    const uint64_t each = (uint64_t)shape->rows * shape->columns;
    float *at;
    AQ_TRY(aq_worker_hosted(w, y, samples * each, &at));
    if (correlates) aq_worker_correlate(w, run->step, slot, at);
    if (!clips) return AQ_OK;
    AQ_TRY(aq_cut_privacy(at, samples, each, asked->clip, asked->noise, &w->privacy[0]));
    return aq_worker_hosted_back(w, y, samples * each);
}

/*
 * A gradient at a cut is of the step's mean loss, each sample's loss divided by their number: so is the bound, which is
 * of the gradient of a sample's own loss, however large a batch is.
 */
enum aq_status aq_worker_private_backward(struct aq_worker *w, const struct aq_worker_run *run, uint32_t micro_batch,
                                          const struct aq_values *dx)
{
    const struct aq_job_privacy *asked = &w->job->split.privacy;
    if (w->position + 1 != w->P || !aq_job_at_client(w->job, w->rank) || !(asked->gradient_clip > 0)) return AQ_OK;
    const struct aq_edge_shape *shape = &w->plan->edges[w->P - 2].shape;
    struct aq_edge_batch batch;
    aq_worker_batch(w, run->step, micro_batch, &batch);
    const double clip = (double)asked->gradient_clip / aq_sampler_size(w->sampler, run->step);
    const uint64_t each = (uint64_t)shape->rows * shape->columns;
    float *at;
    AQ_TRY(aq_worker_hosted(w, dx, batch.samples * each, &at));
    AQ_TRY(aq_cut_privacy(at, batch.samples, each, clip, asked->gradient_noise, &w->privacy[1]));
    return aq_worker_hosted_back(w, dx, batch.samples * each);
}

void aq_worker_private_say(const struct aq_worker *w)
{
    if (w->correlation.count > 0)
        aq_log("worker", 1,
               "split.privacy: distance correlation of inputs and activations, mean of %llu micro-batches: %.4f",
               (unsigned long long)w->correlation.count, w->correlation.sum / (double)w->correlation.count);
    static const char *const what[] = {"activations", "gradients"};
    for (int i = 0; i < 2; i++)
        if (w->privacy[i].samples > 0)
            aq_log("worker", 1, "split.privacy: of %llu %s that left, %llu were clipped; the largest norm was %.4g%s",
                   (unsigned long long)w->privacy[i].samples, what[i], (unsigned long long)w->privacy[i].clipped,
                   w->privacy[i].norm_max, i == 1 ? ", of a step's mean loss" : "");
}

enum aq_status aq_worker_seen_open(struct aq_worker *w)
{
    const uint64_t bytes = w->job->split.capture;
    w->seen.fd = -1;
    if (bytes == 0 || !w->job->split.client || aq_job_at_client(w->job, w->rank)) return AQ_OK;
    return aq_seen_open(w->run_folder, w->step, bytes, &w->seen);
}

enum aq_status aq_worker_seen(struct aq_worker *w, enum aq_seen_kind kind, const struct aq_edge_batch *batch,
                              const struct aq_values *values)
{
    if (w->seen.fd == -1) return AQ_OK;
    const struct aq_edge_shape *shape = &w->plan->edges[kind == AQ_SEEN_GRADIENT ? w->position : w->position - 1].shape;
    const uint64_t each = (uint64_t)shape->rows * shape->columns;
    const uint64_t skip = kind == AQ_SEEN_HELDOUT ? 0 : w->job->data.skip;
    float *at;
    AQ_TRY(aq_worker_hosted(w, values, batch->samples * each, &at));
    for (uint32_t i = 0; i < batch->samples; i++) {
        const struct aq_seen_record record = {.kind = kind,
                                              .rows = shape->rows,
                                              .columns = shape->columns,
                                              .step = batch->step,
                                              .sample = batch->sample_ids[i] - skip};
        AQ_TRY(aq_seen_add(&w->seen, &record, at + i * each));
    }
    return AQ_OK;
}

enum aq_status aq_worker_seen_back(struct aq_worker *w, const struct aq_worker_run *run, uint32_t micro_batch,
                                   const struct aq_values *dy)
{
    struct aq_edge_batch batch;
    if (w->seen.fd == -1) return AQ_OK;
    aq_worker_batch(w, run->step, micro_batch, &batch);
    return aq_worker_seen(w, AQ_SEEN_GRADIENT, &batch, dy);
}
