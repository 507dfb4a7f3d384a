/*
 * thread.h -- threads, mutexes and CPU counting; the only room where pthreads are named.
 *
 * Locking: a mutex is held for a few instructions and never while waiting for anything else.
 */
#ifndef AQSGD_BASE_THREAD_H
#define AQSGD_BASE_THREAD_H

#include <stdint.h>

#include "aqsgd/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_thread; /* opaque */
struct aq_mutex;  /* opaque */

/* Starts run(context) on a new thread named `name` (15 characters at most are kept). AQ_NOMEM: the system has no room
 * for one more. */
enum aq_status aq_thread_open(const char *name, void (*run)(void *context), void *context, struct aq_thread **out);
/* Waits for it to return, then frees it. NULL is fine. */
void aq_thread_close(struct aq_thread *thread);

enum aq_status aq_mutex_open(struct aq_mutex **out); /* AQ_NOMEM */
void aq_mutex_close(struct aq_mutex *mutex);         /* NULL is fine */
struct aq_mutex *aq_mutex_log(void);                 /* the log's: there before anything is opened */
void aq_mutex_lock(struct aq_mutex *mutex);
void aq_mutex_unlock(struct aq_mutex *mutex);

/* Cores that this process may use: those that it may run on (sched_getaffinity), or fewer where its control group
 * allows less processor time (control_group.h). At least 1. */
uint32_t aq_thread_cores(void);

#ifdef __cplusplus
}
#endif
#endif
