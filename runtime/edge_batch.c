/*
 * edge_batch.c -- a micro-batch's samples to a body and back where the device has kernels for the codec: the same
 * frames as edge_code.c makes sample by sample, in a few launches.
 *
 * The messages' references and the bodies lie on the device while kernels work on them; host memory sees copies. Two
 * waits a micro-batch and direction: for the coded samples' sizes (one whose values forced it is raw and longer), and
 * for their bytes. Only this stream is waited for.
 */
#include <string.h>

#include "edge_private.h"

enum { PLACE_ALIGN = 256 };

struct aq_edge_batcher {
    /* Device memory of each sample: its body, its message. */
    uint8_t *memory;
    size_t memory_bytes, body_stride, message_stride;
    /* Pinned: what kernels tell. */
    void *told;
    size_t told_bytes;
    struct aq_codec_result *results;
    uint32_t *corrupt;
    /* Of each sample, while a micro-batch is worked on. */
    struct aq_codec_sample *samples;
    struct aq_cache_entry *entries;
    struct aq_rng_key *keys;
    struct aq_edge_row *rows;
    void **slots;
    bool *warm, *lent; /* has a reference; entries has it from the cache, to be held or released */
    void *own;
};

static size_t aligned(size_t bytes)
{
    return (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void place_own(struct aq_edge_batcher *batcher, struct aq_arena *arena, uint32_t B)
{
    batcher->samples = aq_arena_take(arena, B * sizeof *batcher->samples);
    batcher->entries = aq_arena_take(arena, B * sizeof *batcher->entries);
    batcher->keys = aq_arena_take(arena, B * sizeof *batcher->keys);
    batcher->rows = aq_arena_take(arena, B * sizeof *batcher->rows);
    batcher->slots = aq_arena_take(arena, B * sizeof *batcher->slots);
    batcher->warm = aq_arena_take(arena, B * sizeof *batcher->warm);
    batcher->lent = aq_arena_take(arena, B * sizeof *batcher->lent);
}

static void place_told(struct aq_edge_batcher *batcher, struct aq_arena *arena, uint32_t B)
{
    batcher->results = aq_arena_take(arena, B * sizeof *batcher->results);
    batcher->corrupt = aq_arena_take(arena, B * sizeof *batcher->corrupt);
}

/* Device bytes of a batcher for these codecs. */
static size_t measure(struct aq_edge_batcher *batcher, const struct aq_edge *edge)
{
    batcher->body_stride = aligned(
        largest(largest(aq_codec_bound(edge->forward), aq_codec_bound(edge->backward)), aq_codec_bound(edge->raw)));
    batcher->message_stride = aligned(aq_codec_message_bytes(edge->forward));
    return edge->B * (batcher->body_stride + batcher->message_stride);
}

enum aq_status aq_edge_batcher_open(struct aq_edge *edge)
{
    struct aq_codec *const codecs[] = {edge->forward, edge->backward, edge->raw};
    for (int i = 0; i < 3; i++)
        AQ_TRY(aq_codec_take_device(codecs[i]));
    if (!aq_codec_on_device(edge->forward)) return AQ_OK;
    void *memory;
    enum aq_status status;
    AQ_TRY(aq_alloc(sizeof(struct aq_edge_batcher), &memory));
    struct aq_edge_batcher *batcher = edge->batcher = memory; /* from here on aq_edge_close frees it */
    struct aq_device *device = edge->config.device;
    struct aq_arena arena = {0}, told = {0};
    place_own(batcher, &arena, edge->B);
    place_told(batcher, &told, edge->B);
    AQ_TRY(aq_alloc(arena.used, &batcher->own));
    arena = (struct aq_arena){.base = batcher->own, .bytes = arena.used};
    place_own(batcher, &arena, edge->B);
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_PINNED, told.used, &batcher->told), out);
    batcher->told_bytes = told.used;
    told = (struct aq_arena){.base = batcher->told, .bytes = told.used};
    place_told(batcher, &told, edge->B);
    const size_t bytes = measure(batcher, edge);
    AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &memory), out);
    batcher->memory = memory;
    batcher->memory_bytes = bytes;
    aq_log("edge", 2, "edge %u: the device codes micro-batches of %u, with %zu bytes of its own", edge->config.edge,
           edge->B, bytes);
out:
    return status;
}

void aq_edge_batcher_close(struct aq_edge *edge)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    if (!batcher) return;
    aq_device_free(edge->config.device, AQ_MEMORY_DEVICE, batcher->memory, batcher->memory_bytes);
    aq_device_free(edge->config.device, AQ_MEMORY_PINNED, batcher->told, batcher->told_bytes);
    aq_free(batcher->own);
    aq_free(batcher);
    edge->batcher = NULL;
}

static uint8_t *body_at(const struct aq_edge_batcher *batcher, uint32_t i)
{
    return batcher->memory + i * (batcher->body_stride + batcher->message_stride);
}

static uint8_t *message_at(const struct aq_edge_batcher *batcher, uint32_t i)
{
    return body_at(batcher, i) + batcher->body_stride;
}

static void begin(struct aq_edge_batcher *batcher, uint32_t count)
{
    memset(batcher->slots, 0, count * sizeof *batcher->slots);
    memset(batcher->warm, 0, count * sizeof *batcher->warm);
    memset(batcher->lent, 0, count * sizeof *batcher->lent);
    memset(batcher->rows, 0, count * sizeof *batcher->rows);
    memset(batcher->samples, 0, count * sizeof *batcher->samples);
}

/* Whatever is still ours goes back: all of it after a failure, nothing after a success. */
static void end(struct aq_edge *edge, uint32_t count)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    for (uint32_t i = 0; i < count; i++) {
        if (batcher->slots[i]) aq_cache_slot_return(edge->config.cache, batcher->slots[i]);
        if (batcher->lent[i]) aq_cache_release(edge->config.cache, &batcher->entries[i]);
        batcher->slots[i] = NULL;
        batcher->lent[i] = false;
    }
}

/*
 * The reference of sample i to the device. A message that had to be fetched lies in a slot of the link, which others
 * need: it is given back as soon as it has been copied.
 */
static enum aq_status reference_up(struct aq_edge *edge, uint32_t i, bool fetched, struct aq_frame *message,
                                   struct aq_stream *stream)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    struct aq_device *device = edge->config.device;
    const size_t bytes = aq_codec_message_bytes(edge->forward);
    batcher->warm[i] = true;
    batcher->lent[i] = !fetched;
    enum aq_status status = aq_device_copy(device, message_at(batcher, i), batcher->entries[i].bytes, bytes, stream);
    if (!fetched) return status;
    if (status == AQ_OK) status = aq_device_stream_sync(device, stream);
    aq_edge_message_release(edge, message);
    return status;
}

/* --- Sending
 * ---------------------------------------------------------------------------------------------------------- */

static enum aq_status encode_references(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                        struct aq_stream *stream)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_frame message = {0};
        bool fetched = false;
        const enum aq_status status =
            aq_edge_reference_for_sending(edge, batch, i, &batcher->entries[i], &message, &fetched);
        if (status == AQ_OK)
            AQ_TRY(reference_up(edge, i, fetched, &message, stream));
        else if (status != AQ_NOTFOUND)
            return status;
        AQ_TRY(aq_edge_cache_slot(edge, &batcher->slots[i]));
    }
    return AQ_OK;
}

/* Bodies to their places in the frame, messages to their slots. */
static enum aq_status encode_down(struct aq_edge *edge, const struct aq_edge_batch *batch, bool remembered,
                                  uint8_t *body, uint32_t *bytes, struct aq_stream *stream)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    struct aq_device *device = edge->config.device;
    uint32_t place = batch->samples * AQ_EDGE_ROW_BYTES;
    for (uint32_t i = 0; i < batch->samples; i++) {
        const struct aq_codec_result *result = &batcher->results[i];
        const uint32_t at = aq_edge_body_align(place);
        AQ_ASSERT(at + (uint64_t)result->body_bytes <= edge->body_bytes);
        memset(body + place, 0, at - place);
        AQ_TRY(aq_device_copy(device, body + at, body_at(batcher, i), result->body_bytes, stream));
        if (remembered && !(result->flags & AQ_CODED_RAW))
            AQ_TRY(aq_device_copy(device, batcher->slots[i], message_at(batcher, i),
                                  aq_codec_message_bytes(edge->forward), stream));
        place = at + result->body_bytes;
    }
    *bytes = place;
    return aq_device_stream_sync(device, stream);
}

/* m' to the cache, m to those held until the gradient is back; fills the row. */
static enum aq_status encode_keep(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                  struct aq_edge_row *row)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    const struct aq_cache_key where = aq_edge_key(edge, batch->sample_ids[i]);
    const uint64_t bytes = aq_codec_message_bytes(edge->forward);
    if (row->flags & AQ_CODED_RAW) {
        aq_log("edge", 2, "edge %u sample %llu step %llu: values beyond the store or not finite, sent raw",
               edge->config.edge, (unsigned long long)row->sample, (unsigned long long)batch->step);
        AQ_TRY(aq_cache_drop(edge->config.cache, &where));
    } else {
        row->version_before = batcher->warm[i] ? batcher->entries[i].version : 0;
        row->digest_before = batcher->warm[i] ? batcher->entries[i].digest : 0;
        row->version_after = row->version_before + 1;
        row->digest_after = aq_digest(batcher->slots[i], bytes);
        AQ_TRY(
            aq_cache_put(edge->config.cache, &where, row->version_after, row->digest_after, batcher->slots[i], bytes));
        batcher->slots[i] = NULL;
    }
    if (batcher->lent[i]) aq_edge_hold(edge, batch->micro_batch, batch->sample_ids[i], &batcher->entries[i]);
    batcher->lent[i] = false;
    return AQ_OK;
}

static enum aq_status encode_all(struct aq_edge *edge, struct aq_codec *codec, bool forward,
                                 const struct aq_edge_batch *batch, const float *a, uint8_t *body, uint32_t *bytes,
                                 struct aq_stream *stream)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    const uint64_t N = (uint64_t)edge->T * edge->C;
    const bool remembered = forward && edge->config.cache;
    if (remembered) AQ_TRY(encode_references(edge, batch, stream));
    for (uint32_t i = 0; i < batch->samples; i++) {
        batcher->keys[i] = aq_edge_round_key(edge, batch, i, forward);
        batcher->samples[i] = (struct aq_codec_sample){.a = a + i * N,
                                                       .m = batcher->warm[i] ? message_at(batcher, i) : NULL,
                                                       .key = &batcher->keys[i],
                                                       .body = body_at(batcher, i),
                                                       .m_out = remembered ? message_at(batcher, i) : NULL};
    }
    AQ_TRY(aq_codec_encode_batch(codec, batcher->samples, batch->samples, batcher->results, stream));
    AQ_TRY(aq_device_stream_sync(edge->config.device, stream));
    AQ_TRY(encode_down(edge, batch, remembered, body, bytes, stream));
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_codec_result *result = &batcher->results[i];
        struct aq_edge_row *row = &batcher->rows[i];
        row->sample = batch->sample_ids[i];
        row->body_bytes = result->body_bytes;
        row->flags = (uint16_t)result->flags;
        if (remembered) AQ_TRY(encode_keep(edge, batch, i, row));
        /* A raw codec's bodies are raw by choice; the count is of those that their values forced. */
        if (aq_codec_config_of(codec)->kind == AQ_CODEC_RAW) result->flags = 0;
        if (forward) aq_edge_measure_sample(&edge->measures, result, (double)N);
        aq_edge_row_write(row, body + (size_t)i * AQ_EDGE_ROW_BYTES);
    }
    return AQ_OK;
}

enum aq_status aq_edge_encode_batch(struct aq_edge *edge, struct aq_codec *codec, bool forward,
                                    const struct aq_edge_batch *batch, const float *a, uint8_t *body, uint32_t *bytes,
                                    struct aq_stream *stream)
{
    begin(edge->batcher, batch->samples);
    const enum aq_status status = encode_all(edge, codec, forward, batch, a, body, bytes, stream);
    if (status != AQ_OK) (void)aq_device_stream_sync(edge->config.device, stream); /* copies into what goes back */
    end(edge, batch->samples);
    return status;
}

/* --- Receiving
 * ---------------------------------------------------------------------------------------------------------- */

/* One row of a frame: checked, its reference and body on their way to the device. */
static enum aq_status decode_up(struct aq_edge *edge, uint32_t i, bool remembered, const uint8_t *body, float *x,
                                struct aq_stream *stream)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    const struct aq_edge_row *row = &batcher->rows[i];
    const bool raw = row->flags & AQ_CODED_RAW;
    if (remembered && !raw) {
        struct aq_frame message = {0};
        bool fetched = false;
        if (!(row->flags & AQ_CODED_KEYFRAME)) {
            AQ_TRY(aq_edge_reference_for_receiving(edge, row, &batcher->entries[i], &message, &fetched));
            AQ_TRY(reference_up(edge, i, fetched, &message, stream));
        }
        AQ_TRY(aq_edge_cache_slot(edge, &batcher->slots[i]));
    }
    if (row->body_bytes <= batcher->body_stride)
        AQ_TRY(aq_device_copy(edge->config.device, body_at(batcher, i), body, row->body_bytes, stream));
    batcher->samples[i] = (struct aq_codec_sample){.m = batcher->warm[i] ? message_at(batcher, i) : NULL,
                                                   .body = body_at(batcher, i),
                                                   .body_bytes = row->body_bytes,
                                                   .flags = row->flags,
                                                   .hat = x,
                                                   .m_out = remembered && !raw ? message_at(batcher, i) : NULL};
    return AQ_OK;
}

static enum aq_status decode_keep(struct aq_edge *edge, uint32_t i)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    const struct aq_edge_row *row = &batcher->rows[i];
    const struct aq_cache_key where = aq_edge_key(edge, row->sample);
    if (row->flags & AQ_CODED_RAW) return aq_cache_drop(edge->config.cache, &where);
    const uint64_t bytes = aq_codec_message_bytes(edge->forward);
    const uint64_t digest = aq_digest(batcher->slots[i], bytes);
    if (digest != row->digest_after || row->version_after != row->version_before + 1)
        return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the message after decoding is not the sender's",
                       edge->config.edge, (unsigned long long)row->sample);
    AQ_TRY(aq_cache_put(edge->config.cache, &where, row->version_after, digest, batcher->slots[i], bytes));
    batcher->slots[i] = NULL;
    return AQ_OK;
}

static enum aq_status decode_all(struct aq_edge *edge, struct aq_codec *codec, bool forward,
                                 const struct aq_edge_batch *batch, const struct aq_frame *frame, float *x,
                                 struct aq_stream *stream)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    struct aq_device *device = edge->config.device;
    const bool remembered = forward && edge->config.cache;
    const uint64_t N = (uint64_t)edge->T * edge->C;
    const uint8_t *body = frame->body;
    uint32_t at = aq_edge_body_align(batch->samples * AQ_EDGE_ROW_BYTES);
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_edge_row *row = &batcher->rows[i];
        aq_edge_row_read(body + (size_t)i * AQ_EDGE_ROW_BYTES, row);
        AQ_TRY(aq_edge_row_check(edge, batch, i, row, at, frame->body_bytes, remembered));
        AQ_TRY(decode_up(edge, i, remembered, body + at, x + i * N, stream));
        at = aq_edge_body_align(at + row->body_bytes);
    }
    AQ_TRY(aq_codec_decode_batch(codec, batcher->samples, batch->samples, batcher->corrupt, stream));
    for (uint32_t i = 0; i < batch->samples; i++)
        if (batcher->slots[i])
            AQ_TRY(aq_device_copy(device, batcher->slots[i], message_at(batcher, i),
                                  aq_codec_message_bytes(edge->forward), stream));
    AQ_TRY(aq_device_stream_sync(device, stream));
    for (uint32_t i = 0; i < batch->samples; i++) {
        if (batcher->corrupt[i])
            return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: its body of %u bytes is no body of its codec",
                           edge->config.edge, (unsigned long long)batcher->rows[i].sample, batcher->rows[i].body_bytes);
        if (remembered) AQ_TRY(decode_keep(edge, i));
        if (forward && !edge->config.sender) aq_edge_measure_row(&edge->measures, &batcher->rows[i]);
    }
    return AQ_OK;
}

enum aq_status aq_edge_decode_batch(struct aq_edge *edge, struct aq_codec *codec, bool forward,
                                    const struct aq_edge_batch *batch, const struct aq_frame *frame, float *x,
                                    struct aq_stream *stream)
{
    begin(edge->batcher, batch->samples);
    const enum aq_status status = decode_all(edge, codec, forward, batch, frame, x, stream);
    if (status != AQ_OK) (void)aq_device_stream_sync(edge->config.device, stream); /* copies from what goes back */
    end(edge, batch->samples);
    return status;
}
