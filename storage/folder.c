/*
 * folder.c -- the files of a cache. Nothing here is overwritten before its head has been read and found to be ours.
 */
#include "folder.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

static enum aq_status text_join(const char *folder, const char *name, char **out)
{
    char text[PATH_MAX];
    const int length = snprintf(text, sizeof(text), "%s%s%s", folder, name[0] != 0 ? "/" : "", name);
    if (length < 0 || (size_t)length >= sizeof(text) - 8) {
        return aq_fail(AQ_INVAL, "cache", "the path of the cache is too long (%d bytes)", length);
    }
    return aq_alloc_text(text, out);
}

/* Which process holds the lock of this file, as /proc/locks lists it; 0: not listed. */
static long lock_holder(int fd)
{
    struct stat file;
    char line[256];
    long holder = 0;
    FILE *locks = fopen("/proc/locks", "re");
    if (locks == NULL) return 0;
    while (fstat(fd, &file) == 0 && holder == 0 && fgets(line, sizeof(line), locks) != NULL) {
        /* "1: FLOCK  ADVISORY  WRITE 4711 fe:01:131075 0 EOF" */
        long process;
        unsigned device_major, device_minor;
        uint64_t inode;
        if (sscanf(line, "%*d: FLOCK %*s %*s %ld %x:%x:%" SCNu64, &process, &device_major, &device_minor, &inode) ==
                4 &&
            inode == file.st_ino && device_major == major(file.st_dev) && device_minor == minor(file.st_dev)) {
            holder = process;
        }
    }
    fclose(locks);
    return holder;
}

static enum aq_status lock_refused(const struct aq_folder *folder)
{
    char path[64], name[64] = "";
    const long holder = lock_holder(folder->lock_fd);
    if (holder <= 0)
        return aq_fail(AQ_REFUSED, "cache", "%s is in use by another process: end that process first", folder->path);
    snprintf(path, sizeof(path), "/proc/%ld/comm", holder);
    FILE *comm = fopen(path, "re");
    if (comm != NULL && fgets(name, sizeof(name), comm) != NULL) name[strcspn(name, "\n")] = 0;
    if (comm != NULL) fclose(comm);
    return aq_fail(AQ_REFUSED, "cache", "%s is in use by another process (%s, pid %ld): end that process first",
                   folder->path, name[0] != 0 ? name : "unknown", holder);
}

static enum aq_status lock_take(struct aq_folder *folder, bool make)
{
    /* A reader may have no right to write; flock asks for none. */
    const enum aq_status status =
        aq_file_open(folder->path, "lock", make ? AQ_FILE_KEEP : AQ_FILE_READ, &folder->lock_fd);
    if (status == AQ_NOTFOUND && !make) return AQ_OK; /* a copy, or no cache at all: no process has it open */
    AQ_TRY(status);
    if (flock(folder->lock_fd, LOCK_EX | LOCK_NB) == 0) return AQ_OK;
    return errno == EWOULDBLOCK ? lock_refused(folder) : aq_fail_errno("cache", "lock %s/lock", folder->path);
}

static enum aq_status sync_path(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd == -1) return aq_fail_errno("cache", "open %s", path);
    const int result = fsync(fd);
    const int error = errno;
    close(fd);
    errno = error;
    return result == -1 && error != EINVAL ? aq_fail_errno("cache", "sync %s", path) : AQ_OK;
}

/* A new folder's own name is in the folder around it: until that is synced, what is synced inside may vanish. */
static enum aq_status make_folder(const char *path)
{
    struct stat info;
    if (mkdir(path, 0700) == -1) {
        if (errno != EEXIST) return aq_fail_errno("cache", "make the folder %s", path);
        if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode))
            return aq_fail(AQ_REFUSED, "cache",
                           "%s is a symbolic link, which is not followed here: remove it, or name its target's folder "
                           "by cache.path",
                           path);
        return AQ_OK;
    }
    char *around = NULL;
    AQ_TRY(text_join(path, "..", &around));
    const enum aq_status status = sync_path(around);
    aq_free(around);
    return status;
}

enum aq_status aq_folder_open(const char *path, bool make, struct aq_folder *out)
{
    enum aq_status status = AQ_OK;
    struct aq_folder folder = {.lock_fd = -1, .slab_fd = -1};
    AQ_TRY_GOTO(text_join(path, "", &folder.path), out);
    AQ_TRY_GOTO(text_join(path, "index.mdb", &folder.index_path), out);
    AQ_TRY_GOTO(text_join(path, "slab", &folder.slab_path), out);
    if (make) AQ_TRY_GOTO(make_folder(path), out);
    struct stat stat_of;
    if (stat(path, &stat_of) == -1) {
        status = aq_fail_errno("cache", "the folder %s", path);
        goto out;
    }
    if (!S_ISDIR(stat_of.st_mode)) {
        status = aq_fail(AQ_INVAL, "cache", "%s is not a folder", path);
        goto out;
    }
    AQ_TRY_GOTO(lock_take(&folder, make), out);
    *out = folder;
    return AQ_OK;
out:
    aq_folder_close(&folder);
    return status;
}

void aq_folder_close(struct aq_folder *folder)
{
    if (folder->slab_fd != -1) close(folder->slab_fd);
    if (folder->lock_fd != -1) close(folder->lock_fd);
    aq_free(folder->path);
    aq_free(folder->index_path);
    aq_free(folder->slab_path);
    *folder = (struct aq_folder){.lock_fd = -1, .slab_fd = -1};
}

enum aq_status aq_cache_discard(const char *path)
{
    static const char *const names[] = {"index.mdb", "index.mdb.new", "slab", "lock"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i)
        AQ_TRY(aq_file_remove(path, names[i]));
    const enum aq_status status = aq_file_remove_folder(NULL, path);
    return status == AQ_REFUSED ? AQ_OK : status;
}

enum aq_status aq_cache_wipe(const char *path, uint64_t *bytes)
{
    struct aq_folder folder;
    struct stat file;
    AQ_TRY(aq_folder_open(path, false, &folder));
    *bytes = 0;
    if (stat(folder.index_path, &file) == 0) *bytes += (uint64_t)file.st_size;
    if (stat(folder.slab_path, &file) == 0) *bytes += (uint64_t)file.st_size;
    const enum aq_status status = aq_cache_discard(path);
    aq_folder_close(&folder); /* the lock is held until nothing is left to open */
    return status;
}

/* A block of memory that O_DIRECT takes, inside a buffer of twice its size. */
struct block {
    uint8_t bytes[2 * AQ_STORE_BLOCK];
};

static uint8_t *block_of(struct block *block)
{
    return block->bytes + (AQ_STORE_BLOCK - (uintptr_t)block->bytes % AQ_STORE_BLOCK) % AQ_STORE_BLOCK;
}

/* The slab's first block; a signal that comes meanwhile (network file systems report it) is not a failure of the
 * disk. */
static ssize_t block_read(int fd, uint8_t *bytes)
{
    ssize_t got;
    do {
        got = pread(fd, bytes, AQ_STORE_BLOCK, 0);
    } while (got == -1 && errno == EINTR);
    return got;
}

static ssize_t block_write(int fd, const uint8_t *bytes)
{
    ssize_t put;
    do {
        put = pwrite(fd, bytes, AQ_STORE_BLOCK, 0);
    } while (put == -1 && errno == EINTR);
    return put;
}

/* tmpfs takes O_DIRECT since Linux 6.6 and then copies through memory all the same: it counts as not taking it. */
static bool file_in_memory(int fd)
{
    struct statfs system_of;
    return fstatfs(fd, &system_of) == 0 && (system_of.f_type == TMPFS_MAGIC || system_of.f_type == RAMFS_MAGIC);
}

static enum aq_status slab_fd_open(struct aq_folder *folder, bool direct, enum aq_file_how how)
{
    struct block block;
    if (folder->slab_fd != -1) close(folder->slab_fd);
    folder->direct = false;
    folder->slab_fd = -1;
    AQ_TRY(aq_file_open(folder->path, "slab", how, &folder->slab_fd));
    if (!direct || file_in_memory(folder->slab_fd)) return AQ_OK;
    const int flags = fcntl(folder->slab_fd, F_GETFL);
    if (flags == -1) return aq_fail_errno("cache", "open %s", folder->slab_path);
    if (fcntl(folder->slab_fd, F_SETFL, flags | O_DIRECT) != 0) return AQ_OK; /* it does not take the flag */
    /* A file system may take the flag and refuse the read, or need more than our alignment. */
    if (block_read(folder->slab_fd, block_of(&block)) >= 0) {
        folder->direct = true;
        return AQ_OK;
    }
    if (fcntl(folder->slab_fd, F_SETFL, flags) != 0) return aq_fail_errno("cache", "open %s", folder->slab_path);
    return AQ_OK;
}

static void direct_say(const struct aq_folder *folder, bool direct)
{
    if (direct && !folder->direct) {
        aq_log("cache", 1, "the file system of %s does not support O_DIRECT: messages go through the page cache",
               folder->slab_path);
    }
}

enum aq_status aq_folder_slab_open(struct aq_folder *folder, bool direct, bool write, struct aq_record_head *out)
{
    struct block block;
    uint8_t *bytes = block_of(&block);
    struct aq_record_head head;
    static const uint8_t zero[sizeof(head)];
    AQ_TRY(slab_fd_open(folder, direct, write ? AQ_FILE_UPDATE : AQ_FILE_READ));
    const ssize_t got = block_read(folder->slab_fd, bytes);
    if (got == -1) return aq_fail_errno("cache", "read %s", folder->slab_path);
    if (got == 0) return AQ_NOTFOUND;
    if (got < AQ_FOLDER_HEAD_BYTES)
        return aq_fail(AQ_CORRUPT, "cache", "%s is cut short: it ends within its header", folder->slab_path);
    memcpy(&head, bytes, sizeof(head));
    if (memcmp(&head, zero, sizeof(head)) == 0) return AQ_NOTFOUND; /* room was made, the head not yet written */
    AQ_TRY(aq_record_head_check(&head, AQ_RECORD_SLAB, folder->slab_path));
    folder->cell_bytes = head.cell_bytes;
    direct_say(folder, direct);
    *out = head;
    return AQ_OK;
}

enum aq_status aq_folder_slab_make(struct aq_folder *folder, bool direct, const struct aq_record_head *head)
{
    struct block block;
    uint8_t *bytes = block_of(&block);
    memset(bytes, 0, AQ_STORE_BLOCK);
    memcpy(bytes, head, sizeof(*head));
    AQ_TRY(slab_fd_open(folder, direct, AQ_FILE_KEEP));
    if (ftruncate(folder->slab_fd, 0) == -1) return aq_fail_errno("cache", "empty %s", folder->slab_path);
    const ssize_t put = block_write(folder->slab_fd, bytes);
    if (put == -1) return aq_fail_errno("cache", "write %s", folder->slab_path);
    if (put < AQ_STORE_BLOCK) return aq_fail(AQ_NOSPC, "cache", "%s: the disk is full", folder->slab_path);
    if (fdatasync(folder->slab_fd) == -1) return aq_fail_errno("cache", "sync %s", folder->slab_path);
    folder->cell_bytes = head->cell_bytes;
    direct_say(folder, direct);
    return AQ_OK;
}

enum aq_status aq_folder_sync(const struct aq_folder *folder)
{
    return sync_path(folder->path);
}

enum aq_status aq_folder_cells(const struct aq_folder *folder, uint64_t *out)
{
    struct stat stat_of;
    if (fstat(folder->slab_fd, &stat_of) == -1) return aq_fail_errno("cache", "stat %s", folder->slab_path);
    const uint64_t bytes = (uint64_t)stat_of.st_size;
    *out = bytes < AQ_FOLDER_HEAD_BYTES ? 0 : (bytes - AQ_FOLDER_HEAD_BYTES) / folder->cell_bytes;
    return AQ_OK;
}

enum aq_status aq_folder_cells_grow(struct aq_folder *folder, uint64_t cells)
{
    const off_t bytes = (off_t)(AQ_FOLDER_HEAD_BYTES + cells * folder->cell_bytes);
    if (fallocate(folder->slab_fd, 0, 0, bytes) == 0) return AQ_OK;
    folder->grow_errno = errno;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) return AQ_NOSPC;
    if (errno != EOPNOTSUPP && errno != ENOSYS) {
        return aq_fail_errno("cache", "%s: room for %" PRIu64 " messages", folder->slab_path, cells);
    }
    /* This file system cannot promise room: a full disk then shows at the write. */
    if (ftruncate(folder->slab_fd, bytes) == 0) return AQ_OK;
    folder->grow_errno = errno;
    return errno == ENOSPC || errno == EFBIG ? AQ_NOSPC : aq_fail_errno("cache", "grow %s", folder->slab_path);
}
