/*
 * job.h -- the typed job: the values of a manifest, every value checked, every default filled in.
 *
 * A manifest is YAML text. Its keys are in one table, keys.def: name, type, unit, range, default and help; the reader,
 * the checks, --help and docs/MANIFEST.md all come from it. Reading a manifest opens only one other file, config.json
 * of a folder in model.weights: counts of samples, the vocabulary of a tokenizer and the automatic cut belong to the
 * plan (plan.h).
 *
 *     struct aq_job *job;
 *     AQ_TRY(aq_job_load("job.yaml", sets, set_count, &job));     // sets: "train.batch=16", ...
 *     ... job->train.batch ...
 *     aq_job_close(job);
 *
 * Caveats first.
 * - Errors name the place, "job.yaml:12:7: train.batch: 33 is not a multiple of train.micro_batch (4); ...", and up to
 * ten are reported in one go; the first is aq_error_text().
 * - A job is immutable once it is open; all its texts and arrays live until aq_job_close.
 * - Paths are made absolute: those of the manifest are relative to its folder, those of sets to the current folder.
 * - model.config.kind points into the job: a copy of the struct does not outlive it.
 *
 * Locking: a job is read-only after open; any thread.
 */
#ifndef RUNTIME_JOB_H
#define RUNTIME_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/codec.h"
#include "aqsgd/grad.h"
#include "lr_ends.h"
#include "net/link.h"
#include "stages/augment.h"
#include "stages/dataset.h"
#include "stages/stage.h"

enum {
    AQ_JOB_STAGES_MAX = 128,         /* stages of a pipeline: every loop over stages is bounded by it           */
    AQ_JOB_CLIENTS_MAX = 256,        /* of split learning: a folder, a connection and a certificate each        */
    AQ_JOB_TURNS_MAX = 64,           /* of them at once: three processes each at the server                     */
    AQ_JOB_RANKS_MAX = 1024,         /* stages x replicas: every loop over workers                              */
    AQ_JOB_MICRO_BATCHES_MAX = 4096, /* micro-batches of a step: programs are arrays                        */
    AQ_JOB_PATHS_MAX = 256,          /* files of a data set                                                    */
    AQ_JOB_ERRORS_MAX = 10           /* errors reported of one manifest                                        */
};

/* Ids are written into no file; the order is the same as in schedules.def. */
enum aq_schedule_kind {
    AQ_SCHEDULE_AUTO = 0, /* the plan's choice by distance (plan.h, aq_plan.schedule) */
    AQ_SCHEDULE_GPIPE = 1,
    AQ_SCHEDULE_1F1B = 2,
    AQ_SCHEDULE_ZB = 3
};

/* pipeline.cut: by what the plan shares layers out where the manifest does not (plan.h, aq_plan_balance). */
enum aq_cut_kind { AQ_CUT_FLOPS = 0, AQ_CUT_MEASURED = 1 };

/* pipeline.in_flight: a count of micro-batches, or one of these. */
#define AQ_IN_FLIGHT_DEFAULT 0u               /* the schedule's own: gpipe M; 1f1b min(M, 2(P-1-s)+1), links hidden */
#define AQ_IN_FLIGHT_CLASSIC UINT32_MAX       /* 1f1b as published: min(M, P-s)                                    */
#define AQ_IN_FLIGHT_AUTO    (UINT32_MAX - 1) /* the plan's choice by distance (plan.h, aq_plan.in_flight)  */

/* cache.window: a count of micro-batches, or: */
#define AQ_WINDOW_AUTO UINT32_MAX /* the plan's choice by distance (plan.h, aq_plan.ahead) */

/* "2 epochs", "100 steps", or 0: never (only at the end); checkpoint.every also "30min". */
struct aq_job_every {
    uint64_t count;
    uint64_t ns; /* above 0: a time in place of a count, which is 0 */
    bool epochs; /* count is of epochs, else of steps */
};

/* In steps; 0: never, or after a time. */
uint64_t aq_job_every_steps(const struct aq_job_every *every, uint64_t steps_per_epoch);

/* Of logits that leave the head's product on a GPU. */
enum aq_job_logits {
    AQ_LOGITS_AUTO = 0, /* 16 bits with fp16, else fp32; docs/DECISIONS.md 0594 */
    AQ_LOGITS_FP32 = 1,
    AQ_LOGITS_16BIT = 2 /* the precision's */
};

struct aq_job_model {
    const char *task; /* of tasks.def; NULL: the model's own                                              */
    struct aq_model_config config; /* vocabulary 0: the tokenizer's; the resolved one is in the plan      */
    enum aq_stage_precision precision;
    enum aq_stage_precision residual; /* of the residual stream: FP32 or BF16                              */
    enum aq_job_logits logits;
    bool recompute;
    const char *weights; /* file or folder to start from, NULL: initial weights from train.seed            */
};

struct aq_job_data {
    const char *kind;           /* a row of datasets.def: "text"                                           */
    const char *tokenizer;      /* a row of tokenizers.def                                                 */
    const char *tokenizer_path; /* folder, or NULL                                                         */
    const char *cache;          /* folder of kept tokens, or NULL                                          */
    const char *const *train;   /* text files in order                                                     */
    uint32_t train_count;
    const char *const *heldout; /* may be none                                                             */
    uint32_t heldout_count;
    uint64_t train_samples_max;   /* 0: all                                                                */
    uint64_t heldout_samples_max; /* 0: all                                                                */
    uint64_t skip;                /* blocks to leave out at the start of train                             */
    enum aq_begin bos;            /* the tokens before a text or a prompt                                  */
    struct aq_job_columns {
        const char *text, *pair, *label; /* of tables: names, or numbers from 1 on; NULL: none            */
    } columns;
    const char *chat;           /* folder with a chat template, or NULL                                             */
    const char *chat_variables; /* of the template, a JSON object; or NULL                                  */
    const char *fields;         /* names of fields, a JSON object; or NULL                                          */
    uint64_t skip_invalid;      /* bad lines that are skipped                                                    */
    bool quotes;                /* a .tsv has quotes                                                                */
    bool pack;                  /* conversations into samples                                                       */
    bool pack_mask;             /* of which they are the parts: none sees another                                   */
    const char *labels;         /* their names, with commas; NULL: numbers from 0 on                              */
    struct aq_augment augment;  /* of training images                                                       */
    struct aq_dataset_image image; /* side: the model's */
};

/* The reaction to a stage whose gradient stays 0. */
enum aq_idle_stage { AQ_IDLE_ERROR = 0, AQ_IDLE_WARN = 1, AQ_IDLE_IGNORE = 2 };

struct aq_job_train {
    uint32_t T;           /* tokens of a sample                                                            */
    uint32_t batch;       /* samples of a step, of all replicas: a multiple of micro_batch x replicas      */
    uint32_t micro_batch; /* B                                                                             */
    uint32_t epochs;
    uint64_t steps_max; /* stop after this many steps; 0: epochs decide                                    */
    struct aq_optimizer_config optimizer;
    float lr;
    uint64_t warmup_steps;
    float warmup_from; /* above 0: the warm-up is exponential and begins there */
    enum aq_lr_decay decay;
    struct aq_job_every decay_every;
    const char *schedule;      /* what followed on earlier ends; NULL: the run has had none */
    struct aq_lr_ends lr_ends; /* the same, read */
    float decay_rate, decay_power, lr_min;
    float loss_scale;           /* of fp16: a fixed one; 0: searched for (loss_scale.h)                    */
    uint32_t loss_scale_window; /* good steps until it doubles                                             */
    float clip;         /* global norm; 0: none                                                                    */
    uint32_t staleness; /* updates that a step's gradients do not know of: 0 or 1 (program/program.h)          */
    bool prediction;    /* with staleness: gradients at the weights foreseen (aqsgd/grad.h, optimizer.predict) */
    int idle_stage;     /* enum aq_idle_stage: what follows where a stage trains nothing                  */
    uint32_t skips_max; /* steps in a row without a finite gradient: then the run ends                      */
    uint64_t seed;
    bool frozen_prefix;      /* edges behind layers that do not train send a sample's activation once           */
    const char *freeze;      /* names of what is not trained (stages/stage.h); NULL: all is                      */
    const char *lr_patterns; /* rates of single layers and tensors (stages/stage.h); NULL: all have lr      */
    enum aq_frozen_store frozen_store; /* of frozen weights of linear layers                                */
    struct aq_lora_config lora;
    const char *lora_weights; /* PEFT's folder with the initial adapters; NULL: new ones                    */
    bool shuffle;
    struct aq_job_every evaluate_every;
    uint64_t time_ns_max; /* of a launch: then it stops with a checkpoint; 0: no limit */
    uint32_t early_stop;  /* evaluations that are no better than the best, in a row: then the run ends; 0: never */
};

/* One worker: a stage of one replica. The replicas of a stage differ only in where and how they run. */
struct aq_job_stage {
    uint32_t layer_first, layer_end; /* [first, end); both 0 with an automatic cut                         */
    float speed;                     /* of computing, against the machine that plans                       */
    uint64_t memory;                 /* most that its worker may take; 0: no limit                         */
    const char *host;                /* name or control address of its daemon; NULL: this machine          */
    const char *device;              /* "cpu", "cuda", "auto"                                              */
    uint32_t device_index;
    uint32_t threads;    /* of its worker, at least 1; 0: see pipeline.threads                             */
    const char *address; /* host:port its worker listens on; NULL: link.host and port_first                */
    bool dials;          /* its worker never listens and connects to both neighbours                       */
};

/* The transport of bytes between GPUs: of reductions, and of an edge's bodies. */
enum aq_transport_kind {
    AQ_TRANSPORT_AUTO = 0,
    AQ_TRANSPORT_LINKS = 1,
    AQ_TRANSPORT_NCCL = 2,
    AQ_TRANSPORT_IPC = 3 /* of edges */
};

/* How many steps of a round of local steps a replica trains (launcher_steps.c). */
enum aq_job_steps { AQ_STEPS_EQUAL = 0, AQ_STEPS_SPEED };

/* How what replicas average travels, as it was written; resolved in train.optimizer. */
struct aq_job_reduce {
    const char *codec;   /* NULL: what the optimizer was published with                                   */
    const char *grid;    /* of q2..q8; NULL: rise at 2 bits, tread above                                  */
    const char *scale;   /* of sign; NULL: the optimizer's                                                */
    uint32_t bucket;     /* values that share a scale; 0: the codec's own                                 */
    bool machine_first;  /* the replicas of a host average first, and one of them with other hosts        */
    float norm;          /* of lp2..lp8: p; 0: L0                                                         */
    uint32_t rank;       /* of powersgd                                                                   */
    uint64_t start_step; /* powersgd: fp32 until then                                                     */
    float density;       /* of topk, topk_fp32, randomk                                                   */
    uint32_t every;      /* steps that replicas go each on its own between two meetings; 1: they meet each step */
    float outer_lr, outer_momentum; /* of the step that they take then                                    */
    uint32_t delay;                 /* steps of a round during which the average of the one before travels */
    uint64_t patience_ns;           /* how much later than the first a replica may end a round; 0: any time         */
    enum aq_job_steps steps;
    enum aq_transport_kind transport;
};

struct aq_job_pipeline {
    enum aq_schedule_kind schedule;
    bool flush;           /* gpipe: no backward before the last forward (program/program.h)                   */
    bool automatic;       /* the plan chooses the cut: no stage sets its layers                            */
    bool listed;          /* stages are a list of entries, else a count                                    */
    enum aq_cut_kind cut; /* by what the plan cuts                                                         */
    uint32_t stage_count; /* P                                                                             */
    uint32_t replicas;    /* W: copies of the pipeline that average their gradients                        */
    const struct aq_job_stage *stages; /* P x W, by rank: rank = replica x P + stage                       */
    uint32_t in_flight; /* count, AQ_IN_FLIGHT_DEFAULT, _CLASSIC or _AUTO                                */
    uint32_t threads;   /* default for a stage's worker; 0: the cores shared evenly                      */
};

/* Edge e joins stage e and e+1. Both ends agree, checked. */
/* AUTO is resolved when a manifest is read: ON where it names none of the precisions of that codec. */
enum aq_edge_bf16 { AQ_BF16_AUTO = 0, AQ_BF16_ON = 1, AQ_BF16_OFF = 2 };

struct aq_job_edge {
    struct aq_codec_config forward;
    struct aq_codec_config backward;
    float rtt_ms; /* of its link; 0: near                                                                */
    float loss;   /* part of its packets that is lost                                                    */
    int forward_bf16, backward_bf16; /* enum aq_edge_bf16: samples that fp16 cannot hold are kept and sent in bf16 */
};

enum aq_link_protocol { AQ_PROTOCOL_TCP = 0, AQ_PROTOCOL_QUIC = 1 };

struct aq_job_link {
    enum aq_link_protocol protocol;
    double rate_mbps; /* 10^6 bit/s each way; 0: as fast as it goes                                    */
    float rtt_ms;     /* round trip of an edge that does not set it; 0: near                             */
    float loss;       /* part of the packets that is lost, the same                                      */
    enum aq_link_entropy entropy;
    enum aq_link_copies copies;
    uint32_t streams;                 /* connections of each link; 0: chosen                                      */
    const char *congestion;           /* of sockets: the kernel's name, or "auto"                                 */
    enum aq_transport_kind transport; /* of bodies, between GPUs                                                  */
    const char *host;       /* where workers listen that have no own address                                 */
    const char *relay;      /* host:port where two ends meet that both dial; NULL: none                      */
    uint32_t port_first;    /* stage s listens on port_first + s; 0: the system chooses                      */
    uint32_t send_frames;   /* frames that may be on their way at once; 0: the plan's choice                 */
    uint32_t receive_slots; /* the same                                                                      */
    uint64_t silence_ns_max;
    uint64_t outage_ns_max; /* a lost connection is made again within this; 0: it ends the link            */
    uint64_t connect_ns_max;
};

struct aq_job_security {
    const char *tls;  /* "auto", "on", "off": see security.h                                               */
    const char *keys; /* folder that aqpipe keys init made; NULL: none                                     */
};

/* The source of weights at the start of a turn, and the weights averaged at a round's end (docs/SPLIT.md). */
enum aq_split_mode { AQ_SPLIT_RELAY = 0, AQ_SPLIT_FED1, AQ_SPLIT_FED2, AQ_SPLIT_GLOBAL };

/* The owner of batch norms' running statistics. */
enum aq_split_statistics { AQ_SPLIT_AVERAGED = 0, AQ_SPLIT_LOCAL, AQ_SPLIT_GROUP };

/*
 * The owner of the labels, and with them of the last stage. A last stage at the server reads a data set with only
 * labels (stages/labels.h).
 */
enum aq_split_labels { AQ_SPLIT_LABELS_CLIENT = 0, AQ_SPLIT_LABELS_SERVER };

/* Limits of the data that leaves a client at the cuts (docs/PRIVACY.md); a noise is a multiple of its clip; 0: off. */
struct aq_job_privacy {
    float clip, noise;                   /* of activations at the first cut, a sample at a time            */
    float gradient_clip, gradient_noise; /* of gradients at the second one                                 */
    float distance_correlation;          /* times that of inputs and activations is added to the loss; 0: not */
    float epsilon_max, delta;            /* a client stops before it passes this epsilon; 0: no limit          */
    const char *ledger;                  /* folder of its ledgers of visits; NULL: in its user's state folder  */
};

/* Split learning: the first and the last stage are a client's, what is between them the server's (docs/SPLIT.md). */
struct aq_job_split {
    uint32_t clients; /* that the first round waits for; 0: the job is no split one                       */
    const char *server;
    uint32_t rounds, epochs;
    uint64_t wait_ns;
    uint64_t samples_max; /* of one client                                                                  */
    float share_max;      /* global: of all samples, those of one of several clients                        */
    enum aq_split_mode mode;
    enum aq_split_statistics statistics;
    enum aq_split_labels labels;
    uint32_t parallel;          /* turns at once                                                          */
    float participation;        /* of the clients, in each round                                          */
    uint64_t round_deadline_ns; /* 0: none                                                                */
    bool collect;
    const char *client; /* of a turn: the site whose stages are the first and the last; NULL: none        */
    struct aq_job_privacy privacy;
    uint64_t cache_ttl_ns; /* 0: the server's caches stay                                                   */
    uint64_t cache_max;    /* bytes of all the server's caches; 0: no limit                                 */
    bool seal;             /* the server's caches are encrypted under keys that clients keep                */
    bool pad;              /* padding crosses the cuts: the server does not know the lengths of samples             */
    uint64_t capture;      /* bytes of a turn that the server's stage may write of what it sees; 0: nothing         */
};

struct aq_job_control {
    uint64_t silence_ns_max; /* 0: never                                                                    */
    uint64_t stall_ns_max;
};

struct aq_job_cache {
    const char *kind; /* "lmdb" or "memory"                                                                */
    const char *path; /* folder; each stage takes a folder below it. NULL: "cache" in output.path          */
    uint32_t slots;   /* 0: what the window needs                                                          */
    uint32_t depth;
    uint64_t bytes_max; /* of one stage; 0: no limit                                                       */
    bool direct;
    uint32_t window; /* micro-batches read ahead, or AQ_WINDOW_AUTO                                        */
};

struct aq_job_checkpoint {
    struct aq_job_every every; /* count 0: only at a stop and at the end                                   */
    uint32_t keep;
    const char *path;       /* NULL: "checkpoint" in output.path                                                */
    bool mirror;            /* copies at a neighbour                                                            */
    const char *best;       /* figure of the evaluation whose checkpoint is kept: "loss", or a metric; NULL: none */
    const char *mirror_key; /* file of the key that seals them; NULL: they lie there in the clear         */
};

struct aq_job_output {
    const char *path;      /* folder of the run, made if absent                                                 */
    bool metrics;          /* metrics.jsonl: one line a step                                                    */
    bool trace;            /* trace.json                                                                        */
    bool report;           /* report.json                                                                       */
    const char *report_to; /* trackers, as written (aq_trackers_read); NULL: none                             */
};

enum aq_tracker { AQ_TRACKER_TENSORBOARD, AQ_TRACKER_WANDB, AQ_TRACKER_MLFLOW, AQ_TRACKERS };

struct aq_job_status {                                /* of the launcher alone */
    const char *listen;                               /* host:port of the page; NULL: none     */
    const char *token_file;                           /* NULL: none                            */
    const char *certificate, *key, *client_authority; /* PEM files; NULL: none */
};

/*
 * The launcher's knowledge of the job's files, so that a worker need not read them again: part of the manifest that
 * aq_plan_manifest writes. samples 0: unknown; the plan opens the files itself. A worker that reads the data (first and
 * last stage) compares aq_dataset_digest with these.
 */
struct aq_job_facts {
    uint32_t vocabulary;
    uint64_t train_samples, train_digest;
    uint64_t heldout_samples, heldout_digest;
    uint64_t weights_digest; /* 0: no weights file */
    uint32_t labels;         /* that samples as a whole can have; 0: they have none               */
    uint32_t places;         /* of a sample, with the tokens before its text; 0: train.T          */
    uint32_t ends[2];        /* tokens that ended answers, each and 1; 0: none                    */
    uint64_t lengths_digest; /* of how long samples are, training and then held-out; 0: all alike */
    uint32_t lengths_mean;   /* of the training samples, rounded up                               */
    uint64_t parts;          /* of all samples; their lengths are in the digest; 0: no parts */
    /* split.mode: global: the training samples of all clients, and the count before this client's first; 0: not
     * known yet, and the plan has only this client's samples. */
    uint64_t all_samples, first_sample;
    /* Both values in this client's first round: its checkpoints belong to them. began_samples 0: the same as now. */
    uint64_t began_samples, began_first;
};

struct aq_job {
    const char *name;
    const char *source; /* file of the manifest as it was named, for messages                              */
    const char *folder; /* absolute: paths are relative to it                                              */
    struct aq_job_model model;
    struct aq_job_data data;
    struct aq_job_train train;
    struct aq_job_reduce reduce;
    struct aq_job_pipeline pipeline;
    const struct aq_job_edge *edges; /* stage_count - 1 of them                                            */
    uint32_t warmup_epochs;          /* of edges: uncompressed                                                      */
    bool guard;                      /* of edges: more bits where a cut's loop does not contract                    */
    int check;                       /* of edges: what is compared, enum aq_edge_check_mode                         */
    int bits_auto;                   /* 1: of edges: more bits where a link has room within the step                */
    struct aq_job_link link;
    struct aq_job_security security;
    struct aq_job_split split;
    struct aq_job_control control;
    struct aq_job_cache cache;
    struct aq_job_checkpoint checkpoint;
    struct aq_job_output output;
    struct aq_job_status status;
    struct aq_job_facts facts;
};

/* Names of trackers with commas or blanks between them, as a bit for each enum aq_tracker; "none" and NULL: 0.
 * AQ_INVAL (not logged): another word, whose first `bytes` go to `wrong`. */
enum aq_status aq_trackers_read(const char *text, uint32_t *wanted, char *wrong, size_t bytes);

/*
 * Read the manifest at path, override it with sets ("key=value", dotted keys, the value is YAML: "data.train=[a, b]",
 * "pipeline.stages.1.threads=2"), check it. AQ_NOTFOUND, AQ_IO: the file. AQ_INVAL: up to AQ_JOB_ERRORS_MAX lines, each
 * with its place and remedy. AQ_NOMEM.
 */
enum aq_status aq_job_load(const char *path, const char *const *sets, uint32_t set_count, struct aq_job **out);

/* The same from text; `source` names it in messages, its paths are relative to `folder` (absolute). Any bytes are
 * safe. */
enum aq_status aq_job_parse(const char *text, size_t bytes, const char *source, const char *folder,
                            const char *const *sets, uint32_t set_count, struct aq_job **out);

void aq_job_close(struct aq_job *job); /* NULL is fine */

/*
 * YAML that parses to the same job, every value written out, paths absolute; no comments. Memory of aq_alloc: the
 * caller frees *text with aq_free. For workers, use aq_plan_manifest (it adds the facts). AQ_NOMEM.
 */
enum aq_status aq_job_canonical(const struct aq_job *job, char **text);

/*
 * The place that set a key: "job.yaml:12:7", "--set train.batch", or "default" ("the default of train.batch" reads well
 * in a sentence). For errors that are found later than the parse: aq_fail(status, "manifest", "%s: data.train: ...",
 * place).
 */
void aq_job_place(const struct aq_job *job, const char *key, char *text, size_t bytes);

/* Workers of the job: P x W. Rank r is stage r % P of replica r / P. */
uint32_t aq_job_ranks(const struct aq_job *job);

/* Threads of a rank's worker: its own, else pipeline.threads, else `cores` shared evenly by the workers of its host,
 * 256 at most. */
uint32_t aq_job_threads(const struct aq_job *job, uint32_t rank, uint32_t cores);

/* The speed of stage s: that of the slowest of its replicas, for which the others wait. */
double aq_job_speed(const struct aq_job *job, uint32_t s);

/* The least memory that a worker of stage s may take; 0: no limit. */
uint64_t aq_job_memory(const struct aq_job *job, uint32_t s);

/* Are rank a and b on the same host? */
bool aq_job_same_host(const struct aq_job *job, uint32_t a, uint32_t b);

/* Are rank a and b on different machines? Daemons at this machine's own addresses are on one machine. */
bool aq_job_apart(const struct aq_job *job, uint32_t a, uint32_t b);

/*
 * The transport of bodies between a rank and the next stage of its replica, as far as it is known before workers join:
 * links, NCCL (set), or AQ_TRANSPORT_AUTO: NCCL if each turns out to have its own GPU on one machine.
 */
enum aq_transport_kind aq_job_edge_transport(const struct aq_job *job, uint32_t rank);

/* The beginning of a link's address: "tls+quic://". */
const char *aq_job_link_scheme(const struct aq_job *job, bool tls);
#define AQ_JOB_RELAY_SCHEME "tls+relay://" /* of relayed links: never in the clear */

/* The machine of a replica, by the host of its first stage: numbers from 0 on, in the order of replicas. */
uint32_t aq_job_machine(const struct aq_job *job, uint32_t replica);

/* The members of a stage's reduction: its replicas, or with reduce.machine_first its machines. */
uint32_t aq_job_reducers(const struct aq_job *job);

/* Is this rank at a client, in a turn of split learning? */
bool aq_job_at_client(const struct aq_job *job, uint32_t rank);

/* Are batches drawn over all clients' samples, and gradients summed over them (split.mode: global)? */
bool aq_job_global(const struct aq_job *job);

/* How many turns of split learning may be under way at once; with global sampling split.clients. */
uint32_t aq_job_turns(const struct aq_job *job);

/*
 * In a turn of split learning: do the optimizer's moments come from other clients' runs, so that the updates that they
 * have had are counted with them? With global sampling all clients make the same updates, which are the round's steps.
 */
bool aq_job_counts_updates(const struct aq_job *job);

/* In such a turn: does the server's stage get the key of its cache from the client's first one (split.seal)? */
bool aq_job_sealed(const struct aq_job *job);

/* The one change to an open job: distances of its edges (each, 0: near) and of replicas, losses of its edges, and the
 * rate of its links, as they were measured. Before a plan is made of it. */
void aq_job_measured(struct aq_job *job, const float *rtt_ms, float group_rtt_ms, const float *loss, double rate_mbps);

/* Have two workers a link? Stages of a replica that follow each other have, and the replicas of a stage. */
bool aq_job_linked(const struct aq_job *job, uint32_t a, uint32_t b);
uint32_t aq_job_links(const struct aq_job *job); /* how many pairs have one */

/* Which of two ranks with a link listens: the higher one, or the lower where that one dials. The other connects, also
 * to heal. */
uint32_t aq_job_listener(const struct aq_job *job, uint32_t a, uint32_t b);

/* Do both dial? Then they meet at link.relay, where the one that listens waits. */
bool aq_job_relayed(const struct aq_job *job, uint32_t a, uint32_t b);

/* Does this rank listen for anybody? One that dials listens only at the relay. */
bool aq_job_listens(const struct aq_job *job, uint32_t rank);

/* Micro-batches of a step with `samples` samples on one replica. */
uint32_t aq_job_micro_batches(const struct aq_job *job, uint32_t samples);

/* The table of keys for people: the text of `aqpipe help keys`, or the page docs/MANIFEST.md. Memory of aq_alloc.
 * about: a section ("train"), a key ("train.lr", "lr", "edges.forward.bits") or part of a key's name; NULL: all keys.
 * AQ_NOTFOUND, logged with the nearest name: there is no such section or key. */
enum aq_status aq_keys_help(const char *about, char **text);
enum aq_status aq_keys_markdown(char **text);

#endif
