/*
 * folder.h -- a cache's folder: its lock, its slab file, and which of the two are there.
 *
 *     lock        held (flock) by the one process that has the cache open
 *     index.mdb   the index (index.h)
 *     slab        a head of 4096 bytes, then cells of cell_bytes each, written and read past the page cache
 *
 * Locking: one thread.
 */
#ifndef STORAGE_FOLDER_H
#define STORAGE_FOLDER_H

#include "record.h"

struct aq_folder {
    char *path;
    char *index_path;
    char *slab_path;
    int lock_fd;
    int slab_fd;
    bool direct; /* the slab is open with O_DIRECT */
    uint64_t cell_bytes;
    int grow_errno; /* why aq_folder_cells_grow had no room */
};

enum { AQ_FOLDER_HEAD_BYTES = AQ_STORE_BLOCK };

/*
 * make: create the folder where it is absent. Without it, a folder without a lock file is opened without a lock:
 * lock_fd stays -1. AQ_REFUSED (in use by another process, which is named if the system knows it), AQ_IO...
 */
enum aq_status aq_folder_open(const char *path, bool make, struct aq_folder *out);
void aq_folder_close(struct aq_folder *folder); /* also half-built: zeroed with both fds -1 */

/*
 * Opens the slab and reads its head. AQ_NOTFOUND (not logged): it does not exist, or its making was cut short before
 * its head was written. AQ_CORRUPT, AQ_MISMATCH (format), AQ_IO, AQ_REFUSED.
 */
enum aq_status aq_folder_slab_open(struct aq_folder *folder, bool direct, bool write, struct aq_record_head *out);

/* Makes an empty slab with this head (an old one is emptied first), synced. AQ_NOSPC, AQ_IO, AQ_REFUSED. */
enum aq_status aq_folder_slab_make(struct aq_folder *folder, bool direct, const struct aq_record_head *head);

/* The folder's own entries are on disk after this. */
enum aq_status aq_folder_sync(const struct aq_folder *folder);

/* Whole cells that the slab file has room for. AQ_IO. */
enum aq_status aq_folder_cells(const struct aq_folder *folder, uint64_t *out);

/* Makes room for `cells` cells altogether, on disk where the file system can promise it. AQ_NOSPC (not logged;
 * grow_errno has the reason), AQ_IO.
 */
enum aq_status aq_folder_cells_grow(struct aq_folder *folder, uint64_t cells);

static inline uint64_t aq_folder_offset(uint64_t cell_bytes, uint32_t cell)
{
    return AQ_FOLDER_HEAD_BYTES + cell_bytes * cell;
}

#endif
