/*
 * split_private.h -- what split_server.c (the loop and the door), split_round.c (rounds: who takes part, and their
 * ends), split_turn.c (turns), split_ahead.c (the next one's files), split_weights.c (files of stages) and
 * split_state.c (the disk) share.
 */
#ifndef RUNTIME_SPLIT_PRIVATE_H
#define RUNTIME_SPLIT_PRIVATE_H

#include <poll.h>
#include <sys/types.h>

#include "control.h"
#include "net/tls.h"
#include "run_folder.h"
#include "split_job.h"
#include "split_piece.h"
#include "split_server.h"
#include "split_session.h"

enum {
    SPLIT_NEWCOMERS_MAX = 256, /* half for one address: at 400 strangers a second there every third try is let in */
    SPLIT_NEWCOMER_S = 5,      /* for its certificate and its first line                               */
    SPLIT_ANSWER_S = 60,       /* for what a client owes (ready, the next part of a file), or control.silence_max */
    SPLIT_TRIES_MAX = 3,       /* of a turn, from one checkpoint                                       */
    SPLIT_QUEUE_BYTES = 8 << 20,
    SPLIT_SUMS_POLLS = AQ_JOB_TURNS_MAX + 10,
    SPLIT_WEIGHTS_NONE = -1
};

/* A client: what is known of it, and its connection and turn, where it has any. */
struct site {
    char name[AQ_TLS_HOST_BYTES];
    struct aq_split_join join; /* as it said at last                                    */
    struct aq_split_job job;   /* planned with that; zeroes: it has not joined yet, since the server began */
    uint64_t begin, until;     /* its own steps, of the turn under way; until 0: none     */
    uint32_t round;            /* the last one that it is done with: trained, or missed   */
    uint32_t turns, missed, rested;
    uint32_t lates;        /* rounds in which it was waited for, or that ended before its turn  */
    bool kept;             /* its turn of this round is in round/NAME, to be averaged                 */
    uint64_t samples;      /* that it trains on                                   */
    double epsilon, delta; /* of its samples, as it said last; NaN: it has said none */
    uint64_t mark;         /* the newest complete checkpoint of its run                           */
    /* Global sampling (split_sums.c). */
    uint64_t first;      /* index of its first sample among all clients' samples     */
    bool absent;         /* this round's batches are drawn without its samples       */
    bool lengths_agreed; /* once since the server started: it may not come with other data any more               */
    uint64_t began_all, began_first; /* all_samples and first in its first round; began_all 0: it had none  */
    uint64_t counted;                /* the last step that its part is in, plus one; 0: none     */
    uint64_t sum_ns;                 /* last line of its stage about sums, or offer or start of its turn */
    bool summing;                    /* its stage has sent a part since it was started           */
    /* Its connection. */
    struct aq_control *control; /* NULL: it is away */
    struct aq_split_session session;
    uint64_t deadline_ns; /* of what it owes, or of being back; AQ_NEVER */
    char peer[64];
    /* Its turn. */
    bool offered;            /* this turn, since it is back                     */
    bool owed;               /* this turn is due, and its labels are not here   */
    struct aq_split_out out; /* a file on its way to it                         */
    uint32_t outs;           /* ends that are on their way or there             */
    bool sends;              /* there are more                                  */
    struct aq_split_in in;
    pid_t pid;                            /* of the turn's launcher; 0: none                 */
    struct aq_control *launch;            /* its channel; NULL: none                         */
    uint32_t tries;                       /* that failed, or that its client left, since its last checkpoint */
    uint64_t tried_mark;                  /* which was at this step                          */
    bool failed;                          /* a try was counted, and none has begun since     */
    bool late;                            /* it is waited for, or was, in this round          */
    uint32_t ahead_round;                 /* the last one with an offer ahead of its turn */
    char why[AQ_SPLIT_TEXT_BYTES];        /* its turn's last failure                          */
    char missed_why[AQ_SPLIT_TEXT_BYTES]; /* why it missed its last turn; "": it missed none  */
};

struct sums;  /* split_sums.c */
struct shown; /* split_board.c */

struct pending {
    struct aq_control *control; /* NULL: the place is free */
    uint64_t source, since_ns;
    char peer[64];
};

/* The next turn, before it is due (split_ahead.c). */
struct ahead {
    struct site *site;   /* whose it is; NULL: nobody's                              */
    struct site *source; /* relay: its ends are those that this one sends now; else NULL */
    bool ready;          /* it has them, and its daemon runs                          */
};

struct server {
    const struct aq_split_server_config *config;
    struct aq_job *job;
    struct aq_tls *tls;
    int listener, lock;
    struct pending pendings[SPLIT_NEWCOMERS_MAX];
    struct site sites[AQ_JOB_CLIENTS_MAX];
    uint32_t site_count;
    uint32_t round;               /* under way, from 1 on; 0: clients are gathering; above split.rounds: the end */
    uint32_t drawn;               /* the last round of which it is decided who takes part   */
    uint64_t round_ns;            /* when it began, or this process                         */
    uint64_t round_before_ns;     /* what it had of time before this process                */
    uint64_t round_kept_ns;       /* and in all, as in split.json                           */
    int weights;                  /* the folder of the newest: 0, 1, or SPLIT_WEIGHTS_NONE  */
    char last[AQ_TLS_HOST_BYTES]; /* splitfed2: whose turn the middle of this round comes from; "": none yet */
    uint64_t all_samples;         /* global sampling: of those that are not out; 0: they are not known yet      */
    uint64_t steps_before;        /* global sampling: of all rounds before this one                             */
    uint32_t vocabulary, labels;  /* of the network of the weights; zeroes: no weights yet                      */
    struct sums *sums;            /* then: the stages that send parts of steps; else NULL                       */
    struct ahead ahead;
    struct shown *shown; /* last state of the status page, --json and status.json */
    bool stopping, over;
    bool ended;       /* all rounds are over, and their results are written */
    uint64_t wipe_ns; /* when caches are looked at again */
    enum aq_split_end end;
    char cause[AQ_SPLIT_TEXT_BYTES]; /* of AQ_SPLIT_FAILED, from server_fails */
    struct aq_log_limit strangers;   /* what is said of them  */
    uint64_t refusals_ns;            /* since when lines of refusals are counted             */
    uint32_t refusals, unsaid;       /* since then; those that were not printed              */
    bool disagree;                   /* it was printed that the connected clients do not agree */
};

/* split_state.c: RUN/split.json, and the folders next to it. */
enum aq_status state_load(struct server *server);
enum aq_status state_save(struct server *server);
json_t *state_line(const struct site *site); /* its line of split.json; NULL: no memory */
/* "RUN/weights/0", "RUN/clients/NAME": AQ_INVAL: too long. */
enum aq_status state_path(const struct server *server, char out[AQ_RUN_PATH_BYTES], const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *state_mode(const struct server *server);              /* as the manifest calls it */
struct site *state_site(struct server *server, const char *name); /* known or made; NULL: there is no place */
uint32_t state_sites_max(const struct server *server);            /* how many places there are             */
/* As if it had never joined; before the first round. Its connection and plan are closed; later sites move down. */
void state_forget(struct server *server, struct site *site);
/* The next one behind `before` in order of names (NULL: the first); NULL: that was the last. */
struct site *state_after(const struct server *server, const struct site *before);
/* The newest complete checkpoint of its run: 0: none. */
uint64_t state_mark(const struct server *server, const struct site *site);
/* The turn has ended well: what it trained, of which the ends lie in round_ends, counts. */
enum aq_status state_commit(struct server *server, struct site *site);
/*
 * split_weights.c. turn_check: the ends that a client sent, and the middle that was trained with it, each
 * stage-R.safetensors in its folder: of the stages of its plan, whole and finite, and have the moments of the ends had
 * the turn's updates? AQ_NOMEM; others: `why` has the cause, also sent to the client. weights_begin: initial weights,
 * into weights/0. weights_average: a stage of all turns that the round has kept, into weights/TO.
 */
enum aq_status turn_check(const struct server *server, const struct site *site, const char *ends, const char *middle,
                          char why[AQ_SPLIT_TEXT_BYTES]);
enum aq_status weights_begin(const struct server *server, const struct aq_plan *plan);
enum aq_status weights_average(const struct server *server, const struct aq_plan *plan, uint32_t rank, int to);

/* split_round.c: whatever is due: the next round, the next turns. */
void round_advance(struct server *server);
/*
 * A plan of the stages: of a connected client, or (again, which the caller always closes) from the manifest of an
 * earlier turn; NULL: no client has connected yet. AQ_NOTFOUND, AQ_INVAL: the manifest is missing or invalid.
 */
enum aq_status round_plan(const struct server *server, struct aq_split_job *again, const struct aq_plan **plan);
uint64_t round_elapsed_ns(const struct server *server);
uint64_t round_place(const struct server *server, const struct site *site, uint32_t round); /* the least is first */
/* The folders that a turn of this client takes its ends and its middle from, and leaves what it trained in. */
enum aq_status round_middle(const struct server *server, char out[AQ_RUN_PATH_BYTES]);
enum aq_status round_ends(const struct server *server, const struct site *site, char out[AQ_RUN_PATH_BYTES]);

/*
 * split_wipe.c: split.cache_ttl: removes caches of clients without a turn for that time, or, all: of every client;
 * split.cache_max: and excess caches, those with the latest next turn first. The cache of a turn under way is kept. A
 * failed removal is logged, and tried again in a minute. AQ_IO and its like, with all: a removal failed.
 */
enum aq_status caches_wipe(struct server *server, bool all);

/*
 * split_sums.c: global sampling; in other modes nothing. serve: take parts of steps, answer sums, end turns that are
 * late. polls: descriptors to wait for, SPLIT_SUMS_POLLS at most. path: the socket to which a turn's middle stage sends
 * its parts.
 */
enum aq_status sums_open(struct server *server);
void sums_close(struct server *server);
void sums_serve(struct server *server);
void sums_forget(struct server *server); /* the round is over: its sums are not needed any more */
uint32_t sums_polls(struct server *server, struct pollfd *fds);
/* The client whose part of the open step is due while others' parts are here; NULL: none. And has this one sent it? */
const struct site *sums_awaited(const struct server *server, uint64_t *step);
bool sums_counted(const struct server *server, const struct site *site);
enum aq_status sums_path(const struct server *server, char out[AQ_RUN_PATH_BYTES]);

/*
 * split_board.c: the status page (status.listen), --json, and RUN/status.json for `aqpipe status`. Call shown_tell in
 * each turn of the loop: it reports the changes since its last call. end: reports the result. A page that cannot be
 * opened ends the server before any client waits for it.
 */
enum aq_status shown_open(struct server *server);
void shown_tell(struct server *server);
void shown_end(struct server *server, enum aq_status status);
void shown_close(struct server *server);

/* split_report.c: a client's line of report.json, as it is now; NULL: no memory. */
json_t *report_client(const struct server *server, const struct site *site);
/* split_report.c: what a report of split.json needs of the job; NULL: no memory. */
json_t *report_planned(const struct server *server);

/* split_report.c: report.json and a table; the model, where split.collect has it. */
enum aq_status report_leave(const struct server *server);
enum aq_status model_leave(const struct server *server);

/*
 * split_round.c: global sampling: the steps of a round; and by how many a client's own steps are fewer than those of
 * all, in its turn.
 */
uint64_t round_steps(const struct server *server);
uint64_t turn_shift(const struct server *server, const struct site *site);
/*
 * split_join.c. plan: the plan of a client's turns, from its facts of its data; together: and from those of all
 * clients. It has no side effect. take: they are its turns from now on; takes the job. other_network: its data make a
 * network of other sizes than the job has, or than the server's owner gave. too_many: with its samples all have more
 * than can be put in order (global sampling). agreed: split.clients are here whose data make one network, and none of
 * them claims more than split.share_max; whoever differs is refused then. settle: with global sampling, when they
 * agree: fixes the set of clients. gathered: is this round's set of clients settled? Clients that are away are waited
 * for during split.wait, and are then out of it; those that are back are in. limits: at the server's start, those that
 * claim more than its owner now allows are out for good. claims: does this one? join_tell: sends it the result, if
 * settled.
 */
enum aq_status join_plan(struct server *server, const struct site *site, const struct aq_split_join *join,
                         bool together, struct aq_split_job *out);
void join_take(struct site *site, const struct aq_split_join *join, struct aq_split_job *job);
bool join_other_network(const struct server *server, const struct aq_split_join *join, const struct aq_plan *plan);
bool join_too_many(const struct server *server, const struct site *site, const struct aq_split_join *join);
bool join_agreed(struct server *server);
enum aq_status join_settle(struct server *server);
bool join_gathered(struct server *server);
enum aq_status join_limits(struct server *server);
bool join_claims(const struct server *server, const struct site *site, char why[AQ_SPLIT_TEXT_BYTES]);
void join_tell(struct server *server, struct site *site);

/* split_turn.c. */
void turn_greet(struct server *server, struct site *site); /* it has joined: it waits, or owes its labels */
void turn_due(struct server *server, struct site *site);   /* its turn has come: offer it, wait for it */
/* Drops the turn: the weights from before it stay. */
void turn_miss(struct server *server, struct site *site, const char *why);
/* A line to its client; a client that reads nothing is disconnected. Takes the reference. */
bool turn_tell(struct server *server, struct site *site, json_t *line);
void turn_line(struct server *server, struct site *site, const json_t *line); /* of a client */
void turn_pump(struct server *server, struct site *site); /* files to the client, lines of its launcher, its end */
/* Its connection ends: printed once, with the reason; its turn waits for it. */
void turn_away(struct server *server, struct site *site, const char *why);
/* As when it is due, before it is: its files go, and nothing else happens. */
void turn_offer_ahead(struct server *server, struct site *site);
void turn_halt(struct site *site); /* the launcher of its turn, at once; waits for its end */
/* A failure of this machine's disk or memory: the step is void, and the server ends. why NULL: already reported. */
void server_fails(struct server *server, const char *why);
void server_save(struct server *server); /* split.json, or the server fails */

/*
 * split_ahead.c. ahead_advance: offers the turn ahead to the first of those due (in order) that has none, if allowed.
 * ahead_ends: this site leaves, fails or misses its turn: offers to it, or of its weights, are void. ahead_committed:
 * the weights that it sent count. ahead_ready: true: it has an offer ahead, and starts when its turn is due. ahead_due:
 * now; false: it has no such offer. ahead_out: open the next file for it, as far as it has come (AQ_AGAIN: it has not;
 * there is a source). ahead_waits: its next piece has not come.
 */
void ahead_advance(struct server *server, struct site *const *due, uint32_t count);
bool ahead_is(const struct server *server, const struct site *site);
void ahead_ends(struct server *server, const struct site *site);
void ahead_committed(struct server *server, const struct site *site);
bool ahead_ready(struct server *server, struct site *site);
bool ahead_due(struct server *server, const struct site *site, bool *ready);
enum aq_status ahead_out(struct server *server, struct site *site, uint32_t end);
bool ahead_waits(const struct server *server, const struct site *site);

/*
 * split_round.c: turns that were trained, of all clients in all rounds; and a client that missed one, with its reason
 * (NULL: none did).
 */
uint64_t round_turns(const struct server *server);
const struct site *round_cause(const struct server *server);

/* A reason as a client may hear it: without paths and sizes of the server's machine. */
void turn_text(const char *why, char out[AQ_SPLIT_TEXT_BYTES]);
/* Its connection ends with this reason, which it hears. */
void turn_refuse(struct server *server, struct site *site, const char *text);

/* Say something to the person at the server. */
#define server_say(server, ...) aq_progress_say((server)->config->progress, __VA_ARGS__)

#endif
