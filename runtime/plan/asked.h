/*
 * asked.h -- a model that is asked instead of trained: how its stages are opened, and what crosses its cuts.
 *
 * Generation and evaluation use these functions, in one process (cli/local_model.c) and in a run's stages, each its own
 * process (worker/worker_answer.c): so both compute the same bits.
 *
 *     aq_model_use_task(&model, size.task, size.labels);
 *     struct aq_stage_config config = aq_asked_config(&model, job, precision, &size);      layers are the caller's
 *     AQ_TRY(aq_asked_stage_open(device, &config, "run", NULL, &stage));
 *     AQ_TRY(aq_asked_cut(plan, &config, e, &shape));                         for aq_cut_open, aq_edge_open
 *
 * Locking: pure functions except for the files that they read.
 */
#ifndef RUNTIME_ASKED_H
#define RUNTIME_ASKED_H

#include "plan.h"

struct aq_asked_size {
    const char *task; /* NULL: the model's own                        */
    uint32_t labels;  /* of a task of whole samples                   */
    uint32_t B, T;    /* of a forward                                 */
    bool lengths;     /* samples may have fewer than T tokens         */
    bool parts;       /* samples may have parts (aq_batch.starts)     */
    bool writes;      /* generation: one row of logits at a time; weights as the products read them are kept */
    bool extends;     /* a token a step (aq_stage_config.extends)     */
};

/*
 * For inference; the caller sets the layers. model: its task is used. job: the run's, or NULL. In bf16 the model has
 * the residual stream with which it was trained (model.residual). Borrows the texts.
 */
struct aq_stage_config aq_asked_config(const struct aq_model_config *model, const struct aq_job *job,
                                       enum aq_stage_precision precision, const struct aq_asked_size *size);

/* What adapters (NULL: none) need of the model: not tied, where they hold the embedding and the head apart; as many
 * labels as the classifier that they bring has, in place of the weights' own. */
enum aq_status aq_asked_adapt(const char *adapter, struct aq_model_config *model);

/*
 * The stage of config's layers with the weights in the folder `path`, and PEFT's adapters in `adapter` (NULL: none)
 * added to them. AQ_NOTFOUND: a tensor is missing; also one that training would initialize at random (a classifier's
 * head), because its outputs would be meaningless. Others as aq_stage_open and aq_checkpoint_import.
 */
enum aq_status aq_asked_stage_open(struct aq_device *device, const struct aq_stage_config *config, const char *path,
                                   const char *adapter, struct aq_stage **out);

/*
 * Cut e of the run's plan for samples of such a stage: its shape and codecs, without what training adds (messages, a
 * guard's levels, samples that both ends hold). The windows are for an edge between two processes.
 */
enum aq_status aq_asked_cut(const struct aq_plan *plan, const struct aq_stage_config *config, uint32_t e,
                            struct aq_edge_shape *out);

#endif
