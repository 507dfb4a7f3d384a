/* owned_folder.c -- see the header. */
#include "owned_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "control.h"
#include "json_text.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "seal.h"
#include "stages/publish.h"
#include "stages/weights.h"

#define AREA   "folder"
#define FORMAT "aqpipe folder 1"

#define WANDB_ID_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

enum { NAME_BYTES = 300, MARKER_BYTES_MAX = 4096, DEPTH_MAX = 32, WANDB_ID_BYTES = 65 };

static const char *const kinds[] = {[AQ_OWNED_RUN] = "run",
                                    [AQ_OWNED_CHECKPOINT] = "checkpoints",
                                    [AQ_OWNED_CACHE] = "caches",
                                    [AQ_OWNED_SCRATCH] = "scratch"};

struct marker {
    char kind[16];
    char job[64];
    uint64_t id;
    bool checkpointed;
};

/* ---- names ---- */

static bool all_digits(const char *text, size_t count)
{
    return count > 0 && count <= 18 && strspn(text, "0123456789") >= count;
}

static bool is_step(const char *name)
{
    return all_digits(name, strlen(name));
}

/* "stage-12", and what follows. */
static bool begins_stage(const char *name, const char **rest)
{
    if (strncmp(name, "stage-", 6) != 0) return false;
    const size_t digits = strspn(name + 6, "0123456789");
    *rest = name + 6 + digits;
    return all_digits(name + 6, digits);
}

/* frozen-stage-3.safetensors, which is written once for a run, and what is aside. */
static bool is_frozen_name(const char *name)
{
    const char *rest;
    return strncmp(name, "frozen-", 7) == 0 && begins_stage(name + 7, &rest) &&
           (strcmp(rest, ".safetensors") == 0 || strcmp(rest, ".safetensors.partial") == 0);
}

enum file_name { NAME_FOREIGN, NAME_WHOLE, NAME_ASIDE };

/* Names that are written in the folder of a step: stage-3.safetensors, mirror-stage-3.safetensors, and what is aside.
 */
static enum file_name checkpoint_name(const char *name)
{
    const char *rest;
    if (strncmp(name, "mirror-", 7) == 0) name += 7;
    if (!begins_stage(name, &rest) || strncmp(rest, ".safetensors", 12) != 0) return NAME_FOREIGN;
    rest += 12;
    if (*rest == 0) return NAME_WHOLE;
    return strcmp(rest, ".partial") == 0 || strcmp(rest, ".new") == 0 ? NAME_ASIDE : NAME_FOREIGN;
}

static bool is_cache_name(const char *name)
{
    const char *rest;
    return begins_stage(name, &rest) && *rest == 0;
}

static bool is_log_name(const char *name)
{
    const char *rest;
    return begins_stage(name, &rest) && (strcmp(rest, ".log") == 0 || strcmp(rest, ".log.1") == 0);
}

/* Is it a name that a daemon leaves in a run folder without a launcher? */
static bool is_daemon_name(const char *name)
{
    return strcmp(name, "logs") == 0 || strcmp(name, "cache") == 0 || strcmp(name, "checkpoint") == 0;
}

/* A disk's own root has lost+found; a killed claim leaves the temporary file of its marker. Neither shows an owner. */
static bool is_nobodys(const char *name)
{
    return strcmp(name, "lost+found") == 0 || strcmp(name, AQ_OWNED_MARKER ".new") == 0;
}

/* ---- listing ---- */

static enum aq_status list_open(const char *folder, const char *name, DIR **out)
{
    int fd;
    AQ_TRY(aq_file_open_folder(folder, name, &fd));
    DIR *list = fdopendir(fd);
    if (!list) {
        close(fd);
        return aq_fail_errno(AREA, "cannot read %s/%s", folder, name);
    }
    *out = list;
    return AQ_OK;
}

/* The next name, or NULL. */
static const char *list_next(DIR *list)
{
    const struct dirent *entry;
    while ((entry = readdir(list)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) return entry->d_name;
    return NULL;
}

/* A foreign name, with all but printable ASCII replaced for the log. */
static const char *printable(const char *name, char out[NAME_BYTES])
{
    size_t i = 0;
    for (; name[i] && i + 1 < NAME_BYTES; i++)
        out[i] = name[i] < ' ' || name[i] > '~' ? '?' : name[i];
    out[i] = 0;
    return out;
}

/* The first name that `ours` does not know ("": all are known); *count gets the number of names. */
static enum aq_status first_foreign(const char *path, bool (*ours)(const char *name), char out[NAME_BYTES],
                                    uint64_t *count)
{
    DIR *list = NULL;
    const char *name;
    *out = 0;
    *count = 0;
    AQ_TRY(list_open(path, "", &list));
    while ((name = list_next(list))) {
        if (is_nobodys(name)) continue;
        ++*count;
        if (!*out && !(ours && ours(name))) printable(name, out);
    }
    closedir(list);
    return AQ_OK;
}

/* ---- the marker ---- */

static enum aq_status marker_read(const char *path, struct marker *out)
{
    char *text;
    size_t count;
    AQ_TRY(aq_file_load(path, AQ_OWNED_MARKER, MARKER_BYTES_MAX, &text, &count));
    json_t *json = json_loadb(text, count, JSON_REJECT_DUPLICATES, NULL);
    aq_free(text);
    struct marker got = {0};
    enum aq_status status = AQ_OK;
    if (!json_is_object(json) || !aq_control_is(json, "format", FORMAT) ||
        aq_control_get_hex(json, "id", &got.id) != AQ_OK)
        status = aq_fail(AQ_CORRUPT, AREA,
                         "%s/" AQ_OWNED_MARKER " is damaged, so that the folder's owner is unknown: name another "
                         "one, or remove that file if the folder's contents may be overwritten",
                         path);
    snprintf(got.kind, sizeof got.kind, "%.15s", aq_control_text_or(json, "kind", "?"));
    snprintf(got.job, sizeof got.job, "%.60s", aq_control_text_or(json, "job", "?"));
    got.checkpointed = aq_control_bool_or(json, "checkpointed", false);
    if (status == AQ_OK) *out = got;
    json_decref(json);
    return status;
}

static enum aq_status marker_write(const char *path, enum aq_owned_kind kind, const struct aq_owner *owner,
                                   bool checkpointed)
{
    char file[AQ_RUN_PATH_BYTES];
    json_t *json = json_pack("{s:s, s:s, s:s, s:o, s:o}", "format", FORMAT, "kind", kinds[kind], "job",
                             owner->job ? owner->job : "?", "id", aq_control_hex(owner->id), "resume_hash",
                             aq_control_hex(owner->resume_hash));
    if (json && checkpointed) json_object_set_new(json, "checkpointed", json_true());
    const enum aq_status status = aq_run_path(path, AQ_OWNED_MARKER, file);
    if (status == AQ_OK) return aq_json_replace(file, json, JSON_COMPACT);
    json_decref(json);
    return status;
}

/* ---- what proves an old folder ours ---- */

static bool same_hex(const char *text, uint64_t value)
{
    char have[20];
    snprintf(have, sizeof have, "%016" PRIx64, value);
    return text && strcmp(text, have) == 0;
}

/* Is it a checkpoint's file of this run, by its metadata? */
static bool checkpoint_is_ours(const char *folder, const char *name, const struct aq_owner *owner)
{
    struct aq_weights *weights;
    if (aq_weights_open_in(folder, name, &weights) != AQ_OK) {
        aq_error_clear(); /* an unreadable file is not ours: it is logged, and this run has not failed */
        return false;
    }
    const char *format = aq_weights_metadata(weights, "format");
    const bool ours = format && strncmp(format, "aqpipe checkpoint ", 18) == 0 &&
                      (same_hex(aq_weights_metadata(weights, "resume_hash"), owner->resume_hash) ||
                       same_hex(aq_weights_metadata(weights, "plan_hash"), owner->plan_hash));
    aq_weights_close(weights);
    return ours;
}

/* In a shared folder another process of this run may have removed it since it was listed. */
static bool is_gone(const char *folder, const char *name)
{
    int fd;
    const enum aq_status status = aq_file_open(folder, name, AQ_FILE_READ, &fd);
    if (status == AQ_OK) close(fd);
    aq_error_clear(); /* the call that opens it to read reports it */
    return status == AQ_NOTFOUND;
}

/* Is it the sealed copy of a neighbour's checkpoint (seal.h) of this run, by its head? It may be removed, but proves
 * nothing. */
static bool copy_is_ours(const char *folder, const char *name, const struct aq_owner *owner)
{
    uint8_t head[AQ_SEAL_HEAD_BYTES];
    int file;
    if (!strstr(name, "/mirror-") || aq_file_open(folder, name, AQ_FILE_READ, &file) != AQ_OK) return false;
    const ssize_t got = aq_read_all(file, head, sizeof head);
    close(file);
    return got == (ssize_t)sizeof head && aq_seal_is_of(head, owner->resume_hash);
}

/* Of the names in the folder of a step: those that are this run's files, and all others. */
static void step_count(const char *path, const char *step, const struct aq_owner *owner, uint64_t *own,
                       uint64_t *foreign)
{
    char file[NAME_BYTES + 32];
    DIR *list = NULL;
    const char *name;
    if (list_open(path, step, &list) != AQ_OK) {
        ++*foreign;
        return;
    }
    while ((name = list_next(list))) {
        const enum file_name what = checkpoint_name(name);
        snprintf(file, sizeof file, "%s/%s", step, name);
        if (what == NAME_WHOLE && copy_is_ours(path, file, owner)) continue;
        ++*(what == NAME_ASIDE || (what == NAME_WHOLE && checkpoint_is_ours(path, file, owner)) ? own : foreign);
    }
    closedir(list);
}

/* True if the checkpoint to resume from is ours, or if only our checkpoints are there, even partial ones. */
static bool steps_prove(const char *path, const struct aq_owner *owner)
{
    char step[24];
    uint64_t own = 0, foreign = 0;
    DIR *list = NULL;
    const char *name;
    snprintf(step, sizeof step, "%" PRIu64, owner->resume);
    if (owner->resume > 0) step_count(path, step, owner, &own, &foreign);
    if (own > 0) return true;
    foreign = 0;
    if (list_open(path, "", &list) != AQ_OK) return false;
    while (foreign == 0 && (name = list_next(list))) {
        if (is_step(name))
            step_count(path, name, owner, &own, &foreign);
        else if (!is_nobodys(name) && strncmp(name, "complete", 8) != 0 && !is_frozen_name(name))
            foreign++;
    }
    closedir(list);
    return own > 0 && foreign == 0;
}

static bool run_proves(const char *path, const struct aq_owner *owner, uint64_t names)
{
    char *text, other[NAME_BYTES];
    size_t count;
    if (aq_file_load(path, "run.json", 1 << 20, &text, &count) == AQ_OK) {
        json_t *json = json_loadb(text, count, 0, NULL);
        aq_free(text);
        const bool proved = json_is_object(json) && json_object_get(json, "plan_hash");
        json_decref(json);
        return proved;
    }
    return names > 0 && owner->resume > 0 && first_foreign(path, is_daemon_name, other, &names) == AQ_OK && !*other;
}

static bool is_proved(const char *path, enum aq_owned_kind kind, const struct aq_owner *owner, uint64_t names)
{
    struct aq_run_mark mark;
    char other[NAME_BYTES];
    switch (kind) {
    case AQ_OWNED_RUN:
        return run_proves(path, owner, names);
    case AQ_OWNED_CHECKPOINT:
        if (aq_run_mark_read(path, &mark) == AQ_OK)
            return mark.plan_hash == owner->plan_hash || (mark.resume_hash && mark.resume_hash == owner->resume_hash);
        return steps_prove(path, owner);
    case AQ_OWNED_CACHE: /* each cache's own head names its run, and is read before anything is written */
        return first_foreign(path, is_cache_name, other, &names) == AQ_OK && !*other;
    default:
        return false;
    }
}

/* ---- looking and claiming ---- */

struct look {
    enum aq_owned_state state;
    struct marker marker; /* state OURS, OTHERS where marked */
    bool marked;
    char foreign[NAME_BYTES];
};

static enum aq_status look_at(const char *path, enum aq_owned_kind kind, const struct aq_owner *owner,
                              struct look *look)
{
    uint64_t names;
    *look = (struct look){.state = AQ_OWNED_MISSING};
    enum aq_status status = marker_read(path, &look->marker);
    if (status == AQ_OK) {
        look->marked = true;
        const bool ours = strcmp(look->marker.kind, kinds[kind]) == 0 &&
                          (look->marker.id == owner->id || (kind == AQ_OWNED_RUN && owner->id == 0));
        look->state = ours ? AQ_OWNED_OURS : AQ_OWNED_OTHERS;
        return AQ_OK;
    }
    if (status != AQ_NOTFOUND) return status;
    status = first_foreign(path, NULL, look->foreign, &names);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    look->state = names == 0 ? AQ_OWNED_EMPTY : is_proved(path, kind, owner, names) ? AQ_OWNED_OLD : AQ_OWNED_OTHERS;
    return AQ_OK;
}

enum aq_status aq_owned_look(const char *path, enum aq_owned_kind kind, const struct aq_owner *owner,
                             enum aq_owned_state *state)
{
    struct look look;
    AQ_TRY(look_at(path, kind, owner, &look));
    *state = look.state;
    return AQ_OK;
}

static enum aq_status refuse(const char *path, enum aq_owned_kind kind, const struct look *look)
{
    static const char *const keys[] = {
        [AQ_OWNED_RUN] = "--run", [AQ_OWNED_CHECKPOINT] = "checkpoint.path", [AQ_OWNED_CACHE] = "cache.path"};
    if (!look->marked)
        return aq_fail(AQ_REFUSED, AREA,
                       "%s holds files that no run of this job wrote (such as '%s'): name an empty folder, or one that "
                       "does not exist yet, by %s",
                       path, look->foreign, keys[kind]);
    if (strcmp(look->marker.kind, kinds[kind]) != 0)
        return aq_fail(AQ_REFUSED, AREA,
                       "%s is the folder of the %s of the job '%s': name another one for the %s by %s", path,
                       look->marker.kind, look->marker.job, kinds[kind], keys[kind]);
    return aq_fail(AQ_REFUSED, AREA,
                   "%s holds the %s of another run, of the job '%s' (run %016" PRIx64
                   "): name another folder by %s, or remove it if that run is not wanted any more",
                   path, kinds[kind], look->marker.job, look->marker.id, keys[kind]);
}

static enum aq_status make_folder(const char *path, enum aq_owned_make make)
{
    if (make == AQ_OWNED_MAKE_ALL) return aq_run_make_folder(path);
    if (make == AQ_OWNED_MAKE_NONE)
        return aq_fail(AQ_NOTFOUND, AREA, "there is no folder %s: is its disk mounted?", path);
    char around[AQ_RUN_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    snprintf(around, sizeof around, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash && slash != path && access(around, F_OK) != 0)
        return aq_fail(AQ_NOTFOUND, AREA,
                       "there is no folder %s for %s: is its disk mounted? On a new disk make it by hand", around,
                       slash + 1);
    return aq_run_make_folder(path);
}

static enum aq_status claim(const char *path, enum aq_owned_kind kind, enum aq_owned_make make,
                            const struct aq_owner *owner, struct look *look)
{
    AQ_TRY(look_at(path, kind, owner, look));
    if (look->state == AQ_OWNED_OTHERS) return refuse(path, kind, look);
    if (look->state == AQ_OWNED_OURS) return AQ_OK;
    if (look->state == AQ_OWNED_MISSING) AQ_TRY(make_folder(path, make));
    return AQ_OK;
}

enum aq_status aq_owned_claim(const char *path, enum aq_owned_kind kind, enum aq_owned_make make,
                              const struct aq_owner *owner)
{
    struct look look;
    AQ_ASSERT(owner->id != 0);
    AQ_TRY(claim(path, kind, make, owner, &look));
    return look.state == AQ_OWNED_OURS ? AQ_OK : marker_write(path, kind, owner, false);
}

enum aq_status aq_owned_claim_run(const char *path, enum aq_owned_make make, struct aq_owner *owner, bool *checkpointed)
{
    struct look look;
    AQ_TRY(claim(path, AQ_OWNED_RUN, make, owner, &look));
    if (look.state == AQ_OWNED_OURS) {
        owner->id = look.marker.id;
    } else {
        while (owner->id == 0)
            if (getrandom(&owner->id, sizeof owner->id, 0) != (ssize_t)sizeof owner->id)
                return aq_fail_errno(AREA, "getrandom");
        AQ_TRY(marker_write(path, AQ_OWNED_RUN, owner, false));
    }
    if (checkpointed) *checkpointed = look.state == AQ_OWNED_OURS && look.marker.checkpointed;
    return AQ_OK;
}

/* AQ_REFUSED: a link on the way from the run folder to a folder below it. */
static enum aq_status no_link_below(const char *run, const char *path)
{
    const size_t length = strlen(run);
    int fd = -1;
    if (strncmp(path, run, length) != 0 || path[length] != '/') return AQ_OK;
    while (path[length] == '/' && path[length + 1] == '/')
        path++;
    const enum aq_status status = path[length + 1] ? aq_file_open_folder(run, path + length + 1, &fd) : AQ_NOTFOUND;
    if (fd != -1) close(fd);
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

enum aq_status aq_owned_enter(const struct aq_owned_folders *folders, enum aq_owned_make make,
                              const struct aq_owner *owner)
{
    AQ_TRY(aq_owned_claim(folders->run, AQ_OWNED_RUN, make, owner));
    AQ_TRY(no_link_below(folders->run, folders->checkpoint));
    if (folders->cache) AQ_TRY(no_link_below(folders->run, folders->cache));
    AQ_TRY(aq_owned_claim(folders->checkpoint, AQ_OWNED_CHECKPOINT, make, owner));
    return folders->cache ? aq_owned_claim(folders->cache, AQ_OWNED_CACHE, make, owner) : AQ_OK;
}

enum aq_status aq_owned_note(const char *run, const struct aq_owner *owner, bool checkpointed)
{
    AQ_TRY(aq_owned_check(run, AQ_OWNED_RUN, owner->id));
    return marker_write(run, AQ_OWNED_RUN, owner, checkpointed);
}

enum aq_status aq_owned_check(const char *path, enum aq_owned_kind kind, uint64_t id)
{
    struct marker marker;
    const enum aq_status status = marker_read(path, &marker);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_NOTFOUND, AREA, "%s has lost its " AQ_OWNED_MARKER ": is its disk still mounted?", path);
    AQ_TRY(status);
    if (marker.id == id && strcmp(marker.kind, kinds[kind]) == 0) return AQ_OK;
    return aq_fail(AQ_REFUSED, AREA, "%s is no longer this run's: it has the %s of the job '%s' (run %016" PRIx64 ")",
                   path, marker.kind, marker.job, marker.id);
}

/* ---- removing what is ours ---- */

/* *removed counts the removed files; a file that stays is logged. */
static enum aq_status step_remove(const char *folder, const struct aq_owner *owner, const char *step, uint64_t *removed)
{
    char file[NAME_BYTES + 32], stays[NAME_BYTES] = "";
    DIR *list = NULL;
    const char *name;
    enum aq_status status = list_open(folder, step, &list);
    if (status == AQ_NOTFOUND || status == AQ_REFUSED) return AQ_OK; /* a link or a file is not ours */
    AQ_TRY(status);
    while (status == AQ_OK && (name = list_next(list))) {
        const enum file_name what = checkpoint_name(name);
        snprintf(file, sizeof file, "%s/%s", step, name);
        if (what == NAME_WHOLE && is_gone(folder, file)) continue;
        if (what == NAME_ASIDE ||
            (what == NAME_WHOLE && (copy_is_ours(folder, file, owner) || checkpoint_is_ours(folder, file, owner)))) {
            status = aq_file_remove(folder, file);
            ++*removed;
        } else if (!*stays && !(what == NAME_WHOLE && is_gone(folder, file))) {
            printable(name, stays);
        }
    }
    closedir(list);
    AQ_TRY(status);
    if (*stays)
        aq_log(AREA, 0,
               "%s/%s keeps '%s', which is not a checkpoint of this run: remove it by hand if it is not wanted", folder,
               step, stays);
    return AQ_OK;
}

/* An empty folder goes; that there is something in it is no failure. */
static enum aq_status remove_empty(const char *folder, const char *name)
{
    const enum aq_status status = aq_file_remove_folder(folder, name);
    return status == AQ_REFUSED ? AQ_OK : status;
}

enum aq_status aq_owned_forget(const char *checkpoint, const struct aq_owner *owner, uint64_t step)
{
    char name[24];
    uint64_t removed = 0;
    AQ_TRY(aq_owned_check(checkpoint, AQ_OWNED_CHECKPOINT, owner->id));
    snprintf(name, sizeof name, "%" PRIu64, step);
    AQ_TRY(step_remove(checkpoint, owner, name, &removed));
    return removed ? remove_empty(checkpoint, name) : AQ_OK;
}

enum aq_status aq_owned_clear_checkpoints(const char *checkpoint, const struct aq_owner *owner)
{
    DIR *list = NULL;
    const char *name;
    AQ_TRY(aq_owned_check(checkpoint, AQ_OWNED_CHECKPOINT, owner->id));
    AQ_TRY(aq_file_remove(checkpoint, "complete"));
    AQ_TRY(aq_file_remove(checkpoint, "complete.new"));
    AQ_TRY(list_open(checkpoint, "", &list));
    enum aq_status status = AQ_OK;
    while (status == AQ_OK && (name = list_next(list))) {
        uint64_t removed = 0;
        if (is_frozen_name(name)) status = aq_file_remove(checkpoint, name);
        if (!is_step(name)) continue;
        status = step_remove(checkpoint, owner, name, &removed);
        if (status == AQ_OK && removed) status = remove_empty(checkpoint, name);
    }
    closedir(list);
    return status;
}

enum aq_status aq_owned_clear_caches(const char *cache, const struct aq_owner *owner)
{
    static const char *const names[] = {"index.mdb", "index.mdb.new", "slab"};
    char file[NAME_BYTES + 16];
    DIR *list = NULL;
    const char *name;
    AQ_TRY(aq_owned_check(cache, AQ_OWNED_CACHE, owner->id));
    AQ_TRY(list_open(cache, "", &list));
    enum aq_status status = AQ_OK;
    while (status == AQ_OK && (name = list_next(list))) {
        DIR *inner = NULL; /* a link or a file is not ours */
        if (!is_cache_name(name) || list_open(cache, name, &inner) != AQ_OK) continue;
        closedir(inner);
        for (size_t i = 0; status == AQ_OK && i < sizeof names / sizeof *names; i++) {
            snprintf(file, sizeof file, "%s/%s", name, names[i]);
            status = aq_file_remove(cache, file);
        }
    }
    closedir(list);
    return status;
}

/* "events.out.tfevents.1700000000.host.77.aqpipe": of tools/follow. Other programs' event files end otherwise. */
static bool is_event_name(const char *name)
{
    static const char begin[] = "events.out.tfevents.", end[] = ".aqpipe";
    const size_t count = strlen(name);
    return count > sizeof begin + sizeof end && strncmp(name, begin, sizeof begin - 1) == 0 &&
           strcmp(name + count - (sizeof end - 1), end) == 0;
}

/* Removes the files in run/folder whose names are ours, and the folder if it is empty then. */
static enum aq_status named_remove(const char *run, const char *folder, bool (*is_ours)(const char *))
{
    char file[2 * NAME_BYTES + 8];
    DIR *list = NULL;
    const char *name;
    enum aq_status status = list_open(run, folder, &list);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    while (status == AQ_OK && (name = list_next(list))) {
        snprintf(file, sizeof file, "%s/%s", folder, name);
        if (is_ours(name)) status = aq_file_remove(run, file);
    }
    closedir(list);
    AQ_TRY(status);
    return remove_empty(run, folder);
}

/* "model-00001-of-00002.safetensors", or the neighbour that it is written as. */
static bool is_shard_name(const char *name)
{
    unsigned part, of;
    int end = 0;
    if (sscanf(name, "model-%5u-of-%5u.safetensors%n", &part, &of, &end) != 2 || end == 0) return false;
    return name[end] == 0 || strcmp(name + end, ".partial") == 0;
}

/* A model as others load it: what came along from the folder that the run began as (stages/publish.h), weights, their
 * shards, adapters. */
static enum aq_status published_remove(const char *folder)
{
    static const char *const names[] = {"config.json",
                                        "config.json.new",
                                        "model.safetensors",
                                        "model.safetensors.partial",
                                        "model.safetensors.index.json",
                                        "model.safetensors.index.json.new",
                                        "adapter_config.json",
                                        "adapter_config.json.new",
                                        "adapter_model.safetensors",
                                        "adapter_model.safetensors.partial"};
    char file[NAME_BYTES + 8];
    DIR *list = NULL;
    const char *name;
    enum aq_status status = list_open(folder, "", &list);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    while (status == AQ_OK && (name = list_next(list)))
        if (is_shard_name(name)) status = aq_file_remove(folder, name);
    closedir(list);
    for (size_t i = 0; status == AQ_OK && i < sizeof names / sizeof *names; i++)
        status = aq_file_remove(folder, names[i]);
    for (uint32_t i = 0; status == AQ_OK && (name = aq_publish_carried(i)) != NULL; i++) {
        snprintf(file, sizeof file, "%s.new", name);
        AQ_TRY(aq_file_remove(folder, name));
        AQ_TRY(aq_file_remove(folder, file));
    }
    return status;
}

/* The run's own, and what it leaves in folders of theirs: those go where nothing else is in them. */
static enum aq_status models_remove(const char *run)
{
    static const char *const folders[] = {"best/adapter", "best", "adapter"};
    char path[AQ_RUN_PATH_BYTES];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        DIR *list = NULL;
        const enum aq_status status = list_open(run, folders[i], &list);
        if (status == AQ_NOTFOUND) continue;
        AQ_TRY(status);
        closedir(list);
        AQ_TRY(aq_run_path(run, folders[i], path));
        AQ_TRY(published_remove(path));
        AQ_TRY(remove_empty(run, folders[i]));
    }
    return published_remove(run);
}

static enum aq_status remove_below(int parent, const char *name, const char *path, int depth)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return AQ_OK;
    if (errno != EISDIR && errno != EPERM) return aq_fail_errno(AREA, "cannot remove %s (in %s)", name, path);
    if (depth == DEPTH_MAX) return aq_fail(AQ_INVAL, AREA, "cannot remove %s: folders nest too deep", path);
    const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd == -1) return aq_fail_errno(AREA, "cannot remove %s (in %s)", name, path);
    DIR *list = fdopendir(fd);
    if (!list) {
        close(fd);
        return aq_fail_errno(AREA, "cannot read %s (in %s)", name, path);
    }
    enum aq_status status = AQ_OK;
    const char *inner;
    while (status == AQ_OK && (inner = list_next(list)))
        status = remove_below(fd, inner, path, depth + 1);
    closedir(list);
    AQ_TRY(status);
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return aq_fail_errno(AREA, "cannot remove %s (in %s)", name, path);
    return AQ_OK;
}

/* ---- what W&B leaves in a run folder ---- */

/* The id of the run at W&B, by what tools/follow noted in report_to.json; "": none. It becomes part of names. */
static void wandb_id_read(const char *run, char id[WANDB_ID_BYTES])
{
    char *text;
    size_t count;
    id[0] = 0;
    if (aq_file_load(run, "report_to.json", 1 << 20, &text, &count) != AQ_OK) return;
    json_t *json = json_loadb(text, count, 0, NULL);
    aq_free(text);
    const char *found = json_string_value(json_object_get(json_object_get(json, "wandb"), "id"));
    if (found && strlen(found) < WANDB_ID_BYTES && strspn(found, WANDB_ID_LETTERS) == strlen(found))
        memcpy(id, found, strlen(found) + 1);
    json_decref(json);
}

/* Is it the folder of this run, "offline-run-20261128_111540-ID", or a path that starts with it? */
static bool is_wandb_name(const char *name, const char *id)
{
    const size_t bytes = strlen(id);
    if (strncmp(name, "offline-", 8) == 0) name += 8;
    if (strncmp(name, "run-", 4) != 0) return false;
    name += 4;
    if (strspn(name, "0123456789_") != 15 || name[15] != '-' || strncmp(name + 16, id, bytes) != 0) return false;
    return name[16 + bytes] == 0 || name[16 + bytes] == '/';
}

/* Does this link lead into such a folder, as latest-run and debug.log do? */
static bool is_wandb_link(int folder, const char *name, const char *id)
{
    char to[NAME_BYTES];
    const ssize_t bytes = readlinkat(folder, name, to, sizeof to - 1);
    if (bytes < 0) return false;
    to[bytes] = 0;
    return is_wandb_name(to, id);
}

/* Other runs at W&B that were kept in the same folder stay. */
static enum aq_status wandb_remove(const char *run)
{
    char id[WANDB_ID_BYTES];
    DIR *list = NULL;
    const char *name;
    wandb_id_read(run, id);
    if (!id[0]) return AQ_OK;
    enum aq_status status = list_open(run, "wandb", &list);
    if (status == AQ_NOTFOUND || status == AQ_REFUSED) { /* a link leads to a folder that is not the run's */
        aq_error_clear();
        return AQ_OK;
    }
    AQ_TRY(status);
    while (status == AQ_OK && (name = list_next(list)))
        if (is_wandb_name(name, id) || is_wandb_link(dirfd(list), name, id))
            status = remove_below(dirfd(list), name, run, 1);
    closedir(list);
    AQ_TRY(status);
    return remove_empty(run, "wandb");
}

enum aq_status aq_owned_clear_run(const char *run, const struct aq_owner *owner)
{
    static const char *const names[] = {"metrics.jsonl.index", "metrics.jsonl.tail", "metrics.jsonl.tail.new",
                                        "hashes.json",         "hashes.json.new",    "metrics.jsonl",
                                        "metrics.jsonl.new",   "report.json",        "report.json.new",
                                        "trace.json",          "report_to.json",    "report_to.json.new"};
    AQ_TRY(aq_owned_check(run, AQ_OWNED_RUN, owner->id));
    AQ_TRY(wandb_remove(run)); /* before report_to.json, which has its id */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        AQ_TRY(aq_file_remove(run, names[i]));
    AQ_TRY(models_remove(run));
    AQ_TRY(named_remove(run, "tensorboard", is_event_name));
    return named_remove(run, "logs", is_log_name);
}

/* ---- scratch folders ---- */

enum aq_status aq_owned_scratch_make(char *path)
{
    const struct aq_owner owner = {.job = "scratch", .id = (uint64_t)getpid()};
    if (!mkdtemp(path)) return aq_fail_errno(AREA, "cannot make the folder %s", path);
    return marker_write(path, AQ_OWNED_SCRATCH, &owner, false);
}

enum aq_status aq_owned_scratch_remove(const char *path, const char *name)
{
    int fd;
    AQ_TRY(aq_owned_check(path, AQ_OWNED_SCRATCH, (uint64_t)getpid()));
    if (!name) return remove_below(AT_FDCWD, path, path, 0);
    AQ_TRY(aq_file_open_folder(path, "", &fd));
    const enum aq_status status = remove_below(fd, name, path, 1);
    close(fd);
    return status;
}
