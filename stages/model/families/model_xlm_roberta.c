/*
 * model_xlm_roberta.c -- XLM-R (Conneau et al. 2020) as a row of models.def, as XLMRobertaForSequenceClassification has
 * it: RoBERTa under another name.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {BERT_KEYS, ROBERTA_KEYS};

static const struct family_key config_keys[] = {BERT_SIZES(30522, 512, 2, 1e-12), {NULL, FAMILY_U32, 0, 0, 0, 0}};

BERT_DROPOUTS(dropouts);
ROBERTA_TYPE("xlm-roberta", "XLMRoberta")

static const struct decoder_family family = {ROBERTA_FAMILY};

static const struct stage_published published[] = {ROBERTA_PUBLISHED("xlm-roberta", "XLMRoberta"), {NULL, NULL}};

ENCODER_MODEL(xlm_roberta, keys, family, "roberta.", ignores);
