/*
 * model_gpt2.c -- GPT-2 as a row of models.def: configuration, layers, tensors as Hugging Face names them, initial
 * values.
 *
 * Layer 0 is the embedding, 1..L the blocks, L+1 final norm, head and loss. The head is the embedding's table where
 * both are on the same stage and the model is tied; else it is a tensor of its own, lm_head.weight, that starts with
 * the same values.
 */
#include "model_gpt2.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void config_default(struct aq_model_config *out)
{
    *out = (struct aq_model_config){.kind = "gpt2",
                                    .blocks = 12,
                                    .heads = 12,
                                    .channels = 768,
                                    .vocabulary = 50257,
                                    .context = 1024,
                                    .dropout = 0.0f,
                                    .tied = true,
                                    .init_std = 0.02f};
}

static enum aq_status range_check(const char *field, uint64_t value, uint64_t least, uint64_t most)
{
    if (value >= least && value <= most) return AQ_OK;
    return aq_fail(AQ_INVAL, "stage", "model.%s is %llu: %llu to %llu", field, (unsigned long long)value,
                   (unsigned long long)least, (unsigned long long)most);
}

static enum aq_status config_check(const struct aq_model_config *model)
{
    AQ_TRY(range_check("blocks", model->blocks, 1, 1024));
    AQ_TRY(range_check("heads", model->heads, 1, 1024));
    AQ_TRY(range_check("channels", model->channels, 1, 65536));
    AQ_TRY(range_check("vocabulary", model->vocabulary, 1, 16777216));
    AQ_TRY(range_check("context", model->context, 1, 131072));
    if (model->channels % model->heads)
        return aq_fail(AQ_INVAL, "stage", "model.heads %u does not divide model.channels %u", model->heads,
                       model->channels);
    AQ_TRY(range_check("channels / model.heads", model->channels / model->heads, 1, 2048));
    if (!(model->dropout >= 0.0f && model->dropout < 1.0f))
        return aq_fail(AQ_INVAL, "stage", "model.dropout is %g: at least 0 and below 1", (double)model->dropout);
    if (!(model->init_std >= 0.0f && model->init_std <= 10.0f))
        return aq_fail(AQ_INVAL, "stage", "model.init_std is %g: 0 to 10", (double)model->init_std);
    return AQ_OK;
}

static uint32_t layers(const struct aq_model_config *model)
{
    return model->blocks + 2;
}

static void layer_name(const struct aq_model_config *model, uint32_t layer, char *text, size_t bytes)
{
    if (layer == 0)
        snprintf(text, bytes, "embedding");
    else if (layer <= model->blocks)
        snprintf(text, bytes, "block %u", layer - 1);
    else
        snprintf(text, bytes, "head");
}

static void cut(const struct aq_model_config *model, uint32_t layer_end, uint32_t tokens, struct aq_cut_shape *out)
{
    (void)layer_end; /* the residual stream is as wide everywhere */
    *out = (struct aq_cut_shape){.rows = tokens, .columns = model->channels};
}

struct list {
    struct aq_tensor_info *out; /* NULL: count only */
    uint32_t count, layer;
    uint64_t offset;
};

static void list_add(struct list *list, const char *name, uint64_t rows, uint64_t columns, bool decay)
{
    struct aq_tensor_info info = {.layer = list->layer,
                                  .dimensions = rows ? 2 : 1,
                                  .shape = {rows ? rows : columns, rows ? columns : 0},
                                  .offset = list->offset,
                                  .count = (rows ? rows : 1) * columns,
                                  .decay = decay};
    if (list->layer == 0 || strncmp(name, "ln_f", 4) == 0 || strncmp(name, "lm_head", 7) == 0)
        snprintf(info.name, sizeof info.name, "%s", name);
    else
        snprintf(info.name, sizeof info.name, "h.%u.%s", list->layer - 1, name);
    if (list->out) list->out[list->count] = info;
    list->offset += info.count;
    list->count++;
}

static bool head_tied(const struct aq_stage_config *config)
{
    return config->model.tied && config->layer_first == 0 && config->layer_end == config->model.blocks + 2;
}

static uint32_t tensors(const struct aq_stage_config *config, struct aq_tensor_info *out)
{
    const uint64_t C = config->model.channels;
    struct list list = {.out = out};
    for (uint32_t layer = config->layer_first; layer < config->layer_end; layer++) {
        list.layer = layer;
        if (layer == 0) {
            list_add(&list, "wte.weight", config->model.vocabulary, C, true);
            list_add(&list, "wpe.weight", config->model.context, C, true);
        } else if (layer <= config->model.blocks) {
            list_add(&list, "ln_1.weight", 0, C, false);
            list_add(&list, "ln_1.bias", 0, C, false);
            list_add(&list, "attn.c_attn.weight", C, 3 * C, true);
            list_add(&list, "attn.c_attn.bias", 0, 3 * C, false);
            list_add(&list, "attn.c_proj.weight", C, C, true);
            list_add(&list, "attn.c_proj.bias", 0, C, false);
            list_add(&list, "ln_2.weight", 0, C, false);
            list_add(&list, "ln_2.bias", 0, C, false);
            list_add(&list, "mlp.c_fc.weight", C, 4 * C, true);
            list_add(&list, "mlp.c_fc.bias", 0, 4 * C, false);
            list_add(&list, "mlp.c_proj.weight", 4 * C, C, true);
            list_add(&list, "mlp.c_proj.bias", 0, C, false);
        } else {
            list_add(&list, "ln_f.weight", 0, C, false);
            list_add(&list, "ln_f.bias", 0, C, false);
            if (!head_tied(config)) list_add(&list, "lm_head.weight", config->model.vocabulary, C, true);
        }
    }
    return list.count;
}

static bool ends_in(const char *text, const char *end)
{
    const size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

static void initial(const struct aq_stage_config *config, const struct aq_tensor_info *tensor, float *std, float *value,
                    const char **name)
{
    *std = 0.0f;
    *value = 0.0f;
    if (tensor->dimensions == 1) {
        *value = ends_in(tensor->name, ".weight") ? 1.0f : 0.0f; /* of a layer norm; every other vector is a bias */
        return;
    }
    *std = config->model.init_std;
    if (ends_in(tensor->name, "c_proj.weight")) *std /= sqrtf(2.0f * (float)config->model.blocks);
    if (strcmp(tensor->name, "lm_head.weight") == 0) *name = "wte.weight";
}

/* The number of values of one block's or tensor's own place in the list, found by name once, when the stage opens. */
static float *find(const struct aq_stage *stage, float *base, uint32_t layer, const char *end)
{
    if (!base) return NULL;
    for (uint32_t i = 0; i < stage->tensor_count; i++)
        if (stage->tensors[i].layer == layer && ends_in(stage->tensors[i].name, end))
            return base + stage->tensors[i].offset;
    return NULL;
}

static enum aq_status tensors_place(const struct gpt2 *gpt2, float *base, struct gpt2_tensors *out)
{
    const struct aq_stage *stage = gpt2->stage;
    void *memory = NULL;
    AQ_TRY(aq_alloc((gpt2->blocks + 1) * sizeof *out->blocks, &memory));
    out->blocks = memory;
    for (uint32_t i = 0; i < gpt2->blocks; i++) {
        const uint32_t layer = gpt2->first_block + i + 1;
        out->blocks[i] = (struct gpt2_block){.norm1_weight = find(stage, base, layer, "ln_1.weight"),
                                             .norm1_bias = find(stage, base, layer, "ln_1.bias"),
                                             .qkv_weight = find(stage, base, layer, "attn.c_attn.weight"),
                                             .qkv_bias = find(stage, base, layer, "attn.c_attn.bias"),
                                             .projection_weight = find(stage, base, layer, "attn.c_proj.weight"),
                                             .projection_bias = find(stage, base, layer, "attn.c_proj.bias"),
                                             .norm2_weight = find(stage, base, layer, "ln_2.weight"),
                                             .norm2_bias = find(stage, base, layer, "ln_2.bias"),
                                             .fc_weight = find(stage, base, layer, "mlp.c_fc.weight"),
                                             .fc_bias = find(stage, base, layer, "mlp.c_fc.bias"),
                                             .mlp_weight = find(stage, base, layer, "mlp.c_proj.weight"),
                                             .mlp_bias = find(stage, base, layer, "mlp.c_proj.bias")};
    }
    const uint32_t head = stage->config.model.blocks + 1;
    out->token_table = find(stage, base, 0, "wte.weight");
    out->position_table = find(stage, base, 0, "wpe.weight");
    out->norm_weight = find(stage, base, head, "ln_f.weight");
    out->norm_bias = find(stage, base, head, "ln_f.bias");
    out->head = head_tied(&stage->config) ? out->token_table : find(stage, base, head, "lm_head.weight");
    return AQ_OK;
}

static enum aq_status slots_place(struct gpt2 *gpt2, const struct gpt2_shape *shape)
{
    const struct aq_stage *stage = gpt2->stage;
    void *memory = NULL;
    struct gpt2_kept shared = {0};
    struct aq_arena arena = {.base = stage->workspace, .bytes = stage->size.workspace_bytes};
    gpt2_place_work(shape, &arena, &gpt2->work, &shared);
    AQ_TRY(aq_alloc(stage->config.slots * sizeof *gpt2->slots, &memory));
    gpt2->slots = memory;
    for (uint32_t i = 0; i < stage->config.slots; i++) {
        struct gpt2_slot *slot = &gpt2->slots[i];
        AQ_TRY(aq_alloc((gpt2->blocks + 1) * sizeof *slot->x, &memory));
        slot->x = memory;
        AQ_TRY(aq_alloc((gpt2->blocks + 1) * sizeof *slot->kept, &memory));
        slot->kept = memory;
        arena = (struct aq_arena){.base = (uint8_t *)stage->slots + i * stage->size.slot_bytes,
                                  .bytes = stage->size.slot_bytes};
        gpt2_place_slot(shape, &arena, slot, &shared);
    }
    return AQ_OK;
}

/* What the host writes for the device, and reads from it: pinned, so that copies need not wait for each other. */
static enum aq_status host_place(struct gpt2 *gpt2, const struct gpt2_shape *shape)
{
    const struct aq_stage *stage = gpt2->stage;
    struct aq_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < stage->config.slots; i++)
            gpt2_place_host(shape, &arena, pass ? &gpt2->slots[i] : NULL);
        if (pass > 0) break;
        AQ_TRY(aq_device_alloc(gpt2->device, AQ_MEMORY_PINNED, arena.used, &gpt2->host));
        gpt2->host_bytes = arena.used;
        arena = (struct aq_arena){.base = gpt2->host, .bytes = arena.used};
    }
    for (uint32_t i = 0; i < stage->config.slots; i++)
        AQ_TRY(aq_device_event_open(gpt2->device, &gpt2->slots[i].copied));
    return AQ_OK;
}

enum aq_status gpt2_open(struct aq_stage *stage, void **state)
{
    const struct gpt2_shape shape = gpt2_shape(&stage->config);
    void *memory = NULL;
    AQ_TRY(aq_alloc(sizeof(struct gpt2), &memory));
    struct gpt2 *gpt2 = memory;
    *state = gpt2; /* from here on stage.c closes it */
    *gpt2 = (struct gpt2){.stage = stage,
                          .device = stage->device,
                          .first = shape.first,
                          .last = shape.last,
                          .first_block = shape.first_block,
                          .blocks = shape.blocks,
                          .type = shape.type,
                          .compute = stage_compute(stage->config.precision),
                          .head_rows = shape.head_rows,
                          .head_stride = shape.head_stride,
                          .logits_slot = UINT32_MAX};
    AQ_TRY(tensors_place(gpt2, stage->parameters, &gpt2->weights));
    AQ_TRY(tensors_place(gpt2, stage->gradients, &gpt2->gradients));
    AQ_TRY(slots_place(gpt2, &shape));
    return host_place(gpt2, &shape);
}

void gpt2_close(void *state)
{
    struct gpt2 *gpt2 = state;
    for (uint32_t i = 0; gpt2->slots && i < gpt2->stage->config.slots; i++) {
        aq_free(gpt2->slots[i].x);
        aq_free(gpt2->slots[i].kept);
        aq_device_event_close(gpt2->device, gpt2->slots[i].copied);
    }
    aq_device_free(gpt2->device, AQ_MEMORY_PINNED, gpt2->host, gpt2->host_bytes);
    aq_free(gpt2->slots);
    aq_free(gpt2->weights.blocks);
    aq_free(gpt2->gradients.blocks);
    aq_free(gpt2);
}

extern const struct stage_model stage_model_gpt2;
const struct stage_model stage_model_gpt2 = {.kind = "gpt2",
                                             .config_default = config_default,
                                             .config_check = config_check,
                                             .layers = layers,
                                             .layer_name = layer_name,
                                             .cut = cut,
                                             .tensors = tensors,
                                             .initial = initial,
                                             .measure = gpt2_measure,
                                             .publish_name = gpt2_publish_name,
                                             .publish_config = gpt2_publish_config,
                                             .open = gpt2_open,
                                             .close = gpt2_close,
                                             .forward = gpt2_forward,
                                             .loss = gpt2_loss,
                                             .backward = gpt2_backward,
                                             .logits = gpt2_logits};
