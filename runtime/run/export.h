/*
 * export.h -- a run's trained model, as a folder that other programs load: config.json, model.safetensors (or its
 * shards and their index), generation_config.json and the tokenizer. The end of a run and `aqpipe export` both write it
 * so.
 *
 *     struct aq_export export = {.plan = plan, .checkpoint = folder, .step = 9, .folder = "out", .type = "BF16"};
 *     if (!aq_export_here(&export, &stage)) ...            // that stage's file is on another machine
 *     AQ_TRY(aq_export_description(&export));              // config.json and all that is small
 *     AQ_TRY(aq_export_weights(&export));
 *
 * Of a run with adapters (lora.rank) the weights are the sum of both, and the folder `adapter` inside has the adapters
 * as PEFT loads them.
 *
 * If the run started from a published folder (model.weights), that folder's files are included: from there, or if it
 * was deleted, from `run`, to which the run's end has copied them.
 *
 * Values go from the checkpoint's files to the folder's piece by piece; none of them is held. Each file is whole or not
 * there (aq_file_replace, weights.h); the index comes behind its shards.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_EXPORT_H
#define RUNTIME_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"
#include "stages/gguf.h"

#define AQ_EXPORT_FILE_BYTES UINT64_C(5000000000) /* of tensors in a file, by default, as in other programs */

struct aq_export {
    const struct aq_plan *plan;
    const char *checkpoint; /* folder of the run's checkpoints            */
    uint64_t step;
    const char *folder;                                             /* which must be there                        */
    const char *run;                                                /* the run's, or NULL: see above              */
    const char *type;                                               /* of the weights: "F32", "BF16", "F16"       */
    const char *gguf;                                               /* "f16", "q8_0": of one GGUF file; else NULL */
    uint64_t file_bytes_max;                                        /* 0: one file                                */
    void (*progress)(void *context, uint64_t done, uint64_t total); /* bytes of weights; or NULL */
    void *context;
};

/* Are all stages' files of the step on this machine? False: *stage is the first whose is not. */
bool aq_export_here(const struct aq_export *export, uint32_t *stage);

/* Statuses of stages/publish.h and of writing files. */
enum aq_status aq_export_description(const struct aq_export *export);

/* As aq_checkpoint_join. */
enum aq_status aq_export_weights(const struct aq_export *export);

/*
 * The same weights, adapters added, as the one file model-TYPE.gguf of the folder: stages/gguf.h. open reads the
 * tokenizer and refuses what cannot be written, before there is a folder. `run` must be set.
 */
enum { AQ_EXPORT_GGUF_BYTES = 32 };
enum aq_status aq_export_gguf_open(const struct aq_export *export, struct aq_gguf **out);
enum aq_status aq_export_gguf(const struct aq_export *export, const struct aq_gguf *gguf);

#endif
