/*
 * test_optimizer_rules.c -- what holds for optimizers with W ranks whatever their formulas: when a variance is frozen,
 * what a void step still does, that dead parameters stay, that errors telescope.
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

typedef double vector[N];

static struct ranks ranks;

static uint64_t chunk_first(uint32_t w)
{
    const uint64_t each = ((N + ranks.W - 1) / ranks.W + 63) / 64 * 64;
    return each * w < N ? each * w : N;
}

static uint64_t chunk_end(uint32_t w)
{
    return w + 1 < ranks.W ? chunk_first(w + 1) : N;
}

static void test_onebit_adam_freezes_when_the_variance_has_settled(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "onebit_adam");
    config.beta2 = 0.9f; /* over 10 steps */
    ranks_open(&ranks, &config, 2);
    uint64_t frozen = 0;
    for (uint64_t step = 1; step <= 60; step++) {
        const float *at = aq_optimizer_state(ranks.optimizers[0], ranks_state(&ranks, "frozen_at"));
        if (at[0] > 0 && frozen == 0) frozen = step - 1;
        assert_true(aq_optimizer_averages(ranks.optimizers[0], step) == (frozen == 0));
        ranks_gradients(&ranks, 22, step);
        ranks_step(&ranks, 0.001f, 1.0f, step);
    }
    /* ||v|| goes like 1 - 0.9^t: the ratio over 10 steps passes 0.96 at the 32nd, give or take the noise. */
    assert_true(frozen >= 20 && frozen <= 45);
    ranks_close(&ranks);
}

/* What one optimizer gauges is what parts of the model gauge, added up from the last to the first, and decides alike.
 */
static void test_parts_of_a_model_freeze_as_the_whole(void **state)
{
    (void)state;
    enum { CUT = 2 };
    struct aq_optimizer_config config;
    struct aq_optimizer *whole, *parts[2];
    struct aq_optimizer_tensor later[RANK_TENSORS - CUT];
    const uint64_t first = rank_tensors[CUT].offset;
    aq_optimizer_config_default(&config, "onebit_adam");
    config.beta2 = 0.9f;
    ranks_open(&ranks, &config, 1);
    memcpy(later, rank_tensors + CUT, sizeof later);
    for (int t = 0; t < RANK_TENSORS - CUT; t++)
        later[t].offset -= first;
    assert_int_equal(aq_optimizer_open(ranks.device, &config, rank_tensors, CUT, first, &parts[0]), AQ_OK);
    assert_int_equal(aq_optimizer_open(ranks.device, &config, later, RANK_TENSORS - CUT, N - first, &parts[1]), AQ_OK);
    whole = ranks.optimizers[0];
    static float same[RANK_FLOATS];
    memcpy(same, ranks.parameters[0], sizeof same);
    uint64_t frozen = 0;
    for (uint64_t step = 1; step <= 60; step++) {
        double one = 0, sum = 0;
        ranks_gradients(&ranks, 22, step);
        assert_true(aq_optimizer_gauges(whole) == aq_optimizer_gauges(parts[0]) &&
                    aq_optimizer_gauges(whole) == aq_optimizer_gauges(parts[1]));
        if (!aq_optimizer_gauges(whole) && frozen == 0) frozen = step - 1;
        assert_int_equal(aq_optimizer_gauge(whole, &one), AQ_OK);
        assert_int_equal(aq_optimizer_gauge(parts[1], &sum), AQ_OK);
        assert_int_equal(aq_optimizer_gauge(parts[0], &sum), AQ_OK);
        assert_true(one == sum && (step == 1 || frozen > 0 || one > 0));
        const float *gradients = ranks.gradients[0];
        ranks_step(&ranks, 0.001f, 1.0f, step); /* is told nothing, and asks itself */
        for (int p = 0; p < 2; p++) {
            aq_optimizer_gauged(parts[p], sum);
            assert_int_equal(aq_optimizer_step(parts[p], same + (p ? first : 0), gradients + (p ? first : 0), 0.001f,
                                               1.0f, step, NULL),
                             AQ_OK);
        }
        assert_memory_equal(same, ranks.parameters[0], sizeof same);
    }
    assert_true(frozen >= 20 && frozen <= 45);
    aq_optimizer_close(parts[0]);
    aq_optimizer_close(parts[1]);
    ranks_close(&ranks);
}

/* A step whose gradient is not finite updates nothing, but the averages that are due are made. */
static void test_void_steps_keep_what_is_due(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "slamb");
    config.sync_every = 4;
    config.total_steps = 7;
    ranks_open(&ranks, &config, 6);
    for (uint64_t step = 1; step <= 7; step++) {
        ranks_gradients(&ranks, 31, step);
        if (step == 4 || step == 6 || step == 7)
            ranks_void(&ranks, step);
        else
            ranks_step(&ranks, 0.01f, 1.0f, step);
        assert_int_equal(ranks.asked, step == 4 || step == 7 ? 1 : step == 6 ? 0 : 1);
        if (step == 4 || step == 7) ranks_expect_equal_parameters(&ranks);
    }
    ranks_close(&ranks);
    aq_optimizer_config_default(&config, "lioncub");
    config.momentum_every = 2;
    config.momentum_names = "*";
    ranks_open(&ranks, &config, 3);
    ranks_gradients(&ranks, 32, 1);
    ranks_step(&ranks, 0.01f, 1.0f, 1);
    const uint32_t m = ranks_state(&ranks, "m");
    const size_t bytes = N * sizeof(float);
    assert_true(memcmp(aq_optimizer_state(ranks.optimizers[0], m), aq_optimizer_state(ranks.optimizers[1], m), bytes));
    ranks_void(&ranks, 2);
    for (uint32_t w = 1; w < 3; w++)
        assert_memory_equal(aq_optimizer_state(ranks.optimizers[0], m), aq_optimizer_state(ranks.optimizers[w], m),
                            bytes);
    ranks_close(&ranks);
}

/* A parameter that never had a gradient stays where it was, to the bit, and so do its momentum and errors. */
static void test_dead_parameters_are_found_and_left_alone(void **state)
{
    (void)state;
    static const char *const kinds[] = {"qadam", "onebit_adam", "onebit_lamb"};
    for (int k = 0; k < 3; k++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, kinds[k]);
        config.warmup_steps = 2;
        config.freeze_ratio = 0;
        float before[N];
        ranks_open(&ranks, &config, 3);
        memcpy(before, ranks.parameters[0], sizeof before);
        for (uint64_t step = 1; step <= 12; step++) {
            ranks_gradients(&ranks, 23, step);
            ranks_step(&ranks, 0.01f, 1.0f, step);
        }
        for (uint64_t i = rank_tensors[4].offset; i < rank_tensors[4].offset + rank_tensors[4].count; i++) {
            assert_true(ranks.parameters[1][i] == before[i]);
            for (uint32_t w = 0; w < 3; w++) {
                assert_true(aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, "m"))[i] == 0);
                assert_true(aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, "worker_error"))[i] == 0);
            }
        }
        ranks_close(&ranks);
    }
}

/* Over a run, what all ranks have put in is what has come out and what the errors still hold. */
static void test_errors_of_workers_and_servers_telescope(void **state)
{
    (void)state;
    static vector in, out;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "sgd");
    config.momentum = 0;
    for (int form = 0; form < 3; form++) {
        config.low_rank = form == 2 ? 1 : 0;
        aq_grad_codec_config_default(&config.reduce, form == 0 ? "sign" : form == 1 ? "uniform" : "fp32");
        memset(in, 0, sizeof in);
        memset(out, 0, sizeof out);
        ranks_open(&ranks, &config, 3);
        for (uint64_t step = 1; step <= 40; step++) {
            ranks_gradients(&ranks, 24, step);
            for (uint32_t w = 0; w < 3; w++)
                for (uint64_t i = 0; i < N; i++)
                    in[i] += (double)ranks.gradients[w][i] / 3;
            ranks_step(&ranks, 0.01f, 1.0f, step);
            for (uint64_t i = 0; i < N; i++)
                out[i] += (double)ranks.gradients[0][i];
        }
        for (uint32_t w = 0; w < 3; w++) {
            const float *worker = aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, "worker_error"));
            for (uint64_t i = 0; i < N; i++)
                out[i] += (double)worker[i] / 3;
            if (form == 2) continue;
            const float *server = aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, "server_error"));
            for (uint64_t i = chunk_first(w); i < chunk_end(w); i++)
                out[i] += (double)server[i - chunk_first(w)];
        }
        for (uint64_t i = 0; i < N; i++) {
            if (ranks_is_in(i)) assert_true(fabs(in[i] - out[i]) < 1e-3);
        }
        ranks_close(&ranks);
    }
}

/* The first row never has a gradient, the second one on the last rank alone. */
static void rows_without_gradients(uint64_t step)
{
    const uint64_t columns = rank_tensors[0].count / rank_tensors[0].rows;
    ranks_gradients(&ranks, 29, step);
    for (uint32_t w = 0; w < ranks.W; w++)
        memset(ranks.gradients[w], 0, (w + 1 < ranks.W ? 2 : 1) * columns * sizeof(float));
}

static void run_votes(const struct aq_optimizer_config *config, uint32_t W, float *out)
{
    ranks_open(&ranks, config, W);
    for (uint64_t step = 1; step <= 7; step++) {
        rows_without_gradients(step);
        ranks_step(&ranks, 0.01f / (float)step, 1.0f, step);
    }
    ranks_expect_equal_parameters(&ranks);
    memcpy(out, ranks.parameters[0], N * sizeof *out);
    ranks_close(&ranks);
}

/* Votes have no zero (Lion Cub, B.1): rows that nobody uses drift, unless they are masked. Lanes of 4 bits vote too. */
static void test_lioncub_rows_that_no_replica_uses_move_by_their_decay_alone(void **state)
{
    static const struct {
        uint32_t lane_bits, W;
    } cases[] = {{0, 2}, {0, 3}, {4, 8}};
    (void)state;
    for (int c = 0; c < 3; c++) {
        struct aq_optimizer_config config;
        float begin[N], plain[N], masked[N];
        aq_optimizer_config_default(&config, "lioncub");
        config.lane_bits = cases[c].lane_bits;
        if (config.lane_bits > 0) aq_grad_codec_config_default(&config.reduce, "lp");
        ranks_open(&ranks, &config, cases[c].W);
        memcpy(begin, ranks.parameters[0], sizeof begin);
        ranks_close(&ranks);
        run_votes(&config, cases[c].W, plain);
        config.mask_names = "wte,dead";
        run_votes(&config, cases[c].W, masked);
        for (uint64_t i = 0; i < N; i++) {
            const uint64_t columns = rank_tensors[0].count / rank_tensors[0].rows, dead = rank_tensors[4].offset;
            float decayed = begin[i];
            for (int step = 1; step <= 7 && i < columns; step++)
                decayed -= 0.01f / (float)step * decayed;
            const bool unused = i < columns || (i >= dead && i < dead + rank_tensors[4].count);
            if (masked[i] != (unused ? decayed : plain[i])) fail_msg("float %u is pushed", (unsigned)i);
            if (unused) assert_true(plain[i] != decayed);
        }
    }
}

/* As in the published code: a tensor of zeros has the coefficient 1, beyond the largest (equation 1 clips to c_min). */
static void test_onebit_lamb_coefficient_of_a_tensor_of_zeros_is_one(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "onebit_lamb");
    config.beta3 = 0.75f;
    ranks_open(&ranks, &config, 2);
    for (uint32_t w = 0; w < 2; w++)
        memset(ranks.parameters[w] + rank_tensors[1].offset, 0, rank_tensors[1].count * sizeof(float));
    ranks_gradients(&ranks, 30, 1);
    ranks_step(&ranks, 0.01f, 1.0f, 1);
    const float *average = aq_optimizer_state(ranks.optimizers[0], ranks_state(&ranks, "coefficient"));
    assert_true(average[1] == 0.25f); /* 1 - b3, times 1 */
    assert_true(average[0] <= 0.25f * config.coefficient_max);
    for (uint64_t i = rank_tensors[1].offset; i < rank_tensors[1].offset + rank_tensors[1].count; i++)
        assert_true(ranks.parameters[0][i] != 0.0f && fabsf(ranks.parameters[0][i]) < 0.05f);
    ranks_close(&ranks);
}

/* ---- figures ---- */

static bool figure(uint32_t w, const char *name, double *out)
{
    struct aq_optimizer_figure figures[AQ_OPTIMIZER_FIGURES_MAX];
    uint32_t count;
    aq_optimizer_figures(ranks.optimizers[w], figures, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(figures[i].name, name) != 0) continue;
        *out = figures[i].value;
        return true;
    }
    return false;
}

static double mean_few(const char *name, uint64_t n)
{
    const float *values = aq_optimizer_state(ranks.optimizers[0], ranks_state(&ranks, name));
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)values[i];
    return sum / (double)n;
}

/* c_t and r_t are means over tensors; in the warm-up c_t is what the average moves to. */
static void test_figures_of_onebit_lamb(void **state)
{
    (void)state;
    enum { TENSORS = RANK_TENSORS - 1 }; /* one is empty */
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "onebit_lamb");
    config.warmup_steps = 3;
    double c = 0, r = 0, before = 0;
    ranks_open(&ranks, &config, 2);
    assert_false(figure(0, "lamb_c", &c));
    for (uint64_t step = 1; step <= 6; step++) {
        ranks_gradients(&ranks, 33, step);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        assert_true(figure(0, "lamb_c", &c) && figure(0, "lamb_r", &r) == (step > 3));
        const double average = mean_few("coefficient", TENSORS);
        if (step <= 3) assert_true(fabs(average - (0.9 * before + 0.1 * c)) < 1e-6);
        if (step > 3) assert_true(fabs(r - mean_few("ratio", TENSORS)) < 1e-6 && c > 0 && c <= 4 * 0.3 && r >= 0.5);
        before = average;
    }
    ranks_void(&ranks, 7);
    assert_false(figure(0, "lamb_c", &c)); /* there was no update */
    ranks_close(&ranks);
}

/* The ratio that decides is the one that is shown: the variance is frozen in the first step in which it is enough. */
static void test_figure_of_onebit_adam_is_what_freezes(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "onebit_adam");
    config.beta2 = 0.75f;
    config.freeze_ratio = 0.8f;
    double ratio = 0;
    ranks_open(&ranks, &config, 2);
    const float *frozen = aq_optimizer_state(ranks.optimizers[0], ranks_state(&ranks, "frozen_at"));
    uint64_t step = 1;
    for (; step < 40 && frozen[0] == 0; step++) {
        ranks_gradients(&ranks, 34, step);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        const bool shown = figure(0, "adam_v_ratio", &ratio);
        assert_true(shown == (step > 5)); /* 4 updates and the norm before them */
        if (shown) assert_true(ratio <= 1.0 && (ratio >= (double)config.freeze_ratio) == (frozen[0] != 0));
    }
    assert_true(frozen[0] != 0);
    ranks_gradients(&ranks, 34, step);
    ranks_step(&ranks, 0.01f, 1.0f, step);
    assert_false(figure(0, "adam_v_ratio", &ratio));
    ranks_close(&ranks);
}

/*
 * Equal gradients: every update has the sign of the vote, and momenta do not differ. Opposite ones of two ranks: a tie
 * everywhere, so no update has the common sign in lanes, and momenta differ by all of their size.
 */
static void lioncub_figures(const char *codec, uint32_t lane_bits)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "lioncub");
    config.measure_every = 2;
    config.lane_bits = lane_bits;
    assert_true(aq_grad_codec_config_named(&config.reduce, codec));
    for (int opposite = 0; opposite < 2; opposite++) {
        double match = 0, spread = 0;
        ranks_open(&ranks, &config, 2);
        for (uint64_t step = 1; step <= 4; step++) {
            ranks_gradients(&ranks, 35, step);
            for (uint64_t i = 0; i < N; i++)
                ranks.gradients[1][i] = (opposite ? -1.0f : 1.0f) * ranks.gradients[0][i];
            ranks_step(&ranks, 0.001f, 1.0f, step);
            assert_true(figure(0, "sign_match", &match) == (step % 2 == 0));
            assert_true(figure(1, "momentum_spread", &spread) == (step % 2 == 0));
            if (step % 2) continue;
            /*
             * 70 of the 845 values are of a tensor without gradients: its updates are 0, and a vote has no 0. Levels
             * have one, in which small updates end, too: 1 / 30 of the mean magnitude and less.
             */
            if (!opposite && strcmp(codec, "vote") == 0) assert_true(fabs(match - 775.0 / 845) < 1e-9);
            if (!opposite && strcmp(codec, "vote") != 0) assert_true(match > 0.9 && match < 1);
            if (!opposite) assert_true(spread < 1e-3);
            if (opposite) assert_true(fabs(spread - 1) < 1e-6 && match < 0.55);
        }
        ranks_close(&ranks);
    }
}

static void test_figures_of_lioncub(void **state)
{
    (void)state;
    lioncub_figures("vote", 0);
    lioncub_figures("vote", 4);
    lioncub_figures("lp5", 8);
}

struct sender {
    const char *kind, *codec;
    uint64_t warmup_steps, low_rank_start, dense_below;
    uint32_t low_rank, lane_bits, W;
    float freeze_ratio;
    bool sync_gradient;
    const char *names; /* momentum_names and mask_names */
    uint64_t density_steps;
    uint32_t measure_every;
};

static struct aq_optimizer_config sender_config(const struct sender *of, uint64_t steps)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, of->kind);
    if (of->codec) assert_true(aq_grad_codec_config_named(&config.reduce, of->codec));
    if (of->warmup_steps) config.warmup_steps = of->warmup_steps;
    config.beta2 = strcmp(of->kind, "onebit_adam") == 0 ? 0.9f : config.beta2;
    config.freeze_ratio = of->freeze_ratio;
    config.low_rank = of->low_rank;
    config.low_rank_start = of->low_rank_start;
    config.lane_bits = of->lane_bits;
    config.dense_below = of->dense_below;
    config.sync_gradient = of->sync_gradient;
    config.density_steps = of->density_steps;
    config.measure_every = of->measure_every;
    config.sync_every = 7;
    config.momentum_every = of->names ? 7 : 0;
    config.momentum_names = config.mask_names = of->names;
    config.total_steps = steps;
    return config;
}

/* What every optimizer sends in a run is what its traffic states, by bytes; masks (slamb) within 2 %. */
static void test_traffic_is_what_a_run_sends(void **state)
{
    (void)state;
    enum { STEPS = 40 };
    static const struct sender senders[] = {
        {.kind = "adamw", .W = 2},
        {.kind = "adamw", .codec = "q4", .W = 3},
        {.kind = "adamw", .low_rank = 2, .low_rank_start = 5, .W = 2},
        {.kind = "sgd", .codec = "bf16", .W = 2},
        {.kind = "lamb", .codec = "sign", .W = 2},
        {.kind = "lion", .codec = "fp16", .W = 2},
        {.kind = "lamb", .codec = "topk", .W = 2},
        {.kind = "lamb", .codec = "topk_fp32", .W = 3},
        {.kind = "lamb", .codec = "randomk", .W = 2},
        {.kind = "qadam", .warmup_steps = 9, .W = 2},
        {.kind = "onebit_adam", .warmup_steps = 9, .W = 2},
        {.kind = "onebit_adam", .warmup_steps = 3, .freeze_ratio = 0.01f, .W = 2}, /* at the earliest */
        {.kind = "onebit_adam", .warmup_steps = 90, .W = 2},                       /* never */
        {.kind = "onebit_lamb", .warmup_steps = 9, .W = 3},
        {.kind = "lioncub", .names = "head,wte", .W = 2},
        {.kind = "lioncub", .codec = "lp5", .lane_bits = 8, .names = "head,wte", .W = 2},
        {.kind = "lioncub", .codec = "lp4", .lane_bits = 4, .names = "head,wte", .W = 8}, /* votes: rows are masked */
        {.kind = "slamb", .W = 2},
        {.kind = "slamb", .dense_below = 80, .sync_gradient = true, .W = 2},
        {.kind = "slamb", .codec = "fp16", .W = 2},
        {.kind = "slamb", .codec = "bf16", .sync_gradient = true, .W = 3},
        {.kind = "slamb", .density_steps = 20, .W = 2},
        {.kind = "slamb", .density_steps = 400, .dense_below = 80, .W = 2}, /* longer than the run */
        {.kind = "lioncub", .names = "head", .measure_every = 3, .W = 2},
        {.kind = "lioncub", .codec = "lp5", .lane_bits = 8, .measure_every = 7, .W = 4},
    };
    for (size_t i = 0; i < sizeof senders / sizeof *senders; i++) {
        const struct sender *of = &senders[i];
        const struct aq_optimizer_config config = sender_config(of, STEPS);
        struct aq_optimizer_traffic traffic;
        uint64_t sent = 0;
        ranks_open(&ranks, &config, of->W);
        for (uint64_t step = 1; step <= STEPS; step++) {
            ranks_gradients(&ranks, 31, step);
            ranks_step(&ranks, 0.001f, 1.0f, step);
            sent += ranks.sent;
        }
        ranks_close(&ranks);
        assert_int_equal(aq_optimizer_config_traffic(&config, rank_tensors, RANK_TENSORS, N, of->W, &traffic), AQ_OK);
        const uint64_t planned = aq_optimizer_traffic_bytes(&traffic, STEPS);
        const double slack = strcmp(of->kind, "slamb") == 0 ? 0.02 * (double)sent : 0;
        if (fabs((double)planned - (double)sent) > slack)
            fail_msg("%zu, %s: %llu bytes were sent, %llu planned", i, of->kind, (unsigned long long)sent,
                     (unsigned long long)planned);
        assert_true(traffic.coded == (of->lane_bits == 0 && strcmp(of->kind, "slamb") != 0));
    }
}

/*
 * SLAMB's Algorithm 2, LAMB under naive compression: gradients with the errors of the last step are coded, the mean of
 * what was sent is LAMB's gradient. Here the mean is made by hand, for an optimizer of one rank.
 */
static void test_naive_compression_is_algorithm_2(void **state)
{
    (void)state;
    enum { W = 3, STEPS = 6 };
    static const char *const codecs[] = {"topk_fp32", "randomk"};
    static float errors[W][N], mean[N];
    static uint8_t wire[8 * N];
    for (int k = 0; k < 2; k++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, "lamb");
        config.form = "norm";
        struct ranks alone;
        ranks_open(&alone, &config, 1);
        aq_grad_codec_config_default(&config.reduce, codecs[k]);
        config.reduce.density = 0.25f;
        struct aq_grad_codec *codec;
        assert_int_equal(aq_grad_codec_open(&config.reduce, rank_tensors, RANK_TENSORS, N, &codec), AQ_OK);
        ranks_open(&ranks, &config, W);
        memset(errors, 0, sizeof errors);
        for (uint64_t step = 1; step <= STEPS; step++) {
            ranks_gradients(&ranks, 31, step);
            for (uint32_t owner = 0; owner < W; owner++) {
                uint64_t first, count;
                aq_grad_chunk(N, W, owner, &first, &count);
                const size_t bytes = aq_grad_codec_bytes(codec, first, count);
                for (uint32_t w = 0; w < W; w++) {
                    assert_int_equal(
                        aq_grad_encode(codec, first, count, ranks.gradients[w] + first, errors[w] + first, step, wire),
                        AQ_OK);
                    assert_int_equal(aq_grad_decode(codec, first, count, wire, bytes, 1.0f / W, w > 0, mean + first),
                                     AQ_OK);
                }
            }
            memcpy(alone.gradients[0], mean, sizeof mean);
            ranks_step(&ranks, 0.01f, 1.0f, step);
            ranks_step(&alone, 0.01f, 1.0f, step);
            ranks_expect_equal_parameters(&ranks);
            assert_memory_equal(ranks.parameters[0], alone.parameters[0], N * sizeof(float));
        }
        assert_false(ranks_has_state(&ranks, "server_error")); /* the mean comes back without loss */
        ranks_close(&ranks);
        ranks_close(&alone);
        aq_grad_codec_close(codec);
    }
}

/* Equation 1 of 1-bit LAMB to the letter: eta under the root, and the ratio of a tensor of zeros is c_min. */
static void test_printed_lamb_is_equation_1(void **state)
{
    (void)state;
    enum { STEPS = 5 };
    static const char *const kinds[] = {"lamb", "onebit_lamb"};
    for (int k = 0; k < 2; k++) {
        struct aq_optimizer_config config;
        static double m[N], v[N], x[N];
        aq_optimizer_config_default(&config, kinds[k]);
        config.form = "printed";
        config.bias_correction = false;
        config.weight_decay = 0.0f;
        config.epsilon = 1e-6f;
        ranks_open(&ranks, &config, 1);
        const struct aq_optimizer_tensor *zeros = &rank_tensors[1];
        memset(ranks.parameters[0] + zeros->offset, 0, zeros->count * sizeof(float));
        memset(m, 0, sizeof m);
        memset(v, 0, sizeof v);
        for (uint64_t i = 0; i < N; i++)
            x[i] = (double)ranks.parameters[0][i];
        for (uint64_t step = 1; step <= STEPS; step++) {
            ranks_gradients(&ranks, 31, step);
            for (uint64_t i = 0; i < N; i++)
                ranks.gradients[0][i] *= 1e-3f; /* v is as small as eta */
            for (uint32_t t = 0; t < RANK_TENSORS; t++) {
                const struct aq_optimizer_tensor *of = &rank_tensors[t];
                double x2 = 0, u2 = 0;
                for (uint64_t i = of->offset; i < of->offset + of->count; i++) {
                    const double g = (double)ranks.gradients[0][i];
                    m[i] = (double)config.beta1 * m[i] + (1 - (double)config.beta1) * g;
                    v[i] = (double)config.beta2 * v[i] + (1 - (double)config.beta2) * g * g;
                    const double u = m[i] / sqrt(v[i] + 1e-6);
                    x2 += x[i] * x[i];
                    u2 += u * u;
                }
                const double c = fmin(fmax(u2 > 0 ? sqrt(x2 / u2) : 1e9, (double)config.coefficient_min),
                                      (double)config.coefficient_max);
                for (uint64_t i = of->offset; i < of->offset + of->count; i++)
                    x[i] -= 0.01 * c * m[i] / sqrt(v[i] + 1e-6);
            }
            ranks_step(&ranks, 0.01f, 1.0f, step);
            for (uint64_t i = 0; i < N; i++)
                if (ranks_is_in(i) && fabs(x[i] - (double)ranks.parameters[0][i]) > 2e-6 + 1e-5 * fabs(x[i]))
                    fail_msg("%s, step %llu, %llu: %g, expected %g", kinds[k], (unsigned long long)step,
                             (unsigned long long)i, (double)ranks.parameters[0][i], x[i]);
        }
        ranks_close(&ranks);
    }
}

/* Form "analysis" is form "paper" whose errors are multiplied by c(t-2) / c(t-1) between two steps, here by hand. */
static void test_analysis_of_onebit_lamb_scales_errors(void **state)
{
    (void)state;
    enum { W = 2, WARM = 3, STEPS = 9 };
    struct aq_optimizer_config config;
    static struct ranks scaled;
    float before[RANK_TENSORS], now[RANK_TENSORS]; /* of the tensors that are not empty */
    bool moved = false;
    aq_optimizer_config_default(&config, "onebit_lamb");
    config.warmup_steps = WARM;
    ranks_open(&ranks, &config, W);
    config.form = "analysis";
    ranks_open(&scaled, &config, W);
    for (int t = 0; t < RANK_TENSORS; t++)
        before[t] = now[t] = 1.0f;
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (uint32_t w = 0; w < W && step > WARM; w++) {
            float *worker = aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, "worker_error"));
            float *server = aq_optimizer_state(ranks.optimizers[w], ranks_state(&ranks, "server_error"));
            uint64_t first, count;
            aq_grad_chunk(N, W, w, &first, &count);
            for (int t = 0, of = 0; t < RANK_TENSORS; t++) {
                if (rank_tensors[t].count == 0) continue;
                const float factor = before[of] / now[of];
                of++;
                moved = moved || (factor != 1.0f && step < STEPS);
                for (uint64_t i = rank_tensors[t].offset; i < rank_tensors[t].offset + rank_tensors[t].count; i++) {
                    worker[i] *= factor;
                    if (i >= first && i < first + count) server[i - first] *= factor;
                }
            }
        }
        ranks_gradients(&ranks, 31, step);
        ranks_gradients(&scaled, 31, step);
        ranks_step(&ranks, 0.01f, 1.0f, step);
        ranks_step(&scaled, 0.01f, 1.0f, step);
        assert_memory_equal(ranks.parameters[0], scaled.parameters[0], N * sizeof(float));
        memcpy(before, now, sizeof now);
        struct aq_optimizer_state_info info;
        aq_optimizer_state_info(ranks.optimizers[0], ranks_state(&ranks, "ratio"), &info);
        memcpy(now, aq_optimizer_state(ranks.optimizers[0], ranks_state(&ranks, "ratio")), info.count * sizeof *now);
    }
    assert_true(moved);
    ranks_close(&ranks);
    ranks_close(&scaled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_analysis_of_onebit_lamb_scales_errors),
        cmocka_unit_test(test_naive_compression_is_algorithm_2),
        cmocka_unit_test(test_printed_lamb_is_equation_1),
        cmocka_unit_test(test_onebit_adam_freezes_when_the_variance_has_settled),
        cmocka_unit_test(test_parts_of_a_model_freeze_as_the_whole),
        cmocka_unit_test(test_void_steps_keep_what_is_due),
        cmocka_unit_test(test_dead_parameters_are_found_and_left_alone),
        cmocka_unit_test(test_errors_of_workers_and_servers_telescope),
        cmocka_unit_test(test_lioncub_rows_that_no_replica_uses_move_by_their_decay_alone),
        cmocka_unit_test(test_onebit_lamb_coefficient_of_a_tensor_of_zeros_is_one),
        cmocka_unit_test(test_traffic_is_what_a_run_sends),
        cmocka_unit_test(test_figures_of_onebit_lamb),
        cmocka_unit_test(test_figure_of_onebit_adam_is_what_freezes),
        cmocka_unit_test(test_figures_of_lioncub),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
