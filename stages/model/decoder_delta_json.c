/*
 * decoder_delta_json.c -- which blocks have the gated delta rule: `layer_types` of a config.json, or without it
 * `full_attention_interval`; the way back; and sizes that are not computed.
 */
#include <jansson.h>

#include "model_family.h"

#define LINEAR "linear_attention"
#define FULL   "full_attention"

enum aq_status family_delta_check(const struct aq_model_config *model)
{
    const uint32_t keys = model->own[DELTA_OWN_KEYS], values = model->own[DELTA_OWN_VALUES];
    const uint32_t Dk = model->own[DELTA_OWN_DK], Dv = model->own[DELTA_OWN_DV];
    AQ_TRY(decoder_range("delta_every", model->own[DELTA_OWN_EVERY], 0, 1024));
    AQ_TRY(decoder_range("delta_keys", keys, 1, 1024));
    AQ_TRY(decoder_range("delta_values", values, 1, 1024));
    AQ_TRY(decoder_range("delta_key_dim", Dk, 1, AQ_DELTA_HEAD_MAX));
    AQ_TRY(decoder_range("delta_value_dim", Dv, 1, AQ_DELTA_HEAD_MAX));
    AQ_TRY(decoder_range("delta_taps", model->own[DELTA_OWN_TAPS], 1, AQ_CAUSAL_CONV_TAPS));
    if (values % keys)
        return aq_fail(AQ_INVAL, "stage", "model.delta_values is %u: not a multiple of model.delta_keys, %u", values,
                       keys);
    if ((uint64_t)(values / keys) * Dk * Dv > AQ_DELTA_GROUP_MAX)
        return aq_fail(AQ_INVAL, "stage",
                       "model.delta_values / model.delta_keys * model.delta_key_dim * model.delta_value_dim is %llu: "
                       "at most %d are computed",
                       (unsigned long long)(values / keys) * Dk * Dv, AQ_DELTA_GROUP_MAX);
    return AQ_OK;
}

static bool delta_agrees(const struct aq_model_config *model, const json_t *types)
{
    const struct decoder_form *form = &decoder_family_of(model)->form;
    for (uint32_t block = 0; block < model->blocks; block++)
        if (decoder_type_is(types, block, LINEAR) != decoder_is_delta(form, model, block)) return false;
    return true;
}

enum aq_status family_read_delta(const struct config_json *config, struct aq_model_config *out)
{
    const json_t *types = NULL;
    uint32_t *every = &out->own[DELTA_OWN_EVERY];
    AQ_TRY(config_json_u32_or(config, "full_attention_interval", 1, 1024, 4, every));
    if (!config_json_has(config, "layer_types")) return AQ_OK;
    AQ_TRY(decoder_read_types(config, FULL, LINEAR, out->blocks, &types));
    for (*every = 0; *every <= out->blocks; ++*every)
        if (delta_agrees(out, types)) return AQ_OK;
    return config_json_refuse(config, "layer_types", FULL " for the last of every n-th block and " LINEAR
                                                          " for all others");
}

void family_publish_delta(const struct aq_model_config *model, json_t *config)
{
    const uint32_t every = model->own[DELTA_OWN_EVERY];
    json_t *types = json_array();
    for (uint32_t block = 0; block < model->blocks; block++)
        json_array_append_new(types, json_string(decoder_is_delta(&decoder_family_of(model)->form, model, block)
                                                     ? LINEAR
                                                     : FULL));
    json_object_set_new(config, "layer_types", types);
    if (every) json_object_set_new(config, "full_attention_interval", json_integer(every));
}
