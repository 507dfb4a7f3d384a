/*
 * bench_allreduce.c -- the mean of 124M floats over W ranks at a given rate: how far from the link's limit.
 *
 * Every rank is a process behind a shaped link of its own (bench_ranks.h). `allreduce CODEC W RATE time/limit` is the
 * measured time, from the first rank's begin to the last rank's end, over bytes / rate, where bytes are those of frame
 * bodies that leave one rank: 2 (W - 1) / W of the coded buffer. Headers of Ethernet, IP and TCP are not in the limit:
 * they alone make it 1.046. With codecs, error feedback is on at both sides, as optimizers have it.
 *
 * `pack sign` and `unpack sign` are one core's, in bytes of fp32 input, from and to pieces that lie in its cache;
 * `... dram` those of a buffer that does not, `... error` with the error buffer, in memory as well.
 */
#include <stdio.h>
#include <string.h>

#include "aqsgd/grad_codec.h"
#include "bench.h"
#include "bench_ranks.h"

static const char *const AREA = "bench";

enum { PARAMETERS = 124439808, THREADS = 1, ROUNDS = 2 }; /* GPT-2's; the ranks share this machine's cores */

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
};

struct outcome { /* of one rank */
    uint64_t begin_ns[ROUNDS], end_ns[ROUNDS];
    uint64_t sent_bytes; /* of one round */
    struct aq_group_stats stats;
    uint64_t cpu_ns; /* of all rounds, its loop's included */
};

struct memory {
    float *x, *worker_error, *server_error;
    uint64_t count, chunk;
    struct aq_grad_codec *codec;
};

static void close_memory(struct memory *memory)
{
    aq_grad_codec_close(memory->codec);
    aq_unmap(memory->x, memory->count * sizeof(float));
    aq_unmap(memory->worker_error, memory->count * sizeof(float));
    aq_unmap(memory->server_error, memory->chunk * sizeof(float));
}

static enum aq_status map_floats(uint64_t count, float **out)
{
    void *memory;
    AQ_TRY(aq_map((count > 0 ? count : 1) * sizeof **out, &memory));
    *out = memory;
    return AQ_OK;
}

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

static enum aq_status open_memory(const struct aq_bench_rank *rank, const struct work *work, struct memory *out)
{
    uint64_t first;
    out->count = work->count;
    aq_grad_chunk(work->count, rank->size, rank->rank, &first, &out->chunk);
    AQ_TRY(map_floats(out->count, &out->x));
    fill(out->x, out->count, rank->rank);
    if (!work->codec->kind) return AQ_OK;
    AQ_TRY(map_floats(out->count, &out->worker_error));
    AQ_TRY(map_floats(out->chunk, &out->server_error));
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

static enum aq_status rounds(struct aq_group *group, const struct work *work, const struct memory *memory,
                             struct outcome *out)
{
    for (uint32_t i = 0; i < work->rounds; i++) {
        struct aq_group_stats before;
        AQ_TRY(aq_group_agree(group, work->count, "the count")); /* all are there */
        aq_group_stats(group, &before);
        out->begin_ns[i] = aq_clock_ns();
        AQ_TRY(reduce(group, memory, i + 1));
        out->end_ns[i] = aq_clock_ns();
        aq_group_stats(group, &out->stats);
        out->sent_bytes = out->stats.sent_bytes - before.sent_bytes;
    }
    return aq_group_agree(group, aq_digest(memory->x, memory->count * sizeof(float)), "the mean");
}

static enum aq_status rank_run(struct aq_bench_rank *rank, void *context, void *result)
{
    const struct work *work = context;
    struct outcome *outcome = result;
    struct memory memory = {0};
    struct aq_device *device = NULL;
    struct aq_group *group = NULL;
    const struct aq_device_config device_config = {.kind = "cpu", .threads = THREADS};
    enum aq_status status;
    AQ_TRY_GOTO(aq_device_open(&device_config, &device), out);
    const struct aq_group_config config = {.rank = rank->rank,
                                           .size = rank->size,
                                           .links = rank->links,
                                           .bell = rank->bell,
                                           .device = device,
                                           .silence_ns = UINT64_C(60000000000),
                                           .piece_bytes = rank->piece_bytes};
    AQ_TRY_GOTO(aq_group_open_links(&config, &group), out);
    AQ_TRY_GOTO(open_memory(rank, work, &memory), out);
    const uint64_t cpu_ns = aq_clock_cpu_ns();
    AQ_TRY_GOTO(rounds(group, work, &memory, outcome), out);
    outcome->cpu_ns = aq_clock_cpu_ns() - cpu_ns;
out:
    aq_group_close(group);
    aq_device_close(device);
    close_memory(&memory);
    return status;
}

/* The better of the rounds, each from the first begin to the last end. */
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

static enum aq_status bench_case(const struct aq_bench_options *options, const struct codec_case *codec, uint32_t size,
                                 double rate_mbps)
{
    char name[96];
    struct outcome outcomes[AQ_BENCH_RANKS_MAX];
    const uint64_t parameters = options->parameters ? options->parameters : PARAMETERS;
    const double whole_s = (double)parameters * codec->bits / 8 * 2 * (size - 1) / size / (rate_mbps * 1e6 / 8);
    /* What would take more than 6 s is made smaller: what is measured is a ratio. */
    const double seconds_max = options->full ? 1e9 : options->quick ? 1 : 6;
    struct work work = {.codec = codec, .count = parameters, .rounds = options->quick || whole_s > 5 ? 1 : ROUNDS};
    bool shaped;
    snprintf(name, sizeof name, "allreduce %s W%u %gmbit time/limit", codec->name, size, rate_mbps);
    if (options->only && !strstr(name, options->only)) return AQ_OK;
    if (whole_s > seconds_max) work.count = (uint64_t)((double)parameters * seconds_max / whole_s);
    const struct aq_bench_ranks ranks = {.size = size,
                                         .rate_mbps = rate_mbps,
                                         .piece_bytes = AQ_GROUP_PIECE_BYTES,
                                         .run = rank_run,
                                         .context = &work,
                                         .result_bytes = sizeof *outcomes};
    AQ_TRY(aq_bench_ranks_run(&ranks, outcomes, &shaped));
    const double seconds = seconds_of(outcomes, size, work.rounds);
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < size; r++)
        bytes = outcomes[r].sent_bytes > bytes ? outcomes[r].sent_bytes : bytes;
    const double limit = (double)bytes / (rate_mbps * 1e6 / 8);
    const struct aq_group_stats *stats = &outcomes[0].stats;
    aq_log(AREA, 2,
           "%s: %.3f s, limit %.3f s; of rank 0, %u rounds: wait %.3f pack %.3f sum %.3f unpack %.3f cpu %.3f s", name,
           seconds, limit, work.rounds, (double)stats->wait_ns * 1e-9, (double)stats->pack_ns * 1e-9,
           (double)stats->sum_ns * 1e-9, (double)stats->unpack_ns * 1e-9, (double)outcomes[0].cpu_ns * 1e-9);
    aq_bench_emit_by(options, name, seconds / limit, "ratio", shaped ? "tc tbf" : "link.rate_mbps", work.count);
    return AQ_OK;
}

/* ---- packing, on one core ---- */

struct pack {
    struct aq_grad_codec *codec;
    float *x, *error;
    uint8_t *wire;
    uint64_t count;
};

static enum aq_status pack_all(const struct pack *pack, bool unpack, const float *x, bool stay)
{
    for (uint64_t at = 0; at < pack->count; at += AQ_GRAD_PIECE) {
        const uint64_t place = stay ? 0 : at, values = AQ_GRAD_PIECE;
        uint8_t *wire = pack->wire + place / 4;
        if (unpack)
            AQ_TRY(aq_grad_decode(pack->codec, place, values, wire, aq_grad_codec_bytes(pack->codec, place, values),
                                  1.0f, false, pack->x + place));
        else
            AQ_TRY(aq_grad_encode(pack->codec, place, values, x + place, pack->error ? pack->error + place : NULL, 1,
                                  wire));
    }
    return AQ_OK;
}

static enum aq_status pack_case(const struct aq_bench_options *options, const struct pack *pack, const char *name,
                                bool unpack, bool stay)
{
    double best = 0;
    if (options->only && !strstr(name, options->only)) return AQ_OK;
    for (int i = 0; i < (options->quick ? 3 : 7); i++) {
        const uint64_t begin_ns = aq_clock_ns();
        AQ_TRY(pack_all(pack, unpack, pack->x, stay));
        const double rate = (double)(pack->count * sizeof(float)) / (double)(aq_clock_ns() - begin_ns);
        if (rate > best) best = rate;
    }
    aq_bench_emit(options, name, best, "GB/s");
    return AQ_OK;
}

static enum aq_status bench_pack(const struct aq_bench_options *options)
{
    enum { PIECES = 512 }; /* 128 MiB: beyond any cache here */
    struct pack pack = {.count = (uint64_t)PIECES * AQ_GRAD_PIECE};
    struct pack feedback;
    float *error = NULL;
    void *wire = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(map_floats(pack.count, &pack.x), out);
    AQ_TRY_GOTO(map_floats(pack.count, &error), out);
    AQ_TRY_GOTO(aq_map(pack.count / 4, &wire), out);
    AQ_TRY_GOTO(open_codec(&CODECS[CODEC_COUNT - 1], pack.count, &pack.codec), out);
    pack.wire = wire;
    fill(pack.x, pack.count, 0);
    feedback = pack;
    feedback.error = error;
    AQ_TRY_GOTO(pack_case(options, &pack, "pack sign GB/s", false, true), out);
    AQ_TRY_GOTO(pack_case(options, &pack, "pack sign dram GB/s", false, false), out);
    AQ_TRY_GOTO(pack_case(options, &feedback, "pack sign error GB/s", false, true), out);
    AQ_TRY_GOTO(pack_case(options, &feedback, "pack sign error dram GB/s", false, false), out);
    AQ_TRY_GOTO(pack_case(options, &pack, "unpack sign GB/s", true, true), out);
    AQ_TRY_GOTO(pack_case(options, &pack, "unpack sign dram GB/s", true, false), out);
out:
    aq_grad_codec_close(pack.codec);
    aq_unmap(pack.x, pack.count * sizeof(float));
    aq_unmap(error, pack.count * sizeof(float));
    aq_unmap(wire, pack.count / 4);
    return status;
}

enum aq_status aq_bench_allreduce(const struct aq_bench_options *options)
{
    static const double RATES_MBPS[] = {1000, 100};
    static const uint32_t SIZES[] = {2, 4};
    for (int r = 0; r < 2; r++)
        for (int s = 0; s < 2; s++)
            for (int c = 0; c < CODEC_COUNT; c++)
                AQ_TRY(bench_case(options, &CODECS[c], SIZES[s], RATES_MBPS[r]));
    return bench_pack(options);
}
