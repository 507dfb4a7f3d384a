/*
 * model_llama.c -- Llama and its kin as a row of models.def: RMS norms, heads that turn, a gated MLP, heads of keys
 * that are shared; with biases of queries, keys and values Qwen2, with norms of heads Qwen3. Names of tensors are
 * Hugging Face's, without "model." in front.
 *
 * Layer 0 is the embedding, 1..L the blocks, L+1 final norm, head and loss.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "decoder_json.h"

#define FIELD(member) offsetof(struct aq_model_config, member)
static const struct aq_model_key keys[] = {
    {"model.blocks", AQ_MODEL_U32, FIELD(blocks), "blocks", 1, 1024, "12", "transformer blocks, L"},
    {"model.heads", AQ_MODEL_U32, FIELD(heads), "heads", 1, 1024, "12", "heads of queries, H"},
    {"model.kv_heads", AQ_MODEL_U32, FIELD(kv_heads), "heads", 0, 1024, "0",
     "llama: heads of keys and values, which queries share; divides H; 0: H"},
    {"model.head_dim", AQ_MODEL_U32, FIELD(head_dim), "channels", 0, 2048, "0",
     "llama: of a head, even; 0: channels / heads"},
    {"model.channels", AQ_MODEL_U32, FIELD(channels), "channels", 1, 65536, "768", "width, C"},
    {"model.mlp", AQ_MODEL_U32, FIELD(mlp), "channels", 1, 1048576, "2048",
     "llama, gemma3, modernbert: of a block's gated MLP"},
    {"model.vocabulary", AQ_MODEL_U32, FIELD(vocabulary), "tokens", 0, 1048576, "0", "V; 0: the tokenizer's"},
    {"model.context", AQ_MODEL_U32, FIELD(context), "tokens", 1, 1048576, "1024",
     "tokens that the model was made for; at least train.T"},
    {"model.norm_eps", AQ_MODEL_F32, FIELD(norm_eps), "", 0, 1, "0.00001", "llama: epsilon of RMS norms"},
    {"model.rope_theta", AQ_MODEL_F32, FIELD(rope_theta), "", 1, 1e12, "10000",
     "llama: base of the turning heads' frequencies"},
    {"model.rope_partial", AQ_MODEL_F32, FIELD(rope_partial), "", 0, 1, "1", "llama: how much of a head turns"},
    {"model.rope_factor", AQ_MODEL_F32, FIELD(rope_factor), "", 1, 1024, "1",
     "llama: slows low frequencies, as Llama 3.1 does, for longer contexts; 1: none"},
    {"model.rope_low", AQ_MODEL_F32, FIELD(rope_low), "", 0, 1024, "1", "llama: with rope_factor: low_freq_factor"},
    {"model.rope_high", AQ_MODEL_F32, FIELD(rope_high), "", 0, 1024, "4", "llama: with rope_factor: high_freq_factor"},
    {"model.rope_original", AQ_MODEL_U32, FIELD(rope_original), "tokens", 1, 1048576, "8192",
     "llama: with rope_factor: the context before"},
    {"model.rope_linear", AQ_MODEL_F32, FIELD(rope_linear), "", 1, 1024, "1",
     "llama, gemma3: divides the frequencies of blocks without a window; 1: none"},
    {"model.window", AQ_MODEL_U32, FIELD(window), "tokens", 0, 1048576, "0",
     "llama, gemma3: number of tokens that a query sees, its own included, in blocks with a window (modernbert: on "
     "each "
     "side); 0: all"},
    {"model.window_every", AQ_MODEL_U32, FIELD(window_every), "blocks", 0, 1024, "0",
     "llama, gemma3: the last (modernbert: the first) of every N blocks has no window; 0: all have one"},
    {"model.window_from", AQ_MODEL_U32, FIELD(window_from), "blocks", 0, 1024, "0",
     "llama, gemma3, modernbert: blocks before this one have no window"},
    {"model.qkv_bias", AQ_MODEL_BOOL, FIELD(qkv_bias), "", 0, 0, "false",
     "llama: queries, keys and values have biases (Qwen2)"},
    {"model.qk_norm", AQ_MODEL_BOOL, FIELD(qk_norm), "", 0, 0, "false",
     "llama: heads of queries and keys have norms (Qwen3)"},
    {"model.dropout", AQ_MODEL_F32, FIELD(dropout), "probability", 0, 0.9, "0",
     "on embedding, attention and residuals; never at a cut"},
    {"model.tied", AQ_MODEL_TIED, FIELD(tied), "", 0, 0, "exact",
     "exact: head and embedding are one tensor; where a cut separates them its gradient and its values travel once a "
     "step. compressed: the same, but the gradient travels quantized, and rows of the batch. untied: two tensors. true "
     "is exact, false is untied"},
    {"model.init_std", AQ_MODEL_F32, FIELD(init_std), "", 0, 1, "0.02", "of the normal initial weights"}};

static void describe(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "%u blocks, %u heads (%u of keys) of %u, %u channels, MLP %u, vocabulary %u%s%s",
             model->blocks, model->heads, decoder_kv_heads(model), decoder_head_dim(model), model->channels, model->mlp,
             model->vocabulary, model->qkv_bias ? ", biases of q, k, v" : "", model->qk_norm ? ", norms of heads" : "");
}

static void identity(const struct aq_model_config *model, char *text, size_t bytes)
{
    snprintf(text, bytes, "llama %u %u %u %u %u %u %u %u %d%d%d %a %a %a %a %a %a %u", model->blocks, model->heads,
             decoder_kv_heads(model), decoder_head_dim(model), model->channels, model->mlp, model->vocabulary,
             model->context, model->tied != AQ_TIED_NO, model->qkv_bias, model->qk_norm, (double)model->norm_eps,
             (double)model->rope_theta, (double)model->rope_partial, (double)model->rope_factor,
             (double)model->rope_low, (double)model->rope_high, model->rope_original);
    const size_t used = strlen(text);
    if (model->window || model->rope_linear != 1.0f)
        snprintf(text + used, bytes - used, " %u %u %u %a", model->window, model->window_every, model->window_from,
                 (double)model->rope_linear);
}

static void config_default(struct aq_model_config *out)
{
    *out = (struct aq_model_config){.kind = "llama",
                                    .blocks = 12,
                                    .heads = 12,
                                    .channels = 768,
                                    .mlp = 2048,
                                    .vocabulary = 50257,
                                    .context = 1024,
                                    .tied = AQ_TIED_EXACT,
                                    .init_std = 0.02f,
                                    .norm_eps = 1e-5f,
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
    AQ_TRY(decoder_range("rope_partial", (double)model->rope_partial, 0, 1));
    AQ_TRY(decoder_range("rope_factor", (double)model->rope_factor, 1, 1024));
    return decoder_ranges(model);
}

static const struct decoder_form form = {.rms = true,
                                         .out_in = true,
                                         .turns = true,
                                         .gated = true,
                                         .tokens = "embed_tokens.weight",
                                         .norm = "norm.weight",
                                         .head = "lm_head.weight",
                                         .score = "score.weight",
                                         .names = {[NORM1] = "input_layernorm.weight",
                                                   [QUERY] = "self_attn.q_proj.weight",
                                                   [KEY] = "self_attn.k_proj.weight",
                                                   [VALUE] = "self_attn.v_proj.weight",
                                                   [QUERY_BIAS] = "self_attn.q_proj.bias",
                                                   [KEY_BIAS] = "self_attn.k_proj.bias",
                                                   [VALUE_BIAS] = "self_attn.v_proj.bias",
                                                   [QUERY_NORM] = "self_attn.q_norm.weight",
                                                   [KEY_NORM] = "self_attn.k_norm.weight",
                                                   [PROJECTION] = "self_attn.o_proj.weight",
                                                   [NORM2] = "post_attention_layernorm.weight",
                                                   [GATE] = "mlp.gate_proj.weight",
                                                   [UP] = "mlp.up_proj.weight",
                                                   [MLP] = "mlp.down_proj.weight"}};

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

/* Types in the order of `published`, each with the classes of a language model, of none, and of a classifier. */
#define OWN_PARTIAL "aqpipe_partial_rotary_factor"

enum { LLAMA, QWEN2, QWEN3 };
enum { CLASSES = 3, CLASSIFIER = 2 };

static const struct stage_published published[] = {{"llama", "LlamaForCausalLM"},
                                                   {"llama", "LlamaModel"},
                                                   {"llama", "LlamaForSequenceClassification"},
                                                   {"qwen2", "Qwen2ForCausalLM"},
                                                   {"qwen2", "Qwen2Model"},
                                                   {"qwen2", "Qwen2ForSequenceClassification"},
                                                   {"qwen3", "Qwen3ForCausalLM"},
                                                   {"qwen3", "Qwen3Model"},
                                                   {"qwen3", "Qwen3ForSequenceClassification"},
                                                   {NULL, NULL}};

/*
 * Rotary embeddings, in the order of transformers 5: `rope_scaling` where it says anything, else `rope_parameters`;
 * what neither has of theta stands beside them. "type" is an older word for "rope_type". These families rotate whole
 * heads whatever partial_rotary_factor says, but for runs of this program, which have a key of their own.
 */
static enum aq_status read_rope(const struct config_json *config, struct aq_model_config *out)
{
    struct config_json rope;
    uint32_t type;
    AQ_TRY(decoder_read_number(config, "rope_theta", 1, 1e12, 10000.0, &out->rope_theta));
    AQ_TRY(decoder_read_number(config, OWN_PARTIAL, 0, 1, 1.0, &out->rope_partial));
    out->rope_factor = 1.0f;
    AQ_TRY(config_json_object(config, "rope_scaling", "rope_scaling.", &rope));
    if (json_object_size(rope.object) == 0)
        AQ_TRY(config_json_object(config, "rope_parameters", "rope_parameters.", &rope));
    if (!rope.object) return AQ_OK;
    AQ_TRY(decoder_read_number(&rope, "rope_theta", 1, 1e12, (double)out->rope_theta, &out->rope_theta));
    const char *key = config_json_has(&rope, "rope_type") ? "rope_type" : "type";
    AQ_TRY(config_json_one_of(&rope, key, "default", "default|llama3|linear", &type));
    if (type == 0) return AQ_OK;
    AQ_TRY(config_json_only_number(config, "partial_rotary_factor", 1)); /* with a scaling transformers takes it */
    AQ_TRY(config_json_only_number(&rope, "partial_rotary_factor", 1));
    if (type == 2) return decoder_read_number(&rope, "factor", 1, 1024, 1.0, &out->rope_linear);
    AQ_TRY(decoder_read_number(&rope, "factor", 1, 1024, 1.0, &out->rope_factor));
    AQ_TRY(decoder_read_number(&rope, "low_freq_factor", 0, 1024, 1.0, &out->rope_low));
    AQ_TRY(decoder_read_number(&rope, "high_freq_factor", 0, 1024, 4.0, &out->rope_high));
    const char *original = "original_max_position_embeddings";
    if (config_json_has(config, original)) return config_json_u32(config, original, 1, 1048576, &out->rope_original);
    return config_json_u32_or(&rope, original, 1, 1048576, out->context, &out->rope_original);
}

static enum aq_status read_sizes(const struct config_json *config, bool qwen3, struct aq_model_config *out)
{
    AQ_TRY(config_json_u32(config, "num_hidden_layers", 1, 1024, &out->blocks));
    AQ_TRY(config_json_u32(config, "num_attention_heads", 1, 1024, &out->heads));
    AQ_TRY(config_json_u32(config, "hidden_size", 1, 65536, &out->channels));
    AQ_TRY(config_json_u32(config, "intermediate_size", 1, 1048576, &out->mlp));
    AQ_TRY(config_json_u32(config, "vocab_size", 1, 1048576, &out->vocabulary));
    AQ_TRY(config_json_u32_or(config, "max_position_embeddings", 1, 1048576, 2048, &out->context));
    AQ_TRY(config_json_u32_or(config, "num_key_value_heads", 1, 1024, qwen3 ? 32 : out->heads, &out->kv_heads));
    return config_json_u32_or(config, "head_dim", 1, 2048, qwen3 ? 128 : 0, &out->head_dim);
}

/* Llama has none, whatever its file says. */
static enum aq_status read_windows(const struct config_json *config, struct aq_model_config *out)
{
    uint32_t window = 0, from;
    bool uses;
    AQ_TRY(config_json_bool_or(config, "use_sliding_window", false, &uses));
    if (uses) AQ_TRY(config_json_u32_or(config, "sliding_window", 1, 1048576, 4096, &window));
    AQ_TRY(config_json_u32_or(config, "max_window_layers", 0, 1048576, 28, &from));
    return decoder_read_windows(config, window, 0, from < 1024 ? from : 1024, out);
}

/* Where a key is missing, what transformers takes then. */
static enum aq_status read_config(const struct config_json *config, struct aq_model_config *out)
{
    uint32_t type;
    AQ_TRY(config_json_one_of(config, "model_type", "llama", "llama|qwen2|qwen3", &type));
    AQ_TRY(read_sizes(config, type == QWEN3, out));
    AQ_TRY(decoder_read_number(config, "rms_norm_eps", 0, 1, 1e-6, &out->norm_eps));
    AQ_TRY(decoder_read_number(config, "initializer_range", 0, 1, 0.02, &out->init_std));
    bool tied;
    AQ_TRY(config_json_bool_or(config, "tie_word_embeddings", false, &tied));
    out->tied = tied ? AQ_TIED_EXACT : AQ_TIED_NO;
    AQ_TRY(config_json_one_of(config, "hidden_act", "silu", "silu|swish", NULL));
    /* Switches that transformers has for the family: others change nothing there, whatever they say. */
    if (type == LLAMA) AQ_TRY(config_json_only(config, "mlp_bias", false));
    if (type != QWEN2) AQ_TRY(config_json_only(config, "attention_bias", false));
    out->qkv_bias = type == QWEN2;
    out->qk_norm = type == QWEN3;
    if (type != LLAMA) AQ_TRY(read_windows(config, out));
    return read_rope(config, out);
}

/* Frequencies of heads, which older files have as tensors. */
static bool ignores(const char *name)
{
    static const char end[] = ".rotary_emb.inv_freq";
    const size_t length = strlen(name);
    return length >= sizeof end && strcmp(name + length - (sizeof end - 1), end) == 0;
}

static void publish_name(const char *tensor, char *out, size_t bytes)
{
    const bool head = strcmp(tensor, form.head) == 0 || strcmp(tensor, form.score) == 0;
    snprintf(out, bytes, "%s%s", head ? "" : "model.", tensor);
}

/* Both ways in which programs look for it: rope_parameters, and rope_theta beside rope_scaling. */
static void publish_rope(const struct aq_model_config *model, json_t *config)
{
    json_t *rope = json_pack("{s:s, s:o}", "rope_type", "default", "rope_theta", decoder_number(model->rope_theta));
    json_object_set_new(config, "rope_theta", decoder_number(model->rope_theta));
    if (model->rope_partial != 1.0f) /* others do not compute it */
        json_object_set_new(config, OWN_PARTIAL, decoder_number(model->rope_partial));
    json_t *scaling = json_null();
    if (model->rope_factor != 1.0f) {
        scaling = json_pack("{s:s, s:o, s:o, s:o, s:i}", "rope_type", "llama3", "factor",
                            decoder_number(model->rope_factor),
                            "low_freq_factor", decoder_number(model->rope_low), "high_freq_factor",
                            decoder_number(model->rope_high),
                            "original_max_position_embeddings", (int)model->rope_original);
        json_object_update(rope, scaling);
    } else if (model->rope_linear != 1.0f) {
        scaling = json_pack("{s:s, s:o}", "rope_type", "linear", "factor", decoder_number(model->rope_linear));
        json_object_update(rope, scaling);
    }
    json_object_set_new(config, "rope_scaling", scaling);
    json_object_set_new(config, "rope_parameters", rope);
}

static enum aq_status publish_config(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                     size_t *count)
{
    if (model->qkv_bias && model->qk_norm)
        return aq_fail(AQ_INVAL, "stage", "model.qkv_bias with model.qk_norm: no published model has both");
    if (model->window && !model->qkv_bias && !model->qk_norm)
        return aq_fail(AQ_INVAL, "stage", "model.window without qkv_bias or qk_norm: no published model has it so");
    const int type = model->qkv_bias ? QWEN2 : model->qk_norm ? QWEN3 : LLAMA;
    const struct stage_published *class = &published[CLASSES * type + (model->labels ? CLASSIFIER : 0)];
    json_t *config =
        json_pack("{s:[s], s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:b, s:b, s:f, s:s, s:s}",
                  "architectures", class->architecture, "model_type", class->type,
                  "hidden_act", "silu", "hidden_size", (int)model->channels, "num_attention_heads", (int)model->heads,
                  "num_key_value_heads", (int)decoder_kv_heads(model), "num_hidden_layers", (int)model->blocks,
                  "intermediate_size", (int)model->mlp, "vocab_size", (int)model->vocabulary, "max_position_embeddings",
                  (int)model->context, "rms_norm_eps", decoder_number(model->norm_eps), "initializer_range",
                  decoder_number(model->init_std), "tie_word_embeddings", tied, "attention_bias", type == QWEN2,
                  "attention_dropout", (double)model->dropout, "torch_dtype", "float32", "dtype", "float32");
    if (model->head_dim || type == QWEN3) /* whose own is 128 where nothing is said */
        json_object_set_new(config, "head_dim", json_integer(decoder_head_dim(model)));
    if (type != LLAMA) {
        json_object_set_new(config, "use_sliding_window", json_boolean(model->window));
        json_object_set_new(config, "sliding_window", model->window ? json_integer(model->window) : json_null());
        json_object_set_new(config, "max_window_layers",
                            json_integer(model->window ? model->window_from : model->blocks));
        json_object_set_new(config, "layer_types", decoder_layer_types(model));
    }
    publish_rope(model, config);
    config_json_put_ends(config, model->labels, end_of_text);
    return decoder_write(config, json, count);
}

extern const struct stage_model stage_model_llama;
const struct stage_model stage_model_llama = {.kind = "llama",
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
                                              .ignores = ignores,
                                              .publish_name = publish_name,
                                              .publish_config = publish_config};
