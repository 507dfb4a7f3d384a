/*
 * advice_measure_codec.c -- what a plan measures of codes: seconds to make and to read them, and what links leave of
 * their bytes where they send them packed.
 *
 * Bytes are coded here as an edge or a reduction codes them, of values that a stage has just made, and one body goes
 * through the packer of a link of the plan's config (aq_link_packed). Tables of rows are left out: they are small.
 */
#include <string.h>

#include "aqsgd/codec.h"
#include "aqsgd/device.h"
#include "aqsgd/grad_codec.h"
#include "layer_bench.h"

enum { REPEATS = 3, PIECES_MAX = 4, ALIGN = 256 };

/* Memory of all samples, one after the other: on the device if it codes, else the host's; with a device also pinned
 * host memory, which edges copy to and from. */
struct places {
    struct aq_codec *codec;
    enum aq_memory_kind kind;
    uint8_t *memory, *pinned;
    size_t body_stride, message_stride, bytes;
    struct aq_codec_result *results;
    uint32_t *corrupt;
    size_t told_bytes;
    struct aq_codec_sample *samples;
};

static void places_close(const struct aq_plan_coding *coding, struct places *places)
{
    if (places->memory) aq_device_free(coding->device, places->kind, places->memory, places->bytes);
    if (places->pinned) aq_device_free(coding->device, AQ_MEMORY_PINNED, places->pinned, places->bytes);
    if (places->results) aq_device_free(coding->device, AQ_MEMORY_PINNED, places->results, places->told_bytes);
    aq_free(places->samples);
    aq_codec_close(places->codec);
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static enum aq_status places_open(const struct aq_plan_coding *coding, struct places *places)
{
    void *memory;
    AQ_TRY(aq_codec_open(coding->device, coding->config, coding->rows, coding->columns, &places->codec));
    AQ_TRY(aq_codec_take_device(places->codec));
    places->kind = aq_codec_on_device(places->codec) ? AQ_MEMORY_DEVICE : AQ_MEMORY_PINNED;
    places->body_stride = aligned(aq_codec_bound(places->codec));
    places->message_stride = aligned(aq_codec_message_bytes(places->codec));
    places->bytes = coding->B * (places->body_stride + places->message_stride);
    AQ_TRY(aq_device_alloc(coding->device, places->kind, places->bytes, &memory));
    places->memory = memory;
    AQ_TRY(aq_device_alloc(coding->device, AQ_MEMORY_PINNED, places->bytes, &memory));
    places->pinned = memory;
    places->told_bytes = coding->B * (sizeof *places->results + sizeof *places->corrupt);
    AQ_TRY(aq_device_alloc(coding->device, AQ_MEMORY_PINNED, places->told_bytes, &memory));
    places->results = memory;
    places->corrupt = (uint32_t *)(void *)(places->results + coding->B);
    AQ_TRY(AQ_NEW(coding->B, &places->samples));
    return AQ_OK;
}

/* The samples of a visit. */
static void visit(const struct aq_plan_coding *coding, struct places *places, const float *values, bool warm,
                  const struct aq_rng_key *key)
{
    const bool keeps = aq_codec_message_bytes(places->codec) > 0;
    for (uint32_t b = 0; b < coding->B; b++) {
        void *m = places->memory + coding->B * places->body_stride + b * places->message_stride;
        places->samples[b] = (struct aq_codec_sample){.a = values + (size_t)b * coding->rows * coding->columns,
                                                      .m = keeps && warm ? m : NULL,
                                                      .key = key,
                                                      .body = places->memory + b * places->body_stride,
                                                      .m_out = keeps ? m : NULL};
    }
}

/* Copies between the device and its pinned host memory, as an edge copies references, messages and bodies. */
static enum aq_status copy(const struct aq_plan_coding *coding, const struct places *places, bool to_host, bool bodies,
                           bool messages)
{
    const size_t split = coding->B * places->body_stride, rest = places->bytes - split;
    uint8_t *to = to_host ? places->pinned : places->memory;
    const uint8_t *from = to_host ? places->memory : places->pinned;
    if (places->kind != AQ_MEMORY_DEVICE) return AQ_OK;
    for (uint32_t b = 0; b < coding->B && bodies; b++)
        AQ_TRY(aq_device_copy(coding->device, to + b * places->body_stride, from + b * places->body_stride,
                              places->samples[b].body_bytes ? places->samples[b].body_bytes
                                                            : aq_codec_body_bytes(places->codec, false),
                              coding->stream));
    return messages && rest > 0 ? aq_device_copy(coding->device, to + split, from + split, rest, coding->stream)
                                : AQ_OK;
}

static void keep_least(double seconds, bool first, double *best)
{
    if (first || seconds < *best) *best = seconds;
}

static enum aq_status encode(struct aq_plan_coding *coding, struct places *places, bool warm)
{
    AQ_TRY(copy(coding, places, false, false, warm));
    AQ_TRY(aq_codec_encode_batch(places->codec, places->samples, coding->B, places->results, coding->stream));
    AQ_TRY(copy(coding, places, true, true, true));
    return aq_device_stream_sync(coding->device, coding->stream);
}

static enum aq_status decode(struct aq_plan_coding *coding, struct places *places, float *hat)
{
    for (uint32_t b = 0; b < coding->B; b++) {
        places->samples[b].body_bytes = places->results[b].body_bytes;
        places->samples[b].flags = places->results[b].flags;
        places->samples[b].hat = hat + (size_t)b * coding->rows * coding->columns;
    }
    AQ_TRY(copy(coding, places, false, true, true));
    AQ_TRY(aq_codec_decode_batch(places->codec, places->samples, coding->B, places->corrupt, coding->stream));
    AQ_TRY(copy(coding, places, true, false, true));
    return aq_device_stream_sync(coding->device, coding->stream);
}

/* The bodies of this visit as they lie in a frame, in plain memory. */
static enum aq_status keep_bodies(struct aq_plan_coding *coding, const struct places *places)
{
    const uint8_t *from = places->kind == AQ_MEMORY_DEVICE ? places->pinned : places->memory;
    void *bodies;
    AQ_TRY(aq_alloc(coding->B * places->body_stride, &bodies));
    coding->bodies = bodies;
    coding->body_bytes = 0;
    for (uint32_t b = 0; b < coding->B; b++) {
        const uint32_t bytes = places->results[b].body_bytes;
        memcpy(coding->bodies + coding->body_bytes, from + b * places->body_stride, bytes);
        coding->body_bytes += bytes;
    }
    return AQ_OK;
}

enum aq_status aq_plan_time_coding(struct aq_plan_coding *coding)
{
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    const size_t hat_bytes = (size_t)coding->B * coding->rows * coding->columns * sizeof(float);
    struct places places = {0};
    void *hat = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(places_open(coding, &places), out);
    AQ_TRY_GOTO(aq_device_alloc(coding->device, AQ_MEMORY_DEVICE, hat_bytes, &hat), out);
    for (int repeat = 0; repeat <= REPEATS; repeat++) {
        visit(coding, &places, repeat ? coding->after : coding->before, repeat > 0, &key);
        uint64_t start = aq_clock_ns();
        AQ_TRY_GOTO(encode(coding, &places, repeat > 0), out);
        keep_least(aq_plan_bench_since(start), repeat <= 1, &coding->encode_s);
        if (repeat == 1) AQ_TRY_GOTO(keep_bodies(coding, &places), out);
        start = aq_clock_ns();
        AQ_TRY_GOTO(decode(coding, &places, hat), out);
        keep_least(aq_plan_bench_since(start), repeat <= 1, &coding->decode_s);
    }
out:
    if (status != AQ_OK) aq_free(coding->bodies);
    if (hat) aq_device_free(coding->device, AQ_MEMORY_DEVICE, hat, hat_bytes);
    places_close(coding, &places);
    return status;
}

/* Some pieces of the gradients, spread over them, on the host. */
static enum aq_status sample(const struct aq_plan_gradients *gradients, float *out, uint32_t pieces, uint64_t piece)
{
    const uint64_t apart = gradients->count / pieces;
    for (uint32_t i = 0; i < pieces; i++)
        AQ_TRY(aq_device_copy(gradients->device, out + i * piece, gradients->values + i * apart, piece * sizeof *out,
                              gradients->stream));
    return aq_device_stream_sync(gradients->device, gradients->stream);
}

enum aq_status aq_plan_gradients_share(const struct aq_plan_gradients *gradients,
                                       const struct aq_grad_codec_config *config, double *share)
{
    const uint64_t pieces_all = gradients->count / AQ_GRAD_PIECE;
    const uint32_t pieces = pieces_all < 1 ? 1 : pieces_all > PIECES_MAX ? PIECES_MAX : (uint32_t)pieces_all;
    const uint64_t piece = pieces_all < 1 ? gradients->count : AQ_GRAD_PIECE, values = pieces * piece;
    const struct aq_optimizer_tensor whole = {.count = values};
    struct aq_grad_codec *codec = NULL;
    void *x = NULL, *wire = NULL;
    uint64_t before = 0, after = 0;
    enum aq_status status;
    AQ_TRY_GOTO(aq_grad_codec_open(config, &whole, 1, values, &codec), out);
    AQ_TRY_GOTO(aq_alloc(values * sizeof(float), &x), out);
    AQ_TRY_GOTO(aq_alloc(aq_grad_codec_bytes(codec, 0, piece), &wire), out);
    AQ_TRY_GOTO(sample(gradients, x, pieces, piece), out);
    for (uint32_t i = 0; i < pieces; i++) {
        const uint32_t bytes = (uint32_t)aq_grad_codec_bytes(codec, i * piece, piece);
        uint32_t packed;
        AQ_TRY_GOTO(aq_grad_encode(codec, i * piece, piece, (float *)x + i * piece, NULL, 1, wire), out);
        AQ_TRY_GOTO(aq_link_packed(gradients->link, gradients->local, wire, bytes, &packed), out);
        before += bytes;
        after += packed;
    }
    *share = (double)after / (double)before;
out:
    aq_free(wire);
    aq_free(x);
    aq_grad_codec_close(codec);
    return status;
}
