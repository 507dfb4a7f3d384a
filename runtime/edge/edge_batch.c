/*
 * edge_batch.c -- a micro-batch's samples to a body and back where the device has kernels for the codec: the same
 * frames as edge_code.c makes sample by sample, in a few launches, and nobody waits for them.
 *
 * Each direction has one *work*: memory on the device and beside it, and what a micro-batch on its way needs. A work is
 * issued (references, kernels and copies are enqueued, an event behind them) and done later, by whoever pumps the edge
 * and finds that the stream has passed the event: digests, messages to the cache, the frame to the link. Bodies go
 * straight to their places in the frame, for their lengths are known but for samples whose values force them to be raw:
 * where one was, all are copied a second time.
 *
 * Only host memory that is pinned, or lies in slots until the work is done, is copied. Of one direction one micro-batch
 * is on its way; the next is AQ_AGAIN until then.
 */
#include <string.h>

#include "edge_private.h"

enum { PLACE_ALIGN = 256 };

/* One direction's: what is coded and sent, or received and decoded. */
struct aq_edge_work {
    /* Device memory of each sample: its body, its message (of forward codecs). */
    uint8_t *memory;
    size_t memory_bytes, body_stride, message_stride;
    /* Pinned: what kernels tell. */
    void *told;
    size_t told_bytes;
    struct aq_codec_result *results;
    uint32_t *corrupt;
    /* Of each sample. */
    struct aq_codec_sample *samples;
    struct aq_cache_entry *entries;
    struct aq_rng_key *keys;
    struct aq_edge_row *rows;
    uint64_t *sample_ids;
    void **slots;
    bool *warm, *lent; /* has a reference; entries has it from the cache, to be held or released */
    void *own;
    /* On its way. */
    bool pending;
    bool settled;                   /* encode: bodies have been copied by their real lengths */
    struct aq_event *begun, *ended; /* timed */
    struct aq_stream *stream;
    struct aq_codec *codec;
    struct aq_edge_batch batch;
    enum aq_frame_kind kind;
    bool forward, remembered;
    uint32_t body, body_bytes;   /* encode: index of the send buffer, and how long all is */
    uint8_t *bodies;             /* encode: of the device, where NCCL carries them; NULL: in the send buffer */
    struct aq_edge_received got; /* decode: the frame                           */
    uint64_t issued_ns, host_ns; /* when; of this thread                        */
};

struct aq_edge_batcher {
    struct aq_edge_work encode, decode;
};

static size_t aligned(size_t bytes)
{
    return (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void place_own(struct aq_edge_work *work, struct aq_arena *arena, uint32_t B)
{
    work->samples = aq_arena_take(arena, B * sizeof *work->samples);
    work->entries = aq_arena_take(arena, B * sizeof *work->entries);
    work->keys = aq_arena_take(arena, B * sizeof *work->keys);
    work->rows = aq_arena_take(arena, B * sizeof *work->rows);
    work->sample_ids = aq_arena_take(arena, B * sizeof *work->sample_ids);
    work->slots = aq_arena_take(arena, B * sizeof *work->slots);
    work->warm = aq_arena_take(arena, B * sizeof *work->warm);
    work->lent = aq_arena_take(arena, B * sizeof *work->lent);
}

static void place_told(struct aq_edge_work *work, struct aq_arena *arena, uint32_t B)
{
    work->results = aq_arena_take(arena, B * sizeof *work->results);
    work->corrupt = aq_arena_take(arena, B * sizeof *work->corrupt);
}

/* Activations (of training and evaluation) go one way, gradients the other. */
static void strides_of(const struct aq_edge_size *size, bool forward, size_t *body, size_t *message)
{
    *body = aligned(forward ? largest(size->forward_bound, size->raw_bound) : size->backward_bound);
    *message = forward ? aligned(size->message_bytes) : 0;
}

uint64_t aq_edge_batcher_bytes(const struct aq_edge_shape *shape, const struct aq_edge_size *size)
{
    uint64_t bytes = size->kernel_bytes;
    for (int forward = 0; forward < 2; forward++) {
        size_t body, message;
        strides_of(size, forward, &body, &message);
        bytes += shape->micro_batch * (uint64_t)(body + message);
    }
    return bytes;
}

static enum aq_status work_open(struct aq_edge *edge, struct aq_edge_work *work, bool forward)
{
    struct aq_device *device = edge->config.device;
    struct aq_arena own = {0}, told = {0};
    void *memory;
    place_own(work, &own, edge->shape.micro_batch);
    place_told(work, &told, edge->shape.micro_batch);
    AQ_TRY(aq_alloc(own.used, &work->own));
    own = (struct aq_arena){.base = work->own, .bytes = own.used};
    place_own(work, &own, edge->shape.micro_batch);
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_PINNED, told.used, &work->told));
    work->told_bytes = told.used;
    told = (struct aq_arena){.base = work->told, .bytes = told.used};
    place_told(work, &told, edge->shape.micro_batch);
    strides_of(&edge->size, forward, &work->body_stride, &work->message_stride);
    const size_t bytes = edge->shape.micro_batch * (work->body_stride + work->message_stride);
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &memory));
    work->memory = memory;
    work->memory_bytes = bytes;
    AQ_TRY(aq_device_event_open_timed(device, &work->begun));
    return aq_device_event_open_timed(device, &work->ended);
}

enum aq_status aq_edge_batcher_open(struct aq_edge *edge)
{
    struct aq_codec *const codecs[] = {edge->forward, edge->backward, edge->raw};
    for (int i = 0; i < 3; i++)
        AQ_TRY(aq_codec_take_device(codecs[i]));
    if (!aq_codec_on_device(edge->forward)) return AQ_OK;
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_edge_batcher), &memory));
    struct aq_edge_batcher *batcher = edge->batcher = memory; /* from here on aq_edge_close frees it */
    AQ_TRY(work_open(edge, &batcher->encode, edge->config.sender));
    AQ_TRY(work_open(edge, &batcher->decode, !edge->config.sender));
    aq_log("edge", 2, "edge %u: the device codes micro-batches of %u, with %zu bytes of its own", edge->shape.edge,
           edge->shape.micro_batch, batcher->encode.memory_bytes + batcher->decode.memory_bytes);
    return AQ_OK;
}

static uint8_t *body_at(const struct aq_edge_work *work, uint32_t i)
{
    return work->memory + i * (work->body_stride + work->message_stride);
}

static uint8_t *message_at(const struct aq_edge_work *work, uint32_t i)
{
    return body_at(work, i) + work->body_stride;
}

/* Takes the micro-batch; its arrays may change under us. */
static void work_begin(struct aq_edge *edge, struct aq_edge_work *work, struct aq_codec *codec, enum aq_frame_kind kind,
                       const struct aq_edge_batch *batch, struct aq_stream *stream)
{
    const uint32_t count = batch->samples;
    AQ_ASSERT(!work->pending && count <= edge->shape.micro_batch);
    work->codec = codec;
    work->kind = kind;
    work->forward = kind == AQ_FRAME_FORWARD;
    work->remembered = work->forward && edge->config.cache;
    work->stream = stream;
    work->settled = false;
    work->batch = *batch;
    work->batch.sample_ids = work->sample_ids;
    memcpy(work->sample_ids, batch->sample_ids, count * sizeof *work->sample_ids);
    memset(work->slots, 0, count * sizeof *work->slots);
    memset(work->warm, 0, count * sizeof *work->warm);
    memset(work->lent, 0, count * sizeof *work->lent);
    memset(work->rows, 0, count * sizeof *work->rows);
    memset(work->samples, 0, count * sizeof *work->samples);
}

/* Whatever is still ours goes back: all of it after a failure, and then only when the stream has let go of it. */
static void work_end(struct aq_edge *edge, struct aq_edge_work *work, enum aq_status status)
{
    if (status != AQ_OK) (void)aq_device_stream_sync(edge->config.device, work->stream);
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        if (work->slots[i]) aq_cache_slot_return(edge->config.cache, work->slots[i]);
        if (work->lent[i]) aq_cache_release(edge->config.cache, &work->entries[i]);
        work->slots[i] = NULL;
        work->lent[i] = false;
    }
    work->pending = false;
}

/* When the work was passed, and how long the device took: this thread's time and the device's, for trace and sums. */
static enum aq_status work_measure(struct aq_edge *edge, struct aq_edge_work *work, const char *what)
{
    uint64_t ns = 0;
    const uint64_t now = aq_clock_ns();
    AQ_TRY(aq_device_event_elapsed(edge->config.device, work->begun, work->ended, &ns));
    aq_trace_add(edge->config.trace, "codec", what, now - ns, now, (uint32_t)work->batch.step, work->batch.micro_batch);
    edge->measures.codec_ns += ns + work->host_ns;
    return AQ_OK;
}

/*
 * The reference of sample i to the device. A message that had to be fetched lies in a slot of the link, which others
 * need: it is given back as soon as it has been copied.
 */
static enum aq_status reference_up(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i, bool fetched,
                                   struct aq_frame *message)
{
    struct aq_device *device = edge->config.device;
    const size_t bytes = aq_codec_message_bytes(edge->forward);
    work->warm[i] = true;
    work->lent[i] = !fetched;
    enum aq_status status = aq_device_copy(device, message_at(work, i), work->entries[i].bytes, bytes, work->stream);
    if (!fetched) return status;
    if (status == AQ_OK) status = aq_device_stream_sync(device, work->stream);
    aq_edge_message_release(edge, message);
    return status;
}

/* --- Sending
 * ---------------------------------------------------------------------------------------------------------- */

static enum aq_status encode_references(struct aq_edge *edge, struct aq_edge_work *work)
{
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        struct aq_frame message = {0};
        bool fetched = false;
        const enum aq_status status =
            aq_edge_reference_for_sending(edge, &work->batch, i, &work->entries[i], &message, &fetched);
        if (status == AQ_OK)
            AQ_TRY(reference_up(edge, work, i, fetched, &message));
        else if (status != AQ_NOTFOUND)
            return status;
        AQ_TRY(aq_edge_cache_slot(edge, &work->slots[i]));
    }
    return AQ_OK;
}

static enum aq_status encode_kernels(struct aq_edge *edge, struct aq_edge_work *work, const float *a)
{
    const uint64_t N = edge->values;
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        work->keys[i] = aq_edge_round_key(edge, &work->batch, i, work->forward);
        work->samples[i] = (struct aq_codec_sample){.a = a + i * N,
                                                    .m = work->warm[i] ? message_at(work, i) : NULL,
                                                    .key = &work->keys[i],
                                                    .body = body_at(work, i),
                                                    .m_out = work->remembered ? message_at(work, i) : NULL};
    }
    return aq_codec_encode_batch(work->codec, work->samples, work->batch.samples, work->results, work->stream);
}

/* What sample i's body is long: as every body is, or, when the kernels have told, as it came out. */
static uint32_t body_length(const struct aq_edge_work *work, uint32_t i)
{
    if (work->settled) return work->results[i].body_bytes;
    return (uint32_t)aq_codec_body_bytes(work->codec, work->remembered && !work->warm[i]);
}

/* Zeros between two bodies. */
static enum aq_status encode_gap(struct aq_edge *edge, struct aq_edge_work *work, uint8_t *at, uint32_t bytes)
{
    if (work->bodies && bytes) return aq_device_zero(edge->config.device, at, bytes, work->stream);
    memset(at, 0, bytes);
    return AQ_OK;
}

/* Bodies to their places in the frame, messages to their slots, and the event behind them. */
static enum aq_status encode_down(struct aq_edge *edge, struct aq_edge_work *work)
{
    struct aq_device *device = edge->config.device;
    uint8_t *const body = work->bodies ? work->bodies : aq_edge_body(edge, work->body);
    uint32_t place = work->batch.samples * AQ_EDGE_ROW_BYTES;
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        const uint32_t at = aq_edge_body_align(place), bytes = body_length(work, i);
        AQ_ASSERT(at + (uint64_t)bytes <= edge->size.body_bytes_max);
        AQ_TRY(encode_gap(edge, work, body + place, at - place));
        AQ_TRY(aq_device_copy(device, body + at, body_at(work, i), bytes, work->stream));
        if (work->remembered && !work->settled)
            AQ_TRY(aq_device_copy(device, work->slots[i], message_at(work, i), aq_codec_message_bytes(edge->forward),
                                  work->stream));
        place = at + bytes;
    }
    work->body_bytes = place;
    return aq_device_event_record(device, work->ended, work->stream);
}

static enum aq_status encode_enqueue(struct aq_edge *edge, struct aq_edge_work *work, const struct aq_values *values)
{
    struct aq_device *device = edge->config.device;
    if (work->remembered) AQ_TRY(encode_references(edge, work));
    AQ_TRY(aq_values_read_begin(device, values, work->stream));
    AQ_TRY(aq_device_event_record(device, work->begun, work->stream));
    AQ_TRY(encode_kernels(edge, work, values->at));
    AQ_TRY(aq_values_read_end(device, values, work->stream));
    return encode_down(edge, work);
}

/* After enqueueing, which began then: pending, or undone. */
static enum aq_status issued(struct aq_edge *edge, struct aq_edge_work *work, enum aq_status status, uint64_t begin_ns)
{
    if (status != AQ_OK) {
        work_end(edge, work, status);
        return status;
    }
    work->pending = true;
    work->issued_ns = aq_clock_ns();
    work->host_ns = work->issued_ns - begin_ns;
    return AQ_OK;
}

enum aq_status aq_edge_encode_issue(struct aq_edge *edge, struct aq_codec *codec, enum aq_frame_kind kind,
                                    const struct aq_edge_batch *batch, const struct aq_values *values, uint32_t body,
                                    uint8_t *bodies, struct aq_stream *stream)
{
    struct aq_edge_work *work = &edge->batcher->encode;
    const uint64_t begin = aq_clock_ns();
    work_begin(edge, work, codec, kind, batch, stream);
    work->body = body;
    work->bodies = bodies;
    return issued(edge, work, encode_enqueue(edge, work, values), begin);
}

/* m' to the cache, m to those held until the gradient is back; fills the row. */
static enum aq_status encode_keep(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i)
{
    struct aq_edge_row *row = &work->rows[i];
    const struct aq_cache_key where = aq_edge_key(edge, row->sample);
    const uint64_t bytes = aq_codec_message_bytes(edge->forward);
    if (row->flags & AQ_CODED_RAW) {
        aq_log("edge", 2, "edge %u sample %llu step %llu: values beyond the store or not finite, sent raw",
               edge->shape.edge, (unsigned long long)row->sample, (unsigned long long)work->batch.step);
        AQ_TRY(aq_cache_drop(edge->config.cache, &where));
    } else {
        row->version_before = work->warm[i] ? work->entries[i].version : 0;
        row->digest_before = work->warm[i] ? work->entries[i].digest : 0;
        row->version_after = row->version_before + 1;
        row->digest_after = aq_digest(work->slots[i], bytes);
        AQ_TRY(aq_cache_put(edge->config.cache, &where, row->version_after, row->digest_after, work->slots[i], bytes));
        work->slots[i] = NULL;
    }
    if (work->lent[i]) aq_edge_hold(edge, work->batch.micro_batch, row->sample, &work->entries[i]);
    work->lent[i] = false;
    return AQ_OK;
}

static enum aq_status encode_rows(struct aq_edge *edge, struct aq_edge_work *work)
{
    uint8_t *const body = aq_edge_body(edge, work->body);
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        struct aq_codec_result *result = &work->results[i];
        struct aq_edge_row *row = &work->rows[i];
        row->sample = work->sample_ids[i];
        row->body_bytes = result->body_bytes;
        row->flags = (uint16_t)result->flags;
        if (work->codec == edge->raw) row->flags |= AQ_CODED_RAW; /* as edge_code.c */
        if (work->remembered) AQ_TRY(encode_keep(edge, work, i));
        /* A raw codec's bodies are raw by choice; the count is of those that their values forced. */
        if (aq_codec_config_of(work->codec)->kind == AQ_CODEC_RAW) result->flags = 0;
        if (work->forward) aq_edge_measure_sample(&edge->measures, result, (double)edge->values);
        aq_edge_row_write(row, body + (size_t)i * AQ_EDGE_ROW_BYTES);
    }
    return AQ_OK;
}

/* The stream has passed. */
static enum aq_status encode_done(struct aq_edge *edge, struct aq_edge_work *work)
{
    bool foreseen = true;
    for (uint32_t i = 0; i < work->batch.samples; i++)
        foreseen = foreseen && work->results[i].body_bytes == body_length(work, i);
    work->settled = true;
    if (!foreseen) return encode_down(edge, work);
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(encode_rows(edge, work));
    work->host_ns += aq_clock_ns() - begin;
    AQ_TRY(work_measure(edge, work, "encode"));
    work_end(edge, work, AQ_OK);
    if (work->bodies) {
        aq_edge_carry_out(edge, work->bodies, work->batch.samples, work->body_bytes);
        work->batch.flags |= AQ_EDGE_CARRIED;
    }
    return aq_edge_post_batch(edge, work->kind, &work->batch, work->body, work->body_bytes);
}

/* --- Receiving
 * ---------------------------------------------------------------------------------------------------------- */

/* One row of a frame: checked, its reference and body on their way to the device. */
static enum aq_status decode_up(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i, const uint8_t *body,
                                float *x)
{
    const struct aq_edge_row *row = &work->rows[i];
    const bool raw = row->flags & AQ_CODED_RAW;
    if (work->remembered && !raw) {
        struct aq_frame message = {0};
        bool fetched = false;
        if (!(row->flags & AQ_CODED_KEYFRAME)) {
            AQ_TRY(aq_edge_reference_for_receiving(edge, row, &work->entries[i], &message, &fetched));
            AQ_TRY(reference_up(edge, work, i, fetched, &message));
        }
        AQ_TRY(aq_edge_cache_slot(edge, &work->slots[i]));
    }
    if (row->body_bytes <= work->body_stride)
        AQ_TRY(aq_device_copy(edge->config.device, body_at(work, i), body, row->body_bytes, work->stream));
    work->samples[i] = (struct aq_codec_sample){.m = work->warm[i] ? message_at(work, i) : NULL,
                                                .body = body_at(work, i),
                                                .body_bytes = row->body_bytes,
                                                .flags = row->flags,
                                                .hat = x,
                                                .m_out = work->remembered && !raw ? message_at(work, i) : NULL};
    return AQ_OK;
}

static enum aq_status decode_enqueue(struct aq_edge *edge, struct aq_edge_work *work, const struct aq_values *values)
{
    struct aq_device *device = edge->config.device;
    const uint64_t N = edge->values;
    const struct aq_edge_received *got = &work->got;
    const uint8_t *const rows = got->frame.body;
    uint32_t at = aq_edge_body_align(work->batch.samples * AQ_EDGE_ROW_BYTES);
    AQ_TRY(aq_device_event_record(device, work->begun, work->stream));
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        struct aq_edge_row *row = &work->rows[i];
        aq_edge_row_read(rows + (size_t)i * AQ_EDGE_ROW_BYTES, row);
        AQ_TRY(aq_edge_row_check(edge, &work->batch, i, row, at, got->bytes, work->remembered));
        AQ_TRY(decode_up(edge, work, i, got->bodies + at, values->at + i * N));
        at = aq_edge_body_align(at + row->body_bytes);
    }
    AQ_TRY(aq_values_write_begin(device, values, work->stream));
    AQ_TRY(aq_codec_decode_batch(work->codec, work->samples, work->batch.samples, work->corrupt, work->stream));
    AQ_TRY(aq_values_write_end(device, values, work->stream));
    for (uint32_t i = 0; i < work->batch.samples; i++)
        if (work->slots[i])
            AQ_TRY(aq_device_copy(device, work->slots[i], message_at(work, i), aq_codec_message_bytes(edge->forward),
                                  work->stream));
    return aq_device_event_record(device, work->ended, work->stream);
}

enum aq_status aq_edge_decode_issue(struct aq_edge *edge, struct aq_codec *codec, const struct aq_edge_batch *batch,
                                    const struct aq_edge_received *got, const struct aq_values *values,
                                    struct aq_stream *stream)
{
    struct aq_edge_work *work = &edge->batcher->decode;
    const uint64_t begin = aq_clock_ns();
    work_begin(edge, work, codec, got->frame.kind, batch, stream);
    work->got = *got;
    return issued(edge, work, decode_enqueue(edge, work, values), begin);
}

static enum aq_status decode_keep(struct aq_edge *edge, struct aq_edge_work *work, uint32_t i)
{
    const struct aq_edge_row *row = &work->rows[i];
    const struct aq_cache_key where = aq_edge_key(edge, row->sample);
    if (row->flags & AQ_CODED_RAW) return aq_cache_drop(edge->config.cache, &where);
    const uint64_t bytes = aq_codec_message_bytes(edge->forward);
    const uint64_t digest = aq_digest(work->slots[i], bytes);
    if (digest != row->digest_after || row->version_after != row->version_before + 1)
        return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the message after decoding is not the sender's",
                       edge->shape.edge, (unsigned long long)row->sample);
    AQ_TRY(aq_cache_put(edge->config.cache, &where, row->version_after, digest, work->slots[i], bytes));
    work->slots[i] = NULL;
    return AQ_OK;
}

/* The stream has passed. */
static enum aq_status decode_done(struct aq_edge *edge, struct aq_edge_work *work)
{
    const uint64_t begin = aq_clock_ns();
    for (uint32_t i = 0; i < work->batch.samples; i++) {
        if (work->corrupt[i])
            return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: its body of %u bytes is no body of its codec",
                           edge->shape.edge, (unsigned long long)work->rows[i].sample, work->rows[i].body_bytes);
        if (work->remembered) AQ_TRY(decode_keep(edge, work, i));
        if (work->forward && !edge->config.sender) aq_edge_measure_row(&edge->measures, &work->rows[i]);
    }
    work->host_ns += aq_clock_ns() - begin;
    AQ_TRY(work_measure(edge, work, "decode"));
    work_end(edge, work, AQ_OK);
    aq_edge_received_release(edge, &work->got);
    return AQ_OK;
}

/* --- Both
 * ------------------------------------------------------------------------------------------------------------- */

uint64_t aq_edge_busy_since(const struct aq_edge *edge)
{
    const uint64_t encode = aq_edge_encoding(edge) ? edge->batcher->encode.issued_ns : 0;
    const uint64_t decode = aq_edge_decoding(edge) ? edge->batcher->decode.issued_ns : 0;
    if (!encode || !decode) return encode + decode;
    return encode < decode ? encode : decode;
}

bool aq_edge_encoding(const struct aq_edge *edge)
{
    return edge->batcher && edge->batcher->encode.pending;
}

bool aq_edge_decoding(const struct aq_edge *edge)
{
    return edge->batcher && edge->batcher->decode.pending;
}

static enum aq_status work_advance(struct aq_edge *edge, struct aq_edge_work *work,
                                   enum aq_status (*done)(struct aq_edge *edge, struct aq_edge_work *work))
{
    if (!work->pending) return AQ_OK;
    const enum aq_status passed = aq_device_event_query(edge->config.device, work->ended);
    if (passed == AQ_AGAIN) return AQ_OK;
    return passed == AQ_OK ? done(edge, work) : passed;
}

enum aq_status aq_edge_works_advance(struct aq_edge *edge)
{
    struct aq_edge_batcher *batcher = edge->batcher;
    if (!batcher) return AQ_OK;
    AQ_TRY(work_advance(edge, &batcher->encode, encode_done));
    return work_advance(edge, &batcher->decode, decode_done);
}

static void work_close(struct aq_edge *edge, struct aq_edge_work *work, bool decode)
{
    struct aq_device *device = edge->config.device;
    if (work->pending) {
        work_end(edge, work, AQ_CLOSED);
        if (decode) aq_edge_received_release(edge, &work->got);
    }
    aq_device_event_close(device, work->begun);
    aq_device_event_close(device, work->ended);
    aq_device_free(device, AQ_MEMORY_DEVICE, work->memory, work->memory_bytes);
    aq_device_free(device, AQ_MEMORY_PINNED, work->told, work->told_bytes);
    aq_free(work->own);
}

void aq_edge_batcher_close(struct aq_edge *edge)
{
    if (!edge->batcher) return;
    work_close(edge, &edge->batcher->encode, false);
    work_close(edge, &edge->batcher->decode, true);
    aq_free(edge->batcher);
    edge->batcher = NULL;
}
