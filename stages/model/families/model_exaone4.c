/*
 * model_exaone4.c -- EXAONE 4 (LG AI Research 2025) as a row of data: norms only behind the branches, and norms of
 * heads. In models with windows, blocks without one have no rotary embedding.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    DECODER_KEYS_WINDOW,
    DECODER_KEYS_TRAINING("on embedding and attention; never at a cut")};

static const struct family_key config_keys[] = {FAMILY_SIZES(2048, 32, 0, 1e-5), {0}};

static const struct family_type types[] = {{.type = "exaone4",
                                            FAMILY_CLASSES("Exaone4"),
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .qk_norm = true,
                                            .windows = FAMILY_WINDOWS_EVERY,
                                            .window = 4096,
                                            .window_every = 4,
                                            .null_window = true,
                                            FAMILY_ROPES,
                                            .theta = 10000},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("exaone4", "Exaone4"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {.types = types,
                                             .qk_norm = true,
                                             .form = {FAMILY_FORM,
                                                      .posts = true,
                                                      .window_turns = true,
                                                      .names = {FAMILY_NAMES_BEHIND}}};

DECODER_MODEL(exaone4, keys, family, decoder_family_identity, true);
