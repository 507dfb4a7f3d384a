/*
 * watch.h -- who of a job has fallen silent, and does anything still go on: deadlines as pure functions of what was
 * heard.
 *
 * Two questions, two clocks.
 *  - Silent: every daemon says `beat` several times within silence_ns, and so does the process of every worker,
 * whatever it computes (pulse.h). Who does not is stopped, hangs in the kernel, or its machine is gone.
 *  - Stuck: all are alive, but no stage has done anything (a micro-batch, a piece of a file, a message from a
 * neighbour) for so long that no machine is so slow. The limit is the largest of stall_ns, AQ_WATCH_FACTOR times the
 * longest pause of this run that came to an end, and first_ns; to this come outages of links, and what a checkpoint may
 * take while a stage waits for one.
 *
 * Time is what the watcher itself has seen pass: between two looks at most a part of silence_ns counts. When the
 * machine slept, or the watcher was stopped, nobody has been silent for it.
 *
 *     aq_watch_init(&watch, &config, aq_clock_ns());
 *     loop: everything that came is told (heard, beat, done), then aq_watch_tick, then aq_watch_look.
 *
 * Locking: none; the caller's.
 */
#ifndef RUNTIME_WATCH_H
#define RUNTIME_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "job.h"
#include "pulse.h"

enum {
    AQ_WATCH_BEATS = 6,   /* within silence_ns: five may be late                                              */
    AQ_WATCH_FACTOR = 10, /* a pause so many times as long as any before is none of a slow machine            */
    AQ_WATCH_STARTS = 10, /* times silence_ns until a process that was started must have said its first beat;
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
    uint32_t server;     /* the stage that may wait for other clients (AQ_DOING_SUMS): nothing is stuck then; 0: none */
};

struct aq_plan; /* plan.h */

/* watch_plan.c: the manifest's limits, and what the plan says of the slowest piece of work, outages and checkpoints. */
struct aq_watch_config aq_watch_of_plan(const struct aq_plan *plan);

/* How often everybody beats. 0: never. */
uint64_t aq_watch_interval(const struct aq_watch_config *config);

struct aq_watch_host {
    bool watched;
    uint64_t heard_ns;
};

struct aq_watch_stage {
    bool watched, beaten;
    uint32_t host;
    uint64_t heard_ns;   /* when its host told of it last                  */
    uint64_t work;       /* of its last beat                               */
    uint64_t changed_ns; /* when work was another, or something else came  */
    uint64_t step;
    enum aq_doing doing;
};

struct aq_watch {
    struct aq_watch_config config;
    struct aq_watch_clock clock;
    struct aq_watch_host hosts[AQ_JOB_RANKS_MAX];
    struct aq_watch_stage stages[AQ_JOB_RANKS_MAX];
    uint32_t host_count, stage_count; /* one more than the highest number told */
    bool running;
    uint64_t progress_ns; /* when anything went on last          */
    uint64_t longest_ns;  /* pause between two such moments      */
};

enum aq_watch_kind { AQ_WATCH_WELL = 0, AQ_WATCH_HOST_SILENT, AQ_WATCH_STAGE_SILENT, AQ_WATCH_STUCK };

struct aq_watch_finding {
    enum aq_watch_kind kind;
    uint32_t
        number; /* of the host or the stage: of a stuck job the stage that waits for nobody else, if there is one */
    uint64_t since_ns; /* for so long      */
    uint64_t limit_ns;
};

void aq_watch_init(struct aq_watch *watch, const struct aq_watch_config *config, uint64_t now_ns);

/* So much time has passed since the last look, as far as it counts. After everything that came was told. */
void aq_watch_tick(struct aq_watch *watch, uint64_t now_ns);

/* Something came from a host: it is watched from its first word on. */
void aq_watch_host_heard(struct aq_watch *watch, uint32_t host);
void aq_watch_host_gone(struct aq_watch *watch, uint32_t host);

/* A worker was started there. */
void aq_watch_stage_begin(struct aq_watch *watch, uint32_t stage, uint32_t host);

/* A line of its own came: it lives, and something went on. */
void aq_watch_stage_heard(struct aq_watch *watch, uint32_t stage);

/* Its host tells that its process lives, and what it has done so far. */
void aq_watch_stage_beat(struct aq_watch *watch, uint32_t stage, uint64_t work, uint64_t step, enum aq_doing doing);
void aq_watch_stage_gone(struct aq_watch *watch, uint32_t stage);

/* The first step begins: from now on something must go on. */
void aq_watch_go(struct aq_watch *watch);

/* What is wrong, the most certain first. */
struct aq_watch_finding aq_watch_look(const struct aq_watch *watch);

#endif
