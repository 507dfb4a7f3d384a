/*
 * model_gpt2.c -- GPT-2 as a row of models.def: configuration and list of layers, with names as Hugging Face has them.
 *
 * Layer 0 is the embedding, 1..L the blocks, L+1 final norm, head and loss. The head of a tied model is the embedding's
 * table. If a cut separates the two it is a copy, lm_head.weight, that follows the table; untied it is a separate
 * tensor that starts with the same values.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "model_family.h"

#define FIELD(member) offsetof(struct aq_model_config, member)
static const struct aq_model_key keys[] = {
    {"model.blocks", AQ_MODEL_U32, FIELD(blocks), "blocks", 1, 1024, "12", "transformer blocks, L"},
    {"model.heads", AQ_MODEL_U32, FIELD(heads), "heads", 1, 1024, "12", "attention heads, H; divides channels"},
    {"model.channels", AQ_MODEL_U32, FIELD(channels), "channels", 1, 65536, "768", "width, C"},
    {"model.vocabulary", AQ_MODEL_U32, FIELD(vocabulary), "tokens", 0, 1048576, "0", "V; 0: the tokenizer's"},
    {"model.context", AQ_MODEL_U32, FIELD(context), "tokens", 1, 1048576, "1024",
     "rows of the position table; at least train.T"},
    {"model.dropout", AQ_MODEL_F32, FIELD(dropout), "probability", 0, 0.9, "0",
     "on embedding, attention and residuals; never at a cut"},
    {"model.tied", AQ_MODEL_TIED, FIELD(tied), "", 0, 0, "exact",
     "exact: head and embedding are one tensor; where a cut separates them its gradient and its values travel once a "
     "step. compressed: the same, but the gradient travels quantized, and rows of the batch. untied: two tensors. true "
     "is exact, false is untied. deberta: exact, one table of relative positions for all blocks, or untied, one per "
     "block"},
    {"model.init_std", AQ_MODEL_F32, FIELD(init_std), "", 0, 1, "0.02", "of the normal initial weights"}};

static void describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "%u blocks, %u heads, %u channels, vocabulary %u", model->blocks, model->heads,
             model->channels, model->vocabulary);
}

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "gpt2 %u %u %u %u %u %d", model->blocks, model->heads, model->channels, model->vocabulary,
             model->context, model->tied != AQ_TIED_NO);
}

static bool problem(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                    size_t bytes)
{
    const bool heads = model->channels % model->heads, tokens = T > model->context;
    if (heads && index == 0) {
        *key = "model.heads";
        snprintf(text, bytes, "%u heads do not divide %u channels (model.channels)", model->heads, model->channels);
        return true;
    }
    if (!tokens || index > heads) return false;
    *key = "train.T";
    snprintf(text, bytes, "%u tokens, but the position table has %u rows; raise model.context", T, model->context);
    return true;
}

static void config_default(struct aq_model_config *out)
{
    *out = (struct aq_model_config){.kind = "gpt2",
                                    .blocks = 12,
                                    .heads = 12,
                                    .channels = 768,
                                    .vocabulary = 50257,
                                    .context = 1024,
                                    .dropout = 0.0f,
                                    .tied = AQ_TIED_EXACT,
                                    .init_std = 0.02f,
                                    .norm_eps = 1e-5f};
}

static enum aq_status config_check(const struct aq_model_config *model)
{
    AQ_TRY(decoder_range_whole("blocks", model->blocks, 1, 1024));
    AQ_TRY(decoder_range_whole("heads", model->heads, 1, 1024));
    AQ_TRY(decoder_range_whole("channels", model->channels, 1, 65536));
    AQ_TRY(decoder_range_whole("vocabulary", model->vocabulary, 1, 16777216));
    AQ_TRY(decoder_range_whole("context", model->context, 1, 131072));
    if (model->channels % model->heads)
        return aq_fail(AQ_INVAL, "stage", "model.heads %u does not divide model.channels %u", model->heads,
                       model->channels);
    AQ_TRY(decoder_range_whole("channels / model.heads", model->channels / model->heads, 1, 2048));
    if (!(model->dropout >= 0.0f && model->dropout < 1.0f))
        return aq_fail(AQ_INVAL, "stage", "model.dropout is %g: at least 0 and below 1", (double)model->dropout);
    if (!(model->init_std >= 0.0f && model->init_std <= 10.0f))
        return aq_fail(AQ_INVAL, "stage", "model.init_std is %g: 0 to 10", (double)model->init_std);
    return AQ_OK;
}

static const struct decoder_form form = {.qkv_one_tensor = true,
                                         .biased = true,
                                         .blocks = "h",
                                         .tokens = "wte.weight",
                                         .positions = "wpe.weight",
                                         .norm = "ln_f.weight",
                                         .norm_bias = "ln_f.bias",
                                         .head = "lm_head.weight",
                                         .score = "score.weight",
                                         .names = {[NORM1] = "ln_1.weight",
                                                   [NORM1_BIAS] = "ln_1.bias",
                                                   [QUERY] = "attn.c_attn.weight",
                                                   [QUERY_BIAS] = "attn.c_attn.bias",
                                                   [PROJECTION] = "attn.c_proj.weight",
                                                   [PROJECTION_BIAS] = "attn.c_proj.bias",
                                                   [NORM2] = "ln_2.weight",
                                                   [NORM2_BIAS] = "ln_2.bias",
                                                   [GATE] = "mlp.c_fc.weight",
                                                   [GATE_BIAS] = "mlp.c_fc.bias",
                                                   [MLP] = "mlp.c_proj.weight",
                                                   [MLP_BIAS] = "mlp.c_proj.bias"}};

static void layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out)
{
    decoder_layer(&form, model, T, index, out);
}

static const struct stage_published published[] = {
    {"gpt2", "GPT2LMHeadModel"},
    {"gpt2", "GPT2Model"},
    {"gpt2", "GPT2ForSequenceClassification"}, /* labels are the data's */
    {NULL, NULL}};

static enum aq_status read_config(const struct config_json *config, struct aq_model_config *out)
{
    uint32_t inner;
    double std;
    AQ_TRY(config_json_u32(config, "n_layer", 1, 1024, &out->blocks));
    AQ_TRY(config_json_u32(config, "n_head", 1, 1024, &out->heads));
    AQ_TRY(config_json_u32(config, "n_embd", 1, 65536, &out->channels));
    AQ_TRY(config_json_u32(config, "vocab_size", 1, 1048576, &out->vocabulary));
    AQ_TRY(config_json_u32(config, "n_positions", 1, 131072, &out->context));
    bool tied;
    AQ_TRY(config_json_bool_or(config, "tie_word_embeddings", true, &tied));
    out->tied = tied ? AQ_TIED_EXACT : AQ_TIED_NO;
    AQ_TRY(config_json_number_or(config, "initializer_range", 0, 1, 0.02, &std));
    out->init_std = (float)std;
    AQ_TRY(config_json_u32_or(config, "n_inner", 1, UINT32_MAX, 4 * out->channels, &inner));
    if (inner != 4 * out->channels)
        return config_json_refuse(config, "n_inner", "null or %u, 4 n_embd (nothing else is supported)",
                                  4 * out->channels);
    AQ_TRY(config_json_one_of(config, "activation_function", "gelu_new", "gelu_new|gelu_pytorch_tanh", NULL));
    AQ_TRY(config_json_only_number(config, "layer_norm_epsilon", 1e-5));
    AQ_TRY(config_json_only(config, "scale_attn_weights", true));
    AQ_TRY(config_json_only(config, "scale_attn_by_inverse_layer_idx", false));
    return config_json_only(config, "add_cross_attention", false);
}

/* Buffers that published files have in addition to parameters: attention's masks. */
static bool ignores(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t end = strlen(ends[i]);
        if (length > end && strcmp(name + length - end, ends[i]) == 0) return true;
    }
    return false;
}

/* As Hugging Face's GPT2LMHeadModel and GPT2ForSequenceClassification have them: names of tensors and config.json. */
static void publish_name(const char *tensor, char *out, size_t bytes)
{
    const bool head = strcmp(tensor, "lm_head.weight") == 0 || strcmp(tensor, "score.weight") == 0;
    snprintf(out, bytes, "%s%s", head ? "" : "transformer.", tensor);
}

static enum aq_status publish_config(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                     size_t *count)
{
    const char *class = model->labels ? "GPT2ForSequenceClassification" : "GPT2LMHeadModel";
    json_t *config =
        json_pack("{s:[s], s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:n, s:f, s:f, s:f, s:f, s:f, s:b, s:s}", "architectures",
                  class, "model_type", "gpt2", "activation_function", "gelu_new", "n_embd", (int)model->channels,
                  "n_head", (int)model->heads, "n_layer", (int)model->blocks, "n_positions", (int)model->context,
                  "vocab_size", (int)model->vocabulary, "n_inner", "layer_norm_epsilon", 1e-5, "initializer_range",
                  (double)model->init_std, "resid_pdrop", (double)model->dropout, "embd_pdrop", (double)model->dropout,
                  "attn_pdrop", (double)model->dropout, "tie_word_embeddings", tied, "torch_dtype", "float32");
    config_json_put_ends(config, model->labels, end_of_text);
    return decoder_write(config, json, count);
}

const struct stage_model stage_model_gpt2 = {.kind = "gpt2",
                                             .task = "language_model",
                                             .input = "tokens",
                                             .sequences = true,
                                             .keys = keys,
                                             .key_count = sizeof keys / sizeof keys[0],
                                             .describe = describe,
                                             .identity = identity,
                                             .problem = problem,
                                             .config_default = config_default,
                                             .config_check = config_check,
                                             .layers = decoder_family_layers,
                                             .layer = layer,
                                             .published = published,
                                             .base = "transformer.",
                                             .read_config = read_config,
                                             .ignores = ignores,
                                             .publish_name = publish_name,
                                             .publish_config = publish_config};
