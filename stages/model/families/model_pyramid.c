/*
 * model_pyramid.c -- a small convolutional network of square images: level after level joins squares of four into one
 * of more channels, and normalizes them over the batch.
 *
 *     images  (side^2, 3)
 *     level i: patch (side^2 / 4^(i+1), width 2^i), batch norm, ReLU        i = 0 .. levels - 1
 *     classifier
 *
 * No two levels' cuts have one shape.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "decoder_json.h"

enum { WIDTH, LEVELS, SIDE }; /* of the configuration's own fields */
enum { COLOURS = 3, LEVEL_LAYERS = 3 };

#define OWN(field) (offsetof(struct aq_model_config, own) + (field) * sizeof(uint32_t))
static const struct aq_model_key keys[] = {
    {"model.width", AQ_MODEL_U32, OWN(WIDTH), "channels", 1, 1024, "16", "pyramid: of its first level; each has twice"},
    {"model.levels", AQ_MODEL_U32, OWN(LEVELS), "levels", 1, 8, "4", "pyramid: each joins four pixels into one"},
    {"model.side", AQ_MODEL_U32, OWN(SIDE), "pixels", 2, 512, "32",
     "along an edge of an image; pyramid: a power of two"},
    {"model.classes", AQ_MODEL_U32, offsetof(struct aq_model_config, vocabulary), "classes", 0, 65536, "0",
     "pyramid: outputs; 0: the data set's"}};

static uint32_t side_of(const struct aq_model_config *model)
{
    return model->own[SIDE];
}

static void config_default(struct aq_model_config *out)
{
    *out =
        (struct aq_model_config){.kind = "pyramid", .vocabulary = 10, .own = {[WIDTH] = 16, [LEVELS] = 4, [SIDE] = 32}};
}

static bool problem(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                    size_t bytes)
{
    const uint32_t side = model->own[SIDE], levels = model->own[LEVELS];
    (void)T;
    if (index > 0 || (side >= 2 && (side & (side - 1)) == 0 && levels >= 1 && levels <= 8 && side >> levels))
        return false;
    *key = "model.side";
    snprintf(text, bytes, "%u pixels are not a power of two, or less than model.levels, %u, need", side, levels);
    return true;
}

static enum aq_status config_check(const struct aq_model_config *model)
{
    const char *key;
    char text[160];
    if (problem(model, 1, 0, &key, text, sizeof text)) return aq_fail(AQ_INVAL, "stage", "%s: %s", key, text);
    if (model->own[WIDTH] < 1 || model->own[WIDTH] > 1024)
        return aq_fail(AQ_INVAL, "stage", "model.width is %u: 1 to 1024", model->own[WIDTH]);
    if (model->vocabulary < 1 || model->vocabulary > 65536)
        return aq_fail(AQ_INVAL, "stage", "model.classes is %u: 1 to 65536", model->vocabulary);
    return AQ_OK;
}

static uint32_t layers(const struct aq_model_config *model)
{
    return 2 + LEVEL_LAYERS * model->own[LEVELS];
}

/* Behind so many levels. */
static struct aq_cut_shape shape(const struct aq_model_config *model, uint32_t levels)
{
    const uint32_t side = model->own[SIDE] >> levels;
    return (struct aq_cut_shape){.rows = side * side,
                                 .columns = levels ? model->own[WIDTH] << (levels - 1) : (uint32_t)COLOURS};
}

static void layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out)
{
    static const struct layer_kind *const kinds[] = {&layer_patch, &layer_batch_norm, &layer_relu};
    static const char *const names[] = {"patch", "norm", "relu"};
    const uint32_t level = (index + LEVEL_LAYERS - 1) / LEVEL_LAYERS, part = (index + LEVEL_LAYERS - 1) % LEVEL_LAYERS;
    (void)T;
    if (index == 0) {
        out->kind = &layer_images;
        out->out = shape(model, 0);
        snprintf(out->name, sizeof out->name, "images");
    } else if (index + 1 == layers(model)) {
        out->kind = &layer_classifier;
        out->in = shape(model, model->own[LEVELS]);
        out->out = (struct aq_cut_shape){.rows = 1, .columns = model->vocabulary};
        snprintf(out->name, sizeof out->name, "classifier");
        snprintf(out->prefix, sizeof out->prefix, "classifier.");
    } else {
        out->kind = kinds[part];
        out->in = shape(model, part == 0 ? level - 1 : level);
        out->out = shape(model, level);
        snprintf(out->name, sizeof out->name, "%s %u", names[part], level - 1);
        snprintf(out->prefix, sizeof out->prefix, "%s%u.", names[part], level - 1);
    }
}

static void describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "%u levels from %u channels on, %u x %u pixels, %u classes", model->own[LEVELS],
             model->own[WIDTH], model->own[SIDE], model->own[SIDE], model->vocabulary);
}

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "pyramid %u %u %u %u", model->own[WIDTH], model->own[LEVELS], model->own[SIDE],
             model->vocabulary);
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
        json_pack("{s:s, s:i, s:i, s:i, s:i}", "model_type", "pyramid", "width", (int)model->own[WIDTH], "levels",
                  (int)model->own[LEVELS], "side", (int)model->own[SIDE], "classes", (int)model->vocabulary);
    return decoder_write(config, json, count);
}

extern const struct stage_model stage_model_pyramid;
const struct stage_model stage_model_pyramid = {.kind = "pyramid",
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
                                                .publish_name = publish_name,
                                                .publish_config = publish_config};
