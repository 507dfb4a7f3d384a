/*
 * plan_costs.h -- what a step is simulated by: seconds of each thing, and of each layer; the step, simulated; the cut
 * that is best by them.
 *
 * A plan makes its own choices by these (how many micro-batches are in flight, the automatic cut), with costs that
 * follow from the manifest alone. advice.h fills costs by arithmetic or by measurements.
 *
 * Locking: pure functions; any thread.
 */
#ifndef RUNTIME_PLAN_COSTS_H
#define RUNTIME_PLAN_COSTS_H

#include "plan.h"
#include "schedule.h"

#define AQ_PLAN_STREAM_BYTES_S                                                                                         \
    4e9                    /* sustained, a core; what codecs and optimizers, which stream memory, were seen to do */
#define AQ_PLAN_ALIKE 1.02 /* steps whose times differ by less are alike */
enum {
    AQ_PLAN_SIMULATED_MOST = 256
}; /* micro-batches of a step that choices are made by: more no link has on its way */

/* How bytes become bytes on the wire. */
enum {
    AQ_WIRE_HEADER_BYTES = 128,    /* of a frame: docs/FRAME.md                                              */
    AQ_WIRE_PACKET_BYTES = 66,     /* Ethernet 14, IP 20, TCP with time stamps 32                             */
    AQ_WIRE_SEGMENT_BYTES = 1448,  /* of payload in an Ethernet packet of 1500                                */
    AQ_WIRE_LOOPBACK_BYTES = 65483 /* The same on the loopback device                                         */
};

/* Bytes on the wire of a frame with a body of body_bytes. loopback: both ends are on this machine. */
uint64_t aq_wire_bytes(uint64_t body_bytes, bool loopback);

/* Do the ends of edge e share a machine's loopback device, by the manifest? */
bool aq_plan_edge_loopback(const struct aq_job *job, uint32_t edge);

/* The shape, sizes and wire bytes of edge e with the cut behind layer layer_end - 1; no windows. */
enum aq_status aq_plan_edge_at(const struct aq_plan *plan, uint32_t e, uint32_t layer_end, struct aq_plan_edge *edge);

/* The same with *edge filled for edge `known`: if this cut has the same shape, as most in a row do, without
 * measuring. */
enum aq_status aq_plan_edge_next(const struct aq_plan *plan, uint32_t known, uint32_t e, uint32_t layer_end,
                                 struct aq_plan_edge *edge);

/* Flops of a single layer, and its sizes: with slots 1, as this job trains it. */
enum aq_status aq_plan_layer_size(const struct aq_job *job, const struct aq_model_config *model, uint32_t layer,
                                  struct aq_stage_size *out);

/* Seconds of one thing on this job's machines: measured, or assumed. Arrays have stage_count entries. */
struct aq_plan_layers;
struct aq_plan_costs {
    const struct aq_plan_layers *layers; /* the basis to judge cuts; borrowed. NULL: cuts are not judged       */
    const char *origin; /* "measured", "given", "assumed 100 GFLOP/s a core": printed                           */
    double forward_s[AQ_JOB_STAGES_MAX];      /* of one micro-batch, at the stage's threads, with no other load     */
    double backward_s[AQ_JOB_STAGES_MAX];     /* where the schedule splits it: its input half                      */
    double weights_s[AQ_JOB_STAGES_MAX];      /* and its weight half; else 0                                       */
    double send_s[AQ_JOB_STAGES_MAX];         /* edge e: encode forward of one micro-batch, at stage e              */
    double receive_s[AQ_JOB_STAGES_MAX];      /* edge e: decode forward, at stage e+1                               */
    double send_back_s[AQ_JOB_STAGES_MAX];    /* edge e: encode backward, at stage e+1                          */
    double receive_back_s[AQ_JOB_STAGES_MAX]; /* edge e: decode backward, at stage e                            */
    double step_s[AQ_JOB_STAGES_MAX];         /* the optimizer                                                      */
    double reduce_s[AQ_JOB_STAGES_MAX];       /* averaging with the other replicas: what their links take           */
    double pack_s[AQ_JOB_STAGES_MAX];         /* and computing it, in addition; reduce.delay: by one thread         */
    bool reduce_in_step;                      /* the optimizer sends no gradients: its update meets the others      */
    double value_s[AQ_GRAD_CANDIDATES_MAX];   /* of a reduction's computing, one value: aq_plan_reduce_candidates   */
    uint32_t choice[AQ_JOB_STAGES_MAX];       /* what it is expected to choose (grad_choice.h), or AQ_CHOICE_NONE   */
    /*
     * The share of a body's bytes that is left after packing (link.entropy); 1: not packed. Of edge e forward and
     * backward, and of the replicas' reductions with each candidate. packed: the shares were measured on a sample, or
     * no body is packed; else times and bytes are without packing.
     */
    double forward_share[AQ_JOB_STAGES_MAX], backward_share[AQ_JOB_STAGES_MAX], value_share[AQ_GRAD_CANDIDATES_MAX];
    bool packed;
    double latency_s[AQ_JOB_STAGES_MAX]; /* of edge e's link, one way: half a round trip                       */
    double loss[AQ_JOB_STAGES_MAX];      /* of edge e's packets, each way                                      */
    double group_latency_s;              /* The same between replicas                                          */
    double rate_mbps;                    /* 0: links take no time                                              */
    double edge_mbps[AQ_JOB_STAGES_MAX]; /* what edge e's link was seen to carry, losses and all; 0: rate_mbps */
    double cache_mbps;                   /* 10^6 byte/s of the store, read and write together; 0: no limit     */
    uint32_t threads[AQ_JOB_STAGES_MAX]; /* that each worker runs with                                         */
    uint32_t cores;                      /* of each host                                                       */
    bool cold;                           /* first epoch: keyframes                                             */
};

/* The time of a backward of stage s; if the schedule splits it, by the flops of its halves. */
void aq_plan_costs_backward(const struct aq_plan *plan, uint32_t s, double seconds, struct aq_plan_costs *costs);

/* Assumed seconds to stream this many bytes of memory, on one core. */
double aq_plan_stream_s(double bytes);

/* Seconds of this machine become those of machines with the speeds that the manifest gives them. */
void aq_plan_costs_speed(const struct aq_plan *plan, struct aq_plan_costs *costs);

/* Costs of a job with `cores` cores per host, all times zero, bodies not packed. */
void aq_plan_costs_common(const struct aq_plan *plan, uint32_t cores, struct aq_plan_costs *out);

/* The same, of samples that edges which are still have seen before (costs->cold: have not). */
void aq_plan_costs_cached(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_costs *out);

/* Do links 0 and 1 share a line? Those of a split job's client do, which has both ends of the network: forward of link
 * 0 and backward of link 1 go up its line, the others down. */
bool aq_plan_line_shared(const struct aq_plan *plan);

/* What packing and summing take of a stage's own computing. With reduce.delay one thread of the host does that, during
 * the stage's work: a CPU stage loses that thread's share of its cores. */
double aq_plan_packing_s(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s);

/* Does stage s compute on a GPU; on the same one as rank r? */
bool aq_plan_on_gpu(const struct aq_plan *plan, uint32_t s);
bool aq_plan_same_gpu(const struct aq_plan *plan, uint32_t s, uint32_t r);

/*
 * The time of each layer at each stage (its threads, its device), and the time of a cut before the layer. Seconds of
 * this machine: a stage's speed is not in them.
 */
struct aq_plan_layer_cost {
    double forward_s, backward_s; /* of one micro-batch; both halves of backward                                 */
    double step_s;                /* its part of the optimizer's step                                            */
    /* Decoding and encoding of a micro-batch, if the stage starts with this layer, and if it ends before it. */
    double begins_s, ends_s;
    /* Of a micro-batch on the wire to the next stage and back, if the stage ends before this layer. */
    double forward_bytes, backward_bytes;
};
struct aq_plan_layers {
    const char *origin; /* "flops and bytes", "layers measured here" */
    char device[128];   /* measured: of the last stage        */
    char file[4096];    /* measured: where times are kept; "": nowhere */
    uint32_t measured;  /* kinds of layers that were timed now; 0: all were known */
    uint32_t stages, layers;
    struct aq_plan_layer_cost *of; /* layer l at stage s: [s * (layers + 1) + l]; l == layers: nothing behind */
};

/* By flops and bytes, of one core a stage: a pure function of the manifest. AQ_NOMEM. */
enum aq_status aq_plan_layers_assumed(const struct aq_plan *plan, struct aq_plan_layers **out);
void aq_plan_layers_close(struct aq_plan_layers *layers); /* NULL is fine */

/* Converts assumed layers, of one core and 100 GFLOP/s, to the threads that costs have for each stage and to gflops per
 * core: as aq_plan_costs_assumed computes stages. Bytes stay. */
void aq_plan_layers_as(struct aq_plan_layers *layers, const struct aq_plan_costs *costs, double gflops);

/* "block" of "block 3". */
void aq_plan_layer_kind(const struct aq_model_config *model, uint32_t layer, char *text, size_t bytes);

/* A table of zeroes except the bytes that cross cuts; memory of aq_alloc. */
enum aq_status aq_plan_layers_open(const struct aq_plan *plan, const char *origin, struct aq_plan_layers **out);

/* Does an automatic cut have to respect speeds or memory limits, so that even flops are not enough? */
bool aq_plan_cut_uneven(const struct aq_job *job);

/* Of a step, by such a table: the busy time of each stage, and of the link behind it, the busier of its directions. */
struct aq_plan_cut_times {
    double stage_s[AQ_JOB_STAGES_MAX], link_s[AQ_JOB_STAGES_MAX];
    double slowest_s; /* the largest of both */
};                    /* aq_plan_cut_times: AQ_NOMEM */
enum aq_status aq_plan_cut_times(const struct aq_plan *plan, const struct aq_plan_layers *layers,
                                 const struct aq_plan_cut *cut, struct aq_plan_cut_times *out);

/*
 * The cut whose slowest stage or link is as fast as can be, with each stage within its worker's memory; of those, the
 * one with the least sum of squares of the stages' times, which shares out evenly what is left; of those, the one that
 * ends its stages first. AQ_INVAL: none fits the memory; names the stage that comes nearest. AQ_NOMEM.
 */
enum aq_status aq_plan_balance(const struct aq_plan *plan, const struct aq_plan_layers *layers,
                               struct aq_plan_cut *out);

/* A step of these programs and windows, with the plan's frames and these costs. AQ_NOMEM. */
struct aq_plan_scene {
    struct aq_program programs[AQ_JOB_STAGES_MAX];
    struct aq_plan_window windows[AQ_JOB_STAGES_MAX];
};
struct aq_plan_simulated {
    double step_s;
    double forward_s[AQ_JOB_STAGES_MAX]; /* of a step, that link e carries forward */
    double backward_s[AQ_JOB_STAGES_MAX];
};
enum aq_status aq_plan_simulate(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                const struct aq_plan_scene *scene, struct aq_plan_simulated *out);

/*
 * What plan_flight.c chooses by. request: of this plan. of: the schedule and the count in flight that distance asks
 * for, of a step of so many micro-batches; automatic: as if the manifest set no window. seconds: of a step, simulated.
 */
struct aq_schedule_request aq_plan_flight_request(const struct aq_plan *plan, uint32_t micro_batches,
                                                  enum aq_schedule_kind kind, uint32_t in_flight);
enum aq_status aq_plan_flight_of(const struct aq_plan *plan, uint32_t micro_batches, enum aq_schedule_kind kind,
                                 uint32_t in_flight, bool automatic, struct aq_schedule_request *out);
enum aq_status aq_plan_flight_seconds(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                      const struct aq_schedule_request *request, bool automatic, double *seconds);

#endif
