/* decoder_json.c -- what the decoders with turning heads have in common of their configurations. See the header. */
#include "decoder_json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_family.h"

bool decoder_wrong(const struct aq_model_config *model, uint32_t index, const char **key, char *text, size_t bytes)
{
    const uint32_t H = model->heads, kv = decoder_kv_heads(model), D = decoder_head_dim(model);
    uint32_t found = 0;
    if (H % kv && found++ == index) {
        *key = "model.kv_heads";
        snprintf(text, bytes, "%u do not divide %u heads (model.heads)", kv, H);
        return true;
    }
    if (!model->head_dim && model->channels % H && found++ == index) {
        *key = "model.heads";
        snprintf(text, bytes, "%u heads do not divide %u channels (model.channels); or set model.head_dim", H,
                 model->channels);
        return true;
    }
    const struct stage_model *of = stage_model_find(model->kind);
    const bool turns = !of->family || of->family->form.turns;
    if (((turns && D % 2) || D == 0) && found++ == index) {
        *key = "model.head_dim";
        snprintf(text, bytes, "%u channels a head: columns turn in pairs, so it is even", D);
        return true;
    }
    const uint32_t pairs = decoder_rotary(model) / 2, counts[] = {model->rope_short.count, model->rope_long.count};
    for (uint32_t i = 0; i < 2; i++)
        if ((counts[i] || counts[1 - i]) && counts[i] != pairs && found++ == index) {
            *key = i ? "model.rope_long" : "model.rope_short";
            snprintf(text, bytes, "%u numbers, but %u pairs of columns turn (model.rope_partial)", counts[i], pairs);
            return true;
        }
    if (model->rope_factor != 1.0f && model->rope_high <= model->rope_low && found++ == index) {
        *key = "model.rope_high";
        snprintf(text, bytes, "%g is not above model.rope_low, %g", (double)model->rope_high, (double)model->rope_low);
        return true;
    }
    return false;
}

bool decoder_problem(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                     size_t bytes)
{
    uint32_t before = 0;
    if (decoder_wrong(model, index, key, text, bytes)) return true;
    while (before < index && decoder_wrong(model, before, key, text, bytes))
        before++;
    if (before == index && model->query_beta > 0.0f && T > model->rope_original) {
        *key = "train.T";
        snprintf(text, bytes, "%u tokens: this model's queries are scaled beyond %u, which is not computed", T,
                 model->rope_original);
        return true;
    }
    if (before != index || T <= model->context) return false;
    *key = "train.T";
    snprintf(text, bytes, "%u tokens, but the model is made for %u; raise model.context", T, model->context);
    return true;
}

enum aq_status decoder_range(const char *field, double value, double least, double most)
{
    if (value >= least && value <= most) return AQ_OK;
    return aq_fail(AQ_INVAL, "stage", "model.%s is %g: %g to %g", field, value, least, most);
}

enum aq_status decoder_range_whole(const char *field, uint64_t value, uint64_t least, uint64_t most)
{
    if (value >= least && value <= most) return AQ_OK;
    return aq_fail(AQ_INVAL, "stage", "model.%s is %llu: %llu to %llu", field, (unsigned long long)value,
                   (unsigned long long)least, (unsigned long long)most);
}

enum aq_status decoder_ranges(const struct aq_model_config *model)
{
    const char *key;
    char text[160];
    AQ_TRY(decoder_range("blocks", model->blocks, 1, 1024));
    AQ_TRY(decoder_range("heads", model->heads, 1, 1024));
    AQ_TRY(decoder_range("kv_heads", model->kv_heads, 0, 1024));
    AQ_TRY(decoder_range("channels", model->channels, 1, 65536));
    AQ_TRY(decoder_range("mlp", model->mlp, 1, 1048576));
    AQ_TRY(decoder_range("vocabulary", model->vocabulary, 1, 16777216));
    AQ_TRY(decoder_range("context", model->context, 1, 1048576));
    AQ_TRY(decoder_range("head_dim", decoder_head_dim(model), 1, 2048));
    AQ_TRY(decoder_range("dropout", (double)model->dropout, 0, 0.99));
    AQ_TRY(decoder_range("init_std", (double)model->init_std, 0, 10));
    AQ_TRY(decoder_range("norm_eps", (double)model->norm_eps, 0, 1));
    AQ_TRY(decoder_range("rope_theta", (double)model->rope_theta, 1, 1e12));
    AQ_TRY(decoder_range("window_every", model->window_every, 0, 1024));
    AQ_TRY(decoder_range("window_from", model->window_from, 0, 1024));
    AQ_TRY(decoder_range("rope_linear", (double)model->rope_linear, 0, 1024));
    if (decoder_wrong(model, 0, &key, text, sizeof text)) return aq_fail(AQ_INVAL, "stage", "%s: %s", key, text);
    return AQ_OK;
}

enum aq_status decoder_read_number(const struct config_json *config, const char *key, double least, double most,
                                   double fallback, float *out)
{
    double value;
    AQ_TRY(config_json_number_or(config, key, least, most, fallback, &value));
    *out = (float)value;
    return AQ_OK;
}

bool decoder_type_is(const json_t *types, uint32_t block, const char *word)
{
    const char *type = json_string_value(json_array_get(types, block));
    return type && strcmp(type, word) == 0;
}

enum aq_status decoder_read_types(const struct config_json *config, const char *full, const char *other,
                                  uint32_t blocks, const json_t **out)
{
    const json_t *types = json_object_get(config->object, "layer_types");
    bool known = json_is_array(types) && json_array_size(types) == blocks;
    for (uint32_t block = 0; known && block < blocks; block++)
        known = decoder_type_is(types, block, full) || decoder_type_is(types, block, other);
    if (!known) return config_json_refuse(config, "layer_types", "%s or %s for each of %u blocks", full, other, blocks);
    *out = types;
    return AQ_OK;
}

/* Does the list agree with the rule for each block? */
static bool types_agree(const json_t *types, const struct aq_model_config *model)
{
    for (uint32_t block = 0; block < model->blocks; block++)
        if (decoder_type_is(types, block, "sliding_attention") != decoder_slides(model, block)) return false;
    return true;
}

enum aq_status decoder_read_windows(const struct config_json *config, uint32_t window, uint32_t every, uint32_t from,
                                    struct aq_model_config *out)
{
    out->window = window;
    out->window_every = window ? every : 0;
    out->window_from = window ? from : 0;
    if (!config_json_has(config, "layer_types")) return AQ_OK;
    const json_t *types = NULL;
    AQ_TRY(decoder_read_types(config, "full_attention", "sliding_attention", out->blocks, &types));
    if (types_agree(types, out)) return AQ_OK;
    if (!window)
        return config_json_refuse(config, "layer_types", "only full_attention is possible here: there is no window");
    out->window = out->window_every = out->window_from = 0;
    if (types_agree(types, out)) return AQ_OK; /* none slides */
    for (out->window = window; out->window_every <= out->blocks; out->window_every++)
        if (types_agree(types, out)) return AQ_OK;
    while (decoder_type_is(types, out->window_from, "full_attention"))
        out->window_from++; /* some block slides */
    for (out->window_every = 0; out->window_every <= out->blocks; out->window_every++)
        if (types_agree(types, out)) return AQ_OK;
    return config_json_refuse(config, "layer_types", "windows in all blocks from one on, or in all but every n-th");
}

json_t *decoder_number(float value)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return json_real(strtod(text, NULL));
}

json_t *decoder_layer_types(const struct aq_model_config *model)
{
    json_t *types = json_array();
    for (uint32_t block = 0; block < model->blocks; block++)
        json_array_append_new(types,
                              json_string(decoder_slides(model, block) ? "sliding_attention" : "full_attention"));
    return types;
}

enum aq_status decoder_write(json_t *config, char *json, size_t *count)
{
    *count = json_dumpb(config, json, PUBLISHED_CONFIG_BYTES, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(config);
    return *count > 0 && *count <= PUBLISHED_CONFIG_BYTES
               ? AQ_OK
               : aq_fail(AQ_NOMEM, "stage", "no memory for config.json, or too many labels");
}
