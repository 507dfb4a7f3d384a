/*
 * advice.h -- what is expected of a plan: how long a step takes and why, what would be faster, totals of a run, and all
 * of it printed.
 *
 *     aq_plan_costs_assumed(plan, 100, cores, &costs);          or aq_plan_costs_measured, which takes seconds
 *     AQ_TRY(aq_plan_predict(plan, &costs, &prediction));
 *     AQ_TRY(aq_plan_print(plan, &costs, &prediction, columns, &text));
 *
 * For the launcher and for commands. Nothing here changes a plan, and workers do not link it.
 * Locking: pure functions, except those that measure; any thread.
 */
#ifndef RUNTIME_ADVICE_H
#define RUNTIME_ADVICE_H

#include "plan_costs.h"

/*
 * Fill costs by arithmetic: flops over `gflops` per core, codec bytes over 4 GB/s per core; origin is "assumed". Of
 * cores: nothing is assumed of a GPU, whose stages are 0 s (aq_plan_wants_gpu).
 */
void aq_plan_costs_assumed(const struct aq_plan *plan, double gflops, uint32_t cores, struct aq_plan_costs *out);

/*
 * Fill costs by timing a few calls of each stage on this machine, all stages of a host open at once and in turns, as
 * they will run (advice_measure.c), and by packing what they coded. Seconds to a minute; takes the memory that the run
 * will take. AQ_NODEV: a stage is on a GPU, and this machine has no GPU.
 */
enum aq_status aq_plan_costs_measured(const struct aq_plan *plan, uint32_t cores, struct aq_plan_costs *out);

/*
 * In which codecs reductions may travel: that of the manifest, or where it is to be chosen (reduce.codec: auto) the
 * candidates of grad_choice.h. Answers how many; 0: no codec (lanes, sparse momenta), or no replicas.
 */
uint32_t aq_plan_reduce_candidates(const struct aq_plan *plan, struct aq_grad_candidate out[AQ_GRAD_CANDIDATES_MAX]);

/*
 * How long reductions take by these costs, on links whose rate is given; and where reduce.codec is auto, what each
 * stage will choose by them. For whoever has filled or changed costs.
 */
void aq_plan_costs_reduce(const struct aq_plan *plan, struct aq_plan_costs *costs);

/* Bytes that a worker of stage s sends to the other replicas in a run, of bodies; if the codec is to be chosen, in the
 * one that costs expect. costs may be NULL. */
uint64_t aq_plan_run_bytes(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s);

/* Measured on this machine. AQ_NODEV: a stage is on a GPU, and this machine has no GPU. */
enum aq_status aq_plan_layers_measured(const struct aq_plan *plan, uint32_t cores, struct aq_plan_layers **out);

/* "0-3 | 4-7 | 8-11", and "embedding 1.2 ms, 10 x block 8.4 ms, head 31 ms": a micro-batch there and back at stage 0.
 */
void aq_plan_cut_text(const struct aq_plan *plan, const struct aq_plan_cut *cut, struct aq_text *text);
void aq_plan_layers_text(const struct aq_plan *plan, const struct aq_plan_layers *layers, struct aq_text *text);

/* A plan's cut compared with the best one, both by costs->layers. AQ_NOMEM. */
struct aq_plan_judged {
    bool best;                           /* no cut is faster by a hundredth                       */
    struct aq_plan_cut cut;              /* the best one                                          */
    struct aq_plan_cut_times here, then; /* of the plan's cut and of the best one                 */
    double step_here_s, step_then_s;     /* a step with each, simulated: the links' times in them */
};
enum aq_status aq_plan_judge(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_judged *out);

struct aq_plan_prediction {
    double step_s;  /* by event simulation of the programs                                                     */
    double bound_s; /* the busiest resource: no schedule can be faster                                         */
    char binds[64]; /* which: "link 0-1 forward", "stage 2 compute", "cores of host-a"                         */
    double compute_s[AQ_JOB_STAGES_MAX]; /* busy time of each stage in a step                                 */
    double forward_s[AQ_JOB_STAGES_MAX]; /* busy time of link e forward                                       */
    double backward_s[AQ_JOB_STAGES_MAX];
    double cores_s; /* the busiest host: its stages' core seconds over its cores                                */
};

/* The share of a step in which stage s computes nothing. */
double aq_plan_idle(const struct aq_plan_prediction *prediction, uint32_t s);

/* Event simulation of one step after another (the second is taken: pipelines overlap at their ends). AQ_NOMEM. */
enum aq_status aq_plan_predict(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                               struct aq_plan_prediction *out);

/*
 * Bits that cost no time: each cut's codecs with the most bits with which a step is not longer. By these
 * costs, and the plan's own cuts and links. AQ_NOMEM.
 */
struct aq_plan_slack {
    double before_s, step_s; /* a step as the manifest has it, and with these */
    uint32_t raised;         /* directions of cuts that have more             */
    struct aq_codec_config forward[AQ_JOB_STAGES_MAX], backward[AQ_JOB_STAGES_MAX];
};
enum aq_status aq_plan_slack(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_plan_slack *out);

/* The same by levels of the lists of levels that a run with edges.bits: auto has (edge_guard.h): of edge e forward 2e,
 * backward 2e + 1. The caller waits between two steps, so no prediction starts after AQ_PLAN_LEVELS_NS. hurried: the
 * time was up, and the result has fewer bits, but never a longer step. AQ_NOMEM. */
#define AQ_PLAN_LEVELS_NS UINT64_C(2000000000)
struct aq_plan_levels {
    double before_s, step_s; /* a step with none, and with these */
    uint32_t of[2 * AQ_JOB_STAGES_MAX];
    bool hurried;
};
enum aq_status aq_plan_levels(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                              struct aq_plan_levels *out);

/* "edges.list=[{edge: 0, forward: {bits: 6}}]", as --set takes it: those that have more. */
void aq_plan_slack_text(const struct aq_plan *plan, const struct aq_plan_slack *slack, struct aq_text *text);

enum { AQ_PLAN_HELPS_MAX = 4, AQ_PLAN_HELP_BYTES = 48 };

/* The cost of distance per step, and what would help. */
struct aq_plan_distance {
    double share;      /* of a step that would be saved with all stages on one site: 0 to 1 */
    double loss_share; /* of a step that would be saved without lost packets          */
    uint32_t help_count;
    struct {
        char change[AQ_PLAN_HELP_BYTES]; /* a key and its value: "train.batch 64" */
        double share, step_s;
    } helps[AQ_PLAN_HELPS_MAX];
};

/* By simulations of the plan, of the same without distance, and of its variations. A near plan: all 0. AQ_NOMEM. */
enum aq_status aq_plan_distance(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                struct aq_plan_distance *out);

/* A step by each schedule of schedules.def that this job can have, its other settings as they are: simulated. */
enum { AQ_PLAN_SCHEDULES_MAX = 8 };
struct aq_plan_schedules {
    uint32_t count;
    struct {
        const char *name;
        double step_s;
    } of[AQ_PLAN_SCHEDULES_MAX];
};
enum aq_status aq_plan_schedules(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                 struct aq_plan_schedules *out);

/* Of a whole run. "A machine": that of those which has most. */
struct aq_plan_totals {
    double seconds, compute_seconds; /* by the prediction, of all stages; 0: no prediction       */
    double warmup_step_s;            /* a step of the optimizer's warm-up; of a job without one, any step   */
    uint32_t machines;
    uint64_t sent_bytes;     /* that a machine's stages send, at most; bodies go packed      */
    uint64_t gradient_bytes; /* of them, to other replicas: of all stages and replicas, bodies   */
    uint64_t disk_bytes;     /* of a machine's caches and of the checkpoints that are kept   */
    uint64_t cache_bytes;    /* of the caches of all machines; 0: in memory, or no caches */
    uint64_t data_bytes;     /* of the files of data.train                                   */
};

/* costs and prediction may be NULL, and are NULL together. AQ_NOMEM. */
enum aq_status aq_plan_totals(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                              const struct aq_plan_prediction *prediction, struct aq_plan_totals *out);

/* For people, at most `columns` wide (0: any width), and for programs (one JSON object). costs and prediction may be
 * NULL: then times are left out. */
enum aq_status aq_plan_print(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                             const struct aq_plan_prediction *prediction, unsigned columns, struct aq_text *text);
enum aq_status aq_plan_print_json(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                  const struct aq_plan_prediction *prediction, struct aq_text *text);

#endif
