/*
 * clock.h -- the one source of time: nanoseconds of a monotonic clock.
 *
 * Every wait has an absolute deadline on this clock. Locking: any thread.
 */
#ifndef AQSGD_BASE_CLOCK_H
#define AQSGD_BASE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AQ_NEVER UINT64_MAX /* a deadline that does not come */

/* Nanoseconds since some fixed moment of this machine (CLOCK_MONOTONIC). */
uint64_t aq_clock_ns(void);

/* Wall time, nanoseconds since 1970, for people's eyes and file names only. */
uint64_t aq_clock_wall_ns(void);

/* now + ns, without running over. */
uint64_t aq_clock_after(uint64_t ns);

/* CPU time of this process, user and system, in nanoseconds. */
uint64_t aq_clock_cpu_ns(void);

#ifdef __cplusplus
}
#endif
#endif
