/*
 * checkpoint_adapters.h -- the low-rank adapters of a run's checkpoint (stages/stage.h), as the files of others have
 * them: added to the model's own matrices, and as a folder that PEFT loads.
 *
 *     AQ_TRY(aq_adapters_open(files, stages, model, lora, &adapters));
 *     tensor.plus = aq_adapters_of(adapters, "h.0.attn.c_attn.weight");     merged, as it is written
 *     AQ_TRY(aq_adapters_write(adapters, "out/adapter", "gpt2"));
 *
 * Adapters are held in memory: they are a few thousandths of a model.
 * Locking: one thread.
 */
#ifndef CHECKPOINT_ADAPTERS_H
#define CHECKPOINT_ADAPTERS_H

#include "checkpoint.h"
#include "stages/stage.h"
#include "stages/weights.h"

struct aq_adapters; /* opaque */

/*
 * Adapters of the stages' files (borrowed until close), with the other trained tensors. lora: of the run. AQ_CORRUPT:
 * one half of a pair, or one that does not fit the other. AQ_NOMEM.
 */
enum aq_status aq_adapters_open(struct aq_weights *const *files, uint32_t stages, const struct aq_model_config *model,
                                const struct aq_lora_config *lora, struct aq_adapters **out);
void aq_adapters_close(struct aq_adapters *adapters); /* NULL is fine */

/* The product that is added to a tensor of that name; NULL: nothing. Lent until close. */
const struct aq_weights_low_rank *aq_adapters_of(const struct aq_adapters *adapters, const char *tensor);

/*
 * adapter_model.safetensors (F32) and adapter_config.json in a folder that is there, as PEFT 0.6 and later load them.
 * base: path or name of the model's first weights; NULL: they have none. Statuses of writing files.
 */
enum aq_status aq_adapters_write(struct aq_adapters *adapters, const char *folder, const char *base);

/*
 * PEFT's folder into an open stage: each of its tensors that the folder has; others stay. The folder matches
 * the model (stages/adapter_folder.h). AQ_CORRUPT: a value is NaN or infinite.
 */
enum aq_status aq_adapters_import(const struct aq_checkpoint *checkpoint, const struct aq_model_config *model,
                                  const char *path);

/* The same into a stage without adapters: W + s B A, and the other trained tensors. */
enum aq_status aq_adapters_merge(const struct aq_checkpoint *checkpoint, const struct aq_model_config *model,
                                 const char *path);

#endif
