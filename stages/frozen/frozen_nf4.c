/*
 * frozen_nf4.c -- frozen weights in 4 bits, nf4 of QLoRA (Dettmers et al. 2023), with and without double quantization.
 *
 *     part 0    4 bits per value, two a byte, the first in the high half: a row of AQ_NF4_VALUES
 *     nf4         part 1    a float for each 64 values that follow each other: their largest magnitude, the scale
 *     nf4_double  part 1    a byte for each 64 values: a row of the dynamic map below
 *                 part 2    a float for each 256 such bytes: the largest |scale - offset| of them
 *                 part 3    257 floats: the map, then the offset, which is the mean of all scales
 *
 * x = value * scale, where a double scale is map[byte] * float + offset; each operation is rounded to fp32.
 *
 * Parts have the bits that bitsandbytes 0.50 makes on a CPU (quantize_4bit, blocksize 64, compress_statistics), for
 * which this file follows it operation by operation: a whole block is multiplied by the reciprocal of its scale, the
 * last, shorter one is divided by it; bytes come from a table of 65536 places; the mean is PyTorch's, added by levels
 * in 8 lanes. PyTorch adds more than 32768 scales in an order that depends on its threads: here it is the order of one
 * thread. docs/DECISIONS.md 0780. tests/golden/nf4.safetensors has what bitsandbytes made.
 *
 * Unpacked values are not always packed to the same bytes again: offsets move, and scales below 1e-38 shrink.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "frozen_store.h"

enum { CODES = 16, MAP_VALUES = 256, MAP_POSITIVE = 127, ZERO_CODE = 7 };

static_assert((int)AQ_STAGE_GROUP == (int)AQ_UNPACK_GROUP, "a group is what the device unpacks by one scale");
static_assert((int)AQ_NF4_MAP == (int)MAP_VALUES + 1, "the map, then the offset");

static const float values_of_codes[CODES] = {AQ_NF4_VALUES};

/* Above 0; the map has them negative, too, then 0, these, and 1. create_dynamic_map(signed) of bitsandbytes. */
static const float map_positive[MAP_POSITIVE] = {
    0x1.27476ep-21f, 0x1.b43528p-19f, 0x1.040bfep-17f, 0x1.64840cp-16f, 0x1.6f0068p-15f, 0x1.15df66p-14f,
    0x1.743e96p-14f, 0x1.47ae16p-13f, 0x1.19ce0ap-12f, 0x1.8fc506p-12f, 0x1.02de02p-11f, 0x1.3dd982p-11f,
    0x1.78d5p-11f, 0x1.b3d07cp-11f, 0x1.eecbfep-11f, 0x1.4fdf3ap-10f, 0x1.e353f8p-10f, 0x1.3b645ap-9f,
    0x1.851eb8p-9f, 0x1.ced914p-9f, 0x1.0c49bap-8f, 0x1.3126e8p-8f, 0x1.56041ap-8f, 0x1.7ae148p-8f,
    0x1.9fbe76p-8f, 0x1.c49ba6p-8f, 0x1.e978d4p-8f, 0x1.072b02p-7f, 0x1.19999ap-7f, 0x1.2c083p-7f, 0x1.3e76c8p-7f,
    0x1.75c29p-7f, 0x1.d1eb86p-7f, 0x1.170a3ep-6f, 0x1.451ebap-6f, 0x1.733334p-6f, 0x1.a147aep-6f, 0x1.cf5c2ap-6f,
    0x1.fd70a4p-6f, 0x1.15c29p-5f, 0x1.2ccccep-5f, 0x1.43d70ap-5f, 0x1.5ae146p-5f, 0x1.71eb86p-5f, 0x1.88f5c2p-5f,
    0x1.ap-5f, 0x1.b70a3ep-5f, 0x1.ce147ap-5f, 0x1.e51ebap-5f, 0x1.fc28f6p-5f, 0x1.09999ap-4f, 0x1.151ebap-4f,
    0x1.20a3d6p-4f, 0x1.2c28f6p-4f, 0x1.37ae14p-4f, 0x1.433334p-4f, 0x1.4eb854p-4f, 0x1.5a3d7p-4f, 0x1.65c29p-4f,
    0x1.7147aep-4f, 0x1.7ccccep-4f, 0x1.8851eep-4f, 0x1.93d70ap-4f, 0x1.b66668p-4f, 0x1.fp-4f, 0x1.14ccccp-3f,
    0x1.31999ap-3f, 0x1.4e6666p-3f, 0x1.6b3334p-3f, 0x1.88p-3f, 0x1.a4ccccp-3f, 0x1.c1999ap-3f, 0x1.de6666p-3f,
    0x1.fb3332p-3f, 0x1.0cp-2f, 0x1.1a6668p-2f, 0x1.28ccccp-2f, 0x1.373334p-2f, 0x1.459998p-2f, 0x1.54p-2f,
    0x1.626666p-2f, 0x1.70ccccp-2f, 0x1.7f3334p-2f, 0x1.8d9998p-2f, 0x1.9cp-2f, 0x1.aa6666p-2f, 0x1.b8ccccp-2f,
    0x1.c73334p-2f, 0x1.d59998p-2f, 0x1.e4p-2f, 0x1.f26664p-2f, 0x1.006666p-1f, 0x1.079998p-1f, 0x1.0eccccp-1f,
    0x1.16p-1f, 0x1.1d3334p-1f, 0x1.246668p-1f, 0x1.2b999ap-1f, 0x1.32ccccp-1f, 0x1.3ap-1f, 0x1.413334p-1f,
    0x1.486668p-1f, 0x1.4f999ap-1f, 0x1.56ccccp-1f, 0x1.5ep-1f, 0x1.653334p-1f, 0x1.6c6668p-1f, 0x1.73999ap-1f,
    0x1.7accccp-1f, 0x1.82p-1f, 0x1.893334p-1f, 0x1.906666p-1f, 0x1.97999ap-1f, 0x1.9eccccp-1f, 0x1.a6p-1f,
    0x1.ad3334p-1f, 0x1.b46666p-1f, 0x1.bb999ap-1f, 0x1.c2ccccp-1f, 0x1.cap-1f, 0x1.d13334p-1f, 0x1.d86666p-1f,
    0x1.df999ap-1f, 0x1.e6ccccp-1f, 0x1.eep-1f, 0x1.f53334p-1f, 0x1.fc6666p-1f
};

static const float SCALE_LEAST = 1e-38f;

static uint64_t groups_of(uint64_t count)
{
    return (count + AQ_STAGE_GROUP - 1) / AQ_STAGE_GROUP;
}

/* How many of the 15 bounds between codes lie below x: its code. A bound itself is the lower code's. */
static uint8_t code_of(float x)
{
    uint32_t code = 0;
    for (uint32_t i = 0; i + 1 < CODES; i++)
        code += x > (values_of_codes[i] + values_of_codes[i + 1]) / 2;
    return (uint8_t)code;
}

/* The codes of a block of up to 64 values, two a byte; its scale. */
static float block_pack(const float *values, uint32_t count, uint8_t *codes)
{
    const bool whole = count == AQ_STAGE_GROUP;
    float most = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        most = fmaxf(most, fabsf(values[i]));
    const float least = fmaxf(most, SCALE_LEAST), inverse = 1.0f / least;
    for (uint32_t i = 0; i < count; i += 2) {
        uint8_t pair[2] = {ZERO_CODE, ZERO_CODE};
        for (uint32_t k = 0; k < 2 && i + k < count; k++) {
            const float x = whole ? values[i + k] * inverse : values[i + k] / least;
            pair[k] = code_of(fminf(fmaxf(x, -1.0f), 1.0f));
        }
        codes[i / 2] = (uint8_t)(pair[0] << 4 | pair[1]);
    }
    return whole ? most : least;
}

static void blocks_pack(const float *values, uint64_t count, uint8_t *codes, uint8_t *scales)
{
    for (uint64_t g = 0; g < groups_of(count); g++) {
        const uint64_t first = g * AQ_STAGE_GROUP, left = count - first;
        const float scale =
            block_pack(values + first, left < AQ_STAGE_GROUP ? (uint32_t)left : AQ_STAGE_GROUP, codes + first / 2);
        memcpy(scales + g * sizeof scale, &scale, sizeof scale);
    }
}

static float value_at(const uint8_t *codes, uint64_t i)
{
    return values_of_codes[i % 2 ? codes[i / 2] & 0xf : codes[i / 2] >> 4];
}

static float float_at(const uint8_t *floats, uint64_t i)
{
    float value;
    memcpy(&value, floats + i * sizeof value, sizeof value);
    return value;
}

static enum aq_status nf4_pack(const float *values, uint64_t count, uint8_t *const parts[FROZEN_PARTS])
{
    blocks_pack(values, count, parts[0], parts[1]);
    return AQ_OK;
}

static void nf4_unpack(const uint8_t *const parts[FROZEN_PARTS], uint64_t first, uint64_t count, float *values)
{
    (void)first;
    for (uint64_t i = 0; i < count; i++)
        values[i] = value_at(parts[0], i) * float_at(parts[1], i / AQ_STAGE_GROUP);
}

static enum aq_status nf4_apply(struct aq_device *device, const uint8_t *const parts[FROZEN_PARTS], uint64_t count,
                                void *y, enum aq_element type, struct aq_stream *stream)
{
    const struct aq_unpack_nf4 unpack = {
        .count = count, .x = parts[0], .scales = (const float *)(const void *)parts[1], .y = y, .y_type = type};
    return aq_device_unpack_nf4(device, &unpack, stream);
}

const struct frozen_store frozen_store_nf4 = {
    .name = "nf4",
    .parts = {{2, 1}, {AQ_STAGE_GROUP, sizeof(float)}},
    .type = "F32",
    .pack = nf4_pack,
    .unpack = nf4_unpack,
    .apply = nf4_apply,
};

/* ---- Double quantization. */

enum { LANES = 8, SUMS = 4, LEVELS = 4, PLACES = 65536 };

/* Adds `rows` rows of `width` floats, which follow each other, to sums: by levels, so that no sum has many terms. */
static void rows_sum(const float *x, uint64_t rows, uint32_t width, float sums[SUMS * LANES])
{
    float level[LEVELS][SUMS * LANES] = {{0}};
    uint32_t power = 0;
    while (rows > UINT64_C(1) << power)
        power++;
    power = power / LEVELS > 4 ? power / LEVELS : 4;
    const uint64_t step = UINT64_C(1) << power;
    for (uint64_t i = 0; i < rows;) {
        const bool stretch = i + step <= rows;
        for (const uint64_t end = stretch ? i + step : rows; i < end; i++)
            for (uint32_t k = 0; k < width; k++)
                level[0][k] += x[i * width + k];
        for (uint32_t j = 1; stretch && j < LEVELS; j++) {
            for (uint32_t k = 0; k < width; k++) {
                level[j][k] += level[j - 1][k];
                level[j - 1][k] = 0.0f;
            }
            if (i & (step - 1) << (j * power)) break;
        }
    }
    for (uint32_t k = 0; k < width; k++) {
        sums[k] = level[0][k];
        for (uint32_t j = 1; j < LEVELS; j++)
            sums[k] += level[j][k];
    }
}

/* torch.mean of fp32 on a CPU, in one thread (aten/src/ATen/native/cpu/SumKernel.cpp). */
static float mean_of(const float *x, uint64_t count)
{
    const uint32_t lanes = count >= LANES ? LANES : 1;
    const uint64_t vectors = count / lanes, rows = vectors / SUMS;
    float sums[SUMS * LANES], sum = 0.0f;
    rows_sum(x, rows, SUMS * lanes, sums);
    for (uint64_t v = rows * SUMS; v < vectors; v++)
        for (uint32_t k = 0; k < lanes; k++)
            sums[k] += x[v * lanes + k];
    for (uint32_t s = 1; s < SUMS; s++)
        for (uint32_t k = 0; k < lanes; k++)
            sums[k] += sums[s * lanes + k];
    for (uint64_t i = vectors * lanes; i < count; i++)
        sum += x[i];
    for (uint32_t k = 0; k < lanes; k++)
        sum += sums[k];
    return sum / (float)count;
}

static void map_make(float map[MAP_VALUES])
{
    for (uint32_t i = 0; i < MAP_POSITIVE; i++) {
        map[MAP_POSITIVE - 1 - i] = -map_positive[i];
        map[MAP_POSITIVE + 1 + i] = map_positive[i];
    }
    map[MAP_POSITIVE] = 0.0f;
    map[MAP_VALUES - 1] = 1.0f;
}

/* The byte of x, -1 to 1: the nearest of the map to the nearest of 65536 places. */
static uint8_t byte_of(const float map[MAP_VALUES], float x)
{
    const uint32_t place = (uint32_t)((x + 1.0f) * 0.5f * (PLACES - 1) + 0.5f);
    const float at = -1.0f + (2.0f * (float)place) / (PLACES - 1);
    uint32_t low = 0, high = MAP_VALUES - 1; /* low: how many bounds between the map's values lie below */
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (0.5f * (map[middle] + map[middle + 1]) < at)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint8_t)low;
}

/* Up to 256 scales less the offset, to bytes; the largest magnitude. */
static float scales_pack(const float *scales, uint64_t count, float offset, const float map[MAP_VALUES], uint8_t *bytes)
{
    float most = 0.0f;
    for (uint64_t i = 0; i < count; i++)
        most = fmaxf(most, fabsf(scales[i] - offset));
    memset(bytes, 0, count);
    const float inverse = 1.0f / most;
    for (uint64_t i = 0; i < count && most > 0.0f; i++) {
        const float x = (scales[i] - offset) * inverse;
        bytes[i] = byte_of(map, fminf(fmaxf(x, -1.0f), 1.0f));
    }
    return most;
}

static enum aq_status nf4_double_pack(const float *values, uint64_t count, uint8_t *const parts[FROZEN_PARTS])
{
    const uint64_t groups = groups_of(count);
    float map[AQ_NF4_MAP];
    float *scales;
    AQ_TRY(AQ_NEW(groups, &scales));
    blocks_pack(values, count, parts[0], (uint8_t *)scales);
    map_make(map);
    const float offset = map[MAP_VALUES] = mean_of(scales, groups);
    for (uint64_t first = 0; first < groups; first += AQ_NF4_SCALES) {
        const uint64_t left = groups - first, n = left < AQ_NF4_SCALES ? left : AQ_NF4_SCALES;
        const float most = scales_pack(scales + first, n, offset, map, parts[1] + first);
        memcpy(parts[2] + first / AQ_NF4_SCALES * sizeof most, &most, sizeof most);
    }
    memcpy(parts[3], map, sizeof map);
    aq_free(scales);
    return AQ_OK;
}

static void nf4_double_unpack(const uint8_t *const parts[FROZEN_PARTS], uint64_t first, uint64_t count, float *values)
{
    enum { REACH = AQ_STAGE_GROUP * AQ_NF4_SCALES };
    const float offset = float_at(parts[3], MAP_VALUES);
    for (uint64_t i = 0; i < count; i++) {
        const float most = float_at(parts[2], (first + i) / REACH - first / REACH);
        const float scale = float_at(parts[3], parts[1][i / AQ_STAGE_GROUP]) * most;
        const float whole = scale + offset;
        values[i] = value_at(parts[0], i) * whole;
    }
}

static enum aq_status nf4_double_apply(struct aq_device *device, const uint8_t *const parts[FROZEN_PARTS],
                                       uint64_t count, void *y, enum aq_element type, struct aq_stream *stream)
{
    const struct aq_unpack_nf4 unpack = {.count = count,
                                         .x = parts[0],
                                         .scale_codes = parts[1],
                                         .scales = (const float *)(const void *)parts[2],
                                         .map = (const float *)(const void *)parts[3],
                                         .y = y,
                                         .y_type = type};
    return aq_device_unpack_nf4(device, &unpack, stream);
}

const struct frozen_store frozen_store_nf4_double = {
    .name = "nf4_double",
    .parts = {{2, 1},
              {AQ_STAGE_GROUP, 1},
              {AQ_STAGE_GROUP * AQ_NF4_SCALES, sizeof(float)},
              {0, AQ_NF4_MAP * sizeof(float)}},
    .type = "F32",
    .pack = nf4_double_pack,
    .unpack = nf4_double_unpack,
    .apply = nf4_double_apply,
};
