/*
 * dataset_cifar10.c -- CIFAR-10: records of 3,073 bytes, a label 0 to 9 in front of the pixels (image_records.h).
 */
#include "image_records.h"

static const struct image_format format = {.name = "CIFAR-10", .label_count = 1, .labels = {{"label", 10}}};

static enum aq_status images_open(const struct aq_dataset_config *config, void **state, struct dataset_facts *facts)
{
    return image_records_open(&format, config, state, facts);
}

static uint64_t bytes(uint32_t T, const struct aq_dataset_image *image, uint64_t samples)
{
    (void)T;
    (void)image;
    return samples * image_record_bytes(&format);
}

extern const struct aq_dataset_kind aq_dataset_cifar10;
const struct aq_dataset_kind aq_dataset_cifar10 = {.name = "cifar10",
                                                   .what = "image",
                                                   .fields = image_records_fields,
                                                   .open = images_open,
                                                   .close = image_records_close,
                                                   .get = image_records_get,
                                                   .bytes = bytes};
