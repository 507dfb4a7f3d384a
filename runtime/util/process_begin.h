/*
 * process_begin.h -- what a program relies on and inherits from whoever starts it: signals, limits, descriptors, umask.
 *
 * Some supervisors start programs with signals ignored or blocked, small limits, or closed descriptors. The kernel then
 * reaps children without their status (SIGCHLD ignored), or the program ends without a word (a stack of 64 KiB).
 *
 * Locking: the first call of main, before any thread.
 */
#ifndef RUNTIME_PROCESS_BEGIN_H
#define RUNTIME_PROCESS_BEGIN_H

#include "aqsgd/base.h"

/*
 * Environment variable: the number of the process that starts the program. The program gets SIGTERM when that one ends,
 * also by SIGKILL. Scripts set it for what they start in the background (launch_mpi.c).
 */
#define AQ_PROCESS_PARENT "AQPIPE_PARENT"

/*
 * Default dispositions of the signals that have a meaning here, but not of INT, HUP, TERM and PIPE, which nohup and
 * shells ignore on purpose; USR1 and USR2 ignored, except where the launcher waits for them; no signal blocked;
 * descriptors 0 to 2 open; files that others may not write; a stack of 8 MiB, or of what the hard limit allows.
 * AQ_INVAL (logged): that is too little. AQ_ABORTED (logged): the process of AQ_PROCESS_PARENT has ended already.
 */
enum aq_status aq_process_begin(void);

#endif
