/*
 * test_cache_bytes.c -- files of a cache that were damaged in every way that is easy to think of: a status, never a
 * crash, and never a wrong message.
 *
 * A good cache is made, then copied and damaged by a seeded mutation (bytes, words, pages, lengths), then opened, read,
 * written, marked and walked. What is read must be what was put at some version: a damage may cost messages only.
 * ARGS: the number of mutations.
 */
#include "cache_kit.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 200, BYTES_MAX = 600, FILE_MAX = 4 << 20 };

struct file {
    uint8_t *bytes;
    size_t count;
};

static char folder[KIT_PATH], path[KIT_PATH];
static uint64_t seed = 1;

static void file_of(const char *name, char out[KIT_PATH + 32])
{
    snprintf(out, KIT_PATH + 32, "%s/%s", path, name);
}

static struct file file_read(const char *name)
{
    char text[KIT_PATH + 32];
    struct file file = {.bytes = malloc(FILE_MAX)};
    file_of(name, text);
    const int fd = open(text, O_RDONLY);
    const ssize_t got = fd >= 0 && file.bytes != NULL ? read(fd, file.bytes, FILE_MAX) : -1;
    if (got < 0) abort();
    file.count = (size_t)got;
    close(fd);
    return file;
}

static void file_write(const char *name, const uint8_t *bytes, size_t count)
{
    char text[KIT_PATH + 32];
    file_of(name, text);
    const int fd = open(text, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd == -1 || write(fd, bytes, count) != (ssize_t)count) abort();
    close(fd);
}

static void config_of(struct aq_cache_config *config, uint64_t mark)
{
    kit_config(folder, path, config);
    config->value_bytes_max = BYTES_MAX;
    config->samples_max = 2 * SAMPLES;
    config->bytes_max = UINT64_C(520) * 4096; /* a small slab: it is copied for every mutation */
    config->mark = mark;
}

/* Several rounds, so that the index has branch pages, freed pages and chains of two records. */
static void cache_make(void)
{
    struct aq_cache_config config;
    struct aq_cache *cache;
    config_of(&config, 0);
    if (aq_cache_open(&config, &cache) != AQ_OK) abort();
    for (uint64_t mark = 1; mark <= 4; ++mark) {
        for (uint64_t sample = 0; sample < SAMPLES; sample += mark) {
            const struct aq_cache_key key = kit_key(sample);
            if (sample % 7 == mark)
                aq_cache_drop(cache, &key);
            else if (kit_put(cache, sample, mark, BYTES_MAX) != AQ_OK)
                abort();
        }
        if (kit_mark(cache, mark) != AQ_OK) abort();
    }
    aq_cache_close(cache);
}

/* What is there must be a version that was put, with its bytes; false where a wrong message came through. */
static bool cache_use(uint64_t mark, uint64_t *held)
{
    struct aq_cache_config config;
    struct aq_cache *cache;
    bool good = true;
    config_of(&config, mark);
    if (aq_cache_open(&config, &cache) != AQ_OK) return true;
    for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
        struct aq_cache_entry entry;
        uint8_t wanted[BYTES_MAX + 16];
        const struct aq_cache_key key = kit_key(sample);
        if (aq_cache_get(cache, &key, kit_deadline(), &entry) != AQ_OK) continue;
        kit_fill(sample, entry.version, wanted, kit_bytes(sample, entry.version, BYTES_MAX));
        good = good && entry.version <= 4 && entry.byte_count == kit_bytes(sample, entry.version, BYTES_MAX) &&
               memcmp(entry.bytes, wanted, entry.byte_count) == 0;
        aq_cache_release(cache, &entry);
        ++*held;
    }
    for (uint64_t sample = 0; sample < 40; ++sample)
        kit_put(cache, sample * 3, 4, BYTES_MAX);
    kit_mark(cache, 1000);
    aq_cache_close(cache);
    return good;
}

static void cache_walk(void)
{
    struct aq_cache_walk *walk;
    struct aq_cache_visit visit;
    uint64_t freed;
    if (aq_cache_walk_open(path, 0, true, &walk) == AQ_OK) {
        for (uint64_t i = 0; i < 4 * SAMPLES && aq_cache_walk_next(walk, &visit) == AQ_OK;)
            ++i;
        aq_cache_walk_close(walk);
    }
    aq_cache_compact(path, &freed);
}

/* One to four damages. */
static void mutate(struct file *file, const struct aq_rng_key *rng, bool page_wise)
{
    const uint64_t damages = 1 + aq_rng_below(rng, 0, 4);
    for (uint64_t i = 0; i < damages; ++i) {
        const uint64_t at = 16 * (i + 1);
        uint64_t where = aq_rng_below(rng, at, file->count);
        if (page_wise && aq_rng_below(rng, at + 1, 2) == 0)
            where = where / 4096 * 4096 + aq_rng_below(rng, at + 2, 160);
        if (where >= file->count) where = file->count - 1;
        const uint64_t value = aq_rng_u32(rng, at + 3);
        switch (aq_rng_below(rng, at + 4, 8)) {
        case 0:
            file->bytes[where] ^= (uint8_t)(1u << (value % 8));
            break;
        case 1:
            file->bytes[where] = (uint8_t)value;
            break;
        case 2: /* a small number */
            file->bytes[where] = (uint8_t)(value % 16);
            break;
        case 3: /* a word */
            for (uint64_t b = 0; b < 8 && where + b < file->count; ++b)
                file->bytes[where + b] = (value & 1) ? 0xff : 0;
            break;
        case 4: /* one page over another */
            if (file->count >= 8192) {
                const uint64_t pages = file->count / 4096;
                memcpy(file->bytes + aq_rng_below(rng, at + 5, pages) * 4096,
                       file->bytes + aq_rng_below(rng, at + 6, pages) * 4096, 4096);
            }
            break;
        case 5:
            if (value % 4 == 0) file->count = aq_rng_below(rng, at + 5, file->count) + 1;
            break;
        case 6:
            if (where + 1 < file->count) file->bytes[where + 1] = file->bytes[where];
            break;
        default:
            file->bytes[where] = (uint8_t)(file->bytes[where] + 1);
            break;
        }
    }
}

int main(int argc, char **argv)
{
    const uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 300;
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    uint64_t opened = 0, damaged = 0;
    int result = 0;
    kit_log_start();
    /* Memory is enough here: nothing is timed and nothing must survive. */
    kit_folder(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : NULL, folder);
    struct aq_cache_config config;
    config_of(&config, 0);
    cache_make();
    const struct file index = file_read("index.mdb"), slab = file_read("slab");
    uint8_t *bytes = malloc(FILE_MAX);
    if (bytes == NULL) return 1;
    if (!cache_use(4, &opened) || opened < SAMPLES / 2) result = 1; /* undamaged: the test itself can see messages */
    for (uint64_t i = 0; i < count && result == 0; ++i) {
        const struct aq_rng_key rng = aq_rng_key(seed, AQ_RNG_TEST, 700, i);
        const bool slab_too = aq_rng_below(&rng, 8, 4) == 0;
        struct file copy = {.bytes = bytes, .count = index.count};
        uint64_t held = 0;
        memcpy(bytes, index.bytes, index.count);
        if (!slab_too) mutate(&copy, &rng, true);
        file_write("index.mdb", bytes, copy.count);
        copy.count = slab.count;
        memcpy(bytes, slab.bytes, slab.count);
        if (slab_too) mutate(&copy, &rng, false);
        file_write("slab", bytes, copy.count);
        if (i % 3 == 2) cache_walk();
        if (!cache_use(i % 2 == 0 ? 4 : 3, &held)) {
            printf("mutation %" PRIu64 ": a wrong message came through; reproduce: test_cache_bytes %" PRIu64
                   " %" PRIu64 "\n",
                   i, i + 1, seed);
            result = 1;
        }
        if (held > 0) ++damaged;
    }
    printf("%" PRIu64 " mutations, %" PRIu64 " of them left something to read\n", count, damaged);
    free(bytes);
    free(index.bytes);
    free(slab.bytes);
    kit_remove(folder);
    return result;
}
