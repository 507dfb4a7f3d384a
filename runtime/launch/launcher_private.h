/* launcher_private.h -- what launcher.c (the loop), launcher_hosts.c (daemons) and launcher_events.c (reports) share.
 */
#ifndef RUNTIME_LAUNCHER_PRIVATE_H
#define RUNTIME_LAUNCHER_PRIVATE_H

#include <stdio.h>
#include <sys/types.h>

#include "control.h"
#include "control_socket.h"
#include "heartbeat.h"
#include "launcher.h"
#include "launcher_probe.h"
#include "message.h"
#include "run_folder.h"
#include "seal.h"

/* Failures that are a neighbour's word for another's end are worse causes than failures of one's own. */
enum cause_class { CAUSE_NONE = 0, CAUSE_ECHO = 1, CAUSE_OWN = 2 };

enum { REACH_WHY_BYTES = 400 };

struct host {
    const char *address;        /* NULL: the private daemon */
    struct aq_control *control; /* NULL: gone */
    pid_t pid;                  /* of a private daemon, or of ssh; 0: none, or reaped */
    int said;                   /* ssh's standard error, a file in memory; 0: no ssh */
    bool beats;                 /* it sends beats                      */
    enum aq_status broken;      /* it cannot be sent to: lost when its lines were read; AQ_OK: it can */
    struct host_reach {
        struct aq_control_meeting *meeting; /* a try that is under way: being greeted; NULL: not           */
        struct aq_control *control;         /* then: greeted, and asked to take the job; NULL: not         */
        uint64_t deadline_ns;               /* of its answer                                               */
        uint64_t due_ns;                    /* of the next try                                             */
        uint64_t lost_ns;                   /* since when, by the watch's clock                            */
        uint32_t tries;                     /* since it was lost                                           */
        char why[REACH_WHY_BYTES];          /* what the user was told last of why it cannot be; "": nothing */
    } reach;                                /* without `control`: launcher_reach.c                         */
};

enum stage_state { STAGE_NONE = 0, STAGE_STARTED, STAGE_READY, STAGE_DONE, STAGE_EXITED };

/* What a rank has told of the average under way. */
enum stage_average { AVERAGE_NONE = 0, AVERAGE_TORN, AVERAGE_WHOLE };

struct stage {
    uint32_t host;
    enum stage_state state;
    uint64_t mark;                           /* newest step that this rank has a checkpoint of */
    char hash[AQ_HASH_TEXT_BYTES];           /* of its file; "": none, because there are no copies */
    enum aq_phase phase;                     /* before the first step: its last reported phase    */
    uint64_t step;                           /* newest that this rank has reported             */
    uint64_t evaluated;                      /* newest step that it has evaluated after    */
    uint64_t round;                          /* newest step that ends a round and that it has come to */
    enum stage_average averaged;             /* in this attempt */
    double step_seconds;                     /* of its steps in the newest round; 0: not known */
    uint64_t ended;                          /* then, of AVERAGE_TORN: replicas its links to which have ended */
    uint64_t weights;                        /* digest of those in its newest checkpoint; 0: it sends none */
    uint64_t trace_bytes;                    /* that it has sent                         */
    int pid;                                 /* as its daemon tells                      */
    uint64_t listens[AQ_JOB_RANKS_MAX / 64]; /* a bit for each rank that it listens for */
    bool stopping;                           /* reported which step is the last one           */
    bool distrusted;                         /* broke the protocol: its later lines are ignored */
    bool done;                               /* said `done`                                    */
    bool failed;                             /* sent `failed`: its exit is no further cause */
    char on[128];                            /* its device, as it named it at `ready`; "": it did not */
    struct {
        uint64_t step;                 /* of its newest file that another rank has written for it; 0: none */
        uint64_t bytes;                /* of that file                                                     */
        uint32_t by;                   /* that rank                                                        */
        char hash[AQ_HASH_TEXT_BYTES]; /* of that file                                                     */
        bool asked;                    /* it does not have the file, and that rank is to send it           */
    } file;                            /* reduce.patience; of `resume`, too, by hashes.json                */
    json_t *report;                    /* its done line                                                    */
    json_t *evals; /* of the last stage of a replica: held-out losses that others have not reported yet; or NULL */
};

/* Where a replica is between its loss and its return (launcher_return.c has the transitions). */
enum replica_state {
    REPLICA_TRAINS = 0,
    REPLICA_ENDS,   /* lost; its processes are being ended */
    REPLICA_AWAY,   /* lost; they have ended, and a daemon that is to start the new ones is out of reach */
    REPLICA_STARTS, /* lost; new processes open what needs no weights, and wait for a round's end */
    REPLICA_ENTERS, /* counts from that round on; its processes start from the round's checkpoint */
    REPLICA_GONE    /* lost, and does not return: all go back to the next round's checkpoint */
};

struct launcher_replica {
    enum replica_state state;
    bool lost;            /* the next round ends without it */
    bool member;          /* it was named in the newest round, or none was named yet */
    uint64_t from;        /* its lines count after this step */
    uint64_t caches;      /* the mark at which its caches are opened if it is lost and returns; 0: they start empty */
    uint32_t tries;       /* starts since it was a member */
    uint64_t deadline_ns; /* of REPLICA_ENDS, AWAY, STARTS and ENTERS, by the watch's clock */
    uint64_t go_ns;       /* 1 + when, by the same clock, it was told to train again; 0: never */
    bool cold;            /* in this round it has sent samples whole, which its caches lack since its return */
    uint32_t late;        /* rounds in a row for which it was late while it was cold */
    /* reduce.steps: speed (launcher_steps.c). */
    struct launcher_share {
        uint64_t steps;         /* that it trains of the round under way, its last ones             */
        uint64_t position;      /* batches that it has trained before, and that counted             */
        uint64_t updates;       /* that its moments have had before                                 */
        uint64_t after, before; /* of the round: it trains none of the steps after this one up to that one */
        double step_seconds;    /* that a step of it takes; 0: not known                            */
    } share;
};

/* reduce.patience (launcher_rounds.c). */
struct launcher_rounds {
    struct launcher_replica replicas[AQ_JOB_RANKS_MAX];
    uint64_t decided;   /* last step of the newest round that is over: all its members have the mean */
    uint64_t averaging; /* last step of the round whose members were named, and have not all the mean; 0: none */
    uint64_t named;     /* these members; a bit for each replica */
    bool travels;       /* reduce.delay: they train on meanwhile, so nothing else can follow on this round's end */
    uint64_t entered, entered_at; /* replicas that were to return with the newest round's end, and that step */
    uint32_t attempt;             /* of this round, from 1 */
    uint64_t torn_ns;  /* 1 + when, by the watch's clock, all had ended this attempt, some without the mean, and
                           nobody was lost; 0: it is not so */
    uint64_t without;  /* of a round without some replica whose checkpoint is asked for, and not complete; 0: none */
    uint64_t dropped;  /* checkpoints of this step and before that were not complete are broken off: a replica was lost
                           before it had written its part; 0: none */
    uint64_t first_ns; /* 1 + when, by the watch's clock, the first came to the end of the next round; 0: none has */
    bool gathers;      /* before `go`: ranks wait until each has its file of the checkpoint to resume from */
    json_t *log;       /* to repeat a run by: its lines `round`, by step; NULL: none */
};

enum { RANK_NAME_BYTES = 48 };

struct launcher {
    const struct aq_launch *launch;
    struct aq_launch_result *result;
    struct host hosts[AQ_JOB_RANKS_MAX];
    uint32_t host_count;
    struct stage stages[AQ_JOB_RANKS_MAX]; /* by rank */
    uint32_t ranks;
    uint32_t ready, ended; /* ranks */
    bool private_silent;   /* the private daemon has not answered to the job */
    bool gone;             /* `go` was said                    */
    bool stopping;         /* a stop was asked for             */
    bool stopped;          /* the ranks reported that they stopped */
    bool aborting;
    bool noted; /* the run folder has a record of a checkpoint */
    enum cause_class cause;
    uint64_t cause_deadline_ns; /* an echo waits so long for a better cause  */
    uint64_t end_deadline_ns;   /* of an abort                               */
    uint64_t ready_deadline_ns;
    uint64_t last_step;  /* after which the ranks stop, by their reports; 0: the plan's */
    double read_seconds; /* of the slowest stage's checkpoint */
    double rtt_ms;       /* the longest round trip of which the plan does not know; 0: none */
    uint64_t best_kept;  /* step of the best evaluation whose checkpoint is complete; 0: none */
    uint64_t mark_bytes; /* of metrics.jsonl, at the newest complete checkpoint */
    json_t *hashes;      /* of complete checkpoints, by step; NULL: none */
    struct launcher_rounds rounds;
    struct aq_watch watch;
    uint64_t beat_ns, beat_due_ns; /* ours to the daemons; 0: none */
    uint64_t bits_epochs;          /* bits were sent for the epochs before this one; 0: none yet */
    uint64_t board_due_ns;         /* when the board is updated again */
    FILE *trace;
    bool trace_failed;
    bool more; /* a daemon has sent more than a turn's worth */
    /* Of an asking (launcher_ask.c). */
    bool token_due, ending; /* the next token was requested and has not come; the end was sent */
    uint32_t token;         /* that came last                                                  */
};

/* launcher_hosts.c */
enum aq_status hosts_open(struct launcher *launcher);
/* Of all ranks, or of one: a daemon that cannot be told is lost soon (host_send). */
void hosts_start(struct launcher *launcher);
void host_start(struct launcher *launcher, uint32_t rank, bool returns);
/* why: the rest of a sentence that begins with the daemon; NULL: by the status. Only its replicas are lost, or it is
 * the run's cause. */
void host_lost(struct launcher *launcher, struct host *host, enum aq_status status, const char *why);
void hosts_close(struct launcher *launcher);
/* Ask a daemon over this channel to take the job (again: only a part of it was lost), and take its answer. */
enum aq_status host_ask(const struct launcher *launcher, struct aq_control *control, bool again);
enum aq_status host_answered(const struct launcher *launcher, struct host *host, const json_t *message);
/* Takes the reference; a daemon that cannot be reached is lost soon. */
void host_send(struct host *host, json_t *message);
/* To the daemon that has the stage; takes the reference. */
void stage_send(struct launcher *launcher, uint32_t rank, json_t *message);
void hosts_send(struct launcher *launcher, json_t *message); /* to every daemon; takes the reference */

/*
 * launcher_reach.c: a daemon that is lost while other replicas train (reduce.patience). lost: false: that is the whole
 * run's loss. turn: tries are begun and go on. all: is every daemon of the replica here? fd: of a try that is under
 * way, with the events to poll it for; -1: none is. close: no more tries.
 */
bool launcher_reach_lost(struct launcher *launcher, struct host *host, const char *why);
void launcher_reach_turn(struct launcher *launcher);
bool launcher_reach_all(const struct launcher *launcher, uint32_t replica);
int launcher_reach_fd(const struct host *host, short *events);
void launcher_reach_close(struct host *host);

/* launcher_ssh.c: of a host ssh://... -- start ssh with an agent behind it, whose control channel is host->control. */
enum aq_status agent_start(struct host *host);
/* It has not taken the job, with this status and error text: fails with the cause, and ends it. Never AQ_OK. */
enum aq_status agent_why(struct host *host, enum aq_status status, const char *text);
/* AQ_MISMATCH: it is of another version. */
enum aq_status agent_check(const struct host *host, const char *version);
void agent_end(struct host *host);                                 /* kill and reap ssh, where it runs      */
void agent_tail(const struct host *host, char *how, size_t bytes); /* append the last line of ssh           */

/* launcher_hashes.c: reads RUN/hashes.json; returns the hash of one file, or NULL. stood_in: another rank has written
 * that file: then stage->file is of it. */
enum aq_status launcher_hashes_load(struct launcher *launcher);
const char *launcher_hash(const struct launcher *launcher, uint64_t step, uint32_t rank);
bool launcher_hash_stood_in(struct launcher *launcher, uint64_t step, uint32_t rank);
/* launcher_hashes.c: stores a rank's own ("": none); false: it is no hash. Writes those of all ranks, and `older`'s. */
bool launcher_hash_told(struct launcher *launcher, uint32_t rank, const char *hash);
enum aq_status launcher_hashes_note(struct launcher *launcher, uint64_t step, uint64_t older);

/* launcher.c: "stage 2", or "replica 1 stage 2", for people. */
const char *rank_name(const struct launcher *launcher, uint32_t rank, char text[RANK_NAME_BYTES]);

/* launcher_events.c */
void launcher_event(struct launcher *launcher, struct host *host, json_t *message);
void launcher_starting(struct launcher *launcher); /* say what is waited for */

/* launcher_bounds.c: may the worker send this line now? Then *out has its fields. If not, that is the run's cause, and
 * the line must be dropped. */
bool launcher_expects(struct launcher *launcher, uint32_t rank, json_t *line, struct aq_message *out);

/* launcher_bounds.c: the rank for which this rank listens. */
uint64_t launcher_peer(uint32_t rank, const struct aq_message *listening);

/* launcher_bounds.c: is it due after this step? After the last one always; every 0: only then. */
bool launcher_is_due(uint64_t every, uint64_t step, uint64_t steps);

/* ---- launcher_probe.c ---- */

enum { PROBE_ADDRESS_CHARS = 255 };

struct probe_rank {
    bool ready, failed;
    uint32_t owed;                         /* answers that did not come in time, and may come yet */
    char address[PROBE_ADDRESS_CHARS + 1]; /* where it listens; "": it does not (yet) */
    char why[AQ_PROBE_TEXT_CHARS + 1];     /* of failed                               */
};

/* One end of the pair that is being measured. */
struct probe_answer {
    bool asked, come, measured;
    enum aq_status status;
    uint32_t phase;
    char text[AQ_PROBE_TEXT_CHARS + 1];
};

struct probe {
    struct launcher launcher; /* hosts and their channels */
    struct probe_rank ranks[AQ_JOB_RANKS_MAX];
    struct aq_probe_pair *pair; /* NULL: none is under way  */
    struct probe_answer answers[2];
};

/* One line of a daemon. False: it breaks the protocol, which is the cause now. */
bool probe_event(struct probe *probe, const struct host *host, const json_t *message);

/* The pair's time is over: what an end has not answered is owed, and dropped when it comes. */
void probe_give_up(struct probe *probe);

/*
 * launcher_rounds.c: reduce.patience; without it they do nothing. open: reads launch->rounds. came: a rank is at the
 * end of a round. averaged: it has ended an attempt to average. lose: this rank has ended or fails; true: its replica
 * alone is lost, and the run goes on. turn: is a replica late? marked: the checkpoint of this step is complete, or it
 * is one that was broken off, and all that live have written theirs.
 */
enum aq_status launcher_rounds_open(struct launcher *launcher);
void launcher_rounds_close(struct launcher *launcher);
bool launcher_rounds_due(const struct launcher *launcher, uint64_t step); /* does a round end there? */
void launcher_rounds_came(struct launcher *launcher, uint32_t rank, uint64_t step);
void launcher_rounds_averaged(struct launcher *launcher, uint32_t rank, bool whole, uint64_t ended);
bool launcher_rounds_lose(struct launcher *launcher, uint32_t rank, const char *why);
bool launcher_rounds_held(const struct launcher *launcher); /* does the round's end wait for a replica to return? */
void launcher_rounds_turn(struct launcher *launcher);
void launcher_rounds_marked(struct launcher *launcher, uint64_t step);
bool launcher_is_dropped(const struct launcher *launcher, uint64_t step); /* the checkpoint of this step */
bool launcher_is_lost(const struct launcher *launcher, uint32_t rank);    /* its replica is */
/* Was its replica lost, or not back yet, in this step? */
bool launcher_was_lost(const struct launcher *launcher, uint32_t rank, uint64_t step);
/* Lines of this rank are of a lost replica's old process: they do not count. */
bool launcher_is_ignored(const struct launcher *launcher, uint32_t rank);

/*
 * launcher_steps.c: reduce.steps: speed; without it they do nothing. open: the first round's, from the run's own log
 * where it resumes. named: may a line of a log name them so? next: the round that ends with `step` had these members;
 * what each of those that train the next one does of it. known: is it known how fast this replica is? due: the step
 * that the rank reports next. add: to a message that starts a round. note: to the line of the round's end.
 */
enum aq_status launcher_steps_open(struct launcher *launcher);
bool launcher_steps_named(const struct launcher *launcher, const json_t *line);
void launcher_steps_next(struct launcher *launcher, uint64_t step, uint64_t members);
bool launcher_steps_known(const struct launcher *launcher, uint32_t replica);
uint64_t launcher_steps_due(const struct launcher *launcher, uint32_t rank);
void launcher_steps_add(const struct launcher *launcher, uint32_t rank, json_t *message);
void launcher_steps_note(const struct launcher *launcher, json_t *line);

/* launcher_rounds.c: the round that ends with this step in the run that is repeated, or NULL: none is noted. And the
 * last step of the round after it. */
const json_t *launcher_rounds_logged(const struct launcher *launcher, uint64_t step);
uint64_t launcher_rounds_after(const struct launcher *launcher, uint64_t step);

/*
 * launcher_return.c: how a lost replica returns. stood_in, fetch, ungiven: lines about the file that a rank of it
 * starts from. fetches: has one of its ranks asked for it, and is not ready? giver_lost: files that this replica was to
 * send do not come. late: why it has not read its checkpoint in time. gather_open: all resume from a step: do ranks
 * wait until each has its file? gather_add: what `start` tells a rank of that. gathered: one may be the last to have
 * its file. gather_late: not all were ready in time; true: because of a file, which is the run's cause now. begin: it
 * was just lost; its processes are
 * ended, or it does not return. exited: this rank's process has ended; true: that is no loss. reached: a daemon
 * answers again. ready: this rank is, while others train. waits: is it where it can enter? may: will it return by
 * itself? enter: the round that ends with this step was its last one without; its ranks are told when the checkpoint
 * is complete (told). stay: it is broken off, so they wait for a later one. turn: has one taken too long? is_late:
 * has a replica that is missed at a
 * round's end, where the first came at first_ns, taken more than its patience since then, and since it was told to
 * train again? patience: the run's, or longer while its caches are filled again. cold: it has sent a sample that they
 * lack. came: all that live are at a round's end; in_time: within the run's patience. marked: all that live have the
 * checkpoint of this step; complete: it is the run's, and not broken off. open: the launch begins. over: a round is;
 * these replicas averaged for the first time since their return, and these enter after it.
 */
void launcher_return_stood_in(struct launcher *launcher, uint32_t rank, const struct aq_message *message);
void launcher_return_fetch(struct launcher *launcher, uint32_t rank, const struct aq_message *message);
void launcher_return_ungiven(struct launcher *launcher, uint32_t rank, const struct aq_message *message);
bool launcher_return_fetches(const struct launcher *launcher, uint32_t replica);
void launcher_return_giver_lost(struct launcher *launcher, uint32_t replica);
enum { LATE_BYTES = 200 };
void launcher_return_late(const struct launcher *launcher, uint32_t replica, char text[LATE_BYTES]);
void launcher_return_gather_open(struct launcher *launcher);
void launcher_return_gather_add(const struct launcher *launcher, uint32_t rank, json_t *start);
void launcher_return_gathered(struct launcher *launcher);
bool launcher_return_gather_late(struct launcher *launcher);
void launcher_return_begin(struct launcher *launcher, uint32_t replica);
bool launcher_return_exited(struct launcher *launcher, uint32_t rank);
void launcher_return_reached(struct launcher *launcher);
void launcher_return_ready(struct launcher *launcher, uint32_t rank);
bool launcher_return_waits(const struct launcher *launcher, uint32_t replica);
bool launcher_return_may(const struct launcher *launcher, uint32_t replica);
bool launcher_return_is_late(const struct launcher *launcher, uint32_t replica, uint64_t first_ns);
uint64_t launcher_return_patience(const struct launcher *launcher, uint32_t replica);
void launcher_return_cold(struct launcher *launcher, uint32_t rank);
void launcher_return_came(struct launcher *launcher, bool in_time);
void launcher_return_marked(struct launcher *launcher, uint64_t step, bool complete);
void launcher_return_open(struct launcher *launcher);
void launcher_return_over(struct launcher *launcher, uint64_t step, uint64_t returned, uint64_t entering);
void launcher_return_enter(struct launcher *launcher, uint32_t replica, uint64_t step);
void launcher_return_told(struct launcher *launcher, uint64_t step);
void launcher_return_stay(struct launcher *launcher, uint64_t step);
void launcher_return_turn(struct launcher *launcher);

/* launcher_events.c: lines, and a checkpoint, that have waited only for ranks that are lost now. */
void launcher_flush(struct launcher *launcher);
void launcher_flush_mark(struct launcher *launcher);

/* launcher_watch.c */
void watch_open(struct launcher *launcher);
void watch_send(struct launcher *launcher);                           /* our own beat, where it is due          */
void watch_heard(struct launcher *launcher, const struct host *host); /* something came from it                 */
void watch_beat(struct launcher *launcher, const struct aq_message *message);
void watch_look(struct launcher *launcher); /* when all that came was read: who is silent, is the job stuck? */

/* launcher_board.c: what stages are doing, now and then, where there is a board */
void launcher_board(struct launcher *launcher);

/* launcher.c: wait a little for signals, daemons and clocks, and do what follows. False: all have ended, or are to. */
bool launcher_turn(struct launcher *launcher);

/* launcher.c: note a cause; the better one is kept, the first of its class. True: this one was. */
bool launcher_fail(struct launcher *launcher, enum cause_class cause, enum aq_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void launcher_stop(struct launcher *launcher, const char *who);
void launcher_signals(struct launcher *launcher); /* stops for each that has come */
void launcher_abort(struct launcher *launcher);   /* kill all workers: the loop ends when they are gone */

#endif
