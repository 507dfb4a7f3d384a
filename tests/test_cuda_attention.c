/*
 * test_cuda_attention.c -- the attention kernels against the CPU, without a GPU. See cuda_math.h.
 */
#include "cuda_math.h"

struct sizes {
    uint64_t samples, T, H, D;
    enum aq_element type;
    float dropout;
};

static struct aq_attention attention_args(struct array *arrays, const struct sizes *x)
{
    return (struct aq_attention){.samples = x->samples,
                                 .T = x->T,
                                 .H = x->H,
                                 .D = x->D,
                                 .T_mask = x->T + x->T % 2 * 3,
                                 .type = x->type,
                                 .qkv = arrays[0].at,
                                 .out = arrays[1].at,
                                 .lse = arrays[2].at,
                                 .dropout = {.probability = x->dropout, .keys = arrays[5].at},
                                 .dout = arrays[3].at,
                                 .dqkv = arrays[4].at};
}

static enum aq_status attention_truth(struct array *arrays, const void *context)
{
    const struct aq_attention args = attention_args(arrays, context);
    AQ_TRY(aq_device_attention(math_truth, &args, NULL));
    return aq_device_attention_backward(math_truth, &args, NULL);
}

static enum aq_status attention_mine(struct array *arrays, const void *context)
{
    const struct aq_attention args = attention_args(arrays, context);
    AQ_TRY(aq_cuda_attention(&args, NULL));
    return aq_cuda_attention_backward(&args, math_scratch, NULL);
}

static void attention_run(const struct sizes *x)
{
    const uint64_t N = x->samples * x->T * x->H * x->D;
    /* In bf16 the truth rounds the weights and their gradients before it multiplies: dqkv is as near as a bf16 is. */
    const enum compare dqkv = x->type == AQ_BF16 ? COMPARED_AS_BF16 : COMPARED;
    struct array arrays[6] = {{x->type, 3 * N, math_random(x->type, 3 * N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                              {x->type, N, NULL, COMPARED, NULL, {0}},
                              {AQ_F32, x->samples * x->H * x->T, NULL, COMPARED, NULL, {0}},
                              {x->type, N, math_random(x->type, N, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                              {AQ_F32, 3 * N, NULL, dqkv, NULL, {0}},
                              {AQ_F32, math_keys_count(x->samples), math_keys(x->samples), NOT_COMPARED, NULL, {0}}};
    char text[128];
    snprintf(text, sizeof text, "attention of %llu x %llu tokens, %llu x %llu, type %d, dropout %g",
             (unsigned long long)x->samples, (unsigned long long)x->T, (unsigned long long)x->H,
             (unsigned long long)x->D, x->type, (double)x->dropout);
    math_both(text, arrays, 6, attention_truth, attention_mine, x);
}

/* Tiles of 64, 32 and 16 rows: one row, one tile, a tile and a bit; widths that are no multiple of anything. */
static void test_attention_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][4] = {{1, 1, 1, 1},    {2, 5, 2, 8},    {1, 64, 1, 16},  {2, 67, 2, 33},
                                        {1, 130, 1, 24}, {1, 40, 2, 100}, {1, 33, 1, 260}, {1, 18, 1, 400}};
    for (size_t s = 0; s < 4 * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / 4];
        const struct sizes x = {.samples = size[0],
                                .T = size[1],
                                .H = size[2],
                                .D = size[3],
                                .type = s % 2 ? AQ_BF16 : AQ_F32,
                                .dropout = s & 2 ? 0.3f : 0.0f};
        attention_run(&x);
    }
}

/* Tensor cores: blocks of 128 rows, tiles of 64, a mask that is a multiple of four long and one that is not. */
static void test_attention_on_tensor_cores_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][4] = {{1, 1, 1, 64},    {2, 5, 2, 64},   {1, 64, 1, 64},
                                        {1, 128, 2, 64},  {2, 67, 1, 64},  {1, 260, 1, 64},
                                        {1, 131, 1, 128}, {2, 20, 2, 128}, {1, 200, 1, 128}};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / 2];
        const struct sizes x = {.samples = size[0],
                                .T = size[1],
                                .H = size[2],
                                .D = size[3],
                                .type = AQ_BF16,
                                .dropout = s % 2 ? 0.3f : 0.0f};
        attention_run(&x);
    }
}

static void test_what_attention_cannot_do_is_said(void **state)
{
    (void)state;
    float nothing[4] = {0};
    struct aq_attention args = {.samples = 1, .T = 1, .H = 1, .D = 513, .T_mask = 1, .qkv = nothing, .lse = nothing};
    assert_int_equal(aq_cuda_attention(&args, NULL), AQ_INVAL);
    args.D = 64;
    args.H = 64;
    args.T = args.T_mask = 131073;
    assert_int_equal(aq_cuda_attention_backward(&args, math_scratch, NULL), AQ_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_matches_truth),
        cmocka_unit_test(test_attention_on_tensor_cores_matches_truth),
        cmocka_unit_test(test_what_attention_cannot_do_is_said),
    };
    return math_main(tests, sizeof tests / sizeof tests[0]);
}
