/*
 * conform_device_window.h -- attention: whole, at its size, with windows and a scale of its own, of both sides: against
 * the truth, and the truth against what it is defined as. A part of conform_device.c.
 */
#ifndef CONFORM_DEVICE_WINDOW_H
#define CONFORM_DEVICE_WINDOW_H

static enum aq_status attention_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_attention args = {.samples = x->samples,
                                      .T = x->T,
                                      .H = x->H,
                                      .kv_heads = x->share ? x->H / x->share : x->H,
                                      .D = x->D,
                                      .T_mask = x->T + x->T % 2 * 3,
                                      .window = x->window,
                                      .both = x->both,
                                      .lengths = x->both ? arrays[7].at : NULL,
                                      .scale = x->scale,
                                      .cap = x->cap,
                                      .type = x->type,
                                      .qkv = arrays[0].at,
                                      .out = arrays[1].at,
                                      .lse = arrays[2].at,
                                      .dropout = {.probability = x->dropout,
                                                  .keys = x->dropout > 0 ? arrays[5].at : NULL},
                                      .dout = arrays[3].at,
                                      .dqkv = x->rounded ? arrays[6].at : arrays[4].at,
                                      .dqkv_rounded = x->rounded ? arrays[4].at : NULL};
    const enum aq_status status = aq_device_attention(where, &args, NULL);
    return status == AQ_OK ? aq_device_attention_backward(where, &args, NULL) : status;
}

static void attention_run(const struct rows_case *x)
{
    const uint64_t N = x->samples * x->T * x->H * x->D, keys = x->samples * sizeof(struct aq_rng_key) / 4;
    const uint64_t all = N + 2 * N / (x->share ? x->share : 1);
    uint32_t *lengths = help_alloc(x->samples * sizeof *lengths);
    for (uint64_t i = 0; i < x->samples; i++)
        lengths[i] = (uint32_t)(i % 2 ? 1 + (x->T * i + 3) % x->T : i ? 1 : x->T);
    struct array arrays[8] = {{x->type, all, random_of(x->type, all, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                              {x->type, N, NULL, COMPARED, NULL, {0}},
                              {AQ_F32, x->samples * x->H * x->T, NULL, COMPARED, NULL, {0}},
                              {x->type, N, random_of(x->type, N, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                              {x->rounded ? x->type : AQ_F32, all, NULL, COMPARED_AS, NULL, {0}},
                              {AQ_F32, keys, help_alloc(keys * 4), NOT_COMPARED, NULL, {0}},
                              {AQ_F32, x->rounded ? all : 0, NULL, NOT_COMPARED, NULL, {0}},
                              {AQ_F32, x->samples, lengths, NOT_COMPARED, NULL, {0}}};
    for (uint64_t i = 0; i < x->samples; i++)
        ((struct aq_rng_key *)arrays[5].host)[i] = aq_rng_key(7, AQ_RNG_DROPOUT, 4, i);
    char text[128];
    snprintf(text, sizeof text, "attention of %llu x %llu tokens, %llu x %llu, window %llu, type %d, dropout %g",
             (unsigned long long)x->samples, (unsigned long long)x->T, (unsigned long long)x->H,
             (unsigned long long)x->D, (unsigned long long)x->window, x->type, (double)x->dropout);
    both_as(text, arrays, 8, attention_call, x, x->type, TIMES);
}

/*
 * One row, one tile, a tile and a bit, of 16, 32, 64 and 128 rows; widths that are no multiple of anything, and those
 * of tensor cores. In 16 bits the weights are rounded before they meet v: a unit of difference before rounding may
 * become one of 2^-8 after.
 */
static void test_attention_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][5] = {
        {1, 1, 1, 1},     {2, 5, 2, 8},      {2, 17, 3, 8},     {1, 64, 2, 16},     {2, 67, 2, 33},    {1, 130, 1, 24},
        {2, 150, 2, 20},  {1, 40, 2, 100},   {1, 33, 1, 260},   {1, 18, 1, 400},    {1, 1, 1, 64},     {2, 5, 2, 64},
        {1, 128, 2, 64},  {2, 67, 1, 64},    {1, 300, 1, 64},   {2, 20, 2, 128},    {1, 131, 1, 128},  {1, 200, 1, 128},
        {2, 37, 4, 8, 2}, {1, 70, 3, 20, 3}, {2, 67, 4, 64, 2}, {1, 131, 6, 64, 3}, {1, 70, 2, 128, 2}};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        if (!type_runs(s)) continue;
        const uint64_t *size = sizes[s / TYPES];
        const struct rows_case x = {.samples = size[0],
                                    .T = size[1],
                                    .H = size[2],
                                    .D = size[3],
                                    .type = types[s % TYPES],
                                    .dropout = s % 2 ? 0.3f : 0.0f,
                                    .rounded = s % TYPES && s / TYPES % 3,
                                    .share = size[4]};
        attention_run(&x);
    }
}

/*
 * Windows of one key, within a tile, of a tile and a bit, of whole tiles, as long as the text and longer; with heads
 * that share keys, and a scale of its own.
 */
static void test_attention_with_a_window_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][6] = {{2, 5, 2, 8, 1, 1},      {1, 70, 2, 20, 2, 7},    {1, 150, 1, 20, 1, 40},
                                        {1, 150, 2, 33, 2, 64},  {1, 37, 2, 100, 1, 37},  {1, 60, 1, 260, 1, 9},
                                        {1, 37, 1, 64, 1, 5},    {1, 131, 2, 64, 2, 64},  {1, 300, 1, 64, 1, 70},
                                        {1, 300, 2, 64, 2, 129}, {1, 200, 1, 128, 1, 30}, {1, 131, 1, 128, 1, 400},
                                        {1, 270, 1, 64, 1, 1},   {1, 40, 1, 400, 1, 16}};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        if (!type_runs(s)) continue;
        const uint64_t *size = sizes[s / TYPES];
        const struct rows_case x = {.samples = size[0],
                                    .T = size[1],
                                    .H = size[2],
                                    .D = size[3],
                                    .type = types[s % TYPES],
                                    .dropout = s % 2 ? 0.3f : 0.0f,
                                    .rounded = s % TYPES && s / TYPES % 3,
                                    .share = size[4],
                                    .window = size[5],
                                    .scale = s / TYPES % 4 ? 0.0f : 0.1f};
        attention_run(&x);
    }
}

/* Scores up to several times the cap and far below it; at the sizes of tensor cores, which do not have it, too. */
static void test_attention_with_a_cap_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][6] = {{2, 5, 2, 8, 1, 0},    {1, 70, 4, 20, 2, 7},   {1, 150, 2, 33, 2, 64},
                                        {1, 131, 2, 64, 2, 0}, {1, 40, 2, 128, 1, 9}, {1, 60, 1, 260, 1, 0}};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        if (!type_runs(s)) continue;
        const uint64_t *size = sizes[s / TYPES];
        const struct rows_case x = {.samples = size[0],
                                    .T = size[1],
                                    .H = size[2],
                                    .D = size[3],
                                    .type = types[s % TYPES],
                                    .dropout = s % 2 ? 0.3f : 0.0f,
                                    .rounded = s % TYPES && s / TYPES % 3,
                                    .share = size[4],
                                    .window = size[5],
                                    .cap = s / TYPES % 2 ? 0.4f : 30.0f};
        attention_run(&x);
    }
}

/* Of both sides: samples of several lengths, one of one token; windows of one key, narrower and wider than a tile. */
static void test_attention_of_both_sides_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][6] = {
        {1, 1, 1, 1, 1, 0},   {2, 5, 2, 8, 1, 0},   {4, 67, 2, 33, 1, 0}, {2, 130, 2, 24, 2, 0}, {1, 200, 1, 64, 1, 0},
        {3, 70, 2, 20, 2, 7}, {2, 150, 1, 20, 1, 1}, {2, 150, 1, 64, 1, 9}, {1, 150, 2, 33, 2, 64},
        {2, 200, 1, 16, 1, 65}, {2, 67, 4, 64, 2, 90}, {1, 33, 1, 260, 1, 5}, {1, 20, 1, 400, 1, 0},
        {2, 45, 4, 128, 2, 20}};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        if (!type_runs(s)) continue;
        const uint64_t *size = sizes[s / TYPES];
        const struct rows_case x = {.samples = size[0],
                                    .T = size[1],
                                    .H = size[2],
                                    .D = size[3],
                                    .type = types[s % TYPES],
                                    .dropout = s % 2 ? 0.3f : 0.0f,
                                    .rounded = s % TYPES && s / TYPES % 3,
                                    .share = size[4],
                                    .window = size[5],
                                    .both = true};
        attention_run(&x);
    }
}

enum { WINDOWED_T = 150, WINDOWED_D = 3, WINDOWED = 40 };

/* One head's attention as it is defined: the sum of out times dout; out, where it is wanted. */
static double attention_defined(const double *qkv, const float *dout, int length, bool both, double cap, double *out)
{
    double total = 0.0;
    for (int i = 0; i < length; i++) {
        double weights[WINDOWED_T] = {0}, sum = 0.0;
        const double *q = qkv + (ptrdiff_t)i * 3 * WINDOWED_D;
        for (int j = 0; j < length; j++) {
            const double *k = qkv + (ptrdiff_t)(3 * j + 1) * WINDOWED_D;
            double score = 0.0;
            for (int d = 0; d < WINDOWED_D; d++)
                score += q[d] * k[d] * 0.5;
            if (cap > 0.0) score = cap * tanh(score / cap);
            if ((both ? j < i + WINDOWED : j <= i) && i < j + WINDOWED) sum += weights[j] = exp(score);
        }
        for (int d = 0; d < WINDOWED_D; d++) {
            double value = 0.0;
            for (int j = 0; j < length; j++)
                value += weights[j] / sum * qkv[(3 * j + 2) * WINDOWED_D + d];
            if (out) out[i * WINDOWED_D + d] = value;
            total += value * (double)dout[i * WINDOWED_D + d];
        }
    }
    return total;
}

/* The truth itself: window and scale as device_math.h says them, and the gradient along a direction. */
static void defined_check(bool both, float cap, uint32_t length)
{
    enum { N = WINDOWED_T * WINDOWED_D, ALL = 3 * N };
    const struct rows_case x = {
        .samples = 1, .T = WINDOWED_T, .H = 1, .D = WINDOWED_D, .window = WINDOWED, .scale = 0.5f, .cap = cap,
        .both = both};
    float *hosts[] = {random_of(AQ_F32, ALL, 1, 1.0f), NULL, NULL, random_of(AQ_F32, N, 2, 1.0f), NULL};
    float *along = random_of(AQ_F32, ALL, 3, 1.0f), *out = help_alloc(N * 4), *dqkv = help_alloc(ALL * 4);
    struct array arrays[8] = {{.at = on(device, hosts[0], ALL * 4)},
                              {.at = on(device, NULL, N * 4)},
                              {.at = on(device, NULL, WINDOWED_T * 4)},
                              {.at = on(device, hosts[3], N * 4)},
                              {.at = on(device, NULL, ALL * 4)},
                              {.at = NULL},
                              {.at = NULL},
                              {.at = on(device, &length, sizeof length)}};
    const int real = (int)length;
    double moved[2][ALL], expected[N] = {0}, slope = 0.0;
    for (int i = 0; i < ALL; i++) {
        moved[0][i] = (double)hosts[0][i] + 1e-5 * (double)along[i];
        moved[1][i] = (double)hosts[0][i] - 1e-5 * (double)along[i];
    }
    const double more = attention_defined(moved[0], hosts[3], real, both, (double)cap, NULL);
    const double numeric = (more - attention_defined(moved[1], hosts[3], real, both, (double)cap, NULL)) / 2e-5;
    for (int i = 0; i < ALL; i++)
        moved[0][i] = (double)hosts[0][i];
    attention_defined(moved[0], hosts[3], real, both, (double)cap, expected);
    assert_int_equal(attention_call(device, arrays, &x), AQ_OK);
    off(device, arrays[0].at, NULL, ALL * 4);
    off(device, arrays[1].at, out, N * 4);
    off(device, arrays[2].at, NULL, WINDOWED_T * 4);
    off(device, arrays[3].at, NULL, N * 4);
    off(device, arrays[4].at, dqkv, ALL * 4);
    off(device, arrays[7].at, NULL, sizeof length);
    for (int i = 0; i < ALL; i++)
        slope += (double)dqkv[i] * (double)along[i];
    for (int i = 0; i < N; i++)
        assert_true(fabs((double)out[i] - expected[i]) < 1e-5);
    assert_true(fabs(slope - numeric) < 1e-4 * (1.0 + fabs(numeric)));
    aq_free(hosts[0]);
    aq_free(hosts[3]);
    aq_free(along);
    aq_free(out);
    aq_free(dqkv);
}

static void test_attention_with_a_window_is_as_defined(void **state)
{
    (void)state;
    defined_check(false, 0.0f, WINDOWED_T);
    defined_check(false, 0.3f, WINDOWED_T);
    defined_check(true, 0.0f, WINDOWED_T);
    defined_check(true, 0.0f, WINDOWED_T - 61);
    defined_check(true, 2.0f, WINDOWED_T - 61);
}

/*
 * GPT-2's own extents, 1024 tokens and 64 channels a head, and the widest of tensor cores; three heads, because the
 * truth takes most of the time. On a GPU alone: elsewhere hours.
 */
static void attention_at_its_size(uint64_t D)
{
#ifdef AQ_CUDA_ON_HOST
    (void)D;
    skip();
#else
    if (!gpu) skip();
    for (int i = 0; i < TYPES; i++) {
        const struct rows_case x = {.samples = 1,
                                    .T = 1024,
                                    .H = 3,
                                    .D = D,
                                    .type = types[i],
                                    .dropout = i % 2 ? 0.1f : 0.0f,
                                    .rounded = types[i] != AQ_F32};
        attention_run(&x);
    }
#endif
}

static void test_attention_at_its_size_matches_truth(void **state)
{
    (void)state;
    attention_at_its_size(64);
}

static void test_attention_at_its_widest_matches_truth(void **state)
{
    (void)state;
    attention_at_its_size(128);
}

#endif
