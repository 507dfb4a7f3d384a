/*
 * worker_replicas.h -- what a worker exchanges with the other replicas of its stage: reductions, and agreements.
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
#include "reduce_measure.h"

struct aq_link; /* net/link.h */
struct aq_listener;
struct aq_transfer_give; /* transfer.h */
struct aq_worker;        /* worker.h */
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

struct aq_group;          /* net/collective.h */
struct aq_machine_groups; /* machine_groups.h */

/* How REDUCE and the optimizer's rounds are done: chosen once for a run (worker_reduce.c). */
struct aq_worker_reducer {
    enum aq_status (*reduce)(struct aq_worker *worker);  /* REDUCE                                                    */
    enum aq_status (*average)(struct aq_worker *worker); /* gradients, before the optimizer sees them; NULL: nothing  */
    /* A round of the optimizer; NULL: with one replica there is none. */
    enum aq_status (*perform)(struct aq_worker *worker, const struct aq_reduce *asked);
    struct aq_group *sends; /* whose bytes a round sends; NULL: none             */
    struct aq_group *alike; /* whose weights are always the same; NULL: none are */
};

enum { AQ_ADDRESS_TEXT_BYTES = 256 };

/* reduce.patience: who averages at a round's end (worker_local.c). */
struct aq_worker_members {
    uint64_t step;                /* of the newest round whose members the launcher has named                 */
    uint32_t attempt;             /* to average it, from 1                                                    */
    uint32_t ended;               /* the newest attempt that this rank has ended, and has reported            */
    bool broken;                  /* the launcher has ended this attempt: a member is lost                    */
    uint64_t lost;                /* then: those that are; a bit for each replica                             */
    uint64_t over;                /* step of the newest round of which all have the mean                      */
    uint64_t look_ns;             /* when the control channel is looked at again during a collective          */
    uint64_t digest;              /* of the weights that the next checkpoint gets: all replicas' are the same */
    uint64_t marked;              /* of those in the checkpoint under way                                     */
    bool travels;                 /* reduce.delay: its average is not waited for at the round's end           */
    uint64_t members;             /* of it: a bit for each replica                                            */
    uint64_t returned;            /* of them those that were no members of the round before                   */
    uint64_t without;             /* step of the round that ended without some replica; 0: none has           */
    uint64_t mark;                /* step after which the launcher asks for a checkpoint; 0: none             */
    uint64_t grouped;             /* replicas that the group has                                              */
    bool returns;                 /* this replica was lost, and has not met the others yet: it has no group   */
    struct aq_listener *listener; /* then: where they connect                                                 */
    uint64_t *caches; /* [W]: the mark at which a replica that is missing from round `without` opens its caches */
    char (*addresses)[AQ_ADDRESS_TEXT_BYTES]; /* [W]: where replicas that return listen; "": not known */
    struct aq_transfer_give **gives;          /* [W]: files on their way to other replicas; NULL: none */
};

/* reduce.steps: speed (worker_local.c). */
struct aq_worker_speed {
    bool due;                   /* a round was named that has not begun */
    uint64_t after, first;      /* it follows this step; this replica's steps of it follow that one */
    uint64_t position, updates; /* batches trained before, and updates that the moments have had */
    double *seconds;            /* [reduce.every]: of the steps since the last round's end; NULL: equal */
    uint32_t count;             /* of them */
};

struct aq_group_background; /* net/group_background.h */

/* reduce.delay (worker_local.c): the average of a round travels during the next one's first steps. */
struct aq_worker_delay {
    struct aq_group_background *background; /* NULL: no delay                                                   */
    bool under_way;                         /* a task of it has not been taken                                  */
    uint64_t vote;  /* of this rank: it travels with the next average                                           */
    uint64_t heard; /* of all ranks: the last step, a checkpoint; it takes effect at the next round's end       */
    uint64_t sent_bytes, waited_ns; /* of averages that were waited for, and that no step has counted           */
    uint64_t of;            /* reduce.patience: last step of the newest round whose average has begun           */
    struct aq_reduce asked; /* by each attempt to make it                                                       */
    bool turning;           /* an attempt is being ended or begun                                               */
};

/* Connections of this stage to its copies in the other pipelines; W > 1 (worker_group.c, _reduce.c, _choose.c). */
struct aq_worker_replicas {
    struct aq_link **peers; /* [W], to the other replicas of this stage; NULL where W is 1 */
    struct aq_group *group; /* over them                                                   */
    void *bounce;           /* pinned: weights on their way to a digest; NULL where the host reaches them */
    double *squares;        /* |g|^2 of each tensor                                        */
    uint64_t vote;          /* of this replica on this step                                */
    bool vote_pending;      /* the votes of the others on it are not received              */
    struct aq_worker_reducer reducer;
    struct aq_machine_groups *machine; /* of that reducer */
    struct aq_worker_choice choice;
    struct aq_worker_members rounds;
    struct aq_worker_speed speed;
    struct aq_worker_delay delay;
    uint64_t ended_sent_bytes; /* of groups that were closed */
    bool resharded;            /* from a checkpoint of another count of replicas: caches start empty */
};

/* worker_group.c: open the group; its links are connected. With one replica nothing. meanwhile: aq_group_config. */
enum aq_status aq_worker_group_open(struct aq_worker *worker, enum aq_status (*meanwhile)(void *worker));

/*
 * worker_reduce.c: choose the reducer; the group is open. Its `reduce` is REDUCE: the replicas agree whether this step
 * is the last one and whether all their gradients are finite (else times.skipped), and average what the optimizer
 * averages before NORM. rounds: of what was begun with the optimizer, to their end.
 */
enum aq_status aq_worker_reducer_open(struct aq_worker *worker);
void aq_worker_reducer_close(struct aq_worker *worker);
enum aq_status aq_worker_rounds(struct aq_worker *worker);

/* worker_group.c: a reduction over all replicas; and one by codecs as the group takes it, without work along. */
enum aq_status aq_worker_group_perform(struct aq_worker *worker, const struct aq_reduce *asked);
struct aq_compressed aq_worker_compressed(const struct aq_worker *worker, const struct aq_reduce *asked);

/* worker_reduce.c: the same in an attempt to average; of gradients together with the votes whether the step is void. */
enum aq_status aq_worker_perform_voted(struct aq_worker *worker, const struct aq_reduce *asked);

/*
 * worker_local.c: reduce.every. is_local: do replicas train steps on their own? is_apart: do their weights differ after
 * worker->step steps? is_delayed: reduce.delay. hears: can a vote of this step, to end the run, reach all of them?
 * votes_travel: do votes travel with an average, and count one round later?
 */
bool aq_worker_is_local(const struct aq_worker *worker);
bool aq_worker_is_apart(const struct aq_worker *worker);
bool aq_worker_is_delayed(const struct aq_worker *worker);
bool aq_worker_votes_travel(const struct aq_worker *worker);
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
 * worker_local.c: reduce.delay, else nothing. open: before the group, whose reductions a thread makes then. begin: this
 * reduction, which has `later`, during what follows; asked NULL: this stage has nothing to average. await: in a step,
 * until it is done. settle: between steps, or in REDUCE: if one is under way, until its outer step is taken. look: it
 * has not failed; with reduce.patience attempts are ended and begun here. looks_ns: until when somebody who waits has
 * to look again; AQ_NEVER: no need. meanwhile: with reduce.patience, of the group's config. stop: before anything else
 * uses the links; close: when they are halted.
 */
enum aq_status aq_worker_delay_open(struct aq_worker *worker);
enum aq_status aq_worker_delay_begin(struct aq_worker *worker, const struct aq_reduce *asked);
enum aq_status aq_worker_delay_await(struct aq_worker *worker);
enum aq_status aq_worker_delay_settle(struct aq_worker *worker);
enum aq_status aq_worker_delay_look(struct aq_worker *worker);
uint64_t aq_worker_delay_looks_ns(const struct aq_worker *worker);
enum aq_status aq_worker_delay_meanwhile(void *worker);
void aq_worker_delay_stop(struct aq_worker *worker);
void aq_worker_delay_close(struct aq_worker *worker);

/*
 * worker_local.c: reduce.patience, else nothing. told: the launcher's `members`, for which REDUCE waits, `averaged` and
 * `break`; AQ_PROTO: not of the round that this rank is at the end of, without this replica, or out of order. stand_in:
 * a snapshot is about to be taken of the weights as they are: the first member's ranks write the files of the missing
 * ones.
 */
enum aq_status aq_worker_rounds_told(struct aq_worker *worker, const json_t *message);
enum aq_status aq_worker_rounds_stand_in(struct aq_worker *worker);

/*
 * worker_local.c: reduce.patience. meet: this rank is at a round's end; until the launcher has named the members.
 * perform: the average there, a reducer's `perform`: when it returns AQ_OK, what was asked for is done over the
 * members, and all their ranks have theirs. asked NULL: this stage has nothing to average. look: for whoever waits in a
 * collective; AQ_AGAIN, or AQ_ABORTED: it is to end.
 */
enum aq_status aq_worker_rounds_meet(struct aq_worker *worker);
enum aq_status aq_worker_rounds_perform(struct aq_worker *worker, const struct aq_reduce *asked);
enum aq_status aq_worker_rounds_look(void *worker);
#define AQ_ROUNDS_LOOK_NS (2ull * 1000 * 1000)

/*
 * worker_local.c: reduce.steps: speed, else nothing. told: the launcher's message at the round's end after `step`; its
 * share of the next one: AQ_PROTO: none is named, or none that can be. begin: that round begins; worker->step becomes
 * the number of its first step here. trained: a step has ended. report: adds the time of steps to a round's end.
 */
enum aq_status aq_worker_speed_open(struct aq_worker *worker);
void aq_worker_speed_close(struct aq_worker *worker);
enum aq_status aq_worker_speed_told(struct aq_worker *worker, const json_t *message, uint64_t step);
void aq_worker_speed_begin(struct aq_worker *worker);
void aq_worker_speed_trained(struct aq_worker *worker);
void aq_worker_speed_report(struct aq_worker *worker, json_t *line);

/*
 * worker_local.c: a replica that was lost returns. enter: wait for the step whose checkpoint it starts from; at a start
 * of all (start's `waits`), until each has its file, and send what it is asked for. address:
 * the launcher's `connect` of another replica, which listens there at its first round's end; AQ_PROTO: of none. close:
 * what is left of a return.
 */
enum aq_status aq_worker_rounds_enter(struct aq_worker *worker, uint64_t *step);
enum aq_status aq_worker_rounds_address(struct aq_worker *worker, const json_t *message);
void aq_worker_rounds_close(struct aq_worker *worker);

/*
 * worker_snapshot.c: files that the first member's ranks write for missing ones. stood_in: tell the launcher of that of
 * this rank, of worker->step. fetch: by the launcher's `enter` or `start`: this rank's file of that step comes over a
 * link of its own, if it is not here. gives_open: with reduce.patience, before the first `give`. give: the launcher's
 * `give`. look: tell the launcher which file could not be sent.
 */
enum aq_status aq_worker_stood_in(struct aq_worker *worker, uint32_t rank);
enum aq_status aq_worker_fetch(struct aq_worker *worker, const json_t *message, uint64_t step);
enum aq_status aq_worker_gives_open(struct aq_worker *worker);
enum aq_status aq_worker_give(struct aq_worker *worker, const json_t *message);
enum aq_status aq_worker_gives_look(struct aq_worker *worker);
void aq_worker_gives_close(struct aq_worker *worker);

/* worker_group.c: a group over these links to `size` ranks, of which this one is `rank`. meanwhile: aq_group_config. */
enum aq_status aq_worker_group_over(struct aq_worker *worker, struct aq_link *const *links, uint32_t rank,
                                    uint32_t size, enum aq_status (*meanwhile)(void *worker));

/* worker_choose.c: take the choice of the checkpoint, or measure what there is to choose by. Everything is open. */
enum aq_status aq_worker_choose_open(struct aq_worker *worker);

/* worker_choose.c: choose, where it is due: in REDUCE, before anything is averaged. */
enum aq_status aq_worker_choose(struct aq_worker *worker);

/* worker_group.c: what the group needs to reduce by the optimizer's codec as it is now, on a device. */
enum aq_status aq_worker_group_prepare(struct aq_worker *worker);

/* worker_group.c: the group and what belongs to it; the optimizer and the device are still there. */
void aq_worker_group_close(struct aq_worker *worker);

/*
 * worker_group.c: have all replicas of this stage the same weights (aq_worker_swap_in), bit for bit? AQ_MISMATCH names
 * those that differ.
 */
enum aq_status aq_worker_agree(struct aq_worker *worker);

#endif
