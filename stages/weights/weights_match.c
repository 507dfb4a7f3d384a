/*
 * weights_match.c -- does a file hold the model that a job describes? Asked before hours are spent, of names and shapes
 * alone: a model with fewer blocks than the file, or with matrices the other way round, would train without a word.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "stage_model.h"
#include "weights_file.h"

#define AREA "weights"

enum { ALIASES_MAX = 8 };

/* Equal but for numbers: "h.2.ln_1.bias" is of the kind of "h.0.ln_1.bias". */
static bool same_kind(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            while (isdigit((unsigned char)a[1]))
                a++;
            while (isdigit((unsigned char)b[1]))
                b++;
        } else if (*a != *b) {
            return false;
        }
    }
    return *a == *b;
}

static void shape_text(const uint64_t *shape, uint32_t dimensions, char text[96])
{
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < dimensions && used < 70; i++)
        used += (size_t)snprintf(text + used, 96 - used, "%s%llu", i ? " x " : "", (unsigned long long)shape[i]);
}

static enum aq_status match_shape(const char *path, const struct aq_weights_entry *entry,
                                  const struct aq_tensor_info *tensor)
{
    char there[96], here[96];
    bool same = entry->dimensions == tensor->dimensions;
    for (uint32_t i = 0; same && i < tensor->dimensions; i++)
        same = entry->shape[i] == tensor->shape[i];
    if (same) return AQ_OK;
    const bool turned = entry->dimensions == 2 && tensor->dimensions == 2 && entry->shape[0] == tensor->shape[1] &&
                        entry->shape[1] == tensor->shape[0];
    shape_text(entry->shape, entry->dimensions, there);
    shape_text(tensor->shape, tensor->dimensions, here);
    return aq_fail(AQ_MISMATCH, AREA, "%s: %s is %s, the model of the manifest wants %s%s", path, entry->name, there,
                   here, turned ? ": its matrices are the other way round (nn.Linear's [out, in], not Conv1D's)" : "");
}

/* A shared tensor may stand in the file again: then it must be the same, or it would be lost. */
static enum aq_status match_alias(const struct aq_weights *weights, uint32_t index, const struct stage_alias *alias)
{
    uint32_t other;
    if (aq_weights_find(weights, alias->of, &other) != AQ_OK) return AQ_OK; /* missed elsewhere */
    const struct aq_weights_entry *a = &weights->entries[index], *b = &weights->entries[other];
    const uint64_t bytes = a->end - a->begin;
    if (a->type == b->type && bytes == b->end - b->begin &&
        memcmp(weights->data + a->begin, weights->data + b->begin, (size_t)bytes) == 0)
        return AQ_OK;
    return aq_fail(AQ_MISMATCH, AREA, "%s: %s is not %s; %s", weights->path, alias->name, alias->of, alias->hint);
}

/* What the file has and the model has not. */
static enum aq_status match_rest(const struct aq_weights *weights, const struct aq_stage_config *config,
                                 const struct layer_tensor *tensors, uint32_t count)
{
    const struct stage_model *model = stage_model_find(config->model.kind);
    struct stage_alias aliases[ALIASES_MAX];
    const uint32_t alias_count = stage_aliases(config, aliases, ALIASES_MAX);
    const char *unused = NULL;
    uint32_t unused_count = 0;
    for (uint32_t i = 0; i < weights->count; i++) {
        const char *name = aq_weights_bare_name(weights->entries[i].name), *kin = NULL;
        bool known = model->ignores && model->ignores(name);
        for (uint32_t t = 0; !known && t < count; t++) {
            known = strcmp(tensors[t].info.name, name) == 0;
            if (same_kind(tensors[t].info.name, name)) kin = tensors[t].info.name;
        }
        if (known) continue;
        uint32_t alias = 0;
        while (alias < alias_count && strcmp(aliases[alias].name, name) != 0)
            alias++;
        if (alias < alias_count) {
            AQ_TRY(match_alias(weights, i, &aliases[alias]));
            continue;
        }
        if (kin)
            return aq_fail(AQ_MISMATCH, AREA,
                           "%s: it has %s, which the model of the manifest has not: is model.blocks right?",
                           weights->path, name);
        if (!unused) unused = name;
        unused_count++;
    }
    if (unused)
        aq_log(AREA, 1, "%s: %u tensors are of no use to this model, %s the first", weights->path, unused_count,
               unused);
    return AQ_OK;
}

enum aq_status aq_weights_match(const struct aq_weights *weights, const struct aq_model_config *model)
{
    const struct aq_stage_config whole = {.model = *model,
                                          .layer_end = aq_model_layers(model),
                                          .B = 1,
                                          .T = model->context,
                                          .slots = 1,
                                          .precision = AQ_STAGE_FP32};
    struct layer_tensor *tensors;
    uint32_t count;
    AQ_TRY(stage_tensors(&whole, &tensors, &count, NULL));
    enum aq_status status = AQ_OK;
    for (uint32_t t = 0; t < count && status == AQ_OK; t++) {
        uint32_t index;
        /* An untied head may begin as the embedding. */
        const bool other = strcmp(tensors[t].info.name, tensors[t].info.begins_as) != 0;
        if (aq_weights_find(weights, tensors[t].info.name, &index) == AQ_OK)
            status = match_shape(weights->path, &weights->entries[index], &tensors[t].info);
        else if (!other)
            status = aq_fail(AQ_MISMATCH, AREA, "%s: there is no %s, which the model of the manifest has",
                             weights->path, tensors[t].info.name);
    }
    if (status == AQ_OK) status = match_rest(weights, &whole, tensors, count);
    aq_free(tensors);
    return status;
}
