/*
 * test_cuda_graph_models.c -- stages whose passes are launched as graphs learn bit for bit as without: models of
 * several families, adapters, dropout, micro-batches of which the last is smaller, weights of two versions, two stages.
 *
 * Of each form five steps of two micro-batches. All kernels are emulated; AQ_TESTS=long takes all forms.
 */
#include "stage_help.h"

#include <stdio.h>
#include <stdlib.h>

#include "aqsgd/grad.h"
#include "cuda_runtime_api.h"
#include "sample.h"
#include "stages/dataset.h"
#include "stages/task.h"

enum { B = 2, T = 12, MICRO = 2, STEPS = 5, LABELS = 5, VALUES_MAX = 1 << 18 };

static const char *const datasets[] = {
#define AQ_DATASET(name) #name,
#include "stages/datasets.def"
#undef AQ_DATASET
};

struct form {
    const char *name, *kind;
    enum aq_stage_precision precision;
    float dropout;
    uint32_t rank, versions, logits_rows;
    bool recompute, split, cut, tied, lengths, dora;
    enum aq_frozen_store store;
    bool always; /* else only with AQ_TESTS=long */
};

static const struct form forms[] = {
    {.name = "gpt2 with dropout", .kind = "gpt2", .dropout = 0.1f, .always = true},
    {.name = "gpt2 in bf16, tied, logits in pieces",
     .kind = "gpt2",
     .precision = AQ_STAGE_BF16,
     .tied = true,
     .logits_rows = 5,
     .always = true},
    {.name = "gpt2, two versions, two stages", .kind = "gpt2", .versions = 2, .cut = true, .always = true},
    {.name = "gpt2, recomputed", .kind = "gpt2", .recompute = true, .dropout = 0.1f},
    {.name = "llama, split backward", .kind = "llama", .split = true, .precision = AQ_STAGE_FP16, .always = true},
    {.name = "llama, adapters on 4 bits",
     .kind = "llama",
     .rank = 2,
     .dropout = 0.1f,
     .store = AQ_FROZEN_NF4,
     .precision = AQ_STAGE_BF16,
     .always = true},
    {.name = "qwen3_5", .kind = "qwen3_5"},
    {.name = "gemma2", .kind = "gemma2", .tied = true},
    {.name = "lfm2 in bf16", .kind = "lfm2", .precision = AQ_STAGE_BF16},
    {.name = "modernbert", .kind = "modernbert", .lengths = true},
    {.name = "deberta", .kind = "deberta", .lengths = true, .dropout = 0.1f},
    {.name = "llama, adapters with lengths of rows", .kind = "llama", .rank = 2, .dora = true},
    {.name = "pyramid", .kind = "pyramid"},
    {.name = "resnet", .kind = "resnet", .always = true},
    {.name = "bert with lengths", .kind = "bert", .lengths = true, .dropout = 0.1f, .always = true},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

struct run {
    struct aq_device *device;
    struct aq_stage_config config;
    struct aq_stage *stages[2];
    struct aq_optimizer *optimizers[2];
    uint32_t count;
    float *cut[2]; /* activations, gradients */
    uint64_t cut_bytes;
    struct aq_batch batch;
};

struct outcome {
    double losses[STEPS][MICRO];
    float values[VALUES_MAX];
    uint64_t count, launched, launches; /* launches: of kernels in one step, as listed one by one */
};

static bool is_kind(const struct aq_model_config *model, const char *kind)
{
    return strcmp(model->kind, kind) == 0;
}

/* As small as the kind can be. */
static void model_small(struct aq_model_config *model)
{
    const bool encodes = is_kind(model, "bert") || is_kind(model, "deberta") || is_kind(model, "modernbert");
    model->vocabulary = 37;
    if (is_kind(model, "resnet") || is_kind(model, "pyramid")) {
        const uint32_t own[5] = {4, 3, 0, 10, 4}; /* width and levels; depth and filters */
        for (int i = is_kind(model, "resnet") ? 3 : 0; i < (is_kind(model, "resnet") ? 5 : 2); i++)
            model->own[i] = own[i];
        model->vocabulary = 7;
        return;
    }
    model->blocks = is_kind(model, "lfm2") ? 3 : 2;
    model->heads = is_kind(model, "gpt2") || encodes ? 2 : 4;
    model->channels = 16;
    model->context = T + 1;
    model->mlp = is_kind(model, "gpt2") || is_kind(model, "deberta") ? model->mlp : 22;
    model->window = model->window ? 5 : 0;
    if (is_kind(model, "lfm2")) model->attention_blocks = 2;
    if (is_kind(model, "lfm2")) model->attention_blocks_high = 0;
    if (!encodes && !is_kind(model, "gpt2")) model->kv_heads = 2;
    if (!encodes && !is_kind(model, "gpt2")) model->head_dim = 8;
    const uint32_t deberta[8] = {0, 0, 0, 24, 6, 0, 3, 12}, delta[6] = {2, 2, 4, 5, 3, 3};
    for (int i = 3; i < 8 && is_kind(model, "deberta"); i++)
        if (deberta[i]) model->own[i] = deberta[i];
    for (int i = 0; i < 6 && is_kind(model, "qwen3_5"); i++)
        model->own[i] = delta[i];
}

static struct aq_stage_config config_of(const struct form *form)
{
    struct aq_stage_config config = {.B = B, .slots = MICRO, .precision = AQ_STAGE_FP32, .pads_vocabulary = true};
    aq_model_config_default(&config.model, form->kind);
    model_small(&config.model);
    aq_model_use_task(&config.model, NULL, LABELS);
    if (form->precision) config.precision = form->precision;
    config.T = aq_model_tokens(form->kind) ? aq_model_tokens(form->kind) : T;
    config.lengths = config.model.labels > 0 && form->lengths;
    config.model.dropout = form->dropout;
    config.model.tied = form->tied ? AQ_TIED_EXACT : AQ_TIED_NO;
    config.tied_rows = form->tied ? B * T * MICRO : 0;
    config.logits_rows = form->logits_rows;
    config.recompute = form->recompute;
    config.split = form->split;
    config.versions = form->versions;
    config.frozen_store = form->store;
    config.lora = (struct aq_lora_config){
        .rank = form->rank, .alpha = 1.5f, .dropout = form->rank ? form->dropout : 0, .dora = form->dora};
    config.layer_end = aq_model_layers(&config.model);
    return config;
}

static void batch_open(struct run *run)
{
    const struct aq_dataset_image image = {.side = aq_model_side(&run->config.model)};
    const char *key;
    char why[160];
    for (size_t d = 0; d < sizeof datasets / sizeof datasets[0] && run->batch.field_count == 0; d++) {
        const uint32_t count = aq_dataset_fields(datasets[d], run->config.T, &image, run->batch.fields);
        if (aq_model_fits(&run->config.model, run->config.T, run->config.task, run->batch.fields, count, &key, why,
                          sizeof why))
            run->batch.field_count = count;
    }
    assert_true(run->batch.field_count > 0);
    for (uint32_t f = 0; f < run->batch.field_count; f++)
        run->batch.fields[f].values = help_alloc((uint64_t)B * run->batch.fields[f].count * AQ_FIELD_BYTES);
}

/* Other samples each time; in the second micro-batch one fewer. */
static void batch_fill(struct run *run, uint64_t number)
{
    static uint64_t ids[B];
    static uint32_t lengths[B];
    const struct aq_model_config *model = &run->config.model;
    run->batch.samples = number % MICRO ? B - 1 : B;
    run->batch.sample_ids = ids;
    run->batch.lengths = run->config.lengths ? lengths : NULL;
    for (uint32_t i = 0; i < B; i++) {
        ids[i] = number * B + i;
        lengths[i] = (uint32_t)(1 + (number + 3 * i) % run->config.T);
    }
    for (uint32_t f = 0; f < run->batch.field_count; f++) {
        struct aq_field *field = &run->batch.fields[f];
        const bool label = model->labels && strcmp(field->name, "tokens") != 0;
        const uint32_t types = strcmp(field->name, "types") == 0 ? (model->types ? model->types : 1) : 0;
        if (field->type == AQ_FIELD_I32)
            help_tokens(field->values, (uint64_t)B * field->count, 10 * number + f,
                        types   ? types
                        : label ? model->labels
                                : model->vocabulary);
        else
            help_normal(field->values, (uint64_t)B * field->count, 10 * number + f, 1.0f);
    }
}

static struct run run_open(const struct form *form, bool graphs)
{
    struct run run = {.config = config_of(form), .count = form->cut ? 2 : 1};
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_optimizer_config adamw;
    setenv("AQ_GPU_GRAPHS", graphs ? "1" : "0", 1);
    assert_int_equal(aq_device_open(&config, &run.device), AQ_OK);
    aq_optimizer_config_default(&adamw, "adamw");
    const uint32_t bounds[3] = {0, form->cut ? 2 : run.config.layer_end, run.config.layer_end};
    for (uint32_t s = 0; s < run.count; s++) {
        struct aq_stage_config mine = run.config;
        struct aq_stage_size size;
        mine.layer_first = bounds[s];
        mine.layer_end = bounds[s + 1];
        assert_int_equal(aq_stage_measure(&mine, &size), AQ_OK);
        assert_int_equal(aq_stage_open(run.device, &mine, &run.stages[s]), AQ_OK);
        help_init(run.stages[s], 5);
        const struct aq_optimizer_tensor whole = {.count = aq_stage_parameter_count(run.stages[s])};
        assert_int_equal(aq_optimizer_open(run.device, &adamw, &whole, 1, whole.count, &run.optimizers[s]), AQ_OK);
        run.cut_bytes = s == 0 && form->cut ? size.y_bytes : run.cut_bytes;
    }
    for (int i = 0; i < 2 && form->cut; i++)
        assert_int_equal(aq_device_alloc(run.device, AQ_MEMORY_DEVICE, run.cut_bytes, (void **)&run.cut[i]), AQ_OK);
    batch_open(&run);
    return run;
}

static void run_close(struct run *run)
{
    for (uint32_t s = 0; s < run->count; s++) {
        aq_optimizer_close(run->optimizers[s]);
        aq_stage_close(run->stages[s]);
    }
    for (int i = 0; i < 2; i++)
        aq_device_free(run->device, AQ_MEMORY_DEVICE, run->cut[i], run->cut_bytes);
    for (uint32_t f = 0; f < run->batch.field_count; f++)
        aq_free(run->batch.fields[f].values);
    aq_device_close(run->device);
}

static double run_micro(struct run *run, uint64_t step, uint32_t micro)
{
    struct aq_stage *first = run->stages[0], *last = run->stages[run->count - 1];
    batch_fill(run, MICRO * step + micro);
    struct aq_stage_input input = {.batch = &run->batch, .seed = 3, .step = step, .loss_factor = 0.25f};
    struct aq_stage_loss loss = {0};
    float *const dx = run->cut[1];
    if (first != last) {
        assert_int_equal(aq_stage_forward(first, micro, &input, run->cut[0], NULL, NULL), AQ_OK);
        input.x = run->cut[0];
    }
    assert_int_equal(aq_stage_forward(last, micro, &input, NULL, &loss, NULL), AQ_OK);
    assert_int_equal(aq_stage_backward(last, micro, NULL, dx, NULL), AQ_OK);
    if (first != last) assert_int_equal(aq_stage_backward(first, micro, dx, NULL, NULL), AQ_OK);
    for (uint32_t s = 0; s < run->count && run->config.split; s++)
        assert_int_equal(aq_stage_weights(run->stages[s], micro, NULL), AQ_OK);
    return loss.sum;
}

static void run_update(struct run *run, uint64_t step)
{
    const bool two = run->config.versions == 2;
    for (uint32_t s = 0; s < run->count; s++) {
        struct aq_stage *stage = run->stages[s];
        if (two) assert_int_equal(aq_stage_keep(stage, NULL), AQ_OK);
        assert_int_equal(aq_optimizer_step(run->optimizers[s], aq_stage_parameters(stage), aq_stage_gradients(stage),
                                           1e-2f, 1.0f, step + 1, NULL),
                         AQ_OK);
        assert_int_equal(aq_stage_parameters_changed(stage, NULL), AQ_OK);
        if (two) /* the next step is of the other gradients, and every other of the weights before */
            aq_stage_use(stage,
                         &(struct aq_stage_use){.previous = step % 2 == 0, .gradients = (uint32_t)(step + 1) % 2});
        assert_int_equal(aq_stage_zero_grads(stage, NULL), AQ_OK);
    }
}

static void learn(const struct form *form, bool graphs, struct outcome *out)
{
    struct run run = run_open(form, graphs);
    const uint64_t before = cuda_runtime_host_graph_launches();
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint32_t micro = 0; micro < MICRO; micro++)
            out->losses[step][micro] = run_micro(&run, step, micro);
        run_update(&run, step);
    }
    out->launched = cuda_runtime_host_graph_launches() - before;
    out->count = 0;
    for (uint32_t s = 0; s < run.count; s++) {
        const uint64_t count = aq_stage_parameter_count(run.stages[s]);
        assert_true(out->count + count <= VALUES_MAX);
        assert_int_equal(aq_device_copy(run.device, out->values + out->count, aq_stage_parameters(run.stages[s]),
                                        count * sizeof *out->values, NULL),
                         AQ_OK);
        assert_int_equal(aq_device_stream_sync(run.device, NULL), AQ_OK);
        out->count += count;
    }
    run_close(&run);
}

static struct outcome plain, graphed;

/*
 * The first step makes plans, the second is the first whose lists are kept, the third records, and two are launched.
 * With two versions half of the lists come in every other step only.
 */
static uint64_t launches_wanted(const struct form *form)
{
    const uint64_t passes = MICRO * 2 * (form->cut ? 2 : 1);
    return form->split ? 0 : (form->versions == 2 ? 2 : STEPS - 2) * passes;
}

static void test_stages_learn_the_same_with_graphs(void **state)
{
    (void)state;
    for (int i = 0; i < FORMS; i++) {
        const struct form *form = &forms[i];
        if (!form->always && !sample_all()) continue;
        learn(form, false, &plain);
        learn(form, true, &graphed);
        print_message("%s: %llu passes were graphs\n", form->name, (unsigned long long)graphed.launched);
        assert_int_equal(plain.launched, 0);
        assert_true(graphed.launched >= launches_wanted(form));
        assert_true(!form->split || graphed.launched == 0); /* they are not used */
        for (int s = 0; s < STEPS; s++)
            for (int m = 0; m < MICRO; m++)
                if (plain.losses[s][m] != graphed.losses[s][m])
                    fail_msg("%s: step %d, micro-batch %d: loss %.9g, without graphs %.9g", form->name, s, m,
                             graphed.losses[s][m], plain.losses[s][m]);
        assert_true(plain.losses[0][0] != plain.losses[STEPS - 1][0]);
        assert_int_equal(plain.count, graphed.count);
        if (memcmp(plain.values, graphed.values, plain.count * sizeof *plain.values) != 0)
            fail_msg("%s: weights differ", form->name);
    }
}

/* --- how many launches a graph is in place of ------------------------------------------------------------------- */

struct counted {
    const char *name, *kind;
    enum aq_stage_precision precision;
    bool inner;      /* a stage of blocks alone */
    uint32_t blocks; /* of the model that is named, or its stage */
};

/* Launches of one micro-batch, forward and backward, with heads of 64. */
static uint64_t launches_of(const struct counted *of, uint32_t blocks)
{
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_stage_config stage_config = help_config(blocks + (of->inner ? 2 : 0), 2, 128, 61, 1, 16);
    struct aq_device *device = NULL;
    struct aq_stage *stage = NULL;
    float *cut[4] = {0};
    int32_t tokens[16];
    const uint64_t bytes = 16 * 128 * sizeof(float);
    if (strcmp(of->kind, "llama") == 0) {
        aq_model_config_default(&stage_config.model, "llama");
        stage_config.model.blocks = blocks;
        stage_config.model.heads = 2;
        stage_config.model.kv_heads = 1;
        stage_config.model.channels = stage_config.model.mlp = 128;
        stage_config.model.vocabulary = 61;
        stage_config.model.context = 16;
        stage_config.model.qk_norm = true;
    }
    stage_config.precision = of->precision;
    stage_config.logits_16bit = true;
    stage_config.tied_rows = of->inner || strcmp(of->kind, "llama") == 0 ? 0 : 16;
    stage_config.layer_first = of->inner ? 1 : 0;
    stage_config.layer_end = of->inner ? 1 + blocks : blocks + 2;
    setenv("AQ_GPU_GRAPHS", "1", 1);
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_stage_open(device, &stage_config, &stage), AQ_OK);
    help_init(stage, 5);
    help_tokens(tokens, 16, 1, 61);
    for (int i = 0; i < 4 && of->inner; i++)
        assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, (void **)&cut[i]), AQ_OK);
    const struct aq_batch batch = help_batch(tokens, tokens, NULL, 1, 16);
    const struct aq_stage_input input = {.batch = &batch, .x = cut[0], .loss_factor = 0.25f};
    uint64_t launches = 0;
    for (int step = 0; step < 4; step++) {
        const uint64_t before = cuda_runtime_host_graph_works();
        assert_int_equal(aq_stage_forward(stage, 0, &input, cut[1], NULL, NULL), AQ_OK);
        assert_int_equal(aq_stage_backward(stage, 0, cut[2], cut[3], NULL), AQ_OK);
        assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
        launches = cuda_runtime_host_graph_works() - before;
    }
    for (int i = 0; i < 4; i++)
        aq_device_free(device, AQ_MEMORY_DEVICE, cut[i], bytes);
    aq_stage_close(stage);
    aq_device_close(device);
    return launches;
}

static void test_each_block_has_as_many_launches(void **state)
{
    (void)state;
    static const struct counted all[] = {{"gpt2-124m", "gpt2", AQ_STAGE_BF16, false, 12},
                                         {"small-gpt2 of bench stage, fp32", "gpt2", AQ_STAGE_FP32, false, 6},
                                         {"an inner stage of 6 blocks of gpt2-1.5b", "gpt2", AQ_STAGE_BF16, true, 6},
                                         {"qwen3-0.6b", "llama", AQ_STAGE_BF16, false, 28}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const uint64_t one = launches_of(&all[i], 1), two = launches_of(&all[i], 2), more = two - one;
        assert_true(one > 0 && two > one);
        assert_int_equal(launches_of(&all[i], 3), two + more);
        print_message("%s: %llu launches for a micro-batch, %llu in each block\n", all[i].name,
                      (unsigned long long)(one + (all[i].blocks - 1) * more), (unsigned long long)more);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stages_learn_the_same_with_graphs),
                                       cmocka_unit_test(test_each_block_has_as_many_launches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
