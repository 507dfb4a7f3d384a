/*
 * model_generation.c -- generation_config.json: how those who publish a folder generate.
 */
#include <stdio.h>
#include <string.h>

#include "config_json.h"
#include "model_folder_private.h"

/* Keys that change the next token and are not computed here, with their neutral values. */
static const struct other {
    const char *name;
    double neutral;
} others[] = {{"no_repeat_ngram_size", 0},
              {"min_new_tokens", 0},
              {"min_length", 0},
              {"min_p", 0},
              {"typical_p", 1},
              {"epsilon_cutoff", 0},
              {"eta_cutoff", 0},
              {"num_beams", 1},
              {"num_beam_groups", 1},
              {"penalty_alpha", 0},
              {"guidance_scale", 1},
              {"encoder_repetition_penalty", 1},
              {"encoder_no_repeat_ngram_size", 0},
              {"bad_words_ids", 0},
              {"suppress_tokens", 0},
              {"begin_suppress_tokens", 0},
              {"forced_bos_token_id", -1},
              {"forced_eos_token_id", -1},
              {"exponential_decay_length_penalty", 0},
              {"sequence_bias", 0},
              {"watermarking_config", 0}};

static bool changes(const json_t *value, double neutral)
{
    if (!value || json_is_null(value) || json_is_false(value)) return false;
    if (json_is_number(value)) return json_number_value(value) != neutral;
    return !(json_is_array(value) && json_array_size(value) == 0);
}

static void name_others(const json_t *object, char *text, size_t bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others && used < bytes; i++)
        if (changes(json_object_get(object, others[i].name), others[i].neutral))
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", others[i].name);
}

static enum aq_status read_float(const struct config_json *config, const char *key, double least, double most,
                                 float *out)
{
    double value;
    AQ_TRY(config_json_number_or(config, key, least, most, 1, &value));
    *out = (float)value;
    return AQ_OK;
}

static enum aq_status read_all(const struct config_json *config, struct aq_model_generation *out)
{
    const json_t *draws = json_object_get(config->object, "do_sample");
    out->draws = json_is_true(draws);
    AQ_TRY(read_float(config, "temperature", 0, 1e6, &out->temperature));
    AQ_TRY(read_float(config, "top_p", 0, 1, &out->top_p));
    AQ_TRY(read_float(config, "repetition_penalty", 0.01, 100, &out->repetition_penalty));
    AQ_TRY(config_json_u32_or(config, "top_k", 0, 1 << 30, 0, &out->top_k));
    AQ_TRY(config_json_u32_or(config, "max_new_tokens", 1, 1 << 30, 0, &out->tokens_max));
    name_others(config->object, out->others, sizeof out->others);
    return AQ_OK;
}

enum aq_status aq_model_folder_generation(const struct aq_model_folder *folder, struct aq_model_generation *out)
{
    char file[MODEL_FOLDER_PATH_BYTES + 32];
    struct aq_model_generation made = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    json_t *object = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(model_folder_generation(folder, file, &object), out);
    const struct config_json config = {.file = file, .within = "", .object = object};
    if (object) AQ_TRY_GOTO(read_all(&config, &made), out);
    *out = made;
out:
    json_decref(object);
    return status;
}
