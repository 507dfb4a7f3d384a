/*
 * index.c -- the index of the slab on LMDB. All keys are 16 bytes of the one unnamed database; the head is the last of
 * them.
 */
#include "index.h"

#include <inttypes.h>
#include <limits.h>
#include <lmdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "index_check.h"

/*
 * The map's size bounds the file. A key takes 16 + 80 bytes of records, 8 of node and 2 of pointer; pages are at least
 * half full after splits (x2), a transaction copies what it touches (x2), freed pages wait for one more transaction
 * (x2): 1 KiB.
 */
enum { BYTES_PER_KEY = 1024, BYTES_BASE = 16 << 20 };

struct aq_index {
    MDB_env *env;
    MDB_dbi dbi;
    MDB_txn *walk_txn;
    MDB_cursor *walk_cursor;
    struct aq_record_head head;
    char path[PATH_MAX];
    bool read_only;
};

/* LMDB returns EIO for a write that was cut short: by the limit of file sizes, if the file has reached it. */
static int cut_by_limit(const struct aq_index *index, int error)
{
    struct rlimit limit;
    struct stat info;
    int fd;
    if (error != EIO || mdb_env_get_fd(index->env, &fd) != 0 || fstat(fd, &info) != 0) return error;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return error;
    return (rlim_t)info.st_size + AQ_STORE_BLOCK > limit.rlim_cur ? EFBIG : error;
}

static enum aq_status lmdb_fail(const struct aq_index *index, const char *call, int error)
{
    enum aq_status status = AQ_IO;
    char reason[160];
    error = cut_by_limit(index, error);
    if (error == ENOSPC || error == MDB_MAP_FULL || error == EDQUOT || error == EFBIG)
        status = AQ_NOSPC;
    else if (error == ENOMEM)
        status = AQ_NOMEM;
    else if (error == EACCES || error == EPERM || error == EROFS)
        status = AQ_REFUSED;
    else if (error < 0)
        status = AQ_CORRUPT;
    return aq_fail(status, "cache", "%s: %s: %s", index->path, call,
                   error > 0 ? aq_errno_text(error, reason, sizeof reason) : mdb_strerror(error));
}

#define LMDB_TRY(index, label, call)                                                                                   \
    do {                                                                                                               \
        const int error_ = (call);                                                                                     \
        if (error_ != 0) {                                                                                             \
            status = lmdb_fail(index, #call, error_);                                                                  \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

static MDB_val head_key(void)
{
    return (MDB_val){.mv_size = AQ_RECORD_KEY_BYTES, .mv_data = (void *)(uintptr_t)aq_record_head_key};
}

static enum aq_status head_put(struct aq_index *index, MDB_txn *txn, const struct aq_record_head *head)
{
    enum aq_status status = AQ_OK;
    MDB_val key = head_key();
    MDB_val value = {.mv_size = sizeof(*head), .mv_data = (void *)(uintptr_t)head};
    LMDB_TRY(index, out, mdb_put(txn, index->dbi, &key, &value, 0));
out:
    return status;
}

static enum aq_status env_open(struct aq_index *index, const char *path, uint64_t map_bytes, bool make)
{
    enum aq_status status = AQ_OK;
    MDB_txn *txn = NULL;
    LMDB_TRY(index, out, mdb_env_create(&index->env));
    LMDB_TRY(index, out, mdb_env_set_mapsize(index->env, map_bytes));
    LMDB_TRY(index, out,
             mdb_env_open(index->env, path, MDB_NOSUBDIR | MDB_NOLOCK | (index->read_only ? MDB_RDONLY : 0), 0600));
    LMDB_TRY(index, out, mdb_txn_begin(index->env, NULL, make ? 0 : MDB_RDONLY, &txn));
    LMDB_TRY(index, out, mdb_dbi_open(txn, NULL, 0, &index->dbi));
    if (make) AQ_TRY_GOTO(head_put(index, txn, &index->head), out);
    MDB_txn *ended = txn;
    txn = NULL;
    LMDB_TRY(index, out, mdb_txn_commit(ended));
out:
    if (txn != NULL) mdb_txn_abort(txn);
    return status;
}

static enum aq_status head_read(struct aq_index *index)
{
    enum aq_status status = AQ_OK;
    MDB_txn *txn = NULL;
    MDB_val key = head_key(), value;
    LMDB_TRY(index, out, mdb_txn_begin(index->env, NULL, MDB_RDONLY, &txn));
    const int error = mdb_get(txn, index->dbi, &key, &value);
    if (error == MDB_NOTFOUND || (error == 0 && value.mv_size != sizeof(index->head))) {
        status = aq_fail(AQ_CORRUPT, "cache", "%s has no head", index->path);
        goto out;
    }
    LMDB_TRY(index, out, error);
    memcpy(&index->head, value.mv_data, sizeof(index->head));
    status = aq_record_head_check(&index->head, AQ_RECORD_INDEX, index->path);
out:
    if (txn != NULL) mdb_txn_abort(txn);
    return status;
}

/* Makes the file under another name, whole and synced, then gives it its own. */
static enum aq_status index_make(struct aq_index *index, const struct aq_record_head *head, uint64_t map_bytes)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s.new", index->path);
    if (unlink(path) == -1 && errno != ENOENT) return aq_fail_errno("cache", "remove %s", path);
    index->head = *head;
    enum aq_status status = env_open(index, path, map_bytes, true);
    if (index->env != NULL) mdb_env_close(index->env);
    index->env = NULL;
    if (status != AQ_OK) return status;
    if (rename(path, index->path) == -1) return aq_fail_errno("cache", "rename %s to %s", path, index->path);
    return AQ_OK;
}

static enum aq_status index_open(const char *path, const struct aq_record_head *head, uint64_t samples_max,
                                 bool read_only, struct aq_index **out)
{
    enum aq_status status = AQ_OK;
    uint64_t map_bytes = BYTES_BASE + samples_max * BYTES_PER_KEY;
    AQ_ASSERT(samples_max <= AQ_STORE_SAMPLES_MAX);
    if (strlen(path) >= PATH_MAX) return aq_fail(AQ_INVAL, "cache", "the path of the cache is too long");
    struct aq_index *index;
    AQ_TRY(AQ_NEW(1, &index));
    snprintf(index->path, sizeof(index->path), "%s", path);
    index->read_only = read_only;
    if (head != NULL) AQ_TRY_GOTO(index_make(index, head, map_bytes), out);
    if (!read_only) { /* LMDB opens it by its name, and writes in place: it must have no other name */
        int fd;
        AQ_TRY_GOTO(aq_file_open(NULL, path, AQ_FILE_UPDATE, &fd), out);
        close(fd);
    }
    AQ_TRY_GOTO(aq_index_check(path), out);
    struct stat stat_of;
    if (stat(path, &stat_of) == 0 && (uint64_t)stat_of.st_size * 2 > map_bytes)
        map_bytes = (uint64_t)stat_of.st_size * 2;
    AQ_TRY_GOTO(env_open(index, path, map_bytes, false), out);
    AQ_TRY_GOTO(head_read(index), out);
    *out = index;
    return AQ_OK;
out:
    aq_index_close(index);
    return status;
}

enum aq_status aq_index_open(const char *path, const struct aq_record_head *head, uint64_t samples_max,
                             struct aq_index **out)
{
    return index_open(path, head, samples_max, false, out);
}

enum aq_status aq_index_open_read(const char *path, struct aq_index **out)
{
    return index_open(path, NULL, 0, true, out);
}

void aq_index_close(struct aq_index *index)
{
    if (index == NULL) return;
    aq_index_walk_end(index);
    if (index->env != NULL) mdb_env_close(index->env);
    aq_free(index);
}

const struct aq_record_head *aq_index_head(const struct aq_index *index)
{
    return &index->head;
}

uint64_t aq_index_bytes(const struct aq_index *index)
{
    struct stat stat_of;
    return stat(index->path, &stat_of) == 0 ? (uint64_t)stat_of.st_size : 0;
}

/* One key's new chain: the change, and behind it the record that held at the mark before. */
static enum aq_status change_put(struct aq_index *index, MDB_txn *txn, uint64_t mark,
                                 const struct aq_index_change *change)
{
    enum aq_status status = AQ_OK;
    uint8_t key_bytes[AQ_RECORD_KEY_BYTES];
    struct aq_record records[AQ_RECORD_CHAIN], old[AQ_RECORD_CHAIN];
    aq_record_key(&change->key, key_bytes);
    MDB_val key = {.mv_size = sizeof(key_bytes), .mv_data = key_bytes}, value;
    const int error = mdb_get(txn, index->dbi, &key, &value);
    if (error != MDB_NOTFOUND) LMDB_TRY(index, out, error);
    const uint32_t old_count =
        error == 0 ? aq_record_chain(value.mv_data, value.mv_size, key_bytes, &index->head, old) : 0;
    const struct aq_record *before = aq_record_at(old, old_count, index->head.mark_last);
    const bool before_holds = before != NULL && before->cell != AQ_STORE_NONE;
    if (change->cell == AQ_STORE_NONE && !before_holds) { /* it holds nothing, and held nothing */
        if (error == 0) LMDB_TRY(index, out, mdb_del(txn, index->dbi, &key, NULL));
        goto out;
    }
    records[0] = (struct aq_record){.mark = mark,
                                    .version = change->version,
                                    .digest = change->digest,
                                    .bytes = change->bytes,
                                    .cell = change->cell};
    aq_record_seal(&records[0], key_bytes);
    if (before_holds) records[1] = *before;
    value = (MDB_val){.mv_size = sizeof(records[0]) * (before_holds ? 2 : 1), .mv_data = records};
    LMDB_TRY(index, out, mdb_put(txn, index->dbi, &key, &value, 0));
out:
    return status;
}

enum aq_status aq_index_mark(struct aq_index *index, uint64_t mark, const struct aq_index_change *changes,
                             uint64_t count, uint64_t entries, bool lost)
{
    enum aq_status status = AQ_OK;
    MDB_txn *txn = NULL;
    AQ_ASSERT(mark > index->head.mark_last);
    struct aq_record_head head = index->head;
    head.mark_previous = index->head.mark_last;
    head.mark_last = mark;
    head.entries = entries;
    if (lost) head.lost = 1;
    aq_record_head_seal(&head);
    LMDB_TRY(index, out, mdb_txn_begin(index->env, NULL, 0, &txn));
    for (uint64_t i = 0; i < count; ++i)
        AQ_TRY_GOTO(change_put(index, txn, mark, &changes[i]), out);
    AQ_TRY_GOTO(head_put(index, txn, &head), out);
    MDB_txn *ended = txn;
    txn = NULL; /* commit frees it, also where it fails */
    LMDB_TRY(index, out, mdb_txn_commit(ended));
    index->head = head;
out:
    if (txn != NULL) mdb_txn_abort(txn);
    return status;
}

/* The part of a chain that is kept; how many records, 0: the key goes. *lost: a cell that it needs does not exist. */
static uint32_t chain_prune(struct aq_record *records, uint32_t count, uint64_t mark_last, uint64_t mark_previous,
                            const uint32_t *moved, uint32_t cells, uint8_t *lost)
{
    const uint64_t marks[AQ_RECORD_CHAIN] = {mark_last, mark_previous};
    struct aq_record kept[AQ_RECORD_CHAIN];
    uint32_t kept_count = 0;
    bool holds = false;
    for (int i = 0; i < AQ_RECORD_CHAIN; ++i) {
        const struct aq_record *record = aq_record_at(records, count, marks[i]);
        if (record == NULL || (kept_count > 0 && record->mark == kept[kept_count - 1].mark)) continue;
        kept[kept_count] = *record;
        /* A record of no cell becomes a drop, so that the one before it does not come up in its place. */
        if (moved != NULL) kept[kept_count].cell = record->cell < cells ? moved[record->cell] : AQ_STORE_NONE;
        if (kept[kept_count].cell != AQ_STORE_NONE)
            holds = true;
        else if (record->cell != AQ_STORE_NONE)
            *lost = 1;
        ++kept_count;
    }
    memcpy(records, kept, sizeof(kept[0]) * kept_count);
    return holds ? kept_count : 0;
}

static enum aq_status prune_all(struct aq_index *index, MDB_cursor *cursor, const uint32_t *moved, uint32_t cells,
                                struct aq_record_head *head)
{
    enum aq_status status = AQ_OK;
    MDB_val key, value;
    int error;
    while ((error = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
        uint8_t key_bytes[AQ_RECORD_KEY_BYTES];
        struct aq_record records[AQ_RECORD_CHAIN];
        if (key.mv_size == sizeof(key_bytes) && memcmp(key.mv_data, aq_record_head_key, key.mv_size) == 0) continue;
        uint32_t count = 0;
        if (key.mv_size == sizeof(key_bytes)) {
            memcpy(key_bytes, key.mv_data, sizeof(key_bytes));
            count = aq_record_chain(value.mv_data, value.mv_size, key_bytes, &index->head, records);
        }
        if (count == 0) head->lost = 1; /* broken */
        count = chain_prune(records, count, head->mark_last, head->mark_previous, moved, cells, &head->lost);
        if (count == 0) {
            LMDB_TRY(index, out, mdb_cursor_del(cursor, 0));
            continue;
        }
        for (uint32_t i = 0; i < count; ++i)
            aq_record_seal(&records[i], key_bytes);
        const struct aq_record *now = aq_record_at(records, count, head->mark_last);
        if (now != NULL && now->cell != AQ_STORE_NONE) ++head->entries;
        if (value.mv_size == sizeof(records[0]) * count && memcmp(value.mv_data, records, value.mv_size) == 0) continue;
        key = (MDB_val){.mv_size = sizeof(key_bytes), .mv_data = key_bytes};
        value = (MDB_val){.mv_size = sizeof(records[0]) * count, .mv_data = records};
        LMDB_TRY(index, out, mdb_cursor_put(cursor, &key, &value, MDB_CURRENT));
    }
    if (error != MDB_NOTFOUND) LMDB_TRY(index, out, error);
out:
    return status;
}

enum aq_status aq_index_prune(struct aq_index *index, uint64_t mark_last, uint64_t mark_previous, const uint32_t *moved,
                              uint32_t cells)
{
    enum aq_status status = AQ_OK;
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    struct aq_record_head head = index->head;
    head.mark_last = mark_last;
    head.mark_previous = mark_previous;
    head.entries = 0;
    LMDB_TRY(index, out, mdb_txn_begin(index->env, NULL, 0, &txn));
    LMDB_TRY(index, out, mdb_cursor_open(txn, index->dbi, &cursor));
    AQ_TRY_GOTO(prune_all(index, cursor, moved, cells, &head), out);
    mdb_cursor_close(cursor); /* a cursor of a write transaction goes before it */
    cursor = NULL;
    aq_record_head_seal(&head);
    AQ_TRY_GOTO(head_put(index, txn, &head), out);
    MDB_txn *ended = txn;
    txn = NULL;
    LMDB_TRY(index, out, mdb_txn_commit(ended));
    index->head = head;
out:
    if (cursor != NULL) mdb_cursor_close(cursor);
    if (txn != NULL) mdb_txn_abort(txn);
    return status;
}

enum aq_status aq_index_walk_begin(struct aq_index *index)
{
    enum aq_status status = AQ_OK;
    AQ_ASSERT(index->walk_txn == NULL);
    LMDB_TRY(index, out, mdb_txn_begin(index->env, NULL, MDB_RDONLY, &index->walk_txn));
    LMDB_TRY(index, out, mdb_cursor_open(index->walk_txn, index->dbi, &index->walk_cursor));
    return AQ_OK;
out:
    aq_index_walk_end(index);
    return status;
}

enum aq_status aq_index_walk_next(struct aq_index *index, struct aq_index_item *out)
{
    MDB_val key, value;
    AQ_ASSERT(index->walk_cursor != NULL);
    const int error = mdb_cursor_get(index->walk_cursor, &key, &value, MDB_NEXT);
    if (error == MDB_NOTFOUND) return AQ_NOTFOUND;
    if (error != 0) return lmdb_fail(index, "mdb_cursor_get", error);
    if (key.mv_size == AQ_RECORD_KEY_BYTES && memcmp(key.mv_data, aq_record_head_key, key.mv_size) == 0) {
        return AQ_NOTFOUND; /* the head's key is the greatest */
    }
    *out = (struct aq_index_item){.count = 0};
    if (key.mv_size != AQ_RECORD_KEY_BYTES) return AQ_OK;
    uint8_t key_bytes[AQ_RECORD_KEY_BYTES];
    memcpy(key_bytes, key.mv_data, sizeof(key_bytes));
    out->key = aq_record_key_read(key_bytes);
    out->count = aq_record_chain(value.mv_data, value.mv_size, key_bytes, &index->head, out->records);
    return AQ_OK;
}

void aq_index_walk_end(struct aq_index *index)
{
    if (index->walk_cursor != NULL) mdb_cursor_close(index->walk_cursor);
    if (index->walk_txn != NULL) mdb_txn_abort(index->walk_txn);
    index->walk_cursor = NULL;
    index->walk_txn = NULL;
}
