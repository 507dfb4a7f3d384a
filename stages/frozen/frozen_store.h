/*
 * frozen_store.h -- one way to keep frozen weights in fewer bits (train.frozen_store).
 *
 * A store is a const table in frozen_<name>.c and a row of stages/frozen_stores.def. Nothing outside names it: a
 * stage's memory, products, checkpoints, plans and the manifest's key follow from the table.
 *
 * A tensor is kept as up to FROZEN_PARTS parts: codes, scales, and so on. The parts follow each other in a stage's
 * memory, each filled with zeroes up to a multiple of AQ_ALIGN, so that the bytes of equal values are equal everywhere.
 *
 * Locking: pure functions, any thread; `apply` as its device.
 */
#ifndef FROZEN_STORE_H
#define FROZEN_STORE_H

#include "aqsgd/device.h"
#include "stages/stage.h"

enum { FROZEN_PARTS = 4 };

/* `bytes` for each `values` values that follow each other, of which the last may have fewer. */
struct frozen_part {
    uint32_t values; /* 0: `bytes` for the whole tensor */
    uint32_t bytes;  /* 0: there is no such part        */
};

struct frozen_store {
    const char *name; /* as in the manifest */
    struct frozen_part parts[FROZEN_PARTS];
    /* Its one part is bf16 values. Tensors follow each other without gaps, and a product can read them as they are. */
    bool bf16;
    /* Unpacked values are packed to the same bytes again. If not, files have the bytes next to the values. */
    bool repeats;
    const char *type; /* of the values in files: "F32", "BF16" */
    /*
     * A whole tensor of `count` finite values into its parts, on the host; every byte of them is written. AQ_NOMEM.
     */
    enum aq_status (*pack)(const float *values, uint64_t count, uint8_t *const parts[FROZEN_PARTS]);
    /*
     * `count` values from `first`, a multiple of AQ_STAGE_GROUP, on; on the host. parts[p] is what has value `first`
     * of part p: byte first / values * bytes of it.
     */
    void (*unpack)(const uint8_t *const parts[FROZEN_PARTS], uint64_t first, uint64_t count, float *values);
    /* A whole tensor to y, as `type`, on the device that has the parts. Same bits as `unpack`, then rounded. */
    enum aq_status (*apply)(struct aq_device *device, const uint8_t *const parts[FROZEN_PARTS], uint64_t count, void *y,
                            enum aq_element type, struct aq_stream *stream);
};

/* NULL: fp32, or no store. */
const struct frozen_store *frozen_store_of(enum aq_frozen_store store);

/* Bytes of part p of a tensor, without what it is filled up with. */
uint64_t frozen_part_bytes(const struct frozen_store *store, uint32_t p, uint64_t count);

#define AQ_FROZEN_STORE(name, NAME, number) extern const struct frozen_store frozen_store_##name;
#include "stages/frozen_stores.def"
#undef AQ_FROZEN_STORE

#endif
