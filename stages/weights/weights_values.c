/*
 * weights_values.c -- the types that safetensors knows, and the values of a tensor as fp32.
 */
#include <math.h>
#include <string.h>

#include "stages/stage.h"
#include "weights_file.h"

static void float_from_f32(const uint8_t *values, uint64_t count, float *out)
{
    memcpy(out, values, count * sizeof(float));
}

static void float_from_f64(const uint8_t *values, uint64_t count, float *out)
{
    for (uint64_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, values + i * sizeof value, sizeof value);
        out[i] = (float)value;
    }
}

static void float_from_f16(const uint8_t *values, uint64_t count, float *out)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t value;
        memcpy(&value, values + i * sizeof value, sizeof value);
        out[i] = aq_half_to_float(value);
    }
}

static void float_from_bf16(const uint8_t *values, uint64_t count, float *out)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t value;
        memcpy(&value, values + i * sizeof value, sizeof value);
        out[i] = aq_bfloat_to_float(value);
    }
}

static bool f32_from_float(float *values, uint64_t count)
{
    (void)values;
    (void)count;
    return true;
}

static bool f16_from_float(float *values, uint64_t count)
{
    bool fits = true;
    for (uint64_t i = 0; i < count; i++) {
        const uint16_t half = aq_half_from_float(values[i]);
        fits = fits && ((half & 0x7fff) != 0x7c00 || isinf(values[i]));
        memcpy((uint8_t *)values + i * sizeof half, &half, sizeof half);
    }
    return fits;
}

static bool bf16_from_float(float *values, uint64_t count)
{
    bool fits = true;
    for (uint64_t i = 0; i < count; i++) {
        const uint16_t bfloat = aq_bfloat_from_float(values[i]);
        fits = fits && ((bfloat & 0x7fff) != 0x7f80 || isinf(values[i]));
        memcpy((uint8_t *)values + i * sizeof bfloat, &bfloat, sizeof bfloat);
    }
    return fits;
}

/* The integers and 8-bit floats are known so that a file that has some can be opened for its other tensors. */
static const struct aq_weights_type types[] = {
    {"F32", 4, float_from_f32, f32_from_float, 0},
    {"F16", 2, float_from_f16, f16_from_float, 0},
    {"BF16", 2, float_from_bf16, bf16_from_float, 0},
    {"F64", 8, float_from_f64, NULL, 0},
    {"BOOL", 1, NULL, NULL, 0},
    {"U8", 1, NULL, NULL, 0},
    {"I8", 1, NULL, NULL, 0},
    {"F8_E5M2", 1, NULL, NULL, 0},
    {"F8_E4M3", 1, NULL, NULL, 0},
    {"F8_E8M0", 1, NULL, NULL, 0},
    {"F8_E4M3FNUZ", 1, NULL, NULL, 0},
    {"F8_E5M2FNUZ", 1, NULL, NULL, 0},
    {"I16", 2, NULL, NULL, 0},
    {"U16", 2, NULL, NULL, 0},
    {"I32", 4, NULL, NULL, 0},
    {"U32", 4, NULL, NULL, 0},
    {"I64", 8, NULL, NULL, 0},
    {"U64", 8, NULL, NULL, 0},
    {"C64", 8, NULL, NULL, 0},
    {"F4", 0, NULL, NULL, 4},
    {"F6_E2M3", 0, NULL, NULL, 6},
    {"F6_E3M2", 0, NULL, NULL, 6},
};

const struct aq_weights_type *aq_weights_type_find(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, name) == 0) return &types[i];
    }
    return NULL;
}

enum { TAPS_MAX = 121, STRIP_ROWS = 16, STRIP_COLUMNS = 256 };

/* out (columns, rows) = the transpose of values (rows, columns), in strips that stay in the first-level cache. */
static void transpose(const struct aq_weights_type *type, const uint8_t *values, uint64_t rows, uint64_t columns,
                      float *out)
{
    float strip[STRIP_ROWS][STRIP_COLUMNS];
    for (uint64_t row = 0; row < rows; row += STRIP_ROWS) {
        uint64_t height = rows - row < STRIP_ROWS ? rows - row : STRIP_ROWS;
        for (uint64_t column = 0; column < columns; column += STRIP_COLUMNS) {
            uint64_t width = columns - column < STRIP_COLUMNS ? columns - column : STRIP_COLUMNS;
            for (uint64_t i = 0; i < height; i++)
                type->to_float(values + ((row + i) * columns + column) * type->bytes, width, strip[i]);
            for (uint64_t j = 0; j < width; j++) {
                for (uint64_t i = 0; i < height; i++)
                    out[(column + j) * rows + row + i] = strip[i][j];
            }
        }
    }
}

bool aq_weights_readable(const struct aq_weights *weights, uint32_t index, uint64_t count)
{
    return index < weights->count && weights->entries[index]->type->to_float && weights->entries[index]->count == count;
}

void aq_weights_floats(const struct aq_weights *weights, uint32_t index, uint64_t first, uint64_t count, float *out)
{
    const struct aq_weights_entry *entry = weights->entries[index];
    AQ_ASSERT(first <= entry->count && count <= entry->count - first);
    const uint8_t *values = entry->file->data + entry->begin + first * entry->type->bytes;
    entry->type->to_float(values, count, out);
    aq_weights_release(entry->file, values, count * entry->type->bytes); /* whole pages: of a strip nothing */
}

void aq_weights_forget(const struct aq_weights *weights, uint32_t index)
{
    const struct aq_weights_entry *entry = weights->entries[index];
    aq_weights_release(entry->file, entry->file->data + entry->begin, entry->end - entry->begin);
}

/* The tensor is there, can be read, and has so many values. */
static enum aq_status check_values(const struct aq_weights *weights, uint32_t index, uint64_t count)
{
    if (index >= weights->count)
        return aq_fail(AQ_INVAL, "weights", "%s: tensor %u of %u", weights->path, (unsigned)index,
                       (unsigned)weights->count);
    const struct aq_weights_entry *entry = weights->entries[index];
    if (!entry->type->to_float)
        return aq_fail(AQ_MISMATCH, "weights", "%s: tensor \"%.128s\" is %s; F32, F16, BF16 and F64 can be read",
                       entry->file->path, entry->name, entry->type->name);
    if (count != entry->count)
        return aq_fail(AQ_MISMATCH, "weights", "%s: tensor \"%.128s\" has %llu values, the model needs %llu",
                       weights->path, entry->name, (unsigned long long)entry->count, (unsigned long long)count);
    return AQ_OK;
}

enum aq_status aq_weights_read(const struct aq_weights *weights, uint32_t index, bool transposed, float *out,
                               uint64_t count)
{
    AQ_TRY(check_values(weights, index, count));
    const struct aq_weights_entry *entry = weights->entries[index];
    const uint8_t *values = entry->file->data + entry->begin;
    if (count == 0) return AQ_OK;
    if (!transposed) {
        entry->type->to_float(values, count, out);
        aq_weights_release(entry->file, values, entry->end - entry->begin);
        return AQ_OK;
    }
    if (entry->dimensions < 2)
        return aq_fail(AQ_MISMATCH, "weights", "%s: tensor \"%.128s\" has %u dimensions and cannot be transposed",
                       weights->path, entry->name, (unsigned)entry->dimensions);
    uint64_t rows = entry->shape[entry->dimensions - 2], columns = entry->shape[entry->dimensions - 1];
    uint64_t matrix = rows * columns; /* count is not 0, so that neither is this */
    for (uint64_t at = 0; at < count; at += matrix)
        transpose(entry->type, values + at * entry->type->bytes, rows, columns, out + at);
    aq_weights_release(entry->file, values, entry->end - entry->begin);
    return AQ_OK;
}

enum aq_status aq_weights_read_as(const struct aq_weights *weights, uint32_t index, const struct aq_tensor_info *tensor,
                                  float *out)
{
    if (!tensor->kernel) return aq_weights_read(weights, index, tensor->transposed, out, tensor->count);
    AQ_TRY(check_values(weights, index, tensor->count));
    const struct aq_weights_entry *entry = weights->entries[index];
    const uint64_t taps = (uint64_t)tensor->kernel * tensor->kernel, N = tensor->shape[1], C = tensor->shape[0] / taps;
    const uint8_t *values = entry->file->data + entry->begin;
    float strip[TAPS_MAX];
    AQ_ASSERT(taps <= TAPS_MAX);
    for (uint64_t n = 0; n < N; n++)
        for (uint64_t c = 0; c < C; c++, values += taps * entry->type->bytes) {
            entry->type->to_float(values, taps, strip);
            for (uint64_t t = 0; t < taps; t++)
                out[(t * C + c) * N + n] = strip[t];
        }
    aq_weights_forget(weights, index);
    return AQ_OK;
}

enum aq_status aq_weights_bytes(const struct aq_weights *weights, uint32_t index, uint8_t *out, uint64_t count)
{
    if (index >= weights->count)
        return aq_fail(AQ_INVAL, "weights", "%s: tensor %u of %u", weights->path, (unsigned)index,
                       (unsigned)weights->count);
    const struct aq_weights_entry *entry = weights->entries[index];
    if (strcmp(entry->type->name, "U8") != 0 || entry->count != count)
        return aq_fail(AQ_MISMATCH, "weights", "%s: tensor \"%.128s\" has %llu values of type %s, not %llu bytes (U8)",
                       entry->file->path, entry->name, (unsigned long long)entry->count, entry->type->name,
                       (unsigned long long)count);
    memcpy(out, entry->file->data + entry->begin, count);
    aq_weights_release(entry->file, entry->file->data + entry->begin, count);
    return AQ_OK;
}

/* Is every one a number? Without a branch a value, so that it goes at the rate of memory. */
static bool all_finite(const float *values, uint64_t count)
{
    uint32_t others = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        others |= (uint32_t)((bits & 0x7f800000) == 0x7f800000);
    }
    return others == 0;
}

enum aq_status aq_weights_finite(const struct aq_weights *weights, uint32_t index, bool *finite, uint64_t *place,
                                 float *value)
{
    enum { PIECE = 1 << 13, STRETCH = 1 << 20 }; /* what a first-level cache holds; what is let go at once */
    const struct aq_weights_entry *entry = weights->entries[index];
    float floats[PIECE];
    *finite = true;
    if (!entry->type->to_float) return AQ_OK;
    const uint8_t *values = entry->file->data + entry->begin;
    for (uint64_t at = 0; at < entry->count; at += PIECE) {
        const uint64_t left = entry->count - at, count = left < PIECE ? left : PIECE;
        entry->type->to_float(values + at * entry->type->bytes, count, floats);
        if (at % STRETCH == 0 && at > 0)
            aq_weights_release(entry->file, values + (at - STRETCH) * entry->type->bytes, STRETCH * entry->type->bytes);
        if (all_finite(floats, count)) continue;
        *finite = false;
        for (*place = at; isfinite(floats[*place - at]);)
            ++*place;
        *value = floats[*place - at];
        break;
    }
    aq_weights_forget(weights, index);
    return AQ_OK;
}
