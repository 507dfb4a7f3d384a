/*
 * publish.h -- a trained model as other programs load it: the published names of its tensors, and the files that stand
 * beside model.safetensors in a folder that `transformers` opens.
 *
 *     aq_publish_name(&model, "h.0.ln_1.bias", name, sizeof name);        "transformer.h.0.ln_1.bias"
 *     AQ_TRY(aq_publish_model(&model, tied, end_of_text, write, folder));
 *     AQ_TRY(aq_publish_tokenizer("gpt2", "gpt2_bpe", 1024, write, folder));
 *
 * Locking: none; pure but for the tokenizer's files, which are read.
 */
#ifndef STAGES_PUBLISH_H
#define STAGES_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_model_config;

/* Writes one file of the folder; bytes are borrowed. What it returns ends the call that asked. */
typedef enum aq_status aq_publish_file(void *context, const char *name, const char *bytes, size_t count);

/* The published name of a tensor, terminated, cut to `bytes`. */
void aq_publish_name(const struct aq_model_config *model, const char *tensor, char *out, size_t bytes);

/*
 * config.json. tied: the head has no tensor of its own in the file. end_of_text: a token, or -1. AQ_INVAL: a model that
 * nobody publishes so. AQ_NOMEM, and what `file` returns.
 */
enum aq_status aq_publish_model(const struct aq_model_config *model, bool tied, int32_t end_of_text,
                                aq_publish_file *file, void *context);

/*
 * The tokenizer's files under their published names: none of "bytes", which has none. kind and path as
 * aq_tokenizer_open takes them; tokens: of the longest text. Statuses of reading them, and what `file` returns.
 */
enum aq_status aq_publish_tokenizer(const char *kind, const char *path, uint32_t tokens, aq_publish_file *file,
                                    void *context);

#ifdef __cplusplus
}
#endif
#endif
