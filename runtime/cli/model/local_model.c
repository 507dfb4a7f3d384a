/* local_model.c -- a model folder in this process, as one stage or as a run's stages. See the header. */
#include "local_model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run_folder.h"

#define AREA "model"

const char *aq_local_precision_read(const char *value, void *to)
{
    static const struct {
        const char *word;
        enum aq_stage_precision precision;
    } words[] = {{"fp32", AQ_STAGE_FP32}, {"bf16", AQ_STAGE_BF16}, {"fp16", AQ_STAGE_FP16}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(value, words[i].word) != 0) continue;
        *(enum aq_stage_precision *)to = words[i].precision;
        return NULL;
    }
    return "must be fp32, bf16 or fp16";
}

const char *aq_local_codec_read(const char *value, void *to)
{
    const bool on = strcmp(value, "on") == 0;
    if (!on && strcmp(value, "off") != 0) return "must be on or off";
    *(bool *)to = on;
    return NULL;
}

/* A run's folder has its manifest; until the run has ended it has no model. */
static enum aq_status open_run(struct aq_local *local)
{
    const char *path = local->asked.path;
    char file[AQ_RUN_PATH_BYTES];
    AQ_TRY(aq_run_path(path, "manifest.yaml", file));
    if (access(file, F_OK) != 0) return AQ_OK;
    AQ_TRY(aq_job_load(file, NULL, 0, &local->job));
    AQ_TRY(aq_run_path(path, "config.json", file));
    if (access(file, F_OK) == 0) return AQ_OK;
    return aq_fail(AQ_NOTFOUND, AREA, "%s has no model yet: a run writes one at its end; `aqpipe export %s DIR` now",
                   path, path);
}

/* The cuts of the run, their codecs, and the hosts of its stages. */
static enum aq_status open_cuts(struct aq_local *local)
{
    const char *path = local->asked.path, *option = local->asked.pipeline ? "--pipeline" : "--codec on";
    if (!local->asked.codec && !local->asked.pipeline) return AQ_OK;
    if (!local->job)
        return aq_fail(AQ_INVAL, AREA, "%s: %s is not a run's folder, so its cuts are unknown", option, path);
    AQ_TRY(aq_plan_open(local->job, &local->plan));
    if (local->plan->stage_count > 1) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA, "%s: %s was one stage, and nothing crossed a cut", option, path);
}

void aq_local_codec_text(const struct aq_local *local, char *text, size_t bytes)
{
    const uint32_t cuts = local->plan ? local->plan->stage_count - 1 : 0;
    if (local->asked.codec)
        snprintf(text, bytes, "on, %u cut%s", cuts, cuts == 1 ? "" : "s");
    else
        snprintf(text, bytes, "off");
}

/* The folder's own before the run's, whose files may have gone since. */
static void choose_tokenizer(struct aq_local *local)
{
    const struct aq_local_asked *asked = &local->asked;
    const char *folder = asked->tokenizer_path ? asked->tokenizer_path : asked->path;
    local->tokenizer_path = folder;
    local->tokenizer_kind = asked->tokenizer ? asked->tokenizer : aq_tokenizer_of_folder(folder);
    if (local->tokenizer_kind || !local->job) return;
    local->tokenizer_kind = local->job->data.tokenizer;
    local->tokenizer_path = local->job->data.tokenizer_path;
}

enum aq_status aq_local_open(const struct aq_local_asked *asked, struct aq_local **out)
{
    enum aq_status status;
    struct aq_local *local;
    AQ_TRY(AQ_NEW(1, &local));
    *local = (struct aq_local){.asked = *asked};
    if (aq_model_hub_is(asked->path)) {
        AQ_TRY_GOTO(aq_model_hub_path(asked->path, local->hub, sizeof local->hub), out);
        local->asked.path = local->hub;
    }
    AQ_TRY_GOTO(open_run(local), out);
    AQ_TRY_GOTO(open_cuts(local), out);
    AQ_TRY_GOTO(aq_model_folder_open(local->asked.path, &local->folder), out);
    local->model = *aq_model_folder_model(local->folder);
    if (!local->asked.precision) local->asked.precision = local->job ? local->job->model.precision : AQ_STAGE_FP32;
    choose_tokenizer(local);
    *out = local;
    return AQ_OK;
out:
    aq_local_close(local);
    return status;
}

void aq_local_close(struct aq_local *local)
{
    if (!local) return;
    for (uint32_t s = 0; s < AQ_JOB_STAGES_MAX; s++) {
        aq_stage_close(local->stages[s]);
        aq_cut_close(local->cuts[s]);
    }
    aq_free(local->values[0]);
    aq_free(local->values[1]);
    aq_plan_close(local->plan);
    aq_device_close(local->device);
    aq_model_folder_close(local->folder);
    aq_job_close(local->job);
    aq_free(local);
}

enum aq_status aq_local_tokenizer(const struct aq_local *local, struct aq_tokenizer **out)
{
    struct aq_tokenizer *tokenizer;
    if (!local->tokenizer_kind)
        return aq_fail(AQ_NOTFOUND, AREA, "%s has no tokenizer that is read here: name one (--tokenizer)",
                       local->asked.path);
    AQ_TRY(aq_tokenizer_open(local->tokenizer_kind, local->tokenizer_path, &tokenizer));
    *out = tokenizer; /* a token beyond the model's table is refused where a text has it */
    return AQ_OK;
}

/* The cut behind stage s, of samples of T tokens. */
static enum aq_status load_cut(struct aq_local *local, const struct aq_stage_config *config, uint32_t s)
{
    struct aq_edge_shape shape;
    AQ_TRY(aq_asked_cut(local->plan, config, s, &shape));
    local->shapes[s] = (struct aq_cut_shape){.rows = shape.rows, .columns = shape.columns};
    return aq_cut_open(local->device, &shape, &local->cuts[s]);
}

static enum aq_status load_values(struct aq_local *local, const struct aq_asked_size *size)
{
    uint64_t most = 0;
    for (uint32_t s = 0; s + 1 < local->stage_count; s++) {
        const uint64_t values = (uint64_t)size->B * local->shapes[s].rows * local->shapes[s].columns;
        if (values > most) most = values;
    }
    for (int i = 0; most && i < 2; i++)
        AQ_TRY(AQ_NEW(most, &local->values[i]));
    return AQ_OK;
}

enum aq_status aq_local_load(struct aq_local *local, const struct aq_asked_size *size)
{
    const struct aq_device_config device = {.kind = "cpu", .threads = local->asked.threads};
    aq_model_use_task(&local->model, size->task, size->labels);
    AQ_TRY(aq_model_config_check(&local->model));
    AQ_TRY(aq_asked_adapt(local->asked.adapter, &local->model));
    struct aq_stage_config config = aq_asked_config(&local->model, local->job, local->asked.precision, size);
    AQ_TRY(aq_device_open(&device, &local->device));
    local->stage_count = local->plan ? local->plan->stage_count : 1;
    for (uint32_t s = 0; s < local->stage_count; s++) {
        const bool last = s + 1 == local->stage_count;
        config.layer_first = config.layer_end;
        config.layer_end = last ? aq_model_layers(&local->model) : local->plan->stages[s].layer_end;
        AQ_TRY(aq_asked_stage_open(local->device, &config, local->asked.path, local->asked.adapter, &local->stages[s]));
        if (!last) AQ_TRY(load_cut(local, &config, s));
    }
    local->stage = local->stages[local->stage_count - 1];
    return load_values(local, size);
}

/* The receiver has zeroes after a sample's last row. */
static void padding_clear(const struct aq_cut_shape *shape, const struct aq_batch *batch, float *values)
{
    const uint64_t each = (uint64_t)shape->rows * shape->columns;
    for (uint32_t i = 0; batch->lengths && i < batch->samples; i++) {
        const uint64_t real = (uint64_t)batch->lengths[i] * shape->columns;
        memset(values + i * each + real, 0, (each - real) * sizeof *values);
    }
}

/* Activations of the rows that a forward computed cross cut s. */
static enum aq_status cross(struct aq_local *local, uint32_t s, const struct aq_stage_input *input, float *values)
{
    static const uint64_t nobody[1] = {0};
    const struct aq_batch *batch = input->batch;
    const struct aq_cut_shape *shape = &local->shapes[s];
    const uint32_t rows = input->tokens_used ? input->tokens_used - input->tokens_before : shape->rows;
    AQ_ASSERT(batch->sample_ids || batch->samples == 1);
    const struct aq_edge_batch crossing = {.step = local->plan->steps + input->tokens_before,
                                           .samples = batch->samples,
                                           .sample_ids = batch->sample_ids ? batch->sample_ids : nobody,
                                           .lengths = rows < shape->rows ? &rows : batch->lengths};
    AQ_ASSERT(rows == shape->rows || batch->samples == 1);
    AQ_TRY(aq_cut_pass(local->cuts[s], &crossing, values));
    padding_clear(shape, batch, values);
    return AQ_OK;
}

enum aq_status aq_local_forward(struct aq_local *local, const struct aq_stage_input *input, struct aq_stage_loss *loss)
{
    struct aq_stage_input mine = *input;
    for (uint32_t s = 0; s + 1 < local->stage_count; s++) {
        float *values = local->values[s % 2];
        AQ_TRY(aq_stage_forward(local->stages[s], 0, &mine, values, NULL, NULL));
        AQ_TRY(cross(local, s, &mine, values));
        mine.x = values;
    }
    return aq_stage_forward(local->stage, 0, &mine, NULL, loss, NULL);
}
