/*
 * publish.h -- a trained model as other programs load it: the published names of its tensors, and the files next to
 * model.safetensors in a folder that `transformers` opens.
 *
 *     aq_publish_name(&model, "h.0.ln_1.bias", name, sizeof name);        "transformer.h.0.ln_1.bias"
 *     AQ_TRY(aq_publish_model(&model, &about, write, folder));            config.json
 *     AQ_TRY(aq_publish_carry("qwen", true, write, folder));              tokenizer.json, generation_config.json, ...
 *     AQ_TRY(aq_publish_tokenizer("gpt2", "gpt2_bpe", 1024, write, folder));
 *
 * What a model was made from is carried over: the keys of its config.json that the model does not write itself, and the
 * files that belong to the folder as a whole, byte for byte.
 *
 * Locking: none; pure functions, except that they read files.
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

/* Writes one file of the folder; bytes are borrowed. A status other than AQ_OK ends the call that writes. */
typedef enum aq_status aq_publish_file(void *context, const char *name, const char *bytes, size_t count);

/* The published name of a tensor, terminated, cut to `bytes`. */
void aq_publish_name(const struct aq_model_config *model, const char *tensor, char *out, size_t bytes);

/*
 * transposed[i]: do published files have tensor names[i] the other way round (aq_tensor_info.transposed)? kernels[i]:
 * its aq_tensor_info.kernel; NULL: nobody asks for it. A name of no tensor: false, 0. AQ_NOMEM.
 */
enum aq_status aq_publish_transposed(const struct aq_model_config *model, const char *const *names, uint32_t count,
                                     bool *transposed, uint32_t *kernels);

/* out_in[i]: is tensor names[i], which has an adapter, stored as (out, in)? else (in, out). AQ_NOMEM. */
enum aq_status aq_publish_out_in(const struct aq_model_config *model, const char *const *names, uint32_t count,
                                 bool *out_in);

struct aq_publish_about {
    bool tied;           /* the head has no separate tensor in the file                      */
    int32_t end_of_text; /* a token, or -1                                                   */
    const char *type;    /* of the weights: "F32", "BF16", "F16"                             */
    const char *from;    /* the folder that it began as, or NULL: its other keys come along  */
    const char *labels;  /* names of a classifier's labels, with commas between; NULL: those of `from`, or LABEL_0 */
};

/*
 * config.json. Tokens of start and end of text in `from` are kept. AQ_INVAL: a model without a published form, or no
 * such type. AQ_NOMEM, what reading that of `from` answers, and what `file` returns.
 */
enum aq_status aq_publish_model(const struct aq_model_config *model, const struct aq_publish_about *about,
                                aq_publish_file *file, void *context);

/*
 * The files of a published folder that are not its weights or its config.json, as they are: generation_config.json and
 * licences; and, tokenizer, all that tokenizers and chat templates are. Statuses of reading them, and what `file`
 * returns.
 */
const char *aq_publish_carried(uint32_t index); /* their names, NULL behind the last */
enum aq_status aq_publish_carry(const char *from, bool tokenizer, aq_publish_file *file, void *context);

/*
 * generation_config.json, if `count` tokens end answers that those who published `from` (or NULL) do not name: its own
 * keys, or else the tokens of its config.json, and these among eos_token_id. Nothing is written where all are there.
 */
enum aq_status aq_publish_ends(const char *from, const int32_t *ends, uint32_t count, aq_publish_file *file,
                               void *context);

/* chat_template.jinja: the default template of that folder, byte for byte. Nothing where it has none. */
enum aq_status aq_publish_chat(const char *folder, aq_publish_file *file, void *context);

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
