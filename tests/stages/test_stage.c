/*
 * test_stage.c -- what a stage promises: the same bits however a model is cut, however many threads work and whether or
 * not activations are made again; gradients that finite differences confirm; memory as measured; errors as statuses.
 */
#include "stage_help.h"

enum { BLOCKS = 3, HEADS = 2, C = 32, V = 61, B = 3, T = 20, LAYERS = BLOCKS + 2, MICRO = 3 };

struct run {
    uint32_t threads, cut; /* cut: layers before it are one stage, the rest another; 0: uncut */
    uint32_t logits_rows;
    bool recompute, forwards_first;
    float dropout;
    enum aq_stage_precision precision;
    float loss_factor; /* 0: 0.01 */
    bool logits_16bit;
};

struct result {
    double loss[MICRO];
    double sum2;
    float *gradients;
    uint64_t count;
};

static struct aq_stage_config config_of(const struct run *run, uint32_t first, uint32_t end)
{
    struct aq_stage_config config = help_config(BLOCKS, HEADS, C, V, B, T);
    config.model.tied = false;
    config.model.dropout = run->dropout;
    config.layer_first = first;
    config.layer_end = end;
    config.slots = MICRO;
    config.recompute = run->recompute;
    config.logits_rows = run->logits_rows;
    config.precision = run->precision;
    config.logits_16bit = run->logits_16bit;
    return config;
}

struct pipeline {
    struct aq_stage *stages[2];
    uint32_t count;
    int32_t *tokens, *targets;
    float *activation, *gradient;
    float loss_factor;
};

static void forward(struct pipeline *p, uint32_t micro, double *loss_out)
{
    static const uint64_t ids[B * MICRO] = {4, 9, 1, 0, 7, 3, 12, 5, 8};
    const uint32_t samples = micro == 1 ? B - 1 : B; /* a partial one among them */
    const struct aq_batch batch =
        help_batch(p->tokens + micro * B * T, p->targets + micro * B * T, ids + (size_t)micro * B, samples, T);
    struct aq_stage_input input = {.batch = &batch, .seed = 3, .step = 11, .loss_factor = p->loss_factor};
    struct aq_stage_loss loss = {0};
    if (p->count == 2) {
        assert_int_equal(aq_stage_forward(p->stages[0], micro, &input, p->activation, NULL, NULL), AQ_OK);
        input.x = p->activation;
    }
    assert_int_equal(aq_stage_forward(p->stages[p->count - 1], micro, &input, NULL, &loss, NULL), AQ_OK);
    assert_int_equal(loss.targets, (uint64_t)samples * T - 1);
    *loss_out = loss.sum;
}

static void backward(struct pipeline *p, uint32_t micro)
{
    float *between = p->count == 2 ? p->gradient : NULL;
    assert_int_equal(aq_stage_backward(p->stages[p->count - 1], micro, NULL, between, NULL), AQ_OK);
    if (p->count == 2) assert_int_equal(aq_stage_backward(p->stages[0], micro, between, NULL, NULL), AQ_OK);
}

static struct result run_once(const struct run *run)
{
    struct aq_device *device = help_device(run->threads);
    struct pipeline p = {.count = run->cut ? 2 : 1, .loss_factor = run->loss_factor > 0 ? run->loss_factor : 0.01f};
    const uint32_t bounds[3] = {0, run->cut ? run->cut : LAYERS, LAYERS};
    struct result result = {0};
    for (uint32_t i = 0; i < p.count; i++) {
        const struct aq_stage_config config = config_of(run, bounds[i], bounds[i + 1]);
        assert_int_equal(aq_stage_open(device, &config, &p.stages[i]), AQ_OK);
        assert_int_equal(aq_stage_init(p.stages[i], 17), AQ_OK);
        assert_int_equal(aq_stage_zero_grads(p.stages[i], NULL), AQ_OK);
        result.count += aq_stage_parameter_count(p.stages[i]);
    }
    p.tokens = help_alloc(sizeof(int32_t) * MICRO * B * T);
    p.targets = help_alloc(sizeof(int32_t) * MICRO * B * T);
    p.activation = help_alloc(sizeof(float) * B * T * C);
    p.gradient = help_alloc(sizeof(float) * B * T * C);
    help_tokens(p.tokens, MICRO * B * T, 21, V);
    help_tokens(p.targets, MICRO * B * T, 22, V);
    for (int m = 0; m < MICRO; m++) p.targets[m * B * T + 5] = -1;

    for (uint32_t m = 0; m < MICRO; m++) {
        forward(&p, m, &result.loss[m]);
        if (!run->forwards_first) backward(&p, m);
    }
    for (uint32_t m = 0; run->forwards_first && m < MICRO; m++) backward(&p, m);

    result.gradients = help_alloc(result.count * sizeof(float));
    float *to = result.gradients;
    for (uint32_t i = 0; i < p.count; i++) {
        const uint64_t count = aq_stage_parameter_count(p.stages[i]);
        memcpy(to, aq_stage_gradients(p.stages[i]), count * sizeof(float));
        to += count;
    }
    for (uint32_t i = p.count; i-- > 0;)
        assert_int_equal(aq_stage_gradient_sum2(p.stages[i], &result.sum2, NULL), AQ_OK);
    for (uint32_t i = 0; i < p.count; i++) aq_stage_close(p.stages[i]);
    aq_free(p.tokens);
    aq_free(p.targets);
    aq_free(p.activation);
    aq_free(p.gradient);
    aq_device_close(device);
    return result;
}

static void same_bits(const struct run *a, const struct run *b)
{
    const struct result x = run_once(a), y = run_once(b);
    assert_int_equal(x.count, y.count);
    assert_memory_equal(x.loss, y.loss, sizeof x.loss);
    assert_memory_equal(x.gradients, y.gradients, x.count * sizeof(float));
    assert_memory_equal(&x.sum2, &y.sum2, sizeof x.sum2);
    assert_true(x.sum2 > 0.0);
    aq_free(x.gradients);
    aq_free(y.gradients);
}

/* Products of other shapes add in other orders. */
static void nearly_same(const struct run *a, const struct run *b, double limit)
{
    const struct result x = run_once(a), y = run_once(b);
    for (int m = 0; m < MICRO; m++)
        assert_float_equal(x.loss[m], y.loss[m], limit * x.loss[m]);
    assert_int_equal(x.count, y.count);
    const double distance = help_distance(x.gradients, y.gradients, x.count);
    if (!(distance <= limit)) fail_msg("gradients differ by %g, more than %g", distance, limit);
    aq_free(x.gradients);
    aq_free(y.gradients);
}

static const enum aq_stage_precision precisions[] = {AQ_STAGE_FP32, AQ_STAGE_BF16, AQ_STAGE_FP16};
enum { PRECISIONS = sizeof precisions / sizeof precisions[0] };

static void test_cut_anywhere_equals_uncut(void **state)
{
    (void)state;
    for (int p = 0; p < PRECISIONS; p++) {
        for (uint32_t cut = 1; cut < LAYERS; cut++) {
            struct run uncut = {.threads = 2, .precision = precisions[p], .dropout = 0.1f};
            struct run other = uncut;
            other.cut = cut;
            same_bits(&uncut, &other);
            uncut.dropout = other.dropout = 0.0f; /* a layer norm rounds for the branch before it, but not over a cut */
            same_bits(&uncut, &other);
        }
    }
}

static void test_any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    for (int p = 0; p < PRECISIONS; p++) {
        for (uint32_t threads = 2; threads < 5; threads++) {
            const struct run one = {.threads = 1, .precision = precisions[p], .dropout = 0.1f};
            struct run other = one;
            other.threads = threads;
            same_bits(&one, &other);
        }
    }
}

static void test_recomputation_gives_the_same_bits(void **state)
{
    (void)state;
    for (int p = 0; p < PRECISIONS; p++) {
        const struct run kept = {.threads = 2, .precision = precisions[p], .dropout = 0.25f, .forwards_first = true};
        struct run again = kept;
        again.recompute = true;
        same_bits(&kept, &again);
    }
}

/* In pieces, whose gradients are kept, or made again where memory counts: the last piece is shorter. */
static void test_logits_in_pieces_give_the_same(void **state)
{
    (void)state;
    for (int p = 0; p < PRECISIONS; p++) {
        const struct run whole = {.threads = 2, .precision = precisions[p]};
        struct run pieces = whole;
        pieces.logits_rows = 7;
        const double limit = p == 0 ? 1e-6 : 1e-3;
        nearly_same(&whole, &pieces, limit);
        pieces.forwards_first = true;
        nearly_same(&whole, &pieces, limit);
        pieces.recompute = true;
        nearly_same(&whole, &pieces, limit);
    }
}

/* On a GPU they take the room of their gradient and no more; a CPU takes no notice. */
static void test_logits_of_16_bits_lie_under_their_gradient(void **state)
{
    (void)state;
    enum { LINE = 64, STRIDE = (V + LINE - 1) / LINE * LINE, ROWS = B * T };
    struct aq_device *device = help_device(1);
    const struct run run = {.threads = 1, .precision = AQ_STAGE_BF16};
    struct aq_stage_config config = config_of(&run, LAYERS - 1, LAYERS);
    struct aq_stage_size wide, narrow, pieces;
    struct aq_stage *stage;
    assert_int_equal(aq_stage_measure(&config, &wide), AQ_OK);
    config.logits_16bit = true;
    assert_int_equal(aq_stage_measure(&config, &narrow), AQ_OK);
    config.logits_rows = 7;
    assert_int_equal(aq_stage_measure(&config, &pieces), AQ_OK);
    assert_int_equal(wide.workspace_bytes - narrow.workspace_bytes, ROWS * STRIDE * 2);
    assert_int_equal(pieces.workspace_bytes - narrow.workspace_bytes, STRIDE * 4); /* a row for output() */
    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    aq_stage_close(stage);
    aq_device_close(device);
    const struct run wished = {.threads = 1, .precision = AQ_STAGE_BF16, .logits_16bit = true};
    same_bits(&run, &wished);
}

/* All forwards first makes the head compute its logits twice. */
static void test_order_of_forwards_gives_the_same_bits(void **state)
{
    (void)state;
    const struct run in_turn = {.threads = 2, .precision = AQ_STAGE_FP32};
    struct run first = in_turn;
    first.forwards_first = true;
    same_bits(&in_turn, &first);
    first.cut = 2;
    same_bits(&in_turn, &first);
}

/* The loss of a sample under dropout does not depend on the micro-batch it comes in. */
static void test_masks_follow_the_sample(void **state)
{
    (void)state;
    struct aq_device *device = help_device(2);
    const struct run run = {.dropout = 0.5f, .precision = AQ_STAGE_FP32};
    const struct aq_stage_config config = config_of(&run, 0, LAYERS);
    struct aq_stage *stage = NULL;
    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    assert_int_equal(aq_stage_init(stage, 1), AQ_OK);
    int32_t tokens[2 * T], targets[2 * T];
    help_tokens(tokens, 2 * T, 31, V);
    help_tokens(targets, 2 * T, 32, V);
    const uint64_t ids[2] = {40, 41};
    struct aq_batch batch = help_batch(tokens, targets, ids, 2, T);
    struct aq_stage_input input = {.batch = &batch, .seed = 1, .step = 1};
    struct aq_stage_loss both, first, second, later;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &both, NULL), AQ_OK);
    batch.samples = 1;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &first, NULL), AQ_OK);
    batch = help_batch(tokens + T, targets + T, ids + 1, 1, T);
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &second, NULL), AQ_OK);
    assert_float_equal(both.sum, first.sum + second.sum, 1e-5 * both.sum);
    input.step = 2;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &later, NULL), AQ_OK);
    assert_true(fabs(later.sum - second.sum) > 1e-4 * second.sum);
    aq_stage_close(stage);
    aq_device_close(device);
}

/*
 * Directional derivatives: loss(p + h d) - loss(p - h d) over 2 h against gradient * d, for a random direction in each
 * tensor. In fp32 the quotient is good to about 1e-3; the bound is 1e-2 of |gradient| |d|'s expected size.
 */
static void test_gradient_matches_finite_differences(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct aq_device *device = help_device(2);
        const struct run run = {.dropout = round ? 0.3f : 0.0f, .precision = AQ_STAGE_FP32};
        struct aq_stage_config config = config_of(&run, 0, LAYERS);
        config.model.tied = round == 0;
        struct aq_stage *stage = NULL;
        assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
        help_init(stage, 6);
        int32_t tokens[B * T], targets[B * T];
        help_tokens(tokens, B * T, 41, V);
        help_tokens(targets, B * T, 42, V);
        const uint64_t ids[B] = {0, 1, 2};
        const struct aq_batch batch = help_batch(tokens, targets, ids, B, T);
        const struct aq_stage_input input = {.batch = &batch, .seed = 1, .step = 1, .loss_factor = 1.0f};
        struct aq_stage_loss loss, up, down;
        assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &loss, NULL), AQ_OK);
        assert_int_equal(aq_stage_backward(stage, 0, NULL, NULL, NULL), AQ_OK);
        for (uint32_t i = 0; i < aq_stage_tensor_count(stage); i++) {
            struct aq_tensor_info info;
            aq_stage_tensor(stage, i, &info);
            float *p = aq_stage_parameters(stage) + info.offset, *g = aq_stage_gradients(stage) + info.offset;
            float *before = help_alloc(info.count * sizeof(float)), *d = help_alloc(info.count * sizeof(float));
            memcpy(before, p, info.count * sizeof(float));
            help_normal(d, info.count, 50 + i, 1.0f);
            double slope = 0.0, size = 0.0;
            for (uint64_t k = 0; k < info.count; k++) {
                slope += (double)g[k] * d[k];
                size += (double)g[k] * g[k];
            }
            const float h = (float)(0.02 / sqrt(size)); /* the loss moves by some hundredths: above its rounding */
            for (uint64_t k = 0; k < info.count; k++) p[k] = before[k] + h * d[k];
            assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &up, NULL), AQ_OK);
            for (uint64_t k = 0; k < info.count; k++) p[k] = before[k] - h * d[k];
            assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &down, NULL), AQ_OK);
            memcpy(p, before, info.count * sizeof(float));
            const double quotient = (up.sum - down.sum) / (2.0 * h);
            if (fabs(quotient - slope) > 1e-2 * sqrt(size))
                fail_msg("%s: slope %g, finite difference %g, |gradient| %g", info.name, slope, quotient, sqrt(size));
            aq_free(before);
            aq_free(d);
        }
        aq_stage_close(stage);
        aq_device_close(device);
    }
}

/* Gradients too small for fp16 come through with a scale, are lost without, and tell when it was too large. */
static void test_fp16_keeps_gradients_that_are_scaled(void **state)
{
    (void)state;
    const float small = 1e-6f, scale = 65536.0f;
    struct run run = {.threads = 2, .precision = AQ_STAGE_FP32, .loss_factor = small};
    const struct result truth = run_once(&run);
    run.precision = AQ_STAGE_FP16;
    const struct result lost = run_once(&run);
    run.loss_factor = small * scale;
    const struct result scaled = run_once(&run);
    for (uint64_t i = 0; i < scaled.count; i++) scaled.gradients[i] /= scale;
    const double near = help_distance(scaled.gradients, truth.gradients, truth.count);
    const double far = help_distance(lost.gradients, truth.gradients, truth.count);
    if (!(near < 3e-3 && far > 0.1)) fail_msg("gradients are off by %g with a scale, by %g without", near, far);
    run.loss_factor = 1e7f;
    const struct result over = run_once(&run);
    assert_false(isfinite(over.sum2));
    for (int m = 0; m < MICRO; m++) assert_true(fabs(over.loss[m] / truth.loss[m] - 1.0) < 1e-3);
    aq_free(truth.gradients);
    aq_free(lost.gradients);
    aq_free(scaled.gradients);
    aq_free(over.gradients);
}

static void test_measure_equals_use(void **state)
{
    (void)state;
    struct aq_device *device = help_device(1);
    for (int round = 0; round < 8; round++) {
        struct aq_stage_config config = help_config(4, 4, 128, 500, 2, 64);
        config.versions = round == 7 ? 2 : 1;
        config.slots = 1 + (uint32_t)round % 3;
        config.recompute = round == 3;
        config.inference = round == 4;
        config.layer_first = round == 5 ? 2 : 0;
        config.precision = round == 2 ? AQ_STAGE_BF16 : round == 6 ? AQ_STAGE_FP16 : AQ_STAGE_FP32;
        struct aq_stage_size size;
        assert_int_equal(aq_stage_measure(&config, &size), AQ_OK);
        const uint64_t before = aq_memory_used();
        struct aq_stage *stage = NULL;
        assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
        const double used = (double)(aq_memory_used() - before);
        const double sum = (double)(size.parameter_bytes + size.previous_bytes + size.gradient_bytes +
                                    size.slot_bytes * config.slots + size.workspace_bytes);
        assert_true(used >= sum && used <= 1.02 * sum);
        assert_int_equal(size.parameters, aq_stage_parameter_count(stage));
        aq_stage_close(stage);
        assert_int_equal(aq_memory_used(), before);
    }
    aq_device_close(device);
}

/* Add 1/16 to every parameter, as an update might. */
static void move(struct aq_stage *stage)
{
    float *w = aq_stage_parameters(stage);
    for (uint64_t i = 0; i < aq_stage_parameter_count(stage); i++) w[i] += 0.0625f;
    assert_int_equal(aq_stage_parameters_changed(stage, NULL), AQ_OK);
}

/*
 * A forward before an update and its backward after it, at the previous parameters, give the bits of both before it;
 * and what is newer meanwhile goes to the other gradients, at the newest.
 */
static void test_versions_are_apart(void **state)
{
    (void)state;
    for (int i = 0; i < PRECISIONS; i++)
        for (int recompute = 0; recompute < 2; recompute++) {
            const struct run run = {.threads = 1, .precision = precisions[i], .recompute = recompute};
            const struct result want = run_once(&run);
            struct aq_device *device = help_device(1);
            struct pipeline p = {.count = 1, .loss_factor = 0.01f};
            struct aq_stage_config config = config_of(&run, 0, LAYERS);
            double loss, newest;
            config.versions = 2;
            config.slots = MICRO + 1;
            assert_int_equal(aq_stage_open(device, &config, &p.stages[0]), AQ_OK);
            struct aq_stage *stage = p.stages[0];
            assert_int_equal(aq_stage_init(stage, 17), AQ_OK);
            p.tokens = help_alloc(sizeof(int32_t) * MICRO * B * T);
            p.targets = help_alloc(sizeof(int32_t) * MICRO * B * T);
            help_tokens(p.tokens, MICRO * B * T, 21, V);
            help_tokens(p.targets, MICRO * B * T, 22, V);
            for (int m = 0; m < MICRO; m++) p.targets[m * B * T + 5] = -1;
            for (uint32_t g = 0; g < 2; g++) {
                aq_stage_use(stage, &(struct aq_stage_use){.gradients = g});
                assert_int_equal(aq_stage_zero_grads(stage, NULL), AQ_OK);
            }
            const struct aq_stage_use previous = {.previous = true, .gradients = 1}, latest = {.gradients = 0};
            aq_stage_use(stage, &(struct aq_stage_use){.gradients = 1});
            forward(&p, 0, &loss);
            assert_true(loss == want.loss[0]);
            assert_int_equal(aq_stage_keep(stage, NULL), AQ_OK);
            move(stage);
            aq_stage_use(stage, &latest);
            forward(&p, 1, &newest);
            assert_true(newest != want.loss[1]);
            aq_stage_use(stage, &previous);
            backward(&p, 0);
            for (uint32_t m = 2; m < MICRO; m++) {
                forward(&p, m, &loss);
                assert_true(loss == want.loss[m]);
            }
            aq_stage_use(stage, &latest);
            backward(&p, 1);
            aq_stage_use(stage, &previous);
            forward(&p, 1, &loss);
            assert_true(loss == want.loss[1]);
            for (uint32_t m = 1; m < MICRO; m++) backward(&p, m);
            assert_memory_equal(aq_stage_gradients(stage), want.gradients, want.count * sizeof(float));
            aq_stage_use(stage, &latest);
            double sum2 = 0;
            assert_int_equal(aq_stage_gradient_sum2(stage, &sum2, NULL), AQ_OK);
            assert_true(sum2 > 0 && sum2 != want.sum2);
            aq_stage_close(stage);
            aq_free(want.gradients);
            aq_free(p.tokens);
            aq_free(p.targets);
            aq_device_close(device);
        }
}

/* Both sides of a cut measure what the model says crosses it; there is none before the first layer or behind the last.
 */
static void test_both_sides_measure_the_cut_that_the_model_says(void **state)
{
    (void)state;
    const struct run run = {.threads = 1, .precision = AQ_STAGE_FP32};
    const struct aq_model_config model = config_of(&run, 0, LAYERS).model;
    struct aq_cut_shape cut;
    assert_int_equal(aq_model_cut(&model, 0, T, &cut), AQ_INVAL);
    assert_int_equal(aq_model_cut(&model, LAYERS, T, &cut), AQ_INVAL);
    for (uint32_t end = 1; end < LAYERS; end++) {
        const struct aq_stage_config before = config_of(&run, 0, end), after = config_of(&run, end, LAYERS);
        struct aq_stage_size a, b;
        assert_int_equal(aq_model_cut(&model, end, T, &cut), AQ_OK);
        assert_int_equal(aq_stage_measure(&before, &a), AQ_OK);
        assert_int_equal(aq_stage_measure(&after, &b), AQ_OK);
        assert_int_equal(a.x_bytes + b.y_bytes, 0);
        assert_int_equal(a.y_bytes, (uint64_t)B * cut.rows * cut.columns * sizeof(float));
        assert_int_equal(b.x_bytes, a.y_bytes);
    }
}

static void test_gpt2_124m_has_its_published_size(void **state)
{
    (void)state;
    struct aq_stage_config config = {.B = 4, .T = 256, .slots = 1, .precision = AQ_STAGE_FP32, .layer_end = 14};
    aq_model_config_default(&config.model, "gpt2");
    struct aq_stage_size size;
    assert_int_equal(aq_stage_measure(&config, &size), AQ_OK);
    assert_int_equal(size.parameters, 124439808);
    assert_int_equal(aq_model_layers(&config.model), 14);
    char name[32];
    aq_model_layer_name(&config.model, 4, name, sizeof name);
    assert_string_equal(name, "block 3");
}

static void test_generation_sees_the_prefix_alone(void **state)
{
    (void)state;
    struct aq_device *device = help_device(2);
    struct aq_stage_config config = help_config(2, 2, 32, V, 2, T);
    config.inference = true;
    struct aq_stage *stage = NULL;
    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    help_init(stage, 2);
    int32_t tokens[2 * T];
    float cut[V], whole[V];
    help_tokens(tokens, 2 * T, 61, V);
    struct aq_batch batch = help_batch(tokens, NULL, NULL, 1, T);
    struct aq_stage_input input = {.batch = &batch, .evaluate = true};
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, NULL, NULL), AQ_OK);
    assert_int_equal(aq_stage_logits(stage, 0, 6, whole, NULL), AQ_OK);
    for (uint32_t samples = 1; samples <= 2; samples++) {
        batch.samples = samples;
        input.tokens_used = 7;
        for (int i = 7; i < T; i++) tokens[i] = -5; /* not real: must not be looked at */
        help_tokens(tokens + T, T, 62, V);
        assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, NULL, NULL), AQ_OK);
        assert_int_equal(aq_stage_logits(stage, 0, 6, cut, NULL), AQ_OK);
        assert_true(help_distance(cut, whole, V) < 1e-5);
    }
    aq_stage_close(stage);
    aq_device_close(device);
}

/* A tied head that a cut parts from the embedding is frozen with it, and by no name of its own. */
static void test_frozen_table_freezes_its_copy(void **state)
{
    (void)state;
    struct aq_device *device = help_device(1);
    struct aq_stage_config config = help_config(2, 2, 32, V, 2, T);
    struct aq_freeze_pattern pattern;
    struct aq_tensor_info info;
    struct aq_stage *stage;
    config.layer_first = 2;
    for (int tied = 0; tied < 2; tied++) {
        config.model.tied = tied;
        for (int named = 0; named < 2; named++) {
            config.freeze = named ? "lm_head" : "wte";
            assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
            assert_int_equal(aq_stage_frozen_count(stage), tied != named);
            if (tied != named) {
                aq_stage_frozen(stage, 0, &info);
                assert_string_equal(info.name, "lm_head.weight");
                assert_true(info.frozen && info.offset == aq_stage_saved_floats(stage));
            }
            aq_stage_close(stage);
        }
        assert_true(aq_model_freeze_pattern(&config.model, T, " transformer.wte,lm_head ", 1, &pattern));
        assert_string_equal(pattern.text, "lm_head");
        assert_int_equal(pattern.tensors, !tied);
        assert_int_equal(pattern.copy, tied);
        assert_true(aq_model_freeze_pattern(&config.model, T, "transformer.wte,lm_head", 0, &pattern));
        assert_int_equal(pattern.tensors, 1);
    }
    aq_device_close(device);
}

/* The last pattern that names a tensor gives it its rate, at every cut; a tied head has the embedding's. */
static void test_rates_by_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        float rate;
    } wanted[] = {{"wte.weight", 0.03f},     {"wpe.weight", 0.03f},         {"h.0.attn.c_attn.weight", 0.5f},
                  {"h.0.ln_1.bias", 0.002f}, {"h.1.mlp.c_fc.weight", 0.0f}, {"h.1.ln_2.weight", 0.002f},
                  {"lm_head.weight", 0.003f}};
    struct aq_stage_config config = help_config(2, 2, 32, V, 2, T);
    uint32_t found = 0;
    config.lr_patterns = "embedding = 3e-2, block 0=0.5,head = 1e-4, head= 3e-3 , h.*.ln_* =0.002";
    config.model.tied = false;
    for (uint32_t first = 0; first < 4; first++) {
        struct aq_tensor_info *infos;
        uint32_t count;
        config.layer_first = first;
        config.layer_end = first + 1;
        assert_int_equal(aq_stage_list(&config, &infos, &count), AQ_OK);
        for (uint32_t i = 0; i < count; i++)
            for (size_t w = 0; w < sizeof wanted / sizeof *wanted; w++) {
                if (strcmp(infos[i].name, wanted[w].name) != 0) continue;
                if (infos[i].rate != wanted[w].rate) fail_msg("%s: %g", infos[i].name, (double)infos[i].rate);
                found++;
            }
        aq_free(infos);
    }
    assert_int_equal(found, sizeof wanted / sizeof *wanted);
    static const struct {
        const char *text;
        float rate;
        uint32_t tensors;
    } cases[] = {{"wte = 1e-3", 1e-3f, 1}, {"wte", 0, 1},       {"wte = ", 0, 1},   {"wte = 0", 0, 1},
                 {"wte = -1", 0, 1},       {"wte = nan", 0, 1}, {"wte = inf", 0, 1}, {"wte = 1x", 0, 1},
                 {"= 1", 1, 0},            {"wtx = 2", 2, 0},   {"wte = 0.00000000000000000000000000000000001", 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct aq_freeze_pattern pattern;
        assert_true(aq_model_rate_pattern(&config.model, T, cases[i].text, 0, &pattern));
        if (pattern.rate != cases[i].rate || pattern.tensors != cases[i].tensors)
            fail_msg("%s: %g, %u tensors", cases[i].text, (double)pattern.rate, pattern.tensors);
    }
}

/* What a list names, and the word of it that nobody has. */
static void test_patterns_name_layers_and_parts_of_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t tensors;
        const char *unknown;
    } cases[] = {{"embedding", 2, ""},       {"blocks 0-1", 24, ""},      {"block 1", 12, ""},
                 {"blocks", 24, ""},         {"block", 24, ""},           {"blocks *", 24, ""},
                 {"h.0-1.attn", 8, ""},      {"h.*.ln_*", 8, ""},         {"bias", 13, ""},
                 {"head", 3, ""},            {"ln_f", 2, ""},             {"*", 29, ""},
                 {"! block 0", 12, ""},      {"h.0.c_fc", 0, ""},         {"blocks 2-3", 0, "2-3"},
                 {"blcok 0", 0, "blcok"},    {"h.0-1.atn", 0, "atn"},     {"h.9", 0, "9"},
                 {"wte weight", 0, ""},      {"!", 0, ""},                {"wte.weight.", 0, ""},
                 {"block 0-", 0, "0-"},      {"block 1-0", 0, "1-0"},     {"b*k 1", 0, ""},
                 {"block 99999999999", 0, "99999999999"}};
    struct aq_stage_config config = help_config(2, 2, 32, V, 2, T);
    config.model.tied = false;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct aq_freeze_pattern pattern;
        assert_true(aq_model_freeze_pattern(&config.model, T, cases[i].text, 0, &pattern));
        if (pattern.tensors != cases[i].tensors || strcmp(pattern.unknown, cases[i].unknown) != 0)
            fail_msg("%s: %u tensors, unknown '%s'", cases[i].text, pattern.tensors, pattern.unknown);
        assert_false(aq_model_freeze_pattern(&config.model, T, cases[i].text, 1, &pattern));
    }
    struct aq_freeze_pattern none;
    assert_false(aq_model_freeze_pattern(&config.model, T, " , ,", 0, &none));
    assert_true(aq_model_trains(&config.model, T, "*, !h.1", NULL, 4));
    assert_false(aq_model_trains(&config.model, T, "*, !h.1", NULL, 2));
    assert_false(aq_model_trains(&config.model, T, "!h.1, *", NULL, 4));
}

static void test_bad_input_gives_a_status(void **state)
{
    (void)state;
    struct aq_device *device = help_device(1);
    struct aq_stage_config config = help_config(2, 2, 32, V, 2, T), bad = config;
    struct aq_stage *stage = NULL;
    bad.layer_end = 5;
    assert_int_equal(aq_stage_open(device, &bad, &stage), AQ_INVAL);
    bad = config;
    bad.model.heads = 3;
    assert_int_equal(aq_stage_open(device, &bad, &stage), AQ_INVAL);
    bad = config;
    bad.T = T + 1;
    assert_int_equal(aq_stage_open(device, &bad, &stage), AQ_INVAL);
    bad = config;
    bad.model.kind = "rnn";
    assert_int_equal(aq_stage_open(device, &bad, &stage), AQ_INVAL);

    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    int32_t tokens[2 * T] = {0}, targets[2 * T] = {0};
    struct aq_batch batch = help_batch(tokens, targets, NULL, 2, T);
    struct aq_stage_input input = {.batch = &batch, .loss_factor = 1.0f};
    assert_int_equal(aq_stage_backward(stage, 0, NULL, NULL, NULL), AQ_INVAL); /* no forward went before */
    assert_int_equal(aq_stage_forward(stage, 1, &input, NULL, NULL, NULL), AQ_INVAL);
    batch.samples = 3;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, NULL, NULL), AQ_INVAL);
    batch.samples = 2;
    tokens[2 * T - 1] = V;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, NULL, NULL), AQ_INVAL);
    tokens[2 * T - 1] = 0;
    targets[3] = V;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, NULL, NULL), AQ_INVAL);
    targets[3] = 0;
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, NULL, NULL), AQ_OK);
    assert_int_equal(aq_stage_backward(stage, 0, NULL, NULL, NULL), AQ_OK);
    assert_int_equal(aq_stage_backward(stage, 0, NULL, NULL, NULL), AQ_INVAL); /* once */
    aq_stage_close(stage);
    aq_device_close(device);
}

/* The n-th allocation fails, n = 1, 2, ...: a status, nothing lost. */
static void test_open_without_memory_gives_a_status(void **state)
{
    (void)state;
    struct aq_device *device = help_device(1);
    const struct aq_stage_config config = help_config(2, 2, 32, V, 2, T);
    const uint64_t before = aq_memory_used();
    for (uint64_t n = 1;; n++) {
        struct aq_stage *stage = NULL;
        aq_memory_fail_at(n);
        const enum aq_status status = aq_stage_open(device, &config, &stage);
        aq_memory_fail_at(0);
        aq_stage_close(stage);
        assert_int_equal(aq_memory_used(), before);
        if (status == AQ_OK) break;
        assert_int_equal(status, AQ_NOMEM);
        assert_true(n < 100);
    }
    aq_device_close(device);
}

/* A variant that AQ_CPU asks for may not be on this machine. */
static bool device_is_here(void)
{
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    struct aq_device *device = NULL;
    const enum aq_status status = aq_device_open(&config, &device);
    if (status == AQ_OK) aq_device_close(device);
    return status != AQ_NODEV;
}

int main(void)
{
    if (!device_is_here()) {
        print_message("skip: this processor does not have what AQ_CPU asks for\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere_equals_uncut),
        cmocka_unit_test(test_any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(test_recomputation_gives_the_same_bits),
        cmocka_unit_test(test_logits_in_pieces_give_the_same),
        cmocka_unit_test(test_logits_of_16_bits_lie_under_their_gradient),
        cmocka_unit_test(test_order_of_forwards_gives_the_same_bits),
        cmocka_unit_test(test_masks_follow_the_sample),
        cmocka_unit_test(test_gradient_matches_finite_differences),
        cmocka_unit_test(test_fp16_keeps_gradients_that_are_scaled),
        cmocka_unit_test(test_versions_are_apart),
        cmocka_unit_test(test_measure_equals_use),
        cmocka_unit_test(test_both_sides_measure_the_cut_that_the_model_says),
        cmocka_unit_test(test_gpt2_124m_has_its_published_size),
        cmocka_unit_test(test_generation_sees_the_prefix_alone),
        cmocka_unit_test(test_frozen_table_freezes_its_copy),
        cmocka_unit_test(test_rates_by_patterns),
        cmocka_unit_test(test_patterns_name_layers_and_parts_of_tensors),
        cmocka_unit_test(test_bad_input_gives_a_status),
        cmocka_unit_test(test_open_without_memory_gives_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
