/*
 * dataset_cifar100.c -- CIFAR-100: records of 3,074 bytes, a coarse label 0 to 19, then a fine one 0 to 99, in front
 * of the pixels (image_records.h). The fine label is the target.
 */
#include "image_records.h"

static const struct image_format format = {
    .name = "CIFAR-100", .label_count = 2, .labels = {{"coarse label", 20}, {"fine label", 100}}};

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

extern const struct aq_dataset_kind aq_dataset_cifar100;
const struct aq_dataset_kind aq_dataset_cifar100 = {.name = "cifar100",
                                                    .what = "image",
                                                    .fields = image_records_fields,
                                                    .open = images_open,
                                                    .close = image_records_close,
                                                    .get = image_records_get,
                                                    .bytes = bytes};
