/*
 * grad.h -- optimizers over one flat buffer, for one process or W replicas that reduce together.
 *
 * An optimizer is a row of optimizers.def and one file. It opens no socket and makes no callback: if it needs the other
 * replicas it asks for a reduction, which its caller performs (net/collective.h) before it calls again:
 *
 *     aq_optimizer_average(opt, gradients, step, stream);                // kinds that average gradients; else no round
 *     while (aq_optimizer_round(opt, &reduce), reduce.kind != AQ_REDUCE_NONE) perform(&reduce);
 *     ... the norm of `gradients`, clipping ...
 *     aq_optimizer_begin(opt, parameters, gradients, lr, grad_scale, step, stream);
 *     while (aq_optimizer_round(opt, &reduce), reduce.kind != AQ_REDUCE_NONE) perform(&reduce);
 *
 * Caveats first.
 * - average and aq_optimizer_begin only note their arguments: nothing is changed before the next round. A step may be
 *   dropped by calling neither. Begin no update with a gradient that is not finite (all replicas skip the step alike).
 * - With W = 1 no round asks for anything and nothing is quantized; aq_optimizer_step does it all.
 * - average leaves in `gradients` what all replicas agree on, bit for bit. Kinds that send momenta instead (qadam,
 *   onebit_adam, onebit_lamb after their warm-up, lioncub, slamb) leave `gradients` to each replica, and a norm taken
 *   of them differs among replicas: see aq_optimizer_averages.
 * - After the last round of an update all replicas hold the same parameters bit for bit, on any processors, if they did
 *   so before; slamb only after steps that are multiples of sync_every. (PowerSGD's products are a device's: with them
 *   the processors must run the same variant of its kernels.)
 * - Every rank calls the same sequence with the same lr and step. grad_scale may differ where gradients do.
 *
 * State is named arrays of floats that a checkpoint saves as they are, each with a class of ownership among ranks;
 * aq_grad_reshard makes the arrays of W' ranks from those of W. Nothing else needs saving.
 *
 * Locking: one thread.
 */
#ifndef AQSGD_GRAD_H
#define AQSGD_GRAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "aqsgd/device_math.h"
#include "aqsgd/grad_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rank `rank` of `size` replicas that reduce together. */
struct aq_optimizer_group {
    uint32_t rank, size;
};

struct aq_optimizer_config {
    const char *kind; /* a row of optimizers.def                                                               */
    float beta1, beta2, epsilon;
    float weight_decay; /* decoupled: p -= lr * weight_decay * p, where the tensor decays                       */
    float momentum;     /* sgd                                                                                  */
    /*
     * How what is reduced travels: the gradients' mean (adamw, sgd, lamb, lion) or the momentum (qadam, onebit_adam,
     * onebit_lamb; lioncub: "vote" or "lp" in lanes; slamb: the values of its masks, in fp32, fp16 or bf16). fp32 asks
     * for AQ_REDUCE_MEAN; kind NULL means it.
     */
    struct aq_grad_codec_config reduce;
    bool reduce_automatic; /* the codec is chosen under way (aq_optimizer_choose); `reduce` then names the coarsest  */
    bool error_feedback;   /* with a lossy codec: keep what was lost and add it next time                          */
    uint32_t low_rank;     /* PowerSGD for the gradients' mean, with `reduce` fp32; 0: none                        */
    uint64_t low_rank_start; /* steps before it, in fp32                                                         */
    uint64_t seed;           /* masks (slamb), the first factors (PowerSGD): equal on all ranks                      */

    /*
     * Local steps (kinds that average gradients; W > 1): every rank does this many steps on its own, then the ranks'
     * movements are averaged, through `reduce`, for an outer step (optimizer_outer.c). 0: none.
     */
    uint32_t outer_every;
    float outer_lr, outer_momentum; /* 0 <= momentum < 1, Nesterov's */
    uint32_t outer_delay; /* < outer_every: steps of the next round that a rank trains while movements travel */
    bool retries;         /* a mean of gradients or movements may be made more than once: aq_optimizer_keep */
    bool predict;         /* the parameters lie a step ahead of the weights: optimizer_versions.c */

    /* qadam, onebit_adam, onebit_lamb */
    uint64_t warmup_steps; /* uncompressed steps at the beginning, after which v is frozen; the least number if  */
    float freeze_ratio;    /* onebit_*: > 0: v is frozen only once its norm's ratio over 1 / (1 - beta2) steps is */
                           /* at least this (1-bit Adam: 0.96); 0: at warmup_steps                               */
    bool bias_correction;  /* onebit_adam, lamb, slamb; qadam always does, onebit_lamb never                     */

    /* lamb, onebit_lamb, slamb */
    float beta3;                                 /* mean of the coefficients; slamb: staleness                        */
    float coefficient_min, coefficient_max;      /* clips ||x|| / ||u||                                               */
    float ratio_min, ratio_max, ratio_threshold; /* onebit_lamb: clips r                                         */
    const char *form;                            /* onebit_lamb: "paper", "printed", "analysis", "sqrt";
                         slamb: "appendix", "paper", "algorithm", "code";
                         lamb: "ratio" or NULL, "norm", "printed"                                                */

    /* slamb */
    float density;          /* k: the share of a momentum that is sent                                          */
    uint64_t density_steps; /* in so many first steps k falls from 1, by the same factor per step; 0: it does not */
    uint32_t sync_every;    /* H: steps between two averages of the parameters                                    */
    uint64_t total_steps;   /* the last step averages too; 0: unknown                                             */
    uint64_t dense_below;   /* tensors of fewer floats are sent whole (published code: 9000; paper: 0)            */
    bool sync_gradient;     /* Algorithm 1, line 9                                                                */

    /* lioncub */
    uint32_t lane_bits;         /* 0: votes of 1 bit (reduce is "vote"); 2, 4, 8, 16: sums in lanes              */
    uint32_t momentum_every;    /* steps between two averages of the momentum of `momentum_names`; 0: never      */
    const char *momentum_names; /* tensors whose name has one of these, separated by commas; "*": all            */
    const char *mask_names;     /* the same: rows without an update from any replica only decay                  */
    uint32_t measure_every;     /* steps between two measures of sign_match and momentum_spread; 0: none         */
};
void aq_optimizer_config_default(struct aq_optimizer_config *out, const char *kind);
enum aq_status aq_optimizer_config_check(const struct aq_optimizer_config *config); /* AQ_INVAL names the field */
/* Does it average gradients, before its update? Other kinds send what they make of them, in it. */
bool aq_optimizer_config_averages(const struct aq_optimizer_config *config);
/* NULL: `reduce` and low_rank fit the kind; else what the kind takes in their place, in a manifest's words. */
const char *aq_optimizer_config_takes(const struct aq_optimizer_config *config);
/*
 * What a rank gives to the reductions of its group in a run, in bytes as they are coded. A reduction sends each of
 * these bytes 2 (W - 1) / W times. With local steps the bytes are those of a round, not of a step.
 *
 *     bytes of n steps = warm * warmup_bytes + (falling + falling^2 + ... + falling^warm) * falling_bytes
 *                        + (n - warm) * step_bytes + k * every_bytes + n / measure_every * measure_bytes
 *     warm = min(n, warmup_steps),  k = n / every  (+ 1 with `last`, if `every` does not divide n)
 */
struct aq_optimizer_traffic {
    uint64_t warmup_steps; /* first steps, before anything is compressed                                         */
    bool warmup_least;     /* the optimizer ends them by what it sees: there are at least so many                */
    double falling;        /* 0 to 1: in them falling_bytes are sent, too, which shrink by this with each step;
                              0: nothing falls                                                                   */
    bool last;             /* every_bytes are also sent in the last step                                         */
    bool coded;            /* step_bytes are of all parameters, in the codec of `reduce`                         */
    uint64_t warmup_bytes, falling_bytes, step_bytes; /* per step                                                */
    uint64_t every, every_bytes;           /* in addition, in each step that `every` divides; 0: in none             */
    uint64_t measure_every, measure_bytes; /* the same, of figures                                               */
};
/* tensors as aq_optimizer_open_group takes them. AQ_INVAL: `reduce` is invalid. AQ_NOMEM. */
enum aq_status aq_optimizer_config_traffic(const struct aq_optimizer_config *config,
                                           const struct aq_optimizer_tensor *tensors, uint32_t tensor_count,
                                           uint64_t parameters, uint32_t W, struct aq_optimizer_traffic *out);
/* The bytes of the formula above, of a run of so many steps; and only those of its warm-up. */
uint64_t aq_optimizer_traffic_bytes(const struct aq_optimizer_traffic *traffic, uint64_t steps);
uint64_t aq_optimizer_traffic_warm(const struct aq_optimizer_traffic *traffic, uint64_t steps);
/* Does a codec carry what it sends after any warm-up? No: sums in lanes, and a momentum's masked part. */
bool aq_optimizer_config_codes(const struct aq_optimizer_config *config);
/* Does it go local steps, where there is more than one rank; if so, does an outer step end this one? */
bool aq_optimizer_config_local(const struct aq_optimizer_config *config);
bool aq_optimizer_config_meets(const struct aq_optimizer_config *config, uint64_t step);
/* Are replicas' parameters apart after this step, unless it is the last? */
bool aq_optimizer_config_drifts(const struct aq_optimizer_config *config, uint64_t step);
/* May the replicas of a machine average first, and be one rank? (reduce.machine_first) */
bool aq_optimizer_config_machines(const struct aq_optimizer_config *config);
/* Are its defaults the common ones, not ones published with it? Then a manifest's own hold. */
bool aq_optimizer_config_unpublished(const struct aq_optimizer_config *config);
/*
 * Does it work where memory is a device's? AQ_NODEV with the reason (unlogged, into `why`, where that is not NULL): its
 * reduction has no kernels there.
 */
enum { AQ_OPTIMIZER_WHY_BYTES = 256 };
enum aq_status aq_optimizer_config_check_device(const struct aq_optimizer_config *config, char *why);
/* The kinds, in the order of the table; NULL behind the last. */
const char *aq_optimizer_kind_name(uint32_t index);

struct aq_optimizer; /* opaque: config, tensors, state */

/* parameters: floats of the flat buffer. The state is zero. group NULL: one rank. AQ_NODEV: as check_device. */
enum aq_status aq_optimizer_open(struct aq_device *device, const struct aq_optimizer_config *config,
                                 const struct aq_optimizer_tensor *tensors, uint32_t tensor_count, uint64_t parameters,
                                 struct aq_optimizer **out);
enum aq_status aq_optimizer_open_group(struct aq_device *device, const struct aq_optimizer_config *config,
                                       const struct aq_optimizer_tensor *tensors, uint32_t tensor_count,
                                       uint64_t parameters, const struct aq_optimizer_group *group,
                                       struct aq_optimizer **out);
void aq_optimizer_close(struct aq_optimizer *optimizer); /* NULL is fine */

/* Floats of state a parameter with W = 1 (2 for adamw). */
uint32_t aq_optimizer_state_floats(const struct aq_optimizer_config *config);
/* Bytes that open_group takes in all: state, errors, scratch; what plan prints. 0 for a config that check refuses. */
uint64_t aq_optimizer_measure(const struct aq_optimizer_config *config, const struct aq_optimizer_tensor *tensors,
                              uint32_t tensor_count, uint64_t parameters, const struct aq_optimizer_group *group);

/*
 * With reduce_automatic and W > 1: from now on reductions travel in the candidate of this number (grad_choice.h); all
 * ranks choose alike, between two steps. It is state, which a checkpoint keeps: after a load choose again what was
 * chosen. Until then everything travels in fp32. AQ_INVAL: nothing to choose, or no such candidate. AQ_NOMEM.
 */
#define AQ_CHOICE_NONE UINT32_MAX
enum aq_status aq_optimizer_choose(struct aq_optimizer *optimizer, uint32_t index);
/* The number that the state holds, or AQ_CHOICE_NONE. AQ_CORRUPT: the state has no number that aq_optimizer_choose
 * writes. */
enum aq_status aq_optimizer_chosen(struct aq_optimizer *optimizer, uint32_t *index);

/* How an array of state belongs to the ranks of a group. */
enum aq_state_class {
    AQ_STATE_REPLICATED = 0,   /* the same on every rank, bit for bit: save one                                   */
    AQ_STATE_LOCAL = 1,        /* each rank's own; another W starts from the mean                                  */
    AQ_STATE_WORKER_ERROR = 2, /* each rank's own; another W keeps the mean                                        */
    AQ_STATE_SERVER_ERROR = 3  /* of the rank's chunk (aq_grad_chunk): together one buffer, cut again for another W */
};

/* The state, for checkpoints: arrays of floats, memory that aq_device_copy reaches, borrowed. */
struct aq_optimizer_state_info {
    const char *name; /* "m", "v", "worker_error" ...                                                            */
    uint64_t count;   /* floats; `parameters` for many, not for all                                              */
    uint64_t of;      /* floats of the whole over all ranks: `parameters` for a server error, else count         */
    enum aq_state_class belongs;
};
uint32_t aq_optimizer_state_count(const struct aq_optimizer *optimizer);
float *aq_optimizer_state(struct aq_optimizer *optimizer, uint32_t index);
const char *aq_optimizer_state_name(const struct aq_optimizer *optimizer, uint32_t index);
void aq_optimizer_state_info(const struct aq_optimizer *optimizer, uint32_t index, struct aq_optimizer_state_info *out);

/*
 * The array of one name that rank `rank` of a group of `size` starts with, from those of the `old_size` ranks of a run
 * before; old[w] is rank w's. `of` is the array's (aq_optimizer_state_info), and the same in both runs; `out` has that
 * many floats, or of a server error those of the rank's chunk. Pure; the same group size gives the same bits back.
 *
 *     replicated     rank 0's
 *     local          the mean of all
 *     worker error   the mean of all, which is what the next mean over the group takes up; rank 0's holds what rounding
 *                    would lose of it
 *     server error   the buffer of the chunks, cut again: not a bit is lost
 *
 * AQ_INVAL: sizes of 0, a rank beyond its group. With size 1 errors have no place: see aq_grad_pending.
 */
enum aq_status aq_grad_reshard(enum aq_state_class belongs, uint64_t of, uint32_t old_size, const float *const *old,
                               uint32_t size, uint32_t rank, float *out);

/*
 * The residuals of old_size ranks: out = mean of the worker errors + the server errors; either may be NULL. A run with
 * one rank takes it over by aq_optimizer_absorb after its state is loaded: it is added to the first moment, as a
 * gradient or momentum of that size would be. AQ_INVAL where a kind has nothing that takes it up.
 */
enum aq_status aq_grad_pending(uint64_t of, uint32_t old_size, const float *const *worker, const float *const *server,
                               float *out);
enum aq_status aq_optimizer_absorb(struct aq_optimizer *optimizer, const float *pending);
/*
 * With local steps the residuals are of weights' movements: a run with one rank subtracts pending, times this, from its
 * parameters, as the next outer step would have done. 0: no local steps, aq_optimizer_absorb is for it.
 */
float aq_optimizer_config_pending(const struct aq_optimizer_config *config);

/* ---- rounds ---- */

enum aq_reduce_kind {
    AQ_REDUCE_NONE = 0,       /* nothing more: the call that began this is done                                   */
    AQ_REDUCE_MEAN = 1,       /* x[0..count) = mean over the ranks, fp32: the sum in some fixed order times 1 / W */
    AQ_REDUCE_COMPRESSED = 2, /* the same through codecs and errors (net/collective.h, aq_compressed_allreduce)   */
    AQ_REDUCE_LANES = 3,      /* lanes = their sum over the ranks (aq_grad_codec.h)                                */
    AQ_REDUCE_WAIT = 4        /* until the request that had `later` is done                                       */
};

/*
 * The request. Everything is borrowed until the next call of round. x and errors: memory of the device; the work that
 * computes them may still be pending on the stream given to average or aq_optimizer_begin.
 */
struct aq_reduce {
    enum aq_reduce_kind kind;
    float *x;
    uint64_t count;
    const struct aq_grad_codec *worker, *server; /* COMPRESSED: both for the buffer of `count` floats             */
    float *worker_error; /* count floats, or NULL                                                                 */
    float *server_error; /* of this rank's chunk, or NULL                                                         */
    bool later;          /* MEAN, COMPRESSED: it may go on after the next call of round, until AQ_REDUCE_WAIT or
                            aq_optimizer_settle; x, errors and codecs are lent until then, and in host memory     */
    uint64_t step;       /* for aq_grad_encode                                                                    */
    void *lanes;         /* LANES: aq_lanes_bytes(count, lane_bits) bytes                                         */
    uint32_t lane_bits;
    /*
     * COMPRESSED: callbacks that the performer of the reduction calls for each range of x: `before` makes x of the
     * range (after which the optimizer does not look at that range of the gradients any more), `after` uses what it has
     * become, and may change it and its errors. Ranges are disjoint and together all of x, on any thread of the
     * optimizer's device; where memory is a device's they are enqueued, on the stream given to average or
     * aq_optimizer_begin. AQ_CUDAERR. NULL: nothing to do.
     */
    enum aq_status (*before)(void *work, uint64_t first, uint64_t count);
    enum aq_status (*after)(void *work, uint64_t first, uint64_t count);
    void *work;
};

/*
 * retries: a rank of the group may be lost in a reduction of gradients (aq_optimizer_average) or movements, which the
 * others then make again. Such a request has neither `before` nor `after`. keep: what the reduction changes, x and the
 * errors of the codec; put_back: all of it again, as it was. Both only enqueue; with outer_delay they are done at once,
 * and put_back may also be called between two updates, until the mean is taken. AQ_CUDAERR. ask_again: the same request
 * in the codec as it is now, where one is chosen (aq_optimizer_choose) between the request and its reduction, before
 * the next call of round. Not with low_rank, whose mean takes two requests.
 */
enum aq_status aq_optimizer_keep(struct aq_optimizer *optimizer);
enum aq_status aq_optimizer_put_back(struct aq_optimizer *optimizer);
void aq_optimizer_ask_again(struct aq_optimizer *optimizer, struct aq_reduce *out);

/* The codec of what is averaged, as it is now; NULL: fp32. Borrowed until close, or another is chosen. */
const struct aq_grad_codec *aq_optimizer_codec(const struct aq_optimizer *optimizer);

/* Does average ask for anything at this step, so that gradients are the same on all ranks afterwards? */
bool aq_optimizer_averages(const struct aq_optimizer *optimizer, uint64_t step);

/*
 * A number of the whole model that the next update decides by (1-bit Adam: ||v||_1), where this optimizer has only a
 * part of the model. gauges: is one needed now? The same on all parts. gauge: *sum += this part's share, tensor by
 * tensor from the last to the first, so that parts added from the last to the first have the bits of the whole. gauged:
 * the total, only for the next update. Without it the update decides by its own part. AQ_CUDAERR.
 */
bool aq_optimizer_gauges(const struct aq_optimizer *optimizer);
enum aq_status aq_optimizer_gauge(struct aq_optimizer *optimizer, double *sum);
void aq_optimizer_gauged(struct aq_optimizer *optimizer, double total);

/*
 * Figures of the last update that the papers choose settings by, of this optimizer's own tensors. *count of them; a
 * figure is there only after a step that has it. Written to out, of at least AQ_OPTIMIZER_FIGURES_MAX.
 *
 *     lamb_c           mean over tensors of the trust ratio: lamb's c_t; onebit_lamb's, then its r_t c_avg
 *     lamb_r           onebit_lamb after its warm-up: mean over tensors of r_t
 *     adam_v_ratio     onebit_adam: the smaller over the larger of ||v||_1 now and 1 / (1 - beta2) updates ago, of the
 *                      whole model: what freeze_ratio is compared with
 *     sign_match       lioncub: the share of values whose own update has the sign of the common one
 *     momentum_spread  lioncub: root of the mean variance of the momenta over ranks, by their root mean square
 *
 * The last two are of AQ_OPTIMIZER_SAMPLE values of each tensor, in each measure_every-th step.
 */
enum { AQ_OPTIMIZER_FIGURES_MAX = 2, AQ_OPTIMIZER_SAMPLE = 256 };
struct aq_optimizer_figure {
    const char *name;
    double value;
};
void aq_optimizer_figures(const struct aq_optimizer *optimizer, struct aq_optimizer_figure *out, uint32_t *count);

/* Begins the averaging of `gradients` (in place) over the group. step counts from 1. AQ_INVAL: step 0. */
enum aq_status aq_optimizer_average(struct aq_optimizer *optimizer, float *gradients, uint64_t step,
                                    struct aq_stream *stream);
/*
 * Begins one update. step counts from 1 (bias correction). Gradients are multiplied by grad_scale first (clipping);
 * they are not cleared. lr: this step's. AQ_INVAL: step 0, numbers that are not finite.
 */
enum aq_status aq_optimizer_begin(struct aq_optimizer *optimizer, float *parameters, const float *gradients, float lr,
                                  float grad_scale, uint64_t step, struct aq_stream *stream);
/*
 * Work on every parameter after its update, in the same pass: its gradient becomes 0, its copy in 16 bits is rounded
 * again. gradients: those given to aq_optimizer_begin. rounded: NULL, or a copy of `type`, AQ_BF16 or AQ_F16. Values
 * outside all tensors stay as they are. Call it after aq_optimizer_begin, before the first round; false: this optimizer
 * does not do it, nothing has changed, and the caller does it after the rounds.
 */
struct aq_optimizer_ending {
    float *gradients;
    uint16_t *rounded;
    enum aq_element type;
};
bool aq_optimizer_ends(struct aq_optimizer *optimizer, const struct aq_optimizer_ending *ending);
/*
 * Begins a void step, one whose gradient is not finite (on all ranks alike): nothing is updated, but what is due at
 * that step whatever its gradient (slamb's mean of the parameters, lioncub's of momenta) is asked for in its rounds.
 */
enum aq_status aq_optimizer_begin_void(struct aq_optimizer *optimizer, float *parameters, uint64_t step,
                                       struct aq_stream *stream);
/*
 * So many of the steps before this one had no update on this rank (local steps, of which each rank may do a number of
 * its own): bias corrections count without them. Until the next call; < the next step. adamw and lamb.
 */
void aq_optimizer_missed(struct aq_optimizer *optimizer, uint64_t steps);
/* Goes on after what was asked for has been done; *out is the next. AQ_REDUCE_NONE where nothing was begun. */
enum aq_status aq_optimizer_round(struct aq_optimizer *optimizer, struct aq_reduce *out);

/*
 * Other versions of the parameters are state arrays. Local steps train a rank's own, and the outer ones are the same on
 * all ranks since the last outer step. With `predict` gradients are of the parameters, which are ahead of the weights
 * by the last update, and updates are of the weights. versions_begin: all versions are these, before the first step of
 * a run. show: the parameters become the weights (of local steps the outer ones), for evaluation and checkpoints;
 * AQ_PREDICT_STATE then has the ones ahead, AQ_OUTER_STATE the rank's own. hide: back, bit for bit. The versions are
 * the same at the end of a round of local steps. reshard: as hide, with the state of another number of ranks
 * (aq_grad_reshard) and weights that all have; as versions_begin, where that state was each rank's own. Enqueued on the
 * stream; nothing is done where there is one version. AQ_CUDAERR.
 */
#define AQ_OUTER_STATE   "local_steps"
#define AQ_DELAY_STATE   "local_end"
#define AQ_PREDICT_STATE "predicted"
enum aq_status aq_optimizer_versions_begin(struct aq_optimizer *optimizer, const float *parameters,
                                           struct aq_stream *stream);
enum aq_status aq_optimizer_show(struct aq_optimizer *optimizer, float *parameters, struct aq_stream *stream);
enum aq_status aq_optimizer_hide(struct aq_optimizer *optimizer, float *parameters, struct aq_stream *stream);
enum aq_status aq_optimizer_versions_reshard(struct aq_optimizer *optimizer, float *parameters,
                                             struct aq_stream *stream);

/*
 * outer_delay. travels: has a reduction been asked for as `later`, and the outer step has not been taken? Then, before
 * show and before the state is saved, the caller waits for it and calls settle, which takes the outer step: the outer
 * weights become the new ones, and AQ_DELAY_STATE has what the rank had at the end of the round. The rank's own weights
 * follow outer_delay steps after that end, in an update, so that the time of settle changes no bit. Between two
 * updates. AQ_CUDAERR.
 */
bool aq_optimizer_travels(const struct aq_optimizer *optimizer);
enum aq_status aq_optimizer_settle(struct aq_optimizer *optimizer, struct aq_stream *stream);

/* aq_optimizer_begin and its rounds, where no other rank is needed: AQ_INVAL with W > 1 where a round asks for
 * something. */
enum aq_status aq_optimizer_step(struct aq_optimizer *optimizer, float *parameters, const float *gradients, float lr,
                                 float grad_scale, uint64_t step, struct aq_stream *stream);

/*
 * Linear warm-up: peak * step / warmup, peak at step `warmup`. Then least + (peak - least) * left, where left is 1 at
 * step warmup + 1, n steps are done since then and N = total - warmup are there in all:
 *
 *     constant      1
 *     linear        1 - n / N                    so that no step of 1..total is wasted on a rate of 0;
 *     cosine        half a cosine over n / N     beyond `total` left is 0
 *     polynomial    (1 - n / N)^power
 *     step          rate^(n / every), the quotient rounded down
 *     exponential   rate^(n / every)
 *
 * Those are the rows of a table in learning_rate.c. step counts from 1. Pure.
 */
enum aq_lr_decay {
    AQ_DECAY_CONSTANT = 1,
    AQ_DECAY_LINEAR = 2,
    AQ_DECAY_COSINE = 3,
    AQ_DECAY_POLYNOMIAL = 4,
    AQ_DECAY_STEP = 5,
    AQ_DECAY_EXPONENTIAL = 6
};
struct aq_lr_schedule {
    enum aq_lr_decay decay;
    float peak, least;
    float from;                    /* above 0: the warm-up is exponential, from it to the peak; 0: linear from 0 */
    uint64_t warmup, total, every; /* steps; every: at least 1 where the decay paces        */
    float rate, power;             /* 0 < rate <= 1, power > 0; of the decays that use them */
};
float aq_learning_rate(const struct aq_lr_schedule *schedule, uint64_t step);
bool aq_lr_decay_paces(enum aq_lr_decay decay); /* by every and rate */

#ifdef __cplusplus
}
#endif
#endif
