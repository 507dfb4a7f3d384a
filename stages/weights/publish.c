/* publish.c -- asks the model's and the tokenizer's tables for what they publish. See the header. */
#include "stages/publish.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dataset_file.h"
#include "stage_model.h"
#include "tokenizer.h"

#define AREA "publish"

enum { TOKENIZER_FILE_BYTES_MAX = 256 << 20, CONFIG_BYTES_MAX = 4 << 20, PATH_BYTES = 4096, NUMBER_BYTES = 32 };

void aq_publish_name(const struct aq_model_config *model, const char *tensor, char *out, size_t bytes)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    AQ_ASSERT(ops);
    ops->publish_name(tensor, out, bytes);
}

enum aq_status aq_publish_turned(const struct aq_model_config *model, const char *const *names, uint32_t count,
                                 bool *turned)
{
    const struct aq_stage_config whole = {
        .model = *model, .layer_end = aq_model_layers(model), .B = 1, .T = model->context, .slots = 1};
    struct layer_tensor *tensors;
    uint32_t all;
    AQ_TRY(stage_tensors(&whole, &tensors, &all, NULL));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t t = 0;
        while (t < all && strcmp(tensors[t].info.name, names[i]) != 0)
            t++;
        turned[i] = t < all && tensors[t].info.turned;
    }
    aq_free(tensors);
    return AQ_OK;
}

enum aq_status aq_publish_out_in(const struct aq_model_config *model, const char *const *names, uint32_t count,
                                 bool *out_in)
{
    const struct aq_stage_config whole = {.model = *model,
                                          .layer_end = aq_model_layers(model),
                                          .B = 1,
                                          .T = model->context,
                                          .slots = 1,
                                          .lora = {.rank = 1, .alpha = 1}};
    struct layer_tensor *tensors;
    uint32_t all;
    char which, of[AQ_TENSOR_NAME_MAX];
    AQ_TRY(stage_tensors(&whole, &tensors, &all, NULL));
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t t = 0; t < all; t++)
            if (aq_tensor_adapts(tensors[t].info.name, &which, of) && strcmp(of, names[i]) == 0)
                out_in[i] = tensors[t].info.adapts_out_in;
    aq_free(tensors);
    return AQ_OK;
}

/* ---- config.json ---- */

/* As transformers calls the type. NULL: none that it loads. */
static const char *type_word(const char *type)
{
    static const char *const words[][2] = {{"F32", "float32"}, {"BF16", "bfloat16"}, {"F16", "float16"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i][0], type) == 0) return words[i][1];
    return NULL;
}

static enum aq_status read_config(const char *folder, json_t **out)
{
    char path[PATH_BYTES];
    uint8_t *bytes;
    size_t count;
    json_error_t error;
    const int length = snprintf(path, sizeof path, "%s/config.json", folder);
    if (length < 0 || (size_t)length >= sizeof path)
        return aq_fail(AQ_INVAL, AREA, "the path %.80s... is too long", folder);
    AQ_TRY(aq_file_read(AREA, path, CONFIG_BYTES_MAX, &bytes, &count));
    *out = json_loadb((const char *)bytes, count, JSON_REJECT_DUPLICATES, &error);
    aq_free(bytes);
    if (!*out) return aq_fail(AQ_CORRUPT, AREA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    if (json_is_object(*out)) return AQ_OK;
    json_decref(*out);
    *out = NULL;
    return aq_fail(AQ_CORRUPT, AREA, "%s: is no JSON object", path);
}

/* A number that a model has as a float: as short as it was written, 0.02 and not 0.0199999995529652. */
static json_t *shortest(const json_t *value)
{
    const double number = json_real_value(value);
    char text[NUMBER_BYTES];
    if (!json_is_real(value) || (double)(float)number != number) return json_incref((json_t *)(uintptr_t)value);
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if ((float)strtod(text, NULL) == (float)number) break;
    }
    return json_real(strtod(text, NULL));
}

/* The model's own keys over those of where it began; how tokens begin and end is the tokenizer's that is carried. */
static void merge_config(json_t *carried, const json_t *own, const char *type)
{
    static const char *const stay[] = {"bos_token_id", "eos_token_id"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)own, key, value)
    {
        const json_t *there = json_object_get(carried, key);
        bool keep = false;
        for (size_t i = 0; i < sizeof stay / sizeof stay[0]; i++)
            keep = keep || (strcmp(key, stay[i]) == 0 && there && !json_is_null(there));
        if (!keep) json_object_set_new(carried, key, shortest(value));
    }
    const bool named = json_object_get(carried, "dtype") != NULL; /* by its newer name */
    if (named) json_object_del(carried, "torch_dtype");
    json_object_set_new(carried, named ? "dtype" : "torch_dtype", json_string(type));
}

static enum aq_status write_json(const json_t *json, const char *name, aq_publish_file *file, void *context)
{
    const size_t flags = JSON_INDENT(2) | JSON_SORT_KEYS, count = json_dumpb(json, NULL, 0, flags);
    void *memory;
    if (count == 0) return aq_fail(AQ_NOMEM, AREA, "no memory for %s", name);
    AQ_TRY(aq_alloc(count + 1, &memory));
    char *text = memory;
    json_dumpb(json, text, count, flags);
    text[count] = '\n';
    const enum aq_status status = file(context, name, text, count + 1);
    aq_free(text);
    return status;
}

enum aq_status aq_publish_model(const struct aq_model_config *model, const struct aq_publish_about *about,
                                aq_publish_file *file, void *context)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    const char *type = type_word(about->type);
    size_t count;
    json_t *own = NULL, *config = NULL;
    void *json;
    if (!ops) return aq_fail(AQ_INVAL, AREA, "there is no model of kind %s", model->kind ? model->kind : "");
    if (!type) return aq_fail(AQ_INVAL, AREA, "weights of type %s are not published", about->type);
    AQ_TRY(aq_alloc(PUBLISHED_CONFIG_BYTES, &json));
    enum aq_status status = ops->publish_config(model, about->tied, about->end_of_text, json, &count);
    if (status == AQ_OK) own = json_loadb(json, count, 0, NULL);
    aq_free(json);
    AQ_TRY(status);
    AQ_ASSERT(own);
    if (about->from)
        status = read_config(about->from, &config);
    else
        config = json_object();
    if (status == AQ_OK) {
        merge_config(config, own, type);
        status = write_json(config, "config.json", file, context);
    }
    json_decref(own);
    json_decref(config);
    return status;
}

/* ---- other files ---- */

static enum aq_status carry_file(const char *from, const char *name, aq_publish_file *file, void *context)
{
    char path[PATH_BYTES];
    uint8_t *bytes;
    size_t count;
    const int length = snprintf(path, sizeof path, "%s/%s", from, name);
    if (length < 0 || (size_t)length >= sizeof path || access(path, F_OK) != 0) return AQ_OK;
    AQ_TRY(aq_file_read(AREA, path, TOKENIZER_FILE_BYTES_MAX, &bytes, &count));
    const enum aq_status status = file(context, name, (const char *)bytes, count);
    aq_free(bytes);
    return status;
}

static const struct {
    const char *name;
    bool tokenizer;
} carried[] = {{"generation_config.json", false},
               {"LICENSE", false},
               {"LICENSE.txt", false},
               {"LICENSE.md", false},
               {"NOTICE", false},
               {"tokenizer.json", true},
               {"tokenizer_config.json", true},
               {"special_tokens_map.json", true},
               {"added_tokens.json", true},
               {"vocab.json", true},
               {"merges.txt", true},
               {"vocab.txt", true},
               {"tokenizer.model", true},
               {"spm.model", true},
               {"spiece.model", true},
               {"sentencepiece.bpe.model", true},
               {"chat_template.jinja", true},
               {"chat_template.json", true}};

enum { CARRIED = sizeof carried / sizeof carried[0] };

const char *aq_publish_carried(uint32_t index)
{
    return index < CARRIED ? carried[index].name : NULL;
}

enum aq_status aq_publish_carry(const char *from, bool tokenizer, aq_publish_file *file, void *context)
{
    for (int i = 0; i < CARRIED; i++)
        if (tokenizer || !carried[i].tokenizer) AQ_TRY(carry_file(from, carried[i].name, file, context));
    return AQ_OK;
}

enum aq_status aq_publish_tokenizer(const char *kind, const char *path, uint32_t tokens, aq_publish_file *file,
                                    void *context)
{
    const struct aq_tokenizer_kind *ops = aq_tokenizer_kind_find(kind);
    char from[4096], settings[256];
    const char *name;
    if (!ops || !ops->published) return AQ_OK;
    for (uint32_t i = 0;; i++) {
        uint8_t *bytes;
        size_t count;
        AQ_TRY(ops->published(path, i, from, sizeof from, &name));
        if (!name) break;
        AQ_TRY(aq_file_read("publish", from, TOKENIZER_FILE_BYTES_MAX, &bytes, &count));
        const enum aq_status status = file(context, name, (const char *)bytes, count);
        aq_free(bytes);
        AQ_TRY(status);
    }
    if (!ops->published_class) return AQ_OK; /* its own files say all */
    const int count =
        snprintf(settings, sizeof settings, "{\n  \"model_max_length\": %u,\n  \"tokenizer_class\": \"%s\"\n}\n",
                 tokens, ops->published_class);
    return file(context, "tokenizer_config.json", settings, (size_t)count);
}
