/*
 * task_regression.c -- squared error of one number per sample, as in transformers with num_labels 1 (problem_type
 * regression); Pearson's correlation of outputs and targets, 0 if one of the two has no spread.
 *
 * The counts are sums, in double: sums of parts of the samples add up to the sums of all, so that both metrics cover
 * all samples at once, whatever the batches and replicas. Values of single precision and their products are exact in
 * double; sums round as sums in double do.
 */
#include <math.h>

#include "stage_task.h"

/* Of the counts: sums of outputs and targets, of their squares and products. */
enum { SAID, WANTED, SAID_SQUARED, WANTED_SQUARED, PRODUCT };

/* A variance of less than so much of the mean square is rounding, not spread. */
static const double spread_min = 1e-12;

static enum aq_status squared_error(struct aq_device *device, const struct aq_cross_entropy *rows,
                                    struct aq_stream *stream)
{
    AQ_ASSERT(rows->V == 1);
    const struct aq_squared_error args = {.rows = rows->rows,
                                          .outputs = rows->logits,
                                          .outputs_stride = rows->logits_stride,
                                          .targets = (const float *)(const void *)rows->targets,
                                          .losses = rows->losses,
                                          .gradient = rows->gradient,
                                          .gradient_stride = rows->gradient_stride,
                                          .gradient_type = rows->gradient_type,
                                          .scale = rows->scale};
    return aq_device_squared_error(device, &args, stream);
}

static void count(const struct stage_counted *rows, struct aq_stage_loss *loss)
{
    for (uint64_t i = 0; i < rows->rows; i++) {
        const double said = (double)rows->said[i], wanted = (double)rows->numbers[i];
        if (isnan(wanted)) continue;
        loss->sum += (double)rows->losses[i];
        loss->targets++;
        loss->counts[SAID] += said;
        loss->counts[WANTED] += wanted;
        loss->counts[SAID_SQUARED] += said * said;
        loss->counts[WANTED_SQUARED] += wanted * wanted;
        loss->counts[PRODUCT] += said * wanted;
    }
}

static double mse(const struct aq_stage_loss *loss)
{
    return loss->sum / (double)loss->targets;
}

static double pearson(const struct aq_stage_loss *loss)
{
    const double n = (double)loss->targets, *sums = loss->counts;
    const double said = n * sums[SAID_SQUARED] - sums[SAID] * sums[SAID];
    const double wanted = n * sums[WANTED_SQUARED] - sums[WANTED] * sums[WANTED];
    const double both = n * sums[PRODUCT] - sums[SAID] * sums[WANTED];
    if (said <= spread_min * n * sums[SAID_SQUARED] || wanted <= spread_min * n * sums[WANTED_SQUARED]) return 0;
    return fmax(-1, fmin(1, both / sqrt(said) / sqrt(wanted)));
}

const struct aq_task aq_task_regression = {.name = "regression",
                                           .field = "scores",
                                           .numbers = true,
                                           .whole = true,
                                           .loss = squared_error,
                                           .count = count,
                                           .metrics = {{"mse", false, mse}, {"pearson", true, pearson}}};
