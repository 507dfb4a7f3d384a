/* io_fault.c -- see the header. */
#include "io_fault.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <liburing.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define NEXT(name)                                                                                                     \
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, name)

enum { BLOCK = 4096, FILES_MAX = 256, NAMES_MAX = 32, TAGS_MAX = 64 };

/* A file's bytes, or a folder's names, as the disk has them. */
struct durable {
    ino_t inode;
    bool folder;
    uint8_t *bytes;
    size_t byte_count;
    struct {
        char name[64];
        ino_t inode;
        bool folder;
    } names[NAMES_MAX];
    int name_count;
};

enum call { CALL_OPEN, CALL_CHANGE, CALL_SYNC, CALL_READ, CALL_WRITE };
enum verdict { GO, FAIL, HALF };

static struct {
    bool on, fired, full, must_be_told, no_rings;
    char root[PATH_MAX], copy[PATH_MAX], call[PATH_MAX];
    enum io_fault_kind kind;
    uint64_t n, calls;
    int error;
    void (*crashed)(void);
    struct durable files[FILES_MAX];
    int file_count;
    struct {
        uint64_t tag;
        int result;
        int sync_fd;
    } tags[TAGS_MAX]; /* completions that are to be changed */
    int tag_count;
} fault;

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_mutex_t gate_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_open = PTHREAD_COND_INITIALIZER;
static bool gate_held;
static __thread bool inside; /* the kit's own calls */

static void give_up(const char *what)
{
    printf("io_fault: %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(99);
}

void io_fault_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void io_fault_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

void io_fault_rings(bool there)
{
    fault.no_rings = !there;
}

void io_fault_hold(bool hold)
{
    pthread_mutex_lock(&gate_mutex);
    gate_held = hold;
    pthread_cond_broadcast(&gate_open);
    pthread_mutex_unlock(&gate_mutex);
}

static void gate_pass(void)
{
    pthread_mutex_lock(&gate_mutex);
    while (gate_held)
        pthread_cond_wait(&gate_open, &gate_mutex);
    pthread_mutex_unlock(&gate_mutex);
}

/* ---- what the disk has ---- */

static struct durable *durable_of(ino_t inode, bool make)
{
    for (int i = 0; i < fault.file_count; i++)
        if (fault.files[i].inode == inode) return &fault.files[i];
    if (!make) return NULL;
    if (fault.file_count == FILES_MAX) give_up("too many files");
    fault.files[fault.file_count] = (struct durable){.inode = inode};
    return &fault.files[fault.file_count++];
}

static void durable_forget(ino_t inode)
{
    struct durable *file = durable_of(inode, false);
    if (!file) return;
    free(file->bytes);
    *file = fault.files[--fault.file_count];
}

static void read_whole(int fd, uint8_t **bytes, size_t *count)
{
    struct stat info;
    if (fstat(fd, &info) != 0) give_up("fstat");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const int again = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC); /* the first may be O_DIRECT */
    if (again == -1) give_up(link);
    *bytes = malloc((size_t)info.st_size + 1);
    if (!*bytes) give_up("malloc");
    for (*count = 0; *count < (size_t)info.st_size;) {
        const long got = syscall(SYS_pread64, again, *bytes + *count, (size_t)info.st_size - *count, *count);
        if (got <= 0) break;
        *count += (size_t)got;
    }
    close(again);
}

static void keep_names(struct durable *folder, int fd)
{
    const int again = (int)syscall(SYS_openat, fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *walk = again == -1 ? NULL : fdopendir(again);
    const struct dirent *entry;
    if (!walk) give_up("a folder");
    folder->folder = true;
    folder->name_count = 0;
    while ((entry = readdir(walk))) {
        if (entry->d_name[0] == '.' && (!entry->d_name[1] || entry->d_name[1] == '.')) continue;
        const size_t length = strlen(entry->d_name);
        if (folder->name_count == NAMES_MAX || length >= sizeof folder->names[0].name)
            give_up("too many names, or too long");
        memcpy(folder->names[folder->name_count].name, entry->d_name, length + 1);
        folder->names[folder->name_count].folder = entry->d_type == DT_DIR;
        folder->names[folder->name_count++].inode = entry->d_ino;
    }
    closedir(walk);
}

/* All that this file has, or the names of this folder, is on the disk. */
static void keep(int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0) give_up("fstat");
    struct durable *file = durable_of(info.st_ino, true);
    if (S_ISDIR(info.st_mode)) {
        keep_names(file, fd);
        return;
    }
    free(file->bytes);
    read_whole(fd, &file->bytes, &file->byte_count);
}

static int keep_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd == -1) give_up(path);
    keep(fd);
    close(fd);
    return 0;
}

/* Bytes that went through O_DSYNC. */
static void keep_part(int fd, const void *bytes, size_t count, off_t offset)
{
    struct stat info;
    if (fstat(fd, &info) != 0) give_up("fstat");
    struct durable *file = durable_of(info.st_ino, true);
    const size_t end = (size_t)offset + count;
    if (end > file->byte_count) {
        file->bytes = realloc(file->bytes, end);
        if (!file->bytes) give_up("realloc");
        memset(file->bytes + file->byte_count, 0, end - file->byte_count);
        file->byte_count = end;
    }
    memcpy(file->bytes + offset, bytes, count);
}

/* ---- crashes ---- */

static void write_file(const char *path, const uint8_t *bytes, size_t count)
{
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd == -1) give_up(path);
    for (size_t done = 0; done < count;) {
        const long put = syscall(SYS_write, fd, bytes + done, count - done);
        if (put <= 0) give_up(path);
        done += (size_t)put;
    }
    close(fd);
}

static char copy_from[PATH_MAX], copy_to[PATH_MAX];

static int copy_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)kind;
    (void)walk;
    char to[2 * PATH_MAX];
    snprintf(to, sizeof to, "%s%s", copy_to, path + strlen(copy_from));
    if (S_ISDIR(info->st_mode)) return (int)syscall(SYS_mkdirat, AT_FDCWD, to, 0700);
    uint8_t *bytes;
    size_t count;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd == -1) return 0; /* gone meanwhile */
    read_whole(fd, &bytes, &count);
    close(fd);
    write_file(to, bytes, count);
    free(bytes);
    return 0;
}

void io_fault_copy(const char *from, const char *to)
{
    io_fault_lock();
    inside = true;
    snprintf(copy_from, sizeof copy_from, "%s", from);
    snprintf(copy_to, sizeof copy_to, "%s", to);
    if (nftw(from, copy_one, 8, FTW_PHYS) != 0) give_up(from);
    inside = false;
    io_fault_unlock();
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

void io_fault_remove(const char *folder)
{
    inside = true;
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    inside = false;
}

int io_fault_descriptors(void)
{
    int count = 0;
    DIR *walk = opendir("/proc/self/fd");
    while (walk && readdir(walk))
        count++;
    if (walk) closedir(walk);
    return count;
}

/* Where the file of this number is now, if it has a name below the root. */
static ino_t wanted_inode;
static char found_path[PATH_MAX];

static int find_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)kind;
    (void)walk;
    if (info->st_ino != wanted_inode) return 0;
    snprintf(found_path, sizeof found_path, "%s", path);
    return 1;
}

/* Every other block that was written and not synced got to the disk as well. */
static void mix(const struct durable *file, uint8_t **bytes, size_t *count)
{
    uint8_t *now;
    size_t now_count;
    wanted_inode = file->inode;
    if (nftw(fault.root, find_one, 8, FTW_PHYS) != 1) return;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, found_path, O_RDONLY | O_CLOEXEC);
    if (fd == -1) return;
    read_whole(fd, &now, &now_count);
    close(fd);
    const size_t most = now_count > *count ? now_count : *count;
    *bytes = realloc(*bytes, most + 1);
    if (!*bytes) give_up("realloc");
    memset(*bytes + *count, 0, most - *count);
    *count = most;
    for (size_t at = (fault.n & 1) * BLOCK; at < now_count; at += 2 * BLOCK)
        memcpy(*bytes + at, now + at, now_count - at < BLOCK ? now_count - at : BLOCK);
    free(now);
}

static void restore(ino_t inode, bool folder, const char *to)
{
    const struct durable *file = durable_of(inode, false);
    char path[2 * PATH_MAX];
    if (folder) {
        if (syscall(SYS_mkdirat, AT_FDCWD, to, 0700) != 0) give_up(to);
        for (int i = 0; file && i < file->name_count; i++) {
            snprintf(path, sizeof path, "%s/%s", to, file->names[i].name);
            restore(file->names[i].inode, file->names[i].folder, path);
        }
        return;
    }
    size_t count = file ? file->byte_count : 0;
    uint8_t *bytes = malloc(count + 1);
    if (!bytes) give_up("malloc");
    if (count > 0) memcpy(bytes, file->bytes, count);
    const struct durable nothing = {.inode = inode};
    if (fault.kind == IO_FAULT_MIXED) mix(file ? file : &nothing, &bytes, &count);
    write_file(to, bytes, count);
    free(bytes);
}

static void crash(void)
{
    struct stat info;
    if (fault.kind == IO_FAULT_KILL) {
        io_fault_copy(fault.root, fault.copy);
    } else {
        if (stat(fault.root, &info) != 0) give_up(fault.root);
        restore(info.st_ino, true, fault.copy);
    }
    inside = true;
    if (fault.crashed) fault.crashed();
}

/* ---- counting ---- */

void io_fault_begin(const char *root, enum io_fault_kind kind, uint64_t n, int error, const char *copy,
                    void (*crashed)(void))
{
    io_fault_lock();
    inside = true;
    while (fault.file_count > 0)
        durable_forget(fault.files[0].inode);
    if (nftw(root, keep_one, 8, FTW_PHYS) != 0) give_up(root);
    snprintf(fault.root, sizeof fault.root, "%s", root);
    snprintf(fault.copy, sizeof fault.copy, "%s", copy ? copy : "");
    fault.kind = kind;
    fault.n = n;
    fault.calls = 0;
    fault.error = error;
    fault.crashed = crashed;
    fault.fired = fault.full = fault.must_be_told = false;
    fault.tag_count = 0;
    fault.on = true;
    inside = false;
    io_fault_unlock();
}

bool io_fault_end(void)
{
    io_fault_lock();
    fault.on = false;
    const bool fired = fault.fired;
    io_fault_unlock();
    return fired;
}

const char *io_fault_call(void)
{
    return fault.call;
}

bool io_fault_must_be_told(void)
{
    return fault.must_be_told;
}

static bool below_root(const char *path)
{
    const size_t length = strlen(fault.root);
    return strncmp(path, fault.root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static bool path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t bytes = readlink(link, path, PATH_MAX - 1);
    if (bytes <= 0) return false;
    path[bytes] = 0;
    return true;
}

/* One more call: what becomes of it. Under the lock. */
static enum verdict count_call(const char *name, const char *path, enum call call, size_t bytes, bool direct)
{
    const bool moves = call == CALL_READ || call == CALL_WRITE;
    if (fault.full && call == CALL_WRITE) {
        fault.full = false;
        return FAIL;
    }
    if (fault.kind == IO_FAULT_NONE || fault.fired) return GO;
    if ((fault.kind == IO_FAULT_SHORT || fault.kind == IO_FAULT_INTERRUPT) && !moves) return GO;
    if (fault.kind == IO_FAULT_FULL && call != CALL_WRITE) return GO;
    const bool placed = name[0] != 'w' && strcmp(name, "read") != 0; /* a block at its place is written whole */
    if ((fault.kind == IO_FAULT_SHORT || fault.kind == IO_FAULT_FULL) && bytes < (direct || placed ? 2 * BLOCK : 2))
        return GO;
    if (fault.kind >= IO_FAULT_KILL && call == CALL_READ) return GO;
    if (++fault.calls != fault.n) return GO;
    fault.fired = true;
    fault.must_be_told =
        fault.kind == IO_FAULT_ERROR && (call == CALL_CHANGE || call == CALL_SYNC || call == CALL_WRITE);
    const char *slash = strrchr(path, '/');
    snprintf(fault.call, sizeof fault.call, "%s %s", name, slash ? slash + 1 : path);
    fault.full = fault.kind == IO_FAULT_FULL;
    fault.must_be_told |= fault.full;
    if (fault.kind == IO_FAULT_SHORT || fault.full) return HALF;
    if (fault.kind < IO_FAULT_KILL) return FAIL;
    inside = true;
    crash();
    inside = false;
    return GO;
}

static int error_now(void)
{
    return fault.kind == IO_FAULT_INTERRUPT ? EINTR : fault.error;
}

static size_t half_of(size_t bytes, bool direct)
{
    return direct ? bytes / 2 / BLOCK * BLOCK : bytes / 2;
}

/* A call on a descriptor. True: it is below the root, and the lock is held. */
static bool enter(int fd, const char *name, enum call call, size_t bytes, enum verdict *verdict)
{
    char path[PATH_MAX];
    *verdict = GO;
    if (inside || !fault.on || !path_of(fd, path) || !below_root(path)) return false;
    if (call == CALL_WRITE) gate_pass();
    io_fault_lock();
    const bool direct = fcntl(fd, F_GETFL) & O_DIRECT;
    *verdict = count_call(name, path, call, bytes, direct);
    if (*verdict == FAIL) errno = error_now();
    return true;
}

static bool enter_path(const char *path, const char *name, enum call call, enum verdict *verdict)
{
    *verdict = GO;
    if (inside || !fault.on || !below_root(path)) return false;
    io_fault_lock();
    *verdict = count_call(name, path, call, 0, false);
    if (*verdict == FAIL) errno = error_now();
    return true;
}

static void leave(bool entered)
{
    const int error = errno;
    if (entered) io_fault_unlock();
    errno = error;
}

/* ---- the calls ---- */

static void path_at(int folder, const char *name, char path[PATH_MAX])
{
    path[0] = 0;
    if (name[0] != '/' && folder != AT_FDCWD && path_of(folder, path)) {
        const size_t length = strlen(path);
        snprintf(path + length, PATH_MAX - length, "/%s", name);
    } else {
        snprintf(path, PATH_MAX, "%s", name);
    }
}

static int open_at(int folder, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    enum verdict verdict;
    path_at(folder, name, path);
    const bool entered = enter_path(path, "open", flags & O_CREAT ? CALL_CHANGE : CALL_OPEN, &verdict);
    int fd = -1;
    if (verdict != FAIL) {
        struct stat info;
        const bool made = entered && (flags & O_CREAT) && stat(path, &info) != 0;
        fd = (int)syscall(SYS_openat, folder, name, flags, mode);
        if (made && fd != -1 && fstat(fd, &info) == 0) durable_forget(info.st_ino); /* the number was another file's */
    }
    leave(entered);
    return fd;
}

EXPORTED int open(const char *name, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_at(AT_FDCWD, name, flags, mode);
}

EXPORTED int openat(int folder, const char *name, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_at(folder, name, flags, mode);
}

EXPORTED FILE *fopen(const char *name, const char *mode)
{
    static FILE *(*next)(const char *, const char *);
    enum verdict verdict;
    const bool entered = enter_path(name, "fopen", mode[0] == 'w' ? CALL_CHANGE : CALL_OPEN, &verdict);
    NEXT("fopen");
    FILE *file = verdict == FAIL ? NULL : next(name, mode);
    leave(entered);
    return file;
}

EXPORTED int fflush(FILE *file)
{
    static int (*next)(FILE *);
    enum verdict verdict = GO;
    const bool entered = file && enter(fileno(file), "fflush", CALL_CHANGE, 0, &verdict);
    NEXT("fflush");
    const int result = verdict == FAIL ? EOF : next(file);
    leave(entered);
    return result;
}

EXPORTED ssize_t write(int fd, const void *bytes, size_t count)
{
    enum verdict verdict;
    const bool entered = enter(fd, "write", CALL_WRITE, count, &verdict);
    if (verdict == HALF) count = half_of(count, false);
    const ssize_t result = verdict == FAIL ? -1 : syscall(SYS_write, fd, bytes, count);
    leave(entered);
    return result;
}

EXPORTED ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    enum verdict verdict;
    const bool entered = enter(fd, "pwrite", CALL_WRITE, count, &verdict);
    const int flags = fcntl(fd, F_GETFL);
    if (verdict == HALF) count = half_of(count, flags & O_DIRECT);
    const ssize_t result = verdict == FAIL ? -1 : syscall(SYS_pwrite64, fd, bytes, count, offset);
    if (entered && result > 0 && (flags & O_DSYNC)) keep_part(fd, bytes, (size_t)result, offset);
    leave(entered);
    return result;
}

EXPORTED ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    enum verdict verdict;
    const bool entered = enter(fd, "writev", CALL_WRITE, 0, &verdict);
    const ssize_t result = verdict == FAIL ? -1 : syscall(SYS_writev, fd, pieces, count);
    leave(entered);
    return result;
}

EXPORTED ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
    enum verdict verdict;
    const bool entered = enter(fd, "pread", CALL_READ, count, &verdict);
    if (verdict == HALF) count = half_of(count, fcntl(fd, F_GETFL) & O_DIRECT);
    const ssize_t result = verdict == FAIL ? -1 : syscall(SYS_pread64, fd, bytes, count, offset);
    leave(entered);
    return result;
}

EXPORTED ssize_t read(int fd, void *bytes, size_t count)
{
    enum verdict verdict;
    const bool entered = enter(fd, "read", CALL_READ, count, &verdict);
    if (verdict == HALF) count = half_of(count, false);
    const ssize_t result = verdict == FAIL ? -1 : syscall(SYS_read, fd, bytes, count);
    leave(entered);
    return result;
}

static int sync_file(int fd, const char *name, int number)
{
    enum verdict verdict;
    const bool entered = enter(fd, name, CALL_SYNC, 0, &verdict);
    int result = -1;
    if (entered && verdict != FAIL) {
        keep(fd);
        result = 0;
    } else if (!entered) {
        result = (int)syscall(number, fd);
    }
    leave(entered);
    return result;
}

EXPORTED int fsync(int fd)
{
    return sync_file(fd, "fsync", SYS_fsync);
}

EXPORTED int fdatasync(int fd)
{
    return sync_file(fd, "fdatasync", SYS_fdatasync);
}

EXPORTED int ftruncate(int fd, off_t bytes)
{
    enum verdict verdict;
    const bool entered = enter(fd, "ftruncate", CALL_CHANGE, 0, &verdict);
    const int result = verdict == FAIL ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
    leave(entered);
    return result;
}

EXPORTED int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    enum verdict verdict;
    const bool entered = enter(fd, "fallocate", CALL_OPEN, 0, &verdict); /* less may fit */
    const int result = verdict == FAIL ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    leave(entered);
    return result;
}

EXPORTED int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    char path[PATH_MAX];
    enum verdict verdict;
    path_at(from_folder, from, path);
    const bool entered = enter_path(path, "rename", CALL_CHANGE, &verdict);
    const int result = verdict == FAIL ? -1 : (int)syscall(SYS_renameat, from_folder, from, to_folder, to);
    leave(entered);
    return result;
}

EXPORTED int rename(const char *from, const char *to)
{
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

EXPORTED int unlinkat(int folder, const char *name, int flags)
{
    char path[PATH_MAX];
    enum verdict verdict;
    path_at(folder, name, path);
    const bool entered = enter_path(path, "unlink", CALL_OPEN, &verdict); /* what stays harms nobody */
    const int result = verdict == FAIL ? -1 : (int)syscall(SYS_unlinkat, folder, name, flags);
    leave(entered);
    return result;
}

EXPORTED int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

EXPORTED int mkdirat(int folder, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    enum verdict verdict;
    struct stat info;
    path_at(folder, name, path);
    const bool there = stat(path, &info) == 0; /* what is there is there */
    const bool entered = enter_path(path, "mkdir", there ? CALL_OPEN : CALL_CHANGE, &verdict);
    const int result = verdict == FAIL ? -1 : (int)syscall(SYS_mkdirat, folder, name, mode);
    if (there && verdict == FAIL) errno = EEXIST;
    leave(entered);
    return result;
}

EXPORTED int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

/* ---- the ring ---- */

EXPORTED int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    static int (*next)(unsigned, struct io_uring *, unsigned);
    if (fault.no_rings) return -ENOSYS;
    NEXT("io_uring_queue_init");
    return next(entries, ring, flags);
}

/* This entry does nothing, and ends so. */
static void tag(struct io_uring_sqe *entry, int result, int sync_fd)
{
    const uint64_t data = entry->user_data;
    if (fault.tag_count == TAGS_MAX) give_up("too many completions");
    fault.tags[fault.tag_count].tag = data;
    fault.tags[fault.tag_count].sync_fd = sync_fd;
    fault.tags[fault.tag_count++].result = result;
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_NOP;
    entry->user_data = data;
}

static void look_at(struct io_uring_sqe *entry)
{
    const bool reads = entry->opcode == IORING_OP_READ || entry->opcode == IORING_OP_READ_FIXED;
    const bool writes = entry->opcode == IORING_OP_WRITE || entry->opcode == IORING_OP_WRITE_FIXED;
    const bool syncs = entry->opcode == IORING_OP_FSYNC;
    char path[PATH_MAX];
    if ((!reads && !writes && !syncs) || !path_of(entry->fd, path) || !below_root(path)) return;
    const bool direct = fcntl(entry->fd, F_GETFL) & O_DIRECT;
    const enum verdict verdict = count_call(syncs   ? "ring fsync"
                                            : reads ? "ring read"
                                                    : "ring write",
                                            path,
                                            syncs   ? CALL_SYNC
                                            : reads ? CALL_READ
                                                    : CALL_WRITE,
                                            entry->len, direct);
    if (verdict == FAIL)
        tag(entry, -error_now(), -1);
    else if (verdict == HALF)
        entry->len = (unsigned)half_of(entry->len, direct);
    else if (syncs)
        tag(entry, 0, entry->fd);
}

EXPORTED int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **out, unsigned count,
                                              struct __kernel_timespec *timeout, sigset_t *signals)
{
    static int (*next)(struct io_uring *, struct io_uring_cqe **, unsigned, struct __kernel_timespec *, sigset_t *);
    NEXT("io_uring_submit_and_wait_timeout");
    if (fault.on) {
        gate_pass();
        io_fault_lock();
        for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++)
            look_at(&ring->sq.sqes[i & *ring->sq.kring_mask]);
        io_fault_unlock();
    }
    return next(ring, out, count, timeout, signals);
}

EXPORTED unsigned io_uring_peek_batch_cqe(struct io_uring *ring, struct io_uring_cqe **out, unsigned most)
{
    static unsigned (*next)(struct io_uring *, struct io_uring_cqe **, unsigned);
    NEXT("io_uring_peek_batch_cqe");
    const unsigned count = next(ring, out, most);
    io_fault_lock();
    for (unsigned i = 0; i < count; i++)
        for (int k = 0; k < fault.tag_count; k++) {
            if (fault.tags[k].tag != out[i]->user_data) continue;
            out[i]->res = fault.tags[k].result;
            if (fault.tags[k].sync_fd != -1) keep(fault.tags[k].sync_fd);
            fault.tags[k] = fault.tags[--fault.tag_count];
            break;
        }
    io_fault_unlock();
    return count;
}
