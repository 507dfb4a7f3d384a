/*
 * command_import.c -- `aqpipe import FOLDER`: prints a published folder's model, whether it can be trained here, and a
 * manifest to start with. It writes nothing and holds no weights: headers are read, and with --values the values, piece
 * by piece.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "json_text.h"
#include "keys.h"
#include "options.h"
#include "out.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "stages/adapter_folder.h"
#include "stages/dataset.h"
#include "stages/model_folder.h"
#include "stages/weights.h"

struct asked {
    bool manifest, values, json;
    const char *adapter;
};

static const struct aq_option options[] = {
    AQ_ROW(FLAG, struct asked, manifest, "manifest", NULL, "print only a manifest that starts from this model"),
    AQ_ROW(FLAG, struct asked, values, "values", NULL, "also read every value: none may be NaN or infinite"),
    AQ_ROW(TEXT, struct asked, adapter, "adapter", "FOLDER",
           "also check adapters of PEFT (lora.weights) against this model"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object on standard output; errors, too"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe import", "FOLDER",
    "Describes a published model folder: architecture, sizes, which tensors are used, unused and missing, the "
    "tokenizer, and whether it can be trained here. Nothing is copied: a job names the folder itself (model.weights), "
    "and each stage reads its own tensors from it.",
    options,
    "Exit status: 0 it can be trained; 1 it cannot (the reason is printed); 2 wrong command line or path.\n"
    "Examples:\n"
    "  aqpipe import gpt2\n"
    "  aqpipe import gpt2 --manifest > job.yaml\n"
    "  aqpipe import gpt2 --adapter adapter\n"};

enum { NAMES_SHOWN = 8, USES = AQ_WEIGHTS_WRONG + 1, TYPES_MAX = 8, T_MAX = 512 };

/* In the order of enum aq_weights_use. */
static const char *const use_words[USES] = {"used", "shared", "ignored", "untrained", "unused", "missing", "wrong"};

struct look {
    struct aq_model_folder *folder;
    struct aq_weights *weights;
    json_t *uses[USES]; /* lists of names; of what is wrong, the reasons */
    uint32_t counts[USES];
    struct {
        const char *type;
        uint64_t values;
    } types[TYPES_MAX]; /* of what is used */
    uint32_t type_count;
    uint64_t values;
    const char *tokenizer; /* a kind that reads the folder, or NULL */
    uint32_t tokens;
    struct aq_lora_config lora; /* of the adapters; rank 0: none were asked for          */
    uint32_t adapted;           /* layers that have one                                  */
    char problem[1024];         /* why it cannot be trained; "": it can */
};

static void add_type(struct look *look, const char *type, uint64_t values)
{
    uint32_t i = 0;
    while (i < look->type_count && strcmp(look->types[i].type, type) != 0)
        i++;
    if (i == TYPES_MAX) return;
    if (i == look->type_count) look->types[look->type_count++].type = type;
    look->types[i].values += values;
}

static void tell(void *context, const struct aq_weights_found *found)
{
    struct look *look = context;
    look->counts[found->use]++;
    json_array_append_new(look->uses[found->use],
                          json_string(found->use == AQ_WEIGHTS_WRONG ? found->problem : found->name));
    if (found->problem[0] && !look->problem[0])
        snprintf(look->problem, sizeof look->problem, "%s: %s", found->file, found->problem);
    if (found->use != AQ_WEIGHTS_USED) return;
    look->values += found->count;
    add_type(look, found->type, found->count);
}

static enum aq_status check_values(struct look *look)
{
    const uint32_t count = aq_weights_count(look->weights);
    for (uint32_t i = 0; i < count && !look->problem[0]; i++) {
        struct aq_weights_info info;
        bool finite;
        uint64_t place;
        float value;
        aq_weights_info(look->weights, i, &info);
        AQ_TRY(aq_weights_finite(look->weights, i, &finite, &place, &value));
        if (isatty(STDERR_FILENO)) fprintf(stderr, "\raqpipe: %u of %u tensors read", i + 1, count);
        if (!finite)
            snprintf(look->problem, sizeof look->problem, "%s: %s: value %llu of %llu is %s", info.file, info.name,
                     (unsigned long long)place, (unsigned long long)info.count, isnan(value) ? "NaN" : "infinite");
    }
    if (isatty(STDERR_FILENO)) fputs("\n", stderr);
    return AQ_OK;
}

/* The kind that a job would take. */
static void find_tokenizer(struct look *look, const char *path)
{
    struct aq_tokenizer *tokenizer;
    look->tokenizer = aq_tokenizer_of_folder(path);
    if (!look->tokenizer) return;
    if (aq_tokenizer_open(look->tokenizer, path, &tokenizer) == AQ_OK) {
        look->tokens = aq_tokenizer_vocabulary(tokenizer);
        aq_tokenizer_close(tokenizer);
    } else if (!look->problem[0])
        snprintf(look->problem, sizeof look->problem, "the tokenizer (%s) cannot be read: %.900s", look->tokenizer,
                 aq_error_text());
}

/* Adapters of another base, or that are not computed here, are a problem like any other. */
static enum aq_status look_at_adapter(const char *path, struct look *look)
{
    char targets[1 << 16], which, of[AQ_TENSOR_NAME_MAX];
    struct aq_adapter_folder *folder;
    AQ_TRY(aq_adapter_folder_open(path, &folder));
    const struct aq_weights *weights = aq_adapter_folder_weights(folder);
    look->lora = *aq_adapter_folder_lora(folder);
    for (uint32_t i = 0; i < aq_weights_count(weights); i++) {
        struct aq_weights_info info;
        aq_weights_info(weights, i, &info);
        look->adapted += aq_tensor_adapts(info.name, &which, of) && which == 'A';
    }
    struct aq_model_config model = *aq_model_folder_model(look->folder);
    if (!aq_adapter_folder_ties(folder, &model)) model.tied = AQ_TIED_NO;
    look->lora.targets = look->lora.ranks = look->lora.alphas = look->lora.saved = NULL; /* the folder's */
    const enum aq_status status = aq_adapter_folder_match(folder, &model, false, targets, sizeof targets);
    if (status == AQ_MISMATCH && !look->problem[0])
        snprintf(look->problem, sizeof look->problem, "%.1000s", aq_error_text());
    aq_adapter_folder_close(folder);
    return status == AQ_MISMATCH ? AQ_OK : status;
}

static enum aq_status look_at(const char *path, const struct asked *asked, struct look *look)
{
    for (int use = 0; use < USES; use++)
        look->uses[use] = json_array();
    AQ_TRY(aq_model_folder_open(path, &look->folder));
    AQ_TRY(aq_weights_open(path, &look->weights));
    const struct aq_model_config *model = aq_model_folder_model(look->folder);
    AQ_TRY(aq_weights_survey(look->weights, model, tell, look));
    find_tokenizer(look, path);
    if (asked->adapter) AQ_TRY(look_at_adapter(asked->adapter, look));
    return asked->values ? check_values(look) : AQ_OK;
}

/* ---- what is said ---- */

/* "a, b, c, ..." */
static void names_text(const json_t *names, struct aq_text *text)
{
    const size_t count = json_array_size(names);
    for (size_t i = 0; i < count && i < NAMES_SHOWN; i++)
        aq_text_add(text, "%s%s", i ? ", " : "", json_string_value(json_array_get(names, i)));
    if (count > NAMES_SHOWN) aq_text_add(text, ", and %zu more", count - NAMES_SHOWN);
}

/* "124.4 million", "48416" */
static void count_text(uint64_t count, struct aq_text *text)
{
    if (count < 1000000)
        aq_text_add(text, "%llu", (unsigned long long)count);
    else
        aq_text_add(text, "%.1f million", (double)count * 1e-6);
}

static void print_text(const char *path, const struct look *look)
{
    const struct aq_model_config *model = aq_model_folder_model(look->folder);
    struct aq_text text = {0};
    char about[256];
    aq_model_describe(model, about, sizeof about);
    aq_text_add(&text, "%s: %s (%s)\n", path, aq_model_folder_type(look->folder),
                aq_model_folder_architecture(look->folder));
    aq_text_add(&text, "model      %s: %s\n", model->kind, about);
    if (model->context) aq_text_add(&text, "context    at most %u tokens (train.T)\n", model->context);
    aq_text_add(&text, "weights    ");
    for (uint32_t i = 0; i < look->type_count; i++) {
        aq_text_add(&text, "%s", i ? ", " : "");
        count_text(look->types[i].values, &text);
        aq_text_add(&text, " values of %s", look->types[i].type);
    }
    aq_text_add(&text, "\ntensors    ");
    for (int use = 0; use < USES; use++)
        if (use == AQ_WEIGHTS_USED || look->counts[use])
            aq_text_add(&text, "%s%u %s", use ? ", " : "", look->counts[use], use_words[use]);
    aq_text_add(&text, "\n");
    for (int use = AQ_WEIGHTS_UNTRAINED; use < USES; use++) {
        if (!look->counts[use]) continue;
        aq_text_add(&text, "%-11s", use_words[use]);
        names_text(look->uses[use], &text);
        aq_text_add(&text, "\n");
    }
    if (look->tokens)
        aq_text_add(&text, "tokenizer  %s, %u tokens\n", look->tokenizer, look->tokens);
    else
        aq_text_add(&text, "tokenizer  none that can be read here: name one (data.tokenizer)\n");
    if (look->lora.rank)
        aq_text_add(&text, "adapters   %u, of rank %u, alpha %g%s%s%s\n", look->adapted, look->lora.rank,
                    (double)look->lora.alpha, look->lora.rslora ? " / sqrt(rank)" : "",
                    look->lora.dora ? ", lengths of rows (DoRA)" : "", look->problem[0] ? "" : ", of this model");
    aq_text_add(&text, "trains     %s%s\n", look->problem[0] ? "no: " : "yes", look->problem);
    aq_out_text(aq_text_of(&text));
    aq_text_deinit(&text);
}

static json_t *value_json(const struct aq_model_key *key, const void *from)
{
    const struct aq_factors *factors = from;
    if (key->kind == AQ_MODEL_BOOL) return json_boolean(*(const bool *)from);
    if (key->kind == AQ_MODEL_TIED) return json_boolean(*(const enum aq_tied *)from != AQ_TIED_NO);
    if (key->kind == AQ_MODEL_STEM)
        return json_string(*(const uint32_t *)from == AQ_STEM_IMAGENET ? "imagenet" : "cifar");
    if (key->kind == AQ_MODEL_F32) return json_real((double)*(const float *)from);
    if (key->kind != AQ_MODEL_FACTORS) return json_integer(*(const uint32_t *)from);
    json_t *list = json_array();
    for (uint32_t i = 0; i < factors->count; i++)
        json_array_append_new(list, json_real((double)factors->of[i]));
    return list;
}

static void print_json(const char *path, const struct look *look)
{
    const struct aq_model_config *model = aq_model_folder_model(look->folder);
    struct aq_text text = {0};
    char about[256];
    uint32_t count;
    const struct aq_model_key *keys = aq_model_keys(model->kind, &count);
    json_t *sizes = json_object(), *tensors = json_object(), *types = json_object();
    for (uint32_t i = 0; i < count; i++)
        json_object_set_new(sizes, strrchr(keys[i].name, '.') + 1,
                            value_json(&keys[i], (const char *)model + keys[i].offset));
    for (int use = 0; use < USES; use++)
        json_object_set(tensors, use_words[use], look->uses[use]);
    for (uint32_t i = 0; i < look->type_count; i++)
        json_object_set_new(types, look->types[i].type, json_integer((json_int_t)look->types[i].values));
    aq_model_describe(model, about, sizeof about);
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:o, s:o, s:s?, s:I, s:b, s:s?}", "folder", path, "type",
                  aq_model_folder_type(look->folder), "architecture", aq_model_folder_architecture(look->folder),
                  "kind", model->kind, "about", about, "sizes", sizes, "values", (json_int_t)look->values, "types",
                  types, "tensors", tensors, "tokenizer", look->tokenizer, "tokens", (json_int_t)look->tokens, "trains",
                  !look->problem[0], "problem", look->problem[0] ? look->problem : NULL);
    if (look->lora.rank) {
        json_t *adapter = json_pack("{s:I, s:I, s:f, s:b, s:b}", "layers", (json_int_t)look->adapted, "rank",
                                    (json_int_t)look->lora.rank, "alpha", (double)look->lora.alpha, "rslora",
                                    look->lora.rslora, "dora", look->lora.dora);
        json_object_set_new(object, "adapter", adapter);
    }
    if (aq_json_text(object, JSON_COMPACT, &text) == AQ_OK) (void)(aq_out_raw(aq_text_of(&text)) && aq_out_raw("\n"));
    json_decref(object);
    aq_text_deinit(&text);
}

/* The manifest leaves out keys that the folder sets. */
static void print_manifest(const char *path, const char *adapter, const struct look *look)
{
    const struct aq_model_config *model = aq_model_folder_model(look->folder);
    struct aq_text text = {0};
    char real[PATH_MAX];
    const uint32_t T = model->context && model->context < T_MAX ? model->context : T_MAX;
    if (!realpath(path, real)) snprintf(real, sizeof real, "%s", path);
    aq_text_add(&text,
                "# Begins as %s (%s). Every size comes from the folder's config.json.\n"
                "# `aqpipe plan` checks it, `aqpipe help keys` has every key, docs/GUIDE.md what to choose.\n"
                "job:\n  name: fine-tune\nmodel:\n  weights: ",
                aq_model_folder_type(look->folder), aq_model_folder_architecture(look->folder));
    aq_key_quote(real, &text);
    aq_text_add(&text, "\ndata:\n");
    if (!look->tokenizer)
        aq_text_add(&text, "  # the folder has no tokenizer that is read here: name one (tokenizer, tokenizer_path)\n");
    aq_text_add(&text, "  train: train.txt          # your text: a file, or a list of them\n"
                       "  # heldout: heldout.txt    # what it is measured on\n"
                       "train:\n");
    if (!aq_model_tokens(model->kind)) aq_text_add(&text, "  T: %u\n", T);
    aq_text_add(&text, "  batch: 8\n  micro_batch: 1\n  epochs: 3\n  lr: 5e-5\n  warmup_steps: 20\n  clip: 1\n"
                       "pipeline:\n  stages: 2                 # one a machine or GPU; entries say where\n"
                       "edges:\n  forward: {codec: aqsgd, bits: 4}\n  backward: {codec: directq, bits: 8}\n"
                       "output:\n  path: run\n");
    if (adapter) {
        if (!realpath(adapter, real)) snprintf(real, sizeof real, "%s", adapter);
        aq_text_add(&text, "lora:                       # rank, alpha and which layers are the folder's\n  weights: ");
        aq_key_quote(real, &text);
        aq_text_add(&text, "\n");
    }
    aq_out_text(aq_text_of(&text));
    aq_text_deinit(&text);
}

int aq_command_import(int argc, char **argv)
{
    struct asked asked = {.json = false};
    struct aq_arguments rest;
    struct look look = {.tokenizer = NULL};
    const int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count != 1) return aq_options_wrong(line.name, "import needs one model folder");
    char hub[AQ_RUN_PATH_BYTES];
    if (aq_model_hub_is(rest.of[0])) {
        if (aq_model_hub_path(rest.of[0], hub, sizeof hub) != AQ_OK) return AQ_EXIT_USAGE;
        rest.of[0] = hub;
    }
    const enum aq_status status = look_at(rest.of[0], &asked, &look);
    if (status == AQ_OK && asked.manifest && !look.problem[0])
        print_manifest(rest.of[0], asked.adapter, &look);
    else if (status == AQ_OK && asked.json)
        print_json(rest.of[0], &look);
    else if (status == AQ_OK && !asked.manifest)
        print_text(rest.of[0], &look);
    else if (status == AQ_OK)
        (void)aq_fail(AQ_MISMATCH, "import", "%s", look.problem);
    for (int use = 0; use < USES; use++)
        json_decref(look.uses[use]);
    aq_weights_close(look.weights);
    aq_model_folder_close(look.folder);
    return status == AQ_OK && look.problem[0] ? AQ_EXIT_FAILED : aq_exit_of(status);
}
