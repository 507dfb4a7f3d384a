/*
 * worker_replicas.h -- what a worker exchanges outside its edges: reductions with the other replicas and machines, sums
 * of the clients' gradients, and a table that the first and the last stage share.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_REPLICAS_H
#define RUNTIME_WORKER_REPLICAS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/grad.h"
#include "aqsgd/grad_choice.h"
#include "plan.h"
#include "reduce_measure.h"

struct aq_link;       /* net/link.h */
struct aq_worker;     /* worker.h */
struct aq_worker_run; /* worker_run.h */
struct aq_worker_times;

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

/* split.mode: global (worker_sums.c). */
struct aq_worker_sums {
    uint64_t shift; /* the plan's step minus the own step, modulo 2^64; 0 in all other jobs               */
    char *path;     /* the server's stage: of the socket where gradients are summed  */
    int fd;         /* connected to it; of no meaning without a path                 */
    float *copy;    /* pinned: this stage's gradients, where they lie on a GPU       */
    uint32_t consecutive_nonfinite; /* steps in which this client's gradients were not finite        */
};

/* reduce.patience: who averages at a round's end (worker_local.c). */
struct aq_worker_rounds {
    uint64_t step;    /* of the newest round whose members the launcher has named                 */
    uint64_t members; /* of it: a bit for each replica                                            */
    uint64_t without; /* step of the round that ended without some replica; 0: none has           */
};

/* A head that is the embedding's table, behind a cut (worker_tied.c). */
struct aq_worker_tied {
    bool ready;     /* the edge has the words to send: worker_tied.c                  */
    bool decoded;   /* compressed: the head's gradient has been decoded in this step */
    bool previous;  /* values are those before the last update                       */
    uint64_t words; /* that lie in the edge                                          */
    bool local;     /* both ends are the client's: through fd, and `host`            */
    int fd;
    struct aq_plan_tied traffic;
    struct aq_grad_codec *codec; /* NULL: nothing is compressed here */
    float *host;                 /* NULL: the stage's memory is the host's */
};

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
 * worker_local.c: reduce.patience, else nothing. told: the launcher's `members`, for which REDUCE waits; AQ_PROTO: not
 * of the round that this rank is at the end of, or without this replica. stand_in: a snapshot is about to be taken of
 * the weights as they are: the first member's ranks write the files of the missing ones.
 */
enum aq_status aq_worker_rounds_told(struct aq_worker *worker, const json_t *message);
enum aq_status aq_worker_rounds_stand_in(struct aq_worker *worker);

/* worker_group.c: a group over these links to `size` ranks, of which this one is `rank`. */
enum aq_status aq_worker_group_over(struct aq_worker *worker, struct aq_link *const *links, uint32_t rank,
                                    uint32_t size);

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

#endif
