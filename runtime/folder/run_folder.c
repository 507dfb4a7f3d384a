/* run_folder.c -- see the header. Paths are built in fixed buffers; a path that does not fit is refused, never cut. */
#include "run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "json_text.h"

enum { MARK_BYTES_MAX = 64 << 10 };

enum aq_status aq_run_path(const char *folder, const char *name, char *path)
{
    const int bytes = snprintf(path, AQ_RUN_PATH_BYTES, "%s/%s", folder, name);
    if (bytes < 0 || bytes >= AQ_RUN_PATH_BYTES)
        return aq_fail(AQ_INVAL, "run", "the path %.80s.../%s is too long", folder, name);
    return AQ_OK;
}

/* A name is on disk when its folder is. */
enum aq_status aq_run_sync_folder_of(const char *path)
{
    return aq_file_sync_folder(NULL, path);
}

enum aq_status aq_run_make_folder(const char *path)
{
    char part[AQ_RUN_PATH_BYTES];
    const size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return aq_fail(AQ_INVAL, "run", "'%.80s' is not the path of a folder", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0700) == 0) {
            AQ_TRY(aq_run_sync_folder_of(part)); /* what is synced in it is of no use where its own name is lost */
            continue;
        }
        if (errno != EEXIST) return aq_fail_errno("run", "cannot make the folder %s", part);
    }
    struct stat info;
    if (stat(path, &info) != 0) return aq_fail_errno("run", "%s", path);
    if (!S_ISDIR(info.st_mode)) return aq_fail(AQ_INVAL, "run", "%s is not a folder", path);
    return AQ_OK;
}

enum aq_status aq_run_lock(const char *folder, int *fd)
{
    int lock;
    AQ_TRY(aq_file_open(folder, "lock", AQ_FILE_KEEP, &lock));
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(lock, F_SETLK, &whole) == 0) {
        *fd = lock;
        return AQ_OK;
    }
    const int error = errno;
    close(lock);
    errno = error;
    if (error != EACCES && error != EAGAIN) return aq_fail_errno("run", "cannot lock %s/lock", folder);
    return aq_fail(AQ_REFUSED, "run",
                   "the folder %s is in use by process %d: wait for its end, or stop that run with `aqpipe "
                   "stop`",
                   folder, (int)aq_run_holder(folder));
}

pid_t aq_run_holder(const char *folder)
{
    int fd;
    if (aq_file_open(folder, "lock", AQ_FILE_READ, &fd) != AQ_OK) return 0;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    const int asked = fcntl(fd, F_GETLK, &whole);
    close(fd);
    return asked == 0 && whole.l_type != F_UNLCK ? whole.l_pid : 0;
}

/* A mark from before there was a list names two. */
static enum aq_status kept_read(const json_t *list, const char *path, struct aq_run_mark *mark)
{
    mark->kept_count = 0;
    if (!list) {
        mark->kept[mark->kept_count++] = mark->step;
        if (mark->older) mark->kept[mark->kept_count++] = mark->older;
        return AQ_OK;
    }
    const size_t count = json_array_size(list);
    bool good = json_is_array(list) && count <= AQ_RUN_KEPT_MAX;
    for (size_t i = 0; good && i < count; i++) {
        const json_int_t step = json_integer_value(json_array_get(list, i));
        good = step > 0;
        mark->kept[mark->kept_count++] = (uint64_t)step;
    }
    return good ? AQ_OK : aq_fail(AQ_CORRUPT, "run", "%s: its list of checkpoints is damaged", path);
}

enum aq_status aq_run_mark_read(const char *checkpoint, struct aq_run_mark *out)
{
    char path[AQ_RUN_PATH_BYTES];
    char *text;
    size_t count;
    AQ_TRY(aq_run_path(checkpoint, "complete", path));
    AQ_TRY(aq_file_load(NULL, path, MARK_BYTES_MAX, &text, &count));
    json_t *mark = json_loadb(text, count, JSON_REJECT_DUPLICATES, NULL);
    aq_free(text);
    struct aq_run_mark got;
    enum aq_status status = AQ_OK;
    if (!json_is_object(mark) || aq_control_get_u64(mark, "step", &got.step) != AQ_OK ||
        aq_control_get_hex(mark, "plan_hash", &got.plan_hash) != AQ_OK)
        status =
            aq_fail(AQ_CORRUPT, "run",
                    "%s does not name a checkpoint; write the name of one of the folders next to it into it", path);
    got.older = aq_control_u64_or(mark, "older", 0);
    got.metrics = aq_control_u64_or(mark, "metrics", 0);
    got.older_metrics = aq_control_u64_or(mark, "older_metrics", 0);
    got.resume_hash = 0;
    if (status == AQ_OK && json_object_get(mark, "resume_hash"))
        status = aq_control_get_hex(mark, "resume_hash", &got.resume_hash);
    if (status == AQ_OK) status = kept_read(json_object_get(mark, "kept"), path, &got);
    if (status == AQ_OK) *out = got;
    json_decref(mark);
    return status;
}

enum aq_status aq_run_mark_write(const char *checkpoint, const struct aq_run_mark *mark)
{
    char path[AQ_RUN_PATH_BYTES];
    AQ_ASSERT(mark->kept_count <= AQ_RUN_KEPT_MAX);
    AQ_TRY(aq_run_path(checkpoint, "complete", path));
    json_t *kept = json_array();
    for (uint32_t i = 0; i < mark->kept_count; i++)
        json_array_append_new(kept, json_integer((json_int_t)mark->kept[i]));
    json_t *complete = json_pack("{s:I, s:I, s:o, s:o, s:I, s:I, s:o}", "step", (json_int_t)mark->step, "older",
                                 (json_int_t)mark->older, "plan_hash", aq_control_hex(mark->plan_hash), "resume_hash",
                                 aq_control_hex(mark->resume_hash), "metrics", (json_int_t)mark->metrics,
                                 "older_metrics", (json_int_t)mark->older_metrics, "kept", kept);
    return aq_json_replace(path, complete, JSON_COMPACT);
}

/* A folder's name as a step: digits only. */
static bool name_step(const char *name, uint64_t *step)
{
    const size_t length = strlen(name);
    if (length == 0 || length > 18 || strspn(name, "0123456789") != length) return false;
    *step = strtoull(name, NULL, 10);
    return true;
}

enum aq_status aq_run_marks(const char *checkpoint, uint64_t *steps, uint32_t room, uint32_t *count)
{
    *count = 0;
    DIR *folder = opendir(checkpoint);
    if (!folder) return errno == ENOENT ? AQ_OK : aq_fail_errno("run", "cannot read %s", checkpoint);
    const struct dirent *entry;
    uint64_t step;
    while (*count < room && (entry = readdir(folder)))
        if (name_step(entry->d_name, &step)) steps[(*count)++] = step;
    closedir(folder);
    return AQ_OK;
}
