/* model_wrapper.c -- the text model in a folder of a model of texts and images. See the header. */
#include "model_wrapper.h"

#include <stdio.h>
#include <string.h>

#include "dataset_file.h"
#include "model_family.h"
#include "python_json.h"
#include "stages/model_folder.h"

enum { CONFIG_BYTES_MAX = 4 << 20, PATH_BYTES = 4096 };

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

json_t *model_wrapper_text(const json_t *config)
{
    const json_t *text = json_object_get(config, "text_config"), *tied = json_object_get(config, "tie_word_embeddings");
    const json_t *architecture = json_array_get(json_object_get(config, "architectures"), 0);
    const struct stage_model *model;
    for (uint32_t m = 0; json_is_object(text) && (model = stage_model_at(m)) != NULL; m++) {
        const struct decoder_family *family = model->family;
        if (!family || !family->wrapper) continue;
        if (!is_text(json_object_get(config, "model_type"), family->wrapper)) continue;
        if (architecture && !is_text(architecture, family->wrapping)) continue;
        json_t *own = json_copy((json_t *)(uintptr_t)text);
        if (!json_object_get(own, "model_type")) /* the family's first */
            json_object_set_new(own, "model_type", json_string(family->types->type));
        if (json_is_boolean(tied))
            json_object_set(own, "tie_word_embeddings", (json_t *)(uintptr_t)tied);
        else if (!json_object_get(own, "tie_word_embeddings"))
            json_object_set_new(own, "tie_word_embeddings", json_boolean(!family->wrapper_untied));
        json_object_del(own, "architectures");
        return own;
    }
    return NULL;
}

void model_wrapper_merge(json_t *wrapper, const json_t *own)
{
    json_t *text = json_object_get(wrapper, "text_config"), *keys = json_copy((json_t *)(uintptr_t)own);
    static const char *const outer[] = {"architectures", "bos_token_id", "eos_token_id", "id2label", "label2id"};
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++)
        json_object_del(keys, outer[i]);
    json_object_update(text, keys);
    json_object_set(wrapper, "tie_word_embeddings", json_object_get(own, "tie_word_embeddings"));
    json_decref(keys);
}

const char *model_wrapper_front(const char *name)
{
    static const char *const fronts[] = {"language_model.model.", "model.language_model.", "language_model."};
    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        if (strncmp(name, fronts[i], strlen(fronts[i])) == 0) return fronts[i];
    return "";
}

bool aq_model_folder_wraps(const char *path)
{
    char file[PATH_BYTES];
    struct aq_error_hold none;
    uint8_t *bytes;
    size_t count;
    json_error_t error;
    if (!path || !aq_model_folder_is(path)) return false;
    snprintf(file, sizeof file, "%.4000s/config.json", path);
    aq_error_hold(&none);
    const enum aq_status status = aq_file_read("folder", file, CONFIG_BYTES_MAX, &bytes, &count);
    aq_error_release(&none);
    if (status != AQ_OK) return false;
    json_t *config = python_json_load((const char *)bytes, count, JSON_REJECT_DUPLICATES, &error);
    json_t *text = model_wrapper_text(config);
    const bool wraps = text != NULL;
    aq_free(bytes);
    json_decref(text);
    json_decref(config);
    return wraps;
}
