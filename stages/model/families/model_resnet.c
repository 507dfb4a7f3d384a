/*
 * model_resnet.c -- residual networks (He et al. 2016): ResNet-18 and -34 of basic blocks, ResNet-50 of bottlenecks.
 *
 *     stem         model.stem cifar: (side^2, filters), a convolution of 3 x 3, as small images get it
 *                  imagenet: (side/4^2, filters), the published one: 7 x 7 and a max pooling, each of stride 2
 *     block 0 ..   four levels of 2, 2, 2, 2 (ResNet-18) or 3, 4, 6, 3 (ResNet-34, -50) blocks; the first block of each
 *                  level but the first halves the side and doubles the channels; bottlenecks give four times as many
 *     pool         (1, 8 filters, of bottlenecks 32)
 *     classifier
 *
 * Norms are batch norms, or with model.norm_groups group norms (Wu and He 2018), which keep no statistics.
 *
 * Tensors have torchvision's names. With the published stem files have their shapes, too: (N, C, K, K) and (out, in).
 * With that of CIFAR, which torchvision does not have, the stem's names are behind "stem.", and files have matrices as
 * they are computed with, (K K C, N) and (in, out).
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "decoder_json.h"

enum { SIDE = 2, DEPTH = 3, FILTERS = 4, GROUPS = 5, STEM = 6 }; /* of the configuration's own fields */
enum { LEVELS = 4, BOTTLENECK = 4, SIDE_MAX = 512 };

#define OWN(field) (offsetof(struct aq_model_config, own) + (field) * sizeof(uint32_t))
static const struct aq_model_key keys[] = {
    {"model.depth", AQ_MODEL_U32, OWN(DEPTH), "layers", 10, 50, "18", "resnet: 10, 18, 34 or 50"},
    {"model.stem", AQ_MODEL_STEM, OWN(STEM), "", 0, 0, "cifar",
     "resnet: its first layer: cifar: a convolution of 3 x 3, for small images; imagenet: the published one of 7 x 7 "
     "and stride 2 with a max pooling; its files have torchvision's names and shapes"},
    {"model.filters", AQ_MODEL_U32, OWN(FILTERS), "channels", 1, 256, "64",
     "resnet: of its first level; each has twice"},
    {"model.norm_groups", AQ_MODEL_U32, OWN(GROUPS), "groups", 0, 256, "0",
     "resnet: of its group norms, which divides model.filters (32 as published); 0: it has batch norms"},
    {"model.side", AQ_MODEL_U32, OWN(SIDE), "pixels", 2, SIDE_MAX, "32",
     "along an edge of an image; pyramid: a power of two"},
    {"model.classes", AQ_MODEL_U32, offsetof(struct aq_model_config, vocabulary), "classes", 0, 65536, "0",
     "pyramid: outputs; 0: the data set's"}};

static const uint32_t depths[][1 + LEVELS] = {{10, 1, 1, 1, 1}, {18, 2, 2, 2, 2}, {34, 3, 4, 6, 3}, {50, 3, 4, 6, 3}};

/* The blocks of each level; NULL: no such depth. */
static const uint32_t *blocks_of(const struct aq_model_config *model)
{
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++)
        if (depths[i][0] == model->own[DEPTH]) return depths[i] + 1;
    return NULL;
}

static uint32_t side_of(const struct aq_model_config *model)
{
    return model->own[SIDE];
}

static void config_default(struct aq_model_config *out)
{
    *out = (struct aq_model_config){
        .kind = "resnet", .vocabulary = 10, .own = {[SIDE] = 32, [DEPTH] = 18, [FILTERS] = 64}};
}

static bool problem(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                    size_t bytes)
{
    (void)T;
    if (index > 0) return false;
    if (!blocks_of(model)) {
        *key = "model.depth";
        snprintf(text, bytes, "there is no ResNet-%u here: 10, 18, 34 or 50", model->own[DEPTH]);
        return true;
    }
    if (model->own[GROUPS] == 0 || model->own[FILTERS] % model->own[GROUPS] == 0) return false;
    *key = "model.norm_groups";
    snprintf(text, bytes, "%u groups do not divide model.filters, which is %u", model->own[GROUPS],
             model->own[FILTERS]);
    return true;
}

static enum aq_status config_check(const struct aq_model_config *model)
{
    const char *key;
    char text[160];
    if (problem(model, 1, 0, &key, text, sizeof text)) return aq_fail(AQ_INVAL, "stage", "%s: %s", key, text);
    if (model->own[FILTERS] < 1 || model->own[FILTERS] > 256)
        return aq_fail(AQ_INVAL, "stage", "model.filters is %u: 1 to 256", model->own[FILTERS]);
    if (model->own[SIDE] < 2 || model->own[SIDE] > SIDE_MAX)
        return aq_fail(AQ_INVAL, "stage", "model.side is %u: 2 to %d", model->own[SIDE], SIDE_MAX);
    if (model->vocabulary < 1 || model->vocabulary > 65536)
        return aq_fail(AQ_INVAL, "stage", "model.classes is %u: 1 to 65536", model->vocabulary);
    return AQ_OK;
}

static uint32_t blocks(const struct aq_model_config *model)
{
    const uint32_t *each = blocks_of(model);
    return each[0] + each[1] + each[2] + each[3];
}

static uint32_t layers(const struct aq_model_config *model)
{
    return blocks(model) + 3; /* stem, pool, classifier */
}

/* Channels of what a block gives, over those of its inner convolutions. */
static uint32_t expansion(const struct aq_model_config *model)
{
    return model->own[DEPTH] >= 50 ? BOTTLENECK : 1;
}

/* Of images behind the stem, halved `times` times. */
static uint32_t rows_of(const struct aq_model_config *model, uint32_t times)
{
    uint32_t side = model->own[SIDE];
    if (model->own[STEM] == AQ_STEM_IMAGENET) times += 2;
    for (uint32_t i = 0; i < times; i++)
        side = (side + 1) / 2;
    return side * side;
}

/* Of images on a level. */
static struct aq_cut_shape shape(const struct aq_model_config *model, uint32_t level)
{
    return (struct aq_cut_shape){.rows = rows_of(model, level),
                                 .columns = (model->own[FILTERS] << level) * expansion(model)};
}

static struct aq_cut_shape stem_shape(const struct aq_model_config *model)
{
    return (struct aq_cut_shape){.rows = rows_of(model, 0), .columns = model->own[FILTERS]};
}

static void block(const struct aq_model_config *model, uint32_t index, struct layer *out)
{
    const uint32_t *each = blocks_of(model);
    uint32_t level = 0, at = index;
    while (at >= each[level])
        at -= each[level++];
    out->kind = &layer_residual;
    out->groups = model->own[GROUPS];
    out->inner = expansion(model) > 1 ? model->own[FILTERS] << level : 0;
    out->in = index == 0 ? stem_shape(model) : shape(model, at == 0 ? level - 1 : level);
    out->out = shape(model, level);
    snprintf(out->name, sizeof out->name, "block %u", index);
    snprintf(out->prefix, sizeof out->prefix, "layer%u.%u.", level + 1, at);
}

static void layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out)
{
    const uint32_t last = layers(model) - 1;
    const struct aq_cut_shape pooled = {.rows = 1, .columns = shape(model, LEVELS - 1).columns};
    const bool published = model->own[STEM] == AQ_STEM_IMAGENET;
    (void)T;
    out->transposed = published;
    if (index == 0) {
        out->kind = &layer_image_stem;
        out->groups = model->own[GROUPS];
        out->side = model->own[SIDE];
        out->out = stem_shape(model);
        snprintf(out->name, sizeof out->name, "stem");
        snprintf(out->prefix, sizeof out->prefix, "%s", published ? "" : "stem.");
    } else if (index == last - 1) {
        out->kind = &layer_row_mean;
        out->in = shape(model, LEVELS - 1);
        out->out = pooled;
        snprintf(out->name, sizeof out->name, "pool");
    } else if (index == last) {
        out->kind = &layer_classifier;
        out->in = pooled;
        out->out = (struct aq_cut_shape){.rows = 1, .columns = model->vocabulary};
        snprintf(out->name, sizeof out->name, "classifier");
        snprintf(out->prefix, sizeof out->prefix, "fc.");
    } else {
        block(model, index - 1, out);
    }
}

static void describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    const int used =
        snprintf(text, bytes, "ResNet-%u from %u channels on, %u x %u pixels, %u classes", model->own[DEPTH],
                 model->own[FILTERS], model->own[SIDE], model->own[SIDE], model->vocabulary);
    if (model->own[GROUPS] && used > 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, ", norms of %u groups", model->own[GROUPS]);
    if (model->own[STEM] == AQ_STEM_IMAGENET && strlen(text) + 1 < bytes)
        snprintf(text + strlen(text), bytes - strlen(text), ", ImageNet's stem");
}

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    const int used = snprintf(text, bytes, "resnet %u %u %u %u", model->own[DEPTH], model->own[FILTERS],
                              model->own[SIDE], model->vocabulary);
    if (model->own[GROUPS] && used > 0 && (size_t)used < bytes) /* without, it is what older runs have */
        snprintf(text + used, bytes - (size_t)used, " groups %u", model->own[GROUPS]);
    if (model->own[STEM] == AQ_STEM_IMAGENET && strlen(text) + 1 < bytes)
        snprintf(text + strlen(text), bytes - strlen(text), " imagenet");
}

/* Weights that were trained under batch norms are no weights of group norms, though their names and shapes fit. */
static const char *refuses(const struct aq_model_config *model, const char *name)
{
    if (model->own[GROUPS] == 0 || !strstr(name, ".running_")) return NULL;
    return "it is of a network with batch norms, and model.norm_groups asks for group norms";
}

static void publish_name(const char *tensor, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s", tensor);
}

/* Nobody else's format: what `aqpipe` would need to make the model again. */
static enum aq_status publish_config(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                     size_t *count)
{
    (void)tied;
    (void)end_of_text;
    json_t *config =
        json_pack("{s:s, s:i, s:i, s:i, s:i}", "model_type", "resnet", "depth", (int)model->own[DEPTH], "filters",
                  (int)model->own[FILTERS], "side", (int)model->own[SIDE], "classes", (int)model->vocabulary);
    if (model->own[GROUPS]) json_object_set_new(config, "norm_groups", json_integer(model->own[GROUPS]));
    if (model->own[STEM] == AQ_STEM_IMAGENET) json_object_set_new(config, "stem", json_string("imagenet"));
    return decoder_write(config, json, count);
}

/* What publish_config writes. transformers' config.json of this type has architectures, and other tensors. */
static const struct stage_published published[] = {{"resnet", "ResNet"}, {NULL, NULL}};

static enum aq_status read_config(const struct config_json *config, struct aq_model_config *out)
{
    AQ_TRY(config_json_u32(config, "depth", 10, 50, &out->own[DEPTH]));
    AQ_TRY(config_json_u32(config, "filters", 1, 256, &out->own[FILTERS]));
    AQ_TRY(config_json_u32(config, "side", 2, SIDE_MAX, &out->own[SIDE]));
    AQ_TRY(config_json_u32(config, "classes", 1, 65536, &out->vocabulary));
    AQ_TRY(config_json_u32_or(config, "norm_groups", 0, 256, 0, &out->own[GROUPS]));
    return config_json_one_of(config, "stem", "cifar", "cifar|imagenet", &out->own[STEM]);
}

/* Counts of the steps of batch norms, which nothing is computed with. */
static bool ignores(const char *name)
{
    static const char end[] = ".num_batches_tracked";
    const size_t bytes = strlen(name);
    return bytes >= sizeof end && strcmp(name + bytes + 1 - sizeof end, end) == 0;
}

extern const struct stage_model stage_model_resnet;
const struct stage_model stage_model_resnet = {.kind = "resnet",
                                               .task = "classification",
                                               .input = "images",
                                               .keys = keys,
                                               .key_count = sizeof keys / sizeof keys[0],
                                               .tokens = 1,
                                               .side = side_of,
                                               .describe = describe,
                                               .identity = identity,
                                               .problem = problem,
                                               .config_default = config_default,
                                               .config_check = config_check,
                                               .layers = layers,
                                               .layer = layer,
                                               .published = published,
                                               .read_config = read_config,
                                               .ignores = ignores,
                                               .refuses = refuses,
                                               .publish_name = publish_name,
                                               .publish_config = publish_config};
