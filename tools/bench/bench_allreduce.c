/*
 * bench_allreduce.c -- the mean of 124M floats over W ranks at a given rate: how far from the link's limit.
 *
 * Every rank is a process behind its own shaped link (bench_ranks.h). `allreduce CODEC W RATE time/limit` is the
 * measured time, from the first rank's start to the last rank's end, over bytes / rate, where bytes are the frame
 * bodies that leave one rank: 2 (W - 1) / W of the coded buffer. Headers of Ethernet, IP and TCP are not in the limit:
 * with only them the ratio is 1.046. With codecs, error feedback is on at both sides, as optimizers have it.
 *
 * With --device cuda every rank has its floats on the GPU, all on this one (`allreduce cuda CODEC W RATE`), and where
 * there are several GPUs, on one each, over NCCL: `allreduce nccl CODEC W` is the bytes that leave a rank over its
 * time.
 *
 * `pack sign` and `unpack sign` are one core's, in bytes of fp32 input, from and to pieces in its cache; `... dram` of
 * a larger buffer in memory, `... error` with the error buffer, in memory as well.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aqsgd/grad_codec.h"
#include "bench.h"
#include "bench_ranks.h"

static const char *const AREA = "bench";

enum { PARAMETERS = 124439808, THREADS = 1, ROUNDS = 2, GPUS_MAX = 4 }; /* GPT-2's; ranks share this machine's cores */

struct codec_case {
    const char *name, *kind;
    uint32_t bits;
};

static const struct codec_case CODECS[] = {
    {"fp32", NULL, 32}, {"q8", "uniform", 8}, {"q4", "uniform", 4}, {"sign", "sign", 1}};
enum { CODEC_COUNT = sizeof CODECS / sizeof *CODECS };

struct work { /* what every rank does */
    const struct codec_case *codec;
    uint64_t count;
    uint32_t rounds;
    const char *device; /* all ranks' */
    uint32_t device_index;
    bool nccl; /* each rank has the GPU of its number */
};

struct outcome { /* of one rank */
    uint64_t begin_ns[ROUNDS], end_ns[ROUNDS];
    uint64_t sent_bytes; /* of one round */
    struct aq_group_stats stats;
    uint64_t cpu_ns; /* of all rounds, its loop's included */
};

struct memory { /* floats of the device */
    struct aq_device *device;
    float *x, *worker_error, *server_error;
    uint64_t count, chunk;
    struct aq_grad_codec *codec;
};

/* Numbers with a sign and some spread, another set on each rank. */
static void fill(float *x, uint64_t count, uint32_t rank)
{
    enum { BLOCK = 1 << 16 };
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, rank, 0);
    for (uint64_t i = 0; i < count && i < BLOCK; i++)
        x[i] = (float)(int32_t)aq_rng_u32(&key, i) * 0x1p-41f;
    for (uint64_t at = BLOCK; at < count; at += BLOCK)
        memcpy(x + at, x, (count - at < BLOCK ? count - at : BLOCK) * sizeof *x);
}

static enum aq_status open_codec(const struct codec_case *codec, uint64_t count, struct aq_grad_codec **out)
{
    const struct aq_optimizer_tensor tensor = {.count = count};
    struct aq_grad_codec_config config;
    aq_grad_codec_config_default(&config, codec->kind);
    if (strcmp(codec->kind, "uniform") == 0) config.bits = codec->bits;
    return aq_grad_codec_open(&config, &tensor, 1, count, out);
}

static void give_floats(const struct memory *memory, float *floats, uint64_t count)
{
    if (floats) aq_device_free(memory->device, AQ_MEMORY_DEVICE, floats, (count > 0 ? count : 1) * sizeof *floats);
}

static enum aq_status take_floats(const struct memory *memory, uint64_t count, float **out)
{
    void *floats;
    AQ_TRY(aq_device_alloc(memory->device, AQ_MEMORY_DEVICE, (count > 0 ? count : 1) * sizeof **out, &floats));
    *out = floats;
    return AQ_OK;
}

static void close_memory(struct memory *memory)
{
    aq_grad_codec_close(memory->codec);
    give_floats(memory, memory->x, memory->count);
    give_floats(memory, memory->worker_error, memory->count);
    give_floats(memory, memory->server_error, memory->chunk);
}

/* The host's, to fill x from and to look at it in. */
static enum aq_status host_copy(const struct memory *memory, bool to_device, float *host)
{
    const size_t bytes = memory->count * sizeof *host;
    AQ_TRY(aq_device_copy(memory->device, to_device ? memory->x : host, to_device ? host : memory->x, bytes, NULL));
    return aq_device_stream_sync(memory->device, NULL);
}

static enum aq_status open_memory(const struct aq_bench_rank *rank, const struct work *work, float *host,
                                  struct memory *out)
{
    uint64_t first;
    out->count = work->count;
    aq_grad_chunk(work->count, rank->size, rank->rank, &first, &out->chunk);
    AQ_TRY(take_floats(out, out->count, &out->x));
    fill(host, out->count, rank->rank);
    AQ_TRY(host_copy(out, true, host));
    if (!work->codec->kind) return AQ_OK;
    AQ_TRY(take_floats(out, out->count, &out->worker_error));
    AQ_TRY(take_floats(out, out->chunk, &out->server_error));
    return open_codec(work->codec, work->count, &out->codec);
}

static enum aq_status reduce(struct aq_group *group, const struct memory *memory, uint64_t step)
{
    const struct aq_compressed asked = {.worker = memory->codec,
                                        .server = memory->codec,
                                        .x = memory->x,
                                        .count = memory->count,
                                        .worker_error = memory->worker_error,
                                        .server_error = memory->server_error,
                                        .step = step};
    return memory->codec ? aq_compressed_allreduce(group, &asked) : aq_allreduce(group, memory->x, memory->count);
}

static enum aq_status rounds(struct aq_group *group, const struct work *work, const struct memory *memory, float *host,
                             struct outcome *out)
{
    if (memory->codec) AQ_TRY(aq_group_prepare(group, memory->codec, memory->count));
    for (uint32_t i = 0; i < work->rounds; i++) {
        struct aq_group_stats before;
        AQ_TRY(aq_group_agree(group, work->count, "the count")); /* all are there */
        aq_group_stats(group, &before);
        out->begin_ns[i] = aq_clock_ns();
        AQ_TRY(reduce(group, memory, i + 1));
        AQ_TRY(aq_device_stream_sync(memory->device, NULL));
        out->end_ns[i] = aq_clock_ns();
        aq_group_stats(group, &out->stats);
        out->sent_bytes = out->stats.sent_bytes - before.sent_bytes;
    }
    AQ_TRY(host_copy(memory, false, host));
    return aq_group_agree(group, aq_digest(host, memory->count * sizeof *host), "the mean");
}

static enum aq_status rank_run(struct aq_bench_rank *rank, void *context, void *result)
{
    const struct work *work = context;
    struct outcome *outcome = result;
    struct memory memory = {0};
    struct aq_group *group = NULL;
    void *host = NULL;
    enum aq_status status;
    const struct aq_device_config device = {
        .kind = work->device, .index = work->nccl ? rank->rank : work->device_index, .threads = THREADS};
    AQ_TRY(aq_device_open(&device, &memory.device));
    const struct aq_group_config config = {.rank = rank->rank,
                                           .size = rank->size,
                                           .links = rank->links,
                                           .eventcount = rank->eventcount,
                                           .device = memory.device,
                                           .silence_ns = UINT64_C(60000000000),
                                           .piece_bytes = rank->piece_bytes,
                                           .values = work->count};
    AQ_TRY_GOTO(aq_group_open_links(&config, &group), out);
    if (work->nccl) AQ_TRY_GOTO(aq_group_open_nccl(group, &group), out);
    AQ_TRY_GOTO(aq_map(work->count * sizeof(float), &host), out);
    AQ_TRY_GOTO(open_memory(rank, work, host, &memory), out);
    const uint64_t cpu_ns = aq_clock_cpu_ns();
    AQ_TRY_GOTO(rounds(group, work, &memory, host, outcome), out);
    outcome->cpu_ns = aq_clock_cpu_ns() - cpu_ns;
out:
    aq_group_close(group);
    close_memory(&memory);
    aq_device_close(memory.device);
    aq_unmap(host, work->count * sizeof(float));
    return status;
}

/* The better of the rounds, each from the first start to the last end. */
static double seconds_of(const struct outcome *ranks, uint32_t size, uint32_t round_count)
{
    double best = 0;
    for (uint32_t i = 0; i < round_count; i++) {
        uint64_t begin = UINT64_MAX, end = 0;
        for (uint32_t r = 0; r < size; r++) {
            if (ranks[r].begin_ns[i] < begin) begin = ranks[r].begin_ns[i];
            if (ranks[r].end_ns[i] > end) end = ranks[r].end_ns[i];
        }
        const double seconds = (double)(end - begin) * 1e-9;
        if (i == 0 || seconds < best) best = seconds;
    }
    return best;
}

static uint64_t parameters_of(const struct aq_bench_options *options)
{
    return options->parameters ? options->parameters : PARAMETERS;
}

/* One set of ranks at work; *bytes: that leave the rank of whom most do. */
static enum aq_status run_ranks(const char *name, struct aq_bench_ranks *ranks, const struct work *work,
                                double *seconds, double *bytes, bool *shaped)
{
    struct outcome outcomes[AQ_BENCH_RANKS_MAX];
    uint64_t most = 0;
    ranks->piece_bytes = AQ_GROUP_PIECE_BYTES;
    ranks->run = rank_run;
    ranks->context = (void *)(uintptr_t)work;
    ranks->result_bytes = sizeof *outcomes;
    AQ_TRY(aq_bench_ranks_run(ranks, outcomes, shaped));
    *seconds = seconds_of(outcomes, ranks->size, work->rounds);
    for (uint32_t r = 0; r < ranks->size; r++)
        most = outcomes[r].sent_bytes > most ? outcomes[r].sent_bytes : most;
    *bytes = (double)most;
    const struct aq_group_stats *stats = &outcomes[0].stats;
    aq_log(AREA, 2, "%s: %.3f s, %.0f bytes; of rank 0, %u rounds: wait %.3f pack %.3f sum %.3f unpack %.3f cpu %.3f s",
           name, *seconds, *bytes, work->rounds, (double)stats->wait_ns * 1e-9, (double)stats->pack_ns * 1e-9,
           (double)stats->sum_ns * 1e-9, (double)stats->unpack_ns * 1e-9, (double)outcomes[0].cpu_ns * 1e-9);
    return AQ_OK;
}

static enum aq_status bench_case(const struct aq_bench_options *options, const struct codec_case *codec, uint32_t size,
                                 double rate_mbps)
{
    char name[96];
    const bool gpu = aq_device_gpu(options->device) == AQ_GPU_YES;
    const uint64_t parameters = parameters_of(options);
    const double whole_s = (double)parameters * codec->bits / 8 * 2 * (size - 1) / size / (rate_mbps * 1e6 / 8);
    /* Work of more than 6 s is made smaller: the figure is a ratio. */
    const double seconds_max = options->full ? 1e9 : options->quick ? 1 : 6;
    struct work work = {.codec = codec,
                        .count = parameters,
                        .rounds = options->quick || whole_s > 5 ? 1 : ROUNDS,
                        .device = options->device,
                        .device_index = options->device_index};
    struct aq_bench_ranks ranks = {.size = size, .rate_mbps = rate_mbps};
    double seconds, bytes;
    bool shaped;
    snprintf(name, sizeof name, "allreduce %s%s W%u %gmbit time/limit", gpu ? "cuda " : "", codec->name, size,
             rate_mbps);
    if (!aq_bench_wanted(options, name)) return AQ_OK;
    if (whole_s > seconds_max) work.count = (uint64_t)((double)parameters * seconds_max / whole_s);
    AQ_TRY(run_ranks(name, &ranks, &work, &seconds, &bytes, &shaped));
    aq_bench_emit_by(options, name, seconds / (bytes / (rate_mbps * 1e6 / 8)), "ratio",
                     shaped ? "tc tbf" : "link.rate_mbps", work.count);
    return AQ_OK;
}

/* From GPU to GPU. */
static enum aq_status nccl_case(const struct aq_bench_options *options, const struct codec_case *codec, uint32_t size)
{
    char name[96];
    const struct work work = {
        .codec = codec, .count = parameters_of(options), .rounds = ROUNDS, .device = "cuda", .nccl = true};
    struct aq_bench_ranks ranks = {.size = size};
    double seconds, bytes;
    bool shaped;
    snprintf(name, sizeof name, "allreduce nccl %s W%u", codec->name, size);
    if (!aq_bench_wanted(options, name)) return AQ_OK;
    AQ_TRY(run_ranks(name, &ranks, &work, &seconds, &bytes, &shaped));
    aq_bench_emit_by(options, name, bytes / seconds * 1e-9, "GB/s", "nccl", work.count);
    return AQ_OK;
}

/* GPUs from the first on, counted by a child process: this one will fork, after which an open GPU is unusable. 0:
 * its line has been printed. */
static uint32_t gpus_here(const struct aq_bench_options *options)
{
    int code = 0;
    const pid_t process = fork();
    if (process == 0) {
        struct aq_device_config config = {.kind = "cuda", .index = options->device_index};
        struct aq_device *device;
        if (aq_device_open(&config, &device) != AQ_OK) _exit(0);
        aq_device_close(device);
        (void)!freopen("/dev/null", "w", stderr); /* that there is no GPU 1 is no error */
        uint32_t count = 1;
        for (config.index = 1; options->device_index == 0 && config.index < GPUS_MAX; config.index++) {
            if (aq_device_open(&config, &device) != AQ_OK) break;
            aq_device_close(device);
            count++;
        }
        _exit((int)count);
    }
    while (process > 0 && waitpid(process, &code, 0) < 0 && errno == EINTR)
        continue;
    return process > 0 && WIFEXITED(code) ? (uint32_t)WEXITSTATUS(code) : 0;
}

enum aq_status aq_bench_allreduce(const struct aq_bench_options *options)
{
    static const double RATES_MBPS[] = {1000, 100};
    static const uint32_t SIZES[] = {2, 4};
    const bool gpu = aq_device_gpu(options->device) == AQ_GPU_YES;
    const uint32_t gpus = gpu ? gpus_here(options) : 0;
    if (gpu && gpus == 0) return AQ_NODEV;
    for (uint32_t size = 2; size <= gpus; size += 2)
        for (int c = 0; c < CODEC_COUNT; c++)
            AQ_TRY(nccl_case(options, &CODECS[c], size));
    for (int r = 0; r < 2; r++)
        for (int s = 0; s < 2; s++)
            for (int c = 0; c < CODEC_COUNT; c++)
                AQ_TRY(bench_case(options, &CODECS[c], SIZES[s], RATES_MBPS[r]));
    return gpu ? AQ_OK : aq_bench_pack_signs(options);
}
