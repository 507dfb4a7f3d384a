/*
 * test_cache_cells.c -- the cache's bookkeeping against a model of it: which cell may be written when, what failed
 * marks leave, what goes to disk beside a message, and files that do not belong together.
 */
#include "cache_kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cells.h"
#include "index.h"

enum { KEYS = 12, CELLS = 200, ROUNDS = 20000 };

static char folder[KIT_PATH], path[KIT_PATH];

static int each_setup(void **state)
{
    (void)state;
    kit_folder(NULL, folder);
    kit_log_clear();
    return 0;
}

static int each_teardown(void **state)
{
    (void)state;
    kit_remove(folder);
    return 0;
}

/* ---- cells ---- */

/* What holds which cell: the messages now, the two marks that are kept, the one that is being made. */
struct model {
    uint32_t now[KEYS], last[KEYS], previous[KEYS], making[KEYS];
    bool marking;
};

static bool held(const uint32_t *by, uint32_t cell)
{
    for (int k = 0; k < KEYS; k++)
        if (by[k] == cell) return true;
    return false;
}

static bool needed(const struct model *m, uint32_t cell)
{
    return held(m->last, cell) || held(m->previous, cell) || (m->marking && held(m->making, cell));
}

static void put(struct aq_cells *cells, struct model *m, uint32_t key)
{
    if (cells->free_head == AQ_STORE_NONE) aq_cells_grow(cells, 1);
    const uint32_t cell = aq_cells_take(cells), old = m->now[key];
    assert_false(needed(m, cell) || held(m->now, cell));
    m->now[key] = cell;
    if (old == AQ_STORE_NONE) return;
    const bool unseen = !needed(m, old);
    assert_int_equal(aq_cells_unseen(cells, old), unseen);
    assert_int_equal(aq_cells_retire(cells, old), unseen);
}

static void mark_end(struct aq_cells *cells, struct model *m, bool made)
{
    m->marking = false;
    if (made) {
        memcpy(m->previous, m->last, sizeof m->last);
        memcpy(m->last, m->making, sizeof m->last);
        aq_cells_mark_made(cells);
    } else {
        aq_cells_mark_failed(cells);
    }
}

static void mark_begin(struct aq_cells *cells, struct model *m)
{
    memcpy(m->making, m->now, sizeof m->now);
    m->marking = true;
    aq_cells_mark_begun(cells);
}

static void test_no_cell_is_given_while_a_mark_needs_it(void **state)
{
    struct aq_arena arena = {0};
    struct aq_cells cells;
    struct model m;
    void *memory;
    const struct aq_rng_key rng = aq_rng_key(5, AQ_RNG_TEST, 1, 1);
    (void)state;
    aq_cells_place(&cells, &arena, CELLS);
    assert_int_equal(aq_alloc(arena.used, &memory), AQ_OK);
    arena = (struct aq_arena){.base = memory, .bytes = arena.used};
    aq_cells_place(&cells, &arena, CELLS);
    memset(&m, 0xff, sizeof m);
    m.marking = false;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        const uint64_t what = aq_rng_below(&rng, 2 * i, 12);
        if (what > 1)
            put(&cells, &m, (uint32_t)aq_rng_below(&rng, 2 * i + 1, KEYS));
        else if (m.marking)
            mark_end(&cells, &m, what == 0);
        else
            mark_begin(&cells, &m);
    }
    if (m.marking) mark_end(&cells, &m, true);
    for (int i = 0; i < 3; i++) { /* and none is lost */
        mark_begin(&cells, &m);
        mark_end(&cells, &m, true);
    }
    uint32_t holding = 0;
    for (int k = 0; k < KEYS; k++)
        holding += m.now[k] != AQ_STORE_NONE;
    assert_int_equal(cells.free_count, cells.count - holding);
    aq_free(memory);
}

/* ---- what is on disk ---- */

static struct aq_cache *open_at(uint64_t mark)
{
    struct aq_cache_config config;
    struct aq_cache *cache = NULL;
    kit_config(folder, path, &config);
    config.mark = mark;
    config.slots = 2;
    config.depth = 1;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    return cache;
}

/* A slot that held a long message takes a short one: what is behind it in the block is zero. */
static void test_no_old_bytes_go_to_disk_behind_a_message(void **state)
{
    static uint8_t cell[1 << 14];
    char slab[2 * KIT_PATH];
    void *slot;
    (void)state;
    struct aq_cache *cache = open_at(0);
    for (uint64_t sample = 0; sample < 8; sample++) {
        const struct aq_cache_key key = kit_key(sample);
        const uint64_t bytes = sample % 4 < 2 ? 10000 : 100;
        assert_int_equal(aq_cache_slot(cache, kit_deadline(), &slot), AQ_OK);
        memset(slot, sample % 4 < 2 ? 0xee : 1, bytes);
        assert_int_equal(aq_cache_put(cache, &key, 1, aq_digest(slot, bytes), slot, bytes), AQ_OK);
    }
    assert_int_equal(kit_mark(cache, 1), AQ_OK);
    aq_cache_close(cache);
    snprintf(slab, sizeof slab, "%s/slab", path);
    const int fd = open(slab, O_RDONLY | O_CLOEXEC);
    assert_int_not_equal(fd, -1);
    uint64_t cells = 0;
    for (off_t at = 4096; pread(fd, cell, 12288, at) == 12288; at += 12288) {
        const size_t bytes = cell[0] == 0xee ? 10000 : cell[0] == 1 ? 100 : 0, blocks = (bytes + 4095) / 4096 * 4096;
        for (size_t i = bytes; i < blocks; i++)
            assert_int_equal(cell[i], 0);
        cells += bytes > 0;
    }
    close(fd);
    assert_int_equal(cells, 8);
}

/* What was read ahead is in memory until it was asked for, whatever is put meanwhile. */
static void test_message_that_was_read_ahead_stays(void **state)
{
    struct aq_cache_config config;
    struct aq_cache *cache = NULL;
    struct aq_cache_stats before, after;
    (void)state;
    kit_config(folder, path, &config);
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    for (uint64_t sample = 0; sample < 20; sample++)
        assert_int_equal(kit_put(cache, sample, 1, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 1), AQ_OK);
    for (uint64_t sample = 0; sample < 3; sample++) {
        const struct aq_cache_key key = kit_key(sample);
        assert_int_equal(aq_cache_prefetch(cache, &key), AQ_OK);
    }
    for (uint64_t sample = 30; sample < 45; sample++)
        assert_int_equal(kit_put(cache, sample, 1, 10000), AQ_OK);
    aq_cache_stats(cache, &before);
    for (uint64_t sample = 0; sample < 3; sample++)
        assert_true(kit_same(cache, sample, 1, 10000));
    aq_cache_stats(cache, &after);
    assert_int_equal(after.read_bytes, before.read_bytes);
    aq_cache_close(cache);
}

static void test_cell_of_two_messages_is_nobodys(void **state)
{
    char name[2 * KIT_PATH];
    struct aq_index *index;
    struct aq_cache_stats stats;
    struct aq_cache_entry entry;
    (void)state;
    struct aq_cache *cache = open_at(0);
    for (uint64_t sample = 0; sample < 4; sample++)
        assert_int_equal(kit_put(cache, sample, 1, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 1), AQ_OK);
    aq_cache_close(cache);
    snprintf(name, sizeof name, "%s/index.mdb", path);
    assert_int_equal(aq_index_open(name, NULL, 64, &index), AQ_OK);
    struct aq_index_change changes[2];
    for (int i = 0; i < 2; i++)
        changes[i] =
            (struct aq_index_change){.key = kit_key((uint64_t)i), .version = 2, .digest = 7, .bytes = 9, .cell = 3};
    assert_int_equal(aq_index_mark(index, 2, changes, 2, 4, false), AQ_OK);
    aq_index_close(index);
    cache = open_at(2);
    aq_cache_stats(cache, &stats);
    assert_true(stats.corrupt >= 2);
    for (uint64_t sample = 0; sample < 2; sample++) {
        const struct aq_cache_key key = kit_key(sample);
        assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_NOTFOUND);
    }
    assert_true(kit_same(cache, 2, 1, 10000));
    aq_cache_close(cache);
}

/* A key that holds nothing at any kept mark is in the index no more. */
static void test_dropped_message_leaves_the_index(void **state)
{
    char name[2 * KIT_PATH];
    struct aq_record_head head;
    struct aq_index *index;
    struct aq_index_item item;
    (void)state;
    snprintf(name, sizeof name, "%s/index.mdb", folder);
    const struct aq_record_identity identity = {.job_digest = 1, .job_name = "kit", .value_bytes_max = 10000};
    aq_record_head_make(&head, AQ_RECORD_INDEX, &identity, 5);
    assert_int_equal(aq_index_open(name, &head, 64, &index), AQ_OK);
    struct aq_index_change change = {.key = kit_key(1), .version = 1, .digest = 1, .bytes = 1, .cell = 0};
    struct aq_index_change other = {.key = kit_key(2), .version = 1, .digest = 1, .bytes = 1, .cell = 1};
    assert_int_equal(aq_index_mark(index, 1, &change, 1, 1, false), AQ_OK);
    change.cell = AQ_STORE_NONE;
    assert_int_equal(aq_index_mark(index, 2, &change, 1, 0, false), AQ_OK);
    assert_int_equal(aq_index_mark(index, 3, &other, 1, 1, false), AQ_OK);
    assert_int_equal(aq_index_prune(index, 3, 2, NULL, 0), AQ_OK);
    assert_int_equal(aq_index_walk_begin(index), AQ_OK);
    assert_int_equal(aq_index_walk_next(index, &item), AQ_OK);
    const struct aq_cache_key left = kit_key(2);
    assert_true(item.key.sample == left.sample && item.key.edge == left.edge);
    assert_int_equal(aq_index_walk_next(index, &item), AQ_NOTFOUND);
    aq_index_walk_end(index);
    aq_index_close(index);
}

/* The slab of another cache of the same job, with the same marks: none of its bytes are served. */
static void test_slab_of_another_cache_is_refused(void **state)
{
    char slab[2 * KIT_PATH], aside[2 * KIT_PATH], index[2 * KIT_PATH], lock[2 * KIT_PATH];
    struct aq_cache_config config;
    struct aq_cache *cache = NULL;
    (void)state;
    for (int i = 0; i < 2; i++) {
        cache = open_at(0);
        assert_int_equal(kit_put(cache, 0, 1, 10000), AQ_OK);
        assert_int_equal(kit_mark(cache, 1), AQ_OK);
        aq_cache_close(cache);
        snprintf(slab, sizeof slab, "%s/slab", path);
        snprintf(aside, sizeof aside, "%s/aside", folder);
        snprintf(index, sizeof index, "%s/index.mdb", path);
        snprintf(lock, sizeof lock, "%s/lock", path);
        if (i > 0) break;
        assert_int_equal(rename(slab, aside), 0);
        assert_int_equal(unlink(index), 0);
        (void)unlink(lock);
    }
    assert_int_equal(rename(aside, slab), 0);
    kit_config(folder, path, &config);
    config.mark = 1;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_CORRUPT);
    assert_true(kit_log_has("do not belong together"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, each_setup, each_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_no_cell_is_given_while_a_mark_needs_it), TEST(test_no_old_bytes_go_to_disk_behind_a_message),
        TEST(test_message_that_was_read_ahead_stays),      TEST(test_cell_of_two_messages_is_nobodys),
        TEST(test_dropped_message_leaves_the_index),       TEST(test_slab_of_another_cache_is_refused),
    };
    kit_log_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
