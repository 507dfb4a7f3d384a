/* model_bert.c -- BERT (Devlin et al. 2019) as a row of models.def, as BertForSequenceClassification has it. */
#include "model_family.h"

static const struct aq_model_key keys[] = {BERT_KEYS};

static const struct family_key config_keys[] = {BERT_SIZES(30522, 512, 2, 1e-12), {NULL, FAMILY_U32, 0, 0, 0, 0}};

static const char *const off[] = {"is_decoder", "add_cross_attention", NULL};
BERT_DROPOUTS(dropouts);

static const struct family_type types[] = {{.type = "bert",
                                            .architecture = "BertModel",
                                            .classifier = "BertForSequenceClassification",
                                            .keys = config_keys,
                                            .activation = "hidden_act",
                                            .activations = "gelu",
                                            .dropouts = dropouts,
                                            .off = off},
                                           {0}};

static const char *const heads[] = {"classifier.", NULL};

static const struct decoder_family family = {
    .types = types,
    .pooler = &layer_tanh_pooler,
    .classifier = "classifier.",
    .heads = heads,
    .form = {BERT_FORM, .type_count = 2, .dense = "pooler.dense.weight", .dense_bias = "pooler.dense.bias"}};

static const struct stage_published published[] = {{"bert", "BertForSequenceClassification"},
                                                   {"bert", "BertModel"},
                                                   {"bert", "BertForMaskedLM"},
                                                   {"bert", "BertForPreTraining"},
                                                   {"bert", "BertForNextSentencePrediction"},
                                                   {NULL, NULL}};

/* Heads for hidden words and following sentences; numbers of positions, which older files have as a tensor. */
static bool ignores(const char *name)
{
    static const char *const begins[] = {"cls.", "embeddings.position_ids", NULL};
    return decoder_family_begins(name, begins);
}

ENCODER_MODEL(bert, keys, family, "bert.", ignores);
