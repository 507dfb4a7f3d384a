/*
 * stage.c -- a stage's buffers, checks and bookkeeping; the mathematics is its model's.
 */
#include <stdio.h>
#include <string.h>

#include "aqsgd/device_graph.h"
#include "model_family.h"
#include "stages/augment.h"

#define STAGE_MODEL(name) &stage_model_##name,
static const struct stage_model *const models[] = {
#include "models.def"
};
#undef STAGE_MODEL

enum { MODEL_COUNT = sizeof models / sizeof models[0] };

const struct stage_model *stage_model_find(const char *kind)
{
    for (int i = 0; i < MODEL_COUNT; i++)
        if (kind && strcmp(models[i]->kind, kind) == 0) return models[i];
    return NULL;
}

const struct stage_model *stage_model_at(uint32_t index)
{
    return index < MODEL_COUNT ? models[index] : NULL;
}

const char *aq_model_task(const char *kind)
{
    const struct stage_model *model = stage_model_find(kind);
    return model ? model->task : NULL;
}

const char *aq_model_kind(uint32_t index)
{
    return index < MODEL_COUNT ? models[index]->kind : NULL;
}

const struct aq_model_key *aq_model_keys(const char *kind, uint32_t *count)
{
    const struct stage_model *model = stage_model_find(kind);
    *count = model ? model->key_count : 0;
    return model ? model->keys : NULL;
}

size_t aq_model_key_bytes(const struct aq_model_key *key)
{
    if (key->kind == AQ_MODEL_FACTORS) return sizeof(struct aq_factors);
    return key->kind == AQ_MODEL_BOOL ? sizeof(bool) : sizeof(uint32_t);
}
_Static_assert(sizeof(float) == sizeof(uint32_t) && sizeof(enum aq_tied) == sizeof(uint32_t),
               "other values of a model's keys have one size");

const char *aq_model_outputs_key(const char *kind)
{
    const struct stage_model *model = stage_model_find(kind);
    uint32_t i = 0;
    while (model && i < model->key_count && model->keys[i].offset != offsetof(struct aq_model_config, vocabulary))
        i++;
    return model && i < model->key_count ? model->keys[i].name : "model.kind";
}

uint32_t aq_model_tokens(const char *kind)
{
    const struct stage_model *model = stage_model_find(kind);
    return model ? model->tokens : 0;
}

uint32_t aq_model_side(const struct aq_model_config *model)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    return ops && ops->side ? ops->side(model) : 0;
}

void aq_model_describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    stage_model_find(model->kind)->describe(model, text, bytes);
}

void aq_model_identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    stage_model_find(model->kind)->identity(model, text, bytes);
}

bool aq_model_problem(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                      size_t bytes)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    return ops && ops->problem && ops->problem(model, T, index, key, text, bytes);
}

static const struct aq_field *field_find(const struct aq_field *fields, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

bool aq_model_fits(const struct aq_model_config *model, uint32_t T, const char *task, const struct aq_field *fields,
                   uint32_t count, const char **key, char *text, size_t bytes)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    const struct aq_task *of = aq_task_find(task ? task : ops->task);
    struct layer last;
    stage_layer(model, T, ops->layers(model) - 1, &last);
    const struct aq_field *target = field_find(fields, count, of->field);
    const uint32_t side = ops->side ? ops->side(model) : 0, has = aq_augment_side(fields, count);
    *key = "data.kind";
    if (!field_find(fields, count, ops->input))
        snprintf(text, bytes, "its samples have no %s, which model.kind %s reads", ops->input, ops->kind);
    else if (!target)
        snprintf(text, bytes,
                 "its samples have no %s, which the task %s compares with: choose another model.task or data.kind",
                 of->field, of->name);
    else if (side != has) {
        *key = "model.side";
        snprintf(text, bytes, "%u, but the data's images have %u x %u pixels: write %u", side, has, has, has);
    } else if (target->count != last.out.rows)
        snprintf(text, bytes, "its samples have %u %s each, but %s gives %u rows", target->count, of->field, ops->kind,
                 last.out.rows);
    else
        return true;
    return false;
}

void aq_model_use_task(struct aq_model_config *model, const char *task, uint32_t labels)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    const struct aq_task *of = ops ? aq_task_find(task ? task : ops->task) : NULL;
    model->labels = of && of->whole && ops->sequences ? (labels && !of->numbers ? labels : 1) : 0;
}

void aq_model_config_default(struct aq_model_config *out, const char *kind)
{
    const struct stage_model *model = stage_model_find(kind);
    *out = (struct aq_model_config){.kind = kind};
    if (model && model->family)
        decoder_family_default(model, out);
    else if (model)
        model->config_default(out);
}

enum aq_status aq_model_config_check(const struct aq_model_config *model)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    if (ops) return ops->config_check(model);
    char kinds[256] = "";
    for (int i = 0; i < MODEL_COUNT; i++)
        snprintf(kinds + strlen(kinds), sizeof kinds - strlen(kinds), "%s%s", i ? " or " : "", models[i]->kind);
    return aq_fail(AQ_INVAL, "stage", "model.kind: %s is unknown; use %s", model->kind ? model->kind : "", kinds);
}

uint32_t aq_model_layers(const struct aq_model_config *model)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    return ops ? ops->layers(model) : 0;
}

bool aq_model_extends(const struct aq_model_config *model, const char **kind)
{
    const uint32_t layers = aq_model_layers(model);
    struct layer layer;
    for (uint32_t l = 0; l < layers; l++) {
        stage_layer(model, 1, l, &layer);
        if (layer.kind->extends) continue;
        *kind = layer.kind->name;
        return false;
    }
    return layers > 0;
}

bool aq_model_causal(const struct aq_model_config *model)
{
    const uint32_t layers = aq_model_layers(model);
    struct layer layer;
    for (uint32_t l = 0; l + 1 < layers; l++) {
        stage_layer(model, 1, l, &layer);
        if (!layer.kind->extends || (layer.form && layer.form->both)) return false;
    }
    return layers > 1;
}

void aq_model_layer_name(const struct aq_model_config *model, uint32_t layer, char *text, size_t bytes)
{
    struct layer of = {.kind = NULL};
    if (stage_model_find(model->kind)) stage_layer(model, 1, layer, &of);
    snprintf(text, bytes, "%s", of.name);
}

enum aq_status aq_model_cut(const struct aq_model_config *model, uint32_t layer_end, uint32_t tokens,
                            struct aq_cut_shape *out)
{
    const uint32_t layers = aq_model_layers(model);
    struct layer layer;
    if (layer_end == 0 || layer_end >= layers)
        return aq_fail(AQ_INVAL, "stage", "a cut cannot be before layer %u of %u", layer_end, layers);
    stage_layer(model, tokens, layer_end - 1, &layer);
    *out = layer.out;
    return AQ_OK;
}

static enum aq_status config_check(const struct aq_stage_config *config)
{
    AQ_TRY(aq_model_config_check(&config->model));
    const uint32_t layers = aq_model_layers(&config->model);
    if (config->layer_first >= config->layer_end || config->layer_end > layers)
        return aq_fail(AQ_INVAL, "stage", "layers %u..%u: the model has layers 0..%u", config->layer_first,
                       config->layer_end, layers);
    if (config->B == 0 || config->B > 65536) return aq_fail(AQ_INVAL, "stage", "B is %u: 1 to 65536", config->B);
    const char *key;
    char text[128];
    if (config->T == 0) return aq_fail(AQ_INVAL, "stage", "T is 0: at least 1");
    if (aq_model_problem(&config->model, config->T, 0, &key, text, sizeof text))
        return aq_fail(AQ_INVAL, "stage", "%s: %s", key, text);
    if (!aq_task_find(config->task))
        return aq_fail(AQ_INVAL, "stage", "there is no task %s", config->task ? config->task : "");
    if (config->split && config->recompute)
        return aq_fail(AQ_INVAL, "stage", "a split backward keeps values that recompute drops: use one of them");
    if (config->versions > STAGE_VERSIONS || (config->versions > 1 && config->inference))
        return aq_fail(AQ_INVAL, "stage", "%u versions of the parameters: 1, or 2 where they are trained",
                       config->versions);
    if (config->extends && !config->inference)
        return aq_fail(AQ_INVAL, "stage", "token by token is possible only for inference");
    if (config->extends && !aq_model_extends(&config->model, &key))
        return aq_fail(AQ_INVAL, "stage", "a layer of kind %s computes all tokens of a sample at once", key);
    for (uint32_t l = config->layer_first; config->parts && l < config->layer_end; l++) {
        struct layer layer;
        stage_layer(&config->model, config->T, l, &layer);
        if (!layer.kind->parts)
            return aq_fail(AQ_INVAL, "stage", "a layer of kind %s does not know the parts of a sample",
                           layer.kind->name);
    }
    if (config->slots == 0 || config->slots > 4096)
        return aq_fail(AQ_INVAL, "stage", "%u slots: 1 to 4096", config->slots);
    if (config->lora.rank > AQ_LORA_RANK_MAX || (config->lora.rank && !(config->lora.alpha > 0)))
        return aq_fail(AQ_INVAL, "stage", "adapters of rank %u with alpha %g: at most %d, and above 0",
                       config->lora.rank, (double)config->lora.alpha, AQ_LORA_RANK_MAX);
    if (!(config->lora.dropout >= 0.0f && config->lora.dropout < 1.0f))
        return aq_fail(AQ_INVAL, "stage", "adapters with dropout %g: 0 to below 1", (double)config->lora.dropout);
    if (config->lora.dora && config->lora.dropout > 0.0f)
        return aq_fail(AQ_INVAL, "stage", "adapters with magnitudes (dora) have no dropout");
    if (config->frozen_store != AQ_FROZEN_FP32 && !frozen_store_of(config->frozen_store))
        return aq_fail(AQ_INVAL, "stage", "frozen weights are kept as %d, which is not a row of frozen_stores.def",
                       (int)config->frozen_store);
    if (config->precision < AQ_STAGE_FP32 || config->precision > AQ_STAGE_FP16)
        return aq_fail(AQ_INVAL, "stage", "precision %d: fp32, tf32, bf16 or fp16", (int)config->precision);
    return stage_stream_check(config);
}

/* One micro-batch at the cut behind layer layer_end - 1. */
static uint64_t cut_bytes(const struct aq_stage_config *config, uint32_t layer_end)
{
    struct layer layer;
    if (layer_end == 0 || layer_end == aq_model_layers(&config->model)) return 0;
    stage_layer(&config->model, config->T, layer_end - 1, &layer);
    return (uint64_t)config->B * layer.out.rows * layer.out.columns * sizeof(float);
}

/* The configuration as a stage takes it: its task resolved, nothing for a backward that never comes. */
static struct aq_stage_config config_of(const struct aq_stage_config *config)
{
    struct aq_stage_config mine = *config;
    const struct stage_model *model = stage_model_find(config->model.kind);
    if (model) mine.model.kind = model->kind; /* the caller's text may go */
    if (model && !mine.task) mine.task = model->task;
    const struct aq_task *task = aq_task_find(mine.task);
    if (task) mine.task = task->name;
    mine.split = config->split && !config->inference;
    return mine;
}

/* Floats between two buffers of gradients. */
static uint64_t gradient_stride(const struct aq_stage_size *size)
{
    const uint64_t line = AQ_ALIGN / sizeof(float);
    return (size->parameters + size->copied + size->room + line - 1) / line * line;
}

enum aq_status aq_stage_measure(const struct aq_stage_config *config, struct aq_stage_size *out)
{
    const struct aq_stage_config mine = config_of(config);
    AQ_TRY(config_check(&mine));
    struct aq_stage_size size = {.x_bytes = cut_bytes(&mine, mine.layer_first),
                                 .y_bytes = cut_bytes(&mine, mine.layer_end)};
    struct layer_tensor *tensors;
    uint32_t count;
    AQ_TRY(stage_layers_measure(&mine, &size));
    AQ_TRY(stage_tensors(&mine, &tensors, &count, NULL));
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_tensor_info *info = &tensors[i].info;
        *(info->buffer ? &size.buffers : info->frozen ? &size.frozen : &size.parameters) += info->count;
        if (info->packed) size.packed += info->count;
        if (info->copy) size.copied += info->count;
    }
    size.packed_bytes = stage_packed_place(tensors, count, config->frozen_store, count, NULL);
    aq_free(tensors);
    const bool rounds = config->weights_16bit && stage_type(config->precision) != AQ_F32;
    const uint64_t each = sizeof(float) + (rounds ? sizeof(uint16_t) : 0);
    size.frozen_bytes = (size.frozen - size.packed) * each;
    const uint64_t learns = size.parameters + size.copied; /* has gradients, and copies in 16 bits */
    const uint64_t room = size.room * (rounds ? sizeof(uint16_t) : sizeof(float)); /* behind what products read */
    size.parameter_bytes = learns * each + (size.buffers - size.copied) * sizeof(float) + size.frozen_bytes + room;
    if (size.packed) { /* they come last, as aligned as everything */
        const uint64_t before = size.parameter_bytes;
        size.parameter_bytes = (before + AQ_ALIGN - 1) / AQ_ALIGN * AQ_ALIGN + size.packed_bytes;
        size.frozen_bytes += size.parameter_bytes - before;
    }
    if (learns > 0 && !config->inference) size.gradient_bytes = (learns + size.room) * sizeof(float);
    if (learns > 0 && config->versions == 2) { /* a stage that trains nothing has no versions */
        size.gradient_bytes = 2 * gradient_stride(&size) * sizeof(float);
        size.previous_bytes = learns * each + room;
    }
    *out = size;
    return AQ_OK;
}

enum aq_status aq_stage_list(const struct aq_stage_config *config, struct aq_tensor_info **out, uint32_t *count)
{
    const struct aq_stage_config mine = config_of(config);
    AQ_TRY(config_check(&mine));
    struct layer_tensor *tensors;
    uint32_t all, trained = 0;
    struct aq_tensor_info *infos;
    AQ_TRY(stage_tensors(&mine, &tensors, &all, NULL));
    const enum aq_status status = AQ_NEW(all + 1, &infos);
    for (uint32_t i = 0; status == AQ_OK && i < all; i++) {
        if (tensors[i].info.buffer || tensors[i].info.frozen) continue;
        infos[trained++] = tensors[i].info;
    }
    aq_free(tensors);
    AQ_TRY(status);
    *out = infos;
    *count = trained;
    return AQ_OK;
}

static enum aq_status buffers_open(struct aq_stage *stage)
{
    const struct aq_stage_size *size = &stage->size;
    void *memory = NULL;
    AQ_TRY(AQ_NEW(stage->layer_count, &stage->layers));
    AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->parameter_bytes, &memory));
    stage->parameters = memory;
    const bool rounds = stage->config.weights_16bit && stage_type(stage->config.precision) != AQ_F32;
    const uint64_t floats = size->parameters + size->buffers + (size->frozen - size->packed);
    if (rounds) stage->rounded[0] = (uint16_t *)(stage->parameters + floats);
    if (size->packed) stage->packed = (uint8_t *)stage->parameters + (size->parameter_bytes - size->packed_bytes);
    if (size->previous_bytes) {
        AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->previous_bytes, &memory));
        stage->previous = memory;
        if (rounds) stage->rounded[1] = (uint16_t *)(stage->previous + size->parameters + size->copied);
    }
    if (size->gradient_bytes) {
        AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->gradient_bytes, &memory));
        stage->gradients[0] = memory;
        stage->gradients[1] = stage->previous ? stage->gradients[0] + gradient_stride(size) : NULL;
    }
    AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->slot_bytes * stage->config.slots, &memory));
    stage->slots_memory = memory;
    AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->workspace_bytes, &memory));
    stage->workspace = memory;
    return AQ_OK;
}

/* Generation has none: no token is like the last one. */
static enum aq_status graph_open(struct aq_stage *stage)
{
    if (stage->config.inference) return AQ_OK;
    AQ_TRY(aq_device_graph_open(stage->device, &stage->graph));
    if (!stage->graph || !stage->config.split) return AQ_OK;
    aq_device_graph_close(stage->device, stage->graph);
    stage->graph = NULL;
    aq_log("stage", 1, "AQ_GPU_GRAPHS has no effect here: a split backward (zb-h1) exchanges buffers in each pass");
    return AQ_OK;
}

enum aq_status aq_stage_open(struct aq_device *device, const struct aq_stage_config *config, struct aq_stage **out)
{
    struct aq_stage_size size;
    struct aq_device_info info;
    struct aq_stage_config mine = config_of(config);
    aq_device_info(device, &info);
    mine.logits_16bit = config->logits_16bit && info.rounds;
    mine.weights_16bit = info.rounds || (config->weights_16bit && config->inference);
    mine.pads_vocabulary = config->pads_vocabulary && info.rounds;
    if (config->precision == AQ_STAGE_TF32 && !info.tf32)
        return aq_fail(AQ_INVAL, "stage", "model.precision: tf32 needs a GPU, and this stage is on %s; set fp32",
                       info.name);
    AQ_TRY(aq_stage_measure(&mine, &size));
    struct aq_stage *stage;
    AQ_TRY(AQ_NEW(1, &stage));
    stage->device = device;
    stage->config = mine;
    stage->one_type = info.rounds;
    stage->task = aq_task_find(mine.task);
    stage->size = size;
    stage->layer_count = mine.layer_end - mine.layer_first;
    enum aq_status status;
    AQ_TRY_GOTO(buffers_open(stage), out);
    AQ_TRY_GOTO(stage_layers_open(stage), out);
    AQ_TRY_GOTO(stage_layers_fill(stage), out);
    AQ_TRY_GOTO(graph_open(stage), out);
    *out = stage;
    return AQ_OK;
out:
    aq_stage_close(stage);
    return status;
}

void aq_stage_close(struct aq_stage *stage)
{
    if (!stage) return;
    aq_device_graph_close(stage->device, stage->graph);
    stage_layers_close(stage);
    const struct aq_stage_size *size = &stage->size;
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->workspace, size->workspace_bytes);
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->slots_memory, size->slot_bytes * stage->config.slots);
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->gradients[0], size->gradient_bytes);
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->previous, size->previous_bytes);
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->parameters, size->parameter_bytes);
    aq_free(stage->layers);
    aq_free(stage);
}

uint32_t aq_stage_tensor_count(const struct aq_stage *stage)
{
    return stage->tensor_count;
}

uint32_t aq_stage_saved_count(const struct aq_stage *stage)
{
    return stage->saved_count;
}

void aq_stage_tensor(const struct aq_stage *stage, uint32_t index, struct aq_tensor_info *out)
{
    AQ_ASSERT(index < stage->tensor_count);
    *out = stage->tensors[index].info;
}

void aq_stage_saved(const struct aq_stage *stage, uint32_t index, struct aq_tensor_info *out)
{
    uint32_t parameter = 0, buffer = stage->tensor_count;
    for (uint32_t i = 0;; i++) {
        const bool more = buffer < stage->saved_count;
        const bool first = parameter < stage->tensor_count &&
                           (!more || stage->tensors[parameter].info.layer <= stage->tensors[buffer].info.layer);
        const uint32_t next = first ? parameter++ : buffer++;
        if (i < index) continue;
        AQ_ASSERT(next < stage->saved_count);
        *out = stage->tensors[next].info;
        return;
    }
}

uint64_t aq_stage_saved_floats(const struct aq_stage *stage)
{
    return stage->size.parameters + stage->size.buffers;
}

uint32_t aq_stage_frozen_count(const struct aq_stage *stage)
{
    return stage->all_count - stage->saved_count;
}

void aq_stage_frozen(const struct aq_stage *stage, uint32_t index, struct aq_tensor_info *out)
{
    AQ_ASSERT(index < stage->all_count - stage->saved_count);
    *out = stage->tensors[stage->saved_count + index].info;
}

uint64_t aq_stage_frozen_floats(const struct aq_stage *stage)
{
    return stage->size.frozen - stage->size.packed;
}

uint64_t aq_stage_parameter_count(const struct aq_stage *stage)
{
    return stage->size.parameters;
}

const struct aq_model_config *aq_stage_model(const struct aq_stage *stage)
{
    return &stage->config.model;
}

const struct aq_task *aq_stage_task(const struct aq_stage *stage)
{
    return stage->task;
}

float *aq_stage_parameters(struct aq_stage *stage)
{
    return stage->parameters;
}

float *aq_stage_gradients(struct aq_stage *stage)
{
    return stage->gradients[stage->gradient];
}

uint16_t *aq_stage_rounded(struct aq_stage *stage, enum aq_element *type)
{
    *type = stage_type(stage->config.precision);
    return stage->rounded[0];
}

float *aq_stage_previous(struct aq_stage *stage)
{
    return stage->previous;
}

void aq_stage_use(struct aq_stage *stage, const struct aq_stage_use *use)
{
    AQ_ASSERT(stage->config.versions == STAGE_VERSIONS || (!use->previous && use->gradients == 0));
    AQ_ASSERT(use->gradients < STAGE_VERSIONS);
    stage->version = use->previous ? 1 : 0;
    stage->gradient = use->gradients;
}

enum aq_status aq_stage_keep(struct aq_stage *stage, struct aq_stream *stream)
{
    const uint64_t count = stage->size.parameters + stage->size.copied;
    if (stage->config.versions != STAGE_VERSIONS)
        return aq_fail(AQ_INVAL, "stage", "a stage of one version has no previous parameters");
    if (!stage->previous) return AQ_OK; /* nothing is trained */
    AQ_TRY(aq_device_copy(stage->device, stage->previous, stage->parameters, count * sizeof(float), stream));
    if (!stage->rounded[0]) return AQ_OK;
    return aq_device_copy(stage->device, stage->rounded[1], stage->rounded[0], count * sizeof(uint16_t), stream);
}

static enum aq_status tensor_init(struct aq_stage *stage, const struct layer_tensor *tensor, uint64_t seed)
{
    const char *name = tensor->info.begins_as;
    if (tensor->info.packed) return stage_packed_init(stage, tensor, seed);
    const struct aq_fill_normal fill = {.x = stage->parameters + tensor->info.offset,
                                        .count = tensor->info.count,
                                        .key = aq_rng_key(seed, AQ_RNG_INIT, aq_digest(name, strlen(name)), 0),
                                        .std = tensor->std,
                                        .value = tensor->value};
    return aq_device_fill_normal(stage->device, &fill, NULL);
}

enum aq_status aq_stage_init_tensor(struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t seed)
{
    uint32_t i = 0;
    while (i < stage->all_count && stage->tensors[i].info.offset != tensor->offset)
        i++;
    AQ_ASSERT(i < stage->all_count);
    return tensor_init(stage, &stage->tensors[i], seed);
}

enum aq_status aq_stage_init(struct aq_stage *stage, uint64_t seed)
{
    for (uint32_t i = 0; i < stage->all_count; i++)
        AQ_TRY(tensor_init(stage, &stage->tensors[i], seed));
    AQ_TRY(aq_stage_magnitudes(stage));
    AQ_TRY(aq_stage_frozen_changed(stage, NULL));
    return aq_stage_parameters_changed(stage, NULL);
}

/*
 * On a CPU products read the fp32 weights and round them on their way into packed panels: there is no copy to refresh.
 */
static enum aq_status round_copies(struct aq_stage *stage, const float *x, uint16_t *y, uint64_t count,
                                   struct aq_stream *stream)
{
    const struct aq_dropout_apply round = {
        .samples = 1, .sample_elements = count, .x = x, .y = y, .y_type = stage_type(stage->config.precision)};
    if (y) AQ_TRY(aq_device_dropout(stage->device, &round, stream));
    return aq_device_stream_sync(stage->device, stream);
}

enum aq_status aq_stage_parameters_changed(struct aq_stage *stage, struct aq_stream *stream)
{
    const uint64_t count = stage->size.parameters + stage->size.copied;
    return round_copies(stage, stage->parameters, stage->rounded[0], count, stream);
}

enum aq_status aq_stage_previous_changed(struct aq_stage *stage, struct aq_stream *stream)
{
    if (!stage->previous) return AQ_OK; /* nothing is trained */
    const uint64_t count = stage->size.parameters + stage->size.copied;
    return round_copies(stage, stage->previous, stage->rounded[1], count, stream);
}

enum aq_status aq_stage_frozen_changed(struct aq_stage *stage, struct aq_stream *stream)
{
    const uint64_t before = stage->size.parameters + stage->size.buffers;
    uint16_t *rounded = stage->rounded[0] ? stage->rounded[0] + stage->size.parameters + stage->size.copied : NULL;
    return round_copies(stage, stage->parameters + before, rounded, aq_stage_frozen_floats(stage), stream);
}

enum aq_status aq_stage_zero_grads(struct aq_stage *stage, struct aq_stream *stream)
{
    const size_t bytes = (stage->size.parameters + stage->size.copied) * sizeof(float);
    if (stage->config.inference) return aq_fail(AQ_INVAL, "stage", "a stage for inference has no gradients");
    if (!stage->gradients[0]) return AQ_OK;
    AQ_TRY(stage_tied_clear(stage, stream));
    return aq_device_zero(stage->device, stage->gradients[stage->gradient], bytes, stream);
}

enum aq_status aq_stage_gradient_squares(struct aq_stage *stage, double *squares, struct aq_stream *stream)
{
    if (stage->config.inference) return aq_fail(AQ_INVAL, "stage", "a stage for inference has no gradients");
    if (!stage->gradients[0]) return AQ_OK;
    AQ_TRY(aq_device_squares(stage->device, stage->gradients[stage->gradient], stage->spans, stage->tensor_count,
                             squares, stream));
    for (uint32_t i = 0; i < stage->tensor_count; i++)
        if (stage->tensors[i].info.mirror) squares[i] = 0; /* the stage that has it first counts it */
    return AQ_OK;
}

enum aq_status aq_stage_gradient_sum2(struct aq_stage *stage, double *sum, struct aq_stream *stream)
{
    AQ_TRY(aq_stage_gradient_squares(stage, stage->squares, stream));
    for (uint32_t i = stage->tensor_count; i-- > 0;)
        *sum += stage->squares[i];
    return AQ_OK;
}

float *aq_stage_shared(struct aq_stage *stage)
{
    return stage->shared;
}

enum aq_status aq_stage_shared_gather(struct aq_stage *stage, struct aq_stream *stream)
{
    float *own = stage->shared + stage->size.shared, *at = own;
    for (uint32_t i = 0; i < stage->tensor_count; i++) {
        const struct aq_tensor_info *info = &stage->tensors[i].info;
        const size_t bytes = info->shared_count * sizeof *at;
        float *gradient = stage->gradients[stage->gradient] + info->offset + info->shared_first;
        if (!bytes) continue;
        AQ_TRY(aq_device_copy(stage->device, at, gradient, bytes, stream));
        AQ_TRY(aq_device_zero(stage->device, gradient, bytes, stream));
        at += info->shared_count;
    }
    AQ_TRY(aq_device_stream_sync(stage->device, stream));
    for (uint64_t i = 0; i < stage->size.shared; i++)
        stage->shared[i] += own[i];
    return AQ_OK;
}

enum aq_status aq_stage_shared_scatter(struct aq_stage *stage, struct aq_stream *stream)
{
    const float *at = stage->shared;
    for (uint32_t i = 0; i < stage->tensor_count; i++) {
        const struct aq_tensor_info *info = &stage->tensors[i].info;
        float *gradient = stage->gradients[stage->gradient] + info->offset + info->shared_first;
        if (!info->shared_count) continue;
        AQ_TRY(aq_device_copy(stage->device, gradient, at, info->shared_count * sizeof *at, stream));
        at += info->shared_count;
    }
    return aq_device_stream_sync(stage->device, stream);
}
