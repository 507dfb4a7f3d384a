/*
 * conform_store.c -- every message store that there is, through the same calls. A new line in storage/stores.def is run
 * here unasked.
 */
#include "cache_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *kind; /* the store under test */
static char folder[KIT_PATH], path[KIT_PATH];

static struct aq_cache *open_small(uint64_t bytes_max)
{
    struct aq_cache_config config;
    struct aq_cache *cache = NULL;
    kit_config(folder, path, &config);
    config.kind = kind;
    config.bytes_max = bytes_max;
    config.fresh = true;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    return cache;
}

static void test_get_absent_cold(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    struct aq_cache_entry entry;
    const struct aq_cache_key key = kit_key(5);
    assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_NOTFOUND);
    assert_int_equal(aq_cache_peek(cache, &key, &entry), AQ_NOTFOUND);
    assert_int_equal(aq_cache_prefetch(cache, &key), AQ_OK);
    assert_int_equal(aq_cache_drop(cache, &key), AQ_OK);
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    assert_int_equal(stats.colds, 1);
    assert_int_equal(stats.gets, 1);
    aq_cache_close(cache);
}

static void test_put_get_same(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    for (uint64_t sample = 0; sample < 60; ++sample)
        assert_int_equal(kit_put(cache, sample, 1, 10000), AQ_OK);
    for (uint64_t sample = 0; sample < 60; ++sample)
        assert_true(kit_same(cache, 59 - sample, 1, 10000));
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, 60);
    assert_int_equal(stats.puts, 60);
    assert_int_equal(stats.hits, 60);
    aq_cache_close(cache);
}

static void test_put_twice_newer_wins(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    for (uint64_t version = 1; version < 20; ++version) {
        for (uint64_t sample = 0; sample < 4; ++sample)
            assert_int_equal(kit_put(cache, sample, version, 10000), AQ_OK);
        assert_true(kit_same(cache, version % 4, version, 10000));
    }
    struct aq_cache_stats stats;
    aq_cache_stats(cache, &stats);
    assert_int_equal(stats.entries, 4);
    aq_cache_close(cache);
}

static void test_borrowed_bytes_survive_put_and_drop(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    struct aq_cache_entry entry;
    const struct aq_cache_key key = kit_key(7);
    const uint64_t bytes = kit_bytes(7, 1, 10000);
    static uint8_t wanted[10000];
    kit_fill(7, 1, wanted, bytes);
    assert_int_equal(kit_put(cache, 7, 1, 10000), AQ_OK);
    assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_OK);
    assert_int_equal(kit_put(cache, 7, 2, 10000), AQ_OK);
    assert_int_equal(aq_cache_drop(cache, &key), AQ_OK);
    for (uint64_t sample = 20; sample < 60; ++sample)
        assert_int_equal(kit_put(cache, sample, 1, 10000), AQ_OK);
    assert_memory_equal(entry.bytes, wanted, bytes);
    aq_cache_release(cache, &entry);
    assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_NOTFOUND);
    aq_cache_close(cache);
}

static void test_peek_tells_version(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    struct aq_cache_entry entry;
    const struct aq_cache_key key = kit_key(9);
    assert_int_equal(kit_put(cache, 9, 3, 10000), AQ_OK);
    assert_int_equal(aq_cache_peek(cache, &key, &entry), AQ_OK);
    assert_int_equal(entry.version, 3);
    assert_null(entry.bytes);
    assert_int_equal(entry.byte_count, kit_bytes(9, 3, 10000));
    aq_cache_close(cache);
}

static void test_keys_differ_in_each_field(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    const struct aq_cache_key keys[] = {
        {.sample = 1}, {.edge = 1}, {.variant = 1}, {.side = 1}, {.sample = UINT64_MAX}};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); ++i) {
        void *slot;
        assert_int_equal(aq_cache_slot(cache, kit_deadline(), &slot), AQ_OK);
        memset(slot, (int)i + 1, 100);
        assert_int_equal(aq_cache_put(cache, &keys[i], 1, aq_digest(slot, 100), slot, 100), AQ_OK);
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); ++i) {
        struct aq_cache_entry entry;
        assert_int_equal(aq_cache_get(cache, &keys[i], kit_deadline(), &entry), AQ_OK);
        assert_int_equal(((const uint8_t *)entry.bytes)[99], i + 1);
        aq_cache_release(cache, &entry);
    }
    aq_cache_close(cache);
}

static void test_slots_all_out_again(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(100 * 12288);
    void *slots[80];
    uint32_t count = 0;
    enum aq_status status;
    while ((status = aq_cache_slot(cache, kit_deadline(), &slots[count])) == AQ_OK)
        assert_true(++count < 80);
    assert_int_equal(status, AQ_AGAIN); /* none can come without the caller */
    aq_cache_slot_return(cache, slots[--count]);
    assert_int_equal(aq_cache_slot(cache, kit_deadline(), &slots[count]), AQ_OK);
    for (uint32_t i = 0; i <= count; ++i)
        aq_cache_slot_return(cache, slots[i]);
    assert_int_equal(kit_put(cache, 1, 1, 10000), AQ_OK);
    assert_true(kit_same(cache, 1, 1, 10000));
    aq_cache_close(cache);
}

static void test_full_nospc_and_the_rest_stays(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(5 * 12288); /* five cells of 10000 bytes in whole blocks */
    for (uint64_t sample = 0; sample < 5; ++sample)
        assert_int_equal(kit_put(cache, sample, 1, 10000), AQ_OK);
    assert_int_equal(kit_put(cache, 5, 1, 10000), AQ_NOSPC);
    assert_int_equal(kit_put(cache, 6, 1, 10000), AQ_NOSPC);
    for (uint64_t sample = 0; sample < 5; ++sample)
        assert_true(kit_same(cache, sample, 1, 10000));
    const struct aq_cache_key key = kit_key(2);
    assert_int_equal(aq_cache_drop(cache, &key), AQ_OK);
    struct aq_cache_stats stats;
    uint64_t deadline_ns = kit_deadline();
    do
        aq_cache_stats(cache, &stats); /* a dropped message's cell may be in its write still */
    while (kit_put(cache, 7, 1, 10000) == AQ_NOSPC && aq_clock_ns() < deadline_ns);
    assert_true(kit_same(cache, 7, 1, 10000));
    aq_cache_close(cache);
}

static void test_samples_max_nospc(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    for (uint64_t sample = 0; sample < 64; ++sample)
        assert_int_equal(kit_put(cache, sample, 1, 100), AQ_OK);
    assert_int_equal(kit_put(cache, 64, 1, 100), AQ_NOSPC);
    assert_int_equal(kit_put(cache, 3, 2, 100), AQ_OK); /* a known key still can be put */
    assert_true(kit_same(cache, 3, 2, 100));
    aq_cache_close(cache);
}

static void test_put_bad_bytes_inval(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    const struct aq_cache_key key = kit_key(1), outside = {.edge = UINT32_MAX};
    void *slot;
    assert_int_equal(aq_cache_slot(cache, kit_deadline(), &slot), AQ_OK);
    assert_int_equal(aq_cache_put(cache, &key, 1, 0, slot, 0), AQ_INVAL);
    assert_int_equal(aq_cache_put(cache, &key, 1, 0, slot, 10001), AQ_INVAL);
    assert_int_equal(aq_cache_put(cache, &outside, 1, 0, slot, 1), AQ_INVAL);
    aq_cache_slot_return(cache, slot);
    aq_cache_close(cache);
}

static void test_marks_rise(void **state)
{
    (void)state;
    struct aq_cache *cache = open_small(0);
    assert_int_equal(aq_cache_mark_done(cache), AQ_OK);
    assert_int_equal(kit_put(cache, 1, 1, 10000), AQ_OK);
    assert_int_equal(kit_mark(cache, 10), AQ_OK);
    assert_int_equal(aq_cache_mark_begin(cache, 10), AQ_INVAL);
    assert_int_equal(aq_cache_mark_begin(cache, 9), AQ_INVAL);
    assert_int_equal(aq_cache_mark_begin(cache, 11), AQ_OK);
    assert_int_equal(aq_cache_mark_begin(cache, 12), AQ_INVAL); /* one is being made */
    while (aq_cache_mark_done(cache) == AQ_AGAIN)
        continue;
    assert_true(kit_same(cache, 1, 1, 10000));
    aq_cache_close(cache);
}

/* A long random run against a model of versions: put, get, prefetch, drop, mark, references held across them. */
static void test_random_run_equals_model(void **state)
{
    (void)state;
    enum { SAMPLES = 40, STEPS = 4000 };
    struct aq_cache *cache = open_small(0);
    const struct aq_rng_key rng = aq_rng_key(1, AQ_RNG_TEST, 2, 3);
    uint64_t versions[SAMPLES] = {0}, mark = 0;
    for (uint64_t step = 0; step < STEPS; ++step) {
        const uint64_t sample = aq_rng_below(&rng, 2 * step, SAMPLES);
        const uint64_t what = aq_rng_below(&rng, 2 * step + 1, 100);
        const struct aq_cache_key key = kit_key(sample);
        if (what < 45) {
            assert_int_equal(kit_put(cache, sample, ++versions[sample], 10000), AQ_OK);
        } else if (what < 70 && versions[sample] > 0) {
            assert_true(kit_same(cache, sample, versions[sample], 10000));
        } else if (what < 90) {
            const enum aq_status status = aq_cache_prefetch(cache, &key);
            assert_true(status == AQ_OK || status == AQ_AGAIN);
        } else if (what < 96) {
            assert_int_equal(aq_cache_drop(cache, &key), AQ_OK);
            versions[sample] = 0;
        } else if (aq_cache_mark_done(cache) == AQ_OK) {
            assert_int_equal(aq_cache_mark_begin(cache, ++mark), AQ_OK);
        }
    }
    for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
        struct aq_cache_entry entry;
        const struct aq_cache_key key = kit_key(sample);
        if (versions[sample] > 0)
            assert_true(kit_same(cache, sample, versions[sample], 10000));
        else
            assert_int_equal(aq_cache_peek(cache, &key, &entry), AQ_NOTFOUND);
    }
    aq_cache_close(cache);
}

static void test_measure_is_what_it_takes(void **state)
{
    (void)state;
    struct aq_cache_config config;
    kit_config(folder, path, &config);
    config.kind = kind;
    config.value_bytes_max = 1 << 20;
    config.fresh = true;
    const uint64_t before = aq_memory_used(), planned = aq_cache_measure(&config);
    struct aq_cache *cache;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    const uint64_t used = aq_memory_used() - before;
    assert_true(used >= planned && used <= planned + planned / 10 + (1 << 20));
    aq_cache_close(cache);
    assert_int_equal(aq_memory_used(), before);
}

static struct range {
    const uint8_t *base;
    size_t bytes;
} lent;

static enum aq_status range_take(void *context, size_t bytes, void **out)
{
    struct range *range = context;
    AQ_TRY(aq_map(bytes, out));
    *range = (struct range){.base = *out, .bytes = bytes};
    return AQ_OK;
}

static void range_give(void *context, void *memory, size_t bytes)
{
    struct range *range = context;
    assert_ptr_equal(memory, range->base);
    assert_int_equal(bytes, range->bytes);
    aq_unmap(memory, bytes);
    *range = (struct range){0};
}

static bool in_lent(const void *bytes)
{
    const uint8_t *at = bytes;
    return at >= lent.base && at < lent.base + lent.bytes;
}

/* What a device copies from and to lies where the config says. */
static void test_slots_lie_in_the_pages_of_the_config(void **state)
{
    (void)state;
    struct aq_cache_config config;
    struct aq_cache *cache;
    struct aq_cache_entry entry;
    const struct aq_cache_key key = kit_key(3);
    void *slot;
    kit_config(folder, path, &config);
    config.kind = kind;
    config.fresh = true;
    config.pages = (struct aq_pages){.take = range_take, .give = range_give, .context = &lent};
    assert_int_equal(aq_cache_open(&config, &cache), AQ_OK);
    assert_int_equal(aq_cache_slot(cache, kit_deadline(), &slot), AQ_OK);
    assert_true(in_lent(slot));
    aq_cache_slot_return(cache, slot);
    assert_int_equal(kit_put(cache, 3, 1, 10000), AQ_OK);
    assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_OK);
    assert_true(in_lent(entry.bytes));
    aq_cache_release(cache, &entry);
    aq_cache_close(cache);
    assert_null(lent.base);
}

static void test_open_nomem_leaks_nothing(void **state)
{
    (void)state;
    const uint64_t before = aq_memory_used();
    enum aq_status status = AQ_NOMEM;
    uint64_t n = 0;
    while (status == AQ_NOMEM && n < 64) {
        struct aq_cache_config config;
        struct aq_cache *cache = NULL;
        kit_config(folder, path, &config);
        config.kind = kind;
        config.fresh = true;
        aq_memory_fail_at(++n);
        status = aq_cache_open(&config, &cache);
        aq_memory_fail_at(0);
        if (status == AQ_OK) aq_cache_close(cache);
        assert_int_equal(aq_memory_used(), before);
    }
    assert_int_equal(status, AQ_OK);
    assert_true(n > 2);
}

static void test_config_refused(void **state)
{
    (void)state;
    struct aq_cache_config good, config;
    struct aq_cache *cache;
    kit_config(folder, path, &good);
    good.kind = kind;
#define REFUSED(change)                                                                                                \
    config = good;                                                                                                     \
    config.change;                                                                                                     \
    assert_int_equal(aq_cache_open(&config, &cache), AQ_INVAL)
    REFUSED(kind = "papyrus");
    REFUSED(kind = NULL);
    REFUSED(value_bytes_max = 0);
    REFUSED(value_bytes_max = UINT64_MAX);
    REFUSED(samples_max = 0);
    REFUSED(samples_max = UINT64_MAX);
    REFUSED(slots = 1);
    REFUSED(slots = UINT32_MAX);
    REFUSED(depth = 0);
    REFUSED(depth = 7);
#undef REFUSED
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_absent_cold),
        cmocka_unit_test(test_put_get_same),
        cmocka_unit_test(test_put_twice_newer_wins),
        cmocka_unit_test(test_borrowed_bytes_survive_put_and_drop),
        cmocka_unit_test(test_peek_tells_version),
        cmocka_unit_test(test_keys_differ_in_each_field),
        cmocka_unit_test(test_slots_all_out_again),
        cmocka_unit_test(test_full_nospc_and_the_rest_stays),
        cmocka_unit_test(test_samples_max_nospc),
        cmocka_unit_test(test_put_bad_bytes_inval),
        cmocka_unit_test(test_marks_rise),
        cmocka_unit_test(test_random_run_equals_model),
        cmocka_unit_test(test_measure_is_what_it_takes),
        cmocka_unit_test(test_slots_lie_in_the_pages_of_the_config),
        cmocka_unit_test(test_open_nomem_leaks_nothing),
        cmocka_unit_test(test_config_refused),
    };
    int failed = 0;
    kit_log_start();
    for (uint32_t i = 0; i < aq_cache_kind_count(); ++i) {
        kind = aq_cache_kind(i);
        kit_folder(NULL, folder);
        printf("store %s in %s\n", kind, folder);
        failed += cmocka_run_group_tests_name(kind, tests, NULL, NULL);
        kit_remove(folder);
    }
    return failed == 0 ? 0 : 1;
}
