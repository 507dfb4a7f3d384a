/*
 * bench_cache.c -- the message cache on this machine's disk, compared with fio on the same file.
 *
 * A message is one sample at GPT-2 XL's cut (1 x 1024 x 1600 fp32, 6.5 MB). Reads go through the public calls:
 * prefetched in random order, got, digest checked, released; only bytes that came from the disk count. fio then reads
 * the cache's own slab at random with the same engine, block size and depth, past the page cache, with registered
 * buffers as the cache has them. The two take turns, because disks are noisy; figures are medians of the turns.
 *
 * `cache read cpu` is the processor time of only reading: all of this process less the time in which digests were
 * checked, which `cache read cpu with digest` includes. `cache read sealed` is the same of a cache that is encrypted.
 */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "owned_folder.h"
#include "storage/cache.h"

extern char **environ;

enum {
    MESSAGE_BYTES = 4 * 1024 * 1600,
    MESSAGES = 192, /* 1.3 GB; twice that on disk, with the two marks */
    MESSAGES_QUICK = 64,
    SLOTS = 28,
    DEPTH = 16,
    AHEAD = 24, /* prefetched beyond the one that is used */
    TURNS = 5,
    TURNS_QUICK = 3,
    PATH_BYTES = 4096,
    WAIT_S = 60
};
#define TURN_NS UINT64_C(1200000000)

struct turn {
    double read, cpu, cpu_digest; /* bytes a second; cores */
    double fio;                   /* 0: not measured */
};

struct bench {
    const struct aq_bench_options *options;
    char folder[PATH_BYTES];
    char slab[PATH_BYTES + 32];
    struct aq_cache *cache;
    uint32_t messages;
    uint64_t shuffles;
    struct turn turns[TURNS], sealed[TURNS];
    double write[2], write_sealed[2];
};

static uint64_t deadline(void)
{
    return aq_clock_after(UINT64_C(1000000000) * WAIT_S);
}

/* Fresh memory is filled once with bytes that no disk can squeeze; later a stamp makes each message another. */
static void message_fill(void *slot, uint64_t stamp)
{
    uint64_t *words = slot;
    if (words[1] == 0) {
        const struct aq_rng_key key = aq_rng_key(3, AQ_RNG_TEST, stamp, 0);
        for (uint64_t i = 0; i < MESSAGE_BYTES / 16; i++) {
            uint32_t block[4];
            aq_rng_block(&key, i, block);
            memcpy(&words[2 * i], block, sizeof block);
        }
        words[1] |= 1;
    }
    words[0] = stamp;
}

static enum aq_status mark_wait(struct aq_cache *cache, uint64_t mark)
{
    enum aq_status status;
    const uint64_t deadline_ns = deadline();
    AQ_TRY(aq_cache_mark_begin(cache, mark));
    while ((status = aq_cache_mark_done(cache)) == AQ_AGAIN) {
        if (aq_clock_ns() > deadline_ns)
            return aq_fail(AQ_TIMEOUT, "bench", "no mark of the cache within %d s", WAIT_S);
        usleep(1000);
    }
    return status;
}

/* Every message once, then a mark: what a training epoch writes. Bytes a second until the mark is there. */
static enum aq_status write_all(struct bench *bench, uint64_t pass, double *rate)
{
    const uint64_t begin_ns = aq_clock_ns();
    for (uint32_t i = 0; i < bench->messages; i++) {
        const struct aq_cache_key key = {.sample = i};
        void *slot;
        AQ_TRY(aq_cache_slot(bench->cache, deadline(), &slot));
        message_fill(slot, pass << 32 | i);
        AQ_TRY(aq_cache_put(bench->cache, &key, pass, aq_digest(slot, MESSAGE_BYTES), slot, MESSAGE_BYTES));
    }
    AQ_TRY(mark_wait(bench->cache, pass));
    *rate = (double)bench->messages * MESSAGE_BYTES / ((double)(aq_clock_ns() - begin_ns) * 1e-9);
    return AQ_OK;
}

static void shuffle(struct bench *bench, uint32_t *order)
{
    const struct aq_rng_key key = aq_rng_key(4, AQ_RNG_TEST, bench->shuffles++, 0);
    for (uint32_t i = 0; i < bench->messages; i++)
        order[i] = i;
    for (uint32_t i = bench->messages; i-- > 1;) {
        const uint32_t j = (uint32_t)aq_rng_below(&key, i, i + 1);
        const uint32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static enum aq_status read_all(struct bench *bench, const uint32_t *order)
{
    uint32_t ahead = 0;
    for (uint32_t i = 0; i < bench->messages; i++) {
        for (; ahead < bench->messages && ahead < i + AHEAD; ahead++) {
            const struct aq_cache_key key = {.sample = order[ahead]};
            if (aq_cache_prefetch(bench->cache, &key) != AQ_OK) break; /* no slot now: after the next release */
        }
        const struct aq_cache_key key = {.sample = order[i]};
        struct aq_cache_entry entry;
        AQ_TRY(aq_cache_get(bench->cache, &key, deadline(), &entry));
        aq_cache_release(bench->cache, &entry);
    }
    return AQ_OK;
}

static double thread_cpu_s(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0) return NAN;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static enum aq_status read_turn(struct bench *bench, struct turn *turn)
{
    struct aq_cache_stats before, after;
    uint32_t order[MESSAGES];
    aq_cache_stats(bench->cache, &before);
    const uint64_t begin_ns = aq_clock_ns(), cpu_ns = aq_clock_cpu_ns();
    const double thread_s = thread_cpu_s();
    do {
        shuffle(bench, order);
        AQ_TRY(read_all(bench, order));
    } while (aq_clock_ns() - begin_ns < TURN_NS);
    const double wall_s = (double)(aq_clock_ns() - begin_ns) * 1e-9;
    const double all_s = (double)(aq_clock_cpu_ns() - cpu_ns) * 1e-9;
    aq_cache_stats(bench->cache, &after);
    /* The check runs on this thread; if another process took the core, its wall time is more than its CPU time. */
    const double own_s = thread_cpu_s() - thread_s, check_s = (double)(after.check_ns - before.check_ns) * 1e-9;
    turn->read = (double)(after.read_bytes - before.read_bytes) / wall_s;
    turn->cpu = (all_s - fmin(own_s, check_s)) / wall_s;
    turn->cpu_digest = all_s / wall_s;
    return AQ_OK;
}

static enum aq_status fio_parse(const char *path, double *rate)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_DISABLE_EOF_CHECK, &error);
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    const json_t *bytes = json_object_get(json_object_get(job, "read"), "bw_bytes");
    *rate = json_number_value(bytes);
    json_decref(root);
    if (*rate > 0) return AQ_OK;
    return aq_fail(AQ_IO, "bench", "fio gave no rate in %s", path);
}

/* One run of fio over the cells that hold the messages. AQ_NODEV: it is not installed. */
static enum aq_status fio_turn(struct bench *bench, double *rate)
{
    char out[PATH_BYTES + 32], file[PATH_BYTES + 64], block[64], depth[64], offset[64], size[64];
    snprintf(out, sizeof out, "%s/fio.json", bench->folder);
    snprintf(file, sizeof file, "--filename=%s", bench->slab);
    snprintf(block, sizeof block, "--bs=%d", MESSAGE_BYTES);
    snprintf(depth, sizeof depth, "--iodepth=%d", DEPTH);
    /* The cells of the second pass: the very bytes that the cache reads. */
    snprintf(offset, sizeof offset, "--offset=%llu", 4096 + 1ULL * bench->messages * MESSAGE_BYTES);
    snprintf(size, sizeof size, "--size=%llu", 1ULL * bench->messages * MESSAGE_BYTES);
    /* An engine's own options come behind its name. */
    char *arguments[] = {"fio",
                         "--name=randread",
                         "--ioengine=io_uring",
                         "--fixedbufs=1",
                         "--direct=1",
                         "--rw=randread",
                         "--readonly",
                         "--norandommap",
                         "--time_based",
                         "--runtime=1200ms",
                         offset,
                         "--output-format=json",
                         file,
                         block,
                         depth,
                         size,
                         NULL};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child;
    const int error = posix_spawnp(&child, "fio", &files, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    if (error == ENOENT) return AQ_NODEV;
    if (error != 0) {
        errno = error;
        return aq_fail_errno("bench", "cannot start fio");
    }
    int ended = 0;
    if (waitpid(child, &ended, 0) == -1) return aq_fail_errno("bench", "wait for fio");
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0) return aq_fail(AQ_IO, "bench", "fio failed (status %d)", ended);
    return fio_parse(out, rate);
}

/* The median of one field (its offset in doubles) over the turns; ratio: of read/fio of each turn. */
static double median(const struct turn *turns, uint32_t count, size_t offset, bool ratio)
{
    double values[TURNS];
    for (uint32_t i = 0; i < count; i++) {
        memcpy(&values[i], (const char *)&turns[i] + offset, sizeof values[i]);
        if (ratio) values[i] = turns[i].read / turns[i].fio;
    }
    return aq_bench_middle(values, count);
}

static enum aq_status cache_make(struct bench *bench, bool sealed)
{
    static const uint8_t key[AQ_CACHE_KEY_BYTES] = {1};
    char path[PATH_BYTES + 16];
    struct aq_cache_config config;
    aq_cache_config_default(&config);
    snprintf(path, sizeof path, "%s/%s", bench->folder, sealed ? "sealed" : "cache");
    snprintf(bench->slab, sizeof bench->slab, "%s/slab", path);
    config.path = path;
    config.job_name = "bench";
    config.value_bytes_max = MESSAGE_BYTES;
    config.samples_max = bench->messages;
    config.slots = SLOTS;
    config.depth = DEPTH;
    config.sealed = sealed;
    config.key = key;
    return aq_cache_open(&config, &bench->cache);
}

static enum aq_status measure(struct bench *bench, uint32_t turns, bool *fio)
{
    AQ_TRY(cache_make(bench, false));
    for (uint64_t pass = 1; pass <= 2; pass++)
        AQ_TRY(write_all(bench, pass, &bench->write[pass - 1]));
    *fio = true;
    for (uint32_t i = 0; i < turns; i++) {
        AQ_TRY(read_turn(bench, &bench->turns[i]));
        if (!*fio) continue;
        const enum aq_status status = fio_turn(bench, &bench->turns[i].fio);
        if (status == AQ_NODEV)
            *fio = false;
        else
            AQ_TRY(status);
    }
    aq_cache_close(bench->cache);
    bench->cache = NULL;
    AQ_TRY(cache_make(bench, true));
    for (uint64_t pass = 1; pass <= 2; pass++)
        AQ_TRY(write_all(bench, pass, &bench->write_sealed[pass - 1]));
    for (uint32_t i = 0; i < turns; i++)
        AQ_TRY(read_turn(bench, &bench->sealed[i]));
    return AQ_OK;
}

enum aq_status aq_bench_cache(const struct aq_bench_options *options)
{
    struct bench bench = {.options = options, .messages = options->quick ? MESSAGES_QUICK : MESSAGES};
    const uint32_t turns = options->quick ? TURNS_QUICK : TURNS;
    const char *parent = getenv("TMPDIR");
    bool fio = false;
    snprintf(bench.folder, sizeof bench.folder, "%s/aqpipe-bench.XXXXXX",
             parent != NULL && *parent != 0 ? parent : ".");
    AQ_TRY(aq_owned_scratch_make(bench.folder));
    const enum aq_status status = measure(&bench, turns, &fio);
    aq_cache_close(bench.cache);
    const enum aq_status removed = aq_owned_scratch_remove(bench.folder, NULL);
    AQ_TRY(status);
    AQ_TRY(removed);

    aq_bench_emit(options, "cache write", bench.write[1] * 1e-9, "GB/s");
    aq_bench_emit(options, "cache write first", bench.write[0] * 1e-9, "GB/s");
    aq_bench_emit(options, "cache read", median(bench.turns, turns, offsetof(struct turn, read), false) * 1e-9, "GB/s");
    aq_bench_emit(options, "cache read cpu", median(bench.turns, turns, offsetof(struct turn, cpu), false), "cores");
    aq_bench_emit(options, "cache read cpu with digest",
                  median(bench.turns, turns, offsetof(struct turn, cpu_digest), false), "cores");
    aq_bench_emit(options, "cache write sealed", bench.write_sealed[1] * 1e-9, "GB/s");
    aq_bench_emit(options, "cache read sealed", median(bench.sealed, turns, offsetof(struct turn, read), false) * 1e-9,
                  "GB/s");
    aq_bench_emit(options, "cache read sealed cpu", median(bench.sealed, turns, offsetof(struct turn, cpu), false),
                  "cores");
    if (!fio)
        return aq_fail(AQ_NODEV, "bench", "fio is not installed, so nothing to compare with: apt-get install fio");
    aq_bench_emit(options, "cache read fio", median(bench.turns, turns, offsetof(struct turn, fio), false) * 1e-9,
                  "GB/s");
    aq_bench_emit(options, "cache read/fio", median(bench.turns, turns, 0, true), "ratio");
    return AQ_OK;
}
