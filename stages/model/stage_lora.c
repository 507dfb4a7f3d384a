/*
 * stage_lora.c -- the one place that knows the rank and the scale of a matrix's adapter, and which of the model's own
 * modules train beside adapters (struct aq_lora_config: ranks, alphas, saved).
 *
 *     ranks, alphas    {"NAME":NUMBER,...}    the module's published name, or its end behind a dot; the first counts
 *     saved            NAME {"," NAME}        the end of the published name of a module, or of one that contains it
 *
 * Texts are read where they lie, because tensors are listed often; none has an escape (aq_lora_numbers).
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stage_model.h"
#include "stages/publish.h"

float aq_lora_scale(const struct aq_lora_config *lora)
{
    return lora->alpha / (lora->rslora ? sqrtf((float)lora->rank) : (float)lora->rank);
}

/* ---- names ---- */

/* A name of a list; of longer ones the beginning, which a check has refused. */
struct name {
    char text[AQ_FREEZE_PART_MAX];
};

static void name_take(const char *at, size_t bytes, struct name *out)
{
    if (bytes >= sizeof out->text) bytes = sizeof out->text - 1;
    memcpy(out->text, at, bytes);
    out->text[bytes] = 0;
}

/* The next name and number of a JSON object from *at on; none: false. */
static bool number_next(const char **at, struct name *name, double *number)
{
    const char *from = *at ? strchr(*at, '"') : NULL, *to = from ? strchr(from + 1, '"') : NULL;
    if (!to) return false;
    name_take(from + 1, (size_t)(to - from - 1), name);
    char *end;
    *number = strtod(to + 1 + strspn(to + 1, " :"), &end);
    *at = end;
    return true;
}

/* The next name of a list with commas. */
static bool saved_next(const char **at, struct name *name)
{
    *at += strspn(*at, " \t,");
    if (**at == 0) return false;
    size_t bytes = strcspn(*at, ",");
    const char *const from = *at;
    *at += bytes;
    while (bytes > 0 && strchr(" \t", from[bytes - 1]))
        bytes--;
    name_take(from, bytes, name);
    return true;
}

/* The published name without its last part: of the tensor's module, then of what contains that. False: no more. */
static bool module_cut(char *module)
{
    char *dot = strrchr(module, '.');
    if (dot) *dot = 0;
    return dot != NULL;
}

static bool ends_with(const char *text, const char *end, size_t bytes)
{
    const size_t all = strlen(text);
    return bytes > 0 && bytes <= all && strncmp(text + all - bytes, end, bytes) == 0;
}

/* As PEFT's get_pattern_key has it, of names without expressions. */
static bool names_module(const char *name, const char *module)
{
    const bool whole = *name == '^';
    size_t bytes = strlen(name += whole);
    if (bytes && name[bytes - 1] == '$') bytes--;
    if (!ends_with(module, name, bytes)) return false;
    const size_t all = strlen(module);
    return bytes == all || (!whole && module[all - bytes - 1] == '.');
}

/* The number of the first name that names the module, or `other`. */
static double number_of(const char *json, const char *module, double other)
{
    struct name name;
    double number;
    while (number_next(&json, &name, &number))
        if (names_module(name.text, module)) return number;
    return other;
}

void aq_lora_of(const struct aq_lora_config *lora, const struct aq_model_config *model, const char *tensor,
                struct aq_lora_config *out)
{
    char module[AQ_TENSOR_NAME_MAX];
    *out = *lora;
    if (!lora->ranks && !lora->alphas) return;
    aq_publish_name(model, tensor, module, sizeof module);
    (void)module_cut(module);
    const double rank = number_of(lora->ranks, module, lora->rank);
    const double alpha = number_of(lora->alphas, module, (double)lora->alpha);
    if (rank >= 1 && rank <= AQ_LORA_RANK_MAX) out->rank = (uint32_t)rank;
    if (alpha > 0 && alpha <= AQ_LORA_ALPHA_MAX) out->alpha = (float)alpha;
}

static bool saved_by(const struct name *name, const struct aq_model_config *model, const char *tensor)
{
    char module[AQ_TENSOR_NAME_MAX];
    aq_publish_name(model, tensor, module, sizeof module);
    while (module_cut(module))
        if (ends_with(module, name->text, strlen(name->text))) return true;
    return false;
}

bool aq_lora_saves(const struct aq_lora_config *lora, const struct aq_model_config *model, const char *tensor)
{
    struct name name;
    for (const char *at = lora->saved; at && saved_next(&at, &name);)
        if (saved_by(&name, model, tensor)) return true;
    return false;
}

/* ---- for those who read them ---- */

bool aq_lora_numbers(const char *json, double most, bool whole, char *text, size_t bytes)
{
    json_t *object = json_loads(json, 0, NULL), *value;
    const char *key;
    bool fits = json_is_object(object);
    if (!fits) snprintf(text, bytes, "an object of numbers, as {v_proj: 2}");
    json_object_foreach(object, key, value)
    {
        const double number = json_number_value(value);
        const bool is = json_is_number(value) && number > 0 && number <= most;
        if (!*key || strpbrk(key, "*+?()[]{}|\\\"") || strlen(key) >= AQ_FREEZE_PART_MAX)
            snprintf(text, bytes, "names of modules, of less than %d bytes, and \"%.64s\" is none or an expression",
                     AQ_FREEZE_PART_MAX, key);
        else if (!is || (whole && number != (double)(uint32_t)number))
            snprintf(text, bytes, "%snumbers above 0, at most %g, for \"%.64s\"", whole ? "whole " : "", most,
                     key);
        else
            continue;
        fits = false;
        break;
    }
    json_decref(object);
    return fits;
}

/* All tensors of the model, with their adapters. */
static enum aq_status tensors_all(const struct aq_lora_config *lora, const struct aq_model_config *model, uint32_t T,
                                  struct layer_tensor **tensors, uint32_t *count)
{
    const struct aq_stage_config whole = {
        .model = *model, .layer_end = aq_model_layers(model), .B = 1, .T = T, .slots = 1, .lora = *lora};
    return stage_tensors(&whole, tensors, count, NULL);
}

enum aq_status aq_lora_ranks(const struct aq_lora_config *lora, const struct aq_model_config *model, uint32_t T,
                             uint32_t *least, uint32_t *most)
{
    struct layer_tensor *tensors;
    char which, of[AQ_TENSOR_NAME_MAX];
    uint32_t count;
    *least = UINT32_MAX;
    *most = 0;
    AQ_TRY(tensors_all(lora, model, T, &tensors, &count));
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_tensor_info *info = &tensors[i].info;
        if (!aq_tensor_adapts(info->name, &which, of) || which != 'A') continue;
        if (info->shape[0] < *least) *least = (uint32_t)info->shape[0];
        if (info->shape[0] > *most) *most = (uint32_t)info->shape[0];
    }
    aq_free(tensors);
    return AQ_OK;
}

/* Name `index` of a text: of a JSON object, or of a list. */
static bool name_find(const char *of, uint32_t index, bool *object, struct name *name)
{
    double number;
    *object = of && *of == '{';
    for (uint32_t i = 0; i <= index; i++)
        if (!of || !(*object ? number_next(&of, name, &number) : saved_next(&of, name))) return false;
    return true;
}

enum aq_status aq_lora_name(const struct aq_lora_config *lora, const struct aq_model_config *model, uint32_t T,
                            const char *of, uint32_t index, struct aq_lora_name *out)
{
    struct layer_tensor *tensors;
    char module[AQ_TENSOR_NAME_MAX], which, matrix[AQ_TENSOR_NAME_MAX], head[AQ_TENSOR_NAME_MAX];
    struct name name;
    bool object;
    uint32_t count;
    if (!name_find(of, index, &object, &name)) return AQ_NOTFOUND;
    *out = (struct aq_lora_name){0};
    memcpy(out->text, name.text, sizeof out->text);
    AQ_TRY(tensors_all(lora, model, T, &tensors, &count));
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_tensor_info *info = &tensors[i].info;
        const bool adapter = aq_tensor_adapts(info->name, &which, matrix);
        if (info->buffer || (adapter && (which != 'A' || !object))) continue;
        aq_publish_name(model, adapter ? matrix : info->name, module, sizeof module);
        (void)module_cut(module);
        const bool named = object ? names_module(name.text, module) : saved_by(&name, model, info->name);
        if (named) adapter ? out->adapters++ : out->tensors++;
    }
    aq_free(tensors);
    aq_model_tied_head(model, head);
    out->copy = *head && !object && saved_by(&name, model, head);
    return AQ_OK;
}
