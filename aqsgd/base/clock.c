/* clock.c -- the one source of time. Tests may bring another in its place: tests/kit/virtual_clock.c. */
#include "aqsgd/base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t aq_clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t aq_clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

uint64_t aq_clock_after(uint64_t ns)
{
    const uint64_t now = aq_clock_ns();
    return ns > AQ_NEVER - now ? AQ_NEVER : now + ns;
}

uint64_t aq_clock_cpu_ns(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}
