/*
 * bench_stage_images.c -- images per second of whole training steps of ResNet-18 and ResNet-34 on small images, a part
 * of `aqpipe bench stage` if --only names it (a step takes seconds).
 *
 * A step is forward, backward, SGD with momentum, zeroed gradients; random images and labels, one micro-batch, one
 * stage. tf32 and bf16 are for GPUs only. The figure is the median step's. Next to it are the operations of a step, 3
 * times the forward's, per second and thread.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "aqsgd/grad.h"
#include "stages/stage.h"

enum { STEPS = 5, CLASSES = 10, SIDE = 32, PIXELS = SIDE * SIDE * 3 };

struct image_case {
    const char *name;
    uint32_t depth, B;
    enum aq_stage_precision precision;
};

static const struct image_case cases[] = {{"stage resnet18 fp32 B64", 18, 64, AQ_STAGE_FP32},
                                          {"stage resnet34 fp32 B64", 34, 64, AQ_STAGE_FP32},
                                          {"stage resnet34 fp32 B128", 34, 128, AQ_STAGE_FP32},
                                          {"stage resnet34 tf32 B128", 34, 128, AQ_STAGE_TF32},
                                          {"stage resnet34 bf16 B128", 34, 128, AQ_STAGE_BF16}};

struct trainer {
    struct aq_device *device;
    struct aq_stage *stage;
    struct aq_optimizer *optimizer;
    void *memory; /* ids, images, labels */
    uint64_t *ids;
    float *images;
    int32_t *labels;
    uint32_t B;
    uint64_t steps;
    double flops, loss;
};

static enum aq_status step_run(void *context)
{
    struct trainer *self = context;
    const struct aq_batch batch = {
        .samples = self->B,
        .sample_ids = self->ids,
        .fields = {{"images", AQ_FIELD_F32, PIXELS, self->images}, {"labels", AQ_FIELD_I32, 1, self->labels}},
        .field_count = 2};
    const struct aq_stage_input input = {.batch = &batch, .step = ++self->steps, .loss_factor = 1.0f / (float)self->B};
    struct aq_stage_loss loss = {0};
    AQ_TRY(aq_stage_forward(self->stage, 0, &input, NULL, &loss, NULL));
    AQ_TRY(aq_stage_backward(self->stage, 0, NULL, NULL, NULL));
    AQ_TRY(aq_optimizer_step(self->optimizer, aq_stage_parameters(self->stage), aq_stage_gradients(self->stage), 0.01f,
                             1.0f, self->steps, NULL));
    AQ_TRY(aq_stage_parameters_changed(self->stage, NULL));
    AQ_TRY(aq_stage_zero_grads(self->stage, NULL));
    self->loss = loss.sum / (double)loss.targets;
    return AQ_OK;
}

static enum aq_status optimizer_open(struct trainer *self)
{
    const uint32_t count = aq_stage_tensor_count(self->stage);
    struct aq_optimizer_config config;
    void *memory;
    AQ_TRY(aq_alloc(count * sizeof(struct aq_optimizer_tensor), &memory));
    struct aq_optimizer_tensor *tensors = memory;
    for (uint32_t i = 0; i < count; i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(self->stage, i, &info);
        tensors[i] = (struct aq_optimizer_tensor){.offset = info.offset, .count = info.count, .decay = info.decay};
    }
    aq_optimizer_config_default(&config, "sgd");
    config.momentum = 0.9f;
    const enum aq_status status = aq_optimizer_open(self->device, &config, tensors, count,
                                                    aq_stage_parameter_count(self->stage), &self->optimizer);
    aq_free(memory);
    return status;
}

static enum aq_status trainer_open(struct trainer *self, struct aq_device *device, const struct image_case *which)
{
    *self = (struct trainer){.device = device, .B = which->B};
    struct aq_stage_config config = {.B = which->B, .T = 1, .slots = 1, .precision = which->precision};
    struct aq_stage_size size;
    const uint64_t B = which->B;
    const struct aq_model_key *keys;
    uint32_t count;
    aq_model_config_default(&config.model, "resnet");
    keys = aq_model_keys("resnet", &count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(keys[i].name, "model.depth") == 0)
            memcpy((uint8_t *)&config.model + keys[i].offset, &which->depth, sizeof which->depth);
    config.layer_end = aq_model_layers(&config.model);
    AQ_TRY(aq_stage_measure(&config, &size));
    self->flops = 3.0 * size.flops_forward;
    AQ_TRY(aq_stage_open(device, &config, &self->stage));
    AQ_TRY(aq_stage_init(self->stage, 1));
    AQ_TRY(optimizer_open(self));
    AQ_TRY(aq_alloc(B * (sizeof *self->ids + PIXELS * sizeof *self->images + sizeof *self->labels), &self->memory));
    self->ids = self->memory;
    self->images = (float *)(void *)(self->ids + B);
    self->labels = (int32_t *)(void *)(self->images + B * PIXELS);
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    for (uint64_t i = 0; i < B * PIXELS; i++)
        self->images[i] = aq_rng_normal(&key, i);
    for (uint64_t i = 0; i < B; i++) {
        self->ids[i] = i;
        self->labels[i] = (int32_t)aq_rng_below(&key, i, CLASSES);
    }
    return AQ_OK;
}

static enum aq_status case_run(const struct aq_bench_options *options, struct aq_device *device,
                               const struct image_case *which)
{
    struct trainer trainer;
    const struct aq_bench_case one = {step_run, &trainer, STEPS, device, .amount = which->B, .unit = "images/s"};
    struct aq_device_info info;
    double seconds;
    char name[96];
    enum aq_status status;
    aq_device_info(device, &info);
    if (!aq_bench_wanted(options, which->name) || (info.host_memory && which->precision != AQ_STAGE_FP32)) return AQ_OK;
    AQ_TRY_GOTO(trainer_open(&trainer, device, which), out);
    AQ_TRY_GOTO(aq_bench_case(options, &one, &seconds, "%s", which->name), out);
    snprintf(name, sizeof name, "%s rate", which->name);
    aq_bench_emit(options, name, 1e-9 * trainer.flops / seconds / info.threads, "GFLOP/s per core");
    if (!isfinite(trainer.loss)) status = aq_fail(AQ_CORRUPT, "bench", "%s: the loss is %g", which->name, trainer.loss);
out:
    aq_optimizer_close(trainer.optimizer);
    aq_stage_close(trainer.stage);
    aq_free(trainer.memory);
    return status;
}

enum aq_status aq_bench_stage_images(const struct aq_bench_options *options, struct aq_device *device)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        AQ_TRY(case_run(options, device, &cases[i]));
    return AQ_OK;
}
