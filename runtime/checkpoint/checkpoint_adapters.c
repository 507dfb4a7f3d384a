/*
 * checkpoint_adapters.c -- see checkpoint_adapters.h.
 *
 * PEFT's names: "base_model.model." before the published name of the tensor that is adapted, ".lora_A.weight",
 * ".lora_B.weight" or ".lora_magnitude_vector" in place of its ".weight"; shapes are ours. Other trained tensors are
 * there under "base_model.model." and their own names, and their modules in modules_to_save.
 */
#include "checkpoint_adapters.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_text.h"
#include "stages/model_folder.h"
#include "stages/publish.h"

enum { PUBLISHED_BYTES = AQ_TENSOR_NAME_MAX + 32 };

static const char WEIGHT[] = ".weight", BIAS[] = ".bias";

struct pair {
    char of[AQ_TENSOR_NAME_MAX];
    float *a, *b, *m, *factors; /* m NULL: rows have no own lengths */
    struct aq_weights_low_rank plus;
    uint64_t lengths;    /* of m                              */
    float alpha;
    bool fan_in_fan_out; /* the published matrix is (in, out) */
};

/* What trains beside them. */
struct beside {
    const struct aq_weights *from;
    uint32_t index;
    struct aq_weights_info info;
    bool transposed;
};

struct aq_adapters {
    const struct aq_model_config *model;
    struct aq_lora_config lora;
    struct pair *pairs;
    struct beside *beside;
    uint32_t count, beside_count;
    bool wrapped; /* the model is the text model of one of texts and images */
    bool tied;    /* the embedding's table trains, and is the head, too     */
    char head[AQ_TENSOR_NAME_MAX];
};

static struct pair *pair_find(const struct aq_adapters *adapters, const char *of)
{
    for (uint32_t i = 0; i < adapters->count; i++)
        if (strcmp(adapters->pairs[i].of, of) == 0) return &adapters->pairs[i];
    return NULL;
}

static enum aq_status lengths_read(struct pair *pair, const struct aq_weights *file, uint32_t index,
                                   const struct aq_weights_info *info)
{
    if (pair->m || info->dimensions != 1 || info->count == 0)
        return aq_fail(AQ_CORRUPT, "checkpoint", "%s are not lengths of an adapter", info->name);
    AQ_TRY(AQ_NEW(2 * info->count, &pair->m));
    pair->factors = pair->m + info->count;
    pair->lengths = info->count;
    return aq_weights_read(file, index, false, pair->m, info->count);
}

static enum aq_status half_read(struct aq_adapters *adapters, const struct aq_weights *file, uint32_t index,
                                const struct aq_weights_info *info, char which, const char *of)
{
    struct pair *pair = pair_find(adapters, of);
    if (!pair) {
        pair = &adapters->pairs[adapters->count++];
        snprintf(pair->of, sizeof pair->of, "%s", of);
    }
    if (which == 'M') return lengths_read(pair, file, index, info);
    float **to = which == 'A' ? &pair->a : &pair->b;
    const uint32_t low = which == 'A' ? 0 : 1;
    struct aq_lora_config its;
    aq_lora_of(&adapters->lora, adapters->model, of, &its);
    if (*to || info->dimensions != 2 || info->shape[low] != its.rank)
        return aq_fail(AQ_CORRUPT, "checkpoint", "%s is not a matrix of an adapter of rank %u", info->name, its.rank);
    AQ_TRY(AQ_NEW(info->count, to));
    *(which == 'A' ? &pair->plus.in : &pair->plus.out) = info->shape[1 - low];
    return aq_weights_read(file, index, false, *to, info->count);
}

static enum aq_status file_read(struct aq_adapters *adapters, const struct aq_weights *file)
{
    for (uint32_t i = 0; i < aq_weights_count(file); i++) {
        struct aq_weights_info info;
        char which, of[AQ_TENSOR_NAME_MAX];
        aq_weights_info(file, i, &info);
        if (strncmp(info.name, "optimizer.", strlen("optimizer.")) == 0) continue;
        if (aq_tensor_adapts(info.name, &which, of))
            AQ_TRY(half_read(adapters, file, i, &info, which, of));
        else
            adapters->beside[adapters->beside_count++] = (struct beside){.from = file, .index = i, .info = info};
    }
    return AQ_OK;
}

/* Sets how each tensor is oriented here, and in the published model. */
static enum aq_status orient(struct aq_adapters *adapters)
{
    const uint32_t all = adapters->count + adapters->beside_count;
    void *names_memory = NULL, *flags_memory = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(aq_alloc((all + 1) * sizeof(const char *), &names_memory), out);
    AQ_TRY_GOTO(aq_alloc(2 * (size_t)all + 2, &flags_memory), out);
    const char **names = names_memory;
    bool *transposed = flags_memory, *out_in = transposed + all + 1;
    for (uint32_t i = 0; i < all; i++)
        names[i] = i < adapters->count ? adapters->pairs[i].of : adapters->beside[i - adapters->count].info.name;
    AQ_TRY_GOTO(aq_publish_transposed(adapters->model, names, all, transposed, NULL), out);
    AQ_TRY_GOTO(aq_publish_out_in(adapters->model, names, adapters->count, out_in), out);
    for (uint32_t i = 0; i < all; i++) {
        if (i >= adapters->count) {
            adapters->beside[i - adapters->count].transposed = transposed[i];
            continue;
        }
        adapters->pairs[i].plus.out_in = out_in[i];
        adapters->pairs[i].fan_in_fan_out = !out_in[i] && !transposed[i];
    }
    status = AQ_OK;
out:
    aq_free(names_memory);
    aq_free(flags_memory);
    return status;
}

static enum aq_status pairs_check(struct aq_adapters *adapters)
{
    for (uint32_t i = 0; i < adapters->count; i++) {
        struct pair *pair = &adapters->pairs[i];
        struct aq_lora_config its;
        if (!pair->a || !pair->b || !pair->m != !adapters->lora.dora || (pair->m && pair->lengths != pair->plus.out))
            return aq_fail(AQ_CORRUPT, "checkpoint", "the adapter of %s is not whole", pair->of);
        pair->plus.a = pair->a;
        pair->plus.b = pair->b;
        pair->plus.m = pair->m;
        pair->plus.factors = pair->factors;
        aq_lora_of(&adapters->lora, adapters->model, pair->of, &its);
        pair->plus.rank = its.rank;
        pair->plus.scale = aq_lora_scale(&its);
        pair->alpha = its.alpha;
    }
    return AQ_OK;
}

static const struct beside *beside_find(const struct aq_adapters *adapters, const char *name)
{
    for (uint32_t i = 0; i < adapters->beside_count; i++)
        if (strcmp(adapters->beside[i].info.name, name) == 0) return &adapters->beside[i];
    return NULL;
}

/* The table that is the head, too, is there by both names, as PEFT has it. */
static void find_tied(struct aq_adapters *adapters)
{
    char table[AQ_TENSOR_NAME_MAX] = "";
    aq_model_tied_head(adapters->model, adapters->head);
    if (!adapters->head[0] || adapters->model->tied == AQ_TIED_NO) return;
    (void)aq_model_ties(adapters->model, adapters->model->context, NULL, NULL, table);
    const struct beside *from = beside_find(adapters, table);
    adapters->tied = from != NULL;
    if (!from || beside_find(adapters, adapters->head)) return; /* behind a cut the head has a copy */
    struct beside *again = &adapters->beside[adapters->beside_count++];
    *again = *from;
    again->info.name = adapters->head;
}

enum aq_status aq_adapters_open(struct aq_weights *const *files, uint32_t stages, const struct aq_model_config *model,
                                const struct aq_lora_config *lora, struct aq_adapters **out)
{
    uint32_t all = 1;
    for (uint32_t s = 0; s < stages; s++)
        all += aq_weights_count(files[s]);
    struct aq_adapters *adapters;
    AQ_TRY(AQ_NEW(1, &adapters));
    adapters->model = model;
    adapters->lora = *lora;
    enum aq_status status;
    AQ_TRY_GOTO(AQ_NEW(all, &adapters->pairs), out);
    AQ_TRY_GOTO(AQ_NEW(all, &adapters->beside), out);
    for (uint32_t s = 0; s < stages; s++)
        AQ_TRY_GOTO(file_read(adapters, files[s]), out);
    AQ_TRY_GOTO(pairs_check(adapters), out);
    AQ_TRY_GOTO(orient(adapters), out);
    find_tied(adapters);
    *out = adapters;
    return AQ_OK;
out:
    aq_adapters_close(adapters);
    return status;
}

void aq_adapters_close(struct aq_adapters *adapters)
{
    if (!adapters) return;
    for (uint32_t i = 0; adapters->pairs && i < adapters->count; i++) {
        aq_free(adapters->pairs[i].a);
        aq_free(adapters->pairs[i].b);
        aq_free(adapters->pairs[i].m);
    }
    aq_free(adapters->pairs);
    aq_free(adapters->beside);
    aq_free(adapters);
}

const struct aq_weights_low_rank *aq_adapters_of(const struct aq_adapters *adapters, const char *tensor)
{
    const struct pair *pair = adapters ? pair_find(adapters, tensor) : NULL;
    return pair ? &pair->plus : NULL;
}

/* ---- PEFT's folder ---- */

/* The published name of a tensor; in a model of texts and images the text model has its own name. */
static void published_name(const struct aq_adapters *adapters, const char *tensor, char out[AQ_TENSOR_NAME_MAX])
{
    static const char front[] = "model.";
    char name[AQ_TENSOR_NAME_MAX];
    aq_publish_name(adapters->model, tensor, name, sizeof name);
    const bool inside = adapters->wrapped && strncmp(name, front, sizeof front - 1) == 0;
    snprintf(out, AQ_TENSOR_NAME_MAX, "%s%.70s", inside ? "model.language_model." : "",
             inside ? name + sizeof front - 1 : name);
}

/* The published name of a tensor's module: the part before ".weight" or ".bias". */
static void module_of(const struct aq_adapters *adapters, const char *tensor, char out[AQ_TENSOR_NAME_MAX])
{
    static const char *const ends[] = {WEIGHT, BIAS};
    published_name(adapters, tensor, out);
    const size_t bytes = strlen(out);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t end = strlen(ends[i]);
        if (bytes <= end || strcmp(out + bytes - end, ends[i]) != 0) continue;
        out[bytes - end] = 0;
        return;
    }
}

/* Its A, B or m: 0, 1, 2. */
static void tensor_of_pair(const struct pair *pair, uint32_t which, const char *module, char name[PUBLISHED_BYTES],
                           struct aq_weights_tensor *out)
{
    static const char *const ends[] = {"lora_A.weight", "lora_B.weight", "lora_magnitude_vector"};
    const uint64_t shapes[][2] = {
        {pair->plus.rank, pair->plus.in}, {pair->plus.out, pair->plus.rank}, {pair->plus.out, 0}};
    const float *const values[] = {pair->a, pair->b, pair->m};
    snprintf(name, PUBLISHED_BYTES, "base_model.model.%s.%s", module, ends[which]);
    out->dimensions = which == 2 ? 1 : 2;
    memcpy(out->shape, shapes[which], sizeof shapes[which]);
    out->values = values[which];
}

static enum aq_status write_tensors(const struct aq_adapters *adapters, const char *folder)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    const uint32_t each = adapters->lora.dora ? 3 : 2, all = each * adapters->count + adapters->beside_count;
    void *tensors_memory = NULL, *names_memory = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(aq_alloc((all + 1) * sizeof(struct aq_weights_tensor), &tensors_memory), out);
    AQ_TRY_GOTO(aq_alloc((all + 1) * (size_t)PUBLISHED_BYTES, &names_memory), out);
    struct aq_weights_tensor *tensors = tensors_memory;
    char(*names)[PUBLISHED_BYTES] = names_memory;
    for (uint32_t i = 0; i < all; i++) {
        char module[AQ_TENSOR_NAME_MAX];
        const bool half = i < each * adapters->count;
        const struct beside *beside = half ? NULL : &adapters->beside[i - each * adapters->count];
        tensors[i].name = names[i];
        if (half) {
            module_of(adapters, adapters->pairs[i / each].of, module);
            tensor_of_pair(&adapters->pairs[i / each], i % each, module, names[i], &tensors[i]);
            continue;
        }
        published_name(adapters, beside->info.name, module);
        snprintf(names[i], sizeof names[i], "base_model.model.%s", module);
        tensors[i].dimensions = beside->info.dimensions;
        memcpy(tensors[i].shape, beside->info.shape, sizeof beside->info.shape);
        tensors[i].from = beside->from;
        tensors[i].index = beside->index;
        tensors[i].transposed = beside->transposed;
    }
    struct aq_weights_writer *writer;
    AQ_TRY_GOTO(aq_weights_writer_open(folder, "adapter_model.safetensors", tensors, all, metadata, &writer), out);
    while ((status = aq_weights_writer_piece(writer)) == AQ_AGAIN)
        ;
    aq_weights_writer_close(writer);
out:
    aq_free(tensors_memory);
    aq_free(names_memory);
    return status;
}

static bool array_has(const json_t *array, const char *text)
{
    const json_t *entry;
    size_t i;
    json_array_foreach(array, i, entry) if (strcmp(json_string_value(entry), text) == 0) return true;
    return false;
}

/* The number that a person wrote: 0.1 and not 0.100000001. */
static double shortest(float value)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return strtod(text, NULL);
}

static enum aq_status write_config(const struct aq_adapters *adapters, const char *folder, const char *base)
{
    json_t *targets = json_array(), *saved = json_array(), *ranks = json_object(), *alphas = json_object();
    char module[AQ_TENSOR_NAME_MAX];
    struct aq_text text = {0};
    for (uint32_t i = 0; i < adapters->count; i++) {
        const struct pair *pair = &adapters->pairs[i];
        module_of(adapters, pair->of, module);
        json_array_append_new(targets, json_string(module));
        if (pair->plus.rank != adapters->lora.rank)
            json_object_set_new(ranks, module, json_integer((json_int_t)pair->plus.rank));
        if (pair->alpha != adapters->lora.alpha) json_object_set_new(alphas, module, json_real(shortest(pair->alpha)));
    }
    for (uint32_t i = 0; i < adapters->beside_count; i++) {
        module_of(adapters, adapters->beside[i].info.name, module);
        if (!array_has(saved, module)) json_array_append_new(saved, json_string(module));
    }
    if (json_array_size(saved) == 0) {
        json_decref(saved);
        saved = json_null();
    }
    json_t *config = json_pack(
        "{s:s, s:i, s:f, s:f, s:b, s:b, s:s, s:b, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "peft_type", "LORA", "r",
        (int)adapters->lora.rank, "lora_alpha", shortest(adapters->lora.alpha), "lora_dropout",
        shortest(adapters->lora.dropout), "use_rslora", adapters->lora.rslora, "use_dora", adapters->lora.dora, "bias",
        "none", "fan_in_fan_out", adapters->count > 0 && adapters->pairs[0].fan_in_fan_out, "inference_mode", 1,
        "init_lora_weights", 1, "target_modules", targets, "modules_to_save", saved, "base_model_name_or_path",
        base ? json_string(base) : json_null(), "task_type", json_null(), "rank_pattern", ranks, "alpha_pattern",
        alphas);
    if (adapters->tied) json_object_set_new(config, "ensure_weight_tying", json_true());
    enum aq_status status = aq_json_text(config, JSON_INDENT(2) | JSON_SORT_KEYS, &text);
    json_decref(config);
    if (status == AQ_OK)
        status = aq_file_replace(folder, "adapter_config.json", 0600, aq_text_of(&text), strlen(aq_text_of(&text)));
    aq_text_deinit(&text);
    return status;
}

enum aq_status aq_adapters_write(struct aq_adapters *adapters, const char *folder, const char *base)
{
    adapters->wrapped = aq_model_folder_wraps(base);
    AQ_TRY(write_tensors(adapters, folder));
    return write_config(adapters, folder, base);
}
