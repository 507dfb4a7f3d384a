/*
 * decoder_conv.c -- which blocks of a config.json have convolutions (LFM2), and the width of their MLPs; and the way
 * back. The precedence is as in transformers 5: layer_types, else full_attn_idxs, else all blocks have attention.
 */
#include <jansson.h>
#include <math.h>

#include "model_family.h"

static void attention_set(struct aq_model_config *out, uint32_t block)
{
    uint32_t *bits = block < 32 ? &out->attention_blocks : &out->attention_blocks_high;
    *bits |= UINT32_C(1) << block % 32;
}

static enum aq_status read_types(const struct config_json *config, struct aq_model_config *out)
{
    const json_t *types = NULL;
    AQ_TRY(decoder_read_types(config, "full_attention", "conv", out->blocks, &types));
    for (uint32_t block = 0; block < out->blocks; block++)
        if (decoder_type_is(types, block, "full_attention")) attention_set(out, block);
    return AQ_OK;
}

/* Indices of blocks that do not exist are ignored. */
static enum aq_status read_indices(const struct config_json *config, struct aq_model_config *out)
{
    const json_t *list = json_object_get(config->object, "full_attn_idxs");
    bool known = json_is_array(list);
    for (size_t i = 0; known && i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const json_int_t block = json_integer_value(value);
        known = json_is_integer(value);
        if (known && block >= 0 && block < (json_int_t)out->blocks) attention_set(out, (uint32_t)block);
    }
    return known ? AQ_OK : config_json_refuse(config, "full_attn_idxs", "a list of numbers of blocks");
}

/* An MLP of two thirds of the width, times a factor, rounded up, unless the file marks its width as final. */
static enum aq_status read_width(const struct config_json *config, struct aq_model_config *out)
{
    const bool plain = json_is_null(json_object_get(config->object, "block_ffn_dim_multiplier"));
    bool adjusts;
    double factor;
    uint32_t multiple;
    AQ_TRY(config_json_u32_or(config, "block_ff_dim", 1, 1048576, out->mlp, &out->mlp));
    AQ_TRY(config_json_bool_or(config, "block_auto_adjust_ff_dim", true, &adjusts));
    AQ_TRY(config_json_number_or(config, "block_ffn_dim_multiplier", 0, 1024, 1, &factor));
    AQ_TRY(config_json_u32_or(config, "block_multiple_of", 1, 1048576, 256, &multiple));
    if (!adjusts) return AQ_OK;
    double width = floor(2.0 * out->mlp / 3.0);
    if (!plain) width = ceil(floor(factor * width) / multiple) * multiple;
    if (width < 1.0 || width > 1048576.0)
        return config_json_refuse(config, "block_ffn_dim_multiplier", "an MLP of 1 to 1048576 channels, not %g", width);
    out->mlp = (uint32_t)width;
    return AQ_OK;
}

enum aq_status family_read_conv(const struct config_json *config, struct aq_model_config *out)
{
    out->attention_blocks = out->attention_blocks_high = 0;
    AQ_TRY(config_json_bool_or(config, "conv_bias", false, &out->conv_bias));
    AQ_TRY(read_width(config, out));
    if (config_json_has(config, "layer_types")) return read_types(config, out);
    if (config_json_has(config, "full_attn_idxs")) return read_indices(config, out);
    for (uint32_t block = 0; block < out->blocks; block++)
        attention_set(out, block);
    return AQ_OK;
}

/* The width is final then. Some programs look for it as block_ff_dim. */
void family_publish_conv(const struct aq_model_config *model, json_t *config)
{
    json_t *types = json_array(), *indices = json_array();
    for (uint32_t block = 0; block < model->blocks; block++) {
        const bool conv = decoder_convolves(model, block);
        json_array_append_new(types, json_string(conv ? "conv" : "full_attention"));
        if (!conv) json_array_append_new(indices, json_integer(block));
    }
    json_object_set_new(config, "layer_types", types);
    json_object_set_new(config, "full_attn_idxs", indices);
    json_object_set_new(config, "conv_bias", json_boolean(model->conv_bias));
    json_object_set_new(config, "block_ff_dim", json_integer(model->mlp));
    json_object_set_new(config, "block_auto_adjust_ff_dim", json_false());
    json_object_set_new(config, "block_ffn_dim_multiplier", json_real(1.0));
    json_object_set_new(config, "block_multiple_of", json_integer(256));
}
