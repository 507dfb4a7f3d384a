/*
 * file.c -- see the header. A name is walked part by part from a descriptor of its folder, so that nothing can be put
 * in the way between a check and its use.
 */
#include "aqsgd/base/file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aqsgd/base/memory.h"

#define AREA "file"

enum { FOLDER_FLAGS = O_DIRECTORY | O_CLOEXEC };

struct place {
    int parent;           /* the folder that holds the name     */
    const char *base;     /* the last part of the name          */
    char text[PATH_MAX];  /* the whole path, for error lines    */
    char parts[PATH_MAX]; /* the name, cut at its slashes       */
};

static const char *const remedy = "links are not followed here: remove it, or name the folder itself";

/* Why can `name` not be opened as a folder? */
static enum aq_status folder_refused(int parent, const char *name, const char *text)
{
    const int error = errno;
    struct stat info;
    if (error == ENOENT) return AQ_NOTFOUND;
    if ((error == ENOTDIR || error == ELOOP) && fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISLNK(info.st_mode))
            return aq_fail(AQ_REFUSED, AREA, "%s: '%s' is a symbolic link; %s", text, name, remedy);
        return aq_fail(AQ_REFUSED, AREA, "%s: '%s' is not a folder", text, name);
    }
    errno = error;
    return aq_fail_errno(AREA, "cannot open the folder of %s", text);
}

/* One step down, past no link. Takes `parent`, also on failure. */
static enum aq_status step_down(int parent, const char *name, const char *text, int *out)
{
    const int fd = openat(parent, name, O_PATH | O_NOFOLLOW | FOLDER_FLAGS);
    enum aq_status status = AQ_OK;
    if (fd == -1)
        status = folder_refused(parent, name, text);
    else
        *out = fd;
    close(parent);
    return status;
}

/* The folder that the user named: links are followed. */
static enum aq_status named_open(const char *folder, const char *text, int *out)
{
    const int fd = open(folder, O_PATH | FOLDER_FLAGS);
    if (fd == -1 && (errno == ENOENT || errno == ENOTDIR)) return AQ_NOTFOUND;
    if (fd == -1) return aq_fail_errno(AREA, "cannot open the folder of %s", text);
    *out = fd;
    return AQ_OK;
}

/* AQ_NOTFOUND is not logged. */
static enum aq_status place_open(const char *folder, const char *name, struct place *place)
{
    const int bytes =
        snprintf(place->text, sizeof place->text, "%s%s%s", folder ? folder : "", folder ? "/" : "", name);
    if (bytes <= 0 || (size_t)bytes >= sizeof place->text || name[0] == 0)
        return aq_fail(AQ_INVAL, AREA, "the path %.80s...%.80s is too long, or empty", folder ? folder : "", name);
    snprintf(place->parts, sizeof place->parts, "%s", name);
    char *at = place->parts, *slash;
    if (!folder) {
        slash = strrchr(at, '/');
        if (slash) *slash = 0;
        folder = !slash ? "." : slash == at ? "/" : at;
        at = slash ? slash + 1 : at;
    }
    int fd = -1;
    AQ_TRY(named_open(folder, place->text, &fd));
    for (; (slash = strchr(at, '/')); at = slash + 1) {
        *slash = 0;
        AQ_TRY(step_down(fd, at, place->text, &fd));
    }
    place->parent = fd;
    place->base = at;
    return AQ_OK;
}

static enum aq_status open_failed(const struct place *place)
{
    const int error = errno;
    if (error == ELOOP) return aq_fail(AQ_REFUSED, AREA, "%s is a symbolic link; %s", place->text, remedy);
    if (error == ENXIO || error == EISDIR)
        return aq_fail(AQ_REFUSED, AREA, "%s is not a regular file: remove it", place->text);
    return aq_fail_errno(AREA, "cannot open %s", place->text);
}

/* It is open: is it what it should be? */
static enum aq_status check_open(int fd, const struct place *place, bool in_place)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return aq_fail_errno(AREA, "%s", place->text);
    if (!S_ISREG(info.st_mode)) return aq_fail(AQ_REFUSED, AREA, "%s is not a regular file: remove it", place->text);
    if (in_place && info.st_nlink > 1)
        return aq_fail(AQ_REFUSED, AREA,
                       "%s has %llu names (hard links): writing it would change the file under all of them; copy it",
                       place->text, (unsigned long long)info.st_nlink);
    /* It kept the open from hanging; io_uring would take it at its word. */
    const int flags = fcntl(fd, F_GETFL);
    if (flags == -1 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) return aq_fail_errno(AREA, "%s", place->text);
    return AQ_OK;
}

static enum aq_status open_mode(const char *folder, const char *name, enum aq_file_how how, mode_t mode, int *fd)
{
    static const int flags_of[] = {[AQ_FILE_READ] = O_RDONLY,
                                   [AQ_FILE_UPDATE] = O_RDWR,
                                   [AQ_FILE_KEEP] = O_RDWR | O_CREAT,
                                   [AQ_FILE_APPEND] = O_WRONLY | O_CREAT | O_APPEND,
                                   [AQ_FILE_ANEW] = O_WRONLY | O_CREAT | O_EXCL};
    struct place place;
    const bool may_miss = how == AQ_FILE_READ || how == AQ_FILE_UPDATE;
    enum aq_status status = place_open(folder, name, &place);
    if (status == AQ_NOTFOUND && !may_miss)
        return aq_fail(AQ_NOTFOUND, AREA, "cannot make %s: its folder does not exist", place.text);
    AQ_TRY(status);
    if (how == AQ_FILE_ANEW && unlinkat(place.parent, place.base, 0) != 0 && errno != ENOENT) {
        status = errno == EISDIR || errno == EPERM
                     ? aq_fail(AQ_REFUSED, AREA, "%s is a folder, not a file: remove it", place.text)
                     : aq_fail_errno(AREA, "cannot replace %s", place.text);
        close(place.parent);
        return status;
    }
    const int opened =
        openat(place.parent, place.base, flags_of[how] | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
    if (opened != -1)
        status = check_open(opened, &place, how != AQ_FILE_READ && how != AQ_FILE_ANEW);
    else
        status = errno == ENOENT && may_miss ? AQ_NOTFOUND : open_failed(&place);
    close(place.parent);
    if (status == AQ_OK)
        *fd = opened;
    else if (opened != -1)
        close(opened);
    return status;
}

enum aq_status aq_file_open(const char *folder, const char *name, enum aq_file_how how, int *fd)
{
    return open_mode(folder, name, how, 0600, fd);
}

enum aq_status aq_file_rename(const char *folder, const char *from, const char *to)
{
    struct place place;
    enum aq_status status = place_open(folder, from, &place);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_NOTFOUND, AREA, "cannot rename %s: its folder no longer exists", place.text);
    AQ_TRY(status);
    const char *slash = strrchr(to, '/');
    if (renameat(place.parent, place.base, place.parent, slash ? slash + 1 : to) != 0)
        status = aq_fail_errno(AREA, "cannot rename %s", place.text);
    close(place.parent);
    return status;
}

static enum aq_status remove_name(const char *folder, const char *name, int flags)
{
    struct place place;
    enum aq_status status = place_open(folder, name, &place);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    const int error = unlinkat(place.parent, place.base, flags) == 0 ? 0 : errno;
    if (flags && (error == ENOTEMPTY || error == EEXIST || error == ENOTDIR))
        status = AQ_REFUSED;
    else if (error == EISDIR)
        status = aq_fail(AQ_REFUSED, AREA, "%s is a folder, not a file: remove it", place.text);
    else if (error && error != ENOENT)
        status = aq_fail_errno(AREA, "cannot remove %s", place.text);
    close(place.parent);
    return status;
}

enum aq_status aq_file_remove(const char *folder, const char *name)
{
    return remove_name(folder, name, 0);
}

enum aq_status aq_file_remove_folder(const char *folder, const char *name)
{
    return remove_name(folder, name, AT_REMOVEDIR);
}

enum aq_status aq_file_open_folder(const char *folder, const char *name, int *fd)
{
    struct place place;
    AQ_TRY(place_open(folder, name[0] ? name : ".", &place));
    const int opened = openat(place.parent, place.base, O_RDONLY | O_NOFOLLOW | FOLDER_FLAGS);
    const enum aq_status status = opened == -1 ? folder_refused(place.parent, place.base, place.text) : AQ_OK;
    close(place.parent);
    if (status == AQ_OK) *fd = opened;
    return status;
}

static enum aq_status sync_fd(int folder, const char *text)
{
    const int fd = openat(folder, ".", O_RDONLY | FOLDER_FLAGS);
    if (fd == -1) return aq_fail_errno(AREA, "cannot open the folder of %s", text);
    /* Some file systems cannot sync a folder and report that: then there is nothing to wait for. */
    const enum aq_status status =
        fsync(fd) == 0 || errno == EINVAL ? AQ_OK : aq_fail_errno(AREA, "cannot sync the folder of %s", text);
    close(fd);
    return status;
}

enum aq_status aq_file_sync_folder(const char *folder, const char *name)
{
    struct place place;
    enum aq_status status = place_open(folder, name, &place);
    if (status == AQ_NOTFOUND) return aq_fail(AQ_NOTFOUND, AREA, "the folder of %s no longer exists", place.text);
    AQ_TRY(status);
    status = sync_fd(place.parent, place.text);
    close(place.parent);
    return status;
}

/* The name's folders one by one: made, or found to be folders and no links. */
enum aq_status aq_file_make_folder(const char *folder, const char *name)
{
    char part[PATH_MAX];
    const size_t length = strlen(name);
    if (length == 0 || length >= sizeof part)
        return aq_fail(AQ_INVAL, AREA, "'%.80s' is not a valid folder name", name);
    for (size_t i = 1; i <= length; i++) {
        if (name[i] != '/' && name[i] != 0) continue;
        struct place place;
        memcpy(part, name, i);
        part[i] = 0;
        enum aq_status status = place_open(folder, part, &place);
        if (status == AQ_NOTFOUND)
            return aq_fail(AQ_NOTFOUND, AREA, "cannot make the folder %s: its parent does not exist", place.text);
        AQ_TRY(status);
        int fd = -1;
        if (mkdirat(place.parent, place.base, 0700) == 0)
            status = sync_fd(place.parent, place.text); /* what is in it is of no use where its own name is lost */
        else if (errno != EEXIST)
            status = aq_fail_errno(AREA, "cannot make the folder %s", place.text);
        else if ((fd = openat(place.parent, place.base, O_PATH | O_NOFOLLOW | FOLDER_FLAGS)) == -1)
            status = folder_refused(place.parent, place.base, place.text);
        if (fd != -1) close(fd);
        close(place.parent);
        AQ_TRY(status);
    }
    return AQ_OK;
}

/* ---- whole files ---- */

enum aq_status aq_file_replace(const char *folder, const char *name, mode_t mode, const void *bytes, size_t count)
{
    char aside[PATH_MAX];
    int fd;
    const int length = snprintf(aside, sizeof aside, "%s.new", name);
    if (length < 0 || (size_t)length >= sizeof aside)
        return aq_fail(AQ_INVAL, AREA, "the path %.80s... is too long", name);
    AQ_TRY(open_mode(folder, aside, AQ_FILE_ANEW, mode, &fd));
    enum aq_status status = AQ_OK;
    if (!aq_write_all(fd, bytes, count)) status = aq_fail_errno(AREA, "cannot write %s", aside);
    if (status == AQ_OK && fsync(fd) != 0) status = aq_fail_errno(AREA, "cannot sync %s", aside);
    if (close(fd) != 0 && status == AQ_OK) status = aq_fail_errno(AREA, "cannot close %s", aside);
    if (status == AQ_OK) status = aq_file_rename(folder, aside, name);
    if (status != AQ_OK) {
        struct aq_error_hold none; /* a disk that took no bytes may remove nothing: the first failure is what is told */
        aq_error_hold(&none);
        (void)aq_file_remove(folder, aside);
        aq_error_release(&none);
        return status;
    }
    return aq_file_sync_folder(folder, name);
}

enum aq_status aq_file_load(const char *folder, const char *name, size_t bytes_max, char **bytes, size_t *count)
{
    int fd;
    struct stat info;
    void *memory = NULL;
    ssize_t got;
    AQ_TRY(aq_file_open(folder, name, AQ_FILE_READ, &fd));
    enum aq_status status = AQ_OK;
    if (fstat(fd, &info) != 0)
        status = aq_fail_errno(AREA, "%s", name);
    else if (info.st_size < 0 || (uint64_t)info.st_size > bytes_max)
        status = aq_fail(AQ_NOSPC, AREA, "%s has %lld bytes, more than %zu", name, (long long)info.st_size, bytes_max);
    if (status != AQ_OK) goto out;
    AQ_TRY_GOTO(aq_alloc((size_t)info.st_size + 1, &memory), out);
    got = aq_read_all(fd, memory, (size_t)info.st_size);
    if (got < 0) {
        status = aq_fail_errno(AREA, "cannot read %s", name);
        goto out;
    }
    *bytes = memory;
    (*bytes)[got] = 0;
    memory = NULL;
    if (count) *count = (size_t)got;
out:
    aq_free(memory);
    close(fd);
    return status;
}

/* ---- all bytes ---- */

/* After one transfer of a loop: did it fail for good? A write that takes nothing has no room. */
static bool failed(ssize_t moved, bool writes)
{
    if (moved == 0 && writes) errno = ENOSPC;
    return moved < 0 ? errno != EINTR : moved == 0 && writes;
}

bool aq_write_all(int fd, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        const ssize_t put = write(fd, (const char *)bytes + done, count - done);
        if (failed(put, true)) return false;
        if (put > 0) done += (size_t)put;
    }
    return true;
}

bool aq_pwrite_all(int fd, const void *bytes, size_t count, uint64_t offset)
{
    for (size_t done = 0; done < count;) {
        const ssize_t put = pwrite(fd, (const char *)bytes + done, count - done, (off_t)(offset + done));
        if (failed(put, true)) return false;
        if (put > 0) done += (size_t)put;
    }
    return true;
}

ssize_t aq_read_all(int fd, void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        const ssize_t got = read(fd, (char *)bytes + done, count - done);
        if (failed(got, false)) return -1;
        if (got == 0) return (ssize_t)done;
        if (got > 0) done += (size_t)got;
    }
    return (ssize_t)count;
}

ssize_t aq_pread_all(int fd, void *bytes, size_t count, uint64_t offset)
{
    for (size_t done = 0; done < count;) {
        const ssize_t got = pread(fd, (char *)bytes + done, count - done, (off_t)(offset + done));
        if (failed(got, false)) return -1;
        if (got == 0) return (ssize_t)done;
        if (got > 0) done += (size_t)got;
    }
    return (ssize_t)count;
}
