/*
 * test_optimizer_delay.c -- outer_delay: rounds against the formula of optimizer_outer.c, bit for bit, whose inner
 * steps are those of optimizers that are alone; when a mean comes changes no bit; void steps; what is not finite;
 * states; what is refused.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "optimizer_ranks.h"

enum { N = RANK_FLOATS, LAST = 22, W_MAX = 6 };

static struct aq_optimizer_config delay_config(const char *kind, uint32_t every, uint32_t delay, float momentum)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    config.outer_every = every;
    config.outer_delay = delay;
    config.outer_lr = 0.7f;
    config.outer_momentum = momentum;
    config.total_steps = LAST;
    return config;
}

/* The ranks' inner optimizers, each of a group of one; the outer weights; and what each had at the round's end. */
struct reference {
    struct ranks alone[W_MAX];
    float outer[N], momentum[N], end[W_MAX][N];
    bool pending;
    uint32_t W;
    struct aq_optimizer_config config;
};

static void reference_open(struct reference *reference, const struct aq_optimizer_config *config, uint32_t W)
{
    struct aq_optimizer_config own = *config;
    own.outer_every = own.outer_delay = 0;
    *reference = (struct reference){.W = W, .config = *config};
    for (uint32_t w = 0; w < W; w++)
        ranks_open(&reference->alone[w], &own, 1);
    memcpy(reference->outer, reference->alone[0].parameters[0], sizeof reference->outer);
}

static void reference_close(struct reference *reference)
{
    for (uint32_t w = 0; w < reference->W; w++)
        ranks_close(&reference->alone[w]);
}

/* X = OuterOpt(X, mean of X - e), in the order of the ranks. */
static void reference_outer(struct reference *reference)
{
    const float mu = reference->config.outer_momentum;
    for (uint64_t i = 0; i < N; i++) {
        if (!ranks_is_in(i)) continue;
        float d = reference->outer[i] - reference->end[0][i];
        for (uint32_t w = 1; w < reference->W; w++)
            d += reference->outer[i] - reference->end[w][i];
        d *= 1.0f / (float)reference->W;
        reference->momentum[i] = fmaf(mu, reference->momentum[i], d);
        const float direction = mu > 0 ? fmaf(mu, reference->momentum[i], d) : d;
        reference->outer[i] = fmaf(-reference->config.outer_lr, direction, reference->outer[i]);
    }
}

/* x = X + (x - e). */
static void reference_add(struct reference *reference)
{
    for (uint32_t w = 0; w < reference->W; w++)
        for (uint64_t i = 0; i < N; i++)
            if (ranks_is_in(i))
                reference->alone[w].parameters[0][i] =
                    reference->outer[i] + (reference->alone[w].parameters[0][i] - reference->end[w][i]);
    reference->pending = false;
}

static void reference_step(struct reference *reference, const struct ranks *ranks, uint64_t step)
{
    const struct aq_optimizer_config *config = &reference->config;
    for (uint32_t w = 0; w < reference->W; w++) {
        memcpy(reference->alone[w].gradients[0], ranks->gradients[w], N * sizeof(float));
        ranks_step(&reference->alone[w], 0.01f, 1.0f, step);
    }
    const bool last = step == LAST;
    if (reference->pending && (last || step % config->outer_every == config->outer_delay)) reference_add(reference);
    if (!last && step % config->outer_every != 0) return;
    for (uint32_t w = 0; w < reference->W; w++)
        memcpy(reference->end[w], reference->alone[w].parameters[0], sizeof reference->end[w]);
    reference_outer(reference);
    reference->pending = true;
    if (last) reference_add(reference);
}

static void expect_same(const float *x, const float *y, const char *what, uint64_t step)
{
    for (uint64_t i = 0; i < N; i++)
        if (ranks_is_in(i) && memcmp(&x[i], &y[i], sizeof *x) != 0)
            fail_msg("step %llu, %s: float %llu is %.9g, must be %.9g", (unsigned long long)step, what,
                     (unsigned long long)i, (double)x[i], (double)y[i]);
}

static void expect_rounds(const char *kind, uint32_t W, uint32_t every, uint32_t delay, float momentum)
{
    const struct aq_optimizer_config config = delay_config(kind, every, delay, momentum);
    static struct reference reference;
    struct ranks ranks;
    ranks_open(&ranks, &config, W);
    ranks.late = true;
    reference_open(&reference, &config, W);
    for (uint64_t step = 1; step <= LAST; step++) {
        ranks_gradients(&ranks, 41, step);
        reference_step(&reference, &ranks, step);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        assert_int_equal(ranks.asked, step % every == 0 || step == LAST ? 1 : 0);
        for (uint32_t w = 0; w < W; w++)
            expect_same(ranks.parameters[w], reference.alone[w].parameters[0], "own weights", step);
        if (step < LAST) continue;
        ranks_expect_equal_parameters(&ranks);
        expect_same(ranks.parameters[0], reference.outer, "outer weights", step);
    }
    reference_close(&reference);
    ranks_close(&ranks);
}

static void test_rounds_are_those_of_the_formula(void **state)
{
    (void)state;
    static const char *const inner[] = {"adamw", "sgd", "lamb", "lion"};
    for (int k = 0; k < 4; k++)
        for (uint32_t delay = 1; delay < 4; delay++)
            expect_rounds(inner[k], 2 + delay, 4, delay, delay == 2 ? 0.0f : 0.9f);
    expect_rounds("adamw", 2, 5, 4, 0.9f); /* the last round of 2 steps ends before the one before is due */
    expect_rounds("adamw", 6, 2, 1, 0.9f);
    expect_rounds("sgd", 3, 1000, 7, 0.5f); /* the only round is the last one */
}

/*
 * Means that come at once, when they are waited for, or when somebody looks: one run. The last one has attempts that
 * are taken back (reduce.patience): at the round's end, and again after more steps.
 */
static void test_when_a_mean_comes_changes_no_bit(void **state)
{
    (void)state;
    enum { W = 3, EVERY = 5, RUNS = 4 };
    for (uint32_t c = 0; aq_grad_codec_kind(c); c++) {
        struct aq_optimizer_config config = delay_config("adamw", EVERY, 3, c % 2 ? 0.9f : 0.0f);
        struct ranks runs[RUNS];
        aq_grad_codec_config_default(&config.reduce, aq_grad_codec_kind(c));
        aq_error_clear();
        if (aq_optimizer_config_check(&config) != AQ_OK) continue;
        for (int r = 0; r < RUNS; r++) {
            config.retries = r == 3;
            ranks_open(&runs[r], &config, W);
            runs[r].late = r > 0;
            runs[r].again = r == 3;
        }
        for (uint64_t step = 1; step <= LAST; step++) {
            for (int r = 0; r < RUNS; r++) {
                ranks_gradients(&runs[r], 46, step);
                ranks_step(&runs[r], 0.01f, 1.0f, step);
            }
            if (step % 7 == 6 || step % EVERY == 0) ranks_settle(&runs[2]); /* also after the outer step, and twice */
            for (uint32_t w = 0; w < W; w++)
                for (int r = 1; r < RUNS; r++)
                    assert_memory_equal(runs[0].parameters[w], runs[r].parameters[w], N * sizeof(float));
        }
        for (uint32_t s = 0; s < aq_optimizer_state_count(runs[0].optimizers[0]); s++) {
            struct aq_optimizer_state_info info;
            aq_optimizer_state_info(runs[0].optimizers[0], s, &info);
            for (int r = 1; r < RUNS; r++)
                assert_memory_equal(aq_optimizer_state(runs[0].optimizers[0], s),
                                    aq_optimizer_state(runs[r].optimizers[0], s), info.count * sizeof(float));
        }
        for (int r = 0; r < RUNS; r++)
            ranks_close(&runs[r]);
    }
}

/* Copies parameters and all state of every rank into fresh optimizers: what a checkpoint does. */
static void resume(const struct ranks *from, struct ranks *to, const struct aq_optimizer_config *config)
{
    ranks_open(to, config, from->W);
    to->late = from->late;
    for (uint32_t w = 0; w < from->W; w++) {
        memcpy(to->parameters[w], from->parameters[w], N * sizeof(float));
        for (uint32_t s = 0; s < aq_optimizer_state_count(from->optimizers[w]); s++) {
            struct aq_optimizer_state_info info;
            aq_optimizer_state_info(from->optimizers[w], s, &info);
            memcpy(aq_optimizer_state(to->optimizers[w], s), aq_optimizer_state(from->optimizers[w], s),
                   info.count * sizeof(float));
        }
    }
}

/* State that was saved anywhere, also while a mean travels, continues bit for bit; shown are the outer weights. */
static void test_state_of_any_step_continues_bit_for_bit(void **state)
{
    (void)state;
    enum { W = 3, EVERY = 5 };
    const struct aq_optimizer_config config = delay_config("adamw", EVERY, 3, 0.9f);
    for (uint64_t at = 1; at < LAST; at++) {
        struct ranks whole, again;
        ranks_open(&whole, &config, W);
        whole.late = true;
        for (uint64_t step = 1; step <= LAST; step++) {
            ranks_gradients(&whole, 47, step);
            ranks_step(&whole, 0.01f, 1.0f, step);
            if (step == at) {
                ranks_settle(&whole);
                for (uint32_t w = 0; w < W; w++)
                    assert_int_equal(aq_optimizer_show(whole.optimizers[w], whole.parameters[w], NULL), AQ_OK);
                ranks_expect_equal_parameters(&whole);
                resume(&whole, &again, &config);
                for (uint32_t w = 0; w < W; w++) {
                    assert_int_equal(aq_optimizer_hide(whole.optimizers[w], whole.parameters[w], NULL), AQ_OK);
                    assert_int_equal(aq_optimizer_hide(again.optimizers[w], again.parameters[w], NULL), AQ_OK);
                }
            }
            if (step <= at) continue;
            ranks_gradients(&again, 47, step);
            ranks_step(&again, 0.01f, 1.0f, step);
        }
        for (uint32_t w = 0; w < W; w++)
            assert_memory_equal(whole.parameters[w], again.parameters[w], N * sizeof(float));
        ranks_close(&whole);
        ranks_close(&again);
    }
}

/* What is not finite on one rank reaches no other, and its next outer step repairs it. */
static void test_what_is_not_finite_ends_with_the_outer_step(void **state)
{
    (void)state;
    const struct aq_optimizer_config config = delay_config("adamw", 3, 1, 0.0f);
    struct ranks ranks;
    float begin[N];
    ranks_open(&ranks, &config, 3);
    memcpy(begin, ranks.parameters[0], sizeof begin);
    ranks.parameters[1][5] = INFINITY;
    ranks.parameters[1][6] = NAN;
    for (uint64_t step = 1; step <= 3; step++)
        ranks_void(&ranks, step);
    assert_true(isinf(ranks.parameters[1][5]) && isnan(ranks.parameters[1][6]));
    ranks.parameters[2][7] = NAN; /* after the round's end */
    ranks_void(&ranks, 4);
    for (uint32_t w = 0; w < 3; w++)
        for (uint64_t i = 0; i < N; i++)
            assert_true(!ranks_is_in(i) || ranks.parameters[w][i] == begin[i]);
    ranks_close(&ranks);
}

/* With `predict` the parameters run ahead by the last step, except where the rank goes to new outer weights. */
static void test_the_update_that_takes_up_an_outer_step_predicts_nothing(void **state)
{
    (void)state;
    struct aq_optimizer_config config = delay_config("adamw", 4, 2, 0.9f);
    struct ranks ranks;
    config.predict = true;
    ranks_open(&ranks, &config, 2);
    for (uint64_t step = 1; step <= LAST; step++) {
        ranks_gradients(&ranks, 48, step);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        const float *weights = aq_optimizer_state(ranks.optimizers[1], ranks_state(&ranks, AQ_PREDICT_STATE));
        bool same = true;
        for (uint64_t i = 0; i < N; i++)
            same = same && (!ranks_is_in(i) || ranks.parameters[1][i] == weights[i]);
        assert_true(same == ((step > 4 && step % 4 == 2) || step == LAST));
    }
    ranks_close(&ranks);
}

static void test_what_does_not_fit_is_refused_by_name(void **state)
{
    (void)state;
    struct aq_optimizer_config config = delay_config("adamw", 4, 4, 0.9f);
    aq_error_clear();
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "outer_delay is 4, must be below outer_every, 4"));
    config.outer_delay = 3;
    assert_int_equal(aq_optimizer_config_check(&config), AQ_OK);
    /* No delay, or one rank: no memory for it. */
    struct ranks ranks;
    config = delay_config("adamw", 4, 0, 0.9f);
    ranks_open(&ranks, &config, 2);
    assert_false(ranks_has_state(&ranks, AQ_DELAY_STATE));
    ranks_close(&ranks);
    config.outer_delay = 2;
    ranks_open(&ranks, &config, 1);
    assert_false(ranks_has_state(&ranks, AQ_DELAY_STATE));
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_are_those_of_the_formula),
        cmocka_unit_test(test_when_a_mean_comes_changes_no_bit),
        cmocka_unit_test(test_state_of_any_step_continues_bit_for_bit),
        cmocka_unit_test(test_what_is_not_finite_ends_with_the_outer_step),
        cmocka_unit_test(test_the_update_that_takes_up_an_outer_step_predicts_nothing),
        cmocka_unit_test(test_what_does_not_fit_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
