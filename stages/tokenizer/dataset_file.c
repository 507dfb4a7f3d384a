/*
 * dataset_file.c -- a file as bytes in memory, read once.
 */
#include "dataset_file.h"

#include <string.h>
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

/* Does a text start with `word`, in any case, behind white space? */
static bool begins(const uint8_t *bytes, size_t count, const char *word)
{
    size_t at = 0, i = 0;
    while (at < count && strchr(" \t\r\n", bytes[at]) && bytes[at])
        at++;
    for (; word[i] && at + i < count; i++)
        if ((bytes[at + i] | 0x20) != ((uint8_t)word[i] | 0x20)) return false;
    return !word[i];
}

enum aq_status aq_file_check(const char *area, const char *path, const uint8_t *bytes, size_t count)
{
    if (begins(bytes, count, "version https://git-lfs.github.com/spec/"))
        return aq_fail(
            AQ_CORRUPT, area,
            "%s: is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder, or download it "
            "with `hf download NAME --local-dir DIR`",
            path);
    if (begins(bytes, count, "<!doctype html") || begins(bytes, count, "<html"))
        return aq_fail(AQ_CORRUPT, area,
                       "%s: is a web page, not the file itself: download it with `hf download NAME --local-dir DIR` "
                       "(after `hf auth login` where the model asks for consent)",
                       path);
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
