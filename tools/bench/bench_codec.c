/*
 * bench_codec.c -- the speed of one core on one sample of 1 x 1024 x 1600 (GPT-2 XL at a cut), compared with memcpy of
 * its fp32 to another buffer.
 *
 * `codec aqsgd4 encode l3`: the published form (papers/004, Algorithm 1), in both directions: m is kept in fp32 and
 * updated in place. encode is delta, scale, quantize, pack and update of m; decode is unpack, dequantize and update of
 * m, which then is the activation (hat is m_out is m): nothing else is written. Two activations take turns: with only
 * one the change would fade from visit to visit, to denormal numbers, on which a processor takes many times as long.
 * `codec aqsgd4 encode fp16 l3`: the default config as an edge runs it: m is kept in fp16 and m' goes to another place
 * (a slot of the cache); encode makes no x^, decode writes x^ in fp32 in addition to m'. Everything else is the default
 * in both: one fp16 scale per row, mid-rise, nearest, live measures as in codec.h.
 * `codec ec2 encode bf16 l3`: as an edge runs it, with m kept in bf16, whose rounding is measured after the sample.
 *
 * "l3": one sample again and again. "dram": samples in turn from a working set far beyond any L3. The figure is the
 * best of the repeats: the machine's own, with the least of what else runs on it.
 */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "aqsgd/codec.h"

enum { ROWS = 1024, COLUMNS = 1600, VALUES = ROWS * COLUMNS, DRAM_SAMPLES = 28 };

enum form { PUBLISHED, DEFAULT, ROUNDED };

struct samples {
    struct aq_codec *codec;
    enum form form;
    uint32_t count;
    size_t body_bytes, message_bytes;
    float *a, *hat;            /* count samples each; in the published form hat is the activation of every other turn */
    uint32_t turn;
    uint8_t *body, *m, *m_out; /* count of each; m_out is m in the published form */
    uint32_t coded[DRAM_SAMPLES]; /* bytes of each body */
    uint8_t *memory;
    size_t bytes;
};

static void place(struct samples *samples, struct aq_arena *arena)
{
    samples->a = aq_arena_take(arena, (size_t)samples->count * VALUES * sizeof(float));
    samples->hat = aq_arena_take(arena, (size_t)samples->count * VALUES * sizeof(float));
    samples->body = aq_arena_take(arena, samples->count * samples->body_bytes);
    samples->m = aq_arena_take(arena, samples->count * samples->message_bytes);
    samples->m_out =
        samples->form == PUBLISHED ? samples->m : aq_arena_take(arena, samples->count * samples->message_bytes);
}

static void samples_close(struct samples *samples)
{
    aq_unmap(samples->memory, samples->bytes);
    aq_codec_close(samples->codec);
}

/* Fills samples: activations near 1, and a delta of a tenth of that between visits. */
static void fill(struct samples *samples)
{
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 1, 1);
    for (uint32_t i = 0; i < VALUES; i++)
        samples->a[i] = aq_rng_normal(&key, i);
    for (uint32_t s = 1; s < samples->count; s++)
        memcpy(samples->a + (size_t)s * VALUES, samples->a, VALUES * sizeof(float));
}

/* A measured codec: its name in cases, kind and bits. */
struct coding {
    const char *name;
    enum aq_codec_kind kind;
    uint32_t bits;
};

static const struct aq_rng_key bench_key = {.key = {1, 2}, .counter = {3, 4}};

static enum aq_status samples_open(enum form form, const struct coding *coding, uint32_t count, struct samples *out)
{
    enum aq_status status;
    struct aq_codec_config config;
    struct aq_arena arena = {0};
    void *memory = NULL;
    *out = (struct samples){.form = form, .count = count};
    aq_codec_config_default(&config, coding->kind, coding->bits);
    if (form != DEFAULT) config.store = form == PUBLISHED ? AQ_PRECISION_FP32 : AQ_PRECISION_BF16;
    AQ_TRY(aq_codec_open(NULL, &config, ROWS, COLUMNS, &out->codec));
    out->body_bytes = aq_codec_bound(out->codec);
    out->message_bytes = aq_codec_message_bytes(out->codec);
    place(out, &arena);
    out->bytes = arena.used;
    AQ_TRY_GOTO(aq_map(out->bytes, &memory), out);
    out->memory = memory;
    arena = (struct aq_arena){.base = out->memory, .bytes = out->bytes};
    place(out, &arena);
    fill(out);
    for (uint32_t s = 0; s < count; s++) { /* the cold visit */
        struct aq_codec_result result;
        AQ_TRY_GOTO(aq_codec_encode(out->codec, out->a + (size_t)s * VALUES, NULL, &bench_key,
                                    out->body + s * out->body_bytes, out->body_bytes, NULL,
                                    out->m + s * out->message_bytes, &result, NULL),
                    out);
    }
    for (size_t i = 0; form == PUBLISHED && i < (size_t)count * VALUES; i++)
        out->hat[i] = out->a[i];
    for (size_t i = 0; i < (size_t)count * VALUES; i++) /* drift, so that deltas are deltas */
        out->a[i] += 0.1f * out->a[(i * 7 + 13) % VALUES];
    return AQ_OK;
out:
    samples_close(out);
    return status;
}

enum what { COPY, ENCODE, DECODE };

static enum aq_status once(struct samples *samples, enum what what, uint32_t s)
{
    const bool other = samples->form == PUBLISHED && samples->turn % 2 == 1;
    float *hat = samples->hat + (size_t)s * VALUES, *a = other ? hat : samples->a + (size_t)s * VALUES;
    uint8_t *body = samples->body + s * samples->body_bytes, *m = samples->m + s * samples->message_bytes;
    uint8_t *m_out = samples->m_out + s * samples->message_bytes;
    float *x = samples->form == PUBLISHED ? (float *)(void *)m_out : hat;
    struct aq_codec_result result;
    switch (what) {
    case COPY:
        memcpy(hat, a, VALUES * sizeof(float));
        return AQ_OK;
    case ENCODE:
        AQ_TRY(aq_codec_encode(samples->codec, a, m, &bench_key, body, samples->body_bytes, NULL, m_out, &result,
                               NULL));
        samples->coded[s] = result.body_bytes;
        return AQ_OK;
    case DECODE:
        return aq_codec_decode(samples->codec, body, samples->coded[s], 0, m, x, m_out, NULL);
    }
    return AQ_OK;
}

struct round {
    struct samples *samples;
    enum what what;
};

static enum aq_status round_run(void *context)
{
    const struct round *round = context;
    for (uint32_t s = 0; s < round->samples->count; s++)
        AQ_TRY(once(round->samples, round->what, s));
    round->samples->turn += round->what == ENCODE;
    return AQ_OK;
}

/*
 * Milliseconds of one sample. In L3 the best single call; from DRAM the best whole round through the samples, because
 * there one call may find what the one before has left. Encoding runs in any case: it makes what decoding reads.
 */
static enum aq_status one_case(const struct aq_bench_options *options, struct samples *samples, enum what what,
                               const char *name)
{
    struct round round = {.samples = samples, .what = what};
    const struct aq_bench_case one = {round_run, &round, samples->count > 1 ? 14 : 400, .scale = 1e3 / samples->count,
                                      .unit = "ms", .makes = what == ENCODE};
    return aq_bench_case(options, &one, NULL, "%s", name);
}

static enum aq_status place_of(const struct aq_bench_options *options, enum form form, const struct coding *coding,
                               bool dram, bool copy)
{
    static const char *const verbs[] = {"encode", "decode"};
    static const char *const stores[] = {"", " fp16", " bf16"}; /* by form */
    const char *where = dram ? "dram" : "l3", *store = stores[form];
    enum aq_status status;
    struct samples samples;
    char name[64];
    AQ_TRY(samples_open(form, coding, dram ? DRAM_SAMPLES : 1, &samples));
    if (copy) {
        snprintf(name, sizeof name, "codec memcpy %s", where);
        AQ_TRY_GOTO(one_case(options, &samples, COPY, name), out);
    }
    for (int verb = 0; verb < 2; verb++) { /* encode first: it makes the bodies that decode reads */
        snprintf(name, sizeof name, "codec %s %s%s %s", coding->name, verbs[verb], store, where);
        AQ_TRY_GOTO(one_case(options, &samples, verb == 0 ? ENCODE : DECODE, name), out);
    }
    status = AQ_OK;
out:
    samples_close(&samples);
    return status;
}

enum aq_status aq_bench_codec(const struct aq_bench_options *options)
{
    static const struct coding codings[] = {{"aqsgd2", AQ_CODEC_AQSGD, 2}, {"aqsgd3", AQ_CODEC_AQSGD, 3},
                                            {"aqsgd4", AQ_CODEC_AQSGD, 4}, {"aqsgd8", AQ_CODEC_AQSGD, 8},
                                            {"ec2", AQ_CODEC_EC, 2},       {"ec3", AQ_CODEC_EC, 3}};
    for (int dram = 0; dram < 2; dram++) {
        for (size_t i = 0; i < sizeof codings / sizeof codings[0]; i++) {
            AQ_TRY(place_of(options, PUBLISHED, &codings[i], dram == 1, i == 0));
            AQ_TRY(place_of(options, DEFAULT, &codings[i], dram == 1, false));
            if (codings[i].kind == AQ_CODEC_EC) AQ_TRY(place_of(options, ROUNDED, &codings[i], dram == 1, false));
        }
    }
    return AQ_OK;
}
