/*
 * model_modernbert.c -- ModernBERT with a classification head (Warner et al. 2024) as a row of models.def: an encoder
 * of the decoders' blocks. Attention sees both sides. The first of every few blocks sees all tokens, the others those
 * near by, and both kinds have their own frequencies. The gate is the exact GELU. Layer norms have no bias, and the
 * first block has none before attention; only the classifier has a bias. Tensors have the names of Hugging Face's
 * ModernBertForSequenceClassification, without "model." in front.
 *
 * Layer 0 is the embedding, 1..L the blocks, then the pooler (final norm and prediction head) and the classifier.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "decoder.h"
#include "decoder_json.h"

#define FIELD(member) offsetof(struct aq_model_config, member)
static const struct aq_model_key keys[] = {
    {"model.blocks", AQ_MODEL_U32, FIELD(blocks), "blocks", 1, 1024, "12", "transformer blocks, L"},
    {"model.heads", AQ_MODEL_U32, FIELD(heads), "heads", 1, 1024, "12", "attention heads, H; divides channels"},
    {"model.channels", AQ_MODEL_U32, FIELD(channels), "channels", 1, 65536, "768", "width, C"},
    {"model.mlp", AQ_MODEL_U32, FIELD(mlp), "channels", 1, 1048576, "2048", "of a block's gated MLP"},
    {"model.vocabulary", AQ_MODEL_U32, FIELD(vocabulary), "tokens", 0, 1048576, "0", "V; 0: the tokenizer's"},
    {"model.context", AQ_MODEL_U32, FIELD(context), "tokens", 1, 1048576, "1024",
     "tokens that the model was made for; at least train.T"},
    {"model.norm_eps", AQ_MODEL_F32, FIELD(norm_eps), "", 0, 1, "0.00001", "epsilon of layer norms"},
    {"model.rope_theta", AQ_MODEL_F32, FIELD(rope_theta), "", 1, 1e12, "10000",
     "base of the turning heads' frequencies"},
    {"model.rope_local", AQ_MODEL_F32, FIELD(rope_local), "", 0, 1e12, "0",
     "as model.rope_theta, of blocks with a window; 0: model.rope_theta"},
    {"model.window", AQ_MODEL_U32, FIELD(window), "tokens", 0, 1048576, "0",
     "of blocks that have a window: tokens less far away than this are seen, on both sides"},
    {"model.window_every", AQ_MODEL_U32, FIELD(window_every), "blocks", 0, 1024, "0",
     "the first of every N blocks has no window"},
    {"model.window_from", AQ_MODEL_U32, FIELD(window_from), "blocks", 0, 1024, "0",
     "blocks before this one have no window"},
    {"model.pool_mean", AQ_MODEL_BOOL, FIELD(pool_mean), "", 0, 0, "false",
     "modernbert, eurobert: the classifier reads the mean of all tokens (classifier_pooling: mean), not the first one"},
    {"model.dropout", AQ_MODEL_F32, FIELD(dropout), "probability", 0, 0.9, "0",
     "on embedding, attention, residuals and pooler; never at a cut"},
    {"model.init_std", AQ_MODEL_F32, FIELD(init_std), "", 0, 1, "0.02", "of the normal initial weights"}};

static void describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes,
             "ModernBERT, %u blocks, %u heads, %u channels, MLP %u, vocabulary %u, windows of %u, %u labels",
             model->blocks, model->heads, model->channels, model->mlp, model->vocabulary, model->window, model->labels);
}

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "modernbert %u %u %u %u %u %u %u %u %u %u %d %a %a %a", model->blocks, model->heads,
             model->channels, model->mlp, model->vocabulary, model->labels, model->context, model->window,
             model->window_every, model->window_from, model->pool_mean, (double)model->norm_eps,
             (double)model->rope_theta, (double)model->rope_local);
}

static void config_default(struct aq_model_config *out)
{
    *out = (struct aq_model_config){.kind = "modernbert",
                                    .blocks = 12,
                                    .heads = 12,
                                    .channels = 768,
                                    .mlp = 2048,
                                    .vocabulary = 50257,
                                    .labels = 2,
                                    .context = 1024,
                                    .init_std = 0.02f,
                                    .norm_eps = 1e-5f,
                                    .rope_theta = 10000.0f,
                                    .rope_partial = 1.0f,
                                    .rope_factor = 1.0f,
                                    .rope_low = 1.0f,
                                    .rope_high = 4.0f,
                                    .rope_original = 8192,
                                    .rope_linear = 1.0f,
                                    .window_first = true};
}

static enum aq_status config_check(const struct aq_model_config *model)
{
    AQ_TRY(decoder_range("rope_local", (double)model->rope_local, 0, 1e12));
    AQ_TRY(decoder_range("labels", model->labels, 1, 65536));
    return decoder_ranges(model);
}

static const struct decoder_form form = {.out_in = true,
                                         .turns = true,
                                         .gated = true,
                                         .gate = AQ_GATE_GELU_EXACT,
                                         .qkv_one_tensor = true,
                                         .both = true,
                                         .first_plain = true,
                                         .local = true,
                                         .tokens = "embeddings.tok_embeddings.weight",
                                         .rows = "embeddings.norm.weight",
                                         .norm = "final_norm.weight",
                                         .dense = "head.dense.weight",
                                         .dense_norm = "head.norm.weight",
                                         .names = {[NORM1] = "attn_norm.weight",
                                                   [QUERY] = "attn.Wqkv.weight",
                                                   [PROJECTION] = "attn.Wo.weight",
                                                   [NORM2] = "mlp_norm.weight",
                                                   [GATE] = "mlp.Wi.weight",
                                                   [MLP] = "mlp.Wo.weight"}};

static uint32_t layers(const struct aq_model_config *model)
{
    return model->blocks + 3;
}

static void layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out)
{
    const struct aq_cut_shape stream = {.rows = T, .columns = model->channels};
    const struct aq_cut_shape pooled = {.rows = 1, .columns = model->channels};
    const uint32_t behind = model->blocks + 1;
    out->form = &form;
    if (index > 0) out->in = index > behind ? pooled : stream;
    out->out = index < behind ? stream : pooled;
    if (index == 0) {
        out->kind = &layer_embedding;
        snprintf(out->name, sizeof out->name, "embedding");
    } else if (index < behind) {
        out->kind = &layer_decoder;
        snprintf(out->name, sizeof out->name, "block %u", index - 1);
        snprintf(out->prefix, sizeof out->prefix, "layers.%u.", index - 1);
    } else if (index == behind) {
        out->kind = &layer_encoder_pooler;
        snprintf(out->name, sizeof out->name, "pooler");
    } else {
        out->kind = &layer_classifier;
        out->transposed = true;
        out->out.columns = model->labels;
        snprintf(out->name, sizeof out->name, "classifier");
        snprintf(out->prefix, sizeof out->prefix, "classifier.");
    }
}

/* ---- Published folders. */

static const struct stage_published published[] = {{"modernbert", "ModernBertForSequenceClassification"},
                                                   {"modernbert", "ModernBertModel"},
                                                   {"modernbert", "ModernBertForMaskedLM"},
                                                   {NULL, NULL}};

static enum aq_status read_sizes(const struct config_json *config, struct aq_model_config *out)
{
    AQ_TRY(config_json_u32_or(config, "num_hidden_layers", 1, 1024, 22, &out->blocks));
    AQ_TRY(config_json_u32_or(config, "num_attention_heads", 1, 1024, 12, &out->heads));
    AQ_TRY(config_json_u32_or(config, "hidden_size", 1, 65536, 768, &out->channels));
    AQ_TRY(config_json_u32_or(config, "intermediate_size", 1, 1048576, 1152, &out->mlp));
    AQ_TRY(config_json_u32_or(config, "vocab_size", 1, 1048576, 50368, &out->vocabulary));
    AQ_TRY(config_json_u32_or(config, "max_position_embeddings", 1, 1048576, 8192, &out->context));
    const json_t *names = json_object_get(config->object, "id2label");
    if (json_object_size(names) > 0) out->labels = (uint32_t)json_object_size(names);
    return AQ_OK;
}

/* `rope_parameters` with an object for each sort of blocks (transformers 5), or one key of theta for each sort. */
static enum aq_status read_rope(const struct config_json *config, struct aq_model_config *out)
{
    struct config_json rope, full, sliding;
    AQ_TRY(decoder_read_number(config, "global_rope_theta", 1, 1e12, 160000, &out->rope_theta));
    AQ_TRY(decoder_read_number(config, "local_rope_theta", 1, 1e12, 10000, &out->rope_local));
    if (config_json_has(config, "rope_scaling")) return config_json_refuse(config, "rope_scaling", "null");
    AQ_TRY(config_json_object(config, "rope_parameters", "rope_parameters.", &rope));
    if (!rope.object) return AQ_OK;
    AQ_TRY(config_json_object(&rope, "full_attention", "rope_parameters.full_attention.", &full));
    AQ_TRY(config_json_object(&rope, "sliding_attention", "rope_parameters.sliding_attention.", &sliding));
    if (full.object) {
        AQ_TRY(config_json_one_of(&full, "rope_type", "default", "default", NULL));
        AQ_TRY(decoder_read_number(&full, "rope_theta", 1, 1e12, (double)out->rope_theta, &out->rope_theta));
    }
    if (!sliding.object) return AQ_OK;
    AQ_TRY(config_json_one_of(&sliding, "rope_type", "default", "default", NULL));
    return decoder_read_number(&sliding, "rope_theta", 1, 1e12, (double)out->rope_local, &out->rope_local);
}

/* A missing key has transformers' default. */
static enum aq_status read_config(const struct config_json *config, struct aq_model_config *out)
{
    static const char *const biases[] = {"norm_bias", "attention_bias", "mlp_bias", "classifier_bias"};
    uint32_t local, every, pooling;
    AQ_TRY(read_sizes(config, out));
    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++)
        AQ_TRY(config_json_only(config, biases[i], false));
    AQ_TRY(decoder_read_number(config, "norm_eps", 0, 1, 1e-5, &out->norm_eps));
    AQ_TRY(decoder_read_number(config, "initializer_range", 0, 1, 0.02, &out->init_std));
    AQ_TRY(config_json_one_of(config, "hidden_activation", "gelu", "gelu", NULL));
    AQ_TRY(config_json_one_of(config, "classifier_activation", "gelu", "gelu", NULL));
    AQ_TRY(config_json_one_of(config, "classifier_pooling", "cls", "cls|mean", &pooling));
    AQ_TRY(config_json_u32_or(config, "local_attention", 2, 1048576, 128, &local));
    AQ_TRY(config_json_u32_or(config, "global_attn_every_n_layers", 1, 1024, 3, &every));
    out->pool_mean = pooling == 1;
    AQ_TRY(decoder_read_windows(config, local / 2 + 1, every, 0, out));
    return read_rope(config, out);
}

/* The head of words that are hidden: its bias, and its weights where they are not the embedding's. */
static bool ignores(const char *name)
{
    return strncmp(name, "decoder.", 8) == 0;
}

static void publish_name(const char *tensor, char *out, size_t bytes)
{
    const bool head = strncmp(tensor, "head.", 5) == 0 || strncmp(tensor, "classifier.", 11) == 0;
    snprintf(out, bytes, "%s%s", head ? "" : "model.", tensor);
}

/* Both ways in which programs look for it. */
static void publish_rope(const struct aq_model_config *model, json_t *config)
{
    const float local = model->rope_local > 0.0f ? model->rope_local : model->rope_theta;
    json_t *full = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta", decoder_number(model->rope_theta));
    json_t *sliding = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta", decoder_number(local));
    json_object_set_new(config, "global_rope_theta", decoder_number(model->rope_theta));
    json_object_set_new(config, "local_rope_theta", decoder_number(local));
    json_object_set_new(config, "rope_parameters",
                        json_pack("{s:o, s:o}", "full_attention", full, "sliding_attention", sliding));
}

enum { PAD_TOKEN = 50283 }; /* transformers' default: a row of the embedding */

static enum aq_status publish_config(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                     size_t *count)
{
    const uint32_t window = model->window ? model->window : 65;
    const double dropout = (double)model->dropout;
    (void)tied;
    (void)end_of_text;
    json_t *config = json_pack(
        "{s:[s], s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:b, s:b, s:b, s:b, s:f, s:f, s:f, "
        "s:f, s:s, s:s}",
        "architectures", "ModernBertForSequenceClassification", "model_type", "modernbert", "hidden_activation", "gelu",
        "classifier_activation", "gelu", "classifier_pooling", model->pool_mean ? "mean" : "cls", "hidden_size",
        (int)model->channels, "num_attention_heads", (int)model->heads, "num_hidden_layers", (int)model->blocks,
        "intermediate_size", (int)model->mlp, "vocab_size", (int)model->vocabulary, "max_position_embeddings",
        (int)model->context, "local_attention", (int)(2 * (window - 1)), "norm_eps", decoder_number(model->norm_eps),
        "initializer_range", decoder_number(model->init_std), "norm_bias", false, "attention_bias", false, "mlp_bias",
        false, "classifier_bias", false, "attention_dropout", dropout, "embedding_dropout", dropout, "mlp_dropout",
        dropout, "classifier_dropout", dropout, "torch_dtype", "float32", "dtype", "float32");
    json_object_set_new(config, "layer_types", decoder_layer_types(model));
    if (model->window_every) /* of programs that do not read layer_types */
        json_object_set_new(config, "global_attn_every_n_layers", json_integer(model->window_every));
    if (model->vocabulary <= PAD_TOKEN) json_object_set_new(config, "pad_token_id", json_null());
    publish_rope(model, config);
    config_json_put_labels(config, model->labels);
    return decoder_write(config, json, count);
}

const struct stage_model stage_model_modernbert = {.kind = "modernbert",
                                                   .task = "classification",
                                                   .input = "tokens",
                                                   .sequences = true,
                                                   .keys = keys,
                                                   .key_count = sizeof keys / sizeof keys[0],
                                                   .describe = describe,
                                                   .identity = identity,
                                                   .problem = decoder_problem,
                                                   .config_default = config_default,
                                                   .config_check = config_check,
                                                   .layers = layers,
                                                   .layer = layer,
                                                   .published = published,
                                                   .base = "model.",
                                                   .read_config = read_config,
                                                   .ignores = ignores,
                                                   .publish_name = publish_name,
                                                   .publish_config = publish_config};
