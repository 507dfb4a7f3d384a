/*
 * frozen_q8.c -- frozen weights in 8 bits, with a scale for each AQ_STAGE_GROUP values: x = code * scale.
 *
 *     part 0    a byte per value, signed
 *     part 1    a float for each AQ_STAGE_GROUP values that follow each other
 *
 * A scale is max |x| / 127, rounded up to 16 bits of mantissa, so that code * scale is exact in fp32, and so that
 * unpacked values are packed to the same bits again: the largest value of a group is then 127 scale, which gives the
 * same scale. A group of only zeroes has scale 0. Codes are rounded to nearest, ties to even.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "frozen_store.h"

static_assert((int)AQ_STAGE_GROUP == (int)AQ_UNPACK_GROUP, "a group is what the device unpacks by one scale");

enum { CODE_MAX = 127 };

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

static enum aq_status q8_pack(const float *values, uint64_t count, uint8_t *const parts[FROZEN_PARTS])
{
    for (uint64_t first = 0; first < count; first += AQ_STAGE_GROUP) {
        const uint64_t left = count - first, end = first + (left < AQ_STAGE_GROUP ? left : AQ_STAGE_GROUP);
        const float scale = scale_of(values + first, end - first);
        memcpy(parts[1] + first / AQ_STAGE_GROUP * sizeof scale, &scale, sizeof scale);
        for (uint64_t i = first; i < end; i++)
            parts[0][i] = (uint8_t)(int8_t)(scale > 0.0f ? rintf(values[i] / scale) : 0.0f);
    }
    return AQ_OK;
}

static void q8_unpack(const uint8_t *const parts[FROZEN_PARTS], uint64_t first, uint64_t count, float *values)
{
    (void)first;
    for (uint64_t i = 0; i < count; i++) {
        float scale;
        memcpy(&scale, parts[1] + i / AQ_STAGE_GROUP * sizeof scale, sizeof scale);
        values[i] = (float)(int8_t)parts[0][i] * scale;
    }
}

static enum aq_status q8_apply(struct aq_device *device, const uint8_t *const parts[FROZEN_PARTS], uint64_t count,
                               void *y, enum aq_element type, struct aq_stream *stream)
{
    const struct aq_unpack unpack = {.count = count,
                                     .x = (const int8_t *)parts[0],
                                     .scales = (const float *)(const void *)parts[1],
                                     .y = y,
                                     .y_type = type};
    return aq_device_unpack(device, &unpack, stream);
}

const struct frozen_store frozen_store_q8 = {
    .name = "q8",
    .parts = {{1, 1}, {AQ_STAGE_GROUP, sizeof(float)}},
    .repeats = true,
    .type = "F32",
    .pack = q8_pack,
    .unpack = q8_unpack,
    .apply = q8_apply,
};
