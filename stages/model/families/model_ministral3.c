/*
 * model_ministral3.c -- Ministral 3 (Mistral AI 2025) as a row of data: Mistral with YaRN, whose queries are scaled
 * beyond the context before. That scale is 1 up to there, and longer samples are refused (decoder_problem).
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    {"model.query_beta", AQ_MODEL_F32, DECODER_FIELD(query_beta), "", 0, 1024, "0",
     "ministral3: how much queries beyond model.rope_original tokens are scaled (llama_4_scaling_beta); 0: not"},
    DECODER_KEYS_WINDOW,
    DECODER_KEYS_TRAINING("on embedding, attention and residuals; never at a cut")};

static const struct family_key config_keys[] = {FAMILY_SIZES(262144, 8, 128, 1e-5), {0}};

static const struct family_type types[] = {{.type = "ministral3",
                                            FAMILY_CLASSES("Ministral3"),
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .windows = FAMILY_WINDOWS_ALL,
                                            FAMILY_ROPES,
                                            .theta = 10000,
                                            .query_beta = true,
                                            .pad = 11},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("ministral3", "Ministral3"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {.types = types, .form = {FAMILY_FORM, .names = {FAMILY_NAMES_BEFORE}}};

DECODER_MODEL(ministral3, keys, family, decoder_family_identity, true);
