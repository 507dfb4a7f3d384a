/*
 * run_folder.h -- the folder of a run: its lock, its files, and which checkpoint is whole (docs/CONTROL.md section 7).
 *
 * Only the launcher writes here what this room knows of, and only while it holds the lock; `status`, `top`, `stop`,
 * `logs` and `report` read. A file that must be whole or not there is written aside, synced and renamed.
 *
 * Locking: one thread; between processes the fcntl lock on RUN/lock.
 */
#ifndef RUNTIME_RUN_FOLDER_H
#define RUNTIME_RUN_FOLDER_H

#include <stdint.h>
#include <sys/types.h>

#include "aqsgd/base.h"

enum {
    AQ_RUN_PATH_BYTES = 4096,
    AQ_RUN_FORGET_AGAIN = 8,                     /* repeats of a message that may be lost, with the next checkpoints */
    AQ_RUN_KEPT_MAX = 1000 + AQ_RUN_FORGET_AGAIN /* checkpoint.keep, and those that are to be forgotten */
};

/* folder/name into path (AQ_RUN_PATH_BYTES). AQ_INVAL: longer than any path. */
enum aq_status aq_run_path(const char *folder, const char *name, char *path);

/* mkdir -p; the names of new folders are on disk. AQ_REFUSED, AQ_NOSPC, AQ_IO, AQ_INVAL (something else has this name).
 */
enum aq_status aq_run_make_folder(const char *path);

/* The name at `path` is on disk after this, new, renamed or removed. */
enum aq_status aq_run_sync_folder_of(const char *path);

/* Take the lock of the folder. AQ_REFUSED names the process that has it. The fd keeps it; close it to give it back. */
enum aq_status aq_run_lock(const char *folder, int *fd);

/* The process that holds the lock; 0: it is free. */
pid_t aq_run_holder(const char *folder);

struct aq_run_mark {
    uint64_t step;  /* of the newest checkpoint that every rank has        */
    uint64_t older; /* of the complete one before it, if kept; 0: none     */
    uint64_t plan_hash;
    uint64_t resume_hash;   /* plan.h; 0: unknown */
    uint64_t metrics;       /* bytes of metrics.jsonl up to `step` (run_rewind.h); 0: unknown */
    uint64_t older_metrics; /* up to `older` */
    /* Those that became complete, the newest first: `step`, and behind the newest checkpoint.keep those that are
     * being forgotten. Steps, not folders, so that files that others put there are never removed. */
    uint32_t kept_count;
    uint64_t kept[AQ_RUN_KEPT_MAX];
};

/* checkpoint/complete. Reading: AQ_NOTFOUND (not logged): no such file; AQ_CORRUPT. */
enum aq_status aq_run_mark_read(const char *checkpoint, struct aq_run_mark *out);
enum aq_status aq_run_mark_write(const char *checkpoint, const struct aq_run_mark *mark);

/* Steps of the folders in `checkpoint`, in no order, at most `room`; *count gets their number. Missing folder: 0.
 */
enum aq_status aq_run_marks(const char *checkpoint, uint64_t *steps, uint32_t room, uint32_t *count);

#endif
