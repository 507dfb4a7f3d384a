/*
 * offline.c -- reading and compacting a cache that no job has open: what `aqpipe cache stat|verify|compact` is built
 * on.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "folder.h"
#include "index.h"

struct aq_cache_walk {
    struct aq_folder folder;
    struct aq_index *index;
    uint64_t mark;
    uint64_t cells; /* that the slab file has */
    uint8_t *bytes; /* one cell, where bytes are verified */
    uint64_t bytes_size;
    bool verify;
};

/* Its messages are asked for, and not even where they lie is for others than its key's owner to change. */
static enum aq_status sealed_refuse(const struct aq_cache_walk *walk)
{
    return aq_fail(AQ_REFUSED, "cache",
                   "%s is sealed under a key that only its client has: it cannot be read, verified or compacted here "
                   "(aqpipe cache stat shows what it holds, wipe removes it)",
                   walk->folder.path);
}

static enum aq_status walk_fill(struct aq_cache_walk *walk, uint64_t mark, bool write)
{
    struct aq_record_head slab;
    AQ_TRY(write ? aq_index_open(walk->folder.index_path, NULL, 0, &walk->index)
                 : aq_index_open_read(walk->folder.index_path, &walk->index));
    const struct aq_record_head *head = aq_index_head(walk->index);
    if (head->sealed && walk->verify) return sealed_refuse(walk);
    AQ_TRY(aq_folder_slab_open(&walk->folder, true, write, &slab));
    if (slab.nonce != head->nonce || slab.cell_bytes != head->cell_bytes) {
        return aq_fail(AQ_CORRUPT, "cache", "%s: slab and index do not belong together", walk->folder.path);
    }
    walk->mark = mark == 0 ? head->mark_last : mark;
    if (walk->mark != head->mark_last && walk->mark != head->mark_previous) {
        return aq_fail(AQ_MISMATCH, "cache", "%s holds marks %" PRIu64 " and %" PRIu64 ", not %" PRIu64,
                       walk->folder.path, head->mark_last, head->mark_previous, mark);
    }
    AQ_TRY(aq_folder_cells(&walk->folder, &walk->cells));
    if (walk->cells > AQ_STORE_NONE - 1) walk->cells = AQ_STORE_NONE - 1;
    return AQ_OK;
}

static enum aq_status walk_open(const char *path, uint64_t mark, bool verify, bool write, struct aq_cache_walk **out)
{
    enum aq_status status = AQ_OK;
    void *memory = NULL;
    struct aq_cache_walk *walk;
    AQ_TRY(AQ_NEW(1, &walk));
    walk->folder = (struct aq_folder){.lock_fd = -1, .slab_fd = -1};
    walk->verify = verify;
    AQ_TRY_GOTO(aq_folder_open(path, false, &walk->folder), out);
    status = walk_fill(walk, mark, write);
    if (status == AQ_NOTFOUND) status = aq_fail(AQ_NOTFOUND, "cache", "%s holds no cache", path);
    if (status == AQ_OK && write && walk->folder.lock_fd == -1) {
        status = aq_fail(AQ_REFUSED, "cache", "%s has no lock file, as a copy may; make an empty one: touch %s/lock",
                         path, path);
    }
    if (status != AQ_OK) goto out;
    walk->bytes_size = walk->folder.cell_bytes;
    if (verify) {
        AQ_TRY_GOTO(aq_map(walk->bytes_size, &memory), out);
        walk->bytes = memory;
    }
    *out = walk;
    return AQ_OK;
out:
    aq_cache_walk_close(walk);
    return status;
}

enum aq_status aq_cache_walk_open(const char *path, uint64_t mark, bool verify, struct aq_cache_walk **out)
{
    enum aq_status status = AQ_OK;
    struct aq_cache_walk *walk = NULL;
    AQ_TRY(walk_open(path, mark, verify, false, &walk));
    AQ_TRY_GOTO(aq_index_walk_begin(walk->index), out);
    *out = walk;
    return AQ_OK;
out:
    aq_cache_walk_close(walk);
    return status;
}

void aq_cache_walk_close(struct aq_cache_walk *walk)
{
    if (walk == NULL) return;
    aq_index_close(walk->index);
    aq_folder_close(&walk->folder);
    aq_unmap(walk->bytes, walk->bytes_size);
    aq_free(walk);
}

void aq_cache_walk_info(const struct aq_cache_walk *walk, struct aq_cache_info *out)
{
    const struct aq_record_head *head = aq_index_head(walk->index);
    *out = (struct aq_cache_info){.format = head->format,
                                  .job_digest = head->job_digest,
                                  .value_bytes_max = head->value_bytes_max,
                                  .mark_last = head->mark_last,
                                  .mark_previous = head->mark_previous,
                                  .mark = walk->mark,
                                  .entries = head->entries,
                                  .file_bytes = AQ_FOLDER_HEAD_BYTES + head->cell_bytes * walk->cells +
                                                aq_index_bytes(walk->index),
                                  .cells = walk->cells,
                                  .cell_bytes = head->cell_bytes,
                                  .sealed = head->sealed};
    memcpy(out->job_name, head->name, sizeof(out->job_name));
}

/* The message's bytes against its digest. */
static enum aq_status cell_verify(const struct aq_cache_walk *walk, const struct aq_record *record)
{
    const uint64_t blocks = aq_store_blocks(record->bytes);
    uint64_t moved = 0;
    while (moved < blocks) {
        const off_t offset = (off_t)(aq_folder_offset(walk->folder.cell_bytes, record->cell) + moved);
        const ssize_t got = pread(walk->folder.slab_fd, walk->bytes + moved, blocks - moved, offset);
        if (got <= 0) return AQ_CORRUPT; /* the caller says which entry */
        moved += (uint64_t)got;
        if (moved < blocks) moved -= moved % AQ_STORE_BLOCK;
    }
    return aq_digest(walk->bytes, record->bytes) == record->digest ? AQ_OK : AQ_CORRUPT;
}

enum aq_status aq_cache_walk_next(struct aq_cache_walk *walk, struct aq_cache_visit *out)
{
    struct aq_index_item item;
    for (;;) {
        AQ_TRY(aq_index_walk_next(walk->index, &item));
        struct aq_cache_visit visit = {.key = item.key, .cell = AQ_STORE_NONE, .status = AQ_CORRUPT};
        if (item.count > 0) {
            const struct aq_record *record = aq_record_at(item.records, item.count, walk->mark);
            if (record == NULL || record->cell == AQ_STORE_NONE) continue;
            visit.version = record->version;
            visit.digest = record->digest;
            visit.byte_count = record->bytes;
            visit.cell = record->cell;
            visit.status = record->cell < walk->cells ? AQ_OK : AQ_CORRUPT;
            if (visit.status == AQ_OK && walk->verify) visit.status = cell_verify(walk, record);
        }
        *out = visit;
        return AQ_OK;
    }
}

/* Which cells the two kept marks need. */
static enum aq_status cells_claim(struct aq_cache_walk *walk, uint8_t *used, uint64_t *used_count)
{
    enum aq_status status;
    struct aq_index_item item;
    const struct aq_record_head *head = aq_index_head(walk->index);
    const uint64_t marks[2] = {head->mark_last, head->mark_previous};
    AQ_TRY(aq_index_walk_begin(walk->index));
    while ((status = aq_index_walk_next(walk->index, &item)) == AQ_OK) {
        for (int i = 0; i < 2; ++i) {
            const struct aq_record *record = marks[i] > 0 ? aq_record_at(item.records, item.count, marks[i]) : NULL;
            if (record == NULL || record->cell >= walk->cells || used[record->cell]) continue;
            used[record->cell] = 1;
            ++*used_count;
        }
    }
    aq_index_walk_end(walk->index);
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

static enum aq_status cell_copy(const struct aq_cache_walk *walk, uint64_t from, uint64_t into)
{
    const uint64_t bytes = walk->folder.cell_bytes;
    const struct aq_folder *folder = &walk->folder;
    for (uint64_t moved = 0; moved < bytes;) {
        const ssize_t got = pread(folder->slab_fd, walk->bytes + moved, bytes - moved,
                                  (off_t)(aq_folder_offset(bytes, (uint32_t)from) + moved));
        if (got == -1) return aq_fail_errno("cache", "read %s", folder->slab_path);
        if (got == 0) return aq_fail(AQ_CORRUPT, "cache", "%s ends inside a message", folder->slab_path);
        moved += (uint64_t)got;
        if (moved < bytes) moved -= moved % AQ_STORE_BLOCK;
    }
    for (uint64_t moved = 0; moved < bytes;) {
        const ssize_t put = pwrite(folder->slab_fd, walk->bytes + moved, bytes - moved,
                                   (off_t)(aq_folder_offset(bytes, (uint32_t)into) + moved));
        if (put == -1) return aq_fail_errno("cache", "write %s", folder->slab_path);
        if (put == 0) return aq_fail(AQ_NOSPC, "cache", "%s: the disk is full", folder->slab_path);
        moved += (uint64_t)put;
        if (moved < bytes) moved -= moved % AQ_STORE_BLOCK;
    }
    return AQ_OK;
}

/*
 * Messages behind the first used_count cells move into gaps before them; the copies are synced, then one transaction of
 * the index names them, then the file is cut. Killed before the transaction, the old places hold; after it, the new
 * ones.
 */
static enum aq_status cells_move(struct aq_cache_walk *walk, const uint8_t *used, uint64_t used_count, uint32_t *moved)
{
    const struct aq_record_head *head = aq_index_head(walk->index);
    uint64_t gap = 0;
    for (uint64_t cell = 0; cell < walk->cells; ++cell) {
        moved[cell] = used[cell] ? (uint32_t)cell : AQ_STORE_NONE;
        if (!used[cell] || cell < used_count) continue;
        while (used[gap])
            ++gap;
        AQ_ASSERT(gap < used_count);
        AQ_TRY(cell_copy(walk, cell, gap));
        moved[cell] = (uint32_t)gap++;
    }
    if (fdatasync(walk->folder.slab_fd) == -1) return aq_fail_errno("cache", "sync %s", walk->folder.slab_path);
    AQ_TRY(aq_index_prune(walk->index, head->mark_last, head->mark_previous, moved, (uint32_t)walk->cells));
    const off_t bytes = (off_t)(AQ_FOLDER_HEAD_BYTES + walk->folder.cell_bytes * used_count);
    if (ftruncate(walk->folder.slab_fd, bytes) == -1) return aq_fail_errno("cache", "cut %s", walk->folder.slab_path);
    return AQ_OK;
}

enum aq_status aq_cache_compact(const char *path, uint64_t *freed_bytes)
{
    enum aq_status status = AQ_OK;
    struct aq_cache_walk *walk = NULL;
    void *used = NULL, *moved = NULL;
    uint64_t used_count = 0;
    AQ_TRY(walk_open(path, 0, true, true, &walk));
    AQ_TRY_GOTO(aq_alloc(walk->cells + 1, &used), out);
    AQ_TRY_GOTO(aq_alloc((walk->cells + 1) * sizeof(uint32_t), &moved), out);
    AQ_TRY_GOTO(cells_claim(walk, used, &used_count), out);
    AQ_TRY_GOTO(cells_move(walk, used, used_count, moved), out);
    *freed_bytes = (walk->cells - used_count) * walk->folder.cell_bytes;
out:
    aq_free(used);
    aq_free(moved);
    aq_cache_walk_close(walk);
    return status;
}
