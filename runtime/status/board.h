/*
 * board.h -- the present state of a launch, for observers: the status page, OpenMetrics, JSON.
 *
 * The launcher sends the board the same facts as its user and metrics.jsonl: lines (aq_board_line), the phase
 * (aq_board_phase), its stages (aq_board_ranks). An observer takes a view, a copy of all of it, and renders that in its
 * own time: it can delay the launcher only for the copy of about 600 KiB.
 *
 * A state that is not "running" always has its cause, its start, and a remedy.
 *
 * Caveat: texts are as they came (names of jobs, causes): the renderer escapes (xml_text.h).
 *
 * Locking: any thread; a mutex inside, held for a copy. NULL as a board is fine everywhere: no board.
 */
#ifndef RUNTIME_BOARD_H
#define RUNTIME_BOARD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "curve.h"
#include "heartbeat.h"
#include "job.h"
#include "step_figures.h"

enum aq_board_state {
    AQ_BOARD_STARTING,
    AQ_BOARD_RUNNING,
    AQ_BOARD_STOPPING,
    AQ_BOARD_RESTARTING,
    AQ_BOARD_DONE,
    AQ_BOARD_STOPPED,
    AQ_BOARD_FAILED,
    AQ_BOARD_STATES
};
const char *aq_board_state_text(enum aq_board_state state); /* "running" */

enum aq_board_part { /* of a rank's step, s */
                     AQ_BOARD_COMPUTE,
                     AQ_BOARD_CODEC,
                     AQ_BOARD_OPTIMIZER,
                     AQ_BOARD_REDUCE,
                     AQ_BOARD_LINK_WAIT,
                     AQ_BOARD_CACHE_WAIT,
                     AQ_BOARD_WAIT, /* nothing could run, links and cache among the reasons */
                     AQ_BOARD_PARTS
};
enum aq_board_gauge { /* of a cut, at its sender */
                      AQ_BOARD_DELTA,
                      AQ_BOARD_ERROR,
                      AQ_BOARD_CQ,
                      AQ_BOARD_GRADIENT_ERROR,
                      AQ_BOARD_COMMON_MODE,
                      AQ_BOARD_GAUGES
};
enum aq_board_way { AQ_BOARD_FORWARD, AQ_BOARD_BACKWARD, AQ_BOARD_GRADIENT, AQ_BOARD_WAYS };
const char *aq_board_part_name(enum aq_board_part part);    /* "link_wait"   */
const char *aq_board_gauge_name(enum aq_board_gauge gauge); /* "contraction" */
const char *aq_board_way_name(enum aq_board_way way);       /* "forward"     */

/* Steps that a timeline shows. */
enum { AQ_BOARD_STEPS = 24 };

enum { AQ_BOARD_HOST_BYTES = 328 }; /* NAME@HOST:PORT of 63, 253 and 5 characters */

struct aq_board_rank {
    bool lives; /* its process has been started and has not ended */
    int pid;
    enum aq_phase phase;
    double phase_s, silent_s;                              /* for so long; since its daemon's last word of it */
    double away_s;                                         /* since its daemon was lost; 0: it is not         */
    uint64_t step, mark;                                   /* newest that it has reported, and has a checkpoint of */
    double seconds;                                        /* of its last step; NaN: none yet                      */
    double parts[AQ_BOARD_PARTS], gauges[AQ_BOARD_GAUGES]; /* NaN: it has none       */
    double bytes[AQ_BOARD_WAYS], bytes_all[AQ_BOARD_WAYS]; /* that links carried: in the step, since the launch began */
    double in_wait;                 /* of AQ_BOARD_LINK_WAIT, waiting for the stage before; NaN: not known */
    char host[AQ_BOARD_HOST_BYTES]; /* as the manifest has it; "": this machine */
    struct aq_board_past {
        float seconds, parts[AQ_BOARD_PARTS]; /* NaN: none */
    } past[AQ_BOARD_STEPS];                   /* of step s in place s modulo AQ_BOARD_STEPS */
};

enum { AQ_BOARD_NOTICES_MAX = 8 };
struct aq_board_notice {
    char text[256], remedy[256];
};

/* Of a split-server: its rounds, and each client (docs/SPLIT.md). */
struct aq_board_client {
    char name[64], does[192];   /* as it came; "trains round 2", "waits for a"     */
    bool here, trains, awaited; /* awaited: the server, or another client, waits for it                        */
    uint32_t turns, missed, late;
    uint64_t step, samples;
    double bytes, loss, accuracy; /* of all its turns; of its held-out samples after its last one; NaN: none     */
    double epsilon, delta;        /* of its samples, as it says (docs/PRIVACY.md); NaN: none                     */
};
struct aq_board_split {
    char job[256], mode[24];
    uint32_t round, rounds; /* under way, 0: clients are gathering; total. rounds 0: no split-server */
    uint32_t clients;
    struct aq_board_client client[AQ_JOB_CLIENTS_MAX];
};

struct aq_board_view {
    char job[256], codec[128], cause[1024];
    uint32_t stages, ranks; /* P; P x W. 0: not planned yet */
    enum aq_board_state state;
    char waits[192]; /* the phase, or what it waits for; "": none                 */
    double waits_s;  /* for so long                                               */
    char remedy[192];
    uint64_t step, steps, epoch, restarts, skipped;
    uint64_t mark; /* newest step that every rank has a checkpoint of, of this launch; 0: none */
    double loss, lr, grad_norm, seconds, speed, time, heldout; /* NaN: none */
    double figures[AQ_STEP_FIGURES];                           /* of the last step, the same; step_figures.def */
    double left_s, up_s; /* until the end, by the mean of the last steps; since the launch began */
    uint32_t notices;    /* what was found to be lost (cut_judge.h) */
    struct aq_board_notice notice[AQ_BOARD_NOTICES_MAX];
    struct aq_board_rank rank[AQ_JOB_RANKS_MAX];
    struct {
        uint64_t step; /* 0: none */
        double seconds;
    } past[AQ_BOARD_STEPS]; /* the last steps, of step s in place s modulo AQ_BOARD_STEPS */
    struct aq_curve curve;
    struct aq_board_split split;
};

struct aq_board; /* opaque */

enum aq_status aq_board_open(struct aq_board **out);
void aq_board_close(struct aq_board *board);

/* Reads the curve again from the run in this folder (a run that resumes, or restarts from a checkpoint). */
void aq_board_run(struct aq_board *board, const char *folder);

/* A line as it is written to metrics.jsonl. */
void aq_board_line(struct aq_board *board, const json_t *line);

/* Sets the phase from now on; "" or NULL: none in particular. */
void aq_board_phase(struct aq_board *board, const char *text);

/* What it does, in words. */
const char *aq_board_does(const struct aq_board_rank *rank);

/* A stop was asked for. */
void aq_board_stopping(struct aq_board *board);

/* Every rank's `lives`, `pid`, `doing`, `phase_s`, `silent_s`, `away_s`, `step` and `mark`; the rest of it is left. */
void aq_board_ranks(struct aq_board *board, const struct aq_board_rank *ranks, uint32_t count);

/* A split-server's rounds and clients, and what it waits for ("": it trains). */
void aq_board_split(struct aq_board *board, const struct aq_board_split *now, enum aq_board_state state,
                    const char *waits);

/* The same as JSON; NULL: no memory. */
json_t *aq_board_split_json(const struct aq_board_split *now);

/* All of it, as it is now. The board is not NULL. */
void aq_board_look(struct aq_board *board, struct aq_board_view *view);

/* ---- what is not well, of a view (board_health.c) ---- */

enum { AQ_BOARD_FINDINGS_MAX = 16 };
struct aq_board_finding {
    bool bad; /* else doubtful */
    char text[256];
    const char *remedy;
};
/* How many there are in `out`. */
uint32_t aq_board_findings(const struct aq_board_view *view, struct aq_board_finding out[AQ_BOARD_FINDINGS_MAX]);

/* "stage 2", or "replica 1 stage 2". */
enum { AQ_BOARD_NAME_BYTES = 48 };
const char *aq_board_rank_name(const struct aq_board_view *view, uint32_t rank, char out[AQ_BOARD_NAME_BYTES]);

/*
 * The share of its last step that a rank waited for the link to the stage before (`in`) or behind it. NaN: not known.
 */
double aq_board_link_wait(const struct aq_board_rank *rank, bool in);

/* Of the launch: bytes that all links carried, and hours of all stages. */
double aq_board_sent(const struct aq_board_view *view);
double aq_board_stage_hours(const struct aq_board_view *view);

#endif
