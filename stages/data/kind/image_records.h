/*
 * image_records.h -- images of 32 x 32 pixels in records of one size, as CIFAR's binary files have them (Krizhevsky
 * 2009); private to stages/data.
 *
 *     offset 0     1 byte each  labels, as many as the format has; the last is the target
 *     then         1,024 bytes  red, row by row of 32 x 32; then as many green, then blue
 *
 * A sample has `images`, 1,024 pixels of 3 colours (pixel_values.h), and `labels`, one number.
 * Its id is its place in all files together. A kind of data set is a format, and calls these functions.
 */
#ifndef IMAGE_RECORDS_H
#define IMAGE_RECORDS_H

#include "dataset_kind.h"

enum { IMAGE_PIXELS = 1024, IMAGE_COLOURS = 3, IMAGE_LABELS_MAX = 2 };

struct image_format {
    const char *name;     /* in messages: "CIFAR-10"    */
    uint32_t label_count; /* 1 to IMAGE_LABELS_MAX      */
    struct image_label {
        const char *name; /* in messages: "fine label"  */
        uint32_t classes; /* it is below; 1 to 256      */
    } labels[IMAGE_LABELS_MAX];
};

static inline uint32_t image_record_bytes(const struct image_format *format)
{
    return format->label_count + IMAGE_COLOURS * IMAGE_PIXELS;
}

/* As the members of struct aq_dataset_kind. `format`: borrowed until the state is closed. AQ_CORRUPT names file and
 * record. */
enum aq_status image_records_open(const struct image_format *format, const struct aq_dataset_config *config,
                                  void **state, struct dataset_facts *facts);
void image_records_close(void *state);
void image_records_get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX]);
uint32_t image_records_fields(uint32_t T, const struct aq_dataset_image *image,
                              struct aq_field fields[AQ_BATCH_FIELDS_MAX]);

#endif
