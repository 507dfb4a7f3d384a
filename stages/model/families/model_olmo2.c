/*
 * model_olmo2.c -- OLMo 2 (OLMo Team 2025) as a row of data: norms only behind the branches, and norms of all queries
 * and of all keys.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    DECODER_KEYS_TRAINING("on embedding and attention; never at a cut")};

static const struct family_key config_keys[] = {FAMILY_SIZES(2048, FAMILY_HEADS, 0, 1e-5), {0}};

static const struct family_type types[] = {{.type = "olmo2",
                                            FAMILY_CLASSES("Olmo2"),
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .qk_norm = true,
                                            .attention_bias = FAMILY_REFUSED,
                                            FAMILY_ROPES,
                                            .theta = 10000},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("olmo2", "Olmo2"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {.types = types,
                                             .qk_norm = true,
                                             .form = {FAMILY_FORM,
                                                      .posts = true,
                                                      .heads_whole = true,
                                                      .names = {FAMILY_NAMES_BEHIND}}};

DECODER_MODEL(olmo2, keys, family, decoder_family_identity, true);
