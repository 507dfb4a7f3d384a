/*
 * model_gemma2.c -- Gemma 2 (Gemma Team 2024) as a row of data: norms before and behind the branches, which keep their
 * weights less 1, a window in every other block, soft caps of scores and of logits. The gate is GELU, scores have their
 * own scale, and rows of the embedding are multiplied by the root of their columns.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    DECODER_KEYS_WINDOW,
    {"model.query_scale", AQ_MODEL_U32, DECODER_FIELD(query_scale), "", 0, 1048576, "0",
     "gemma2, gemma3: scores are divided by its root (query_pre_attn_scalar); 0: channels of a head"},
    {"model.score_cap", AQ_MODEL_F32, DECODER_FIELD(score_cap), "", 0, 1e6, "0",
     "gemma2: scores s become cap tanh(s / cap) (attn_logit_softcapping); 0: as they are"},
    {"model.logit_cap", AQ_MODEL_F32, DECODER_FIELD(logit_cap), "", 0, 1e6, "0",
     "gemma2: the same of logits (final_logit_softcapping); 0: as they are"},
    DECODER_KEYS_TRAINING("on embedding and attention; never at a cut")};

static const struct family_key config_keys[] = {
    {"num_hidden_layers", FAMILY_U32, DECODER_FIELD(blocks), 1, 1024, 26},
    {"num_attention_heads", FAMILY_U32, DECODER_FIELD(heads), 1, 1024, 8},
    {"hidden_size", FAMILY_U32, DECODER_FIELD(channels), 1, 65536, 2304},
    {"intermediate_size", FAMILY_U32, DECODER_FIELD(mlp), 1, 1048576, 9216},
    {"vocab_size", FAMILY_U32, DECODER_FIELD(vocabulary), 1, 1048576, 256000},
    {"max_position_embeddings", FAMILY_U32, DECODER_FIELD(context), 1, 1048576, 8192},
    {"num_key_value_heads", FAMILY_U32, DECODER_FIELD(kv_heads), 1, 1024, 4},
    {"head_dim", FAMILY_U32, DECODER_FIELD(head_dim), 1, 2048, 256},
    {"query_pre_attn_scalar", FAMILY_U32, DECODER_FIELD(query_scale), 1, 1048576, 256},
    {"attn_logit_softcapping", FAMILY_F32_NULL, DECODER_FIELD(score_cap), 1e-3, 1e6, 50},
    {"final_logit_softcapping", FAMILY_F32_NULL, DECODER_FIELD(logit_cap), 1e-3, 1e6, 30},
    {"rms_norm_eps", FAMILY_F32, DECODER_FIELD(norm_eps), 0, 1, 1e-6},
    {"initializer_range", FAMILY_F32, DECODER_FIELD(init_std), 0, 1, 0.02},
    {0}};

static const char *const off[] = {"use_bidirectional_attention", NULL};

static const struct family_type types[] = {{.type = "gemma2",
                                            FAMILY_CLASSES("Gemma2"),
                                            .keys = config_keys,
                                            .activation = "hidden_activation",
                                            .activations = "gelu_pytorch_tanh|gelu_new",
                                            .attention_bias = FAMILY_REFUSED,
                                            .windows = FAMILY_WINDOWS_FIXED,
                                            .window = 4096,
                                            .window_every = 2,
                                            FAMILY_ROPES,
                                            .theta = 1e4,
                                            .tied = true,
                                            .off = off},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("gemma2", "Gemma2"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {
    .types = types,
    .form = {FAMILY_FORM,
             .gate = AQ_GATE_GELU,
             .posts = true,
             .plus = 1.0f,
             .scaled = true,
             .names = {FAMILY_NAMES_ATTENTION,
                       [NORM1] = "input_layernorm.weight",
                       [POST1] = "post_attention_layernorm.weight",
                       [NORM2] = "pre_feedforward_layernorm.weight",
                       [POST2] = "post_feedforward_layernorm.weight"}}};

DECODER_MODEL(gemma2, keys, family, decoder_family_identity, true);
