/*
 * worker_correlation.c -- split.privacy.distance_correlation: what the client's first stage adds to the loss
 * (cut_correlation.h).
 *
 * The step's penalty is alpha times the mean over its samples of their micro-batch's correlation. Inputs are those that
 * the data set gives (pixels, tokens), activations those of the stage before clip, noise and codec; lengths' padding
 * counts nowhere. Its gradient is made where both are at hand, behind the forward, and waits in memory of the slot
 * for the gradient that comes back: in between weights and activations may be others. On a GPU both ways go through
 * the host (worker_hosted.c).
 */
#include "cut_correlation.h"
#include "worker.h"

enum aq_status aq_worker_correlation_open(struct aq_worker *w)
{
    void *memory;
    const uint64_t n = w->job->train.micro_batch;
    if (!(w->job->split.privacy.distance_correlation > 0) || w->position != 0 || !aq_job_at_client(w->job, w->rank))
        return AQ_OK;
    AQ_TRY(aq_map(aq_plan_correlation_bytes(w->plan), &memory));
    w->correlation.scratch = memory;
    w->correlation.gradients = (float *)(w->correlation.scratch + n * (3 * n + 2));
    return AQ_OK;
}

void aq_worker_correlation_close(struct aq_worker *w)
{
    if (w->correlation.scratch) aq_unmap(w->correlation.scratch, aq_plan_correlation_bytes(w->plan));
    w->correlation.scratch = NULL;
}

static float *gradient_of(const struct aq_worker *w, uint32_t slot)
{
    return w->correlation.gradients + w->me->size.y_bytes / sizeof(float) * slot;
}

void aq_worker_correlate(struct aq_worker *w, uint64_t step, uint32_t slot, const float *y)
{
    const struct aq_edge_shape *shape = &w->plan->edges[0].shape;
    const struct aq_batch *batch = &w->batch;
    const struct aq_field *input = &batch->fields[0];
    const uint32_t n = batch->samples;
    const uint64_t most = w->job->train.micro_batch;
    double *const inputs = w->correlation.scratch, *const scratch = inputs + most * most;
    uint64_t *const counts = (uint64_t *)(scratch + most * (2 * most + 1));
    for (uint32_t i = 0; i < n; i++)
        counts[i] = (uint64_t)(batch->lengths ? batch->lengths[i] : shape->rows) * shape->columns;
    if (input->type == AQ_FIELD_I32)
        aq_cut_distances_text(input->values, n, input->count, batch->lengths, inputs);
    else
        aq_cut_distances(input->values, n, input->count, NULL, inputs);
    const double weight = (double)w->job->split.privacy.distance_correlation * n / aq_sampler_size(w->sampler, step);
    w->correlation.sum += aq_cut_correlation(inputs, y, n, (uint64_t)shape->rows * shape->columns, counts, weight,
                                             scratch, gradient_of(w, slot));
    w->correlation.count++;
}

enum aq_status aq_worker_correlate_back(struct aq_worker *w, uint32_t slot, uint32_t samples, double factor,
                                        const struct aq_values *dy)
{
    const struct aq_edge_shape *shape = &w->plan->edges[0].shape;
    const uint64_t count = (uint64_t)samples * shape->rows * shape->columns;
    const float *gradient = gradient_of(w, slot);
    float *at;
    AQ_TRY(aq_worker_hosted(w, dy, count, &at));
    for (uint64_t i = 0; i < count; i++)
        at[i] = (float)(at[i] + factor * gradient[i]);
    return aq_worker_hosted_back(w, dy, count);
}
