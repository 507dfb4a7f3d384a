/*
 * conform_device_conv.h -- causal convolutions along tokens: against the truth, by their definition with differences
 * for gradients, and a token after another from a cache. A part of conform_device.c.
 */
#ifndef CONFORM_DEVICE_CONV_H
#define CONFORM_DEVICE_CONV_H

struct causal_case {
    uint64_t samples, T, C, K;
    bool gates, silu, bias, parts, frozen;
    enum aq_element type;
};

enum { CAUSAL_ARRAYS = 9 };

static uint64_t causal_width(const struct causal_case *x)
{
    return (x->gates ? 3 : 1) * x->C + 5; /* rows lie apart */
}

/* 0 x, 1 w, 2 bias, 3 starts, 4 y, 5 dy, 6 dx, 7 dw, 8 dbias */
static struct aq_causal_conv causal_of(const struct causal_case *x, const struct array *arrays)
{
    return (struct aq_causal_conv){.samples = x->samples,
                                   .T = x->T,
                                   .C = x->C,
                                   .K = x->K,
                                   .gates = x->gates,
                                   .silu = x->silu,
                                   .type = x->type,
                                   .stride = causal_width(x),
                                   .x = arrays[0].at,
                                   .w = arrays[1].at,
                                   .bias = x->bias ? arrays[2].at : NULL,
                                   .starts = x->parts ? arrays[3].at : NULL,
                                   .y = arrays[4].at,
                                   .dy = arrays[5].at,
                                   .dx = arrays[6].at,
                                   .dw = x->frozen ? NULL : arrays[7].at,
                                   .dbias = x->bias && !x->frozen ? arrays[8].at : NULL};
}

static enum aq_status causal_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct aq_causal_conv args = causal_of(context, arrays);
    AQ_TRY(aq_device_causal_conv(where, &args, NULL));
    return aq_device_causal_conv_backward(where, &args, NULL);
}

/* Parts of one, two, three ... tokens. */
static uint32_t *causal_starts(const struct causal_case *x)
{
    uint32_t *starts = help_alloc(x->samples * x->T * sizeof *starts);
    for (uint64_t s = 0; s < x->samples; s++)
        for (uint64_t t = 0, start = 0, size = 1 + s; t < x->T; t++) {
            if (t - start == size) {
                start = t;
                size++;
            }
            starts[s * x->T + t] = (uint32_t)start;
        }
    return starts;
}

static void causal_arrays(const struct causal_case *x, struct array *arrays)
{
    const uint64_t rows = x->samples * x->T, N = rows * x->C, W = rows * causal_width(x);
    const struct array all[CAUSAL_ARRAYS] = {
        {x->type, W, random_of(x->type, W, 1, 1.0f), NOT_COMPARED, NULL, {0}},
        {AQ_F32, x->C * x->K, random_of(AQ_F32, x->C * x->K, 2, 0.5f), NOT_COMPARED, NULL, {0}},
        {AQ_F32, x->C, random_of(AQ_F32, x->C, 3, 0.5f), NOT_COMPARED, NULL, {0}},
        {AQ_F32, rows, causal_starts(x), NOT_COMPARED, NULL, {0}},
        {x->type, N, NULL, COMPARED, NULL, {0}},
        {x->type, N, random_of(x->type, N, 4, 1.0f), NOT_COMPARED, NULL, {0}},
        {x->type, W, random_of(x->type, W, 5, 1.0f), COMPARED, NULL, {0}}, /* what lies between rows stays */
        {AQ_F32, x->C * x->K, random_of(AQ_F32, x->C * x->K, 6, 1.0f), COMPARED, NULL, {0}},
        {AQ_F32, x->C, random_of(AQ_F32, x->C, 7, 1.0f), COMPARED, NULL, {0}}};
    memcpy(arrays, all, sizeof all);
}

/* All taps that kernels have a form of their own for, and others; samples shorter than the taps, blocks of columns. */
static void test_causal_conv_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][4] = {{1, 1, 1, 1},    {2, 2, 5, 3},    {3, 40, 33, 3},
                                        {1, 70, 130, 4}, {2, 65, 16, 2},  {2, 9, 7, 16},
                                        {1, 100, 20, 7}, {2, 33, 700, 3}, {40, 3, 24, 4}};
    for (size_t s = 0; s < 4 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        if (!runs(s, 4 * TYPES, 4)) continue;
        const uint64_t *size = sizes[s / TYPES / 4], form = s / TYPES % 4;
        const struct causal_case x = {.samples = size[0],
                                      .T = size[1],
                                      .C = size[2],
                                      .K = size[3],
                                      .gates = form % 2,
                                      .silu = form / 2,
                                      .bias = (form + s) % 2,
                                      .parts = (s / 5) % 2,
                                      .frozen = s % 7 == 6,
                                      .type = types[s % TYPES]};
        struct array arrays[CAUSAL_ARRAYS];
        char text[128];
        causal_arrays(&x, arrays);
        snprintf(text, sizeof text, "conv %llu x %llu, %llu columns, %llu taps, gates %d, silu %d, parts %d, type %d",
                 (unsigned long long)x.samples, (unsigned long long)x.T, (unsigned long long)x.C,
                 (unsigned long long)x.K, x.gates, x.silu, x.parts, x.type);
        both(text, arrays, CAUSAL_ARRAYS, causal_call, &x);
    }
}

/* The sum over y times its gradient, in double, straight from the definition. */
static double causal_loss(const struct causal_case *x, const float *values, const float *w, const float *bias,
                          const uint32_t *starts, const float *dy, float *y)
{
    double loss = 0.0;
    for (uint64_t r = 0; r < x->samples * x->T; r++)
        for (uint64_t c = 0; c < x->C; c++) {
            const uint64_t start = x->parts ? starts[r] : 0;
            double z = x->bias ? (double)bias[c] : 0.0;
            for (uint64_t k = 0; k < x->K; k++) {
                const uint64_t back = x->K - 1 - k;
                if (r % x->T < start + back) continue;
                const float *row = values + (r - back) * causal_width(x) + c;
                z += (double)w[c * x->K + k] * (double)row[0] * (x->gates ? (double)row[2 * x->C] : 1.0);
            }
            const double act = x->silu ? z / (1.0 + exp(-z)) : z;
            const double out = act * (x->gates ? (double)values[r * causal_width(x) + x->C + c] : 1.0);
            if (y) y[r * x->C + c] = (float)out;
            loss += out * (double)dy[r * x->C + c];
        }
    return loss;
}

/* Differences of the definition, in `count` values, against the gradient that the device gave. */
static void causal_differences(const char *what, const struct causal_case *x, struct array *arrays, uint32_t of,
                               uint64_t count, const float *gradient)
{
    float *values = arrays[of].host, *expected = help_alloc(count * sizeof *expected);
    for (uint64_t i = 0; i < count; i++) {
        const float kept = values[i], step = 0x1p-10f;
        values[i] = kept + step;
        const double up =
            causal_loss(x, arrays[0].host, arrays[1].host, arrays[2].host, arrays[3].host, arrays[5].host, NULL);
        const double above = (double)values[i];
        values[i] = kept - step;
        const double down =
            causal_loss(x, arrays[0].host, arrays[1].host, arrays[2].host, arrays[3].host, arrays[5].host, NULL);
        expected[i] = (float)((up - down) / (above - (double)values[i]));
        values[i] = kept;
    }
    near(what, gradient, expected, AQ_F32, count, 1e-5);
    aq_free(expected);
}

static void test_causal_conv_is_its_definition(void **state)
{
    (void)state;
    for (int form = 0; form < 8; form++) {
        const struct causal_case x = {.samples = 2,
                                      .T = 11,
                                      .C = 3,
                                      .K = form % 2 ? 4 : 3,
                                      .gates = form / 2 % 2,
                                      .silu = form / 4,
                                      .bias = form % 2,
                                      .parts = form % 3 != 0,
                                      .type = AQ_F32};
        struct array arrays[CAUSAL_ARRAYS];
        void *got[CAUSAL_ARRAYS];
        causal_arrays(&x, arrays);
        for (int i = 6; i < CAUSAL_ARRAYS; i++)
            memset(arrays[i].host, 0, arrays[i].count * 4);
        for (int i = 0; i < CAUSAL_ARRAYS; i++)
            arrays[i].at = on(device, arrays[i].host, arrays[i].count * 4);
        assert_int_equal(causal_call(device, arrays, &x), AQ_OK);
        for (int i = 0; i < CAUSAL_ARRAYS; i++)
            off(device, arrays[i].at, got[i] = help_alloc(arrays[i].count * 4), arrays[i].count * 4);
        float *y = help_alloc(arrays[4].count * sizeof *y);
        causal_loss(&x, arrays[0].host, arrays[1].host, arrays[2].host, arrays[3].host, arrays[5].host, y);
        near("a convolution by definition", got[4], y, AQ_F32, arrays[4].count, 1e-6);
        causal_differences("its input's gradient", &x, arrays, 0, arrays[0].count, got[6]);
        causal_differences("its weights' gradient", &x, arrays, 1, arrays[1].count, got[7]);
        if (x.bias) causal_differences("its bias' gradient", &x, arrays, 2, arrays[2].count, got[8]);
        for (int i = 0; i < CAUSAL_ARRAYS; i++) {
            aq_free(arrays[i].host);
            aq_free(got[i]);
        }
        aq_free(y);
    }
}

static void *causal_at(void *memory, size_t bytes)
{
    return (uint8_t *)memory + bytes;
}

/*
 * Tokens in pieces give what all at once give: with a cache of all tokens, and with one of the last K - 1. The first
 * one may go back to an earlier token.
 */
static void test_causal_conv_goes_on_from_its_cache(void **state)
{
    (void)state;
    static const uint64_t pieces[] = {0, 5, 6, 7, 10, 11, 40, 41};
    for (int form = 0; form < 8; form++) {
        const struct causal_case x = {.samples = 1,
                                      .T = 41,
                                      .C = 19,
                                      .K = form % 2 ? 4 : 3,
                                      .gates = form / 2 % 2,
                                      .silu = form / 4,
                                      .bias = form % 2,
                                      .type = form == 7 ? AQ_BF16 : AQ_F32};
        const size_t type = aq_element_bytes(x.type), bytes = x.T * x.C * type;
        struct array arrays[CAUSAL_ARRAYS];
        causal_arrays(&x, arrays);
        void *whole = help_alloc(bytes), *steps = help_alloc(bytes);
        for (int i = 0; i < CAUSAL_ARRAYS; i++)
            arrays[i].at = on(device, arrays[i].host, bytes_of(arrays[i].type, arrays[i].count));
        struct aq_causal_conv args = causal_of(&x, arrays);
        assert_int_equal(aq_device_causal_conv(device, &args, NULL), AQ_OK);
        assert_int_equal(aq_device_copy(device, whole, args.y, bytes, NULL), AQ_OK);
        for (uint64_t rows = x.K - 1; rows <= x.T; rows += x.T - (x.K - 1)) {
            args.rows = rows;
            args.cache = on(device, NULL, rows * x.C * type);
            for (size_t i = 0; i + 1 < sizeof pieces / sizeof pieces[0]; i++) {
                args.first = pieces[i];
                args.T = pieces[i + 1] - pieces[i];
                args.x = causal_at(arrays[0].at, args.first * args.stride * type);
                args.y = causal_at(arrays[4].at, args.first * x.C * type);
                assert_int_equal(aq_device_causal_conv(device, &args, NULL), AQ_OK);
            }
            if (rows == x.T) { /* back, in the middle of what there is */
                args.first = 20;
                args.T = 2;
                args.x = causal_at(arrays[0].at, args.first * args.stride * type);
                args.y = causal_at(arrays[4].at, args.first * x.C * type);
                assert_int_equal(aq_device_causal_conv(device, &args, NULL), AQ_OK);
            }
            assert_int_equal(aq_device_copy(device, steps, arrays[4].at, bytes, NULL), AQ_OK);
            assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
            near("a convolution from its cache", steps, whole, x.type, x.T * x.C, near_of(x.type));
            off(device, args.cache, NULL, rows * x.C * type);
        }
        for (int i = 0; i < CAUSAL_ARRAYS; i++) {
            off(device, arrays[i].at, NULL, bytes_of(arrays[i].type, arrays[i].count));
            aq_free(arrays[i].host);
        }
        aq_free(whole);
        aq_free(steps);
    }
}

#endif
