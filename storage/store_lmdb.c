/*
 * store_lmdb.c -- the store on disk: messages in cells of a slab, read and written past the page cache; LMDB has the
 * number of the cell.
 *
 * The life of a slot:
 *
 *     FREE -> LENT (aq_cache_slot) -> WRITING (put) -> READY -> FREE (when another message needs the buffer)
 *     FREE -> READING (prefetch, get) -> READY
 *
 * Invariants. An entry has at most one slot, and that slot names the entry. A slot whose message was replaced or
 * dropped names no entry, and becomes FREE when the storage thread and the callers have let go of it. A cell is never
 * written again while a kept mark may need it, nor while an older write to it is under way. Why LMDB holds no message:
 * docs/DECISIONS.md 0003.
 */
#include "store_lmdb.h"

#include <inttypes.h>
#include <string.h>

/* Grow the slab by this much at a time: few calls of fallocate, and few extents. */
enum { GROW_BYTES = 256 << 20 };

static struct lmdb_store *store_of(struct aq_cache *cache)
{
    return (struct lmdb_store *)cache;
}

static uint8_t *bytes_of(const struct lmdb_store *store, uint32_t slot)
{
    return store->memory + store->cell_bytes * slot;
}

static uint32_t slot_of(const struct lmdb_store *store, const void *bytes)
{
    const uint64_t offset = (uint64_t)((const uint8_t *)bytes - store->memory);
    AQ_ASSERT(offset % store->cell_bytes == 0 && offset / store->cell_bytes < store->slot_count);
    return (uint32_t)(offset / store->cell_bytes);
}

static void slot_clear(struct lmdb_store *store, uint32_t number)
{
    store->slots[number] = (struct lmdb_slot){.entry = AQ_STORE_NONE, .cell = AQ_STORE_NONE};
}

/* The entry lets go of its slot; whoever else has it keeps it. */
static void entry_leave_slot(struct lmdb_store *store, struct aq_key_entry *entry)
{
    if (entry->slot == AQ_STORE_NONE) return;
    struct lmdb_slot *slot = &store->slots[entry->slot];
    slot->entry = AQ_STORE_NONE;
    if (slot->state == SLOT_READY && slot->refs == 0) slot_clear(store, entry->slot);
    entry->slot = AQ_STORE_NONE;
}

/* The entry's cell is free, now or when no mark and no write needs it any more. */
static void entry_leave_cell(struct lmdb_store *store, struct aq_key_entry *entry)
{
    const uint32_t cell = entry->cell;
    struct lmdb_slot *slot = entry->slot == AQ_STORE_NONE ? NULL : &store->slots[entry->slot];
    AQ_ASSERT(cell != AQ_STORE_NONE);
    entry->cell = AQ_STORE_NONE;
    if (slot != NULL && slot->state == SLOT_WRITING && aq_cells_unseen(&store->cells, cell)) {
        slot->cell_leaves = true;
    } else {
        aq_cells_retire(&store->cells, cell);
    }
}

/* The message is lost: cold from now on. */
static void entry_drop(struct lmdb_store *store, uint32_t number)
{
    struct aq_key_entry *entry = &store->keys.entries[number];
    AQ_ASSERT(entry->present);
    entry_leave_cell(store, entry);
    entry_leave_slot(store, entry);
    entry->present = false;
    --store->base.stats.entries;
    store->base.stats.entry_bytes -= entry->bytes;
    lmdb_store_touch(store, number);
}

/* Dropped against the caller's will: a neighbour may hold it, and later processes must know that. */
static void entry_lose(struct lmdb_store *store, uint32_t number)
{
    entry_drop(store, number);
    store->base.stats.lost = true;
}

static void write_finished(struct lmdb_store *store, uint32_t number, enum aq_status status)
{
    struct lmdb_slot *slot = &store->slots[number];
    AQ_ASSERT(slot->state == SLOT_WRITING);
    if (slot->cell_leaves) aq_cells_give(&store->cells, slot->cell);
    slot->cell_leaves = false;
    slot->state = SLOT_READY;
    if (status != AQ_OK) { /* the storage thread has said it; the sample is cold, and the next put or mark answers it */
        ++store->failures;
        store->failure = status;
        if (slot->entry != AQ_STORE_NONE) entry_lose(store, slot->entry);
    }
    if (slot->entry == AQ_STORE_NONE && slot->refs == 0) slot_clear(store, number);
}

static void read_finished(struct lmdb_store *store, uint32_t number, enum aq_status status)
{
    struct lmdb_slot *slot = &store->slots[number];
    AQ_ASSERT(slot->state == SLOT_READING && slot->refs == 0);
    slot->state = SLOT_READY;
    slot->status = status;
    if (slot->entry == AQ_STORE_NONE) slot_clear(store, number);
}

static void mark_finished(struct lmdb_store *store, enum aq_status status)
{
    struct aq_key_table *keys = &store->keys;
    if (status == AQ_OK)
        aq_cells_mark_made(&store->cells);
    else
        aq_cells_mark_failed(&store->cells);
    for (uint64_t i = 0; i < store->marking_count; ++i) {
        const uint32_t number = store->marking[i];
        const struct aq_key_entry *entry = &keys->entries[number];
        if (status != AQ_OK)
            lmdb_store_touch(store, number);
        else if (!entry->present && !entry->dirty)
            aq_key_table_remove(keys, number);
    }
    store->marking_count = 0;
    store->index_bytes = aq_index_bytes(store->index);
}

/* Takes in what the storage thread has done; the status of a finished mark goes to *mark if that is not NULL. */
static bool events_take(struct lmdb_store *store, enum aq_status *mark)
{
    struct aq_disk_event event;
    bool mark_seen = false;
    while (!mark_seen && aq_disk_poll(store->disk, &event)) {
        if (event.slot == AQ_DISK_MARK) {
            mark_finished(store, event.status);
            *mark = event.status;
            mark_seen = true;
        } else if (store->slots[event.slot].state == SLOT_WRITING) {
            write_finished(store, event.slot, event.status);
        } else {
            read_finished(store, event.slot, event.status);
        }
    }
    return mark_seen;
}

/* A mark may finish while a caller waits for something else: its status is kept until mark_done asks. */
static void events_take_all(struct lmdb_store *store)
{
    enum aq_status status;
    while (events_take(store, &status)) {
        store->mark_status = status;
        store->mark_finished = true;
    }
}

/* A slot for a prefetch (urgent false), or for a waiting caller. AQ_STORE_NONE: none now. */
static uint32_t slot_take(struct lmdb_store *store, bool urgent, bool *may_come)
{
    uint32_t best = AQ_STORE_NONE, last_wanted = AQ_STORE_NONE, available = 0;
    *may_come = false;
    for (uint32_t i = 0; i < store->slot_count; ++i) {
        const struct lmdb_slot *slot = &store->slots[i];
        if (slot->state == SLOT_READING || slot->state == SLOT_WRITING) *may_come = *may_come || slot->refs == 0;
        if ((slot->state != SLOT_FREE && slot->state != SLOT_READY) || slot->refs > 0) continue;
        if (slot->wanted) {
            if (last_wanted == AQ_STORE_NONE || slot->tick > store->slots[last_wanted].tick) last_wanted = i;
            continue;
        }
        ++available;
        if (best == AQ_STORE_NONE || slot->tick < store->slots[best].tick) best = i; /* a free one has tick 0 */
    }
    if (available < store->base.stats.slots_free_low) store->base.stats.slots_free_low = available;
    /* A waiting caller may take the message that was prefetched last: it is needed last, and is read again then. */
    if (best == AQ_STORE_NONE && urgent && !*may_come) best = last_wanted;
    if (best == AQ_STORE_NONE) return best;
    if (store->slots[best].entry != AQ_STORE_NONE) store->keys.entries[store->slots[best].entry].slot = AQ_STORE_NONE;
    slot_clear(store, best);
    store->slots[best].tick = ++store->tick;
    return best;
}

/* Waits for a slot. AQ_AGAIN: every one is with the caller. */
static enum aq_status slot_wait(struct lmdb_store *store, uint64_t deadline_ns, uint32_t *out)
{
    uint64_t begin_ns = 0;
    for (;;) {
        bool may_come;
        events_take_all(store);
        *out = slot_take(store, true, &may_come);
        if (*out != AQ_STORE_NONE || !may_come) break;
        if (begin_ns == 0) begin_ns = aq_clock_ns();
        const enum aq_status status = aq_disk_wait(store->disk, deadline_ns);
        if (status != AQ_OK) {
            store->base.stats.wait_ns += aq_clock_ns() - begin_ns;
            return status;
        }
    }
    if (begin_ns > 0) store->base.stats.wait_ns += aq_clock_ns() - begin_ns;
    return *out == AQ_STORE_NONE ? AQ_AGAIN : AQ_OK;
}

static struct aq_vault_about about_of(const struct aq_key_entry *entry)
{
    return (struct aq_vault_about){
        .key = entry->key, .version = entry->version, .bytes = entry->bytes, .cell = entry->cell};
}

static void read_begin(struct lmdb_store *store, uint32_t number, uint32_t slot_number, bool wanted)
{
    struct aq_key_entry *entry = &store->keys.entries[number];
    struct lmdb_slot *slot = &store->slots[slot_number];
    slot->state = SLOT_READING;
    slot->entry = number;
    slot->cell = entry->cell;
    slot->wanted = wanted;
    entry->slot = slot_number;
    store->base.stats.read_bytes += entry->bytes;
    const struct aq_vault_about about = about_of(entry);
    aq_disk_read(store->disk, slot_number, aq_folder_offset(store->cell_bytes, entry->cell), &about);
}

static struct aq_key_entry *entry_find(struct lmdb_store *store, const struct aq_cache_key *key, uint32_t *number)
{
    *number = aq_key_table_find(&store->keys, key);
    if (*number == AQ_STORE_NONE || !store->keys.entries[*number].present) return NULL;
    return &store->keys.entries[*number];
}

static enum aq_status lmdb_prefetch(struct aq_cache *cache, const struct aq_cache_key *key)
{
    struct lmdb_store *store = store_of(cache);
    uint32_t number;
    bool may_come;
    events_take_all(store);
    struct aq_key_entry *entry = entry_find(store, key, &number);
    if (entry == NULL) return AQ_OK;
    if (entry->slot != AQ_STORE_NONE) {
        store->slots[entry->slot].wanted = true;
        return AQ_OK;
    }
    const uint32_t slot = slot_take(store, false, &may_come);
    if (slot == AQ_STORE_NONE) return AQ_AGAIN;
    read_begin(store, number, slot, true);
    return AQ_OK;
}

/* The bytes have come, or not: is this the message that was put? Checked once for each read. */
static enum aq_status slot_check(struct lmdb_store *store, uint32_t number)
{
    const struct aq_key_entry *entry = &store->keys.entries[number];
    struct lmdb_slot *slot = &store->slots[entry->slot];
    if (slot->checked) return AQ_OK;
    const uint64_t begin_ns = aq_clock_ns();
    const uint64_t digest = slot->status == AQ_OK ? aq_digest(bytes_of(store, entry->slot), entry->bytes) : 0;
    store->base.stats.check_ns += aq_clock_ns() - begin_ns;
    if (slot->status == AQ_OK && digest == entry->digest) {
        slot->checked = true;
        return AQ_OK;
    }
    ++store->base.stats.corrupt;
    /* No aq_fail: the other side heals it, and the first failure that ends a run must be that run's cause. */
    aq_log("cache", 0,
           "%s: sample %" PRIu64 " edge %" PRIu32 " variant %u side %u version %" PRIu64
           ": %s; the sample counts as never seen",
           store->folder.slab_path, entry->key.sample, entry->key.edge, entry->key.variant, entry->key.side,
           entry->version,
           slot->status == AQ_OK ? "its bytes have changed since they were written"
           : store->vault && slot->status == AQ_CORRUPT
               ? "its encryption check failed: it has changed since it was written"
               : "its bytes cannot be read");
    entry_lose(store, number);
    return AQ_CORRUPT;
}

static enum aq_status lmdb_get(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t deadline_ns,
                               struct aq_cache_entry *out)
{
    struct lmdb_store *store = store_of(cache);
    struct aq_key_entry *entry;
    uint32_t number;
    uint64_t begin_ns = 0;
    events_take_all(store);
    while ((entry = entry_find(store, key, &number)) != NULL) {
        if (entry->slot == AQ_STORE_NONE) {
            uint32_t slot;
            AQ_TRY(slot_wait(store, deadline_ns, &slot));
            if (!entry->present) { /* a failed write dropped it meanwhile */
                slot_clear(store, slot);
                continue;
            }
            read_begin(store, number, slot, true);
        }
        if (store->slots[entry->slot].state != SLOT_READING) break;
        if (begin_ns == 0) begin_ns = aq_clock_ns();
        const enum aq_status status = aq_disk_wait(store->disk, deadline_ns);
        if (status != AQ_OK) {
            cache->stats.wait_ns += aq_clock_ns() - begin_ns;
            return status;
        }
        events_take_all(store);
    }
    if (begin_ns > 0) cache->stats.wait_ns += aq_clock_ns() - begin_ns;
    if (entry == NULL) return AQ_NOTFOUND;
    if (begin_ns == 0) ++cache->stats.prefetched;
    AQ_TRY(slot_check(store, number));
    struct lmdb_slot *slot = &store->slots[entry->slot];
    slot->wanted = false;
    slot->tick = ++store->tick;
    ++slot->refs;
    *out = (struct aq_cache_entry){.bytes = bytes_of(store, entry->slot),
                                   .byte_count = entry->bytes,
                                   .version = entry->version,
                                   .digest = entry->digest,
                                   .slot = entry->slot};
    return AQ_OK;
}

static void lmdb_release(struct aq_cache *cache, uint32_t number)
{
    struct lmdb_store *store = store_of(cache);
    AQ_ASSERT(number < store->slot_count && store->slots[number].refs > 0);
    struct lmdb_slot *slot = &store->slots[number];
    --slot->refs;
    if (slot->refs == 0 && slot->entry == AQ_STORE_NONE && slot->state == SLOT_READY) slot_clear(store, number);
}

static enum aq_status lmdb_peek(struct aq_cache *cache, const struct aq_cache_key *key, struct aq_cache_entry *out)
{
    struct lmdb_store *store = store_of(cache);
    uint32_t number;
    events_take_all(store);
    const struct aq_key_entry *entry = entry_find(store, key, &number);
    if (entry == NULL) return AQ_NOTFOUND;
    *out = (struct aq_cache_entry){
        .byte_count = entry->bytes, .version = entry->version, .digest = entry->digest, .slot = AQ_STORE_NONE};
    return AQ_OK;
}

static enum aq_status lmdb_slot(struct aq_cache *cache, uint64_t deadline_ns, void **out)
{
    struct lmdb_store *store = store_of(cache);
    uint32_t slot;
    AQ_TRY(slot_wait(store, deadline_ns, &slot));
    store->slots[slot].state = SLOT_LENT;
    *out = bytes_of(store, slot);
    return AQ_OK;
}

static void lmdb_slot_return(struct aq_cache *cache, void *bytes)
{
    struct lmdb_store *store = store_of(cache);
    const uint32_t slot = slot_of(store, bytes);
    AQ_ASSERT(store->slots[slot].state == SLOT_LENT);
    slot_clear(store, slot);
}

static enum aq_status full_say(struct lmdb_store *store, const char *what)
{
    if (store->full_said) return AQ_NOSPC;
    store->full_said = true;
    return aq_fail(AQ_NOSPC, "cache",
                   "%s: no room after %" PRIu64 " messages of %" PRIu64 " bytes, which are still there: %s",
                   store->folder.slab_path, store->base.stats.entries, store->cell_bytes, what);
}

/* A free cell; if no cell is free, the slab grows, by less and less as the disk fills. */
static enum aq_status cell_take(struct lmdb_store *store, uint32_t *out)
{
    struct aq_cells *cells = &store->cells;
    if (cells->free_head == AQ_STORE_NONE) {
        uint64_t more = GROW_BYTES / store->cell_bytes;
        if (more < 1) more = 1;
        const uint64_t most = store->cells_max < cells->capacity ? store->cells_max : cells->capacity;
        if (cells->count >= most) return full_say(store, "the limit of the cache (bytes_max) is reached");
        if (more > most - cells->count) more = most - cells->count;
        enum aq_status status = AQ_NOSPC;
        for (; more > 0 && status == AQ_NOSPC; more /= 2) {
            status = aq_folder_cells_grow(&store->folder, cells->count + more);
            if (status == AQ_OK) aq_cells_grow(cells, (uint32_t)more);
        }
        char reason[160];
        if (status == AQ_NOSPC) return full_say(store, aq_errno_text(store->folder.grow_errno, reason, sizeof reason));
        AQ_TRY(status);
    }
    store->full_said = false;
    *out = aq_cells_take(cells);
    return AQ_OK;
}

/* The failure of an earlier write is returned once. */
static enum aq_status failure_tell(struct lmdb_store *store)
{
    const enum aq_status status = store->failure;
    store->failure = AQ_OK;
    return status;
}

static enum aq_status lmdb_put(struct aq_cache *cache, const struct aq_cache_key *key, uint64_t version,
                               uint64_t digest, void *bytes, uint64_t byte_count)
{
    struct lmdb_store *store = store_of(cache);
    const uint32_t slot_number = slot_of(store, bytes);
    struct lmdb_slot *slot = &store->slots[slot_number];
    uint32_t cell = AQ_STORE_NONE;
    AQ_ASSERT(slot->state == SLOT_LENT);
    events_take_all(store);
    AQ_TRY(failure_tell(store));
    AQ_TRY(cell_take(store, &cell));
    const uint32_t number = aq_key_table_add(&store->keys, key);
    if (number == AQ_STORE_NONE) {
        aq_cells_give(&store->cells, cell);
        return aq_fail(AQ_NOSPC, "cache", "%s: more than samples_max = %" PRIu32 " messages", store->folder.slab_path,
                       store->keys.capacity);
    }
    struct aq_key_entry *entry = &store->keys.entries[number];
    if (entry->present) {
        entry_leave_cell(store, entry);
        entry_leave_slot(store, entry);
        cache->stats.entry_bytes -= entry->bytes;
    } else {
        ++cache->stats.entries;
    }
    cache->stats.entry_bytes += byte_count;
    entry->present = true;
    entry->version = version;
    entry->digest = digest;
    entry->bytes = (uint32_t)byte_count;
    entry->cell = cell;
    entry->slot = slot_number;
    lmdb_store_touch(store, number);

    const uint64_t blocks = aq_store_blocks(byte_count);
    memset((uint8_t *)bytes + byte_count, 0, blocks - byte_count); /* no old bytes go to disk */
    *slot = (struct lmdb_slot){
        .state = SLOT_WRITING, .entry = number, .cell = cell, .checked = true, .tick = ++store->tick};
    const struct aq_vault_about about = about_of(entry);
    aq_disk_write(store->disk, slot_number, aq_folder_offset(store->cell_bytes, cell), &about);
    return AQ_OK;
}

static enum aq_status lmdb_drop(struct aq_cache *cache, const struct aq_cache_key *key)
{
    struct lmdb_store *store = store_of(cache);
    uint32_t number;
    events_take_all(store);
    if (entry_find(store, key, &number) != NULL) entry_drop(store, number);
    return AQ_OK;
}

static enum aq_status lmdb_mark_begin(struct aq_cache *cache, uint64_t mark)
{
    struct lmdb_store *store = store_of(cache);
    events_take_all(store);
    AQ_TRY(failure_tell(store));
    AQ_ASSERT(store->marking_count == 0);
    for (uint64_t i = 0; i < store->dirty_count; ++i) {
        const uint32_t number = store->dirty[i];
        struct aq_key_entry *entry = &store->keys.entries[number];
        uint64_t mask = 0;
        if (store->vault) AQ_TRY(aq_vault_mask(store->vault, &entry->key, entry->version, &mask));
        store->changes[i] = (struct aq_index_change){.key = entry->key,
                                                     .version = entry->version,
                                                     .digest = entry->digest ^ mask,
                                                     .bytes = entry->bytes,
                                                     .cell = entry->present ? entry->cell : AQ_STORE_NONE};
    }
    for (uint64_t i = 0; i < store->dirty_count; ++i)
        store->keys.entries[store->dirty[i]].dirty = false;
    uint32_t *const list = store->marking;
    store->marking = store->dirty;
    store->marking_count = store->dirty_count;
    store->dirty = list;
    store->dirty_count = 0;
    store->mark_finished = false;
    aq_cells_mark_begun(&store->cells);
    const struct aq_disk_mark request = {.mark = mark,
                                         .changes = store->changes,
                                         .count = store->marking_count,
                                         .entries = cache->stats.entries,
                                         .lost = cache->stats.lost,
                                         .failures_known = store->failures};
    aq_disk_mark(store->disk, &request);
    return AQ_OK;
}

static enum aq_status lmdb_mark_done(struct aq_cache *cache)
{
    struct lmdb_store *store = store_of(cache);
    events_take_all(store);
    return store->mark_finished ? store->mark_status : AQ_AGAIN;
}

static void lmdb_stats(const struct aq_cache *cache, struct aq_cache_stats *out)
{
    const struct lmdb_store *store = (const struct lmdb_store *)cache;
    out->file_bytes = AQ_FOLDER_HEAD_BYTES + store->cell_bytes * store->cells.count + store->index_bytes;
}

const struct aq_store aq_store_lmdb = {
    .name = "lmdb",
    .durable = true,
    .open = lmdb_store_open,
    .close = lmdb_store_close,
    .prefetch = lmdb_prefetch,
    .get = lmdb_get,
    .release = lmdb_release,
    .peek = lmdb_peek,
    .slot = lmdb_slot,
    .put = lmdb_put,
    .slot_return = lmdb_slot_return,
    .drop = lmdb_drop,
    .mark_begin = lmdb_mark_begin,
    .mark_done = lmdb_mark_done,
    .stats = lmdb_stats,
    .measure = lmdb_store_measure,
};
