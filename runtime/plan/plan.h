/*
 * plan.h -- the immutable plan of a job: the cut, every rank's program, memory, bytes, and its hash.
 *
 * What is expected of it (seconds, better cuts, totals), and how it is printed: advice.h, which workers do not use.
 *
 * A plan is a pure function of the manifest and of the facts of its files (counts and digests of samples, vocabulary).
 * The launcher makes it, sends aq_plan_manifest's text to every worker, and each worker makes it again and refuses on
 * another hash (the handshake of a link does, too).
 *
 *     AQ_TRY(aq_job_load(path, sets, n, &job));
 *     AQ_TRY(aq_plan_open(job, &plan));            // reads tokenizer and texts if job->facts is empty
 *     const struct aq_plan_stage *me = &plan->stages[s];
 *     ... me->config for aq_stage_open, me->program to run, plan->edges[s] for the codecs, me->cache for aq_cache_open
 *     aq_plan_close(plan); aq_job_close(job);
 *
 * The plan borrows the job, which must outlive it.
 * Locking: read-only after open; any thread.
 */
#ifndef RUNTIME_PLAN_H
#define RUNTIME_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/grad_choice.h"
#include "checkpoint.h"
#include "edge_shape.h"
#include "job.h"
#include "mirror.h"
#include "net/link.h"
#include "program.h"
#include "runtime_text.h"
#include "stages/dataset.h"
#include "stages/stage.h"
#include "storage/cache.h"

enum {
    AQ_PLAN_LINES_MAX = 32,
    AQ_PLAN_NAME_MAX = 32,
    AQ_PLAN_COPIES_MAX = 2,
    AQ_PLAN_TRACE_RECORDS = 1 << 17, /* of output.trace, on every stage                        */
    AQ_PLAN_TRACE_BYTES = 40,        /* of a record: two names, two times, step, micro-batch   */
    /*
     * Code of the program and its libraries, stacks, and oneDNN's compiled kernels: a worker's resident memory less the
     * planned sum, measured equal for stages of 45 and of 98 MB (docs/DECISIONS.md 0009).
     */
    AQ_PLAN_PROCESS_BYTES = 32 << 20,
    /* Numbers of the edges between replicas, above all edges between stages: this + stage. */
    AQ_PLAN_GROUP_EDGE = 0x10000,
    AQ_PLAN_PIECE_BYTES = 256 << 10 /* of a frame between replicas                                                */
};

/* One consumer of memory. */
struct aq_plan_line {
    const char *name; /* a literal: "parameters", "gradients", "optimizer", ... */
    uint64_t bytes;
};

struct aq_plan_stage {
    uint32_t layer_first, layer_end;
    char name_first[AQ_PLAN_NAME_MAX], name_last[AQ_PLAN_NAME_MAX]; /* "embedding", "block 2"                    */
    struct aq_stage_config config; /* ready for aq_stage_open: slots, B, T, precision, recompute               */
    struct aq_stage_size size;
    struct aq_optimizer_traffic traffic; /* with the other replicas; zero if there are none                     */
    struct aq_program program;           /* of a whole step: plan->micro_batches                                     */
    struct aq_program program_last;      /* of the last, partial step of an epoch: plan->micro_batches_last          */
    struct aq_cache_config cache; /* ready except path, mark, eventcount, trace, fresh; slots 0: no cache            */
    /* Edge, sizes, rate and hash are filled in, ranks as replica 0 has them. */
    struct aq_link_config link_in;    /* from stage s-1                                                             */
    struct aq_link_config link_out;   /* to stage s+1 (who of the two listens: aq_job_listener)                      */
    struct aq_link_config link_group; /* to each other replica of this stage                                        */
    struct aq_plan_line lines[AQ_PLAN_LINES_MAX];
    uint32_t line_count;
    uint64_t memory_bytes;    /* the sum of the lines                                                              */
    uint64_t device_bytes;    /* of them on the device: the host's too where that is a CPU                         */
    uint32_t boundary_copies; /* of the values at each cut: on a GPU one is sent or received while one is computed */
    uint64_t cache_bytes;     /* on disk ("memory": in RAM): samples x messages x sides, two versions between marks */
};

/* Frames with a body that may be on their way, each way: the least of what a link can carry in a round trip. */
struct aq_plan_window {
    uint32_t send_frames;   /* that a sender keeps: until the other end has them, where links heal */
    uint32_t receive_slots; /* credits: sent, and not yet acknowledged as decoded                  */
};

/* Edge e joins stage e and e+1. */
struct aq_plan_edge {
    struct aq_edge_shape shape; /* ready for aq_edge_open */
    struct aq_edge_size size;
    /* A whole step on the wire: bodies, sample tables, frame headers, TCP/IP and Ethernet headers.             */
    uint64_t step_forward_warm, step_forward_cold, step_backward;
    uint64_t step_backward_first; /* as the first epoch's: more where epochs go uncompressed */
    struct aq_plan_window window; /* of training; shape's has those of mirrored checkpoints, too */
};

/* The layers of each stage: stage s has [end[s - 1], end[s]), stage 0 has [0, end[0]). */
struct aq_plan_cut {
    uint32_t end[AQ_JOB_STAGES_MAX];
};

struct aq_plan {
    const struct aq_job *job;       /* borrowed                                                                   */
    struct aq_model_config model;   /* vocabulary resolved                                                        */
    struct aq_job_facts facts;      /* all known                                                                  */
    uint32_t stage_count;           /* P                                                                          */
    uint32_t replicas;              /* W                                                                          */
    uint32_t ranks;                 /* P x W                                                                      */
    enum aq_schedule_kind schedule; /* of the manifest, or chosen: not AQ_SCHEDULE_AUTO                         */
    uint32_t in_flight;             /* the same: not AQ_IN_FLIGHT_AUTO                                          */
    uint32_t ahead;                 /* micro-batches whose messages are read ahead: cache.window, or chosen        */
    uint32_t batch;                 /* samples of a whole step on one replica                                     */
    uint32_t layers;                /* L of the model, embedding and head among them                              */
    uint32_t rows_if_tied;          /* of the table that a step can use if the head is tied; 0: it cannot be tied */
    const struct aq_plan_stage *stages;
    const struct aq_plan_edge *edges; /* P - 1                                                                  */
    uint32_t micro_batches;           /* M of a whole step                                                          */
    uint32_t micro_batches_last;      /* of the last step of an epoch; == micro_batches where batch divides         */
    uint32_t samples_last;            /* samples of the last step of an epoch, on one replica                       */
    uint64_t samples_dropped;         /* of data.train, so that every replica has as many: not in facts */
    const uint32_t *lengths; /* of the training samples, then of the held-out ones; NULL: facts.lengths_digest is 0,
                                or the data was not read here                                                   */
    uint64_t steps_per_epoch;
    uint64_t steps;       /* of the whole run: epochs and steps_max                                                   */
    uint64_t parameters;  /* that are trained                                                           */
    uint64_t frozen;      /* that are not (train.freeze)                                                */
    uint64_t hash;        /* of everything that the ranks must agree on                                          */
    uint64_t rank_hash;   /* the hash without length of the run, evaluations, saves: its own checkpoints */
    uint64_t resume_hash; /* the same without the count of replicas: a run can resume from these */
    uint64_t job_digest;  /* identity of model, data, cut and codecs' stores: what a cache belongs to            */
};

/*
 * Read the facts of the job's files (vocabulary, counts and digests): what aq_plan_open does where job->facts has none.
 * *lengths: of the training samples, then of the held-out ones, memory of aq_alloc; NULL: all are alike.
 * AQ_NOTFOUND, AQ_IO, AQ_CORRUPT, AQ_INVAL: the manifest's place and the file.
 */
enum aq_status aq_plan_facts(const struct aq_job *job, struct aq_job_facts *out, uint32_t **lengths);

/* Positions of a sample: train.T, and the tokens before its text (data.bos). */
uint32_t aq_plan_places(const struct aq_plan *plan);
/* The job's training or held-out samples, as aq_dataset_open takes them; paths and texts are the job's. */
struct aq_dataset_config aq_plan_dataset(const struct aq_job *job, bool heldout);

/* How many lengths there are: of training samples, of held-out ones, of the parts of all of them in that order. */
uint64_t aq_plan_lengths_count(const struct aq_job_facts *facts);

/* The lengths of all samples in the form that workers read (lengths.h): memory of aq_alloc; NULL without lengths. */
enum aq_status aq_plan_lengths(const struct aq_plan *plan, char **text);

/*
 * Are these, in that form, the lengths that this plan's facts describe (count, digest, mean, parts)? For a plan of the
 * facts of another machine's data. Any bytes give AQ_OK; AQ_PROTO or AQ_MISMATCH, with the cause; or AQ_NOMEM.
 */
enum aq_status aq_plan_lengths_check(const struct aq_plan *plan, const char *text);

/* AQ_INVAL: the job cannot be (names place, cause, remedy). As aq_plan_facts where it reads files. AQ_NOMEM. */
enum aq_status aq_plan_open(const struct aq_job *job, struct aq_plan **out);
void aq_plan_close(struct aq_plan *plan); /* NULL is fine */

/* The plan of the same job with another cut; no file is read. AQ_INVAL: it cannot be, as of aq_plan_open. AQ_NOMEM. */
enum aq_status aq_plan_open_cut(const struct aq_plan *like, const struct aq_plan_cut *cut, struct aq_plan **out);
struct aq_plan_cut aq_plan_cut_of(const struct aq_plan *plan);

/* Bytes that stage s would take with these layers: as its memory_bytes, with slots and windows as the plan has them. */
enum aq_status aq_plan_stage_bytes(const struct aq_plan *plan, uint32_t s, uint32_t first, uint32_t end,
                                   uint64_t *bytes);

/* The most bytes that a stage's file of a checkpoint has. */
uint64_t aq_plan_file_bytes_max(const struct aq_plan *plan, uint32_t stage);

/* A rank's input to the module that mirrors checkpoints. The plan has at least two stages. */
void aq_plan_mirror_shape(const struct aq_plan *plan, uint32_t rank, struct aq_mirror_shape *out);

/* The input of the checkpoint module for this run. */
void aq_plan_checkpoint_run(const struct aq_plan *plan, struct aq_checkpoint_run *out);

/* The learning rate of a step, which counts from 1. */
float aq_plan_learning_rate(const struct aq_plan *plan, uint64_t step);

uint64_t aq_plan_hash(const struct aq_plan *plan);

/*
 * The keys in which two plans differ: "train.lr: 0.0002 there, 0.001 here; ...". resume: only those that prevent one
 * from resuming from a checkpoint of the other. Empty if they agree. AQ_NOMEM.
 */
enum aq_status aq_plan_differences(const struct aq_plan *there, const struct aq_plan *here, bool resume,
                                   struct aq_text *out);

/* Bytes of the checkpoints that a rank of stage s keeps (checkpoint.keep), with its neighbour's copies. */
uint64_t aq_plan_checkpoint_bytes(const struct aq_plan *plan, uint32_t s);

/* Bytes of the optimizer's state, residuals and scratch for a count of parameters; the shapes of tensors hardly
 * matter. */
uint64_t aq_plan_optimizer_bytes(const struct aq_plan *plan, uint64_t parameters);

/* The part of it for local steps (reduce.every): the other version of the weights, outer momentum, codec residuals. */
uint64_t aq_plan_outer_bytes(const struct aq_plan *plan, uint64_t parameters);

/* What part i of the worker takes on stage s; all zeros if the job does not need it there. False: there is no part i.
 * Each part states its own (worker_parts.c). */
struct aq_plan_part {
    const char *name;   /* of its line in the sum; NULL: none                              */
    uint64_t bytes;     /* of that line                                                    */
    uint64_t cut_bytes; /* of a micro-batch's values at a cut that it reads on the host  */
};
bool aq_plan_part(const struct aq_plan *plan, uint32_t s, uint32_t i, struct aq_plan_part *out);
/* The most cut_bytes that a part asks for. A stage on a GPU has a pinned copy of that size. */
uint64_t aq_plan_cut_bytes(const struct aq_plan *plan, uint32_t s);

/* Bytes that a worker of stage s sends to the other replicas in a reduction (and gets from them), of bodies, after any
 * warm-up: in a step, or with local steps in a round. What is sent every so many steps counts with its share. */
uint64_t aq_plan_reduce_bytes(const struct aq_plan *plan, uint32_t s);
/* The same in a step of the optimizer's warm-up, the mean of those that this run has; how many they are (0: it has no
 * warm-up). */
uint64_t aq_plan_warmup_bytes(const struct aq_plan *plan, uint32_t s);
uint64_t aq_plan_warmup_steps(const struct aq_plan *plan);
uint64_t aq_plan_warmup_most(const struct aq_plan *plan); /* aq_plan_warmup_bytes of the stage that has most */
/* Is every step of the run one of the optimizer's warm-up? Then adds the reason and the remedy to text, unless it is
 * NULL. */
bool aq_plan_never_compresses(const struct aq_plan *plan, struct aq_text *text);

/* Steps from one such reduction to the next (reduce.every; 1 where replicas are one), and how many a run has. */
uint32_t aq_plan_reduce_every(const struct aq_plan *plan);
/* Steps of the next round during which the average of a round travels (reduce.delay). */
uint32_t aq_plan_reduce_delay(const struct aq_plan *plan);
/*
 * With it, bytes that a GPU's optimizer has in the host's memory: the movement that travels; the codec's errors, and
 * with reduce.patience what is kept for another attempt.
 */
uint64_t aq_plan_travel_bytes(const struct aq_plan *plan, uint64_t parameters);
uint64_t aq_plan_travel_errors(const struct aq_plan *plan, uint64_t parameters);
uint64_t aq_plan_reductions(const struct aq_plan *plan);
uint64_t aq_plan_reductions_bytes(const struct aq_plan *plan, uint32_t s,
                                  uint64_t times); /* of so many, warm-up and all */

/*
 * The transport of an edge's bodies, and of the reductions, in all replicas, as far as it is known before workers join;
 * AQ_TRANSPORT_AUTO: known only after they join.
 */
enum aq_transport_kind aq_plan_edge_transport(const struct aq_plan *plan, uint32_t edge);
bool aq_plan_carries(const struct aq_plan *plan, uint32_t edge); /* is it sure that bodies go from GPU to GPU? */
enum aq_transport_kind aq_plan_reduce_transport(const struct aq_plan *plan);

/* The same in another codec. */
uint64_t aq_plan_coded_bytes(const struct aq_plan *plan, uint32_t s, const struct aq_grad_codec_config *codec);

/*
 * Do the stages without a host (those of this machine) fit together into this memory, in split learning those of all
 * turns at once? AQ_NOMEM: names the sum, the largest part and the remedy. AQ_NODEV: as aq_plan_devices_built. For the
 * launcher and `aqpipe plan`, before they start anything, and for a split-server, before it admits a client.
 */
enum aq_status aq_plan_fits(const struct aq_plan *plan, uint64_t memory_bytes);

/* How long a checkpoint may take: the slowest disk, and a copy over a link of 1 Mbit/s. */
uint64_t aq_plan_checkpoint_ns_max(const struct aq_plan *plan);

/* Does this build have the devices of the stages without a host? AQ_NODEV: names the stage and its key. */
enum aq_status aq_plan_devices_built(const struct aq_plan *plan);

/*
 * Does this rank, what is on a GPU aside, fit into what its daemon lets a worker have? AQ_NOMEM: names both figures,
 * the largest part and the remedy. For the worker, before it allocates anything of the plan.
 */
enum aq_status aq_plan_rank_fits(const struct aq_plan *plan, uint32_t rank, uint64_t memory_bytes);

/*
 * Do the caches of this machine's stages fit onto the disk of `folder` (which need not exist yet), counting what they
 * hold there already? AQ_NOSPC: not even one copy of each message fits; names needed and free bytes. A second copy is
 * needed between two checkpoints: where only that does not fit, a line warns. AQ_INVAL: no file can be created in
 * `folder`, in output.path or, for stages here, in checkpoint.path; names the key and why.
 */
enum aq_status aq_plan_disk_fits(const struct aq_plan *plan, const char *folder);

/* Has this machine a congestion control of link.congestion and the keys of its stages? AQ_INVAL: names the key. */
enum aq_status aq_plan_links_fit(const struct aq_plan *plan);

/*
 * Has this machine what its stages need: memory and devices (aq_plan_fits), links (aq_plan_links_fit), folders and disk
 * (aq_plan_disk_fits)? Every error names the key and the remedy. AQ_INVAL: a key of the manifest is wrong here;
 * AQ_NOMEM, AQ_NODEV, AQ_NOSPC: too little. For `aqpipe plan` and the launcher, before they start anything.
 */
enum aq_status aq_plan_here(const struct aq_plan *plan);

/* Bytes of RAM that this process may have: the machine's, or its control group's limit. */
uint64_t aq_plan_memory_here(void);

/* The canonical manifest with the facts in it: what a worker gets. It plans to the same hash and reads no data. */
enum aq_status aq_plan_manifest(const struct aq_plan *plan, char **text);

/* Has any edge a round trip (link.rtt_ms)? */
bool aq_plan_far(const struct aq_plan *plan);

/* Is any stage on a GPU? Its time is measured there or not known. */
bool aq_plan_wants_gpu(const struct aq_plan *plan);

/*
 * plan_tied.c: a tied head that a cut separates from the embedding's table. ties: is there one? could_tie: would there
 * be one with another model.tied? local: both ends are a client's (split learning), and nothing crosses a link. rows:
 * most rows of the table that a step of one replica names; 0: nothing is tied; with one stage, too. floats: of the
 * table. traffic: words of 4 bytes of a step, towards the embedding and back, at most, if model.tied were `how`. bytes:
 * of that many words on the wire of edge e. sent: by stage s in a step, at most. codec: of the head's gradient where it
 * is compressed; the caller closes it. print: the bytes of each choice. host_bytes: of an end that needs host memory
 * for it: a stage on a GPU, or a client's.
 */
#define AQ_PLAN_TIED_CODEC "q4"
struct aq_plan_tied {
    uint64_t up_words, down_words;
};
bool aq_plan_ties(const struct aq_plan *plan);
bool aq_plan_tied_local(const struct aq_plan *plan);
bool aq_plan_could_tie(const struct aq_plan *plan);
uint32_t aq_plan_tied_rows(const struct aq_plan *plan);
uint64_t aq_plan_tied_floats(const struct aq_plan *plan);
enum aq_status aq_plan_tied_traffic(const struct aq_plan *plan, enum aq_tied how, struct aq_plan_tied *out);
uint64_t aq_plan_tied_bytes(const struct aq_plan *plan, uint32_t e, uint64_t words);
uint64_t aq_plan_tied_sent(const struct aq_plan *plan, uint32_t s);
enum aq_status aq_plan_tied_codec(const struct aq_plan *plan, struct aq_grad_codec **out);
uint64_t aq_plan_tied_host_bytes(const struct aq_plan *plan);
enum aq_status aq_plan_tied_print(const struct aq_plan *plan, struct aq_text *text);

#endif
