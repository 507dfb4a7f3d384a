/*
 * model_folder.c -- opens a published folder: finds the model that reads its config.json. See the header.
 */
#include "model_folder_private.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataset_file.h"
#include "model_wrapper.h"
#include "python_json.h"
#include "stage_model.h"
#include "stages/weights.h"

#define AREA "folder"

enum { CONFIG_BYTES_MAX = 4 << 20, PATH_BYTES = MODEL_FOLDER_PATH_BYTES, KNOWN_BYTES = 2048, NAME_SHOWN = 64 };

bool aq_model_folder_is(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

void aq_model_folder_known(char *text, size_t bytes)
{
    const struct stage_model *model;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t m = 0; (model = stage_model_at(m)) != NULL; m++) {
        const char *type = "";
        for (const struct stage_published *row = model->published; row && row->type && used + 1 < bytes; row++) {
            if (strcmp(row->type, type) == 0) continue;
            const int count = snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", row->type);
            used += count > 0 ? (size_t)count : 0;
            type = row->type;
        }
    }
}

/* The row that reads this type and architecture (NULL: any, the type's first), and whose it is. */
static const struct stage_model *find_model(const char *type, const char *architecture,
                                            const struct stage_published **out)
{
    const struct stage_model *model;
    for (uint32_t m = 0; (model = stage_model_at(m)) != NULL; m++)
        for (const struct stage_published *row = model->published; row && row->type; row++) {
            if (strcmp(row->type, type) != 0) continue;
            if (architecture && strcmp(row->architecture, architecture) != 0) continue;
            *out = row;
            return model;
        }
    return NULL;
}

static enum aq_status unknown(const struct aq_model_folder *folder, const char *type, const char *architecture)
{
    char known[KNOWN_BYTES], name[4 * NAME_SHOWN], of[4 * NAME_SHOWN];
    aq_printable_text(architecture ? architecture : type, name, NAME_SHOWN);
    aq_printable_text(type, of, NAME_SHOWN);
    aq_model_folder_known(known, sizeof known);
    return aq_fail(AQ_MISMATCH, AREA,
                   "%s: %s (%s) is not among the models that can be trained (docs/MODELS.md): %s", folder->file, name,
                   of, known);
}

static enum aq_status read_model(struct aq_model_folder *folder)
{
    const struct config_json outer = {.file = folder->file, .within = "", .object = folder->config};
    folder->text = model_wrapper_text(folder->config);
    const struct config_json inner = {.file = folder->file, .within = "text_config.", .object = folder->text};
    const struct config_json config = folder->text ? inner : outer;
    const struct stage_published *row;
    const json_t *architectures = json_object_get(config.object, "architectures");
    const char *type, *architecture = json_string_value(json_array_get(architectures, 0));
    AQ_TRY(config_json_text_or(&config, "model_type", NULL, &type));
    if (!type) return config_json_refuse(&config, "model_type", "the model's type, as \"gpt2\"");
    if (json_array_size(architectures) > 0 && !architecture)
        return config_json_refuse(&config, "architectures", "a list of names");
    const struct stage_model *model = find_model(type, architecture, &row);
    if (!model) return unknown(folder, type, architecture);
    if (config_json_has(&outer, "quantization_config"))
        return config_json_refuse(&outer, "quantization_config",
                                  "no such key (use the weights from before they were quantized)");
    folder->type = row->type;
    folder->architecture = row->architecture;
    aq_model_config_default(&folder->model, model->kind);
    AQ_TRY(model->read_config(&config, &folder->model));
    struct aq_error_hold why;
    aq_error_hold(&why);
    const enum aq_status status = aq_model_config_check(&folder->model);
    aq_error_release(&why);
    return status == AQ_OK ? AQ_OK : aq_fail(AQ_MISMATCH, AREA, "%s: %s", folder->file, why.text);
}

/* The object that a file holds, into *out: the caller's, also where it is refused. */
static enum aq_status read_object(const char *file, json_t **out)
{
    uint8_t *bytes = NULL;
    size_t count;
    json_error_t error;
    AQ_TRY(aq_file_read(AREA, file, CONFIG_BYTES_MAX, &bytes, &count));
    if (aq_file_check(AREA, file, bytes, count) != AQ_OK) {
        aq_free(bytes);
        return AQ_CORRUPT;
    }
    *out = python_json_load((const char *)bytes, count, JSON_REJECT_DUPLICATES, &error);
    aq_free(bytes);
    if (!*out) return aq_fail(AQ_CORRUPT, AREA, "%s:%d:%d: %s", file, error.line, error.column, error.text);
    return json_is_object(*out) ? AQ_OK : aq_fail(AQ_CORRUPT, AREA, "%s: is not a JSON object", file);
}

static enum aq_status read_config_file(const char *path, struct aq_model_folder *folder)
{
    AQ_TRY(read_object(folder->file, &folder->config));
    AQ_TRY(read_model(folder));
    if (folder->model.tied == AQ_TIED_NO || !aq_weights_head_differs(path, &folder->model)) return AQ_OK;
    aq_log(AREA, 1,
           "%s has tied weights by its config.json, but its head differs from its embedding: both are read, as two "
           "tensors",
           folder->file);
    folder->model.tied = AQ_TIED_NO;
    return AQ_OK;
}

/* What the files of a folder without config.json are, by their names: an ending, and the remedy. */
static const struct {
    const char *ending, *remedy;
} strangers[] = {
    {".gguf", "GGUF files are not read: `hf download ORG/NAME --local-dir DIR` gets the model's own files"},
    {"adapter_config.json", "it holds adapters: name the folder of their base model here"},
    {".bin", "pickles are not read: `hf download ORG/NAME --local-dir DIR` gets config.json and .safetensors"},
    {".pt", "pickles are not read: `hf download ORG/NAME --local-dir DIR` gets config.json and .safetensors"},
    {".pth", "pickles are not read: `hf download ORG/NAME --local-dir DIR` gets config.json and .safetensors"},
    {".safetensors", "copy the config.json and the tokenizer's files of the same model next to it"}};

static bool ends_in(const char *name, const char *ending)
{
    const size_t bytes = strlen(name), end = strlen(ending);
    return bytes >= end && strcmp(name + bytes - end, ending) == 0;
}

/* Names the stranger that is first in the table, else the first file. */
static enum aq_status no_config(const char *path)
{
    enum { STRANGERS = sizeof strangers / sizeof *strangers };
    char found[256] = "", shown[NAME_SHOWN];
    size_t best = STRANGERS;
    DIR *folder = opendir(path);
    if (!folder) return aq_fail_errno(AREA, "%.512s: cannot be opened", path);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        size_t i = 0;
        if (entry->d_name[0] == '.') continue;
        while (i < STRANGERS && !ends_in(entry->d_name, strangers[i].ending))
            i++;
        if (i < best || !found[0]) snprintf(found, sizeof found, "%s", entry->d_name);
        if (i < best) best = i;
    }
    closedir(folder);
    if (!found[0])
        return aq_fail(AQ_NOTFOUND, AREA,
                       "%.512s: is an empty folder: `hf download ORG/NAME --local-dir %.512s` puts a model there", path,
                       path);
    return aq_fail(AQ_NOTFOUND, AREA, "%.512s: is not a model's folder: it has no config.json, but '%s'; %s", path,
                   aq_printable_text(found, shown, sizeof shown),
                   best < STRANGERS ? strangers[best].remedy
                                    : "`hf download ORG/NAME --local-dir DIR` makes a model's folder");
}

enum aq_status aq_model_folder_open(const char *path, struct aq_model_folder **out)
{
    struct stat about;
    struct aq_model_folder *folder;
    AQ_TRY(AQ_NEW(1, &folder));
    enum aq_status status = AQ_OK;
    const size_t length = strlen(path), end = length > 1 && path[length - 1] == '/' ? length - 1 : length;
    const int bytes = snprintf(folder->file, sizeof folder->file, "%.*s/config.json", (int)end, path);
    if (!aq_model_folder_is(path) && aq_model_hub_name(path))
        status = aq_fail(AQ_NOTFOUND, AREA,
                         "%.512s: there is no such folder; if it is a model's name: `hf download %.200s --local-dir "
                         "%.200s` gets it, or write hf://%.200s for the one in the Hugging Face cache",
                         path, path, strchr(path, '/') + 1, path);
    else if (stat(path, &about) != 0)
        status = aq_fail(AQ_NOTFOUND, AREA, "%.512s: there is no such folder", path);
    else if (!S_ISDIR(about.st_mode))
        status = aq_fail(AQ_INVAL, AREA, "%.512s: is a file; name the folder with the model's config.json", path);
    else if (bytes < 0 || (size_t)bytes >= sizeof folder->file)
        status = aq_fail(AQ_INVAL, AREA, "the path %.80s... is too long", path);
    else if (access(folder->file, F_OK) != 0 && errno == ENOENT)
        status = no_config(path);
    if (status == AQ_OK) status = read_config_file(path, folder);
    if (status == AQ_OK)
        *out = folder;
    else
        aq_model_folder_close(folder);
    return status;
}

void aq_model_folder_close(struct aq_model_folder *folder)
{
    if (!folder) return;
    json_decref(folder->config);
    json_decref(folder->text);
    aq_free(folder);
}

const struct aq_model_config *aq_model_folder_model(const struct aq_model_folder *folder)
{
    return &folder->model;
}

const char *aq_model_folder_type(const struct aq_model_folder *folder)
{
    return folder->type;
}

const char *aq_model_folder_architecture(const struct aq_model_folder *folder)
{
    return folder->architecture;
}

bool aq_model_folder_classifies(const struct aq_model_folder *folder)
{
    return folder->model.labels > 0 || strstr(folder->architecture, "ForSequenceClassification") != NULL;
}

/* The token, or the list of them, of one key: *count tokens that the model has, at most `room`. */
static enum aq_status read_tokens(const struct config_json *config, uint32_t vocabulary, const char *key, uint32_t room,
                                  int32_t *tokens, uint32_t *count)
{
    const json_t *value = json_object_get(config->object, key);
    const bool list = json_is_array(value);
    const size_t all = list ? json_array_size(value) : 1;
    *count = 0;
    for (size_t i = 0; i < all; i++) {
        const json_t *token = list ? json_array_get(value, i) : value;
        if (!json_is_integer(token)) return config_json_refuse(config, key, "a token's number, or a list of them");
        const json_int_t number = json_integer_value(token);
        if (number < 0 || number >= (json_int_t)vocabulary) continue;
        if (*count == room) return config_json_refuse(config, key, "at most %u tokens", room);
        tokens[(*count)++] = (int32_t)number;
    }
    return AQ_OK;
}

enum aq_status model_folder_generation(const struct aq_model_folder *folder, char file[MODEL_FOLDER_PATH_BYTES + 32],
                                       json_t **out)
{
    const size_t before = strlen(folder->file) - strlen("config.json");
    snprintf(file, MODEL_FOLDER_PATH_BYTES + 32, "%.*sgeneration_config.json", (int)before, folder->file);
    return access(file, F_OK) == 0 ? read_object(file, out) : AQ_OK;
}

enum aq_status aq_model_folder_marks(const struct aq_model_folder *folder, struct aq_model_marks *out)
{
    static const char begins[] = "bos_token_id", ends[] = "eos_token_id";
    const struct config_json config = {.file = folder->file, .within = "", .object = folder->config};
    const uint32_t vocabulary = folder->model.vocabulary;
    struct aq_model_marks marks = {.begin = -1};
    char file[MODEL_FOLDER_PATH_BYTES + 32];
    json_t *object = NULL;
    uint32_t count = 0;
    enum aq_status status;
    AQ_TRY_GOTO(model_folder_generation(folder, file, &object), out);
    const struct config_json generation = {.file = file, .within = "", .object = object};
    const struct config_json *of = config_json_has(&generation, begins) ? &generation : &config;
    if (config_json_has(of, begins)) AQ_TRY_GOTO(read_tokens(of, vocabulary, begins, 1, &marks.begin, &count), out);
    of = config_json_has(&generation, ends) ? &generation : &config;
    if (config_json_has(of, ends))
        AQ_TRY_GOTO(read_tokens(of, vocabulary, ends, AQ_MODEL_ENDS_MAX, marks.ends, &marks.end_count), out);
    *out = marks;
out:
    json_decref(object);
    return status;
}
