/*
 * index.h -- the index of the slab: an LMDB file with the cell of each version of each message, at each kept mark.
 *
 * One key per message, its value a chain of at most two records (record.h). A mark is one LMDB transaction: all of it
 * is there after a crash, or nothing. The file is checked page by page before LMDB maps it (index_check.h), because
 * LMDB trusts its file. LMDB's own lock file is not used: whoever opens the folder holds its lock (folder.h), and there
 * is one thread at a time. Locking: one thread at a time.
 */
#ifndef STORAGE_INDEX_H
#define STORAGE_INDEX_H

#include "record.h"

struct aq_index; /* opaque */

/* The changes of one mark to a key. */
struct aq_index_change {
    struct aq_cache_key key;
    uint64_t version;
    uint64_t digest;
    uint32_t bytes;
    uint32_t cell; /* AQ_STORE_NONE: dropped */
};

/*
 * Opens the file at path. head not NULL: the file does not exist yet; it is made (under another name first, so that a
 * file of this name is always whole). samples_max sizes the map. AQ_NOTFOUND (not logged; head NULL and no file),
 * AQ_CORRUPT, AQ_MISMATCH (format), AQ_NOSPC, AQ_NOMEM, AQ_IO, AQ_REFUSED.
 */
enum aq_status aq_index_open(const char *path, const struct aq_record_head *head, uint64_t samples_max,
                             struct aq_index **out);
/* The same for a file that is there, only for walks: nothing is written, not even by LMDB. */
enum aq_status aq_index_open_read(const char *path, struct aq_index **out);
void aq_index_close(struct aq_index *index); /* NULL is fine */

const struct aq_record_head *aq_index_head(const struct aq_index *index);
uint64_t aq_index_bytes(const struct aq_index *index); /* of the file */

/*
 * One transaction: mark_previous = mark_last, mark_last = mark, and the changes hold since then. entries: messages
 * held. lost: the head keeps this flag from now on, for ever. On failure nothing changed. AQ_NOSPC, AQ_NOMEM, AQ_IO,
 * AQ_CORRUPT.
 */
enum aq_status aq_index_mark(struct aq_index *index, uint64_t mark, const struct aq_index_change *changes,
                             uint64_t count, uint64_t entries, bool lost);

/*
 * One transaction: keep what holds at mark_last and mark_previous (0: no such mark), forget every other record, broken
 * values and keys that hold nothing. moved not NULL: cell c < cells is now moved[c] (AQ_STORE_NONE, or c beyond: there
 * is no such cell, the message counts as dropped). If a message was dropped, or a value was broken, the head is marked
 * `lost`.
 */
enum aq_status aq_index_prune(struct aq_index *index, uint64_t mark_last, uint64_t mark_previous, const uint32_t *moved,
                              uint32_t cells);

/* Walks over all keys in order. One walk at a time; no mark or prune meanwhile. */
struct aq_index_item {
    struct aq_cache_key key;
    struct aq_record records[AQ_RECORD_CHAIN];
    uint32_t count; /* 0: the value is broken */
};
enum aq_status aq_index_walk_begin(struct aq_index *index);                           /* AQ_NOMEM, AQ_CORRUPT       */
enum aq_status aq_index_walk_next(struct aq_index *index, struct aq_index_item *out); /* AQ_NOTFOUND at the end     */
void aq_index_walk_end(struct aq_index *index);

#endif
