/* publish.c -- asks the model's and the tokenizer's tables for what they publish. See the header. */
#include "stages/publish.h"

#include <stdio.h>

#include "dataset_file.h"
#include "stage_model.h"
#include "tokenizer.h"

enum { TOKENIZER_FILE_BYTES_MAX = 256 << 20 };

void aq_publish_name(const struct aq_model_config *model, const char *tensor, char *out, size_t bytes)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    AQ_ASSERT(ops);
    ops->publish_name(tensor, out, bytes);
}

enum aq_status aq_publish_model(const struct aq_model_config *model, bool tied, int32_t end_of_text,
                                aq_publish_file *file, void *context)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    char json[PUBLISHED_CONFIG_BYTES];
    size_t count;
    if (!ops) return aq_fail(AQ_INVAL, "publish", "there is no model of kind %s", model->kind ? model->kind : "");
    AQ_TRY(ops->publish_config(model, tied, end_of_text, json, &count));
    return file(context, "config.json", json, count);
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
    const int count =
        snprintf(settings, sizeof settings, "{\n  \"model_max_length\": %u,\n  \"tokenizer_class\": \"%s\"\n}\n",
                 tokens, ops->published_class);
    return file(context, "tokenizer_config.json", settings, (size_t)count);
}
