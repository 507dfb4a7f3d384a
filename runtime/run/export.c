/* export.c -- a run's weights with the files that other programs need. See the header. */
#include "export.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "run_folder.h"
#include "stages/dataset.h"
#include "stages/gguf.h"
#include "stages/model_folder.h"
#include "stages/publish.h"

bool aq_export_here(const struct aq_export *export, uint32_t *stage)
{
    char path[AQ_RUN_PATH_BYTES];
    for (uint32_t s = 0; s < export->plan->stage_count; s++) {
        *stage = s;
        if (aq_checkpoint_path(export->checkpoint, export->step, s, path) != AQ_OK) return false;
        if (access(path, R_OK) != 0) return false;
    }
    return true;
}

static enum aq_status write_file(void *context, const char *name, const char *bytes, size_t count)
{
    const struct aq_export *export = context;
    return aq_file_replace(export->folder, name, 0600, bytes, count);
}

static bool has_config(const char *folder)
{
    char path[AQ_RUN_PATH_BYTES];
    return folder && aq_run_path(folder, "config.json", path) == AQ_OK && access(path, R_OK) == 0;
}

/* Present folder of the initial model's small files; NULL: the run started without a model. */
static const char *began_as(const struct aq_export *export)
{
    const char *weights = export->plan->job->model.weights;
    if (!weights) return NULL;
    if (aq_model_folder_is(weights)) return has_config(weights) ? weights : NULL;
    if (access(weights, F_OK) == 0) return NULL; /* a file */
    return has_config(export->run) ? export->run : NULL;
}

static bool same_place(const char *a, const char *b)
{
    struct stat left, right;
    if (a && b && strcmp(a, b) == 0) return true; /* also where it is gone */
    return a && b && stat(a, &left) == 0 && stat(b, &right) == 0 && left.st_dev == right.st_dev &&
           left.st_ino == right.st_ino;
}

/* Is the head the embedding's table in this run? Not where a cut of split learning leaves it to the server. */
static bool is_tied(const struct aq_plan *plan)
{
    return plan->model.tied && (plan->stage_count == 1 || plan->job->split.clients == 0 ||
                                plan->job->split.labels == AQ_SPLIT_LABELS_CLIENT);
}

/* Generation ends at the tokens that ended answers in training. */
static enum aq_status write_ends(const struct aq_export *export, const char *from, void *to)
{
    const struct aq_job_facts *facts = &export->plan->facts;
    int32_t ends[2];
    uint32_t count = 0;
    for (uint32_t i = 0; i < 2; i++)
        if (facts->ends[i]) ends[count++] = (int32_t)facts->ends[i] - 1;
    return aq_publish_ends(from, ends, count, write_file, to);
}

/* The chat template of the training, where it is not among the folder's own files. */
static enum aq_status write_chat(const struct aq_export *export, bool carries, void *to)
{
    const struct aq_job_data *data = &export->plan->job->data;
    const char *chat = data->chat ? data->chat : carries ? NULL : data->tokenizer_path;
    if (!aq_dataset_kind_masks(data->kind) || !chat) return AQ_OK; /* no answers */
    if (access(chat, F_OK) != 0) chat = export->run;               /* it has gone since the run's end */
    if (!chat || same_place(chat, export->folder)) return AQ_OK;
    return aq_publish_chat(chat, write_file, to);
}

enum aq_status aq_export_description(const struct aq_export *export)
{
    const struct aq_plan *plan = export->plan;
    const struct aq_job_data *data = &plan->job->data;
    const char *from = began_as(export);
    void *to = (void *)(uintptr_t) export;
    struct aq_tokenizer *tokenizer;
    struct aq_publish_about about = {.tied = is_tied(plan), .end_of_text = -1, .type = export->type, .from = from};
    /* The folder's own tokenizer, or one that the job chose. If the folder was deleted, both are the run's files. */
    const bool carries =
        from && (same_place(data->tokenizer_path, plan->job->model.weights) || same_place(data->tokenizer_path, from));
    if (!carries) {
        AQ_TRY(aq_tokenizer_open(data->tokenizer, data->tokenizer_path, &tokenizer));
        about.end_of_text = aq_tokenizer_end_of_text(tokenizer);
        aq_tokenizer_close(tokenizer);
    }
    about.labels = data->labels;
    AQ_TRY(aq_publish_model(&plan->model, &about, write_file, to));
    if (from && !same_place(from, export->folder)) AQ_TRY(aq_publish_carry(from, carries, write_file, to));
    AQ_TRY(write_ends(export, from, to));
    AQ_TRY(write_chat(export, carries, to));
    if (carries) return AQ_OK;
    return aq_publish_tokenizer(data->tokenizer, data->tokenizer_path, plan->model.context, write_file, to);
}

static struct aq_join join_of(const struct aq_export *export)
{
    static const char *const metadata[] = {"format", "pt", "producer", "aqpipe " AQ_VERSION, NULL};
    return (struct aq_join){.checkpoint = export->checkpoint,
                            .step = export->step,
                            .stages = export->plan->stage_count,
                            .model = &export->plan->model,
                            .tied = is_tied(export->plan),
                            .lora = &export->plan->job->train.lora,
                            .folder = export->folder,
                            .type = export->type,
                            .file_bytes_max = export->file_bytes_max,
                            .metadata = metadata,
                            .progress = export->progress,
                            .context = export->context};
}

enum aq_status aq_export_weights(const struct aq_export *export)
{
    const struct aq_job *job = export->plan->job;
    const char *from = began_as(export);
    char adapter[AQ_RUN_PATH_BYTES];
    struct aq_join join = join_of(export);
    AQ_TRY(aq_run_path(export->folder, "adapter", adapter));
    if (job->train.lora.rank) AQ_TRY(aq_run_make_folder(adapter));
    join.adapter_folder = adapter;
    join.base = job->model.weights;
    join.wrapper = !export->plan->model.labels && aq_model_folder_wraps(from) ? from : NULL;
    return aq_checkpoint_join(&join);
}

/* ---- GGUF ---- */

/* The folder if it still exists, else the run's, to which the run's end has copied its files. */
static const char *still_there(const struct aq_export *export, const char *folder)
{
    return folder && export->run && access(folder, F_OK) != 0 ? export->run : folder;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

enum aq_status aq_export_gguf_open(const struct aq_export *export, struct aq_gguf **out)
{
    const struct aq_plan *plan = export->plan;
    const struct aq_job_data *data = &plan->job->data;
    const char *from = began_as(export), *path = still_there(export, data->tokenizer_path);
    struct aq_gguf_about about = {.model = &plan->model,
                                  .type = export->gguf,
                                  .name = last_part(export->run),
                                  .tokenizer = data->tokenizer,
                                  .tokenizer_path = path,
                                  .chat = data->chat ? still_there(export, data->chat) : path ? path : from};
    for (uint32_t i = 0; i < AQ_GGUF_ENDS_MAX; i++)
        if (plan->facts.ends[i]) about.ends[about.end_count++] = (int32_t)plan->facts.ends[i] - 1;
    return aq_gguf_open(&about, out);
}

enum aq_status aq_export_gguf(const struct aq_export *export, const struct aq_gguf *gguf)
{
    char name[AQ_EXPORT_GGUF_BYTES];
    struct aq_join join = join_of(export);
    snprintf(name, sizeof name, "model-%s.gguf", export->gguf);
    join.gguf = gguf;
    join.gguf_name = name;
    return aq_checkpoint_join(&join);
}
