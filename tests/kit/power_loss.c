/*
 * power_loss.c -- a library for LD_PRELOAD that keeps, beside a folder, what of it would outlive a loss of power.
 *
 * POSIX promises little: of a file what was there at its last fsync (or was written through O_DSYNC), of a folder the
 * names that it had at its own last fsync. That, and no more, is kept in a store: f-ID has a file's bytes, d-ID a
 * folder's names. tests/e2e/power.py kills everything and makes the folder anew from the store, alone or mixed block by
 * block, with what had been written and not synced, for a disk may have got to that, too.
 *
 * Nothing is written down but at these moments, so that it is all the same how bytes came into a file; only io_uring,
 * whose syncs pass no library, is refused (its users then go on without). Syncs are kept, not done.
 *
 * Environment: POWER_LOSS_ROOT, the folder that is watched; POWER_LOSS_STORE, where the store is. Once there is a file
 * "off" in the store, the power is off: whoever would sync sleeps until it is killed.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

struct io_uring;
EXPORTED int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
EXPORTED int power_loss_id(int fd, char *out, size_t bytes);
EXPORTED int power_loss_keep(int fd);

/* Which file or folder this is, for ever: numbers of inodes are used again, moments of birth are not. */
int power_loss_id(int fd, char *out, size_t bytes)
{
    struct statx info;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &info) != 0) return -1;
    snprintf(out, bytes, "%c-%llu-%lld-%u", S_ISDIR(info.stx_mode) ? 'd' : 'f', (unsigned long long)info.stx_ino,
             (long long)info.stx_btime.tv_sec, info.stx_btime.tv_nsec);
    return 0;
}

static bool store_path(const char *name, char out[PATH_MAX])
{
    const char *store = getenv("POWER_LOSS_STORE");
    return store && snprintf(out, PATH_MAX, "%s/%s", store, name) < PATH_MAX;
}

/* Is it below the root (or the root itself)? */
static bool is_watched(int fd)
{
    char link[64], path[PATH_MAX];
    const char *root = getenv("POWER_LOSS_ROOT");
    if (!root) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t bytes = readlink(link, path, sizeof path - 1);
    if (bytes <= 0) return false;
    path[bytes] = 0;
    const size_t length = strlen(root);
    return strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static void sleep_without_power(void)
{
    char path[PATH_MAX];
    while (store_path("off", path) && access(path, F_OK) == 0)
        pause();
}

/* The names that a folder has now: "ID name" a line. */
static bool list(int fd, FILE *out)
{
    const int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = again == -1 ? NULL : fdopendir(again);
    if (!folder) return false;
    const struct dirent *entry;
    while ((entry = readdir(folder))) {
        char id[80];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        const int one = openat(again, entry->d_name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (one == -1) continue; /* gone meanwhile */
        if (power_loss_id(one, id, sizeof id) == 0) fprintf(out, "%s %s\n", id, entry->d_name);
        close(one);
    }
    closedir(folder);
    return true;
}

static bool copy(int fd, int out)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const int in = open(link, O_RDONLY | O_CLOEXEC); /* anew: the descriptor may be for writing alone, or O_DIRECT */
    if (in == -1) return false;
    ssize_t moved;
    while ((moved = sendfile(out, in, NULL, 1 << 20)) > 0)
        continue;
    close(in);
    return moved == 0;
}

static int keep(int fd)
{
    char id[80], name[128], aside[PATH_MAX], path[PATH_MAX];
    if (power_loss_id(fd, id, sizeof id) != 0) return -1;
    snprintf(name, sizeof name, "new-%d-%s", (int)gettid(), id);
    if (!store_path(name, aside) || !store_path(id, path)) return -1;
    bool good;
    if (id[0] == 'd') {
        FILE *file = fopen(aside, "we");
        if (!file) return -1;
        good = list(fd, file);
        good = fclose(file) == 0 && good;
    } else {
        const int out = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (out == -1) return -1;
        good = copy(fd, out);
        good = close(out) == 0 && good;
    }
    return good && rename(aside, path) == 0 ? 0 : -1;
}

/*
 * Everything of this file, or the names of this folder, is safe from now on. 0, or -1 with errno. One at a time: of two
 * that sync the same folder the one that looked first could else write last, and the other's names would be lost.
 */
int power_loss_keep(int fd)
{
    char path[PATH_MAX];
    const int lock = store_path("lock", path) ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (lock == -1) return -1;
    while (flock(lock, LOCK_EX) != 0)
        if (errno != EINTR) {
            close(lock);
            return -1;
        }
    const int kept = keep(fd);
    close(lock);
    return kept;
}

static int keep_synced(int fd)
{
    if (!is_watched(fd)) return 0;
    sleep_without_power();
    return power_loss_keep(fd);
}

EXPORTED int fsync(int fd)
{
    return keep_synced(fd);
}

EXPORTED int fdatasync(int fd)
{
    return keep_synced(fd);
}

/* What is written through O_DSYNC (LMDB's meta pages) is safe when the call returns. */
EXPORTED ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    static ssize_t (*next)(int, const void *, size_t, off_t);
    char id[80], path[PATH_MAX];
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
    const ssize_t written = next(fd, bytes, count, offset);
    if (written <= 0 || !(fcntl(fd, F_GETFL) & O_DSYNC) || !is_watched(fd)) return written;
    sleep_without_power();
    if (power_loss_id(fd, id, sizeof id) != 0 || !store_path(id, path)) return -1;
    const int kept = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (kept == -1) return -1;
    const ssize_t again = next(kept, bytes, (size_t)written, offset);
    close(kept);
    return again;
}

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    (void)entries;
    (void)ring;
    (void)flags;
    return -ENOSYS;
}
