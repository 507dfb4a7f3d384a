/*
 * conform_device_window.h -- attention at its size, and attention in which a query sees the last keys alone, by a scale
 * of its own: against the truth, and the truth against what it is defined as. A part of conform_device.c.
 */
#ifndef CONFORM_DEVICE_WINDOW_H
#define CONFORM_DEVICE_WINDOW_H

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

enum { WINDOWED_T = 150, WINDOWED_D = 3, WINDOWED = 40 };

/* One head's attention as it is defined: the sum of out times dout; out, where it is wanted. */
static double attention_defined(const double *qkv, const float *dout, double *out)
{
    double total = 0.0;
    for (int i = 0; i < WINDOWED_T; i++) {
        double weights[WINDOWED_T] = {0}, sum = 0.0;
        const double *q = qkv + (ptrdiff_t)i * 3 * WINDOWED_D;
        for (int j = 0; j < WINDOWED_T; j++) {
            const double *k = qkv + (ptrdiff_t)(3 * j + 1) * WINDOWED_D;
            double score = 0.0;
            for (int d = 0; d < WINDOWED_D; d++)
                score += q[d] * k[d] * 0.5;
            if (j <= i && i < j + WINDOWED) sum += weights[j] = exp(score);
        }
        for (int d = 0; d < WINDOWED_D; d++) {
            double value = 0.0;
            for (int j = 0; j < WINDOWED_T; j++)
                value += weights[j] / sum * qkv[(3 * j + 2) * WINDOWED_D + d];
            if (out) out[i * WINDOWED_D + d] = value;
            total += value * (double)dout[i * WINDOWED_D + d];
        }
    }
    return total;
}

/* The truth itself: window and scale as device_math.h says them, and the gradient along a direction. */
static void test_attention_with_a_window_is_as_defined(void **state)
{
    (void)state;
    enum { N = WINDOWED_T * WINDOWED_D, ALL = 3 * N };
    const struct rows_case x = {
        .samples = 1, .T = WINDOWED_T, .H = 1, .D = WINDOWED_D, .window = WINDOWED, .scale = 0.5f};
    float *hosts[] = {random_of(AQ_F32, ALL, 1, 1.0f), NULL, NULL, random_of(AQ_F32, N, 2, 1.0f), NULL};
    float *along = random_of(AQ_F32, ALL, 3, 1.0f), *out = help_alloc(N * 4), *dqkv = help_alloc(ALL * 4);
    struct array arrays[7] = {{.at = on(device, hosts[0], ALL * 4)},
                              {.at = on(device, NULL, N * 4)},
                              {.at = on(device, NULL, WINDOWED_T * 4)},
                              {.at = on(device, hosts[3], N * 4)},
                              {.at = on(device, NULL, ALL * 4)}};
    double moved[2][ALL], expected[N], slope = 0.0;
    for (int i = 0; i < ALL; i++) {
        moved[0][i] = (double)hosts[0][i] + 1e-5 * (double)along[i];
        moved[1][i] = (double)hosts[0][i] - 1e-5 * (double)along[i];
    }
    const double numeric =
        (attention_defined(moved[0], hosts[3], NULL) - attention_defined(moved[1], hosts[3], NULL)) / 2e-5;
    for (int i = 0; i < ALL; i++)
        moved[0][i] = (double)hosts[0][i];
    attention_defined(moved[0], hosts[3], expected);
    assert_int_equal(attention_call(device, arrays, &x), AQ_OK);
    off(device, arrays[0].at, NULL, ALL * 4);
    off(device, arrays[1].at, out, N * 4);
    off(device, arrays[2].at, NULL, WINDOWED_T * 4);
    off(device, arrays[3].at, NULL, N * 4);
    off(device, arrays[4].at, dqkv, ALL * 4);
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

/*
 * GPT-2's own: 12 heads, 1024 tokens, 64 channels a head, and the widest of tensor cores. On a GPU alone: elsewhere
 * hours.
 */
static void test_attention_at_its_size_matches_truth(void **state)
{
    (void)state;
#ifdef AQ_CUDA_ON_HOST
    skip();
#endif
    if (!gpu) skip();
    for (uint64_t D = 64; D <= 128; D += 64)
        for (int i = 0; i < TYPES; i++) {
            const struct rows_case x = {.samples = 1,
                                        .T = 1024,
                                        .H = 12,
                                        .D = D,
                                        .type = types[i],
                                        .dropout = i % 2 ? 0.1f : 0.0f,
                                        .rounded = types[i] != AQ_F32};
            attention_run(&x);
        }
}

#endif
