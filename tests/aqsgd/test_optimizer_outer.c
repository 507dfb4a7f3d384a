/*
 * test_optimizer_outer.c -- local steps: rounds against DiLoCo's Algorithm 1 in double, whose inner steps are those of
 * optimizers that are alone; what compression leaves; void steps; two versions of the weights; what is refused.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "optimizer_ranks.h"

enum { N = RANK_FLOATS, LAST = 22 };

static const char *const inner[] = {"adamw", "sgd", "lamb", "lion"};
enum { INNER = sizeof inner / sizeof inner[0] };

static struct aq_optimizer_config local_config(const char *kind, uint32_t every, float lr, float momentum)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    config.outer_every = every;
    config.outer_lr = lr;
    config.outer_momentum = momentum;
    config.total_steps = LAST;
    return config;
}

/* The ranks' inner optimizers, each of a group of one, and what all began the round with. */
struct reference {
    struct ranks alone[RANKS_MAX];
    double outer[N], momentum[N];
    uint32_t W;
};

static void reference_open(struct reference *reference, const struct aq_optimizer_config *config, uint32_t W)
{
    struct aq_optimizer_config own = *config;
    own.outer_every = 0;
    aq_grad_codec_config_default(&own.reduce, "fp32");
    reference->W = W;
    for (uint32_t w = 0; w < W; w++)
        ranks_open(&reference->alone[w], &own, 1);
    for (uint64_t i = 0; i < N; i++) {
        reference->outer[i] = (double)reference->alone[0].parameters[0][i];
        reference->momentum[i] = 0;
    }
}

static void reference_close(struct reference *reference)
{
    for (uint32_t w = 0; w < reference->W; w++)
        ranks_close(&reference->alone[w]);
}

static void reference_step(struct reference *reference, const struct ranks *ranks, uint64_t step)
{
    for (uint32_t w = 0; w < reference->W; w++) {
        memcpy(reference->alone[w].gradients[0], ranks->gradients[w], N * sizeof(float));
        ranks_step(&reference->alone[w], 0.01f, 1.0f, step);
    }
}

/* Algorithm 1, lines 12 and 14. */
static void reference_outer(struct reference *reference, double lr, double momentum)
{
    for (uint64_t i = 0; i < N; i++) {
        double d = 0;
        if (!ranks_is_in(i)) continue;
        for (uint32_t w = 0; w < reference->W; w++)
            d += (reference->outer[i] - (double)reference->alone[w].parameters[0][i]) / reference->W;
        reference->momentum[i] = momentum * reference->momentum[i] + d;
        reference->outer[i] -= lr * (d + momentum * reference->momentum[i]);
        for (uint32_t w = 0; w < reference->W; w++)
            reference->alone[w].parameters[0][i] = (float)reference->outer[i];
    }
}

static void expect_near(const float *x, const double *y, double tolerance)
{
    for (uint64_t i = 0; i < N; i++) {
        if (ranks_is_in(i) && !(fabs((double)x[i] - y[i]) <= tolerance * (1 + fabs(y[i]))))
            fail_msg("float %llu is %.9g, must be %.9g", (unsigned long long)i, (double)x[i], y[i]);
    }
}

static void expect_rounds(const char *kind, uint32_t W, uint32_t every, float lr, float momentum)
{
    const struct aq_optimizer_config config = local_config(kind, every, lr, momentum);
    static struct reference reference;
    struct ranks ranks;
    ranks_open(&ranks, &config, W);
    reference_open(&reference, &config, W);
    for (uint64_t step = 1; step <= LAST; step++) {
        const bool ends = step % every == 0 || step == LAST;
        ranks_gradients(&ranks, 41, step);
        reference_step(&reference, &ranks, step);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        assert_int_equal(ranks.asked, ends ? 1 : 0);
        assert_true(aq_optimizer_config_drifts(&config, step) == (step % every != 0));
        if (!ends) {
            assert_memory_not_equal(ranks.parameters[0], ranks.parameters[W - 1], N * sizeof(float));
            continue;
        }
        reference_outer(&reference, (double)lr, (double)momentum);
        ranks_expect_equal_parameters(&ranks);
        /* Lion steps by signs: where a momentum is near 0, one rounding in the weights is another step. */
        expect_near(ranks.parameters[0], reference.outer, strcmp(kind, "lion") == 0 ? 2e-2 : 2e-5);
        if (momentum == 0) continue;
        const float *m = aq_optimizer_state(ranks.optimizers[W - 1], ranks_state(&ranks, "outer_momentum"));
        expect_near(m, reference.momentum, strcmp(kind, "lion") == 0 ? 2e-2 : 2e-5);
    }
    assert_int_equal(ranks_has_state(&ranks, "outer_momentum"), momentum > 0);
    reference_close(&reference);
    ranks_close(&ranks);
}

static void test_rounds_are_those_of_algorithm_1(void **state)
{
    (void)state;
    static const uint32_t widths[] = {2, 3, 6};
    for (int k = 0; k < INNER; k++)
        for (int w = 0; w < 3; w++)
            expect_rounds(inner[k], widths[w], 4, 0.7f, 0.9f);
    expect_rounds("adamw", 2, 1, 0.7f, 0.9f);
    expect_rounds("adamw", 3, 5, 0.7f, 0.0f);
    expect_rounds("sgd", 4, 1000, 1.0f, 0.5f); /* never but at the end */
}

/* Rate 1 without momentum takes the mean of the weights; of SGD without velocity, each step, the mean of gradients. */
static void test_rate_1_without_momentum_is_the_mean(void **state)
{
    (void)state;
    struct aq_optimizer_config config = local_config("sgd", 1, 1.0f, 0.0f), plain = config;
    struct ranks ranks, averaged;
    config.momentum = plain.momentum = 0;
    plain.outer_every = 0;
    for (uint32_t W = 2; W <= 6; W++) {
        ranks_open(&ranks, &config, W);
        ranks_open(&averaged, &plain, W);
        for (uint64_t step = 1; step <= 8; step++) {
            ranks_gradients(&ranks, 42, step);
            ranks_gradients(&averaged, 42, step);
            ranks_step(&ranks, 0.01f, 1.0f, step);
            ranks_step(&averaged, 0.01f, 1.0f, step);
        }
        for (uint64_t i = 0; i < N; i++)
            assert_true(!ranks_is_in(i) || fabsf(ranks.parameters[0][i] - averaged.parameters[0][i]) <=
                                               2e-6f * (1 + fabsf(averaged.parameters[0][i])));
        ranks_close(&ranks);
        ranks_close(&averaged);
    }
}

/* A void step moves its rank not at all, and the round ends all the same, also where the void step is its last. */
static void test_void_steps_stay_with_their_rank(void **state)
{
    (void)state;
    const struct aq_optimizer_config config = local_config("adamw", 3, 1.0f, 0.0f);
    struct ranks ranks;
    float begin[N];
    ranks_open(&ranks, &config, 3);
    memcpy(begin, ranks.parameters[0], sizeof begin);
    for (uint64_t step = 1; step <= 3; step++) {
        ranks_gradients(&ranks, 43, step);
        ranks_void(&ranks, step);
        assert_int_equal(ranks.asked, step == 3);
    }
    for (uint64_t i = 0; i < N; i++)
        assert_true(!ranks_is_in(i) || ranks.parameters[2][i] == begin[i]);
    /* What is not finite on one rank stays there, and ends with the round. */
    ranks.parameters[1][5] = INFINITY;
    ranks.parameters[1][6] = NAN;
    for (uint64_t step = 4; step <= 6; step++)
        ranks_void(&ranks, step);
    ranks_expect_equal_parameters(&ranks);
    assert_true(ranks.parameters[1][5] == begin[5] && ranks.parameters[1][6] == begin[6]);
    ranks_close(&ranks);
}

/* Swapped there and back nothing has changed; in between ranks hold the outer weights, those of the last outer step. */
static void test_swap_shows_the_outer_weights(void **state)
{
    (void)state;
    const struct aq_optimizer_config config = local_config("adamw", 4, 0.7f, 0.9f);
    struct ranks ranks;
    float outer[N], own[3][N];
    ranks_open(&ranks, &config, 3);
    for (uint64_t step = 1; step <= 6; step++) {
        ranks_gradients(&ranks, 44, step);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        if (step == 4) memcpy(outer, ranks.parameters[0], sizeof outer);
    }
    for (uint32_t w = 0; w < 3; w++) {
        memcpy(own[w], ranks.parameters[w], sizeof own[w]);
        assert_int_equal(aq_optimizer_show(ranks.optimizers[w], ranks.parameters[w], NULL), AQ_OK);
        for (uint64_t i = 0; i < N; i++)
            assert_true(!ranks_is_in(i) || ranks.parameters[w][i] == outer[i]);
        const float *kept = aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, AQ_OUTER_STATE));
        for (uint64_t i = 0; i < N; i++)
            assert_true(!ranks_is_in(i) || kept[i] == own[w][i]);
        assert_int_equal(aq_optimizer_hide(ranks.optimizers[w], ranks.parameters[w], NULL), AQ_OK);
        assert_memory_equal(own[w], ranks.parameters[w], sizeof own[w]);
    }
    ranks_close(&ranks);
}

/*
 * What codecs have lost is in the errors: with rate 1 and no momentum, outer weights plus what is pending are those of
 * an uncompressed run of the same movements. SGD without velocity moves alike from wherever it stands.
 */
static void test_errors_hold_what_codecs_lost(void **state)
{
    (void)state;
    enum { W = 3, ROUNDS = 8, EVERY = 2 };
    struct aq_optimizer_config config = local_config("sgd", EVERY, 1.0f, 0.0f), exact;
    struct ranks coded, plain;
    float pending[N];
    config.momentum = config.weight_decay = 0;
    exact = config;
    for (uint32_t c = 0; aq_grad_codec_kind(c); c++) {
        aq_grad_codec_config_default(&config.reduce, aq_grad_codec_kind(c));
        aq_error_clear();
        if (!aq_grad_codec_config_lossy(&config.reduce) || aq_optimizer_config_check(&config) != AQ_OK) continue;
        ranks_open(&coded, &config, W);
        ranks_open(&plain, &exact, W);
        for (uint64_t step = 1; step <= ROUNDS * EVERY; step++) {
            ranks_gradients(&coded, 45, step);
            ranks_gradients(&plain, 45, step);
            ranks_step(&coded, 0.01f, 1.0f, step);
            ranks_step(&plain, 0.01f, 1.0f, step);
        }
        const float *worker[W], *server[W] = {NULL};
        const bool both = aq_grad_codec_config_keeps_server(&config.reduce);
        for (uint32_t w = 0; w < W; w++) {
            worker[w] = aq_optimizer_state(coded.optimizers[w], ranks_state(&coded, "worker_error"));
            if (both) server[w] = aq_optimizer_state(coded.optimizers[w], ranks_state(&coded, "server_error"));
        }
        assert_int_equal(aq_grad_pending(N, W, worker, both ? server : NULL, pending), AQ_OK);
        for (uint64_t i = 0; i < N; i++) {
            const float here = coded.parameters[0][i] - pending[i], there = plain.parameters[0][i];
            if (ranks_is_in(i) && !(fabsf(here - there) <= 2e-5f * (1 + fabsf(there))))
                fail_msg("%s: float %llu is %.7g with what is pending, must be %.7g", aq_grad_codec_kind(c),
                         (unsigned long long)i, (double)here, (double)there);
        }
        ranks_close(&coded);
        ranks_close(&plain);
    }
}

/* A reduction that is taken back and made again leaves no trace: not in the weights, not in any state. */
static void test_a_reduction_that_is_made_again_has_the_same_bits(void **state)
{
    (void)state;
    enum { W = 3, EVERY = 2 };
    uint32_t codecs = 0;
    while (aq_grad_codec_kind(codecs))
        codecs++;
    for (uint32_t i = 0; i < 2 * codecs; i++) { /* of movements, then of gradients */
        const uint32_t c = i % codecs;
        struct aq_optimizer_config config = local_config("adamw", EVERY, 0.7f, c % 2 ? 0.9f : 0.0f), once;
        struct ranks again, calm;
        if (i >= codecs) config.outer_every = 0;
        aq_grad_codec_config_default(&config.reduce, aq_grad_codec_kind(c));
        aq_error_clear();
        if (aq_optimizer_config_check(&config) != AQ_OK) continue;
        once = config;
        config.retries = true;
        ranks_open(&again, &config, W);
        ranks_open(&calm, &once, W);
        again.again = true;
        for (uint64_t step = 1; step <= 4 * EVERY; step++) {
            ranks_gradients(&again, 46, step);
            ranks_gradients(&calm, 46, step);
            ranks_step(&again, 0.01f, 1.0f, step);
            ranks_step(&calm, 0.01f, 1.0f, step);
        }
        for (uint32_t w = 0; w < W; w++) {
            assert_memory_equal(again.parameters[w], calm.parameters[w], N * sizeof(float));
            for (uint32_t s = 0; s < aq_optimizer_state_count(calm.optimizers[w]); s++) {
                struct aq_optimizer_state_info info;
                aq_optimizer_state_info(calm.optimizers[w], s, &info);
                assert_string_equal(aq_optimizer_state_name(again.optimizers[w], s), info.name);
                assert_memory_equal(aq_optimizer_state(again.optimizers[w], s),
                                    aq_optimizer_state(calm.optimizers[w], s), info.count * sizeof(float));
            }
        }
        ranks_close(&again);
        ranks_close(&calm);
    }
}

/* A rank that has missed steps corrects its moments' bias by the updates that they have had. */
static void test_bias_corrections_count_without_missed_steps(void **state)
{
    (void)state;
    static const char *const kinds[] = {"adamw", "lamb"};
    for (int k = 0; k < 2; k++) {
        struct aq_optimizer_config config;
        struct ranks all, late;
        aq_optimizer_config_default(&config, kinds[k]);
        config.bias_correction = true;
        ranks_open(&all, &config, 1);
        ranks_open(&late, &config, 1);
        for (uint64_t step = 1; step <= 6; step++) {
            const uint64_t missed = step <= 3 ? 4 : 9; /* between two of its rounds, more of them */
            ranks_gradients(&all, 43, step);
            ranks_gradients(&late, 43, step);
            aq_optimizer_missed(late.optimizers[0], missed);
            ranks_step(&all, 0.01f, 1.0f, step);
            ranks_step(&late, 0.01f, 1.0f, step + missed);
            assert_memory_equal(all.parameters[0], late.parameters[0], N * sizeof(float));
        }
        aq_optimizer_missed(late.optimizers[0], 0);
        ranks_gradients(&all, 43, 7);
        ranks_gradients(&late, 43, 7);
        ranks_step(&all, 0.01f, 1.0f, 7);
        ranks_step(&late, 0.01f, 1.0f, 16);
        assert_memory_not_equal(all.parameters[0], late.parameters[0], N * sizeof(float));
        ranks_close(&all);
        ranks_close(&late);
    }
}

static void test_what_does_not_fit_is_refused_by_name(void **state)
{
    (void)state;
    uint32_t taken = 0;
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++) {
        struct aq_optimizer_config config = local_config(aq_optimizer_kind_name(k), 0, 0.7f, 0.9f);
        const bool averages = aq_optimizer_config_averages(&config);
        config.outer_every = 2;
        aq_error_clear();
        assert_int_equal(aq_optimizer_config_check(&config), averages ? AQ_OK : AQ_INVAL);
        if (!averages) assert_non_null(strstr(aq_error_text(), config.kind));
        assert_false(aq_optimizer_config_averages(&config));
        taken += averages;
    }
    assert_int_equal(taken, INNER);
    struct aq_optimizer_config config = local_config("adamw", 2, 0.7f, 0.9f);
    config.low_rank = 2;
    assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    static const float bad[][2] = {{0, 0}, {-1, 0}, {NAN, 0}, {INFINITY, 0}, {0.7f, 1}, {0.7f, -0.1f}, {0.7f, NAN}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        config = local_config("adamw", 2, bad[i][0], bad[i][1]);
        assert_int_equal(aq_optimizer_config_check(&config), AQ_INVAL);
    }
    /* One rank has nobody to meet: no other version, no rounds. */
    config = local_config("adamw", 2, 0.7f, 0.9f);
    struct ranks ranks;
    ranks_open(&ranks, &config, 1);
    assert_false(ranks_has_state(&ranks, AQ_OUTER_STATE));
    assert_true(aq_optimizer_config_pending(&config) > 1.32f && aq_optimizer_config_pending(&config) < 1.34f);
    ranks_close(&ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_are_those_of_algorithm_1),
        cmocka_unit_test(test_rate_1_without_momentum_is_the_mean),
        cmocka_unit_test(test_void_steps_stay_with_their_rank),
        cmocka_unit_test(test_swap_shows_the_outer_weights),
        cmocka_unit_test(test_errors_hold_what_codecs_lost),
        cmocka_unit_test(test_a_reduction_that_is_made_again_has_the_same_bits),
        cmocka_unit_test(test_bias_corrections_count_without_missed_steps),
        cmocka_unit_test(test_what_does_not_fit_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
