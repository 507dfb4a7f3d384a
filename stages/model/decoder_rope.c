/*
 * decoder_rope.c -- rotary embeddings of a config.json, in the order of transformers 5, and the way back.
 *
 * `rope_scaling`, if it has any key, goes before `rope_parameters`; theta may also be at the top level. "type" is an
 * older word for "rope_type". A family with two thetas has an object of each sort of blocks in `rope_parameters`.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model_family.h"

/* Llama and its kin rotate whole heads whatever partial_rotary_factor is: runs of this program have their own key. */
#define OWN_PARTIAL "aqpipe_partial_rotary_factor"
#define PARTIAL     "partial_rotary_factor"
#define ORIGINAL    "original_max_position_embeddings"

static const struct {
    const char *name;
    uint32_t kind; /* 0: plain */
} kinds[] = {{"default", 0},          {"llama3", FAMILY_LLAMA3},     {"linear", FAMILY_LINEAR},
           {"yarn", FAMILY_YARN}, {"longrope", FAMILY_LONGROPE}, {"su", FAMILY_LONGROPE}, {"yarn", FAMILY_LONGROPE}};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* One of the kinds that the type has. */
static enum aq_status read_kind(const struct config_json *rope, uint32_t have, uint32_t *kind)
{
    const char *key = config_json_has(rope, "rope_type") ? "rope_type" : "type";
    uint32_t allowed[KINDS], count = 0, at;
    char words[64];
    size_t used = 0;
    for (uint32_t i = 0; i < KINDS; i++) {
        if (kinds[i].kind && !(have & kinds[i].kind)) continue;
        used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", used ? "|" : "", kinds[i].name);
        allowed[count++] = kinds[i].kind;
    }
    AQ_TRY(config_json_one_of(rope, key, "default", words, &at));
    *kind = allowed[at];
    return AQ_OK;
}

static enum aq_status read_original(const struct config_json *config, const struct config_json *rope,
                                    const struct family_type *type, struct aq_model_config *out)
{
    if (type->original)
        return config_json_u32_or(config, ORIGINAL, 1, 1048576, type->original, &out->rope_original);
    if (config_json_has(config, ORIGINAL)) return config_json_u32(config, ORIGINAL, 1, 1048576, &out->rope_original);
    return config_json_u32_or(rope, ORIGINAL, 1, 1048576, out->context, &out->rope_original);
}

static double mscale(double factor, double scale)
{
    return factor <= 1 ? 1.0 : 0.1 * scale * log(factor) + 1.0;
}

/* Peng et al. 2023. If the file does not have the factor of cosines and sines, it follows from the other one. */
static enum aq_status read_yarn(const struct config_json *config, const struct config_json *rope,
                                const struct family_type *type, struct aq_model_config *out)
{
    double some, all, attention;
    AQ_TRY(read_original(config, rope, type, out));
    const double context = (double)out->context / out->rope_original;
    AQ_TRY(decoder_read_number(rope, "factor", 1, 1024, context < 1 ? 1 : context, &out->rope_yarn));
    AQ_TRY(decoder_read_number(rope, "beta_fast", 0, 1024, 32, &out->rope_fast));
    AQ_TRY(decoder_read_number(rope, "beta_slow", 0, 1024, 1, &out->rope_slow));
    if (out->rope_fast == 0.0f) out->rope_fast = 32;
    if (out->rope_slow == 0.0f) out->rope_slow = 1;
    AQ_TRY(config_json_number_or(rope, "mscale", 0, 1024, 0, &some));
    AQ_TRY(config_json_number_or(rope, "mscale_all_dim", 0, 1024, 0, &all));
    AQ_TRY(config_json_only(rope, "truncate", true));
    const double factor = (double)out->rope_yarn;
    const double follows = some > 0 && all > 0 ? mscale(factor, some) / mscale(factor, all) : mscale(factor, 1);
    AQ_TRY(config_json_number_or(rope, "attention_factor", 0, 1024, follows, &attention));
    out->rope_attention = (float)attention;
    return AQ_OK;
}

/* A number for each pair of columns that turn. */
static enum aq_status read_factors(const struct config_json *rope, const char *key, uint32_t pairs,
                                   struct aq_factors *out)
{
    const json_t *list = json_object_get(rope->object, key);
    bool good = json_array_size(list) == pairs;
    if (pairs > AQ_FACTORS_MAX)
        return config_json_refuse(rope, key, "at most %d numbers: %u pairs of columns turn (head_dim, " PARTIAL ")",
                                  AQ_FACTORS_MAX, pairs);
    *out = (struct aq_factors){.count = pairs};
    for (uint32_t i = 0; good && i < pairs; i++) {
        const json_t *factor = json_array_get(list, i);
        const double value = json_number_value(factor);
        good = json_is_number(factor) && value >= 1e-6 && value <= 1e6;
        out->of[i] = (float)value;
    }
    return good ? AQ_OK : config_json_refuse(rope, key, "%u numbers from 1e-6 to 1e6, one per pair of columns", pairs);
}

/* Ding et al. 2024. If the file does not have the factor of cosines and sines, it follows from the contexts. */
static enum aq_status read_longrope(const struct config_json *config, const struct config_json *rope,
                                    const struct family_type *type, struct aq_model_config *out)
{
    double factor, attention;
    AQ_TRY(read_original(config, rope, type, out));
    AQ_TRY(read_factors(rope, "short_factor", decoder_rotary(out) / 2, &out->rope_short));
    AQ_TRY(read_factors(rope, "long_factor", decoder_rotary(out) / 2, &out->rope_long));
    AQ_TRY(config_json_number_or(rope, "factor", 1e-6, 1e6, (double)out->context / out->rope_original, &factor));
    const double follows = factor <= 1 ? 1.0 : sqrt(1.0 + log(factor) / log(out->rope_original));
    AQ_TRY(config_json_number_or(rope, "attention_factor", 0, 1024, follows, &attention));
    out->rope_attention = (float)attention;
    return AQ_OK;
}

static enum aq_status read_scaling(const struct config_json *config, const struct config_json *rope,
                                   const struct family_type *type, struct aq_model_config *out)
{
    uint32_t kind;
    AQ_TRY(read_kind(rope, type->ropes, &kind));
    if (type->partial > 0)
        AQ_TRY(decoder_read_number(rope, PARTIAL, 0, 1, (double)out->rope_partial, &out->rope_partial));
    if (kind == 0) return AQ_OK;
    if (type->partial == 0) { /* with a scaling transformers takes it */
        AQ_TRY(config_json_only_number(config, PARTIAL, 1));
        AQ_TRY(config_json_only_number(rope, PARTIAL, 1));
    }
    if (kind == FAMILY_LONGROPE) return read_longrope(config, rope, type, out);
    if (kind == FAMILY_LINEAR) return decoder_read_number(rope, "factor", 1, 1024, 1.0, &out->rope_linear);
    if (kind == FAMILY_YARN) return read_yarn(config, rope, type, out);
    AQ_TRY(decoder_read_number(rope, "factor", 1, 1024, 1.0, &out->rope_factor));
    AQ_TRY(decoder_read_number(rope, "low_freq_factor", 0, 1024, 1.0, &out->rope_low));
    AQ_TRY(decoder_read_number(rope, "high_freq_factor", 0, 1024, 4.0, &out->rope_high));
    return read_original(config, rope, type, out);
}

/* Theta of blocks with a window. */
static enum aq_status read_local(const struct config_json *sorts, struct aq_model_config *out)
{
    struct config_json sliding;
    AQ_TRY(config_json_object(sorts, "sliding_attention", "rope_parameters.sliding_attention.", &sliding));
    if (!sliding.object) return AQ_OK;
    AQ_TRY(config_json_one_of(&sliding, "rope_type", "default", "default", NULL));
    return decoder_read_number(&sliding, "rope_theta", 1, 1e12, (double)out->rope_local, &out->rope_local);
}

/* Two sorts of blocks: rope_scaling is of those without a window, and of what it lacks rope_parameters has the rest. */
static enum aq_status read_sorts(const struct config_json *config, const struct config_json *scaling,
                                 const struct family_type *type, struct aq_model_config *out)
{
    struct config_json sorts, full;
    AQ_TRY(decoder_read_number(config, "rope_local_base_freq", 1, 1e12, type->theta_local, &out->rope_local));
    AQ_TRY(config_json_object(config, "rope_parameters", "rope_parameters.", &sorts));
    AQ_TRY(config_json_object(&sorts, "full_attention", "rope_parameters.full_attention.", &full));
    if (full.object)
        AQ_TRY(decoder_read_number(&full, "rope_theta", 1, 1e12, (double)out->rope_theta, &out->rope_theta));
    if (scaling->object)
        AQ_TRY(decoder_read_number(scaling, "rope_theta", 1, 1e12, (double)out->rope_theta, &out->rope_theta));
    const struct config_json *of = scaling->object ? scaling : &full;
    if (of->object) AQ_TRY(read_scaling(config, of, type, out));
    return sorts.object ? read_local(&sorts, out) : AQ_OK;
}

enum aq_status family_read_rope(const struct config_json *config, const struct family_type *type,
                                struct aq_model_config *out)
{
    struct config_json rope;
    AQ_TRY(decoder_read_number(config, "rope_theta", 1, 1e12, type->theta, &out->rope_theta));
    if (type->partial > 0)
        AQ_TRY(decoder_read_number(config, PARTIAL, 0, 1, type->partial, &out->rope_partial));
    else
        AQ_TRY(decoder_read_number(config, OWN_PARTIAL, 0, 1, 1.0, &out->rope_partial));
    out->rope_short = out->rope_long = (struct aq_factors){0};
    out->rope_factor = out->rope_linear = out->rope_yarn = out->rope_attention = 1.0f;
    AQ_TRY(config_json_object(config, "rope_scaling", "rope_scaling.", &rope));
    if (json_object_size(rope.object) == 0) rope.object = NULL;
    if (type->theta_local > 0) return read_sorts(config, &rope, type, out);
    if (!rope.object) AQ_TRY(config_json_object(config, "rope_parameters", "rope_parameters.", &rope));
    if (!rope.object && type->query_beta) return config_json_refuse(config, "rope_parameters", "an object of keys");
    if (!rope.object) return AQ_OK;
    AQ_TRY(decoder_read_number(&rope, "rope_theta", 1, 1e12, (double)out->rope_theta, &out->rope_theta));
    if (type->query_beta) { /* scores are scaled from the context before on, whatever the type */
        AQ_TRY(decoder_read_number(&rope, "llama_4_scaling_beta", 0, 1024, 0, &out->query_beta));
        AQ_TRY(read_original(config, &rope, type, out));
    }
    return read_scaling(config, &rope, type, out);
}

/* ---- To config.json. */

static json_t *factors_of(const struct aq_factors *factors)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < factors->count; i++)
        json_array_append_new(list, decoder_number(factors->of[i]));
    return list;
}

/* NULL: the frequencies are as they are. */
static json_t *scaling_of(const struct aq_model_config *model)
{
    if (model->rope_short.count)
        return json_pack("{s:s, s:o, s:o, s:o, s:i}", "rope_type", "longrope", "short_factor",
                         factors_of(&model->rope_short), "long_factor", factors_of(&model->rope_long),
                         "attention_factor", decoder_number(model->rope_attention), ORIGINAL,
                         (int)model->rope_original);
    if (model->rope_factor > 1.0f)
        return json_pack("{s:s, s:o, s:o, s:o, s:i}", "rope_type", "llama3", "factor",
                         decoder_number(model->rope_factor), "low_freq_factor", decoder_number(model->rope_low),
                         "high_freq_factor", decoder_number(model->rope_high), ORIGINAL, (int)model->rope_original);
    if (model->rope_yarn > 1.0f)
        return json_pack("{s:s, s:o, s:o, s:o, s:o, s:i}", "rope_type", "yarn", "factor",
                         decoder_number(model->rope_yarn), "beta_fast", decoder_number(model->rope_fast), "beta_slow",
                         decoder_number(model->rope_slow), "attention_factor", decoder_number(model->rope_attention),
                         ORIGINAL, (int)model->rope_original);
    if (model->rope_linear > 1.0f)
        return json_pack("{s:s, s:o}", "rope_type", "linear", "factor", decoder_number(model->rope_linear));
    return NULL;
}

/* Both ways in which programs look for it: rope_parameters, and rope_theta with rope_scaling. */
void family_publish_rope(const struct aq_model_config *model, const struct family_type *type, json_t *config)
{
    json_t *rope = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta", decoder_number(model->rope_theta));
    json_t *scaling = scaling_of(model);
    if (type->query_beta) /* transformers reads it with the context before, whatever the type */
        json_object_update_new(rope, json_pack("{s:o, s:i}", "llama_4_scaling_beta", decoder_number(model->query_beta),
                                               ORIGINAL, (int)model->rope_original));
    if (scaling && type->query_beta)
        json_object_set_new(scaling, "llama_4_scaling_beta", decoder_number(model->query_beta));
    if (scaling) json_object_update(rope, scaling);
    json_object_set_new(config, "rope_theta", decoder_number(model->rope_theta));
    json_object_set_new(config, "rope_scaling", scaling ? scaling : json_null());
    if (type->partial > 0) {
        json_object_set_new(rope, PARTIAL, decoder_number(model->rope_partial));
        json_object_set_new(config, PARTIAL, decoder_number(model->rope_partial));
        if (scaling) json_object_set_new(scaling, PARTIAL, decoder_number(model->rope_partial));
    }
    if (type->original) json_object_set_new(config, ORIGINAL, json_integer(model->rope_original));
    if (model->rope_partial != 1.0f && type->theta_local == 0 && type->partial == 0) /* others do not compute it */
        json_object_set_new(config, OWN_PARTIAL, decoder_number(model->rope_partial));
    if (type->theta_local > 0) {
        const float local = model->rope_local > 0.0f ? model->rope_local : model->rope_theta;
        json_t *sliding = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta", decoder_number(local));
        json_object_set_new(config, "rope_local_base_freq", decoder_number(local));
        rope = json_pack("{s:o, s:o}", "full_attention", rope, "sliding_attention", sliding);
    }
    json_object_set_new(config, "rope_parameters", rope);
}
