/*
 * calls.h -- what the preloaded calls have in common. See world.h.
 *
 * Each call of calls_*.c stands under the C library's own name, before it. In a process that belongs to no world, and
 * for descriptors that are none of the world's, it does what the next one of that name does.
 */
#ifndef TESTS_SIM_CALLS_H
#define TESTS_SIM_CALLS_H

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <time.h>

#include "world.h"

#define EXPORTED __attribute__((visibility("default")))
/* The next function of this name, as `real`. */
#define REAL(name)                                                                                                     \
    static __typeof__(name) *real;                                                                                     \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

static inline bool sim_here(void)
{
    return sim && sim_me >= 0;
}

/* -errno as libc has it. */
static inline ssize_t sim_result(ssize_t result)
{
    if (result >= 0) return result;
    errno = (int)-result;
    return -1;
}

static inline uint64_t sim_until(const struct timespec *left)
{
    return left ? sim->now_ns + (uint64_t)left->tv_sec * SIM_S + (uint64_t)left->tv_nsec : SIM_NEVER;
}

struct sim_sock *sim_mine(int fd); /* NULL: the kernel's */
int sim_poll_until(struct pollfd *fds, nfds_t count, uint64_t until_ns);
void sim_tell_kernel(int fd); /* something was written to, or read from, a descriptor of the kernel's */
void sim_forget_fd(int fd);

#endif
