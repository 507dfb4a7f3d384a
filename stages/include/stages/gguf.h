/*
 * gguf.h -- a trained decoder as one GGUF file, which llama.cpp, Ollama and LM Studio load.
 *
 *     struct aq_gguf_about about = {.model = &model, .type = "q8_0", .name = "run", .tokenizer = "huggingface",
 *                                   .tokenizer_path = "qwen"};
 *     struct aq_gguf *gguf;
 *     AQ_TRY(aq_gguf_open(&about, &gguf));                    all metadata; refuses what cannot be written
 *     AQ_TRY(aq_gguf_write(gguf, "out", "model-q8_0.gguf", tensors, count, NULL, NULL));
 *     aq_gguf_close(gguf);
 *
 * The file holds the model, the tokenizer and the chat template. docs/GGUF.md has its bytes, the table of families and
 * what is refused.
 *
 * Caveats first.
 * - A family is a row of gguf_model.c. A tokenizer is a byte-level BPE whose pre-tokenizer llama.cpp knows by name, or
 *   a BPE of characters whose merges follow from its pieces, as SentencePiece's do. Others are refused by name.
 * - Values are read, changed and written piece by piece. Memory is the vocabulary's and 4 MB, or one row of a tensor.
 * - The file appears under its name when the disk has all of it.
 *
 * Locking: one thread.
 */
#ifndef STAGES_GGUF_H
#define STAGES_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_model_config;
struct aq_weights_tensor;
struct aq_gguf; /* opaque: the metadata of one file */

enum { AQ_GGUF_ENDS_MAX = 2 };

struct aq_gguf_about {
    const struct aq_model_config *model;
    const char *type;                       /* of matrices: "f16" or "q8_0"                                   */
    const char *name;                       /* general.name                                                   */
    const char *tokenizer, *tokenizer_path; /* as aq_tokenizer_open takes them                                */
    const char *chat;                       /* a folder whose chat template comes along; NULL: none           */
    int32_t ends[AQ_GGUF_ENDS_MAX];         /* tokens that end an answer, `end_count` of them                 */
    uint32_t end_count;
};

/* The names that `type` may have, with "|" between: for messages. */
extern const char aq_gguf_types[];
/* Is there such a type? */
bool aq_gguf_type_is(const char *type);

/*
 * AQ_INVAL: a model or a tokenizer that cannot be written, named with the cause. AQ_NOMEM, and what opening the
 * tokenizer and reading the chat template answers.
 */
enum aq_status aq_gguf_open(const struct aq_gguf_about *about, struct aq_gguf **out);
void aq_gguf_close(struct aq_gguf *gguf); /* NULL is fine */

/*
 * folder/name, from the model's tensors under the names that they have in a stage. `turned` is as published folders
 * have it (aq_publish_transposed); adapters are added. progress: bytes of values; or NULL. AQ_INVAL: a tensor that the
 * table does not know, or a value that does not fit the type. Statuses of reading the tensors and of writing files;
 * then there is no file of that name, or the old one.
 */
enum aq_status aq_gguf_write(const struct aq_gguf *gguf, const char *folder, const char *name,
                             const struct aq_weights_tensor *tensors, uint32_t count,
                             void (*progress)(void *context, uint64_t done, uint64_t total), void *context);

#ifdef __cplusplus
}
#endif
#endif
