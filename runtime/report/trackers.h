/*
 * trackers.h -- the program tools/follow next to a launch: it sends RUN/metrics.jsonl to TensorBoard, MLflow or W&B
 * (output.report_to, docs/STATUS.md).
 *
 * It is a child process that only reads the run. A job never fails because of it, and never waits for it while it
 * trains. Its messages come through a pipe, a line each, and are printed as they come. At the end the launcher waits
 * AQ_TRACKERS_END_S for what is not sent yet; a signal ends that wait.
 *
 *     aq_trackers_start(&trackers, &config, &progress);
 *     aq_trackers_turn(&trackers, &progress);              several times a second
 *     aq_trackers_end(&trackers, &progress, signals);      after the line "end" of metrics.jsonl
 *
 * Caveat: its standard output and error go to /dev/null, because trackers print there what they like.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_TRACKERS_H
#define RUNTIME_TRACKERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "progress.h"

enum { AQ_TRACKERS_END_S = 120, AQ_TRACKERS_CHECK_S = 20, AQ_TRACKERS_LINE_BYTES = 512 };

struct aq_trackers_config {
    const char *program; /* tools/follow (aq_follow_program), or NULL: not found, which is printed */
    const char *python;  /* the interpreter: a path, or a name in PATH                             */
    uint32_t wanted;     /* a bit for each enum aq_tracker; 0: nothing is started                  */
    const char *run;     /* the run folder                                                         */
};

/* Zeroes: none was started. */
struct aq_trackers {
    struct aq_trackers_config config;
    pid_t pid; /* 0: none, or it has ended */
    int notes; /* our end of its messages, while pid is not 0 */
    int how;   /* its status once it has ended */
    bool over; /* it has ended */
    uint32_t used;
    char line[AQ_TRACKERS_LINE_BYTES]; /* of a message that is not whole yet */
};

/* Starts it. A failure is printed, and the job goes on without. config's texts are borrowed until aq_trackers_end. */
void aq_trackers_start(struct aq_trackers *trackers, const struct aq_trackers_config *config,
                       struct aq_progress *progress);

/* Prints what came. Never waits. */
void aq_trackers_turn(struct aq_trackers *trackers, struct aq_progress *progress);

/* Waits until it has sent the rest, or ends it, and prints what is missing at the trackers and how to send it. signals:
 * a descriptor that is readable when the user asks for the end at once; -1: none. */
void aq_trackers_end(struct aq_trackers *trackers, struct aq_progress *progress, int signals);

/*
 * Are the packages of these trackers there? Up to AQ_TRACKERS_CHECK_S. AQ_OK: all; AQ_NOTFOUND (not logged): text gets
 * what is missing, with its remedy, a line each; AQ_TIMEOUT, AQ_IO.
 */
enum aq_status aq_trackers_check(const struct aq_trackers_config *config, char *text, size_t bytes);

#endif
