/*
 * model_gemma3.c -- Gemma 3 (Gemma Team 2025), of texts alone, as a row of models.def: blocks that see the last tokens
 * alone and, the last of every so many, blocks that see all, each with frequencies of its own; norms before and behind
 * the branches, which keep their weights less 1; norms of heads; a gate of GELU; scores by a scale of their own; rows
 * of the embedding times the root of their columns. Names of tensors are Hugging Face's, without "model." in front.
 *
 * Layer 0 is the embedding, 1..L the blocks, L+1 final norm, head and loss.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "decoder.h"
#include "decoder_json.h"

#define FIELD(member) offsetof(struct aq_model_config, member)
static const struct aq_model_key keys[] = {
    {"model.blocks", AQ_MODEL_U32, FIELD(blocks), "blocks", 1, 1024, "12", "transformer blocks, L"},
    {"model.heads", AQ_MODEL_U32, FIELD(heads), "heads", 1, 1024, "12", "heads of queries, H"},
    {"model.kv_heads", AQ_MODEL_U32, FIELD(kv_heads), "heads", 0, 1024, "0",
     "heads of keys and values, which queries share; divides H; 0: H"},
    {"model.head_dim", AQ_MODEL_U32, FIELD(head_dim), "channels", 0, 2048, "0", "of a head, even; 0: channels / heads"},
    {"model.channels", AQ_MODEL_U32, FIELD(channels), "channels", 1, 65536, "768", "width, C"},
    {"model.mlp", AQ_MODEL_U32, FIELD(mlp), "channels", 1, 1048576, "2048", "of a block's gated MLP"},
    {"model.vocabulary", AQ_MODEL_U32, FIELD(vocabulary), "tokens", 0, 1048576, "0", "V; 0: the tokenizer's"},
    {"model.context", AQ_MODEL_U32, FIELD(context), "tokens", 1, 1048576, "1024",
     "tokens that the model was made for; at least train.T"},
    {"model.norm_eps", AQ_MODEL_F32, FIELD(norm_eps), "", 0, 1, "0.00001", "epsilon of RMS norms"},
    {"model.rope_theta", AQ_MODEL_F32, FIELD(rope_theta), "", 1, 1e12, "10000",
     "base of the turning heads' frequencies"},
    {"model.rope_linear", AQ_MODEL_F32, FIELD(rope_linear), "", 1, 1024, "1",
     "divides the frequencies of blocks without a window"},
    {"model.rope_local", AQ_MODEL_F32, FIELD(rope_local), "", 0, 1e12, "0",
     "gemma3, modernbert: as model.rope_theta, of blocks with a window; 0: model.rope_theta"},
    {"model.window", AQ_MODEL_U32, FIELD(window), "tokens", 0, 1048576, "0", "of blocks that have a window"},
    {"model.window_every", AQ_MODEL_U32, FIELD(window_every), "blocks", 0, 1024, "0",
     "the last of every N blocks has no window"},
    {"model.window_from", AQ_MODEL_U32, FIELD(window_from), "blocks", 0, 1024, "0",
     "blocks before this one have no window"},
    {"model.query_scale", AQ_MODEL_U32, FIELD(query_scale), "", 0, 1048576, "0",
     "gemma3: scores are divided by its root (query_pre_attn_scalar); 0: channels of a head"},
    {"model.dropout", AQ_MODEL_F32, FIELD(dropout), "probability", 0, 0.9, "0",
     "on embedding and attention; never at a cut"},
    {"model.tied", AQ_MODEL_TIED, FIELD(tied), "", 0, 0, "exact",
     "exact: head and embedding are one tensor; where a cut separates them its gradient and its values travel once a "
     "step. compressed: the same, but the gradient travels quantized, and rows of the batch. untied: two tensors. true "
     "is exact, false is untied"},
    {"model.init_std", AQ_MODEL_F32, FIELD(init_std), "", 0, 1, "0.02", "of the normal initial weights"}};

static void describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "%u blocks, %u heads (%u of keys) of %u, %u channels, MLP %u, vocabulary %u, windows of %u",
             model->blocks, model->heads, decoder_kv_heads(model), decoder_head_dim(model), model->channels, model->mlp,
             model->vocabulary, model->window);
}

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "gemma3 %u %u %u %u %u %u %u %u %d %u %u %u %u %a %a %a %a", model->blocks, model->heads,
             decoder_kv_heads(model), decoder_head_dim(model), model->channels, model->mlp, model->vocabulary,
             model->context, model->tied != AQ_TIED_NO, model->window, model->window_every, model->window_from,
             model->query_scale, (double)model->norm_eps, (double)model->rope_theta, (double)model->rope_local,
             (double)model->rope_linear);
}

static void config_default(struct aq_model_config *out)
{
    *out = (struct aq_model_config){.kind = "gemma3",
                                    .blocks = 12,
                                    .heads = 12,
                                    .channels = 768,
                                    .mlp = 2048,
                                    .vocabulary = 50257,
                                    .context = 1024,
                                    .tied = AQ_TIED_EXACT,
                                    .init_std = 0.02f,
                                    .norm_eps = 1e-5f,
                                    .qk_norm = true,
                                    .rope_theta = 10000.0f,
                                    .rope_partial = 1.0f,
                                    .rope_factor = 1.0f,
                                    .rope_low = 1.0f,
                                    .rope_high = 4.0f,
                                    .rope_original = 8192,
                                    .rope_linear = 1.0f};
}

static enum aq_status config_check(const struct aq_model_config *model)
{
    AQ_TRY(decoder_range("rope_local", (double)model->rope_local, 0, 1e12));
    return decoder_ranges(model);
}

static const struct decoder_form form = {.rms = true,
                                         .out_in = true,
                                         .turns = true,
                                         .gated = true,
                                         .gate = AQ_GATE_GELU,
                                         .posts = true,
                                         .plus = 1.0f,
                                         .scaled = true,
                                         .tokens = "embed_tokens.weight",
                                         .norm = "norm.weight",
                                         .head = "lm_head.weight",
                                         .score = "score.weight",
                                         .names = {[NORM1] = "input_layernorm.weight",
                                                   [QUERY] = "self_attn.q_proj.weight",
                                                   [KEY] = "self_attn.k_proj.weight",
                                                   [VALUE] = "self_attn.v_proj.weight",
                                                   [QUERY_NORM] = "self_attn.q_norm.weight",
                                                   [KEY_NORM] = "self_attn.k_norm.weight",
                                                   [PROJECTION] = "self_attn.o_proj.weight",
                                                   [POST1] = "post_attention_layernorm.weight",
                                                   [NORM2] = "pre_feedforward_layernorm.weight",
                                                   [GATE] = "mlp.gate_proj.weight",
                                                   [UP] = "mlp.up_proj.weight",
                                                   [MLP] = "mlp.down_proj.weight",
                                                   [POST2] = "post_feedforward_layernorm.weight"}};

static uint32_t layers(const struct aq_model_config *model)
{
    return model->blocks + 2;
}

static void layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out)
{
    const struct aq_cut_shape stream = {.rows = T, .columns = model->channels};
    const bool last = index == model->blocks + 1;
    const struct layer_kind *head = model->labels ? &layer_sequence_head : &layer_language_head;
    out->kind = index == 0 ? &layer_embedding : last ? head : &layer_decoder;
    out->form = &form;
    if (index > 0) out->in = stream;
    out->out = stream;
    if (last && model->labels)
        out->out = (struct aq_cut_shape){.rows = 1, .columns = model->labels};
    else if (last)
        out->out.columns = model->vocabulary;
    if (index == 0 || last) {
        snprintf(out->name, sizeof out->name, "%s", last ? "head" : "embedding");
    } else {
        snprintf(out->name, sizeof out->name, "block %u", index - 1);
        snprintf(out->prefix, sizeof out->prefix, "layers.%u.", index - 1);
    }
}

/* ---- Published folders. */

enum { LANGUAGE, BASE, CLASSIFIER };

static const struct stage_published published[] = {{"gemma3_text", "Gemma3ForCausalLM"},
                                                   {"gemma3_text", "Gemma3TextModel"},
                                                   {"gemma3_text", "Gemma3TextForSequenceClassification"},
                                                   {NULL, NULL}};

static enum aq_status read_sizes(const struct config_json *config, struct aq_model_config *out)
{
    AQ_TRY(config_json_u32_or(config, "num_hidden_layers", 1, 1024, 26, &out->blocks));
    AQ_TRY(config_json_u32_or(config, "num_attention_heads", 1, 1024, 8, &out->heads));
    AQ_TRY(config_json_u32_or(config, "hidden_size", 1, 65536, 2304, &out->channels));
    AQ_TRY(config_json_u32_or(config, "intermediate_size", 1, 1048576, 9216, &out->mlp));
    AQ_TRY(config_json_u32_or(config, "vocab_size", 1, 1048576, 262208, &out->vocabulary));
    AQ_TRY(config_json_u32_or(config, "max_position_embeddings", 1, 1048576, 131072, &out->context));
    AQ_TRY(config_json_u32_or(config, "num_key_value_heads", 1, 1024, 4, &out->kv_heads));
    AQ_TRY(config_json_u32_or(config, "head_dim", 1, 2048, 256, &out->head_dim));
    return config_json_u32_or(config, "query_pre_attn_scalar", 1, 1048576, 256, &out->query_scale);
}

/* "type" is an older word for "rope_type". */
static enum aq_status read_scaling(const struct config_json *rope, struct aq_model_config *out)
{
    uint32_t type;
    if (!rope->object) return AQ_OK;
    const char *key = config_json_has(rope, "rope_type") ? "rope_type" : "type";
    AQ_TRY(config_json_one_of(rope, key, "default", "default|linear", &type));
    return type ? decoder_read_number(rope, "factor", 1, 1024, 1.0, &out->rope_linear) : AQ_OK;
}

/*
 * How heads turn: `rope_parameters` with an object for each sort of blocks (transformers 5), or `rope_theta`,
 * `rope_local_base_freq` and `rope_scaling`, of blocks without a window, beside each other (before).
 */
static enum aq_status read_rope(const struct config_json *config, struct aq_model_config *out)
{
    struct config_json rope, full, sliding, scaling;
    AQ_TRY(decoder_read_number(config, "rope_theta", 1, 1e12, 1e6, &out->rope_theta));
    AQ_TRY(decoder_read_number(config, "rope_local_base_freq", 1, 1e12, 1e4, &out->rope_local));
    AQ_TRY(config_json_object(config, "rope_parameters", "rope_parameters.", &rope));
    AQ_TRY(config_json_object(config, "rope_scaling", "rope_scaling.", &scaling));
    if (json_object_size(scaling.object) == 0) scaling.object = NULL;
    if (!rope.object || scaling.object) { /* it goes over what rope_parameters has of these blocks */
        AQ_TRY(read_scaling(&scaling, out));
        if (scaling.object)
            AQ_TRY(decoder_read_number(&scaling, "rope_theta", 1, 1e12, (double)out->rope_theta, &out->rope_theta));
    }
    if (!rope.object) return AQ_OK;
    AQ_TRY(config_json_object(&rope, "full_attention", "rope_parameters.full_attention.", &full));
    AQ_TRY(config_json_object(&rope, "sliding_attention", "rope_parameters.sliding_attention.", &sliding));
    if (!scaling.object) AQ_TRY(read_scaling(&full, out));
    if (full.object && !config_json_has(&scaling, "rope_theta"))
        AQ_TRY(decoder_read_number(&full, "rope_theta", 1, 1e12, (double)out->rope_theta, &out->rope_theta));
    if (!sliding.object) return AQ_OK;
    AQ_TRY(config_json_one_of(&sliding, "rope_type", "default", "default", NULL));
    return decoder_read_number(&sliding, "rope_theta", 1, 1e12, (double)out->rope_local, &out->rope_local);
}

/* Where a key is missing, what transformers takes then. */
static enum aq_status read_config(const struct config_json *config, struct aq_model_config *out)
{
    static const char *const caps[] = {"final_logit_softcapping", "attn_logit_softcapping"};
    uint32_t window, every;
    AQ_TRY(config_json_one_of(config, "model_type", "gemma3_text", "gemma3_text", NULL));
    AQ_TRY(read_sizes(config, out));
    AQ_TRY(decoder_read_number(config, "rms_norm_eps", 0, 1, 1e-6, &out->norm_eps));
    AQ_TRY(decoder_read_number(config, "initializer_range", 0, 1, 0.02, &out->init_std));
    bool tied;
    AQ_TRY(config_json_bool_or(config, "tie_word_embeddings", true, &tied));
    out->tied = tied ? AQ_TIED_EXACT : AQ_TIED_NO;
    AQ_TRY(config_json_one_of(config, "hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh|gelu_new", NULL));
    AQ_TRY(config_json_only(config, "attention_bias", false));
    AQ_TRY(config_json_only(config, "use_bidirectional_attention", false));
    for (int i = 0; i < 2; i++)
        if (config_json_has(config, caps[i])) return config_json_refuse(config, caps[i], "null: no caps are computed");
    AQ_TRY(config_json_u32_or(config, "sliding_window", 1, 1048576, 4096, &window));
    AQ_TRY(config_json_u32_or(config, "sliding_window_pattern", 1, 1024, 6, &every));
    AQ_TRY(decoder_read_windows(config, window, every, 0, out));
    return read_rope(config, out);
}

static void publish_name(const char *tensor, char *out, size_t bytes)
{
    const bool head = strcmp(tensor, form.head) == 0 || strcmp(tensor, form.score) == 0;
    snprintf(out, bytes, "%s%s", head ? "" : "model.", tensor);
}

/* Both ways in which programs look for it. */
static void publish_rope(const struct aq_model_config *model, json_t *config)
{
    const float local = model->rope_local > 0.0f ? model->rope_local : model->rope_theta;
    json_t *full = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta", decoder_number(model->rope_theta));
    json_t *sliding = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta", decoder_number(local));
    json_t *scaling = json_null();
    if (model->rope_linear != 1.0f) {
        scaling = json_pack("{s:s, s:o}", "rope_type", "linear", "factor", decoder_number(model->rope_linear));
        json_object_update(full, scaling);
    }
    json_object_set_new(config, "rope_theta", decoder_number(model->rope_theta));
    json_object_set_new(config, "rope_local_base_freq", decoder_number(local));
    json_object_set_new(config, "rope_scaling", scaling);
    json_object_set_new(config, "rope_parameters",
                        json_pack("{s:o, s:o}", "full_attention", full, "sliding_attention", sliding));
}

static enum aq_status publish_config(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                     size_t *count)
{
    const struct stage_published *class = &published[model->labels ? CLASSIFIER : LANGUAGE];
    const uint32_t D = decoder_head_dim(model), scale = model->query_scale ? model->query_scale : D;
    json_t *config = json_pack(
        "{s:[s], s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:b, s:b, s:f, s:s, s:s}",
        "architectures", class->architecture, "model_type", class->type, "hidden_activation", "gelu_pytorch_tanh",
        "hidden_size", (int)model->channels, "num_attention_heads", (int)model->heads, "num_key_value_heads",
        (int)decoder_kv_heads(model), "head_dim", (int)D, "num_hidden_layers", (int)model->blocks, "intermediate_size",
        (int)model->mlp, "vocab_size", (int)model->vocabulary, "max_position_embeddings", (int)model->context,
        "query_pre_attn_scalar", (int)scale, "rms_norm_eps", decoder_number(model->norm_eps), "initializer_range",
        decoder_number(model->init_std), "tie_word_embeddings", tied, "attention_bias", false, "attention_dropout",
        (double)model->dropout, "torch_dtype", "float32", "dtype", "float32");
    json_object_set_new(config, "sliding_window", json_integer(model->window ? model->window : 4096));
    json_object_set_new(config, "layer_types", decoder_layer_types(model));
    publish_rope(model, config);
    config_json_put_ends(config, model->labels, end_of_text);
    return decoder_write(config, json, count);
}

extern const struct stage_model stage_model_gemma3;
const struct stage_model stage_model_gemma3 = {.kind = "gemma3",
                                               .task = "language_model",
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
                                               .publish_name = publish_name,
                                               .publish_config = publish_config};
