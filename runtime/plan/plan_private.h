/*
 * plan_private.h -- what the files plan_*.c share.
 */
#ifndef RUNTIME_PLAN_PRIVATE_H
#define RUNTIME_PLAN_PRIVATE_H

#include "plan_costs.h"

/* plan_fits.c: can the codecs of this edge be? AQ_INVAL names the key and its place. */
enum aq_status aq_plan_codecs_possible(const struct aq_job *job, const struct aq_edge_shape *shape);

/* plan_facts.c: was the file of initial weights deleted, though the job has its digest? A run that resumes does not
 * need it: its checkpoints have the trained weights. */
bool aq_plan_weights_gone(const struct aq_job *job);

/*
 * plan_facts.c: the lengths that aq_plan_facts found, of the training samples that the plan takes: facts and an array
 * without the others. AQ_INVAL: more than the manifest for workers can hold.
 */
enum aq_status aq_plan_lengths_take(struct aq_plan *plan, uint64_t train_samples, uint32_t *lengths);

/* plan_split.c: AQ_INVAL: options of split learning that this model and cut cannot have; names the key. given:
 * the cut is the manifest's, and not one that is tried, whose batch norms may be at another end. */
enum aq_status aq_plan_split_check(const struct aq_plan *plan, bool given);

/* plan_hash.c: fills hash and job_digest. AQ_NOMEM. */
enum aq_status aq_plan_digests(struct aq_plan *plan);

/* plan_cut.c: the cut as the manifest sets it, or balanced by flops. */
enum aq_status aq_plan_cut(const struct aq_job *job, const struct aq_model_config *model, struct aq_plan_cut *out);

/* plan_cut.c: may stage s make logits of 16 bits (model.logits)? It does where its device is a GPU. */
bool aq_plan_logits_16bit(const struct aq_job *job, uint32_t s);

/* plan_reduce.c: stage->traffic by its config. Of a job without replicas it stays zero. AQ_NOMEM. */
enum aq_status aq_plan_traffic(const struct aq_job *job, struct aq_plan_stage *stage);

/* plan_cut.c: stage->size and stage->traffic by its config. On a device that may be a CPU, logits count as fp32, which
 * are more. */
enum aq_status aq_plan_stage_measure(const struct aq_job *job, uint32_t s, struct aq_plan_stage *stage);

/* plan_tied.c: plan->rows_if_tied. Slow (it lists all tensors of the model): computed once per plan. */
uint32_t aq_plan_rows_if_tied(const struct aq_plan *plan);

/* plan_tied.c: AQ_INVAL where model.tied cannot be done, with the remedy. */
enum aq_status aq_plan_tied_check(const struct aq_plan *plan);

/*
 * plan_flight.c: schedule, in_flight and windows, as the manifest sets them; with auto, chosen by distance. Pure
 * arithmetic on the manifest, so that every rank comes to the same. Counts are filled in; stages have their slot_bytes
 * and copies, edges their bytes. AQ_NOMEM.
 */
#define AQ_PLAN_RATE_ASSUMED 200.0 /* Mbit/s, of a link that is not paced */
struct aq_plan_flight {
    struct aq_schedule_request request; /* of a whole step; reduce and window are the caller's */
    struct aq_plan_window windows[AQ_JOB_STAGES_MAX];
    uint32_t ahead; /* aq_plan.ahead */
};
enum aq_status aq_plan_flight(const struct aq_plan *plan, struct aq_plan_flight *out);

/*
 * plan_loss.c: what lost packets do to the link of edge e: the rate that its congestion control leaves of the paced one
 * (0: none, as fast as it goes), and by how much the frame of this number comes later than it would: some round trips,
 * by lot. seed: another order of losses.
 */
double aq_plan_lossy_rate(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t e);
double aq_plan_lost_s(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t e, bool forward,
                      double frame_bytes, uint64_t number);

#endif
