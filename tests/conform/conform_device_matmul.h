/*
 * conform_device_matmul.h -- the part of conform_device.c that asks for matrix products; included there, in its middle.
 */
#ifndef CONFORM_DEVICE_MATMUL_H
#define CONFORM_DEVICE_MATMUL_H

struct matmul_case {
    uint64_t M, N, K, pad;
    enum aq_element a, b, c, compute;
    bool at, bt, accumulate, even, bias, rounded; /* rounded: the bias also in c's 16 bits */
    bool bias_rows;                               /* a row of it for each of c             */
    bool sums_a, sums_b;
    bool exact; /* the truth's bits */
    enum aq_matmul_after after;
    float dropout;
};

/* Between rows of the bias. */
static uint64_t matmul_bias_stride(const struct matmul_case *x)
{
    return x->bias_rows ? x->N + x->pad : 0;
}

/* Elements of a row of so many: `pad` more, or as many as make its bytes a multiple of 32. */
static uint64_t matmul_stride(const struct matmul_case *x, uint64_t columns)
{
    return x->even ? (columns + 15) / 16 * 16 : columns + x->pad;
}

static enum aq_status matmul_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct matmul_case *x = context;
    const struct aq_matmul args = {.M = x->M,
                                   .N = x->N,
                                   .K = x->K,
                                   .a = arrays[0].at,
                                   .a_stride = matmul_stride(x, x->at ? x->M : x->K),
                                   .a_type = x->a,
                                   .a_transposed = x->at,
                                   .b = arrays[1].at,
                                   .b_stride = matmul_stride(x, x->bt ? x->K : x->N),
                                   .b_type = x->b,
                                   .b_transposed = x->bt,
                                   .compute = x->compute,
                                   .c = arrays[2].at,
                                   .c_stride = matmul_stride(x, x->N),
                                   .c_type = x->c,
                                   .accumulate = x->accumulate,
                                   .after = x->after,
                                   .bias = x->bias ? arrays[3].at : NULL,
                                   .bias_stride = matmul_bias_stride(x),
                                   .bias_rounded = x->rounded ? arrays[6].at : NULL,
                                   .other = x->after ? arrays[4].at : NULL,
                                   .dropout = {.probability = x->dropout, .keys = arrays[5].at},
                                   .dropout_sample_rows = 5,
                                   .sums_a = x->sums_a ? arrays[7].at : NULL,
                                   .sums_b = x->sums_b ? arrays[7].at : NULL};
    return aq_device_matmul(where, &args, NULL);
}

static void matmul_run(const struct matmul_case *x)
{
    const uint64_t a = (x->at ? x->K : x->M) * matmul_stride(x, x->at ? x->M : x->K);
    const uint64_t b = (x->bt ? x->N : x->K) * matmul_stride(x, x->bt ? x->K : x->N);
    const uint64_t c = x->M * matmul_stride(x, x->N);
    const uint64_t bias = x->bias_rows ? x->M * matmul_bias_stride(x) : x->N;
    const uint64_t keys = (x->M / 5 + 1) * sizeof(struct aq_rng_key) / 4;
    const enum compare other = x->after == AQ_AFTER_GELU ? COMPARED : NOT_COMPARED;
    const uint64_t sums = x->sums_a ? x->M : x->N;
    const enum compare c_bits = !x->exact ? COMPARED : gpu ? EXACT : SAME_ON_CPU;
    struct array arrays[8] = {{x->a, a, random_of(x->a, a, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                              {x->b, b, random_of(x->b, b, 2, 0.3f), NOT_COMPARED, NULL, {0}},
                              {x->c, c, random_of(x->c, c, 3, 1.0f), c_bits, NULL, {0}},
                              {AQ_F32, bias, random_of(AQ_F32, bias, 4, 1.0f), NOT_COMPARED, NULL, {0}},
                              {x->c, c, random_of(x->c, c, 5, 1.0f), other, NULL, {0}},
                              {AQ_F32, keys, help_alloc(keys * 4), NOT_COMPARED, NULL, {0}},
                              {x->c, x->N, random_of(x->c, x->N, 4, 1.0f), NOT_COMPARED, NULL, {0}},
                              {AQ_F32, sums, random_of(AQ_F32, sums, 6, 1.0f), COMPARED, NULL, {0}}};
    for (uint64_t i = 0; i < x->M / 5 + 1; i++)
        ((struct aq_rng_key *)arrays[5].host)[i] = aq_rng_key(7, AQ_RNG_DROPOUT, 3, i);
    char text[128];
    snprintf(text, sizeof text, "matmul %llu x %llu x %llu, types %d%d%d%d, transposed %d%d, add %d, after %d",
             (unsigned long long)x->M, (unsigned long long)x->N, (unsigned long long)x->K, x->a, x->b, x->c, x->compute,
             x->at, x->bt, x->accumulate, x->after);
    both_as(text, arrays, 8, matmul_call, x, AQ_F32, x->after ? TIMES : 1); /* sums themselves are the maker's */
}

/*
 * Sizes around the panels (8, 32, 48), the packing groups (16, 96) and the chunks of k (512, 1024), and one of each big
 * kind.
 */
static void test_matmul_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{1, 1, 1},    {8, 48, 16},   {7, 47, 3},    {9, 49, 17},   {16, 96, 64},
                                        {100, 33, 5}, {33, 100, 40}, {11, 50, 513}, {52, 9, 1030}, {97, 145, 33},
                                        {1, 77, 700}, {1, 1100, 150}, {1, 3, 2051}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (unsigned bits = 0; bits < 128; bits++) {
            const enum aq_element half = bits & 64 ? AQ_F16 : AQ_BF16;
            const struct matmul_case x = {.M = sizes[s][0],
                                          .N = sizes[s][1],
                                          .K = sizes[s][2],
                                          .pad = bits % 3,
                                          .a = bits & 1 ? half : AQ_F32,
                                          .b = bits & 2 ? half : AQ_F32,
                                          .c = bits & 32 ? half : AQ_F32,
                                          .compute = bits & 16 ? half : AQ_F32,
                                          .at = bits & 4,
                                          .bt = bits & 8};
            if (bits & 64 && !(bits & 51)) continue; /* nothing of 16 bits in it */
            if (!runs(128 * s + bits, 128, 5)) continue;
            matmul_run(&x);
        }
    }
}

static void test_matmul_ends_match_truth(void **state)
{
    (void)state;
    /* Widths of 8 and more at a time are fused by cuBLASLt, others are not. */
    static const uint64_t sizes[][2] = {{3, 2},     {7, 4},    {5, 33}, {8, 100}, {37, 101},
                                        {230, 101}, {2, 1100}, {9, 64}, {3, 768}, {2, 3072},
                                        {1, 33},    {1, 3072}};
    for (unsigned i = 0; i < 2 * TYPES * sizeof sizes / sizeof sizes[0]; i++) {
        if (!runs(i, 2 * TYPES, 2)) continue;
        const uint64_t *size = sizes[i / (2 * TYPES)];
        struct matmul_case x = {.M = size[0], .N = size[1], .K = size[1] % 64 ? 70 : 72, .bias = i & 1};
        x.compute = x.a = x.c = types[i / 2 % TYPES];
        x.bt = i & 2;
        x.rounded = x.bias && x.c != AQ_F32 && i % 3;
        x.after = AQ_AFTER_NONE;
        matmul_run(&x);
        x.after = AQ_AFTER_GELU;
        matmul_run(&x);
        x.after = AQ_AFTER_GELU_BACKWARD;
        matmul_run(&x);
        x.after = AQ_AFTER_RESIDUAL;
        for (unsigned wide = x.c == AQ_F32; wide < 2; wide++) { /* of the type, then fp32 */
            if (wide) x.c = AQ_F32;
            if (wide) x.rounded = false;
            matmul_run(&x);
            x.dropout = 0.25f;
            matmul_run(&x);
            x.dropout = 0.0f;
        }
        x.dropout = 0.0f;
        x.after = AQ_AFTER_NONE;
        x.bias = false;
        x.accumulate = true;
        matmul_run(&x);
    }
}

/* Gradients of weights, and of the bias beside them: widths that are whole pieces of 16 bytes, and others. */
static void test_matmul_with_sums_of_an_operand_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{64, 192, 72}, {768, 64, 40}, {2, 8, 8}, {65, 64, 70}, {100, 33, 5}, {1, 1, 1}};
    for (unsigned i = 0; i < 8 * TYPES * sizeof sizes / sizeof sizes[0]; i++) {
        if (!runs(i, 8 * TYPES, 5)) continue;
        const uint64_t *size = sizes[i / (8 * TYPES)];
        struct matmul_case x = {.M = size[0],
                                .N = size[1],
                                .K = size[2],
                                .pad = i & 4 ? 3 : 0,
                                .at = true,
                                .accumulate = i & 2,
                                .sums_a = i & 1,
                                .sums_b = !(i & 1)};
        x.compute = x.a = x.b = types[i / 8 % TYPES];
        matmul_run(&x);
        if (x.a == AQ_F32) continue;
        x.a = AQ_F32; /* is rounded on its way */
        matmul_run(&x);
    }
}

static void test_matmul_with_a_bias_for_each_row_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{3, 2}, {5, 33}, {130, 300}, {9, 64}, {4, 3072}};
    static const enum aq_matmul_after after[] = {AQ_AFTER_NONE, AQ_AFTER_GELU, AQ_AFTER_GELU_BACKWARD,
                                                 AQ_AFTER_RESIDUAL};
    for (unsigned i = 0; i < 4 * TYPES * sizeof sizes / sizeof sizes[0]; i++) {
        const uint64_t *size = sizes[i / (4 * TYPES)];
        struct matmul_case x = {
            .M = size[0], .N = size[1], .K = 40, .pad = i % 2 * 4, .bt = i & 1, .bias = true, .bias_rows = true};
        x.compute = x.a = x.c = types[i / 4 % TYPES];
        x.after = after[i % 4];
        matmul_run(&x);
        if (x.after != AQ_AFTER_RESIDUAL || x.c == AQ_F32) continue;
        x.c = AQ_F32;
        matmul_run(&x);
    }
}

/*
 * One product of two bf16 values is exact in fp32, and so is its double: a residual of bf16 that is added in fp32 and
 * rounded once has the same bits on every device, whether its library adds it or not (dropout, rows of a bias).
 */
static void test_residual_of_bf16_is_rounded_once(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{9, 64}, {37, 101}, {3, 768}, {600, 16384}};
    for (unsigned i = 0; i < 3 * sizeof sizes / sizeof sizes[0]; i++) {
        if (slow() && i > 8 && i != 10) continue; /* the longest, which passes a GPU's scratch in pieces: masks */
        const struct matmul_case x = {.M = sizes[i / 3][0],
                                      .N = sizes[i / 3][1],
                                      .K = 1,
                                      .a = AQ_BF16,
                                      .b = AQ_BF16,
                                      .c = AQ_BF16,
                                      .compute = AQ_BF16,
                                      .after = AQ_AFTER_RESIDUAL,
                                      .bias = i % 3 == 2,
                                      .bias_rows = i % 3 == 2,
                                      .dropout = i % 3 ? 0.5f : 0.0f,
                                      .exact = true};
        matmul_run(&x);
    }
}

/* What a truth and a backend may have in common: that each row gets its own. */
static void test_matmul_adds_to_each_row_its_own(void **state)
{
    (void)state;
    enum { M = 140, N = 270 };
    float *c = help_alloc(M * N * sizeof *c), *bias = help_alloc(M * N * sizeof *bias);
    const float a[M] = {0}, b[N] = {0};
    for (uint64_t i = 0; i < M * N; i++)
        bias[i] = (float)i;
    const struct aq_device_config config = {.kind = "cpu", .threads = 2};
    struct aq_device *cpu;
    assert_int_equal(aq_device_open(&config, &cpu), AQ_OK);
    const struct aq_matmul args = {.M = M, .N = N, .K = 1, .a = a, .a_stride = 1, .b = b, .b_stride = N, .c = c,
                                   .c_stride = N, .bias = bias, .bias_stride = N};
    assert_int_equal(aq_device_matmul(cpu, &args, NULL), AQ_OK);
    for (uint64_t i = 0; i < M * N; i++)
        assert_true(c[i] == bias[i]);
    aq_device_close(cpu);
    aq_free(c);
    aq_free(bias);
}

/* Rows that begin at multiples of 16 bytes and do not end so: a GPU makes the product in parts. */
static void test_matmul_of_odd_extents_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{65, 77, 67}, {131, 64, 99}, {64, 67, 129}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (unsigned bits = 0; bits < 32; bits++) {
            const enum aq_element half = bits & 16 ? AQ_F16 : AQ_BF16;
            const struct matmul_case x = {.M = sizes[s][0],
                                          .N = sizes[s][1],
                                          .K = sizes[s][2],
                                          .even = true,
                                          .a = half,
                                          .b = half,
                                          .compute = half,
                                          .c = bits & 4 ? half : AQ_F32,
                                          .at = bits & 1,
                                          .bt = bits & 2,
                                          .accumulate = bits & 8 && !(bits & 4)};
            matmul_run(&x);
        }
}

/* Long and wide enough for several spans of k and several rounds of common lanes. */
static void test_large_matmul_matches_truth(void **state)
{
    (void)state;
    const struct matmul_case cases[] = {{.M = 4100, .N = 4090, .K = 1},
                                        {.M = 8, .N = 10, .K = 530000, .bias = true},
                                        {.M = 20, .N = 60, .K = 9000, .c = AQ_BF16, .compute = AQ_BF16},
                                        {.M = 20, .N = 60, .K = 9000, .c = AQ_F16, .compute = AQ_F16},
                                        {.M = 4100, .N = 4200, .K = 2, .c = AQ_BF16, .bias = true}};
    for (size_t i = sample_every(2) - 1; i < sizeof cases / sizeof cases[0]; i += sample_every(2))
        matmul_run(&cases[i]);
}

/* A product at once, and the same in four parts with other shapes, cut at (row, column). */
static void parts_have_same_bits(const struct aq_matmul *shape, uint64_t row, uint64_t column)
{
    const uint64_t M = shape->M, N = shape->N, K = shape->K, size = aq_element_bytes(shape->c_type);
    float *a = random_of(AQ_F32, M * K, 1, 1.0f), *b = random_of(AQ_F32, K * N, 2, 1.0f);
    uint8_t *whole = random_of(AQ_F32, M * N, 3, 1.0f), *parts = random_of(AQ_F32, M * N, 3, 1.0f);
    struct aq_matmul args = *shape;
    args.a = a;
    args.b = b;
    args.c = whole;
    args.a_stride = K;
    args.b_stride = args.c_stride = N;
    assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
    for (unsigned part = 0; part < 4; part++) {
        const uint64_t m = part / 2 * row, n = part % 2 * column;
        args.M = part / 2 ? M - row : row;
        args.N = part % 2 ? N - column : column;
        args.a = a + m * K;
        args.b = b + n;
        args.c = parts + (m * N + n) * size;
        assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
    }
    assert_memory_equal(whole, parts, M * N * size);
    aq_free(a);
    aq_free(b);
    aq_free(whole);
    aq_free(parts);
}

/*
 * An element's bits depend on K alone, so whoever changes a micro-batch changes no sum of the forward pass. oneDNN does
 * not promise it, and a product with one row has an order of its own.
 */
static void test_matmul_in_parts_has_the_same_bits(void **state)
{
    struct aq_device_info info;
    (void)state;
    aq_device_info(device, &info);
    if (strncmp(info.name, "cpu:", 4) != 0 || strstr(info.name, "oneDNN")) {
        print_message("skip: only our own products on CPUs promise it\n");
        skip();
    }
    for (unsigned i = 0; i < TYPES * 2 * 3; i++) {
        const enum aq_element type = types[i / 6];
        const bool half = i % 2; /* c has 16 bits */
        struct aq_matmul shape = {.M = 75, .N = 149, .K = i / 2 % 3 == 2 ? 37 : 1090, .compute = type};
        if (half && type == AQ_F32) continue;
        shape.c_type = half ? type : AQ_F32;
        shape.accumulate = !half && i / 2 % 3;
        parts_have_same_bits(&shape, 33, 50);
        shape.M = 149; /* the other operand is the common one: of all products, then of some */
        shape.N = 75;
        parts_have_same_bits(&shape, 50, 33);
        parts_have_same_bits(&shape, 33, 33);
    }
    /* The common operand fills its memory, in chunks that do not divide it. */
    const struct aq_matmul wide = {.M = 480, .N = 490, .K = 8720, .c_type = AQ_BF16};
    parts_have_same_bits(&wide, 240, 100);
}

/* The status of a product of M 3 and N 5 over so many values, all 0, into 16 bits. Lines of errors are kept. */
static enum aq_status into_16_bits(enum aq_element type, enum aq_element compute, uint64_t K)
{
    enum { M = 3, N = 5 };
    uint16_t c[M * N];
    float *a = help_alloc(M * K * sizeof *a), *b = help_alloc(N * K * sizeof *b);
    const struct aq_matmul args = {.M = M, .N = N, .K = K, .a = a, .a_stride = K, .b = b, .b_stride = N,
                                   .compute = compute, .c = c, .c_stride = N, .c_type = type};
    capture_begin();
    const enum aq_status status = aq_device_matmul(device, &args, NULL);
    capture_end();
    aq_free(a);
    aq_free(b);
    return status;
}

/* A CPU makes sums of 16 bits from all of k at once, so its memory limits k. The limit is said, exactly. */
static void test_the_limit_of_k_into_16_bits_is_exact(void **state)
{
    static const char words[] = "into 16 bits exceeds the limit of ";
    enum { TOO_MANY = 200000 };
    struct aq_device_info info;
    (void)state;
    aq_device_info(device, &info);
    if (strncmp(info.name, "cpu:", 4) != 0) {
        print_message("skip: only CPUs in this process have the limit, and memory that the test can give them\n");
        skip();
    }
    for (unsigned i = 0; i < 4; i++) {
        const enum aq_element type = i & 1 ? AQ_F16 : AQ_BF16, compute = i & 2 ? type : AQ_F32;
        const enum aq_status status = into_16_bits(type, compute, TOO_MANY);
        if (status == AQ_OK) continue; /* no panels: no limit */
        assert_int_equal(status, AQ_INVAL);
        const char *at = strstr(captured.lines[0], words);
        assert_non_null(at);
        const uint64_t most = strtoull(at + sizeof words - 1, NULL, 10);
        assert_in_range(most, 1024, TOO_MANY - 1);
        assert_int_equal(into_16_bits(type, compute, most + 1), AQ_INVAL);
        const struct matmul_case largest = {.M = 3, .N = 5, .K = most, .c = type, .compute = compute};
        matmul_run(&largest);
    }
}

#endif
