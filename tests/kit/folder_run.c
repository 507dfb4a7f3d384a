/*
 * folder_run.c -- a published folder's model run once, for comparisons with other programs (tools/parity).
 *
 *     folder_run FOLDER CASE
 *
 * CASE is a folder with case.txt, lines of a word and a value:
 *
 *     samples 3           of the batch
 *     T 24                tokens of a sample
 *     task classification or another of tasks.def
 *     precision fp32      or bf16, fp16
 *     tied 1              model.tied
 *     lengths 1           lengths.i32 has how many tokens of each sample are real
 *     recompute 0         run.recompute
 *     cuts 2 5            layers that begin another stage (none: one stage)
 *     field tokens 24     tokens.i32 has 24 values a sample; once a field
 *     numbers scores 1    the same of float32, scores.f32
 *     adapter 1           CASE/adapter is a folder of PEFT's: adapters alone train
 *     export 1            writes CASE/export: config.json and model.safetensors (one stage)
 *
 * It writes there logits.f32 (sample after sample, position after position, of real ones), loss.f64 (mean over targets)
 * and NAME.grad.f32, the gradient of the mean loss, of each tensor by its published name. Exit 1: told on stderr.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "aqsgd/device_math.h"
#include "stages/adapter_folder.h"
#include "stages/model_folder.h"
#include "stages/publish.h"
#include "stages/stage.h"
#include "stages/weights.h"

enum { STAGES_MAX = 8, PATH_BYTES = 1024 };

struct run {
    const char *folder, *at;
    uint32_t samples, tied;
    bool lengths, exports, adapts;
    struct aq_adapter_folder *adapter;
    char targets[8 << 10];
    char task[64];
    uint32_t cuts[STAGES_MAX], cut_count;
    struct aq_batch batch;
    char names[AQ_BATCH_FIELDS_MAX][AQ_FIELD_NAME_MAX];
    struct aq_stage_config config;
    struct aq_device *device;
    struct aq_stage *stages[STAGES_MAX];
    uint32_t count;
    float *between[STAGES_MAX], *back[STAGES_MAX];
};

static enum aq_status file_of(const struct run *run, const char *name, const char *mode, void *values, size_t bytes)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", run->at, name);
    FILE *file = fopen(path, mode);
    if (!file) return aq_fail(AQ_IO, "folder_run", "%s cannot be opened", path);
    const size_t done = *mode == 'r' ? fread(values, 1, bytes, file) : fwrite(values, 1, bytes, file);
    const bool closed = fclose(file) == 0;
    return done == bytes && closed ? AQ_OK : aq_fail(AQ_IO, "folder_run", "%s: %zu of %zu bytes", path, done, bytes);
}

static enum aq_status memory_of(size_t bytes, void *out)
{
    void *memory;
    AQ_TRY(aq_alloc(bytes + 1, &memory));
    memcpy(out, &memory, sizeof memory);
    return AQ_OK;
}

static enum aq_status values_read(const struct run *run, const char *name, const char *type, uint32_t count, void *out)
{
    const size_t bytes = (size_t)run->samples * count * AQ_FIELD_BYTES;
    char file[64];
    void *memory;
    snprintf(file, sizeof file, "%s.%s", name, type);
    AQ_TRY(memory_of(bytes, &memory));
    memcpy(out, &memory, sizeof memory);
    return file_of(run, file, "rb", memory, bytes);
}

static void word(struct run *run, const char *name, const char *text, uint32_t number)
{
    static const char *const precisions[] = {
        [AQ_STAGE_FP32] = "fp32", [AQ_STAGE_BF16] = "bf16", [AQ_STAGE_TF32] = "tf32", [AQ_STAGE_FP16] = "fp16"};
    if (strcmp(name, "samples") == 0) run->samples = number;
    if (strcmp(name, "T") == 0) run->config.T = number;
    if (strcmp(name, "task") == 0) snprintf(run->task, sizeof run->task, "%s", text);
    if (strcmp(name, "tied") == 0) run->tied = number;
    if (strcmp(name, "lengths") == 0) run->lengths = number > 0;
    if (strcmp(name, "export") == 0) run->exports = number > 0;
    if (strcmp(name, "adapter") == 0) run->adapts = number > 0;
    if (strcmp(name, "recompute") == 0) run->config.recompute = number > 0;
    if (strcmp(name, "cuts") == 0 && run->cut_count + 1 < STAGES_MAX) run->cuts[run->cut_count++] = number;
    for (int i = AQ_STAGE_FP32; strcmp(name, "precision") == 0 && i <= AQ_STAGE_FP16; i++)
        if (strcmp(text, precisions[i]) == 0) run->config.precision = (enum aq_stage_precision)i;
}

static enum aq_status case_read(struct run *run)
{
    char path[PATH_BYTES], line[256], name[32], text[64];
    uint32_t *lengths = NULL;
    snprintf(path, sizeof path, "%s/case.txt", run->at);
    FILE *file = fopen(path, "r");
    if (!file) return aq_fail(AQ_IO, "folder_run", "%s cannot be opened", path);
    while (fgets(line, sizeof line, file)) {
        uint32_t count = 0;
        if (sscanf(line, "%31s %63s %u", name, text, &count) < 2) continue;
        word(run, name, text, (uint32_t)strtoul(text, NULL, 10));
        const bool numbers = strcmp(name, "numbers") == 0;
        if ((!numbers && strcmp(name, "field") != 0) || run->batch.field_count == AQ_BATCH_FIELDS_MAX) continue;
        const uint32_t f = run->batch.field_count++;
        snprintf(run->names[f], sizeof run->names[f], "%.15s", text);
        run->batch.fields[f] = (struct aq_field){
            .name = run->names[f], .type = numbers ? AQ_FIELD_F32 : AQ_FIELD_I32, .count = count};
    }
    fclose(file);
    for (uint32_t f = 0; f < run->batch.field_count; f++)
        AQ_TRY(values_read(run, run->names[f], run->batch.fields[f].type == AQ_FIELD_F32 ? "f32" : "i32",
                           run->batch.fields[f].count, &run->batch.fields[f].values));
    if (run->lengths) AQ_TRY(values_read(run, "lengths", "i32", 1, &lengths));
    run->batch.lengths = lengths;
    run->batch.samples = run->samples;
    return AQ_OK;
}

static enum aq_status tensor_read(struct run *run, struct aq_stage *stage, const struct aq_weights *weights,
                                  const struct aq_tensor_info *info)
{
    uint32_t index;
    if (run->adapter && aq_adapter_folder_find(run->adapter, &run->config.model, info->name, &index) == AQ_OK)
        return aq_weights_read(aq_adapter_folder_weights(run->adapter), index, info->transposed,
                               aq_stage_parameters(stage) + info->offset, info->count);
    const char *name = info->name;
    if (aq_weights_find(weights, name, &index) != AQ_OK) name = info->begins_as;
    if (aq_weights_find(weights, name, &index) != AQ_OK)
        return aq_fail(AQ_NOTFOUND, "folder_run", "there is no tensor %s", info->name);
    return aq_weights_read(weights, index, info->transposed, aq_stage_parameters(stage) + info->offset, info->count);
}

static enum aq_status stages_open(struct run *run, const struct aq_weights *weights)
{
    const uint32_t layers = aq_model_layers(&run->config.model);
    for (uint32_t s = 0; s <= run->cut_count; s++) {
        struct aq_stage_config config = run->config;
        struct aq_stage_size size;
        config.layer_first = s ? run->cuts[s - 1] : 0;
        config.layer_end = s < run->cut_count ? run->cuts[s] : layers;
        AQ_TRY(aq_stage_measure(&config, &size));
        AQ_TRY(aq_stage_open(run->device, &config, &run->stages[s]));
        run->count++;
        const uint32_t saved = aq_stage_saved_count(run->stages[s]);
        for (uint32_t i = 0; i < saved + aq_stage_frozen_count(run->stages[s]); i++) {
            struct aq_tensor_info info;
            i < saved ? aq_stage_saved(run->stages[s], i, &info) : aq_stage_frozen(run->stages[s], i - saved, &info);
            AQ_TRY(tensor_read(run, run->stages[s], weights, &info));
        }
        AQ_TRY(aq_stage_frozen_changed(run->stages[s], NULL));
        AQ_TRY(aq_stage_parameters_changed(run->stages[s], NULL));
        AQ_TRY(memory_of(size.y_bytes, &run->between[s]));
        AQ_TRY(memory_of(size.x_bytes, &run->back[s]));
    }
    return AQ_OK;
}

static enum aq_status forward(struct run *run, const struct aq_batch *batch, bool evaluate, uint32_t used, float scale,
                              struct aq_stage_loss *loss)
{
    struct aq_stage_input input = {.batch = batch, .evaluate = evaluate, .tokens_used = used, .loss_factor = scale};
    for (uint32_t s = 0; s < run->count; s++) {
        const bool last = s + 1 == run->count;
        AQ_TRY(aq_stage_forward(run->stages[s], 0, &input, last ? NULL : run->between[s], last ? loss : NULL, NULL));
        input.x = run->between[s];
    }
    return AQ_OK;
}

/* Sample by sample, without what it is compared with. */
static enum aq_status logits_write(struct run *run)
{
    const struct aq_model_config *model = &run->config.model;
    const bool whole = model->labels > 0;
    const uint32_t T = run->config.T, outputs = whole ? model->labels : model->vocabulary;
    float *logits;
    uint64_t rows = 0;
    AQ_TRY(memory_of((size_t)run->samples * (whole ? 1 : T) * outputs * sizeof(float), &logits));
    for (uint32_t sample = 0; sample < run->samples; sample++) {
        struct aq_batch one = run->batch;
        const uint32_t length = one.lengths ? one.lengths[sample] : T;
        one.samples = 1;
        one.lengths = one.lengths ? one.lengths + sample : NULL;
        one.field_count = 0;
        for (uint32_t f = 0; f < run->batch.field_count; f++) {
            struct aq_field field = run->batch.fields[f];
            field.values = (int32_t *)field.values + (size_t)sample * field.count;
            if (strcmp(field.name, aq_task_field(aq_task_find(run->task))) != 0) one.fields[one.field_count++] = field;
        }
        AQ_TRY(forward(run, &one, true, 0, 0, NULL));
        for (uint32_t t = 0; t < (whole ? 1 : length); t++, rows++)
            AQ_TRY(aq_stage_logits(run->stages[run->count - 1], 0, t, logits + rows * outputs, NULL));
    }
    const enum aq_status status = file_of(run, "logits.f32", "wb", logits, rows * outputs * sizeof(float));
    aq_free(logits);
    return status;
}

static enum aq_status gradients_write(struct run *run)
{
    for (uint32_t s = 0; s < run->count; s++)
        for (uint32_t i = 0; i < aq_stage_tensor_count(run->stages[s]); i++) {
            struct aq_tensor_info info;
            char name[2 * AQ_TENSOR_NAME_MAX], file[2 * AQ_TENSOR_NAME_MAX + 16];
            aq_stage_tensor(run->stages[s], i, &info);
            aq_publish_name(&run->config.model, info.name, name, sizeof name);
            snprintf(file, sizeof file, "%s.%s.f32", name, info.transposed ? "turned" : "grad");
            AQ_TRY(
                file_of(run, file, "wb", aq_stage_gradients(run->stages[s]) + info.offset, info.count * sizeof(float)));
        }
    return AQ_OK;
}

static enum aq_status export_file(void *context, const char *name, const char *bytes, size_t count)
{
    const struct run *run = context;
    char inside[64];
    snprintf(inside, sizeof inside, "export/%.48s", name);
    return file_of(run, inside, "wb", (void *)(uintptr_t)bytes, count); /* read only */
}

/* The model as others load it, as it was read. */
static enum aq_status export_write(struct run *run)
{
    const char *const metadata[] = {"format", "pt", NULL};
    const uint32_t count = aq_stage_tensor_count(run->stages[0]);
    struct aq_weights_tensor *tensors;
    char(*names)[2 * AQ_TENSOR_NAME_MAX], path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/export", run->at);
    if (mkdir(path, 0700) != 0) return aq_fail(AQ_IO, "folder_run", "%s cannot be made", path);
    const struct aq_publish_about about = {.tied = run->config.model.tied, .end_of_text = -1, .type = "F32"};
    AQ_TRY(aq_publish_model(&run->config.model, &about, export_file, run));
    AQ_TRY(memory_of(count * sizeof *tensors, &tensors));
    AQ_TRY(memory_of(count * sizeof *names, &names));
    for (uint32_t i = 0; i < count; i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(run->stages[0], i, &info);
        aq_publish_name(&run->config.model, info.name, names[i], sizeof names[i]);
        tensors[i] = (struct aq_weights_tensor){.name = names[i],
                                                .dimensions = info.dimensions,
                                                .transposed = info.transposed,
                                                .values = aq_stage_parameters(run->stages[0]) + info.offset};
        memcpy(tensors[i].shape, info.shape, sizeof info.shape);
    }
    snprintf(path, sizeof path, "%s/export/model.safetensors", run->at);
    const enum aq_status status = aq_weights_write(path, tensors, count, metadata);
    aq_free(names);
    aq_free(tensors);
    return status;
}

static uint64_t targets_of(const struct run *run)
{
    uint64_t targets = 0;
    for (uint32_t f = 0; f < run->batch.field_count; f++) {
        const struct aq_field *field = &run->batch.fields[f];
        if (strcmp(field->name, aq_task_field(aq_task_find(run->task))) != 0) continue;
        for (uint64_t i = 0; i < (uint64_t)run->samples * field->count; i++)
            targets += field->type == AQ_FIELD_F32 || ((const int32_t *)field->values)[i] >= 0;
    }
    return targets;
}

static enum aq_status backward(struct run *run)
{
    for (uint32_t s = run->count; s-- > 0;)
        AQ_TRY(aq_stage_backward(run->stages[s], 0, s + 1 < run->count ? run->back[s + 1] : NULL,
                                 s > 0 ? run->back[s] : NULL, NULL));
    return AQ_OK;
}

/* CASE/adapter, as a run begins from it. */
static enum aq_status adapter_open(struct run *run)
{
    char path[PATH_BYTES];
    if (!run->adapts) return AQ_OK;
    snprintf(path, sizeof path, "%s/adapter", run->at);
    AQ_TRY(aq_adapter_folder_open(path, &run->adapter));
    run->config.lora = *aq_adapter_folder_lora(run->adapter);
    if (!aq_adapter_folder_ties(run->adapter, &run->config.model)) run->config.model.tied = AQ_TIED_NO;
    AQ_TRY(aq_adapter_folder_match(run->adapter, &run->config.model, true, run->targets, sizeof run->targets));
    if (run->targets[0]) run->config.lora.targets = run->targets;
    return AQ_OK;
}

static enum aq_status run_all(struct run *run)
{
    const struct aq_device_config device = {.kind = "cpu", .threads = 2};
    struct aq_model_folder *folder;
    struct aq_weights *weights;
    struct aq_stage_loss loss = {0};
    run->config = (struct aq_stage_config){.precision = AQ_STAGE_FP32, .slots = 1};
    run->tied = 2;
    AQ_TRY(case_read(run));
    AQ_TRY(aq_model_folder_open(run->folder, &folder));
    run->config.model = *aq_model_folder_model(folder);
    run->config.B = run->samples;
    run->config.task = run->task;
    run->config.lengths = run->lengths;
    if (run->tied < 2) run->config.model.tied = run->tied > 0;
    AQ_TRY(aq_device_open(&device, &run->device));
    AQ_TRY(aq_weights_open(run->folder, &weights));
    AQ_TRY(adapter_open(run));
    AQ_TRY(stages_open(run, weights));
    AQ_TRY(logits_write(run));
    const uint64_t targets = targets_of(run);
    AQ_TRY(forward(run, &run->batch, false, 0, 1.0f / (float)targets, &loss));
    loss.sum /= (double)loss.targets;
    AQ_TRY(file_of(run, "loss.f64", "wb", &loss.sum, sizeof loss.sum));
    AQ_TRY(backward(run));
    AQ_TRY(gradients_write(run));
    if (run->exports) AQ_TRY(export_write(run));
    aq_weights_close(weights);
    aq_model_folder_close(folder);
    return AQ_OK;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: folder_run FOLDER CASE\n");
        return 2;
    }
    struct run run = {.folder = argv[1], .at = argv[2]};
    return run_all(&run) == AQ_OK ? 0 : 1; /* what it holds goes with the process */
}
