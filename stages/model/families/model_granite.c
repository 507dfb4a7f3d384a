/*
 * model_granite.c -- Granite 3 and 4, dense (IBM 2024), as a row of data: Llama with four multipliers.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    {"model.embedding_scale", AQ_MODEL_F32, DECODER_FIELD(embedding_scale), "", 1e-6, 1e6, "1",
     "granite: rows of the embedding are multiplied by it (embedding_multiplier)"},
    {"model.score_scale", AQ_MODEL_F32, DECODER_FIELD(score_scale), "", 1e-6, 1e6, "1",
     "granite: scores of attention are multiplied by it (attention_multiplier)"},
    {"model.residual_scale", AQ_MODEL_F32, DECODER_FIELD(residual_scale), "", 1e-6, 1e6, "1",
     "granite: what a branch adds is multiplied by it (residual_multiplier)"},
    {"model.logit_divisor", AQ_MODEL_F32, DECODER_FIELD(logit_divisor), "", 1e-6, 1e6, "1",
     "granite: logits are divided by it (logits_scaling)"},
    DECODER_KEYS_BIASES("decoders: queries, keys and values have biases (Qwen2)"),
    DECODER_KEYS_TRAINING("on embedding and attention, and on residuals if model.residual_scale is 1; never at a cut")};

static const struct family_key config_keys[] = {
    FAMILY_SIZES(2048, FAMILY_HEADS, 0, 1e-6),
    {"embedding_multiplier", FAMILY_F32, DECODER_FIELD(embedding_scale), 1e-6, 1e6, 1},
    {"attention_multiplier", FAMILY_F32, DECODER_FIELD(score_scale), 1e-6, 1e6, 1},
    {"residual_multiplier", FAMILY_F32, DECODER_FIELD(residual_scale), 1e-6, 1e6, 1},
    {"logits_scaling", FAMILY_F32, DECODER_FIELD(logit_divisor), 1e-6, 1e6, 1},
    {0}};

static const struct family_type types[] = {{.type = "granite",
                                            .architecture = "GraniteForCausalLM",
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .attention_bias = FAMILY_READ,
                                            .mlp_bias = FAMILY_READ,
                                            FAMILY_ROPES,
                                            .theta = 10000},
                                           {0}};

static const struct stage_published published[] = {
    {"granite", "GraniteForCausalLM"}, {"granite", "GraniteModel"}, {NULL, NULL}};

static const struct decoder_family family = {
    .types = types, .score_scale = 1.0f, .form = {FAMILY_FORM, .names = {FAMILY_NAMES_BIASED}}};

DECODER_MODEL(granite, keys, family, decoder_family_identity, false);
