/*
 * image_read.h -- image files to pixels: PNG (libpng), JPEG (libjpeg-turbo) and NPY; and pixels to squares of one size.
 * Private to stages/data.
 *
 *     AQ_TRY(image_read("cat.png", &image));
 *     image_square(&image, side, fit, most, values);
 *     image_free(&image);
 *
 * A file is of the format that its first bytes show, whatever its name. What is read:
 *
 *     PNG    grey or colour of 1 to 16 bits, palettes; interlaced or not. Transparency is left out, gamma not applied.
 *     JPEG   grey or colour of 8 bits, baseline or progressive. Its orientation (EXIF) is not applied.
 *     NPY    uint8 or uint16 of shape (height, width), (height, width, 1) or (height, width, 3), in C's order.
 *
 * Caveats first. A file is at most IMAGE_FILE_BYTES_MAX long, and says its size before it is decoded: more than
 * IMAGE_AREA_MAX pixels, or a side beyond IMAGE_EXTENT_MAX, are refused before memory is taken. A file that is cut
 * short or damaged is refused as a whole, also where its decoder would go on with grey pixels.
 *
 * Locking: pure functions, any thread.
 */
#ifndef IMAGE_READ_H
#define IMAGE_READ_H

#include <stddef.h>
#include <stdint.h>

#include "stages/dataset.h"

enum { IMAGE_EXTENT_MAX = 65535, IMAGE_AREA_MAX = 1 << 26 };
#define IMAGE_FILE_BYTES_MAX (UINT64_C(256) << 20)

struct image {
    uint32_t height, width, colours; /* 1: grey; 3: red, green, blue     */
    uint32_t most;                   /* the largest value, 255 or 65535  */
    uint16_t *values;                /* (height, width, colours); memory of aq_alloc */
};

/*
 * The image in a file; *out is the caller's (image_free). Texts begin with the path. AQ_NOTFOUND, AQ_IO: the file.
 * AQ_CORRUPT: no image, a damaged one, or a form that is not read. AQ_INVAL: too large. AQ_NOMEM.
 */
enum aq_status image_read(const char *path, struct image *out);
/* The same of its bytes. */
enum aq_status image_decode(const char *path, const uint8_t *bytes, size_t count, struct image *out);
void image_free(struct image *image);

/*
 * The image as side x side pixels of three colours (grey three times) into values, (side, side, 3): each from 0 to
 * most. Bilinear with antialiasing, as Pillow's BILINEAR and PyTorch's interpolate(antialias=True) have it: weights
 * fall linearly to 0 over one pixel of the larger of the two images. Computed in fp32, and rounded once. With
 * AQ_DATASET_CROP the shorter side becomes `side`, and the longer one is cut evenly, as torchvision's Resize and
 * CenterCrop do. AQ_NOMEM.
 */
enum aq_status image_square(const struct image *image, uint32_t side, enum aq_dataset_fit fit, uint32_t most,
                            uint16_t *values);

/* ---- The formats, for image_read.c. ---- */

/* AQ_INVAL: there are more pixels than are read. AQ_CORRUPT: there are none. */
enum aq_status image_check(const char *path, uint64_t height, uint64_t width);
/* The same, and takes the memory of *out. */
enum aq_status image_begin(const char *path, uint64_t height, uint64_t width, uint32_t colours, uint32_t most,
                           struct image *out);

/* Row y of an image of 8 bits as a decoder writes bytes: the second half of its values; and those bytes as values. */
uint8_t *image_row_bytes(const struct image *image, uint32_t y);
void image_row_widen(const struct image *image, uint32_t y);

/* *out is freed by the caller, also where they fail. */
enum aq_status image_png(const char *path, const uint8_t *bytes, size_t count, struct image *out);
enum aq_status image_jpeg(const char *path, const uint8_t *bytes, size_t count, struct image *out);
enum aq_status image_npy(const char *path, const uint8_t *bytes, size_t count, struct image *out);

#endif
