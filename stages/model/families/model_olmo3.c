/*
 * model_olmo3.c -- OLMo 3 (OLMo Team 2025) as a row of data: OLMo 2 with windows in three of four blocks, which have
 * their own theta and no scaling.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    {"model.rope_local", AQ_MODEL_F32, DECODER_FIELD(rope_local), "", 0, 1e12, "0",
     "gemma3, olmo3, modernbert: as model.rope_theta, of blocks with a window; 0: model.rope_theta"},
    DECODER_KEYS_WINDOW,
    DECODER_KEYS_TRAINING("on embedding and attention; never at a cut")};

static const struct family_key config_keys[] = {FAMILY_SIZES(2048, FAMILY_HEADS, 0, 1e-5), {0}};

static const struct family_type types[] = {{.type = "olmo3",
                                            FAMILY_CLASSES("Olmo3"),
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .qk_norm = true,
                                            .attention_bias = FAMILY_REFUSED,
                                            .windows = FAMILY_WINDOWS_EVERY,
                                            .window = 4096,
                                            .window_every = 4,
                                            .null_window = true,
                                            FAMILY_ROPES,
                                            .theta = 500000,
                                            .theta_local = 500000},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("olmo3", "Olmo3"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {.types = types,
                                             .qk_norm = true,
                                             .form = {FAMILY_FORM,
                                                      .posts = true,
                                                      .heads_whole = true,
                                                      .local = true,
                                                      .names = {FAMILY_NAMES_BEHIND}}};

DECODER_MODEL(olmo3, keys, family, decoder_family_identity, true);
