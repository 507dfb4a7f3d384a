/*
 * store_lmdb.h -- what the two files of the "lmdb" store share: store_lmdb_open.c builds it, store_lmdb.c runs it.
 *
 * The exec thread owns all of this except the index and the slots that the storage thread has at the moment.
 * Locking: the exec thread.
 */
#ifndef STORAGE_STORE_LMDB_H
#define STORAGE_STORE_LMDB_H

#include "cells.h"
#include "disk.h"
#include "folder.h"
#include "key_table.h"

enum lmdb_slot_state {
    SLOT_FREE = 0,
    SLOT_LENT,    /* given out by aq_cache_slot, not yet put */
    SLOT_READING, /* the storage thread's                    */
    SLOT_WRITING, /* its bytes may be read meanwhile         */
    SLOT_READY    /* equals its cell on disk                 */
};

struct lmdb_slot {
    enum lmdb_slot_state state;
    uint32_t entry; /* whose message it holds; AQ_STORE_NONE: no entry's any more (replaced or dropped) */
    uint32_t refs;  /* given out by get and not yet released                                          */
    uint32_t cell;
    bool wanted;           /* prefetched and not yet asked for                                        */
    bool checked;          /* its bytes are known to have the entry's digest                          */
    bool cell_leaves;      /* writing, and replaced before any mark: the cell is free after the write */
    enum aq_status status; /* of the read */
    uint64_t tick;         /* when it was last used */
};

struct lmdb_store {
    struct aq_cache base;
    struct aq_pages pages;
    struct aq_folder folder;
    struct aq_index *index; /* the storage thread's while disk is open */
    struct aq_disk *disk;
    struct aq_vault *vault; /* NULL: in the clear */
    struct aq_key_table keys;
    struct aq_cells cells;
    struct lmdb_slot *slots;
    struct aq_index_change *changes; /* of the mark that is being made */
    uint32_t *dirty, *marking;       /* numbers of entries             */
    uint64_t dirty_count, marking_count;
    uint8_t *memory; /* slot_count * cell_bytes, and behind that the disk's boxes */
    void *tables;    /* all of the above's arrays */
    uint64_t memory_bytes, tables_bytes;
    uint64_t cell_bytes;
    uint64_t cells_max; /* bytes_max in cells */
    uint64_t index_bytes;
    uint64_t tick;
    uint64_t failures; /* writes whose failure was seen */
    uint32_t slot_count;
    enum aq_status failure;     /* of an earlier write, returned once        */
    enum aq_status mark_status; /* of the mark that mark_done has not asked for yet */
    bool mark_finished;
    bool full_said; /* the full disk was logged; once is enough  */
};

enum aq_status lmdb_store_open(const struct aq_cache_config *config, struct aq_cache **out);
void lmdb_store_close(struct aq_cache *cache);
uint64_t lmdb_store_measure(const struct aq_cache_config *config);

/* Puts entry on the list of changes for the next mark. */
void lmdb_store_touch(struct lmdb_store *store, uint32_t entry);

#endif
