/*
 * file.h -- files in folders where others may write: opened, made, renamed and removed without following links that
 * they planted there.
 *
 * A place is a folder and a name in it. The folder was named on purpose (a run folder, checkpoint.path): it may be a
 * symbolic link. The name is ours ("logs/stage-0.log"): no part of it may be a link, each part but the last must be a
 * folder, the last a regular file. Without a folder (NULL) the name is a whole path, and only its last part is ours.
 *
 * Caveats. A file written in place (AQ_FILE_KEEP, AQ_FILE_APPEND) must have one name: through a hard link another file
 * would change. Files are made 0600 and folders 0700, less the umask: use chmod to share them. A FIFO or a device is
 * refused and nothing hangs on it.
 *
 *     int fd;
 *     AQ_TRY(aq_file_open(run, "run.json.new", AQ_FILE_ANEW, &fd));   write, fsync, close
 *     AQ_TRY(aq_file_rename(run, "run.json.new", "run.json"));
 *     AQ_TRY(aq_file_sync_folder(run, "run.json"));
 *
 * Every function: AQ_REFUSED names the obstacle and the remedy; AQ_INVAL: the path is too long; AQ_NOSPC, AQ_IO,
 * AQ_NOTFOUND as the system reports. Locking: pure functions over the file system, any thread.
 */
#ifndef AQSGD_BASE_FILE_H
#define AQSGD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "aqsgd/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum aq_file_how {
    AQ_FILE_READ,   /* there must be one                                                    */
    AQ_FILE_UPDATE, /* read and write in place; there must be one                           */
    AQ_FILE_KEEP,   /* the same, made if missing                                            */
    AQ_FILE_APPEND, /* write behind its end, made if missing                                */
    AQ_FILE_ANEW    /* write a new one: what had the name before is unlinked, never opened  */
};

/* *fd is the caller's to close. AQ_NOTFOUND (not logged for READ and UPDATE): no such file or folder. */
enum aq_status aq_file_open(const char *folder, const char *name, enum aq_file_how how, int *fd);

/* Both names are in the same folder; a file named `to` is replaced; of a link the link itself, not its target. */
enum aq_status aq_file_rename(const char *folder, const char *from, const char *to);

/* One name less: of a file, a link, a FIFO, never a folder's. Missing is fine. */
enum aq_status aq_file_remove(const char *folder, const char *name);

/* An empty folder, else AQ_REFUSED (not logged): something is in it. Missing is fine. */
enum aq_status aq_file_remove_folder(const char *folder, const char *name);

/* The folders of `name` below `folder`, which must be there, each made where it is missing and its name synced. */
enum aq_status aq_file_make_folder(const char *folder, const char *name);

/* A folder's descriptor, to list it (name "": `folder` itself). AQ_NOTFOUND is not logged. */
enum aq_status aq_file_open_folder(const char *folder, const char *name, int *fd);

/* The name is on disk after this: new, renamed or gone. */
enum aq_status aq_file_sync_folder(const char *folder, const char *name);

/*
 * The whole file: written to `name`.new with this mode (less the umask), synced, renamed, its folder synced. After a
 * crash there is the old one or this one; after a failure the old one.
 */
enum aq_status aq_file_replace(const char *folder, const char *name, mode_t mode, const void *bytes, size_t count);

/* The file as it is when it is opened, in memory of aq_alloc with a zero behind it; count may be NULL. AQ_NOTFOUND is
 * not logged; AQ_NOSPC: over bytes_max. */
enum aq_status aq_file_load(const char *folder, const char *name, size_t bytes_max, char **bytes, size_t *count);

/*
 * All bytes, through interruptions and short transfers, of a descriptor that blocks (a file, a pipe, a socket in a
 * child). False: see errno. The caller knows the name and logs.
 */
bool aq_write_all(int fd, const void *bytes, size_t count);
bool aq_pwrite_all(int fd, const void *bytes, size_t count, uint64_t offset);

/* How many bytes were read: fewer than count where the file ends; -1: see errno. */
ssize_t aq_read_all(int fd, void *bytes, size_t count);
ssize_t aq_pread_all(int fd, void *bytes, size_t count, uint64_t offset);

#ifdef __cplusplus
}
#endif
#endif
