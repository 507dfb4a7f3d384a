/*
 * model_llama.c -- Llama and its kin as a row of data: RMS norms, rotary embeddings, a gated MLP, shared heads of keys.
 * With biases of queries, keys and values it is Qwen2, with norms of heads Qwen3. Names of tensors are Hugging Face's,
 * without "model." in front.
 */
#include <stdio.h>
#include <string.h>

#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_PARTIAL,
    DECODER_KEYS_ROPE,
    DECODER_KEYS_WINDOW,
    DECODER_KEYS_BIASES("decoders: queries, keys and values have biases (Qwen2)"),
    {"model.qk_norm", AQ_MODEL_BOOL, DECODER_FIELD(qk_norm), "", 0, 0, "false",
     "llama: heads of queries and keys have norms (Qwen3)"},
    DECODER_KEYS_TRAINING("on embedding, attention and residuals; never at a cut")};

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "llama %u %u %u %u %u %u %u %u %d%d%d %a %a %a %a %a %a %u", model->blocks, model->heads,
             decoder_kv_heads(model), decoder_head_dim(model), model->channels, model->mlp, model->vocabulary,
             model->context, model->tied != AQ_TIED_NO, model->qkv_bias, model->qk_norm, (double)model->norm_eps,
             (double)model->rope_theta, (double)model->rope_partial, (double)model->rope_factor,
             (double)model->rope_low, (double)model->rope_high, model->rope_original);
    size_t used = strlen(text);
    if (model->window || model->rope_linear != 1.0f)
        snprintf(text + used, bytes - used, " %u %u %u %a", model->window, model->window_every, model->window_from,
                 (double)model->rope_linear);
    used = strlen(text);
    if (model->rope_yarn > 1.0f)
        snprintf(text + used, bytes - used, " yarn %a %a %a %a", (double)model->rope_yarn, (double)model->rope_fast,
                 (double)model->rope_slow, (double)model->rope_attention);
    used = strlen(text);
    if (model->out_bias || model->mlp_bias)
        snprintf(text + used, bytes - used, " biases %d%d", model->out_bias, model->mlp_bias);
}

static const struct family_key llama_keys[] = {FAMILY_SIZES(2048, FAMILY_HEADS, 0, 1e-6), {0}},
                               qwen2_keys[] = {FAMILY_SIZES(32768, FAMILY_HEADS, 0, 1e-6), {0}},
                               qwen3_keys[] = {FAMILY_SIZES(32768, 32, 128, 1e-6), {0}};

static const struct family_type types[] = {{.type = "llama",
                                            FAMILY_CLASSES("Llama"),
                                            .keys = llama_keys,
                                            FAMILY_SILU,
                                            .attention_bias = FAMILY_READ,
                                            .mlp_bias = FAMILY_READ,
                                            FAMILY_ROPES,
                                            .theta = 10000},
                                           {.type = "qwen2",
                                            FAMILY_CLASSES("Qwen2"),
                                            .keys = qwen2_keys,
                                            FAMILY_SILU,
                                            .qkv_bias = true,
                                            .windows = FAMILY_WINDOWS_SWITCHED,
                                            .window = 4096,
                                            FAMILY_ROPES,
                                            .theta = 10000},
                                           {.type = "qwen3",
                                            FAMILY_CLASSES("Qwen3"),
                                            .keys = qwen3_keys,
                                            FAMILY_SILU,
                                            .qk_norm = true,
                                            .attention_bias = FAMILY_READ,
                                            .windows = FAMILY_WINDOWS_SWITCHED,
                                            .window = 4096,
                                            FAMILY_ROPES,
                                            .theta = 10000},
                                           {0}};

static const struct stage_published published[] = {FAMILY_PUBLISHED("llama", "Llama"),
                                                   FAMILY_PUBLISHED("qwen2", "Qwen2"),
                                                   FAMILY_PUBLISHED("qwen3", "Qwen3"),
                                                   {NULL, NULL}};

static const struct decoder_family family = {
    .types = types,
    .form = {FAMILY_FORM, .names = {FAMILY_NAMES_BIASED, FAMILY_NAMES_HEADS}}};

DECODER_MODEL(llama, keys, family, identity, true);
