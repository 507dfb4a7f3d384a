/*
 * conform_device_parts.h -- samples that have parts (device_math.h): attention, heads that turn and embeddings against
 * the truth, and the truth against what it is defined as: each part as if it were alone. A part of conform_device.c.
 */
#ifndef CONFORM_DEVICE_PARTS_H
#define CONFORM_DEVICE_PARTS_H

#include "conform_device_unpack.h"

enum { PARTS_ARRAYS = 12, PARTS_V = 11 };

struct parts_case {
    uint64_t samples, T, H, kv_heads, D, window;
    enum aq_element type;
    float dropout;
    bool rounded;
};

/* Parts of 1 to T tokens, by lot; each sample ends with some that stand alone. */
static uint32_t *parts_of(const struct parts_case *x)
{
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, x->T, x->samples);
    uint32_t *starts = help_alloc(x->samples * x->T * sizeof *starts);
    for (uint64_t s = 0; s < x->samples; s++)
        for (uint64_t t = 0, left = 0, start = 0; t < x->T; t++, left--) {
            if (left == 0) {
                left = t + 3 > x->T ? 1 : 1 + aq_rng_below(&key, s * x->T + t, (uint32_t)(x->T / 3) + 1);
                start = t;
            }
            starts[s * x->T + t] = (uint32_t)start;
        }
    return starts;
}

/*
 * 0 qkv, 1 out, 2 lse, 3 dout, 4 dqkv, 5 dqkv in 16 bits, 6 starts, 7 keys; 8 tokens, 9 table of tokens, then of
 * positions, 10 embedded, 11 the gradients of both tables. qkv is turned in place before.
 */
static enum aq_status parts_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct parts_case *x = context;
    const uint64_t C = x->H * x->D;
    float *tables = arrays[9].at, *gradients = arrays[11].at;
    const struct aq_rope rope = {.samples = x->samples,
                                 .T = x->T,
                                 .H = x->H,
                                 .kv_heads = x->kv_heads,
                                 .D = x->D,
                                 .R = x->D / 2 * 2,
                                 .type = x->type,
                                 .x = arrays[0].at,
                                 .y = arrays[0].at,
                                 .table = tables,
                                 .starts = arrays[6].at};
    const struct aq_attention attention = {.samples = x->samples,
                                           .T = x->T,
                                           .H = x->H,
                                           .kv_heads = x->kv_heads,
                                           .D = x->D,
                                           .T_mask = x->T,
                                           .window = x->window,
                                           .type = x->type,
                                           .qkv = arrays[0].at,
                                           .out = arrays[1].at,
                                           .lse = arrays[2].at,
                                           .starts = arrays[6].at,
                                           .dropout = {.probability = x->dropout, .keys = arrays[7].at},
                                           .dout = arrays[3].at,
                                           .dqkv = arrays[4].at,
                                           .dqkv_rounded = x->rounded ? arrays[5].at : NULL};
    const struct aq_embedding embedding = {.samples = x->samples,
                                           .T = x->T,
                                           .C = C,
                                           .V = PARTS_V,
                                           .tokens = arrays[8].at,
                                           .token_table = tables,
                                           .position_table = tables + PARTS_V * C,
                                           .x = arrays[10].at,
                                           .starts = arrays[6].at};
    AQ_TRY(aq_device_rope(where, &rope, NULL));
    AQ_TRY(aq_device_attention(where, &attention, NULL));
    AQ_TRY(aq_device_attention_backward(where, &attention, NULL));
    const struct aq_rope_backward back = {.samples = x->samples,
                                          .T = x->T,
                                          .H = x->H,
                                          .kv_heads = x->kv_heads,
                                          .D = x->D,
                                          .R = x->D / 2 * 2,
                                          .type = AQ_F32,
                                          .dy = arrays[4].at,
                                          .dx = arrays[4].at,
                                          .table = tables,
                                          .starts = arrays[6].at};
    if (!x->rounded) AQ_TRY(aq_device_rope_backward(where, &back, NULL));
    AQ_TRY(aq_device_embedding(where, &embedding, NULL));
    const struct aq_embedding_backward embedded = {.samples = x->samples,
                                                   .T = x->T,
                                                   .C = C,
                                                   .V = PARTS_V,
                                                   .tokens = arrays[8].at,
                                                   .dx = arrays[10].at,
                                                   .token_gradient = gradients,
                                                   .position_gradient = gradients + PARTS_V * C,
                                                   .starts = arrays[6].at};
    return aq_device_embedding_backward(where, &embedded, NULL);
}

static void parts_arrays(const struct parts_case *x, struct array *arrays)
{
    enum { KEY = sizeof(struct aq_rng_key) / 4 };
    const uint64_t rows = x->samples * x->T, C = x->H * x->D, wide = rows * (x->H + 2 * x->kv_heads) * x->D;
    const uint64_t tables = (PARTS_V + x->T) * C + x->T * x->D;
    struct aq_rng_key *keys = help_alloc(x->samples * sizeof *keys + 4);
    for (uint64_t s = 0; s < x->samples; s++)
        keys[s] = aq_rng_key(1, AQ_RNG_DROPOUT, s, 3);
    const struct array all[PARTS_ARRAYS] = {
        {x->type, wide, random_of(x->type, wide, 1, 1.0f), COMPARED, NULL, {0}},
        {x->type, rows * C, NULL, COMPARED, NULL, {0}},
        {AQ_F32, rows * x->H, NULL, COMPARED_AS, NULL, {0}},
        {x->type, rows * C, random_of(x->type, rows * C, 2, 1.0f), NOT_COMPARED, NULL, {0}},
        {AQ_F32, wide, NULL, x->rounded ? NOT_COMPARED : COMPARED_AS, NULL, {0}},
        {x->type, wide, NULL, x->rounded ? COMPARED : NOT_COMPARED, NULL, {0}},
        {AQ_F32, rows, parts_of(x), NOT_COMPARED, NULL, {0}},
        {AQ_F32, x->samples * KEY, keys, NOT_COMPARED, NULL, {0}},
        {AQ_F32, rows, help_alloc(rows * 4 + 4), NOT_COMPARED, NULL, {0}},
        {AQ_F32, tables, random_of(AQ_F32, tables, 3, 0.5f), NOT_COMPARED, NULL, {0}},
        {AQ_F32, rows * C, NULL, EXACT, NULL, {0}},
        {AQ_F32, tables, NULL, EXACT, NULL, {0}}};
    memcpy(arrays, all, sizeof all);
    help_tokens(arrays[8].host, rows, 4, PARTS_V);
}

/* Samples, T, H, kv_heads, D, window; is there dropout, and are gradients in 16 bits? cuDNN's backward has 0, 1 and a
 * D that is a multiple of 8: with and without a window, each in both types of 16 bits, in the short form too. */
static void test_parts_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][8] = {
        {1, 1, 1, 1, 2, 0, 0, 0},    {2, 7, 2, 1, 8, 0, 0, 1},    {3, 40, 2, 2, 20, 0, 1, 0},
        {1, 150, 4, 2, 33, 0, 1, 1}, {2, 70, 1, 1, 64, 9, 0, 1},  {1, 37, 1, 1, 200, 0, 1, 1},
        {1, 131, 2, 1, 64, 0, 0, 1}, {1, 20, 1, 1, 390, 0, 0, 0}, {1, 90, 1, 1, 128, 40, 0, 1},
        {1, 45, 4, 2, 128, 0, 1, 0}, {1, 60, 2, 1, 64, 16, 1, 0}};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        if (slow() && !type_runs(s)) continue;
        const uint64_t *size = sizes[s / TYPES];
        const struct parts_case x = {.samples = size[0],
                                     .T = size[1],
                                     .H = size[2],
                                     .kv_heads = size[3],
                                     .D = size[4],
                                     .window = size[5],
                                     .type = types[s % TYPES],
                                     .dropout = size[6] ? 0.25f : 0.0f,
                                     .rounded = s % TYPES && size[7]};
        struct array arrays[PARTS_ARRAYS];
        parts_arrays(&x, arrays);
        both_as("parts", arrays, PARTS_ARRAYS, parts_call, &x, x.type, TIMES);
    }
}

/* The truth: each part of the one sample is what it is alone, at the beginning of a sample as long as it. */
static void test_parts_are_alone(void **state)
{
    (void)state;
    enum { N = 48 };
    struct parts_case x = {.samples = 1, .T = N, .H = 2, .kv_heads = 1, .D = 8, .type = AQ_F32};
    const uint64_t C = x.H * x.D, wide = (x.H + 2 * x.kv_heads) * x.D;
    struct array whole[PARTS_ARRAYS];
    parts_arrays(&x, whole);
    uint32_t *starts = whole[6].host;
    void *qkv = help_alloc(N * wide * 4);
    memcpy(qkv, whole[0].host, N * wide * 4);
    for (int a = 0; a < PARTS_ARRAYS; a++)
        whole[a].at = whole[a].host ? whole[a].host : help_alloc(whole[a].count * 4 + 4);
    assert_int_equal(parts_call(truth, whole, &x), AQ_OK);
    float *gradients = help_alloc(whole[11].count * sizeof *gradients);
    uint32_t parts = 0;
    for (uint32_t first = 0, end; first < N; first = end, parts++) {
        for (end = first + 1; end < N && starts[end] == first;)
            end++;
        struct array alone[PARTS_ARRAYS];
        memcpy(alone, whole, sizeof alone);
        const uint64_t row[] = {wide, C, 0, C, wide, 0, 0, 0, 1, 0, C};
        for (int a = 0; a < 11; a++)
            alone[a].at = (float *)whole[a].at + row[a] * first;
        alone[0].at = (float *)qkv + wide * first;
        for (int a = 1; a < 11; a++)
            if (a == 1 || a == 2 || a == 4 || a == 10) alone[a].at = help_alloc((end - first) * wide * 4 + 64);
        alone[6].at = NULL;
        alone[11].at = gradients;
        x.T = end - first;
        assert_int_equal(parts_call(truth, alone, &x), AQ_OK);
        near("a part's heads", alone[0].at, (float *)whole[0].at + wide * first, AQ_F32, x.T * wide, 1e-6);
        near("a part's attention", alone[1].at, (float *)whole[1].at + C * first, AQ_F32, x.T * C, 1e-6);
        near("a part's gradient", alone[4].at, (float *)whole[4].at + wide * first, AQ_F32, x.T * wide, 2e-6);
        same("a part's embedding", alone[10].at, (float *)whole[10].at + C * first, AQ_F32, x.T * C);
        for (int a = 1; a < 11; a++)
            if (a == 1 || a == 2 || a == 4 || a == 10) aq_free(alone[a].at);
    }
    near("the tables' gradients", gradients, whole[11].at, AQ_F32, whole[11].count, 1e-6);
    assert_true(parts > 3);
    for (int a = 0; a < PARTS_ARRAYS; a++)
        aq_free(whole[a].at);
    aq_free(gradients);
    aq_free(qkv);
}

#endif
