/* run_lines.c -- see the header. One buffer, which grows to the longest line; what is read of it moves to its front. */
#include "run_lines.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 256 << 10 };

struct aq_run_lines {
    int fd;
    const char *path; /* the caller's, for messages */
    char *bytes;
    size_t room, from, to; /* from .. to has been read and not given yet */
    uint64_t at;           /* of bytes[from], in the file                */
    bool ended;
};

static enum aq_status open_plain(const char *path, int *out, uint64_t *size)
{
    struct stat info;
    int fd;
    AQ_TRY(aq_file_open(NULL, path, AQ_FILE_READ, &fd));
    if (fstat(fd, &info) != 0) {
        const enum aq_status status = aq_fail_errno("run", "%s", path);
        close(fd);
        return status;
    }
    *out = fd;
    *size = (uint64_t)info.st_size;
    return AQ_OK;
}

enum aq_status aq_run_lines_open(const char *path, uint64_t offset, struct aq_run_lines **out)
{
    void *memory = NULL, *bytes = NULL;
    uint64_t size = 0;
    int fd = -1;
    AQ_TRY(open_plain(path, &fd, &size));
    enum aq_status status = aq_alloc(sizeof(struct aq_run_lines), &memory);
    if (status == AQ_OK) status = aq_alloc(BUFFER_BYTES, &bytes);
    if (status == AQ_OK && offset > INT64_MAX) status = AQ_INVAL;
    if (status == AQ_OK && lseek(fd, (off_t)offset, SEEK_SET) == -1)
        status = aq_fail_errno("run", "cannot read %s", path);
    if (status != AQ_OK) {
        aq_free(bytes);
        aq_free(memory);
        close(fd);
        return status;
    }
    struct aq_run_lines *lines = memory;
    *lines = (struct aq_run_lines){.fd = fd, .path = path, .bytes = bytes, .room = BUFFER_BYTES, .at = offset};
    *out = lines;
    return AQ_OK;
}

void aq_run_lines_close(struct aq_run_lines *lines)
{
    if (!lines) return;
    close(lines->fd);
    aq_free(lines->bytes);
    aq_free(lines);
}

uint64_t aq_run_lines_at(const struct aq_run_lines *lines)
{
    return lines->at;
}

/* Makes room for more of the line at `from`. */
static enum aq_status make_room(struct aq_run_lines *lines)
{
    const size_t have = lines->to - lines->from;
    void *grown;
    if (lines->to < lines->room) return AQ_OK;
    if (lines->from > 0) {
        memmove(lines->bytes, lines->bytes + lines->from, have);
        lines->from = 0;
        lines->to = have;
        return AQ_OK;
    }
    AQ_TRY(aq_alloc(2 * lines->room, &grown));
    memcpy(grown, lines->bytes, have);
    aq_free(lines->bytes);
    lines->bytes = grown;
    lines->room *= 2;
    return AQ_OK;
}

static enum aq_status read_more(struct aq_run_lines *lines)
{
    for (;;) {
        const ssize_t got = read(lines->fd, lines->bytes + lines->to, lines->room - lines->to);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return aq_fail_errno("run", "cannot read %s", lines->path);
        lines->to += (size_t)got;
        lines->ended = got == 0;
        return AQ_OK;
    }
}

enum aq_status aq_run_lines_next(struct aq_run_lines *lines, const char **text, size_t *count)
{
    size_t looked = 0; /* behind `from`, without a newline */
    bool too_long = false;
    for (;;) {
        char *begin = lines->bytes + lines->from;
        const size_t have = lines->to - lines->from;
        const char *newline = have > looked ? memchr(begin + looked, '\n', have - looked) : NULL;
        if (newline) {
            const size_t length = (size_t)(newline - begin);
            *text = too_long ? "" : begin;
            *count = too_long ? 0 : length;
            lines->from += length + 1;
            lines->at += length + 1;
            return AQ_OK;
        }
        if (lines->ended) return AQ_NOTFOUND;
        looked = have;
        if (have >= AQ_RUN_LINE_BYTES_MAX || too_long) { /* it is skipped: only its end is searched */
            too_long = true;
            lines->at += have;
            lines->from = lines->to = looked = 0;
        }
        AQ_TRY(make_room(lines));
        AQ_TRY(read_more(lines));
    }
}

/* ---- backwards ---- */

static enum aq_status read_at(int fd, const char *path, char *bytes, size_t count, uint64_t offset)
{
    const ssize_t got = aq_pread_all(fd, bytes, count, offset);
    if (got < 0) return aq_fail_errno("run", "cannot read %s", path);
    return (size_t)got == count ? AQ_OK : aq_fail(AQ_IO, "run", "%s became shorter while it was read", path);
}

/* The last newline before the byte `end`; *found gets the byte behind it, or 0 without a newline. */
static enum aq_status newline_before(int fd, const char *path, uint64_t end, uint64_t *found)
{
    char bytes[4096];
    const uint64_t first = end > AQ_RUN_LINE_BYTES_MAX ? end - AQ_RUN_LINE_BYTES_MAX : 0;
    *found = 0;
    while (end > first) {
        const size_t count = end - first < sizeof bytes ? (size_t)(end - first) : sizeof bytes;
        AQ_TRY(read_at(fd, path, bytes, count, end - count));
        for (size_t i = count; i > 0; i--) {
            if (bytes[i - 1] != '\n') continue;
            *found = end - count + i;
            return AQ_OK;
        }
        end -= count;
    }
    if (end > 0)
        return aq_fail(AQ_CORRUPT, "run", "%s: no line of it ends in the %d bytes before byte %llu", path,
                       AQ_RUN_LINE_BYTES_MAX, (unsigned long long)(end + AQ_RUN_LINE_BYTES_MAX));
    return AQ_OK;
}

enum aq_status aq_run_line_before(const char *path, uint64_t end, char **text, size_t *count, uint64_t *begin)
{
    uint64_t size = 0, from = 0, to = end;
    void *memory = NULL;
    char last = '\n';
    int fd = -1;
    AQ_TRY(open_plain(path, &fd, &size));
    enum aq_status status = AQ_OK;
    if (end == UINT64_MAX)
        status = newline_before(fd, path, size, &to);
    else if (end > size)
        status = aq_fail(AQ_CORRUPT, "run", "%s has %llu bytes, and no line that ends at %llu", path,
                         (unsigned long long)size, (unsigned long long)end);
    if (status == AQ_OK && to == 0) status = AQ_NOTFOUND;
    if (status == AQ_OK) status = read_at(fd, path, &last, 1, to - 1);
    if (status == AQ_OK && last != '\n')
        status = aq_fail(AQ_CORRUPT, "run", "%s: no line of it ends at byte %llu", path, (unsigned long long)to);
    if (status == AQ_OK) status = newline_before(fd, path, to - 1, &from);
    if (status == AQ_OK) status = aq_alloc((size_t)(to - from), &memory);
    if (status == AQ_OK) status = read_at(fd, path, memory, (size_t)(to - from), from);
    close(fd);
    if (status != AQ_OK) {
        aq_free(memory);
        return status;
    }
    *text = memory;
    *count = (size_t)(to - from) - 1;
    (*text)[*count] = 0;
    *begin = from;
    return AQ_OK;
}

/* ---- visitors ---- */

struct hole {
    uint64_t line; /* the first that cannot be read, counted from where the walk began; 0: none */
    uint64_t at;   /* where it ends */
};

/* *broken gets the first unreadable line, unless it is the file's last one. */
static enum aq_status walk(struct aq_run_lines *lines, enum aq_status (*visit)(const json_t *line, void *context),
                           void *context, struct hole *broken)
{
    enum aq_status status = AQ_OK;
    uint64_t number = 0;
    const char *text;
    size_t count;
    *broken = (struct hole){0};
    while (status == AQ_OK && (status = aq_run_lines_next(lines, &text, &count)) == AQ_OK) {
        json_t *line = json_loadb(text, count, 0, NULL);
        number++;
        if (json_is_object(line))
            status = visit(line, context);
        else if (broken->line == 0)
            *broken = (struct hole){.line = number, .at = lines->at};
        json_decref(line);
    }
    const bool last = lines->ended && broken->line == number && lines->from == lines->to;
    if (last) *broken = (struct hole){0};
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

enum aq_status aq_run_lines_from(const char *path, uint64_t offset,
                                 enum aq_status (*visit)(const json_t *line, void *context), void *context)
{
    struct aq_run_lines *lines;
    struct hole hole;
    AQ_TRY(aq_run_lines_open(path, offset, &lines));
    const enum aq_status status = walk(lines, visit, context, &hole);
    aq_run_lines_close(lines);
    AQ_TRY(status);
    if (hole.line == 0) return AQ_OK;
    if (offset == 0)
        return aq_fail(AQ_CORRUPT, "run", "%s:%llu is not a JSON object", path, (unsigned long long)hole.line);
    return aq_fail(AQ_CORRUPT, "run", "%s: the line that ends at byte %llu is not a JSON object", path,
                   (unsigned long long)hole.at);
}

enum aq_status aq_run_lines(const char *path, enum aq_status (*visit)(const json_t *line, void *context), void *context)
{
    return aq_run_lines_from(path, 0, visit, context);
}
