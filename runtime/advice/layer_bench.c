/*
 * layer_bench.c -- see the header.
 */
#include "layer_bench.h"

#include <stdlib.h>
#include <string.h>

#include "aqsgd/device.h"
#include "aqsgd/grad.h"

enum { REPEATS = 3 };

void aq_plan_bench_close(struct aq_plan_bench *bench)
{
    if (!bench->device) return;
    aq_stage_close(bench->stage);
    if (bench->x) aq_device_free(bench->device, AQ_MEMORY_DEVICE, bench->x, bench->x_bytes);
    if (bench->y) aq_device_free(bench->device, AQ_MEMORY_DEVICE, bench->y, bench->y_bytes);
    for (uint32_t i = 0; i < bench->batch.field_count; i++)
        aq_free(bench->batch.fields[i].values);
    aq_free(bench->ids);
    if (bench->stream) aq_device_stream_close(bench->device, bench->stream);
    aq_device_close(bench->device);
    *bench = (struct aq_plan_bench){0};
}

/* Random values of a cut (bytes 0: no cut). */
static enum aq_status values_open(const struct aq_plan_bench *bench, uint64_t bytes, float **out)
{
    void *host = NULL;
    if (bytes == 0) return AQ_OK;
    AQ_TRY(aq_device_alloc(bench->device, AQ_MEMORY_DEVICE, bytes, (void **)out));
    AQ_TRY(aq_alloc(bytes, &host));
    float *values = host;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, bench->rank, 0);
    for (uint64_t i = 0; i < bytes / sizeof *values; i++)
        values[i] = aq_rng_uniform(&key, i) - 0.5f;
    enum aq_status status = aq_device_copy(bench->device, *out, values, bytes, bench->stream);
    if (status == AQ_OK) status = aq_device_stream_sync(bench->device, bench->stream);
    aq_free(host);
    return status;
}

/* A batch of what the data set names: targets that it may have, and numbers about 0. */
static enum aq_status batch_open(struct aq_plan_bench *bench, const struct aq_stage_config *stage)
{
    struct aq_batch *batch = &bench->batch;
    const struct aq_job_data *data = &bench->plan->job->data;
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    const uint32_t count = aq_dataset_fields(data->kind, stage->T, &data->image, fields);
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, bench->rank, 1);
    *batch = (struct aq_batch){.samples = stage->B, .sample_ids = bench->ids};
    for (uint32_t f = 0; f < count; f++) {
        const uint64_t values = (uint64_t)stage->B * fields[f].count;
        const uint32_t labels = fields[f].count == 1 ? bench->plan->facts.labels : 0; /* one a sample: a label */
        const uint32_t below = labels ? labels : bench->plan->facts.vocabulary;
        AQ_TRY(aq_alloc(values * AQ_FIELD_BYTES, &fields[f].values));
        batch->fields[batch->field_count++] = fields[f];
        for (uint64_t i = 0; i < values; i++)
            if (fields[f].type == AQ_FIELD_I32)
                ((int32_t *)fields[f].values)[i] = (int32_t)aq_rng_below(&key, i, below);
            else
                ((float *)fields[f].values)[i] = aq_rng_uniform(&key, i) - 0.5f;
    }
    return AQ_OK;
}

enum aq_status aq_plan_bench_open(struct aq_plan_bench *bench, const struct aq_plan *plan, uint32_t s,
                                  const struct aq_stage_config *stage, uint32_t threads)
{
    const struct aq_job_stage *place = &plan->job->pipeline.stages[s];
    const struct aq_device_config config = {.kind = place->device, .index = place->device_index, .threads = threads};
    struct aq_stage_size size;
    AQ_TRY(aq_stage_measure(stage, &size));
    *bench = (struct aq_plan_bench){.plan = plan,
                                    .rank = s,
                                    .slots = stage->slots,
                                    .first = stage->layer_first == 0,
                                    .last = stage->layer_end == plan->layers,
                                    .split = stage->split,
                                    .x_bytes = size.x_bytes,
                                    .y_bytes = size.y_bytes};
    AQ_TRY(aq_device_open(&config, &bench->device));
    AQ_TRY(aq_device_stream_open(bench->device, &bench->stream));
    AQ_TRY(aq_stage_open(bench->device, stage, &bench->stage));
    AQ_TRY(values_open(bench, bench->x_bytes, &bench->x));
    AQ_TRY(values_open(bench, bench->y_bytes, &bench->y));
    AQ_TRY(AQ_NEW(stage->B, &bench->ids));
    return batch_open(bench, stage);
}

double aq_plan_bench_since(uint64_t begin)
{
    return (double)(aq_clock_ns() - begin) * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double aq_plan_bench_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

double aq_plan_bench_least(const double *values, uint32_t count)
{
    double least = values[0];
    for (uint32_t i = 1; i < count; i++)
        if (values[i] < least) least = values[i];
    return least;
}

enum aq_status aq_plan_bench_forward(struct aq_plan_bench *bench, uint32_t slot)
{
    const bool first = bench->first, last = bench->last;
    const struct aq_stage_input input = {
        .x = first ? NULL : bench->x, .batch = &bench->batch, .seed = bench->plan->job->train.seed, .loss_factor = 1};
    struct aq_stage_loss loss;
    AQ_TRY(aq_stage_forward(bench->stage, slot, &input, last ? NULL : bench->y, last ? &loss : NULL, bench->stream));
    return aq_device_stream_sync(bench->device, bench->stream);
}

enum aq_status aq_plan_bench_backward(struct aq_plan_bench *bench, uint32_t slot)
{
    const bool first = bench->first, last = bench->last;
    AQ_TRY(aq_stage_backward(bench->stage, slot, last ? NULL : bench->y, first ? NULL : bench->x, bench->stream));
    return aq_device_stream_sync(bench->device, bench->stream);
}

enum aq_status aq_plan_bench_weights(struct aq_plan_bench *bench, uint32_t slot)
{
    if (!bench->split) return AQ_OK;
    AQ_TRY(aq_stage_weights(bench->stage, slot, bench->stream));
    return aq_device_stream_sync(bench->device, bench->stream);
}

enum aq_status aq_plan_bench_begin(struct aq_plan_bench *bench)
{
    AQ_TRY(aq_stage_init(bench->stage, bench->plan->job->train.seed));
    AQ_TRY(aq_stage_parameters_changed(bench->stage, bench->stream));
    for (uint32_t slot = 0; slot < bench->slots; slot++)
        AQ_TRY(aq_plan_bench_forward(bench, slot));
    return AQ_OK;
}

enum aq_status aq_plan_bench_round(struct aq_plan_bench *bench, uint32_t round)
{
    uint64_t start = aq_clock_ns();
    AQ_TRY(aq_plan_bench_backward(bench, round % bench->slots));
    bench->backward_s[round] = aq_plan_bench_since(start);
    start = aq_clock_ns();
    AQ_TRY(aq_plan_bench_weights(bench, round % bench->slots));
    bench->weights_s[round] = aq_plan_bench_since(start);
    start = aq_clock_ns();
    AQ_TRY(aq_plan_bench_forward(bench, round % bench->slots));
    bench->forward_s[round] = aq_plan_bench_since(start);
    bench->rounds = round + 1;
    return AQ_OK;
}

enum aq_status aq_plan_bench_update(struct aq_plan_bench *bench, double *seconds_least)
{
    struct aq_stage *stage = bench->stage;
    const struct aq_plan *plan = bench->plan;
    const struct aq_optimizer_tensor whole = {.count = aq_stage_parameter_count(stage), .decay = true};
    const float lr = plan->job->train.lr;
    struct aq_optimizer *optimizer;
    AQ_TRY(aq_optimizer_open(bench->device, &plan->job->train.optimizer, &whole, 1, whole.count, &optimizer));
    enum aq_status status = aq_optimizer_versions_begin(optimizer, aq_stage_parameters(stage), bench->stream);
    for (int repeat = 0; repeat < REPEATS && status == AQ_OK; repeat++) {
        const uint64_t start = aq_clock_ns();
        double sum = 0;
        status = aq_stage_gradient_sum2(stage, &sum, bench->stream);
        if (status == AQ_OK)
            status = aq_optimizer_step(optimizer, aq_stage_parameters(stage), aq_stage_gradients(stage), lr, 1,
                                       (uint64_t)repeat + 1, bench->stream);
        if (status == AQ_OK) status = aq_stage_zero_grads(stage, bench->stream);
        if (status == AQ_OK) status = aq_stage_parameters_changed(stage, bench->stream);
        if (status == AQ_OK) status = aq_device_stream_sync(bench->device, bench->stream);
        const double seconds = aq_plan_bench_since(start);
        if (repeat == 0 || seconds < *seconds_least) *seconds_least = seconds;
    }
    aq_optimizer_close(optimizer);
    return status;
}
