/*
 * model_family.h -- a family of decoders or encoders as data: its form (decoder.h), and for each model_type the keys of
 * config.json, their defaults, and the switches that transformers has there. One reader and one writer serve all rows.
 * Private to stages/.
 *
 * An encoder has a pooler and a classifier behind its blocks, in place of a head.
 *
 * A family is a file model_<name>.c with its keys of manifests (DECODER_KEYS_*), its row, and a line in models.def.
 * Rules that one row needs are fields here, never a branch on a family's name.
 *
 * If a key is missing, the value is the one that transformers takes. A switch that transformers does not have for the
 * type is ignored. A value that is not computed is refused by its key.
 */
#ifndef MODEL_FAMILY_H
#define MODEL_FAMILY_H

#include "decoder.h"
#include "decoder_json.h"

/* Special defaults of a whole number: the key must be there; the number of heads. */
enum { FAMILY_REQUIRED = -1, FAMILY_HEADS = -2 };

/* FAMILY_F32_NULL: null is 0, which is written as null. */
enum family_value { FAMILY_U32, FAMILY_F32, FAMILY_F32_NULL };

/* A key of config.json and the field that has its value. */
struct family_key {
    const char *name;
    enum family_value kind;
    size_t offset; /* in struct aq_model_config */
    double least, most, fallback;
};

/* A switch of config.json. */
enum family_switch {
    FAMILY_IGNORED, /* transformers does not have it for the type */
    FAMILY_READ,
    FAMILY_REFUSED /* if it is true */
};

/* Which blocks have a window. */
enum family_windows {
    FAMILY_WINDOWS_NONE,
    FAMILY_WINDOWS_SWITCHED, /* use_sliding_window, sliding_window, max_window_layers      */
    FAMILY_WINDOWS_EVERY,    /* sliding_window, and all but the last of sliding_window_pattern  */
    FAMILY_WINDOWS_FIXED,    /* sliding_window, and all but the last of the type's window_every    */
    FAMILY_WINDOWS_ALL,      /* sliding_window or null, in all blocks                      */
    FAMILY_WINDOWS_OFF       /* use_sliding_window, which must be false                    */
};

/* Kinds of rotary embeddings that are computed, next to "default". LongRoPE has older names, one of which is "yarn". */
enum { FAMILY_LLAMA3 = 1, FAMILY_LINEAR = 2, FAMILY_YARN = 4, FAMILY_LONGROPE = 8 };

/* A model_type. */
struct family_type {
    const char *type;
    const char *architecture, *classifier; /* as they are exported                                          */
    const struct family_key *keys;         /* ended by a name of NULL                                       */
    const char *activation, *activations;  /* the key (or NULL), and its values "a|b": default, others     */
    bool qkv_bias, qk_norm;                /* of all models of the type                                     */
    enum family_switch attention_bias, mlp_bias;
    enum family_windows windows;
    uint32_t window, window_every; /* defaults                                                            */
    bool null_window;              /* sliding_window: null means none, and a pattern may be a text        */
    uint32_t ropes;                /* FAMILY_LLAMA3 | ...                                                 */
    uint32_t original;             /* default of original_max_position_embeddings, which is at the top level     */
    double theta, theta_local;     /* defaults; theta_local 0: all blocks have one theta                  */
    bool tied;                     /* default of tie_word_embeddings                                      */
    bool query_beta;               /* llama_4_scaling_beta of the rotary embedding                        */
    bool rope_every;               /* no_rope_layers, no_rope_layer_interval                              */
    bool convolves;                /* layer_types has "conv"; keys of convolutions and of the MLP's width */
    const char *tied_key;          /* goes before tie_word_embeddings, or NULL                            */
    bool places_behind_pad;        /* the first token's position is pad_token_id + 1                      */
    bool pooling;                  /* classifier_pooling: late, bos or mean                               */
    const char *const *dropouts;   /* keys of probabilities, ended by NULL; NULL: attention_dropout       */
    uint32_t pad;                  /* transformers' own pad_token_id; in a smaller vocabulary it is null  */
    double partial;                /* default of partial_rotary_factor; 0: transformers does not have the key */
    bool delta;                    /* layer_types, full_attention_interval: blocks with the delta rule        */
    const char *const *refused;    /* keys that must be missing or null, ended by NULL; or NULL           */
    const char *const *off;        /* switches that must be missing or false, ended by NULL; or NULL      */
};

struct decoder_family {
    struct decoder_form form;
    const struct family_type *types; /* ended by a type of NULL                        */
    bool qk_norm;                    /* heads of queries and keys have norms in all models */
    const struct layer_kind *pooler; /* an encoder's; NULL: a decoder                  */
    const char *classifier;          /* then: in front of the names of the classifier's tensors */
    const char *const *heads;        /* then: names with these prefixes have no `base` in front; ended by NULL */
    const char *wrapper, *wrapping;  /* model_type and class of models of texts and images around it, or NULL */
    bool wrapper_untied;             /* its default of tie_word_embeddings             */
    uint32_t rope_every, conv_taps;  /* defaults; conv_taps: some blocks have convolutions */
    float score_scale;
    uint32_t own[AQ_MODEL_OWN_MAX];
};

/* The family of a configuration that was checked. */
const struct decoder_family *decoder_family_of(const struct aq_model_config *model);
/* The first model_type of it that has the configuration's biases, norms and windows; NULL: none has. */
const struct family_type *decoder_family_type(const struct aq_model_config *model);

/* Members of a struct stage_model. identity is of families that came with this file; older ones have their own. */
void decoder_family_default(const struct stage_model *of, struct aq_model_config *out);
enum aq_status decoder_family_check(const struct aq_model_config *model);
void decoder_family_describe(const struct aq_model_config *model, char *text, size_t bytes);
void decoder_family_identity(const struct aq_model_config *model, char *text, size_t bytes);
uint32_t decoder_family_layers(const struct aq_model_config *model);
void decoder_family_layer(const struct aq_model_config *model, uint32_t T, uint32_t index, struct layer *out);
enum aq_status decoder_family_read(const struct config_json *config, struct aq_model_config *out);
enum aq_status decoder_family_publish(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                      size_t *count);
bool decoder_family_ignores(const char *name);
/* Does the name start with one of the list, ended by NULL? */
bool decoder_family_begins(const char *name, const char *const *begins);
void decoder_family_name(const struct stage_model *of, const char *tensor, char *out, size_t bytes);

/* Layer `index` of embedding, blocks, head, of any form. */
void decoder_layer(const struct decoder_form *form, const struct aq_model_config *model, uint32_t T, uint32_t index,
                   struct layer *out);

/* decoder_delta_json.c: which blocks have the delta rule, and what is wrong with its sizes: AQ_INVAL. */
enum aq_status family_delta_check(const struct aq_model_config *model);
enum aq_status family_read_delta(const struct config_json *config, struct aq_model_config *out);
void family_publish_delta(const struct aq_model_config *model, json_t *config);

/* decoder_rope.c: rotary embeddings of a config.json, and the way back. */
enum aq_status family_read_rope(const struct config_json *config, const struct family_type *type,
                                struct aq_model_config *out);
void family_publish_rope(const struct aq_model_config *model, const struct family_type *type, json_t *config);

/* decoder_conv.c: blocks with convolutions, and the width of their MLPs, of a config.json, and the way back. */
enum { FAMILY_CONV_BLOCKS = 64 };
enum aq_status family_read_conv(const struct config_json *config, struct aq_model_config *out);
void family_publish_conv(const struct aq_model_config *model, json_t *config);

/* ---- Keys of manifests that families have. */

#define DECODER_FIELD(member) offsetof(struct aq_model_config, member)

#define DECODER_KEYS_SIZES                                                                                             \
    {"model.blocks", AQ_MODEL_U32, DECODER_FIELD(blocks), "blocks", 1, 1024, "12", "transformer blocks, L"},           \
        {"model.heads", AQ_MODEL_U32, DECODER_FIELD(heads), "heads", 1, 1024, "12", "heads of queries, H"},            \
        {"model.kv_heads", AQ_MODEL_U32, DECODER_FIELD(kv_heads), "heads", 0, 1024, "0",                               \
         "decoders: heads of keys and values, which queries share; divides H; 0: H"},                                  \
        {"model.head_dim", AQ_MODEL_U32, DECODER_FIELD(head_dim), "channels", 0, 2048, "0",                            \
         "decoders: of a head, even; 0: channels / heads"},                                                            \
        {"model.channels", AQ_MODEL_U32, DECODER_FIELD(channels), "channels", 1, 65536, "768", "width, C"},            \
        {"model.mlp", AQ_MODEL_U32, DECODER_FIELD(mlp), "channels", 1, 1048576, "2048",                                \
         "decoders, modernbert: of a block's gated MLP"},                                                              \
        {"model.vocabulary", AQ_MODEL_U32, DECODER_FIELD(vocabulary), "tokens", 0, 1048576, "0",                       \
         "V; 0: the tokenizer's"},                                                                                     \
        {"model.context", AQ_MODEL_U32, DECODER_FIELD(context), "tokens", 1, 1048576, "1024",                          \
         "tokens that the model was made for; at least train.T"},                                                      \
        {"model.norm_eps", AQ_MODEL_F32, DECODER_FIELD(norm_eps), "", 0, 1, "0.00001", "epsilon of the norms"},        \
        {"model.rope_theta", AQ_MODEL_F32, DECODER_FIELD(rope_theta), "", 1, 1e12, "10000",                            \
         "base of the rotary embedding's frequencies"}

#define DECODER_KEYS_TRAINING(dropped)                                                                                 \
    {"model.dropout", AQ_MODEL_F32, DECODER_FIELD(dropout), "probability", 0, 0.9, "0", dropped},                      \
        {"model.tied", AQ_MODEL_TIED, DECODER_FIELD(tied), "", 0, 0, "exact",                                          \
         "exact: head and embedding are one tensor; where a cut separates them its gradient and its values travel "    \
         "once a step. compressed: the same, but the gradient travels quantized, and rows of the batch. untied: two "  \
         "tensors. true is exact, false is untied"},                                                                   \
        {"model.init_std", AQ_MODEL_F32, DECODER_FIELD(init_std), "", 0, 1, "0.02", "of the normal initial weights"}

#define DECODER_KEYS_LLAMA3                                                                                            \
    {"model.rope_factor", AQ_MODEL_F32, DECODER_FIELD(rope_factor), "", 1, 1024, "1",                                  \
     "llama: slows low frequencies, as Llama 3.1 does, for longer contexts; 1: none"},                                 \
        {"model.rope_low", AQ_MODEL_F32, DECODER_FIELD(rope_low), "", 0, 1024, "1",                                    \
         "llama: with rope_factor: low_freq_factor"},                                                                  \
        {"model.rope_high", AQ_MODEL_F32, DECODER_FIELD(rope_high), "", 0, 1024, "4",                                  \
         "llama: with rope_factor: high_freq_factor"}

#define DECODER_KEYS_ORIGINAL                                                                                          \
    {"model.rope_original", AQ_MODEL_U32, DECODER_FIELD(rope_original), "tokens", 1, 1048576, "8192",                  \
     "decoders: with rope_factor: the context before"}

#define DECODER_KEYS_LINEAR                                                                                            \
    {"model.rope_linear", AQ_MODEL_F32, DECODER_FIELD(rope_linear), "", 1, 1024, "1",                                  \
     "decoders: divides the frequencies of blocks without a window; 1: none"}

#define DECODER_KEYS_YARN                                                                                              \
    {"model.rope_yarn", AQ_MODEL_F32, DECODER_FIELD(rope_yarn), "", 1, 1024, "1",                                      \
     "decoders: YaRN, factor of the context behind model.rope_original; 1: none"},                                     \
        {"model.rope_fast", AQ_MODEL_F32, DECODER_FIELD(rope_fast), "", 0, 1024, "32",                                 \
         "decoders: with rope_yarn: beta_fast"},                                                                       \
        {"model.rope_slow", AQ_MODEL_F32, DECODER_FIELD(rope_slow), "", 0, 1024, "1",                                  \
         "decoders: with rope_yarn: beta_slow"},                                                                       \
        {"model.rope_attention", AQ_MODEL_F32, DECODER_FIELD(rope_attention), "", 0, 1024, "1",                        \
         "decoders: with rope_yarn or rope_short: cosines and sines are multiplied by it (attention_factor)"}

/* Rotary embeddings with every scaling, as most families have them. */
#define DECODER_KEYS_ROPE DECODER_KEYS_LLAMA3, DECODER_KEYS_ORIGINAL, DECODER_KEYS_YARN, DECODER_KEYS_LINEAR
#define FAMILY_ROPES      .ropes = FAMILY_LLAMA3 | FAMILY_LINEAR | FAMILY_YARN

#define DECODER_KEYS_DELTA                                                                                             \
    {"model.delta_every", AQ_MODEL_U32, DECODER_FIELD(own[DELTA_OWN_EVERY]), "blocks", 0, 1024, "4",                   \
     "qwen3_5: the last of that many blocks has attention, the others the gated delta rule; 0: none has attention"},   \
        {"model.delta_keys", AQ_MODEL_U32, DECODER_FIELD(own[DELTA_OWN_KEYS]), "heads", 1, 1024, "16",                 \
         "qwen3_5: delta rule, heads of queries and keys"},                                                            \
        {"model.delta_values", AQ_MODEL_U32, DECODER_FIELD(own[DELTA_OWN_VALUES]), "heads", 1, 1024, "32",             \
         "qwen3_5: delta rule, heads of values; a multiple of delta_keys"},                                            \
        {"model.delta_key_dim", AQ_MODEL_U32, DECODER_FIELD(own[DELTA_OWN_DK]), "channels", 1, AQ_DELTA_HEAD_MAX,      \
         "128", "qwen3_5: delta rule, channels of a head of keys"},                                                    \
        {"model.delta_value_dim", AQ_MODEL_U32, DECODER_FIELD(own[DELTA_OWN_DV]), "channels", 1, AQ_DELTA_HEAD_MAX,    \
         "128", "qwen3_5: delta rule, channels of a head of values"},                                                  \
        {"model.delta_taps", AQ_MODEL_U32, DECODER_FIELD(own[DELTA_OWN_TAPS]), "tokens", 1, AQ_CAUSAL_CONV_TAPS, "4",  \
         "qwen3_5: tokens that the convolution before the delta rule sees, the token's own included"}

#define DECODER_KEYS_PARTIAL                                                                                           \
    {"model.rope_partial", AQ_MODEL_F32, DECODER_FIELD(rope_partial), "", 0, 1, "1",                                   \
     "llama, phi3: how much of a head turns"}

#define DECODER_KEYS_LONGROPE                                                                                          \
    {"model.rope_short", AQ_MODEL_FACTORS, DECODER_FIELD(rope_short), "", 1e-6, 1e6, "none",                           \
     "phi3: LongRoPE, divisors of the frequencies if train.T is at most model.rope_original, one per pair of "         \
     "columns that turn"},                                                                                             \
        {"model.rope_long", AQ_MODEL_FACTORS, DECODER_FIELD(rope_long), "", 1e-6, 1e6, "none",                         \
         "phi3: the same if train.T is more"},                                                                         \
        {"model.rope_attention", AQ_MODEL_F32, DECODER_FIELD(rope_attention), "", 0, 1024, "1",                        \
         "decoders: with rope_yarn or rope_short: cosines and sines are multiplied by it (attention_factor)"}

#define DECODER_KEYS_BIASES(of)                                                                                        \
    {"model.qkv_bias", AQ_MODEL_BOOL, DECODER_FIELD(qkv_bias), "", 0, 0, "false", of},                                 \
        {"model.out_bias", AQ_MODEL_BOOL, DECODER_FIELD(out_bias), "", 0, 0, "false",                                  \
         "decoders: with qkv_bias: the product behind attention has one, too (attention_bias)"},                       \
        {"model.mlp_bias", AQ_MODEL_BOOL, DECODER_FIELD(mlp_bias), "", 0, 0, "false",                                  \
         "decoders: the products of the MLP have biases"}

#define DECODER_KEYS_WINDOW                                                                                            \
    {"model.window", AQ_MODEL_U32, DECODER_FIELD(window), "tokens", 0, 1048576, "0",                                   \
     "decoders: number of tokens that a query sees, its own included, in blocks with a window (modernbert: on "        \
     "each side); 0: all"},                                                                                            \
        {"model.window_every", AQ_MODEL_U32, DECODER_FIELD(window_every), "blocks", 0, 1024, "0",                      \
         "decoders: the last (modernbert: the first) of every N blocks has no window; 0: all have one"},              \
        {"model.window_from", AQ_MODEL_U32, DECODER_FIELD(window_from), "blocks", 0, 1024, "0",                        \
         "decoders, modernbert: blocks before this one have no window"}

/* ---- What most rows have. */

/*
 * Keys of config.json with sizes. positions, kv, dim, eps: what transformers has if max_position_embeddings,
 * num_key_value_heads, head_dim or rms_norm_eps is missing.
 */
#define FAMILY_SIZES(positions, kv, dim, eps)                                                                          \
    {"num_hidden_layers", FAMILY_U32, DECODER_FIELD(blocks), 1, 1024, FAMILY_REQUIRED},                                \
        {"num_attention_heads", FAMILY_U32, DECODER_FIELD(heads), 1, 1024, FAMILY_REQUIRED},                           \
        {"hidden_size", FAMILY_U32, DECODER_FIELD(channels), 1, 65536, FAMILY_REQUIRED},                               \
        {"intermediate_size", FAMILY_U32, DECODER_FIELD(mlp), 1, 1048576, FAMILY_REQUIRED},                            \
        {"vocab_size", FAMILY_U32, DECODER_FIELD(vocabulary), 1, 1048576, FAMILY_REQUIRED},                            \
        {"max_position_embeddings", FAMILY_U32, DECODER_FIELD(context), 1, 1048576, positions},                        \
        {"num_key_value_heads", FAMILY_U32, DECODER_FIELD(kv_heads), 1, 1024, kv},                                     \
        {"head_dim", FAMILY_U32, DECODER_FIELD(head_dim), 1, 2048, dim},                                               \
        {"rms_norm_eps", FAMILY_F32, DECODER_FIELD(norm_eps), 0, 1, eps},                                              \
        {"initializer_range", FAMILY_F32, DECODER_FIELD(init_std), 0, 1, 0.02}

/* Norms before the branches; the same with names of biases; norms only behind the branches, with norms of heads. */
#define FAMILY_NAMES_ATTENTION                                                                                         \
    [QUERY] = "self_attn.q_proj.weight", [KEY] = "self_attn.k_proj.weight", [VALUE] = "self_attn.v_proj.weight",       \
    [PROJECTION] = "self_attn.o_proj.weight", [GATE] = "mlp.gate_proj.weight", [UP] = "mlp.up_proj.weight",            \
    [MLP] = "mlp.down_proj.weight"
#define FAMILY_NAMES_BEFORE                                                                                            \
    FAMILY_NAMES_ATTENTION, [NORM1] = "input_layernorm.weight", [NORM2] = "post_attention_layernorm.weight"
#define FAMILY_NAMES_BIASED                                                                                            \
    FAMILY_NAMES_BEFORE, [QUERY_BIAS] = "self_attn.q_proj.bias", [KEY_BIAS] = "self_attn.k_proj.bias",                 \
                         [VALUE_BIAS] = "self_attn.v_proj.bias", [PROJECTION_BIAS] = "self_attn.o_proj.bias",          \
                         [GATE_BIAS] = "mlp.gate_proj.bias", [UP_BIAS] = "mlp.up_proj.bias",                           \
                         [MLP_BIAS] = "mlp.down_proj.bias"
#define FAMILY_NAMES_HEADS [QUERY_NORM] = "self_attn.q_norm.weight", [KEY_NORM] = "self_attn.k_norm.weight"
#define FAMILY_NAMES_DELTA                                                                                             \
    [DELTA_QKV] = "linear_attn.in_proj_qkv.weight", [DELTA_TAPS] = "linear_attn.conv1d.weight",                        \
    [DELTA_B] = "linear_attn.in_proj_b.weight", [DELTA_A] = "linear_attn.in_proj_a.weight",                            \
    [DELTA_SHIFT] = "linear_attn.dt_bias", [DELTA_RATE] = "linear_attn.A_log",                                         \
    [DELTA_Z] = "linear_attn.in_proj_z.weight", [DELTA_NORM] = "linear_attn.norm.weight",                              \
    [DELTA_PROJECTION] = "linear_attn.out_proj.weight"
#define FAMILY_NAMES_BEHIND                                                                                            \
    FAMILY_NAMES_ATTENTION, FAMILY_NAMES_HEADS, [POST1] = "post_attention_layernorm.weight",                           \
                                                [POST2] = "post_feedforward_layernorm.weight"

/* One tensor of queries, keys and values, and one of gate and up, as products read them. */
#define FAMILY_NAMES_FUSED                                                                                             \
    [NORM1] = "input_layernorm.weight", [QUERY] = "self_attn.qkv_proj.weight",                                         \
    [PROJECTION] = "self_attn.o_proj.weight", [NORM2] = "post_attention_layernorm.weight",                             \
    [GATE] = "mlp.gate_up_proj.weight", [MLP] = "mlp.down_proj.weight"

/* The classes of transformers that have one name in front. */
#define FAMILY_CLASSES(name) .architecture = name "ForCausalLM", .classifier = name "ForSequenceClassification"

/* The rows of published folders of a family whose classes start with `name`. */
#define FAMILY_PUBLISHED(type, name)                                                                                   \
    {type, name "ForCausalLM"}, {type, name "Model"},                                                                  \
    {                                                                                                                  \
        type, name "ForSequenceClassification"                                                                         \
    }

#define FAMILY_SILU .activation = "hidden_act", .activations = "silu|swish"

#define FAMILY_FORM                                                                                                    \
    .rms = true, .out_in = true, .turns = true, .gated = true, .blocks = "layers", .tokens = "embed_tokens.weight",    \
    .norm = "norm.weight", .head = "lm_head.weight", .score = "score.weight"

/*
 * The row of models.def: `known` is its array of keys, `of` its struct decoder_family, and `labels`: transformers has a
 * classifier of it.
 */
#define DECODER_MODEL(name, known, of, tell, labels)                                                                   \
    const struct stage_model stage_model_##name = {.kind = #name,                                                      \
                                                   .family = &(of),                                                    \
                                                   .task = "language_model",                                           \
                                                   .input = "tokens",                                                  \
                                                   .sequences = labels,                                                \
                                                   .keys = known,                                                      \
                                                   .key_count = sizeof(known) / sizeof(known)[0],                      \
                                                   .describe = decoder_family_describe,                                \
                                                   .identity = tell,                                                   \
                                                   .problem = decoder_problem,                                         \
                                                   .config_check = decoder_family_check,                               \
                                                   .layers = decoder_family_layers,                                    \
                                                   .layer = decoder_family_layer,                                      \
                                                   .published = published,                                             \
                                                   .base = "model.",                                                   \
                                                   .read_config = decoder_family_read,                                 \
                                                   .ignores = decoder_family_ignores,                                  \
                                                   .publish_config = decoder_family_publish}

/* The same of an encoder; `unread`: its function that finds the tensors of a file that have no use here. */
#define ENCODER_MODEL(name, known, of, front, unread)                                                                  \
    const struct stage_model stage_model_##name = {.kind = #name,                                                      \
                                                   .family = &(of),                                                    \
                                                   .task = "classification",                                           \
                                                   .input = "tokens",                                                  \
                                                   .sequences = true,                                                  \
                                                   .keys = known,                                                      \
                                                   .key_count = sizeof(known) / sizeof(known)[0],                      \
                                                   .describe = decoder_family_describe,                                \
                                                   .identity = decoder_family_identity,                                \
                                                   .problem = decoder_problem,                                         \
                                                   .config_check = decoder_family_check,                               \
                                                   .layers = decoder_family_layers,                                    \
                                                   .layer = decoder_family_layer,                                      \
                                                   .published = published,                                             \
                                                   .base = front,                                                      \
                                                   .read_config = decoder_family_read,                                 \
                                                   .ignores = unread,                                                  \
                                                   .publish_config = decoder_family_publish}

/*
 * Encoders of BERT's blocks: keys of manifests, keys of config.json (`mlp`, `context`, `types`, `eps`: defaults), form.
 */
#define ENCODER_KEYS_TRAINING                                                                                          \
    {"model.dropout", AQ_MODEL_F32, DECODER_FIELD(dropout), "probability", 0, 0.9, "0",                                \
     "on embedding, attention, residuals and pooler; never at a cut"},                                                 \
        {"model.init_std", AQ_MODEL_F32, DECODER_FIELD(init_std), "", 0, 1, "0.02", "of the normal initial weights"}

#define BERT_KEYS                                                                                                      \
    {"model.blocks", AQ_MODEL_U32, DECODER_FIELD(blocks), "blocks", 1, 1024, "12", "transformer blocks, L"},           \
        {"model.heads", AQ_MODEL_U32, DECODER_FIELD(heads), "heads", 1, 1024, "12", "heads of queries, H"},            \
        {"model.channels", AQ_MODEL_U32, DECODER_FIELD(channels), "channels", 1, 65536, "768", "width, C"},            \
        {"model.mlp", AQ_MODEL_U32, DECODER_FIELD(mlp), "channels", 1, 1048576, "2048", "of a block's MLP"},           \
        {"model.vocabulary", AQ_MODEL_U32, DECODER_FIELD(vocabulary), "tokens", 0, 1048576, "0",                       \
         "V; 0: the tokenizer's"},                                                                                     \
        {"model.context", AQ_MODEL_U32, DECODER_FIELD(context), "tokens", 1, 1048576, "1024",                          \
         "tokens that the model was made for; at least train.T"},                                                      \
        {"model.types", AQ_MODEL_U32, DECODER_FIELD(types), "types", 0, 65536, "0", MODEL_TYPES_HELP},                 \
        {"model.norm_eps", AQ_MODEL_F32, DECODER_FIELD(norm_eps), "", 0, 1, "0.00001", "epsilon of the norms"},        \
        ENCODER_KEYS_TRAINING

#define BERT_SIZES(vocabulary_, context_, types_, eps)                                                                 \
    {"num_hidden_layers", FAMILY_U32, DECODER_FIELD(blocks), 1, 1024, 12},                                             \
        {"num_attention_heads", FAMILY_U32, DECODER_FIELD(heads), 1, 1024, 12},                                        \
        {"hidden_size", FAMILY_U32, DECODER_FIELD(channels), 1, 65536, 768},                                           \
        {"intermediate_size", FAMILY_U32, DECODER_FIELD(mlp), 1, 1048576, 3072},                                       \
        {"vocab_size", FAMILY_U32, DECODER_FIELD(vocabulary), 1, 1048576, vocabulary_},                                \
        {"max_position_embeddings", FAMILY_U32, DECODER_FIELD(context), 1, 1048576, context_},                         \
        {"type_vocab_size", FAMILY_U32, DECODER_FIELD(types), 1, 65536, types_},                                       \
        {"layer_norm_eps", FAMILY_F32, DECODER_FIELD(norm_eps), 0, 1, eps},                                            \
        {"initializer_range", FAMILY_F32, DECODER_FIELD(init_std), 0, 1, 0.02}

#define BERT_FORM                                                                                                      \
    .out_in = true, .biased = true, .gate = AQ_GATE_GELU_EXACT, .sums = true, .both = true, .blocks = "encoder.layer", \
    .tokens = "embeddings.word_embeddings.weight", .positions = "embeddings.position_embeddings.weight",               \
    .types = "embeddings.token_type_embeddings.weight", .rows = "embeddings.LayerNorm.weight",                         \
    .rows_bias = "embeddings.LayerNorm.bias",                                                                          \
    .names = {[QUERY] = "attention.self.query.weight",                                                                 \
              [KEY] = "attention.self.key.weight",                                                                     \
              [VALUE] = "attention.self.value.weight",                                                                 \
              [QUERY_BIAS] = "attention.self.query.bias",                                                              \
              [KEY_BIAS] = "attention.self.key.bias",                                                                  \
              [VALUE_BIAS] = "attention.self.value.bias",                                                              \
              [PROJECTION] = "attention.output.dense.weight",                                                          \
              [PROJECTION_BIAS] = "attention.output.dense.bias",                                                       \
              [POST1] = "attention.output.LayerNorm.weight",                                                           \
              [POST1_BIAS] = "attention.output.LayerNorm.bias",                                                        \
              [GATE] = "intermediate.dense.weight",                                                                    \
              [GATE_BIAS] = "intermediate.dense.bias",                                                                 \
              [MLP] = "output.dense.weight",                                                                           \
              [MLP_BIAS] = "output.dense.bias",                                                                        \
              [POST2] = "output.LayerNorm.weight",                                                                     \
              [POST2_BIAS] = "output.LayerNorm.bias"}

/*
 * RoBERTa's differences from BERT: a key; its type; its row; the rows of published folders. ROBERTA_TYPE reads the
 * arrays config_keys and dropouts.
 */
#define ROBERTA_KEYS                                                                                                   \
    {"model.position_first", AQ_MODEL_U32, DECODER_FIELD(position_first), "position", 0, 1048576, "0",                 \
     "roberta, xlm_roberta: the position of the first token, the padding token's id + 1; 0: 2"}

#define ROBERTA_TYPE(type_, name)                                                                                      \
    static const char *const off[] = {"is_decoder", "add_cross_attention", NULL};                                      \
    static const char *const heads[] = {"classifier.", NULL};                                                          \
    static const struct family_type types[] = {{.type = type_,                                                         \
                                                .architecture = name "Model",                                          \
                                                .classifier = name "ForSequenceClassification",                        \
                                                .keys = config_keys,                                                   \
                                                .activation = "hidden_act",                                            \
                                                .activations = "gelu",                                                 \
                                                .places_behind_pad = true,                                             \
                                                .dropouts = dropouts,                                                  \
                                                .pad = 1,                                                              \
                                                .off = off},                                                           \
                                               {0}};                                                                   \
    /* The head for hidden words; a pooler that no classifier reads; numbers of positions, a tensor of older files. */ \
    static bool ignores(const char *tensor)                                                                            \
    {                                                                                                                  \
        static const char *const begins[] = {"lm_head.", "pooler.", "embeddings.position_ids", NULL};                  \
        return decoder_family_begins(tensor, begins);                                                                  \
    }

#define ROBERTA_FAMILY                                                                                                 \
    .types = types, .pooler = &layer_tanh_pooler, .classifier = "classifier.out_proj.", .heads = heads, .form = {      \
        BERT_FORM,                                                                                                     \
        .position_first = 2,                                                                                           \
        .type_count = 1,                                                                                               \
        .dense = "classifier.dense.weight",                                                                            \
        .dense_bias = "classifier.dense.bias",                                                                         \
        .drops_first = true}

#define ROBERTA_PUBLISHED(type, name)                                                                                  \
    {type, name "ForSequenceClassification"}, {type, name "Model"},                                                    \
    {                                                                                                                  \
        type, name "ForMaskedLM"                                                                                       \
    }

/* Keys of config.json with BERT's probabilities, in an array of this name. */
#define BERT_DROPOUTS(name)                                                                                            \
    static const char *const name[] = {"hidden_dropout_prob", "attention_probs_dropout_prob", NULL}

#endif
