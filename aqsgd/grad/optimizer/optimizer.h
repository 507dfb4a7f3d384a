/*
 * optimizer.h -- the seam behind aq_optimizer_*: a kind of optimizer is a row of optimizers.def, its file, and the
 * bodies of its kernels in fused_NAME.inc.h, a row of optimizer_fused.def.
 *
 * A kind takes its memory (place), decides whether the mean of the gradients is made first (averages), and does one
 * update in rounds (update): each round after round 0 follows the reduction that the round before has asked for. Common
 * code is in optimizer.c (the table, memory, checks), optimizer_average.c (the mean of gradients, through codecs) and
 * optimizer_flat.c (fused kernels over the flat buffer, in pieces that belong to one tensor each: optimizer_fused.h).
 *
 * If memory is a device's: kernels use device memory; the few floats per tensor that a kind itself reads and writes are
 * in host memory, also state (aq_optimizer_take_few). Kernels are enqueued on the call's stream; one with sums is
 * waited for.
 *
 * Determinism: values that must be equal on all ranks are computed elementwise, in plain C without contraction, or
 * summed in a fixed order, from values that are equal on all ranks.
 *
 * Locking: as grad.h.
 */
#ifndef AQSGD_GRAD_OPTIMIZER_H
#define AQSGD_GRAD_OPTIMIZER_H

#include "aqsgd/device_math.h"
#include "aqsgd/grad.h"
#include "optimizer_fused.h"

enum { AQ_OPTIMIZER_STATES_MAX = 12, AQ_OPTIMIZER_SCRATCH_MAX = 16 };

struct aq_optimizer_array {
    struct aq_optimizer_state_info info;
    enum aq_memory_kind where;
    float *values;
};

/* Memory that no checkpoint sees. */
struct aq_optimizer_scratch {
    bool mapped; /* only of the host; else the device's, of a kind */
    enum aq_memory_kind where;
    void *memory;
    size_t bytes;
};

/* The call under way. */
struct aq_optimizer_call {
    bool averaging, updating, void_step;
    bool updated;         /* the inner update is done: rounds of the outer step follow */
    uint32_t round;       /* that comes next                                            */
    uint32_t outer_round; /* of the outer step                                          */
    bool moved_on;        /* the rank's own weights have taken up an outer step         */
    float *parameters, *gradients;
    const float *update_gradients;
    float lr, grad_scale;
    uint64_t step;
    struct aq_stream *stream;
    struct aq_optimizer_ending ending; /* of the update; gradients NULL: none */
    struct aq_fused before, after;     /* what goes along with the reduction that was asked for */
    bool after_waits;                  /* it does not go along: aq_optimizer_asked does it */
};

struct aq_low_rank; /* optimizer_low_rank.c */

struct aq_optimizer {
    struct aq_device *device; /* borrowed; NULL while measuring */
    const struct aq_optimizer_kind *kind;
    struct aq_optimizer_config config;
    struct aq_optimizer_group group;
    uint64_t parameters;
    struct aq_optimizer_tensor *tensors; /* those that are not empty; names are copies */
    uint32_t tensor_count;
    aq_fused_run *const *runs; /* of kernels in host memory */
    struct aq_flat_piece *pieces;
    uint32_t piece_count;
    double *piece_sums; /* AQ_FLAT_SUMS a piece */
    float *values;      /* AQ_FUSED_VALUES a tensor, for kernels: aq_optimizer_values */
    bool rated;         /* some tensor has a rate of its own                     */
    bool isolated;      /* memory is a device's, which has a copy of the three: */
    struct {
        struct aq_flat_piece *pieces;
        double *sums;
        float *values;
    } there; /* the same as here where memory is the host's */
    struct aq_optimizer_array states[AQ_OPTIMIZER_STATES_MAX];
    uint32_t state_count;
    struct aq_optimizer_scratch scratch[AQ_OPTIMIZER_SCRATCH_MAX];
    uint32_t scratch_count;
    bool measuring;
    uint64_t measured;
    struct aq_grad_codec *codec;        /* of config.reduce, with W > 1 */
    struct aq_grad_codec *fp32;         /* what comes back to a codec that is one-sided; else NULL */
    float *worker_error, *server_error; /* of config.reduce, where they are kept */
    float *choice; /* the candidate's number + 1, where the codec is chosen under way (grad_choice.c); 0: none yet */
    struct aq_low_rank *low_rank; /* PowerSGD, with W > 1 */
    struct {
        float *weights, *momentum; /* NULL: no local steps; no momentum */
        float *end, *moving;       /* outer_delay: own weights at the round's end; movements; NULL: no delay */
        float *travel;             /* what moves of a device's memory, in the host's, where it is averaged */
        float *pending;            /* then: 1 from a round's end until `end` has been used, else 0 */
        bool travels;              /* the outer step of that round has not been taken */
    } outer;                       /* optimizer_outer.c */
    float *kept;                   /* a gradient or movement, then the errors; NULL: not config.retries */
    float *weights;                /* optimizer_versions.c: `predict`'s; NULL: they are the parameters */
    struct {
        double *sums; /* by tensor */
        float *below; /* by tensor */
        bool dropped; /* the frozen variance has no noise left in it */
    } noise;          /* aq_optimizer_noise_drop; NULL: the kind freezes no variance */
    bool gauged;      /* gauge holds the whole model's number for the next update */
    double gauge;
    struct aq_optimizer_figure figures[AQ_OPTIMIZER_FIGURES_MAX]; /* of the last update: aq_optimizer_figure_set */
    uint32_t figure_count;
    void *own;       /* the kind's, from scratch memory */
    uint64_t missed; /* aq_optimizer_missed */
    struct aq_optimizer_call call;
};

/* What an optimizer of this configuration is opened with, in a group of W. */
struct aq_optimizer_sent {
    const struct aq_optimizer_config *config;
    const struct aq_optimizer_tensor *tensors;
    uint32_t tensor_count, W;
    uint64_t parameters;
};

struct aq_optimizer_kind {
    const char *name;
    /* config.reduce is for the mean of the gradients (optimizer_average.c); else the kind's own affair. */
    bool averages_gradients;
    bool machines;    /* keeps no error of a codec that would belong to one replica: aq_optimizer_config_machines */
    bool unpublished; /* aq_optimizer_config_unpublished */
    bool ends;        /* update does what the call's `ending` asks for */
    void (*config_default)(struct aq_optimizer_config *out); /* out is zero except its kind */
    enum aq_status (*config_check)(const struct aq_optimizer_config *config);
    /* aq_optimizer_config_takes. NULL: any codec; but gradients need sizes, and momenta are of no low rank. */
    const char *(*takes)(const struct aq_optimizer_config *config);
    /* aq_optimizer_config_codes. NULL: it does. */
    bool (*codes)(const struct aq_optimizer_config *config);
    /* Changes what differs from all parameters in the codec of `reduce` in each step. NULL: nothing does. */
    void (*traffic)(const struct aq_optimizer_sent *sent, struct aq_optimizer_traffic *out);
    /* aq_optimizer_config_drifts. NULL: never. */
    bool (*drifts)(const struct aq_optimizer_config *config, uint64_t step);
    /* Takes arrays and scratch. Called twice, first to measure: every pointer is NULL then. */
    enum aq_status (*place)(struct aq_optimizer *optimizer);
    /* Kinds that do not always average: does this step? NULL: as averages_gradients. In fp32 where it is theirs. */
    bool (*averages)(const struct aq_optimizer *optimizer, uint64_t step);
    /* Kinds whose decisions need a number of the whole model: aq_optimizer_gauges, aq_optimizer_gauge. NULL: none. */
    bool (*gauges)(const struct aq_optimizer *optimizer);
    enum aq_status (*gauge)(struct aq_optimizer *optimizer, double *sum);
    /* out is zero (AQ_REDUCE_NONE) at entry. */
    enum aq_status (*update)(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out);
    /* The work of this step that does not depend on its gradient, in rounds as update's: the end of update, and all
     * of a void step. NULL: nothing. */
    enum aq_status (*due)(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out);
    /* The share of a pending error in tensor t that its first state array takes up (aq_optimizer_absorb); NULL: none.
     */
    float (*absorbs)(const struct aq_optimizer *optimizer, uint32_t t);
};

/* The row of config->kind; NULL: there is none. */
const struct aq_optimizer_kind *aq_optimizer_kind_of(const struct aq_optimizer_config *config);

/* traffic of kinds that send fp32 gradients for warmup_steps, and then what `reduce` codes. */
void aq_optimizer_traffic_warmup(const struct aq_optimizer_sent *sent, struct aq_optimizer_traffic *out);

/* absorbs of kinds that average gradients with an exponential mean, and of those that send their momentum. */
float aq_optimizer_absorbs_gradient(const struct aq_optimizer *optimizer, uint32_t t);
float aq_optimizer_absorbs_momentum(const struct aq_optimizer *optimizer, uint32_t t);

/* AQ_INVAL, naming the field, unless least <= value < below. */
enum aq_status aq_optimizer_check_range(const char *field, float value, float least, float below);
/* beta1, beta2, epsilon of Adam's family. */
enum aq_status aq_optimizer_check_adam(const struct aq_optimizer_config *config);

/* A kind states a figure of this update. */
void aq_optimizer_figure_set(struct aq_optimizer *optimizer, const char *name, double value);

/* ---- for place: NULL in *out while measuring ---- */

/* The next state array, zero. count 0 takes only a row. */
enum aq_status aq_optimizer_take(struct aq_optimizer *optimizer, const char *name, uint64_t count,
                                 enum aq_state_class belongs, float **out);
/* The same of a few floats that the kind itself reads and writes: host memory everywhere. */
enum aq_status aq_optimizer_take_few(struct aq_optimizer *optimizer, const char *name, uint64_t count,
                                     enum aq_state_class belongs, float **out);
/* Memory that no checkpoint sees, zero: the host's; what kernels touch; and what the device copies from and to. */
enum aq_status aq_optimizer_scratch(struct aq_optimizer *optimizer, size_t bytes, void **out);
enum aq_status aq_optimizer_scratch_device(struct aq_optimizer *optimizer, size_t bytes, void **out);
enum aq_status aq_optimizer_scratch_pinned(struct aq_optimizer *optimizer, size_t bytes, void **out);
/* The two errors of config.reduce, where it is lossy, they are wanted and W > 1. */
enum aq_status aq_optimizer_take_errors(struct aq_optimizer *optimizer);

/* Asks for the mean of x, the whole buffer, through config.reduce. */
void aq_optimizer_ask(struct aq_optimizer *optimizer, float *x, struct aq_reduce *out);
/*
 * The same, with kernels over x before and after it (AQ_FUSED_NONE: none), without sums: along with the reduction where
 * it goes through a codec, so that they are done in the cache and while other pieces travel; else, and where it may be
 * made again, before it is asked for, and in the next round, which starts with aq_optimizer_asked.
 */
enum aq_status aq_optimizer_ask_along(struct aq_optimizer *optimizer, float *x, const struct aq_fused *before,
                                      const struct aq_fused *after, struct aq_reduce *out);
enum aq_status aq_optimizer_asked(struct aq_optimizer *optimizer);

/* ---- grad_choice.c ---- */
enum aq_status aq_optimizer_choice_place(struct aq_optimizer *optimizer);

/* ---- optimizer_average.c ---- */
enum aq_status aq_optimizer_average_place(struct aq_optimizer *optimizer);
enum aq_status aq_optimizer_average_round(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out);

/* ---- optimizer_outer.c: local steps, with W > 1 ---- */
bool aq_optimizer_is_local(const struct aq_optimizer *optimizer);
enum aq_status aq_optimizer_outer_check(const struct aq_optimizer_config *config, bool averages_gradients);
enum aq_status aq_optimizer_outer_place(struct aq_optimizer *optimizer);
enum aq_status aq_optimizer_kept_place(struct aq_optimizer *optimizer); /* the errors have their place */
/* After the update of a step, whatever its gradient; does nothing unless a round ends, or its delayed step is due. */
enum aq_status aq_optimizer_outer_round(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out);
/* All versions are the parameters: none is pending. */
enum aq_status aq_optimizer_outer_begin(struct aq_optimizer *optimizer, const float *parameters,
                                        struct aq_stream *stream);

/* ---- optimizer_versions.c: weights that are not the parameters; only with `predict` ---- */
enum aq_status aq_optimizer_predict_place(struct aq_optimizer *optimizer);
/* At the start of an update: the parameters become the weights. */
enum aq_status aq_optimizer_predict_leave(struct aq_optimizer *optimizer);
/* At its end: the weights are kept, the parameters are set ahead of them. */
enum aq_status aq_optimizer_predict(struct aq_optimizer *optimizer);

/* ---- optimizer_flat.c ---- */
enum aq_status aq_optimizer_cut(struct aq_optimizer *optimizer); /* makes the pieces */
/* A kernel over all pieces with what all have: the call's arrays and numbers, the two betas, epsilon, the errors. */
struct aq_fused aq_optimizer_fused_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind);
/* All of its pieces, from the first; afterwards piece_sums are made, where it has any. */
enum aq_status aq_optimizer_fused(struct aq_optimizer *optimizer, const struct aq_fused *kernel);
/*
 * Number `which` of every tensor's values for the kernels to come, 1 to AQ_FUSED_VALUES - 1 (0 is its decay): of[t]. If
 * it changes any, it waits for kernels that may still read the last ones.
 */
enum aq_status aq_optimizer_values(struct aq_optimizer *optimizer, uint32_t which, const float *of);
/* sums[t] = sum `which` of tensor t's pieces, added up in order; the largest of them. */
void aq_optimizer_fold(const struct aq_optimizer *optimizer, uint32_t which, double *sums);
void aq_optimizer_fold_max(const struct aq_optimizer *optimizer, uint32_t which, double *sums);
static inline double *aq_optimizer_sums(struct aq_optimizer *optimizer, uint32_t index)
{
    return optimizer->piece_sums + (size_t)AQ_FLAT_SUMS * index;
}
/* 1 / (1 - beta^step), in double and rounded once; and 1 where config.bias_correction is off. */
float aq_optimizer_corrected(float beta, uint64_t step);
float aq_optimizer_correct(const struct aq_optimizer *optimizer, float beta, uint64_t step);
/* The decay of a tensor. */
static inline float aq_optimizer_decay(const struct aq_optimizer *optimizer, uint32_t t)
{
    return optimizer->tensors[t].decay ? optimizer->config.weight_decay : 0.0f;
}

/*
 * ---- optimizer_momentum.c: what qadam, onebit_adam and onebit_lamb share ----
 * Memory for noise_drop: called by place.
 */
enum aq_status aq_optimizer_noise_place(struct aq_optimizer *optimizer);
/*
 * Sets a frozen variance to zero where its root is below AQ_NOISE_SHARE of the root mean square of its tensor (the mean
 * is of v, over the whole tensor): kernels do not update such parameters. Kinds call it in each step whose v is frozen,
 * before its kernels; it works in the first of them after open and after noise_again. v is the same on all ranks, and
 * the sums have a fixed order, so all ranks drop the same. Dropping twice changes nothing: the mean can only fall.
 * AQ_CUDAERR.
 *
 * Why: the true gradient of a key bias is zero (softmax does not change when all scores of a row rise alike), so its v
 * is the square of rounding errors. One bit per value gives such a parameter the momentum of its neighbours; divided by
 * the root of the parameter's v that is up to 1e6 learning rates in each step. The papers have no rule; DeepSpeed has
 * masks that users write. Adam itself is not hurt, since its momentum is rounding noise, too.
 */
#define AQ_NOISE_SHARE 1e-6
enum aq_status aq_optimizer_noise_drop(struct aq_optimizer *optimizer, float *v);
/* The variance moves again: a step before it is frozen. */
void aq_optimizer_noise_again(struct aq_optimizer *optimizer);
/*
 * A number of steps kept as two floats of state, each exact: when v was frozen (0: not yet), updates made.
 */
uint64_t aq_optimizer_step_read(const float frozen[2]);
void aq_optimizer_step_write(float frozen[2], uint64_t step);
/* A kernel of m and v, whose zeros are masked. */
struct aq_fused aq_optimizer_fused_moments(const struct aq_optimizer *optimizer, enum aq_fused_kind kind, float *m,
                                           float *v);
/* *sum += ||v||_1, the same on every rank; tensor by tensor from the last to the first, as aq_optimizer_gauge
 * requires. */
enum aq_status aq_optimizer_norm1(struct aq_optimizer *optimizer, float *v, double *sum);
/* The whole model's number for this update: that of aq_optimizer_gauged, else this optimizer's own. */
enum aq_status aq_optimizer_gauge_taken(struct aq_optimizer *optimizer, double *out);

#define AQ_OPTIMIZER(name) extern const struct aq_optimizer_kind aq_optimizer_##name;
#include "aqsgd/optimizers.def"

#endif
