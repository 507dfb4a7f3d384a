/* edge_work_open.c -- the memory of an edge's two works, and what it comes to. See edge_work.h. */
#include "edge_work.h"

#include <string.h>

enum { PLACE_ALIGN = 256 };

static size_t aligned(size_t bytes)
{
    return (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void place_told(struct aq_edge_work *work, struct aq_arena *arena, uint32_t B)
{
    work->results = aq_arena_take(arena, B * sizeof *work->results);
    work->corrupt = aq_arena_take(arena, B * sizeof *work->corrupt);
}

static void place_own(struct aq_edge_work *work, struct aq_arena *arena, uint32_t B)
{
    place_told(work, arena, B);
    work->references = aq_arena_take(arena, B * sizeof *work->references);
    work->rows = aq_arena_take(arena, B * sizeof *work->rows);
    work->sample_ids = aq_arena_take(arena, B * sizeof *work->sample_ids);
    work->lengths = aq_arena_take(arena, B * sizeof *work->lengths);
    work->views = aq_arena_take(arena, B * sizeof *work->views);
    work->samples = aq_arena_take(arena, B * sizeof *work->samples);
    work->place = aq_arena_take(arena, B * sizeof *work->place);
    work->keys = aq_arena_take(arena, B * sizeof *work->keys);
    work->wide = aq_arena_take(arena, B * sizeof *work->wide);
}

/* Activations (of training and evaluation) go one way, gradients the other. */
static void strides_of(const struct aq_edge_size *size, bool forward, size_t *body, size_t *message)
{
    *body = aligned(forward ? largest(size->forward_bound, size->raw_bound) : size->backward_bound);
    *message = forward ? aligned(size->message_bytes) : 0;
}

uint64_t aq_edge_works_bytes(const struct aq_edge_shape *shape, const struct aq_edge_size *size)
{
    uint64_t bytes = size->kernel_bytes;
    for (int forward = 0; forward < 2; forward++) {
        size_t body, message;
        strides_of(size, forward, &body, &message);
        bytes += shape->micro_batch * (uint64_t)(body + message);
    }
    return bytes;
}

uint64_t aq_edge_crop_bytes(const struct aq_edge_shape *shape, const struct aq_edge_size *size)
{
    if (!shape->pixels) return 0;
    return size->kernel_bytes ? shape->micro_batch * (uint64_t)aligned(size->message_bytes) : size->message_bytes;
}

/* Of the work that knows messages. */
static enum aq_status crops_open(struct aq_edge *edge, struct aq_edge_work *work)
{
    void *memory;
    if (!edge->shape.pixels || !edge->size.message_bytes) return AQ_OK;
    const size_t bytes = edge->size.message_bytes, stride = edge->on_device ? aligned(bytes) : 0;
    work->crop_stride = stride;
    work->crop_bytes = stride ? edge->shape.micro_batch * stride : bytes;
    AQ_TRY(aq_device_alloc(edge->config.device, AQ_MEMORY_PINNED, work->crop_bytes, &memory));
    work->crops = memory;
    return AQ_OK;
}

static enum aq_status work_open(struct aq_edge_work *work, uint32_t B)
{
    struct aq_arena own = {0};
    place_own(work, &own, B);
    AQ_TRY(aq_alloc(own.used, &work->own));
    own = (struct aq_arena){.base = work->own, .bytes = own.used};
    place_own(work, &own, B);
    return AQ_OK;
}

static enum aq_status work_open_device(struct aq_edge *edge, struct aq_edge_work *work, bool forward)
{
    struct aq_device *device = edge->config.device;
    const uint32_t B = edge->shape.micro_batch;
    struct aq_arena told = {0};
    void *memory;
    place_told(work, &told, B);
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_PINNED, told.used, &work->told));
    work->told_bytes = told.used;
    told = (struct aq_arena){.base = work->told, .bytes = told.used};
    place_told(work, &told, B);
    strides_of(&edge->size, forward, &work->body_stride, &work->message_stride);
    const size_t bytes = B * (work->body_stride + work->message_stride);
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_DEVICE, bytes, &memory));
    work->memory = memory;
    work->memory_bytes = bytes;
    AQ_TRY(aq_device_event_open_timed(device, &work->begun));
    return aq_device_event_open_timed(device, &work->ended);
}

/* Appends a way's codecs to those that are there; how many there are then. */
static uint32_t codecs_all(const struct aq_edge_levels *by, struct aq_codec **codecs, uint32_t count)
{
    for (uint32_t i = 0; i < by->count; i++) {
        codecs[count++] = by->codecs[i];
        if (by->wide[i]) codecs[count++] = by->wide[i];
    }
    return count;
}

/* Device memory for a sample's values, to be coded again from there. */
static enum aq_status spare_open(struct aq_edge *edge, struct aq_edge_work *work)
{
    void *memory;
    if (!edge->shape.wide && !edge->shape.wide_back) return AQ_OK;
    AQ_TRY(aq_device_alloc(edge->config.device, AQ_MEMORY_DEVICE, edge->size.raw_bound, &memory));
    work->spare = memory;
    work->spare_bytes = edge->size.raw_bound;
    return AQ_OK;
}

enum aq_status aq_edge_works_open(struct aq_edge *edge)
{
    struct aq_codec *codecs[1 + 4 * AQ_EDGE_LEVELS] = {edge->raw};
    const uint32_t count = codecs_all(&edge->backwards_by, codecs, codecs_all(&edge->forwards_by, codecs, 1));
    AQ_TRY(AQ_NEW(1, &edge->works)); /* from here on aq_edge_close frees it */
    struct aq_edge_works *works = edge->works;
    AQ_TRY(work_open(&works->encode, edge->shape.micro_batch));
    AQ_TRY(work_open(&works->decode, edge->shape.micro_batch));
    edge->on_device = true; /* one place for bodies: all of an edge's codecs, or none (aq_edge_size_of) */
    for (uint32_t i = 0; i < count; i++)
        edge->on_device = edge->on_device && aq_codec_device_bytes(codecs[i]) > 0;
    AQ_TRY(crops_open(edge, edge->config.sender ? &works->encode : &works->decode));
    AQ_TRY(aq_edge_check_open(edge->config.device, &edge->shape, true, edge->on_device, &works->encode.check));
    AQ_TRY(aq_edge_check_open(edge->config.device, &edge->shape, false, edge->on_device, &works->decode.check));
    if (!edge->on_device) return AQ_OK;
    for (uint32_t i = 0; i < count; i++)
        AQ_TRY(aq_codec_take_device(codecs[i]));
    AQ_TRY(spare_open(edge, &works->encode));
    AQ_TRY(work_open_device(edge, &works->encode, edge->config.sender));
    AQ_TRY(work_open_device(edge, &works->decode, !edge->config.sender));
    aq_log("edge", 2, "edge %u: the device codes micro-batches of %u, in %zu bytes of device memory", edge->shape.edge,
           edge->shape.micro_batch, works->encode.memory_bytes + works->decode.memory_bytes);
    return AQ_OK;
}

struct aq_edge_places aq_edge_places_of(const struct aq_edge *edge, bool forward)
{
    const struct aq_edge_work *work = forward == edge->config.sender ? &edge->works->encode : &edge->works->decode;
    AQ_ASSERT(edge->on_device && !work->pending);
    return (struct aq_edge_places){.body = aq_edge_body_at(work, 0),
                                   .message = work->message_stride ? aq_edge_message_at(work, 0) : NULL,
                                   .hat = work->check.hat,
                                   .result = work->results,
                                   .corrupt = work->corrupt};
}

static void work_close(struct aq_edge *edge, struct aq_edge_work *work, bool decode)
{
    struct aq_device *device = edge->config.device;
    if (work->pending) {
        (void)aq_edge_work_end(edge, work, AQ_CLOSED);
        if (decode) aq_edge_received_release(edge, &work->got);
    }
    if (edge->on_device) {
        aq_device_event_close(device, work->begun);
        aq_device_event_close(device, work->ended);
        aq_device_free(device, AQ_MEMORY_DEVICE, work->memory, work->memory_bytes);
        if (work->spare) aq_device_free(device, AQ_MEMORY_DEVICE, work->spare, work->spare_bytes);
        aq_device_free(device, AQ_MEMORY_PINNED, work->told, work->told_bytes);
    }
    if (work->crops) aq_device_free(device, AQ_MEMORY_PINNED, work->crops, work->crop_bytes);
    aq_edge_check_close(device, &work->check);
    aq_free(work->own);
}

void aq_edge_works_close(struct aq_edge *edge)
{
    if (!edge->works) return;
    work_close(edge, &edge->works->encode, false);
    work_close(edge, &edge->works->decode, true);
    aq_free(edge->works);
    edge->works = NULL;
}
