/* adapter_folder.c -- reads PEFT's folder, and finds its tensors in a model. See the header. */
#include "stages/adapter_folder.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dataset_file.h"
#include "model_wrapper.h"
#include "python_json.h"
#include "stage_model.h"
#include "stages/publish.h"
#include "weights_file.h"

#define AREA "adapter"

enum { PATH_BYTES = 4096, CONFIG_BYTES_MAX = 4 << 20, FILE_NAME_BYTES = AQ_TENSOR_NAME_MAX + 48, LABELS_ANY = 2,
       PROBLEM_BYTES = 320,
       WEIGHT_BYTES = sizeof ".weight" - 1 };

static const char FRONT[] = "base_model.model.";

struct aq_adapter_folder {
    char config_path[PATH_BYTES], weights_path[PATH_BYTES];
    json_t *config;
    struct config_json json; /* the same, to be asked */
    struct aq_weights *weights;
    struct aq_lora_config lora;
    char *ranks, *alphas, *saved; /* its texts */
};

/* null, false, or empty: not asked for. */
static bool is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value));
}

static bool one_of(const json_t *value, const char *const *words)
{
    for (uint32_t i = 0; words[i]; i++)
        if (json_is_string(value) && strcmp(json_string_value(value), words[i]) == 0) return true;
    return false;
}

/* An option that is not known here is refused unless it is off: it may change what is computed. */
static enum aq_status check_known(const struct aq_adapter_folder *folder)
{
    static const char *const known[] = {
        "alpha_pattern",       "auto_mapping",     "base_model_name_or_path", "bias",          "corda_config",
        "ensure_weight_tying", "eva_config",       "exclude_modules",         "fan_in_fan_out", "inference_mode",
        "init_lora_weights",   "layers_pattern",   "layers_to_transform",     "loftq_config",  "lora_alpha",
        "lora_dropout",        "lora_ga_config",   "megatron_core",           "modules_to_save", "peft_type",
        "peft_version",        "qalora_group_size", "r",                      "rank_pattern",  "revision",
        "runtime_config",      "target_modules",   "task_type",               "use_dora",      "use_rslora",
        NULL};
    const char *key;
    json_t *value;
    json_object_foreach(folder->config, key, value)
    {
        uint32_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i] && !is_off(value))
            return config_json_refuse(&folder->json, key, "none (the option is unknown here)");
    }
    return AQ_OK;
}

/* Names as this model has them: without what a wrapper has in front. */
static const char *unwrapped(const char *name)
{
    return name + strlen(model_wrapper_front(name));
}

/* Ranks or alphas of single modules, as aq_lora_config has them. An empty object is none. */
static enum aq_status read_pattern(const struct aq_adapter_folder *folder, const char *option, double most, bool whole,
                                   char **text, const char **out)
{
    json_t *patterns = json_object_get(folder->config, option), *value;
    char problem[PROBLEM_BYTES] = "an object of numbers";
    void *memory = NULL;
    const char *key;
    if (is_off(patterns)) return AQ_OK;
    if (!json_is_object(patterns)) return config_json_refuse(&folder->json, option, "%s", problem);
    json_t *own = json_object();
    json_object_foreach(patterns, key, value) json_object_set(own, unwrapped(key), value);
    const size_t bytes = json_dumpb(own, NULL, 0, JSON_COMPACT | JSON_ENSURE_ASCII);
    enum aq_status status = aq_alloc(bytes + 1, &memory);
    *text = memory;
    if (status == AQ_OK) json_dumpb(own, *text, bytes, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(own);
    AQ_TRY(status);
    if (!aq_lora_numbers(*text, most, whole, problem, sizeof problem))
        return config_json_refuse(&folder->json, option, "%s", problem);
    *out = *text;
    return AQ_OK;
}

/* modules_to_save, as aq_lora_config has it. */
static enum aq_status read_saved(struct aq_adapter_folder *folder)
{
    static const char option[] = "modules_to_save";
    const json_t *list = json_object_get(folder->config, option), *entry;
    size_t i, bytes = 1, used = 0;
    void *memory;
    if (is_off(list)) return AQ_OK;
    if (!json_is_array(list)) return config_json_refuse(&folder->json, option, "a list of modules");
    json_array_foreach(list, i, entry)
    {
        const char *name = json_string_value(entry);
        if (!name || !*name || strlen(name) >= AQ_FREEZE_PART_MAX || strpbrk(name, ", \t\""))
            return config_json_refuse(&folder->json, option, "a list of names of less than %d bytes",
                                      AQ_FREEZE_PART_MAX);
        bytes += strlen(name) + 2;
    }
    AQ_TRY(aq_alloc(bytes, &memory));
    folder->lora.saved = folder->saved = memory;
    json_array_foreach(list, i, entry) used += (size_t)snprintf(folder->saved + used, bytes - used, "%s%s",
                                                                i ? ", " : "", unwrapped(json_string_value(entry)));
    return AQ_OK;
}

/* What is not computed here. */
static enum aq_status check_kind(const struct aq_adapter_folder *folder)
{
    static const char *const kinds[] = {"LORA", NULL}, *const none[] = {"none", NULL};
    static const char *const begins[] = {"gaussian", "orthogonal", "eva", NULL};
    static const char *const off[] = {
        "use_qalora",        "lora_bias",    "megatron_config",         "layer_replication",
        "target_parameters", "arrow_config", "trainable_token_indices", "alora_invocation_tokens"};
    const struct config_json *json = &folder->json;
    const json_t *config = folder->config, *bias = json_object_get(config, "bias");
    const json_t *begin = json_object_get(config, "init_lora_weights");
    if (!one_of(json_object_get(config, "peft_type"), kinds))
        return config_json_refuse(json, "peft_type", "LORA");
    if (bias && !one_of(bias, none))
        return config_json_refuse(json, "bias", "\"none\" (adapters with biases are not supported)");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(json_object_get(config, off[i])))
            return config_json_refuse(json, off[i], "none (the option is not supported)");
    AQ_TRY(check_known(folder));
    if (begin && !json_is_boolean(begin) && !json_is_null(begin) && !one_of(begin, begins))
        return config_json_refuse(json, "init_lora_weights", "true (this value changes the model itself)");
    return AQ_OK;
}

static enum aq_status read_numbers(struct aq_adapter_folder *folder)
{
    const struct config_json *json = &folder->json;
    const json_t *rank = json_object_get(folder->config, "r"), *alpha = json_object_get(folder->config, "lora_alpha");
    const json_t *dropout = json_object_get(folder->config, "lora_dropout");
    const json_t *rslora = json_object_get(folder->config, "use_rslora");
    const json_t *dora = json_object_get(folder->config, "use_dora");
    const json_int_t r = json_integer_value(rank);
    if (r < 1 || r > AQ_LORA_RANK_MAX) return config_json_refuse(json, "r", "1 to %d", AQ_LORA_RANK_MAX);
    folder->lora.rank = (uint32_t)r;
    folder->lora.alpha = (float)json_number_value(alpha);
    if (!(folder->lora.alpha > 0 && folder->lora.alpha <= 1e6f))
        return config_json_refuse(json, "lora_alpha", "a number above 0");
    folder->lora.dropout = (float)json_number_value(dropout);
    if (!(folder->lora.dropout >= 0 && folder->lora.dropout <= 0.9f))
        return config_json_refuse(json, "lora_dropout", "0 to 0.9");
    if (rslora && !json_is_boolean(rslora) && !json_is_null(rslora))
        return config_json_refuse(json, "use_rslora", "true or false");
    folder->lora.rslora = json_is_true(rslora);
    if (dora && !json_is_boolean(dora) && !json_is_null(dora))
        return config_json_refuse(json, "use_dora", "true or false");
    folder->lora.dora = json_is_true(dora);
    return AQ_OK;
}

static enum aq_status read_config(struct aq_adapter_folder *folder)
{
    uint8_t *bytes;
    size_t count;
    json_error_t error;
    AQ_TRY(aq_file_read(AREA, folder->config_path, CONFIG_BYTES_MAX, &bytes, &count));
    folder->config = python_json_load((const char *)bytes, count, JSON_REJECT_DUPLICATES, &error);
    aq_free(bytes);
    if (!folder->config)
        return aq_fail(AQ_CORRUPT, AREA, "%s:%d:%d: %s", folder->config_path, error.line, error.column, error.text);
    if (!json_is_object(folder->config))
        return aq_fail(AQ_CORRUPT, AREA, "%s: is not a JSON object", folder->config_path);
    folder->json = (struct config_json){folder->config_path, "", folder->config};
    AQ_TRY(check_kind(folder));
    struct aq_lora_config *lora = &folder->lora;
    AQ_TRY(read_pattern(folder, "rank_pattern", AQ_LORA_RANK_MAX, true, &folder->ranks, &lora->ranks));
    AQ_TRY(read_pattern(folder, "alpha_pattern", AQ_LORA_ALPHA_MAX, false, &folder->alphas, &lora->alphas));
    AQ_TRY(read_saved(folder));
    return read_numbers(folder);
}

/* A folder that only has a pickle: the command that makes safetensors of it. */
static enum aq_status check_pickle(const struct aq_adapter_folder *folder, const char *path)
{
    char pickle[PATH_BYTES];
    snprintf(pickle, sizeof pickle, "%.4000s/adapter_model.bin", path);
    if (access(folder->weights_path, F_OK) == 0 || access(pickle, F_OK) != 0) return AQ_OK;
    const bool plain = !strpbrk(path, "'\"\\$`");
    const char *shown = plain ? path : "FOLDER";
    return aq_fail(AQ_CORRUPT, AREA,
                   "%s: a pickle is a program, and is not read; make safetensors of it: python3 -c \"import torch; "
                   "from safetensors.torch import save_file as s; w = torch.load('%s/adapter_model.bin', "
                   "map_location='cpu', weights_only=True); s({k: v.clone().contiguous() for k, v in w.items()}, "
                   "'%s/adapter_model.safetensors', {'format': 'pt'})\"",
                   pickle, shown, shown);
}

enum aq_status aq_adapter_folder_open(const char *path, struct aq_adapter_folder **out)
{
    enum aq_status status;
    struct aq_adapter_folder *folder;
    AQ_TRY(AQ_NEW(1, &folder));
    snprintf(folder->config_path, PATH_BYTES, "%s/adapter_config.json", path);
    const int length = snprintf(folder->weights_path, PATH_BYTES, "%s/adapter_model.safetensors", path);
    if (length < 0 || length >= PATH_BYTES)
        AQ_TRY_GOTO(aq_fail(AQ_INVAL, AREA, "the path %.80s... is too long", path), out);
    AQ_TRY_GOTO(read_config(folder), out);
    AQ_TRY_GOTO(check_pickle(folder, path), out);
    AQ_TRY_GOTO(aq_weights_open(folder->weights_path, &folder->weights), out);
    *out = folder;
    return AQ_OK;
out:
    aq_adapter_folder_close(folder);
    return status;
}

void aq_adapter_folder_close(struct aq_adapter_folder *folder)
{
    if (!folder) return;
    aq_weights_close(folder->weights);
    json_decref(folder->config);
    aq_free(folder->ranks);
    aq_free(folder->alphas);
    aq_free(folder->saved);
    aq_free(folder);
}

const struct aq_lora_config *aq_adapter_folder_lora(const struct aq_adapter_folder *folder)
{
    return &folder->lora;
}

const struct aq_weights *aq_adapter_folder_weights(const struct aq_adapter_folder *folder)
{
    return folder->weights;
}

/* ---- names ---- */

/* The name of a tensor of the file without what wrappers and models have in front; NULL: it is not PEFT's. */
static const char *bare_of(const char *name)
{
    const size_t front = sizeof FRONT - 1;
    return strncmp(name, FRONT, front) == 0 ? aq_weights_bare_name(name + front) : NULL;
}

enum aq_status aq_adapter_folder_find(const struct aq_adapter_folder *folder, const struct aq_model_config *model,
                                      const char *name, uint32_t *index)
{
    char which = 0, of[AQ_TENSOR_NAME_MAX], published[AQ_TENSOR_NAME_MAX], wanted[FILE_NAME_BYTES], end[32] = "";
    const bool half = aq_tensor_adapts(name, &which, of);
    aq_publish_name(model, half ? of : name, published, sizeof published);
    const char *bare = aq_weights_bare_name(published);
    if (which == 'M')
        snprintf(end, sizeof end, ".lora_magnitude_vector");
    else if (half)
        snprintf(end, sizeof end, ".lora_%c.weight", which);
    snprintf(wanted, sizeof wanted, "%.*s%s", (int)(strlen(bare) - (half ? WEIGHT_BYTES : 0)), bare, end);
    for (uint32_t i = 0; i < aq_weights_count(folder->weights); i++) {
        struct aq_weights_info info;
        aq_weights_info(folder->weights, i, &info);
        const char *there = bare_of(info.name);
        if (!there || strcmp(there, wanted) != 0) continue;
        *index = i;
        return AQ_OK;
    }
    return AQ_NOTFOUND;
}

/* The published name of a tensor's module: without ".weight". */
static void module_of(const struct aq_model_config *model, const char *tensor, char out[AQ_TENSOR_NAME_MAX])
{
    aq_publish_name(model, tensor, out, AQ_TENSOR_NAME_MAX);
    out[strlen(out) - WEIGHT_BYTES] = 0;
}

/* Is the module that name, or does it end with it behind a dot? */
static bool module_ends(const char *module, const char *name, size_t count)
{
    const size_t all = strlen(module);
    if (count == 0 || count > all || strncmp(module + all - count, name, count) != 0) return false;
    return count == all || module[all - count - 1] == '.';
}

/* ---- is it this model's? ---- */

struct match {
    const struct aq_adapter_folder *folder;
    const struct aq_model_config *model;
    struct layer_tensor *tensors;
    uint32_t count;
    bool labels_known;
    bool *used;  /* of the file's  */
    bool *there; /* of the model's */
};

static const char *base_of(const struct aq_adapter_folder *folder)
{
    const char *base = json_string_value(json_object_get(folder->config, "base_model_name_or_path"));
    return base ? base : "a model that it does not name";
}

/* As a target of a list names modules: the whole name, or its end behind a dot. */
static bool is_listed(const struct match *match, const char *tensor)
{
    const json_t *list = json_object_get(match->folder->config, "target_modules"), *entry;
    char module[AQ_TENSOR_NAME_MAX];
    size_t i;
    module_of(match->model, tensor, module);
    if (!is_off(json_object_get(match->folder->config, "layers_to_transform")) ||
        !is_off(json_object_get(match->folder->config, "exclude_modules")))
        return false;
    json_array_foreach(list, i, entry)
    {
        const char *text = json_string_value(entry);
        if (text && module_ends(module, text, strlen(text))) return true;
    }
    return false;
}

static enum aq_status shape_check(const struct match *match, const struct aq_tensor_info *want, uint32_t index)
{
    struct aq_weights_info have;
    struct aq_lora_config lora = match->folder->lora;
    char which, of[AQ_TENSOR_NAME_MAX];
    aq_weights_info(match->folder->weights, index, &have);
    if (aq_tensor_adapts(want->name, &which, of)) aq_lora_of(&match->folder->lora, match->model, of, &lora);
    bool same = have.dimensions == want->dimensions;
    for (uint32_t d = 0; same && d < want->dimensions; d++)
        same = have.shape[d] == want->shape[want->transposed ? want->dimensions - 1 - d : d];
    if (same || (want->fresh && !match->labels_known)) return AQ_OK;
    return aq_fail(AQ_MISMATCH, AREA,
                   "%s: %s is (%llu, %llu), this model with r %u needs (%llu, %llu): the adapter was made for %s",
                   match->folder->weights_path, have.name, (unsigned long long)have.shape[0],
                   (unsigned long long)(have.dimensions > 1 ? have.shape[1] : 1), lora.rank,
                   (unsigned long long)want->shape[0], (unsigned long long)(want->dimensions > 1 ? want->shape[1] : 1),
                   base_of(match->folder));
}

/* The one of two neighbours that is not there. */
static const char *missing_of(char which, bool before)
{
    if (which == 'M') return before ? "lora_magnitude_vector" : "lora_B";
    return which == 'B' && before ? "lora_B" : "lora_A";
}

/* A tensor of a module of modules_to_save is there. */
static enum aq_status saved_check(const struct match *match, const struct aq_tensor_info *info)
{
    uint32_t index;
    if (info->buffer || !aq_lora_saves(&match->folder->lora, match->model, info->name)) return AQ_OK;
    if (aq_adapter_folder_find(match->folder, match->model, info->name, &index) == AQ_OK) return AQ_OK;
    return aq_fail(AQ_MISMATCH, AREA, "%s: has no %s, and modules_to_save of adapter_config.json names its module",
                   match->folder->weights_path, info->name);
}

/* One tensor of the model; the half before it is there (or not). */
static enum aq_status tensor_match(const struct match *match, uint32_t t, bool before)
{
    const struct aq_tensor_info *info = &match->tensors[t].info;
    char which = 0, of[AQ_TENSOR_NAME_MAX] = "";
    uint32_t index;
    if (!info->adapter && !info->fresh) return saved_check(match, info);
    (void)aq_tensor_adapts(info->name, &which, of);
    if (aq_adapter_folder_find(match->folder, match->model, info->name, &index) == AQ_OK) {
        match->used[index] = match->there[t] = true;
        AQ_TRY(shape_check(match, info, index));
    }
    if (!info->adapter) return AQ_OK;
    if (which != 'A' ? before != match->there[t] : !match->there[t] && is_listed(match, of))
        return aq_fail(AQ_MISMATCH, AREA, "%s: no tensor %s of the adapter of %s", match->folder->weights_path,
                       missing_of(which, before), of);
    return AQ_OK;
}

static enum aq_status same_tensors(const struct aq_weights *weights, uint32_t a, uint32_t b, bool *same)
{
    struct aq_weights_info one, other;
    void *left = NULL, *right = NULL;
    enum aq_status status = AQ_OK;
    aq_weights_info(weights, a, &one);
    aq_weights_info(weights, b, &other);
    *same = one.count == other.count;
    if (!*same) return AQ_OK;
    AQ_TRY_GOTO(aq_alloc(one.count * sizeof(float), &left), out);
    AQ_TRY_GOTO(aq_alloc(one.count * sizeof(float), &right), out);
    AQ_TRY_GOTO(aq_weights_read(weights, a, false, left, one.count), out);
    AQ_TRY_GOTO(aq_weights_read(weights, b, false, right, one.count), out);
    *same = memcmp(left, right, one.count * sizeof(float)) == 0;
out:
    aq_free(left);
    aq_free(right);
    return status;
}

/* A tensor of modules_to_save: one of the model's own, or a tied head that is what the file has as embedding. */
static enum aq_status saved_match(const struct match *match, uint32_t index, bool *known)
{
    const struct aq_adapter_folder *folder = match->folder;
    struct aq_weights_info info;
    char head[AQ_TENSOR_NAME_MAX] = "", table[AQ_TENSOR_NAME_MAX] = "";
    uint32_t other;
    bool same = false;
    aq_weights_info(folder->weights, index, &info);
    const char *bare = bare_of(info.name);
    *known = false;
    for (uint32_t t = 0; bare && t < match->count; t++) {
        const struct aq_tensor_info *own = &match->tensors[t].info;
        if (own->adapter || strcmp(own->name, bare) != 0) continue;
        *known = true;
        return shape_check(match, own, index);
    }
    if (match->model->tied != AQ_TIED_NO) aq_model_tied_head(match->model, head);
    if (!bare || !*head || strcmp(bare, head) != 0) return AQ_OK;
    *known = true;
    (void)aq_model_ties(match->model, match->model->context, NULL, NULL, table);
    if (*table && aq_adapter_folder_find(folder, match->model, table, &other) == AQ_OK)
        AQ_TRY(same_tensors(folder->weights, index, other, &same));
    if (same) return AQ_OK;
    return aq_fail(AQ_MISMATCH, AREA,
                   "%s: modules_to_save: %s is not the embedding's table, and this model has one tensor for both; "
                   "merge the adapter into a model that is not tied (PEFT's merge_and_unload)",
                   folder->weights_path, info.name);
}

static enum aq_status all_match(const struct match *match)
{
    bool any = false;
    for (uint32_t t = 0; t < match->count; t++) {
        AQ_TRY(tensor_match(match, t, t > 0 && match->there[t - 1]));
        any = any || (match->there[t] && match->tensors[t].info.adapter);
    }
    for (uint32_t i = 0; i < aq_weights_count(match->folder->weights); i++) {
        struct aq_weights_info info;
        aq_weights_info(match->folder->weights, i, &info);
        if (match->used[i]) continue;
        bool known;
        AQ_TRY(saved_match(match, i, &known));
        if (known) continue;
        return aq_fail(AQ_MISMATCH, AREA,
                       "%s: %s belongs to nothing in this model that can have an adapter: the adapter was made for %s",
                       match->folder->weights_path, info.name, base_of(match->folder));
    }
    if (any) return AQ_OK;
    return aq_fail(AQ_MISMATCH, AREA, "%s: has no adapters", match->folder->weights_path);
}

/* "h.*.attn.c_attn.weight": what a layer's tensor is called in all layers. */
static void without_numbers(const char *name, char *out)
{
    bool begins = true;
    while (*name) {
        const size_t digits = begins ? strspn(name, "0123456789") : 0;
        if (digits > 0 && (name[digits] == '.' || name[digits] == 0)) {
            *out++ = '*';
            name += digits;
        }
        begins = *name == '.';
        if (*name) *out++ = *name++;
    }
    *out = 0;
}

/* Of the adapters' first halves whose names are alike: how many there are, and how many the file has. */
static uint32_t alike(const struct match *match, const char *pattern, uint32_t *there, uint32_t *first)
{
    char which, of[AQ_TENSOR_NAME_MAX], other[AQ_TENSOR_NAME_MAX];
    uint32_t all = 0;
    *there = 0;
    for (uint32_t t = match->count; t-- > 0;) {
        if (!aq_tensor_adapts(match->tensors[t].info.name, &which, of) || which != 'A') continue;
        without_numbers(of, other);
        if (strcmp(other, pattern) != 0) continue;
        all++;
        *there += match->there[t];
        *first = t;
    }
    return all;
}

static enum aq_status targets_write(const struct match *match, char *targets, size_t bytes)
{
    uint32_t patterns = 0, missing = 0;
    size_t used = 0;
    *targets = 0;
    for (uint32_t t = 0; t < match->count; t++) {
        char which, of[AQ_TENSOR_NAME_MAX], pattern[AQ_TENSOR_NAME_MAX];
        uint32_t there, first = 0;
        if (!aq_tensor_adapts(match->tensors[t].info.name, &which, of) || which != 'A') continue;
        missing += !match->there[t];
        if (!match->there[t]) continue;
        without_numbers(of, pattern);
        const bool all = alike(match, pattern, &there, &first) == there;
        if (all && first != t) continue; /* said with the first */
        const int more = snprintf(targets + used, bytes - used, "%s%s", used ? ", " : "", all ? pattern : of);
        if (more < 0 || (size_t)more >= bytes - used || ++patterns > AQ_FREEZE_PATTERNS_MAX)
            return aq_fail(AQ_NOSPC, AREA, "%s: adapts single layers in more than %d ways", match->folder->weights_path,
                           AQ_FREEZE_PATTERNS_MAX);
        used += (size_t)more;
    }
    if (missing == 0) *targets = 0;
    return AQ_OK;
}

/* Has the file a tensor of the model's last layer, which a classifier would lack: the head of a language model? */
static enum aq_status has_head(const struct match *match, struct aq_stage_config whole, bool *has)
{
    struct layer_tensor *tensors;
    uint32_t count, index;
    *has = false;
    whole.model.labels = 0;
    whole.lora = (struct aq_lora_config){.rank = 0};
    AQ_TRY(stage_tensors(&whole, &tensors, &count, NULL));
    for (uint32_t t = 0; t < count && !*has; t++)
        *has = tensors[t].info.layer + 1 == whole.layer_end && !tensors[t].info.fresh && match->model->labels == 0 &&
               aq_adapter_folder_find(match->folder, match->model, tensors[t].info.name, &index) == AQ_OK;
    aq_free(tensors);
    return AQ_OK;
}

enum aq_status aq_adapter_folder_labels(const struct aq_adapter_folder *folder, const struct aq_model_config *model,
                                        uint32_t *labels)
{
    const struct aq_stage_config whole = {
        .model = *model, .layer_end = aq_model_layers(model), .B = 1, .T = model->context, .slots = 1};
    struct layer_tensor *tensors;
    uint32_t count, index;
    *labels = 0;
    AQ_TRY(stage_tensors(&whole, &tensors, &count, NULL));
    for (uint32_t t = 0; t < count; t++) { /* the last product: before it may be a dense layer of the head */
        const struct aq_tensor_info *info = &tensors[t].info;
        struct aq_weights_info have;
        if (!info->fresh || info->layer + 1 != whole.layer_end || info->dimensions != 2) continue;
        if (aq_adapter_folder_find(folder, model, info->name, &index) != AQ_OK) continue;
        aq_weights_info(folder->weights, index, &have);
        if (have.dimensions == 2 && have.shape[0] <= UINT32_MAX) *labels = (uint32_t)have.shape[0];
    }
    aq_free(tensors);
    return AQ_OK;
}

enum aq_status aq_adapter_folder_match(const struct aq_adapter_folder *folder, const struct aq_model_config *model,
                                       bool labels_known, char *targets, size_t bytes)
{
    struct match match = {.folder = folder, .model = model, .labels_known = labels_known};
    struct aq_stage_config whole = {.model = *model,
                                    .layer_end = aq_model_layers(model),
                                    .B = 1,
                                    .T = model->context,
                                    .slots = 1,
                                    .lora = folder->lora};
    void *memory = NULL;
    enum aq_status status;
    bool head = labels_known;
    if (!labels_known) AQ_TRY(has_head(&match, whole, &head));
    if (!head) whole.model.labels = LABELS_ANY;
    AQ_TRY(stage_tensors(&whole, &match.tensors, &match.count, NULL));
    AQ_TRY_GOTO(aq_alloc(match.count + aq_weights_count(folder->weights) + 1, &memory), out);
    match.there = memory;
    match.used = match.there + match.count;
    AQ_TRY_GOTO(all_match(&match), out);
    status = targets_write(&match, targets, bytes);
out:
    aq_free(memory);
    aq_free(match.tensors);
    return status;
}

/* Is a tensor of the file, without its prefixes, one of the network itself, not of the task? *trains: it is named. */
static bool is_whole(const struct match *match, const char *bare, bool *trains)
{
    const struct aq_lora_config *lora = &match->folder->lora;
    char head[AQ_TENSOR_NAME_MAX] = "", table[AQ_TENSOR_NAME_MAX] = "";
    *trains = false;
    if (match->model->tied != AQ_TIED_NO) aq_model_tied_head(match->model, head);
    if (*head && strcmp(bare, head) == 0) {
        (void)aq_model_ties(match->model, match->model->context, NULL, NULL, table);
        *trains = aq_lora_saves(lora, match->model, table) || aq_lora_saves(lora, match->model, head);
        return true;
    }
    for (uint32_t t = 0; t < match->count; t++) {
        const struct aq_tensor_info *own = &match->tensors[t].info;
        if (own->adapter || own->fresh || strcmp(own->name, bare) != 0) continue;
        *trains = aq_lora_saves(lora, match->model, own->name);
        return true;
    }
    return false;
}

enum aq_status aq_adapter_folder_trains(const struct aq_adapter_folder *folder, const struct aq_model_config *model)
{
    struct match match = {.folder = folder, .model = model};
    const struct aq_stage_config whole = {
        .model = *model, .layer_end = aq_model_layers(model), .B = 1, .T = model->context, .slots = 1};
    enum aq_status status = AQ_OK;
    bool trains;
    AQ_TRY(stage_tensors(&whole, &match.tensors, &match.count, NULL));
    for (uint32_t i = 0; status == AQ_OK && i < aq_weights_count(folder->weights); i++) {
        struct aq_weights_info info;
        aq_weights_info(folder->weights, i, &info);
        const char *bare = bare_of(info.name);
        if (bare && is_whole(&match, bare, &trains) && !trains)
            status = config_json_refuse(&folder->json, "modules_to_save",
                                        "the module of %.64s, which the weights have: training would leave it out; "
                                        "merge the adapter first (PEFT's merge_and_unload)",
                                        bare);
    }
    aq_free(match.tensors);
    return status;
}

bool aq_adapter_folder_ties(const struct aq_adapter_folder *folder, const struct aq_model_config *model)
{
    char head[AQ_TENSOR_NAME_MAX] = "", table[AQ_TENSOR_NAME_MAX] = "";
    const bool ensured = json_is_true(json_object_get(folder->config, "ensure_weight_tying"));
    if (model->tied == AQ_TIED_NO || ensured || !folder->lora.saved) return true;
    aq_model_tied_head(model, head);
    if (!*head || !aq_model_ties(model, model->context, NULL, NULL, table)) return true;
    return !aq_lora_saves(&folder->lora, model, head) && !aq_lora_saves(&folder->lora, model, table);
}
