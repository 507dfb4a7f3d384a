/*
 * conform_model.c -- what every model promises, whatever its layers are: the same bits however it is cut, by however
 * many threads, whether or not activations are made again or backward is split; gradients that finite differences
 * confirm; plain C; memory as measured; evaluations that change nothing; weights that come back by their names; and
 * whatever is frozen, what trains has the gradients that it had, and what does not keeps its bits.
 *
 * A new model is named in models.def, and says in conform_model_small.h how small it can be. Its batches have the
 * fields of the first kind of data set that it fits. A model that can learn tasks of whole samples promises all of it
 * of these, too, with samples that have lengths; and there that nobody sees what stands behind them.
 */
#include <stdio.h>
#include <stdlib.h>

#include "sample.h"
#include "stage_help.h"
#include "stage_model.h"
#include "stages/dataset.h"
#include "stages/model_folder.h"
#include "stages/publish.h"
#include "stages/weights.h"

enum { B = 3, T = 12, MICRO = 2, LAYERS_MAX = 32, RESULTS_MAX = 160, LABELS = 5, KINDS_MAX = 192 };
/* A test of all lists of frozen tensors goes through every cut; under ASan, which is slow, through every other. */
#ifdef __SANITIZE_ADDRESS__
enum { CUTS = 2 };
#else
enum { CUTS = 1 };
#endif

#include "conform_model_small.h"

static const char *const datasets[] = {
#define AQ_DATASET(name) #name,
#include "stages/datasets.def"
#undef AQ_DATASET
};

struct run {
    const struct kind *kind;
    uint32_t threads, cut; /* cut: layers before it are one stage; 0: one stage */
    bool recompute, split;
    bool tied;
    enum aq_stage_precision precision; /* 0: fp32 */
    float dropout;
    uint32_t logits_rows;
    const char *cpu;    /* AQ_CPU, or NULL */
    const char *freeze; /* NULL: nothing   */
    uint32_t rank;      /* of adapters     */
    const char *targets, *ranks, *alphas, *saved;
    float lora_dropout;
    bool rslora, dora;
    enum aq_frozen_store store;
    bool parts;
};

static bool stream_bf16; /* conform_model_residual.h */

static struct aq_stage_config config_of(const struct kind *kind)
{
    struct aq_stage_config config = {.B = B, .slots = MICRO, .precision = AQ_STAGE_FP32, .pads_vocabulary = true};
    aq_model_config_default(&config.model, kind->name);
    kind->small(&config.model);
    aq_model_use_task(&config.model, kind->task, LABELS);
    config.task = kind->task;
    config.residual_bf16 = stream_bf16;
    config.lengths = config.model.labels > 0;
    config.T = aq_model_tokens(kind->name) ? aq_model_tokens(kind->name) : T;
    config.layer_end = aq_model_layers(&config.model);
    assert_true(config.layer_end <= LAYERS_MAX);
    return config;
}

/* Batch `number`, its values at random; fields are freed by batch_close. */
static struct aq_batch batch_make(const struct aq_stage_config *config, uint32_t number)
{
    static uint64_t ids[MICRO][B] = {{4, 9, 1}, {0, 7, 3}};
    static const uint32_t lengths[MICRO][B] = {{5, T, 1}, {T - 1, 2, T}};
    static const uint32_t starts[MICRO][B][T] = {{{0, 0, 0, 3, 4, 4, 4, 4, 4, 9, 9, 9},
                                                  {0},
                                                  {0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 10, 10}},
                                                 {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11},
                                                  {0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10}}};
    struct aq_batch batch = {.samples = number == 1 ? B - 1 : B, .sample_ids = ids[number]};
    const char *key;
    char why[160];
    if (config->lengths) batch.lengths = lengths[number];
    if (config->parts) batch.starts = starts[number][0];
    const struct aq_dataset_image image = {.side = aq_model_side(&config->model)};
    for (size_t d = 0; d < sizeof datasets / sizeof datasets[0] && batch.field_count == 0; d++) {
        const uint32_t count = aq_dataset_fields(datasets[d], config->T, &image, batch.fields);
        if (aq_model_fits(&config->model, config->T, config->task, batch.fields, count, &key, why, sizeof why))
            batch.field_count = count;
    }
    if (batch.field_count == 0) fail_msg("no data set fits %s: %s", config->model.kind, why);
    for (uint32_t f = 0; f < batch.field_count; f++) {
        struct aq_field *field = &batch.fields[f];
        const uint64_t values = (uint64_t)B * field->count;
        field->values = help_alloc(values * AQ_FIELD_BYTES);
        const bool label = config->model.labels && strcmp(field->name, "tokens") != 0;
        const uint32_t types = config->model.types ? config->model.types : 1;
        const bool typed = strcmp(field->name, "types") == 0;
        const uint32_t below = typed ? types : label ? config->model.labels : config->model.vocabulary;
        if (field->type == AQ_FIELD_I32)
            help_tokens(field->values, values, 10 * number + f + (typed ? 40 : 0), below);
        else
            help_normal(field->values, values, 10 * number + f, 1.0f);
    }
    return batch;
}

static void batch_close(struct aq_batch *batch)
{
    for (uint32_t f = 0; f < batch->field_count; f++)
        aq_free(batch->fields[f].values);
}

/* A model in one stage or two, and batches for it. */
struct pipeline {
    struct aq_device *device;
    struct aq_stage_config config;
    struct aq_stage *stages[2];
    uint32_t count;
    struct aq_batch batches[MICRO];
    float *activation, *gradient;
};

static struct pipeline pipeline_open(const struct run *run)
{
    struct pipeline p = {.config = config_of(run->kind), .count = run->cut ? 2 : 1};
    if (run->precision) p.config.precision = run->precision;
    p.config.model.dropout = run->dropout;
    p.config.model.tied = run->tied;
    p.config.logits_rows = run->logits_rows;
    p.config.parts = run->parts;
    p.config.lora = (struct aq_lora_config){.rank = run->rank,
                                            .alpha = 1.5f,
                                            .targets = run->targets,
                                            .ranks = run->ranks,
                                            .alphas = run->alphas,
                                            .saved = run->saved,
                                            .rslora = run->rslora,
                                            .dora = run->dora,
                                            .dropout = run->lora_dropout};
    const uint32_t bounds[3] = {0, run->cut ? run->cut : p.config.layer_end, p.config.layer_end};
    if (run->cpu) setenv("AQ_CPU", run->cpu, 1);
    p.device = help_device(run->threads);
    if (run->cpu) unsetenv("AQ_CPU");
    for (uint32_t s = 0; s < p.count; s++) {
        struct aq_stage_config config = p.config;
        struct aq_stage_size size;
        config.layer_first = bounds[s];
        config.layer_end = bounds[s + 1];
        config.recompute = run->recompute;
        config.split = run->split;
        config.freeze = run->freeze;
        config.frozen_store = run->store;
        assert_int_equal(aq_stage_measure(&config, &size), AQ_OK);
        assert_int_equal(aq_stage_open(p.device, &config, &p.stages[s]), AQ_OK);
        help_init(p.stages[s], 5);
        assert_int_equal(aq_stage_magnitudes(p.stages[s]), AQ_OK); /* lengths of rows are those of what was put */
        if (s == 0 && p.count == 2) {
            assert_true(size.y_bytes > 0);
            p.activation = help_alloc(size.y_bytes);
            p.gradient = help_alloc(size.y_bytes);
        }
    }
    for (uint32_t m = 0; m < MICRO; m++)
        p.batches[m] = batch_make(&p.config, m);
    return p;
}

static void pipeline_close(struct pipeline *p)
{
    for (uint32_t s = 0; s < p->count; s++)
        aq_stage_close(p->stages[s]);
    for (uint32_t m = 0; m < MICRO; m++)
        batch_close(&p->batches[m]);
    aq_free(p->activation);
    aq_free(p->gradient);
    aq_device_close(p->device);
}

static double forward(struct pipeline *p, uint32_t micro, bool evaluate)
{
    struct aq_stage_input input = {
        .batch = &p->batches[micro], .seed = 3, .step = 11, .evaluate = evaluate, .loss_factor = 0.25f};
    struct aq_stage_loss loss = {0};
    if (p->count == 2) {
        assert_int_equal(aq_stage_forward(p->stages[0], micro, &input, p->activation, NULL, NULL), AQ_OK);
        input.x = p->activation;
    }
    assert_int_equal(aq_stage_forward(p->stages[p->count - 1], micro, &input, NULL, &loss, NULL), AQ_OK);
    assert_true(loss.targets >= p->batches[micro].samples);
    return loss.sum;
}

static void backward(struct pipeline *p, uint32_t micro)
{
    float *between = p->count == 2 ? p->gradient : NULL;
    assert_int_equal(aq_stage_backward(p->stages[p->count - 1], micro, NULL, between, NULL), AQ_OK);
    if (p->count == 2) assert_int_equal(aq_stage_backward(p->stages[0], micro, between, NULL, NULL), AQ_OK);
}

/* The tensors of a run by number: every cut has the same in the same order, as a file has them. */
struct result {
    double loss[MICRO];
    uint32_t count;
    float *values[RESULTS_MAX]; /* of parameters their gradients, of buffers what they are */
    uint64_t sizes[RESULTS_MAX];
    char names[RESULTS_MAX][AQ_TENSOR_NAME_MAX];
};

/* Weight halves as late as can be, stage by stage: whatever they read must have stayed. */
static void weights(struct pipeline *p)
{
    for (uint32_t s = 0; s < p->count; s++)
        for (uint32_t m = 0; m < MICRO; m++) {
            assert_int_equal(aq_stage_weights(p->stages[s], m, NULL), AQ_OK);
            assert_int_equal(aq_stage_weights(p->stages[s], m, NULL), AQ_INVAL); /* once */
        }
}

static struct result run_once(const struct run *run)
{
    struct pipeline p = pipeline_open(run);
    struct result result = {0};
    for (uint32_t m = 0; m < MICRO; m++) {
        result.loss[m] = forward(&p, m, false);
        if (!run->split) backward(&p, m);
    }
    for (uint32_t m = 0; run->split && m < MICRO; m++)
        backward(&p, m);
    if (run->split) weights(&p);
    for (uint32_t s = 0; s < p.count; s++)
        for (uint32_t i = 0; i < aq_stage_saved_count(p.stages[s]); i++) {
            struct aq_tensor_info info;
            aq_stage_saved(p.stages[s], i, &info);
            const float *from = info.buffer ? aq_stage_parameters(p.stages[s]) : aq_stage_gradients(p.stages[s]);
            assert_true(result.count < RESULTS_MAX);
            result.sizes[result.count] = info.count;
            result.values[result.count] = help_alloc(info.count * sizeof(float));
            memcpy(result.values[result.count], from + info.offset, info.count * sizeof(float));
            snprintf(result.names[result.count++], AQ_TENSOR_NAME_MAX, "%s", info.name);
        }
    pipeline_close(&p);
    return result;
}

static void result_free(struct result *result)
{
    for (uint32_t i = 0; i < result->count; i++)
        aq_free(result->values[i]);
}

/* tolerance 0: bit for bit. */
static void expect_same(const struct result *a, const struct result *b, double tolerance, const char *what)
{
    assert_int_equal(a->count, b->count);
    for (uint32_t m = 0; m < MICRO; m++)
        if (!(fabs(a->loss[m] - b->loss[m]) <= tolerance * fabs(a->loss[m])))
            fail_msg("%s: loss %.17g, %.17g", what, a->loss[m], b->loss[m]);
    for (uint32_t i = 0; i < a->count; i++) {
        assert_string_equal(a->names[i], b->names[i]);
        const bool same = memcmp(a->values[i], b->values[i], a->sizes[i] * sizeof(float)) == 0;
        const double distance = same ? 0 : help_distance(b->values[i], a->values[i], a->sizes[i]);
        if (tolerance > 0 && is_idle(a->names[i])) continue;
        if (!same && !(distance <= tolerance && tolerance > 0))
            fail_msg("%s: %s differs by %g", what, a->names[i], distance);
    }
}

static void test_cut_anywhere_equals_uncut(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct run run = {.kind = &kinds[k], .threads = 2};
        struct result whole = run_once(&run);
        const uint32_t layers = config_of(&kinds[k]).layer_end;
        for (run.cut = 1; run.cut < layers; run.cut++) {
            char what[64];
            snprintf(what, sizeof what, "%s cut at %u", kinds[k].name, run.cut);
            struct result parts = run_once(&run);
            expect_same(&whole, &parts, 0, what);
            result_free(&parts);
        }
        result_free(&whole);
    }
}

static void test_threads_and_recomputation_keep_the_bits(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const struct run one = {.kind = &kinds[k], .threads = 1}, three = {.kind = &kinds[k], .threads = 3},
                         again = {.kind = &kinds[k], .threads = 1, .recompute = true};
        struct result a = run_once(&one), b = run_once(&three), c = run_once(&again);
        expect_same(&a, &b, 0, "three threads");
        expect_same(&a, &c, 0, "recomputation");
        result_free(&a);
        result_free(&b);
        result_free(&c);
    }
}

/* Every cut, every type, masks, a shared table: two halves give the bits of the whole, however late the second is. */
static void test_split_backward_keeps_the_bits(void **state)
{
    (void)state;
    static const enum aq_stage_precision precisions[] = {AQ_STAGE_FP32, AQ_STAGE_BF16, AQ_STAGE_FP16};
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 12; i++) {
            struct run run = {.kind = &kinds[k], .threads = 2, .precision = precisions[i % 3]};
            if (i / 3 & 1) run.dropout = 0.25f;
            run.tied = i / 6;
            run.logits_rows = i & 1 ? 5 : 0; /* of several chunks, or of one */
            struct result whole = run_once(&run);
            run.split = true;
            const uint32_t layers = run.tied ? 1 : config_of(&kinds[k]).layer_end; /* a cut parts what is tied */
            for (run.cut = 0; run.cut < layers; run.cut++) {
                char what[64];
                if (!run.tied && !sample_has(layers * (size_t)i + run.cut, layers, 3 * sample_every(2))) continue;
                snprintf(what, sizeof what, "%s split, case %d, cut at %u", kinds[k].name, i, run.cut);
                struct result halves = run_once(&run);
                expect_same(&whole, &halves, 0, what);
                result_free(&halves);
            }
            result_free(&whole);
        }
}

static void test_halves_come_in_turn(void **state)
{
    (void)state;
    struct aq_stage *stage;
    for (int k = 0; k < KINDS; k++) {
        struct run run = {.kind = &kinds[k], .threads = 1};
        struct pipeline p = pipeline_open(&run);
        (void)forward(&p, 0, false);
        backward(&p, 0);
        assert_int_equal(aq_stage_weights(p.stages[0], 0, NULL), AQ_INVAL); /* it is whole */
        pipeline_close(&p);
        run.split = true;
        p = pipeline_open(&run);
        (void)forward(&p, 0, false);
        assert_int_equal(aq_stage_weights(p.stages[0], 0, NULL), AQ_INVAL); /* before its backward */
        backward(&p, 0);
        (void)forward(&p, 0, false);
        assert_int_equal(aq_stage_weights(p.stages[0], 0, NULL), AQ_INVAL); /* the slot has another micro-batch */
        assert_int_equal(aq_stage_weights(p.stages[0], MICRO, NULL), AQ_INVAL);
        struct aq_stage_config config = p.config;
        config.split = config.recompute = true;
        assert_int_equal(aq_stage_open(p.device, &config, &stage), AQ_INVAL);
        pipeline_close(&p);
    }
}

static void test_the_plain_truth_agrees(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const struct run best = {.kind = &kinds[k], .threads = 2},
                         plain = {.kind = &kinds[k], .threads = 1, .cpu = "plain"};
        struct result a = run_once(&best), b = run_once(&plain);
        expect_same(&b, &a, 2e-4, "plain C");
        result_free(&a);
        result_free(&b);
    }
}

/*
 * Lists of what is frozen, for any model: its first layers, its last, every other, all but one, and by parts of
 * tensors' names. Some freeze nothing of it; one freezes all.
 */
static bool freeze_list(const struct kind *kind, uint32_t number, char *list, size_t bytes)
{
    static const char *const parts[] = {"bias", "*, !bias", "weight", "*"};
    const struct aq_stage_config config = config_of(kind);
    const uint32_t layers = config.layer_end;
    size_t used = 0;
    list[0] = 0;
    if (number >= 4 * layers + 4) return false;
    if (number >= 4 * layers) {
        snprintf(list, bytes, "%s", parts[number - 4 * layers]);
        return true;
    }
    const uint32_t sort = number / layers, at = number % layers;
    if (sort == 3) used = (size_t)snprintf(list, bytes, "*");
    for (uint32_t l = 0; l < layers; l++) {
        char name[64];
        if (sort == 0 ? l > at : sort == 1 ? l < at : sort == 2 ? l % 2 == at % 2 : l != at) continue;
        aq_model_layer_name(&config.model, l, name, sizeof name);
        used += (size_t)snprintf(list + used, bytes - used, "%s %s%s", used ? "," : "", sort == 3 ? "! " : "", name);
        assert_true(used < bytes);
    }
    return true;
}

/* What trains has the gradients of a run where all does; how many tensors do. */
static uint32_t expect_among(const struct result *whole, const struct result *part, const char *what)
{
    uint32_t trained = 0;
    for (uint32_t m = 0; m < MICRO; m++)
        if (whole->loss[m] != part->loss[m]) fail_msg("%s: loss %.17g, %.17g", what, whole->loss[m], part->loss[m]);
    for (uint32_t i = 0; i < part->count; i++) {
        uint32_t at = 0;
        while (at < whole->count && strcmp(whole->names[at], part->names[i]) != 0)
            at++;
        if (at == whole->count) fail_msg("%s: %s is new", what, part->names[i]);
        assert_int_equal(whole->sizes[at], part->sizes[i]);
        if (memcmp(whole->values[at], part->values[i], part->sizes[i] * sizeof(float)) != 0)
            fail_msg("%s: %s differs by %g", what, part->names[i],
                     help_distance(part->values[i], whole->values[at], part->sizes[i]));
        trained++;
    }
    return trained;
}

static void test_what_trains_has_the_gradients_that_it_had(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * KINDS; i++) {
        const int k = i / 2;
        struct run run = {.kind = &kinds[k], .threads = 2, .tied = i % 2, .dropout = i % 2 ? 0.25f : 0.0f};
        struct result whole = run_once(&run);
        const uint32_t layers = run.tied ? 1 : config_of(&kinds[k]).layer_end; /* a cut parts what is tied */
        char list[1024], what[1200];
        for (uint32_t n = 0; freeze_list(&kinds[k], n, list, sizeof list); n++)
            for (run.cut = 0; run.cut < layers; run.cut += CUTS) {
                if (!sample_has(layers * n + run.cut / CUTS, layers, 4 * sample_every(2))) continue;
                run.freeze = list;
                run.recompute = run.cut % 3 == 1;
                run.split = run.cut % 3 == 2;
                snprintf(what, sizeof what, "%s cut at %u, frozen \"%s\"", kinds[k].name, run.cut, list);
                struct result part = run_once(&run);
                assert_true(expect_among(&whole, &part, what) <= whole.count);
                result_free(&part);
            }
        result_free(&whole);
    }
}

/* Forward and backward move no bit of what is frozen, and where nothing before a cut trains its gradient is zeroes. */
static void test_frozen_tensors_keep_their_bits(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        char list[1024];
        for (uint32_t n = 0; freeze_list(&kinds[k], n, list, sizeof list); n++) {
            const struct run run = {.kind = &kinds[k], .threads = 2, .cut = 2, .freeze = list};
            struct pipeline p = pipeline_open(&run);
            float *before[2];
            for (uint32_t s = 0; s < 2; s++) {
                const uint64_t floats = aq_stage_frozen_floats(p.stages[s]);
                before[s] = help_alloc((floats + 1) * sizeof(float));
                memcpy(before[s], aq_stage_parameters(p.stages[s]) + aq_stage_saved_floats(p.stages[s]),
                       floats * sizeof(float));
            }
            (void)forward(&p, 1, false);
            memset(p.gradient, 0xff, sizeof(float));
            backward(&p, 1);
            assert_false(isnan(*p.gradient)); /* 0xff bytes: nothing was written */
            assert_true(help_cut_zero(&p.config.model, run.cut, p.config.T, p.gradient) ==
                        !aq_model_trains(&p.config.model, p.config.T, list, NULL, run.cut));
            for (uint32_t s = 0; s < 2; s++) {
                assert_memory_equal(before[s], aq_stage_parameters(p.stages[s]) + aq_stage_saved_floats(p.stages[s]),
                                    aq_stage_frozen_floats(p.stages[s]) * sizeof(float));
                aq_free(before[s]);
            }
            pipeline_close(&p);
        }
    }
}

/* The names of layers and tensors are patterns, and a list knows what its patterns name. */
static void test_names_are_patterns(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const struct aq_stage_config config = config_of(&kinds[k]);
        struct aq_freeze_pattern pattern;
        struct aq_device *device = help_device(1);
        struct aq_stage *stage;
        assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
        for (uint32_t i = 0; i < aq_stage_tensor_count(stage); i++) {
            struct aq_tensor_info info;
            aq_stage_tensor(stage, i, &info);
            assert_true(aq_model_freeze_pattern(&config.model, config.T, info.name, 0, &pattern));
            assert_int_equal(pattern.tensors, tensors_ending(stage, info.name));
            assert_false(aq_model_freeze_pattern(&config.model, config.T, info.name, 1, &pattern));
        }
        aq_stage_close(stage);
        aq_device_close(device);
        assert_true(aq_model_freeze_pattern(&config.model, config.T, "*,!weight, wieght", 2, &pattern));
        assert_int_equal(pattern.tensors, 0);
        assert_string_equal(pattern.unknown, "wieght");
        assert_true(aq_model_trains(&config.model, config.T, NULL, NULL, config.layer_end));
        assert_false(aq_model_trains(&config.model, config.T, "*", NULL, config.layer_end));
    }
}

/*
 * Directional derivatives of the loss in training, as test_stage.c has them: for a random direction in each tensor the
 * quotient of differences against gradient times direction. A ReLU has kinks: the bound is 3e-2 of |gradient|; where
 * many lie one behind the other, what goes into them is raised first, away from the kinks (and of what a norm then
 * takes away the gradient is next to nothing: 2e-2 more).
 */
static void differences(const struct run *run)
{
    struct pipeline p = pipeline_open(run);
    struct aq_stage *stage = p.stages[0];
    const char *raised = raised_of(run->kind);
    for (uint32_t i = 0; i < aq_stage_tensor_count(stage) && raised; i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(stage, i, &info);
        float *x = aq_stage_parameters(stage) + info.offset;
        for (uint64_t n = 0; n < info.count && strstr(info.name, raised); n++)
            x[n] += 4.0f;
    }
    (void)forward(&p, 0, false);
    backward(&p, 0);
    for (uint32_t i = 0; i < aq_stage_tensor_count(stage); i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(stage, i, &info);
        if (run->dora && info.adapter && info.dimensions == 2) continue; /* lengths are constants: tools/parity */
        float *x = aq_stage_parameters(stage) + info.offset;
        const float *g = aq_stage_gradients(stage) + info.offset;
        float *before = help_alloc(info.count * sizeof(float)), *d = help_alloc(info.count * sizeof(float));
        double slope = 0, size = 0;
        memcpy(before, x, info.count * sizeof(float));
        help_normal(d, info.count, 50 + i, 1.0f);
        for (uint64_t n = 0; n < info.count; n++) {
            slope += (double)g[n] * d[n] / 0.25; /* loss_factor */
            size += (double)g[n] * g[n] / 0.0625;
        }
        if (is_idle(info.name)) {
            assert_true(size < 1e-10);
            slope = size = 0;
        }
        const float h = (float)(2e-3 / sqrt(size > 0 ? size : 1));
        for (uint64_t n = 0; n < info.count; n++)
            x[n] = before[n] + h * d[n];
        const double up = forward(&p, 0, false);
        for (uint64_t n = 0; n < info.count; n++)
            x[n] = before[n] - h * d[n];
        const double down = forward(&p, 0, false), quotient = (up - down) / (2.0 * h);
        memcpy(x, before, info.count * sizeof(float));
        if (!(fabs(quotient - slope) <= 3e-2 * sqrt(size) + (raised ? 2e-2 : is_idle(info.name) ? 1e-3 : 0)))
            fail_msg("%s %s: slope %g, differences %g, |gradient| %g", run->kind->name, info.name, slope, quotient,
                     sqrt(size));
        aq_free(before);
        aq_free(d);
    }
    pipeline_close(&p);
}

static void test_gradients_match_finite_differences(void **state)
{
    (void)state;
    static const char *const lists[] = {NULL, "weight", "*, !bias"};
    for (int i = 0; i < 3 * KINDS; i++) {
        const struct run run = {.kind = &kinds[i / 3], .threads = 2, .freeze = lists[i % 3]};
        differences(&run);
    }
}

#include "conform_model_adapters.h"
#include "conform_model_published.h"
#include "conform_model_parts.h"
#include "conform_model_rope.h"

/* Forward without backward: nothing moves, statistics least of all, and samples do not see each other. */
static void test_evaluation_changes_nothing_and_adds_up(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const struct run run = {.kind = &kinds[k], .threads = 1};
        struct pipeline p = pipeline_open(&run);
        const uint64_t floats = aq_stage_saved_floats(p.stages[0]);
        (void)forward(&p, 0, false);
        float *before = help_alloc(floats * sizeof(float));
        memcpy(before, aq_stage_parameters(p.stages[0]), floats * sizeof(float));
        const double all = forward(&p, 0, true), again = forward(&p, 0, true);
        assert_true(all == again);
        assert_memory_equal(before, aq_stage_parameters(p.stages[0]), floats * sizeof(float));
        double sum = 0;
        struct aq_batch whole = p.batches[0];
        for (uint32_t i = 0; i < B; i++) {
            p.batches[0] = whole;
            p.batches[0].samples = 1;
            p.batches[0].sample_ids += i;
            if (whole.lengths) p.batches[0].lengths += i;
            for (uint32_t f = 0; f < whole.field_count; f++)
                p.batches[0].fields[f].values =
                    (uint8_t *)whole.fields[f].values + (size_t)i * whole.fields[f].count * AQ_FIELD_BYTES;
            sum += forward(&p, 0, true);
        }
        p.batches[0] = whole;
        assert_true(fabs(sum - all) <= 1e-5 * fabs(all));
        assert_int_equal(aq_stage_backward(p.stages[0], 0, NULL, NULL, NULL), AQ_INVAL);
        aq_free(before);
        pipeline_close(&p);
    }
}

/* Other tokens, and at a cut other values, behind the real ones of every sample. */
static void padding_change(struct pipeline *p)
{
    for (uint32_t m = 0; m < MICRO; m++)
        for (uint32_t f = 0; f < p->batches[m].field_count; f++) {
            const struct aq_field *field = &p->batches[m].fields[f];
            int32_t *tokens = field->values;
            for (uint32_t i = 0; i < p->batches[m].samples && strcmp(field->name, "tokens") == 0; i++)
                for (uint32_t t = p->batches[m].lengths[i]; t < T; t++)
                    tokens[i * T + t] = (tokens[i * T + t] + 1) % (int32_t)p->config.model.vocabulary;
        }
}

/* Losses and gradients, whatever stands behind a sample; a sample's loss, whoever stands beside it. */
static void test_padding_changes_no_bit(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 6 && config_of(&kinds[k]).lengths; i++) {
            static const enum aq_stage_precision precisions[] = {AQ_STAGE_FP32, AQ_STAGE_BF16, AQ_STAGE_FP16};
            struct run run = {.kind = &kinds[k], .threads = 2, .precision = precisions[i % 3], .split = i > 2};
            struct pipeline p = pipeline_open(&run);
            const uint64_t floats = aq_stage_parameter_count(p.stages[0]);
            float *before = help_alloc(floats * sizeof(float));
            double losses[MICRO];
            for (int turn = 0; turn < 2; turn++) {
                assert_int_equal(aq_stage_zero_grads(p.stages[0], NULL), AQ_OK);
                for (uint32_t m = 0; m < MICRO; m++) {
                    const double loss = forward(&p, m, false);
                    if (turn) assert_true(loss == losses[m]);
                    losses[m] = loss;
                    backward(&p, m);
                }
                if (run.split) weights(&p);
                const float *now = aq_stage_gradients(p.stages[0]);
                for (uint64_t n = 0; n < floats && turn; n++)
                    assert_true(now[n] == before[n]); /* zeroes of either sign are one */
                memcpy(before, now, floats * sizeof(float));
                padding_change(&p);
            }
            aq_free(before);
            pipeline_close(&p);
        }
}

static void test_lengths_are_checked(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const struct run run = {.kind = &kinds[k], .threads = 1};
        struct pipeline p = pipeline_open(&run);
        static const uint32_t bad[][B] = {{1, 0, 1}, {1, T + 1, 1}, {1, 1, 1}};
        for (int i = 0; i < (p.config.lengths ? 2 : 3); i++) { /* and of whole samples, none */
            struct aq_stage_loss loss;
            struct aq_batch batch = p.batches[0];
            const struct aq_stage_input input = {.batch = &batch, .loss_factor = 1};
            batch.lengths = bad[i];
            assert_int_equal(aq_stage_forward(p.stages[0], 0, &input, NULL, &loss, NULL), AQ_INVAL);
        }
        pipeline_close(&p);
    }
}

static void test_measure_equals_use(void **state)
{
    (void)state;
    struct aq_device *device = help_device(1);
    for (int k = 0; k < KINDS; k++)
        for (int round = 0; round < 18; round++) {
            struct aq_stage_config config = config_of(&kinds[k]);
            struct aq_stage_size size;
            struct aq_stage *stage = NULL;
            config.B = 32; /* beside what the host has for each tensor and layer */
            config.pads_vocabulary = false; /* this is not a GPU */
            config.recompute = round == 1;
            config.inference = round == 2 || round == 7;
            config.layer_first = round == 3 || round == 6 || round == 10 ? 2 : 0;
            config.split = (round > 3 && round < 8) || round == 11;
            if (round == 5 || round == 16) config.precision = AQ_STAGE_BF16;
            if (round > 13) config.frozen_store = (enum aq_frozen_store)(round - 13);
            config.lora = (struct aq_lora_config){.rank = round > 11 ? 2 : 0, .alpha = 1};
            config.freeze = round == 8    ? "*, !bias"
                            : round == 9  ? "weight"
                            : round == 10 ? "*"
                            : round == 11 ? "bias"
                                          : NULL;
            assert_int_equal(aq_stage_measure(&config, &size), AQ_OK);
            const uint64_t before = aq_memory_used();
            assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
            const double used = (double)(aq_memory_used() - before);
            const double sum = (double)(size.parameter_bytes + size.gradient_bytes + size.slot_bytes * config.slots +
                                        size.workspace_bytes + size.host_bytes);
            const uint32_t tensors = aq_stage_saved_count(stage) + aq_stage_frozen_count(stage);
            if (!(used >= sum && used <= 1.02 * sum + 8192 + 2.0 * tensors * sizeof(struct aq_tensor_info)))
                fail_msg("%s round %d: %g bytes used, %g measured", kinds[k].name, round, used, sum);
            assert_int_equal(size.parameters + size.buffers, aq_stage_saved_floats(stage));
            assert_int_equal(size.frozen - size.packed, aq_stage_frozen_floats(stage));
            assert_int_equal(size.gradient_bytes, config.inference ? 0 : size.parameters * sizeof(float));
            aq_stage_close(stage);
            assert_int_equal(aq_memory_used(), before);
        }
    aq_device_close(device);
}

/* Saved by one stage, found by two others by name: the model is the same one. */
static void test_weights_come_back_by_their_names(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const struct run run = {.kind = &kinds[k], .threads = 1}, cut = {.kind = &kinds[k], .threads = 1, .cut = 3};
        struct pipeline from = pipeline_open(&run), to = pipeline_open(&cut);
        struct aq_weights_tensor tensors[64];
        struct aq_tensor_info infos[64];
        const uint32_t count = aq_stage_saved_count(from.stages[0]);
        char path[] = "/tmp/aq-model-XXXXXX";
        struct aq_weights *weights;
        (void)forward(&from, 0, false); /* statistics that are not those of the beginning */
        for (uint32_t i = 0; i < count; i++) {
            aq_stage_saved(from.stages[0], i, &infos[i]);
            tensors[i] = (struct aq_weights_tensor){.name = infos[i].name,
                                                    .dimensions = infos[i].dimensions,
                                                    .transposed = infos[i].transposed, /* as published */
                                                    .values = aq_stage_parameters(from.stages[0]) + infos[i].offset};
            memcpy(tensors[i].shape, infos[i].shape, sizeof infos[i].shape);
        }
        const int fd = mkstemp(path);
        assert_true(fd >= 0);
        fclose(fdopen(fd, "w"));
        assert_int_equal(aq_weights_write(path, tensors, count, NULL), AQ_OK);
        assert_int_equal(aq_weights_open(path, &weights), AQ_OK);
        assert_int_equal(aq_weights_match(weights, &from.config.model), AQ_OK);
        for (uint32_t s = 0; s < 2; s++)
            for (uint32_t i = 0; i < aq_stage_saved_count(to.stages[s]); i++) {
                struct aq_tensor_info info;
                uint32_t index;
                aq_stage_saved(to.stages[s], i, &info);
                float *values = aq_stage_parameters(to.stages[s]) + info.offset;
                assert_int_equal(aq_weights_find(weights, info.name, &index), AQ_OK);
                memset(values, 0, info.count * sizeof *values);
                assert_int_equal(aq_weights_read(weights, index, info.transposed, values, info.count), AQ_OK);
            }
        assert_true(forward(&to, 1, true) == forward(&from, 1, true));
        aq_weights_close(weights);
        remove(path);
        pipeline_close(&from);
        pipeline_close(&to);
    }
}

static enum aq_status write_config(void *context, const char *name, const char *bytes, size_t count)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", (const char *)context, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    return AQ_OK;
}

/* A kind that reads published folders reads what it publishes: the same sizes, the same arithmetic. */
static void test_published_config_comes_back(void **state)
{
    (void)state;
    for (int k = 0, many = 0; k < KINDS; k++) {
        struct aq_stage_config config = config_of(&kinds[k]);
        char folder[] = "/tmp/aq-model-XXXXXX", path[64], here[256], there[256];
        const bool first = k == 0 || strcmp(kinds[k].name, kinds[k - 1].name) != 0 || !kinds[k - 1].task;
        struct aq_model_folder *read = NULL;
        uint32_t keys;
        if (!stage_model_find(kinds[k].name)->published) continue;
        config.model.tied = true; /* what is published by all */
        assert_non_null(mkdtemp(folder));
        const struct aq_publish_about about = {.tied = config.model.tied, .end_of_text = -1, .type = "F32"};
        assert_int_equal(aq_publish_model(&config.model, &about, write_config, folder), AQ_OK);
        if (aq_model_folder_open(folder, &read) != AQ_OK) fail_msg("%s: %s", kinds[k].name, aq_error_text());
        const struct aq_model_config *model = aq_model_folder_model(read);
        aq_model_identity(&config.model, here, sizeof here);
        aq_model_identity(model, there, sizeof there);
        assert_string_equal(here, there);
        const struct aq_model_key *key = aq_model_keys(kinds[k].name, &keys);
        for (uint32_t i = 0; i < keys; i++) {
            if (memcmp((const char *)model + key[i].offset, (const char *)&config.model + key[i].offset,
                       aq_model_key_bytes(&key[i])) != 0)
                fail_msg("%s: %s does not come back", kinds[k].name, key[i].name);
        }
        aq_model_folder_close(read);
        if (config.model.labels && first && (many++ == 0 || sample_all())) { /* the most there can be: takes seconds */
            config.model.labels = 65536;
            assert_int_equal(aq_publish_model(&config.model, &about, write_config, folder), AQ_OK);
            assert_int_equal(aq_model_folder_open(folder, &read), AQ_OK);
            aq_model_folder_close(read);
        }
        /* What was there is carried on where it is an object. */
        const struct aq_publish_about onto = {.tied = true, .end_of_text = -1, .type = "F32", .from = folder};
        assert_int_equal(aq_publish_model(&config.model, &onto, write_config, folder), AQ_OK);
        assert_int_equal(write_config(folder, "config.json", "[]", 2), AQ_OK);
        assert_int_equal(aq_publish_model(&config.model, &onto, write_config, folder), AQ_CORRUPT);
        snprintf(path, sizeof path, "%s/config.json", folder);
        remove(path);
        remove(folder);
    }
}

static void test_defaults_are_models_and_keys_fit(void **state)
{
    (void)state;
    const char *name;
    for (uint32_t m = 0; (name = aq_model_kind(m)) != NULL; m++) {
        struct aq_model_config model;
        uint32_t count;
        aq_model_config_default(&model, name);
        assert_string_equal(name, models[m].name);
        assert_int_equal(aq_model_config_check(&model), AQ_OK);
        assert_non_null(aq_task_find(aq_model_task(name)));
        const struct aq_model_key *keys = aq_model_keys(name, &count);
        for (uint32_t i = 0; i < count; i++)
            assert_true(strncmp(keys[i].name, "model.", 6) == 0 && keys[i].offset < sizeof model);
        const uint32_t tokens = aq_model_tokens(name) ? aq_model_tokens(name) : T;
        for (uint32_t end = 1; end < aq_model_layers(&model); end++) {
            struct aq_cut_shape cut;
            char text[64];
            assert_int_equal(aq_model_cut(&model, end, tokens, &cut), AQ_OK);
            assert_true(cut.rows > 0 && cut.columns > 0);
            aq_model_layer_name(&model, end, text, sizeof text);
            assert_true(strlen(text) > 0);
        }
    }
}

static void test_open_without_memory_gives_a_status(void **state)
{
    (void)state;
    struct aq_device *device = help_device(1);
    for (int k = 0; k < KINDS; k++) {
        const struct aq_stage_config config = config_of(&kinds[k]);
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
    }
    aq_device_close(device);
}

#include "conform_model_extends.h"
#include "conform_model_residual.h"

int main(int argc, char **argv)
{
    kinds_fill();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere_equals_uncut),
        cmocka_unit_test(test_threads_and_recomputation_keep_the_bits),
        cmocka_unit_test(test_split_backward_keeps_the_bits),
        cmocka_unit_test(test_halves_come_in_turn),
        cmocka_unit_test(test_the_plain_truth_agrees),
        cmocka_unit_test(test_gradients_match_finite_differences),
        cmocka_unit_test(test_what_trains_has_the_gradients_that_it_had),
        cmocka_unit_test(test_frozen_tensors_keep_their_bits),
        cmocka_unit_test(test_names_are_patterns),
        cmocka_unit_test(test_adapters_are_the_same_in_every_cut),
        cmocka_unit_test(test_new_adapters_change_nothing),
        cmocka_unit_test(test_gradients_of_adapters_match_finite_differences),
        cmocka_unit_test(test_adapters_equal_a_merged_model),
        cmocka_unit_test(test_saved_modules_train_whole),
        cmocka_unit_test(test_positions_fit_what_is_published),
        cmocka_unit_test(test_frozen_weights_in_fewer_bits_are_the_same_in_every_cut),
        cmocka_unit_test(test_frozen_weights_in_fewer_bits_compute_as_their_values),
        cmocka_unit_test(test_parts_are_the_same_in_every_cut),
        cmocka_unit_test(test_a_part_is_what_it_is_alone),
        cmocka_unit_test(test_parts_are_checked),
        cmocka_unit_test(test_evaluation_changes_nothing_and_adds_up),
        cmocka_unit_test(test_tokens_one_after_another_equal_all_at_once),
        cmocka_unit_test(test_padding_changes_no_bit),
        cmocka_unit_test(test_lengths_are_checked),
        cmocka_unit_test(test_measure_equals_use),
        cmocka_unit_test(test_weights_come_back_by_their_names),
        cmocka_unit_test(test_published_config_comes_back),
        cmocka_unit_test(test_defaults_are_models_and_keys_fit),
        cmocka_unit_test(test_longrope_divides_by_the_list_of_its_length),
        cmocka_unit_test(test_open_without_memory_gives_a_status),
        RESIDUAL_TESTS,
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
