/*
 * stage_packed.c -- frozen weights of linear layers in fewer bits: where they lie, how they are put and read.
 *
 * Tensor after tensor in the order of the stage's list, each as its store keeps it (stages/frozen/frozen_store.h): part
 * after part, filled up to a multiple of AQ_ALIGN. Tensors in bf16 follow each other without gaps, so that what lay
 * side by side in fp32 does here. Values are finite (whoever reads files has seen to it).
 */
#include <string.h>

#include "frozen_store.h"
#include "stage_model.h"

enum { PIECE_VALUES = 1 << 16 };

/* Offsets of a tensor's parts from its start; returns its end. */
static uint64_t tensor_parts(const struct frozen_store *store, uint64_t count, uint64_t parts[FROZEN_PARTS])
{
    uint64_t at = 0;
    for (uint32_t p = 0; p < FROZEN_PARTS; p++) {
        const uint64_t bytes = frozen_part_bytes(store, p, count);
        if (parts) parts[p] = at;
        at += store->bf16 ? bytes : stage_line_bytes(bytes);
    }
    return at;
}

uint64_t stage_packed_place(const struct layer_tensor *tensors, uint32_t count, enum aq_frozen_store store,
                            uint32_t index, uint64_t parts[FROZEN_PARTS])
{
    const struct frozen_store *of = frozen_store_of(store);
    uint64_t at = 0;
    for (uint32_t i = 0; i < count && i < index; i++)
        if (tensors[i].info.packed) at += tensor_parts(of, tensors[i].info.count, NULL);
    if (index < count) {
        (void)tensor_parts(of, tensors[index].info.count, parts);
        for (uint32_t p = 0; p < FROZEN_PARTS; p++)
            parts[p] += at;
    }
    return at;
}

/* The parts of a tensor of the stage, found by its offset, which is unique. Returns the bytes of it all. */
static uint64_t place_of(const struct aq_stage *stage, const struct aq_tensor_info *tensor,
                         uint8_t *parts[FROZEN_PARTS])
{
    uint64_t at[FROZEN_PARTS];
    uint32_t i = stage->saved_count;
    while (i < stage->all_count && stage->tensors[i].info.offset != tensor->offset)
        i++;
    AQ_ASSERT(i < stage->all_count && stage->tensors[i].info.packed);
    (void)stage_packed_place(stage->tensors, stage->all_count, stage->config.frozen_store, i, at);
    for (uint32_t p = 0; p < FROZEN_PARTS; p++)
        parts[p] = stage->packed + at[p];
    return tensor_parts(frozen_store_of(tensor->packed), tensor->count, NULL);
}

static bool on_host(const struct aq_stage *stage)
{
    struct aq_device_info info;
    aq_device_info(stage->device, &info);
    return info.host_memory;
}

/* A whole tensor. If the device's memory is the host's, it is packed in its place. */
static enum aq_status packed_put(struct aq_stage *stage, const struct aq_tensor_info *tensor, const float *values)
{
    const struct frozen_store *store = frozen_store_of(tensor->packed);
    uint8_t *place[FROZEN_PARTS], *parts[FROZEN_PARTS];
    const uint64_t bytes = place_of(stage, tensor, place);
    void *memory = NULL;
    if (!on_host(stage)) AQ_TRY(aq_alloc(bytes, &memory));
    uint8_t *to = memory ? memory : place[0];
    for (uint32_t p = 0; p < FROZEN_PARTS; p++)
        parts[p] = to + (place[p] - place[0]);
    memset(to, 0, bytes);
    enum aq_status status = store->pack(values, tensor->count, parts);
    if (status == AQ_OK && memory) status = aq_device_copy(stage->device, place[0], memory, bytes, NULL);
    if (status == AQ_OK && memory) status = aq_device_stream_sync(stage->device, NULL);
    aq_free(memory);
    return status;
}

enum aq_status aq_stage_put(struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first, uint64_t count,
                            const float *values)
{
    AQ_ASSERT(first <= tensor->count && count <= tensor->count - first);
    if (tensor->packed) {
        AQ_ASSERT(first == 0 && count == tensor->count);
        return packed_put(stage, tensor, values);
    }
    float *to = stage->parameters + tensor->offset + first;
    AQ_TRY(aq_device_copy(stage->device, to, values, count * sizeof *values, NULL));
    return aq_device_stream_sync(stage->device, NULL);
}

/* `count` values from `first` on, by way of `memory`, or (NULL) from where they lie. Waits. */
static enum aq_status piece_get(const struct aq_stage *stage, const struct aq_tensor_info *tensor,
                                uint8_t *const place[FROZEN_PARTS], uint64_t first, uint64_t count, uint8_t *memory,
                                float *values)
{
    const struct frozen_store *store = frozen_store_of(tensor->packed);
    const uint8_t *parts[FROZEN_PARTS];
    for (uint32_t p = 0; p < FROZEN_PARTS; p++) {
        const struct frozen_part *part = &store->parts[p];
        const uint64_t begin = part->values ? first / part->values * part->bytes : 0;
        const uint64_t bytes = frozen_part_bytes(store, p, first + count) - begin;
        parts[p] = memory ? memory : place[p] + begin;
        if (!memory || bytes == 0) continue;
        AQ_TRY(aq_device_copy(stage->device, memory, place[p] + begin, bytes, NULL));
        memory += bytes;
    }
    if (memory) AQ_TRY(aq_device_stream_sync(stage->device, NULL));
    store->unpack(parts, first, count, values);
    return AQ_OK;
}

static enum aq_status packed_get(const struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first,
                                 uint64_t count, float *values)
{
    uint8_t *place[FROZEN_PARTS];
    const uint64_t bytes = place_of(stage, tensor, place), most = PIECE_VALUES * sizeof(float);
    void *memory = NULL;
    AQ_ASSERT(first % AQ_STAGE_GROUP == 0);
    if (on_host(stage)) return piece_get(stage, tensor, place, first, count, NULL, values);
    AQ_TRY(aq_alloc(bytes < most ? bytes : most, &memory));
    enum aq_status status = AQ_OK;
    for (uint64_t done = 0; status == AQ_OK && done < count; done += PIECE_VALUES) {
        const uint64_t n = count - done < PIECE_VALUES ? count - done : PIECE_VALUES;
        status = piece_get(stage, tensor, place, first + done, n, memory, values + done);
    }
    aq_free(memory);
    return status;
}

enum aq_status aq_stage_get(const struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first,
                            uint64_t count, float *values)
{
    AQ_ASSERT(first <= tensor->count && count <= tensor->count - first);
    if (tensor->packed) return packed_get(stage, tensor, first, count, values);
    const float *from = stage->parameters + tensor->offset + first;
    AQ_TRY(aq_device_copy(stage->device, values, from, count * sizeof *values, NULL));
    return aq_device_stream_sync(stage->device, NULL);
}

uint64_t aq_stage_packed_bytes(const struct aq_tensor_info *tensor)
{
    const struct frozen_store *store = frozen_store_of(tensor->packed);
    return store && !store->repeats ? tensor_parts(store, tensor->count, NULL) : 0;
}

enum aq_status aq_stage_packed_get(const struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first,
                                   uint64_t count, uint8_t *bytes)
{
    uint8_t *place[FROZEN_PARTS];
    const uint64_t all = place_of(stage, tensor, place);
    AQ_ASSERT(first <= all && count <= all - first);
    AQ_TRY(aq_device_copy(stage->device, bytes, place[0] + first, count, NULL));
    return aq_device_stream_sync(stage->device, NULL);
}

enum aq_status aq_stage_packed_put(struct aq_stage *stage, const struct aq_tensor_info *tensor, const uint8_t *bytes)
{
    uint8_t *place[FROZEN_PARTS];
    const uint64_t all = place_of(stage, tensor, place);
    AQ_TRY(aq_device_copy(stage->device, place[0], bytes, all, NULL));
    return aq_device_stream_sync(stage->device, NULL);
}

enum aq_status aq_stage_packed_digest(const struct aq_stage *stage, uint64_t *digest)
{
    enum { BYTES = PIECE_VALUES };
    void *memory;
    if (!stage->packed) return AQ_OK;
    AQ_TRY(aq_alloc(BYTES, &memory));
    enum aq_status status = AQ_OK;
    for (uint64_t done = 0; status == AQ_OK && done < stage->size.packed_bytes; done += BYTES) {
        const uint64_t left = stage->size.packed_bytes - done, n = left < BYTES ? left : BYTES;
        status = aq_device_copy(stage->device, memory, stage->packed + done, n, NULL);
        if (status == AQ_OK) status = aq_device_stream_sync(stage->device, NULL);
        if (status == AQ_OK) *digest = aq_digest_seeded(memory, n, *digest);
    }
    aq_free(memory);
    return status;
}

enum aq_status stage_packed_init(struct aq_stage *stage, const struct layer_tensor *tensor, uint64_t seed)
{
    const char *name = tensor->info.begins_as;
    const struct aq_rng_key key = aq_rng_key(seed, AQ_RNG_INIT, aq_digest(name, strlen(name)), 0);
    float *values;
    AQ_TRY(AQ_NEW(tensor->info.count, &values));
    for (uint64_t i = 0; i < tensor->info.count; i++)
        values[i] = tensor->std == 0.0f ? tensor->value : tensor->std * aq_rng_normal(&key, i);
    const enum aq_status status = packed_put(stage, &tensor->info, values);
    aq_free(values);
    return status;
}

bool layer_packs_bf16(const struct layer_run *run)
{
    const struct frozen_store *store = frozen_store_of(run->config->frozen_store);
    return store && store->bf16;
}

enum aq_status layer_unpack(const struct layer_run *run, const struct layer_packed *packed, uint64_t count, void *y,
                            enum aq_element type)
{
    const struct frozen_store *store = frozen_store_of(run->config->frozen_store);
    return store->apply(run->device, packed->parts, count, y, type, run->stream);
}
