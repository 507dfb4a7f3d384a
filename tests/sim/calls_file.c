/*
 * calls_file.c -- files: the kernel's own, on a disk that is slow, lies and fails. See calls.h.
 *
 * What a loss of power leaves is kept by kit/power_loss.c, which is the next library. A sync that is lost was answered
 * with success and never got there.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "calls.h"

struct io_uring;
EXPORTED int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);

/* Its waits are the kernel's. The program continues without them. */
int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    (void)entries;
    (void)ring;
    (void)flags;
    return -ENOSYS;
}

/* What differs from run to run, or is no business of a simulated process. */
static bool is_hidden(const char *path)
{
    static const char *const cores = "/proc/cpuinfo", *const own[] = {"/proc/self/exe", "/proc/self/fd"};
    if (strcmp(path, "/dev/urandom") == 0 || strcmp(path, "/dev/random") == 0) return true;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(path, own[i], strlen(own[i])) == 0) return false;
    return (strncmp(path, "/proc/", 6) == 0 && strcmp(path, cores) != 0) || strncmp(path, "/sys/", 5) == 0;
}

EXPORTED int open(const char *path, int flags, ...)
{
    REAL(open);
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (sim_here() && is_hidden(path)) return (int)sim_result(-ENOENT);
    return real(path, flags, mode);
}

EXPORTED FILE *fopen(const char *restrict path, const char *restrict mode)
{
    REAL(fopen);
    if (!sim_here() || !is_hidden(path)) return real(path, mode);
    errno = ENOENT;
    return NULL;
}

/* Of a host's disk: how long a call takes there. */
static void disk_turns(void)
{
    if (sim->disk_ns_max) (void)sim_sleep(SIM_FOR_DISK, 0, sim->now_ns + sim_draw(sim->disk_ns_max));
}

static int sync_call(int fd, int (*real)(int))
{
    if (!sim_here()) return real(fd);
    if (++sim->syncs == sim->sync_alarm) sim_wake(0);
    sim_record(SIM_EVENT_FILE, 1, 0);
    disk_turns();
    if (sim->fail_disk_every && sim_draw(sim->fail_disk_every) == 0) {
        sim_record(SIM_EVENT_FAULT, EIO, 0);
        return (int)sim_result(-EIO);
    }
    if (sim->lose_sync_every && sim_draw(sim->lose_sync_every) == 0) {
        sim->losts++;
        sim_record(SIM_EVENT_FAULT, 1, 0);
        return 0;
    }
    return getenv("POWER_LOSS_STORE") ? real(fd) : 0; /* without losses of power nothing need get to the disk */
}

EXPORTED int fsync(int fd)
{
    REAL(fsync);
    return sync_call(fd, real);
}

EXPORTED int fdatasync(int fd)
{
    REAL(fdatasync);
    return sync_call(fd, real);
}

EXPORTED int statvfs(const char *restrict path, struct statvfs *restrict out)
{
    REAL(statvfs);
    const int result = real(path, out);
    if (result == 0 && sim_here()) out->f_bavail = out->f_bfree = out->f_blocks = (fsblkcnt_t)1 << 26;
    return result;
}
