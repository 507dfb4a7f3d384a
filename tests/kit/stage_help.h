/*
 * stage_help.h -- what the tests of stages share: a device, small models, random batches.
 */
#ifndef STAGE_HELP_H
#define STAGE_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "aqsgd/device_math.h"
#include "stages/stage.h"

static inline struct aq_device *help_device(uint32_t threads)
{
    const struct aq_device_config config = {.kind = "cpu", .threads = threads};
    struct aq_device *device = NULL;
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    return device;
}

static inline struct aq_stage_config help_config(uint32_t blocks, uint32_t heads, uint32_t C, uint32_t V, uint32_t B,
                                                 uint32_t T)
{
    struct aq_stage_config config = {.B = B, .T = T, .slots = 1, .precision = AQ_STAGE_FP32, .pads_vocabulary = true};
    aq_model_config_default(&config.model, "gpt2");
    config.model.blocks = blocks;
    config.model.heads = heads;
    config.model.channels = C;
    config.model.vocabulary = V;
    config.model.context = T;
    config.layer_end = blocks + 2;
    return config;
}

/* Are all values of the first sample at a cut 0? Behind a window its first tokens may have no gradient. */
static inline bool help_cut_zero(const struct aq_model_config *model, uint32_t layer, uint32_t T, const float *values)
{
    struct aq_cut_shape cut;
    assert_int_equal(aq_model_cut(model, layer, T, &cut), AQ_OK);
    uint64_t count = (uint64_t)cut.rows * cut.columns;
    while (count > 0 && values[count - 1] == 0.0f)
        count--;
    return count == 0;
}

/* A batch of texts; tokens or targets may be NULL. */
static inline struct aq_batch help_batch(const int32_t *tokens, const int32_t *targets, const uint64_t *ids,
                                         uint32_t samples, uint32_t T)
{
    return (struct aq_batch){.samples = samples,
                             .sample_ids = ids,
                             .fields = {{"tokens", AQ_FIELD_I32, T, (void *)(uintptr_t)tokens},
                                        {"targets", AQ_FIELD_I32, T, (void *)(uintptr_t)targets}},
                             .field_count = 2};
}

static inline void help_normal(float *x, uint64_t count, uint64_t stream, float std)
{
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, stream, 0);
    for (uint64_t i = 0; i < count; i++) x[i] = std * aq_rng_normal(&key, i);
}

static inline void help_tokens(int32_t *tokens, uint64_t count, uint64_t stream, uint32_t V)
{
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, stream, 1);
    for (uint64_t i = 0; i < count; i++) tokens[i] = (int32_t)aq_rng_below(&key, i, V);
}

/* |x - y| / |y| in the Euclidean norm. */
static inline double help_distance(const float *x, const float *y, uint64_t count)
{
    double difference = 0.0, size = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        difference += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        size += (double)y[i] * y[i];
    }
    return size > 0.0 ? sqrt(difference / size) : sqrt(difference);
}

static inline void *help_alloc(size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(aq_alloc(bytes, &memory), AQ_OK);
    return memory;
}

/* Initial values that are not special: layer norms and biases are not ones and zeroes. */
static inline void help_init(struct aq_stage *stage, uint64_t seed)
{
    assert_int_equal(aq_stage_init(stage, seed), AQ_OK);
    const uint32_t trained = aq_stage_tensor_count(stage), all = trained + aq_stage_frozen_count(stage);
    for (uint32_t i = 0; i < all; i++) {
        struct aq_tensor_info info;
        i < trained ? aq_stage_tensor(stage, i, &info) : aq_stage_frozen(stage, i - trained, &info);
        float *x = help_alloc(info.count * sizeof *x);
        const struct aq_rng_key key = aq_rng_key(seed, AQ_RNG_TEST, aq_digest(info.name, strlen(info.name)), 2);
        assert_int_equal(aq_stage_get(stage, &info, 0, info.count, x), AQ_OK);
        for (uint64_t k = 0; k < info.count; k++) x[k] += 0.1f * aq_rng_normal(&key, k);
        assert_int_equal(aq_stage_put(stage, &info, 0, info.count, x), AQ_OK);
        aq_free(x);
    }
    assert_int_equal(aq_stage_frozen_changed(stage, NULL), AQ_OK);
    assert_int_equal(aq_stage_parameters_changed(stage, NULL), AQ_OK);
}

#endif
