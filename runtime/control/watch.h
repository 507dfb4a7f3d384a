/*
 * watch.h -- has a peer fallen silent, and does the job still progress? Deadlines as pure functions of received lines.
 *
 * Two questions, two clocks. - Silent: every daemon sends `beat` several times within silence_ns, and so does the
 * process of every worker, even while it computes (heartbeat.h). A silent one is stopped, hangs in the kernel, or its
 * machine is lost. - Stuck: all are alive, but no stage has progressed (a micro-batch, a piece of a file, a message
 * from a neighbour) for longer than any slow machine would take. The limit is the largest of stall_ns, AQ_WATCH_FACTOR
 * times the longest pause of this run that came to an end, and first_ns; plus outages of links, and the time of a
 * checkpoint while a stage waits for one.
 *
 * Time is the watcher's own: between two checks at most a part of silence_ns counts. If the machine slept, or the
 * watcher was stopped, no peer counts as silent.
 *
 *     aq_watch_init(&watch, &config, aq_clock_ns());
 *     loop: report all received lines (heard, beat, done), then aq_watch_tick, then aq_watch_look.
 *
 * Locking: none; the caller's.
 */
#ifndef RUNTIME_WATCH_H
#define RUNTIME_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "heartbeat.h"
#include "job.h"

enum {
    AQ_WATCH_BEATS = 6,   /* within silence_ns: five may be late                                              */
    AQ_WATCH_FACTOR = 10, /* a pause this many times longer than any before is an error                       */
    AQ_WATCH_STARTS = 10, /* times silence_ns until a started process must have sent its first beat;
                             also how long a daemon waits for a launcher that is stopped                      */
};

/* A clock that does not run while its owner does not look. */
struct aq_watch_clock {
    uint64_t now_ns;  /* seen so far                       */
    uint64_t last_ns; /* aq_clock_ns of the last look      */
    uint64_t most_ns; /* that one look may add             */
};

/* silence_ns 0: the limit of one look is a second. */
void aq_watch_clock_init(struct aq_watch_clock *clock, uint64_t silence_ns, uint64_t now_ns);
void aq_watch_clock_tick(struct aq_watch_clock *clock, uint64_t now_ns);

struct aq_watch_config {
    uint64_t silence_ns; /* control.silence_max; 0: nobody is silent         */
    uint64_t stall_ns;   /* control.stall_max; 0: nothing is stuck           */
    uint64_t first_ns;   /* that one piece of work may take, by the plan     */
    uint64_t outage_ns;  /* for which links may be down, one after the other */
    uint64_t mark_ns;    /* that a checkpoint may take                       */
    uint32_t server;     /* the stage that may wait for other clients (AQ_PHASE_SUMS): nothing is stuck then; 0: none */
};

struct aq_plan; /* plan.h */

/* watch_plan.c: the manifest's limits, and the plan's times of the slowest work, outages and checkpoints. */
struct aq_watch_config aq_watch_of_plan(const struct aq_plan *plan);

/* Interval of all beats. 0: never. */
uint64_t aq_watch_interval(const struct aq_watch_config *config);

struct aq_watch_host {
    bool watched;
    uint64_t heard_ns;
};

struct aq_watch_stage {
    bool watched, beaten;
    uint32_t host;
    uint64_t heard_ns;   /* when its host last reported it                 */
    uint64_t work;       /* of its last beat                               */
    uint64_t changed_ns; /* when work was another, or something else came  */
    uint64_t step;
    enum aq_phase phase;
};

struct aq_watch {
    struct aq_watch_config config;
    struct aq_watch_clock clock;
    struct aq_watch_host hosts[AQ_JOB_RANKS_MAX];
    struct aq_watch_stage stages[AQ_JOB_RANKS_MAX];
    uint32_t host_count, stage_count; /* one more than the highest number seen */
    bool running;
    uint64_t progress_ns; /* when anything went on last          */
    uint64_t longest_ns;  /* pause between two such moments      */
};

enum aq_watch_kind { AQ_WATCH_WELL = 0, AQ_WATCH_HOST_SILENT, AQ_WATCH_STAGE_SILENT, AQ_WATCH_STUCK };

struct aq_watch_finding {
    enum aq_watch_kind kind;
    uint32_t number;   /* of the host or the stage: of a stuck job the stage that waits for no other, if any */
    uint64_t since_ns; /* for so long      */
    uint64_t limit_ns;
};

void aq_watch_init(struct aq_watch *watch, const struct aq_watch_config *config, uint64_t now_ns);

/* Advances the time since the last check, as far as it counts. Call it after all received lines. */
void aq_watch_tick(struct aq_watch *watch, uint64_t now_ns);

/* A line came from a host: it is watched from its first line on. */
void aq_watch_host_heard(struct aq_watch *watch, uint32_t host);
void aq_watch_host_gone(struct aq_watch *watch, uint32_t host);

/* A worker was started there. */
void aq_watch_stage_begin(struct aq_watch *watch, uint32_t stage, uint32_t host);

/* Its own line came: it lives, and progresses. */
void aq_watch_stage_heard(struct aq_watch *watch, uint32_t stage);

/* Its host reports that its process lives, and its work so far. */
void aq_watch_stage_beat(struct aq_watch *watch, uint32_t stage, uint64_t work, uint64_t step, enum aq_phase phase);
void aq_watch_stage_gone(struct aq_watch *watch, uint32_t stage);

/* The first step starts: from now on there must be progress. */
void aq_watch_go(struct aq_watch *watch);

/* The first finding, in order of certainty. */
struct aq_watch_finding aq_watch_look(const struct aq_watch *watch);

#endif
