/*
 * store_lmdb_open.c -- opens a folder at a mark: identity first, then roll back the index, then sort the cells.
 *
 * There are three ways, by the folder's content and the mark that is asked for:
 *     no index yet (or fresh, same job)    make an empty cache;  a wanted mark is refused
 *     an index, and the mark is one of its two    load it as it was then, forget what came later
 *     anything else                        refuse, and say what is there
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store_lmdb.h"

/*
 * Cells that can be in use at once: per key those of the two kept marks, of the mark being made and of now; and each
 * slot may still be writing one that was replaced.
 */
static uint32_t cells_capacity(const struct aq_cache_config *config)
{
    return (uint32_t)(4 * config->samples_max + config->slots);
}

static void tables_place(struct lmdb_store *store, struct aq_arena *arena, const struct aq_cache_config *config)
{
    const uint32_t samples = (uint32_t)config->samples_max;
    aq_key_table_place(&store->keys, arena, samples);
    aq_cells_place(&store->cells, arena, cells_capacity(config));
    store->slots = aq_arena_take(arena, sizeof(struct lmdb_slot) * config->slots);
    store->changes = aq_arena_take(arena, sizeof(struct aq_index_change) * samples);
    store->dirty = aq_arena_take(arena, sizeof(uint32_t) * samples);
    store->marking = aq_arena_take(arena, sizeof(uint32_t) * samples);
}

uint64_t lmdb_store_measure(const struct aq_cache_config *config)
{
    struct lmdb_store store = {.slot_count = 0};
    struct aq_arena arena = {.base = NULL};
    tables_place(&store, &arena, config);
    return arena.used + aq_record_blocks(config->sealed, config->value_bytes_max) *
                            aq_disk_buffers(config->sealed, config->slots, config->depth);
}

static enum aq_status memory_take(struct lmdb_store *store, const struct aq_cache_config *config)
{
    struct aq_arena arena = {.base = NULL};
    void *memory = NULL;
    tables_place(store, &arena, config);
    AQ_TRY(aq_map(arena.used, &memory));
    store->tables = memory;
    store->tables_bytes = arena.used;
    arena = (struct aq_arena){.base = memory, .bytes = arena.used};
    tables_place(store, &arena, config);
    store->pages = config->pages;
    const uint64_t bytes = store->cell_bytes * aq_disk_buffers(config->sealed, config->slots, config->depth);
    AQ_TRY(aq_pages_take(&store->pages, bytes, &memory));
    store->memory = memory;
    store->memory_bytes = bytes;
    for (uint32_t i = 0; i < config->slots; ++i) {
        store->slots[i] = (struct lmdb_slot){.entry = AQ_STORE_NONE, .cell = AQ_STORE_NONE};
    }
    return AQ_OK;
}

void lmdb_store_touch(struct lmdb_store *store, uint32_t entry)
{
    if (store->keys.entries[entry].dirty) return;
    store->keys.entries[entry].dirty = true;
    store->dirty[store->dirty_count++] = entry;
}

/* A number that only this pair of slab and index has. */
static uint64_t nonce_make(const struct aq_cache_config *config)
{
    const uint64_t parts[4] = {aq_clock_wall_ns(), aq_clock_ns(), (uint64_t)getpid(), config->job_digest};
    return aq_digest(parts, sizeof(parts));
}

/* Each new cache has its own salt: no nonce can come twice under one key of cells. */
static enum aq_status vault_make(struct lmdb_store *store, const struct aq_cache_config *config,
                                 struct aq_record_identity *identity)
{
    if (!config->sealed) return AQ_OK;
    aq_vault_close(store->vault);
    store->vault = NULL;
    AQ_TRY(aq_vault_salt(identity->salt));
    AQ_TRY(aq_vault_open(config->key, identity->salt, config->job_digest, &store->vault));
    identity->key_check = aq_vault_check(store->vault);
    return AQ_OK;
}

/* Is what is there sealed as it is to be, under this key? */
static enum aq_status vault_load(struct lmdb_store *store, const struct aq_cache_config *config,
                                 const struct aq_record_head *head, const char **why)
{
    *why = head->sealed ? "sealed, and this job's are not" : "not sealed, and this job's are";
    if ((head->sealed != 0) != config->sealed) return AQ_NOTFOUND;
    *why = "sealed under another key";
    if (!config->sealed) return AQ_OK;
    AQ_TRY(aq_vault_open(config->key, head->salt, config->job_digest, &store->vault));
    return aq_vault_check(store->vault) == head->key_check ? AQ_OK : AQ_NOTFOUND;
}

static enum aq_status cache_make(struct lmdb_store *store, const struct aq_cache_config *config,
                                 struct aq_record_identity *identity)
{
    struct aq_record_head head;
    AQ_TRY(vault_make(store, config, identity));
    const uint64_t nonce = nonce_make(config);
    /* The index goes first and comes last: a folder with an index has a slab that belongs to it. */
    if (unlink(store->folder.index_path) == -1 && errno != ENOENT) {
        return aq_fail_errno("cache", "remove %s", store->folder.index_path);
    }
    AQ_TRY(aq_folder_sync(&store->folder));
    aq_record_head_make(&head, AQ_RECORD_SLAB, identity, nonce);
    AQ_TRY(aq_folder_slab_make(&store->folder, config->direct, &head));
    aq_record_head_make(&head, AQ_RECORD_INDEX, identity, nonce);
    head.lost = config->lost;
    aq_record_head_seal(&head);
    AQ_TRY(aq_index_open(store->folder.index_path, &head, config->samples_max, &store->index));
    return aq_folder_sync(&store->folder);
}

/* The cells that one key's records name. False if a cell is beyond the slab's end, or taken already. */
static bool item_claim(const struct aq_index_item *item, uint64_t mark, uint64_t previous, uint8_t *claim,
                       uint64_t cells)
{
    const struct aq_record *now = aq_record_at(item->records, item->count, mark);
    const struct aq_record *old = previous > 0 ? aq_record_at(item->records, item->count, previous) : NULL;
    const struct aq_record *records[2] = {now, old == now ? NULL : old};
    const enum aq_cells_claim wanted[2] = {AQ_CELLS_HELD, AQ_CELLS_OLD};
    bool good = item->count > 0;
    for (int i = 0; i < 2; ++i) {
        if (records[i] == NULL || records[i]->cell == AQ_STORE_NONE) continue;
        const uint32_t cell = records[i]->cell;
        if (cell >= cells || claim[cell] != AQ_CELLS_FREE) good = false;
        if (cell < cells) claim[cell] = (uint8_t)(claim[cell] == AQ_CELLS_FREE ? wanted[i] : AQ_CELLS_DOUBLE);
    }
    return good;
}

static enum aq_status claims_read(struct lmdb_store *store, uint64_t mark, uint64_t previous, uint8_t *claim,
                                  uint64_t cells, uint64_t *broken)
{
    enum aq_status status;
    struct aq_index_item item;
    uint64_t keys = 0;
    memset(claim, AQ_CELLS_FREE, cells);
    *broken = 0;
    AQ_TRY(aq_index_walk_begin(store->index));
    while ((status = aq_index_walk_next(store->index, &item)) == AQ_OK) {
        if (!item_claim(&item, mark, previous, claim, cells)) ++*broken;
        if (++keys <= store->keys.capacity) continue;
        status = aq_fail(AQ_MISMATCH, "cache", "%s holds more than samples_max = %" PRIu32 " messages",
                         store->folder.index_path, store->keys.capacity);
        break;
    }
    aq_index_walk_end(store->index);
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

/* Forgets every record of a cell that is not there or that two records name: those messages count as never seen. */
static enum aq_status claims_mend(struct lmdb_store *store, uint64_t mark, uint64_t previous, const uint8_t *claim,
                                  uint64_t cells, uint64_t broken)
{
    store->base.stats.corrupt += broken;
    aq_log("cache", 0, "%s: %" PRIu64 " entries are broken and count as never seen", store->folder.index_path, broken);
    uint32_t *moved;
    AQ_TRY(AQ_NEW(cells + 1, &moved));
    for (uint64_t cell = 0; cell < cells; ++cell) {
        const bool good = claim[cell] == AQ_CELLS_HELD || claim[cell] == AQ_CELLS_OLD;
        moved[cell] = good ? (uint32_t)cell : AQ_STORE_NONE;
    }
    const enum aq_status status = aq_index_prune(store->index, mark, previous, moved, (uint32_t)cells);
    aq_free(moved);
    return status;
}

static enum aq_status entries_read(struct lmdb_store *store, uint64_t mark)
{
    enum aq_status status;
    struct aq_index_item item;
    AQ_TRY(aq_index_walk_begin(store->index));
    while ((status = aq_index_walk_next(store->index, &item)) == AQ_OK) {
        const struct aq_record *now = aq_record_at(item.records, item.count, mark);
        if (now == NULL || now->cell == AQ_STORE_NONE) continue;
        const uint32_t number = aq_key_table_add(&store->keys, &item.key);
        AQ_ASSERT(number != AQ_STORE_NONE); /* claims_read counted them */
        struct aq_key_entry *entry = &store->keys.entries[number];
        uint64_t mask = 0;
        if (store->vault) status = aq_vault_mask(store->vault, &item.key, now->version, &mask);
        if (status != AQ_OK) break;
        entry->version = now->version;
        entry->digest = now->digest ^ mask;
        entry->bytes = now->bytes;
        entry->cell = now->cell;
        entry->present = true;
        ++store->base.stats.entries;
        store->base.stats.entry_bytes += now->bytes;
    }
    aq_index_walk_end(store->index);
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

static enum aq_status index_load(struct lmdb_store *store, uint64_t mark, uint64_t previous, uint64_t cells)
{
    enum aq_status status = AQ_OK;
    uint64_t broken;
    void *claim = NULL;
    AQ_TRY(aq_alloc(cells + 1, &claim));
    AQ_TRY_GOTO(claims_read(store, mark, previous, claim, cells, &broken), out);
    if (broken > 0) {
        AQ_TRY_GOTO(claims_mend(store, mark, previous, claim, cells, broken), out);
        AQ_TRY_GOTO(claims_read(store, mark, previous, claim, cells, &broken), out);
        if (broken > 0) {
            status = aq_fail(AQ_CORRUPT, "cache",
                             "%s could not be repaired: remove the folder and start with an empty cache",
                             store->folder.index_path);
            goto out;
        }
    }
    AQ_TRY_GOTO(entries_read(store, mark), out);
    aq_cells_load(&store->cells, (uint32_t)cells, claim);
out:
    aq_free(claim);
    return status;
}

/* If the slab has more cells than the bookkeeping can count, the rest of it is not used. */
static enum aq_status cells_count(struct lmdb_store *store, uint64_t *out)
{
    AQ_TRY(aq_folder_cells(&store->folder, out));
    if (*out > store->cells.capacity) *out = store->cells.capacity;
    return AQ_OK;
}

static enum aq_status cache_load(struct lmdb_store *store, const struct aq_cache_config *config)
{
    const struct aq_record_head *head = aq_index_head(store->index);
    uint64_t cells, previous = head->mark_previous;
    const bool known = config->mark == head->mark_last || (config->mark > 0 && config->mark == head->mark_previous);
    if (!known) {
        return aq_fail(config->mark > 0 ? AQ_NOTFOUND : AQ_MISMATCH, "cache",
                       "%s holds marks %" PRIu64 " and %" PRIu64 " of job \"%s\", not mark %" PRIu64
                       ": resume from one of them, or start with an empty cache",
                       config->path, head->mark_last, head->mark_previous, head->name, config->mark);
    }
    if (config->mark != head->mark_last) previous = 0; /* rolled back: only this one is left */
    AQ_TRY(cells_count(store, &cells));
    if (config->mark != head->mark_last) {
        AQ_TRY(aq_index_prune(store->index, config->mark, previous, NULL, 0));
    }
    return index_load(store, config->mark, previous, cells);
}

static enum aq_status folder_load(struct lmdb_store *store, const struct aq_cache_config *config)
{
    struct aq_record_identity identity = {.job_digest = config->job_digest,
                                          .job_name = config->job_name,
                                          .value_bytes_max = config->value_bytes_max,
                                          .sealed = config->sealed};
    struct aq_record_head slab;
    const char *why;
    const enum aq_status there = aq_folder_slab_open(&store->folder, config->direct, true, &slab);
    if (there == AQ_OK) AQ_TRY(aq_record_head_match(&slab, &identity, store->folder.slab_path));
    if (there != AQ_OK && there != AQ_NOTFOUND) return there;
    if (config->fresh && there == AQ_OK) return cache_make(store, config, &identity);

    const enum aq_status found = aq_index_open(store->folder.index_path, NULL, config->samples_max, &store->index);
    if (found != AQ_OK && found != AQ_NOTFOUND) return found;
    if (found == AQ_OK) AQ_TRY(aq_record_head_match(aq_index_head(store->index), &identity, store->folder.index_path));
    if (found == AQ_NOTFOUND || config->fresh) {
        if (config->mark > 0 && !config->fresh) {
            return aq_fail(AQ_NOTFOUND, "cache", "%s holds no cache, so not mark %" PRIu64 " of job \"%s\"",
                           config->path, config->mark, config->job_name);
        }
        aq_index_close(store->index);
        store->index = NULL;
        return cache_make(store, config, &identity);
    }
    if (there == AQ_NOTFOUND || slab.nonce != aq_index_head(store->index)->nonce ||
        slab.sealed != aq_index_head(store->index)->sealed) {
        return aq_fail(AQ_CORRUPT, "cache",
                       "%s: slab and index do not belong together: remove the folder and start with an empty cache",
                       config->path);
    }
    const enum aq_status sealed = vault_load(store, config, aq_index_head(store->index), &why);
    if (sealed == AQ_NOTFOUND && config->mark == 0 && aq_index_head(store->index)->mark_last == 0) {
        aq_index_close(store->index);
        store->index = NULL;
        return cache_make(store, config, &identity);
    }
    if (sealed == AQ_NOTFOUND)
        return aq_fail(config->mark > 0 ? AQ_NOTFOUND : AQ_MISMATCH, "cache", "%s is %s", config->path, why);
    AQ_TRY(sealed);
    AQ_TRY(aq_record_size_match(&slab, &identity, store->folder.slab_path));
    AQ_TRY(aq_record_size_match(aq_index_head(store->index), &identity, store->folder.index_path));
    return cache_load(store, config);
}

enum aq_status lmdb_store_open(const struct aq_cache_config *config, struct aq_cache **out)
{
    enum aq_status status = AQ_OK;
    struct lmdb_store *store;
    AQ_TRY(AQ_NEW(1, &store));
    store->base.store = &aq_store_lmdb;
    store->folder = (struct aq_folder){.lock_fd = -1, .slab_fd = -1};
    store->cell_bytes = aq_record_blocks(config->sealed, config->value_bytes_max);
    store->slot_count = config->slots;
    store->cells_max = config->bytes_max > 0 ? config->bytes_max / store->cell_bytes : UINT64_MAX;
    AQ_TRY_GOTO(memory_take(store, config), out);
    AQ_TRY_GOTO(aq_folder_open(config->path, true, &store->folder), out);
    AQ_TRY_GOTO(folder_load(store, config), out);
    store->index_bytes = aq_index_bytes(store->index);
    store->base.stats.lost = aq_index_head(store->index)->lost != 0;
    const struct aq_disk_config disk = {.fd = store->folder.slab_fd,
                                        .memory = store->memory,
                                        .slot_bytes = store->cell_bytes,
                                        .slots = config->slots,
                                        .depth = config->depth,
                                        .index = store->index,
                                        .eventcount = config->eventcount,
                                        .trace = config->trace,
                                        .path = store->folder.slab_path,
                                        .vault = store->vault};
    AQ_TRY_GOTO(aq_disk_open(&disk, &store->disk), out);
    *out = &store->base;
    return AQ_OK;
out:
    lmdb_store_close(&store->base);
    return status;
}

void lmdb_store_close(struct aq_cache *cache)
{
    struct lmdb_store *store = (struct lmdb_store *)cache;
    aq_disk_close(store->disk);
    aq_index_close(store->index);
    aq_vault_close(store->vault);
    aq_folder_close(&store->folder);
    aq_pages_give(&store->pages, store->memory, store->memory_bytes);
    aq_unmap(store->tables, store->tables_bytes);
    aq_free(store);
}
