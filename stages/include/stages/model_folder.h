/*
 * model_folder.h -- a published model folder, as people download it: config.json, weights, tokenizer.
 *
 *     qwen/config.json                     which model, and every size of it
 *          model.safetensors               the weights; or model-00001-of-00004.safetensors ... with
 *          model.safetensors.index.json    which tensor is in which of them
 *          tokenizer.json, merges.txt, ... what makes tokens of text
 *          generation_config.json          how those who publish it sample from it
 *
 *     struct aq_model_folder *folder;
 *     AQ_TRY(aq_model_folder_open("qwen", &folder));
 *     const struct aq_model_config *model = aq_model_folder_model(folder);     // kind, blocks, channels, ...
 *     ... aq_weights_open("qwen", &weights): weights.h ...
 *     aq_model_folder_close(folder);
 *
 * Caveats first.
 * - Opening reads config.json, and of the weights only the head and the embedding of a tied model that has both: where
 *   they differ the model is not tied (as transformers has it). A value that this program would compute in another way
 *   is refused, with file, key, the value and the expected one. Keys that are not known and change no result
 *   (use_cache, task_specific_params) are ignored; aq_publish copies them.
 * - An architecture that no model of models.def reads is refused by its name, with those that are read.
 * - A folder is named by the user: links in it are followed (downloads are often links into a cache). The names that
 *   its files give (shards of an index) stay inside it.
 * - Nothing in a folder is run. Pickles (pytorch_model.bin) are programs, and are refused with the line that makes
 *   safetensors of them.
 *
 * Each model's own file reads its keys of config.json (read_config of stages/model/stage_model.h).
 *
 * Locking: a folder is read-only after open; any thread.
 */
#ifndef STAGES_MODEL_FOLDER_H
#define STAGES_MODEL_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stages/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_model_folder; /* opaque */

/* Is there a folder (or a link to one) of that name? */
bool aq_model_folder_is(const char *path);

/*
 * A model by its name on the Hugging Face Hub: may a text be one ("Qwen/Qwen3-0.6B"), is it one with its scheme
 * ("hf://Qwen/Qwen3-0.6B"), and the folder in the cache of `hf download`, into out. AQ_NOTFOUND: it is not there; the
 * text has the command that downloads it. AQ_INVAL: no such name.
 */
bool aq_model_hub_name(const char *text);
bool aq_model_hub_is(const char *text);
enum aq_status aq_model_hub_path(const char *text, char *out, size_t bytes);

/*
 * AQ_NOTFOUND: no folder, or no config.json in it. AQ_CORRUPT: config.json is no JSON object. AQ_MISMATCH: an
 * architecture that no model here reads, or a value that is not computed. AQ_IO, AQ_NOMEM. All with the file's name.
 */
enum aq_status aq_model_folder_open(const char *path, struct aq_model_folder **out);
void aq_model_folder_close(struct aq_model_folder *folder); /* NULL is fine */

/*
 * Is it a folder of a model of texts and images (Gemma 3 4B and larger, Mistral Small 3) whose text model is read? Its
 * other tensors belong into an export. False also of a folder that cannot be read.
 */
bool aq_model_folder_wraps(const char *path);

/* The model: kind, and every size of config.json, checked (aq_model_config_check). Until close. */
const struct aq_model_config *aq_model_folder_model(const struct aq_model_folder *folder);

/*
 * The names of type and architecture in config.json: "qwen3", "Qwen3ForCausalLM" (by default the type's first). Until
 * close.
 */
const char *aq_model_folder_type(const struct aq_model_folder *folder);
const char *aq_model_folder_architecture(const struct aq_model_folder *folder);

/* Does the architecture give what its samples are as a whole ("...ForSequenceClassification"), and no tokens? */
bool aq_model_folder_classifies(const struct aq_model_folder *folder);

/*
 * The name that config.json gives a classifier's label (id2label), or NULL: not all labels have one, or only default
 * names (LABEL_0). Until close.
 */
const char *aq_model_folder_label(const struct aq_model_folder *folder, uint32_t label);

/*
 * The names of a job's labels ("negative, positive") in the order of the folder's head, into out: as they are where the
 * folder names none, or none of them. AQ_MISMATCH: some of them are labels of the head at other places, and not all can
 * be mapped; prints both lists. AQ_NOSPC: out is too small.
 */
enum aq_status aq_model_folder_order(const struct aq_model_folder *folder, const char *names, char *out, size_t bytes);

enum { AQ_MODEL_ENDS_MAX = 16 };
struct aq_model_marks {
    int32_t begin; /* the token at the start of an empty text; -1: none is named                           */
    int32_t ends[AQ_MODEL_ENDS_MAX]; /* what ends a text that the model writes                              */
    uint32_t end_count;
};

/*
 * bos_token_id and eos_token_id: of generation_config.json, and of config.json where that has none. A token that is not
 * in the model's vocabulary marks nothing. AQ_CORRUPT: generation_config.json is no JSON object; AQ_MISMATCH: a value
 * that is no token, or more ends than there is room for; AQ_IO, AQ_NOMEM.
 */
enum aq_status aq_model_folder_marks(const struct aq_model_folder *folder, struct aq_model_marks *out);

/*
 * How those who publish the folder generate: generation_config.json. By default, transformers' values.
 */
enum { AQ_MODEL_OTHERS_BYTES = 256 };
struct aq_model_generation {
    bool draws;        /* do_sample                                                */
    float temperature; /* 1                                                        */
    float top_p;       /* 1: all                                                   */
    uint32_t top_k;    /* 0: all                                                   */
    float repetition_penalty; /* 1: none                                           */
    uint32_t tokens_max;      /* max_new_tokens; 0: none is named                  */
    char others[AQ_MODEL_OTHERS_BYTES]; /* keys that change a text and are not computed here, with commas; "": none */
};

/* Statuses of reading it; AQ_MISMATCH: a value that is out of range. */
enum aq_status aq_model_folder_generation(const struct aq_model_folder *folder, struct aq_model_generation *out);

/* "gpt2, llama, ...": the types that can be opened, in order of models.def; cut where it does not fit. */
void aq_model_folder_known(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
