/*
 * test_optimizer.c -- AdamW and SGD against a plain version in double and against PyTorch's numbers; learning rates.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aqsgd/grad.h"
#include "data_files.h"

static struct aq_device *device;

/* More than one piece of work of a device, tails that no vector fills, a gap that belongs to no tensor. */
enum { FLOATS = 150011, GAP = 1003, GAP_END = 1024, STEPS = 12 };
static const struct aq_optimizer_tensor tensors[] = {
    {.offset = 0, .count = 1000, .decay = true},
    {.offset = 1000, .count = 3, .decay = false},
    {.offset = GAP_END, .count = 70000, .decay = true},
    {.offset = GAP_END + 70000, .count = 0, .decay = false},
    {.offset = GAP_END + 70000, .count = FLOATS - GAP_END - 70000, .decay = true},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

static float parameters[FLOATS], gradients[FLOATS];
static double true_parameters[FLOATS], true_m[FLOATS], true_v[FLOATS];

static bool is_in(uint64_t i, bool *decay)
{
    for (int t = 0; t < TENSORS; t++) {
        *decay = tensors[t].decay;
        if (i >= tensors[t].offset && i - tensors[t].offset < tensors[t].count) return true;
    }
    return false;
}

static void fill_parameters(void)
{
    struct aq_rng_key key = aq_rng_key(51, AQ_RNG_TEST, 0, 0);
    for (uint64_t i = 0; i < FLOATS; i++) {
        parameters[i] = aq_rng_normal(&key, i);
        true_parameters[i] = (double)parameters[i];
        true_m[i] = true_v[i] = 0;
    }
}

/* Gradients of very different sizes; some are zero at every step. */
static void fill_gradients(uint64_t step)
{
    struct aq_rng_key key = aq_rng_key(52, AQ_RNG_TEST, step, 0);
    for (uint64_t i = 0; i < FLOATS; i++)
        gradients[i] = i % 97 == 0 ? 0.0f : ldexpf(aq_rng_normal(&key, i), -(int)(i % 23));
}

static void adamw_plainly(const struct aq_optimizer_config *c, double lr, double scale, uint64_t step)
{
    for (uint64_t i = 0; i < FLOATS; i++) {
        bool decay;
        if (!is_in(i, &decay)) continue;
        double g = (double)gradients[i] * scale, b1 = (double)c->beta1, b2 = (double)c->beta2;
        true_m[i] = b1 * true_m[i] + (1 - b1) * g;
        true_v[i] = b2 * true_v[i] + (1 - b2) * g * g;
        double m = true_m[i] / (1 - pow(b1, (double)step)), v = true_v[i] / (1 - pow(b2, (double)step));
        if (decay) true_parameters[i] -= lr * (double)c->weight_decay * true_parameters[i];
        true_parameters[i] -= lr * m / (sqrt(v) + (double)c->epsilon);
    }
}

static void sgd_plainly(const struct aq_optimizer_config *c, double lr, double scale, uint64_t step)
{
    (void)step;
    for (uint64_t i = 0; i < FLOATS; i++) {
        bool decay;
        if (!is_in(i, &decay)) continue;
        true_m[i] = (double)c->momentum * true_m[i] + (double)gradients[i] * scale;
        if (decay) true_parameters[i] -= lr * (double)c->weight_decay * true_parameters[i];
        true_parameters[i] -= lr * true_m[i];
    }
}

static struct aq_optimizer *open_optimizer(const struct aq_optimizer_config *config)
{
    struct aq_optimizer *optimizer = NULL;
    assert_int_equal(aq_optimizer_open(device, config, tensors, TENSORS, FLOATS, &optimizer), AQ_OK);
    return optimizer;
}

/*
 * Twelve steps with a moving rate and scale. A step is at most about lr long, and is computed in fp32 from values
 * near 1: rounding of the parameter itself is 6e-8 of it a step, that of the update some 1e-6 of lr.
 */
static void expect_as_plainly(const struct aq_optimizer_config *config,
                              void (*plainly)(const struct aq_optimizer_config *, double, double, uint64_t))
{
    struct aq_optimizer *optimizer = open_optimizer(config);
    fill_parameters();
    for (uint64_t step = 1; step <= STEPS; step++) {
        float lr = 0.01f / (float)step, scale = step % 3 ? 1.0f : 0.25f;
        fill_gradients(step);
        assert_int_equal(aq_optimizer_step(optimizer, parameters, gradients, lr, scale, step, NULL), AQ_OK);
        plainly(config, (double)lr, (double)scale, step);
        for (uint64_t i = 0; i < FLOATS; i++) {
            double allowed = (double)step * (1.2e-7 * fabs(true_parameters[i]) + 2e-8);
            double error = fabs((double)parameters[i] - true_parameters[i]);
            if (!(error <= allowed)) fail_msg("step %d, float %d: off by %g", (int)step, (int)i, error);
        }
    }
    for (uint64_t i = GAP; i < GAP_END; i++)
        assert_true((double)parameters[i] == true_parameters[i]);
    aq_optimizer_close(optimizer);
}

/* In the same pass: the same parameters and state, gradients that are 0, and copies that are rounded as apart. */
static void test_adamw_may_clear_and_round_on_the_way(void **state)
{
    (void)state;
    enum { TAIL = FLOATS - 1 };
    static float alone[FLOATS];
    static uint16_t rounded[FLOATS];
    static const enum aq_element types[] = {AQ_F32, AQ_BF16, AQ_F16};
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "adamw");
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        struct aq_optimizer *apart = open_optimizer(&config), *with = open_optimizer(&config);
        struct aq_optimizer_ending ending = {.gradients = gradients, .type = types[t]};
        struct aq_reduce nothing;
        if (types[t] != AQ_F32) ending.rounded = rounded;
        fill_parameters();
        memcpy(alone, parameters, sizeof alone);
        memset(rounded, 0xA5, sizeof rounded);
        for (uint64_t step = 1; step <= 3; step++) {
            fill_gradients(step);
            gradients[GAP] = 7.0f;
            assert_int_equal(aq_optimizer_step(apart, alone, gradients, 0.01f, 0.5f, step, NULL), AQ_OK);
            assert_int_equal(aq_optimizer_begin(with, parameters, gradients, 0.01f, 0.5f, step, NULL), AQ_OK);
            assert_true(aq_optimizer_ends(with, &ending));
            assert_int_equal(aq_optimizer_round(with, &nothing), AQ_OK);
            assert_memory_equal(alone, parameters, sizeof alone);
            for (uint64_t i = 0; i < FLOATS; i++) {
                bool decay;
                const bool in = is_in(i, &decay);
                const uint16_t want = types[t] == AQ_F16    ? aq_half_from_float(alone[i])
                                      : types[t] == AQ_BF16 ? aq_bfloat_from_float(alone[i])
                                                            : 0xA5A5;
                if (in) assert_true(gradients[i] == 0.0f);
                assert_int_equal(rounded[i], in ? want : 0xA5A5);
            }
            assert_true(gradients[GAP] == 7.0f && rounded[TAIL] != 0);
        }
        assert_memory_equal(aq_optimizer_state(apart, 1), aq_optimizer_state(with, 1), sizeof alone);
        aq_optimizer_close(apart);
        aq_optimizer_close(with);
    }
}

/* Other kinds, and other versions of the parameters, whose last change comes later, leave it to the caller. */
static void test_who_does_not_end_says_so(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, i ? "adamw" : "sgd");
        config.predict = i;
        struct aq_optimizer *optimizer = open_optimizer(&config);
        const struct aq_optimizer_ending ending = {.gradients = gradients};
        struct aq_reduce nothing;
        fill_parameters();
        fill_gradients(1);
        assert_int_equal(aq_optimizer_versions_begin(optimizer, parameters, NULL), AQ_OK);
        assert_int_equal(aq_optimizer_begin(optimizer, parameters, gradients, 0.01f, 1.0f, 1, NULL), AQ_OK);
        assert_false(aq_optimizer_ends(optimizer, &ending));
        assert_int_equal(aq_optimizer_round(optimizer, &nothing), AQ_OK);
        assert_true(gradients[1] != 0.0f);
        aq_optimizer_close(optimizer);
    }
}

static void test_adamw_every_step_as_in_double(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "adamw");
    config.weight_decay = 0.1f;
    expect_as_plainly(&config, adamw_plainly);
    config.beta1 = 0;
    config.beta2 = 0.95f;
    config.epsilon = 1e-6f;
    config.weight_decay = 0;
    expect_as_plainly(&config, adamw_plainly);
}

static void test_sgd_every_step_as_in_double(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "sgd");
    config.weight_decay = 0.1f;
    expect_as_plainly(&config, sgd_plainly);
    config.momentum = 0;
    expect_as_plainly(&config, sgd_plainly);
}

enum { PUBLISHED_FLOATS = 6, PUBLISHED_STEPS = 5 };

static void expect_published(const struct aq_optimizer_config *config,
                             const float expected[PUBLISHED_STEPS][PUBLISHED_FLOATS])
{
    const struct aq_optimizer_tensor all = {.offset = 0, .count = PUBLISHED_FLOATS, .decay = true};
    struct aq_optimizer *optimizer;
    float p[PUBLISHED_FLOATS], g[PUBLISHED_FLOATS];
    assert_int_equal(aq_optimizer_open(device, config, &all, 1, PUBLISHED_FLOATS, &optimizer), AQ_OK);
    for (int i = 0; i < PUBLISHED_FLOATS; i++)
        p[i] = (float)(i * 37 % 17 - 8) / 8;
    for (int step = 1; step <= PUBLISHED_STEPS; step++) {
        for (int i = 0; i < PUBLISHED_FLOATS; i++)
            g[i] = (float)((i * 29 + step * 13) % 23 - 11) / 64;
        assert_int_equal(aq_optimizer_step(optimizer, p, g, 1e-2f, 1.0f, (uint64_t)step, NULL), AQ_OK);
        for (int i = 0; i < PUBLISHED_FLOATS; i++) {
            float error = fabsf(p[i] - expected[step - 1][i]);
            if (error > 3e-7f) fail_msg("step %d, float %d: %.9g", step, i, (double)p[i]);
        }
    }
    aq_optimizer_close(optimizer);
}

/* torch.optim.AdamW(lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1) of PyTorch 1.13.0, on a CPU. */
static void test_adamw_as_pytorch(void **state)
{
    (void)state;
    static const float expected[PUBLISHED_STEPS][PUBLISHED_FLOATS] = {
        {-1.00900006f, -0.634374976f, -0.239749998f, 0.134875f, 0.489500016f, 0.864125013f},
        {-1.00239599f, -0.638435304f, -0.236411184f, 0.129536808f, 0.493212372f, 0.857423544f},
        {-1.00100923f, -0.645085454f, -0.230803683f, 0.125385091f, 0.491315246f, 0.858633876f},
        {-0.997052073f, -0.650816858f, -0.229830906f, 0.126903474f, 0.491978914f, 0.858644068f},
        {-0.997281194f, -0.651691973f, -0.227803305f, 0.127027422f, 0.488672584f, 0.861080706f},
    };
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "adamw");
    config.weight_decay = 0.1f;
    expect_published(&config, expected);
}

/* torch.optim.SGD(lr=1e-2, momentum=0.9) of PyTorch 1.13.0, on a CPU. */
static void test_sgd_as_pytorch(void **state)
{
    (void)state;
    static const float expected[PUBLISHED_STEPS][PUBLISHED_FLOATS] = {
        {-1.00031245f, -0.626250029f, -0.248593748f, 0.125468746f, 0.499531239f, 0.873593748f},
        {-0.999343693f, -0.6270625f, -0.247953117f, 0.124328122f, 0.500203133f, 0.872484386f},
        {-0.999253094f, -0.629512489f, -0.246439055f, 0.123301558f, 0.49987033f, 0.873204708f},
        {-0.998390257f, -0.631873727f, -0.246170148f, 0.123940155f, 0.500195801f, 0.873540461f},
        {-0.998863697f, -0.632592618f, -0.245459378f, 0.124046139f, 0.499082476f, 0.875092685f},
    };
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "sgd");
    expect_published(&config, expected);
}

static const char *const kinds[] = {"adamw", "sgd"};

/* Steps from..to of a run; the state is the optimizer's. */
static void run_steps(struct aq_optimizer *optimizer, float *p, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step <= to; step++) {
        fill_gradients(step);
        assert_int_equal(aq_optimizer_step(optimizer, p, gradients, 0.01f, 0.5f, step, NULL), AQ_OK);
    }
}

static void test_every_kind_resumes_from_its_state_bit_for_bit(void **state)
{
    (void)state;
    static float resumed[FLOATS];
    for (int k = 0; k < 2; k++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, kinds[k]);
        struct aq_optimizer *first = open_optimizer(&config), *second = open_optimizer(&config);
        assert_int_equal(aq_optimizer_state_count(first), aq_optimizer_state_floats(&config));
        assert_true(aq_optimizer_state_count(first) > 0);
        fill_parameters();
        run_steps(first, parameters, 1, 3);
        memcpy(resumed, parameters, sizeof resumed);
        for (uint32_t i = 0; i < aq_optimizer_state_count(first); i++) {
            assert_true(strlen(aq_optimizer_state_name(first, i)) > 0);
            memcpy(aq_optimizer_state(second, i), aq_optimizer_state(first, i), sizeof resumed);
        }
        run_steps(first, parameters, 4, 6);
        run_steps(second, resumed, 4, 6);
        assert_memory_equal(parameters, resumed, sizeof resumed);
        aq_optimizer_close(first);
        aq_optimizer_close(second);
    }
}

static void test_every_kind_rate_zero_changes_no_parameter(void **state)
{
    (void)state;
    static float before[FLOATS];
    for (int k = 0; k < 2; k++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, kinds[k]);
        struct aq_optimizer *optimizer = open_optimizer(&config);
        fill_parameters();
        fill_gradients(1);
        memcpy(before, parameters, sizeof before);
        assert_int_equal(aq_optimizer_step(optimizer, parameters, gradients, 0.0f, 1.0f, 1, NULL), AQ_OK);
        assert_memory_equal(before, parameters, sizeof before);
        assert_int_equal(aq_optimizer_step(optimizer, parameters, gradients, 0.1f, 1.0f, 0, NULL), AQ_INVAL);
        assert_int_equal(aq_optimizer_step(optimizer, parameters, gradients, NAN, 1.0f, 1, NULL), AQ_INVAL);
        assert_int_equal(aq_optimizer_step(optimizer, parameters, gradients, 0.1f, INFINITY, 1, NULL), AQ_INVAL);
        assert_memory_equal(before, parameters, sizeof before);
        aq_optimizer_close(optimizer);
    }
}

static void expect_config_fails(const char *kind, size_t offset, float value, const char *field)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    memcpy((char *)&config + offset, &value, sizeof value);
    aq_error_clear();
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), field));
}

static void test_config_bad_value_names_the_field(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    expect_config_fails("adamw", offsetof(struct aq_optimizer_config, beta1), 1.0f, "beta1");
    expect_config_fails("adamw", offsetof(struct aq_optimizer_config, beta1), -0.1f, "beta1");
    expect_config_fails("adamw", offsetof(struct aq_optimizer_config, beta2), 1.0f, "beta2");
    expect_config_fails("adamw", offsetof(struct aq_optimizer_config, beta2), NAN, "beta2");
    expect_config_fails("adamw", offsetof(struct aq_optimizer_config, epsilon), 0.0f, "epsilon");
    expect_config_fails("adamw", offsetof(struct aq_optimizer_config, weight_decay), -1.0f, "weight_decay");
    expect_config_fails("sgd", offsetof(struct aq_optimizer_config, weight_decay), INFINITY, "weight_decay");
    expect_config_fails("sgd", offsetof(struct aq_optimizer_config, momentum), 1.0f, "momentum");
    aq_optimizer_config_default(&config, "lions");
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    assert_int_equal(aq_optimizer_state_floats(&config), 0);
    aq_optimizer_config_default(&config, NULL);
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    aq_optimizer_config_default(&config, "sgd");
    config.momentum = 0;
    assert_int_equal(aq_optimizer_config_check(&config), AQ_OK);
    assert_int_equal(aq_optimizer_state_floats(&config), 0);
}

static void test_open_tensors_out_of_order_or_place_inval(void **state)
{
    (void)state;
    static const struct aq_optimizer_tensor bad[][2] = {
        {{.offset = 0, .count = 10}, {.offset = 9, .count = 1}},
        {{.offset = 10, .count = 10}, {.offset = 0, .count = 10}},
        {{.offset = 0, .count = 10}, {.offset = 10, .count = 91}},
        {{.offset = 0, .count = 10}, {.offset = 101, .count = 0}},
        {{.offset = 0, .count = 10}, {.offset = 50, .count = UINT64_MAX}},
        {{.offset = 0, .count = UINT64_MAX}, {.offset = 50, .count = 1}},
    };
    struct aq_optimizer_config config;
    struct aq_optimizer *optimizer = NULL;
    uint64_t used = aq_memory_used();
    aq_optimizer_config_default(&config, "adamw");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(aq_optimizer_open(device, &config, bad[i], 2, 100, &optimizer), AQ_INVAL);
    assert_int_equal(aq_optimizer_open(device, &config, bad[0], 1, UINT64_MAX, &optimizer), AQ_INVAL);
    for (uint64_t n = 1; n <= 4; n++) {
        aq_memory_fail_at(n);
        assert_int_equal(aq_optimizer_open(device, &config, bad[0], 1, 100, &optimizer), AQ_NOMEM);
        aq_memory_fail_at(0);
        assert_int_equal(aq_memory_used(), used);
    }
    assert_null(optimizer);
    aq_optimizer_close(NULL);
}

static float rate_at(float peak, uint64_t step, uint64_t warmup, uint64_t total, int decay)
{
    const struct aq_lr_schedule schedule = {.decay = (enum aq_lr_decay)decay,
                                            .peak = peak,
                                            .warmup = warmup,
                                            .total = total,
                                            .every = 20,
                                            .rate = 0.25f,
                                            .power = 0.5f};
    return aq_learning_rate(&schedule, step);
}

static void expect_rate(uint64_t step, uint64_t warmup, uint64_t total, int decay, double expected)
{
    const double rate = (double)rate_at(0.5f, step, warmup, total, decay);
    if (fabs(rate - expected) > 1e-7) fail_msg("step %d: %.9g, not %.9g", (int)step, rate, expected);
}

static void test_learning_rate_corners(void **state)
{
    (void)state;
    for (int d = AQ_DECAY_CONSTANT; d <= AQ_DECAY_EXPONENTIAL; d++) {
        expect_rate(1, 10, 110, d, 0.05);
        expect_rate(10, 10, 110, d, 0.5);
        expect_rate(11, 10, 110, d, 0.5);
        expect_rate(1, 0, 1, d, 0.5); /* the only step of a job learns */
        expect_rate(3, 5, 3, d, 0.3); /* a job that ends while it warms up */
        expect_rate(10, 10, 10, d, 0.5);
        if (aq_lr_decay_paces((enum aq_lr_decay)d)) continue;
        expect_rate(111, 10, 110, d, d == AQ_DECAY_CONSTANT ? 0.5 : 0);
        expect_rate(11, 10, 10, d, d == AQ_DECAY_CONSTANT ? 0.5 : 0);
        expect_rate(UINT64_MAX, 10, 110, d, d == AQ_DECAY_CONSTANT ? 0.5 : 0);
    }
    expect_rate(61, 10, 110, AQ_DECAY_LINEAR, 0.25);
    expect_rate(110, 10, 110, AQ_DECAY_LINEAR, 0.005);
    expect_rate(61, 10, 110, AQ_DECAY_COSINE, 0.25);
    expect_rate(36, 10, 110, AQ_DECAY_COSINE, 0.25 * (1 + sqrt(0.5)));
    expect_rate(110, 10, 110, AQ_DECAY_COSINE, 0.25 * (1 + cos(0.99 * acos(-1))));
    expect_rate(110, 10, 110, AQ_DECAY_CONSTANT, 0.5);
    for (int d = AQ_DECAY_LINEAR; d <= AQ_DECAY_POLYNOMIAL; d++) {
        for (uint64_t step = 12; step <= 111; step++)
            assert_true(rate_at(1, step, 10, 110, d) < rate_at(1, step - 1, 10, 110, d));
    }
    expect_rate(61, 10, 110, AQ_DECAY_POLYNOMIAL, 0.5 * sqrt(0.5));
    expect_rate(30, 10, 110, AQ_DECAY_STEP, 0.5);
    expect_rate(31, 10, 110, AQ_DECAY_STEP, 0.125);
    expect_rate(51, 10, 110, AQ_DECAY_STEP, 0.03125);
    expect_rate(21, 10, 110, AQ_DECAY_EXPONENTIAL, 0.25);
    expect_rate(31, 10, 110, AQ_DECAY_EXPONENTIAL, 0.125);
    assert_true(rate_at(1, UINT64_MAX, 10, 110, AQ_DECAY_STEP) == 0.0f); /* nothing overflows */
}

static void test_learning_rate_ends_at_the_least(void **state)
{
    (void)state;
    struct aq_lr_schedule schedule = {
        .peak = 1, .least = 0.25f, .warmup = 10, .total = 110, .every = 20, .rate = 0.5f, .power = 2};
    for (int d = AQ_DECAY_LINEAR; d <= AQ_DECAY_EXPONENTIAL; d++) {
        schedule.decay = (enum aq_lr_decay)d;
        assert_true(aq_learning_rate(&schedule, 11) == 1.0f);
        for (uint64_t step = 11; step <= 200; step++)
            assert_true(aq_learning_rate(&schedule, step) >= 0.25f);
    }
    schedule.decay = AQ_DECAY_LINEAR;
    assert_true(aq_learning_rate(&schedule, 61) == 0.625f && aq_learning_rate(&schedule, 111) == 0.25f);
    schedule.decay = AQ_DECAY_STEP;
    assert_true(aq_learning_rate(&schedule, 31) == 0.625f);
}

/* 1-bit LAMB, section 5: "starts from 1e-3, exponentially increases to 12e-3 as a warmup in the first 450 steps". */
static void test_learning_rate_warms_up_exponentially(void **state)
{
    (void)state;
    const struct aq_lr_schedule schedule = {.decay = AQ_DECAY_STEP,
                                            .peak = 12e-3f,
                                            .from = 1e-3f,
                                            .warmup = 450,
                                            .total = 5993,
                                            .every = 250,
                                            .rate = 0.9f};
    for (uint64_t step = 1; step <= 450; step++) {
        const double expected = 1e-3 * exp(log(12.0) * (double)step / 450);
        assert_true(fabs((double)aq_learning_rate(&schedule, step) - expected) < 1e-6 * expected);
    }
    assert_true(aq_learning_rate(&schedule, 450) == 12e-3f && aq_learning_rate(&schedule, 451) == 12e-3f);
    assert_true(fabsf(aq_learning_rate(&schedule, 225) - 3.4641016e-3f) < 1e-8f); /* the geometric middle */
    assert_true(fabsf(aq_learning_rate(&schedule, 701) - 0.9f * 12e-3f) < 1e-8f);
}

static int open_device(void **state)
{
    (void)state;
    data_be_quiet();
    const struct aq_device_config config = {.kind = "cpu", .threads = 2};
    return aq_device_open(&config, &device) != AQ_OK;
}

static int close_device(void **state)
{
    (void)state;
    aq_device_close(device);
    return 0;
}

static void test_what_a_gpu_has_no_kernels_for_is_refused(void **state)
{
    (void)state;
    char why[AQ_OPTIMIZER_WHY_BYTES];
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "adamw");
    aq_grad_codec_config_default(&config.reduce, "lp");
    config.reduce.norm = 2.0f;
    assert_int_equal(aq_optimizer_config_check_device(&config, why), AQ_OK);
    aq_grad_codec_config_default(&config.reduce, "topk");
    assert_int_equal(aq_optimizer_config_check_device(&config, why), AQ_NODEV);
    assert_non_null(strstr(why, "topk has no kernels for a GPU"));
    assert_int_equal(aq_optimizer_config_check_device(&config, NULL), AQ_NODEV);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_gpu_has_no_kernels_for_is_refused),
        cmocka_unit_test(test_adamw_every_step_as_in_double),
        cmocka_unit_test(test_adamw_may_clear_and_round_on_the_way),
        cmocka_unit_test(test_who_does_not_end_says_so),
        cmocka_unit_test(test_sgd_every_step_as_in_double),
        cmocka_unit_test(test_adamw_as_pytorch),
        cmocka_unit_test(test_sgd_as_pytorch),
        cmocka_unit_test(test_every_kind_resumes_from_its_state_bit_for_bit),
        cmocka_unit_test(test_every_kind_rate_zero_changes_no_parameter),
        cmocka_unit_test(test_config_bad_value_names_the_field),
        cmocka_unit_test(test_open_tensors_out_of_order_or_place_inval),
        cmocka_unit_test(test_learning_rate_corners),
        cmocka_unit_test(test_learning_rate_ends_at_the_least),
        cmocka_unit_test(test_learning_rate_warms_up_exponentially),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
