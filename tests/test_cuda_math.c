/*
 * test_cuda_math.c -- the kernels of rows, flat ranges and embeddings against the CPU, without a GPU. See cuda_math.h.
 */
#include "cuda_math.h"

struct sizes {
    uint64_t samples, T, C;
    enum aq_element type, from;
    float dropout;
    enum aq_matmul_after after;
    bool bias, momentum;
};

/* ---- Layer norm. */

static struct aq_layernorm layernorm_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_layernorm){.rows = x->T,
                                 .C = x->C,
                                 .epsilon = 1e-5f,
                                 .x = arrays[0].at,
                                 .gamma = arrays[1].at,
                                 .beta = arrays[2].at,
                                 .y = arrays[3].at,
                                 .y_type = x->type,
                                 .mean = arrays[4].at,
                                 .rstd = arrays[5].at};
}

static struct aq_layernorm_backward layernorm_backward_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_layernorm_backward){.rows = x->T,
                                          .C = x->C,
                                          .dy = arrays[6].at,
                                          .x = arrays[0].at,
                                          .gamma = arrays[1].at,
                                          .mean = arrays[4].at,
                                          .rstd = arrays[5].at,
                                          .dx = arrays[7].at,
                                          .dgamma = arrays[8].at,
                                          .dbeta = arrays[9].at};
}

static enum aq_status layernorm_truth(struct array *arrays, const void *context)
{
    const struct aq_layernorm args = layernorm_args(arrays, context);
    const struct aq_layernorm_backward back = layernorm_backward_args(arrays, context);
    const enum aq_status status = aq_device_layernorm(math_truth, &args, NULL);
    return status == AQ_OK ? aq_device_layernorm_backward(math_truth, &back, NULL) : status;
}

static enum aq_status layernorm_mine(struct array *arrays, const void *context)
{
    const struct aq_layernorm args = layernorm_args(arrays, context);
    const struct aq_layernorm_backward back = layernorm_backward_args(arrays, context);
    const enum aq_status status = aq_cuda_layernorm(&args, NULL);
    return status == AQ_OK ? aq_cuda_layernorm_backward(&back, math_scratch, NULL) : status;
}

static void test_layernorm_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1},   {1, 2},     {3, 4},   {9, 31},  {8, 33},
                                        {70, 64}, {131, 130}, {5, 768}, {2, 1601}};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct sizes x = {.T = sizes[s / 2][0], .C = sizes[s / 2][1], .type = s % 2 ? AQ_BF16 : AQ_F32};
        const uint64_t N = x.T * x.C;
        float *biased = math_random(AQ_F32, N, 1, 2.0f);
        for (uint64_t i = 0; i < N; i++)
            biased[i] += 3.0f;
        /* A row of one or two elements has h of 0 or +-1 and a dx that cancels: nothing to measure its distance by. */
        const enum compare dx = x.C > 2 ? COMPARED : NOT_COMPARED;
        struct array arrays[10] = {{AQ_F32, N, biased, NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, x.C, math_random(AQ_F32, x.C, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, x.C, math_random(AQ_F32, x.C, 3, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {x.type, N, NULL, COMPARED, NULL, {0}},
                                   {AQ_F32, x.T, NULL, COMPARED, NULL, {0}},
                                   {AQ_F32, x.T, NULL, COMPARED, NULL, {0}},
                                   {AQ_F32, N, math_random(AQ_F32, N, 4, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, N, math_random(AQ_F32, N, 5, 1.0f), dx, NULL, {0}},
                                   {AQ_F32, x.C, math_random(AQ_F32, x.C, 6, 1.0f), COMPARED, NULL, {0}},
                                   {AQ_F32, x.C, math_random(AQ_F32, x.C, 7, 1.0f), COMPARED, NULL, {0}}};
        char text[64];
        snprintf(text, sizeof text, "layer norm %llu x %llu", (unsigned long long)x.T, (unsigned long long)x.C);
        math_both(text, arrays, 10, layernorm_truth, layernorm_mine, &x);
    }
}

/* ---- What follows a matrix product: the truth multiplies by the unit matrix. */

static struct aq_matmul matmul_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_matmul){.M = x->T,
                              .N = x->C,
                              .K = x->C,
                              .a = arrays[0].at,
                              .a_stride = x->C + 4,
                              .a_type = x->from,
                              .b = arrays[1].at,
                              .b_stride = x->C,
                              .c = arrays[2].at,
                              .c_stride = x->C + 4,
                              .c_type = x->type,
                              .after = x->after,
                              .bias = x->bias ? arrays[3].at : NULL,
                              .other = x->after == AQ_AFTER_NONE ? NULL : arrays[4].at,
                              .dropout = {.probability = x->dropout, .keys = arrays[5].at},
                              .dropout_sample_rows = 3};
}

static enum aq_status finish_truth(struct array *arrays, const void *context)
{
    const struct aq_matmul args = matmul_args(arrays, context);
    return aq_device_matmul(math_truth, &args, NULL);
}

static enum aq_status finish_mine(struct array *arrays, const void *context)
{
    const struct aq_matmul args = matmul_args(arrays, context);
    return aq_cuda_matmul_finish(&args, args.a, args.a_type, args.a_stride, NULL);
}

static void finish_run(const struct sizes *x)
{
    const uint64_t N = x->T * (x->C + 4), keys = x->T / 3 + 1;
    float *unit = help_alloc(x->C * x->C * sizeof *unit);
    for (uint64_t i = 0; i < x->C; i++)
        unit[i * x->C + i] = 1.0f;
    struct array arrays[6] = {
        {x->from, N, math_random(x->from, N, 1, 2.0f), NOT_COMPARED, NULL, {0}},
        {AQ_F32, x->C * x->C, unit, NOT_COMPARED, NULL, {0}},
        {x->type, N, NULL, COMPARED, NULL, {0}},
        {AQ_F32, x->C, math_random(AQ_F32, x->C, 2, 1.0f), NOT_COMPARED, NULL, {0}},
        {x->type, N, math_random(x->type, N, 3, 2.0f), x->after == AQ_AFTER_GELU ? EXACT : COMPARED, NULL, {0}},
        {AQ_F32, math_keys_count(keys), math_keys(keys), NOT_COMPARED, NULL, {0}}};
    if (x->after == AQ_AFTER_RESIDUAL || x->after == AQ_AFTER_NONE) arrays[2].compare = EXACT; /* sums and masks only */
    char text[128];
    snprintf(text, sizeof text, "after %d, %llu x %llu, types %d %d, bias %d, dropout %g", x->after,
             (unsigned long long)x->T, (unsigned long long)x->C, x->from, x->type, x->bias, (double)x->dropout);
    math_both(text, arrays, 6, finish_truth, finish_mine, x);
}

static void test_ends_of_products_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {7, 4}, {5, 33}, {8, 100}, {2, 1100}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (unsigned bits = 0; bits < 8; bits++) {
            struct sizes x = {.T = sizes[s][0],
                              .C = sizes[s][1],
                              .from = bits & 1 ? AQ_BF16 : AQ_F32,
                              .type = bits & 2 ? AQ_BF16 : AQ_F32,
                              .bias = bits & 4};
            if (x.C > 1000 && bits != 5) continue;
            for (x.after = AQ_AFTER_NONE; x.after <= AQ_AFTER_RESIDUAL; x.after++) {
                if (x.after == AQ_AFTER_RESIDUAL && x.type == AQ_BF16) continue;
                finish_run(&x);
            }
            x.after = AQ_AFTER_RESIDUAL;
            x.dropout = 0.25f;
            if (x.type == AQ_F32) finish_run(&x);
        }
    }
}

/* ---- Cross-entropy. */

static struct aq_cross_entropy cross_entropy_args(struct array *arrays, const struct sizes *x)
{
    const uint64_t stride = x->C + 5;
    return (struct aq_cross_entropy){.rows = x->T,
                                     .V = x->C,
                                     .logits = arrays[0].at,
                                     .logits_stride = stride,
                                     .targets = arrays[1].at,
                                     .losses = arrays[2].at,
                                     .gradient = x->momentum ? NULL : arrays[0].at,
                                     .gradient_stride = x->type == AQ_BF16 ? 2 * stride : stride,
                                     .gradient_type = x->type,
                                     .scale = 0.25f};
}

static enum aq_status cross_entropy_truth(struct array *arrays, const void *context)
{
    const struct aq_cross_entropy args = cross_entropy_args(arrays, context);
    return aq_device_cross_entropy(math_truth, &args, NULL);
}

static enum aq_status cross_entropy_mine(struct array *arrays, const void *context)
{
    const struct aq_cross_entropy args = cross_entropy_args(arrays, context);
    return aq_cuda_cross_entropy(&args, NULL);
}

static void test_cross_entropy_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {20, 2}, {6, 50}, {4, 1001}, {3, 2048}, {3, 5003}};
    for (size_t s = 0; s < 3 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct sizes x = {.T = sizes[s / 3][0],
                                .C = sizes[s / 3][1],
                                .type = s % 3 == 1 ? AQ_BF16 : AQ_F32,
                                .momentum = s % 3 == 2}; /* no gradient */
        const uint64_t N = x.T * (x.C + 5);
        int32_t *targets = help_alloc(x.T * 4);
        help_tokens(targets, x.T, 2, (uint32_t)x.C);
        if (x.T > 1) targets[x.T / 2] = -1;
        targets[0] = (int32_t)x.C - 1;
        /* As bf16 the row's gradient is twice as many elements, on the logits' bytes. */
        struct array arrays[3] = {{AQ_F32, N, math_random(AQ_F32, N, 1, 4.0f), COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, targets, NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.T, NULL, COMPARED, NULL, {0}}};
        if (x.momentum) arrays[0].compare = NOT_COMPARED;
        if (x.type == AQ_BF16) {
            arrays[0].type = AQ_BF16;
            arrays[0].count = 2 * N;
        }
        char text[64];
        snprintf(text, sizeof text, "cross entropy %llu x %llu as %d", (unsigned long long)x.T, (unsigned long long)x.C,
                 (int)(s % 3));
        math_both(text, arrays, 3, cross_entropy_truth, cross_entropy_mine, &x);
    }
}

/* ---- Sums of columns. */

static enum aq_status column_sum_truth(struct array *arrays, const void *context)
{
    const struct sizes *x = context;
    return aq_device_column_sum(math_truth, arrays[0].at, x->type, x->T, x->C, x->C + 4, arrays[1].at, NULL);
}

static enum aq_status column_sum_mine(struct array *arrays, const void *context)
{
    const struct sizes *x = context;
    return aq_cuda_column_sum(arrays[0].at, x->type, x->T, x->C, x->C + 4, arrays[1].at, math_scratch, NULL);
}

static void test_column_sums_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {17, 64}, {100, 65}, {700, 33}, {333, 200}, {2, 1030}};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct sizes x = {.T = sizes[s / 2][0], .C = sizes[s / 2][1], .type = s % 2 ? AQ_BF16 : AQ_F32};
        const uint64_t N = x.T * (x.C + 4);
        struct array arrays[2] = {{x.type, N, math_random(x.type, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.C, math_random(AQ_F32, x.C, 2, 1.0f), COMPARED, NULL, {0}}};
        math_both("column sum", arrays, 2, column_sum_truth, column_sum_mine, &x);
    }
}

/* ---- Embedding. */

enum { VOCABULARY = 11 };

static struct aq_embedding embedding_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_embedding){.samples = x->samples,
                                 .T = x->T,
                                 .C = x->C,
                                 .V = VOCABULARY,
                                 .tokens = arrays[0].at,
                                 .token_table = arrays[1].at,
                                 .position_table = arrays[2].at,
                                 .x = arrays[3].at,
                                 .dropout = {.probability = x->dropout, .keys = arrays[7].at}};
}

static struct aq_embedding_backward embedding_backward_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_embedding_backward){.samples = x->samples,
                                          .T = x->T,
                                          .C = x->C,
                                          .V = VOCABULARY,
                                          .tokens = arrays[0].at,
                                          .dx = arrays[4].at,
                                          .token_gradient = arrays[5].at,
                                          .position_gradient = arrays[6].at,
                                          .dropout = {.probability = x->dropout, .keys = arrays[7].at}};
}

static enum aq_status embedding_truth(struct array *arrays, const void *context)
{
    const struct aq_embedding args = embedding_args(arrays, context);
    const struct aq_embedding_backward back = embedding_backward_args(arrays, context);
    const enum aq_status status = aq_device_embedding(math_truth, &args, NULL);
    return status == AQ_OK ? aq_device_embedding_backward(math_truth, &back, NULL) : status;
}

static enum aq_status embedding_mine(struct array *arrays, const void *context)
{
    const struct aq_embedding args = embedding_args(arrays, context);
    const struct aq_embedding_backward back = embedding_backward_args(arrays, context);
    const enum aq_status status = aq_cuda_embedding(&args, NULL);
    return status == AQ_OK ? aq_cuda_embedding_backward(&back, NULL) : status;
}

static void test_embedding_has_the_bits_of_the_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{1, 1, 1}, {3, 21, 70}, {2, 9, 100}, {4, 150, 5}, {1, 700, 8}};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct sizes x = {
            .samples = sizes[s / 2][0], .T = sizes[s / 2][1], .C = sizes[s / 2][2], .dropout = s % 2 ? 0.5f : 0.0f};
        const uint64_t rows = x.samples * x.T, keys = math_keys_count(x.samples);
        int32_t *tokens = help_alloc(rows * 4);
        help_tokens(tokens, rows, 6, VOCABULARY);
        struct array arrays[8] = {
            {AQ_F32, rows, tokens, NOT_COMPARED, NULL, {0}},
            {AQ_F32, VOCABULARY * x.C, math_random(AQ_F32, VOCABULARY * x.C, 1, 1.0f), NOT_COMPARED, NULL, {0}},
            {AQ_F32, x.T * x.C, math_random(AQ_F32, x.T * x.C, 2, 1.0f), NOT_COMPARED, NULL, {0}},
            {AQ_F32, rows * x.C, NULL, EXACT, NULL, {0}},
            {AQ_F32, rows * x.C, math_random(AQ_F32, rows * x.C, 3, 1.0f), NOT_COMPARED, NULL, {0}},
            {AQ_F32, VOCABULARY * x.C, math_random(AQ_F32, VOCABULARY * x.C, 4, 1.0f), EXACT, NULL, {0}},
            {AQ_F32, x.T * x.C, math_random(AQ_F32, x.T * x.C, 5, 1.0f), EXACT, NULL, {0}},
            {AQ_F32, keys, math_keys(x.samples), NOT_COMPARED, NULL, {0}}};
        math_both("embedding", arrays, 8, embedding_truth, embedding_mine, &x);
    }
}

/* ---- Flat ranges: optimizers, dropout, the sum of squares. */

static struct aq_adamw adamw_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_adamw){.parameters = arrays[0].at,
                             .gradients = arrays[1].at,
                             .m = arrays[2].at,
                             .v = arrays[3].at,
                             .count = x->T,
                             .lr = 0.01f,
                             .beta1 = 0.9f,
                             .beta2 = 0.99f,
                             .epsilon = 1e-8f,
                             .weight_decay = 0.1f,
                             .grad_scale = 0.7f,
                             .step = 3};
}

static struct aq_sgd sgd_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_sgd){.parameters = arrays[4].at,
                           .gradients = arrays[1].at,
                           .velocity = x->momentum ? arrays[5].at : NULL,
                           .count = x->T,
                           .lr = 0.1f,
                           .momentum = x->momentum ? 0.9f : 0.0f,
                           .weight_decay = 0.01f,
                           .grad_scale = 2.0f};
}

static struct aq_dropout_apply dropout_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_dropout_apply){.samples = x->samples,
                                     .sample_elements = x->T / x->samples,
                                     .x = arrays[1].at,
                                     .y = arrays[7].at,
                                     .y_type = x->type,
                                     .dropout = {.probability = x->dropout, .keys = arrays[8].at}};
}

static enum aq_status flat_truth(struct array *arrays, const void *context)
{
    const struct sizes *x = context;
    const struct aq_adamw adamw = adamw_args(arrays, x);
    const struct aq_sgd sgd = sgd_args(arrays, x);
    const struct aq_dropout_apply dropout = dropout_args(arrays, x);
    double sum = 0.0;
    AQ_TRY(aq_device_adamw(math_truth, &adamw, NULL));
    AQ_TRY(aq_device_sgd(math_truth, &sgd, NULL));
    AQ_TRY(aq_device_dropout(math_truth, &dropout, NULL));
    AQ_TRY(aq_device_sum2(math_truth, arrays[1].at, x->T, &sum, NULL));
    *(float *)arrays[6].at = (float)sum;
    return AQ_OK;
}

static enum aq_status flat_mine(struct array *arrays, const void *context)
{
    const struct sizes *x = context;
    const struct aq_adamw adamw = adamw_args(arrays, x);
    const struct aq_sgd sgd = sgd_args(arrays, x);
    const struct aq_dropout_apply dropout = dropout_args(arrays, x);
    double sum = 0.0;
    AQ_TRY(aq_cuda_adamw(&adamw, NULL));
    AQ_TRY(aq_cuda_sgd(&sgd, NULL));
    AQ_TRY(aq_cuda_dropout(&dropout, NULL));
    AQ_TRY(aq_cuda_sum2(arrays[1].at, x->T, &sum, math_scratch, NULL));
    *(float *)arrays[6].at = (float)sum;
    return AQ_OK;
}

static void test_flat_ranges_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 15, 16, 1000, 20001};
    for (size_t s = 0; s < 4 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct sizes x = {.samples = s & 2 && sizes[s / 4] > 2 ? 3 : 1,
                                .T = sizes[s / 4],
                                .momentum = s & 1,
                                .type = s & 1 ? AQ_BF16 : AQ_F32,
                                .dropout = s & 2 ? 0.1f : 0.0f};
        struct array arrays[9];
        for (int i = 0; i < 6; i++)
            arrays[i] = (struct array){AQ_F32, x.T, math_random(AQ_F32, x.T, 1 + (uint64_t)i, 1.0f), EXACT, NULL, {0}};
        float *v = (float *)(uintptr_t)arrays[3].host;
        for (uint64_t i = 0; i < x.T; i++)
            v[i] = fabsf(v[i]);
        arrays[6] = (struct array){AQ_F32, 1, NULL, COMPARED, NULL, {0}};
        arrays[7] = (struct array){x.type, x.T, NULL, EXACT, NULL, {0}};
        arrays[8] = (struct array){AQ_F32, math_keys_count(3), math_keys(3), NOT_COMPARED, NULL, {0}};
        math_both("flat", arrays, 9, flat_truth, flat_mine, &x);
    }
}

static struct aq_lion lion_args(struct array *arrays, uint64_t count)
{
    return (struct aq_lion){.parameters = arrays[0].at,
                            .gradients = arrays[1].at,
                            .m = arrays[2].at,
                            .count = count,
                            .lr = 0.01f,
                            .beta1 = 0.9f,
                            .beta2 = 0.99f,
                            .weight_decay = 0.5f,
                            .grad_scale = 0.7f};
}

static struct aq_lamb_tensor lamb_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_lamb_tensor){.parameters = arrays[3].at,
                                   .gradients = arrays[1].at,
                                   .m = arrays[4].at,
                                   .v = arrays[5].at,
                                   .count = x->T,
                                   .lr = 0.01f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.999f,
                                   .epsilon = 1e-6f,
                                   .weight_decay = 0.01f,
                                   .grad_scale = 0.7f,
                                   .correction1 = 3.7f,
                                   .correction2 = 334.0f,
                                   .coefficient_min = 0.01f,
                                   .coefficient_max = x->momentum ? 0.02f : 10.0f};
}

static enum aq_status lion_lamb_truth(struct array *arrays, const void *context)
{
    const struct sizes *x = context;
    const struct aq_lion lion = lion_args(arrays, x->T);
    const struct aq_lamb_tensor lamb = lamb_args(arrays, x);
    AQ_TRY(aq_device_lion(math_truth, &lion, NULL));
    return aq_device_lamb(math_truth, &lamb, NULL);
}

static enum aq_status lion_lamb_mine(struct array *arrays, const void *context)
{
    const struct sizes *x = context;
    const struct aq_lion lion = lion_args(arrays, x->T);
    const struct aq_lamb_tensor lamb = lamb_args(arrays, x);
    AQ_TRY(aq_cuda_lion(&lion, NULL));
    return aq_cuda_lamb(&lamb, math_scratch, NULL);
}

/* Moments and Lion are the CPU's bits; LAMB's ratio comes of a sum in another order. */
static void test_lion_and_lamb_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 1000, 40001};
    for (size_t s = 0; s < 3 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct sizes x = {.T = sizes[s / 3], .momentum = s % 3 == 1};
        struct array arrays[6];
        for (int i = 0; i < 6; i++)
            arrays[i] = (struct array){AQ_F32, x.T, math_random(AQ_F32, x.T, 1 + (uint64_t)i, 1.0f), EXACT, NULL, {0}};
        arrays[3].compare = COMPARED;
        float *p = (float *)(uintptr_t)arrays[3].host, *v = (float *)(uintptr_t)arrays[5].host;
        for (uint64_t i = 0; i < x.T; i++)
            v[i] = fabsf(v[i]);
        if (s % 3 == 2) memset(p, 0, x.T * sizeof *p); /* a norm of 0: the ratio is 1 */
        math_both("lion and lamb", arrays, 6, lion_lamb_truth, lion_lamb_mine, &x);
    }
}

static void test_initial_values_are_the_same_bits(void **state)
{
    (void)state;
    enum { N = 4001 };
    float *mine = help_alloc(N * sizeof(float));
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_INIT, 2, 3);
    assert_int_equal(aq_cuda_fill_normal(mine, N, key, 0.5f, 0.0f, NULL), AQ_OK);
    for (int i = 0; i < N; i++)
        assert_true(mine[i] == 0.5f * aq_rng_normal(&key, (uint64_t)i));
    assert_int_equal(aq_cuda_fill_normal(mine, N, key, 0.0f, 3.0f, NULL), AQ_OK);
    for (int i = 0; i < N; i++)
        assert_true(mine[i] == 3.0f);
    aq_free(mine);
}

static void test_conversions_round_once(void **state)
{
    (void)state;
    enum { ROWS = 3, STRIDE = 24, OTHER = 20 };
    for (uint64_t columns = 1; columns <= 20; columns += columns == 1 ? 15 : 1) {
        float *x = math_random(AQ_F32, ROWS * STRIDE, 1, 1e3f), *back = help_alloc(ROWS * STRIDE * sizeof *back);
        uint16_t *y = help_alloc(ROWS * OTHER * sizeof *y), *same = help_alloc(ROWS * OTHER * sizeof *same);
        assert_int_equal(aq_cuda_convert(x, AQ_F32, STRIDE, y, AQ_BF16, OTHER, ROWS, columns, NULL), AQ_OK);
        assert_int_equal(aq_cuda_convert(y, AQ_BF16, OTHER, same, AQ_BF16, OTHER, ROWS, columns, NULL), AQ_OK);
        assert_int_equal(aq_cuda_convert(same, AQ_BF16, OTHER, back, AQ_F32, STRIDE, ROWS, columns, NULL), AQ_OK);
        assert_int_equal(aq_cuda_convert(back, AQ_F32, STRIDE, back, AQ_F32, STRIDE, ROWS, columns, NULL), AQ_OK);
        for (uint64_t i = 0; i < ROWS * STRIDE; i++) {
            const uint64_t row = i / STRIDE, column = i % STRIDE;
            if (column >= columns) {
                assert_true(back[i] == 0.0f);
                continue;
            }
            assert_int_equal(y[row * OTHER + column], aq_bfloat_from_float(x[i]));
            assert_true(back[i] == aq_bfloat_to_float(y[row * OTHER + column]));
        }
        aq_free(x);
        aq_free(back);
        aq_free(y);
        aq_free(same);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layernorm_matches_truth),
        cmocka_unit_test(test_ends_of_products_match_truth),
        cmocka_unit_test(test_cross_entropy_matches_truth),
        cmocka_unit_test(test_column_sums_match_truth),
        cmocka_unit_test(test_embedding_has_the_bits_of_the_truth),
        cmocka_unit_test(test_flat_ranges_match_truth),
        cmocka_unit_test(test_lion_and_lamb_match_truth),
        cmocka_unit_test(test_initial_values_are_the_same_bits),
        cmocka_unit_test(test_conversions_round_once),
    };
    return math_main(tests, sizeof tests / sizeof tests[0]);
}
