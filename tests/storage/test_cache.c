/*
 * test_cache.c -- the cache on disk: whose it is, who has it open, what it does with broken bytes, and the offline
 * tools.
 */
#include "cache_kit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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

static struct aq_cache *open_at(uint64_t mark)
{
    struct aq_cache_config config;
    struct aq_cache *cache = NULL;
    kit_config(folder, path, &config);
    config.mark = mark;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    return cache;
}

/* Samples 0 .. count-1 at version 1, mark 1, closed. */
static void make_marked(uint64_t count)
{
    struct aq_cache *cache = open_at(0);
    for (uint64_t sample = 0; sample < count; ++sample)
        assert_int_equal(kit_put(cache, sample, 1, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 1), AQ_OK);
    aq_cache_close(cache);
}

static void file_path(const char *name, char out[KIT_PATH + 32])
{
    snprintf(out, KIT_PATH + 32, "%s/%s", path, name);
}

static void file_write(const char *name, uint64_t offset, const void *bytes, size_t count)
{
    char file[KIT_PATH + 32];
    file_path(name, file);
    const int fd = open(file, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, count, (off_t)offset), count);
    close(fd);
}

static void test_other_job_mismatch_names_both(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    make_marked(2);
    kit_config(folder, path, &config);
    config.job_name = "another";
    config.mark = 1;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_MISMATCH);
    assert_non_null(strstr(kit_log_last(), "\"kit\""));
    assert_non_null(strstr(kit_log_last(), "\"another\""));
    config.fresh = true;
    config.mark = 0;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_MISMATCH); /* fresh overwrites only its own */
    kit_config(folder, path, &config);
    config.job_digest ^= 1;
    config.mark = 1;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_MISMATCH);
    kit_config(folder, path, &config);
    config.value_bytes_max = 9999;
    config.mark = 1;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_MISMATCH);
    assert_non_null(strstr(kit_log_last(), "9999"));
    cache = open_at(1);
    assert_true(kit_same(cache, 1, 1, 10000));
    aq_cache_close(cache);
}

static void test_other_format_mismatch(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    make_marked(1);
    const uint32_t format = 3;
    file_write("slab", 8, &format, sizeof(format));
    kit_config(folder, path, &config);
    config.mark = 1;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_MISMATCH);
    assert_non_null(strstr(kit_log_last(), "format 3"));
}

static void test_marks_are_not_thrown_away_unasked(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    make_marked(1);
    kit_config(folder, path, &config);
    assert_int_equal(aq_cache_open(&config, &cache), AQ_MISMATCH);
    config.mark = 2;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_NOTFOUND);
    assert_non_null(strstr(kit_log_last(), "not mark 2"));
    config.mark = 0;
    config.fresh = true;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    struct aq_cache_entry entry;
    const struct aq_cache_key key = kit_key(0);
    assert_int_equal(aq_cache_peek(cache, &key, &entry), AQ_NOTFOUND);
    aq_cache_close(cache);
    cache = open_at(0); /* no mark was made since */
    aq_cache_close(cache);
}

static void test_foreign_files_are_left_alone(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    char file[KIT_PATH + 32], bytes[5000] = "somebody's letters";
    kit_config(folder, path, &config);
    assert_int_equal(mkdir(path, 0700), 0);
    file_path("slab", file);
    const int fd = open(file, O_CREAT | O_RDWR, 0600);
    assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
    config.fresh = true;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_CORRUPT);
    char after[5000];
    assert_int_equal(pread(fd, after, sizeof(after), 0), sizeof(after));
    assert_memory_equal(after, bytes, sizeof(bytes));
    close(fd);
}

static void test_folder_cannot_be_made(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    kit_config(folder, path, &config);
    snprintf(path, sizeof(path), "%.400s/no/such", folder);
    assert_int_not_equal(aq_cache_open(&config, &cache), AQ_OK);
    assert_non_null(strstr(kit_log_last(), "no/such"));
}

static void test_in_use_refused(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache = open_at(0), *second;
    struct aq_cache_walk *walk;
    kit_config(folder, path, &config);
    assert_int_equal(aq_cache_open(&config, &second), AQ_REFUSED);
    assert_non_null(strstr(kit_log_last(), "in use"));
    assert_int_equal(aq_cache_walk_open(path, 0, false, &walk), AQ_REFUSED);
    aq_cache_close(cache);
    cache = open_at(0);
    aq_cache_close(cache);
}

/* Where a sample's message lies in the slab. */
static uint64_t offset_of(uint64_t sample)
{
    struct aq_cache_walk *walk;
    struct aq_cache_visit visit;
    struct aq_cache_info info;
    const struct aq_cache_key key = kit_key(sample);
    uint64_t offset = 0;
    assert_int_equal(aq_cache_walk_open(path, 0, false, &walk), AQ_OK);
    aq_cache_walk_info(walk, &info);
    while (aq_cache_walk_next(walk, &visit) == AQ_OK) {
        if (memcmp(&visit.key, &key, sizeof(key)) == 0) offset = 4096 + info.cell_bytes * visit.cell;
    }
    aq_cache_walk_close(walk);
    assert_true(offset > 0);
    return offset;
}

static void test_broken_message_corrupt_then_cold(void **state)
{
    (void)state;
    make_marked(8);
    const uint64_t at = offset_of(3) + kit_bytes(3, 1, 10000) - 1;
    uint8_t byte;
    kit_fill(3, 1, (uint8_t[10000]){0}, kit_bytes(3, 1, 10000));
    char file[KIT_PATH + 32];
    file_path("slab", file);
    const int fd = open(file, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10; /* one bit of the last byte */
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
    struct aq_cache *cache = open_at(1);
    struct aq_cache_entry entry;
    struct aq_cache_stats stats;
    const struct aq_cache_key key = kit_key(3);
    assert_int_equal(aq_cache_prefetch(cache, &key), AQ_OK);
    assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_CORRUPT);
    assert_non_null(strstr(kit_log_last(), "sample 3"));
    assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_NOTFOUND);
    aq_cache_stats(cache, &stats);
    assert_int_equal(stats.corrupt, 1);
    assert_true(stats.lost);
    assert_int_equal(stats.entries, 7);
    for (uint64_t sample = 0; sample < 8; ++sample)
        assert_true(sample == 3 || kit_same(cache, sample, 1, 10000));
    assert_int_equal(kit_put(cache, 3, 1, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 2), AQ_OK);
    aq_cache_close(cache);
    cache = open_at(2);
    assert_true(kit_same(cache, 3, 1, 10000));
    aq_cache_close(cache);
}

static void test_cut_slab_corrupt_then_cold(void **state)
{
    (void)state;
    char file[KIT_PATH + 32];
    make_marked(8);
    file_path("slab", file);
    assert_int_equal(truncate(file, 4096 + 3 * 12288 + 100), 0);
    struct aq_cache *cache = open_at(1);
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, 3); /* whole cells */
    assert_int_equal(stats.corrupt, 5);
    for (uint64_t sample = 0; sample < 8; ++sample)
        assert_int_equal(kit_put(cache, sample, 2, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 2), AQ_OK);
    aq_cache_close(cache);
    cache = open_at(2);
    for (uint64_t sample = 0; sample < 8; ++sample)
        assert_true(kit_same(cache, sample, 2, 10000));
    aq_cache_close(cache);
}

static bool loses(uint64_t mark)
{
    struct aq_cache *cache = open_at(mark);
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    aq_cache_close(cache);
    return stats.lost;
}

/* What one process lost, those after it know, though they find an index that is whole. */
static void test_lost_is_known_to_later_processes(void **state)
{
    (void)state;
    char file[KIT_PATH + 32];
    make_marked(8);
    assert_false(loses(1));
    file_path("slab", file);
    assert_int_equal(truncate(file, 4096 + 3 * 12288 + 100), 0);
    for (int opened = 0; opened < 3; ++opened)
        assert_true(loses(1));
    struct aq_cache *cache = open_at(1);
    assert_int_equal(kit_put(cache, 7, 2, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 2), AQ_OK);
    aq_cache_close(cache);
    assert_true(loses(2));
    assert_true(loses(1)); /* back to the mark before */
    uint64_t freed;
    assert_int_equal(aq_cache_compact(path, &freed), AQ_OK);
    assert_true(loses(1));
}

/* The same of one that was found broken while the cache was open, and of a message whose sample went cold by will. */
static void test_lost_at_a_read_is_told_by_the_mark(void **state)
{
    (void)state;
    struct aq_cache_entry entry;
    struct aq_cache_key key = kit_key(5);
    make_marked(8);
    struct aq_cache *cache = open_at(1);
    assert_int_equal(aq_cache_drop(cache, &key), AQ_OK);
    assert_int_equal(kit_mark(cache, 2), AQ_OK);
    aq_cache_close(cache);
    assert_false(loses(2));
    file_write("slab", offset_of(3), "another", 7);
    cache = open_at(2);
    key = kit_key(3);
    assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_CORRUPT);
    assert_int_equal(kit_mark(cache, 3), AQ_OK);
    aq_cache_close(cache);
    assert_true(loses(3));
}

/* A cache made in place of one that is gone says so until it is made afresh. */
static void test_lost_of_a_cache_made_anew(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    kit_config(folder, path, &config);
    config.lost = true;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    assert_int_equal(kit_put(cache, 1, 1, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 1), AQ_OK);
    aq_cache_close(cache);
    assert_true(loses(1));
    kit_config(folder, path, &config);
    config.fresh = true;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    aq_cache_close(cache);
    assert_false(loses(0));
}

static void test_slab_gone_corrupt(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    char file[KIT_PATH + 32];
    make_marked(2);
    file_path("slab", file);
    assert_int_equal(unlink(file), 0);
    kit_config(folder, path, &config);
    config.mark = 1;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_CORRUPT);
    config.mark = 0;
    config.fresh = true;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    aq_cache_close(cache);
}

static void test_index_gone_mismatch(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    char file[KIT_PATH + 32];
    make_marked(2);
    file_path("index.mdb", file);
    assert_int_equal(unlink(file), 0);
    kit_config(folder, path, &config);
    config.mark = 1;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_NOTFOUND);
    cache = open_at(0);
    aq_cache_close(cache);
}

static void test_walk_tells_all(void **state)
{
    (void)state;
    struct aq_cache_walk *walk;
    struct aq_cache_visit visit;
    struct aq_cache_info info;
    struct aq_cache_key before = {0};
    enum aq_status status;
    make_marked(20);
    const uint64_t at = offset_of(4);
    const uint8_t broken[16] = {1, 2, 3};
    file_write("slab", at, broken, sizeof(broken));
    uint64_t count = 0, corrupt = 0;
    assert_int_equal(aq_cache_walk_open(path, 0, true, &walk), AQ_OK);
    aq_cache_walk_info(walk, &info);
    assert_string_equal(info.job_name, "kit");
    assert_int_equal(info.mark_last, 1);
    assert_int_equal(info.entries, 20);
    while ((status = aq_cache_walk_next(walk, &visit)) == AQ_OK) {
        assert_int_equal(visit.version, 1);
        assert_int_equal(visit.byte_count, kit_bytes(visit.key.sample, 1, 10000));
        assert_true(count == 0 || visit.key.edge > before.edge ||
                    (visit.key.edge == before.edge && visit.key.side >= before.side));
        before = visit.key;
        ++count;
        if (visit.status != AQ_OK) ++corrupt;
        assert_true(visit.status == AQ_OK || visit.key.sample == 4);
    }
    assert_int_equal(status, AQ_NOTFOUND);
    assert_int_equal(count, 20);
    assert_int_equal(corrupt, 1);
    aq_cache_walk_close(walk);
    assert_int_equal(aq_cache_walk_open(path, 7, true, &walk), AQ_MISMATCH);
    assert_int_equal(aq_cache_walk_open(folder, 0, true, &walk), AQ_NOTFOUND);
}

static void test_compact_cuts_and_keeps_both_marks(void **state)
{
    (void)state;
    struct aq_cache *cache = open_at(0);
    uint64_t freed = 0;
    for (uint64_t version = 1; version <= 4; ++version) {
        for (uint64_t sample = 0; sample < 30; ++sample)
            assert_int_equal(kit_put(cache, sample, version, 10000), AQ_OK);
        assert_int_equal(kit_mark(cache, version), AQ_OK);
    }
    const struct aq_cache_key key = kit_key(2);
    for (uint64_t sample = 0; sample < 25; ++sample) {
        const struct aq_cache_key each = kit_key(sample);
        assert_int_equal(aq_cache_drop(cache, &each), AQ_OK);
    }
    assert_int_equal(kit_mark(cache, 5), AQ_OK);
    assert_int_equal(kit_put(cache, 40, 1, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 6), AQ_OK); /* kept: 5 and 6; five messages and one */
    aq_cache_close(cache);
    assert_int_equal(aq_cache_compact(path, &freed), AQ_OK);
    assert_true(freed >= 25 * 12288);
    char file[KIT_PATH + 32];
    struct stat stat_of;
    file_path("slab", file);
    assert_int_equal(stat(file, &stat_of), 0);
    assert_int_equal(stat_of.st_size, 4096 + 6 * 12288);
    cache = open_at(6);
    for (uint64_t sample = 25; sample < 30; ++sample)
        assert_true(kit_same(cache, sample, 4, 10000));
    assert_true(kit_same(cache, 40, 1, 10000));
    struct aq_cache_entry entry;
    assert_int_equal(aq_cache_peek(cache, &key, &entry), AQ_NOTFOUND);
    for (uint64_t sample = 0; sample < 30; ++sample)
        assert_int_equal(kit_put(cache, sample, 9, 10000), AQ_OK);
    aq_cache_close(cache);
    assert_int_equal(aq_cache_compact(path, &freed), AQ_OK);
    cache = open_at(5);
    for (uint64_t sample = 25; sample < 30; ++sample)
        assert_true(kit_same(cache, sample, 4, 10000));
    const struct aq_cache_key late = kit_key(40);
    assert_int_equal(aq_cache_peek(cache, &late, &entry), AQ_NOTFOUND);
    aq_cache_close(cache);
}

static void golden_copy(const char *name)
{
    static uint8_t bytes[1 << 17];
    char from[KIT_PATH + 32], into[KIT_PATH + 32];
    snprintf(from, sizeof(from), "%s/golden/cache-1/%s", TESTS_FOLDER, name);
    file_path(name, into);
    const int source = open(from, O_RDONLY), target = open(into, O_WRONLY | O_CREAT, 0600);
    assert_true(source >= 0 && target >= 0);
    const ssize_t count = read(source, bytes, sizeof(bytes));
    assert_true(count > 0 && (size_t)count < sizeof(bytes));
    assert_int_equal(write(target, bytes, (size_t)count), count);
    close(source);
    close(target);
}

/* Format 1 as it was released: samples 0 to 7 at mark 1; at mark 2 the even ones are at version 2 and 3 is dropped. */
static void test_golden_format_1_is_read(void **state)
{
    (void)state;
    for (uint64_t mark = 2; mark >= 1; --mark) {
        struct aq_cache_config config;
        struct aq_cache *cache;
        struct aq_cache_entry entry;
        const struct aq_cache_key dropped = kit_key(3);
        kit_config(folder, path, &config);
        config.job_name = "golden";
        config.value_bytes_max = 600;
        config.mark = mark;
        mkdir(path, 0700);
        golden_copy("index.mdb");
        golden_copy("slab");
        assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
        for (uint64_t sample = 0; sample < 8; ++sample) {
            if (mark == 2 && sample == 3) continue;
            assert_true(kit_same(cache, sample, mark == 2 && sample % 2 == 0 ? 2 : 1, 600));
        }
        if (mark == 2) assert_int_equal(aq_cache_peek(cache, &dropped, &entry), AQ_NOTFOUND);
        aq_cache_close(cache);
    }
}

static void test_eventcount_is_notified(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    struct aq_eventcount *eventcount;
    make_marked(3);
    assert_int_equal(aq_eventcount_open(&eventcount), AQ_OK);
    kit_config(folder, path, &config);
    config.mark = 1;
    config.eventcount = eventcount;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    const uint32_t seen = aq_eventcount_read(eventcount);
    const struct aq_cache_key key = kit_key(2);
    assert_int_equal(aq_cache_prefetch(cache, &key), AQ_OK);
    assert_int_equal(aq_eventcount_wait(eventcount, seen, kit_deadline()), AQ_OK);
    struct aq_cache_entry entry;
    struct aq_cache_stats stats;
    assert_int_equal(aq_cache_get(cache, &key, 0, &entry), AQ_OK); /* no wait is needed */
    aq_cache_release(cache, &entry);
    aq_cache_stats(cache, &stats);
    assert_int_equal(stats.prefetched, 1);
    aq_cache_close(cache);
    aq_eventcount_close(eventcount);
}

static void test_get_deadline_timeout(void **state)
{
    (void)state;
    make_marked(3);
    struct aq_cache *cache = open_at(1);
    struct aq_cache_entry entry;
    const struct aq_cache_key key = kit_key(1);
    const enum aq_status status = aq_cache_get(cache, &key, 0, &entry); /* the read has had no time */
    assert_true(status == AQ_TIMEOUT || status == AQ_OK);
    if (status == AQ_OK) aq_cache_release(cache, &entry);
    assert_true(kit_same(cache, 1, 1, 10000));
    aq_cache_close(cache);
}

/* More prefetches than slots: the first ones fill the window, a get still finds a way, and nothing is read wrongly. */
static void test_prefetch_window_full_again_get_still_works(void **state)
{
    (void)state;
    make_marked(20);
    struct aq_cache *cache = open_at(1);
    uint64_t taken = 0;
    for (uint64_t sample = 0; sample < 20; ++sample) {
        const struct aq_cache_key key = kit_key(sample);
        const enum aq_status status = aq_cache_prefetch(cache, &key);
        assert_true(status == AQ_OK || status == AQ_AGAIN);
        if (status == AQ_OK) ++taken;
    }
    assert_int_equal(taken, 6);
    assert_true(kit_same(cache, 19, 1, 10000)); /* takes the place of the one prefetched last */
    for (uint64_t sample = 0; sample < 20; ++sample)
        assert_true(kit_same(cache, sample, 1, 10000));
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    assert_int_equal(stats.slots_free_low, 0);
    aq_cache_close(cache);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_other_job_mismatch_names_both),
        TEST(test_other_format_mismatch),
        TEST(test_marks_are_not_thrown_away_unasked),
        TEST(test_foreign_files_are_left_alone),
        TEST(test_folder_cannot_be_made),
        TEST(test_in_use_refused),
        TEST(test_broken_message_corrupt_then_cold),
        TEST(test_cut_slab_corrupt_then_cold),
        TEST(test_lost_is_known_to_later_processes),
        TEST(test_lost_at_a_read_is_told_by_the_mark),
        TEST(test_lost_of_a_cache_made_anew),
        TEST(test_slab_gone_corrupt),
        TEST(test_index_gone_mismatch),
        TEST(test_walk_tells_all),
        TEST(test_compact_cuts_and_keeps_both_marks),
        TEST(test_golden_format_1_is_read),
        TEST(test_eventcount_is_notified),
        TEST(test_get_deadline_timeout),
        TEST(test_prefetch_window_full_again_get_still_works),
    };
    kit_log_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
