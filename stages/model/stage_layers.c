/*
 * stage_layers.c -- the layers of a stage: their tensors, and the places of everything in memory. Measured and placed
 * by the same code.
 *
 * The workspace holds, from its beginning: the gradient's way from layer to layer (none, one or two arrays, as layers
 * work in place or not), the gradient in 16 bits, what layers have for themselves (STAGE), one scratch for all (WORK),
 * and with recomputation or for inference one set of kept values for all (KEPT).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "linear.h"
#include "stage_model.h"

void stage_layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out)
{
    *out = (struct layer){.number = index};
    stage_model_find(model->kind)->layer(model, T, index, out);
}

/* --- tensors ---------------------------------------------------------------------------------------------------- */

/* In the order in which they lie. */
enum tensor_kind { TRAINED, BUFFER, FROZEN, PACKED, TENSOR_KINDS };

struct layer_list {
    const struct aq_stage_config *config;
    struct layer_tensor *out;            /* NULL: count only */
    uint32_t (*uses)[LAYER_TENSORS_MAX]; /* or NULL          */
    struct stage_layer_names *names;     /* or NULL          */
    const struct layer *layer;
    uint32_t index;        /* of the layer in the stage               */
    uint32_t named;        /* tensors that the layer has named so far */
    uint64_t trained;      /* bit k: its tensor k trains              */
    uint64_t packed;       /* bit k: its tensor k is packed           */
    uint32_t buffers;      /* of all layers: statistics               */
    char own[LAYER_TENSORS_MAX][AQ_TENSOR_NAME_MAX]; /* their names, without the layer's prefix */
    uint64_t adapted;      /* bit k: its tensor k has an adapter      */
    uint8_t adapters[LAYER_TENSORS_MAX]; /* then: its A,              */
    uint16_t ranks[LAYER_TENSORS_MAX];   /* its rank,                 */
    float scales[LAYER_TENSORS_MAX];     /* the factor of its share   */
    uint32_t adapter_first;              /* the first A               */
    bool adapting;                       /* what is named now is one  */
    enum tensor_kind kind; /* this pass takes those                   */
    uint32_t count;
    uint64_t offset;
    struct stage_alias *aliases; /* or NULL */
    uint64_t shared_first, shared_count; /* of the next tensor                         */
    uint64_t shared;                     /* of those of the stage that train, together */
    uint64_t copied;                     /* floats of a copy, or of the table that is tied */
    bool ties;                           /* a head is the first layer's table, which trains */
    uint64_t room;                       /* values that products reach past a tensor's end  */
    uint32_t alias_count, alias_most;
};

/* Is a tensor of the layer frozen? of: the first layer's that it starts as, or NULL; a tied one follows it. */
static bool is_frozen(const struct layer_list *list, uint32_t number, const char *name, const char *of)
{
    const struct aq_stage_config *config = list->config;
    struct layer first;
    if (list->adapting) return false;
    const char *own = of && (config->model.tied || !name) ? of : name;
    if (config->lora.saved && aq_lora_saves(&config->lora, &config->model, own)) return false;
    if (!config->freeze) return config->lora.rank > 0 && !(list->layer->kind->fresh >> number & 1);
    if (!of || !config->model.tied) return stage_named(config->freeze, list->layer->name, name);
    stage_layer(&config->model, config->T, 0, &first);
    return stage_named(config->freeze, first.name, of);
}

/* Its learning rate. A tied tensor, and a copy of a shared one, follow the first layer's: all stages alike. */
static float rate_of(const struct layer_list *list, const char *name, const char *of)
{
    const struct aq_stage_config *config = list->config;
    struct layer first;
    if (!config->lr_patterns) return 0.0f;
    if (!of || !config->model.tied) return stage_rate(config->lr_patterns, list->layer->name, name);
    stage_layer(&config->model, config->T, 0, &first);
    return stage_rate(config->lr_patterns, first.name, of);
}

/* At most LAYER_LINEARS_MAX. */
static uint32_t linears_of(const struct layer *layer, const struct aq_stage_config *config, struct linear *out)
{
    return layer->kind->linears ? layer->kind->linears(layer, config, out) : 0;
}

/* May tensor `number` of the layer have an adapter? */
static bool is_linear(const struct layer_list *list, uint32_t number)
{
    struct linear linears[LAYER_LINEARS_MAX];
    const uint32_t count = linears_of(list->layer, list->config, linears);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < linears[i].count; j++)
            if (linears[i].parts[j].weight == number) return true;
    return false;
}

/* begins_as: one of the first layer's, or NULL. */
static void list_take(struct layer_list *list, struct layer_tensor tensor, const char *name, const char *begins_as)
{
    const uint32_t number = list->named++;
    AQ_ASSERT(number < LAYER_TENSORS_MAX);
    tensor.info.offset = list->offset;
    tensor.info.layer = list->layer->number;
    snprintf(tensor.info.name, sizeof tensor.info.name, "%s%s", list->layer->prefix, name);
    snprintf(tensor.info.begins_as, sizeof tensor.info.begins_as, "%s", begins_as ? begins_as : tensor.info.name);
    tensor.info.frozen = !tensor.info.buffer && is_frozen(list, number, tensor.info.name, begins_as);
    tensor.info.rate = rate_of(list, tensor.info.name, begins_as);
    const bool copy = tensor.info.copy;
    tensor.info.shared_first = list->shared_first;
    tensor.info.shared_count = tensor.info.frozen ? 0 : list->shared_count;
    list->shared += tensor.info.shared_count;
    list->shared_count = 0;
    tensor.info.fresh = !list->adapting && (list->layer->kind->fresh >> number & 1);
    const bool packs = tensor.info.frozen && list->config->frozen_store != AQ_FROZEN_FP32;
    tensor.info.packed = packs && is_linear(list, number) ? list->config->frozen_store : AQ_FROZEN_FP32;
    const enum tensor_kind kind = tensor.info.buffer   ? BUFFER
                                  : tensor.info.packed ? PACKED
                                  : tensor.info.frozen ? FROZEN
                                                       : TRAINED;
    if (tensor.info.packed) list->packed |= UINT64_C(1) << number;
    if (kind == TRAINED || copy) list->trained |= UINT64_C(1) << number;
    list->buffers += kind == BUFFER && !copy;
    if (copy || tensor.info.mirror) list->copied = tensor.info.count;
    snprintf(list->own[number], sizeof list->own[number], "%s", name);
    if (list->names && !tensor.info.buffer) {
        list->names->copies[list->names->count] = begins_as && list->config->model.tied;
        list->names->linears[list->names->count] = is_linear(list, number);
        memcpy(list->names->tensors[list->names->count++], tensor.info.name, sizeof tensor.info.name);
    }
    if (kind != list->kind) return;
    if (list->uses) list->uses[list->index][number] = list->count;
    if (list->out) list->out[list->count] = tensor;
    list->offset += tensor.info.count;
    list->count++;
}

static void list_add(struct layer_list *list, const char *name, const char *begins_as, uint64_t rows, uint64_t columns,
                     float std, float value)
{
    const struct aq_tensor_info info = {.dimensions = rows ? 2 : 1,
                                        .shape = {rows ? rows : columns, rows ? columns : 0},
                                        .count = (rows ? rows : 1) * columns,
                                        .decay = rows > 0};
    list_take(list, (struct layer_tensor){.info = info, .std = std, .value = value}, name, begins_as);
}

void layer_list_add(struct layer_list *list, const char *name, uint64_t rows, uint64_t columns, float std, float value)
{
    list_add(list, name, NULL, rows, columns, std, value);
}

void layer_list_add_linear(struct layer_list *list, const char *name, uint64_t in, uint64_t out, uint32_t K,
                           float std)
{
    const struct aq_tensor_info info = {
        .dimensions = 2, .shape = {in, out}, .count = in * out, .decay = true, .transposed = true, .kernel = K};
    list_take(list, (struct layer_tensor){.info = info, .std = std}, name, NULL);
}

void layer_list_add_as(struct layer_list *list, const char *name, const char *begins_as, uint64_t rows,
                       uint64_t columns, float std, float value)
{
    list_add(list, name, begins_as, rows, columns, std, value);
}

/* Is there another stage to share it with? */
void layer_list_shared(struct layer_list *list, uint64_t first, uint64_t count)
{
    const struct aq_stage_config *config = list->config;
    if (config->inference || !config->model.tied) return;
    if (config->layer_first == 0 && config->layer_end == aq_model_layers(&config->model)) return;
    list->shared_first = first;
    list->shared_count = count;
}

void layer_list_add_cube(struct layer_list *list, const char *name, const uint64_t shape[3], float std)
{
    const struct aq_tensor_info info = {.dimensions = 3,
                                        .shape = {shape[0], shape[1], shape[2]},
                                        .count = shape[0] * shape[1] * shape[2],
                                        .decay = true};
    list_take(list, (struct layer_tensor){.info = info, .std = std}, name, NULL);
}

void layer_list_copy(struct layer_list *list, const char *name, const char *of, uint64_t rows, uint64_t columns,
                     float std)
{
    const bool mirror = list->config->model.tied == AQ_TIED_COMPRESSED;
    const struct aq_tensor_info info = {.dimensions = 2,
                                        .shape = {rows, columns},
                                        .count = rows * columns,
                                        .decay = true,
                                        .buffer = !mirror,
                                        .copy = !mirror,
                                        .mirror = mirror};
    if (is_frozen(list, list->named, name, of)) {
        layer_list_add_as(list, name, of, rows, columns, std, 0);
        return;
    }
    list_take(list, (struct layer_tensor){.info = info, .std = std}, name, of);
    if (mirror) layer_list_buffer(list, STAGE_RESIDUAL, rows * columns, 0);
}

void layer_list_skip(struct layer_list *list)
{
    list->named++;
}

void layer_list_buffer(struct layer_list *list, const char *name, uint64_t columns, float value)
{
    const struct aq_tensor_info info = {.dimensions = 1, .shape = {columns}, .count = columns, .buffer = true};
    list_take(list, (struct layer_tensor){.info = info, .value = value}, name, NULL);
}

void layer_list_alias(struct layer_list *list, const char *name, const char *of, const char *hint)
{
    const uint32_t number = list->named++;
    if (!is_frozen(list, number, name, of)) list->trained |= UINT64_C(1) << number;
    if (name && !is_frozen(list, number, name, of)) list->ties = true;
    for (uint32_t i = 0; list->out && list->uses && i < list->count; i++)
        if (strcmp(list->out[i].info.name, of) == 0) list->uses[list->index][number] = i;
    if (name && list->kind == TRAINED && list->alias_count < list->alias_most)
        list->aliases[list->alias_count++] = (struct stage_alias){.name = name, .of = of, .hint = hint};
}

void layer_list_room(struct layer_list *list, uint64_t values)
{
    if (values > list->room) list->room = values;
}

static const char WEIGHT[] = ".weight";

bool aq_tensor_adapts(const char *name, char *which, char of[AQ_TENSOR_NAME_MAX])
{
    static const char mark[] = ".lora_";
    const char *const at = strstr(name, mark);
    const size_t before = at ? (size_t)(at - name) : 0;
    if (!at || before + sizeof WEIGHT > AQ_TENSOR_NAME_MAX) return false;
    const char *const letter = at + sizeof mark - 1;
    if ((*letter != 'A' && *letter != 'B' && *letter != 'M') || strcmp(letter + 1, WEIGHT) != 0) return false;
    *which = *letter;
    memcpy(of, name, before);
    memcpy(of + before, WEIGHT, sizeof WEIGHT);
    return true;
}

/* A matrix of an adapter: `TENSOR.lora_A.weight` of a tensor TENSOR.weight. rows 0: m, which is a vector. */
static void list_adapter(struct layer_list *list, const char *of, bool out_in, char which, uint64_t rows,
                         uint64_t columns, float std)
{
    char name[AQ_TENSOR_NAME_MAX - LAYER_NAME_MAX];
    const size_t bytes = strlen(of), end = sizeof WEIGHT - 1;
    AQ_ASSERT(bytes > end && strcmp(of + bytes - end, WEIGHT) == 0);
    const struct aq_tensor_info info = {.dimensions = rows ? 2 : 1,
                                        .shape = {rows ? rows : columns, rows ? columns : 0},
                                        .count = (rows ? rows : 1) * columns,
                                        .decay = rows > 0,
                                        .adapter = true,
                                        .adapts_out_in = out_in};
    snprintf(name, sizeof name, "%.*s.lora_%c.weight", (int)(bytes - end), of, which);
    list_take(list, (struct layer_tensor){.info = info, .std = std}, name, NULL);
}

/* Behind the layer's own tensors, those of its adapters. */
static void list_adapters(struct layer_list *list)
{
    const struct aq_lora_config *lora = &list->config->lora;
    struct aq_lora_config its;
    struct linear linears[LAYER_LINEARS_MAX];
    const uint32_t count = lora->rank ? linears_of(list->layer, list->config, linears) : 0;
    list->adapting = true;
    list->adapter_first = list->named;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < linears[i].count; j++) {
            const struct linear_part *part = &linears[i].parts[j];
            if (list->adapted >> part->weight & 1) continue; /* of two products: the same adapter */
            char name[AQ_TENSOR_NAME_MAX + LAYER_NAME_MAX], of[AQ_TENSOR_NAME_MAX];
            memcpy(of, list->own[part->weight], sizeof of);
            snprintf(name, sizeof name, "%s%s", list->layer->prefix, of);
            if (lora->targets && !stage_named(lora->targets, list->layer->name, name)) continue;
            if (lora->saved && aq_lora_saves(lora, &list->config->model, name)) continue;
            aq_lora_of(lora, &list->config->model, name, &its);
            list->adapted |= UINT64_C(1) << part->weight;
            list->ranks[part->weight] = (uint16_t)its.rank;
            list->scales[part->weight] = aq_lora_scale(&its);
            list->adapters[part->weight] = (uint8_t)list->named;
            const float std = 1.0f / sqrtf(3.0f * (float)linears[i].in);
            list_adapter(list, of, linears[i].out_in, 'A', its.rank, linears[i].in, std);
            list_adapter(list, of, linears[i].out_in, 'B', part->out, its.rank, 0);
            if (lora->dora) list_adapter(list, of, linears[i].out_in, 'M', 0, part->out, 0);
        }
    list->adapting = false;
}

static void list_layer(const struct layer *layer, struct layer_list *list)
{
    list->layer = layer;
    list->index = layer->number - list->config->layer_first;
    list->named = list->trained = list->packed = list->adapted = 0;
    if (layer->kind->tensors) layer->kind->tensors(layer, list->config, list);
    list_adapters(list);
}

static void list_all(struct layer_list *list)
{
    const struct aq_stage_config *config = list->config;
    for (list->kind = TRAINED; list->kind < TENSOR_KINDS; list->kind++)
        for (uint32_t i = config->layer_first; i < config->layer_end; i++) {
            struct layer layer;
            stage_layer(&config->model, config->T, i, &layer);
            list_layer(&layer, list);
        }
}

enum aq_status stage_tensors(const struct aq_stage_config *config, struct layer_tensor **tensors, uint32_t *count,
                             uint32_t (*uses)[LAYER_TENSORS_MAX])
{
    struct layer_list list = {.config = config};
    void *memory;
    list_all(&list);
    AQ_TRY(aq_alloc((list.count + 1) * sizeof **tensors, &memory));
    list = (struct layer_list){.config = config, .out = memory, .uses = uses};
    list_all(&list);
    *tensors = memory;
    *count = list.count;
    return AQ_OK;
}

bool aq_model_ties(const struct aq_model_config *model, uint32_t T, const char *freeze,
                   const struct aq_lora_config *lora, char table[AQ_TENSOR_NAME_MAX])
{
    const struct aq_stage_config config = {.model = *model,
                                           .T = T,
                                           .layer_end = aq_model_layers(model),
                                           .freeze = freeze,
                                           .lora = lora ? *lora : (struct aq_lora_config){0}};
    struct stage_alias alias;
    struct layer_list list = {.config = &config, .aliases = &alias, .alias_most = 1};
    list_all(&list);
    if (!list.ties || list.alias_count == 0) return false;
    if (table) snprintf(table, AQ_TENSOR_NAME_MAX, "%s", alias.of);
    return true;
}

void aq_model_tied_head(const struct aq_model_config *model, char head[AQ_TENSOR_NAME_MAX])
{
    const struct aq_stage_config config = {.model = *model, .T = 1, .layer_end = aq_model_layers(model)};
    struct stage_alias alias;
    snprintf(head, AQ_TENSOR_NAME_MAX, "%s", stage_aliases(&config, &alias, 1) ? alias.name : "");
}

uint32_t stage_aliases(const struct aq_stage_config *config, struct stage_alias *out, uint32_t most)
{
    struct layer_list list = {.config = config, .aliases = out, .alias_most = most};
    list_all(&list);
    return list.alias_count;
}

void stage_layer_names(const struct aq_model_config *model, uint32_t T, uint32_t index, struct stage_layer_names *out)
{
    /* As if each layer were a stage: what shares a tensor in one has a copy then. */
    const struct aq_stage_config config = {.model = *model, .T = T, .layer_first = index, .layer_end = index + 1};
    struct layer_list list = {.config = &config, .names = out};
    struct layer layer;
    stage_layer(model, T, index, &layer);
    *out = (struct stage_layer_names){0};
    memcpy(out->name, layer.name, sizeof out->name);
    list_layer(&layer, &list);
}

/* One layer's tensors, as if it were a stage; a copy of a tied tensor trains where the first layer's does. */
static void list_alone(const struct aq_stage_config *config, struct layer *layer, struct layer_list *list)
{
    *list = (struct layer_list){.config = config};
    stage_layer(&config->model, config->T, config->layer_first, layer);
    list_layer(layer, list);
}

static struct aq_stage_config alone(const struct aq_model_config *model, uint32_t T, const char *freeze,
                                    const struct aq_lora_config *lora, uint32_t l)
{
    return (struct aq_stage_config){.model = *model,
                                    .T = T,
                                    .layer_first = l,
                                    .layer_end = l + 1,
                                    .freeze = freeze,
                                    .lora = lora ? *lora : (struct aq_lora_config){0}};
}

bool aq_model_trains(const struct aq_model_config *model, uint32_t T, const char *freeze,
                     const struct aq_lora_config *lora, uint32_t layer_end)
{
    for (uint32_t l = 0; l < layer_end; l++) {
        const struct aq_stage_config config = alone(model, T, freeze, lora, l);
        struct layer_list list;
        struct layer layer;
        if (!freeze && config.lora.rank == 0) return true;
        list_alone(&config, &layer, &list);
        if (list.trained != 0) return true;
    }
    return false;
}

bool aq_model_frozen(const struct aq_model_config *model, uint32_t T, const char *freeze,
                     const struct aq_lora_config *lora, uint32_t layer_end)
{
    if (aq_model_trains(model, T, freeze, lora, layer_end)) return false;
    for (uint32_t l = 0; l < layer_end; l++) {
        const struct aq_stage_config config = alone(model, T, freeze, lora, l);
        struct layer_list list;
        struct layer layer;
        list_alone(&config, &layer, &list);
        if (list.buffers || (model->dropout > 0.0f && layer.kind->sites > 0)) return false;
    }
    return true;
}

bool aq_model_keeps_statistics(const struct aq_model_config *model, uint32_t T)
{
    struct aq_model_config any = *model;
    if (any.vocabulary == 0) any.vocabulary = 1; /* whatever the data has: no statistics are of its size */
    for (uint32_t l = 0; l < aq_model_layers(&any); l++) {
        const struct aq_stage_config config = alone(&any, T, NULL, NULL, l);
        struct layer_list list;
        struct layer layer;
        list_alone(&config, &layer, &list);
        if (list.buffers) return true;
    }
    return false;
}

/* --- memory ----------------------------------------------------------------------------------------------------- */

/* The layers of a stage and what must be known of them to place their memory. */
struct layout {
    const struct aq_stage_config *config;
    struct stage_layer *layers;
    uint32_t count, keys; /* keys: rows of them, a key a sample */
    uint64_t shared; /* floats of shared tensors */
    uint64_t tied;   /* floats of a tied table   */
    uint64_t room;   /* behind the weights       */
    struct stage_tied_place rows; /* of its gradient from the embedding; rows 0: none */
    uint64_t flow_bytes[STAGE_FLOWS], ending_bytes, widest; /* widest: of the layers' inputs */
    uint64_t low_floats, sum_floats, dropped_bytes, own_floats; /* of adapters               */
    uint64_t unpacked_bytes; /* of the widest product of packed weights that are unpacked for it */
    struct aq_stage *stage;                                 /* NULL: only measures           */
};

/* No backward comes by this layer: what it keeps and what it reads need not last. */
static bool passes_by(const struct layout *layout, uint32_t l)
{
    return layout->config->inference || !layer_learns(&layout->layers[l].layer);
}

/* One set of kept values in the workspace serves all these layers. */
static bool shares(const struct layout *layout, uint32_t l)
{
    return layout->config->recompute || passes_by(layout, l);
}

/*
 * Backward, from the last layer to the first: where each layer's input gradient goes. A gradient that layers in place
 * only pass on to the caller is written to the caller's memory at once; otherwise two arrays alternate. The first stage
 * has no caller to give it to. A layer that passes nothing on needs such memory only if it works in place.
 */
static void flow_choose(struct layout *layout)
{
    uint32_t in_place = 0; /* layers from the first on */
    while (in_place < layout->count && layout->layers[in_place].layer.kind->in_place)
        in_place++;
    const enum aq_element stream = layer_stream(layout->config);
    uint32_t from = STAGE_FLOW_OUT;
    for (uint32_t l = layout->count; l-- > 0;) {
        struct stage_layer *layer = &layout->layers[l];
        if (layer->layer.in.rows == 0) continue; /* the batch has no gradient */
        const bool stays = layer->layer.kind->in_place && from != STAGE_FLOW_OUT;
        if (!layer_learns(&layer->layer)) break;
        if (!layer->layer.passes && !layer->layer.kind->in_place) continue;
        if (l > 0 && !layout->layers[l - 1].layer.kind->backward) continue; /* nobody wants it */
        if (stays)
            layer->flow = from;
        else if (in_place >= l)
            layer->flow = STAGE_FLOW_OUT;
        else
            layer->flow = from == STAGE_FLOW_A ? STAGE_FLOW_B : STAGE_FLOW_A;
        from = layer->flow;
        const uint64_t bytes = layer->in_bytes / aq_element_bytes(stream) * sizeof(float);
        if (bytes > layout->flow_bytes[from]) layout->flow_bytes[from] = bytes;
    }
    layout->flow_bytes[STAGE_FLOW_OUT] = 0;
}

/* Rows of a product's input, at most. */
static uint64_t linear_rows_most(const struct layer *layer, const struct aq_stage_config *config,
                                 const struct linear *linear)
{
    return linear->rows ? linear->rows : (uint64_t)config->B * layer->in.rows;
}

/* Memory of the widest of a layer's adapted products (linear_adapter.c). */
static void adapters_measure(struct layout *layout, const struct layer *layer)
{
    struct linear linears[LAYER_LINEARS_MAX];
    const uint32_t count = layer->adapted ? linears_of(layer, layout->config, linears) : 0;
    const struct aq_stage_config *config = layout->config;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t rows = linear_rows_most(layer, config, &linears[i]);
        const uint64_t out = linear_out(&linears[i]), wide = linears[i].in > out ? linears[i].in : out;
        const uint64_t dropped = rows * linears[i].in * sizeof(float);
        if (rows * wide > layout->sum_floats) layout->sum_floats = rows * wide;
        if (config->lora.dropout > 0.0f && dropped > layout->dropped_bytes)
            layout->dropped_bytes = dropped;
        for (uint32_t j = 0; j < linears[i].count; j++) {
            const struct linear_part *part = &linears[i].parts[j];
            const uint64_t floats = linears[i].in * part->out, low = rows * linear_rank(layer, part);
            if (!linear_adapted(layer, part)) continue;
            if (low > layout->low_floats) layout->low_floats = low;
            if (config->lora.dora && floats > layout->own_floats) layout->own_floats = floats;
        }
    }
}

/* Products of packed weights that read them otherwise than they are kept; the widest, with all its parts. */
static void unpacked_measure(struct layout *layout, const struct layer *layer, uint64_t packed)
{
    struct linear linears[LAYER_LINEARS_MAX];
    const struct aq_stage_config *config = layout->config;
    const enum aq_element type = stage_type(config->precision);
    const struct frozen_store *store = frozen_store_of(config->frozen_store);
    const bool as_kept = store && store->bf16 && (!config->weights_16bit || type == AQ_BF16);
    const uint32_t count = packed && !as_kept ? linears_of(layer, config, linears) : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t values = 0;
        for (uint32_t j = 0; j < linears[i].count; j++)
            if (packed >> linears[i].parts[j].weight & 1) values += linears[i].in * linears[i].parts[j].out;
        const uint64_t bytes = values * aq_element_bytes(type);
        if (bytes > layout->unpacked_bytes) layout->unpacked_bytes = bytes;
    }
}

/* Rows of keys: a layer's sites, and two for each of its adapters. None where nothing is dropped. */
static void keys_count(struct layout *layout, struct stage_layer *layer)
{
    const struct aq_stage_config *config = layout->config;
    layer->site = layout->keys;
    if (config->model.dropout > 0.0f) layout->keys += layer->layer.kind->sites;
    layer->adapter_site = layout->keys;
    for (uint64_t left = layer->layer.adapted; config->lora.dropout > 0.0f && left; left &= left - 1)
        layout->keys += 2;
}

/* Has the stage the tied table, or a copy of `copied` floats? */
static void tied_measure(struct layout *layout, uint64_t copied)
{
    const struct aq_stage_config *config = layout->config;
    struct layer first;
    const bool rows_come = copied > 0 && config->model.tied == AQ_TIED_COMPRESSED;
    layout->tied = copied;
    if (config->tied_rows == 0 || config->inference || (config->layer_first > 0 && !rows_come)) return;
    if (!aq_model_ties(&config->model, config->T, config->freeze, &config->lora, NULL)) return;
    stage_layer(&config->model, config->T, 0, &first);
    layout->rows = (struct stage_tied_place){.versions = config->versions == STAGE_VERSIONS ? STAGE_VERSIONS : 1,
                                             .rows = config->tied_rows,
                                             .vocabulary = config->model.vocabulary,
                                             .columns = first.out.columns};
    layout->tied = (uint64_t)config->model.vocabulary * first.out.columns;
}

static void layout_make(struct layout *layout)
{
    const struct aq_stage_config *config = layout->config;
    struct layer_list list = {.config = config};
    const bool all = !config->freeze && config->lora.rank == 0;
    bool trains =
        aq_model_trains(&config->model, config->T, config->freeze, &config->lora, config->layer_first);
    for (uint32_t i = 0; i < layout->count; i++) {
        struct stage_layer *to = &layout->layers[i];
        stage_layer(&config->model, config->T, config->layer_first + i, &to->layer);
        list_layer(&to->layer, &list);
        to->layer.trained = list.trained;
        to->layer.adapted = list.adapted;
        memcpy(to->layer.adapters, list.adapters, sizeof list.adapters);
        memcpy(to->layer.ranks, list.ranks, sizeof list.ranks);
        memcpy(to->layer.scales, list.scales, sizeof list.scales);
        to->layer.adapter_first = list.adapter_first;
        to->layer.passes = trains || (all && i > 0);
        adapters_measure(layout, &to->layer);
        unpacked_measure(layout, &to->layer, list.packed);
        trains = trains || list.trained != 0;
        const struct layer *layer = &to->layer;
        AQ_ASSERT(layer->kind->state_bytes <= LAYER_STRUCT_MAX && layer->kind->slot_bytes <= LAYER_STRUCT_MAX);
        to->in_bytes =
            (uint64_t)config->B * layer->in.rows * layer->in.columns * aq_element_bytes(layer_stream(config));
        keys_count(layout, to);
        if (to->in_bytes > layout->widest) layout->widest = to->in_bytes;
        const uint64_t typed = (uint64_t)config->B * layer->out.rows * layer->out.columns *
                               aq_element_bytes(stage_type(config->precision));
        /* A split backward keeps its endings in the slot. */
        if (layer->kind->ending && !config->split && typed > layout->ending_bytes) layout->ending_bytes = typed;
    }
    layout->shared = list.shared;
    layout->room = list.room;
    tied_measure(layout, list.copied);
    if (!config->inference) flow_choose(layout);
}

/* One kind of memory of one layer; to NULL: into the scratch, while measuring. */
static void layer_place(const struct layout *layout, uint32_t l, enum layer_memory what, struct aq_arena *arena,
                        void *to)
{
    _Alignas(16) uint8_t nowhere[LAYER_STRUCT_MAX];
    const struct layer *layer = &layout->layers[l].layer;
    if (layer->kind->place) layer->kind->place(layer, layout->config, what, arena, to ? to : nowhere);
}

/* Memory that layers share: each starts at the arena's present end. slot NULL: of the stage. */
static void layers_share(const struct layout *layout, enum layer_memory what, struct aq_arena *arena,
                         const struct stage_slot *slot)
{
    const size_t begin = stage_line_bytes(arena->used);
    size_t end = begin;
    for (uint32_t l = 0; l < layout->count; l++) {
        if (what == LAYER_KEPT && !shares(layout, l)) continue;
        struct aq_arena part = {.base = arena->base, .bytes = arena->bytes, .used = begin};
        void *to = slot ? slot->kept[l] : layout->stage && what != LAYER_KEPT ? layout->layers[l].state : NULL;
        layer_place(layout, l, what, &part, to);
        if (part.used > end) end = part.used;
    }
    arena->used = end;
}

/* slot NULL: only measures. workspace: the arena after its other parts, where kept values are shared. */
static void slot_place(const struct layout *layout, struct aq_arena *arena, struct stage_slot *slot,
                       const struct aq_arena *workspace)
{
    const struct aq_stage_config *config = layout->config;
    uint32_t inputs = 0;
    for (uint32_t l = 0; l < layout->count; l++) {
        if (layout->layers[l].in_bytes == 0) continue;
        const bool by = passes_by(layout, l), again = by && inputs >= 2; /* two arrays in turn: nothing is kept */
        void *x = again ? (slot ? slot->x[l - 2] : NULL)
                        : aq_arena_take(arena, by ? layout->widest : layout->layers[l].in_bytes);
        if (slot) slot->x[l] = x;
        inputs++;
    }
    struct aq_arena kept = *workspace;
    layers_share(layout, LAYER_KEPT, &kept, slot);
    for (uint32_t l = 0; l < layout->count; l++) {
        if (!shares(layout, l)) layer_place(layout, l, LAYER_KEPT, arena, slot ? slot->kept[l] : NULL);
        layer_place(layout, l, LAYER_SLOT, arena, slot ? slot->kept[l] : NULL);
    }
    if (layout->keys) {
        void *keys = aq_arena_take(arena, (uint64_t)layout->keys * config->B * sizeof *slot->keys);
        if (slot) slot->keys = keys;
    }
    if (config->lengths) {
        void *lengths = aq_arena_take(arena, config->B * sizeof *slot->lengths);
        if (slot) slot->lengths = lengths;
    }
    if (config->parts) {
        void *starts = aq_arena_take(arena, (uint64_t)config->B * config->T * sizeof *slot->starts);
        if (slot) slot->starts = starts;
    }
}

static void host_place(const struct layout *layout, struct aq_arena *arena, struct stage_slot *slot)
{
    for (uint32_t l = 0; l < layout->count; l++)
        layer_place(layout, l, LAYER_HOST, arena, slot ? slot->kept[l] : NULL);
    if (layout->keys) {
        void *keys = aq_arena_take(arena, (uint64_t)layout->keys * layout->config->B * sizeof *slot->host_keys);
        if (slot) slot->host_keys = keys;
    }
    if (layout->config->lengths) {
        void *lengths = aq_arena_take(arena, layout->config->B * sizeof *slot->host_lengths);
        if (slot) slot->host_lengths = lengths;
    }
    if (layout->config->parts) {
        const uint64_t tokens = (uint64_t)layout->config->B * layout->config->T;
        void *starts = aq_arena_take(arena, tokens * sizeof *slot->host_starts);
        if (slot) slot->host_starts = starts;
    }
}

/* Everything but the kept values that may be shared, which come last. */
static void workspace_place(const struct layout *layout, struct aq_arena *arena)
{
    struct aq_stage *stage = layout->stage;
    const bool inference = layout->config->inference;
    for (uint32_t i = STAGE_FLOW_OUT; !inference && i < STAGE_FLOWS; i++) {
        if (layout->flow_bytes[i] == 0) continue;
        float *flow = aq_arena_take(arena, layout->flow_bytes[i]);
        if (stage) stage->flow[i] = flow;
    }
    const uint64_t edge_bytes = stage_stream_edge(layout->config, &layout->layers[layout->count - 1].layer);
    void *edge = edge_bytes ? aq_arena_take(arena, edge_bytes) : NULL;
    if (stage) stage->edge = edge;
    if (!inference && layout->ending_bytes) {
        void *ending = aq_arena_take(arena, layout->ending_bytes);
        if (stage) stage->ending = ending;
    }
    if (layout->low_floats) {
        float *low = aq_arena_take(arena, layout->low_floats * sizeof *low);
        float *sum = aq_arena_take(arena, layout->sum_floats * sizeof *sum);
        void *dropped = layout->dropped_bytes ? aq_arena_take(arena, layout->dropped_bytes) : NULL;
        float *v = layout->own_floats ? aq_arena_take(arena, layout->own_floats * sizeof *v) : NULL;
        float *own = layout->own_floats ? aq_arena_take(arena, layout->own_floats * sizeof *own) : NULL;
        if (stage)
            stage->adapters =
                (struct layer_adapter_memory){.low = low, .sum = sum, .dropped = dropped, .v = v, .own = own};
    }
    if (layout->unpacked_bytes) {
        void *unpacked = aq_arena_take(arena, layout->unpacked_bytes);
        if (stage) stage->unpacked = unpacked;
    }
    if (layout->rows.rows) stage_tied_work(&layout->rows, arena, stage ? &stage->tied : NULL);
    for (uint32_t l = 0; l < layout->count; l++)
        layer_place(layout, l, LAYER_STAGE, arena, stage ? layout->layers[l].state : NULL);
    layers_share(layout, LAYER_WORK, arena, NULL);
}

static void adapters_flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    struct linear linears[LAYER_LINEARS_MAX];
    const uint32_t count = layer->adapted ? linears_of(layer, config, linears) : 0;
    for (uint32_t i = 0; i < count; i++)
        linear_adapter_flops(layer, &linears[i], (double)linear_rows_most(layer, config, &linears[i]), &config->lora,
                             out);
}

static struct layer_flops layout_flops(const struct layout *layout)
{
    struct layer_flops all = {0};
    for (uint32_t l = 0; l < layout->count; l++) {
        const struct layer *layer = &layout->layers[l].layer;
        struct aq_arena kept = {0};
        struct layer_flops of = {0};
        if (layer->kind->flops) layer->kind->flops(layer, layout->config, &of);
        adapters_flops(layer, layout->config, &of);
        layer_place(layout, l, LAYER_KEPT, &kept, NULL);
        if (!layer_learns(layer)) of.backward = of.weights = 0;
        if (layout->config->recompute && kept.used && layer_learns(layer)) of.backward += of.forward;
        all.forward += of.forward;
        all.backward += of.backward;
        all.weights += of.weights;
    }
    return all;
}

enum aq_status stage_layers_measure(const struct aq_stage_config *config, struct aq_stage_size *size)
{
    struct layout layout = {.config = config, .count = config->layer_end - config->layer_first};
    struct aq_arena workspace = {0}, slot = {0}, host = {0};
    AQ_TRY(AQ_NEW(layout.count, &layout.layers));
    layout_make(&layout);
    workspace_place(&layout, &workspace);
    slot_place(&layout, &slot, NULL, &workspace);
    layers_share(&layout, LAYER_KEPT, &workspace, NULL);
    for (uint32_t i = 0; i < config->slots; i++)
        host_place(&layout, &host, NULL);
    void *shared = aq_arena_take(&host, 2 * layout.shared * sizeof(float));
    (void)shared;
    if (layout.rows.rows) stage_tied_host(&layout.rows, &host, NULL);
    size->shared = layout.shared;
    size->tied = layout.tied;
    size->room = layout.room;
    size->host_bytes = host.used;
    size->slot_bytes = stage_line_bytes(slot.used);
    size->workspace_bytes = stage_line_bytes(workspace.used);
    const struct layer_flops flops = layout_flops(&layout);
    size->flops_forward = flops.forward;
    if (!config->inference) size->flops_backward = flops.backward;
    if (config->split) size->flops_weights = flops.weights;
    aq_free(layout.layers);
    return AQ_OK;
}

/* --- a stage's own ---------------------------------------------------------------------------------------------- */

/* Structs of layers and slots on the host; aligned for any pointer. */
static enum aq_status structs_open(struct aq_stage *stage)
{
    struct aq_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        stage->slots = aq_arena_take(&arena, stage->config.slots * sizeof *stage->slots);
        for (uint32_t l = 0; l < stage->layer_count; l++)
            stage->layers[l].state = aq_arena_take(&arena, stage->layers[l].layer.kind->state_bytes);
        for (uint32_t i = 0; i < stage->config.slots; i++) {
            void **x = aq_arena_take(&arena, stage->layer_count * sizeof *x);
            void **kept = aq_arena_take(&arena, stage->layer_count * sizeof *kept);
            for (uint32_t l = 0; l < stage->layer_count; l++) {
                void *of = aq_arena_take(&arena, stage->layers[l].layer.kind->slot_bytes);
                if (pass > 0) kept[l] = of;
            }
            if (pass > 0) stage->slots[i] = (struct stage_slot){.x = x, .kept = kept};
        }
        if (pass > 0) break;
        AQ_TRY(aq_alloc(arena.used, &stage->structs));
        arena = (struct aq_arena){.base = stage->structs, .bytes = arena.used};
    }
    return AQ_OK;
}

static void pointers_set(struct aq_stage *stage, uint32_t (*uses)[LAYER_TENSORS_MAX])
{
    for (uint32_t l = 0; l < stage->layer_count; l++)
        for (uint32_t k = 0; k < LAYER_TENSORS_MAX; k++) {
            const uint32_t index = uses[l][k];
            if (index == UINT32_MAX) continue;
            const struct aq_tensor_info *info = &stage->tensors[index].info;
            uint64_t at[FROZEN_PARTS];
            if (info->packed) {
                (void)stage_packed_place(stage->tensors, stage->all_count, stage->config.frozen_store, index, at);
                for (uint32_t p = 0; p < FROZEN_PARTS; p++)
                    stage->layers[l].packed[k].parts[p] = stage->packed + at[p];
                continue;
            }
            const bool trained = index < stage->tensor_count || info->copy, twice = trained && stage->previous;
            stage->layers[l].w[0][k] = stage->parameters + info->offset;
            stage->layers[l].w[1][k] = (twice ? stage->previous : stage->parameters) + info->offset;
            for (uint32_t v = 0; v < STAGE_VERSIONS && trained; v++)
                if (stage->gradients[v]) stage->layers[l].g[v][k] = stage->gradients[v] + info->offset;
        }
}

static enum aq_status tensors_open(struct aq_stage *stage)
{
    uint32_t(*uses)[LAYER_TENSORS_MAX];
    AQ_TRY(AQ_NEW(stage->layer_count, &uses));
    memset(uses, 0xff, stage->layer_count * sizeof *uses);
    enum aq_status status = stage_tensors(&stage->config, &stage->tensors, &stage->all_count, uses);
    if (status == AQ_OK && stage->packed)
        status = AQ_NEW((size_t)stage->layer_count * LAYER_TENSORS_MAX, &stage->packed_of);
    for (uint32_t l = 0; stage->packed_of && l < stage->layer_count; l++)
        stage->layers[l].packed = stage->packed_of + (size_t)l * LAYER_TENSORS_MAX;
    for (uint32_t i = 0; status == AQ_OK && i < stage->all_count; i++) {
        const struct aq_tensor_info *info = &stage->tensors[i].info;
        stage->tensor_count += !info->buffer && !info->frozen;
        stage->saved_count += !info->frozen;
    }
    if (status == AQ_OK) pointers_set(stage, uses);
    aq_free(uses);
    AQ_TRY(status);
    AQ_TRY(AQ_NEW(stage->tensor_count + 1, &stage->spans));
    AQ_TRY(AQ_NEW(stage->tensor_count + 1, &stage->squares));
    for (uint32_t i = 0; i < stage->tensor_count; i++)
        stage->spans[i] = (struct aq_range){stage->tensors[i].info.offset, stage->tensors[i].info.count};
    return AQ_OK;
}

enum aq_status stage_layers_open(struct aq_stage *stage)
{
    struct layout layout = {
        .config = &stage->config, .layers = stage->layers, .count = stage->layer_count, .stage = stage};
    layout_make(&layout);
    AQ_TRY(structs_open(stage));
    AQ_TRY(tensors_open(stage));
    struct aq_arena workspace = {.base = stage->workspace, .bytes = stage->size.workspace_bytes};
    workspace_place(&layout, &workspace);
    for (uint32_t i = 0; i < stage->config.slots; i++) {
        struct aq_arena slot = {.base = (uint8_t *)stage->slots_memory + i * stage->size.slot_bytes,
                                .bytes = stage->size.slot_bytes};
        slot_place(&layout, &slot, &stage->slots[i], &workspace);
        AQ_TRY(aq_device_event_open(stage->device, &stage->slots[i].copied));
    }
    for (uint32_t l = 0; l < stage->layer_count; l++) {
        struct aq_arena kept = {0};
        layer_place(&layout, l, LAYER_KEPT, &kept, NULL);
        stage->layers[l].again = stage->config.recompute && kept.used > 0;
    }
    const uint64_t bytes = stage->size.host_bytes;
    if (bytes) AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_PINNED, bytes, &stage->host));
    struct aq_arena host = {.base = stage->host, .bytes = bytes};
    for (uint32_t i = 0; stage->host && i < stage->config.slots; i++)
        host_place(&layout, &host, &stage->slots[i]);
    float *shared = aq_arena_take(&host, 2 * layout.shared * sizeof(float));
    if (layout.shared) stage->shared = shared;
    if (layout.rows.rows) stage_tied_host(&layout.rows, &host, &stage->tied);
    const enum aq_status status = stage_tied_open(stage);
    /* The caller's texts may go. */
    stage->config.lr_patterns = NULL;
    stage->config.freeze = stage->config.lora.targets = stage->config.lora.saved = NULL;
    stage->config.lora.ranks = stage->config.lora.alphas = NULL;
    return status;
}

void stage_layers_close(struct aq_stage *stage)
{
    for (uint32_t i = 0; stage->slots && i < stage->config.slots; i++)
        aq_device_event_close(stage->device, stage->slots[i].copied);
    if (stage->host) aq_device_free(stage->device, AQ_MEMORY_PINNED, stage->host, stage->size.host_bytes);
    aq_free(stage->structs);
    aq_free(stage->packed_of);
    aq_free(stage->squares);
    aq_free(stage->spans);
    aq_free(stage->tensors);
}
