/*
 * dataset_file.c -- a file as bytes in memory, read once.
 */
#include "dataset_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "aqsgd/base/given_file.h"

static enum aq_status read_open(const char *area, const char *path, int file, uint64_t bytes_max, uint8_t **out,
                                size_t *bytes)
{
    struct stat about;
    if (fstat(file, &about) != 0) return aq_fail_errno(area, "%s: fstat", path);
    if (about.st_size < 0 || (uint64_t)about.st_size > bytes_max)
        return aq_fail(AQ_INVAL, area, "%s: has %lld bytes, at most %llu are read", path, (long long)about.st_size,
                       (unsigned long long)bytes_max);
    const size_t size = (size_t)about.st_size;
    void *memory;
    AQ_TRY(aq_alloc(size + 1, &memory));
    /* One byte more than the size is asked for, so that a file that grows is seen too. */
    const ssize_t got = aq_read_all(file, memory, size + 1);
    enum aq_status status = AQ_OK;
    if (got < 0) {
        (void)aq_fail_errno(area, "%s: cannot be read", path);
        status = AQ_IO;
    } else if ((size_t)got != size)
        status = aq_fail(AQ_IO, area, "%s: had %zu bytes and now has %s; do not write to it during a run", path, size,
                         (size_t)got < size ? "fewer" : "more");
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
    int file;
    AQ_TRY(aq_given_open(area, path, &file));
    enum aq_status status = aq_given_whole(area, path, file);
    if (status == AQ_OK) status = read_open(area, path, file, bytes_max, out, bytes);
    close(file);
    return status;
}
