/*
 * worker.h -- a stage worker: one process that owns one stage and runs its program, step after step.
 *
 * Started by the daemon with the control channel at fd 3 (docs/CONTROL.md). It makes the plan again from the manifest
 * that the launcher sent, refuses where its hash differs, opens everything that the plan names, joins its neighbours,
 * and trains until the last step, a stop, or a failure. Its last line over the control channel reports how it ended.
 *
 * A device does what it is given on three streams (compute, send, receive) that wait for each other by events; nothing
 * waits for the device but NORM, STEP and evaluation (worker_device.c).
 *
 * Four threads: this one (exec: stage, codecs, program), the net loop, the storage thread, and the one that writes
 * checkpoints. The CPU pool belongs to exec.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_H
#define RUNTIME_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "aqsgd/grad.h"
#include "aqsgd/grad_choice.h"
#include "checkpoint_writer.h"
#include "control.h"
#include "edge.h"
#include "heartbeat.h"
#include "mirror.h"
#include "net/link.h"
#include "plan.h"
#include "program_run.h"
#include "reduce_measure.h"
#include "seal.h"
#include "stages/dataset.h"
#include "stages/stage.h"
#include "storage/cache.h"
#include "values.h"
#include "worker_parts.h"

/* A forward, a backward or the weight half of one that the device has been given. */
enum { AQ_WORKER_ISSUES = 4 };
struct aq_worker_issue {
    struct aq_instruction instruction;
    uint64_t step;
    struct aq_event *begun, *ended; /* with a time */
    uint64_t issued_ns;
};

/* Times and sums of one step of this stage, in nanoseconds. */
struct aq_worker_times {
    uint64_t begin_ns;
    uint64_t compute_ns;   /* forward and backward: the device's    */
    uint64_t optimizer_ns; /* norm of one's own gradients, update   */
    uint64_t wait_ns;      /* nothing could run, and the device had nothing either */
    uint64_t link_wait_ns; /* of it, while a link was carrying what this stage waits for; else a neighbour works */
    uint64_t in_wait_ns;   /* of that, the link to the stage before; the rest: to the stage behind  */
    uint64_t reduce_ns;    /* averaging with the other replicas     */
    uint64_t reduce_bytes; /* sent to them                          */
    uint64_t tied_bytes;   /* of a tied table, sent to neighbours   */
    uint64_t loss_targets;
    double loss_sum;
    double gradient_norm;
    double own_norm;   /* of the gradient of this stage's tensors; below 0: it has none */
    float loss_factor; /* of the gradient of the loss, divided out after the last backward: the parts' */
    bool skipped;      /* the gradient was not finite, on some replica */
    bool squared;      /* replicas.squares belong to the current gradients */
    bool cleared;      /* the gradients are zero again: that went along with a reduction */
};

/* A step that is under way: what aq_program_run does not know of it (worker_step.c). */
struct aq_worker_run {
    uint64_t step;
    uint64_t base;      /* micro-batches before it, as slots are counted (program.h)                        */
    bool ended;         /* the device is done with both chains, and gradients have no loss scale any more   */
    bool gathered;      /* NORM: shared gradients are in aq_stage_shared                                    */
    bool partial;       /* NORM: the partial sums have gone to the stage before                             */
    uint32_t sums_here; /* of them, how many have come: partial ones, then totals                           */
    double sums[2];     /* the norm's, and what the optimizer gauges                                        */
};

/* The steps under way: that of worker->step, and with train.staleness the next one. */
struct aq_worker_steps {
    struct aq_program_run program; /* which of their instructions may begin                                 */
    struct aq_worker_run now, next;
    bool kept;           /* the weights of `next` are the previous ones by now: the update of `now` has begun */
    bool sending;        /* a send had no buffer                                                              */
    uint64_t overlap_ns; /* spent on `next` while `now` was averaged with the other replicas            */
    /* If the edge out is still (worker_cached.c), by slot: the input was not decoded; the output was not computed. */
    bool unread[AQ_JOB_MICRO_BATCHES_MAX * (1 + AQ_STALENESS_MAX)];
    bool skipped[AQ_JOB_MICRO_BATCHES_MAX * (1 + AQ_STALENESS_MAX)];
};

/* Bytes that links have packed (link.entropy) up to the last line of metrics. */
struct aq_worker_packing {
    struct aq_link_bytes forward, backward, gradient;
    double forward_left, backward_left, gradient_left; /* of the bodies between the last two lines: packed / given */
    uint64_t ns;
};

/* Bytes of bodies received over the links to the previous and to the next stage, and the time they took. */
struct aq_worker_carried {
    uint64_t bytes[2], ns[2];
};

/* How far a checkpoint is. */
enum aq_worker_snapshot {
    AQ_MARK_NONE = 0,   /* none under way: the launcher has noted the last one as complete      */
    AQ_MARK_WRITING,    /* weights and cache are on their way to the disk                       */
    AQ_MARK_MIRRORING,  /* they are there; the copy is on its way to the neighbour                */
    AQ_CHECKPOINT_ACKED /* this stage's part is durable, and the launcher knows: others may not be */
};

/* reduce.codec: auto (worker_choose.c). */
struct aq_worker_choice {
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    uint32_t count;   /* of them; 0: nothing is chosen                        */
    bool due;         /* measured, and to be made at the next REDUCE          */
    bool measured;    /* made in this step: its line has the inputs           */
    const char *name; /* of what was chosen; NULL: nothing yet                */
    struct aq_reduce_links links;
    double value_s[AQ_GRAD_CANDIDATES_MAX]; /* of packing one value           */
    double chosen_pack_s;                   /* of a reduction in what was chosen */
};

struct aq_group; /* net/collective.h */

/* reduce.machine_first (worker_machine.c). */
struct aq_worker_machine {
    struct aq_group *local;   /* the replicas of this machine; NULL: no machine comes first */
    struct aq_group *leaders; /* one replica of each machine; NULL: not a leader, or only one machine */
};

/* Edges, links and values between this stage and the stages before and behind it. */
struct aq_worker_pipeline {
    struct aq_stream *send_stream, *receive_stream;
    /* At the cuts, of micro-batch i in [i % copies]. */
    struct aq_values x[AQ_PLAN_COPIES_MAX], y[AQ_PLAN_COPIES_MAX], dx[AQ_PLAN_COPIES_MAX], dy[AQ_PLAN_COPIES_MAX];
    uint32_t copies;
    /* Forwards and backwards that the device has not done, oldest first (worker_device.c). */
    struct aq_worker_issue issues[AQ_WORKER_ISSUES];
    uint32_t issue_first, issue_count;
    struct aq_event *anchor; /* start of the step, at anchor_ns */
    uint64_t anchor_ns;
    struct aq_link *link_in, *link_out;
    struct aq_edge *in, *out;
    struct aq_cache *cache;
    struct aq_worker_refill {
        uint64_t step, end; /* from the first to behind the last, an epoch later: each sample once */
        uint32_t micro_batch;
    } refills[2]; /* how far lost messages of the edges in and out were asked for ahead */
};

/* Connections of this stage to its copies in the other pipelines; W > 1 (worker_group.c, _machine.c, _choose.c). */
struct aq_worker_replicas {
    struct aq_link **peers; /* [W], to the other replicas of this stage; NULL where W is 1 */
    struct aq_group *group; /* over them                                                   */
    void *bounce;           /* pinned: weights on their way to a digest; NULL where the host reaches them */
    double *squares;        /* |g|^2 of each tensor                                        */
    bool vote_pending;      /* the votes of the others on this step are not received       */
    struct aq_worker_machine machine;
    struct aq_worker_choice choice;
    bool resharded; /* from a checkpoint of another count of replicas: caches start empty */
};

/* This stage's checkpoints (worker_snapshot.c). */
struct aq_worker_checkpoints {
    struct aq_checkpoint_writer *writer;
    struct aq_mirror *mirror;      /* NULL: the job keeps no copies                                   */
    char hash[AQ_HASH_TEXT_BYTES]; /* of this stage's file of resumed_at, as the launcher has it; "": it has none */
    bool lost;                     /* this stage's file is missing or damaged: it needs a copy        */
    bool adopted;                  /* weights and states are another run's (a turn of split learning)     */
    int64_t updates_ahead;         /* updates of the optimizer's moments minus steps of this run */
    bool waiting;                  /* for a checkpoint or a start: links have nothing else to carry   */
    uint64_t unreadable;           /* the step of a checkpoint that could not be read; 0: none        */
    enum aq_worker_snapshot state;
    uint64_t step;   /* of the checkpoint that is under way                                        */
    uint64_t chosen; /* checkpoint.every as a time: steps after which the next one is due; 0: not yet known */
    uint64_t begin_ns;
    uint64_t held_ns; /* in which checkpoints kept this stage from training, since the last report    */
    uint64_t wait_ns; /* part of it: for the previous checkpoint                                      */
    uint64_t read_ns; /* that reading the checkpoint took at the start                                */
};

/* split.mode: global (worker_sums.c). */
struct aq_worker_sums {
    uint64_t shift; /* the plan's step minus the own step, modulo 2^64; 0 in all other jobs               */
    char *path;     /* the server's stage: of the socket where gradients are summed  */
    int fd;         /* connected to it; of no meaning without a path                 */
    float *copy;    /* pinned: this stage's gradients, where they lie on a GPU       */
    uint32_t consecutive_nonfinite; /* steps in which this client's gradients were not finite        */
};

struct aq_worker {
    struct aq_control *control; /* borrowed */
    struct aq_job *job;
    struct aq_plan *plan;
    const struct aq_plan_stage *me; /* the plan's, or where a model is asked: */
    struct aq_plan_stage mine;
    uint32_t rank;        /* of all workers: replica x P + position                */
    uint32_t position, P; /* the stage in its pipeline, of P stages                */
    uint32_t replica, W;  /* the copy of the pipeline, of W copies                 */
    char *run_folder, *checkpoint_folder;
    uint64_t frozen_digest; /* of what never changes; 0: nothing is frozen */
    bool frozen_due;        /* its file is to be written                   */
    uint64_t run_id;        /* whose they are: owned_folder.h */
    struct aq_worker_pipeline pipeline;
    struct aq_worker_replicas replicas;
    struct aq_worker_checkpoints checkpoints;
    struct aq_worker_sums sums;
    /* The stage. */
    struct aq_device *device;
    struct aq_stream *stream; /* compute: stage and optimizer */
    struct aq_stage *stage;
    struct aq_optimizer *optimizer;
    /* Data. */
    struct aq_dataset *train, *heldout; /* first and last stage only */
    struct aq_sampler *sampler;
    struct aq_batch batch; /* room for B samples with all fields of the data set; a middle stage has only ids */
    uint64_t *sample_ids;  /* B */
    uint32_t *lengths;     /* B: tokens of these samples that are real */
    uint16_t *variants;    /* B: and which of its messages each has, and */
    struct aq_view *views; /* how its image is seen: data.augment      */
    const uint32_t *train_lengths, *heldout_lengths; /* of all; NULL: all are T */
    const uint32_t *parts;                           /* of all training samples, then of held-out ones; or NULL */
    uint32_t *part_first;                            /* then, of each of these and the end: its first one       */
    uint32_t *starts;                                /* (B + 1, T): of a batch, and of a sample that is made again */
    struct aq_worker_targets {
        struct aq_sampler **samplers; /* of each replica: where samples have fewer targets than places; else NULL */
        uint64_t step;                /* of which `all` is known, plus one                                         */
        double all;                   /* counted targets of the step, over all replicas                            */
    } targets;
    void *host_memory, *lengths_memory;
    /* What links stand on. */
    struct aq_eventcount *eventcount;
    struct aq_trace *trace;
    struct aq_tls *tls; /* NULL: links are not under TLS */
    struct aq_net *net;
    /* The run. */
    uint64_t step; /* steps done */
    uint64_t resumed_at;
    uint64_t go_ns;
    uint64_t silence_ns; /* longest wait for a neighbour */
    uint64_t outages_ns; /* all links, one after the other: how long outages may last */
    bool stop_asked;     /* rank 0: the launcher asked for a stop         */
    uint64_t last;       /* steps after which a stop ends the run: all ranks learn it in the same step; 0: no stop */
    struct {
        uint64_t epochs; /* edges.bits: auto: up to the last one whose levels are known; 0: not yet */
        uint32_t forward, backward;
    } bits;
    uint64_t judged; /* step of the evaluation that the launcher has judged last */
    bool early;      /* and that it found to be the last: none was better        */
    bool final;      /* the last step is done: its checkpoint is the last */
    bool stopped;
    struct aq_worker_parts worker_parts;
    struct aq_edge_guard guard;      /* of the cut behind this stage, where its shape has one */
    struct aq_edge_guard guard_back; /* of gradients at the cut before it, where its shape has one */
    uint32_t skipped_in_row;
    struct aq_worker_steps steps;
    struct aq_worker_times times;      /* of steps.now  */
    struct aq_worker_times times_next; /* of steps.next */
    struct {
        bool ready;     /* the edge has the words to send: worker_tied.c                  */
        bool decoded;   /* compressed: the head's gradient has been decoded in this step */
        bool previous;  /* values are those before the last update                       */
        uint64_t words; /* that lie in the edge                                          */
        bool local;     /* both ends are the client's: through fd, and `host`            */
        int fd;
        struct aq_plan_tied traffic;
        struct aq_grad_codec *codec; /* NULL: nothing is compressed here */
        float *host;                 /* NULL: the stage's memory is the host's */
    } tied;
    struct aq_worker_packing packing;
    struct aq_worker_carried carried;
    uint8_t cache_key[AQ_CACHE_KEY_BYTES]; /* split.seal: on its way to the cache that it opens */
};

/*
 * Runs everything from the start message to the end of the run and reports "done" or "failed" over the control channel.
 * Returns the run's status; the text of a failure is aq_error_text().
 */
enum aq_status aq_worker_run(struct aq_control *control);

/*
 * The step that this run's own step is for all clients (split.mode: global; else the same): what learning rates,
 * augmentation and dropout go by. Own steps are counted in frames, caches, checkpoints and reports. And how
 * many own steps there are at most.
 */
static inline uint64_t aq_worker_global(const struct aq_worker *worker, uint64_t step)
{
    return step + worker->sums.shift;
}
/* The number of this step's update among those that the optimizer's moments have had: what bias corrections go by. */
static inline uint64_t aq_worker_update(const struct aq_worker *worker)
{
    return worker->step + (uint64_t)worker->checkpoints.updates_ahead + 1;
}
static inline uint64_t aq_worker_steps_end(const struct aq_worker *worker)
{
    return worker->plan->steps - worker->sums.shift;
}

/* worker_step.c: the samples of a micro-batch of a step; *samples is 1..B. Fills worker->sample_ids. */
void aq_worker_batch(struct aq_worker *worker, uint64_t step, uint32_t micro_batch, struct aq_edge_batch *batch);

/*
 * worker_step.c: run one whole step (worker->step is its number) up to and with the optimizer. With train.staleness the
 * next step may be under way when this returns (program.h), except before an evaluation, a checkpoint or the end
 * (aq_worker_is_sync_point).
 */
enum aq_status aq_worker_step(struct aq_worker *worker);

/* worker_step.c: of a group's wait: some of the next step's chains (aq_group_config.meanwhile). worker: the worker. */
enum aq_status aq_worker_meanwhile(void *worker);

/* A clock that leaves out the time of aq_worker_meanwhile: it measures the end of a step by itself. */
static inline uint64_t aq_worker_own_ns(const struct aq_worker *worker)
{
    return aq_clock_ns() - worker->steps.overlap_ns;
}

/* worker_step.c: forwards, backwards and gradients belong to this step, `now` or `next`, from here on. */
void aq_worker_use(struct aq_worker *worker, uint64_t step);

/*
 * worker_tied.c: a head that is the embedding's table, behind a cut. up: behind the chains of a step, the head's
 * gradient to the first stage; down: behind STEP, the table to the last. AQ_AGAIN: call again, as halves of NORM.
 * follow: the table to the last stage, at any time that is the same on all stages. open: behind open_edges.
 */
bool aq_worker_is_tied(const struct aq_worker *worker);
enum aq_status aq_worker_tied_up(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times);
enum aq_status aq_worker_tied_down(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times);
enum aq_status aq_worker_tied_follow(struct aq_worker *worker);
enum aq_status aq_worker_tied_open(struct aq_worker *worker);
void aq_worker_tied_close(struct aq_worker *worker);

/* worker_ends.c: between a client's two ends; `words` counts those in tied.host. AQ_CLOSED, AQ_PROTO, AQ_TIMEOUT. */
enum aq_status aq_worker_ends_open(struct aq_worker *worker);
void aq_worker_ends_close(struct aq_worker *worker);
enum aq_status aq_worker_ends_send(struct aq_worker *worker, uint64_t words);
enum aq_status aq_worker_ends_receive(struct aq_worker *worker, uint64_t *words);

/* worker_step.c: a stop that is announced in this step ends the run after the returned count of steps. */
uint64_t aq_worker_last_of(const struct aq_worker *worker, uint64_t step);

/* worker.c: is there an evaluation, a checkpoint or the end after `steps` steps? Then nothing else is under way. */
bool aq_worker_is_sync_point(const struct aq_worker *worker, uint64_t steps);

/* worker_device.c: streams, values at the cuts, events; the stage is open. Closing takes half-open ones. */
enum aq_status aq_worker_device_open(struct aq_worker *worker);
void aq_worker_device_close(struct aq_worker *worker);

/*
 * worker_warm.c: everything once, where it runs on a GPU. The stage, when it has its weights, before links open; a
 * reduction, when the group is open; the edges' codecs, before they are joined. Results do not depend on it.
 */
enum aq_status aq_worker_warm(struct aq_worker *worker);
enum aq_status aq_worker_warm_reduction(struct aq_worker *worker);
enum aq_status aq_worker_warm_edges(struct aq_worker *worker);

/* worker_device.c: wait for all streams and ignore their errors, before their memory is freed. */
void aq_worker_device_synchronize(struct aq_worker *worker);

/* worker_device.c: the step starts now. If no work is issued, the times of this step count from here. */
enum aq_status aq_worker_anchor(struct aq_worker *worker);

/*
 * worker_device.c: FORWARD, BACKWARD and WEIGHTS are issued; what they come to, losses and times, is taken up by a
 * later aq_worker_issues_advance (part of aq_worker_pump). AQ_AGAIN: as many are out as may be; nothing has happened.
 */
enum aq_status aq_worker_forward(struct aq_worker *worker, const struct aq_worker_run *run,
                                 const struct aq_instruction *instruction);
enum aq_status aq_worker_backward(struct aq_worker *worker, const struct aq_worker_run *run,
                                  const struct aq_instruction *instruction);
enum aq_status aq_worker_weights(struct aq_worker *worker, const struct aq_worker_run *run,
                                 const struct aq_instruction *instruction);
enum aq_status aq_worker_issues_advance(struct aq_worker *worker);

/* worker_device.c: when the oldest was issued (aq_clock_ns) that has not come back, of stage and edges; 0: none. */
uint64_t aq_worker_busy_since(const struct aq_worker *worker);

/* worker_device.c: what NCCL has on its way for the edges (aq_edge_carrying, of both). */
uint32_t aq_worker_carrying(const struct aq_worker *worker);

/* worker_device.c: sleep on the event count, briefly, while one of the two is. AQ_TIMEOUT: the device hangs. */
enum aq_status aq_worker_poll_wait(struct aq_worker *worker, uint32_t seen);

/* worker_device.c: pump until nothing is out. */
enum aq_status aq_worker_settle(struct aq_worker *worker);

/* worker_step.c: ask the caches for the first micro-batches, before the first step. */
enum aq_status aq_worker_prefetch_first(struct aq_worker *worker);

/* worker.c: the launcher's next message with this op; a stop before go is kept, anything else is ignored. */
enum aq_status aq_worker_await(struct aq_worker *worker, const char *op, uint64_t deadline, json_t **out);

/* worker.c: the job and this rank's part of it, from the launcher's `start`. AQ_MISMATCH: this machine plans
 * otherwise. */
enum aq_status aq_worker_plan_open(struct aq_worker *worker, const json_t *start);

/* worker.c: what is done before the first step, in this order: for the heartbeat, the log, and whoever waits. */
enum aq_status aq_worker_set_phase(const struct aq_worker *worker, enum aq_phase phase);

/* worker.c: finish all links in good order, by the deadline, and flush the control channel. */
enum aq_status aq_worker_drain(struct aq_worker *worker, uint64_t deadline);
enum aq_status aq_worker_leave(struct aq_worker *worker, uint64_t deadline);

/*
 * worker_seal.c: is this the stage whose cache is sealed, or the one that sends it the key? key_told: takes the key
 * from the start line. give: over the edge that was just opened. take: over the link, before the cache is opened.
 */
bool aq_worker_takes_key(const struct aq_worker *worker);
bool aq_worker_gives_key(const struct aq_worker *worker);
enum aq_status aq_worker_key_told(struct aq_worker *worker, const json_t *start);
enum aq_status aq_worker_key_give(struct aq_worker *worker);
enum aq_status aq_worker_key_take(struct aq_worker *worker);

/* worker_links.c: who we are under TLS, the loop, and a link to each neighbour. */
enum aq_status aq_worker_links_open(struct aq_worker *worker);
/* Its parts: our identity and the loop; one port for all neighbours that connect, reported to the launcher; is this
 * peer one of them? */
enum aq_status aq_worker_net_open(struct aq_worker *worker);
enum aq_status aq_worker_listen(struct aq_worker *worker, struct aq_listener **listener);
bool aq_worker_listens_for(const struct aq_worker *worker, uint32_t peer);

/* worker_probe.c: nothing is trained: the links of this rank are measured as the launcher asks (docs/CONTROL.md section
 * 9), until its channel closes. The worker is closed as after training. */
enum aq_status aq_worker_probe(struct aq_worker *worker, const json_t *start);

/* worker_answer.c: nothing is trained: this stage computes a text as it is asked (docs/CONTROL.md section 10). The
 * worker is closed as after training. */
enum aq_status aq_worker_answer(struct aq_worker *worker, const json_t *start);

/* worker_links.c: the round trip to the next stage, where it is far and the plan does not know of so much; else 0. */
double aq_worker_distance_ms(const struct aq_worker *worker);

/* worker_group.c: open the group; its links are connected. With one replica nothing. */
enum aq_status aq_worker_group_open(struct aq_worker *worker);

/*
 * worker_group.c: REDUCE: the replicas agree whether this step is the last one and whether all their gradients are
 * finite (else times.skipped), and average what the optimizer averages before NORM.
 */
enum aq_status aq_worker_reduce(struct aq_worker *worker);

/*
 * worker_local.c: reduce.every. is_local: do replicas train steps on their own? is_apart: do their weights differ after
 * worker->step steps? hears: can a vote of this step, to end the run, reach all of them?
 */
bool aq_worker_is_local(const struct aq_worker *worker);
bool aq_worker_is_apart(const struct aq_worker *worker);
bool aq_worker_hears(const struct aq_worker *worker, uint64_t step);

/*
 * worker_local.c: the versions of the weights, before the first step: all is open, and what is lost has been fetched.
 */
enum aq_status aq_worker_versions_open(struct aq_worker *worker);

/* worker_local.c: REDUCE with local steps: it does nothing except in the last steps of a round. */
enum aq_status aq_worker_local_reduce(struct aq_worker *worker);

/*
 * worker_local.c: the stage has the weights that a look from outside is for, an evaluation's or a checkpoint's (with
 * local steps the outer ones, with train.prediction the weights themselves); and again those that it trains with.
 */
enum aq_status aq_worker_swap_in(struct aq_worker *worker);
enum aq_status aq_worker_swap_out(struct aq_worker *worker);

/*
 * worker_sums.c: split.mode: global. told: takes the socket and the first step from the start line; AQ_PROTO: keys are
 * missing, or steps are out of range. open: the server's stage connects, when edges are open. sums: REDUCE.
 */
enum aq_status aq_worker_sums_told(struct aq_worker *worker, const json_t *start);
enum aq_status aq_worker_sums_open(struct aq_worker *worker);
void aq_worker_sums_close(struct aq_worker *worker);
enum aq_status aq_worker_sums(struct aq_worker *worker);

/* worker_machine.c: with reduce.machine_first, the groups of this machine's replicas and of all machines' leaders. */
enum aq_status aq_worker_machine_open(struct aq_worker *worker);
void aq_worker_machine_close(struct aq_worker *worker);

/* worker_machine.c: the mean of the gradients over this machine's replicas, in their place. */
enum aq_status aq_worker_machine_average(struct aq_worker *worker);

/* worker_machine.c: a reduction between machines, which all replicas of this one ask for alike. */
enum aq_status aq_worker_machine_perform(struct aq_worker *worker, const struct aq_reduce *asked);

/* worker_choose.c: take the choice of the checkpoint, or measure what there is to choose by. Everything is open. */
enum aq_status aq_worker_choose_open(struct aq_worker *worker);

/* worker_choose.c: choose, where it is due: in REDUCE, before anything is averaged. */
enum aq_status aq_worker_choose(struct aq_worker *worker);

/* worker_group.c: what the group needs to reduce by the optimizer's codec as it is now, on a device. */
enum aq_status aq_worker_group_prepare(struct aq_worker *worker);

/* worker_group.c: the group and what belongs to it; the optimizer and the device are still there. */
void aq_worker_group_close(struct aq_worker *worker);

/* worker_group.c: the rounds of what was begun with the optimizer, to their end. */
enum aq_status aq_worker_rounds(struct aq_worker *worker);

/*
 * worker_group.c: have all replicas of this stage the same weights (aq_worker_swap_in), bit for bit? AQ_MISMATCH names
 * those that differ.
 */
enum aq_status aq_worker_agree(struct aq_worker *worker);

/* worker_eval.c: the held-out samples through the whole pipeline, uncompressed; the last stage reports the loss. */
enum aq_status aq_worker_evaluate(struct aq_worker *worker);

/* worker_eval.c: the next EVAL frame, which must be that of the batch, into pipeline.x; and pipeline.y as one. */
enum aq_status aq_worker_receive_eval(struct aq_worker *worker, const struct aq_edge_batch *batch);
enum aq_status aq_worker_send_eval(struct aq_worker *worker, const struct aq_edge_batch *batch);

/*
 * worker_device.c: shows the parts values at a cut, at one of AQ_PART_CUT_*. slot: the stage's. trains: a step learns
 * from the batch. Does nothing where there is no such cut. Errors: the parts'; then the values must not be sent.
 */
enum aq_status aq_worker_cut(struct aq_worker *worker, enum aq_part_moment moment, const struct aq_edge_batch *batch,
                             uint32_t slot, bool trains, const struct aq_values *values);

/* worker_snapshot.c: the guard of the cut behind this stage; NULL: it has none. */
struct aq_edge_guard *aq_worker_guard(struct aq_worker *worker);
/* And that of the gradients at the cut before it. */
struct aq_edge_guard *aq_worker_guard_back(struct aq_worker *worker);

/* worker_snapshot.c: this stage's checkpoints. Borrows from the worker. */
struct aq_checkpoint aq_worker_checkpoint(struct aq_worker *worker);

/* worker_snapshot.c: open the writer; the stage's weights are there already. */
enum aq_status aq_worker_snapshot_open(struct aq_worker *worker);

/*
 * worker_snapshot.c: start a checkpoint of the state after worker->step steps: one point in time for weights, optimizer
 * and cache. Training continues while it is written. It first waits for an earlier one that is still under way.
 */
enum aq_status aq_worker_snapshot_begin(struct aq_worker *worker);

/* worker_snapshot.c: is a checkpoint due after `step` steps, and after worker->step? */
bool aq_worker_mark_is_due(const struct aq_worker *worker, uint64_t step);
bool aq_worker_snapshot_is_due(const struct aq_worker *worker);

/*
 * worker_snapshot.c: checkpoint.every as a time. said: does this rank know, in this step, that a checkpoint follows
 * aq_worker_last_of(step)? Then it votes for it with its numbers of the step. heard: another rank did. AQ_PROTO: the
 * job has none.
 */
bool aq_worker_mark_said(const struct aq_worker *worker, uint64_t step);
enum aq_status aq_worker_mark_heard(struct aq_worker *worker, uint64_t step);

/* worker_snapshot.c: what the disk has done meanwhile; why a checkpoint failed. Called with every pump. */
enum aq_status aq_worker_snapshot_advance(struct aq_worker *worker);

/* worker_snapshot.c: serve the neighbours while this stage waits; a neighbour that has left in good order is no
 * failure. */
enum aq_status aq_worker_serve(struct aq_worker *worker);

/* worker_snapshot.c: open the copies; fetch this stage's own file from its keeper where it is lost. Edges are open. */
enum aq_status aq_worker_mirror_open(struct aq_worker *worker);

/* worker_snapshot.c: how long a checkpoint may take: the slowest disk, and a copy over a link of 1 Mbit/s. */
uint64_t aq_worker_snapshot_ns_max(const struct aq_plan *plan);

/* worker_snapshot.c: wait until no checkpoint is under way. */
enum aq_status aq_worker_snapshot_wait(struct aq_worker *worker);

/* worker_snapshot.c: take messages of the launcher: a stop (rank 0 passes it on in band), a complete checkpoint. */
enum aq_status aq_worker_control_poll(struct aq_worker *worker);

/*
 * worker_snapshot.c: rank 0, at the latest moment at which all ranks still hear of it within this step: has the
 * launcher asked for a stop? Then aq_worker_last_of(step) becomes the last step, and this reports it to the launcher.
 * Others: nothing.
 */
enum aq_status aq_worker_stop_heard(struct aq_worker *worker);

/* Pump both edges. */
enum aq_status aq_worker_pump(struct aq_worker *worker);

/* worker.c: first tokens of a sample's parts, as row `row` of worker->starts; NULL: samples have no parts. */
const uint32_t *aq_worker_starts(const struct aq_worker *worker, bool heldout, uint64_t sample, uint32_t row);

/*
 * worker_cached.c: is the edge out still (edge.h)? Then this stage trains nothing: RECV_FWD, FORWARD and SEND_FWD
 * there, which do nothing for micro-batches of which both ends hold all, and have no backward. AQ_AGAIN as the edge's
 * calls.
 */
bool aq_worker_is_cached(const struct aq_worker *worker);
enum aq_status aq_worker_cached_receive(struct aq_worker *worker, const struct aq_edge_batch *batch, uint16_t slot);
enum aq_status aq_worker_cached_forward(struct aq_worker *worker, const struct aq_worker_run *run,
                                        const struct aq_edge_batch *batch, const struct aq_instruction *instruction);
enum aq_status aq_worker_cached_send(struct aq_worker *worker, const struct aq_worker_run *run,
                                     const struct aq_edge_batch *batch, const struct aq_instruction *instruction);

/* worker_cached.c: an activation that the next stage waits for, and that this one has lost, too: part of every pump. */
enum aq_status aq_worker_cached_advance(struct aq_worker *worker);

/* worker_report.c: lines over the control channel. */
enum aq_status aq_worker_report_step(struct aq_worker *worker);
enum aq_status aq_worker_report_done(struct aq_worker *worker);
void aq_worker_report_failed(const struct aq_worker *worker, enum aq_status status);

/* `aqpipe worker`: for the daemon, not for people. */
int aq_command_worker(int argc, char **argv);

#endif
