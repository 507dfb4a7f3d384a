/*
 * model_smollm3.c -- SmolLM3 (Hugging Face 2025) as a row of data: Llama whose last of every four blocks has no rotary
 * embedding.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    {"model.rope_every", AQ_MODEL_U32, DECODER_FIELD(rope_every), "blocks", 0, 1024, "4",
     "smollm3: the last of that many blocks has no rotary embedding; 0: all have one"},
    DECODER_KEYS_BIASES("decoders: queries, keys and values have biases (Qwen2)"),
    DECODER_KEYS_TRAINING("on embedding, attention and residuals; never at a cut")};

static const struct family_key config_keys[] = {FAMILY_SIZES(32768, 4, 0, 1e-6), {0}};

static const struct family_type types[] = {{.type = "smollm3",
                                            FAMILY_CLASSES("SmolLM3"),
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .attention_bias = FAMILY_READ,
                                            .mlp_bias = FAMILY_READ,
                                            .windows = FAMILY_WINDOWS_OFF,
                                            FAMILY_ROPES,
                                            .theta = 2000000,
                                            .tied = true,
                                            .rope_every = true,
                                            .pad = 128004},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("smollm3", "SmolLM3"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {.types = types,
                                             .rope_every = 4,
                                             .form = {FAMILY_FORM, .names = {FAMILY_NAMES_BIASED}}};

DECODER_MODEL(smollm3, keys, family, decoder_family_identity, true);
