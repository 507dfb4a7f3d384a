/* thread.c -- pthreads behind one file. */
#include "aqsgd/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "aqsgd/base/control_group.h"
#include "aqsgd/base/memory.h"

struct aq_thread {
    pthread_t id;
    char name[16];
    void (*run)(void *context);
    void *context;
};

static void *thread_main(void *argument)
{
    struct aq_thread *thread = argument;
    pthread_setname_np(pthread_self(), thread->name);
    thread->run(thread->context);
    return NULL;
}

enum aq_status aq_thread_open(const char *name, void (*run)(void *context), void *context, struct aq_thread **out)
{
    struct aq_thread *thread;
    AQ_TRY(AQ_NEW(1, &thread));
    strncpy(thread->name, name, sizeof thread->name - 1);
    thread->run = run;
    thread->context = context;
    /* Signals are for the thread that was there first: new threads start with all of them blocked. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread->id, NULL, thread_main, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        aq_free(thread);
        return aq_fail(AQ_NOMEM, "thread", "cannot start thread %s: %s", name, strerror(error));
    }
    *out = thread;
    return AQ_OK;
}

void aq_thread_close(struct aq_thread *thread)
{
    if (!thread) return;
    pthread_join(thread->id, NULL);
    aq_free(thread);
}

struct aq_mutex {
    pthread_mutex_t mutex;
};

enum aq_status aq_mutex_open(struct aq_mutex **out)
{
    struct aq_mutex *mutex;
    AQ_TRY(AQ_NEW(1, &mutex));
    pthread_mutex_init(&mutex->mutex, NULL);
    *out = mutex;
    return AQ_OK;
}

void aq_mutex_close(struct aq_mutex *mutex)
{
    if (!mutex) return;
    pthread_mutex_destroy(&mutex->mutex);
    aq_free(mutex);
}

struct aq_mutex *aq_mutex_log(void)
{
    static struct aq_mutex mutex = {PTHREAD_MUTEX_INITIALIZER};
    return &mutex;
}

void aq_mutex_lock(struct aq_mutex *mutex)
{
    pthread_mutex_lock(&mutex->mutex);
}

void aq_mutex_unlock(struct aq_mutex *mutex)
{
    pthread_mutex_unlock(&mutex->mutex);
}

uint32_t aq_thread_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const int count = CPU_COUNT(&set);
    const uint32_t allowed = aq_control_group_here().cores, cores = count < 1 ? 1 : (uint32_t)count;
    return cores < allowed ? cores : allowed;
}
