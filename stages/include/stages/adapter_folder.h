/*
 * adapter_folder.h -- low-rank adapters as PEFT keeps them: adapter_config.json and adapter_model.safetensors.
 *
 *     struct aq_adapter_folder *folder;
 *     AQ_TRY(aq_adapter_folder_open("adapter", &folder));
 *     lora = *aq_adapter_folder_lora(folder);                       // rank, alpha, rslora, dropout; no targets
 *     AQ_TRY(aq_adapter_folder_match(folder, &model, true, targets, sizeof targets));
 *     ... aq_adapter_folder_find(folder, &model, "h.0.attn.c_attn.lora_A.weight", &index) ...
 *     aq_adapter_folder_close(folder);
 *
 * Caveats first.
 * - adapter_model.safetensors decides which layers are adapted, not target_modules (a list of names, or a pattern).
 *   With a list, a layer that it names and the file lacks is refused.
 * - An option that would be computed otherwise than PEFT does is refused by its key: biases, adapters that change the
 *   model at their start (PiSSA, OLoRA, LoftQ), every peft_type but LORA, options that are not known and not off.
 * - rank_pattern, alpha_pattern and modules_to_save become ranks, alphas and saved of aq_lora_config. A name that names
 *   nothing is ignored, as PEFT does; one that is an expression is refused.
 * - In PEFT a saved embedding or head of a tied model is a tensor of its own unless ensure_weight_tying is true. So the
 *   model must not be tied then (aq_adapter_folder_ties).
 * - Names may have a wrapper's infix ("language_model."), or the base model's prefix, or neither.
 *
 * Locking: read-only after open; any thread.
 */
#ifndef STAGES_ADAPTER_FOLDER_H
#define STAGES_ADAPTER_FOLDER_H

#include "stages/stage.h"
#include "stages/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_adapter_folder; /* opaque */

/* AQ_NOTFOUND: a file is missing; AQ_CORRUPT: it cannot be read; AQ_MISMATCH: not computed here. All told, by key. */
enum aq_status aq_adapter_folder_open(const char *path, struct aq_adapter_folder **out);
void aq_adapter_folder_close(struct aq_adapter_folder *folder); /* NULL is fine */

/* Until close, with its texts. targets is NULL. */
const struct aq_lora_config *aq_adapter_folder_lora(const struct aq_adapter_folder *folder);

/* May the model be tied with these adapters? True for a model that is not. */
bool aq_adapter_folder_ties(const struct aq_adapter_folder *folder, const struct aq_model_config *model);

/* Can training continue them? AQ_MISMATCH: the weights have a tensor of the model that modules_to_save lacks. */
enum aq_status aq_adapter_folder_trains(const struct aq_adapter_folder *folder, const struct aq_model_config *model);

/* Rows of the classifier that it brings for a task of that model, which may be of other labels; 0: it brings none. */
enum aq_status aq_adapter_folder_labels(const struct aq_adapter_folder *folder, const struct aq_model_config *model,
                                        uint32_t *labels);

/* Its values; until close. */
const struct aq_weights *aq_adapter_folder_weights(const struct aq_adapter_folder *folder);

/*
 * Are these adapters of this model? Every tensor is of it, in its shape, none has only one half. targets: patterns that
 * name what is adapted (aq_lora_config), "" where that is all. labels_known: else a head for some labels may be there,
 * and is not measured. AQ_MISMATCH: the first problem, with its file; AQ_NOSPC: more patterns than fit; AQ_NOMEM.
 */
enum aq_status aq_adapter_folder_match(const struct aq_adapter_folder *folder, const struct aq_model_config *model,
                                       bool labels_known, char *targets, size_t bytes);

/* The tensor of that name (of an adapter, or of the model itself). AQ_NOTFOUND (not logged). */
enum aq_status aq_adapter_folder_find(const struct aq_adapter_folder *folder, const struct aq_model_config *model,
                                      const char *name, uint32_t *index);

#ifdef __cplusplus
}
#endif
#endif
