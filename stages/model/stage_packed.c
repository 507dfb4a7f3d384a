/*
 * stage_packed.c -- frozen weights of linear layers in 16 or 8 bits: where they lie, how they are put and read.
 *
 *     bf16    tensor after tensor, 2 bytes a value, without gaps: what lay side by side in fp32 does here
 *     q8      a tensor's values, a byte each, up to a multiple of AQ_ALIGN, then a float for each AQ_STAGE_GROUP values
 *             that follow each other (the last may have fewer), up to the same: x = code * scale
 *
 * A scale is max |x| / 127, rounded up to 16 bits of mantissa, so that code * scale is exact in fp32, and so that what
 * was kept is kept again with the same bits: the largest value of a group is then 127 scale, whose scale is that one.
 * A group of nothing but zeroes has scale 0. Codes are rounded to nearest, ties to even. Values are finite (whoever
 * reads files has seen to it).
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "stage_model.h"

static_assert((int)AQ_STAGE_GROUP == (int)AQ_UNPACK_GROUP, "a group is what the device unpacks by one scale");

enum { PIECE_VALUES = 1 << 16, CODE_MAX = 127 };

static uint64_t line_up(uint64_t bytes)
{
    return (bytes + AQ_ALIGN - 1) / AQ_ALIGN * AQ_ALIGN;
}

static uint64_t groups_of(uint64_t count)
{
    return (count + AQ_STAGE_GROUP - 1) / AQ_STAGE_GROUP;
}

uint64_t stage_packed_place(const struct layer_tensor *tensors, uint32_t count, enum aq_frozen_store store,
                            uint32_t index, struct stage_packed_place *out)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t values = tensors[i].info.count;
        if (i == index) break;
        if (!tensors[i].info.packed) continue;
        at += store == AQ_FROZEN_BF16 ? values * sizeof(uint16_t)
                                      : line_up(values) + line_up(groups_of(values) * sizeof(float));
    }
    *out = (struct stage_packed_place){.values = at};
    if (index < count) out->scales = at + line_up(tensors[index].info.count);
    return at;
}

/* Where a tensor of the stage lies: its offset is of no other. */
static void place_of(const struct aq_stage *stage, const struct aq_tensor_info *tensor, struct stage_packed_place *out)
{
    uint32_t i = stage->saved_count;
    while (i < stage->all_count && stage->tensors[i].info.offset != tensor->offset)
        i++;
    AQ_ASSERT(i < stage->all_count && stage->tensors[i].info.packed);
    (void)stage_packed_place(stage->tensors, stage->all_count, stage->config.frozen_store, i, out);
}

/* Of normal numbers, and of those below them, where it is exact or 2^-141 and more. */
static float scale_of(const float *values, uint64_t count)
{
    float most = 0.0f, scale;
    uint32_t bits;
    for (uint64_t i = 0; i < count; i++)
        most = fmaxf(most, fabsf(values[i]));
    scale = most / CODE_MAX;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 0xff) & ~UINT32_C(0xff);
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* A piece on its way: codes or bf16, then scales. */
struct piece {
    uint16_t halves[PIECE_VALUES];
    int8_t codes[PIECE_VALUES];
    float scales[PIECE_VALUES / AQ_STAGE_GROUP];
};

static void piece_pack(struct piece *piece, enum aq_frozen_store store, uint64_t count, const float *values)
{
    for (uint64_t i = 0; i < count && store == AQ_FROZEN_BF16; i++)
        piece->halves[i] = aq_bfloat_from_float(values[i]);
    for (uint64_t g = 0; g < groups_of(count) && store == AQ_FROZEN_Q8; g++) {
        const uint64_t first = g * AQ_STAGE_GROUP, left = count - first;
        const uint64_t end = first + (left < AQ_STAGE_GROUP ? left : AQ_STAGE_GROUP);
        const float scale = piece->scales[g] = scale_of(values + first, end - first);
        for (uint64_t i = first; i < end; i++)
            piece->codes[i] = (int8_t)(scale > 0.0f ? rintf(values[i] / scale) : 0.0f);
    }
}

static void piece_unpack(const struct piece *piece, enum aq_frozen_store store, uint64_t count, float *values)
{
    for (uint64_t i = 0; i < count; i++)
        values[i] = store == AQ_FROZEN_BF16 ? aq_bfloat_to_float(piece->halves[i])
                                            : (float)piece->codes[i] * piece->scales[i / AQ_STAGE_GROUP];
}

/* Between a piece and the device; `first` is a multiple of AQ_STAGE_GROUP. Waits. */
static enum aq_status piece_copy(const struct aq_stage *stage, const struct stage_packed_place *at, uint64_t first,
                                 uint64_t count, struct piece *piece, bool out)
{
    const bool halves = stage->config.frozen_store == AQ_FROZEN_BF16;
    uint8_t *values = stage->packed + at->values + first * (halves ? sizeof(uint16_t) : 1);
    uint8_t *scales = stage->packed + at->scales + first / AQ_STAGE_GROUP * sizeof(float);
    void *own = halves ? (void *)piece->halves : piece->codes;
    const size_t bytes = count * (halves ? sizeof(uint16_t) : 1), groups = groups_of(count) * sizeof(float);
    AQ_TRY(aq_device_copy(stage->device, out ? own : values, out ? (const void *)values : own, bytes, NULL));
    if (!halves)
        AQ_TRY(aq_device_copy(stage->device, out ? (void *)piece->scales : scales,
                              out ? (const void *)scales : piece->scales, groups, NULL));
    return aq_device_stream_sync(stage->device, NULL);
}

enum aq_status aq_stage_put(struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first, uint64_t count,
                            const float *values)
{
    struct stage_packed_place at;
    void *memory;
    AQ_ASSERT(first <= tensor->count && count <= tensor->count - first);
    if (!tensor->packed) {
        float *to = stage->parameters + tensor->offset + first;
        AQ_TRY(aq_device_copy(stage->device, to, values, count * sizeof *values, NULL));
        return aq_device_stream_sync(stage->device, NULL);
    }
    AQ_ASSERT(first % AQ_STAGE_GROUP == 0 && (count % AQ_STAGE_GROUP == 0 || first + count == tensor->count));
    place_of(stage, tensor, &at);
    AQ_TRY(aq_alloc(sizeof(struct piece), &memory));
    enum aq_status status = AQ_OK;
    for (uint64_t done = 0; status == AQ_OK && done < count; done += PIECE_VALUES) {
        const uint64_t n = count - done < PIECE_VALUES ? count - done : PIECE_VALUES;
        piece_pack(memory, stage->config.frozen_store, n, values + done);
        status = piece_copy(stage, &at, first + done, n, memory, false);
    }
    aq_free(memory);
    return status;
}

enum aq_status aq_stage_get(const struct aq_stage *stage, const struct aq_tensor_info *tensor, uint64_t first,
                            uint64_t count, float *values)
{
    struct stage_packed_place at;
    void *memory;
    AQ_ASSERT(first <= tensor->count && count <= tensor->count - first);
    if (!tensor->packed) {
        const float *from = stage->parameters + tensor->offset + first;
        AQ_TRY(aq_device_copy(stage->device, values, from, count * sizeof *values, NULL));
        return aq_device_stream_sync(stage->device, NULL);
    }
    AQ_ASSERT(first % AQ_STAGE_GROUP == 0);
    place_of(stage, tensor, &at);
    AQ_TRY(aq_alloc(sizeof(struct piece), &memory));
    enum aq_status status = AQ_OK;
    for (uint64_t done = 0; status == AQ_OK && done < count; done += PIECE_VALUES) {
        const uint64_t n = count - done < PIECE_VALUES ? count - done : PIECE_VALUES;
        status = piece_copy(stage, &at, first + done, n, memory, true);
        if (status == AQ_OK) piece_unpack(memory, stage->config.frozen_store, n, values + done);
    }
    aq_free(memory);
    return status;
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
    void *memory;
    AQ_TRY(aq_alloc(PIECE_VALUES * sizeof(float), &memory));
    float *values = memory;
    enum aq_status status = AQ_OK;
    for (uint64_t done = 0; status == AQ_OK && done < tensor->info.count; done += PIECE_VALUES) {
        const uint64_t left = tensor->info.count - done, n = left < PIECE_VALUES ? left : PIECE_VALUES;
        for (uint64_t i = 0; i < n; i++)
            values[i] = tensor->std == 0.0f ? tensor->value : tensor->std * aq_rng_normal(&key, done + i);
        status = aq_stage_put(stage, &tensor->info, done, n, values);
    }
    aq_free(values);
    return status;
}
