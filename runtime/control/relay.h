/*
 * relay.h -- aqpiped --stdio: a private daemon whose launcher is at the other end of standard input and output.
 *
 * A control channel is one socket; what ssh gives a program is two pipes. The process splits: the child is the daemon
 * with one end of a socket pair, the parent carries bytes between the other end and standard input and output. The end
 * of either side is the end of the daemon's connection, and so of its job.
 *
 * Locking: the parent has two threads, one for each direction; they share no memory that changes.
 */
#ifndef RUNTIME_RELAY_H
#define RUNTIME_RELAY_H

#include <sys/types.h>

#include "aqsgd/base.h"

/* Forks. In the child *daemon is 0 and *channel the daemon's connection, and standard input and output are /dev/null.
 * In the parent *daemon is the child. AQ_IO, AQ_NOMEM: nothing was started. */
enum aq_status aq_relay_split(int *channel, pid_t *daemon);

/* In the parent: carries until the daemon has ended; answers its exit status (128 + N: of signal N). */
int aq_relay_run(int channel, pid_t daemon);

#endif
