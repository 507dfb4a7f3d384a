/*
 * dataset_cifar10.c -- CIFAR-10 in its own binary files (Krizhevsky 2009): records of 3,073 bytes.
 *
 *     offset 0     1 byte       label, 0 to 9
 *     offset 1     1,024 bytes  red, row by row of 32 x 32; then as many green, then blue
 *
 * A sample has `images`, 1,024 pixels of 3 colours, each colour's value v as v / 127.5 - 1, and `labels`, one number.
 * Its id is its place in all files together.
 */
#include <string.h>

#include "dataset_kind.h"

enum { PIXELS = 1024, COLOURS = 3, RECORD_BYTES = 1 + COLOURS * PIXELS, CLASSES = 10 };

#define FILE_BYTES_MAX (UINT64_C(1) << 32)

struct images {
    uint8_t *records;
    uint64_t count;
};

static uint32_t fields(uint32_t T, struct aq_field out[AQ_BATCH_FIELDS_MAX])
{
    (void)T;
    out[0] = (struct aq_field){.name = "images", .type = AQ_FIELD_F32, .count = PIXELS * COLOURS};
    out[1] = (struct aq_field){.name = "labels", .type = AQ_FIELD_I32, .count = 1};
    return 2;
}

static enum aq_status records_check(const char *path, const uint8_t *records, size_t bytes)
{
    if (bytes == 0 || bytes % RECORD_BYTES)
        return aq_fail(AQ_CORRUPT, DATASET_AREA,
                       "%s: its %zu bytes are not a multiple of %d, the size of a CIFAR-10 record: the file is cut "
                       "short, or not CIFAR-10",
                       path, bytes, RECORD_BYTES);
    for (size_t at = 0; at < bytes; at += RECORD_BYTES)
        if (records[at] >= CLASSES)
            return aq_fail(AQ_CORRUPT, DATASET_AREA, "%s: record %zu has label %u, not 0 to %d; the file is damaged",
                           path, at / RECORD_BYTES, records[at], CLASSES - 1);
    return AQ_OK;
}

static enum aq_status add_file(const char *path, struct images *images)
{
    uint8_t *records;
    void *memory;
    size_t bytes;
    AQ_TRY(aq_file_read(DATASET_AREA, path, FILE_BYTES_MAX, &records, &bytes));
    enum aq_status status = records_check(path, records, bytes);
    const uint64_t before = images->count * RECORD_BYTES;
    if (status == AQ_OK && images->count == 0) { /* the first file is not copied: often there is no other */
        images->records = records;
        images->count = bytes / RECORD_BYTES;
        return AQ_OK;
    }
    if (status == AQ_OK) status = aq_alloc(before + bytes, &memory);
    if (status == AQ_OK) {
        memcpy(memory, images->records, before);
        memcpy((uint8_t *)memory + before, records, bytes);
        aq_free(images->records);
        images->records = memory;
        images->count += bytes / RECORD_BYTES;
    }
    aq_free(records);
    return status;
}

static enum aq_status images_open(const struct aq_dataset_config *config, void **state, struct dataset_facts *facts)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct images), &memory));
    struct images *images = *state = memory;
    for (uint32_t i = 0; i < config->path_count; i++)
        AQ_TRY(add_file(config->paths[i], images));
    *facts = (struct dataset_facts){.samples = images->count,
                                    .digest = aq_digest(images->records, images->count * RECORD_BYTES),
                                    .outputs = CLASSES};
    return AQ_OK;
}

static void images_close(void *state)
{
    struct images *images = state;
    aq_free(images->records);
    aq_free(images);
}

static void get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX])
{
    const struct images *images = state;
    const uint8_t *record = images->records + sample * RECORD_BYTES;
    float *pixels = values[0];
    for (int colour = 0; colour < COLOURS; colour++)
        for (int i = 0; i < PIXELS; i++)
            pixels[i * COLOURS + colour] = (float)record[1 + colour * PIXELS + i] / 127.5f - 1.0f;
    *(int32_t *)values[1] = record[0];
}

static uint64_t bytes(uint32_t T, uint64_t samples)
{
    (void)T;
    return samples * RECORD_BYTES;
}

extern const struct aq_dataset_kind aq_dataset_cifar10;
const struct aq_dataset_kind aq_dataset_cifar10 = {.name = "cifar10",
                                                   .what = "image",
                                                   .fields = fields,
                                                   .open = images_open,
                                                   .close = images_close,
                                                   .get = get,
                                                   .bytes = bytes};
