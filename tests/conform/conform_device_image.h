/*
 * conform_device_image.h -- the part of conform_device.c that asks for what networks of images want; included there.
 */
#ifndef CONFORM_DEVICE_IMAGE_H
#define CONFORM_DEVICE_IMAGE_H

static enum aq_status relu_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_relu args = {.count = x->T, .x = arrays[0].at, .y = arrays[1].at};
    const enum aq_status status = aq_device_relu(where, &args, NULL);
    const struct aq_relu_backward back = {
        .count = x->T, .y = arrays[1].at, .dy = arrays[2].at, .dx = x->H ? arrays[2].at : arrays[3].at};
    return status == AQ_OK ? aq_device_relu_backward(where, &back, NULL) : status;
}

static void test_relu_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 3, 64, 1001, 70004};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s / 2], .H = s % 2};
        struct array arrays[4] = {{AQ_F32, x.T, random_of(AQ_F32, x.T, 1, 1.0f), EXACT, NULL, {0}},
                                  {AQ_F32, x.T, NULL, EXACT, NULL, {0}},
                                  {AQ_F32, x.T, random_of(AQ_F32, x.T, 2, 1.0f), EXACT, NULL, {0}},
                                  {AQ_F32, x.T, NULL, EXACT, NULL, {0}}};
        float *host = arrays[0].host;
        host[0] = -1.0f;
        if (x.T > 2) host[1] = 0.0f;
        both("relu", arrays, 4, relu_call, &x);
    }
    const float in[4] = {-2.0f, 0.0f, 3.0f, NAN};
    float out[4], *memory = on(device, in, sizeof in);
    const struct aq_relu args = {.count = 4, .x = memory, .y = memory};
    assert_int_equal(aq_device_relu(device, &args, NULL), AQ_OK);
    off(device, memory, out, sizeof out);
    assert_true(out[0] == 0.0f && out[1] == 0.0f && out[2] == 3.0f && isnan(out[3])); /* an overflow is not hidden */
}

/* 0 x, 1 gamma, 2 beta, 3 y, 4 mean, 5 rstd, 6 and 7 running, 8 dy, 9 dx, 10 dgamma, 11 dbeta, 12 y when not training
 */
static enum aq_status batch_norm_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    struct aq_batch_norm args = {.rows = x->T,
                                 .C = x->D,
                                 .training = true,
                                 .epsilon = 1e-5f,
                                 .momentum = 0.1f,
                                 .x = arrays[0].at,
                                 .gamma = arrays[1].at,
                                 .beta = arrays[2].at,
                                 .y = arrays[3].at,
                                 .mean = arrays[4].at,
                                 .rstd = arrays[5].at,
                                 .running_mean = x->H ? arrays[6].at : NULL,
                                 .running_variance = x->H ? arrays[7].at : NULL};
    enum aq_status status = aq_device_batch_norm(where, &args, NULL);
    if (status != AQ_OK) return status;
    const struct aq_batch_norm_backward back = {.rows = x->T,
                                                .C = x->D,
                                                .x = arrays[0].at,
                                                .dy = arrays[8].at,
                                                .gamma = arrays[1].at,
                                                .mean = arrays[4].at,
                                                .rstd = arrays[5].at,
                                                .dx = arrays[9].at,
                                                .dgamma = arrays[10].at,
                                                .dbeta = arrays[11].at};
    status = aq_device_batch_norm_backward(where, &back, NULL);
    if (status != AQ_OK) return status;
    args.training = false;
    args.running_mean = arrays[6].at;
    args.running_variance = arrays[7].at;
    args.y = arrays[12].at;
    return aq_device_batch_norm(where, &args, NULL);
}

static void batch_norm_arrays(struct array arrays[13], const struct rows_case *x)
{
    const uint64_t N = x->T * x->D;
    for (int i = 0; i < 13; i++) {
        const uint64_t count = i == 0 || i == 3 || i == 8 || i == 9 || i == 12 ? N : x->D;
        const bool given = i < 3 || i == 6 || i == 7 || i == 8 || i == 10 || i == 11;
        const enum compare compare = i < 3 || i == 8 ? NOT_COMPARED : SAME_ON_CPU;
        arrays[i] = (struct array){AQ_F32,  count, given ? random_of(AQ_F32, count, 1 + (uint64_t)i, 1.0f) : NULL,
                                   compare, NULL,  {0}};
    }
    for (uint64_t i = 0; i < N; i++)
        ((float *)arrays[0].host)[i] = 3.0f + 2.0f * ((float *)arrays[0].host)[i];
    for (uint64_t c = 0; c < x->D; c++)
        ((float *)arrays[7].host)[c] = 1.0f + fabsf(((float *)arrays[7].host)[c]);
}

static void test_batch_norm_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {2, 3}, {3, 130}, {17, 64}, {100, 65}, {1500, 33}, {9000, 5}};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s / 2][0], .D = sizes[s / 2][1], .H = s % 2};
        struct array arrays[13];
        batch_norm_arrays(arrays, &x);
        if (gpu && x.T < 8) arrays[9].compare = NOT_COMPARED; /* dx cancels: nothing to measure its distance by */
        both("batch norm", arrays, 13, batch_norm_call, &x);
    }
}

/* The sum over a batch norm's y times `weights`, in double: by its definition, of float inputs. */
static double batch_norm_loss(const struct rows_case *x, const float *in, const float *gamma, const float *beta,
                              const float *weights)
{
    double loss = 0.0;
    for (uint64_t c = 0; c < x->D; c++) {
        double mean = 0.0, variance = 0.0;
        for (uint64_t r = 0; r < x->T; r++)
            mean += (double)in[r * x->D + c] / (double)x->T;
        for (uint64_t r = 0; r < x->T; r++)
            variance += (in[r * x->D + c] - mean) * (in[r * x->D + c] - mean) / (double)x->T;
        for (uint64_t r = 0; r < x->T; r++)
            loss += weights[r * x->D + c] *
                    ((in[r * x->D + c] - mean) / sqrt(variance + 1e-5) * (double)gamma[c] + (double)beta[c]);
    }
    return loss;
}

/* Gradients by finite differences of the definition; running statistics as PyTorch defines them. */
static void test_batch_norm_is_its_definition(void **state)
{
    (void)state;
    enum { R = 6, C = 4, N = R * C };
    const struct rows_case x = {.T = R, .D = C, .H = 1};
    struct array arrays[13];
    float results[13][N], before[13][N];
    batch_norm_arrays(arrays, &x);
    for (int i = 0; i < 13; i++) {
        const size_t bytes = arrays[i].count * sizeof(float);
        if (arrays[i].host) memcpy(before[i], arrays[i].host, bytes);
        arrays[i].at = on(device, arrays[i].host, bytes);
    }
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK); /* a stream may copy as late as it likes */
    for (int i = 0; i < 13; i++)
        aq_free(arrays[i].host);
    assert_int_equal(batch_norm_call(device, arrays, &x), AQ_OK);
    for (int i = 0; i < 13; i++)
        off(device, arrays[i].at, results[i], arrays[i].count * sizeof(float));
    static const struct {
        int of, gradient;
        uint64_t count;
    } tensors[] = {{0, 9, N}, {1, 10, C}, {2, 11, C}};
    const float step = 1.0f / 256;
    for (size_t t = 0; t < 3; t++)
        for (uint64_t i = 0; i < tensors[t].count; i++) {
            float *value = &before[tensors[t].of][i];
            const float kept = *value, added = t == 0 ? 0.0f : before[tensors[t].gradient][i];
            *value = kept + step;
            const double up = batch_norm_loss(&x, before[0], before[1], before[2], before[8]);
            *value = kept - step;
            const double down = batch_norm_loss(&x, before[0], before[1], before[2], before[8]);
            *value = kept;
            const double wanted = (up - down) / (2.0 * (double)step) + (double)added;
            if (!(fabs(wanted - (double)results[tensors[t].gradient][i]) < 1e-4))
                fail_msg("gradient %d of %llu is %g, not %g", tensors[t].gradient, (unsigned long long)i,
                         (double)results[tensors[t].gradient][i], wanted);
        }
    for (uint64_t c = 0; c < C; c++) {
        double mean = 0.0, variance = 0.0;
        for (uint64_t r = 0; r < R; r++)
            mean += (double)before[0][r * C + c] / R;
        for (uint64_t r = 0; r < R; r++)
            variance += (before[0][r * C + c] - mean) * (before[0][r * C + c] - mean) / (R - 1);
        assert_true(fabs(results[6][c] - (0.9 * before[6][c] + 0.1 * mean)) < 1e-5);
        assert_true(fabs(results[7][c] - (0.9 * before[7][c] + 0.1 * variance)) < 1e-5);
        for (uint64_t r = 0; r < R; r++) {
            const double y = (before[0][r * C + c] - results[6][c]) / sqrt((double)results[7][c] + 1e-5);
            assert_true(fabs(results[12][r * C + c] - (y * before[1][c] + before[2][c])) < 1e-4);
        }
    }
}

/* A batch norm with a shortcut and a ReLU behind it: 0 x, 1 gamma, 2 beta, 3 add, 4 dy, 5 y, 6 mean, 7 rstd, 8 dx,
 * 9 dgamma, 10 dbeta, 11 dz. D: columns; H bit 0: add, bit 1: relu. */
static enum aq_status norm_relu_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_batch_norm args = {.rows = x->T,
                                       .C = x->D,
                                       .training = true,
                                       .relu = x->H & 2,
                                       .epsilon = 1e-5f,
                                       .x = arrays[0].at,
                                       .gamma = arrays[1].at,
                                       .beta = arrays[2].at,
                                       .add = x->H & 1 ? arrays[3].at : NULL,
                                       .y = arrays[5].at,
                                       .mean = arrays[6].at,
                                       .rstd = arrays[7].at};
    const enum aq_status status = aq_device_batch_norm(where, &args, NULL);
    const struct aq_batch_norm_backward back = {.rows = x->T,
                                                .C = x->D,
                                                .relu = x->H & 2,
                                                .x = arrays[0].at,
                                                .dy = arrays[4].at,
                                                .gamma = arrays[1].at,
                                                .mean = arrays[6].at,
                                                .rstd = arrays[7].at,
                                                .beta = arrays[2].at,
                                                .add = args.add,
                                                .dx = arrays[8].at,
                                                .dgamma = arrays[9].at,
                                                .dbeta = arrays[10].at,
                                                .dz = arrays[11].at};
    return status == AQ_OK ? aq_device_batch_norm_backward(where, &back, NULL) : status;
}

static void test_batch_norm_with_shortcut_and_relu(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{8, 3}, {17, 64}, {100, 65}, {1500, 33}};
    for (size_t s = 0; s < 4 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s / 4][0], .D = sizes[s / 4][1], .H = s % 4};
        struct array arrays[12];
        for (uint64_t i = 0; i < 12; i++) {
            const uint64_t count = i == 0 || i == 3 || i == 4 || i == 5 || i == 8 || i == 11 ? x.T * x.D : x.D;
            const bool given = i < 5 || i == 9 || i == 10;
            arrays[i] = (struct array){
                AQ_F32, count, given ? random_of(AQ_F32, count, i, 1.0f) : NULL, i < 5 ? NOT_COMPARED : SAME_ON_CPU,
                NULL,   {0}};
        }
        both("batch norm with shortcut and ReLU", arrays, 12, norm_relu_call, &x);
    }
}

/* A group norm: 0 x, 1 gamma, 2 beta, 3 add, 4 dy, 5 y, 6 mean, 7 rstd, 8 dx, 9 dgamma, 10 dbeta, 11 dz. */
struct group_case {
    uint64_t samples, T, C, groups;
    bool add, relu;
};

static enum aq_status group_norm_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct group_case *x = context;
    struct aq_group_norm args = {.samples = x->samples,
                                 .T = x->T,
                                 .C = x->C,
                                 .groups = x->groups,
                                 .relu = x->relu,
                                 .epsilon = 1e-5f,
                                 .x = arrays[0].at,
                                 .gamma = arrays[1].at,
                                 .beta = arrays[2].at,
                                 .add = x->add ? arrays[3].at : NULL,
                                 .y = arrays[5].at,
                                 .mean = arrays[6].at,
                                 .rstd = arrays[7].at};
    const enum aq_status status = aq_device_group_norm(where, &args, NULL);
    const struct aq_group_norm_backward back = {.samples = x->samples,
                                                .T = x->T,
                                                .C = x->C,
                                                .groups = x->groups,
                                                .relu = x->relu,
                                                .x = arrays[0].at,
                                                .dy = arrays[4].at,
                                                .gamma = arrays[1].at,
                                                .mean = arrays[6].at,
                                                .rstd = arrays[7].at,
                                                .beta = arrays[2].at,
                                                .add = args.add,
                                                .dx = arrays[8].at,
                                                .dgamma = arrays[9].at,
                                                .dbeta = arrays[10].at,
                                                .dz = x->relu || x->add ? arrays[11].at : NULL};
    return status == AQ_OK ? aq_device_group_norm_backward(where, &back, NULL) : status;
}

static void group_arrays(struct array arrays[12], const struct group_case *x)
{
    for (uint64_t i = 0; i < 12; i++) {
        const bool values = i == 0 || i == 3 || i == 4 || i == 5 || i == 8 || i == 11,
                   given = i < 5 || i == 9 || i == 10;
        const uint64_t count = values ? x->samples * x->T * x->C : i == 6 || i == 7 ? x->samples * x->groups : x->C;
        arrays[i] = (struct array){
            AQ_F32, count, given ? random_of(AQ_F32, count, i, 1.0f) : NULL, i < 5 ? NOT_COMPARED : SAME_ON_CPU,
            NULL,   {0}};
    }
    for (uint64_t i = 0; i < arrays[0].count; i++)
        ((float *)arrays[0].host)[i] = 3.0f + 2.0f * ((float *)arrays[0].host)[i];
}

static void test_group_norm_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][4] = {{1, 9, 2, 1}, {3, 4, 6, 3}, {2, 17, 64, 32}, {5, 64, 33, 11}, {70, 16, 130, 2}};
    for (size_t s = 0; s < 4 * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / 4];
        const struct group_case x = {size[0], size[1], size[2], size[3], s & 1, s & 2};
        struct array arrays[12];
        group_arrays(arrays, &x);
        both("group norm", arrays, 12, group_norm_call, &x);
    }
}

/* The sum over a group norm's y times `weights`, in double: by its definition, of float inputs. */
static double group_norm_loss(const struct group_case *x, float in[12][48])
{
    const uint64_t D = x->C / x->groups;
    double loss = 0.0;
    for (uint64_t s = 0; s < x->samples; s++)
        for (uint64_t g = 0; g < x->groups; g++) {
            double mean = 0.0, variance = 0.0;
            for (uint64_t i = 0; i < x->T * D; i++)
                mean += (double)in[0][(s * x->T + i / D) * x->C + g * D + i % D] / (double)(x->T * D);
            for (uint64_t i = 0; i < x->T * D; i++)
                variance += pow(in[0][(s * x->T + i / D) * x->C + g * D + i % D] - mean, 2) / (double)(x->T * D);
            for (uint64_t i = 0; i < x->T * D; i++) {
                const uint64_t c = g * D + i % D, at = (s * x->T + i / D) * x->C + c;
                const double h = (in[0][at] - mean) / sqrt(variance + 1e-5);
                const double z = h * in[1][c] + in[2][c] + (x->add ? in[3][at] : 0.0f);
                loss += in[4][at] * (x->relu && z < 0 ? 0.0 : z);
            }
        }
    return loss;
}

/* Gradients of every input by finite differences of the definition. */
static void test_group_norm_is_its_definition(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        const struct group_case x = {3, 4, 4, 2, which & 1, which & 2};
        struct array arrays[12];
        float before[12][48], results[12][48];
        group_arrays(arrays, &x);
        for (int i = 0; i < 12; i++) {
            const size_t bytes = arrays[i].count * sizeof(float);
            if (arrays[i].host) memcpy(before[i], arrays[i].host, bytes);
            arrays[i].at = on(device, arrays[i].host, bytes);
        }
        assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
        for (int i = 0; i < 12; i++)
            aq_free(arrays[i].host);
        assert_int_equal(group_norm_call(device, arrays, &x), AQ_OK);
        for (int i = 0; i < 12; i++)
            off(device, arrays[i].at, results[i], arrays[i].count * sizeof(float));
        static const int tensors[][2] = {{0, 8}, {1, 9}, {2, 10}, {3, 11}};
        const float step = 1.0f / 512;
        for (int t = 0; t < (x.add ? 4 : 3); t++)
            for (uint64_t i = 0; i < arrays[tensors[t][0]].count; i++) {
                float *value = &before[tensors[t][0]][i];
                const float kept = *value, added = t == 1 || t == 2 ? before[tensors[t][1]][i] : 0.0f;
                *value = kept + step;
                const double up = group_norm_loss(&x, before);
                *value = kept - step;
                const double down = group_norm_loss(&x, before);
                *value = kept;
                const double wanted = (up - down) / (2.0 * (double)step) + (double)added;
                if (!(fabs(wanted - (double)results[tensors[t][1]][i]) < (x.relu ? 5e-3 : 2e-4)))
                    fail_msg("case %d: gradient %d of %llu is %g, not %g", which, tensors[t][1], (unsigned long long)i,
                             (double)results[tensors[t][1]][i], wanted);
            }
    }
}

/* The same by three operations one after another: a norm, a sum, a ReLU. */
static enum aq_status norm_then_relu(struct aq_device *where, struct array *arrays, const struct rows_case *x)
{
    const uint64_t N = x->T * x->D;
    float *const y = arrays[5].at, *const dy = arrays[4].at;
    const struct aq_batch_norm norm = {.rows = x->T,
                                       .C = x->D,
                                       .training = true,
                                       .epsilon = 1e-5f,
                                       .x = arrays[0].at,
                                       .gamma = arrays[1].at,
                                       .beta = arrays[2].at,
                                       .y = y,
                                       .mean = arrays[6].at,
                                       .rstd = arrays[7].at};
    const struct aq_dropout_apply sum = {
        .samples = 1, .sample_elements = N, .x = arrays[3].at, .y = y, .y_type = AQ_F32, .add = true};
    const struct aq_relu relu = {.count = N, .x = y, .y = y};
    const struct aq_relu_backward back = {.count = N, .y = y, .dy = dy, .dx = arrays[11].at};
    const struct aq_batch_norm_backward last = {.rows = x->T,
                                                .C = x->D,
                                                .x = arrays[0].at,
                                                .dy = arrays[11].at,
                                                .gamma = arrays[1].at,
                                                .mean = arrays[6].at,
                                                .rstd = arrays[7].at,
                                                .dx = arrays[8].at,
                                                .dgamma = arrays[9].at,
                                                .dbeta = arrays[10].at};
    AQ_TRY(aq_device_batch_norm(where, &norm, NULL));
    if (x->H & 1) AQ_TRY(aq_device_dropout(where, &sum, NULL));
    AQ_TRY(aq_device_relu(where, &relu, NULL));
    AQ_TRY(aq_device_relu_backward(where, &back, NULL));
    return aq_device_batch_norm_backward(where, &last, NULL);
}

static void test_batch_norm_fused_is_three_operations(void **state)
{
    (void)state;
    for (uint64_t add = 0; add < 2; add++) {
        const struct rows_case x = {.T = 130, .D = 33, .H = 2 + add};
        float *results[2][12];
        struct array arrays[12];
        for (int turn = 0; turn < 2; turn++) {
            for (uint64_t i = 0; i < 12; i++) {
                const uint64_t count = i == 0 || i == 3 || i == 4 || i == 5 || i == 8 || i == 11 ? x.T * x.D : x.D;
                float *host = random_of(AQ_F32, count, i, 1.0f);
                arrays[i] = (struct array){.type = AQ_F32, .count = count};
                arrays[i].at = on(device, host, count * sizeof *host);
                assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
                aq_free(host);
            }
            assert_int_equal(turn ? norm_relu_call(device, arrays, &x) : norm_then_relu(device, arrays, &x), AQ_OK);
            for (uint64_t i = 0; i < 12; i++) {
                results[turn][i] = help_alloc(arrays[i].count * sizeof(float));
                off(device, arrays[i].at, results[turn][i], arrays[i].count * sizeof(float));
            }
        }
        for (uint64_t i = 5; i < 12; i++) {
            char what[40];
            snprintf(what, sizeof what, "fused, array %d", (int)i);
            same(what, results[1][i], results[0][i], AQ_F32, arrays[i].count);
        }
        for (uint64_t i = 0; i < 24; i++)
            aq_free(results[i / 12][i % 12]);
    }
}

/* --- convolutions: 0 x, 1 w, 2 dy, 3 y, 4 dx, 5 dw --- */

static uint64_t conv_values(const struct aq_conv_shape *s, bool out)
{
    if (!out) return s->samples * s->height * s->width * s->C;
    return s->samples * aq_conv_out(s->height, s->stride) * aq_conv_out(s->width, s->stride) * s->N;
}

static enum aq_status conv_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct aq_conv_shape *shape = context;
    const struct aq_conv args = {*shape, arrays[0].at, arrays[1].at, arrays[3].at};
    const struct aq_conv_backward back = {*shape, arrays[2].at, arrays[1].at, arrays[4].at};
    const struct aq_conv_weights weights = {*shape, arrays[0].at, arrays[2].at, arrays[5].at};
    enum aq_status status = aq_device_conv(where, &args, NULL);
    if (status == AQ_OK) status = aq_device_conv_backward(where, &back, NULL);
    return status == AQ_OK ? aq_device_conv_weights(where, &weights, NULL) : status;
}

static void conv_arrays(struct array arrays[6], const struct aq_conv_shape *shape)
{
    const uint64_t x = conv_values(shape, false), y = conv_values(shape, true);
    const uint64_t w = shape->K * shape->K * shape->C * shape->N, counts[6] = {x, w, y, y, x, w};
    for (uint64_t i = 0; i < 6; i++)
        arrays[i] = (struct array){AQ_F32,
                                   counts[i],
                                   i < 3 || i == 5 ? random_of(AQ_F32, counts[i], i, 1.0f) : NULL,
                                   i < 3 ? NOT_COMPARED : COMPARED,
                                   NULL,
                                   {0}};
}

static const struct aq_conv_shape conv_cases[] = {
    {2, 6, 10, 32, 64, 3, 1, AQ_F32},  {1, 1, 1, 1, 1, 1, 1, AQ_F32},      {2, 5, 5, 3, 4, 3, 1, AQ_F32},
    {3, 8, 8, 16, 32, 3, 2, AQ_F32},   {3, 8, 8, 16, 32, 1, 2, AQ_F32},    {1, 7, 9, 5, 6, 3, 2, AQ_F32},
    {2, 4, 4, 130, 70, 3, 1, AQ_F32},  {4, 6, 6, 8, 8, 5, 1, AQ_F32},      {2, 3, 3, 9, 7, 3, 1, AQ_BF16},
    {2, 3, 3, 9, 7, 3, 2, AQ_F16},     {6, 2, 2, 256, 256, 3, 1, AQ_F32},  {5, 16, 16, 3, 64, 3, 1, AQ_F32},
    {1, 4, 4, 512, 512, 3, 1, AQ_F32}, {8, 16, 18, 256, 32, 3, 1, AQ_F32}, {9, 8, 10, 64, 32, 3, 1, AQ_F32},
    {5, 2, 8, 96, 96, 3, 1, AQ_F32},   {3, 9, 7, 1, 8, 7, 3, AQ_F32},      {2, 10, 11, 8, 12, 5, 2, AQ_F32},
    {2, 7, 5, 12, 1, 5, 3, AQ_F32},    {4, 5, 6, 24, 16, 1, 1, AQ_F32},    {4, 5, 6, 24, 16, 1, 1, AQ_BF16},
    {3, 8, 8, 16, 24, 3, 2, AQ_BF16},  {2, 5, 4, 12, 20, 7, 1, AQ_F16},    {3, 6, 5, 16, 8, 1, 3, AQ_F16},
    {3, 6, 6, 20, 12, 3, 1, AQ_TF32},  {1, 3, 3, 2, 3, 7, 5, AQ_F32},      {2, 9, 9, 1, 1, 3, 1, AQ_BF16},
    {2, 10, 9, 3, 64, 7, 2, AQ_F32}};

static void test_conv_matches_truth(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof conv_cases / sizeof conv_cases[0]; i++) {
        struct array arrays[6];
        if (slow() && conv_cases[i].C > 200) continue; /* minutes */
        conv_arrays(arrays, &conv_cases[i]);
        /* tf32 drops mantissa of the factors on a GPU, and not on a CPU: fewer bits than bf16 does. */
        for (int a = 3; a < 6 && conv_cases[i].compute == AQ_TF32; a++)
            arrays[a].compare = COMPARED_AS;
        both_as("conv", arrays, 6, conv_call, &conv_cases[i], AQ_BF16, TIMES);
    }
}

/* By its definition, in double, seven loops; <conv(x), dy> = <x, backward(dy)> = <w, weights> where dw began as 0. */
static void test_conv_is_its_definition(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof conv_cases / sizeof conv_cases[0]; i++) {
        const struct aq_conv_shape *s = &conv_cases[i];
        if (s->compute != AQ_F32 || s->C > 100) continue;
        const uint64_t rows = aq_conv_out(s->height, s->stride), columns = aq_conv_out(s->width, s->stride);
        struct array arrays[6];
        float *in[3], *out[6];
        conv_arrays(arrays, s);
        for (uint64_t a = 0; a < 6; a++) {
            if (a < 3) in[a] = arrays[a].host;
            if (a == 5) memset(arrays[a].host, 0, arrays[a].count * sizeof(float));
            arrays[a].at = on(device, arrays[a].host, arrays[a].count * sizeof(float));
        }
        assert_int_equal(conv_call(device, arrays, s), AQ_OK);
        for (uint64_t a = 0; a < 6; a++) {
            out[a] = help_alloc(arrays[a].count * sizeof(float));
            off(device, arrays[a].at, out[a], arrays[a].count * sizeof(float));
        }
        double ahead = 0, back = 0, weights = 0, size = 0;
        for (uint64_t at = 0; at < arrays[3].count; at++) {
            const uint64_t n = at % s->N, j = at / s->N % columns, r = at / s->N / columns % rows;
            const uint64_t sample = at / s->N / columns / rows;
            double sum = 0;
            for (uint64_t u = 0; u < s->K; u++)
                for (uint64_t v = 0; v < s->K; v++)
                    for (uint64_t c = 0; c < s->C; c++) {
                        const int64_t y = (int64_t)(r * s->stride + u) - (int64_t)(s->K / 2);
                        const int64_t x = (int64_t)(j * s->stride + v) - (int64_t)(s->K / 2);
                        if (y < 0 || x < 0 || y >= (int64_t)s->height || x >= (int64_t)s->width) continue;
                        sum += (double)in[0][((sample * s->height + (uint64_t)y) * s->width + (uint64_t)x) * s->C + c] *
                               (double)in[1][((u * s->K + v) * s->C + c) * s->N + n];
                    }
            if (!(fabs(sum - (double)out[3][at]) < 1e-4)) fail_msg("case %zu: %g, not %g", i, (double)out[3][at], sum);
            ahead += sum * (double)in[2][at];
            size += fabs(sum * (double)in[2][at]);
        }
        for (uint64_t at = 0; at < arrays[0].count; at++)
            back += (double)in[0][at] * (double)out[4][at];
        for (uint64_t at = 0; at < arrays[1].count; at++)
            weights += (double)in[1][at] * (double)out[5][at];
        if (!(fabs(ahead - back) <= 1e-5 * size)) fail_msg("case %zu: backward gives %g, not %g", i, back, ahead);
        if (!(fabs(ahead - weights) <= 1e-5 * size)) fail_msg("case %zu: weights give %g, not %g", i, weights, ahead);
        for (uint64_t a = 0; a < 6; a++) {
            aq_free(out[a]);
            aq_free(arrays[a].host);
        }
    }
}

/* An image's values do not depend on how many come with it: the same bits on a CPU; a GPU has its own order. */
static void test_conv_of_an_image_is_the_same_in_any_batch(void **state)
{
    (void)state;
    const struct aq_conv_shape all = {9, 8, 10, 64, 32, 3, 1, AQ_F32}, one = {1, 8, 10, 64, 32, 3, 1, AQ_F32};
    struct array arrays[6];
    conv_arrays(arrays, &all);
    for (int i = 0; i < 6; i++)
        arrays[i].at = on(device, arrays[i].host, arrays[i].count * sizeof(float));
    assert_int_equal(conv_call(device, arrays, &all), AQ_OK);
    for (uint64_t sample = 0; sample < all.samples; sample += 4) {
        struct array alone[6];
        for (int i = 0; i < 6; i++) {
            const bool weights = i == 1 || i == 5;
            const uint64_t count = weights ? arrays[i].count : arrays[i].count / all.samples;
            const float *host = arrays[i].host;
            alone[i] = arrays[i];
            alone[i].count = count;
            alone[i].at = on(device, host ? host + (weights ? 0 : sample * count) : NULL, count * sizeof(float));
        }
        assert_int_equal(conv_call(device, alone, &one), AQ_OK);
        for (int i = 3; i < 5; i++) {
            const uint64_t bytes = alone[i].count * sizeof(float);
            float *got = help_alloc(bytes), *want = help_alloc(all.samples * bytes);
            assert_int_equal(aq_device_copy(device, want, arrays[i].at, all.samples * bytes, NULL), AQ_OK);
            off(device, alone[i].at, got, bytes);
            if (gpu)
                near("an image alone", got, want + sample * alone[i].count, AQ_F32, alone[i].count, near_of(AQ_F32));
            else
                same("an image alone", got, want + sample * alone[i].count, AQ_F32, alone[i].count);
            aq_free(got);
            aq_free(want);
        }
        for (int i = 0; i < 6; i++)
            if (i < 3 || i == 5) aq_device_free(device, AQ_MEMORY_DEVICE, alone[i].at, alone[i].count * sizeof(float));
    }
    for (int i = 0; i < 6; i++) {
        aq_device_free(device, AQ_MEMORY_DEVICE, arrays[i].at, arrays[i].count * sizeof(float));
        aq_free(arrays[i].host);
    }
}

static enum aq_status row_mean_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_row_mean args = {.samples = x->H, .T = x->T, .C = x->D, .x = arrays[0].at, .y = arrays[1].at};
    const struct aq_row_mean_backward back = {
        .samples = x->H, .T = x->T, .C = x->D, .dy = arrays[1].at, .dx = arrays[2].at};
    const enum aq_status status = aq_device_row_mean(where, &args, NULL);
    return status == AQ_OK ? aq_device_row_mean_backward(where, &back, NULL) : status;
}

static void test_row_mean_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{1, 1, 1}, {3, 16, 5}, {2, 64, 130}, {5, 9, 512}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.H = sizes[s][0], .T = sizes[s][1], .D = sizes[s][2]};
        const uint64_t N = x.H * x.T * x.D;
        struct array arrays[3] = {{AQ_F32, N, random_of(AQ_F32, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.H * x.D, NULL, COMPARED, NULL, {0}},
                                  {AQ_F32, N, NULL, COMPARED, NULL, {0}}};
        both("row mean", arrays, 3, row_mean_call, &x);
    }
    const float in[6] = {1.0f, 2.0f, 3.0f, 4.0f, 8.0f, 0.0f};
    float out[2], *memory = on(device, in, sizeof in), *there = on(device, NULL, sizeof out);
    const struct aq_row_mean args = {.samples = 1, .T = 3, .C = 2, .x = memory, .y = there};
    assert_int_equal(aq_device_row_mean(device, &args, NULL), AQ_OK);
    off(device, memory, NULL, sizeof in);
    off(device, there, out, sizeof out);
    assert_true(out[0] == 4.0f && out[1] == 2.0f);
}

static enum aq_status max_pool_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct aq_pool_shape *shape = context;
    const struct aq_max_pool args = {*shape, arrays[0].at, arrays[1].at};
    const struct aq_max_pool_backward back = {*shape, arrays[0].at, arrays[2].at, arrays[3].at};
    const enum aq_status status = aq_device_max_pool(where, &args, NULL);
    return status == AQ_OK ? aq_device_max_pool_backward(where, &back, NULL) : status;
}

/* By its definition, of which every backend has the bits; with ties, of which the first is taken, and with NaN. */
static void test_max_pool_is_its_definition(void **state)
{
    (void)state;
    static const struct aq_pool_shape shapes[] = {{1, 1, 1, 1, 3, 2}, {2, 8, 8, 5, 3, 2}, {3, 7, 10, 4, 3, 2},
                                                  {1, 5, 4, 3, 5, 3}, {2, 6, 5, 2, 1, 2}, {2, 5, 9, 70, 3, 1},
                                                  {1, 2, 3, 2, 7, 4}, {1, 9, 8, 3, 3, 5}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct aq_pool_shape *s = &shapes[i];
        const int64_t rows = (int64_t)aq_conv_out(s->height, s->stride),
                      columns = (int64_t)aq_conv_out(s->width, s->stride);
        const int64_t height = (int64_t)s->height, width = (int64_t)s->width, C = (int64_t)s->C,
                      half = (int64_t)s->K / 2;
        const uint64_t x = s->samples * s->height * s->width * s->C, y = s->samples * (uint64_t)(rows * columns * C);
        struct array arrays[4] = {{AQ_F32, x, random_of(AQ_F32, x, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, y, NULL, EXACT, NULL, {0}},
                                  {AQ_F32, y, random_of(AQ_F32, y, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x, NULL, EXACT, NULL, {0}}};
        float *in = arrays[0].host, *dy = arrays[2].host, *dx = help_alloc(x * sizeof(float)),
              *got = help_alloc(x * sizeof(float));
        memset(dx, 0, x * sizeof *dx);
        for (uint64_t v = 0; v < x; v++)
            in[v] = i % 2 ? floorf(2.0f * in[v]) : in[v];
        if (i == 1) in[x / 2] = NAN;
        struct array own[4];
        memcpy(own, arrays, sizeof own);
        for (int a = 0; a < 4; a++)
            own[a].at = on(device, own[a].host, own[a].count * sizeof(float));
        assert_int_equal(max_pool_call(device, own, s), AQ_OK);
        off(device, own[1].at, got, y * sizeof *got);
        for (int64_t w = 0; w < (int64_t)y; w++) {
            const int64_t c = w % C, column = w / C % columns, row = w / C / columns % rows,
                          sample = w / C / columns / rows;
            int64_t best = -1;
            for (int64_t u = 0; u < (int64_t)s->K; u++)
                for (int64_t v = 0; v < (int64_t)s->K; v++) {
                    const int64_t r = row * (int64_t)s->stride + u - half, q = column * (int64_t)s->stride + v - half;
                    if (r < 0 || q < 0 || r >= height || q >= width) continue;
                    const int64_t at = ((sample * height + r) * width + q) * C + c;
                    if (best < 0 || in[at] > in[best] || isnan(in[at])) best = at;
                }
            assert_memory_equal(&got[w], &in[best], sizeof *got);
            dx[best] += dy[w];
        }
        off(device, own[3].at, got, x * sizeof *got);
        assert_memory_equal(got, dx, x * sizeof *got);
        off(device, own[0].at, NULL, x * sizeof(float));
        off(device, own[2].at, NULL, y * sizeof(float));
        aq_free(dx);
        aq_free(got);
        if (i == 1) { /* a distance from a NaN is none */
            aq_free(in);
            aq_free(dy);
        } else {
            both("max pool", arrays, 4, max_pool_call, s);
        }
    }
}

static enum aq_status argmax_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_argmax args = {
        .rows = x->T, .C = x->D, .stride = x->D + x->H, .x = arrays[0].at, .index = arrays[1].at};
    return aq_device_argmax(where, &args, NULL);
}

static void test_argmax_is_the_first_of_the_largest(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {5, 10}, {70, 10}, {9, 1000}, {130, 31}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s][0], .D = sizes[s][1], .H = s % 3};
        const uint64_t N = x.T * (x.D + x.H);
        struct array arrays[2] = {{AQ_F32, N, random_of(AQ_F32, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, NULL, EXACT, NULL, {0}}};
        float *host = arrays[0].host;
        for (uint64_t i = 0; i < N; i++)
            host[i] = s % 2 ? floorf(2.0f * host[i]) : host[i]; /* with ties */
        both("argmax", arrays, 2, argmax_call, &x);
    }
    const float in[6] = {-3.0f, 2.0f, 2.0f, -1.0f, -2.0f, -3.0f};
    int32_t index[2] = {-1, -1};
    float *memory = on(device, in, sizeof in);
    int32_t *there = on(device, NULL, sizeof index);
    const struct aq_argmax args = {.rows = 2, .C = 3, .stride = 3, .x = memory, .index = there};
    assert_int_equal(aq_device_argmax(device, &args, NULL), AQ_OK);
    off(device, memory, NULL, sizeof in);
    off(device, there, index, sizeof index);
    assert_int_equal(index[0], 1);
    assert_int_equal(index[1], 0);
}

/* Rows of conform_device.c's table. */
#define IMAGE_TESTS                                                                                                    \
    cmocka_unit_test(test_batch_norm_with_shortcut_and_relu), cmocka_unit_test(test_group_norm_matches_truth),         \
        cmocka_unit_test(test_group_norm_is_its_definition),                                                           \
        cmocka_unit_test(test_batch_norm_fused_is_three_operations), cmocka_unit_test(test_conv_matches_truth),        \
        cmocka_unit_test(test_conv_is_its_definition),                                                                 \
        cmocka_unit_test(test_conv_of_an_image_is_the_same_in_any_batch),                                              \
        cmocka_unit_test(test_row_mean_matches_truth), cmocka_unit_test(test_max_pool_is_its_definition)

#endif
