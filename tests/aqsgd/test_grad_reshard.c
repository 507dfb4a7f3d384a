/*
 * test_grad_reshard.c -- errors and moments of W ranks as those of another number: residuals stay.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "optimizer_ranks.h"

enum { N = RANK_FLOATS };

static float old[RANKS_MAX][N], now[RANKS_MAX][N];
static const float *olds[RANKS_MAX];

static void fill(uint32_t W)
{
    for (uint32_t w = 0; w < W; w++) {
        const struct aq_rng_key key = aq_rng_key(90, AQ_RNG_TEST, w, W);
        for (uint64_t i = 0; i < N; i++)
            old[w][i] = ldexpf(aq_rng_normal(&key, i), (int)(i % 9));
        olds[w] = old[w];
    }
}

static void test_worker_errors_keep_their_mean(void **state)
{
    (void)state;
    for (uint32_t from = 1; from <= RANKS_MAX; from++) {
        fill(from);
        for (uint32_t to = 1; to <= RANKS_MAX; to++) {
            for (uint32_t w = 0; w < to; w++)
                assert_int_equal(aq_grad_reshard(AQ_STATE_WORKER_ERROR, N, from, olds, to, w, now[w]), AQ_OK);
            for (uint64_t i = 0; i < N; i++) {
                double before = 0, after = 0;
                for (uint32_t w = 0; w < from; w++)
                    before += (double)old[w][i] / from;
                for (uint32_t w = 0; w < to; w++)
                    after += (double)now[w][i] / to;
                /* Only the last rounding of rank 0's is left: half a place of it, over the ranks. */
                assert_true(fabs(after - before) <= 0x1p-24 * fabs((double)now[0][i]) / to + 1e-12);
            }
            if (from == to) assert_memory_equal(old, now, sizeof old[0] * from);
        }
    }
}

static void test_server_errors_are_the_same_buffer(void **state)
{
    (void)state;
    static float whole[N];
    fill(1);
    for (uint32_t from = 1; from <= RANKS_MAX; from++) {
        for (uint32_t to = 1; to <= RANKS_MAX; to++) {
            uint64_t first, chunk;
            for (uint32_t w = 0; w < from; w++) {
                aq_grad_chunk(N, from, w, &first, &chunk);
                olds[w] = old[0] + first;
            }
            memset(whole, 0, sizeof whole);
            for (uint32_t w = 0; w < to; w++) {
                aq_grad_chunk(N, to, w, &first, &chunk);
                if (chunk < N) now[w][chunk] = 7.0f; /* nothing is written behind the chunk */
                assert_int_equal(aq_grad_reshard(AQ_STATE_SERVER_ERROR, N, from, olds, to, w, now[w]), AQ_OK);
                memcpy(whole + first, now[w], chunk * sizeof(float));
                assert_true(chunk == N || now[w][chunk] == 7.0f);
            }
            assert_memory_equal(whole, old[0], sizeof whole);
        }
    }
}

static void test_local_is_the_mean_and_replicated_the_first(void **state)
{
    (void)state;
    fill(4);
    for (uint32_t w = 0; w < 3; w++) {
        assert_int_equal(aq_grad_reshard(AQ_STATE_LOCAL, N, 4, olds, 3, w, now[w]), AQ_OK);
        for (uint64_t i = 0; i < N; i++) {
            const double sum = (double)old[0][i] + (double)old[1][i] + (double)old[2][i] + (double)old[3][i];
            assert_true(now[w][i] == (float)(sum / 4));
        }
        assert_int_equal(aq_grad_reshard(AQ_STATE_REPLICATED, N, 4, olds, 3, w, now[w]), AQ_OK);
        assert_memory_equal(now[w], old[0], sizeof old[0]);
    }
    assert_int_equal(aq_grad_reshard(AQ_STATE_LOCAL, N, 0, olds, 3, 0, now[0]), AQ_INVAL);
    assert_int_equal(aq_grad_reshard(AQ_STATE_LOCAL, N, 4, olds, 3, 3, now[0]), AQ_INVAL);
    assert_int_equal(aq_grad_pending(N, 0, olds, NULL, now[0]), AQ_INVAL);
}

/* `to` takes over the whole state of `from`; the parameters too. */
static void hand_over(struct ranks *from, struct ranks *to)
{
    for (uint32_t a = 0; a < aq_optimizer_state_count(to->optimizers[0]); a++) {
        const char *name = aq_optimizer_state_name(to->optimizers[0], a);
        for (uint32_t w = 0; w < from->W; w++)
            olds[w] = aq_optimizer_state(from->optimizers[w], ranks_state(from, name));
        for (uint32_t w = 0; w < to->W; w++) {
            struct aq_optimizer_state_info info;
            aq_optimizer_state_info(to->optimizers[w], a, &info);
            assert_int_equal(aq_grad_reshard(info.belongs, info.of, from->W, olds, to->W, w,
                                             aq_optimizer_state(to->optimizers[w], a)),
                             AQ_OK);
        }
    }
    for (uint32_t w = 0; w < to->W; w++)
        memcpy(to->parameters[w], from->parameters[0], N * sizeof(float));
}

static void sum_of_errors(const struct ranks *ranks, double *sum)
{
    for (uint64_t i = 0; i < N; i++)
        sum[i] = 0;
    for (uint32_t w = 0; w < ranks->W; w++) {
        const float *worker = aq_optimizer_state(ranks->optimizers[w], ranks_state(ranks, "worker_error"));
        const float *server = aq_optimizer_state(ranks->optimizers[w], ranks_state(ranks, "server_error"));
        uint64_t first, chunk;
        aq_grad_chunk(N, ranks->W, w, &first, &chunk);
        for (uint64_t i = 0; i < N; i++)
            sum[i] += (double)worker[i] / ranks->W;
        for (uint64_t i = 0; i < chunk; i++)
            sum[first + i] += (double)server[i];
    }
}

/* A run of 4 ranks goes on with 2, 3 or 8: residuals stay, and the ranks agree at every step. */
static void test_a_run_goes_on_with_another_width(void **state)
{
    (void)state;
    static double before[N], after[N];
    static const uint32_t widths[] = {2, 3, 8};
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "onebit_adam");
    config.warmup_steps = 3;
    config.freeze_ratio = 0;
    for (int k = 0; k < 3; k++) {
        struct ranks four, other;
        ranks_open(&four, &config, 4);
        ranks_open(&other, &config, widths[k]);
        for (uint64_t step = 1; step <= 7; step++) {
            ranks_gradients(&four, 30, step);
            ranks_step(&four, 0.01f, 1.0f, step);
        }
        hand_over(&four, &other);
        sum_of_errors(&four, before);
        sum_of_errors(&other, after);
        for (uint64_t i = 0; i < N; i++)
            assert_true(fabs(before[i] - after[i]) <= 1e-7 * (1 + fabs(before[i])));
        for (uint64_t step = 8; step <= 12; step++) {
            ranks_gradients(&other, 30, step);
            ranks_step(&other, 0.01f, 1.0f, step);
            assert_true(other.sent < N); /* it is frozen still */
            ranks_expect_equal_parameters(&other);
        }
        ranks_close(&four);
        ranks_close(&other);
    }
}

/* Alone, there are no errors: residuals come into the first moment. */
static void test_one_rank_takes_up_residuals(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *codec, *array;
        double share;
    } rows[] = {{"qadam", "uniform", "m", 1}, {"onebit_adam", "sign", "m", 1}, {"adamw", "uniform", "m", 0.1},
                {"lamb", "sign", "m", 0.1},   {"lion", "uniform", "m", 0.01},  {"sgd", "lp", "velocity", 1}};
    for (int k = 0; k < 6; k++) {
        static double residual[N];
        static float pending[N], before[N];
        const float *workers[3], *servers[3];
        struct aq_optimizer_config config;
        struct ranks three, one;
        aq_optimizer_config_default(&config, rows[k].kind);
        config.warmup_steps = 2;
        config.freeze_ratio = 0;
        aq_grad_codec_config_default(&config.reduce, rows[k].codec);
        ranks_open(&three, &config, 3);
        ranks_open(&one, &config, 1);
        for (uint64_t step = 1; step <= 5; step++) {
            ranks_gradients(&three, 31, step);
            ranks_step(&three, 0.01f, 1.0f, step);
        }
        hand_over(&three, &one);
        sum_of_errors(&three, residual);
        for (uint32_t w = 0; w < 3; w++) {
            workers[w] = aq_optimizer_state(three.optimizers[w], ranks_state(&three, "worker_error"));
            servers[w] = aq_optimizer_state(three.optimizers[w], ranks_state(&three, "server_error"));
        }
        assert_int_equal(aq_grad_pending(N, 3, workers, servers, pending), AQ_OK);
        float *first = aq_optimizer_state(one.optimizers[0], ranks_state(&one, rows[k].array));
        memcpy(before, first, sizeof before);
        assert_int_equal(aq_optimizer_absorb(one.optimizers[0], pending), AQ_OK);
        for (uint64_t i = 0; i < N; i++) {
            const double expected = (double)before[i] + (ranks_is_in(i) ? rows[k].share * residual[i] : 0);
            assert_true(fabs((double)first[i] - expected) <= 1e-5 * (fabs(expected) + fabs(residual[i])));
        }
        ranks_close(&three);
        ranks_close(&one);
    }
    struct aq_optimizer_config config;
    struct ranks one;
    aq_optimizer_config_default(&config, "slamb");
    ranks_open(&one, &config, 1);
    assert_int_equal(aq_optimizer_absorb(one.optimizers[0], now[0]), AQ_INVAL);
    ranks_close(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worker_errors_keep_their_mean),
        cmocka_unit_test(test_server_errors_are_the_same_buffer),
        cmocka_unit_test(test_local_is_the_mean_and_replicated_the_first),
        cmocka_unit_test(test_a_run_goes_on_with_another_width),
        cmocka_unit_test(test_one_rank_takes_up_residuals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
