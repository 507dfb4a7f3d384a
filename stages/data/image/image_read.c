/* image_read.c -- which format a file is of, and its memory. See image_read.h. */
#include "image_read.h"

#include <string.h>

#include "dataset_kind.h"

#define AREA DATASET_AREA

static const struct {
    const char *start;
    size_t bytes;
    enum aq_status (*decode)(const char *path, const uint8_t *bytes, size_t count, struct image *out);
} formats[] = {{"\x89PNG\r\n\x1a\n", 8, image_png}, {"\xff\xd8\xff", 3, image_jpeg}, {"\x93NUMPY", 6, image_npy}};

enum aq_status image_check(const char *path, uint64_t height, uint64_t width)
{
    if (height == 0 || width == 0) return aq_fail(AQ_CORRUPT, AREA, "%s: has no pixels", path);
    if (height > IMAGE_EXTENT_MAX || width > IMAGE_EXTENT_MAX || height * width > IMAGE_AREA_MAX)
        return aq_fail(AQ_INVAL, AREA, "%s: has %llu x %llu pixels, at most %d million are read: make it smaller", path,
                       (unsigned long long)height, (unsigned long long)width, IMAGE_AREA_MAX / 1000000);
    return AQ_OK;
}

enum aq_status image_begin(const char *path, uint64_t height, uint64_t width, uint32_t colours, uint32_t most,
                           struct image *out)
{
    void *memory;
    AQ_TRY(image_check(path, height, width));
    AQ_TRY(aq_alloc(height * width * colours * sizeof(uint16_t), &memory));
    *out = (struct image){
        .height = (uint32_t)height, .width = (uint32_t)width, .colours = colours, .most = most, .values = memory};
    return AQ_OK;
}

static size_t row_values(const struct image *image)
{
    return (size_t)image->width * image->colours;
}

uint8_t *image_row_bytes(const struct image *image, uint32_t y)
{
    return (uint8_t *)(image->values + y * row_values(image)) + row_values(image);
}

/* Value i takes the place of bytes 2 i and 2 i + 1, which lie before byte i of the second half, or are it. */
void image_row_widen(const struct image *image, uint32_t y)
{
    const uint8_t *bytes = image_row_bytes(image, y);
    uint16_t *values = image->values + y * row_values(image);
    for (size_t i = 0; i < row_values(image); i++)
        values[i] = bytes[i];
}

enum aq_status image_decode(const char *path, const uint8_t *bytes, size_t count, struct image *out)
{
    enum aq_status status = AQ_CORRUPT;
    size_t f = 0;
    *out = (struct image){.values = NULL};
    while (f < sizeof formats / sizeof *formats &&
           (count < formats[f].bytes || memcmp(bytes, formats[f].start, formats[f].bytes) != 0))
        f++;
    if (f < sizeof formats / sizeof *formats)
        status = formats[f].decode(path, bytes, count, out);
    else if (count == 0)
        (void)aq_fail(status, AREA, "%s: is empty", path);
    else
        (void)aq_fail(status, AREA, "%s: is no PNG, JPEG or NPY file: convert it to PNG", path);
    if (status != AQ_OK) image_free(out);
    return status;
}

enum aq_status image_read(const char *path, struct image *out)
{
    uint8_t *bytes;
    size_t count;
    AQ_TRY(aq_file_read(AREA, path, IMAGE_FILE_BYTES_MAX, &bytes, &count));
    const enum aq_status status = image_decode(path, bytes, count, out);
    aq_free(bytes);
    return status;
}

void image_free(struct image *image)
{
    aq_free(image->values);
    image->values = NULL;
}
