/*
 * bench_pack.c -- how fast one core packs gradients and unpacks them, in GB of fp32 a second.
 *
 * A piece (AQ_GRAD_PIECE floats, 256 KiB) at a time, as a compressed allreduce does it. "pack sign errors l2" takes up
 * the error, packs, and leaves the new error: three arrays of a piece; "l2" is the same piece again and again, "l3" a
 * working set of 16 MiB of gradients and as much of errors, piece after piece. The figure is the best of the repeats.
 */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "aqsgd/grad_codec.h"

enum { PIECES = 64, FLOATS = PIECES * AQ_GRAD_PIECE };

struct pack {
    struct aq_grad_codec *codec;
    float *x, *error, *sum;
    uint8_t *wire;
    size_t piece_bytes;
    uint32_t pieces;
};

enum what { PACK, PACK_ERRORS, UNPACK };

static enum aq_status once(const struct pack *pack, enum what what, uint32_t piece)
{
    const uint64_t first = (uint64_t)piece * AQ_GRAD_PIECE;
    uint8_t *wire = pack->wire + piece * pack->piece_bytes;
    if (what == UNPACK)
        return aq_grad_decode(pack->codec, first, AQ_GRAD_PIECE, wire, pack->piece_bytes, 0.5f, true,
                              pack->sum + first);
    return aq_grad_encode(pack->codec, first, AQ_GRAD_PIECE, pack->x + first,
                          what == PACK_ERRORS ? pack->error + first : NULL, 1, wire);
}

struct round {
    const struct pack *pack;
    enum what what;
};

static enum aq_status round_run(void *context)
{
    const struct round *round = context;
    for (uint32_t piece = 0; piece < round->pack->pieces; piece++)
        AQ_TRY(once(round->pack, round->what, piece));
    return AQ_OK;
}

/* Packing runs in any case: it makes what unpacking reads. */
static enum aq_status measure(const struct aq_bench_options *options, const struct pack *pack, enum what what,
                              const char *name)
{
    const uint32_t repeats = (pack->pieces > 1 ? 40 : 2000) / (options->quick ? 4 : 1);
    struct round round = {.pack = pack, .what = what};
    double seconds;
    if (!aq_bench_wanted(options, name)) return what == UNPACK ? AQ_OK : round_run(&round);
    AQ_TRY(aq_bench_best(repeats, round_run, &round, &seconds));
    aq_bench_emit(options, name, 4e-9 * AQ_GRAD_PIECE * pack->pieces / seconds, "GB/s");
    return AQ_OK;
}

static enum aq_status bench_codec(const struct aq_bench_options *options, struct pack *pack, const char *kind,
                                  uint32_t bits)
{
    static const char *const verbs[] = {"pack", "pack", "unpack"}, *const forms[] = {"", " errors", ""};
    const struct aq_optimizer_tensor whole = {.count = FLOATS, .decay = true};
    struct aq_grad_codec_config config;
    enum aq_status status = AQ_OK;
    char name[64], label[24];
    aq_grad_codec_config_default(&config, kind);
    if (bits) config.bits = bits;
    if (bits)
        snprintf(label, sizeof label, "%s%u", kind, (unsigned)bits);
    else
        snprintf(label, sizeof label, "%s", kind);
    AQ_TRY(aq_grad_codec_open(&config, &whole, 1, FLOATS, &pack->codec));
    pack->piece_bytes = aq_grad_codec_bytes(pack->codec, 0, AQ_GRAD_PIECE);
    for (int what = PACK; what <= UNPACK && status == AQ_OK; what++) {
        for (int l3 = 0; l3 < 2 && status == AQ_OK; l3++) {
            pack->pieces = l3 ? PIECES : 1;
            snprintf(name, sizeof name, "%s %s%s %s", verbs[what], label, forms[what], l3 ? "l3" : "l2");
            status = measure(options, pack, (enum what)what, name);
        }
    }
    aq_grad_codec_close(pack->codec);
    return status;
}

enum aq_status aq_bench_pack(const struct aq_bench_options *options)
{
    static const struct {
        const char *kind;
        uint32_t bits;
    } cases[] = {{"sign", 0},    {"vote", 0}, {"uniform", 2}, {"uniform", 4},
                 {"uniform", 8}, {"lp", 8},   {"fp16", 0},    {"bf16", 0}};
    const size_t floats = FLOATS * sizeof(float), bytes = 4 * floats;
    struct pack pack = {.codec = NULL};
    enum aq_status status = AQ_OK;
    void *memory;
    AQ_TRY(aq_map(bytes, &memory));
    pack.x = memory;
    pack.error = pack.x + FLOATS;
    pack.sum = pack.error + FLOATS;
    pack.wire = (uint8_t *)(pack.sum + FLOATS);
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 3, 0);
    for (uint64_t i = 0; i < FLOATS; i++)
        pack.x[i] = aq_rng_normal(&key, i);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0] && status == AQ_OK; c++)
        status = bench_codec(options, &pack, cases[c].kind, cases[c].bits);
    aq_unmap(memory, bytes);
    return status;
}
