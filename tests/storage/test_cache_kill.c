/*
 * test_cache_kill.c -- SIGKILL at a random moment, and the cache opens at the last mark that was made, byte for byte.
 *
 * A child puts, drops and marks by a seeded sequence and tells each mark through shared memory; the parent kills it
 * after a seeded time, opens the cache at the last mark it was told, compares every message with a model of the same
 * sequence, and goes on from there with the next child. ARGS: the number of kills.
 */
#include "cache_kit.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SAMPLES = 32, BYTES_MAX = 60000 };

struct told {
    _Atomic uint64_t mark; /* made: release in the child, acquire after its death */
    _Atomic uint64_t failed;
};

struct model {
    uint64_t versions[SAMPLES]; /* 0: cold */
};

static char folder[KIT_PATH], path[KIT_PATH];
static uint64_t seed = 1;

static void config_fill(struct aq_cache_config *config, uint64_t mark)
{
    kit_config(folder, path, config);
    config->value_bytes_max = BYTES_MAX;
    config->samples_max = SAMPLES;
    config->slots = 8;
    config->depth = 4;
    config->mark = mark;
}

/* The steps between mark-1 and mark: what a child does, and what the model does. cache NULL: the model only. */
static enum aq_status steps_run(struct aq_cache *cache, struct model *model, uint64_t mark)
{
    const struct aq_rng_key rng = aq_rng_key(seed, AQ_RNG_TEST, 500, mark);
    const uint64_t count = 1 + aq_rng_below(&rng, 0, 60);
    for (uint64_t step = 1; step <= count; ++step) {
        const uint64_t sample = aq_rng_below(&rng, 2 * step, SAMPLES);
        const struct aq_cache_key key = kit_key(sample);
        const bool drop = aq_rng_below(&rng, 2 * step + 1, 12) == 0;
        model->versions[sample] = drop ? 0 : 1000 * mark + step;
        if (cache == NULL) continue;
        if (drop)
            AQ_TRY(aq_cache_drop(cache, &key));
        else
            AQ_TRY(kit_put(cache, sample, model->versions[sample], BYTES_MAX));
    }
    return AQ_OK;
}

/* Ends only by being killed, or by a failure. */
static void child_run(uint64_t mark, struct told *told)
{
    struct aq_cache_config config;
    struct aq_cache *cache;
    struct model model = {{0}};
    config_fill(&config, mark);
    enum aq_status status = aq_cache_open(&config, &cache);
    while (status == AQ_OK) {
        status = steps_run(cache, &model, ++mark);
        if (status == AQ_OK) status = aq_cache_mark_begin(cache, mark);
        if (status != AQ_OK) break;
        while ((status = aq_cache_mark_done(cache)) == AQ_AGAIN)
            usleep(50);
        if (status == AQ_OK) atomic_store_explicit(&told->mark, mark, memory_order_release);
    }
    atomic_store_explicit(&told->failed, (uint64_t)status, memory_order_release);
    _exit(1);
}

static bool compare(uint64_t mark)
{
    struct aq_cache_config config;
    struct aq_cache *cache;
    struct model model = {{0}};
    bool same = true;
    for (uint64_t i = 1; i <= mark; ++i)
        steps_run(NULL, &model, i);
    config_fill(&config, mark);
    if (aq_cache_open(&config, &cache) != AQ_OK) return false;
    for (uint64_t sample = 0; sample < SAMPLES; ++sample) {
        struct aq_cache_entry entry;
        const struct aq_cache_key key = kit_key(sample);
        if (model.versions[sample] > 0) {
            same = kit_same(cache, sample, model.versions[sample], BYTES_MAX) && same;
        } else if (aq_cache_peek(cache, &key, &entry) != AQ_NOTFOUND) {
            printf("sample %" PRIu64 " should be cold, has version %" PRIu64 "\n", sample, entry.version);
            same = false;
        }
    }
    aq_cache_close(cache);
    return same;
}

int main(int argc, char **argv)
{
    const uint64_t kills = argc > 1 ? strtoull(argv[1], NULL, 10) : 12;
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    const struct aq_rng_key rng = aq_rng_key(seed, AQ_RNG_TEST, 900, 0);
    struct told *told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told == MAP_FAILED) return 1;
    int result = 0;
    uint64_t mark = 0;
    kit_folder(NULL, folder);
    for (uint64_t kill_index = 0; kill_index < kills && result == 0; ++kill_index) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == -1) return 1;
        if (child == 0) child_run(mark, told);
        while (kill_index == 0 && atomic_load_explicit(&told->mark, memory_order_acquire) == 0 &&
               atomic_load_explicit(&told->failed, memory_order_acquire) == 0)
            usleep(1000); /* a first mark in any case: without one nothing would be tested */
        usleep((useconds_t)(2000 + aq_rng_below(&rng, kill_index, 400000)));
        kill(child, SIGKILL);
        int ended;
        waitpid(child, &ended, 0);
        const uint64_t failed = atomic_load_explicit(&told->failed, memory_order_acquire);
        const uint64_t before = mark;
        mark = atomic_load_explicit(&told->mark, memory_order_acquire);
        if (failed != 0) printf("the child failed: %s\n", aq_status_text((enum aq_status)failed));
        if (failed != 0 || !compare(mark)) result = 1;
        printf("kill %" PRIu64 ": marks %" PRIu64 " to %" PRIu64 ": %s\n", kill_index, before, mark,
               result ? "WRONG" : "same");
    }
    if (mark == 0) {
        printf("no child lived to make a mark: nothing was tested\n");
        result = 1;
    }
    if (result != 0) printf("reproduce: test_cache_kill %" PRIu64 " %" PRIu64 "\n", kills, seed);
    munmap(told, sizeof(*told));
    kit_remove(folder);
    return result;
}
