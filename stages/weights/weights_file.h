/*
 * weights_file.h -- an open safetensors file, as its reader and its conversions see it.
 *
 *     offset 0        8 bytes   N, the header's length, little endian
 *     offset 8        N bytes   JSON: {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..., "__metadata__"}
 *     offset 8 + N    the rest  the tensors' bytes, row-major, little endian; offsets count from here
 *
 * Locking: as weights.h.
 */
#ifndef STAGES_WEIGHTS_FILE_H
#define STAGES_WEIGHTS_FILE_H

#include <assert.h>
#include <jansson.h>

#include "stages/weights.h"

enum { AQ_WEIGHTS_DIMENSIONS_MAX = 8 };
/* The bound of the safetensors project itself: a header of 100 MB. */
#define AQ_WEIGHTS_HEADER_BYTES_MAX UINT64_C(100000000)

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor bytes are taken as they are");
static_assert(sizeof(float) == 4 && sizeof(double) == 8, "as in the file");

struct aq_weights_type {
    const char *name;
    uint32_t bytes;
    /* values: count of this type, of any alignment; NULL: the type is not read as fp32. */
    void (*to_float)(const uint8_t *values, uint64_t count, float *out);
};
/* The type of that name, or NULL. */
const struct aq_weights_type *aq_weights_type_find(const char *name);

/* The name without a leading "transformer.". */
const char *aq_weights_bare_name(const char *name);

struct aq_weights_entry {
    const char *name; /* of the header */
    const struct aq_weights_type *type;
    uint32_t dimensions;
    uint64_t shape[AQ_WEIGHTS_DIMENSIONS_MAX];
    uint64_t count;
    uint64_t begin, end; /* offsets in data */
};

struct aq_weights {
    char *path;
    uint8_t *file; /* mapped */
    size_t file_bytes;
    json_t *header; /* owns the names */
    const uint8_t *data;
    uint64_t data_bytes;
    struct aq_weights_entry *entries; /* in order of their bytes */
    uint32_t count;
};

#endif
