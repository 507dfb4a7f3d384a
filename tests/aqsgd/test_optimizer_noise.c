/*
 * test_optimizer_noise.c -- kinds that freeze a variance leave parameters alone whose gradients are rounding errors,
 * in tensors of GPT-2's shapes: the key biases are a slice of attn.c_attn.bias.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "optimizer_ranks.h"

/* The attention of a block of GPT-2, and a bias of three pieces (optimizer_fused.h) whose middle one is all noise. */
enum { C = 768, WIDE = 3 * 16384, WARM = 3, STEPS = 9 };
enum { LN_WEIGHT, LN_BIAS, QKV_WEIGHT, QKV_BIAS, PROJECTION_BIAS, WIDE_BIAS, TENSORS };
static struct aq_optimizer_tensor tensors[TENSORS] = {
    [LN_WEIGHT] = {.count = C},
    [LN_BIAS] = {.count = C},
    [QKV_WEIGHT] = {.count = 3 * C * C, .decay = true, .rows = C},
    [QKV_BIAS] = {.count = 3 * C},
    [PROJECTION_BIAS] = {.count = C},
    [WIDE_BIAS] = {.count = WIDE},
};
static uint64_t floats;
static struct ranks ranks;

static const char *const kinds[] = {"onebit_adam", "onebit_lamb", "qadam"};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static int lay_out(void **state)
{
    (void)state;
    for (int t = 0; t < TENSORS; t++) {
        tensors[t].offset = floats;
        floats += tensors[t].count;
    }
    return 0;
}

static bool is_noise(uint64_t i)
{
    const uint64_t bias = i - tensors[QKV_BIAS].offset, wide = i - tensors[WIDE_BIAS].offset; /* others wrap */
    return (bias >= C && bias < 2 * C) || (wide >= WIDE / 3 && wide < WIDE / 3 * 2);
}

/* A gradient that is small, but one: a thousandth of its neighbours'. */
static bool is_small(uint64_t i)
{
    return i - tensors[QKV_BIAS].offset < C / 2;
}

/* Cheap, for there are millions. Noise is `noise` of what its neighbours have. */
static void gradients(uint64_t step, float noise)
{
    for (uint32_t w = 0; w < ranks.W; w++) {
        uint32_t common = (uint32_t)step * 2654435761u, own = common ^ (w + 1) * 40503u << 8;
        for (uint64_t i = 0; i < floats; i++) {
            common = common * 1664525u + 1013904223u;
            own = own * 1664525u + 1013904223u;
            const float value = (float)(int32_t)common * 0x1p-31f + (float)(int32_t)own * 0x1p-31f;
            ranks.gradients[w][i] = 1e-3f * value * (is_noise(i) ? noise : is_small(i) ? 1e-3f : 1.0f);
        }
    }
}

static void open_kind(const char *kind, uint32_t W)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    config.warmup_steps = WARM;
    config.freeze_ratio = 0;
    config.weight_decay = 0;
    if (strcmp(kind, "qadam") == 0) aq_grad_codec_config_default(&config.reduce, "sign");
    ranks_open_shapes(&ranks, &config, W, tensors, TENSORS, floats);
}

static const float *state_of(uint32_t w, const char *name)
{
    return aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, name));
}

/* After the warm-up noise does not move; every other parameter does. */
static void expect_alone(const float *before, uint64_t *count)
{
    uint64_t stuck = 0;
    for (uint64_t i = 0; i < floats; i++) {
        const bool same = ranks.parameters[0][i] == before[i];
        if (is_noise(i) && !same)
            fail_msg("float %u moved by %g", (unsigned)i, (double)(ranks.parameters[0][i] - before[i]));
        stuck += !is_noise(i) && same;
        *count += is_noise(i);
    }
    assert_true(stuck < floats / 1000);
}

static void run_kind(const char *kind, uint32_t W)
{
    static float before[3 * C * C + 6 * C + WIDE];
    uint64_t count = 0;
    open_kind(kind, W);
    assert_true(floats * sizeof *before == sizeof before);
    for (uint64_t step = 1; step <= STEPS; step++) {
        gradients(step, 1e-7f);
        ranks_step(&ranks, 1e-3f, 1.0f, step);
        if (step == WARM) memcpy(before, ranks.parameters[0], sizeof before);
    }
    expect_alone(before, &count);
    assert_int_equal(count, C + WIDE / 3);
    for (uint32_t w = 0; w < W; w++) {
        const float *m = state_of(w, "m"), *error = W > 1 ? state_of(w, "worker_error") : m;
        for (uint64_t i = 0; i < floats; i++)
            if (is_noise(i)) assert_true(m[i] == 0 && error[i] == 0);
    }
    ranks_expect_equal_parameters(&ranks);
    ranks_close(&ranks);
}

static void test_gradients_of_rounding_errors_move_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        run_kind(kinds[k], 2);
        run_kind(kinds[k], 1);
    }
}

/* The border: a millionth of the root mean square of the whole tensor. Its rms is that of v, over all of its parts. */
static void test_the_border_is_a_millionth_of_the_whole_tensor(void **state)
{
    static const float shares[] = {0.5e-6f, 2e-6f};
    (void)state;
    for (int s = 0; s < 2; s++) {
        open_kind("onebit_adam", 1);
        for (uint64_t step = 1; step <= WARM + 1; step++) {
            gradients(step, 0);
            for (uint64_t i = 0; i < floats; i++) /* equal sizes, so that v is known */
                ranks.gradients[0][i] = is_noise(i) ? 0.25f * shares[s] : 0.25f;
            ranks_step(&ranks, 1e-3f, 1.0f, step);
        }
        const float *v = state_of(0, "v");
        for (uint64_t i = 0; i < floats; i++)
            /* Two thirds of the tensor have 0.25: the border is 0.816e-6 of that. */
            assert_true(is_noise(i) ? (v[i] == 0) == (s == 0) : v[i] > 0);
        ranks_close(&ranks);
    }
}

/* A state that was saved by a version without the rule is put right in the first step after it is loaded. */
static void test_a_state_with_noise_is_cleaned_when_it_goes_on(void **state)
{
    (void)state;
    open_kind("onebit_adam", 1);
    for (uint64_t step = 1; step <= WARM; step++) {
        gradients(step, 1e-7f);
        ranks_step(&ranks, 1e-3f, 1.0f, step);
    }
    assert_true(state_of(0, "v")[tensors[QKV_BIAS].offset + C] > 0);
    struct ranks first = ranks;
    open_kind("onebit_adam", 1);
    for (uint32_t i = 0; i < aq_optimizer_state_count(first.optimizers[0]); i++) {
        struct aq_optimizer_state_info info;
        aq_optimizer_state_info(first.optimizers[0], i, &info);
        memcpy(aq_optimizer_state(ranks.optimizers[0], i), aq_optimizer_state(first.optimizers[0], i),
               (size_t)info.count * sizeof(float));
    }
    ranks_close(&first);
    gradients(WARM + 1, 1e-7f);
    ranks_step(&ranks, 1e-3f, 1.0f, WARM + 1);
    for (uint64_t i = 0; i < floats; i++)
        if (is_noise(i)) assert_true(state_of(0, "v")[i] == 0 && ranks.parameters[0][i] == 0);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_of_rounding_errors_move_nothing),
        cmocka_unit_test(test_the_border_is_a_millionth_of_the_whole_tensor),
        cmocka_unit_test(test_a_state_with_noise_is_cleaned_when_it_goes_on),
    };
    return cmocka_run_group_tests(tests, lay_out, NULL);
}
