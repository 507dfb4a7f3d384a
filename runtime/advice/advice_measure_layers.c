/*
 * advice_measure_layers.c -- what each kind of layer of a model takes on this machine: the table that a measured cut
 * goes by.
 *
 * Layers of one kind and one size take the same: one of each is measured, at the job's batch and precision, with the
 * threads of each stage, and the coding of each shape at a cut. All kinds are open at once and take turns, each on some
 * slots, so that no kind keeps the processor's caches to itself. The least of the turns counts: other load makes turns
 * longer, none shorter. The times are kept (layer_times.h): another plan of such layers measures nothing, and cuts
 * alike.
 */
#include <stdio.h>
#include <string.h>

#include "aqsgd/device.h"
#include "layer_bench.h"
#include "layer_times.h"

enum { SLOTS = 2, ROUNDS_LEAST = 5, KEY_BYTES = 640, NAME_BYTES = 64, LAYER_VALUES = 3, CODING_VALUES = 2 };
static const double seconds_each = 0.4, seconds_most = 20;

struct measure {
    const struct aq_plan *plan;
    struct aq_layer_times *times;
    uint32_t s, threads; /* the stage whose place is measured */
    char device[128];    /* its name: processor, threads, instructions */
    uint32_t measured;   /* kinds of layers that no file knew */
};

static struct aq_stage_config config_of(const struct aq_plan *plan, uint32_t s, uint32_t layer)
{
    struct aq_stage_config config = plan->stages[s].config;
    config.layer_first = layer;
    config.layer_end = layer + 1;
    config.slots = SLOTS;
    config.versions = 1;
    return config;
}

static enum aq_status layer_key(const struct measure *measure, uint32_t layer, char key[KEY_BYTES])
{
    const struct aq_plan *plan = measure->plan;
    const struct aq_stage_config config = config_of(plan, measure->s, layer);
    char kind[NAME_BYTES];
    struct aq_stage_size size;
    AQ_TRY(aq_stage_measure(&config, &size));
    aq_plan_layer_kind(&plan->model, layer, kind, sizeof kind);
    snprintf(key, KEY_BYTES,
             "%s | aqpipe " AQ_VERSION " | %s %s: %llu trained, %llu buffers, %llu frozen, %llu a slot, %llu in, %llu "
             "out, %.0f + %.0f flops | B %u T %u precision %d%s%s%s%s%s task %s | %s",
             measure->device, plan->model.kind, kind, (unsigned long long)size.parameters,
             (unsigned long long)size.buffers, (unsigned long long)size.frozen, (unsigned long long)size.slot_bytes,
             (unsigned long long)size.x_bytes, (unsigned long long)size.y_bytes, size.flops_forward,
             size.flops_backward, config.B, config.T, (int)config.precision,
             config.residual_bf16 ? " residual bf16" : "", config.recompute ? " recompute" : "",
             config.split ? " split" : "", size.packed ? " frozen " : "",
             size.packed ? aq_frozen_store_name(config.frozen_store) : "", config.task ? config.task : "-",
             plan->job->train.optimizer.kind);
    return AQ_OK;
}

/* ---- layers ---- */

static enum aq_status layers_time(struct aq_plan_bench *benches, uint32_t count)
{
    const uint64_t begin = aq_clock_ns();
    for (uint32_t i = 0; i < count; i++)
        AQ_TRY(aq_plan_bench_begin(&benches[i]));
    for (uint32_t round = 0; round < AQ_PLAN_ROUNDS_MAX; round++) {
        const double spent = aq_plan_bench_since(begin);
        if (round >= ROUNDS_LEAST && (spent > seconds_each * count || spent > seconds_most)) break;
        for (uint32_t i = 0; i < count; i++)
            AQ_TRY(aq_plan_bench_round(&benches[i], round));
    }
    return AQ_OK;
}

static enum aq_status layer_add(struct measure *measure, uint32_t layer, struct aq_plan_bench *bench)
{
    char key[KEY_BYTES];
    double values[LAYER_VALUES];
    for (uint32_t round = 0; round < bench->rounds; round++)
        bench->backward_s[round] += bench->weights_s[round];
    values[0] = aq_plan_bench_least(bench->forward_s, bench->rounds);
    values[1] = aq_plan_bench_least(bench->backward_s, bench->rounds);
    values[2] = 0;
    if (aq_stage_parameter_count(bench->stage) > 0) AQ_TRY(aq_plan_bench_update(bench, &values[2]));
    AQ_TRY(layer_key(measure, layer, key));
    measure->measured++;
    return aq_layer_times_add(measure->times, key, values, LAYER_VALUES);
}

/* The first layer of each kind that no file knows. */
static enum aq_status unknown_find(struct measure *measure, uint32_t *layers, uint32_t *count)
{
    char key[KEY_BYTES], other[KEY_BYTES];
    double values[LAYER_VALUES];
    *count = 0;
    for (uint32_t l = 0; l < measure->plan->layers; l++) {
        AQ_TRY(layer_key(measure, l, key));
        bool known = aq_layer_times_find(measure->times, key, values, LAYER_VALUES);
        for (uint32_t i = 0; i < *count && !known; i++) {
            AQ_TRY(layer_key(measure, layers[i], other));
            known = strcmp(key, other) == 0;
        }
        if (!known) layers[(*count)++] = l;
    }
    return AQ_OK;
}

static enum aq_status layers_measure(struct measure *measure)
{
    struct aq_plan_bench *benches = NULL;
    uint32_t *layers = NULL, count = 0;
    enum aq_status status;
    AQ_TRY_GOTO(AQ_NEW(measure->plan->layers, &layers), out);
    AQ_TRY_GOTO(unknown_find(measure, layers, &count), out);
    if (count == 0) goto out;
    AQ_TRY_GOTO(AQ_NEW(count, &benches), out);
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_stage_config config = config_of(measure->plan, measure->s, layers[i]);
        AQ_TRY_GOTO(aq_plan_bench_open(&benches[i], measure->plan, measure->s, &config, measure->threads), out);
    }
    AQ_TRY_GOTO(layers_time(benches, count), out);
    for (uint32_t i = 0; i < count; i++)
        AQ_TRY_GOTO(layer_add(measure, layers[i], &benches[i]), out);
out:
    for (uint32_t i = 0; benches && i < count; i++)
        aq_plan_bench_close(&benches[i]);
    aq_free(benches);
    aq_free(layers);
    return status;
}

/* ---- coding at cuts ---- */

static void coding_key(const struct measure *measure, const struct aq_edge_shape *shape, bool forward,
                       char key[KEY_BYTES])
{
    char codec[200];
    aq_codec_config_text(forward ? &shape->forward : &shape->backward, codec, sizeof codec);
    snprintf(key, KEY_BYTES, "%s | aqpipe " AQ_VERSION " | %s: %u rows of %u, B %u", measure->device, codec,
             shape->rows, shape->columns, shape->micro_batch);
}

static enum aq_status coding_time(const struct measure *measure, const struct aq_edge_shape *shape, bool forward,
                                  double values[CODING_VALUES])
{
    const struct aq_job_stage *place = &measure->plan->job->pipeline.stages[measure->s];
    const struct aq_device_config config = {
        .kind = place->device, .index = place->device_index, .threads = measure->threads};
    const uint64_t count = (uint64_t)shape->rows * shape->columns * shape->micro_batch;
    struct aq_plan_coding coding = {.config = forward ? &shape->forward : &shape->backward,
                                    .rows = shape->rows,
                                    .columns = shape->columns,
                                    .B = shape->micro_batch};
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    void *device_values = NULL, *host = NULL;
    enum aq_status status;
    AQ_TRY(aq_device_open(&config, &coding.device));
    AQ_TRY_GOTO(aq_device_stream_open(coding.device, &coding.stream), out);
    AQ_TRY_GOTO(aq_device_alloc(coding.device, AQ_MEMORY_DEVICE, count * sizeof(float), &device_values), out);
    AQ_TRY_GOTO(aq_alloc(count * sizeof(float), &host), out);
    for (uint64_t i = 0; i < count; i++)
        ((float *)host)[i] = aq_rng_uniform(&key, i) - 0.5f;
    AQ_TRY_GOTO(aq_device_copy(coding.device, device_values, host, count * sizeof(float), coding.stream), out);
    coding.before = coding.after = device_values;
    AQ_TRY_GOTO(aq_plan_time_coding(&coding), out);
    values[0] = coding.encode_s;
    values[1] = coding.decode_s;
out:
    aq_free(coding.bodies);
    aq_free(host);
    if (device_values) aq_device_free(coding.device, AQ_MEMORY_DEVICE, device_values, count * sizeof(float));
    if (coding.stream) aq_device_stream_close(coding.device, coding.stream);
    aq_device_close(coding.device);
    return status;
}

static enum aq_status coding_seconds(const struct measure *measure, const struct aq_edge_shape *shape, bool forward,
                                     double values[CODING_VALUES])
{
    char key[KEY_BYTES];
    coding_key(measure, shape, forward, key);
    if (aq_layer_times_find(measure->times, key, values, CODING_VALUES)) return AQ_OK;
    AQ_TRY(coding_time(measure, shape, forward, values));
    return aq_layer_times_add(measure->times, key, values, CODING_VALUES);
}

/* ---- the table ---- */

static enum aq_status stage_fill(const struct measure *measure, struct aq_plan_layers *layers)
{
    const struct aq_plan *plan = measure->plan;
    const uint32_t s = measure->s;
    for (uint32_t l = 0; l < plan->layers; l++) {
        struct aq_plan_layer_cost *cost = &layers->of[(size_t)s * (plan->layers + 1) + l];
        struct aq_plan_edge edge;
        char key[KEY_BYTES];
        double values[LAYER_VALUES], forward[CODING_VALUES], backward[CODING_VALUES];
        AQ_TRY(layer_key(measure, l, key));
        AQ_ASSERT(aq_layer_times_find(measure->times, key, values, LAYER_VALUES));
        cost->forward_s = values[0];
        cost->backward_s = values[1];
        cost->step_s = values[2];
        for (uint32_t e = s ? s - 1 : 0; l > 0 && e <= s && e + 1 < plan->stage_count; e++) {
            AQ_TRY(aq_plan_edge_at(plan, e, l, &edge));
            AQ_TRY(coding_seconds(measure, &edge.shape, true, forward));
            AQ_TRY(coding_seconds(measure, &edge.shape, false, backward));
            if (e == s)
                cost->ends_s = forward[0] + backward[1];
            else
                cost->begins_s = forward[1] + backward[0];
        }
    }
    return AQ_OK;
}

/* The device's own words for itself: on what times depend. */
static enum aq_status device_fill(struct measure *measure)
{
    const struct aq_job_stage *place = &measure->plan->job->pipeline.stages[measure->s];
    const struct aq_device_config config = {
        .kind = place->device, .index = place->device_index, .threads = measure->threads};
    struct aq_device *device;
    struct aq_device_info info;
    AQ_TRY(aq_device_open(&config, &device));
    aq_device_info(device, &info);
    aq_device_close(device);
    snprintf(measure->device, sizeof measure->device, "%s", info.name);
    return AQ_OK;
}

enum aq_status aq_plan_layers_measured(const struct aq_plan *plan, uint32_t cores, struct aq_plan_layers **out)
{
    struct measure measure = {.plan = plan};
    struct aq_plan_layers *layers = NULL;
    enum aq_status status;
    AQ_TRY(aq_layer_times_open(&measure.times));
    AQ_TRY_GOTO(aq_plan_layers_open(plan, "layers measured here", &layers), out);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const uint32_t threads = aq_job_threads(plan->job, s, cores);
        measure.s = s;
        measure.threads = threads < cores ? threads : cores;
        AQ_TRY_GOTO(device_fill(&measure), out);
        AQ_TRY_GOTO(layers_measure(&measure), out);
        AQ_TRY_GOTO(stage_fill(&measure, layers), out);
    }
    layers->measured = measure.measured;
    snprintf(layers->device, sizeof layers->device, "%s", measure.device);
    snprintf(layers->file, sizeof layers->file, "%s", aq_layer_times_path(measure.times));
out:
    aq_layer_times_close(measure.times);
    if (status == AQ_OK)
        *out = layers;
    else
        aq_plan_layers_close(layers);
    return status;
}
