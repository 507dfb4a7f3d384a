/*
 * stop_signals.h -- the signals by which a user or the system ends a program, read from a descriptor.
 *
 * SIGHUP is left as it is where the program was started with it ignored: that is what nohup does, so that the program
 * outlives its terminal. A blocked signal comes to a signalfd even where it is ignored, so it must not be blocked then.
 *
 * Locking: before any other thread begins, because threads inherit what is blocked.
 */
#ifndef RUNTIME_STOP_SIGNALS_H
#define RUNTIME_STOP_SIGNALS_H

#include "aqsgd/base.h"

/*
 * Blocks SIGINT, SIGTERM, SIGHUP (see above) and `more` (0: none), and ignores SIGPIPE. *fd: a signalfd of the blocked
 * ones, not blocking, close-on-exec; the caller closes it. what: names the caller in an error.
 */
enum aq_status aq_stop_signals(const char *what, int more, int *fd);

#endif
