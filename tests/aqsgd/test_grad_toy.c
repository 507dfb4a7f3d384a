/*
 * test_grad_toy.c -- the toy of Lion Cub's appendix C.1: a teacher and a student of two layers, eight clients whose
 * gradients carry symmetric alpha-stable noise, and Lion Cub with sums in lanes. The heavier the tail, the more an
 * absmax scale rounds away, and the more the mean of magnitudes wins.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aqsgd/grad.h"

enum { CLIENTS = 8, IN = 16, HIDDEN = 32, FIRST = IN * HIDDEN, ALL = FIRST + HIDDEN, BATCH = 64, STEPS = 400 };

static const struct aq_optimizer_tensor layers[] = {{.offset = 0, .count = FIRST}, {.offset = FIRST, .count = HIDDEN}};

static struct aq_rng_key key_of(uint64_t a, uint64_t b)
{
    return aq_rng_key(1234, AQ_RNG_TEST, a, b);
}

/* Chambers, Mallows and Stuck 1976; alpha 2 is a Gaussian of variance 2, alpha 1 Cauchy's. */
static double stable(const struct aq_rng_key *key, uint64_t i, double alpha)
{
    const double u = 3.14159265358979 * ((double)aq_rng_uniform(key, 2 * i) - 0.5 + 1e-8);
    const double e = -log((double)aq_rng_uniform(key, 2 * i + 1) + 1e-8);
    if (alpha == 1.0) return tan(u);
    return sin(alpha * u) / pow(cos(u), 1 / alpha) * pow(cos((1 - alpha) * u) / e, (1 - alpha) / alpha);
}

static double output(const float *p, const double *x, double *hidden)
{
    double y = 0;
    for (int h = 0; h < HIDDEN; h++) {
        double sum = 0;
        for (int i = 0; i < IN; i++)
            sum += (double)p[h * IN + i] * x[i];
        hidden[h] = tanh(sum);
        y += (double)p[FIRST + h] * hidden[h];
    }
    return y;
}

static void input(const struct aq_rng_key *key, int sample, double *x)
{
    for (int i = 0; i < IN; i++)
        x[i] = (double)aq_rng_normal(key, (uint64_t)(sample * IN + i));
}

/* Mean squared error over a batch; adds its gradient. */
static double loss_of(const float *student, const float *teacher, struct aq_rng_key key, double *gradient)
{
    double loss = 0, x[IN], hidden[HIDDEN], unused[HIDDEN];
    for (int sample = 0; sample < BATCH; sample++) {
        input(&key, sample, x);
        const double off = output(student, x, hidden) - output(teacher, x, unused);
        loss += off * off / BATCH;
        for (int h = 0; gradient && h < HIDDEN; h++) {
            const double back = 2 * off / BATCH * (double)student[FIRST + h] * (1 - hidden[h] * hidden[h]);
            gradient[FIRST + h] += 2 * off / BATCH * hidden[h];
            for (int i = 0; i < IN; i++)
                gradient[h * IN + i] += back * x[i];
        }
    }
    return loss;
}

static void all_rounds(struct aq_optimizer **optimizers)
{
    for (;;) {
        struct aq_reduce reduce[CLIENTS];
        for (int c = 0; c < CLIENTS; c++)
            assert_int_equal(aq_optimizer_round(optimizers[c], &reduce[c]), AQ_OK);
        if (reduce[0].kind == AQ_REDUCE_NONE) return;
        assert_int_equal(reduce[0].kind, AQ_REDUCE_LANES);
        const size_t bytes = aq_lanes_bytes(reduce[0].count, reduce[0].lane_bits);
        for (int c = 1; c < CLIENTS; c++)
            aq_lanes_add(reduce[0].lanes, reduce[c].lanes, bytes);
        for (int c = 1; c < CLIENTS; c++)
            memcpy(reduce[c].lanes, reduce[0].lanes, bytes);
    }
}

/* The mean loss of the last 50 steps. */
static double train(double alpha, float norm)
{
    static float teacher[ALL], student[CLIENTS][ALL], gradient[CLIENTS][ALL];
    const struct aq_device_config cpu = {.kind = "cpu", .threads = 1};
    struct aq_device *device;
    struct aq_optimizer *optimizers[CLIENTS];
    struct aq_optimizer_config config;
    double last = 0;
    aq_optimizer_config_default(&config, "lioncub");
    aq_grad_codec_config_default(&config.reduce, "lp");
    config.reduce.norm = norm;
    config.lane_bits = 8;
    config.weight_decay = 0;
    assert_int_equal(aq_device_open(&cpu, &device), AQ_OK);
    const struct aq_rng_key first = key_of(0, 1), second = key_of(0, 2);
    for (uint64_t i = 0; i < ALL; i++) {
        teacher[i] = aq_rng_normal(&first, i) * (i < FIRST ? 0.25f : 0.3f);
        for (int c = 0; c < CLIENTS; c++)
            student[c][i] = aq_rng_normal(&second, i) * (i < FIRST ? 0.25f : 0.3f);
    }
    for (uint32_t c = 0; c < CLIENTS; c++) {
        const struct aq_optimizer_group group = {.rank = c, .size = CLIENTS};
        assert_int_equal(aq_optimizer_open_group(device, &config, layers, 2, ALL, &group, &optimizers[c]), AQ_OK);
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (uint64_t c = 0; c < CLIENTS; c++) {
            double exact[ALL] = {0};
            const struct aq_rng_key noise = key_of(step, 100 + c);
            const double loss = loss_of(student[c], teacher, key_of(step, 10 + c), exact);
            if (step > STEPS - 50) last += loss / (50 * CLIENTS);
            for (uint64_t i = 0; i < ALL; i++)
                gradient[c][i] = (float)(exact[i] + 0.02 * stable(&noise, i, alpha));
            assert_int_equal(aq_optimizer_begin(optimizers[c], student[c], gradient[c], 0.003f, 1.0f, step, NULL),
                             AQ_OK);
        }
        all_rounds(optimizers);
    }
    for (int c = 0; c < CLIENTS; c++)
        aq_optimizer_close(optimizers[c]);
    aq_device_close(device);
    return last;
}

static void test_l1_beats_linf_under_heavy_tails(void **state)
{
    (void)state;
    static const double alphas[] = {0.9, 1.2, 2.0};
    double l1[3], linf[3];
    for (int a = 0; a < 3; a++) {
        l1[a] = train(alphas[a], 1.0f);
        linf[a] = train(alphas[a], INFINITY);
        print_message("alpha %.1f: L1 %.4f, Linf %.4f\n", alphas[a], l1[a], linf[a]);
    }
    assert_true(l1[0] < 0.75 * linf[0]);
    assert_true(l1[1] < 0.95 * linf[1]);
    assert_true(l1[0] / linf[0] < l1[1] / linf[1] && l1[1] / linf[1] < l1[2] / linf[2]);
    assert_true(l1[2] < 1.1 * linf[2]); /* a Gaussian's largest value is no outlier: neither is better */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_l1_beats_linf_under_heavy_tails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
