/*
 * test_cache_seal.c -- sealed caches: nothing of a message is on disk, nothing that somebody else put there comes
 * back as a message, and a second reader, written from docs/FORMAT.md alone, finds what was put.
 */
#include "cache_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>

enum { SAMPLES = 12, MOST = 10000, CELL = 12288, WINDOW = 16 };

static char folder[KIT_PATH], path[KIT_PATH];

static int begin(void **state)
{
    (void)state;
    kit_log_start();
    kit_folder(NULL, folder);
    return 0;
}

static int end(void **state)
{
    (void)state;
    kit_remove(folder);
    return 0;
}

static enum aq_status open_as(uint64_t mark, const uint8_t *key, struct aq_cache **cache)
{
    struct aq_cache_config config;
    kit_config(folder, path, &config);
    config.mark = mark;
    config.sealed = key != NULL;
    config.key = key;
    return aq_cache_open(&config, cache);
}

/* Version 1 of every sample at mark 1, version 2 at mark 2. */
static void make(const uint8_t *key)
{
    struct aq_cache *cache;
    assert_int_equal(open_as(0, key, &cache), AQ_OK);
    for (uint64_t version = 1; version <= 2; ++version) {
        for (uint64_t sample = 0; sample < SAMPLES; ++sample)
            assert_int_equal(kit_put(cache, sample, version, MOST), AQ_OK);
        assert_int_equal(kit_mark(cache, version), AQ_OK);
    }
    aq_cache_close(cache);
}

static uint8_t *file_read(const char *name, size_t *bytes)
{
    char file[2 * KIT_PATH];
    struct stat about;
    snprintf(file, sizeof file, "%s/%s", path, name);
    const int fd = open(file, O_RDONLY);
    assert_true(fd != -1 && fstat(fd, &about) == 0);
    void *memory = NULL;
    assert_int_equal(aq_alloc((size_t)about.st_size, &memory), AQ_OK);
    assert_int_equal(read(fd, memory, (size_t)about.st_size), about.st_size);
    close(fd);
    *bytes = (size_t)about.st_size;
    return memory;
}

static void slab_write(uint64_t offset, const void *bytes, size_t count)
{
    char file[2 * KIT_PATH];
    snprintf(file, sizeof file, "%s/slab", path);
    const int fd = open(file, O_WRONLY);
    assert_true(fd != -1);
    assert_int_equal(pwrite(fd, bytes, count, (off_t)offset), (ssize_t)count);
    close(fd);
}

static bool has(const uint8_t *bytes, size_t count, const void *what, size_t length)
{
    return memmem(bytes, count, what, length) != NULL;
}

/* How many of the messages have a piece in a file of the cache, and how many their digest. */
static void found(const char *name, uint32_t *messages, uint32_t *digests)
{
    size_t count;
    uint8_t *bytes = file_read(name, &count), message[MOST];
    *messages = *digests = 0;
    for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
        const uint64_t length = kit_bytes(sample, 2, MOST);
        kit_fill(sample, 2, message, length);
        const uint64_t digest = aq_digest(message, length);
        *digests += has(bytes, count, &digest, sizeof digest);
        for (uint64_t at = 0; at + WINDOW <= length; at += 512) {
            if (!has(bytes, count, message + at, WINDOW)) continue;
            ++*messages;
            break;
        }
    }
    aq_free(bytes);
}

static void test_disk_holds_no_message(void **state)
{
    (void)state;
    uint32_t messages, digests;
    make(NULL);
    found("slab", &messages, &digests);
    assert_int_equal(messages, SAMPLES); /* the search can find them */
    found("index.mdb", &messages, &digests);
    assert_int_equal(digests, SAMPLES);
    kit_remove(path);
    make(kit_cache_key);
    found("slab", &messages, &digests);
    assert_int_equal(messages + digests, 0);
    found("index.mdb", &messages, &digests);
    assert_int_equal(messages + digests, 0);
    for (int i = 0; i < 2; ++i) {
        size_t count;
        uint8_t *bytes = file_read(i ? "index.mdb" : "slab", &count);
        assert_false(has(bytes, count, kit_cache_key, 8));
        aq_free(bytes);
    }
}

static void test_own_key_gives_every_mark(void **state)
{
    (void)state;
    struct aq_cache *cache;
    make(kit_cache_key);
    for (uint64_t mark = 2; mark > 0; --mark) {
        assert_int_equal(open_as(mark, kit_cache_key, &cache), AQ_OK);
        for (uint64_t sample = 0; sample < SAMPLES; ++sample)
            assert_true(kit_same(cache, sample, mark, MOST));
        aq_cache_close(cache);
    }
}

/* Refused as a mark that is not there; and nothing is lost by that. */
static void test_other_key_is_a_lost_cache(void **state)
{
    (void)state;
    struct aq_cache *cache;
    uint8_t other[AQ_CACHE_KEY_BYTES];
    memcpy(other, kit_cache_key, sizeof other);
    other[31] ^= 1;
    make(kit_cache_key);
    assert_int_equal(open_as(2, other, &cache), AQ_NOTFOUND);
    assert_non_null(strstr(kit_log_last(), "sealed under another key"));
    assert_int_equal(open_as(0, other, &cache), AQ_MISMATCH);
    assert_int_equal(open_as(2, NULL, &cache), AQ_NOTFOUND);
    assert_non_null(strstr(kit_log_last(), "sealed, and this job's are not"));
    assert_int_equal(open_as(2, kit_cache_key, &cache), AQ_OK);
    assert_true(kit_same(cache, 3, 2, MOST));
    aq_cache_close(cache);
    kit_remove(path);
    make(NULL);
    assert_int_equal(open_as(2, kit_cache_key, &cache), AQ_NOTFOUND);
    assert_non_null(strstr(kit_log_last(), "not sealed, and this job's are"));
}

static void test_sealed_without_a_key_refused(void **state)
{
    (void)state;
    struct aq_cache *cache;
    struct aq_cache_config config;
    kit_config(folder, path, &config);
    config.sealed = true;
    config.key = NULL;
    assert_int_equal(aq_cache_open(&config, &cache), AQ_INVAL);
}

/* ---- who writes to the disk ---- */

static uint32_t cell_of(uint64_t sample, uint64_t mark)
{
    struct aq_cache_walk *walk;
    struct aq_cache_visit visit;
    const struct aq_cache_key key = kit_key(sample);
    uint32_t cell = UINT32_MAX;
    assert_int_equal(aq_cache_walk_open(path, mark, false, &walk), AQ_OK);
    while (aq_cache_walk_next(walk, &visit) == AQ_OK)
        if (memcmp(&visit.key, &key, sizeof key) == 0) cell = visit.cell;
    aq_cache_walk_close(walk);
    assert_true(cell != UINT32_MAX);
    return cell;
}

/* These are lost, all others are as they were put. */
static void only_lost(uint64_t first, uint64_t second)
{
    struct aq_cache *cache;
    struct aq_cache_entry entry;
    struct aq_cache_stats stats;
    assert_int_equal(open_as(2, kit_cache_key, &cache), AQ_OK);
    for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
        const struct aq_cache_key key = kit_key(sample);
        if (sample != first && sample != second) {
            assert_true(kit_same(cache, sample, 2, MOST));
            continue;
        }
        assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_CORRUPT);
        assert_true(kit_log_has("its encryption check failed"));
        assert_int_equal(aq_cache_get(cache, &key, kit_deadline(), &entry), AQ_NOTFOUND);
    }
    aq_cache_stats(cache, &stats);
    assert_true(stats.lost);
    assert_int_equal(stats.corrupt, first == second ? 1 : 2);
    aq_cache_close(cache);
}

static void test_changed_byte_costs_that_message(void **state)
{
    (void)state;
    size_t count;
    for (int where = 0; where < 3; ++where) {
        make(kit_cache_key);
        uint8_t *slab = file_read("slab", &count);
        const uint64_t bytes = kit_bytes(5, 2, MOST), at[3] = {0, bytes + 3, bytes + 12};
        const uint64_t offset = 4096 + (uint64_t)CELL * cell_of(5, 2) + at[where]; /* message, nonce, tag */
        slab[offset] ^= 0x10;
        slab_write(offset, slab + offset, 1);
        aq_free(slab);
        only_lost(5, 5);
        kit_remove(path);
    }
}

static void test_exchanged_cells_cost_both(void **state)
{
    (void)state;
    size_t count;
    make(kit_cache_key);
    uint8_t *slab = file_read("slab", &count);
    const uint64_t one = 4096 + (uint64_t)CELL * cell_of(1, 2), two = 4096 + (uint64_t)CELL * cell_of(2, 2);
    slab_write(one, slab + two, CELL);
    slab_write(two, slab + one, CELL);
    aq_free(slab);
    only_lost(1, 2);
}

static void test_older_version_is_not_taken(void **state)
{
    (void)state;
    size_t count;
    make(kit_cache_key);
    uint8_t *slab = file_read("slab", &count);
    slab_write(4096 + (uint64_t)CELL * cell_of(7, 2), slab + 4096 + (uint64_t)CELL * cell_of(7, 1), CELL);
    aq_free(slab);
    only_lost(7, 7);
}

static void test_tools_say_that_it_is_sealed(void **state)
{
    (void)state;
    struct aq_cache_walk *walk;
    struct aq_cache_info info;
    uint64_t freed;
    make(kit_cache_key);
    assert_int_equal(aq_cache_walk_open(path, 0, false, &walk), AQ_OK);
    aq_cache_walk_info(walk, &info);
    assert_true(info.sealed);
    assert_int_equal(info.entries, SAMPLES);
    assert_int_equal(info.format, 2);
    aq_cache_walk_close(walk);
    assert_int_equal(aq_cache_walk_open(path, 0, true, &walk), AQ_REFUSED);
    assert_non_null(strstr(kit_log_last(), "is sealed under a key that only its client has"));
    assert_int_equal(aq_cache_compact(path, &freed), AQ_REFUSED);
    struct aq_cache *cache;
    assert_int_equal(open_as(2, kit_cache_key, &cache), AQ_OK);
    assert_true(kit_same(cache, 0, 2, MOST));
    aq_cache_close(cache);
}

/* ---- a second reader ---- */

static void number(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; ++i)
        at[i] = (uint8_t)(value >> (8 * i));
}

/* RFC 5869 by its two formulas. */
static void hkdf(const uint8_t *key, const uint8_t salt[16], uint64_t job, uint8_t out[96])
{
    uint8_t prk[32], text[32 + 24 + 1], info[24] = "aqpipe cache 1";
    unsigned length = 32;
    number(info + 16, job, 8);
    assert_non_null(HMAC(EVP_sha256(), salt, 16, key, 32, prk, &length));
    for (uint8_t i = 0; i < 3; ++i) {
        const size_t before = i ? 32 : 0;
        if (i) memcpy(text, out + 32 * (i - 1), 32);
        memcpy(text + before, info, sizeof info);
        text[before + sizeof info] = (uint8_t)(i + 1);
        assert_non_null(HMAC(EVP_sha256(), prk, 32, text, before + sizeof info + 1, out + 32 * i, &length));
    }
}

static void index_key(uint64_t sample, uint8_t out[16])
{
    const struct aq_cache_key key = kit_key(sample);
    for (int i = 0; i < 4; ++i)
        out[i] = (uint8_t)(key.edge >> (24 - 8 * i));
    for (int i = 0; i < 2; ++i)
        out[4 + i] = (uint8_t)(key.side >> (8 - 8 * i));
    for (int i = 0; i < 2; ++i)
        out[6 + i] = (uint8_t)(key.variant >> (8 - 8 * i));
    for (int i = 0; i < 8; ++i)
        out[8 + i] = (uint8_t)(key.sample >> (56 - 8 * i));
}

static bool read_cell(const uint8_t *keys, const uint8_t *cell, uint32_t place, uint64_t sample, uint8_t *message)
{
    uint8_t about[40], tag[16];
    const uint64_t bytes = kit_bytes(sample, 2, MOST);
    int count;
    index_key(sample, about);
    number(about + 16, 2, 8);
    number(about + 24, bytes, 4);
    number(about + 28, place, 4);
    number(about + 32, 0x1234567890abcdef, 8);
    memcpy(tag, cell + bytes + 12, sizeof tag);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    const bool good = EVP_DecryptInit_ex(context, EVP_aes_256_gcm(), NULL, keys, cell + bytes) == 1 &&
                      EVP_DecryptUpdate(context, NULL, &count, about, sizeof about) == 1 &&
                      EVP_DecryptUpdate(context, message, &count, cell, (int)bytes) == 1 &&
                      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, 16, tag) == 1 &&
                      EVP_DecryptFinal_ex(context, message, &count) == 1;
    EVP_CIPHER_CTX_free(context);
    return good;
}

static uint64_t mask_of(const uint8_t *keys, uint64_t sample)
{
    uint8_t text[32] = {0}, out[32];
    static const uint8_t zeros[16];
    uint64_t mask;
    int count;
    index_key(sample, text);
    number(text + 16, 2, 8);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    assert_int_equal(EVP_EncryptInit_ex(context, EVP_aes_256_cbc(), NULL, keys + 32, zeros), 1);
    EVP_CIPHER_CTX_set_padding(context, 0);
    assert_int_equal(EVP_EncryptUpdate(context, out, &count, text, sizeof text), 1);
    EVP_CIPHER_CTX_free(context);
    memcpy(&mask, out + 16, sizeof mask);
    return mask;
}

static void test_second_reader_finds_what_was_put(void **state)
{
    (void)state;
    size_t slab_bytes, index_bytes;
    uint8_t keys[96], message[MOST], wanted[MOST];
    make(kit_cache_key);
    uint8_t *slab = file_read("slab", &slab_bytes), *index = file_read("index.mdb", &index_bytes);
    assert_int_equal(slab[8], 2);
    assert_int_equal(slab[201], 1);
    hkdf(kit_cache_key, slab + 208, 0x1234567890abcdef, keys);
    assert_memory_equal(slab + 224, keys + 64, 8);
    for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
        const uint64_t bytes = kit_bytes(sample, 2, MOST);
        uint32_t cells = 0;
        kit_fill(sample, 2, wanted, bytes);
        for (uint32_t cell = 0; 4096 + (uint64_t)CELL * (cell + 1) <= slab_bytes && cell < 4 * SAMPLES; ++cell) {
            if (!read_cell(keys, slab + 4096 + (uint64_t)CELL * cell, cell, sample, message)) continue;
            assert_memory_equal(message, wanted, bytes);
            ++cells;
        }
        assert_int_equal(cells, 1);
        const uint64_t digest = aq_digest(wanted, bytes) ^ mask_of(keys, sample);
        assert_true(has(index, index_bytes, &digest, sizeof digest));
    }
    aq_free(slab);
    aq_free(index);
}

/* Two caches of one key have other keys of cells, and one message sealed twice has other bytes. */
static void test_same_message_never_sealed_alike(void **state)
{
    (void)state;
    size_t count;
    make(kit_cache_key);
    uint8_t *one = file_read("slab", &count);
    kit_remove(path);
    make(kit_cache_key);
    uint8_t *two = file_read("slab", &count);
    assert_memory_not_equal(one + 208, two + 208, 16);
    assert_memory_not_equal(one + 4096, two + 4096, 64);
    aq_free(one);
    aq_free(two);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_disk_holds_no_message),
        TEST(test_own_key_gives_every_mark),
        TEST(test_other_key_is_a_lost_cache),
        TEST(test_sealed_without_a_key_refused),
        TEST(test_changed_byte_costs_that_message),
        TEST(test_exchanged_cells_cost_both),
        TEST(test_older_version_is_not_taken),
        TEST(test_tools_say_that_it_is_sealed),
        TEST(test_second_reader_finds_what_was_put),
        TEST(test_same_message_never_sealed_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
