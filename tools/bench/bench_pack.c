/*
 * bench_pack.c -- how fast one core packs gradients and unpacks them, in GB of fp32 a second.
 *
 * A piece (AQ_GRAD_PIECE floats, 256 KiB) at a time, as a compressed allreduce does it. "pack sign errors l2" takes up
 * the error, packs, and leaves the new error: three arrays of a piece; "l2" is the same piece again and again, "l3" a
 * working set of 16 MiB of gradients and as much of errors, piece after piece. The figure is the best of the repeats.
 * `pack sign` and `unpack sign` of bench allreduce are the same, of 512 pieces at a time: one of them, in its cache, or
 * (`dram`) as many.
 */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "aqsgd/grad_codec.h"

enum { PIECES = 64 };

struct pack {
    struct aq_grad_codec *codec;
    float *x, *error, *sum;
    uint8_t *wire;
    void *memory;
    size_t bytes, piece_bytes;
    uint32_t pieces; /* that there are */
};

enum what { PACK, PACK_ERRORS, UNPACK };

/* Packs or unpacks `runs` pieces in turn, out of the first `pieces`. */
struct round {
    const struct pack *pack;
    enum what what;
    uint32_t runs, pieces;
    bool add; /* unpacked values: to the sum that there is */
};

static enum aq_status round_run(void *context)
{
    const struct round *round = context;
    const struct pack *pack = round->pack;
    for (uint32_t i = 0; i < round->runs; i++) {
        const uint64_t piece = i % round->pieces, first = piece * AQ_GRAD_PIECE;
        uint8_t *wire = pack->wire + piece * pack->piece_bytes;
        if (round->what == UNPACK)
            AQ_TRY(aq_grad_decode(pack->codec, first, AQ_GRAD_PIECE, wire, pack->piece_bytes, round->add ? 0.5f : 1.0f,
                                  round->add, pack->sum + first));
        else
            AQ_TRY(aq_grad_encode(pack->codec, first, AQ_GRAD_PIECE, pack->x + first,
                                  round->what == PACK_ERRORS ? pack->error + first : NULL, 1, wire));
    }
    return AQ_OK;
}

/* Packing runs in any case: it makes what unpacking reads. */
static enum aq_status measure(const struct aq_bench_options *options, struct round round, uint32_t repeats,
                              const char *name)
{
    const struct aq_bench_case one = {round_run, &round, repeats, .amount = 4e-9 * AQ_GRAD_PIECE * round.runs,
                                      .unit = "GB/s", .makes = round.what != UNPACK};
    return aq_bench_case(options, &one, NULL, "%s", name);
}

static enum aq_status codec_open(struct pack *pack, const char *kind, uint32_t bits)
{
    const struct aq_optimizer_tensor whole = {.count = (uint64_t)pack->pieces * AQ_GRAD_PIECE, .decay = true};
    struct aq_grad_codec_config config;
    aq_grad_codec_config_default(&config, kind);
    if (bits) config.bits = bits;
    AQ_TRY(aq_grad_codec_open(&config, &whole, 1, whole.count, &pack->codec));
    pack->piece_bytes = aq_grad_codec_bytes(pack->codec, 0, AQ_GRAD_PIECE);
    return AQ_OK;
}

static enum aq_status bench_codec(const struct aq_bench_options *options, struct pack *pack, const char *kind,
                                  uint32_t bits)
{
    static const char *const verbs[] = {"pack", "pack", "unpack"}, *const forms[] = {"", " errors", ""};
    char name[64], number[16] = "";
    if (bits) snprintf(number, sizeof number, "%u", (unsigned)bits);
    AQ_TRY(codec_open(pack, kind, bits));
    enum aq_status status = AQ_OK;
    for (int what = PACK; what <= UNPACK && status == AQ_OK; what++) {
        for (int l3 = 0; l3 < 2 && status == AQ_OK; l3++) {
            const uint32_t pieces = l3 ? PIECES : 1;
            const struct round round = {
                .pack = pack, .what = (enum what)what, .runs = pieces, .pieces = pieces, .add = true};
            snprintf(name, sizeof name, "%s %s%s%s %s", verbs[what], kind, number, forms[what], l3 ? "l3" : "l2");
            status = measure(options, round, l3 ? 40 : 2000, name);
        }
    }
    aq_grad_codec_close(pack->codec);
    return status;
}

static enum aq_status pack_open(struct pack *pack, uint32_t pieces)
{
    const size_t floats = (size_t)pieces * AQ_GRAD_PIECE;
    *pack = (struct pack){.pieces = pieces, .bytes = 4 * floats * sizeof(float)};
    AQ_TRY(aq_map(pack->bytes, &pack->memory));
    pack->x = pack->memory;
    pack->error = pack->x + floats;
    pack->sum = pack->error + floats;
    pack->wire = (uint8_t *)(pack->sum + floats);
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 3, 0);
    for (size_t i = 0; i < floats; i++) /* another few are as good, and take no time */
        pack->x[i] = i < PIECES * AQ_GRAD_PIECE ? aq_rng_normal(&key, i) : pack->x[i - PIECES * AQ_GRAD_PIECE];
    return AQ_OK;
}

enum aq_status aq_bench_pack_signs(const struct aq_bench_options *options)
{
    enum { MANY = 512 }; /* 128 MiB: beyond any cache here */
    static const struct {
        const char *name;
        enum what what;
        uint32_t pieces;
    } cases[] = {{"pack sign GB/s", PACK, 1},          {"pack sign dram GB/s", PACK, MANY},
                 {"pack sign error GB/s", PACK_ERRORS, 1}, {"pack sign error dram GB/s", PACK_ERRORS, MANY},
                 {"unpack sign GB/s", UNPACK, 1},      {"unpack sign dram GB/s", UNPACK, MANY}};
    struct pack pack;
    AQ_TRY(pack_open(&pack, MANY));
    enum aq_status status = codec_open(&pack, "sign", 0);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0] && status == AQ_OK; c++) {
        const struct round round = {.pack = &pack, .what = cases[c].what, .runs = MANY, .pieces = cases[c].pieces};
        status = measure(options, round, 7, cases[c].name);
    }
    aq_grad_codec_close(pack.codec);
    aq_unmap(pack.memory, pack.bytes);
    return status;
}

enum aq_status aq_bench_pack(const struct aq_bench_options *options)
{
    static const struct {
        const char *kind;
        uint32_t bits;
    } cases[] = {{"sign", 0},    {"vote", 0}, {"uniform", 2}, {"uniform", 4},
                 {"uniform", 8}, {"lp", 8},   {"fp16", 0},    {"bf16", 0}};
    struct pack pack;
    AQ_TRY(pack_open(&pack, PIECES));
    enum aq_status status = AQ_OK;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0] && status == AQ_OK; c++)
        status = bench_codec(options, &pack, cases[c].kind, cases[c].bits);
    aq_unmap(pack.memory, pack.bytes);
    return status;
}
