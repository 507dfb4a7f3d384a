/*
 * conform_device_loss.h -- the part of conform_device.c that asks for cross-entropy; included there, in its middle.
 */
#ifndef CONFORM_DEVICE_LOSS_H
#define CONFORM_DEVICE_LOSS_H

struct loss_case {
    uint64_t rows, V, stride;
    enum aq_element logits, gradient;
    bool without; /* a gradient */
    float cap;
};

/* The gradient lies on the logits' bytes: in 16 bits a row of fp32 logits has twice as many elements. */
static enum aq_status cross_entropy_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct loss_case *x = context;
    const struct aq_cross_entropy args = {.rows = x->rows,
                                          .V = x->V,
                                          .logits = arrays[0].at,
                                          .logits_type = x->logits,
                                          .logits_stride = x->stride,
                                          .targets = arrays[1].at,
                                          .losses = arrays[2].at,
                                          .gradient = x->without ? NULL : arrays[0].at,
                                          .gradient_stride =
                                              x->stride * aq_element_bytes(x->logits) / aq_element_bytes(x->gradient),
                                          .gradient_type = x->gradient,
                                          .scale = 0.25f,
                                          .cap = x->cap};
    const struct aq_cap cap = {.x = args.logits, .count = x->rows * x->stride, .cap = x->cap};
    const enum aq_status status = x->cap > 0.0f ? aq_device_cap(where, &cap, NULL) : AQ_OK;
    return status != AQ_OK ? status : aq_device_cross_entropy(where, &args, NULL);
}

/* Logits of fp32 with a gradient of each type, and of 16 bits with one of theirs. */
static const enum aq_element loss_types[][2] = {
    {AQ_F32, AQ_F32}, {AQ_F32, AQ_BF16}, {AQ_F32, AQ_F16}, {AQ_BF16, AQ_BF16}, {AQ_F16, AQ_F16}};
enum { LOSS_TYPES = sizeof loss_types / sizeof loss_types[0] };

/* The third number: columns of a row beyond the vocabulary. The last row but one is not counted. */
static void cross_entropy_run(const uint64_t *size, const enum aq_element *both_types, bool without)
{
    const struct loss_case x = {.rows = size[0],
                                .V = size[1],
                                .stride = size[1] + size[2],
                                .logits = both_types[0],
                                .gradient = both_types[1],
                                .without = without};
    const uint64_t N = x.rows * x.stride, bytes = N * aq_element_bytes(x.logits);
    struct array arrays[3] = {{x.gradient,
                               bytes / aq_element_bytes(x.gradient),
                               random_of(x.logits, N, 1, 4.0f),
                               without ? NOT_COMPARED : COMPARED,
                               NULL,
                               {0}},
                              {AQ_F32, x.rows, help_alloc(x.rows * 4), NOT_COMPARED, NULL, {0}},
                              {AQ_F32, x.rows, NULL, COMPARED, NULL, {0}}};
    help_tokens(arrays[1].host, x.rows, 2, (uint32_t)x.V);
    ((int32_t *)arrays[1].host)[0] = (int32_t)x.V - 1;
    if (x.rows > 1) ((int32_t *)arrays[1].host)[x.rows / 2] = -1;
    both("cross entropy", arrays, 3, cross_entropy_call, &x);
}

/*
 * Rows that begin anywhere and rows that begin at 16 bytes; of one piece and of several; rows of fp32 and of 16 bits
 * that shared memory holds, and rows that it holds in part (60,001 and 151,936). Gradients in fp32 are not compared
 * above 50,000 values, where the truth's own sum is not near enough.
 */
static void test_cross_entropy_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{1, 1, 5},    {20, 2, 5},     {9, 7, 1},     {40, 50, 5},    {9, 1001, 5},
                                        {3, 2048, 5}, {3, 5003, 5},   {3, 20003, 5}, {2, 16379, 5},  {3, 1001, 7},
                                        {3, 2048, 0}, {5, 256, 0},    {3, 1024, 8}, {3, 1025, 7},   {2, 50257, 15},
                                        {2, 50257, 6}, {1, 60001, 31}, {1, 151936, 0}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t t = sizes[s][1] > 50000; t < LOSS_TYPES; t++) {
            cross_entropy_run(sizes[s], loss_types[t], false);
            if (loss_types[t][0] == loss_types[t][1]) cross_entropy_run(sizes[s], loss_types[t], true);
        }
}

/* One row on the device under test: its loss; its gradient lies on `logits` afterwards. */
static float loss_of_row(const struct loss_case *x, void *logits, int32_t target)
{
    const size_t bytes = x->stride * aq_element_bytes(x->logits);
    float loss = 0.0f;
    struct array arrays[3] = {{.at = on(device, logits, bytes)},
                              {.at = on(device, &target, sizeof target)},
                              {.at = on(device, NULL, sizeof loss)}};
    assert_int_equal(cross_entropy_call(device, arrays, x), AQ_OK);
    off(device, arrays[0].at, logits, bytes);
    off(device, arrays[1].at, NULL, sizeof target);
    off(device, arrays[2].at, &loss, sizeof loss);
    return loss;
}

/*
 * Columns beyond the vocabulary may hold anything: a product of more words than there are writes there. What is read
 * of the rows, and what is left of them, has the same bits; the gradient there is 0.
 */
static void test_cross_entropy_reads_no_column_beyond_the_vocabulary(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{97, 15}, {1001, 23}, {50257, 47}, {61, 67}};
    static const float beyond[] = {NAN, INFINITY, 3e38f};
    for (size_t s = 0; s < LOSS_TYPES * sizeof sizes / sizeof sizes[0]; s++)
        for (int capped = 0; capped < 2; capped++) {
            const struct loss_case x = {.rows = 1,
                                        .V = sizes[s / LOSS_TYPES][0],
                                        .stride = sizes[s / LOSS_TYPES][0] + sizes[s / LOSS_TYPES][1],
                                        .logits = loss_types[s % LOSS_TYPES][0],
                                        .gradient = loss_types[s % LOSS_TYPES][1],
                                        .cap = capped && loss_types[s % LOSS_TYPES][0] == AQ_F32 ? 30.0f : 0.0f};
            const size_t bytes = x.stride * aq_element_bytes(x.logits), each = aq_element_bytes(x.gradient);
            uint8_t *plain = random_of(x.logits, x.stride, 5, 3.0f), *dirty = help_alloc(bytes);
            memcpy(dirty, plain, bytes);
            for (uint64_t v = x.V; v < x.stride; v++) {
                const float wide = beyond[v % 3];
                const uint16_t half = x.logits == AQ_BF16 ? aq_bfloat_from_float(wide) : aq_half_from_float(wide);
                memcpy(dirty + v * aq_element_bytes(x.logits), x.logits == AQ_F32 ? (const void *)&wide : &half,
                       aq_element_bytes(x.logits));
            }
            const float loss = loss_of_row(&x, plain, (int32_t)x.V / 2);
            assert_true(loss > 0.0f && loss == loss_of_row(&x, dirty, (int32_t)x.V / 2));
            assert_memory_equal(dirty, plain, bytes);
            for (size_t at = x.V * each; at < bytes; at++)
                assert_int_equal(dirty[at], 0);
            aq_free(plain);
            aq_free(dirty);
        }
}

/*
 * Logits as far from 0 as GPT-2's, by the formula in double: the loss within 1e-5, the gradient as its type rounds, in
 * fp32 within 1e-5 (the plain CPU adds 60,001 values one after another).
 */
static void test_cross_entropy_is_its_definition(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {7, 1000, 50257, 60001};
    for (size_t s = 0; s < LOSS_TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const struct loss_case x = {.rows = 1,
                                    .V = sizes[s / LOSS_TYPES],
                                    .stride = sizes[s / LOSS_TYPES] + 9,
                                    .logits = loss_types[s % LOSS_TYPES][0],
                                    .gradient = loss_types[s % LOSS_TYPES][1]};
        float *wide = random_of(AQ_F32, x.stride, 3, 3.0f);
        uint16_t *halves = help_alloc(x.stride * sizeof *halves);
        for (uint64_t v = 0; v < x.stride; v++) {
            wide[v] -= 80.0f;
            halves[v] = x.logits == AQ_BF16 ? aq_bfloat_from_float(wide[v]) : aq_half_from_float(wide[v]);
        }
        void *logits = x.logits == AQ_F32 ? (void *)wide : halves;
        const uint64_t target = x.V / 2;
        double *truth_of = help_alloc(x.V * sizeof *truth_of), sum = 0.0;
        for (uint64_t v = 0; v < x.V; v++)
            sum += truth_of[v] = exp((double)value_of(logits, x.logits, v) + 80.0);
        const double expected = log(sum) - log(truth_of[target]);
        const float loss = loss_of_row(&x, logits, (int32_t)target);
        if (!(fabs((double)loss - expected) < 1e-5)) fail_msg("the loss is %.9g, not %.9g", (double)loss, expected);
        double off_by = 0.0, length = 0.0;
        for (uint64_t v = 0; v < x.V; v++) {
            const double wanted = 0.25 * (truth_of[v] / sum - (v == target ? 1.0 : 0.0));
            const double far = (double)value_of(logits, x.gradient, v) - wanted;
            off_by += far * far;
            length += wanted * wanted;
        }
        if (!(sqrt(off_by / length) < (x.gradient == AQ_F32 ? 1e-5 : near_of(x.gradient))))
            fail_msg("the gradient is off by %g of its length", sqrt(off_by / length));
        aq_free(truth_of);
        aq_free(halves);
        aq_free(wide);
    }
}

/*
 * The same of logits from far below the cap to three times it, whose gradient is that of what the cap is given. There
 * 1 - (logit / cap)^2 is a hundredth, of which the rounded logit leaves five digits: in fp32 within 1e-4. In
 * fp16 gradients are below the normal numbers.
 */
static void test_cross_entropy_with_a_cap_is_its_definition(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {3, 40, 513, 5003, 60001};
    for (size_t s = 0; s < 3 * sizeof sizes / sizeof sizes[0]; s++) {
        const struct loss_case x = {.rows = 1,
                                    .V = sizes[s / 3],
                                    .stride = sizes[s / 3] + 7,
                                    .logits = AQ_F32,
                                    .gradient = loss_types[s % 3][1],
                                    .cap = 5.0f};
        float *logits = random_of(AQ_F32, x.stride, 3, 15.0f);
        const uint64_t target = x.V / 2;
        double *capped = help_alloc(x.V * sizeof *capped), sum = 0.0, off_by = 0.0, length = 0.0;
        for (uint64_t v = 0; v < x.V; v++)
            sum += exp(capped[v] = 5.0 * tanh((double)logits[v] / 5.0));
        const double expected = log(sum) - capped[target];
        const float loss = loss_of_row(&x, logits, (int32_t)target);
        if (!(fabs((double)loss - expected) < 1e-5)) fail_msg("the loss is %.9g, not %.9g", (double)loss, expected);
        for (uint64_t v = 0; v < x.V; v++) {
            const double slope = 1.0 - capped[v] * capped[v] / 25.0;
            const double wanted = 0.25 * (exp(capped[v]) / sum - (v == target ? 1.0 : 0.0)) * slope;
            const double far = (double)value_of(logits, x.gradient, v) - wanted;
            off_by += far * far;
            length += wanted * wanted;
        }
        if (!(sqrt(off_by / length) < (x.gradient == AQ_F32 ? 1e-4 : 5e-3)))
            fail_msg("the gradient is off by %g of its length", sqrt(off_by / length));
        aq_free(capped);
        aq_free(logits);
    }
}

/* A logit that is infinite or not a number makes the row's loss not a number, wherever it stands. */
static void test_cross_entropy_shows_an_overflow(void **state)
{
    (void)state;
    static const uint64_t places[] = {0, 31, 4500, 4999};
    for (size_t s = 0; s < LOSS_TYPES * sizeof places / sizeof places[0] * 2; s++) {
        const enum aq_element *both_types = loss_types[s % LOSS_TYPES];
        const struct loss_case x = {
            .rows = 1, .V = 5000, .stride = 5000, .logits = both_types[0], .gradient = both_types[1]};
        void *logits = random_of(x.logits, x.stride, 3, 3.0f);
        const uint64_t place = places[s / LOSS_TYPES / 2];
        const float worst = s / LOSS_TYPES % 2 ? NAN : INFINITY;
        if (x.logits == AQ_F32)
            ((float *)logits)[place] = worst;
        else
            ((uint16_t *)logits)[place] = x.logits == AQ_BF16 ? aq_bfloat_from_float(worst) : aq_half_from_float(worst);
        const float loss = loss_of_row(&x, logits, 17);
        if (!isnan(loss))
            fail_msg("%g at %llu: the loss is %g", (double)worst, (unsigned long long)place, (double)loss);
        aq_free(logits);
    }
}

#endif
