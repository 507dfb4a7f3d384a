/*
 * weights_match.c -- does a file hold the model that a job describes? Asked before hours are spent, of names and shapes
 * (and, where that is asked, of values): a model with fewer blocks than the file, or with matrices the other way round,
 * would train without a word.
 */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "stage_model.h"
#include "weights_file.h"

#define AREA "weights"

enum { ALIASES_MAX = 8, SHAPE_BYTES = 96, NAMES_MAX = 6, NAMES_BYTES = NAMES_MAX * 84 };

/* Equal except for numbers: "h.2.ln_1.bias" is of the kind of "h.0.ln_1.bias". */
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

static void shape_text(const uint64_t *shape, uint32_t dimensions, char text[SHAPE_BYTES])
{
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < dimensions && used < 70; i++)
        used +=
            (size_t)snprintf(text + used, SHAPE_BYTES - used, "%s%llu", i ? " x " : "", (unsigned long long)shape[i]);
    if (dimensions == 0) snprintf(text, SHAPE_BYTES, "a single value");
}

static void judge(struct aq_weights_found *found, enum aq_weights_use use, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets the judgement and the text of its problem. */
static void judge(struct aq_weights_found *found, enum aq_weights_use use, const char *format, ...)
{
    va_list arguments;
    found->use = use;
    va_start(arguments, format);
    vsnprintf(found->problem, sizeof found->problem, format, arguments);
    va_end(arguments);
}

/* A tensor that both have: in the shape and a type that can be read? */
static void judge_shape(struct aq_weights_found *found, const struct aq_weights_entry *entry,
                        const struct aq_tensor_info *tensor)
{
    char there[SHAPE_BYTES], here[SHAPE_BYTES];
    const uint32_t K = tensor->kernel, dimensions = K ? 4 : tensor->dimensions;
    bool same = entry->dimensions == dimensions;
    uint64_t shape[AQ_TENSOR_DIMENSIONS_MAX]; /* as published */
    for (uint32_t i = 0; i < tensor->dimensions; i++)
        shape[i] = tensor->shape[tensor->transposed ? tensor->dimensions - 1 - i : i];
    if (K) shape[1] /= (uint64_t)K * K;
    for (uint32_t i = 2; K && i < 4; i++)
        shape[i] = K;
    for (uint32_t i = 0; same && i < dimensions; i++)
        same = entry->shape[i] == shape[i];
    if (!entry->type->to_float)
        judge(found, AQ_WEIGHTS_WRONG, "%s is of type %s; F32, F16, BF16 and F64 can be read", entry->name,
              entry->type->name);
    if (same) return;
    const bool round =
        entry->dimensions == 2 && tensor->dimensions == 2 && entry->shape[0] == shape[1] && entry->shape[1] == shape[0];
    shape_text(entry->shape, entry->dimensions, there);
    shape_text(shape, dimensions, here);
    judge(found, AQ_WEIGHTS_WRONG, "%s is %s, the model needs %s%s%s", entry->name, there, here,
          round ? ": its matrices are transposed " : "",
          tensor->fresh        ? "; model.new_head: true starts a new one for your labels"
          : !round             ? ""
          : tensor->transposed ? "(Conv1D's [in, out], not nn.Linear's)"
                               : "(nn.Linear's [out, in], not Conv1D's)");
}

/* Piece by piece, so that neither is in memory as a whole. */
static bool same_bytes(const struct aq_weights_entry *a, const struct aq_weights_entry *b)
{
    const uint64_t bytes = a->end - a->begin;
    bool same = a->type == b->type && bytes == b->end - b->begin;
    for (uint64_t at = 0; same && at < bytes; at += AQ_WEIGHTS_PIECE_BYTES) {
        const uint64_t left = bytes - at, piece = left < AQ_WEIGHTS_PIECE_BYTES ? left : AQ_WEIGHTS_PIECE_BYTES;
        const uint8_t *here = a->file->data + a->begin + at, *there = b->file->data + b->begin + at;
        same = memcmp(here, there, (size_t)piece) == 0;
        aq_weights_release(a->file, here, piece);
        aq_weights_release(b->file, there, piece);
    }
    return same;
}

/* The name by which a tied model's file may have a tensor of that name, too: its head is its embedding. */
static bool alias_of(const struct aq_model_config *model, const char *name, struct stage_alias *out)
{
    struct stage_alias aliases[ALIASES_MAX];
    const struct aq_stage_config whole = {
        .model = *model, .layer_end = aq_model_layers(model), .B = 1, .T = model->context, .slots = 1};
    const uint32_t count = stage_aliases(&whole, aliases, ALIASES_MAX);
    for (uint32_t i = 0; i < count; i++)
        if (!name || strcmp(aliases[i].of, name) == 0) {
            *out = aliases[i];
            return true;
        }
    return false;
}

bool aq_weights_starts_new(const struct aq_weights *weights, const struct aq_model_config *model,
                           const struct aq_tensor_info *info)
{
    uint32_t index;
    if (!info->fresh) return false;
    if (model->new_head && info->layer + 1 == aq_model_layers(model))
        return true; /* below it may be a trained pooler */
    return aq_weights_find(weights, info->name, &index) != AQ_OK;
}

enum aq_status aq_weights_find_shared(const struct aq_weights *weights, const struct aq_model_config *model,
                                      const char *name, uint32_t *index)
{
    struct stage_alias alias;
    if (aq_weights_find(weights, name, index) == AQ_OK) return AQ_OK;
    return alias_of(model, name, &alias) ? aq_weights_find(weights, alias.name, index) : AQ_NOTFOUND;
}

struct pair {
    const struct stage_alias *alias;
};

static bool pair_wants(void *context, const char *name)
{
    const struct pair *pair = context;
    return strcmp(name, pair->alias->name) == 0 || strcmp(name, pair->alias->of) == 0;
}

bool aq_weights_head_differs(const char *path, const struct aq_model_config *model)
{
    struct stage_alias alias;
    struct pair pair = {.alias = &alias};
    struct aq_weights *weights;
    struct aq_error_hold none;
    uint32_t head, table;
    bool differs = false;
    if (!alias_of(model, NULL, &alias)) return false;
    aq_error_hold(&none);
    if (aq_weights_open_wanted(path, pair_wants, &pair, &weights) == AQ_OK) {
        if (aq_weights_find(weights, alias.name, &head) == AQ_OK && aq_weights_find(weights, alias.of, &table) == AQ_OK)
            differs = !same_bytes(weights->entries[head], weights->entries[table]);
        aq_weights_close(weights);
    }
    aq_error_release(&none);
    return differs;
}

/* A shared tensor may be in the file twice: then both must be equal, or one would be lost. */
static void judge_alias(struct aq_weights_found *found, const struct aq_weights *weights,
                        const struct aq_weights_entry *entry, const struct stage_alias *alias)
{
    uint32_t other;
    found->use = AQ_WEIGHTS_SHARED;
    if (aq_weights_find(weights, alias->of, &other) != AQ_OK) return; /* missed elsewhere */
    if (!same_bytes(entry, weights->entries[other]))
        judge(found, AQ_WEIGHTS_WRONG, "%s is not %s; %s", alias->name, alias->of, alias->hint);
}

struct survey {
    const struct aq_weights *weights;
    const struct stage_model *model;
    const struct aq_model_config *config;
    const struct layer_tensor *tensors;
    uint32_t count;
    struct stage_alias aliases[ALIASES_MAX];
    uint32_t alias_count;
};

/* Judges the tensors that only the file has. */
static void judge_other(const struct survey *survey, struct aq_weights_found *found,
                        const struct aq_weights_entry *entry)
{
    const char *name = aq_weights_bare_name(entry->name), *kin = NULL;
    found->use = AQ_WEIGHTS_USED;
    for (uint32_t t = 0; t < survey->count; t++) {
        if (strcmp(survey->tensors[t].info.name, name) == 0) return;
        if (same_kind(survey->tensors[t].info.name, name)) kin = survey->tensors[t].info.name;
    }
    found->use = AQ_WEIGHTS_IGNORED;
    if (survey->model->ignores && survey->model->ignores(name)) return;
    for (uint32_t a = 0; a < survey->alias_count; a++)
        if (strcmp(survey->aliases[a].name, name) == 0) {
            judge_alias(found, survey->weights, entry, &survey->aliases[a]);
            return;
        }
    found->use = AQ_WEIGHTS_UNUSED;
    const char *other = survey->model->refuses ? survey->model->refuses(survey->config, name) : NULL;
    if (other) judge(found, AQ_WEIGHTS_WRONG, "it has %s: %s", name, other);
    if (kin) judge(found, AQ_WEIGHTS_WRONG, "it has %s, which the model does not have: is model.blocks right?", name);
}

static void survey_tensors(const struct survey *survey, aq_weights_tell *tell, void *context)
{
    const struct aq_weights *weights = survey->weights;
    for (uint32_t t = 0; t < survey->count; t++) {
        const struct aq_tensor_info *tensor = &survey->tensors[t].info;
        struct aq_weights_found found = {.use = AQ_WEIGHTS_USED, .name = tensor->name, .file = weights->path};
        uint32_t index;
        /* An untied head may start as the embedding. */
        const bool other = strcmp(tensor->name, tensor->begins_as) != 0;
        if (aq_weights_starts_new(weights, survey->config, tensor))
            found.use = AQ_WEIGHTS_UNTRAINED;
        else if (aq_weights_find_shared(weights, survey->config, tensor->name, &index) == AQ_OK) {
            found.file = weights->entries[index]->file->path;
            found.type = weights->entries[index]->type->name;
            found.count = weights->entries[index]->count;
            judge_shape(&found, weights->entries[index], tensor);
        } else if (other)
            continue;
        else
            judge(&found, AQ_WEIGHTS_MISSING, "%s is missing, which the model needs", tensor->name);
        tell(context, &found);
    }
    for (uint32_t i = 0; i < weights->count; i++) {
        const struct aq_weights_entry *entry = weights->entries[i];
        struct aq_weights_found found = {
            .name = entry->name, .file = entry->file->path, .type = entry->type->name, .count = entry->count};
        judge_other(survey, &found, entry);
        if (found.use != AQ_WEIGHTS_USED) tell(context, &found); /* which were told */
    }
}

enum aq_status aq_weights_survey(const struct aq_weights *weights, const struct aq_model_config *model,
                                 aq_weights_tell *tell, void *context)
{
    const struct aq_stage_config whole = {.model = *model,
                                          .layer_end = aq_model_layers(model),
                                          .B = 1,
                                          .T = model->context,
                                          .slots = 1,
                                          .precision = AQ_STAGE_FP32};
    struct survey survey = {.weights = weights, .model = stage_model_find(model->kind), .config = model};
    struct layer_tensor *tensors;
    AQ_TRY(stage_tensors(&whole, &tensors, &survey.count, NULL));
    survey.tensors = tensors;
    survey.alias_count = stage_aliases(&whole, survey.aliases, ALIASES_MAX);
    survey_tensors(&survey, tell, context);
    aq_free(tensors);
    return AQ_OK;
}

/* ---- the judgement ---- */

/* Tensors of one kind, and the names of the first. */
struct named {
    uint32_t count;
    char names[NAMES_BYTES];
};

struct match {
    enum aq_status status;
    struct named unused, untrained;
};

static void name_add(struct named *named, const char *name)
{
    const size_t used = strlen(named->names);
    if (named->count++ < NAMES_MAX)
        snprintf(named->names + used, sizeof named->names - used, "%s%.80s", used ? ", " : "", name);
}

static void match_tell(void *context, const struct aq_weights_found *found)
{
    struct match *match = context;
    if (found->problem[0] && match->status == AQ_OK)
        match->status = aq_fail(AQ_MISMATCH, AREA, "%s: %s", found->file, found->problem);
    if (found->use == AQ_WEIGHTS_UNUSED) name_add(&match->unused, found->name);
    if (found->use == AQ_WEIGHTS_UNTRAINED) name_add(&match->untrained, found->name);
}

static void match_say(const struct aq_weights *weights, const struct named *named, const char *what)
{
    if (named->count)
        aq_log(AREA, AQ_LOG_WARNING, "%s: %s: %s%s", weights->path, what, named->names,
               named->count > NAMES_MAX ? ", ..." : "");
}

enum aq_status aq_weights_match(const struct aq_weights *weights, const struct aq_model_config *model)
{
    struct match match = {.status = AQ_OK};
    AQ_TRY(aq_weights_survey(weights, model, match_tell, &match));
    if (match.status != AQ_OK) return match.status;
    match_say(weights, &match.unused, "not used by this model");
    match_say(weights, &match.untrained, "new, and start from train.seed");
    if (model->new_head && match.untrained.count == 0)
        return aq_fail(AQ_MISMATCH, AREA, "model.new_head: this model has no classifier, remove the key");
    return AQ_OK;
}

/* ---- values ---- */

struct values {
    const struct aq_weights *weights;
    enum aq_status status;
};

static void values_tell(void *context, const struct aq_weights_found *found)
{
    struct values *values = context;
    uint32_t index;
    bool finite;
    uint64_t place;
    float value;
    if (found->use != AQ_WEIGHTS_USED || values->status != AQ_OK) return;
    if (aq_weights_find(values->weights, found->name, &index) != AQ_OK) return;
    values->status = aq_weights_finite(values->weights, index, &finite, &place, &value);
    if (values->status != AQ_OK || finite) return;
    values->status = aq_fail(AQ_MISMATCH, "weights", "%s: %s: value %llu of %llu is %s; every one must be a number",
                             found->file, found->name, (unsigned long long)place, (unsigned long long)found->count,
                             isnan(value) ? "NaN" : "infinite");
}

enum aq_status aq_weights_check_values(const struct aq_weights *weights, const struct aq_model_config *model)
{
    struct values values = {.weights = weights, .status = AQ_OK};
    AQ_TRY(aq_weights_survey(weights, model, values_tell, &values));
    return values.status;
}
