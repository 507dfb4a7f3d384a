/* run_rewind.c -- see the header. Lines are kept byte for byte; those that start like a later step's line are
 * dropped without being parsed, because they are nearly the whole file. */
#include "run_rewind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "metrics_index.h"
#include "run_folder.h"
#include "run_lines.h"
#include "runtime_text.h"

enum { TAIL_BYTES_MAX = 64 << 20 }; /* of lines to keep behind a checkpoint: restarts and starts, some KiB each */

struct rewind {
    const char *path;
    uint64_t step;
    double seconds;
    uint64_t number;     /* of the line, from where the reading began         */
    uint64_t there;      /* number of the step's line; 0: not found yet       */
    uint64_t broken;     /* number of the first unreadable line; 0: none      */
    bool dropped;        /* something was                                     */
    FILE *file;          /* kept lines go there, or                           */
    struct aq_text kept; /* here                                            */
};

/* A step's line as aq_metrics writes it, of a later step than that? */
static bool is_later_step(const char *text, size_t count, uint64_t step)
{
    static const char head[] = "{\"event\":\"step\",\"step\":";
    const size_t length = sizeof head - 1;
    uint64_t number = 0;
    size_t at = length;
    if (count <= length || memcmp(text, head, length) != 0) return false;
    for (; at < count && at < length + 18 && text[at] >= '0' && text[at] <= '9'; at++)
        number = 10 * number + (uint64_t)(text[at] - '0');
    return at < count && text[at] == ',' && number > step;
}

/* Does the line stay? */
static bool stays(struct rewind *rewind, const json_t *line)
{
    if (aq_control_is(line, "event", "restart")) return true;
    const uint64_t step = aq_control_u64_or(line, "step", 0);
    if (aq_control_is(line, "event", "step") && step == rewind->step) rewind->there = rewind->number;
    if (step > rewind->step || aq_control_is(line, "event", "end")) return false;
    rewind->seconds = aq_control_number_or(line, "time", rewind->seconds);
    return true;
}

static enum aq_status keep(struct rewind *rewind, const char *text, size_t count)
{
    if (rewind->file) {
        if (fwrite(text, 1, count, rewind->file) != count || fputc('\n', rewind->file) == EOF)
            return aq_fail_errno("run", "cannot rewrite the metrics");
        return AQ_OK;
    }
    if (rewind->kept.used + count >= TAIL_BYTES_MAX)
        return aq_fail(AQ_CORRUPT, "run",
                       "%s has more than %d bytes of restarts after the checkpoint of step %llu: move "
                       "it away to continue without it",
                       rewind->path, TAIL_BYTES_MAX, (unsigned long long)rewind->step);
    aq_text_bytes(&rewind->kept, text, count);
    aq_text_bytes(&rewind->kept, "\n", 1);
    return rewind->kept.status;
}

static enum aq_status each_line(struct rewind *rewind, const char *text, size_t count)
{
    enum aq_status status = AQ_OK;
    rewind->number++;
    if (is_later_step(text, count, rewind->step)) {
        rewind->dropped = true;
        return AQ_OK;
    }
    json_t *line = json_loadb(text, count, 0, NULL);
    if (!json_is_object(line)) {
        if (rewind->broken == 0) rewind->broken = rewind->number;
        rewind->dropped = true;
    } else if (stays(rewind, line)) {
        status = keep(rewind, text, count);
    } else {
        rewind->dropped = true;
    }
    json_decref(line);
    return status;
}

/* From this byte on. *end gets where the last whole line ends. AQ_NOTFOUND: no file. */
static enum aq_status each(struct rewind *rewind, uint64_t offset, uint64_t *end)
{
    struct aq_run_lines *lines;
    const char *text;
    size_t count;
    enum aq_status status = aq_run_lines_open(rewind->path, offset, &lines);
    *end = offset;
    AQ_TRY(status);
    while (status == AQ_OK && (status = aq_run_lines_next(lines, &text, &count)) == AQ_OK)
        status = each_line(rewind, text, count);
    *end = aq_run_lines_at(lines);
    aq_run_lines_close(lines);
    struct stat info; /* the last line of all may be half: nothing comes after it */
    if (rewind->broken == rewind->number && stat(rewind->path, &info) == 0 && (uint64_t)info.st_size == *end)
        rewind->broken = 0;
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

static void say_dropped(const struct rewind *rewind)
{
    aq_log("run", AQ_LOG_WARNING, "%s: damaged after step %llu: what cannot be read is dropped", rewind->path,
           (unsigned long long)rewind->step);
}

/* ---- the cut ---- */

static enum aq_status beside(const char *path, const char *suffix, char *out)
{
    const int length = snprintf(out, AQ_RUN_PATH_BYTES, "%s%s", path, suffix);
    if (length < 0 || length >= AQ_RUN_PATH_BYTES)
        return aq_fail(AQ_INVAL, "run", "the path %.80s... is too long", path);
    return AQ_OK;
}

/* The file has `bytes` bytes, then the kept ones, and nothing else; on disk. */
static enum aq_status cut(const char *path, uint64_t bytes, const char *kept, size_t count)
{
    int fd;
    AQ_TRY(aq_file_open(NULL, path, AQ_FILE_UPDATE, &fd));
    enum aq_status status = AQ_OK;
    if (ftruncate(fd, (off_t)bytes) != 0) status = aq_fail_errno("run", "cannot cut %s", path);
    if (status == AQ_OK && !aq_pwrite_all(fd, kept, count, bytes))
        status = aq_fail_errno("run", "cannot write %s", path);
    if (status == AQ_OK && fsync(fd) != 0) status = aq_fail_errno("run", "cannot sync %s", path);
    close(fd);
    return status;
}

static enum aq_status forget_tail(const char *tail)
{
    AQ_TRY(aq_file_remove(NULL, tail));
    return aq_run_sync_folder_of(tail); /* back from the dead it would cut what comes from now on */
}

/* Completes the cut of a launch that was killed in it. */
static enum aq_status finish_cut(const char *path)
{
    char tail[AQ_RUN_PATH_BYTES], *text, *end = NULL;
    struct stat info;
    size_t count;
    AQ_TRY(beside(path, ".tail", tail));
    enum aq_status status = aq_file_load(NULL, tail, TAIL_BYTES_MAX + 64, &text, &count);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    const unsigned long long bytes = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || !end || *end != '\n' || stat(path, &info) != 0 || (uint64_t)info.st_size < bytes)
        status = aq_fail(AQ_CORRUPT, "run",
                         "%s is not what a killed launch left: remove it to continue without "
                         "the restarts in it",
                         tail);
    if (status == AQ_OK) status = cut(path, bytes, end + 1, count - (size_t)(end + 1 - text));
    aq_free(text);
    return status == AQ_OK ? forget_tail(tail) : status;
}

static enum aq_status cut_with_care(const char *path, uint64_t bytes, const struct aq_text *kept)
{
    char tail[AQ_RUN_PATH_BYTES];
    struct aq_text text = {0};
    if (kept->used == 0) return cut(path, bytes, NULL, 0);
    AQ_TRY(beside(path, ".tail", tail));
    aq_text_add(&text, "%llu\n", (unsigned long long)bytes);
    aq_text_bytes(&text, kept->bytes, kept->used);
    enum aq_status status = text.status;
    if (status == AQ_OK) status = aq_file_replace(NULL, tail, 0600, text.bytes, text.used);
    aq_text_deinit(&text);
    AQ_TRY(status);
    AQ_TRY(cut(path, bytes, kept->bytes, kept->used));
    return forget_tail(tail);
}

/* ---- a checkpoint that knows its bytes ---- */

static enum aq_status not_of(const char *path, uint64_t step, uint64_t bytes, const char *why)
{
    return aq_fail(AQ_CORRUPT, "run",
                   "%s is not the file of the checkpoint of step %llu (%llu bytes): %s; put that one "
                   "back, or move this one away to continue without it",
                   path, (unsigned long long)step, (unsigned long long)bytes, why);
}

/* The last line before the checkpoint's end, except restarts, has the time; it must not be of a later step. */
static enum aq_status look_before(struct rewind *rewind, uint64_t bytes)
{
    for (uint64_t end = bytes; end > 0;) {
        char *text;
        size_t count;
        const enum aq_status status = aq_run_line_before(rewind->path, end, &text, &count, &end);
        if (status == AQ_CORRUPT)
            return not_of(rewind->path, rewind->step, bytes, "it is shorter, or no line ends there");
        AQ_TRY(status);
        json_t *line = json_loadb(text, count, 0, NULL);
        aq_free(text);
        if (!json_is_object(line)) {
            json_decref(line);
            return not_of(rewind->path, rewind->step, bytes, "the line before is not a JSON object");
        }
        const bool later = aq_control_u64_or(line, "step", 0) > rewind->step;
        const bool restart = aq_control_is(line, "event", "restart");
        rewind->seconds = aq_control_number_or(line, "time", 0);
        json_decref(line);
        if (restart) continue;
        return later ? not_of(rewind->path, rewind->step, bytes, "the line before is of a later step") : AQ_OK;
    }
    return AQ_OK;
}

static enum aq_status rewind_tail(struct rewind *rewind, uint64_t bytes)
{
    struct stat info;
    uint64_t end;
    if (stat(rewind->path, &info) != 0) {
        if (errno != ENOENT) return aq_fail_errno("run", "%s", rewind->path);
        aq_log("run", AQ_LOG_WARNING, "%s is missing: the run continues without the metrics of its first %llu steps",
               rewind->path, (unsigned long long)rewind->step);
        return AQ_OK;
    }
    AQ_TRY(look_before(rewind, bytes));
    enum aq_status status = each(rewind, bytes, &end);
    if (status == AQ_OK && rewind->broken) say_dropped(rewind);
    aq_metrics_index_cut(rewind->path, bytes);
    if (status == AQ_OK && (rewind->dropped || end != (uint64_t)info.st_size))
        status = cut_with_care(rewind->path, bytes, &rewind->kept);
    return status;
}

/* ---- one that does not ---- */

static enum aq_status rewind_whole(struct rewind *rewind)
{
    char aside[AQ_RUN_PATH_BYTES];
    uint64_t end;
    AQ_TRY(beside(rewind->path, ".new", aside));
    aq_metrics_index_cut(rewind->path, 0);
    int fd;
    AQ_TRY(aq_file_open(NULL, aside, AQ_FILE_ANEW, &fd));
    rewind->file = fdopen(fd, "w");
    if (!rewind->file) {
        close(fd);
        return aq_fail_errno("run", "cannot write %s", aside);
    }
    enum aq_status status = each(rewind, 0, &end);
    if (status == AQ_NOTFOUND) status = AQ_OK;
    /* Up to the checkpoint's step it was synced; a loss of power may have left holes in what came after. */
    if (status == AQ_OK && rewind->broken && rewind->step > 0 &&
        (rewind->there == 0 || rewind->there >= rewind->broken))
        status = aq_fail(AQ_CORRUPT, "run", "%s:%llu is not a JSON object", rewind->path,
                         (unsigned long long)rewind->broken);
    else if (rewind->broken)
        say_dropped(rewind);
    if (status == AQ_OK && (fflush(rewind->file) != 0 || fsync(fileno(rewind->file)) != 0))
        status = aq_fail_errno("run", "cannot write %s", aside);
    fclose(rewind->file);
    if (status == AQ_OK) status = aq_file_rename(NULL, aside, rewind->path);
    if (status != AQ_OK) {
        (void)aq_file_remove(NULL, aside);
        return status;
    }
    return aq_run_sync_folder_of(rewind->path);
}

enum aq_status aq_run_rewind(const char *path, uint64_t step, uint64_t bytes, double *seconds)
{
    struct rewind rewind = {.path = path, .step = step};
    AQ_TRY(finish_cut(path));
    const enum aq_status status = bytes > 0 ? rewind_tail(&rewind, bytes) : rewind_whole(&rewind);
    aq_text_deinit(&rewind.kept);
    if (status == AQ_OK) *seconds = rewind.seconds;
    return status;
}
