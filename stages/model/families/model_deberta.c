/*
 * model_deberta.c -- DeBERTa v2 and v3 with a classification head (He et al. 2021; 2023) as a row of models.def, with
 * names as Hugging Face's DebertaV2ForSequenceClassification has them.
 *
 * Layer 0 is the embedding, 1..L the blocks, then the pooler and the classifier. All blocks read one table of relative
 * positions and its layer norm, tensors of layer 0 (model.tied), or each has its own (layer/deberta.h).
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "deberta.h"
#include "decoder_json.h"
#include "stage_model.h"

#define FIELD(member) offsetof(struct aq_model_config, member)
#define OWN(field)    (offsetof(struct aq_model_config, own) + (field) * sizeof(uint32_t))
static const struct aq_model_key keys[] = {
    {"model.blocks", AQ_MODEL_U32, FIELD(blocks), "blocks", 1, 1024, "12", "transformer blocks, L"},
    {"model.heads", AQ_MODEL_U32, FIELD(heads), "heads", 1, 1024, "12", "attention heads, H; divides channels"},
    {"model.channels", AQ_MODEL_U32, FIELD(channels), "channels", 1, 65536, "768", "width, C"},
    {"model.inner", AQ_MODEL_U32, OWN(DEBERTA_INNER), "channels", 0, 262144, "0",
     "deberta: width of a block's MLP; 0: 4 model.channels"},
    {"model.vocabulary", AQ_MODEL_U32, FIELD(vocabulary), "tokens", 0, 1048576, "0", "V; 0: the tokenizer's"},
    {"model.context", AQ_MODEL_U32, FIELD(context), "tokens", 2, 131072, "512",
     "deberta: farthest distance with its own position (max_relative_positions)"},
    {"model.buckets", AQ_MODEL_U32, OWN(DEBERTA_BUCKETS), "positions", 0, 131072, "256",
     "deberta: positions, logarithmic from half of them on (position_buckets); 0: one for each distance"},
    {"model.types", AQ_MODEL_U32, FIELD(types), "types", 0, 65536, "0", MODEL_TYPES_HELP},
    {"model.kernel", AQ_MODEL_U32, OWN(DEBERTA_KERNEL), "tokens", 0, 63, "0",
     "deberta: v2's convolution next to the first block, odd (conv_kernel_size); 0: none"},
    {"model.embedding", AQ_MODEL_U32, OWN(DEBERTA_EMBEDDING), "channels", 0, 65536, "0",
     "deberta: width of the embedding, projected to model.channels; 0: those"},
    {"model.dropout", AQ_MODEL_F32, FIELD(dropout), "probability", 0, 0.9, "0",
     "on embedding, positions, attention, residuals and pooler; never at a cut"},
    {"model.tied", AQ_MODEL_TIED, FIELD(tied), "", 0, 0, "exact",
     "exact: one table of relative positions for all blocks, its gradients summed along the pipeline; untied: one per "
     "block"},
    {"model.init_std", AQ_MODEL_F32, FIELD(init_std), "", 0, 1, "0.02", "of the normal initial weights"}};

static void describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "DeBERTa, %u blocks, %u heads, %u channels, vocabulary %u, %u labels", model->blocks,
             model->heads, model->channels, model->vocabulary, model->labels);
}

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "deberta %u %u %u %u %u %u %d %u %u %u %u %u", model->blocks, model->heads, model->channels,
             model->vocabulary, model->labels, model->context, model->tied != AQ_TIED_NO, deberta_inner(model),
             model->own[DEBERTA_BUCKETS], model->types, model->own[DEBERTA_KERNEL], deberta_embedding(model));
}

static bool problem(const struct aq_model_config *model, uint32_t T, uint32_t index, const char **key, char *text,
                    size_t bytes)
{
    const uint32_t buckets = model->own[DEBERTA_BUCKETS], kernel = model->own[DEBERTA_KERNEL];
    const bool heads = model->channels % model->heads != 0, odd = kernel % 2 == 0 && kernel > 0;
    const bool logs = buckets > 0 && (buckets < 4 || model->context < buckets / 2 + 2);
    (void)T;
    if (heads && index == 0) {
        *key = "model.heads";
        snprintf(text, bytes, "%u heads do not divide %u channels (model.channels)", model->heads, model->channels);
    } else if (logs && index == (uint32_t)heads) {
        *key = "model.buckets";
        snprintf(text, bytes, "%u buckets: at least 4, and half of them fewer than model.context - 1, %u", buckets,
                 model->context - 1);
    } else if (odd && index == (uint32_t)heads + logs) {
        *key = "model.kernel";
        snprintf(text, bytes, "a convolution over %u tokens has no middle: an odd number", kernel);
    } else {
        return false;
    }
    return true;
}

static void config_default(struct aq_model_config *out)
{
    *out = (struct aq_model_config){.kind = "deberta",
                                    .blocks = 12,
                                    .heads = 12,
                                    .channels = 768,
                                    .vocabulary = 128100,
                                    .labels = 2,
                                    .context = 512,
                                    .tied = AQ_TIED_EXACT,
                                    .init_std = 0.02f,
                                    .own = {[DEBERTA_BUCKETS] = 256}};
}

static enum aq_status config_check(const struct aq_model_config *model)
{
    const char *key;
    char text[160];
    if (model->tied == AQ_TIED_COMPRESSED)
        return aq_fail(AQ_INVAL, "stage",
                       "model.tied is compressed, as only a language model's head can be: write exact, or untied");
    AQ_TRY(decoder_range_whole("blocks", model->blocks, 1, 1024));
    AQ_TRY(decoder_range_whole("heads", model->heads, 1, 1024));
    AQ_TRY(decoder_range_whole("channels", model->channels, 1, 65536));
    AQ_TRY(decoder_range_whole("inner", deberta_inner(model), 1, 262144));
    AQ_TRY(decoder_range_whole("vocabulary", model->vocabulary, 1, 16777216));
    AQ_TRY(decoder_range_whole("labels", model->labels, 1, 65536));
    AQ_TRY(decoder_range_whole("context", model->context, 2, 131072));
    AQ_TRY(decoder_range_whole("buckets", model->own[DEBERTA_BUCKETS], 0, 131072));
    AQ_TRY(decoder_range_whole("types", model->types, 0, 65536));
    AQ_TRY(decoder_range_whole("kernel", model->own[DEBERTA_KERNEL], 0, 63));
    AQ_TRY(decoder_range_whole("embedding", deberta_embedding(model), 1, 65536));
    if (problem(model, 1, 0, &key, text, sizeof text)) return aq_fail(AQ_INVAL, "stage", "%s: %s", key, text);
    AQ_TRY(decoder_range_whole("channels / model.heads", model->channels / model->heads, 1, 2048));
    if (!(model->dropout >= 0.0f && model->dropout < 1.0f))
        return aq_fail(AQ_INVAL, "stage", "model.dropout is %g: at least 0 and below 1", (double)model->dropout);
    if (!(model->init_std >= 0.0f && model->init_std <= 10.0f))
        return aq_fail(AQ_INVAL, "stage", "model.init_std is %g: 0 to 10", (double)model->init_std);
    return AQ_OK;
}

static uint32_t layers(const struct aq_model_config *model)
{
    return model->blocks + 3;
}

static void layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out)
{
    const struct aq_cut_shape stream = {.rows = T, .columns = model->channels};
    const struct aq_cut_shape pooled = {.rows = 1, .columns = model->channels};
    const uint32_t behind = model->blocks + 1;
    if (index == 0) {
        out->kind = &layer_deberta_embedding;
        out->out = stream;
        snprintf(out->name, sizeof out->name, "embedding");
    } else if (index < behind) {
        out->kind = &layer_deberta_block;
        out->in = out->out = stream;
        snprintf(out->name, sizeof out->name, "block %u", index - 1);
    } else if (index == behind) {
        out->kind = &layer_deberta_pooler;
        out->in = stream;
        out->out = pooled;
        snprintf(out->name, sizeof out->name, "pooler");
        snprintf(out->prefix, sizeof out->prefix, "pooler.dense.");
    } else {
        out->kind = &layer_classifier;
        out->transposed = true;
        out->in = pooled;
        out->out = (struct aq_cut_shape){.rows = 1, .columns = model->labels};
        snprintf(out->name, sizeof out->name, "classifier");
        snprintf(out->prefix, sizeof out->prefix, "classifier.");
    }
}

static const struct stage_published published[] = {{"deberta-v2", "DebertaV2ForSequenceClassification"},
                                                   {"deberta-v2", "DebertaV2Model"},
                                                   {"deberta-v2", "DebertaV2ForMaskedLM"},
                                                   {NULL, NULL}};

/* "p2c|c2p", or a list of both. */
static enum aq_status read_position_terms(const struct config_json *config)
{
    const json_t *terms = json_object_get(config->object, "pos_att_type");
    bool by_query = false, by_key = false, other = !json_is_array(terms) && !json_is_string(terms);
    if (json_is_string(terms)) {
        by_query = strstr(json_string_value(terms), "c2p") != NULL;
        by_key = strstr(json_string_value(terms), "p2c") != NULL;
    }
    for (size_t i = 0; json_is_array(terms) && i < json_array_size(terms); i++) {
        const char *term = json_string_value(json_array_get(terms, i));
        by_query = by_query || (term && strcmp(term, "c2p") == 0);
        by_key = by_key || (term && strcmp(term, "p2c") == 0);
    }
    if (by_query && by_key && !other) return AQ_OK;
    return config_json_refuse(config, "pos_att_type", "\"p2c|c2p\" (nothing else is supported)");
}

static enum aq_status read_sizes(const struct config_json *config, struct aq_model_config *out)
{
    uint32_t *own = out->own;
    const json_t *reach = json_object_get(config->object, "max_relative_positions");
    const json_t *buckets = json_object_get(config->object, "position_buckets");
    double std;
    AQ_TRY(config_json_u32(config, "num_hidden_layers", 1, 1024, &out->blocks));
    AQ_TRY(config_json_u32(config, "num_attention_heads", 1, 1024, &out->heads));
    AQ_TRY(config_json_u32(config, "hidden_size", 1, 65536, &out->channels));
    AQ_TRY(config_json_u32(config, "intermediate_size", 1, 262144, &own[DEBERTA_INNER]));
    AQ_TRY(config_json_u32(config, "vocab_size", 1, 1048576, &out->vocabulary));
    AQ_TRY(config_json_u32_or(config, "type_vocab_size", 0, 65536, 0, &out->types));
    AQ_TRY(config_json_u32_or(config, "embedding_size", 1, 65536, out->channels, &own[DEBERTA_EMBEDDING]));
    AQ_TRY(config_json_u32_or(config, "conv_kernel_size", 0, 63, 0, &own[DEBERTA_KERNEL]));
    AQ_TRY(config_json_number_or(config, "initializer_range", 0, 1, 0.02, &std));
    out->init_std = (float)std;
    /* Below 1 they are "none": then it is max_position_embeddings, or each distance has its own. */
    if (json_is_integer(reach) && json_integer_value(reach) >= 1)
        AQ_TRY(config_json_u32(config, "max_relative_positions", 2, 131072, &out->context));
    else
        AQ_TRY(config_json_u32(config, "max_position_embeddings", 2, 131072, &out->context));
    own[DEBERTA_BUCKETS] = 0;
    if (json_is_integer(buckets) && json_integer_value(buckets) >= 1)
        AQ_TRY(config_json_u32(config, "position_buckets", 4, 131072, &own[DEBERTA_BUCKETS]));
    const json_t *names = json_object_get(config->object, "id2label");
    if (json_object_size(names) > 0) out->labels = (uint32_t)json_object_size(names);
    return AQ_OK;
}

static enum aq_status read_config(const struct config_json *config, struct aq_model_config *out)
{
    AQ_TRY(read_sizes(config, out));
    AQ_TRY(read_position_terms(config));
    if (!json_is_true(json_object_get(config->object, "relative_attention")))
        return config_json_refuse(config, "relative_attention", "true (nothing else is supported)");
    if (!json_is_true(json_object_get(config->object, "share_att_key")))
        return config_json_refuse(config, "share_att_key", "true (nothing else is supported)");
    if (!json_is_false(json_object_get(config->object, "position_biased_input")))
        return config_json_refuse(config, "position_biased_input", "false (nothing else is supported)");
    AQ_TRY(config_json_one_of(config, "norm_rel_ebd", "none", "layer_norm", NULL));
    AQ_TRY(config_json_one_of(config, "hidden_act", "gelu", "gelu", NULL));
    AQ_TRY(config_json_one_of(config, "pooler_hidden_act", "gelu", "gelu", NULL));
    if (out->own[DEBERTA_KERNEL]) AQ_TRY(config_json_one_of(config, "conv_act", "tanh", "gelu", NULL));
    AQ_TRY(config_json_only_number(config, "conv_groups", 1));
    AQ_TRY(config_json_only_number(config, "layer_norm_eps", 1e-7));
    return config_json_only_number(config, "pooler_hidden_size", out->channels);
}

/* Heads for words that are hidden or replaced, and positions that are not added. */
static bool ignores(const char *name)
{
    static const char *const begins[] = {"lm_predictions.", "mask_predictions.", "cls.", "embeddings.position_"};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

static void publish_name(const char *tensor, char *out, size_t bytes)
{
    const bool head = strncmp(tensor, "pooler.", 7) == 0 || strncmp(tensor, "classifier.", 11) == 0;
    snprintf(out, bytes, "%s%s", head ? "" : "deberta.", tensor);
}

static enum aq_status publish_config(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                     size_t *count)
{
    const double dropout = (double)model->dropout;
    if (!model->tied)
        return aq_fail(AQ_INVAL, "stage",
                       "a table of relative positions in each block is nothing that others load: model.tied: exact");
    const int buckets = model->own[DEBERTA_BUCKETS] ? (int)model->own[DEBERTA_BUCKETS] : -1;
    (void)tied;
    (void)end_of_text;
    json_t *config = json_pack(
        "{s:[s], s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:b, s:s, s:s, s:i, s:f, s:f, "
        "s:f, s:f, s:i, s:s}",
        "architectures", "DebertaV2ForSequenceClassification", "model_type", "deberta-v2", "hidden_act", "gelu",
        "pooler_hidden_act", "gelu", "pooler_hidden_size", (int)model->channels, "hidden_size", (int)model->channels,
        "num_hidden_layers", (int)model->blocks, "num_attention_heads", (int)model->heads, "intermediate_size",
        (int)deberta_inner(model), "vocab_size", (int)model->vocabulary, "max_position_embeddings", (int)model->context,
        "max_relative_positions", -1, "position_buckets", buckets, "relative_attention", 1, "share_att_key", 1,
        "position_biased_input", 0, "pos_att_type", "p2c|c2p", "norm_rel_ebd", "layer_norm", "type_vocab_size",
        (int)model->types, "layer_norm_eps", 1e-7, "initializer_range", (double)model->init_std, "hidden_dropout_prob",
        dropout, "attention_probs_dropout_prob", dropout, "pooler_dropout", 0, "torch_dtype", "float32");
    if (deberta_embedding(model) != model->channels)
        json_object_set_new(config, "embedding_size", json_integer(deberta_embedding(model)));
    if (model->own[DEBERTA_KERNEL]) {
        json_object_set_new(config, "conv_kernel_size", json_integer(model->own[DEBERTA_KERNEL]));
        json_object_set_new(config, "conv_act", json_string("gelu"));
    }
    config_json_put_labels(config, model->labels);
    return decoder_write(config, json, count);
}

const struct stage_model stage_model_deberta = {.kind = "deberta",
                                                .task = "classification",
                                                .input = "tokens",
                                                .sequences = true,
                                                .keys = keys,
                                                .key_count = sizeof keys / sizeof keys[0],
                                                .describe = describe,
                                                .identity = identity,
                                                .problem = problem,
                                                .config_default = config_default,
                                                .config_check = config_check,
                                                .layers = layers,
                                                .layer = layer,
                                                .published = published,
                                                .base = "deberta.",
                                                .read_config = read_config,
                                                .ignores = ignores,
                                                .publish_name = publish_name,
                                                .publish_config = publish_config};
