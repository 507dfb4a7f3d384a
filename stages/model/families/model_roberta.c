/*
 * model_roberta.c -- RoBERTa (Liu et al. 2019) as a row of models.def, as RobertaForSequenceClassification has it:
 * BERT's blocks, positions from pad_token_id + 1 on, and its own head in place of BERT's pooler.
 */
#include "model_family.h"

static const struct aq_model_key keys[] = {BERT_KEYS, ROBERTA_KEYS};

static const struct family_key config_keys[] = {BERT_SIZES(50265, 512, 2, 1e-12), {NULL, FAMILY_U32, 0, 0, 0, 0}};

BERT_DROPOUTS(dropouts);
ROBERTA_TYPE("roberta", "Roberta")

static const struct decoder_family family = {ROBERTA_FAMILY};

static const struct stage_published published[] = {ROBERTA_PUBLISHED("roberta", "Roberta"), {NULL, NULL}};

ENCODER_MODEL(roberta, keys, family, "roberta.", ignores);
