/*
 * model_phi3.c -- Phi-3 and Phi-4 (Abdin et al. 2024) as a row of data: Llama whose queries, keys and values are one
 * tensor, and gate and up another. A part of a head may turn, with frequencies scaled by LongRoPE (Ding et al. 2024).
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_PARTIAL,
    DECODER_KEYS_LONGROPE,
    DECODER_KEYS_ORIGINAL,
    DECODER_KEYS_WINDOW,
    DECODER_KEYS_TRAINING("on embedding, attention and residuals; never at a cut")};

static const struct family_key config_keys[] = {FAMILY_SIZES(4096, FAMILY_HEADS, 0, 1e-5), {0}};

static const struct family_type types[] = {{.type = "phi3",
                                            FAMILY_CLASSES("Phi3"),
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .windows = FAMILY_WINDOWS_ALL,
                                            .ropes = FAMILY_LONGROPE,
                                            .partial = 1,
                                            .original = 4096,
                                            .theta = 10000,
                                            .pad = 32000},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("phi3", "Phi3"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {
    .types = types, .form = {FAMILY_FORM, .qkv_one_tensor = true, .names = {FAMILY_NAMES_FUSED}}};

DECODER_MODEL(phi3, keys, family, decoder_family_identity, true);
