/* image_records.c -- reads records of images, all files into memory. See image_records.h. */
#include <string.h>

#include "image_records.h"
#include "pixel_values.h"

#define FILE_BYTES_MAX (UINT64_C(1) << 32)

struct images {
    const struct image_format *format;
    uint8_t *records;
    uint64_t count;
    struct pixel_values values;
};

uint32_t image_records_fields(uint32_t T, const struct aq_dataset_image *image,
                              struct aq_field out[AQ_BATCH_FIELDS_MAX])
{
    (void)image;
    (void)T;
    out[0] = (struct aq_field){.name = "images", .type = AQ_FIELD_F32, .count = IMAGE_PIXELS * IMAGE_COLOURS};
    out[1] = (struct aq_field){.name = "labels", .type = AQ_FIELD_I32, .count = 1};
    return 2;
}

static enum aq_status records_check(const struct image_format *format, const char *path, const uint8_t *records,
                                    size_t bytes)
{
    const uint32_t each = image_record_bytes(format);
    if (bytes == 0 || bytes % each)
        return aq_fail(AQ_CORRUPT, DATASET_AREA,
                       "%s: record %zu has %zu bytes, a record of %s has %u: the file is cut short, or of another "
                       "data.kind",
                       path, bytes / each, bytes % each, format->name, each);
    for (size_t at = 0; at < bytes; at += each)
        for (uint32_t i = 0; i < format->label_count; i++)
            if (records[at + i] >= format->labels[i].classes)
                return aq_fail(AQ_CORRUPT, DATASET_AREA,
                               "%s: record %zu has %s %u, %s has 0 to %u: the file is damaged, or of another data.kind",
                               path, at / each, format->labels[i].name, records[at + i], format->name,
                               format->labels[i].classes - 1);
    return AQ_OK;
}

static enum aq_status add_file(const char *path, struct images *images)
{
    const uint32_t each = image_record_bytes(images->format);
    uint8_t *records;
    void *memory;
    size_t bytes;
    AQ_TRY(aq_file_read(DATASET_AREA, path, FILE_BYTES_MAX, &records, &bytes));
    enum aq_status status = records_check(images->format, path, records, bytes);
    const uint64_t before = images->count * each;
    if (status == AQ_OK && images->count == 0) { /* the first file is not copied: often there is no other */
        images->records = records;
        images->count = bytes / each;
        return AQ_OK;
    }
    if (status == AQ_OK) status = aq_alloc(before + bytes, &memory);
    if (status == AQ_OK) {
        memcpy(memory, images->records, before);
        memcpy((uint8_t *)memory + before, records, bytes);
        aq_free(images->records);
        images->records = memory;
        images->count += bytes / each;
    }
    aq_free(records);
    return status;
}

enum aq_status image_records_open(const struct image_format *format, const struct aq_dataset_config *config,
                                  void **state, struct dataset_facts *facts)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct images), &memory));
    struct images *images = *state = memory;
    images->format = format;
    AQ_TRY(aq_dataset_image_check(&config->image));
    images->values = pixel_values_of(&config->image, UINT8_MAX);
    for (uint32_t i = 0; i < config->path_count; i++)
        AQ_TRY(add_file(config->paths[i], images));
    *facts = (struct dataset_facts){.samples = images->count,
                                    .digest = aq_digest(images->records, images->count * image_record_bytes(format)),
                                    .outputs = format->labels[format->label_count - 1].classes};
    return AQ_OK;
}

void image_records_close(void *state)
{
    struct images *images = state;
    aq_free(images->records);
    aq_free(images);
}

void image_records_get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX])
{
    const struct images *images = state;
    const uint8_t *record = images->records + sample * image_record_bytes(images->format);
    const uint8_t *colours = record + images->format->label_count;
    float *pixels = values[0];
    for (int colour = 0; colour < IMAGE_COLOURS; colour++, colours += IMAGE_PIXELS)
        for (int i = 0; i < IMAGE_PIXELS; i++)
            pixels[i * IMAGE_COLOURS + colour] = pixel_value(&images->values, colour, colours[i]);
    *(int32_t *)values[1] = record[images->format->label_count - 1];
}
