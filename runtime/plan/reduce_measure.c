/*
 * reduce_measure.c -- timing links by blocks that grow, and packing by pieces of made-up gradients.
 */
#include "reduce_measure.h"

#include "aqsgd/device_math.h"
#include "aqsgd/grad_device.h"
#include "net/collective.h"

enum {
    PIECES_MAX = 16, /* of packing: 16 MiB in all, more than a second-level cache holds         */
    REPEATS = 3,     /* the quickest counts: whatever else this machine does is not the link's  */
    BLOCK_BYTES_FIRST = 16 << 10,
    BLOCK_BYTES_LEAST = 64 << 10, /* the largest block among many ranks */
    BLOCKS_BYTES = 4 << 20        /* of the largest blocks that a rank sends in a round          */
};

#define LONG_NS (150ull * 1000 * 1000)

static uint64_t block_bytes_max(uint32_t W)
{
    const uint64_t bytes = BLOCKS_BYTES / (W > 1 ? W - 1 : 1);
    return bytes > BLOCK_BYTES_LEAST ? bytes : BLOCK_BYTES_LEAST;
}

static uint32_t pieces_of(uint64_t parameters)
{
    const uint64_t pieces = parameters / AQ_GRAD_PIECE;
    return pieces < 1 ? 1 : pieces > PIECES_MAX ? PIECES_MAX : (uint32_t)pieces;
}

/* Gradients, their errors, sums, and bytes: a coded piece is no longer than one in fp32. */
static uint64_t packing_bytes(uint32_t pieces)
{
    return 4ull * pieces * AQ_GRAD_PIECE * sizeof(float);
}

uint64_t aq_reduce_measure_bytes(uint64_t parameters, uint32_t W)
{
    const uint64_t packing = packing_bytes(pieces_of(parameters)), links = 2 * W * block_bytes_max(W);
    return packing > links ? packing : links;
}

/* ---- packing ---- */

struct packing {
    const struct aq_grad_codec *codec;
    uint32_t pieces;
    size_t piece_bytes;
    float *x, *error, *sum;
    uint8_t *wire;
};

static void encode_piece(uint32_t piece, void *context)
{
    const struct packing *p = context;
    const uint64_t first = (uint64_t)piece * AQ_GRAD_PIECE;
    float *error = aq_grad_codec_config_lossy(aq_grad_codec_config_of(p->codec)) ? p->error + first : NULL;
    (void)aq_grad_encode(p->codec, first, AQ_GRAD_PIECE, p->x + first, error, 1, p->wire + piece * p->piece_bytes);
}

static void decode_piece(uint32_t piece, void *context)
{
    const struct packing *p = context;
    const uint64_t first = (uint64_t)piece * AQ_GRAD_PIECE;
    (void)aq_grad_decode(p->codec, first, AQ_GRAD_PIECE, p->wire + piece * p->piece_bytes, p->piece_bytes, 0.5f, true,
                         p->sum + first);
}

/* Seconds a value of the quickest of some passes over all pieces. */
static double time_pass(struct aq_device *device, struct packing *p, void (*run)(uint32_t piece, void *context))
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < REPEATS; i++) {
        const uint64_t begin = aq_clock_ns();
        aq_device_parallel(device, p->pieces, run, p);
        const uint64_t taken = aq_clock_ns() - begin;
        if (taken < least) least = taken;
    }
    return (double)least * 1e-9 / ((double)p->pieces * AQ_GRAD_PIECE);
}

/* The same by a device's kernels, over all pieces at once. */
static enum aq_status time_kernels(struct aq_device *device, struct packing *p, double *encode_s, double *decode_s)
{
    const struct aq_grad_span span = {.count = (uint64_t)p->pieces * AQ_GRAD_PIECE};
    float *error = aq_grad_codec_config_lossy(aq_grad_codec_config_of(p->codec)) ? p->error : NULL;
    struct aq_grad_coder *coder;
    uint64_t least[2] = {UINT64_MAX, UINT64_MAX};
    AQ_TRY(aq_grad_coder_open(device, p->codec, &span, 1, &coder));
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; i < 2 * REPEATS && status == AQ_OK; i++) {
        const uint64_t begin = aq_clock_ns();
        status = i % 2 == 0 ? aq_grad_coder_encode(coder, 0, p->x, error, 1, p->wire, NULL)
                            : aq_grad_coder_decode(coder, 0, p->wire, 0.5f, true, p->sum, NULL);
        if (status == AQ_OK) status = aq_device_stream_sync(device, NULL);
        const uint64_t taken = aq_clock_ns() - begin;
        if (taken < least[i % 2]) least[i % 2] = taken;
    }
    aq_grad_coder_close(coder);
    *encode_s = (double)least[0] * 1e-9 / (double)span.count;
    *decode_s = (double)least[1] * 1e-9 / (double)span.count;
    return status;
}

static enum aq_status time_codec(struct aq_device *device, bool host_memory, struct packing *p, double *encode_s,
                                 double *decode_s)
{
    if (!host_memory) return time_kernels(device, p, encode_s, decode_s);
    *encode_s = time_pass(device, p, encode_piece);
    *decode_s = time_pass(device, p, decode_piece);
    return AQ_OK;
}

/* Where kernels reach it. */
static enum aq_status take(struct aq_device *device, bool host_memory, uint64_t bytes, void **out)
{
    return host_memory ? aq_map(bytes, out) : aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, out);
}

static void give(struct aq_device *device, bool host_memory, uint64_t bytes, void *memory)
{
    if (host_memory)
        aq_unmap(memory, bytes);
    else
        aq_device_free(device, AQ_MEMORY_DEVICE, memory, bytes);
}

static enum aq_status make_up(struct aq_device *device, bool host_memory, float *x, uint64_t values)
{
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    const struct aq_fill_normal fill = {.x = x, .count = values, .key = key, .std = 1.0f};
    if (!host_memory) return aq_device_fill_normal(device, &fill, NULL);
    for (uint64_t i = 0; i < values; i++)
        x[i] = aq_rng_uniform(&key, i) - 0.5f;
    return AQ_OK;
}

enum aq_status aq_reduce_measure_packing(struct aq_device *device, const struct aq_grad_candidate *candidates,
                                         uint32_t count, uint64_t parameters, uint32_t W, double *value_s)
{
    struct aq_device_info info;
    const struct aq_device_config alone = {.kind = "cpu", .threads = 1};
    struct aq_device *host = NULL;
    struct packing p = {.pieces = pieces_of(parameters)};
    const uint64_t values = (uint64_t)p.pieces * AQ_GRAD_PIECE, bytes = packing_bytes(p.pieces);
    const struct aq_optimizer_tensor whole = {.count = values};
    enum aq_status status;
    void *memory = NULL;
    if (!device) {
        AQ_TRY(aq_device_open(&alone, &host));
        device = host;
    }
    aq_device_info(device, &info);
    AQ_TRY_GOTO(take(device, info.host_memory, bytes, &memory), out);
    p.x = memory;
    p.error = p.x + values;
    p.sum = p.error + values;
    p.wire = (uint8_t *)(p.sum + values);
    status = make_up(device, info.host_memory, p.x, values);
    for (uint32_t c = 0; c < count && status == AQ_OK; c++) {
        struct aq_grad_codec *codec;
        AQ_TRY_GOTO(aq_grad_codec_open(&candidates[c].config, &whole, 1, values, &codec), out);
        p.codec = codec;
        p.piece_bytes = aq_grad_codec_bytes(codec, 0, AQ_GRAD_PIECE);
        AQ_ASSERT(p.piece_bytes <= AQ_GRAD_PIECE * sizeof(float));
        double encode_s = 0, decode_s = 0;
        status = time_codec(device, info.host_memory, &p, &encode_s, &decode_s);
        /* In fp32 nothing is packed: sums are made, and divided. */
        value_s[c] = c == 0 ? 2 * decode_s : (1 + 1.0 / W) * encode_s + 2 * decode_s;
        aq_grad_codec_close(codec);
    }
out:
    if (memory) give(device, info.host_memory, bytes, memory);
    aq_device_close(host);
    return status;
}

/* ---- links ---- */

struct blocks {
    struct aq_group *group;
    uint8_t *send, *receive;
    uint64_t bytes;
    float *x; /* over NCCL: of the device, zeros */
    struct aq_device *device;
    struct aq_stream *stream;
};

/* A sum sends W - 1 parts and as many results, half a block each. */
static enum aq_status move_blocks(const struct blocks *blocks)
{
    const uint64_t values = blocks->bytes * aq_group_size(blocks->group) / (2 * sizeof *blocks->x);
    if (!blocks->x) return aq_all_to_all(blocks->group, blocks->send, blocks->receive, blocks->bytes);
    AQ_TRY(aq_allreduce(blocks->group, blocks->x, values > 0 ? values : 1));
    return aq_device_stream_sync(blocks->device, blocks->stream);
}

/* Some rounds; *took is the time of the slowest rank, on every rank. */
static enum aq_status exchange(const struct blocks *blocks, uint64_t rounds, uint64_t *took)
{
    uint64_t all[AQ_GROUP_SIZE_MAX];
    const uint64_t begin = aq_clock_ns();
    for (uint64_t i = 0; i < rounds; i++)
        AQ_TRY(move_blocks(blocks));
    const uint64_t mine = aq_clock_ns() - begin;
    AQ_TRY(aq_all_gather(blocks->group, &mine, sizeof mine, all));
    *took = 1;
    for (uint32_t r = 0; r < aq_group_size(blocks->group); r++)
        if (all[r] > *took) *took = all[r];
    return AQ_OK;
}

static enum aq_status time_latency(struct blocks *blocks, uint64_t *latency)
{
    uint64_t took;
    blocks->bytes = 1;
    AQ_TRY(exchange(blocks, 1, &took)); /* all are here: the clock may run */
    *latency = UINT64_MAX;
    for (uint32_t i = 0; i < REPEATS; i++) {
        AQ_TRY(exchange(blocks, 1, &took));
        if (took < *latency) *latency = took;
    }
    return AQ_OK;
}

static enum aq_status time_links(struct blocks *blocks, uint64_t most, struct aq_reduce_links *out)
{
    const uint32_t others = aq_group_size(blocks->group) - 1;
    uint64_t latency, took = 0;
    double rate = 0;
    AQ_TRY(time_latency(blocks, &latency));
    for (blocks->bytes = BLOCK_BYTES_FIRST;; blocks->bytes = 2 * blocks->bytes < most ? 2 * blocks->bytes : most) {
        AQ_TRY(exchange(blocks, 1, &took));
        if (took >= LONG_NS || blocks->bytes >= most) break;
    }
    const uint64_t rounds = (LONG_NS + took - 1) / took;
    for (uint32_t i = 0; i < REPEATS; i++) {
        AQ_TRY(exchange(blocks, rounds, &took));
        const uint64_t carried = took > rounds * latency ? took - rounds * latency : took;
        const double now = (double)(blocks->bytes * others * rounds) / ((double)carried * 1e-9);
        if (now > rate) rate = now;
    }
    *out = (struct aq_reduce_links){.rate = rate, .latency_s = (double)latency * 1e-9};
    return AQ_OK;
}

enum aq_status aq_reduce_measure_links(struct aq_group *group, struct aq_device *device, struct aq_stream *stream,
                                       struct aq_reduce_links *out)
{
    const uint32_t W = aq_group_size(group);
    const bool nccl = aq_group_is_nccl(group);
    const uint64_t most = block_bytes_max(W), bytes = 2 * W * most;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, aq_group_rank(group));
    void *memory;
    AQ_TRY(take(device, !nccl, bytes, &memory));
    for (uint64_t i = 0; i < bytes / sizeof(uint32_t) / 2 && !nccl; i++) /* noise: no link packs it (link.entropy) */
        ((uint32_t *)memory)[i] = aq_rng_u32(&key, i);
    struct blocks blocks = {.group = group,
                            .send = memory,
                            .receive = (uint8_t *)memory + W * most,
                            .x = nccl ? memory : NULL,
                            .device = device,
                            .stream = stream};
    const enum aq_status status = time_links(&blocks, most, out);
    give(device, !nccl, bytes, memory);
    return status;
}
