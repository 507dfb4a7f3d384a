/*
 * model_eurobert.c -- EuroBERT (Boizard et al. 2025) as a row of models.def, as EuroBertForSequenceClassification has
 * it: Llama's blocks with attention of both sides.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {
    DECODER_KEYS_SIZES,
    DECODER_KEYS_ROPE,
    DECODER_KEYS_BIASES("decoders, eurobert: queries, keys and values have biases"),
    {"model.pool_mean", AQ_MODEL_BOOL, DECODER_FIELD(pool_mean), "", 0, 0, "false",
     "modernbert, eurobert: the classifier reads the mean of all tokens (classifier_pooling: mean), not the first one"},
    {"model.pool_late", AQ_MODEL_BOOL, DECODER_FIELD(pool_late), "", 0, 0, "false",
     "eurobert: the classifier reads the mean of what its dense layer gives for all tokens (classifier_pooling: late)"},
    ENCODER_KEYS_TRAINING};

static const struct family_key config_keys[] = {
    {"num_hidden_layers", FAMILY_U32, DECODER_FIELD(blocks), 1, 1024, 12},
    {"num_attention_heads", FAMILY_U32, DECODER_FIELD(heads), 1, 1024, 12},
    {"hidden_size", FAMILY_U32, DECODER_FIELD(channels), 1, 65536, 768},
    {"intermediate_size", FAMILY_U32, DECODER_FIELD(mlp), 1, 1048576, 3072},
    {"vocab_size", FAMILY_U32, DECODER_FIELD(vocabulary), 1, 1048576, 128256},
    {"max_position_embeddings", FAMILY_U32, DECODER_FIELD(context), 1, 1048576, 8192},
    {"num_key_value_heads", FAMILY_U32, DECODER_FIELD(kv_heads), 1, 1024, FAMILY_HEADS},
    {"head_dim", FAMILY_U32, DECODER_FIELD(head_dim), 1, 2048, 0},
    {"rms_norm_eps", FAMILY_F32, DECODER_FIELD(norm_eps), 0, 1, 1e-5},
    {"initializer_range", FAMILY_F32, DECODER_FIELD(init_std), 0, 1, 0.02},
    {NULL, FAMILY_U32, 0, 0, 0, 0}};

static const struct family_type types[] = {{.type = "eurobert",
                                            .architecture = "EuroBertModel",
                                            .classifier = "EuroBertForSequenceClassification",
                                            .keys = config_keys,
                                            FAMILY_SILU,
                                            .attention_bias = FAMILY_READ,
                                            .mlp_bias = FAMILY_READ,
                                            FAMILY_ROPES,
                                            .theta = 10000,
                                            .pooling = true,
                                            .pad = 128001},
                                           {0}};

static const char *const heads[] = {"dense.", "classifier.", NULL};

static const struct decoder_family family = {
    .types = types,
    .pooler = &layer_encoder_pooler,
    .classifier = "classifier.",
    .heads = heads,
    .form = {FAMILY_FORM, .both = true, .dense = "dense.weight", .dense_bias = "dense.bias",
             .names = {FAMILY_NAMES_BIASED}}};

static const struct stage_published published[] = {{"eurobert", "EuroBertForSequenceClassification"},
                                                   {"eurobert", "EuroBertModel"},
                                                   {"eurobert", "EuroBertForMaskedLM"},
                                                   {NULL, NULL}};

static bool ignores(const char *name)
{
    static const char *const begins[] = {"lm_head.", NULL};
    return decoder_family_begins(name, begins) || decoder_family_ignores(name);
}

ENCODER_MODEL(eurobert, keys, family, "model.", ignores);
