/*
 * test_io_errors.c -- the message cache while its disk fails, at every call, and after a crash between any two.
 *
 * One story: open, put, mark, put and drop, mark, ... It runs once for each call that it makes into its folder, and
 * that call fails (or the machine does). Whatever fails is tried once more, as the disk is well by then. In all of it:
 *
 *   - a mark that was made names messages that are there, bit for bit, and nothing else is there;
 *   - what fails has the status of its cause, and says it;
 *   - a failed mark leaves the one before as it was, whatever is put after it;
 *   - after a crash the last mark can be opened, and work goes on from it.
 *
 * test_io_errors [disk]: on the disk of $TMPDIR and past its page cache; else in memory, where files are quickly made.
 */
#include "cache_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io_fault.h"
#include "sample.h"

enum { SAMPLES = 9, BYTES = 9000, SLOTS = 6, CALLS_MAX = 1000, MARKS = 4 };

/* What is there at a mark; version 0: nothing is. */
struct state {
    uint64_t mark;
    uint64_t version[SAMPLES];
};

static char root[KIT_PATH], path[KIT_PATH + 8], copy[KIT_PATH + 16];
static struct state now, pending, kept[2], crashed[3]; /* kept: the last mark, and the one before */
static uint64_t failures;                              /* statuses that were told                 */
static enum io_fault_kind kind;
static int injected;
static uint64_t number;
static bool rings, said, on_disk, afresh;

static const char *const KINDS[] = {"none", "error", "interrupt", "short", "full", "kill", "power", "mixed"};

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (condition) break;                                                                                          \
        printf("%s:%d: %s\n  %s %s at call %llu (%s), %s; last error: %s\n", __FILE__, __LINE__, #condition,           \
               KINDS[kind], injected ? strerror(injected) : "", (unsigned long long)number, io_fault_call(),           \
               rings ? "with a ring" : "without a ring", kit_log_last());                                              \
        fflush(stdout);                                                                                                \
        _exit(1);                                                                                                      \
    } while (0)

static void config_of(const char *folder, uint64_t mark, struct aq_cache_config *out)
{
    kit_config(root, NULL, out);
    out->path = folder;
    out->mark = mark;
    out->samples_max = SAMPLES + 1;
    out->value_bytes_max = BYTES;
    out->slots = SLOTS;
    out->direct = on_disk;
}

/* A status that the injected error may have: its own, or (of reads) that of a message that is lost. */
static void failed(enum aq_status status)
{
    failures++;
    const enum aq_status wanted = kind == IO_FAULT_INTERRUPT                     ? AQ_AGAIN
                                  : kind == IO_FAULT_SHORT || injected == ENOSPC ? AQ_NOSPC
                                                                                 : AQ_IO;
    CHECK(status == wanted || status == AQ_CORRUPT || (kind != IO_FAULT_ERROR && status == AQ_IO));
}

static void on_crash(void)
{
    crashed[0] = kept[0];
    crashed[1] = kept[1];
    crashed[2] = pending;
}

static enum aq_status peek_all(struct aq_cache *cache, struct state *out)
{
    for (uint64_t sample = 0; sample < SAMPLES; sample++) {
        struct aq_cache_entry entry;
        const struct aq_cache_key key = kit_key(sample);
        out->version[sample] = aq_cache_peek(cache, &key, &entry) == AQ_OK ? entry.version : 0;
    }
    return AQ_OK;
}

static void same_as(struct aq_cache *cache, const struct state *state)
{
    for (uint64_t sample = 0; sample < SAMPLES; sample++) {
        struct aq_cache_entry entry;
        const struct aq_cache_key key = kit_key(sample);
        if (state->version[sample] > 0)
            CHECK(kit_same(cache, sample, state->version[sample], BYTES));
        else
            CHECK(aq_cache_get(cache, &key, kit_deadline(), &entry) == AQ_NOTFOUND);
    }
}

static enum aq_status open_at(const char *folder, uint64_t mark, bool fresh, struct aq_cache **out)
{
    struct aq_cache_config config;
    config_of(folder, mark, &config);
    config.fresh = fresh;
    *out = NULL;
    return aq_cache_open(&config, out);
}

static void *slot_of(struct aq_cache *cache)
{
    void *slot;
    CHECK(aq_cache_slot(cache, kit_deadline(), &slot) == AQ_OK);
    return slot;
}

/* Twice where the first try meets the failing call. */
static void put_slot(struct aq_cache *cache, uint64_t sample, uint64_t version, void *slot)
{
    const struct aq_cache_key key = kit_key(sample);
    const uint64_t bytes = kit_bytes(sample, version, BYTES);
    kit_fill(sample, version, slot, bytes);
    const uint64_t digest = aq_digest(slot, bytes);
    enum aq_status status = aq_cache_put(cache, &key, version, digest, slot, bytes);
    if (status != AQ_OK) {
        failed(status);
        status = aq_cache_put(cache, &key, version, digest, slot, bytes);
    }
    CHECK(status == AQ_OK);
    now.version[sample] = version;
}

static void put(struct aq_cache *cache, uint64_t sample, uint64_t version)
{
    put_slot(cache, sample, version, slot_of(cache));
}

static void get(struct aq_cache *cache, uint64_t sample)
{
    struct aq_cache_entry entry;
    const struct aq_cache_key key = kit_key(sample);
    enum aq_status status = aq_cache_get(cache, &key, kit_deadline(), &entry);
    if (status == AQ_OK) {
        CHECK(kit_is(&entry, sample, now.version[sample], BYTES)); /* its write may still fail: then it is lost */
        aq_cache_release(cache, &entry);
        return;
    }
    CHECK(status == AQ_CORRUPT || status == AQ_NOTFOUND);
    if (status == AQ_CORRUPT) failed(status);
    CHECK(status == AQ_NOTFOUND || aq_cache_get(cache, &key, kit_deadline(), &entry) == AQ_NOTFOUND);
    CHECK(now.version[sample] == 0 || kind == IO_FAULT_ERROR); /* lost to the failed call, and never an older one */
    now.version[sample] = 0;
}

static void check_copy(const struct state *state)
{
    struct aq_cache *cache;
    if (state->mark == 0) return;
    io_fault_copy(path, copy);
    CHECK(open_at(copy, state->mark, false, &cache) == AQ_OK);
    same_as(cache, state);
    aq_cache_close(cache);
    io_fault_remove(copy);
}

/* Where LMDB could not write its meta page, it takes nothing more: the run ends, and resumes from the mark before. */
static bool resumed(struct aq_cache **cache)
{
    if (!kit_log_has("MDB_PANIC")) return false;
    said = kit_log_has(strerror(injected));
    kit_log_clear();
    aq_cache_close(*cache);
    CHECK(open_at(path, kept[0].mark, false, cache) == AQ_OK);
    now = kept[0];
    same_as(*cache, &now);
    return true;
}

/* A mark while writes are still on their way; a failed one leaves the marks before, whatever comes after it. */
static struct aq_cache *mark_all(struct aq_cache *cache, uint64_t mark, uint64_t version)
{
    for (int try = 0; try < 4; try++) {
        void *const slots[3] = {slot_of(cache), slot_of(cache), slot_of(cache)};
        io_fault_hold(true);
        put_slot(cache, mark % SAMPLES, version + (uint64_t)try, slots[0]);
        put_slot(cache, mark % SAMPLES, version + 20 + (uint64_t)try,
                 slots[1]); /* its cell leaves when it is written */
        put_slot(cache, (mark + 1) % SAMPLES, version + (uint64_t)try, slots[2]);
        io_fault_lock();
        pending.mark = mark;
        peek_all(cache, &pending);
        io_fault_unlock();
        enum aq_status status = aq_cache_mark_begin(cache, mark);
        io_fault_hold(false);
        if (status == AQ_OK)
            while ((status = aq_cache_mark_done(cache)) == AQ_AGAIN)
                usleep(50);
        if (status == AQ_OK) {
            io_fault_lock();
            kept[1] = kept[0];
            kept[0] = pending;
            pending.mark = 0;
            io_fault_unlock();
            return cache;
        }
        failed(status);
        if (resumed(&cache)) continue;
        for (uint64_t sample = 0; sample < SAMPLES; sample += 2)
            put(cache, sample, version + 50 + (uint64_t)try);
        check_copy(&kept[0]);
    }
    CHECK(!"a mark can be made when the disk is well again");
    return cache;
}

static void story(void)
{
    struct aq_cache *cache;
    enum aq_status status = open_at(path, 0, false, &cache);
    if (status != AQ_OK) {
        failed(status);
        status = open_at(path, 0, false, &cache);
    }
    CHECK(status == AQ_OK);
    for (uint64_t mark = 1; mark <= MARKS; mark++) {
        for (uint64_t sample = 0; sample < SAMPLES; sample += mark < 3 ? 1 : 2)
            put(cache, sample, 100 * mark);
        if (mark == 2) {
            const struct aq_cache_key key = kit_key(5);
            CHECK(aq_cache_drop(cache, &key) == AQ_OK);
            now.version[5] = 0;
        }
        for (uint64_t sample = 0; sample < SAMPLES; sample++)
            get(cache, sample);
        cache = mark_all(cache, mark, 100 * mark + 10);
    }
    aq_cache_close(cache);
}

/* A cache with a mark is begun afresh. */
static void story_afresh(void)
{
    struct aq_cache *cache;
    enum aq_status status = open_at(path, 0, true, &cache);
    if (status != AQ_OK) {
        failed(status);
        status = open_at(path, 0, true, &cache);
    }
    CHECK(status == AQ_OK);
    for (uint64_t sample = 0; sample < SAMPLES; sample++)
        put(cache, sample, 500);
    cache = mark_all(cache, 1, 510);
    aq_cache_close(cache);
}

/* The folder of a crash: its last mark, or one that was being made, and on from there. */
static void recover(const char *folder)
{
    struct aq_cache *cache = NULL;
    if (crashed[2].mark > 0 && open_at(folder, crashed[2].mark, false, &cache) == AQ_OK) {
        same_as(cache, &crashed[2]);
        aq_cache_close(cache);
    }
    const uint64_t mark = crashed[0].mark;
    enum aq_status status = open_at(folder, mark, false, &cache);
    if (afresh && status == AQ_OK && mark == 0) { /* or it had not begun */
        struct state there;
        peek_all(cache, &there);
        for (uint64_t sample = 0; sample < SAMPLES; sample++)
            CHECK(there.version[sample] == 0);
    }
    if (mark == 0 && status == AQ_MISMATCH) status = open_at(folder, 0, true, &cache); /* as a run that begins anew */
    CHECK(status == AQ_OK);
    same_as(cache, &crashed[0]);
    struct state after = crashed[0];
    for (uint64_t sample = 0; sample < SAMPLES; sample += 2) {
        CHECK(kit_put(cache, sample, 900, BYTES) == AQ_OK);
        after.version[sample] = 900;
    }
    CHECK(kit_mark(cache, mark + 10) == AQ_OK);
    same_as(cache, &after);
    aq_cache_close(cache);
    CHECK(open_at(folder, mark + 10, false, &cache) == AQ_OK);
    same_as(cache, &after);
    aq_cache_close(cache);
    if (mark == 0) return;
    CHECK(open_at(folder, mark, false, &cache) == AQ_OK);
    same_as(cache, &crashed[0]);
    aq_cache_close(cache);
}

static void reopen(void)
{
    struct aq_cache *cache;
    for (int i = 0; i < (afresh ? 1 : 2); i++) {
        CHECK(open_at(path, kept[i].mark, false, &cache) == AQ_OK);
        same_as(cache, &kept[i]);
        aq_cache_close(cache);
    }
}

/* The story with its n-th call failing. False: it has no n-th call. */
static bool one(void)
{
    char inner[KIT_PATH + 32];
    memset(&now, 0, sizeof now);
    memset(&pending, 0, sizeof pending);
    memset(kept, 0, sizeof kept);
    memset(crashed, 0, sizeof crashed);
    failures = 0;
    said = false;
    kit_log_clear();
    kit_folder(!on_disk && access("/dev/shm", W_OK) == 0 ? "/dev/shm" : NULL, root);
    snprintf(path, sizeof path, "%s/cache", root);
    snprintf(copy, sizeof copy, "%s-copy", root);
    if (afresh) {
        struct aq_cache *cache;
        CHECK(open_at(path, 0, false, &cache) == AQ_OK);
        for (uint64_t sample = 0; sample < SAMPLES; sample++)
            put(cache, sample, 7);
        CHECK(kit_mark(cache, 1) == AQ_OK);
        aq_cache_close(cache);
        memset(&now, 0, sizeof now);
    }
    const int descriptors = io_fault_descriptors();
    io_fault_begin(root, kind, number, injected, copy, on_crash);
    if (afresh)
        story_afresh();
    else
        story();
    const bool fired = io_fault_end();
    CHECK(io_fault_descriptors() == descriptors);
    if (fired && io_fault_must_be_told()) CHECK(failures > 0);
    if (failures > 0 && injected)
        CHECK(said || kit_log_has(strerror(injected)) || (injected == ENOSPC && kit_log_has("full")));
    if (kind != IO_FAULT_ERROR && !strstr(io_fault_call(), ".mdb")) CHECK(failures == 0); /* LMDB does not go on */
    if (fired && kind >= IO_FAULT_KILL) {
        snprintf(inner, sizeof inner, "%s/cache", copy);
        recover(inner);
        io_fault_remove(copy);
    } else {
        reopen();
    }
    CHECK(io_fault_descriptors() == descriptors);
    io_fault_remove(root);
    return fired;
}

static void every_call(bool with_ring, enum io_fault_kind which, int error)
{
    const uint64_t begin_ns = aq_clock_ns();
    rings = with_ring;
    kind = which;
    injected = error;
    io_fault_rings(rings);
    const size_t step = sample_every(3); /* each kind of fault, and each error, begins with another call */
    for (number = 1 + ((uint64_t)which + rings + (error == ENOSPC) + afresh) % step; one(); number += step)
        CHECK(number < CALLS_MAX);
    printf("%s%s%s%s %s: up to call %llu, %.1f s\n", afresh ? "afresh, " : "", KINDS[kind], error ? " " : "",
           error ? strerror(error) : "", rings ? "with a ring" : "without a ring", (unsigned long long)number - 1,
           (double)(aq_clock_ns() - begin_ns) * 1e-9);
    fflush(stdout);
}

int main(int count, char **words)
{
    on_disk = count > 1 && strcmp(words[1], "disk") == 0;
    kit_log_start();
    setenv("AQ_LOG", "1", 1);
    for (int ring = 0; ring < 2; ring++) {
        every_call(ring, IO_FAULT_ERROR, EIO);
        every_call(ring, IO_FAULT_INTERRUPT, 0);
        every_call(ring, IO_FAULT_SHORT, 0);
        every_call(ring, IO_FAULT_POWER, 0);
        every_call(ring, IO_FAULT_ERROR, ENOSPC);
        every_call(ring, IO_FAULT_KILL, 0);
        every_call(ring, IO_FAULT_MIXED, 0);
    }
    afresh = true;
    every_call(false, IO_FAULT_ERROR, EIO);
    every_call(false, IO_FAULT_KILL, 0);
    every_call(false, IO_FAULT_POWER, 0);
    every_call(false, IO_FAULT_MIXED, 0);
    return 0;
}
