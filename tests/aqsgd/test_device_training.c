/*
 * test_device_training.c -- a whole stage learns on every device of the table as it does on the CPU.
 *
 * Five steps of a small GPT-2: forward, backward, the gradients' norm, AdamW. On the isolated device losses and
 * weights are the CPU's bits; on a GPU sums are made in another order, and steps carry that on: losses within 2e-5 in
 * fp32, 5e-3 in bf16 and 1e-3 in fp16, weights within 2e-3, 5e-2 and 1e-2 of what they have moved by. AQ_DEVICES=cuda
 * takes one kind alone; AQ_GPU=required makes a missing GPU a failure.
 */
#include "aqsgd/grad.h"
#include "device_isolated.h"
#include "sample.h"
#include "stage_help.h"

#include <stdio.h>
#include <stdlib.h>

#define AQ_DEVICE(name) #name,
static const char *const kinds[] = {
#include "devices.def"
    "isolated"};
#undef AQ_DEVICE

enum { BLOCKS = 2, CHANNELS = 64, VOCABULARY = 97, SAMPLES = 3, TOKENS = 24, STEPS = 5 };

struct outcome {
    double losses[STEPS];
    float *before, *after; /* weights, on the host */
    uint64_t count;
};

/*
 * How a stage is trained, and how near devices must come. Without dropout layer norms round for what is before them; a
 * head of 64 channels, in 16 bits, is one that a GPU's tensor cores attend to.
 */
static const struct way {
    const char *name;
    enum aq_stage_precision precision;
    uint32_t heads;
    bool recompute;
    uint32_t logits_rows;
    float dropout;
    double loss_limit, weight_limit;
    bool logits_16bit; /* on a GPU */
    bool residual_bf16;
} rounds[] = {{"fp32", AQ_STAGE_FP32, 2, false, 0, 0.1f, 2e-5, 2e-3, false, false},
              {"bf16", AQ_STAGE_BF16, 1, false, 0, 0.1f, 5e-3, 5e-2, false, false},
              {"bf16 undropped, logits in pieces", AQ_STAGE_BF16, 2, false, 32, 0.0f, 5e-3, 5e-2, false, false},
              {"fp16", AQ_STAGE_FP16, 1, false, 0, 0.1f, 1e-3, 1e-2, false, false},
              {"fp32 again, logits in pieces", AQ_STAGE_FP32, 2, true, 32, 0.0f, 2e-5, 2e-3, false, false},
              {"bf16, logits too", AQ_STAGE_BF16, 2, false, 0, 0.0f, 5e-3, 5e-2, true, false},
              {"bf16, logits too, in pieces", AQ_STAGE_BF16, 2, false, 32, 0.0f, 5e-3, 5e-2, true, false},
              {"bf16, logits too, made again", AQ_STAGE_BF16, 2, true, 32, 0.0f, 5e-3, 5e-2, true, false},
              {"fp16, logits too", AQ_STAGE_FP16, 1, false, 0, 0.0f, 1e-3, 1e-2, true, false},
              {"bf16, residual too", AQ_STAGE_BF16, 2, false, 0, 0.0f, 5e-3, 5e-2, false, true},
              {"bf16, residual too, with masks", AQ_STAGE_BF16, 1, true, 0, 0.1f, 5e-3, 5e-2, false, true}};

/* A kind of device that is emulated takes its time: two steps (sample.h). */
static int steps_of(const char *kind)
{
    return strcmp(kind, "cuda") == 0 && !sample_all() ? 2 : STEPS;
}

static void read_back(struct aq_device *device, float *host, const float *from, uint64_t count)
{
    assert_int_equal(aq_device_copy(device, host, from, count * sizeof *host, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
}

static void step(struct aq_device *device, struct aq_stage *stage, struct aq_optimizer *optimizer, uint64_t number,
                 double *loss_out)
{
    const float scale = 1024.0f; /* of the loss: for fp16, and as good for others */
    int32_t tokens[SAMPLES * TOKENS], targets[SAMPLES * TOKENS];
    uint64_t ids[SAMPLES];
    help_tokens(tokens, SAMPLES * TOKENS, number, VOCABULARY);
    help_tokens(targets, SAMPLES * TOKENS, number + 100, VOCABULARY);
    for (uint64_t i = 0; i < SAMPLES; i++)
        ids[i] = number * SAMPLES + i;
    const struct aq_batch batch = help_batch(tokens, targets, ids, SAMPLES, TOKENS);
    const struct aq_stage_input input = {
        .batch = &batch, .seed = 3, .step = number, .loss_factor = scale / (SAMPLES * TOKENS)};
    struct aq_stage_loss loss = {0};
    double norm2 = 0;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &loss, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    memset(tokens, 0x7f, sizeof tokens); /* the caller's again: nobody may read them now */
    assert_int_equal(aq_stage_backward(stage, 0, NULL, NULL, NULL), AQ_OK);
    assert_int_equal(aq_stage_gradient_sum2(stage, &norm2, NULL), AQ_OK);
    assert_int_equal(aq_optimizer_step(optimizer, aq_stage_parameters(stage), aq_stage_gradients(stage), 1e-3f,
                                       (float)(1.0 / fmax((double)scale, sqrt(norm2))), number, NULL),
                     AQ_OK);
    assert_int_equal(aq_stage_parameters_changed(stage, NULL), AQ_OK);
    assert_int_equal(aq_stage_zero_grads(stage, NULL), AQ_OK);
    *loss_out = loss.sum / (double)loss.targets;
}

static void train(struct aq_device *device, const struct way *way, int steps, struct outcome *out)
{
    struct aq_stage_config config = help_config(BLOCKS, way->heads, CHANNELS, VOCABULARY, SAMPLES, TOKENS);
    struct aq_stage *stage = NULL;
    struct aq_optimizer_config adamw;
    struct aq_optimizer *optimizer;
    config.precision = way->precision;
    config.recompute = way->recompute;
    config.logits_rows = way->logits_rows;
    config.logits_16bit = way->logits_16bit;
    config.residual_bf16 = way->residual_bf16;
    config.model.dropout = way->dropout;
    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    assert_int_equal(aq_stage_init(stage, 11), AQ_OK);
    const uint64_t count = out->count = aq_stage_parameter_count(stage);
    aq_optimizer_config_default(&adamw, "adamw");
    adamw.epsilon = 1e-4f; /* a gradient near 0 must not decide a whole step by its sign */
    const struct aq_optimizer_tensor whole = {.count = count};
    assert_int_equal(aq_optimizer_open(device, &adamw, &whole, 1, count, &optimizer), AQ_OK);
    out->before = help_alloc(count * sizeof(float));
    out->after = help_alloc(count * sizeof(float));
    read_back(device, out->before, aq_stage_parameters(stage), count);
    for (uint64_t s = 0; s < (uint64_t)steps; s++)
        step(device, stage, optimizer, s + 1, &out->losses[s]);
    read_back(device, out->after, aq_stage_parameters(stage), count);
    aq_optimizer_close(optimizer);
    aq_stage_close(stage);
}

static void compare(const char *kind, const struct way *way, bool exact, const struct outcome *mine,
                    const struct outcome *truth)
{
    const double loss_limit = way->loss_limit, weight_limit = way->weight_limit;
    double distance = 0, moved = 0;
    for (uint64_t i = 0; i < truth->count; i++) {
        const double far = (double)mine->after[i] - truth->after[i], to = (double)truth->after[i] - truth->before[i];
        distance += far * far;
        moved += to * to;
    }
    distance = sqrt(distance / moved);
    assert_memory_equal(mine->before, truth->before, truth->count * sizeof(float)); /* initial values: everywhere */
    for (int s = 0; s < steps_of(kind); s++) {
        const double off = fabs(mine->losses[s] / truth->losses[s] - 1.0);
        if (exact ? mine->losses[s] != truth->losses[s] : !(off < loss_limit))
            fail_msg("%s: the loss of step %d is %.9g, on the CPU %.9g", kind, s, mine->losses[s], truth->losses[s]);
    }
    if (exact ? distance != 0.0 : !(distance < weight_limit))
        fail_msg("%s: weights are off by %g of what they moved by", kind, distance);
    double off = 0;
    for (int s = 0; s < steps_of(kind); s++)
        off = fmax(off, fabs(mine->losses[s] - truth->losses[s]));
    print_message("%s %s: losses off by %.2g at most, weights by %.2g of their way\n", kind, way->name, off, distance);
}

static void outcome_free(struct outcome *of)
{
    aq_free(of->before);
    aq_free(of->after);
}

/* What a residual stream of bf16 costs: the same device, masks and samples, with one of fp32. */
static void near_fp32_stream(const char *kind, struct aq_device *device, const struct way *way,
                             const struct outcome *mine)
{
    struct outcome wide = {0};
    struct way other = *way;
    other.residual_bf16 = false;
    train(device, &other, steps_of(kind), &wide);
    other.name = "a residual stream of bf16 next to one of fp32";
    other.weight_limit = 0.2;
    assert_true(wide.losses[0] != mine->losses[0]);
    compare(kind, &other, false, mine, &wide);
    outcome_free(&wide);
}

static void run(const char *kind, struct aq_device *cpu, struct aq_device *device)
{
    for (int round = 0; round < (int)(sizeof rounds / sizeof rounds[0]); round++) {
        struct outcome truth = {0}, mine = {0};
        const struct way *way = &rounds[round];
        train(cpu, way, steps_of(kind), &truth);
        train(device, way, steps_of(kind), &mine);
        /* The isolated device's CPU has fp32 logits. */
        compare(kind, way, strcmp(kind, "isolated") == 0 && !way->logits_16bit, &mine, &truth);
        if (way->residual_bf16) near_fp32_stream(kind, device, way, &mine);
        outcome_free(&truth);
        outcome_free(&mine);
    }
}

static int skipped, ran;

static void test_devices_learn_alike(void **state)
{
    (void)state;
    const char *only = getenv("AQ_DEVICES"), *gpu = getenv("AQ_GPU");
    struct aq_device *cpu = help_device(2);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct aq_device *device = NULL;
        if (strcmp(kinds[k], "cpu") == 0 || (only && strcmp(only, kinds[k]) != 0)) continue;
        const struct aq_device_config config = {.kind = kinds[k], .threads = 2};
        const enum aq_status status = aq_device_open(&config, &device);
        if (status == AQ_NODEV && !(gpu && strcmp(gpu, "required") == 0)) {
            skipped++;
            continue;
        }
        assert_int_equal(status, AQ_OK);
        run(kinds[k], cpu, device);
        aq_device_close(device);
        ran++;
    }
    aq_device_close(cpu);
}

int main(void)
{
    isolated_register("isolated");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_devices_learn_alike)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (!failed && ran == 0 && skipped) {
        print_message("skip: no such device on this machine\n");
        return 77;
    }
    return failed;
}
