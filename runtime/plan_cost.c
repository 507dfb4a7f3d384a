/*
 * plan_cost.c -- seconds of one forward, backward, encode, decode and update: assumed from flops and bytes, or measured
 * here.
 */
#include <stdio.h>
#include <string.h>

#include "aqsgd/codec.h"
#include "aqsgd/device.h"
#include "aqsgd/grad.h"
#include "plan_private.h"

enum { REPEATS = 3, MEASURE_SECONDS_MAX = 20 };

/* Sustained, a core; what codecs and optimizers, which stream memory, were seen to do on a server CPU. Printed as
 * assumed. */
static const double stream_bytes_s = 4e9;
static const double latency_s = 1e-4;

static void costs_common(const struct aq_plan *plan, uint32_t cores, struct aq_plan_costs *out)
{
    *out = (struct aq_plan_costs){.cores = cores, .rate_mbps = plan->job->link.rate_mbps, .latency_s = latency_s};
    for (uint32_t s = 0; s < plan->stage_count; s++)
        out->threads[s] = aq_job_threads(plan->job, s, cores);
}

void aq_plan_costs_assumed(const struct aq_plan *plan, double gflops, uint32_t cores, struct aq_plan_costs *out)
{
    costs_common(plan, cores, out);
    out->origin = "assumed";
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct aq_plan_stage *stage = &plan->stages[s];
        const uint32_t threads = out->threads[s] < cores ? out->threads[s] : cores;
        const double flops_s = gflops * 1e9 * threads;
        const uint32_t state = aq_optimizer_state_floats(&plan->job->train.optimizer);
        out->forward_s[s] = stage->size.flops_forward / flops_s;
        out->backward_s[s] = stage->size.flops_backward / flops_s;
        out->step_s[s] = (double)(2 + 2 * state + 1) * (double)stage->size.parameter_bytes / (stream_bytes_s * threads);
        if (s + 1 == plan->stage_count) continue;
        const double stream = (double)stage->size.boundary_bytes / (stream_bytes_s * threads);
        out->send_s[s] = 2 * stream; /* values and references are read, references written */
        out->receive_s[s] = stream;
        out->send_back_s[s] = stream;
        out->receive_back_s[s] = stream;
    }
}

/* --- measured --------------------------------------------------------------------------------------------------- */

struct bench {
    const struct aq_plan *plan;
    struct aq_device *device;
    struct aq_stream *stream;
    float *x, *y; /* (B, T, C) */
    uint64_t boundary_bytes;
    int32_t *tokens;
    uint64_t *ids;
};

static void bench_close(struct bench *bench)
{
    if (!bench->device) return;
    if (bench->x) aq_device_free(bench->device, AQ_MEMORY_DEVICE, bench->x, bench->boundary_bytes);
    if (bench->y) aq_device_free(bench->device, AQ_MEMORY_DEVICE, bench->y, bench->boundary_bytes);
    aq_free(bench->tokens);
    aq_free(bench->ids);
    if (bench->stream) aq_device_stream_close(bench->device, bench->stream);
    aq_device_close(bench->device);
    *bench = (struct bench){0};
}

static enum aq_status bench_open(struct bench *bench, const struct aq_plan *plan, uint32_t s, uint32_t threads)
{
    const struct aq_job_stage *place = &plan->job->pipeline.stages[s];
    const struct aq_device_config config = {.kind = place->device, .index = place->device_index, .threads = threads};
    const struct aq_stage_config *stage = &plan->stages[s].config;
    const uint64_t tokens = (uint64_t)stage->B * stage->T;
    *bench = (struct bench){.plan = plan, .boundary_bytes = plan->stages[s].size.boundary_bytes};
    AQ_TRY(aq_device_open(&config, &bench->device));
    AQ_TRY(aq_device_stream_open(bench->device, &bench->stream));
    AQ_TRY(aq_device_alloc(bench->device, AQ_MEMORY_DEVICE, bench->boundary_bytes, (void **)&bench->x));
    AQ_TRY(aq_device_alloc(bench->device, AQ_MEMORY_DEVICE, bench->boundary_bytes, (void **)&bench->y));
    AQ_TRY(aq_alloc(tokens * sizeof *bench->tokens, (void **)&bench->tokens));
    AQ_TRY(aq_alloc(stage->B * sizeof *bench->ids, (void **)&bench->ids));
    void *host = NULL;
    AQ_TRY(aq_alloc(bench->boundary_bytes, &host));
    float *values = host;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, s, 0);
    for (uint64_t i = 0; i < bench->boundary_bytes / sizeof *values; i++)
        values[i] = aq_rng_uniform(&key, i) - 0.5f;
    for (uint64_t i = 0; i < tokens; i++)
        bench->tokens[i] = (int32_t)aq_rng_below(&key, i + bench->boundary_bytes, plan->facts.vocabulary);
    enum aq_status status = aq_device_copy(bench->device, bench->x, values, bench->boundary_bytes, bench->stream);
    if (status == AQ_OK) status = aq_device_copy(bench->device, bench->y, values, bench->boundary_bytes, bench->stream);
    if (status == AQ_OK) status = aq_device_stream_sync(bench->device, bench->stream);
    aq_free(host);
    return status;
}

static double seconds_since(uint64_t begin)
{
    return (double)(aq_clock_ns() - begin) * 1e-9;
}

static void keep_least(double seconds, int repeat, double *best)
{
    if (repeat == 0 || seconds < *best) *best = seconds;
}

static enum aq_status time_stage(struct bench *bench, uint32_t s, struct aq_stage *stage, struct aq_plan_costs *out)
{
    const struct aq_plan *plan = bench->plan;
    const bool first = s == 0, last = s + 1 == plan->stage_count;
    const struct aq_stage_input input = {.x = first ? NULL : bench->x,
                                         .tokens = first ? bench->tokens : NULL,
                                         .targets = last ? bench->tokens : NULL,
                                         .sample_ids = bench->ids,
                                         .samples = plan->job->train.micro_batch,
                                         .seed = plan->job->train.seed,
                                         .loss_scale = 1};
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(aq_stage_init(stage, plan->job->train.seed));
    AQ_TRY(aq_stage_parameters_changed(stage, bench->stream));
    for (int repeat = 0; repeat <= REPEATS && seconds_since(begin) < MEASURE_SECONDS_MAX; repeat++) {
        struct aq_stage_loss loss;
        uint64_t start = aq_clock_ns();
        AQ_TRY(aq_stage_forward(stage, 0, &input, last ? NULL : bench->y, last ? &loss : NULL, bench->stream));
        AQ_TRY(aq_device_stream_sync(bench->device, bench->stream));
        keep_least(seconds_since(start), repeat, &out->forward_s[s]);
        start = aq_clock_ns();
        AQ_TRY(aq_stage_backward(stage, 0, last ? NULL : bench->y, first ? NULL : bench->x, bench->stream));
        AQ_TRY(aq_device_stream_sync(bench->device, bench->stream));
        keep_least(seconds_since(start), repeat, &out->backward_s[s]);
    }
    return AQ_OK;
}

static enum aq_status time_update(struct bench *bench, uint32_t s, struct aq_stage *stage, struct aq_plan_costs *out)
{
    const struct aq_plan *plan = bench->plan;
    const struct aq_optimizer_tensor whole = {.count = aq_stage_parameter_count(stage), .decay = true};
    struct aq_optimizer *optimizer;
    AQ_TRY(aq_optimizer_open(bench->device, &plan->job->train.optimizer, &whole, 1, whole.count, &optimizer));
    enum aq_status status = AQ_OK;
    for (int repeat = 0; repeat < REPEATS && status == AQ_OK; repeat++) {
        const uint64_t start = aq_clock_ns();
        double sum = 0;
        if (plan->job->train.clip > 0) status = aq_stage_gradient_sum2(stage, &sum, bench->stream);
        if (status == AQ_OK)
            status = aq_optimizer_step(optimizer, aq_stage_parameters(stage), aq_stage_gradients(stage), 0, 1,
                                       (uint64_t)repeat + 1, bench->stream);
        if (status == AQ_OK) status = aq_stage_zero_grads(stage, bench->stream);
        if (status == AQ_OK) status = aq_stage_parameters_changed(stage, bench->stream);
        if (status == AQ_OK) status = aq_device_stream_sync(bench->device, bench->stream);
        keep_least(seconds_since(start), repeat, &out->step_s[s]);
    }
    aq_optimizer_close(optimizer);
    return status;
}

/* Encode and decode of one micro-batch, warm; a buffer of messages and one of bodies for one sample. */
static enum aq_status time_codec(struct bench *bench, const struct aq_codec_config *config, double *encode_s,
                                 double *decode_s)
{
    const struct aq_plan *plan = bench->plan;
    const uint32_t T = plan->job->train.T, C = plan->model.channels, B = plan->job->train.micro_batch;
    struct aq_codec *codec = NULL;
    void *body = NULL, *message = NULL;
    size_t bound = 0, message_bytes = 0;
    enum aq_status status;
    AQ_TRY_GOTO(aq_codec_open(bench->device, config, T, C, &codec), out);
    bound = aq_codec_bound(codec);
    message_bytes = aq_codec_message_bytes(codec);
    AQ_TRY_GOTO(aq_device_alloc(bench->device, AQ_MEMORY_PINNED, bound, &body), out);
    AQ_TRY_GOTO(aq_device_alloc(bench->device, AQ_MEMORY_PINNED, message_bytes + 1, &message), out);
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    for (int repeat = 0; repeat <= REPEATS; repeat++) {
        struct aq_codec_result result = {0};
        void *m = message_bytes ? message : NULL, *reference = repeat ? m : NULL; /* the first is a keyframe */
        uint64_t start = aq_clock_ns();
        for (uint32_t b = 0; b < B; b++)
            AQ_TRY_GOTO(aq_codec_encode(codec, bench->x + (size_t)b * T * C, reference, &key, body, bound, NULL, m,
                                        &result, bench->stream),
                        out);
        AQ_TRY_GOTO(aq_device_stream_sync(bench->device, bench->stream), out);
        keep_least(seconds_since(start), repeat > 1, encode_s);
        start = aq_clock_ns();
        for (uint32_t b = 0; b < B; b++)
            AQ_TRY_GOTO(aq_codec_decode(codec, body, result.body_bytes, result.flags, m, bench->y + (size_t)b * T * C,
                                        m, bench->stream),
                        out);
        AQ_TRY_GOTO(aq_device_stream_sync(bench->device, bench->stream), out);
        keep_least(seconds_since(start), repeat > 1, decode_s);
    }
out:
    aq_device_free(bench->device, AQ_MEMORY_PINNED, message, message_bytes + 1);
    aq_device_free(bench->device, AQ_MEMORY_PINNED, body, bound);
    aq_codec_close(codec);
    return status;
}

static enum aq_status time_rank(struct bench *bench, uint32_t s, struct aq_plan_costs *out)
{
    const struct aq_plan *plan = bench->plan;
    struct aq_stage_config config = plan->stages[s].config;
    struct aq_stage *stage;
    config.slots = 1;
    AQ_TRY(aq_stage_open(bench->device, &config, &stage));
    enum aq_status status = time_stage(bench, s, stage, out);
    if (status == AQ_OK) status = time_update(bench, s, stage, out);
    aq_stage_close(stage);
    AQ_TRY(status);
    if (s + 1 == plan->stage_count) return AQ_OK;
    AQ_TRY(time_codec(bench, &plan->edges[s].forward, &out->send_s[s], &out->receive_s[s]));
    return time_codec(bench, &plan->edges[s].backward, &out->send_back_s[s], &out->receive_back_s[s]);
}

enum aq_status aq_plan_costs_measured(const struct aq_plan *plan, uint32_t cores, struct aq_plan_costs *out)
{
    costs_common(plan, cores, out);
    out->origin = "measured here";
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        struct bench bench;
        enum aq_status status = bench_open(&bench, plan, s, out->threads[s]);
        if (status == AQ_OK) status = time_rank(&bench, s, out);
        bench_close(&bench);
        AQ_TRY(status);
    }
    return AQ_OK;
}
