/*
 * model_gemma3.c -- Gemma 3 (Gemma Team 2025), of texts only, as a row of data. Most blocks see only the last tokens,
 * the last of every few sees all, and each kind has its own frequencies. Norms are before and behind the branches. They
 * keep their weights less 1. Heads have norms, the gate is GELU, and scores have their own scale. Rows of the
 * embedding are multiplied by the root of their columns. Names are Hugging Face's, without "model." in front.
 */
#include <stdio.h>

#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_LINEAR,
    {"model.rope_local", AQ_MODEL_F32, DECODER_FIELD(rope_local), "", 0, 1e12, "0",
     "gemma3, olmo3, modernbert: as model.rope_theta, of blocks with a window; 0: model.rope_theta"},
    DECODER_KEYS_WINDOW,
    {"model.query_scale", AQ_MODEL_U32, DECODER_FIELD(query_scale), "", 0, 1048576, "0",
     "gemma2, gemma3: scores are divided by its root (query_pre_attn_scalar); 0: channels of a head"},
    DECODER_KEYS_TRAINING("on embedding and attention; never at a cut")};

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "gemma3 %u %u %u %u %u %u %u %u %d %u %u %u %u %a %a %a %a", model->blocks, model->heads,
             decoder_kv_heads(model), decoder_head_dim(model), model->channels, model->mlp, model->vocabulary,
             model->context, model->tied != AQ_TIED_NO, model->window, model->window_every, model->window_from,
             model->query_scale, (double)model->norm_eps, (double)model->rope_theta, (double)model->rope_local,
             (double)model->rope_linear);
}

static const struct family_key config_keys[] = {
    {"num_hidden_layers", FAMILY_U32, DECODER_FIELD(blocks), 1, 1024, 26},
    {"num_attention_heads", FAMILY_U32, DECODER_FIELD(heads), 1, 1024, 8},
    {"hidden_size", FAMILY_U32, DECODER_FIELD(channels), 1, 65536, 2304},
    {"intermediate_size", FAMILY_U32, DECODER_FIELD(mlp), 1, 1048576, 9216},
    {"vocab_size", FAMILY_U32, DECODER_FIELD(vocabulary), 1, 1048576, 262208},
    {"max_position_embeddings", FAMILY_U32, DECODER_FIELD(context), 1, 1048576, 131072},
    {"num_key_value_heads", FAMILY_U32, DECODER_FIELD(kv_heads), 1, 1024, 4},
    {"head_dim", FAMILY_U32, DECODER_FIELD(head_dim), 1, 2048, 256},
    {"query_pre_attn_scalar", FAMILY_U32, DECODER_FIELD(query_scale), 1, 1048576, 256},
    {"rms_norm_eps", FAMILY_F32, DECODER_FIELD(norm_eps), 0, 1, 1e-6},
    {"initializer_range", FAMILY_F32, DECODER_FIELD(init_std), 0, 1, 0.02},
    {0}};

static const char *const refused[] = {"final_logit_softcapping", "attn_logit_softcapping", NULL},
                         *const off[] = {"use_bidirectional_attention", NULL};

static const struct family_type types[] = {{.type = "gemma3_text",
                                            .architecture = "Gemma3ForCausalLM",
                                            .classifier = "Gemma3TextForSequenceClassification",
                                            .keys = config_keys,
                                            .activation = "hidden_activation",
                                            .activations = "gelu_pytorch_tanh|gelu_new",
                                            .qk_norm = true,
                                            .attention_bias = FAMILY_REFUSED,
                                            .windows = FAMILY_WINDOWS_EVERY,
                                            .window = 4096,
                                            .window_every = 6,
                                            .ropes = FAMILY_LINEAR,
                                            .theta = 1e6,
                                            .theta_local = 1e4,
                                            .tied = true,
                                            .refused = refused,
                                            .off = off},
                                           {0}};

static const struct stage_published published[] = {{"gemma3_text", "Gemma3ForCausalLM"},
                                                   {"gemma3_text", "Gemma3TextModel"},
                                                   {"gemma3_text", "Gemma3TextForSequenceClassification"},
                                                   {NULL, NULL}};

static const struct decoder_family family = {
    .types = types,
    .qk_norm = true,
    .wrapper = "gemma3",
    .wrapping = "Gemma3ForConditionalGeneration",
    .form = {FAMILY_FORM,
             .gate = AQ_GATE_GELU,
             .posts = true,
             .plus = 1.0f,
             .scaled = true,
             .local = true,
             .names = {FAMILY_NAMES_BEHIND,
                       [NORM1] = "input_layernorm.weight",
                       [NORM2] = "pre_feedforward_layernorm.weight"}}};

DECODER_MODEL(gemma3, keys, family, identity, true);
