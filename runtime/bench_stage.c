/*
 * bench_stage.c -- tokens a second of whole training steps of GPT-2 124M, and the matrix product that bounds them.
 *
 * A step is forward, backward, norm of the gradients and clipping, AdamW, zeroed gradients; random tokens, one
 * micro-batch, one stage, tied head. The figure is that of the median step.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "aqsgd/device_math.h"
#include "stages/stage.h"

enum { STEPS_MAX = 12, WARM = 2 };

struct bench_case {
    const char *name;
    uint32_t B, T;
    enum aq_stage_precision precision;
};

static const struct bench_case cases[] = {{"stage gpt2-124m fp32 B4 T256", 4, 256, AQ_STAGE_FP32},
                                          {"stage gpt2-124m fp32 B1 T1024", 1, 1024, AQ_STAGE_FP32},
                                          {"stage gpt2-124m bf16 B4 T256", 4, 256, AQ_STAGE_BF16}};

struct trainer {
    struct aq_device *device;
    struct aq_stage *stage;
    float *m, *v;
    size_t state_bytes;
    int32_t *tokens, *targets;
    uint64_t *ids;
    uint32_t B, T;
};

static enum aq_status optimize(const struct trainer *self, uint64_t step)
{
    double sum2 = 0.0;
    AQ_TRY(aq_stage_gradient_sum2(self->stage, &sum2, NULL));
    const double norm = sqrt(sum2);
    float *parameters = aq_stage_parameters(self->stage), *gradients = aq_stage_gradients(self->stage);
    for (uint32_t i = 0; i < aq_stage_tensor_count(self->stage); i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(self->stage, i, &info);
        const struct aq_adamw args = {.parameters = parameters + info.offset,
                                      .gradients = gradients + info.offset,
                                      .m = self->m + info.offset,
                                      .v = self->v + info.offset,
                                      .count = info.count,
                                      .lr = 1e-4f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.999f,
                                      .epsilon = 1e-8f,
                                      .weight_decay = info.decay ? 0.01f : 0.0f,
                                      .grad_scale = norm > 1.0 ? (float)(1.0 / norm) : 1.0f,
                                      .step = step};
        AQ_TRY(aq_device_adamw(self->device, &args, NULL));
    }
    AQ_TRY(aq_stage_parameters_changed(self->stage, NULL));
    return aq_stage_zero_grads(self->stage, NULL);
}

static enum aq_status step_run(const struct trainer *self, uint64_t step, double *loss_out)
{
    const struct aq_stage_input input = {.tokens = self->tokens,
                                         .targets = self->targets,
                                         .sample_ids = self->ids,
                                         .samples = self->B,
                                         .step = step,
                                         .loss_scale = 1.0f / (float)(self->B * self->T)};
    struct aq_stage_loss loss = {0};
    AQ_TRY(aq_stage_forward(self->stage, 0, &input, NULL, &loss, NULL));
    AQ_TRY(aq_stage_backward(self->stage, 0, NULL, NULL, NULL));
    AQ_TRY(optimize(self, step));
    *loss_out = loss.sum / (double)loss.targets;
    return AQ_OK;
}

static void trainer_close(struct trainer *self)
{
    aq_stage_close(self->stage);
    aq_device_free(self->device, AQ_MEMORY_DEVICE, self->m, self->state_bytes);
    aq_device_free(self->device, AQ_MEMORY_DEVICE, self->v, self->state_bytes);
    aq_free(self->tokens);
    aq_free(self->targets);
    aq_free(self->ids);
}

static enum aq_status trainer_open(struct trainer *self, struct aq_device *device, const struct bench_case *which)
{
    *self = (struct trainer){.device = device, .B = which->B, .T = which->T};
    struct aq_stage_config config = {
        .B = which->B, .T = which->T, .slots = 1, .precision = which->precision, .layer_end = 14};
    aq_model_config_default(&config.model, "gpt2");
    AQ_TRY(aq_stage_open(device, &config, &self->stage));
    AQ_TRY(aq_stage_init(self->stage, 1));
    self->state_bytes = aq_stage_parameter_count(self->stage) * sizeof(float);
    const size_t rows = (size_t)which->B * which->T;
    void *memory = NULL;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, self->state_bytes, &memory));
    self->m = memory;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, self->state_bytes, &memory));
    self->v = memory;
    AQ_TRY(aq_alloc(rows * sizeof *self->tokens, &memory));
    self->tokens = memory;
    AQ_TRY(aq_alloc(rows * sizeof *self->targets, &memory));
    self->targets = memory;
    AQ_TRY(aq_alloc(which->B * sizeof *self->ids, &memory));
    self->ids = memory;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    for (size_t i = 0; i < rows; i++) {
        self->tokens[i] = (int32_t)aq_rng_below(&key, i, config.model.vocabulary);
        self->targets[i] = (int32_t)aq_rng_below(&key, i + 1, config.model.vocabulary);
    }
    return AQ_OK;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum aq_status case_run(const struct aq_bench_options *options, struct aq_device *device,
                               const struct bench_case *which)
{
    struct trainer trainer;
    double seconds[STEPS_MAX], loss = 0.0;
    const uint32_t steps = options->quick ? 3 : STEPS_MAX;
    enum aq_status status;
    AQ_TRY_GOTO(trainer_open(&trainer, device, which), out);
    for (uint32_t i = 0; i < WARM + steps; i++) {
        const uint64_t start = aq_clock_ns();
        AQ_TRY_GOTO(step_run(&trainer, i + 1, &loss), out);
        if (i >= WARM) seconds[i - WARM] = (double)(aq_clock_ns() - start) * 1e-9;
    }
    qsort(seconds, steps, sizeof seconds[0], by_size);
    if (!isfinite(loss)) {
        status = aq_fail(AQ_CORRUPT, "bench", "%s: the loss is %g", which->name, loss);
        goto out;
    }
    aq_bench_emit(options, which->name, which->B * which->T / seconds[steps / 2], "tokens/s");
out:
    trainer_close(&trainer);
    return status;
}

/* The largest product of a block, 1024 tokens: what a step could reach if it were nothing else. */
static enum aq_status product_run(const struct aq_bench_options *options, struct aq_device *device,
                                  enum aq_element compute, const char *name)
{
    enum { M = 1024, N = 3072, K = 768, REPEATS = 20 };
    struct aq_device_info info;
    aq_device_info(device, &info);
    const size_t bytes = ((size_t)M * K + (size_t)K * N + (size_t)M * N) * sizeof(float);
    void *memory = NULL;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &memory));
    float *a = memory, *b = a + M * K, *c = b + K * N;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 1, 0);
    enum aq_status status;
    AQ_TRY_GOTO(aq_device_fill_normal(device, a, (uint64_t)M * K + (uint64_t)K * N, key, 1.0f, 0.0f, NULL), out);
    const struct aq_matmul args = {.M = M,
                                   .N = N,
                                   .K = K,
                                   .a = a,
                                   .a_stride = K,
                                   .b = b,
                                   .b_stride = N,
                                   .c = c,
                                   .c_stride = N,
                                   .compute = compute};
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < REPEATS; i++) {
        const uint64_t start = aq_clock_ns();
        AQ_TRY_GOTO(aq_device_matmul(device, &args, NULL), out);
        const uint64_t took = aq_clock_ns() - start;
        if (took < best) best = took;
    }
    aq_bench_emit(options, name, 2.0 * M * N * K / (double)best / info.threads, "GFLOP/s per core");
out:
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, bytes);
    return status;
}

enum aq_status aq_bench_stage(const struct aq_bench_options *options)
{
    const struct aq_device_config config = {.kind = "cpu", .threads = options->threads};
    struct aq_device *device = NULL;
    AQ_TRY(aq_device_open(&config, &device));
    enum aq_status status;
    AQ_TRY_GOTO(product_run(options, device, AQ_F32, "matmul fp32"), out);
    AQ_TRY_GOTO(product_run(options, device, AQ_BF16, "matmul bf16"), out);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        AQ_TRY_GOTO(case_run(options, device, &cases[i]), out);
out:
    aq_device_close(device);
    return status;
}
