/* frozen_bf16.c -- frozen weights rounded to bf16, to nearest: 2 bytes per value. See frozen_store.h. */
#include <string.h>

#include "frozen_store.h"

static enum aq_status bf16_pack(const float *values, uint64_t count, uint8_t *const parts[FROZEN_PARTS])
{
    for (uint64_t i = 0; i < count; i++) {
        const uint16_t half = aq_bfloat_from_float(values[i]);
        memcpy(parts[0] + i * sizeof half, &half, sizeof half);
    }
    return AQ_OK;
}

static void bf16_unpack(const uint8_t *const parts[FROZEN_PARTS], uint64_t first, uint64_t count, float *values)
{
    (void)first;
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, parts[0] + i * sizeof half, sizeof half);
        values[i] = aq_bfloat_to_float(half);
    }
}

static enum aq_status bf16_apply(struct aq_device *device, const uint8_t *const parts[FROZEN_PARTS], uint64_t count,
                                 void *y, enum aq_element type, struct aq_stream *stream)
{
    const struct aq_dropout_apply widen = {
        .samples = 1, .sample_elements = count, .x = parts[0], .x_type = AQ_BF16, .y = y, .y_type = type};
    return aq_device_dropout(device, &widen, stream);
}

const struct frozen_store frozen_store_bf16 = {
    .name = "bf16",
    .parts = {{1, sizeof(uint16_t)}},
    .bf16 = true,
    .repeats = true,
    .type = "BF16",
    .pack = bf16_pack,
    .unpack = bf16_unpack,
    .apply = bf16_apply,
};
