/*
 * clock_ahead.c -- a library for LD_PRELOAD under which a test lets time pass for one program, and for no other.
 *
 * A test of a limit (a client that is late, a replica that is waited for) sets it to minutes, so that nobody misses it
 * on a busy machine, brings the one that shall miss it to a stop, and lets the minutes pass for the program that
 * judges. Others have the real clock, and beats of theirs come as ever: their own limits have to be longer than what
 * passes.
 *
 * CLOCK_AHEAD names a file of two numbers of 64 bits, which the test maps as well (tests/jobs.py, Clock): by how many
 * ns the clock may be ahead of the real one, and by how many it is. CLOCK_AHEAD_OF: the command of aqpipe whose clock
 * it is ("launch"). Where its first thread waits in poll, and nothing is there, the time of the wait passes at once, in
 * steps of at most STEP_NS: who measures time by looking at the clock often (control/watch.h) sees all of it.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define STEP_NS  UINT64_C(500000000)

struct ahead {
    _Atomic uint64_t allowed_ns, passed_ns;
};

EXPORTED int clock_gettime(clockid_t id, struct timespec *out);
EXPORTED int poll(struct pollfd *fds, nfds_t count, int ms);

/* Is the command that this process runs the one that is named? Its second argument is. */
static bool is_named(const char *command)
{
    char words[4096];
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd == -1 ? 0 : read(fd, words, sizeof words - 1);
    if (fd != -1) close(fd);
    if (got <= 0) return false;
    words[got] = 0;
    const size_t first = strlen(words) + 1;
    return first < (size_t)got && strcmp(words + first, command) == 0;
}

/* The file's numbers; NULL: this process has the real clock. */
static struct ahead *ahead_of(void)
{
    static struct ahead *_Atomic found;
    static _Atomic bool looked;
    if (atomic_load(&looked)) return atomic_load(&found);
    const char *path = getenv("CLOCK_AHEAD"), *command = getenv("CLOCK_AHEAD_OF");
    const int fd = path && command && is_named(command) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd != -1) {
        void *map = mmap(NULL, sizeof(struct ahead), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) atomic_store(&found, (struct ahead *)map);
        close(fd);
    }
    atomic_store(&looked, true);
    return atomic_load(&found);
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    static int (*real)(clockid_t id, struct timespec * out);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    const int result = real(id, out);
    struct ahead *ahead = id == CLOCK_MONOTONIC ? ahead_of() : NULL;
    if (result != 0 || !ahead) return result;
    const uint64_t ns = (uint64_t)out->tv_nsec + atomic_load(&ahead->passed_ns);
    out->tv_sec += (time_t)(ns / 1000000000);
    out->tv_nsec = (long)(ns % 1000000000);
    return 0;
}

int poll(struct pollfd *fds, nfds_t count, int ms)
{
    static int (*real)(struct pollfd * fds, nfds_t count, int ms);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "poll");
    struct ahead *ahead = syscall(SYS_gettid) == getpid() ? ahead_of() : NULL;
    while (ahead && ms != 0) {
        const uint64_t passed = atomic_load(&ahead->passed_ns), allowed = atomic_load(&ahead->allowed_ns);
        if (passed >= allowed) break;
        const int ready = real(fds, count, 1); /* others run meanwhile */
        if (ready != 0) return ready;
        uint64_t step = ms > 0 && (uint64_t)ms * 1000000 < STEP_NS ? (uint64_t)ms * 1000000 : STEP_NS;
        if (step > allowed - passed) step = allowed - passed;
        atomic_store(&ahead->passed_ns, passed + step);
        if (ms > 0) ms -= (int)((step + 999999) / 1000000);
        if (ms == 0) return 0;
    }
    return real(fds, count, ms);
}
