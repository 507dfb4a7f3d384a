/* given_file.c -- see the header. */
#include "aqsgd/base/given_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *what_is(mode_t mode)
{
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

enum aq_status aq_given_open(const char *area, const char *path, int *fd)
{
    struct stat about;
    /* Without O_NONBLOCK a FIFO hangs; without O_NOCTTY a terminal would become ours. A regular file knows neither. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0 && (errno == ENOENT || errno == ENOTDIR))
        return aq_fail(AQ_NOTFOUND, area, "%s: there is no such file", path);
    if (file < 0) {
        (void)aq_fail_errno(area, "%s: cannot be opened", path);
        return AQ_IO;
    }
    enum aq_status status = AQ_OK;
    if (fstat(file, &about) != 0)
        status = aq_fail_errno(area, "%s: fstat", path);
    else if (!S_ISREG(about.st_mode))
        status =
            aq_fail(AQ_INVAL, area, "%s: is %s, not a regular file; name a file on disk", path, what_is(about.st_mode));
    if (status != AQ_OK)
        close(file);
    else
        *fd = file;
    return status;
}

enum aq_status aq_given_whole(const char *area, const char *path, int fd)
{
    struct stat about;
    if (fstat(fd, &about) != 0) return aq_fail_errno(area, "%s: fstat", path);
    const off_t hole = about.st_size > 0 ? lseek(fd, 0, SEEK_HOLE) : about.st_size;
    if (lseek(fd, 0, SEEK_SET) != 0) return aq_fail_errno(area, "%s: lseek", path);
    if (hole < 0 || hole >= about.st_size) return AQ_OK;
    return aq_fail(
        AQ_INVAL, area,
        "%s: is a sparse file of %lld bytes with a hole at byte %lld: there is no data. If zeroes are meant, "
        "copy it by cp --sparse=never",
        path, (long long)about.st_size, (long long)hole);
}
