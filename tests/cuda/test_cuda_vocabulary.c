/*
 * test_cuda_vocabulary.c -- products of a head with more words than the vocabulary has (aq_stage_config.
 * pads_vocabulary): nothing but the products shows it. A stage is trained with and without, and every bit compared.
 *
 * A vocabulary below 64 is not cut into pieces by the CUDA backend, so that sums have one order either way; a large
 * one is cut where it is not padded, and only the input's gradient may differ, as sums in another order do.
 */
#include "stage_help.h"

#include <stdio.h>

#include "cuda_plan.h"

enum { B = 2, T = 8, C = 32, SMALL = 61, LARGE = 2049, LARGE_PADDED = 2176 };

static struct aq_device *device;

/* A stage: of all layers, or the head by itself behind a cut. */
struct form {
    const char *name;
    enum aq_tied tied;
    bool cut, lora, split, recompute, logits_16bit;
    enum aq_frozen_store store;
    const char *freeze;
    uint32_t versions, logits_rows;
};

static const struct form forms[] = {
    {.name = "tied", .tied = AQ_TIED_EXACT},
    {.name = "untied", .tied = AQ_TIED_NO},
    {.name = "tied behind a cut", .tied = AQ_TIED_EXACT, .cut = true},
    {.name = "tied behind a cut, compressed", .tied = AQ_TIED_COMPRESSED, .cut = true},
    {.name = "tied behind a cut, two versions", .tied = AQ_TIED_EXACT, .cut = true, .versions = 2},
    {.name = "untied behind a cut, two versions", .tied = AQ_TIED_NO, .cut = true, .versions = 2},
    {.name = "two versions", .tied = AQ_TIED_EXACT, .versions = 2},
    {.name = "in pieces", .tied = AQ_TIED_EXACT, .logits_rows = 5},
    {.name = "made again", .tied = AQ_TIED_NO, .logits_rows = 5, .recompute = true},
    {.name = "split", .tied = AQ_TIED_NO, .split = true},
    {.name = "logits of 16 bits", .tied = AQ_TIED_EXACT, .logits_16bit = true},
    {.name = "logits of 16 bits, in pieces", .tied = AQ_TIED_EXACT, .logits_16bit = true, .logits_rows = 5},
    {.name = "frozen table", .tied = AQ_TIED_EXACT, .freeze = "wte"},
    {.name = "frozen head", .tied = AQ_TIED_NO, .freeze = "lm_head"},
    {.name = "all frozen but the head", .tied = AQ_TIED_NO, .freeze = "embedding, block 0, block 1"},
    {.name = "adapters", .tied = AQ_TIED_NO, .lora = true},
    {.name = "adapters on 8 bits", .tied = AQ_TIED_NO, .lora = true, .store = AQ_FROZEN_Q8},
    {.name = "adapters on 4 bits", .tied = AQ_TIED_EXACT, .lora = true, .store = AQ_FROZEN_NF4},
    {.name = "nothing trained behind a cut", .tied = AQ_TIED_NO, .cut = true, .lora = true},
    {.name = "nothing trained, two versions", .tied = AQ_TIED_NO, .cut = true, .lora = true, .versions = 2}};
enum { FORMS = sizeof forms / sizeof forms[0] };

static const enum aq_stage_precision precisions[] = {AQ_STAGE_BF16, AQ_STAGE_FP16, AQ_STAGE_TF32};
enum { PRECISIONS = sizeof precisions / sizeof precisions[0] };

static struct aq_stage_config config_of(const struct form *form, enum aq_stage_precision precision, uint32_t V,
                                        bool pads)
{
    struct aq_stage_config config = help_config(2, 2, C, V, B, T);
    config.model.tied = form->tied;
    config.layer_first = form->cut ? config.layer_end - 1 : 0;
    config.tied_rows = form->tied ? B * T : 0;
    config.precision = precision;
    config.pads_vocabulary = pads;
    config.split = form->split;
    config.recompute = form->recompute;
    config.logits_16bit = form->logits_16bit;
    config.frozen_store = form->store;
    config.freeze = form->freeze;
    config.versions = form->versions;
    config.logits_rows = form->logits_rows;
    if (form->lora) config.lora = (struct aq_lora_config){.rank = 4, .alpha = 8.0f};
    return config;
}

/* What one micro-batch leaves. */
struct outcome {
    double loss, evaluated;
    float *gradients, *dx;
    uint64_t count; /* of the gradients */
    struct cublaslt_host_counts counts;
};

static float *read_back(const float *from, uint64_t count)
{
    float *host = help_alloc((count + 1) * sizeof *host);
    if (count > 0) assert_int_equal(aq_device_copy(device, host, from, count * sizeof *host, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    return host;
}

static void step(struct aq_stage *stage, const struct aq_stage_input *input, float *dx, bool split)
{
    struct aq_stage_loss loss = {0};
    assert_int_equal(aq_stage_zero_grads(stage, NULL), AQ_OK);
    assert_int_equal(aq_stage_forward(stage, 0, input, NULL, &loss, NULL), AQ_OK);
    assert_int_equal(aq_stage_backward(stage, 0, NULL, dx, NULL), AQ_OK);
    if (split) assert_int_equal(aq_stage_weights(stage, 0, NULL), AQ_OK);
}

static struct outcome learn(const struct form *form, enum aq_stage_precision precision, uint32_t V, bool pads)
{
    const struct aq_stage_config config = config_of(form, precision, V, pads);
    struct aq_stage *stage = NULL;
    struct outcome out = {0};
    int32_t tokens[B * T];
    float x[B * T * C], *cut = NULL;
    help_tokens(tokens, B * T, 1, V);
    help_normal(x, B * T * C, 7, 1.0f);
    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    help_init(stage, 3);
    if (config.versions == 2) assert_int_equal(aq_stage_keep(stage, NULL), AQ_OK);
    if (form->cut) {
        assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 2 * sizeof x, (void **)&cut), AQ_OK);
        assert_int_equal(aq_device_copy(device, cut, x, sizeof x, NULL), AQ_OK);
        assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    }
    const struct aq_batch batch = help_batch(tokens, tokens, NULL, B, T);
    struct aq_stage_input input = {.batch = &batch, .x = cut, .loss_factor = 16.0f / (B * T)};
    const struct cublaslt_host_counts before = cublaslt_host_counted();
    float *const dx = form->cut ? cut + B * T * C : NULL;
    step(stage, &input, dx, config.split);
    const struct cublaslt_host_counts after = cublaslt_host_counted();
    out.counts.tensor = after.tensor - before.tensor;
    out.counts.slow = after.slow - before.slow;
    struct aq_stage_loss loss = {0};
    assert_int_equal(aq_stage_loss(stage, 0, &loss), AQ_OK);
    out.loss = loss.sum;
    if (config.versions == 2) { /* the other set of gradients, from the parameters before */
        aq_stage_use(stage, &(struct aq_stage_use){.previous = true, .gradients = 1});
        step(stage, &input, dx, config.split);
    }
    const bool copied = form->cut && form->tied == AQ_TIED_EXACT;
    out.count = aq_stage_parameter_count(stage) + (copied ? (uint64_t)V * C : 0);
    assert_int_equal(aq_stage_gradients(stage) == NULL, out.count == 0); /* room alone is none */
    assert_int_equal(aq_stage_previous(stage) == NULL, out.count == 0 || config.versions < 2);
    out.gradients = read_back(aq_stage_gradients(stage), out.count);
    if (dx) out.dx = read_back(dx, B * T * C);
    input.evaluate = true;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &loss, NULL), AQ_OK);
    out.evaluated = loss.sum;
    if (cut) aq_device_free(device, AQ_MEMORY_DEVICE, cut, 2 * sizeof x);
    aq_stage_close(stage);
    return out;
}

static void outcome_free(struct outcome *out)
{
    aq_free(out->gradients);
    aq_free(out->dx);
}

/* The first form in all precisions, the others in one each. */
static void test_a_padded_vocabulary_changes_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < FORMS; i++)
        for (size_t p = 0; p < PRECISIONS; p++) {
            if (i > 0 && p != i % PRECISIONS) continue;
            struct outcome plain = learn(&forms[i], precisions[p], SMALL, false);
            struct outcome padded = learn(&forms[i], precisions[p], SMALL, true);
            assert_true(isfinite(plain.loss) && plain.loss > 0.0);
            if (padded.loss != plain.loss || padded.evaluated != plain.evaluated)
                fail_msg("%s, precision %d: loss %.17g, evaluated %.17g; without %.17g, %.17g", forms[i].name,
                         (int)precisions[p], padded.loss, padded.evaluated, plain.loss, plain.evaluated);
            assert_int_equal(padded.count, plain.count);
            if (memcmp(padded.gradients, plain.gradients, plain.count * sizeof(float)) != 0)
                fail_msg("%s, precision %d: gradients are off by %g", forms[i].name, (int)precisions[p],
                         help_distance(padded.gradients, plain.gradients, plain.count));
            if (plain.dx && memcmp(padded.dx, plain.dx, B * T * C * sizeof(float)) != 0)
                fail_msg("%s, precision %d: the input's gradient is off", forms[i].name, (int)precisions[p]);
            outcome_free(&plain);
            outcome_free(&padded);
        }
}

/*
 * Of an odd vocabulary above 64 the library gets a product of whole pieces and one of a column, a row, or an inner size
 * of 1: padded there is one product, and none that tensor cores are slow at.
 */
static void test_a_padded_vocabulary_has_no_slivers(void **state)
{
    (void)state;
    static const cublasComputeType_t computes[] = {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F,
                                                   CUBLAS_COMPUTE_32F_FAST_TF32};
    static const cudaDataType_t types[] = {CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F};
    const struct form form = {.name = "untied behind a cut", .tied = AQ_TIED_NO, .cut = true};
    for (size_t p = 0; p < sizeof types / sizeof types[0]; p++) {
        uint64_t products[2];
        struct outcome out[2];
        for (int pads = 0; pads < 2; pads++) {
            const uint64_t before = cublaslt_host_products(computes[p], types[p]);
            out[pads] = learn(&form, precisions[p], LARGE, pads);
            products[pads] = cublaslt_host_products(computes[p], types[p]) - before;
        }
        /* Forward, the gradients of x and of W; forward once more to evaluate. */
        assert_int_equal(products[false], 8);
        assert_int_equal(products[true], 4);
        assert_true(out[false].counts.slow > 0.0);
        assert_true(out[true].counts.slow == 0.0);
        assert_true(out[true].counts.tensor == out[false].counts.tensor / LARGE * LARGE_PADDED);
        assert_true(out[true].loss == out[false].loss);
        /* The gradients of W; those of the norm's two tensors come from dx. */
        assert_int_equal(out[true].count, (LARGE + 2) * C);
        assert_memory_equal(out[true].gradients + 2 * C, out[false].gradients + 2 * C, LARGE * C * sizeof(float));
        const double apart = help_distance(out[true].dx, out[false].dx, B * T * C);
        if (!(apart < 1e-6)) fail_msg("the input's gradient is off by %g", apart);
        outcome_free(&out[false]);
        outcome_free(&out[true]);
    }
}

/* Logits of a token by themselves, as generation asks for them. */
static void test_a_padded_vocabulary_s_logits_are_the_same(void **state)
{
    (void)state;
    const struct aq_stage_config plain = config_of(&forms[0], AQ_STAGE_BF16, SMALL, false);
    float logits[2][SMALL + 1];
    for (int pads = 0; pads < 2; pads++) {
        struct aq_stage_config config = plain;
        struct aq_stage *stage = NULL;
        int32_t tokens[T];
        config.B = 1;
        config.tied_rows = 0;
        config.inference = config.extends = true;
        config.logits_rows = 1;
        config.pads_vocabulary = pads;
        help_tokens(tokens, T, 1, SMALL);
        assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
        help_init(stage, 3);
        const struct aq_batch batch = help_batch(tokens, NULL, NULL, 1, T);
        const struct aq_stage_input input = {.batch = &batch, .evaluate = true, .tokens_used = 5};
        assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, NULL, NULL), AQ_OK);
        logits[pads][SMALL] = 12345.0f;
        assert_int_equal(aq_stage_logits(stage, 0, 4, logits[pads], NULL), AQ_OK);
        assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
        assert_true(logits[pads][SMALL] == 12345.0f);
        aq_stage_close(stage);
    }
    assert_true(logits[0][0] != logits[0][1]);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
}

/*
 * Behind the last weights that products read, and behind each set of gradients, is room for the words too many; no
 * count of floats, and no tensor, is another.
 */
static void test_a_padded_vocabulary_takes_room_and_no_tensor(void **state)
{
    (void)state;
    static const struct {
        enum aq_stage_precision precision;
        uint32_t V, words;
    } cases[] = {{AQ_STAGE_BF16, LARGE, LARGE_PADDED}, {AQ_STAGE_BF16, 50257, 50304}, {AQ_STAGE_TF32, 50257, 50304},
                 {AQ_STAGE_BF16, 50304, 50304},        {AQ_STAGE_BF16, 2047, 2048},   {AQ_STAGE_FP16, SMALL, 64},
                 {AQ_STAGE_TF32, 4001, 4096},          {AQ_STAGE_FP32, LARGE, LARGE}};
    for (int i = 0; i < FORMS; i++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            struct aq_stage_config config = config_of(&forms[i], cases[c].precision, cases[c].V, false);
            struct aq_stage_size plain, padded;
            config.weights_16bit = true; /* as on a GPU */
            assert_int_equal(aq_stage_measure(&config, &plain), AQ_OK);
            config.pads_vocabulary = true;
            assert_int_equal(aq_stage_measure(&config, &padded), AQ_OK);
            const uint64_t room = (uint64_t)(cases[c].words - cases[c].V) * C;
            const uint64_t weights = room * (cases[c].precision == AQ_STAGE_TF32 ? 4 : 2);
            const uint64_t off = plain.packed ? AQ_ALIGN : 0, apart = config.versions == 2 ? AQ_ALIGN : 0;
            const uint64_t sets = config.versions == 2 ? 2 : 1;
            assert_int_equal(padded.room, room);
            assert_in_range(padded.parameter_bytes + off, plain.parameter_bytes + weights,
                            plain.parameter_bytes + weights + 2 * off);
            if (plain.parameters + plain.copied == 0) { /* nothing is trained */
                assert_int_equal(padded.previous_bytes + padded.gradient_bytes, 0);
                continue;
            }
            assert_int_equal(padded.previous_bytes, sets == 2 ? plain.previous_bytes + weights : 0);
            assert_in_range(padded.gradient_bytes + sets * apart, plain.gradient_bytes + sets * room * sizeof(float),
                            plain.gradient_bytes + sets * (room * sizeof(float) + 2 * apart));
            assert_int_equal(padded.parameters, plain.parameters);
            assert_int_equal(padded.buffers, plain.buffers);
            assert_int_equal(padded.frozen, plain.frozen);
            assert_int_equal(padded.packed, plain.packed);
            assert_int_equal(padded.tied, plain.tied);
            assert_true(padded.flops_forward == plain.flops_forward);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_padded_vocabulary_changes_no_bit),
        cmocka_unit_test(test_a_padded_vocabulary_has_no_slivers),
        cmocka_unit_test(test_a_padded_vocabulary_s_logits_are_the_same),
        cmocka_unit_test(test_a_padded_vocabulary_takes_room_and_no_tensor),
    };
    const struct aq_device_config config = {.kind = "cuda"};
    if (aq_device_open(&config, &device) != AQ_OK) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    aq_device_close(device);
    return failed;
}
