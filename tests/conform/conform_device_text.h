/*
 * conform_device_text.h -- the operations of encoders of text: disentangled attention with samples of several lengths,
 * the exact GELU, rows beside their neighbours. A part of conform_device.c.
 */
#ifndef CONFORM_DEVICE_TEXT_H
#define CONFORM_DEVICE_TEXT_H

/* Rows of the positions that follow the distance one by one to `near`, then four distances a row. */
static uint64_t positions_index(int32_t *index, uint64_t T, int64_t nearest)
{
    const int64_t last = (int64_t)T - 1, far = last > nearest ? (last - nearest + 3) / 4 : 0;
    const int64_t middle = (last < nearest ? last : nearest) + far;
    for (int64_t distance = -last; distance <= last; distance++) {
        const int64_t size = distance < 0 ? -distance : distance;
        const int64_t row = size <= nearest ? size : nearest + (size - nearest + 3) / 4;
        index[distance + last] = (int32_t)(middle + (distance < 0 ? -row : row));
    }
    return (uint64_t)(2 * middle + 1);
}

static enum aq_status disentangled_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_disentangled args = {.samples = x->samples,
                                         .T = x->T,
                                         .H = x->H,
                                         .D = x->D,
                                         .T_mask = x->T + 2,
                                         .R = arrays[1].count / (2 * x->H * x->D),
                                         .scale = 1.0f / sqrtf(3.0f * (float)x->D),
                                         .type = x->type,
                                         .qkv = arrays[0].at,
                                         .positions = arrays[1].at,
                                         .index = arrays[2].at,
                                         .lengths = x->rounded ? NULL : arrays[3].at,
                                         .out = arrays[4].at,
                                         .lse = arrays[5].at,
                                         .dropout = {.probability = x->dropout, .keys = arrays[7].at},
                                         .dout = arrays[6].at,
                                         .dqkv = arrays[8].at,
                                         .dpositions = arrays[9].at};
    const enum aq_status status = aq_device_disentangled(where, &args, NULL);
    return status == AQ_OK ? aq_device_disentangled_backward(where, &args, NULL) : status;
}

static void test_disentangled_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][4] = {{1, 1, 1, 1},   {2, 5, 2, 8},    {3, 17, 3, 7},   {1, 64, 2, 16},
                                        {4, 67, 2, 33}, {2, 130, 1, 24}, {2, 151, 2, 64}, {1, 200, 2, 20}};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        if (!type_runs(s)) continue;
        const uint64_t *size = sizes[s / TYPES];
        const struct rows_case x = {.samples = size[0],
                                    .T = size[1],
                                    .H = size[2],
                                    .D = size[3],
                                    .type = types[s % TYPES],
                                    .dropout = s % 2 ? 0.3f : 0.0f,
                                    .rounded = s % 5 == 4 /* here: all are whole */};
        const uint64_t N = x.samples * x.T * x.H * x.D, keys = x.samples * sizeof(struct aq_rng_key) / 4;
        int32_t *index = help_alloc((2 * x.T - 1) * sizeof *index);
        uint32_t *lengths = help_alloc(x.samples * sizeof *lengths);
        const uint64_t R = positions_index(index, x.T, 40) + s % 3, P = R * 2 * x.H * x.D;
        for (uint64_t i = 0; i < x.samples; i++)
            lengths[i] = (uint32_t)(i % 2 ? 1 + (x.T * i + 3) % x.T : i ? 1 : x.T);
        struct array arrays[10] = {{x.type, 3 * N, random_of(x.type, 3 * N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {x.type, P, random_of(x.type, P, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, 2 * x.T - 1, index, NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, x.samples, lengths, NOT_COMPARED, NULL, {0}},
                                   {x.type, N, random_of(x.type, N, 5, 1.0f), COMPARED, NULL, {0}},
                                   {AQ_F32, x.samples * x.H * x.T, NULL, COMPARED_AS, NULL, {0}},
                                   {x.type, N, random_of(x.type, N, 3, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, keys, help_alloc(keys * 4), NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, 3 * N, random_of(AQ_F32, 3 * N, 6, 1.0f), COMPARED_AS, NULL, {0}},
                                   {AQ_F32, P, random_of(AQ_F32, P, 7, 1.0f), COMPARED_AS, NULL, {0}}};
        for (uint64_t i = 0; i < x.samples; i++)
            ((struct aq_rng_key *)arrays[7].host)[i] = aq_rng_key(7, AQ_RNG_DROPOUT, 4, i);
        char text[128];
        snprintf(text, sizeof text, "disentangled attention of %llu x %llu tokens, %llu x %llu, type %d, dropout %g",
                 (unsigned long long)x.samples, (unsigned long long)x.T, (unsigned long long)x.H,
                 (unsigned long long)x.D, x.type, (double)x.dropout);
        both_as(text, arrays, 10, disentangled_call, &x, x.type, TIMES);
    }
}

/* By its definition, in double: every query, every real key, a sum of three products; padding gives 0. */
static void test_disentangled_is_its_definition(void **state)
{
    (void)state;
    enum { T = 23, H = 2, D = 6, C = H * D, B = 2 };
    static const uint32_t lengths[B] = {T, 9};
    int32_t index[2 * T - 1];
    const uint64_t R = positions_index(index, T, 5);
    float *qkv = random_of(AQ_F32, B * T * 3 * C, 1, 1.0f), *positions = random_of(AQ_F32, R * 2 * C, 2, 1.0f);
    float *expected = help_alloc(B * T * C * sizeof(float)), *got = help_alloc(B * T * C * sizeof(float));
    for (uint64_t row = 0; row < (uint64_t)B * T * H; row++) {
        const uint64_t sample = row / H / T, i = row / H % T, h = row % H, length = (uint64_t)lengths[sample];
        double weights[T], total = 0.0;
        for (uint64_t j = 0; i < length && j < length; j++) {
            const float *q = qkv + (sample * T + i) * 3 * C + h * D, *k = qkv + (sample * T + j) * 3 * C + C + h * D;
            const float *qr = positions + (uint64_t)index[i + T - 1 - j] * 2 * C + h * D, *kr = qr + C;
            double score = 0.0;
            for (int d = 0; d < D; d++)
                score += (double)q[d] * k[d] + (double)q[d] * kr[d] + (double)k[d] * qr[d];
            total += weights[j] = exp(score / sqrt(3.0 * D));
        }
        for (uint64_t d = 0; d < D; d++) {
            double sum = 0.0;
            for (uint64_t j = 0; i < length && j < length; j++)
                sum += weights[j] / total * qkv[(sample * T + j) * 3 * C + 2 * C + h * D + d];
            expected[(sample * T + i) * C + h * D + d] = (float)sum;
        }
    }
    struct array arrays[10] = {{AQ_F32, (uint64_t)B * T * 3 * C, qkv, NOT_COMPARED, NULL, {0}},
                               {AQ_F32, R * 2 * C, positions, NOT_COMPARED, NULL, {0}}};
    const struct rows_case x = {.samples = B, .T = T, .H = H, .D = D, .type = AQ_F32};
    const size_t bytes[10] = {B * T * 3 * C * 4, R * 2 * C * 4,        sizeof index,  sizeof lengths,
                              B * T * C * 4,     B * T * H * 4,        B * T * C * 4, 4,
                              B * T * 3 * C * 4, (size_t)R * 2 * C * 4};
    const void *const hosts[10] = {qkv, positions, index, lengths};
    for (int i = 0; i < 10; i++)
        arrays[i].at = on(device, hosts[i], bytes[i]);
    assert_int_equal(disentangled_call(device, arrays, &x), AQ_OK);
    for (int i = 0; i < 10; i++)
        off(device, arrays[i].at, i == 4 ? got : NULL, bytes[i]);
    near("disentangled attention, by definition", got, expected, AQ_F32, (uint64_t)B * T * C, 3e-6);
    aq_free(qkv);
    aq_free(positions);
    aq_free(expected);
    aq_free(got);
}

/* Rows that no distance reads change nothing, however many there are between those of neighbours, and get nothing. */
static void test_disentangled_whatever_rows_lie_between(void **state)
{
    (void)state;
    enum { T = 150, H = 2, D = 8, C = H * D, B = 2, ROWS = 2 * T - 1 };
    const uint64_t apart_max = slow() && !sample_all() ? 3 : 200;
    static const uint32_t lengths[B] = {T, 90};
    const uint64_t samples = slow() && !sample_all() ? 1 : B;
    const struct rows_case x = {.samples = samples, .T = T, .H = H, .D = D, .type = AQ_F32};
    const uint64_t N = samples * T * C, P = (uint64_t)2 * C;
    float *qkv = random_of(AQ_F32, 3 * N, 1, 1.0f), *dout = random_of(AQ_F32, N, 3, 1.0f);
    float *few = random_of(AQ_F32, ROWS * P, 2, 1.0f), *first[3] = {NULL};
    for (uint64_t apart = 1; apart <= apart_max; apart += apart == 1 ? 2 : 197) {
        int32_t index[ROWS];
        const uint64_t R = apart * (ROWS - 1) + 1;
        float *positions = random_of(AQ_F32, R * P, 9, 1.0f);
        for (uint64_t r = 0; r < ROWS; r++) {
            index[r] = (int32_t)(apart * r);
            memcpy(positions + apart * r * P, few + r * P, P * sizeof(float));
        }
        struct array arrays[10] = {{.at = NULL}};
        const size_t bytes[10] = {3 * N * 4, R * P * 4, sizeof index, sizeof lengths, N * 4,
                                  samples * T * H * 4, N * 4, 4, 3 * N * 4, R * P * 4};
        const void *const hosts[10] = {qkv, positions, index, lengths, NULL, NULL, dout};
        float *got[3] = {help_alloc(N * 4), help_alloc(3 * N * 4), help_alloc(R * P * 4)};
        for (int i = 0; i < 10; i++)
            arrays[i].at = on(device, hosts[i], bytes[i]);
        arrays[1].count = R * P;
        assert_int_equal(disentangled_call(device, arrays, &x), AQ_OK);
        for (int i = 0; i < 10; i++)
            off(device, arrays[i].at, i == 4 ? got[0] : i == 8 ? got[1] : i == 9 ? got[2] : NULL, bytes[i]);
        for (uint64_t r = 0; r < R; r++) {
            double sum = 0;
            for (uint64_t c = 0; c < P; c++)
                sum += fabs((double)got[2][r * P + c]);
            assert_true(r % apart == 0 || sum == 0);
            if (r % apart == 0) memmove(got[2] + r / apart * P, got[2] + r * P, P * sizeof(float));
        }
        for (int i = 0; i < 3 && first[0]; i++) {
            near("rows between", got[i], first[i], AQ_F32, i == 0 ? N : i == 1 ? 3 * N : ROWS * P, 3e-6);
            aq_free(got[i]);
        }
        if (!first[0]) memcpy(first, got, sizeof first);
        aq_free(positions);
    }
    for (int i = 0; i < 3; i++)
        aq_free(first[i]);
    aq_free(qkv);
    aq_free(dout);
    aq_free(few);
}

static enum aq_status gelu_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_gelu args = {.count = x->T,
                                 .type = x->type,
                                 .x = arrays[0].at,
                                 .other = x->rounded ? arrays[4].at : NULL,
                                 .y = x->rounded ? arrays[5].at : arrays[1].at};
    const struct aq_gelu_backward back = {
        .count = x->T, .type = x->type, .x = arrays[0].at, .dy = arrays[2].at, .dx = arrays[3].at};
    const enum aq_status status = aq_device_gelu(where, &args, NULL);
    return status == AQ_OK ? aq_device_gelu_backward(where, &back, NULL) : status;
}

static void test_gelu_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 3, 16, 31, 257, 40003};
    for (size_t s = 0; s < 2 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s / TYPES / 2], .type = types[s % TYPES], .rounded = s / TYPES % 2};
        struct array arrays[6] = {{x.type, x.T, random_of(x.type, x.T, 1, 2.5f), NOT_COMPARED, NULL, {0}},
                                  {x.type, x.T, NULL, COMPARED, NULL, {0}},
                                  {x.type, x.T, random_of(x.type, x.T, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {x.type, x.T, NULL, COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, random_of(AQ_F32, x.T, 3, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, NULL, COMPARED, NULL, {0}}};
        both("gelu", arrays, 6, gelu_call, &x);
    }
}

static enum aq_status tanh_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_tanh args = {.count = x->T, .x = arrays[0].at, .y = arrays[1].at};
    const struct aq_tanh_backward back = {
        .count = x->T, .y = arrays[1].at, .dy = arrays[2].at, .dx = arrays[3].at};
    const enum aq_status status = aq_device_tanh(where, &args, NULL);
    return status == AQ_OK ? aq_device_tanh_backward(where, &back, NULL) : status;
}

static void test_tanh_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 3, 16, 257, 40003};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s], .type = AQ_F32};
        struct array arrays[4] = {{AQ_F32, x.T, random_of(AQ_F32, x.T, 1, 2.5f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, NULL, COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, random_of(AQ_F32, x.T, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, NULL, COMPARED, NULL, {0}}};
        both("tanh", arrays, 4, tanh_call, &x);
    }
    static const float points[] = {-20, -1, 0, 0.5f, 20};
    static const double values[] = {-1, -0.76159415595576489, 0, 0.46211715726000976, 1};
    float found[5];
    float *memory = on(device, points, sizeof points);
    const struct aq_tanh args = {.count = 5, .x = memory, .y = memory};
    assert_int_equal(aq_device_tanh(device, &args, NULL), AQ_OK);
    off(device, memory, found, sizeof found);
    for (int i = 0; i < 5; i++)
        assert_true(fabs((double)found[i] - values[i]) < 1e-6);
}

static enum aq_status unfold_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_unfold args = {.samples = x->samples,
                                   .T = x->T,
                                   .C = x->D,
                                   .K = x->H,
                                   .lengths = x->rounded ? NULL : arrays[1].at,
                                   .x = arrays[0].at,
                                   .y = arrays[2].at,
                                   .y_type = x->type};
    const struct aq_unfold_backward back = {.samples = x->samples,
                                            .T = x->T,
                                            .C = x->D,
                                            .K = x->H,
                                            .lengths = x->rounded ? NULL : arrays[1].at,
                                            .dy = arrays[3].at,
                                            .dx = arrays[4].at};
    const enum aq_status status = aq_device_unfold(where, &args, NULL);
    return status == AQ_OK ? aq_device_unfold_backward(where, &back, NULL) : status;
}

/* Then the sum over all of y's gradient times unfold(x) is that of fold(gradient) times x, as an adjoint's must be. */
static void test_unfold_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][4] = {{1, 1, 1, 1}, {2, 9, 5, 3}, {3, 21, 16, 5}, {2, 2, 3, 7}};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / TYPES];
        const struct rows_case x = {.samples = size[0],
                                    .T = size[1],
                                    .D = size[2],
                                    .H = size[3],
                                    .type = types[s % TYPES],
                                    .rounded = s % 5 == 4};
        const uint64_t N = x.samples * x.T * x.D;
        uint32_t *lengths = help_alloc(x.samples * sizeof *lengths);
        for (uint64_t i = 0; i < x.samples; i++)
            lengths[i] = (uint32_t)(i % 2 ? 1 + x.T / 2 : x.T);
        struct array arrays[5] = {{AQ_F32, N, random_of(AQ_F32, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.samples, lengths, NOT_COMPARED, NULL, {0}},
                                  {x.type, N * x.H, NULL, EXACT, NULL, {0}},
                                  {AQ_F32, N * x.H, random_of(AQ_F32, N * x.H, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, N, random_of(AQ_F32, N, 3, 1.0f), EXACT, NULL, {0}}};
        both("unfold", arrays, 5, unfold_call, &x);
    }
}

static enum aq_status squared_error_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_squared_error args = {.rows = x->T,
                                          .outputs = arrays[0].at,
                                          .outputs_stride = x->D,
                                          .targets = arrays[1].at,
                                          .losses = arrays[2].at,
                                          .gradient = x->H ? arrays[0].at : NULL,
                                          .gradient_stride = x->D * 4 / aq_element_bytes(x->type),
                                          .gradient_type = x->type,
                                          .scale = 0.25f};
    return aq_device_squared_error(where, &args, NULL);
}

/* The gradient lies on the outputs' bytes, as above; a target of NaN is not counted. The CPU's are the definition. */
static void test_squared_error_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {3, 1}, {700, 1}, {33, 5}};
    for (size_t s = 0; s < (TYPES + 1) * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / (TYPES + 1)], N = size[0] * size[1];
        const bool gradient = s % (TYPES + 1) < TYPES;
        const struct rows_case x = {
            .T = size[0], .D = size[1], .H = gradient, .type = gradient ? types[s % (TYPES + 1)] : AQ_F32};
        struct array arrays[3] = {
            {x.type, N * 4 / aq_element_bytes(x.type), random_of(AQ_F32, N, 1, 4.0f), gradient ? EXACT : NOT_COMPARED,
             NULL, {0}},
            {AQ_F32, x.T, random_of(AQ_F32, x.T, 2, 3.0f), NOT_COMPARED, NULL, {0}},
            {AQ_F32, x.T, NULL, EXACT, NULL, {0}}};
        const float said = ((float *)arrays[0].host)[0], wanted = ((float *)arrays[1].host)[0];
        if (x.T > 1) ((float *)arrays[1].host)[x.T / 2] = NAN;
        float definition[2] = {(said - wanted) * (said - wanted), 0.25f * 2.0f * (said - wanted)};
        struct aq_squared_error one = {.rows = 1,
                                       .outputs = &(float){said},
                                       .outputs_stride = 1,
                                       .targets = &(float){wanted},
                                       .losses = &(float){0},
                                       .gradient = &(float){0},
                                       .gradient_stride = 1,
                                       .scale = 0.25f};
        assert_int_equal(aq_device_squared_error(truth, &one, NULL), AQ_OK);
        assert_true(one.losses[0] == definition[0] && *(float *)one.gradient == definition[1]);
        both("squared error", arrays, 3, squared_error_call, &x);
    }
}

/* And once more from what it gave, in its type, added to a sum. */
static enum aq_status dropout_twice(struct aq_device *where, const struct aq_dropout_apply *once, float *sum)
{
    struct aq_dropout_apply again = *once;
    again.x = once->y;
    again.x_type = once->y_type;
    again.y = sum;
    again.y_type = AQ_F32;
    again.add = true;
    const enum aq_status status = aq_device_dropout(where, once, NULL);
    return status == AQ_OK ? aq_device_dropout(where, &again, NULL) : status;
}

#endif
