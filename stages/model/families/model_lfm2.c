/*
 * model_lfm2.c -- LFM2 (Liquid AI 2025) as a row of data: Llama with norms of heads, whose blocks without attention
 * have a gated convolution over the last few tokens. Norms and products have other names.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    {"model.conv_taps", AQ_MODEL_U32, DECODER_FIELD(conv_taps), "tokens", 1, AQ_CAUSAL_CONV_TAPS, "3",
     "lfm2: tokens that a convolution reads, its own included"},
    {"model.attention_blocks", AQ_MODEL_U32, DECODER_FIELD(attention_blocks), "", 0, 4294967295.0, "613566756",
     "lfm2: bit b (of value 2^b): block b has attention, not a convolution. The default is blocks 2, 5, 8 and so on"},
    {"model.attention_blocks_high", AQ_MODEL_U32, DECODER_FIELD(attention_blocks_high), "", 0, 4294967295.0,
     "1227133513", "lfm2: as model.attention_blocks, of blocks 32 to 63"},
    {"model.conv_bias", AQ_MODEL_BOOL, DECODER_FIELD(conv_bias), "", 0, 0, "false",
     "lfm2: convolutions, and the products before and behind them, have biases"},
    DECODER_KEYS_TRAINING("on embedding, attention and residuals; never at a cut")};

static const struct family_key config_keys[] = {
    {"num_hidden_layers", FAMILY_U32, DECODER_FIELD(blocks), 1, FAMILY_CONV_BLOCKS, 32},
    {"num_attention_heads", FAMILY_U32, DECODER_FIELD(heads), 1, 1024, 32},
    {"hidden_size", FAMILY_U32, DECODER_FIELD(channels), 1, 65536, 2560},
    {"intermediate_size", FAMILY_U32, DECODER_FIELD(mlp), 1, 1048576, 12288},
    {"vocab_size", FAMILY_U32, DECODER_FIELD(vocabulary), 1, 1048576, 65536},
    {"max_position_embeddings", FAMILY_U32, DECODER_FIELD(context), 1, 1048576, 128000},
    {"num_key_value_heads", FAMILY_U32, DECODER_FIELD(kv_heads), 1, 1024, 8},
    {"head_dim", FAMILY_U32, DECODER_FIELD(head_dim), 1, 2048, 0},
    {"conv_L_cache", FAMILY_U32, DECODER_FIELD(conv_taps), 1, AQ_CAUSAL_CONV_TAPS, 3},
    {"norm_eps", FAMILY_F32, DECODER_FIELD(norm_eps), 0, 1, 1e-5},
    {"initializer_range", FAMILY_F32, DECODER_FIELD(init_std), 0, 1, 0.02},
    {0}};

static const struct family_type types[] = {{.type = "lfm2",
                                            .architecture = "Lfm2ForCausalLM",
                                            .keys = config_keys,
                                            .qk_norm = true,
                                            FAMILY_ROPES,
                                            .theta = 1000000,
                                            .tied = true,
                                            .tied_key = "tie_embedding",
                                            .convolves = true},
                                           {0}};

static const struct stage_published published[] = {{"lfm2", "Lfm2ForCausalLM"}, {"lfm2", "Lfm2Model"}, {NULL, NULL}};

#define LFM2_NAMES                                                                                                     \
    [NORM1] = "operator_norm.weight", [NORM2] = "ffn_norm.weight", [GATE] = "feed_forward.w1.weight",                  \
    [UP] = "feed_forward.w3.weight", [MLP] = "feed_forward.w2.weight"

static const char *const conv_names[DECODER_TENSORS] = {LFM2_NAMES,
                                                        [QUERY] = "conv.in_proj.weight",
                                                        [QUERY_BIAS] = "conv.in_proj.bias",
                                                        [CONV] = "conv.conv.weight",
                                                        [CONV_BIAS] = "conv.conv.bias",
                                                        [PROJECTION] = "conv.out_proj.weight",
                                                        [PROJECTION_BIAS] = "conv.out_proj.bias"};

static const struct decoder_family family = {
    .types = types,
    .qk_norm = true,
    .conv_taps = 3,
    .form = {.rms = true,
             .out_in = true,
             .turns = true,
             .gated = true,
             .blocks = "layers",
             .tokens = "embed_tokens.weight",
             .norm = "embedding_norm.weight",
             .head = "lm_head.weight",
             .score = "score.weight",
             .names = {LFM2_NAMES, [QUERY] = "self_attn.q_proj.weight", [KEY] = "self_attn.k_proj.weight",
                       [VALUE] = "self_attn.v_proj.weight", [QUERY_NORM] = "self_attn.q_layernorm.weight",
                       [KEY_NORM] = "self_attn.k_layernorm.weight", [PROJECTION] = "self_attn.out_proj.weight"},
             .conv_names = conv_names}};

DECODER_MODEL(lfm2, keys, family, decoder_family_identity, false);
