/*
 * daemon.h -- aqpiped: starts a job's workers on this machine, routes their messages, and never leaves one behind.
 *
 * One thread, one poll loop over: signals (signalfd), the listener, connections, and of each worker its channel and its
 * standard error. A worker is its own process, so that its crash never ends the daemon; it dies with the daemon
 * (PR_SET_PDEATHSIG), and the daemon kills it when the job's connection ends. docs/CONTROL.md has the messages.
 *
 *     struct aq_daemon_config config = {.fd = 3, .worker = "/usr/bin/aqpipe"};
 *     return aq_daemon_run(&config) == AQ_OK ? 0 : 1;
 *
 * Locking: single-threaded; aq_daemon_run blocks SIGCHLD, SIGTERM and SIGINT for the calling thread and ignores
 * SIGPIPE.
 */
#ifndef RUNTIME_DAEMON_H
#define RUNTIME_DAEMON_H

#include "aqsgd/base.h"
#include "confine.h"
#include "control_token.h"

struct aq_tls; /* net/tls.h */

struct aq_daemon_config {
    int fd;                    /* a private daemon's only connection; -1: listen                              */
    const char *listen;        /* address, where fd is -1                                                     */
    const char *port_file;     /* write the real port here once listening; may be NULL                        */
    struct aq_token token;     /* of clients; bytes 0: none is asked for (loopback only)                      */
    struct aq_tls *tls;        /* clients must hold a launcher's certificate; NULL: connections are in the clear */
    const char *keys;          /* the folder of `tls`, which is read again; may be NULL                      */
    struct aq_confine confine; /* what it and its workers may touch */
    const char *worker;        /* program to run as `worker`                                                  */
};

/* Serves until SIGTERM/SIGINT, or, with fd, until the connection ends. All workers are reaped when it returns.
 * AQ_REFUSED: the address. AQ_NOMEM, AQ_IO. */
enum aq_status aq_daemon_run(const struct aq_daemon_config *config);

#endif
