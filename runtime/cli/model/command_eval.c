/*
 * command_eval.c -- `aqpipe eval MODEL --data FILE ...`: the held-out loss and the task's metrics of a model folder, in
 * this process. A run's folder has its data and settings: then its last evaluation comes out again, by the same code.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "chat_variables.h"
#include "commands.h"
#include "control.h"
#include "heldout.h"
#include "json_text.h"
#include "keys.h"
#include "local_model.h"
#include "out.h"
#include "plan.h"

enum { T_DEFAULT = 512, BATCH_DEFAULT = 4, TEXT_BYTES = 512, CODEC_BYTES = 32, LABELS_BYTES = 64 << 10 };

struct asked {
    struct aq_local_asked model;
    struct aq_arguments data, variables, fields;
    const char *kind, *task, *text, *pair, *label, *labels, *chat, *mean, *std, *fit;
    uint32_t T, batch;
    uint64_t samples, skip_invalid;
    bool whole, json, quiet;
    int begin; /* enum aq_begin; -1: the run's, else auto */
};

/* --bos. NULL: it is one of them. */
static const char *begin_read(const char *value, void *to)
{
    static const char *const words[] = {
        [AQ_BEGIN_NONE] = "false", [AQ_BEGIN_AUTO] = "auto", [AQ_BEGIN_ALWAYS] = "true"};
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++)
        if (strcmp(value, words[i]) == 0) {
            *(int *)to = i;
            return NULL;
        }
    return "must be auto, true or false";
}

static const struct aq_option options[] = {
    AQ_ROW(LIST, struct asked, data, "data", "FILE", "what to measure on; may be repeated; default: the run's"),
    AQ_ROW(TEXT, struct asked, kind, "kind", "KIND", "of the data (data.kind); default: the run's, else by the file"),
    AQ_ROW(LIST, struct asked, fields, "field", "ROLE=NAME", "a field's name (data.fields): prompt=question"),
    AQ_ROW_RANGE(U64, struct asked, skip_invalid, "skip-invalid", "N", 1, 1e18, "skip up to N bad lines"),
    AQ_ROW(TEXT, struct asked, task, "task", "TASK", "model.task; default: the run's, else the first that fits"),
    AQ_ROW_RANGE(U32, struct asked, T, "T", "N", 1, 1e9, "tokens per sample; default: the run's, else at most 512"),
    AQ_ROW_RANGE(U32, struct asked, batch, "batch", "N", 1, 65536, "samples per forward; default: the run's, else 4"),
    AQ_ROW_RANGE(U64, struct asked, samples, "samples", "N", 1, 1e18, "only the first N; default: all"),
    AQ_ROW(TEXT, struct asked, text, "text-column", "NAME", "of a table: name, or number from 1"),
    AQ_ROW(TEXT, struct asked, pair, "pair-column", "NAME", "the same, of a second text"),
    AQ_ROW(TEXT, struct asked, label, "label-column", "NAME", "the same, of the label"),
    AQ_ROW(TEXT, struct asked, labels, "labels", "A,B,...", "the labels' names in order; default: numbers from 0"),
    AQ_ROW(TEXT, struct asked, mean, "image-mean", "NUMBERS", "data.image.mean; default: the run's, else 0.5"),
    AQ_ROW(TEXT, struct asked, std, "image-std", "NUMBERS", "data.image.std; default: the run's, else 0.5"),
    AQ_ROW(TEXT, struct asked, fit, "image-fit", "crop|stretch", "data.image.fit; default: the run's, else crop"),
    AQ_ROW(TEXT, struct asked, chat, "chat", "DIR", "folder of the chat template; default: MODEL"),
    AQ_ROW_READ(begin_read, struct asked, begin, "bos", "auto|true|false",
                "samples begin with the bos token (data.bos); default: the run's"),
    AQ_ROW(LIST, struct asked, variables, "chat-variable", "NAME=VALUE",
           "a variable of the chat template; may be repeated; default: the run's"),
    AQ_ROW(FLAG, struct asked, whole, "no-pack", NULL, "one sample per conversation (data.pack: false)"),
    AQ_LOCAL_OPTIONS(struct asked, model),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object on standard output; errors, too"),
    AQ_ROW(FLAG, struct asked, quiet, "no-progress", NULL, "print nothing while it computes"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe eval", "MODEL",
    "Measures loss and metrics of a model on held-out data. MODEL is a published folder, what `aqpipe export` "
    "wrote, or an ended run, which brings its data, task and T. It runs in one process on the CPU and "
    "prints the figures of a run's own evaluations; with --codec on, loss_coded.",
    options,
    "Examples:\n"
    "  aqpipe eval run                               the last evaluation of `run` again\n"
    "  aqpipe eval run --data other.txt              the same model on other text\n"
    "  aqpipe eval gpt2 --data wiki.test.txt --T 1024 --json\n"
    "  aqpipe eval model --data dev.tsv --text-column sentence --label-column label\n"};

struct evaluation {
    const struct asked *asked;
    struct aq_local *local;
    struct aq_dataset_config config;
    struct aq_dataset *dataset;
    const char *task;          /* NULL: the model's own */
    struct aq_text variables;  /* of the chat template */
    struct aq_text fields;     /* data.fields          */
    char labels[LABELS_BYTES]; /* their names in the order of the head */
    uint32_t B, T;
    uint32_t places; /* T, and the tokens before a text */
    struct aq_batch batch;
    uint64_t *ids;    /* B: of the batch's samples */
    uint32_t *starts; /* (B, T): starts of the parts of samples */
    struct aq_stage_loss total;
    double seconds;
};

/* The kind of the first file, if neither a run nor --kind sets it; it is printed. */
static const char *recognise(const struct evaluation *e)
{
    struct aq_dataset_config config = e->config;
    char why[TEXT_BYTES];
    const char *own = aq_model_side(&e->local->model) ? aq_model_task(e->local->model.kind) : NULL;
    const char *name = e->asked->task ? e->asked->task : own; /* of texts the data say it */
    const struct aq_task *task = name ? aq_task_find(name) : NULL;
    if (task) config.field = aq_task_field(task);
    const char *kind = aq_dataset_recognise(&config, why, sizeof why);
    if (why[0]) aq_log("eval", 1, "--kind %s, because %s", kind, why);
    return kind;
}

/* What keys of manifests say of images. */
static enum aq_status choose_images(const struct asked *asked, struct aq_dataset_image *out)
{
    const struct {
        const char *key, *text;
    } given[] = {{"data.image.mean", asked->mean}, {"data.image.std", asked->std}, {"data.image.fit", asked->fit}};
    static struct aq_job job; /* where a key's value goes */
    char wants[TEXT_BYTES];
    job.data.image = *out;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        const struct aq_key *key = aq_key_find(aq_keys_job(), given[i].key);
        if (!given[i].text || aq_key_read(key, given[i].text, false, &job) == AQ_OK) continue;
        aq_key_wants(key, wants, sizeof wants);
        return aq_fail(AQ_INVAL, "eval", "%s: '%s' is not %s", given[i].key, given[i].text, wants);
    }
    *out = job.data.image;
    return aq_dataset_image_check(out);
}

/* The data to read: the run's, changed by the options. */
static enum aq_status choose_data(struct evaluation *e)
{
    const struct asked *asked = e->asked;
    const struct aq_job *job = e->local->job;
    const uint32_t context = e->local->model.context, tokens = aq_model_tokens(e->local->model.kind);
    struct aq_dataset_config *config = &e->config;
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    e->T = tokens                           ? tokens
           : asked->T                       ? asked->T
           : job                            ? job->train.T
           : context && context < T_DEFAULT ? context
                                            : T_DEFAULT;
    e->B = asked->batch ? asked->batch : job ? job->train.micro_batch : BATCH_DEFAULT;
    if (context && e->T > context)
        return aq_fail(AQ_INVAL, "eval", "--T %u is more than the context of %s, %u", e->T, e->local->asked.path,
                       context);
    if (job) *config = aq_plan_dataset(job, true);
    if (asked->data.count) {
        config->paths = asked->data.of;
        config->path_count = asked->data.count;
        config->samples_max = 0;
    }
    if (asked->samples) config->samples_max = asked->samples;
    if (config->path_count == 0)
        return aq_fail(AQ_INVAL, "eval", "%s has no held-out data; pass --data FILE", e->local->asked.path);
    if (asked->kind) config->kind = asked->kind;
    if (asked->text) config->columns.text = asked->text;
    if (asked->pair) config->columns.pair = asked->pair;
    if (asked->label) config->columns.label = asked->label;
    if (asked->labels) config->columns.names = asked->labels;
    if (asked->chat) config->chat = asked->chat;
    if (asked->whole) config->whole = true;
    if (config->columns.names) {
        AQ_TRY(aq_model_folder_order(e->local->folder, config->columns.names, e->labels, sizeof e->labels));
        config->columns.names = e->labels;
    }
    AQ_TRY(aq_named_values("--chat-variable", config->chat_variables, &asked->variables, &e->variables));
    if (e->variables.used) config->chat_variables = aq_text_of(&e->variables);
    AQ_TRY(aq_named_values("--field", config->names, &asked->fields, &e->fields));
    if (e->fields.used) config->names = aq_text_of(&e->fields);
    if (asked->skip_invalid) config->skip_invalid = asked->skip_invalid;
    config->image.side = aq_model_side(&e->local->model);
    if (!config->kind) config->kind = recognise(e);
    if (aq_dataset_fields(config->kind, 1, &config->image, fields) == 0)
        return aq_fail(AQ_INVAL, "eval", "there is no kind of data '%s' (aqpipe help keys: data.kind)", config->kind);
    if (!job) config->begin = AQ_BEGIN_AUTO;
    if (asked->begin >= 0) config->begin = (enum aq_begin)asked->begin;
    config->T = e->T;
    config->places_max = context;
    config->tokens_max = e->local->model.vocabulary;
    AQ_TRY(choose_images(asked, &config->image));
    config->cache = NULL; /* nothing is written */
    return AQ_OK;
}

static bool fits(const struct evaluation *e, const char *task, char *text, size_t bytes)
{
    struct aq_model_config model = e->local->model;
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    const uint32_t count = aq_dataset_fields(e->config.kind, e->T, &e->config.image, fields);
    const char *key;
    aq_model_use_task(&model, task, model.labels);
    if (!aq_model_fits(&model, e->T, task, fields, count, &key, text, bytes)) return false;
    const struct aq_task *of = aq_task_find(task ? task : aq_model_task(model.kind));
    if (e->local->model.labels == 1 && !aq_task_numbers(of)) { /* as transformers takes one label */
        snprintf(text, bytes, "its one output is a number, not a class");
        return false;
    }
    if (model.labels || !aq_model_folder_classifies(e->local->folder)) return true;
    snprintf(text, bytes, "it is a %s, and this task is of every token",
             aq_model_folder_architecture(e->local->folder));
    return false;
}

/* The first of: what is asked, the run's, the model's own, those of tasks.def that fit. */
static enum aq_status choose_task(struct evaluation *e)
{
    char why[TEXT_BYTES], other[TEXT_BYTES];
    const char *name;
    e->task = e->asked->task ? e->asked->task : e->local->job ? e->local->job->model.task : NULL;
    if (e->task && !aq_task_find(e->task))
        return aq_fail(AQ_INVAL, "eval", "there is no task '%s' (aqpipe help keys: model.task)", e->task);
    bool found = fits(e, e->task, why, sizeof why);
    for (uint32_t i = 0; !found && !e->task && (name = aq_task_name(i)) != NULL; i++) {
        if (!fits(e, name, other, sizeof other)) continue;
        e->task = name;
        found = true;
    }
    if (!found)
        return aq_fail(AQ_MISMATCH, "eval", "%s on data of kind %s: %s", e->local->asked.path, e->config.kind, why);
    const char *task = e->task ? e->task : aq_model_task(e->local->model.kind);
    e->config.field = aq_task_field(aq_task_find(task));
    return AQ_OK;
}

static enum aq_status open_data(struct evaluation *e)
{
    struct aq_tokenizer *tokenizer = NULL;
    if (!aq_model_tokens(e->local->model.kind)) AQ_TRY(aq_local_tokenizer(e->local, &tokenizer));
    e->config.tokenizer = tokenizer;
    e->config.tokenizer_kind = e->local->tokenizer_kind;
    e->config.tokenizer_path = e->local->tokenizer_path;
    if (!e->config.chat) e->config.chat = e->local->asked.path;
    const enum aq_status status = aq_dataset_open(&e->config, &e->dataset);
    if (status == AQ_OK) e->places = aq_dataset_tokens(e->dataset);
    aq_tokenizer_close(tokenizer);
    return status;
}

static enum aq_status open_model(struct evaluation *e)
{
    const struct aq_job *job = e->local->job;
    const uint32_t vocabulary = aq_dataset_vocabulary(e->dataset), outputs = aq_dataset_outputs(e->dataset);
    uint32_t labels = e->local->model.labels;
    if (!labels && job) labels = job->model.config.labels ? job->model.config.labels : job->facts.labels;
    if (!labels && vocabulary && vocabulary != outputs) labels = outputs;
    if (vocabulary && vocabulary != outputs && outputs > labels)
        return aq_fail(AQ_MISMATCH, "eval", "the data has %u labels, %s has %u", outputs, e->local->asked.path, labels);
    uint64_t parts;
    const struct aq_asked_size size = {.task = e->task,
                                       .labels = labels,
                                       .B = e->B,
                                       .T = e->places,
                                       .lengths = aq_dataset_lengths(e->dataset) != NULL,
                                       .parts = aq_dataset_parts(e->dataset, &parts) != NULL};
    AQ_TRY(aq_local_load(e->local, &size));
    AQ_TRY(AQ_NEW(e->B, &e->ids));
    e->batch.sample_ids = e->ids;
    AQ_TRY(AQ_NEW((size_t)e->B * e->places, &e->starts));
    e->batch.field_count = aq_dataset_fields(e->config.kind, e->places, &e->config.image, e->batch.fields);
    for (uint32_t f = 0; f < e->batch.field_count; f++)
        AQ_TRY(aq_alloc((size_t)e->B * e->batch.fields[f].count * AQ_FIELD_BYTES, &e->batch.fields[f].values));
    return AQ_OK;
}

static enum aq_status measure(struct evaluation *e)
{
    const uint64_t all = aq_dataset_count(e->dataset), begin = aq_clock_ns();
    const uint32_t *lengths = aq_dataset_lengths(e->dataset), *parts;
    uint64_t part_count, part = 0;
    const bool shown = !e->asked->quiet && !e->asked->json && isatty(STDERR_FILENO);
    const struct aq_stage_input input = {.batch = &e->batch, .evaluate = true, .loss_factor = 1};
    parts = aq_dataset_parts(e->dataset, &part_count);
    if (parts) e->batch.starts = e->starts;
    for (uint64_t first = 0; first < all; first += e->B) {
        struct aq_stage_loss loss = {0};
        e->batch.samples = all - first < e->B ? (uint32_t)(all - first) : e->B;
        e->batch.lengths = lengths ? lengths + first : NULL;
        for (uint32_t i = 0; i < e->batch.samples; i++)
            AQ_TRY(aq_dataset_put(e->dataset, first + i, &e->batch, i));
        for (uint32_t i = 0; i < e->batch.samples; i++)
            e->ids[i] = first + i;
        for (uint32_t i = 0; parts && i < e->batch.samples; i++) {
            const uint64_t from = part;
            for (uint32_t left = lengths[first + i]; left > 0; part++)
                left -= parts[part];
            aq_dataset_starts(parts + from, part - from, e->places, e->starts + (size_t)i * e->places);
        }
        AQ_TRY(aq_local_forward(e->local, &input, &loss));
        aq_task_add(&e->total, &loss);
        if (shown) fprintf(stderr, "\raqpipe: %" PRIu64 " of %" PRIu64 " samples", first + e->batch.samples, all);
    }
    if (shown) fputs("\n", stderr);
    e->seconds = (double)(aq_clock_ns() - begin) * 1e-9;
    return AQ_OK;
}

static enum aq_status tell(const struct evaluation *e)
{
    const struct aq_task *task = aq_stage_task(e->local->stage);
    const uint64_t samples = aq_dataset_count(e->dataset);
    struct aq_text text = {0};
    char codec[CODEC_BYTES];
    const char *name;
    bool higher;
    aq_local_codec_text(e->local, codec, sizeof codec);
    if (e->asked->json) {
        json_t *object =
            json_pack("{s:s, s:I, s:i}", "model", e->local->asked.path, "samples", (json_int_t)samples, "T", (int)e->T);
        if (object) aq_heldout_say(object, task, &e->total);
        if (object) json_object_set_new(object, "codec", json_string(codec));
        if (object) json_object_set_new(object, "seconds", aq_control_number(e->seconds));
        const enum aq_status status = aq_json_text(object, JSON_COMPACT, &text);
        json_decref(object);
        if (status == AQ_OK) (void)(aq_out_raw(aq_text_of(&text)) && aq_out_raw("\n"));
        aq_text_deinit(&text);
        return status;
    }
    aq_out("loss %.6f", e->total.targets ? e->total.sum / (double)e->total.targets : (double)NAN);
    for (uint32_t i = 0; (name = aq_task_metric(task, i, &higher)) != NULL; i++)
        aq_out(", %s %.4f", name, aq_task_value(task, i, &e->total));
    aq_out("; %" PRIu64 " targets of %" PRIu64 " samples", e->total.targets, samples);
    if (!aq_model_tokens(e->local->model.kind)) aq_out(" of %u tokens", e->T);
    aq_out(", %.2f s; codec %s\n", e->seconds, codec);
    return AQ_OK;
}

static enum aq_status run_eval(const struct asked *asked)
{
    struct evaluation e = {.asked = asked};
    enum aq_status status;
    AQ_TRY_GOTO(aq_local_open(&asked->model, &e.local), out);
    AQ_TRY_GOTO(choose_data(&e), out);
    AQ_TRY_GOTO(choose_task(&e), out);
    AQ_TRY_GOTO(open_data(&e), out);
    AQ_TRY_GOTO(open_model(&e), out);
    AQ_TRY_GOTO(measure(&e), out);
    status = tell(&e);
out:
    for (uint32_t f = 0; f < e.batch.field_count; f++)
        aq_free(e.batch.fields[f].values);
    aq_free(e.ids);
    aq_free(e.starts);
    aq_text_deinit(&e.variables);
    aq_text_deinit(&e.fields);
    aq_dataset_close(e.dataset);
    aq_local_close(e.local);
    return status;
}

int aq_command_eval(int argc, char **argv)
{
    struct asked asked = {.begin = -1};
    struct aq_arguments rest;
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count != 1) return aq_options_wrong(line.name, "eval needs one model folder");
    asked.model.path = rest.of[0];
    return aq_exit_of(run_eval(&asked));
}
