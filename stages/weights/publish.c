/* publish.c -- asks the model's and the tokenizer's tables for what they publish. See the header. */
#include "stages/publish.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dataset_file.h"
#include "model_family.h"
#include "model_wrapper.h"
#include "python_json.h"
#include "stage_model.h"
#include "stages/chat.h"
#include "tokenizer.h"

#define AREA "publish"

enum { TOKENIZER_FILE_BYTES_MAX = 256 << 20, CONFIG_BYTES_MAX = 4 << 20, PATH_BYTES = 4096, NUMBER_BYTES = 32 };

void aq_publish_name(const struct aq_model_config *model, const char *tensor, char *out, size_t bytes)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    AQ_ASSERT(ops);
    if (ops->publish_name)
        ops->publish_name(tensor, out, bytes);
    else
        decoder_family_name(ops, tensor, out, bytes);
}

enum aq_status aq_publish_transposed(const struct aq_model_config *model, const char *const *names, uint32_t count,
                                     bool *transposed, uint32_t *kernels)
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
        transposed[i] = t < all && tensors[t].info.transposed;
        if (kernels) kernels[i] = t < all ? tensors[t].info.kernel : 0;
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

static enum aq_status read_config(const char *folder, const char *name, json_t **out)
{
    char path[PATH_BYTES];
    uint8_t *bytes;
    size_t count;
    json_error_t error;
    const int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return aq_fail(AQ_INVAL, AREA, "the path %.80s... is too long", folder);
    AQ_TRY(aq_file_read(AREA, path, CONFIG_BYTES_MAX, &bytes, &count));
    *out = python_json_load((const char *)bytes, count, JSON_REJECT_DUPLICATES, &error);
    aq_free(bytes);
    if (!*out) return aq_fail(AQ_CORRUPT, AREA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    if (json_is_object(*out)) return AQ_OK;
    json_decref(*out);
    *out = NULL;
    return aq_fail(AQ_CORRUPT, AREA, "%s: is not a JSON object", path);
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

/* Puts the model's keys over those of its folder; bos and eos stay, because the folder's tokenizer is carried over. */
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

/* Are these as many names as the model has labels? */
static bool names_all(const json_t *names, size_t labels)
{
    char number[NUMBER_BYTES];
    bool all = json_object_size(names) == labels;
    for (size_t i = 0; i < labels && all; i++) {
        snprintf(number, sizeof number, "%zu", i);
        all = json_is_string(json_object_get(names, number));
    }
    return all;
}

/*
 * The names of a classifier's labels: those that the job gives, or those that came with the folder, in place of the
 * model's LABEL_0. A shorter list names the first ones.
 */
static enum aq_status name_labels(const json_t *carried, const char *given, json_t *own)
{
    json_t *names = json_object_get(own, "id2label"), *came = json_object_get(carried, "id2label");
    const size_t labels = json_object_size(names);
    char number[NUMBER_BYTES];
    if (labels == 0) return AQ_OK;
    if (!given && names_all(came, labels)) json_object_update(names, came);
    size_t i = 0;
    for (const char *at = given; at && *at && i < labels; i++) {
        at += strspn(at, " \t");
        size_t bytes = strcspn(at, ",");
        const char *next = at + bytes + (at[bytes] == ',');
        while (bytes && strchr(" \t", at[bytes - 1]))
            bytes--;
        snprintf(number, sizeof number, "%zu", i);
        if (json_object_set_new(names, number, json_stringn(at, bytes)) != 0)
            return aq_fail(AQ_INVAL, AREA, "data.labels: name %zu is not UTF-8", i + 1);
        at = next;
    }
    json_t *numbers = json_object();
    for (i = 0; i < labels; i++) {
        snprintf(number, sizeof number, "%zu", i);
        json_object_set_new(numbers, json_string_value(json_object_get(names, number)), json_integer((json_int_t)i));
    }
    json_object_set_new(own, "label2id", numbers);
    return AQ_OK;
}

static enum aq_status write_json(const json_t *json, const char *name, aq_publish_file *file, void *context)
{
    const size_t flags = JSON_INDENT(2) | JSON_SORT_KEYS, count = json_dumpb(json, NULL, 0, flags);
    if (count == 0) return aq_fail(AQ_NOMEM, AREA, "no memory for %s", name);
    char *text;
    AQ_TRY(AQ_NEW(count + 1, &text));
    json_dumpb(json, text, count, flags);
    size_t used = count;
    python_json_words(text, &used);
    text[used++] = '\n';
    const enum aq_status status = file(context, name, text, used);
    aq_free(text);
    return status;
}

/* The same of a wrapper: what the model has goes into its text_config. */
static void wrapped_config(json_t *carried, const json_t *own, const char *type)
{
    json_t *words = json_object();
    merge_config(words, own, type);
    const char *name = json_object_get(carried, "dtype") ? "dtype" : "torch_dtype";
    model_wrapper_merge(carried, words);
    json_object_set_new(carried, name, json_string(type));
    json_decref(words);
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
    if (!type) return aq_fail(AQ_INVAL, AREA, "weights of type %s cannot be written", about->type);
    AQ_TRY(aq_alloc(PUBLISHED_CONFIG_BYTES, &json));
    enum aq_status status = ops->publish_config(model, about->tied, about->end_of_text, json, &count);
    if (status == AQ_OK) own = json_loadb(json, count, 0, NULL);
    aq_free(json);
    AQ_TRY(status);
    AQ_ASSERT(own);
    if (about->from)
        status = read_config(about->from, "config.json", &config);
    else
        config = json_object();
    if (status == AQ_OK) {
        status = name_labels(config, about->labels, own);
    }
    if (status == AQ_OK) {
        json_t *text = model_wrapper_text(config);
        if (text && model->labels) { /* a classifier is written without the wrapper */
            json_decref(config);
            config = text;
            text = NULL;
        }
        if (text)
            wrapped_config(config, own, type);
        else
            merge_config(config, own, type);
        json_decref(text);
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

static bool names_token(const json_t *ends, int32_t token)
{
    if (json_is_integer(ends)) return json_integer_value(ends) == token;
    for (size_t i = 0; i < json_array_size(ends); i++)
        if (json_integer_value(json_array_get(ends, i)) == token) return true;
    return false;
}

/* Keys of config.json that transformers takes while there is no generation_config.json. */
static void take_marks(json_t *generation, const json_t *config)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *value = json_object_get(config, keys[i]);
        if (value && !json_is_null(value)) json_object_set(generation, keys[i], value);
    }
}

static enum aq_status add_ends(json_t *generation, const int32_t *ends, uint32_t count, aq_publish_file *file,
                               void *context)
{
    json_t *there = json_object_get(generation, "eos_token_id"), *all = json_array();
    const bool list = json_is_array(there);
    uint32_t more = 0;
    for (size_t i = 0; there && i < (list ? json_array_size(there) : 1); i++) {
        json_t *one = list ? json_array_get(there, i) : there;
        if (json_is_integer(one)) json_array_append(all, one);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (names_token(all, ends[i])) continue;
        json_array_append_new(all, json_integer(ends[i]));
        more++;
    }
    if (more) json_object_set(generation, "eos_token_id", json_array_size(all) == 1 ? json_array_get(all, 0) : all);
    json_decref(all);
    return more ? write_json(generation, "generation_config.json", file, context) : AQ_OK;
}

enum aq_status aq_publish_ends(const char *from, const int32_t *ends, uint32_t count, aq_publish_file *file,
                               void *context)
{
    static const char name[] = "generation_config.json";
    char path[PATH_BYTES];
    json_t *generation = NULL, *config = NULL;
    enum aq_status status = AQ_OK;
    if (count == 0) return AQ_OK;
    const int length = from ? snprintf(path, sizeof path, "%s/%s", from, name) : -1;
    if (length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0)
        status = read_config(from, name, &generation);
    else {
        generation = json_object();
        if (from) status = read_config(from, "config.json", &config);
        take_marks(generation, config);
    }
    if (status == AQ_OK) status = add_ends(generation, ends, count, file, context);
    json_decref(config);
    json_decref(generation);
    return status;
}

enum aq_status aq_publish_chat(const char *folder, aq_publish_file *file, void *context)
{
    struct aq_error_hold none;
    char *text;
    size_t bytes;
    aq_error_hold(&none);
    enum aq_status status = aq_chat_source(folder, &text, &bytes);
    aq_error_release(&none);
    if (status == AQ_NOTFOUND) return AQ_OK;
    if (status != AQ_OK) return aq_fail(status, AREA, "%s", none.text);
    status = file(context, "chat_template.jinja", text, bytes);
    aq_free(text);
    return status;
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
