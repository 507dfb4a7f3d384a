/*
 * fuzz_driver.c -- fuzz targets without libFuzzer: every input of the kept corpus, then damaged copies of them.
 *
 *     test_fuzz READER [--runs N] [--seed N] CORPUS...   folders or single files (a finding, for the debugger)
 *
 * The damage is a pure function of seed and run, so that a failure comes again. AQ_FUZZ_LAST=file keeps the input that
 * is being run in a file, so that the one that crashed is at hand.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "fuzz_entry.h"

enum { INPUTS_MAX = 512, INPUT_BYTES_MAX = 1 << 18, PATH_BYTES = 4096 };

struct input {
    uint8_t *bytes;
    size_t count;
};

static struct input inputs[INPUTS_MAX];
static size_t input_count;
static const char *last;
static const struct fuzz_entry *target;

extern const struct fuzz_entry __start_fuzz_entries[], __stop_fuzz_entries[];

static void load(const char *path)
{
    FILE *file = fopen(path, "rb");
    /* Memory of aq_alloc belongs to the target alone: some count it. */
    uint8_t *memory = malloc(INPUT_BYTES_MAX);
    if (!file || input_count == INPUTS_MAX || !memory) {
        perror(path);
        exit(1);
    }
    inputs[input_count++] = (struct input){memory, fread(memory, 1, INPUT_BYTES_MAX, file)};
    fclose(file);
}

static int by_name(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

static void load_all(const char *path)
{
    struct stat about;
    struct dirent **names;
    if (stat(path, &about) != 0) {
        perror(path);
        exit(1);
    }
    if (!S_ISDIR(about.st_mode)) {
        load(path);
        return;
    }
    const int count = scandir(path, &names, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char file[PATH_BYTES];
        if (names[i]->d_name[0] != '.' &&
            snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name) < (int)sizeof file)
            load(file);
        free(names[i]);
    }
    if (count >= 0) free(names);
}

static void one(const uint8_t *bytes, size_t count)
{
    /* A copy of its own length, so that a sanitizer sees a read beyond its end. */
    uint8_t *copy;
    if (last) {
        FILE *file = fopen(last, "wb");
        if (!file || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) exit(1);
    }
    copy = malloc(count ? count : 1);
    if (!copy) exit(1);
    memcpy(copy, bytes, count);
    target->input(copy, count);
    free(copy);
}

/* Numbers that lengths, counts and offsets are broken with. */
static const uint64_t mean[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xfffffff0, UINT64_MAX};
static const char spice[] = ":,[]{}-&*!|>'\"%@`#?\n\t 0129.\\~=";

struct draw {
    struct aq_rng_key key;
    uint64_t at;
};

static uint64_t below(struct draw *draw, uint64_t limit)
{
    return aq_rng_below(&draw->key, draw->at++, limit);
}

/* A piece of another input, or of this one, put over or between what is there. */
static size_t transplant(struct draw *draw, uint8_t *bytes, size_t count)
{
    const struct input *donor = &inputs[below(draw, input_count)];
    if (donor->count == 0) return count;
    const size_t from = below(draw, donor->count), place = below(draw, count + 1);
    size_t length = 1 + below(draw, below(draw, 4) ? 16 : 512);
    if (length > donor->count - from) length = donor->count - from;
    const bool between = below(draw, 2) == 1;
    if (between ? length > INPUT_BYTES_MAX - count : length > count - place) return count;
    if (between) memmove(bytes + place + length, bytes + place, count - place);
    memcpy(bytes + place, donor->bytes + from, length);
    return between ? count + length : count;
}

static size_t damage_once(struct draw *draw, uint8_t *bytes, size_t count)
{
    /* Half of the changes hit the first 96 bytes, where headers are. */
    const size_t reach = count > 96 && below(draw, 2) ? 96 : count, place = reach ? below(draw, reach) : 0;
    const uint64_t value = mean[below(draw, sizeof mean / sizeof *mean)];
    const size_t width = (size_t)1 << below(draw, 4);
    switch (below(draw, 8)) {
    case 0:
        if (count) bytes[place] = (uint8_t)below(draw, 256);
        return count;
    case 1:
        if (count) bytes[place] ^= (uint8_t)(1u << below(draw, 8));
        return count;
    case 2:
        if (count) bytes[place] = (uint8_t)spice[below(draw, sizeof spice - 1)];
        return count;
    case 3:
        if (width <= count - place) memcpy(bytes + place, &value, width); /* little endian, as the formats are */
        return count;
    case 4:
        return below(draw, 3) ? count : place; /* cut short */
    case 5: {
        const size_t gone = count ? 1 + below(draw, 16) : 0;
        if (gone > count - place) return count;
        memmove(bytes + place, bytes + place + gone, count - place - gone);
        return count - gone;
    }
    default:
        return transplant(draw, bytes, count);
    }
}

static void mutate(uint64_t seed, uint64_t run, uint8_t *bytes)
{
    struct draw draw = {.key = aq_rng_key(seed, AQ_RNG_TEST, 0xf022, run)};
    const struct input *input = &inputs[run % input_count];
    size_t count = input->count;
    memcpy(bytes, input->bytes, count);
    const uint64_t changes = 1 + below(&draw, 6);
    for (uint64_t i = 0; i < changes; i++)
        count = damage_once(&draw, bytes, count);
    one(bytes, count);
}

int main(int argc, char **argv)
{
    static uint8_t bytes[INPUT_BYTES_MAX];
    uint64_t runs = 0, seed = 1;
    last = getenv("AQ_FUZZ_LAST");
    for (const struct fuzz_entry *entry = __start_fuzz_entries; argc > 1 && entry < __stop_fuzz_entries; entry++)
        if (strcmp(entry->reader, argv[1]) == 0) target = entry;
    if (!target) {
        fprintf(stderr, "usage: %s READER [--runs N] [--seed N] CORPUS...\n", argv[0]);
        for (const struct fuzz_entry *entry = __start_fuzz_entries; entry < __stop_fuzz_entries; entry++)
            fprintf(stderr, "  %s\n", entry->reader);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            runs = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else
            load_all(argv[i]);
    }
    if (input_count == 0) {
        fprintf(stderr, "%s %s: there is no input: give it files or folders\n", argv[0], argv[1]);
        return 1;
    }
    for (size_t i = 0; i < input_count; i++)
        one(inputs[i].bytes, inputs[i].count);
    for (uint64_t run = 0; run < runs; run++)
        mutate(seed, run, bytes);
    printf("inputs=%zu runs=%llu taken=%llu refused=%llu\n", input_count, (unsigned long long)runs,
           (unsigned long long)fuzz_taken(), (unsigned long long)fuzz_refused());
    for (size_t i = 0; i < input_count; i++)
        free(inputs[i].bytes);
    /* A single file is a replay; a corpus must reach what lies behind the front door, and the door itself. */
    if (runs > 0 && (fuzz_taken() == 0 || fuzz_refused() == 0)) {
        fprintf(stderr, "the corpus has gone stale: its reader takes none of it, or all\n");
        return 1;
    }
    return 0;
}
