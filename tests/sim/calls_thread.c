/* calls_thread.c -- threads, their waits, time and chance. See calls.h. */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "calls.h"

long sim_kernel(long number, long a, long b, long c, long d, long e, long f);

/* A system call past all of this; errno stays as it was unless it fails elsewhere than in a futex. */
long sim_kernel(long number, long a, long b, long c, long d, long e, long f)
{
    REAL(syscall);
    const int before = errno;
    const long result = real(number, a, b, c, d, e, f);
    if (number == SYS_futex) errno = before;
    return result;
}

/* ---- the beginning ---- */

/* OpenSSL's randomness is the world's, too: its own mixes in the processor's clock. */
static int crypto_bytes(unsigned char *bytes, int count)
{
    return getrandom(bytes, (size_t)count, 0) == count;
}

static int crypto_status(void)
{
    return 1;
}

/* As RAND_METHOD of openssl/rand.h. A program without OpenSSL has no such function. */
static void take_crypto(void)
{
    static const struct {
        int (*seed)(const void *bytes, int count);
        int (*bytes)(unsigned char *bytes, int count);
        void (*cleanup)(void);
        int (*add)(const void *bytes, int count, double entropy);
        int (*pseudorandom)(unsigned char *bytes, int count);
        int (*status)(void);
    } method = {.bytes = crypto_bytes, .pseudorandom = crypto_bytes, .status = crypto_status};
    int (*set)(const void *method);
    *(void **)&set = dlsym(RTLD_DEFAULT, "RAND_set_rand_method");
    if (set && set(&method) != 1) abort();
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("AQ_SIM");
    if (!path) return;
    const int fd = (int)sim_kernel(SYS_openat, -100, (long)path, 02000002, 0, 0, 0); /* O_RDWR | O_CLOEXEC */
    void *memory = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *sim, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) abort();
    (void)sim_kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    struct sim_world *world = memory;
    const pid_t self = (pid_t)sim_kernel(SYS_getpid, 0, 0, 0, 0, 0, 0);
    int process = 0;
    while (process < world->process_end &&
           (world->process[process].pid != self || world->process[process].state != SIM_READY))
        process++;
    if (process == world->process_end) return; /* somebody else's child: it is not simulated */
    for (int i = 1; i < world->task_end; i++)
        if (world->task[i].process == process && world->task[i].state != SIM_DEAD) sim_me = i;
    sim = world;
    take_crypto();
    if (!world->task[sim_me].begun) sim_await_turn(); /* after exec the turn is still ours */
}

/* ---- threads ---- */

struct start {
    void *(*run)(void *);
    void *argument;
    int task;
};

enum { THREADS_MAX = 256 };
static struct {
    pthread_t id;
    int task;
} threads[THREADS_MAX];
static int thread_count;

static void *thread_begin(void *argument)
{
    const struct start start = *(struct start *)argument;
    free(argument);
    sim_me = start.task;
    sim_await_turn();
    void *result = start.run(start.argument);
    sim_task_end(sim_me);
    sim_hand_on();
    return result;
}

EXPORTED int pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    REAL(pthread_create);
    if (!sim_here()) return real(id, attributes, run, argument);
    if (thread_count == THREADS_MAX) sim_die("too many threads of a process", THREADS_MAX);
    struct start *start = malloc(sizeof *start);
    if (!start) return EAGAIN;
    *start = (struct start){run, argument, sim_task_make(sim_self(), "thread")};
    threads[thread_count].task = start->task;
    const int error = real(id, attributes, thread_begin, start);
    if (error) sim_die("a thread cannot start", error);
    threads[thread_count++].id = *id;
    sim_yield();
    return 0;
}

EXPORTED int pthread_setname_np(pthread_t id, const char *name)
{
    REAL(pthread_setname_np);
    if (sim_here() && pthread_equal(id, pthread_self()))
        strncpy(sim->task[sim_me].name, name, sizeof sim->task[0].name - 1);
    return real(id, name);
}

EXPORTED int pthread_join(pthread_t id, void **result)
{
    REAL(pthread_join);
    for (int i = 0; sim_here() && i < thread_count; i++) {
        if (!pthread_equal(threads[i].id, id)) continue;
        const int task = threads[i].task;
        while (sim->task[task].state != SIM_DEAD)
            (void)sim_sleep(SIM_FOR_THREAD, (uint64_t)task, SIM_NEVER);
        threads[i] = threads[--thread_count];
        break;
    }
    return real(id, result);
}

/* ---- waits ---- */

static int wake_keys(enum sim_why why, uint64_t key, int most)
{
    int woken = 0;
    for (int i = 1; i < sim->task_end && woken < most; i++) {
        struct sim_task *task = &sim->task[i];
        if (task->state != SIM_WAITING || task->woken || task->why != (uint32_t)why || task->key != key ||
            task->process != sim_self())
            continue;
        sim_wake(i);
        woken++;
    }
    return woken;
}

EXPORTED int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    REAL(pthread_mutex_lock);
    if (!sim_here()) return real(mutex);
    for (;;) {
        const int error = pthread_mutex_trylock(mutex);
        if (error != EBUSY) return error;
        (void)sim_sleep(SIM_FOR_MUTEX, (uint64_t)(uintptr_t)mutex, SIM_NEVER);
    }
}

EXPORTED int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    REAL(pthread_mutex_unlock);
    const int error = real(mutex);
    if (sim_here()) (void)wake_keys(SIM_FOR_MUTEX, (uint64_t)(uintptr_t)mutex, SIM_TASKS);
    return error;
}

static long futex_wait(uint32_t *word, uint32_t value, const struct timespec *left)
{
    const uint64_t until = sim_until(left);
    sim_yield();
    if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) return sim_result(-EAGAIN);
    return sim_sleep(SIM_FOR_FUTEX, (uint64_t)(uintptr_t)word, until) ? 0 : sim_result(-ETIMEDOUT);
}

EXPORTED long syscall(long number, ...)
{
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long);
    va_end(arguments);
    const int op = (int)a[1] & FUTEX_CMD_MASK;
    /* A process that may open only its own folders could not reach the world behind exec. */
    if (sim_here() && number == SYS_landlock_create_ruleset) return sim_result(-ENOSYS);
    if (!sim_here() || number != SYS_futex || (op != FUTEX_WAIT && op != FUTEX_WAKE))
        return sim_kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (op == FUTEX_WAIT) return futex_wait((uint32_t *)a[0], (uint32_t)a[2], (const struct timespec *)a[3]);
    const int woken = wake_keys(SIM_FOR_FUTEX, (uint64_t)a[0], (int)a[2]);
    sim_yield();
    return woken;
}

EXPORTED int sched_yield(void)
{
    if (!sim_here()) return (int)sim_kernel(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    sim_hand_on();
    sim_await_turn();
    return 0;
}

EXPORTED int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    REAL(clock_nanosleep);
    if (!sim_here() || flags) return real(clock, flags, time, left);
    (void)sim_sleep(SIM_FOR_TIME, 0, sim_until(time));
    return 0;
}

EXPORTED int nanosleep(const struct timespec *time, struct timespec *left)
{
    REAL(nanosleep);
    if (!sim_here()) return real(time, left);
    (void)sim_sleep(SIM_FOR_TIME, 0, sim_until(time));
    return 0;
}

EXPORTED int usleep(useconds_t us)
{
    const struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    return nanosleep(&time, NULL);
}

/* ---- time ---- */

EXPORTED int clock_gettime(clockid_t clock, struct timespec *out)
{
    REAL(clock_gettime);
    if (!sim_here()) return real(clock, out);
    sim->now_ns += 40; /* whoever spins until a time gets there */
    const bool wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    const bool cpu = clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID;
    const uint64_t now = cpu ? sim->now_ns / 4 : sim->now_ns + 3600 * SIM_S;
    out->tv_sec = (time_t)(now / SIM_S + (wall ? SIM_EPOCH_S : 0));
    out->tv_nsec = (long)(now % SIM_S);
    return 0;
}

EXPORTED time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

EXPORTED int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

/* ---- chance, and what machines differ in ---- */

EXPORTED ssize_t getrandom(void *bytes, size_t count, unsigned flags)
{
    REAL(getrandom);
    if (!sim_here()) return real(bytes, count, flags);
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)sim_draw(256);
    sim_record(SIM_EVENT_CHANCE, count, 0);
    return (ssize_t)count;
}

EXPORTED int getentropy(void *bytes, size_t count)
{
    return getrandom(bytes, count, 0) == (ssize_t)count ? 0 : -1;
}

EXPORTED int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    REAL(sched_getaffinity);
    if (!sim_here()) return real(pid, bytes, set);
    memset(set, 0, bytes);
    CPU_SET(0, set);
    return 0;
}

EXPORTED int getrusage(__rusage_who_t who, struct rusage *out)
{
    REAL(getrusage);
    if (!sim_here()) return real(who, out);
    *out = (struct rusage){.ru_maxrss = 1 << 15};
    return 0;
}
