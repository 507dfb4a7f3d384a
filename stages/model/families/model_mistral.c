/*
 * model_mistral.c -- Mistral (Jiang et al. 2023) as a row of data: Llama with a window in all blocks, or in none.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    DECODER_KEYS_WINDOW,
    DECODER_KEYS_TRAINING("on embedding, attention and residuals; never at a cut")};

static const struct family_key config_keys[] = {FAMILY_SIZES(131072, 8, 0, 1e-6), {0}};

static const struct family_type types[] = {{.type = "mistral",
                                            FAMILY_CLASSES("Mistral"),
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .windows = FAMILY_WINDOWS_ALL,
                                            .window = 4096,
                                            FAMILY_ROPES,
                                            .theta = 10000},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("mistral", "Mistral"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {.types = types,
                                             .wrapper = "mistral3",
                                             .wrapping = "Mistral3ForConditionalGeneration",
                                             .form = {FAMILY_FORM, .names = {FAMILY_NAMES_BEFORE}}};

DECODER_MODEL(mistral, keys, family, decoder_family_identity, true);
