/*
 * plan_private.h -- what the files plan_*.c share.
 */
#ifndef RUNTIME_PLAN_PRIVATE_H
#define RUNTIME_PLAN_PRIVATE_H

#include "plan.h"

/* How bytes become bytes on the wire. */
enum {
    AQ_WIRE_HEADER_BYTES = 128,    /* of a frame: docs/FRAME.md                                              */
    AQ_WIRE_PACKET_BYTES = 66,     /* Ethernet 14, IP 20, TCP with time stamps 32                             */
    AQ_WIRE_SEGMENT_BYTES = 1448,  /* of payload in an Ethernet packet of 1500                                */
    AQ_WIRE_LOOPBACK_BYTES = 65483 /* the same on the loopback device                                         */
};

/* Bytes on the wire of a frame with a body of body_bytes. loopback: both ends are on this machine. */
uint64_t aq_wire_bytes(uint64_t body_bytes, bool loopback);

/* Do the ends of edge e share a machine's loopback device, by the manifest? */
bool aq_plan_edge_loopback(const struct aq_job *job, uint32_t edge);

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

/* plan_split.c: AQ_INVAL: options of split learning that this model and cut cannot have; names the key. */
enum aq_status aq_plan_split_check(const struct aq_plan *plan);

/* plan_hash.c: fills hash and job_digest. AQ_NOMEM. */
enum aq_status aq_plan_digests(struct aq_plan *plan);

/* plan_cut.c: the cut as the manifest sets it, or balanced by flops. */
enum aq_status aq_plan_cut(const struct aq_job *job, const struct aq_model_config *model, struct aq_plan_cut *out);

/* plan_cut.c: flops of a single layer, and its sizes: with slots 1, as this job trains it. */
enum aq_status aq_plan_layer_size(const struct aq_job *job, const struct aq_model_config *model, uint32_t layer,
                                  struct aq_stage_size *out);

/* plan_cut.c: may stage s make logits of 16 bits (model.logits)? It does where its device is a GPU. */
bool aq_plan_logits_16bit(const struct aq_job *job, uint32_t s);

/* plan_reduce.c: stage->traffic by its config. Of a job without replicas it stays zero. AQ_NOMEM. */
enum aq_status aq_plan_traffic(const struct aq_job *job, struct aq_plan_stage *stage);

/* plan_reduce.c: aq_plan_warmup_bytes of the stage that has most. */
uint64_t aq_plan_warmup_most(const struct aq_plan *plan);

/* plan_reduce.c: costs of a step of the optimizer's warm-up, which sends fp32 gradients (traffic.warmup_steps). */
void aq_plan_costs_warmup(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_costs *out);

/* plan_cut.c: stage->size and stage->traffic by its config. On a device that may be a CPU, logits count as fp32, which
 * are more. */
enum aq_status aq_plan_stage_measure(const struct aq_job *job, uint32_t s, struct aq_plan_stage *stage);

/* plan.c: the shape, sizes and wire bytes of edge e with the cut behind layer layer_end - 1; no windows. */
enum aq_status aq_plan_edge_at(const struct aq_plan *plan, uint32_t e, uint32_t layer_end, struct aq_plan_edge *edge);

/* The same with *edge filled for edge `known`: if this cut has the same shape, as most in a row do, without
 * measuring. */
enum aq_status aq_plan_edge_next(const struct aq_plan *plan, uint32_t known, uint32_t e, uint32_t layer_end,
                                 struct aq_plan_edge *edge);

/*
 * plan_tied.c. check: AQ_INVAL where model.tied cannot be done, with the remedy. print: the bytes of each choice.
 */
enum aq_status aq_plan_tied_check(const struct aq_plan *plan);
enum aq_status aq_plan_tied_print(const struct aq_plan *plan, struct aq_text *text);

/*
 * plan_bound.c: fills compute_s, cores_s, bound_s and binds of a prediction. Its forward_s and backward_s, the seconds
 * of a step that each link carries, are filled already.
 */
void aq_plan_bound(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_prediction *out);

/* plan_layers.c: "block" of "block 3". */
void aq_plan_layer_kind(const struct aq_model_config *model, uint32_t layer, char *text, size_t bytes);

/* plan_layers.c: a table of zeroes except the bytes that cross cuts; memory of aq_alloc. */
enum aq_status aq_plan_layers_open(const struct aq_plan *plan, const char *origin, struct aq_plan_layers **out);

/* plan_cost.c: assumed seconds to stream this many bytes of memory, on one core. */
double aq_plan_stream_s(double bytes);

/* plan_cost.c: seconds of this machine become those of machines with the speeds that the manifest gives them. */
void aq_plan_costs_speed(const struct aq_plan *plan, struct aq_plan_costs *costs);

/* plan_cost.c: costs of a job with `cores` cores per host, all times zero, bodies not packed. */
void aq_plan_costs_common(const struct aq_plan *plan, uint32_t cores, struct aq_plan_costs *out);

/*
 * plan_measure_codec.c: the coding of one micro-batch, timed on a device: the least of several repeats, with the copies
 * between device and host that a GPU's edge makes. before, after: (B, rows, columns) of device memory; the first visit
 * is a keyframe of `before`, the later ones are `after` against what was kept. bodies: those of the second visit, one
 * after the other; the caller frees them.
 */
struct aq_plan_coding {
    struct aq_device *device;
    struct aq_stream *stream;
    const struct aq_codec_config *config;
    uint32_t B, rows, columns;
    const float *before, *after;
    double encode_s, decode_s; /* out */
    uint8_t *bodies;           /* out */
    uint32_t body_bytes;       /* out */
};
enum aq_status aq_plan_time_coding(struct aq_plan_coding *coding);

/* plan_measure_codec.c: what links leave of gradients in a codec, by some pieces of them. */
struct aq_plan_gradients {
    struct aq_device *device;
    struct aq_stream *stream;
    const float *values; /* device memory */
    uint64_t count;
    const struct aq_link_config *link;
    bool local;
};
enum aq_status aq_plan_gradients_share(const struct aq_plan_gradients *gradients,
                                       const struct aq_grad_codec_config *config, double *share);

/* plan_predict.c: a step of these programs and windows, with the plan's frames and these costs. AQ_NOMEM. */
struct aq_plan_scene {
    struct aq_program programs[AQ_JOB_STAGES_MAX];
    struct aq_plan_window windows[AQ_JOB_STAGES_MAX];
};
enum aq_status aq_plan_simulate(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                const struct aq_plan_scene *scene, double *step_s);

/*
 * plan_distance.c: schedule, in_flight and windows, as the manifest sets them; with auto, chosen by distance. Pure
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

/* plan_cost.c: the same, of samples that edges which are still have seen before (costs->cold: have not). */
void aq_plan_costs_cached(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_costs *out);

/* plan_cost.c: does stage s compute on a GPU; on the same one as rank r? */
bool aq_plan_on_gpu(const struct aq_plan *plan, uint32_t s);
bool aq_plan_same_gpu(const struct aq_plan *plan, uint32_t s, uint32_t r);

#endif
