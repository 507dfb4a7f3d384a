/*
 * test_cache_marks.c -- a mark is a point in time: whatever came after it, opening at it gives exactly what was there.
 */
#include "cache_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 24 };

static char folder[KIT_PATH], path[KIT_PATH];

static int set_up(void **state)
{
    (void)state;
    kit_folder(NULL, folder);
    kit_log_clear();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kit_remove(folder);
    return 0;
}

static enum aq_status open_status(uint64_t mark, struct aq_cache **cache)
{
    struct aq_cache_config config;
    kit_config(folder, path, &config);
    config.mark = mark;
    return aq_cache_open(&config, cache);
}

static struct aq_cache *open_at(uint64_t mark)
{
    struct aq_cache *cache = NULL;
    assert_int_equal(open_status(mark, &cache), AQ_OK);
    return cache;
}

static void assert_equals(struct aq_cache *cache, const uint64_t versions[SAMPLES])
{
    uint64_t held = 0;
    for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
        struct aq_cache_entry entry;
        const struct aq_cache_key key = kit_key(sample);
        if (versions[sample] > 0) {
            assert_true(kit_same(cache, sample, versions[sample], 10000));
            ++held;
        } else {
            assert_int_equal(aq_cache_peek(cache, &key, &entry), AQ_NOTFOUND);
        }
    }
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, held);
}

static void change(struct aq_cache *cache, uint64_t versions[SAMPLES], uint64_t seed, uint64_t steps)
{
    const struct aq_rng_key rng = aq_rng_key(11, AQ_RNG_TEST, seed, 0);
    for (uint64_t step = 0; step < steps; ++step) {
        const uint64_t sample = aq_rng_below(&rng, 2 * step, SAMPLES);
        const struct aq_cache_key key = kit_key(sample);
        if (aq_rng_below(&rng, 2 * step + 1, 8) == 0) {
            assert_int_equal(aq_cache_drop(cache, &key), AQ_OK);
            versions[sample] = 0;
        } else {
            versions[sample] = 1000 * seed + step + 1;
            assert_int_equal(kit_put(cache, sample, versions[sample], 10000), AQ_OK);
        }
    }
}

static void test_put_without_mark_is_forgotten(void **state)
{
    (void)state;
    uint64_t versions[SAMPLES] = {0};
    struct aq_cache *cache = open_at(0);
    change(cache, versions, 1, 50);
    aq_cache_close(cache);
    memset(versions, 0, sizeof(versions));
    cache = open_at(0);
    assert_equals(cache, versions);
    aq_cache_close(cache);
}

static void test_open_at_last_mark_forgets_later(void **state)
{
    (void)state;
    uint64_t versions[SAMPLES] = {0}, at_mark[SAMPLES];
    struct aq_cache *cache = open_at(0);
    change(cache, versions, 1, 100);
    assert_int_equal(kit_mark(cache, 10), AQ_OK);
    memcpy(at_mark, versions, sizeof(versions));
    change(cache, versions, 2, 300);
    aq_cache_close(cache);
    cache = open_at(10);
    assert_equals(cache, at_mark);
    aq_cache_close(cache);
}

static void test_open_at_mark_before_last_rolls_back(void **state)
{
    (void)state;
    uint64_t versions[SAMPLES] = {0}, first[SAMPLES];
    struct aq_cache *cache = open_at(0), *none;
    change(cache, versions, 1, 100);
    assert_int_equal(kit_mark(cache, 10), AQ_OK);
    memcpy(first, versions, sizeof(versions));
    change(cache, versions, 2, 60);
    assert_int_equal(kit_mark(cache, 20), AQ_OK);
    change(cache, versions, 3, 300);
    aq_cache_close(cache);
    cache = open_at(10);
    assert_equals(cache, first);
    aq_cache_close(cache);
    assert_int_equal(open_status(20, &none), AQ_NOTFOUND); /* the time line of 20 is gone */
    cache = open_at(10);
    change(cache, first, 4, 60);
    assert_int_equal(kit_mark(cache, 20), AQ_OK); /* and 20 may be made again */
    aq_cache_close(cache);
    cache = open_at(20);
    assert_equals(cache, first);
    aq_cache_close(cache);
}

static void test_only_two_marks_are_kept(void **state)
{
    (void)state;
    uint64_t versions[SAMPLES] = {0};
    struct aq_cache *cache = open_at(0), *none;
    for (uint64_t mark = 1; mark <= 3; ++mark) {
        change(cache, versions, mark, 30);
        assert_int_equal(kit_mark(cache, mark), AQ_OK);
    }
    aq_cache_close(cache);
    assert_int_equal(open_status(1, &none), AQ_NOTFOUND);
    assert_non_null(strstr(kit_log_last(), "marks 3 and 2"));
    cache = open_at(3);
    assert_equals(cache, versions);
    aq_cache_close(cache);
}

/* What is put while a mark is being made belongs to the next one. */
static void test_puts_during_mark_are_not_in_it(void **state)
{
    (void)state;
    uint64_t versions[SAMPLES] = {0}, at_mark[SAMPLES];
    struct aq_cache *cache = open_at(0);
    change(cache, versions, 1, 100);
    assert_int_equal(kit_mark(cache, 1), AQ_OK);
    for (uint64_t mark = 2; mark < 12; ++mark) {
        change(cache, versions, mark, 40);
        memcpy(at_mark, versions, sizeof(versions));
        assert_int_equal(aq_cache_mark_begin(cache, mark), AQ_OK);
        uint64_t more = 100 * mark;
        do
            change(cache, versions, ++more, 3);
        while (aq_cache_mark_done(cache) == AQ_AGAIN);
    }
    change(cache, versions, 5000, 200);
    aq_cache_close(cache);
    cache = open_at(11);
    assert_equals(cache, at_mark);
    aq_cache_close(cache);
}

/* Cells come back: however many updates and marks, the slab stays within four copies of a message. */
static void test_slab_does_not_grow_for_ever(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    kit_config(folder, path, &config);
    config.samples_max = SAMPLES;
    config.bytes_max = (3 * SAMPLES + 6) * UINT64_C(12288);
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    for (uint64_t version = 1; version < 40; ++version) {
        for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
            assert_int_equal(kit_put(cache, sample, version, 10000), AQ_OK);
        }
        assert_int_equal(kit_mark(cache, version), AQ_OK);
    }
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    assert_true(stats.file_bytes < config.bytes_max + (1 << 20));
    aq_cache_close(cache);
}

/* Closing and opening at random marks, for long: the same model holds throughout, and no cell is lost on the way. */
static void test_many_openings_equal_model(void **state)
{
    (void)state;
    const struct aq_rng_key rng = aq_rng_key(12, AQ_RNG_TEST, 0, 0);
    uint64_t now[SAMPLES] = {0}, last[SAMPLES] = {0}, before[SAMPLES] = {0};
    uint64_t mark_last = 0, mark_before = 0;
    struct aq_cache *cache = open_at(0);
    for (uint64_t round = 1; round <= 60; ++round) {
        change(cache, now, round, 1 + aq_rng_below(&rng, 3 * round, 60));
        if (aq_rng_below(&rng, 3 * round + 1, 3) > 0) {
            memcpy(before, last, sizeof(last));
            mark_before = mark_last;
            memcpy(last, now, sizeof(now));
            assert_int_equal(kit_mark(cache, ++mark_last), AQ_OK);
        }
        if (aq_rng_below(&rng, 3 * round + 2, 3) > 0) continue;
        aq_cache_close(cache);
        if (round % 2 == 0 && mark_before > 0) {
            memcpy(last, before, sizeof(last));
            mark_last = mark_before;
            mark_before = 0;
        }
        memcpy(now, last, sizeof(last));
        cache = open_at(mark_last);
        assert_equals(cache, now);
    }
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    assert_true(mark_last > 5);
    aq_cache_close(cache);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_put_without_mark_is_forgotten),       TEST(test_open_at_last_mark_forgets_later),
        TEST(test_open_at_mark_before_last_rolls_back), TEST(test_only_two_marks_are_kept),
        TEST(test_puts_during_mark_are_not_in_it),      TEST(test_slab_does_not_grow_for_ever),
        TEST(test_many_openings_equal_model),
    };
    kit_log_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
