/*
 * split_daemon.h -- the daemon of a client's turn: a process of its own, which runs the client's stages and may read
 * and write the job's folders alone.
 *
 * Locking: of one thread; its words are static.
 */
#ifndef RUNTIME_SPLIT_DAEMON_H
#define RUNTIME_SPLIT_DAEMON_H

#include <sys/types.h>

#include "control.h"
#include "job.h"

struct aq_split_daemon {
    struct aq_control *control; /* NULL: none runs */
    pid_t pid;                  /* 0: it has ended, and was reaped */
};

/* writes: folders that it may write, NULL behind the last one; begin: the folder of weights that it starts with. AQ_IO:
 * no channel or no process (logged). */
enum aq_status aq_split_daemon_begin(struct aq_split_daemon *daemon, const char *program, const struct aq_job *job,
                                     const char *const *writes, const char *begin);

/* Waits until it has reaped its workers, 10 s at most: then it is killed. Nothing to do where none runs. */
void aq_split_daemon_end(struct aq_split_daemon *daemon);

#endif
