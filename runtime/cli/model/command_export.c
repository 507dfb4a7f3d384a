/*
 * command_export.c -- `aqpipe export RUN DIR`: what a run has trained, as a folder that other programs load (export.h).
 *
 * The run may be going on: the newest checkpoint that every stage has is what is exported. DIR is new, or empty.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "export.h"
#include "json_text.h"
#include "options.h"
#include "out.h"
#include "run_folder.h"

struct asked {
    const char *dtype, *gguf;
    uint64_t file_bytes, step;
    bool json, quiet;
};

static const struct aq_option options[] = {
    AQ_ROW(TEXT, struct asked, dtype, "dtype", "TYPE", "of the weights: fp32 (the default), bf16 or fp16"),
    AQ_ROW(TEXT, struct asked, gguf, "gguf", "TYPE",
           "write one file for llama.cpp instead, DIR/model-TYPE.gguf: f16 or q8_0"),
    AQ_ROW_READ(aq_size_read, struct asked, file_bytes, "file-bytes", "BYTES",
                "most bytes of weights per file, as in 512M, 5G (5000000000)"),
    AQ_ROW_RANGE(U64, struct asked, step, "step", "N", 1, 1e18, "the checkpoint of this step; default: the newest"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object on standard output; errors, too"),
    AQ_ROW(FLAG, struct asked, quiet, "no-progress", NULL, "print nothing while it writes"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe export", "RUN DIR",
    "Writes what a run has trained as a folder that `transformers` and others load: config.json, model.safetensors (or "
    "its shards and their index), generation_config.json and the tokenizer's files. Other files of a published folder, "
    "from which the run started, are copied. A run's end writes the same, in fp32, into the run's folder. With --gguf "
    "the folder gets a GGUF file with model, tokenizer and chat template, adapters added.",
    options,
    "Examples:\n"
    "  aqpipe export run model                       the newest checkpoint of `run`\n"
    "  aqpipe export run model --dtype bf16          half the bytes\n"
    "  aqpipe export run gguf --gguf q8_0            for llama.cpp and Ollama\n"
    "  python3 -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('model')\"\n"};

static const struct {
    const char *word, *type;
} types[] = {{"fp32", "F32"}, {"bf16", "BF16"}, {"fp16", "F16"}};

/* The folder that is to be written: made here, or empty. */
static enum aq_status claim(const char *folder)
{
    AQ_TRY(aq_run_make_folder(folder));
    DIR *open = opendir(folder);
    if (!open) return aq_fail_errno("export", "cannot read the folder %s", folder);
    const struct dirent *entry;
    bool empty = true;
    while ((entry = readdir(open)) != NULL)
        empty = empty && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
    closedir(open);
    if (empty) return AQ_OK;
    return aq_fail(AQ_REFUSED, "export", "%s is not empty: name a new folder", folder);
}

struct progress {
    bool on;
    int shown; /* per cent */
};

static void show(void *context, uint64_t done, uint64_t total)
{
    struct progress *progress = context;
    const int percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    if (!progress->on || percent == progress->shown) return;
    progress->shown = percent;
    fprintf(stderr, "\raqpipe: %d %% of %.1f MB", percent, (double)total * 1e-6);
}

/* The run's own manifest, which has all values, and its newest checkpoint. */
static enum aq_status open_run(const char *run, const struct asked *asked, struct aq_job **job, struct aq_plan **plan,
                               char checkpoint[AQ_RUN_PATH_BYTES], uint64_t *step)
{
    char path[AQ_RUN_PATH_BYTES];
    struct aq_run_mark mark;
    AQ_TRY(aq_run_path(run, "manifest.yaml", path));
    if (access(path, R_OK) != 0) return aq_fail_errno("export", "%s is not a run folder: %s", run, path);
    AQ_TRY(aq_job_load(path, NULL, 0, job));
    AQ_TRY(aq_plan_open(*job, plan));
    if ((*job)->checkpoint.path)
        AQ_TRY(aq_run_path((*job)->checkpoint.path, ".", checkpoint));
    else
        AQ_TRY(aq_run_path(run, "checkpoint", checkpoint));
    *step = asked->step;
    if (*step) return AQ_OK;
    const enum aq_status status = aq_run_mark_read(checkpoint, &mark);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_NOTFOUND, "export", "%s has no complete checkpoint yet (%s/complete)", run, checkpoint);
    *step = mark.step;
    return status;
}

static void tell(const struct asked *asked, const struct aq_export *export)
{
    struct aq_text text = {0};
    if (asked->json) {
        json_t *object = json_pack("{s:s, s:I, s:s, s:s}", "folder", export->folder, "step", (json_int_t) export->step,
                                   "model", export->plan->model.kind, "dtype",
                                   export->gguf ? export->gguf : export->type);
        (void)aq_json_text(object, JSON_COMPACT, &text);
        json_decref(object);
        (void)(aq_out_raw(aq_text_of(&text)) && aq_out_raw("\n"));
    } else {
        aq_out("step %llu: %s\n", (unsigned long long)export->step, export->folder);
    }
    aq_text_deinit(&text);
}

static enum aq_status run_export(const char *run, const char *folder, const char *type, const struct asked *asked)
{
    char checkpoint[AQ_RUN_PATH_BYTES];
    struct progress progress = {.on = !asked->quiet && !asked->json && isatty(STDERR_FILENO), .shown = -1};
    struct aq_export export = {.checkpoint = checkpoint,
                               .folder = folder,
                               .run = run,
                               .type = type,
                               .gguf = asked->gguf,
                               .file_bytes_max = asked->file_bytes,
                               .progress = show,
                               .context = &progress};
    struct aq_job *job = NULL;
    struct aq_plan *plan = NULL;
    struct aq_gguf *gguf = NULL;
    uint32_t stage;
    enum aq_status status;
    AQ_TRY_GOTO(open_run(run, asked, &job, &plan, checkpoint, &export.step), out);
    export.plan = plan;
    if (!aq_export_here(&export, &stage)) {
        const char *host = job->pipeline.stages[stage].host;
        status = aq_fail(AQ_NOTFOUND, "export", "stage %u's file of step %llu is not in %s%s%s", stage,
                         (unsigned long long)export.step, checkpoint, host ? "; it is at " : "", host ? host : "");
        goto out;
    }
    if (asked->gguf) AQ_TRY_GOTO(aq_export_gguf_open(&export, &gguf), out);
    AQ_TRY_GOTO(claim(folder), out);
    if (!gguf) AQ_TRY_GOTO(aq_export_description(&export), out);
    AQ_TRY_GOTO(gguf ? aq_export_gguf(&export, gguf) : aq_export_weights(&export), out);
    if (progress.shown >= 0) fputs("\n", stderr);
    tell(asked, &export);
out:
    aq_gguf_close(gguf);
    aq_plan_close(plan);
    aq_job_close(job);
    return status;
}

int aq_command_export(int argc, char **argv)
{
    struct asked asked = {.file_bytes = AQ_EXPORT_FILE_BYTES};
    struct aq_arguments rest;
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    size_t type = 0;
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count != 2) return aq_options_wrong(line.name, "export needs a run folder and the name of a new folder");
    if (asked.gguf && asked.dtype) return aq_options_wrong(line.name, "--gguf has the type of the weights: no --dtype");
    if (asked.gguf && !aq_gguf_type_is(asked.gguf))
        return aq_options_wrong(line.name, "--gguf is f16 or q8_0, not '%s'", asked.gguf);
    if (!asked.dtype) asked.dtype = types[0].word;
    while (type < sizeof types / sizeof types[0] && strcmp(types[type].word, asked.dtype) != 0)
        type++;
    if (type == sizeof types / sizeof types[0])
        return aq_options_wrong(line.name, "--dtype is fp32, bf16 or fp16, not '%s'", asked.dtype);
    return aq_exit_of(run_export(rest.of[0], rest.of[1], types[type].type, &asked));
}
