/*
 * bench_stage.c -- tokens per second of whole training steps of GPT-2 and others, and the matrix product that bounds
 * them.
 *
 * On a CPU GPT-2's 124M and, if --only names them (they need 4 and 11 GB), the shapes of SmolLM2-135M and Qwen3-0.6B,
 * whole and by adapters, and ResNets (bench_stage_images.c); on a GPU 124M, 350M, 774M and 1.5B in bf16 and fp32, some
 * in fp16 and tf32, each with its model FLOP utilisation (MFU, one definition in the whole repository): the model's
 * operations over the vendor's dense rate for this GPU and precision, if it is one of `rates`, named in the unit; and
 * always over the rate of this machine's largest product of that precision ("of product"). The loss of the first step
 * is printed, too: about ln(50257) = 10.8 for an untrained model. A step's operations are three times the forward's,
 *
 *     3 B T (L (24 C^2 + 2 T C) + 2 V C),
 *
 * of which 2 T C is attention over the half of T x T that is not masked; recomputation in backward, and the optimizer,
 * do not count.
 *
 * A step is forward, backward, norm of the gradients and clipping, AdamW, zeroed gradients; random tokens, one
 * micro-batch, one stage, tied head; fp16 with a loss scale that is divided out, as a worker does. The figure is the
 * median step's. "lora16": only adapters of rank 16 on every linear layer of the blocks train; q8, nf4 and nf4_double:
 * the store of the base below them (train.frozen_store). "small-": small shapes of families, with the processor time of
 * the cheapest step, to compare two versions of this program on a machine that others use.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "aqsgd/device_math.h"
#include "aqsgd/grad.h"
#include "stages/stage.h"

enum { STEPS = 12 };

struct bench_case {
    const char *name;
    uint32_t B, T;
    enum aq_stage_precision precision;
    uint32_t blocks, heads, channels; /* 0: of 124M */
    uint32_t logits_rows;             /* 0: as many as the stage takes */
    uint32_t narrow;                  /* LOGITS: in 16 bits, on a GPU (a job with fp16 has them); RESIDUAL: in bf16 */
};

enum { LOGITS = 1, RESIDUAL = 2 };

/* Published shapes of other models, run where --only asks for them. */
struct bench_shape {
    struct bench_case of;
    void (*shape)(struct aq_model_config *model);
    uint32_t rank; /* of adapters on every linear layer of the blocks, in place of the model itself; 0: none */
    enum aq_frozen_store store; /* of the base under them */
};

static void smollm2_135m(struct aq_model_config *model)
{
    aq_model_config_default(model, "llama");
    model->blocks = 30;
    model->heads = 9;
    model->kv_heads = 3;
    model->channels = 576;
    model->mlp = 1536;
    model->vocabulary = 49152;
    model->context = 8192;
    model->rope_theta = 100000.0f;
}

static void qwen3_600m(struct aq_model_config *model)
{
    aq_model_config_default(model, "llama");
    model->blocks = 28;
    model->heads = 16;
    model->kv_heads = 8;
    model->head_dim = 128;
    model->channels = 1024;
    model->mlp = 3072;
    model->vocabulary = 151936;
    model->context = 40960;
    model->norm_eps = 1e-6f;
    model->rope_theta = 1000000.0f;
    model->qk_norm = true;
}

/* Small shapes of families, to compare two versions of this program on a busy machine. */
static void small(struct aq_model_config *model, const char *kind)
{
    aq_model_config_default(model, kind);
    model->blocks = 6;
    model->heads = 6;
    model->channels = 384;
    model->mlp = 1024;
    model->vocabulary = 4096;
    model->context = 512;
}

static void small_gpt2(struct aq_model_config *model)
{
    small(model, "gpt2");
}

static void small_llama(struct aq_model_config *model)
{
    small(model, "llama");
    model->kv_heads = 2;
}

static void small_qwen3(struct aq_model_config *model)
{
    small_llama(model);
    model->qk_norm = true;
}

static void small_gemma3(struct aq_model_config *model)
{
    small(model, "gemma3");
    model->kv_heads = 2;
    model->head_dim = 64;
    model->window = 64;
}

static void small_modernbert(struct aq_model_config *model)
{
    small(model, "modernbert");
    model->window = 64;
    model->labels = 2;
}

static void small_deberta(struct aq_model_config *model)
{
    small(model, "deberta");
    model->labels = 2;
}

static const struct bench_shape shapes[] = {
    {{"stage small-gpt2 fp32 B4 T128", 4, 128, AQ_STAGE_FP32, 0, 0, 0, 0, 0}, small_gpt2, 0, AQ_FROZEN_FP32},
    {{"stage small-llama fp32 B4 T128", 4, 128, AQ_STAGE_FP32, 0, 0, 0, 0, 0}, small_llama, 0, AQ_FROZEN_FP32},
    {{"stage small-qwen3 fp32 B4 T128", 4, 128, AQ_STAGE_FP32, 0, 0, 0, 0, 0}, small_qwen3, 0, AQ_FROZEN_FP32},
    {{"stage small-gemma3 fp32 B4 T128", 4, 128, AQ_STAGE_FP32, 0, 0, 0, 0, 0}, small_gemma3, 0, AQ_FROZEN_FP32},
    {{"stage small-modernbert fp32 B4 T128", 4, 128, AQ_STAGE_FP32, 0, 0, 0, 0, 0},
     small_modernbert,
     0,
     AQ_FROZEN_FP32},
    {{"stage small-deberta fp32 B4 T128", 4, 128, AQ_STAGE_FP32, 0, 0, 0, 0, 0}, small_deberta, 0, AQ_FROZEN_FP32},
    {{"stage smollm2-135m fp32 B4 T256", 4, 256, AQ_STAGE_FP32, 0, 0, 0, 0, 0}, smollm2_135m, 0, AQ_FROZEN_FP32},
    {{"stage smollm2-135m bf16 B4 T256", 4, 256, AQ_STAGE_BF16, 0, 0, 0, 0, 0}, smollm2_135m, 0, AQ_FROZEN_FP32},
    {{"stage smollm2-135m lora16 fp32 B4 T256", 4, 256, AQ_STAGE_FP32, 0, 0, 0, 0, 0},
     smollm2_135m,
     16,
     AQ_FROZEN_FP32},
    {{"stage smollm2-135m lora16 bf16 B4 T256", 4, 256, AQ_STAGE_BF16, 0, 0, 0, 0, 0},
     smollm2_135m,
     16,
     AQ_FROZEN_FP32},
    {{"stage smollm2-135m lora16 q8 fp32 B4 T256", 4, 256, AQ_STAGE_FP32, 0, 0, 0, 0, 0},
     smollm2_135m,
     16,
     AQ_FROZEN_Q8},
    {{"stage smollm2-135m lora16 nf4 fp32 B4 T256", 4, 256, AQ_STAGE_FP32, 0, 0, 0, 0, 0},
     smollm2_135m,
     16,
     AQ_FROZEN_NF4},
    {{"stage smollm2-135m lora16 nf4_double fp32 B4 T256", 4, 256, AQ_STAGE_FP32, 0, 0, 0, 0, 0},
     smollm2_135m,
     16,
     AQ_FROZEN_NF4_DOUBLE},
    {{"stage qwen3-0.6b fp32 B2 T256", 2, 256, AQ_STAGE_FP32, 0, 0, 0, 0, 0}, qwen3_600m, 0, AQ_FROZEN_FP32},
    {{"stage qwen3-0.6b bf16 B2 T256", 2, 256, AQ_STAGE_BF16, 0, 0, 0, 0, 0}, qwen3_600m, 0, AQ_FROZEN_FP32},
    {{"stage qwen3-0.6b lora16 fp32 B2 T256", 2, 256, AQ_STAGE_FP32, 0, 0, 0, 0, 0},
     qwen3_600m,
     16,
     AQ_FROZEN_FP32},
    {{"stage qwen3-0.6b lora16 bf16 B2 T256", 2, 256, AQ_STAGE_BF16, 0, 0, 0, 0, 0},
     qwen3_600m,
     16,
     AQ_FROZEN_FP32}};

/* The same on a GPU, at sizes that fill one. */
static const struct bench_shape gpu_shapes[] = {
    {{"stage qwen3-0.6b bf16 B4 T1024", 4, 1024, AQ_STAGE_BF16, 0, 0, 0, 0, 0}, qwen3_600m, 0, AQ_FROZEN_FP32},
    {{"stage qwen3-0.6b bf16 B16 T1024", 16, 1024, AQ_STAGE_BF16, 0, 0, 0, 0, 0}, qwen3_600m, 0, AQ_FROZEN_FP32},
    {{"stage qwen3-0.6b bf16 B4 T1024 logits bf16", 4, 1024, AQ_STAGE_BF16, 0, 0, 0, 0, LOGITS},
     qwen3_600m,
     0,
     AQ_FROZEN_FP32},
    {{"stage qwen3-0.6b bf16 B4 T1024 residual bf16", 4, 1024, AQ_STAGE_BF16, 0, 0, 0, 0, RESIDUAL},
     qwen3_600m,
     0,
     AQ_FROZEN_FP32},
    {{"stage qwen3-0.6b lora16 bf16 B4 T1024", 4, 1024, AQ_STAGE_BF16, 0, 0, 0, 0, 0},
     qwen3_600m,
     16,
     AQ_FROZEN_FP32}};

static const struct bench_case cases[] = {{"stage gpt2-124m fp32 B4 T256", 4, 256, AQ_STAGE_FP32, 0, 0, 0, 0, 0},
                                          {"stage gpt2-124m fp32 B1 T1024", 1, 1024, AQ_STAGE_FP32, 0, 0, 0, 0, 0},
                                          {"stage gpt2-124m bf16 B4 T256", 4, 256, AQ_STAGE_BF16, 0, 0, 0, 0, 0},
                                          {"stage gpt2-124m bf16 B4 T256 residual bf16", 4, 256, AQ_STAGE_BF16, 0, 0, 0,
                                           0, RESIDUAL},
                                          {"stage gpt2-124m fp16 B4 T256", 4, 256, AQ_STAGE_FP16, 0, 0, 0, 0, LOGITS}};

static const struct bench_case gpu_cases[] = {
    {"stage gpt2-124m bf16 B16 T1024", 16, 1024, AQ_STAGE_BF16, 12, 12, 768, 0, 0},
    {"stage gpt2-124m bf16 B16 T1024 logits_rows 4096", 16, 1024, AQ_STAGE_BF16, 12, 12, 768, 4096, 0},
    {"stage gpt2-124m bf16 B16 T1024 logits_rows 1024", 16, 1024, AQ_STAGE_BF16, 12, 12, 768, 1024, 0},
    {"stage gpt2-124m bf16 B16 T1024 logits bf16", 16, 1024, AQ_STAGE_BF16, 12, 12, 768, 0, LOGITS},
    {"stage gpt2-124m bf16 B16 T1024 logits bf16 logits_rows 4096", 16, 1024, AQ_STAGE_BF16, 12, 12, 768, 4096, LOGITS},
    {"stage gpt2-124m bf16 B16 T1024 logits bf16 logits_rows 512", 16, 1024, AQ_STAGE_BF16, 12, 12, 768, 512, LOGITS},
    {"stage gpt2-124m bf16 B16 T1024 residual bf16", 16, 1024, AQ_STAGE_BF16, 12, 12, 768, 0, RESIDUAL},
    {"stage gpt2-350m bf16 B16 T1024", 16, 1024, AQ_STAGE_BF16, 24, 16, 1024, 0, 0},
    {"stage gpt2-774m bf16 B16 T1024", 16, 1024, AQ_STAGE_BF16, 36, 20, 1280, 0, 0},
    {"stage gpt2-1.5b bf16 B16 T1024", 16, 1024, AQ_STAGE_BF16, 48, 25, 1600, 0, 0},
    {"stage gpt2-124m fp16 B16 T1024", 16, 1024, AQ_STAGE_FP16, 12, 12, 768, 0, LOGITS},
    {"stage gpt2-1.5b fp16 B16 T1024", 16, 1024, AQ_STAGE_FP16, 48, 25, 1600, 0, LOGITS},
    {"stage gpt2-124m tf32 B16 T1024", 16, 1024, AQ_STAGE_TF32, 12, 12, 768, 0, 0},
    {"stage gpt2-124m fp32 B16 T1024", 16, 1024, AQ_STAGE_FP32, 12, 12, 768, 0, 0},
    {"stage gpt2-350m fp32 B8 T1024", 8, 1024, AQ_STAGE_FP32, 24, 16, 1024, 0, 0},
    {"stage gpt2-774m fp32 B8 T1024", 8, 1024, AQ_STAGE_FP32, 36, 20, 1280, 0, 0},
    {"stage gpt2-1.5b fp32 B4 T1024", 4, 1024, AQ_STAGE_FP32, 48, 25, 1600, 0, 0}};

/*
 * Dense rates in TFLOP/s from NVIDIA's data sheets: bf16 and fp16 with fp32 sums; tf32; fp32 proper, without tensor
 * cores.
 */
#define RATES(half, tf32, fp32)                                                                                        \
    {                                                                                                                  \
        [AQ_STAGE_BF16] = half, [AQ_STAGE_FP16] = half, [AQ_STAGE_TF32] = tf32, [AQ_STAGE_FP32] = fp32                 \
    }
static const struct rate {
    const char *name;             /* in what the device calls itself */
    double of[AQ_STAGE_FP16 + 1]; /* by precision */
} rates[] = {{"A100", RATES(312.0, 156.0, 19.5)},
             {"H100 PCIe", RATES(756.0, 378.0, 51.0)},
             {"H100", RATES(989.4, 494.7, 66.9)},
             {"H200", RATES(989.4, 494.7, 66.9)},
             {"B200", RATES(2250.0, 1125.0, 75.0)}};

struct trainer {
    struct aq_device *device;
    struct aq_stage *stage;
    struct aq_optimizer *optimizer;
    int32_t *tokens, *targets;
    uint64_t *ids;
    uint32_t B, T;
    double flops; /* of a step */
    float loss_scale;
    bool classifies;         /* one target per sample */
    uint64_t steps;          /* done */
    double processors;       /* seconds of all threads in the cheapest step so far */
    double loss, first_loss; /* of the last one, and of the first */
};

static enum aq_status optimize(const struct trainer *self, uint64_t step)
{
    double sum2 = 0.0;
    if (self->loss_scale != 1.0f)
        AQ_TRY(aq_device_scale(self->device,
                               &(struct aq_scale){.x = aq_stage_gradients(self->stage),
                                                  .count = aq_stage_parameter_count(self->stage),
                                                  .factor = 1.0f / self->loss_scale},
                               NULL));
    AQ_TRY(aq_stage_gradient_sum2(self->stage, &sum2, NULL));
    const double norm = sqrt(sum2);
    struct aq_optimizer_ending ending = {.gradients = aq_stage_gradients(self->stage)};
    ending.rounded = aq_stage_rounded(self->stage, &ending.type);
    AQ_TRY(aq_optimizer_begin(self->optimizer, aq_stage_parameters(self->stage), ending.gradients, 1e-4f,
                              norm > 1.0 ? (float)(1.0 / norm) : 1.0f, step, NULL));
    const bool ends = aq_optimizer_ends(self->optimizer, &ending);
    struct aq_reduce nothing;
    AQ_TRY(aq_optimizer_round(self->optimizer, &nothing));
    if (ends) return aq_device_stream_sync(self->device, NULL);
    AQ_TRY(aq_stage_parameters_changed(self->stage, NULL));
    return aq_stage_zero_grads(self->stage, NULL);
}

/* Of this process, all threads. */
static double processor_seconds(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) != 0) return 0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum aq_status step_run(void *context)
{
    struct trainer *self = context;
    const uint64_t step = ++self->steps;
    const uint32_t wide = self->classifies ? 1 : self->T;
    const char *name = self->classifies ? "labels" : "targets";
    const struct aq_batch batch = {
        .samples = self->B,
        .sample_ids = self->ids,
        .fields = {{"tokens", AQ_FIELD_I32, self->T, self->tokens}, {name, AQ_FIELD_I32, wide, self->targets}},
        .field_count = 2};
    const struct aq_stage_input input = {
        .batch = &batch, .step = step, .loss_factor = self->loss_scale / (float)(self->B * wide)};
    struct aq_stage_loss loss = {0};
    const double began = processor_seconds();
    AQ_TRY(aq_stage_forward(self->stage, 0, &input, NULL, &loss, NULL));
    AQ_TRY(aq_stage_backward(self->stage, 0, NULL, NULL, NULL));
    AQ_TRY(optimize(self, step));
    const double took = processor_seconds() - began;
    if (step == 1 || took < self->processors) self->processors = took;
    self->loss = loss.sum / (double)loss.targets;
    if (step == 1) self->first_loss = self->loss;
    return AQ_OK;
}

static void trainer_close(struct trainer *self)
{
    aq_optimizer_close(self->optimizer);
    aq_stage_close(self->stage);
    aq_free(self->tokens);
    aq_free(self->targets);
    aq_free(self->ids);
}

/* AdamW, as a job has it by default. */
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
    aq_optimizer_config_default(&config, "adamw");
    const enum aq_status status = aq_optimizer_open(self->device, &config, tensors, count,
                                                    aq_stage_parameter_count(self->stage), &self->optimizer);
    aq_free(memory);
    return status;
}

static enum aq_status trainer_open(struct trainer *self, struct aq_device *device, const struct bench_case *which,
                                   const struct bench_shape *shape)
{
    *self = (struct trainer){.device = device,
                             .B = which->B,
                             .T = which->T,
                             .loss_scale = which->precision == AQ_STAGE_FP16 ? 1024.0f : 1.0f};
    struct aq_stage_config config = {
        .B = which->B, .T = which->T, .slots = 1, .precision = which->precision, .pads_vocabulary = true};
    struct aq_stage_size size;
    aq_model_config_default(&config.model, "gpt2");
    if (which->blocks) {
        config.model.blocks = which->blocks;
        config.model.heads = which->heads;
        config.model.channels = which->channels;
    }
    if (shape) {
        shape->shape(&config.model);
        config.lora = (struct aq_lora_config){.rank = shape->rank, .alpha = 2.0f * (float)shape->rank};
        config.frozen_store = shape->store;
    }
    self->classifies = config.model.labels > 0;
    if (self->classifies) config.task = "classification";
    config.logits_rows = which->logits_rows;
    config.logits_16bit = (which->narrow & LOGITS) != 0;
    config.residual_bf16 = (which->narrow & RESIDUAL) != 0;
    config.layer_end = aq_model_layers(&config.model);
    AQ_TRY(aq_stage_measure(&config, &size));
    self->flops = 3.0 * size.flops_forward;
    AQ_TRY(aq_stage_open(device, &config, &self->stage));
    AQ_TRY(aq_stage_init(self->stage, 1));
    AQ_TRY(optimizer_open(self));
    const size_t rows = (size_t)which->B * which->T;
    const uint32_t values = self->classifies ? config.model.labels : config.model.vocabulary;
    void *memory = NULL;
    AQ_TRY(aq_alloc(rows * sizeof *self->tokens, &memory));
    self->tokens = memory;
    AQ_TRY(aq_alloc(rows * sizeof *self->targets, &memory));
    self->targets = memory;
    AQ_TRY(aq_alloc(which->B * sizeof *self->ids, &memory));
    self->ids = memory;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    for (size_t i = 0; i < rows; i++) {
        self->tokens[i] = (int32_t)aq_rng_below(&key, i, config.model.vocabulary);
        self->targets[i] = (int32_t)aq_rng_below(&key, i + 1, values);
    }
    return AQ_OK;
}

/* Utilisation over what the maker names, where he is known, and over the largest product measured. */
static void emit_utilisation(const struct aq_bench_options *options, const struct bench_case *which, const char *device,
                             double flops_a_second, double product)
{
    char name[96], unit[96];
    if (product > 0) {
        snprintf(name, sizeof name, "%s of product", which->name);
        aq_bench_emit(options, name, 100.0 * flops_a_second / product, "%");
    }
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        if (!strstr(device, rates[i].name)) continue;
        snprintf(name, sizeof name, "%s mfu", which->name);
        snprintf(unit, sizeof unit, "%% of %.1f TFLOP/s (dense peak, %s)", rates[i].of[which->precision],
                 rates[i].name);
        aq_bench_emit(options, name, 100e-12 * flops_a_second / rates[i].of[which->precision], unit);
        return;
    }
}

/* shape NULL: GPT-2's. */
static enum aq_status case_run(const struct aq_bench_options *options, struct aq_device *device,
                               const struct bench_case *which, const struct bench_shape *shape, double product)
{
    struct trainer trainer;
    const uint32_t repeats = strstr(which->name, "small-") ? 4 * STEPS : which->blocks || shape ? STEPS / 3 : STEPS;
    const struct aq_bench_case one = {
        step_run, &trainer, repeats, device, .amount = (double)which->B * which->T, .unit = "tokens/s"};
    struct aq_device_info info;
    double seconds;
    char name[96];
    enum aq_status status;
    if (!aq_bench_wanted(options, which->name)) return AQ_OK;
    AQ_TRY_GOTO(trainer_open(&trainer, device, which, shape), out);
    AQ_TRY_GOTO(aq_bench_case(options, &one, &seconds, "%s", which->name), out);
    aq_device_info(device, &info);
    if (info.host_memory) {
        snprintf(name, sizeof name, "%s processors", which->name);
        aq_bench_emit(options, name, 1e3 * trainer.processors, "ms per step, least");
    } else {
        snprintf(name, sizeof name, "%s step", which->name);
        aq_bench_emit(options, name, 1e3 * seconds, "ms");
        snprintf(name, sizeof name, "%s first loss", which->name);
        aq_bench_emit(options, name, trainer.first_loss, "nats a token");
        emit_utilisation(options, which, info.name, trainer.flops / seconds, product);
    }
    if (!isfinite(trainer.loss)) status = aq_fail(AQ_CORRUPT, "bench", "%s: the loss is %g", which->name, trainer.loss);
out:
    trainer_close(&trainer);
    return status;
}

struct product {
    struct aq_device *device;
    struct aq_matmul args;
};

static enum aq_status product_once(void *context)
{
    const struct product *product = context;
    return aq_device_matmul(product->device, &product->args, NULL);
}

enum aq_status aq_bench_product(struct aq_device *device, enum aq_element type, enum aq_element compute, uint64_t M,
                                uint64_t N, uint64_t K, double *rate)
{
    enum { REPEATS = 20 };
    const uint64_t values = M * K + K * N; /* of both operands; made in fp32 behind the result */
    const size_t typed = aq_element_bytes(type), bytes = values * typed + (M * N + values) * sizeof(float);
    void *memory = NULL;
    double seconds;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &memory));
    uint8_t *a = memory, *b = a + M * K * typed, *c = b + K * N * typed;
    float *made = (float *)(void *)(c + M * N * sizeof(float));
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 1, 0);
    enum aq_status status;
    const struct aq_dropout_apply convert = {
        .samples = 1, .sample_elements = values, .x = made, .y = memory, .y_type = type};
    const struct aq_fill_normal fill = {.x = made, .count = values, .key = key, .std = 1.0f};
    AQ_TRY_GOTO(aq_device_fill_normal(device, &fill, NULL), out);
    AQ_TRY_GOTO(aq_device_dropout(device, &convert, NULL), out);
    struct product product = {.device = device,
                              .args = {.M = M,
                                       .N = N,
                                       .K = K,
                                       .a = a,
                                       .a_stride = K,
                                       .a_type = type,
                                       .b = b,
                                       .b_stride = N,
                                       .b_type = type,
                                       .c = c,
                                       .c_stride = N,
                                       .c_type = type,
                                       .compute = compute}};
    AQ_TRY_GOTO(aq_bench_median(device, NULL, REPEATS, product_once, &product, &seconds), out);
    *rate = 2.0 * (double)M * (double)N * (double)K / seconds;
out:
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, bytes);
    return status;
}

/* On a CPU the largest product of a block, 1024 tokens: what a step could reach if it were nothing else. */
static enum aq_status cpu_run(const struct aq_bench_options *options, struct aq_device *device)
{
    struct aq_device_info info;
    double rate;
    aq_device_info(device, &info);
    AQ_TRY(aq_bench_product(device, AQ_F32, AQ_F32, 1024, 3072, 768, &rate));
    aq_bench_emit(options, "matmul fp32", 1e-9 * rate / info.threads, "GFLOP/s per core");
    AQ_TRY(aq_bench_product(device, AQ_F32, AQ_BF16, 1024, 3072, 768, &rate));
    aq_bench_emit(options, "matmul bf16", 1e-9 * rate / info.threads, "GFLOP/s per core");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        AQ_TRY(case_run(options, device, &cases[i], NULL, 0));
    for (size_t i = 0; options->only && i < sizeof shapes / sizeof shapes[0]; i++)
        AQ_TRY(case_run(options, device, &shapes[i].of, &shapes[i], 0));
    return options->only ? aq_bench_stage_images(options, device) : AQ_OK;
}

/* A case that fails prints its error and has no figure; later cases are measured all the same. Returns the first
 * failure. */
static enum aq_status gpu_run(const struct aq_bench_options *options, struct aq_device *device)
{
    enum aq_status status = AQ_OK;
    static const struct {
        const char *name;
        enum aq_element type, compute;
        enum aq_stage_precision precision;
    } products[] = {{"product bf16 8192", AQ_BF16, AQ_BF16, AQ_STAGE_BF16},
                    {"product fp16 8192", AQ_F16, AQ_F16, AQ_STAGE_FP16},
                    {"product tf32 8192", AQ_F32, AQ_TF32, AQ_STAGE_TF32},
                    {"product fp32 8192", AQ_F32, AQ_F32, AQ_STAGE_FP32}};
    double reached[AQ_STAGE_FP16 + 1] = {0};
    for (size_t i = 0; !options->quick && i < sizeof products / sizeof products[0]; i++) {
        double *of = &reached[products[i].precision];
        const enum aq_status one =
            aq_bench_product(device, products[i].type, products[i].compute, 8192, 8192, 8192, of);
        aq_bench_emit(options, products[i].name, one == AQ_OK ? 1e-12 * *of : (double)NAN, "TFLOP/s");
        if (status == AQ_OK) status = one;
    }
    for (size_t i = 0; i < sizeof gpu_cases / sizeof gpu_cases[0]; i++) {
        const enum aq_status one = case_run(options, device, &gpu_cases[i], NULL, reached[gpu_cases[i].precision]);
        if (one != AQ_OK) aq_bench_emit(options, gpu_cases[i].name, (double)NAN, "tokens/s");
        if (status == AQ_OK) status = one;
    }
    for (size_t i = 0; options->only && i < sizeof gpu_shapes / sizeof gpu_shapes[0]; i++) {
        const struct bench_case *of = &gpu_shapes[i].of;
        const enum aq_status one = case_run(options, device, of, &gpu_shapes[i], reached[of->precision]);
        if (one != AQ_OK) aq_bench_emit(options, of->name, (double)NAN, "tokens/s");
        if (status == AQ_OK) status = one;
    }
    if (options->only) {
        const enum aq_status one = aq_bench_stage_images(options, device);
        if (status == AQ_OK) status = one;
    }
    return status;
}

enum aq_status aq_bench_stage(const struct aq_bench_options *options)
{
    const struct aq_device_config config = {
        .kind = options->device, .index = options->device_index, .threads = options->threads};
    struct aq_device *device = NULL;
    AQ_TRY(aq_device_open(&config, &device));
    const bool gpu = aq_device_gpu(options->device) == AQ_GPU_YES;
    const enum aq_status status = gpu ? gpu_run(options, device) : cpu_run(options, device);
    aq_device_close(device);
    return status;
}
