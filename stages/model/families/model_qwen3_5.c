/*
 * model_qwen3_5.c -- Qwen3.5, dense and of texts (Qwen Team 2026), as a row of data. The last of every few blocks has
 * attention with a gate for each head of queries, whose heads have norms and turn in part; the others have the gated
 * delta rule (decoder_delta.c). Norms keep their weights less 1, except the norm behind the rule.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_PARTIAL,
    DECODER_KEYS_DELTA,
    DECODER_KEYS_TRAINING("on embedding, attention and residuals; never at a cut")};

static const struct family_key config_keys[] = {
    FAMILY_SIZES(32768, 4, 256, 1e-6),
    {"linear_num_key_heads", FAMILY_U32, DECODER_FIELD(own[DELTA_OWN_KEYS]), 1, 1024, 16},
    {"linear_num_value_heads", FAMILY_U32, DECODER_FIELD(own[DELTA_OWN_VALUES]), 1, 1024, 32},
    {"linear_key_head_dim", FAMILY_U32, DECODER_FIELD(own[DELTA_OWN_DK]), 1, AQ_DELTA_HEAD_MAX, 128},
    {"linear_value_head_dim", FAMILY_U32, DECODER_FIELD(own[DELTA_OWN_DV]), 1, AQ_DELTA_HEAD_MAX, 128},
    {"linear_conv_kernel_dim", FAMILY_U32, DECODER_FIELD(own[DELTA_OWN_TAPS]), 1, AQ_CAUSAL_CONV_TAPS, 4},
    {0}};

static const struct family_type types[] = {{.type = "qwen3_5_text",
                                            .architecture = "Qwen3_5ForCausalLM",
                                            .classifier = "Qwen3_5TextForSequenceClassification",
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .qk_norm = true,
                                            .attention_bias = FAMILY_REFUSED,
                                            .theta = 10000,
                                            .partial = 0.25,
                                            .delta = true},
                                           {0}};

static const struct stage_published published[] = {{"qwen3_5_text", "Qwen3_5ForCausalLM"},
                                                   {"qwen3_5_text", "Qwen3_5TextModel"},
                                                   {"qwen3_5_text", "Qwen3_5TextForSequenceClassification"},
                                                   {NULL, NULL}};

static const struct decoder_family family = {
    .types = types,
    .qk_norm = true,
    .wrapper = "qwen3_5",
    .wrapping = "Qwen3_5ForConditionalGeneration",
    .wrapper_untied = true,
    .own = {[DELTA_OWN_EVERY] = 4,
            [DELTA_OWN_KEYS] = 16,
            [DELTA_OWN_VALUES] = 32,
            [DELTA_OWN_DK] = 128,
            [DELTA_OWN_DV] = 128,
            [DELTA_OWN_TAPS] = 4},
    .form = {FAMILY_FORM,
             .plus = 1.0f,
             .delta = true,
             .head_gates = true,
             .names = {FAMILY_NAMES_BEFORE, FAMILY_NAMES_HEADS, FAMILY_NAMES_DELTA}}};

DECODER_MODEL(qwen3_5, keys, family, decoder_family_identity, true);
