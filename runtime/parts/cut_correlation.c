/* cut_correlation.c -- see the header. */
#include "cut_correlation.h"

#include <math.h>
#include <string.h>

#include "stages/stage.h"
#include "worker_parts.h"

static double square(double x)
{
    return x * x;
}

void aq_cut_distances(const float *values, uint32_t n, uint64_t each, const uint64_t *counts, double *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[(size_t)i * n + i] = 0;
        for (uint32_t j = i + 1; j < n; j++) {
            const uint64_t mine = counts ? counts[i] : each, theirs = counts ? counts[j] : each;
            const uint64_t both = mine < theirs ? mine : theirs, most = mine < theirs ? theirs : mine;
            const float *x = values + i * each, *y = values + j * each, *rest = mine < theirs ? y : x;
            double sum = 0;
            for (uint64_t e = 0; e < both; e++)
                sum += square((double)x[e] - y[e]);
            for (uint64_t e = both; e < most; e++)
                sum += square(rest[e]);
            out[(size_t)i * n + j] = out[(size_t)j * n + i] = sqrt(sum);
        }
    }
}

void aq_cut_distances_text(const int32_t *tokens, uint32_t n, uint32_t T, const uint32_t *lengths, double *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[(size_t)i * n + i] = 0;
        for (uint32_t j = i + 1; j < n; j++) {
            uint32_t differ = 0;
            for (uint32_t t = 0; t < T; t++) {
                const bool mine = !lengths || t < lengths[i], theirs = !lengths || t < lengths[j];
                differ += mine != theirs || (mine && tokens[(size_t)i * T + t] != tokens[(size_t)j * T + t]);
            }
            out[(size_t)i * n + j] = out[(size_t)j * n + i] = sqrt(2.0 * differ);
        }
    }
}

/* Less the means of rows and columns, which are alike, plus that of all; means: n doubles. Gives the mean square. */
static double centre(double *d, uint32_t n, double *means)
{
    double all = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < n; j++)
            sum += d[(size_t)i * n + j];
        means[i] = sum / n;
        all += means[i] / n;
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            double *at = &d[(size_t)i * n + j];
            *at = *at - means[i] - means[j] + all;
            squares += square(*at);
        }
    }
    return squares / square(n);
}

/* Moves sample i away from sample j by factor * (z_i - z_j). */
static void push(const float *z, uint64_t each, const uint64_t *counts, uint32_t i, uint32_t j, double factor,
                 float *gradient)
{
    const uint64_t mine = counts ? counts[i] : each, theirs = counts ? counts[j] : each;
    for (uint64_t e = 0; e < mine; e++) {
        const double other = e < theirs ? z[j * each + e] : 0;
        gradient[i * each + e] = (float)(gradient[i * each + e] + factor * (z[i * each + e] - other));
    }
}

double aq_cut_correlation(double *a, const float *z, uint32_t n, uint64_t each, const uint64_t *counts, double weight,
                          double *scratch, float *gradient)
{
    double *const b = scratch, *const means = scratch + (size_t)n * n, *const lengths = means + n;
    double both = 0;
    memset(gradient, 0, n * each * sizeof *gradient);
    if (n < 2) return 0;
    aq_cut_distances(z, n, each, counts, b);
    memcpy(lengths, b, (size_t)n * n * sizeof *b);
    const double of_x = centre(a, n, means), of_z = centre(b, n, means);
    for (size_t k = 0; k < (size_t)n * n; k++)
        both += a[k] * b[k] / square(n);
    /* V_xz is a mean of products of two such matrices: it is below 0 only by rounding, and 0 if one is all zeros. */
    if (!(both > 0) || !(of_x > 0) || !(of_z > 0)) return 0;
    const double root = sqrt(of_x * of_z), dcor = sqrt(both / root);
    /* d dcor / d b_ij = (A_ij - V_xz / V_z B_ij) / (2 dcor n^2 sqrt(V_x V_z)); b_ij and b_ji are one distance. */
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            const size_t k = (size_t)i * n + j;
            if (!(lengths[k] > 0)) continue;
            const double by_distance = (a[k] - both / of_z * b[k]) / (dcor * square(n) * root);
            push(z, each, counts, i, j, weight * by_distance / lengths[k], gradient);
        }
    }
    return dcor;
}

/* ---- the part of a worker: split.privacy.distance_correlation, of a client's first stage ---- */

/*
 * The step's penalty is alpha times the mean over its samples of their micro-batch's correlation. Inputs are those that
 * the data set gives (pixels, tokens), activations those of the stage before clip, noise and codec. Padding counts
 * nowhere. The gradient is computed behind the forward, where both are at hand. It waits in memory of the slot for the
 * gradient that comes back, because weights and activations may change in between.
 */
struct part {
    const struct aq_plan *plan;
    double *scratch;  /* aq_map, all of it; NULL: not open */
    float *gradients; /* one a slot */
    double sum;       /* of the micro-batches so far, of that many */
    uint64_t count;
};

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    return rank == 0 && aq_job_at_client(plan->job, rank) && plan->job->split.privacy.distance_correlation > 0;
}

/* A gradient a slot, the scratch of one micro-batch's, and its counts. */
static uint64_t part_bytes(const struct aq_plan *plan)
{
    const uint64_t n = plan->job->train.micro_batch;
    return plan->stages[0].size.y_bytes * plan->stages[0].config.slots + n * (3 * n + 2) * sizeof(double);
}

static void part_memory(const struct aq_plan *plan, uint32_t s, struct aq_plan_part *out)
{
    (void)s;
    *out = (struct aq_plan_part){
        .name = "distance correlation", .bytes = part_bytes(plan), .cut_bytes = plan->stages[0].size.y_bytes};
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    struct part *part = self;
    const uint64_t n = plan->job->train.micro_batch;
    void *memory;
    (void)rank;
    part->plan = plan;
    AQ_TRY(aq_map(part_bytes(plan), &memory));
    part->scratch = memory;
    part->gradients = (float *)(part->scratch + n * (3 * n + 2));
    return AQ_OK;
}

static void part_close(void *self)
{
    struct part *part = self;
    if (part->scratch) aq_unmap(part->scratch, part_bytes(part->plan));
}

static float *gradient_of(const struct part *part, uint32_t slot)
{
    return part->gradients + part->plan->stages[0].size.y_bytes / sizeof(float) * slot;
}

static enum aq_status correlate(struct part *part, const struct aq_part_cut *cut)
{
    const struct aq_edge_shape *shape = &cut->edge->shape;
    const struct aq_batch *batch = cut->inputs;
    const struct aq_field *input = &batch->fields[0];
    const uint32_t n = batch->samples;
    const uint64_t most = part->plan->job->train.micro_batch, each = (uint64_t)shape->rows * shape->columns;
    double *const inputs = part->scratch, *const scratch = inputs + most * most;
    uint64_t *const counts = (uint64_t *)(scratch + most * (2 * most + 1));
    float *y;
    AQ_TRY(aq_cut_host_read(cut->host, cut->values, n * each, &y));
    for (uint32_t i = 0; i < n; i++)
        counts[i] = (uint64_t)(batch->lengths ? batch->lengths[i] : shape->rows) * shape->columns;
    if (input->type == AQ_FIELD_I32)
        aq_cut_distances_text(input->values, n, input->count, batch->lengths, inputs);
    else
        aq_cut_distances(input->values, n, input->count, NULL, inputs);
    const double weight = (double)part->plan->job->split.privacy.distance_correlation * n / cut->step_samples;
    part->sum += aq_cut_correlation(inputs, y, n, each, counts, weight, scratch, gradient_of(part, cut->slot));
    part->count++;
    return AQ_OK;
}

static enum aq_status correlate_back(const struct part *part, const struct aq_part_cut *cut)
{
    const uint64_t count = (uint64_t)cut->batch->samples * cut->edge->shape.rows * cut->edge->shape.columns;
    const double factor = cut->loss_factor;
    const float *gradient = gradient_of(part, cut->slot);
    float *at;
    AQ_TRY(aq_cut_host_read(cut->host, cut->values, count, &at));
    for (uint64_t i = 0; i < count; i++)
        at[i] = (float)(at[i] + factor * gradient[i]);
    return aq_cut_host_write(cut->host, cut->values, count);
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    switch (moment) {
    case AQ_PART_CUT_OUTPUT:
        return args->cut->trains ? correlate(part, args->cut) : AQ_OK;
    case AQ_PART_CUT_GRADIENT:
        return correlate_back(part, args->cut);
    case AQ_PART_RUN_END:
        if (part->count > 0)
            aq_log("worker", 1,
                   "split.privacy: distance correlation of inputs and activations, mean of %llu micro-batches: %.4f",
                   (unsigned long long)part->count, part->sum / (double)part->count);
        return AQ_OK;
    default:
        return AQ_OK;
    }
}

const struct aq_part_ops aq_part_correlation = {.name = "correlation",
                                                .bytes = sizeof(struct part),
                                                .uses_cuts = true,
                                                .wanted = part_wanted,
                                                .memory = part_memory,
                                                .open = part_open,
                                                .on = part_on,
                                                .close = part_close};
