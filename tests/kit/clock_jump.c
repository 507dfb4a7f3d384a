/*
 * clock_jump.c -- a library for LD_PRELOAD under which the time of day jumps by hours, forward and back, five times a
 * second, as if somebody set it again and again. The monotonic clock, and what the kernel waits by, are as they are.
 *
 * For scenario clock of e2e. It stays within a day of the real time, which is what certificates made by
 * `aqpipe keys init` allow for (they are good from a day before they were made). With CLOCK_DAYS=n in the environment
 * nothing jumps: the time of day is n days from the real one, for whoever wants a certificate that has expired.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int clock_gettime(clockid_t id, struct timespec *out);
EXPORTED int gettimeofday(struct timeval *restrict out, void *restrict zone);
EXPORTED time_t time(time_t *out);

static int real_gettime(clockid_t id, struct timespec *out)
{
    static int (*real)(clockid_t id, struct timespec * out);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    return real(id, out);
}

/* Seconds by which the time of day is wrong at this moment, the same in every process. */
static int64_t jump_s(void)
{
    static const int hours[] = {0, 7, -5, 11, -9, 3, -11};
    enum { COUNT = sizeof hours / sizeof *hours, TURN_NS = 200000000 };
    struct timespec now;
    const char *days = getenv("CLOCK_DAYS");
    if (days) return 24 * 3600 * strtoll(days, NULL, 10);
    (void)real_gettime(CLOCK_MONOTONIC, &now);
    const int64_t ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    return 3600 * (int64_t)hours[ns / TURN_NS % COUNT];
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    const int result = real_gettime(id, out);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) out->tv_sec += (time_t)jump_s();
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone; /* obsolete: nobody asks */
    (void)clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
