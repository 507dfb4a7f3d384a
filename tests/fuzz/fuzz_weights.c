/*
 * fuzz_weights.c -- any bytes as a safetensors file: a status, or tensors of which every value can be read.
 *
 * The first eight bytes, the header's length, are set to what would fit where they are zero, so that texts of another
 * length pass on to the JSON behind it.
 */
#include <string.h>

#include "fuzz.h"
#include "stages/weights.h"

enum { BYTES_MAX = 1 << 16, VALUES_MAX = 1 << 16 };

static void read_all(const struct aq_weights *weights)
{
    static float values[VALUES_MAX];
    for (uint32_t i = 0; i < aq_weights_count(weights); i++) {
        struct aq_weights_info info;
        uint32_t index;
        uint64_t count = 1;
        aq_weights_info(weights, i, &info);
        AQ_ASSERT(info.dimensions <= 8);
        for (uint32_t d = 0; d < info.dimensions; d++)
            count *= info.shape[d];
        AQ_ASSERT(count == info.count);
        AQ_ASSERT(aq_weights_find(weights, info.name, &index) == AQ_OK);
        if (count > VALUES_MAX) continue;
        (void)aq_weights_read(weights, i, false, values, count);
        (void)aq_weights_read(weights, i, true, values, count);
        AQ_ASSERT(aq_weights_read(weights, i, false, values, count + 1) == AQ_MISMATCH);
    }
    (void)aq_weights_metadata(weights, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[BYTES_MAX];
    static const uint8_t zero[8];
    struct aq_weights *weights;
    fuzz_quiet();
    if (size > BYTES_MAX) return 0;
    memcpy(bytes, data, size);
    if (size >= 8 && memcmp(bytes, zero, 8) == 0) {
        /* The header ends with the line, as it does in the corpus. */
        const uint8_t *end = memchr(bytes + 8, '\n', size - 8);
        const uint64_t length = end ? (uint64_t)(end - bytes - 8) : size - 8;
        memmove(bytes + 8 + length, bytes + 8 + length + (end ? 1 : 0), size - 8 - length - (end ? 1 : 0));
        size -= end ? 1 : 0;
        memcpy(bytes, &length, 8);
    }
    fuzz_write("a.safetensors", bytes, size);
    const enum aq_status status = aq_weights_open(fuzz_path("a.safetensors"), &weights);
    fuzz_told(status == AQ_OK);
    if (status != AQ_OK) {
        AQ_ASSERT(status == AQ_CORRUPT);
        return 0;
    }
    read_all(weights);
    aq_weights_close(weights);
    return 0;
}
