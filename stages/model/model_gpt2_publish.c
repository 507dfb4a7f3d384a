/* model_gpt2_publish.c -- GPT-2 as Hugging Face's GPT2LMHeadModel: names of tensors and config.json. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "model_gpt2.h"

void gpt2_publish_name(const char *tensor, char *out, size_t bytes)
{
    const bool head = strcmp(tensor, "lm_head.weight") == 0;
    snprintf(out, bytes, "%s%s", head ? "" : "transformer.", tensor);
}

enum aq_status gpt2_publish_config(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                   size_t *count)
{
    json_t *config = json_pack(
        "{s:[s], s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:n, s:f, s:f, s:f, s:f, s:f, s:b, s:s}", "architectures",
        "GPT2LMHeadModel", "model_type", "gpt2", "activation_function", "gelu_new", "n_embd", (int)model->channels,
        "n_head", (int)model->heads, "n_layer", (int)model->blocks, "n_positions", (int)model->context, "vocab_size",
        (int)model->vocabulary, "n_inner", "layer_norm_epsilon", 1e-5, "initializer_range", (double)model->init_std,
        "resid_pdrop", (double)model->dropout, "embd_pdrop", (double)model->dropout, "attn_pdrop",
        (double)model->dropout, "tie_word_embeddings", tied, "torch_dtype", "float32");
    for (int i = 0; i < 2; i++)
        json_object_set_new(config, i ? "eos_token_id" : "bos_token_id",
                            end_of_text >= 0 ? json_integer(end_of_text) : json_null());
    *count = json_dumpb(config, json, PUBLISHED_CONFIG_BYTES, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(config);
    return *count > 0 && *count <= PUBLISHED_CONFIG_BYTES ? AQ_OK
                                                          : aq_fail(AQ_NOMEM, "stage", "no memory for config.json");
}
