/*
 * dataset_file.c -- a file as bytes in memory, read once.
 */
#include "dataset_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Fills memory from the file; *got is less than bytes where the file ends early. */
static enum aq_status read_all(const char *area, const char *path, int file, uint8_t *memory, size_t bytes, size_t *got)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t part = read(file, memory + done, bytes - done);
        if (part == 0) break;
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) {
            aq_fail_errno(area, "%s: cannot be read at byte %zu", path, done);
            return AQ_IO;
        }
        done += (size_t)part;
    }
    *got = done;
    return AQ_OK;
}

static enum aq_status read_open(const char *area, const char *path, int file, uint64_t bytes_max, uint8_t **out,
                                size_t *bytes)
{
    struct stat about;
    if (fstat(file, &about) != 0) return aq_fail_errno(area, "%s: fstat", path);
    if (!S_ISREG(about.st_mode)) return aq_fail(AQ_IO, area, "%s: is not a regular file", path);
    if (about.st_size < 0 || (uint64_t)about.st_size > bytes_max)
        return aq_fail(AQ_INVAL, area, "%s: has %lld bytes, at most %llu are read", path, (long long)about.st_size,
                       (unsigned long long)bytes_max);
    size_t size = (size_t)about.st_size, got;
    void *memory;
    AQ_TRY(aq_alloc(size + 1, &memory));
    /* One byte more than the size is asked for, so that a file that grows is seen too. */
    enum aq_status status = read_all(area, path, file, memory, size + 1, &got);
    if (status == AQ_OK && got != size)
        status = aq_fail(AQ_IO, area, "%s: had %zu bytes and now has %s; do not write to it during a run", path, size,
                         got < size ? "fewer" : "more");
    if (status != AQ_OK) {
        aq_free(memory);
        return status;
    }
    *out = memory;
    *bytes = size;
    return AQ_OK;
}

enum aq_status aq_file_read(const char *area, const char *path, uint64_t bytes_max, uint8_t **out, size_t *bytes)
{
    AQ_ASSERT(bytes_max < SIZE_MAX);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 && (errno == ENOENT || errno == ENOTDIR))
        return aq_fail(AQ_NOTFOUND, area, "%s: there is no such file", path);
    if (file < 0) {
        aq_fail_errno(area, "%s: cannot be opened", path);
        return AQ_IO;
    }
    enum aq_status status = read_open(area, path, file, bytes_max, out, bytes);
    close(file);
    return status;
}
